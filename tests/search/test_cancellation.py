"""Structures are kept that cancel no more than the program does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.search import structures as module
from mirage_dsl.search.closure import SUB, saturate, workspace
from mirage_dsl.search.driver import search
from mirage_dsl.search.extract import moved_differences
from mirage_dsl.search.space import space_of
from tests.programs.random_programs import random_program
from tests.search.programs import Program


def test_differences_of_the_program_are_no_moved_ones() -> None:
    p = Program("differences", {"m": 11, "k": 33})
    x, y = p.input("x", "m k"), p.input("y", "m k")
    program = p.returns(p.apply("sum", p.apply("sub", x, y), over="m"))
    space = space_of(program)
    found = saturate(space, None, workspace())
    moved = moved_differences(space, found)
    subtracts = found.edges[:, 1] == SUB
    assert 0 < np.count_nonzero(moved) < np.count_nonzero(subtracts)
    own = found.edges[subtracts & ~moved, 0]
    assert {int(found.shape[n]) for n in own} == {0b11}


def fused(monkeypatch: pytest.MonkeyPatch, accurate: int) -> int:
    """How many fused μGraphs of a program are accurate enough."""
    monkeypatch.setattr(module, "ACCURATE", accurate)
    known = random_program(135)

    def program(x0: object) -> object:
        return known.function(mirage, x0)

    traced = mirage.kernel(program).trace(*known.specs)
    return sum(len(c.mugraph.blocks) == 1 for c in search(traced, H100, k=4))


def test_a_program_whose_cheapest_structures_all_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fused(monkeypatch, module.ACCURATE) > 0
    assert fused(monkeypatch, 0) == 0


def test_what_overflows_in_f16_is_found_without_casts() -> None:
    """Squares of x are no f16, and a norm is one call, which keeps them in f32."""

    def program(x: Any, g: Any, w: Any) -> Any:
        normed = mirage.rms_norm(mirage.rms_norm(x) * g)
        return mirage.matmul(normed, w)

    shapes = ((30, 8), (8,), (8, 33))
    traced = mirage.kernel(program).trace(*(mirage.spec(s, "f16") for s in shapes))
    best = search(traced, H100, k=1).best
    assert len(best.mugraph.blocks) == 1
