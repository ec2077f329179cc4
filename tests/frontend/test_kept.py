"""What is left of a trace: tensors that something kept, results that share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.settings import INTERPRET

KEPT = "a tensor of a trace that has ended.*pass it as an argument"


@pytest.mark.parametrize("kind", ["cache", "dict"])
def test_what_a_cache_kept_is_named_wherever_it_is_used(kind: str) -> None:
    tables: dict[int, Any] = {}

    @functools.cache
    def cached(n: int) -> Any:
        return torch.arange(n) * 0.5

    def table(n: int) -> Any:
        if kind == "cache":
            return cached(n)
        return tables.setdefault(n, torch.arange(n) * 0.5)

    def function(x: Any) -> Any:
        return x + table(4)

    x = torch.ones(3, 4)
    kernel = mirage.kernel(function)
    torch.testing.assert_close(kernel(x), x + torch.arange(4) * 0.5)
    uses: tuple[Callable[[], Any], ...] = (
        lambda: x + table(4),
        lambda: table(4) * 2,
        lambda: table(4).sum(),
        lambda: torch.exp(table(4)),
        lambda: table(4)[1:],
        lambda: kernel(torch.ones(5, 4)),
    )
    for use in uses:
        with pytest.raises(mirage.TraceError, match=KEPT) as error:
            use()
        assert error.value.location is not None
        assert error.value.location.file == __file__


SHARED: dict[str, Callable[[Any], Any]] = {
    "twice": lambda x: (x, x),
    "a view": lambda x: (x.view(4, 3), x),
    "a transpose": lambda x: (x.T, x),
    "a part": lambda x: (x[:2], x),
    "one result twice": lambda x: (x * 2,) * 2,
    "views of a result": lambda x: ((x * 2).view(4, 3), x + 1),
    "a view beside it": lambda x: (lambda y: (y, y.view(4, 3)))(x * 2),
    "rows again": lambda x: (x.expand(2, 3, 4), x),
    "a copy": lambda x: (x.clone(), x),
    "a copy alone": lambda x: (x.clone(),),
    "a transposed copy": lambda x: (x.T.contiguous(), x.view(4, 3).clone()),
    "a copy by joining": lambda x: (torch.cat([x]), x.repeat(1, 1)),
    "a copy of a result": lambda x: (lambda y: (y, y.clone(), y[:, 1:].clone()))(x * 2),
}


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_results_that_eager_shares(name: str, *, interpret: bool) -> None:
    """Right in any case; kernels share what eager does, but for repeated elements."""
    function, x = SHARED[name], torch.randn(3, 4)
    with INTERPRET.scope(value=interpret):
        found = mirage.kernel(effort="none")(function)(x)
    expected = function(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    if not interpret:
        assert not any(np.shares_memory(t, x) for t in found)
    elif name != "rows again":
        assert _shared(*found, x) == _shared(*expected, x)


@pytest.mark.parametrize("effort", ["none", "quick"])
def test_what_is_computed_is_no_argument(effort: Any) -> None:
    """Also where a search finds that nothing is to be computed."""
    x = torch.randn(3, 4)
    with INTERPRET.scope(value=True):
        found = mirage.kernel(effort=effort)(lambda x: (x * 1) + 0)(x)
    assert torch.equal(found, x)
    assert not np.shares_memory(found, x)


def _shared(*tensors: torch.Tensor) -> list[bool]:
    places = [t.untyped_storage().data_ptr() for t in tensors]
    return [a == b for a in places for b in places]
