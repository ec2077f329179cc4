"""Inputs that hold indices: how far they may go without leaving what is gathered."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_dsl.ir.graph import Apply, BlockNode, KernelGraph, Load, Store
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of
from mirage_dsl.ops.definition import Kind


def index_limits(graph: KernelGraph) -> dict[str, int]:
    """By input of integers, the smallest extent that an index made of it runs over.

    An index that is an input is below it; what is computed of inputs may still lie
    outside.  Extents have to be known.
    """
    types = kernel_types(graph)
    reach: dict[tuple[int, str], set[str]] = {
        (0, i.name): {i.name} for i in graph.inputs
    }
    limits: dict[str, int] = {}
    for level, node in _levels(graph):
        source, made = level, level
        read = operands_of(node)
        if isinstance(node, Load):
            source, read = 0, (node.source,)
        elif isinstance(node, Store):
            made = 0
        found = [reach.get((source, value), set[str]()) for value in read]
        reach[made, node.result] = set[str]().union(*found)
        if not isinstance(node, Apply):
            continue
        if node.op.indexed:
            (extent,) = node.numbers["size"]
        elif node.op.kind is Kind.GATHER:
            extent = graph.extent_of[str(node.attr("dim"))]
        else:
            continue
        for name in found[1]:
            if types[name].dtype.is_integer and extent is not None:
                limits[name] = min(limits.get(name, extent), extent)
    return limits


def _levels(graph: KernelGraph) -> Iterator[tuple[int, BlockNode]]:
    """All nodes with the number of their level: 0, or one for each block."""
    for number, node in enumerate(graph.nodes, 1):
        if isinstance(node, Apply):
            yield 0, node
        else:
            yield from ((number, inner) for inner in node.nodes)


__all__ = ["index_limits"]
