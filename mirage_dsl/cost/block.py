"""The cost of one block graph at a batch of sizes and schedules.

See `cost.estimate` for the model.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from mirage_dsl.core.hardware import SECTOR, WARP
from mirage_dsl.cost.facts import Column, Rows, as_column
from mirage_dsl.cost.footprint import Bools, Footprint, Numbers, Resources, resources
from mirage_dsl.ir.graph import dims_of
from mirage_dsl.tile.sizes import SMALLEST_DOT

# -- Memory ----------------------------------------------------------------------------

MEMORY_NORM = 6.0
LATENCY_NORM = 3.0
"""Norms of DRAM and L2, and of rate and latency."""

GRAIN = 64
"""Bytes that lie together in memory for full speed."""

IN_USE = 0.25
"""Part of a buffer's time that it is in use, where it is read to registers."""

PAGE = 1 << 21
"""Bytes of a page of memory."""

MOST_PAGES = 32
VISIT = 1024
"""Pages whose addresses a multiprocessor keeps at hand, and the bytes that stream while
that of another one is looked up.

From whole calls on an H200, less what PyTorch's part of them takes: tiles of 64 bytes
of each of a thousand rows, of which one or two share a page, streamed at some 0.6 TB/s;
with some 512 bytes of each of 64 pages it were 1.2.
"""

LONG_RUN = 4096
LONG_RUN_RATE = 0.965
"""Bytes that lie together in a tile above which a block that only maps elements streams
more slowly, and at what share of the rate.

Measured on an H200, blocks next to each other in memory: 1.6e9 numbers of f32 in tiles
of 1, 2 and 4 rows of up to 4096 bytes take 3.05 to 3.08 ms, of longer rows 3.13 to
3.19; planes of 4096 numbers 255 to 271 µs, and 272 to 297; 67 million of bf16 66 to 67
µs, and 68 to 70.
"""

BYTES_PER_COPY = 4
"""Fewer bytes for each thread of a block cannot be copied ahead of their use."""


@dataclass(frozen=True)
class Traffic:
    """What the memory system does for a block graph at a batch of points.

    Attributes:
        seconds: While data streams.
        pace: Seconds of the loop if nothing but the way of its tiles took time.
        waiting: Seconds of each wave in which nothing else happens.
        dram_bytes: To and from DRAM.
        l2_bytes: Through L2.
        in_flight: In stage buffers of the whole GPU.
    """

    seconds: Numbers
    pace: Numbers
    waiting: Numbers
    dram_bytes: Numbers
    l2_bytes: Numbers
    in_flight: Numbers


def traffic(
    footprint: Footprint,
    inside: AbstractSet[str],
    resident: Numbers,
) -> Traffic:
    """The memory side at every point.

    Args:
        footprint: The structure and the points.
        inside: Kernel-level tensors that an earlier kernel left in L2.
        resident: Blocks that share a multiprocessor.
    """
    hardware = footprint.hardware
    blocks, slots = footprint.blocks, hardware.sms * resident
    reads = _reads(footprint, inside, np.ceil(blocks / slots))
    written = _stored_bytes(footprint)
    stores = footprint.facts.tables.stores
    share = _whole_sectors(footprint, stores.runs, stores.itemsize).mean(axis=0)
    through = reads.through + written / share
    active = np.minimum(blocks, slots)
    held = active * reads.held
    flying = np.maximum(active * reads.flying, GRAIN)
    # The first round trip is part of the ramp.
    latency = hardware.dram_latency * np.maximum(reads.cold / flying - 1.0, 0.0)
    trips = np.ceil(blocks / slots) * footprint.iterations / reads.ahead
    pace = hardware.turnaround * np.maximum(trips - 1.0, 0.0)
    crowded = 1.0 + hardware.crowding * np.maximum(held - hardware.stage_bytes, 0.0)
    l2_rate = np.minimum(
        hardware.l2_rate, np.minimum(blocks, hardware.sms) * hardware.l2_rate_per_sm
    )
    dram = reads.cold + written
    slowed = dram + VISIT * _page_visits(footprint, resident)
    slowed = slowed / _rate_of_runs(footprint)
    streaming = norm(LATENCY_NORM, slowed / hardware.dram_rate * crowded, latency)
    seconds = norm(MEMORY_NORM, streaming, through / l2_rate)
    waiting = _waiting(footprint)
    return Traffic(seconds, pace, waiting, dram, through, held)


def norm(power: float, *terms: Numbers) -> Numbers:
    """The p-norm of a few times: near the largest, if the others are much smaller."""
    total = sum((t**power for t in terms), start=np.zeros_like(terms[0]))
    return total ** (1.0 / power)


# -- Reads and writes ------------------------------------------------------------------


@dataclass
class _Reads:
    """Bytes: from DRAM, through L2; of a block, in stage buffers and under way.

    `ahead` is how many iterations run ahead of the one that computes, at least.
    """

    cold: Numbers
    through: Numbers
    held: Numbers
    flying: Numbers
    ahead: Numbers


