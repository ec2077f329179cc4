"""Elements at places that are data: those for which a condition holds, and new ones.

`x[mask]`, and `x[rows]` where `rows` is a coordinate of the places of a mask, stand for
one row for each place, and nobody knows how many there are.  What is computed row by
row is computed at all places, those of the mask or not, and the rows go back by the
same places: `y[mask] = ...` is a choice, `y.index_add_(0, rows, ...)` a sum over the
places that hold.

There is no tensor of the places themselves, which `nonzero` and `where` of one argument
tell.  A coordinate of them stands for elements of another tensor, and a loop over those
of a vector is a loop over all its places, each of which may not happen (`Branches`).

`index_copy` and `scatter_add` put new elements at positions.  A program has no memory,
so what comes is another tensor: at each position of the axis its new element, if an
index says so, else the old one.  Which element that is, if any, is computed of the
indices alone, which are compared with positions:

    slot = max over j of (j + 1 where index[j] == position else 0)
    y    = where(slot > 0, values[slot - 1], x)

So no two writes can meet: of equal indices the last one counts, where PyTorch leaves it
open.  Those below 0 count from the end where PyTorch's function counts so; one outside
is an error, as in a gather.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod
from types import FrameType
from typing import Any, NoReturn, cast

import numpy as np

from mirage_dsl.core.errors import (
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.types import boolean, i64
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.arguments import Function
from mirage_dsl.frontend.constructors import arange
from mirage_dsl.frontend.elementary import ELEMENTARY
from mirage_dsl.frontend.functions import (
    NoTensor,
    as_tensor,
    is_condition,
    named,
    refusing,
)
from mirage_dsl.frontend.indices import (
    known_places,
    masked_scatter,
    masked_select,
)
from mirage_dsl.frontend.known import known
from mirage_dsl.frontend.program import Branch, Branches, Handle, shape_text
from mirage_dsl.frontend.recorder import around, flat_arguments, integer, normal_axis
from mirage_dsl.frontend.tensor import BothWays, Tensor, both_ways, refuse_bytes


def index_copy(x: Any, dim: Any, index: Any, source: Any) -> Any:
    """The tensor with the slices of another one at indices along an axis."""
    x, at, source = _target_of("index_copy", x, dim, index, source)
    if index.ndim > 1 or source.ndim != x.ndim:
        raise ShapeError.here(
            f"index_copy of {shape_text(source.handle)} to {shape_text(x.handle)} at "
            f"{shape_text(index.handle)}: expected indices of one axis, and as many "
            "slices"
        )
    if _differ_beside(source, x, at):
        raise ShapeError.here(
            f"index_copy of {shape_text(source.handle)} to {shape_text(x.handle)}: "
            f"expected slices that are as long along all axes but {at}"
        )
    return _at_indices(x, at, f.none_below_zero(index, x, at), source)


def index_fill(x: Any, dim: Any, index: Any, value: Any) -> Any:
    """The tensor with a number at indices along an axis."""
    x, at = _target("index_fill", x, dim, index)
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError.here(
            f"index_fill with {shape_text(value.handle)}; expected a number, or a "
            "tensor without axes"
        )
    f.refuse_overflow("index_fill", x, value)
    return f.where(_along(_met(x, at, index), at, x.ndim), _fitted(value, x), x)


_OF_SCATTER = {"add": "sum", "multiply": "prod"}
"""How `scatter` calls reductions of `scatter_reduce`."""


def _in_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of elements at indices, where these are shorter than a tensor.

    Along all axes but one the first elements alone are changed, as many as there are.
    """

    @functools.wraps(function)
    def within(x: Any, dim: Any, index: Any, *args: Any, **options: Any) -> Any:
        part = _part_of(function.__name__, x, dim, index)
        if part is None:
            return function(x, dim, index, *args, **options)
        whole = x.clone()
        whole[part] = function(x[part], dim, index, *args, **options)
        return whole

    return within


def _part_of(what: str, x: Any, dim: Any, index: Any) -> tuple[slice, ...] | None:
    """Where indices lie along all axes but one, None if that is everywhere."""
    if not isinstance(index, Tensor) or index.ndim != x.ndim or not x.ndim:
        return None
    at = normal_axis(dim, x.ndim, what)
    pairs = zip(index.handle.shape, as_tensor(what, x).handle.shape, strict=True)
    counts = [
        have if i != at and None not in (have, own) and have != own else None
        for i, (have, own) in enumerate(pairs)
    ]
    shorter = any(count is not None for count in counts)
    return tuple(slice(0, count) for count in counts) if shorter else None


@_in_part
def scatter(x: Any, dim: Any, index: Any, src: Any = None, **options: Any) -> Any:
    """The tensor with elements at indices along an axis, of which each row has its own.

    Raises:
        DTypeError: A number is beyond the tensor's floats.
        UnsupportedError: There is no such reduction, or other axes of the index are
            longer.
    """
    value, reduce = options.pop("value", src), options.pop("reduce", None)
    x = as_tensor("scatter", x)
    f.refuse_overflow("scatter", x, value)
    if reduce in _OF_SCATTER and value is not None and not options:
        if not isinstance(value, Tensor):
            value = f.to(index, x) * 0 + _fitted(value, x)
        return scatter_reduce(x, dim, index, value, _OF_SCATTER[reduce])
    if reduce is not None or options:
        raise UnsupportedError.here(
            f"scatter with reduce={reduce!r}; expected None, 'add' or 'multiply': use "
            "scatter_reduce for others"
        )
    x, at = _target("scatter", x, dim, index)
    index = f.none_below_zero(index, x, at)
    _require_beside("scatter", x, at, index)
    if not isinstance(value, Tensor):
        return f.where(_met(x, at, index, at), _fitted(value, x), x)
    f.require_one_dtype("scatter", x, value)
    if value.shape != index.shape:
        value = _cut_to(value, index)
    if index.shape[at] == 1:
        return f.where(_met(x, at, index, at), value, x)
    x.recorder.pair(index.handle, at, value.handle, at)
    slot = _slots(x, at, index, at)
    found = f.take_along_dim(value, f.maximum(slot - 1, 0), at)
    return f.where(f.greater(slot, 0), found, x)


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """The tensor with new elements at indices of its first axes, or with them added."""
    x, given = as_tensor("index_put", x), tuple(indices)
    if not all(
        isinstance(i, Tensor) and i.handle.value.dtype.is_integer for i in given
    ):
        raise UnsupportedError.here(
            "index_put at what is no tensor of integers; assign, as in x[i] = v"
        )
    for index in given:
        refuse_bytes(index)
    if not accumulate:
        return placed_at(x, list(enumerate(given)), values)
    count = len(given)
    place = _place_of(x, list(enumerate(given)))
    behind = tuple(x.shape[count:])
    source = f.expand(as_tensor("index_put", values), *place.shape, *behind)
    flat = f.flatten(x, 0, count - 1) if count > 1 else x
    rows = f.reshape(source, -1, *behind)
    found = added_at(flat, 0, f.reshape(place, -1), f.to(rows, x))
    return f.reshape(found, *x.shape)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """The tensor with new elements at indices of all its elements, or them added."""
    x, source = as_tensor("put", x), as_tensor("put", source)
    index = as_tensor("put", index)
    f.require_one_dtype("put", x, source)
    if index.numel() != source.numel():
        raise ShapeError.here(
            f"put of {shape_text(source.handle)} at {shape_text(index.handle)}; "
            "expected an element for each index"
        )
    row, at = f.reshape(x, -1), f.reshape(index, -1)
    return f.reshape(index_put(row, (at,), f.reshape(source, -1), accumulate), *x.shape)


