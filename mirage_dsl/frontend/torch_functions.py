"""Functions of PyTorch, with its arguments: what NumPy lacks, or has otherwise.

Each is a formula of other functions, so that the search sees what it consists of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations as all_combinations
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.types import Scalar, boolean, f32, i64
from mirage_dsl.frontend import composites as c
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_sequence
from mirage_dsl.frontend.constructors import CONSTRUCTORS, arange, positions
from mirage_dsl.frontend.elementary import expm1, log1p
from mirage_dsl.frontend.functions import (
    apply,
    as_operand,
    as_tensor,
    complement,
    formulas,
    named,
)
from mirage_dsl.frontend.layers import (
    LOSSES,
    multi_head_attention_forward,
    of_rows,
    reduced,
    require_reduction,
)
from mirage_dsl.frontend.linear_algebra import norm_of
from mirage_dsl.frontend.places import joined
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.recorder import (
    extents_given,
    flat_arguments,
    integer,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.tensor import NO_NUMBERS, Tensor, by_channels, refused
from mirage_dsl.ops.table import OPERATORS

# -- Activations -----------------------------------------------------------------------

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def elu(x: Any, alpha: float = 1.0) -> Any:
    """The tensor, and alpha (exp(x) - 1) where it is negative."""
    return f.where(f.greater(x, 0), x, alpha * expm1(f.minimum(x, 0)))


@c.within_f32
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """The value of log(1 + exp(beta x)) / beta, at any x without overflow."""
    scaled = x * beta
    near = log1p(f.exp(-f.abs(scaled))) / beta
    found = (f.maximum(x, 0) if beta > 0 else f.minimum(x, 0)) + near
    # Beyond the threshold PyTorch takes x itself; beyond 20 they are the same in f32.
    return found if threshold >= 20 else f.where(f.greater(scaled, threshold), x, found)


def rrelu(
    x: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Any:
    """The tensor, times the mean of two slopes where it is negative."""
    if training and lower != upper:
        raise UnsupportedError.here(
            "rrelu while training: kernels have no random numbers; call it with "
            "training=False"
        )
    return ACTIVATIONS["leaky_relu"](x, (lower + upper) / 2)


def mish(x: Any) -> Any:
    """The tensor times the tanh of its softplus.

    tanh log(1 + u) is (u² + 2 u) / (u² + 2 u + 2), here of e to the power -|x|: nothing
    overflows or cancels, and no logarithm is computed, which takes more instructions
    than all of this.
    """
    low = f.exp(-f.abs(x))
    positive = f.greater_equal(x, 0)
    most = f.where(positive, 1 + 2 * low, low * (low + 2))
    rest = f.where(positive, 2 * low * low, 2)
    return x * (most / (most + rest))


def glu(x: Any, dim: int = -1) -> Any:
    """The first half of an axis times the sigmoid of the second."""
    if int(x.shape[dim]) % 2:
        raise ShapeError.here(
            f"glu of an axis of extent {x.shape[dim]}, which has no halves"
        )
    a, b = f.chunk(x, 2, dim)
    return a * f.sigmoid(b)


def prelu(x: Any, weight: Any) -> Any:
    """The tensor, times a weight where it is negative: of all, or of each of axis 1.

    Raises:
        ShapeError: The weight has several axes.
    """
    if weight.ndim > 1:
        raise ShapeError.here(
            f"prelu with a weight of {shape_text(weight.handle)}; expected a number, "
            "or a vector with one for each channel"
        )
    if weight.ndim and x.ndim != 1:
        weight = c.per_channel(x, weight) if x.ndim else f.reshape(weight, ())
    return f.where(f.greater(x, 0), x, x * weight)


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """The tensor between two limits, of integers without their fractions.

    Raises:
        ShapeError: The lower limit is above the other one.
    """
    if min_val > max_val:
        raise ShapeError.here(
            f"hardtanh between {min_val} and {max_val}; expected the lower limit first"
        )
    if f.holds_integers(x):
        min_val, max_val = int(min_val), int(max_val)
    return f.clamp(x, min_val, max_val)


def threshold(x: Any, threshold: float, value: float) -> Any:
    """The tensor where it is larger than the threshold, else the value.

    PyTorch compares narrow floats with the number itself on a CPU, and on a GPU with
    the number in their format.
    """
    x = as_tensor("threshold", x)
    f.refuse_overflow("threshold", x, value)
    chosen = _above if x.is_cuda else c.within_f32(_above)
    return chosen(x, threshold, value)


def _above(x: Tensor, threshold: float, value: float) -> Any:
    return f.where(f.less_equal(x, threshold), value, x)


def softshrink(x: Any, lambd: float = 0.5) -> Any:
    """The tensor moved towards 0 by so much, at most to 0.

    Raises:
        ShapeError: The number is below 0.
    """
    if lambd < 0:
        raise ShapeError.here(
            f"softshrink by {lambd}; expected a number that is not below 0"
        )
    return x - f.clamp(x, -lambd, lambd)


ACTIVATIONS: Mapping[str, Function] = {
    **formulas(
        celu=lambda x, alpha=1.0: f.where(
            f.greater(x, 0), x, alpha * expm1(f.minimum(x, 0) / alpha)
        ),
        hardshrink=lambda x, lambd=0.5: f.where(f.less_equal(f.abs(x), lambd), 0, x),
        hardsigmoid=lambda x: f.clamp(x + 3, 0, 6) / 6,
        hardswish=lambda x: x * (f.clamp(x + 3, 0, 6) / 6),
        leaky_relu=lambda x, negative_slope=0.01: f.where(
            f.greater(x, 0), x, x * negative_slope
        ),
        log_sigmoid=lambda x: f.minimum(x, 0) - log1p(f.exp(-f.abs(x))),
        relu6=lambda x: f.clamp(x, 0, 6),
        selu=lambda x: SELU_SCALE * elu(x, SELU_ALPHA),
        softsign=lambda x: x / (1 + f.abs(x)),
        tanhshrink=lambda x: x - f.tanh(x),
    ),
    **named(elu, glu, hardtanh, mish, prelu, rrelu, softplus, softshrink, threshold),
}
"""By PyTorch's names."""


