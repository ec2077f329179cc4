"""The functions of `mirage` on plain NumPy arrays, in the arrays' own precision.

Written without the compiler, so that a test compares two independent computations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def exp(x: Array) -> Array:
    return np.exp(x)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softmax(x: Array, axis: int = -1) -> Array:
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def transpose(x: Array, axes: tuple[int, ...]) -> Array:
    return np.transpose(x, axes)


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Array:
    normed = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return normed if weight is None else normed * weight


def _standardise(x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-6
) -> Array:
    normed = _standardise(x, eps)
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def group_norm(x: Array, groups: int, eps: float = 1e-6) -> Array:
    """Groups of the second axis; (batch, channels, ...) as in PyTorch."""
    batch = x.shape[0]
    return _standardise(x.reshape(batch, groups, -1), eps).reshape(x.shape)


def batch_norm(x: Array, mean: Array, var: Array, eps: float = 1e-6) -> Array:
    """With given statistics, along the second axis."""
    shape = (1, -1) + (1,) * (x.ndim - 2)
    return (x - mean.reshape(shape)) / np.sqrt(var.reshape(shape) + eps)
