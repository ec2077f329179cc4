"""Times calls on a GPU: in a CUDA graph, with inputs that are not in the L2 cache."""

# torch's stream and graph functions are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

COLD_BYTES = 256 << 20
"""Inputs rotate through at least this much, several times the L2 cache."""

MOST_SETS = 128
FEWEST_CALLS = 40


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


def microseconds(
    call: Callable[..., object],
    sets: Sequence[Sequence[torch.Tensor]],
    *,
    replays: int = 7,
) -> float:
    """Median time of one call, in a captured chain of calls.

    Args:
        call: Takes the tensors of one set; it must not wait for the GPU.
        sets: Inputs, used in turn.
        replays: How often the chain runs.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(*sets[0])
        call(*sets[-1])
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    count = max(FEWEST_CALLS, len(sets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            call(*sets[index % len(sets)])
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / count)
    return median(times)


__all__ = ["microseconds", "rotating"]
