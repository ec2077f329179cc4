"""The cost model: an estimate of a sized μGraph's time, to rank by.

A kernel takes a start, what it waits for, and memory and arithmetic, which overlap:

    memory      bytes from DRAM at a rate bounded by the bytes in flight, and bytes
                from L2, where an operand that several blocks read is read again
    arithmetic  of the busiest multiprocessor: products on the matrix units (by rate,
                by the chain of dependent steps, or by what warps read of them) and f32
                operations; operands that change threads
    pace        the way of the loop's tiles, which stages divide

Pre-defined kernels are priced by their roofline and what libraries add to it, operators
that PyTorch computes by one call as that call; views are free.  The constants are in
`hardware`; `docs/cost-model.md` says how well the model ranks measured kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import (
    BYTES_PER_COPY,
    FULL_PRECISION_SHARE,
    SECTOR,
    TF32_RATE,
    WARP,
    Hardware,
)
from mirage_dsl.core.types import AxisNames, TensorType, Types, f32
from mirage_dsl.cost.facts import Column, Rows, as_column, facts_as_searched
from mirage_dsl.cost.footprint import (
    HELD_IN_L2,
    Bools,
    Footprint,
    Resources,
    footprint_of,
    resources,
    size_of,
    tensor_bytes,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import FusedCall, behind_kernels, calls, runs_ahead
from mirage_dsl.ir.analysis.layouts import (
    SOFTMAXES,
    Copied,
    Place,
    copied_for_products,
    dims_in_memory,
    laid_out,
    lies_with_channels_last,
    places,
    rows_last,
    single_elements,
)
from mirage_dsl.ir.infer import (
    kernel_types,
    library_dims,
    library_shapes,
    operand_axes,
)
from mirage_dsl.ir.maps import Extents, derived_extents, partial_extents
from mirage_dsl.ir.walk import makers, read_by, seen_in
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CHANNELS_LAST
from mirage_dsl.tile.combined import DEALT_AT_ONCE
from mirage_dsl.tile.program import SMALLEST_DOT, Numbers

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

SHORT_PIECES, PIECES_POWER = 0.8, 3.0
"""What loops without products take more that read what lies together in pieces of 64
bytes or less, one in each iteration, and by which power of their length it is less.

[M] H200, three tensors of 32768 rows of 8192 numbers of f32, µs: in 32 bytes 1411 to
1442, of 64 1238 to 1345, of 128 761 to 813, of 256 732 to 786, of 512 738 to 743, of
1024 and more 703 to 721.
"""

SHORT_OF_THREADS = 1.3
"""Rows of as many words as threads are copied 2.5 times as fast as those of half as
many or fewer, those of twice as many as any others.  [M] H100, 520 MB in rows of 3969:
tiles of 16 to 256 words 1.2 ms, of 256 with 256 threads 0.48, of 1024 0.24; the operand
of a product, 1000 rows of 4099 in tiles of 128 x 32, streams at full speed."""

PARTS_WRITTEN = (0.55, 1.0, 2.8)
PARTS_POWER = 1.4
WRITTEN, PAIRS_WRITTEN, WRITTEN_RUN = 1.2, 0.35, 1024
BESIDE_OTHERS = 0.25
"""What iterations that store runs of 64 bytes take more, for each byte: of rows that
begin at 64 bytes, at 32, and elsewhere; by which power of their length it is less; and
what rows take more that begin at single words, at pairs, in runs of at most that.

