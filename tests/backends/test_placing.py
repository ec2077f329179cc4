"""Concatenations of what kernels make: stored where they belong, without a copy."""

from __future__ import annotations

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.maps import with_symbolic
from tests.backends.running import check
from tests.programs import mugraphs

COPIES = ("torch.cat", "copy_")


def _copies(source: str) -> int:
    return sum(source.count(call) for call in COPIES)


@pytest.mark.parametrize("order", ["m/grid, k", "k, m/grid"])
def test_parts_of_one_kernel_are_not_copied(order: str) -> None:
    g = KernelBuilder("halves", m=6, k=16)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        first = b.store(b.square(t), "m/grid, k", dtype=f16)
        second = b.store(b.neg(t), order, dtype=f16)
    graph = g.returns(g.concat(first, second, dims="k, k", to="j")).build()
    assert _copies(emit(graph)) == 0
    check(graph)


def test_other_parts_are_copied() -> None:
    g = KernelBuilder("mixed", m=6, k=16, n=8)
    x, y = g.input("x", f32, "m, k"), g.input("y", f32, "n, m")
    with g.block(grid={"m": 2}) as b:
        part = b.store(b.square(b.load(x, "m/grid, k")), "m/grid, k")
    graph = g.returns(g.concat(y, part, y, dims="n, k, n", to="j")).build()
    assert _copies(emit(graph)) == 2
    check(graph)


def test_a_part_that_repeats_along_an_axis_is_copied() -> None:
    g = KernelBuilder("repeated", m=6, k=16, n=8)
    x, y = g.input("x", f32, "n"), g.input("y", f32, "m, k")
    with g.block(grid={"n": 2}) as b:
        part = b.store(b.square(b.load(x, "n/grid")), "n/grid")
    graph = g.returns(g.concat(y, part, dims="k, n", to="j")).build()
    assert _copies(emit(graph)) == 1
    check(graph)


def test_a_part_may_have_parts() -> None:
    g = KernelBuilder("nested", m=6, k=16, n=8)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        first, second = (
            b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))
        )
    inner = g.concat(first, second, dims="k, k", to="j")
    with g.block(grid={"m": 4}) as b:
        third = b.store(b.square(b.load(inner, "m/grid, j")), "m/grid, j", dtype=f16)
    graph = g.returns(g.concat(third, inner, dims="m, m", to="p")).build()
    assert _copies(emit(graph)) == 0
    check(graph)


def test_later_kernels_read_a_part_where_it_lies() -> None:
    g = KernelBuilder("read", m=6, k=16)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        first, second = (
            b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))
        )
    with g.block(grid={"m": 4}) as b:
        again = b.store(b.square(b.load(second, "m/grid, k")), "k, m/grid", dtype=f16)
    whole = g.concat(first, second, dims="k, k", to="j")
    graph = g.returns(whole, again).build()
    assert _copies(emit(graph)) == 0
    check(graph)


@pytest.mark.parametrize("dims", ["m, m", "k, k"])
@pytest.mark.parametrize("k", [16, 5])
def test_extents_may_be_symbolic(dims: str, k: int) -> None:
    """Parts start where every extent leaves them aligned, or are copied."""
    g = KernelBuilder("symbolic", m=6, k=k)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        first, second = (
            b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))
        )
    graph = g.returns(g.concat(first, second, dims=dims, to="j")).build()
    graph = with_symbolic(graph, ["m"])
    assert _copies(emit(graph)) == (k == 5)
    for m in (6, 4, 5, 1):
        check(graph, m=m)


def test_a_part_of_symbolic_parts() -> None:
    g = KernelBuilder("nested", m=6, n=3, k=16)
    x, y = g.input("x", f16, "m, k"), g.input("y", f16, "n, k")
    with g.block(grid={"m": 2}) as b:
        t = b.load(x, "m/grid, k")
        parts = [b.store(v, "m/grid, k", dtype=f16) for v in (b.square(t), b.neg(t))]
    inner = g.concat(*parts, dims="m, m", to="j")
    with g.block(grid={"n": 2}) as b:
        first = b.store(b.square(b.load(y, "n/grid, k")), "n/grid, k", dtype=f16)
    graph = g.returns(g.concat(first, inner, dims="n, j", to="p")).build()
    graph = with_symbolic(graph, ["m", "n"])
    assert _copies(emit(graph)) == 0
    for m, n in ((6, 3), (5, 1), (1, 4)):
        check(graph, m=m, n=n)


def test_parts_may_start_anywhere() -> None:
    """Also those that a later kernel reads, which begin 10 bytes into a row."""
    graph = mugraphs.odd_parts(m=6, k=5)
    assert _copies(emit(graph)) == 0
    check(graph)


def test_a_part_that_is_returned_has_memory_of_its_own() -> None:
    g = KernelBuilder("returned", m=6, k=16)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 2}) as b:
        part = b.store(b.square(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    graph = g.returns(g.concat(part, x, dims="k, k", to="j"), part).build()
    assert _copies(emit(graph)) == 1
    check(graph)
