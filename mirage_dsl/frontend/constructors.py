"""Tensors that no argument holds: index values, constants, and the masks made of them.

`mirage.arange` and its like, and PyTorch's own constructors, which are found by a mode
of PyTorch while a function is traced.  NumPy's are found where they are told what to be
like: `np.arange(n, like=x)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from mirage_dsl.core.errors import (
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.types import (
    DType,
    Scalar,
    boolean,
    dtype_of,
    f32,
    f64,
    i64,
    scalar,
)
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import leaves_of, map_leaves
from mirage_dsl.frontend.functions import apply, as_operand, as_tensor, public
from mirage_dsl.frontend.program import DimVars, Handle
from mirage_dsl.frontend.recorder import (
    RECORDING,
    Recorder,
    SymbolicSize,
    extents_given,
    flat_arguments,
    integer,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ops.table import EQUAL, OPERATORS

# -- Index values ----------------------------------------------------------------------


def _recorder(what: str) -> Recorder:
    recorder = RECORDING.get()
    if recorder is None:
        raise TraceError.here(
            f"{what} makes a value of a program, so it stands in a function that is "
            "traced: one that mirage.kernel decorates"
        )
    return recorder


def _vars(recorder: Recorder, extent: Any) -> DimVars:
    """The dims of a new axis, of which a symbolic extent tells."""
    if isinstance(extent, SymbolicSize):
        return extent.vars
    count = integer(extent, "an extent")
    return () if count == 1 else (recorder.dims.fresh(count),)


def _made(recorder: Recorder, handle: Handle) -> Tensor:
    return Tensor.made(recorder, handle, ())


def _placed(x: Any, dtype: Any, device: Any) -> Any:
    """The tensor in a dtype, if one is given, on the device of the trace."""
    if device is not None:
        x.stays(device)
    wanted = dtype if dtype is None else _format(dtype)
    return x if wanted in (None, x.handle.value.dtype) else f.astype(x, wanted)


def _format(dtype: Any) -> DType:
    return f.format_meant("a tensor of", dtype, _recorder("a dtype").origin)


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
    if any(isinstance(n, float) for n in (start, end, step)):
        return steps_of(start, step, _count(start, end, step), dtype, device)
    if (start, step) == (0, 1):
        vars = _vars(recorder, end)
    else:
        first, last, by = (
            integer(n, "an argument of arange") for n in (start, end, step)
        )
        vars = _vars(recorder, _count(first, last, by))
    found: Any = _made(recorder, recorder.index(vars))
    if step != 1:
        found = found * step
    if start != 0:
        found = found + start
    return _placed(found, dtype, device)


def _count(start: float, end: float, step: float) -> int:
    """How many numbers there are from one to before another."""
    count = math.ceil((end - start) / step) if step else 0
    if count < 1:
        raise TraceError.here(
            f"arange from {start} to {end} by {step} is empty; expected at least one "
            "number"
        )
    return count


def steps_of(
    start: float, step: float, count: int, dtype: Any, device: Any, zero: int = 0
) -> Any:
    """Numbers at equal distances, of which the one at `zero` is `start`; floats."""
    recorder = _recorder("arange")
    at = _made(recorder, recorder.index(_vars(recorder, count)))
    kind = _floats(recorder) if dtype is None else _format(dtype)
    wide = f.astype(at - zero if zero else at, f64 if kind == f64 else f32)
    return _placed(wide * step + start, kind, device)


def _floats(recorder: Recorder) -> DType:
    """The floats that Python's numbers become where nothing tells."""
    origin = recorder.origin
    return f64 if origin.library == "numpy" else origin.default_dtype() or f32


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
    return f.astype(f.where(keep, x, 0), x)


def _diagonal(name: str, x: Any, shift: int) -> tuple[Any, Any, Any]:
    """Matrices, where a diagonal is in each of their rows, and their columns."""
    x = as_tensor(name, x)
    if x.ndim < 2:
        raise TraceError.here(
            f"{name} of a tensor of rank {x.ndim}; expected 2 or more"
        )
    rows, columns = positions(x, -2), positions(x, -1)
    return x, rows + shift if shift else rows, columns