[M] H100, loops that read 520 MB, 0.2 to 0.3 ms, and write as much, in ms.  f32, runs of
64, 256, 1024 and 4096 bytes: rows of 3968 numbers 0.60, 0.40, 0.39, 0.40; of 3972 1.11,
0.52, 0.44, 0.44; of 3970 1.21, 0.56, 0.50, 0.48; of 3969 1.1 to 1.4, 0.6 to 0.9, 0.7 to
0.8, 0.5 to 0.6.  f16, rows of 3972, runs of 32, 128 and 512: 1.90, 0.71, 0.53.
Without a loop blocks write what lies together at one time, and that share of it counts:
rows of 3969 0.68, 0.51, 0.49, 0.47; of 3968 0.41, 0.37, 0.39, 0.39.
"""


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
    by_store = _bytes_by_store(footprint)
    written = by_store.sum(axis=0)
    stores = footprint.facts.tables.stores
    stored = _runs(footprint, stores.runs, stores.itemsize)
    through = reads.through + written / _whole_sectors(*stored).mean(axis=0)
    active = np.minimum(blocks, slots)
    held = active * reads.held
    flying = np.maximum(active * reads.flying, GRAIN)
    # The first round trip is part of the ramp.
    latency = hardware.dram_latency * np.maximum(reads.cold / flying - 1.0, 0.0)
    rounds = 1.0 if picks(footprint) else footprint.iterations
    trips = np.ceil(blocks / slots) * rounds / reads.ahead
    pace = hardware.turnaround * np.maximum(trips - 1.0, 0.0)
    crowded = 1.0 + hardware.crowding * np.maximum(held - hardware.stage_bytes, 0.0)
    l2_rate = np.minimum(
        hardware.l2_rate, np.minimum(blocks, hardware.sms) * hardware.l2_rate_per_sm
    )
    dram = reads.cold + written
    slowed = dram + reads.short + VISIT * _page_visits(footprint, resident)
    slowed = slowed + _partly_written(footprint, by_store, *stored)
    slowed = slowed / _rate_of_runs(footprint, stored[0])
    streaming = norm(LATENCY_NORM, slowed / hardware.dram_rate * crowded, latency)
    words = _copied_by_words(footprint) / (hardware.word_copies * hardware.sms)
    seconds = norm(MEMORY_NORM, streaming, through / l2_rate, words)
    waiting = _waiting(footprint)
    return Traffic(seconds, pace, waiting, dram, through, held)


def norm(power: float | Numbers, *terms: Numbers) -> Numbers:
    """The p-norm of a few times: near the largest, if the others are much smaller."""
    total = sum((t**power for t in terms), start=np.zeros_like(terms[0]))
    return total ** (1.0 / power)


# -- Reads and writes ------------------------------------------------------------------


@dataclass
class _Reads:
    """Bytes: from DRAM, through L2; of a block, in stage buffers and under way.

    `ahead` is how many iterations run ahead of the one that computes, at least.
    `short` is what more would stream meanwhile if no run were in short pieces.
    """

    cold: Numbers
    short: Numbers
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
    copies = footprint.buffers
    source = loads.source
    tile = footprint.elements(loads.dims) * loads.itemsize
    asked = loaded(footprint) * footprint.readers
    run, pitch = _runs(footprint, loads.runs, loads.itemsize)
    runs = np.where(_parted(footprint), loads.itemsize, run), pitch
    read = np.maximum(asked, source) / _coalescing(runs[0])
    # Rows that windows have in common are in L1.
    again = np.where(loads.picked, np.sqrt(np.maximum(loads.overlapping, 1.0)), 1.0)
    through = read / _whole_sectors(*runs) / _side_by_side(footprint, runs[0]) / again
    alike = source * np.minimum(footprint.blocks, hardware.sms)
    through = np.where(_tables(footprint), np.minimum(through, alike), through)
    outside = as_column(load.source not in inside for load in loads.own)
    fetched = _passes(footprint, read, waves) * source * outside
    share = tile * np.minimum(1.0, fetched / read)
    early = share[~own].sum(axis=0)
    held, flying = early * (rounds < 2), np.zeros(len(footprint.points))
    first = np.full(len(footprint.points), np.inf)
    for stages in copies if any(loads.again) else copies[:1]:
        ahead = _ahead(stages, footprint)
        held = held + (share[own] * np.minimum(stages, rounds)).sum(axis=0)
        flying = flying + (share[own] * ahead).sum(axis=0)
        some = np.where(stages > 0, ahead, np.inf)
        first = np.minimum(first, some.min(axis=0, initial=np.inf))
    flying = np.maximum(flying, early)
    cold, short = fetched.sum(axis=0), _short(footprint, fetched, run)
    return _Reads(cold, short, through.sum(axis=0), held, flying, first)


def _passes(footprint: Footprint, read: Numbers, waves: Numbers) -> Numbers:
    """How often each source is fetched from DRAM, if blocks `read` so many bytes."""
    loads, l2_bytes = footprint.facts.tables.loads, footprint.hardware.l2_bytes
    # What fits in L2 is fetched once; the rest once for every wave that needs it.
    passes = np.minimum(np.maximum(read / loads.source, 1.0), waves)
    once = loads.looped & footprint.is_read_once(waves)
    # Windows of neighbouring blocks, which run together, have elements in common.
    once = once | (loads.overlapping > 1) | (loads.source < HELD_IN_L2 * l2_bytes)
    return np.where(once, 1.0, passes)


def _short(footprint: Footprint, fetched: Numbers, run: Numbers) -> Numbers:
    """What more would stream meanwhile if loops read no short pieces, in bytes."""
    if footprint.facts.products:
        return np.zeros(len(footprint.points))
    share = SHORT_PIECES * np.minimum(1.0, GRAIN / run) ** PIECES_POWER
    pieces = footprint.facts.tables.loads.pieces
    return np.where(pieces, fetched * share, 0.0).sum(axis=0)


def _copied_by_words(footprint: Footprint) -> Numbers:
    """Bytes that loops copy ahead word by word, since rows do not begin at even words.

    Rows as long as the threads of a block are many take no longer for that, nor do
    the operands of products.
    """
    loads = footprint.facts.tables.loads
    single = loads.looped & (loads.itemsize == BYTES_PER_COPY)
    if footprint.facts.products or not single.any():
        return np.zeros(len(footprint.points))
    run, pitch = _runs(footprint, loads.runs, loads.itemsize)
    lanes = run / loads.itemsize / (WARP * footprint.block_warps)
    share = np.maximum(2 * lanes, 1.0) ** -SHORT_OF_THREADS
    slow = single & (lanes < 2)
    slow &= (pitch % (2 * BYTES_PER_COPY) != 0) & (footprint.points.num_stages > 1)
    asked = loaded(footprint) * footprint.blocks
    return np.where(slow, asked * share, 0.0).sum(axis=0)


def _partly_written(
    footprint: Footprint, written: Numbers, run: Numbers, pitch: Numbers
) -> Numbers:
    """What streams more where tiles store parts of sectors and lines, in bytes.

    They are whole before they leave L2, where a result fits there.
    """
    stores = footprint.facts.tables.stores
    leaves = written > HELD_IN_L2 * footprint.hardware.l2_bytes
    if not leaves.any():
        return np.zeros(len(footprint.points))
    begins = [pitch % GRAIN == 0, pitch % SECTOR == 0]
    more = np.select(begins, PARTS_WRITTEN[:2], PARTS_WRITTEN[2])
    more = more * (GRAIN / run) ** PARTS_POWER
    apart = np.select([pitch % 16 == 0, pitch % 8 == 0], [0.0, PAIRS_WRITTEN], WRITTEN)
    more = more + apart * np.minimum(1.0, WRITTEN_RUN / run)
    share = np.where(np.array(stores.looped), 1.0, BESIDE_OTHERS)[:, None]
    return np.where(leaves, written * more * share, 0.0).sum(axis=0)


def _parted(footprint: Footprint) -> NDArray[np.bool_]:
    """Whether nothing lies together, by load: see `Loads.apart`."""
    lanes = footprint.pieces[footprint.facts.tables.loads.apart].prod(axis=1)
    return np.asarray(lanes > 1)


def loaded(footprint: Footprint) -> Numbers:
    """Bytes that a block asks for, by load: all copies in all iterations.

    What lanes of a tile read of one element is read once.
    """
    loads = footprint.facts.tables.loads
    first, second = footprint.buffers
    count = np.ones((len(loads.own), len(footprint.points)))
    copies = (first > 0) + 1.0 * (second > 0)
    count[loads.looped[:, 0]] = footprint.iterations * copies
    lanes = footprint.elements(loads.dims) * _read_once(footprint)
    return lanes * loads.itemsize * loads.share * count


def _read_once(footprint: Footprint) -> Numbers:
    """How many elements the lanes of a tile read, for each lane, by load."""
    steps = footprint.facts.tables.loads.steps
    if not any(steps):
        return np.ones((len(steps), len(footprint.points)))
    found = [_share_of_lanes(footprint, own) for own in steps]
    return np.array(found).reshape(len(steps), len(footprint.points))


def _share_of_lanes(footprint: Footprint, steps: Mapping[int, int]) -> Numbers:
    """How many elements lanes of a tile read that are so far apart, for each lane.

    Steps of one length count together.  Where those of the next length are longer than
    all before them, no element is read twice; else none between the ends is left out.
    """
    count, end, lanes = (np.ones(len(footprint.points)) for _ in range(3))
    for step in sorted(set(steps.values())):
        pieces = [footprint.pieces[at] for at, own in steps.items() if own == step]
        taken = 1 + sum(p - 1 for p in pieces)
        longer = end + step * (taken - 1)
        count = np.where(step >= end, count * taken, np.minimum(count * taken, longer))
        end, lanes = longer, lanes * np.prod(pieces, axis=0)
    return np.minimum(1.0, count / lanes)


def _ahead(count: Numbers, footprint: Footprint) -> Numbers:
    """Tiles of a load that are under way, on average, with so many buffers.

    One buffer is in use.  Where the matrix unit does not read it by itself, it is free
    again as soon as it was read to registers.
    """
    stages, rounds = footprint.points.num_stages, footprint.iterations
    free = np.where(count >= stages, count - 1.0, count - IN_USE)
    free = np.where(stages > 1, np.minimum(free, rounds), 1.0)
    written_out = footprint.dealt & (rounds == DEALT_AT_ONCE)
    free = np.where(written_out, rounds, free)
    return np.where(count > 0, np.where(rounds > 1, free, 1.0), 0.0)


def _bytes_by_store(footprint: Footprint) -> Numbers:
    """Bytes of each result; a dim `k#` is as long as there are parts of `k`."""
    facts, points = footprint.facts, footprint.points
    found: list[Numbers] = []
    grid, extents = facts.program.grid, facts.program.extents
    split = dict(zip((s.dim for s in grid), points.grid, strict=True))
    stores = facts.tables.stores
    for store, own, looped in zip(stores.own, stores.dims, stores.looped, strict=True):
        size = footprint.elements(own[None, :])[0] * store.dtype.itemsize
        parts = footprint.iterations if looped else np.ones(len(points))
        for name in {d.name.removesuffix("#") for d in ir.dims_of(store.at) if d.grid}:
            if name in split:
                parts = parts * (extents[name] or 1) / split[name]
        found.append(size * np.maximum(parts, 1.0))
    return np.array(found).reshape(len(found), len(points))


WINDOWS_AHEAD = 1 / 16
"""What loops load ahead goes to shared memory, of windows element by element: 55 ms on
an H100 where one tile took 2.5, 69 where it took 2.8; two other loops 3 to 28."""


def _coalescing(run: Numbers) -> Numbers:
    """Share of the bandwidth that the length of contiguous runs of a load allows."""
    return np.minimum(np.minimum(1.0, run / GRAIN) ** 0.5, run / SECTOR)


def _whole_sectors(run: Numbers, pitch: Numbers) -> Numbers:
    """Share of the bytes through L2 that runs need, of rows that are no whole sectors.

    Each of these begins within a sector, and ends in one.
    """
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


def _side_by_side(footprint: Footprint, run: Numbers) -> Numbers:
    """Share of the bytes through L2 that windows read but once.

    Lanes that read one element are of one thread where neighbours fill all warps.  Else
    warps share out the elements of windows: of 4 by 4 on an H100, 3.6 and 4.0 ms where
    each warp has 32 neighbours, 36 where it has 16, and 72 where it has 8; of 8 in a
    row 1.6 to 2.2, 3.2 to 5.7, and 11 to 19.
    """
    loads = footprint.facts.tables.loads
    if not loads.windows.any():
        return np.ones_like(run)
    lanes = run / loads.itemsize / (WARP * footprint.block_warps)
    share = np.minimum(1.0, lanes) ** 3
    ahead = loads.looped & (footprint.points.num_stages > 1)
    share = np.where(ahead, share * WINDOWS_AHEAD, share)
    return np.where(loads.windows, share, 1.0)


def _rate_of_runs(footprint: Footprint, run: Numbers) -> Numbers:
    """Share of the rate of memory that runs leave to blocks that only map elements."""
    facts = footprint.facts
    maps = facts.program.loop is None and not facts.products
    if not maps or facts.tables.work.reductions[1]:
        return np.ones(len(footprint.points))
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
    sizes = footprint.sizes[loads.value] * loads.itemsize * _read_once(footprint)
    staged = points.num_stages > 1
    # Words are as long as the shortest copy is, however few there are, and so are
    # elements.  Without products they are not told: rows that loops take several at a
    # time would look cheap, and spill registers that the estimate does not see.
    small = sizes[own] < BYTES_PER_COPY * WARP * footprint.block_warps
    whole = np.maximum(loads.word, loads.itemsize if facts.products else 0)
    small = small & (whole[own] < BYTES_PER_COPY)
    each = hardware.synchronous_load * (small & staged).sum(axis=0)
    ahead = staged & ~loads.turned[own][:, None]
    ahead = ahead | picks(footprint) | footprint.dealt
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

PICKED, PICKED_AHEAD = 12.0, 30.0
"""Operations of a lane for each element of windows that products read: in a loop
without stages, and where elements are copied ahead, one by one.

