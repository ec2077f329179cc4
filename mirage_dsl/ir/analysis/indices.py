"""Inputs that hold indices: how far they may go without leaving what is gathered."""

from __future__ import annotations

from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.definition import Kind


def index_limits(graph: KernelGraph) -> dict[str, int]:
    """By input of integers, the smallest extent that an index made of it runs over.

    An index that is an input is below it; what is computed of inputs may still lie
    outside.  Extents have to be known.
    """
    types = kernel_types(graph)
    reach: dict[str, set[str]] = {i.name: {i.name} for i in graph.inputs}
    reach.update((i.name, set()) for i in graph.indices)
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if not isinstance(node, Apply):
            read = set[str]().union(*(reach[s] for s in node.sources))
            reach.update(dict.fromkeys(node.results, read))
            continue
        reach[node.result] = set[str]().union(*(reach[v] for v in node.values))
        if node.op.kind is not Kind.GATHER:
            continue
        extent = graph.extent_of[str(node.attr("dim"))]
        for name in reach[node.values[1]]:
            if types[name].dtype.is_integer and extent is not None:
                limits[name] = min(limits.get(name, extent), extent)
    return limits


__all__ = ["index_limits"]
