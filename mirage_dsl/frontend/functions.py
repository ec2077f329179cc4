"""The functions of mirage on tensors: operators, reductions, views.

They follow NumPy's names and arguments; `public` accepts PyTorch's `dim` and `keepdim`.
Called with NumPy arrays or PyTorch tensors they evaluate at once, by the reference
semantics.  Norms and other composites are in `composites`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import LARGEST_INDEX, i8, i16, i64, scalar, u8
from mirage_dsl.frontend import shapes, views
from mirage_dsl.frontend.dims import Handle, extents_of, vars_of
from mirage_dsl.frontend.operands import (
    apply,
    as_operand,
    as_tensor,
    averaged_format,
    complement,
    format_of,
    is_condition,
    is_numpys_number,
    public,
    recorder_of,
    stored_number,
    summed_format,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import (
    CUMPROD,
    CUMSUM,
    MAX,
    MIN,
    MUL,
    OPERATORS,
    PROD,
    ROWSHIFT,
    SUM,
)


def _elementwise(name: str, summary: str) -> Callable[..., Any]:
    op = OPERATORS[name]

    def function(*operands: Any, out: None = None) -> Any:
        if out is not None:
            raise UnsupportedError(
                f"{name}: out= is not possible; use the result", user_location()
            )
        if len(operands) != op.arity:
            raise ShapeError(
                f"{name} takes {op.arity} operands, found {len(operands)}",
                user_location(),
            )
        return apply(op, *operands)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return public(function)


exp = _elementwise("exp", "e to the power x.")
log = _elementwise("log", "Natural logarithm.")
sqrt = _elementwise("sqrt", "Square root.")
rsqrt = _elementwise("rsqrt", "One over the square root.")
square = _elementwise("square", "x times x.")
abs = _elementwise("abs", "Absolute value.")
neg = _elementwise("neg", "Minus x.")
relu = _elementwise("relu", "The larger of x and 0.")
silu = _elementwise("silu", "x times its sigmoid.")
sigmoid = _elementwise("sigmoid", "1 / (1 + exp(-x)).")
tanh = _elementwise("tanh", "Hyperbolic tangent.")
erf = _elementwise("erf", "The error function.")
maximum = _elementwise("maximum", "The larger of two, element by element.")
minimum = _elementwise("minimum", "The smaller of two, element by element.")
less = _elementwise("less", "1 where a < b, else 0.")
less_equal = _elementwise("less_equal", "1 where a <= b, else 0.")
equal = _elementwise("equal", "1 where a == b, else 0.")


@public
def add(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """The value of a + alpha * b."""
    return apply(OPERATORS["add"], a, b if alpha == 1 else _scaled(a, b, alpha))


@public
def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """The value of a - alpha * b."""
    return apply(OPERATORS["sub"], a, b if alpha == 1 else _scaled(a, b, alpha))


def _scaled(a: Any, b: Any, alpha: Any) -> Any:
    """Alpha * b; truth values count in the format of the tensor that they join."""
    if isinstance(a, bool) or is_condition(a):
        if isinstance(b, bool):
            return b and bool(alpha)
        return apply(MUL, b, bool(alpha)) if is_condition(b) else multiplied(b, alpha)
    if not isinstance(a, Tensor) or not is_condition(b):
        return multiplied(b, alpha)
    dtype = a.handle.value.dtype
    wide = Tensor.made(b.recorder, b.recorder.cast(b.handle, dtype), (b,))
    return multiplied(wide, alpha)


def multiplied(a: Any, b: Any) -> Any:
    """A * b, of which both may be numbers."""
    return apply(MUL, a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a * b


mul = _elementwise("mul", "a * b.")
floor_divide = _elementwise("floor_divide", "a / b rounded down, of integers.")
remainder = _elementwise("remainder", "What is left of a by b, with the sign of b.")


def _bitwise(name: str, of_truth: Operator, summary: str) -> Callable[..., Any]:
    """An operator on the bits of integers, which truth values have one of."""
    of_integers = OPERATORS[name]

    def function(a: Any, b: Any) -> Any:
        truth = all(is_condition(x) or isinstance(x, bool) for x in (a, b))
        return apply(of_truth if truth else of_integers, a, b)

    function.__name__ = function.__qualname__ = f"bitwise_{name.removeprefix('bit_')}"
    function.__doc__ = summary
    return public(function)


bitwise_and = _bitwise("bit_and", MUL, "The bits that both have.")
bitwise_or = _bitwise("bit_or", OPERATORS["maximum"], "The bits that one of them has.")


@public
def bitwise_xor(a: Any, b: Any) -> Any:
    """The bits that just one of them has."""
    truth = all(is_condition(x) or isinstance(x, bool) for x in (a, b))
    return not_equal(a, b) if truth else apply(OPERATORS["bit_xor"], a, b)


@public
def bitwise_not(x: Any) -> Any:
    """All bits turned over."""
    x = as_tensor("bitwise_not", x)
    dtype = x.handle.value.dtype
    if is_condition(x):
        return complement(x)
    return bitwise_xor(x, -1 if dtype.min < 0 else int(dtype.max))


def _shift(name: str, summary: str) -> Callable[..., Any]:
    op = OPERATORS[name]

    def function(a: Any, b: Any) -> Any:
        bits = 8 * a.handle.value.dtype.itemsize if isinstance(a, Tensor) else 64
        if isinstance(b, builtins.int) and not 0 <= b < bits:
            raise ShapeError(
                f"{name} by {b} of numbers of {bits} bits; expected 0 to {bits - 1}",
                user_location(),
            )
        return apply(op, a, b)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = summary
    return public(function)


shift_left = _shift("shift_left", "The bits of a moved up by b places.")
shift_right = _shift("shift_right", "The bits of a moved down by b places.")


@public
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """The value of a / b."""
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode is not None:
        raise UnsupportedError(
            f"div: rounding_mode={rounding_mode!r} is not possible; use 'floor'",
            user_location(),
        )
    return apply(OPERATORS["div"], a, b)


@public
def greater(a: Any, b: Any) -> Any:
    """1 where a > b, else 0."""
    return apply(OPERATORS["less"], b, a)


@public
def greater_equal(a: Any, b: Any) -> Any:
    """1 where a >= b, else 0."""
    return apply(OPERATORS["less_equal"], b, a)


@public
def not_equal(a: Any, b: Any) -> Any:
    """1 where a != b, else 0."""
    return complement(apply(OPERATORS["equal"], a, b))


@public
def gelu(x: Any, approximate: str = "none") -> Any:
    """The tensor times the normal distribution's probability of less than x.

    Args:
        x: The tensor.
        approximate: `none`, or `tanh` for the usual approximation.
    """
    if approximate == "none":
        return apply(OPERATORS["gelu"], x)
    if approximate != "tanh":
        raise UnsupportedError(
            f"gelu: approximate={approximate!r}; expected 'none' or 'tanh'",
            user_location(),
        )
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * square(x)))
    # Half of 1 + tanh(y) is the sigmoid of 2y, which no factor of x can go before.
    return x * apply(OPERATORS["sigmoid"], 2 * inner)


@public
def exp2(x: Any) -> Any:
    """2 to the power x."""
    return apply(OPERATORS["exp"], x * math.log(2))


@public
def reciprocal(x: Any) -> Any:
    """1 / x."""
    return apply(OPERATORS["div"], 1, x)


_MAX_POWER = 64


@public
def pow(a: Any, b: Any) -> Any:
    """The power b of a.

    Small integer powers multiply; 0.5 and -0.5 are sqrt and rsqrt.  The power 0 is 1,
    also of what is infinite or no number.
    """
    a, b = _beside_numpys(a, b)
    if not isinstance(b, builtins.int | builtins.float | Fraction) or b != b:
        return _power_of_data(a, b)
    if holds_integers(a) and b:
        if isinstance(b, builtins.int):
            return _integral_power(a, b)
        a = a * 1.0
    if builtins.abs(b) == 0.5:
        return sqrt(a) if b > 0 else rsqrt(a)
    if builtins.abs(b) > _MAX_POWER or b != int(b):
        return apply(OPERATORS["power"], a, b)
    if b == 0:
        x, one = as_tensor("pow", a), scalar(1)
        if not x.handle.value.dtype.is_float:
            return where(complement(complement(x)), x * 0 + 1, 1)
        ones = x.recorder.elementwise(OPERATORS["where"], [x.handle, one, one])
        return Tensor.made(x.recorder, ones, (x,))
    if b == 1:
        if is_condition(a):
            _refuse_power("a power of truth values")
        return as_tensor("pow", a).clone()
    result = _power(a, builtins.abs(int(b)))
    return result if b > 0 else 1 / result


def _power_of_data(a: Any, b: Any) -> Tensor:
    whole = (builtins.int, np.integer, np.bool_)
    if builtins.all(isinstance(x, whole) or is_whole(x) for x in (a, b)):
        _refuse_power("a power of integers, whose exponents are data")
    return apply(OPERATORS["power"], a, b)


def _beside_numpys(a: Any, exponent: Any) -> tuple[Any, Any]:
    """A tensor promoted with a number of NumPy's, which has a format, and the number.

    NumPy's powers of truth values are of 8 bits.
    """
    if not isinstance(a, Tensor):
        return a, exponent
    origin = a.recorder.origin
    if is_numpys_number(exponent):
        handles = [a.handle, as_operand(exponent)]
        a = views.to(a, format_of(MUL, origin, (a, exponent), handles))
        exponent = exponent.item()
    logical = isinstance(exponent, builtins.bool) and is_condition(a)
    return views.to(a, i8) if logical and origin.library == "numpy" else a, exponent


def holds_integers(x: Any) -> bool:
    """Whether it is a tensor of integers."""
    return isinstance(x, Tensor) and x.handle.value.dtype.is_integer


def is_whole(x: Any) -> bool:
    """Whether it is a tensor of integers, or of truth values, which count as some."""
    return holds_integers(x) or is_condition(x)


def _refuse_power(what: str) -> NoReturn:
    raise DTypeError(f"{what}, is not possible; convert to floats", user_location())


def _integral_power(a: Any, exponent: int) -> Any:
    if exponent < 0:
        _refuse_power(f"the power {exponent} of integers")
    return _power(a, exponent) if exponent > 1 else a.clone()


def _power(a: Any, exponent: int) -> Any:
    if exponent == 1:
        return a
    half = square(_power(a, exponent // 2))
    return half * a if exponent % 2 else half


@public
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """The tensor limited from below and above; None is no limit."""
    if min is None and max is None:
        raise ShapeError("clamp needs min, max or both", user_location())
    if min is not None:
        x = apply(OPERATORS["maximum"], x, min)
    return x if max is None else apply(OPERATORS["minimum"], x, max)


clip = clamp


@public
def where(condition: Any, a: Any, b: Any) -> Any:
    """Element by element a where the condition is not 0, else b."""
    return apply(OPERATORS["where"], condition, a, b)


@public
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """The value where the mask is not 0, else x; in the format of x."""
    x = as_tensor("masked_fill", x)
    value = stored_number("masked_fill", x.handle.value.dtype, value)
    return views.astype(where(mask, value, x), x)


def reduced(op: Operator, what: str, x: Any, axis: Any, keepdims: Any) -> Tensor:
    x = as_tensor(what, x)
    axes, keep = shapes.normal_axes(axis, x.ndim, what), shapes.kept(keepdims, what)
    found = x.recorder.reduce(op, x.handle, axes, keepdims=keep)
    return Tensor.made(x.recorder, found, (x,))


def _counted(what: str, x: Any, dtype: Any) -> Any:
    """The tensor in the format that it is added up or multiplied in."""
    if dtype is not None:
        return views.to(x, dtype)
    x = as_tensor(what, x)
    found = summed_format(what, x.handle.value.dtype, x.recorder.origin)
    return views.astype(x, found, copy=False)


@public
def sum(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Sum over axes, all of them by default."""
    x = _counted("sum", x, dtype)
    return reduced(SUM, "sum", x, axis, keepdims)


