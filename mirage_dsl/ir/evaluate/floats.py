"""The evaluator over NumPy floats: reference semantics, and a model of a real run."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mirage_dsl.core.errors import DTypeError, ShapeError
from mirage_dsl.core.types import DType, Scalar
from mirage_dsl.ir.check.graph import check_or_raise
from mirage_dsl.ir.evaluate.graph import evaluate
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ops.definition import Array, Numbers, Operator, Truth

Compute = type[np.float64] | type[np.float32]


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of a storage format; what NumPy has not is `ml_dtypes`'."""
    return np.dtype(getattr(ml_dtypes, dtype.long_name, dtype.long_name))


@dataclass(frozen=True)
class NumpyDomain:
    """Floats of one format, and integers in their own formats.

    Attributes:
        compute: The format of all arithmetic.
        round_casts: Round where a real run does: inputs, casts, stores and kernel-level
            results to their storage formats.  Otherwise nothing is rounded.
        stand_ins: Evaluate, in the place of a library operator, a function of a few
            elements of its operands at random places: at the small sizes of trials
            extents are none that its windows would make.
        checked: Refuse indices outside of what is gathered, whose elements are NaN
            otherwise.
    """

    compute: Compute = np.float64
    round_casts: bool = False
    stand_ins: bool = False
    checked: bool = True

    def shape(self, value: Array) -> tuple[int, ...]:
        """The array's shape."""
        return value.shape

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Array:
        """The number at the given extents."""
        return np.asarray(number.at(extents), dtype=self.compute)

    def index(self, count: int) -> Array:
        """The positions along an axis."""
        return np.arange(count, dtype=np.int64)

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """The row's NumPy semantics; constants beside integers are of their format."""
        found = next((v.dtype for v in operands if v.dtype.kind in "iu"), None)
        if found is not None:
            operands = [
                v
                if v.dtype == found or (op.chooses and at == 0)
                else as_format(v, found)
                for at, v in enumerate(operands)
            ]
        with np.errstate(all="ignore"):
            return self._kept(op, op.numpy(*operands))

    def _kept(self, op: Operator, value: Array) -> Array:
        """Integers as they are, all else in floats, truth values as 1 and 0."""
        if value.dtype.kind in "iu" and op.truth is not Truth.COMPARES:
            return value
        return np.asarray(value, dtype=self.compute)

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            found = self._kept(op, np.asarray(op.numpy(value, axes)))
        # NumPy adds up small integers in larger ones.
        return found.astype(value.dtype) if value.dtype.kind in "iu" else found

    def scan(self, op: Operator, value: Array, axis: int) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            return self._kept(op, np.asarray(op.numpy(value, axis)))

    def contract(self, op: Operator, a: Array, b: Array) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            return np.asarray(op.numpy(a, b), dtype=self.compute)

    def library(
        self,
        op: Operator,
        operands: Sequence[Array],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Array:
        """PyTorch's own function on the CPU, or what stands in for it.

        Raises:
            ShapeError: It gives another shape.
        """
        if self.stand_ins:
            whole = [o.reshape(1, -1) for o in operands]
            return stand_in(op, whole, numbers, shape)[0]
        found = np.asarray(op.numpy(*operands, **numbers))
        if found.dtype.kind == "f":
            found = found.astype(self.compute)
        if found.shape != shape:
            raise ShapeError(
                f"{op.name} gives the shape {found.shape}, where the extents of its "
                f"dims say {shape}"
            )
        return found

    def running_max(self, value: Array, axis: int) -> Array:
        """Cumulative maximum.

        -inf becomes the lowest finite number: any finite number serves, and with this
        one a rescaling from "nothing seen yet" to a real maximum is by zero.
        """
        largest = np.maximum.accumulate(value, axis=axis)
        lowest = np.asarray(np.finfo(self.compute).min, self.compute)
        return np.where(np.isneginf(largest), lowest, largest)

    def cast(self, value: Array, dtype: DType) -> Array:
        """Round to `dtype` if this domain rounds; integers stay what they are."""
        if dtype.is_integer:
            return value.astype(dtype.long_name)
        if value.dtype.kind in "iu":
            value = value.astype(self.compute)
        if not self.round_casts:
            return value
        with np.errstate(all="ignore"):
            return value.astype(numpy_dtype(dtype)).astype(self.compute)

    def transpose(self, value: Array, order: tuple[int, ...]) -> Array:
        """Axes in another order."""
        return value.transpose(order)

    def reshape(self, value: Array, shape: tuple[int, ...]) -> Array:
        """Axes merged or split."""
        return value.reshape(shape)

    def take(self, value: Array, axis: int, start: int, stop: int) -> Array:
        """A range along an axis."""
        index = (slice(None),) * axis + (slice(start, stop),)
        return value[index]

    def pad(self, value: Array, axis: int, count: int) -> Array:
        """NaN, so that a mask forgotten anywhere shows in the result.

        There are no such integers; another one is as good as any.
        """
        shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
        fill = np.nan if value.dtype.kind == "f" else _ODD
        padding = np.full(shape, fill, value.dtype)
        return np.concatenate([value, padding], axis)

    def mask(self, value: Array, keep: NDArray[np.bool_], fill: float) -> Array:
        """`fill` where `keep` is False."""
        return np.where(keep, value, as_format(np.asarray(fill), value.dtype))

    def gather(self, op: Operator, value: Array, index: Array, axis: int) -> Array:
        """The row's NumPy semantics.

        Raises:
            ShapeError: An index is outside.
        """
        rank = max(value.ndim, index.ndim)
        index = index.reshape(index.shape + (1,) * (rank - index.ndim))
        extent = value.shape[axis]
        low, high = int(index.min()), int(index.max())
        if -extent <= low and high < extent:
            return np.asarray(op.numpy(value, index, axis))
        if self.checked:
            raise ShapeError(
                f"{op.name}: indices from {low} to {high} of a dim of extent {extent}; "
                f"expected {-extent} to {extent - 1}"
            )
        inside = (index >= -extent) & (index < extent)
        found = op.numpy(value, np.where(inside, index, 0), axis)
        fill = np.nan if found.dtype.kind == "f" else _ODD
        return np.where(inside, found, np.asarray(fill, found.dtype))

    def concat(self, values: Sequence[Array], axis: int) -> Array:
        """Arrays one after the other."""
        return np.concatenate(list(values), axis)


_TERMS = 3
"""Products whose mean stands in for an element of a library operator's result."""


_SPREAD = 1000.0
"""What stand-ins of indices are multiplied with, so that they differ."""


def stand_in(
    op: Operator, operands: Sequence[Array], numbers: Numbers, shape: tuple[int, ...]
) -> Array:
    """A function of a library operator's operands that is as good as any other one.

    Each element is the mean of a few products of elements of all operands, at places
    that follow from the operator and its attributes.

    Args:
        op: The operator.
        operands: One row of elements for each run.
        numbers: Its attributes that are integers.
        shape: Of the result in each run.
    """
    text = f"{op.function} {sorted(numbers.items())}"
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    total = np.zeros((1,) * (len(shape) + 1), operands[0].dtype)
    with np.errstate(all="ignore"):
        for _ in range(_TERMS):
            term = np.ones_like(total)
            for operand in operands:
                places = rng.integers(operand.shape[1], size=shape)
                term = term * operand[:, places]
            total = total + term
        mean = np.asarray(total / operands[0].dtype.type(_TERMS))
        if op.gives is None:
            return mean
        # Indices along the second axis, of which the result has no more elements.
        places = np.floor(np.abs(np.nan_to_num(mean)) * _SPREAD) % shape[1]
        return places.astype(op.gives.long_name)


_ODD = 107


def as_format(number: Array, into: np.dtype[Any] | str) -> Array:
    """Numbers in another format; what integers start a minimum with is their largest.

    Infinities have no integer but the last one on their side.
    """
    dtype = np.dtype(into)
    if dtype.kind == "b":
        return number > 0
    if dtype.kind not in "iu" or number.dtype.kind != "f":
        return number.astype(dtype)
    limits = np.iinfo(dtype)
    ends = np.where(number < 0, limits.min, limits.max).astype(dtype)
    finite = np.where(np.isinf(number), 0, number).astype(np.int64).astype(dtype)
    return np.where(np.isinf(number), ends, finite)


def evaluate_numpy(
    graph: GraphLike,
    *arrays: ArrayLike,
    compute: Compute = np.float64,
    round_casts: bool = False,
    stand_ins: bool = False,
    checked: bool = True,
) -> list[Array]:
    """Evaluate a program or μGraph on NumPy arrays.

    Args:
        graph: What to evaluate: a graph, its text, or a candidate of a search.
        *arrays: One per input, axes as the input's type says, of any float dtype.
        compute: The format of all arithmetic, and of the results.
        round_casts: Round to storage formats where a real run does.
        stand_ins: As `NumpyDomain` says, for the sizes of trials.
        checked: Refuse indices that are outside of what is gathered.

    Returns:
        One array per output, axes as the returned type says.

    Raises:
        CheckError: The graph is not well formed.
        DTypeError: An array of complex numbers or of no numbers.
        ShapeError: Arrays that do not fit the input types; indices outside.
    """
    graph = graph_of(graph)
    domain = NumpyDomain(compute, round_casts, stand_ins, checked)
    values = [_numbers(a, compute) for a in arrays]
    try:
        return evaluate(graph, values, domain)
    except (AssertionError, IndexError, KeyError, ValueError):
        # What is not well formed fails in many ways; the checker says why.
        check_or_raise(graph)
        raise


def _numbers(array: ArrayLike, compute: Compute) -> Array:
    found = np.asarray(array)
    if found.dtype.kind not in "biuf" and found.dtype.name not in vars(ml_dtypes):
        raise DTypeError(
            f"found an array of {found.dtype}, expected floats such as float16, "
            "bfloat16 or float32"
        )
    return found if found.dtype.kind in "iu" else found.astype(compute)
