"""Inverses, determinants, solutions and factors are PyTorch's and NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

L = torch.linalg
Function = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(4)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


A, B, TALL, V = normal(2, 3, 3), normal(2, 3, 2), normal(2, 5, 3), normal(3)
P = A @ A.mT + torch.eye(3)
"""Positive definite."""
LOW = TALL[..., :1] @ TALL[..., :1].mT
"""Of rank 1."""

CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "inv": (lambda a: L.inv(a) + torch.inverse(a) @ a.inverse(), (A,)),
    "det": (lambda a: (torch.det(a), a.det() * 2, *L.slogdet(a)), (A,)),
    "logdet": (lambda a: a.logdet() + torch.slogdet(a).logabsdet, (A[:1] * 0 + P,)),
    "logdet, negative": (torch.logdet, (torch.diag(torch.tensor([1.0, -2.0])),)),
    "one matrix": (lambda a: L.inv(a) + L.det(a), (A[0],)),
    "of an axis of each": (lambda a: L.inv(a.unflatten(0, (1, 2))), (A,)),
    "matrix_exp": (lambda a: torch.matrix_exp(a) + L.matrix_exp(a).mT, (A,)),
    "matrix_power": (
        lambda a: [L.matrix_power(a, n) for n in (0, 1, 2, 5, -2)],
        (A,),
    ),
    "older names": (
        lambda t: (torch.qr(t)[1].abs(), t.svd().S, torch.svd(t, False)[1]),
        (TALL,),
    ),
    "older solutions": (
        lambda p, a: (
            torch.triangular_solve(a, p).solution,
            a.triangular_solve(p, False, unitriangular=True)[0],
            torch.triangular_solve(a, p, transpose=True)[0],
        ),
        (P, A),
    ),
    "ranks of a limit": (
        lambda a: (L.matrix_rank(a, 0.5) + 0, L.matrix_rank(a, tol=2.0) + 0),
        (A,),
    ),
    "pinv": (lambda t: (L.pinv(t), torch.pinverse(t), t.pinverse()), (TALL,)),
    "pinv, low rank": (lambda t: (L.pinv(t), L.pinv(t, rtol=0.1, atol=1.0)), (LOW,)),
    "rank": (
        lambda t, a: (L.matrix_rank(t), L.matrix_rank(a, atol=1.0), L.cond(a)),
        (LOW, A),
    ),
    "cond": (lambda a: (L.cond(a, 1), L.cond(a, "fro"), L.cond(a, -2)), (A,)),
    "norms": (
        lambda t: (
            L.norm(t, 2, (0, 2)),
            L.matrix_norm(t, "nuc", keepdim=True),
            L.matrix_norm(t, ord=-2),
            L.norm(t[0], 2),
        ),
        (TALL,),
    ),
    "cholesky": (
        lambda p: (L.cholesky(p), L.cholesky(p, upper=True)),
        (P,),
    ),
    "by its factor": (
        lambda p, b: (
            torch.cholesky_solve(b, L.cholesky(p)),
            b.cholesky_solve(L.cholesky(p, upper=True), upper=True),
            torch.cholesky_inverse(L.cholesky(p)),
        ),
        (P, B),
    ),
    "solve": (
        lambda a, b, v: (
            L.solve(a, b),
            L.solve(a, b[..., 0]),
            L.solve(a[0], v),
            L.solve(a[0], b),
            L.solve(a, b.mT, left=False),
        ),
        (A, B, V),
    ),
    "solve, both with batches": (
        lambda a, b: L.solve(a[:, None], b[None, :]),
        (A, normal(3, 3, 2)),
    ),
    "solve_triangular": (
        lambda a, b: (
            L.solve_triangular(a, b, upper=False),
            L.solve_triangular(a, b, upper=True, unitriangular=True),
            L.solve_triangular(a, b.mT, upper=True, left=False),
        ),
        (A, B),
    ),
    "of a lower triangle": (
        lambda a: (
            L.pinv(a, hermitian=True),
            L.matrix_rank(a, hermitian=True, atol=1.0),
            L.matrix_rank(a, atol=a[:, 0, 0].abs()),
        ),
        (A,),
    ),
    "lstsq": (
        lambda t, b: (
            L.lstsq(t, b).solution,
            L.lstsq(t[0], b[0], driver="gels")[0],
            L.lstsq(t, b[..., 0]).solution,
        ),
        (TALL, normal(2, 5, 2)),
    ),
    "lu": (lambda t, a: (*L.lu(t), *L.lu(a.mT)), (TALL, A)),
    "of several axes": (
        lambda a, b: (
            L.tensorinv(a, ind=1),
            L.tensorsolve(a, b),
            L.tensorsolve(a.permute(1, 0, 2), b, dims=(0,)),
        ),
        (normal(6, 2, 3), normal(6)),
    ),
    "qr": (lambda t: (*L.qr(t), *torch.linalg.qr(t, mode="complete")), (TALL,)),
    "svd": (
        lambda t: (*L.svd(t), *torch.linalg.svd(t.mT, full_matrices=False)),
        (TALL,),
    ),
    "svdvals": (lambda t: L.svdvals(t).square().sum(-1), (TALL,)),
    "eigh": (lambda p: (*L.eigh(p), *L.eigh(p, UPLO="U")), (P,)),
    "eigvalsh": (lambda p: L.eigvalsh(p).log().sum(-1), (P,)),
    "a normal density": (
        lambda p, x: (
            -L.solve_triangular(L.cholesky(p), x[..., None], upper=False)
            .square()
            .sum((-2, -1))
            - L.cholesky(p).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        ),
        (P, B[..., 0]),
    ),
    "least squares": (
        lambda t, v: L.solve(t.mT @ t + 0.1 * torch.eye(3).to(t), (t.mT @ v)),
        (TALL, normal(2, 5, 1)),
    ),
}


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.filterwarnings("ignore:torch.* is deprecated in favor of")
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str, single: bool) -> None:
    function, given = CASES[name]
    given = tuple(x.float() if single else x for x in given)
    found = mirage.kernel(lambda *xs: function(*xs))(*given)
    for a, b in zip(listed(found), listed(function(*given)), strict=True):
        exact = {"rtol": 1e-3, "atol": 1e-4} if single else {}
        torch.testing.assert_close(a, b, equal_nan=True, **exact)


def test_results_have_pytorchs_names() -> None:
    def function(p: Any) -> Any:
        return L.qr(p).R, L.svd(p).S, L.eigh(p).eigenvalues, L.slogdet(p).sign

    for a, b in zip(mirage.kernel(function)(P), function(P), strict=True):
        torch.testing.assert_close(a, b)


def test_numpys_names() -> None:
    n = np.linalg

    def function(a: Any, b: Any, p: Any) -> Any:
        solved = n.solve(a, b), n.solve(a, b[0]), n.solve(a, p[0, 0])
        factors = *n.svd(a), *n.qr(a), *n.eigh(p), n.eigvalsh(p), n.cholesky(p)
        return (
            *solved,
            *factors,
            n.inv(a),
            n.det(a),
            n.pinv(a),
            n.matrix_power(a, 3),
            n.norm(a[0], 2),
        )

    given = A.numpy(), normal(2, 3, 3).numpy(), P.numpy()
    found = mirage.kernel(function)(*given)
    for one, other in zip(found, function(*given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_three_matrices_are_no_vectors_to_numpy() -> None:
    def function(a: Any, b: Any) -> Any:
        return np.linalg.solve(a, b)

    a, b = normal(3, 3, 3).numpy(), normal(3, 3).numpy()
    np.testing.assert_allclose(mirage.kernel(function)(a, b), function(a, b))


N = "n"
REFUSED: dict[str, tuple[Function, torch.Tensor, str]] = {
    "a third triangle": (lambda a: L.eigvalsh(a, "X"), A, "'X'.*expected 'L' or 'U'"),
    "another driver": (
        lambda a: L.lstsq(a, a, driver="qr").solution,
        A,
        "driver='qr'.*expected None or 'gels'",
    ),
    "not square": (L.inv, TALL, "inv of f64.2, 5, 3.; expected square matrices"),
    "a vector": (L.svd, V, "svd of f64.3.; expected matrices"),
    "f16": (L.det, A.half(), r"det of f16.*float32 and float64.*\.float\(\)"),
    "two dtypes": (lambda a: L.solve(a, a.float()), A, "f64 and f32.*one dtype"),
    "batches": (lambda a: L.solve(a, a[:1].expand(3, 3, 3)), A, "do not broadcast"),
    "ranks of lstsq": (
        lambda a: L.lstsq(a, a).rank + 1,
        A,
        "rank of lstsq, of which the shape depends.*matrix_rank",
    ),
    "residuals of lstsq": (
        lambda a: torch.mul(L.lstsq(a, a)[1], 2),
        A,
        "residuals of lstsq, of which the shape depends",
    ),
    "a limit of lstsq": (lambda a: L.lstsq(a, a, rcond=0.1)[0], A, "lstsq with rcond"),
    "a mode": (lambda a: L.qr(a, mode="r"), A, "'reduced' or 'complete'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    function, x, said = REFUSED[name]
    with pytest.raises(MirageError, match=said):
        mirage.kernel(lambda t: function(t))(x)


def test_errors_are_pytorchs() -> None:
    with pytest.raises(RuntimeError, match="positive-definite"):
        mirage.kernel(lambda a: L.cholesky(a))(-P)


def test_a_batch_of_any_length() -> None:
    def function(a: mirage.f64[N, 3, 3]) -> Any:
        return L.inv(a) * 2

    kernel = mirage.kernel(dynamic=(N,))(function)
    for count in (1, 4):
        x = normal(count, 3, 3)
        torch.testing.assert_close(kernel(x), L.inv(x) * 2)
