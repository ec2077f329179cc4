"""What counts come to at the true extents, and who is undecided for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.driver import search
from mirage_dsl.verify.counts import counted, counts_elsewhere
from mirage_dsl.verify.verifier import verify

Function = Callable[..., Any]
MASK = ((8, 200), "bool")
FEW = ((8, 16), "bool")
BYTES = ((8, 40), "int8")
SCORES = ((4, 64), "float32")


def traced(function: Function, *inputs: tuple[tuple[int, ...], str]) -> KernelGraph:
    return mirage.kernel(function).trace(*(mirage.spec(*i) for i in inputs))


def ranks(x: Any) -> Any:
    return (x[:, :, None] > x[:, None, :]).sum(2)


WRONG: dict[str, tuple[Function, Function, tuple[tuple[tuple[int, ...], str], ...]]] = {
    "a count in eight bits": (
        lambda m: m.sum(1),
        lambda m: m.to(torch.int8).sum(1, dtype=torch.int8).long(),
        (MASK,),
    ),
    "a scan in eight bits": (
        lambda m: m.cumsum(1),
        lambda m: m.to(torch.uint8).cumsum(1, dtype=torch.uint8).long() + 0,
        (((8, 300), "bool"),),
    ),
    "a count that is clipped": (
        lambda m: m.sum(1),
        lambda m: m.sum(1).clamp(max=10),
        (FEW,),
    ),
    "a choice that is made more rarely": (
        lambda m, x: torch.where(m.sum(1) > 150, x, 0.0),
        lambda m, x: torch.where(m.sum(1) > 190, x, 0.0),
        (MASK, ((8,), "float32")),
    ),
    "one more of the best": (
        lambda x: (ranks(x) < 8) * x,
        lambda x: (ranks(x) < 9) * x,
        (SCORES,),
    ),
    "a place through eight bits": (
        lambda x: x.argmax(1),
        lambda x: x.argmax(1).to(torch.uint8).long(),
        (((4, 400), "float32"),),
    ),
    "the size of the lowest byte": (
        lambda a: abs(a.int()),
        lambda a: abs(a).int(),
        (BYTES,),
    ),
    "products in sixteen bits": (
        lambda a: (a.int() * a.int()).sum(1),
        lambda a: (a.short() * a.short()).sum(1, dtype=torch.int16).long(),
        (BYTES,),
    ),
    "a sum of two beside a number": (
        lambda a, b: a + b < 1000,
        lambda a, b: a + b <= 1000,
        (((64,), "int32"), ((64,), "int32")),
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", WRONG)
def test_what_no_trial_reaches_is_undecided(name: str) -> None:
    right, wrong, inputs = WRONG[name]
    program, candidate = traced(right, *inputs), traced(wrong, *inputs)
    assert counts_elsewhere(program, candidate)
    assert counts_elsewhere(program, program) is None
    for seed in range(20):
        found = verify(candidate, program, seed=seed)
        assert not found.ok, seed
    assert verify(program, program).ok


def first(m: Any, columns: int) -> Any:
    """Where the first true is of the first columns, or how many there are."""
    places = torch.arange(columns)
    return torch.where(m[:, :columns], places, columns).amin(1)


def test_masks_of_which_hardly_any_is_true_are_drawn_too() -> None:
    program = traced(lambda m: first(m, 300), ((8, 300), "bool"))
    candidate = traced(
        lambda m: torch.where(first(m, 30) < 30, first(m, 30), 300), ((8, 300), "bool")
    )
    for seed in range(20):
        assert not verify(candidate, program, seed=seed).ok, seed


def test_what_wraps_around_in_the_program_may_in_a_candidate() -> None:
    wraps = traced(lambda a: (a + a).int() + a.sum(1, dtype=torch.int8)[:, None], BYTES)
    assert counted(wraps).wraps == 1
    assert verify(wraps, wraps).ok


def test_a_comparison_may_be_said_the_other_way_round() -> None:
    program = traced(lambda m: m.sum(1) > 3, FEW)
    candidate = traced(lambda m: m.sum(1) >= 4, FEW)
    assert counted(program).beside == counted(candidate).beside == {3.5}
    assert verify(candidate, program).ok


def test_whether_there_is_any_is_seen_in_trials() -> None:
    program = traced(lambda m: m.sum(1) > 0, FEW)
    candidate = traced(lambda m: m.any(1), FEW)
    assert verify(candidate, program).ok
    assert not verify(traced(lambda m: m.sum(1) > 1, FEW), program).ok


def test_a_count_that_just_fits_does_so_in_tiles() -> None:
    """Of 250 trues, four tiles of 64, of which the last one lacks six."""
    program = parse(IN_BYTES)
    candidate = parse(IN_BYTES.replace("y = sum w over(n)", TILED))
    assert candidate.blocks
    assert counted(program).wraps == counted(candidate).wraps == 8
    assert verify(candidate, program).ok


IN_BYTES = """mirage 1

mugraph count(m: bool[k, n]) -> u8[k] where k = 8, n = 250 {
  w = to_u8 m
  y = sum w over(n)
  return y
}
"""
TILED = """y = block grid(k / 4) loop(n / 64) {
    w_t = load w[k/grid, n/loop]
    s = sum w_t over(n)
    t = accumulate s
    store y: u8[k/grid] = t
  }"""


def test_numbers_below_0_are_told_apart() -> None:
    inputs = ((64,), "int32"), ((64,), "int32")
    program = traced(lambda a, b: a + b < -1000, *inputs)
    candidate = traced(lambda a, b: a + b <= -1000, *inputs)
    assert counts_elsewhere(program, candidate)


def test_a_shift_is_a_product() -> None:
    program, candidate = (
        traced(f, BYTES) for f in (lambda a: a.int() << 26, lambda a: a.int() * 2**26)
    )
    assert counted(program).wraps == counted(candidate).wraps == 4
    assert verify(candidate, program).ok


def test_numbers_that_no_count_reaches_are_none() -> None:
    assert not counted(traced(lambda m: m.sum(1) > 16, FEW)).beside
    assert not counted(traced(lambda m: m.sum(1).clamp(min=0), FEW)).beside


PROGRAMS: dict[str, tuple[Function, tuple[tuple[tuple[int, ...], str], ...]]] = {
    "a mean of those kept": (
        lambda x, m: (x * m[:, :, None]).sum(1) / m.sum(1)[:, None].clamp(min=1),
        (((8, 64, 16), "float32"), ((8, 64), "bool")),
    ),
    "the best by rank": (lambda x: (ranks(x) < 8) * x, (SCORES,)),
    "bytes with scales": (
        lambda x, w, s: (x @ w.to(x.dtype)) * s,
        (((8, 256), "float16"), ((256, 64), "int8"), ((64,), "float16")),
    ),
    "products of bytes": (
        lambda a, b: (a.int()[:, :, None] * b.int()).sum(1).clamp(-127, 127),
        (((8, 64), "int8"), ((64, 16), "int8")),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_search_finds_counts_as_its_program(name: str) -> None:
    function, inputs = PROGRAMS[name]
    program = traced(function, *inputs)
    found = search(program, H100, k=3)
    assert any(c.mugraph.blocks for c in found.candidates)
    for candidate in found.candidates:
        assert counts_elsewhere(program, candidate.mugraph) is None