[M] H100, 430 kernels by hand, convolutions of 3 to 64 channels, windows of 9 and 121:
what is picked takes 0.62 ps an element and products 5.7 ps for 1000, one beside the
other with one stage, and up to twice as long with several.
"""

TABLE, FROM_TABLE = 16384, 28.0
"""Bytes of a tensor that stays in the L1 cache of a multiprocessor, and operations of a
lane for each element that is picked from there, one by one.

[M] H100, 88 kernels by hand, tables of 16 and 256 floats looked up by bytes and by
halves of them, 4096 by 4096: 23.5 µs at best, 6.7 without looking anything up.
"""

TURNED_SHARE = 0.2
"""What transposed products of f32 reach of `FULL_PRECISION_SHARE`.  [M] H200: 90 to 170
µs where others take 18 to 26."""


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
    inside: AbstractSet[str],
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
    busy = norm(PACE_NORM, busy, moved.pace)
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
    together = np.minimum(resident, footprint.blocks / hardware.sms)
    power = np.where(footprint.ahead, OVERLAP_NORM, np.clip(together, 1.0, SHARED_NORM))
    return norm(power, memory, arithmetic)


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
    work = work + _picking(footprint)
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
    one = norm(power, products, scalar) + exchanges
    return one * np.ceil(blocks / hardware.sms), tensor_flops, flops


def picks(footprint: Footprint) -> bool:
    """Whether products read windows: while a block waits for these, others compute."""
    return bool(footprint.facts.tables.loads.picked.any())


def _picking(footprint: Footprint) -> Numbers:
    """Operations of one block for elements that are read where positions tell."""
    loads, tables = footprint.facts.tables.loads, _tables(footprint)
    if not picks(footprint) and not tables.any():
        return np.zeros(len(footprint.points))
    ahead = (footprint.points.num_stages > 1) & (footprint.iterations > 1)
    each = np.where(ahead, PICKED_AHEAD, PICKED)
    lanes = footprint.sizes[loads.value] * _times(loads.looped, footprint)
    picked = (lanes * loads.picked).sum(axis=0) * each
    return np.asarray(picked + (lanes * tables).sum(axis=0) * FROM_TABLE)


def _tables(footprint: Footprint) -> Bools:
    """The loads that look numbers up, one by one, in what stays in L1."""
    loads = footprint.facts.tables.loads
    return np.asarray(loads.single & (loads.source <= TABLE))


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
    rate = rate * np.where(own.rounded, TF32_RATE, 1.0)
    step = hardware.matrix_step * np.where(grouped, 0.9, 1.0)
    # Warps share out the products of a batch first, which do not wait for each other.
    chain = depth / SMALLEST_DOT * step * batch / _sharing(footprint)
    reading = _operand_reads(footprint, readers) / hardware.shared_rate_per_sm
    reading = np.where(footprint.dealt, 0.0, reading)
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
    moves = ((~own.left | ~own.fresh) & ~own.words)[:, None]
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
        # Each thread reads all lanes of what it has, and writes them one by one, where
        # the matrix unit reads tiles itself; else it reads them as a product wants it.
        moved = 2 * own.itemsize * footprint.sizes[own.value]
        moved = moved / hardware.shared_rate_per_sm + hardware.reduction_step
        moved = moved * footprint.asynchronous[own.product]
        cost = np.where(own.lane[:, None], moved, cost)
    cost = np.where(footprint.dealt & own.looped, 0.0, cost)
    return (cost * _times(own.looped, footprint))[counts].sum(axis=0)


# -- A μGraph --------------------------------------------------------------------------


LIBRARY_TILE = 64
LIBRARY_DEPTH = 1024
LIBRARY_SPLIT = 4
"""Libraries split sums of products that are longer than `LIBRARY_DEPTH` into parts
where tiles of 64 x 64 leave multiprocessors idle, and join the parts."""

MANY_CHANNELS = 40
"""Channels from which on libraries' convolutions of f32 reach their rate.

