"""Pieces that lie in memory as one axis are loaded as one axis of a matrix."""

from __future__ import annotations

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.ir.check import check as problems
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.combined import runs
from tests.backends.running import check


def product(
    x: str = "(k n h)",
    read: str = "(k/loop n h)",
    grid: str = "d / 16",
    loop: str = "k / 1",
    over: str = "n, h",
    sizes: str = "k = 4, n = 16, h = 2",
    then: str = "s = sum p over(k)",
) -> KernelGraph:
    """Products over two dims of one axis of `x`, for each of the third."""
    weights = x.replace(" ", ", ").strip("()")
    part = read.replace(" ", ", ").strip("()")
    graph = parse(
        f"""mirage 1
        mugraph f(x: f16[m, {x}], w: f16[{weights}, d]) -> f16[m, d]
        where m = 5, {sizes}, d = 32 {{
          y = block grid({grid}) loop({loop}) {{
            x_t = load x[m, {read}]
            w_t = load w[{part}, d/grid]
            p = matmul x_t, w_t over({over})
            {then}
            t = accumulate s
            store y[m, d/grid] = t
          }}
          return y
        }}
        """
    )
    assert problems(graph) == []
    return graph


def merged(graph: KernelGraph) -> set[str]:
    """The loads with merged axes, if no lane of any piece lies outside."""
    (program,) = programs(graph)
    return set(runs(program, lambda _: True))


RUNS = {
    "whole behind a loop": (product(), "n_h_lane = tl.arange(0, 32)"),
    "the outermost is looped over": (
        product(read="(k n/loop h)", loop="n / 8"),
        "n_h_lane = tl.arange(0, 16)",
    ),
    "all of an axis": (
        product(loop="k / 2", over="k, n, h", then="s = mul p, 1"),
        "k_n_h_lane = tl.arange(0, 64)",
    ),
    "in the order of memory": (
        product(x="(k h n)", read="(k/loop h n)"),
        "h_n_lane = tl.arange(0, 32)",
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_one_axis(name: str) -> None:
    graph, lanes = RUNS[name]
    assert "x_t" in merged(graph)
    source = emit(graph)
    assert "tl.reshape(x_t" not in source
    assert lanes in source
    check(graph, tolerance=1e-3)
    assert compile_only(graph)


OTHERS = {
    "a dim between them": product(
        x="(n k h)", read="(n k/loop h)", over="n, h", then="s = sum p over(k)"
    ),
    "the inner one is looped over": product(
        read="(k n h/loop)",
        loop="h / 1",
        over="k, h",
        sizes="k = 4, n = 16, h = 4",
        then="s = sum p over(n)",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_apart(name: str) -> None:
    graph = OTHERS[name]
    assert "x_t" not in merged(graph)
    check(graph, tolerance=1e-3)


def test_ragged_pieces_stay_apart() -> None:
    graph = product(sizes="k = 4, n = 12, h = 3")
    assert "tl.reshape(x_t" in emit(graph)
    check(graph, tolerance=1e-3)


def test_what_others_read_too_stays_apart() -> None:
    graph = product(
        loop="k / 2",
        over="n, h",
        then="z = sum x_t over(n, h)\nq = add p, z\ns = sum q over(k)",
    )
    assert "x_t" not in merged(graph)
    check(graph, tolerance=1e-3)
