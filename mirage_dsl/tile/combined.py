"""Statements that are done as one: bytes unpacked in a step, sides loaded as one axis.

Programs say step by step how floats are made of bytes: shifted, masked, made signed,
an offset subtracted, converted.  The result depends on half a byte or a byte alone, so
a GPU can do it by the bits of floats, several numbers in an instruction, where the
steps would take each number apart:

    s = shift_right q, 4 * index        f32 of the two halves of each byte of q,
    b = bit_and s, 15              →    less 8
    v = to_f32 (to_i8 b - 8)

A side of a matrix product of several pieces becomes one axis of a matrix (`Merge`).
Where the pieces of a load are the elements of one run of memory, row-major and whole
but for the outermost, the load can have that axis from the start: it reads more bytes
at once, and nothing has to be moved for the product.

    x = load x[m, (k/loop n h)]   axes n, h, m    →    axes (n h), m
    y = merge x  sides (n, h), (m)

So can a load of which lanes are taken along the innermost dim, that has its axis behind
the others then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from mirage_dsl.core.types import Axis, Dim, Scalar, f16, f32, i8, u8
from mirage_dsl.ir.graph import Operand
from mirage_dsl.ops.table import ADD, BIT_AND, CONVERSIONS, MUL, SHIFT_RIGHT, SUB
from mirage_dsl.tile.program import (
    Cast,
    Compute,
    Convert,
    Lane,
    Load,
    Mask,
    Merge,
    Pick,
    Positions,
    Product,
    Statement,
    Tile,
    TileProgram,
    held_by,
    makes,
    reads,
    tiles_of,
    walk,
)
from mirage_dsl.tile.sizes import Order

Part = Literal["byte", "low", "high", "both"]
"""Which bits of a byte: all, the lower or the higher four, or both in turn."""

MOST_OFFSET = 1024
"""Offsets up to here: what is left of a byte is a number of f16."""
HALF = 4
"""Bits of half a byte."""


@dataclass(frozen=True)
class Unpacked:
    """Floats that are a part of bytes less a number.

    Attributes:
        source: The tile of bytes.
        part: Which bits.
        less: What is subtracted.
        along: The dim of two lanes that tells which half, where it is both.
    """

    source: str
    part: Part
    less: int = 0
    along: Dim | None = None


@dataclass(frozen=True)
class Packed:
    """What is unpacked in a step in a tile program.

    Attributes:
        floats: The values that are, in f32 or f16.
        steps: Values that only lead there: nobody else reads them.
        factors: Operands of 16 bits of the matrix unit that are made of bytes.
    """

    floats: Mapping[str, Unpacked]
    steps: frozenset[str]
    factors: frozenset[str]


def packed(program: TileProgram, lanes: Callable[[Dim], int] | None = None) -> Packed:
    """What of a program's values is unpacked from bytes in a step.

    Args:
        program: The program.
        lanes: How many lanes a piece has; its extent if nothing is given.
    """
    tiles = tiles_of(program)
    if all(t.dtype.itemsize > 1 for t in tiles.values()):
        return Packed({}, frozenset(), frozenset())
    return _Finder(program, tiles, lanes or (lambda d: _extent(d, program))).found()


def _extent(dim: Dim, program: TileProgram) -> int:
    """Lanes of a dim that is whole; 0 of other pieces."""
    return 0 if dim.grid or dim.loop else program.extents.get(dim.name) or 0


class _Finder:
    def __init__(
        self,
        program: TileProgram,
        tiles: Mapping[str, Tile],
        lanes: Callable[[Dim], int],
    ) -> None:
        self._tiles = tiles
        self._lanes = lanes
        self._statements = [s for s, _ in walk(program.body)]
        self._makers: dict[str, Statement] = {}
        for statement in self._statements:
            for name in makes(statement):
                self._makers.setdefault(name, statement)

    def found(self) -> Packed:
        floats: dict[str, Unpacked] = {}
        leading: set[str] = set()
        for statement in self._statements:
            match statement:
                case Compute() if statement.op is CONVERSIONS[f32]:
                    part = self._part(statement.operands[0], leading)
                    if part is not None and self._suits(statement, part):
                        floats[statement.result] = part
                case Cast() if statement.operand in floats:
                    if statement.tile.dtype == f16:
                        floats[statement.result] = floats[statement.operand]
                case _:
                    pass
        leading |= self._only_cast(floats)
        steps = self._only_leading(floats, leading)
        return Packed(floats, steps, self._factors())

    def _factors(self) -> frozenset[str]:
        """Operands of 16 bits of the matrix unit that are made of bytes."""
        of_bytes, found = set[str](), set[str]()
        for statement in self._statements:
            match statement:
                case Load() if statement.tile.dtype.itemsize == 1:
                    of_bytes.update(makes(statement))
                case (
                    Compute() | Cast() | Convert() | Mask() | Merge() | Lane() | Pick()
                ):
                    if not of_bytes.isdisjoint(reads(statement)):
                        of_bytes.update(makes(statement))
                case Product() if statement.is_matrix:
                    found |= of_bytes & {statement.left, statement.right}
                case _:
                    pass
        return frozenset(v for v in found if self._tiles[v].dtype.itemsize == 2)

    def _only_cast(self, floats: Mapping[str, Unpacked]) -> set[str]:
        """Floats of which only the casts are read, which are unpacked as well."""
        read = {v: list[Statement]() for v in floats}
        for statement in self._statements:
            for value in reads(statement):
                if value in read:
                    read[value].append(statement)
        return {
            v
            for v, users in read.items()
            if users and all(isinstance(u, Cast) and u.result in floats for u in users)
        }

    def _only_leading(
        self, floats: Mapping[str, Unpacked], leading: set[str]
    ) -> frozenset[str]:
        """Values that nothing reads but steps towards the floats."""
        kept = {u.source for u in floats.values()}
        rest = leading - kept
        while True:
            read = {
                v
                for s in self._statements
                if not any(m in floats or m in rest for m in makes(s))
                for v in reads(s)
            }
            if not rest & read:
                return frozenset(rest)
            rest -= read

    def _suits(self, made: Compute, part: Unpacked) -> bool:
        """Whether the floats have the axes of the bytes, and the one that is both."""
        axes = tuple(d for d in made.tile.axes if d != part.along)
        source = self._tiles[part.source].axes
        alone = part.along is None or part.along in made.tile.axes
        return bool(axes) and alone and axes == source

    def _part(self, value: Operand, leading: set[str]) -> Unpacked | None:
        """The part of bytes that a value of integers is."""
        if not isinstance(value, str):
            return None
        dtype, made = self._tiles[value].dtype, self._makers[value]
        found = self._step(made, leading) if isinstance(made, Compute) else None
        if found is not None:
            leading.add(value)
            return found
        loaded = isinstance(made, Load | Convert | Mask | Pick)
        return Unpacked(value, "byte") if loaded and dtype in (u8, i8) else None

    def _step(self, made: Compute, leading: set[str]) -> Unpacked | None:
        op, dtype = made.op, made.tile.dtype
        own = set[str]()
        if op is BIT_AND:
            found = self._masked(made, own)
        elif op is SHIFT_RIGHT:
            found = self._shifted(made, own)
            if found is not None and self._tiles[found.source].dtype != u8:
                return None  # signs are shifted in; a mask has to take them away
        elif op in (ADD, SUB):
            found = self._less(made, own)
        elif op.gives is not None and dtype.is_integer:
            found = self._part(made.operands[0], own)
            signed = dtype not in (u8, i8) or (dtype == i8 and self._fits(found))
            found = found if signed else None
        else:
            return None
        if found is not None:
            leading |= own
        return found

    def _fits(self, part: Unpacked | None) -> bool:
        """Whether 8 bits with a sign hold what a part is."""
        if part is None:
            return False
        return part.part != "byte" or self._tiles[part.source].dtype == i8

    def _masked(self, made: Compute, leading: set[str]) -> Unpacked | None:
        """Half a byte: the lower one, or what a shift left."""
        value, mask = made.operands
        if _whole(value) is not None:
            value, mask = mask, value
        if _whole(mask) != 2**HALF - 1 or not isinstance(value, str):
            return None
        inner = self._makers[value]
        if isinstance(inner, Compute) and inner.op is SHIFT_RIGHT:
            found = self._shifted(inner, leading)
            if found is not None:
                leading.add(value)
                found = replace(found, part="low") if found.part == "byte" else found
            return found
        found = self._part(value, leading)
        if found is None or found.less or found.part == "both":
            return None
        return replace(found, part="low") if found.part == "byte" else None

    def _shifted(self, made: Compute, leading: set[str]) -> Unpacked | None:
        value, by = made.operands
        if not isinstance(value, str) or self._tiles[value].dtype not in (u8, i8):
            return None
        if isinstance(self._makers[value], Compute):
            return None
        number = self._number(by, leading)
        if number is not None:
            part: dict[int, Part] = {0: "byte", HALF: "high"}
            return Unpacked(value, part[number]) if number in part else None
        along = self._halves(by, leading)
        return None if along is None else Unpacked(value, "both", along=along)

    def _number(self, operand: Operand, leading: set[str]) -> int | None:
        """A constant, also one that is computed of a position that is known."""
        if not isinstance(operand, str):
            return _whole(operand)
        if self._tiles[operand].axes:
            return None
        made, own = self._makers[operand], {operand}
        match made:
            case Lane() if _is_position(self._makers[made.operand]):
                own.add(made.operand)
                found = made.at
            case Compute() if made.tile.dtype.is_integer:
                given = [self._number(o, own) for o in made.operands]
                known = [float(n) for n in given if n is not None]
                if len(known) < len(given):
                    return None
                found = int(held_by(made.op, known, made.tile.dtype))
            case _:
                return None
        leading |= own
        return found

    def _halves(self, by: Operand, leading: set[str]) -> Dim | None:
        """The dim of two positions of which a shift is four times the number."""
        times, value = 1, by
        while isinstance(value, str):
            made = self._makers[value]
            leading.add(value)
            match made:
                case Positions():
                    (dim, *others) = made.tile.axes or (None,)
                    if dim is None or others or made.at != (dim,) or times != HALF:
                        return None
                    return dim if self._lanes(dim) == 2 else None
                case Compute() if made.op is MUL:
                    numbers = [n for o in made.operands if (n := _whole(o)) is not None]
                    names = [o for o in made.operands if isinstance(o, str)]
                    if len(names) != 1 or len(numbers) != 1:
                        return None
                    times, value = times * numbers[0], names[0]
                case Compute() if made.op.gives is not None:
                    value = made.operands[0]
                case _:
                    return None
        return None

    def _less(self, made: Compute, leading: set[str]) -> Unpacked | None:
        """A part less a constant, in a format that holds the difference."""
        value, other = made.operands
        if made.op is ADD and _whole(value) is not None:
            value, other = other, value
        number, found = _whole(other), self._part(value, leading)
        dtype = made.tile.dtype
        if number is None or found is None or dtype == u8:
            return None
        less = found.less + (number if made.op is SUB else -number)
        wide = dtype != i8 or (found.part != "byte" and abs(less) <= 112)
        return replace(found, less=less) if wide and abs(less) < MOST_OFFSET else None


def positions(program: TileProgram) -> frozenset[str]:
    """The values whose lanes are the positions along a whole dim."""
    found = (s for s, _ in walk(program.body) if _is_position(s))
    return frozenset(v for s in found for v in makes(s))


def _is_position(statement: Statement) -> bool:
    if not isinstance(statement, Positions):
        return False
    (dim, *others) = statement.at
    return not others and dim == dim.whole


def _whole(operand: Operand) -> int | None:
    """A constant that is a whole number."""
    if not isinstance(operand, Scalar) or operand.extents:
        return None
    value = operand.value
    whole = isinstance(value, Fraction) and value.denominator == 1
    return int(value) if whole else None


# -- Sides of products that lie in memory as one axis ----------------------------------


Sides = tuple[Order, ...]


def runs(program: TileProgram, exact: Callable[[Dim], bool]) -> Mapping[str, Sides]:
    """The loads that can have merged axes, each with the pieces of every axis.

    Args:
        program: The program.
        exact: Whether all lanes of a piece are inside, always.
    """
    statements = [s for s, _ in walk(program.body)]
    if not any(isinstance(s, Merge | Lane) for s in statements):
        return {}
    readers: dict[str, list[Statement]] = {}
    loads: dict[str, Load] = {}
    for statement in statements:
        for value in reads(statement):
            readers.setdefault(value, []).append(statement)
        if isinstance(statement, Load):
            loads[statement.result] = statement
    found: dict[str, Sides] = {}
    for name, load in loads.items():
        sides = {_sides(reader, load) for reader in readers.get(name, ())}
        (side, *others) = sides or (None,)
        if side is None or others or not _is_plain(load):
            continue
        several = [s for s in side if len(s) > 1]
        if several and all(_is_run(s, load.at, exact) for s in several):
            found[name] = side
    return found


def _sides(reader: Statement, load: Load) -> Sides | None:
    """The axes as which a statement can take a load, if not as its tile has them."""
    if isinstance(reader, Merge):
        return reader.sides
    if not isinstance(reader, Lane):
        return None
    axes, along = load.tile.axes, reader.along
    for axis in load.at:
        if along in axis[1:]:
            before = axis[axis.index(along) - 1]
            rest = (d for d in axes if d != along)
            return tuple((d, along) if d == before else (d,) for d in rest)
    return None


def _is_plain(load: Load) -> bool:
    """Whether each lane has its own address, and there is no other copy."""
    pointer = load.via == "pointer" and load.along is None
    return pointer and load.instead is None and load.when is True


def _is_run(side: Order, at: tuple[Axis, ...], exact: Callable[[Dim], bool]) -> bool:
    """Whether pieces are next to each other in an axis, and whole but for the first."""
    whole = all(not d.grid and not d.loop for d in side[1:])
    if not whole or not all(map(exact, side)):
        return False
    for axis in at:
        if side[0] in axis:
            first = axis.index(side[0])
            return axis[first : first + len(side)] == side
    return False
