"""Sums, means and losses of what a mask selects, and what Python does with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.frontend.arguments import leaves_of

Function = Callable[..., Any]

_DRAWN = torch.Generator().manual_seed(0)
X, Y, Z = (torch.randn(s, generator=_DRAWN) for s in [(4, 6), (4, 6), (4, 3, 6)])
MASK, ROWS, NONE = Y > 0.2, torch.tensor([True, False, True, True]), Y > 9
PAIRS = torch.randn(4, 3, generator=_DRAWN) > 0
LABELS = torch.tensor([2, 99, 0, 5])
HOLED = torch.where(torch.arange(4)[:, None] == 1, torch.nan, X)
WEIGHTS = torch.rand(6, generator=_DRAWN)

TOTALS: dict[str, tuple[Function, list[Any]]] = {
    "elements": (lambda x, m: (x[m].sum(), x[m].mean(), torch.sum(x[m])), [X, MASK]),
    "halves": (lambda x, m: (x[m].sum(), x[m].mean()), [600 * X.half(), X < 9]),
    "integers": (lambda x, m: x[m].sum(), [(9 * X).int(), MASK]),
    "truth": (lambda x, m: (x > 0)[m].sum(), [X, MASK]),
    "none": (lambda x, m: (x[m].sum(), x[m].mean()), [X, NONE]),
    "wide": (lambda x, m: (x[m].sum(dtype=torch.float64),), [X, MASK]),
    "columns": (lambda x, m: (x[m].sum(0), x[m].mean(dim=0)), [HOLED, ROWS]),
    "of several axes": (lambda x, m: (x[m].sum((0, 2)), x[m].mean([0, 1])), [Z, ROWS]),
    "of pairs": (lambda x, m: (x[m].sum(0), x[m].mean(0), x[m].mean()), [Z, PAIRS]),
    "by rows first": (lambda x, m: x[m].square().mean(-1).sqrt().sum(), [X, ROWS]),
    "at places": (lambda x, m: x[m.nonzero()[:, 0]].mean(0), [X, ROWS]),
    "differences": (lambda x, y, m: (x[m] - y[m]).abs().mean(), [X, Y, MASK]),
    "from a total": (lambda x, m: ((x.mean() - x[m]) ** 2).sum(), [X, MASK]),
    "comparisons": (
        lambda x, y, m: ((x[m] > y[m]).sum(), (x[m] == y[m]).float().mean()),
        [X, X.where(Z[:, 0] > 0, Y), MASK],
    ),
    "bits": (lambda x, m: (~(x > 0)[m] & (x < 1)[m]).sum(), [X, MASK]),
    "signs": (lambda x, m: (abs(-x[m]) // 0.5 % 3 + 2 ** x[m]).sum(), [X, MASK]),
    "masks that are cut twice": (
        lambda x, y, m: (x[m[:, 0]] * y[m[:, 0]] + (y[1:][m[:-1, 2]] - 1).sum()).sum(),
        [X, Y, MASK],
    ),
    "slices of masks": (
        lambda x, y, m: F.mse_loss(x[:, 1:][m[:, :-1]], y[:, 1:][m[:, :-1]]),
        [X, Y, MASK],
    ),
    "other slices of them": (
        lambda x, y, m: x[m[:, 0]].sum() * y[m[:, 1]].sum(),
        [X, Y, MASK],
    ),
    "extremes": (
        lambda x, m, r: (x[m].max(), torch.min(x[m]), x[r].amax(0), x[r].amin((0, 1))),
        [HOLED, MASK & ~HOLED.isnan(), ROWS],
    ),
    "spreads": (
        lambda x, m, r: (
            *(x[m].std(), x[m].var(False), torch.std(x[m], correction=2)),
            *(x[r].std(0), x[r].var(dim=0, unbiased=False)),
        ),
        [HOLED, MASK & ~HOLED.isnan(), ROWS],
    ),
    "spreads of halves": (lambda x, m: (x[m].std(), x[m].var()), [X.half() + 9, MASK]),
    "spreads of few": (lambda x, m: (x[m].std(), x[m].var(False)), [X, X.max() == X]),
    "norms": (
        lambda x, m, r: (
            *(x[m].norm(), torch.norm(x[m], 1), x[m].norm(p=torch.inf)),
            *(x[r].norm(dim=0), x[r].norm(3, 0)),
        ),
        [HOLED, MASK & ~HOLED.isnan(), ROWS],
    ),
    "whether any": (
        lambda x, m, r: ((x[m] > 1).any(), (x[m] > 1).all(), torch.any(x[r] > 0, 0)),
        [X, MASK, ROWS],
    ),
    "whether any of none": (lambda x, m: ((x[m] > 1).any(), x[m].all()), [X, NONE]),
    "others": (
        lambda x, m, r: (
            *(x[m].prod(), torch.logsumexp(x[m], 0), torch.count_nonzero(x[m] > 1)),
            *(x[r].logsumexp(0), x[r].prod(0)),
        ),
        [X, MASK, ROWS],
    ),
    "a loss": (lambda x, y, m: F.mse_loss(x[m], y[m]), [X, Y, MASK]),
    "a sum": (lambda x, y, m: F.l1_loss(x[m], y[m], reduction="sum"), [X, Y, ROWS]),
    "weighted": (
        lambda x, y, w, m: F.binary_cross_entropy_with_logits(x[m], y[m], pos_weight=w),
        [X, (Y > 0).float(), WEIGHTS, ROWS],
    ),
    "each": (
        lambda x, y, m: F.huber_loss(x[m], y[m], reduction="none").sum(),
        [X, Y, MASK],
    ),
    "labels": (lambda x, at, m: F.cross_entropy(x[m], at[m]), [HOLED, LABELS, ROWS]),
    "ignored": (
        lambda x, at, m, w: F.cross_entropy(
            x[m], at[m], weight=w, label_smoothing=0.1, ignore_index=5
        ),
        [X, LABELS % 6, ROWS, WEIGHTS],
    ),
    "a criterion": (
        lambda x, at, m: torch.nn.NLLLoss(reduction="sum")(x[m], at[m]),
        [Z, LABELS[:, None].expand(4, 3) % 6, PAIRS],
    ),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_those_of_pytorch(name: str) -> None:
    function, tensors = TOTALS[name]
    found = mirage.kernel(effort="none")(function)(*tensors)
    torch.testing.assert_close(found, function(*tensors), equal_nan=True)


NUMPYS: dict[str, Function] = {
    "methods": lambda x, m: (x[m].sum(), x[m].mean(), x[m[:, 0]].sum(axis=0)),
    "functions": lambda x, m: (np.sum(x[m]), np.mean(x[m], dtype=np.float64)),
    "rows": lambda x, m: (x[m[:, 0]] / np.sum(x[m[:, 0]], 1, keepdims=True)).sum(),
    "ufuncs": lambda x, m: (np.abs(x[m]).mean(), (np.float32(2) * x[m]).sum()),
    "of two": lambda x, m: np.maximum(x[m], x[m] ** 2).sum(),
    "chosen": lambda x, m: np.where(x[m] > 0, x[m], 0).mean(),
    "integers": lambda x, m: (10 * x).astype(np.int32)[m].mean(),
    "others": lambda x, m: (
        *(x[m].max(), np.min(x[m]), x[m].std(), np.var(x[m], ddof=1)),
        *(np.any(x[m] > 1), (x[m] > 1).all(), np.prod(x[m]), np.linalg.norm(x[m])),
    ),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_totals_are_those_of_numpy(name: str) -> None:
    function, given = NUMPYS[name], (X.numpy(), MASK.numpy())
    found = mirage.kernel(effort="none")(lambda x, m: function(x, m))(*given)
    right = function(*given)
    for mine, theirs in zip(leaves_of(found), leaves_of(right), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def stored(function: Function) -> Function:
    def storing(x: Any, mask: Any, *others: Any) -> Any:
        y = torch.zeros_like(x)
        y[mask] = function(x[mask], *others)
        return y

    return storing


REFUSED: dict[str, tuple[Function, list[Any]]] = {
    "a norm of a matrix": (
        lambda x, m: np.linalg.norm(x[m], 1),
        [X.numpy(), ROWS.numpy()],
    ),
    "a spread in a format": (
        lambda x, m: np.std(x[m], None, np.float64),
        [X.numpy(), MASK.numpy()],
    ),
    "a branch": (lambda x, m: x if x[m] else -x, [X, MASK]),
    "how many": (lambda x, m: x * len(x[m]), [X, MASK]),
    "another mask": (lambda x, m: x * (x[m] == x[x > 0]).sum(), [X, MASK]),
    "a mask cut elsewhere": (
        lambda x, m: (x[m[:, 0]] * x[m[:, 1]]).sum(),
        [X, MASK],
    ),
    "the largest integer": (lambda x, m: x.int()[m].max(), [X, MASK]),
    "the largest and its place": (lambda x, m: x[m].max(0), [X, MASK]),
    "a norm of small numbers": (lambda x, m: x[m].norm(-torch.inf), [X, MASK]),
    "kept": (lambda x, m: x[m].sum(0, keepdim=True), [X, ROWS]),
    "labels of all": (
        lambda x, at, m: F.cross_entropy(x[m], at),
        [X, LABELS % 6, ROWS],
    ),
    "a sort": (lambda x, m: np.sort(x[m]), [X.numpy(), MASK.numpy()]),
    "a ufunc that reduces": (
        lambda x, m: np.add.reduce(x[m]),
        [X.numpy(), MASK.numpy()],
    ),
    "places in a branch": (lambda x, m: x if m.nonzero() else -x, [X, MASK]),
    # Which row is which depends on how many are selected.
    "a triangle": (stored(lambda rows: rows.tril()), [X, ROWS]),
    "halves of places": (lambda x, m: F.glu(x[m]).sum(), [X[:, 0], ROWS]),
    "channels": (stored(F.prelu), [Z[:, :, :3], PAIRS, WEIGHTS[:3]]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_elements_is_refused(name: str) -> None:
    function, tensors = REFUSED[name]
    with pytest.raises(UnsupportedError, match=r"use where|loop") as error:
        mirage.kernel(lambda *given: function(*given))(*tensors)
    assert error.value.location is not None


def test_changing_what_was_selected_changes_what_stands_for_it() -> None:
    def function(x: Any, mask: Any) -> Any:
        chosen = x[mask]
        other = chosen
        chosen //= 0.5
        chosen **= 2
        return other.sum()

    found = mirage.kernel(effort="none")(function)(X, MASK)
    torch.testing.assert_close(found, function(X, MASK))
