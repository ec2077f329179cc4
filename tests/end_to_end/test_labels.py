"""What is around calls that read integers, or say where elements were, is searched."""

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

F = torch.nn.functional
Function = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(8)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def below(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(1, high, shape, generator=GENERATOR)


def sequences(x: Any, targets: Any, lengths: Any, counts: Any) -> Any:
    return F.ctc_loss((x * 2).log_softmax(-1), targets, lengths, counts)


def autoencoder(x: Any) -> Any:
    found, places = F.max_pool2d(x.relu(), 2, return_indices=True)
    return F.max_unpool2d(found * found.sigmoid(), places, 2) + x


def fractions(i: Any, j: Any) -> Any:
    return i // torch.gcd(i, j) * 2 + j.abs()


def frames(x: Any, y: Any) -> Any:
    window = torch.hann_window(8)
    spectrum = torch.stft(x * y, 8, 4, window=window, return_complex=True)
    return torch.istft(spectrum, 8, 4, window=window) * y.tanh()


CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "sequences": (
        sequences,
        [normal(7, 2, 5), below(5, 2, 3), torch.tensor([7, 6]), torch.tensor([3, 2])],
    ),
    "places and back": (autoencoder, [normal(2, 2, 4, 6)]),
    "fractions": (fractions, [below(40, 6, 8), below(40, 6, 8)]),
    "least squares": (
        lambda a, b: torch.linalg.lstsq(a * 2, b).solution.relu() + b[:, :3],
        [normal(2, 4, 3), normal(2, 4, 2)],
    ),
    "factors": (
        lambda a, b: (torch.linalg.lu(a * 2).U @ b).relu(),
        [normal(2, 3, 3), normal(2, 3, 2)],
    ),
    "polynomials": (
        lambda x, y: torch.special.legendre_polynomial_p(x.tanh(), 3) * y.exp(),
        [normal(4, 8), normal(4, 8)],
    ),
    "frames": (frames, [normal(2, 24), normal(2, 24)]),
    "labels": (
        lambda x, y: F.multilabel_margin_loss(x.tanh(), y),
        [normal(3, 5), below(4, 3, 5)],
    ),
}


def traced(function: Function, tensors: list[torch.Tensor]) -> KernelGraph:
    return mirage.kernel(lambda *xs: function(*xs)).trace(*tensors)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_what_is_around_them_is_searched(name: str) -> None:
    function, tensors = CASES[name]
    program = traced(function, tensors)
    best = mirage.superoptimize(
        program, effort="quick", use_cache=False, budget_seconds=3
    ).best
    assert best.certificate.ok
    assert parse(str(best.mugraph)) == best.mugraph
    for graph in (program, best.mugraph):
        (found,) = TritonExecutable(graph, interpret=True)(*tensors)
        torch.testing.assert_close(found, function(*tensors), rtol=1e-4, atol=1e-4)


def test_elements_and_places_are_of_one_call() -> None:
    program = traced(
        lambda x: F.max_pool2d(x, 2, 1, return_indices=True), [normal(1, 2, 4, 4)]
    )
    assert emit(program).count("= torch.nn.functional.max_pool2d(") == 1


WRONG: dict[str, tuple[Function, Function, list[torch.Tensor]]] = {
    "lengths": (
        lambda x, t, n, m: F.ctc_loss(x, t, n, m, reduction="sum"),
        lambda x, t, n, m: F.ctc_loss(x, t, m, n, reduction="sum"),
        CASES["sequences"][1],
    ),
    "a blank": (
        lambda x, t, n, m: F.ctc_loss(x, t, n, m, reduction="sum"),
        lambda x, t, n, m: F.ctc_loss(x, t, n, m, 1, reduction="sum"),
        CASES["sequences"][1],
    ),
    "places": (
        lambda x: F.max_pool2d(x, 2, 1, return_indices=True)[1],
        lambda x: F.max_pool2d(x.mT, 2, 1, return_indices=True)[1].mT,
        [normal(1, 2, 4, 4)],
    ),
    "divisors": (
        lambda i, j: torch.gcd(i, j),
        lambda i, j: torch.gcd(i, j + j),
        CASES["fractions"][1],
    ),
    "what is put there": (
        lambda x, y: F.max_unpool1d(x, y, 2),
        lambda x, y: torch.zeros(2, 6).scatter_add(1, y, x),
        [normal(2, 3), below(6, 2, 3)],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_call_is_never_accepted(name: str) -> None:
    right, wrong, tensors = WRONG[name]
    program, other = traced(right, tensors), traced(wrong, tensors)
    for seed in range(20):
        found = mirage.verify(other, program, seed=seed, stability=False)
        assert not found.equivalent, seed
