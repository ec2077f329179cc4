"""Factors and solutions by PyTorch's kernels, with what is around them searched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse

L = torch.linalg
Function = Callable[..., Any]
A, B = (
    torch.randn(shape, generator=torch.Generator().manual_seed(2))
    for shape in ((2, 4, 4), (2, 4, 3))
)


def normal_density(a: Any, b: Any) -> Any:
    covariance = a @ a.mT + 0.5 * torch.eye(4)
    factor = L.cholesky(covariance)
    whitened = L.solve_triangular(factor, b * 2, upper=False)
    return -0.5 * whitened.square().sum(1) - factor.diagonal(0, 1, 2).log().sum(
        -1, keepdim=True
    )


FUNCTIONS: dict[str, Function] = {
    "a normal density": normal_density,
    "ridge": lambda a, b: L.solve(b.mT @ b + torch.eye(3), b.mT @ a) * 0.5,
    "inverses": lambda a, b: L.inv(a * 2) @ b + torch.det(a)[:, None, None],
    "factors": lambda a, b: L.qr(b).Q.mT @ torch.relu(a) + L.qr(b).R.sum(),
    "singular values": lambda a, b: (L.svdvals(b) * 2).sum(-1) + L.slogdet(a)[1],
    "eigenvalues": lambda a, b: L.eigh(a + a.mT).eigenvalues[..., None] * b.sigmoid(),
    "powers": lambda a, b: torch.matrix_exp(a * 0.1) @ b,
}


def traced(function: Function) -> KernelGraph:
    specs = [mirage.spec(tuple(x.shape), "float32") for x in (A, B)]
    return mirage.kernel(lambda a, b: function(a, b)).trace(*specs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_around_them_is_searched(name: str) -> None:
    function = FUNCTIONS[name]
    best = mirage.superoptimize(
        traced(function), effort="quick", use_cache=False, budget_seconds=6
    ).best
    assert best.certificate.ok
    assert best.mugraph.blocks
    assert parse(str(best.mugraph)) == best.mugraph
    (found,) = TritonExecutable(best.mugraph, interpret=True)(A, B)
    torch.testing.assert_close(found, function(A, B), rtol=1e-4, atol=1e-4)


def test_both_factors_are_of_one_call() -> None:
    program = traced(lambda a, b: (*L.qr(b), a))
    assert emit(program).count("= torch.linalg.qr(") == 1


WRONG: dict[str, tuple[Function, Function]] = {
    "the transpose": (lambda a, _: L.inv(a), lambda a, _: L.inv(a).mT),
    "of the transpose": (lambda a, _: L.inv(a), lambda a, _: L.inv(a.mT)),
    "the other triangle": (
        lambda a, _: L.cholesky(a),
        lambda a, _: L.cholesky(a, upper=True),
    ),
    "another side": (
        lambda a, b: L.solve_triangular(a, b, upper=True),
        lambda a, b: L.solve_triangular(a, b, upper=False),
    ),
    "the other factor": (lambda a, _: L.qr(a).Q, lambda a, _: L.qr(a).R),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_call_is_never_accepted(name: str) -> None:
    right, wrong = map(traced, WRONG[name])
    for seed in range(20):
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed
