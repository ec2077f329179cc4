"""Reductions that may be made in steps: in any order, with the same result."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mirage_dsl.ir.graph import JOINED, accumulator_kinds
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import OPERATORS

REDUCTIONS = [op for op in OPERATORS.values() if op.kind is Kind.REDUCTION]
STEPWISE = [op for op in REDUCTIONS if op.in_steps]
SPECIAL = [-np.inf, np.inf, np.nan, 0.0, -2.0]


def named(rows: list[Operator]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("op", rows, ids=lambda op: op.name)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


@named(STEPWISE)
def test_any_order_of_steps_gives_the_same(op: Operator) -> None:
    x = numbers(3, 4, 5)
    whole = op.numpy(x, (0, 1, 2))
    for order in itertools.permutations(range(3)):
        value = x
        for axis in order:
            value = np.expand_dims(op.numpy(value, (axis,)), axis)
        np.testing.assert_allclose(value.reshape(()), whole)


def test_accumulators_exist_for_them_and_no_others() -> None:
    assert accumulator_kinds() == (*(op.name for op in STEPWISE), JOINED)
    assert {op.kind for op in OPERATORS.values() if op.in_steps} == {Kind.REDUCTION}


@named(REDUCTIONS)
@pytest.mark.parametrize("special", [1.5, *SPECIAL])
def test_the_join_makes_the_whole_of_two_parts(op: Operator, special: float) -> None:
    assert op.join is not None
    x = numbers(6)
    x[1] = special
    for cut in range(1, 6):
        parts = [op.numpy(part, (0,)) for part in (x[:cut], x[cut:])]
        np.testing.assert_allclose(op.join.numpy(*parts), op.numpy(x, (0,)))


@named([op for op in OPERATORS.values() if op.join is not None])
def test_joins_are_associative_and_commutative(op: Operator) -> None:
    assert op.join is not None
    join = op.join.numpy
    a, b, c = numbers(3, 8)
    np.testing.assert_allclose(join(join(a, b), c), join(a, join(b, c)))
    np.testing.assert_array_equal(join(a, b), join(b, a))
    assert op.join.commutative


@named(STEPWISE)
def test_truth_is_kept_as_the_join_keeps_it(op: Operator) -> None:
    assert op.join is not None
    assert op.truth is op.join.truth


@named(REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_neutral_elements_change_nothing(op: Operator, dtype: type) -> None:
    assert op.neutral is not None
    for number in (*SPECIAL, 1.5):
        x = np.array([number, op.neutral, op.neutral], dtype)
        if op.in_steps or np.isfinite(number):
            np.testing.assert_array_equal(op.numpy(x, (0,)), dtype(number))
    none = np.full(3, op.neutral, dtype)
    assert not op.in_steps or op.numpy(none, (0,)) == op.neutral


@named([op for op in REDUCTIONS if op.selects])
def test_what_is_selected_is_an_element(op: Operator) -> None:
    x = numbers(4, 5)
    assert np.isin(op.numpy(x, (1,)), x).all()
