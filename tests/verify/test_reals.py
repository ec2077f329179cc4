"""Graphs that agree as algebra, and have finite values on other inputs."""

# All bodies have one signature, whether they use both tensors or not.
# ruff: noqa: ARG005

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import f16, scalar
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.verifier import verify

SEEDS = range(5)


def _graph(body: Any) -> KernelGraph:
    b: Any = KernelBuilder("f", m=8, n=16)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m, n")
    return b.returns(body(b, x, y)).build()


def _softmax(b: Any, x: str) -> str:
    e = b.exp(b.sub(x, b.rowshift(x, over="n")))
    return b.div(e, b.sum(e, over="n"))


ON_REGIONS: dict[str, tuple[Any, Any]] = {
    "root of a product": (
        lambda b, x, y: b.mul(b.sqrt(x), b.sqrt(y)),
        lambda b, x, y: b.sqrt(b.mul(x, y)),
    ),
    "reciprocal root of a product": (
        lambda b, x, y: b.mul(b.rsqrt(x), b.rsqrt(y)),
        lambda b, x, y: b.rsqrt(b.mul(x, y)),
    ),
    "root of a quotient": (
        lambda b, x, y: b.div(b.sqrt(x), b.sqrt(y)),
        lambda b, x, y: b.sqrt(b.div(x, y)),
    ),
    "squared root": (
        lambda b, x, y: b.square(b.sqrt(x)),
        lambda b, x, y: b.mul(x, 1),
    ),
    "root times root": (
        lambda b, x, y: b.mul(b.sqrt(x), b.sqrt(x)),
        lambda b, x, y: b.mul(x, 1),
    ),
    "squared roots summed": (
        lambda b, x, y: b.sum(b.square(b.sqrt(x)), over="n"),
        lambda b, x, y: b.sum(x, over="n"),
    ),
    "contraction of roots": (
        lambda b, x, y: b.sum(b.mul(b.sqrt(x), b.sqrt(y)), over="n"),
        lambda b, x, y: b.sum(b.sqrt(b.mul(x, y)), over="n"),
    ),
    "relu of a squared root": (
        lambda b, x, y: b.relu(b.mul(b.square(b.sqrt(x)), 7)),
        lambda b, x, y: b.mul(b.relu(x), 7),
    ),
    "fourth power of a root of the negative": (
        lambda b, x, y: b.square(b.square(b.sqrt(b.neg(x)))),
        lambda b, x, y: b.square(x),
    ),
    "root of a difference": (
        lambda b, x, y: b.square(b.sqrt(b.sub(x, scalar(0.5)))),
        lambda b, x, y: b.sub(x, scalar(0.5)),
    ),
    "root beside a softmax": (
        lambda b, x, y: b.mul(_softmax(b, x), b.square(b.sqrt(y))),
        lambda b, x, y: b.mul(_softmax(b, x), y),
    ),
    "logarithm that cancels": (
        lambda b, x, y: b.add(b.sub(b.log(x), b.log(x)), y),
        lambda b, x, y: b.mul(y, 1),
    ),
}
"""Pairs of which the first one has no value on a region where the other one has."""

AT_POINTS: dict[str, tuple[Any, Any]] = {
    "quotient by a root": (
        lambda b, x, y: b.sqrt(x),
        lambda b, x, y: b.div(x, b.sqrt(x)),
    ),
    "product with a reciprocal root": (
        lambda b, x, y: b.sqrt(x),
        lambda b, x, y: b.mul(x, b.rsqrt(x)),
    ),
    "quotient by itself": (
        lambda b, x, y: b.mul(y, 1),
        lambda b, x, y: b.div(b.mul(y, x), x),
    ),
    "quotient that cancels": (
        lambda b, x, y: b.mul(x, y),
        lambda b, x, y: b.div(b.mul(y, b.square(x)), x),
    ),
    "difference over a difference": (
        lambda b, x, y: b.add(x, y),
        lambda b, x, y: b.div(b.sub(b.square(x), b.square(y)), b.sub(x, y)),
    ),
    "sum over a sum": (
        lambda b, x, y: b.sum(y, over="n"),
        lambda b, x, y: b.div(
            b.mul(b.sum(y, over="n"), b.sum(x, over="n")), b.sum(x, over="n")
        ),
    ),
    "root of a quotient of powers": (
        lambda b, x, y: b.sqrt(b.square(b.square(x))),
        lambda b, x, y: b.div(b.square(b.square(x)), b.square(x)),
    ),
}
"""Pairs of which the second one has no value at points where the first one has."""


