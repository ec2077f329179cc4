"""Operands by the names that PyTorch has for them, and lists as tensors and indices."""

# ruff: noqa: ARG005 (each function of a table takes all its tensors)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

GENERATOR = torch.Generator().manual_seed(0)
X, Y = (torch.randn(4, 6, generator=GENERATOR) for _ in range(2))

Function = Callable[..., Any]

NAMED: dict[str, Function] = {
    "add": lambda x, y: torch.add(input=x, other=y) + x.add(other=y, alpha=2),
    "mul": lambda x, y: torch.mul(x, other=2) + x.mul(other=y),
    "exp": lambda x, y: torch.exp(input=x) + torch.tanh(input=y),
    "pow": lambda x, y: torch.pow(input=x, exponent=2) + x.pow(exponent=3),
    "mm": lambda x, y: torch.mm(input=x, mat2=y.T) + x.matmul(other=y.T),
    "bmm": lambda x, y: torch.bmm(input=x[None], mat2=y.T[None]),
    "addmm": lambda x, y: torch.addmm(input=x[:, :4], mat1=x, mat2=y.T, beta=2),
    "baddbmm": lambda x, y: torch.baddbmm(
        input=x[None, :, :4], batch1=x[None], batch2=y.T[None]
    ),
    "mv": lambda x, y: (
        torch.mv(input=x, vec=y[0]) + torch.outer(x[0], vec2=y[0])[:4, 0]
    ),
    "where": lambda x, y: torch.where(condition=x > 0, input=x, other=y),
    "where of two": lambda x, y: torch.where(x > 0, input=x, other=y),
    "lerp": lambda x, y: torch.lerp(input=x, end=y, weight=0.3),
    "reductions": lambda x, y: torch.sum(input=x, dim=1) + torch.var(input=y, dim=1),
    "softmax": lambda x, y: torch.softmax(input=x, dim=0),
    "max": lambda x, y: torch.max(input=x, dim=1).values,
    "transpose": lambda x, y: (
        torch.transpose(input=x, dim0=0, dim1=1),
        x.transpose(dim0=-1, dim1=0),
        x.transpose(0, dim1=1),
        x.swapaxes(axis0=0, axis1=1),
    ),
    "permute": lambda x, y: (
        torch.permute(input=x, dims=(1, 0)),
        y.permute(dims=[1, 0]),
    ),
    "reshape": lambda x, y: (
        torch.reshape(input=x, shape=(6, 4)),
        x.reshape(shape=[24]),
        y.view(size=(2, 12)),
    ),
    "expand": lambda x, y: x.expand(size=(2, 4, 6)) * y.repeat(repeats=(2, 1, 1)),
    "split": lambda x, y: x.split(split_size=2, dim=1) + torch.chunk(input=y, chunks=2),
    "gather": lambda x, y: (
        torch.gather(input=x, dim=1, index=y.argsort(1)),
        torch.take_along_dim(input=x, indices=y.argsort(1), dim=1),
    ),
    "zeros_like": lambda x, y: (
        torch.zeros_like(input=x) + torch.full_like(input=y, fill_value=2) + x
    ),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "sums of products": lambda x, y: (
        torch.addmv(input=x[0], mat=x.T, vec=y[:, 0], beta=2),
        x.addbmm(batch1=x[None, :, :4], batch2=y[None]),
        torch.addr(x, vec1=x[:, 0], vec2=y[0], alpha=3),
        torch.addcmul(input=x, tensor1=x, tensor2=y, value=2),
        x.addcdiv(tensor1=y, tensor2=x),
    ),
    "parts": lambda x, y: (
        torch.split_with_sizes(x, split_sizes=[1, 3])
        + torch.hsplit(y, sections=2)
        + torch.vsplit(y, indices=[1, 2])
        + (torch.unflatten(x, dim=1, sizes=(2, 3)),)
    ),
    "copies of windows": lambda x, y: torch.unfold_copy(x, size=2, dimension=1, step=2),
    "cosines": lambda x, y: torch.cosine_similarity(x1=x, x2=y, dim=0),
}


@pytest.mark.parametrize("name", NAMED)
def test_operands_by_name(name: str) -> None:
    function = NAMED[name]
    found = mirage.kernel(lambda x, y: function(x, y))(X, Y)
    torch.testing.assert_close(found, function(X, Y))


METHODS: dict[str, Function] = {
    "where": lambda x, y: (
        torch.Tensor.where(x, x > 0, y),
        torch.Tensor.where(y, condition=x > y, other=0.0),
    ),
    "formats": lambda x, y: (torch.Tensor.half(x), torch.Tensor.to(y, torch.float64)),
    "an index": lambda x, y: torch.Tensor.__getitem__(x, (1, slice(2))),
    "an operator": lambda x, y: torch.Tensor.__rpow__(x, 2) @ torch.Tensor.t(y),
    "in a map": lambda x, y: tuple(map(torch.Tensor.contiguous, (x, y.T))),
}
"""PyTorch's methods, called as functions."""


