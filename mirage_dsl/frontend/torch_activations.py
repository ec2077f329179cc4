"""PyTorch's activations, made of operators; with its arguments."""

from __future__ import annotations

from typing import Any

from mirage_dsl.errors import ShapeError, UnsupportedError
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.location import user_location

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def refuse_inplace(name: str, inplace: bool) -> None:
    """Refuse to change an argument.

    Raises:
        UnsupportedError: That is asked for.
    """
    if inplace:
        raise UnsupportedError(
            f"{name}(inplace=True) cannot be traced; leave it at its default",
            user_location(),
        )


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """The tensor, times a slope where it is negative."""
    refuse_inplace("leaky_relu", inplace)
    return f.where(f.greater(x, 0), x, x * negative_slope)


def elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """The tensor, and alpha (exp(x) - 1) where it is negative."""
    refuse_inplace("elu", inplace)
    return f.where(f.greater(x, 0), x, alpha * (f.exp(f.minimum(x, 0)) - 1))


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """The value of log(1 + exp(beta x)) / beta, at any x without overflow."""
    scaled = x * beta
    near = f.log(1 + f.exp(-f.abs(scaled)))
    found = (f.maximum(scaled, 0) + near) / beta
    # Beyond the threshold PyTorch takes x itself; beyond 20 they are the same in f32.
    return found if threshold >= 20 else f.where(f.greater(scaled, threshold), x, found)


def relu6(x: Any, inplace: bool = False) -> Any:
    """The tensor between 0 and 6."""
    refuse_inplace("relu6", inplace)
    return f.clamp(x, 0, 6)


def hardsigmoid(x: Any, inplace: bool = False) -> Any:
    """The tensor plus 3 between 0 and 6, over 6."""
    refuse_inplace("hardsigmoid", inplace)
    return f.clamp(x + 3, 0, 6) / 6


def hardswish(x: Any, inplace: bool = False) -> Any:
    """The tensor times its hardsigmoid."""
    refuse_inplace("hardswish", inplace)
    return x * hardsigmoid(x)


def mish(x: Any, inplace: bool = False) -> Any:
    """The tensor times the tanh of its softplus."""
    refuse_inplace("mish", inplace)
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


def log_sigmoid(x: Any) -> Any:
    """The logarithm of the sigmoid, at any x without overflow."""
    return f.minimum(x, 0) - f.log(1 + f.exp(-f.abs(x)))


def selu(x: Any, inplace: bool = False) -> Any:
    """The scaled elu whose outputs normalise themselves."""
    refuse_inplace("selu", inplace)
    return SELU_SCALE * elu(x, SELU_ALPHA)


def celu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """The tensor, and alpha (exp(x / alpha) - 1) where it is negative."""
    refuse_inplace("celu", inplace)
    return alpha * elu(x / alpha)


def prelu(x: Any, weight: Any) -> Any:
    """The tensor, times a weight where it is negative: of all, or of each of axis 1."""
    if weight.ndim and x.ndim > 1:
        weight = v.reshape(weight, (-1,) + (1,) * (x.ndim - 2))
    return f.where(f.greater(x, 0), x, x * weight)


def hardtanh(
    x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Any:
    """The tensor between two limits."""
    refuse_inplace("hardtanh", inplace)
    return f.clamp(x, min_val, max_val)


def threshold(x: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """The tensor where it is larger than the threshold, else the value."""
    refuse_inplace("threshold", inplace)
    return f.where(f.less_equal(x, threshold), value, x)


def softsign(x: Any) -> Any:
    """The tensor over one plus its absolute value."""
    return x / (1 + f.abs(x))


def tanhshrink(x: Any) -> Any:
    """The tensor less its tanh."""
    return x - f.tanh(x)


def hardshrink(x: Any, lambd: float = 0.5) -> Any:
    """The tensor, and 0 where it is that close to 0."""
    return f.where(f.less_equal(f.abs(x), lambd), 0, x)


def softshrink(x: Any, lambd: float = 0.5) -> Any:
    """The tensor moved towards 0 by so much, at most to 0."""
    return x - f.clamp(x, -lambd, lambd)


ACTIVATIONS = {
    "celu": celu,
    "elu": elu,
    "glu": glu,
    "hardshrink": hardshrink,
    "hardsigmoid": hardsigmoid,
    "hardswish": hardswish,
    "hardtanh": hardtanh,
    "leaky_relu": leaky_relu,
    "log_sigmoid": log_sigmoid,
    "mish": mish,
    "prelu": prelu,
    "relu6": relu6,
    "selu": selu,
    "softplus": softplus,
    "softshrink": softshrink,
    "softsign": softsign,
    "tanhshrink": tanhshrink,
    "threshold": threshold,
}
"""By PyTorch's names."""