[M] H100, TF32 with channels last: 39 to 45 TFLOP/s of 3 channels, 125 of 16, 317 of 64.
"""

CONVOLUTION_SHARE = 1.0
WIDE_SHARE, WIDE_WINDOW = 0.5, 16
ROW_MAJOR_SHARE, ROW_MAJOR_CHANNELS = 0.45, 16
COPYING_SHARE = 0.7
"""Shares of the matrix units' rate that libraries reach in convolutions: with channels
last; in planes of f32 by windows of more points than that; in planes of f32 as they
lie, with so many channels or more.  And of DRAM's rate, where they copy what lies
otherwise, operands and result, unless the kernel that takes it so is faster.

[M] H200, f32 rounded to TF32: [128, 64, 128, 128] by [128, 64, 3, 3] takes 842 µs, and
1879 as it lies (estimated 836 and 1852), [64, 64, 256, 256] by the same 1646 and 3787
(1696 and 3761).  As it lies, estimated and measured: 64 to 128 channels by 3 x 3 3798
and 4005, by 5 x 7 3599 and 2934, 32 to 64 by 5 x 9 2333 and 2376, 16 to 128 by 3 x 3
3805 and 6677, 64 to 128 by 1 x 1 4186 and 3509.  Transposed ones of stride 1 are
estimated, with copies, at 0.97 to 1.30 of what they take.  [A] wide windows: what was
measured with channels last, less the copies as estimated, is 0.93 of the rate by 3 x 3
and 0.51 to 0.53 by 5 x 7 and 5 x 9.  Other formats; volumes, which take up to 30 times
their estimate."""


VOLUME_SHARE, STRIDED_VOLUME_SHARE, WIDE_VOLUME_SHARE = 0.08, 0.2, 0.03
SMALL_WINDOW = 27
"""The same of transposed convolutions in space: by windows of at most so many points,
of strides above 1, and by larger windows.  [M] H200, f32 rounded to TF32, TFLOP/s: by
3 x 3 x 3 of stride 1 52 (32 to 64 channels), 30 (32 to 32), 28 (48 to 48) and 15 (48 to
24), of stride 2 122 and 66; by 3 x 5 x 5 36, by 3 x 5 x 7 6.5, by 5 x 5 x 5 of stride 2
7.0; with channels last as many."""
SPREAD_SHARE = 0.2
"""The same of transposed ones in planes whose stride and dilation are above 1, where
libraries multiply by 0 what lies between.  [M] As above: 96 and 104 TFLOP/s, zeros
counted."""

ATTENTION_SHARE = 0.5
"""Share of its roofline that a library's attention reaches.  [M] H200, FlashAttention
through PyTorch: with this and the latency of a reduction, rows of docs/benchmarks.md
are estimated at 0.87 to 1.31 times what was measured (gqa and mha, b = 1, 8 and 16, mqa
at b = 1: 12.9 to 238.9 µs), and decode_attention, of one query a head, at 1.68."""
EXACT_ATTENTION_SHARE = 0.9
"""The same where products are of f32.  [M] H200: of 2048 rows and more 0.89 to 0.92
with heads of 128 to 512, of 512 rows 0.73 to 0.92."""
NARROW_HEADS, NARROW_ATTENTION_SHARE = 64, 0.67
"""Of f32 with heads so narrow.  [M] H200: 0.67 with heads of 64, of 512 rows 0.58."""
WIDE_HEADS, WIDE_ATTENTION_SHARE = 1024, 0.96
"""Of f32 with heads so wide.  [M] H200: 0.95 to 0.98 with heads of 1024, of 512 rows
and more; 0.92 to 0.94 with heads of 768."""
ROW_RATES = {
    "group_norm": 0.9e9,
    "layer_norm": 4.1e9,
    "rms_norm": 4.1e9,
    "softmax": 4.1e9,
    "log_softmax": 4.1e9,
}
"""Elements a second that a block of PyTorch's kernel reads, by the call; one block
takes a group or a row.  [M] H200, f16: group norm of [2, 320, 64, 64] in 32 groups and
SiLU, 51.2 µs; softmax of [16, 1000000] 243.8 µs.  [A] log-softmax, the same
kernel with another end, and other norms of rows, no faster than the fastest that was
measured; of other sizes nothing was."""
ROW_SECONDS = 1.26e-9
"""What a row of a norm takes, of which a block computes one, however short.  [M] H200:
an RMS norm of 29,360,128 rows of 64 numbers, f32, with its copies 47.4 ms."""
REDUCED_SECONDS = 3.25e-11
"""What a library's reduction takes for each of its results, however few numbers it is
made of.  [M] H200: means of 2 x 2 numbers, f32, that make 134,217,728 take 4.37 ms."""
SCAN_SHARE = 0.5
"""Share of its roofline that a library's running sum or product reaches.  [A] On an
H200 those of 32768 rows of 32768 numbers, f32, take 1.6 times as long as a generated
kernel, which is not at its roofline either."""
ROW_NORMS = frozenset({"layer_norm", "rms_norm"})
"""Norms that PyTorch computes of rows that lie together: it copies others."""
NORM_SHARES = {"batch_norm": 0.76, "group_norm": 0.76}
"""Share of DRAM's rate that PyTorch's norms reach which know nothing of rows, or first
their moments.  [M] H100: batch norm of [64, 64, 512, 512] in f32, not training, 3753 µs
(3671 estimated with this share); group norm of [112, 64, 512, 512] in 8 groups, two
reads and a write, 10025 µs (9635)."""
ROW_READS = {
    **dict.fromkeys(SOFTMAXES, 3),
    **dict.fromkeys(("group_norm", "layer_norm", "rms_norm"), 2),
}
"""How often calls read rows of which those at work do not fit into L2.  [M] H200:
softmax of 4096 rows of 393,216, f32, takes 6.18 ms, and so many reads and a write 5.99.
H100: layer norm of 7168 rows of 262,144, f32, 7969 µs (7323 estimated)."""


@dataclass(frozen=True)
class KernelCost:
    """Parts of one kernel's estimate; times in µs, amounts in bytes and FLOP.

    Attributes:
        microseconds: The estimate.
        dram_bytes: Moved to and from DRAM.
        l2_bytes: Read through L2, re-reads included.
        tensor_flops: Of products.
        flops: Of all other operators.
        memory: Time of the memory system.
        arithmetic: Time of the arithmetic.
        blocks: Blocks of the launch (0 for a library kernel).
        warps: Warps of a block.
        iterations: Iterations of the loop.
        resident: Blocks that share a multiprocessor.
        waves: Rounds until all blocks have run.
        shared: Bytes of shared memory of a block.
        registers: Registers of a thread.
        in_flight: Bytes in stage buffers of the whole GPU.
        limit: Why a block does not fit on the GPU; None where it does.
        call: The function of PyTorch's that several operators are; "" for one.
        copied: What a library kernel copies of its operands and result.
        rearranged: What PyTorch copies for a result of what the kernel makes.
        covered: What of it the next kernel's loop covers, which does not wait for it;
            the estimate is without it.
        unknown: Why there is no estimate, where no tile program expresses the block: of
            the figures there is then what it moves, and the time is infinite.
    """

    microseconds: float
    dram_bytes: float
    l2_bytes: float
    tensor_flops: float
    flops: float
    memory: float
    arithmetic: float
    blocks: int = 0
    warps: int = 0
    iterations: int = 0
    resident: int = 0
    waves: int = 0
    shared: int = 0
    registers: int = 0
    in_flight: float = 0.0
    limit: str | None = None
    covered: float = 0.0
    unknown: str | None = None
    call: str = ""
    copied: tuple[str, ...] = ()
    rearranged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """The estimate for a μGraph: the sum over its kernels.

    Attributes:
        microseconds: Estimated time of one call inside a CUDA graph, cold inputs.
        bytes: Moved to and from DRAM.
        flops: All operations.
        launches: Kernels launched, and copies for results.
        kernels: The parts, one for each node that `launched` names.
    """

    microseconds: float
    bytes: float
    flops: float
    launches: int
    kernels: tuple[KernelCost, ...] = field(default=(), repr=False)

    @property
    def feasible(self) -> bool:
        """Whether all blocks fit on the GPU, and can be expressed."""
        return all(k.limit is None and k.unknown is None for k in self.kernels)


def estimate(
    graph: ir.KernelGraph,
    hardware: Hardware,
    inside: AbstractSet[str] = frozenset(),
    copied: Copied | None = None,
) -> Cost:
    """The cost of a sized μGraph.

    Args:
        graph: The μGraph.
        hardware: The GPU.
        inside: Inputs that an earlier kernel left in L2.
        copied: What library kernels copy for products, of what is part of a larger
            program, where its inputs do not lie by themselves.

    Raises:
        SearchError: An extent is unknown.
    """
    return Priced(graph, hardware, inside, copied).cost


class Priced:
    """The kernels of a sized μGraph, any of which may take other sizes.

    It is made of what `estimate` is given, and raises what that raises.
    """

    def __init__(
        self,
        graph: ir.KernelGraph,
        hardware: Hardware,
        inside: AbstractSet[str] = frozenset(),
        copied: Copied | None = None,
    ) -> None:
        self._graph = graph
        self._hardware = hardware
        self._extents = derived_extents(graph)
        self._types = laid_out(graph, kernel_types(graph), self._extents)
        if copied is None:
            copied = copied_for_products(graph, self._types, self._extents)
        self._copied = copied
        self._rearranged = _rearranged(graph, self._types, self._extents)
        ahead = behind_kernels(graph)
        self._running = {id(b) for b, made in ahead if runs_ahead(b, made)}
        self._parts: list[tuple[ir.KernelNode, KernelCost]] = []
        self._inside: dict[int, frozenset[str]] = {}
        self._price(set(inside))

    @property
    def cost(self) -> Cost:
        """Of the μGraph as it is."""
        return self._total(self._parts)

    def with_sizes(self, at: int, block: ir.BlockGraph) -> Cost:
        """The cost with another schedule and other tiles of one kernel.

        The others are taken to cost what they do, unless there are more parts to read
        or fewer: what they read may lie in another order.

        Args:
            at: Index of the node.
            block: What stands there instead.
        """
        own = self._graph.nodes[at]
        parts = partial_extents(block, self._extents)
        if any(self._extents.get(name) != extent for name, extent in parts.items()):
            return estimate(self._graph.with_node(at, block), self._hardware)
        part = self._of_block(block, self._inside[id(own)])
        return self._total(
            [(n, part if n is own else other) for n, other in self._parts]
        )

    def _total(self, parts: Sequence[tuple[ir.KernelNode, KernelCost]]) -> Cost:
        found: list[KernelCost] = []
        for node, part in parts:
            if id(node) in self._running:
                found[-1] = _covered(found[-1], part, self._hardware)
            found.append(part)
        return _total(found)

    def _price(self, inside: set[str]) -> None:
        graph, types, extents = self._graph, self._types, self._extents
        placed = places(graph, types, extents)
        together = calls(graph, types)
        within = _within(together) | _repeated(graph)
        free = _free(graph, placed, types, extents)
        for node in graph.nodes:
            if isinstance(node, ir.BlockGraph):
                self._inside[id(node)] = frozenset(inside)
                self._parts.append((node, self._of_block(node, inside)))
                made = node.results
            elif node.result in within:
                continue
            else:
                part: KernelCost | None = None
                if node.result in together:
                    call = together[node.result]
                    library = _Library(call.types, extents, self._hardware)
                    part = library.call(call, graph.applies, inside)
                elif node.result not in free:
                    library = _Library(types, extents, self._hardware, self._copied)
                    part = library.kernel(node, inside, placed.keys())
                elif node.values[0] not in inside:
                    continue
                made = (node.result,)
                if part is not None:
                    self._parts.append((node, self._returned(part, made)))
            # What an earlier kernel wrote is still in L2 unless it is too large.
            inside.update(
                name
                for name in made
                if tensor_bytes(types[name], extents) < self._hardware.l2_bytes / 2
            )

    def _of_block(self, block: ir.BlockGraph, inside: AbstractSet[str]) -> KernelCost:
        part = _block_kernel(
            block, self._graph, self._types, self._extents, inside, self._hardware
        )
        return self._returned(part, block.results)

    def _returned(self, part: KernelCost, made: Iterable[str]) -> KernelCost:
        """A kernel with the copies of what it makes and is returned otherwise."""
        for value in made:
            if value not in self._rearranged:
                continue
            hardware = self._hardware
            moved = 2.0 * tensor_bytes(self._types[value], self._extents)
            seconds = hardware.launch + hardware.ramp
            seconds += moved / (COPYING_SHARE * hardware.dram_rate)
            part = replace(
                part,
                microseconds=part.microseconds + 1e6 * seconds,
                dram_bytes=part.dram_bytes + moved,
                rearranged=(*part.rearranged, value),
            )
        return part


def least_microseconds(
    segment: ir.KernelGraph, inside: AbstractSet[str], hardware: Hardware
) -> float:
    """What no kernels that compute a program take less than, by the cost model.

    One launch, and the time of reading every input and writing every output once.  Of
    inputs that are only looked at through views nothing is counted, which may be parts.

    Args:
        segment: The program, of operators.
        inside: Inputs that are in L2.
        hardware: The GPU.
    """
    extents = derived_extents(segment)
    read = read_by(n for n in segment.applies if not n.is_view)
    sizes = {
        i.name: tensor_bytes(i.type, extents) for i in segment.inputs if i.name in read
    }
    written = {r.value: tensor_bytes(r.type, extents) for r in segment.returns}
    through = sum(sizes.values()) + sum(written.values())
    dram = through - sum(sizes[n] for n in sizes.keys() & inside)
    busy = max(dram / hardware.dram_rate, through / hardware.l2_rate)
    return 1e6 * (hardware.launch + hardware.ramp + busy)


def _rearranged(graph: ir.KernelGraph, types: Types, extents: Extents) -> set[str]:
    """What kernels make, and PyTorch copies for an axis of several dims of a result.

    Of what views and library kernels give the dims of an axis may not follow each other
    in memory.  What a block stores for a result lies as that does.
    """
    made, found = makers(graph), set[str]()
    for item in graph.returns:
        if item.value not in made:
            continue
        kind = types[item.value]
        lying = [n for n in dims_in_memory(kind) if extents[n] != 1]
        for axis in item.type.axes:
            dims = tuple(d.name for d in axis if extents[d.name] != 1)
            if not ir.in_a_row(dims, lying):
                found.add(seen_in(graph, item.value))
    return found


def _brought(block: ir.BlockGraph, graph: ir.KernelGraph) -> set[str]:
    """The views among a block's sources of what it reads itself, with their bytes."""
    shown: dict[str, str] = {}
    for node in graph.applies:
        if node.is_view:
            source = node.values[0]
            shown[node.result] = shown.get(source, source)
    return {v for v in block.sources if shown.get(v) in block.sources}


