"""Tile programs: what one block does, in order, as data, and the sizes of its tiles.

The third level, between block graphs and the language that is printed.  Its values
are tiles: the axes of a tile are pieces of dims, as in a block graph (`k`, `k/grid`,
`k/loop`), and stand in an order, from the slowest to the fastest.  How many elements
and lanes a piece has is a size.  Numbers that depend on sizes are formulas, so one
program serves many sizes; what changes the statements themselves (operands swapped, a
row for a vector, a sum deferred, a piece of one lane) makes another program.

**Sizes.**  Tiles have powers of two of lanes along each axis, and the matrix unit takes
no less than 16, so a piece may be wider than what it holds; a grid split or the loop
may also leave a ragged last tile.  A piece whose lanes can lie outside is `loose`:
loads, stores and reductions mask it.

`Pieces` are the pieces at known sizes, `Unsized` those at many: what the one answers in
numbers, the other answers in formulas, `lanes(m/grid) >= 64 & warps >= 4`.  A formula
is printed as text, evaluated at one size or over arrays of sizes, and folded where the
numbers are known while it is made.

**Statements** are a closed set of frozen dataclasses, to be handled by `match` with
`assert_never`.  Values are named, and made once; only what a loop carries (`Start`) is
assigned again.  A statement's notes are the lines that it comes from; they mean
nothing, and tell no two statements apart.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, reduce
from math import prod
from types import MappingProxyType
from typing import Any, Literal, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SourceLocation, UnsupportedError
from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    MemorySpace,
    TensorType,
    Types,
    f32,
    flat_type,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import Place, laid_out, places
from mirage_dsl.ir.evaluate import as_format
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import Extents, parts
from mirage_dsl.ir.walk import operands_of
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import EXP, SUB

Order = tuple[Dim, ...]
"""Axes of a tile, from the slowest to the fastest."""

# -- Formulas --------------------------------------------------------------------------


class LaneCounts(Protocol):
    """What formulas of lanes ask: the sizes of a program, or an array of them.

    Attributes:
        warps: Warps that the schedule gives a block.
        stages: Depth of the loop's software pipeline.
    """

    @property
    def warps(self) -> Any: ...

    @property
    def stages(self) -> Any: ...

    def lanes(self, dim: Dim) -> Any:
        """How many lanes tiles have along a piece: a power of two."""
        ...


class Asked(LaneCounts, Protocol):
    """What all formulas ask, those of masks too."""

    def loose(self, dim: Dim) -> Any:
        """Whether lanes of a piece can lie outside of its dim."""
        ...

    def ends(self, dim: Dim) -> Any:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        ...


@dataclass(frozen=True)
class Formula:
    """An operation on numbers, or a question about sizes.

    Attributes:
        op: `lanes`, `loose`, `ends` (of one dim), `warps`, `stages`, or a row of
            `OPERATIONS`.
        args: What it is applied to.

    Formulas are made by the functions below, which fold what is known.  `==` compares
    formulas, not what they stand for.
    """

    op: str
    args: tuple[Formula | Dim | int | bool, ...] = ()

    def at(self, sizes: LaneCounts, known: dict[int, Any] | None = None) -> Any:
        """What it is at some sizes: a number, or an array with one for each point.

        Args:
            sizes: The sizes; where it asks for what may lie outside, they are `Asked`.
            known: What formulas are at these sizes, by their `id`: they share parts.
                Who has it keeps the formulas.
        """
        if known is not None and id(self) in known:
            return known[id(self)]
        operation = OPERATIONS.get(self.op)
        if operation is not None:
            found = operation.compute(
                *[
                    a.at(sizes, known) if isinstance(a, Formula) else a
                    for a in self.args
                ]
            )
        elif self.args:
            found = getattr(sizes, self.op)(*self.args)
        else:
            found = getattr(sizes, self.op)
        if known is not None:
            known[id(self)] = found
        return found

    def __str__(self) -> str:
        if self.op not in OPERATIONS:
            return self.op + (f"({self.args[0]})" if self.args else "")
        row = OPERATIONS[self.op]
        return row.text.format(
            *(_within(a, row.binding, first=at == 0) for at, a in enumerate(self.args))
        )


Number = Formula | int | bool
"""What a tile program has for a number or a condition."""


@dataclass(frozen=True)
class Operation:
    """A row of the table of operations.

    Attributes:
        text: How it is written.
        binding: How tightly it binds; operands that bind less get parentheses.
        compute: Its value, of numbers or of arrays.
    """

    text: str
    binding: int
    compute: Callable[..., Any]


def _pick(of_arrays: Callable[..., Any], of_numbers: Callable[..., Any]) -> Any:
    """NumPy's function where an argument is an array, else Python's."""

    def compute(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, (np.ndarray, np.generic)):
                return of_arrays(*args)
        return of_numbers(*args)

    return compute


def _either(condition: bool, yes: Any, no: Any) -> Any:
    return yes if condition else no


def _or(a: Any, b: Any) -> Any:
    return a | b


def _and(a: Any, b: Any) -> Any:
    return a & b


def _div(a: Any, b: Any) -> Any:
    return a // b


TIGHTEST = 9
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "if": Operation("{1} if {0} else {2}", 0, _pick(np.where, _either)),
        "or": Operation("{} | {}", 1, _or),
        "and": Operation("{} & {}", 2, _and),
        "not": Operation("not {}", 3, _pick(np.logical_not, operator.not_)),
        "ge": Operation("{} >= {}", 4, operator.ge),
        "gt": Operation("{} > {}", 4, operator.gt),
        "add": Operation("{} + {}", 5, operator.add),
        "sub": Operation("{} - {}", 5, operator.sub),
        "mul": Operation("{} * {}", 6, operator.mul),
        "div": Operation("{} div {}", 6, _div),
        "max": Operation("max({}, {})", TIGHTEST, _pick(np.maximum, max)),
        "min": Operation("min({}, {})", TIGHTEST, _pick(np.minimum, min)),
    }
)
"""What formulas are made of, besides questions about sizes."""

_NEUTRAL: Mapping[str, int | bool] = MappingProxyType(
    {"and": True, "or": False, "mul": 1, "add": 0}
)
_ABSORBING: Mapping[str, int | bool] = MappingProxyType(
    {"and": False, "or": True, "mul": 0}
)


def _within(arg: Formula | Dim | int | bool, binding: int, *, first: bool) -> str:
    """An operand's text; operations of one binding are read from the left."""
    if not isinstance(arg, Formula) or arg.op not in OPERATIONS or binding == TIGHTEST:
        return str(arg)
    own = OPERATIONS[arg.op].binding
    # Comparisons, `not` and `if` do not follow one another without parentheses.
    chained = first and own == binding and binding in (1, 2, 5, 6)
    return str(arg) if own > binding or chained else f"({arg})"


