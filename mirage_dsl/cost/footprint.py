"""A block graph as numbers: how big each value is at a batch of parameter points.

Tiles and schedules are arrays with one entry a point, so that one pass of NumPy prices
hundreds of sizes of a structure; one graph is a batch of one.

What follows of them is what a block takes of a multiprocessor, and whether it fits.
Shared memory holds the stages of the loop's loads and the operands that products read
from it; registers hold accumulators and the tiles that are live at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import ASYNCHRONOUS_ROWS, WARP, Hardware
from mirage_dsl.core.types import Dim, TensorType
from mirage_dsl.cost.facts import BlockFacts, Live, ProgramFacts, as_column
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.maps import Extents
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.combined import DEALT_REGISTERS, DEALT_WARPS

HELD_IN_L2 = 0.6
"""Part of the L2 cache that one tensor fills before some of it leaves early."""

# -- Sizes of values -------------------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Parameter points of one block graph, one entry of each array a point.

    `grid` has one array per split, in the block's order; `loop` is all ones where the
    block has no loop.
    """

    grid: tuple[tp.Numbers, ...]
    loop: tp.Numbers
    num_warps: tp.Numbers
    num_stages: tp.Numbers
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


def points_of(block: ir.BlockGraph) -> Points:
    """The one point that a sized block graph stands at."""
    one, schedule = np.ones(1), block.schedule
    return Points(
        tuple(one * s.tile for s in block.grid),
        one * (block.loop.tile if block.loop else 1),
        one * schedule.num_warps,
        one * schedule.num_stages,
        np.array([schedule.swap_operands]),
    )


KEPT = frozenset(
    {"pieces", "padded", "sizes", "tall", "grouped", "buffers", "block_warps"}
    | {"blocks", "counted", "iterations", "dealt"}
)
"""Arrays of a footprint whose last axis are the points."""


