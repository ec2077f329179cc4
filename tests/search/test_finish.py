"""What is decided after the search: orders of statements and blocks, launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.hardware import A100, H100
from mirage_dsl.core.types import f16, f32
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.facts import BlockFacts, Stage, facts_of
from mirage_dsl.cost.footprint import footprint_of, resources
from mirage_dsl.cost.order import (
    exchanges,
    in_good_order,
    late_loads,
    synchronisations,
)
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.search.driver import finished
from mirage_dsl.search.result import Candidate, SearchResult
from tests.programs import mugraphs
from tests.search import blocks


def facts(graph: KernelGraph, number: int = 0) -> BlockFacts:
    extents = derived_extents(graph, graph.extent_of)
    return facts_of(graph.blocks[number], kernel_types(graph), extents)


def waits(graph: KernelGraph) -> dict[Stage, int]:
    own = footprint_of(facts(graph), H100).facts
    return synchronisations(own.flow, own.flow.steps, exchanges(own))


def late(graph: KernelGraph) -> int:
    own = footprint_of(facts(graph), H100).facts
    return late_loads(own.flow.steps, exchanges(own))


def registers(graph: KernelGraph) -> float:
    return float(resources(footprint_of(facts(graph), H100)).registers[0])


def two_sums() -> KernelGraph:
    """Two sums of rows, one after the other, each used at once."""
    g = KernelBuilder("sums", m=8, n=256)
    x, y = g.input("x", f32, "m, n"), g.input("y", f32, "m, n")
    with g.block(grid={"m": 1}, schedule=Schedule(4, 1)) as b:
        first = b.load(x, "m/grid, n")
        left = b.div(first, b.sum(first, over="n"))
        second = b.load(y, "m/grid, n")
        right = b.div(second, b.sum(second, over="n"))
        out = b.store(b.add(left, right), "m/grid, n", dtype=f32, name="out")
    return g.returns(out).build()


def test_independent_sums_share_a_synchronisation() -> None:
    graph = two_sums()
    ordered = in_good_order(graph, H100)
    assert waits(graph) == {"before": 2, "body": 0, "after": 0}
    assert waits(ordered) == {"before": 1, "body": 0, "after": 0}
    check_or_raise(ordered)
    assert canonical_hash(ordered) == canonical_hash(graph)
    assert in_good_order(ordered, H100) == ordered


def test_loads_set_out_before_threads_wait_for_each_other() -> None:
    g = KernelBuilder("norm", k=4096, n=6144)
    x, w = g.input("x", f16, "1, k"), g.input("w", f16, "n, k")
    with g.block(grid={"n": 4}, schedule=Schedule(8, 2)) as b:
        row = b.load(x, "1, k")
        squares = b.sum(b.square(row), over="k")
        product = b.matmul(b.load(w, "n/grid, k"), row, over="k")
        out = b.store(b.div(product, b.sqrt(squares)), "1, n/grid", name="y")
    graph = g.returns(out).build()
    assert late(graph) == 1
    ordered = in_good_order(graph, H100)
    assert late(ordered) == 0
    assert canonical_hash(ordered) == canonical_hash(graph)


def test_sums_that_need_each_other_do_not() -> None:
    graph = mugraphs.ntrans(8, 4096)
    assert sum(waits(graph).values()) == 2
    assert in_good_order(graph, H100) == graph


def test_tiles_are_made_when_they_are_needed() -> None:
    """Of two chains that end in a sum of rows, one after the other needs less."""
    g = KernelBuilder("chains", m=64, n=4096)
    tensors = [g.input(name, f32, "m, n") for name in "xyz"]
    with g.block(grid={"m": 1}, schedule=Schedule(4, 1)) as b:
        made = [b.exp(b.load(t, "m/grid, n")) for t in tensors]
        total = b.add(b.add(made[0], made[1]), made[2])
        out = b.store(total, "m/grid, n", dtype=f32, name="out")
    graph = g.returns(out).build()
    assert registers(in_good_order(graph, H100)) < registers(graph)


@pytest.mark.parametrize(
    ("batches", "causal", "order"),
    [
        # L2 holds what all blocks read.
        (1, False, "bhn"),
        (1, True, "bhn"),
        # The blocks of one head together, though each reads its part of a small mask.
        (4, False, "nbh"),
        # The long blocks of all heads of a batch, then the shorter ones.
        (4, True, "hnb"),
    ],
)
def test_blocks_that_read_the_same_run_together(
    batches: int, causal: bool, order: str
) -> None:
    graph = mugraphs.masked_attention(batches, "causal" if causal else "each pair")
    large = replace(H100, l2_bytes=70_000_000)
    ordered = in_good_order(graph, large)
    assert "".join(s.dim for s in ordered.blocks[0].grid) == order
    assert in_good_order(ordered, large) == ordered
    check_or_raise(ordered)


def test_what_runs_together_is_read_once() -> None:
    """From DRAM; blocks in the order of batches would read it once for each wave."""
    once = 4 * 32 * 2048 * 128 * 2
    for mask in ("each pair", "causal"):
        (cost,) = estimate(mugraphs.masked_attention(4, mask), H100).kernels
        assert cost.dram_bytes < 4.5 * once


def result_of(graph: KernelGraph) -> SearchResult:
    candidate = Candidate(graph, estimate(graph, H100), None)
    return SearchResult(graph, (candidate,), complete=True, seconds=0.0)


def test_later_kernels_start_early_where_the_gpu_can() -> None:
    graph = blocks.split_attention(1, 16)
    early = finished(result_of(graph), H100).best
    assert [b.schedule.pdl for b in early.mugraph.blocks] == [False, True]
    assert early.cost.microseconds < estimate(graph, H100).microseconds
    as_it_was = finished(result_of(graph), A100).best
    assert not any(b.schedule.pdl for b in as_it_was.mugraph.blocks)
