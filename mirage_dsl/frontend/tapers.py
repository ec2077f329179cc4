"""Vectors of a signal's analysis: windows that fall to both ends, and frequencies.

They are formulas of positions, which are computed where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mirage_dsl.core.errors import DTypeError, ShapeError
from mirage_dsl.core.types import dtype_of
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.constructors import arange, steps_of
from mirage_dsl.frontend.functions import apply, formulas
from mirage_dsl.frontend.recorder import integer
from mirage_dsl.frontend.special import OF_EACH
from mirage_dsl.ops.table import OPERATORS

# -- Windows ---------------------------------------------------------------------------


def _taper(shape: Function) -> Function:
    """A constructor of windows, of a function of points and how it is shaped.

    The points are from 0 to 1; of a periodic window 1 is the point behind the last.
    """

    def window(
        window_length: int,
        periodic: bool = True,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        **options: Any,
    ) -> Any:
        count = integer(window_length, "window_length")
        if count < 1:
            raise ShapeError.here(f"a window of {count} elements; expected 1 or more")
        wanted = dtype_of(dtype)
        if wanted is not None and not wanted.is_float:
            raise DTypeError.here(f"a window of {dtype}; expected a dtype of floats")
        steps = max(count if periodic else count - 1, 1)
        at = steps_of(0.0, 1.0, count, dtype, device)
        found = shape(at / steps, *args, **options)
        return found if count > 1 else found * 0 + 1

    return window


def _turned(at: Any, turns: int) -> Any:
    return apply(OPERATORS["cos"], at * (2 * math.pi * turns))


def _hamming(at: Any, alpha: float = 0.54, beta: float = 0.46) -> Any:
    """One turn of a cosine, from the lowest point on."""
    return alpha - beta * _turned(at, 1)


_SHAPES = formulas(
    bartlett=lambda at: 1 - f.abs(2 * at - 1),
    blackman=lambda at: 0.42 - 0.5 * _turned(at, 1) + 0.08 * _turned(at, 2),
    hann=lambda at: _hamming(at, 0.5, 0.5),
)
"""Of windows that nothing else shapes: a triangle, two cosines, and one from 0 to 1."""


def _kaiser(at: Any, beta: float = 12.0) -> Any:
    """What has most of its energy in the lowest frequencies."""
    side = 2 * at - 1
    height = OF_EACH["i0"](beta * f.sqrt(f.maximum(1 - f.square(side), 0)))
    return height / float(np.i0(beta))


# -- Frequencies -----------------------------------------------------------------------


def _frequencies(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None
) -> Any:
    """The frequencies of a Fourier transform: those from 0 up, then those below 0."""
    count = integer(n, "n")
    at = arange(count)
    turns = f.where(f.less(at, (count + 1) // 2), at, at - count)
    return turns * steps_of(1.0 / (count * d), 0.0, count, dtype, device)


def _half_of_frequencies(
    n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None
) -> Any:
    """Those of a real signal's, from 0 up."""
    count = integer(n, "n")
    return steps_of(0.0, 1.0, count // 2 + 1, dtype, device) / (count * d)


# -- Names -----------------------------------------------------------------------------

TAPERS: Mapping[str, Function] = {
    **{f"{name}_window": _taper(shape) for name, shape in _SHAPES.items()},
    "fft.fftfreq": _frequencies,
    "fft.rfftfreq": _half_of_frequencies,
    "hamming_window": _taper(_hamming),
    "kaiser_window": _taper(_kaiser),
}
"""By PyTorch's names."""
