"""Tiles at which kernels of the union are priced, and what they hold there.

A kernel enters the union at several points, each with its own costs and with its own
share of the limits.  The points are a coarse sweep; the real one is `search.sizes`.
"""

# NumPy gives rows of a transposed array no element type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.search.additive import TILE
from mirage_dsl.search.hardware import Hardware
from mirage_dsl.search.saturate import Saturation
from mirage_dsl.search.space import Configuration, Space
from mirage_dsl.search.values import PIECE
from mirage_dsl.search.workspace import (
    AFTER,
    BEFORE,
    BODY,
    CONTRACT,
    JOIN,
    LOAD,
    Ints,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SHORT = 16
"""Extent of a dim that is split into single indices, and tile of a longer one."""

STAGES = 2
"""Stages of a loop's loads: fewer do not overlap with anything."""

WORD = 4
"""Bytes of a register."""

LIMITS = 3
"""Shared memory in the loop, after it, and registers."""


@dataclass(frozen=True)
class Point:
    """Tiles of the grid's long dims, and of the loop's."""

    grid: int = TILE
    loop: int = TILE


POINTS = (
    Point(),
    Point(32, 128),
    Point(128, 64),
    Point(32, 32),
    Point(128, 32),
    Point(16, 64),
)
"""In the order in which they are taken, while the union stays small enough."""


def tiles_at(
    space: Space, configuration: Configuration, point: Point
) -> dict[str, int]:
    """The tile of every split dim: less for short dims, 1 for numbers of parts."""
    everywhere = -1
    for value in space.values:
        if value.is_load:
            everywhere &= value.names
    parts = {space.dims[p] for p, _ in space.halves}
    single = parts | set(space.names(everywhere))
    tiles: dict[str, int] = {}
    for dim in {*configuration.grid, configuration.loop} - {None}:
        assert dim is not None
        extent = space.extent(dim)
        wanted = point.loop if dim == configuration.loop else point.grid
        long = max((t for t in (wanted, TILE) if t < extent), default=0)
        long = min(long, wanted)
        short = 1 if dim in single or extent <= SHORT else SHORT
        tiles[dim] = short if dim in parts or not long else long
    return tiles


def held(
    space: Space,
    saturation: Saturation,
    configuration: Configuration,
    tiles: dict[str, int],
) -> Floats:
    """Elements of every node in one block."""
    shapes = saturation.shape
    count = np.ones(len(shapes))
    looped = (shapes & PIECE) != 0
    for i, dim in enumerate(space.dims):
        size = float(space.extent(dim))
        if dim in configuration.grid:
            size = float(tiles[dim])
        sizes = np.full(len(shapes), size)
        if dim == configuration.loop:
            sizes[looped] = tiles[dim]
        count *= np.where(shapes >> i & 1, sizes, 1.0)
    return count


def limits(hardware: Hardware) -> tuple[int, int, int]:
    """Bytes of shared memory in the loop and after it, and words of registers."""
    words = int(hardware.register_share * hardware.registers_per_sm)
    return hardware.shared_per_block, hardware.shared_per_block, words


def room(space: Space, saturation: Saturation, alive: Bools, sizes: Floats) -> Ints:
    """What every edge takes of each limit, one row an edge.

    Loads of the loop have their stages in shared memory, other operands of products
    one copy; accumulators, products and what is loaded before a loop are in registers.
    What is in shared memory before the loop counts in the loop only.  All other values
    come and go.
    """
    node, kind, first, second, _, arg = saturation.edges.T
    stage = saturation.stage
    found = np.zeros((len(kind), LIMITS), np.int64)
    bytes_of = np.array(
        [0 if v.type is None else v.type.dtype.itemsize for v in space.values]
    )
    product = np.zeros(len(stage) + 1, np.bool_)
    of_product = alive & (kind == CONTRACT)
    product[first[of_product]] = product[second[of_product]] = True
    joined = np.zeros(len(stage) + 1, np.bool_)
    joined[first[alive & (kind == JOIN)]] = True
    load = kind == LOAD
    size = sizes[node] * np.where(load, bytes_of[np.where(load, arg, 0)], 1)
    looped = load & (stage[node] == BODY)
    found[looped, 0] = STAGES * size[looped]
    other = load & ~looped & product[node]
    late = other & (stage[node] == AFTER)
    found[other & ~late, 0] = size[other & ~late]
    found[late, 1] = size[late]
    kept = (kind == JOIN) | ((kind == CONTRACT) & ~joined[node])
    found[kept, 2] = sizes[node][kept]
    if saturation.loop is not None:
        early = load & (stage[node] == BEFORE)
        found[early, 2] = size[early] / WORD
    return found
