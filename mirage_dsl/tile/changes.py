"""What a kernel changes of a tensor that its result is stored over.

A program has no memory: a cache with a new row is a new tensor, chosen element by
element from the old one and from the row.

    met = equal (index h), position
    y = where met, row, cache
    store y

Where `y` is to lie just where `cache` lies, only elements that are `met` are stored,
and of the old ones none is read.  Where elements at one position alone are met, a
single block along that dim has all of them, which begins at the position: however long
the cache is, what is read and written is the row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.core.types import Dim
from mirage_dsl.ir.graph import Operand, grid_axes
from mirage_dsl.ops.table import EQUAL, WHERE
from mirage_dsl.tile.program import (
    Ask,
    Cast,
    Compute,
    Convert,
    Load,
    Positions,
    Statement,
    Store,
    Tile,
    TileProgram,
    Wait,
    makes,
    reads,
    tiles_of,
    walk,
)


@dataclass(frozen=True)
class Change:
    """What a store changes.

    Attributes:
        value: What is new.
        tile: Its lanes, and their format.
        under: The tile of truth values that tells where.
        holds: It is new where that is true; else where it is not.
    """

    value: Operand
    tile: Tile
    under: str
    holds: bool


@dataclass(frozen=True)
class Narrowed:
    """An axis of the grid, of which one block has all that changes.

    Attributes:
        positions: Of the dims that it splits: an integer, or a value without axes.
        ahead: What computes the positions, in order.
    """

    positions: Mapping[str, Operand]
    ahead: tuple[Statement, ...]


@dataclass(frozen=True)
class Changes:
    """What a program changes of tensors that its results are stored over.

    Attributes:
        stores: Results of which only a part is stored.
        unused: Values that only lead to what is not stored.
        narrowed: The axis of the grid along which one block is enough, if any.
    """

    stores: Mapping[str, Change]
    unused: frozenset[str]
    narrowed: Narrowed | None


NOTHING = Changes({}, frozenset(), None)


def changes(program: TileProgram, over: Mapping[str, str]) -> Changes:
    """What a program changes.

    Args:
        program: The program.
        over: Results, each with the tensor in whose place it is stored.
    """
    if over.keys().isdisjoint(program.tensors):
        return NOTHING
    return _Finder(program, over).found()


class _Finder:
    def __init__(self, program: TileProgram, over: Mapping[str, str]) -> None:
        self._program = program
        self._over = over
        self._tiles = tiles_of(program)
        self._statements = [s for s, _ in walk(program.body)]
        self._in_loops = {m for s, loop in walk(program.body) if loop for m in makes(s)}
        self._makers = {m: s for s in self._statements for m in makes(s)}

    def found(self) -> Changes:
        stores = [s for s in self._statements if isinstance(s, Store)]
        changed = {s.result: c for s in stores if (c := self._change(s)) is not None}
        narrowed = None
        if len(changed) == len(stores):
            narrowed = self._narrowed([self._single(c) for c in changed.values()])
        return Changes(changed, self._unused(changed), narrowed)

    # -- One store -----------------------------------------------------------------

    def _change(self, store: Store) -> Change | None:
        """What a store changes; None if it may be all."""
        source, made = self._over.get(store.result), self._makers[store.operand]
        if source is None or store.operand in self._in_loops:
            return None
        if not isinstance(made, Compute) or made.op is not WHERE:
            return None
        under, yes, no = made.operands
        for value, old, holds in ((yes, no, True), (no, yes, False)):
            if isinstance(under, str) and self._is_old(old, store, source):
                return Change(value, made.tile, under, holds)
        return None

    def _is_old(self, value: Operand, store: Store, source: str) -> bool:
        """Whether a value is what lies where a store puts it."""
        made = self._makers.get(value) if isinstance(value, str) else None
        while isinstance(made, Convert):
            made = self._makers.get(made.operand)
        return (
            isinstance(made, Load)
            and (made.source, made.at, made.along) == (source, store.at, None)
            and made.tile.dtype is store.dtype
        )

    def _unused(self, changed: Mapping[str, Change]) -> frozenset[str]:
        """What leads to the whole results alone."""
        read: dict[str, int] = {}
        for value in (v for s in self._statements for v in self._needs(s, changed)):
            read[value] = read.get(value, 0) + 1
        found: set[str] = set()
        stores = [s for s in self._statements if isinstance(s, Store)]
        left = [s.operand for s in stores if s.result in changed]
        while left:
            value = left.pop()
            made = self._makers[value]
            plain = isinstance(made, Compute | Convert | Load)
            if read.get(value, 0) or value in found or not plain:
                continue
            found.add(value)
            for operand in reads(made):
                read[operand] -= 1
                left.append(operand)
        return frozenset(found)

    def _needs(self, statement: Statement, changed: Mapping[str, Change]) -> list[str]:
        if not isinstance(statement, Store) or statement.result not in changed:
            return list(reads(statement))
        change = changed[statement.result]
        return [v for v in (change.value, change.under) if isinstance(v, str)]

    # -- One position --------------------------------------------------------------

    def _narrowed(
        self, single: Sequence[tuple[str, Operand] | None]
    ) -> Narrowed | None:
        """The axis along which each store is at one position."""
        program = self._program
        places = [place for place in single if place is not None]
        positions = dict(places)
        if len(places) < len(single) or {*positions.items()} != {*places}:
            return None
        axes = [[s.dim for s in axis] for axis in grid_axes(program.grid)]
        bound = any(b.dim in positions for b in program.bounds)
        if bound or not any({*axis} == {*positions} for axis in axes):
            return None
        ahead = self._ahead(positions.values())
        if ahead is None or any(self._depends(s, positions) for s in ahead):
            return None
        return Narrowed(positions, ahead)

    def _single(self, change: Change) -> tuple[str, Operand] | None:
        """The dim along which a change is at one position, which is computed."""
        made = self._makers[change.under]
        if not change.holds or not isinstance(made, Compute) or made.op is not EQUAL:
            return None
        for counted, position in (made.operands, made.operands[::-1]):
            dim = self._counted(counted)
            cut = dim is not None and dim.grid and not dim.loop
            if dim is not None and cut and self._is_integer(position):
                return dim.name, position
        return None

    def _is_integer(self, value: Operand) -> bool:
        """Whether a value is one integer."""
        if not isinstance(value, str):
            return True
        tile = self._tiles[value]
        return tile.dtype.is_integer and not tile.axes

    def _counted(self, value: Operand) -> Dim | None:
        """The dim whose positions a value is."""
        made = self._makers.get(value) if isinstance(value, str) else None
        if not isinstance(made, Positions) or len(made.at) != 1:
            return None
        return made.at[0]

    def _ahead(self, values: Iterable[Operand]) -> tuple[Statement, ...] | None:
        """What computes some integers; None if it cannot come first."""
        wanted, left = set[str](), [v for v in values if isinstance(v, str)]
        while left:
            name = left.pop()
            made = self._makers[name]
            plain = isinstance(made, Compute | Cast | Convert | Load | Positions)
            if not plain or self._tiles[name].axes or name in self._in_loops:
                return None
            if name not in wanted:
                wanted.add(name)
                left += reads(made)
        found = [s for s in self._program.body if wanted & {*makes(s)}]
        if any(isinstance(s, Ask) for s in self._program.body):
            return None
        return (*self._waits(found), *found)

    def _waits(self, found: Iterable[Statement]) -> list[Statement]:
        """The wait that stands before any of these."""
        body = list(self._program.body)
        last = max((body.index(s) for s in found), default=0)
        return [s for s in body[:last] if isinstance(s, Wait)]

    def _depends(self, statement: Statement, dims: Container[str]) -> bool:
        """Whether a statement reads at the block's place along one of some dims."""
        match statement:
            case Load():
                return any(d.name in dims for axis in statement.at for d in axis)
            case Positions():
                return any(d.name in dims for d in statement.at)
            case _:
                return False


__all__ = ["NOTHING", "Change", "Changes", "Narrowed", "changes"]
