"""Which extents a `.mu` text states, and which follow from the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import derived_extents


def stated_extents(graph: KernelGraph) -> dict[str, int | None]:
    """The extents from which `complete_extents` restores all of `graph.extents`.

    Left out are those that nodes make: of slices, renamings and parts of a split.
    """
    own = {name for i in graph.inputs for name in i.type.names}
    made = derived_extents(graph, {}).keys() - own
    stated = {n: e for n, e in graph.extents if n not in made}
    if complete_extents(graph, stated).extents == graph.extents:
        return stated
    return dict(graph.extents)


def complete_extents(
    graph: KernelGraph, stated: Mapping[str, int | None]
) -> KernelGraph:
    """The graph with the stated extents and those that follow from them."""
    derived = derived_extents(graph, stated)
    return replace(graph, extents=tuple(sorted({**derived, **stated}.items())))
