"""Which values live in registers at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockNode,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ops.definition import Kind

# -- Which tiles are live at once ------------------------------------------------------


def operands_of(node: BlockNode) -> tuple[str, ...]:
    """The values that a node reads."""
    match node:
        case Load():
            return ()
        case Apply():
            return node.values
        case Accumulate() | RunningMax() | Store():
            return (node.operand,)


def is_product(node: BlockNode) -> bool:
    """Whether a node is a contraction."""
    return isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION


STAGES = {"before": 0, "body": 1, "after": 2}


@dataclass(frozen=True, eq=False)
class Live:
    """Values that live in registers.

    Attributes:
        nodes: The nodes, in the order in which the code runs.
        names: The values.
        at: A matrix of 0 and 1: one row a node, one column a value.
    """

    nodes: tuple[BlockNode, ...]
    names: tuple[str, ...]
    at: NDArray[np.float64]


def position(node: BlockNode, stages: Mapping[str, str]) -> int:
    """When the code of a node runs."""
    if isinstance(node, Store):
        return STAGES["after"] + 1
    return STAGES[stages[node.result]]


def in_order(nodes: Iterable[BlockNode], stages: Mapping[str, str]) -> list[BlockNode]:
    """Nodes in the order in which the code runs."""
    return sorted(nodes, key=lambda n: position(n, stages))


def live_tiles(nodes: Iterable[BlockNode], stages: Mapping[str, str]) -> Live:
    """Values that live in registers, and which of them are live at each node."""
    order = in_order(nodes, stages)
    spans = _spans(order, stages)
    names = list(spans)
    live = np.zeros((len(order), len(names)))
    for column, name in enumerate(names):
        start, end = spans[name]
        live[start : max(end, start + 1), column] = 1.0
    for row, node in enumerate(order):
        # A product reads its operands until its result is complete.
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
            for value in set(node.values) & spans.keys():
                live[row, names.index(value)] = 1.0
    return Live(tuple(order), tuple(names), live)


def _spans(
    nodes: list[BlockNode], stages: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """From where to where each value is held in registers, as positions in `nodes`.

    A value dies in the node that reads it last, whose result takes its place.
    """
    body = [i for i, n in enumerate(nodes) if position(n, stages) == STAGES["body"]]
    loop = (body[0], body[-1] + 1) if body else (len(nodes), 0)
    fused = _summed_in_place(nodes)
    made: dict[str, int] = {}
    uses: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in operands_of(node):
            loaded = name not in made
            if not (loaded and is_product(node)):
                uses.setdefault(name, []).append(at)
        if not isinstance(node, Store | Load) and node.result not in fused:
            # Accumulators are held all through the loop.
            carried = isinstance(node, Accumulate | RunningMax) and bool(body)
            made[node.result] = loop[0] if carried else at
            uses.setdefault(node.result, []).append(loop[1] if carried else at + 1)
    loads = {n.result for n in nodes if isinstance(n, Load)}
    return {
        name: _span(made.get(name), uses[name], loop, stages[name] == "before")
        for name in uses
        if name in made or name in loads
    }


def _span(
    made: int | None, uses: list[int], loop: tuple[int, int], before: bool
) -> tuple[int, int]:
    start, end = loop
    first, last = min(uses) if made is None else made, max(uses)
    if before and any(start <= use < end for use in uses):
        return min(first, start), max(last, end)
    return first, last


def _summed_in_place(nodes: list[BlockNode]) -> set[str]:
    """Products that go straight into an accumulator, which the matrix unit adds to."""
    products = {n.result for n in nodes if is_product(n)}
    summed = {n.operand for n in nodes if isinstance(n, Accumulate) and n.adds}
    others = [v for n in nodes if not isinstance(n, Accumulate) for v in operands_of(n)]
    return (products & summed) - set(others)
