"""What a kernel computes before it waits for the kernel ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.analysis.launches import (
    after_wait,
    asked_ahead,
    awaited,
    behind_kernels,
    has_work_ahead,
    launched_early,
    launched_in_turn,
    launches,
    loaded_early,
    loads_beside,
    runs_ahead,
)
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
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


# -- What the caller promises ----------------------------------------------------------


def linear(k: int = 64, stages: int = 1) -> KernelGraph:
    """A product whose loop has 16 of k in an iteration, and part of a bias behind."""
    g = KernelBuilder("linear", m=16, k=k, n=32, j=40)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    part = g.slice(g.input("b", f16, "m, j"), dim="j", start=8, stop=40, to="n")
    with g.block(
        grid={"m": 16}, loop=("k", 16), schedule=Schedule(num_stages=stages)
    ) as b:
        xt, wt = b.load(x, "m/grid, k/loop"), b.load(w, "k/loop, n")
        total = b.accumulate(b.matmul(xt, wt, over="k"))
        y = b.store(b.add(total, b.load(part, "m/grid, n")), "m/grid, n", dtype=f16)
    return g.returns(y).build()


SETTLED = """mirage 1

mugraph sums(x: f32[n, d]) -> f32[n] where n = 32, d = 48 {
  i = index n
  j = index d
  y = block grid(n / 16) loop(d / 8) settled(low == 1 if d <= n) num_stages(1) {
    xt = load x[n/grid, d/loop]
    it = load i[n/grid]
    jt = load j[d/loop]
    low = jt <= it
    s = where(low, xt, 0)
    t = sum s over(d)
    a = accumulate t
    store y: f32[n/grid] = a
  }
  return y
}
"""


def test_without_a_promise_a_first_kernel_waits_for_all() -> None:
    graph = launched_early(linear(), first=True)
    assert awaited(graph) == {}
    assert [(k.made, k.announced) for k in launches(graph)] == [(None, "")]
    assert graph.blocks[0].schedule.early == 0


def test_constants_are_loaded_before_the_wait() -> None:
    graph = launched_early(linear(), first=True, constant={"w"})
    assert check(graph) == []
    (block,) = graph.blocks
    assert block.schedule == Schedule(num_stages=1, pdl=True, early=1)
    made = awaited(graph)[block]
    assert {"x", "b"} <= made
    assert "w" not in made
    assert [n.source for n in loaded_early(block, made)] == ["w"]
    assert has_work_ahead(block, made)
    (launch,) = launches(graph)
    assert launch.announced == "start", "the next call's first kernel loads early too"
    assert launched_in_turn(graph).blocks[0].schedule == Schedule(num_stages=1)


def test_a_view_of_what_is_not_constant_is_not() -> None:
    graph = launched_early(linear(), first=True, constant={"w"})
    (made,) = awaited(graph).values()
    assert made == {"x", "b", graph.applies[0].result}
    graph = launched_early(linear(), first=True, constant={"w", "b"})
    (made,) = awaited(graph).values()
    assert made == {"x"}
    loads = loaded_early(graph.blocks[0], made)
    assert {n.source for n in loads} == {"w", graph.applies[0].result}


@pytest.mark.parametrize("of", ["h, k", "k, h"])
def test_what_a_view_may_copy_is_not_constant(of: str) -> None:
    """PyTorch copies where memory has gaps: right ahead of what reads it."""
    g = KernelBuilder("flat", m=16, h=4, k=8)
    w, x = g.input("w", f32, "m, h, k"), g.input("x", f32, "m")
    flat = g.flatten(w, of=of, to="q")
    with g.block(loop=("q", 8), schedule=Schedule(num_stages=1)) as b:
        t = b.mul(b.load(flat, "m, q/loop"), b.load(x, "m"))
        y = b.store(b.sum(b.accumulate(t), over="q"), "m")
    graph = g.returns(y, flat).build()
    graph = launched_early(graph, first=True, constant={"w"})
    (made,) = awaited(graph).values()
    assert made == {"x", flat}


@pytest.mark.parametrize("changes", [{"k": 256}, {"stages": 3}])
def test_long_and_pipelined_loops_load_nothing_early(changes: dict[str, int]) -> None:
    graph = launched_early(linear(**changes), first=True, constant={"w"})
    assert graph.blocks[0].schedule.early == 0
    assert check(graph) == []


def test_loops_that_run_in_parts_load_nothing_early() -> None:
    """These begin where a mask hides nothing, which a block's place says."""
    graph = launched_early(parse(SETTLED), first=True, constant={"x"})
    assert graph.blocks[0].schedule.early == 0
    assert check(graph) == []
    graph = graph.with_schedules(lambda b: replace(b.schedule, early=1))
    assert [p.rule for p in check(graph)] == ["schedule"]


def test_what_was_chosen_of_a_kernel_that_starts_early_stays() -> None:
    schedule = Schedule(num_stages=1, pdl=True)
    graph = linear().with_schedules(lambda _: schedule)
    for _ in range(2):
        graph = launched_early(graph, first=True, constant={"w"})
        assert graph.blocks[0].schedule == schedule


def test_where_all_but_constants_comes_late_the_loop_runs_ahead() -> None:
    graph = launched_early(linear(), first=True, constant={"w", "x"})
    graph = graph.with_schedules(lambda b: replace(b.schedule, early=0))
    (made,) = awaited(graph).values()
    assert runs_ahead(graph.blocks[0], made)
    assert {n.source for n in graph.blocks[0].loads} & made, "the bias behind it"
