"""The user's lines in a stored μGraph.

A `.mu` text does not say which line of the user's Python a node comes from.  A stored
result notes instead which operator of the program had that line, so that emitted code
shows the line where it is now, not where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.ir.graph import Apply, BlockGraph, BlockNode, KernelGraph, KernelNode

Lines = dict[str, int]
"""Name of a value to the position of an operator in the program."""


def lines_of(mugraph: KernelGraph, program: KernelGraph) -> Lines:
    """Which operator of the program has the line of each operator of a μGraph."""
    places: dict[SourceLocation, int] = {}
    for at, node in enumerate(program.nodes):
        if isinstance(node, Apply) and node.location is not None:
            places.setdefault(node.location, at)
    found: Lines = {}

    def note(name: str, node: Apply) -> Apply:
        if node.location in places:
            found[name] = places[node.location]
        return node

    _map_operators(mugraph, note)
    return found


def with_lines(
    mugraph: KernelGraph, program: KernelGraph, lines: Mapping[str, int]
) -> KernelGraph:
    """The μGraph with the program's lines; `lines` as `lines_of` gave them."""

    def place(name: str, node: Apply) -> Apply:
        at = lines.get(name, len(program.nodes))
        source = program.nodes[at] if at < len(program.nodes) else None
        if not isinstance(source, Apply):
            return node
        return replace(node, location=source.location)

    return _map_operators(mugraph, place)


def _map_operators(
    graph: KernelGraph, function: Callable[[str, Apply], Apply]
) -> KernelGraph:
    """Replace every operator; its name starts with its kernel's position in blocks."""
    nodes: list[KernelNode] = []
    for at, node in enumerate(graph.nodes):
        match node:
            case Apply():
                nodes.append(function(node.result, node))
            case BlockGraph():
                inner: list[BlockNode] = [
                    function(f"{at}.{n.result}", n) if isinstance(n, Apply) else n
                    for n in node.nodes
                ]
                nodes.append(replace(node, nodes=tuple(inner)))
    return replace(graph, nodes=tuple(nodes))
