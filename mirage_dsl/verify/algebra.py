"""The arithmetic of residues: `FieldAlgebra` for a set of trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.types import Scalar
from mirage_dsl.verify import modular
from mirage_dsl.verify.constants import Number, read_number
from mirage_dsl.verify.fields import Trials
from mirage_dsl.verify.modular import IntArray
from mirage_dsl.verify.orders import Order, hashed, mixed
from mirage_dsl.verify.residues import (
    INVALID,
    MASKED,
    TOUCHED,
    FlagArray,
    Residue,
    align,
    either,
    refuse_masked,
    slice_at,
    without_zeros,
)

Parts = tuple[IntArray | None, ...]


class ResidueAlgebra:
    """`FieldAlgebra` over residues, for the trials given.

    Attributes:
        trials: The interpretation of functions that both sides of a comparison share.
        order: What stands for the order of the reals.
        non_squares: By field and trial, how many square roots of non-squares there
            were.
        choices: How many choices with two outcomes there were.
    """

    def __init__(
        self,
        trials: Trials,
        order: Order,
        rng: np.random.Generator,
        *,
        exp_oracle: bool = False,
    ) -> None:
        self.trials = trials
        self.order = order
        self.rng = rng
        self.non_squares: IntArray = np.zeros(
            (trials.fields, trials.count), dtype=np.int64
        )
        self.choices = 0
        self._exp_oracle = exp_oracle

    # Every trial has its own prime, so primes need as many axes as what they divide.
    def prime(self, field: int, rank: int) -> IntArray:
        """The primes of a field, to broadcast with values of rank `rank`."""
        return self._spread(self.trials.primes[field], rank)

    def _spread(self, per_trial: IntArray, rank: int) -> IntArray:
        return per_trial.reshape((-1,) + (1,) * rank)

    def _zip(self, function: modular.Ternary, a: Residue, b: Residue) -> Parts:
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
        """A rank-0 constant."""
        number = read_number(value, extents or {})
        if not isinstance(number, Number):
            return self._infinity(number)
        parts = tuple(self._number(number, p) for p in self.trials.primes)
        return Residue(parts, None, number.sign > 0)

    def _number(self, number: Number, primes: IntArray) -> IntArray:
        return np.array([number.modulo(int(p)) for p in primes], dtype=np.int64)

    def _infinity(self, value: float) -> Residue:
        zero = np.zeros(self.trials.count, dtype=np.int64)
        flag = MASKED if value == -math.inf else INVALID
        flags = np.full(self.trials.count, flag, dtype=np.uint16)
        return Residue((zero,) * self.trials.fields, flags)

    def add(self, a: Residue, b: Residue) -> Residue:
        """Sum; masked where either is."""
        a, b = align(a, b)
        return self._with(self._zip(modular.add, a, b), either(a, b))

    def _with(self, parts: Parts, flags: FlagArray | None) -> Residue:
        """A residue whose flags, of a broadcast shape, are spread to the parts'."""
        value = Residue(parts, flags)
        if flags is None or flags.shape == value.top.shape:
            return value
        return Residue(parts, np.broadcast_to(flags, value.top.shape))

    def sub(self, a: Residue, b: Residue) -> Residue:
        """Difference; masked where `a` is, invalid where `b` is."""
        a, b = align(a, b)
        return self._with(
            self._zip(modular.subtract, a, b), either(a, refuse_masked(b))
        )

    def mul(self, a: Residue, b: Residue) -> Residue:
        """Product; a masked factor goes only with a positive constant."""
        a, b = align(a, b)
        left = a if b.positive else refuse_masked(a)
        right = b if a.positive else refuse_masked(b)
        product = self._with(self._zip(modular.multiply, a, b), either(left, right))
        both = a.positive and b.positive
        return Residue(product.parts, product.flags, both)

    def div(self, a: Residue, b: Residue) -> Residue:
        """Quotient; invalid where `b` is 0."""
        a, b = align(a, b)
        zero = np.zeros(b.top.shape, dtype=bool)
        inverses: list[IntArray | None] = []
        for i, part in enumerate(b.parts):
            if part is None:
                inverses.append(None)
                continue
            zero |= part == 0
            inverses.append(modular.inverse(part, self.prime(i, b.rank)))
        divisor = refuse_masked(b)
        flags = divisor.flags
        if zero.any():
            invalid = zero.astype(np.uint16) * np.uint16(INVALID)
            flags = invalid if flags is None else flags | invalid
        return self.mul(a, Residue(tuple(inverses), flags, b.positive))

    def exp(self, a: Residue) -> Residue:
        """Power of e: one field up, 0 where masked."""
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
            value = modular.power(omega, part, self.prime(i, a.rank))
            parts.append(value if masked is None else np.where(masked, 0, value))
        return Residue(tuple(parts), self._moved_up(a.flags))

    def _moved_up(self, flags: FlagArray | None) -> FlagArray | None:
        """Flags after exp: what touched a component now touches the next one."""
        if flags is None:
            return None
        touched = (flags >> 2 << 3) & np.uint16((TOUCHED << self.trials.fields) - 1)
        return without_zeros((flags & INVALID) | touched)

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
            root = modular.power(part, (p + 1) // 4, p)
            odd = modular.multiply(root, root, p) != part
            if odd.any():
                unit = self._spread(self.trials.units[i], a.rank)
                root = np.where(odd, modular.multiply(root, unit, p), root)
                flags |= odd.astype(np.uint16) * np.uint16(TOUCHED << i)
                inner = tuple(range(1, odd.ndim))
                self.non_squares[i] += odd.sum(axis=inner)
            parts.append(root)
        return Residue(tuple(parts), without_zeros(flags), a.positive)

    def maximum(self, a: Residue, b: Residue) -> Residue:
        """The larger one in the order of the trial."""
        a, b = align(a, b)
        site = self.order.next_site()
        if site in self.order.fresh:
            shape = np.broadcast_shapes(a.top.shape, b.top.shape)
            masked = a.flagged(MASKED) & b.flagged(MASKED)
            fresh = self.uniform(shape[1:])
            return Residue(
                fresh.parts, without_zeros(np.asarray(masked, dtype=np.uint16))
            )
        return self._larger(a, b)

    def _larger(self, a: Residue, b: Residue) -> Residue:
        take = self.order.first_is_larger(
            a.top, b.top, self.trials, self.prime(-1, a.rank)
        )
        if a.flags is not None or b.flags is not None:
            take = (take & ~a.flagged(MASKED)) | b.flagged(MASKED)
        return self._select(take, a, b, keyed_on=(a, b))

    def _select(
        self,
        take: NDArray[np.bool_],
        a: Residue,
        b: Residue,
        keyed_on: Sequence[Residue],
    ) -> Residue:
        """`a` where `take`, else `b`; touched wherever the choice is."""
        self.choices += 1
        parts = tuple(
            None if x is None or y is None else np.where(take, x, y)
            for x, y in zip(a.parts, b.parts, strict=True)
        )
        if all(v.flags is None for v in (a, b, *keyed_on)):
            return Residue(parts)
        shape = parts[-1].shape  # pyright: ignore[reportOptionalMemberAccess]
        flags = np.where(take, a.all_flags(), b.all_flags())
        for value in keyed_on:
            flags = flags | self._keyed_flags(value)
        return Residue(parts, np.broadcast_to(flags, shape))

    def _keyed_flags(self, value: Residue) -> FlagArray:
        """Flags of a random function of the top component: all touched, or none."""
        fields = self.trials.fields
        everywhere = np.uint16(sum(TOUCHED << i for i in range(fields)))
        touched = value.flagged(TOUCHED << (fields - 1)).astype(np.uint16)
        return np.asarray(touched * everywhere | value.all_flags() & np.uint16(INVALID))

    def sum(self, a: Residue, axes: tuple[int, ...]) -> Residue:
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

    def max(self, a: Residue, axes: tuple[int, ...]) -> Residue:
        """The largest element along axes in the order of the trial."""
        site = self.order.next_site()
        if site in self.order.fresh:
            return self._fresh(a, axes, keep_mask=True)
        for axis in sorted(axes, reverse=True):
            count = a.top.shape[axis + 1]
            slices = [slice_at(a, axis, i) for i in range(count)]
            a = reduce(self._larger, slices)
        return a

    def shift(self, a: Residue, axes: tuple[int, ...]) -> Residue:
        """Fresh random values, finite also where all of `a` is masked."""
        return self._fresh(a, axes, keep_mask=False)

    def _fresh(self, a: Residue, axes: tuple[int, ...], *, keep_mask: bool) -> Residue:
        shape = tuple(n for i, n in enumerate(a.top.shape[1:]) if i not in axes)
        fresh = self.uniform(shape)
        if not keep_mask or a.flags is None:
            return fresh
        masked = a.flagged(MASKED).all(axis=tuple(x + 1 for x in axes))
        return Residue(fresh.parts, without_zeros(np.asarray(masked, dtype=np.uint16)))

    def matmul(self, a: Residue, b: Residue) -> Residue:
        """(batch, m, k) by (batch, k, n)."""
        a, b = refuse_masked(a), refuse_masked(b)
        batch = a.rank - 2
        parts = tuple(
            None
            if x is None or y is None
            else modular.matmul(x, y, self.prime(i, batch))
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
        if all(v.flags is None for v in operands):
            return Residue(parts)
        flags = np.concatenate([v.all_flags() for v in operands], axis + 1)
        return Residue(parts, flags)

    def _hash(self, name: str, operands: Sequence[Residue]) -> NDArray[np.uint64]:
        tops = [v.top for v in operands]
        return hashed(name, self.trials.keys, tops)

    def _oracle_flags(
        self, operands: Sequence[Residue], shape: tuple[int, ...]
    ) -> FlagArray | None:
        if all(v.flags is None for v in operands):
            return None
        flags = np.zeros(shape, dtype=np.uint16)
        for value in operands:
            flags = flags | self._keyed_flags(refuse_masked(value))
        return without_zeros(flags)

    def oracle(self, name: str, *operands: Residue) -> Residue:
        """A random function of the top components, with all components."""
        operands = align(*operands)
        state = self._hash(name, operands)
        parts: list[IntArray] = []
        for i in range(self.trials.fields):
            state = mixed(state + np.uint64(i + 1))
            drawn = (state >> np.uint64(2)).astype(np.int64)
            parts.append(drawn % self.prime(i, state.ndim - 1))
        return Residue(tuple(parts), self._oracle_flags(operands, state.shape))

    def indicator(self, name: str, *operands: Residue) -> Residue:
        """A random function of the top components with values 0 and 1."""
        self.choices += 1
        operands = align(*operands)
        state = self._hash(name, operands)
        bits = (state >> np.uint64(17) & np.uint64(1)).astype(np.int64)
        flags = self._oracle_flags(operands, state.shape)
        return Residue((bits,) * self.trials.fields, flags)

    def choose(self, condition: Residue, a: Residue, b: Residue) -> Residue:
        """`a` where the condition is not 0, else `b`.

        A condition that is neither 0 nor 1 is 0 for about half of its values: random
        residues hardly ever are, and then `b` would never be met.
        """
        condition, a, b = align(condition, a, b)
        state = self._hash("condition", [condition])
        drawn = (state >> np.uint64(17)).astype(np.int64) & 1
        value = np.where(condition.top > 1, drawn, condition.top)
        truth = np.asarray(value == 1, dtype=np.bool_)
        return self._select(truth, a, b, keyed_on=(condition,))
