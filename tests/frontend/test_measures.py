"""Counts, distances, integrals and bags, as PyTorch computes them."""

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
Function = Callable[..., Any]
GENERATOR = torch.Generator().manual_seed(0)
X, Y = (torch.randn(s, generator=GENERATOR) for s in ((2, 6, 3), (2, 4, 3)))
M = X[0]
N = torch.arange(-4, 4)
EDGES = torch.tensor([-1.0, 0.0, 1.0, 1.0, 2.0])
BAGS = torch.tensor([[0, 5, 2], [1, 1, 5]])


def same(function: Function, *given: torch.Tensor) -> None:
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda *xs: function(*xs))(*given)
    torch.testing.assert_close(found, function(*given))


def _cdist(p: float) -> Function:
    return lambda x, y: (torch.cdist(x, y, p=p), torch.cdist(x[:1], y[0], p))


def _renorm(p: float) -> Function:
    return lambda m: torch.renorm(m, p, 0, 1.0) + m.renorm(p, -1, 2.0)


ORDERS = (1, 2, 3.0, math.inf)
CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    **{f"cdist, {p}": (_cdist(p), (X, Y)) for p in (0, *ORDERS)},
    **{f"renorm, {p}": (_renorm(p), (M,)) for p in ORDERS},
    "dist": (lambda m, n: torch.dist(m, n, 3) + m.dist(n), (M, M.flip(0))),
    "count_nonzero": (
        lambda m, n: (
            torch.count_nonzero(m.relu()),
            torch.count_nonzero(m > 0, 1),
            m.relu().count_nonzero((0, 1)),
            n.count_nonzero(),
        ),
        (M, N),
    ),
    "isin": (
        lambda n, e: (torch.isin(n, e), torch.isin(n, e, invert=True)),
        (N, BAGS),
    ),
    "isin, a number": (lambda n: torch.isin(n, 2), (N,)),
    "isclose, integers": (lambda n: torch.isclose(n, n.flip(0), 0.3, 1), (N,)),
    "bucketize": (
        lambda x, e: (
            torch.bucketize(x, e),
            torch.bucketize(x, e, right=True, out_int32=True),
        ),
        (torch.cat([EDGES, M.view(-1), torch.tensor([math.inf, math.nan])]), EDGES),
    ),
    "trapezoid": (
        lambda m, x: (
            torch.trapezoid(m),
            torch.trapz(m, dx=0.5, dim=0),
            torch.trapezoid(m, x, dim=0),
            torch.trapezoid(m, m * m),
        ),
        (M, M[:, 0]),
    ),
    "cumulative_trapezoid": (
        lambda m, x: (
            torch.cumulative_trapezoid(m, dim=0),
            torch.cumulative_trapezoid(m, x),
        ),
        (M, M[0]),
    ),
    "trapezoid, integers": (lambda n: torch.trapezoid(n), (N,)),
    "bags": (
        lambda b, m: (
            F.embedding_bag(b, m),
            F.embedding_bag(b, m, mode="sum"),
            F.embedding_bag(b, m, mode="max"),
            F.embedding_bag(b, m, mode="sum", per_sample_weights=m[:2]),
        ),
        (BAGS, M),
    ),
    "bags, padded": (
        lambda b, m: (
            F.embedding_bag(b, m, padding_idx=5),
            F.embedding_bag(b, m, mode="sum", padding_idx=-1),
            F.embedding_bag(b * 0, m, padding_idx=0),
        ),
        (BAGS, M),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    function, given = CASES[name]
    same(function, *given)


def test_what_is_long_in_f16_is_computed_in_f32() -> None:
    long = torch.full((2, 4), 200.0, dtype=torch.float16)

    def means(x: Any) -> Any:
        bags = (x > 0).long()
        rows = x * 200
        return F.embedding_bag(bags, rows), F.embedding_bag(bags, rows, padding_idx=0)

    same(lambda x: torch.renorm(x, 2, 0, 1.0), long)
    # PyTorch's kernel of a CPU adds them up in f16, that of a GPU in f32.
    for mean in mirage.kernel(means)(long):
        assert torch.equal(mean, torch.full((2, 4), 40000.0).half())
    found = mirage.kernel(lambda x: torch.cdist(x, x * 0))(long)
    assert torch.equal(found, torch.full((2, 2), 400.0).half())


REFUSED: dict[str, tuple[str, Function]] = {
    "several dtypes": ("one dtype", lambda x: torch.isclose(x, x.double())),
    "NaN": ("finite numbers", lambda x: torch.isclose(x, x, equal_nan=True)),
    "NaN in sums": ("finite numbers", lambda x: torch.nansum(x)),
    "truth values": ("truth values", lambda x: torch.isclose(x > 0, x > 1)),
    "a tolerance below 0": ("0 or more", lambda x: torch.isclose(x, x, -1.0)),
    "rows of two lengths": ("one length", lambda x: torch.cdist(x, x[:, :1])),
    "a vector": ("one length", lambda x: torch.cdist(x[0], x)),
    "an order below 0": ("0 or more", lambda x: torch.cdist(x, x, p=-1)),
    "points of a vector": ("two axes", lambda x: torch.renorm(x[0], 2, 0, 1)),
    "boundaries": ("a vector", lambda x: torch.bucketize(x, x)),
    "bags by offsets": ("offsets", lambda x: F.embedding_bag(x[0].long(), x)),
    "maxima of padding": (
        "may be empty",
        lambda x: F.embedding_bag(x.long(), x, mode="max", padding_idx=0),
    ),
    "weights of means": (
        "go with 'sum'",
        lambda x: F.embedding_bag(x.long(), x, per_sample_weights=x),
    ),
    "an order of margins": (
        "1 or 2",
        lambda x: F.multi_margin_loss(x, x[:, 0].long(), p=3),
    ),
    "integers between data": (
        "make it outside",
        lambda x: torch.linspace(x[0, 0], x[0, 1], 5, dtype=torch.int64),
    ),
    "truths added": ("truth values", lambda x: torch.addr(x > 0, x[:, 0], x[0])),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_says_why(name: str) -> None:
    text, function = REFUSED[name]
    with pytest.raises(MirageError, match=text) as caught:
        mirage.kernel(function).trace(M)
    assert "test_measures.py" in str(caught.value)


WINDOWS: dict[str, Function] = {
    "columns": lambda x: (
        F.unfold(x, 2, stride=2),
        F.unfold(x, 3, padding=1),
        F.unfold(x, (2, 3), dilation=(2, 1), padding=(0, 2), stride=(3, 2)),
        torch.nn.Unfold(8)(x[0]),
    ),
    "norms": lambda x: (
        F.lp_pool2d(x * x, 2.0, 2),
        F.lp_pool2d(x * x, 3.0, (2, 3), 2),
        torch.nn.LPPool1d(1, 2, 1)(x[0]),
    ),
    "neighbours": lambda x: (
        F.local_response_norm(x, 2),
        torch.nn.LocalResponseNorm(5, k=2.0)(x.flatten(2)),
    ),
    "formats": lambda x: (
        x.half(memory_format=torch.preserve_format),
        x.bool(memory_format=torch.contiguous_format),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_functions_of_planes(name: str) -> None:
    same(WINDOWS[name], torch.randn(2, 3, 8, 8, generator=GENERATOR))
