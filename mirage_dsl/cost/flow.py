"""Who makes and who reads the values of a tile program; which of them live at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.tile.combined import packed
from mirage_dsl.tile.program import (
    Convert,
    Load,
    Loop,
    Mask,
    Merge,
    Pick,
    Product,
    Start,
    Statement,
    Tile,
    TileProgram,
    makes,
    reads,
    tiles_of,
    walk,
)
from mirage_dsl.tile.sizes import Number

Stage = Literal["before", "body", "after"]
STAGES: tuple[Stage, ...] = ("before", "body", "after")

Step = tuple[Statement, Stage]
"""A statement, and when it runs."""


class Flow:
    """Who makes and who reads the values of a program.

    What is only another form of a value (f32, turned, masked, merged, the other copy of
    a load) goes by the name of the value itself.  Steps by which bytes are unpacked are
    none, where they are unpacked in one.

    Attributes:
        packed: What is unpacked from bytes in a step.
        tiles: The types of values.
        stage: When each value is made.
        users: Who reads each value, and when.
        second: Of each tile, whether it is the copy of a load that registers read.
        fresh: What lies in registers as a product left it.
        steps: Statements but changes of form, in order.
    """

    def __init__(self, program: TileProgram) -> None:
        self.tiles: Mapping[str, Tile] = tiles_of(program)
        self.packed = packed(program)
        self.stage: dict[str, Stage] = {}
        self.users: dict[str, list[Step]] = {}
        self.second: dict[str, Number] = {}
        self.fresh: set[str] = set()
        self._origin: dict[str, str] = {}
        self.steps: list[Step] = []
        stage: Stage = "before"
        for statement, looped in walk(program.body):
            if isinstance(statement, Loop):
                stage = "after"
            else:
                self._visit(statement, "body" if looped else stage)

    def origin(self, tile: str) -> str:
        """The value of which a tile is a form."""
        return self._origin.get(tile, tile)

    def operands(self, statement: Statement) -> list[str]:
        """The values that a statement reads."""
        parts = [self.packed.floats.get(v) for v in makes(statement)]
        found = [p.source for p in parts if p is not None]
        return [self.origin(v) for v in found or reads(statement)]

    def products_of(self, value: str) -> list[Product]:
        """The products that read a value."""
        products = (u for u, _ in self.users.get(value, ()) if isinstance(u, Product))
        return [p for p in products if value in self.factors(p)]

    def factors(self, product: Product) -> tuple[str, str]:
        """The values that a product multiplies: that with the rows comes first."""
        return self.origin(product.left), self.origin(product.right)

    def _visit(self, statement: Statement, stage: Stage) -> None:
        if not self.packed.steps.isdisjoint(makes(statement)):
            return
        match statement:
            case Convert() | Mask() | Merge() | Pick():
                self._origin[statement.result] = self.origin(statement.operand)
                second = self.second.get(statement.operand, False)
                if isinstance(statement, Pick):
                    second = statement.when
                self.second[statement.result] = second
                return
            case Load() if statement.instead is not None:
                self._origin[statement.result] = self.origin(statement.instead)
                self.second[statement.result] = True
                self.steps.append((statement, stage))
                return
            case _:
                pass
        self.steps.append((statement, stage))
        for value in dict.fromkeys(self.operands(statement)):
            self.users.setdefault(value, []).append((statement, stage))
        made = makes(statement)
        for value in made:
            self.stage.setdefault(value, stage)
        if isinstance(statement, Product) or not self.fresh.isdisjoint(
            self.operands(statement)
        ):
            self.fresh.update(made)


# -- Which of them live at once --------------------------------------------------------


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
