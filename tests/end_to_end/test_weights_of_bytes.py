"""Products with weights of 8 and 4 bits, from a function to numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.hardware import H100
from mirage_dsl.search.driver import search
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.combined import words
from tests.end_to_end.tracing import traced

ROWS, GROUP = 1024, 64


def gated(x: Any, gate: Any, up: Any) -> Any:
    return mirage.silu(x @ gate.to(x.dtype)) * (x @ up.to(x.dtype))


def with_scales(x: Any, packed: Any, scale: Any) -> Any:
    shifts = torch.arange(2) * 4
    value = (packed.unsqueeze(1) >> shifts[:, None].to(packed.dtype)) & 15
    value = (value.to(torch.int8) - 8).to(x.dtype)
    value = value.reshape(scale.shape[0], -1, scale.shape[1]) * scale[:, None]
    return x @ value.reshape(-1, scale.shape[1])


def weights(dtype: str, count: int, columns: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, columns)
    if dtype.startswith("f8"):
        kind = torch.float8_e4m3fn if dtype == "f8e4m3" else torch.float8_e5m2
        made = (torch.randn(shape, generator=generator) for _ in range(count))
        return [(w / ROWS**0.5).to(kind) for w in made]
    low, kind = (-8, torch.int8) if dtype == "i8" else (0, torch.uint8)
    made = (
        torch.randint(low, low + 16, shape, generator=generator) for _ in range(count)
    )
    return [w.to(kind) for w in made]


def found(function: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """What is found that reads words, best first."""
    bound = mirage.kernel(function).bind(*tensors)
    result = bound.search(effort="quick", hardware=H100, use_cache=False)
    graphs = [c.mugraph for c in result]
    return [g for g in graphs if any(words(p) for p in programs(g))]


def is_right(graph: Any, function: Any, tensors: list[torch.Tensor]) -> None:
    (got,) = TritonExecutable(graph, interpret=True)(*tensors)
    exact = [t.double() if t.dtype == torch.float16 else t for t in tensors]
    right = function(*exact)
    assert float((got.double() - right).norm() / right.norm()) < 3e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2", "u8", "i8"])
def test_bytes(dtype: str) -> None:
    x = torch.randn(8, ROWS, generator=torch.Generator().manual_seed(1)).half()
    if dtype in ("u8", "i8"):
        x = x / 64
    tensors = [x, *weights(dtype, 2, 64)]
    graph, *_ = found(gated, tensors)
    is_right(graph, gated, tensors)


def halves(rows: int, depth: int, columns: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, depth, generator=generator).half()
    packed = torch.randint(0, 256, (depth // 2, columns), generator=generator)
    scale = (torch.rand(depth // GROUP, columns, generator=generator) + 0.1) / depth
    return [x, packed.to(torch.uint8), scale.half()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("rows", [1, 8])
def test_halves_of_bytes(rows: int) -> None:
    """What is found for a large matrix, of which a part is computed."""
    graph, *_ = found(with_scales, halves(rows, 4096, 4096))
    (name,) = (n for n in graph.extent_of if n.endswith("_pairs"))
    part = graph.with_extents({name: 40})
    is_right(part, with_scales, halves(rows, 4096, 80))


def test_a_scale_stays_ahead_of_what_would_overflow_without_it() -> None:
    """As between two products of a gated MLP, where f16 holds no sum of raw bytes."""

    def mlp(x: Any, gate: Any, up: Any, first: Any, second: Any, down: Any) -> Any:
        gated = functional.silu((x @ gate.to(x.dtype).T) * first)
        return (gated * ((x @ up.to(x.dtype).T) * second)) @ down

    rng, k = torch.Generator().manual_seed(0), 2048
    x = torch.randn(8, k, generator=rng).half()
    bytes_ = torch.randint(-127, 128, (2, 64, k), generator=rng).to(torch.int8)
    scales = [torch.tensor([q / (74 * k**0.5)]).half() for q in (8, 1)]
    down = torch.randn(64, 64, generator=rng).half()
    tensors = [x, *bytes_, *scales, down]
    exact = mlp(*(t.double() if t.dtype == torch.half else t for t in tensors))
    found = search(traced(mlp, tensors), H100, k=3)
    for candidate in found.candidates:
        (out,) = TritonExecutable(candidate.mugraph, interpret=True)(*tensors)
        assert (out.double() - exact).norm() / exact.norm() < 3e-3
