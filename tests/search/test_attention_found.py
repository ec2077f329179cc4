"""Attention as people write it is one kernel, at the sizes of models.

Masks, slopes and biases without the axis of heads, scores that are capped, roots of
head sizes: a search of a few candidates finds one kernel, as it does without them, and
prices it about as one without the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import Candidate, is_one_kernel

F = torch.nn.functional
Function = Callable[..., Any]
LENGTH, WIDTH = 2048, 128


def positions(q: Any, k: Any) -> tuple[Any, Any]:
    rows, columns = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    return rows[:, None], columns[None, :]


def plain(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v)


def causal(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def window(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    seen = (j <= i) & (i - j < 512)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def slopes(q: Any, k: Any, v: Any, slope: Any) -> Any:
    i, j = positions(q, k)
    bias = (slope[:, None, None] * (j - i)).half()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def capped(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = 50 * torch.tanh(scores / 50)
    i, j = positions(q, k)
    return torch.softmax(scores.masked_fill(j > i, float("-inf")), -1) @ v


def one_head(*shape: int) -> Any:
    return mirage.spec(shape, "f16")


def traced(
    function: Function, *others: Any, batch: int = 1, shared: int = 1
) -> KernelGraph:
    """With 32 heads of queries, of which some share those of keys and values."""
    queries = one_head(batch, 32, LENGTH, WIDTH)
    keys = one_head(batch, 32 // shared, LENGTH, WIDTH)
    return mirage.kernel(function).trace(queries, keys, keys, *others)


def best(program: KernelGraph) -> Candidate:
    return search(program, H100, k=8, max_kernels=2).candidates[0]


@pytest.fixture(scope="module")
def without() -> float:
    """The estimate of attention without a mask."""
    return best(traced(plain)).cost.microseconds


CASES: dict[str, tuple[KernelGraph, float]] = {
    "causal": (traced(causal), 0.75),
    "grouped heads": (traced(grouped, shared=4), 0.75),
    "window": (traced(window), 0.6),
    "a mask for all heads": (traced(biased, one_head(LENGTH, LENGTH)), 1.6),
    "slopes of f32": (traced(slopes, mirage.spec((32,), "f32")), 1.6),
    "capped": (traced(capped), 1.1),
}
"""Each with how much more than without a mask it may be estimated at."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_attention_is_one_kernel(name: str, without: float) -> None:
    program, most = CASES[name]
    found = best(program)
    assert is_one_kernel(found.mugraph)
    assert found.certificate is not None
    assert found.certificate.ok
    assert found.cost.microseconds <= most * without


def test_sizes_are_for_the_iterations_that_are_left(without: float) -> None:
    """Four batches of causal attention take about as much each as one."""
    for program in (traced(causal, batch=4), traced(grouped, batch=4, shared=4)):
        found = best(program)
        assert is_one_kernel(found.mugraph)
        assert found.cost.microseconds <= 4 * 0.7 * without


def test_batches_are_read_once(without: float) -> None:
    """Keys and values of four batches are more than L2 holds."""
    found = best(traced(plain, batch=4))
    assert found.cost.microseconds <= 4 * 1.05 * without
