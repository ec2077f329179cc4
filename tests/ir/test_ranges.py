"""Ranges of whole numbers: nothing that operators give lies outside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_dsl.core.types import boolean, f32, i8, i32, u8
from mirage_dsl.ir.analysis.ranges import (
    Whole,
    kept,
    range_of,
    range_of_format,
    range_of_number,
    within,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import OPERATORS

SPANS = [(-7, -2), (-5, 3), (0, 0), (0, 6), (1, 1), (2, 9)]
KNOWN = [
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "neg",
    "abs",
    "square",
    "relu",
    "bit_and",
    "remainder",
    "shift_left",
    "shift_right",
    "floor_divide",
    "less",
    "equal",
    "to_i32",
    "to_f32",
]


def numbers(span: tuple[int, int]) -> NDArray[np.int64]:
    return np.arange(span[0], span[1] + 1)


@pytest.mark.parametrize("name", KNOWN)
def test_no_result_lies_outside(name: str) -> None:
    op = OPERATORS[name]
    said = 0
    for spans in itertools.product(SPANS, repeat=op.arity):
        found = range_of(op, [Whole(*s) for s in spans])
        if found is None:
            continue
        said += 1
        given = np.meshgrid(*map(numbers, spans))
        with np.errstate(all="ignore"):
            results = np.asarray(op.numpy(*given), dtype=np.float64)
        assert found.least <= results.min(), (spans, found)
        assert results.max() <= found.most, (spans, found)
    assert said, "something is known"


def test_of_an_unknown_operand_bits_and_rests_are_known() -> None:
    mask, rest = OPERATORS["bit_and"], OPERATORS["remainder"]
    assert range_of(mask, [None, Whole(15, 15)]) == Whole(0, 15)
    assert range_of(mask, [None, Whole(-2, -2)]) is None
    assert range_of(rest, [None, Whole(10, 10)]) == Whole(0, 9)
    assert range_of(OPERATORS["add"], [None, Whole(1, 1)]) is None
    reductions = (op for op in OPERATORS.values() if op.kind is Kind.REDUCTION)
    assert all(range_of(op, [Whole(0, 1)]) is None for op in reductions)


def test_what_may_wrap_around_is_all_that_its_format_holds() -> None:
    bounds = range_of_format(i8)
    assert bounds is not None
    assert (bounds.least, bounds.most) == (-128, 127)
    assert kept(Whole(-5, 200), i8) == Whole(-128, 127)
    assert kept(Whole(-5, 100), i8) == Whole(-5, 100)
    assert kept(None, u8) == range_of_format(u8)
    assert kept(None, f32) is None
    assert kept(Whole(0, 1), boolean) == Whole(0, 1)
    assert range_of_number(0.5) is None
    assert range_of_number(-3) == Whole(-3, -3)
    wide = range_of_format(i32)
    assert wide is not None
    assert within(bounds, wide)
    assert not within(wide, bounds)
