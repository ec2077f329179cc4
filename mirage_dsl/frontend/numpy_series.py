"""NumPy's functions of series: places in sorted ones, and what lies between points.

Windows, convolutions, integrals and polynomials too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.core.types import f64, i64
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_sequence
from mirage_dsl.frontend.constructors import of_arrays
from mirage_dsl.frontend.functions import as_tensor, named
from mirage_dsl.frontend.layers import WINDOWS
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.rearranging import OF_PYTORCH, REARRANGING
from mirage_dsl.frontend.recorder import normal_axes, normal_axis
from mirage_dsl.frontend.tensor import Tensor, refuse
from mirage_dsl.frontend.torch_functions import FUNCTIONS


def as_array(x: Any) -> Any:
    """A tensor of numbers, lists or arrays that are no arguments of the kernel."""
    return x if isinstance(x, Tensor) else of_arrays(np.asarray(x))


def _vector(what: str, x: Any) -> Tensor:
    x = as_tensor(what, as_array(x))
    if x.ndim != 1:
        raise ShapeError.here(f"{what} of {shape_text(x.handle)}; expected a vector")
    return x


# -- Sorted ones -----------------------------------------------------------------------


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """How many elements of a sorted vector are below others."""
    if side not in ("left", "right"):
        refuse(f"np.searchsorted with side={side!r}", "use left or right")
    rows, x = _vector("searchsorted", a), f.expand_dims(as_array(v), -1)
    if sorter is not None:
        rows = rows[as_array(sorter)]
    below = f.less_equal(rows, x) if side == "right" else f.less(rows, x)
    if f.is_float(x):
        # NaN is above all others.
        last = f.not_equal(x, x)
        below = below | (last if side == "right" else last & f.equal(rows, rows))
    return f.sum(below, -1, dtype="int64")


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The bin of each element, by edges that rise or fall."""
    edges, side = _vector("digitize", bins), "left" if right else "right"
    below = searchsorted(edges, x, side)
    if edges.shape[0] == 1:
        return below
    above = searchsorted(edges[::-1], x, side)
    # Edges that are all equal rise.
    falls = f.less(edges[-1], edges[0])
    return f.where(falls, edges.shape[0] - above, below)


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Values between points on straight lines, in f64; those of the ends outside.

    Raises:
        ShapeError: There are not as many values as points.
    """
    if period is not None:
        refuse("np.interp with period=", "take the rest by it, and join the ends")
    x = f.to(as_array(x), f64)
    points, values = (f.to(_vector("interp", t), f64) for t in (xp, fp))
    count = int(points.shape[0])
    if int(values.shape[0]) != count:
        raise ShapeError.here(
            f"interp of {shape_text(values.handle)} at {shape_text(points.handle)}; "
            "expected as many values as points"
        )
    first, last = values[0], values[count - 1]
    found = first + (x - x)
    if count > 1:
        upper = f.clamp(searchsorted(points, x, "right"), 1, count - 1)
        start, end = values[upper - 1], values[upper]
        before, behind = points[upper - 1], points[upper]
        found = (end - start) / (behind - before) * (x - before) + start
    found = f.where(f.equal(x, points[count - 1]), last, found)
    below, above = f.less(x, points[0]), f.greater(x, points[count - 1])
    found = f.where(below, first if left is None else left, found)
    return f.where(above, last if right is None else right, found)


# -- Windows ---------------------------------------------------------------------------


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The sums of products of two vectors, of which one goes along the other."""
    return _slid(a, _vector("convolve", v)[::-1], mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The same with the other one in its own order."""
    longer = _vector("correlate", v).shape[0] > _vector("correlate", a).shape[0]
    return _slid(v, a, mode)[::-1] if longer else _slid(a, v, mode)


def _slid(a: Any, v: Any, mode: str) -> Any:
    """Products with a vector at each place of another one, summed."""
    x, w = _vector("convolve", a), _vector("convolve", v)
    dtype = np.result_type(x.dtype, w.dtype)
    if not np.issubdtype(dtype, np.floating):
        refuse("a convolution of integers", "convert them, as with astype(float)")
    if w.shape[0] > x.shape[0]:
        x, w = w[::-1], x[::-1]
    count = int(w.shape[0])
    # Of an even number of places NumPy keeps the later ones.
    around = {"full": (count - 1, count - 1), "valid": (0, 0)}
    around["same"] = (count // 2, (count - 1) // 2)
    if mode not in around:
        refuse(f"a convolution with mode={mode!r}", f"use one of {', '.join(around)}")
    before, behind = around[mode]
    x, w = f.to(x, dtype), f.to(w, dtype)
    wide = OF_PYTORCH["pad"](x[None, None], (before, behind))
    return WINDOWS["conv1d"](wide, w[None, None])[0, 0]


def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, writeable: bool = False
) -> Any:
    """Windows along axes, whose places have axes of their own behind the others."""
    if writeable:
        refuse("sliding_window_view with writeable=True", "write to the array")
    x = as_tensor("sliding_window_view", x)
    sizes: Sequence[int] = (
        tuple(window_shape) if is_sequence(window_shape) else (window_shape,)
    )
    axes = normal_axes(axis, x.ndim, "sliding_window_view")
    if len(sizes) != len(axes):
        raise ShapeError.here(
            f"sliding_window_view of {len(sizes)} sizes for {len(axes)} axes; expected "
            "a size for each"
        )
    for at, size in zip(axes, sizes, strict=True):
        x = OF_PYTORCH["unfold"](x, at, size, 1)
    return x


# -- Integrals and polynomials ---------------------------------------------------------


def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """The integral along an axis, of points at x or dx apart."""
    at = normal_axis(axis, y.ndim, "trapezoid")
    count = int(y.shape[at])
    before, behind = (f.narrow(y, at, start, count - 1) for start in (0, 1))
    if x is None:
        return f.sum(dx * (behind + before) / 2.0, at)
    points = as_array(x)
    steps = REARRANGING["diff"](points, 1, 0 if points.ndim == 1 else at)
    if points.ndim == 1:
        steps = f.reshape(steps, -1, *[1] * (y.ndim - at - 1))
    return f.sum(steps * (behind + before) / 2.0, at)


def polyval(p: Any, x: Any) -> Any:
    """A polynomial at each element, the coefficient of the highest power first."""
    factors, found = _vector("polyval", p), x * 0
    for at in range(int(factors.shape[0])):
        found = found * x + factors[at]
    return found


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """The powers of a vector's elements as columns, in f64 or int64."""
    x = _vector("vander", x)
    return FUNCTIONS["vander"](f.to(x, f64 if f.is_float(x) else i64), N, increasing)


def ediff1d(ary: Any) -> Any:
    """Differences of neighbours among all elements."""
    return REARRANGING["diff"](f.reshape(ary, -1))


SERIES: Mapping[str, Function] = {
    **named(searchsorted, digitize, interp, convolve, correlate, sliding_window_view),
    **named(trapezoid, polyval, vander, ediff1d),
}
"""By NumPy's names."""
