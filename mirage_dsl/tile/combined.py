"""What statements of a tile program come to together, that a backend can do as one.

**Bytes unpacked in a step.**  Programs say step by step how floats are made of bytes:
shifted, masked, made signed, an offset subtracted, converted.  The result depends on
half a byte or a byte alone, so a GPU can do it by the bits of floats, several numbers
in an instruction, where the steps would take each number apart:

    s = shift_right q, 4 * index        f32 of the two halves of each byte of q,
    b = bit_and s, 15              →    less 8
    v = to_f32 (to_i8 b - 8)

**Sides loaded as one axis.**  A side of a matrix product of several pieces becomes one
axis of a matrix (`Merge`).  Where the pieces of a load are the elements of one run of
memory, row-major and whole but for the outermost, the load can have that axis from the
start: it reads more bytes at once, and nothing has to be moved for the product.

    x = load x[m, (k/loop n h)]   axes n, h, m    →    axes (n h), m
    y = merge x  sides (n, h), (m)

So can a load of which lanes are taken: what lies behind the piece ahead of them is one
axis with it.

**Pairs loaded as words.**  Of what is loaded along a dim of two, innermost in memory,
only the two lanes are read: then each two can be one word of twice the size, which is
taken apart where it is used.  Words of bytes lie in the registers of a matrix product
as numbers of 16 bits do.

    w = load w[k/loop, (d p)]              words of w[k/loop, d]
    w0 = lane w along(p) at(0)        →    f16 of their low bytes
    w1 = lane w along(p) at(1)             and of their high bytes

**Words dealt to the matrix unit.**  A sum has any order, so a thread of the matrix unit
can have sixteen bytes or more that are neighbours along what is summed, as one load
brings them to its registers, if the other side of the product comes in the same order:
nothing goes through shared memory then, and no warp waits for another.  So it is where
warps have parts of what is summed, as a batch, words of bytes come in whole rows, and
the loop copies nothing ahead, as that goes to shared memory:

    w = load w[n/grid, (a/loop b p)]       of 4 threads each a quarter of b, in turn of
    x = load x[m, (a/loop b p)]        →   8 rows of w, of 8 columns m of x, of parts a
    q = product w0, x0 over(b)

**Iterations spread over columns.**  The matrix unit multiplies eight columns at least,
of which one row of x leaves seven empty.  Where the loop goes over the parts, they can
be those of eight iterations: x is loaded once for all of them, and takes an eighth of
the registers.  Of a product each iteration keeps the column of its own number:

    for each a:                            x = load x[1, (a b p)]   a column for each a
      x = load x[1, (a/loop b p)]          for each a:
      q = product w, x over(b)         →     q = product w, x over(b)
      s += q                                 s += q in column a
                                           s = the sum of its columns

**Values held without their factor.**  Attention multiplies each product of a query and
a key by a constant, takes the maximum of each row, and exponentials of the differences.
A constant above 0 leaves the order as it is, so the maximum can be one of what is not
multiplied yet, and the exponential, which has a factor of its own, takes the constant:

    s = mul x, 0.125                       m = max x
    m = max s                       →      e = exp2((x - m) * (0.125 * log2(e)))
    e = exp2((s - m) * log2(e))

A difference, where it is one, still comes first: it is exact where both are near,
however large they are.  What else reads a maximum gets `m * 0.125`, one number for a
row, which is the same to the last bit.  Infinities and masks of -inf are the same with
the factor and without it.  A finite number that a mask puts in, or a bias, is not: such
values are as they were.  The constant is at most 1, since a product with a larger one
is infinite where what is held is not, and not so small that differences beyond f32
would count.

**Exponents made in one operation.**  A difference times log2(e) is two operations for
each score of attention, which counts where few numbers are summed for it.  A score that
is computed is rounded, off by up to half of its last bit.  A maximum that is multiplied
and rounded once for all of its row changes no more than that, and then it is one
operation:

    e = exp2((s - m) * log2(e))     →      e = exp2(fma(s, unit, -offset))
                                           unit = log2(e), offset = unit * m

What a row's offset is off by is one factor of all of its exponentials, which a softmax
divides away.  It is within `2.0 ** ±4` where offsets are below 2 ** 27.  Beyond that
the unit is the power of two below, by which products are exact: the largest exponential
is 1.  The others are those of scores that are off by less than ten times half of their
last bit, as sums of products are.

**Elements changed in place.**  A program has no memory: a cache with a new row is a new
tensor, chosen element by element from the old one and from the row.

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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from mirage_dsl.core.types import Axis, Dim, Scalar, f16, f32, i8, i32, u8
from mirage_dsl.ir.graph import Operand, Split, grid_axes, integer_of
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator
from mirage_dsl.tile import program as tp

# -- Bytes unpacked in a step ----------------------------------------------------------

Part = Literal["byte", "low", "high", "both", "word"]
"""Which bits of a byte: all, the lower or the higher four, or both in turn; or four of
those of a word of 32 bits.

