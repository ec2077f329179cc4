"""Tiles and schedules: sweep, screen by resources, rank by cost, for one kernel or all.

Tiles are powers of two; what they do not divide gets a masked last tile.

What a value takes does not depend on which of its dims a grid splits, only on how long
the tiles are: a dim that is not split has one tile.  So a *family*, structures that
differ only in the dims that their grid splits, is described and priced once, as its
*hull*: the structure with all splits of its members.  All points of a family are priced
at once: every tile with every schedule, or where these are many with a few of them, and
then the best tiles with every one.

How many parts a kernel stores along `k#` is what a later one has to read.  So a few
numbers of parts are tried, and the later kernels are sized for each.

**Constraints** restrict the search with the meaning that Mirage's users know.  Mirage
names a grid's dims x, y, z and says for each tensor which of its axes x, y and z split;
here a grid names the dims that each of its axes splits.  A block satisfies the
constraints if its axes can be placed on x, y and z so that all maps are allowed.

Partial results have an axis of their own here, that of a dim `k#`.  Mirage lays them
side by side along an axis that is there anyway, whichever its map names: axes of `k#`
are not counted, and a map may name any axis for them, also one of extent 1 that no
tensor has here.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SearchError, UnsupportedError
from mirage_dsl.core.hardware import WARP, Hardware
from mirage_dsl.core.types import Axis, Dim, Types
from mirage_dsl.cost.estimate import block_cost
from mirage_dsl.cost.facts import BlockFacts, Tried, facts_of
from mirage_dsl.cost.footprint import (
    Footprint,
    Points,
    Resources,
    at_point,
    footprints,
    resources,
    tensor_bytes,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import around_libraries
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import (
    Extents,
    derived_extents,
    extents_made,
    grid_parts,
    iterations,
    known_extents,
    partial_base,
    with_derived_extents,
)
from mirage_dsl.ir.walk import each_dim, map_axes, operands_of, results_of
from mirage_dsl.rewrite.loops import split_loop
from mirage_dsl.search.budget import UNLIMITED, Budget, SearchBudget
from mirage_dsl.search.result import Plan
from mirage_dsl.search.space import along_axes, matched
from mirage_dsl.tile.program import SMALLEST_DOT

# -- Sizes of one kernel ---------------------------------------------------------------

LARGEST_SMALLEST_DOT = 256
LARGEST_TILE_SIDE = 4096
"""Largest tile of a dim that is a side of a product, and of any other dim."""

FEWEST_ROUNDS = 4
"""Fewest iterations over the part of a dim whose elements are taken one by one."""

PARTS_OF_WARPS = (4, 8)
PARTS_DEALT = (*PARTS_OF_WARPS, 16)
"""Tiles of a dim of which each warp of a block has a part, or some parts where threads
are dealt what they multiply."""

MOST_BLOCKS = 2**20
"""Most blocks of a launch worth a thought."""

SHORTLIST = 24
"""Tiles that get the whole sweep of schedules."""

AT_ONCE = 24
"""Tiles of a structure, up to which all get it at once: so few points take no longer
than a part of them does."""

NARROW, WIDE = 32, 64
"""Products with at most `NARROW` rows and at least `WIDE` columns may be transposed."""

Schedules = Sequence[tuple[int, int, bool]]
"""Warps, stages, and whether operands are swapped."""


@dataclass(frozen=True)
class Sized:
    """A block graph with tiles and a schedule, and its estimate."""

    block: ir.BlockGraph
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
        batches: Whether one may that products are batched over: their program is then
            one for any tiles, and dearer where matrices come one by one.
    """

    grids: Callable[[tuple[int, ...]], bool] | None = None
    iterations: AbstractSet[int] | None = None
    num_warps: AbstractSet[int] | None = None
    grid_tiles: Callable[[int], Sequence[int]] | None = None
    loop_tiles: Callable[[int], Sequence[int]] | None = None
    whole: bool = False
    batches: bool = True


ANY_SIZES = Allowed()


@dataclass(frozen=True)
class UnsizedBlock:
    """A structure to size; its tiles and schedule do not matter."""

    block: ir.BlockGraph
    allowed: Allowed = ANY_SIZES

    @property
    def split(self) -> frozenset[str]:
        """The dims that are split at all sizes, if products are batched over them."""
        if not (self.allowed.whole and self.allowed.batches):
            return frozenset(s.dim for s in self.block.splits)
        return frozenset(() if self.block.loop is None else {self.block.loop.dim})


def choose_sizes(
    block: ir.BlockGraph,
    outer: Types,
    extents: Extents,
    *,
    hardware: Hardware,
    keep: int = 4,
    allowed: Allowed = ANY_SIZES,
) -> list[Sized]:
    """The cheapest sizes of a structure, best first.

    Args:
        block: The structure; its tiles and schedule do not matter.
        outer: Types of the kernel-level tensors that it loads.
        extents: Extents of the kernel-level dims.
        hardware: The GPU.
        keep: How many to return at most; none if nothing fits.
        allowed: Restrictions.

    Raises:
        SearchError: An extent is unknown.
    """
    own = [UnsizedBlock(block, allowed)]
    (found,) = sizes_of_all(own, outer, extents, hardware=hardware, keep=keep)
    return found


def sizes_of_all(
    structures: Sequence[UnsizedBlock],
    outer: Types,
    extents: Extents,
    *,
    hardware: Hardware,
    keep: int = 4,
    tally: Counter[str] | None = None,
    inside: AbstractSet[str] = frozenset(),
    worst: float = math.inf,
    near: float = math.inf,
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
        near: Leave out sizes that take more than the best ones by this factor.

    Raises:
        SearchError: An extent is unknown.
    """
    try:
        return _sizes_of_all(
            structures, outer, extents, hardware, keep, tally, inside, worst, near
        )
    except UnsupportedError:
        # No tile program expresses what these structures do: none can be run.
        if tally is not None:
            tally["lowering"] += len(structures)
        return [[] for _ in structures]


def _sizes_of_all(
    structures: Sequence[UnsizedBlock],
    outer: Types,
    extents: Extents,
    hardware: Hardware,
    keep: int,
    tally: Counter[str] | None,
    inside: AbstractSet[str],
    worst: float,
    near: float,
) -> list[list[Sized]]:
    family = hull([f.block for f in structures])
    split = frozenset[str].intersection(*(f.split for f in structures))
    facts = facts_of(family, outer, extents, Tried(frozenset(), split))
    sweep = _Sweep(facts, hardware, inside, tally)
    found = sweep.sized(structures, keep, worst, near)
    if not facts.columns_of_vectors:
        return found
    # Of matrices that vectors meet tiles may be smaller than the matrix unit takes.
    tried = Tried(facts.columns_of_vectors, split)
    sweep = replace(sweep, facts=facts_of(family, outer, extents, tried))
    more = sweep.sized(structures, keep, worst, near)
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

    def take(self, index: NDArray[np.intp]) -> _Priced:
        """The points at `index`, which are of one structure after the other."""
        return _Priced(
            self.points.take(index),
            self.structure_of[index],
            self.tile_of[index],
            self.seconds[index],
            self.structures,
        )

    def best(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Of each structure the cheapest points, the best of each tile, and its row."""
        for start, end in pairwise(self._edges):
            tiles = self.tile_of[start:end]
            order = np.argsort(self.seconds[start:end], kind="stable")
            _, first = np.unique(tiles[order], return_index=True)
            kept = order[np.sort(first)]
            yield start + kept, tiles[kept]

    def of_tiles(self, wanted: Sequence[NDArray[np.intp]]) -> _Priced:
        """Of each structure the points of some of its rows, in the order of these."""
        found: list[NDArray[np.intp]] = []
        for (start, end), rows in zip(pairwise(self._edges), wanted, strict=True):
            tiles = self.tile_of[start:end]
            place = np.full(tiles.max(initial=-1) + 1, -1)
            place[rows] = np.arange(len(rows))
            own = place[tiles]
            order = np.argsort(own, kind="stable")
            found.append(start + order[own[order] >= 0])
        return self.take(np.concatenate(found))

    @property
    def _edges(self) -> list[int]:
        """Where the points of each structure begin, and the last ones end."""
        ends = np.searchsorted(self.structure_of, np.arange(self.structures + 1))
        return ends.tolist()


@dataclass(frozen=True)
class _Sweep:
    """Tiles and schedules of a family, and their prices."""

    facts: BlockFacts
    hardware: Hardware
    inside: AbstractSet[str]
    tally: Counter[str] | None

    def sized(
        self,
        structures: Sequence[UnsizedBlock],
        keep: int,
        worst: float,
        near: float,
    ) -> list[list[Sized]]:
        """The cheapest sizes of each structure, best first."""
        fine = self.shortlisted(structures, worst)
        if fine is None:
            return [[] for _ in structures]
        splits = self.facts.block.grid
        return [
            [
                Sized(
                    at_point(structure.block, splits, fine.points, int(i)),
                    fine.microseconds(i),
                )
                for i in best[:keep]
                if fine.microseconds(i) <= near * fine.microseconds(best[0])
            ]
            for structure, (best, _) in zip(structures, fine.best(), strict=True)
        ]

    def shortlisted(
        self, structures: Sequence[UnsizedBlock], worst: float
    ) -> _Priced | None:
        """The best tiles of each structure with all schedules; None if there are none.

        The tiles of a structure are priced with all schedules at once, where either are
        few; else with a few schedules first, and the best of them again.
        """
        tiles = [self.tiles(structure) for structure in structures]
        warps = structures[0].allowed.num_warps
        few, every = (self.schedules(warps, few=f) for f in (True, False))
        many = [every != few and len(rows) > AT_ONCE for rows in tiles]
        if any(many):
            some = [t if m else t[:0] for t, m in zip(tiles, many, strict=True)]
            best = self._shortlists(self.price(some, few), few, worst)
            chosen = zip(tiles, best, many, strict=True)
            tiles = [own[rows] if m else own for own, rows, m in chosen]
        if not any(map(len, tiles)):
            return None
        fine = self.price(tiles, every)
        return fine.of_tiles(self._shortlists(fine, few, worst))

    def _shortlists(
        self, priced: _Priced, few: Schedules, worst: float
    ) -> list[NDArray[np.intp]]:
        """Of each structure the rows of the best tiles, by a few schedules."""
        stages = list({stages for _, stages, _ in few})
        tried = np.isin(priced.points.num_stages, stages)
        priced = priced.take(np.flatnonzero(tried))
        found: list[NDArray[np.intp]] = []
        for best, of_tile in priced.best():
            hopeless = len(best) > 0 and 1e6 * priced.seconds[best[0]] > worst
            if hopeless and self.tally is not None:
                self.tally["cost rank"] += 1
            found.append(of_tile[: 0 if hopeless else SHORTLIST])
        return found

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
        grid = {s.dim: rows[:, at] for at, s in enumerate(self.facts.block.grid)}
        for row in self.facts.rows_of_vectors(grid, rows[:, -1]):
            # Those with other tiles have another program.
            keep &= row != bool(self.facts.small)
        return keep

    def _axis_tiles(
        self, axis: Sequence[ir.Split], allowed: Allowed
    ) -> list[tuple[int, ...]]:
        tiles = [self._grid_tiles(s.dim, allowed) for s in axis]
        extents = [self.facts.extents[s.dim] for s in axis]
        found = matched(tiles, extents)
        alone = self.facts.small
        if not allowed.batches:
            alone |= self.facts.batch_dims
        if allowed.whole and alone.isdisjoint(s.dim for s in axis):
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
            joint = name in self.facts.joint_dims
            if joint and self.facts.takes_words:
                # Columns in words of eight, which are sixteen together from two on.
                return _powers(1, LARGEST_SMALLEST_DOT, extent)
            tiles = _powers(SMALLEST_DOT, LARGEST_SMALLEST_DOT, extent)
            return (1, *tiles) if joint else tiles
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
        if name in self.facts.warp_dims:
            parts = PARTS_DEALT if self.facts.plain.deal else PARTS_OF_WARPS
            return [count for count in parts if count <= extent]
        if name in self.facts.matrix_dims:
            least = 1 if name in self.facts.joint_dims else SMALLEST_DOT
            return _powers(least, LARGEST_SMALLEST_DOT, extent)
        return _powers(SMALLEST_DOT, LARGEST_TILE_SIDE, extent)

    def schedules(self, warps: AbstractSet[int] | None, *, few: bool) -> Schedules:
        """Schedules worth trying for this family, of so many warps."""
        products = bool(self.facts.products)
        looped = self.facts.block.loop is not None
        usual = {4, 8} if products else {4, 8, 16}
        stages = (2, 4) if few else (2, 3, 4, 5, 6)
        loads = self.facts.plain.tables.loads
        if loads.picked.any():
            # Copied ahead, windows would be so element by element.
            stages = (1,)
        elif loads.windows.any():
            # A warp wants neighbours, and windows do not go through shared memory.
            usual, stages = usual | {1, 2}, (1,)
        elif self.facts.copies_words or self.facts.plain.deal:
            stages = (1, *stages)
        warps = warps or usual
        stages = stages if looped else (2,)
        swaps = (False, True) if products else (False,)
        return list(itertools.product(sorted(warps), stages, swaps))

    def price(
        self, tiles: Sequence[NDArray[np.int64]], schedules: Schedules
    ) -> _Priced:
        """Rows of tiles of every structure with every schedule, as far as they fit."""
        counts = [len(rows) for rows in tiles]
        structure_of = np.repeat(np.arange(len(tiles)), counts).repeat(len(schedules))
        tile_of = np.concatenate([np.arange(c) for c in counts]).repeat(len(schedules))
        plain = Footprint(
            self.facts.plain,
            _points(np.concatenate(tiles), schedules),
            self.hardware,
        )
        useful = self._useful(plain)
        plain = plain.take(useful)
        seconds = np.full(len(useful), np.inf)
        for footprint, index in footprints(self.facts, plain):
            room = resources(footprint)
            self._count(room)
            fits = np.flatnonzero(room.feasible)
            if not len(fits):
                continue
            cost = block_cost(footprint.take(fits), self.inside, room.take(fits))
            seconds[index[fits]] = cost.seconds
        fits = np.flatnonzero(np.isfinite(seconds))
        index = useful[fits]
        return _Priced(
            plain.points.take(fits),
            structure_of[index],
            tile_of[index],
            seconds[fits],
            len(tiles),
        )

    def _count(self, room: Resources) -> None:
        if self.tally is None:
            return
        self.tally["sizes tried"] += len(room.shared)
        for limit, exceeded in room.too_much.items():
            self.tally[limit] += int(np.count_nonzero(exceeded))

    def _useful(self, footprint: Footprint) -> NDArray[np.intp]:
        """The points that are worth a price."""
        points = footprint.points
        good = points.num_stages <= np.maximum(footprint.counted + 1, 2)
        table = footprint.facts.tables.products
        if len(table):
            narrow = (footprint.sizes[table.rows] <= NARROW).all(axis=0)
            wide = (footprint.sizes[table.columns] >= WIDE).any(axis=0)
            good &= ~points.swap_operands | (narrow & wide)
        return np.flatnonzero(good)


def _is_batched(block: ir.BlockGraph, outer: Types, extents: Extents) -> bool:
    """Whether products are batched over a dim of the grid."""
    try:
        facts = facts_of(block, outer, extents, Tried(frozenset(), frozenset()))
    except UnsupportedError:
        return False
    return not facts.batch_dims.isdisjoint(s.dim for s in block.grid)


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


def on_grid(block: ir.BlockGraph, grid: tuple[ir.Split, ...]) -> ir.BlockGraph:
    """The structure with another grid, whose dims its tensors have.

    Its bounds are gone: those of the new one are others.
    """
    names = {s.dim for s in grid}
    made = map_axes(block, lambda n: ir.gridded(n.axes, names))
    return ir.BlockGraph(grid, block.loop, made.nodes, block.schedule)


def without_splits(block: ir.BlockGraph, dims: AbstractSet[str]) -> ir.BlockGraph:
    """The structure of which every block computes all of some dims."""

    def whole(dim: Dim) -> Dim:
        return replace(dim, grid=False) if dim.name in dims else dim

    grid = tuple(s for s in block.grid if s.dim not in dims)
    made = map_axes(block, lambda n: each_dim(n.axes, whole))
    return replace(made, grid=grid)


def families(blocks: Iterable[ir.BlockGraph]) -> list[list[ir.BlockGraph]]:
    """The families of some structures, in the order of their first members.

    Where dims share an axis of the grid, they do so in all members.
    """
    found: dict[tuple[object, ...], list[ir.BlockGraph]] = {}
    for block in blocks:
        key = on_grid(block, ()) if _is_uniform(block) else block
        shared = tuple(axis for axis in block.axes if len(axis) > 1)
        found.setdefault((key, shared), []).append(block)
    return list(found.values())


def _is_uniform(block: ir.BlockGraph) -> bool:
    """Whether a block sees its part only of every dim that its grid splits."""
    names = {s.dim for s in block.grid}
    nodes = (*block.loads, *block.stores)
    return all(d.grid == (d.name in names) for n in nodes for d in ir.dims_of(n.axes))


def hull(family: Sequence[ir.BlockGraph]) -> ir.BlockGraph:
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


# -- Constraints -----------------------------------------------------------------------

MAX_RANK = 8
"""No tensor of Mirage's has more axes."""

Triple = tuple[int, int, int]
Place = tuple[int, ...]
"""For each axis of a block's grid, 0, 1 or 2 for x, y or z."""


@dataclass(frozen=True)
class Constraints:
    """What a μGraph may look like; None where everything is allowed.

    Attributes:
        griddims: Allowed grids, as numbers of blocks along x, y and z.
        blockdims: Allowed blocks, as numbers of threads along x, y and z.
        imaps: Allowed maps of inputs: the axis that x, y and z split, or -1.
        omaps: The same for outputs.
        fmaps: Allowed axes of an input that the loop splits, or -1.
        franges: Allowed numbers of iterations.
    """

    griddims: tuple[Triple, ...] | None = None
    blockdims: tuple[Triple, ...] | None = None
    imaps: tuple[Triple, ...] | None = None
    omaps: tuple[Triple, ...] | None = None
    fmaps: tuple[int, ...] | None = None
    franges: tuple[int, ...] | None = None

    def admits_structure(self, block: ir.BlockGraph) -> bool:
        """Whether the maps of a block are allowed, at some sizes."""
        if self.fmaps is not None:
            loop = frozenset(() if block.loop is None else {block.loop.dim})
            axes = (_split_axes(n.axes, loop, "loop") for n in block.loads)
            if any(found.isdisjoint(self.fmaps) for found in axes):
                return False
        return any(True for _ in self._places(block))

    def sizes(self, block: ir.BlockGraph) -> Allowed:
        """What is allowed of the tiles and the schedule of a block."""
        if self == Constraints():
            return ANY_SIZES
        places = list(self._places(block))
        grids = self.griddims

        def allowed(parts: tuple[int, ...]) -> bool:
            # One part is no split, and structures without it are searched too.
            return 1 not in parts and any(
                _placed(parts, p) in (grids or ()) for p in places
            )

        counts = sorted({g for grid in grids or () for g in grid})

        def grid_tiles(extent: int) -> Sequence[int]:
            return tuple(sorted({-(-extent // g) for g in counts}))

        rounds = self.franges

        def loop_tiles(extent: int) -> Sequence[int]:
            spans = {extent, *grid_tiles(extent)}
            found = {-(-s // r) for s in spans for r in rounds or ()}
            return tuple(sorted(found))

        return Allowed(
            grids=None if grids is None else allowed,
            iterations=None if rounds is None else frozenset(rounds),
            num_warps=self._warps(),
            grid_tiles=None if grids is None else grid_tiles,
            loop_tiles=None if rounds is None else loop_tiles,
        )

    def admits(self, graph: ir.KernelGraph) -> bool:
        """Whether every block of a sized μGraph is allowed."""
        known = derived_extents(graph)
        extents = known_extents(known)
        return all(self._admits_block(b, extents) for b in graph.blocks)

    def _admits_block(self, block: ir.BlockGraph, extents: dict[str, int]) -> bool:
        if not self.admits_structure(block):
            return False
        sizes = self.sizes(block)
        if sizes.grids is not None and not sizes.grids(grid_parts(block, extents)):
            return False
        rounds, warps = sizes.iterations, sizes.num_warps
        if rounds is not None and iterations(block, extents) not in rounds:
            return False
        return warps is None or block.schedule.num_warps in warps

    def _warps(self) -> frozenset[int] | None:
        if self.blockdims is None:
            return None
        found: set[int] = set()
        for x, y, z in self.blockdims:
            warps, rest = divmod(x * y * z, WARP)
            if rest or warps not in (1, 2, 4, 8, 16, 32):
                raise SearchError(
                    f"blockdims has a block of {x * y * z} threads ({x}, {y}, {z}); "
                    "expected 32, 64, 128, 256, 512 or 1024"
                )
            found.add(warps)
        return frozenset(found)

    def _places(self, block: ir.BlockGraph) -> Iterator[Place]:
        for place in itertools.permutations(range(3), len(block.axes)):
            maps = ((self.imaps, block.loads), (self.omaps, block.stores))
            if all(
                allowed is None
                or all(self._fits(block, place, n.axes, allowed) for n in nodes)
                for allowed, nodes in maps
            ):
                yield place

    def _fits(
        self,
        block: ir.BlockGraph,
        place: Place,
        axes: tuple[Axis, ...],
        allowed: tuple[Triple, ...],
    ) -> bool:
        """Whether some allowed map splits the axes as the block does."""
        found = [
            _split_axes(axes, frozenset(s.dim for s in axis), "grid")
            for axis in block.axes
        ]
        return any(
            all(triple[p] in places for p, places in zip(place, found, strict=True))
            for triple in allowed
        )


def _placed(parts: tuple[int, ...], place: Place) -> Triple:
    grid = [1, 1, 1]
    for at, count in zip(place, parts, strict=True):
        grid[at] = count
    x, y, z = grid
    return x, y, z


def _split_axes(
    axes: tuple[Axis, ...], names: frozenset[str], by: Literal["grid", "loop"]
) -> frozenset[int]:
    """How a map may number the axis that an axis of the grid, or the loop, splits.

    -1 where none is split; any number where it is an axis of partial results.
    """
    counted = [axis for axis in axes if not axis or not all(map(_is_partial, axis))]
    for at, axis in enumerate(counted):
        if any(_splits(d, names, by) for d in axis):
            return frozenset({at})
    if any(_splits(d, names, by) for axis in axes for d in axis):
        return frozenset(range(MAX_RANK))
    return frozenset({-1})


def _splits(dim: Dim, names: frozenset[str], by: Literal["grid", "loop"]) -> bool:
    split = dim.grid if by == "grid" else dim.loop
    return split and (dim.name in names or _summed(dim.name) in names)


def _is_partial(dim: Dim) -> bool:
    return _summed(dim.name) != dim.name


def _summed(name: str) -> str:
    """The dim whose parts a dim `k#` numbers; of any other dim, itself."""
    return name.removesuffix(ir.partial_dim(""))


# -- Sizes of all kernels together -----------------------------------------------------

PARTS = (2, 4, 8, 16, 32, 64)
"""Numbers of parts that are tried."""

MORE_PARTS = (128, 256, 512, 1024)
"""And where a loop is split that so few blocks have that these do not fill the GPU."""

BEAM = 6
"""Choices for the kernels so far that are followed up."""

NEAR = 1.1
"""Factor of the best within which others are looked at more closely."""

EQUAL = 1.01
"""Factor within which sizes are taken for equally good."""

BLOCKS_PER_SM = 2
"""A grid of at least so many blocks for every multiprocessor needs no more of them."""

_Known = dict[tuple[object, ...], list[Sized]]
"""Sizes of blocks, by all that they depend on: many graphs share a kernel."""


@dataclass(frozen=True)
class _Tried:
    """What is tried of the block at a position.

    Attributes:
        number: The position.
        inside: Inputs of the graph that are in L2.
        fixed: Dims over parts whose number is decided.
        parts: Numbers of parts of others.
        between: Whether fewer parts will do where there are not so many.
        around: What all blocks have around them; None where that hangs on how many
            parts earlier ones make.
    """

    number: int
    inside: frozenset[str]
    fixed: frozenset[str]
    parts: Sequence[int]
    between: bool
    around: _Around | None


@dataclass(frozen=True)
class _Around:
    """The tensors that blocks read and store, as they lie for library kernels."""

    types: Types
    extents: Extents

    @classmethod
    def of(cls, graph: ir.KernelGraph, extents: Extents) -> _Around:
        """All of a graph's."""
        return cls(around_libraries(graph, kernel_types(graph), extents), extents)


@dataclass(frozen=True)
class Sizer:
    """Sizes all blocks of a graph.

    Attributes:
        hardware: The GPU.
        constraints: Restrictions.
        budget: After which it gives up.
        tally: Counts points and what excluded them, for the ledger.
    """

    hardware: Hardware
    constraints: Constraints
    budget: Budget | SearchBudget = UNLIMITED
    tally: Counter[str] | None = None
    _known: _Known = field(default_factory=_Known)

    def sized(
        self,
        graph: ir.KernelGraph,
        worst: float = math.inf,
        *,
        inside: AbstractSet[str] = frozenset(),
        only: AbstractSet[int] | None = None,
        parts: Sequence[int] = PARTS,
        between: bool = False,
    ) -> Plan | None:
        """The best sizes; None if a block does not fit at any.

        Args:
            graph: Blocks without sizes.
            worst: Estimate in µs from which on a plan is not wanted.
            inside: Inputs that an earlier kernel left in L2.
            only: Positions of the blocks to size; None for all.
            parts: Numbers of parts to try.
            between: Try fewer parts wherever tiles allow not so many, and not only
                where they allow none of the numbers.
        """
        beam: list[tuple[float, ir.KernelGraph]] = [(0.0, graph)]
        fixed: dict[str, None] = {}
        around = None
        if not any(map(parts_stored, graph.blocks)):
            around = _Around.of(graph, derived_extents(graph))
        asked = frozenset(inside)
        # No kernel takes less than its launch, part of which the one ahead may hide.
        worst += 1e6 * self.hardware.dependent * (len(graph.blocks) - 1)
        worst -= 1e6 * self.hardware.launch * len(graph.blocks)
        for at, node in enumerate(graph.nodes):
            if not isinstance(node, ir.BlockGraph):
                continue
            worst += 1e6 * self.hardware.launch
            if self.budget.late():
                return None
            if only is None or at in only:
                tried = _Tried(at, asked, frozenset(fixed), parts, between, around)
                beam = [s for state in beam for s in self._next(*state, tried)]
                beam = sorted((s for s in beam if s[0] < worst), key=lambda s: s[0])
                beam = beam[:BEAM]
            fixed.update(dict.fromkeys(parts_stored(node)))
        least = beam[0][0] if beam else 0.0
        near = [g for paid, g in beam if paid <= NEAR * least]
        plans = [Plan.of(g, self.hardware, inside) for g in near]
        return min(plans, key=lambda p: p.microseconds, default=None)

    def joined(self, graph: ir.KernelGraph) -> Plan | None:
        """The plan of a μGraph whose blocks were sized one by one.

        Each may have cut a dim `k` into parts of its own number, but `k#` has one
        extent.  Then all blocks are sized anew; None if they cannot agree.  So are
        those around which tensors lie otherwise, for library kernels, than when they
        were sized.
        """
        if not _extents_agree(graph):
            return self.sized(graph)
        plan = Plan.of(graph, self.hardware)
        only = _around_libraries(graph)
        other = self.sized(graph, only=only) if only else None
        return min(filter(None, (plan, other)), key=lambda p: p.microseconds)

    def split(
        self, graph: ir.KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> Plan | None:
        """The best plan with a loop split over the grid, or several; None if none is.

        Only blocks that leave multiprocessors idle are split, and a second one only if
        that is faster.

        Args:
            graph: A sized μGraph.
            inside: Inputs that an earlier kernel left in L2.
        """
        best, now = None, Plan.of(graph, self.hardware, inside)
        for results in [b.results for b in graph.blocks]:
            nodes = now.graph.nodes
            places = (i for i, n in enumerate(nodes) if isinstance(n, ir.BlockGraph))
            number = next(i for i in places if results_of(nodes[i]) == results)
            found = self._split_block(now.graph, number, inside)
            if found is not None and found.microseconds < now.microseconds:
                now = best = found
            elif best is None:
                best = found
        return best

    def _split_block(
        self, graph: ir.KernelGraph, number: int, inside: AbstractSet[str]
    ) -> Plan | None:
        block = graph.nodes[number]
        assert isinstance(block, ir.BlockGraph)
        extents = derived_extents(graph)
        known = known_extents(extents)
        blocks = math.prod(grid_parts(block, known))
        wanted = BLOCKS_PER_SM * self.hardware.sms
        halves = split_loop(graph, number) if blocks < wanted else None
        if halves is None:
            return None
        if not all(map(self.constraints.admits_structure, halves.blocks)):
            return None
        more = [p for p in MORE_PARTS if p * blocks <= 2 * wanted]
        only = {number, number + 1}
        parts = (*PARTS, *more)
        return self.sized(halves, inside=inside, only=only, parts=parts, between=True)

    def _next(
        self,
        paid: float,
        graph: ir.KernelGraph,
        tried: _Tried,
    ) -> Iterator[tuple[float, ir.KernelGraph]]:
        """The graph with sizes for one more block; the best of each number of parts."""
        at = tried.number
        block = graph.nodes[at]
        assert isinstance(block, ir.BlockGraph)
        around = tried.around
        if around is None:
            # What this block and later ones would make of dims is not decided yet.
            before = replace(graph, nodes=graph.nodes[:at])
            around = _Around.of(graph, derived_extents(before, graph.extent_of))
        types, extents = around.types, around.extents
        made = parts_stored(block)
        wanted: Sequence[int | None] = tried.parts if made else (None,)
        if made and made[0] in tried.fixed:
            wanted = (extents[made[0]],)
        read = tuple(types[s] for s in block.sources)
        sizes = tuple(extents[n] for t in read for n in t.names)
        inside = tried.inside | self._inside(graph, at, types, extents)
        ways = tuple(wanted), tried.between
        lies = read, tuple(types[r] for r in block.results)
        key = (block, ways, lies, sizes, inside.intersection(block.sources))
        if key not in self._known:
            self._known[key] = self._choose(types, extents, inside, block, *ways)
        for best in self._known[key]:
            sized = graph.with_node(at, best.block)
            if made:
                sized = with_derived_extents(sized)
            yield paid + best.microseconds, sized

    def _choose(
        self,
        types: Types,
        extents: Extents,
        inside: frozenset[str],
        block: ir.BlockGraph,
        counts: Sequence[int | None],
        between: bool,
    ) -> list[Sized]:
        """The best sizes of one block, with each of some numbers of parts."""
        allowed = self.constraints.sizes(block)
        around = types, extents, inside, block
        known = [c for c in counts if c is not None]
        if not known:
            ways = [allowed]
            if allowed.grids is None:
                ways = [replace(allowed, whole=True, batches=b) for b in (True, False)]
                if not _is_batched(block, types, extents):
                    ways = ways[:1]
            found = [
                size
                for way in ways
                for size in self._best(*around, [way], keep=SHORTLIST, near=EQUAL)[0]
            ]
            least = min((s.microseconds for s in found), default=0.0)
            near = [s for s in found if s.microseconds <= EQUAL * least]
            fewer = [self._without_whole(best, extents) for best in near]
            # The grid that was given stays if it is as good: others are given too.
            return sorted(fewer, key=lambda s: -len(s.block.grid))[:1]
        exact = [_with_parts(allowed, block, range(c, c + 1)) for c in known]
        made = self._best(*around, exact)
        missing = [c for c, own in zip(known, made, strict=True) if not own]
        if missing and len(known) > 1 and (between or not any(made)):
            ranges = (range(c // 2 + 1, c) for c in missing)
            made += self._best(
                *around, [_with_parts(allowed, block, r) for r in ranges]
            )
        return [best for own in made for best in own]

    def _best(
        self,
        types: Types,
        extents: Extents,
        inside: frozenset[str],
        block: ir.BlockGraph,
        choices: list[Allowed],
        keep: int = 1,
        near: float = math.inf,
    ) -> list[list[Sized]]:
        return sizes_of_all(
            [UnsizedBlock(block, allowed) for allowed in choices],
            types,
            extents,
            hardware=self.hardware,
            keep=keep,
            tally=self.tally,
            inside=inside,
            near=near,
        )

    def _without_whole(self, sized: Sized, extents: Extents) -> Sized:
        """The same, dims of which there is one tile not split, if that is allowed."""
        block = sized.block
        whole = {s.dim for s in block.grid if s.tile >= (extents[s.dim] or math.inf)}
        axes = ({s.dim for s in axis} for axis in block.axes)
        gone = frozenset[str]().union(*(axis for axis in axes if axis <= whole))
        if not gone or block.bounds:
            # Bounds are those of the grid that there is.
            return sized
        fewer = without_splits(block, gone)
        if not self.constraints.admits_structure(fewer):
            return sized
        return Sized(fewer, sized.microseconds)

    def _inside(
        self, graph: ir.KernelGraph, at: int, types: Types, extents: Extents
    ) -> frozenset[str]:
        """What earlier kernels left in L2."""
        made: set[str] = set()
        for node in graph.nodes[:at]:
            view = isinstance(node, ir.Apply) and node.is_view
            # A view of an input lies where the input does.
            if not view or made.issuperset(operands_of(node)):
                made.update(results_of(node))
        half = self.hardware.l2_bytes / 2
        return frozenset(n for n in made if tensor_bytes(types[n], extents) < half)


def _with_parts(allowed: Allowed, block: ir.BlockGraph, counts: range) -> Allowed:
    """Grids with so many parts of the dim that a block stores, several of others."""
    (name, *_) = parts_stored(block)
    base = str(partial_base(name, block))
    place = [axis[0].dim for axis in block.axes].index(base)
    before = allowed.grids

    def admits(grid: tuple[int, ...]) -> bool:
        if grid[place] not in counts:
            return False
        return min(grid) > 1 if before is None else before(grid)

    return replace(allowed, grids=admits)


def parts_stored(block: ir.BlockGraph) -> tuple[str, ...]:
    """The dims over parts that a block stores."""
    names = (d.name for s in block.stores for d in ir.dims_of(s.axes))
    return tuple(n for n in dict.fromkeys(names) if partial_base(n, block) is not None)


def _around_libraries(graph: ir.KernelGraph) -> set[int]:
    """Positions of the blocks that read or store what library kernels lay otherwise."""
    types = kernel_types(graph)
    extents = derived_extents(graph)
    lying = around_libraries(graph, types, extents)
    moved = {name for name, kind in lying.items() if kind != types[name]}
    return blocks_at(graph, moved)


def blocks_at(graph: ir.KernelGraph, values: AbstractSet[str]) -> set[int]:
    """Positions of the blocks that read or store any of some values."""
    return {
        at
        for at, node in enumerate(graph.nodes)
        if isinstance(node, ir.BlockGraph) and values & {*node.sources, *node.results}
    }


def _extents_agree(graph: ir.KernelGraph) -> bool:
    """Whether all nodes that make a dim make it of one extent."""
    known: dict[str, int] = {}
    made = extents_made(graph, graph.extent_of)
    return all(known.setdefault(name, extent) == extent for _, name, extent in made)
