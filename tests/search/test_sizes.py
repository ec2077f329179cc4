"""Tiles and schedules: they fit, and the best ones are those measured best."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import block_cost, estimate
from mirage_dsl.cost.facts import facts_as_searched, facts_of
from mirage_dsl.cost.footprint import footprint_of
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, iterations
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.sizes import (
    Allowed,
    Sized,
    UnsizedBlock,
    choose_sizes,
    sizes_of_all,
)
from mirage_dsl.tile.program import SMALLEST_DOT
from tests.pace import Stopwatch
from tests.search import blocks

GRAPHS = {
    "rms_linear": blocks.rms_linear(8),
    "rms_linear odd": blocks.rms_linear(8).with_extents({"k": 4099, "n": 77, "m": 3}),
    "rms_linear 18944": blocks.rms_linear(1).with_extents({"k": 18944, "n": 3584}),
    "gated_mlp": blocks.gated_mlp(8),
    "lora": blocks.lora(8),
    "attention": blocks.attention(1),
    "split attention": blocks.split_attention(1, 16),
    "ntrans": blocks.ntrans(8),
}


def chosen(
    graph: KernelGraph, allowed: Allowed | None = None, keep: int = 4
) -> list[Sized]:
    return choose_sizes(
        graph.blocks[0],
        kernel_types(graph),
        graph.extent_of,
        keep=keep,
        allowed=allowed or Allowed(),
        hardware=H100,
    )


def with_block(graph: KernelGraph, sized: Sized) -> KernelGraph:
    first = graph.blocks[0]
    nodes = tuple(sized.block if n is first else n for n in graph.nodes)
    changed = replace(graph, nodes=nodes)
    return changed.with_extents(derived_extents(changed, changed.extent_of))


@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_fit_and_are_well_formed(name: str) -> None:
    graph = GRAPHS[name]
    found = chosen(graph)
    assert found
    for sized in found:
        whole = with_block(graph, sized)
        assert check(whole) == []
        cost = estimate(whole, H100).kernels[0]
        assert cost.limit is None
        assert cost.microseconds == pytest.approx(sized.microseconds)
        splits = [*sized.block.grid, *([sized.block.loop] if sized.block.loop else [])]
        for split in splits:
            assert split.tile & (split.tile - 1) == 0


@pytest.mark.parametrize("name", GRAPHS)
def test_best_first_and_no_tiles_twice(name: str) -> None:
    found = chosen(GRAPHS[name], keep=8)
    times = [s.microseconds for s in found]
    assert times == sorted(times)
    tiles = [(s.block.grid, s.block.loop) for s in found]
    assert len(set(tiles)) == len(tiles)


@pytest.mark.parametrize(
    ("graph", "measured"),
    [
        (blocks.rms_linear(8), 19.1),
        (blocks.gated_mlp(8), 24.8),
        (blocks.gated_mlp(16), 26.2),
        (blocks.lora(8), 16.1),
        (blocks.ntrans(8), 2.8),
    ],
)
def test_the_best_is_near_the_best_measured(
    graph: KernelGraph, measured: float
) -> None:
    best = chosen(graph)[0]
    assert 0.75 * measured < best.microseconds < 1.25 * measured


def test_streaming_product_gets_the_measured_best_configuration() -> None:
    block = chosen(blocks.rms_linear(8))[0].block
    assert block.loop is not None
    assert (block.grid[0].tile, block.loop.tile) == (64, 128)
    assert block.schedule.num_warps == 4
    assert block.schedule.num_stages in (5, 6)
    assert block.schedule.swap_operands


def test_wide_products_are_not_transposed() -> None:
    block = chosen(blocks.gated_mlp(16))[0].block
    assert not block.schedule.swap_operands


def test_batch_dims_are_not_tiled() -> None:
    for sized in chosen(blocks.attention(8)):
        split = sized.block.grid_split("z")
        assert split is not None
        assert split.tile == 1


GROUPS = """mirage 1

