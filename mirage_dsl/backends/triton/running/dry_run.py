"""What a call will do, found out by doing it once on tensors without data.

The emitted `run` is executed on tensors of the right shapes and strides that have no
memory (PyTorch's `meta` device), and its kernels only note what they are given.  That
tells of every value where it lies, views included, and of every kernel its grid, its
strides and its sizes.

Library calls are left out: their results are new tensors in row-major order.  For the
first one without data PyTorch would import its symbolic shapes and more, which takes a
second, and four where its files are not compiled.
"""

# PyTorch's and Triton's inner functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.triton.lowering.launcher import Launcher
from mirage_dsl.backends.triton.lowering.plan import ModulePlan
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ops.definition import Kind

if TYPE_CHECKING:
    import torch


@dataclass
class NotedKernel:
    """Stands for a kernel: notes the grid and the arguments of its one launch."""

    grid: tuple[int, ...] = ()
    arguments: tuple[Any, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grid = grid
        return self._note

    def _note(self, *arguments: Any, **_options: Any) -> None:
        self.arguments = arguments


@dataclass
class DryRun:
    """What became of one call.

    Attributes:
        values: The tensor of each value of the graph; it has no data.
        kernels: The launches, in order.
    """

    values: dict[str, torch.Tensor]
    kernels: list[NotedKernel]
    _roots: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        for name, tensor in self.values.items():
            self._roots.setdefault(_memory(tensor), name)

    def root(self, tensor: torch.Tensor) -> str:
        """The value in whose memory a tensor lies: the first one that lies there."""
        return self._roots[_memory(tensor)]

    def offset(self, tensor: torch.Tensor) -> int:
        """Bytes from the start of that value to the tensor's."""
        first = self.values[self.root(tensor)]
        ahead = int(tensor.storage_offset()) * tensor.element_size()
        return ahead - int(first.storage_offset()) * first.element_size()

    def is_own(self, value: str) -> bool:
        """Whether a value has memory of its own, and is no view of another."""
        return self.root(self.values[value]) == value


def out_name(at: int) -> str:
    """The name, among those of values, of the caller's tensor for an output."""
    return f"out {at}"


class _Script(Launcher):
    """Writes `run` so that it returns its variables, without library calls."""

    def lines(self, plan: ModulePlan) -> list[str]:
        return [*self.write(plan.kernels)[:-1], "    return locals()"]

    def _library(self, node: Apply) -> None:
        made = self._inner | self._built | self._flat_values.unmade
        if node.result in made or node.op.kind is Kind.VIEW:
            super()._library(node)
            return
        text = self._allocation(self._types[node.result])
        self._variables[node.result] = self._writer.assign(
            self._names.fresh(node.result), text
        )

    @property
    def variables(self) -> dict[str, str]:
        """The variable of each value, those of the caller first."""
        outs = {out_name(at): name for at, name in enumerate(self._outs)}
        return outs | self._variables


def run_dry(plan: ModulePlan, tensors: Sequence[torch.Tensor]) -> DryRun:
    """Do what a call with tensors like these would, without data.

    Args:
        plan: The module.
        tensors: Inputs; behind them those for the outputs, if the module takes such.
    """
    import torch
    import triton

    script = _Script(plan.graph, plan.around, [k.name for k in plan.kernels])
    lines = script.lines(plan)
    kernels = {k.name: NotedKernel() for k in plan.kernels}
    early = triton.language.constexpr(False)
    scope: dict[str, Any] = {"torch": torch, "triton": triton, "EARLY": early}
    scope.update(kernels)
    if any(p.kind == "descriptor" for k in plan.kernels for p in k.params):
        from triton.tools.tensor_descriptor import TensorDescriptor

        scope["TensorDescriptor"] = TensorDescriptor
    exec("\n".join(lines), scope)
    inputs = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        for t in tensors
    ]
    found = scope["run"](*inputs)
    values = {name: found[v] for name, v in script.variables.items()}
    return DryRun(values, list(kernels.values()))


def _memory(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata
