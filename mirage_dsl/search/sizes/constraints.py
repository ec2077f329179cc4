"""Restrictions on the search with the meaning that Mirage's users know.

Mirage names a grid's dims x, y, z and says for each tensor which of its axes x, y and z
split; here a grid names the dims that each of its axes splits.  A block satisfies the
constraints if its axes can be placed on x, y and z so that all maps are allowed.

Partial results have an axis of their own here, that of a dim `k#`.  Mirage lays them
side by side along an axis that is there anyway, whichever its map names: axes of `k#`
are not counted, and a map may name any axis for them, also one of extent 1 that no
tensor has here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import WARP
from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, partial_dim
from mirage_dsl.ir.maps import derived_extents, grid_parts, iterations
from mirage_dsl.search.sizes.sizes import ANY_SIZES, Allowed

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

    def admits_structure(self, block: BlockGraph) -> bool:
        """Whether the maps of a block are allowed, at some sizes."""
        if self.fmaps is not None:
            loop = frozenset(() if block.loop is None else {block.loop.dim})
            axes = (_split_axes(n.axes, loop, "loop") for n in block.loads)
            if any(found.isdisjoint(self.fmaps) for found in axes):
                return False
        return any(True for _ in self._places(block))

    def sizes(self, block: BlockGraph) -> Allowed:
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

    def admits(self, graph: KernelGraph) -> bool:
        """Whether every block of a sized μGraph is allowed."""
        known = derived_extents(graph, graph.extent_of)
        extents = {n: e for n, e in known.items() if e is not None}
        return all(self._admits_block(b, extents) for b in graph.blocks)

    def _admits_block(self, block: BlockGraph, extents: dict[str, int]) -> bool:
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

    def _places(self, block: BlockGraph) -> Iterator[Place]:
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
        block: BlockGraph,
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
    return name.removesuffix(partial_dim(""))
