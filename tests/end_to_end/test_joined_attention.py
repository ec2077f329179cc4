"""Attention on concatenated tensors becomes one or two kernels that copy nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import Apply
from mirage_dsl.search.driver import search

torch = pytest.importorskip("torch")

B, H, S, M, T, D = 2, 3, 491, 30, 5, 32
SMALLEST = float(torch.finfo(torch.float16).smallest_normal)
CACHE = [(B, M, D), (B, S, D), (B, S, D)]


def with_sinks(q: Any, k: Any, v: Any, sinks: Any) -> Any:
    """A logit more for each head, which takes a share of the weights (GPT-OSS)."""
    logits = q @ k.transpose(2, 3) * 0.125
    sinks = sinks.reshape(1, -1, 1, 1).expand(B, -1, M, 1)
    logits = torch.cat([logits, sinks], -1)
    logits = logits - logits.max(dim=-1, keepdim=True).values
    return torch.softmax(logits, -1)[..., :-1] @ v


def with_a_mask(q: Any, k: Any, v: Any, mask: Any, sinks: Any) -> Any:
    logits = torch.cat([q @ k.transpose(1, 2) + mask, sinks], -1)
    return torch.softmax(logits, -1)[..., :-1] @ v


def of_grouped_heads(q: Any, k: Any, v: Any, mask: Any, sinks: Any) -> Any:
    """Some query heads for each key head, tokens first, as a model has them."""
    tokens, heads, group, _ = q.shape
    k, v = (x[:, :, None].expand(-1, -1, group, -1) for x in (k, v))
    logits = torch.einsum("qhmd,khmd->hmqk", q, k) * 0.125 + mask[None, None]
    sinks = sinks.reshape(heads, group, 1, 1).expand(-1, -1, tokens, -1)
    weights = torch.softmax(torch.cat([logits, sinks], -1), -1)[..., :-1]
    return torch.einsum("hmqk,khmd->qhmd", weights, v).reshape(tokens, -1)


def with_sinks_by_hand(q: Any, k: Any, v: Any, sinks: Any) -> Any:
    logits = q @ k.transpose(1, 2)
    top = torch.maximum(logits.amax(-1, keepdim=True), sinks)
    e = torch.exp(logits - top)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(sinks - top))


def on_more_keys(q: Any, k: Any, v: Any, k1: Any, v1: Any) -> Any:
    keys, values = torch.cat([k, k1], 1), torch.cat([v, v1], 1)
    return torch.softmax(q @ keys.transpose(1, 2), -1) @ values


def on_parts(q: Any, k: Any, v: Any, k1: Any, v1: Any, sinks: Any) -> Any:
    logits = [q @ k.transpose(1, 2), q @ k1.transpose(1, 2), sinks]
    weights = torch.softmax(torch.cat(logits, -1), -1)
    return weights[..., :S] @ v + weights[..., S:-1] @ v1


CASES: list[tuple[Callable[..., Any], list[tuple[int, ...]]]] = [
    (with_sinks, [(B, H, M, D), (B, H, S, D), (B, H, S, D), (H,)]),
    (with_a_mask, [*CACHE, (M, S), (B, M, 1)]),
    (of_grouped_heads, [(4, 2, 4, 16), (67, 2, 16), (67, 2, 16), (4, 67), (8,)]),
    (with_sinks_by_hand, [*CACHE, (B, M, 1)]),
    (on_more_keys, [*CACHE, (B, T, D), (B, T, D)]),
    (on_parts, [*CACHE, (B, T, D), (B, T, D), (B, M, 1)]),
]


def drawn(shapes: Sequence[tuple[int, ...]], largest: float) -> list[Any]:
    """Random tensors; the last one's elements are so large, and of one sign.

    The exponentials of 40 and more would be infinite, those of -200 zero.
    """
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator) for s in shapes]
    tensors[-1] = tensors[-1].abs() * largest
    return [t.half() for t in tensors]


def causal(rows: int, keys: int) -> Any:
    """The mask of rows that see ever more keys, the first of them none."""
    seen = torch.arange(rows)[:, None] * (keys // rows) > torch.arange(keys)[None]
    mask = torch.zeros(rows, keys, dtype=torch.float16)
    return mask.masked_fill(~seen, float("-inf"))


@pytest.mark.sample(0)
@pytest.mark.parametrize(("function", "shapes"), CASES)
def test_nothing_is_copied(
    function: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    from mirage_dsl.backends.triton.running.launch import TritonExecutable

    program = mirage.kernel(function).trace(*map(mirage.spec, shapes))
    best = search(program, H100, k=1, max_kernels=None).best
    assert best.certificate is not None
    assert best.certificate.ok
    graph = best.mugraph
    assert not [n for n in graph.nodes if isinstance(n, Apply) and not n.is_view]
    assert len(graph.blocks) <= 2
    for largest in (1.0, 40.0, -200.0):
        tensors = drawn(shapes, largest)
        if function in (with_a_mask, of_grouped_heads):
            tensors[3] = causal(*shapes[3])
        exact = function(*(t.double() for t in tensors)).numpy()
        (found,) = TritonExecutable(graph, interpret=True)(*tensors)
        allowed = 2e-3 * np.abs(exact).max() + SMALLEST
        np.testing.assert_allclose(found.double().numpy(), exact, rtol=0, atol=allowed)
