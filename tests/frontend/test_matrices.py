"""Diagonals, products and grids of matrices, as PyTorch and NumPy compute them."""

# ruff: noqa: ARG005 (each function of a table takes all its tensors)

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

F = torch.nn.functional
GENERATOR = torch.Generator().manual_seed(0)
X, Y, Z = (torch.randn(s, generator=GENERATOR) for s in ((3, 5), (2, 5), (2, 3, 5, 4)))

Function = Callable[..., Any]

TORCH: dict[str, Function] = {
    "diagonal": lambda x, *_: (x.diagonal(), x.diagonal(2), x.diagonal(-2)),
    "diagonal of two axes": lambda x, y, z: (
        z.diagonal(dim1=1, dim2=3),
        torch.diagonal(z, 1, -2, -1),
        torch.linalg.diagonal(z, offset=1),
    ),
    "diag": lambda x, *_: (x.diag(-1), torch.diag(x[0], 1), torch.diag(x[0], -2)),
    "diag_embed": lambda x, *_: (
        torch.diag_embed(x, 1, 0, 2) + torch.diag_embed(x, -1, 0, 2)
    ),
    "diagflat": lambda x, *_: torch.diagflat(x, -1) + torch.diagflat(x, 1).T,
    "einsum of a diagonal": lambda x, y, z: (
        torch.einsum("ii->i", x[:, :3]),
        torch.einsum("ii", x[:, :3]),
        torch.einsum("...iai->...a", z[:, :, :, :3]),
        torch.einsum("ii,ij,kj->k", x[:, :3], x, y),
    ),
    "trace": lambda x, *_: torch.trace(x) + x.trace(),
    "fill_diagonal_": lambda x, *_: x.clone().fill_diagonal_(2.5),
    "tensordot": lambda x, y, z: (
        torch.tensordot(x, y, ([1], [-1])),
        torch.tensordot(z, x, ((1, 2), (0, 1))),
        torch.tensordot(x, y.T, 1),
        torch.tensordot(x, y, dims=0),
        torch.tensordot(x, x),
    ),
    "inner": lambda x, y, z: (
        torch.inner(x, y),
        x.inner(y[0]),
        torch.inner(x[0], y[0]),
    ),
    "kron": lambda x, y, z: (torch.kron(x, y), torch.kron(y[0], x)),
    "cross": lambda x, y, z: (
        torch.cross(x, x.flip(1), dim=0),
        torch.linalg.cross(z.transpose(1, 3), z.transpose(1, 3) + 1),
    ),
    "added products": lambda x, y, z: (
        torch.addmv(x[:, 0], x, y[0], beta=0.5, alpha=2),
        torch.addr(x, x[:, 1], y[0], alpha=3),
        torch.addbmm(x[:, :3], z[..., 0], z[..., 1].mT, beta=2),
    ),
    "products of several": lambda x, *_: (
        torch.linalg.multi_dot([x[0], x.T, x]),
        torch.linalg.matrix_power(x[:, :3], 5),
    ),
    "bilinear": lambda x, y, z: (
        F.bilinear(x, z[0, ..., 0], z[0, :, :, :1] * x[:, None]),
        F.bilinear(z[..., :3], z, z[0].permute(1, 0, 2), x[0]),
    ),
    "meshgrid": lambda x, y, z: (
        *torch.meshgrid(x[0], y[:, 0], indexing="ij"),
        *torch.meshgrid(x[0], y[:, 0], x[:, 1], indexing="xy"),
    ),
    "cartesian_prod": lambda x, y, z: torch.cartesian_prod(x[0], y[:, 0], x[:, 1]),
    "block_diag": lambda x, y, z: torch.block_diag(x, y[0], y),
}


def same(function: Function, *given: torch.Tensor) -> None:
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda *t: function(*t))(*given)
    torch.testing.assert_close(found, function(*given), equal_nan=True)


def test_what_is_added_0_times_is_not_read() -> None:
    """As in PyTorch: memory that nobody wrote to may hold NaN."""

    def products(unwritten: Any, a: Any, b: Any) -> Any:
        return (
            torch.addmm(unwritten, a, b, beta=0),
            torch.baddbmm(unwritten, a[None], b[None], beta=0.0, alpha=2),
        )

    given = torch.full((2, 2), torch.nan), torch.eye(2), torch.ones(2, 2)
    torch.testing.assert_close(mirage.kernel(products)(*given), products(*given))


