"""Kernel graphs around blocks: views, library kernels, chains, scalars, returns."""

from __future__ import annotations

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import Apply, KernelGraph, Schedule
from tests.backends.running import check


def test_views_feed_blocks_with_their_strides() -> None:
    g = KernelBuilder("views", m=6, k=12, n=6)
    x = g.input("x", f32, "m, k")
    part = g.slice(x, dim="k", start=3, stop=10, to="j")
    other = g.rename(x, dims="m", to="n")
    with g.block(grid={"m": 4}) as b:
        p = b.matmul(b.load(x, "m/grid, k"), b.load(other, "n, k"), over="k")
        s = b.mul(p, b.sum(b.load(part, "m/grid, j"), over="j"))
        out = b.store(s, "m/grid, n")
    check(g.returns(out).build())


def test_a_value_from_before_the_loop_can_be_stored() -> None:
    g = KernelBuilder("before", m=5, k=9)
    x, y = g.input("x", f32, "m"), g.input("y", f32, "m, k")
    with g.block(grid={"m": 2}, loop=("k", 4)) as b:
        before = b.square(b.load(x, "m/grid"))
        t = b.mul(b.load(y, "m/grid, k/loop"), before)
        first = b.store(before, "m/grid")
        second = b.store(b.accumulate(b.sum(t, over="k")), "m/grid")
    check(g.returns(first, second).build())


def test_one_tensor_for_two_inputs() -> None:
    g = KernelBuilder("twice", m=5, k=9)
    x, y = g.input("x", f32, "m, k"), g.input("y", f32, "m, k")
    with g.block(grid={"m": 2}) as b:
        out = b.store(
            b.sub(b.load(x, "m/grid, k"), b.load(y, "m/grid, k")), "k, m/grid"
        )
    same = torch.randn(5, 9)
    (found,) = check(g.returns(out).build(), [same, same])
    assert not found.any()


def test_a_program_that_returns_its_input() -> None:
    g = KernelBuilder("same", m=5, k=4)
    x = g.input("x", f32, "m, k")
    check(g.returns(x, axes="(k m)").build())


def test_programs_of_many_blocks_along_one_axis() -> None:
    """More than a launch allows along its second and third axis."""
    g = KernelBuilder("many", a=2, b=70_000)
    x = g.input("x", f32, "a, b")
    with g.block(grid={"a": 1, "b": 1}) as block:
        out = block.store(
            block.square(block.load(x, "a/grid, b/grid")), "a/grid, b/grid"
        )
    source = emit(g.returns(out).build())
    assert "many_kernel0[(70000, 2)]" in source
    assert "b_id = tl.program_id(0)" in source


def located() -> KernelGraph:
    g = KernelBuilder("located", m=5)
    x = g.input("x", f32, "m")
    with g.block(grid={"m": 2}) as b:
        out = b.store(b.exp(b.exp(b.load(x, "m/grid"))), "m/grid")
    graph = g.returns(out).build()
    block = graph.blocks[0]
    place = SourceLocation("/projects/model.py", 12, "    return exp(exp(x))")
    nodes = [
        Apply(n.result, n.op, n.operands, n.attrs, place) if isinstance(n, Apply) else n
        for n in block.nodes
    ]
    changed = type(block)(block.grid, block.loop, tuple(nodes), Schedule())
    return KernelGraph(
        graph.name, graph.inputs, (changed,), graph.returns, graph.extents
    )


def test_statements_of_one_line_of_the_user_name_it_once() -> None:
    source = emit(located())
    assert source.count("# src[model.py:12] return exp(exp(x))") == 1
    assert "home" not in source


@pytest.mark.gpu
def test_calls_are_captured_and_see_new_data() -> None:
    graph = located()
    run = TritonExecutable(graph)
    x = torch.randn(5, device="cuda")
    run(x)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        (y,) = run(x)
    x.copy_(torch.arange(5.0))
    captured.replay()
    torch.testing.assert_close(y, torch.exp(torch.exp(x)), rtol=1e-5, atol=0)
    for size in (5, 5):
        torch.testing.assert_close(run(x[:size])[0], y)
