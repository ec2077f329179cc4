"""Tiles and schedules for a structure: sweep, screen by resources, rank by cost.

Tiles are powers of two; what they do not divide gets a masked last tile.

What a value takes does not depend on which of its dims a grid splits, only on how long
the tiles are: a dim that is not split has one tile.  So a *family*, structures that
differ only in the dims that their grid splits, is described and priced once, as its
*hull*: the structure with all splits of its members.  All points of a family are priced
at once: every tile with a few schedules, then the best tiles with every schedule.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import Axis, Dim, TensorType
from mirage_dsl.cost.estimate import block_cost
from mirage_dsl.cost.facts import BlockFacts, Tried, facts_of
from mirage_dsl.cost.footprint import (
    Footprint,
    Points,
    Resources,
    at_point,
    footprints,
    resources,
)
from mirage_dsl.ir.graph import BlockGraph, BlockNode, Load, Split, Store, dims_of
from mirage_dsl.search.space import along_axes, matched
from mirage_dsl.tile.sizes import SMALLEST_DOT

LARGEST_SMALLEST_DOT = 256
LARGEST_TILE_SIDE = 4096
"""Largest tile of a dim that is a side of a product, and of any other dim."""

FEWEST_ROUNDS = 4
"""Fewest iterations over the part of a dim whose elements are taken one by one."""

MOST_BLOCKS = 2**20
"""Most blocks of a launch worth a thought."""

SHORTLIST = 24
"""Tiles that get the whole sweep of schedules."""

NARROW, WIDE = 32, 64
"""Products with at most `NARROW` rows and at least `WIDE` columns may be transposed."""

Schedules = Sequence[tuple[int, int, bool]]
"""Warps, stages, and whether operands are swapped."""


@dataclass(frozen=True)
class Sized:
    """A block graph with tiles and a schedule, and its estimate."""

    block: BlockGraph
    microseconds: float


@dataclass(frozen=True)
class Allowed:
    """What is allowed; None where everything is.

    Attributes:
        grids: Numbers of blocks along the grid's axes, in the block's order.
        iterations: Numbers of iterations; a block without a loop has one.
        num_warps: Warps of a block.
        grid_tiles: Tiles of a grid dim of some extent, in place of the powers of two.
        loop_tiles: The same for the loop's dim.
        whole: Whether a dim of the grid may have one tile, which is no split of it.
    """

    grids: Callable[[tuple[int, ...]], bool] | None = None
    iterations: AbstractSet[int] | None = None
    num_warps: AbstractSet[int] | None = None
    grid_tiles: Callable[[int], Sequence[int]] | None = None
    loop_tiles: Callable[[int], Sequence[int]] | None = None
    whole: bool = False


ANY_SIZES = Allowed()


@dataclass(frozen=True)
class UnsizedBlock:
    """A structure to size; its tiles and schedule do not matter."""

    block: BlockGraph
    allowed: Allowed = ANY_SIZES

    @property
    def split(self) -> frozenset[str]:
        """The dims that are split at all sizes."""
        if not self.allowed.whole:
            return frozenset(s.dim for s in self.block.splits)
        return frozenset(() if self.block.loop is None else {self.block.loop.dim})


def choose_sizes(
    block: BlockGraph,
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    *,
    hardware: Hardware,
    keep: int = 4,
    allowed: Allowed = ANY_SIZES,
    tally: Counter[str] | None = None,
    inside: AbstractSet[str] = frozenset(),
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

    Raises:
        SearchError: An extent is unknown.
    """
    (found,) = sizes_of_all(
        [UnsizedBlock(block, allowed)],
        outer,
        extents,
        hardware=hardware,
        keep=keep,
        tally=tally,
        inside=inside,
    )
    return found


def sizes_of_all(
    structures: Sequence[UnsizedBlock],
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    *,
    hardware: Hardware,
    keep: int = 4,
    tally: Counter[str] | None = None,
    inside: AbstractSet[str] = frozenset(),
    worst: float = math.inf,
) -> list[list[Sized]]:
    """The cheapest sizes of each structure of a family.

    Args:
        structures: Structures that differ in their grids only, or in what is allowed.
        outer: Types of the kernel-level tensors that they load.
        extents: Of the kernel-level dims.
        hardware: The GPU.
        keep: Of each.
        tally: Counts points.
        inside: Tensors that an earlier kernel left in L2.
        worst: Give up on structures whose first estimates are all above this, in µs.

    Raises:
        SearchError: An extent is unknown.
    """
    try:
        return _sizes_of_all(
            structures, outer, extents, hardware, keep, tally, inside, worst
        )
    except UnsupportedError:
        # No tile program expresses what these structures do: none can be run.
        if tally is not None:
            tally["lowering"] += len(structures)
        return [[] for _ in structures]


