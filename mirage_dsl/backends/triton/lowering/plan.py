"""What an emitted module contains, for those who launch, compile or screen it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from mirage_dsl.core.types import DType
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule
from mirage_dsl.tile.sizes import Outer

PARAM_KINDS = ("tensor", "descriptor", "size", "stride")
"""Kinds of parameters, in the order in which they stand."""


@dataclass(frozen=True)
class Surroundings(Outer):
    """What printing a block needs to know of its kernel graph.

    Attributes:
        given: The caller gives tensors for the outputs; the values that kernels store
            there at once, each with the number of its output.
        wide: Offsets need 64 bits.
        dense: Tensors of the caller that lie in memory as their types say, without
            gaps.
    """

    given: Mapping[str, int] | None
    wide: bool
    dense: Collection[str]


@dataclass(frozen=True)
class Param:
    """A parameter of an emitted kernel.

    Attributes:
        name: Its Python name.
        kind: `tensor`: a pointer.  `descriptor`: a tensor descriptor.  `size`: the
            extent of a symbolic dim, an integer at run time.  `stride`: a
            `tl.constexpr`.
        source: The kernel-level tensor, or the dim.
        axis: For a stride, which axis of `source`.
        dtype: For a tensor, its element format.
        value: For a stride, what it is when the tensor is row-major and all extents
            are known; screening without tensors takes it.
        dims: For a descriptor, the dims of its axes.
        box: For a descriptor, how many elements of each axis a load takes.
    """

    name: str
    kind: Literal["tensor", "descriptor", "size", "stride"]
    source: str
    axis: int = 0
    dtype: DType | None = None
    value: int | None = None
    dims: tuple[str, ...] = ()
    box: tuple[int, ...] = ()

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

    @property
    def prefetches(self) -> bool:
        """Whether it calls `prefetch`."""
        return any(line.lstrip().startswith("prefetch(") for line in self.lines)


@dataclass(frozen=True)
class ModulePlan:
    """An emitted module.

    Attributes:
        graph: What it computes.
        source: Python source; it defines the kernels and `run(*tensors) -> list`.
        kernels: Its Triton kernels, in launch order.
        around: Types and extents that it was written for.
    """

    graph: KernelGraph
    source: str
    kernels: tuple[KernelPlan, ...]
    around: Surroundings
