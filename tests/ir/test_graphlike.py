"""The public functions on graphs take graphs, texts and candidates."""

from __future__ import annotations

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, ParseError


def bound() -> mirage.BoundKernel:
    kernel = mirage.kernel(lambda x, w: mirage.silu(x @ w), effort="none")
    return kernel.bind(mirage.spec((4, 8)), mirage.spec((8, 4)))


def test_texts_and_candidates_are_graphs() -> None:
    kernel = bound()
    best = mirage.superoptimize(kernel.program, effort="none").best
    x, w = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
    (expected,) = mirage.evaluate(kernel.program, x, w)
    for graph in (str(kernel.program), best, kernel):
        assert mirage.check(graph) == []
        assert mirage.verify(graph, kernel).equivalent
        assert mirage.diff(graph, kernel.program) == ""
        np.testing.assert_array_equal(mirage.evaluate(graph, x, w)[0], expected)


def test_what_is_no_graph_is_said() -> None:
    program = bound().program
    for call in (
        lambda: mirage.check(3),
        lambda: mirage.verify(program, None),
        lambda: mirage.diff(program, 3.5),
        lambda: mirage.evaluate([program]),
    ):
        with pytest.raises(CheckError, match="expected a program or a μGraph"):
            call()
    with pytest.raises(ParseError, match="found int"):
        mirage.parse(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ParseError, match="begins with its version"):
        mirage.check("x")
