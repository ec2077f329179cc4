"""Results in the caller's tensors, of whatever strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.base import overlaps, stored_over
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import DTypeError, ShapeError, UnsupportedError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import random_inputs


def _with_gaps(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A view of every other element of each axis, in a tensor of ones."""
    whole = torch.ones([2 * n for n in shape], dtype=dtype)
    return whole[tuple(slice(1, None, 2) for _ in shape)]


def _check(graph: KernelGraph, copies: int) -> None:
    inputs = random_inputs(graph)
    executable = TritonExecutable(graph, interpret=True)
    expected = executable(*inputs)
    for make in (_with_gaps, torch.empty):
        outs = [make(tuple(t.shape), dtype=t.dtype) for t in expected]
        found = executable(*inputs, out=outs)
        assert all(a is b for a, b in zip(found, outs, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(outs, expected, strict=True))
    source = plan(graph, Variant(out=True)).source
    assert source.count("copy_") == copies


def _halves(b: KernelBuilder) -> list[str]:
    x = b.input("x", f16, "m, k")
    with b.block(grid={"m": 2}) as block:
        t = block.load(x, "m/grid, k")
        values = block.square(t), block.neg(t)
        return [block.store(v, "m/grid, k", dtype=f16) for v in values]


@pytest.mark.parametrize("axes", ["m, k", "k, m", "(m k)", "k, 1, m"])
def test_results_are_stored_at_once(axes: str) -> None:
    g = KernelBuilder("stored", m=6, k=16)
    first, second = _halves(g)
    _check(g.returns(first, axes=axes).returns(second).build(), copies=0)


def test_parts_are_stored_into_the_given_whole() -> None:
    g = KernelBuilder("joined", m=6, k=16)
    whole = g.concat(*_halves(g), dims="k, k", to="j")
    with g.block(grid={"m": 4}) as b:
        t = b.load(whole, "m/grid, j")
        total = b.store(b.sum(t, over="j"), "m/grid", dtype=f32)
    graph = g.returns(whole, axes="j, m").returns(total).build()
    assert "torch.empty" not in plan(graph, Variant(out=True)).source
    _check(graph, copies=0)


def test_what_cannot_be_stored_there_is_copied() -> None:
    g = KernelBuilder("copied", m=6, h=2, k=8)
    x = g.input("x", f32, "m, h, k")
    e = g.exp(x)
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, h, k")
        merged = b.store(b.square(t), "m/grid, (h k)")
        again = b.store(b.neg(t), "m/grid, h, k")
    graph = g.returns(e, again, again).returns(merged, axes="m, h, k").build()
    _check(graph, copies=3)


def test_tensors_that_do_not_fit_are_refused() -> None:
    g = KernelBuilder("refused", m=6, k=16)
    executable = TritonExecutable(g.returns(*_halves(g)).build(), interpret=True)
    x = torch.ones((6, 16), dtype=torch.float16)
    good = torch.empty_like(x)
    with pytest.raises(ShapeError, match=r"\(16, 6\), expected \(6, 16\)"):
        executable(x, out=[good, good.T])
    with pytest.raises(DTypeError, match="float32"):
        executable(x, out=[good.float(), good])
    with pytest.raises(ShapeError, match="1 tensors; it returns 2"):
        executable(x, out=[good])


# -- Where an input lies ---------------------------------------------------------------

TWO_KERNELS = """mirage 1

mugraph moved(x: f32[m, k]) -> f32[m, k] where m = 16, k = 32 {
  s = block grid(m / 4) {
    t = load x[m/grid, k]
    r = sum t over(k)
    store s: f32[m/grid] = r
  }
  y = block grid(m / 4) {
    t = load x[m/grid, k]
    r = load s[m/grid]
    d = t - r
    store y: f32[m/grid, k] = d
  }
  return y
}
"""
ONE_KERNEL = """mirage 1

mugraph scaled(x: f32[m, k], c: f32[m]) -> f32[m, k] where m = 16, k = 32 {
  y = block grid(m / 4) loop(k / 8) {
    t = load x[m/grid, k/loop]
    v = load c[m/grid]
    p = t * v
    a = accumulate p concat
    store y: f32[m/grid, k] = a
  }
  return y
}
"""
OTHER_ELEMENTS = """mirage 1

mugraph turned(x: f32[m, k]) -> f32[k, m] where m = 32, k = 32 {
  y = block grid(m / 4) {
    t = load x[m/grid, k]
    d = t * 2
    store y: f32[k, m/grid] = d
  }
  return y
}
"""
AGAIN = """mirage 1

mugraph rows(x: f32[m, k]) -> f32[m, k] where m = 16, k = 32 {
  y = block grid(m / 4, k / 8) {
    t = load x[m/grid, k]
    u = load x[m/grid, k/grid]
    s = sum t over(k)
    d = u - s
    store y: f32[m/grid, k/grid] = d
  }
  return y
}
"""


AT_A_PLACE = """mirage 1

mugraph put(c: f32[m, n], p: i64[], x: constant f16[m, k], w: f16[k, n]) -> f32[m, n]
where m = 16, k = 64, n = 32 {
  i = index m
  y = block grid(m / 4, n / 16) loop(k / 16) num_stages(1) pdl(true) early(2) {
    t = load c[m/grid, n/grid]
    it = load i[m/grid]
    pt = load p[]
    xt = load x[m/grid, k/loop]
    wt = load w[k/loop, n/grid]
    q = xt * wt
    r = sum q over(k)
    a = accumulate r
    e = equal it, pt
    z = where e, a, t
    store y: f32[m/grid, n/grid] = z
  }
  return y
}
"""


@pytest.mark.parametrize("place", ["m/grid, k/loop", "k/loop"])
def test_one_row_is_written_of_what_is_loaded_early(place: str) -> None:
    """What depends on the row is not known before the wait: all blocks run then."""
    text = AT_A_PLACE
    if place == "k/loop":
        text = text.replace("constant f16[m, k]", "constant f16[k]")
        text = text.replace("load x[m/grid, k/loop]", "load x[k/loop]")
    graph = parse(text)
    c, _, *rest = random_inputs(graph)
    inputs = [c, torch.tensor(5), *rest]
    executable = TritonExecutable(graph, interpret=True)
    (right,) = executable(*inputs)
    (found,) = executable(*inputs, out=[c])
    assert found is c
    torch.testing.assert_close(c, right)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        (ONE_KERNEL, True),
        (TWO_KERNELS, False),
        (OTHER_ELEMENTS, False),
        (AGAIN, False),
    ],
)
def test_results_take_the_place_of_an_input(text: str, stays: bool) -> None:
    graph = parse(text)
    inputs = random_inputs(graph)
    expected = TritonExecutable(graph, interpret=True)(*inputs)[0]
    x = inputs[0].clone()
    executable = TritonExecutable(graph, interpret=True)
    for _ in range(2):
        x.copy_(inputs[0])
        (found,) = executable(x, *inputs[1:], out=[x])
        assert found is x
        torch.testing.assert_close(x, expected)
    assert (stored_over(graph, ((0, 0, 0),), [x], [x]) is not None) is stays


