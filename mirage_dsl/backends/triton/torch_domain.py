"""The evaluator over float64 tensors, so that a GPU can tell what is right.

Products of thousands of rows take seconds on a CPU.  Operators are those of `library`,
which tests hold to the table's semantics; nothing is rounded.
"""

# Emitted expressions have no types, and torch's functions only in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirage_dsl.backends.triton.library import HELPERS
from mirage_dsl.ir.evaluate import evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.types import DType, Scalar


@dataclass(frozen=True)
class TorchDomain:
    """Tensors of float64 on one device."""

    device: str

    def shape(self, value: Tensor) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(value.shape)

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Tensor:
        """The number at the given extents."""
        return self._full((), number.at(extents))

    def elementwise(self, op: Operator, operands: Sequence[Tensor]) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, tuple(operands)).double()

    def reduce(self, op: Operator, value: Tensor, axes: tuple[int, ...]) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, (value,), axes)

    def contract(self, op: Operator, a: Tensor, b: Tensor) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, (a, b))

    def running_max(self, value: Tensor, axis: int) -> Tensor:
        """Cumulative maximum, with the lowest finite number for -inf."""
        lowest = torch.finfo(torch.float64).min
        return torch.cummax(value, axis).values.clamp(min=lowest)

    def cast(self, value: Tensor, dtype: DType) -> Tensor:  # noqa: ARG002
        """The value as it is."""
        return value

    def transpose(self, value: Tensor, order: tuple[int, ...]) -> Tensor:
        """Axes in another order."""
        return value.permute(order)

    def reshape(self, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Axes merged or split."""
        return value.reshape(shape)

    def take(self, value: Tensor, axis: int, start: int, stop: int) -> Tensor:
        """A range along an axis."""
        return value.narrow(axis, start, stop - start)

    def pad(self, value: Tensor, axis: int, count: int) -> Tensor:
        """NaN, so that a mask forgotten anywhere shows in the result."""
        shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
        return torch.cat([value, self._full(shape, float("nan"))], axis)

    def mask(self, value: Tensor, keep: NDArray[np.bool_], fill: float) -> Tensor:
        """`fill` where `keep` is False."""
        kept = torch.from_numpy(keep).to(self.device)
        return torch.where(kept, value, self._full((), fill))

    def concat(self, values: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors one after the other."""
        return torch.cat(list(values), axis)

    def _full(self, shape: tuple[int, ...], number: float) -> Tensor:
        return torch.full(shape, number, dtype=torch.float64, device=self.device)


def evaluate_torch(graph: KernelGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a program or μGraph in float64, on the device of its inputs."""
    domain = TorchDomain(str(tensors[0].device) if tensors else "cpu")
    return evaluate(graph, [t.double() for t in tensors], domain)


def _evaluated(
    name: str, operands: tuple[Tensor, ...], axes: tuple[int, ...] = ()
) -> Tensor:
    names = {f"x{i}": x for i, x in enumerate(operands)}
    return eval(_code(name, len(operands), axes), {**_scope(), **names})


@cache
def _code(name: str, count: int, axes: tuple[int, ...]) -> CodeType:
    operands = [f"x{i}" for i in range(count)]
    text = OPERATORS[name].torch.format(*operands, axes=axes, dtype="torch.float64")
    return compile(text, f"<{name}>", "eval")


@cache
def _scope() -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch}
    for helper in HELPERS.values():
        exec(helper, scope)
    return scope


__all__ = ["TorchDomain", "evaluate_torch"]
