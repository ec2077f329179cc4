"""Normalisation: fewer operators, one form of each, the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.expand import expand
from tests.ops.kinds import is_of_floats


def ops(graph: KernelGraph) -> list[str]:
    return [n.op.name for n in graph.nodes if isinstance(n, Apply)]


def constants(graph: KernelGraph) -> list[str]:
    return [
        str(o)
        for n in graph.nodes
        if isinstance(n, Apply)
        for o in n.operands
        if not isinstance(o, str)
    ]


def written(write: Callable[[KernelBuilder, str], str]) -> KernelGraph:
    b = KernelBuilder("f", m=4, k=8)
    return expand(b.returns(write(b, b.input("x", f32, "m, k"))).build())


def test_derived_rows() -> None:
    assert ops(written(lambda b, x: b.square(x))) == ["mul"]
    assert ops(written(lambda b, x: b.rsqrt(x))) == ["sqrt", "div"]
    graph = written(lambda b, x: b.neg(x))
    assert (ops(graph), constants(graph)) == (["mul"], ["-1"])


def test_constants_fold() -> None:
    graph = written(lambda b, x: b.div(b.mul(2, b.mul(x, 3)), 8))
    assert (ops(graph), constants(graph)) == (["mul"], ["0.75"])
    graph = written(lambda b, x: b.mul(b.mul(x, one_over("k")), one_over("m")))
    assert constants(graph) == ["1/k/m"]
    graph = written(lambda b, x: b.div(b.mul(x, one_over("k")), one_over("k")))
    assert (ops(graph), graph.returns[0].value) == ([], "x")


def test_identities() -> None:
    def write(b: KernelBuilder, x: str) -> str:
        return b.exp(b.sub(b.add(0, b.mul(b.div(x, 1), 1)), 0))

    assert ops(written(write)) == ["exp"]


def test_division_by_zero_and_infinities_stay() -> None:
    graph = written(lambda b, x: b.div(b.mul(b.mul(x, float("inf")), 2), 0))
    assert ops(graph) == ["mul", "mul", "div"]


def test_equal_nodes_merge() -> None:
    def write(b: KernelBuilder, x: str) -> str:
        first, second = b.exp(x), b.exp(x)
        total = b.add(b.mul(first, x), b.mul(x, second))
        return b.mul(total, b.sum(total, over="k"))

    graph = written(write)
    assert ops(graph) == ["exp", "mul", "add", "sum", "mul"]
    assert graph.nodes[2].operands == ("t3", "t3")


def test_other_attributes_do_not_merge() -> None:
    def write(b: KernelBuilder, x: str) -> str:
        return b.add(b.sum(x, over="k"), b.sum(x, over="m"))

    assert ops(written(write)) == ["sum", "sum", "add"]


def test_dead_nodes_go_and_names_stay() -> None:
    b = KernelBuilder("f", m=4)
    x = b.input("x", f32, "m")
    b.exp(x, name="dead")
    y = b.rsqrt(b.square(x, name="sq"), name="y")
    graph = expand(b.returns(y, x).unchecked())
    assert [n.result for n in graph.nodes if isinstance(n, Apply)] == ["sq", "y_1", "y"]
    assert [r.value for r in graph.returns] == ["y", "x"]


def test_an_output_that_equals_another() -> None:
    b = KernelBuilder("f", m=4)
    x = b.input("x", f32, "m")
    graph = expand(b.returns(b.square(x), b.mul(x, x), b.mul(x, 1)).build())
    assert [r.value for r in graph.returns] == ["t1", "t1", "x"]


def test_blocks_are_expanded_inside() -> None:
    b = KernelBuilder("f", m=4, k=8)
    x = b.input("x", f16, "m, k")
    scaled = b.mul(x, 1)
    with b.block(grid={"m": 2}, loop=("k", 4)) as block:
        first, second = (block.load(scaled, "m/grid, k/loop") for _ in range(2))
        total = block.mul(block.square(first), block.mul(second, second))
        block.store(block.accumulate(block.sum(first, over="k")), name="dead")
        a = block.accumulate(block.sum(total, over="k"))
        y = block.store(block.mul(a, block.mul(a, 1)))
    graph = b.returns(y).unchecked()
    found = expand(graph)
    assert check(found) == []
    (block_graph,) = found.blocks
    kinds = " ".join(type(n).__name__ for n in block_graph.nodes)
    assert kinds == "Load Apply Apply Apply Accumulate Apply Apply Store"
    assert block_graph.sources == ("x",)
    xs = np.random.default_rng(0).standard_normal((4, 8))
    np.testing.assert_allclose(
        evaluate_numpy(found, xs)[0], evaluate_numpy(graph, xs)[0]
    )


def test_a_loop_that_nothing_needs_goes() -> None:
    b = KernelBuilder("f", m=4, k=8)
    x = b.input("x", f32, "m, k")
    with b.block(loop=("k", 4)) as block:
        looped = block.load(x, "m, k/loop")
        block.store(block.accumulate(block.sum(looped, over="k")), name="dead")
        y = block.store(block.exp(block.load(x)))
    found = expand(b.returns(y).unchecked())
    assert check(found) == []
    assert found.blocks[0].loop is None


ELEMENTWISE = [o for o in OPERATORS.values() if is_of_floats(o) and o.name != "where"]


@st.composite
def programs(draw: Callable[[Any], Any]) -> KernelGraph:
    b = KernelBuilder("f", m=3, k=4)
    values = [b.input("x", f32, "m, k"), b.input("y", f32, "k")]
    numbers = st.sampled_from([0, 1, 2, -3, 0.5, one_over("k")])
    for _ in range(draw(st.integers(1, 8))):
        op = draw(st.sampled_from(ELEMENTWISE))
        operands = [draw(st.sampled_from(values)) for _ in range(op.arity)]
        if op.arity == 2 and draw(st.booleans()):
            operands[draw(st.integers(0, 1))] = draw(numbers)
        values.append(b.apply(op, *operands))
    return b.returns(*values[-2:]).unchecked()


@given(programs(), st.integers(0, 2**32 - 1))
def test_the_same_function(graph: KernelGraph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.uniform(0.25, 2, s) for s in ((3, 4), (4,))]
    found = expand(graph)
    assert not any(OPERATORS[name].expansion for name in ops(found))
    assert expand(found) == found
    assert canonical_hash(expand(found)) == canonical_hash(found)
    assert check(found) == []
    with np.errstate(all="ignore"):
        for a, b in zip(
            evaluate_numpy(graph, *arrays), evaluate_numpy(found, *arrays), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def index_by_another_dim(x: str, extents: str) -> KernelGraph:
    """How far from the diagonal an element is."""
    return parse(f"""
mirage 1

mugraph f(x: f32{x}) -> i64[m, k] where {extents} {{
  i = index m
  j: i64[k] = rename i dims(m) to(k)
  d: i64[m, k] = sub i, j
  return d
}}
""")


@pytest.mark.parametrize(
    ("x", "extents"), [("[m]", "m = 4, k = 4"), ("[m, k]", "m = ?, k = ?")]
)
def test_a_renamed_index_is_an_index(x: str, extents: str) -> None:
    graph = expand(index_by_another_dim(x, extents))
    (node,) = graph.applies
    assert node.values == ("i", "j")
    check(graph)
    (found,) = evaluate_numpy(graph, np.zeros((4, 4)[: x.count(",") + 1], np.float32))
    assert np.array_equal(found, np.arange(4)[:, None] - np.arange(4))


def test_a_renamed_index_stays_where_it_tells_an_extent() -> None:
    graph = index_by_another_dim("[m]", "m = ?, k = ?")
    assert expand(graph) == graph
