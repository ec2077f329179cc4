"""What a tuner gets to see, whatever the estimate says."""

from __future__ import annotations

from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import (
    Plan,
    is_one_kernel,
    leaves_products,
    splits_a_loop,
    with_every_kind,
)
from tests.programs import mugraphs


def gate_and_product() -> KernelGraph:
    g = KernelBuilder("gate", m=64, k=32, n=16)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"m": 16}) as b:
        y = b.store(b.silu(b.load(x, "m/grid, k")), "m/grid, k", name="y")
    return g.returns(g.matmul(y, w, over="k")).build()


TWO_KERNELS = mugraphs.attention(2, 64, 128, 16, splits=2)
ONE_KERNEL = mugraphs.gated_mlp(8, 64, 96, tile_k=32)
BESIDE = gate_and_product()


def test_kinds_of_structures() -> None:
    graphs = (TWO_KERNELS, ONE_KERNEL, BESIDE)
    assert [is_one_kernel(g) for g in graphs] == [False, True, False]
    assert [leaves_products(g) for g in graphs] == [False, False, True]
    assert [splits_a_loop(g) for g in graphs] == [True, False, False]


def test_the_best_of_each_kind_is_among_the_first() -> None:
    first = [Plan(float(i), TWO_KERNELS) for i in range(4)]
    fused, beside = Plan(8.0, ONE_KERNEL), Plan(9.0, BESIDE)
    plans = [*first, fused, beside, Plan(10.0, BESIDE)]
    found = with_every_kind(plans, 3)
    assert found[:3] == [first[0], fused, beside]
    assert sorted(found, key=lambda p: p.microseconds) == plans
    assert with_every_kind(plans, 6) == plans
    assert with_every_kind(plans, 1) == plans
