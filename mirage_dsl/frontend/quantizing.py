"""Numbers rounded to those that few integers stand for, as PyTorch quantises them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.core.types import f32, promote
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.elementary import rint
from mirage_dsl.frontend.functions import as_tensor, is_float
from mirage_dsl.frontend.recorder import integer, normal_axis
from mirage_dsl.frontend.tensor import Tensor


def of_tensor(
    input: Any, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> Any:
    """The nearest of the numbers (q - zero_point) scale, for integers q of a range.

    Args:
        input: The tensor.
        scale: What neighbours of these numbers differ by, a number or a tensor.
        zero_point: The integer that stands for 0.
        quant_min: The first integer.
        quant_max: The last one.
    """
    x = as_tensor("fake_quantize_per_tensor_affine", input)
    return _nearest(x, _single(scale), _single(zero_point), (quant_min, quant_max))


def _single(x: Any) -> Any:
    return f.reshape(x, ()) if isinstance(x, Tensor) else x


def of_channels(
    input: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Any:
    """The same, with a scale and an integer for 0 at each place along an axis."""
    what = "fake_quantize_per_channel_affine"
    x = as_tensor(what, input)
    at = normal_axis(axis, x.ndim, what)
    vectors = as_tensor(what, scale), as_tensor(what, zero_point)
    if any(tuple(v.shape) != (x.shape[at],) for v in vectors):
        raise ShapeError.here(
            f"{what} of {tuple(x.shape)} along axis {at}, with scale "
            f"{tuple(scale.shape)} and zero_point {tuple(zero_point.shape)}; expected "
            "vectors of that axis"
        )
    placed = (f.reshape(v, -1, *(1,) * (x.ndim - at - 1)) for v in vectors)
    return _nearest(x, next(placed), next(placed), (quant_min, quant_max))


def _nearest(x: Any, scale: Any, zero: Any, ends: tuple[int, int]) -> Any:
    """Each number over its scale is rounded, of two integers to the even one."""
    least, most = (integer(n, "an end of a range of integers") for n in ends)
    known = least if isinstance(zero, Tensor) else zero
    if not least <= known <= most:
        raise ShapeError.here(
            f"fake_quantize to integers from {least} to {most} with zero_point={zero}; "
            "expected one of them"
        )
    given, x = x, f.to(x, promote(x.handle.value.dtype, f32))
    if isinstance(scale, Tensor):
        steps = 1 / scale
    else:
        steps, scale = float(1 / np.float32(scale)), float(np.float32(scale))
    if isinstance(zero, Tensor):
        # An integer for 0 that has a fraction is added before it is rounded.
        whole = not is_float(zero)
        zero = f.to(zero, x)
        found = rint(x * steps) + zero if whole else rint(x * steps + zero)
    else:
        found = rint(x * steps) + zero
    return f.to((f.clamp(found, least, most) - zero) * scale, given)


QUANTIZING: Mapping[str, Callable[..., Any]] = {
    "fake_quantize_per_channel_affine": of_channels,
    "fake_quantize_per_tensor_affine": of_tensor,
}
"""By PyTorch's names."""
