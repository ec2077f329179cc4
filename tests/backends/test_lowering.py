"""What the emitted code of a block avoids: copies, conversions, instructions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from mirage_dsl.backends.triton.lowering.emit import FUNCTIONS, emit, plan
from mirage_dsl.backends.triton.lowering.kernel import RESERVED
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.types import Scalar, f16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
from tests.backends.running import check
from tests.programs import mugraphs


def normed_attention(rows: int = 64) -> KernelGraph:
    return mugraphs.attention(
        1, 64, 64, d=16, tile_m=rows, tile_n=32, splits=2, norm=True, keys_last=False
    )


def kernels(graph: KernelGraph) -> list[str]:
    return ["\n".join(k.lines) for k in plan(graph).kernels]


def test_awaited_products_share_their_tile() -> None:
    """The logits are read in the iteration that makes them: the tile is free then."""
    first, _ = kernels(normed_attention())
    assert "kt_again" not in first
    check(normed_attention())


def test_small_products_do_not_share_their_tile() -> None:
    first, _ = kernels(normed_attention(rows=32))
    assert "kt_again" in first


def test_products_added_up_in_place_do_not_share_their_tile() -> None:
    (kernel,) = kernels(mugraphs.rmsnorm_linear(64, 64, 64, tile_n=32, tile_k=32))
    assert "xt_again" in kernel


def powers(factor: Scalar | None) -> KernelGraph:
    """Exp of a tile times a constant, or times a row, which may be large."""
    g = KernelBuilder("powers", m=6, k=20)
    x, r = g.input("x", f16, "m, k"), g.input("r", f32, "m")
    with g.block(grid={"m": 3}) as b:
        row = b.load(r, "m/grid")
        scaled = b.mul(b.load(x, "m/grid, k"), row if factor is None else factor)
        y = b.store(b.add(b.exp(scaled), row), "m/grid, k", dtype=f32)
    return g.returns(y).build()


@pytest.mark.parametrize("factor", [None, scalar("1/8")], ids=str)
def test_exponentials_take_moderate_factors_in(factor: Scalar | None) -> None:
    (kernel,) = kernels(powers(factor))
    (line,) = re.findall(r"tl\.exp2\(.*", kernel)
    assert ("0.125 * 1.44" in line) == (factor is not None)
    check(powers(factor))


def test_a_scaled_value_that_others_read_is_computed() -> None:
    g = KernelBuilder("both", m=6, k=20)
    x = g.input("x", f32, "m, k")
    with g.block(grid={"m": 3}) as b:
        scaled = b.mul(b.load(x, "m/grid, k"), scalar("1/8"))
        y = b.store(b.add(b.exp(scaled), scaled), "m/grid, k")
    check(g.returns(y).build())


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("n", [64, 75, 77, 129])
def test_below_a_shift_lanes_outside_are_masked_once(n: int, splits: int) -> None:
    graph = mugraphs.attention(1, 32, n, d=16, tile_m=16, tile_n=32, splits=splits)
    loop = kernels(graph)[0].partition("for it in")[2].partition("\n    #")[0]
    ragged = bool(n % (32 * splits))
    assert loop.count("tl.where(n_in") == ragged
    assert loop.count(', float("-inf"))') == ragged
    check(graph)


def test_lanes_outside_are_masked_where_the_subtrahend_may_be_infinite() -> None:
    g = KernelBuilder("differences", m=4, n=5)
    x, y = g.input("x", f32, "m, n"), g.input("y", f32, "m")
    with g.block(grid={"m": 2}) as b:
        e = b.exp(b.sub(b.load(x, "m/grid, n"), b.load(y, "m/grid")))
        out = b.store(b.sum(e, over="n"), "m/grid")
    graph = g.returns(out).build()
    (kernel,) = kernels(graph)
    assert "tl.where(n_in[None, :], " in kernel
    assert '"-inf"' not in kernel
    y = torch.tensor([0.0, float("inf"), 1.0, -2.0])
    check(graph, [torch.randn(4, 5), y])


def overlapping(*early: bool) -> KernelGraph:
    graph = normed_attention()
    nodes = [
        replace(n, schedule=replace(n.schedule, pdl=pdl))
        for n, pdl in zip(graph.blocks, early, strict=True)
    ]
    return replace(graph, nodes=tuple(nodes))


def test_a_kernel_tells_when_the_next_one_may_start() -> None:
    """It does not start early itself."""
    first, second = kernels(overlapping(False, True))
    assert "gdc_launch_dependents" in first
    assert "gdc_wait" not in first
    assert "gdc_wait" in second
    after_loop = first[first.index("out = tl.dot") :]
    assert "gdc_launch_dependents" in after_loop
    check(overlapping(False, True))


def side_product(*, early: bool = False) -> KernelGraph:
    graph = mugraphs.side_product(
        20, 96, 80, 16, tile_k=32, schedule=Schedule(pdl=True)
    )
    if early:
        return graph
    first = replace(graph.blocks[0], schedule=Schedule(num_stages=2))
    return replace(graph, nodes=(first, *graph.nodes[1:]))


@pytest.mark.parametrize("early", [False, True])
def test_a_loop_that_needs_nothing_of_the_kernel_ahead_does_not_wait(
    early: bool,
) -> None:
    """The kernel ahead lets it start at once, but after its own wait."""
    first, second = kernels(side_product(early=early))
    order = ["for it in", "gdc_wait", "gdc_launch_dependents", "tl.load(parts_ptr"]
    places = [second.index(mark) for mark in order]
    assert places == sorted(places)
    assert second.index("tl.load(b_ptr") < places[0]
    told = first.index("gdc_launch_dependents")
    assert told < first.index("for it in")
    assert ("gdc_wait" in first) is early
    if early:
        assert first.index("gdc_wait") < told < first.index("tl.load")
    check(side_product(early=early))


def norm_ahead(n: int = 256, *, columns: bool = False, **schedule: int) -> KernelGraph:
    early = Schedule(pdl=True, **schedule)
    return mugraphs.norm_ahead(20, 320, n, columns=columns, schedule=early)


@pytest.mark.parametrize("descriptors", [0, 1])
@pytest.mark.parametrize("columns", [False, True])
def test_first_tiles_are_asked_for_before_the_wait(
    columns: bool, descriptors: int
) -> None:
    """One element of each line of 128 bytes; the kernel ahead lets it start at once."""
    graph = norm_ahead(columns=columns, prefetch=2, descriptors=bool(descriptors))
    first, second = kernels(graph)
    order = ["prefetch(", "gdc_wait", "for it in"]
    places = [second.index(mark) for mark in order]
    assert places == sorted(places)
    if columns:
        lanes = "w_k = tl.arange(0, 2) * 64", "w_n = n_id * 64 + tl.arange(0, 64)\n"
    else:
        lanes = "w_k = tl.arange(0, 128)\n", "w_n = n_id * 64 + tl.arange(0, 1) * 64"
    assert all(lane in second for lane in lanes)
    assert "prefetch(w_ptr + w_k[:, None] * w_stride0 + w_n[None, :]" in second
    assert first.index("gdc_launch_dependents") < first.index("tl.load")
    emitted = plan(graph)
    assert emitted.source.count("def prefetch(") == 1
    ptx = str(compile_kernel(emitted, emitted.kernels[1], 90).asm["ptx"])
    assert 1 <= ptx.count("prefetch.global.L2") <= 4
    assert ptx.index("prefetch.global.L2") < ptx.index("griddepcontrol.wait")
    check(graph)


def test_nothing_is_asked_for_that_may_lie_outside() -> None:
    for graph in (norm_ahead(n=250, prefetch=2), norm_ahead(prefetch=0)):
        assert "prefetch" not in emit(graph)
        check(graph)
    told = kernels(norm_ahead(prefetch=0))[0]
    assert told.index("gdc_launch_dependents") > told.index("tl.load")


def test_no_more_tiles_are_asked_for_than_there_are() -> None:
    graph = norm_ahead(prefetch=8)
    assert "w_k = tl.arange(0, 256)\n" in kernels(graph)[1], "4 of 5 tiles"
    check(graph)


def test_in_a_chain_each_tells_the_next_after_its_own_wait() -> None:
    """Else two kernels ahead of the last one could still run when it reads."""
    g = KernelBuilder("chain", m=20, k=70, n=40)
    x, w = g.input("x", f16, "m, k"), g.input("w", f16, "k, n")
    early = Schedule(pdl=True)
    with g.block(grid={"m": 8}) as b:
        squares = b.sum(b.square(b.load(x, "m/grid, k")), over="k")
        t = b.store(squares, "m/grid", dtype=f32)
    with g.block(grid={"m": 16}, loop=("k", 16), schedule=early) as b:
        xt, wt = b.load(x, "m/grid, k/loop"), b.load(w, "k/loop, n")
        product = b.accumulate(b.matmul(xt, wt, over="k"))
        u = b.store(b.add(product, b.load(t, "m/grid")), "m/grid, n", dtype=f16)
    with g.block(grid={"m": 16}, loop=("k", 32), schedule=early) as b:
        total = b.accumulate(b.sum(b.load(x, "m/grid, k/loop"), over="k"))
        scaled = b.mul(b.load(u, "m/grid, n"), total)
        y = b.store(b.add(scaled, b.load(t, "m/grid")), "m/grid, n", dtype=f16)
    graph = g.returns(y).build()
    for text in kernels(graph)[1:]:
        order = ["for it in", "gdc_wait", "gdc_launch_dependents", "tl.store"]
        places = [text.index(mark) for mark in order]
        assert places == sorted(places)
        assert text.count("gdc_") == 2
    check(graph)


def test_the_compiler_keeps_loads_behind_the_wait() -> None:
    emitted = plan(side_product())
    ptx = str(compile_kernel(emitted, emitted.kernels[1], 90).asm["ptx"])
    wait = ptx.index("griddepcontrol.wait")
    matrix = re.compile(r"(mma\.sync|wgmma\.mma_async)")
    assert wait > max(m.start() for m in re.finditer(r"cp\.async\.c[ag]", ptx))
    # The loop's product comes before, that of the other kernel's result after.
    before = [m.start() < wait for m in matrix.finditer(ptx)]
    assert any(before)
    assert not all(before)
    assert "ld.global" in ptx[wait:]


def test_a_kernel_that_nothing_waits_for_tells_nothing() -> None:
    assert not any("gdc" in k for k in kernels(overlapping(False, False)))


def test_no_value_has_the_name_of_a_function_of_the_module() -> None:
    assert FUNCTIONS.keys() <= RESERVED
    g = KernelBuilder("named", m=16, n=16)
    x = g.input("x", f32, "m, n")
    with g.block(grid={"m": 16}) as b:
        tile = b.load(x, "m/grid, n")
        tanh = b.apply("tanh", tile, name="tanh")
        twice = b.apply("tanh", tanh, name="expm1")
        out = b.store(twice, "m/grid, n")
    check(g.returns(out).build())


LONG = """mirage 1

mugraph sums(x: f32[k]) -> f32[k] where k = {k} {{
  y = block loop(k / 4096) {{
    x_t = load x[k/loop]
    s = cumsum x_t along(k)
    a = accumulate s concat
    store y: f32[k] = a
  }}
  return y
}}
"""


def test_what_a_loop_joins_may_be_longer_than_any_tile() -> None:
    (kernel,) = kernels(parse(LONG.format(k=10000)))
    assert re.findall(r"tl\.arange\(.*", kernel) == ["tl.arange(0, 4096)"]
    check(parse(LONG.format(k=10000)))
    emitted = plan(parse(LONG.format(k=5_000_011)))
    compile_kernel(emitted, emitted.kernels[0], 90)
