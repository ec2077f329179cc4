"""Views moved to the inputs."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.numpy_domain import evaluate_numpy
from mirage_dsl.ir.parser import parse
from mirage_dsl.search.driver import search
from mirage_dsl.search.sink import sink_views

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
STUCK = """mirage 1
mugraph stuck(x: f16[m, k], y: f16[m, l]) -> f16[m, r] where m = 3, k = 4, l = 5 {
  a = exp x
  b = exp y
  c = concat a, b dims(k, l) to(n)
  d = slice c dim(n) start(2) stop(6) to(r)
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


def test_parts_of_a_concatenation_are_what_was_joined() -> None:
    sunk = sink_views(parse(PART))
    names = [n.op.name for n in sunk.nodes if isinstance(n, Apply)]
    assert "concat" not in names
    assert names.count("slice") == 1
    assert names.count("matmul") == 1
    assert sunk.inputs[2].type.names == ("l", "n")


def test_halves_of_a_product_become_one_kernel() -> None:
    result = search(parse(CHUNK), k=2)
    assert len(result.best.mugraph.blocks) == 1
    assert result.best.mugraph.blocks[0].results == ("z",)
    assert result.best.certificate is not None
    assert result.best.certificate.ok
