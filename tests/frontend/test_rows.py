"""Loops over the rows of a traced tensor, which are unrolled as PyTorch's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import TraceError


def _largest_so_far(x: Any) -> Any:
    rows: list[Any] = []
    for row in x:
        rows.append(row if not rows else torch.maximum(rows[-1], row))
    return torch.stack(rows)


def _written(x: Any) -> Any:
    y = x * 1
    for i, row in enumerate(y):
        row += i
        y[0] += row.sum()
    return y


def _unpacked(x: Any) -> Any:
    a, b, *rest = x
    return a * b + sum(rest)


def _nested(x: Any) -> Any:
    return torch.stack([element * i for row in x for i, element in enumerate(row)])


LOOPS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: sum(x),
    "list": lambda x: torch.cat([row[None] * 2 for row in list(x)]),
    "zip": lambda x: sum(a * b for a, b in zip(x, reversed(x.unbind(0)), strict=True)),
    "from the last": lambda x: reversed(x) + torch.stack(list(reversed(x))),
    "views": lambda x: torch.stack([column + 1 for column in x.T]),
    "a scan": _largest_so_far,
    "rows that are written": _written,
    "unpacked": _unpacked,
    "elements": _nested,
}


@pytest.mark.parametrize("name", LOOPS)
def test_rows_are_those_of_pytorch(name: str) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    kernel = mirage.kernel(effort="none")(LOOPS[name])
    torch.testing.assert_close(kernel(x), LOOPS[name](x))


def test_rows_of_arrays_are_those_of_numpy() -> None:
    def function(x: Any) -> Any:
        return np.stack([row / row.sum() for row in x] + list(reversed(x)))

    x = np.random.default_rng(0).uniform(1, 2, (3, 4)).astype(np.float32)
    found = mirage.kernel(effort="none")(function)(x)
    np.testing.assert_allclose(found, function(x), rtol=1e-6)


def test_another_number_of_names_is_pythons_error() -> None:
    def function(x: Any) -> Any:
        a, b = x
        return a + b

    with pytest.raises(ValueError, match="too many values to unpack"):
        mirage.kernel(function).trace(mirage.spec((3, 4)))


def test_rows_of_a_dynamic_axis_are_refused() -> None:
    kernel = mirage.kernel(lambda x: sum(x))
    with pytest.raises(
        TraceError, match="how many rows a tensor of a dynamic axis has"
    ):
        kernel.trace(mirage.spec(("m", 4)))
