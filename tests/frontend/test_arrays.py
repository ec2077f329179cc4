"""What NumPy's arrays have otherwise than PyTorch's tensors: slices, methods, names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError, UnsupportedError

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
LONG = np.arange(400, dtype=np.float32).reshape(4, 100)


def same(function: Callable[..., Any], *given: Any) -> None:
    found = mirage.kernel(lambda *xs: function(*xs))(*given)
    for mine, right in zip(found, function(*given), strict=True):
        assert mine.dtype == right.dtype
        np.testing.assert_allclose(mine, right, rtol=1e-6)


REVERSED: dict[str, Callable[[Any], Any]] = {
    "all": lambda x: (x[::-1], x[:, ::-1], x[::-1, ::-1]),
    "some": lambda x: (x[3:0:-1], x[-1:-5:-2], x[:, 4:1:-3], x[1::-1]),
    "beside others": lambda x: (x[2, ::-1], x[..., ::-2], x[None, ::-1], x[1:, ::-1]),
    "beside places": lambda x: (x[[0, 2], ::-1], x[::-1, [3, 1]]),
    "of the rest": lambda x: (x[::-1][0], x[:, ::-1][:, 1:], x[::-1].T[::-1]),
    "from the end": lambda x: (np.cumsum(x[:, ::-1], axis=1)[:, ::-1],),
}


@pytest.mark.parametrize("x", [X, LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", REVERSED)
def test_slices_go_backwards(name: str, x: np.ndarray) -> None:
    same(REVERSED[name], x)


def test_what_is_written_behind_a_reversal_is_in_doubt() -> None:
    def function(x: Any) -> Any:
        y = x.copy()
        turned = y[::-1]
        turned[0] = 0
        return y

    with pytest.raises(TraceError, match="may share memory"):
        mirage.kernel(function)(X)


def ordered(x: Any) -> Any:
    y, z = x.copy(), x.copy()
    assert y.sort() is None
    z.sort(axis=0, kind="stable")
    return y, z


def filled(x: Any) -> Any:
    y = x.copy()
    assert y[1:].fill(3) is None
    return (y,)


def placed(x: Any) -> Any:
    y, z = np.zeros_like(x), np.zeros_like(x)
    rows, columns = np.nonzero(x > 0)
    y[rows, columns] = 2
    (chosen,) = (x[:, 0] > 0).nonzero()
    z[chosen] = x[chosen] * 2
    return y, z


METHODS: dict[str, Callable[[Any], Any]] = {
    "sort": ordered,
    "fill": filled,
    "nonzero": placed,
    "argsort": lambda x: (x.argsort(axis=0), x.argsort(axis=None), x.argsort()),
    "take": lambda x: (x.take([0, 2], axis=1), x.take([[3, 1]]), np.take(x, 1, -1)),
    "astype": lambda x: (x.astype(int), x.astype(float), x.astype(bool) * 2),
    "counts": lambda x: (
        np.count_nonzero(x > 0, axis=1),
        np.isclose(x, x[::-1], atol=0.5),
        np.float_power(x, 2),
    ),
    "angles": lambda x: (np.degrees(x), np.radians(x)),
    "joined": lambda x: (np.concatenate((x, x[:1]), axis=None), *np.hsplit(x, 2)),
    "eye": lambda x: (x + np.eye(4, 6, k=1, like=x), x @ np.identity(6, like=x)),
    "clip": lambda x: (
        np.clip(x, a_min=-1, a_max=None),
        np.clip(x, 0, x.max()),
        np.clip(x, max=0.5),
    ),
    "truth values": lambda x: ((x > 0) - 0.5, 1 - (x > 0), (x > 0) - 2),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_functions(name: str) -> None:
    same(METHODS[name], X)


def counted(x: Any) -> Any:
    s = n = x.sum()
    s += 1
    s //= 2
    whole = t = (10 * x).astype(int).sum()
    t &= 7
    t += 1.5
    return s, n, whole, t


def swapped(x: Any) -> Any:
    y = x.copy()
    row = y[0]
    row[0], row[1] = row[1], row[0]
    total, first = x[1, 1], y[0, 2]
    total += first
    y[0, 2] = 7
    return y, total, first


def single_arrays(x: Any) -> Any:
    y = x.copy()
    corner, other = y[0, 0, ...], y[1:2, 1:2].reshape(())
    corner += 1
    other *= 2
    return y, corner, other, np.where(x.sum() > 0, 1.0, x[0, 0]), np.copy(x[0, 1])


def with_rests(x: Any) -> Any:
    y, n = x.copy(), (10 * x).astype(int)
    row, whole = y[0], n
    row //= 0.5
    y[1:] %= 0.7
    whole //= 3
    n %= 5
    return y, n


def turned(x: Any) -> Any:
    y = x.copy()
    same = y
    y @= np.identity(6, like=x)[:, ::-1]
    return y, same


def along(x: Any) -> Any:
    y, z = x.copy(), x.copy()
    y[1:] -= y[:-1]
    y[:, 1:] = y[:, :-1]
    z += z[0]
    z[:2], z[2:] = z[2:], z[:2].copy()
    return y, z


def put(x: Any) -> Any:
    y, z, n = x.copy(), x.copy(), (10 * x).astype(int)
    np.put(y, [0, -1, 0], [7, 8, 9])
    y.put([[3, 4]], x[0, 0])
    z.T.put([1], -1)
    np.put(n, [5, 6], 2.7)
    return y, z, n


def at_places(x: Any) -> Any:
    rows = (x[:, 0] > 0).astype(int)
    y, z, n = x.copy(), x.copy(), (10 * x).astype(int)
    np.add.at(y, rows, x)
    np.subtract.at(y, (rows, rows + 1), x[0, :4])
    np.maximum.at(z, [0, 0, 2], x[1:])
    np.multiply.at(z, rows, 2)
    np.add.at(n, [[0, 0], [3, 0]], 1)
    return y, z, n


def several_at_once(x: Any) -> Any:
    whole, rest = np.empty_like(x), np.empty_like(x)
    np.divmod(x, 0.5, out=(whole, rest))
    return whole, rest


IN_PLACE = {
    "rests": with_rests,
    "products": turned,
    "neighbours": along,
    "put": put,
    "at places": at_places,
    "several at once": several_at_once,
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_operators_in_place(name: str) -> None:
    """They read all before they write, and other names of the array see it."""
    same(IN_PLACE[name], X)


OF_NUMPYS_OWN: dict[str, Callable[[Any, Any], Any]] = {
    "copyto": lambda own, x: np.copyto(own, x),
    "put": lambda own, x: np.put(own, [0], x[0, :1]),
    "putmask": lambda own, x: np.putmask(own, x > 0, 1),
    "along an axis": lambda own, x: np.put_along_axis(own, x.argmax(1)[:, None], 1, 1),
    "at": lambda own, x: np.add.at(own, x.argmax(1) % 4, 1),
}


@pytest.mark.parametrize("name", OF_NUMPYS_OWN)
def test_arrays_of_numpys_own_are_not_written_to(name: str) -> None:
    """A tensor stood for it and was written to, which nobody saw."""

    def function(x: Any) -> Any:
        own = np.zeros((4, 6), np.float32)
        OF_NUMPYS_OWN[name](own, x)
        return own + x

    with pytest.raises(TraceError, match=r"changes an array .* like=x"):
        mirage.kernel(function)(X)


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "reductions": lambda x: (x.sum(), x.mean() * 2, x.argmax(), (x > 0).any(), x.std()),
    "products": lambda x: (x[0] @ x[1], np.inner(x[0], x[1]), np.einsum("ij->", x)),
    "elements": lambda x: (x[0, -1], [row[1] for row in x][2], x.reshape(-1)[3] + 1),
    "of numbers": lambda x: (
        np.sqrt(x.sum() ** 2),
        x.sum().astype(int),
        x.max().copy(),
        x.min().reshape(()),
        1 / np.linalg.norm(x),
    ),
    "changed": counted,
    "apart from their array": swapped,
    "arrays of one": single_arrays,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_numbers_and_never_change(name: str) -> None:
    function = NUMBERS[name]
    found, right = mirage.kernel(lambda x: function(x))(X), function(X)
    assert [type(n) for n in found] == [type(n) for n in right]
    same(function, X)


def test_numbers_are_no_arrays_and_are_not_written_to() -> None:
    def function(x: Any) -> Any:
        total = x.sum()
        assert not isinstance(total, np.ndarray)
        total[...] = 3
        return total

    with pytest.raises(TraceError, match=r"assignment changes a number.*copy\(\)"):
        mirage.kernel(function)(X)


def test_out_takes_numbers_too() -> None:
    place = np.zeros((), np.float32)
    assert mirage.kernel(lambda x: x.sum())(X, out=place) is place
    np.testing.assert_allclose(place, X.sum(), rtol=1e-6)


def test_what_is_returned_and_is_no_tensor_has_a_line() -> None:
    with pytest.raises(UnsupportedError, match=r"test_arrays.py:.*nobody knows"):
        mirage.kernel(lambda x: np.where(x > 0))(X)
