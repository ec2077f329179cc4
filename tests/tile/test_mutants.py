"""No wrong tile program is accepted: a sample of `python -m tests.tile.mutants`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mirage_dsl as mirage
from tests.tile.mutants import Verdicts, benches, mutants, scheduled

EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLE = 40


@pytest.mark.parametrize("name", ["gqa_split_kv_running_max", "rms_lora", "rms_gated"])
def test_mutants_are_refused_or_the_same(name: str) -> None:
    rng, verdicts = random.Random(name), Verdicts()
    graph = mirage.parse((EXAMPLES / f"{name}.mu").read_text("utf-8"))
    for bench in benches(scheduled(graph, rng)):
        for at, program in enumerate(bench.programs):
            assert bench.accepts(at, program)
            found = list(mutants(program))
            for mutant in rng.sample(found, min(SAMPLE, len(found))):
                verdicts.judge(name, bench, at, mutant)
    assert verdicts.survived == []
    assert verdicts.refused > SAMPLE
    assert verdicts.same > 0
