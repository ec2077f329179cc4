"""Tensors with new elements at positions that are data: `index_copy`, `scatter_add`.

A program has no memory, so what comes is another tensor: at each position of the axis
its new element, if an index says so, else the old one.  Which element that is, if any,
is computed of the indices alone, which are compared with positions:

    slot = max over j of (j + 1 where index[j] == position else 0)
    y    = where(slot > 0, values[slot - 1], x)

So no two writes can meet: of equal indices the last one counts, where PyTorch leaves it
open.  Those below 0 count from the end where PyTorch's function counts so; one outside
is an error, as in a gather.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    ShapeError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import boolean
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend import shapes
from mirage_dsl.frontend import views as v
from mirage_dsl.frontend.constructors import arange
from mirage_dsl.frontend.dims import Handle, shape_text, vars_of
from mirage_dsl.frontend.operands import as_tensor
from mirage_dsl.frontend.tensor import Tensor, refuse_bytes
from mirage_dsl.ops.table import OPERATORS


def index_copy(x: Any, dim: Any, index: Any, source: Any) -> Any:
    """The tensor with the slices of another one at indices along an axis."""
    x, at = _target("index_copy", x, dim, index)
    source = as_tensor("index_copy", source)
    _require_dtype("index_copy", x, source)
    if index.ndim > 1 or source.ndim != x.ndim:
        raise ShapeError(
            f"index_copy of {shape_text(source.handle)} to {shape_text(x.handle)} at "
            f"{shape_text(index.handle)}: expected indices of one axis, and as many "
            "slices",
            user_location(),
        )
    others = [i for i in range(x.ndim) if i != at]
    if any(_differ(source, i, x, i) for i in others):
        raise ShapeError(
            f"index_copy of {shape_text(source.handle)} to {shape_text(x.handle)}: "
            f"expected slices that are as long along all axes but {at}",
            user_location(),
        )
    return _at_indices(x, at, f.none_below_zero(index, x, at), source)


def index_fill(x: Any, dim: Any, index: Any, value: Any) -> Any:
    """The tensor with a number at indices along an axis."""
    x, at = _target("index_fill", x, dim, index)
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(
            f"index_fill with {shape_text(value.handle)}; expected a number, or a "
            "tensor without axes",
            user_location(),
        )
    return f.where(_along(_met(x, at, index), at, x.ndim), _fitted(value, x), x)


def scatter(x: Any, dim: Any, index: Any, src: Any = None, **options: Any) -> Any:
    """The tensor with elements at indices along an axis, of which each row has its own.

    Raises:
        UnsupportedError: Elements are to be reduced, or other axes of the index are
            shorter.
    """
    value = options.pop("value", src)
    if options.pop("reduce", None) is not None or options:
        raise UnsupportedError(
            "scatter that reduces what meets: it is done for unique indices, without "
            "reduce=",
            user_location(),
        )
    x, at = _target("scatter", x, dim, index)
    index = f.none_below_zero(index, x, at)
    others = [i for i in range(x.ndim) if i != at]
    if index.ndim != x.ndim or any(_differ(index, i, x, i) for i in others):
        raise UnsupportedError(
            f"scatter to {shape_text(x.handle)} at {shape_text(index.handle)}: it is "
            f"done for indices that are as long along all axes but {at}",
            user_location(),
        )
    if not isinstance(value, Tensor):
        return f.where(_met(x, at, index, at), _fitted(value, x), x)
    _require_dtype("scatter", x, value)
    if value.shape != index.shape:
        value = _cut_to(value, index)
    if index.shape[at] == 1:
        return f.where(_met(x, at, index, at), value, x)
    x.recorder.pair(index.handle, at, value.handle, at)
    slot = _slots(x, at, index, at)
    found = f.take_along_dim(value, f.maximum(slot - 1, 0), at)
    return f.where(f.greater(slot, 0), found, x)


def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """The tensor with new slices at indices of its first axis."""
    given = tuple(indices)
    if accumulate or len(given) != 1:
        raise UnsupportedError(
            "index_put that accumulates, or of several indices; it is done for one "
            "tensor of unique indices",
            user_location(),
        )
    if isinstance(given[0], Tensor):
        refuse_bytes(given[0])
    return placed(x, 0, given[0], values)


def placed(x: Tensor, axis: int, index: Any, value: Any) -> Tensor:
    """The tensor after `x[.., index, ..] = value`, with the index at an axis."""
    x, at = _target("an assignment", x, axis, index)
    if not isinstance(value, Tensor):
        return index_fill(x, at, index, value)
    if value.handle.value.dtype != x.handle.value.dtype:
        value = v.to(value, x)
    shape = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
    value = v.expand(value, *shape)
    if index.ndim > 1:
        value = v.flatten(value, at, at + index.ndim - 1)
        index = v.reshape(index, -1)
    elif not index.ndim:
        value = v.expand_dims(value, at)
    return _at_indices(x, at, index, value)


def placed_at(x: Tensor, tensors: Sequence[tuple[int, Tensor]], value: Any) -> Tensor:
    """The tensor after an assignment with indices, by the axes at which they stand.

    Raises:
        UnsupportedError: There are several that are no single positions.
    """
    (axis, index), *others = sorted(tensors, key=lambda pair: pair[1].ndim)[::-1]
    if not others:
        return placed(x, axis, index, value)
    if any(other.ndim for _, other in others):
        raise UnsupportedError(
            "an assignment at several tensors of indices; it is done at one, and at "
            "single positions beside it",
            user_location(),
        )
    # In the slice at the single positions, which goes back as a whole.
    at, position = others[0]
    rest = [(a - (a > at), t) for a, t in tensors if a != at]
    inner = placed_at(f.index_select(x, at, position), rest, value)
    return placed(x, at, position, inner)


# -- Sums at indices -------------------------------------------------------------------
# PyTorch's kernels sum what meets at one index; what they are added to comes behind, in
# one kernel with what follows.


def index_add(x: Any, dim: Any, index: Any, source: Any, *, alpha: Any = 1) -> Any:
    """The tensor with slices of another one added at indices along an axis."""
    x, at = _target("index_add", x, dim, index)
    source = as_tensor("index_add", source)
    _require_dtype("index_add", x, source)
    others = [i for i in range(x.ndim) if i != at]
    counts = index.ndim == 1 and source.ndim == x.ndim
    if not counts or any(_differ(source, i, x, i) for i in others):
        raise ShapeError(
            f"index_add of {shape_text(source.handle)} to {shape_text(x.handle)} at "
            f"{shape_text(index.handle)}: expected indices of one axis, and a slice "
            "for each, as long along the other axes",
            user_location(),
        )
    return _added(x, _sums("index_sum", x, at, index, source), alpha)


def scatter_add(x: Any, dim: Any, index: Any, src: Any) -> Any:
    """The tensor with elements of another one added at indices along an axis."""
    x, at = _target("scatter_add", x, dim, index)
    src = as_tensor("scatter_add", src)
    _require_dtype("scatter_add", x, src)
    others = [i for i in range(x.ndim) if i != at]
    if index.ndim != x.ndim or any(_differ(index, i, x, i) for i in others):
        raise UnsupportedError(
            f"scatter_add to {shape_text(x.handle)} at {shape_text(index.handle)}: it "
            f"is done for indices that are as long along all axes but {at}",
            user_location(),
        )
    if src.shape != index.shape:
        src = _cut_to(src, index)
    alone = _of_one_axis(index, at)
    if alone is None:
        return _added(x, _sums("scatter_sum", x, at, index, src), 1)
    return _added(x, _sums("index_sum", x, at, alone, src), 1)


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


def _sums(name: str, x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Elements of a tensor summed at indices along an axis, which is as long as x's.

    Raises:
        ShapeError: They do not fit.
        UnsupportedError: The tensor is of one constant, or of truth values.
    """
    recorder = source.recorder
    number = recorder.constants.get(source.handle.value)
    if number is not None or source.handle.value.dtype == boolean:
        raise UnsupportedError(
            "a sum at indices of one constant, or of truth values; compute the "
            "elements, as (index == position).sum() counts them",
            user_location(),
        )
    recorder.pair(index.handle, axis if index.ndim > 1 else 0, source.handle, axis)
    merged = _three_axes(source, axis)
    handles = [merged, _three_axes(index, axis) if index.ndim > 1 else index.handle]
    kept = {0: merged.axes[0], 2: merged.axes[2]}
    size = shapes.integer(x.shape[axis], "the number of places")
    try:
        made = recorder.library(OPERATORS[name], handles, {"size": (size,)}, kept)
    except CheckError as error:
        raise ShapeError(f"{name}: {error.message}", user_location()) from None
    axes = source.handle.axes
    found = Handle(made.value, (*axes[:axis], made.axes[1], *axes[axis + 1 :]))
    return Tensor.made(recorder, found, ())


