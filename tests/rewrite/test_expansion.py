"""Sums of products of sums multiplied out: where it helps, that it is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as m
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import strip_shifts
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.rewrite.sums import multiplied_out
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.why_not import why_not
from mirage_dsl.verify.verifier import verify
from tests.end_to_end.anatomy import Anatomy, only_block
from tests.end_to_end.searching import bound_kernel
from tests.programs.workloads import WORKLOADS

Function = Callable[..., Any]


def plain(function: Function, *shapes: tuple[int, ...]) -> KernelGraph:
    specs = [m.spec(s, "float16") for s in shapes]
    return expand(trace_function(function, specs, name="p"))


def variance(x: Any) -> Any:
    d = x - x.mean(-1, keepdims=True)
    return (d * d).mean(-1)


def covariance(x: Any, y: Any) -> Any:
    a, b = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    return (a * b).mean(-1)


def of_a_sum(x: Any, y: Any) -> Any:
    return variance(x + y)


def over_two_dims(x: Any) -> Any:
    d = x - x.mean((1, 2), keepdims=True)
    return (d * d).mean((1, 2))


def distances(x: Any, c: Any) -> Any:
    d = m.expand_dims(x, 1) - c
    return (d * d).sum(-1)


def layer_norm_linear(x: Any, w: Any) -> Any:
    return m.layer_norm(x) @ w


def depth(program: KernelGraph, dim: str) -> int:
    """The longest chain of sums over a dim that wait for each other."""
    found: dict[str, int] = {}
    for node in program.nodes:
        assert isinstance(node, Apply)
        below = max((found.get(v, 0) for v in node.values), default=0)
        found[node.result] = below + (dim in node.over and node.op.name == "sum")
    return max(found.values())


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (variance, [(5, 7)]),
        (covariance, [(5, 7)] * 2),
        (of_a_sum, [(5, 7)] * 2),
        (over_two_dims, [(5, 7, 3)]),
        (layer_norm_linear, [(5, 7), (7, 4)]),
    ],
)
def test_one_pass_is_enough(function: Function, shapes: list[tuple[int, ...]]) -> None:
    program = plain(function, *shapes)
    form = multiplied_out(program)
    assert form is not None
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=s) for s in shapes]
    for a, b in zip(
        evaluate_numpy(form.program, *arrays),
        evaluate_numpy(program, *arrays),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    summed = program.inputs[0].type.names[-1]
    assert (depth(program, summed), depth(form.program, summed)) == (2, 1)
    assert form.serves(summed)
    assert not form.serves(None)
    assert not form.serves(program.inputs[0].type.names[0])


def test_squared_distances_are_a_product() -> None:
    program = plain(distances, (5, 7), (6, 7))
    form = multiplied_out(program)
    assert form is not None
    assert form.serves(None)
    assert "matmul" in {n.op.name for n in form.program.nodes if isinstance(n, Apply)}
    assert verify(form.program, program).equivalent
    large = plain(distances, (1024, 128), (512, 128))
    assert Anatomy(only_block(search(large, H100, k=4).best.mugraph)).applied("matmul")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_other_programs_are_left_alone(workload: Any) -> None:
    program = bound_kernel(workload.name, small=True).program
    form = multiplied_out(strip_shifts(sink_views(expand(program))))
    centred = workload.name in ("layernorm_linear", "groupnorm_linear")
    assert (form is not None) == centred
    if form is not None:
        assert verify(form.program, program).equivalent


def test_what_keeps_its_rows_is_left_alone() -> None:
    """A row that is stored is in the block anyway; a second pass costs nothing."""
    assert multiplied_out(plain(m.layer_norm, (5, 7))) is None


def test_sums_of_very_many_terms_are_left_alone() -> None:
    def function(*xs: Any) -> Any:
        total = sum(x.mean(-1, keepdims=True) for x in xs)
        d = total - xs[0]
        return (d * d * d * d).sum(-1)

    assert multiplied_out(plain(function, *[(5, 7)] * 6)) is None


def test_layer_norm_and_product_in_one_pass() -> None:
    program = plain(layer_norm_linear, (64, 1024), (1024, 512))
    # It cancels where rows are nearly constant, so verification would refuse it.
    result = search(program, H100, k=4, verify=False)
    assert result.complete
    parts = Anatomy(only_block(result.best.mugraph))
    x, w = (i.name for i in program.inputs)
    assert parts.looped == set(parts.loaded) == {x, w}
    assert not parts.applied("sqrt", "body")
    sums = {a.result for a in parts.accumulators}
    products = {n.result for n in parts.applied("matmul", "body")}
    assert {a.operand for a in parts.accumulators} & products
    assert parts.made_from(parts.stored, *sums)


def test_one_pass_is_not_pruned() -> None:
    program = plain(layer_norm_linear, (64, 1024), (1024, 512))
    graph = search(program, H100, k=1, verify=False).best.mugraph
    assert only_block(graph).loop is not None
    small = SearchResult(
        program, (program_by_library(program),), complete=True, seconds=0.0
    )
    assert why_not(graph, program, small).verdict not in ("pruned", "found")


def program_by_library(program: KernelGraph) -> Candidate:
    return Candidate(program, estimate(program, H100), None)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_cancellation_is_judged_by_the_verdict(dtype: str) -> None:
    """E[x²] - μ² loses all digits where rows are nearly constant."""
    specs = [m.spec(s, dtype) for s in ((64, 1024), (1024, 512))]
    program = trace_function(layer_norm_linear, specs, name="p")
    found = search(program, H100, k=4, verify=False)
    graph = next(c.mugraph for c in found if c.mugraph.blocks[0].loop is not None)
    certificate = verify(graph, program)
    assert certificate.equivalent
    assert certificate.stability is not None
    assert not certificate.stability.ok
    best = search(program, H100, k=4).best
    assert best.mugraph.blocks
    assert best.certificate is not None
    assert best.certificate.stability is not None
    assert best.certificate.stability.ok
