"""Dims that share an axis of the grid: their tiles, and blocks along axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import BlockGraph
from mirage_dsl.ir.maps import parts
from mirage_dsl.search.space import Configuration, Space


def matched(
    tiles: Sequence[Sequence[int]], extents: Sequence[int]
) -> list[tuple[int, ...]]:
    """Tiles of the dims of an axis, given those that each dim may have.

    Of several dims each has the smallest tile of which there are no more than the axis
    has blocks.  So there are not many more choices than one of the dims has alone, and
    tiles of different dims are about as numerous, as far as they can be.
    """
    if len(tiles) == 1:
        return [(t,) for t in tiles[0]]
    counts = [
        {tile: parts(extent, tile) for tile in sorted(own)}
        for own, extent in zip(tiles, extents, strict=True)
    ]
    found: dict[tuple[int, ...], None] = {}
    for blocks in sorted({n for own in counts for n in own.values()}):
        fitting = [[t for t, n in own.items() if n <= blocks] for own in counts]
        if all(fitting):
            found[tuple(own[0] for own in fitting)] = None
    return list(found)


def along_axes(counts: NDArray[np.int64], block: BlockGraph) -> NDArray[np.int64]:
    """Blocks along each axis of a grid, from the numbers of tiles of its dims."""
    if len(block.axes) == len(block.grid):
        return counts
    starts = [at for at, split in enumerate(block.grid) if not split.beside]
    return np.maximum.reduceat(counts, starts, axis=1)


def balanced(
    tiles: dict[str, int], space: Space, configuration: Configuration
) -> dict[str, int]:
    """Tiles of which the dims of each axis have about equal numbers."""
    found = dict(tiles)
    for axis in configuration.shared:
        blocks = max(parts(space.extent(d), tiles[d]) for d in axis)
        for dim in axis:
            least = parts(space.extent(dim), blocks)
            found[dim] = min(tiles[dim], 1 << (least - 1).bit_length())
    return found
