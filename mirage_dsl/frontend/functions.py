"""The functions of mirage on tensors: operators, reductions, views.

They follow NumPy's names and arguments and accept PyTorch's `dim` and `keepdim`.
Called with NumPy arrays or PyTorch tensors they evaluate at once, by the reference
semantics.  Norms and other composites are in `composites`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from mirage_dsl.errors import DTypeError, ShapeError, UnsupportedError
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.eager import public
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.recorder import Handle, Number, shape_text
from mirage_dsl.frontend.tensor import Tensor, apply, as_operand, recorder_of
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import MAX, MUL, OPERATORS, ROWSHIFT, SUM
from mirage_dsl.types import DType, dtype_named


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
    """a + alpha * b."""
    return apply(OPERATORS["add"], a, b if alpha == 1 else multiplied(b, alpha))


@public
def sub(a: Any, b: Any, *, alpha: Any = 1) -> Any:
    """a - alpha * b."""
    return apply(OPERATORS["sub"], a, b if alpha == 1 else multiplied(b, alpha))


def multiplied(a: Any, b: Any) -> Any:
    """a * b, of which both may be numbers."""
    return apply(MUL, a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a * b


mul = _elementwise("mul", "a * b.")


@public
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """a / b."""
    if rounding_mode is not None:
        raise UnsupportedError("div: rounding_mode is not possible", user_location())
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
    return apply(OPERATORS["sub"], 1, apply(OPERATORS["equal"], a, b))


@public
def gelu(x: Any, approximate: str = "none") -> Any:
    """x times the normal distribution's probability of less than x.

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
    return 0.5 * x * (1 + apply(OPERATORS["tanh"], inner))


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
    """A to the power b.

    Integer powers multiply; 0.5 and -0.5 are sqrt and rsqrt; anything else is
    exp(b log a), for positive a.
    """
    if not isinstance(b, builtins.int | builtins.float | Fraction):
        base = math.log(a) if isinstance(a, builtins.int | builtins.float) else log(a)
        return apply(OPERATORS["exp"], b * base)
    exponent = Fraction(b)
    if builtins.abs(exponent) == Fraction(1, 2):
        return sqrt(a) if exponent > 0 else rsqrt(a)
    if exponent.denominator == 1 and builtins.abs(exponent) <= _MAX_POWER:
        if exponent == 0:
            return a * 0 + 1
        result = _power(a, builtins.abs(int(exponent)))
        return result if exponent > 0 else 1 / result
    return apply(OPERATORS["exp"], builtins.float(b) * log(a))


