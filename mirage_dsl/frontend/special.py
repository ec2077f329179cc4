"""Functions of each element that only PyTorch computes, and formulas of them.

They are those of `torch.special`, and common divisors of integers.  A library operator
sees all axes as one; what is around it is searched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from mirage_dsl.core.errors import DTypeError
from mirage_dsl.core.types import Scalar, i8, i16, i32, u8
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.elementary import xlog1py
from mirage_dsl.frontend.functions import (
    as_floats,
    as_operand,
    as_tensor,
    format_of,
    named,
    recorder_of,
)
from mirage_dsl.frontend.rearranging import broadcast_tensors
from mirage_dsl.frontend.recorder import integer
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.definition import Formats
from mirage_dsl.ops.table import OPERATORS, SPECIAL, SPECIAL_OF_TWO

# -- Of one tensor ---------------------------------------------------------------------


def _of_one(name: str, **numbers: int) -> Function:
    """A function of each element, which a library operator computes."""

    def function(x: Any) -> Any:
        return _each(name, as_floats(as_tensor(name, x)), **numbers)

    function.__name__ = name
    return function


def _each(name: str, *operands: Tensor, **numbers: int) -> Any:
    """A library operator of all elements, or of each pair of them."""
    recorder = operands[0].recorder
    first, *others = (recorder.spread(x.handle) for x in operands)
    for other in others:
        for at in range(len(first.axes)):
            recorder.pair(first, at, other, at)
    handles = [first, *others]
    made = recorder.library_by_groups(name, handles, [slice(None)], {0: 0}, numbers)
    return Tensor.made(recorder, made, operands)


def polygamma(n: Any, x: Any) -> Any:
    """The n-th derivative of the digamma function, of a tensor's elements."""
    if isinstance(n, Tensor):
        # The method has the tensor first.
        n, x = x, n
    return _of_one("polygamma", n=integer(n, "an order"))(x)


def multigammaln(x: Any, p: int) -> Any:
    """The logarithm of the gamma function of so many dimensions."""
    shift = p * (p - 1) / 4 * math.log(math.pi)
    parts = [_of_one("gammaln")(x - at / 2) for at in range(integer(p, "p"))]
    return functools.reduce(f.add, parts) + shift


def entr(x: Any) -> Any:
    """-x log x, 0 at 0 and minus infinity below it."""
    x = as_floats(as_tensor("entr", x))
    inside = f.where(f.equal(x, 0), 0.0, -x * f.log(x))
    return f.where(f.less(x, 0), -math.inf, inside)


# -- Of two ----------------------------------------------------------------------------


def _of_two(name: str) -> Function:
    """The same of two tensors, or of one and a number, which broadcast."""
    op = OPERATORS[name]

    def function(x: Any, other: Any) -> Any:
        recorder = recorder_of(name, (x, other))
        given = [as_operand(operand) for operand in (x, other)]
        dtype = format_of(op, recorder.origin, (x, other), given)
        if op.formats is Formats.INTEGERS and not dtype.is_integer:
            raise DTypeError.here(
                f"{name} of {dtype}; PyTorch has it of integers: convert first, as "
                "with .long()"
            )
        made = (
            Tensor.made(recorder, recorder.full([], operand, dtype), ())
            if isinstance(operand, Scalar)
            else f.to(tensor, dtype)
            for operand, tensor in zip(given, (x, other), strict=True)
        )
        return _each(name, *broadcast_tensors(*made))

    function.__name__ = name
    return function


gcd = _of_two("gcd")


def lcm(x: Any, other: Any) -> Any:
    """The smallest positive number that both divide, 0 if one is 0."""
    common = gcd(x, other)
    # As in C, where short integers are wide ones until they are stored.
    short = common.handle.value.dtype in (i8, u8, i16)
    wide = [f.to(t, i32) if short else t for t in (x, other) if isinstance(t, Tensor)]
    numbers = [n for n in (x, other) if not isinstance(n, Tensor)]
    first, second = (*wide, *numbers)
    # Of the lowest numbers the common divisor is below 0, as they are.
    divisor = f.where(f.equal(common, 0), 1, common)
    found = f.abs(f.floor_divide(first, divisor) * second)
    return f.to(found, common)


# -- Names -----------------------------------------------------------------------------

OF_EACH: Mapping[str, Function] = {
    **{name: _of_one(name) for name in SPECIAL},
    **{name: _of_two(name) for name in SPECIAL_OF_TWO},
    **dict.fromkeys(("mvlgamma", "multigammaln"), multigammaln),
    **named(entr, gcd, lcm, polygamma, xlog1py),
    "igamma": _of_two("gammainc"),
    "igammac": _of_two("gammaincc"),
    "lgamma": _of_one("gammaln"),
    "psi": _of_one("digamma"),
    "special_expit": f.sigmoid,
    "special_xlog1py": xlog1py,
}
"""By PyTorch's names."""
