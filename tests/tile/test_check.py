"""The checker of tile programs: each rule has a program that breaks it alone."""

# ruff: noqa: E501
# Statements are lines of any length.

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirage_dsl.core.errors import CheckError
from mirage_dsl.tile.check import NAMES, RULES, check, check_or_raise
from mirage_dsl.tile.text import parse, to_text

PAGE = Path(__file__).parents[2] / "docs" / "text-format.md"

ATTENTION = """tiles 1

tile gqa(q: f16[m, d], k: f16[d, n], v: f16[n, d], y: f16[m, d]) where d = 24, m = 9, n = 40 {
  block grid(m / 4) loop(n / 16) pdl(true)
  pieces(m/grid, d, n/loop)
  side rows(m/grid) columns(d) over(n/loop)
  side rows(m/grid) columns(n/loop) over(d)
  warps(warps)
  wait
  q_tile: f16[m/grid, d] = load q[m/grid, d] guarded(m/grid, d)
  carry last: f32[m/grid] = -inf
  carry total: f32[m/grid, d] = 0
  carry weight: f32[m/grid] = 0
  carry squares: f32[n/loop] = 0
  loop(n) {
    k_tile: f16[d, n/loop] = load k[d, n/loop] guarded(d, n/loop) buffers(stages)
    v_tile: f16[n/loop, d] = load v[n/loop, d] guarded(n/loop, d) buffers(stages)
    v_again: f16[n/loop, d] = load v[n/loop, d] guarded(n/loop, d) buffers(stages) when(lanes(d) >= 64) instead(v_tile)
    v_exact: f32[n/loop, d] = convert v_again
    v_turned: f32[d, n/loop] = convert v_exact
    v_squares: f32[d, n/loop] = v_turned * v_turned
    v_sum: f32[n/loop] = sum v_squares over(d)
    squares += v_sum
    logits: f32[m/grid, n/loop] = q_tile @ k_tile rows(m/grid) columns(n/loop) over(d)
    masked: f32[m/grid, n/loop] = mask logits fill(-inf) where(n/loop: loose(n/loop))
    row: f32[m/grid] = rowshift masked over(n/loop)
    shift: f32[m/grid] = largest row last(last) scale(shrink)
    weights: f32[m/grid, n/loop] = exp(masked - shift)
    narrow: f16[m/grid, n/loop] = cast weights
    part: f32[m/grid] = sum weights over(n/loop)
    total *= shrink
    weighted: f32[m/grid, d] = narrow @ v_tile rows(m/grid) columns(d) over(n/loop) wgmma(warps >= 4) into(total)
    weight *= shrink
    weight += part
  }
  announce
  all: f32[] = sum squares over(n/loop)
  ratio: f32[m/grid, d] = total / weight
  result: f32[m/grid, d] = ratio * all
  store y: f16[m/grid, d] = result
}
"""

