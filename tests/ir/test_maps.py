"""Extents that follow from others."""

from __future__ import annotations

from mirage_dsl.ir.maps import derived_extents, with_symbolic
from mirage_dsl.ir.text.parser import parse

PARTS = """
mirage 1
mugraph total(x: f16[m, k], y: f16[h, k]) -> f16[p] where m = 16, k = 64, h = 8 {
  both: f16[p, k] = concat x, y dims(m, h) to(p)
  parts = block grid(k / 16) {
    x_t: f16[p, k/grid] = load both
    s: f32[p] = sum x_t over(k)
    store parts: f32[k#/grid, p] = s
  }
  y1 = block grid(p / 8) {
    p_t: f32[k#, p/grid] = load parts
    t: f32[p/grid] = sum p_t over(k#)
    store y1: f16[p/grid] = t
  }
  return y1
}
"""


def test_what_follows_from_a_symbolic_dim_is_symbolic() -> None:
    graph = parse(PARTS)
    assert derived_extents(graph, graph.extent_of)["p"] == 24
    found = with_symbolic(graph, ["k"]).extent_of
    assert (found["m"], found["k"], found["k#"], found["p"]) == (16, None, None, 24)
    found = with_symbolic(graph, ["m"]).extent_of
    assert (found["m"], found["k"], found["k#"], found["p"]) == (None, 64, 4, None)


def test_no_symbolic_dim_changes_nothing_that_was_known() -> None:
    graph = parse(PARTS)
    found = with_symbolic(graph, [])
    assert derived_extents(graph, graph.extent_of) == found.extent_of