def fold(op: str, *args: Number) -> Number:
    """An operation of the table, or what it is where that is known already."""
    for arg in args:
        if isinstance(arg, Formula):
            return _folded(op, args)
    return OPERATIONS[op].compute(*args)


def _folded(op: str, args: tuple[Number, ...]) -> Number:
    """An operation some of whose operands are formulas."""
    if op == "if" and not isinstance(args[0], Formula):
        return args[1] if args[0] else args[2]
    if op in ("if", "and", "or", "max", "min") and args[-1] == args[-2]:
        return args[-1]
    if op in ("and", "or") and args[0] == opposite(args[1]):
        return op == "or"
    if len(args) == 2:
        for one, other in (args, args[::-1]):
            if not isinstance(one, Formula):
                if one == _ABSORBING.get(op):
                    return one
                if one == _NEUTRAL.get(op):
                    return other
    return Formula(op, args)


WARPS, STAGES = Formula("warps"), Formula("stages")


def lanes(dim: Dim) -> Formula:
    """How many lanes tiles have along a piece."""
    return Formula("lanes", (dim,))


def loose(dim: Dim) -> Formula:
    """Whether lanes of a piece can lie outside of its dim."""
    return Formula("loose", (dim,))


def ends(dim: Dim) -> Formula:
    """Whether lanes outside of a loose piece lie outside of the tensor too.

    Not so where a part of the grid or of the loop ends within lanes that the next part
    goes on in.  A tensor descriptor reads 0 outside of the tensor, and only there.
    """
    return Formula("ends", (dim,))


def opposite(condition: Number) -> Number:
    """Whether a condition does not hold."""
    if isinstance(condition, Formula) and condition.op == "not":
        (inner,) = condition.args
        assert not isinstance(inner, Dim)
        return inner
    return fold("not", condition)


def all_of(conditions: Iterable[Number]) -> Number:
    """Whether all of some conditions hold."""
    return reduce(lambda a, b: fold("and", a, b), conditions, True)


def any_of(conditions: Iterable[Number]) -> Number:
    """Whether one of some conditions holds."""
    return reduce(lambda a, b: fold("or", a, b), conditions, False)


def product(factors: Iterable[Number]) -> Number:
    """The product of some numbers."""
    return reduce(lambda a, b: fold("mul", a, b), factors, 1)


def either(condition: Number, yes: Number, no: Number) -> Number:
    """The one number where a condition holds, else the other."""
    return fold("if", condition, yes, no)


def greatest(first: Number, *others: Number) -> Number:
    """The greatest of some numbers."""
    return reduce(lambda a, b: fold("max", a, b), others, first)


def least(first: Number, *others: Number) -> Number:
    """The least of some numbers."""
    return reduce(lambda a, b: fold("min", a, b), others, first)


def value(number: Number, sizes: Asked) -> Any:
    """What a number is at some sizes."""
    return number.at(sizes) if isinstance(number, Formula) else number


# -- Pieces ----------------------------------------------------------------------------


SMALLEST_DOT = 16
"""Smallest number of rows, columns and summands of a matrix product."""
FEWEST_COLUMNS = 8
"""The same of columns where a loop's parts are a batch: a warp takes 16 rows by 8.

Other products could have 8 columns as well, and gain nothing: an RMS norm and a gated
MLP of one row take 1 % more on an H100, six others within 1 %.
"""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


