"""Integers and truth values as inputs of trials and runs.

They are computed as they are, by NumPy, in their formats and with the wrap-around of
these.  So what is no arithmetic of rings (shifts, comparisons, floor division) is exact
in verification too.  Where they become floats they become residues.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, boolean
from mirage_dsl.ops.definition import Array

SMALL = 4
"""Half of the integers that are drawn lie below it, so that some are equal."""
_STEPS = 64.0


def any_integers(
    rng: np.random.Generator,
    dtype: DType,
    shape: tuple[int, ...],
    limit: range | None = None,
) -> NDArray[Any]:
    """Random numbers of a format of integers, or truth values; within limits, if any.

    Half of them are small, so that comparisons meet equal ones and products do not wrap
    around; the others are of any size.
    """
    return of_words(dtype, rng.integers(0, 2**62, shape), limit)


def of_words(
    dtype: DType, words: NDArray[np.int64], limit: range | None = None
) -> NDArray[Any]:
    """A number of a format for each random number from 0 on.

    Within limits they are indices, which count from the end where they are negative.
    """
    if limit is not None:
        return _indices(dtype, words, limit)
    if dtype == boolean:
        return words % 2 == 1
    least = max(int(dtype.min), -SMALL)
    small = words // 2 % (SMALL - least) + least
    return np.where(words % 2 == 0, small, words // 2).astype(dtype.long_name)


def fitted(dtype: DType, values: Array, limit: range | None = None) -> Array:
    """Random floats as values that an input may have, near them if it can be.

    Floats are left as they are: rounding them is up to whoever runs a graph.
    """
    if dtype.is_float:
        return values
    steps = np.rint(np.abs(values) * _STEPS)
    if limit is not None:
        return _indices(dtype, steps, limit)
    if dtype == boolean:
        return np.asarray(steps % 2, values.dtype)
    signed = np.where(values < 0, -steps, steps)
    return np.clip(signed, dtype.min, min(dtype.max, 2.0**62)).astype(dtype.long_name)


def _indices(dtype: DType, words: Array, limit: range) -> Array:
    """Indices of an axis, which count from its end where they are negative."""
    least = max(limit.start, int(dtype.min))
    most = min(limit.stop - 1, int(dtype.max))
    return (words % (most - least + 1) + least).astype(dtype.long_name)


__all__ = ["SMALL", "any_integers", "fitted", "of_words"]