def _within(together: Mapping[str, FusedCall]) -> frozenset[str]:
    """What is computed inside of calls, and is no kernel of its own."""
    return frozenset[str]().union(*(call.inner for call in together.values()))


def _repeated(graph: ir.KernelGraph) -> frozenset[str]:
    """Results that a call gives whose other results are there before."""
    seen: set[tuple[object, ...]] = set()
    found: set[str] = set()
    for node in graph.applies:
        if not node.op.part:
            continue
        text = node.op.torch.removesuffix(node.op.part)
        given = tuple(a for a in node.attrs if a[0] != "gives")
        call = (text, node.operands, given)
        if call in seen:
            found.add(node.result)
        seen.add(call)
    return frozenset(found)


def _total(parts: Sequence[KernelCost]) -> Cost:
    return Cost(
        sum(p.microseconds for p in parts),
        sum(p.dram_bytes for p in parts),
        sum(p.tensor_flops + p.flops for p in parts),
        len(parts) + sum(len(p.rearranged) for p in parts),
        tuple(parts),
    )


def _covered(ahead: KernelCost, behind: KernelCost, hardware: Hardware) -> KernelCost:
    """A kernel ahead of one that runs its loop before it waits.

    Both run at once, so only what the first one takes from the other is left of it:
    memory, and arithmetic of the multiprocessors that it uses.
    """
    share = min(1.0, ahead.blocks / hardware.sms)
    taken = max(1e6 * ahead.dram_bytes / hardware.dram_rate, share * ahead.arithmetic)
    covered = min(max(ahead.microseconds - taken, 0.0), behind.microseconds)
    return replace(ahead, microseconds=ahead.microseconds - covered, covered=covered)


