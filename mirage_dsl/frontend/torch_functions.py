"""Functions that PyTorch has and NumPy lacks, made of operators; with its arguments.

`interop` finds them by name, for calls as functions and as methods of a traced tensor.
"""

from __future__ import annotations

import math
from typing import Any

from mirage_dsl.errors import ShapeError, UnsupportedError
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.location import user_location


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """The tensor, times a slope where it is negative."""
    _refuse_inplace("leaky_relu", inplace)
    return f.where(f.greater(x, 0), x, x * negative_slope)


def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """The tensor, and alpha (exp(x) - 1) where it is negative."""
    _refuse_inplace("elu", inplace)
    return f.where(f.greater(x, 0), x, alpha * (f.exp(f.minimum(x, 0)) - 1))


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """The value of log(1 + exp(beta x)) / beta, at any x without overflow."""
    del threshold  # Beyond which PyTorch takes x itself, for the same reason.
    scaled = x * beta
    near = f.log(1 + f.exp(-f.abs(scaled)))
    return (f.maximum(scaled, 0) + near) / beta


def relu6(x: Any, inplace: bool = False) -> Any:
    """The tensor between 0 and 6."""
    _refuse_inplace("relu6", inplace)
    return f.clamp(x, 0, 6)


def hardsigmoid(x: Any, inplace: bool = False) -> Any:
    """The tensor plus 3 between 0 and 6, over 6."""
    _refuse_inplace("hardsigmoid", inplace)
    return f.clamp(x + 3, 0, 6) / 6


def hardswish(x: Any, inplace: bool = False) -> Any:
    """The tensor times its hardsigmoid."""
    _refuse_inplace("hardswish", inplace)
    return x * hardsigmoid(x)


def mish(x: Any, inplace: bool = False) -> Any:
    """The tensor times the tanh of its softplus."""
    _refuse_inplace("mish", inplace)
    return x * f.tanh(softplus(x))


def glu(x: Any, dim: int = -1) -> Any:
    """The first half of an axis times the sigmoid of the second."""
    if int(x.shape[dim]) % 2:
        raise ShapeError(
            f"glu of an axis of extent {x.shape[dim]}, which has no halves",
            user_location(),
        )
    a, b = v.chunk(x, 2, dim)
    return a * f.sigmoid(b)


def log_softmax(x: Any, dim: Any = None, *_: Any, dtype: Any = None) -> Any:
    """The logarithm of `softmax`."""
    x = x if dtype is None else v.astype(x, dtype)
    axis = -1 if dim is None else dim
    shifted = x - f.max(x, axis, keepdims=True)
    return shifted - f.log(f.sum(f.exp(shifted), axis, keepdims=True))


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials."""
    top = f.max(x, dim, keepdims=True)
    found = top + f.log(f.sum(f.exp(x - top), dim, keepdims=True))
    return found if keepdim else v.squeeze(found, shapes.normal_axes(dim, x.ndim, "it"))


def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Any:
    """The Euclidean norm."""
    if ord not in (None, 2, "fro"):
        raise UnsupportedError(
            f"a norm of order {ord} cannot be traced; use the Euclidean norm",
            user_location(),
        )
    return c.norm(x, dim, keepdim)


def normalize(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """The tensor over its norm along an axis, which counts as eps at least."""
    return x / f.maximum(vector_norm(x, p, dim, keepdim=True), eps)


def var_mean(x: Any, dim: Any = None, **options: Any) -> Any:
    """Variance and mean."""
    keepdim = options.get("keepdim", False)
    options.setdefault("correction", int(options.pop("unbiased", True)))
    return c.var(x, dim, **options), f.mean(x, dim, keepdims=keepdim)


def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """The tensor plus value times a times b."""
    return x + (a * b if value == 1 else a * b * value)


def lerp(x: Any, end: Any, weight: Any) -> Any:
    """The point at `weight` of the way from one tensor to another."""
    return x + (end - x) * weight


def mse_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squares of differences: their mean, their sum, or each."""
    squares = f.square(x - target)
    if reduction == "none":
        return squares
    return f.sum(squares) if reduction == "sum" else f.mean(squares)


def dropout(
    x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """The same tensor, where nothing is dropped."""
    _refuse_inplace("dropout", inplace)
    if training and p:
        raise UnsupportedError(
            f"dropout with p={p} while training: kernels have no random numbers; call "
            "it with training=False",
            user_location(),
        )
    return x


def clamp_min(x: Any, min: Any) -> Any:
    """The tensor limited from below."""
    return f.clamp(x, min=min)


def clamp_max(x: Any, max: Any) -> Any:
    """The tensor limited from above."""
    return f.clamp(x, max=max)


def expand_as(x: Any, other: Any) -> Any:
    """The tensor expanded to the shape of another one."""
    return v.expand(x, *other.shape)


def select(x: Any, dim: int, index: int) -> Any:
    """One slice along an axis, without it."""
    at = shapes.normal_axis(dim, x.ndim, "select")
    return x[(slice(None),) * at + (index,)]


def dim(x: Any) -> int:
    """Number of axes."""
    return x.ndim


def numel(x: Any) -> int:
    """Number of elements."""
    return math.prod(int(e) for e in x.shape)


def _refuse_inplace(name: str, inplace: bool) -> None:
    if inplace:
        raise UnsupportedError(
            f"{name}(inplace=True) cannot be traced; leave it at its default",
            user_location(),
        )


def type_as(x: Any, other: Any) -> Any:
    """The tensor in the dtype of another one."""
    return v.astype(x, other)


FUNCTIONS = {
    "addcmul": addcmul,
    "clamp_max": clamp_max,
    "clamp_min": clamp_min,
    "dim": dim,
    "dropout": dropout,
    "elu": elu,
    "expand_as": expand_as,
    "glu": glu,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "leaky_relu": leaky_relu,
    "lerp": lerp,
    "linalg_norm": vector_norm,
    "linalg_vector_norm": vector_norm,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "mish": mish,
    "mse_loss": mse_loss,
    "normalize": normalize,
    "numel": numel,
    "relu6": relu6,
    "select": select,
    "softplus": softplus,
    "type_as": type_as,
    "var_mean": var_mean,
}
"""By PyTorch's names."""
