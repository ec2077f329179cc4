"""The cost of one block graph at a batch of sizes and schedules.

See `search.cost` for the model.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from mirage_dsl.ir.graph import Accumulate, Apply, BlockNode, RunningMax
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.footprint import (
    MATRIX_TILE,
    Footprint,
    Numbers,
    Product,
)
from mirage_dsl.search.hardware import Hardware
from mirage_dsl.search.orientation import is_product
from mirage_dsl.search.resources import WARP, Resources, chained, resources
from mirage_dsl.search.shared import Bools, from_products, merged
from mirage_dsl.search.traffic import traffic

OVERLAP_NORM = 2.5
SHARED_NORM = 1.5
PACE_NORM = 4.0
"""Norms of memory and arithmetic, of the blocks of a multiprocessor, and of work and
the way of tiles."""

PRODUCT_SHARE = 0.95
"""Share of a library product's rate that generated products reach."""

OPERATOR_STEP = 3e-9
"""Seconds that any tile operator takes, however small its tile."""

RUNNING_STEP = 8e-8
"""Seconds from a running maximum to rescaled sums, in every iteration.

Measured on an H200: an iteration of attention with it takes 0.03 to 0.12 µs longer.
"""

ACROSS_WARPS = 8e-8
"""Seconds more of a reduction of a transposed product that feeds another product.

Its rows lie across warps, and the next product reads it from shared memory.  Measured
on an H200: 0.3 to 0.5 µs an iteration of attention, 0.6 to 0.9 with normalised keys.
"""

EXCHANGE = 4.5e-11
"""Seconds for each element that an operator makes of loads for a product, and warp.

It goes through shared memory to every warp that reads it, with conflicts of banks.
Measured on an H200: 0.8 µs for 16 x 256 elements and 4 warps, 6 and 10 µs for 16 x 1024
and 8 or 16.
"""

CONFLICTS = 2.0
"""The same for a tile that lies in shared memory without swizzling, as a multiple.

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

WARP_STEP = 1.5e-8
"""Seconds of an iteration with a product for each warp beyond four, which all wait.

Measured on an H200: iterations take 0.2 to 0.6 µs longer with 16 warps.
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
    moved = traffic(footprint, hardware, inside, resident)
    arithmetic, tensor_flops, flops = _arithmetic(footprint, hardware, resident)
    busy = _overlapped(moved.seconds, arithmetic, footprint, hardware, resident)
    busy = (busy**PACE_NORM + moved.pace**PACE_NORM) ** (1.0 / PACE_NORM)
    waves = np.ceil(footprint.blocks / (hardware.sms * resident))
    busy = busy + waves * moved.waiting
    return BatchCost(
        busy + _start(footprint, hardware),
        moved.seconds,
        arithmetic,
        moved.dram_bytes,
        moved.l2_bytes,
        moved.in_flight,
        tensor_flops,
        flops,
        room,
    )


def _start(footprint: Footprint, hardware: Hardware) -> float:
    """Seconds of a launch and until data flow."""
    block = footprint.facts.block
    launch = hardware.launch - (hardware.dependent if block.schedule.pdl else 0.0)
    return launch + hardware.ramp + (hardware.prologue if block.loop else 0.0)


def _overlapped(
    memory: Numbers,
    arithmetic: Numbers,
    footprint: Footprint,
    hardware: Hardware,
    resident: Numbers,
) -> Numbers:
    """Seconds of both; blocks whose loads do not run ahead overlap with others only."""
    ahead = (footprint.iterations > 1) & (footprint.points.num_stages > 1)
    together = np.minimum(resident, footprint.blocks / hardware.sms)
    power = np.where(ahead, OVERLAP_NORM, np.clip(together, 1.0, SHARED_NORM))
    return (memory**power + arithmetic**power) ** (1.0 / power)


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
        tensor_flops = tensor_flops + _useful_flop(product, footprint) * times * blocks
        if product.is_vector:
            # Each factor is also converted to f32.
            work = work + 2.0 * flop * times
            steps = steps + hardware.reduction_step * times
        else:
            products = products + seconds * times
    if facts.products and facts.block.loop is not None:
        crowd = np.maximum(footprint.points.num_warps - 4, 0.0)
        steps = steps + WARP_STEP * crowd * footprint.iterations
    scalar = work / lanes + steps
    power = np.where(together > 1, SHARED_NORM, 1.0)
    one = (products**power + scalar**power) ** (1.0 / power)
    one = one + _exchanges(footprint)
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
            work = work + footprint.held(node.result) * footprint.iterations
        if not isinstance(node, Apply) or is_product(node):
            continue
        widest = max((node.result, *node.values), key=lambda v: len(facts.dims[v]))
        work = work + node.op.flops * footprint.held(widest) * times
        if node.op.kind is Kind.REDUCTION:
            exchange = hardware.reduction_step * footprint.points.num_warps / 4
            steps = steps + (exchange + slow) * times
        else:
            steps = steps + OPERATOR_STEP * times
    return work, steps


