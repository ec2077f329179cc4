"""The μGraphs that the paper is known for are what the general search finds best.

Structure is asserted: kernels, loads, accumulators and the stages of operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph, dims_of, partial_dim
from mirage_dsl.search.result import SearchResult, is_one_kernel
from tests.end_to_end.anatomy import Anatomy, only_block
from tests.end_to_end.searching import (
    BY_NAME,
    bound_kernel,
    draw,
    relative_error,
    searched,
)


@functools.cache
def single(name: str) -> SearchResult:
    """What a search for single kernels finds for a workload at its published sizes."""
    return bound_kernel(name, small=False).search(effort="quick", max_kernels=1)


def kernels(result: SearchResult) -> list[KernelGraph]:
    """The μGraphs of one generated kernel and nothing else, cheapest first.

    For attention one call of PyTorch's may be estimated to be as fast.
    """
    return [c.mugraph for c in result if is_one_kernel(c.mugraph)]


def best(name: str) -> KernelGraph:
    """The best kernel of a workload."""
    return kernels(single(name))[0]


def found(function: Callable[..., Any], *shapes: tuple[int, ...]) -> KernelGraph:
    """The best μGraph of a function that no file of the package knows."""
    bound = mirage.kernel(function).bind(*(mirage.spec(s) for s in shapes))
    return kernels(bound.search(effort="quick", max_kernels=1))[0]


def assert_norm_after_product(graph: KernelGraph) -> None:
    """One loop makes the product and the squares; the norm divides after it."""
    parts = Anatomy(only_block(graph))
    x, w = (i.name for i in graph.inputs)
    assert parts.looped == {x, w}
    (product,) = parts.applied("matmul")
    assert all(parts.is_loaded(v) for v in product.values)
    assert parts.stage[product.result] == "body"
    sums = {a.result: parts.made_of[a.result] for a in parts.accumulators}
    assert len(sums) == 2
    (products,) = [a for a, made in sums.items() if product.result in made]
    (squares,) = [a for a, made in sums.items() if w not in made]
    assert not parts.applied("div", "body")
    assert not parts.applied("sqrt", "body")
    assert parts.made_from(parts.stored, products, squares)


def test_norm_and_product_divide_after_the_loop() -> None:
    assert_norm_after_product(best("rmsnorm_linear"))
    (quotient,) = Anatomy(only_block(best("rmsnorm_linear"))).applied("div")
    parts = Anatomy(only_block(best("rmsnorm_linear")))
    assert quotient.result == parts.stored
    assert parts.stage[quotient.result] == "after"


def assert_gated(graph: KernelGraph) -> None:
    """Two products of one tile of x, each with its accumulator; the gate after."""
    parts = Anatomy(only_block(graph))
    assert len(parts.loaded) == len(parts.looped) == 3
    products = parts.applied("matmul", "body")
    assert len(products) == len(parts.applied("matmul")) == 2
    sums = parts.accumulators
    assert len(sums) == 2
    assert {a.operand for a in sums} == {p.result for p in products}
    assert parts.made_from(parts.stored, *(a.result for a in sums))
    assert parts.stage[parts.stored] == "after"


def test_gated_layer_has_two_accumulators() -> None:
    assert_gated(best("gated_mlp"))
    assert Anatomy(only_block(best("gated_mlp"))).applied("silu", "after")


def test_low_rank_update_in_one_kernel() -> None:
    graph = best("lora")
    parts = Anatomy(only_block(graph))
    x, w, a, b = (i.name for i in graph.inputs)
    assert set(parts.loaded) == {x, w, a, b}
    assert b not in parts.looped
    assert len(parts.applied("matmul")) == 3
    wide, narrow = sorted(
        parts.accumulators, key=lambda s: parts.made_from(s.result, a)
    )
    assert parts.made_from(wide.result, x, w)
    assert parts.made_from(narrow.result, x, a)
    assert parts.made_from(parts.stored, wide.result, narrow.result, b)


def test_low_rank_update_of_a_short_sum_in_one_kernel() -> None:
    graph = best("lora_small")
    parts = Anatomy(only_block(graph))
    inputs = [i.name for i in graph.inputs]
    assert set(parts.loaded) == set(inputs)
    assert parts.made_from(parts.stored, *inputs)


def assert_attention(graph: KernelGraph, *, bounded: bool = False) -> Anatomy:
    """One pass over keys and values; numerator and denominator are accumulated.

    Args:
        graph: Of one kernel.
        bounded: The exponents are proven to be in range, so no maximum is needed.
    """
    parts = Anatomy(only_block(graph))
    q, k, v = (i.name for i in graph.inputs)
    keys = {d.name for d in graph.inputs[2].type.axes[-2]}
    assert parts.block.loop is not None
    assert {parts.block.loop.dim} == keys
    assert parts.looped == {k, v}
    (exponential,) = parts.applied("exp", "body")
    assert len(parts.applied("matmul", "body")) == 2
    assert not parts.applied("div", "body") or parts.applied("sqrt")
    below, above = sorted(
        parts.accumulators, key=lambda a: parts.made_from(a.result, v)
    )
    for sums in (below, above):
        assert parts.made_from(sums.result, exponential.result, q, k)
    assert not parts.made_from(below.result, v)
    assert parts.made_from(above.result, v)
    assert parts.made_from(parts.stored, above.result, below.result)
    assert parts.stage[parts.stored] == "after"
    if bounded:
        assert not parts.running
        assert below.rescale is above.rescale is None
    else:
        # In range for all inputs: relative to a maximum that both accumulators follow.
        (largest,) = parts.running
        assert below.rescale == above.rescale == largest.result
    return parts


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gqa", "mha", "mqa", "decode_attention"])
def test_attention_in_one_kernel(name: str) -> None:
    parts = assert_attention(best(name))
    (quotient,) = parts.applied("div")
    assert quotient.result == parts.stored


@pytest.mark.sample(0)
def test_norms_of_queries_and_keys_fuse_with_attention() -> None:
    found = kernels(single("qknorm"))
    assert found
    assert_attention(found[0], bounded=True)
    for mugraph in found:
        # Others may have a maximum that they do not need.
        running = Anatomy(only_block(mugraph)).running
        parts = assert_attention(mugraph, bounded=not running)
        roots = {parts.stage[n.result] for n in parts.applied("sqrt")}
        # That of the queries once for a block, those of the keys tile by tile.
        assert roots == {"before", "body"}


@pytest.mark.sample(0)
@pytest.mark.parametrize(("name", "stored"), [("gqa", 3), ("qknorm", 2)])
def test_keys_split_between_blocks_where_one_kernel_leaves_the_gpu_idle(
    name: str, stored: int
) -> None:
    graph = searched(name, small=False).mugraph
    keys = graph.inputs[2].type.axes[-2][0].name
    first, second = graph.blocks
    assert len(graph.nodes) == 2
    assert first.grid_split(keys) is not None
    # Numerators and denominators of each part, joined by the second kernel; and maxima,
    # unless exponents of normalised rows are proven to be in range.
    assert len(first.stores) == stored
    for store in first.stores:
        assert partial_dim(keys) in {d.name for d in dims_of(store.axes)}
    assert set(second.sources) == set(first.results)
    assert Anatomy(second).applied("div")


def test_normalised_step_in_one_kernel() -> None:
    graph = best("ntrans")
    parts = Anatomy(only_block(graph))
    assert set(parts.loaded) == {i.name for i in graph.inputs}
    inner, outer = parts.applied("sqrt")
    assert parts.made_from(outer.result, inner.result)
    assert parts.made_from(parts.stored, outer.result)


def test_the_norm_written_out_is_the_same_kernel() -> None:
    def function(x: Any, w: Any) -> Any:
        return (x * mirage.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)) @ w

    assert_norm_after_product(found(function, (4, 2048), (2048, 3072)))


def test_the_gate_written_out_is_the_same_kernel() -> None:
    def function(x: Any, up: Any, gate: Any) -> Any:
        return mirage.gelu(x @ gate) * (x @ up)

    assert_gated(found(function, (16, 2048), (2048, 3072), (2048, 3072)))


def test_attention_by_exponentials_is_the_same_kernel() -> None:
    def function(q: Any, k: Any, v: Any) -> Any:
        e = mirage.exp(q @ k.transpose(0, 2, 1))
        return (e / e.sum(-1, keepdims=True)) @ v

    shapes = ((2, 256, 64), (2, 4096, 64), (2, 4096, 64))
    bound = mirage.kernel(function).bind(*(mirage.spec(s) for s in shapes))
    candidates = bound.search(effort="quick", max_kernels=1)
    assert_attention(kernels(candidates)[0])


def test_names_do_not_matter() -> None:
    function, shapes = BY_NAME["gated_mlp"].function, BY_NAME["gated_mlp"].full

    def other(p: Any, q: Any, r: Any) -> Any:
        return function(mirage, p, q, r)

    assert canonical_hash(found(other, *shapes.values())) == canonical_hash(
        best("gated_mlp")
    )


@pytest.mark.sample(0)
@pytest.mark.parametrize("sizes", [(5, 70, 100, 36, 24), (1, 56, 56, 8, 8)])
def test_projections_share_the_norm_and_the_grid(sizes: tuple[int, ...]) -> None:
    """q, k and v in one kernel, though no dim of the columns is in all of them."""

    def qkv(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        n = mirage.rms_norm(x)
        return n @ wq, n @ wk, n @ wv

    rows, hidden, *widths = sizes
    shapes = {"x": (rows, hidden)} | {
        f"w{n}": (hidden, w) for n, w in enumerate(widths)
    }
    bound = mirage.kernel(qkv).bind(*(mirage.spec(s) for s in shapes.values()))
    result = bound.search(effort="quick")
    single = next(c.mugraph for c in result if len(c.mugraph.blocks) == 1)
    block = only_block(single)
    assert [len(axis) for axis in block.axes if len(axis) > 1] == [3]
    x, *weights = draw(shapes, 7)
    normed = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
    tensors = [torch.from_numpy(a).half() for a in (x, *weights)]
    for candidate in result:
        outputs = TritonExecutable(candidate.mugraph, interpret=True)(*tensors)
        for found, w in zip(outputs, weights, strict=True):
            assert relative_error(found, normed @ w) < 4e-3