@dataclass(frozen=True)
class Footprint:
    """Element counts of a tile program's values at a batch of points.

    Matrices have a row for each piece, set of dims or product of the program's tables,
    and a column for each point.  What is held where depends on the GPU.
    """

    facts: ProgramFacts
    points: Points
    hardware: Hardware

    def take(self, index: NDArray[np.intp]) -> Footprint:
        """That of the points at `index`; what is known of them stays known."""
        if len(index) == len(self.points):
            return self
        found = Footprint(self.facts, self.points.take(index), self.hardware)
        for name in KEPT & self.__dict__.keys():
            found.__dict__[name] = self.__dict__[name][..., index]
        return found

    @cached_property
    def _tiles(self) -> dict[str, tp.Numbers]:
        splits = self.facts.program.grid
        return {s.dim: t for s, t in zip(splits, self.points.grid, strict=True)}

    @cached_property
    def pieces(self) -> tp.Numbers:
        """Elements of pieces that hold data."""
        return tp.elements_at(self.facts.program, self._tiles, self.points.loop)

    @cached_property
    def padded(self) -> tp.Numbers:
        """Elements of pieces as the GPU holds them."""
        return tp.lanes_at(self.facts.program, self._tiles, self.pieces)

    @cached_property
    def sizes(self) -> tp.Numbers:
        """Elements that values of each set of dims take."""
        return self.padded[self.facts.tables.members].prod(axis=1)

    @property
    def sizes_without_windows(self) -> tp.Numbers:
        """The same of an element of each window: each is used up when it is read.

        A thread of windows of 16, 64 elements of which it reads, takes 54 registers.
        """
        members, windows = self.facts.tables.members, self.facts.tables.windows
        if not windows.any():
            return self.sizes
        held = np.where(windows[:, None], 1.0, self.padded)
        return held[members].prod(axis=1)

    def elements(self, members: NDArray[np.intp]) -> tp.Numbers:
        """Elements with data in values of these dims, one row for each of them."""
        return self.pieces[members].prod(axis=1)

    def held(self, value: str) -> tp.Numbers:
        """Elements that a value takes on the GPU."""
        return self.sizes[self.facts.tables.value[value]]

    # -- What the formulas of the program ask ------------------------------------------

    @property
    def warps(self) -> tp.Numbers:
        """Warps that the schedule gives a block."""
        return self.points.num_warps

    @property
    def stages(self) -> tp.Numbers:
        """Depth of the loop's software pipeline."""
        return self.points.num_stages

    def lanes(self, dim: Dim) -> tp.Numbers:
        """How many lanes tiles have along a piece."""
        return self.padded[self.facts.place[dim]]

    def loose(self, dim: Dim) -> NDArray[np.bool_]:
        """Whether lanes of a piece can lie outside of its dim."""
        at = self.facts.place[dim]
        own = self.pieces[at]
        found = (self.padded[at] > own) | (self._extent(dim.name) % own > 0)
        excess = self._excesses.get(dim.name) if dim.grid else None
        return found if excess is None else found | excess

    @cached_property
    def _excesses(self) -> dict[str, NDArray[np.bool_]]:
        """Where some blocks of an axis of the grid have no part of a dim."""
        return tp.excesses_at(self.facts.program, self._tiles)

    def at(self, number: tp.Number) -> NDArray[Any]:
        """A number of the program at every point."""
        found: Any = number
        if isinstance(number, tp.Formula):
            found = number.at(self, self._numbers)
            if np.ndim(found):
                return found
        return np.full(len(self.points), found)

    @cached_property
    def _numbers(self) -> dict[int, Any]:
        """What formulas of the program are, as `Formula.at` keeps it."""
        return {}

    @cached_property
    def block_warps(self) -> tp.Numbers:
        """Warps of a block, more than the schedule's where a product has many rows."""
        return self.at(self.facts.program.warps).astype(np.float64)

    @cached_property
    def dealt(self) -> NDArray[np.bool_]:
        """Where loads of the loop give threads what they multiply."""
        found = self.facts.deal
        return self.at(False if found is None else found.when).astype(np.bool_)

    @property
    def ahead(self) -> NDArray[np.bool_]:
        """Where loads of the loop run ahead of what is computed.

        They do where threads are dealt what they multiply: other blocks compute, and
        the loop may be written out.
        """
        staged = (self.points.num_stages > 1) | self.dealt
        return staged & (self.iterations > 1)

    # -- Products and stages -----------------------------------------------------------

    @cached_property
    def tall(self) -> tp.Numbers:
        """Rows of each product."""
        return self.sizes[self.facts.tables.products.rows]

    @cached_property
    def grouped(self) -> NDArray[np.bool_]:
        """Where whole groups of four warps run a product of many rows.

        The program takes such a product for one whose tiles the matrix unit reads by
        itself, whatever the GPU.
        """
        own = self.facts.tables.products.own
        if not own:
            return np.zeros((0, len(self.points)), dtype=bool)
        return np.stack([self.at(product.wgmma) for product in own])

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
    def buffers(self) -> tp.Numbers:
        """Stage buffers of both copies of the loop's loads; 0 where there is no copy.

        Where the matrix unit of this GPU reads no tile by itself, none is in use for
        longer than an iteration.
        """
        loads = self.facts.tables.loads
        own = np.flatnonzero(loads.looped[:, 0])
        found = np.zeros((2, len(own), len(self.points)))
        for row, at in enumerate(own):
            found[0, row] = self.at(loads.own[at].buffers)
            again = loads.again[at]
            if again is not None:
                found[1, row] = self.at(again.buffers) * self.at(again.when)
        if self.asynchronous is not self.grouped:
            alone = loads.readers[own] @ self.asynchronous > 0
            fewer = np.maximum(self.points.num_stages - 1.0, 1.0)
            found[0] = np.where(alone, found[0], np.minimum(found[0], fewer))
        return found

    @cached_property
    def blocks(self) -> tp.Numbers:
        """Blocks of the launch."""
        return self._blocks_with(frozenset())

    @cached_property
    def readers(self) -> tp.Numbers:
        """Blocks that have a part of what each load reads; one row if all blocks do."""
        program = self.facts.program
        loads = self.facts.loads.values()
        if len(self._axes) == len(program.grid) or not loads:
            return self.blocks
        loaded = [{d.name for d in ir.dims_of(n.at) if d.grid} for n in loads]
        return np.stack([self._blocks_with(names) for names in loaded])

    def _blocks_with(self, names: AbstractSet[str]) -> tp.Numbers:
        """Blocks that have a part of each of some dims."""
        count = np.ones(len(self.points))
        for axis in self._axes:
            parts = tp.parts_at(self.facts.program, axis, self._tiles)
            own = names & parts.keys()
            counts = [parts[n] for n in own] or list(parts.values())
            count = count * np.maximum.reduce(counts)
        return count

    @cached_property
    def _axes(self) -> tuple[tuple[ir.Split, ...], ...]:
        return ir.grid_axes(self.facts.program.grid)

    def blocks_along(self, axes: Iterable[Sequence[ir.Split]]) -> tp.Numbers:
        """How many blocks some axes of the grid have together."""
        count = np.ones(len(self.points))
        for axis in axes:
            parts = tp.parts_at(self.facts.program, axis, self._tiles)
            count = count * np.maximum.reduce(list(parts.values()))
        return count

    def is_read_once(self, waves: tp.Numbers) -> NDArray[np.bool_]:
        """Where what loops read is fetched into L2 once, by blocks in a good order.

        Blocks along shared axes run together then, and what those of one time read
        fits.  `cost/order.py` has that order.
        """
        if not self.facts.shared:
            return np.zeros(len(self.points), bool)
        if self.facts.counts_down:
            return self.held_together > 0
        along = self.blocks_along(a for a in self._axes if a not in self.facts.apart)
        part = np.maximum(along / self.blocks, 1 / waves)
        return self.facts.read_in_loops * part < self.held_bytes

    @cached_property
    def held_together(self) -> tp.Numbers:
        """Of how many of the last axes apart L2 holds what the blocks' loops read.

        These loops are bounded: a block reads half of it in the mean.
        """
        counts = [self.blocks_along([axis]) for axis in self.facts.apart]
        held = self.facts.read_in_loops / np.prod(counts, axis=0)
        fits, found = np.ones(len(self.points), bool), np.zeros(len(self.points))
        for count in reversed(counts):
            held = held * count
            fits = fits & (held <= 2 * self.held_bytes)
            found = found + fits
        return found

    @property
    def held_bytes(self) -> float:
        """What L2 holds before some of it leaves early."""
        return HELD_IN_L2 * self.hardware.l2_bytes

    def _extent(self, name: str) -> float:
        return float(self.facts.program.extents.get(name) or 1)

    @cached_property
    def counted(self) -> tp.Numbers:
        """Iterations of a block without bounds."""
        program = self.facts.program
        if program.loop is None:
            return np.ones(len(self.points))
        span = np.full(len(self.points), self._extent(program.loop.dim))
        if program.within_grid and program.loop.dim in self._tiles:
            span = np.minimum(span, self._tiles[program.loop.dim])
        return np.ceil(span / self.points.loop)

    @cached_property
    def iterations(self) -> tp.Numbers:
        """Iterations of a block: as many as it visits, over all blocks the mean."""
        count = self.counted
        if not self.facts.program.bounds:
            return count
        return np.maximum(self._means(count, ()), 1.0)

    @cached_property
    def unmasked(self) -> tuple[Footprint, tp.Numbers] | None:
        """What iterations without masks do, and how many a block has, in the mean."""
        rest = self.facts.unmasked
        if rest is None:
            return None
        covered = self.facts.covered
        means = self._means(self.counted, covered)
        return Footprint(rest, self.points, self.hardware), means

    def _means(
        self, counts: tp.Numbers, covered: tuple[ir.LoopBound, ...]
    ) -> tp.Numbers:
        """How many iterations a block visits, at each point; as `_visited`."""
        tiles = np.stack([self.points.loop, *self.points.grid])
        _, first, of = np.unique(tiles, axis=1, return_index=True, return_inverse=True)
        found = [self._visited(at, int(counts[at]), covered) for at in first.tolist()]
        return np.array(found)[of.ravel()]

    def _visited(
        self, point: int, count: int, covered: tuple[ir.LoopBound, ...]
    ) -> float:
        """How many of so many iterations a block visits, over all blocks the mean.

        Args:
            point: At which point.
            count: Iterations without bounds.
            covered: What has to cover those that count.
        """
        program = self.facts.program
        assert program.loop is not None
        name, tile = program.loop.dim, int(self.points.loop[point])
        at = np.arange(count) * tile
        if program.within_grid:
            width = int(self._tiles[name][point])
            parts = np.arange(math.ceil(self._extent(name) / width)) * width
            at = (parts[:, None] + at).ravel()
        met = np.ones((1, len(at)), np.bool_)
        needed = [(b, b.met) for b in program.bounds]
        for bound, holds in [*needed, *((b, b.covers) for b in covered)]:
            width = int(self._tiles[bound.dim][point])
            blocks = math.ceil(self._extent(bound.dim) / width)
            first = np.arange(blocks)[:, None] * width
            # Bounds by one dim hold together; of several dims the product is near.
            own = holds(at, tile, first, width)
            alike = own.shape[0] == met.shape[0] or 1 in (own.shape[0], met.shape[0])
            met = met & own if alike else met[:, None] & own[None]
            met = met.reshape(-1, len(at))
        return float(met.mean()) * count


