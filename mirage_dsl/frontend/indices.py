"""Indices that are known while a function is traced: lists, arrays, constant masks.

`x[[2, 0]]`, `x[:, np.array([True, False])]` and `x[torch.arange(6) % 2 == 0]` select
elements at places that are known, so that the result has a shape: a slice where these
are at equal distances, else elements at a tensor of places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from mirage_dsl.core.errors import ShapeError, UnsupportedError
from mirage_dsl.core.types import i64
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import is_array
from mirage_dsl.frontend.constructors import (
    MOST_BYTES,
    MOST_NUMBERS,
    arange,
    is_short,
    listed,
)
from mirage_dsl.frontend.functions import as_tensor, is_condition
from mirage_dsl.frontend.known import known
from mirage_dsl.frontend.rearranging import broadcast_tensors, flip
from mirage_dsl.frontend.tensor import Tensor

Numbers = np.ndarray[Any, Any]

_MOST_OF_TENSOR = 64
_PARTS = 8
"""Of a word of packed weights, at most."""


def without_lists(x: Tensor, index: Any) -> tuple[Any, bool]:
    """An index with tensors or slices for what is known of it, and whether it copies.

    Raises:
        ShapeError: It names an element outside of the tensor, or a mask has not the
            shape of its axes.
        UnsupportedError: It names more places than may stand in a program, or is a list
            of lists, as which PyTorch's versions read two things.
    """
    if isinstance(index, list):
        _refuse_lists(x, cast("list[Any]", index))
    parts = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
    given = [_numbers_of(part) for part in parts]
    if all(numbers is None for numbers in given):
        return cast(Any, index), False
    width = sum(map(_axes_of, parts, given))
    found: list[Any] = []
    axis = 0
    for part, numbers in zip(parts, given, strict=True):
        found.extend([part] if numbers is None else _places(x, axis, numbers))
        axis += x.ndim - width if part is Ellipsis else _axes_of(part, numbers)
    if is_condition(parts[0]) and not parts[1:] and not all(map(_is_possible, found)):
        # More places than may stand in a program are what a mask selects.
        return cast(Any, index), False
    several = sum(isinstance(part, Tensor | np.ndarray) for part in found) > 1
    made = tuple(
        _as_index(cast(Numbers, part), alone=not several)
        if isinstance(part, np.ndarray) and not isinstance(part, Tensor)
        else part
        for part in found
    )
    return made, True


def _refuse_lists(x: Tensor, index: list[Any]) -> None:
    numbers = all(isinstance(part, int | np.integer | np.bool_) for part in index)
    if x.recorder.origin.library == "torch" and not numbers:
        raise UnsupportedError.here(
            "a list of more than integers as an index, which is a tuple of indices to "
            "some versions of PyTorch and a tensor to others; write x[tuple(index)] or "
            "x[torch.tensor(index)]"
        )


def without_reversals(x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """The tensor and an index of NumPy's without negative steps.

    Where there are such, the tensor is reversed along their axes.
    """
    parts = cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
    if not any(map(_is_reversed, parts)):
        return x, cast(Any, index)
    given = [_numbers_of(part) for part in parts]
    width = sum(map(_axes_of, parts, given))
    axis, axes = 0, list[int]()
    found: list[Any] = []
    for part, numbers in zip(parts, given, strict=True):
        extent = x.handle.shape[axis] if _is_reversed(part) else None
        if extent is not None:
            axes.append(axis)
            part = _from_the_end(part, extent)
        found.append(part)
        axis += x.ndim - width if part is Ellipsis else _axes_of(part, numbers)
    return flip(x, axes) if axes else x, tuple(found)


def _is_reversed(part: Any) -> bool:
    step: Any = cast(Any, part).step if isinstance(part, slice) else None
    return isinstance(step, int) and step < 0


def _from_the_end(part: slice, extent: int) -> slice:
    """A slice with a negative step as one of the reversed axis."""
    start, stop, step = part.indices(extent)
    last = extent - 1
    return slice(last - start, max(last - stop, last - start), -step)


def _numbers_of(part: Any) -> Numbers | None:
    """The places or the mask that a part of an index is; None where it is none."""
    if isinstance(part, Tensor):
        return known(part) if part.ndim and is_condition(part) else None
    if isinstance(part, list | tuple | range):
        numbers = list(cast("Sequence[Any]", part))
        found = np.array(numbers, dtype=None if numbers else np.int64)
    elif is_array(part) and len(part.shape) and _is_watched(part):
        found = np.asarray(part)
    else:
        return None
    return found if found.dtype.kind in "bi" else None


def _is_watched(array: Any) -> bool:
    """Whether a kernel sees it when such an array has other values at a later call."""
    if isinstance(array, np.ndarray):
        return array.nbytes <= MOST_BYTES
    on_cpu = str(getattr(array, "device", "")) == "cpu"
    return on_cpu and array.numel() <= _MOST_OF_TENSOR


def _axes_of(part: Any, numbers: Numbers | None) -> int:
    """How many axes of the tensor a part of an index takes."""
    if numbers is not None and numbers.dtype.kind == "b":
        return numbers.ndim
    return int(part is not None and part is not Ellipsis)


def _places(x: Tensor, axis: int, numbers: Numbers) -> list[Numbers]:
    """The places that numbers or a mask name, along each of the axes that they take.

    Raises:
        ShapeError: They are outside of the tensor.
    """
    extents = x.handle.shape[axis:]
    if numbers.dtype.kind == "b":
        if extents[: numbers.ndim] != numbers.shape:
            raise ShapeError.here(
                f"a mask of shape {numbers.shape} for the axes from {axis} on of "
                f"{x!r}: it must have their extents"
            )
        return list(numbers.nonzero())
    extent = extents[0] if extents else None
    outside = [
        n for n in numbers.ravel().tolist() if extent and not -extent <= n < extent
    ]
    if outside:
        raise ShapeError.here(
            f"index {outside[0]} of axis {axis} with extent {extent} is out of range"
        )
    return [numbers]


def _as_index(numbers: Numbers, *, alone: bool) -> Any:
    """Places as a slice, where they may be one, else as a tensor.

    Raises:
        UnsupportedError: They are too many.
    """
    flat = numbers.ravel().tolist()
    run = _run(flat) if alone and numbers.ndim == 1 else None
    if run is not None:
        return run
    if not is_short(flat):
        raise UnsupportedError.here(
            f"{len(flat)} places that are known while tracing, as an index; expected "
            f"at most {MOST_NUMBERS}, or as many runs of neighbours: pass them as a "
            "tensor of integers, or choose by where()"
        )
    return listed(numbers.tolist(), i64, None)


def _is_possible(places: Numbers) -> bool:
    """Whether so many places may stand in a program, or there are none."""
    return not places.size or is_short(places.ravel().tolist())


def in_blocks(x: Tensor, axis: int, index: Tensor) -> Tensor | None:
    """The elements at known places that lie alike in each block of an axis.

    They are views, with an axis for what is in a block, of which few places have to be
    known: where packed weights have the columns 0, 4, 1, 5, .. of each eight, these
    eight numbers.  A matrix that is read the other way round is one as well, unless
    its places are so few: by a number for each, parts of a word stay parts of it.

    Args:
        x: The tensor.
        axis: Where the elements are.
        index: A vector of their places.

    Returns:
        A tensor of its own; None where the places are not known, or not such.
    """
    extent = x.handle.shape[axis]
    numbers = known(index) if index.ndim == 1 and extent else None
    if extent is None or numbers is None or numbers.size <= _PARTS:
        return None
    length, step = _period(numbers.astype(np.int64))
    blocks, first = numbers.size // length, numbers[:length].tolist()
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    whole: tuple[slice, ...] = (slice(None),) * (axis + 1)
    if step * blocks == extent and min(first) >= 0 and max(first) < step:
        if first != list(range(step)) and not is_short(first):
            return None
        found = f.reshape(x, *before, blocks, step, *behind)[(*whole, first)]
    elif step == 1 and first == list(range(0, extent, blocks)):
        found = f.reshape(x, *before, length, blocks, *behind).swapaxes(axis, axis + 1)
    else:
        return None
    return f.reshape(found, *before, numbers.size, *behind).clone()


def _period(numbers: Numbers) -> tuple[int, int]:
    """After how many places all are so much further, and how much; else all of them.

    Of 1, 0, 5, 4, 9, 8 it is two places and 4.
    """
    size = numbers.size
    for length in range(1, size // 2 + 1):
        if size % length == 0:
            steps = numbers[length:] - numbers[:-length]
            if (steps == steps[0]).all():
                return length, int(steps[0])
    return size, 0


def known_places(condition: Tensor) -> tuple[Tensor, ...] | None:
    """The coordinates of the places where a condition holds; None for unknown ones."""
    mask = known(condition)
    places = () if mask is None else mask.nonzero()
    if not all(places.size and _is_possible(places) for places in places):
        return None
    return tuple(listed(found.tolist(), i64, None) for found in places) or None


def repeated(x: Tensor, axis: int, repeats: Any, size: int | None) -> Any:
    """The elements along an axis, each as often as a vector says.

    Args:
        x: The tensor.
        axis: Where they are.
        repeats: How often each; one number is for all.
        size: How many there are then; of numbers that are known it is their sum.

    Raises:
        UnsupportedError: Nothing tells how many there are.
        ShapeError: There is not a number for each.
    """
    counts = known(repeats) if isinstance(repeats, Tensor) else np.asarray(repeats)
    extent = x.handle.shape[axis]
    if extent is None or (counts is None and size is None):
        raise UnsupportedError.here(
            "repeat_interleave by numbers that are data, of a result of which nobody "
            "knows how long it is; pass output_size=, or repeats as Python's integers"
        )
    given = tuple(repeats.shape) if counts is None else counts.shape
    if given not in ((), (1,), (extent,)):
        raise ShapeError.here(
            f"repeat_interleave of {extent} elements by {given} numbers; expected one "
            "for each"
        )
    if counts is not None:
        return x[((slice(None),) * axis + (_repeated_places(counts, extent, size),))]
    ends = f.expand_dims(f.cumsum(f.expand(f.reshape(repeats, -1), extent), 0), 0)
    places = f.expand_dims(arange(size), 1)
    return f.index_select(x, axis, f.sum(f.less_equal(ends, places), 1))


def _repeated_places(counts: Numbers, extent: int, size: int | None) -> list[int]:
    """The places of so many elements, each as often as its number says.

    Raises:
        ShapeError: A number is negative, or they are not `size` in all.
    """
    each = np.broadcast_to(counts.ravel(), (extent,))
    if each.min(initial=0) < 0 or size not in (None, each.sum()):
        raise ShapeError.here(
            f"repeat_interleave by {each.tolist()} with output_size={size}; expected "
            "numbers of 0 or more, whose sum is output_size if that is given"
        )
    return np.repeat(np.arange(extent), each).tolist()


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """The tensor with the elements of another one, in order, where a mask holds."""
    x, mask = as_tensor("masked_scatter", x), as_tensor("masked_scatter", mask)
    source = as_tensor("masked_scatter", source)
    f.require_one_dtype("masked_scatter", x, source)
    x, mask = broadcast_tensors(x, mask)
    count = f.cumsum(f.reshape(mask, -1), 0)
    place = f.reshape(f.maximum(count - 1, 0), *mask.shape)
    return f.where(mask, f.index_select(f.reshape(source, -1), 0, place), x)


def masked_select(x: Any, mask: Any) -> Any:
    """The elements for which a mask holds, to which the tensor broadcasts."""
    given = as_tensor("masked_select", x), as_tensor("masked_select", mask)
    x, mask = broadcast_tensors(*given)
    return x[mask]


def _run(numbers: Sequence[int]) -> slice | None:
    """Places at equal distances, in order, as a slice; None for others."""
    if not numbers:
        return slice(0, 0)
    first, last = numbers[0], numbers[-1]
    step = numbers[1] - first if len(numbers) > 1 else 1
    if step < 1 or list(numbers) != list(range(first, last + 1, step)):
        return None
    if first < 0 <= last:
        return None
    return slice(first, last + 1 or None, step if step > 1 else None)
