"""The cost of one block graph at a batch of sizes and schedules.

See `search.cost` for the model.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockNode,
    Load,
    RunningMax,
    Store,
    dims_of,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.footprint import (
    BlockFacts,
    Footprint,
    Numbers,
    Product,
    tensor_bytes,
)
from mirage_dsl.search.hardware import Hardware
from mirage_dsl.search.resources import (
    WARP,
    Resources,
    chained,
    resources,
    used_only_after,
)

MEMORY_NORM = 6.0
OVERLAP_NORM = 2.5
LATENCY_NORM = 3.0
SHARED_NORM = 1.5
"""Norms of DRAM and L2; memory and arithmetic; rate and latency; blocks of an SM."""

PRODUCT_SHARE = 0.85
"""Share of a library product's rate that generated products reach."""

GRAIN = 64
"""Bytes that lie together in memory for full speed."""

OPERATOR_STEP = 4e-9
"""Seconds that any tile operator takes, however small its tile."""

RUNNING_STEP = 8e-8
"""Seconds from a running maximum to rescaled sums, in every iteration.

Measured on an H200: an iteration of attention with it takes 0.03 to 0.12 µs longer.
"""

ACROSS_WARPS = 1.2e-7
"""Seconds more of a reduction of a transposed product that feeds another product.

Its rows lie across warps, and the next product reads it from shared memory.  Measured
on an H200: 0.3 to 0.5 µs an iteration of attention, 0.6 to 0.9 with normalised keys.
"""

BYTES_PER_COPY = 4
"""Fewer bytes for each thread of a block cannot be copied ahead of their use."""

SYNC_LOAD = 3e-7
"""Seconds that an iteration waits for such a load.

Measured on an H200: vectors of 128 and 256 elements, 0.4 to 0.9 µs for two of them.
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
    hardware: Hardware,
    inside: AbstractSet[str] = frozenset(),
    room: Resources | None = None,
) -> BatchCost:
    """The cost of one block graph at a batch of points; infeasible points included.

    Args:
        footprint: The structure and the points.
        hardware: The GPU.
        inside: Kernel-level tensors that an earlier kernel left in L2.
        room: The resources, where they are known.
    """
    room = room or resources(footprint, hardware)
    resident = np.maximum(room.resident, 1.0)
    traffic = _traffic(footprint, hardware, inside, resident)
    memory, dram, through, in_flight = traffic
    arithmetic, tensor_flops, flops = _arithmetic(footprint, hardware, resident)
    busy = _norm(OVERLAP_NORM, memory, arithmetic)
    waves = np.ceil(footprint.blocks / (hardware.sms * resident))
    busy = busy + waves * _waiting(footprint, hardware)
    return BatchCost(
        busy + hardware.launch + hardware.ramp,
        memory,
        arithmetic,
        dram,
        through,
        in_flight,
        tensor_flops,
        flops,
        room,
    )


def _norm(power: float, *terms: Numbers) -> Numbers:
    total = sum((t**power for t in terms), start=np.zeros_like(terms[0]))
    return total ** (1.0 / power)


def _waiting(footprint: Footprint, hardware: Hardware) -> Numbers:
    """Seconds that a block waits for loads that nothing hides.

    These are what the loop needs before it can start, and what is too small to be
    copied while an earlier iteration runs.
    """
    facts, points = footprint.facts, footprint.points
    seconds = np.zeros(len(points))
    late = used_only_after(facts)
    first = False
    for load in facts.block.loads:
        if facts.stages[load.result] == "body":
            value = facts.types[load.result]
            size = footprint.padded_elements(value.dims) * value.dtype.itemsize
            small = size < BYTES_PER_COPY * WARP * points.num_warps
            seconds = seconds + np.where(small, SYNC_LOAD * footprint.iterations, 0.0)
        elif facts.block.loop is not None and load.result not in late:
            first = True
    return seconds + (hardware.dram_latency if first else 0.0)


def _traffic(
    footprint: Footprint,
    hardware: Hardware,
    inside: AbstractSet[str],
    resident: Numbers,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Seconds of the memory system; bytes of DRAM, of L2, and in stage buffers."""
    blocks, rounds = footprint.blocks, footprint.iterations
    slots = hardware.sms * resident
    waves = np.ceil(blocks / slots)
    cold, through, staged, early = _reads(footprint, hardware, inside, waves)
    stores = footprint.facts.block.stores
    written = sum((_stored_bytes(s, footprint) for s in stores), start=0.0 * cold)
    through = through + written
    active = np.minimum(blocks, slots)
    depth = np.minimum(footprint.points.num_stages, rounds)
    held = active * (staged * depth + early * (rounds < 2))
    ahead = np.where(rounds > 1, np.maximum(depth - 1, 1.0), 1.0)
    flying = np.maximum(active * np.maximum(staged * ahead, early), GRAIN)
    # The first round trip is part of the ramp.
    waiting = hardware.dram_latency * np.maximum(cold / flying - 1.0, 0.0)
    crowded = 1.0 + 0.03e-6 * np.maximum(held - hardware.stage_bytes, 0.0)
    busy = np.minimum(blocks, hardware.sms)
    l2_rate = np.minimum(hardware.l2_rate, busy * hardware.l2_rate_per_sm)
    dram = cold + written
    streaming = _norm(LATENCY_NORM, dram / hardware.dram_rate * crowded, waiting)
    seconds = _norm(MEMORY_NORM, streaming, through / l2_rate)
    return seconds, dram, through, held