def _sizes_of_all(
    structures: Sequence[UnsizedBlock],
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    hardware: Hardware,
    keep: int,
    tally: Counter[str] | None,
    inside: AbstractSet[str],
    worst: float,
) -> list[list[Sized]]:
    family = hull([f.block for f in structures])
    split = frozenset[str].intersection(*(f.split for f in structures))
    facts = facts_of(family, outer, extents, Tried(frozenset(), split))
    found = _Sweep(facts, hardware, inside, tally).sized(structures, keep, worst)
    if not facts.columns_of_vectors:
        return found
    # Of matrices that vectors meet tiles may be smaller than the matrix unit takes.
    tried = Tried(facts.columns_of_vectors, split)
    facts = facts_of(family, outer, extents, tried)
    more = _Sweep(facts, hardware, inside, tally).sized(structures, keep, worst)
    return [
        sorted((*a, *b), key=lambda s: s.microseconds)[:keep]
        for a, b in zip(found, more, strict=True)
    ]


@dataclass(frozen=True)
class _Priced:
    """Points that fit, by structure, then by row of tiles; and their cost.

    `structure_of` and `tile_of` are the structure of each point, and its row among
    those of that structure.
    """

    points: Points
    structure_of: NDArray[np.intp]
    tile_of: NDArray[np.intp]
    seconds: NDArray[np.float64]
    structures: int

    def microseconds(self, at: int) -> float:
        return 1e6 * float(self.seconds[at])

    def best(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Of each structure the cheapest points, the best of each tile, and its row."""
        edges = np.searchsorted(
            self.structure_of, np.arange(self.structures + 1)
        ).tolist()
        for start, end in pairwise(edges):
            tiles = self.tile_of[start:end]
            order = np.argsort(self.seconds[start:end], kind="stable")
            _, first = np.unique(tiles[order], return_index=True)
            kept = order[np.sort(first)]
            yield start + kept, tiles[kept]


@dataclass(frozen=True)
class _Sweep:
    """Tiles and schedules of a family, and their prices."""

    facts: BlockFacts
    hardware: Hardware
    inside: AbstractSet[str]
    tally: Counter[str] | None

    def sized(
        self, structures: Sequence[UnsizedBlock], keep: int, worst: float
    ) -> list[list[Sized]]:
        """The cheapest sizes of each structure, best first."""
        tiles = [self.tiles(structure) for structure in structures]
        coarse = self.price(structures, tiles, few=True)
        shortlists: list[NDArray[np.int64]] = []
        for own, (best, of_tile) in zip(tiles, coarse.best(), strict=True):
            hopeless = len(best) > 0 and 1e6 * coarse.seconds[best[0]] > worst
            if hopeless and self.tally is not None:
                self.tally["cost rank"] += 1
            shortlists.append(own[of_tile[: 0 if hopeless else SHORTLIST]])
        fine = self.price(structures, shortlists, few=False)
        splits = self.facts.block.grid
        return [
            [
                Sized(
                    at_point(structure.block, splits, fine.points, int(i)),
                    fine.microseconds(i),
                )
                for i in best[:keep]
            ]
            for structure, (best, _) in zip(structures, fine.best(), strict=True)
        ]

    def tiles(self, structure: UnsizedBlock) -> NDArray[np.int64]:
        """All combinations of tiles of a structure, one row each.

        The grid's come first, the loop's last; a dim that others of its family split
        has one tile.
        """
        block, family = structure.block, self.facts.block
        own = {s.dim for s in block.grid}
        if self.facts.small and self.facts.small.isdisjoint(own):
            return np.empty((0, len(family.grid) + 1), dtype=np.int64)
        choices: list[Sequence[tuple[int, ...]]] = [
            self._axis_tiles(axis, structure.allowed)
            if axis[0].dim in own
            else [(self.facts.extents[axis[0].dim],)]
            for axis in family.axes
        ]
        choices.append([(t,) for t in self._loop_tiles(structure.allowed)])
        rows = np.array(
            [tuple(itertools.chain(*row)) for row in itertools.product(*choices)],
            dtype=np.int64,
        )
        rows = rows.reshape(-1, len(family.grid) + 1)
        place = [s.dim for s in family.grid]
        columns = [place.index(s.dim) for s in block.grid]
        return rows[self._admitted(structure, rows, columns)]

    def _admitted(
        self, structure: UnsizedBlock, rows: NDArray[np.int64], columns: list[int]
    ) -> NDArray[np.bool_]:
        block = structure.block
        counts = np.array([self.facts.extents[s.dim] for s in block.grid], dtype=int)
        tiles = rows[:, columns]
        parts = along_axes(-(-counts // tiles), block)
        keep = parts.prod(axis=1) <= MOST_BLOCKS
        if block.loop is not None:
            for column, split in enumerate(block.grid):
                if split.dim == block.loop.dim:
                    keep &= tiles[:, column] >= rows[:, -1]
        grids, iterations = structure.allowed.grids, structure.allowed.iterations
        if grids is not None:
            allowed = [grids(tuple(int(p) for p in row)) for row in parts]
            keep &= np.array(allowed, dtype=bool)
        elif not structure.allowed.whole:
            # One part is no split, and structures without it are searched too.
            keep &= (parts > 1).all(axis=1)
        points = _points(rows, [(4, 2, False)])
        found = Footprint(self.facts.plain, points, self.hardware).counted
        if iterations is not None:
            keep &= np.isin(found, list(iterations))
        if block.loop and self.facts.extents[block.loop.dim] > SMALLEST_DOT:
            # One iteration is no loop, and structures without one are searched too.
            keep &= found > 1
        return keep

    def _axis_tiles(
        self, axis: Sequence[Split], allowed: Allowed
    ) -> list[tuple[int, ...]]:
        tiles = [self._grid_tiles(s.dim, allowed) for s in axis]
        extents = [self.facts.extents[s.dim] for s in axis]
        found = matched(tiles, extents)
        if allowed.whole and self.facts.small.isdisjoint(s.dim for s in axis):
            whole = tuple(extents)
            found = [t for t in found if any(map(operator.lt, t, whole))] + [whole]
        return found

    def _grid_tiles(self, name: str, allowed: Allowed) -> Sequence[int]:
        extent, small = self.facts.extents[name], name in self.facts.small
        if allowed.grid_tiles is not None:
            tiles = allowed.grid_tiles(extent)
            return [t for t in tiles if t < SMALLEST_DOT] if small else tiles
        if small:
            return _powers(1, SMALLEST_DOT // 2, extent)
        loop = self.facts.block.loop
        looped = loop is not None and loop.dim == name
        if name in self.facts.batch_dims:
            whole = Dim(name, grid=True) in self.facts.plain.program.pieces
            if not looped or whole:
                return (1,)
            return _powers(FEWEST_ROUNDS, max(extent // 2, FEWEST_ROUNDS), extent)
        if looped:
            return _powers(4 * SMALLEST_DOT, max(extent // 2, SMALLEST_DOT), extent)
        if name in self.facts.matrix_dims:
            tiles = _powers(SMALLEST_DOT, LARGEST_SMALLEST_DOT, extent)
            return (1, *tiles) if name in self.facts.joint_dims else tiles
        return _powers(1, LARGEST_TILE_SIDE, extent)

    def _loop_tiles(self, allowed: Allowed) -> Sequence[int]:
        loop = self.facts.block.loop
        if loop is None:
            return (1,)
        name, extent = loop.dim, self.facts.extents[loop.dim]
        if allowed.loop_tiles is not None:
            return allowed.loop_tiles(extent)
        if name in self.facts.batch_dims:
            return (1,)
        if name in self.facts.matrix_dims:
            least = 1 if name in self.facts.joint_dims else SMALLEST_DOT
            return _powers(least, LARGEST_SMALLEST_DOT, extent)
        return _powers(SMALLEST_DOT, LARGEST_TILE_SIDE, extent)

    def schedules(self, warps: AbstractSet[int] | None, *, few: bool) -> Schedules:
        """Schedules worth trying for this family, of so many warps."""
        products = bool(self.facts.products)
        warps = warps or ({4, 8} if products else {4, 8, 16})
        looped = self.facts.block.loop is not None
        stages = (2,) if not looped else (2, 4) if few else (2, 3, 4, 5, 6)
        swaps = (False, True) if products else (False,)
        return list(itertools.product(sorted(warps), stages, swaps))

    def price(
        self,
        structures: Sequence[UnsizedBlock],
        tiles: Sequence[NDArray[np.int64]],
        *,
        few: bool,
    ) -> _Priced:
        """Rows of tiles of every structure with every schedule, as far as they fit."""
        schedules = self.schedules(structures[0].allowed.num_warps, few=few)
        counts = [len(rows) for rows in tiles]
        structure_of = np.repeat(np.arange(len(structures)), counts).repeat(
            len(schedules)
        )
        tile_of = np.concatenate([np.arange(c) for c in counts]).repeat(len(schedules))
        points = _points(np.concatenate(tiles), schedules)
        useful = self._useful(points)
        points = points.take(useful)
        seconds = np.full(len(points), np.inf)
        for footprint, index in footprints(self.facts, points, self.hardware):
            room = resources(footprint)
            self._count(room)
            fits = np.flatnonzero(room.feasible)
            cost = block_cost(footprint.take(fits), self.inside, room.take(fits))
            seconds[index[fits]] = cost.seconds
        fits = np.flatnonzero(np.isfinite(seconds))
        index = useful[fits]
        return _Priced(
            points.take(fits),
            structure_of[index],
            tile_of[index],
            seconds[fits],
            len(structures),
        )

    def _count(self, room: Resources) -> None:
        if self.tally is None:
            return
        self.tally["sizes tried"] += len(room.shared)
        for limit, exceeded in room.too_much.items():
            self.tally[limit] += int(np.count_nonzero(exceeded))

    def _useful(self, points: Points) -> NDArray[np.intp]:
        footprint = Footprint(self.facts.plain, points, self.hardware)
        good = points.num_stages <= np.maximum(footprint.counted + 1, 2)
        table = footprint.facts.tables.products
        if len(table):
            narrow = (footprint.sizes[table.rows] <= NARROW).all(axis=0)
            wide = (footprint.sizes[table.columns] >= WIDE).any(axis=0)
            good &= ~points.swap_operands | (narrow & wide)
        return np.flatnonzero(good)


def _points(tiles: NDArray[np.int64], schedules: Schedules) -> Points:
    """The points of rows of tiles, schedules repeating fastest."""
    rows = tiles.astype(np.float64).repeat(len(schedules), axis=0)
    warps, stages, swaps = (
        np.tile(np.array(c), len(tiles)) for c in zip(*schedules, strict=True)
    )
    return Points(
        tuple(rows[:, i] for i in range(rows.shape[1] - 1)),
        rows[:, -1],
        warps.astype(np.float64),
        stages.astype(np.float64),
        swaps,
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


def on_grid(block: BlockGraph, grid: tuple[Split, ...]) -> BlockGraph:
    """The structure with another grid, whose dims its tensors have.

    Its bounds are gone: those of the new one are others.
    """
    names = {s.dim for s in grid}
    nodes = tuple(_node_on_grid(n, names) for n in block.nodes)
    return BlockGraph(grid, block.loop, nodes, block.schedule)


def _node_on_grid(node: BlockNode, names: AbstractSet[str]) -> BlockNode:
    match node:
        case Load():
            return Load(node.result, node.source, _axes_on_grid(node.axes, names))
        case Store():
            axes = _axes_on_grid(node.axes, names)
            return Store(node.result, node.operand, axes, node.dtype)
        case _:
            return node


def _axes_on_grid(axes: tuple[Axis, ...], names: AbstractSet[str]) -> tuple[Axis, ...]:
    return tuple(
        tuple(
            d if d.grid == (d.name in names) else Dim(d.name, not d.grid, d.loop)
            for d in axis
        )
        for axis in axes
    )


def without_splits(block: BlockGraph, dims: AbstractSet[str]) -> BlockGraph:
    """The structure of which every block computes all of some dims."""

    def whole(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(
            tuple(replace(d, grid=False) if d.name in dims else d for d in axis)
            for axis in axes
        )

    nodes = tuple(
        replace(n, axes=whole(n.axes)) if isinstance(n, Load | Store) else n
        for n in block.nodes
    )
    grid = tuple(s for s in block.grid if s.dim not in dims)
    return replace(block, grid=grid, nodes=nodes)


def families(blocks: Iterable[BlockGraph]) -> list[list[BlockGraph]]:
    """The families of some structures, in the order of their first members.

    Where dims share an axis of the grid, they do so in all members.
    """
    found: dict[tuple[object, ...], list[BlockGraph]] = {}
    for block in blocks:
        key = on_grid(block, ()) if _is_uniform(block) else block
        shared = tuple(axis for axis in block.axes if len(axis) > 1)
        found.setdefault((key, shared), []).append(block)
    return list(found.values())


def _is_uniform(block: BlockGraph) -> bool:
    """Whether a block sees its part only of every dim that its grid splits."""
    names = {s.dim for s in block.grid}
    nodes = (*block.loads, *block.stores)
    return all(d.grid == (d.name in names) for n in nodes for d in dims_of(n.axes))


def hull(family: Sequence[BlockGraph]) -> BlockGraph:
    """The structure of a family with the splits of all its members.

    It has all their bounds: one by a dim that is not split lets all iterations through.
    """
    if all(block is family[0] for block in family):
        return family[0]
    axes = dict.fromkeys(
        tuple(replace(split, tile=1) for split in axis)
        for block in family
        for axis in block.axes
    )
    whole = on_grid(family[0], tuple(split for axis in axes for split in axis))
    return replace(
        whole, bounds=tuple(dict.fromkeys(b for f in family for b in f.bounds))
    )
