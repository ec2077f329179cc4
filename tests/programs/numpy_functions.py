"""The functions of mirage written with NumPy alone, as an independent reference.

Test programs take a namespace of functions; with this one they compute on arrays.
"""

# Arrays of any float dtype go in and come out, as with NumPy's own functions.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

abs = np.abs
exp = np.exp
log = np.log
sqrt = np.sqrt
square = np.square
tanh = np.tanh
maximum = np.maximum
minimum = np.minimum
where = np.where
matmul = np.matmul
sum = np.sum
mean = np.mean
max = np.max
reshape = np.reshape
squeeze = np.squeeze
expand_dims = np.expand_dims
concat = np.concatenate


def transpose(x: Any, order: Sequence[int]) -> Any:
    """Axes in the given order."""
    return np.transpose(x, order)


def rsqrt(x: Any) -> Any:
    """One over the square root."""
    return 1 / np.sqrt(x)


def relu(x: Any) -> Any:
    """The larger of x and 0."""
    return np.maximum(x, 0)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu(x: Any) -> Any:
    """The input times its sigmoid."""
    return x * sigmoid(x)


def erf(x: Any) -> Any:
    """The error function."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def gelu(x: Any) -> Any:
    """The input times the normal distribution's probability of less."""
    return x * (1 + erf(x / math.sqrt(2))) / 2


def clamp(x: Any, low: float, high: float) -> Any:
    """The input limited from below and above."""
    return np.clip(x, low, high)


def softmax(x: Any, axis: int = -1) -> Any:
    """Exponentials over their sum."""
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def rms_norm(x: Any, weight: Any = None, eps: float = 1e-6) -> Any:
    """The input over its root mean square along the last axis."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-6) -> Any:
    """The input with mean 0 and variance 1 along the last axis."""
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def group_norm(x: Any, groups: int, eps: float = 1e-6) -> Any:
    """Each group of channels (axis 1) with mean 0 and variance 1."""
    flat = x.reshape(x.shape[0], groups, -1)
    return layer_norm(flat, eps=eps).reshape(x.shape)


def batch_norm(x: Any, eps: float = 1e-6) -> Any:
    """Each channel (axis 1) with mean 0 and variance 1."""
    over = (0, *range(2, x.ndim))
    variance = x.var(over, keepdims=True)
    return (x - x.mean(over, keepdims=True)) / np.sqrt(variance + eps)
