"""Rewrites of a block graph that suit Triton and change no result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from mirage_dsl.backends.triton.pieces import Pieces
from mirage_dsl.ir.block_view import with_operands
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ops.definition import Kind, Term
from mirage_dsl.types import Dim, TensorType

MOST_LANES = 32
"""Elements of a tile per thread up to which it is worth keeping a tile of sums."""
WARP = 32


def defer_sums(
    block: BlockGraph, types: Mapping[str, TensorType], pieces: Pieces
) -> BlockGraph:
    """Sum over the loop first, elementwise, and within the tile once, after it.

        t = sum x over(k)         s_tile = accumulate x
        s = accumulate t     →    s = sum s_tile over(k)

    A reduction in every iteration makes threads wait for each other every time.
    """
    users = _users(block)
    found: dict[str, Apply] = {}
    for node in block.nodes:
        if isinstance(node, Accumulate) and node.kind == "sum" and not node.rescale:
            summed = _reduction(block, node.operand)
            if summed is not None and users[summed.result] == [node]:
                lanes = prod(pieces[d].width for d in types[summed.values[0]].dims)
                if lanes <= MOST_LANES * WARP * block.schedule.num_warps:
                    found[node.result] = summed
    gone = {s.result for s in found.values()}
    nodes: list[BlockNode] = []
    for node in block.nodes:
        if isinstance(node, Accumulate) and node.result in found:
            summed = found[node.result]
            tile = _fresh(f"{node.result}_tile", types)
            nodes.append(replace(node, operand=summed.values[0], result=tile))
            nodes.append(replace(summed, operands=(tile,), result=node.result))
        elif isinstance(node, Store) or node.result not in gone:
            nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def _reduction(block: BlockGraph, value: str) -> Apply | None:
    """The sum that computes `value` in the loop's body."""
    for node in block.nodes:
        if isinstance(node, Apply) and node.result == value:
            body = stages_of(block)[value] == "body"
            is_sum = node.op.kind is Kind.REDUCTION and node.op.term is Term.SUM
            return node if body and is_sum else None
    return None


def widen_joins(block: BlockGraph, types: Mapping[str, TensorType]) -> BlockGraph:
    """Recompute on whole dims what is joined over the loop and then computed with.

        x = load a[m, k/loop]          x_all = load a[m, k]
        y = exp x                 →    j = exp x_all
        j = accumulate y concat

    Registers cannot be filled piece by piece.  The pieces were read a moment ago, so
    the second reading comes out of the cache.  A joined value that is only stored
    stays: it is stored piece by piece.
    """
    users = _users(block)
    joined = [
        n
        for n in block.nodes
        if isinstance(n, Accumulate)
        and n.kind == "concat"
        and not all(isinstance(u, Store) for u in users[n.result])
    ]
    for node in joined:
        copies = _Widened(block, types)
        value = copies.copy(node.operand)
        if value is None:
            continue
        at = block.nodes.index(node)
        names = {node.result: value}
        rest = [with_operands(n, names) for n in block.nodes[at + 1 :]]
        nodes = (*block.nodes[:at], *copies.nodes, *rest)
        block = replace(block, nodes=nodes)
    return block


class _Widened:
    """Copies of the nodes that compute a value, with the looped dim whole."""

    def __init__(self, block: BlockGraph, types: Mapping[str, TensorType]) -> None:
        self._makers: dict[str, BlockNode] = {
            n.result: n for n in block.nodes if not isinstance(n, Store)
        }
        self._stages = stages_of(block)
        self._types = dict(types)
        self._done: dict[str, str | None] = {}
        self.nodes: list[BlockNode] = []

    def copy(self, value: str) -> str | None:
        """The name of the copy of a value; None if it cannot be copied."""
        if self._stages[value] == "before":
            return value
        if value not in self._done:
            self._done[value] = self._copied(value)
        return self._done[value]

    def _copied(self, value: str) -> str | None:
        node = self._makers[value]
        name = _fresh(f"{value}_all", self._types)
        match node:
            case Load():
                axes = tuple(tuple(_unlooped(d) for d in axis) for axis in node.axes)
                self.nodes.append(replace(node, result=name, axes=axes))
            case Apply():
                copies = {v: self.copy(v) for v in node.values}
                found = {v: c for v, c in copies.items() if c is not None}
                if len(found) < len(copies):
                    return None
                copied = with_operands(node, found)
                assert isinstance(copied, Apply)
                self.nodes.append(replace(copied, result=name))
            case Accumulate() | RunningMax() | Store():
                return None
        self._types[name] = self._types[value]
        return name


def _unlooped(dim: Dim) -> Dim:
    return replace(dim, loop=False)


def _users(block: BlockGraph) -> dict[str, list[BlockNode]]:
    users: dict[str, list[BlockNode]] = {
        n.result: [] for n in block.nodes if not isinstance(n, Store)
    }
    for node in block.nodes:
        match node:
            case Load():
                pass
            case Apply():
                for value in dict.fromkeys(node.values):
                    users[value].append(node)
            case Accumulate() | RunningMax() | Store():
                users[node.operand].append(node)
    return users


def _fresh(wanted: str, taken: Mapping[str, TensorType]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}{count}"
    return name


__all__ = ["defer_sums", "widen_joins"]
