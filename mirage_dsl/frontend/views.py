"""Functions that rearrange tensors: concat, split, axes, reshapes, repeats, casts."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import DTYPE_NAMES, boolean, dtype_of
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend.arguments import is_sequence
from mirage_dsl.frontend.dims import Handle, Operand, shape_text
from mirage_dsl.frontend.memory import Arranged, Expanded, Flattened
from mirage_dsl.frontend.operands import (
    as_operand,
    as_tensor,
    complement,
    joined_format,
    public,
    recorder_of,
)
from mirage_dsl.frontend.tensor import Tensor


@public
def concat(tensors: Sequence[Any], axis: Any = 0) -> Any:
    """Tensors joined along an axis."""
    given = list(tensors)
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
    # What is empty adds nothing, unless all are.
    some = [i for i, part in enumerate(parts) if part.shape[at] != 0] or [0]
    if not some[1:]:
        return given[some[0]].clone()
    parts = [parts[i] for i in some]
    if any(not p.value.dtype.is_float for p in parts):
        dtype = joined_format(parts, recorder.origin)
        parts = [recorder.cast(p, dtype) for p in parts]
    return Tensor.made(recorder, recorder.concat(parts, at), given)


def _joinable(first: Operand, other: Handle, axis: int) -> bool:
    if not isinstance(first, Handle) or len(first.axes) != len(other.axes):
        return False
    pairs = enumerate(zip(first.shape, other.shape, strict=True))
    return all(i == axis or None in (a, b) or a == b for i, (a, b) in pairs)


concatenate = cat = concat


@public
def stack(tensors: Sequence[Any], axis: Any = 0) -> Any:
    """Tensors joined along a new axis."""
    return concat([expand_dims(t, axis) for t in tensors], axis)


@public
def transpose(x: Any, *axes: Any) -> Any:
    """Axes in another order; two integers exchange two axes."""
    return as_tensor("transpose", x).transpose(*axes)


@public
def permute(x: Any, *order: Any) -> Any:
    """Axes in the given order."""
    return as_tensor("permute", x).permute(*order)


@public
def swapaxes(x: Any, first: int, second: int) -> Any:
    """Two axes exchanged."""
    return as_tensor("swapaxes", x).swapaxes(first, second)


@public
def reshape(x: Any, *shape: Any) -> Any:
    """Axes split and merged, row-major."""
    return as_tensor("reshape", x).reshape(*shape)


@public
def expand_dims(x: Any, axis: Any) -> Any:
    """A new axis of extent 1."""
    x = as_tensor("expand_dims", x)
    given = axis if is_sequence(axis) else (axis,)
    rank = x.ndim + len(given)
    new = {shapes.normal_axis(a, rank, "expand_dims") for a in given}
    old = iter(range(x.ndim))
    return x.viewed(
        Arranged(tuple(None if i in new else next(old) for i in range(rank)))
    )


unsqueeze = expand_dims


@public
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without axes of extent 1: all of them, or the given ones.

    PyTorch leaves axes of other extents as they are.
    """
    x = as_tensor("squeeze", x)
    units = [i for i, extent in enumerate(x.handle.shape) if extent == 1]
    gone = units if axis is None else shapes.normal_axes(axis, x.ndim, "squeeze")
    if x.recorder.origin.library == "torch":
        gone = [i for i in gone if x.handle.shape[i] in (1, None)]
    if any(i not in units for i in gone):
        raise ShapeError(
            f"squeeze of axis {axis} of {shape_text(x.handle)}: its extent is not 1",
            user_location(),
        )
    return x.viewed(Arranged(tuple(i for i in range(x.ndim) if i not in gone)))