@dataclass(frozen=True)
class Piece:
    """What a block sees of one dim.

    Attributes:
        dim: The dim with its flags.
        extent: Of the whole dim, None where symbolic.
        most: The largest extent, if it is symbolic and the block holds it whole.
        grid_tile: Elements of a block's part; None without grid split.
        loop_tile: Elements of an iteration's part; None without loop split.
        width: Lanes of the tile, a power of two.
        excess: Whether blocks may have no part at all, since the grid's axis is longer.
    """

    dim: Dim
    extent: int | None
    grid_tile: int | None
    loop_tile: int | None
    width: int
    excess: bool = False
    most: int | None = None

    @property
    def size(self) -> int:
        """Elements that a tile holds when it is not ragged."""
        tile = self.loop_tile or self.grid_tile or self.extent or self.most
        assert tile is not None
        return tile

    @property
    def unit(self) -> bool:
        """Whether tiles have no axis for this piece."""
        return self.width == 1

    @property
    def padded(self) -> bool:
        """Whether a tile may have more lanes than elements."""
        return self.width != self.size or self.most is not None

    @property
    def ragged_grid(self) -> bool:
        """Whether the last blocks' parts may be shorter than the others."""
        if self.grid_tile is None:
            return False
        return self.excess or _ragged(self.extent, self.grid_tile)

    @property
    def ragged_loop(self) -> bool:
        """Whether an iteration's part may be shorter than `loop_tile`."""
        if self.loop_tile is None:
            return False
        of = self.extent if self.grid_tile is None else self.grid_tile
        return _ragged(of, self.loop_tile)

    @property
    def loose(self) -> bool:
        """Whether lanes can lie outside of the dim."""
        return self.padded or self.ragged_grid or self.ragged_loop

    @property
    def ends(self) -> bool:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        if not self.loose:
            return False
        inside_part = (
            self.grid_tile is not None
            and self.loop_tile is not None
            and self.grid_tile % self.loop_tile != 0
        )
        whole = not self.padded or self.size in (self.extent, self.most)
        return whole and not inside_part

    def positions(
        self, block: Any = 0, iteration: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where lanes lie in the dim, and which hold elements of the block's part.

        Args:
            block: The block's coordinate along the dim's axis of the grid; of several
                blocks an array, with an axis of one for the lanes.
            iteration: Of the loop.  After the loop lanes are those of the first one.
        """
        assert self.extent is not None
        lane, first = np.arange(self.width), block * (self.grid_tile or 0)
        at = first + iteration * (self.loop_tile or 0) + lane
        end = np.asarray(self.extent)
        if self.grid_tile is not None:
            end = np.minimum(first + self.grid_tile, end)
        return at, (lane < self.size) & (at < end)


def _ragged(extent: int | None, tile: int) -> bool:
    return tile != 1 and (extent is None or extent % tile != 0)


LARGEST_TILE = 2**20
"""Most elements that a tile may have: those that Triton allows in one tensor."""
MOST_PROGRAMS = 65_535
"""Of a launch, along its second and third axis."""


def launch_order(
    block: ir.BlockGraph, extents: Extents, types: Types
) -> tuple[tuple[ir.Split, ...], ...]:
    """The grid's axes in the order of the launch's: along the first blocks are next.

    Blocks without products, which have no operand to share, follow one another as their
    results lie in memory: what blocks of one time read and write lies together.
    Measured on an H200: 3.06 ms for 3.24 where 1.6e9 numbers are mapped in tiles of
    2 x 1024, 255 µs for 272 with planes of 4096, 303 for 315 where a middle axis is
    summed.  All others stand in the order of the grid.  If a later axis has too many
    parts, the one of most parts is first.
    """

    def count(axis: Sequence[ir.Split]) -> int:
        return max(_parts(s, extents) or 0 for s in axis)

    axes = _as_stored(block, types)
    if all(count(a) <= MOST_PROGRAMS for a in axes[1:]):
        return axes
    return tuple(sorted(block.axes, key=count, reverse=True))


def _as_stored(block: ir.BlockGraph, types: Types) -> tuple[tuple[ir.Split, ...], ...]:
    """The axes of a block, from the innermost one of its results on."""
    stored = {_in_memory(n.axes, types[n.result]) for n in block.stores}
    products = any(n.op.kind is Kind.CONTRACTION for n in block.applies)
    if products or len(stored) != 1:
        return block.axes
    inner = {dim: at for at, dim in enumerate(reversed(stored.pop()))}
    last = len(inner)
    return tuple(
        sorted(block.axes, key=lambda axis: min(inner.get(s.dim, last) for s in axis))
    )


def _in_memory(axes: Sequence[Axis], kind: TensorType) -> tuple[str, ...]:
    """The dims of a tensor from the slowest to the fastest."""
    return tuple(d.name for axis in kind.order for d in axes[axis])


def counts_down(axis: Sequence[ir.Split], block: ir.BlockGraph | TileProgram) -> bool:
    """Whether the last part of an axis is the first block's.

    So where a block iterates up to its place: the longest blocks start first, and the
    short ones fill what is left at the end.
    """
    upper = {b.upper for b in block.bounds} == {True}
    return upper and any(b.dim == s.dim for b in block.bounds for s in axis)


def _parts(split: ir.Split, extents: Extents) -> int | None:
    extent = extents.get(split.dim)
    return None if extent is None else parts(extent, split.tile)


def has_excess(split: ir.Split, block: ir.BlockGraph, extents: Extents) -> bool:
    """Whether the axis of a split may have more blocks than the split has parts."""
    axis = next(a for a in block.axes if split in a)
    own = _parts(split, extents) or 0
    counts = [_parts(s, extents) for s in axis]
    return len(axis) > 1 and any(n is None or n > own for n in counts)


def partial_of(dim: Dim, grid: Iterable[ir.Split]) -> str | None:
    """The split dim whose grid coordinate indexes the store dim `k#`, or None."""
    names = [s.dim for s in grid]
    if not dim.grid or dim.name in names:
        return None
    return next((n for n in names if ir.partial_dim(n) == dim.name), None)


@dataclass(frozen=True)
class Outer:
    """What the tiles of a block depend on in its kernel graph.

    Attributes:
        types: Types of the kernel-level tensors.
        extents: Extents of all dims, None where symbolic.
        most: The largest extents of symbolic dims that blocks may hold whole.
        packed: Tensors that are row-major and contiguous by construction.
        placed: Tensors that are made inside of a concatenation.
        inputs: Tensors of the caller, whose layout their types tell.
        pointers: Use no tensor descriptors, whatever the schedule says.
    """

    types: Types
    extents: Extents
    most: Mapping[str, int]
    packed: frozenset[str]
    placed: Mapping[str, Place]
    inputs: frozenset[str]
    pointers: bool

    def has_layout(self, tensor: str) -> bool:
        """Whether a type tells how a tensor lies in memory; not so for views."""
        return tensor in self.packed or tensor in self.inputs


def outer_of(
    graph: ir.KernelGraph,
    *,
    most: Mapping[str, int] | None = None,
    pointers: bool = False,
) -> Outer:
    """What the tiles of a μGraph's blocks depend on."""
    extents = graph.extent_of
    most = {n: e for n, e in (most or {}).items() if extents.get(n) is None}
    types = laid_out(graph, kernel_types(graph), {**extents, **most})
    placed = places(graph, types, extents)
    return Outer(
        types,
        extents,
        most,
        packed=_packed(graph) - placed.keys(),
        placed=placed,
        inputs=frozenset(i.name for i in graph.inputs),
        pointers=pointers,
    )


def _packed(graph: ir.KernelGraph) -> frozenset[str]:
    """Tensors that the kernels themselves make contiguous."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, ir.BlockGraph):
            found.update(node.results)
        elif node.op.kind is not Kind.VIEW:
            found.add(node.result)
    return frozenset(found)


def few_columns(block: ir.BlockGraph, types: Types, extents: Extents) -> frozenset[Dim]:
    """The pieces of a block that are columns of fewer lanes than other sides have.

    They are whole, and one operand's alone in products of which the loop's parts are a
    batch, and of which no other product reads a result: so theirs can be the right one.
    """
    products = [n for n in block.applies if n.op.kind is Kind.CONTRACTION]
    if not products:
        return frozenset()
    read = {v for node in products for v in node.values}
    for node in reversed(block.nodes):
        if node not in products and not isinstance(node, ir.Store | ir.Load):
            read.update(operands_of(node) if node.result in read else ())
    found, others = set[Dim](), set[Dim]()
    for node in products:
        a, b = (types[v].dims for v in (node.values[0], node.values[-1]))
        sides = [d for d in a if d not in b], [d for d in b if d not in a]
        shared = [d for d in a if d in b]
        batch = any(d.loop and d.name not in node.over for d in shared)
        few = [side for side in sides if side and _is_few(side, extents)]
        alone = len(few) == 1 and batch and node.result not in read
        found.update(few[0] if alone else ())
        wide = (side for side in sides if not alone or side is not few[0])
        others.update(shared, *wide)
    return frozenset(found - others)


def _is_few(side: Sequence[Dim], extents: Extents) -> bool:
    """Whether a side is of whole dims of known extents, of few elements."""
    lanes = [power_of_two(e) for d in side if (e := extents.get(d.name)) is not None]
    whole = len(lanes) == len(side) and all(d == d.whole for d in side)
    return whole and prod(lanes) <= FEWEST_COLUMNS


LARGEST_BOX = 256
"""Elements of one axis that the copy engine moves at once."""
ALIGNMENT = 16
"""Bytes to which its addresses and strides are aligned."""
SHARED_ALIGNMENT = 128
"""The same in shared memory, where the tiles of all stages lie one behind the other."""
MOST_AXES = 5


class Pieces:
    """All pieces of one block at known sizes, by dim.

    Args:
        block: The block.
        types: Types of its values.
        extents: Extents of all dims, None where symbolic.
        most: The largest extents of symbolic dims that blocks may hold whole.
        few: Those that are columns of few lanes; by the block if it has products.
    """

    def __init__(
        self,
        block: ir.BlockGraph,
        types: Types,
        extents: Extents,
        most: Mapping[str, int],
        few: frozenset[Dim] | None = None,
    ) -> None:
        self.block = block
        self.few = few_columns(block, types, extents) if few is None else few
        self._extents = extents
        self._most = most
        self._by_dim: dict[Dim, Piece] = {}
        for dim in dict.fromkeys(_all_dims(block, types)):
            self._by_dim[dim] = self._piece(dim)
        for node in block.nodes:
            if isinstance(node, ir.Apply) and node.op.kind is Kind.CONTRACTION:
                self._widen(node, types)

    def __getitem__(self, dim: Dim) -> Piece:
        return self._by_dim[dim]

    @property
    def all(self) -> tuple[Piece, ...]:
        """All pieces, in order of appearance."""
        return tuple(self._by_dim.values())

    @property
    def dims(self) -> Order:
        """Their dims."""
        return tuple(self._by_dim)

    @property
    def units(self) -> frozenset[Dim]:
        """Those of one lane."""
        return frozenset(d for d, piece in self._by_dim.items() if piece.unit)

    @property
    def warps(self) -> int:
        """Warps that the schedule gives a block."""
        return self.block.schedule.num_warps

    @property
    def stages(self) -> int:
        """Depth of the loop's software pipeline."""
        return self.block.schedule.num_stages

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that are axes of tiles."""
        return tuple(d for d in dims if not self._by_dim[d].unit)

    def axes_stored(self, at: Iterable[Axis], own: Order) -> Order:
        """The axes of a tile that is stored `at` pieces: its own, and what it lacks."""
        dims = [
            d for axis in at for d in axis if partial_of(d, self.block.grid) is None
        ]
        return (*own, *(d for d in self.axes(dims) if d not in own))

    def lanes(self, dim: Dim) -> int:
        """How many lanes tiles have along a piece."""
        return self._by_dim[dim].width

    def shape(self, axes: Sequence[Dim]) -> tuple[int, ...]:
        """How many lanes tiles have along each of some pieces."""
        return tuple(self._by_dim[d].width for d in axes)

    def loose(self, dim: Dim) -> bool:
        """Whether lanes of a piece can lie outside of its dim."""
        return self._by_dim[dim].loose

    def outside(self, dim: Dim, *, in_loop: bool) -> bool:
        """The same of a tile's axis, which after the loop is an index within a tile."""
        piece = self._by_dim[dim]
        if in_loop or piece.loop_tile is None:
            return piece.loose
        return piece.padded or piece.ragged_grid

    def ends(self, dim: Dim) -> bool:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        return self._by_dim[dim].ends

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        if not 0 < len(box) <= MOST_AXES:
            return False
        widths = self.shape(box)
        fits = (
            max(widths) <= LARGEST_BOX
            and widths[-1] * itemsize >= ALIGNMENT
            and prod(widths) * itemsize % SHARED_ALIGNMENT == 0
        )
        last = self._by_dim[box[-1]]
        steps = [t for t in (last.grid_tile, last.loop_tile) if t and t != last.extent]
        # Strides of the packed tensor, or what divides them if not all is known.
        inner = [self._by_dim[d].extent or 1 for d in box[1:]]
        strides = [prod(inner[i:]) for i in range(len(inner))]
        return fits and all(s * itemsize % ALIGNMENT == 0 for s in (*strides, *steps))

    def _piece(self, dim: Dim) -> Piece:
        extent = self._extents.get(dim.name)
        grid = loop = None
        excess = False
        if dim.grid:
            split = self.block.grid_split(dim.name)
            if split is None:
                raise UnsupportedError(f"{dim}: the grid does not split {dim.name}")
            grid = _clamp(split.tile, extent)
            excess = has_excess(split, self.block, self._extents)
        if dim.loop:
            split = self.block.loop
            if split is None or split.dim != dim.name:
                raise UnsupportedError(f"{dim}: the loop does not split {dim.name}")
            loop = _clamp(split.tile, extent if grid is None else grid)
        size = loop or grid or extent
        most = self._most.get(dim.name) if size is None else None
        if size is None and most is None:
            raise UnsupportedError(
                f"dim {dim.name} is symbolic and whole in a block; "
                f"split it by the grid or by the loop"
            )
        width = power_of_two(size or most or 1)
        piece = Piece(dim, extent, grid, loop, width, excess, most)
        # A part that can lie wholly outside needs an axis that carries its mask.
        return replace(piece, width=2) if piece.unit and piece.loose else piece

    def _widen(self, node: ir.Apply, types: Types) -> None:
        """Widen the dims of a matrix product to the smallest that `tl.dot` takes."""
        a, b = (types[v].dims for v in node.values)
        over = [d for d in a if d.name in node.over]
        rows = [d for d in a if d not in b]
        columns = [d for d in b if d not in a]
        if rows and columns:
            self.widen(rows, columns, over)

    def widen(
        self, rows: Sequence[Dim], columns: Sequence[Dim], over: Sequence[Dim]
    ) -> None:
        """Widen the sides of a matrix product, unless it sums over one lane."""
        if all(self[d].unit for d in over):
            return
        for group in (rows, columns, over):
            lanes = 1
            for dim in group:
                lanes *= self[dim].width
            least = smallest_side(group, self.few)
            if lanes < least:
                last = max(group, key=lambda d: (self[d].width, group.index(d)))
                piece = self._by_dim[last]
                width = piece.width * (least // lanes)
                self._by_dim[last] = replace(piece, width=width)


def smallest_side(side: Iterable[Dim], few: frozenset[Dim]) -> int:
    """How many lanes a side of a matrix product has at least."""
    return FEWEST_COLUMNS if few.issuperset(side) else SMALLEST_DOT


class Unsized:
    """The pieces of a block at any sizes that change none of its statements.

    Args:
        like: The pieces at one of these sizes: the same ones have one lane, and the
            same boxes are moved by the copy engine, at all of them.
    """

    warps: Number = WARPS
    stages: Number = STAGES

    def __init__(self, like: Pieces) -> None:
        self._like = like
        self.dims, self.units, self.few = like.dims, like.units, like.few

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that have more than one lane."""
        return self._like.axes(dims)

    def lanes(self, dim: Dim) -> Number:
        """How many lanes tiles have along a piece."""
        return 1 if dim in self.units else lanes(dim)

    def loose(self, dim: Dim) -> Number:
        """Whether lanes of a piece can lie outside of its dim."""
        return False if dim in self.units else loose(dim)

    def outside(self, dim: Dim, *, in_loop: bool) -> Number:  # noqa: ARG002
        """The same: what is outside of a ragged last tile is masked after it too."""
        return self.loose(dim)

    def ends(self, dim: Dim) -> Number:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        return ends(dim)

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        return self._like.fits_box(box, itemsize)


Sizes = Pieces | Unsized
"""The pieces of a block, whether their sizes are known or not."""


def _clamp(tile: int, extent: int | None) -> int:
    return tile if extent is None else min(tile, extent)


def _all_dims(block: ir.BlockGraph, types: Types) -> list[Dim]:
    dims = [d for v, t in types.items() if v not in block.gathered for d in t.dims]
    for node in block.nodes:
        if isinstance(node, ir.Load) and node.result not in block.gathered:
            dims += [d for axis in node.axes for d in axis]
        if isinstance(node, ir.Store):
            dims += [
                d
                for axis in node.axes
                for d in axis
                if partial_of(d, block.grid) is None
            ]
    return dims


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


@dataclass(frozen=True, kw_only=True)
class Noted:
    """A statement.

    Attributes:
        notes: The lines that it comes from, which mean nothing.
    """

    notes: Notes = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Maker(Noted):
    """A statement that makes a value.

    Attributes:
        result: Its name.
        tile: Its type.
    """

    result: str
    tile: Tile


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
class Load(Maker):
    """A tile of a tensor.

    Attributes:
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
        early: In so many first iterations of the loop it is made before the wait.
    """

    source: str
    at: tuple[Axis, ...]
    via: Literal["pointer", "descriptor"] = "pointer"
    guarded: Order = ()
    buffers: Number = 0
    when: Number = True
    instead: str | None = None
    along: Along | None = None
    early: int = 0


@dataclass(frozen=True)
class Store(Noted):
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


@dataclass(frozen=True)
class Ask(Noted):
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


@dataclass(frozen=True)
class Positions(Maker):
    """The position of each lane along an axis, counted from 0: a load without memory.

    Attributes:
        tile: Its type, in i64, or in i32 where that is enough for all that follows.
        at: The axis: which piece of each of its dims; several count row-major.
    """

    at: Axis


# -- One element at a time -------------------------------------------------------------


@dataclass(frozen=True)
class Compute(Maker):
    """An operator of the table on each element, in f32.

    Operands are f32 tiles whose axes are some of the result's, in its order, and
    constants; tiles spread over the axes that they lack.

    Attributes:
        op: The operator.
        operands: What it is applied to; with `inner`, what that is applied to.
        inner: An operator that is computed in the same step: `op(inner(operands))`.
            The exponential of a difference, or of a product with a constant or a row.
        rounded: It is rounded by itself, never made one operation with what reads it.
    """

    op: Operator
    operands: tuple[ir.Operand, ...]
    inner: Operator | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Cast(Maker):
    """The operand rounded to the element format of `tile`, as the program says."""

    operand: str


@dataclass(frozen=True)
class Finite(Maker):
    """A shift, with 0 for what that of a wholly masked row is: its neutral element."""

    operand: str
    fill: float = -math.inf


# -- Changes of form -------------------------------------------------------------------


@dataclass(frozen=True)
class Convert(Maker):
    """The same numbers as f32, or with the axes in another order, which moves data.

    Where `when` does not hold it is not made.
    """

    operand: str
    when: Number = True


@dataclass(frozen=True)
class Mask(Maker):
    """The operand with `fill` in the lanes outside of some pieces.

    Attributes:
        tile: Its type; the format may be f32 where the operand's is narrower.
        operand: What is masked.
        fill: What lanes outside hold.
        where: The pieces, each with whether it is masked at all: not where no lane lies
            outside, or where lanes outside hold `fill` already.
        when: Whether the result is made.
    """

    operand: str
    fill: float
    where: tuple[tuple[Dim, Number], ...]
    when: Number = True


@dataclass(frozen=True)
class Merge(Maker):
    """The operand of a matrix product whose sides are several axes each.

    Each group of `sides` becomes one axis of a matrix, which moves nothing.  Its `tile`
    keeps the axes apart.
    """

    operand: str
    sides: tuple[Order, ...]


@dataclass(frozen=True)
class Lane(Maker):
    """One lane of the operand along a whole dim of few, which is no axis any more.

    Attributes:
        operand: What it is a lane of.
        along: The dim.
        at: Which of its elements.
    """

    operand: str
    along: Dim
    at: int


@dataclass(frozen=True)
class Join(Maker):
    """Two tiles as the two lanes along a whole dim, which is the last axis.

    Attributes:
        operand: The first lane.
        other: The second one.
        along: The dim.
    """

    operand: str
    other: str
    along: Dim


@dataclass(frozen=True)
class Pick(Maker):
    """`other` where `when` holds, else `operand`: which copy of a tile is read."""

    operand: str
    other: str
    when: Number


# -- Axes of products ------------------------------------------------------------------


class Contracted:
    """What has the axes of a product.

    Attributes:
        batch: Axes of both operands that stay.
        rows: Axes of the left operand alone.
        columns: Axes of the right operand alone.
        over: Axes summed over.
    """

    batch: Order
    rows: Order
    columns: Order
    over: Order

    @property
    def is_matrix(self) -> bool:
        """Whether the matrix unit takes it; otherwise it is multiplied and summed."""
        return bool(self.rows and self.columns and self.over)

    @property
    def is_merged(self) -> bool:
        """Whether several axes become one side of a matrix."""
        groups = (self.batch, self.rows, self.columns, self.over)
        return any(len(group) > 1 for group in groups)

    @property
    def made(self) -> Order:
        """Axes of the result."""
        return self.batch + self.rows + self.columns

    @property
    def factors(self) -> tuple[Order, Order]:
        """Axes of the left and of the right operand, as the matrix unit takes them."""
        return self.batch + self.rows + self.over, self.batch + self.over + self.columns


# -- Sums ------------------------------------------------------------------------------

MOST_HALVED = 16
"""Lanes of an axis up to which it is summed by halves: a block has no more warps."""


@dataclass(frozen=True)
class Reduce(Maker):
    """The sum or the maximum over some axes, in f32.

    Lanes outside of `over` must hold the neutral element.

    Attributes:
        op: The reduction.
        operand: What is reduced.
        over: The axes that vanish.
        halves: Whether it is a sum over the first axis alone, of `MOST_HALVED` lanes at
            most, by halves: each thread gets two lanes of the axis, and adds them.  So
            it is where warps hold the axis.
    """

    op: Operator
    operand: str
    over: Order
    halves: Number = False


@dataclass(frozen=True)
class Scan(Maker):
    """Each element joined with all before it along a whole dim, in f32.

    Or along the loop's piece of one, with those of the same iteration.  Lanes outside
    lie behind the last element, so whatever they hold does not matter; nothing is known
    of what they hold then.
    """

    op: Operator
    operand: str
    along: Dim


@dataclass(frozen=True)
class Product(Maker, Contracted):
    """`left[batch rows over] · right[batch over columns]`, in f32.

    By the matrix unit, whose operands lie in this order; without rows, columns or what
    is summed over, multiplied and summed in registers, with f32 operands in the order
    of batch, rows, columns, over.  Lanes outside of `over` must hold 0 in both.

    Attributes:
        result: Its name; with `into`, it is no value of its own.
        tile: Its type: axes batch, rows, columns.
        left: The operand with the rows.
        right: The operand with the columns.
        wgmma: Whether the matrix unit reads the tiles from shared memory by itself, as
            Hopper's does from 64 rows on.
        precision: Of f32 operands: rounded to TF32, or as they are (`ieee`); narrower
            ones are taken as stored.
        into: The carried tile to which the product is added in place.
    """

    left: str
    right: str
    batch: Order
    rows: Order
    columns: Order
    over: Order
    wgmma: Number = False
    precision: Literal["storage", "tf32", "ieee"] = "storage"
    into: str | None = None


# -- What a loop carries ---------------------------------------------------------------


@dataclass(frozen=True)
class Start(Maker):
    """A tile that the loop carries, with what it holds before the first iteration."""

    value: float


@dataclass(frozen=True)
class Rescale(Noted):
    """`target *= scale`: what was summed relative to an older maximum shrinks."""

    target: str
    scale: str


@dataclass(frozen=True)
class Update(Noted):
    """`target += operand`, or what `op`, a reduction made in steps, makes of both."""

    target: str
    operand: str
    op: Operator


@dataclass(frozen=True)
class Largest(Maker):
    """The largest so far, with 0 for -inf; what was largest last is `state`.

    It serves only to keep exponentials in range, so verification takes random numbers
    for it.

    Attributes:
        tile: Its type, and that of `scale`.
        operand: The maximum of one iteration.
        state: The carried tile that it is compared with and that takes the larger,
            -inf where all was.
        scale: The name of `exp(last - largest)`, by which sums relative to the last
            one shrink; None where nothing is rescaled.
    """

    operand: str
    state: str
    scale: str | None


# -- Order -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Wait(Noted):
    """Until the kernel ahead has ended: what it makes may be read from here on."""


@dataclass(frozen=True)
class Announce(Noted):
    """The kernel behind may start."""


Part = Literal["", "ahead", "whole", "behind"]
"""Of the iterations of a program's loop: all, or those that `TileProgram.whole` covers,
or those ahead of them or behind."""


@dataclass(frozen=True)
class Loop(Noted):
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
    | Join
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
        few: The pieces that are columns of few lanes.
    """

    name: str
    grid: tuple[ir.Split, ...]
    loop: ir.Split | None
    within_grid: bool
    tensors: Types
    extents: Extents
    schedule: ir.Schedule
    pieces: Order
    units: frozenset[Dim]
    sides: tuple[tuple[Order, Order, Order], ...]
    warps: Number
    body: tuple[Statement, ...]
    closing: Notes = field(default=(), compare=False, repr=False)
    bounds: tuple[ir.LoopBound, ...] = ()
    whole: tuple[ir.LoopBound, ...] = ()
    few: frozenset[Dim] = frozenset()

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """All statements in order; a loop comes before what is in it."""
        return tuple(s for s, _ in walk(self.body))

    @cached_property
    def inside(self) -> frozenset[str]:
        """The values that a loop makes, or assigns again."""
        return frozenset(v for s, looped in walk(self.body) if looped for v in makes(s))

    @cached_property
    def makers(self) -> Mapping[str, Sequence[Statement]]:
        """The statements that make each value, or assign it again, in order."""
        return _by_value(self.statements, makes)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Statement]]:
        """The statements that read each value, in order."""
        return _by_value(self.statements, reads)

    @cached_property
    def tiles(self) -> Mapping[str, Tile]:
        """The type of every value, in the order in which they are made."""
        found: dict[str, Tile] = {}
        for statement in self.statements:
            if isinstance(statement, Maker) and statement.result in makes(statement):
                found[statement.result] = statement.tile
            if isinstance(statement, Largest) and statement.scale is not None:
                found[statement.scale] = statement.tile
        return found


