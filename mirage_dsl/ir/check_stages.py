"""The rules of block graphs on stages: before the loop, body, after the loop."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_dsl.ir.block_view import BlockView, operands_of
from mirage_dsl.ir.diagnostics import Diagnostic
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockNode,
    Load,
    RunningMax,
    Store,
)


def check_stages(view: BlockView) -> Iterator[Diagnostic]:
    """What is computed before the loop, in its body and after it stays apart."""
    mixed: set[str] = set()
    for node in view.block.nodes:
        if mixed.intersection(operands_of(node)):
            # One mixture makes all that follows look wrong.
            if not isinstance(node, Store):
                mixed.add(node.result)
            continue
        found = list(_stage(view, node))
        yield from found
        if found and isinstance(node, Apply):
            mixed.add(node.result)


def _stage(view: BlockView, node: BlockNode) -> Iterator[Diagnostic]:
    match node:
        case Apply():
            yield from _no_mixture(view, node)
        case RunningMax():
            yield from _needs_body(view, node)
        case Accumulate():
            yield from _needs_body(view, node)
            if node.rescale is not None:
                yield from _rescaling(view, node, node.rescale)
        case Store():
            yield from _storable(view, node)
        case Load():
            pass


def _no_mixture(view: BlockView, node: Apply) -> Iterator[Diagnostic]:
    stages = {view.stages[v]: v for v in node.values}
    if "body" in stages and "after" in stages:
        yield view.problem(
            "stage",
            node,
            f"it mixes {stages['body']}, a value of the loop body, "
            f"with {stages['after']}, which exists after the loop",
            f"accumulate {stages['body']} first",
        )


def _needs_body(view: BlockView, node: Accumulate | RunningMax) -> Iterator[Diagnostic]:
    stage = view.stages[node.operand]
    if stage == "body":
        return
    what = "an accumulator" if isinstance(node, Accumulate) else "a running maximum"
    found = "before the loop" if stage == "before" else "after the loop"
    yield view.problem(
        "stage",
        node,
        f"{what} takes a value of the loop body; {node.operand} is one {found}",
        f"use {node.operand} directly",
    )


def _rescaling(view: BlockView, node: Accumulate, largest: str) -> Iterator[Diagnostic]:
    running = {n.result for n in view.block.nodes if isinstance(n, RunningMax)}
    if node.kind != "sum":
        yield view.problem(
            "rescale",
            node,
            f"a {node.kind} accumulator cannot be rescaled",
            "rescale sums only",
        )
    if largest not in running:
        yield view.problem(
            "rescale",
            node,
            f"it is rescaled by {largest}, which is no running maximum",
            f"expected a running maximum ({', '.join(sorted(running)) or 'none yet'})",
        )
        return
    operand, shift = view.types.get(node.operand), view.types.get(largest)
    if operand and shift and not set(shift.dims) <= set(operand.dims):
        yield view.problem(
            "rescale",
            node,
            f"{largest} has dims that {node.operand} lacks: {shift}, {operand}",
            "take the maximum over those dims before",
        )


def _storable(view: BlockView, node: Store) -> Iterator[Diagnostic]:
    if view.stages[node.operand] == "body":
        yield view.problem(
            "stage",
            node,
            f"{node.operand} is a value of the loop body, it differs by iteration",
            f"accumulate {node.operand} and store the result",
        )
