"""In which format an operator computes: PyTorch's promotion, and NumPy's.

Operators of the table take numbers of one format, so what promotes is converted
before, and the program shows where.  Between floats alone the type rules of the program
say what a mixture gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from mirage_dsl.core.errors import DTypeError, user_location
from mirage_dsl.core.types import (
    DType,
    Scalar,
    boolean,
    dtype_named,
    f16,
    f32,
    f64,
    i8,
    i16,
    i64,
    promote,
    u8,
)
from mirage_dsl.frontend.arguments import Origin
from mirage_dsl.frontend.dims import Handle, Operand
from mirage_dsl.ir.evaluate.floats import numpy_dtype
from mirage_dsl.ops.definition import Formats, Operator, Truth
from mirage_dsl.ops.table import DIV

_NARROW = {boolean: f16, i8: f16, u8: f16, i16: f32}
"""The floats that NumPy's functions make of other formats, f64 of those not here."""


def format_of(
    op: Operator, origin: Origin, given: Sequence[Any], operands: Sequence[Operand]
) -> DType:
    """The format in which an operator computes on some operands.

    Args:
        op: The operator.
        origin: What the function was called with.
        given: The operands as they were given; Python's numbers by their classes.
        operands: What they stand for.

    Raises:
        DTypeError: PyTorch and NumPy have none.
    """
    pairs = list(zip(given, operands, strict=True))[op.chooses :]
    numpy = origin.library == "numpy"
    found = _numpys(pairs) if numpy else _torchs(pairs, origin)
    if op.formats is Formats.ANY or found.is_float or op.truth is Truth.COMPARES:
        return found
    if op.formats is Formats.INTEGERS:
        return found
    if numpy:
        return f64 if op is DIV else _NARROW.get(found, f64)
    return origin.default_dtype() or f32


def _torchs(pairs: Sequence[tuple[Any, Operand]], origin: Origin) -> DType:
    """Tensors with axes say it, those without where theirs is another category."""
    handles = [o for _, o in pairs if isinstance(o, Handle)]
    shaped = [h.value.dtype for h in handles if h.axes]
    single = [h.value.dtype for h in handles if not h.axes]
    python = [_pythons(g, origin) for g, o in pairs if not isinstance(o, Handle)]
    found: DType | None = None
    for group in (python, single, shaped):
        if group:
            found = _combined(promote(*group), found)
    return found or f32


def _combined(higher: DType, lower: DType | None) -> DType:
    """What a group of operands makes of one that counts less."""
    if lower is None or higher.is_float:
        return higher
    if higher == boolean or lower.is_float:
        return promote(higher, lower)
    return higher


def _pythons(value: Any, origin: Origin) -> DType:
    if isinstance(value, bool | np.bool_):
        return boolean
    whole = isinstance(value, int | np.integer) or not isinstance(
        value, float | Fraction | np.floating
    )
    return i64 if whole else origin.default_dtype() or f32


def _numpys(pairs: Sequence[tuple[Any, Operand]]) -> DType:
    """As arrays of these formats promote, beside Python's numbers."""
    kinds: list[Any] = []
    for value, operand in pairs:
        if isinstance(operand, Handle):
            kinds.append(numpy_dtype(operand.value.dtype))
        elif isinstance(value, np.generic | bool | int | float):
            kinds.append(value)
        else:
            kinds.append(1.0 if isinstance(value, Fraction) else 1)
    name = np.result_type(*kinds).name
    found = dtype_named(name)
    if found is None:
        raise DTypeError(
            f"operands whose result is {name} in NumPy, in which no program computes; "
            "convert one of them",
            user_location(),
        )
    return found


def check_constants(op: Operator, dtype: DType, operands: Sequence[Operand]) -> None:
    """Refuse numbers that a format of integers does not hold.

    Raises:
        DTypeError: There is one.
    """
    for operand in operands[op.chooses :]:
        if isinstance(operand, Scalar) and not operand.extents:
            if not dtype.holds(operand.value):
                raise DTypeError(
                    f"{op.name} of {dtype.long_name} and {operand}, which that format "
                    "does not hold; convert the tensor to a larger one",
                    user_location(),
                )
            if dtype == i64 and abs(operand.value) > 2**53:
                raise DTypeError(
                    f"{op.name} of int64 and {operand}; constants beyond 2**53 are not "
                    "possible: pass the number as a tensor",
                    user_location(),
                )


def summed_format(what: str, dtype: DType, origin: Origin) -> DType:
    """The format in which PyTorch and NumPy add up or multiply many numbers.

    Raises:
        DTypeError: It is none of ours.
    """
    if dtype.is_float:
        return dtype
    if origin.library == "numpy" and dtype == u8:
        _refuse(f"{what} of uint8, which is uint64 in NumPy", ".astype('int64')")
    return i64


def averaged_format(dtype: DType, origin: Origin) -> DType:
    """The format of a mean.

    Raises:
        DTypeError: PyTorch has no mean of integers and truth values.
    """
    if dtype.is_float:
        return dtype
    if origin.library != "numpy":
        _refuse(f"a mean of {dtype.long_name}, which PyTorch does not take", ".float()")
    return f64


def _refuse(what: str, way: str) -> NoReturn:
    raise DTypeError(f"{what}; convert first, as with {way}", user_location())


__all__ = [
    "averaged_format",
    "check_constants",
    "format_of",
    "summed_format",
]