# -- Other functions -------------------------------------------------------------------
# `interop` finds them by name, for calls as functions and as methods of a traced
# tensor.


def _of_rows(formula: Callable[[Any, int], Any]) -> Function:
    """A function along an axis as `softmax`, with PyTorch's arguments.

    PyTorch chooses the axis where it is None.  What stands third is in `torch` a dtype
    to compute in, and in `torch.nn.functional` a level of the call stack.
    """

    def function(x: Any, dim: Any = None, third: Any = None, dtype: Any = None) -> Any:
        axis = (0 if x.ndim in (0, 1, 3) else 1) if dim is None else dim
        wanted = third if dtype is None and not isinstance(third, int) else dtype
        return formula(x if wanted is None else f.to(x, wanted), axis)

    return function


def _log_softmax(x: Any, axis: int) -> Any:
    """The logarithm of `softmax`."""
    shifted = x - f.max(x, axis, keepdims=True)
    return shifted - f.log(f.sum(f.exp(shifted), axis, keepdims=True))


def softmin(x: Any, dim: Any = None, third: Any = None, dtype: Any = None) -> Any:
    """The softmax of minus the tensor, in whose own dtype the minus is: u8 wraps."""
    return FUNCTIONS["softmax"](-x, dim, third, dtype)


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """The logarithm of the sum of exponentials; of infinite ones too."""
    x = f.as_floats(f.as_tensor("logsumexp", x))
    largest = x.handle.value.dtype.max
    top = f.clamp(f.max(x, dim, keepdims=True), -largest, largest)
    found = top + f.log(f.sum(f.exp(x - top), dim, keepdims=True))
    return found if keepdim else f.squeeze(found, normal_axes(dim, x.ndim, "it"))


