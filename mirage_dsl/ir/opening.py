"""A μGraph for any extents of some dims: symbolic, and split by every grid.

A kernel is compiled for the extents of dims that its blocks hold whole.  Where a block
treats the elements of such a dim alike, the grid can split it into tiles of its extent
instead, and the compiled kernel serves all extents.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    Split,
    Store,
    dims_of,
)
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.types import Axis


def opened(graph: KernelGraph, dims: Collection[str]) -> KernelGraph:
    """The same graph with symbolic extents of `dims` and of what follows from them.

    A block in which elements of such a dim meet, in a sum over it for one, still holds
    it whole.

    Args:
        graph: Its extents are those that its tiles are to be of.
        dims: Dims of its inputs.
    """
    given = {d.name for i in graph.inputs for d in dims_of(i.type.axes)}
    known = {n: None if n in dims else e for n, e in graph.extents if n in given}
    extents = {**graph.extent_of, **derived_extents(graph, known)}
    nodes = tuple(
        _split(n, graph, dims) if isinstance(n, BlockGraph) else n for n in graph.nodes
    )
    return replace(graph, nodes=nodes, extents=tuple(sorted(extents.items())))


def _split(block: BlockGraph, graph: KernelGraph, dims: Collection[str]) -> BlockGraph:
    """Split what of `dims` is whole in a block, where it can be."""
    named = {
        name
        for node in block.nodes
        if isinstance(node, Apply)
        for _, value in node.attrs
        for name in (value if isinstance(value, tuple) else (value,))
    }
    cut = {s.dim for s in (block.loop, *block.grid) if s is not None}
    stored = [{d.name for d in dims_of(s.axes)} for s in block.stores]
    alike = set(dims).intersection(*stored) - cut - named
    whole = sorted(n for n in alike if graph.extent_of[n] is not None)
    splits = [Split(name, graph.extent_of[name] or 1) for name in whole]
    return replace(
        block,
        grid=(*block.grid, *splits),
        nodes=tuple(_with_parts(n, whole) for n in block.nodes),
    )


def _with_parts(node: BlockNode, dims: Collection[str]) -> BlockNode:
    """Of `dims` the node loads or stores the part of the block's coordinate."""
    if not isinstance(node, Load | Store):
        return node
    axes: tuple[Axis, ...] = tuple(
        tuple(replace(d, grid=True) if d.name in dims else d for d in axis)
        for axis in node.axes
    )
    return replace(node, axes=axes)
