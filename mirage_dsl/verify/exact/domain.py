"""Exact normal forms as a domain of the evaluator: arrays of values of a ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import accumulate, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import DType, Scalar, scalar
from mirage_dsl.ops.definition import Axes, Numbers, Operator
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.verify.constants import Number, read_number
from mirage_dsl.verify.exact.ring import (
    ONE,
    ZERO,
    Poly,
    Ring,
    is_number,
    number,
    scaled,
)

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

        def function(*values: Element) -> Element:
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


class ExactDomain:
    """`Domain` over normal forms: operators by their rows' field semantics."""

    def __init__(self, algebra: ExactAlgebra) -> None:
        self.algebra = algebra

    def shape(self, value: Values) -> tuple[int, ...]:
        return value.shape

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

    def transpose(self, value: Values, order: tuple[int, ...]) -> Values:
        return value.transpose(order)

    def reshape(self, value: Values, shape: tuple[int, ...]) -> Values:
        return value.reshape(shape)

    def take(self, value: Values, axis: int, start: int, stop: int) -> Values:
        place = (slice(None),) * axis + (slice(start, stop),)
        return value[place]

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

    def concat(self, values: Sequence[Values], axis: int) -> Values:
        return np.concatenate(list(values), axis)


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
