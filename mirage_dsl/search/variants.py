"""The same μGraph at other sizes and schedules, for a tuner to time."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import Cost, estimate
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.sizes import choose_sizes

SCHEDULES_EACH = 3
"""Schedules for the same tiles: mostly numbers of stages, which decide occupancy."""


def variants(
    mugraph: KernelGraph,
    *,
    count: int = 10,
    hardware: Hardware = H100,
    constraints: Constraints | None = None,
) -> list[tuple[KernelGraph, Cost]]:
    """The best sizes of a μGraph by estimate, the best first; its own are among them.

    One block is varied at a time, the others stay as they are.  Sizes do not change
    what is computed, but a certificate names the sizes that it was given for.

    Args:
        mugraph: A sized μGraph of known extents.
        count: How many at most.
        hardware: The GPU to estimate for.
        constraints: Restrictions.

    Raises:
        SearchError: An extent is unknown.
    """
    limits = constraints or Constraints()
    found = {mugraph: estimate(mugraph, hardware)}
    for at, node in enumerate(mugraph.nodes):
        if not isinstance(node, BlockGraph):
            continue
        sized = choose_sizes(
            node,
            kernel_types(mugraph),
            derived_extents(mugraph, mugraph.extent_of),
            hardware=hardware,
            keep=count,
            allowed=limits.sizes(node),
            schedules_each=SCHEDULES_EACH,
        )
        for other in sized:
            graph = _with_node(mugraph, at, other.block)
            cost = estimate(graph, hardware)
            if cost.feasible:
                found[graph] = cost
    ranked = sorted(found.items(), key=lambda item: item[1].microseconds)
    kept = ranked[:count]
    own = (mugraph, found[mugraph])
    return kept if own in kept else [*kept[:-1], own]


def _with_node(graph: KernelGraph, at: int, block: BlockGraph) -> KernelGraph:
    nodes = (*graph.nodes[:at], block, *graph.nodes[at + 1 :])
    changed = replace(graph, nodes=nodes)
    return changed.with_extents(derived_extents(changed, changed.extent_of))