@public
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes from the first to the last given merged into one."""
    x = as_tensor("flatten", x)
    x = x if x.ndim else expand_dims(x, 0)
    first = shapes.normal_axis(start_dim, x.ndim, "flatten")
    last = shapes.normal_axis(end_dim, x.ndim, "flatten")
    if first > last:
        raise ShapeError(
            f"flatten from axis {first} to axis {last}, which comes before it",
            user_location(),
        )
    return x.seen_as(Flattened(first, last))


@public
def unflatten(x: Any, axis: Any, shape: Sequence[Any]) -> Any:
    """One axis split into several."""
    x = as_tensor("unflatten", x)
    at = shapes.normal_axis(axis, x.ndim, "unflatten")
    return x.reshape(*x.shape[:at], *shape, *x.shape[at + 1 :])


@public
def expand(x: Any, *shape: Any) -> Any:
    """Axes of extent 1 repeated, and leading axes added; -1 keeps an extent."""
    x = as_tensor("expand", x)
    wanted = [
        s.vars if isinstance(s, shapes.SymbolicSize) else shapes.integer(s, "an extent")
        for s in shapes.flat_arguments(shape)
    ]
    if len(wanted) < x.ndim:
        raise ShapeError(
            f"expand of {shape_text(x.handle)} to {len(wanted)} axes", user_location()
        )
    return x.viewed(Expanded(tuple(wanted)))


broadcast_to = expand


@public
def repeat_interleave(x: Any, repeats: int, axis: Any = None) -> Any:
    """Every element of an axis, or of all axes merged, repeated, next to each other."""
    x = as_tensor("repeat_interleave", x)
    if axis is None:
        x, axis = flatten(x), 0
    at = shapes.normal_axis(axis, x.ndim, "repeat_interleave")
    grown = expand_dims(x, at + 1)
    sizes = [-1] * grown.ndim
    sizes[at + 1] = shapes.integer(repeats, "repeats")
    repeated = expand(grown, *sizes).viewed(Flattened(at, at + 1))
    return Tensor.made(x.recorder, repeated.handle, ())


@public
def narrow(x: Any, axis: Any, start: int, length: int) -> Any:
    """`length` elements of an axis from `start`, which counts from its end below 0."""
    x = as_tensor("narrow", x)
    at = shapes.normal_axis(axis, x.ndim, "narrow")
    extent = x.handle.shape[at]
    if extent is not None:
        first = start + extent if start < 0 else start
        if not 0 <= first <= first + length <= extent:
            raise ShapeError(
                f"narrow of axis {at} with extent {extent} to {length} elements from "
                f"{start} on: they must lie within it",
                user_location(),
            )
        start = first
    return x[(builtins.slice(None),) * at + (builtins.slice(start, start + length),)]


@public
def split(x: Any, sizes: Any, axis: Any = 0) -> Any:
    """Pieces of an axis: of equal size, or of the given sizes (as PyTorch's)."""
    x = as_tensor("split", x)
    at = shapes.normal_axis(axis, x.ndim, "split")
    extent = x.handle.shape[at]
    if extent is None:
        raise UnsupportedError("split of a dynamic axis", user_location())
    if is_sequence(sizes):
        lengths = [shapes.integer(s, "a size") for s in sizes]
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
def chunk(x: Any, chunks: int, axis: Any = 0) -> Any:
    """An axis cut into so many pieces, the last one shorter if need be."""
    x = as_tensor("chunk", x)
    at = shapes.normal_axis(axis, x.ndim, "chunk")
    extent = x.handle.shape[at]
    if extent is None:
        raise UnsupportedError("chunk of a dynamic axis", user_location())
    return split(x, -(-extent // shapes.integer(chunks, "chunks")), at)


@public
def unbind(x: Any, axis: Any = 0) -> Any:
    """The slices along an axis, without it."""
    x = as_tensor("unbind", x)
    at = shapes.normal_axis(axis, x.ndim, "unbind")
    index = (builtins.slice(None),) * at
    return tuple(x[(*index, i)] for i in range(len(x.swapaxes(0, at))))


@public
def astype(x: Any, dtype: Any = None, *, copy: bool = True, **_: Any) -> Any:
    """A copy in another element format, as NumPy's."""
    return _converted(as_tensor("astype", x), dtype, copy=copy)


def to(
    x: Any, dtype: Any = None, *rest: Any, copy: bool = False, **options: Any
) -> Any:
    """The tensor in another element format, as PyTorch's: itself if it has that.

    Before the format, or alone, may stand the tensor's own device.
    """
    x = as_tensor("to", x)
    device = dtype if _is_device(dtype) else options.get("device")
    if device is not None:
        x.stays(device)
    if _is_device(dtype) or (dtype is None and "device" in options):
        # PyTorch's `to(device, dtype, ...)`.
        named = bool(rest) and not isinstance(rest[0], bool)
        dtype = options.get("dtype") or (rest[0] if named else x.dtype)
        rest = rest[1:] if named else rest
    return _converted(x, dtype, copy=copy or rest[1:] == (True,))


def _converted(x: Tensor, dtype: Any, *, copy: bool) -> Tensor:
    if isinstance(dtype, Tensor):
        dtype = dtype.handle.value.dtype
    found = dtype_of(dtype)
    if found is None:
        raise DTypeError(
            f"cannot convert to {dtype}; expected one of {DTYPE_NAMES}", user_location()
        )
    if found == x.handle.value.dtype:
        return x.clone() if copy else x
    if found == boolean:
        return complement(complement(x))
    return Tensor.made(x.recorder, x.recorder.rounded(x.handle, found), (x,))


def _is_device(value: object) -> bool:
    named = isinstance(value, str) and value.split(":")[0] in _DEVICES
    return named or type(value).__name__ == "device"


_DEVICES = ("cpu", "cuda")