def launched(graph: ir.KernelGraph) -> list[int]:
    """Indices of the nodes that are kernels: views and such are none.

    Of operators that are one call it is the last one.
    """
    extents = derived_extents(graph)
    types = laid_out(graph, kernel_types(graph), extents)
    placed = places(graph, types, extents)
    within = _within(calls(graph, types)) | _repeated(graph)
    within |= _free(graph, placed, types, extents)
    return [
        at
        for at, node in enumerate(graph.nodes)
        if isinstance(node, ir.BlockGraph) or node.result not in within
    ]


def _free(
    graph: ir.KernelGraph, placed: Mapping[str, Place], types: Types, extents: Extents
) -> frozenset[str]:
    """What no kernel makes of what operators give."""
    free = {n.result for n in graph.applies if _is_free(n, placed, types)}
    return single_elements(graph, extents) | free


def _is_free(node: ir.Apply, placed: Mapping[str, Place], types: Types) -> bool:
    """A view, or a concatenation whose parts are all made in their places."""
    if node.op.kind is Kind.CONCAT:
        return placed.keys() >= set(node.values)
    moves = node.factored is not None and node.factored.copies(
        types[node.values[0]].names
    )
    return node.is_view and not moves


# -- Library kernels -----------------------------------------------------------------


def library_kernel(
    node: ir.Apply,
    types: Types,
    extents: Extents,
    inside: AbstractSet[str],
    hardware: Hardware,
    copied: Copied | None = None,
) -> KernelCost:
    """The cost of a pre-defined kernel: its roofline, a launch and a ramp.

    `copied` is what `copied_for_products` says of the graph that it is part of.
    """
    library = _Library(types, extents, hardware, copied or {})
    return library.kernel(node, inside, frozenset())


