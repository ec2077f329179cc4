"""Sums over concatenated dims are taken apart, so that they are one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as m
from mirage_dsl.core.hardware import H100
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.rewrite.concats import take_apart
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.search.driver import search
from tests.end_to_end.anatomy import Anatomy, only_block

Function = Callable[..., Any]
Shapes = list[tuple[int, ...]]


def traced(function: Function, shapes: Shapes) -> KernelGraph:
    return trace_function(function, [m.spec(s, "float16") for s in shapes], name="p")


def names_of(program: KernelGraph) -> set[str]:
    return {n.op.name for n in program.nodes if isinstance(n, Apply)}


def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    return x @ w + (x @ a) @ b


def lora_joined(x: Any, w: Any, a: Any, b: Any) -> Any:
    """(X ‖ XA) @ (W ‖ B)."""
    return m.concat([x, x @ a], axis=1) @ m.concat([w, b], axis=0)


def with_one_weight(x: Any, a: Any, w: Any) -> Any:
    return m.concat([x, x @ a], axis=1) @ w


def with_operators_between(x: Any, y: Any, g: Any, w: Any) -> Any:
    return (m.silu(m.concat([x * 2, y], axis=1)) * g) @ w


def summed(x: Any, y: Any) -> Any:
    t = m.concat([x + 1, y], axis=1)
    return (t * t).sum(-1)


def of_three(x: Any, y: Any, z: Any) -> Any:
    return m.exp(m.concat([x * 2, y, z], axis=1)).sum(-1)


def with_maxima(x: Any, y: Any) -> Any:
    t = m.concat([x * 2, y], axis=1)
    e = m.exp(t - t.max(-1, keepdims=True))
    return (e * t).sum(-1) / e.sum(-1)


def softmax(x: Any, y: Any) -> Any:
    t = m.concat([x * 2, y], axis=1)
    return (m.softmax(t, -1) * t).sum(-1)


LORA: Shapes = [(5, 7), (7, 11), (7, 3), (3, 11)]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lora_joined, LORA),
        (with_one_weight, [(5, 7), (7, 3), (10, 11)]),
        (with_operators_between, [(5, 7), (5, 3), (10,), (10, 11)]),
        (summed, [(5, 7), (5, 3)]),
        (of_three, [(5, 7), (5, 3), (5, 2)]),
        (with_maxima, [(5, 7), (5, 3)]),
        (softmax, [(5, 7), (5, 3)]),
    ],
)
def test_the_parts_add_up(function: Function, shapes: Shapes) -> None:
    program = expand(traced(function, shapes))
    apart = sink_views(program)
    assert not check(apart)
    assert "concat" in names_of(program)
    assert "concat" not in names_of(apart)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s) for s in shapes]
    for a, b in zip(
        evaluate_numpy(apart, *arrays), evaluate_numpy(program, *arrays), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_concatenated_operands_are_the_low_rank_update() -> None:
    shapes: Shapes = [(16, 4096), (4096, 4096), (4096, 16), (16, 4096)]
    joined, plain = (search(traced(f, shapes), H100, k=1) for f in (lora_joined, lora))
    block = only_block(joined.best.mugraph)
    assert len(Anatomy(block).applied("matmul")) == 3
    assert joined.best.certificate is not None
    assert joined.best.certificate.ok
    assert joined.best.cost.microseconds == plain.best.cost.microseconds
    assert not any(n.op.name == "concat" for n in block.nodes if isinstance(n, Apply))


def returned_too(x: Any, a: Any, w: Any) -> Any:
    t = m.concat([x, x @ a], axis=1)
    return t @ w, t


def test_what_is_returned_stays() -> None:
    program = expand(traced(returned_too, [(5, 7), (7, 3), (10, 11)]))
    assert "concat" in names_of(take_apart(program))


def shifted_against_itself(x: Any, y: Any) -> Any:
    t = m.concat([x * 2, y], axis=1)
    return (m.exp(t) / m.exp(t).max(-1, keepdims=True)).sum(-1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lora, LORA),
        (lambda x, y: m.concat([x, y], axis=1), [(5, 7), (5, 3)]),
        (shifted_against_itself, [(5, 7), (5, 3)]),
    ],
)
def test_other_programs_are_left_alone(function: Function, shapes: Shapes) -> None:
    program = expand(traced(function, shapes))
    apart = take_apart(program)
    assert canonical_hash(apart) == canonical_hash(program) or not check(apart)
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=s) for s in shapes]
    for a, b in zip(
        evaluate_numpy(apart, *arrays), evaluate_numpy(program, *arrays), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-9)
