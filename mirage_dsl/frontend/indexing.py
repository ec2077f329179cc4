"""Basic indexing of traced tensors: integers, slices, None and `...`."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, cast

from mirage_dsl.errors import ShapeError, UnsupportedError
from mirage_dsl.frontend.eager import is_array
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.shapes import SymbolicSize, integer
from mirage_dsl.frontend.steps import Handle, shape_text


def indexed(recorder: Recorder, x: Handle, index: Any) -> Handle:
    """The tensor that a basic index selects.

    Raises:
        ShapeError: It is out of bounds, or selects nothing.
        UnsupportedError: It selects by values, or what no view can.
    """
    # A list would be an index by values, which is none of these.
    whole = isinstance(index, tuple)
    items = list(cast("tuple[Any, ...]", index)) if whole else [index]
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    rank = len(x.axes)
    if used > rank or sum(1 for i in items if i is Ellipsis) > 1:
        raise ShapeError(
            f"{used} indices for {shape_text(x)} of rank {rank}", user_location()
        )
    if not any(i is Ellipsis for i in items):
        items.append(Ellipsis)
    axis = 0
    for item in items:
        if item is Ellipsis:
            axis += rank - used
        elif item is None:
            x = Handle(x.value, (*x.axes[:axis], (), *x.axes[axis:]))
            axis += 1
        elif isinstance(item, slice):
            x = _sliced(recorder, x, axis, cast("slice[Any, Any, Any]", item))
            axis += 1
        else:
            x = _picked(recorder, x, axis, item)
    return x


def _sliced(
    recorder: Recorder, x: Handle, axis: int, item: slice[Any, Any, Any]
) -> Handle:
    if item == slice(None):
        return x
    extent = x.shape[axis]
    bounds = (item.start, item.stop, item.step)
    if extent is None or any(isinstance(b, SymbolicSize) for b in bounds):
        raise UnsupportedError(
            f"a slice of axis {axis}, whose extent is dynamic; only `:` is possible "
            "there: slice outside of the kernel, or do not make the dim dynamic",
            user_location(),
        )
    for bound in bounds:
        if bound is not None:
            integer(bound, "the bound of a slice")
    start, stop, step = item.indices(extent)
    if step != 1:
        return _every(recorder, x, axis, (start, stop, step))
    if stop <= start:
        raise ShapeError(
            f"an empty slice {start}:{stop} of axis {axis} with extent {extent}",
            user_location(),
        )
    return recorder.slice(x, axis, start, stop)


def _every(
    recorder: Recorder, x: Handle, axis: int, bounds: tuple[int, int, int]
) -> Handle:
    """Each `step`-th element: one column of the axis as a matrix of `step` columns."""
    start, stop, step = bounds
    extent = x.shape[axis]
    assert extent is not None
    if step < 1 or extent % step or start >= step or stop + step <= extent + start:
        raise UnsupportedError(
            f"a slice {start}:{stop} with step {step} of axis {axis} with extent "
            f"{extent}: the step must divide the extent, and the slice take one "
            "element of each group of that many",
            user_location(),
        )
    shape = [-1 if e is None else e for e in x.shape]
    shape[axis : axis + 1] = [extent // step, step]
    return _picked(recorder, recorder.reshape(x, shape), axis + 1, start)


def _picked(recorder: Recorder, x: Handle, axis: int, item: object) -> Handle:
    if isinstance(item, bool) or not isinstance(item, SupportsIndex) or is_array(item):
        raise UnsupportedError(
            f"an index of type {type(item).__name__}: only integers, slices, None and "
            "... are possible; use where() to select by values",
            user_location(),
        )
    extent, index = x.shape[axis], operator.index(item)
    if extent is None:
        raise UnsupportedError(
            f"an integer index into axis {axis}, whose extent is dynamic",
            user_location(),
        )
    if not -extent <= index < extent:
        raise ShapeError(
            f"index {index} of axis {axis}, whose extent is {extent}", user_location()
        )
    index %= extent
    part = recorder.slice(x, axis, index, index + 1)
    return Handle(part.value, (*part.axes[:axis], *part.axes[axis + 1 :]))
