"""What a kernel computes before it waits for the kernel ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.analysis.launches import (
    after_wait,
    asked_ahead,
    behind_kernels,
    has_work_ahead,
    loads_beside,
    runs_ahead,
)
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule
from tests.programs import mugraphs

EARLY = Schedule(pdl=True)


def behind(graph: KernelGraph) -> list[tuple[BlockGraph, set[str]]]:
    return [(block, set(made)) for block, made in behind_kernels(graph)]


def test_what_is_needed_after_the_loop_waits_there() -> None:
    graph = mugraphs.side_product(16, 128, 64, 16, schedule=EARLY)
    ((block, made),) = behind(graph)
    assert block is graph.blocks[1]
    assert made == {"parts"}
    late = after_wait(block, made)
    assert late is not None
    assert "parts_t" in late
    loads = {n.result for n in block.loads}
    assert late & loads == {"parts_t"}
    assert runs_ahead(block, made)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_else_a_loop_reads_that_waits(prefetch: int) -> None:
    schedule = Schedule(pdl=True, prefetch=prefetch)
    ((block, made),) = behind(mugraphs.norm_ahead(16, 128, 64, schedule=schedule))
    assert [n.source for n in loads_beside(block, made)] == ["w"]
    assert not runs_ahead(block, made)
    assert has_work_ahead(block, made) == bool(asked_ahead(block, made))
    assert bool(asked_ahead(block, made)) == (prefetch > 0)
    late = replace(block, schedule=Schedule(prefetch=prefetch))
    assert not loads_beside(late, made)
    ((block, made),) = behind(mugraphs.side_product(16, 128, 64, 16, schedule=schedule))
    assert not loads_beside(block, made), "its loop does not wait"


def test_kernels_that_do_not_start_early_do_not_wait() -> None:
    graph = mugraphs.side_product(16, 128, 64, 16)
    ((block, made),) = behind(graph)
    assert after_wait(block, made) is None


def test_a_loop_over_what_a_kernel_made_comes_after_the_wait() -> None:
    g = KernelBuilder("pair", m=16, k=64, n=32)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    with g.block(grid={"m": 4}) as b:
        t = b.store(b.tanh(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    with g.block(grid={"m": 16}, loop=("k", 16), schedule=EARLY) as b:
        tt, wt = b.load(t, "m/grid, k/loop"), b.load(w, "k/loop, n")
        y = b.store(b.accumulate(b.matmul(tt, wt, over="k")), "m/grid, n", dtype=f16)
    ((block, made),) = behind(g.returns(y).build())
    assert after_wait(block, made) is None


def test_a_loop_that_scales_by_what_a_kernel_made_comes_after_the_wait() -> None:
    g = KernelBuilder("scaled", m=16, k=64)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.store(b.sum(b.load(x, "m/grid, k"), over="k"), "m/grid", dtype=f32)
    with g.block(grid={"m": 4}, loop=("k", 16), schedule=EARLY) as b:
        scale = b.sqrt(b.load(t, "m/grid"))
        part = b.mul(b.load(x, "m/grid, k/loop"), scale)
        y = b.store(b.accumulate(b.sum(part, over="k")), "m/grid", dtype=f16)
    ((block, made),) = behind(g.returns(y).build())
    assert after_wait(block, made) is None


def test_a_loop_that_stores_comes_after_the_wait() -> None:
    g = KernelBuilder("copies", m=16, k=64)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 4}) as b:
        t = b.store(b.tanh(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    with g.block(grid={"m": 4}, loop=("k", 16), schedule=EARLY) as b:
        part = b.square(b.load(x, "m/grid, k/loop"))
        u = b.store(b.accumulate(part, "concat"), "m/grid, k", dtype=f16)
    ((block, made),) = behind(g.returns(t, u).build())
    assert after_wait(block, made) is None


@pytest.mark.parametrize("kernel", ["library", "block"])
def test_only_kernels_right_behind_a_generated_one_may_wait_late(kernel: str) -> None:
    """Of a library kernel it is not known that it has waited, or is launched at all."""
    g = KernelBuilder("chain", m=16, k=64)
    x = g.input("x", f16, "m, k")
    if kernel == "library":
        t = g.apply("tanh", x)
    else:
        with g.block(grid={"m": 4}) as b:
            t = b.store(b.tanh(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    with g.block(grid={"m": 4}, schedule=EARLY) as b:
        both = b.add(b.load(x, "m/grid, k"), b.load(t, "m/grid, k"))
        y = b.store(both, "m/grid, k", dtype=f16)
    assert len(behind(g.returns(y).build())) == (kernel == "block")


def test_views_of_what_a_kernel_made_are_made_too() -> None:
    g = KernelBuilder("views", m=16, k=64)
    x = g.input("x", f16, "m, k")
    free = g.slice(x, dim="k", start=0, stop=32, to="i")
    with g.block(grid={"m": 4}) as b:
        t = b.store(b.tanh(b.load(x, "m/grid, k")), "m/grid, k", dtype=f16)
    half = g.slice(t, dim="k", start=0, stop=32, to="j")
    with g.block(grid={"m": 4}) as b:
        u = b.store(b.tanh(b.load(half, "m/grid, j")), "m/grid, j", dtype=f16)
    with g.block(grid={"m": 4}, schedule=EARLY) as b:
        v = b.store(b.tanh(b.load(free, "m/grid, i")), "m/grid, i", dtype=f16)
    found = behind(g.returns(u, v).build())
    assert [made for _, made in found] == [{t, half, u}]


def test_the_first_kernel_is_behind_none() -> None:
    graph = mugraphs.side_product(16, 128, 64, 16, schedule=EARLY)
    assert behind(replace(graph, nodes=graph.nodes[:1], returns=())) == []
