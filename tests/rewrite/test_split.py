"""Loops split over the grid or left out: the kernels, what they compute, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import f16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import (
    Accumulate,
    BlockGraph,
    KernelGraph,
    Load,
    RunningMax,
    Split,
)
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.loops import split_loop, without_loop
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.verify.verifier import verify
from tests.programs import mugraphs
from tests.rewrite.test_shared_shifts import in_a_loop, program
from tests.verify import graphs


def split(graph: KernelGraph, count: int = 4) -> KernelGraph:
    """The split form of a graph whose only block is its first node."""
    found = split_loop(graph, 0, count=count)
    assert found is not None
    return found


def stores(block: BlockGraph) -> set[str]:
    return {", ".join(str(a[0]) for a in s.axes) for s in block.stores}


PAIRS: dict[str, tuple[graphs.Maker, graphs.Maker]] = {
    "rms_linear": (graphs.rms_linear, graphs.rms_linear_fused),
    "gated_mlp": (graphs.gated_mlp, graphs.gated_mlp_fused),
    "lora": (graphs.lora, graphs.lora_fused),
    "attention": (graphs.attention, graphs.attention_online),
    "qknorm": (graphs.qknorm, graphs.qknorm_fused),
    "masked": (graphs.masked_attention, graphs.masked_attention_online),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PAIRS)
def test_split_forms_are_verified(name: str) -> None:
    program, fused = (make() for make in PAIRS[name])
    graph = split(fused)
    assert not check(graph)
    assert parse(str(graph)) == graph
    found = verify(graph, program)
    assert found.ok, found.reason


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PAIRS)
def test_blocks_without_their_loops_are_verified(name: str) -> None:
    program, fused = (make() for make in PAIRS[name])
    (block,) = fused.blocks
    whole = without_loop(block)
    assert whole is not None
    assert without_loop(whole) is None
    kinds = (Accumulate, RunningMax)
    assert any(isinstance(n, kinds) for n in block.nodes)
    assert not any(isinstance(n, kinds) for n in whole.nodes)
    graph = replace(fused, nodes=(whole,))
    assert not check(graph)
    assert parse(str(graph)) == graph
    found = verify(graph, program)
    assert found.ok, found.reason


def test_joined_pieces_are_one_without_a_loop() -> None:
    graph = parse(
        """mirage 1

mugraph scan(x: f32[m, k]) -> f32[m, k] where m = 4, k = 64 {
  y = block grid(m / 2) loop(k / 16) {
    t = load x[m/grid, k/loop]
    c = cumsum t along(k)
    a = accumulate c concat
    store y[m/grid, k] = a
  }
  return y
}
"""
    )
    whole = without_loop(graph.blocks[0])
    assert whole is not None
    made = replace(graph, nodes=(whole,))
    assert not check(made)
    assert verify(made, graph).ok


def test_what_each_iteration_adds_of_its_own_needs_the_loop() -> None:
    graph = parse(
        """mirage 1