@pytest.mark.parametrize("name", METHODS)
def test_methods_as_functions(name: str) -> None:
    function = METHODS[name]
    found = mirage.kernel(lambda x, y: function(x, y))(X, Y)
    torch.testing.assert_close(found, function(X, Y))


@pytest.mark.parametrize(
    "asked", [torch.equal, torch.allclose, torch.Tensor.equal, torch.Tensor.allclose]
)
def test_the_truth_of_all_values_is_refused(asked: Function) -> None:
    def function(x: Any, y: Any) -> Any:
        return x if asked(x, y) else y

    with pytest.raises(MirageError, match="of which the truth is asked"):
        mirage.kernel(function)(X, Y)


LISTS: dict[str, Function] = {
    "rows": lambda x: (x[[0, 2]], x[[3, 1, 1]], x[[-1]], x[[-2, -1]]),
    "columns": lambda x: (x[:, [-1]], x[:, [0, -1]], x[..., [2, 3]], x[None, :, [5]]),
    "several": lambda x: (x[[0, 1], [2, 3]], x[[[0], [3]], [1, 4]]),
    "tuples": lambda x: (x[(0, 2),], x[:, (0, -1)], x[(0, 1), (2, 3)]),
    "a range": lambda x: x[range(1, 3)],
    "truths": lambda x: x[[True, False, True, True]],
    "beside a tensor": lambda x: x[[0, 1, 3], x.argmax(1)[:3]],
    "a tensor of a list": lambda x: x[torch.tensor([2, 0])] + x[:2, torch.tensor([1])],
    "an index all over": lambda x: (
        x[torch.zeros(3, dtype=torch.long)],
        x.gather(1, torch.full((4, 2), 3)),
        x.index_select(1, torch.tensor([4, 4])),
    ),
    "is a copy": lambda x: _changed(x[[0, 1]]) + x[:2],
    "numbers": lambda x: x * torch.tensor([0.5, -1, 2, 2, 2, 7]),
    "nested": lambda x: x[:2, :3] + torch.tensor([[1, 2, 3], [4, 5, 6]]),
    "ranges": lambda x: (x * torch.tensor(range(6)), x.new_tensor(range(9, 3, -1)) + x),
    "truths as a mask": lambda x: (
        torch.tensor([[True], [False], [True], [True]]) & (x > 0)
    ),
    "a dtype": lambda x: x + torch.tensor([[1e-3]] * 4, dtype=torch.float64),
    "linspace": lambda x: x * torch.linspace(-3, 3, steps=6) + torch.linspace(2, 5, 1),
    "arange of floats": lambda x: (
        x * torch.arange(0.5, 6.5),
        x[:, :4] * torch.arange(1, -0.9, -0.5),
        x * torch.arange(6.0, dtype=torch.float64),
    ),
}


def _changed(x: Any) -> Any:
    x += 1
    return x


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_numbers(name: str) -> None:
    function = LISTS[name]
    found = mirage.kernel(lambda x: function(x))(X)
    torch.testing.assert_close(found, function(X))


def test_writes_at_lists() -> None:
    def function(x: Any) -> Any:
        y = x * 1
        view = y[:, 2]
        y[:, [0, 2]] = 1.0
        y[[1, 2]] = y[[2, 1]]
        y[[True, False, False, True]] *= 3
        y[[3, 0]] = x[:2]
        y[(0, 1), 3:5] += 2
        return y, view

    torch.testing.assert_close(mirage.kernel(function)(X), function(X))


def test_numpys_constructors_of_floats_are_doubles() -> None:
    def function(x: Any) -> Any:
        return x * np.ones(6, like=x), x * np.arange(0, 3, 0.5, like=x)

    x = X.numpy()
    for mine, right in zip(mirage.kernel(function)(x), function(x), strict=True):
        assert mine.dtype == right.dtype == np.float64
        np.testing.assert_allclose(mine, right)


def test_lists_that_are_refused() -> None:
    for function, text in (
        (lambda x: x * torch.tensor([1.0] * 65), "1 to 64"),
        (lambda x: x * torch.tensor([[1.0], [2.0, 3.0]]), "not equally long"),
        (lambda x: x[:, torch.tensor([6])], "outside"),
        (lambda x: x[:, [5, 6]], "index 6 of axis 1"),
        (lambda x: x[..., None, [-7, 0]], "index -7 of axis 1"),
        (lambda x: x[[0, 4], [1, 1]], "index 4 of axis 0"),
        (lambda x: x[:, (1, 6)], "index 6 of axis 1"),
        (lambda x: x.clone().__setitem__([3, 4], 0.0), "index 4 of axis 0"),
        (lambda x: x[[True, False, False, False, True]], "index 4 of axis 0"),
        (lambda x: x.gather(1, torch.full((4, 1), -1)), "count from the front"),
    ):
        with pytest.raises(MirageError, match=text):
            mirage.kernel(function)(X)
