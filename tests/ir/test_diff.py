"""The differences of two graphs, as people read them."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.diff import diff
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.types import f16


def linear(
    *,
    tile: int = 4,
    loop: int = 8,
    x: str = "x",
    split_x: bool = True,
    act: str | None = None,
    warps: int = 4,
    k: int = 16,
) -> KernelGraph:
    b = KernelBuilder("linear", m=4, k=k, n=12)
    xs, ws = b.input(x, f16, "m, k"), b.input("w", f16, "k, n")
    schedule = Schedule(num_warps=warps)
    with b.block(grid={"n": tile}, loop=("k", loop), schedule=schedule) as block:
        xt = block.load(xs, "m, k/loop", name="xt")
        wt = block.load(ws, "k/loop, n/grid", name="wt")
        if not split_x:
            xt = block.mul(xt, 2, name="x2")
            xt = block.cast(xt, dtype="f16", name="xt2")
        a = block.accumulate(block.matmul(xt, wt, over="k", name="p"), name="a")
        block.store(a, "m, n/grid", name="y0")
    y = b.apply(act, "y0", name="y") if act else "y0"
    return b.returns(y).build()


def test_equal_graphs_have_no_difference() -> None:
    assert diff(linear(), linear()) == ""


def test_tiles_loop_and_schedule() -> None:
    assert diff(linear(), linear(tile=6, loop=4, warps=8)).splitlines() == [
        "block of y0:",
        "  grid tile of n: 4 -> 6",
        "  loop: k / 8 -> k / 4",
        "  schedule num_warps: 4 -> 8",
    ]


def test_nodes_of_a_block() -> None:
    lines = diff(linear(), linear(split_x=False)).splitlines()
    assert lines[0] == "block of y0:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "- p",
        "+ x2",
        "+ xt2",
        "+ p",
    ]


def test_kernels_extents_and_returns() -> None:
    text = diff(linear(), linear(act="exp", k=32))
    assert "extent k: 16 -> 32" in text
    assert "+ y: f16[m, n] = exp y0" in text
    assert "return: y0: f16[m, n] -> y: f16[m, n]" in text


def test_another_input_name_is_only_a_name() -> None:
    text = diff(linear(), linear(x="z"))
    assert text.startswith("the same graph under other names")
    assert "- input x: f16[m, k]" in text


def test_a_graph_that_is_not_well_formed_can_be_compared() -> None:
    broken = replace(linear(), nodes=(), returns=linear().returns)
    assert "- y0 = block grid(n / 4) loop(k / 8) {" in diff(linear(), broken)
