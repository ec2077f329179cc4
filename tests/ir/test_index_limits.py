"""What inputs may be for the indices that are computed of them to lie inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.types import i64
from mirage_dsl.ir.analysis.integers import (
    Limit,
    any_integers,
    drawn_of_few,
    index_limits,
    index_outside,
    indexed_too_short,
)
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph

Function = Callable[..., Any]


def traced(function: Function, *extra: int) -> KernelGraph:
    """Of a table of 12 rows and three positions, and of what else has so many."""
    shapes = [mirage.spec((n,), "int64") for n in (3, *extra)]
    return mirage.kernel(function).trace(mirage.spec((12, 2), "float32"), *shapes)


CASES: dict[str, tuple[Function, dict[str, Limit]]] = {
    "itself": (lambda x, i: x[i], {"i": Limit(-12, 12)}),
    "the next": (lambda x, i: x[i + 1], {"i": Limit(-13, 11)}),
    "the one before": (lambda x, i: x[i - 1], {"i": Limit(-11, 13)}),
    "from the last": (lambda x, i: x[11 - i], {"i": Limit(0, 24)}),
    "minus": (lambda x, i: x[-i], {"i": Limit(-11, 13)}),
    "every third": (lambda x, i: x[3 * i], {"i": Limit(-4, 4)}),
    "of a page": (lambda x, i: x[i // 4], {"i": Limit(-48, 48)}),
    "in a ring": (lambda x, i: x[i % 12], {}),
    "in a longer ring": (lambda x, i: x[i % 16], {"i": Limit(0, 12, 16)}),
    "not below": (lambda x, i: x[i.clamp(min=0)], {"i": Limit(-(1 << 40), 12)}),
    "between": (lambda x, i: x[i.clamp(0, 11)], {"i": Limit(-(1 << 40), 1 << 40)}),
    "in pages": (lambda x, i: x[i * 4 + i % 4], {"i": Limit(-3, 3)}),
    "a choice": (
        lambda x, i: x[mirage.where(i < 0, i + 12, i)],
        {"i": Limit(-24, 12)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_limits(name: str) -> None:
    function, expected = CASES[name]
    assert index_limits(traced(function)) == expected


@pytest.mark.parametrize("name", [name for name in CASES if name != "a choice"])
def test_what_is_drawn_within_them_is_inside(name: str) -> None:
    program = traced(CASES[name][0])
    limits, table = index_limits(program), np.ones((12, 2))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = any_integers(rng, i64, (3,), limits.get("i"))
        evaluate_numpy(program, table, drawn)


TRIED: dict[str, Function] = {
    "of a hash": lambda x, i: x[(i * 31 + 7) % 50257],
    "of other bits": lambda x, i: x[(i ^ 1234) % 4096],
    "of two ranges": lambda x, i: x[mirage.where(i >= 1000, i - 1000, i)],
}


@pytest.mark.parametrize("name", TRIED)
def test_numbers_are_tried_where_intervals_do_not_tell(name: str) -> None:
    program = traced(TRIED[name])
    limits, table = index_limits(program), np.ones((12, 2))
    assert limits["i"].among
    for seed in range(20):
        rng = np.random.default_rng(seed)
        evaluate_numpy(program, table, any_integers(rng, i64, (3,), limits["i"]))


def test_a_sum_of_several_is_shared() -> None:
    program = traced(lambda x, i, j: x[i + j], 3)
    limits, table = index_limits(program), np.ones((12, 2))
    assert limits.keys() == {"i", "j"}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = (any_integers(rng, i64, (3,), limits[n]) for n in "ij")
        evaluate_numpy(program, table, *drawn)


def test_a_table_and_what_is_looked_up_in_it_have_limits_of_their_own() -> None:
    program = traced(lambda x, i, table: x[table[i]], 40)
    assert index_limits(program) == {"i": Limit(-40, 40), "table": Limit(-12, 12)}


@pytest.mark.parametrize(
    ("behind", "lacking"), [(1, 0), (23, 0), (24, 1), (30, 7), (-24, 1)]
)
def test_what_a_dim_lacks_for_two_indices_of_it(behind: int, lacking: int) -> None:
    program = traced(lambda x, i: x[i] + x[i + behind])
    (dim,) = (name for name, extent in program.extents if extent == 12)
    assert indexed_too_short(program) == ({dim: lacking} if lacking else {})
    longer = {**program.extent_of, dim: 12 + lacking}
    assert not indexed_too_short(program.with_extents(longer))


def test_a_dim_holds_all_positions_of_another_one() -> None:
    def lacking(function: Function) -> list[int]:
        program = mirage.kernel(function).trace(mirage.spec((12, 2), "float32"))
        return list(indexed_too_short(program).values())

    assert lacking(lambda x: x[mirage.arange(12)]) == []
    assert lacking(lambda x: x[mirage.arange(12) - 12]) == []
    assert lacking(lambda x: x[mirage.arange(12) + 3]) == [3]
    assert lacking(lambda x: x[mirage.arange(12) - 14]) == [2]
    assert lacking(lambda x: x[mirage.arange(30) // 2]) == [3]
    assert lacking(lambda x: x[mirage.arange(30).clamp(max=13)]) == [2]


def test_a_dim_holds_an_index_beside_all_positions_of_another_one() -> None:
    program = traced(lambda x, i: x[i + mirage.arange(3) * 20])
    assert list(indexed_too_short(program).values()) == [17]


def test_a_dim_holds_what_a_clamp_leaves() -> None:
    """All of it, where several elements of inputs make an index; else some."""

    def lacking(function: Function) -> list[int]:
        return list(indexed_too_short(traced(function)).values())

    assert lacking(lambda x, i: x[i.clamp(0, 50000)]) == []
    assert lacking(lambda x, i: x[i.clamp(11, 50000)]) == []
    assert lacking(lambda x, i: x[i.clamp(14, 50000)]) == [3]
    assert lacking(lambda x, i: x[(i[:, None] - i).clamp(-8, 8) + 8]) == [5]


TOGETHER: dict[str, Function] = {
    "a difference": lambda x, i, j: x[i - j],
    "far from 0": lambda x, i, j: x[i[:, None] - j[None] + 63],
    "how far apart": lambda x, i, j: x[(i[:, None] - j[None]).abs()],
    "of two digits": lambda x, i, j: x[4 * i + j],
    "a product": lambda x, i, j: x[i * j],
    "the square of how far apart": lambda x, i, j: x[(i - j) ** 2],
    "in steps of a distance": lambda x, i, j: x[
        mirage.where((i - j).abs() < 4, (i - j).abs(), 4 + ((i - j).abs() - 4) // 4)
    ],
    "a running sum": lambda x, i, j: x[i.cumsum(0) + j],
    "a sum": lambda x, i, j: x[i.sum() - j],
    "from the largest": lambda x, i, j: x[i.max() - i + j],
    "the greater": lambda x, i, j: x[mirage.maximum(i + 3, j - 5)],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_several_make_together_is_inside(name: str) -> None:
    program = traced(TOGETHER[name], 3)
    limits, table = index_limits(program), np.ones((12, 2))
    assert index_outside(program) is None
    assert not drawn_of_few(program)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        drawn = (any_integers(rng, i64, (3,), limits.get(n)) for n in "ij")
        evaluate_numpy(program, table, *drawn)


def test_a_dim_lacks_elements_for_several_numbers_of_each_input() -> None:
    """Of twelve rows `16 * i + j` is one for few numbers of `i`."""
    program = traced(lambda x, i, j: x[16 * i + j], 3)
    assert drawn_of_few(program)
    assert not indexed_too_short(program)
    ((dim, lacking),) = indexed_too_short(program, 100).items()
    longer = program.with_extents({**program.extent_of, dim: 12 + lacking})
    assert not drawn_of_few(longer)
    assert not indexed_too_short(longer, 100)
    assert not indexed_too_short(program, lacking - 1)


def test_an_index_that_is_never_inside() -> None:
    program = traced(lambda x, i: x[i % 4 + 20])
    said = index_outside(program)
    assert said is not None
    assert "of 12" in said


def test_small_numbers_are_drawn_of_what_is_clamped() -> None:
    program = traced(lambda x, i, j: x[(i[:, None] - j).abs().clamp(max=9)], 3)
    limits = index_limits(program)
    rng = np.random.default_rng(0)
    first, second = (any_integers(rng, i64, (40,), limits[n]) for n in "ij")
    between = np.abs(first[:, None] - second)
    assert all((between == n).any() for n in range(9))
