"""Other sizes of a μGraph."""

from __future__ import annotations

import pytest

from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.variants import launched_early, proposals
from mirage_dsl.testing import mugraphs
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
    found = proposals(graph, count=8)
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
    for graph, _ in proposals(blocks.rms_linear(8), constraints=limits):
        assert limits.admits(graph)


def test_proposals_differ_most_where_most_of_the_time_goes() -> None:
    """Two kernels: the first computes, the second joins its parts."""
    graph = mugraphs.attention(32, 256, 4096, tile_n=128, splits=2)
    found = [g for g, _ in proposals(graph, count=8)]
    first, second = ({g.blocks[at].grid for g in found} for at in (0, 1))
    assert len(first) >= 5
    assert len(second) <= 3
    assert graph.blocks[0].grid in first


def test_proposals_have_the_tiles_that_are_fast_for_attention() -> None:
    """Two blocks of 64 queries on each multiprocessor, 128 keys at a time."""
    graph = mugraphs.attention(32, 256, 4096, tile_m=128, splits=4)
    tiles = {
        (*(s.tile for s in b.grid), b.loop and b.loop.tile)
        for g, _ in proposals(graph, count=8)
        for b in g.blocks[:1]
    }
    assert (1, 64, 2048, 128) in tiles
