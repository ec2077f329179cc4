"""Tile programs: what one block does, in order, as data.

The third level, between block graphs and the language that is printed.  Its values
are tiles: the axes of a tile are pieces of dims, as in a block graph (`k`, `k/grid`,
`k/loop`), and stand in an order, from the slowest to the fastest.  How many elements
and lanes a piece has is a size.  Numbers that depend on sizes are formulas
(`tile.sizes`), so one program serves many sizes; what changes the statements
themselves (operands swapped, a row for a vector, a sum deferred, a piece of one lane)
makes another program.

Statements are a closed set of frozen dataclasses, to be handled by `match` with
`assert_never`.  Values are named, and made once; only what a loop carries (`Start`) is
assigned again.  A statement's notes are the lines that it comes from; they mean
nothing, and tell no two statements apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    MemorySpace,
    TensorType,
    f32,
    flat_type,
)
from mirage_dsl.ir.evaluate.floats import as_format
from mirage_dsl.ir.graph import (
    BlockGraph,
    LoopBound,
    Operand,
    Schedule,
    Split,
    grid_axes,
)
from mirage_dsl.ops.definition import Operator
from mirage_dsl.tile.sizes import SMALLEST_DOT, Number, Order, Pieces

AGAIN = "/again"
"""What ends the name of a load's copy that registers read."""
MERGED = "/merge"
"""What ends the name of a merged operand, after its name before it changed its form."""


@dataclass(frozen=True)
class Tile:
    """The type of a value: its element format and its axes.

    Pieces that the program knows to have one lane (`TileProgram.units`) are no axes.
    """

    dtype: DType
    axes: Order


@dataclass(frozen=True)
class Note:
    """A line of the block graph, and the user's line from which it was traced."""

    text: str
    location: SourceLocation | None = None


Notes = tuple[Note, ...]


Known = Literal["no", "apart", "in_row"]
"""Whether positions are known when a program is made, and to follow one another."""

