"""Ranges: between which numbers whole ones are, as far as formats and operators tell.

Integers are as large as their format allows, until an operator says less: the low four
bits of a word are 0 to 15, and less 8 they are -8 to 7.  Of floats nothing is known but
of those that integers become.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_dsl.core.types import DType, boolean
from mirage_dsl.ops.definition import Kind, Operator, Truth
from mirage_dsl.ops.table import CONVERSIONS, OPERATORS

EXACT = 2**23
"""Up to here f32 holds all integers, and others to one part of so many."""
MOST_BITS = 64
"""By which anything is shifted."""


@dataclass(frozen=True)
class Whole:
    """What is known of a value of whole numbers, be they integers or floats.

    Attributes:
        least: None of them is less.
        most: None of them is more.
        counted: Whether they hang on a sum, or on several integers that are data.
        data: Whether they hang on integers that are data.
    """

    least: float
    most: float
    counted: bool = False
    data: bool = False


Given = Sequence[Whole | None]
"""What is known of operands."""


def range_of_format(dtype: DType) -> Whole | None:
    """What numbers of a format may be; nothing is known of floats."""
    if dtype is boolean:
        return Whole(0, 1)
    return Whole(dtype.min, dtype.max, data=True) if dtype.is_integer else None


def range_of_number(number: Fraction | float | None) -> Whole | None:
    """What is known of a constant; nothing if it is no whole number."""
    if number is None or number != number // 1:
        return None
    # Exact, however large it is.
    return Whole(int(number), int(number))


def range_of(op: Operator, given: Given) -> Whole | None:
    """What an operator that computes nothing new, or element by element, gives.

    Args:
        op: The operator.
        given: What is known of its operands.
    """
    match op.kind:
        case Kind.ELEMENTWISE:
            return _ELEMENTWISE.get(op.name, _unknown)(given)
        case Kind.VIEW | Kind.CONCAT:
            return _all_of(given)
        case Kind.GATHER:
            return given[0]
        case _:
            return None


def kept(value: Whole | None, dtype: DType) -> Whole | None:
    """What is known of a result in its format, in which it may wrap around."""
    bounds = range_of_format(dtype)
    if bounds is None or (value is not None and within(value, bounds)):
        return value
    if value is None:
        return bounds
    return replace(bounds, counted=value.counted, data=value.data)


def within(value: Whole, bounds: Whole) -> bool:
    """Whether all numbers of one range are in another."""
    return bounds.least <= value.least and value.most <= bounds.most


# -- Elementwise operators -------------------------------------------------------------


def _unknown(given: Given) -> Whole | None:
    del given
    return None


def _all_of(given: Given) -> Whole | None:
    """Any of some values."""
    known = [v for v in given if v is not None]
    if len(known) < len(given) or not known:
        return None
    least, most = min(v.least for v in known), max(v.most for v in known)
    counted, data = any(v.counted for v in known), any(v.data for v in known)
    return Whole(least, most, counted, data)


def _corners(
    of: Callable[[float, float], float], *, adds: bool = False
) -> Callable[[Given], Whole | None]:
    """What is least and most where it is so at the ends of both operands."""

    def found(given: Given) -> Whole | None:
        first, second = given
        if first is None or second is None:
            return None
        ends = [
            of(a, b)
            for a in (first.least, first.most)
            for b in (second.least, second.most)
        ]
        counted = (
            first.counted or second.counted or (adds and first.data and second.data)
        )
        return Whole(min(ends), max(ends), counted, first.data or second.data)

    return found


product_of = _corners(lambda a, b: a * b)
"""What a product of two is."""


def _one(of: Callable[[Whole], Iterable[float]]) -> Callable[[Given], Whole | None]:
    """What is made of one operand, between some numbers."""

    def found(given: Given) -> Whole | None:
        (value,) = given
        if value is None:
            return None
        ends = list(of(value))
        return Whole(min(ends), max(ends), value.counted, value.data)

    return found


def _size(value: Whole) -> Iterable[float]:
    largest = max(abs(value.least), abs(value.most))
    return (0 if value.least <= 0 <= value.most else 1), largest


_ALWAYS, _NEVER, _EITHER = Whole(1, 1), Whole(0, 0), Whole(0, 1)


def _compared(
    holds: Callable[[Whole, Whole], bool], fails: Callable[[Whole, Whole], bool]
) -> Callable[[Given], Whole | None]:
    """A comparison, which is decided where no number of one range meets the other."""

    def found(given: Given) -> Whole | None:
        first, second = given
        if first is None or second is None:
            return _EITHER
        if holds(first, second):
            return _ALWAYS
        return _NEVER if fails(first, second) else _EITHER

    return found


def _apart(a: Whole, b: Whole) -> bool:
    """Whether two ranges have no number in common."""
    return a.most < b.least or b.most < a.least


def _same(a: Whole, b: Whole) -> bool:
    """Whether two ranges are the same single number."""
    return a.least == a.most == b.least == b.most


def _truth(given: Given) -> Whole:
    del given
    return _EITHER


def _power_of_two(bits: Whole | None) -> Whole | None:
    if bits is None or bits.least < 0 or bits.most >= MOST_BITS:
        return None
    return Whole(2**bits.least, 2**bits.most)


def _shifted(given: Given) -> Whole | None:
    """A power of two times as much."""
    return product_of([given[0], _power_of_two(given[1])])


def _shifted_back(given: Given) -> Whole | None:
    """What is left by a power of two, rounded down."""
    return _divided([given[0], _power_of_two(given[1])])


def _divided(given: Given) -> Whole | None:
    """What is left by a positive number, rounded down."""
    by = given[1]
    return None if by is None or by.least <= 0 else _quotient(given)


_quotient = _corners(lambda a, b: a // b)


def _masked(given: Given) -> Whole | None:
    """Bits that both have: no more than what has no sign."""
    ends = [v.most for v in given if v is not None and v.least >= 0]
    return Whole(0, min(ends)) if ends else None


def _of_bits(given: Given) -> Whole | None:
    """Bits that one has, or either: no more of them than the longer one has."""
    known = [v for v in given if v is not None and v.least >= 0]
    if len(known) < len(given):
        return None
    bits = max(int(v.most).bit_length() for v in known)
    counted, data = any(v.counted for v in known), any(v.data for v in known)
    return Whole(0, (1 << bits) - 1, counted, data)


def _rest(given: Given) -> Whole | None:
    """What is left by a number: less than it, and all of what is less."""
    value, number = given
    if number is None or number.least <= 0:
        return None
    if value is not None and value.least >= 0 and value.most < number.least:
        return value
    return Whole(0, number.most - 1)


def _rounded(given: Given) -> Whole | None:
    """A float, which is a little more or less where it is large."""
    (value,) = given
    if value is None or max(abs(value.least), abs(value.most)) <= EXACT:
        return value
    least = value.least - abs(value.least) / EXACT
    return replace(value, least=least, most=value.most + abs(value.most) / EXACT)


def _chosen(given: Given) -> Whole | None:
    """Either of two, or the one that a condition chooses always."""
    condition, *either = given
    if condition == _ALWAYS:
        return either[0]
    return either[1] if condition == _NEVER else _all_of(either)


_ELEMENTWISE: Mapping[str, Callable[[Given], Whole | None]] = {
    "add": _corners(lambda a, b: a + b, adds=True),
    "sub": _corners(lambda a, b: a - b, adds=True),
    "mul": product_of,
    "maximum": _corners(max),
    "minimum": _corners(min),
    "neg": _one(lambda v: (-v.least, -v.most)),
    "abs": _one(_size),
    "square": _one(lambda v: (0, v.least**2, v.most**2)),
    "relu": _one(lambda v: (max(v.least, 0), max(v.most, 0))),
    "where": _chosen,
    **dict.fromkeys(("round", "floor"), _all_of),
    "bit_and": _masked,
    "bit_or": _of_bits,
    "bit_xor": _of_bits,
    "remainder": _rest,
    "shift_left": _shifted,
    "shift_right": _shifted_back,
    "floor_divide": _divided,
    **{n: _truth for n, op in OPERATORS.items() if op.truth is Truth.COMPARES},
    "less": _compared(lambda a, b: a.most < b.least, lambda a, b: a.least >= b.most),
    "less_equal": _compared(
        lambda a, b: a.most <= b.least, lambda a, b: a.least > b.most
    ),
    "equal": _compared(_same, _apart),
    **{
        op.name: _all_of if dtype.is_integer else _rounded
        for dtype, op in CONVERSIONS.items()
    },
}
"""What is known of results; of all other operators, nothing but their formats."""