def _reads(
    footprint: Footprint,
    inside: AbstractSet[str],
    waves: Numbers,
) -> _Reads:
    hardware = footprint.hardware
    loads, rounds = footprint.facts.tables.loads, footprint.iterations
    own = loads.looped[:, 0]
    copies = footprint.stage_buffers
    source = loads.source
    tile = footprint.elements(loads.dims) * loads.itemsize
    asked = loaded(footprint) * footprint.readers
    read = np.maximum(asked, source) / _coalescing(footprint)
    through = read / _whole_sectors(footprint, loads.runs, loads.itemsize)
    # What fits in L2 is fetched once; the rest once for every wave that needs it.
    passes = np.minimum(np.maximum(read / source, 1.0), waves)
    cold = as_column(load.source not in inside for load in loads.own)
    fits = source < 0.6 * hardware.l2_bytes
    fetched = np.where(fits, 1.0, passes) * source * cold
    share = tile * np.minimum(1.0, fetched / read)
    early = share[~own].sum(axis=0)
    held, flying = early * (rounds < 2), np.zeros(len(footprint.points))
    first = np.full(len(footprint.points), np.inf)
    for stages in copies:
        ahead = _ahead(stages, footprint)
        held = held + (share[own] * np.minimum(stages, rounds)).sum(axis=0)
        flying = flying + (share[own] * ahead).sum(axis=0)
        some = np.where(stages > 0, ahead, np.inf)
        first = np.minimum(first, some.min(axis=0, initial=np.inf))
    flying = np.maximum(flying, early)
    return _Reads(fetched.sum(axis=0), through.sum(axis=0), held, flying, first)


def loaded(footprint: Footprint) -> Numbers:
    """Bytes that a block asks for, by load: all copies in all iterations."""
    loads = footprint.facts.tables.loads
    first, second = footprint.stage_buffers
    count = np.ones((len(loads.own), len(footprint.points)))
    copies = (first > 0) + 1.0 * (second > 0)
    count[loads.looped[:, 0]] = footprint.iterations * copies
    return footprint.elements(loads.dims) * loads.itemsize * loads.share * count


def _ahead(count: Numbers, footprint: Footprint) -> Numbers:
    """Tiles of a load that are under way, on average, with so many buffers.

    One buffer is in use.  Where the matrix unit does not read it by itself, it is free
    again as soon as it was read to registers.
    """
    stages, rounds = footprint.points.num_stages, footprint.iterations
    free = np.where(count >= stages, count - 1.0, count - IN_USE)
    free = np.where(stages > 1, np.minimum(free, rounds), 1.0)
    return np.where(count > 0, np.where(rounds > 1, free, 1.0), 0.0)


def _stored_bytes(footprint: Footprint) -> Numbers:
    """Bytes of the results; a dim `k#` is as long as there are parts of `k`."""
    facts, points = footprint.facts, footprint.points
    total = np.zeros(len(points))
    grid, extents = facts.program.grid, facts.program.extents
    split = dict(zip((s.dim for s in grid), points.grid, strict=True))
    stores = facts.tables.stores
    for store, own, looped in zip(stores.own, stores.dims, stores.looped, strict=True):
        size = footprint.elements(own[None, :])[0] * store.dtype.itemsize
        parts = footprint.iterations if looped else np.ones(len(points))
        for name in {d.name.removesuffix("#") for d in dims_of(store.at) if d.grid}:
            if name in split:
                parts = parts * (extents[name] or 1) / split[name]
        total = total + size * np.maximum(parts, 1.0)
    return total


def _coalescing(footprint: Footprint) -> Numbers:
    """Share of the bandwidth that the length of contiguous runs of a load allows."""
    loads = footprint.facts.tables.loads
    run, _ = _runs(footprint, loads.runs, loads.itemsize)
    return np.minimum(np.minimum(1.0, run / GRAIN) ** 0.5, run / SECTOR)


def _whole_sectors(footprint: Footprint, runs: Rows, itemsize: Column) -> Numbers:
    """Share of the bytes through L2 that runs need, of rows that are no whole sectors.

    Each of these begins within a sector, and ends in one.
    """
    run, pitch = _runs(footprint, runs, itemsize)
    return np.where(pitch % SECTOR == 0, 1.0, run / (run + SECTOR))


def _runs(
    footprint: Footprint, runs: Rows, itemsize: Column
) -> tuple[Numbers, Numbers]:
    """Bytes that lie together in each tile, and from one such run to the next."""
    extents, pieces = footprint.facts.tables.extents[runs], footprint.pieces[runs]
    whole = np.ones(pieces.shape, dtype=bool)
    reached = np.logical_and.accumulate(pieces >= extents, axis=1)
    whole[:, 1:] = reached[:, :-1]
    run = itemsize * np.where(whole, pieces, 1.0).prod(axis=1)
    return run, itemsize * np.where(whole, extents, 1.0).prod(axis=1)