def _by_value(
    statements: Iterable[Statement], of: Callable[[Statement], Iterable[str]]
) -> dict[str, list[Statement]]:
    found: dict[str, list[Statement]] = {}
    for statement in statements:
        for value in of(statement):
            found.setdefault(value, []).append(statement)
    return found


def loop_parts(whole: Iterable[ir.LoopBound]) -> tuple[Part, ...]:
    """What the loops of a program run, in order, where bounds cover some iterations."""
    upper = {b.upper for b in whole}
    parts: list[Part] = ["ahead"] if False in upper else []
    if upper:
        parts.append("whole")
    if True in upper:
        parts.append("behind")
    return tuple(parts) or ("",)


def iterations(program: TileProgram) -> int:
    """How often a block iterates, where it visits all iterations."""
    span, tile = _iterated(program)
    return parts(span, tile)


def loaded_early(program: TileProgram) -> int:
    """How many iterations are loaded before the wait, of a loop at known sizes.

    None where the loop is too long to be written out, or where nobody knows how long
    it is.
    """
    loop = program.loop
    if loop is None or program.extents[loop.dim] is None:
        return 0
    count = iterations(program)
    if count > ir.WRITTEN_OUT:
        return 0
    asked = (s.early for s in program.statements if isinstance(s, Load))
    return min(max(asked, default=0), count)


