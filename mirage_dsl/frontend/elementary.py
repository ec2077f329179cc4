"""Elementary functions by the names that PyTorch and NumPy share, element by element.

Each is a row of the operator table, or a formula of rows that keeps its precision at
every size of its operand: no difference of numbers that are nearly the same, and no
square that is beyond the largest one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import f32
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.functions import (
    apply,
    as_floats,
    as_operand,
    as_tensor,
    float_of_numpy,
    formulas,
    is_condition,
    is_float,
    named,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import OPERATORS

_LARGE = 1e9
"""Beyond it one added to a square changes nothing, in f32 as in float64."""


def _row(name: str) -> Callable[..., Any]:
    op = OPERATORS[name]

    def function(*operands: Any) -> Any:
        return apply(op, *operands)

    function.__name__ = name
    return function


def _of_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of floats, as which it takes integers and truth values.

    A formula of them would wrap around where they do.
    """

    @functools.wraps(function)
    def computed(x: Any, *args: Any, **kwargs: Any) -> Any:
        return function(as_floats(x) if _varies(x) else x, *args, **kwargs)

    return computed


atan2 = _row("atan2")
cos = _of_floats(_row("cos"))
expm1 = _of_floats(_row("expm1"))
log1p = _of_floats(_row("log1p"))
log2 = _of_floats(_row("log2"))
sin = _of_floats(_row("sin"))
rint = _row("round")


# -- Signs, and numbers without a fraction ---------------------------------------------


def _below_zero(x: Any) -> Any:
    """Where the sign is a minus, that of -0 too."""
    return f.maximum(f.less(x, 0), f.less(f.reciprocal(x), 0))


def sign(x: Any) -> Any:
    """1, 0 or -1, as x is above, at or below 0; 0 of NaN, as PyTorch has it."""
    return f.to(f.greater(x, 0), x) - f.to(f.less(x, 0), x)


def numpy_sign(x: Any) -> Any:
    """The same, NaN of NaN."""
    return f.where(f.equal(x, x), sign(x), x)


def signbit(x: Any) -> Any:
    """Where the sign is a minus, that of -0 too."""
    return _below_zero(x) if is_float(x) else f.less(x, 0)


def copysign(x: Any, y: Any) -> Any:
    """The size of one tensor with the sign of the other."""
    x, y = _floats_of_numpy(x, y)
    size = f.abs(x) if isinstance(x, Tensor) else abs(x)
    if f.holds_integers(x) or (is_float(y) and _promotes(x, y)):
        # Promoted as a product is; of floats there are two zeros.
        below = _below_zero(y) if _varies(y) else math.copysign(1, y) < 0
        signs = f.where(below, -1.0, 1.0) if _varies(y) else 1.0 - 2.0 * below
        return size * (f.to(signs, y) if is_float(y) else signs)
    if not isinstance(y, Tensor):
        return size if math.copysign(1, y) > 0 else -size
    found = f.where(_below_zero(y), -size, size)
    return found if _varies(x) else f.to(found, y)


def _floats_of_numpy(*operands: Any) -> tuple[Any, ...]:
    """Operands of a function that NumPy has of floats alone, as it converts them."""
    first = next(x for x in operands if _varies(x))
    if first.recorder.origin.library != "numpy" or all(map(is_float, operands)):
        return operands
    dtype = float_of_numpy(operands, [as_operand(x) for x in operands])
    return tuple(f.to(x, dtype) if _varies(x) else x for x in operands)


def _promotes(x: Any, y: Tensor) -> bool:
    return isinstance(x, Tensor) and x.handle.value.dtype != y.handle.value.dtype


def heaviside(x: Any, values: Any) -> Any:
    """0 below 0, 1 above it, and `values` there."""
    x, values = _floats_of_numpy(x, values)
    return f.where(f.equal(x, 0), values, f.to(f.greater(x, 0), x))


def floor(x: Any) -> Any:
    """The next whole number that is not above x."""
    return x.clone() if f.holds_integers(x) else apply(OPERATORS["floor"], x)


