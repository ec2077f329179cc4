"""Axes of the grid that split several dims: text, rules, meaning, hash."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mirage_dsl.core.errors import CheckError, ParseError
from mirage_dsl.ir.canonical import canonical_hash, diff
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Load, Split
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import grid_parts
from mirage_dsl.ir.text.parser import parse

TEXT = """\
mirage 1

mugraph pair(x: f16[m, k], w: f16[k, a], v: f16[k, b]) -> f16[m, a], f16[m, b]
where m = 5, k = 40, a = 70, b = 10 {
  y, z = block grid(m / 4, a / 16 & b / 4) loop(k / 16) {
    xt = load x[m/grid, k/loop]
    wt = load w[k/loop, a/grid]
    vt = load v[k/loop, b/grid]
    squares = accumulate square(xt)
    p = accumulate xt @ wt
    q = accumulate xt @ vt
    norm = sqrt(sum(squares, k))
    y = p / norm
    z = q / norm
    store y[m/grid, a/grid]
    store z[m/grid, b/grid]
  }
  return y, z
}
"""


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new)


def block_of(graph: KernelGraph) -> BlockGraph:
    return graph.blocks[0]


def test_the_text_says_which_dims_share_an_axis() -> None:
    graph = parse(TEXT)
    m, a, b = Split("m", 4), Split("a", 16), Split("b", 4, beside=True)
    assert block_of(graph).grid == (m, a, b)
    assert block_of(graph).axes == ((m,), (a, b))
    assert "block grid(m / 4, a / 16 & b / 4) loop(k / 16)" in str(graph)
    assert parse(str(graph)) == graph
    assert check(graph) == []


def test_an_axis_has_the_blocks_of_its_longest_dim() -> None:
    graph = parse(TEXT)
    extents = {n: e for n, e in graph.extents if e is not None}
    assert grid_parts(block_of(graph), extents) == (2, 5)
    assert grid_parts(block_of(graph), {**extents, "b": 100}) == (2, 25)


def test_each_output_is_as_if_its_dim_were_alone() -> None:
    rng = np.random.default_rng(3)
    x, w, v = (rng.standard_normal(s) for s in ((5, 40), (40, 70), (40, 10)))
    unit = x / np.sqrt((x**2).sum(1, keepdims=True))
    found = evaluate_numpy(parse(TEXT), x, w, v)
    for one, right in zip(found, (unit @ w, unit @ v), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-2, atol=1e-2)


def test_sharing_is_part_of_the_structure() -> None:
    graph = parse(TEXT)
    block = block_of(graph)
    apart = tuple(replace(s, beside=False) for s in block.grid)
    other = replace(graph, nodes=(replace(block, grid=apart),))
    hashes = {canonical_hash(g, sizes=s) for g in (graph, other) for s in (True, False)}
    assert len(hashes) == 4
    assert "grid order: m, a & b -> m, a, b" in diff(graph, other)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (
            changed("y = p / norm", "y = p * sum(q, b)"),
            13,
            "sum takes away b/grid, but one axis of the grid splits a and b; give b "
            "an axis of its own",
        ),
        (
            changed("z = q / norm", "z = q * p"),
            14,
            "mul: b/grid and a/grid meet, but one axis of the grid splits a and b, so "
            "a block has tiles of equal number only; give each an axis of its own",
        ),
        (
            changed("store z[m/grid, b/grid]", "store z[m/grid, b/grid, a#/grid]"),
            16,
            "store z: b/grid and a#/grid meet, but one axis of the grid splits a "
            "and b, so a block has tiles of equal number only; give each an axis of "
            "its own",
        ),
        (
            changed("m / 4, a / 16 & b / 4", "m / 4 & k / 8, a / 16").replace(
                "k/loop", "k/grid/loop"
            ),
            6,
            "load x: m/grid and k/grid/loop meet, but one axis of the grid splits m "
            "and k, so a block has tiles of equal number only; give each an axis of "
            "its own",
        ),
        (
            changed("loop(k / 16)", "loop(a / 4)")
            .replace("k/loop, a/grid", "k, a/grid/loop")
            .replace("k/loop", "k"),
            7,
            "load w: the loop splits a/grid/loop, but one axis of the grid splits a "
            "and b; give a an axis of its own",
        ),
    ],
)
def test_what_is_refused(text: str, line: int, message: str) -> None:
    with pytest.raises(CheckError) as caught:
        parse(text)
    assert caught.value.message == message
    assert caught.value.location is not None
    assert caught.value.location.line == line


def test_every_store_has_one_dim_of_every_axis() -> None:
    text = changed("store z[m/grid, b/grid]", "store z[m/grid]")
    text = text.replace("z = q / norm", "z = exp norm").replace("f16[m, b]", "f16[m]")
    (found,) = [d for d in check(parse(text)) if d.rule == "store"]
    assert (
        "the grid splits a & b, but the axes have neither a/grid nor b/grid nor a#/grid"
    ) in found.message


@pytest.mark.parametrize("number", ["a#", "b#"])
def test_what_all_blocks_of_an_axis_compute_may_be_numbered(number: str) -> None:
    text = changed("store z[m/grid, b/grid]", f"store z[m/grid, {number}/grid]")
    text = text.replace("z = q / norm", "z = exp norm").replace(
        "f16[m, b]", f"f16[m, {number}]"
    )
    graph = parse(text)
    # What is computed of b is not stored any more.
    assert {d.rule for d in check(graph)} <= {"unused"}
    rng = np.random.default_rng(3)
    x, w, v = (rng.standard_normal(s) for s in ((5, 40), (40, 70), (40, 10)))
    _, found = evaluate_numpy(graph, x, w, v)
    assert found.shape == (5, 5 if number == "a#" else 3)
    assert (found == found[:, :1]).all()


def rules_broken(splits: tuple[Split, ...]) -> list[str]:
    """What the checker says of the graph with more splits."""
    graph = parse(TEXT)
    block = replace(block_of(graph), grid=(*block_of(graph).grid, *splits))
    extents = {**graph.extent_of, "c": 3, "d": 3}
    return [
        d.message for d in check(replace(graph, nodes=(block,)).with_extents(extents))
    ]


def test_at_most_three_axes_of_any_number_of_dims() -> None:
    apart = rules_broken((Split("c", 1), Split("d", 1)))
    assert any("4 grid dims (m, a & b, c, d)" in message for message in apart)
    assert rules_broken((Split("c", 1, True), Split("d", 1, True))) == []


def test_the_first_split_of_a_grid_is_beside_none() -> None:
    graph = parse(TEXT)
    first, *others = block_of(graph).grid
    grid = (replace(first, beside=True), *others)
    block = replace(block_of(graph), grid=grid)
    (found,) = check(replace(graph, nodes=(block,)))
    assert "m, is beside no other split" in found.message


def test_a_loop_and_a_parameter_take_no_axis() -> None:
    with pytest.raises(ParseError, match="loop takes one dim, found 2"):
        parse(changed("loop(k / 16)", "loop(k / 16 & a / 2)"))
    with pytest.raises(ParseError, match="num_warps takes one value, found 2"):
        parse(changed("loop(k / 16)", "loop(k / 16) num_warps(4 & 8)"))


def test_types_of_graphs_made_by_hand_are_held_too() -> None:
    graph = parse(TEXT)
    block = block_of(graph)
    load, *others = block.nodes
    assert isinstance(load, Load)
    axes = tuple(tuple(replace(d, grid=True) for d in a) for a in load.axes)
    grid = (Split("m", 4), Split("k", 16, beside=True))
    made = replace(block, grid=grid, nodes=(replace(load, axes=axes), *others))
    with pytest.raises(CheckError, match="m/grid and k/grid/loop meet"):
        block_types(made, kernel_types(graph))