def _iterated(program: TileProgram) -> tuple[int, int]:
    """How many elements of the loop's dim a block has, and an iteration."""
    loop = program.loop
    assert loop is not None
    span = program.extents[loop.dim]
    if program.within_grid:
        span = _clamp(next(s.tile for s in program.grid if s.dim == loop.dim), span)
    assert span is not None
    return span, min(loop.tile, span)


def runs(
    program: TileProgram, part: Part, blocks: Mapping[str, Any], iteration: int
) -> NDArray[np.bool_]:
    """Whether blocks run an iteration, in the loop over some part of iterations.

    Args:
        program: At known extents.
        part: What the loop runs.
        blocks: The coordinate of a block along each split dim that bounds and the loop
            ask for; of several blocks arrays that broadcast.
        iteration: Its number.
    """
    loop, (span, tile) = program.loop, _iterated(program)
    widths = {s.dim: _clamp(s.tile, program.extents[s.dim]) for s in program.grid}
    at = np.asarray(iteration * tile)
    if loop is not None and program.within_grid:
        at = at + blocks[loop.dim] * span

    def all_hold(bounds: Iterable[ir.LoopBound], how: _Holds) -> NDArray[np.bool_]:
        kept = np.ones((), np.bool_)
        for bound in bounds:
            width = widths[bound.dim]
            kept = kept & how(bound, at, tile, blocks[bound.dim] * width, width)
        return kept

    visited = all_hold(program.bounds, ir.LoopBound.met)
    if not part:
        return visited
    lower, upper = ([b for b in program.whole if b.upper is up] for up in (False, True))
    begun = all_hold(lower, ir.LoopBound.covers)
    if part == "ahead":
        return visited & ~begun
    unended = all_hold(upper, ir.LoopBound.covers)
    return visited & begun & (unended if part == "whole" else ~unended)


