"""A block graph as numbers: how big each value is at a batch of parameter points.

Tiles and schedules are arrays with one entry a point, so that one pass of NumPy prices
hundreds of sizes of a structure; one graph is a batch of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import ASYNCHRONOUS_ROWS, Hardware
from mirage_dsl.core.types import TensorType
from mirage_dsl.cost.facts import BlockFacts
from mirage_dsl.cost.orientation import MATRIX_TILE
from mirage_dsl.ir.graph import BlockGraph, Split, dims_of
from mirage_dsl.ir.maps import loops_inside_grid

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Points:
    """Parameter points of one block graph, one entry of each array a point.

    `grid` has one array per split, in the block's order; `loop` is all ones where the
    block has no loop.
    """

    grid: tuple[Numbers, ...]
    loop: Numbers
    num_warps: Numbers
    num_stages: Numbers
    swap_operands: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.loop)

    def take(self, index: NDArray[np.intp]) -> Points:
        """The points at `index`."""
        return Points(
            tuple(g[index] for g in self.grid),
            self.loop[index],
            self.num_warps[index],
            self.num_stages[index],
            self.swap_operands[index],
        )


def points_of(block: BlockGraph) -> Points:
    """The one point that a sized block graph stands at."""
    one, schedule = np.ones(1), block.schedule
    return Points(
        tuple(one * s.tile for s in block.grid),
        one * (block.loop.tile if block.loop else 1),
        one * schedule.num_warps,
        one * schedule.num_stages,
        np.array([schedule.swap_operands]),
    )


@dataclass(frozen=True)
class Footprint:
    """Element counts of a structure's values at a batch of points.

    Matrices have a row for each dim, set of dims or product of the structure's tables,
    and a column for each point.  What is held where depends on the GPU.
    """

    facts: BlockFacts
    points: Points
    hardware: Hardware

    def take(self, index: NDArray[np.intp]) -> Footprint:
        """That of the points at `index`; what is known of them stays known."""
        if len(index) == len(self.points):
            return self
        found = Footprint(self.facts, self.points.take(index), self.hardware)
        for name in ("pieces", "padded", "sizes"):
            if name in self.__dict__:
                found.__dict__[name] = self.__dict__[name][:, index]
        return found

    @cached_property
    def _tiles(self) -> Numbers:
        """Tiles of all dims, as they are asked for."""
        tables, block, points = self.facts.tables, self.facts.block, self.points
        split = {s.dim: t for s, t in zip(block.grid, points.grid, strict=True)}
        tiles = np.repeat(tables.extents, len(points), axis=1)
        for row, dim in zip(tiles, tables.dims, strict=False):
            if dim.loop and block.loop is not None:
                row[:] = points.loop
            elif dim.grid:
                row[:] = split.get(dim.name, 1.0)
        return tiles

    @cached_property
    def pieces(self) -> Numbers:
        """Elements of pieces that hold data."""
        return np.minimum(self._tiles, self.facts.tables.extents)

    @cached_property
    def padded(self) -> Numbers:
        """Elements of pieces as the GPU holds them.

        Powers of two; the widest dim of a side is widened to what a product takes.
        """
        found = power_of_two(self._tiles)
        for side in self.facts.tables.widened:
            if len(side) == 1:
                np.maximum(found[side[0]], MATRIX_TILE, out=found[side[0]])
                continue
            own = found[list(side)]
            missing = np.maximum(MATRIX_TILE / own.prod(axis=0), 1.0)
            widest = np.argmax(own, axis=0)
            for at, dim in enumerate(side):
                found[dim] = np.where(widest == at, own[at] * missing, own[at])
        return found

    @cached_property
    def sizes(self) -> Numbers:
        """Elements that values of each set of dims take."""
        return self.padded[self.facts.tables.members].prod(axis=1)

    def elements(self, members: NDArray[np.intp]) -> Numbers:
        """Elements with data in values of these dims, one row for each of them."""
        return self.pieces[members].prod(axis=1)

    def held(self, value: str) -> Numbers:
        """Elements that a value takes on the GPU."""
        return self.sizes[self.facts.tables.value[value]]

    @cached_property
    def tall(self) -> Numbers:
        """Rows of each product, as the lowering takes it."""
        products, swap = self.facts.tables.products, self.points.swap_operands
        upright, turned = self.sizes[products.upright], self.sizes[products.turned]
        return np.where(swap, turned, upright)

    @cached_property
    def grouped(self) -> NDArray[np.bool_]:
        """Where whole groups of four warps run a product of many rows.

        The lowering takes such a product for one whose tiles the matrix unit reads by
        itself, whatever the GPU.
        """
        products = self.facts.tables.products
        alone = self.sizes[products.batch] == 1
        fits = products.matrix[:, None] & (self.points.num_warps >= 4)
        return (self.tall >= ASYNCHRONOUS_ROWS) & alone & fits

    @cached_property
    def asynchronous(self) -> NDArray[np.bool_]:
        """Where the matrix unit of this GPU reads the tiles of a product by itself."""
        rows = self.hardware.architecture.asynchronous_rows
        if rows == ASYNCHRONOUS_ROWS:
            return self.grouped
        if rows is None:
            return np.zeros_like(self.grouped)
        return self.grouped & (self.tall >= rows)

    @cached_property
    def merged(self) -> NDArray[np.bool_]:
        """Where a side of a product has several dims, whose tiles have to be merged."""
        wide = (self.padded[self.facts.tables.products.sides] > 1).sum(axis=1) > 1
        count = len(self.facts.products)
        return wide.reshape(3, count, len(self.points)).any(axis=0)

    @cached_property
    def stage_buffers(self) -> tuple[Numbers, Numbers]:
        """Stage buffers of each copy of the loop's loads; 0 where there is no copy.

        A tile that the matrix unit reads by itself is in use for one iteration longer.
        What reads a tile in another way has a copy of its own, unless the matrix unit
        is done within the iteration: by the lowering, on every GPU.
        """
        loads, stages = self.facts.tables.loads, self.points.num_stages
        own = loads.looped[:, 0]
        grouped = loads.readers[own] @ self.grouped
        read, both = loads.read[own], loads.both[own]
        all_grouped = (grouped == read) & (read > 0)
        mixed = ((grouped > 0) & ~all_grouped) | both
        mixed &= self.facts.block.schedule.second_load
        fewer = np.maximum(stages - 1.0, 1.0)
        shared = both & all_grouped & loads.awaited[own]
        alone = grouped
        if self.asynchronous is not self.grouped:
            alone = loads.readers[own] @ self.asynchronous
        return (
            np.where((alone > 0) & ~shared, stages, fewer),
            np.where(mixed & ~shared, fewer, 0.0),
        )

    def either(self, flags: tuple[NDArray[np.bool_], ...]) -> NDArray[np.bool_]:
        """Flags of rows as they are, or as they are where operands are swapped."""
        as_is, swapped = flags
        return np.where(self.points.swap_operands, swapped[:, None], as_is[:, None])

    @cached_property
    def blocks(self) -> Numbers:
        """Blocks of the launch."""
        return self._blocks_with(frozenset())

    @cached_property
    def readers(self) -> Numbers:
        """Blocks that have a part of what each load reads; one row if all blocks do."""
        block = self.facts.block
        if len(block.axes) == len(block.grid):
            return self.blocks
        loaded = [{d.name for d in dims_of(n.axes) if d.grid} for n in block.loads]
        return np.stack([self._blocks_with(names) for names in loaded])

    def _blocks_with(self, names: AbstractSet[str]) -> Numbers:
        """Blocks that have a part of each of some dims."""
        tiles = iter(self.points.grid)
        count = np.ones(len(self.points))
        for axis in self.facts.block.axes:
            parts = {s.dim: np.ceil(self._extent(s.dim) / next(tiles)) for s in axis}
            own = names & parts.keys()
            counts = [parts[n] for n in own] or list(parts.values())
            count = count * np.maximum.reduce(counts)
        return count

    def _extent(self, name: str) -> float:
        return float(self.facts.extents.get(name, 1))

    @cached_property
    def iterations(self) -> Numbers:
        """Iterations of a block."""
        block = self.facts.block
        if block.loop is None:
            return np.ones(len(self.points))
        span = np.full(len(self.points), self._extent(block.loop.dim))
        if loops_inside_grid(block):
            for split, tiles in zip(block.grid, self.points.grid, strict=True):
                if split.dim == block.loop.dim:
                    span = np.minimum(span, tiles)
        return np.ceil(span / self.points.loop)


def at_point(block: BlockGraph, footprint: Footprint, at: int) -> BlockGraph:
    """A structure with the tiles and the schedule of one point of its family."""
    points, splits = footprint.points, footprint.facts.block.grid
    tiles = {s.dim: int(t[at]) for s, t in zip(splits, points.grid, strict=True)}
    loop = block.loop
    schedule = replace(
        block.schedule,
        num_warps=int(points.num_warps[at]),
        num_stages=int(points.num_stages[at]),
        swap_operands=bool(points.swap_operands[at]),
    )
    return BlockGraph(
        tuple(replace(s, tile=tiles[s.dim]) for s in block.grid),
        None if loop is None else Split(loop.dim, int(points.loop[at])),
        block.nodes,
        schedule,
    )


def power_of_two(sizes: Numbers) -> Numbers:
    """The next power of two of each."""
    return np.exp2(np.ceil(np.log2(np.maximum(sizes, 1.0))))


def tensor_bytes(value: TensorType, extents: Mapping[str, int | None]) -> float:
    """Bytes of a device tensor.

    Raises:
        SearchError: An extent is unknown.
    """
    return value.dtype.itemsize * size_of(value.names, extents)


def size_of(names: tuple[str, ...], extents: Mapping[str, int | None]) -> float:
    size = 1.0
    for name in names:
        extent = extents.get(name)
        if extent is None:
            raise SearchError(
                f"the extent of {name} is not known; costs need concrete shapes"
            )
        size *= extent
    return size
