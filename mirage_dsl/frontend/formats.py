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
        return f64 if op is DIV else float_of_numpy(given, operands)
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
    return _together([_kind_of(*pair) for pair in pairs])


def float_of_numpy(given: Sequence[Any], operands: Sequence[Operand]) -> DType:
    """The format of NumPy's functions that take floats: each operand as one."""
    kinds = [_kind_of(*pair) for pair in zip(given, operands, strict=True)]
    promoted = _together(kinds)
    own = [k for k in kinds if _has_format(k)]
    if promoted.is_float or (promoted != boolean and _together(own) == boolean):
        # Python's numbers beside what is of a lower kind have NumPy's default formats.
        return promoted if promoted.is_float else f64
    found = _together([_float_kind(kind) for kind in kinds])
    return found if found.is_float else _NARROW.get(found, f64)


def is_numpys_number(value: object) -> bool:
    """Whether it is a number of NumPy's, which has a format, unlike Python's."""
    return isinstance(value, np.generic)


def _has_format(kind: Any) -> bool:
    return is_numpys_number(kind) or isinstance(kind, np.dtype)


def _float_kind(kind: Any) -> Any:
    """The float that NumPy makes of a format; numbers of Python are as they are."""
    if not _has_format(kind):
        return kind
    known = _together([kind])
    return kind if known.is_float else numpy_dtype(_NARROW.get(known, f64))


def _kind_of(value: Any, operand: Operand) -> Any:
    """What NumPy's promotion takes: a format, or a number of Python."""
    if isinstance(operand, Handle):
        return numpy_dtype(operand.value.dtype)
    if is_numpys_number(value) or isinstance(value, bool | int | float):
        return value
    return 1.0 if isinstance(value, Fraction) else 1


def _together(kinds: Sequence[Any]) -> DType:
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


def joined_format(handles: Sequence[Handle], origin: Origin) -> DType:
    """The format of tensors one after the other."""
    if origin.library == "numpy":
        return _together([numpy_dtype(h.value.dtype) for h in handles])
    return promote(*(h.value.dtype for h in handles))


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
    "float_of_numpy",
    "format_of",
    "is_numpys_number",
    "joined_format",
    "summed_format",
]