@public
def mean(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Arithmetic mean over axes, all of them by default."""
    x = as_tensor("mean", x)
    found = averaged_format(x.handle.value.dtype, x.recorder.origin)
    wanted = found if dtype is None else dtype
    if wanted is not x.handle.value.dtype:
        x = views.to(x, wanted)
    axes, keep = shapes.normal_axes(axis, x.ndim, "mean"), shapes.kept(keepdims, "mean")
    # A factor that follows the extents, so that the program is right at every size.
    vars = x.recorder.dims.resolve(vars_of([x.handle.axes[i] for i in axes]))
    factor = extents_of(vars, -1)
    total = x.recorder.reduce(SUM, x.handle, axes, keepdims=keep)
    found = x.recorder.elementwise(MUL, [total, factor])
    return Tensor.made(x.recorder, found, (x,))


@public
def max(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
) -> Any:
    """Maximum over axes, all of them by default.

    Unlike PyTorch's it returns no indices.  Of two tensors it is their `maximum`.
    """
    if isinstance(axis, Tensor):
        return maximum(x, axis)
    return reduced(MAX, "max", x, axis, keepdims)


amax = max


@public
def min(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
) -> Any:
    """Minimum over axes, all of them by default."""
    if isinstance(axis, Tensor):
        return minimum(x, axis)
    return reduced(MIN, "min", x, axis, keepdims)


amin = min


@public
def prod(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dtype: Any = None,
) -> Any:
    """Product over axes, of all elements by default."""
    x = _counted("prod", x, dtype)
    return reduced(PROD, "prod", x, axis, keepdims)


def _place(op: Operator, what: str, x: Any, axis: Any, keepdims: Any) -> Tensor:
    """The first position along an axis of the element that a reduction selects.

    NaN is selected before all others.
    """
    x, keep = as_tensor(what, x), shapes.kept(keepdims, what)
    if axis is None:
        found = _place(op, what, views.flatten(x), 0, False)
        return views.reshape(found, (1,) * x.ndim) if keep else found
    (at,) = shapes.normal_axes(axis, x.ndim, what)
    there = equal(x, reduced(op, what, x, at, True))
    if x.handle.value.dtype.is_float:
        there = bitwise_or(there, not_equal(x, x))
    positions = x.recorder.index(x.handle.axes[at]).value
    axes = tuple(a if i == at else () for i, a in enumerate(x.handle.axes))
    counted = Tensor.made(x.recorder, Handle(positions, axes), ())
    return reduced(MIN, what, where(there, counted, LARGEST_INDEX), at, keep)


@public
def argmax(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """The first position of the maximum along an axis; None is of all, flat."""
    return _place(MAX, "argmax", x, axis, keepdims)


@public
def argmin(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """The first position of the minimum along an axis; None is of all, flat."""
    return _place(MIN, "argmin", x, axis, keepdims)


def _scanned(op: Operator, x: Any, axis: Any, dtype: Any) -> Tensor:
    x = _counted(op.name, x, dtype)
    if axis is None:
        x, axis = views.flatten(x), 0
    (at,) = shapes.normal_axes(axis, x.ndim, op.name)
    return Tensor.made(x.recorder, x.recorder.scan(op, x.handle, at), (x,))


@public
def cumsum(x: Any, axis: Any = None, *, dtype: Any = None) -> Any:
    """Sums of each element and all before it along an axis; None is all, flat."""
    return _scanned(CUMSUM, x, axis, dtype)


@public
def cumprod(x: Any, axis: Any = None, *, dtype: Any = None) -> Any:
    """Products of each element and all before it along an axis; None is all, flat."""
    return _scanned(CUMPROD, x, axis, dtype)


# -- Elements at indices that are data -------------------------------------------------


def _is_index(x: Any) -> bool:
    return isinstance(x, Tensor) and x.handle.value.dtype.is_integer


def _gathered(what: str, x: Any, axis: Any, index: Any, *, along: bool) -> Tensor:
    x = as_tensor(what, x)
    if not _is_index(index):
        raise DTypeError(f"{what} takes an index of integers", user_location())
    (at,) = shapes.normal_axes(axis, x.ndim, what)
    number = _same_index(index)
    if number is not None:
        return _repeated(x, at, number, index, along=along)
    recorder = recorder_of(what, (x, index))
    found = recorder.gather(x.handle, at, index.handle, along=along)
    return Tensor.made(recorder, found, ())


def _same_index(index: Tensor) -> int | None:
    """The number that an index is all over; None for others."""
    number = index.recorder.constants.get(index.handle.value)
    return None if number is None or number.extents else int(number.value)


def _repeated(x: Tensor, at: int, number: int, index: Tensor, *, along: bool) -> Tensor:
    """One slice of an axis for each element of an index that is one number."""
    extent = x.handle.shape[at]
    if extent is not None and not -extent <= number < extent:
        raise ShapeError(
            f"the index {number} of an axis of extent {extent} is outside of it",
            user_location(),
        )
    found = views.narrow(x, at, number, 1)
    if along:
        shape = list(np.broadcast_shapes(found.shape, index.shape))
        shape[at] = index.shape[at]
        return views.expand(found, *shape).clone()
    found = views.squeeze(found, at)
    for _ in range(index.ndim):
        found = views.expand_dims(found, at)
    return views.expand(found, *x.shape[:at], *index.shape, *x.shape[at + 1 :]).clone()


def none_below_zero(index: Any, x: Any, axis: Any) -> Any:
    """The index where PyTorch counts from the front alone: those below 0 are outside.

    They become the extent of the axis, which every gather refuses.
    """
    if not _is_index(index) or not isinstance(x, Tensor) or not x.ndim:
        return index
    if index.handle.value.dtype in (i8, i16):
        index = views.to(index, i64)
    if index.handle.value.dtype == u8:
        return index
    (at,) = shapes.normal_axes(axis, x.ndim, "an index")
    number = _same_index(index)
    if number is not None:
        if number < 0:
            raise ShapeError(
                f"the index {number} where indices count from the front",
                user_location(),
            )
        return index
    return where(less(index, 0), x.shape[at], index)


@public
def index_select(x: Any, axis: Any, index: Any) -> Any:
    """The slices of an axis at the indices, which may have any number of axes."""
    return _gathered("index_select", x, axis, index, along=False)


@public
def embedding(index: Any, weight: Any) -> Any:
    """The rows of a matrix at the indices."""
    return _gathered("embedding", weight, 0, index, along=False)


@public
def gather(x: Any, axis: Any, index: Any) -> Any:
    """Elements at indices along an axis; other axes of the index may be shorter."""
    x = as_tensor("gather", x)
    if not isinstance(index, Tensor) or index.ndim != x.ndim:
        raise ShapeError(
            f"gather of {x!r} by {index!r}: both have as many axes", user_location()
        )
    (at,) = shapes.normal_axes(axis, x.ndim, "gather")
    pairs = zip(x.handle.shape, index.handle.shape, strict=True)
    for i, (have, want) in enumerate(pairs):
        if i == at or have == want or have is None or want is None:
            continue
        if want > have:
            raise ShapeError(
                f"gather of {x!r} by {index!r}: axis {i} of the index is longer",
                user_location(),
            )
        x = views.narrow(x, i, 0, want)
    return _gathered("gather", x, at, index, along=True)


@public
def take_along_dim(x: Any, index: Any, axis: Any) -> Any:
    """Elements at indices along an axis; other axes are equal, or 1 in the index."""
    x = as_tensor("take_along_dim", x)
    if not isinstance(index, Tensor) or index.ndim != x.ndim:
        raise ShapeError(
            f"take_along_dim of {x!r} by {index!r}: both have as many axes",
            user_location(),
        )
    return _gathered("take_along_dim", x, axis, index, along=True)


def rowshift(x: Any, axis: Any) -> Tensor:
    """What a row of exponents is shifted by: its maximum, whose value cannot matter."""
    return reduced(ROWSHIFT, "softmax", x, axis, True)


@public
def matmul(a: Any, b: Any) -> Any:
    """Matrix product, batched and broadcast as NumPy's."""
    recorder = recorder_of("matmul", (a, b))
    x, y = as_operand(a), as_operand(b)
    if not isinstance(x, Handle) or not isinstance(y, Handle):
        raise ShapeError("matmul with a number; use * instead", user_location())
    # Row-major whatever the operands are.
    return Tensor.made(recorder, recorder.matmul(x, y), ())


@public
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """The product x @ weight.T + bias, PyTorch's linear layer."""
    product = matmul(x, weight.T)
    return product if bias is None else product + bias


__all__ = []
