"""From a μGraph to the tile programs of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest

from mirage_dsl.ir.analysis.layouts import laid_out, places
from mirage_dsl.ir.analysis.waiting import behind_kernels, has_work_ahead
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops.definition import Kind
from mirage_dsl.tile.build import Announced, build
from mirage_dsl.tile.program import TileProgram
from mirage_dsl.tile.sizes import Outer, Unsized
from mirage_dsl.tile.suited import suited


def programs(
    graph: KernelGraph, *, sized: bool = True, most: Mapping[str, int] | None = None
) -> tuple[TileProgram, ...]:
    """The tile programs of a μGraph's graph-defined kernels, in launch order.

    Args:
        graph: The μGraph.
        sized: At the sizes of its dims and schedules; else numbers that depend on
            sizes stay formulas.
        most: The largest extents of symbolic dims: blocks can hold these whole.

    Raises:
        UnsupportedError: A tile program cannot express something of it.
    """
    outer, found = outer_of(graph, most=most), list[TileProgram]()
    for launch in launches(graph):
        given = suited(launch.block, outer)
        program = build(
            given,
            name=f"{graph.name}_kernel{len(found)}",
            sizes=None if sized else Unsized(given.pieces),
            announced=launch.announced,
            made=launch.made,
        )
        found.append(program)
    return tuple(found)


def outer_of(
    graph: KernelGraph,
    *,
    most: Mapping[str, int] | None = None,
    pointers: bool = False,
) -> Outer:
    """What the tiles of a μGraph's blocks depend on."""
    extents = derived_extents(graph, graph.extent_of)
    most = {n: e for n, e in (most or {}).items() if extents.get(n) is None}
    types = laid_out(graph, kernel_types(graph), {**extents, **most})
    placed = places(graph, types, extents)
    return Outer(
        types,
        extents,
        most,
        packed=_packed(graph) - placed.keys(),
        placed=placed,
        inputs=frozenset(i.name for i in graph.inputs),
        pointers=pointers,
    )


def _packed(graph: KernelGraph) -> frozenset[str]:
    """Tensors that the kernels themselves make contiguous."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            found.update(node.results)
        elif node.op.kind is not Kind.VIEW:
            found.add(node.result)
    return frozenset(found)


@dataclass(frozen=True)
class LaunchedBlock:
    """A graph-defined kernel among the others of its μGraph.

    Attributes:
        block: The kernel.
        announced: When the kernel behind it may start.
        made: What kernels before it made; None where there is none ahead.
    """

    block: BlockGraph
    announced: Announced
    made: AbstractSet[str] | None


def launches(graph: KernelGraph) -> Iterator[LaunchedBlock]:
    """The graph-defined kernels of a μGraph in launch order."""
    behind = dict(behind_kernels(graph))
    for node, following in zip_longest(graph.nodes, graph.nodes[1:]):
        if isinstance(node, BlockGraph):
            yield LaunchedBlock(node, _announced(following, behind), behind.get(node))


def _announced(
    following: Apply | BlockGraph | None, behind: Mapping[BlockGraph, AbstractSet[str]]
) -> Announced:
    """When the next kernel may start: at once, if it has work before it waits.

    Otherwise not before this one's loop is over: blocks that only wait hold resources.
    """
    if not isinstance(following, BlockGraph) or not following.schedule.pdl:
        return ""
    return "start" if has_work_ahead(following, behind[following]) else "loop"