BROKEN = (
    ("made_before_read", "sum weights", "sum weighty"),
    ("made_once", "narrow: f16", "weights: f16"),
    ("iterations_stay_inside", "total / weight\n", "total / part\n"),
    (
        "early_loads_know_where",
        "load q[m/grid, d] guarded(m/grid, d)",
        "load q[m/grid, d] guarded(m/grid, d) early(1)",
    ),
    ("one_loop", "  loop(n) {", "  loop(m) {"),
    ("pieces_are_there", "grid(m / 4)", "grid(n / 4)"),
    ("pieces_are_there", "loop(n / 16)", "loop(m / 16)"),
    ("pieces_are_there", "rows(m/grid) columns(d) over", "rows() columns(d) over"),
    ("pieces_are_there", "sum squares over(n/loop)", "sum squares over(n/grid)"),
    ("few_are_columns", "d, n/loop)\n", "d, n/loop) few(d)\n"),
    ("pieces_in_their_place", "load q[m/grid, d]", "load q[m/grid, n/loop]"),
    ("tensors_as_declared", "load q[", "load p["),
    ("tensors_as_declared", "store y: f16", "store y: f32"),
    ("orders_fit", "v_turned * v_turned", "v_exact * v_exact"),
    ("orders_fit", "q_tile @ k_tile rows(m/grid)", "q_tile @ v_tile rows(m/grid)"),
    ("all_axes_kept", "sum v_squares over(d)", "sum v_squares over(m/grid)"),
    (
        "halves_are_sums",
        "sum squares over(n/loop)",
        "sum squares over(n/loop) halves(True)",
    ),
    (
        "halves_are_sums",
        "rowshift masked over(n/loop)",
        "rowshift masked over(n/loop) halves(lanes(n/loop) > 2)",
    ),
    *(
        (
            "lanes_are_there",
            "guarded(m/grid, d)\n  carry last",
            f"guarded(m/grid, d)\n  one: {lane}\n  carry last",
        )
        for lane in (
            "f16[m/grid] = lane q_tile along(d) at(24)",
            "f32[m/grid] = lane q_tile along(d) at(0)",
            "f16[d] = lane q_tile along(m/grid) at(0)",
            "f16[m/grid, d] = lane q_tile along(n/loop) at(0)",
        )
    ),
    *(
        (
            "both_lanes_are_joined",
            "guarded(m/grid, d)\n  carry last",
            f"guarded(m/grid, d)\n  both: {join}\n  carry last",
        )
        for join in (
            "f16[m/grid, d, n/loop] = join q_tile, q_tile along(n/loop)",
            "f32[m/grid, d, n/loop] = join q_tile, q_tile along(n/loop)",
        )
    ),
    ("formats_fit", "exp(masked - shift)", "exp(narrow_ - shift)"),
    ("formats_fit", "over(d)\n    masked", "over(d) precision(tf32)\n    masked"),
    ("formats_fit", "  wait\n", "  wait\n  at: f32[m/grid] = positions [m/grid]\n"),
    (
        "made_where_read",
        "mask logits fill(-inf) where(n/loop: loose(n/loop))",
        "mask logits fill(-inf) where(n/loop: loose(n/loop)) when(warps >= 4)",
    ),
    ("loads_have_stand_ins", "instead(v_tile)", "instead(k_tile)"),
    ("loads_have_stand_ins", " instead(v_tile)", ""),
    (
        "loads_stay_inside",
        "load q[m/grid, d] guarded(m/grid, d)",
        "load q[m/grid, d] guarded(d)",
    ),
    (
        "positions_are_data",
        "  q_tile: f16[m/grid, d] = load q[m/grid, d] guarded",
        "  at: f16[m/grid, d] = load q[m/grid, d] guarded(m/grid, d)\n"
        "  q_tile: f16[m/grid, d] = load q[m, d] along(m) index(at) guarded",
    ),
    ("masks_fill", "fill(-inf)", "fill(2)"),
    ("lanes_outside_are_neutral", "fill(-inf)", "fill(0)"),
    (
        "lanes_outside_are_neutral",
        "where(n/loop: loose(n/loop))",
        "where(n/loop: ends(n/loop))",
    ),
    ("shifts_are_finite", "exp(masked - shift)", "exp(masked - row)"),
    (
        "carried_start_neutral",
        "carry weight: f32[m/grid] = 0",
        "carry weight: f32[m/grid] = 1",
    ),
    (
        "carried_start_neutral",
        "carry last: f32[m/grid] = -inf",
        "carry last: f32[m/grid] = 0",
    ),
    (
        "sums_are_rescaled_first",
        "    weight *= shrink\n    weight += part\n",
        "    weight += part\n    weight *= shrink\n",
    ),
    ("maxima_before_their_sums", "exp(masked - shift)", "exp(masked - last)"),
    ("waits_before_dependent", "  wait\n", ""),
    ("waits_before_dependent", "  wait\n  q_tile", "  q_tile"),
    ("announced_behind_wait", "  announce\n", ""),
    ("announced_behind_wait", "  wait\n", "  announce\n  wait\n"),
    ("copies_are_apart", "convert v_again", "convert v_tile"),
    (
        "buffers_in_loops",
        "load k[d, n/loop] guarded(d, n/loop) buffers(stages)",
        "load k[d, n/loop] guarded(d, n/loop)",
    ),
)


