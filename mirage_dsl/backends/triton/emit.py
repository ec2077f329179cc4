"""μGraph → one readable Python module: Triton kernels and a function that runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from itertools import zip_longest
from math import prod

from mirage_dsl.backends.triton.block import Announced, emit_block
from mirage_dsl.backends.triton.launcher import Launcher
from mirage_dsl.backends.triton.library import HELPERS
from mirage_dsl.backends.triton.names import identifier
from mirage_dsl.backends.triton.params import check_rank
from mirage_dsl.backends.triton.plan import KernelPlan, ModulePlan, Surroundings
from mirage_dsl.backends.triton.prefetch import FUNCTION
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.layouts import laid_out
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.placing import Place, built, places
from mirage_dsl.ir.waiting import behind_kernels, has_work_ahead
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import TensorType

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
    extents = derived_extents(graph, graph.extent_of)
    most = {n: e for n, e in (most or {}).items() if extents.get(n) is None}
    types = laid_out(graph, kernel_types(graph), {**extents, **most})
    placed = places(graph, types, extents)
    given = _given(graph, types, placed) if out else None
    around = Surroundings(
        types,
        extents,
        most,
        packed=_packed(graph) - placed.keys() - (given or {}).keys(),
        placed=placed,
        given=given,
        inputs=frozenset(i.name for i in graph.inputs),
        wide=wide or any(is_far(t, extents) for t in types.values()),
        pointers=pointers,
        dense=dense,
    )
    kernels = _kernels(graph, around)
    launcher = Launcher(graph, around)
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
    behind = dict(behind_kernels(graph))
    for node, following in zip_longest(graph.nodes, graph.nodes[1:]):
        if isinstance(node, BlockGraph):
            check_rank(node)
            name = f"{identifier(graph.name)}_kernel{len(found)}"
            when, made = _announced(following, behind), behind.get(node)
            found.append(emit_block(node, name, around, announced=when, made=made))
    return found


def _announced(
    following: Apply | BlockGraph | None, behind: Mapping[BlockGraph, AbstractSet[str]]
) -> Announced:
    """When the next kernel may start: at once, if it has work before it waits.

    Otherwise not before this one's loop is over: blocks that only wait hold resources.
    """
    if not isinstance(following, BlockGraph) or not following.schedule.pdl:
        return ""
    return "start" if has_work_ahead(following, behind[following]) else "loop"


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
    if any(k.prefetches for k in kernels):
        lines += ["", *FUNCTION.rstrip("\n").split("\n")]
    return lines


def _packed(graph: KernelGraph) -> frozenset[str]:
    """Tensors that the emitted module itself makes contiguous."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            found.update(node.results)
        elif node.op.kind is not Kind.VIEW:
            found.add(node.result)
    return frozenset(found)


def _given(
    graph: KernelGraph, types: dict[str, TensorType], placed: dict[str, Place]
) -> dict[str, int]:
    """Values that can be made in the caller's tensors, with the number of the output.

    A value must lie in the caller's tensor as a view: its axes may be cut out of the
    output's, but not joined.
    """
    made = built(placed).union(*(b.results for b in graph.blocks)) - placed.keys()
    found: dict[str, int] = {}
    for at, item in enumerate(graph.returns):
        kind = types[item.value]
        alike = kind.axes == item.type.axes or all(len(a) == 1 for a in kind.axes)
        if item.value in made and kind.dtype == item.type.dtype and alike:
            found.setdefault(item.value, at)
    return found


def is_far(kind: TensorType, extents: Mapping[str, int | None]) -> bool:
    """Whether a packed tensor has too many elements for 32 bits, by what is known."""
    sizes = [extents.get(n) for n in kind.names]
    known = [s for s in sizes if s is not None]
    return prod(known) >= FAR
