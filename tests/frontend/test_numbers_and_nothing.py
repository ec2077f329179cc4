"""Tensors without axes, which PyTorch gives one to, and tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, ShapeError, UnsupportedError

F = torch.nn.functional
Function = Callable[..., Any]

NUMBER = torch.tensor(-1.5)
X = torch.arange(12.0).reshape(3, 4)
NOTHING = torch.zeros(0, 4)


def same(function: Function, *given: torch.Tensor) -> None:
    found, expected = mirage.kernel(lambda *xs: function(*xs))(*given), function(*given)
    torch.testing.assert_close(found, expected, equal_nan=True)


OF_A_NUMBER: dict[str, Function] = {
    "sums": lambda x: (x.sum(0), x.mean(-1), x.prod(0, keepdim=True), x.sum(dim=())),
    "extremes": lambda x: (x.amax(0), *x.min(0), *torch.max(x, -1), x.argmax(0)),
    "spreads": lambda x: (x.var(0, correction=0), x.logsumexp(0), x.count_nonzero(0)),
    "norms": lambda x: (x.norm(), x.norm(3, 0), torch.linalg.norm(x)),
    "running": lambda x: (x.cumsum(0), x.cumprod(-1), *x.cummax(0), x.logcumsumexp(0)),
    "orders": lambda x: (*x.sort(), x.argsort(), *x.topk(1), *x.median(0)),
    "others": lambda x: (*x.kthvalue(1), *x.mode(), x.squeeze(0), x.flip(0)),
    "shares": lambda x: (x.softmax(0), x.log_softmax(-1), F.normalize(x, dim=0)),
}


@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_a_number_has_an_axis_of_one(name: str) -> None:
    same(lambda x: tuple(part + 0 for part in OF_A_NUMBER[name](x)), NUMBER)


@pytest.mark.parametrize("name", ["sum", "cumsum", "argmax", "sort", "softmax"])
def test_a_number_has_no_other_axis(name: str) -> None:
    with pytest.raises(ShapeError, match=f"{name}: axis 1 of a"):
        mirage.kernel(lambda x: getattr(x, name)(1)).trace(NUMBER)


OF_NOTHING: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "layers": (lambda x, w: F.linear(x, w).relu(), (NOTHING, X)),
    "sums": (lambda x: (x.sum(0), x.mean(), x.softmax(-1)), (NOTHING,)),
    "rows": (lambda x, i: x[i] * 2, (X, torch.zeros(0, dtype=torch.int64))),
    "joins": (lambda x, y: torch.cat([x, y]) * 2, (X, NOTHING)),
}


@pytest.mark.parametrize("name", OF_NOTHING)
def test_a_call_with_nothing_runs_as_it_is(name: str) -> None:
    function, given = OF_NOTHING[name]
    same(function, *given)


def test_modules_and_arrays_of_nothing() -> None:
    layer = torch.nn.Linear(4, 2).requires_grad_(False)
    assert mirage.kernel(layer)(NOTHING).shape == (0, 2)
    assert mirage.kernel(lambda x: x + x)(np.zeros((2, 0))).shape == (2, 0)


def test_results_of_nothing_go_where_they_are_wanted() -> None:
    joined = mirage.kernel(lambda x, y: torch.cat([x, y]) * 2)
    out = torch.empty(3, 4)
    assert joined(NOTHING, X, out=out) is out
    assert torch.equal(out, 2 * X)
    with pytest.raises(ShapeError, match="out has the shapes"):
        joined(NOTHING, X, out=torch.empty(4, 4))


def test_functions_of_mirage_have_no_empty_tensors() -> None:
    kernel = mirage.kernel(lambda x: mirage.softmax(x))
    for call in (kernel, kernel.trace, kernel.reference, mirage.softmax):
        with pytest.raises(ShapeError, match="programs have no empty tensors"):
            call(NOTHING)


EMPTY: dict[str, Function] = {
    "a slice": lambda x: x[:0] * 2,
    "a softmax": lambda x: x[:, :0].softmax(-1),
    "cut wholly": lambda x: F.pad(x, (-2, -2, 1, 1)),
    "a mean": lambda x: x[:, 1:1].mean(1),
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_is_empty_in_a_program_is_refused_with_the_line(name: str) -> None:
    with pytest.raises(MirageError, match=r"is empty|no elements") as error:
        mirage.kernel(lambda x: EMPTY[name](x))(X)
    assert isinstance(error.value, ShapeError | UnsupportedError)
    assert error.value.location is not None
    assert error.value.location.file == __file__


def test_parts_of_no_elements() -> None:
    def joined(x: Any) -> Any:
        a, b, c = x.split([1, 0, 3], 1)
        return torch.cat([c, b, a], 1)

    same(joined, X)