_Holds = Callable[
    [ir.LoopBound, NDArray[np.int64], int, NDArray[np.int64], int], NDArray[np.bool_]
]
"""A method of `LoopBound`: which iterations of which blocks."""


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
        case Pick() | Join():
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


def held_alike(held: Sequence[Fills]) -> Fills:
    """What lanes outside hold in all of several values."""
    first, *others = held
    return {
        dim: (fill, all_of([holds, *(o[dim][1] for o in others)]))
        for dim, (fill, holds) in first.items()
        if all(dim in o and o[dim][0] == fill for o in others)
    }


@dataclass(frozen=True)
class Outside:
    """Tells what statements leave in lanes outside.

    Attributes:
        tiles: The types of values.
        extents: Of all dims, None where symbolic.
        ends: Whether lanes outside of a loose piece lie outside of the tensor too.
    """

    tiles: Mapping[str, Tile]
    extents: Extents
    ends: Callable[[Dim], Number]

    def after(
        self,
        statement: Statement,
        held: Mapping[str, Fills],
        known: Fills | None = None,
    ) -> dict[str, Fills]:
        """What the values that a statement makes hold then.

        Args:
            statement: The statement.
            held: What values hold before it.
            known: What they hold, where that does not follow from the statement.
        """
        made = makes(statement)
        if made and known is None:
            known = self._after(statement, held)
        return dict.fromkeys(made, known or {})

    def _after(self, statement: Statement, held: Mapping[str, Fills]) -> Fills:
        match statement:
            case Load():
                return self._loaded(statement)
            case Start():
                return dict.fromkeys(statement.tile.axes, (statement.value, True))
            case Cast() | Convert() | Merge():
                return held[statement.operand]
            case Mask():
                return _held_masked(statement, held[statement.operand])
            case Finite():
                # A shift that is its neutral element becomes 0.
                own, fill = held[statement.operand].items(), statement.fill
                return {d: (0.0 if f == fill else f, holds) for d, (f, holds) in own}
            case Pick() | Join():
                return held_alike([held[statement.operand], held[statement.other]])
            case Update():
                return held_alike([held[statement.target], held[statement.operand]])
            case Lane() | Reduce():
                return _held_without(statement, held[statement.operand])
            case Compute():
                return self._computed(statement, held)
            case _:
                return {}

    def _loaded(self, load: Load) -> Fills:
        if load.via == "pointer":
            return dict.fromkeys(load.guarded, (0.0, True))
        return {d: (0.0, self.ends(d)) for d in load.tile.axes}

    def _computed(self, step: Compute, held: Mapping[str, Fills]) -> Fills:
        """What follows from the operands; and that e to the power -inf is 0."""
        found: dict[Dim, tuple[float, Number]] = {}
        operands = [o for o in step.operands if isinstance(o, str)]
        dtypes = (self.tiles[o].dtype for o in operands)
        dtype = next((d for d in dtypes if d.is_integer), f32)
        shifted = step.inner is SUB and step.op is EXP
        given = [self._held(o, step.tile.axes, held) for o in step.operands]
        for dim in step.tile.axes:
            own = [each.get(dim) for each in given]
            if shifted and own[1] is None and own[0] and own[0][0] == -math.inf:
                # The shift, which is the same along this axis, is finite.
                found[dim] = 0.0, own[0][1]
            known = [f for f in own if f is not None]
            if len(known) < len(own):
                continue
            values = [f for f, _ in known]
            if step.inner is not None:
                values = [held_by(step.inner, values, dtype)]
            fill = held_by(step.op, values, dtype)
            if not math.isnan(fill):
                found[dim] = fill, all_of(holds for _, holds in known)
        return found

    def _held(
        self, operand: ir.Operand, axes: Order, held: Mapping[str, Fills]
    ) -> Fills:
        """What an operand holds; a constant the same along all axes."""
        if isinstance(operand, str):
            return held[operand]
        number = operand.known_at(self.extents)
        return {} if number is None else dict.fromkeys(axes, (number, True))