def _power(a: Any, exponent: int) -> Any:
    if exponent == 1:
        return a
    half = square(_power(a, exponent // 2))
    return half * a if exponent % 2 else half


@public
def clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """X limited from below and above; None is no limit."""
    if min is None and max is None:
        raise ShapeError("clamp needs min, max or both", user_location())
    if min is not None:
        x = apply(OPERATORS["maximum"], x, min)
    return x if max is None else apply(OPERATORS["minimum"], x, max)


clip = clamp


@public
def where(condition: Any, a: Any, b: Any) -> Any:
    """A where the condition is not 0, else b."""
    return apply(OPERATORS["where"], condition, a, b)


def _where_method(a: Any, condition: Any, b: Any) -> Any:
    return where(condition, a, b)


@public
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """The value where the mask is not 0, else x."""
    return where(mask, value, x)


def _axes(
    what: str, x: Tensor, axis: Any, dim: Any, keepdims: Any, keepdim: Any
) -> tuple[tuple[int, ...], bool]:
    """Axes and keepdims under either library's names."""
    if axis is not None and dim is not None:
        raise ShapeError(f"{what}: give axis or dim, not both", user_location())
    keep = bool(keepdims) if keepdim is None else bool(keepdim)
    chosen = axis if dim is None else dim
    return shapes.normal_axes(chosen, x.ndim, what), keep


def _tensor(what: str, x: Any) -> Tensor:
    recorder_of(what, (x,))
    return x


def _reduce(
    op: Operator, x: Any, axis: Any, keepdims: Any, dim: Any, keepdim: Any
) -> Tensor:
    x = _tensor(op.name, x)
    axes, keep = _axes(op.name, x, axis, dim, keepdims, keepdim)
    return Tensor(x.recorder, x.recorder.reduce(op, x.handle, axes, keepdims=keep))


@public
def sum(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dim: Any = None,
    keepdim: Any = None,
    dtype: Any = None,
) -> Any:
    """Sum over axes, all of them by default."""
    x = x if dtype is None else astype(x, dtype)
    return _reduce(SUM, x, axis, keepdims, dim, keepdim)


@public
def mean(
    x: Any,
    axis: Any = None,
    keepdims: Any = False,
    *,
    dim: Any = None,
    keepdim: Any = None,
    dtype: Any = None,
) -> Any:
    """Arithmetic mean over axes, all of them by default."""
    x = _tensor("mean", x if dtype is None else astype(x, dtype))
    axes, keep = _axes("mean", x, axis, dim, keepdims, keepdim)
    # A factor that follows the extents, so that the program is right at every size.
    atoms = x.recorder.dims.resolve(a for i in axes for a in x.handle.axes[i])
    factor = Number(Fraction(1), tuple((a, -1) for a in atoms))
    total = x.recorder.reduce(SUM, x.handle, axes, keepdims=keep)
    return Tensor(x.recorder, x.recorder.elementwise(MUL, [total, factor]))


@public
def max(
    x: Any, axis: Any = None, keepdims: Any = False, *, dim: Any = None, keepdim: Any = None
) -> Any:
    """Maximum over axes, all of them by default.

    Unlike PyTorch's it returns no indices.  Of two tensors it is their `maximum`.
    """
    if isinstance(axis, Tensor):
        return maximum(x, axis)
    return _reduce(MAX, x, axis, keepdims, dim, keepdim)


amax = max


@public
def min(
    x: Any, axis: Any = None, keepdims: Any = False, *, dim: Any = None, keepdim: Any = None
) -> Any:
    """Minimum over axes, all of them by default."""
    if isinstance(axis, Tensor):
        return minimum(x, axis)
    return neg(_reduce(MAX, neg(x), axis, keepdims, dim, keepdim))


amin = min


def rowshift(x: Any, axis: Any) -> Tensor:
    """What a row of exponents is shifted by: its maximum, whose value cannot matter."""
    return _reduce(ROWSHIFT, x, axis, True, None, None)


@public
def matmul(a: Any, b: Any) -> Any:
    """Matrix product, batched and broadcast as NumPy's."""
    recorder = recorder_of("matmul", (a, b))
    x, y = as_operand(a), as_operand(b)
    if not isinstance(x, Handle) or not isinstance(y, Handle):
        raise ShapeError("matmul with a number; use * instead", user_location())
    return Tensor(recorder, recorder.matmul(x, y))


@public
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight.T + bias, PyTorch's linear layer."""
    product = matmul(x, weight.T)
    return product if bias is None else product + bias


@public
def concat(tensors: Sequence[Any], axis: Any = 0, *, dim: Any = None) -> Any:
    """Tensors joined along an axis."""
    given = list(tensors)
    axis = axis if dim is None else dim
    if not given:
        raise ShapeError("concat of no tensors", user_location())
    recorder = recorder_of("concat", tuple(given))
    handles = [as_operand(t) for t in given]
    rank = len(handles[0].axes) if isinstance(handles[0], Handle) else 0
    at = shapes.normal_axis(axis, rank, "concat")
    parts: list[Handle] = []
    for handle in handles:
        if not isinstance(handle, Handle) or not _joinable(handles[0], handle, at):
            found = ", ".join(
                shape_text(h) if isinstance(h, Handle) else "a number" for h in handles
            )
            raise ShapeError(
                f"concat along axis {at} of {found}: all other extents must be equal",
                user_location(),
            )
        parts.append(handle)
    return Tensor(recorder, recorder.concat(parts, at)) if parts[1:] else given[0]


def _joinable(first: Handle | Number, other: Handle, axis: int) -> bool:
    if not isinstance(first, Handle) or len(first.axes) != len(other.axes):
        return False
    pairs = enumerate(zip(first.shape, other.shape, strict=True))
    return all(i == axis or None in (a, b) or a == b for i, (a, b) in pairs)


concatenate = cat = concat


@public
def stack(tensors: Sequence[Any], axis: Any = 0, *, dim: Any = None) -> Any:
    """Tensors joined along a new axis."""
    axis = axis if dim is None else dim
    return concat([expand_dims(t, axis) for t in tensors], axis)


@public
def transpose(x: Any, *axes: Any) -> Any:
    """Axes in another order; two integers exchange two axes."""
    return _tensor("transpose", x).transpose(*axes)


@public
def permute(x: Any, *order: Any) -> Any:
    """Axes in the given order."""
    return _tensor("permute", x).permute(*order)


@public
def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged."""
    return _tensor("swapaxes", x).swapaxes(first, second)


@public
def reshape(x: Any, *shape: Any) -> Any:
    """Axes split and merged, row-major."""
    return _tensor("reshape", x).reshape(*shape)


@public
def expand_dims(x: Any, axis: Any) -> Any:
    """A new axis of extent 1."""
    x = _tensor("expand_dims", x)
    given = axis if isinstance(axis, tuple | list) else (axis,)
    rank = x.ndim + len(shapes.sequence(given))
    new = {shapes.normal_axis(a, rank, "expand_dims") for a in shapes.sequence(given)}
    old = iter(x.handle.axes)
    axes = tuple(() if i in new else next(old) for i in range(rank))
    return Tensor(x.recorder, Handle(x.handle.value, axes))


unsqueeze = expand_dims


@public
def squeeze(x: Any, axis: Any = None, *, dim: Any = None) -> Any:
    """Without axes of extent 1: all of them, or the given ones."""
    x = _tensor("squeeze", x)
    axis = axis if dim is None else dim
    units = [i for i, extent in enumerate(x.handle.shape) if extent == 1]
    gone = units if axis is None else shapes.normal_axes(axis, x.ndim, "squeeze")
    if any(i not in units for i in gone):
        raise ShapeError(
            f"squeeze of axis {axis} of {shape_text(x.handle)}: its extent is not 1",
            user_location(),
        )
    axes = tuple(a for i, a in enumerate(x.handle.axes) if i not in gone)
    return Tensor(x.recorder, Handle(x.handle.value, axes))


@public
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes from the first to the last given merged into one."""
    x = _tensor("flatten", x)
    if not x.ndim:
        return expand_dims(x, 0)
    first = shapes.normal_axis(start_dim, x.ndim, "flatten")
    last = shapes.normal_axis(end_dim, x.ndim, "flatten")
    axes = x.handle.axes
    merged = tuple(a for axis in axes[first : last + 1] for a in axis)
    kept = (*axes[:first], merged, *axes[last + 1 :])
    return Tensor(x.recorder, Handle(x.handle.value, kept))


@public
def unflatten(x: Any, axis: Any, shape: Sequence[Any]) -> Any:
    """One axis split into several."""
    x = _tensor("unflatten", x)
    at = shapes.normal_axis(axis, x.ndim, "unflatten")
    return x.reshape(*x.shape[:at], *shape, *x.shape[at + 1 :])


@public
def expand(x: Any, *shape: Any) -> Any:
    """Axes of extent 1 repeated, and leading axes added; -1 keeps an extent."""
    x = _tensor("expand", x)
    wanted = [
        -1 if isinstance(s, shapes.SymbolicSize) else shapes.integer(s, "an extent")
        for s in shapes.flat_arguments(shape)
    ]
    if len(wanted) < x.ndim:
        raise ShapeError(
            f"expand of {shape_text(x.handle)} to {len(wanted)} axes", user_location()
        )
    return Tensor(x.recorder, x.recorder.expand(x.handle, wanted))


broadcast_to = expand
_expand_method = expand


@public
def repeat_interleave(x: Any, repeats: int, axis: Any = None, *, dim: Any = None) -> Any:
    """Every element of an axis repeated, next to each other."""
    x = _tensor("repeat_interleave", x)
    at = shapes.normal_axis(axis if dim is None else dim, x.ndim, "repeat_interleave")
    grown = expand_dims(x, at + 1)
    sizes = [-1] * grown.ndim
    sizes[at + 1] = shapes.integer(repeats, "repeats")
    return flatten(expand(grown, *sizes), at, at + 1)


@public
def narrow(x: Any, axis: Any, start: int, length: int) -> Any:
    """`length` elements of an axis from `start`."""
    x = _tensor("narrow", x)
    at = shapes.normal_axis(axis, x.ndim, "narrow")
    return x[(builtins.slice(None),) * at + (builtins.slice(start, start + length),)]


@public
def split(x: Any, sizes: Any, axis: Any = 0, *, dim: Any = None) -> Any:
    """Pieces of an axis: of equal size, or of the given sizes (as PyTorch's)."""
    x = _tensor("split", x)
    at = shapes.normal_axis(axis if dim is None else dim, x.ndim, "split")
    extent = x.handle.shape[at]
    if extent is None:
        raise UnsupportedError("split of a dynamic axis", user_location())
    if isinstance(sizes, tuple | list):
        lengths = [shapes.integer(s, "a size") for s in shapes.sequence(sizes)]
    else:
        size = shapes.integer(sizes, "the size")
        starts = range(0, extent, builtins.max(size, 1))
        lengths = [builtins.min(size, extent - s) for s in starts]
    if builtins.sum(lengths) != extent or builtins.min(lengths) < 1:
        raise ShapeError(
            f"split of axis {at} with extent {extent} into {lengths}: the sizes must "
            "be positive and add up",
            user_location(),
        )
    starts = [builtins.sum(lengths[:i]) for i in range(len(lengths))]
    return tuple(narrow(x, at, s, n) for s, n in zip(starts, lengths, strict=True))


@public
def chunk(x: Any, chunks: int, axis: Any = 0, *, dim: Any = None) -> Any:
    """An axis cut into so many pieces, the last one shorter if need be."""
    x = _tensor("chunk", x)
    at = shapes.normal_axis(axis if dim is None else dim, x.ndim, "chunk")
    extent = x.handle.shape[at]
    if extent is None:
        raise UnsupportedError("chunk of a dynamic axis", user_location())
    return split(x, -(-extent // shapes.integer(chunks, "chunks")), at)


@public
def unbind(x: Any, axis: Any = 0, *, dim: Any = None) -> Any:
    """The slices along an axis, without it."""
    x = _tensor("unbind", x)
    at = shapes.normal_axis(axis if dim is None else dim, x.ndim, "unbind")
    index = (builtins.slice(None),) * at
    return tuple(x[(*index, i)] for i in range(len(x.swapaxes(0, at))))


@public
def astype(x: Any, dtype: Any, *_: Any, **__: Any) -> Any:
    """Another element format; anything but a dtype (a device) changes nothing."""
    x = _tensor("astype", x)
    if isinstance(dtype, Tensor):
        dtype = dtype.dtype
    found = as_dtype(dtype)
    if found is None:
        if type(dtype).__name__ == "device" or str(dtype).split(":")[0] in _DEVICES:
            return x
        raise DTypeError(
            f"cannot convert to {dtype}; expected float16, bfloat16 or float32",
            user_location(),
        )
    return Tensor(x.recorder, x.recorder.cast(x.handle, found))


_DEVICES = ("cpu", "cuda")


def as_dtype(dtype: Any) -> DType | None:
    """The dtype meant by one of ours, of NumPy, of PyTorch or by a name."""
    if isinstance(dtype, DType):
        return dtype
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None)
    return dtype_named(str(name or dtype).removeprefix("torch."))