def text(old: str, new: str) -> str:
    """The program with one change; what the change needs is declared."""
    assert old in ATTENTION
    found = ATTENTION.replace(old, new, 1)
    if "narrow_" in new:
        first = "    weights: f32"
        line = "    narrow_: f16[m/grid, n/loop] = cast masked\n"
        found = found.replace(first, line + first)
    return found


def test_the_program_itself_is_well_formed() -> None:
    assert check(parse(ATTENTION)) == []


@pytest.mark.parametrize(("rule", "old", "new"), BROKEN)
def test_a_broken_rule_is_named(rule: str, old: str, new: str) -> None:
    found = check(parse(text(old, new), "gqa.tiles"))
    assert rule in [d.rule for d in found], found
    first = next(d for d in found if d.rule == rule)
    assert first.message
    if first.location is not None:
        assert first.location.file == "gqa.tiles"
        assert first.location.text.strip() in first.message or "{" in first.message
    with pytest.raises(CheckError, match="gqa: "):
        check_or_raise(parse(text(old, new)))


def test_every_rule_has_a_broken_program() -> None:
    assert {rule for rule, _, _ in BROKEN} == {r.__name__ for r in (*NAMES, *RULES)}


def test_a_message_says_statement_found_expected_and_hint() -> None:
    (found,) = check(parse(text("fill(-inf)", "fill(0)"), "gqa.tiles"))[:1]
    assert str(found) == (
        "gqa.tiles:26: `row: f32[m/grid] = rowshift masked over(n/loop)`: masked may "
        "hold anything in lanes outside of n/loop, expected -inf; mask it "
        "[lanes_outside_are_neutral]"
    )


def test_what_others_made_is_read_behind_the_wait() -> None:
    """Inputs of the caller may be read before, in a kernel behind another one."""
    late = ATTENTION.replace("  wait\n", "").replace("  announce", "  wait\n  announce")
    assert check(parse(late), made=frozenset()) == []
    (found,) = check(parse(late), made=frozenset({"k"}))
    assert found.rule == "waits_before_dependent"
    assert "reads k before" in found.message


def test_what_others_made_is_not_loaded_early() -> None:
    """Of what the loop reads, first iterations may come before the wait."""
    plain = ATTENTION.replace("pdl(true)", "num_stages(1) pdl(true)", 1)
    early = plain.replace(
        "guarded(d, n/loop) buffers(stages)",
        "guarded(d, n/loop) buffers(stages) early(2)",
        1,
    )
    assert check(parse(early), made=frozenset({"q", "v"})) == []
    for made in (frozenset({"k"}), None):
        (found,) = check(parse(early), made=made)
        assert found.rule == "waits_before_dependent"
        assert "reads k before" in found.message
    bounded = early.replace("loop(n / 16)", "loop(n / 16) while(n <= m)")
    (found,) = check(parse(bounded), made=frozenset({"q", "v"}))
    assert found.rule == "early_loads_know_where"


IN_PARTS = """tiles 1

tile sums(x: f32[n, d], y: f32[n]) where d = 48, n = 32 {
  block grid(n / 16) loop(d / 8) whole(d >= n) num_stages(1) pdl(true)
  pieces(n/grid, d/loop)
  warps(4)
  wait
  announce
  carry total: f32[n/grid, d/loop] = 0
  loop(d) ahead {
    a: f32[n/grid, d/loop] = load x[n/grid, d/loop] buffers(1)
    total += a
  }
  loop(d) whole {
    b: f32[n/grid, d/loop] = load x[n/grid, d/loop] buffers(1)
    total += b
  }
  sum: f32[n/grid] = sum total over(d/loop)
  store y: f32[n/grid] = sum
}
"""


def test_loops_in_parts_load_nothing_early() -> None:
    """None of them begins with the first iteration of all blocks."""
    assert check(parse(IN_PARTS), made=frozenset()) == []
    early = IN_PARTS.replace("buffers(1)", "buffers(1) early(1)", 1)
    (found,) = check(parse(early), made=frozenset())
    assert found.rule == "early_loads_know_where"


def test_the_example_of_the_documentation_reads_back() -> None:
    page = PAGE.read_text("utf-8")
    (text,) = re.findall(r"```\n(tiles 1\n.*?)```", page, flags=re.S)
    program = parse(text)
    assert check(program) == []
    assert parse(to_text(program)) == program
