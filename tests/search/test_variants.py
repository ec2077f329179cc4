"""Other sizes of a μGraph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph, Split
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.search.variants import (
    costliest,
    neighbours,
    proposals,
    unlooped,
    with_others_of,
)
from mirage_dsl.verify.verifier import verify
from tests.programs import mugraphs
from tests.search import blocks


@pytest.mark.parametrize(
    "graph",
    [
        blocks.rms_linear(8),
        blocks.split_attention(8, 4),
        blocks.ntrans(1),
        blocks.halves(),
    ],
    ids=["rms_linear", "split_attention", "ntrans", "halves"],
)
def test_proposals_are_the_same_structure(graph: KernelGraph) -> None:
    found = proposals(graph, count=8, hardware=H100)
    graphs = [g for g, _ in found]
    assert launched_early(graph) in graphs
    assert len(set(graphs)) == len(graphs)
    own = canonical_hash(graph, sizes=False)
    for proposal, cost in found:
        assert cost.feasible
        assert check(proposal) == []
        assert canonical_hash(proposal, sizes=False) == own


def test_restrictions_hold() -> None:
    limits = Constraints(griddims=((96, 1, 1),))
    for graph, _ in proposals(blocks.rms_linear(8), constraints=limits, hardware=H100):
        assert limits.admits(graph)


def test_proposals_differ_most_where_most_of_the_time_goes() -> None:
    """Two kernels: the first computes, the second joins its parts."""
    graph = mugraphs.attention(32, 256, 4096, tile_n=128, splits=2)
    found = [g for g, _ in proposals(graph, count=8, hardware=H100)]
    first, second = ({g.blocks[at].grid for g in found} for at in (0, 1))
    assert len(first) >= 5
    assert len(second) <= 3
    assert graph.blocks[0].grid in first


def test_proposals_have_the_tiles_that_are_fast_for_attention() -> None:
    """Two blocks of 64 queries on each multiprocessor, 128 keys at a time."""
    graph = mugraphs.attention(32, 256, 4096, tile_m=128, splits=4)
    tiles = {
        (*(s.tile for s in b.grid), b.loop and b.loop.tile)
        for g, _ in proposals(graph, count=8, hardware=H100)
        for b in g.blocks[:1]
    }
    assert (1, 64, 2048, 128) in tiles


def test_hopeless_grids_are_not_proposed_for_being_different() -> None:
    graph = mugraphs.attention(32, 256, 4096, tile_n=128, splits=2)
    found = proposals(graph, count=8, hardware=H100)
    best = min(cost.microseconds for _, cost in found)
    assert all(cost.microseconds < 1.4 * best for _, cost in found)


def test_neighbours_change_tiles_and_warps_at_once() -> None:
    graph = mugraphs.attention(32, 256, 4096, tile_m=128, tile_n=128, splits=4)
    (block, *_), warps = graph.blocks, graph.blocks[0].schedule.num_warps
    beside = [g.blocks[0] for g, _ in neighbours(graph, hardware=H100.screened())]
    assert block.loop is not None
    changed = [b.loop for b in beside if b.schedule.num_warps == 2 * warps]
    assert Split(block.loop.dim, 2 * block.loop.tile) in changed
    assert any(
        b.schedule.num_warps == 2 * warps and b.grid != block.grid for b in beside
    )


def _with_loop_tile(graph: KernelGraph, tile: int) -> KernelGraph:
    (block,) = graph.blocks
    assert block.loop is not None
    loop = replace(block.loop, tile=tile)
    return replace(graph, nodes=(replace(block, loop=loop),))


def test_beside_two_iterations_is_no_loop() -> None:
    graph = mugraphs.rmsnorm_linear(1, 256, 512)
    (block,) = graph.blocks
    assert block.loop is not None
    extent = graph.extent_of[block.loop.dim]
    assert extent is not None
    for tile in (extent // 4, extent // 2):
        beside = neighbours(_with_loop_tile(graph, tile), hardware=H100)
        whole = [(g, cost) for g, cost in beside if g.blocks[0].loop is None]
        assert bool(whole) is (2 * tile == extent)
        for other, cost in whole:
            assert check(other) == []
            assert cost.microseconds == estimate(other, H100).microseconds
            assert verify(other, graph).ok


def test_without_the_costliest_loop() -> None:
    """The first kernel has it; what joins its parts stays as it is."""
    graph = mugraphs.attention(32, 256, 4096, tile_n=64, splits=8)
    found = unlooped(graph, hardware=H100)
    assert found is not None
    assert [b.loop for b in found.blocks] == [None, None]
    assert found.blocks[1] == graph.blocks[1]
    assert verify(found, graph).ok
    assert unlooped(found, hardware=H100) is None


def test_restrictions_hold_without_a_loop() -> None:
    graph = mugraphs.rmsnorm_linear(1, 256, 512)
    limits = Constraints(franges=(4,))
    assert unlooped(graph, hardware=H100) is not None
    assert unlooped(graph, constraints=limits, hardware=H100) is None


@pytest.mark.parametrize("early", [False, True])
def test_neighbours_cost_what_they_are_estimated_at(early: bool) -> None:
    graph = mugraphs.attention(32, 256, 4096, tile_m=128, splits=4)
    if early:
        graph = launched_early(graph)
    found = neighbours(graph, hardware=H100)
    assert {n for g, _ in found for n, b in enumerate(g.nodes) if b != graph.nodes[n]}
    assert [c.microseconds for _, c in found] == pytest.approx(
        [estimate(g, H100).microseconds for g, _ in found]
    )


def test_sizes_of_other_kernels_are_taken_over() -> None:
    """The costliest kernel stays, and what joins its parts is as in the other."""
    one = mugraphs.attention(32, 256, 4096, tile_m=64, splits=4)
    other = mugraphs.attention(32, 256, 4096, tile_m=128, splits=2)
    at = costliest(one, H100)
    assert at == 0
    last = other.nodes[1]
    other = replace(
        other,
        nodes=(
            other.nodes[0],
            replace(last, schedule=replace(last.schedule, num_warps=2)),
        ),
    )
    found = with_others_of(one, other, at, H100)
    assert found.nodes == (one.nodes[0], other.nodes[1])
    assert check(found) == []
    assert found.blocks[1].schedule.num_warps == 2
    another = blocks.rms_linear(8)
    assert with_others_of(one, another, at, H100) == one


def test_estimates_of_registers_are_left_to_the_compiler() -> None:
    """Tiles that an estimate alone must not choose, but that are timed."""
    tight = mugraphs.attention(32, 256, 4096, tile_m=128, tile_n=128, splits=4)
    cost = estimate(tight, H100)
    assert not cost.feasible
    assert "registers a thread" in (cost.kernels[0].limit or "")
    assert estimate(tight, H100.screened()).feasible
