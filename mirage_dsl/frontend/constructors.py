"""Tensors that no argument holds: index values, constants, and the masks made of them.

`mirage.arange` and its like, and PyTorch's own constructors, which are found by a mode
of PyTorch while a function is traced.  NumPy's are found where they are told what to be
like: `np.arange(n, like=x)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import DTypeError, TraceError, user_location
from mirage_dsl.core.types import (
    DTYPE_NAMES,
    DType,
    Scalar,
    boolean,
    dtype_of,
    f32,
    i64,
    scalar,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.dims import DimVars, Handle
from mirage_dsl.frontend.operands import apply, as_operand, as_tensor, public
from mirage_dsl.frontend.recorder import RECORDING, Recorder
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import EQUAL, OPERATORS

# -- Index values ----------------------------------------------------------------------


def _recorder(what: str) -> Recorder:
    recorder = RECORDING.get()
    if recorder is None:
        raise TraceError(
            f"{what} makes a value of a program, so it stands in a function that is "
            "traced: one that mirage.kernel decorates",
            user_location(),
        )
    return recorder


def _vars(recorder: Recorder, extent: Any) -> DimVars:
    """The dims of a new axis, of which a symbolic extent tells."""
    if isinstance(extent, shapes.SymbolicSize):
        return extent.vars
    count = shapes.integer(extent, "an extent")
    return () if count == 1 else (recorder.dims.fresh(count),)


def _made(recorder: Recorder, handle: Handle) -> Tensor:
    return Tensor.made(recorder, handle, ())


def _placed(x: Any, dtype: Any, device: Any) -> Any:
    """The tensor in a dtype, if one is given, on the device of the trace."""
    if device is not None:
        x.stays(device)
    if dtype is None or _format(dtype) == x.handle.value.dtype:
        return x
    return v.astype(x, _format(dtype))


def _format(dtype: Any) -> DType:
    found = i64 if dtype is int else dtype_of(dtype)
    if found is None:
        raise DTypeError(
            f"a tensor of {dtype}; expected one of {DTYPE_NAMES}", user_location()
        )
    return found


@public
def arange(
    start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Any:
    """The integers from `start` (0 if only one is given) to before `end`: positions.

    A mask made of them is computed where it is used, and never read from memory.

    Raises:
        TraceError: It is called outside of a traced function, or not with integers.
    """
    recorder = _recorder("arange")
    if end is None:
        start, end = 0, start
    if (start, step) == (0, 1):
        vars = _vars(recorder, end)
    else:
        first, last, by = (
            shapes.integer(n, "an argument of arange") for n in (start, end, step)
        )
        if not by or not len(range(first, last, by)):
            raise TraceError(
                f"arange from {first} to {last} by {by} is empty; expected at least "
                "one number",
                user_location(),
            )
        vars = _vars(recorder, len(range(first, last, by)))
    found: Any = _made(recorder, recorder.index(vars))
    if step != 1:
        found = found * step
    if start != 0:
        found = found + start
    return _placed(found, dtype, device)


def positions(x: Any, axis: int) -> Tensor:
    """The positions along an axis of a tensor, with axes of extent 1 for those behind.

    Args:
        x: The tensor.
        axis: Counted from the back, below 0.
    """
    recorder, axes = x.recorder, x.handle.axes
    found = recorder.index(axes[axis])
    return _made(recorder, Handle(found.value, (*found.axes, *((),) * (-1 - axis))))


# -- Triangles -------------------------------------------------------------------------


def _kept(x: Any, keep: Tensor) -> Any:
    """The tensor where a condition holds, else 0."""
    value = x.handle.value
    number = x.recorder.constants.get(value)
    if value.dtype == boolean and number == scalar(1):
        axes = x.handle.axes
        return _made(x.recorder, Handle(keep.handle.value, axes))
    if value.dtype == boolean:
        return apply(OPERATORS["mul"], x, keep)
    return v.astype(f.where(keep, x, 0), x)


def _of_matrices(name: str, x: Any) -> Any:
    x = as_tensor(name, x)
    if x.ndim < 2:
        raise TraceError(
            f"{name} of a tensor of rank {x.ndim}; expected 2 or more", user_location()
        )
    return x


@public
def tril(x: Any, diagonal: int = 0, k: int | None = None) -> Any:
    """The elements of matrices on and below a diagonal, else 0.

    Args:
        x: Matrices, in the last two axes.
        diagonal: How far the last kept diagonal is above the main one.
        k: NumPy's name of it.
    """
    x, shift = _of_matrices("tril", x), diagonal if k is None else k
    rows, columns = positions(x, -2), positions(x, -1)
    return _kept(x, f.less_equal(columns, rows + shift if shift else rows))


@public
def triu(x: Any, diagonal: int = 0, k: int | None = None) -> Any:
    """The elements of matrices on and above a diagonal, else 0.

    Args:
        x: Matrices, in the last two axes.
        diagonal: How far the first kept diagonal is above the main one.
        k: NumPy's name of it.
    """
    x, shift = _of_matrices("triu", x), diagonal if k is None else k
    rows, columns = positions(x, -2), positions(x, -1)
    return _kept(x, f.less_equal(rows + shift if shift else rows, columns))


# -- Constants -------------------------------------------------------------------------


def _filled(
    what: str, shape: Sequence[Any], value: Any, dtype: Any, device: Any
) -> Any:
    recorder = _recorder(what)
    number = as_operand(value)
    if not isinstance(number, Scalar):
        raise TraceError(f"{what} of a tensor; use expand", user_location())
    extents = [
        s.vars if isinstance(s, shapes.SymbolicSize) else shapes.integer(s, "an extent")
        for s in shape
    ]
    kind = _dtype_of(recorder, value, dtype)
    found = _made(recorder, recorder.full(extents, number, kind))
    if device is not None:
        found.stays(device)
    return found


def _dtype_of(recorder: Recorder, value: Any, dtype: Any) -> Any:
    """The dtype of a constant tensor: the given one, or what its number has."""
    if dtype is None and isinstance(value, bool):
        return boolean
    if dtype is None and isinstance(value, int):
        return i64
    if dtype is None:
        return recorder.origin.default_dtype() or f32
    return _format(dtype)


def _constructor(name: str, value: float) -> Callable[..., Any]:
    def make(
        *shape: Any, size: Any = None, dtype: Any = None, device: Any = None
    ) -> Any:
        sizes = shapes.flat_arguments(shape) if size is None else tuple(size)
        return _filled(name, sizes, value, dtype, device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A tensor of a shape, all {value:g}."
    return public(make)


zeros = _constructor("zeros", 0.0)
ones = _constructor("ones", 1.0)


@public
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """A tensor of a shape that holds one number."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    return _filled("full", shape, fill_value, dtype, device)