def footprints(
    facts: BlockFacts, sizes: Footprint
) -> Iterator[tuple[Footprint, NDArray[np.intp]]]:
    """The points of each program of a block, and which points they are.

    Args:
        facts: Of the block.
        sizes: All points, of its plain program.
    """
    worth, points = facts.deferrable, sizes.points
    kinds = points.swap_operands.astype(np.int64)
    for bit, number in enumerate(worth.values(), 1):
        kinds |= sizes.at(number).astype(np.int64) << bit
    for kind in np.flatnonzero(np.bincount(kinds)).tolist():
        index = np.flatnonzero(kinds == kind)
        deferred = (v for bit, v in enumerate(worth, 1) if kind >> bit & 1)
        program = facts.program(swapped=bool(kind & 1), deferred=frozenset(deferred))
        if program is facts.plain:
            yield sizes.take(index), index
        else:
            yield Footprint(program, points.take(index), sizes.hardware), index


def footprint_of(facts: BlockFacts, hardware: Hardware) -> Footprint:
    """That of a block at its own sizes."""
    return Footprint(facts.own, points_of(facts.block), hardware)


def at_point(
    block: ir.BlockGraph, splits: tuple[ir.Split, ...], points: Points, at: int
) -> ir.BlockGraph:
    """A structure with the tiles and the schedule of one point of its family.

    Args:
        block: The structure.
        splits: Of the family's grid.
        points: Of the family.
        at: Which of them.
    """
    tiles = {s.dim: int(t[at]) for s, t in zip(splits, points.grid, strict=True)}
    loop = block.loop
    schedule = replace(
        block.schedule,
        num_warps=int(points.num_warps[at]),
        num_stages=int(points.num_stages[at]),
        swap_operands=bool(points.swap_operands[at]),
    )
    return replace(
        block,
        grid=tuple(replace(s, tile=tiles[s.dim]) for s in block.grid),
        loop=None if loop is None else ir.Split(loop.dim, int(points.loop[at])),
        schedule=schedule,
    )


