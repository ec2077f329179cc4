"""The closure: its size, its limits, and what it holds."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import scalar
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.closure import (
    AFTER,
    BEFORE,
    BODY,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    Saturation,
    Workspace,
    saturate,
    workspace,
)
from mirage_dsl.search.space import configurations, space_of
from tests.search.programs import PROGRAMS, Program


@pytest.fixture(scope="module")
def w() -> Workspace:
    return workspace(1 << 12, 1 << 18)


def saturated(program: KernelGraph, loop: str | None, w: Workspace) -> Saturation:
    return saturate(space_of(program), loop, w)


# Nodes of the largest loop choice; more would mean that S lets useless values in.
SIZES = {"rmslin": 25, "gated": 15, "lora": 20, "gqa": 30, "qknorm": 90, "ntrans": 120}


@pytest.mark.parametrize("name", PROGRAMS)
def test_closures_are_small_and_hold_the_output(name: str, w: Workspace) -> None:
    program = PROGRAMS[name]()
    space = space_of(program)
    for loop in (None, *space.loop_dims):
        s = saturated(program, loop, w)
        assert s.complete
        assert len(s.shape) <= SIZES[name]
        assert all(s.roots)


def test_stages_follow_from_operands(w: Workspace) -> None:
    s = saturated(PROGRAMS["qknorm"](), "n", w)
    for node, kind, *operands, _ in s.edges.tolist():
        stages = {int(s.stage[o]) for o in operands if o >= 0}
        if kind in (JOIN, GATHER):
            assert stages == {int(BODY)}
            assert s.stage[node] == AFTER
        elif kind != LOAD and stages:
            assert stages != {int(BODY), int(AFTER)}
            assert s.stage[node] == max(stages)


def test_without_a_loop_there_is_one_stage(w: Workspace) -> None:
    s = saturated(PROGRAMS["gqa"](), None, w)
    assert set(s.stage.tolist()) == {int(BEFORE)}


def test_residues_depend_on_the_seed_and_the_graph_does_not(w: Workspace) -> None:
    space = space_of(PROGRAMS["gqa"]())
    first = saturate(space, "n", w, seed=1)
    second = saturate(space, "n", w, seed=2)
    np.testing.assert_array_equal(first.edges, second.edges)
    np.testing.assert_array_equal(first.shape, second.shape)
    assert first.program_keys != second.program_keys


def test_a_full_workspace_is_told() -> None:
    tiny = workspace(32, 1 << 14)
    s = saturated(PROGRAMS["qknorm"](), "n", tiny)
    assert not s.complete
    assert s.counters["overflows"] == 1
    assert len(s.shape) <= 32


def test_a_deadline_stops_the_growth(w: Workspace) -> None:
    space = space_of(PROGRAMS["gqa"]())
    s = saturate(space, "n", w, budget=Budget.of(-1.0))
    assert not s.complete


def test_commuting_operands_give_one_value(w: Workspace) -> None:
    p = Program("p", {"m": 4})
    x, y = p.input("x", "m"), p.input("y", "m")
    one = p.apply("exp", p.apply("add", x, y))
    other = p.apply("exp", p.apply("add", y, x))
    s = saturated(p.returns(p.apply("mul", one, other)), None, w)
    assert len(s.sites) == 1
    assert (s.edges[:, 1] == FUNCTION).sum() == 1


def test_functions_of_three_operands(w: Workspace) -> None:
    p = Program("p", {"m": 4, "n": 3})
    x, y = p.input("x", "m n"), p.input("y", "n")
    c = p.apply("less", x, y)
    s = saturated(p.returns(p.apply("where", c, x, y)), "m", w)
    assert all(s.roots)


def test_constants_do_not_meet(w: Workspace) -> None:
    p = Program("p", {"m": 4})
    x = p.input("x", "m")
    scaled = p.apply("mul", p.apply("mul", x, scalar(3)), scalar(5))
    s = saturated(p.returns(scaled), None, w)
    operands = [[o for o in row[2:5] if o >= 0] for row in s.edges.tolist()]
    loads = {int(row[0]) for row in s.edges if row[1] == LOAD}
    assert all(not o or loads & set(o) or max(o) > 2 for o in operands)


def test_configurations_of_a_program() -> None:
    space = space_of(PROGRAMS["gqa"]())
    found = list(configurations(space))
    assert len(found) == 48
    assert len({(c.grid, c.loop) for c in found}) == 48
    assert len([c for c in found if len(c.grid) <= 1]) == 24


def test_what_a_block_cannot_do_is_named() -> None:
    p = Program("p", {"m": 4, "n": 4})
    x = p.input("x", "m n")
    e = p.apply("exp", x)
    renamed = p.apply("rename", e, dims="m n", to="n m")
    with pytest.raises(UnsupportedError, match="`t1` = rename"):
        space_of(p.returns(renamed))
    with pytest.raises(UnsupportedError, match="nothing to compute"):
        space_of(Program("q", {"m": 4}, p.inputs[:0]).returns())


def test_without_pruning_or_merging_the_closure_holds_more(w: Workspace) -> None:
    space = space_of(PROGRAMS["lora"]())
    plain = saturate(space, "h", w)
    apart = saturate(space, "h", w, apart=True)
    everything = saturate(space, "h", w, everything=True)
    assert len(plain.shape) < len(apart.shape) < len(everything.shape)
    again = saturate(space, "h", w)
    np.testing.assert_array_equal(again.edges, plain.edges)
