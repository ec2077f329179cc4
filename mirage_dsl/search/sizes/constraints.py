"""Restrictions on the search with the meaning that Mirage's users know.

Mirage names a grid's dims x, y, z and says for each tensor which of its axes x, y and z
split; here a grid names the dims that each of its axes splits.  A block satisfies the
constraints if its axes can be placed on x, y and z so that all maps are allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import WARP
from mirage_dsl.core.types import Axis
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.maps import derived_extents, grid_parts, iterations
from mirage_dsl.search.sizes.sizes import ANY_SIZES, Allowed

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
        if self.fmaps is not None and any(
            _loop_axis(n.axes) not in self.fmaps for n in block.loads
        ):
            return False
        return any(True for _ in self._places(block))

    def sizes(self, block: BlockGraph) -> Allowed:
        """What is allowed of the tiles and the schedule of a block."""
        if self == Constraints():
            return ANY_SIZES
        places = list(self._places(block))
        grids = self.griddims

        def allowed(parts: tuple[int, ...]) -> bool:
            return any(_placed(parts, p) in (grids or ()) for p in places)

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
        found = [_grid_axis(axes, {s.dim for s in axis}) for axis in block.axes]
        return any(
            all(triple[p] == axis for p, axis in zip(place, found, strict=True))
            for triple in allowed
        )


def _placed(parts: tuple[int, ...], place: Place) -> Triple:
    grid = [1, 1, 1]
    for at, count in zip(place, parts, strict=True):
        grid[at] = count
    x, y, z = grid
    return x, y, z


def _grid_axis(axes: tuple[Axis, ...], names: AbstractSet[str]) -> int:
    """The axis that an axis of the grid splits, by one of its dims, or -1."""
    for at, axis in enumerate(axes):
        if any(d.grid and d.name.removesuffix("#") in names for d in axis):
            return at
    return -1


def _loop_axis(axes: tuple[Axis, ...]) -> int:
    """The axis that the loop splits, or -1."""
    return next((i for i, a in enumerate(axes) if any(d.loop for d in a)), -1)
