"""What the evaluator needs of an array domain: NumPy floats, or field residues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ops.definition import Operator
from mirage_dsl.types import DType, Scalar

V = TypeVar("V")


class Domain(Protocol[V]):
    """Arrays with positional axes.  The evaluator maps named dims to positions."""

    def shape(self, value: V) -> tuple[int, ...]: ...

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> V:
        """A rank-0 array."""
        ...

    def elementwise(self, op: Operator, operands: Sequence[V]) -> V:
        """Apply `op` to arrays of equal rank that broadcast (rank 0 goes with any)."""
        ...

    def reduce(self, op: Operator, value: V, axes: tuple[int, ...]) -> V:
        """Apply a reduction; the axes vanish."""
        ...

    def contract(self, op: Operator, a: V, b: V) -> V:
        """Apply a contraction to (batch, m, k) and (batch, k, n)."""
        ...

    def running_max(self, value: V, axis: int) -> V:
        """Cumulative maximum along an axis, finite everywhere (see `RunningMax`)."""
        ...

    def cast(self, value: V, dtype: DType) -> V:
        """Round to a storage format where the domain rounds."""
        ...

    def transpose(self, value: V, order: tuple[int, ...]) -> V: ...

    def reshape(self, value: V, shape: tuple[int, ...]) -> V: ...

    def take(self, value: V, axis: int, start: int, stop: int) -> V:
        """The elements from `start` to before `stop` along an axis."""
        ...

    def pad(self, value: V, axis: int, count: int) -> V:
        """Append `count` arbitrary elements; whatever they are must not matter."""
        ...

    def mask(self, value: V, keep: NDArray[np.bool_], fill: float) -> V:
        """`fill` (0 or -inf) where `keep`, broadcast to the value, is False."""
        ...

    def concat(self, values: Sequence[V], axis: int) -> V: ...
