"""The memory side of a block's cost: bytes, how fast they stream, and what waits.

See `cost.estimate` for the model.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from mirage_dsl.core.hardware import SECTOR, WARP
from mirage_dsl.cost.facts import Column, Rows, as_column
from mirage_dsl.cost.footprint import Footprint, Numbers
from mirage_dsl.ir.graph import dims_of

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