def test_calls_that_share_memory_are_told_from_others() -> None:
    graph = parse(TWO_KERNELS)
    executable = TritonExecutable(graph, interpret=True)
    whole = torch.randn(32, 32)
    parts = whole[:16], whole[8:24], whole[16:]
    kept = whole.clone()
    right = [executable(kept[a : a + 16])[0] for a in (0, 8, 16)]
    for at, to in [(0, 2), (0, 1), (0, 0), (1, 0), (2, 0)]:
        whole.copy_(kept)
        (found,) = executable(parts[at], out=[parts[to]])
        torch.testing.assert_close(found, right[at])
        torch.testing.assert_close(parts[to], right[at])
    assert overlaps([parts[0]], [parts[2]]) == ()
    assert overlaps([parts[0]], [parts[1]]) == ((0, 0, 1024),)
    assert (
        stored_over(parse(ONE_KERNEL), ((0, 0, 1024),), [parts[0]], [parts[1]]) is None
    )


def test_kernels_may_update_their_arguments() -> None:
    def softmax(x: Any) -> Any:
        return torch.softmax(x, -1) @ x

    kernel = mirage.kernel(effort="none")(softmax)
    x = torch.randn(16, 16)
    right, fresh = softmax(x), torch.empty(16, 16)
    for _ in range(2):
        torch.testing.assert_close(kernel(x, out=fresh), right)
        y = x.clone()
        assert kernel(y, out=y) is y
        torch.testing.assert_close(y, right)


@pytest.mark.parametrize("interpret", [False, True])
def test_arrays_take_results_of_tensors(*, interpret: bool) -> None:
    def both(x: Any) -> Any:
        return x + 1, x * 2

    kernel, x = mirage.kernel(effort="none")(both), torch.randn(4, 6)
    for out in (
        (np.empty((4, 6), "float32"), torch.empty(4, 6)),
        (np.empty((4, 6), "float32")[::-1], np.empty((6, 4), "float32").T),
    ):
        with INTERPRET.scope(value=interpret):
            assert kernel(x, out=out) is out
            with pytest.raises(DTypeError, match="float64"):
                kernel(x, out=(np.empty((4, 6)), out[1]))
            with pytest.raises(ShapeError, match=r"\(6, 4\)"):
                kernel(x, out=(np.empty((6, 4), "float32"), out[1]))
        for found, expected in zip(out, both(x), strict=True):
            np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("array", [torch.zeros, np.zeros])
def test_results_that_share_memory_are_refused(array: Any) -> None:
    def both(x: Any) -> Any:
        return x + 1, x * 2

    kernel = mirage.kernel(effort="none")(both)
    whole, x = array((8, 8)), array((8, 4)) + 3
    for one, other in (((0, 4), (0, 4)), ((0, 4), (3, 7))):
        shared = whole[:, slice(*one)], whole[:, slice(*other)]
        with pytest.raises(UnsupportedError, match="two tensors that share memory"):
            kernel(x, out=shared)
    # Columns of one tensor lie between each other's, and are apart.
    kernel(x, out=(whole[:, :4], whole[:, 4:]))
    assert (whole[:, :4] == 4).all()
    assert (whole[:, 4:] == 6).all()
    kernel(x, out=(whole[:, ::2], whole[:, 1::2]))
    assert (whole[:, 1::2] == 6).all()