def ceil(x: Any) -> Any:
    """The next whole number that is not below x."""
    return x.clone() if f.holds_integers(x) else -floor(-x)


def trunc(x: Any) -> Any:
    """The whole number next to x on the side of 0."""
    if f.holds_integers(x):
        return x.clone()
    return f.where(f.less(x, 0), ceil(x), floor(x))


def frac(x: Any) -> Any:
    """What is left of x without its whole part, with the sign of x."""
    return x - trunc(x)


def round(x: Any, decimals: int = 0) -> Any:
    """The nearest whole number, of two the even one, or so many decimals."""
    if f.holds_integers(x):
        if decimals < 0:
            raise UnsupportedError.here(
                f"round of integers to decimals={decimals}; convert them to floats"
            )
        return x.clone()
    if not decimals:
        return rint(x)
    factor = 10.0 ** abs(decimals)
    if decimals > 0:
        return rint(x * factor) / factor
    return rint(x / factor) * factor


# -- Division with a rest --------------------------------------------------------------


def fmod(a: Any, b: Any) -> Any:
    """What is left of a after whole numbers of b, with the sign of a."""
    if not _are_integers(a, b):
        return apply(OPERATORS["fmod"], a, b)
    rest = f.remainder(a, b)
    return f.where(_beyond(a, b, rest), rest - b, rest)


def _beyond(a: Any, b: Any, rest: Any) -> Any:
    """Where a quotient of integers that is rounded down is away from 0."""
    return f.mul(f.not_equal(rest, 0), f.not_equal(_negative(a), _negative(b)))


def _negative(x: Any) -> Any:
    return f.less(x, 0) if _varies(x) else bool(x < 0)


def remainder(a: Any, b: Any) -> Any:
    """What is left of a after whole numbers of b, with the sign of b."""
    if _are_integers(a, b):
        return f.remainder(a, b)
    rest = fmod(a, b)
    return f.where(_against(rest, b), rest + b, rest)


def _against(rest: Any, b: Any) -> Any:
    """Where a rest is not 0, and has not the sign of b."""
    below = f.less(rest, 0)
    if _varies(b):
        below = f.not_equal(below, f.less(b, 0))
    elif b < 0:
        below = f.greater(rest, 0)
    return f.mul(f.not_equal(rest, 0), below)


def _are_integers(*operands: Any) -> bool:
    return all(
        isinstance(x, int | np.integer | np.bool_) or f.is_whole(x) for x in operands
    )


def _varies(x: Any) -> bool:
    return isinstance(x, Tensor)


def floor_divide(a: Any, b: Any) -> Any:
    """The largest whole number of b that is not beyond a."""
    if _are_integers(a, b):
        return f.floor_divide(a, b)
    if isinstance(b, int | float) and not b:
        return f.div(a, b)
    rest = fmod(a, b)
    whole = apply(OPERATORS["round"], (a - rest) / b)
    found = f.where(_against(rest, b), whole - 1, whole)
    # By 0 it is what the quotient is.
    return f.where(f.equal(b, 0), f.div(a, b), found) if _varies(b) else found


# -- Exponentials and logarithms -------------------------------------------------------


def logaddexp(a: Any, b: Any) -> Any:
    """The logarithm of the sum of two exponentials."""
    return _log_of_sum(a, b, f.exp, log1p, math.log(2))


def logaddexp2(a: Any, b: Any) -> Any:
    """The logarithm to the base 2 of the sum of two powers of 2."""
    return _log_of_sum(a, b, f.exp2, _log2_of_more, 1.0)


def _log2_of_more(x: Any) -> Any:
    return log1p(x) / math.log(2)


def _log_of_sum(a: Any, b: Any, exp: Any, log_of_more: Any, of_two: float) -> Any:
    a, b = _floats_of_numpy(a, b)
    top, apart = f.maximum(a, b), f.abs(f.sub(a, b))
    # Of two equal infinities the difference is no number.
    return top + f.where(f.equal(a, b), of_two, log_of_more(exp(-apart)))