def _held_masked(mask: Mask, before: Fills) -> Fills:
    found = {d: f for d, f in before.items() if f[0] == mask.fill}
    for dim, when in mask.where:
        holds = found.get(dim, (mask.fill, False))[1]
        found[dim] = mask.fill, any_of([when, holds])
    return found


def _held_without(step: Lane | Reduce, before: Fills) -> Fills:
    """What is held along the axes that are left.

    A reduction of zeros is 0 where it selects one of them or they are neutral.
    """
    found = {d: before[d] for d in step.tile.axes if d in before}
    if isinstance(step, Lane):
        return found
    stays = step.op.selects or step.op.neutral == 0.0
    return {d: f for d, f in found.items() if stays and f[0] == 0.0}


# -- Sizes -----------------------------------------------------------------------------


def pieces_of(program: TileProgram) -> Pieces:
    """The pieces of a tile program at its own extents and tiles.

    Extents that are symbolic and whole in a block may be anything.

    Raises:
        UnsupportedError: A piece is of a dim that is not split so.
    """
    block = ir.BlockGraph(program.grid, program.loop, (), program.schedule)
    everything = flat_type(f32, program.pieces, MemorySpace.REGISTER)
    most = {n: 1 for n, e in program.extents.items() if e is None}
    pieces = Pieces(block, {"": everything}, program.extents, most, program.few)
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
    excesses = excesses_at(program, grid)
    for dim, at in place.items():
        if dim.grid and dim.name in excesses:
            wider = np.maximum(found[at], 2)
            found[at] = np.where(excesses[dim.name], wider, found[at])
    done: set[tuple[int, ...]] = set()
    for sides in program.sides:
        rows, columns, over = ([place[d] for d in side] for side in sides)
        real = np.logical_or.reduce(found[over] > 1)
        least = [smallest_side(side, program.few) for side in sides]
        for side, lanes in zip((rows, columns, over), least, strict=True):
            if tuple(side) not in done:
                _widen_at(found, side, real, lanes)
            if real.all() and len(side) == 1:
                done.add(tuple(side))
    return found


