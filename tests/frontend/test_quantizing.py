"""Numbers are rounded to those that PyTorch's quantisation keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import ShapeError

X = 3 * torch.randn(3, 4, generator=torch.Generator().manual_seed(5))
X[0] = torch.tensor([0.06, -0.12, 0.27, 1e4])
SCALE, ZERO = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 3, -2]).int()
per_tensor = torch.fake_quantize_per_tensor_affine
per_channel = torch.fake_quantize_per_channel_affine


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_as_pytorch(dtype: torch.dtype) -> None:
    def rounded(x: Any, scale: Any, zero: Any) -> Any:
        return (
            per_tensor(x, 0.1, 0, -128, 127),
            per_tensor(x, scale=0.07, zero_point=3, quant_min=0, quant_max=15),
            per_tensor(x, scale[:1], zero[1:2], 0, 255),
            per_channel(x, scale, zero, 0, -8, 7),
            per_channel(x[:, :3], scale, zero, axis=1, quant_min=-3, quant_max=255),
            per_channel(x, scale, zero + 0.4 * scale, 0, -8, 7),
        )

    given = X.to(dtype), SCALE, ZERO
    found, expected = mirage.kernel(rounded)(*given), rounded(*given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_what_is_0_is_in_the_range() -> None:
    with pytest.raises(ShapeError, match="from 0 to 15 with zero_point=16"):
        mirage.kernel(lambda x: per_tensor(x, 0.1, 16, 0, 15))(X)


def test_scales_of_another_axis_are_refused() -> None:
    with pytest.raises(ShapeError, match="fake_quantize_per_channel_affine of"):
        mirage.kernel(lambda x, s, z: per_channel(x, s, z, 1, 0, 255))(X, SCALE, ZERO)
