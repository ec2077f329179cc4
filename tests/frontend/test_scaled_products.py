"""Products of floats of 8 bits with scales, `torch._scaled_mm`; `one_hot`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import DTypeError, MirageError, UnsupportedError

scaled_mm: Callable[..., Any] = torch._scaled_mm  # pyright: ignore[reportPrivateUsage]
F8 = torch.float8_e4m3fn


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


X, W = drawn(32, 64, dtype=F8), drawn(48, 64, dtype=F8).T
ONE, BY_ROW, BY_COLUMN = torch.tensor(0.75), drawn(32, 1).abs(), drawn(1, 48).abs()
OUT = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8": None,
}


@pytest.mark.parametrize("name", OUT)
def test_one_scale_for_each_matrix(name: str) -> None:
    def function(x: Any, w: Any, s: Any, t: Any) -> Any:
        return scaled_mm(x, w, s, t, out_dtype=OUT[name])

    found = mirage.kernel(function)(X, W, ONE, ONE[None])
    expected = function(X, W, ONE, ONE[None])
    assert found.dtype == expected.dtype
    exact = (X.double() @ W.double()) * 0.75**2
    mine, theirs = ((t.double() - exact).abs().max() for t in (found, expected))
    assert mine <= theirs + 1e-5


def test_one_for_each_row_and_column_in_one_kernel() -> None:
    def function(x: Any, w: Any, s: Any, t: Any, b: Any) -> Any:
        made = scaled_mm(x, w, s, t, bias=b, out_dtype=torch.bfloat16)
        return torch.nn.functional.silu(made)

    tensors = X, W, BY_ROW, BY_COLUMN, drawn(48, dtype=torch.bfloat16)
    program = mirage.kernel(function).trace(*tensors)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == 1
    assert not [n for n in best.mugraph.applies if not n.is_view]
    (found,) = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    exact = X.double() @ W.double() * BY_ROW * BY_COLUMN + tensors[-1]
    right = torch.nn.functional.silu(exact).bfloat16()
    torch.testing.assert_close(found, right, rtol=0.02, atol=0.02)


REFUSED: dict[str, Callable[..., Any]] = {
    "one scale, many": lambda x, w, s, t: scaled_mm(x, w, s, t[:, :1]),
    "transposed scales": lambda x, w, s, t: scaled_mm(x, w, s.T, t.T),
    "no floats of 8 bits": lambda x, w, s, t: scaled_mm(x.float(), w, s, t),
    "scales of f16": lambda x, w, s, t: scaled_mm(x, w, s.half(), t.half()),
    "a scaled result": lambda x, w, s, t: scaled_mm(x, w, s, t, scale_result=s),
    "another rank": lambda x, w, s, t: scaled_mm(x[None], w, s, t),
    "matrices that do not fit": lambda x, w, s, t: scaled_mm(x, w.T, s, t),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    with pytest.raises(MirageError) as error:
        mirage.kernel(REFUSED[name])(X, W, BY_ROW, BY_COLUMN)
    assert error.value.location is not None


def test_one_hot() -> None:
    labels = torch.tensor([[0, 3, 1], [4, 4, 2]])
    found = mirage.kernel(lambda i: one_hot(i, 5))(labels)
    assert torch.equal(found, one_hot(labels, 5))
    with pytest.raises(UnsupportedError, match="num_classes="):
        mirage.kernel(lambda i: one_hot(i))(labels)
    with pytest.raises(DTypeError, match="expected i64"):
        mirage.kernel(lambda i: one_hot(i, 5))(labels.int())
    with pytest.raises(MirageError, match="of extent 3"):
        mirage.kernel(lambda i: one_hot(i, 3))(labels)