@pytest.mark.parametrize("name", TORCH)
def test_functions_of_torch(name: str) -> None:
    same(TORCH[name], X, Y, Z)


@pytest.mark.filterwarnings("ignore:torch.meshgrid")
def test_a_meshgrid_of_which_the_order_is_not_said() -> None:
    same(lambda x, y: torch.meshgrid(x[0], y[:, 0]), X, Y)
    same(lambda x, y: torch.meshgrid([x[0], y[:, 0]]), X, Y)


NUMPY: dict[str, Function] = {
    "diagonal": lambda x: np.diagonal(x) + np.trace(x),
    "tensordot": lambda x: np.tensordot(x, x, axes=([1], [1])) + np.inner(x, x),
    "meshgrid": lambda x: np.stack(np.meshgrid(x[0], x[1])),
    "kron": lambda x: np.kron(x, x),
}


@pytest.mark.parametrize("name", NUMPY)
def test_functions_of_numpy(name: str) -> None:
    x = X.numpy()
    found = mirage.kernel(lambda t: NUMPY[name](t))(x)
    np.testing.assert_allclose(found, NUMPY[name](x), atol=1e-6)


WRITES: dict[str, Function] = {
    "filled": lambda y, *_: y.diagonal().fill_(3),
    "above": lambda y, *_: torch.diagonal(y, 2).mul_(2),
    "below, of one element": lambda y, *_: y.diagonal(-2).zero_(),
    "a part": lambda y, *_: y.diagonal()[1:].add_(1),
    "of a part": lambda y, *_: y[1:, 1:].diagonal().copy_(y[:2, 4]),
    "of the transpose": lambda y, *_: y.mT.diagonal().neg_(),
    "seen by it": lambda y, *_: (d := y.diagonal(), y.add_(1), d.mul_(d)),
    "of a batch": lambda _, z: torch.diagonal(z, 1, 1, -1).copy_(z[..., 0].mT.clone()),
    "at pairs": lambda y, _: _put(y, torch.arange(3), torch.arange(3), 7.0),
    "at pairs from the end": lambda y, _: _put(y, [-1, 0, 1], [2, -2, 0], y[:, 0] + 1),
    "at axes apart": lambda _, z: z.__setitem__(
        (_pair(0, 1), slice(None), _pair(2, 4)), z[0, :, 0] * 2
    ),
}


def _pair(*numbers: int) -> Any:
    return torch.tensor(numbers)


def _put(y: Any, rows: Any, columns: Any, value: Any) -> None:
    y[rows, columns] = value


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_diagonals(name: str) -> None:
    def written(y: Any, z: Any) -> Any:
        y, z = y * 2, z * 2
        WRITES[name](y, z)
        return y, z

    same(written, X / X.abs().clamp(0, 0.5), Z)


def test_a_diagonal_of_infinities_does_not_spread() -> None:
    def written(x: Any) -> Any:
        m = torch.full((3, 3), -math.inf)
        m.diagonal().fill_(0)
        return x + m, torch.diagonal_scatter(x / 0, x[0])

    same(written, Z[0, :, :3, 0])


def test_a_copy_of_a_diagonal() -> None:
    def copied(x: Any) -> Any:
        y = x * 2
        z = y.diag()
        y += 1
        return z

    same(copied, X)


def test_what_is_not_possible_says_why() -> None:
    for function, text in (
        (lambda x: x.diagonal(7), "there is none"),
        (lambda x: torch.cross(x, x, dim=1), "3 elements"),
        (lambda x: torch.linalg.matrix_power(x, -1), "1 or more"),
        (lambda x: x.clone().fill_diagonal_(1, wrap=True), "wrap"),
        (lambda x: torch.diag(x[None]), "a matrix or a vector"),
        (lambda x: x[None].H, "a matrix"),
    ):
        with pytest.raises(MirageError, match=text):
            mirage.kernel(function)(X)