def _rate_of_runs(footprint: Footprint) -> Numbers:
    """Share of the rate of memory that runs leave to blocks that only map elements."""
    facts = footprint.facts
    maps = facts.program.loop is None and not facts.products
    if not maps or facts.tables.work.reductions[1]:
        return np.ones(len(footprint.points))
    stores = facts.tables.stores
    run, _ = _runs(footprint, stores.runs, stores.itemsize)
    return np.where(run.max(axis=0) > LONG_RUN, LONG_RUN_RATE, 1.0)


def _page_visits(footprint: Footprint, resident: Numbers) -> Numbers:
    """How often tiles touch pages whose addresses are not at hand.

    They are, where the blocks of a multiprocessor touch few pages at once.
    """
    tables, rounds = footprint.facts.tables, footprint.iterations
    once, looped = np.zeros(len(footprint.points)), np.zeros(len(footprint.points))
    for kind, in_loop in (
        (tables.loads, tables.loads.looped[:, 0]),
        (tables.stores, np.array(tables.stores.looped, dtype=bool)),
    ):
        pages = _pages(footprint, kind.runs, kind.itemsize)
        looped = looped + pages[in_loop].sum(axis=0)
        once = once + pages[~in_loop].sum(axis=0)
    visits = np.where(resident * once > MOST_PAGES, once, 0.0)
    visits = visits + np.where(resident * looped > MOST_PAGES, looped * rounds, 0.0)
    return visits * footprint.blocks


def _pages(footprint: Footprint, runs: Rows, itemsize: Column) -> Numbers:
    """Pages that each tile touches, from its dims in the order of memory."""
    extents = footprint.facts.tables.extents[:, 0][runs]
    strides = itemsize * np.cumprod(extents, axis=1) / extents
    pieces = footprint.pieces[runs]
    spread = np.maximum(pieces * (strides / PAGE)[:, :, None], 1.0)
    return np.asarray(np.minimum(pieces, spread).prod(axis=1))


# -- What waits ------------------------------------------------------------------------


def _waiting(footprint: Footprint) -> Numbers:
    """Seconds that a block waits for loads that nothing hides.

    These are what the loop needs before it can start, what is too small to be copied
    while an earlier iteration runs, everything in a loop without stages, and all loads
    of a block without a loop, whose first round trip is part of the ramp.
    """
    hardware = footprint.hardware
    facts, points = footprint.facts, footprint.points
    loads = facts.tables.loads
    own = loads.looped[:, 0]
    sizes = footprint.sizes[loads.value] * loads.itemsize
    staged = points.num_stages > 1
    small = sizes[own] < BYTES_PER_COPY * WARP * footprint.block_warps
    each = hardware.synchronous_load * (small & staged).sum(axis=0)
    ahead = staged & ~loads.turned[own][:, None]
    steps = np.where(ahead, 0.0, sizes[own]).sum(axis=0)
    early = sizes[~own & ~loads.late].sum(axis=0)
    latency = hardware.dram_latency
    first = latency * _trips(early, footprint)
    if facts.program.loop is None:
        first = np.maximum(first - latency, 0.0)
    unknown = [n.along is not None and n.along.known == "no" for n in loads.own]
    at_data = np.array(unknown, dtype=bool) & ~own
    if at_data.any():
        # Their positions have to be there first; other loads are under way meanwhile.
        first = first + latency * sizes[at_data].sum(axis=0) / sizes[~own].sum(axis=0)
    each = each + latency * _trips(steps, footprint)
    return first + each * footprint.iterations


def _trips(size: Numbers, footprint: Footprint) -> Numbers:
    """Round trips until the threads of a block have loaded some bytes to registers."""
    hardware = footprint.hardware
    threads = WARP * footprint.block_warps
    return np.ceil(size / (threads * hardware.bytes_at_once))


# -- A block ---------------------------------------------------------------------------

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
    *,
    early: bool = False,
) -> BatchCost:
    """The cost of one block graph at a batch of points; infeasible points included.

    Args:
        footprint: The structure and the points.
        inside: Kernel-level tensors that an earlier kernel left in L2.
        room: The resources, where they are known.
        early: Whether it is launched before the kernel ahead has ended, whatever its
            program says.
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
        busy + _start(footprint, early),
        moved.seconds,
        arithmetic,
        moved.dram_bytes,
        moved.l2_bytes,
        moved.in_flight,
        tensor_flops,
        flops,
        room,
    )


def _start(footprint: Footprint, early: bool) -> float:
    """Seconds of a launch and until data flow."""
    hardware = footprint.hardware
    program = footprint.facts.program
    early = early or program.schedule.pdl
    launch = hardware.launch - (hardware.dependent if early else 0.0)
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
    if own.lane.any():
        # Each thread reads all lanes of what it has, and writes them one by one.
        moved = 2 * own.itemsize * footprint.sizes[own.value]
        moved = moved / hardware.shared_rate_per_sm + hardware.reduction_step
        cost = np.where(own.lane[:, None], moved, cost)
    return (cost * _times(own.looped, footprint))[counts].sum(axis=0)