def _refused(found: Certificate, candidate: KernelGraph, program: KernelGraph) -> None:
    assert found.verdict == "different", found.reason
    example = found.counterexample
    assert example is not None
    values = [
        np.asarray(side) for side in (example.expected_output, example.found_output)
    ]
    finite = [bool(np.isfinite(v[example.index])) for v in values]
    assert finite[0] != finite[1]
    sized = [g.with_extents(dict(example.sizes)) for g in (program, candidate)]
    inputs = [np.asarray(v) for v in example.inputs]
    for graph, value in zip(sized, values, strict=True):
        (again,) = evaluate_numpy(graph, *inputs)
        np.testing.assert_array_equal(again, value)


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", ON_REGIONS)
@pytest.mark.parametrize("turned", [False, True])
def test_regions_are_those_of_the_program(name: str, turned: bool) -> None:
    pair = [_graph(body) for body in ON_REGIONS[name]]
    program, candidate = reversed(pair) if turned else pair
    for seed in SEEDS[:2]:
        found = verify(candidate, program, seed=seed)
        _refused(found, candidate, program)
        way = "is not finite" if turned else "is finite"
        assert way in found.reason


@pytest.mark.parametrize("name", AT_POINTS)
def test_no_point_is_lost(name: str) -> None:
    program, candidate = (_graph(body) for body in AT_POINTS[name])
    for seed in SEEDS:
        _refused(verify(candidate, program, seed=seed), candidate, program)


# -- What is no difference of domains --------------------------------------------------

SAME: dict[str, tuple[Any, Any]] = {
    "a point that becomes finite": (
        lambda b, x, y: b.div(b.mul(x, y), y),
        lambda b, x, y: b.mul(x, 1),
    ),
    "roots of what is positive": (
        lambda b, x, y: b.mul(b.sqrt(b.exp(x)), b.sqrt(b.exp(y))),
        lambda b, x, y: b.sqrt(b.mul(b.exp(x), b.exp(y))),
    ),
    "the same root in another place": (
        lambda b, x, y: b.mul(b.sqrt(x), b.mul(2, y)),
        lambda b, x, y: b.mul(2, b.mul(b.sqrt(x), y)),
    ),
    "deviations of rows that may be zero": (
        lambda b, x, y: b.div(y, b.sqrt(b.sum(b.square(x), over="n"))),
        lambda b, x, y: b.mul(y, b.rsqrt(b.sum(b.mul(x, x), over="n"))),
    ),
    "a shift": (
        lambda b, x, y: _softmax(b, x),
        lambda b, x, y: b.div(b.exp(x), b.sum(b.exp(x), over="n")),
    ),
    "rows masked as a whole": (
        lambda b, x, y: _softmax(b, b.where(b.less(x, y), x, scalar(float("-inf")))),
        lambda b, x, y: b.div(
            b.mul(b.exp(x), b.less(x, y)),
            b.sum(b.mul(b.exp(x), b.less(x, y)), over="n"),
        ),
    ),
    "exponentials out of range": (
        lambda b, x, y: _softmax(b, b.mul(b.square(x), scalar(500))),
        lambda b, x, y: b.div(
            b.exp(b.mul(b.square(x), scalar(500))),
            b.sum(b.exp(b.mul(b.square(x), scalar(500))), over="n"),
        ),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_domain(name: str) -> None:
    program, candidate = (_graph(body) for body in SAME[name])
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed, stability=False)
        assert found.equivalent, found.reason


@pytest.mark.parametrize("pick", ["max", "min"])
def test_0_is_the_largest_of_rows_without_positive_numbers(pick: str) -> None:
    """By which nothing can be divided, though by the sum of such a row."""

    def divided(b: Any, x: str, y: str) -> str:
        del y
        part = b.div(x, getattr(b, pick)(x, over="n"))
        return b.div(part, b.sum(part, over="n"))

    program = _graph(lambda b, x, y: b.div(x, b.sum(x, over="n")))
    for seed in range(20):
        found = verify(_graph(divided), program, seed=seed, stability=False)
        assert not found.equivalent
        assert "not finite where the program is" in found.reason
        assert verify(program, _graph(divided), seed=seed, stability=False).equivalent
