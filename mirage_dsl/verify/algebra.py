"""The arithmetic of residues, as a domain of the evaluator."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import DType, Scalar, dtype_named, scalar
from mirage_dsl.ir.analysis.integers import (
    AllTurns,
    Limit,
    Turns,
    any_integers,
    mixed,
    of_floats,
)
from mirage_dsl.ir.evaluate import as_format
from mirage_dsl.ops.definition import Axes, Numbers, Operator, Truth
from mirage_dsl.ops.makers import gathered, known_values
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify import fields
from mirage_dsl.verify.constants import Number, read_number
from mirage_dsl.verify.fields import IntArray, Trials, power, subtract

# -- Order -----------------------------------------------------------------------------
# An order-like operator (a maximum, or something made of it) is a *site*,
# numbered in the order of evaluation.  A site is read in one of three ways:
#
# - fresh: its value is a new random number, independent of its operands.  This is right
#   for a site on whose value no output depends: a maximum that only shifts exponents.
# - `RANK`: a random total order, keyed per trial.  It is associative, commutative and
#   idempotent, but knows nothing of arithmetic.
# - `PALEY`: max(a, b) is `a` where a - b is a square.  It commutes with adding a
#   number, with multiplying by a positive one and with exp, but is not associative.
#
# What holds for reals because of the axioms of one model holds in that model.  An
# identity that needs both is rejected: a false rejection, never a false
# acceptance.

Hash = NDArray[np.uint64]


class OrderModel(Enum):
    """The reading of sites that are not fresh."""

    RANK = "random total order"
    PALEY = "differences that are squares"


@dataclass
class Order:
    """The reading of all sites of one evaluation, and the count of sites so far.

    Attributes:
        model: The reading of sites that are not fresh.
        fresh: Those that are.
        still: Whether shifts are 0, which their values do not matter for.
        sites: How many there were so far.
    """

    model: OrderModel = OrderModel.RANK
    fresh: frozenset[int] = frozenset()
    still: bool = False
    sites: int = 0

    def next_site(self) -> int:
        """The number of the site that is being evaluated."""
        self.sites += 1
        return self.sites - 1

    def first_is_larger(
        self, a: IntArray, b: IntArray, trials: Trials, p: IntArray
    ) -> NDArray[np.bool_]:
        """Where `a` is the maximum of `a` and `b`."""
        if self.model is OrderModel.RANK:
            return _ranked(a, trials) >= _ranked(b, trials)
        difference = subtract(a, b, p)
        return power(difference, (p - 1) // 2, p) != p - 1


def hashed(name: str, trials: Trials, operands: Sequence[IntArray]) -> Hash:
    """A random function of the operands, keyed by name and trial."""
    rank = operands[0].ndim - 1
    state = trials.words(name).reshape((-1,) + (1,) * rank)
    for operand in operands:
        state = mixed(state ^ operand.astype(np.uint64))
    return state


def _ranked(values: IntArray, trials: Trials) -> Hash:
    """Where values stand in a random total order, in which 1 is above 0.

    Truth values are compared as they are: a maximum of theirs holds where either does.
    """
    ranks = hashed("order", trials, [values])
    if (values > 1).all():
        return ranks
    ends = np.broadcast_to(np.arange(2), (trials.count, 2))
    zero, one = np.sort(hashed("order", trials, [ends]), axis=1).T
    along = (-1,) + (1,) * (values.ndim - 1)
    of_one = np.where(values == 1, one.reshape(along), ranks)
    return np.where(values == 0, zero.reshape(along), of_one)


def _digest(elements: IntArray) -> Hash:
    """One word for all elements of a trial, which says where each of them stands."""
    trials, *shape = elements.shape
    start = np.uint64(zlib.crc32(repr(shape).encode()))
    flat = elements.reshape(trials, -1).astype(np.uint64)
    places = mixed(np.arange(flat.shape[1], dtype=np.uint64) + start)
    with np.errstate(over="ignore"):
        return mixed(mixed(flat ^ places[None]).sum(axis=1, dtype=np.uint64) + start)


# -- Residues --------------------------------------------------------------------------
# A residue holds one component per field of the chain, low to top.  exp moves
# every component one field up, so the lowest one is lost; a lost component is
# absent, never a number, and whatever needs it is absent too.  Only the top
# component is compared.
#
# Beside the components goes a word of flags per element:
#
# - `MASKED`: the element is minus infinity.  exp gives 0, a sum of two stays masked;
#   what has no meaning over the reals is `INVALID`.
# - `RAISED`: the element is infinity, what a minimum ignores.
# - `INVALID`: a division by zero, or arithmetic on infinities.  A trial in which an
#   output is invalid says nothing and is drawn again.
# - `TOUCHED << i`: component i depends on the square root of a non-square.

FlagArray = NDArray[np.uint16]
Move = Callable[[Any], Any]

MASKED = 1
INVALID = 2
TOUCHED = 4
"""The flag of the lowest component; the next ones follow."""
RAISED = 1 << 15
_INFINITE, _INVALID = np.uint16(MASKED | RAISED), np.uint16(INVALID)


@dataclass(frozen=True)
class Residue:
    """An array over a chain of fields; the first axis of every array is the trial.

    Attributes:
        parts: Components, low to top; None where lost.
        flags: Flags per element; None where there are none.
        positive: It is a positive constant.
        exact: Of integers and truth values that are known: themselves, in their format.
        number: Of a constant that is an integer: that.
        fixed: What is known is the same in all trials, as positions are: what follows
            from it is no choice that a trial may miss.
    """

    parts: tuple[IntArray | None, ...]
    flags: FlagArray | None = None
    positive: bool = False
    exact: NDArray[Any] | None = None
    number: int | None = None
    fixed: bool = False

    @property
    def top(self) -> IntArray:
        """The component that comparisons use."""
        top = self.parts[-1]
        assert top is not None, "a residue has lost its top component"
        return top

    @property
    def rank(self) -> int:
        """Number of axes without that of the trials."""
        return self.top.ndim - 1

    def each(self, move: Move) -> Residue:
        """The residue with `move` applied to every array (a move of elements)."""
        parts = tuple(None if a is None else move(a) for a in self.parts)
        flags = None if self.flags is None else move(self.flags)
        exact = None if self.exact is None else move(self.exact)
        return Residue(parts, flags, self.positive, exact, self.number, self.fixed)

    def all_flags(self) -> FlagArray:
        """The flags as an array, zeros where there are none."""
        if self.flags is None:
            return np.zeros(self.top.shape, dtype=np.uint16)
        return self.flags

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        """Where one of the bits of `flag` is set."""
        if self.flags is None:
            return np.zeros(self.top.shape, dtype=bool)
        return (self.flags & flag) != 0


def _lift(value: Residue, rank: int) -> Residue:
    """A rank-0 value with axes of extent 1, to broadcast with rank `rank`."""
    if value.rank == rank:
        return value
    return value.each(lambda a: a.reshape(a.shape[:1] + (1,) * rank))


def align(*values: Residue) -> tuple[Residue, ...]:
    """The values with equal ranks; only those of rank 0 change."""
    rank = max(v.rank for v in values)
    return tuple(_lift(v, rank) for v in values)


def all_fixed(values: Sequence[Residue]) -> bool:
    """Whether all are the same integers in every trial."""
    return all(v.fixed or v.number is not None for v in values)


def without_zeros(flags: NDArray[Any]) -> FlagArray | None:
    """The flags, or None where none is set."""
    return flags.astype(np.uint16) if flags.any() else None


def either(*values: Residue) -> FlagArray | None:
    """The union of the flags of aligned values, or None.

    Of opposite infinities nothing is left that has a meaning.
    """
    present = [v.flags for v in values if v.flags is not None]
    if not present:
        return None
    flags = reduce(np.bitwise_or, present)
    opposite = (flags & _INFINITE) == _INFINITE
    return np.where(opposite, flags ^ _INFINITE | _INVALID, flags)


def refuse_masked(value: Residue) -> Residue:
    """The value with infinite elements made invalid."""
    if value.flags is None:
        return value
    infinite = value.flags & _INFINITE != 0
    flags = np.where(infinite, value.flags & ~_INFINITE | _INVALID, value.flags)
    return Residue(value.parts, flags, value.positive)


def mirrored(value: Residue) -> Residue:
    """The value with the flags of its infinities exchanged, as minus does."""
    if value.flags is None:
        return value
    infinite = value.flags & _INFINITE != 0
    flags = np.where(infinite, value.flags ^ _INFINITE, value.flags)
    return Residue(value.parts, flags, value.positive)


def _chosen(
    take: NDArray[np.bool_], a: Residue, b: Residue
) -> tuple[IntArray | None, ...]:
    """The components of `a` where `take`, else those of `b`."""
    return tuple(
        None if x is None or y is None else np.where(take, x, y)
        for x, y in zip(a.parts, b.parts, strict=True)
    )


def section(value: Residue, axis: int, start: int, stop: int) -> Residue:
    """The elements from `start` to before `stop` along an axis."""
    place = (slice(None),) * (axis + 1) + (slice(start, stop),)
    return value.each(lambda a: a[place])


def slice_at(value: Residue, axis: int, index: int) -> Residue:
    """One position of an axis, which vanishes."""
    place = (slice(None),) * (axis + 1) + (index,)
    return value.each(lambda a: a[place])


# -- The algebra -----------------------------------------------------------------------

Parts = tuple[IntArray | None, ...]


class ResidueAlgebra:
    """`FieldAlgebra` over residues, for the trials given.

    Attributes:
        trials: The interpretation of functions that both sides of a comparison share.
        order: What stands for the order of the reals.
        non_squares: By field and trial, how many square roots of non-squares there
            were.
        choices: How many choices with two outcomes there were.
        turns: What integers are that are made of floats.
    """

    def __init__(
        self,
        trials: Trials,
        order: Order,
        rng: np.random.Generator,
        *,
        exp_oracle: bool = False,
        turns: AllTurns | None = None,
    ) -> None:
        self.turns = AllTurns() if turns is None else turns
        self.trials = trials
        self.order = order
        self.rng = rng
        self.non_squares: IntArray = np.zeros(
            (trials.fields, trials.count), dtype=np.int64
        )
        self.choices = 0
        self._exp_oracle = exp_oracle
        self._constants: dict[tuple[Scalar, tuple[int, ...]], Residue] = {}

    # Every trial has its own prime, so primes need as many axes as what they divide.
    def prime(self, field: int, rank: int) -> IntArray:
        """The primes of a field, to broadcast with values of rank `rank`."""
        return self._spread(self.trials.primes[field], rank)

    def _spread(self, per_trial: NDArray[Any], rank: int) -> NDArray[Any]:
        return per_trial.reshape((-1,) + (1,) * rank)

    def _zip(self, function: fields.Ternary, a: Residue, b: Residue) -> Parts:
        rank = a.rank
        return tuple(
            None if x is None or y is None else function(x, y, self.prime(i, rank))
            for i, (x, y) in enumerate(zip(a.parts, b.parts, strict=True))
        )

    def uniform(self, shape: tuple[int, ...]) -> Residue:
        """Independent uniform residues of a shape without the trial axis."""
        full = (self.trials.count, *shape)
        draws = (
            self.rng.integers(0, 2**62, full) % self.prime(i, len(shape))
            for i in range(self.trials.fields)
        )
        return Residue(tuple(draws))

    def constant(
        self, value: Scalar, extents: Mapping[str, int] | None = None
    ) -> Residue:
        """A rank-0 constant, which is made once."""
        sizes = extents or {}
        key = value, tuple(sizes[name] for name, _ in value.extents)
        known = self._constants.get(key)
        if known is None:
            known = self._constants[key] = self._constant(value, sizes)
        return known

    def _constant(self, value: Scalar, extents: Mapping[str, int]) -> Residue:
        number = read_number(value, extents)
        if not isinstance(number, Number):
            return self._infinity(number)
        parts = tuple(self._number(number, p) for p in self.trials.primes)
        written = number.rational if value.extents else value.value
        whole = int(written)
        if number.square is not None or not whole == written == number.rational:
            whole = None
        return Residue(parts, None, number.sign > 0, number=whole)

    def whole(self, exact: NDArray[Any], *, fixed: bool = False) -> Residue:
        """Integers or truth values, the first axis over the trials."""
        wide, rank = exact.astype(np.int64), exact.ndim - 1
        parts = (wide % self.prime(i, rank) for i in range(self.trials.fields))
        return Residue(tuple(parts), exact=exact, fixed=fixed)

    def positions(self, values: IntArray) -> Residue:
        """Integers that are the same in all trials; their shape has no trial axis."""
        spread = np.broadcast_to(values[None], (self.trials.count, *values.shape))
        return self.whole(spread, fixed=True)

    def any_integers(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        limit: Limit | None = None,
        turns: Turns = (),
    ) -> Residue:
        """Independent random numbers of a format of integers, or truth values."""
        whole = (self.trials.count, *shape)
        bias = self.trials.bias(len(shape))
        drawn = any_integers(self.rng, dtype, whole, limit, turns, bias)
        return self.whole(drawn)

    def _number(self, number: Number, primes: IntArray) -> IntArray:
        known = {p: number.modulo(p) for p in set(primes.tolist())}
        return np.array([known[p] for p in primes.tolist()], dtype=np.int64)

    def _infinity(self, value: float) -> Residue:
        zero = np.zeros(self.trials.count, dtype=np.int64)
        flag = MASKED if value < 0 else RAISED
        flags = np.full(self.trials.count, flag, dtype=np.uint16)
        return Residue((zero,) * self.trials.fields, flags)

    def add(self, a: Residue, b: Residue) -> Residue:
        """Sum; infinite where either is."""
        a, b = align(a, b)
        return self._with(self._zip(fields.add, a, b), either(a, b))

    def _with(self, parts: Parts, flags: FlagArray | None) -> Residue:
        """A residue whose flags, of a broadcast shape, are spread to the parts'."""
        value = Residue(parts, flags)
        if flags is None or flags.shape == value.top.shape:
            return value
        return Residue(parts, np.broadcast_to(flags, value.top.shape))

    def sub(self, a: Residue, b: Residue) -> Residue:
        """Difference; infinite where either is."""
        a, b = align(a, b)
        found = self._with(self._zip(fields.subtract, a, b), either(a, mirrored(b)))
        if a.number is None or b.number is None:
            return found
        return replace(found, number=a.number - b.number)

    def mul(self, a: Residue, b: Residue) -> Residue:
        """Product; an infinite factor goes only with a positive constant."""
        if a.rank == 0 and a.number == 1 and a.positive:
            return Residue(b.parts, b.flags, b.positive)
        a, b = align(a, b)
        left = a if b.positive else refuse_masked(a)
        right = b if a.positive else refuse_masked(b)
        product = self._with(self._zip(fields.multiply, a, b), either(left, right))
        both = a.positive and b.positive
        return Residue(product.parts, product.flags, both)

    def div(self, a: Residue, b: Residue) -> Residue:
        """Quotient; invalid where `b` is 0."""
        zero = np.zeros(b.top.shape, dtype=bool)
        inverses: list[IntArray | None] = []
        for i, part in enumerate(b.parts):
            if part is None:
                inverses.append(None)
                continue
            zero |= part == 0
            inverses.append(fields.inverse(part, self.prime(i, b.rank)))
        divisor = refuse_masked(b)
        flags = divisor.flags
        if zero.any():
            invalid = zero.astype(np.uint16) * np.uint16(INVALID)
            flags = invalid if flags is None else flags | invalid
        return self.mul(a, Residue(tuple(inverses), flags, b.positive))

    def exp(self, a: Residue) -> Residue:
        """Power of e: one field up, 0 where masked, invalid where infinite."""
        if all(part is None for part in a.parts[:-1]):
            if self._exp_oracle:
                return self.oracle("exp", a)
            raise UnsupportedError(
                f"exponentials are nested deeper than {self.trials.fields - 1}"
            )
        parts: list[IntArray | None] = [None]
        masked = a.flagged(MASKED) if a.flags is not None else None
        for i, part in enumerate(a.parts[:-1], start=1):
            if part is None:
                parts.append(None)
                continue
            omega = self._spread(self.trials.omegas[i], a.rank)
            value = fields.exponential(omega, part, self.prime(i, a.rank))
            parts.append(value if masked is None else np.where(masked, 0, value))
        return Residue(tuple(parts), self._moved_up(a.flags))

    def _moved_up(self, flags: FlagArray | None) -> FlagArray | None:
        """Flags after exp: what touched a component now touches the next one."""
        if flags is None:
            return None
        touched = (flags >> 2 << 3) & np.uint16((TOUCHED << self.trials.fields) - 1)
        raised = (flags >> 15) * np.uint16(INVALID)
        return without_zeros((flags & INVALID) | raised | touched)

    def sqrt(self, a: Residue) -> Residue:
        """The root that is a square; of a non-square x, x^((p+1)/4) times a unit.

        The unit makes the root odd: without it sqrt(-x) would be sqrt(x).
        """
        parts: list[IntArray | None] = []
        refused = refuse_masked(a).flags
        flags = np.zeros(a.top.shape, np.uint16) if refused is None else refused.copy()
        for i, part in enumerate(a.parts):
            if part is None:
                parts.append(None)
                continue
            p = self.prime(i, a.rank)
            root = fields.power(part, (p + 1) // 4, p)
            odd = fields.multiply(root, root, p) != part
            if odd.any():
                unit = self._spread(self.trials.units[i], a.rank)
                root = np.where(odd, fields.multiply(root, unit, p), root)
                flags |= odd.astype(np.uint16) * np.uint16(TOUCHED << i)
                inner = tuple(range(1, odd.ndim))
                self.non_squares[i] += odd.sum(axis=inner)
            parts.append(root)
        return Residue(tuple(parts), without_zeros(flags), a.positive)

    def maximum(self, a: Residue, b: Residue) -> Residue:
        """The larger one in the order of the trial; of known numbers, of the reals."""
        a, b = align(a, b)
        site = self.order.next_site()
        if a.number is not None and b.number is not None:
            # A shift that is 0 stays so within its limits.
            take = np.full((1,) * a.top.ndim, a.number >= b.number)
            return replace(
                self._select(take, a, b, keyed_on=(a, b)),
                number=max(a.number, b.number),
            )
        if site in self.order.fresh:
            shape = np.broadcast_shapes(a.top.shape, b.top.shape)
            masked = a.flagged(MASKED) & b.flagged(MASKED)
            raised = a.flagged(RAISED) | b.flagged(RAISED)
            return self._shifting(self.uniform(shape[1:]), masked, raised)
        return self._larger(a, b)

    def _larger(self, a: Residue, b: Residue) -> Residue:
        take = self.order.first_is_larger(
            a.top, b.top, self.trials, self.prime(-1, a.rank)
        )
        if a.flags is not None or b.flags is not None:
            take = (take & ~a.flagged(MASKED)) | b.flagged(MASKED)
            take = (take & ~b.flagged(RAISED)) | a.flagged(RAISED)
        return self._select(take, a, b, keyed_on=(a, b))

    def _select(
        self,
        take: NDArray[np.bool_],
        a: Residue,
        b: Residue,
        keyed_on: Sequence[Residue],
    ) -> Residue:
        """`a` where `take`, else `b`; touched wherever the choice is."""
        self.choices += not all_fixed(keyed_on)
        parts = _chosen(take, a, b)
        if all(v.flags is None for v in (a, b, *keyed_on)):
            return Residue(parts)
        shape = parts[-1].shape  # pyright: ignore[reportOptionalMemberAccess]
        flags = np.where(take, a.all_flags(), b.all_flags())
        for value in keyed_on:
            flags = flags | self.keyed_flags(value)
        return Residue(parts, np.broadcast_to(flags, shape))

    def keyed_flags(self, value: Residue) -> FlagArray:
        """Flags of a random function of the top component: all touched, or none."""
        fields = self.trials.fields
        everywhere = np.uint16(sum(TOUCHED << i for i in range(fields)))
        touched = value.flagged(TOUCHED << (fields - 1)).astype(np.uint16)
        return np.asarray(touched * everywhere | value.all_flags() & np.uint16(INVALID))

    def sum(self, a: Residue, axes: Axes) -> Residue:
        """The sum over axes; masked elements are refused."""
        a = refuse_masked(a)
        inner = tuple(x + 1 for x in axes)
        rank = a.rank - len(axes)
        parts = tuple(
            None if part is None else part.sum(axis=inner) % self.prime(i, rank)
            for i, part in enumerate(a.parts)
        )
        flags = None if a.flags is None else np.bitwise_or.reduce(a.flags, axis=inner)
        return Residue(parts, flags)

    def max(self, a: Residue, axes: Axes) -> Residue:
        """The largest element along axes in the order of the trial."""
        site = self.order.next_site()
        if site in self.order.fresh:
            return self._fresh(a, axes, keep_mask=True)
        for axis in sorted(axes, reverse=True):
            a = self._largest(a, axis)
        return a

    def _largest(self, a: Residue, axis: int) -> Residue:
        """What `_larger` leaves of the elements along an axis, taken one by one."""
        count = a.top.shape[axis + 1]
        if count == 1 or self.order.model is not OrderModel.RANK:
            return reduce(self._larger, [slice_at(a, axis, i) for i in range(count)])
        ranks = _ranked(a.top, self.trials)
        if a.flags is not None:
            ranks = np.where(a.flagged(MASKED), np.uint64(0), ranks)
            ranks = np.where(a.flagged(RAISED), np.iinfo(np.uint64).max, ranks)
        self.choices += not all_fixed([a])
        first = np.argmax(ranks, axis=axis + 1, keepdims=True)
        own = Residue(a.parts, a.flags)
        taken = own.each(lambda v: np.take_along_axis(v, first, axis + 1))
        largest = slice_at(taken, axis, 0)
        if a.flags is None:
            return largest
        keyed = np.bitwise_or.reduce(self.keyed_flags(a), axis=axis + 1)
        return replace(largest, flags=largest.all_flags() | keyed)

    def shift(self, a: Residue, axes: Axes) -> Residue:
        """Fresh random values, finite also where all of `a` is masked; or 0."""
        if self.order.still:
            shape = tuple(n for i, n in enumerate(a.top.shape[1:]) if i not in axes)
            zero = np.zeros((self.trials.count, *shape), dtype=np.int64)
            return Residue((zero,) * self.trials.fields, number=0)
        return self._fresh(a, axes, keep_mask=False)

    def _fresh(self, a: Residue, axes: Axes, *, keep_mask: bool) -> Residue:
        shape = tuple(n for i, n in enumerate(a.top.shape[1:]) if i not in axes)
        fresh = self.uniform(shape)
        if not keep_mask or a.flags is None:
            return fresh
        inner = tuple(x + 1 for x in axes)
        masked = np.asarray(a.flagged(MASKED).all(axis=inner))
        raised = np.asarray(a.flagged(RAISED).any(axis=inner))
        return self._shifting(fresh, masked, raised)

    @staticmethod
    def _shifting(
        fresh: Residue, masked: NDArray[np.bool_], raised: NDArray[np.bool_]
    ) -> Residue:
        """A shift that is minus infinity where masked; infinite ones leave nothing."""
        flags = masked * np.uint16(MASKED) | raised * np.uint16(INVALID)
        return Residue(fresh.parts, without_zeros(flags))

    def fold(
        self, join: Callable[[Residue, Residue], Residue], a: Residue, axes: Axes
    ) -> Residue:
        """The elements along axes joined: half of them to the other half, and again."""
        for axis in sorted(axes, reverse=True):
            while (count := a.top.shape[axis + 1]) > 1:
                half = count // 2
                joined = join(
                    section(a, axis, 0, half), section(a, axis, half, 2 * half)
                )
                rest = section(a, axis, 2 * half, count)
                a = self.concat(axis, joined, rest) if count % 2 else joined
            a = slice_at(a, axis, 0)
        return a

    def scan(
        self, join: Callable[[Residue, Residue], Residue], a: Residue, axis: int
    ) -> Residue:
        """Each element joined with all before it: with one, two, four, ... of them."""
        count, reach = a.top.shape[axis + 1], 1
        while reach < count:
            first = section(a, axis, 0, reach)
            rest = join(
                section(a, axis, 0, count - reach), section(a, axis, reach, count)
            )
            a, reach = self.concat(axis, first, rest), 2 * reach
        return a

    def matmul(self, a: Residue, b: Residue) -> Residue:
        """(batch, m, k) by (batch, k, n)."""
        a, b = refuse_masked(a), refuse_masked(b)
        batch = a.rank - 2
        parts = tuple(
            None
            if x is None or y is None
            else fields.matmul(x, y, self.prime(i, batch))
            for i, (x, y) in enumerate(zip(a.parts, b.parts, strict=True))
        )
        flags = None
        if a.flags is not None or b.flags is not None:
            rows = np.bitwise_or.reduce(a.all_flags(), axis=-1)[..., :, None]
            columns = np.bitwise_or.reduce(b.all_flags(), axis=-2)[..., None, :]
            flags = without_zeros(np.bitwise_or(rows, columns))
        return Residue(parts, flags)

    def concat(self, axis: int, *operands: Residue) -> Residue:
        """The operands joined along an axis."""
        parts = tuple(
            None
            if any(x is None for x in column)
            else np.concatenate([x for x in column if x is not None], axis + 1)
            for column in zip(*(v.parts for v in operands), strict=True)
        )
        known = [v.exact for v in operands if v.exact is not None]
        exact = None
        if len(known) == len(operands) and len({a.dtype for a in known}) == 1:
            exact = np.concatenate(known, axis + 1)
        fixed = all_fixed(operands)
        if all(v.flags is None for v in operands):
            return Residue(parts, exact=exact, fixed=fixed)
        flags = np.concatenate([v.all_flags() for v in operands], axis + 1)
        return Residue(parts, flags, exact=exact, fixed=fixed)

    def _hash(self, name: str, operands: Sequence[Residue]) -> NDArray[np.uint64]:
        tops = [v.top for v in operands]
        return hashed(name, self.trials, tops)

    def _components(self, state: Hash) -> list[IntArray]:
        """Random residues that follow from a hash, one of each field."""
        parts: list[IntArray] = []
        for i in range(self.trials.fields):
            state = mixed(state + np.uint64(i + 1))
            drawn = (state >> np.uint64(2)).astype(np.int64)
            parts.append(drawn % self.prime(i, state.ndim - 1))
        return parts

    def _oracle_flags(
        self, operands: Sequence[Residue], shape: tuple[int, ...]
    ) -> FlagArray | None:
        if all(v.flags is None for v in operands):
            return None
        flags = np.zeros(shape, dtype=np.uint16)
        for value in operands:
            flags = flags | self.keyed_flags(refuse_masked(value))
        return without_zeros(flags)

    def oracle(self, name: str, *operands: Residue) -> Residue:
        """A random function of the top components, with all components.

        One of one operand has the true values where `known_values` has them.
        """
        operands = align(*operands)
        state = self._hash(name, operands)
        parts = self._components(state)
        for at, value in known_values(name) if len(operands) == 1 else ():
            there = operands[0].top == at
            parts = [
                np.where(there, value % self.prime(i, state.ndim - 1), part)
                for i, part in enumerate(parts)
            ]
        return Residue(tuple(parts), self._oracle_flags(operands, state.shape))

    def whole_oracle(
        self, name: str, operands: Sequence[Residue], index: IntArray
    ) -> Residue:
        """A random function of all elements of the operands, and of an index.

        Args:
            name: Its name.
            operands: Of any shapes.
            index: Of each element of the result.
        """
        nothing = np.zeros((1, 1), dtype=np.int64)
        state = hashed(name, self.trials, [nothing])[:, 0]
        for operand in operands:
            state = mixed(state ^ _digest(operand.top))
        spread = state.reshape((-1,) + (1,) * index.ndim)
        drawn = mixed(spread ^ mixed(index.astype(np.uint64))[None])
        parts = self._components(drawn)
        return Residue(tuple(parts), self._whole_flags(operands, drawn.shape))

    def _whole_flags(
        self, operands: Sequence[Residue], shape: tuple[int, ...]
    ) -> FlagArray | None:
        """Flags of what depends on all elements of the operands."""
        found = np.zeros(shape[:1], np.uint16)
        for operand in operands:
            if operand.flags is not None:
                keyed = self.keyed_flags(refuse_masked(operand))
                found |= np.bitwise_or.reduce(keyed.reshape(len(found), -1), axis=1)
        if not found.any():
            return None
        spread = found.reshape((-1,) + (1,) * (len(shape) - 1))
        return np.broadcast_to(spread, shape)

    def indicator(self, name: str, *operands: Residue) -> Residue:
        """A comparison: a random function of the top components with values 0 and 1.

        In every other trial it is that of a random order, so that `x == max(x)` holds
        where the largest is, and there alone.
        """
        self.choices += 1
        operands = align(*operands)
        state = self._hash(name, operands)
        bits = (state >> np.uint64(17) & np.uint64(1)).astype(np.int64)
        ranks = [_ranked(v.top, self.trials) for v in operands]
        ordered = self._spread(self.trials.keys // fields.KINDS % 2 == 1, bits.ndim - 1)
        bits = np.where(ordered, OPERATORS[name].numpy(*ranks), bits).astype(np.int64)
        flags = self._oracle_flags(operands, state.shape)
        return Residue((bits,) * self.trials.fields, flags)

    def choose(self, condition: Residue, a: Residue, b: Residue) -> Residue:
        """`a` where the condition is not 0, else `b`."""
        condition, a, b = align(condition, a, b)
        return self._select(self.truth(condition), a, b, keyed_on=(condition,))

    def truth(self, condition: Residue) -> NDArray[np.bool_]:
        """Where a condition is taken to hold.

        One that is neither 0 nor 1 is 0 for about half of its values: random residues
        hardly ever are, and then what is chosen where it is 0 would never be met.
        """
        state = self._hash("condition", [condition])
        drawn = (state >> np.uint64(17)).astype(np.int64) & 1
        value = np.where(condition.top > 1, drawn, condition.top)
        return np.asarray(value == 1, dtype=np.bool_)


# -- Integers --------------------------------------------------------------------------


def _exact_operands(
    op: Operator,
    operands: Sequence[Residue],
    truth_of: Callable[[Residue], NDArray[np.bool_]],
) -> list[NDArray[Any]] | None:
    """The integers that an operator computes with; None if it takes residues.

    Constants are of the format of what stands beside them, and `truth_of` tells where
    a condition on floats holds.
    """
    exact = [v.exact for v in operands]
    known = [a for a in exact if a is not None]
    found = next((a.dtype for a in known if a.dtype.kind in "iu"), None)
    if found is None:
        truth = known and (op.truth is not None or op.gives is not None)
        numbers = [v.number for v in operands if v.exact is None]
        if not truth or any(n not in (0, 1) for n in numbers):
            return None
        found = np.dtype(bool)
    arrays: list[NDArray[Any]] = []
    for at, value in enumerate(operands):
        if value.exact is not None:
            arrays.append(value.exact)
        elif value.number is not None:
            number = np.asarray(value.number).astype(found)
            arrays.append(np.broadcast_to(number, value.top.shape))
        elif op.chooses and at == 0:
            # A condition on floats: known as 1 and 0, though not why.
            arrays.append(truth_of(value))
        else:
            return None
    return arrays


# -- The domain ------------------------------------------------------------------------


class ResidueDomain:
    """`Domain` over residues: operators by their rows' field semantics.

    Shapes and axes are those without the trial axis.

    Args:
        algebra: The arithmetic.
        reads_anything: Whether what is gathered from outside is anything, as for a
            candidate that does so where its program does not; else it has no value.
    """

    def __init__(
        self, algebra: ResidueAlgebra, *, reads_anything: bool = False
    ) -> None:
        self.algebra = algebra
        self._reads_anything = reads_anything

    def shape(self, value: Residue) -> tuple[int, ...]:
        """The shape of one trial's array."""
        return value.top.shape[1:]

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Residue:
        """A rank-0 constant."""
        return self.algebra.constant(number, extents)

    def index(self, count: int) -> Residue:
        """Positions, which are integers in every trial."""
        return self.algebra.positions(np.arange(count))

    def elementwise(self, op: Operator, operands: Sequence[Residue]) -> Residue:
        """The row's field semantics; on integers that are known, its own."""
        operands = align(*operands)
        exact = _exact_operands(op, operands, self.algebra.truth)
        if exact is None:
            found = op.on(self.algebra, *operands)
            return found if op.gives is None else self.cast(found, op.gives)
        truth = all(a.dtype == bool for a in exact) and op.gives is None
        fixed = all_fixed(operands)
        chosen = op.chooses or op.truth is Truth.COMPARES
        self.algebra.choices += chosen and not all_fixed(operands[: op.chooses or None])
        with np.errstate(all="ignore"):
            computed = np.asarray(op.numpy(*exact))
        if truth or op.truth is Truth.COMPARES:
            computed = computed.astype(bool)
        elif op.gives is not None and not op.gives.is_integer:
            return replace(self.algebra.whole(exact[0]), exact=None)
        found = self.algebra.whole(computed, fixed=fixed)
        flags = self._flags_of_exact(op, operands, exact)
        if flags is None:
            return found
        return replace(found, flags=np.broadcast_to(flags, found.top.shape))

    def _flags_of_exact(
        self, op: Operator, operands: Sequence[Residue], exact: Sequence[NDArray[Any]]
    ) -> FlagArray | None:
        """What is computed of an element that was gathered outside has no value."""
        if all(v.flags is None for v in operands):
            return None
        flags = [v.all_flags() & _INVALID for v in operands]
        if not op.chooses:
            return np.asarray(np.bitwise_or.reduce(np.broadcast_arrays(*flags)))
        chosen = np.where(exact[0].astype(bool), flags[1], flags[2])
        return np.asarray(self.algebra.keyed_flags(operands[0]) | chosen)

    def reduce(self, op: Operator, value: Residue, axes: tuple[int, ...]) -> Residue:
        """The row's field semantics; of integers that are known, its own."""
        truth = value.exact is not None and value.exact.dtype == bool
        if value.exact is None or (truth and op.truth is None):
            return op.reduced(self.algebra, value, axes)
        self.algebra.choices += op.selects and not value.fixed
        found = op.numpy(value.exact, tuple(x + 1 for x in axes))
        exact = np.asarray(found).astype(value.exact.dtype)
        made = self.algebra.whole(exact, fixed=value.fixed)
        if value.flags is None:
            return made
        invalid = value.flagged(INVALID).any(axis=tuple(x + 1 for x in axes))
        return replace(made, flags=invalid.astype(np.uint16) * _INVALID)

    def scan(self, op: Operator, value: Residue, axis: int) -> Residue:
        """The row's field semantics; of integers that are known, its own."""
        if value.exact is None or value.exact.dtype == bool:
            return op.scanned(self.algebra, value, axis)
        with np.errstate(all="ignore"):
            found = np.asarray(op.numpy(value.exact, axis + 1))
        return self.algebra.whole(found, fixed=value.fixed)

    def contract(self, op: Operator, a: Residue, b: Residue) -> Residue:
        """The row's field semantics."""
        return op.contracted(self.algebra, a, b)

    def library(
        self,
        op: Operator,
        operands: Sequence[Residue],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Residue:
        """A random function of all elements of the operands."""
        index = np.arange(prod(shape)).reshape(shape)
        return self.of_library(op, operands, numbers, index)

    def of_library(
        self,
        op: Operator,
        operands: Sequence[Residue],
        numbers: Numbers,
        index: IntArray,
    ) -> Residue:
        """Those elements of a library operator's result that have the given indices."""
        name = f"{op.function} {sorted(numbers.items())}"
        found = self.algebra.whole_oracle(name, operands, index)
        exact = operands[0].exact
        if op.gives is not None:
            places = found.top % self.shape(operands[0])[1]
            whole = self.algebra.whole(places.astype(op.gives.long_name))
            return replace(whole, flags=found.flags)
        dtype = None if exact is None else dtype_named(exact.dtype.name)
        return found if dtype is None else self.cast(found, dtype)

    def running_max(
        self,
        value: Residue,
        axis: int,  # noqa: ARG002
    ) -> Residue:
        """Fresh random numbers: no output may depend on them."""
        return self.algebra.shift(value, ())

    def cast(self, value: Residue, dtype: DType) -> Residue:
        """The value itself: fields do not round.

        Of floats that become integers nothing is known but that they are some.
        """
        if not dtype.is_integer or value.exact is not None:
            return value
        if value.number is not None:
            exact = np.full(value.top.shape, value.number).astype(dtype.long_name)
            return self.algebra.whole(exact)
        algebra = self.algebra
        bias = algebra.trials.bias(value.rank)
        exact = of_floats(dtype, value.top, algebra.turns, bias)
        if algebra.trials.conversions is not None:
            exact = algebra.trials.conversions.of(value.top, exact)
        return replace(algebra.whole(exact), flags=value.flags)

    def gather(
        self,
        op: Operator,  # noqa: ARG002
        value: Residue,
        index: Residue,
        axis: int,
    ) -> Residue:
        """The elements at indices that are known, and what there is outside."""
        if index.exact is None:
            raise UnsupportedError("an index of a gather that is not of integers")
        value, index = align(value, index)
        assert index.exact is not None
        extent = value.top.shape[axis + 1]
        wanted = index.exact.astype(np.int64)
        if (wanted == wanted[:1]).all():
            # As positions are that follow from no data.
            wanted = wanted[:1]
        inside = (wanted >= -extent) & (wanted < extent)
        found = value.each(lambda a: gathered(a, wanted % extent, axis + 1))
        if index.flags is not None:
            # What is read at an index without a value has none.
            flags = found.all_flags() | index.flags & _INVALID
            found = replace(found, flags=flags.astype(np.uint16))
        if inside.all():
            return found
        inside = np.broadcast_to(inside, found.top.shape)
        if self._reads_anything:
            return self.padded(found, inside)
        outside = np.where(inside, 0, INVALID).astype(np.uint16)
        return replace(found, flags=found.all_flags() | outside)

    def transpose(self, value: Residue, order: tuple[int, ...]) -> Residue:
        """Axes in another order."""
        moved = (0, *(axis + 1 for axis in order))
        return value.each(lambda a: a.transpose(moved))

    def reshape(self, value: Residue, shape: tuple[int, ...]) -> Residue:
        """Axes merged or split."""
        if self.shape(value) == shape:
            return value
        return value.each(lambda a: a.reshape(a.shape[:1] + shape))

    def take(self, value: Residue, axis: int, start: int, stop: int) -> Residue:
        """A range along an axis."""
        return section(value, axis, start, stop)

    def pad(self, value: Residue, axis: int, count: int) -> Residue:
        """Random elements, so that a mask forgotten anywhere shows."""
        shape = self.shape(value)
        more = (*shape[:axis], count, *shape[axis + 1 :])
        if value.exact is not None:
            extra = self._any_like(value, more)
            return self.algebra.concat(axis, value, extra)
        extra = self.algebra.uniform(more)
        kept = tuple(
            None if own is None else new
            for own, new in zip(value.parts, extra.parts, strict=True)
        )
        return self.algebra.concat(axis, value, Residue(kept))

    def _any_like(self, value: Residue, shape: tuple[int, ...]) -> Residue:
        assert value.exact is not None
        dtype = dtype_named(value.exact.dtype.name)
        assert dtype is not None
        drawn = self.algebra.any_integers(dtype, shape)
        # They must not matter: no choice follows from them.
        return replace(drawn, fixed=value.fixed)

    def padded(self, value: Residue, inside: NDArray[np.bool_]) -> Residue:
        """Random elements where `inside`, broadcast to the value, is False."""
        if value.exact is not None:
            other = self._any_like(value, self.shape(value))
            assert other.exact is not None
            found = np.where(inside, value.exact, other.exact)
            return self.algebra.whole(found, fixed=value.fixed)
        noise = self.algebra.uniform(self.shape(value))
        parts = _chosen(inside, value, noise)
        flags = None if value.flags is None else np.where(inside, value.flags, 0)
        return Residue(parts, flags)

    def mask(self, value: Residue, keep: NDArray[np.bool_], fill: float) -> Residue:
        """`fill` where `keep` is False."""
        if value.exact is not None:
            other = as_format(np.asarray(fill), value.exact.dtype)
            found = np.where(keep, value.exact, other)
            masked = self.algebra.whole(found, fixed=value.fixed)
            return replace(masked, flags=value.flags)
        rank = len(self.shape(value))
        other = self.algebra.constant(scalar(fill)).each(
            lambda a: a.reshape((-1,) + (1,) * rank)
        )
        parts = _chosen(keep, value, other)
        if other.flags is None and value.flags is None:
            return Residue(parts)
        flags = np.where(keep, value.all_flags(), other.all_flags())
        return Residue(parts, without_zeros(flags))

    def concat(self, values: Sequence[Residue], axis: int) -> Residue:
        """Arrays one after the other."""
        return self.algebra.concat(axis, *values)
