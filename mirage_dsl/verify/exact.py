"""The exact verdict: normal forms of both graphs at tiny sizes, compared.

It is independent of the verdict over finite fields: no primes, no random numbers, no
residues, sizes of its own.  What it calls equal is equal, as functions of symbols, at
these sizes; what it calls different comes with inputs that show it; all else, as what
grows beyond the budget, is unknown.

Normal forms are Laurent polynomials over hash-consed atoms; arrays of them are a domain
of the evaluator.

An atom is an input symbol, an exponential of a monomial, a square root, the inverse of
a polynomial, or a function of which nothing is known but its operands.  A value is a
sum of monomials in atoms with rational coefficients, so one dict.  Few rules do:

- exp of a sum is the product of the exponentials of its monomials, each to the power of
  its coefficient; so exp(a + b) = exp(a) exp(b) holds by itself, and a shift of
  exponents leaves a quotient by itself.
- A polynomial is inverted after its content, the monomial and the number that divide
  all of its terms, is taken out.  Inverses are multiplied out only to decide whether a
  value is zero.
- r * r = s for r = sqrt(s).  Of a product only positive numbers and exponentials leave
  the root; sqrt(x * x) is not x.

Every rule is an identity of the reals where both sides are defined, so what is found
equal is equal.  What is not may still be: relations between roots, or between
functions, are not looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import MirageError, UnsupportedError
from mirage_dsl.core.types import DType, Scalar, scalar
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.evaluate import ArrayDomain, evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.definition import Axes, Numbers, Operator
from mirage_dsl.ops.makers import known_values
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify.certificate import (
    Certificate,
    Counterexample,
    Sizes,
    Stability,
    Verdict,
)
from mirage_dsl.verify.constants import Number, read_number
from mirage_dsl.verify.reals import domain_difference, find_counterexample
from mirage_dsl.verify.sizes import Shrunk, input_shape, interface_difference, shrink
from mirage_dsl.verify.stability import measure_stability

# -- The ring --------------------------------------------------------------------------

Exponent = int | Fraction
Monomial = tuple[tuple[int, Exponent], ...]
"""Numbers of atoms with their exponents, in the order of the numbers."""

Poly = dict[Monomial, Fraction | int]
"""Coefficients by monomial, none of them 0; never changed once made."""

ONE: Poly = {(): 1}
ZERO: Poly = {}
_SMALL_PRIMES = tuple(p for p in range(2, 100) if all(p % q for q in range(2, p)))


class WorkExhausted(UnsupportedError):  # noqa: N818
    """The normal forms outgrew the budget."""


@dataclass(frozen=True)
class _Key:
    """What an atom stands for: a kind, and operands or a monomial or a name."""

    kind: str
    of: tuple[object, ...]


class Ring:
    """Atoms and the arithmetic over them, within a budget of term products."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self._numbers: dict[_Key, int] = {}
        self._operands: list[tuple[Poly, ...]] = []
        self._names: list[str] = []
        self._roots: set[int] = set()
        self._inverses: set[int] = set()
        self._idempotents: set[int] = set()
        self._exps: set[int] = set()
        self._fresh = 0

    # -- Atoms -----------------------------------------------------------------------

    def _atom(self, kind: str, of: tuple[object, ...], *operands: Poly) -> int:
        key = _Key(kind, of)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._names)
            self._names.append(kind)
            self._operands.append(operands)
        return number

    def symbol(self, *name: object) -> Poly:
        """An unknown."""
        return {((self._atom("symbol", name), 1),): 1}

    def fresh(self) -> Poly:
        """An unknown that is nowhere else."""
        self._fresh += 1
        return self.symbol("fresh", self._fresh)

    def function(self, name: str, *operands: Poly, binary: bool = False) -> Poly:
        """A function of which only this is known: equal operands, equal values.

        Args:
            name: Its name.
            *operands: In order.
            binary: Its values are 0 and 1.
        """
        number = self._atom(name, self._of(name, operands), *operands)
        if binary:
            self._idempotents.add(number)
        return {((number, 1),): 1}

    def _of(self, name: str, operands: Sequence[Poly]) -> tuple[object, ...]:
        """The key of operands; that of equal ones, if they look otherwise."""
        own = tuple(frozenset(p.items()) for p in operands)
        if _Key(name, own) in self._numbers or not any(map(self._fractional, operands)):
            return own
        for number, known in enumerate(self._names):
            others = self._operands[number]
            if known == name and len(others) == len(operands):
                pairs = zip(operands, others, strict=True)
                if all(self.is_zero(self.sub(a, b)) for a, b in pairs):
                    return tuple(frozenset(p.items()) for p in others)
        return own

    def _fractional(self, p: Poly) -> bool:
        return any(a in self._inverses for m in p for a, _ in m)

    def largest(self, values: Iterable[Poly]) -> Poly:
        """The maximum: an unknown function of a set, with sets within sets united."""
        members: dict[frozenset[object], Poly] = {}
        for value in values:
            for member in self._members(value):
                members.setdefault(frozenset(member.items()), member)
        if len(members) == 1:
            return next(iter(members.values()))
        if all(is_number(v) for v in members.values()):
            return number(max(v.get((), 0) for v in members.values()))
        number_ = self._atom("max", (frozenset(members),), *members.values())
        return {((number_, 1),): 1}

    def _members(self, value: Poly) -> tuple[Poly, ...]:
        if len(value) == 1:
            ((monomial, coefficient),) = value.items()
            if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1:
                atom = monomial[0][0]
                if self._names[atom] == "max":
                    return self._operands[atom]
        return (value,)

    def is_binary(self, value: Poly) -> bool:
        """Whether it is an atom with the values 0 and 1."""
        return len(value) == 1 and all(
            c == 1 and len(m) == 1 and m[0][0] in self._idempotents
            for m, c in value.items()
        )

    # -- Arithmetic ------------------------------------------------------------------

    def total(self, values: Iterable[Poly]) -> Poly:
        """The sum of all."""
        found: Poly = {}
        for value in values:
            self._spend(len(value))
            _add_to(found, value, 1)
        return found

    def sub(self, a: Poly, b: Poly) -> Poly:
        """The difference."""
        found = dict(a)
        self._spend(len(a) + len(b))
        _add_to(found, b, -1)
        return found

    def mul(self, a: Poly, b: Poly) -> Poly:
        """The product, reduced."""
        found: Poly = {}
        for m, c in a.items():
            self._spend(len(b) * (1 + len(m)))
            for n, d in b.items():
                merged = _merged(m, n)
                self.left -= len(merged)
                if self._reducible(merged):
                    _add_to(found, self._reduced(merged), c * d)
                else:
                    _add_to(found, {merged: 1}, c * d)
        return found

    def _spend(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise WorkExhausted("the normal forms grow beyond the work budget")

    def _reducible(self, monomial: Monomial) -> bool:
        for atom, power in monomial:
            if atom in self._roots:
                if power != 1:
                    return True
            elif atom in self._inverses:
                if power > 0:
                    return True
            elif atom in self._idempotents and power != 1:
                return True
        return False

    def _reduced(self, monomial: Monomial) -> Poly:
        kept: list[tuple[int, Exponent]] = []
        factors: list[Poly] = []
        for atom, power in monomial:
            if atom in self._roots:
                squares, odd = divmod(power, 2)
                kept += [(atom, odd)] if odd else []
                factors.append(self.power(self._operands[atom][0], int(squares)))
            elif atom in self._inverses and power > 0:
                factors.append(self.power(self._operands[atom][0], int(power)))
            elif atom in self._idempotents and power < 0:
                raise UnsupportedError("division by a condition")
            else:
                kept.append((atom, 1 if atom in self._idempotents else power))
        product: Poly = {tuple(kept): 1}
        for factor in factors:
            product = self.mul(product, factor)
        return product

    def power(self, base: Poly, exponent: int) -> Poly:
        """A whole power, of the inverse if it is negative."""
        if exponent < 0:
            base, exponent = self.inverse(base), -exponent
        product = ONE
        for _ in range(exponent):
            product = self.mul(product, base)
        return product

    def inverse(self, p: Poly) -> Poly:
        """One over a value.

        Raises:
            UnsupportedError: It is zero.
        """
        cleared, denominator = self.cleared(p)
        if not cleared:
            raise UnsupportedError("division by zero")
        factor, content, rest = self._split(cleared, _any_atom)
        if rest[max(rest)] < 0:
            factor, rest = -factor, scaled(rest, -1)
        inverted: Poly = {_raised(content, -1): 1 / Fraction(factor)}
        if rest != ONE:
            atom = self._atom("inverse", (frozenset(rest.items()),), rest)
            self._inverses.add(atom)
            inverted = self.mul(inverted, {((atom, -1),): 1})
        return self.mul(self.mul(inverted, ONE), denominator)

    def _split(
        self, p: Poly, takes: Callable[[int], bool]
    ) -> tuple[Fraction, Monomial, Poly]:
        """A positive number, a monomial, and what is left of `p` without them."""
        lowest: dict[int, Exponent] = {}
        atoms = {a for m in p for a, _ in m if takes(a)}
        powers = [dict(m) for m in p]
        for atom in atoms:
            least = min(m.get(atom, 0) for m in powers)
            if least:
                lowest[atom] = least
        content: Monomial = tuple(sorted(lowest.items()))
        factor = _content(p.values())
        down = _raised(content, -1)
        rest: Poly = {_merged(m, down): Fraction(c) / factor for m, c in p.items()}
        return factor, content, rest

    def exp(self, p: Poly) -> Poly:
        """The exponential: a monomial in exponentials of monomials."""
        powers: dict[int, Exponent] = {}
        for monomial, coefficient in p.items():
            atom = self._atom("exp", (monomial,))
            self._exps.add(atom)
            powers[atom] = coefficient
        return {tuple(sorted(powers.items())): 1}

    def root(self, p: Poly) -> Poly:
        """The square root."""
        if not p:
            return ZERO
        factor, content, rest = self._split(p, self._exps.__contains__)
        found: Poly = {_raised(content, Fraction(1, 2)): 1}
        found = self.mul(found, self._root_of_number(factor))
        if rest == ONE:
            return found
        of = self._of("root", (rest,))
        atom = self._atom("root", of, rest)
        self._roots.add(atom)
        return self.mul(found, {((atom, 1),): 1})

    def _root_of_number(self, value: Fraction) -> Poly:
        """Of a positive rational: a rational times roots of small primes and a rest."""
        inside = value.numerator * value.denominator
        outside = Fraction(1, value.denominator)
        roots: list[int] = []
        for prime in _SMALL_PRIMES:
            while inside % (prime * prime) == 0:
                inside, outside = inside // (prime * prime), outside * prime
            if inside % prime == 0:
                inside //= prime
                roots.append(prime)
        whole = math.isqrt(inside)
        if whole * whole == inside:
            outside *= whole
        else:
            roots.append(inside)
        found = number(outside)
        for n in roots:
            atom = self._atom("root", (frozenset(number(n).items()),), number(n))
            self._roots.add(atom)
            found = self.mul(found, {((atom, 1),): 1})
        return found

    # -- Zero ------------------------------------------------------------------------

    def cleared(self, p: Poly) -> tuple[Poly, Poly]:
        """`p` times polynomials that leave it no inverse, and their product."""
        product = ONE
        while True:
            powers: dict[int, Exponent] = {}
            for monomial in p:
                for atom, power in monomial:
                    if atom in self._inverses:
                        powers[atom] = min(power, powers.get(atom, 0))
            if not powers:
                return p, product
            # The latest first: the others may stand inside of it, never the reverse.
            last = max(powers)
            factor: Poly = {((last, -powers[last]),): 1}
            p = self._times(p, last, -powers[last])
            product = self.mul(product, factor)

    def _times(self, p: Poly, atom: int, power: Exponent) -> Poly:
        return self.mul(p, {((atom, power),): 1})

    def is_zero(self, p: Poly) -> bool:
        """Whether nothing is left of `p` once its inverses are multiplied out."""
        return not p or not self.cleared(p)[0]


def _any_atom(_: int) -> bool:
    return True


def number(value: Fraction | int) -> Poly:
    """A constant."""
    return {(): value} if value else ZERO


def is_number(p: Poly) -> bool:
    """Whether it is a rational constant."""
    return not p or list(p) == [()]


def scaled(p: Poly, factor: Fraction | int) -> Poly:
    """Times a number other than 0."""
    return {m: c * factor for m, c in p.items()}


def _add_to(
    found: Poly, terms: Mapping[Monomial, Fraction | int], by: Fraction | int
) -> None:
    for monomial, coefficient in terms.items():
        value = found.get(monomial, 0) + coefficient * by
        if value:
            found[monomial] = value
        else:
            found.pop(monomial, None)


def _merged(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, power in b:
        new = powers.get(atom, 0) + power
        if new:
            powers[atom] = new
        else:
            powers.pop(atom, None)
    return tuple(sorted(powers.items()))


def _raised(m: Monomial, exponent: Exponent) -> Monomial:
    return tuple((atom, power * exponent) for atom, power in m)


def _content(coefficients: Iterable[Fraction | int]) -> Fraction:
    found = [Fraction(c) for c in coefficients]
    above = math.gcd(*(c.numerator for c in found))
    return Fraction(above, math.lcm(*(c.denominator for c in found)))


# -- A domain of the evaluator ---------------------------------------------------------

Values = NDArray[np.object_]


@dataclass(frozen=True)
class Masked:
    """A value where `live` is 1, infinity of a sign where it is 0."""

    live: Poly
    value: Poly
    sign: int = -1


Element = Poly | Masked
MINUS_INFINITY = Masked(ZERO, ZERO)
INFINITY = Masked(ZERO, ZERO, 1)


def array_of(elements: Sequence[Element], shape: tuple[int, ...]) -> Values:
    """An object array; NumPy must not look into its elements."""
    found = np.empty(len(elements), dtype=object)
    for i, element in enumerate(elements):
        found[i] = element
    return found.reshape(shape)


def _each(function: Callable[..., Element], *operands: Values) -> Values:
    spread = np.broadcast_arrays(*operands)
    flat = zip(*(v.ravel().tolist() for v in spread), strict=True)
    return array_of([function(*v) for v in flat], spread[0].shape)


def _numbers(values: Sequence[Element]) -> list[Fraction] | None:
    """The rational numbers that values are; None where one is something else."""
    known = [
        Fraction(v.get((), 0))
        for v in values
        if not isinstance(v, Masked) and is_number(v)
    ]
    return known if len(known) == len(values) else None


def _plain(value: Element) -> Poly:
    if isinstance(value, Masked):
        raise UnsupportedError("arithmetic with infinity")
    return value


class ExactAlgebra:
    """`FieldAlgebra` over normal forms, all in one ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def constant(
        self, value: Scalar, extents: Mapping[str, int] | None = None
    ) -> Values:
        """A rank-0 constant; of an irrational one, the root that it stands for."""
        found = read_number(value, extents or {})
        if isinstance(found, Number):
            return array_of([self._number(found)], ())
        return array_of([INFINITY if found > 0 else MINUS_INFINITY], ())

    def _number(self, value: Number) -> Poly:
        if value.square is None:
            return number(value.rational)
        return scaled(self.ring.root(number(value.square)), value.sign)

    def add(self, a: Values, b: Values) -> Values:
        return _each(self._add, a, b)

    def _add(self, a: Element, b: Element) -> Element:
        if isinstance(a, Masked):
            live = self.ring.mul(a.live, b.live) if isinstance(b, Masked) else a.live
            other = b.value if isinstance(b, Masked) else b
            if isinstance(b, Masked) and a.sign != b.sign:
                raise UnsupportedError("a sum of opposite infinities")
            return Masked(live, self.ring.total((a.value, other)), a.sign)
        if isinstance(b, Masked):
            return self._add(b, a)
        return self.ring.total((a, b))

    def sub(self, a: Values, b: Values) -> Values:
        return _each(self._sub, a, b)

    def _sub(self, a: Element, b: Element) -> Element:
        if isinstance(b, Masked):
            return self._add(a, Masked(b.live, scaled(b.value, -1), -b.sign))
        return self._add(a, scaled(b, -1))

    def mul(self, a: Values, b: Values) -> Values:
        return _each(self._mul, a, b)

    def _mul(self, a: Element, b: Element) -> Element:
        if isinstance(a, Masked):
            factor = _plain(b)
            if not is_number(factor) or factor.get((), 0) <= 0:
                raise UnsupportedError("a product with infinity")
            return Masked(a.live, self.ring.mul(a.value, factor), a.sign)
        if isinstance(b, Masked):
            return self._mul(b, a)
        return self.ring.mul(a, b)

    def div(self, a: Values, b: Values) -> Values:
        return self.mul(a, _each(self._inverse, b))

    def _inverse(self, a: Element) -> Element:
        return self.ring.inverse(_plain(a))

    def exp(self, a: Values) -> Values:
        return _each(self._exp, a)

    def _exp(self, a: Element) -> Element:
        if isinstance(a, Masked):
            if a.sign > 0:
                raise UnsupportedError("the exponential of infinity")
            return self.ring.mul(a.live, self.ring.exp(a.value))
        return self.ring.exp(a)

    def sqrt(self, a: Values) -> Values:
        return _each(self._root, a)

    def _root(self, a: Element) -> Element:
        return self.ring.root(_plain(a))

    def maximum(self, a: Values, b: Values) -> Values:
        return _each(self._larger, a, b)

    def _larger(self, a: Element, b: Element) -> Element:
        return self._largest((a, b))

    def _largest(self, values: Sequence[Element]) -> Element:
        if INFINITY in values:
            return INFINITY
        finite = [v for v in values if v != MINUS_INFINITY]
        if not finite:
            return MINUS_INFINITY
        known = _numbers(finite)
        if known is not None:
            return number(max(known))
        return self.ring.largest(_plain(v) for v in finite)

    def sum(self, a: Values, axes: tuple[int, ...]) -> Values:
        return self._along(a, axes, self._total)

    def _total(self, values: Sequence[Element]) -> Element:
        return self.ring.total(map(_plain, values))

    def max(self, a: Values, axes: tuple[int, ...]) -> Values:
        return self._along(a, axes, self._largest)

    def fold(
        self, join: Callable[[Values, Values], Values], a: Values, axes: Axes
    ) -> Values:
        """The elements along axes, joined one after the other."""
        for axis in sorted(axes, reverse=True):
            slices = [a.take([i], axis) for i in range(a.shape[axis])]
            a = reduce(join, slices).squeeze(axis)
        return a

    def scan(
        self, join: Callable[[Values, Values], Values], a: Values, axis: int
    ) -> Values:
        """Each element joined with all before it, one after the other."""
        slices = [a.take([i], axis) for i in range(a.shape[axis])]
        return np.concatenate(list(accumulate(slices, join)), axis)

    def shift(self, a: Values, axes: tuple[int, ...]) -> Values:
        """Unknowns that no output may depend on, finite everywhere."""
        return self._along(a, axes, self._fresh)

    def _fresh(self, _: Sequence[Element]) -> Element:
        return self.ring.fresh()

    def _along(
        self,
        a: Values,
        axes: tuple[int, ...],
        function: Callable[[Sequence[Element]], Element],
    ) -> Values:
        kept = [i for i in range(a.ndim) if i not in axes]
        shape = tuple(a.shape[i] for i in kept)
        count = 1
        for n in shape:
            count *= n
        rows = a.transpose((*kept, *axes)).reshape(count, -1)
        return array_of([function(row) for row in rows.tolist()], shape)

    def matmul(self, a: Values, b: Values) -> Values:
        """(batch, m, k) by (batch, k, n)."""
        left, right = a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :]
        rank = left.ndim - 1
        return self.sum(self.mul(left, right), (rank,))

    def concat(self, axis: int, *operands: Values) -> Values:
        return np.concatenate(operands, axis)

    def oracle(self, name: str, *operands: Values) -> Values:
        """An unknown function."""
        known = dict(known_values(name)) if len(operands) == 1 else {}

        def function(*values: Element) -> Element:
            if (where := _numbers(values[:1])) and where[0] in known:
                return number(known[int(where[0])])
            return self.ring.function(name, *map(_plain, values))

        return _each(function, *operands)

    def indicator(self, name: str, *operands: Values) -> Values:
        """An unknown function with the values 0 and 1; of numbers the operator."""

        def function(*values: Element) -> Element:
            known = _numbers(values)
            if known is not None:
                return number(int(OPERATORS[name].numpy(*map(np.asarray, known))))
            return self.ring.function(name, *map(_plain, values), binary=True)

        return _each(function, *operands)

    def choose(self, condition: Values, a: Values, b: Values) -> Values:
        return _each(self._choose, condition, a, b)

    def _choose(self, condition: Element, a: Element, b: Element) -> Element:
        condition = _plain(condition)
        if is_number(condition):
            return a if condition else b
        truth = condition
        if not self.ring.is_binary(condition):
            truth = self.ring.function("is not 0", condition, binary=True)
        if b in (MINUS_INFINITY, INFINITY):
            assert isinstance(b, Masked)
            if isinstance(a, Masked) and a.sign != b.sign:
                raise UnsupportedError("a choice of opposite infinities")
            kept = a.live if isinstance(a, Masked) else ONE
            value = a.value if isinstance(a, Masked) else a
            return Masked(self.ring.mul(truth, kept), value, b.sign)
        otherwise = self.ring.sub(ONE, truth)
        chosen = (
            self.ring.mul(truth, _plain(a)),
            self.ring.mul(otherwise, _plain(b)),
        )
        return self.ring.total(chosen)


class ExactDomain(ArrayDomain):
    """`Domain` over normal forms: operators by their rows' field semantics."""

    def __init__(self, algebra: ExactAlgebra) -> None:
        self.algebra = algebra

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Values:
        return self.algebra.constant(number, extents)

    def index(self, count: int) -> Values:
        return array_of([number(i) for i in range(count)], (count,))

    def elementwise(self, op: Operator, operands: Sequence[Values]) -> Values:
        return op.on(self.algebra, *operands)

    def reduce(self, op: Operator, value: Values, axes: tuple[int, ...]) -> Values:
        return op.reduced(self.algebra, value, axes)

    def scan(self, op: Operator, value: Values, axis: int) -> Values:
        return op.scanned(self.algebra, value, axis)

    def contract(self, op: Operator, a: Values, b: Values) -> Values:
        return op.contracted(self.algebra, a, b)

    def library(
        self,
        op: Operator,
        operands: Sequence[Values],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Values:
        """An unknown function of all elements of the operands, and of the index."""
        shapes = [o.shape for o in operands]
        name = f"{op.name} {sorted(numbers.items())} {shapes}"
        elements = [_plain(e) for o in operands for e in o.ravel().tolist()]
        whole = self.algebra.ring.function(name, *elements)
        found = [
            self.algebra.ring.function(f"{name} at {at}", whole)
            for at in range(prod(shape))
        ]
        return array_of(found, shape)

    def running_max(self, value: Values, axis: int) -> Values:  # noqa: ARG002
        """Unknowns: no output may depend on them."""
        return self.algebra.shift(value, ())

    def cast(self, value: Values, dtype: DType) -> Values:  # noqa: ARG002
        """The value itself: nothing is rounded."""
        return value

    def pad(self, value: Values, axis: int, count: int) -> Values:
        """Unknowns, so that a mask forgotten anywhere shows."""
        shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
        extra = [self.algebra.ring.fresh() for _ in product(*map(range, shape))]
        return np.concatenate([value, array_of(extra, shape)], axis)

    def mask(self, value: Values, keep: NDArray[np.bool_], fill: float) -> Values:
        """`fill` where `keep` is False."""
        other: Element = self.algebra.constant(scalar(fill)).item()
        flags: Any = np.broadcast_to(keep, value.shape).ravel().tolist()
        pairs = zip(value.ravel().tolist(), flags, strict=True)
        return array_of([v if k else other for v, k in pairs], value.shape)

    def gather(
        self,
        op: Operator,
        value: Values,  # noqa: ARG002
        index: Values,  # noqa: ARG002
        axis: int,  # noqa: ARG002
    ) -> Values:
        """Refused: which element it is, is not known."""
        raise UnsupportedError(f"{op.name}: indices that are data are not decided")


def ring_equality(ring: Ring) -> Callable[[Element, Element], bool]:
    """Whether two elements are equal, inverses multiplied out."""

    def equal(a: Element, b: Element) -> bool:
        if isinstance(a, Masked) and isinstance(b, Masked):
            if a.sign != b.sign:
                return False
            values = ring.mul(a.live, ring.sub(a.value, b.value))
            return ring.is_zero(ring.sub(a.live, b.live)) and ring.is_zero(values)
        if isinstance(a, Masked) or isinstance(b, Masked):
            return False
        return ring.is_zero(ring.sub(a, b))

    return equal


def symbols(ring: Ring, name: object, shape: tuple[int, ...]) -> Values:
    """An input: an unknown for every element."""
    places = product(*map(range, shape))
    return array_of([ring.symbol("input", name, *at) for at in places], shape)


# -- The verdict -----------------------------------------------------------------------


WORK = 4_000_000
"""Length of all monomials made, a few seconds' worth."""

_BEYOND_ROUNDING = 1e-6
_RESTS_ON = (
    "exact normal forms of functions of symbols, at the sizes tested; that other sizes "
    "behave alike is not part of it"
)


def verify_exact(
    candidate: KernelGraph,
    program: KernelGraph,
    *,
    seed: int = 0,
    stability: bool = True,
    work: int = WORK,
) -> Certificate:
    """Whether both graphs have the same normal form.

    Args:
        candidate: A μGraph with the program's inputs and outputs.
        program: What to compare with.
        seed: Decides the sizes and the inputs of counterexamples.
        stability: Also judge floating-point behaviour.
        work: The most that monomials may come to.
    """
    asked = _Asked(candidate, program, seed)
    other = interface_difference(candidate, program)
    if other is not None:
        return asked.answer("different", f"another interface: {other}")
    try:
        small = shrink(candidate, program, ragged=True, seed=seed, tiny=True)
    except MirageError as error:
        return asked.answer("unknown", f"unknown: {error.message}")
    asked.sizes = (tuple(sorted(small.sizes.items())),)
    decided = _decided(asked, small, Ring(work))
    if decided is not None:
        return decided
    domains = domain_difference(small, seed)
    if domains is not None:
        return asked.answer("different", domains.reason, example=domains.example)
    verdict = None
    if stability:
        larger = shrink(candidate, program, ragged=False, seed=seed)
        verdict = measure_stability(larger, seed)
    return asked.answer("equal", "equal normal forms", stability=verdict)


def _decided(asked: _Asked, small: Shrunk, ring: Ring) -> Certificate | None:
    """The certificate of what is not equal; None for what is."""
    reason = (
        "the normal forms differ, but no inputs were found on which the results do; an "
        "identity of functions, roots or maxima may join them"
    )
    try:
        ours, theirs = _both(small, ring)
        if _agree(ours, theirs, _same):
            return None
        example = _difference(small, asked.seed)
        if example is None and _agree(ours, theirs, ring_equality(ring)):
            return None
    except MirageError as error:
        reason = error.message
        example = _difference(small, asked.seed)
    if example is not None:
        return asked.answer("different", "not equivalent", example=example)
    return asked.answer("unknown", f"unknown: {reason}")


def _both(small: Shrunk, ring: Ring) -> tuple[list[Values], list[Values]]:
    program = small.program
    inputs = [
        symbols(ring, number, input_shape(program, item))
        for number, item in enumerate(program.inputs)
    ]
    return _outputs(program, inputs, ring), _outputs(small.candidate, inputs, ring)


def _outputs(graph: KernelGraph, inputs: list[Values], ring: Ring) -> list[Values]:
    return evaluate(graph, inputs, ExactDomain(ExactAlgebra(ring)))


def _agree(
    ours: list[Values],
    theirs: list[Values],
    equal: Callable[[Element, Element], bool],
) -> bool:
    return all(
        a.shape == b.shape and all(map(equal, a.ravel().tolist(), b.ravel().tolist()))
        for a, b in zip(ours, theirs, strict=True)
    )


def _same(a: Element, b: Element) -> bool:
    return a == b


def _difference(small: Shrunk, seed: int) -> Counterexample | None:
    """Inputs on which finite results differ, and by more than rounding could."""
    found = find_counterexample(small, seed, finite=True)
    if found is None:
        return None
    expected = np.asarray(found.expected_output)
    scale = np.abs(expected[np.isfinite(expected)]).max()
    far = abs(found.found - found.expected) > _BEYOND_ROUNDING * scale
    return found if far else None


class _Asked:
    """The question, and certificates that answer it."""

    def __init__(self, candidate: KernelGraph, program: KernelGraph, seed: int) -> None:
        self.candidate = candidate
        self.program = program
        self.seed = seed
        self.sizes: tuple[Sizes, ...] = ()

    def answer(
        self,
        verdict: Verdict,
        reason: str,
        *,
        stability: Stability | None = None,
        example: Counterexample | None = None,
    ) -> Certificate:
        return Certificate(
            equivalent=verdict == "equal",
            error_bound=0.0 if verdict == "equal" else 1.0,
            rests_on=_RESTS_ON,
            seed=self.seed,
            counterexample=example,
            stability=stability,
            sizes=self.sizes,
            candidate_hash=canonical_hash(self.candidate),
            program_hash=canonical_hash(self.program),
            reason=reason,
            method="exact",
            verdict=verdict,
        )
