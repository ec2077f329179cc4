"""Blocks that take bytes in pairs: which do, into what, and that it is the same."""

from __future__ import annotations

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.pairs import with_pairs
from mirage_dsl.search.sizes import Constraints, Sizer
from mirage_dsl.verify.verifier import verify
from tests.backends.running import check

ONE = """mirage 1

mugraph gated(x: f16[m, k], w: {dtype}[k, n], u: {dtype}[k, n]) -> f32[m, n]
where m = 8, k = {k}, n = {n} {{
  y = block grid(n / 32) loop(k / 64) {{
    x_t = load x[m, k/loop]
    w_t = load w[k/loop, n/grid]
    u_t = load u[k/loop, n/grid]
    w_c = cast w_t dtype(f16)
    u_c = cast u_t dtype(f16)
    p = matmul x_t, w_c over(k)
    q = matmul x_t, u_c over(k)
    a = accumulate p
    b = accumulate q
    c = tanh a
    d = mul c, b
    store y: f32[m, n/grid] = d
  }}
  return y
}}
"""


def one_kernel(k: int = 512, n: int = 64, dtype: str = "f8e4m3") -> KernelGraph:
    return parse(ONE.format(k=k, n=n, dtype=dtype))


SPLIT = """mirage 1

mugraph groups(x: f16[m, (k r h)], w: u8[(k r), n], s: f16[k, n]) -> f32[m, n]
where m = 8, k = 16, r = 16, h = 2, n = 64 {
  i = index h
  u = block grid(k / 4, n / 32) loop(k / 1) {
    i_t = load i[h]
    j = mul i_t, 4
    c = to_u8 j
    x_t = load x[m, (k/grid/loop r h)]
    w_t = load w[(k/grid/loop r), n/grid]
    s_t = load s[k/grid/loop, n/grid]
    d = shift_right w_t, c
    e = bit_and d, 15
    f = to_f32 e
    v = cast f dtype(f16)
    p = matmul x_t, v over(r, h)
    q = mul p, s_t
    a = accumulate q
    b = sum a over(k)
    store u: f32[k#/grid, m, n/grid] = b
  }
  y = block grid(m / 1, n / 64) {
    u_t = load u[k#, m/grid, n/grid]
    a = sum u_t over(k#)
    b = tanh a
    store y: f32[m/grid, n/grid] = b
  }
  return y
}
"""


def sized(graph: KernelGraph) -> KernelGraph:
    blocks = {at for at, n in enumerate(graph.nodes) if isinstance(n, BlockGraph)}
    found = Sizer(H100, Constraints()).sized(graph, only=blocks)
    assert found is not None
    return found.graph


def test_columns_are_pairs_and_warps_have_parts_of_rows() -> None:
    graph = one_kernel(k=1024)
    made = with_pairs(graph)
    assert made is not None
    rows, columns = {"k_parts": 16, "k_part": 64}, {"n_pairs": 32, "pair": 2}
    assert dict(made.extents) == {"m": 8, **rows, **columns}
    (block,) = sized(made).blocks
    assert block.loop is not None
    assert block.loop.tile in (4, 8)
    assert [s.dim for s in block.grid] == ["n_pairs"]
    assert verify(made, graph).ok
    check(sized(made))


def test_a_loop_over_groups_is_whole_again() -> None:
    graph = parse(SPLIT)
    made = with_pairs(graph)
    assert made is not None
    (block,) = made.blocks
    assert [s.dim for s in block.grid] == ["n_pairs"]
    assert block.loop is not None
    assert block.loop.dim == "k"
    assert "k#" not in made.extent_of
    assert verify(made, graph).ok
    check(sized(made))


def test_rows_are_cut_into_what_they_allow() -> None:
    made = with_pairs(one_kernel(k=288))
    assert made is not None
    assert made.extent_of["k_part"] == 32


NOT: dict[str, KernelGraph] = {
    "no bytes": one_kernel(dtype="f16"),
    "an odd number of columns": one_kernel(n=63),
    "few rows": one_kernel(k=128),
    "rows of no length of parts": one_kernel(k=600),
    "rows side by side": parse(
        str(one_kernel())
        .replace("f8e4m3[k, n]", "f8e4m3[n, k]")
        .replace("f8e4m3[k/loop, n/grid]", "f8e4m3[n/grid, k/loop]")
    ),
    "parts that are not just added": parse(
        SPLIT.replace("b = sum a over(k)\n", "z = sum a over(k)\n    b = tanh z\n")
    ),
}


@pytest.mark.parametrize("why", NOT)
def test_others_stay(why: str) -> None:
    made = with_pairs(NOT[why])
    assert made is None or len(made.blocks) == 2