def tensor_bytes(value: TensorType, extents: Extents) -> float:
    """Bytes of a device tensor.

    Raises:
        SearchError: An extent is unknown.
    """
    return value.dtype.itemsize * size_of(value.names, extents)


def size_of(names: tuple[str, ...], extents: Extents) -> float:
    size = 1.0
    for name in names:
        extent = extents.get(name)
        if extent is None:
            raise SearchError(
                f"the extent of {name} is not known; costs need concrete shapes"
            )
        size *= extent
    return size


# -- Shared memory ---------------------------------------------------------------------
# Stages of the loop's loads are free again after the loop, so what the code after
# it needs takes their place.

Bools = NDArray[np.bool_]


def shared_sizes(footprint: Footprint) -> tp.Numbers:
    """Bytes of each value that lies in shared memory, one row for each.

    All stages of a loop's load together.
    """
    own = footprint.facts.tables.shared
    sizes = footprint.sizes[own.value] * own.itemsize
    if len(own.staged):
        sizes[own.staged] *= footprint.buffers.sum(axis=0)
    return sizes


# -- All resources ---------------------------------------------------------------------

BASE_REGISTERS = 40
"""Registers of a thread for addresses, counters and masks."""

BASE_SHARED = 2048
"""Shared memory for exchanges between warps: reductions, change of layout."""


