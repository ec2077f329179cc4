"""Attention of several heads is PyTorch's, with what is joined to its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError

F = torch.nn.functional
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


X, Y = normal(5, 2, 8), normal(7, 2, 8)
IN, OUT, BIAS = normal(24, 8), normal(8, 8), normal(1, 1, 8)
KEYS, MASK = normal(4, 6, 4), normal(5, 7)
HIDDEN = torch.tensor([[False] * 6 + [True], [False] * 7])


def attention(*given: Any, **options: Any) -> Any:
    x, y, w, out = given
    fixed = {"training": False, **options}
    more = fixed.pop("bias", None), fixed.pop("zero", False)
    return F.multi_head_attention_forward(
        *(x, y, y, 8, 2, w, None, more[0], more[0], more[1], 0.0, out, None), **fixed
    )


CASES: dict[str, Callable[..., Any]] = {
    "a key more": lambda *a: attention(*a[:4], bias=a[4]),
    "zeros": lambda *a: attention(*a[:4], zero=True),
    "both, masked": lambda *a: attention(
        *a[:4], bias=a[4], zero=True, attn_mask=a[5], key_padding_mask=a[6]
    ),
    "both, without weights": lambda *a: attention(
        *a[:4], bias=a[4], zero=True, attn_mask=a[5] > 0, need_weights=False
    ),
    "given keys": lambda *a: attention(*a[:4], static_k=a[7], static_v=a[7] * 2),
    "given values alone": lambda *a: attention(
        *(a[0], a[1][:6], *a[2:4]), static_v=a[7], average_attn_weights=False
    ),
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("name", CASES)
def test_as_pytorch(name: str) -> None:
    given = (X, Y, IN, OUT, BIAS, MASK, HIDDEN, KEYS)

    def function(*tensors: Any) -> Any:
        found = CASES[name](*tensors)
        return [part for part in found if part is not None]

    found, expected = mirage.kernel(function)(*given), function(*given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_module_with_all_of_them() -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True)
    layer = layer.eval().requires_grad_(False)
    found, expected = mirage.kernel(layer)(X, Y, Y), layer(X, Y, Y)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_key_without_a_value_is_refused() -> None:
    def function(x: Any, w: Any, out: Any, bias: Any) -> Any:
        return F.multi_head_attention_forward(
            *(x, x, x, 8, 2, w, None, bias, None, False, 0.0, out, None),
            training=False,
        )[0]

    with pytest.raises(UnsupportedError, match="one of bias_k and bias_v"):
        mirage.kernel(function)(X, IN, OUT, BIAS)


def test_a_mask_of_integers_is_refused() -> None:
    def function(x: Any, w: Any, out: Any, mask: Any) -> Any:
        return F.multi_head_attention_forward(
            *(x, x, x, 8, 2, w, None, None, None, False, 0.0, out, None),
            training=False,
            attn_mask=mask,
        )[0]

    mask = torch.ones(len(X), len(X), dtype=torch.uint8)
    with pytest.raises(UnsupportedError, match="a mask of integers"):
        mirage.kernel(function)(X, IN, OUT, mask)
