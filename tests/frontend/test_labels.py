"""Losses of sets and of sequences of labels are PyTorch's, with their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError

F = torch.nn.functional
Function = Callable[..., Any]

REDUCTIONS = ["mean", "sum", "none"]
GENERATOR = torch.Generator().manual_seed(6)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


STEPS = normal(12, 3, 5).log_softmax(-1)
TARGETS = torch.randint(1, 5, (3, 4), generator=GENERATOR)
LENGTHS, COUNTS = torch.tensor([12, 7, 9]), torch.tensor([4, 0, 3])
X = normal(4, 6)
SETS = torch.tensor(
    [[0, 3, -1, 5, -1, -1], [-1] * 6, [1, 1, 2, 0, 4, 3], [5, 4, 3, 2, 1, 0]]
)


def same(function: Function, *given: torch.Tensor) -> None:
    found = mirage.kernel(lambda *xs: function(*xs))(*given)
    torch.testing.assert_close(found, function(*given), equal_nan=True)


SEQUENCES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "padded": (F.ctc_loss, (STEPS, TARGETS, LENGTHS, COUNTS)),
    "one after the other": (
        F.ctc_loss,
        (STEPS, TARGETS[:, 0].repeat(3)[:7], LENGTHS, COUNTS),
    ),
    "lengths of integers": (
        lambda x, t, **k: F.ctc_loss(x, t, (12, 12, 10), (4, 2, 4), **k),
        (STEPS, TARGETS),
    ),
    "one sequence": (
        lambda x, t, n, m, **k: F.ctc_loss(x[:, 0], t[0], n[0], m[0], **k),
        (STEPS, TARGETS, LENGTHS, COUNTS),
    ),
    "another blank": (
        lambda x, t, n, m, **k: F.ctc_loss(x, t - 1, n, m, 4, **k),
        (STEPS, TARGETS, LENGTHS, COUNTS),
    ),
    "too few steps": (F.ctc_loss, (STEPS, TARGETS, LENGTHS // 6, COUNTS)),
    "too few steps, 0": (
        lambda *a, **k: F.ctc_loss(*a, zero_infinity=True, **k),
        (STEPS, TARGETS, LENGTHS // 6, COUNTS),
    ),
    "of float64": (
        lambda x, t, n, m, **k: F.ctc_loss(x.double(), t.int(), n.int(), m.int(), **k),
        (STEPS, TARGETS, LENGTHS, COUNTS),
    ),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences(name: str, reduction: str) -> None:
    function, given = SEQUENCES[name]
    same(lambda *xs: function(*xs, reduction=reduction), *given)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sets(reduction: str) -> None:
    def losses(x: Any, labels: Any) -> Any:
        return (
            F.multilabel_margin_loss(x, labels, reduction=reduction),
            F.multilabel_margin_loss(x[0], labels[0], reduction=reduction),
            torch.nn.MultiLabelMarginLoss(reduction=reduction)(x * 2, labels),
        )

    same(losses, X, SETS)


@pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="PyTorch is older than the function"
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_logits_of_a_linear_layer(reduction: str) -> None:
    def losses(x: Any, w: Any, label: Any, bias: Any, share: Any) -> Any:
        loss = F.linear_cross_entropy
        options: Any = {"weight": share, "reduction": reduction}
        return (
            loss(x, w, label, linear_bias=bias, **options, ignore_index=2),
            loss(x[0], w, label[0], label_smoothing=0.2, **options),
            loss(x, w, (x @ w.mT).softmax(-1), reduction=reduction),
        )

    labels = torch.tensor([0, 2, 1, 2])
    same(losses, X, normal(3, 6), labels, normal(3), normal(3).abs())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_logits_of_several_axes(reduction: str) -> None:
    if not hasattr(F, "linear_cross_entropy"):
        pytest.skip("PyTorch is older than the function")

    def loss(x: Any, w: Any, labels: Any) -> Any:
        return F.linear_cross_entropy(x, w, labels, reduction=reduction)

    labels = torch.randint(3, (4, 2), generator=GENERATOR)
    same(loss, X, normal(3, 2, 6), labels)


REFUSED: dict[str, tuple[Function, str]] = {
    "a reduction": (
        lambda x, t, n, m: F.ctc_loss(x, t, n, m, reduction="median"),
        "ctc_loss: reduction='median'",
    ),
    "f16": (
        lambda x, t, n, m: F.ctc_loss(x.half(), t, n, m),
        r"ctc_loss of f16.*float32.*\.float\(\)",
    ),
    "a blank of other classes": (
        lambda x, t, n, m: F.ctc_loss(x, t, n, m, blank=5),
        "ctc_loss with blank=5 of 5 classes",
    ),
    "lengths of others": (
        lambda x, t, n, m: F.ctc_loss(x, t, n[:2], m),
        "ctc_loss: lengths .*2.* of 3 sequences",
    ),
    "targets of others": (
        lambda x, t, n, m: F.ctc_loss(x, t[:2], n, m),
        "ctc_loss: targets",
    ),
    "a shape": (
        lambda x, t, n, m: F.multilabel_margin_loss(x[0], t) * n.sum() * m.sum(),
        "multilabel_margin_loss of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    function, said = REFUSED[name]
    with pytest.raises(MirageError, match=said) as error:
        mirage.kernel(lambda *xs: function(*xs))(STEPS, TARGETS, LENGTHS, COUNTS)
    assert error.value.location is not None
    assert error.value.location.file == __file__
