"""Functions that PyTorch has and NumPy lacks, made of operators; with its arguments.

`interop` finds them by name, for calls as functions and as methods of a traced tensor.
"""

from __future__ import annotations

import math
from typing import Any

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.torch_activations import ACTIVATIONS, refuse_inplace


def softmax_arguments(x: Any, dim: Any, third: Any, dtype: Any) -> tuple[int, Any]:
    """The axis, and the dtype to compute in.

    Args:
        x: The tensor.
        dim: PyTorch chooses the axis where it is None.
        third: What stands third: in `torch` a dtype, in `torch.nn.functional` a level
            of the call stack, which is a number.
        dtype: As a keyword.
    """
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
    return dim, third if dtype is None and not isinstance(third, int) else dtype


def log_softmax(x: Any, dim: Any = None, third: Any = None, dtype: Any = None) -> Any:
    """The logarithm of `softmax`."""
    axis, dtype = softmax_arguments(x, dim, third, dtype)
    x = x if dtype is None else v.astype(x, dtype)
    shifted = x - f.max(x, axis, keepdims=True)
    return shifted - f.log(f.sum(f.exp(shifted), axis, keepdims=True))


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials."""
    top = f.max(x, dim, keepdims=True)
    found = top + f.log(f.sum(f.exp(x - top), dim, keepdims=True))
    return found if keepdim else v.squeeze(found, shapes.normal_axes(dim, x.ndim, "it"))


def vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """The Euclidean norm of a tensor's elements."""
    x = x if dtype is None else v.astype(x, dtype)
    return c.euclidean(f"a norm of order {ord}", x, ord, dim, keepdim)


def linalg_norm(
    x: Any,
    ord: Any = None,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """The Euclidean norm of vectors, or of all elements."""
    x = x if dtype is None else v.astype(x, dtype)
    what = f"torch.linalg.norm of order {ord}"
    return c.euclidean(what, x, ord, dim, keepdim, matrices=True)


def norm(
    x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """The Euclidean norm, with the arguments of `torch.norm`."""
    return vector_norm(x, p, dim, keepdim, dtype=dtype)


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


def _reduced(what: str, each: Any, reduction: str) -> Any:
    """A loss of each element, their mean or their sum."""
    if reduction not in ("none", "mean", "sum"):
        raise UnsupportedError(
            f"{what}: reduction={reduction!r}; expected 'mean', 'sum' or 'none'",
            user_location(),
        )
    if reduction == "none":
        return each
    return f.sum(each) if reduction == "sum" else f.mean(each)


def mse_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squares of differences: their mean, their sum, or each."""
    return _reduced("mse_loss", f.square(x - target), reduction)


def l1_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Absolute differences: their mean, their sum, or each."""
    return _reduced("l1_loss", f.abs(x - target), reduction)


def huber_loss(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Half of the squares of differences up to delta, beyond it delta times as much."""
    far = f.abs(x - target)
    near = f.minimum(far, delta)
    return _reduced("huber_loss", near * (far - 0.5 * near), reduction)


def smooth_l1_loss(
    x: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """The huber loss over beta; absolute differences if that is 0."""
    if not beta:
        return l1_loss(x, target, reduction=reduction)
    return huber_loss(x, target, reduction, beta) / beta


def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The product along an axis over both norms, which count as eps at least."""
    norms = (f.maximum(c.norm(t, dim), eps) for t in (x, y))
    return f.sum(x * y, dim) / f.mul(*norms)


def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """The tensor plus value times a over b."""
    return x + (a / b if value == 1 else a * value / b)


def dropout(
    x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """The same tensor, where nothing is dropped."""
    refuse_inplace("dropout", inplace)
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


def type_as(x: Any, other: Any) -> Any:
    """The tensor in the dtype of another one."""
    return v.astype(x, other)


FUNCTIONS = {
    **ACTIVATIONS,
    "addcdiv": addcdiv,
    "addcmul": addcmul,
    "clamp_max": clamp_max,
    "clamp_min": clamp_min,
    "cosine_similarity": cosine_similarity,
    "dim": dim,
    "dropout": dropout,
    "expand_as": expand_as,
    "huber_loss": huber_loss,
    "l1_loss": l1_loss,
    "lerp": lerp,
    "linalg_norm": linalg_norm,
    "linalg_vector_norm": vector_norm,
    "log_softmax": log_softmax,
    "logsumexp": logsumexp,
    "mse_loss": mse_loss,
    "norm": norm,
    "normalize": normalize,
    "numel": numel,
    "select": select,
    "smooth_l1_loss": smooth_l1_loss,
    "type_as": type_as,
    "var_mean": var_mean,
}
"""By PyTorch's names."""