def _widen_at(
    lanes: Numbers, side: Sequence[int], where: NDArray[np.bool_], least: int
) -> None:
    """Widen the last of the widest dims of a side to what the matrix unit takes."""
    own = lanes[side]
    missing = np.maximum(least / own.prod(axis=0), 1.0)
    missing[~where] = 1.0
    if len(side) == 1:
        lanes[side[0]] *= missing
        return
    widest = len(side) - 1 - np.argmax(own[::-1], axis=0)
    for at, dim in enumerate(side):
        lanes[dim] *= np.where(widest == at, missing, 1.0)


def excesses_at(
    program: TileProgram, grid: Mapping[str, Numbers]
) -> dict[str, NDArray[np.bool_]]:
    """Of dims that share an axis of the grid, where it has more blocks than parts."""
    found: dict[str, NDArray[np.bool_]] = {}
    for axis in ir.grid_axes(program.grid):
        if len(axis) > 1:
            parts = parts_at(program, axis, grid)
            most = np.maximum.reduce(list(parts.values()))
            found.update((name, own < most) for name, own in parts.items())
    return found


def parts_at(
    program: TileProgram, axis: Iterable[ir.Split], grid: Mapping[str, Numbers]
) -> dict[str, Numbers]:
    """How many parts there are of each dim that is split along an axis of the grid."""
    extents = {s.dim: program.extents.get(s.dim) or 1 for s in axis}
    return {name: np.ceil(e / grid[name]) for name, e in extents.items()}


def next_powers(sizes: Numbers) -> Numbers:
    """The next power of two of each."""
    return np.exp2(np.ceil(np.log2(np.maximum(sizes, 1.0))))