def norm(
    x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Any:
    """A norm of all elements along axes, with the arguments of `torch.norm`."""
    if p == "nuc":
        x = x if dtype is None else f.to(x, dtype)
        axes = (-2, -1) if dim is None else dim
        return norm_of("torch.norm", x, p, axes, keepdim)
    order = 2 if p in ("fro", None) else p
    return c.vector_norm(x, order, dim, keepdim, dtype=dtype)


def normalize(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """The tensor over its norm along an axis, which counts as eps at least."""
    return x / f.maximum(c.vector_norm(x, p, dim, keepdim=True), eps)


def var(
    x: Any,
    dim: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The variance; of a sample unless `unbiased` is False or `correction` is 0."""
    if isinstance(dim, bool):
        # PyTorch's `var(unbiased)`.
        dim, unbiased = None, dim
    correction = int(unbiased) if correction is None else correction
    return c.var(x, dim, keepdim, correction=correction)


@c.within_f32
def std(x: Any, *args: Any, **options: Any) -> Any:
    """The root of the variance."""
    return f.sqrt(var(x, *args, **options))


def _with_mean(spread: Any) -> Any:
    """A function as `var_mean`."""

    def both(x: Any, dim: Any = None, *args: Any, **options: Any) -> Any:
        keepdim = options.get("keepdim", args[1] if args[1:] else False)
        axes = None if isinstance(dim, bool) else dim
        return spread(x, dim, *args, **options), f.mean(x, axes, keepdims=keepdim)

    return both


class MinMax(NamedTuple):
    """PyTorch's pair of the smallest and the largest element."""

    min: Any
    max: Any


def aminmax(x: Any, *, dim: Any = None, keepdim: bool = False) -> MinMax:
    """The smallest and the largest element, of all or along an axis."""
    return MinMax(f.min(x, dim, keepdim), f.max(x, dim, keepdim))


def addcmul(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """The tensor plus value times a times b."""
    return x + (a * b if value == 1 else a * b * value)


def lerp(x: Any, end: Any, weight: Any) -> Any:
    """The point at `weight` of the way from one tensor to another."""
    if isinstance(weight, int | float) and abs(weight) >= 0.5:
        # From the nearer end, as PyTorch: of infinities only that counts.
        return end - (end - x) * (1 - weight)
    return x + (end - x) * weight


def addcdiv(x: Any, a: Any, b: Any, *, value: Any = 1) -> Any:
    """The tensor plus value times a over b."""
    return x + (a / b if value == 1 else a * value / b)


def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """The same tensor, where nothing is dropped."""
    if training and p:
        raise UnsupportedError.here(
            f"dropout with p={p} while training: kernels have no random numbers; call "
            "it with training=False"
        )
    return x


def select(x: Any, dim: int, index: int) -> Any:
    """One slice along an axis, without it."""
    at = normal_axis(dim, x.ndim, "select")
    return x[(slice(None),) * at + (index,)]


def result_type(a: Any, b: Any) -> Any:
    """The dtype that an operator on both has."""
    import torch

    like = [
        torch.empty((1,) * x.ndim, dtype=x.dtype, device="meta")
        if isinstance(x, Tensor)
        else x
        for x in (a, b)
    ]
    return torch.result_type(*like)


def filled(
    x: Any, shape: Sequence[Any], value: Any, dtype: Any = None, device: Any = None
) -> Any:
    """A tensor of one number, in the dtype of `x` unless another one is given.

    Raises:
        TraceError: The value is no number.
        DTypeError: The dtype is none of ours.
    """
    if device is not None:
        x.stays(device)
    number = as_operand(value)
    if not isinstance(number, Scalar):
        raise TraceError.here("a tensor filled with a tensor; use expand")
    extents = extents_given(shape)
    made = x.recorder.full(extents, number, x.handle.value.dtype)
    found = f.to(Tensor.made(x.recorder, made, ()), dtype or x)
    if tuple(found.shape) == tuple(x.shape):
        found.memory.like = x.handle
    return found


_PLAIN = ("layout", "memory_format", "order", "pin_memory", "requires_grad", "subok")
"""Arguments of constructors that say nothing of the values."""


def _without_place(options: Mapping[str, Any]) -> dict[str, Any]:
    return {n: o for n, o in options.items() if n not in _PLAIN}


def _new(value: float) -> Any:
    """A method as `new_zeros`."""

    def new(x: Any, *shape: Any, **options: Any) -> Any:
        sizes = options.pop("size", None) or flat_arguments(shape)
        return filled(x, sizes, value, **_without_place(options))

    return new


def _like(value: float) -> Any:
    """A function as `zeros_like`."""

    def like(x: Any, dtype: Any = None, **options: Any) -> Any:
        return full_like(x, value, dtype, **options)

    return like


def new_full(x: Any, size: Any, fill_value: Any, **options: Any) -> Any:
    """A tensor of a shape that holds one number."""
    found = filled(x, tuple(size), fill_value, **_without_place(options))
    f.refuse_overflow("new_full", found, fill_value)
    return found


def new_tensor(x: Any, data: Any, dtype: Any = None, **options: Any) -> Any:
    """PyTorch's `tensor` of numbers, also of NumPy's arrays, in the tensor's dtype."""
    own = _without_place(options)
    if isinstance(data, bool | int | float):
        return filled(x, (), data, dtype, **own)
    return f.to(CONSTRUCTORS["tensor"](data, device=own.get("device")), dtype or x)


def full_like(x: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Any:
    """A tensor of the same shape that holds one number, in the same order of axes."""
    found = filled(x, x.shape, fill_value, dtype, **_without_place(options))
    f.refuse_overflow("full_like", found, fill_value)
    by_rows = x.ordered and not by_channels(options.get("memory_format"))
    found.memory.row_major &= by_rows
    return found


FILLED = {
    "empty_like": _like(0),
    "full_like": full_like,
    "ones_like": _like(1),
    "zeros_like": _like(0),
}
"""By the names that PyTorch and NumPy share."""


def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """Weights of a direction and a length for each index of an axis; of all for -1."""
    axes = [axis for axis in range(v.ndim) if axis != dim or dim == -1]
    return v * (g / c.norm(v, axis=axes, keepdims=True))


_QUESTIONS = (
    "dim element_size get_device is_complex is_conj is_floating_point is_neg is_signed "
    "ndimension nelement numel"
)

_DROPOUTS = (
    "alpha_dropout dropout dropout1d dropout2d dropout3d feature_alpha_dropout "
    "feature_dropout"
)
# -- Labels ----------------------------------------------------------------------------


def embedding(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    *_: Any,
    **__: Any,
) -> Any:
    """The rows of a matrix at the indices; padding matters to gradients alone."""
    del padding_idx
    if max_norm is not None:
        raise UnsupportedError.here(
            "embedding with max_norm, which changes the weight; normalise it outside"
        )
    return f.embedding(f.none_below_zero(input, weight, 0), weight)


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The sum, the mean or the maximum of a matrix's rows at the indices of each bag.

    A bag is a row of indices, or goes from one offset to the next.

    Raises:
        UnsupportedError: These are not its arguments.
        ShapeError: Neither are its bags.
    """
    del norm_type, scale_grad_by_freq, sparse
    _check_bags(mode, per_sample_weights is not None)
    padding = padding_idx
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    kept = None if padding is None else f.not_equal(input, padding)
    rows = embedding(input, weight, max_norm=max_norm)
    if per_sample_weights is not None:
        rows = rows * f.unsqueeze(per_sample_weights, -1)
    if input.ndim == 2 and offsets is None:
        if kept is None:
            return c.within_f32(_OF_BAGS[mode])(rows, 1)
        return _without_padding(rows, kept, mode)
    if input.ndim != 1 or getattr(offsets, "ndim", 0) != 1:
        raise ShapeError.here(
            f"embedding_bag of indices {tuple(input.shape)}; expected a row for each "
            "bag, or a vector with offsets, a vector too"
        )
    count = integer(offsets.shape[0], "an extent") - bool(include_last_offset)
    begun = f.less_equal(
        f.expand_dims(offsets[:count], 1), f.to(positions(input, -1), offsets)
    )
    bag = f.sum(begun, 0, dtype="int64") - 1
    return _of_offsets(rows, bag, count, kept, mode)


@c.within_f32
def _of_offsets(rows: Any, bag: Any, count: int, kept: Any, mode: str) -> Any:
    """The sum, the mean or the maximum of the rows of each bag.

    Args:
        rows: The rows.
        bag: The number of each row's bag.
        count: Of bags.
        kept: Which rows count, None if all do.
        mode: PyTorch's name.
    """
    kept = f.greater_equal(bag, 0) if kept is None else kept
    kept = f.expand_dims(kept, -1)
    none = -math.inf if mode == "max" else 0.0
    found = joined(f.where(kept, rows, none), bag, count, _JOINED_BY[mode])
    if mode == "sum":
        return found
    there = joined(f.to(kept, rows), bag, count)
    if mode == "max":
        return f.where(f.greater(there, 0), found, 0.0)
    return found / f.maximum(there, 1)


_JOINED_BY = {"sum": "sum", "mean": "sum", "max": "amax"}


@c.within_f32
def _without_padding(rows: Any, kept: Any, mode: str) -> Any:
    """The same of the rows that are kept, along axis 1; 0 where there are none."""
    kept = f.unsqueeze(kept, -1)
    if mode == "max":
        found = f.max(f.where(kept, rows, -math.inf), 1)
        return f.where(f.max(kept, 1), found, 0.0)
    total = f.sum(f.where(kept, rows, 0.0), 1)
    if mode == "sum":
        return total
    return total / f.maximum(f.sum(kept, 1, dtype=rows.dtype), 1)


_OF_BAGS = {"sum": f.sum, "mean": f.mean, "max": f.max}


def _check_bags(mode: str, weighted: bool) -> None:
    """Refuse a mode that there is not, or not with such arguments."""
    if mode not in _OF_BAGS:
        raise UnsupportedError.here(
            f"embedding_bag: mode={mode!r}; expected 'sum', 'mean' or 'max'"
        )
    if mode != "sum" and weighted:
        raise UnsupportedError.here(
            f"embedding_bag: per_sample_weights with mode={mode!r}; they go with 'sum'"
        )


def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """Minus the logarithmic probabilities of labels, of rows that are not ignored."""
    require_reduction("nll_loss", reduction)
    if input.ndim == 1:
        given = (weight, ignore_index, reduction)
        return _of_one_row(nll_loss, input, target, given)
    return _of_labels(input, target, weight, ignore_index, reduction, 0.0)


def _of_one_row(
    loss: Callable[..., Any], x: Any, target: Any, given: tuple[Any, ...]
) -> Any:
    """A loss of classes without an axis of rows."""
    found = loss(f.expand_dims(x, 0), f.expand_dims(target, 0), *given)
    return of_rows(loss.__name__, found, "none", single=True)


def _of_labels(
    x: Any, target: Any, weight: Any, ignored: int, reduction: str, smoothing: float
) -> Any:
    """Losses by labels of logarithmic probabilities, of which axis 1 is of classes.

    Those of ignored labels are 0.  Each counts as much as its class does; with
    smoothing, a share of it is the mean over all classes.
    """
    shape = x.handle.shape
    rows = (*shape[:1], *shape[2:])
    pairs = zip(target.handle.shape, rows, strict=False)
    if (
        x.ndim < 2
        or target.ndim != len(rows)
        or any(None not in pair and pair[0] != pair[1] for pair in pairs)
    ):
        raise ShapeError.here(
            f"labels {tuple(target.shape)} for {tuple(x.shape)}; expected the shape "
            "without axis 1, which is of classes, behind one of rows"
        )
    # As PyTorch's: of labels without a sign none is below 0.
    target = f.to(target, i64)
    counted = f.not_equal(target, ignored)
    label = f.none_below_zero(f.where(counted, target, 0), x, 1)
    found = -f.squeeze(f.take_along_dim(x, f.expand_dims(label, 1), 1), 1)
    share = None if weight is None else f.index_select(weight, 0, label)
    found = found if share is None else found * share
    if smoothing:
        every = f.mean(x if share is None else x * c.per_channel(x, weight), 1)
        found = found * (1 - smoothing) - every * smoothing
    found = f.where(counted, found, 0.0)
    if reduction != "mean":
        return reduced("a loss of labels", found, reduction)
    if share is None:
        return f.sum(found) / f.sum(counted, dtype=x.dtype)
    return f.sum(found) / f.sum(f.where(counted, share, 0.0))


def _of_probabilities(
    x: Any, target: Any, weight: Any, reduction: str, smoothing: float
) -> Any:
    """Losses by probabilities of classes, of logarithmic ones."""
    if target.shape != x.shape or x.ndim < 2:
        raise ShapeError.here(
            f"probabilities {tuple(target.shape)} for {tuple(x.shape)}; expected one "
            "for each class of each row, or labels of integers"
        )
    if smoothing:
        target = target * (1 - smoothing) + smoothing / x.shape[1]
    each = x * target
    found = -f.sum(each if weight is None else each * c.per_channel(x, weight), 1)
    return reduced("cross_entropy", found, reduction)


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Minus the logarithm of the softmax at labels, or by probabilities."""
    require_reduction("cross_entropy", reduction)
    if input.ndim == 1:
        given = (weight, ignore_index, reduction, label_smoothing)
        return _of_one_row(cross_entropy, input, target, given)
    found = _log_softmax(input, 1)
    if not target.handle.value.dtype.is_integer:
        return _of_probabilities(found, target, weight, reduction, label_smoothing)
    return _of_labels(found, target, weight, ignore_index, reduction, label_smoothing)


# -- Products of floats of 8 bits ------------------------------------------------------


def scaled_mm(
    input: Any,
    mat2: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """The product of two matrices of 8-bit floats, each times its scale, in f32.

    A scale is one number for the whole matrix, or one for each row of the first and for
    each column of the second: what PyTorch's `torch._scaled_mm` takes.

    Raises:
        DTypeError: The matrices or the scales are of other dtypes.
        ShapeError: The scales are neither one number nor one for each row and column.
        UnsupportedError: The result has a scale, or these are not its arguments.
    """
    del use_fast_accum
    if scale_result is not None:
        raise UnsupportedError.here("scaled_mm with scale_result; multiply the result")
    x, other = as_tensor("scaled_mm", input), as_tensor("scaled_mm", mat2)
    scales = as_tensor("scaled_mm", scale_a), as_tensor("scaled_mm", scale_b)
    by_row, by_column = _scales_of(x, other, *scales)
    product = f.matmul(f.to(x, f32), f.to(other, f32))
    found = product * by_row * by_column
    if bias is not None:
        found = found + f.to(bias, f32)
    return f.to(found, x if out_dtype is None else out_dtype)


def _scales_of(
    x: Tensor, other: Tensor, by_row: Tensor, by_column: Tensor
) -> tuple[Tensor, Tensor]:
    """The scales of two matrices, as they multiply the product."""
    dtypes = [t.handle.value.dtype for t in (x, other, by_row, by_column)]
    if not (
        dtypes[0].only_stores and dtypes[1].only_stores and dtypes[2:] == [f32] * 2
    ):
        raise DTypeError.here(
            f"scaled_mm of {dtypes[0]} by {dtypes[1]} with scales of {dtypes[2]} and "
            f"{dtypes[3]}; expected floats of 8 bits, and scales of f32"
        )
    for t in (x, other):
        if t.ndim != 2:
            raise ShapeError.here(
                f"scaled_mm of {shape_text(t.handle)}; expected two matrices"
            )
    wholly = by_row.numel() == 1 and by_column.numel() == 1
    rows, columns = (x.shape[0], 1), (1, other.shape[1])
    if wholly:
        by_row, by_column = f.reshape(by_row, 1, 1), f.reshape(by_column, 1, 1)
    elif tuple(by_row.shape) != rows or tuple(by_column.shape) != columns:
        raise ShapeError.here(
            f"scaled_mm with scales {shape_text(by_row.handle)} and "
            f"{shape_text(by_column.handle)}; expected one number each, or the shapes "
            f"{rows} and {columns}"
        )
    return by_row, by_column


def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """By how much other classes are not below the labelled one by a margin."""
    if p not in (1, 2):
        raise UnsupportedError.here(f"multi_margin_loss: p={p}; expected 1 or 2")
    single = input.ndim == 1
    x = f.unsqueeze(input, 0) if single else input
    label = f.reshape(target, -1) if single else target
    if x.ndim != 2 or label.ndim != 1:
        raise ShapeError.here(
            f"labels {tuple(target.shape)} for {tuple(input.shape)}; expected one for "
            "each row of classes"
        )
    label = f.none_below_zero(label, x, 1)
    own = f.take_along_dim(x, f.expand_dims(label, 1), 1)
    each = f.maximum(margin - own + x, 0)
    each = each if p == 1 else f.square(each)
    if weight is not None:
        each = each * f.expand_dims(f.index_select(weight, 0, label), 1)
    others = f.not_equal(positions(x, 1), f.expand_dims(label, 1))
    found = f.mean(f.where(others, each, 0.0), 1)
    return of_rows("multi_margin_loss", found, reduction, single=single)


# -- Comparisons -----------------------------------------------------------------------


def isclose(
    x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Where two tensors differ by atol + rtol |y| at most; equal infinities do.

    Raises:
        DTypeError: They are of different dtypes, or of truth values.
        UnsupportedError: NaN is to be close to NaN, or a tolerance is below 0.
    """
    x, y = as_tensor("isclose", x), as_tensor("isclose", y)
    f.require_one_dtype("isclose", x, y)
    if x.handle.value.dtype == boolean:
        raise DTypeError.here("isclose of truth values; compare with ==")
    if equal_nan:
        raise UnsupportedError.here(
            f"isclose with equal_nan=True cannot be traced; {NO_NUMBERS}"
        )
    if rtol < 0 or atol < 0:
        raise UnsupportedError.here(
            f"isclose with rtol={rtol}, atol={atol}; expected 0 or more"
        )
    apart = f.abs(x - y)
    # Of an infinite difference and an infinite tolerance there is no difference.
    near = f.less_equal(apart - (atol + f.abs(y * float(rtol))), 0)
    return near if f.is_whole(x) else f.bitwise_or(f.equal(x, y), near)


def isin(
    elements: Any,
    test_elements: Any,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Any:
    """Where an element is one of others."""
    del assume_unique
    x = as_tensor("isin", elements)
    if isinstance(test_elements, Tensor):
        others = f.reshape(test_elements, -1)
        found = f.max(f.equal(f.expand_dims(x, -1), others), -1)
    else:
        found = f.equal(x, test_elements)
    return complement(found) if invert else found


def bucketize(
    input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False
) -> Any:
    """How many sorted boundaries are below each element, with `right` not above it."""
    x = as_tensor("bucketize", input)
    edges = as_tensor("bucketize", boundaries)
    if edges.ndim != 1:
        raise ShapeError.here(
            f"bucketize by boundaries of rank {edges.ndim}; expected a vector"
        )
    return _below(x, edges, right=right, out_int32=out_int32)


def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many elements of sorted rows are below each of others, as `bucketize`.

    Raises:
        ShapeError: The rows are neither one for all, nor one for each row.
    """
    rows = as_tensor("searchsorted", sorted_sequence)
    if sorter is not None:
        rows = f.take_along_dim(rows, sorter, -1)
    right = right or side == "right"
    number = not isinstance(input, Tensor)
    x = filled(rows, (), input) if number else input
    if rows.ndim != 1 and tuple(rows.shape[:-1]) != tuple(x.shape[:-1]):
        raise ShapeError.here(
            f"searchsorted of {shape_text(x.handle)} in {shape_text(rows.handle)}: "
            "expected one row for all, or one for each row"
        )
    rows = rows if rows.ndim == 1 else f.expand_dims(rows, -2)
    return _below(x, rows, right=right, out_int32=out_int32)


def _below(x: Any, edges: Any, *, right: bool, out_int32: bool) -> Any:
    """How many edges, along the last axis, are below each element."""
    x = f.expand_dims(x, -1)
    # NaN is above all others, as PyTorch sorts it.
    below = complement(f.less(x, edges) if right else f.less_equal(x, edges))
    return f.sum(below, -1, dtype="int32" if out_int32 else "int64")


def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements are in each of so many equal parts of a range.

    The range is that of the elements where both its ends are equal.
    """
    x = f.flatten(as_tensor("histc", x))
    count = integer(bins, "bins")
    low, high = (min, max) if min != max else (f.min(x), f.max(x))
    if min == max:
        # Of equal elements PyTorch takes one less and one more.
        same = f.equal(low, high)
        low, high = f.where(same, low - 1, low), f.where(same, high + 1, high)
    part = (x - low) * count / (high - low)
    # The last part has its end too; what is outside is in none.
    part = f.where(f.equal(x, high), count - 1, apply(OPERATORS["floor"], part))
    part = f.where(f.greater_equal(x, low), part, -1)
    at = f.to(arange(count), x)
    return f.to(f.sum(f.equal(f.expand_dims(part, -1), at), 0), x)


def count_nonzero(x: Any, dim: Any = None) -> Any:
    """How many elements are not 0, of all or along axes."""
    return f.sum(f.not_equal(as_tensor("count_nonzero", x), 0), dim)


# -- Distances -------------------------------------------------------------------------


def cdist(
    x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist"
) -> Any:
    """The distances of all rows of one matrix from all rows of another.

    They are norms of differences in each mode: products of matrices lose the digits of
    rows that are close.
    """
    del compute_mode
    x, y = as_tensor("cdist", x1), as_tensor("cdist", x2)
    f.require_one_dtype("cdist", x, y)
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1] or p < 0:
        raise ShapeError.here(
            f"cdist of {tuple(x.shape)} and {tuple(y.shape)} with p={p}; expected rows "
            "of one length, and an order of 0 or more"
        )
    return _between(f.expand_dims(x, -2), f.expand_dims(y, -3), p)


@c.within_f32
def _between(x: Any, y: Any, order: float) -> Any:
    return c.vector_norm(x - y, order, -1, False)


def dist(x: Any, other: Any, p: float = 2) -> Any:
    """The norm of the difference of all elements."""
    return c.vector_norm(x - other, p, None, False)


_BESIDE_A_NORM = 1e-7
"""What PyTorch adds to a norm that it divides by."""


@c.within_f32
def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    """The slices along an axis, those of a larger norm scaled to it."""
    at = normal_axis(dim, x.ndim, "renorm")
    others = tuple(i for i in range(x.ndim) if i != at)
    if not others or p <= 0 or maxnorm < 0:
        raise ShapeError.here(
            f"renorm of a tensor of rank {x.ndim} with p={p}, maxnorm={maxnorm}; "
            "expected two axes or more, a positive order and a norm of 0 or more"
        )
    norm = c.vector_norm(x, p, others, True)
    factor = maxnorm / (norm + _BESIDE_A_NORM)
    return x * f.where(f.greater(norm, maxnorm), factor, 1.0)


# -- Integrals -------------------------------------------------------------------------


def _neighbours(x: Any, axis: int) -> tuple[Any, Any]:
    """All elements along an axis but the last, and all but the first."""
    count = integer(x.shape[axis], "an extent") - 1
    return f.narrow(x, axis, 0, count), f.narrow(x, axis, 1, count)


def _areas(what: str, y: Any, x: Any, dx: Any, dim: int) -> tuple[Any, int]:
    """Twice the areas of the trapezoids between neighbours, and their axis."""
    y = as_tensor(what, y)
    at = normal_axis(dim, y.ndim, what)
    if y.shape[at] == 1:
        raise ShapeError.here(f"{what} of one point has no areas")
    sooner, later = _neighbours(y, at)
    if x is None:
        return (sooner + later) * (1.0 if dx is None else dx), at
    x = as_tensor(what, x)
    if x.ndim == 1:
        x = f.reshape(x, -1, *(1,) * (y.ndim - at - 1))
    before, behind = _neighbours(x, at - y.ndim)
    return (sooner + later) * (behind - before), at


def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Any:
    """The integral along an axis, of points at x or dx apart."""
    y = as_tensor("trapezoid", y)
    if x is None and f.holds_integers(y):
        # As PyTorch: pairs of neighbours would wrap around.
        at = normal_axis(dim, y.ndim, "trapezoid")
        ends = f.narrow(y, at, 0, 1) + f.narrow(y, at, int(y.shape[at]) - 1, 1)
        found = f.sum(y, at) - f.squeeze(ends, at) * 0.5
        return found if dx is None else found * dx
    areas, at = _areas("trapezoid", y, x, dx, dim)
    return f.sum(areas, at) / 2.0


def cumulative_trapezoid(
    y: Any, x: Any = None, *, dx: Any = None, dim: int = -1
) -> Any:
    """The integrals up to each point but the first."""
    areas, at = _areas("cumulative_trapezoid", y, x, dx, dim)
    return f.cumsum(areas, at) / 2.0


def gradient(
    input: Any, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> tuple[Any, ...]:
    """The slopes of a tensor along axes, from the neighbours on both sides.

    Args:
        input: The tensor.
        spacing: How far neighbours are apart, a number for all axes or for each, or a
            vector for each axis of where its elements are; 1 if there is none.
        dim: The axes, all if there is none.
        edge_order: Of the formula at both ends.
    """
    x = as_tensor("gradient", input)
    axes = normal_axes(dim, x.ndim, "gradient")
    spacing = 1 if spacing is None else spacing
    several = is_sequence(spacing)
    apart = list(spacing) if several else [spacing] * len(axes)
    least = edge_order + 1
    if len(apart) != len(axes) or edge_order not in (1, 2):
        raise ShapeError.here(
            f"gradient along {len(axes)} axes with {len(apart)} spacings and "
            f"edge_order={edge_order}; expected as many spacings, and an order of 1 "
            "or 2"
        )
    if any(int(x.shape[at]) < least for at in axes):
        raise ShapeError.here(
            f"gradient of {shape_text(x.handle)}; expected {least} elements or more "
            "along each axis"
        )
    x = f.as_floats(x)
    pairs = zip(axes, apart, strict=True)
    found = (_slopes(f.swapaxes(x, at, -1), d, edge_order, at) for at, d in pairs)
    return tuple(slopes.with_unknown_strides() for slopes in found)


def _slopes(x: Any, spacing: Any, order: int, axis: int) -> Any:
    """The slopes along the last axis, which goes to another place."""
    count = int(x.shape[-1])

    def steps(places: slice) -> Any:
        if not isinstance(spacing, Tensor) or not spacing.ndim:
            return spacing
        ends = spacing[1:], spacing[:-1]
        return f.sub(*(end[places] for end in ends))

    def side(a: Any, b: Any, c: Any, first: Any, second: Any) -> Any:
        if order == 1:
            return (b - a) / first
        both = first + second
        rest = (first + both) / (first * both)
        return b * both / (first * second) - a * rest - c * first / (second * both)

    def at(place: int) -> Any:
        place %= count
        return x[..., place : place + 1]

    first, second = (steps(slice(i, i + 1)) for i in (0, 1 % (count - 1)))
    front = side(at(0), at(1), at(2), first, second)
    last, sooner = (steps(slice(i, i + 1)) for i in (count - 2, max(count - 3, 0)))
    back = side(at(-1), at(-2), at(-3), -1 * last, -1 * sooner)
    if count == 2:
        return f.swapaxes(f.concat([front, back], -1), axis, -1)
    before, behind = steps(slice(0, count - 2)), steps(slice(1, count - 1))
    less, own, more = x[..., :-2], x[..., 1:-1], x[..., 2:]
    rise = (more - own) * before / behind + (own - less) * behind / before
    return f.swapaxes(f.concat([front, rise / (before + behind), back], -1), axis, -1)


def pdist(input: Any, p: float = 2.0) -> Any:
    """The distances of all pairs of rows of a matrix."""
    if input.ndim != 2 or input.shape[0] < 2:
        raise ShapeError.here(
            f"pdist of {shape_text(input.handle)}; expected a matrix of two rows or "
            "more"
        )
    rows, columns = _pairs(input, 2, replacement=False)
    return c.vector_norm(input[rows] - input[columns], p, -1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All choices of so many elements of a vector, in their order."""
    places = _pairs(input, r, replacement=with_replacement)
    return f.stack([input[at] for at in places], 1)


def _pairs(x: Any, count: int, *, replacement: bool) -> list[list[int]]:
    """The first place of each choice of so many along the first axis, and so on."""
    choose = combinations_with_replacement if replacement else all_combinations
    found = choose(range(int(x.shape[0])), integer(count, "r"))
    return [list(places) for places in zip(*found, strict=True)]


def cov(
    input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    """The covariances of variables that are rows, or of one.

    Args:
        input: The rows.
        correction: How many observations fewer count.
        fweights: How often each observation is there.
        aweights: How much each of them weighs.
    """
    x = as_tensor("cov", input)
    if x.ndim > 2:
        raise ShapeError.here(
            f"cov of {shape_text(x.handle)}; expected rows of a matrix, or one"
        )
    x = x if x.ndim > 1 else f.reshape(x, 1, -1)
    weights = [w for w in (fweights, aweights) if w is not None]
    count: Any = max(int(x.shape[-1]) - correction, 0)
    if not weights:
        apart = x - f.mean(x, -1, keepdims=True)
        found = f.matmul(apart, f.swapaxes(apart, 0, 1)) / count
        return found if found.shape[0] > 1 else f.reshape(found, ())
    share = f.mul(*weights) if len(weights) > 1 else weights[0]
    share = share if f.is_float(share) else f.to(share, x)
    total = f.sum(share)
    apart = x - f.sum(x * share, -1, keepdims=True) / total
    again = 1.0 if aweights is None else f.sum(share * aweights) / total
    count = f.maximum(total - correction * again, 0)
    found = f.matmul(apart * share, f.swapaxes(apart, 0, 1)) / count
    return found if found.shape[0] > 1 else f.reshape(found, ())


def corrcoef(input: Any) -> Any:
    """The correlations of variables that are rows."""
    found = cov(input)
    if not found.ndim:
        return found / found
    scale = f.sqrt(c.diag(found))
    found = found / f.expand_dims(scale, 1) / scale
    return f.clamp(found, -1, 1)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """The powers of a vector's elements, as columns; of integers in int64."""
    x = f.to(x, i64) if f.is_whole(x) else x
    count = int(x.shape[-1]) if N is None else integer(N, "N")
    powers = range(count) if increasing else range(count - 1, -1, -1)
    return f.stack([f.pow(x, power) for power in powers], -1)


def _rows_of_powers(x: Any, *, N: int | None = None) -> Any:  # noqa: N803
    """The same with the lowest powers first, of a vector or of rows of them."""
    x = as_tensor("vander", x)
    return vander(x if x.ndim else f.expand_dims(x, 0), N, increasing=True)


def angle(x: Any) -> Any:
    """The angle of real numbers, pi below 0."""
    x = as_tensor("angle", x)
    x = f.as_floats(x)
    return f.where(f.equal(x, x), f.to(f.less(x, 0), x) * math.pi, x)


def sum_to_size(x: Any, *size: Any) -> Any:
    """The sums over axes that another shape has not, or of one element."""
    wanted = flat_arguments(size)
    if not wanted:
        return f.sum(x)
    more = x.ndim - len(wanted)
    pairs = zip(tuple(x.shape)[max(more, 0) :], wanted, strict=False)
    if more < 0 or any(n not in (1, own) for own, n in pairs):
        raise ShapeError.here(
            f"sum_to_size of {tuple(x.shape)} to {tuple(wanted)}; expected extents "
            "that are the same or 1"
        )
    shared = [at for at, n in enumerate(wanted, more) if n == 1 and x.shape[at] != 1]
    x = f.sum(x, shared, keepdims=True) if shared else x
    return f.sum(x, tuple(range(more))) if more else x


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Places along each axis of a shape, of places in all of it."""
    found: list[Any] = []
    indices = f.to(as_tensor("unravel_index", indices), i64)
    for extent in reversed(flat_arguments((shape,))):
        found.append(f.remainder(indices, extent))
        indices = f.floor_divide(indices, extent)
    return tuple(reversed(found))


OF_UNKNOWN_SHAPE = {
    "bincount": "use F.one_hot(x, n).sum(0), or zeros(n).index_add(0, x, weights)",
    "unique": "compute with all elements, and sort() them where neighbours matter",
    "unique_consecutive": "compare x[1:] with x[:-1], and keep all elements",
}
"""Functions whose result has as many elements as the data say, and what to do."""

FUNCTIONS: Mapping[str, Function] = {
    **ACTIVATIONS,
    **FILLED,
    **LOSSES,
    **formulas(
        clamp_max=lambda x, max: f.clamp(x, max=max),
        clamp_min=lambda x, min: f.clamp(x, min=min),
        expand_as=lambda x, other: f.expand(x, *other.shape),
        fill=lambda x, value: full_like(x, value),
        type_as=lambda x, other: f.to(x, other),
    ),
    **named(cross_entropy, embedding, embedding_bag, multi_margin_loss, nll_loss),
    **named(new_full, new_tensor, result_type, select, scaled_mm),
    **named(addcdiv, addcmul, aminmax, lerp, logsumexp, softmin),
    **named(norm, normalize, std, var, weight_norm, multi_head_attention_forward),
    "log_softmax": _of_rows(_log_softmax),
    "softmax": _of_rows(c.softmax),
    "new_empty": _new(0),
    "new_ones": _new(1),
    "new_zeros": _new(0),
    **{name: getattr(Tensor, name) for name in _QUESTIONS.split()},
    **dict.fromkeys(_DROPOUTS.split(), dropout),
    "std_mean": _with_mean(std),
    "var_mean": _with_mean(var),
    "vdot": f.matmul,
    **named(angle, bucketize, histc, isclose, isin, searchsorted, unravel_index),
    **named(combinations, corrcoef, count_nonzero, cov, sum_to_size, vander),
    **named(cdist, dist, pdist, renorm),
    **named(cumulative_trapezoid, gradient, trapezoid),
    "linalg_vander": _rows_of_powers,
    "trapz": trapezoid,
    **{
        name: refused(
            f"{name}, of which the number of results depends on the data,",
            f"a program's shapes are known while it is traced: {advice}",
        )
        for name, advice in OF_UNKNOWN_SHAPE.items()
    },
}
"""By PyTorch's names."""
