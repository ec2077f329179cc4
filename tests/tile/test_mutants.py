"""No wrong tile program is accepted: a sample of `python -m tests.tile.mutants`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mirage_dsl as mirage
from tests.tile.mutants import Verdicts, benches, mutants, scheduled

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = 40


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
    rng, verdicts = random.Random(name), Verdicts()
    text = SCAN if name == "scan" else (EXAMPLES / f"{name}.mu").read_text("utf-8")
    graph = mirage.parse(text)
    for bench in benches(scheduled(graph, rng)):
        for at, program in enumerate(bench.programs):
            assert bench.accepts(at, program)
            found = list(mutants(program))
            for mutant in rng.sample(found, min(SAMPLE, len(found))):
                verdicts.judge(name, bench, at, mutant)
    assert verdicts.survived == []
    assert verdicts.refused > SAMPLE
    assert verdicts.same > 0
