"""Tiles and schedules for a structure: sweep, screen by resources, rank by cost.

Tiles are powers of two, as Triton's tensors are; extents that they do not divide get a
masked last tile, and dims that are not split are padded.  All points of a structure are
priced at once: first every tile with a few schedules, then every schedule for the best
tiles.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import BlockGraph, Split
from mirage_dsl.search.block_cost import BatchCost, block_cost
from mirage_dsl.search.footprint import (
    MATRIX_TILE,
    BlockFacts,
    Footprint,
    Numbers,
    Points,
    facts_of,
)
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.resources import Resources, resources
from mirage_dsl.types import TensorType

LARGEST_MATRIX_TILE = 256
LARGEST_TILE_SIDE = 4096
"""Largest tile of a dim that is a side of a product, and of any other dim."""

MOST_BLOCKS = 2**20
"""Most blocks of a launch worth a thought."""

SHORTLIST = 24
"""Tiles that get the whole sweep of schedules."""

NARROW = 32
WIDE = 64
"""Products with at most `NARROW` rows and at least `WIDE` columns may be transposed."""

Schedules = Sequence[tuple[int, int, bool]]
"""Warps, stages, and whether operands are swapped."""


@dataclass(frozen=True)
class Sized:
    """A block graph with tiles and a schedule, and its estimate."""

    block: BlockGraph
    microseconds: float


@dataclass(frozen=True)
class Sizes:
    """What is allowed; None where everything is.

    Attributes:
        grids: Numbers of blocks along the grid dims, in the block's order.
        iterations: Numbers of iterations; a block without a loop has one.
        num_warps: Warps of a block.
        grid_tiles: Tiles of a grid dim of some extent, in place of the powers of two.
        loop_tiles: The same for the loop's dim.
    """

    grids: Callable[[tuple[int, ...]], bool] | None = None
    iterations: AbstractSet[int] | None = None
    num_warps: AbstractSet[int] | None = None
    grid_tiles: Callable[[int], Sequence[int]] | None = None
    loop_tiles: Callable[[int], Sequence[int]] | None = None


ANY_SIZES = Sizes()


def choose_sizes(
    block: BlockGraph,
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    *,
    hardware: Hardware = H100,
    keep: int = 4,
    allowed: Sizes = ANY_SIZES,
    tally: Counter[str] | None = None,
    inside: AbstractSet[str] = frozenset(),
    worst: float = math.inf,
) -> list[Sized]:
    """The cheapest sizes of a structure, best first.

    Args:
        block: The structure; its tiles and schedule do not matter.
        outer: Types of the kernel-level tensors that it loads.
        extents: Extents of the kernel-level dims.
        hardware: The GPU.
        keep: How many to return at most; none if nothing fits.
        allowed: Restrictions.
        tally: Counts points and what excluded them, for the ledger.
        inside: Tensors that an earlier kernel left in L2.
        worst: Give up on a structure whose first estimates are all above this, in µs.

    Raises:
        SearchError: An extent is unknown.
    """
    facts = facts_of(block, outer, extents)
    sweep = _Sweep(facts, hardware, allowed, inside, tally)
    tiles = sweep.tiles()
    coarse = sweep.price(tiles, sweep.schedules(few=True))
    best = _best_per_tile(coarse.cost.seconds, coarse.tile_of)[:SHORTLIST]
    if not len(best):
        return []
    if 1e6 * coarse.cost.seconds[best[0]] > worst:
        if tally is not None:
            tally["cost rank"] += 1
        return []
    fine = sweep.price(tiles[coarse.tile_of[best]], sweep.schedules(few=False))
    chosen = _best_per_tile(fine.cost.seconds, fine.tile_of)[:keep]
    return [
        Sized(fine.footprint.sized(int(i)), 1e6 * float(fine.cost.seconds[i]))
        for i in chosen
    ]


@dataclass(frozen=True)
class _Priced:
    """Points that fit, the row of tiles of each, and their cost."""

    footprint: Footprint
    tile_of: NDArray[np.intp]
    cost: BatchCost


@dataclass(frozen=True)
class _Sweep:
    facts: BlockFacts
    hardware: Hardware
    allowed: Sizes
    inside: AbstractSet[str]
    tally: Counter[str] | None

    def tiles(self) -> NDArray[np.int64]:
        """All combinations of tiles, one row each: the grid's, then the loop's."""
        block = self.facts.block
        choices = [self._grid_tiles(s) for s in block.grid]
        choices.append(self._loop_tiles(block.loop) if block.loop else (1,))
        rows = np.array(list(itertools.product(*choices)), dtype=np.int64)
        rows = rows.reshape(-1, len(choices))
        return rows[self._admitted(rows)]

    def _admitted(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        block = self.facts.block
        counts = np.array([self.facts.extents[s.dim] for s in block.grid], dtype=int)
        parts = -(-counts // rows[:, :-1])
        keep = parts.prod(axis=1) <= MOST_BLOCKS
        if block.loop is not None:
            for column, split in enumerate(block.grid):
                if split.dim == block.loop.dim:
                    keep &= rows[:, column] >= rows[:, -1]
        grids, iterations = self.allowed.grids, self.allowed.iterations
        if grids is not None:
            keep &= [grids(tuple(int(p) for p in row)) for row in parts]
        else:
            # One part is no split, and structures without it are searched too.
            keep &= (parts > 1).all(axis=1)
        points = _points(rows, [(4, 2, False)], np.arange(len(rows)))
        found = Footprint(self.facts, points).iterations
        if iterations is not None:
            keep &= np.isin(found, list(iterations))
        elif block.loop and self.facts.extents[block.loop.dim] > MATRIX_TILE:
            # One iteration is no loop, and structures without one are searched too.
            keep &= found > 1
        return keep

    def _grid_tiles(self, split: Split) -> Sequence[int]:
        name, extent = split.dim, self.facts.extents[split.dim]
        if self.allowed.grid_tiles is not None:
            return self.allowed.grid_tiles(extent)
        loop = self.facts.block.loop
        if name in self.facts.batch_dims:
            return (1,)
        if loop is not None and loop.dim == name:
            return _powers(4 * MATRIX_TILE, max(extent // 2, MATRIX_TILE), extent)
        if name in self.facts.matrix_dims:
            tiles = _powers(MATRIX_TILE, LARGEST_MATRIX_TILE, extent)
            return (1, *tiles) if name in self.facts.joint_dims else tiles
        return _powers(1, LARGEST_TILE_SIDE, extent)

    def _loop_tiles(self, split: Split) -> Sequence[int]:
        name, extent = split.dim, self.facts.extents[split.dim]
        if self.allowed.loop_tiles is not None:
            return self.allowed.loop_tiles(extent)
        if name in self.facts.batch_dims:
            return (1,)
        if name in self.facts.matrix_dims:
            least = 1 if name in self.facts.joint_dims else MATRIX_TILE
            return _powers(least, LARGEST_MATRIX_TILE, extent)
        return _powers(MATRIX_TILE, LARGEST_TILE_SIDE, extent)

    def schedules(self, *, few: bool) -> Schedules:
        """Schedules worth trying for this structure."""
        products = bool(self.facts.products)
        warps = (4, 8) if products else (4, 8, 16)
        if self.allowed.num_warps is not None:
            warps = tuple(sorted(self.allowed.num_warps))
        looped = self.facts.block.loop is not None
        stages = (2,) if not looped else (2, 4) if few else (2, 3, 4, 5, 6)
        swaps = (False, True) if products else (False,)
        return list(itertools.product(warps, stages, swaps))

    def price(self, tiles: NDArray[np.int64], schedules: Schedules) -> _Priced:
        """Every row of tiles with every schedule, as far as they fit."""
        tile_of = np.repeat(np.arange(len(tiles)), len(schedules))
        points = _points(tiles, schedules, tile_of)
        useful = self._useful(Footprint(self.facts, points))
        footprint = Footprint(self.facts, points.take(useful))
        room = resources(footprint, self.hardware)
        self._count(room)
        fits = np.flatnonzero(room.feasible)
        footprint = Footprint(self.facts, footprint.points.take(fits))
        cost = block_cost(footprint, self.hardware, self.inside, room.take(fits))
        return _Priced(footprint, tile_of[useful[fits]], cost)

    def _count(self, room: Resources) -> None:
        if self.tally is None:
            return
        self.tally["sizes tried"] += len(room.shared)
        for limit, exceeded in room.too_much.items():
            self.tally[limit] += int(np.count_nonzero(exceeded))

    def _useful(self, footprint: Footprint) -> NDArray[np.intp]:
        points = footprint.points
        good = points.num_stages <= np.maximum(footprint.iterations + 1, 2)
        if self.facts.products:
            sides = [
                (
                    footprint.padded_elements(p.rows),
                    footprint.padded_elements(p.columns),
                )
                for p in self.facts.products
            ]
            narrow = np.logical_and.reduce([rows <= NARROW for rows, _ in sides])
            wide = np.logical_or.reduce([columns >= WIDE for _, columns in sides])
            good &= ~points.swap_operands | (narrow & wide)
        return np.flatnonzero(good)


def _points(
    tiles: NDArray[np.int64], schedules: Schedules, tile_of: NDArray[np.intp]
) -> Points:
    """The points of `tiles[tile_of]`, schedules repeating fastest."""
    rows = tiles[tile_of].astype(np.float64)
    repeat = len(rows) // max(len(schedules), 1)
    warps, stages, swaps = (np.array(c) for c in zip(*schedules, strict=True))
    return Points(
        tuple(rows[:, i] for i in range(rows.shape[1] - 1)),
        rows[:, -1],
        np.tile(warps, repeat).astype(np.float64),
        np.tile(stages, repeat).astype(np.float64),
        np.tile(swaps, repeat),
    )


def _powers(low: int, high: int, extent: int) -> tuple[int, ...]:
    """Powers of two from `low` to `high`, none that half of would do for."""
    whole = 1 << max(extent - 1, 0).bit_length()
    found = tuple(
        1 << e
        for e in range(low.bit_length() - 1, high.bit_length())
        if 1 << e <= whole
    )
    return found or (whole,)


def _best_per_tile(seconds: Numbers, tile_of: NDArray[np.intp]) -> NDArray[np.intp]:
    """Indices of the cheapest points, of each tile only the best."""
    order = np.argsort(seconds, kind="stable")
    seen: set[int] = set()
    kept: list[int] = []
    for at, tile in zip(order.tolist(), tile_of[order].tolist(), strict=True):
        if tile not in seen:
            seen.add(tile)
            kept.append(at)
    return np.array(kept, dtype=np.intp)
