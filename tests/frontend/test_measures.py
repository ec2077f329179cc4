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
ODD = torch.cat([EDGES, M.view(-1), torch.tensor([math.inf, -math.inf, math.nan])])
BAGS = torch.tensor([[0, 5, 2], [1, 1, 5]])


def same(function: Function, *given: torch.Tensor) -> None:
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda *xs: function(*xs))(*given)
    torch.testing.assert_close(found, function(*given), equal_nan=True)


def _cdist(p: float) -> Function:
    return lambda x, y: (torch.cdist(x, y, p=p), torch.cdist(x[:1], y[0], p))


def _renorm(p: float) -> Function:
    return lambda m: torch.renorm(m, p, 0, 1.0) + m.renorm(p, -1, 2.0)


def _quantiles(between: str) -> Function:
    return lambda m, x: (
        torch.quantile(m, torch.tensor([0.1, 0.5, 0.77]), 0, interpolation=between),
        x.quantile(0.31, interpolation=between),
        x[:5].quantile(0.31, interpolation=between),
    )


ORDERS = (1, 2, 3.0, math.inf)
STARTS = torch.tensor([0, 2, 2, 3])
"""Where bags begin, of which one is empty."""


def _by_offsets(mode: str) -> Function:
    def function(b: Any, starts: Any, m: Any) -> Any:
        flat = b.flatten()
        return (
            F.embedding_bag(flat, m, starts, mode=mode),
            F.embedding_bag(flat[:3], m, starts, mode=mode, include_last_offset=True),
            F.embedding_bag(flat, m, starts, mode=mode, padding_idx=1),
        )

    return function


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
    "searchsorted": (
        lambda x, e, m: (
            torch.searchsorted(e, x),
            torch.searchsorted(e, x, right=True, out_int32=True),
            torch.searchsorted(e, 0.5, side="right"),
            torch.searchsorted(m.sort(1).values, m),
            torch.searchsorted(m, m, sorter=m.argsort(1)),
        ),
        (ODD, EDGES, M),
    ),
    "histc": (
        lambda m: (
            torch.histc(m, 5),
            torch.histc(m, 4, -1, 1),
            m.histc(bins=3, min=0, max=2),
            torch.histc(m * 0, 4),
        ),
        (M,),
    ),
    "quantile": (
        lambda m: (
            torch.quantile(m, 0.3),
            m.quantile(0.9, 0, keepdim=True),
            m.quantile(0.4, keepdim=True),
            torch.quantile(m, torch.tensor([0.25, 0.5, 1.0]), dim=1),
            m.double().quantile(torch.tensor([0.1]).double(), 0),
        ),
        (M,),
    ),
    **{
        f"quantile, {between}": (_quantiles(between), (M, ODD))
        for between in ("linear", "lower", "higher", "nearest", "midpoint")
    },
    "running extremes": (
        lambda m, x: (*m.cummax(1), *torch.cummin(m, 0), x.cummax(0)[0]),
        (M, ODD),
    ),
    "running extremes, integers": (lambda n: (*n.cummax(0), n.cummin(0)[0]), (N,)),
    "logcumsumexp": (
        lambda m, x: (torch.logcumsumexp(m, 1), (m * 200).logcumsumexp(0), x),
        (M, ODD),
    ),
    "logcumsumexp, odd": (lambda x: x.logcumsumexp(0), (ODD,)),
    "a grid": (
        lambda x: (
            F.affine_grid(x[:, :2], (2, 1, 4, 5), align_corners=False),
            F.affine_grid(x[:, 1:4].repeat(1, 1, 2)[..., :4], (2, 1, 2, 3, 4), True),
            F.grid_sample(
                x[:, None],
                F.affine_grid(x[:, :2], (2, 1, 3, 3), False),
                align_corners=True,
            ),
        ),
        (X,),
    ),
    "pairs": (
        lambda m: (
            F.pdist(m),
            torch.pdist(m, 1),
            torch.combinations(m[0], 2, True),
            torch.combinations(m[0], 3),
        ),
        (M,),
    ),
    "covariances": (
        lambda m: (
            torch.cov(m),
            torch.cov(m[0]),
            torch.cov(m, correction=0),
            torch.corrcoef(m),
            torch.corrcoef(m[0]),
            torch.cov(m[:1]),
            torch.corrcoef(m[:1]),
            torch.cov(m, fweights=torch.tensor([2, 1, 3])),
            torch.cov(m, correction=0, aweights=m[0].abs()),
            m.cov(fweights=torch.tensor([2, 1, 3]), aweights=m[1].abs()),
        ),
        (M,),
    ),
    "powers of integers": (
        lambda n: (torch.vander(n), torch.linalg.vander(n, N=4)),
        ((9 * N).abs().byte(),),
    ),
    "powers": (
        lambda m: (
            torch.vander(m[0]),
            torch.vander(m[0], 2, increasing=True),
            torch.linalg.vander(m, N=4),
            torch.linalg.vander(m[0, 0], N=4),
        ),
        (M,),
    ),
    "windows": (
        lambda m: (
            m * torch.hann_window(3, periodic=False) + torch.hamming_window(3),
            m * torch.hann_window(1),
            m * torch.logspace(0, 1, 3) + torch.as_tensor([1.0, 2.0, 3.0]),
            m * torch.logspace(4.3, 7.9, 3, 2, dtype=torch.int64),
            torch.as_tensor(m > 0, dtype=torch.float32),
        ),
        (M,),
    ),
    "mode": (lambda n: (*torch.mode(n // 3), n.mode()[0]), (N,)),
    "special functions": (
        lambda x: (
            torch.erfc(x * 5),
            torch.special.erfcx(x),
            torch.lgamma(x),
            x.digamma(),
            torch.special.ndtr(x),
            torch.special.entr(x),
            torch.i0(x),
            torch.polygamma(1, x.abs() + 1),
            (x.abs() + 1).polygamma(1),
            x.erfinv(),
            torch.mvlgamma(x.abs() + 2, 2),
        ),
        (ODD,),
    ),
    "special functions, integers": (lambda n: torch.lgamma(n + 5), (N,)),
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
            F.embedding_bag(b, m, mode="max", padding_idx=1),
            F.embedding_bag(b * 0, m, mode="max", padding_idx=0),
        ),
        (BAGS, M),
    ),
    **{
        f"bags by offsets, {mode}": (_by_offsets(mode), (BAGS, STARTS, M))
        for mode in ("sum", "mean", "max")
    },
    "bags by offsets, weighted": (
        lambda b, s, m: F.embedding_bag(
            b.flatten(), m, s, mode="sum", per_sample_weights=m.flatten()[: b.numel()]
        ),
        (BAGS, STARTS, M),
    ),
    "slopes": (
        lambda m, x: (
            *torch.gradient(m),
            *torch.gradient(m, spacing=2.0, dim=1, edge_order=2),
            *torch.gradient(m, spacing=[0.5, 3], edge_order=2)[:1],
            *torch.gradient(m, spacing=(x * x,), dim=-1, edge_order=2),
            *torch.gradient(m[:, :2], dim=1),
        ),
        (torch.randn(4, 3, generator=torch.Generator().manual_seed(2)), M[0].abs() + 1),
    ),
    "angles": (
        lambda m: (m.angle(), torch.angle(m.long()), m[0, 0].half().angle()),
        (M,),
    ),
    "sums to a size": (
        lambda m: (
            m.sum_to_size(1, m.shape[1]),
            m[None].sum_to_size(m.shape),
            (m[0, 0] > 0).sum_to_size(()),
        ),
        (M,),
    ),
    "places along axes": (
        lambda n: (
            *torch.unravel_index(n % 12, (2, 3, 2)),
            *torch.unravel_index((n % 12).byte(), (2, 6)),
        ),
        (N,),
    ),
    "sums of singular values": (lambda m: torch.norm(m, "nuc"), (M,)),
    "sums that are truth values": (
        lambda m, n: (
            m.sum(0, dtype=torch.bool),
            torch.sum(n, dtype=torch.bool),
            torch.sum(m > 0, 1, True, dtype=torch.bool),
        ),
        (M, N),
    ),
    "copies of views": (
        lambda m: (
            torch.clone(m, memory_format=torch.contiguous_format),
            torch.stack([m.sum(), *(part.sum() for part in m[:0].chunk(2))]),
            torch.permute_copy(m, (1, 0)),
            *torch.unbind_copy(m),
            torch.narrow_copy(m, 1, 1, 2),
            torch.msort(m),
            torch.take_along_dim(m, m.argsort(0).flatten()[:3]),
        ),
        (M,),
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
    "counts": ("depends on the data", lambda x: torch.bincount(x[0].long())),
    "unique elements": ("depends on the data", lambda x: x.unique()),
    "a part that is data": ("data", lambda x: x.quantile(x[0])),
    "a part beyond 1": ("from 0 to 1", lambda x: x.quantile(1.5)),
    "between": ("one of linear", lambda x: x.quantile(0.5, interpolation="cubic")),
    "other rows": ("one for each row", lambda x: torch.searchsorted(x, x[:1])),
    "boundaries": ("a vector", lambda x: torch.bucketize(x, x)),
    "bags without ends": (
        "a vector with offsets",
        lambda x: F.embedding_bag(x[0].long(), x),
    ),
    "a position that is data": (
        "narrow from a position that is data",
        lambda x: x.narrow(0, x.long()[0, 0], 1),
    ),
    "slopes of one point": ("2 elements or more", lambda x: torch.gradient(x[:1])),
    "another shape": ("sum_to_size of", lambda x: x.sum_to_size(5)),
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
    "a limit below the other": ("lower limit", lambda x: F.hardtanh(x, 1.0, -1.0)),
    "a shrinking below 0": ("not below 0", lambda x: F.softshrink(x, -0.5)),
    "slopes of many channels": ("a vector with one", lambda x: F.prelu(x, x)),
    "filling by a vector": ("without axes", lambda x: x.masked_fill(x > 0, x[0])),
    "a difference of order -1": ("0 or more", lambda x: torch.diff(x, -1)),
    "pairs of one row": ("two rows or more", lambda x: torch.pdist(x[:1])),
    "the transpose of matrices": ("expected a matrix", lambda x: x[None].t()),
    "the trace of matrices": ("expected a matrix", lambda x: torch.trace(x[None])),
    "truths to the power -1": ("convert to floats", lambda x: (x > 0) ** -1),
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


def test_quantiles_that_are_elements_may_be_infinite() -> None:
    x = torch.tensor([[1.0, torch.inf, torch.inf], [-torch.inf, -torch.inf, 0.0]])

    def function(x: Any) -> Any:
        between = ("lower", "higher", "nearest")
        return [x.quantile(0.6, 1, interpolation=how) for how in between]

    torch.testing.assert_close(mirage.kernel(function)(x), function(x))


def test_integrals_of_bytes_do_not_wrap_and_slopes_are_a_tuple() -> None:
    def function(x: Any, levels: Any) -> Any:
        slopes = torch.gradient(x)
        assert isinstance(slopes, tuple)
        whole = torch.trapezoid(levels), torch.trapz(levels, dx=0.5, dim=0)
        return slopes, whole, torch.logit(x.sigmoid() * 0 + 1, 1e-6)

    levels = torch.tensor([[200, 100, 3], [90, 255, 255]], dtype=torch.uint8)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mirage.kernel(function)(x, levels), function(x, levels))