def _three_axes(x: Tensor, axis: int) -> Handle:
    """All axes before one, that one, and all behind; every element is there."""
    try:
        whole = x.recorder.whole(x.handle)
    except UnsupportedError:
        raise UnsupportedError(
            f"a sum at indices of {shape_text(x.handle)}, whose elements repeat along "
            "an expanded axis; pass the tensor as it is before that",
            user_location(),
        ) from None
    before, behind = whole.axes[:axis], whole.axes[axis + 1 :]
    own = whole.axes[axis]
    return Handle(whole.value, (vars_of(before), own, vars_of(behind)))


# -- Which element comes where ---------------------------------------------------------


def _target(what: str, x: Any, dim: Any, index: Any) -> tuple[Tensor, int]:
    x = as_tensor(what, x)
    if not isinstance(index, Tensor) or not index.handle.value.dtype.is_integer:
        raise DTypeError(f"{what} takes an index of integers", user_location())
    (at,) = shapes.normal_axes(dim, x.ndim, what)
    return x, at


def _fitted(number: Any, x: Tensor) -> Any:
    """A number in the format of the tensor that it is stored to."""
    dtype = x.handle.value.dtype
    if isinstance(number, Tensor):
        return number if number.handle.value.dtype == dtype else v.to(number, x)
    if dtype == boolean:
        return bool(number)
    return int(number) if dtype.is_integer else number


