"""μGraph → one readable Python module: Triton kernels and a function that runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from mirage_dsl.backends.triton.lowering.block import emit_block, functions_called
from mirage_dsl.backends.triton.lowering.launcher import Launcher
from mirage_dsl.backends.triton.lowering.library import HELPERS
from mirage_dsl.backends.triton.lowering.names import identifier
from mirage_dsl.backends.triton.lowering.params import check_rank
from mirage_dsl.backends.triton.lowering.plan import (
    KernelPlan,
    ModulePlan,
    Surroundings,
)
from mirage_dsl.backends.triton.lowering.prefetch import FUNCTION
from mirage_dsl.core.hardware import FIRST_EARLY
from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.analysis.layouts import built
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.tile.lower import launches, outer_of
from mirage_dsl.tile.sizes import Outer

EARLY = f"""
# Whether kernels may start before those ahead of them have ended: from \
{FIRST_EARLY.name} on.
EARLY = tl.constexpr(
    not triton.knobs.runtime.interpret
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= {FIRST_EARLY.capability}
)
"""
"""What a module with kernels that start early defines."""
FAR = 2**31
"""Offsets from here on do not fit into 32 bits."""


def emit(graph: KernelGraph) -> str:
    """The Python source that computes a μGraph.

    The module defines one `@triton.jit` function per block graph, and
    `run(*tensors)`, which returns the list of outputs.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    return plan(graph).source


def plan(
    graph: KernelGraph,
    *,
    wide: bool = False,
    pointers: bool = False,
    out: bool = False,
    dense: Collection[str] = (),
    most: Mapping[str, int] | None = None,
) -> ModulePlan:
    """The emitted module with its parts.

    Args:
        graph: What to emit.
        wide: Use 64-bit offsets even where the extents do not call for them, as for
            inputs whose strides reach far.
        pointers: Use no tensor descriptors, as for inputs whose strides or addresses
            they cannot express.
        out: `run` takes tensors for the outputs too, of any strides.
        dense: Inputs and outputs that have no gaps between their elements: strides
            that follow from symbolic extents are computed and not compiled in.
        most: The largest extents of symbolic dims: blocks can hold these whole.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    outer = outer_of(graph, most=most, pointers=pointers)
    given = _given(graph, outer) if out else None
    around = Surroundings(
        outer.types,
        outer.extents,
        outer.most,
        packed=outer.packed - (given or {}).keys(),
        placed=outer.placed,
        inputs=outer.inputs,
        pointers=pointers,
        given=given,
        wide=wide or any(is_far(t, outer.extents) for t in outer.types.values()),
        dense=dense,
    )
    kernels = _kernels(graph, around)
    launcher = Launcher(graph, around, [k.name for k in kernels])
    run = launcher.write(kernels)
    lines = _head(graph, kernels)
    for kernel in kernels:
        lines += ["", "", *kernel.lines]
    for helper in sorted(launcher.helpers):
        lines += ["", *HELPERS[helper].rstrip("\n").split("\n")]
    lines += ["", "", *run]
    return ModulePlan(graph, "\n".join(lines) + "\n", tuple(kernels), around)


def _kernels(graph: KernelGraph, around: Surroundings) -> list[KernelPlan]:
    found: list[KernelPlan] = []
    for launch in launches(graph):
        check_rank(launch.block)
        name = f"{identifier(graph.name)}_kernel{len(found)}"
        kernel = emit_block(
            launch.block, name, around, announced=launch.announced, made=launch.made
        )
        found.append(kernel)
    return found


def _head(graph: KernelGraph, kernels: list[KernelPlan]) -> list[str]:
    lines = [
        f'"""{graph.name}: {len(kernels)} Triton kernel{"s" * (len(kernels) != 1)}."""',
        "",
        "import torch",
        "import triton",
        "import triton.language as tl",
    ]
    if any(k.schedule.pdl for k in kernels):
        lines.append(
            "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
        )
    if any(p.kind == "descriptor" for k in kernels for p in k.params):
        lines.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    if any(k.schedule.pdl for k in kernels):
        lines += ["", *EARLY.rstrip("\n").split("\n")]
    if any(k.prefetches for k in kernels):
        lines += ["", *FUNCTION.rstrip("\n").split("\n")]
    for text in functions_called(line for k in kernels for line in k.lines):
        lines += ["", *text.rstrip("\n").split("\n")]
    return lines


def _given(graph: KernelGraph, outer: Outer) -> dict[str, int]:
    """Values that can be made in the caller's tensors, with the number of the output.

    A value must lie in the caller's tensor as a view: its axes may be cut out of the
    output's, but not joined.
    """
    placed = outer.placed
    made = built(placed).union(*(b.results for b in graph.blocks)) - placed.keys()
    found: dict[str, int] = {}
    for at, item in enumerate(graph.returns):
        kind = outer.types[item.value]
        alike = kind.axes == item.type.axes or all(len(a) == 1 for a in kind.axes)
        if item.value in made and kind.dtype == item.type.dtype and alike:
            found.setdefault(item.value, at)
    return found


def is_far(kind: TensorType, extents: Mapping[str, int | None]) -> bool:
    """Whether a packed tensor has too many elements for 32 bits, by what is known."""
    sizes = [extents.get(n) for n in kind.names]
    known = [s for s in sizes if s is not None]
    return prod(known) >= FAR
