"""No wrong tile program is accepted: a sample of `python -m tests.tile.mutants`."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph
from tests.backends.conformance import (
    pairs_of_bytes,
    pairs_of_halves,
    parts_of_bytes,
)
from tests.tile.mutants import Verdicts, benches, mutants, scheduled

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = 40

PAGES = """mirage 1

mugraph pages(
    q: f16[b, d], k: f16[p, s, d], t: i32[b, n], u: i32[b, n]
) -> f16[b, n, s] where b = 6, d = 24, p = 7, s = 16, n = 10 {
  y = block grid(b / 4) loop(n / 2) {
    table: i32[b/grid, n/loop] = load t
    other: i32[b/grid, n/loop] = load u
    shown: f16[p, s, d] = load k
    keys: f16[b/grid, n/loop, s, d] = gather shown, table dim(p)
    more: f16[b/grid, n/loop, s, d] = gather shown, other dim(p)
    both: f32[b/grid, n/loop, s, d] = sub keys, more
    row: f16[b/grid, d] = load q
    each: f32[b/grid, n/loop, s, d] = mul both, row
    dots: f32[b/grid, n/loop, s] = sum each over(d)
    all: f32[b/grid, n, s] = accumulate dots concat
    store y: f16[b/grid, n, s] = all
  }
  return y
}
"""


SCAN = """mirage 1
mugraph scan(x: f32[m, k], w: f32[m, k]) -> f32[m, k] where m = 8, k = 12 {
  y = block grid(m / 3) {
    t = load x[m/grid, k]
    v = load w[m/grid, k]
    c = cumsum t along(k)
    p = cumprod v along(k)
    e = c * v
    q = e + p
    store y: f32[m/grid, k] = q
  }
  return y
}
"""


@pytest.mark.parametrize(
    "name", ["gqa_split_kv_running_max", "rms_lora", "rms_gated", "scan"]
)
def test_mutants_are_refused_or_the_same(name: str) -> None:
    text = SCAN if name == "scan" else (EXAMPLES / f"{name}.mu").read_text("utf-8")
    all_are_refused(name, mirage.parse(text))


def test_mutants_of_gathers_are_refused_or_the_same() -> None:
    all_are_refused("pages", mirage.parse(PAGES))


def test_lanes_and_parts_of_bytes_that_are_exchanged_are_refused() -> None:
    *_, bench = benches(parts_of_bytes(n=40))
    (program,) = bench.programs
    assert bench.accepts(0, program)
    taken: list[str] = []
    for mutant in mutants(program):
        exchanged = r"lane (\d|along)|\w+\.(0.* for \w+ \w+\.1|1.* for \w+ \w+\.0)"
        if re.match(exchanged, mutant.what):
            assert not bench.accepts(0, mutant.program), mutant.what
            taken.append(mutant.what)
    found = {
        word for what in taken for word in re.findall(r"lane|left|right|\bk\.", what)
    }
    assert found == {"lane", "left", "right", "k."}


@pytest.mark.sample(1)
@pytest.mark.parametrize("graph", [pairs_of_bytes(a=6), pairs_of_halves(6)])
def test_lanes_of_pairs_that_are_exchanged_are_refused(graph: KernelGraph) -> None:
    *_, bench = benches(graph)
    (program,) = bench.programs
    assert bench.accepts(0, program)
    taken: list[str] = []
    pairs = r"\S+\.(0 for \S+ \S+\.1|1 for \S+ \S+\.0)$"
    # The small sizes have three halves: all of a byte is shifted out of the last.
    same = r"operand w_t|\.2\."
    for mutant in mutants(program):
        exchanged = re.match(rf"lanes? (exchanged|\d|along)|{pairs}", mutant.what)
        if exchanged and not re.search(same, mutant.what):
            assert not bench.accepts(0, mutant.program), mutant.what
            taken.append(mutant.what)
    found = {re.sub(r"\S+ for (\w+) .*", r"\1", what) for what in taken}
    assert found >= {"lanes exchanged", "lane 0", "lane 1", "operand", "other"}


def all_are_refused(name: str, graph: KernelGraph) -> None:
    """A sample of mutants of a μGraph's tile programs."""
    rng, verdicts = random.Random(name), Verdicts()
    for bench in benches(scheduled(graph, rng)):
        for at, program in enumerate(bench.programs):
            assert bench.accepts(at, program)
            found = list(mutants(program))
            for mutant in rng.sample(found, min(SAMPLE, len(found))):
                verdicts.judge(name, bench, at, mutant)
    assert verdicts.survived == []
    assert verdicts.refused > SAMPLE
    assert verdicts.same > 0