def xlogy(x: Any, y: Any) -> Any:
    """X times the logarithm of y, which is 0 where x is."""
    return f.where(_zero_beside(x, y), 0.0, f.mul(x, _log(_in_format(x, y))))


def xlog1py(x: Any, y: Any) -> Any:
    """X times the logarithm of 1 + y, which is 0 where x is."""
    log = log1p(_in_format(x, y)) if _varies(y) else _of_number(math.log1p, y, -1)
    return f.where(_zero_beside(x, y), 0.0, f.mul(x, log))


def _in_format(x: Any, y: Any) -> Any:
    """Integers and truth values in the format of the floats beside them."""
    return f.to(y, x) if is_float(x) and _varies(y) and not is_float(y) else y


def _log(y: Any) -> Any:
    return f.log(y) if _varies(y) else _of_number(math.log, y, 0)


def _of_number(log: Callable[[float], float], y: float, end: float) -> float:
    """A logarithm, also of a number at the end of where it is finite, or below."""
    if y <= end:
        return -math.inf if y == end else math.nan
    return log(y)


def _zero_beside(x: Any, y: Any) -> Any:
    """Where x is 0, and y a number."""
    zero = f.equal(x, 0) if _varies(x) else None
    number = f.equal(y, y) if _varies(y) else None
    if zero is None:
        return number if x == 0 else f.mul(number, False)
    return zero if number is None else f.mul(zero, number)


@_of_floats
def logit(x: Any, eps: float | None = None) -> Any:
    """The logarithm of x over 1 - x, of x between eps and 1 - eps.

    PyTorch takes the latter of f32 in f32, which shows where eps is small.
    """
    if eps is not None and eps > 0.5:
        raise UnsupportedError.here(f"logit with eps={eps}; expected 0.5 at most")
    if eps is not None:
        single = isinstance(x, Tensor) and x.handle.value.dtype == f32
        kind = np.float32 if single else np.float64
        x = f.clamp(x, float(kind(eps)), float(kind(1) - kind(eps)))
    return f.log(x / (1 - x))


def float_power(x: Any, exponent: Any) -> Any:
    """A power in float64, whatever is given."""
    return f.pow(*(f.to(t, "float64") if _varies(t) else t for t in (x, exponent)))


def ldexp(x: Any, exponent: Any) -> Any:
    """X times a power of 2, in the format of x where the exponent is an integer."""
    x, exponent = as_tensor("ldexp", x), as_tensor("ldexp", exponent)
    found = f.mul(x, f.pow(2.0, exponent))
    return f.to(found, x) if is_float(x) and f.is_whole(exponent) else found


# -- Trigonometric and hyperbolic functions --------------------------------------------


@_of_floats
def sinh(x: Any) -> Any:
    """Half the difference of the exponentials of x and -x."""
    size = f.abs(x)
    near = expm1(f.minimum(size, 1.0))
    root = f.exp(size * 0.5)
    far = root * 0.5 * root - 0.5 / (root * root)
    found = f.where(f.less(size, 1), 0.5 * (near + near / (near + 1)), far)
    return f.where(f.less(x, 0), -found, found)


@_of_floats
def cosh(x: Any) -> Any:
    """Half the sum of the exponentials of x and -x."""
    root = f.exp(f.abs(x) * 0.5)
    return root * 0.5 * root + 0.5 / (root * root)


@_of_floats
def asinh(x: Any) -> Any:
    """The number whose hyperbolic sine is x."""
    size = f.abs(x)
    low = f.minimum(size, _LARGE)
    square = low * low
    near = log1p(low + square / (1 + f.sqrt(square + 1)))
    found = f.where(f.greater(size, _LARGE), f.log(size) + math.log(2), near)
    return f.where(f.less(x, 0), -found, found)


@_of_floats
def acosh(x: Any) -> Any:
    """The number, not below 0, whose hyperbolic cosine is x."""
    low = f.minimum(x, _LARGE)
    near = log1p((low - 1) + f.sqrt(low - 1) * f.sqrt(low + 1))
    return f.where(f.greater(x, _LARGE), f.log(x) + math.log(2), near)


