"""Every choice that tuning can make of tiles and schedule computes the same."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import f32
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.search.variants import neighbours, proposals
from tests.backends.conformance import loaded_early
from tests.backends.running import check
from tests.programs import mugraphs

STARTS: dict[str, KernelGraph] = {
    "rmsnorm_linear": mugraphs.rmsnorm_linear(24, 96, 160, tile_n=64, tile_k=32),
    "gated_mlp": mugraphs.gated_mlp(20, 96, 160, tile_n=64, tile_k=32),
    "lora": mugraphs.lora(20, 96, 160, 16, tile_n=64, tile_k=32),
    "attention": mugraphs.attention(2, 40, 96, 32, tile_m=32, tile_n=32, dtype=f32),
    "split_attention": mugraphs.attention(
        2, 20, 96, 32, tile_m=16, tile_n=16, splits=2
    ),
    "qknorm": mugraphs.attention(
        2, 20, 96, 32, tile_m=16, tile_n=16, splits=2, keys_last=False, norm=True
    ),
    "side_product": mugraphs.side_product(
        20, 96, 160, 16, tile_k=32, schedule=Schedule(pdl=True)
    ),
    "norm_ahead": mugraphs.norm_ahead(
        20, 96, 128, tile_k=32, schedule=Schedule(pdl=True)
    ),
    "constants": loaded_early(64, 32, early=1),
    "ntrans": mugraphs.ntrans(5, 30, tile_m=2),
    "split_k": mugraphs.split_k(
        20, 100, 40, tile_m=16, tile_n=16, part_k=48, tile_k=16
    ),
}

SCHEDULE = fields(Schedule)
NOT_TUNED = {"second_load", "allow_tf32"}
"""One may give wrong results on a GPU if it is turned off, one is the user's."""


@cache
def choices(name: str) -> list[KernelGraph]:
    """What tuning would time from a start on: two steps in sizes and schedule."""
    graph = STARTS[name]
    first = [
        g
        for g, _ in (
            *proposals(graph, count=4, hardware=H100),
            *neighbours(graph, hardware=H100),
        )
    ]
    early = launched_early(graph)
    second = [
        g for start in (early, *first[:2]) for g, _ in neighbours(start, hardware=H100)
    ]
    return list(dict.fromkeys([graph, early, *first, *second]))


def decisions(graph: KernelGraph) -> set[object]:
    """Each tile of each kernel, and each value of its schedule."""
    found: set[object] = {len(graph.blocks)}
    for at, block in enumerate(graph.blocks):
        found |= {(at, split) for split in (*block.grid, block.loop)}
        found |= {(at, f.name, getattr(block.schedule, f.name)) for f in SCHEDULE}
    return found


def with_every_decision(graphs: list[KernelGraph]) -> list[KernelGraph]:
    """A few of the graphs that have among them whatever is decided in any."""
    left = set[object]().union(*map(decisions, graphs))
    taken: list[KernelGraph] = []
    while left:
        taken.append(max(graphs, key=lambda g: len(decisions(g) & left)))
        left -= decisions(taken[-1])
    return taken


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", STARTS)
def test_choices_compute_the_same(name: str) -> None:
    graphs = with_every_decision(choices(name))
    assert len({emit(g) for g in graphs}) == len(graphs)
    for graph in graphs:
        check(graph)


def test_tuning_changes_all_of_the_schedule() -> None:
    found: dict[str, set[object]] = {f.name: set() for f in SCHEDULE}
    for name in STARTS:
        for graph in choices(name):
            for name, values in found.items():
                values |= {getattr(b.schedule, name) for b in graph.blocks}
    assert {name for name, values in found.items() if len(values) == 1} == NOT_TUNED


@pytest.mark.parametrize("name", ["rmsnorm_linear", "qknorm"])
def test_tiles_that_are_loaded_once_compute_the_same(name: str) -> None:
    """A norm's squares and a product read one tile."""
    twice = STARTS[name]
    once = twice.with_schedules(lambda b: replace(b.schedule, second_load=False))
    assert emit(once).count("# once more") < emit(twice).count("# once more")
    check(once)