@dataclass(frozen=True)
class Resources:
    """What one block takes, and how many blocks share a multiprocessor, by point.

    Attributes:
        shared: Bytes of shared memory.
        registers: Registers of a thread.
        largest: Elements of the largest tile.
        resident: Blocks that fit on a multiprocessor at once; 0 where none does.
        too_much: For each limit, by its name in the ledger, where it is exceeded.
    """

    shared: tp.Numbers
    registers: tp.Numbers
    largest: tp.Numbers
    resident: tp.Numbers
    too_much: dict[str, Bools]

    @property
    def feasible(self) -> Bools:
        """Where the block fits."""
        return self.resident > 0

    def take(self, index: NDArray[np.intp]) -> Resources:
        """Those of the points at `index`."""
        return Resources(
            self.shared[index],
            self.registers[index],
            self.largest[index],
            self.resident[index],
            {limit: exceeded[index] for limit, exceeded in self.too_much.items()},
        )

    def reason(self, at: int, hardware: Hardware) -> str | None:
        """Why the point does not fit, or None where it does."""
        if self.too_much["shared memory"][at]:
            return (
                f"{int(self.shared[at])} bytes of shared memory, "
                f"{hardware.name} has {hardware.architecture.shared_per_block} a block"
            )
        if self.too_much["registers"][at]:
            return (
                f"about {int(self.registers[at])} registers a thread, of the "
                f"{hardware.architecture.registers_per_thread} of {hardware.name}"
            )
        if self.too_much["tile size"][at]:
            return (
                f"a tile of {int(self.largest[at])} elements, at most {tp.LARGEST_TILE}"
            )
        return None


def resources(footprint: Footprint, live: Live | None = None) -> Resources:
    """The resources of every point of a footprint.

    Args:
        footprint: The program and the points.
        live: What lives in registers, if statements stand in another order.
    """
    facts, points, hardware = footprint.facts, footprint.points, footprint.hardware
    limits, shared = hardware.architecture, _shared_bytes(footprint)
    registers = _registers(footprint, live or facts.live)
    dealt = footprint.dealt
    if dealt.any():
        # What the loop reads goes to registers, and to no more than compilers may use.
        shared = np.where(dealt, BASE_SHARED, shared)
        most = DEALT_REGISTERS * np.minimum(1.0, DEALT_WARPS / footprint.block_warps)
        registers = np.where(dealt, np.minimum(registers, most), registers)
    values = list(facts.tables.value.values())
    largest = footprint.sizes[values].max(axis=0, initial=1.0)
    threads = footprint.block_warps * WARP
    # No thread gets more than there are; what it lacks is spilled.
    per_block = np.minimum(registers, limits.registers_per_thread) * threads
    resident = np.minimum.reduce(
        [
            np.floor(limits.shared_per_sm / (shared + limits.shared_reserved)),
            np.floor(limits.registers_per_sm / per_block),
            np.floor(limits.threads_per_sm / threads),
            np.full(len(points), float(limits.blocks_per_sm)),
        ]
    )
    too_much = {
        "shared memory": shared > limits.shared_per_block,
        "registers": (registers > hardware.register_share * limits.registers_per_thread)
        | (per_block > limits.registers_per_sm),
        "tile size": largest > tp.LARGEST_TILE,
    }
    fits = ~np.logical_or.reduce(list(too_much.values()))
    return Resources(
        shared, registers, largest, np.where(fits, resident, 0.0), too_much
    )


