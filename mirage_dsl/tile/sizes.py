"""The pieces of dims that a block sees: their elements, lanes and raggedness.

Tiles have powers of two of lanes along each axis, and the matrix unit takes no less
than 16, so a piece may be wider than what it holds; a grid split or the loop may also
leave a ragged last tile.  A piece whose lanes can lie outside is `loose`: loads, stores
and reductions mask it.

`Pieces` are the pieces at known sizes, `Unsized` those at many: what the one answers in
numbers, the other answers in formulas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Dim, MemorySpace, TensorType, f32, flat_type
from mirage_dsl.ir.analysis.layouts import Place
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    Load,
    Split,
    Store,
    grid_axes,
    partial_dim,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.tile import formula
from mirage_dsl.tile.formula import STAGES, WARPS, Number
from mirage_dsl.tile.program import Order, TileProgram

SMALLEST_DOT = 16
"""Smallest number of rows, columns and summands of a matrix product."""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """The number of tiles of `b` that cover `a`."""
    return -(-a // b)


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


def _ragged(extent: int | None, tile: int) -> bool:
    return tile != 1 and (extent is None or extent % tile != 0)


MOST_PROGRAMS = 65_535
"""Of a launch, along its second and third axis."""


def launch_order(
    block: BlockGraph, extents: Mapping[str, int | None]
) -> tuple[tuple[Split, ...], ...]:
    """The grid's axes in the order of the launch's.

    It is the order of the grid, unless a later one has too many parts: then the one of
    most parts is first.
    """

    def count(axis: Sequence[Split]) -> int:
        return max(_parts(s, extents) or 0 for s in axis)

    if all(count(a) <= MOST_PROGRAMS for a in block.axes[1:]):
        return block.axes
    return tuple(sorted(block.axes, key=count, reverse=True))


def counts_down(axis: Sequence[Split], block: BlockGraph) -> bool:
    """Whether the last part of an axis is the first block's.

    So where a block iterates up to its place: the longest blocks start first, and the
    short ones fill what is left at the end.
    """
    upper = {b.upper for b in block.bounds} == {True}
    return upper and any(b.dim == s.dim for b in block.bounds for s in axis)


def _parts(split: Split, extents: Mapping[str, int | None]) -> int | None:
    extent = extents.get(split.dim)
    return None if extent is None else ceil_div(extent, split.tile)


def has_excess(
    split: Split, block: BlockGraph, extents: Mapping[str, int | None]
) -> bool:
    """Whether the axis of a split may have more blocks than the split has parts."""
    axis = next(a for a in block.axes if split in a)
    own = _parts(split, extents) or 0
    counts = [_parts(s, extents) for s in axis]
    return len(axis) > 1 and any(n is None or n > own for n in counts)


def partial_of(dim: Dim, block: BlockGraph) -> str | None:
    """The split dim whose grid coordinate indexes the store dim `k#`, or None."""
    if not dim.grid or block.grid_split(dim.name) is not None:
        return None
    split = next((s for s in block.grid if partial_dim(s.dim) == dim.name), None)
    return None if split is None else split.dim


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

    types: Mapping[str, TensorType]
    extents: Mapping[str, int | None]
    most: Mapping[str, int]
    packed: frozenset[str]
    placed: Mapping[str, Place]
    inputs: frozenset[str]
    pointers: bool

    def has_layout(self, tensor: str) -> bool:
        """Whether a type tells how a tensor lies in memory; not so for views."""
        return tensor in self.packed or tensor in self.inputs


class Sizes(Protocol):
    """What is asked of the pieces of a block, whether their sizes are known or not."""

    @property
    def dims(self) -> Order:
        """All pieces, in order of appearance."""
        ...

    @property
    def units(self) -> frozenset[Dim]:
        """Those that are known to have one lane."""
        ...

    @property
    def warps(self) -> Number:
        """Warps that the schedule gives a block."""
        ...

    @property
    def stages(self) -> Number:
        """Depth of the loop's software pipeline."""
        ...

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that are axes of tiles."""
        ...

    def lanes(self, dim: Dim) -> Number:
        """How many lanes tiles have along a piece."""
        ...

    def loose(self, dim: Dim) -> Number:
        """Whether lanes of a piece can lie outside of its dim."""
        ...

    def outside(self, dim: Dim, *, in_loop: bool) -> Number:
        """The same of a tile's axis, which after the loop is an index within a tile."""
        ...

    def ends(self, dim: Dim) -> Number:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        ...

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        ...


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
    """

    def __init__(
        self,
        block: BlockGraph,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        most: Mapping[str, int],
    ) -> None:
        self.block = block
        self._extents = extents
        self._most = most
        self._by_dim: dict[Dim, Piece] = {}
        for dim in dict.fromkeys(_all_dims(block, types)):
            self._by_dim[dim] = self._piece(dim)
        for node in block.nodes:
            if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
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

    def lanes(self, dim: Dim) -> int:
        """How many lanes tiles have along a piece."""
        return self._by_dim[dim].width

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
        widths = [self._by_dim[d].width for d in box]
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

    def _widen(self, node: Apply, types: Mapping[str, TensorType]) -> None:
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
            if lanes < SMALLEST_DOT:
                last = max(group, key=lambda d: (self[d].width, group.index(d)))
                piece = self._by_dim[last]
                width = piece.width * (SMALLEST_DOT // lanes)
                self._by_dim[last] = replace(piece, width=width)


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
        self.dims, self.units = like.dims, like.units

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that have more than one lane."""
        return self._like.axes(dims)

    def lanes(self, dim: Dim) -> Number:
        """How many lanes tiles have along a piece."""
        return 1 if dim in self.units else formula.lanes(dim)

    def loose(self, dim: Dim) -> Number:
        """Whether lanes of a piece can lie outside of its dim."""
        return False if dim in self.units else formula.loose(dim)

    def outside(self, dim: Dim, *, in_loop: bool) -> Number:  # noqa: ARG002
        """The same: what is outside of a ragged last tile is masked after it too."""
        return self.loose(dim)

    def ends(self, dim: Dim) -> Number:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        return formula.ends(dim)

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        return self._like.fits_box(box, itemsize)


# -- Many sizes at once ----------------------------------------------------------------

Numbers = NDArray[np.float64]


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


def _clamp(tile: int, extent: int | None) -> int:
    return tile if extent is None else min(tile, extent)


def _all_dims(block: BlockGraph, types: Mapping[str, TensorType]) -> list[Dim]:
    dims = [d for v, t in types.items() if v not in block.gathered for d in t.dims]
    for node in block.nodes:
        if isinstance(node, Load) and node.result not in block.gathered:
            dims += [d for axis in node.axes for d in axis]
        if isinstance(node, Store):
            dims += [
                d for axis in node.axes for d in axis if partial_of(d, block) is None
            ]
    return dims
