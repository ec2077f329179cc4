"""Eight columns, where warps have parts of a loop: where, and what follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.types import Dim, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse as parse_graph
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check as check_tiles
from mirage_dsl.tile.program import Product, TileProgram, pieces_of, walk
from mirage_dsl.tile.text import parse, to_text
from tests.backends.running import check

PARTS = """mirage 1

mugraph parts(x: f16[m, (a b)], w: f16[(a b), n]) -> f32[m, n]
where m = {m}, a = 8, b = 64, n = 32 {{
  y = block grid(n / {n}) loop(a / 4) swap_operands({swapped}) {{
    x_t = load x[m, (a/loop b)]
    w_t = load w[(a/loop b), n/grid]
    p = matmul x_t, w_t over(b)
    s_parts = accumulate p
    s = sum s_parts over(a)
    store y: f32[m, n/grid] = s
  }}
  return y
}}
"""
M, N = Dim("m"), Dim("n", grid=True)


def parts(m: int = 8, n: int = 32, *, swapped: bool = False) -> KernelGraph:
    return parse_graph(PARTS.format(m=m, n=n, swapped=str(swapped).lower()))


def program(graph: KernelGraph, *, sized: bool = True) -> TileProgram:
    (found,) = programs(graph, sized=sized)
    return found


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_few_columns_are_eight_and_on_the_right(m: int, swapped: bool) -> None:
    graph = parts(m, swapped=swapped)
    found = program(graph)
    assert found.few == {M}
    assert pieces_of(found).lanes(M) == 8
    (product,) = (s for s, _ in walk(found.body) if isinstance(s, Product))
    assert (product.rows, product.columns) == ((N,), (M,))
    assert "m_lane = tl.arange(0, 8)" in emit(graph)
    check(graph)


@pytest.mark.parametrize("tf32", [False, True])
def test_groups_of_warps_take_eight_as_well(tf32: bool) -> None:
    """Of one part at a time: 64 rows and more by 8 columns, which Triton compiles."""
    g = KernelBuilder("groups", g=8, m=8, k=64, n=256)
    dtype = f32 if tf32 else f16
    x, w = g.input("x", dtype, "m, g, k"), g.input("w", dtype, "g, k, n")
    with g.block(grid={"n": 128}, loop=("g", 1)) as b:
        left, right = b.load(x, "m, g/loop, k"), b.load(w, "g/loop, k, n/grid")
        part = b.sum(b.matmul(left, right, over="k"), over="g")
        out = b.store(b.accumulate(part), "m, n/grid", dtype=f32)
    schedule = Schedule(num_warps=4, num_stages=3, allow_tf32=tf32)
    graph = g.returns(out).build().with_schedules(lambda _: schedule)
    (report,) = compile_only(graph)
    assert not report.spills
    assert program(graph).few == {M}


def test_more_columns_than_eight_are_sixteen() -> None:
    found = program(parts(9))
    assert not found.few
    assert pieces_of(found).lanes(M) == 16


def test_where_both_sides_are_few_both_are_sixteen() -> None:
    text = PARTS.replace("n = 32", "n = 8").replace("grid(n / {n}) ", "")
    graph = parse_graph(text.format(m=8, n=8, swapped="false").replace("n/grid", "n"))
    found = program(graph)
    assert not found.few
    check(graph)


def test_columns_of_one_product_that_are_rows_of_another_are_sixteen() -> None:
    graph = parse_graph(CHAIN)
    assert not program(graph).few
    check(graph)


CHAIN = """mirage 1

mugraph chain(x: f16[m, (a b)], w: f16[(a b), c], v: f16[(a c), n]) -> f32[m, n]
where m = 8, a = 8, b = 64, c = 32, n = 32 {
  y = block grid(n / 32) loop(a / 4) {
    x_t = load x[m, (a/loop b)]
    w_t = load w[(a/loop b), c]
    v_t = load v[(a/loop c), n/grid]
    p = matmul x_t, w_t over(b)
    r = cast p dtype(f16)
    q = matmul r, v_t over(c)
    s_parts = accumulate q
    s = sum s_parts over(a)
    store y: f32[m, n/grid] = s
  }
  return y
}
"""


def test_text_names_them() -> None:
    for sized in (True, False):
        found = program(parts(), sized=sized)
        text = to_text(found)
        assert " few(m)" in text
        assert parse(text) == found


def test_a_program_whose_rows_are_few_is_wrong() -> None:
    found = program(parts())
    assert not check_tiles(found)
    problems = check_tiles(replace(found, few=frozenset({N})))
    assert any("n/grid" in str(p) for p in problems)