def _differ(a: Tensor, i: int, b: Tensor, j: int) -> bool:
    """Whether two axes are known to have different extents; others become one dim."""
    have, want = a.handle.shape[i], b.handle.shape[j]
    return have is not None and want is not None and have != want


def _require_dtype(what: str, x: Tensor, other: Tensor) -> None:
    have, want = other.handle.value.dtype, x.handle.value.dtype
    if have != want:
        raise DTypeError(
            f"{what} of {have} to {want}; convert it first", user_location()
        )


def _at_indices(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Slices at the indices of one axis, or one slice at an index without axes."""
    count = 1 if not index.ndim else index.shape[0]
    found = source.handle.shape[axis]
    if found != 1 if count == 1 else _differ(source, axis, index, 0):
        raise ShapeError(
            f"{source.shape[axis]} slices for {count} indices", user_location()
        )
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
    here = v.expand_dims(here, own)
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
        x = v.expand_dims(x, 0)
    for _ in range(rank - 1 - axis):
        x = v.expand_dims(x, -1)
    return x


def _cut_to(source: Tensor, index: Tensor) -> Tensor:
    """As much of a tensor as there are indices."""
    for axis, (have, want) in enumerate(zip(source.shape, index.shape, strict=True)):
        if want > have:
            raise ShapeError(
                f"scatter of {shape_text(source.handle)} at "
                f"{shape_text(index.handle)}: the index is longer",
                user_location(),
            )
        if want != have:
            source = v.narrow(source, axis, 0, want)
    return source


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill": index_fill,
    "index_put": index_put,
    "scatter": scatter,
    "scatter_add": scatter_add,
}
"""By PyTorch's names."""
