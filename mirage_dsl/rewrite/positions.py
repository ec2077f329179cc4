"""Arithmetic of positions: from the front, inside of an axis, on several axes as one.

It is by extents and not by numbers, so that it holds at other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_dsl.core.types import extent_scalar, i64, scalar
from mirage_dsl.ir.write import OperatorWriter
from mirage_dsl.ops import table


def from_front(write: OperatorWriter, index: str, dim: str) -> str:
    """Indices along a dim, those below 0 counted from its end."""
    wide = write(f"{index}_wide", table.CONVERSIONS[i64], index)
    below = write(f"{index}_below", table.LESS, wide, scalar(0))
    behind = write(f"{index}_behind", table.ADD, wide, extent_scalar(dim))
    return write(f"{index}_place", table.WHERE, below, behind, wide)


def within(write: OperatorWriter, at: str, dim: str) -> tuple[str, str]:
    """Whether positions are not ahead of a dim, and whether they are not behind it."""
    first = write("exists", table.LESS_EQUAL, scalar(0), at)
    return first, write("exists", table.LESS, at, extent_scalar(dim))


def all_of(write: OperatorWriter, conditions: Sequence[str]) -> str:
    """Whether all conditions hold."""
    found = conditions[0]
    for other in conditions[1:]:
        found = write("inside", table.MUL, found, other)
    return found


def row_major(write: OperatorWriter, places: Sequence[str], dims: Sequence[str]) -> str:
    """Positions along dims as one along all of them, row-major."""
    found = places[0]
    for place, dim in zip(places[1:], dims[1:], strict=True):
        ahead = write("ahead", table.MUL, found, extent_scalar(dim))
        found = write("place", table.ADD, ahead, place)
    return found