@_of_floats
def atanh(x: Any) -> Any:
    """The number whose hyperbolic tangent is x."""
    size = f.abs(x)
    found = 0.5 * log1p(2 * size / (1 - size))
    return f.where(f.less(x, 0), -found, found)


def hypot(a: Any, b: Any) -> Any:
    """The root of the sum of two squares, which may be beyond the largest number."""
    a, b = _floats_of_numpy(a, b)
    a, b = f.abs(a), f.abs(b)
    more, less = f.maximum(a, b), f.minimum(a, b)
    ratio = less / f.where(f.equal(more, 0), 1.0, more)
    # Of two infinities the quotient is no number.
    ratio = f.where(f.equal(a, b), 1.0, ratio)
    endless = f.maximum(f.equal(a, math.inf), f.equal(b, math.inf))
    return f.where(endless, math.inf, more * f.sqrt(1 + ratio * ratio))


@_of_floats
def sinc(x: Any) -> Any:
    """The sine of pi x over pi x, and 1 at 0."""
    angle = x * math.pi
    zero = f.equal(x, 0)
    return f.where(zero, 1.0, sin(angle) / f.where(zero, 1.0, angle))


def fmax(a: Any, b: Any) -> Any:
    """The larger of two, of a number and NaN the number."""
    return _but_nan(a, b, f.maximum(a, b))


def fmin(a: Any, b: Any) -> Any:
    """The smaller of two, of a number and NaN the number."""
    return _but_nan(a, b, f.minimum(a, b))


def _but_nan(a: Any, b: Any, found: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if _varies(one) and not is_condition(one):
            found = f.where(f.not_equal(one, one), other, found)
    return found


# -- Arguments of `div` ----------------------------------------------------------------


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """The quotient, as it is or rounded down (`floor`) or towards 0 (`trunc`)."""
    if rounding_mode is None:
        return f.div(a, b)
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode != "trunc":
        raise UnsupportedError.here(
            f"div: rounding_mode={rounding_mode!r}; expected None, 'floor' or 'trunc'"
        )
    if _are_integers(a, b):
        whole = f.floor_divide(a, b)
        return f.where(_beyond(a, b, f.remainder(a, b)), whole + 1, whole)
    return trunc(f.div(a, b))


_OF_FLOATS = formulas(
    acos=lambda x: atan2(f.sqrt((1 - x) * (1 + x)), x),
    asin=lambda x: atan2(x, f.sqrt((1 - x) * (1 + x))),
    atan=lambda x: atan2(x, 1.0),
    tan=lambda x: sin(x) / cos(x),
)
_OF_ONE: Mapping[str, Function] = {
    **{name: _of_floats(formula) for name, formula in _OF_FLOATS.items()},
    **formulas(
        deg2rad=lambda x: x * (math.pi / 180),
        log10=lambda x: log2(x) * math.log10(2),
        positive=lambda x: +x,
        rad2deg=lambda x: x * (180 / math.pi),
    ),
}
ELEMENTARY: Mapping[str, Function] = {
    **_OF_ONE,
    **named(acosh, asinh, atan2, atanh, cos, cosh, sin, sinc, sinh),
    **named(copysign, fmax, fmin, heaviside, hypot, sign),
    **named(expm1, log1p, log2, logaddexp, logaddexp2),
    **named(ceil, floor, floor_divide, fmod, remainder, round, trunc),
    "arccos": _OF_ONE["acos"],
    "arccosh": acosh,
    "arcsin": _OF_ONE["asin"],
    "arcsinh": asinh,
    "arctan": _OF_ONE["atan"],
    "arctan2": atan2,
    "arctanh": atanh,
    "around": round,
    "divide": div,
    "fix": trunc,
    "rint": rint,
}
"""By the names of PyTorch and of NumPy."""

PYTORCH_ONLY: Mapping[str, Function] = {
    **named(div, float_power, frac, ldexp, logit, signbit, xlogy),
    "sgn": sign,
}
"""By PyTorch's names."""
