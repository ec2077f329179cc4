"""PyTorch's losses and distances, with its arguments, as formulas of operators.

Losses of labels, which are integers, stand elsewhere: they gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from mirage_dsl.core.errors import UnsupportedError, user_location
from mirage_dsl.core.types import f32, promote
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.elementary import log1p, xlogy


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


def _weighted(each: Any, weight: Any) -> Any:
    return each if weight is None else each * weight


# -- Of differences --------------------------------------------------------------------


def mse_loss(
    x: Any, target: Any, *, reduction: str = "mean", weight: Any = None
) -> Any:
    """Squares of differences: their mean, their sum, or each."""
    return _reduced("mse_loss", _weighted(f.square(x - target), weight), reduction)


def l1_loss(x: Any, target: Any, *, reduction: str = "mean", weight: Any = None) -> Any:
    """Absolute differences: their mean, their sum, or each."""
    return _reduced("l1_loss", _weighted(f.abs(x - target), weight), reduction)


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


# -- Of probabilities ------------------------------------------------------------------

_LEAST_LOG = -100.0
"""What PyTorch takes for the logarithm of a probability of 0."""


def kl_div(
    x: Any, target: Any, *, reduction: str = "mean", log_target: bool = False
) -> Any:
    """The divergence of `target` from what has the logarithm x."""
    if log_target:
        each = f.exp(target) * (target - x)
    else:
        each = xlogy(target, target) - target * x
    if reduction == "batchmean":
        return f.sum(each) / x.shape[0]
    return _reduced("kl_div", each, reduction)


def binary_cross_entropy(
    x: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """Minus the logarithm of the probability that x gives to a target of 0 and 1."""
    yes, no = (f.maximum(log, _LEAST_LOG) for log in (f.log(x), log1p(-x)))
    each = _weighted((target - 1) * no - target * yes, weight)
    return _reduced("binary_cross_entropy", each, reduction)


def binary_cross_entropy_with_logits(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> Any:
    """The same of the sigmoid of x, at any x without overflow."""
    rest = _softplus(-x)
    if pos_weight is not None:
        rest = rest * ((pos_weight - 1) * target + 1)
    each = _weighted((1 - target) * x + rest, weight)
    return _reduced("binary_cross_entropy_with_logits", each, reduction)


def _softplus(x: Any) -> Any:
    return f.maximum(x, 0) + log1p(f.exp(-f.abs(x)))


def multilabel_soft_margin_loss(
    x: Any, target: Any, weight: Any = None, *, reduction: str = "mean"
) -> Any:
    """The mean of the cross entropy along the last axis."""
    each = target * _softplus(-x) + (1 - target) * _softplus(x)
    each = f.mean(_weighted(each, weight), -1)
    return _reduced("multilabel_soft_margin_loss", each, reduction)


def soft_margin_loss(x: Any, target: Any, *, reduction: str = "mean") -> Any:
    """The logarithm of one plus exp(-target x), for targets of 1 and -1."""
    return _reduced("soft_margin_loss", _softplus(-target * x), reduction)


def gaussian_nll_loss(
    x: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Minus the logarithm of a normal density, without its constant unless `full`."""
    varies = hasattr(var, "ndim")
    if varies and var.ndim == x.ndim - 1 and tuple(var.shape) == tuple(x.shape)[:-1]:
        var = var.unsqueeze(-1)
    var = f.maximum(var, eps) if varies else max(var, eps)
    log = f.log(var) if varies else math.log(var)
    each = 0.5 * (log + f.square(x - target) / var)
    if full:
        each = each + 0.5 * math.log(2 * math.pi)
    return _reduced("gaussian_nll_loss", each, reduction)


def poisson_nll_loss(
    x: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Minus the logarithm of a Poisson density, its factorial by Stirling if `full`."""
    each = f.exp(x) - target * x if log_input else x - target * f.log(x + eps)
    if full:
        more = f.maximum(target, 1)
        log = f.log(more)
        rest = more * log - more + 0.5 * (log + math.log(2 * math.pi))
        each = each + f.where(f.greater(target, 1), rest, 0.0)
    return _reduced("poisson_nll_loss", each, reduction)


# -- Of distances ----------------------------------------------------------------------


def pairwise_distance(
    x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    """The norm of the difference, plus eps, along the last axis."""
    return c.vector_norm(x - y + eps, p, -1, keepdim)


def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Any:
    """By how much the negative is not farther off than the positive and a margin."""

    def distance(x: Any, y: Any) -> Any:
        return pairwise_distance(x, y, p, eps)

    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=distance,
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """The same by a distance of one's own."""
    distance = distance_function or pairwise_distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = f.minimum(far, distance(positive, negative))
    return _reduced("triplet_margin_loss", f.maximum(near - far + margin, 0), reduction)


def margin_ranking_loss(
    x: Any, y: Any, target: Any, margin: float = 0, *, reduction: str = "mean"
) -> Any:
    """By how much x is not above y (target 1), or below it (-1), by a margin."""
    each = f.maximum(margin - target * (x - y), 0)
    return _reduced("margin_ranking_loss", each, reduction)


def hinge_embedding_loss(
    x: Any, target: Any, margin: float = 1.0, *, reduction: str = "mean"
) -> Any:
    """X where the target is 1; where it is -1, by how much x is below a margin."""
    far = f.where(f.equal(target, 1), 0.0, f.maximum(margin - x, 0))
    each = far + f.where(f.equal(target, -1), 0.0, x)
    return _reduced("hinge_embedding_loss", each, reduction)


_LEAST_SQUARE = 1e-12


def cosine_embedding_loss(
    x: Any, y: Any, target: Any, margin: float = 0, *, reduction: str = "mean"
) -> Any:
    """One less the cosine (target 1), or by how much it is above a margin (-1)."""
    sizes = (f.sum(f.square(t), -1) + _LEAST_SQUARE for t in (x, y))
    cosine = f.sum(x * y, -1) / f.sqrt(f.mul(*sizes))
    far = f.where(f.equal(target, -1), f.maximum(cosine - margin, 0), 0.0)
    each = far + f.where(f.equal(target, 1), 1 - cosine, 0.0)
    return _reduced("cosine_embedding_loss", each, reduction)


def cosine_similarity(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The product along an axis over both norms, which count as eps at least.

    As in PyTorch each is divided by its norm first, and squares are those of f32: the
    product of two that are long may be beyond their format.
    """
    x, y = f.as_tensor("cosine_similarity", x), f.as_tensor("cosine_similarity", y)
    directions = [_direction(t, dim, eps) for t in (x, y)]
    found = f.sum(f.mul(*directions), dim)
    return found.to(promote(x.handle.value.dtype, y.handle.value.dtype).long_name)


def _direction(x: Any, dim: int, eps: float) -> Any:
    """A tensor over its norm along an axis, in f32 or more."""
    x = x.to(promote(x.handle.value.dtype, f32).long_name)
    return x / f.maximum(c.norm(x, dim, keepdims=True), eps)


LOSSES: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        binary_cross_entropy,
        binary_cross_entropy_with_logits,
        cosine_embedding_loss,
        cosine_similarity,
        gaussian_nll_loss,
        hinge_embedding_loss,
        huber_loss,
        kl_div,
        l1_loss,
        margin_ranking_loss,
        mse_loss,
        multilabel_soft_margin_loss,
        pairwise_distance,
        poisson_nll_loss,
        smooth_l1_loss,
        soft_margin_loss,
        triplet_margin_loss,
        triplet_margin_with_distance_loss,
    )
}
"""By PyTorch's names."""
