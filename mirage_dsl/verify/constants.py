"""How a constant is read in a field.

A float such as 0.1 or 1/sqrt(128) stands for a number that has no finite binary
expansion.  A constant within rounding of a rational of small height is read as that
rational; one whose square is, as the root of it with its sign, so that identities such
as `c * c = 1/128` hold.  All others are read as the exact fraction that they store.
Whichever reading applies, it moves the constant by less than its rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mirage_dsl.core.types import Scalar

_HEIGHT = 10**7
_SQUARE_HEIGHT = 2**16
_ROUNDING = Fraction(1, 2**50)


@dataclass(frozen=True)
class Number:
    """A constant: `rational`, or `sign` times the root of `square`."""

    rational: Fraction
    square: Fraction | None = None
    sign: int = 1

    def modulo(self, p: int) -> int:
        """The residue; without a root in the field, the exact rational."""
        if self.square is not None:
            square = _residue(self.square, p)
            root = pow(square, (p + 1) // 4, p)
            if root * root % p == square:
                return self.sign * root % p
        return _residue(self.rational, p)


def _residue(value: Fraction, p: int) -> int:
    return value.numerator * pow(value.denominator, -1, p) % p


def _near(value: Fraction, height: int) -> Fraction | None:
    """The rational of small height within rounding of `value`, or None."""
    close = value.limit_denominator(height)
    small = abs(close.numerator) <= height
    return close if small and abs(close - value) <= abs(value) * _ROUNDING else None


@lru_cache(maxsize=1024)
def _read(value: Fraction) -> Number:
    sign = (value > 0) - (value < 0)
    rational = _near(value, _HEIGHT)
    if rational is not None:
        return Number(rational, None, sign)
    return Number(value, _near(value * value, _SQUARE_HEIGHT), sign)


def read_number(value: Scalar, extents: Mapping[str, int]) -> Number | float:
    """The constant at the given extents; an infinity stays a float."""
    if isinstance(value.value, float):
        if math.isinf(value.value):
            return value.value
        return _read(Fraction(value.value))
    factor = Fraction(1)
    for name, power in value.extents:
        factor *= Fraction(extents[name]) ** power
    number = _read(value.value)
    square = None if number.square is None else number.square * factor**2
    return Number(number.rational * factor, square, number.sign)
