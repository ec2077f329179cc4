"""What an emitted module contains, for those who launch, compile or screen it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule
from mirage_dsl.types import DType


@dataclass(frozen=True)
class Param:
    """A parameter of an emitted kernel.

    Attributes:
        name: Its Python name.
        kind: `tensor`: a pointer.  `stride`: a `tl.constexpr`.  `size`: the extent of a
            symbolic dim, an integer at run time.
        source: The kernel-level tensor, or the dim.
        axis: For a stride, which axis of `source`.
        dtype: For a tensor, its element format.
        value: For a stride, what it is when the tensor is row-major and all extents
            are known; screening without tensors takes it.
    """

    name: str
    kind: Literal["tensor", "stride", "size"]
    source: str
    axis: int = 0
    dtype: DType | None = None
    value: int | None = None

    @property
    def declaration(self) -> str:
        """The parameter in the `def` line."""
        return f"{self.name}: tl.constexpr" if self.kind == "stride" else self.name


@dataclass(frozen=True)
class KernelPlan:
    """One emitted kernel.

    Attributes:
        name: Name of the `@triton.jit` function.
        block: The block graph that it computes.
        params: In order.
        grid: Number of programs along each axis, as Python expressions of sizes.
        lines: Its source.
    """

    name: str
    block: BlockGraph
    params: tuple[Param, ...]
    grid: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def schedule(self) -> Schedule:
        """How it is launched."""
        return self.block.schedule


@dataclass(frozen=True)
class ModulePlan:
    """An emitted module.

    Attributes:
        graph: What it computes.
        source: Python source; it defines the kernels and `run(*tensors) -> list`.
        kernels: Its Triton kernels, in launch order.
    """

    graph: KernelGraph
    source: str
    kernels: tuple[KernelPlan, ...]
