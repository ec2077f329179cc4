"""Indices with tensors in them, as PyTorch and NumPy read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.graph import KernelGraph

Function = Callable[..., Any]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


def at_all_but_one(y: Any, p: Any, i: Any, v: Any) -> Any:
    y = y * 1
    y[p, i] = v
    return y


def of_one(y: Any, i: Any, v: Any) -> Any:
    y = y * 1
    y[0, i] = v
    return y


def in_last_columns(y: Any, i: Any, v: Any) -> Any:
    y = y * 1
    y[..., i] = v
    return y


def in_a_cache(cache: Any, p: Any, row: Any) -> Any:
    cache = cache.clone()
    cache[:, p] = row
    return cache


def stored_at_two(x: Any, i: Any, j: Any) -> Any:
    y = x * 1
    y[i, j] = 1.0
    return y


X, ROWS, COLUMNS = normal(5, 6, 4), torch.tensor([0, 2, -1]), torch.tensor([1, 3, 0])
P = torch.tensor(2)
CASES: dict[str, tuple[Function, list[Any]]] = {
    "two": (lambda x, i, j: x[i, j], [X, ROWS, COLUMNS]),
    "three": (lambda x, i, j: x[i, j, j], [X, ROWS, COLUMNS]),
    "two behind": (lambda x, i, j: x[:, i, j], [X, ROWS, COLUMNS]),
    "two apart": (lambda x, i, j: x[i, :, j], [X, ROWS, COLUMNS]),
    "two apart, cut": (lambda x, i, j: x[i, 1:4, j], [X, ROWS, COLUMNS]),
    "two that broadcast": (lambda x, i, j: x[i[:, None], j], [X, ROWS, COLUMNS]),
    "two and a new axis": (lambda x, i, j: x[i, j, None], [X, ROWS, COLUMNS]),
    "rows and labels": (lambda x, j: x[torch.arange(3), j], [X[:3], COLUMNS]),
    "behind an integer": (lambda x, i: x[0, i], [X, ROWS]),
    "far behind an integer": (lambda x, i: x[0, :, i], [X, ROWS]),
    "behind a new axis": (lambda x, i: x[None, i], [X, ROWS]),
    "the last": (lambda x, i: x[..., i], [X, ROWS]),
    "the last, and one more": (lambda x, i: x[..., i, None], [X, ROWS]),
    "a position": (lambda x, p: x[:, p], [X, P]),
    "positions": (lambda x, p: x[p, :, p], [X, P]),
    "a position and others": (lambda x, p, i: x[p, i], [X, P, ROWS]),
    "a position apart": (lambda x, p, i: x[i, :, p], [X, P, ROWS]),
    "one selected": (lambda x, p: x.index_select(0, p), [X, P]),
    "stored at a position": (at_all_but_one, [X, P, COLUMNS, normal(3, 4)]),
    "stored at two": (stored_at_two, [X, ROWS, COLUMNS]),
    "stored in one": (of_one, [X, COLUMNS, normal(3, 4)]),
    "stored in columns": (in_last_columns, [X, COLUMNS, normal(5, 6, 3)]),
    "stored in a cache": (in_a_cache, [X, P, normal(5, 4)]),
    "one row for all": (in_a_cache, [X, P, normal(4)]),
    "divided by nothing": (lambda x: (x // 0, 0 * x // 0.0), [X]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    function, tensors = CASES[name]
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected, equal_nan=True)


NUMPYS = ["two", "two behind", "two apart", "two that broadcast", "the last"]


@pytest.mark.parametrize(
    "name", [*NUMPYS, "behind a new axis", "a position and others"]
)
def test_as_numpy(name: str) -> None:
    function, tensors = CASES[name]
    arrays = [t.double().numpy() if t is X else t.numpy() for t in tensors]
    found, expected = mirage.kernel(function)(*arrays), function(*arrays)
    np.testing.assert_allclose(found, expected)


PAIRS: dict[str, Function] = {
    "a method": lambda x: x.max(-1),
    "a function": lambda x: torch.min(x, 1),
    "kept": lambda x: x.min(dim=0, keepdim=True),
    "inside": lambda x: {"a": (x.max(1), x + 1)},
}


@pytest.mark.parametrize("name", PAIRS)
def test_extremes_are_returned_with_their_positions(name: str) -> None:
    found, expected = mirage.kernel(PAIRS[name])(X), PAIRS[name](X)
    if name == "inside":
        found, expected = found["a"][0], expected["a"][0]
    torch.testing.assert_close(found.values, expected.values)
    torch.testing.assert_close(found.indices, expected.indices)


def traced(function: Function) -> KernelGraph:
    given = mirage.spec((3,), "int64")
    return mirage.kernel(function).trace(mirage.spec((6, 6), "float32"), given, given)


def rows_at(x: Any, i: Any, j: Any) -> Any:
    return (x * 2)[i, j] + 1


def on_a_diagonal(x: Any, i: Any, j: Any) -> Any:
    y = x * i.sum() + j.sum()
    y.diagonal(1).mul_(2.0)
    return y


def by_a_mask(x: Any, i: Any, j: Any) -> Any:
    return (x * i.sum())[:, torch.tensor([1, 0, 1, 1, 0, 0]).bool()] + j.sum()


@pytest.mark.sample(1)
@pytest.mark.parametrize("function", [rows_at, stored_at_two, on_a_diagonal, by_a_mask])
def test_indices_are_searched(function: Function) -> None:
    best = mirage.superoptimize(traced(function), effort="quick", use_cache=False).best
    assert best.certificate.ok
    x = normal(6, 6)
    found = TritonExecutable(best.mugraph, interpret=True)(x, ROWS, COLUMNS)[0]
    torch.testing.assert_close(found, function(x, ROWS, COLUMNS))


WRONG: dict[str, Function] = {
    "exchanged": lambda x, i, j: rows_at(x, j, i),
    "one of them twice": lambda x, i, j: rows_at(x, i, i + 0 * j),
    "the next": lambda x, i, j: rows_at(x, i, (j + 1) % 6),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_indices_are_refused(name: str) -> None:
    program, wrong = traced(rows_at), traced(WRONG[name])
    for seed in range(20):
        found = mirage.verify(wrong, program, seed=seed, stability=False)
        assert not found.equivalent, seed


REFUSED: dict[str, tuple[Function, str]] = {
    "of other lengths": (lambda x, i, j: x[i, j[:2]], "do not broadcast"),
    "too many": (lambda x, i, j: x[i, j, i, j], "4 indices for"),
    "of floats": (lambda x, i, j: x[i, j * 0.5], "a tensor beside other indices"),
    "made elsewhere": (
        lambda x, i, j: x[torch.from_numpy(np.arange(90) % 2)] + i[0] + j[0],
        "an index that is a torch Tensor, whose values would be frozen",
    ),
    "selected by a matrix": (
        lambda x, i, j: x.index_select(0, i[None]) + j[0],
        "index_select by an index of several axes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(MirageError) as error:
        mirage.kernel(function)(X, ROWS, COLUMNS)
    assert text in str(error.value)
    assert error.value.location is not None


def test_an_index_outside_is_an_error_along_each_axis() -> None:
    kernel = mirage.kernel(CASES["two"][0])
    for i, j in ((ROWS + 6, COLUMNS), (ROWS, COLUMNS + 5)):
        with pytest.raises(MirageError, match="expected -"):
            kernel(X, i, j)


def test_where_numpy_orders_axes_otherwise_is_refused() -> None:
    with pytest.raises(MirageError, match="order axes differently"):
        mirage.kernel(lambda x, i: x[0, :, i])(X.numpy(), ROWS.numpy())