def never_fits(
    made: Iterable[TensorType],
    split: AbstractSet[str],
    extents: Extents,
    hardware: Hardware,
) -> bool:
    """Whether a computed tile has more words than registers, at any sizes of tiles.

    Args:
        made: The types of what is computed, element by element or as a product.
        split: The dims that tiles may have single elements of.
        extents: Of all dims.
        hardware: The GPU.
    """
    limit = hardware.architecture.registers_per_sm * max(1.0, hardware.register_share)
    for item in made:
        whole = (extents.get(name) or 1 for name in item.names if name not in split)
        if math.prod(whole) * min(item.dtype.itemsize, 4) / 4 >= limit:
            return True
    return False


def _shared_bytes(footprint: Footprint) -> tp.Numbers:
    """The larger of what the loop and what the code after it needs."""
    own = footprint.facts.tables.shared
    if not own.names:
        return np.full(len(footprint.points), float(BASE_SHARED))
    sizes = shared_sizes(footprint)
    return BASE_SHARED + np.maximum(own.looping @ sizes, own.ending @ sizes)


def _registers(footprint: Footprint, live: Live) -> tp.Numbers:
    """Registers of a thread at the point of the program where most are live."""
    facts, points = footprint.facts, footprint.points
    names = live.names
    if not names:
        return np.full(len(points), float(BASE_REGISTERS))
    threads = footprint.block_warps * WARP
    shared = _rows_shared_by_warps(footprint)
    threads = np.where(shared, np.minimum(threads, 4 * WARP), threads)
    tiles, rows = facts.flow.tiles, facts.tables.value
    words = as_column(min(tiles[n].dtype.itemsize, 4) / 4 for n in names)
    sizes = footprint.sizes_without_windows[[rows[n] for n in names]]
    held = live.at @ np.maximum(sizes * words / threads, 1.0)
    for at, product in enumerate(facts.products):
        more = _registers_of(product, at, footprint)
        if more is not None:
            held[live.products[product.result]] += more / threads
    return BASE_REGISTERS + np.ceil(held.max(axis=0))


def _registers_of(
    product: tp.Product, at: int, footprint: Footprint
) -> tp.Numbers | None:
    """Words that a product takes besides the tiles that are live; None for none."""
    table, sizes = footprint.facts.tables.products, footprint.sizes
    if product.precision == "ieee":
        # Without the matrix unit, rows and columns are read to registers.
        return (sizes[table.rows[at]] + sizes[table.columns[at]]) * sizes[
            table.over[at]
        ]
    if product.rows or product.columns:
        # Tiles with merged dims go through registers.
        through = footprint.merged[at]
        if not through.any():
            return None
        return through * sum(
            footprint.held(footprint.facts.flow.origin(v))
            for v in dict.fromkeys((product.left, product.right))
        )
    # All factors are there at once, then summed.
    return sizes[table.over[at]] * sizes[table.batch[at]]


def _rows_shared_by_warps(footprint: Footprint) -> Bools:
    """Where more than four warps hold the same tiles twice.

    Products that feed each other are laid out with all warps along the rows, 16 rows
    each; what has fewer rows is then held by several warps.
    """
    facts, points = footprint.facts, footprint.points
    matrix = ~facts.tables.products.vector
    if np.count_nonzero(matrix) < 2 or not facts.chained:
        return np.zeros(len(points), dtype=bool)
    short = footprint.tall[matrix].min(axis=0) < tp.SMALLEST_DOT * footprint.block_warps
    return short & (footprint.block_warps > 4)
