"""What a kernel changes of a tensor that its result is stored over.

A program has no memory: a cache with a new row is a new tensor, chosen element by
element from the old one and from the row.

    met = equal (index h), position
    y = where met, row, cache
    store y

Where `y` is to lie just where `cache` lies, only elements that are `met` are stored,
and of the old ones none is read.  Several such choices, one within the other, are as
many stores, each of the elements that no earlier one has met.  Where all elements that
are met are at known places along a dim (positions that are data, or ranges that the
program states), only the blocks there are launched: however long the cache is, what is
read and written are the rows.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.core.types import Dim
from mirage_dsl.ir.graph import Operand, Split, grid_axes
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import EQUAL, MUL, OPERATORS, WHERE
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

LESS, LESS_EQUAL = OPERATORS["less"], OPERATORS["less_equal"]


@dataclass(frozen=True)
class Written:
    """Elements that a store changes.

    Attributes:
        value: What is new.
        tile: Its lanes, and their format.
        under: Tiles of truth values that tell where: each is true there, or is not.
    """

    value: Operand
    tile: Tile
    under: tuple[tuple[str, bool], ...]


Change = tuple[Written, ...]
"""What a store changes: parts that have no element in common."""


@dataclass(frozen=True)
class Stretch:
    """Positions along a dim that follow each other.

    Attributes:
        first: The first: a number, or a value without axes.
        count: How many; 1 if the first is data.
    """

    first: int | str
    count: int

    def blocks(self, tile: int) -> int:
        """How many blocks of so many positions have some of them."""
        if isinstance(self.first, str):
            return 1
        return (self.first + self.count - 1) // tile - self.first // tile + 1


@dataclass(frozen=True)
class _Range:
    """Where a condition on positions holds.

    Attributes:
        dim: Of the positions.
        first: The first: a number, or a value, and then the only one.
        end: Behind the last; None if all that follow are met, or there is one.
    """

    dim: str
    first: int | str
    end: int | None


@dataclass(frozen=True)
class Narrowed:
    """An axis of the grid, of which some blocks have all that changes.

    Attributes:
        stretches: Of the dims that it splits, all as many: those that belong together
            are at the same number.
        ahead: What computes the positions, in order.
    """

    stretches: Mapping[str, tuple[Stretch, ...]]
    ahead: tuple[Statement, ...]


@dataclass(frozen=True)
class Changes:
    """What a program changes of tensors that its results are stored over.

    Attributes:
        stores: Results of which only parts are stored.
        unused: Values that only lead to what is not stored.
        narrowed: The axis of the grid along which some blocks are enough, if any.
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
            narrowed = self._narrowed([self._along(c) for c in changed.values()])
        return Changes(changed, self._unused(changed), narrowed)

    # -- One store -----------------------------------------------------------------

    def _change(self, store: Store) -> Change | None:
        """What a store changes; None if it may be all."""
        source = self._over.get(store.result)
        loads = [s for s in self._statements if isinstance(s, Load)]
        if (
            store.operand in self._in_loops
            or sum(s.source == source for s in loads) != 1
        ):
            return None
        assert source is not None
        parts, value, under = list[Written](), store.operand, list[tuple[str, bool]]()
        while not self._is_old(value, store, source):
            made = self._makers[value]
            if not isinstance(made, Compute) or made.op is not WHERE:
                return None
            condition, yes, no = made.operands
            holds = not self._leads_to(yes, store, source)
            new, old = (yes, no) if holds else (no, yes)
            if not isinstance(condition, str) or not isinstance(old, str):
                return None
            if not self._only_stays(old, made):
                return None
            parts.append(Written(new, made.tile, (*under, (condition, holds))))
            under.append((condition, not holds))
            value = old
        return tuple(parts) or None

    def _leads_to(self, value: Operand, store: Store, source: str) -> bool:
        """Whether a value is chosen of what lies where a store puts it, and others."""
        if not isinstance(value, str):
            return False
        if self._is_old(value, store, source):
            return True
        made = self._makers[value]
        if not isinstance(made, Compute) or made.op is not WHERE:
            return False
        return any(self._leads_to(o, store, source) for o in made.operands[1:])

    def _is_old(self, value: str, store: Store, source: str) -> bool:
        """Whether a value is what lies where a store puts it."""
        made = self._loaded(value)
        return (
            made is not None
            and (made.source, made.at, made.along) == (source, store.at, None)
            and made.tile.dtype is store.dtype
        )

    def _loaded(self, value: str) -> Load | None:
        """The load that a value is, in whatever form."""
        made = self._makers[self._plain(value)]
        return made if isinstance(made, Load) else None

    def _plain(self, value: str) -> str:
        """A value before it was converted."""
        made = self._makers[value]
        while isinstance(made, Convert):
            value, made = made.operand, self._makers[made.operand]
        return value

    def _only_stays(self, value: str, choice: Statement) -> bool:
        """Whether one choice alone reads a value, in whatever form.

        What else is computed of it could be so after another thread has stored.
        """
        left = [self._plain(value)]
        while left:
            name = left.pop()
            for reader in self._statements:
                if name in reads(reader) and reader is not choice:
                    if not isinstance(reader, Convert):
                        return False
                    left.append(reader.result)
        return True

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
        parts = changed[statement.result]
        new = [p.value for p in parts if isinstance(p.value, str)]
        return new + [name for p in parts for name, _ in p.under]

    # -- Where ---------------------------------------------------------------------

    def _narrowed(
        self, found: Sequence[tuple[str, tuple[Stretch, ...]] | None]
    ) -> Narrowed | None:
        """The axis along which each store is at known places."""
        program = self._program
        known = [f for f in found if f is not None]
        stretches = dict(known)
        if len(known) < len(found) or any(stretches[dim] != p for dim, p in known):
            return None
        axes = grid_axes(program.grid)
        own = [axis for axis in axes if {s.dim for s in axis} == {*stretches}]
        bound = any(b.dim in stretches for b in program.bounds)
        if bound or not own or not self._belong_together(own[0], stretches):
            return None
        ahead = self._ahead(p.first for each in stretches.values() for p in each)
        if ahead is None or any(self._depends(s, stretches) for s in ahead):
            return None
        return Narrowed(stretches, ahead)

    def _belong_together(
        self, axis: Sequence[Split], stretches: Mapping[str, tuple[Stretch, ...]]
    ) -> bool:
        """Whether blocks along an axis are at stretches of the same number in all dims.

        And whether they are fewer than all blocks, where these are known.
        """
        found = {
            tuple(each.blocks(split.tile) for each in stretches[split.dim])
            for split in axis
        }
        extents = [self._program.extents.get(split.dim) for split in axis]
        known = [e for e in extents if e is not None]
        if len(found) > 1 or len(known) < len(extents):
            return len(found) == 1
        parts = [-(-e // split.tile) for e, split in zip(known, axis, strict=True)]
        (blocks,) = found
        return sum(blocks) < max(parts) or max(parts) == 1

    def _along(self, change: Change) -> tuple[str, tuple[Stretch, ...]] | None:
        """The dim along which all that changes is at known places, and these."""
        found = [self._of_part(part) for part in change]
        known = [f for f in found if f is not None]
        if len(known) < len(found) or len({dim for dim, _ in known}) > 1:
            return None
        return known[0][0], tuple(dict.fromkeys(place for _, place in known))

    def _of_part(self, part: Written) -> tuple[str, Stretch] | None:
        """Where the elements of a part are at most."""
        for name, holds in part.under:
            met = self._range(name) if holds else None
            if met is not None and isinstance(met.first, str):
                return met.dim, Stretch(met.first, 1)
            if met is not None and met.end is not None:
                first = int(met.first)
                return met.dim, Stretch(first, max(met.end - first, 1))
        return None

    def _range(self, value: Operand) -> _Range | None:
        """Where a condition holds at most, if that is told by positions along a dim."""
        made = self._makers.get(value) if isinstance(value, str) else None
        if not isinstance(made, Compute):
            return None
        if made.op is MUL:
            return self._both(*map(self._range, made.operands))
        if made.op not in (EQUAL, LESS, LESS_EQUAL):
            return None
        for at, other in enumerate(made.operands[::-1]):
            dim = self._counted(made.operands[at])
            if dim is None or not dim.grid or dim.loop:
                continue
            if made.op is EQUAL and self._is_data(other):
                return _Range(dim.name, str(other), None)
            number = self._number(other)
            if number is not None:
                return _compared(dim.name, made.op, number, ahead=bool(at))
        return None

    @staticmethod
    def _both(a: _Range | None, b: _Range | None) -> _Range | None:
        """Where two conditions hold at most."""
        if a is None or b is None or a.dim != b.dim:
            return a or b
        if isinstance(a.first, str) or isinstance(b.first, str):
            return a if isinstance(a.first, str) else b
        ends = [r.end for r in (a, b) if r.end is not None]
        return _Range(a.dim, max(a.first, b.first), min(ends, default=None))

    def _is_data(self, value: Operand) -> bool:
        """Whether a value is one integer that is data."""
        if not isinstance(value, str):
            return False
        tile = self._tiles[value]
        return tile.dtype.is_integer and not tile.axes

    def _number(self, value: Operand) -> int | None:
        """The integer that an operand is, if that is known."""
        if isinstance(value, str):
            return None
        extents = {n: self._program.extents.get(n) for n, _ in value.extents}
        known = {n: e for n, e in extents.items() if e is not None}
        number = value.at(known) if len(known) == len(extents) else math.nan
        return int(number) if float(number).is_integer() else None

    def _counted(self, value: Operand) -> Dim | None:
        """The dim whose positions a value is."""
        made = self._makers.get(value) if isinstance(value, str) else None
        if not isinstance(made, Positions) or len(made.at) != 1:
            return None
        return made.at[0]

    def _ahead(self, values: Iterable[int | str]) -> tuple[Statement, ...] | None:
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


def _compared(dim: str, op: Operator, number: int, *, ahead: bool) -> _Range:
    """Where positions are as a comparison with a number says, which may stand ahead."""
    if op is EQUAL:
        return _Range(dim, number, number + 1)
    if ahead:
        return _Range(dim, number + (op is LESS), None)
    return _Range(dim, 0, number + (op is LESS_EQUAL))


__all__ = ["NOTHING", "Change", "Changes", "Narrowed", "Stretch", "Written", "changes"]
