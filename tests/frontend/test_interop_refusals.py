"""What PyTorch's and NumPy's functions do that no kernel can is refused, with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.errors import MirageError, TraceError, UnsupportedError

F = torch.nn.functional


def failure(function: Callable[..., Any], kind: type[MirageError]) -> str:
    with pytest.raises(kind) as error:
        mirage.kernel(function).trace(mirage.spec((3, 4), "float32"))
    assert error.value.location is not None
    assert error.value.location.file == __file__
    return str(error.value)


def test_captured_arrays_are_refused() -> None:
    array, tensor = np.ones((3, 4), np.float32), torch.ones(3, 4)
    for function in (
        lambda x: x + array,
        lambda x: array * x,
        lambda x: np.add(array, x),
        lambda x: x @ tensor.T,
        lambda x: tensor + x,
        lambda x: torch.cat([x, tensor]),
        lambda x: F.linear(x, tensor),
    ):
        assert "pass it as an argument" in failure(function, TraceError)


def test_unknown_functions_suggest_a_known_one() -> None:
    message = failure(lambda x: torch.cumsum(x, 0), UnsupportedError)
    assert "torch.cumsum cannot be traced" in message
    assert "did you mean" in failure(lambda x: torch.log1p(torch.exp(x)), MirageError)
    assert "np.sort" in failure(lambda x: np.sort(x), UnsupportedError)


def test_arguments_that_are_not_supported_are_named() -> None:
    assert "amax" in failure(lambda x: torch.max(x, 1)[1], UnsupportedError)
    assert "order 1" in failure(lambda x: F.normalize(x, p=1.0), UnsupportedError)
    assert "training" in failure(lambda x: F.dropout(x, 0.5), UnsupportedError)
    assert "inplace" in failure(lambda x: F.elu(x, inplace=True), UnsupportedError)
    assert "is_causal" in failure(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        UnsupportedError,
    )
    assert "dropout_p" in failure(
        lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.1),
        UnsupportedError,
    )
    assert "a condition" in failure(
        lambda x: F.scaled_dot_product_attention(x, x, x, 1 - (x[:, :3] > 0)[None]),
        UnsupportedError,
    )
    assert "operator &" in failure(lambda x: x & (x > 0), UnsupportedError)
    assert "operator ~" in failure(lambda x: ~x, UnsupportedError)
    assert "order 2" in failure(lambda x: torch.linalg.norm(x, 2), UnsupportedError)
    assert "order 2" in failure(lambda x: np.linalg.norm(x, 2), UnsupportedError)
    assert "order -1" in failure(lambda x: x.norm(-1), UnsupportedError)
    assert "method norm" in failure(lambda x: x.norm(axis=0), UnsupportedError)
    assert "method softmax" in failure(lambda x: x.softmax(1, 2, 3), UnsupportedError)
    assert "no axes" in failure(lambda x: x.sum(()), TraceError)
    assert "cannot convert to None" in failure(lambda x: x.to(), MirageError)
    assert "keepdims of mean" in failure(lambda x: x.mean(0, np.float32), TraceError)
    assert "rank 3" in failure(lambda x: x.dot(x[None]), UnsupportedError)
    assert "rank 3" in failure(lambda x: np.dot(x, x[None]), UnsupportedError)
    assert "batchmean" in failure(
        lambda x: F.mse_loss(x, x, reduction="batchmean"), UnsupportedError
    )
    assert "torch.nn.functional.batch_norm" in failure(
        lambda x: torch.batch_norm(x, None, None, x, x, False, 0.1, 1e-5, False),
        UnsupportedError,
    )
    rows = torch.tensor([0, 2])
    assert "where()" in failure(lambda x: x[rows], UnsupportedError)
    assert "where()" in failure(lambda x: x[rows.numpy()], UnsupportedError)
    assert "where()" in failure(lambda x: x[[0, 2]], UnsupportedError)
    assert "np.sum" in failure(lambda x: np.sum(x, 0, initial=5), UnsupportedError)
    assert "inplace" in failure(lambda x: F.relu(x, inplace=True), UnsupportedError)
