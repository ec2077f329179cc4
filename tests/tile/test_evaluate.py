"""The meaning of tile programs: what their block graphs compute, lane by lane."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile import build as tiles
from mirage_dsl.tile.check import check
from mirage_dsl.tile.program import (
    Load,
    Loop,
    Mask,
    Rescale,
    Statement,
    TileProgram,
    Wait,
)
from mirage_dsl.verify import verifier
from mirage_dsl.verify.sizes import input_shape, shrink
from mirage_dsl.verify.verifier import evaluator_of, tile_level, verify
from tests.programs.mugraphs import attention, rmsnorm_linear

TESTS = Path(__file__).parents[1]
EXAMPLES = sorted((TESTS.parent / "examples").glob("*.mu"))
LAUNCHED_EARLY = TESTS / "freeze" / "graphs" / "lora_4.mu"


def floats(graph: KernelGraph, blocks: Any = None) -> list[np.ndarray[Any, Any]]:
    """The outputs on random inputs, by block graphs or by what `blocks` says."""
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(0.5, 1.5, input_shape(graph, i)) for i in graph.inputs]
    more = () if blocks is None else (blocks,)
    return evaluate(graph, inputs, NumpyDomain(), *more)


def same(graph: KernelGraph, blocks: Any) -> bool:
    pairs = zip(floats(graph), floats(graph, blocks), strict=True)
    return all(np.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in pairs)


@pytest.mark.sample(25)
@pytest.mark.parametrize(
    "changes", [{}, {"swap_operands": True}, {"descriptors": True}]
)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_tile_programs_compute_what_their_blocks_do(
    file: Path, changes: dict[str, bool]
) -> None:
    graph = mirage.parse(file.read_text("utf-8"))
    graph = graph.with_schedules(lambda b: replace(b.schedule, **changes))
    small = shrink(graph, graph, ragged=True, seed=3).candidate
    assert same(small, tile_level(graph, small))
    sized = {
        b.results: p for b, p in zip(small.blocks, tiles.programs(small), strict=True)
    }
    assert same(small, evaluator_of(sized))


def changed(program: TileProgram, change: Any) -> TileProgram:
    """The program with each statement changed, or left out for None."""

    def region(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        inner = (
            replace(s, body=region(s.body)) if isinstance(s, Loop) else change(s)
            for s in body
        )
        return tuple(s for s in inner if s is not None)

    return replace(program, body=region(program.body))


MISTAKES = {
    "no mask on loads": lambda s: replace(s, guarded=()) if isinstance(s, Load) else s,
    "no masks": lambda s: replace(s, where=()) if isinstance(s, Mask) else s,
    "0 for -inf": lambda s: replace(s, fill=0.0) if isinstance(s, Mask) else s,
    "no rescaling": lambda s: None if isinstance(s, Rescale) else s,
}


@pytest.mark.parametrize("what", MISTAKES)
def test_the_verifier_refuses_what_a_wrong_builder_makes(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = attention(2, 20, 40, 24, tile_m=16, tile_n=16)
    assert mirage.verify(graph, graph).equivalent
    build_wrongly(monkeypatch, MISTAKES[what])
    monkeypatch.setattr(verifier, "hold_to_rules", lambda _: None)
    found = mirage.verify(graph, graph)
    assert not found.equivalent
    assert found.verdict == "unknown"
    assert "tile programs" in found.reason


def build_wrongly(monkeypatch: pytest.MonkeyPatch, mistake: Any) -> None:
    """All tile programs from here on have a mistake."""
    build = tiles.build

    def wrong(*args: Any, **options: Any) -> TileProgram:
        return changed(build(*args, **options), mistake)

    monkeypatch.setattr(tiles, "build", wrong)


def test_the_verifier_refuses_what_no_trial_can_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a wait all is computed right, but on a GPU it is read too early."""
    graph = parse(LAUNCHED_EARLY.read_text())
    assert mirage.verify(graph, graph).equivalent
    build_wrongly(monkeypatch, lambda s: None if isinstance(s, Wait) else s)
    found = mirage.verify(graph, graph)
    assert not found.equivalent
    assert found.verdict == "unknown"
    assert "wait" in found.reason


def test_lanes_outside_hold_anything() -> None:
    """3 rows in 16 lanes: what no mask fills is NaN, and reaches no result."""
    graph = rmsnorm_linear(3, 40, 24, tile_n=16, tile_k=16)
    (program,) = tiles.programs(graph)
    block = graph.blocks[0]
    assert same(graph, evaluator_of({block.results: program}))
    bare = changed(program, MISTAKES["no mask on loads"])
    (found,) = floats(graph, evaluator_of({block.results: bare}))
    assert np.isnan(found).all()
    assert "loads_stay_inside" in [d.rule for d in check(bare)]


