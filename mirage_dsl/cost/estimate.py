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
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import SECTOR, Hardware
from mirage_dsl.core.types import AxisNames, TensorType, f32
from mirage_dsl.cost.block import FULL_PRECISION_SHARE, block_cost
from mirage_dsl.cost.facts import facts_as_searched
from mirage_dsl.cost.footprint import footprint_of, size_of, tensor_bytes
from mirage_dsl.ir.analysis.calls import FusedCall, calls
from mirage_dsl.ir.analysis.layouts import (
    SOFTMAXES,
    Place,
    laid_out,
    lies_with_channels_last,
    places,
    rows_last,
)
from mirage_dsl.ir.analysis.waiting import behind_kernels, runs_ahead
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ir.infer import (
    kernel_types,
    library_dims,
    library_shapes,
    operand_axes,
)
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import read_by
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CHANNELS_LAST
from mirage_dsl.tile.sizes import SMALLEST_DOT

LIBRARY_TILE = 64
LIBRARY_DEPTH = 1024
LIBRARY_SPLIT = 4
"""Libraries split sums of products that are longer than `LIBRARY_DEPTH` into parts
where tiles of 64 x 64 leave multiprocessors idle, and join the parts."""

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


ATTENTION_SHARE = 0.5
"""Share of its roofline that a library's attention reaches.  [M] H200, FlashAttention
through PyTorch: with this and the latency of a reduction, rows of docs/benchmarks.md
are estimated at 0.87 to 1.31 times what was measured (gqa and mha, b = 1, 8 and 16, mqa
at b = 1: 12.9 to 238.9 µs), and decode_attention, of one query a head, at 1.68."""
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
ROW_NORMS = frozenset({"layer_norm", "rms_norm"})
"""Norms that PyTorch computes of rows that lie together: it copies others."""
SOFTMAX_READS = 3
"""How often softmaxes read rows of which those at work do not fit into L2.  [M] H200:
4096 rows of 393,216, f32, take 6.18 ms, and so many reads and a write 5.99."""


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