All bits of a float are the number that it is.
"""

MOST_OFFSET = 1024
"""Offsets up to here: what is left of a byte is a number of f16."""
HALF, WORD = 4, 32
"""Bits of half a byte, and of a word of which eight such are taken."""


@dataclass(frozen=True)
class Unpacked:
    """Floats that are a part of bytes less a number.

    Attributes:
        source: The tile of bytes.
        part: Which bits.
        less: What is subtracted.
        along: The dim of two lanes that tells which half, where it is both.
        lane: Which byte of a pair, where the source is loaded as words.
        place: Which four bits of a word of 32, where it is one.
    """

    source: str
    part: Part
    less: int = 0
    along: Dim | None = None
    lane: int | None = None
    place: int = 0


@dataclass(frozen=True)
class Packed:
    """What is unpacked in a step in a tile program.

    Attributes:
        floats: The values that are, in f32 or f16.
        steps: Values that only lead there: nobody else reads them.
        factors: Operands of 16 bits of the matrix unit that are made of bytes, but of
            words.
    """

    floats: Mapping[str, Unpacked]
    steps: frozenset[str]
    factors: frozenset[str]


def packed(
    program: tp.TileProgram,
    lanes: Callable[[Dim], int] | None = None,
    words: Container[str] = (),
) -> Packed:
    """What of a program's values is unpacked from bytes in a step.

    Args:
        program: The program.
        lanes: How many lanes a piece has; its extent if nothing is given.
        words: Its loads of words.
    """
    dtypes = {t.dtype for t in program.tiles.values()}
    if all(d.itemsize > 1 and d is not i32 for d in dtypes):
        return Packed({}, frozenset(), frozenset())
    lanes = lanes or (lambda d: _extent(d, program))
    return _UnpackedFinder(program, lanes, words).found()


def _extent(dim: Dim, program: tp.TileProgram) -> int:
    """Lanes of a dim that is whole; 0 of other pieces."""
    return 0 if dim.grid or dim.loop else program.extents.get(dim.name) or 0


class _UnpackedFinder:
    def __init__(
        self,
        program: tp.TileProgram,
        lanes: Callable[[Dim], int],
        words: Container[str],
    ) -> None:
        self._program = program
        self._tiles = program.tiles
        self._lanes = lanes
        self._words = words
        self._makers = {value: made[0] for value, made in program.makers.items()}

    def found(self) -> Packed:
        floats: dict[str, Unpacked] = {}
        leading: set[str] = set()
        for statement in self._program.statements:
            match statement:
                case tp.Compute() if statement.op is table.CONVERSIONS[f32]:
                    part = self._part(statement.operands[0], leading)
                    if part is not None and self._suits(statement, part):
                        floats[statement.result] = part
                case tp.Cast() if statement.tile.dtype == f16:
                    part = floats.get(statement.operand)
                    part = part or self._float(statement.operand, leading)
                    if part is not None:
                        floats[statement.result] = part
                case _:
                    pass
        leading |= self._only_cast(floats)
        steps = self._only_leading(floats, leading)
        return Packed(floats, steps, self._factors())

    def _factors(self) -> frozenset[str]:
        """Operands of 16 bits of the matrix unit that are made of bytes."""
        of_bytes, found = set[str](), set[str]()
        for statement in self._program.statements:
            match statement:
                case tp.Load() if statement.tile.dtype.itemsize == 1:
                    if statement.result not in self._words:
                        of_bytes.update(tp.makes(statement))
                case (
                    tp.Compute()
                    | tp.Cast()
                    | tp.Convert()
                    | tp.Mask()
                    | tp.Merge()
                    | tp.Lane()
                    | tp.Pick()
                ):
                    if not of_bytes.isdisjoint(tp.reads(statement)):
                        of_bytes.update(tp.makes(statement))
                case tp.Product() if statement.is_matrix:
                    found |= of_bytes & {statement.left, statement.right}
                case _:
                    pass
        return frozenset(v for v in found if self._tiles[v].dtype.itemsize == 2)

    def _only_cast(self, floats: Mapping[str, Unpacked]) -> set[str]:
        """Floats of which only the casts are read, which are unpacked as well."""
        read = {v: users for v, users in self._program.readers.items() if v in floats}
        return {
            v
            for v, users in read.items()
            if all(isinstance(u, tp.Cast) and u.result in floats for u in users)
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
                for s in self._program.statements
                if not any(m in floats or m in rest for m in tp.makes(s))
                for v in tp.reads(s)
            }
            if not rest & read:
                return frozenset(rest)
            rest -= read

    def _suits(self, made: tp.Compute, part: Unpacked) -> bool:
        """Whether the floats have the axes of the bytes, and the one that is both."""
        axes = tuple(d for d in made.tile.axes if d != part.along)
        source = self._tiles[part.source].axes
        source = source if part.lane is None else source[:-1]
        alone = part.along is None or part.along in made.tile.axes
        return bool(axes) and alone and axes == source

    def _part(self, value: Operand, leading: set[str]) -> Unpacked | None:
        """The part of bytes that a value of integers is."""
        if not isinstance(value, str):
            return None
        dtype, made = self._tiles[value].dtype, self._makers[value]
        found = self._step(made, leading) if isinstance(made, tp.Compute) else None
        if found is not None:
            leading.add(value)
            return found
        return self._byte(value, leading) if dtype in (u8, i8) else None

    def _byte(self, value: str, leading: set[str]) -> Unpacked | None:
        """A value as it was loaded: bytes, or one of the two of each word."""
        made = self._makers[value]
        if isinstance(made, tp.Lane) and made.operand in self._words:
            leading.add(value)
            return Unpacked(made.operand, "byte", lane=made.at)
        loaded = isinstance(made, tp.Load | tp.Convert | tp.Mask | tp.Pick)
        return Unpacked(value, "byte") if loaded else None

    def _float(self, value: str, leading: set[str]) -> Unpacked | None:
        """A float of 8 bits that is one of the two of a word."""
        own = set[str]()
        found = (
            self._byte(value, own) if self._tiles[value].dtype.itemsize == 1 else None
        )
        if found is None or found.lane is None or not self._tiles[value].dtype.is_float:
            return None
        leading |= own
        return found

    def _step(self, made: tp.Compute, leading: set[str]) -> Unpacked | None:
        op, dtype = made.op, made.tile.dtype
        own = set[str]()
        if op is table.BIT_AND:
            found = self._masked(made, own)
        elif op is table.SHIFT_RIGHT:
            found = self._shifted(made, own)
            if found is not None and self._tiles[found.source].dtype != u8:
                return None  # signs are shifted in; a mask has to take them away
        elif op in (table.ADD, table.SUB):
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

    def _masked(self, made: tp.Compute, leading: set[str]) -> Unpacked | None:
        """Half a byte: the lower one, or what a shift left."""
        value, mask = made.operands
        if integer_of(value, {}) is not None:
            value, mask = mask, value
        if integer_of(mask, {}) != 2**HALF - 1 or not isinstance(value, str):
            return None
        inner = self._makers[value]
        if isinstance(inner, tp.Compute) and inner.op is table.SHIFT_RIGHT:
            found = self._shifted(inner, leading)
            if found is not None:
                leading.add(value)
                found = replace(found, part="low") if found.part == "byte" else found
            return found
        found = self._part(value, leading)
        if found is None or found.less or found.part == "both":
            return None
        return replace(found, part="low") if found.part == "byte" else None

    def _shifted(self, made: tp.Compute, leading: set[str]) -> Unpacked | None:
        value, by = made.operands
        if not isinstance(value, str):
            return None
        if self._tiles[value].dtype not in (u8, i8):
            return self._of_word(value, by, leading)
        byte = self._byte(value, leading)
        if byte is None:
            return None
        number = self._number(by, leading)
        if number is not None:
            part: dict[int, Part] = {0: "byte", HALF: "high"}
            return replace(byte, part=part[number]) if number in part else None
        along = self._halves(by, leading)
        both = along is not None and byte.lane is None
        return replace(byte, part="both", along=along) if both else None

    def _of_word(self, value: str, by: Operand, leading: set[str]) -> Unpacked | None:
        """What a mask leaves of a word of 32 bits, shifted by four or several times."""
        number = self._number(by, leading)
        if number is None or number % HALF or not 0 <= number < WORD:
            return None
        source = value
        while isinstance(made := self._makers[source], tp.Compute):
            # As a wider number it has the same bits there.
            if made.op.gives is None or not made.tile.dtype.is_integer:
                return None
            leading.add(source)
            (source,) = (str(o) for o in made.operands)
            if self._tiles[source].dtype.itemsize > made.tile.dtype.itemsize:
                return None
        loaded = isinstance(made, tp.Load | tp.Convert | tp.Mask | tp.Pick)
        if not loaded or self._tiles[source].dtype is not i32:
            return None
        return Unpacked(source, "word", place=number // HALF)

    def _number(self, operand: Operand, leading: set[str]) -> int | None:
        """A constant, also one that is computed of a position that is known."""
        if not isinstance(operand, str):
            return integer_of(operand, {})
        if self._tiles[operand].axes:
            return None
        made, own = self._makers[operand], {operand}
        match made:
            case tp.Lane() if _is_position(self._makers[made.operand]):
                own.add(made.operand)
                found = made.at
            case tp.Compute() if made.tile.dtype.is_integer:
                given = [self._number(o, own) for o in made.operands]
                known = [float(n) for n in given if n is not None]
                if len(known) < len(given):
                    return None
                found = int(tp.held_by(made.op, known, made.tile.dtype))
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
                case tp.Positions():
                    (dim, *others) = made.tile.axes or (None,)
                    if dim is None or others or made.at != (dim,) or times != HALF:
                        return None
                    return dim if self._lanes(dim) == 2 else None
                case tp.Compute() if made.op is table.MUL:
                    numbers = [
                        n for o in made.operands if (n := integer_of(o, {})) is not None
                    ]
                    names = [o for o in made.operands if isinstance(o, str)]
                    if len(names) != 1 or len(numbers) != 1:
                        return None
                    times, value = times * numbers[0], names[0]
                case tp.Compute() if made.op.gives is not None:
                    value = made.operands[0]
                case _:
                    return None
        return None

    def _less(self, made: tp.Compute, leading: set[str]) -> Unpacked | None:
        """A part less a constant, in a format that holds the difference."""
        value, other = made.operands
        if made.op is table.ADD and integer_of(value, {}) is not None:
            value, other = other, value
        number, found = integer_of(other, {}), self._part(value, leading)
        dtype = made.tile.dtype
        if number is None or found is None or dtype == u8:
            return None
        less = found.less + (number if made.op is table.SUB else -number)
        wide = dtype != i8 or (found.part != "byte" and abs(less) <= 112)
        return replace(found, less=less) if wide and abs(less) < MOST_OFFSET else None


def positions(program: tp.TileProgram) -> frozenset[str]:
    """The values whose lanes are the positions along a whole dim."""
    found = (s for s in program.statements if _is_position(s))
    return frozenset(v for s in found for v in tp.makes(s))


def _is_position(statement: tp.Statement) -> bool:
    if not isinstance(statement, tp.Positions):
        return False
    (dim, *others) = statement.at
    return not others and dim == dim.whole


# -- Sides of products that lie in memory as one axis ----------------------------------


Sides = tuple[tp.Order, ...]


def runs(program: tp.TileProgram, exact: Callable[[Dim], bool]) -> Mapping[str, Sides]:
    """The loads that can have merged axes, each with the pieces of every axis.

    Args:
        program: The program.
        exact: Whether all lanes of a piece are inside, always.
    """
    if not any(isinstance(s, tp.Merge | tp.Lane) for s in program.statements):
        return {}
    found: dict[str, Sides] = {}
    for load in (s for s in program.statements if isinstance(s, tp.Load)):
        readers = program.readers.get(load.result, ())
        sides = {_sides(reader, load) for reader in readers}
        (side, *others) = sides or (None,)
        if side is None or others or not _is_plain(load):
            continue
        several = [s for s in side if len(s) > 1]
        if several and all(_is_run(s, load.at, exact) for s in several):
            found[load.result] = side
    return found


def _sides(reader: tp.Statement, load: tp.Load) -> Sides | None:
    """The axes as which a statement can take a load, if not as its tile has them."""
    if isinstance(reader, tp.Merge):
        return reader.sides
    if not isinstance(reader, tp.Lane):
        return None
    axes, along = load.tile.axes, reader.along
    for axis in load.at:
        if along in axis[1:]:
            run = axis[axis.index(along) - 1 :]
            rest = (d for d in axes if d not in run[1:])
            return tuple(run if d == run[0] else (d,) for d in rest)
    return None


def _is_plain(load: tp.Load) -> bool:
    """Whether each lane has its own address, and there is no other copy."""
    pointer = load.via == "pointer" and load.along is None
    return pointer and load.instead is None and load.when is True


def _is_run(side: tp.Order, at: tuple[Axis, ...], exact: Callable[[Dim], bool]) -> bool:
    """Whether pieces are next to each other in an axis, and whole but for the first."""
    whole = all(not d.grid and not d.loop for d in side[1:])
    if not whole or not all(map(exact, side)):
        return False
    for axis in at:
        if side[0] in axis:
            first = axis.index(side[0])
            return axis[first : first + len(side)] == side
    return False


# -- Pairs loaded as words -------------------------------------------------------------


def words(program: tp.TileProgram) -> Mapping[str, Dim]:
    """The loads of which each two elements can be one word, with the dim of the two.

    Those of programs that take pairs of bytes apart, and along the same dims.
    """
    found: dict[str, Dim] = {}
    for load in (s for s in program.statements if isinstance(s, tp.Load)):
        inner, readers = _innermost(load, program), program.readers.get(load.result, ())
        lanes = [s.along for s in readers if isinstance(s, tp.Lane)]
        alone = len(lanes) == len(readers) and {*lanes} == {inner}
        if alone and inner is not None and load.tile.axes[-1:] == (inner,):
            found[load.result] = inner
    dims = {d for v, d in found.items() if program.tiles[v].dtype.itemsize == 1}
    return {name: dim for name, dim in found.items() if dim in dims}


def _innermost(load: tp.Load, program: tp.TileProgram) -> Dim | None:
    """A dim of two elements of one or two bytes that lie next to each other."""
    kind = program.tensors.get(load.source)
    if kind is None or not _is_plain(load) or kind.dtype.itemsize > LARGEST_OF_PAIR:
        return None
    axis: Axis = load.at[kind.order[-1]] if kind.order else ()
    return axis[-1] if axis and _extent(axis[-1], program) == 2 else None


LARGEST_OF_PAIR = 2
"""Bytes of an element of which two are one word."""


# -- Words dealt to the matrix unit ----------------------------------------------------

DEALT_THREADS = 4
"""Threads of a warp that have neighbours along what is summed, and how many such fours
there are: each for a row, and for a column."""
DEALT_ROWS = 8
DEALT_WORDS = 32
"""Words along what is summed, at least: of each thread sixteen bytes."""
DEALT_BYTES = 16
"""Bytes that a thread loads at once."""
DEALT_REGISTERS, DEALT_WARPS = 128, 8
"""Registers of a thread at most, in blocks of at most so many warps.

