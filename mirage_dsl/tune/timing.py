"""Times on the current GPU, in CUDA graphs with cold or hot inputs, and on the host.

A call's time is that of a chain of calls in one CUDA graph, divided by its length.
Cold: the calls rotate over copies of the inputs that together exceed the L2 cache.
"""

# PyTorch's stream and graph interfaces are only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from mirage_dsl.core.errors import CompileError
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    import torch

COLD_BYTES = 256 << 20
COLD_CACHES = 5
"""Inputs rotate through at least this much, and through so many times the L2 cache."""

MOST_SETS = 128
FEWEST_CALLS = 40
REPLAYS = 9
PROBES = 3
"""Calls of the first look at a candidate, before a chain is captured."""
HOST_CALLS = 20
HOST_BOUND = 100.0
"""A plain call may take the host so many µs; below, it says nothing of the GPU."""

TURNS = 41
"""How often each chain is timed where several are timed in turn."""
SETTLING = 3
"""Turns that do not count: the clock falls until the power suits."""
TURN = 2_000.0
"""µs that a chain takes of a turn, about, where calls are not short."""

Run = Callable[..., Any]
Sets = Sequence[Sequence[Any]]
"""Arguments of several calls."""


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
    wanted = max((cold_bytes(t.device) for t in tensors), default=COLD_BYTES)
    count = min(MOST_SETS, max(2, -(-wanted // max(1, size))))
    return [tuple(tensors)] + [
        tuple(_copied(t) for t in tensors) for _ in range(count - 1)
    ]


def cold_bytes(device: torch.device) -> int:
    """Bytes that a device has forgotten the first of when it has read them all."""
    import torch

    if device.type != "cuda":
        return COLD_BYTES
    told = cast("Any", torch.cuda.get_device_properties(device))
    return max(COLD_BYTES, COLD_CACHES * told.L2_cache_size)


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
) -> Time:
    """Time `call(*inputs)` on the current device.

    Args:
        call: Only launches kernels, so that a CUDA graph can capture it.
        inputs: CUDA tensors.
        cold: Rotate over copies of the inputs that exceed the L2 cache.
    """
    return time_sets(call, rotating(inputs) if cold else [tuple(inputs)])


def time_sets(
    call: Run,
    sets: Sets,
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

    stream = _beside_current()
    rough = _rough(call, sets, stream)
    if min(rough) > max(limit, HOST_BOUND):
        return _time(rough)
    length = chain_length(min(rough), len(sets), chain)
    captured = _Chain(call, sets, length, stream)
    with torch.cuda.stream(stream):
        captured.replay()
        times = [_between(captured.replay, stream) / length for _ in range(replays)]
    if look is not None:
        captured.show(look)
    return _time(times)


def time_in_turns(
    calls: Sequence[tuple[Run, Sets]],
    *,
    turns: int = TURNS,
    seconds: float = math.inf,
    look: Callable[[int, Any], None] | None = None,
) -> list[Time]:
    """Time several calls in short chains, in turn, so that all meet the same clocks.

    A GPU whose power is limited changes its clock by a tenth and more within a second.
    Each turn takes the chains in an order of its own, without a pause in between.

    Args:
        calls: Each with the sets of arguments that it takes in turn.
        turns: How often each chain is timed.
        seconds: After so long no more turns begin, once there was one.
        look: Is shown what the last few calls of each chain have returned, with the
            position of the call.
    """
    import torch

    began = time.perf_counter()
    stream = _beside_current()
    chains: list[_Chain] = []
    for call, sets in calls:
        length = chain_length(min(_rough(call, sets, stream)), len(sets), TURN)
        chains.append(_Chain(call, sets, length, stream))
    found: list[list[float]] = [[] for _ in chains]
    order, generator = list(range(len(chains))), random.Random(0)
    for turn in range(-SETTLING, turns):
        if turn > 0 and time.perf_counter() - began > seconds:
            break
        generator.shuffle(order)
        with torch.cuda.stream(stream):
            marks = {at: _marked(chains[at].replay, stream) for at in order}
        stream.synchronize()
        for at, (start, end) in marks.items() if turn >= 0 else ():
            found[at].append(1000.0 * start.elapsed_time(end) / chains[at].length)
    if look is not None:
        for at, chain in enumerate(chains):
            chain.show(partial(look, at))
    return [_time(times) for times in found]


class _Chain:
    """Calls that take some sets in turn, in a CUDA graph.

    Attributes:
        length: How many calls.
        replay: Enqueues them all on the current stream.
    """

    def __init__(
        self, call: Run, sets: Sets, length: int, stream: torch.cuda.Stream
    ) -> None:
        import torch

        self.length = length
        self._last: list[Any] = []
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(length):
                self._last = [*self._last[-3:], call(*sets[index % len(sets)])]
        self.replay = graph.replay

    def show(self, look: Callable[[Any], None]) -> None:
        """Show what the last few calls have returned."""
        for outputs in self._last:
            look(outputs)


def _beside_current() -> torch.cuda.Stream:
    """A stream that begins after what the current one has been given.

    One for all that follows: libraries keep a workspace for each stream, and one that
    is allocated during a capture dies with its graph.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream


def _rough(call: Run, sets: Sets, stream: torch.cuda.Stream) -> list[float]:
    """µs of a few plain calls, behind a few that are not timed."""
    import torch

    with torch.cuda.stream(stream):
        for chosen in sets[:PROBES]:
            call(*chosen)
        found = [_between(lambda: call(*sets[0]), stream) for _ in range(PROBES)]
    torch.cuda.current_stream().wait_stream(stream)
    return found


def _time(times: Sequence[float]) -> Time:
    return Time(statistics.median(times), min(times), max(times))


def chain_length(microseconds: float, sets: int, chain: float) -> int:
    """How many calls make a chain, if each takes so long: each set at least once."""
    calls = min(FEWEST_CALLS, math.ceil(min(chain / max(microseconds, 1.0), 1e6)))
    return max(sets, calls)


def _between(work: Callable[[], object], stream: torch.cuda.Stream) -> float:
    """µs that the GPU takes for some work on a stream."""
    import torch

    torch.cuda.synchronize()
    start, end = _marked(work, stream)
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)


def _marked(
    work: Callable[[], object], stream: torch.cuda.Stream
) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Enqueue some work on a stream between two events."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(stream)
    work()
    end.record(stream)
    return start, end


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
    """Time two implementations of a program on random inputs, in turns.

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
    sets = rotating(inputs)
    ours, others = time_in_turns([(mugraph, sets), (program, sets)])
    return Benchmark(ours, others, error, torch.cuda.get_device_name())


def _relative(found: Any, expected: Any) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _random_inputs(graph: KernelGraph) -> list[Any]:
    """Tensors of the inputs' types; scaled so that long sums stay in range."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(0)
    extents = {name: extent or 1 for name, extent in graph.extents}
    tensors: list[Any] = []
    for item in graph.inputs:
        shape = item.type.shape_at(extents)
        dtype = getattr(torch, item.type.dtype.long_name)
        random = torch.rand(shape, generator=generator, device="cuda") * 0.1 + 0.01
        order = item.type.order
        memory = random.permute(order).contiguous()
        back = sorted(range(len(order)), key=order.__getitem__)
        tensors.append(memory.permute(back).to(dtype))
    return tensors
