"""The canonical hash: blind to names and orders, not to anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage_dsl.core.types import DType, bf16, f16, f32
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph, Schedule, Split


def gated(
    *,
    silu_on: int = 1,
    dims: str = "mkn",
    names: str = "xuvabcy",
    dtype: DType = f16,
    swapped: bool = False,
    late: bool = False,
    k: int = 8,
) -> KernelGraph:
    """silu(x @ u) * (x @ v), or with silu on the other product."""
    m, c, n = dims
    b = KernelBuilder("gated", **{m: 4, c: k, n: 6})
    x = b.input(names[0], dtype, f"{m}, {c}")
    u, v = (b.input(i, dtype, f"{c}, {n}") for i in names[1:3])
    order = [2, 1] if late else [1, 2]
    weights = {1: u, 2: v}
    products = {i: b.matmul(x, weights[i], over=c, name=names[2 + i]) for i in order}
    products[silu_on] = b.silu(products[silu_on], name=names[5])
    operands = [products[1], products[2]]
    y = b.mul(*(reversed(operands) if swapped else operands), name=names[6])
    return b.returns(y).build()


def blocked(
    *,
    tile: int = 4,
    loop: int = 4,
    dims: str = "mkn",
    whole: bool = False,
    dtype: DType = f16,
    schedule: Schedule | None = None,
) -> KernelGraph:
    m, k, n = dims
    b = KernelBuilder("mm", **{m: 4, k: 16, n: 12})
    x, w = b.input("x", f16, f"{m}, {k}"), b.input("w", f16, f"{k}, {n}")
    with b.block(grid={n: tile}, loop=(k, loop), schedule=schedule) as block:
        xt = block.load(x, f"{m}, {k}/loop")
        wt = block.load(w, f"{k}/loop, {n}/grid")
        scaled = block.mul(block.matmul(xt, wt, over=k), one_over(k))
        g = block.load(w, f"{k}, {n}/grid" if whole else f"{k}/loop, {n}/grid")
        total = block.sum(g, over=k)
        a, c = block.accumulate(scaled), total if whole else block.accumulate(total)
        y = block.store(block.mul(a, c), f"{m}, {n}/grid", dtype=dtype)
    return b.returns(y).build()


def split(name: str = "k") -> KernelGraph:
    b = KernelBuilder("split", **{"m": 4, name: 16})
    x = b.input("x", f32, f"m, {name}")
    with b.block(grid={name: 4}) as block:
        total = block.sum(block.load(x, f"m, {name}/grid"), over=name)
        parts = block.store(total, f"m, {name}#/grid")
    return b.returns(b.sum(parts, over=f"{name}#")).build()


def test_silu_on_either_product_differs() -> None:
    assert canonical_hash(gated(silu_on=1)) != canonical_hash(gated(silu_on=2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: gated(dims="pqr"),
        lambda: gated(dims="nmk"),
        lambda: gated(names="zyxwvut"),
        lambda: gated(swapped=True),
        lambda: gated(late=True),
    ],
)
def test_names_and_orders_do_not_count(make: Callable[[], KernelGraph]) -> None:
    assert canonical_hash(make()) == canonical_hash(gated())


@pytest.mark.parametrize(
    "make", [lambda: gated(k=9), lambda: gated(dtype=bf16), lambda: gated(silu_on=2)]
)
def test_wiring_sizes_and_dtypes_count(make: Callable[[], KernelGraph]) -> None:
    assert canonical_hash(make()) != canonical_hash(gated())


@pytest.mark.parametrize(
    "make",
    [
        lambda: blocked(tile=2),
        lambda: blocked(loop=8),
        lambda: blocked(whole=True),
        lambda: blocked(dtype=f32),
    ],
)
def test_tiles_maps_and_storage_count(make: Callable[[], KernelGraph]) -> None:
    assert canonical_hash(make()) != canonical_hash(blocked())


def test_dims_of_blocks_are_renamed_too() -> None:
    assert canonical_hash(blocked(dims="abc")) == canonical_hash(blocked())
    assert canonical_hash(blocked(dims="nkm")) == canonical_hash(blocked())
    assert canonical_hash(split("j")) == canonical_hash(split("k"))


def test_schedule_only_when_asked() -> None:
    other = blocked(schedule=Schedule(num_warps=8))
    assert canonical_hash(other) == canonical_hash(blocked())
    assert canonical_hash(other, schedule=True) != canonical_hash(
        blocked(), schedule=True
    )


def test_sizes_may_be_left_out() -> None:
    structure = canonical_hash(blocked(), sizes=False)
    assert canonical_hash(blocked(tile=2, loop=8), sizes=False) == structure
    bigger = blocked().with_extents({"k": 4096})
    assert canonical_hash(bigger, sizes=False) == structure
    assert canonical_hash(blocked(whole=True), sizes=False) != structure


def test_order_of_operands_counts_where_it_matters() -> None:
    def graph(first: str, second: str) -> KernelGraph:
        b = KernelBuilder("f", m=4)
        b.input("x", f32, "m")
        b.input("y", f32, "m")
        return b.returns(b.sub(first, second)).build()

    assert canonical_hash(graph("x", "y")) != canonical_hash(graph("y", "x"))


def test_computing_twice_is_not_sharing() -> None:
    def graph(twice: bool) -> KernelGraph:
        b = KernelBuilder("f", m=4)
        x = b.input("x", f32, "m")
        e = b.exp(x)
        return b.returns(b.add(e, b.exp(x) if twice else e)).build()

    assert canonical_hash(graph(True)) != canonical_hash(graph(False))


def test_attributes_layout_and_returned_axes_count() -> None:
    def graph(
        start: int = 0, layout: tuple[int, ...] | None = None, axes: str = "m, s"
    ) -> KernelGraph:
        b = KernelBuilder("f", m=4, n=6)
        x = b.input("x", f32, "m, n", layout=layout)
        cut = b.slice(x, dim="n", start=start, stop=start + 3, to="s")
        return b.returns(cut, axes=axes).build()

    hashes = [graph(), graph(start=1), graph(layout=(1, 0)), graph(axes="s, m")]
    assert len({canonical_hash(g) for g in hashes}) == 4


def test_grid_order_counts() -> None:
    graph = split()
    (block,) = graph.blocks
    wider = replace(block, grid=(*block.grid, Split("m", 2)))
    narrower = replace(block, grid=(Split("m", 2), *block.grid))
    hashes = {
        canonical_hash(replace(graph, nodes=(b, graph.nodes[1])))
        for b in (wider, narrower)
    }
    assert len(hashes) == 2