def _reads(
    footprint: Footprint, hardware: Hardware, inside: AbstractSet[str], waves: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Bytes from DRAM and through L2; a block's from DRAM by iteration, and before."""
    facts = footprint.facts
    cold, through, staged, early = np.zeros((4, len(footprint.points)))
    for load in facts.block.loads:
        value = facts.types[load.result]
        source = _source_bytes(load, facts)
        tile = footprint.elements(value.dims) * value.dtype.itemsize
        looped = facts.stages[load.result] == "body"
        visits = footprint.blocks * (footprint.iterations if looped else 1.0)
        read = np.maximum(tile * visits * facts.copies(load), source)
        read = read / _coalescing(load, footprint)
        # What fits in L2 is fetched once; the rest once for every wave that needs it.
        passes = np.minimum(np.maximum(read / source, 1.0), waves)
        fits = source < 0.6 * hardware.l2_bytes
        fetched = np.where(fits, 1.0, passes) * source * (load.source not in inside)
        cold, through = cold + fetched, through + read
        share = np.minimum(1.0, fetched / read)
        if looped:
            staged = staged + tile * share
        else:
            early = early + tile * share
    return cold, through, staged, early


def _source_bytes(load: Load, facts: BlockFacts) -> float:
    return tensor_bytes(facts.outer[load.source], facts.extents)


def _stored_bytes(store: Store, footprint: Footprint) -> Numbers:
    """Bytes of a result; a dim `k#` is as long as there are parts of `k`."""
    own = footprint.elements(dims_of(store.axes)) * store.dtype.itemsize
    split = {d.name.removesuffix("#") for d in dims_of(store.axes) if d.grid}
    parts = np.ones(len(footprint.points))
    for cut, tiles in zip(
        footprint.facts.block.grid, footprint.points.grid, strict=True
    ):
        if cut.dim in split:
            parts = parts * footprint.facts.extents[cut.dim] / tiles
    return own * np.maximum(parts, 1.0)


def _coalescing(load: Load, footprint: Footprint) -> Numbers:
    """Share of the bandwidth that the length of contiguous runs allows."""
    value = footprint.facts.outer[load.source]
    order = value.layout or tuple(range(len(value.axes)))
    run = np.full(len(footprint.points), float(value.dtype.itemsize))
    whole = np.ones(len(footprint.points), dtype=bool)
    for axis in reversed(order):
        for dim in reversed(load.axes[axis]):
            piece = footprint.piece(dim)
            run = np.where(whole, run * piece, run)
            whole = whole & (piece >= footprint.facts.extents[dim.name])
    return np.minimum(1.0, np.maximum(run / GRAIN, 1 / 8)) ** 0.5


def _arithmetic(
    footprint: Footprint, hardware: Hardware, resident: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """Seconds of the busiest multiprocessor; FLOP of products and of the rest."""
    facts, blocks = footprint.facts, footprint.blocks
    together = np.minimum(resident, np.ceil(blocks / hardware.sms))
    warps = together * footprint.points.num_warps
    lanes = hardware.f32_rate / hardware.sms * np.minimum(1.0, warps / 16) ** 0.25
    work, steps = _operators(footprint, hardware)
    flops = work * blocks
    products, tensor_flops = np.zeros((2, len(blocks)))
    for product in facts.products:
        times = _times(product.node, footprint)
        seconds, flop = _product_time(product, footprint, hardware)
        tensor_flops = tensor_flops + flop * times * blocks
        if product.is_vector:
            # Each factor is also converted to f32.
            work = work + 2.0 * flop * times
            steps = steps + hardware.reduction_step * times
        else:
            products = products + seconds * times
    scalar = work / lanes + steps
    power = np.where(together > 1, SHARED_NORM, 1.0)
    one = (products**power + scalar**power) ** (1.0 / power)
    return one * np.ceil(blocks / hardware.sms), tensor_flops, flops


def _times(node: BlockNode, footprint: Footprint) -> Numbers | float:
    """How often a block runs a node."""
    looped = footprint.facts.stages.get(node.result) == "body"
    return footprint.iterations if looped else 1.0


def _operators(footprint: Footprint, hardware: Hardware) -> tuple[Numbers, Numbers]:
    """FLOP of one block's operators but products, and seconds of their latencies."""
    facts = footprint.facts
    work, steps = np.zeros((2, len(footprint.points)))
    slow = np.where(footprint.points.swap_operands, ACROSS_WARPS, 0.0)
    slow = slow if chained(facts) else np.zeros_like(slow)
    for node in facts.block.nodes:
        times = _times(node, footprint)
        if isinstance(node, RunningMax):
            steps = steps + (RUNNING_STEP + slow) * times
        elif isinstance(node, Accumulate) and node.rescale is not None:
            work = work + footprint.padded_elements(facts.types[node.result].dims) * (
                footprint.iterations
            )
        if not isinstance(node, Apply) or node.op.kind is Kind.CONTRACTION:
            continue
        widest = max(
            (node.result, *node.values), key=lambda v: len(facts.types[v].dims)
        )
        size = footprint.padded_elements(facts.types[widest].dims)
        work = work + node.op.flops * size * times
        if node.op.kind is Kind.REDUCTION:
            steps = steps + (hardware.reduction_step + slow) * times
        else:
            steps = steps + OPERATOR_STEP * times
    return work, steps


def _product_time(
    product: Product, footprint: Footprint, hardware: Hardware
) -> tuple[Numbers, Numbers]:
    """Seconds of one product of tiles on one multiprocessor, and its FLOP."""
    points = footprint.points
    rows = footprint.padded_elements(product.rows)
    columns = footprint.padded_elements(product.columns)
    depth = footprint.padded_elements(product.over)
    batch = footprint.padded_elements(product.batch)
    work = 2.0 * rows * columns * depth * batch
    if product.full_precision:
        return work / (hardware.f32_matmul_rate / hardware.sms), work
    long_side = np.where(points.swap_operands, columns, rows)
    grouped = (long_side >= 64) & (points.num_warps >= 4)
    rate = PRODUCT_SHARE * hardware.tensor_rate / hardware.sms
    rate = rate * np.where(grouped, 1.0, hardware.small_tensor_factor)
    # Eight warps on a small tile read their operands twice as often.
    crowded = (points.num_warps > 4) & (rows * columns < 128 * 128)
    rate = rate * np.where(crowded, 0.8, 1.0)
    step = hardware.matrix_step * np.where(grouped, 0.9, 1.0)
    step = step * np.where(crowded, 1.3, 1.0)
    return np.maximum(work / rate, depth / 16 * step * batch), work
