"""PyTorch's losses, norms and other reductions, with their arguments, against eager."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, UnsupportedError

F = torch.nn.functional
Function = Callable[..., Any]

REDUCTIONS = ["mean", "sum", "none"]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, Y, Z = (drawn(5, 6, seed=s) for s in range(3))
P = torch.sigmoid(drawn(5, 6, seed=3))
"""Probabilities, among them the ends."""
P.view(-1)[:2] = torch.tensor([0.0, 1.0])
T = (Y > 0).float()
SIGN = 2 * T - 1


def same(function: Function, *given: torch.Tensor) -> None:
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda *xs: function(*xs))(*given)
    expected = function(*(t.double() for t in given))
    torch.testing.assert_close(found, expected.float(), rtol=2e-6, atol=1e-6)


LOSSES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "mse": (F.mse_loss, (X, Y)),
    "l1": (F.l1_loss, (X, Y)),
    "huber": (lambda *a, **k: F.huber_loss(*a, delta=0.7, **k), (X, Y)),
    "mse, weighted": (
        lambda x, y, w, **k: F.mse_loss(x, y, weight=w, **k),
        (X, Y, P),
    ),
    "l1, weighted": (lambda x, y, w, **k: F.l1_loss(x, y, weight=w, **k), (X, Y, P)),
    "huber, weighted": (
        lambda x, y, w, **k: F.huber_loss(x, y, delta=0.7, weight=w, **k),
        (X, Y, P),
    ),
    "smooth l1": (lambda *a, **k: F.smooth_l1_loss(*a, beta=0.5, **k), (X, Y)),
    "kl_div": (F.kl_div, (X, P)),
    "kl_div of logarithms": (
        lambda *a, **k: F.kl_div(*a, log_target=True, **k),
        (X, Y),
    ),
    "cross entropy of two": (F.binary_cross_entropy, (P, T)),
    "cross entropy of two, weighted": (F.binary_cross_entropy, (P, T, Y)),
    "with logits": (F.binary_cross_entropy_with_logits, (40 * X, T)),
    "with logits, weighted": (
        lambda x, t, w, p, **k: F.binary_cross_entropy_with_logits(
            x, t, w, pos_weight=p, **k
        ),
        (X, T, Y, P[0]),
    ),
    "soft margin": (F.soft_margin_loss, (X, SIGN)),
    "multilabel": (F.multilabel_soft_margin_loss, (X, T)),
    "gaussian": (F.gaussian_nll_loss, (X, Y, Z * Z)),
    "gaussian, full": (
        lambda *a, **k: F.gaussian_nll_loss(*a, full=True, **k),
        (X, Y, P[:, :1]),
    ),
    "poisson": (F.poisson_nll_loss, (X, 3 * P)),
    "poisson, full": (
        lambda *a, **k: F.poisson_nll_loss(*a, log_input=False, full=True, **k),
        (P + 0.1, 3 * P),
    ),
    "triplet": (F.triplet_margin_loss, (X, Y, Z)),
    "triplet, swapped": (
        lambda *a, **k: F.triplet_margin_loss(*a, p=1, margin=3, swap=True, **k),
        (X, Y, Z),
    ),
    "triplet of a distance": (
        lambda *a, **k: F.triplet_margin_with_distance_loss(
            *a, distance_function=lambda x, y: (x - y).abs().amax(-1), **k
        ),
        (X, Y, Z),
    ),
    "ranking": (lambda *a, **k: F.margin_ranking_loss(*a, 0.3, **k), (X, Y, SIGN)),
    "hinge": (F.hinge_embedding_loss, (X, SIGN)),
    "cosine": (
        lambda *a, **k: F.cosine_embedding_loss(*a, margin=0.1, **k),
        (X, Y, SIGN[:, 0]),
    ),
}


def test_cosines_of_shapes_that_broadcast() -> None:
    """Norms are of the shape that both have: that of one row counts several times."""
    for dim in (0, 1, -1):
        same(lambda x, y, d=dim: F.cosine_similarity(x, y, d), X[:, :1], Y[:1])


def test_cross_entropies_of_logits_are_in_the_format_of_the_target() -> None:
    def losses(x: Any, t: Any, w: Any) -> Any:
        loss = F.binary_cross_entropy_with_logits
        return (
            loss(x.double(), t),
            loss(x, t.double(), pos_weight=w.sum()),
            loss(x.double(), t, w.double(), reduction="none"),
            loss(x.double(), t.half(), reduction="sum"),
        )

    found, expected = mirage.kernel(losses)(X, T, P), losses(X, T, P)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_labels_without_rows(reduction: str) -> None:
    def losses(x: Any, label: Any, share: Any) -> Any:
        return (
            F.cross_entropy(x, label, share, reduction=reduction, label_smoothing=0.1),
            F.cross_entropy(x, share, reduction=reduction),
            F.nll_loss(x, label, reduction=reduction),
        )

    given = (X[0], torch.tensor(2), P[0])
    torch.testing.assert_close(mirage.kernel(losses)(*given), losses(*given))


def test_rankings_of_integers_without_a_sign() -> None:
    def ranked(x: Any, y: Any, target: Any) -> Any:
        return F.margin_ranking_loss(x, y, target, margin=1.0, reduction="sum")

    x, y, sign = (torch.tensor(n, dtype=torch.uint8) for n in ([5, 2], [1, 9], [6, 1]))
    assert torch.equal(mirage.kernel(ranked)(x, y, sign), ranked(x, y, sign))


def test_losses_of_integers_and_of_numbers() -> None:
    def losses(x: Any, y: Any) -> Any:
        n, m = (10 * x).long(), (10 * y).long()
        return (
            F.margin_ranking_loss(n, m, m, reduction="sum"),
            F.kl_div(x[0, 0], torch.sigmoid(y[0, 0]), reduction="batchmean"),
            torch.logsumexp(n, 1),
        )

    found = mirage.kernel(losses)(X, Y)
    torch.testing.assert_close(found, losses(X, Y))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins_of_labels(reduction: str) -> None:
    label = torch.tensor([0, 5, 2, 2, 1])

    def margins(x: Any, label: Any, weight: Any) -> Any:
        return (
            F.multi_margin_loss(x, label, reduction=reduction),
            F.multi_margin_loss(x, label, 2, 0.5, weight, reduction=reduction),
            F.multi_margin_loss(x[0], label[0], reduction=reduction),
        )

    found = mirage.kernel(margins)(X, label, P[0])
    torch.testing.assert_close(found, margins(X, label, P[0]))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str, reduction: str) -> None:
    function, given = LOSSES[name]
    same(lambda *xs: function(*xs, reduction=reduction), *given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_soft_margins_are_infinite_where_exponentials_are(dtype: torch.dtype) -> None:
    x = torch.tensor([-11.0, -11.25, -80.0, -95.0, 95.0], dtype=dtype)

    def margins(x: Any) -> Any:
        return F.soft_margin_loss(x, x * 0 + 1, reduction="none")

    torch.testing.assert_close(mirage.kernel(margins)(x), margins(x))


def test_labels_without_a_sign() -> None:
    def losses(x: Any, label: Any) -> Any:
        return F.nll_loss(x, label), F.cross_entropy(x, label, ignore_index=2)

    label = torch.tensor([0, 5, 2, 2, 1], dtype=torch.uint8)
    torch.testing.assert_close(mirage.kernel(losses)(X, label), losses(X, label))


REFUSED: dict[str, Function] = {
    "as many elements": lambda x, y: F.binary_cross_entropy(x, y[:1]),
    "as many logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y[:, :1]),
    "as many weights": lambda x, y: F.l1_loss(x, y, weight=y[0]),
    "a delta of 0": lambda x, y: F.huber_loss(x, y, delta=0.0),
    "a beta below 0": lambda x, y: F.smooth_l1_loss(x, y, beta=-1.0),
    "a variance below 0": lambda x, y: F.gaussian_nll_loss(x, y, -0.5),
    "a margin of 0": lambda x, y: F.triplet_margin_loss(x, y, x, margin=0.0),
    "anchors of one rank": lambda x, y: F.triplet_margin_loss(x, y[0], x),
    "rankings of one rank": lambda x, y: F.margin_ranking_loss(x, y, x[0]),
    "cosines of integers": lambda x, y: F.cosine_similarity(x.long(), y.long()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        REFUSED[name](P, T)
    with pytest.raises(MirageError, match=r"expected|convert"):
        mirage.kernel(lambda x, y: REFUSED[name](x, y))(P, T)


def test_cosines_of_f16_hold_no_squares_in_f16() -> None:
    """A row of 32 elements of 100 has squares that add up to more than f16 holds."""
    x = torch.full((4, 32), 100.0, dtype=torch.float16)

    def cosine(x: Any) -> Any:
        return F.cosine_similarity(x, x, dim=-1)

    program = str(mirage.kernel(cosine).trace(x))
    assert not re.search(r"f16\[.*\] = (sum|mul|square)", program)
    assert "f32[m] = sum" in program
    assert torch.equal(mirage.kernel(cosine)(x), torch.ones(4).half())


@pytest.mark.parametrize("reduce", [None, True, False])
@pytest.mark.parametrize("average", [None, True, False])
@pytest.mark.parametrize(
    "loss", [F.cross_entropy, F.nll_loss, F.multi_margin_loss, F.mse_loss, F.l1_loss]
)
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_older_arguments_name_a_reduction(
    loss: Function, average: bool | None, reduce: bool | None
) -> None:
    labels = torch.tensor([0, 5, 2, 3, 1])
    target = Y if loss in (F.mse_loss, F.l1_loss) else labels

    def program(x: Any, target: Any) -> Any:
        return loss(x, target, size_average=average, reduce=reduce)

    found, expected = mirage.kernel(program)(X, target), program(X, target)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)


def test_losses_as_modules_and_by_batches() -> None:
    same(lambda x, y: F.kl_div(x, y, reduction="batchmean"), X, P)
    same(torch.nn.TripletMarginLoss(margin=0.5), X, Y, Z)
    with pytest.raises(UnsupportedError, match="reduction='batchmean'"):
        same(lambda x, y: F.mse_loss(x, y, reduction="batchmean"), X, Y)


NORMS = {
    f"{order} along {dim}": (order, dim)
    for order in (0, 1, 2, 3, 1.5, -1, math.inf, -math.inf)
    for dim in (-1, None, (0, 2))
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_of_vectors(name: str) -> None:
    order, dim = NORMS[name]
    x = drawn(2, 3, 4) + 0.01
    same(lambda t: torch.linalg.vector_norm(t, order, dim, keepdim=True), x)
    same(lambda t: torch.norm(t, order, dim), x)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, math.inf])
def test_a_norm_along_one_index_is_a_size_that_nothing_overflows(order: Any) -> None:
    """As in PyTorch: the square of the only element is not taken."""
    row = torch.tensor([[3.4e38, -1e30, 1e-40, math.inf]])

    def along_one(t: Any) -> Any:
        return torch.linalg.vector_norm(t, order, 0)

    def along_two(t: Any) -> Any:
        return t.norm(order, (1, 2), keepdim=True)

    for function, x in ((along_one, row), (along_two, row.T[:, None])):
        assert torch.equal(mirage.kernel(function)(x), function(x))


@pytest.mark.parametrize("order", [None, "fro", 1, -1, math.inf, -math.inf])
def test_norms_of_matrices(order: Any) -> None:
    same(lambda t: torch.linalg.norm(t, order, (-2, 0)), drawn(2, 3, 4))
    same(lambda t: torch.linalg.matrix_norm(t, order or "fro", keepdim=True), X)


REDUCED: dict[str, Function] = {
    "normalize": lambda x: F.normalize(x, p=1.0, dim=2) + F.normalize(x, p=math.inf),
    "logsumexp": lambda x: torch.logsumexp(x, (0, 2), keepdim=True),
    "aminmax": lambda x: torch.stack(torch.aminmax(x, dim=1)),
    "aminmax of all": lambda x: x.aminmax().max - x.aminmax().min,
    "var": lambda x: torch.var(x, (0, 1), correction=2),
    "var of too few": lambda x: torch.var(x, 1, correction=5),
    "var of a population": lambda x: torch.var(x, 1, False, True),
    "var of all": lambda x: torch.var(x, False) + torch.var(x),
    "std": lambda x: torch.std(x, dim=1, unbiased=False, keepdim=True),
    "std and mean": lambda x: torch.add(*torch.std_mean(x, 1, keepdim=True)),
    "var and mean": lambda x: torch.add(*torch.var_mean(x, (0, 2), correction=0)),
    "mean": lambda x: torch.mean(x, (0, 2), keepdim=True),
    "softmin": lambda x: F.softmin(x, dim=1),
    "pairwise": lambda x: F.pairwise_distance(x, 2 * x, p=1, keepdim=True),
    "rrelu": lambda x: F.rrelu(x),
    "instance_norm": lambda x: F.instance_norm(x, weight=x[0, :, 0], eps=1e-3),
}


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom is <= 0")
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name: str) -> None:
    same(REDUCED[name], drawn(2, 3, 4))


def test_instance_norm_with_running_statistics_is_refused() -> None:
    x, m = drawn(2, 3, 4), drawn(3)
    same(lambda t, a: F.instance_norm(t, a, a * a, use_input_stats=False), x, m)
    with pytest.raises(UnsupportedError, match="updates in place"):
        same(lambda t, a: F.instance_norm(t, a, a * a), x, m)


METHODS: dict[str, Function] = {
    "std": lambda x: x.std(1) - x.std(1, False, True)[:, 0] + x.var(),
    "axis": lambda x: x.std(axis=1, keepdims=True),
    "half of a pair": lambda x: x.max(-1)[0] + torch.min(x, 2)[0] * x.min(2).values,
    "unpacked": lambda x: next(values for values, _ in [x.max(1)]),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_those_of_the_library_of_the_call(name: str) -> None:
    x = drawn(2, 3, 4)
    found = mirage.kernel(lambda t: METHODS[name](t))(x)
    torch.testing.assert_close(found, METHODS[name](x.double()).float())


def test_methods_of_arrays_are_those_of_numpy() -> None:
    def function(x: Any) -> Any:
        return x.max(-1)[0] + x.std(1) * x.var(axis=1, ddof=1)

    x = drawn(2, 3, 3).numpy()
    np.testing.assert_allclose(mirage.kernel(function)(x), function(x), rtol=1e-5)
