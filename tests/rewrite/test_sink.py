"""Views moved to the inputs."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.sinking import share_views, sink_views
from mirage_dsl.search.driver import search
from mirage_dsl.verify.verifier import verify

CHUNK = """mirage 1
mugraph gated(x: f16[m, k], w: f16[k, n]) -> f16[m, r]
    where m = 16, k = 1024, n = 2048 {
  a = matmul x, w
  g = slice a dim(n) start(0) stop(1024) to(r)
  u = slice a dim(n) start(1024) stop(2048) to(r)
  s = silu g
  z = mul s, u
  return z
}
"""
GRAM = """mirage 1
mugraph gram(x: f16[m, k], c: f16[k]) -> f16[m, i] where m = 5, k = 8 {
  y = mul x, c
  z = rename y dims(m) to(i)
  o = matmul y, z over(k)
  return o
}
"""
NESTED = """mirage 1
mugraph nested(x: f16[m, k], c: f16[m]) -> f16[j] where m = 5, k = 8 {
  y = mul x, c
  z = slice y dim(k) start(2) stop(7) to(r)
  e = exp z
  w = slice e dim(r) start(1) stop(3) to(s)
  v = rename w dims(s) to(j)
  o = sum v over(m)
  return o
}
"""
PART = """mirage 1
mugraph part(x: f16[m, k], y: f16[m, l], v: f16[h, n]) -> f16[m, n], f16[m, i]
where m = 3, k = 4, l = 5, h = 5, n = 2 {
  a = exp x
  b = exp y
  c = concat a, b dims(k, l) to(j)
  d = mul c, 2
  p = slice d dim(j) start(4) stop(9) to(h)
  o = matmul p, v over(h)
  q = slice d dim(j) start(1) stop(3) to(i)
  return o, q
}
"""
ACROSS = """mirage 1
mugraph across(x: f16[m, k], y: f16[m, l]) -> f16[m, r] where m = 3, k = 4, l = 5 {
  a = exp x
  b = exp y
  c = concat a, b dims(k, l) to(n)
  d = slice c dim(n) start(2) stop(6) to(r)
  return d
}
"""
STUCK = """mirage 1
mugraph stuck(x: f16[m, k]) -> f16[m, r] where m = 3, k = 4 {
  a = exp x
  c = cumsum a along(k)
  d = slice c dim(k) start(1) stop(3) to(r)
  return d
}
"""


def computed_views(graph: KernelGraph) -> list[str]:
    there = {i.name for i in graph.inputs}
    found: list[str] = []
    for node in graph.nodes:
        assert isinstance(node, Apply)
        if node.is_view and node.values[0] in there:
            there.add(node.result)
        elif node.is_view:
            found.append(node.result)
    return found


@pytest.mark.parametrize("text", [CHUNK, GRAM, NESTED, PART])
def test_same_function_without_views_of_results(text: str) -> None:
    program = parse(text).with_extents({})
    sunk = sink_views(program)
    assert computed_views(program)
    assert computed_views(sunk) == []
    assert check(sunk) == []
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(0.5, 1.5, [program.extent_of[n] or 0 for n in i.type.names])
        for i in program.inputs
    ]
    for a, b in zip(
        evaluate_numpy(sunk, *arrays), evaluate_numpy(program, *arrays), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_what_cannot_move_stays() -> None:
    program = parse(STUCK)
    assert sink_views(program) is program


def test_a_slice_of_several_operands_joins_what_it_shows_of_each() -> None:
    program = parse(ACROSS)
    sunk = sink_views(program)
    assert [n.op.name for n in sunk.applies] == [
        "slice",
        "exp",
        "slice",
        "exp",
        "concat",
    ]
    slices = [dict(n.attrs) for n in sunk.applies if n.op.name == "slice"]
    assert [(s["start"], s["stop"]) for s in slices] == [(2, 4), (0, 2)]
    found = verify(sunk, program, stability=False)
    assert found.equivalent, found.reason


def test_parts_of_a_concatenation_are_what_was_joined() -> None:
    sunk = sink_views(parse(PART))
    names = [n.op.name for n in sunk.nodes if isinstance(n, Apply)]
    assert "concat" not in names
    assert names.count("slice") == 1
    assert names.count("matmul") == 1
    assert sunk.inputs[2].type.names == ("l", "n")


def test_halves_of_a_product_become_one_kernel() -> None:
    result = search(parse(CHUNK), H100, k=2)
    assert len(result.best.mugraph.blocks) == 1
    assert result.best.mugraph.blocks[0].results == ("z",)
    assert result.best.certificate is not None
    assert result.best.certificate.ok


# -- Views that are shared -------------------------------------------------------------

HEAD = """mirage 1
mugraph f(x: f16[m, k], u: f16[m, j], v: f16[j, k]) -> f16[m, n]
    where m = 3, k = 4, n = 4, j = 2 {
  y = matmul u, v
"""
SEEN = """
  z = rename s dims(k) to(n)
  q = rename y dims(k) to(n)
  p = mul q, z
  return p
}
"""
SHARED = {
    "one operator": "s = sigmoid y",
    "a chain": "t = tanh y \n s = sigmoid t",
    "constants": "t = add y, 1 \n s = div 2, t",
    "an input": "t = exp x \n s = mul y, t",
    "values along other dims": "r = sum x over(k) \n s = mul y, r",
    "twice": "t = exp y \n s = mul t, t",
    "a thousand": "\n".join(
        [
            "s0 = tanh y",
            *(f"s{i + 1} = tanh s{i}" for i in range(1000)),
            "s = exp s1000",
        ]
    ),
    "a cast": "t = cast y dtype(f32) \n e = exp t \n s = cast e dtype(f16)",
}


def _same_values(first: KernelGraph, second: KernelGraph) -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(0.5, 1.5, [first.extent_of[n] or 0 for n in i.type.names])
        for i in first.inputs
    ]
    (a,), (b,) = evaluate_numpy(first, *arrays), evaluate_numpy(second, *arrays)
    np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("made", SHARED.values(), ids=SHARED)
def test_one_view_serves_what_is_computed_of_it(made: str) -> None:
    program = parse(HEAD + made + SEEN)
    shared = share_views(program)
    assert check(shared) == []
    assert len(computed_views(program)) == 2
    assert computed_views(shared) == ["q"]
    _same_values(shared, program)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "s = sigmoid y" + SEEN.replace("rename y", "rename x"),
        HEAD + "s = sigmoid y \n l = sum s over(k)" + SEEN.replace("q, z", "z, l"),
        HEAD + "r = sum y over(k) \n t = mul y, r \n s = mul t, t \n"
        "o = max t over(k)" + SEEN.replace("q, z", "z, o"),
    ],
    ids=["nothing is seen alike", "read elsewhere", "an operand read elsewhere"],
)
def test_views_stay_where_more_would_be_seen(text: str) -> None:
    program = parse(text)
    assert share_views(program) is program


def test_a_slice_of_what_is_computed_is_computed_of_a_slice() -> None:
    program = parse("""mirage 1
