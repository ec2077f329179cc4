"""Structures that differ only in the dims that their grid splits: families.

What a value takes does not depend on which of its dims a grid splits, only on how long
the tiles are: a dim that is not split has one tile.  So a family is described and
priced once, as its *hull*: the structure with all splits of its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.ir.graph import BlockGraph, BlockNode, Load, Split, Store, dims_of


def on_grid(block: BlockGraph, grid: tuple[Split, ...]) -> BlockGraph:
    """The structure with another grid, whose dims its tensors have.

    Its bounds are gone: those of the new one are others.
    """
    names = {s.dim for s in grid}
    nodes = tuple(_node_on_grid(n, names) for n in block.nodes)
    return BlockGraph(grid, block.loop, nodes, block.schedule)


def _node_on_grid(node: BlockNode, names: AbstractSet[str]) -> BlockNode:
    match node:
        case Load():
            return Load(node.result, node.source, _axes_on_grid(node.axes, names))
        case Store():
            axes = _axes_on_grid(node.axes, names)
            return Store(node.result, node.operand, axes, node.dtype)
        case _:
            return node


def _axes_on_grid(axes: tuple[Axis, ...], names: AbstractSet[str]) -> tuple[Axis, ...]:
    return tuple(
        tuple(
            d if d.grid == (d.name in names) else Dim(d.name, not d.grid, d.loop)
            for d in axis
        )
        for axis in axes
    )


def families(blocks: Iterable[BlockGraph]) -> list[list[BlockGraph]]:
    """The families of some structures, in the order of their first members.

    Where dims share an axis of the grid, they do so in all members.
    """
    found: dict[tuple[object, ...], list[BlockGraph]] = {}
    for block in blocks:
        key = on_grid(block, ()) if _is_uniform(block) else block
        shared = tuple(axis for axis in block.axes if len(axis) > 1)
        found.setdefault((key, shared), []).append(block)
    return list(found.values())


def _is_uniform(block: BlockGraph) -> bool:
    """Whether a block sees its part only of every dim that its grid splits."""
    names = {s.dim for s in block.grid}
    nodes = (*block.loads, *block.stores)
    return all(d.grid == (d.name in names) for n in nodes for d in dims_of(n.axes))


def hull(family: Sequence[BlockGraph]) -> BlockGraph:
    """The structure of a family with the splits of all its members.

    It has all their bounds: one by a dim that is not split lets all iterations through.
    """
    if all(block is family[0] for block in family):
        return family[0]
    axes = dict.fromkeys(
        tuple(replace(split, tile=1) for split in axis)
        for block in family
        for axis in block.axes
    )
    whole = on_grid(family[0], tuple(split for axis in axes for split in axis))
    return replace(
        whole, bounds=tuple(dict.fromkeys(b for f in family for b in f.bounds))
    )
