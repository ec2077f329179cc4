"""Blocks that take bytes in pairs: which do, into what, and that it is the same."""

from __future__ import annotations

import re

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


ON_GRID = """mirage 1

mugraph groups(x: f16[m, (k r h)], w: u8[(k r), n], s: f16[k, n]) -> f32[m, n]
where m = 8, k = 16, r = 16, h = 2, n = 64 {
  i = index h
  u = block grid(k / 4, n / 32) {
    i_t = load i[h]
    j = mul i_t, 4
    c = to_u8 j
    x_t = load x[m, (k/grid r h)]
    w_t = load w[(k/grid r), n/grid]
    d = shift_right w_t, c
    e = bit_and d, 15
    f = to_f32 e
    v = cast f dtype(f16)
    p = matmul x_t, v over(r, h)
    store u: f32[k/grid, m, n/grid] = p
  }
  y = block grid(n / 64) {
    u_t = load u[k, m, n/grid]
    s_t = load s[k, n/grid]
    p = mul u_t, s_t
    a = sum p over(k)
    b = tanh a
    store y: f32[m, n/grid] = b
  }
  return y
}
"""


TWO = """mirage 1

mugraph two(x: f16[m, k], w: f8e4m3[k, n], u: f8e4m3[k, n]) -> f32[m, n]
where m = 8, k = 512, n = 64 {
  g = block grid(n / 32) loop(k / 64) {
    x_t = load x[m, k/loop]
    w_t = load w[k/loop, n/grid]
    w_c = cast w_t dtype(f16)
    p = matmul x_t, w_c over(k)
    a = accumulate p
    c = tanh a
    store g: f32[m, n/grid] = c
  }
  y = block grid(n / 32) loop(k / 64) {
    g_t = load g[m, n/grid]
    x_t = load x[m, k/loop]
    u_t = load u[k/loop, n/grid]
    u_c = cast u_t dtype(f16)
    q = matmul x_t, u_c over(k)
    b = accumulate q
    d = mul g_t, b
    store y: f32[m, n/grid] = d
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


@pytest.mark.parametrize("text", [SPLIT, ON_GRID], ids=["split loop", "no loop"])
def test_groups_on_the_grid_are_a_loop(text: str) -> None:
    graph = parse(text)
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


def turned(graph: KernelGraph) -> KernelGraph:
    """The same of matrices whose rows lie side by side."""
    text = re.sub(r"(f8e4m3|u8|s: f16)\[(.*?), n\]", r"\1[n, \2]", str(graph))
    return parse(
        re.sub(r"(_t: (?:f8e4m3|u8)|s_t: f16)\[(.*), n/grid\]", r"\1[n/grid, \2]", text)
    )


def test_rows_that_lie_side_by_side_are_pairs() -> None:
    graph = turned(one_kernel(k=1024))
    made = with_pairs(graph)
    assert made is not None
    rows = {"k_parts": 16, "k_part_pairs": 32, "pair": 2}
    assert dict(made.extents) == {"m": 8, **rows, "n": 64}
    (block,) = sized(made).blocks
    assert block.loop is not None
    assert block.loop.tile in (4, 8)
    assert verify(made, graph).ok
    check(sized(made))


def test_so_are_bytes_of_two_rows_each_in_groups() -> None:
    graph = turned(parse(SPLIT))
    made = with_pairs(graph)
    assert made is not None
    (block,) = made.blocks
    assert made.extent_of["r_pairs"] == 8
    assert block.loop is not None
    assert block.loop.dim == "k"
    assert verify(made, graph).ok
    check(sized(made))


def test_bytes_of_a_pair_are_not_those_of_a_byte() -> None:
    """What belongs to one byte lies side by side in x, then what does to a pair."""
    graph = turned(parse(SPLIT))
    made = with_pairs(graph)
    assert made is not None
    text = str(made)
    wrong = parse(text.replace("r_pairs pair h)", "r_pairs h pair)"))
    assert text != str(wrong)
    for seed in range(20):
        found = verify(wrong, graph, seed=seed)
        assert found.verdict == "different", found.reason


def test_a_kernel_behind_another_takes_the_same_pairs() -> None:
    graph = turned(parse(TWO))
    made = with_pairs(graph)
    assert made is not None
    assert {*made.extent_of} == {"m", "n", "k_parts", "k_part_pairs", "pair"}
    assert all(b.loop is not None and b.loop.dim == "k_parts" for b in made.blocks)
    assert verify(made, graph).ok
    check(sized(made))


NOT: dict[str, KernelGraph] = {
    "no bytes": one_kernel(dtype="f16"),
    "an odd number of columns": one_kernel(n=63),
    "few rows": one_kernel(k=128),
    "rows of no length of parts": one_kernel(k=600),
    "parts that are not just added": parse(
        SPLIT.replace("b = sum a over(k)\n", "z = sum a over(k)\n    b = tanh z\n")
    ),
    "groups that are rounded": parse(ON_GRID.replace("store u: f32", "store u: f16")),
    "groups of which the largest counts": parse(ON_GRID.replace("sum p", "max p")),
    "groups that are multiplied by their sum": parse(
        ON_GRID.replace("b = tanh a\n", "z = mul p, a\n    b = sum z over(k)\n")
    ),
    "parts of rows that are one in the second kernel": parse(
        SPLIT.replace("n/grid] = b\n  }\n  return", "n] = b\n  }\n  return")
        .replace("load u[k#, m/grid, n/grid]", "load u[k#, m/grid, n]")
        .replace("grid(m / 1, n / 64)", "grid(m / 1)")
        .replace("b = tanh a\n", "z = sum a over(n)\n    b = div a, z\n")
    ),
    "groups of rows that are one in the second kernel": parse(
        ON_GRID.replace("(x: f16[m, (k", "(c: f32[n], x: f16[m, (k")
        .replace("load u[k, m, n/grid]", "load u[k, m, n]")
        .replace("load s[k, n/grid]", "load s[k, n]\n    c_t = load c[n/grid]")
        .replace("b = tanh a\n", "z = sum a over(n)\n    b = mul c_t, z\n")
    ),
    "groups that are a result": parse(
        ON_GRID.replace("-> f32[m, n]\n", "-> f32[m, n], f32[k, m, n]\n").replace(
            "return y", "return y, u"
        )
    ),
    "groups that are stored": parse(
        ON_GRID.replace("-> f32[m, n]\n", "-> f32[m, n], f32[k, m, n]\n")
        .replace("y = block", "y, o = block")
        .replace("    store y", "    store o: f32[k, m, n/grid] = p\n    store y")
        .replace("return y", "return y, o")
    ),
}


@pytest.mark.parametrize("why", NOT)
def test_others_stay(why: str) -> None:
    made = with_pairs(NOT[why])
    assert made is None or len(made.blocks) == 2