def _place_of(x: Tensor, tensors: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Where tuples of indices are in the axis that the axes make that they are of.

    As a gather does, it refuses those outside and counts from the end.
    """
    place: Any = 0
    for axis, index in tensors:
        extent = integer(x.shape[axis], "an extent")
        place = place * extent + f.index_select(arange(extent), 0, index)
    return place


def placed(x: Tensor, axis: int, index: Any, value: Any) -> Tensor:
    """The tensor after `x[.., index, ..] = value`, with the index at an axis."""
    x, at = _target("an assignment", x, axis, index)
    if not isinstance(value, Tensor):
        flat = f.reshape(index, -1) if index.ndim > 1 else index
        return index_fill(x, at, flat, value)
    if value.handle.value.dtype != x.handle.value.dtype:
        value = f.to(value, x)
    shape = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
    value = f.expand(value, *shape)
    if index.ndim > 1:
        value = f.flatten(value, at, at + index.ndim - 1)
        index = f.reshape(index, -1)
    elif not index.ndim:
        value = f.expand_dims(value, at)
    return _at_indices(x, at, index, value)


def placed_at(x: Tensor, tensors: Sequence[tuple[int, Tensor]], value: Any) -> Tensor:
    """The tensor after an assignment with indices, by the axes at which they stand."""
    (at, position), *others = sorted(tensors, key=lambda pair: pair[1].ndim)
    if not others:
        return placed(x, at, position, value)
    if position.ndim:
        return _placed_at_several(x, sorted(tensors, key=lambda pair: pair[0]), value)
    # In the slice at the single positions, which goes back as a whole.
    rest = [(a - (a > at), t) for a, t in tensors if a != at]
    inner = placed_at(f.index_select(x, at, position), rest, value)
    return placed(x, at, position, inner)


def _placed_at_several(
    x: Tensor, tensors: Sequence[tuple[int, Tensor]], value: Any
) -> Tensor:
    """The tensor after an assignment at an element for each tuple of indices.

    An axis whose index counts all its places, as `arange(batch)` does, goes along with
    the axis of the indices that it counts: there each place has indices of its own.
    """
    shape = _common_shape([index for _, index in tensors])
    counted = _counted_axes(x, tensors, len(shape))
    batch = list(counted.values())
    lasting = [i for i in range(len(shape)) if i not in batch]
    behind = [i for i in range(x.ndim) if i not in [axis for axis, _ in tensors]]
    indices = {
        axis: _rows(f.permute(f.expand(index, *shape), (*batch, *lasting)), len(batch))
        for axis, index in tensors
        if axis not in counted
    }
    order = [*counted, *indices, *behind]
    moved = f.permute(x, order)
    if isinstance(value, Tensor) and value.ndim:
        given = _fitted(value, x)
        value = _by_tuples(x, [axis for axis, _ in tensors], shape, given)
        last = range(len(shape), value.ndim)
        value = _rows(
            f.permute(value, (*batch, *lasting, *last)), len(batch), len(last)
        )
    else:
        value = _fitted(value, x)
    if indices:
        named = _named(x, indices, len(batch))
        moved = _with_rows(moved, named, value, len(batch), len(behind))
    else:
        moved = f.expand(_row(value, len(batch), 0), *moved.shape)
    return f.permute(moved, [order.index(i) for i in range(x.ndim)])


def _common_shape(indices: Sequence[Tensor]) -> tuple[Any, ...]:
    """That of indices which go together; of the longest where extents are dynamic."""
    if any(None in index.handle.shape for index in indices):
        return tuple(max(indices, key=lambda index: index.ndim).shape)
    return np.broadcast_shapes(*(tuple(index.shape) for index in indices))


def _counted_axes(
    x: Tensor, tensors: Sequence[tuple[int, Tensor]], rank: int
) -> dict[int, int]:
    """By axis the one of indices, of so many, whose places its index counts, if any."""
    found: dict[int, int] = {}
    for axis, index in tensors:
        long = [i for i, extent in enumerate(index.shape) if extent != 1]
        if len(long) != 1 or _differ(index, long[0], x, axis):
            continue
        numbers, counts = known(index), rank - index.ndim + long[0]
        counts_all = (
            numbers is not None and (numbers.ravel() == np.arange(numbers.size)).all()
        )
        if counts_all and counts not in found.values():
            found[axis] = counts
    return found


def _rows(x: Tensor, batch: int, behind: int = 0) -> Tensor:
    """The tensor with one axis for those between its first and its last ones."""
    last = x.ndim - behind
    if last == batch:
        return f.expand_dims(x, batch)
    return x if last - batch == 1 else f.flatten(x, batch, last - 1)


def _by_tuples(
    x: Tensor, axes: Sequence[int], shape: tuple[int, ...], value: Tensor
) -> Tensor:
    """What is assigned for each tuple of indices, which have the first axes here.

    As in NumPy they stand where the axes do that have indices, if these are neighbours.
    """
    first, last = axes[0], axes[-1]
    if last - first + 1 != len(axes):
        return f.expand(value, *shape, *(x.shape[i] for i in _others(x, axes)))
    value = f.expand(value, *x.shape[:first], *shape, *x.shape[last + 1 :])
    own = range(first, first + len(shape))
    return f.permute(value, (*own, *_others(value, own)))


def _others(x: Tensor, axes: Sequence[int]) -> list[int]:
    """The other axes of a tensor."""
    return [i for i in range(x.ndim) if i not in axes]


def _named(x: Tensor, indices: Mapping[int, Tensor], batch: int) -> Tensor:
    """Which places each tuple names, of which there is one for each of the last axis.

    Args:
        x: The tensor.
        indices: By axis, of the axes that the batch has and one for the tuples.
        batch: How many axes the batch has.
    """
    found: Any = None
    for at, (axis, index) in enumerate(indices.items(), batch):
        positions = arange(x.shape[axis])
        here = f.index_select(_refusing(x, axis, positions), 0, index)
        for _ in indices:
            here = f.expand_dims(here, batch)
        met = f.equal(_along(positions, at, here.ndim), here)
        found = met if found is None else found & met
    return cast("Tensor", found)


def _with_rows(x: Tensor, named: Tensor, value: Any, batch: int, behind: int) -> Tensor:
    """The tensor with what is assigned for each tuple where it names places.

    Args:
        x: Its first axes are the batch's, then come those that have places.
        named: Which places each tuple names.
        value: A number, or a tensor with one axis for the tuples in their stead.
        batch: How many axes the batch has.
        behind: How many axes have no places.
    """
    places, count = named.ndim - batch - 1, named.shape[-1]
    if count == 1:
        holds, row = f.squeeze(named, -1), _row(value, batch, places)
    else:
        slot = f.amax(f.where(named, arange(count) + 1, 0), -1)
        holds = f.greater(slot, 0)
        row = _picked(value, named, f.maximum(slot - 1, 0), batch)
    for _ in range(behind):
        holds = f.expand_dims(holds, -1)
    return f.where(holds, row, x)


def _row(value: Any, batch: int, places: int) -> Any:
    """The only row of what is assigned, with so many axes for places in its stead."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    value = f.squeeze(value, batch)
    for _ in range(places):
        value = f.expand_dims(value, batch)
    return value


def _picked(value: Any, named: Tensor, row: Tensor, batch: int) -> Any:
    """The rows of what is assigned that places ask for, those of a batch its own."""
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    named.recorder.pair(named.handle, named.ndim - 1, value.handle, batch)
    if not batch:
        return f.index_select(value, 0, row)
    places = _rows(row, batch)
    while places.ndim < value.ndim:
        places = f.expand_dims(places, -1)
    found = f.take_along_dim(value, places, batch)
    return f.reshape(found, *row.shape, *found.shape[batch + 1 :])


# -- Sums at indices -------------------------------------------------------------------
# PyTorch's kernels sum what meets at one index; what they are added to comes behind, in
# one kernel with what follows.


def added_at(x: Any, dim: Any, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """The tensor with slices of another one added at indices along an axis."""
    x, at, source = _target_of("index_add", x, dim, index, source)
    counts = index.ndim == 1 and source.ndim == x.ndim
    if not counts or _differ_beside(source, x, at):
        raise ShapeError.here(
            f"index_add of {shape_text(source.handle)} to {shape_text(x.handle)} at "
            f"{shape_text(index.handle)}: expected indices of one axis, and a slice "
            "for each, as long along the other axes"
        )
    return _added(x, _sums("index_sum", x.shape[at], at, index, source), alpha)


def _scattered(
    what: str, x: Any, dim: Any, index: Any, src: Any
) -> tuple[Any, int, Any]:
    """A target, the axis, and elements for indices that are as long along the others.

    Raises:
        UnsupportedError: They are not.
    """
    x, at = _target(what, x, dim, index)
    src = as_tensor(what, src)
    f.require_one_dtype(what, x, src)
    _require_beside(what, x, at, index)
    return x, at, src if src.shape == index.shape else _cut_to(src, index)


@_in_part
def scatter_add(x: Any, dim: Any, index: Any, src: Any) -> Any:
    """The tensor with elements of another one added at indices along an axis."""
    x, at, src = _scattered("scatter_add", x, dim, index, src)
    alone = _of_one_axis(index, at)
    if alone is None:
        return _added(x, _sums("scatter_sum", x.shape[at], at, index, src), 1)
    return _added(x, _sums("index_sum", x.shape[at], at, alone, src), 1)


@_in_part
def scatter_reduce(
    x: Any, dim: Any, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Elements of another tensor reduced at each index along an axis.

    Args:
        x: What is kept where no index is.
        dim: The axis.
        index: Where each element goes.
        src: The elements.
        reduce: `sum`, `prod`, `mean`, `amax` or `amin`.
        include_self: Whether what is there is reduced too.
    """
    x, at, src = _scattered("scatter_reduce", x, dim, index, src)
    return _reduced_at(x, at, index, src, reduce, include_self)


def index_reduce(
    x: Any, dim: Any, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Slices of another tensor reduced at indices, as `scatter_reduce`."""
    x, at, source = _target_of("index_reduce", x, dim, index, source)
    shape = [1] * x.ndim
    shape[at] = -1
    index = f.expand(f.reshape(index, *shape), *source.shape)
    return _reduced_at(x, at, index, source, reduce, include_self)


_JOINS: Mapping[str, Callable[..., Any]] = {
    "amax": f.maximum,
    "amin": f.minimum,
    "prod": f.mul,
}


def _reduced_at(
    x: Tensor, axis: int, index: Tensor, source: Tensor, reduce: str, with_own: bool
) -> Any:
    """Elements reduced at indices, and what was there where there are none.

    Raises:
        UnsupportedError: There is no such reduction, or it is no whole number.
    """
    if reduce not in (*_JOINS, "sum", "mean"):
        raise UnsupportedError.here(
            f"reduce={reduce!r}; expected one of 'sum', 'mean', "
            f"{', '.join(map(repr, _JOINS))}"
        )
    if reduce == "mean" and not f.is_float(x):
        raise UnsupportedError.here(
            "a mean of integers at indices; convert them to floats"
        )
    alone = _of_one_axis(index, axis)
    kind, where_to = ("scatter", index) if alone is None else ("index", alone)
    row = f"{kind}_{reduce if reduce in _JOINS else 'sum'}"
    found = _sums(row, x.shape[axis], axis, where_to, source)
    if reduce == "sum" and with_own:
        return x + found
    count = _counted(x, axis, kind, where_to)
    if reduce == "mean":
        total = x + found if with_own else found
        found = total / f.to(count + 1 if with_own else f.maximum(count, 1), x)
    elif with_own:
        found = _JOINS[reduce](x, found)
    return f.where(f.greater(count, 0), found, x)


def _counted(x: Tensor, axis: int, kind: str, index: Tensor) -> Any:
    """How many indices of each place along an axis there are."""
    own, size = axis if kind == "scatter" else 0, x.shape[axis]
    ones = f.to(f.equal(index, index), i64)
    count = _sums(f"{kind}_sum", size, own, index, ones)
    behind = x.ndim - axis - 1 if kind == "index" else 0
    return f.reshape(count, *count.shape, *(1,) * behind)


def _added(x: Tensor, sums: Tensor, alpha: Any) -> Tensor:
    return x + (sums if alpha == 1 else sums * alpha)


def _of_one_axis(index: Tensor, axis: int) -> Tensor | None:
    """Indices that are the same along all axes but one, by that; None for others."""
    axes = index.handle.axes
    there = set(index.recorder.dims.resolve(index.handle.value.dims))
    own = set(index.recorder.dims.resolve(axes[axis]))
    if not own or not there <= own:
        return None
    return Tensor.made(index.recorder, Handle(index.handle.value, (axes[axis],)), ())


def _sums(name: str, size: Any, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Elements of a tensor joined at indices along an axis of so many places.

    Args:
        name: Of the row.
        size: How many places there are.
        axis: Of the tensor, and of its indices if they have several axes.
        index: Where each element goes.
        source: The elements.

    Raises:
        ShapeError: They do not fit.
        UnsupportedError: The tensor is of truth values.
    """
    recorder = source.recorder
    if source.handle.value.dtype == boolean:
        raise UnsupportedError.here(
            "a sum at indices of truth values; convert them to numbers"
        )
    recorder.pair(index.handle, axis if index.ndim > 1 else 0, source.handle, axis)
    handles = [source.handle, index.handle]
    numbers = {"size": integer(size, "the number of places")}
    apart = () if index.ndim > 1 else (1,)
    made = recorder.library_by_groups(
        name, handles, around(axis), {0: 0, 2: 0}, numbers, apart
    )
    return Tensor.made(recorder, made, ())


def joined(source: Any, index: Any, size: int, how: str = "sum") -> Tensor:
    """Rows joined at indices, a vector, of so many; 0 where there are none."""
    return _sums(f"index_{how}", size, 0, index, source)


def scattered(source: Any, index: Any, size: int) -> Tensor:
    """Zeros with elements at indices along the last axis, of so many places."""
    index = f.expand(index, *source.shape)
    return _sums("scatter_last", size, source.ndim - 1, index, source)


# -- Which element comes where ---------------------------------------------------------


def _target(what: str, x: Any, dim: Any, index: Any) -> tuple[Tensor, int]:
    x = as_tensor(what, x)
    if not isinstance(index, Tensor) or not index.handle.value.dtype.is_integer:
        f.as_operand(index)
        raise DTypeError.here(f"{what} takes an index of integers")
    at = normal_axis(dim, x.ndim, what)
    return x, at


def _target_of(
    what: str, x: Any, dim: Any, index: Any, source: Any
) -> tuple[Tensor, int, Tensor]:
    """A target, the axis, and what goes there, in the same format."""
    x, at = _target(what, x, dim, index)
    source = as_tensor(what, source)
    f.require_one_dtype(what, x, source)
    return x, at, source


def _fitted(number: Any, x: Tensor) -> Any:
    """A number in the format of the tensor that it is stored to."""
    dtype = x.handle.value.dtype
    if isinstance(number, Tensor):
        return number if number.handle.value.dtype == dtype else f.to(number, x)
    if dtype == boolean:
        return bool(number)
    return int(number) if dtype.is_integer else number


def _differ(a: Tensor, i: int, b: Tensor, j: int) -> bool:
    """Whether two axes are known to have different extents; others become one dim."""
    have, want = a.handle.shape[i], b.handle.shape[j]
    return have is not None and want is not None and have != want


def _differ_beside(a: Tensor, b: Tensor, axis: int) -> bool:
    """Whether any axis but one is known to have different extents."""
    return any(_differ(a, i, b, i) for i in range(b.ndim) if i != axis)


def _require_beside(what: str, x: Tensor, axis: int, index: Tensor) -> None:
    """Raises UnsupportedError if indices are of other extents but along their axis."""
    if index.ndim != x.ndim or _differ_beside(index, x, axis):
        raise UnsupportedError.here(
            f"{what} to {shape_text(x.handle)} at {shape_text(index.handle)}: it is "
            f"done for indices that are no longer along all axes but {axis}"
        )


def _at_indices(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices at the indices of one axis, or one slice at an index without axes."""
    count = 1 if not index.ndim else index.shape[0]
    found = source.handle.shape[axis]
    if found != 1 if count == 1 else _differ(source, axis, index, 0):
        raise ShapeError.here(f"{source.shape[axis]} slices for {count} indices")
    if count == 1:
        met = _along(_met(x, axis, index), axis, x.ndim)
        return f.where(met, source, x)
    x.recorder.pair(index.handle, 0, source.handle, axis)
    slot = _slots(x, axis, index, 0)
    found = f.index_select(source, axis, f.maximum(slot - 1, 0))
    return f.where(_along(f.greater(slot, 0), axis, x.ndim), found, x)


def _met(x: Tensor, axis: int, index: Tensor, own: int = 0) -> Tensor:
    """Which positions along an axis are at any of the indices.

    Args:
        x: The tensor whose axis it is.
        axis: The axis.
        index: The indices, of no axis or one, or of all axes of `x`.
        own: That of the index along which they are.
    """
    positions = arange(x.shape[axis])
    place = f.index_select(_refusing(x, axis, positions), 0, index)
    if index.ndim > 1:
        positions = _along(positions, own, index.ndim)
    if not index.ndim or index.shape[own] == 1:
        return f.equal(positions, place)
    return f.greater(_slots(x, axis, index, own), 0)


def _slots(x: Tensor, axis: int, index: Tensor, own: int) -> Tensor:
    """For each position 1 more than the number of its index, or 0; as `_met`."""
    positions = arange(x.shape[axis])
    here = f.index_select(_refusing(x, axis, positions), 0, index)
    here = f.expand_dims(here, own)
    numbers = _along(arange(index.shape[own]), own + 1, here.ndim) + 1
    met = f.equal(_along(positions, own, here.ndim), here)
    return f.amax(f.where(met, numbers, 0), own + 1)


def _refusing(x: Tensor, axis: int, positions: Tensor) -> Tensor:
    """Positions to pick from, which refuses an index outside.

    Those along an axis of several dims, as of pages and rows in them, have a dim of
    their own here: an index of several dims is none.
    """
    several = len(x.recorder.dims.resolve(x.handle.axes[axis])) > 1
    return arange(x.shape[axis]) if several else positions


def _along(x: Tensor, axis: int, rank: int) -> Tensor:
    """A tensor of one axis as that axis of so many."""
    for _ in range(axis):
        x = f.expand_dims(x, 0)
    for _ in range(rank - 1 - axis):
        x = f.expand_dims(x, -1)
    return x


def _cut_to(source: Tensor, index: Tensor) -> Tensor:
    """As much of a tensor as there are indices."""
    for axis, (have, want) in enumerate(zip(source.shape, index.shape, strict=True)):
        if want > have:
            raise ShapeError.here(
                f"scatter of {shape_text(source.handle)} at "
                f"{shape_text(index.handle)}: the index is longer"
            )
        if want != have:
            source = f.narrow(source, axis, 0, want)
    return source


# -- The elements ----------------------------------------------------------------------

NO_ELEMENTS = (
    "the elements that a mask selects, in other code than what computes row by row and "
    "stores with the same mask, or reduces them all: nobody knows how many there are; "
    "use where(mask, ...)"
)


def _operator(name: str) -> BothWays:
    """An operator of Python that computes with selected elements."""
    sign = getattr(operator, name)
    return both_ways(lambda x, y: _of_each(sign, x, y))


def _of_one(name: str) -> Any:
    """An operator of Python on selected elements alone."""

    def calling(x: Selected) -> Selected:
        return _of_each(getattr(operator, name), x)

    return calling


def _in_place(name: str) -> Any:
    """An operator of Python that changes selected elements, which are a copy."""

    def changing(self: Selected, other: Any) -> Selected:
        from mirage_dsl.frontend.inplace import augmented

        shape = by_rows(name, (self, other), {}).whole.handle.shape
        places = self.mask.ndim
        if shape[places:] != self.whole.handle.shape[places:]:
            self.refuse()
        if shape != self.whole.handle.shape:
            # What was the same along an axis of the places is not any more.
            lengths = [-1 if n is None else n for n in shape]
            self.whole = f.expand(self.whole, *lengths).clone()
        augmented(name, self.whole, self.same(other))
        return self

    return changing


@refusing
class Selected(NoTensor):
    """`x[mask]`, or a coordinate of the places where a mask holds.

    Args:
        whole: What is computed at each place: the mask's axes, of extent 1 where it is
            the same along one, and behind them those of a row.
        mask: Which places are meant.
        rank: How many axes a row has.
        axis: Whose coordinate it is; None for other rows.
    """

    takes_operators = True

    def __init__(
        self, whole: Any, mask: Tensor, rank: int, axis: int | None = None
    ) -> None:
        self.whole, self.mask = whole, mask
        self.rank, self.axis = rank, axis

    @classmethod
    def of(cls, x: Tensor, mask: Tensor) -> Selected:
        """The elements of `x` for which the mask holds.

        Raises:
            UnsupportedError: The mask is no condition.
            ShapeError: It has not the shape of the first axes.
        """
        if not is_condition(mask):
            raise UnsupportedError.here(
                "an index of type Tensor: only integers, slices, None, ... and "
                "conditions are possible; use where() to select by values"
            )
        if mask.handle.shape != x.handle.shape[: mask.ndim]:
            raise ShapeError.here(
                f"a mask {shape_text(mask.handle)} for {shape_text(x.handle)}: it must "
                "have the shape of its first axes"
            )
        # Selecting copies: later writes change neither.
        return cls(x.clone(), mask.clone(), x.ndim - mask.ndim)

    @property
    def dtype(self) -> Any:
        """That of its elements."""
        return self.whole.dtype

    @property
    def device(self) -> Any:
        """Where they are."""
        return self.whole.device

    @property
    def condition(self) -> Tensor:
        """The mask, with an axis of extent 1 for each axis of a row."""
        return self.mask[(..., *(None,) * self.rank)]

    def dim(self) -> int:
        """Number of axes, that of the places among them."""
        return self.rank + 1

    ndim = property(dim)

    def refuse(self) -> NoReturn:
        numbers = None if self.axis is not None else known(self.mask)
        if numbers is None:
            raise UnsupportedError.here(NO_ELEMENTS)
        raise UnsupportedError.here(
            f"the {int(numbers.sum())} elements that a mask of known values selects, "
            "which stand in too many runs to be an index; expected at most "
            f"{MOST_PLACES} elements or runs of neighbours: use where(mask, ...), or "
            "pass the places as a tensor of integers"
        )

    # What is computed of them.

    def __getitem__(self, index: Any) -> Selected:
        parts = _parts_of(index)
        taken = sum(part is not None for part in parts[1:])
        if parts[0] not in (slice(None), Ellipsis) or taken > self.rank:
            self.refuse()
        if parts[0] is Ellipsis:
            return self.rows(self.whole[parts])
        return self.rows(self.whole[(slice(None),) * self.mask.ndim + parts[1:]])

    def __iter__(self) -> Iterator[Any]:
        if self.axis is None:
            self.refuse()
        # Imported when it is needed: it is made of selected elements.

        return loop_over(self.mask, PlaceOfIteration)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Imported when it is needed: it is made of functions of tensors.
        from mirage_dsl.frontend.interop import call_torch

        def computed(*args: Any, **kwargs: Any) -> Any:
            return call_torch(function, args, kwargs)

        name = str(getattr(function, "__name__", function)).strip("_")
        return by_rows(name, args, kwargs or {}, computed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # Imported when it is needed: it is made of selected elements.
        from mirage_dsl.frontend.totals import TOTALS

        if name not in functions_by_rows() | TOTALS:
            self.refuse()

        def method(*args: Any, **kwargs: Any) -> Any:
            return by_rows(name, (self, *args), kwargs)

        return method

    def __array_ufunc__(
        self, ufunc: Any, method: str, *args: Any, **kwargs: Any
    ) -> Any:
        if method != "__call__" or ufunc.signature is not None or kwargs:
            self.refuse()
        return _of_each(ufunc, *args)

    def __array_function__(
        self, function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        # Imported when it is needed: it is made of functions of tensors.
        from mirage_dsl.frontend.interop import call_numpy

        def computed(*args: Any, **kwargs: Any) -> Any:
            return call_numpy(function, args, kwargs)

        return by_rows(str(function.__name__), args, kwargs, computed)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("truediv")
    __floordiv__, __rfloordiv__ = _operator("floordiv")
    __mod__, __rmod__ = _operator("mod")
    __pow__, __rpow__ = _operator("pow")
    __and__, __rand__ = _operator("and_")
    __or__, __ror__ = _operator("or_")
    __xor__, __rxor__ = _operator("xor")
    __lt__, __gt__ = _operator("lt")
    __le__, __ge__ = _operator("le")
    __neg__, __pos__ = _of_one("neg"), _of_one("pos")
    __abs__, __invert__ = _of_one("abs"), _of_one("invert")
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return _of_each(operator.eq, self, other)

    def __ne__(self, other: object) -> Any:
        return _of_each(operator.ne, self, other)

    def __matmul__(self, other: Any) -> Any:
        return by_rows("matmul", (self, other), {})

    __iadd__, __isub__ = _in_place("add"), _in_place("sub")
    __imul__, __itruediv__ = _in_place("mul"), _in_place("div")
    __ifloordiv__, __imod__ = _in_place("floor_divide"), _in_place("remainder")
    __ipow__ = _in_place("pow")

    # Where they go.

    def assign_to(self, x: Tensor, value: Any) -> None:
        """Write to these elements of a tensor."""
        # Imported when it is needed: it is made of selected elements.
        from mirage_dsl.frontend.inplace import write

        if isinstance(value, Tensor):
            self._check_value(value)
        value = self.same(value)
        write("an assignment", x, f.where(self.condition, value, x), (), like=value)

    def _check_value(self, value: Tensor) -> None:
        if value.ndim > self.rank:
            raise UnsupportedError.here(
                f"{shape_text(value.handle)} for the elements of a mask, of which "
                "nobody knows how many there are; use where(), or a number"
            )
        have, want = value.handle.value.dtype, self.whole.handle.value.dtype
        if value.ndim and have != want:
            raise DTypeError.here(
                f"{have} for elements that are {want}, under a mask; convert the value "
                "first"
            )

    def same(self, other: Any) -> Any:
        """What an operand is at each place: one of rows of the same places, or of all.

        Raises:
            UnsupportedError: Its rows are of other places.
        """
        if isinstance(other, Selected):
            same = self.is_of_places_of(other) and other.rank == self.rank
            return other.whole if same else self.refuse()
        if isinstance(other, Tensor) and other.ndim > self.rank:
            self.refuse()
        return other

    def is_of_places_of(self, other: Selected) -> bool:
        """Whether both are of one mask, which may have been computed for each."""
        recorder = self.mask.recorder
        return recorder.are_alike(self.mask.handle, other.mask.handle)

    def rows(self, whole: Any) -> Selected:
        """Others of the same places."""
        return Selected(whole, self.mask, whole.ndim - self.mask.ndim)


# -- What computes row by row ----------------------------------------------------------

_CONVERSIONS = frozenset({"bfloat16", "clone", "contiguous", "double", "float", "half"})
_OTHERS = frozenset({"dropout", "gelu", "silu", "to", "type_as"})
_OF_LAST_AXES = frozenset({"layer_norm", "linear", "matmul", "rms_norm"})
LOSSES = frozenset(
    {"binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss"}
    | {"l1_loss", "mse_loss", "smooth_l1_loss"}
)
"""Losses that are a number for each element before they are reduced."""
_ALONG: Mapping[str, int] = {
    **dict.fromkeys(("amax", "amin", "glu", "log_softmax", "mean"), 1),
    **dict.fromkeys(("softmax", "sum"), 1),
    **dict.fromkeys(("chunk", "split"), 2),
    **dict.fromkeys(("squeeze", "unsqueeze"), 1),
}
"""Functions along an axis, with the place of that among their arguments."""


@cache
def functions_by_rows() -> frozenset[str]:
    """PyTorch's functions that compute row by row, or along axes of a row."""
    from mirage_dsl.frontend.inplace import ELEMENTWISE
    from mirage_dsl.frontend.torch_functions import ACTIVATIONS

    own = _CONVERSIONS | _OF_LAST_AXES | _ALONG.keys() | _OTHERS
    return own | ELEMENTWISE | ELEMENTARY.keys() | ACTIVATIONS.keys()


def by_rows(
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None = None,
) -> Any:
    """A function of PyTorch of selected elements.

    Args:
        name: What it is called.
        args: Its arguments by position.
        kwargs: Those by keyword.
        function: What it computes of tensors; the method of that name unless given.

    Raises:
        UnsupportedError: It does not compute row by row.
    """
    # Imported when it is needed: it is made of selected elements.
    from mirage_dsl.frontend.totals import is_total, total

    first = next((x for x in args if isinstance(x, Selected)), None)
    if first is not None and is_total(name, first, args, kwargs):
        return total(name, first, args, kwargs, function)
    if first is None or name not in functions_by_rows() | LOSSES:
        raise UnsupportedError.here(f"{name} of {NO_ELEMENTS}")
    given, named = list(args), dict(kwargs)
    if name in _ALONG:
        _count_from_the_end(name, first, given, named)
    if (name in ("tril", "triu") and first.rank < 2) or (
        name == "prelu" and first.mask.ndim > 1
    ):
        first.refuse()
    if name in _OF_LAST_AXES:
        _check_last_axes(name, first, given)
        given = [x.whole if x is first else x for x in given]
    elif name == "type_as":
        given[0] = first.whole
    else:
        given = [first.same(x) for x in given]
    named = {key: first.same(value) for key, value in named.items()}
    found = (function or _method(name))(*given, **named)
    if isinstance(found, tuple):
        return tuple(map(first.rows, cast("tuple[Any, ...]", found)))
    return first.rows(found)


def _of_each(function: Callable[..., Any], *args: Any) -> Selected:
    """A function of each element of rows, and of what goes with each row."""
    first = next(x for x in args if isinstance(x, Selected))
    return first.rows(function(*map(first.same, args)))


def _method(name: str) -> Callable[..., Any]:
    from mirage_dsl.frontend.interop import torch_method

    method = vars(Tensor).get(name) or torch_method(name)
    assert method is not None
    return method


def _count_from_the_end(
    name: str, x: Selected, args: list[Any], kwargs: dict[str, Any]
) -> None:
    """Let the axis be one of a row, counted from the end.

    Raises:
        UnsupportedError: It is that of the places, or all axes.
    """
    at, ndim = _ALONG[name], x.rank + 1 + (name == "unsqueeze")
    own, key = -1 if name == "glu" else 0, "axis" if "axis" in kwargs else "dim"
    axis = args[at] if len(args) > at else kwargs.get(key, own)
    if args[0] is not x or not isinstance(axis, int) or not -ndim < axis < ndim:
        x.refuse()
    if not axis % ndim:
        x.refuse()
    if len(args) > at:
        args[at] = axis % ndim - ndim
    else:
        kwargs[key] = axis % ndim - ndim


def _check_last_axes(name: str, x: Selected, args: Sequence[Any]) -> None:
    """Refuse what would mix rows.

    Raises:
        UnsupportedError: It would.
    """
    other = args[1] if len(args) > 1 else None
    if args[0] is not x or not x.rank:
        x.refuse()
    if name in ("linear", "matmul"):
        fits = isinstance(other, Tensor) and other.ndim == 2
    else:
        fits = len(tuple(other or ())) <= x.rank
    if not fits or any(isinstance(a, Selected) for a in args[1:]):
        x.refuse()


# -- Rows of other tensors, and sums into them -----------------------------------------


@refusing
class Led(NoTensor):
    """Rows of places behind an axis of extent 1, as of `x[None, rows]`.

    Nothing is computed of them before the axis is away.
    """

    def __init__(self, rows: Selected) -> None:
        self.rows = rows

    def refuse(self) -> NoReturn:
        self.rows.refuse()

    def reshape(self, *shape: Any) -> Selected:
        """The rows, which are as many as there are."""
        whole = self.rows.whole.shape
        own = tuple(map(int, whole[len(whole) - self.rows.rank :]))
        return self.rows if flat_arguments(shape) == (-1, *own) else self.refuse()

    view = reshape

    def squeeze(self, dim: int = 0) -> Selected:
        """The rows."""
        return self.refuse() if dim else self.rows

    def __getitem__(self, index: Any) -> Selected:
        return self.rows if index == 0 else self.refuse()

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedError.here(NO_ELEMENTS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()


def rows_of(x: Tensor, index: Any) -> Selected | Led | None:
    """What an index with coordinates of places, or a mask beside others, selects.

    It is None for other indices.

    Raises:
        UnsupportedError: They are no coordinates, of other places, or not in front.
    """
    parts = _parts_of(index)
    chosen = [part for part in parts if isinstance(part, Selected)]
    if not chosen:
        return _selected_beside(x, index)
    if parts[0] is None and parts[1] is chosen[0]:
        rows = rows_of(x, parts[1:])
        return Led(cast(Selected, rows))
    first, count = chosen[0], len(chosen)
    axes = [part.axis for part in chosen]
    alike = all(part.is_of_places_of(first) for part in chosen)
    if not alike or None in axes or len(set(axes)) < count or x.ndim < count:
        first.refuse()
    if any(not isinstance(part, Selected) for part in parts[:count]):
        first.refuse()
    for at, axis in enumerate(axes):
        assert axis is not None
        x = _as_long(x, at, first.mask, axis)
    rank = first.mask.ndim
    order = [axes.index(axis) for axis in range(rank) if axis in axes]
    whole = f.permute(x, (*order, *range(count, x.ndim)))
    for axis in range(rank):
        whole = whole if axis in axes else f.expand_dims(whole, axis)
    return first.rows(whole[(slice(None),) * rank + parts[count:]].clone())


def _as_long(x: Tensor, axis: int, mask: Tensor, own: int) -> Tensor:
    """As much of an axis as the mask has places along it.

    Raises:
        ShapeError: It is shorter, so that places would be outside.
    """
    have, want = x.handle.shape[axis], mask.handle.shape[own]
    if have is None or want is None or have == want:
        return x
    if have < want:
        raise ShapeError.here(
            f"places of {shape_text(mask.handle)} as indices of axis {axis} of "
            f"{shape_text(x.handle)}, which is shorter"
        )
    return f.narrow(x, axis, 0, want)


def _parts_of(index: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))


def _beside_mask(x: Tensor, index: Any) -> tuple[Tensor, Tensor, int] | None:
    """An index with one mask beside slices, integers and None, in two steps.

    Returns:
        The view that the others select, with the axes of the mask in front; the mask;
        and before how many other axes they stood.  None for other indices.

    Raises:
        ShapeError: The tensor has fewer axes.
    """
    parts = _parts_of(index)
    masks = [at for at, part in enumerate(parts) if isinstance(part, Tensor)]
    if len(parts) < 2 or len(masks) != 1 or not is_condition(parts[masks[0]]):
        return None
    at, mask = masks[0], parts[masks[0]]
    before, whole = parts[:at], (slice(None),) * mask.ndim
    seen = x[(*before, *whole, *parts[at + 1 :])]
    behind = sum(p is not None for p in (*whole, *parts[at + 1 :]))
    taken = sum(p is not None and p is not Ellipsis for p in before)
    first = sum(not isinstance(p, int) and p is not Ellipsis for p in before)
    if Ellipsis in before:
        first += x.ndim - taken - behind
    own = range(first, first + mask.ndim)
    others = (axis for axis in range(seen.ndim) if axis not in own)
    return f.permute(seen, (*own, *others)), mask, first


def _selected_beside(x: Tensor, index: Any) -> Selected | None:
    """The elements at a mask that stands before slices and others; None for others."""
    found = _beside_mask(x, index)
    if found is None:
        return None
    seen, mask, first = found
    chosen = Selected.of(seen, mask)
    return chosen.refuse() if first else chosen


def assign_beside(x: Tensor, index: Any, value: Any) -> bool:
    """Do `x[:, mask] = value`, of a mask beside slices, integers and None.

    Raises:
        UnsupportedError: The value has an axis for the elements of the mask.
    """
    found = _beside_mask(x, index)
    if found is None:
        return False
    seen, mask, first = found
    chosen = Selected.of(seen, mask)
    if first and getattr(value, "ndim", 0):
        chosen.refuse()
    chosen.assign_to(seen, value)
    return True


def assign_rows(x: Tensor, index: Any, value: Any) -> bool:
    """Do `x[index] = value` where the index is all coordinates of some places.

    Raises:
        UnsupportedError: It has some of them, or others beside them.
        ShapeError: The tensor has other axes than the mask.
    """
    parts = _parts_of(index)
    first = next((part for part in parts if isinstance(part, Selected)), None)
    if first is None:
        return False
    axes = [part.axis if isinstance(part, Selected) else None for part in parts]
    rows = rows_of(x, index)
    if axes == list(range(first.mask.ndim)) and rows is not None:
        Selected.of(x, first.mask).assign_to(x, value)
    elif len(parts) == 1 and first.axis is not None:
        _assign_last(x, first, first.axis, value)
    else:
        first.refuse()
    return True


def _assign_last(x: Tensor, places: Selected, own: int, value: Any) -> None:
    """Do `x[rows] = value` with one coordinate of places, of which a row may have many.

    The last of them counts, as on a CPU; PyTorch leaves it open on a GPU.

    Args:
        x: The tensor.
        places: A coordinate of theirs.
        own: Along which axis of their mask.
        value: What is written.

    Raises:
        UnsupportedError: The value is of other places, or a row has too many.
        ShapeError: The tensor has another number of rows.
    """
    # Imported when it is needed: it is made of selected elements.
    from mirage_dsl.frontend.inplace import write

    mask, rank = places.mask, x.ndim - 1
    if x.handle.shape[0] != mask.handle.shape[own]:
        raise ShapeError.here(
            f"an assignment to {shape_text(x.handle)} at places of "
            f"{shape_text(mask.handle)}: expected as many rows as places"
        )
    extents = [1 if i == own else n for i, n in enumerate(mask.handle.shape)]
    counts = [n for n in extents if n is not None]
    if len(counts) < len(extents) or prod(counts) > MOST_PLACES:
        places.refuse()
    rows = Selected(f.expand_dims(x, 0), mask, rank)
    value = rows.same(value)
    found: Any = x
    for place in product(*map(range, counts)):
        at: list[Any] = [slice(None) if i == own else n for i, n in enumerate(place)]
        holds = mask[tuple(at)][(..., *(None,) * rank)]
        found = f.where(holds, _at_place(value, at, rank), found)
    write("an assignment", x, found, (), like=value)


def _at_place(value: Any, at: Sequence[Any], rank: int) -> Any:
    """What rows of places are at one of these; what all have in common is as it is."""
    if not isinstance(value, Tensor) or value.ndim <= rank:
        return value
    alike = [n == 1 for n in value.handle.shape[: len(at)]]
    index: list[Any] = [
        0 if same and not isinstance(place, slice) else place
        for place, same in zip(at, alike, strict=True)
    ]
    return value[tuple(index)]


def index_add(x: Any, dim: Any, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """PyTorch's; at a coordinate of places, the sum of the rows at each of them.

    Raises:
        ShapeError: Rows or places do not fit.
        DTypeError: The rows have another dtype.
    """
    x = as_tensor("index_add", x)
    if not isinstance(index, Selected) or index.axis is None:
        return added_at(x, dim, index, source, alpha=alpha)
    at = normal_axis(dim, x.ndim, "index_add")
    same = isinstance(source, Selected) and source.is_of_places_of(index)
    if at or not same or source.rank != x.ndim - 1:
        index.refuse()
    f.require_one_dtype("index_add", x, source.whole)
    if x.handle.shape[0] != index.mask.handle.shape[index.axis]:
        raise ShapeError.here(
            f"index_add to {shape_text(x.handle)} at places of "
            f"{shape_text(index.mask.handle)}: expected as many rows as places"
        )
    kept = f.where(source.condition, source.whole, 0)
    gone = tuple(i for i in range(index.mask.ndim) if i != index.axis)
    total = f.sum(kept, gone) if gone else kept
    return f.add(x, total, alpha=alpha)


# -- Where a condition holds -----------------------------------------------------------

MOST_PLACES = 64
"""Iterations of a loop, which are traced one by one."""
_HOW_MANY = (
    "the places where a condition holds, of which nobody knows how many there are: a "
    "column of them is an index, as in x[rows], those of a vector can be looped over"
)


def nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    """Where elements are not 0: PyTorch's matrix of places, or its columns."""
    condition = _condition("nonzero", x)
    columns = known_places(condition)
    if columns is not None:
        return columns if as_tuple else f.stack(columns, 1)
    found = Nonzero(condition)
    return found.columns() if as_tuple else found


def where(condition: Any, *others: Any, **named: Any) -> Any:
    """PyTorch's `where`: a choice, or of one argument the columns of its places."""
    if others or named:
        return f.where(condition, *others, **named)
    return nonzero(condition, as_tuple=True)


def _condition(what: str, x: Any) -> Tensor:
    x = as_tensor(what, x)
    if not x.ndim:
        raise UnsupportedError.here(
            f"{what} of a tensor without axes; compute with the condition itself"
        )
    return x.clone() if is_condition(x) else f.not_equal(x, 0)


def one_hot(x: Any, num_classes: Any = -1) -> Any:
    """PyTorch's: 1 at the place of each class along a new last axis, else 0.

    Raises:
        DTypeError: The classes are no i64.
        UnsupportedError: Their number is left to the largest one.
    """
    x = as_tensor("one_hot", x)
    if x.handle.value.dtype != i64:
        raise DTypeError.here(f"one_hot of {x.handle.value.dtype}; expected i64")
    count = integer(num_classes, "num_classes")
    if count < 1:
        raise UnsupportedError.here(
            "one_hot without a number of classes, which depends on the data; give "
            "num_classes="
        )
    classes = arange(count)
    # An index outside is an error, as in any gather.
    inside = f.none_below_zero(x, classes, 0)
    found = f.index_select(classes, 0, inside)[..., None]
    return f.equal(found, classes).to("int64")


@refusing
class Nonzero(NoTensor):
    """The matrix that `nonzero` gives: a row for each place, a column for each axis."""

    reason = _HOW_MANY

    def __init__(self, holds: Tensor) -> None:
        self._holds = holds

    def columns(self) -> tuple[Selected, ...]:
        """The coordinates, axis by axis."""
        return tuple(map(self._column, range(self._holds.ndim)))

    def _column(self, axis: int) -> Selected:
        rank = self._holds.ndim
        numbers = arange(self._holds.shape[axis])
        shape = tuple(-1 if i == axis else 1 for i in range(rank))
        return Selected(numbers.reshape(*shape), self._holds, 0, axis)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, tuple):
            self.refuse()
        parts = cast("tuple[Any, ...]", index)
        if len(parts) != 2 or parts[0] not in (slice(None), Ellipsis):
            self.refuse()
        columns: Any = self.columns()
        return columns[parts[1]]

    def unbind(self, dim: int = 0) -> tuple[Selected, ...]:
        """The coordinates, axis by axis."""
        if dim not in (1, -1):
            self.refuse()
        return self.columns()

    def squeeze(self, dim: int | None = None) -> Selected:
        """The coordinate along the only axis."""
        if dim not in (1, -1) or self._holds.ndim > 1:
            self.refuse()
        return self._column(0)

    def flatten(self) -> Selected:
        """The coordinate along the only axis."""
        return self.squeeze(1)

    def __iter__(self) -> Iterator[Any]:
        return loop_over(self._holds, Row)

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse a function of PyTorch of the places."""
        raise UnsupportedError.here(_HOW_MANY)

    def __len__(self) -> int:
        self.refuse()

    def __bool__(self) -> bool:
        self.refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()


# -- Loops -----------------------------------------------------------------------------


class PlaceOfIteration(NoTensor):
    """The place of an iteration: a number that is known while it is traced."""

    reason = "the place of an iteration over nonzero() beside tensors; use int() of it"

    def __init__(self, number: int, branch: Branch, branches: Branches) -> None:
        self._number, self._branch, self._branches = number, branch, branches

    def __index__(self) -> int:
        if self._branches.current is not self._branch:
            raise TraceError.here(
                "the place of an iteration over nonzero() is used outside of it; loop "
                "over nonzero() itself, and use each place where it is given"
            )
        return self._number

    __int__ = __index__

    def item(self) -> PlaceOfIteration:
        """The place, which is a number already."""
        return self

    __hash__ = object.__hash__


def _compared(compare: Callable[[int, Any], bool]) -> Any:
    def comparing(self: PlaceOfIteration, other: Any) -> bool:
        return compare(
            int(self), int(other) if isinstance(other, PlaceOfIteration) else other
        )

    return comparing


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare = getattr(operator, _name)
    setattr(PlaceOfIteration, f"__{_name}__", _compared(_compare))


class Row(PlaceOfIteration):
    """A row of what `nonzero` gives for a vector: a tensor of one number to users."""

    def __getitem__(self, index: Any) -> PlaceOfIteration:
        if index not in (0, -1):
            self.refuse()
        return PlaceOfIteration(int(self), self._branch, self._branches)

    def __iter__(self) -> Iterator[PlaceOfIteration]:
        return iter((self[0],))


def loop_over(holds: Tensor, kind: type[PlaceOfIteration]) -> Iterator[Any]:
    """The iterations for the places of a vector, each of which may not happen.

    Raises:
        UnsupportedError: It is no vector, or there are too many places.
        TraceError: An iteration changes Python's own numbers or containers.
    """
    extent = holds.handle.shape[0]
    if holds.ndim != 1 or extent is None or extent > MOST_PLACES:
        raise UnsupportedError.here(
            f"a loop over the places of {holds!r}; it is traced for each place of a "
            f"vector of {MOST_PLACES} elements at most; compute with masks instead"
        )
    return _Loop(holds, extent, kind)


class _Loop(Iterator[Any]):
    def __init__(
        self, holds: Tensor, extent: int, kind: type[PlaceOfIteration]
    ) -> None:
        self._holds, self._extent, self._kind = holds, extent, kind
        self._number = 0
        self._before: Mapping[str, object] = {}

    def __next__(self) -> Any:
        branches, frame = self._holds.recorder.branches, sys._getframe(1)
        if self._number:
            _refuse_changed(self._before, _plain_locals(frame))
        elif branches.current is not None:
            raise UnsupportedError.here(
                "a loop over nonzero() in another one; compute with masks in one of "
                "them"
            )
        branches.current = None
        if self._number == self._extent:
            raise StopIteration
        number, self._number = self._number, self._number + 1
        branch = branches.begin(self._holds[number].handle)
        self._before = _plain_locals(frame)
        return self._kind(number, branch, branches)


def _plain_locals(frame: FrameType) -> Mapping[str, object]:
    """What the function that loops has in variables that no tensor is: their values."""
    found: dict[str, object] = {}
    for name, value in frame.f_locals.items():
        if type(value) in (bool, int, float, str):
            found[name] = type(value), value
        elif type(value) in (list, dict, set):
            found[name] = type(value), len(value)
    return found


def _refuse_changed(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    for name, value in before.items():
        if now.get(name, value) != value:
            raise TraceError.here(
                f"an iteration over nonzero() changes {name}, which is Python's own: "
                "nobody knows whether there is such an iteration; change a tensor in "
                "place, which was made before the loop"
            )


PLACING: Mapping[str, Function] = {
    **named(index_add, index_copy, index_fill, index_put, index_reduce),
    **named(put, scatter, scatter_add, scatter_reduce, masked_scatter, masked_select),
    **named(nonzero, one_hot, where),
    "argwhere": nonzero,
}
"""By PyTorch's names."""