mugraph f(x: f32[m, k], y: f32[m]) -> f32[m] where m = 4, k = 64 {
  z = block loop(k / 16) {
    t = load x[m, k/loop]
    u = load y[m]
    s = sum t over(k)
    a = accumulate s
    b = accumulate u
    c = add a, b
    store z[m] = c
  }
  return z
}
"""
    )
    assert without_loop(graph.blocks[0]) is None


def test_one_kernel_becomes_two() -> None:
    graph = split(graphs.gated_mlp_fused(), count=8)
    first, second = graph.blocks
    whole = graphs.gated_mlp_fused().blocks[0]
    assert whole.loop is not None
    assert first.loop == whole.loop
    assert first.grid == (*whole.grid, Split("k", 4096 // 8))
    assert second.grid == whole.grid
    assert second.loop is None
    assert stores(first) == {"k#/grid, m, n/grid"}
    assert graph.extent_of["k#"] == 8
    assert second.results == whole.results


def test_whole_tiles_go_to_each_part() -> None:
    graph = split(mugraphs.gated_mlp(8, 200, 64, tile_k=32), count=3)
    assert graph.blocks[0].grid[-1] == Split("k", 96)
    assert graph.extent_of["k#"] == 3


def test_what_is_summed_after_the_loop_is_summed_before_it_is_stored() -> None:
    first, second = split(graphs.rms_linear_fused()).blocks
    # All blocks along n have the same sum of squares, each stores its own.
    assert stores(first) == {"k#/grid, n#/grid, m", "k#/grid, m, n/grid"}
    loaded = {str(d) for n in second.loads for (d,) in n.axes}
    assert loaded == {"k#", "n#", "m", "n/grid"}


def test_what_only_the_end_needs_is_loaded_there() -> None:
    first, second = split(mugraphs.lora(1, 64, 64, tile_k=8)).blocks
    assert "b" not in first.sources
    assert "b" in second.sources
    assert "x" not in second.sources


def test_each_part_stores_its_last_maximum() -> None:
    first, second = split(graphs.attention_online()).blocks
    last = [n for n in first.nodes if isinstance(n, Accumulate) and n.kind == "max"]
    assert len(last) == 1
    assert "t#/grid, h/grid, s/grid" in stores(first)
    assert [n.op.name for n in second.nodes if hasattr(n, "op")].count("exp") == 1


def test_split_then_stabilised_is_right_too() -> None:
    graph = stabilise(split(graphs.attention_loop()))
    assert graph is not None
    found = verify(graph, graphs.attention())
    assert found.ok, found.reason


def test_a_shift_for_several_exponentials_is_that_of_all_parts() -> None:
    graph = stabilise(in_a_loop())
    assert graph is not None
    found = verify(split(graph), program())
    assert found.ok, found.reason


def same(a: KernelGraph, b: KernelGraph, *arrays: np.ndarray[Any, Any]) -> None:
    """Both graphs give the same in float64."""
    for x, y in zip(
        evaluate_numpy(a, *arrays), evaluate_numpy(b, *arrays), strict=True
    ):
        assert np.array_equal(np.isnan(x), np.isnan(y))
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


def draw(graph: KernelGraph, seed: int = 1) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    shapes = [
        [int(graph.extent_of[d.name] or 1) for d in i.type.dims] for i in graph.inputs
    ]
    return [rng.standard_normal(s) for s in shapes]


@pytest.mark.parametrize("count", [2, 3, 5, 50])
@pytest.mark.parametrize("keys", [35, 64, 77])
def test_ragged_parts(keys: int, count: int) -> None:
    whole = mugraphs.attention(2, 7, keys, 5, tile_m=4, tile_n=8)
    same(whole, split(whole, count), *draw(whole))
    norm = mugraphs.rmsnorm_linear(3, keys, 10, tile_n=4, tile_k=8)
    same(norm, split(norm, count), *draw(norm))


def masked_attention() -> KernelGraph:
    b: Any = KernelBuilder("masked", s=4, t=24, d=3, e=5)
    q, k = b.input("q", f16, "s, d"), b.input("k", f16, "t, d")
    v, mask = b.input("v", f16, "t, e"), b.input("mask", f16, "s, t")
    with b.block(grid={"s": 2}, loop=("t", 4)) as t:
        dot = t.matmul(t.load(q, "s/grid, d"), t.load(k, "t/loop, d"), over="d")
        logits = t.where(t.load(mask, "s/grid, t/loop"), dot, scalar(float("-inf")))
        m = t.running_max(t.rowshift(logits, over="t"))
        p = t.exp(t.sub(logits, m))
        total = t.accumulate(t.sum(p, over="t"), rescale=m)
        vt = t.load(v, "t/loop, e")
        out = t.matmul(t.cast(p, dtype="f16"), vt, over="t")
        out = t.accumulate(out, rescale=m)
        y = t.store(t.div(out, total), "s/grid, e", dtype=f32)
    return b.returns(y).build()


def _masked_inputs() -> list[np.ndarray[Any, Any]]:
    """Logits far below 0, and parts in which a row sees nothing."""
    whole = masked_attention()
    q, k, v, _ = draw(whole)
    mask = np.zeros((4, 24))
    mask[0, :3], mask[1, 9:20], mask[2, 23], mask[3] = 1, 1, 1, 1
    return [q * 0 + 10.0, k * 0.1 - 20.0, v, mask]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_wholly_masked_parts_weigh_nothing(count: int) -> None:
    whole, arrays = masked_attention(), _masked_inputs()
    assert all(np.isfinite(y).all() for y in evaluate_numpy(whole, *arrays))
    same(whole, split(whole, count), *arrays)
    # In f32 a maximum over masked elements would be far too high to serve as a shift.
    found, right = (
        evaluate_numpy(g, *arrays, compute=np.float32)[0]
        for g in (split(whole, count), whole)
    )
    assert np.isfinite(right).all()
    np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)


def test_a_shift_that_blocks_share() -> None:
    b: Any = KernelBuilder("columns", s=6, t=32, e=8)
    x, v = b.input("x", f16, "s, t"), b.input("v", f16, "t, e")
    with b.block(grid={"e": 4}, loop=("t", 4)) as t:
        xt = t.load(x, "s, t/loop")
        m = t.running_max(t.rowshift(xt, over="t"))
        p = t.exp(t.sub(xt, m))
        total = t.accumulate(t.sum(p, over="t"), rescale=m)
        out = t.matmul(t.cast(p, dtype="f16"), t.load(v, "t/loop, e/grid"), over="t")
        y = t.div(t.accumulate(out, rescale=m), total)
        y = t.store(y, "s, e/grid", dtype=f16)
    whole = b.returns(y).build()
    graph = split(whole)
    same(whole, graph, *draw(whole))
    found = verify(graph, whole)
    assert found.ok, found.reason


def test_maxima_over_the_loop() -> None:
    b: Any = KernelBuilder("largest", m=6, k=40)
    x = b.input("x", f16, "m, k")
    with b.block(grid={"m": 2}, loop=("k", 8)) as t:
        top = t.accumulate(t.load(x, "m/grid, k/loop"), "max")
        y = t.store(t.mul(t.max(top, over="k"), 3), "m/grid", dtype=f16)
    whole = b.returns(y).build()
    graph = split(whole, 2)
    assert stores(graph.blocks[0]) == {"k#/grid, m/grid"}
    same(whole, graph, *draw(whole))
    found = verify(graph, whole)
    assert found.ok, found.reason


def test_values_from_before_the_loop_are_made_in_both_kernels() -> None:
    b: Any = KernelBuilder("both", m=6, k=40, n=8)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    bias = b.input("bias", f16, "m")
    with b.block(grid={"n": 4}, loop=("k", 8)) as t:
        shift = t.square(t.load(bias, "m"))
        xt = t.cast(t.add(t.load(x, "m, k/loop"), shift), dtype="f16")
        total = t.accumulate(t.matmul(xt, t.load(w, "k/loop, n/grid"), over="k"))
        y = t.store(t.add(total, shift), "m, n/grid", dtype=f16)
    whole = b.returns(y).build()
    graph = split(whole)
    assert all("bias" in block.sources for block in graph.blocks)
    same(whole, graph, *draw(whole))


def test_other_kernels_stay() -> None:
    b: Any = KernelBuilder("chain", m=6, k=40, n=8)
    x, w = b.input("x", f16, "m, k"), b.input("w", f16, "k, n")
    u = b.square(x)
    with b.block(grid={"n": 4}, loop=("k", 8)) as t:
        ut, wt = t.load(u, "m, k/loop"), t.load(w, "k/loop, n/grid")
        y = t.store(t.accumulate(t.matmul(ut, wt, over="k")), "m, n/grid", dtype=f16)
    whole = b.returns(b.sqrt(b.square(y))).build()
    graph = split_loop(whole, 1)
    assert graph is not None
    assert len(graph.nodes) == 5
    same(whole, graph, *draw(whole))


def _without_a_loop() -> KernelGraph:
    return mugraphs.ntrans(4, 8)


def _already_split() -> KernelGraph:
    return mugraphs.split_k(8, 64, 8, tile_m=4, tile_n=4, part_k=16, tile_k=8)


def _joined() -> KernelGraph:
    b: Any = KernelBuilder("joined", m=6, k=40)
    x = b.input("x", f16, "m, k")
    with b.block(grid={"m": 2}, loop=("k", 8)) as t:
        y = t.accumulate(t.square(t.load(x, "m/grid, k/loop")), "concat")
        y = t.store(y, "m/grid, k", dtype=f16)
    return b.returns(y).build()


def _index_within_a_tile_is_used() -> KernelGraph:
    b: Any = KernelBuilder("within", m=6, k=40)
    x = b.input("x", f16, "m, k")
    with b.block(grid={"m": 2}, loop=("k", 8)) as t:
        total = t.accumulate(t.load(x, "m/grid, k/loop"))
        y = t.store(t.sum(t.square(total), over="k"), "m/grid", dtype=f16)
    return b.returns(y).build()


def _full_grid() -> KernelGraph:
    b: Any = KernelBuilder("full", h=2, m=4, k=40, n=8)
    x, w = b.input("x", f16, "h, m, k"), b.input("w", f16, "h, k, n")
    with b.block(grid={"h": 1, "m": 2, "n": 4}, loop=("k", 8)) as t:
        xt = t.load(x, "h/grid, m/grid, k/loop")
        wt = t.load(w, "h/grid, k/loop, n/grid")
        y = t.accumulate(t.matmul(xt, wt, over="k"))
        y = t.store(y, "h/grid, m/grid, n/grid", dtype=f16)
    return b.returns(y).build()


@pytest.mark.parametrize(
    "make",
    [
        _without_a_loop,
        _already_split,
        _joined,
        _index_within_a_tile_is_used,
        _full_grid,
    ],
)
def test_what_cannot_be_split(make: graphs.Maker) -> None:
    assert split_loop(make(), 0) is None


def test_a_library_kernel_cannot_be_split() -> None:
    assert split_loop(graphs.rms_linear(), 0) is None


def test_loops_follow_the_grid() -> None:
    first = split(graphs.qknorm_fused()).blocks[0]
    assert first.loop is not None
    looped = [
        d
        for n in first.nodes
        if isinstance(n, Load)
        for axis in n.axes
        for d in axis
        if d.name == first.loop.dim
    ]
    assert looped
    assert all(d.grid and d.loop for d in looped)
