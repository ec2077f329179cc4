"""What a block takes of a multiprocessor, and whether it fits.

Shared memory holds the stages of the loop's loads and the operands that products read
from it; registers hold accumulators and the tiles that are live at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.hardware import WARP, Hardware
from mirage_dsl.cost.facts import as_column
from mirage_dsl.cost.flow import Live
from mirage_dsl.cost.footprint import Footprint, Numbers
from mirage_dsl.tile.program import Product
from mirage_dsl.tile.sizes import SMALLEST_DOT

# -- Shared memory ---------------------------------------------------------------------
# Stages of the loop's loads are free again after the loop, so what the code after
# it needs takes their place.

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class SharedBuffer:
    """Shared memory of one value.

    Attributes:
        value: Its name.
        size: Bytes, by point; all stages of a loop's load together.
        looping: Whether it lives while the loop runs, or where there is no loop.
        ending: Whether it lives after the loop.
    """

    value: str
    size: Numbers
    looping: bool
    ending: bool


def shared_buffers(footprint: Footprint) -> list[SharedBuffer]:
    """What lies in shared memory, and when."""
    own = footprint.facts.tables.shared
    sizes = _buffer_sizes(footprint)
    return [
        SharedBuffer(value, size, bool(looping), bool(ending))
        for value, size, looping, ending in zip(
            own.names, sizes, own.looping, own.ending, strict=True
        )
    ]


def _buffer_sizes(footprint: Footprint) -> Numbers:
    """Bytes of each value that lies in shared memory, one row for each."""
    own = footprint.facts.tables.shared
    sizes = footprint.sizes[own.value] * own.itemsize
    if len(own.staged):
        first, second = footprint.stage_buffers
        sizes[own.staged] *= first + second
    return sizes


# -- All resources ---------------------------------------------------------------------

BASE_REGISTERS = 40
"""Registers of a thread for addresses, counters and masks."""

BASE_SHARED = 2048
"""Shared memory for exchanges between warps: reductions, change of layout."""

LARGEST_TILE = 2**20
"""Most elements that a Triton tensor may have."""


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

    shared: Numbers
    registers: Numbers
    largest: Numbers
    resident: Numbers
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
            return f"a tile of {int(self.largest[at])} elements, at most {LARGEST_TILE}"
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
        "tile size": largest > LARGEST_TILE,
    }
    fits = ~np.logical_or.reduce(list(too_much.values()))
    return Resources(
        shared, registers, largest, np.where(fits, resident, 0.0), too_much
    )


def _shared_bytes(footprint: Footprint) -> Numbers:
    """The larger of what the loop and what the code after it needs."""
    own = footprint.facts.tables.shared
    if not own.names:
        return np.full(len(footprint.points), float(BASE_SHARED))
    sizes = _buffer_sizes(footprint)
    return BASE_SHARED + np.maximum(own.looping @ sizes, own.ending @ sizes)


def _registers(footprint: Footprint, live: Live) -> Numbers:
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
    sizes = footprint.sizes[[rows[n] for n in names]]
    held = live.at @ np.maximum(sizes * words / threads, 1.0)
    for at, product in enumerate(facts.products):
        more = _registers_of(product, at, footprint)
        if more is not None:
            held[live.products[product.result]] += more / threads
    return BASE_REGISTERS + np.ceil(held.max(axis=0))


def _registers_of(product: Product, at: int, footprint: Footprint) -> Numbers | None:
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
    short = footprint.tall[matrix].min(axis=0) < SMALLEST_DOT * footprint.block_warps
    return short & (footprint.block_warps > 4)
