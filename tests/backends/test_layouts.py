"""How tensors between kernels lie in memory: chosen, emitted, and right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import f16, f32
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.analysis.layouts import laid_out
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Return, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from tests.backends.running import check
from tests.programs import mugraphs


def by_columns(m: int = 64, n: int = 128, columns: int = 4) -> KernelGraph:
    """A kernel by rows, then one that reads a few whole columns."""
    g = KernelBuilder("columns", m=m, n=n)
    x = g.input("x", f16, "m, n")
    with g.block(grid={"m": 16}, schedule=Schedule(4, 1)) as b:
        t = b.store(b.exp(b.load(x, "m/grid, n")), "m/grid, n", dtype=f32, name="t")
    with g.block(grid={"n": columns}, schedule=Schedule(4, 1)) as b:
        column = b.load(t, "m, n/grid")
        y = b.store(b.sum(column, over="m"), "n/grid", dtype=f32, name="y")
    return g.returns(y).build()


def layout_of(graph: KernelGraph, value: str) -> tuple[int, ...] | None:
    extents = derived_extents(graph, graph.extent_of)
    return laid_out(graph, kernel_types(graph), extents)[value].layout


def test_columns_that_are_read_lie_together() -> None:
    assert layout_of(by_columns(), "t") == (1, 0)
    assert layout_of(by_columns(columns=64), "t") is None


def test_the_emitted_module_lays_it_out_and_is_right() -> None:
    graph = by_columns()
    assert "torch.empty((128, 64), dtype=torch.float32" in emit(graph)
    check(graph)


def test_the_estimate_knows() -> None:
    graph = by_columns(4096, 4096)
    returned = replace(graph, returns=(*graph.returns, _returned(graph)))
    # What the caller gets is row-major, whoever reads it.
    assert layout_of(returned, "t") is None
    chosen, fixed = (estimate(g, H100).kernels[1].l2_bytes for g in (graph, returned))
    assert chosen < 0.7 * fixed


def _returned(graph: KernelGraph) -> Return:
    (item,) = graph.returns
    return replace(item, value="t", type=kernel_types(graph)["t"])


def test_parts_come_first() -> None:
    graph = mugraphs.split_k(64, 256, 96)
    (parts,) = graph.blocks[0].results
    axes = kernel_types(graph)[parts].axes
    at = next(i for i, axis in enumerate(axes) if axis[0].name == "k#")
    layout = layout_of(graph, parts) or tuple(range(len(axes)))
    assert layout[0] == at


@pytest.mark.parametrize("stored", ["n, c, x", "n, x, c", "x, c, n"])
def test_blocks_follow_what_they_store(stored: str) -> None:
    """Along the first axis of the launch results lie side by side, or nearly so."""
    extents, grid = {"n": 4, "c": 32, "x": 48}, {"n": 2, "c": 16, "x": 8}
    g = KernelBuilder("transposed", **extents)
    v = g.input("v", f32, "n, x, c")
    with g.block(grid=grid) as b:
        read = b.load(v, "n/grid, x/grid, c/grid")
        axes = ", ".join(f"{d}/grid" for d in stored.split(", "))
        made = b.store(b.neg(read), axes)
    graph = g.returns(made).build()
    counts = {d: str(extents[d] // tile) for d, tile in grid.items()}
    order = stored.split(", ")[::-1]
    (kernel,) = plan(graph).kernels
    assert kernel.grid == tuple(counts[d] for d in order)
    check(graph)


def test_blocks_that_reduce_follow_what_they_store() -> None:
    """What goes through a loop lies in memory beside what the next block reads."""
    g = KernelBuilder("sums", m=16, k=64, n=256)
    x = g.input("x", f32, "m, k, n")
    with g.block(grid={"m": 1, "n": 64}, loop=("k", 16)) as b:
        read = b.load(x, "m/grid, k/loop, n/grid")
        made = b.store(b.accumulate(b.sum(read, over="k")), "m/grid, n/grid")
    (kernel,) = plan(g.returns(made).build()).kernels
    assert kernel.grid == ("4", "16")


def test_blocks_of_products_stand_in_the_order_of_the_grid() -> None:
    """Which operand is read again from L2 is the schedule's choice."""
    g = KernelBuilder("product", m=64, k=32, n=128)
    x, w = g.input("x", f32, "m, k"), g.input("w", f32, "k, n")
    with g.block(grid={"m": 16, "n": 64}) as b:
        left = b.load(x, "m/grid, k")
        right = b.load(w, "k, n/grid")
        made = b.store(b.matmul(left, right, over="k"), "m/grid, n/grid")
    (kernel,) = plan(g.returns(made).build()).kernels
    assert kernel.grid == ("4", "2")