def test_axes_are_not_turned_by_themselves() -> None:
    graph = rmsnorm_linear(3, 40, 24, tile_n=16, tile_k=16)
    (program,) = tiles.programs(graph)

    def turn(statement: Statement) -> Statement:
        if isinstance(statement, Load) and statement.source == "w":
            axes = statement.tile.axes[::-1]
            return replace(statement, tile=replace(statement.tile, axes=axes))
        return statement

    turned = changed(program, turn)
    with pytest.raises(CheckError, match="expected"):
        floats(graph, evaluator_of({graph.blocks[0].results: turned}))


CLAMPED = """mirage 1
mugraph f(x: f32[m, h]) -> f32[m] where m = 4, h = 5 {{
  s = block grid(m / 1) {{
    t: f32[m/grid, h] = load x
    a: f32[m/grid, h] = maximum t, {least}
    b: f32[m/grid, h] = minimum a, 0.75
    c: f32[m/grid] = sum b over(h)
    store s: f32[m/grid] = c
  }}
  return s
}}
"""
PLAIN = """mirage 1
mugraph f(x: f32[m, h]) -> f32[m] where m = 4, h = 5 {{
  a: f32[m, h] = maximum x, {least}
  b: f32[m, h] = minimum a, 0.75
  s: f32[m] = sum b over(h)
  return s
}}
"""


@pytest.mark.parametrize("least", ["-0.5", "0.5"])
def test_zeros_outside_stay_so_or_are_masked_where_values_are_chosen(
    least: str,
) -> None:
    """max(0, -0.5) is 0 and needs no mask; in a random order it may be -0.5."""
    candidate, program = (parse(t.format(least=least)) for t in (CLAMPED, PLAIN))
    (given,) = tiles.programs(candidate)
    masks = [s for s in given.body if isinstance(s, Mask)]
    assert len(masks) == (least == "0.5")
    for seed in range(5):
        certificate = verify(candidate, program, seed=seed)
        assert certificate.equivalent, certificate


# -- What a choice leaves out is not read ----------------------------------------------

PLACED = """mirage 1
mugraph placed(new: f16[p, h], which: i64[n], some: bool[n], old: f16[n, h])
    -> f16[n, h] where n = 48, p = 8, h = 16 {
  y = block grid(n / 16) {
    rows = load new[p, h]
    taken = load some[n/grid]
    at = load which[n/grid]
    found = gather rows, at dim(p)
    twice = mul found, 2
    stays = load old[n/grid, h]
    chosen = where taken, twice, stays
    store y: f16[n/grid, h] = chosen
  }
  return y
}
"""
READ: dict[str, tuple[str, str, tuple[str, bool] | None]] = {
    "where it is taken": ("", "", ("taken", True)),
    "where it is not": (
        "where taken, twice, stays",
        "where taken, stays, twice",
        ("taken", False),
    ),
    "by a sum too": (
        "store y: f16[n/grid, h] = chosen",
        "all = add chosen, found\n    store y: f16[n/grid, h] = all",
        None,
    ),
    "on both sides": (
        "where taken, twice, stays",
        "where taken, twice, twice",
        None,
    ),
    "by a maximum of rows": (
        "where taken, twice, stays",
        "add twice, most\n    chosen = where taken, others, stays",
        None,
    ),
    "chosen by what comes later": (
        "    taken = load some[n/grid]\n    at = load which[n/grid]\n"
        "    found = gather rows, at dim(p)\n",
        "    at = load which[n/grid]\n    found = gather rows, at dim(p)\n"
        "    taken = load some[n/grid]\n",
        None,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_lanes_that_are_not_chosen_are_not_read(name: str) -> None:
    old, new, expected = READ[name]
    assert old in PLACED
    text = PLACED.replace(old, new) if old else PLACED
    if "others" in text:
        text = text.replace(
            "chosen = add twice, most",
            "most = max twice over(h)\n    others = add twice, most",
        )
    graph = parse(text)
    (program,) = tiles.programs(graph)
    loads = [s for s in program.body if isinstance(s, Load) and s.along is not None]
    (along,) = (s.along for s in loads)
    assert along is not None
    found = None if along.under is None else (along.under, along.holds)
    assert found == expected
    assert mirage.verify(graph, graph).equivalent


def test_what_is_read_where_it_is_not_chosen_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other_lanes(s: Statement) -> Statement:
        if isinstance(s, Load) and s.along is not None:
            return replace(s, along=replace(s.along, holds=not s.along.holds))
        return s

    graph = parse(PLACED)
    build_wrongly(monkeypatch, other_lanes)
    found = mirage.verify(graph, graph)
    assert not found.equivalent
    assert "tile programs" in found.reason
