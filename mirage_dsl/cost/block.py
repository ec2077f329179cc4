"""The cost of one block graph at a batch of sizes and schedules.

See `cost.estimate` for the model.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from mirage_dsl.core.hardware import WARP
from mirage_dsl.cost.footprint import Footprint, Numbers
from mirage_dsl.cost.resources import Bools, Resources, resources
from mirage_dsl.cost.traffic import traffic
from mirage_dsl.tile.sizes import SMALLEST_DOT

OVERLAP_NORM = 2.5
SHARED_NORM = 1.5
PACE_NORM = 4.0
"""Norms of memory and arithmetic, of the blocks of a multiprocessor, and of work and
the way of tiles."""

PRODUCT_SHARE = 0.95
"""Share of a library product's rate that generated products reach."""

CONFLICTS = 2.0
"""An exchange of a tile that lies in shared memory without swizzling, as a multiple.

Measured on an H100: 0.3 µs for 16 x 128 elements and 4 warps, 0.8 for twice the rows.
"""

COLUMNS = 8
"""Columns of the smallest matrix product."""

FULL_PRECISION_SHARE = 0.25
TURNED_SHARE = 0.2
"""Share of the f32 rate that products of f32 reach with two results a thread, since
factors are read from shared memory; and what of it transposed products reach.

Measured on an H200: 18 µs with tiles of 16 x 32 and 256 threads, 26 with 16 x 16, 90
to 170 transposed.
"""


@dataclass(frozen=True)
class BatchCost:
    """Estimates of one block graph at a batch of points, times in seconds."""

    seconds: Numbers
    memory: Numbers
    arithmetic: Numbers
    dram_bytes: Numbers
    l2_bytes: Numbers
    in_flight: Numbers
    tensor_flops: Numbers
    flops: Numbers
    resources: Resources


def block_cost(
    footprint: Footprint,
    inside: AbstractSet[str] = frozenset(),
    room: Resources | None = None,
) -> BatchCost:
    """The cost of one block graph at a batch of points; infeasible points included.

    Args:
        footprint: The structure and the points.
        inside: Kernel-level tensors that an earlier kernel left in L2.
        room: The resources, where they are known.
    """
    hardware = footprint.hardware
    room = room or resources(footprint)
    resident = np.maximum(room.resident, 1.0)
    moved = traffic(footprint, inside, resident)
    arithmetic, tensor_flops, flops = _arithmetic(footprint, resident)
    busy = _overlapped(moved.seconds, arithmetic, footprint, resident)
    busy = (busy**PACE_NORM + moved.pace**PACE_NORM) ** (1.0 / PACE_NORM)
    waves = np.ceil(footprint.blocks / (hardware.sms * resident))
    busy = busy + waves * moved.waiting
    return BatchCost(
        busy + _start(footprint),
        moved.seconds,
        arithmetic,
        moved.dram_bytes,
        moved.l2_bytes,
        moved.in_flight,
        tensor_flops,
        flops,
        room,
    )


def _start(footprint: Footprint) -> float:
    """Seconds of a launch and until data flow."""
    hardware = footprint.hardware
    program = footprint.facts.program
    launch = hardware.launch - (hardware.dependent if program.schedule.pdl else 0.0)
    return launch + hardware.ramp + (hardware.prologue if program.loop else 0.0)


def _overlapped(
    memory: Numbers,
    arithmetic: Numbers,
    footprint: Footprint,
    resident: Numbers,
) -> Numbers:
    """Seconds of both; blocks whose loads do not run ahead overlap with others only."""
    hardware = footprint.hardware
    ahead = (footprint.iterations > 1) & (footprint.points.num_stages > 1)
    together = np.minimum(resident, footprint.blocks / hardware.sms)
    power = np.where(ahead, OVERLAP_NORM, np.clip(together, 1.0, SHARED_NORM))
    return (memory**power + arithmetic**power) ** (1.0 / power)


