"""What a block takes of a multiprocessor."""

from __future__ import annotations

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.facts import facts_of
from mirage_dsl.cost.footprint import (
    BASE_REGISTERS,
    BASE_SHARED,
    Resources,
    footprint_of,
    resources,
)
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.infer import kernel_types
from tests.search import blocks


def measure(graph: KernelGraph) -> Resources:
    block = graph.blocks[0]
    facts = facts_of(block, kernel_types(graph), graph.extent_of)
    return resources(footprint_of(facts, H100))


def rms(**changes: int) -> KernelGraph:
    schedule = Schedule(
        changes.get("warps", 4), changes.get("stages", 5), swap_operands=True
    )
    return blocks.rms_linear(
        8, changes.get("tile", 64), changes.get("step", 128), schedule
    )


def test_shared_memory_is_stages_of_the_loop() -> None:
    # x (16 x 128) is read by the product and by the norm, so it is held twice; what
    # the matrix unit reads by itself is in use for one iteration longer.
    x, w = 2 * 16 * 128, 2 * 128 * 64
    for stages in (2, 3, 5):
        shared = measure(rms(stages=stages)).shared[0]
        assert shared == stages * (x + w) + (stages - 1) * x + BASE_SHARED


def test_second_copy_can_be_refused() -> None:
    one = Schedule(4, 5, swap_operands=True, second_load=False)
    graph = blocks.rms_linear(8, schedule=one)
    assert measure(graph).shared[0] == 5 * 2 * (16 * 128 + 128 * 64) + BASE_SHARED


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"tile": 256, "stages": 5}, "shared memory"),
        ({"step": 4096, "stages": 2}, "shared memory"),
    ],
)
def test_too_much_is_named(change: dict[str, int], limit: str) -> None:
    found = measure(rms(**change))
    assert found.too_much[limit][0]
    assert not found.feasible[0]
    assert limit in str(found.reason(0, H100))


def test_large_accumulators_need_registers() -> None:
    graph = blocks.attention(1, rows=256, step=256)
    found = measure(graph)
    assert found.too_much["registers"][0]
    assert "registers a thread" in str(found.reason(0, H100))
    assert measure(blocks.attention(1)).reason(0, H100) is None


def test_more_warps_share_the_registers() -> None:
    few = measure(blocks.ntrans(1, warps=4)).registers[0]
    many = measure(blocks.ntrans(1, warps=16)).registers[0]
    assert BASE_REGISTERS < many < few
    assert (many - BASE_REGISTERS) * 4 == few - BASE_REGISTERS


def test_residents_follow_from_shared_memory() -> None:
    assert measure(rms(stages=5)).resident[0] == 1
    assert measure(rms(stages=3)).resident[0] == 3


def test_products_summed_in_place_are_not_counted_twice() -> None:
    graph = blocks.gated_mlp(1)
    block = graph.blocks[0]
    facts = facts_of(block, kernel_types(graph), graph.extent_of)
    live = facts.plain.live
    names = live.names
    assert "p" not in names
    assert "q" not in names
    # While the loop runs, exactly the two accumulators are held.
    body = live.at[live.products["p"]]
    assert {n for n, alive in zip(names, body, strict=True) if alive} == {"a", "c"}


def test_padding_to_powers_of_two_counts() -> None:
    even = blocks.rms_linear(1).with_extents({"m": 17})
    power = blocks.rms_linear(1).with_extents({"m": 32})
    assert measure(even).shared[0] == measure(power).shared[0]


def test_short_sides_of_products_are_padded_to_the_matrix_unit() -> None:
    one = blocks.rms_linear(1).with_extents({"m": 1})
    sixteen = blocks.rms_linear(1).with_extents({"m": 16})
    assert measure(one).shared[0] == measure(sixteen).shared[0]


def test_steps_that_hold_less_than_another_are_left_out() -> None:
    graph = rms()
    facts = facts_of(graph.blocks[0], kernel_types(graph), graph.extent_of).plain
    live, products = facts.live, facts.live.products.values()
    assert 0 < len(live.at) < len(facts.flow.steps)
    for row in set(range(len(live.at))) - set(products):
        more = (live.at >= live.at[row]).all(axis=1) & (live.at != live.at[row]).any(1)
        assert not more.any()
