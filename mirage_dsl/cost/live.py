"""Which values live in registers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.cost.flow import Flow, Step
from mirage_dsl.tile.program import Load, Product, Start, makes


@dataclass(frozen=True, eq=False)
class Live:
    """Values that live in registers.

    Attributes:
        names: The values.
        at: A matrix of 0 and 1: one row a step, one column a value.
        products: The row of each product, by its result.
    """

    names: tuple[str, ...]
    at: NDArray[np.float64]
    products: dict[str, int]


def live_tiles(flow: Flow, steps: Sequence[Step]) -> Live:
    """Values that live in registers, and which of them are live at each step.

    Args:
        flow: Of a program.
        steps: Its steps, in the order in which they run.
    """
    spans = _spans(flow, steps)
    column = {name: at for at, name in enumerate(spans)}
    live = np.zeros((len(steps), len(spans)))
    products: dict[str, int] = {}
    for name, (start, end) in spans.items():
        live[start : max(end, start + 1), column[name]] = 1.0
    for row, (statement, _) in enumerate(steps):
        if isinstance(statement, Product):
            products[statement.result] = row
            # A product reads its operands until its result is complete.
            for value in flow.factors(statement):
                if value in column:
                    live[row, column[value]] = 1.0
    return Live(tuple(spans), live, products)


def _spans(flow: Flow, steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """From where to where each value is held in registers, as positions of steps.

    A value dies in the step that reads it last, whose result takes its place.
    """
    body = [at for at, (_, stage) in enumerate(steps) if stage == "body"]
    loop = (body[0], body[-1] + 1) if body else (len(steps), 0)
    made: dict[str, int] = {}
    uses: dict[str, list[int]] = {}
    for at, (statement, _) in enumerate(steps):
        for name in flow.operands(statement):
            # The matrix unit reads loads from shared memory.
            if name in made or not isinstance(statement, Product):
                uses.setdefault(name, []).append(at)
        if isinstance(statement, Load):
            continue
        for name in makes(statement):
            # What the loop carries is held all through it.
            carried = isinstance(statement, Start)
            made.setdefault(name, loop[0] if carried else at)
            uses.setdefault(name, []).append(loop[1] if carried else at + 1)
    return {
        name: _span(made.get(name), own, loop, early=flow.stage[name] == "before")
        for name, own in uses.items()
    }


def _span(
    made: int | None, uses: list[int], loop: tuple[int, int], *, early: bool
) -> tuple[int, int]:
    start, end = loop
    first, last = min(uses) if made is None else made, max(uses)
    if early and any(start <= use < end for use in uses):
        return min(first, start), max(last, end)
    return first, last
