"""What each edge works on, and a plain additive cost for extraction.

The sizes here are placeholders, one guess for each dim; they only rank structures.
The real sizes and the real cost model come after, in `search.sizes.sizes`.
"""

# NumPy gives rows of a transposed array no element type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.search.closure.edges import PIECE
from mirage_dsl.search.closure.saturate import Saturation
from mirage_dsl.search.closure.workspace import (
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    SUM,
    Ints,
)
from mirage_dsl.search.space import Configuration, Space, balanced, block_count

Floats = NDArray[np.float64]

TILE = 64
"""Placeholder tile of a split dim."""


@dataclass(frozen=True)
class EdgeWork:
    """What every edge of a graph does at some sizes, one entry each.

    Attributes:
        kind: Kind of edge (`search.closure.workspace`).
        result: Elements of the result, in one iteration.
        operand: Elements of the first operand; 0 if there is none.
        products: Of a contraction, 0 for others.
        times: How often a block does it.
        flops: f32 operations for each element of the result.
        itemsize: Bytes of each element loaded.
        joins: Whether it is an accumulator.
        blocks: Number of blocks.
    """

    kind: Ints
    result: Floats
    operand: Floats
    products: Floats
    times: Floats
    flops: Floats
    itemsize: Floats
    joins: NDArray[np.bool_]
    blocks: int


def placeholder_tiles(space: Space, configuration: Configuration) -> dict[str, int]:
    """A guess of the tile of every split dim: 1 for batch dims, else at most 64."""
    everywhere = -1
    for i in space.loads:
        everywhere &= space.values[i].names
    tiles: dict[str, int] = {}
    for dim in {*configuration.grid, configuration.loop} - {None}:
        assert dim is not None
        batch = everywhere >> space.dims.index(dim) & 1 and space.extent(dim) <= 64
        tiles[dim] = 1 if batch else min(TILE, space.extent(dim))
    return balanced(tiles, space, configuration)


def work_of(
    space: Space,
    saturation: Saturation,
    configuration: Configuration,
    tiles: dict[str, int],
) -> EdgeWork:
    """What the edges of a loop choice do, for a grid and for tiles."""
    elements = _elements(space, saturation.shape, configuration, tiles)
    node, kind, first, second, _, arg = saturation.edges.T
    function = kind == FUNCTION
    joins = np.array((*saturation.site_joins, False))[np.where(function, arg, -1)]
    joins |= (kind == JOIN) | (kind == GATHER)
    doer = np.where(joins, first, node)
    loop = configuration.loop
    count = -(-_local(space, configuration, tiles, loop) // tiles[loop]) if loop else 1
    union = saturation.shape[first] | saturation.shape[np.maximum(second, 0)]
    products = _elements(space, union, configuration, tiles)
    return EdgeWork(
        kind,
        elements[node],
        np.where(first >= 0, elements[first], 0.0),
        np.where(kind == CONTRACT, products, 0.0),
        np.where(saturation.stage[doer] == BODY, float(count), 1.0),
        _flops(space, saturation, kind, arg),
        _itemsizes(space, kind, arg),
        joins,
        block_count(space, tiles, configuration),
    )


def _local(
    space: Space, configuration: Configuration, tiles: dict[str, int], dim: str
) -> int:
    """The extent of a dim that one block sees over all iterations."""
    if dim in configuration.grid and dim != configuration.loop:
        return tiles[dim]
    return space.extent(dim)


def _elements(
    space: Space, shapes: Ints, configuration: Configuration, tiles: dict[str, int]
) -> Floats:
    count = np.ones(len(shapes))
    for i, dim in enumerate(space.dims):
        size = np.full(len(shapes), float(_local(space, configuration, tiles, dim)))
        if dim == configuration.loop:
            size[(shapes & PIECE) != 0] = tiles[dim]
        count *= np.where((shapes >> i) & 1, size, 1.0)
    return count


def _flops(space: Space, saturation: Saturation, kind: Ints, arg: Ints) -> Floats:
    flops = np.where(kind == DIV, 4.0, 1.0)
    for e in np.flatnonzero(kind == FUNCTION):
        op = space.values[saturation.sites[arg[e]]].op
        assert op is not None
        flops[e] = op.flops
    return flops


def _itemsizes(space: Space, kind: Ints, arg: Ints) -> Floats:
    sizes = np.zeros(len(kind))
    for e in np.flatnonzero(kind == LOAD):
        tensor = space.values[arg[e]].type
        assert tensor is not None
        sizes[e] = tensor.dtype.itemsize
    return sizes


def additive_cost(work: EdgeWork, hardware: Hardware) -> Floats:
    """Microseconds of a GPU, as a sum over edges; see `hardware.Ranking`."""
    rates = hardware.ranking
    us = work.flops * work.result / rates.operations_per_us
    reads = work.result * work.itemsize / rates.bytes_per_us
    us = np.where(work.kind == LOAD, reads, us)
    us = np.where(work.kind == CONTRACT, work.products / rates.products_per_us, us)
    us = np.where(work.kind == SUM, work.operand / rates.operations_per_us, us)
    us = np.where(work.joins, 0.5 * work.operand / rates.operations_per_us, us)
    us = np.where(work.kind == CONSTANT, 0.0, us + rates.step_us)
    return us * work.times * max(1.0, work.blocks / hardware.sms)
