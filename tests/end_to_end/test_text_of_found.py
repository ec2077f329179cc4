"""Graphs that the search produces, for every workload, are read back as they were."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule, Split
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import with_derived_extents
from mirage_dsl.rewrite.casts import insert_casts
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.loops import split_loop
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.search.segments import (
    one_kernel,
)
from mirage_dsl.search.structures import structures
from tests.pace import Stopwatch
from tests.programs.workloads import WORKLOADS, Workload

FEWEST = 1500
MOST_SECONDS = 15

TILES = itertools.cycle((1, 8, 16, 32, 64, 128, 256))
SCHEDULES = itertools.cycle(
    Schedule(warps, stages, swap_operands=swap)
    for warps, stages, swap in itertools.product((4, 8), (2, 3, 5), (False, True))
)


def program_of(workload: Workload) -> KernelGraph:
    """The workload at its published sizes, by primitive operators."""
    traced = trace_function(
        lambda *tensors: workload.function(mirage, *tensors),
        [mirage.spec(s, workload.dtype) for s in workload.full.values()],
        name=workload.name,
    )
    return sink_views(expand(traced))


def sized(block: BlockGraph) -> BlockGraph:
    """The block with some tiles and some schedule, others each time."""
    grid = tuple(Split(s.dim, next(TILES)) for s in block.grid)
    loop = block.loop and Split(block.loop.dim, next(TILES))
    return replace(block, grid=grid, loop=loop, schedule=next(SCHEDULES))


def graphs_of(program: KernelGraph) -> Iterator[KernelGraph]:
    """A μGraph of every second structure, in plain, stable and split form."""
    bare = strip_shifts(program)
    outer = kernel_types(replace(bare, returns=()))
    for item in structures(bare, H100).structures[::2]:
        block = sized(insert_casts(item.block, outer))
        plain = with_derived_extents(one_kernel(bare, block))
        yield plain
        safe = stabilise(plain)
        if safe is not None:
            yield safe
        halves = split_loop(safe or plain, plain.nodes.index(plain.blocks[0]))
        if halves is not None:
            yield halves


@pytest.mark.sample(0)
def test_graphs_that_the_search_makes_are_read_back() -> None:
    graphs = [g for w in WORKLOADS for g in graphs_of(program_of(w))]
    texts = {str(graph): graph for graph in graphs}
    assert len(texts) > FEWEST
    watch = Stopwatch()
    for text, graph in texts.items():
        assert mirage.parse(text) == graph, text
    assert watch.seconds < MOST_SECONDS
