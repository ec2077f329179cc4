"""Vectors that share the tile of a matrix with a matrix product."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mirage_dsl.backends.triton.emit import emit
from mirage_dsl.backends.triton.screen import compile_only
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.search.facts import facts_of
from mirage_dsl.types import bf16, f16
from tests.backends.running import check


def normed(schedule: Schedule, **extents: int) -> KernelGraph:
    """A layer norm folded into a product: the weights meet a vector as well."""
    g = KernelBuilder("normed", **{"m": 16, "k": 96, "n": 160} | extents)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    gain, bias = g.input("gain", f16, "k"), g.input("bias", f16, "k")
    with g.block(grid={"n": 64}, loop=("k", 32), schedule=schedule) as b:
        xt, wt = b.load(x, "m, k/loop"), b.load(w, "k/loop, n/grid")
        row, shift = b.load(gain, "k/loop"), b.load(bias, "k/loop")
        scaled = b.cast(b.mul(xt, row), dtype="f16")
        product = b.accumulate(b.matmul(scaled, wt, over="k"))
        sums = b.accumulate(b.matmul(wt, row, over="k"))
        added = b.accumulate(b.sigmoid(b.matmul(wt, shift, over="k")))
        mean = b.sum(b.accumulate(xt), over="k")
        y = b.add(b.sub(product, b.mul(sums, mean)), added)
        out = b.store(y, "m, n/grid")
    return g.returns(out).build()


@pytest.mark.parametrize("extents", [{}, {"m": 3, "k": 70, "n": 100}])
@pytest.mark.parametrize("flags", [{}, {"swap_operands": True}, {"descriptors": True}])
def test_a_vector_beside_a_matrix_product_becomes_a_row(
    flags: dict[str, bool], extents: dict[str, int]
) -> None:
    """So that the weights are moved once."""
    graph = normed(Schedule(**flags), **extents)
    source = emit(graph)
    assert source.count("tl.dot") == 3
    assert "once more" not in source
    assert source.count("= load bias") == 1
    check(graph)


def test_hopper_reads_one_tile_for_all_products() -> None:
    """Those have 64 rows each, of the weights."""
    (report,) = compile_only(normed(Schedule(swap_operands=True, descriptors=True)))
    assert report.products == "wgmma"
    assert report.spills == report.sync_loads == 0
    # Two tiles: x, and the weights; two vectors as rows, and one for the gain.
    assert report.pipelined_loads == 5


def test_the_cost_model_knows_of_these_rows() -> None:
    graph = normed(Schedule())
    extents = derived_extents(graph, graph.extent_of)
    block, types = graph.blocks[0], kernel_types(graph)
    products = facts_of(block, types, extents).products
    assert [p.is_vector for p in products] == [False] * 3
    small = replace(block, grid=(replace(block.grid[0], tile=8),))
    products = facts_of(small, types, extents).products
    assert [p.is_vector for p in products] == [False, True, True]
    fewer = replace(graph, nodes=(small,))
    assert emit(fewer).count("tl.dot") == 1


def test_a_row_that_the_kernel_ahead_makes_is_waited_for() -> None:
    g = KernelBuilder("ahead", m=16, k=64, n=128)
    x, w = g.input("x", bf16, "m, k"), g.input("w", bf16, "k, n")
    v = g.input("v", bf16, "k")
    with g.block(grid={"k": 32}) as b:
        made = b.store(b.square(b.load(v, "k/grid")), "k/grid", dtype=bf16)
    early = Schedule(pdl=True)
    with g.block(grid={"n": 64}, loop=("k", 32), schedule=early) as b:
        wt = b.load(w, "k/loop, n/grid")
        product = b.matmul(b.load(x, "m, k/loop"), wt, over="k")
        sums = b.matmul(wt, b.load(made, "k/loop"), over="k")
        y = b.add(b.accumulate(product), b.accumulate(sums))
        out = b.store(y, "m, n/grid")
    graph = g.returns(out).build()
    source = emit(graph)
    second = source[source.index("def ahead_kernel1") :]
    assert second.count("tl.dot") == 2
    assert second.index("gdc_wait()") < second.index("for it in")
    check(graph)


def test_copies_of_a_row_have_pointers_of_their_own() -> None:
    """Or the compiler would merge them, where the matrix unit needs one to itself."""
    g = KernelBuilder("copies", m=16, k=64, n=128, r=16)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    a, v = g.input("a", f16, "k, r"), g.input("v", f16, "k")
    schedule = Schedule(swap_operands=True)
    with g.block(grid={"n": 64}, loop=("k", 32), schedule=schedule) as b:
        xt, vt = b.load(x, "m, k/loop"), b.load(v, "k/loop")
        wide, narrow = b.load(w, "k/loop, n/grid"), b.load(a, "k/loop, r")
        pairs = [(xt, wide), (vt, wide), (xt, narrow), (vt, narrow)]
        one, two, three, four = (
            b.accumulate(b.matmul(*pair, over="k")) for pair in pairs
        )
        y = b.add(b.add(one, two), b.sum(b.mul(three, four), over="r"))
        out = b.store(y, "m, n/grid")
    graph = g.returns(out).build()
    source = emit(graph)
    assert source.count("tl.dot") == 4
    copies = re.findall(r"_row\w*_first\w* = (\w+) \+", source)
    assert len(copies) == len(set(copies)) == 2
    check(graph)


def test_vectors_stay_vectors_where_no_matrix_product_shares_the_tile() -> None:
    g = KernelBuilder("alone", k=64, n=128)
    w, v = g.input("w", f16, "k, n"), g.input("v", f16, "k")
    with g.block(grid={"n": 64}, loop=("k", 32)) as b:
        product = b.matmul(b.load(w, "k/loop, n/grid"), b.load(v, "k/loop"), over="k")
        out = b.store(b.accumulate(product), "n/grid")
    graph = g.returns(out).build()
    assert "tl.dot" not in emit(graph)
    check(graph)
