"""Random programs trace to what NumPy computes, and hold for the whole IR."""

from __future__ import annotations

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.expand import expand
from tests.programs.random_programs import random_program
from tests.programs.workloads import CIRCLE, PAPER, Workload


@pytest.mark.sample(50)
@pytest.mark.parametrize("seed", range(150))
def test_random_programs(seed: int) -> None:
    program = random_program(seed)
    graph = trace_function(
        lambda *tensors: program.function(mirage, *tensors), program.specs
    )
    assert check(graph) == []
    assert parse(str(graph)) == graph
    arrays = program.inputs()
    expected = program.expected(*arrays)
    for candidate in (graph, expand(graph)):
        found = evaluate_numpy(candidate, *arrays)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


def test_random_programs_are_repeatable_and_varied() -> None:
    assert random_program(7).source == random_program(7).source
    programs = [random_program(seed) for seed in range(100)]
    text = "".join(p.source for p in programs)
    for name in ("softmax", "rms_norm", "@", "concat", "reshape", "where", "mean"):
        assert name in text
    ranks = {len(s) for p in programs for s in p.shapes.values()}
    assert {1, 2, 3, 4} <= ranks
    assert {p.dtype for p in programs} == {"float16", "bfloat16", "float32"}
    assert any(len(p.expected(*p.inputs())) > 1 for p in programs)


@pytest.mark.parametrize("workload", [*PAPER, *CIRCLE], ids=lambda w: w.name)
def test_workloads_trace_without_renames(workload: Workload) -> None:
    graph = trace_function(
        lambda *tensors: workload.function(mirage, *tensors),
        [mirage.spec(s, workload.dtype) for s in workload.full.values()],
    )
    assert check(graph) == []
    names = [n.op.name for n in graph.nodes if isinstance(n, Apply)]
    assert names
    assert "rename" not in names
