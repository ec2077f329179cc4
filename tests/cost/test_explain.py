"""Explanations."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import A100, H100
from mirage_dsl.core.types import f16
from mirage_dsl.cost import explain as explanation
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.order import in_good_order
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.search.variants import neighbours, proposals
from tests.programs import mugraphs
from tests.search import blocks, programs


def explain(graph: KernelGraph, program: KernelGraph) -> str:
    return str(explanation.explain(graph, program)) + "\n"


def test_a_fused_kernel_beside_its_program() -> None:
    graph = blocks.rms_linear(8)
    program = expand(programs.rmslin())
    text = explain(graph, program)
    faster = estimate(program, H100).microseconds / estimate(graph, H100).microseconds
    assert f"{faster:.2f} times as fast as written" in text
    assert f", about {estimate(graph, H100).microseconds:.1f} µs\n" in text
    assert "kernel 2" not in text
    assert "no longer stored" in text
    assert "96 (n in tiles of 64) = 96 blocks of 128 threads" in text
    assert "32 iterations over k in tiles of 128" in text
    assert "bound by memory" in text


def test_intermediates_that_stay_are_listed() -> None:
    graph = blocks.split_attention(1, 16)
    text = explain(graph, graph)
    assert "still stored between kernels: num, den" in text
    # The kernel that joins the parts has no loop.
    assert text.count("in stage buffers of the whole GPU") == 1
    assert "kernel 2: block graph -> y" in text


def test_lifetimes_synchronisations_and_layouts() -> None:
    graph = blocks.split_attention(1, 16)
    text = explain(graph, graph)
    assert "shared memory in the loop: " in text
    assert "vt 49.2 kB" in text
    assert "threads wait for each other: once an iteration" in text
    assert "num lies in memory as (n#), (z), (m), (e)" in text
    lora = explain(blocks.lora(8), blocks.lora(8))
    assert "shared memory after it: " in lora


def test_parts_made_in_their_places_are_no_further_kernel() -> None:
    graph = blocks.halves()
    text = explain(graph, graph)
    assert "kernel 1: block graph" in text
    assert "kernel 2" not in text
    assert "still stored between kernels" not in text
    assert "  t1 is stored in its place in t3\n" in text


def test_parts_in_their_places_are_not_stored_by_themselves() -> None:
    text = explain(blocks.halves(), joined(between=False))
    # Two parts of 64 x 4096 f16, which the concatenation would read and write again.
    assert "stored in their places in t3, not copied: t1, t2 (2.1 MB less" in text
    assert "no longer stored" not in text
    assert "still stored" not in text


def test_a_whole_between_kernels_is_stored_once() -> None:
    graph = joined(between=True, fused=True)
    text = explain(graph, joined(between=True))
    assert "stored in their places in t3, not copied: t1, t2 (2.1 MB less" in text
    assert "still stored between kernels: t3\n" in text


def test_only_other_parts_are_copied() -> None:
    graph = blocks.halves(copied=True)
    text = explain(graph, graph)
    assert "  t1 is stored in its place in t4\n" in text
    assert "still stored between kernels: t2, t3\n" in text
    concat = estimate(graph, H100).kernels[-1]
    assert concat.l2_bytes == 2 * 64 * 4096 * 2


def joined(*, between: bool, fused: bool = False) -> KernelGraph:
    """Two halves of a whole, by library kernels or a block; then perhaps its exp."""
    g = KernelBuilder("joined", m=64, k=4096)
    x = g.input("x", f16, "m, k")
    if fused:
        with g.block(grid={"m": 1}) as b:
            t = b.load(x, "m/grid, k")
            parts = [b.store(v, "m/grid, k", dtype=f16) for v in (b.exp(t), b.neg(t))]
    else:
        parts = [g.exp(x), g.neg(x)]
    whole = g.concat(*parts, dims="k, k", to="j")
    return g.returns(g.exp(whole) if between else whole).build()


def test_the_schedule_is_told() -> None:
    graph = blocks.rms_linear(8)
    assert "starts before" not in explain(graph, graph)
    (block,) = graph.blocks
    schedule = replace(block.schedule, pdl=True, descriptors=True)
    graph = replace(graph, nodes=(replace(block, schedule=schedule),))
    text = explain(graph, graph)
    assert "starts before the kernel ahead has ended" in text
    assert "loads through tensor descriptors" in text


def test_a_gpu_without_early_launches_has_none() -> None:
    plain = mugraphs.norm_ahead(16, 4096, 4096)
    early = mugraphs.norm_ahead(16, 4096, 4096, schedule=Schedule(pdl=True, prefetch=2))
    told = [str(explanation.explain(g, g, A100)) for g in (plain, early)]
    assert told[0] == told[1]
    assert explain(plain, plain) != explain(early, early)


def test_what_runs_beside_the_next_kernel_is_told() -> None:
    plain = mugraphs.side_product(8, 4096, 4096, 16, tile_k=256)
    assert "beside the next" not in explain(plain, plain)
    first, second = plain.blocks
    early = replace(second, schedule=replace(second.schedule, pdl=True))
    graph = replace(plain, nodes=(first, early))
    text = explain(graph, graph)
    assert "beside the next kernel's loop" in text.split("kernel 2:")[0]
    assert "beside the next" not in text.split("kernel 2:")[1]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_is_asked_for_ahead_is_told(prefetch: int) -> None:
    schedule = Schedule(pdl=True, prefetch=prefetch)
    graph = mugraphs.norm_ahead(16, 4096, 4096, schedule=schedule)
    first, second = explain(graph, graph).split("kernel 2:")
    assert "asks" not in first
    assert ("asks meanwhile for the first 2 tiles of w" in second) == (prefetch > 0)


def test_what_does_not_fit_is_said() -> None:
    graph = blocks.rms_linear(8, tile=256, step=256)
    assert "does not fit: " in explain(graph, graph)


def test_what_a_compiler_has_to_tell_is_not_said_to_exceed_the_limits() -> None:
    tight = mugraphs.attention(32, 256, 4096, tile_m=128, tile_n=128, splits=4)
    assert not estimate(tight, H100).feasible
    assert "does not fit" not in explain(tight, tight)


def test_library_kernels_are_named() -> None:
    program = programs.gated()
    text = explain(program, program)
    assert "(library)" in text
    assert "no longer stored" not in text


def test_it_says_why_a_running_maximum_is_not_needed() -> None:
    bounded = mugraphs.attention(
        1, 64, 128, d=64, norm=True, safe=False, keys_last=False
    )
    text = explain(bounded, bounded)
    assert "needs no running maximum: " in text
    assert "is between -8.0" in text


def _concatenated() -> KernelGraph:
    g = KernelBuilder("concatenated", m=16, k=8, j=8, n=16)
    x, y = g.input("x", f16, "m, k"), g.input("y", f16, "m, j")
    with g.block(grid={"m": 4}) as b:
        parts = b.load(x, "m/grid, k"), b.load(y, "m/grid, j")
        whole = b.concat(*parts, dims=("k", "j"), to="n")
        out = b.store(b.exp(whole), "m/grid, n")
    return g.returns(out).build()


def _sliced() -> KernelGraph:
    g = KernelBuilder("sliced", m=16, k=8)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 4}) as b:
        part = b.slice(b.exp(b.load(x, "m/grid, k")), dim="k", start=0, stop=4, to="j")
        out = b.store(part, "m/grid, j")
    return g.returns(out).build()


@pytest.mark.parametrize(
    ("graph", "program", "reason"),
    [
        (
            _concatenated(),
            lambda x, y: mirage.exp(mirage.cat([x, y], 1)),
            "cannot join",
        ),
        (_sliced(), lambda x: mirage.exp(x)[:, :4], "cannot rearrange"),
    ],
    ids=["concatenated", "sliced"],
)
def test_blocks_that_no_tile_program_expresses_have_no_estimate(
    graph: KernelGraph, program: Any, reason: str
) -> None:
    assert not check(graph)
    cost = estimate(graph, H100)
    (part,) = cost.kernels
    assert reason in (part.unknown or "")
    assert not cost.feasible
    assert cost.bytes == sum(
        2 * prod(graph.extent_of[d] or 1 for d in item.type.names)
        for item in (*graph.inputs, *graph.returns)
    )
    shapes = [[graph.extent_of[d] for d in i.type.names] for i in graph.inputs]
    bound = mirage.kernel(effort="none")(program).bind(
        *[mirage.spec([e or 1 for e in s]) for s in shapes]
    )
    bound.use(graph)
    explanation = bound.explain()
    assert reason in str(explanation)
    assert explanation.speedup is None
    json.dumps(explanation.to_json(), allow_nan=False)
    assert mirage.why_not(graph, bound.program, hardware=H100).reasons
    assert in_good_order(graph, H100) == graph
    assert not neighbours(graph, hardware=H100)
    assert all(not cost.feasible for _, cost in proposals(graph, hardware=H100))