@dataclass(frozen=True)
class Cost:
    """The estimate for a μGraph: the sum over its kernels.

    Attributes:
        microseconds: Estimated time of one call inside a CUDA graph, cold inputs.
        bytes: Moved to and from DRAM.
        flops: All operations.
        launches: Kernels launched.
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
    graph: KernelGraph,
    hardware: Hardware,
    inside: AbstractSet[str] = frozenset(),
) -> Cost:
    """The cost of a sized μGraph.

    Args:
        graph: The μGraph.
        hardware: The GPU.
        inside: Inputs that an earlier kernel left in L2.

    Raises:
        SearchError: An extent is unknown.
    """
    extents = derived_extents(graph, graph.extent_of)
    types = laid_out(graph, kernel_types(graph), extents)
    inside = set(inside)
    parts: list[KernelCost] = []
    placed = places(graph, types, extents)
    running = {id(b) for b, made in behind_kernels(graph) if runs_ahead(b, made)}
    together = calls(graph, types)
    within = _within(together) | _repeated(graph)
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            part = _block_kernel(node, graph, types, extents, inside, hardware)
            if id(node) in running:
                parts[-1] = _covered(parts[-1], part, hardware)
            parts.append(part)
            made = node.results
        elif node.result in within:
            continue
        else:
            if node.result in together:
                call = together[node.result]
                parts.append(_call_kernel(call, graph, extents, inside, hardware))
            elif not _is_free(node, placed, types):
                there = placed.keys()
                part = library_kernel(node, types, extents, inside, hardware, there)
                parts.append(part)
            elif node.values[0] not in inside:
                continue
            made = (node.result,)
        # What an earlier kernel wrote is still in L2 unless it is too large.
        inside.update(
            name
            for name in made
            if tensor_bytes(types[name], extents) < hardware.l2_bytes / 2
        )
    return _total(parts)


def least_microseconds(
    segment: KernelGraph, inside: AbstractSet[str], hardware: Hardware
) -> float:
    """What no kernels that compute a program take less than, by the cost model.

    One launch, and the time of reading every input and writing every output once.  Of
    inputs that are only looked at through views nothing is counted, which may be parts.

    Args:
        segment: The program, of operators.
        inside: Inputs that are in L2.
        hardware: The GPU.
    """
    extents = derived_extents(segment, segment.extent_of)
    read = read_by(n for n in segment.applies if not n.is_view)
    sizes = {
        i.name: tensor_bytes(i.type, extents) for i in segment.inputs if i.name in read
    }
    written = {r.value: tensor_bytes(r.type, extents) for r in segment.returns}
    through = sum(sizes.values()) + sum(written.values())
    dram = through - sum(sizes[n] for n in sizes.keys() & inside)
    busy = max(dram / hardware.dram_rate, through / hardware.l2_rate)
    return 1e6 * (hardware.launch + hardware.ramp + busy)


def _brought(block: BlockGraph, graph: KernelGraph) -> set[str]:
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


def _repeated(graph: KernelGraph) -> frozenset[str]:
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
        len(parts),
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


def launched(graph: KernelGraph) -> list[int]:
    """Indices of the nodes that are kernels: views and such are none.

    Of operators that are one call it is the last one.
    """
    extents = derived_extents(graph, graph.extent_of)
    types = laid_out(graph, kernel_types(graph), extents)
    placed = places(graph, types, extents)
    within = _within(calls(graph, types)) | _repeated(graph)
    return [
        at
        for at, node in enumerate(graph.nodes)
        if isinstance(node, BlockGraph)
        or not (node.result in within or _is_free(node, placed, types))
    ]


def _is_free(
    node: Apply, placed: Mapping[str, Place], types: Mapping[str, TensorType]
) -> bool:
    """A view, or a concatenation whose parts are all made in their places."""
    if node.op.kind is Kind.CONCAT:
        return placed.keys() >= set(node.values)
    moves = node.factored is not None and node.factored.copies(
        types[node.values[0]].names
    )
    return node.is_view and not moves


# -- Library kernels -----------------------------------------------------------------


def library_kernel(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    inside: AbstractSet[str],
    hardware: Hardware,
    placed: AbstractSet[str] = frozenset(),
) -> KernelCost:
    """The cost of a pre-defined kernel: its roofline, a launch and a ramp.

    Values that are `placed` lie in their concatenation already, which copies others.
    """
    there = placed & set(node.values) if node.op.kind is Kind.CONCAT else set[str]()
    read = set(node.values) - there
    moved = [_read_bytes(node, v, types, extents) for v in read]
    cold = [_read_bytes(node, v, types, extents) for v in read - inside]
    written = tensor_bytes(types[node.result], extents)
    written -= sum(tensor_bytes(types[v], extents) for v in there)
    dram, through = sum(cold) + written, sum(moved) + written
    tensor, flops, arithmetic = _library_work(node, types, extents, hardware)
    memory = max(dram / hardware.dram_rate, through / hardware.l2_rate)
    copied = _copied_by(node, types)
    copies = 2 * sum(tensor_bytes(types[v], extents) for v in copied)
    copying = copies / (COPYING_SHARE * hardware.dram_rate)
    as_it_lies = _row_major_seconds(node, types, tensor, extents, hardware)
    if max(memory, as_it_lies) < max(memory, arithmetic) + copying:
        arithmetic, copied, copies, copying = as_it_lies, [], 0.0, 0.0
    busy = _library_busy(node, types, extents, hardware, max(memory, arithmetic))
    busy += copying
    apart = len(copied) if node.op.channels_last_of is not None else 0
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


def _copied_by(node: Apply, types: Mapping[str, TensorType]) -> list[str]:
    """What a convolution with channels last copies: what lies not as it wants."""
    if node.op.channels_last_of is None and node.op not in CHANNELS_LAST:
        return []
    axes = (*operand_axes(node), AxisNames(node.axes("gives")))
    return [
        value
        for value, own in zip((*node.values, node.result), axes, strict=True)
        if not lies_with_channels_last(types[value], own)
    ]


def _row_major_seconds(
    node: Apply,
    types: Mapping[str, TensorType],
    flops: float,
    extents: Mapping[str, int | None],
    hardware: Hardware,
) -> float:
    """Seconds of a convolution's arithmetic on tensors as they lie.

    Infinite where no such kernel of libraries was measured.
    """
    planes = node.op in CHANNELS_LAST and len(node.numbers["stride"]) == 2
    if not planes or types[node.result].dtype != f32:
        return math.inf
    if "output_padding" in node.numbers or node.numbers["groups"] != (1,):
        return math.inf
    channels = size_of(operand_axes(node)[1].axes[1], extents)
    if channels < ROW_MAJOR_CHANNELS:
        return math.inf
    return flops / (ROW_MAJOR_SHARE * hardware.tensor_rate / 2)


def _read_bytes(
    node: Apply,
    value: str,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> float:
    """What a kernel reads of a tensor: all of it, or as much as it gathers."""
    kind = types[value]
    whole = tensor_bytes(kind, extents)
    if node.op.kind is not Kind.GATHER or value != node.values[0]:
        return whole
    scattered = kind.names[-1] == node.attr("dim")
    each = max(kind.dtype.itemsize, SECTOR if scattered else 0)
    return min(whole, each * size_of(types[node.result].names, extents))


def _call_kernel(
    call: FusedCall,
    graph: KernelGraph,
    extents: Mapping[str, int | None],
    inside: AbstractSet[str],
    hardware: Hardware,
) -> KernelCost:
    """The cost of several operators that are one call: their work, and its tensors."""
    types, own = call.types, call.inner | {call.result}
    nodes = [n for n in graph.applies if n.result in own]
    read = set(call.values)
    written = tensor_bytes(types[call.result], extents)
    through = sum(tensor_bytes(types[v], extents) for v in read) + written
    dram = sum(tensor_bytes(types[v], extents) for v in read - inside) + written
    works = [_library_work(n, types, extents, hardware) for n in nodes]
    tensor, flops, arithmetic = (sum(w[i] for w in works) for i in range(3))
    again = _read_again(call, extents, hardware)
    dram, through = dram + again, through + again
    memory = max(dram / hardware.dram_rate, through / hardware.l2_rate)
    busy = max(memory, arithmetic)
    products = [n for n in nodes if n.op.kind is Kind.CONTRACTION]
    if products:
        joining = sum(_joining(n, types, extents, hardware) for n in products)
        busy += 2 * hardware.prologue + (joining if len(products) == 1 else 0.0)
    if len(products) > 1:
        busy = math.hypot(busy / ATTENTION_SHARE, hardware.library_reduction)
    elif not products and call.over:
        elements = size_of(types[call.value("x")].names, extents)
        busy = math.hypot(busy, _row_latency(elements, hardware))
    busy = _busy_with_rows(call, nodes, extents, hardware, busy)
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


def _busy_with_rows(
    call: FusedCall,
    nodes: Sequence[Apply],
    extents: Mapping[str, int | None],
    hardware: Hardware,
    busy: float,
) -> float:
    """Seconds of a call of which a block computes each row; of others it is `busy`."""
    if call.name not in ROW_RATES:
        return busy
    row = max(size_of(n.over, extents) for n in nodes if n.op.kind is Kind.REDUCTION)
    busy = max(busy, row / ROW_RATES[call.name])
    if call.name not in ROW_NORMS:
        return busy
    rows = size_of(call.types[call.value("x")].names, extents) / row
    copied = 2 * _copied_rows(call, extents) / (COPYING_SHARE * hardware.dram_rate)
    return max(busy, ROW_SECONDS * rows) + copied


def _read_again(
    call: FusedCall, extents: Mapping[str, int | None], hardware: Hardware
) -> float:
    """Bytes that a softmax of long rows reads from memory more than once."""
    if call.name not in SOFTMAXES:
        return 0.0
    whole = tensor_bytes(call.types[call.value("x")], extents)
    rows = whole / size_of(call.over, extents)
    rows /= call.types[call.value("x")].dtype.itemsize
    at_work = whole * min(1.0, hardware.sms / rows)
    return (SOFTMAX_READS - 1) * whole if at_work > hardware.l2_bytes else 0.0


def _copied_rows(call: FusedCall, extents: Mapping[str, int | None]) -> float:
    """Bytes of a norm's operand and result that lie otherwise than in rows."""
    kinds = [call.types[v] for v in (call.value("x"), call.result)]
    lying = [(k, tuple(k.names[a] for a in k.order)) for k in kinds if _is_flat(k)]
    return sum(
        tensor_bytes(kind, extents)
        for kind, dims in lying
        if dims != rows_last(dims, call.over)
    )


