"""The decoder layer of `examples/llama_layer.py`, at a small size on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from benchmarks import layer as benchmark
from examples import llama_layer as llama
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import derived_extents

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "layer_h200.json"
BATCH = 3


KERNELS = [k for k in vars(llama).values() if isinstance(k, mirage.Kernel)]


def _rows() -> list[dict[str, Any]]:
    return json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]


def _states(dtype: torch.dtype) -> tuple[llama.State, llama.State]:
    """Two equal states."""
    first, second = (
        llama.random_state(llama.SMALL, BATCH, dtype, "cpu", seed=1) for _ in range(2)
    )
    return first, second


def _check(config: llama.Config, batch: int, dtype: torch.dtype) -> None:
    """The kernels are about as accurate as the plain layer."""
    layer = llama.random_layer(config, dtype, "cpu", seed=0)
    plain, fused = (
        llama.random_state(config, batch, dtype, "cpu", seed=1) for _ in range(2)
    )
    exact = llama.in_double(plain)
    right = llama.plain_layer(llama.in_double(layer), exact)
    expected = llama.plain_layer(layer, plain)
    found = llama.fused_layer(layer, fused)
    assert found.dtype == dtype
    assert llama.relative(found, right) <= 1.5 * llama.relative(expected, right)
    error = llama.relative(plain.cache, exact.cache)
    assert llama.relative(fused.cache, exact.cache) <= 1.5 * error


def test_the_layer_in_kernels_is_the_plain_layer() -> None:
    _check(llama.SMALL, BATCH, torch.float32)


@pytest.mark.sample(0)
def test_measured_kernels_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of batch 8, in the interpreter; fewer, narrower and shorter rows."""
    config = replace(llama.LLAMA_3_8B, hidden=256, inner=512, heads=32)
    layer = llama.random_layer(config, torch.float16, "cpu", seed=0)
    state = llama.random_state(config, 2, torch.float16, "cpu", seed=0)
    rows = {row["batch"]: row for row in _rows()}
    texts = {p["name"]: p["mugraphs"] for p in rows[8]["parts"]}
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "_bound", {})
    with INTERPRET.scope(value=True):
        for name, part in benchmark.parts_of(layer, state):
            for (kernel, arguments), text in zip(
                part.kernels, texts[name], strict=True
            ):
                bound = kernel.bind(*arguments)
                shapes = [tuple(a.shape) for a in arguments if not isinstance(a, int)]
                assert bound.use(_resized(mirage.parse(text), shapes)).ok
        _check(config, 2, torch.float16)


def _resized(graph: KernelGraph, shapes: list[tuple[int, ...]]) -> KernelGraph:
    """The μGraph at the sizes of inputs, of which axes of several dims stay."""
    sizes = dict(graph.extent_of)
    for item, shape in zip(graph.inputs, shapes, strict=True):
        for axis, extent in zip(item.type.axes, shape, strict=True):
            if len(axis) == 1:
                sizes[axis[0].name] = extent
    return graph.with_extents(derived_extents(graph, sizes))


def test_only_the_last_position_is_written() -> None:
    layer = llama.random_layer(llama.SMALL, torch.float32, "cpu", seed=0)
    before, state = _states(torch.float32)
    llama.fused_layer(layer, state)
    same = (state.cache == before.cache).flatten(0, 2).all(-1).all(0)
    assert same[:-1].all()
    assert not same[-1]


def test_the_parts_make_the_layer() -> None:
    """What is timed part by part is what the whole layer does."""
    layer = llama.random_layer(llama.SMALL, torch.float32, "cpu", seed=0)
    state, again = _states(torch.float32)
    parts = dict(benchmark.parts_of(layer, state))
    for part in parts.values():
        torch.testing.assert_close(
            part.fused(*part.tensors), part.plain(*part.tensors), atol=1e-5, rtol=1e-4
        )
    called = {kernel for part in parts.values() for kernel, _ in part.kernels}
    assert called == set(KERNELS)
    assert llama.fused_layer(layer, again).isfinite().all()


def test_measured_kernels_compile() -> None:
    rows = _rows()
    assert {row["batch"] for row in rows} == {1, 8, 16}
    texts = {
        text for row in rows[:1] for part in row["parts"] for text in part["mugraphs"]
    }
    for text in texts:
        reports = compile_only(mirage.parse(text))
        assert not [r for r in reports if r.rejection()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_benchmark_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([]) == 2
    assert "CUDA" in capsys.readouterr().err
