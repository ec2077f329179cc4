"""Times on the current GPU, measured inside CUDA graphs with cold inputs."""

# PyTorch's stream and graph interfaces are only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage_dsl.errors import CompileError
from mirage_dsl.ir.graph import KernelGraph

COLD_BYTES = 256 * 2**20
"""Inputs rotate over copies of this size together, so that none stays in the cache."""

CHAIN = 20
REPLAYS = 9


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


Run = Callable[..., Sequence[Any]]


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
        _time(mugraph, inputs),
        _time(program, inputs),
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


def _time(run: Run, inputs: list[Any]) -> Time:
    import torch

    size = sum(t.numel() * t.element_size() for t in inputs)
    copies = [
        [t.clone() for t in inputs]
        for _ in range(min(128, max(1, math.ceil(COLD_BYTES / max(size, 1)))))
    ]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for chosen in copies[:3]:
            run(*chosen)
    torch.cuda.current_stream().wait_stream(side)
    length = max(CHAIN, len(copies))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for i in range(length):
            run(*copies[i % len(copies)])
    captured.replay()
    times = [_replay(captured) / length for _ in range(REPLAYS)]
    return Time(statistics.median(times), min(times), max(times))


def _replay(captured: Any) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    captured.replay()
    end.record()
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)