@dataclass(frozen=True)
class _Library:
    """Prices library kernels."""

    types: Types
    extents: Extents
    hardware: Hardware
    copied: Copied = field(default_factory=dict[str, tuple[str, ...]])

    def size(self, names: Sequence[str]) -> float:
        """Elements of a tensor of some dims."""
        return size_of(tuple(names), self.extents)

    def elements(self, value: str) -> float:
        """Elements of a value."""
        return self.size(self.types[value].names)

    def bytes(self, value: str) -> float:
        """Bytes of a value."""
        return tensor_bytes(self.types[value], self.extents)

    def kernel(
        self, node: ir.Apply, inside: AbstractSet[str], placed: AbstractSet[str]
    ) -> KernelCost:
        """The cost of one operator.

        Values that are `placed` lie in their concatenation, which copies others.
        """
        hardware = self.hardware
        there = placed & set(node.values) if node.op.kind is Kind.CONCAT else set[str]()
        read = set(node.values) - there
        moved = [self._read_bytes(node, v) for v in read]
        cold = [self._read_bytes(node, v) for v in read - inside]
        written = self.bytes(node.result) - sum(map(self.bytes, there))
        dram, through = sum(cold) + written, sum(moved) + written
        tensor, flops, arithmetic = self._work(node)
        memory = max(dram / hardware.dram_rate, through / hardware.l2_rate)
        copied = self._copied_by(node)
        copies = 2 * sum(map(self.bytes, copied))
        copying = copies / (COPYING_SHARE * hardware.dram_rate)
        as_it_lies = self._row_major_seconds(node, tensor)
        if max(memory, as_it_lies) < max(memory, arithmetic) + copying:
            arithmetic, copied, copies, copying = as_it_lies, [], 0.0, 0.0
        busy = self._busy(node, max(memory, arithmetic)) + copying
        own = node.op.kind is Kind.CONTRACTION or node.op.channels_last_of is not None
        apart = len(copied) if own else 0
        return KernelCost(
            1e6 * (busy + (1 + apart) * hardware.launch + hardware.ramp),
            dram + copies,
            through + copies,
            tensor,
            flops,
            1e6 * memory,
            1e6 * arithmetic,
            copied=tuple(copied),
        )

    def _copied_by(self, node: ir.Apply) -> list[str]:
        """What a product copies, or a convolution with channels last."""
        if node.op.kind is Kind.CONTRACTION:
            return list(self.copied.get(node.result, ()))
        if node.op.channels_last_of is None and node.op not in CHANNELS_LAST:
            return []
        axes = (*operand_axes(node), AxisNames(node.axes("gives")))
        return [
            value
            for value, own in zip((*node.values, node.result), axes, strict=True)
            if not lies_with_channels_last(self.types[value], own)
        ]

    def _row_major_seconds(self, node: ir.Apply, flops: float) -> float:
        """Seconds of a convolution's arithmetic on tensors as they lie.

        Infinite where no such kernel of libraries was measured.
        """
        planes = node.op in CHANNELS_LAST and len(node.numbers["stride"]) == 2
        if not planes or self.types[node.result].dtype != f32:
            return math.inf
        if "output_padding" in node.numbers or node.numbers["groups"] != (1,):
            return math.inf
        if self.size(operand_axes(node)[1].axes[1]) < ROW_MAJOR_CHANNELS:
            return math.inf
        return flops / (ROW_MAJOR_SHARE * self.hardware.tensor_rate / 2)

    def _read_bytes(self, node: ir.Apply, value: str) -> float:
        """What a kernel reads of a tensor: all of it, or as much as it gathers."""
        kind, whole = self.types[value], self.bytes(value)
        if node.op.kind is not Kind.GATHER or value != node.values[0]:
            return whole
        scattered = kind.names[-1] == node.attr("dim")
        each = max(kind.dtype.itemsize, SECTOR if scattered else 0)
        return min(whole, each * self.elements(node.result))

    def _work(self, node: ir.Apply) -> tuple[float, float, float]:
        """FLOP of a product, or of another operator, and their seconds."""
        hardware = self.hardware
        if node.op.kind is Kind.LIBRARY:
            return self._window_work(node)
        if node.op.kind is not Kind.CONTRACTION:
            values = (node.result, *node.values)
            widest = max(values, key=lambda v: len(self.types[v].names))
            flops = node.op.flops * self.elements(widest)
            return 0.0, flops, flops / hardware.f32_rate
        names = dict.fromkeys(n for v in node.values for n in self.types[v].names)
        tensor = node.op.flops * self.size(tuple(names))
        rate = hardware.tensor_rate
        if self.types[node.result].dtype == f32:
            rate = hardware.f32_matmul_rate * self._exact_share(node)
        deep = self.size(node.over) / SMALLEST_DOT * hardware.matrix_step
        return tensor, 0.0, max(tensor / rate, deep / LIBRARY_SPLIT)

    def _window_work(self, node: ir.Apply) -> tuple[float, float, float]:
        """Of what only PyTorch computes; f32 convolutions it rounds to TF32."""
        known = {n: int(self.size((n,))) for n in library_dims(node)}
        shapes, shape = library_shapes(node, known)
        assert node.op.work is not None
        flops = node.op.flops * node.op.work(shapes, node.numbers, shape)
        if not node.op.on_matrix_units:
            return 0.0, flops, flops / self.hardware.f32_rate
        rate = CONVOLUTION_SHARE * self.hardware.tensor_rate
        if self.types[node.result].dtype == f32:
            rate /= 2
            plane = len(shape) == 4
            wide = plane and math.prod(shapes[1][2:]) > WIDE_WINDOW
            rate *= min(WIDE_SHARE if wide else 1.0, _share_of_channels(node, shapes))
        return flops, 0.0, flops / (rate * _share_transposed(node, shapes, shape))

    def _busy(self, node: ir.Apply, busy: float) -> float:
        """Seconds of a library kernel whose roofline takes `busy`."""
        made, read = self.elements(node.result), list(map(self.elements, node.values))
        match node.op.kind:
            case Kind.CONTRACTION:
                return busy + 2 * self.hardware.prologue + self._joining(node)
            case Kind.REDUCTION:
                busy = max(busy, REDUCED_SECONDS * made)
                return math.hypot(busy, self._row_latency(max(read)))
            case Kind.SCAN:
                return math.hypot(busy / SCAN_SHARE, self._row_latency(max(read)))
            case Kind.CONCAT | Kind.GATHER:
                return busy
            case Kind.LIBRARY:
                on_units = node.op.on_matrix_units
                return busy + 2 * self.hardware.prologue if on_units else busy
            case _:
                if all(size == made for size in read):
                    return busy
                return max(busy, made / self.hardware.library_broadcast)

    def _exact_share(self, node: ir.Apply) -> float:
        """Share of the f32 rate of a product; few rows leave much of it idle."""
        own, result = set(self.types[node.result].names), self.elements(node.result)
        sides = (own - set(self.types[v].names) for v in node.values)
        least = min(result / self.size(tuple(side)) for side in sides)
        return 1.0 if least >= LIBRARY_TILE else FULL_PRECISION_SHARE

    def _joining(self, node: ir.Apply) -> float:
        """Seconds of joining the parts of a product that is split to fill the GPU."""
        tiles = self.elements(node.result) / LIBRARY_TILE**2
        split = self.size(node.over) >= LIBRARY_DEPTH and tiles < self.hardware.sms
        return self.hardware.library_join if split else 0.0

    def _row_latency(self, elements: float) -> float:
        """Seconds that a library's reduction of so many elements waits."""
        most = self.hardware.library_reduction
        return min(most / 4 + elements / self.hardware.library_broadcast, most)

    # -- Calls of several operators ------------------------------------------------

    def call(
        self, call: FusedCall, applies: Iterable[ir.Apply], inside: AbstractSet[str]
    ) -> KernelCost:
        """The cost of several operators that are one call: their work, its tensors."""
        hardware, own = self.hardware, call.inner | {call.result}
        nodes = [n for n in applies if n.result in own]
        read, again = set(call.values), self._read_again(call)
        written = self.bytes(call.result)
        through = sum(map(self.bytes, read)) + written + again
        dram = sum(map(self.bytes, read - inside)) + written + again
        works = map(self._work, nodes)
        tensor, flops, arithmetic = map(sum, zip(*works, strict=True))
        rate = hardware.dram_rate * NORM_SHARES.get(call.name, 1.0)
        memory = max(dram / rate, through / hardware.l2_rate)
        busy = max(memory, arithmetic)
        products = [n for n in nodes if n.op.kind is Kind.CONTRACTION]
        if products:
            joining = sum(map(self._joining, products))
            busy += 2 * hardware.prologue + (joining if len(products) == 1 else 0.0)
        if len(products) > 1:
            share = self._attention_share(products[0])
            busy = math.hypot(busy / share, hardware.library_reduction)
        elif not products and call.over:
            busy = self._busy_with_reduction(call, busy)
        busy = self._busy_with_rows(call, nodes, busy)
        return KernelCost(
            1e6 * (busy + hardware.launch + hardware.ramp),
            dram,
            through,
            tensor,
            flops,
            1e6 * memory,
            1e6 * arithmetic,
            call=call.name,
        )

    def _attention_share(self, scores: ir.Apply) -> float:
        if self.types[scores.result].dtype != f32:
            return ATTENTION_SHARE
        width = self.size(scores.over)
        if width <= NARROW_HEADS:
            return NARROW_ATTENTION_SHARE
        return WIDE_ATTENTION_SHARE if width >= WIDE_HEADS else EXACT_ATTENTION_SHARE

    def _busy_with_reduction(self, call: FusedCall, busy: float) -> float:
        """Seconds of a call that reduces; it is `busy` with its numbers and bytes."""
        made = self.types[call.result].names
        if not {*call.over} & {*made}:
            busy = max(busy, REDUCED_SECONDS * self.size(made))
        return math.hypot(busy, self._row_latency(self.elements(call.value("x"))))

    def _busy_with_rows(
        self, call: FusedCall, nodes: Sequence[ir.Apply], busy: float
    ) -> float:
        """Seconds of a call of which a block computes each row; of others as given."""
        if call.name not in ROW_RATES:
            return busy
        row = max(self.size(n.over) for n in nodes if n.op.kind is Kind.REDUCTION)
        busy = max(busy, row / ROW_RATES[call.name])
        if call.name not in ROW_NORMS:
            return busy
        rows = self.elements(call.value("x")) / row
        rate = COPYING_SHARE * self.hardware.dram_rate
        return max(busy, ROW_SECONDS * rows) + 2 * self._copied_rows(call) / rate

    def _read_again(self, call: FusedCall) -> float:
        """Bytes that are read from memory more than once.

        Softmaxes and norms do that with long rows; a group norm is made by two kernels.
        """
        if call.name not in ROW_READS:
            return 0.0
        whole, l2_bytes = self.bytes(call.value("x")), self.hardware.l2_bytes
        if call.name == "group_norm":
            return whole if whole > l2_bytes else 0.0
        rows = whole / self.size(call.over)
        rows /= self.types[call.value("x")].dtype.itemsize
        at_work = whole * min(1.0, self.hardware.sms / rows)
        return (ROW_READS[call.name] - 1) * whole if at_work > l2_bytes else 0.0

    def _copied_rows(self, call: FusedCall) -> float:
        """Bytes of a norm's operand and result that lie otherwise than in rows."""
        kinds = {v: self.types[v] for v in (call.value("x"), call.result)}
        lying = {
            v: tuple(k.names[a] for a in k.order) for v, k in kinds.items() if k.is_flat
        }
        return sum(
            self.bytes(v) for v, d in lying.items() if d != rows_last(d, call.over)
        )


