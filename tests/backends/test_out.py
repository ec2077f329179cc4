"""Results in the caller's tensors, of whatever strides."""

from __future__ import annotations

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import DTypeError, ShapeError
from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
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
    source = plan(graph, out=True).source
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
    assert "torch.empty" not in plan(graph, out=True).source
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