@public
def tril(x: Any, diagonal: int = 0, k: int | None = None) -> Any:
    """The elements of matrices on and below a diagonal, else 0.

    Args:
        x: Matrices, in the last two axes.
        diagonal: How far the last kept diagonal is above the main one.
        k: NumPy's name of it.
    """
    x, places, columns = _diagonal("tril", x, diagonal if k is None else k)
    return _kept(x, f.less_equal(columns, places))


@public
def triu(x: Any, diagonal: int = 0, k: int | None = None) -> Any:
    """The elements of matrices on and above a diagonal, else 0.

    Args:
        x: Matrices, in the last two axes.
        diagonal: How far the first kept diagonal is above the main one.
        k: NumPy's name of it.
    """
    x, places, columns = _diagonal("triu", x, diagonal if k is None else k)
    return _kept(x, f.less_equal(places, columns))


# -- Constants -------------------------------------------------------------------------


def _filled(
    what: str, shape: Sequence[Any], value: Any, dtype: Any, device: Any
) -> Any:
    recorder = _recorder(what)
    number = as_operand(value)
    if not isinstance(number, Scalar):
        raise TraceError.here(f"{what} of a tensor; use expand")
    extents = extents_given(shape)
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
    return _floats(recorder) if dtype is None else _format(dtype)


