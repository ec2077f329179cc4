"""Products of a vector with a matrix become matrix products of one row.

The matrix unit takes tiles only, and it is faster than multiplying and summing in
registers even if it works for one row of sixteen.  So a vector gets a dim of extent 1,
which is widened like any other short dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_dsl.backends.triton.pieces import SMALLEST_DOT
from mirage_dsl.backends.triton.plan import Surroundings
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.maps import piece_extent
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import Axis, Dim, TensorType


def with_rows(
    block: BlockGraph, around: Surroundings
) -> tuple[BlockGraph, Surroundings]:
    """The block with a dim of one row where a product needs it."""
    types = block_types(block, around.types)
    makers = {n.result: n for n in block.nodes if not isinstance(n, Store)}
    sources: set[str] = set()
    for node in block.nodes:
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
            sources |= _vectors(node, types, makers, block, around)
    if not sources:
        return block, around
    row = Dim("row")
    while row.name in around.extents:
        row = Dim(f"{row.name}_")
    outer = {
        n: replace(t, axes=_with_row(t.axes, row)) if n in sources else t
        for n, t in around.types.items()
    }
    nodes = tuple(
        replace(n, axes=_with_row(n.axes, row))
        if isinstance(n, Load) and n.source in sources
        else n
        for n in block.nodes
    )
    extents = {**around.extents, row.name: 1}
    changed = replace(around, types=outer, extents=extents)
    return replace(block, nodes=nodes), changed


def _with_row(axes: tuple[Axis, ...], row: Dim) -> tuple[Axis, ...]:
    """The row takes the place of an axis of extent 1; there must be one."""
    at = axes.index(())
    return (*axes[:at], (row,), *axes[at + 1 :])


def _vectors(
    node: Apply,
    types: Mapping[str, TensorType],
    makers: Mapping[str, BlockNode],
    block: BlockGraph,
    around: Surroundings,
) -> set[str]:
    """The tensors to which a row is added for one product."""
    if len(node.values) != 2:
        return set()
    alone = [
        [d for d in types[v].dims if d not in types[node.values[1 - i]].dims]
        for i, v in enumerate(node.values)
    ]
    if bool(alone[0]) == bool(alone[1]):
        return set()
    vector, matrix = node.values if alone[1] else reversed(node.values)
    over = [d for d in types[vector].dims if d.name in node.over]
    for group in (over, alone[0] or alone[1]):
        if _lanes(group, block, around) < SMALLEST_DOT:
            return set()
    found = _sources(vector, makers) - _sources(matrix, makers)
    summed = {d.name for d in over}
    return {
        s
        for s in found
        if () in around.types[s].axes
        and around.has_layout(s)
        and summed & set(around.types[s].names)
    }


def _lanes(dims: list[Dim], block: BlockGraph, around: Surroundings) -> int:
    """Elements of a tile of these dims; extents of which nothing is known are one."""
    known = {n: e or around.most.get(n, 1) for n, e in around.extents.items()}
    lanes = 1
    for dim in dims:
        lanes *= piece_extent(dim, block, known)
    return lanes


def _sources(value: str, makers: Mapping[str, BlockNode]) -> set[str]:
    """The tensors from which a value is computed."""
    node = makers[value]
    match node:
        case Load():
            return {node.source}
        case Apply():
            return {s for v in node.values for s in _sources(v, makers)}
        case Accumulate() | RunningMax() | Store():
            return _sources(node.operand, makers)
