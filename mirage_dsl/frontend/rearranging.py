"""Functions that rearrange tensors: they repeat, shift, pad, cut, reorder and select.

What is repeated along an axis is an axis that the value has not, as after `expand`.
Few elements in reverse order, and windows that overlap, are slices one by one; many
elements are reversed by PyTorch, and of many windows elements are gathered.

PyTorch's functions that sort, or select along an axis, are library operators, which see
three axes: all before that axis, it, all behind.  Those with two results, values and
indices, are two operators of one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from mirage_dsl.core.types import Scalar, boolean, f16, f64
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function, is_sequence
from mirage_dsl.frontend.constructors import arange
from mirage_dsl.frontend.functions import as_operand, as_tensor, formulas, named
from mirage_dsl.frontend.known import known
from mirage_dsl.frontend.memory import Flattened, Grouped, link
from mirage_dsl.frontend.program import shape_text
from mirage_dsl.frontend.recorder import (
    around,
    flat_arguments,
    integer,
    normal_axes,
    normal_axis,
)
from mirage_dsl.frontend.tensor import Selection, Tensor

# -- Rearranging -----------------------------------------------------------------------

MOST_SLICES = 64
"""Slices that stand one by one."""

_FEW_SLICES = 8
"""Windows that are joined of slices: of more a search has too many nodes to join."""


def repeat_of_either(x: Any, *counts: Any, axis: Any = None) -> Any:
    """The method of PyTorch's tensors, or that of NumPy's arrays.

    The latter is each element so many times, along an axis.
    """
    x = as_tensor("repeat", x)
    if x.recorder.origin.library == "numpy":
        return f.repeat_interleave(x, counts[0], *(counts[1:] or (axis,)))
    if axis is not None:
        raise UnsupportedError.here(
            "repeat along an axis, which is NumPy's; PyTorch has repeat_interleave"
        )
    return repeat(x, *counts)


def repeat(x: Any, *counts: Any) -> Any:
    """The whole tensor so many times along each axis, leading axes added."""
    x = as_tensor("repeat", x)
    given = [integer(n, "a count") for n in flat_arguments(counts)]
    if len(given) < x.ndim or min(given, default=1) < 1:
        raise ShapeError.here(
            f"repeat by {given} of a tensor of rank {x.ndim}; expected a positive "
            "count for each axis"
        )
    found = x
    for _ in range(len(given) - x.ndim):
        found = f.expand_dims(found, 0)
    for axis, count in enumerate(given):
        if count == 1:
            continue
        grown = f.expand_dims(found, axis)
        sizes = [-1] * grown.ndim
        sizes[axis] = count
        found = f.expand(grown, *sizes).viewed(Flattened(axis, axis + 1))
    return Tensor.made(x.recorder, found.handle, ())


def tile(x: Any, *counts: Any) -> Any:
    """The same, where counts for leading axes may be left out."""
    given = flat_arguments(counts)
    return repeat(x, *(1,) * (x.ndim - len(given)), *given)


def roll(x: Any, shifts: Any, dims: Any = None) -> Any:
    """Elements moved along axes; those that leave at the end enter at the front."""
    x = as_tensor("roll", x)
    if dims is None:
        return f.reshape(roll(f.reshape(x, -1), shifts, 0), *x.shape)
    moves = flat_arguments((shifts,))
    for move, axis in zip(moves, flat_arguments((dims,)), strict=True):
        at = normal_axis(axis, x.ndim, "roll")
        extent = x.handle.shape[at]
        start = -integer(move, "a shift") % extent if extent else -move
        if start:
            x = f.concat((_part(x, at, start, None), _part(x, at, None, start)), at)
    return x.clone()


def flip(x: Any, *dims: Any) -> Any:
    """Elements in reverse order along axes."""
    x = as_tensor("flip", x)
    if x.recorder.origin.library == "numpy":
        return _numpys_view(x, _flipped(x, dims))
    return Tensor.made(x.recorder, _flipped(x, dims).handle, (x,))


def _numpys_view(x: Tensor, found: Tensor) -> Tensor:
    """What NumPy gives as a view: after a write to one the other is in doubt."""
    found = found.clone()
    link(x.memory, found.memory)
    return found


def _flipped(x: Tensor, dims: tuple[Any, ...]) -> Any:
    given = flat_arguments(dims)
    if dims and not given:
        return x
    axes = None if given in ((), (None,)) else given
    for at in normal_axes(axes, x.ndim, "flip"):
        x = _reversed(x, at)
    return x


def _reversed(x: Any, axis: int) -> Any:
    extent = x.handle.shape[axis]
    if extent is None:
        places = x.shape[axis] - arange(x.shape[axis]) - 1
        return x[(*(slice(None),) * axis, places)]
    if not extent:
        return x
    if extent > MOST_SLICES:
        return reversed_along(x, axis)
    return f.concat([_cut(x, axis, i, i + 1) for i in reversed(range(extent))], axis)


def _few(count: int, what: str) -> int:
    if count > MOST_SLICES:
        raise UnsupportedError.here(
            f"{what}: {count} slices, of which at most {MOST_SLICES} may stand one by "
            "one; do it outside of the kernel"
        )
    return count


def _known(x: Tensor, axis: int, what: str) -> int:
    instead = "x[1:] and x[-4:], do it outside of the kernel"
    return f.known_extent(what, x, axis, instead)


def _part(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    """A slice of an axis, which may be dynamic."""
    return x[(*(slice(None),) * axis, slice(start, stop))]


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return f.narrow(x, axis, start, stop - start)


# -- Padding ---------------------------------------------------------------------------


def pad(x: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """More elements before and behind axes, the last axis first, as PyTorch's.

    Args:
        x: The tensor.
        pad: Two numbers for each axis; negative ones cut.
        mode: `constant`, `reflect`, `replicate` or `circular`.
        value: Of the new elements of `constant`; 0 unless given.
    """
    x = as_tensor("pad", x)
    given = [integer(n, "a padding") for n in pad]
    if len(given) % 2 or len(given) > 2 * x.ndim:
        raise ShapeError.here(
            f"pad by {given} of a tensor of rank {x.ndim}; expected two numbers for "
            "each axis, the last axis first"
        )
    number = as_operand(0 if value is None else value)
    edges = _EDGES.get(mode)
    if not isinstance(number, Scalar) or edges is None:
        raise UnsupportedError.here(
            f"pad: mode={mode!r}, value={value!r}; expected a number, and one of the "
            f"modes {', '.join(_EDGES)}"
        )
    f.refuse_overflow("pad", x, value)
    for i in range(0, len(given), 2):
        axis = x.ndim - 1 - i // 2
        before, behind = given[i : i + 2]
        if not (before or behind):
            continue
        # Of numbers there may be more than is left of it.
        whole, x = x, _without(x, axis, max(-before, 0), max(-behind, 0))
        before, behind = max(before, 0), max(behind, 0)
        if before or behind:
            known = whole if edges is _constant else x
            left, right = edges(known, axis, before, behind, number)
            x = f.concat([*left, x, *right], axis)
    return x.clone()


def _without(x: Any, axis: int, before: int, behind: int) -> Any:
    """An axis without so many elements before and behind."""
    extent = x.handle.shape[axis]
    if extent is None:
        return _part(x, axis, before, -behind or None)
    return _cut(x, axis, before, extent - behind)


Edges = Callable[[Any, int, int, int, Scalar], tuple[list[Any], list[Any]]]
"""What stands before and behind an axis, by how many elements of both."""


def _constant(
    x: Any, axis: int, before: int, behind: int, number: Scalar
) -> tuple[list[Any], list[Any]]:
    return _filled(x, axis, before, number), _filled(x, axis, behind, number)


def _filled(x: Tensor, axis: int, count: int, number: Scalar) -> list[Any]:
    """Parts of so many elements that hold a number; each is as long as x at most.

    Raises:
        ShapeError: X has no elements there.
    """
    parts: list[Any] = []
    extent = x.handle.shape[axis]
    if extent is None:
        _few(count, "pad of a dynamic axis")
    elif count and not extent:
        raise ShapeError.here(
            f"pad of {shape_text(x.handle)}, which is empty along axis {axis}; make a "
            "constant of that shape, as by torch.full"
        )
    while count:
        some = min(count, extent or 1)
        like = _cut(x, axis, 0, some).handle
        made = x.recorder.all_over(like, number)
        cast = x.recorder.cast(made, like.value.dtype)
        parts.append(Tensor.made(x.recorder, cast, ()))
        count -= some
    return parts


def _reflected(
    x: Any, axis: int, before: int, behind: int, _: Scalar
) -> tuple[list[Any], list[Any]]:
    extent = _known(x, axis, "pad")
    if max(before, behind) >= extent:
        raise ShapeError.here(
            f"pad by {before} and {behind} of an axis of extent {extent}, which has "
            "not as many elements to reflect"
        )
    left = [_reversed(_cut(x, axis, 1, before + 1), axis)] if before else []
    last = extent - 1
    right = [_reversed(_cut(x, axis, last - behind, last), axis)] if behind else []
    return left, right


def _replicated(
    x: Any, axis: int, before: int, behind: int, _: Scalar
) -> tuple[list[Any], list[Any]]:
    extent = _known(x, axis, "pad")
    _few(before + behind, "pad with mode='replicate'")
    first, last = _cut(x, axis, 0, 1), _cut(x, axis, extent - 1, extent)
    return [first] * before, [last] * behind


def _circular(
    x: Any, axis: int, before: int, behind: int, _: Scalar
) -> tuple[list[Any], list[Any]]:
    extent = _known(x, axis, "pad")
    if max(before, behind) > extent:
        raise ShapeError.here(
            f"pad by {before} and {behind} of an axis of extent {extent}: it may go "
            "around once"
        )
    left = [_cut(x, axis, extent - before, extent)] if before else []
    return left, [_cut(x, axis, 0, behind)] if behind else []


_EDGES: Mapping[str, Edges] = {
    "circular": _circular,
    "constant": _constant,
    "reflect": _reflected,
    "replicate": _replicated,
}


# -- Windows and pieces ----------------------------------------------------------------


def unfold(x: Any, dimension: int, size: int, step: int) -> Any:
    """Windows along an axis, each as a new last axis."""
    x = as_tensor("unfold", x)
    at = normal_axis(dimension, x.ndim, "unfold")
    extent = _known(x, at, "unfold")
    if not 0 < size <= extent or step < 1:
        raise ShapeError.here(
            f"unfold of an axis of extent {extent} in windows of {size} with step "
            f"{step}"
        )
    count = (extent - size) // step + 1
    if step == size:
        grouped = _cut(x, at, 0, count * size).viewed(Grouped(at, size))
        return _last(grouped, at + 1)
    if min(count, size) > _FEW_SLICES:
        found = _gathered_windows(x, at, count, size, step)
    elif count > size:
        found = windows_along(x, at, size, step).clone()
    else:
        windows = [_cut(x, at, i * step, i * step + size) for i in range(count)]
        found = f.stack(windows, at)
        found = _last(found, at + 1).clone()
    # A view in PyTorch: after a write to one of both the other is in doubt.
    found = found.with_unknown_strides()
    link(x.memory, found.memory)
    return found


def _gathered_windows(x: Tensor, axis: int, count: int, size: int, step: int) -> Any:
    """Windows whose elements are taken at positions that are computed."""
    starts = f.expand_dims(arange(count) * step, 1)
    found = f.index_select(x, axis, starts + arange(size))
    return _last(found, axis + 1)


def _last(x: Any, axis: int) -> Any:
    """The tensor with an axis behind all others."""
    return f.permute(x, *(i for i in range(x.ndim) if i != axis), axis)


def windows_along(x: Any, axis: int, size: int, step: int, dilation: int = 1) -> Any:
    """Windows along an axis, each as a new last axis, of which elements stand apart.

    Args:
        x: The tensor.
        axis: Where the windows are.
        size: How many elements a window has.
        step: From one window to the next.
        dilation: From one element of a window to the next.
    """
    extent = _known(x, axis, "windows")
    reach = dilation * (size - 1) + 1
    if extent < reach:
        raise ShapeError.here(
            f"windows of {reach} elements along an axis of extent {extent}"
        )
    _few(size, "windows that do not stand side by side")
    lead = (slice(None),) * axis
    starts = (dilation * i for i in range(size))
    stops = extent - reach + 1
    return f.stack([x[(*lead, slice(s, s + stops, step))] for s in starts], -1)


def tensor_split(x: Any, parts: Any, dim: int = 0) -> Any:
    """Pieces of an axis: so many, the first ones longer by one, or at indices."""
    x = as_tensor("tensor_split", x)
    at = normal_axis(dim, x.ndim, "tensor_split")
    extent = _known(x, at, "tensor_split")
    if isinstance(parts, int):
        short, longer = divmod(extent, parts)
        sizes = [short + (i < longer) for i in range(parts)]
        bounds = [sum(sizes[:i]) for i in range(parts + 1)]
    else:
        bounds = [0, *(slice(i).indices(extent)[1] for i in parts), extent]
    lead = (slice(None),) * at
    return tuple(x[(*lead, slice(a, b))] for a, b in pairwise(bounds))


def _by_axis(vector_axis: int, axis: int) -> Callable[..., Any]:
    """A function as `hsplit`, which takes another axis of vectors."""

    def splitting(x: Any, parts: Any) -> Any:
        return tensor_split(x, parts, vector_axis if x.ndim == 1 else axis)

    return splitting


def _at_least(x: Any, rank: int) -> Any:
    """A tensor with leading axes of extent 1, up to a rank."""
    return f.reshape(x, *(1,) * (rank - x.ndim), *x.shape) if x.ndim < rank else x


def _in_space(x: Any, _: int = 3) -> Any:
    """A tensor of three axes or more: the last one follows those of a matrix."""
    return x if x.ndim > 2 else f.expand_dims(_at_least(x, 2), 2)


def _each(widened: Callable[[Any, int], Any], rank: int) -> Callable[..., Any]:
    """A function as `atleast_2d`, of a tensor or of several."""

    def at_least(*tensors: Any) -> Any:
        if len(tensors) == 1 and not is_sequence(tensors[0]):
            return widened(tensors[0], rank)
        return tuple(widened(t, rank) for t in flat_arguments(tensors))

    return at_least


def hstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the second axis, vectors along the first."""
    given = [_at_least(t, 1) for t in tensors]
    return f.concat(given, 0 if given[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the first axis, vectors as rows."""
    return f.concat([_at_least(t, 2) for t in tensors], 0)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the second axis, vectors as columns."""
    given = [f.reshape(t, -1, 1) if t.ndim < 2 else t for t in tensors]
    return f.concat(given, 1)


def dstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the third axis, matrices as slices of it."""
    return f.concat([_in_space(t) for t in tensors], 2)


def rot90(x: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """The tensor turned so many times by a right angle, from the first axis on."""
    x = as_tensor("rot90", x)
    first, second = normal_axes(tuple(dims), x.ndim, "rot90")
    turns = integer(k, "a number of turns") % 4
    if turns == 2:
        return flip(x, first, second)
    if not turns:
        return x.clone()
    if turns == 1:
        return f.swapaxes(flip(x, second), first, second).clone()
    return flip(f.swapaxes(x, first, second), second)


def diff(
    x: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None
) -> Any:
    """Differences of neighbours along an axis, so many times.

    Raises:
        ShapeError: The number of times is below 0.
    """
    x = as_tensor("diff", x)
    at = normal_axis(dim, x.ndim, "diff")
    order = integer(n, "an order")
    if order < 0:
        raise ShapeError.here(f"diff of order {order}; expected 0 or more")
    if not order:
        return x.clone()
    joined = [part for part in (prepend, x, append) if part is not None]
    x = f.concat(joined, at) if joined[1:] else x
    for _ in range(order):
        later, sooner = _part(x, at, 1, None), _part(x, at, None, -1)
        # Of truth values it is whether they differ.
        truth = x.handle.value.dtype == boolean
        x = later ^ sooner if truth else later - sooner
    return x


def _numpy_pad(
    array: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0
) -> Any:
    """NumPy's padding: a pair of numbers for each axis, or for all."""
    rank = as_tensor("pad", array).ndim
    widths = _listed(pad_width)
    # One number, or two that are no pairs, are before and behind each axis.
    given = widths if any(map(is_sequence, widths)) else [widths]
    pairs = [_listed(pair) * (3 - len(_listed(pair))) for pair in given]
    pairs = pairs * rank if len(pairs) == 1 else pairs
    flat = [n for pair in reversed(pairs) for n in pair]
    modes = {"edge": "replicate", "wrap": "circular"}
    return pad(array, flat, modes.get(mode, mode), constant_values)


def _listed(given: Any) -> list[Any]:
    return list(given) if is_sequence(given) else [given]


def take(x: Any, index: Any) -> Any:
    """Elements of the tensor as one row, at indices."""
    x = as_tensor("take", x)
    return f.index_select(f.flatten(x), 0, index)


def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """A copy of the tensor with a slice of an axis replaced."""
    return _replaced_at(x, src, dim, slice(start, end, step), "slice_scatter")


def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    """A copy of the tensor with one slice of an axis replaced."""
    return _replaced_at(x, src, dim, index, "select_scatter")


def _replaced_at(x: Any, src: Any, dim: int, part: Any, what: str) -> Any:
    found = as_tensor(what, x).clone()
    at = normal_axis(dim, found.ndim, what)
    index = (slice(None),) * at + (part,)
    if tuple(found[index].shape) != tuple(src.shape):
        raise ShapeError.here(
            f"{what}: the source has the shape {tuple(src.shape)}, what it replaces "
            f"{tuple(found[index].shape)}; they must be equal"
        )
    found[index] = src
    return found


def broadcast_tensors(*tensors: Any) -> Any:
    """Tensors expanded to the shape that they have together."""
    given = flat_arguments(tensors)
    shape = np.broadcast_shapes(*(tuple(t.shape) for t in given))
    return tuple(f.expand(t, *shape) for t in given)


# -- Channels and pixels ---------------------------------------------------------------


def _planes(what: str, x: Any, factors: Mapping[int, int]) -> Tensor:
    """Planes of channels, of which the extents are multiples."""
    x = as_tensor(what, x)
    if x.ndim < 3 or any(_known(x, x.ndim + a, what) % n for a, n in factors.items()):
        raise ShapeError.here(
            f"{what} of {tuple(x.shape)}: expected channels, rows and columns of which "
            f"the extents are multiples of {list(factors.values())}"
        )
    return x


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """Planes r times as high and as wide, of r² channels for each pixel."""
    r = integer(upscale_factor, "a factor")
    x = _planes("pixel_shuffle", x, {-3: r * r})
    *lead, channels, rows, columns = x.shape
    split = f.reshape(x, *lead, channels // (r * r), r, r, rows, columns)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    found = f.reshape(f.permute(split, *order), *lead, -1, rows * r, columns * r)
    return Tensor.made(x.recorder, found.handle, (x,))


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """Planes of which r by r pixels have become channels."""
    r = integer(downscale_factor, "a factor")
    x = _planes("pixel_unshuffle", x, {-2: r, -1: r})
    *lead, channels, rows, columns = x.shape
    split = f.reshape(x, *lead, channels, rows // r, r, columns // r, r)
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    found = f.reshape(f.permute(split, *order), *lead, -1, rows // r, columns // r)
    return Tensor.made(x.recorder, found.handle, (x,))


def channel_shuffle(x: Any, groups: int) -> Any:
    """Channels of groups in turn."""
    x = as_tensor("channel_shuffle", x)
    batch, channels, *rest = x.shape
    split = f.reshape(x, batch, groups, channels // groups, *rest)
    found = f.reshape(f.swapaxes(split, 1, 2), *x.shape)
    return Tensor.made(x.recorder, found.handle, (x,))


REARRANGING: Mapping[str, Function] = {
    **named(column_stack, diff, dstack, flip, hstack, roll, rot90, tile),
    **formulas(fliplr=lambda x: flip(x, 1), flipud=lambda x: flip(x, 0)),
    **dict.fromkeys(("row_stack", "vstack"), vstack),
}
"""By the names that PyTorch and NumPy share."""

OF_PYTORCH: Mapping[str, Function] = {
    **named(broadcast_tensors, pad, select_scatter, slice_scatter, take),
    **named(channel_shuffle, pixel_shuffle, pixel_unshuffle, tensor_split, unfold),
    "atleast_1d": _each(_at_least, 1),
    "atleast_2d": _each(_at_least, 2),
    "atleast_3d": _each(_in_space, 3),
    "dsplit": _by_axis(2, 2),
    "hsplit": _by_axis(0, 1),
    "vsplit": _by_axis(0, 0),
    "repeat": repeat_of_either,
    **formulas(
        reshape_as=lambda x, other: f.reshape(x, *other.shape),
        view_as=lambda x, other: f.reshape(x, *other.shape),
    ),
    **dict.fromkeys(
        ("split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), f.split
    ),
    "unsafe_chunk": f.chunk,
}
"""By PyTorch's names."""

OF_NUMPY: Mapping[str, Function] = {
    "pad": _numpy_pad,
    **formulas(roll=lambda a, shift, axis=None: roll(a, shift, axis)),
}
"""By NumPy's names."""


# -- Selecting -------------------------------------------------------------------------


def _along(
    name: str,
    x: Tensor,
    axis: int,
    numbers: Mapping[str, int] | None = None,
    *,
    keeps: bool = True,
) -> Tensor:
    """A library operator along an axis, which may get another extent if not `keeps`."""
    if x.handle.value.dtype == boolean:
        raise DTypeError.here(f"{name} of truth values; cast them to numbers")
    kept = {0: 0, 1: 0, 2: 0} if keeps else {0: 0, 2: 0}
    made = x.recorder.library_by_groups(
        name, [x.handle], around(axis), kept, numbers or {}
    )
    return Tensor.made(x.recorder, made, (x,))


def _placed(what: str, x: Any, dim: Any) -> tuple[Tensor, int]:
    """The tensor, and the place of the axis."""
    x = as_tensor(what, x)
    return x, normal_axis(dim, x.ndim, what)


def _of_numbers_too(function: Function) -> Function:
    """A function along an axis that takes a number for a row of one, as PyTorch's."""

    @functools.wraps(function)
    def called(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, Tensor) or x.ndim:
            return function(x, *args, **kwargs)
        found = function(f.expand_dims(x, 0), *args, **kwargs)
        if isinstance(found, Selection):
            return Selection(*(f.squeeze(part) for part in found))
        return f.squeeze(found)

    return called


def reversed_along(x: Tensor, axis: int) -> Tensor:
    """Elements in reverse order along an axis."""
    return _along("flip", x, axis)


# -- PyTorch's -------------------------------------------------------------------------


def sort(
    x: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> Selection:
    """The elements in order; equal ones stay as they were, whatever `stable` says."""
    del stable
    x, at = _placed("sort", x, dim)
    numbers = {"descending": int(descending)}
    return Selection(_along("sort", x, at, numbers), _along("argsort", x, at, numbers))


def argsort(
    x: Any, dim: int = -1, descending: bool = False, stable: bool = False
) -> Any:
    """Where the elements in order were."""
    return sort(x, dim, descending, stable).indices


def topk(
    x: Any,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> Selection:
    """The largest or smallest elements in order, whatever `sorted` says."""
    del sorted
    x, at = _placed("topk", x, dim)
    numbers = {"k": integer(k, "k"), "largest": int(largest)}
    found = (_along(n, x, at, numbers, keeps=False) for n in ("topk", "argtopk"))
    return Selection(*found)


def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Selection:
    """The k-th smallest element, counted from 1."""
    x, at = _placed("kthvalue", x, dim)
    return _single(("kthvalue", "argkthvalue"), x, at, keepdim, k=k)


def median(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median: of all elements, or with its index along an axis."""
    x = as_tensor("median", x)
    if dim is None:
        return _single(("median", "argmedian"), f.flatten(x), 0, False).values
    x, at = _placed("median", x, dim)
    return _single(("median", "argmedian"), x, at, keepdim)


def _single(
    names: tuple[str, str], x: Tensor, axis: int, keepdim: bool, **numbers: int
) -> Selection:
    """One element of each row, and its index."""
    found = (_along(n, x, axis, numbers, keeps=False) for n in names)
    return Selection(*(e if keepdim else f.squeeze(e, axis) for e in found))


def mode(x: Any, dim: int = -1, keepdim: bool = False) -> Selection:
    """The element that is there most often, the smallest of several, and an index."""
    x, at = _placed("mode", x, dim)
    return _single(("mode", "argmode"), x, at, keepdim)


def _running(name: str) -> Function:
    """The largest or smallest element so far, and where the last of them was."""

    def running(x: Any, dim: int) -> Selection:
        x, at = _placed(name, x, dim)
        return Selection(_along(name, x, at), _along(f"arg{name}", x, at))

    running.__name__ = name
    return running


def logcumsumexp(x: Any, dim: int) -> Any:
    """The logarithms of running sums of exponentials."""
    x, at = _placed("logcumsumexp", x, dim)
    return _along("logcumsumexp", x, at)


def quantile(
    x: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """What a part of the elements is below: of all, or along an axis.

    Args:
        x: The tensor; a row with NaN has NaN.
        q: The part, a number or a vector of numbers that are known while tracing, for
            each of which the result has a row.
        dim: The axis; all elements where it is None.
        keepdim: Whether the axis stays, with one element.
        interpolation: What is taken between two elements.

    Raises:
        UnsupportedError: The part is data, or the interpolation has another name.
    """
    x = as_tensor("quantile", x)
    parts = _parts(q)
    if interpolation not in _BETWEEN:
        raise UnsupportedError.here(
            f"quantile with interpolation={interpolation!r}; expected one of "
            f"{', '.join(_BETWEEN)}"
        )
    rank = x.ndim
    x, at = (f.flatten(x), 0) if dim is None else _placed("quantile", x, dim)
    ordered = _along("sort", x, at, {"descending": 0})
    # NaN is behind all others.
    last = f.narrow(ordered, at, _known(x, at, "quantile") - 1, 1)
    found = [_at_part(ordered, at, part, interpolation) for part in parts.ravel()]
    found = [f.where(f.equal(last, last), value, last) for value in found]
    if not keepdim:
        found = [f.squeeze(value, at) for value in found]
    elif dim is None:
        found = [f.reshape(value, *[1] * rank) for value in found]
    return f.stack(found, 0) if parts.ndim else found[0]


_BETWEEN: Mapping[str, Callable[[float], float]] = {
    "linear": float,
    "lower": np.floor,
    "higher": np.ceil,
    "nearest": np.rint,
    "midpoint": lambda rank: (np.floor(rank) + np.ceil(rank)) / 2,
}
"""From the rank of a part to the one that is taken, by PyTorch's names."""


def _parts(q: Any) -> np.ndarray[Any, Any]:
    """The parts of a quantile.

    Raises:
        UnsupportedError: They are data.
        ShapeError: They are no number or vector, or outside of 0 to 1.
    """
    given = known(q) if isinstance(q, Tensor) else np.asarray(q, np.float64)
    if given is None:
        raise UnsupportedError.here(
            "quantile of a part that is data; pass a number, or make it outside"
        )
    if given.ndim > 1 or not ((given >= 0) & (given <= 1)).all():
        raise ShapeError.here(f"quantile of {given}; expected numbers from 0 to 1")
    return given


def _at_part(ordered: Tensor, axis: int, part: Any, interpolation: str) -> Any:
    """What so large a part of sorted elements is below, with an axis of extent 1."""
    dtype = ordered.handle.value.dtype
    kind = np.float64 if dtype == f64 else np.float32
    if dtype == f16 and ordered.recorder.origin.library == "numpy":
        kind = np.float16
    rank = kind(part) * kind(_known(ordered, axis, "quantile") - 1)
    rank = kind(_BETWEEN[interpolation](float(rank)))
    low, high = int(np.floor(rank)), int(np.ceil(rank))
    below, above = (f.narrow(ordered, axis, at, 1) for at in (low, high))
    if interpolation in ("lower", "higher", "nearest"):
        return below
    weight = float(rank - low)
    # From the nearer one, as PyTorch: of infinities only that counts.
    if weight >= 0.5:
        return above - (above - below) * (1 - weight)
    return below + (above - below) * weight


_SELECTIONS: Mapping[str, Function] = {
    **named(argsort, kthvalue, logcumsumexp, median, mode, sort, topk),
    **named(*map(_running, ("cummax", "cummin"))),
}
SELECTIONS: Mapping[str, Function] = {
    **{name: _of_numbers_too(function) for name, function in _SELECTIONS.items()},
    "quantile": quantile,
}
"""By PyTorch's names."""


# -- NumPy's ---------------------------------------------------------------------------


def _numpy_axis(x: Any, axis: int | None, kind: str | None) -> tuple[Any, int]:
    if kind not in (None, "quicksort", "stable"):
        raise UnsupportedError.here(f"a sort of the kind {kind!r}; leave it out")
    return (f.flatten(x), 0) if axis is None else (x, axis)


def _numpy_sort(x: Any, axis: int | None = -1, kind: str | None = None) -> Any:
    return sort(*_numpy_axis(x, axis, kind)).values


def _numpy_argsort(x: Any, axis: int | None = -1, kind: str | None = None) -> Any:
    return sort(*_numpy_axis(x, axis, kind)).indices


NUMPY_SELECTIONS: Mapping[str, Function] = {
    "sort": _numpy_sort,
    "argsort": _numpy_argsort,
}
"""By NumPy's names."""