With more, half as many blocks are on a multiprocessor, and half as many bytes under
way: a gated MLP of 8 rows, with f8 weights of 4096 by 4096, takes 14.2 µs on an H100
with so many, and 16.2 with all that it can use.  Of larger blocks there are two if
compilers take what they like: 8.7 µs of one row with weights of 4 bits, 10.7 so.
"""
DEALT_AT_ONCE = 2
"""Iterations of a loop that are written out, all of whose loads are under way then."""


@dataclass(frozen=True)
class Dealt:
    """A load whose threads have what they multiply.

    Attributes:
        batch: The piece of which warps have a part each.
        side: The piece of rows, or of columns.
        run: What is summed, and pieces of which lanes are taken, as one axis.
        of_rows: Whether it is the side of rows.
    """

    batch: Dim
    side: Dim
    run: tp.Order
    of_rows: bool


@dataclass(frozen=True)
class Deal:
    """How a program deals words to the matrix unit.

    Attributes:
        loads: What it loads so, by the results.
        when: At which sizes.
    """

    loads: Mapping[str, Dealt]
    when: tp.Number

    @staticmethod
    def registers(warps: int) -> int | None:
        """Registers of a thread at most; None is as many as it can use."""
        return DEALT_REGISTERS if warps <= DEALT_WARPS else None


def deal(
    program: tp.TileProgram, taken: Mapping[str, Dim], joined: Mapping[str, Sides]
) -> Deal | None:
    """How a program can deal words to the matrix unit; None if it cannot.

    Args:
        program: The program.
        taken: Its loads of words, as `words` finds them.
        joined: Its loads with merged axes, as `runs` finds them.
    """
    statements = [s for s, looped in tp.walk(program.body) if looped]
    products = [s for s in statements if isinstance(s, tp.Product) and s.is_matrix]
    over = {d for s in products for d in s.over}
    if len(over) != 1:
        return None
    (piece,) = over
    if piece != piece.whole:
        return None
    loads: dict[str, Dealt] = {}
    tiles = program.tiles
    around = [
        v for s, looped in tp.walk(program.body) if not looped for v in tp.makes(s)
    ]
    if any(piece in tiles[v].axes for v in around if v in tiles):
        return None
    for statement in statements:
        if isinstance(statement, tp.Load) and piece in statement.tile.axes:
            found = _dealt(statement, piece, products, taken, joined)
            if found is None:
                return None
            loads[statement.result] = found
        elif not _knows_no_order(statement, piece, tiles):
            return None
    if len({load.of_rows for load in loads.values()}) != len((True, False)):
        return None
    fits = (
        _fits(load, tiles[name].dtype.itemsize * (1 + (name in taken)))
        for name, load in loads.items()
    )
    return Deal(loads, tp.all_of([tp.opposite(tp.fold("gt", tp.STAGES, 1)), *fits]))


def spread(
    program: tp.TileProgram, dealt: Mapping[str, Dealt], pieces: tp.Pieces
) -> Dim | None:
    """The piece of columns over which iterations can be spread; None if there is none.

    Args:
        program: The program.
        dealt: The loads that give threads what they multiply.
        pieces: Its pieces at the sizes that it is made for.
    """
    columns = {d.side: d for d in dealt.values() if not d.of_rows}
    if program.loop is None or program.bounds or program.whole or len(columns) != 1:
        return None
    ((side, load),) = columns.items()
    if program.extents[side.name] != 1 or not load.batch.loop or side.loop:
        return None
    if program.extents[program.loop.dim] is None:
        return None
    if not 2 <= tp.iterations(program) <= pieces[side].width:
        return None
    looped = [s for s, inside in tp.walk(program.body) if inside]
    summed = {s.target for s in looped if isinstance(s, tp.Update)}
    plain = all(_keeps_columns(s, side, program, dealt, summed) for s in looped)
    return side if plain else None


def _keeps_columns(
    statement: tp.Statement,
    side: Dim,
    program: tp.TileProgram,
    dealt: Mapping[str, Dealt],
    summed: AbstractSet[str],
) -> bool:
    """Whether a column of what a statement makes depends on no other column.

    Nor on what the loop does not make: that has one column.
    """
    tiles = program.tiles
    made = [v for v in tp.makes(statement) if v in tiles and side in tiles[v].axes]
    read = [v for v in tp.reads(statement) if v in tiles and side in tiles[v].axes]
    if isinstance(statement, tp.Load):
        return not made or statement.result in dealt
    if isinstance(statement, tp.Update):
        return statement.op is table.SUM and statement.operand not in summed
    if not made and not read:
        return not isinstance(statement, tp.Store)
    if any(v not in program.inside or v in summed for v in read):
        return False
    if isinstance(statement, tp.Product):
        return statement.is_matrix and statement.into is None
    if isinstance(statement, tp.Lane):
        return statement.along != side
    return isinstance(statement, tp.Compute | tp.Cast | tp.Convert)


def _knows_no_order(
    statement: tp.Statement, piece: Dim, tiles: Mapping[str, tp.Tile]
) -> bool:
    """Whether a statement computes the same in whichever order a piece comes."""
    made = (tiles[v].axes for v in tp.makes(statement) if v in tiles)
    read = (tiles[v].axes for v in tp.reads(statement) if v in tiles)
    if not any(piece in axes for axes in (*made, *read)):
        return True
    if isinstance(statement, tp.Lane):
        return statement.along != piece
    if isinstance(statement, tp.Product):
        return statement.is_matrix and statement.over == (piece,)
    # Masks are of what is loose, and so there are none.
    return isinstance(statement, tp.Compute | tp.Cast | tp.Convert | tp.Mask)


def _dealt(
    load: tp.Load,
    piece: Dim,
    products: Sequence[tp.Product],
    taken: Mapping[str, Dim],
    joined: Mapping[str, Sides],
) -> Dealt | None:
    """How a load of what is summed is dealt; None if it cannot be."""
    if not _is_plain(load):
        return None
    sides = joined.get(load.result)
    if load.result in taken:
        sides = tuple((d,) for d in load.tile.axes[:-1])
    run = next((s for s in sides or () if s[0] == piece), None)
    if run is None or sides is None:
        return None
    of_rows = load.result in taken and load.tile.dtype.itemsize == 1
    for product in products:
        batch, side = product.batch, product.rows if of_rows else product.columns
        wanted = (*batch, *side, run[-1]) if of_rows else (*batch, run[-1], *side)
        if len(wanted) != len(("batch", "side", "run")):
            continue
        if batch[0].grid or side[0].loop or (side[0].grid and not of_rows):
            continue
        if tuple(s[-1] for s in sides) == wanted and all(
            len(s) == 1 for s in sides if s != run
        ):
            return Dealt(batch[0], side[0], run, of_rows)
    return None


def _fits(load: Dealt, itemsize: int) -> tp.Number:
    """Whether threads have whole words, and warps whole parts and rows."""
    (over, *inner) = load.run
    each = tp.product((itemsize, *map(tp.lanes, inner)))
    conditions: list[tp.Number] = [
        tp.fold("ge", tp.lanes(over), DEALT_WORDS),
        tp.fold("ge", tp.lanes(load.batch), tp.WARPS),
        *(tp.opposite(tp.loose(d)) for d in (load.batch, *load.run)),
    ]
    if load.of_rows:
        conditions += [
            tp.fold("ge", tp.lanes(load.side), 2 * DEALT_ROWS),
            tp.opposite(tp.loose(load.side)),
        ]
    else:
        # Two words at least are loaded at once.
        conditions += [
            tp.opposite(tp.fold("gt", tp.lanes(load.side), DEALT_ROWS)),
            tp.fold("ge", tp.lanes(load.side), DEALT_ROWS),
            tp.opposite(tp.fold("gt", each, DEALT_BYTES // 2)),
        ]
    return tp.all_of(conditions)


# -- Values held without their factor --------------------------------------------------

LEAST_FACTOR = 2.0**-60
"""With this, differences beyond f32 have exponentials of 0 or infinity as well."""
LARGEST_EXTENT = 2**40
"""What unknown extents are not above."""


@dataclass(frozen=True)
class Held:
    """What a printer may hold without a factor in a tile program.

    Attributes:
        factors: The values, each with what it has to be multiplied by.
        rounded: Products that have to be rounded by themselves (`Compute.rounded`), as
            maxima are subtracted from them then.
    """

    factors: Mapping[str, Scalar]
    rounded: frozenset[str]

    def takes(self, statement: tp.Statement, value: str) -> bool:
        """Whether a statement reads a value as it is held."""
        return _takes(statement, value, self.factors)

    def factor_of(self, step: tp.Compute | tp.Largest) -> Scalar | None:
        """What the exponential of a difference takes on."""
        together = held_together(step)
        return self.factors[together[0]] if _alike(together, self.factors) else None


NONE_HELD = Held({}, frozenset())


def held_over(program: tp.TileProgram) -> Held:
    """The values that may be held without a factor.

    They are products with a constant and what masks of -inf make of them, where only
    maxima and exponentials relative to these read them; and the maxima, whatever reads
    them.
    """
    computed = (s for s in program.statements if isinstance(s, tp.Compute))
    if not any(s.inner is table.SUB for s in computed):
        return NONE_HELD
    return _HeldFinder(program).found()


def held_together(statement: tp.Statement) -> tuple[str, ...]:
    """The values of which a statement makes the same as with a factor, or takes it on.

    All those that it reads and makes, but for conditions and a maximum's `scale`; none
    where it matters what the factor is.
    """
    match statement:
        case tp.Mask() | tp.Finite() if statement.fill == -math.inf:
            return statement.operand, statement.result
        case tp.Convert():
            return statement.operand, statement.result
        case tp.Reduce() if statement.op.selects and statement.op.neutral == -math.inf:
            return statement.operand, statement.result
        case tp.Largest():
            return statement.operand, statement.state, statement.result
        case tp.Update() if statement.op.join is table.MAXIMUM:
            return statement.operand, statement.target
        case tp.Compute():
            return _computed_together(statement)
        case _:
            return ()


def _computed_together(step: tp.Compute) -> tuple[str, ...]:
    if step.op is table.EXP and step.inner is table.SUB:
        read = step.operands
    elif step.op is table.MAXIMUM:
        read = (*step.operands, step.result)
    elif step.op is table.WHERE:
        condition, *chosen = step.operands
        read = (*(o for o in chosen if not _is_lowest(o)), step.result)
        read = () if condition in read else read
    else:
        return ()
    names = tuple(o for o in read if isinstance(o, str))
    return names if len(names) == len(read) else ()


def _is_lowest(operand: Operand) -> bool:
    return isinstance(operand, Scalar) and operand == Scalar(-math.inf)


def _alike(values: Iterable[str], factors: Mapping[str, Scalar]) -> bool:
    """Whether all are held without the same factor."""
    found = {factors.get(v) for v in values}
    return len(found) == 1 and None not in found


def _takes(statement: tp.Statement, value: str, factors: Mapping[str, Scalar]) -> bool:
    together = held_together(statement)
    return value in together and _alike(together, factors)


def _factor(statement: tp.Statement, program: tp.TileProgram) -> Scalar | None:
    """The constant by which a tile is multiplied, if it can be taken on."""
    if not isinstance(statement, tp.Compute) or statement.op is not table.MUL:
        return None
    numbers = [o for o in statement.operands if isinstance(o, Scalar)]
    if len(numbers) != 1 or statement.tile.dtype is not f32:
        return None
    (factor,) = numbers
    unknown = [n for n, _ in factor.extents if program.extents.get(n) is None]
    if any(power > 0 for name, power in factor.extents if name in unknown):
        return None
    known = {n: e for n, e in program.extents.items() if e is not None}
    most = factor.at({**known, **dict.fromkeys(unknown, 1)})
    least = factor.at({**known, **dict.fromkeys(unknown, LARGEST_EXTENT)})
    return factor if least >= LEAST_FACTOR and most <= 1.0 else None


class _HeldFinder:
    def __init__(self, program: tp.TileProgram) -> None:
        self._program = program
        self._makers = program.makers

    def found(self) -> Held:
        factors = self._candidates()
        while True:
            kept = {v: c for v, c in factors.items() if self._holds(v, factors)}
            if len(kept) == len(factors):
                break
            factors = kept
        taken = (self._multiplied(v) for v in factors if v in self._origins)
        rounded = frozenset(v for value in taken for v in self._products(value) or ())
        return Held(factors, rounded)

    @cached_property
    def _origins(self) -> Mapping[str, Scalar]:
        """Products with a constant that may be held as what is multiplied."""
        return {
            value: factor
            for statement in self._program.statements
            if (factor := _factor(statement, self._program)) is not None
            for value in tp.makes(statement)
            if self._may_be(value, self._multiplied(value))
        }

    def _multiplied(self, value: str) -> str:
        """The tile that is multiplied by a constant."""
        (tile,) = tp.reads(self._makers[value][0])
        return tile

    def _may_be(self, value: str, other: str) -> bool:
        """Whether a value can be held as another one, which stays as it is."""
        carried = any(isinstance(s, tp.Start) for s in self._makers[other])
        stays = not carried or value not in self._program.inside
        alike = self._program.tiles[value] == self._program.tiles[other]
        return stays and alike and self._products(other) is not None

    def _candidates(self) -> dict[str, Scalar]:
        """Products with a constant, and all that is made of them."""
        factors = dict(self._origins)
        for statement in self._program.statements:
            given, *others = held_together(statement) or ("",)
            if given in factors:
                for value in tp.makes(statement):
                    if value in others:
                        factors.setdefault(value, factors[given])
        return factors

    def _holds(self, value: str, factors: Mapping[str, Scalar]) -> bool:
        """Whether a value can be held where these others are."""
        if value not in self._origins:
            for made in self._makers[value]:
                lowest = isinstance(made, tp.Start) and made.value == -math.inf
                if not lowest and not _takes(made, value, factors):
                    return False
        if value in self._maxima:
            return True
        readers = self._program.readers.get(value, ())
        return all(_takes(s, value, factors) for s in readers)

    @cached_property
    def _maxima(self) -> frozenset[str]:
        """Maxima, and what else is made of these alone."""
        found = set[str]()
        for statement in self._program.statements:
            match statement:
                case tp.Reduce() | tp.Largest() | tp.Update():
                    found.update(tp.makes(statement))
                case _:
                    read = tp.reads(statement)
                    together = held_together(statement)
                    if read and all(v in found for v in read if v in together):
                        found.update(v for v in tp.makes(statement) if v in together)
        return frozenset(found)

    # -- What maxima are subtracted from then --------------------------------------

    def _products(self, value: str) -> tuple[str, ...] | None:
        """The products that a value may be as it is, not rounded by themselves.

        None if it may be another number that a difference would be made one operation
        with.
        """
        found: list[str] = []
        for made in self._makers[value]:
            inner = self._products_of(made)
            if inner is None:
                return None
            found += inner
        return tuple(found)

    def _products_of(self, made: tp.Statement) -> Iterable[str] | None:
        match made:
            case tp.Load() | tp.Cast() | tp.Start() | tp.Rescale():
                return ()
            case tp.Product():
                return () if made.over else None
            case tp.Update():
                return () if made.op.join in _ENDED else None
            case tp.Reduce() if made.op.join in _ENDED:
                # It may be over one element.
                return self._products(made.operand)
            case tp.Convert() | tp.Mask():
                return self._products(made.operand)
            case tp.Compute() if made.inner is None:
                return self._products_computed(made)
            case _:
                return None

    def _products_computed(self, made: tp.Compute) -> Iterable[str] | None:
        if made.op is table.MUL:
            return (made.result,)
        if made.op is table.CONVERSIONS[f32]:
            return ()
        if made.op is table.WHERE:
            return self._products_of_all(made.operands[1:])
        if made.op not in _ENDED:
            return None
        # With a constant it may be nothing but its operand.
        values = [o for o in made.operands if isinstance(o, str)]
        return self._products_of_all(values) if len(values) == 1 else ()

    def _products_of_all(self, operands: Iterable[Operand]) -> Iterable[str] | None:
        found = [self._products(o) for o in operands if isinstance(o, str)]
        known = [f for f in found if f is not None]
        whole = len(known) == len(found)
        return [v for each in known for v in each] if whole else None


_ENDED = (table.ADD, table.SUB, table.MAXIMUM, table.MINIMUM)
"""Operators of whose results and another number no single operation is made."""


# -- Exponents made in one operation ---------------------------------------------------

LOG2_E = math.log2(math.e)
MOST_SUMMED = 64
"""Elements of a score's sum up to which its exponential, and not the product, is what a
kernel waits for.  [M] H200: with heads of 64 attention takes 0.94 to 1.00 of the time,
with heads of 128 1.00 to 1.03."""
LARGEST_OFFSET = 2.0**27
"""Offsets below it are off by at most 4, of which f16 holds the exponential."""


@dataclass(frozen=True)
class Unit:
    """What scores and their maximum are multiplied by in exponents.

    Attributes:
        plain: log2(e), times the factor that the scores are held without.
    """

    plain: float

    @property
    def far(self) -> float:
        """The power of two below, for rows whose maximum is not below `near`."""
        return 2.0 ** math.floor(math.log2(self.plain))

    @property
    def near(self) -> float:
        """Products of a maximum below it and `plain` are below `LARGEST_OFFSET`."""
        return LARGEST_OFFSET / (2.0 * self.far)


def units_over(program: tp.TileProgram, held: Held) -> Mapping[str, Unit]:
    """The maxima that scores are multiplied with in one operation, each with its unit.

    Of scores that are made of short sums of products; the maxima are of the same
    program, whatever their scores are.
    """
    known = {n: e for n, e in program.extents.items() if e is not None}
    scores = _made_of_products(program)
    units: dict[str, set[Unit | None]] = {}
    for statement in program.statements:
        if isinstance(statement, tp.Compute) and statement.inner is table.SUB:
            whole, row = statement.operands
            if isinstance(row, str) and _is_maximum(program, row):
                factor = held.factor_of(statement)
                number = 1.0 if factor is None else factor.known_at(known)
                unit = Unit(number * LOG2_E) if number and whole in scores else None
                units.setdefault(row, set()).add(unit)
    return {
        row: unit
        for row, found in units.items()
        if len(found) == 1 and (unit := next(iter(found))) is not None
    }


def _made_of_products(program: tp.TileProgram) -> frozenset[str]:
    """What is computed of products that sum over few elements."""
    found = set[str]()
    for statement in program.statements:
        match statement:
            case tp.Product():
                summed = [program.extents.get(d.name) for d in statement.over]
                few = math.prod(n or math.inf for n in summed) <= MOST_SUMMED
                found.update(tp.makes(statement) if summed and few else ())
            case tp.Compute() | tp.Mask() | tp.Convert() | tp.Update():
                if not found.isdisjoint(tp.reads(statement)):
                    found.update(tp.makes(statement))
            case _:
                pass
    return frozenset(found)


def _is_maximum(program: tp.TileProgram, value: str) -> bool:
    """Whether a value is the maximum of rows, finite or in another order."""
    for made in program.makers[value]:
        match made:
            case tp.Largest() | tp.Start():
                pass
            case tp.Reduce() if made.op.selects and made.op.neutral == -math.inf:
                pass
            case tp.Finite() | tp.Convert():
                if not _is_maximum(program, made.operand):
                    return False
            case _:
                return False
    return True


# -- Elements changed in place ---------------------------------------------------------

LESS, LESS_EQUAL = table.OPERATORS["less"], table.OPERATORS["less_equal"]


@dataclass(frozen=True)
class Written:
    """Elements that a store changes.

    Attributes:
        value: What is new.
        tile: Its lanes, and their format.
        under: Tiles of truth values that tell where: each is true there, or is not.
    """

    value: Operand
    tile: tp.Tile
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
    ahead: tuple[tp.Statement, ...]


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


def changes(program: tp.TileProgram, over: Mapping[str, str]) -> Changes:
    """What a program changes.

    Args:
        program: The program.
        over: Results, each with the tensor in whose place it is stored.
    """
    if over.keys().isdisjoint(program.tensors):
        return NOTHING
    return _ChangeFinder(program, over).found()


class _ChangeFinder:
    def __init__(self, program: tp.TileProgram, over: Mapping[str, str]) -> None:
        self._program = program
        self._over = over
        self._tiles = program.tiles
        self._makers = {value: made[-1] for value, made in program.makers.items()}

    def found(self) -> Changes:
        stores = [s for s in self._program.statements if isinstance(s, tp.Store)]
        changed = {s.result: c for s in stores if (c := self._change(s)) is not None}
        narrowed = None
        if len(changed) == len(stores):
            narrowed = self._narrowed([self._along(c) for c in changed.values()])
        return Changes(changed, self._unused(changed), narrowed)

    # -- One store -----------------------------------------------------------------

    def _change(self, store: tp.Store) -> Change | None:
        """What a store changes; None if it may be all."""
        source = self._over.get(store.result)
        loads = [s for s in self._program.statements if isinstance(s, tp.Load)]
        if (
            store.operand in self._program.inside
            or sum(s.source == source for s in loads) != 1
        ):
            return None
        assert source is not None
        parts, value, under = list[Written](), store.operand, list[tuple[str, bool]]()
        while not self._is_old(value, store, source):
            made = self._makers[value]
            if not isinstance(made, tp.Compute) or made.op is not table.WHERE:
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

    def _leads_to(self, value: Operand, store: tp.Store, source: str) -> bool:
        """Whether a value is chosen of what lies where a store puts it, and others."""
        if not isinstance(value, str):
            return False
        if self._is_old(value, store, source):
            return True
        made = self._makers[value]
        if not isinstance(made, tp.Compute) or made.op is not table.WHERE:
            return False
        return any(self._leads_to(o, store, source) for o in made.operands[1:])

    def _is_old(self, value: str, store: tp.Store, source: str) -> bool:
        """Whether a value is what lies where a store puts it."""
        made = self._loaded(value)
        return (
            made is not None
            and (made.source, made.at, made.along) == (source, store.at, None)
            and made.tile.dtype is store.dtype
        )

    def _loaded(self, value: str) -> tp.Load | None:
        """The load that a value is, in whatever form."""
        made = self._makers[self._plain(value)]
        return made if isinstance(made, tp.Load) else None

    def _plain(self, value: str) -> str:
        """A value before it was converted."""
        made = self._makers[value]
        while isinstance(made, tp.Convert):
            value, made = made.operand, self._makers[made.operand]
        return value

    def _only_stays(self, value: str, choice: tp.Statement) -> bool:
        """Whether one choice alone reads a value, in whatever form.

        What else is computed of it could be so after another thread has stored.
        """
        left = [self._plain(value)]
        while left:
            for reader in self._program.readers.get(left.pop(), ()):
                if reader is not choice:
                    if not isinstance(reader, tp.Convert):
                        return False
                    left.append(reader.result)
        return True

    def _unused(self, changed: Mapping[str, Change]) -> frozenset[str]:
        """What leads to the whole results alone."""
        read: dict[str, int] = {}
        for value in (
            v for s in self._program.statements for v in self._needs(s, changed)
        ):
            read[value] = read.get(value, 0) + 1
        found: set[str] = set()
        stores = [s for s in self._program.statements if isinstance(s, tp.Store)]
        left = [s.operand for s in stores if s.result in changed]
        while left:
            value = left.pop()
            made = self._makers[value]
            plain = isinstance(made, tp.Compute | tp.Convert | tp.Load)
            if read.get(value, 0) or value in found or not plain:
                continue
            found.add(value)
            for operand in tp.reads(made):
                read[operand] -= 1
                left.append(operand)
        return frozenset(found)

    def _needs(
        self, statement: tp.Statement, changed: Mapping[str, Change]
    ) -> list[str]:
        if not isinstance(statement, tp.Store) or statement.result not in changed:
            return list(tp.reads(statement))
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
        if ahead is None:
            return None
        first = (*ahead, *self._loaded_early())
        if any(self._depends(s, stretches) for s in first):
            return None
        return Narrowed(stretches, ahead)

    def _loaded_early(self) -> list[tp.Load]:
        """What the loop loads, if some of it is loaded before all else."""
        every = tp.walk(self._program.body)
        found = [s for s, looped in every if looped and isinstance(s, tp.Load)]
        return found if any(s.early for s in found) else []

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
        if not isinstance(made, tp.Compute):
            return None
        if made.op is table.MUL:
            return self._both(*map(self._range, made.operands))
        if made.op not in (table.EQUAL, LESS, LESS_EQUAL):
            return None
        for at, other in enumerate(made.operands[::-1]):
            dim = self._counted(made.operands[at])
            if dim is None or not dim.grid or dim.loop:
                continue
            if made.op is table.EQUAL and self._is_data(other):
                return _Range(dim.name, str(other), None)
            number = integer_of(other, self._program.extents)
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

    def _counted(self, value: Operand) -> Dim | None:
        """The dim whose positions a value is."""
        made = self._makers.get(value) if isinstance(value, str) else None
        if not isinstance(made, tp.Positions) or len(made.at) != 1:
            return None
        return made.at[0]

    def _ahead(self, values: Iterable[int | str]) -> tuple[tp.Statement, ...] | None:
        """What computes some integers; None if it cannot come first."""
        wanted, left = set[str](), [v for v in values if isinstance(v, str)]
        while left:
            name = left.pop()
            made = self._makers[name]
            plain = isinstance(
                made, tp.Compute | tp.Cast | tp.Convert | tp.Load | tp.Positions
            )
            if not plain or self._tiles[name].axes or name in self._program.inside:
                return None
            if name not in wanted:
                wanted.add(name)
                left += tp.reads(made)
        found = [s for s in self._program.body if wanted & {*tp.makes(s)}]
        if any(isinstance(s, tp.Ask) for s in self._program.body):
            return None
        return (*self._waits(found), *found)

    def _waits(self, found: Iterable[tp.Statement]) -> list[tp.Statement]:
        """The wait that stands before any of these."""
        body = list(self._program.body)
        last = max((body.index(s) for s in found), default=0)
        return [s for s in body[:last] if isinstance(s, tp.Wait)]

    def _depends(self, statement: tp.Statement, dims: Container[str]) -> bool:
        """Whether a statement reads at the block's place along one of some dims."""
        match statement:
            case tp.Load():
                return any(d.name in dims for axis in statement.at for d in axis)
            case tp.Positions():
                return any(d.name in dims for d in statement.at)
            case _:
                return False


def _compared(dim: str, op: Operator, number: int, *, ahead: bool) -> _Range:
    """Where positions are as a comparison with a number says, which may stand ahead."""
    if op is table.EQUAL:
        return _Range(dim, number, number + 1)
    if ahead:
        return _Range(dim, number + (op is LESS), None)
    return _Range(dim, 0, number + (op is LESS_EQUAL))
