"""Slices that show what was concatenated are called by its dims; where parts lie."""

from __future__ import annotations

import torch

from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.analysis.layouts import places
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.concats import name_whole_parts

SINKS = """mirage 1
mugraph sinks(s: f16[m, k], t: f16[m, r], v: f16[h, n], w: f16[i, n]) -> f16[m, n]
where m = 3, k = 6, r = 2, h = 6, i = 2, n = 4 {
  c = concat s, t dims(k, r) to(q)
  e = exp c
  p = slice e dim(q) start(0) stop(6) to(h)
  u = slice e dim(q) start(6) stop(8) to(i)
  y = matmul p, v over(h)
  z = matmul u, w over(i)
  o = add y, z
  return o
}
"""


def test_whole_parts_have_one_name() -> None:
    found = name_whole_parts(parse(SINKS))
    assert check(found) == []
    assert [i.type.names for i in found.inputs] == [
        ("m", "k"),
        ("m", "r"),
        ("k", "n"),
        ("r", "n"),
    ]
    assert "h" not in found.extent_of
    assert name_whole_parts(found) is found


def test_other_slices_stay() -> None:
    text = SINKS.replace("stop(6)", "stop(5)").replace("h = 6", "h = 5")
    found = name_whole_parts(parse(text))
    assert found.inputs[2].type.names == ("h", "n")
    assert found.inputs[3].type.names == ("r", "n")


def test_two_dims_of_a_value_stay_two() -> None:
    """The values have both dims, so they cannot be one."""
    text = SINKS.replace("v: f16[h, n]", "v: f16[h, k]").replace(
        "y = matmul p, v over(h)", "x = matmul p, v over(h)\n  y = matmul x, g over(k)"
    )
    text = text.replace("w: f16[i, n]", "w: f16[i, n], g: f16[k, n]")
    found = name_whole_parts(parse(text))
    assert found.inputs[2].type.names == ("h", "k")


REPEATED = """mirage 1
mugraph repeated(x: f32[m], y: f32[n, k]) -> f32[q, k]
where m = 4, n = 2, k = 8 {
  a = block grid(m / 2) {
    x_t: f32[m/grid] = load x
    v: f32[m/grid] = mul x_t, 2
    store a: f32[m/grid] = v
  }
  b = block grid(n / 1) {
    y_t: f32[n/grid, k] = load y
    v: f32[n/grid, k] = mul y_t, 3
    store b: f32[n/grid, k] = v
  }
  c = concat a, b dims(m, n) to(q)
  return c
}
"""


def test_a_part_that_is_repeated_is_copied_to_its_place() -> None:
    graph = parse(REPEATED)
    types = kernel_types(graph)
    assert list(places(graph, types, graph.extent_of)) == ["b"]
    x, y = torch.randn(4), torch.randn(2, 8)
    (found,) = TritonExecutable(graph, interpret=True)(x, y)
    expected = torch.cat([(x * 2)[:, None].expand(4, 8), y * 3])
    torch.testing.assert_close(found, expected)
