"""NumPy's functions with its arguments, against NumPy: values, formats, and classes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

Function = Callable[[Any], Any]

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
ENDLESS = X.copy()
ENDLESS[0, 1], ENDLESS[1, :3], ENDLESS[2] = np.nan, np.inf, np.inf
GIVEN = {
    "f32": X,
    "f16": X.astype(np.float16),
    "f64": X.astype(np.float64),
    "i64": (5 * X).astype(np.int64),
    "endless": ENDLESS,
}
WEIGHTS = np.array([1.5, 2, 3, 4, 5, 6])


def alike(found: Any, right: Any) -> None:
    """Both are of one class and format, in the same containers."""
    if isinstance(right, list | tuple):
        assert len(found) == len(right)
        for pair in zip(found, right, strict=True):
            alike(*pair)
        return
    assert (type(found), found.dtype) == (type(right), right.dtype)
    rtol = 2e-3 if right.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(found, right, rtol=rtol, atol=rtol)


FUNCTIONS: dict[str, Function] = {
    "medians": lambda x: (
        np.median(x),
        np.median(x[:3], 0),
        np.median(x, axis=1, keepdims=True),
        np.median(x, keepdims=True),
    ),
    "parts": lambda x: (
        np.quantile(x, 0.3),
        np.quantile(x, 0.7, axis=0, keepdims=True),
        np.percentile(x, 33, axis=-1, method="lower"),
    ),
    "means": lambda x: (
        np.average(x),
        np.average(x, axis=1, weights=WEIGHTS),
        np.average(x, weights=x * x + 1),
        np.average(x, 1, x * x + 1, returned=True)[1],
        np.mean(x, where=x > 0),
        np.mean(x, 0, where=x > -2, keepdims=True),
    ),
    "sums of some": lambda x: (
        np.sum(x, where=x > 0),
        np.sum(x, 0, where=x > 0, initial=5),
        np.prod(x, 1, where=x[:1] > 0),
        np.max(x, 0, initial=2),
        np.min(x, 1, initial=9, where=x > 0),
        np.sum(x, 0, np.float64),
        np.sum(x, axis=0, dtype="f8"),
    ),
    "joined": lambda x: (np.append(x, x[:1], 0), np.append(x, [1.0, 2.0])),
    "parted": lambda x: (*np.array_split(x, 4, 1), *np.unstack(x)),
    "deleted": lambda x: (np.delete(x, 1, 1), np.delete(x, [0, -1], 0)),
    "selected": lambda x: np.select([x < 0, x < 1], [x * 2, 7], default=1.5),
    "differences": lambda x: (
        np.diff(x, prepend=0),
        np.diff(x, axis=0, append=x[:1]),
        np.gradient(x),
        np.gradient(x[0], 2.0),
        np.gradient(x, 0.5, axis=1),
        np.ptp(x, 1),
    ),
    "sorted": lambda x: (
        np.searchsorted(np.sort(x[0]), x, side="right"),
        np.searchsorted([-1, 0, 1], x),
        np.searchsorted(np.sort(x[1]), 0.5),
        np.digitize(x[:3], np.array([-1.0, 0, 0.5])),
        np.digitize(x[:3], np.sort(x[3]), right=True),
        np.digitize(np.sort(x[3])[::-1], np.sort(x[3])[::-1]),
        np.digitize(x, [0.5]),
        np.isin(x, [0, 1, 2]),
        np.isin(x, x[0], invert=True),
        np.isin(x, x[0], True),
        np.isin(x, x[0], False, True),
    ),
    "series": lambda x: (
        np.trapezoid(x),
        np.polyval([1, 2, 3.5], x),
        np.polyval(x[0], x),
        np.vander(x[0], 3),
        np.ediff1d(x),
        np.lib.stride_tricks.sliding_window_view(x, (2, 3)),
        np.lib.stride_tricks.sliding_window_view(x, 4, axis=1).max(-1),
    ),
    "parts of numbers": lambda x: (
        *np.modf(x),
        np.fabs(x),
        np.cbrt(x),
        np.signbit(x),
        np.ldexp(x, 2),
        np.real(x),
        np.conj(x),
    ),
    "taken": lambda x: (
        np.take(x, [7, -9], mode="wrap"),
        np.take(x, [[7, -9]], axis=1, mode="clip"),
        np.take(x, 9, axis=0, mode="clip"),
        np.choose(np.argmax(x, 1)[:, None] % 2, [x, x + 1]),
        np.outer(x, x[0]),
        np.outer(x[:, :2], [1, 2]),
        np.count_nonzero(x, 0, keepdims=True),
        np.exp2(x % 3),
    ),
    "formats": lambda x: (
        x.astype("f8"),
        np.astype(x, np.float16) * np.size(x, 0),
        x + np.zeros(6, dtype="i8", like=x),
        x * x.shape[0],
    ),
    "ufuncs": lambda x: (
        np.add.accumulate(x, axis=1),
        np.maximum.accumulate(x),
        np.subtract.outer(x[0], x),
        np.multiply.reduce(x),
        np.add(x, 1, dtype="f8"),
        np.add(x, 1, where=x > 0, out=x * 0),
        *np.divmod(x, 2),
    ),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions(name: str, given: str) -> None:
    function, x = FUNCTIONS[name], GIVEN[given]
    with np.errstate(all="ignore"):
        alike(mirage.kernel(lambda x: function(x))(x), function(x))


OF_FLOATS: dict[str, Function] = {
    "products": lambda x: (
        np.vdot(x, x),
        np.vecdot(x, x, axis=0),
        np.cross(x[:, :3], x[:, 3:]),
        np.einsum("ij,kj->ik", x, x, optimize=True),
        np.linalg.vector_norm(x, axis=1),
    ),
    "diagonals": lambda x: (
        np.linalg.diagonal(x.reshape(4, 2, 3), offset=1),
        np.diagonal(x.reshape(4, 2, 3)),
        np.linalg.trace(x.reshape(4, 2, 3)),
        np.trace(x.reshape(4, 2, 3), 1, 1, 2),
        np.trace(x, -1, dtype=np.float64),
        np.linalg.outer(x[0], x[1]),
        np.linalg.multi_dot([x, x.T, x]),
    ),
    "spread": lambda x: (
        np.cov(x),
        np.cov(x, rowvar=False, bias=True),
        np.corrcoef(x),
        np.percentile(x, [0, 50, 100], axis=1),
        np.logaddexp.reduce(x, 1),
    ),
    "arrays": lambda x: (
        np.arange(6) * x,
        np.eye(4) @ x,
        x / WEIGHTS,
        np.where(np.tri(4, 6, dtype=bool), x, -np.inf),
        np.concatenate([x, np.zeros((1, 6), np.float32)]),
        np.einsum("ij,j->i", x, WEIGHTS),
        x + np.array(2.5),
    ),
}


def between(x: Any) -> Any:
    points, values = np.sort(x[0]), x[1]
    at = np.concatenate([x[2], points])
    return (
        np.interp(at, points, values),
        np.interp(x, points, values, left=-1, right=x[3, 3]),
        np.interp(x, [-1, 0, 0, 1], [2, 3, 4.5, 5]),
        np.interp(x[0, 0], points, values),
        np.interp(x, [0.5], [2]),
    )


def folded(x: Any) -> Any:
    a, b = x[0], x[1, :4]
    modes = ("full", "same", "valid")
    return (
        [np.convolve(*pair, mode) for pair in ((a, b), (b, a)) for mode in modes],
        [np.correlate(*pair, mode) for pair in ((a, b), (b, a)) for mode in modes],
        [np.trapezoid(x, WEIGHTS, axis=1), np.trapezoid(x, [0, 1, 3, 4], axis=0)],
        [np.convolve(a, [1, 2, 1]), np.convolve(a, np.ones(5) / 5, "same")],
    )


OF_FLOATS["between"], OF_FLOATS["folded"] = between, folded


@pytest.mark.parametrize("name", OF_FLOATS)
def test_functions_of_floats(name: str) -> None:
    alike(mirage.kernel(lambda x: OF_FLOATS[name](x))(X), OF_FLOATS[name](X))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i4", "i8"])
def test_formats_by_name_and_beside_extents(dtype: str) -> None:
    def function(x: Any) -> Any:
        return x * x.shape[0], np.size(x, 1) + x, x.astype("i8"), x.astype("i4")

    x = np.arange(12).reshape(3, 4).astype(dtype)
    alike(mirage.kernel(function)(x), function(x))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4"])
def test_formulas_of_integers_have_the_format_of_a_function(dtype: str) -> None:
    """It is one rounding in NumPy, where a formula has several steps."""

    def function(x: Any) -> Any:
        found = [np.exp2(x), np.degrees(x), np.radians(x), np.deg2rad(x)]
        found += [np.rad2deg(x), np.sinc(x), np.cbrt(x), np.fabs(x)]
        return found, [np.outer(x, x), np.trapezoid(x), np.vecdot(x, x), np.isin(x, 1)]

    x = np.arange(12).reshape(3, 4).astype(dtype)
    alike(mirage.kernel(function)(x), function(x))


@pytest.mark.filterwarnings("ignore:overflow")
def test_numbers_that_f16_does_not_hold_are_infinite() -> None:
    def function(x: Any) -> Any:
        return x * 1e5, x + 1e5, x > 65520, x * 65504.0, np.where(x > 0, x, 1e6)

    x = np.array([0.125, -0.5, 0.0], np.float16)
    with np.errstate(all="ignore"):
        alike(mirage.kernel(function)(x), function(x))


def in_place(x: Any) -> Any:
    y, z, t = x.copy(), x.copy(), x.copy()
    np.putmask(y, x > 0, -1)
    np.put_along_axis(y, np.argmax(x, 1)[:, None], 0, 1)
    np.fill_diagonal(y, 3)
    z[1] = [1, 2, 3, 4, 5, 6]
    z[2] += WEIGHTS.astype(np.float32)
    z[::-1, 1] = x[:, 2]
    t[::-1] = x
    t[0, 4:1:-1] = [7, 8, 9]
    return y, z, t


def test_functions_that_write() -> None:
    alike(mirage.kernel(in_place)(X), in_place(X))


REFUSED: dict[str, tuple[Function, str]] = {
    "a part": (lambda x: np.quantile(x, 1), "use min or max"),
    "where": (lambda x: np.add(x, 1, where=x > 0), "np.where(condition, value, other)"),
    "no initial": (lambda x: np.max(x, where=x > 0), "give initial="),
    "lists": (lambda x: np.einsum(x, [0, 1], [1, 0]), "write the subscripts as text"),
    "long": (
        lambda x: x[0, 0] * np.sin(np.arange(70)),
        "at most 64 numbers are constants",
    ),
    "u64": (lambda x: x.astype("u8"), "cannot convert to u8"),
    "vectors": (lambda x: np.linalg.outer(x, x), "expected a vector"),
    "integers": (lambda x: np.convolve(x[0].astype(int), [1, 2]), "astype(float)"),
    "a period": (lambda x: np.interp(x, [0, 1], [1, 2], period=3), "take the rest"),
    "reciprocals": (lambda x: np.reciprocal(x > 0), "use 1 / x"),
    "an array": (lambda x: np.array([x[0], x[1]]), "np.stack"),
    "a shape": (lambda x: x.reshape(np.array([2.0, 12.0])), "must be an integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(MirageError, match=re.escape(text)):
        mirage.kernel(lambda x: function(x))(X)