@public
def eye(n: Any, m: Any = None, *, dtype: Any = None, device: Any = None) -> Any:
    """The n by m (or n by n) matrix with ones on its main diagonal."""
    recorder = _recorder("eye")
    rows, columns = (
        recorder.index(_vars(recorder, count)) for count in (n, n if m is None else m)
    )
    left = _made(recorder, Handle(rows.value, (*rows.axes, ())))
    same = apply(EQUAL, left, _made(recorder, columns))
    kind = recorder.origin.default_dtype() or f32
    return _placed(same, kind if dtype is None else dtype, device)


def _scalar_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """PyTorch's `tensor` of a number."""
    if not isinstance(data, bool | int | float):
        raise TraceError(
            f"torch.tensor of a {type(data).__name__} in a traced function; pass the "
            "tensor as an argument, so that its values are not frozen into the program",
            user_location(),
        )
    return _filled("tensor", (), data, dtype, device)


CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    "arange": arange,
    "empty": zeros,
    "eye": eye,
    "full": full,
    "ones": ones,
    "scalar_tensor": _scalar_tensor,
    "tensor": _scalar_tensor,
    "zeros": zeros,
}
"""By PyTorch's names."""

TRIANGLES: Mapping[str, Callable[..., Any]] = {"tril": tril, "triu": triu}
"""By the names that PyTorch and NumPy share."""

NUMPY_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    name: CONSTRUCTORS[name]
    for name in ("arange", "empty", "eye", "full", "ones", "zeros")
}
"""By NumPy's names, which it calls where `like=` is a traced tensor."""
