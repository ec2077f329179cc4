"""Who makes and who reads the values of a tile program, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mirage_dsl.tile.combined import packed
from mirage_dsl.tile.program import (
    Convert,
    Load,
    Loop,
    Mask,
    Merge,
    Pick,
    Product,
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
