"""Residues as a domain of the evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ops.definition import Operator
from mirage_dsl.types import DType, Scalar
from mirage_dsl.verify.algebra import ResidueAlgebra
from mirage_dsl.verify.residues import MASKED, Residue, align, without_zeros


class ResidueDomain:
    """`Domain` over residues: operators by their rows' field semantics.

    Shapes and axes are those without the trial axis.
    """

    def __init__(self, algebra: ResidueAlgebra) -> None:
        self.algebra = algebra

    def shape(self, value: Residue) -> tuple[int, ...]:
        """The shape of one trial's array."""
        return value.top.shape[1:]

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Residue:
        """A rank-0 constant."""
        return self.algebra.constant(number, extents)

    def elementwise(self, op: Operator, operands: Sequence[Residue]) -> Residue:
        """The row's field semantics."""
        return op.field(self.algebra, *align(*operands))

    def reduce(self, op: Operator, value: Residue, axes: tuple[int, ...]) -> Residue:
        """The row's field semantics."""
        return op.field(self.algebra, value, axes)

    def contract(self, op: Operator, a: Residue, b: Residue) -> Residue:
        """The row's field semantics."""
        return op.field(self.algebra, a, b)

    def running_max(
        self,
        value: Residue,
        axis: int,  # noqa: ARG002
    ) -> Residue:
        """Fresh random numbers: no output may depend on them."""
        return self.algebra.shift(value, ())

    def cast(self, value: Residue, dtype: DType) -> Residue:  # noqa: ARG002
        """The value itself: fields do not round."""
        return value

    def transpose(self, value: Residue, order: tuple[int, ...]) -> Residue:
        """Axes in another order."""
        moved = (0, *(axis + 1 for axis in order))
        return value.each(lambda a: a.transpose(moved))

    def reshape(self, value: Residue, shape: tuple[int, ...]) -> Residue:
        """Axes merged or split."""
        return value.each(lambda a: a.reshape(a.shape[:1] + shape))

    def take(self, value: Residue, axis: int, start: int, stop: int) -> Residue:
        """A range along an axis."""
        place = (slice(None),) * (axis + 1) + (slice(start, stop),)
        return value.each(lambda a: a[place])

    def pad(self, value: Residue, axis: int, count: int) -> Residue:
        """Random elements, so that a mask forgotten anywhere shows."""
        shape = self.shape(value)
        extra = self.algebra.uniform((*shape[:axis], count, *shape[axis + 1 :]))
        kept = tuple(
            None if own is None else new
            for own, new in zip(value.parts, extra.parts, strict=True)
        )
        return self.algebra.concat(axis, value, Residue(kept))

    def padded(self, value: Residue, inside: NDArray[np.bool_]) -> Residue:
        """Random elements where `inside`, broadcast to the value, is False."""
        noise = self.algebra.uniform(self.shape(value))
        parts = tuple(
            None if a is None or b is None else np.where(inside, a, b)
            for a, b in zip(value.parts, noise.parts, strict=True)
        )
        flags = None if value.flags is None else np.where(inside, value.flags, 0)
        return Residue(parts, flags)

    def mask(self, value: Residue, keep: NDArray[np.bool_], fill: float) -> Residue:
        """`fill`, 0 or minus infinity, where `keep` is False."""
        parts = tuple(None if a is None else np.where(keep, a, 0) for a in value.parts)
        if fill == 0 and value.flags is None:
            return Residue(parts)
        flag = np.uint16(0 if fill == 0 else MASKED)
        flags = np.where(keep, value.all_flags(), flag)
        return Residue(parts, without_zeros(flags))

    def concat(self, values: Sequence[Residue], axis: int) -> Residue:
        """Arrays one after the other."""
        return self.algebra.concat(axis, *values)