def _share_transposed(
    node: ir.Apply, shapes: Sequence[Sequence[int]], shape: Sequence[int]
) -> float:
    """Share of the rate that libraries reach where a convolution is transposed."""
    if "output_padding" not in node.numbers:
        return 1.0
    given, window = shapes[0], shapes[1][2:]
    if len(shape) == 5:
        if math.prod(window) > SMALL_WINDOW:
            return WIDE_VOLUME_SHARE
        strided = max(node.numbers["stride"]) > 1
        return STRIDED_VOLUME_SHARE if strided else VOLUME_SHARE
    if max(node.numbers["stride"]) == 1 or max(node.numbers["dilation"]) == 1:
        return 1.0
    return SPREAD_SHARE * math.prod(given[2:]) / math.prod(shape[2:])


def _share_of_channels(node: ir.Apply, shapes: Sequence[Sequence[int]]) -> float:
    """Share of the rate that libraries reach with so few channels."""
    if not node.op.convolves or node.numbers["groups"] != (1,):
        return 1.0
    channels = 4 * math.ceil(shapes[0][1] / 4)
    return min(1.0, channels / MANY_CHANNELS)


# -- Graph-defined kernels -------------------------------------------------------------


def _block_kernel(
    block: ir.BlockGraph,
    graph: ir.KernelGraph,
    types: Types,
    extents: Extents,
    inside: AbstractSet[str],
    hardware: Hardware,
) -> KernelCost:
    """The cost of a block; graphs of a search share many, so the last ones are kept."""
    around = {name: types[name] for name in (*block.sources, *block.results)}
    sizes = tuple(extents.items())
    warm = frozenset(block.sources) & (inside | _brought(block, graph))
    return _kept_block(block, tuple(around.items()), sizes, warm, hardware)


@lru_cache(maxsize=512)
def _kept_block(
    block: ir.BlockGraph,
    around: tuple[tuple[str, TensorType], ...],
    sizes: tuple[tuple[str, int | None], ...],
    inside: frozenset[str],
    hardware: Hardware,
) -> KernelCost:
    types, extents = dict(around), dict(sizes)
    try:
        footprint = footprint_of(facts_as_searched(block, types, extents), hardware)
        cost = block_cost(footprint, inside, early=block.schedule.pdl)
    except UnsupportedError as error:
        return _unknown(block, types, extents, inside, error.message)
    blocks, resident = float(footprint.blocks[0]), float(cost.resources.resident[0])
    at_once = max(resident, 1.0) * hardware.sms
    return KernelCost(
        microseconds=1e6 * float(cost.seconds[0]),
        dram_bytes=float(cost.dram_bytes[0]),
        l2_bytes=float(cost.l2_bytes[0]),
        tensor_flops=float(cost.tensor_flops[0]),
        flops=float(cost.flops[0]),
        memory=1e6 * float(cost.memory[0]),
        arithmetic=1e6 * float(cost.arithmetic[0]),
        blocks=int(blocks),
        warps=int(footprint.block_warps[0]),
        iterations=int(footprint.iterations[0]),
        resident=int(resident),
        waves=math.ceil(blocks / at_once),
        shared=int(cost.resources.shared[0]),
        registers=int(cost.resources.registers[0]),
        in_flight=float(cost.in_flight[0]),
        limit=cost.resources.reason(0, hardware),
    )


def _unknown(
    block: ir.BlockGraph,
    types: Types,
    extents: Extents,
    inside: AbstractSet[str],
    reason: str,
) -> KernelCost:
    """What is known of a block that no tile program expresses: what it has to move."""
    read = frozenset(load.source for load in block.loads)
    written = sum(tensor_bytes(types[name], extents) for name in block.results)
    cold = sum(tensor_bytes(types[name], extents) for name in read - inside)
    moved = sum(tensor_bytes(types[name], extents) for name in read)
    return KernelCost(
        math.inf, cold + written, moved + written, 0.0, 0.0, 0.0, 0.0, unknown=reason
    )
