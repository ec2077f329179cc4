"""Several runs at once are the runs one after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.evaluate import Compute, evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.reals import TOGETHER, RunsDomain, evaluate_runs
from mirage_dsl.verify.sizes import input_shape
from tests.programs import mugraphs
from tests.programs.random_programs import random_program

RUNS = 3

MUGRAPHS = {
    "rmsnorm_linear": mugraphs.rmsnorm_linear(3, 40, 24, tile_n=16, tile_k=16),
    "lora": mugraphs.lora(2, 24, 12, 6, tile_n=8, tile_k=8),
    "attention": mugraphs.attention(2, 5, 11, 4, tile_m=4, tile_n=4),
    "flash decoding": mugraphs.attention(2, 2, 13, 4, tile_m=2, tile_n=4, splits=2),
    "ntrans": mugraphs.ntrans(3, 9),
    "split_k": mugraphs.split_k(5, 40, 7, tile_m=4, tile_n=4, part_k=16, tile_k=8),
}


def compare(graph: KernelGraph, compute: Compute, *, rounded: bool) -> None:
    rng = np.random.default_rng(1)
    shapes = [input_shape(graph, i) for i in graph.inputs]
    inputs = [rng.normal(size=(RUNS, *s)) for s in shapes]
    found = evaluate_runs(graph, inputs, RunsDomain(compute, rounded))
    for at in range(RUNS):
        expected = evaluate_numpy(
            graph, *(v[at] for v in inputs), compute=compute, round_casts=rounded
        )
        for own, other in zip(found, expected, strict=True):
            assert own.dtype == other.dtype
            assert own.shape == (RUNS, *other.shape)
            tolerance = 1e-2 if rounded else 1e-9
            np.testing.assert_allclose(own[at], other, tolerance, tolerance)


@pytest.mark.parametrize("name", MUGRAPHS)
@pytest.mark.parametrize("rounded", [False, True])
def test_mugraphs(name: str, rounded: bool) -> None:
    compute = np.float32 if rounded else np.float64
    compare(MUGRAPHS[name], compute, rounded=rounded)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    known = random_program(seed)
    program = trace_function(
        lambda *tensors: known.function(mirage, *tensors), known.specs
    )
    compare(program, np.float64, rounded=False)


def test_many_runs_are_evaluated_in_parts() -> None:
    """Each part is what its runs are alone; where parts meet does not show."""
    graph = MUGRAPHS["attention"]
    rng = np.random.default_rng(2)
    shapes = [input_shape(graph, i) for i in graph.inputs]
    runs = 2 * TOGETHER // max(math.prod(s) for s in shapes) + 3
    inputs = [rng.normal(size=(runs, *s)) for s in shapes]
    (found,) = evaluate_runs(graph, inputs)
    assert len(found) == runs
    for at in (0, runs // 3 - 1, runs // 3, runs // 2, runs - 1):
        (alone,) = evaluate_numpy(graph, *(v[at] for v in inputs))
        np.testing.assert_allclose(found[at], alone, 1e-9, 1e-9)