def _constructor(name: str, value: float) -> Callable[..., Any]:
    def make(
        *shape: Any,
        size: Any = None,
        dtype: Any = None,
        device: Any = None,
        order: str = "C",
    ) -> Any:
        del order
        sizes = flat_arguments(shape) if size is None else tuple(size)
        return _filled(name, sizes, value, dtype, device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"A tensor of a shape, all {value:g}."
    return public(make)


zeros = _constructor("zeros", 0.0)
ones = _constructor("ones", 1.0)


@public
def full(
    size: Any,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    order: str = "C",
) -> Any:
    """A tensor of a shape that holds one number."""
    del order
    shape = (size,) if isinstance(size, int) else tuple(size)
    found = _filled("full", shape, fill_value, dtype, device)
    f.refuse_overflow("full", found, fill_value)
    return found


@public
def eye(n: Any, m: Any = None, *, dtype: Any = None, device: Any = None) -> Any:
    """The n by m (or n by n) matrix with ones on its main diagonal."""
    return _ones_along(0, n, m, dtype, device)


def _numpy_eye(
    rows: Any,
    M: Any = None,  # noqa: N803
    k: int = 0,
    dtype: Any = None,
    order: str = "C",
    *,
    device: Any = None,
) -> Any:
    """NumPy's `eye`, whose diagonal may be another one."""
    del order
    return _ones_along(k, rows, M, dtype, device)


def _ones_along(shift: int, n: Any, m: Any, dtype: Any, device: Any) -> Any:
    """The matrix with ones on a diagonal that is so far above the main one."""
    recorder = _recorder("eye")
    rows, columns = (
        recorder.index(_vars(recorder, count)) for count in (n, n if m is None else m)
    )
    left = _made(recorder, Handle(rows.value, (*rows.axes, ())))
    left = left + shift if shift else left
    same = apply(EQUAL, left, _made(recorder, columns))
    return _placed(same, _floats(recorder) if dtype is None else dtype, device)


# -- Lists -----------------------------------------------------------------------------

MOST_NUMBERS = 64
"""How many numbers of a list may stand in a program, each compared with a position.

Neighbours that are equal, or follow each other, count once.
"""


def listed(data: Any, dtype: Any, device: Any) -> Any:
    """A tensor of the numbers in nested lists."""
    shape, numbers = _flat(data)
    if not numbers:
        return _filled("tensor", shape, 0.0, dtype, device)
    if not is_short(numbers):
        raise TraceError.here(
            f"torch.tensor of {len(numbers)} numbers in a traced function; expected 1 "
            f"to {MOST_NUMBERS}, of which neighbours that are equal or follow each "
            "other count once: pass a longer tensor as an argument"
        )
    recorder = _recorder("tensor")
    bools = all(isinstance(n, bool) for n in numbers)
    whole = all(isinstance(n, int) for n in numbers)
    wholes = [int(n) for n in numbers] if whole else []
    numbers = wholes or [float(n) for n in numbers]
    plain = boolean if bools else _dtype_of(recorder, numbers[0], None)
    wanted = plain if dtype is None else _format(dtype)
    kept = i64 if whole else wanted
    at = _made(recorder, recorder.index(_vars(recorder, len(numbers))))
    step = whole and len(_runs(numbers, 1)) < len(_runs(numbers, 0))
    runs = _runs(numbers, int(step))
    if wholes and len(runs) >= _SEVERAL and _bits(wholes) * len(wholes) <= _MOST_BITS:
        found = _parts_of_one(wholes, at)
        return _placed(f.reshape(found, *shape), wanted, device)
    found = _filled("tensor", (len(numbers),), runs[-1][1], kept, None)
    for (_, number), (last, _) in reversed(list(pairwise(runs))):
        # What stands before this place; those before are put behind.
        one = _filled("tensor", (), number, kept, None)
        found = f.where(f.less_equal(at, last - 1), one, found)
    found = found + at if step else found
    return _placed(f.reshape(found, *shape), wanted, device)


_SEVERAL = 4
"""From so many runs on small numbers are parts of one, if they fit into it."""
_MOST_BITS = 52
"""Of that one, which is exact as a float of 64 bits too."""


def _bits(numbers: Sequence[int]) -> int:
    """Of the longest of some numbers; more than any number has if one is negative."""
    return max(numbers).bit_length() if min(numbers) >= 0 else _MOST_BITS + 1


def _parts_of_one(numbers: Sequence[int], at: Tensor) -> Any:
    """Small numbers by their positions, as bits of one that is shifted.

    That is three operators, where comparisons are two for each number.
    """
    bits = _bits(numbers)
    one = sum(number << bits * place for place, number in enumerate(numbers))
    return f.bitwise_and(f.shift_right(one, at * bits), 2**bits - 1)


def is_short(numbers: Sequence[Any]) -> bool:
    """Whether so many numbers may stand in a program."""
    if not numbers:
        return False
    steps = (0, 1) if all(isinstance(n, int) for n in numbers) else (0,)
    return min(len(_runs(numbers, step)) for step in steps) <= MOST_NUMBERS


def _runs(numbers: Sequence[Any], step: int) -> list[tuple[int, Any]]:
    """Where numbers stop growing by a step, and what they are less that many steps."""
    found: list[tuple[int, Any]] = []
    for place, number in enumerate(numbers):
        rest = number - place * step if step else number
        if not found or found[-1][1] != rest:
            found.append((place, rest))
    return found


def _flat(data: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The shape of nested lists, and their numbers."""
    if isinstance(data, bool | int | float):
        return (), [data]
    if not isinstance(data, list | tuple | range):
        raise TraceError.here(
            f"torch.tensor of a {type(data).__name__} in a traced function; pass the "
            "tensor as an argument, so that its values are not frozen into the program"
        )
    parts = [_flat(part) for part in cast("Sequence[Any]", data)]
    if len({shape for shape, _ in parts}) > 1:
        raise ShapeError.here("a tensor of lists that are not equally long")
    inner = parts[0][0] if parts else ()
    return (len(parts), *inner), [n for _, numbers in parts for n in numbers]


def _triangle(within: Callable[..., Any]) -> Callable[..., Any]:
    """A function as `tril_indices`: rows and columns of the elements of a triangle."""

    def indices(
        row: int,
        col: int,
        offset: int = 0,
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> Any:
        places = within(np.ones((row, col), np.bool_), offset).nonzero()
        return f.stack([listed(p.tolist(), dtype or i64, device) for p in places])

    return indices


MOST_BYTES = 4096
"""Of an array, and of places in a tensor, whose values a kernel watches."""


def _pythons(data: Any, dtype: Any) -> tuple[Any, Any]:
    """Numbers of Python's for NumPy's arrays and numbers, and PyTorch's dtype of them.

    Raises:
        TraceError: They are more than a kernel watches.
    """
    found: list[Any] = [x for x in leaves_of(data) if isinstance(x, _NUMPYS)]
    if not found or any(isinstance(x, Tensor) for x in leaves_of(data)):
        return data, dtype
    size = sum(x.nbytes for x in found)
    if size > MOST_BYTES:
        raise TraceError.here(
            f"torch.tensor of {size} bytes of NumPy's in a traced function; expected "
            f"{MOST_BYTES} at most, whose change a kernel sees: pass the tensor as an "
            "argument"
        )
    # Not in the mode of the trace, in which this is called.
    made = _recorder("tensor").origin.torch.tensor(data)
    return made.tolist(), made.dtype if dtype is None else dtype


_NUMPYS = (np.ndarray, np.generic)


def of_arrays(given: Any) -> Any:
    """Arguments with tensors for the arrays in them that are no arguments of a kernel.

    Raises:
        TraceError: One holds more numbers than a kernel watches, or may stand in it.
    """

    def leaf(_: str, found: Any) -> Any:
        return _of_array(found) if type(found) is np.ndarray else found

    arrays = any(type(found) is np.ndarray for found in leaves_of(given))
    return map_leaves(given, leaf) if arrays else given


def _of_array(array: Any) -> Any:
    dtype = dtype_of(array.dtype)
    known = dtype is not None and array.nbytes <= MOST_BYTES
    if not known or not is_short(array.ravel().tolist()):
        raise TraceError.here(
            f"a numpy ndarray of {array.dtype} and shape {array.shape} that is no "
            "argument of the function; pass it as an argument, so that its values are "
            "not frozen into the program, or make it there of positions, as of "
            f"np.arange(n, like=x): at most {MOST_NUMBERS} numbers are constants, of "
            "which neighbours that are equal or follow each other count once"
        )
    if not array.ndim:
        return _filled("an array", (), array.item(), dtype, None)
    return listed(array.tolist(), dtype, None)


def _tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """PyTorch's `tensor` of a number, an array of NumPy's, or lists of these."""
    data, dtype = _pythons(data, dtype)
    if isinstance(data, list | tuple | range):
        return listed(data, dtype, device)
    return _scalar_tensor(data, dtype=dtype, device=device)


def _linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None
) -> Any:
    """So many numbers at equal distances, with both ends."""
    count = integer(steps, "steps")
    step = (end - start) / (count - 1) if count > 1 else 0.0
    near = steps_of(start, step, count, dtype, device)
    of_data = any(isinstance(point, Tensor) for point in (start, end))
    if of_data and near.handle.value.dtype.is_integer:
        raise UnsupportedError.here(
            "linspace of integers between ends that are data, whose last digit says "
            "which integers these are; make it outside of the function"
        )
    if count == 1:
        return near
    # From the nearer end, as PyTorch: both ends are what was given.
    far = steps_of(end, step, count, dtype, device, count - 1)
    recorder = _recorder("linspace")
    at = _made(recorder, recorder.index(_vars(recorder, count)))
    return f.where(f.less_equal(at, count // 2 - 1), near, far)


def _logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Any:
    """Powers of a base, of so many exponents at equal distances.

    Of integers both ends are whole, as PyTorch's, and no others.
    """
    wanted = dtype_of(dtype)
    if wanted is not None and wanted.is_integer:
        start, end = (
            f.to(f.to(n, wanted), f32) if isinstance(n, Tensor) else int(n)
            for n in (start, end)
        )
    return _placed(f.pow(base, _linspace(start, end, steps)), dtype, device)


def _as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Any:
    """A traced tensor in a dtype, or PyTorch's `tensor` of numbers."""
    if isinstance(data, Tensor):
        return _placed(data, dtype, device)
    return _tensor(data, dtype=dtype, device=device)


def _scalar_tensor(data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """PyTorch's `tensor` of a number."""
    if not isinstance(data, bool | int | float):
        raise TraceError.here(
            f"torch.tensor of a {type(data).__name__} in a traced function; pass the "
            "tensor as an argument, so that its values are not frozen into the program"
        )
    return _filled("tensor", (), data, dtype, device)


CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    "arange": arange,
    "as_tensor": _as_tensor,
    "asarray": _as_tensor,
    "empty": zeros,
    "eye": eye,
    "full": full,
    "linspace": _linspace,
    "logspace": _logspace,
    "ones": ones,
    "scalar_tensor": _scalar_tensor,
    "tensor": _tensor,
    "tril_indices": _triangle(np.tril),
    "triu_indices": _triangle(np.triu),
    "zeros": zeros,
}
"""By PyTorch's names."""

TRIANGLES: Mapping[str, Callable[..., Any]] = {"tril": tril, "triu": triu}
"""By the names that PyTorch and NumPy share."""

NUMPY_CONSTRUCTORS: Mapping[str, Callable[..., Any]] = {
    **{n: CONSTRUCTORS[n] for n in ("arange", "empty", "full", "ones", "zeros")},
    "eye": _numpy_eye,
    "identity": _numpy_eye,
}
"""By NumPy's names, which it calls where `like=` is a traced tensor."""
