"""A reduction that a row adds while the program runs goes down the whole road.

Nothing but the table is changed: what traces, searches, verifies, splits, prints,
parses, emits and runs it reads the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.frontend.functions import reduced
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Accumulate, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.makers import ROWS, binary, reduction
from mirage_dsl.ops.table import MINIMUM
from mirage_dsl.rewrite.loops import split_loop
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.verify.verifier import verify

M, K = 6, 150


def least() -> Operator:
    """A reduction by a join that there is: one row."""
    return reduction(
        "least",
        lambda a, axes: np.min(a, axis=axes),
        join=MINIMUM,
        neutral=np.inf,
        torch="torch.amin({0}, {axes})",
        selects=True,
    )


def any_of() -> Operator:
    """The probability that one of independent events happens, with the join's row."""
    either = binary(
        "either",
        lambda a, b: a + b - a * b,
        "{0} + {1} - {0} * {1}",
        torch="{0} + {1} - {0} * {1}",
        field=lambda f, a, b: f.sub(f.add(a, b), f.mul(a, b)),
        flops=3.0,
        commutative=True,
    )
    return reduction(
        "any_of",
        lambda a, axes: 1 - np.prod(1 - a, axis=axes),
        join=either,
        neutral=0.0,
        torch="1 - prod_of(1 - {0}, {axes}, {dtype})",
    )


@dataclass
class Added:
    """A row, and what was found for a program with it."""

    op: Operator
    program: KernelGraph
    found: list[KernelGraph]


@pytest.fixture(scope="module", params=[least, any_of], ids=lambda f: f.__name__)
def added(request: pytest.FixtureRequest) -> Iterator[Added]:
    before = dict(ROWS)
    op = request.param()

    def function(x: Any, w: Any) -> Any:
        return 0.5 * reduced(op, op.name, x * w, -1, False) + 1.0

    try:
        specs = mirage.spec((M, K), "float32"), mirage.spec((K,), "float32")
        program = mirage.kernel(function).trace(*specs)
        limits = Constraints(franges=(3,))
        result = superoptimize(program, use_cache=False, constraints=limits)
        yield Added(op, program, [c.mugraph for c in result])
    finally:
        ROWS.clear()
        ROWS.update(before)


def accumulators(graph: KernelGraph) -> set[str]:
    return {n.kind for b in graph.blocks for n in b.nodes if isinstance(n, Accumulate)}


def looped(added: Added) -> KernelGraph:
    """What was found that accumulates by the new row."""
    return next(g for g in added.found if accumulators(g) == {added.op.name})


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.rand((M, K), generator=generator), torch.full((K,), 0.01)]


def agrees(graph: KernelGraph, program: KernelGraph) -> None:
    arrays = [t.double().numpy() for t in inputs()]
    (expected,) = evaluate_numpy(program, *arrays)
    np.testing.assert_allclose(evaluate_numpy(graph, *arrays)[0], expected)
    (found,) = TritonExecutable(graph, interpret=True)(*inputs())
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_it_is_searched_in_a_loop(added: Added) -> None:
    assert looped(added).blocks[0].loop is not None


def test_what_is_found_computes_it(added: Added) -> None:
    agrees(added.program, added.program)
    for graph in added.found[:2]:
        assert verify(graph, added.program, stability=False).equivalent
        agrees(graph, added.program)


def test_a_split_loop_joins_its_parts(added: Added) -> None:
    parts = split_loop(looped(added), 0, count=2)
    assert parts is not None
    assert verify(parts, added.program, stability=False).equivalent
    agrees(parts, added.program)


def test_it_is_text(added: Added) -> None:
    for graph in (added.program, *added.found):
        assert added.op.name in str(graph)
        assert parse(str(graph)) == graph


@pytest.mark.parametrize("kind", ["sum", "max", "prod"])
def test_another_accumulator_is_refused(added: Added, kind: str) -> None:
    text = str(looped(added))
    wrong = parse(re.sub(rf"(= accumulate \w+) {added.op.name}\b", rf"\1 {kind}", text))
    assert accumulators(wrong) == {kind}
    assert not verify(wrong, added.program, stability=False).equivalent
