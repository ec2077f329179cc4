"""Inputs that hold indices: how far they may go without leaving what is gathered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirage_dsl.core.types import Scalar, scalar
from mirage_dsl.ir.graph import Apply, BlockNode, KernelGraph, Load, Store
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import OPERATORS, WHERE

LESS = OPERATORS["less"]


def index_limits(graph: KernelGraph) -> dict[str, range]:
    """By input of integers, what an index made of it may be, of the smallest extent.

    An index that is an input is within it; what is computed of inputs may still lie
    outside.  Negative ones count from the end, unless a choice puts others in their
    place.  Extents have to be known.
    """
    types = kernel_types(graph)
    reach: dict[tuple[int, str], set[str]] = {
        (0, i.name): {i.name} for i in graph.inputs
    }
    limits: dict[str, range] = {}
    made_by: dict[tuple[int, str], Apply] = {}
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
        made_by[level, node.result] = node
        from_end = True
        if node.op.indexed:
            (extent,) = node.numbers["size"]
        elif node.op.kind is Kind.GATHER:
            extent = graph.extent_of[str(node.attr("dim"))]
            from_end = not _replaces_negative(level, node.values[1], made_by)
        else:
            continue
        for name in found[1]:
            if types[name].dtype.is_integer and extent is not None:
                known = limits.get(name, range(-extent, extent))
                least = max(known.start, -extent if from_end else 0)
                limits[name] = range(least, min(known.stop, extent))
    return limits


def _replaces_negative(
    level: int, index: str, made_by: Mapping[tuple[int, str], Apply]
) -> bool:
    """Whether an index is a number wherever what it is made of is below 0."""
    choice = made_by.get((level, index))
    if choice is None or choice.op is not WHERE:
        return False
    holds, number, value = choice.operands
    test = made_by.get((level, str(holds)))
    below = test is not None and test.op is LESS and test.operands == (value, scalar(0))
    return below and isinstance(number, Scalar)


def _levels(graph: KernelGraph) -> Iterator[tuple[int, BlockNode]]:
    """All nodes with the number of their level: 0, or one for each block."""
    for number, node in enumerate(graph.nodes, 1):
        if isinstance(node, Apply):
            yield 0, node
        else:
            yield from ((number, inner) for inner in node.nodes)


__all__ = ["index_limits"]
