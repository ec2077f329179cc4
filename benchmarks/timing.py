"""Times on a GPU: inside CUDA graphs, with cold or hot inputs.

A call's time is that of a chain of calls in one CUDA graph, divided by its length.
Cold: the calls rotate over copies of the inputs that together exceed the L2 cache.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

COLD_BYTES = 256 * 2**20
MOST_COPIES = 128
CHAIN = 20
REPLAYS = 9


@dataclass(frozen=True)
class Time:
    """Microseconds per call: median, smallest and largest of the replays."""

    median: float
    low: float
    high: float


def _copies(inputs: Sequence[Tensor], cold: bool) -> list[list[Tensor]]:
    size = sum(t.numel() * t.element_size() for t in inputs)
    count = min(MOST_COPIES, max(2, -(-COLD_BYTES // size))) if cold else 1
    return [list(inputs)] + [[t.clone() for t in inputs] for _ in range(count - 1)]


def time_call(
    call: Callable[..., Any], inputs: Sequence[Tensor], *, cold: bool = True
) -> Time:
    """Time `call(*inputs)` on the current device.

    Args:
        call: A function that only launches kernels, capturable in a CUDA graph.
        inputs: CUDA tensors.
        cold: Rotate over copies of the inputs that exceed the L2 cache.
    """
    sets = _copies(inputs, cold)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for chosen in sets[:3]:
            call(*chosen)
    torch.cuda.current_stream().wait_stream(stream)
    length = max(CHAIN, len(sets))
    graph = torch.cuda.CUDAGraph()
    kept: list[Any] = []
    # The stream that has run already: libraries keep workspaces for each stream, and
    # one that is allocated during a capture dies with its graph.
    with torch.cuda.graph(graph, stream=stream):
        for i in range(length):
            kept.append(call(*sets[i % len(sets)]))
            kept = kept[-4:]
    for _ in range(2):
        graph.replay()
    times = [_replay(graph) / length for _ in range(REPLAYS)]
    return Time(statistics.median(times), min(times), max(times))


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)


def host_time(call: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    """Median host microseconds of one call, without waiting for the device."""
    import time

    for _ in range(20):
        call(*inputs)
    torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(20):
            call(*inputs)
        times.append((time.perf_counter() - start) / 20)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times)
