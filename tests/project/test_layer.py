"""The decoder layer of `examples/llama_layer.py`, at a small size on the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mirage_dsl as mirage
from benchmarks import layer as benchmark
from examples import llama_layer as llama
from mirage_dsl.backends.triton.screen import compile_only, reject
from mirage_dsl.settings import INTERPRET

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "layer_h200.json"
BATCH = 3


def _states(dtype: torch.dtype) -> tuple[llama.State, llama.State]:
    """Two equal states."""
    first, second = (
        llama.random_state(llama.SMALL, BATCH, dtype, "cpu", seed=1) for _ in range(2)
    )
    return first, second


@pytest.mark.parametrize(
    ("interpret", "dtype"), [(False, torch.float32), (True, torch.float16)]
)
def test_kernels_are_as_accurate_as_the_plain_layer(
    *, interpret: bool, dtype: torch.dtype
) -> None:
    layer = llama.random_layer(llama.SMALL, dtype, "cpu", seed=0)
    plain, fused = _states(dtype)
    exact = llama.in_double(plain)
    right = llama.plain_layer(llama.in_double(layer), exact)
    expected = llama.plain_layer(layer, plain)
    with INTERPRET.scope(value=interpret):
        found = llama.fused_layer(layer, fused)
    assert found.dtype == dtype
    assert llama.relative(found, right) <= 1.5 * llama.relative(expected, right)
    error = llama.relative(plain.cache, exact.cache)
    assert llama.relative(fused.cache, exact.cache) <= 1.5 * error


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
    assert called == {k for k in vars(llama).values() if isinstance(k, mirage.Kernel)}
    assert llama.fused_layer(layer, again).isfinite().all()


def test_measured_kernels_compile() -> None:
    rows = json.loads(RESULTS.read_text())["rows"]
    assert {row["batch"] for row in rows} == {1, 8, 16}
    texts = {
        text for row in rows[:1] for part in row["parts"] for text in part["mugraphs"]
    }
    for text in texts:
        assert not [r for r in map(reject, compile_only(mirage.parse(text))) if r]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_benchmark_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([]) == 2
    assert "CUDA" in capsys.readouterr().err
