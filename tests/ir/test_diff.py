"""The differences of two graphs, as people read them."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash, diff
from mirage_dsl.ir.graph import KernelGraph, Schedule


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


def test_what_is_constant() -> None:
    a = linear()
    early = replace(a.inputs[1], constant=True)
    b = replace(a, inputs=(a.inputs[0], early))
    assert diff(a, b).splitlines() == ["input w: f16[k, n] -> constant f16[k, n]"]
    assert canonical_hash(a) == canonical_hash(b), "it is the same program"
    assert canonical_hash(a, schedule=True) != canonical_hash(b, schedule=True)


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


def test_other_names_only() -> None:
    text = "the same graph under other names or in another order"
    assert diff(linear(), linear(x="z")) == text


def silu_products(*, first: str, dims: str, prefix: str) -> KernelGraph:
    m, k, n = dims
    b = KernelBuilder("gated", **{m: 4, k: 8, n: 6})
    x = b.input("x", f16, f"{m}, {k}")
    u, v = b.input("u", f16, f"{k}, {n}"), b.input("v", f16, f"{k}, {n}")
    left = b.matmul(x, u, over=k, name=f"{prefix}1")
    right = b.matmul(x, v, over=k, name=f"{prefix}2")
    gate = b.apply(first, left, name=f"{prefix}3")
    return b.returns(b.mul(gate, right, name=f"{prefix}4")).build()


def test_a_change_under_other_names_of_values_and_dims() -> None:
    a = silu_products(first="silu", dims="mkn", prefix="t")
    b = silu_products(first="gelu", dims="pqr", prefix="s")
    assert diff(a, b).splitlines() == [
        "- t3: f16[m, n] = silu t1",
        "- t4: f16[m, n] = mul t3, t2",
        "+ s3: f16[m, n] = gelu t1",
        "+ s4: f16[m, n] = mul s3, t2",
        "return: t4: f16[m, n] -> s4: f16[m, n]",
    ]


def test_automatic_names_that_moved_on() -> None:
    """One node more gives all that follow other automatic names."""

    def graph(doubled: bool) -> KernelGraph:
        b = KernelBuilder("f", m=4)
        x = b.input("x", f16, "m")
        with b.block(grid={"m": 2}) as block:
            xt = block.load(x, "m/grid")
            other = block.mul(xt, 2) if doubled else xt
            e = block.exp(xt)
            y = block.store(block.add(e, other), "m/grid", name="y")
        return b.returns(y).build()

    assert diff(graph(doubled=False), graph(doubled=True)).splitlines() == [
        "block of y:",
        "  + t2_new: f32[m/grid] = mul t1, 2",
        "  - t3: f32[m/grid] = add t2, t1",
        "  - store y: f16[m/grid] = t3",
        "  + t4: f32[m/grid] = add t2, t2_new",
        "  + store y: f16[m/grid] = t4",
    ]


def test_a_graph_that_is_not_well_formed_can_be_compared() -> None:
    broken = replace(linear(), nodes=(), returns=linear().returns)
    assert "- y0 = block grid(n / 4) loop(k / 8) {" in diff(linear(), broken)
