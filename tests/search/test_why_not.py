"""Every answer to why a μGraph was not found, by one that deserves it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.canonical import Renaming
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.search.why_not import why_not

PROGRAM = """mirage 1

mugraph f(x: f16[b, h], w: f16[h, n]) -> f16[b, n] where b = 16, h = 1024, n = 512 {
  xx: f16[b, h] = mul x, x
  q: f16[b] = sum xx over(h)
  p: f16[b, n] = matmul x, w over(h)
  y: f16[b, n] = div p, q
  return y
}
"""

HEAD = PROGRAM.splitlines()[2]
LOADS = """
    xt: f16[b, h/loop] = load x
    wt: f16[h/loop, n/grid] = load w"""
NORMAL = f"""grid(n / 16) loop(h / 256) num_stages(4) {{{LOADS}
    p: f32[b, n/grid] = matmul xt, wt over(h)
    q: f32[b, h/loop] = mul xt, xt
    s: f32[b] = sum q over(h)
    pa: f32[b, n/grid] = accumulate p
    sa: f32[b] = accumulate s
    o: f32[b, n/grid] = div pa, sa"""


def _given(block: str) -> KernelGraph:
    store = "store y: f16[b, n/grid] = o"
    return parse(
        f"mirage 1\n\n{HEAD}\n  y = block {block}\n    {store}\n  }}\n  return y\n}}"
    )


@pytest.fixture(scope="module")
def program() -> KernelGraph:
    return parse(PROGRAM)


@pytest.fixture(scope="module")
def result(program: KernelGraph) -> SearchResult:
    return search(program, H100, k=64)


def test_what_was_found_has_a_rank(program: KernelGraph, result: SearchResult) -> None:
    for rank, candidate in enumerate(result):
        answer = why_not(candidate.mugraph, program, result)
        assert (answer.verdict, answer.rank) == ("found", rank)
    assert why_not(_given(NORMAL), program).verdict == "found"


def test_other_tiles_are_found_with_the_better_ones(
    program: KernelGraph, result: SearchResult
) -> None:
    answer = why_not(_given(NORMAL.replace("n / 16", "n / 64")), program, result)
    assert answer.verdict == "found"
    assert "with other tiles" in str(answer)
    huge = _given(NORMAL.replace("n / 16", "n / 512").replace("h / 256", "h / 1024"))
    assert "does not fit: kernel 1 takes" in str(why_not(huge, program, result))


def test_of_what_differs_in_where_a_constant_multiplies_one_is_a_candidate() -> None:
    mean = parse(
        PROGRAM.replace(
            "  p: f16[b, n]", "  r: f16[b] = mul q, 1/h\n  p: f16[b, n]"
        ).replace("div p, q", "mul p, r")
    )
    result = search(mean, H100, k=2)
    late, early = (
        _given(NORMAL.replace(old, new).replace("div pa, sa", f"mul pa, {by}"))
        for old, new, by in (
            ("    o:", "    ma: f32[b] = mul sa, 1/h\n    o:", "ma"),
            (
                "    s: f32[b] = sum q",
                "    r: f32[b, h/loop] = mul q, 1/h\n    s: f32[b] = sum r",
                "sa",
            ),
        )
    )
    found, other = why_not(late, mean, result), why_not(early, mean, result)
    assert found.verdict == "found"
    assert other.verdict == "like a candidate"
    assert f"candidate {found.rank} of 2" in str(other)


def test_a_wrong_one_has_a_counterexample(
    program: KernelGraph, result: SearchResult
) -> None:
    wrong = _given(NORMAL.replace("mul xt, xt", "add xt, xt"))
    answer = why_not(wrong, program, result)
    assert answer.verdict == "not equivalent"
    assert "the program gives" in str(answer)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (
            NORMAL.replace("wt: f16[h/loop, n/grid]", "wt: f16[h, n/grid]").replace(
                "matmul xt, wt", "matmul xw, wt"
            ),
            "w is whole along h, which the loop splits",
        ),
        (
            NORMAL.replace(
                "    o: f32[b, n/grid] = div pa, sa",
                "    t: f32[b, n/grid] = add pa, pa\n    l: f32[b] = add sa, sa\n"
                "    o: f32[b, n/grid] = div t, l",
            ),
            "the search places no operator of this kind",
        ),
        (
            NORMAL.replace(
                "    p: f32[b, n/grid] = matmul xt, wt over(h)",
                "    x3: f32[b, h/loop] = cast xt dtype(f32)\n"
                "    xf: f16[b, h/loop] = cast x3 dtype(f16)\n"
                "    p: f32[b, n/grid] = matmul xf, wt over(h)",
            ),
            "its casts are not those that the search places",
        ),
    ],
    ids=["mixed splits", "operators", "casts"],
)
def test_outside_the_space(
    block: str, reason: str, program: KernelGraph, result: SearchResult
) -> None:
    if "xw" in block:
        block = block.replace("    p: f32", "    xw: f16[b, h] = load x\n    p: f32")
        block = block.replace("    pa: f32[b, n/grid] = accumulate p\n", "")
        block = block.replace("div pa", "div p")
    answer = why_not(_given(block), program, result)
    assert answer.verdict == "outside the space"
    assert reason in str(answer)


def test_a_value_that_is_no_part_of_the_program_is_pruned(
    program: KernelGraph, result: SearchResult
) -> None:
    detour = NORMAL.replace(
        "    o: f32[b, n/grid] = div pa, sa",
        "    sq: f32[b] = mul sa, sa\n    ss: f32[b] = div sq, sa\n"
        "    o: f32[b, n/grid] = div pa, ss",
    )
    answer = why_not(_given(detour), program, result)
    assert answer.verdict == "pruned"
    assert "`sq`[b] is not in S" in str(answer)


def test_behind_the_last_candidate_is_too_expensive(
    program: KernelGraph, result: SearchResult
) -> None:
    few = replace(result, candidates=result.candidates[:2])
    answer = why_not(result[5].mugraph, program, few)
    assert answer.verdict == "too expensive"
    assert "the last of the 2 candidates" in str(answer)
    assert "in its configuration" in str(answer)


def test_sizes_that_fit_nowhere_are_infeasible(
    program: KernelGraph, result: SearchResult
) -> None:
    few = replace(result, candidates=result.candidates[:1])
    huge = _given(NORMAL.replace("n / 16", "n / 512").replace("h / 256", "h / 1024"))
    answer = why_not(huge, program, few)
    assert answer.verdict == "infeasible"
    assert "kernel 1 takes" in str(answer)


def test_constraints_and_budgets_are_named(
    program: KernelGraph, result: SearchResult
) -> None:
    few = replace(result, candidates=result.candidates[-1:], complete=False)
    given = result[0].mugraph
    limits = Constraints(franges=(3,))
    answer = why_not(given, program, few, constraints=limits)
    assert answer.verdict == "excluded by the constraints"
    assert why_not(given, program, few).verdict in (
        "cut by the budget",
        "too expensive",
    )


def test_other_names_are_the_same_question(
    program: KernelGraph, result: SearchResult
) -> None:
    few = replace(result, candidates=result.candidates[:2])
    named = Renaming(
        {"h": "k", "n": "b", "b": "h"}, {"x": "w", "w": "y", "y": "x"}
    ).graph(result[5].mugraph)
    assert why_not(named, program, few) == why_not(result[5].mugraph, program, few)


def test_a_rewrite_that_makes_what_was_found_is_named() -> None:
    head = """mirage 1

mugraph f(x: f32[m, k], v: f32[k, n]) -> f32[m, n] where m = 16, k = 64, n = 16 {"""
    lines = """
  e = exp x
  s = sum e over(k)
  p = matmul e, v over(k)
  y = p / s
"""
    program = parse(f"{head}{lines}  return y\n}}\n")
    loads = "v = load v[k, n]\n  x = load x[m, k]"
    block = f"y = block {{\n  {loads}{lines.replace('y =', 'o =')}"
    bare = parse(f"{head}\n  {block}  store y: f32[m, n] = o\n}}\n  return y\n}}\n")
    answer = why_not(bare, program, search(program, H100))
    assert answer.rank is None
    assert "the rewrite `stabilise` makes candidate 0 of it" in str(answer)
