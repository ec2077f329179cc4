"""The walk: what nodes read and make, what is needed, and graphs with other nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.ir.graph import Accumulate, Apply, BlockGraph, Load
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import (
    applications,
    depending,
    live,
    makers,
    map_nodes,
    operands_of,
    post_order,
    read_last,
    results_of,
    users,
    with_operands,
    without_dead,
)

GRAPH = parse("""mirage 1
mugraph f(x: f32[m, k]) -> f32[m], f32[m] where m = 4, k = 8 {
  y, z = block grid(m / 2) loop(k / 4) {
    s = load x[m/grid, k/loop]
    t = rowshift s over(k)
    r = running max t
    d = s - r
    e = exp d
    b = sum e over(k)
    a = accumulate b rescale r
    w = load x[m/grid, k]
    c = max w over(k)
    store y: f32[m/grid] = a
    store z: f32[m/grid] = c
  }
  q = y + z
  p = q * q
  return y, p
}
""")
BLOCK = GRAPH.blocks[0]


def names(nodes: list[Apply]) -> list[str]:
    return [n.result for n in nodes]


def test_a_rescaled_sum_reads_the_running_maximum_too() -> None:
    total = makers(BLOCK)["a"]
    assert isinstance(total, Accumulate)
    assert operands_of(total) == ("b", "r")
    renamed = with_operands(total, {"r": "r2"})
    assert renamed == replace(total, rescale="r2")


def test_a_load_reads_nothing_of_its_block() -> None:
    load = makers(BLOCK)["s"]
    assert isinstance(load, Load)
    assert operands_of(load) == ()
    assert with_operands(load, {"x": "x2"}) == load


def test_a_block_graph_reads_sources_and_makes_what_it_stores() -> None:
    assert operands_of(BLOCK) == ("x",)
    assert results_of(BLOCK) == ("y", "z")
    moved = with_operands(BLOCK, {"x": "x2", "s": "nothing"})
    assert moved.sources == ("x2",)
    assert makers(moved)["d"] == makers(BLOCK)["d"]


def test_what_is_returned_is_read_last_by_nobody() -> None:
    assert read_last(GRAPH.nodes, ["y", "p"]) == [{"x"}, {"z"}, {"q"}]
    assert read_last(GRAPH.nodes, ["p"]) == [{"x"}, {"y", "z"}, {"q"}]


def test_makers_are_of_one_level() -> None:
    assert list(makers(GRAPH)) == ["q", "p"]
    assert "y" not in makers(BLOCK)


def test_users_are_listed_once_and_those_of_nobody_are_none() -> None:
    found = users(GRAPH.nodes)
    assert found["q"] == [makers(GRAPH)["p"]]
    assert found["p"] == []
    assert [n.result for n in users(BLOCK.nodes)["r"]] == ["d", "a"]


def test_operators_of_both_levels() -> None:
    assert names(list(applications(GRAPH))) == ["t", "d", "e", "b", "c", "q", "p"]


def test_what_depends_on_a_value() -> None:
    assert depending(GRAPH.nodes, ["z"]) == {"z", "q", "p"}
    assert depending(GRAPH.nodes, ["x"]) == {"x", "y", "z", "q", "p"}


def test_of_a_block_only_what_is_needed_is_live() -> None:
    (part,) = live([BLOCK], ["z"])
    assert isinstance(part, BlockGraph)
    assert [n.result for n in part.nodes] == ["w", "c", "z"]
    assert part.loop is None
    (whole,) = live([BLOCK], ["y"])
    assert [n.result for n in whole.nodes] == ["s", "t", "r", "d", "e", "b", "a", "y"]
    assert whole.loop == BLOCK.loop


def test_what_no_returned_value_needs_is_gone() -> None:
    only = replace(GRAPH, returns=GRAPH.returns[:1])
    assert [results_of(n) for n in without_dead(only).nodes] == [("y",)]
    assert without_dead(GRAPH) == GRAPH


def test_a_store_named_like_a_dead_value_keeps_it_out() -> None:
    dead = Apply("y", BLOCK.applies[2].op, ("d",))
    named = map_nodes(BLOCK, lambda n: [n, dead] if n.result == "d" else n)
    (part,) = live([named], ["y"])
    assert [n.result for n in part.nodes].count("y") == 1


def test_depth_first_operands_come_before_their_readers() -> None:
    found = post_order(makers(BLOCK), ["c", "a", "e"])
    assert [n.result for n in found] == ["w", "c", "s", "t", "r", "d", "e", "b", "a"]


@pytest.mark.parametrize("copies", [0, 1, 2])
def test_any_number_of_nodes_takes_the_place_of_one(copies: int) -> None:
    level = map_nodes(GRAPH, lambda n: [n] * copies if results_of(n) == ("p",) else n)
    assert len(level.nodes) == len(GRAPH.nodes) - 1 + copies