# -- Products --------------------------------------------------------------------------


def _useful_flop(product: Product, footprint: Footprint) -> Numbers:
    """FLOP of one product of tiles, as the program counts them."""
    sides = (*product.rows, *product.columns, *product.over, *product.batch)
    return 2.0 * footprint.elements(sides)


def _product_time(
    product: Product, footprint: Footprint, hardware: Hardware
) -> tuple[Numbers, Numbers]:
    """Seconds of one product of tiles on one multiprocessor, and its FLOP as padded."""
    points = footprint.points
    rows = footprint.padded_elements(product.rows)
    columns = footprint.padded_elements(product.columns)
    depth = footprint.padded_elements(product.over)
    batch = footprint.padded_elements(product.batch)
    work = 2.0 * rows * columns * depth * batch
    if product.full_precision:
        results = rows * columns / (points.num_warps * WARP)
        rate = FULL_PRECISION_SHARE * hardware.f32_matmul_rate / hardware.sms
        rate = rate * np.sqrt(np.minimum(results / 2, 1.0))
        return work / np.where(points.swap_operands, TURNED_SHARE, 1.0) / rate, work
    grouped = footprint.asynchronous(product)
    rate = PRODUCT_SHARE * hardware.tensor_rate / hardware.sms
    rate = rate * np.where(grouped, 1.0, hardware.small_tensor_factor)
    step = hardware.matrix_step * np.where(grouped, 0.9, 1.0)
    chain = depth / MATRIX_TILE * step * batch
    reading = _operand_reads(product, footprint) / hardware.shared_rate_per_sm
    return np.maximum.reduce([work / rate, chain, reading]), work


def _operand_reads(product: Product, footprint: Footprint) -> Numbers:
    """Bytes of its operands that one product reads from shared memory."""
    total = np.zeros(len(footprint.points))
    for value in product.node.values:
        size = footprint.held(value) * footprint.facts.types[value].dtype.itemsize
        total = total + size * _readers(product, value, footprint)
    return total


def _readers(product: Product, value: str, footprint: Footprint) -> Numbers:
    """Warps that read the same elements of an operand of a product.

    Warps share out the rows first, then the columns; what is left of them repeats what
    others do.  The matrix unit reads for four warps at once.
    """
    warps, swapped = footprint.points.num_warps, footprint.points.swap_operands
    result = product.node.result
    as_is, turned = footprint.facts.orientations
    rows = np.where(
        swapped,
        footprint.padded_elements(turned.rows[result]),
        footprint.padded_elements(as_is.rows[result]),
    )
    sides = footprint.padded_elements((*product.rows, *product.columns))
    across = np.minimum(warps, np.maximum(rows / MATRIX_TILE, 1.0))
    along = np.minimum(warps / across, np.maximum(sides / rows / COLUMNS, 1.0))
    left = np.where(swapped, turned.left[result] == value, as_is.left[result] == value)
    alone = np.where(left, 1.0, warps / 4)
    each = warps / np.where(left, across, along)
    return np.where(footprint.asynchronous(product), alone, each)


def _exchanges(footprint: Footprint) -> Numbers:
    """Seconds of one block for operands that do not lie as a product wants them.

    What comes out of a product is as another one wants the operand that has the rows.
    A tile that both a product and other operators read from one copy lies as neither
    wants it.
    """
    facts, swapped = footprint.facts, footprint.points.swap_operands
    fresh = from_products(facts)
    loads = {load.result for load in facts.block.loads}
    seconds = np.zeros(len(footprint.points))
    for product in facts.products:
        if product.is_vector or product.full_precision:
            continue
        as_is, turned = (o.left[product.node.result] for o in facts.orientations)
        for value in set(product.node.values):
            moves = np.where(swapped, turned != value, as_is != value)
            each = EXCHANGE * _readers(product, value, footprint)
            if value in loads:
                moves = ~footprint.asynchronous(product) & _mixed(value, footprint)
                each = each * np.where(moves, CONFLICTS, 1.0)
                moves |= merged(product, footprint)
            elif value not in fresh:
                moves = np.True_
            cost = np.where(moves, each * footprint.held(value), 0.0)
            seconds = seconds + cost * _times_made(value, footprint)
    return seconds


def _mixed(value: str, footprint: Footprint) -> Bools:
    """Where one copy of a load serves small products and other operators.

    What a tensor descriptor loads is swizzled for both.
    """
    facts, schedule = footprint.facts, footprint.facts.block.schedule
    if value not in facts.register_operands or schedule.descriptors:
        return np.zeros(len(footprint.points), dtype=bool)
    if not schedule.second_load:
        return np.ones(len(footprint.points), dtype=bool)
    products = [p for p in facts.products if value in p.node.values]
    return np.logical_or.reduce([footprint.asynchronous(p) for p in products])


def _times_made(value: str, footprint: Footprint) -> Numbers | float:
    looped = footprint.facts.stages[value] == "body"
    return footprint.iterations if looped else 1.0
