"""Runs a kernel graph on the CPU by the meaning of the IR: NumPy, or torch tensors.

It is what a decorated function does with arrays that are not on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from mirage_dsl.backends.base import Plain, Report, check_tensors
from mirage_dsl.core.errors import DTypeError
from mirage_dsl.ir.evaluate.floats import evaluate_numpy, numpy_dtype
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    import torch


class Reference:
    """The evaluator: slow, and right by definition."""

    name = "reference"
    packages = ("numpy",)
    tuned = False

    def takes(self, device: str) -> bool:  # noqa: ARG002
        """All tensors: they are moved to the CPU and back."""
        return True

    def emit(self, graph: KernelGraph) -> str:
        """The text of the μGraph, which is evaluated as it stands."""
        return str(graph)

    def compile(
        self,
        graph: KernelGraph,
        device: str,  # noqa: ARG002
        *,
        most: Mapping[str, int] | None = None,  # noqa: ARG002
    ) -> Evaluated:
        """What evaluates it at whatever extents the tensors have."""
        return Evaluated(graph)

    def report(
        self,
        graph: KernelGraph,
        target: str | None = None,  # noqa: ARG002
    ) -> list[Report]:
        """Nothing is compiled, so nothing is known."""
        names = [f"{graph.name}_kernel{i}" for i in range(len(graph.blocks))]
        return [Report(name, None, None, None) for name in names]

    def load(self, device: str | None = None) -> None:
        """Nothing is loaded late."""


@dataclass(frozen=True)
class Evaluated(Plain):
    """A μGraph as something to call."""

    graph: KernelGraph

    @property
    def source(self) -> str:
        """The text of the μGraph."""
        return str(self.graph)

    def __call__(
        self, *tensors: torch.Tensor, out: Sequence[torch.Tensor] = ()
    ) -> list[torch.Tensor]:
        """The outputs, as new tensors or in those given."""
        check_tensors(self.graph, tensors, out)
        found = run_reference(self.graph, *tensors)
        for result, target in zip(found, out, strict=bool(out)):
            target.copy_(result)
        return list(out) or found


def run_reference(graph: KernelGraph, *operands: Any) -> list[Any]:
    """The outputs of a program or μGraph, computed in float64 and rounded at the end.

    Args:
        graph: What to run.
        *operands: One per input, all NumPy arrays or all torch CPU tensors.

    Returns:
        One array or tensor per output, of its type's dtype.

    Raises:
        DTypeError: A mixture of arrays and tensors.
        ShapeError: Operands that do not fit the input types.
    """
    kinds = {is_tensor(o) for o in operands}
    if len(kinds) > 1:
        raise DTypeError(
            f"{graph.name}: found NumPy arrays and torch tensors; pass one kind"
        )
    if kinds == {True}:
        return _run_on_tensors(graph, operands)
    found = evaluate_numpy(graph, *operands)
    with np.errstate(over="ignore"):
        return [
            array.astype(numpy_dtype(item.type.dtype))
            for array, item in zip(found, graph.returns, strict=True)
        ]


def _run_on_tensors(graph: KernelGraph, tensors: tuple[Any, ...]) -> list[torch.Tensor]:
    import torch

    arrays = [t.detach().to("cpu", torch.float64).numpy() for t in tensors]
    found = evaluate_numpy(graph, *arrays)
    return [
        torch.from_numpy(array).to(  # pyright: ignore[reportUnknownMemberType]
            tensors[0].device, getattr(torch, item.type.dtype.long_name)
        )
        for array, item in zip(found, graph.returns, strict=True)
    ]


def is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a torch tensor, without importing torch."""
    kinds = type(value).__mro__
    return any(k.__module__ == "torch" and k.__name__ == "Tensor" for k in kinds)


__all__ = ["is_tensor", "run_reference"]