mugraph f(x: f16[m, k], w: f16[k, l]) -> f16[m, r] where m = 3, k = 4, l = 6, r = 3 {
  y = matmul x, w
  e = exp y
  g = slice e dim(l) start(3) stop(6) to(r)
  h = slice y dim(l) start(3) stop(6) to(r)
  p = mul g, h
  return p
}
""")
    shared = share_views(program)
    assert computed_views(shared) == ["h"]
    _same_values(shared, program)


def test_a_part_without_a_dim_of_the_whole_stays_in_it() -> None:
    """The class token of a batch has no batch, which what reads it may go over."""
    text = """mirage 1
mugraph tokens(c: f32[s, k], x: f32[f, q, k], w: f32[k, n]) -> f32[f, n]
    where s = 1, f = 2, q = 7, k = 16, n = 8, m = 8 {
  t = concat c, x dims(s, q) to(m)
  e = exp t
  z = sum e over(f)
  d = div e, z
  y = matmul d, w over(k)
  p = slice y dim(m) start(0) stop(1) to(i)
  r = sum p over(i)
  return r
}
"""
    program = parse(text)
    sunk = sink_views(program)
    check(sunk)
    assert verify(sunk, program).equivalent


def test_programs_may_be_deeper_than_the_stack() -> None:
    lines = [f"  v{at + 1} = relu v{at}" for at in range(3000)]
    program = parse(
        "mirage 1\nmugraph deep(v0: f32[m, k]) -> f32[m, r] where m = 4, k = 8 {\n"
        + "\n".join(lines)
        + "\n  z = slice v3000 dim(k) start(0) stop(4) to(r)\n  return z\n}\n"
    )
    sunk = sink_views(program)
    assert sunk.applies[0].op.name == "slice"
    assert len(sunk.nodes) == 3001
