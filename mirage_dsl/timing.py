"""Times on the current GPU, in CUDA graphs with cold or hot inputs, and on the host.

A call's time is that of a chain of calls in one CUDA graph, divided by its length.
Cold: the calls rotate over copies of the inputs that together exceed the L2 cache.
"""

# PyTorch's stream and graph interfaces are only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirage_dsl.errors import CompileError
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    import torch

COLD_BYTES = 256 << 20
"""Inputs rotate through at least this much, several times the L2 cache."""

MOST_SETS = 128
FEWEST_CALLS = 40
REPLAYS = 9
PROBES = 3
"""Calls of the first look at a candidate, before a chain is captured."""
HOST_CALLS = 20
HOST_BOUND = 100.0
"""A plain call may take the host so many µs; below, it says nothing of the GPU."""

Run = Callable[..., Any]


@dataclass(frozen=True)
class Time:
    """Microseconds per call: median, smallest and largest of the repetitions."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.1f} µs ({self.low:.1f} to {self.high:.1f})"


@dataclass(frozen=True)
class Benchmark:
    """Times of a μGraph and of its program run by library kernels.

    Attributes:
        mugraph: The μGraph's.
        program: The unfused program's.
        error: ‖out − ref‖ / ‖ref‖ between the two, the worst output's.
        device: Name of the GPU.
    """

    mugraph: Time
    program: Time
    error: float
    device: str

    @property
    def speedup(self) -> float:
        """The program's median over the μGraph's."""
        return self.program.median / self.mugraph.median

    def __str__(self) -> str:
        return (
            f"{self.mugraph}, {self.speedup:.2f} times as fast as the unfused "
            f"program's {self.program}, on {self.device}; relative difference "
            f"{self.error:.1e}"
        )


def rotating(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    """Copies of the inputs, so many that each call finds its own out of the cache."""
    size = sum(t.numel() * t.element_size() for t in tensors)
    count = min(MOST_SETS, max(2, -(-COLD_BYTES // max(1, size))))
    return [tuple(tensors)] + [
        tuple(_copied(t) for t in tensors) for _ in range(count - 1)
    ]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    import torch

    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def time_call(
    call: Run,
    inputs: Sequence[torch.Tensor],
    *,
    cold: bool = True,
    replays: int = REPLAYS,
) -> Time:
    """Time `call(*inputs)` on the current device.

    Args:
        call: Only launches kernels, so that a CUDA graph can capture it.
        inputs: CUDA tensors.
        cold: Rotate over copies of the inputs that exceed the L2 cache.
        replays: How often the chain is repeated.
    """
    sets = rotating(inputs) if cold else [tuple(inputs)]
    return time_sets(call, sets, replays=replays)


def time_sets(
    call: Run,
    sets: Sequence[Sequence[Any]],
    *,
    replays: int = REPLAYS,
    limit: float = math.inf,
    chain: float = math.inf,
    look: Callable[[Any], None] | None = None,
) -> Time:
    """Time `call` in a captured chain of calls that use the sets in turn.

    Args:
        call: Takes the elements of one set; it must not wait for the GPU.
        sets: Inputs, mostly tensors.
        replays: How often the chain is repeated.
        limit: Beyond so many µs a rough figure will do, of a few plain calls.
        chain: µs that are enough for a chain, once it has taken every set.
        look: Is shown what the last few calls of the chain have returned, as all the
            replays have left it.
    """
    import torch

    # One stream for all: libraries keep a workspace for each stream, and one that is
    # allocated during a capture dies with its graph.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for chosen in sets[:PROBES]:
            call(*chosen)
        rough = [_between(lambda: call(*sets[0]), stream) for _ in range(PROBES)]
    torch.cuda.current_stream().wait_stream(stream)
    if min(rough) > max(limit, HOST_BOUND):
        return Time(statistics.median(rough), min(rough), max(rough))
    length = chain_length(min(rough), len(sets), chain)
    graph = torch.cuda.CUDAGraph()
    kept: list[Any] = []
    with torch.cuda.graph(graph, stream=stream):
        for index in range(length):
            kept = [*kept[-3:], call(*sets[index % len(sets)])]
    with torch.cuda.stream(stream):
        graph.replay()
        times = [_between(graph.replay, stream) / length for _ in range(replays)]
    if look is not None:
        for outputs in kept:
            look(outputs)
    return Time(statistics.median(times), min(times), max(times))


def chain_length(microseconds: float, sets: int, chain: float) -> int:
    """How many calls make a chain, if each takes so long: each set at least once."""
    calls = min(FEWEST_CALLS, math.ceil(min(chain / max(microseconds, 1.0), 1e6)))
    return max(sets, calls)


def _between(work: Callable[[], object], stream: torch.cuda.Stream) -> float:
    """µs that the GPU takes for some work on a stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record(stream)
    work()
    end.record(stream)
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)


def host_microseconds(call: Run, inputs: Sequence[torch.Tensor]) -> float:
    """Median host µs of one call, without waiting for the device."""
    import torch

    for _ in range(HOST_CALLS):
        call(*inputs)
    times: list[float] = []
    for _ in range(HOST_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            call(*inputs)
        times.append((time.perf_counter() - start) / HOST_CALLS)
    return 1e6 * statistics.median(times)


def time_both(mugraph: Run, program: Run, graph: KernelGraph) -> Benchmark:
    """Time two implementations of a program on random inputs.

    Raises:
        CompileError: There is no CUDA device.
    """
    import torch

    if not torch.cuda.is_available():
        raise CompileError(
            "benchmark needs a CUDA device, and PyTorch finds none; the cost model's "
            "estimate is in explain()"
        )
    inputs = _random_inputs(graph)
    pairs = zip(mugraph(*inputs), program(*inputs), strict=True)
    error = max(_relative(a.float(), b.float()) for a, b in pairs)
    return Benchmark(
        time_call(mugraph, inputs),
        time_call(program, inputs),
        error,
        torch.cuda.get_device_name(),
    )


def _relative(found: Any, expected: Any) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _random_inputs(graph: KernelGraph) -> list[Any]:
    """Tensors of the inputs' types; scaled so that long sums stay in range."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    extents = graph.extent_of
    tensors: list[Any] = []
    for item in graph.inputs:
        shape = [
            math.prod(extents[d.name] or 1 for d in axis) for axis in item.type.axes
        ]
        dtype = getattr(torch, item.type.dtype.long_name)
        random = torch.rand(shape, generator=generator, device="cuda") * 0.1 + 0.01
        order = item.type.layout or tuple(range(len(shape)))
        memory = random.permute(order).contiguous()
        back = sorted(range(len(order)), key=order.__getitem__)
        tensors.append(memory.permute(back).to(dtype))
    return tensors


__all__ = [
    "Benchmark",
    "Time",
    "host_microseconds",
    "rotating",
    "time_both",
    "time_call",
    "time_sets",
]
