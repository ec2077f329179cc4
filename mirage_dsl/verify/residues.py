"""Values over a chain of finite fields.

A residue holds one component per field of the chain, low to top.  exp moves every
component one field up, so the lowest one is lost; a lost component is absent, never a
number, and whatever needs it is absent too.  Only the top component is compared.

Beside the components goes a word of flags per element:

- `MASKED`: the element is minus infinity.  exp gives 0, a sum of two stays masked;
  what has no meaning over the reals is `INVALID`.
- `INVALID`: a division by zero, or arithmetic on infinities.  A trial in which an
  output is invalid says nothing and is drawn again.
- `TOUCHED << i`: component i depends on the square root of a non-square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.verify.modular import IntArray

FlagArray = NDArray[np.uint16]
Move = Callable[[Any], Any]

MASKED = 1
INVALID = 2
TOUCHED = 4
"""The flag of the lowest component; the next ones follow."""


@dataclass(frozen=True)
class Residue:
    """An array over a chain of fields; the first axis of every array is the trial.

    Attributes:
        parts: Components, low to top; None where lost.
        flags: Flags per element; None where there are none.
        positive: It is a positive constant.
    """

    parts: tuple[IntArray | None, ...]
    flags: FlagArray | None = None
    positive: bool = False

    @property
    def top(self) -> IntArray:
        """The component that comparisons use."""
        top = self.parts[-1]
        assert top is not None, "a residue has lost its top component"
        return top

    @property
    def rank(self) -> int:
        """Number of axes without that of the trials."""
        return self.top.ndim - 1

    def each(self, move: Move) -> Residue:
        """The residue with `move` applied to every array (a move of elements)."""
        parts = tuple(None if a is None else move(a) for a in self.parts)
        flags = None if self.flags is None else move(self.flags)
        return Residue(parts, flags, self.positive)

    def all_flags(self) -> FlagArray:
        """The flags as an array, zeros where there are none."""
        if self.flags is None:
            return np.zeros(self.top.shape, dtype=np.uint16)
        return self.flags

    def flagged(self, flag: int) -> NDArray[np.bool_]:
        """Where one of the bits of `flag` is set."""
        if self.flags is None:
            return np.zeros(self.top.shape, dtype=bool)
        return (self.flags & flag) != 0


def _lift(value: Residue, rank: int) -> Residue:
    """A rank-0 value with axes of extent 1, to broadcast with rank `rank`."""
    if value.rank == rank:
        return value
    return value.each(lambda a: a.reshape(a.shape[:1] + (1,) * rank))


def align(*values: Residue) -> tuple[Residue, ...]:
    """The values with equal ranks; only those of rank 0 change."""
    rank = max(v.rank for v in values)
    return tuple(_lift(v, rank) for v in values)


def without_zeros(flags: NDArray[Any]) -> FlagArray | None:
    """The flags, or None where none is set."""
    return flags.astype(np.uint16) if flags.any() else None


def either(*values: Residue) -> FlagArray | None:
    """The union of the flags of aligned values, or None."""
    present = [v.flags for v in values if v.flags is not None]
    return reduce(np.bitwise_or, present) if present else None


def refuse_masked(value: Residue) -> Residue:
    """The value with masked elements made invalid."""
    if value.flags is None:
        return value
    masked = (value.flags & MASKED) * np.uint16(INVALID)
    flags = (value.flags & ~np.uint16(MASKED)) | masked.astype(np.uint16)
    return Residue(value.parts, flags, value.positive)


def slice_at(value: Residue, axis: int, index: int) -> Residue:
    """One position of an axis, which vanishes."""
    place = (slice(None),) * (axis + 1) + (index,)
    return value.each(lambda a: a[place])
