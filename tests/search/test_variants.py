"""Other sizes of a μGraph."""

from __future__ import annotations

import pytest

from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.variants import variants
from tests.search import blocks


@pytest.mark.parametrize(
    "graph",
    [blocks.rms_linear(8), blocks.split_attention(8, 4), blocks.ntrans(1)],
    ids=["rms_linear", "split_attention", "ntrans"],
)
def test_variants_are_the_same_structure(graph: KernelGraph) -> None:
    found = variants(graph, count=8)
    assert 1 < len(found) <= 8
    graphs = [g for g, _ in found]
    assert graph in graphs
    assert len(set(graphs)) == len(graphs)
    times = [c.microseconds for g, c in found if g != graph]
    assert times == sorted(times)
    own = canonical_hash(graph, sizes=False)
    for variant, cost in found:
        assert cost.feasible
        assert check(variant) == []
        assert canonical_hash(variant, sizes=False) == own


def test_schedules_vary_for_the_best_tiles() -> None:
    found = variants(blocks.rms_linear(8), count=8)
    tiles = {(b.grid, b.loop) for g, _ in found for b in g.blocks}
    schedules = {b.schedule for g, _ in found for b in g.blocks}
    assert 1 < len(tiles) < len(schedules)


def test_restrictions_hold() -> None:
    limits = Constraints(griddims=((96, 1, 1),))
    for graph, _ in variants(blocks.rms_linear(8), constraints=limits):
        assert limits.admits(graph)
