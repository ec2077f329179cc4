"""Mistakes about loops: work done in each iteration that belongs after the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ops.definition import Kind

Nodes = tuple[BlockNode, ...]


def loop_mistakes(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """What was changed, and the block's nodes, for mistakes of several nodes."""
    yield from _moved_into_loop(block)
    yield from _rescaled_by_others(block)
    yield from _maxima_of_a_tile(block)


def _moved_into_loop(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """f(sum of a, b) computed as the sum of f(a, b): norms, gates, biases, quotients.

    Where `f` is linear in the accumulated operands this is right, elsewhere wrong.
    """
    sums = {
        n.result: n
        for n in block.nodes
        if isinstance(n, Accumulate) and n.kind == "sum"
    }
    stages = stages_of(block)
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Apply) or node.op.kind is Kind.VIEW:
            continue
        summed = [v for v in node.values if v in sums]
        rest = [v for v in node.values if v not in sums]
        if not summed or any(stages[v] != "before" for v in rest):
            continue
        tile = f"{node.result}_tile"
        inner = replace(node, result=tile, operands=_inside(node, sums))
        rescale = sums[summed[0]].rescale
        outer = Accumulate(node.result, tile, rescale=rescale)
        nodes = (*block.nodes[:i], inner, outer, *block.nodes[i + 1 :])
        yield f"{node.op.name} of {node.result} in every iteration", _alive(nodes)


def _inside(node: Apply, sums: dict[str, Accumulate]) -> tuple[Operand, ...]:
    return tuple(
        sums[o].operand if isinstance(o, str) and o in sums else o
        for o in node.operands
    )


def _rescaled_by_others(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """A rescaling where there is none, by each running maximum."""
    maxima = [n.result for n in block.nodes if isinstance(n, RunningMax)]
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Accumulate) or node.kind != "sum":
            continue
        for largest in maxima:
            if largest != node.rescale:
                changed = replace(node, rescale=largest)
                nodes = (*block.nodes[:i], changed, *block.nodes[i + 1 :])
                yield f"{node.result} rescaled by {largest}", nodes


def _maxima_of_a_tile(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """Exponents shifted by the maximum of their own tile, not of all so far."""
    running = {n.result: n.operand for n in block.nodes if isinstance(n, RunningMax)}
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Apply):
            continue
        for at, operand in enumerate(node.operands):
            if isinstance(operand, str) and operand in running:
                kept = running[operand]
                operands = (*node.operands[:at], kept, *node.operands[at + 1 :])
                changed = replace(node, operands=operands)
                nodes = (*block.nodes[:i], changed, *block.nodes[i + 1 :])
                yield f"{kept} for {operand} in {node.result}", nodes


def _alive(nodes: Nodes) -> Nodes:
    """The nodes that stores depend on."""
    used: set[str] = set()
    kept: list[BlockNode] = []
    for node in reversed(nodes):
        if isinstance(node, Store) or node.result in used:
            kept.append(node)
            used.update(_operands(node))
    return tuple(reversed(kept))


def _operands(node: BlockNode) -> tuple[str, ...]:
    match node:
        case Load():
            return ()
        case Apply():
            return node.values
        case Accumulate():
            return (node.operand, *([node.rescale] if node.rescale else []))
        case RunningMax() | Store():
            return (node.operand,)
