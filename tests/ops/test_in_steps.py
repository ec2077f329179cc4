"""Reductions that may be made in steps: in any order, with the same result."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest

from mirage_dsl.ir.graph import AccumulatorKind
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import OPERATORS

STEPWISE = [op for op in OPERATORS.values() if op.in_steps]


@pytest.mark.parametrize("op", STEPWISE, ids=lambda op: op.name)
def test_any_order_of_steps_gives_the_same(op) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    whole = op.numpy(x, (0, 1, 2))
    for order in itertools.permutations(range(3)):
        value = x
        for axis in order:
            value = np.expand_dims(op.numpy(value, (axis,)), axis)
        np.testing.assert_allclose(value.reshape(()), whole)


def test_accumulators_exist_for_them() -> None:
    assert STEPWISE
    for op in STEPWISE:
        assert op.kind is Kind.REDUCTION
        assert op.name in get_args(AccumulatorKind)
