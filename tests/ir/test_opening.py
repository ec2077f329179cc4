"""Opened μGraphs: symbolic dims, split by the grid wherever blocks treat them alike."""

from __future__ import annotations

import pytest

from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.opening import opened
from mirage_dsl.ir.parser import parse
from mirage_dsl.ir.printer import to_text
from mirage_dsl.verify.verifier import verify

WHOLE = """
mirage 1
mugraph product(x: f16[m, k], w: f16[k, n]) -> f16[m, n]
where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 32) {
    x_t: f16[m, k/loop] = load x
    w_t: f16[k/loop, n/grid] = load w
    p: f32[m, n/grid] = matmul x_t, w_t over(k)
    s: f32[m, n/grid] = accumulate p
    store y: f16[m, n/grid] = s
  }
  return y
}
"""

PARTS = """
mirage 1
mugraph total(x: f16[m, k]) -> f16[m] where m = 16, k = 64 {
  parts = block grid(k / 16) {
    x_t: f16[m, k/grid] = load x
    p: f32[m] = sum x_t over(k)
    store parts: f32[k#/grid, m] = p
  }
  y = block grid(m / 8) {
    p_t: f32[k#, m/grid] = load parts
    s: f32[m/grid] = sum p_t over(k#)
    store y: f16[m/grid] = s
  }
  return y
}
"""

SUMS = """
mirage 1
mugraph sums(x: f16[m, k]) -> f16[m] where m = 16, k = 64 {
  y = block grid(m / 4) {
    x_t: f16[m/grid, k] = load x
    s: f32[m/grid] = sum x_t over(k)
    store y: f16[m/grid] = s
  }
  return y
}
"""


def at(graph: KernelGraph, **extents: int) -> KernelGraph:
    return graph.with_extents(extents)


def test_a_whole_dim_is_split_into_one_tile() -> None:
    graph = parse(WHOLE)
    found = opened(graph, ["m"])
    assert found.extent_of["m"] is None
    assert found.extent_of["n"] == 32
    text = to_text(found)
    assert "grid(n / 16, m / 16)" in text
    assert "x_t: f16[m/grid, k/loop] = load x" in text
    assert "store y: f16[m/grid, n/grid]" in text
    assert not check(found)


@pytest.mark.parametrize("m", [1, 5, 16, 17, 50])
def test_it_computes_the_same_at_every_extent(m: int) -> None:
    graph = parse(WHOLE)
    found = opened(graph, ["m"])
    certificate = verify(at(found, m=m), at(graph, m=m))
    assert certificate.ok, str(certificate)


def test_what_is_split_already_only_gets_a_symbolic_extent() -> None:
    graph = parse(WHOLE)
    found = opened(graph, ["n", "k"])
    assert found.nodes == graph.nodes
    assert found.extent_of == {"m": 16, "n": None, "k": None}


def test_a_dim_whose_elements_meet_stays_whole() -> None:
    found = opened(parse(SUMS), ["k"])
    assert found.nodes == parse(SUMS).nodes
    assert found.extent_of["k"] is None


def test_dims_that_follow_are_symbolic_too() -> None:
    graph = parse(PARTS)
    found = opened(graph, ["k"])
    assert found.extent_of["k"] is None
    assert found.extent_of["k#"] is None
    assert opened(graph, ["m"]).extent_of["k#"] == 4


def test_nothing_open_is_the_same_graph() -> None:
    graph = parse(WHOLE)
    assert opened(graph, []) == graph
