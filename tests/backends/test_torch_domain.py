"""The evaluator over torch's float64 is the one over NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tune.trial_worker import evaluate_torch
from tests.backends.running import as_array, random_inputs
from tests.backends.test_operators import library, mixed_program
from tests.ops.kinds import is_of_floats
from tests.programs import mugraphs

PROGRAMS: dict[str, KernelGraph] = {
    "library kernels": mixed_program(),
    "a block with a ragged loop": mugraphs.rmsnorm_linear(5, 37, 50, tile_k=16),
    "a running maximum": mugraphs.attention(2, 20, 40, 16, tile_m=16, tile_n=16),
    "a split loop": mugraphs.attention(2, 20, 64, 16, tile_m=16, tile_n=16, splits=2),
}


def assert_same(graph: KernelGraph, low: float | None = None) -> None:
    tensors = random_inputs(graph, low=low)
    found = evaluate_torch(graph, tensors)
    right = evaluate_numpy(graph, *[as_array(t) for t in tensors])
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs(name: str) -> None:
    assert_same(PROGRAMS[name])


ELEMENTWISE = [o for o in OPERATORS.values() if is_of_floats(o)]


@pytest.mark.parametrize("op", ELEMENTWISE, ids=lambda o: o.name)
def test_elementwise_rows(op: Operator) -> None:
    assert_same(library(op, f32), op.domain[0] if op.domain[0] > 0 else None)


def test_rows_without_any_number_shift_as_the_reference_does() -> None:
    g = KernelBuilder("shift", m=3, n=4)
    x = g.input("x", f32, "m, n")
    graph = g.returns(g.rowshift(x, over="n")).build()
    tensors = random_inputs(graph)
    tensors[0][1] = float("-inf")
    found, expected = (
        evaluate_torch(graph, tensors)[0],
        evaluate_numpy(graph, *tensors)[0],
    )
    np.testing.assert_array_equal(found.numpy(), expected)
    assert np.isfinite(expected).all()