def _is_flat(kind: TensorType) -> bool:
    """Whether each axis has one dim."""
    return all(len(axis) == 1 for axis in kind.axes)


def _row_latency(elements: float, hardware: Hardware) -> float:
    """Seconds that a library's reduction of so many elements waits."""
    most = hardware.library_reduction
    return min(most / 4 + elements / hardware.library_broadcast, most)


def _library_work(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    hardware: Hardware,
) -> tuple[float, float, float]:
    """FLOP of a product, or of another operator, and their seconds."""
    if node.op.kind is Kind.LIBRARY:
        return _window_work(node, types, extents, hardware)
    if node.op.kind is not Kind.CONTRACTION:
        widest = max((node.result, *node.values), key=lambda v: len(types[v].names))
        flops = node.op.flops * size_of(types[widest].names, extents)
        return 0.0, flops, flops / hardware.f32_rate
    names = dict.fromkeys(n for v in node.values for n in types[v].names)
    tensor = node.op.flops * size_of(tuple(names), extents)
    rate = hardware.tensor_rate
    if types[node.result].dtype == f32:
        rate = hardware.f32_matmul_rate * _exact_share(node, types, extents)
    deep = size_of(node.over, extents) / SMALLEST_DOT * hardware.matrix_step
    return tensor, 0.0, max(tensor / rate, deep / LIBRARY_SPLIT)