mugraph groups(x: f16[m, (k n)], q: u8[(k n), d], s: f16[k, d]) -> f32[k#, m, d]
where m = 8, k = 32, n = 128, d = 4096, k# = 8 {
  y = block grid(k / 4, d / 64) loop(k / 1) {
    x_t = load x[m, (k/grid/loop n)]
    q_t = load q[(k/grid/loop n), d/grid]
    s_t = load s[k/grid/loop, d/grid]
    v = to_f32 q_t
    w = cast v dtype(f16)
    p = matmul x_t, w over(n)
    h = cast p dtype(f16)
    r = matmul h, s_t over(k)
    u = accumulate r
    store y[k#/grid, m, d/grid] = u
  }
  return y
}
"""


def test_groups_that_are_looped_over_are_taken_one_by_one() -> None:
    """Each is a batch of the product, many are a block's; scales are no matrix."""
    graph = parse(GROUPS)
    best = chosen(graph)[0]
    tiles = {s.dim: s.tile for s in best.block.grid}
    assert best.block.loop is not None
    assert (best.block.loop.dim, best.block.loop.tile) == ("k", 1)
    assert tiles["k"] >= 4
    assert tiles["d"] >= 64


def test_restrictions_hold() -> None:
    graph = blocks.rms_linear(8)
    allowed = Allowed(
        grids=lambda parts: parts == (96,),
        iterations=frozenset({16, 64}),
        num_warps=frozenset({8}),
    )
    found = chosen(graph, allowed)
    assert found
    for sized in found:
        assert sized.block.grid[0].tile == 64
        extents = {n: e for n, e in graph.extent_of.items() if e is not None}
        assert iterations(sized.block, extents) in (16, 64)
        assert sized.block.schedule.num_warps == 8


VECTOR_BY_PARTS_OF_WORDS = """
mirage 1

mugraph f(x: f16[1, k], w: i32[k, n], s: f16[(n h)]) -> f16[1, (n h)]
where k = 1024, n = 512, h = 8 {
  index1 = index h
  y = block grid(n / 4, h / 4) loop(k / 64) {
    index1_t: i64[h/grid] = load index1
    v1: i64[h/grid] = mul index1_t, 4
    v2: i32[h/grid] = to_i32 v1
    x_t: f16[1, k/loop] = load x
    w_t: i32[k/loop, n/grid] = load w
    v3: i32[k/loop, n/grid, h/grid] = shift_right w_t, v2
    v4: i32[k/loop, n/grid, h/grid] = bit_and v3, 15
    v5: f32[k/loop, n/grid, h/grid] = to_f32 v4
    v6: f16[k/loop, n/grid, h/grid] = cast v5 dtype(f16)
    v7: f32[n/grid, h/grid] = matmul x_t, v6 over(k)
    v8: f32[n/grid, h/grid] = accumulate v7
    s_t: f16[(n/grid h/grid)] = load s
    v9: f32[n/grid, h/grid] = mul s_t, v8
    store y: f16[1, (n/grid h/grid)] = v9
  }
  return y
}
"""


@pytest.mark.parametrize("tiles", [(1, 8), (2, 4), (4, 4), (8, 2), (8, 4), (16, 1)])
def test_columns_of_several_dims_are_as_many_as_these_together(
    tiles: tuple[int, int],
) -> None:
    """From sixteen on a vector is a row for the matrix unit, whichever dim is long."""
    graph = parse(VECTOR_BY_PARTS_OF_WORDS)
    (block,) = graph.blocks
    grid = tuple(replace(s, tile=t) for s, t in zip(block.grid, tiles, strict=True))
    block = replace(block, grid=grid)
    given = block, kernel_types(graph), graph.extent_of
    searched, built = facts_as_searched(*given).own, facts_of(*given).own
    row = tiles[0] * tiles[1] >= SMALLEST_DOT
    assert [p.is_matrix for p in built.products] == [row]
    assert [p.is_matrix for p in searched.products] == [row]


def test_sizes_of_vectors_are_priced_as_they_are_built() -> None:
    graph = parse(VECTOR_BY_PARTS_OF_WORDS)
    found = chosen(graph, keep=40)
    kinds: set[bool] = set()
    for sized in found:
        facts = facts_of(sized.block, kernel_types(graph), graph.extent_of)
        cost = block_cost(footprint_of(facts, H100), frozenset())
        assert 1e6 * float(cost.seconds[0]) == pytest.approx(sized.microseconds)
        kinds.update(p.is_matrix for p in facts.own.products)
    assert kinds == {True, False}


def test_nothing_fits() -> None:
    graph = blocks.ntrans(1).with_extents({"h": 2**20})
    tally: Counter[str] = Counter()
    block = graph.blocks[0]
    own, types = [UnsizedBlock(block)], kernel_types(graph)
    found = sizes_of_all(own, types, graph.extent_of, tally=tally, hardware=H100)
    assert found == [[]]
    assert tally["registers"] == tally["sizes tried"] > 0


def test_symbolic_extents_are_refused() -> None:
    graph = blocks.rms_linear(8).with_extents({"n": None})
    with pytest.raises(SearchError, match="extents of n are not known"):
        chosen(graph)


def test_a_structure_takes_milliseconds() -> None:
    graph = blocks.split_attention(1, 16)
    chosen(graph)
    watch = Stopwatch()
    for _ in range(10):
        chosen(graph)
    assert watch.seconds / 10 < 0.05
