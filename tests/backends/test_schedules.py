"""Every choice that tuning can make of tiles and schedule computes the same."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import f32
from mirage_dsl.ir.analysis.waiting import launched_early
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.search.sizes.variants import neighbours, proposals
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
    "ntrans": mugraphs.ntrans(5, 30, tile_m=2),
    "split_k": mugraphs.split_k(
        20, 100, 40, tile_m=16, tile_n=16, part_k=48, tile_k=16
    ),
}

NOT_TUNED = {"second_load", "allow_tf32"}
"""One may give wrong results on a GPU if it is turned off, one is the user's."""

MOST = 26
"""Kernels of each that are run."""


def choices(graph: KernelGraph) -> list[KernelGraph]:
    """What tuning would time from here on: two steps in sizes and schedule."""
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


@pytest.mark.parametrize("name", STARTS)
def test_choices_compute_the_same(name: str) -> None:
    emitted = list({emit(g): g for g in choices(STARTS[name])}.values())
    every = -(-len(emitted) // MOST)
    for graph in emitted[::every]:
        check(graph)


def test_tuning_changes_all_of_the_schedule() -> None:
    found: dict[str, set[object]] = {f.name: set() for f in fields(Schedule)}
    for start in STARTS.values():
        for graph in choices(start):
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