def _window_work(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    hardware: Hardware,
) -> tuple[float, float, float]:
    """The same of what only PyTorch computes; f32 convolutions it rounds to TF32."""
    known = {n: int(size_of((n,), extents)) for n in library_dims(node)}
    shapes, shape = library_shapes(node, known)
    assert node.op.work is not None
    flops = node.op.flops * node.op.work(shapes, node.numbers, shape)
    if not node.op.on_matrix_units:
        return 0.0, flops, flops / hardware.f32_rate
    rate = CONVOLUTION_SHARE * hardware.tensor_rate
    if types[node.result].dtype == f32:
        rate /= 2
        plane = len(shape) == 4
        wide = plane and math.prod(shapes[1][2:]) > WIDE_WINDOW
        rate *= WIDE_SHARE if wide else 1.0
    return flops, 0.0, flops / rate


def _library_busy(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    hardware: Hardware,
    busy: float,
) -> float:
    """Seconds of a library kernel whose roofline takes `busy`."""
    made = size_of(types[node.result].names, extents)
    read = [size_of(types[v].names, extents) for v in node.values]
    match node.op.kind:
        case Kind.CONTRACTION:
            joining = _joining(node, types, extents, hardware)
            return busy + 2 * hardware.prologue + joining
        case Kind.REDUCTION:
            return math.hypot(busy, _row_latency(max(read), hardware))
        case Kind.SCAN:
            return math.hypot(busy, _row_latency(max(read), hardware))
        case Kind.CONCAT | Kind.GATHER:
            return busy
        case Kind.LIBRARY:
            return busy + 2 * hardware.prologue if node.op.on_matrix_units else busy
        case _:
            broadcasts = any(size != made for size in read)
            return max(busy, made / hardware.library_broadcast) if broadcasts else busy


def _exact_share(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> float:
    """Share of the f32 rate of a library's product; few rows leave much of it idle."""
    result = size_of(types[node.result].names, extents)
    sides = (set(types[node.result].names) - set(types[v].names) for v in node.values)
    least = min(result / size_of(tuple(side), extents) for side in sides)
    return 1.0 if least >= LIBRARY_TILE else FULL_PRECISION_SHARE


def _joining(
    node: Apply,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    hardware: Hardware,
) -> float:
    """Seconds of joining the parts of a product that is split to fill the GPU."""
    tiles = size_of(types[node.result].names, extents) / LIBRARY_TILE**2
    deep = size_of(node.over, extents) >= LIBRARY_DEPTH
    return hardware.library_join if deep and tiles < hardware.sms else 0.0


# -- Graph-defined kernels -------------------------------------------------------------


def _block_kernel(
    block: BlockGraph,
    graph: KernelGraph,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
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
    block: BlockGraph,
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
    block: BlockGraph,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
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