def _arithmetic(
    footprint: Footprint, resident: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Seconds of the busiest multiprocessor; FLOP of products and of the rest."""
    hardware = footprint.hardware
    facts, blocks = footprint.facts, footprint.blocks
    together = np.minimum(resident, np.ceil(blocks / hardware.sms))
    warps = together * footprint.block_warps
    lanes = hardware.f32_rate / hardware.sms * np.minimum(1.0, warps / 16) ** 0.25
    work, steps = _operators(footprint, footprint.iterations)
    if footprint.unmasked is not None:
        less, fewer = _saved(footprint, *footprint.unmasked)
        work, steps = work - less, steps - fewer
    flops = work * blocks
    products = tensor_flops = np.zeros(len(blocks))
    if facts.products:
        table = facts.tables.products
        times = _times(table.looped, footprint)
        readers = _readers(footprint)
        seconds, flop = _product_times(footprint, readers)
        useful = 2.0 * footprint.elements(table.useful)
        tensor_flops = (useful * times * blocks).sum(axis=0)
        vectors = table.vector
        products = (seconds * times)[~vectors].sum(axis=0)
        # Each factor of a vector is also converted to f32.
        work = work + (2.0 * flop * times)[vectors].sum(axis=0)
        steps = steps + hardware.reduction_step * times[vectors].sum(axis=0)
        exchanges = _exchanges(footprint, readers)
        if facts.program.loop is not None:
            crowd = np.maximum(footprint.block_warps - 4, 0.0)
            steps = steps + hardware.warp_step * crowd * footprint.iterations
    else:
        exchanges = 0.0
    scalar = work / lanes + steps
    power = np.where(together > 1, SHARED_NORM, 1.0)
    one = (products**power + scalar**power) ** (1.0 / power) + exchanges
    return one * np.ceil(blocks / hardware.sms), tensor_flops, flops


def _times(looped: Bools, footprint: Footprint) -> Numbers:
    """How often a block runs some nodes."""
    return np.where(looped, footprint.iterations, 1.0)


def _saved(
    footprint: Footprint, rest: Footprint, rounds: Numbers
) -> tuple[Numbers, Numbers]:
    """FLOP that iterations without masks save, and seconds, less what loops cost.

    Args:
        footprint: Of iterations with masks.
        rest: Of those without.
        rounds: How many these are.
    """
    hardware, bounds = footprint.hardware, footprint.facts.covered
    work, steps = _operators(footprint, rounds)
    other, others = _operators(rest, rounds)
    # A loop of its own fills its pipeline again.
    loops = len({b.upper for b in bounds})
    return work - other, steps - others - loops * hardware.prologue


def _operators(footprint: Footprint, rounds: Numbers) -> tuple[Numbers, Numbers]:
    """FLOP of one block's operators but products, and seconds of their latencies."""
    hardware, facts = footprint.hardware, footprint.facts
    swapped = facts.program.schedule.swap_operands
    own = facts.tables.work
    slow = hardware.across_warps if facts.chained and swapped else 0.0
    work = (own.flops[0] @ footprint.sizes)[0] * rounds
    work = work + (own.flops[1] @ footprint.sizes)[0]
    exchange = hardware.reduction_step * footprint.block_warps / 4
    steps = hardware.operator_step * (own.others[0] * rounds + own.others[1])
    if any(own.maxima):
        steps = steps + (hardware.running_step + slow) * (
            own.maxima[0] * rounds + own.maxima[1]
        )
    reductions = own.reductions[0] * rounds + own.reductions[1]
    return work, steps + (exchange + slow) * reductions


# -- Products --------------------------------------------------------------------------


def _product_times(footprint: Footprint, readers: Numbers) -> tuple[Numbers, Numbers]:
    """Seconds of products of tiles on one multiprocessor, and their FLOP as padded."""
    hardware = footprint.hardware
    sizes, table = footprint.sizes, footprint.facts.tables
    own = table.products
    rows, columns, depth, batch = (
        sizes[r] for r in (own.rows, own.columns, own.over, own.batch)
    )
    work = 2.0 * rows * columns * depth * batch
    grouped = footprint.asynchronous
    rate = PRODUCT_SHARE * hardware.tensor_rate / hardware.sms
    rate = rate * np.where(grouped, 1.0, hardware.small_tensor_factor)
    step = hardware.matrix_step * np.where(grouped, 0.9, 1.0)
    # Warps share out the products of a batch first, which do not wait for each other.
    chain = depth / SMALLEST_DOT * step * batch / _sharing(footprint)
    reading = _operand_reads(footprint, readers) / hardware.shared_rate_per_sm
    seconds = np.maximum(np.maximum(work / rate, chain), reading)
    if own.exact.any():
        results = rows * columns / (footprint.block_warps * WARP)
        rate = FULL_PRECISION_SHARE * hardware.f32_matmul_rate / hardware.sms
        rate = rate * np.sqrt(np.minimum(results / 2, 1.0))
        turned = footprint.facts.program.schedule.swap_operands
        slow = work / (TURNED_SHARE if turned else 1.0) / rate
        seconds = np.where(own.exact[:, None], slow, seconds)
    return seconds, work


def _sharing(footprint: Footprint) -> Numbers:
    """Warps that have products of a batch of their own, for each product."""
    batch = footprint.sizes[footprint.facts.tables.products.batch]
    return np.minimum(batch, footprint.block_warps)


def _operand_reads(footprint: Footprint, readers: Numbers) -> Numbers:
    """Bytes of its operands that each product reads from shared memory."""
    own = footprint.facts.tables.operands
    sizes = footprint.sizes[own.value] * own.itemsize * readers
    total = np.zeros((len(footprint.facts.products), len(footprint.points)))
    np.add.at(total, own.product, sizes)
    return total


def _readers(footprint: Footprint) -> Numbers:
    """Warps that read the same elements of each operand of a product.

    Warps share out the rows first, then the columns; what is left of them repeats what
    others do.  The matrix unit reads for four warps at once.
    """
    warps, rows = footprint.block_warps / _sharing(footprint), footprint.tall
    own, products = footprint.facts.tables.operands, footprint.facts.tables.products
    columns, at = footprint.sizes[products.columns], own.product
    across = np.minimum(warps, np.maximum(rows / SMALLEST_DOT, 1.0))
    along = np.minimum(warps / across, np.maximum(columns / COLUMNS, 1.0))
    left = own.left[:, None]
    alone = np.where(left, 1.0, footprint.block_warps / 4)
    each = warps[at] / np.where(left, across[at], along[at])
    return np.where(footprint.asynchronous[at], alone, each)


def _exchanges(footprint: Footprint, readers: Numbers) -> Numbers:
    """Seconds of one block for operands that do not lie as a product wants them.

    What comes out of a product is as another one wants the operand that has the rows.
    A tile that both a product and other operators read from one copy lies as neither
    wants it.
    """
    hardware = footprint.hardware
    own, products = footprint.facts.tables.operands, footprint.facts.tables.products
    moves = (~own.left | ~own.fresh)[:, None]
    each = hardware.exchange * readers
    # Where one copy of a load serves small products and other operators; what a tensor
    # descriptor loads is swizzled for both.
    mixed = np.stack([footprint.at(number) for number in own.mixed])
    conflicts = mixed & ~footprint.asynchronous[own.product]
    each = np.where(own.loaded[:, None] & conflicts, CONFLICTS * each, each)
    loaded = conflicts | (footprint.merged[own.product] & ~own.run[:, None])
    moves = np.where(own.loaded[:, None], loaded, moves)
    counts = own.first & products.matrix[own.product]
    cost = np.where(moves, each * footprint.sizes[own.value], 0.0)
    if own.kept.any():
        # Bytes are read from shared memory, and what they become is written there.
        moved = (1 + own.itemsize) * footprint.sizes[own.value]
        moved = moved / hardware.shared_rate_per_sm + hardware.reduction_step
        cost = np.where(own.kept[:, None], moved, cost)
    return (cost * _times(own.looped, footprint))[counts].sum(axis=0)