# -- Memory ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Along:
    """Where a load is along a dim of its tensor that has no piece: at data.

    Attributes:
        dim: The dim, whole.
        index: The tile of integers that tells the positions, those below 0 counted
            from the end.  Lanes whose position is in no way inside read 0.
        known: With `apart` and `in_row`, positions are inside in all lanes that are
            read, so nothing is counted or compared; with `in_row` they follow one
            another along the index's axis, but at a few places.
        under: A tile of truth values: lanes where it is not `holds` read 0, whatever
            their position.
        holds: See `under`.
    """

    dim: Dim
    index: str
    known: Known = "no"
    under: str | None = None
    holds: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it depends on."""
        return (self.index,) if self.under is None else (self.index, self.under)


@dataclass(frozen=True)
class Load:
    """A tile of a tensor.

    Attributes:
        result: Its name.
        tile: Its type; the format is the tensor's.
        source: The kernel-level tensor.
        at: The axes of the tensor: which piece of each is read.
        via: By `pointer`, each lane its own address: lanes outside of the `guarded`
            pieces read 0.  By `descriptor`, a box as a whole: what lies outside of
            the tensor reads 0, what lies outside of the piece but in the tensor is
            read.
        guarded: Pieces along which lanes outside are not read.
        buffers: Stages of shared memory that the loop's pipeline keeps for it; 0
            outside of loops, where it goes to registers.
        when: Whether it is made at all.
        instead: For the copy of a load that registers read: the load that serves
            where it is not made.
        along: The dim along which positions are data; None where all are known.  The
            tile has the axes of the index then, and those of `at` besides this dim.
    """

    result: str
    tile: Tile
    source: str
    at: tuple[Axis, ...]
    via: Literal["pointer", "descriptor"] = "pointer"
    guarded: Order = ()
    buffers: Number = 0
    when: Number = True
    instead: str | None = None
    along: Along | None = None
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Store:
    """The lanes of a tile that are inside, into a tensor.

    Attributes:
        result: The kernel-level tensor.
        operand: The tile.  Along pieces of `at` that it lacks it is the same.
        at: The axes of the tensor: which piece of each is written.  A dim `k#` is
            indexed by the coordinate of the grid dim `k`.
        dtype: The storage format.
    """

    result: str
    operand: str
    at: tuple[Axis, ...]
    dtype: DType
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Ask:
    """The first few tiles of a load of the loop, into the L2 cache, without waiting.

    Attributes:
        source: The kernel-level tensor.
        at: Its axes, as in the load.
        tiles: How many tiles along the loop.
        when: Whether they are asked for: not where they may lie partly outside.
    """

    source: str
    at: tuple[Axis, ...]
    tiles: int
    when: Number = True
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Positions:
    """The position of each lane along an axis, counted from 0: a load without memory.

    Attributes:
        result: Its name.
        tile: Its type, in i64, or in i32 where that is enough for all that follows.
        at: The axis: which piece of each of its dims; several count row-major.
    """

    result: str
    tile: Tile
    at: Axis
    notes: Notes = field(default=(), compare=False, repr=False)


# -- One element at a time -------------------------------------------------------------


@dataclass(frozen=True)
class Compute:
    """An operator of the table on each element, in f32.

    Operands are f32 tiles whose axes are some of the result's, in its order, and
    constants; tiles spread over the axes that they lack.

    Attributes:
        result: Its name.
        tile: Its type.
        op: The operator.
        operands: What it is applied to; with `inner`, what that is applied to.
        inner: An operator that is computed in the same step: `op(inner(operands))`.
            The exponential of a difference, or of a product with a constant.
        rounded: It is rounded by itself, never made one operation with what reads it.
    """

    result: str
    tile: Tile
    op: Operator
    operands: tuple[Operand, ...]
    inner: Operator | None = None
    rounded: bool = False
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Cast:
    """The operand rounded to the element format of `tile`, as the program says."""

    result: str
    tile: Tile
    operand: str
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Finite:
    """A shift, with 0 for what that of a wholly masked row is: its neutral element."""

    result: str
    tile: Tile
    operand: str
    fill: float = -math.inf
    notes: Notes = field(default=(), compare=False, repr=False)


# -- Changes of form -------------------------------------------------------------------


@dataclass(frozen=True)
class Convert:
    """The same numbers as f32, or with the axes in another order, which moves data.

    Where `when` does not hold it is not made.
    """

    result: str
    tile: Tile
    operand: str
    when: Number = True
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Mask:
    """The operand with `fill` in the lanes outside of some pieces.

    Attributes:
        result: Its name.
        tile: Its type; the format may be f32 where the operand's is narrower.
        operand: What is masked.
        fill: What lanes outside hold.
        where: The pieces, each with whether it is masked at all: not where no lane lies
            outside, or where lanes outside hold `fill` already.
        when: Whether the result is made.
    """

    result: str
    tile: Tile
    operand: str
    fill: float
    where: tuple[tuple[Dim, Number], ...]
    when: Number = True
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Merge:
    """The operand of a matrix product whose sides are several axes each.

    Each group of `sides` becomes one axis of a matrix, which moves nothing.  Its `tile`
    keeps the axes apart.
    """

    result: str
    tile: Tile
    operand: str
    sides: tuple[Order, ...]
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Lane:
    """One lane of the operand along a whole dim of few, which is no axis any more.

    Attributes:
        result: Its name.
        tile: Its type.
        operand: What it is a lane of.
        along: The dim.
        at: Which of its elements.
    """

    result: str
    tile: Tile
    operand: str
    along: Dim
    at: int
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Pick:
    """`other` where `when` holds, else `operand`: which copy of a tile is read."""

    result: str
    tile: Tile
    operand: str
    other: str
    when: Number
    notes: Notes = field(default=(), compare=False, repr=False)


# -- Sums ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduce:
    """The sum or the maximum over some axes, in f32.

    Lanes outside of `over` must hold the neutral element.
    """

    result: str
    tile: Tile
    op: Operator
    operand: str
    over: Order
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Scan:
    """Each element joined with all before it along a whole dim, in f32.

    Lanes outside lie behind the last element, so whatever they hold does not matter;
    nothing is known of what they hold then.
    """

    result: str
    tile: Tile
    op: Operator
    operand: str
    along: Dim
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Product:
    """`left[batch rows over] · right[batch over columns]`, in f32.

    By the matrix unit, whose operands lie in this order; without rows, columns or what
    is summed over, multiplied and summed in registers, with f32 operands in the order
    of batch, rows, columns, over.  Lanes outside of `over` must hold 0 in both.

    Attributes:
        result: Its name; with `into`, it is no value of its own.
        tile: Its type: axes batch, rows, columns.
        left: The operand with the rows.
        right: The operand with the columns.
        batch: Axes of both operands that stay.
        rows: Axes of the left operand alone.
        columns: Axes of the right operand alone.
        over: Axes summed over.
        wgmma: Whether the matrix unit reads the tiles from shared memory by itself, as
            Hopper's does from 64 rows on.
        precision: Of f32 operands: rounded to TF32, or as they are (`ieee`); narrower
            ones are taken as stored.
        into: The carried tile to which the product is added in place.
    """

    result: str
    tile: Tile
    left: str
    right: str
    batch: Order
    rows: Order
    columns: Order
    over: Order
    wgmma: Number = False
    precision: Literal["storage", "tf32", "ieee"] = "storage"
    into: str | None = None
    notes: Notes = field(default=(), compare=False, repr=False)

    @property
    def is_matrix(self) -> bool:
        """Whether the matrix unit takes it."""
        return bool(self.rows and self.columns and self.over)

    @property
    def is_merged(self) -> bool:
        """Whether several axes become one side of a matrix."""
        groups = (self.batch, self.rows, self.columns, self.over)
        return any(len(group) > 1 for group in groups)


# -- What a loop carries ---------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """A tile that the loop carries, with what it holds before the first iteration."""

    result: str
    tile: Tile
    value: float
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Rescale:
    """`target *= scale`: what was summed relative to an older maximum shrinks."""

    target: str
    scale: str
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Update:
    """`target += operand`, or what `op`, a reduction made in steps, makes of both."""

    target: str
    operand: str
    op: Operator
    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Largest:
    """The largest so far, with 0 for -inf; what was largest last is `state`.

    It serves only to keep exponentials in range, so verification takes random numbers
    for it.

    Attributes:
        result: Its name.
        tile: Its type, and that of `scale`.
        operand: The maximum of one iteration.
        state: The carried tile that it is compared with and that takes the larger,
            -inf where all was.
        scale: The name of `exp(last - largest)`, by which sums relative to the last
            one shrink; None where nothing is rescaled.
    """

    result: str
    tile: Tile
    operand: str
    state: str
    scale: str | None
    notes: Notes = field(default=(), compare=False, repr=False)


# -- Order -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait:
    """Until the kernel ahead has ended: what it makes may be read from here on."""

    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Announce:
    """The kernel behind may start."""

    notes: Notes = field(default=(), compare=False, repr=False)


Part = Literal["", "ahead", "whole", "behind"]
"""Of the iterations of a program's loop: all, or those that `TileProgram.whole` covers,
or those ahead of them or behind."""


@dataclass(frozen=True)
class Loop:
    """The iterations over the pieces of the program's loop; loads are pipelined.

    Attributes:
        dim: The dim that is looped over.
        body: What an iteration does.
        part: Which of the iterations it runs.
        closing: Lines from which nothing follows, at the end of the body.
    """

    dim: str
    body: tuple[Statement, ...]
    part: Part = ""
    notes: Notes = field(default=(), compare=False, repr=False)
    closing: Notes = field(default=(), compare=False, repr=False)


Assignment = (
    Load
    | Positions
    | Compute
    | Cast
    | Finite
    | Convert
    | Mask
    | Merge
    | Lane
    | Pick
    | Reduce
    | Scan
    | Product
    | Largest
)
"""Statements of the form `x: f32[m] = ...`."""

Making = Assignment | Start
"""Statements that make a value."""

Statement = Making | Store | Ask | Rescale | Update | Wait | Announce | Loop


@dataclass(frozen=True)
class TileProgram:
    """What one block does.

    Attributes:
        name: Of the kernel.
        grid: The splits by which blocks are numbered.
        loop: The split over which a block iterates.
        within_grid: Whether the loop runs over the block's part of its dim.
        tensors: The kernel-level tensors that are read and written.
        extents: Extents of all dims, None where symbolic.
        schedule: The parameters that it was made for.  Formulas ask the sizes for
            `warps` and `stages`, not this.
        pieces: All pieces that the program names, in order of appearance.
        units: Those of them that are known to have one lane; they are no axes of tiles.
        sides: Rows, columns and sums of the matrix products, in order: each side is
            widened to what the matrix unit takes, unless `over` has one lane.
        warps: Warps of a block: the schedule's, or more where a product has many rows.
        body: The statements in order.
        closing: Lines from which nothing follows, at the end.
        bounds: What iterations have to meet to be visited.
        whole: What covers the iterations that do without masks, if a loop of their own
            runs these.
    """

    name: str
    grid: tuple[Split, ...]
    loop: Split | None
    within_grid: bool
    tensors: Mapping[str, TensorType]
    extents: Mapping[str, int | None]
    schedule: Schedule
    pieces: Order
    units: frozenset[Dim]
    sides: tuple[tuple[Order, Order, Order], ...]
    warps: Number
    body: tuple[Statement, ...]
    closing: Notes = field(default=(), compare=False, repr=False)
    bounds: tuple[LoopBound, ...] = ()
    whole: tuple[LoopBound, ...] = ()


def loop_parts(whole: Iterable[LoopBound]) -> tuple[Part, ...]:
    """What the loops of a program run, in order, where bounds cover some iterations."""
    upper = {b.upper for b in whole}
    parts: list[Part] = ["ahead"] if False in upper else []
    if upper:
        parts.append("whole")
    if True in upper:
        parts.append("behind")
    return tuple(parts) or ("",)


# -- Questions -------------------------------------------------------------------------


def walk(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, bool]]:
    """All statements in order, each with whether it is in the loop.

    A loop comes before what is in it.
    """
    for statement in body:
        yield statement, False
        if isinstance(statement, Loop):
            for inner, _ in walk(statement.body):
                yield inner, True


def reads(statement: Statement) -> tuple[str, ...]:
    """The values that a statement reads, in order; what it changes among them.

    A load that may be left out reads what serves instead; a loop itself reads nothing.
    """
    match statement:
        case Load():
            along = () if statement.along is None else statement.along.reads
            return along if statement.instead is None else (*along, statement.instead)
        case Compute():
            return tuple(o for o in statement.operands if isinstance(o, str))
        case (
            Store()
            | Cast()
            | Finite()
            | Convert()
            | Mask()
            | Merge()
            | Lane()
            | (Reduce() | Scan())
        ):
            return (statement.operand,)
        case Pick():
            return (statement.operand, statement.other)
        case Product():
            into = () if statement.into is None else (statement.into,)
            return (statement.left, statement.right, *into)
        case Rescale():
            return (statement.target, statement.scale)
        case Update():
            return (statement.target, statement.operand)
        case Largest():
            return (statement.state, statement.operand)
        case Start() | Positions() | Ask() | Wait() | Announce() | Loop():
            return ()
        case _:
            assert_never(statement)


def makes(statement: Statement) -> tuple[str, ...]:
    """The values that a statement makes, or assigns again; stores make none."""
    match statement:
        case Rescale() | Update():
            return (statement.target,)
        case Product() if statement.into is not None:
            return (statement.into,)
        case Largest():
            scale = () if statement.scale is None else (statement.scale,)
            return (statement.result, statement.state, *scale)
        case Store() | Ask() | Wait() | Announce() | Loop():
            return ()
        case _:
            return (statement.result,)


_READ = ("operand", "other", "left", "right", "into", "target", "scale", "state")
_MADE = ("result", "instead")


def renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    """A statement with other names for some of its values."""
    changed: dict[str, Any] = {}
    for field_ in fields(statement):
        value = getattr(statement, field_.name)
        if field_.name in (*_READ, *_MADE) and value in names:
            changed[field_.name] = names[value]
        elif isinstance(value, Along):
            under = value.under and names.get(value.under, value.under)
            index = names.get(value.index, value.index)
            changed["along"] = replace(value, index=index, under=under)
        elif field_.name == "operands":
            changed["operands"] = tuple(
                names.get(o, o) if isinstance(o, str) else o for o in value
            )
    return replace(statement, **changed)


def tiles_of(program: TileProgram) -> dict[str, Tile]:
    """The type of every value, in the order in which they are made."""
    found: dict[str, Tile] = {}
    for statement, _ in walk(program.body):
        match statement:
            case Product() if statement.into is not None:
                pass
            case Largest():
                found[statement.result] = statement.tile
                if statement.scale is not None:
                    found[statement.scale] = statement.tile
            case Store() | Ask() | Rescale() | Update() | Wait() | Announce() | Loop():
                pass
            case _:
                found[statement.result] = statement.tile
    return found


# -- Lanes outside ---------------------------------------------------------------------

Fills = Mapping[Dim, tuple[float, Number]]
"""What lanes outside of pieces hold, with the condition under which they do."""


def neutral(op: Operator) -> float:
    """What a reduction must see in lanes outside."""
    assert op.neutral is not None
    return op.neutral


def held_by(op: Operator, held: Sequence[float], dtype: DType) -> float:
    """What a lane outside holds once an operator was applied to what lanes held there.

    Args:
        op: Elementwise.
        held: What its operands hold, or the constants.
        dtype: The format of integers that it computes with, or a float's.
    """
    name = dtype.long_name if dtype.is_integer else "float64"
    values = [
        np.asarray(v) if at == 0 and op.chooses else as_format(np.asarray(v), name)
        for at, v in enumerate(held)
    ]
    with np.errstate(all="ignore"):
        return float(op.numpy(*values))


def held_after(
    op: Operator, held: Fills, axes: Iterable[Dim]
) -> dict[Dim, tuple[float, Number]]:
    """What lanes outside of other axes hold once a reduction has gone over some.

    A reduction of zeros is 0 where it selects one of them or they are neutral.
    """
    if not op.selects and op.neutral != 0.0:
        return {}
    return {d: held[d] for d in axes if d in held and held[d][0] == 0.0}


# -- Sizes -----------------------------------------------------------------------------


def pieces_of(program: TileProgram) -> Pieces:
    """The pieces of a tile program at its own extents and tiles.

    Extents that are symbolic and whole in a block may be anything.

    Raises:
        UnsupportedError: A piece is of a dim that is not split so.
    """
    block = BlockGraph(program.grid, program.loop, (), program.schedule)
    everything = flat_type(f32, program.pieces, MemorySpace.REGISTER)
    most = {n: 1 for n, e in program.extents.items() if e is None}
    pieces = Pieces(block, {"": everything}, program.extents, most)
    for rows, columns, over in program.sides:
        pieces.widen(rows, columns, over)
    return pieces


Numbers = NDArray[np.float64]
"""One for each point, a choice of sizes."""


def elements_at(
    program: TileProgram, grid: Mapping[str, Numbers], loop: Numbers
) -> Numbers:
    """Elements of each piece of a program that hold data, at many sizes.

    Args:
        program: Its extents are known, but those of pieces of one element.
        grid: The tiles of each split of the grid, one entry a point.
        loop: The tiles of the loop.

    Returns:
        A row for each of the program's pieces, and one of ones; a column a point.
    """
    found = np.ones((len(program.pieces) + 1, len(loop)))
    for row, dim in zip(found, program.pieces, strict=False):
        row[:] = program.extents.get(dim.name) or 1
        if dim.grid:
            np.minimum(row, grid[dim.name], out=row)
        if dim.loop:
            np.minimum(row, loop, out=row)
    return found


def lanes_at(
    program: TileProgram, grid: Mapping[str, Numbers], elements: Numbers
) -> Numbers:
    """Lanes of each piece, as `Pieces` has them at each of these sizes."""
    found = next_powers(elements)
    place = {d: at for at, d in enumerate(program.pieces)}
    for name, excess in _excesses(program, grid):
        for dim, at in place.items():
            if dim.grid and dim.name == name:
                found[at] = np.where(excess, np.maximum(found[at], 2), found[at])
    done: set[tuple[int, ...]] = set()
    for sides in program.sides:
        rows, columns, over = ([place[d] for d in side] for side in sides)
        real = np.logical_or.reduce(found[over] > 1)
        for side in (rows, columns, over):
            if tuple(side) not in done:
                _widen_at(found, side, real)
            if real.all() and len(side) == 1:
                done.add(tuple(side))
    return found


def _widen_at(lanes: Numbers, side: Sequence[int], where: NDArray[np.bool_]) -> None:
    """Widen the last of the widest dims of a side to what the matrix unit takes."""
    own = lanes[side]
    missing = np.maximum(SMALLEST_DOT / own.prod(axis=0), 1.0)
    missing[~where] = 1.0
    if len(side) == 1:
        lanes[side[0]] *= missing
        return
    widest = len(side) - 1 - np.argmax(own[::-1], axis=0)
    for at, dim in enumerate(side):
        lanes[dim] *= np.where(widest == at, missing, 1.0)


def _excesses(
    program: TileProgram, grid: Mapping[str, Numbers]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Splits on whose axis there may be more blocks than they have parts, and where."""
    for axis in grid_axes(program.grid):
        if len(axis) > 1:
            extents = (program.extents[s.dim] or 1 for s in axis)
            parts = [
                np.ceil(e / grid[s.dim]) for e, s in zip(extents, axis, strict=True)
            ]
            most = np.maximum.reduce(parts)
            for split, own in zip(axis, parts, strict=True):
                yield split.dim, own < most


def next_powers(sizes: Numbers) -> Numbers:
    """The next power of two of each."""
    return np.exp2(np.ceil(np.log2(np.maximum(sizes, 1.0))))
