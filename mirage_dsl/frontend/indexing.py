"""Basic indexing of traced tensors: integers, slices, None and `...`."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex, cast

from mirage_dsl.core.errors import ShapeError, UnsupportedError, user_location
from mirage_dsl.frontend.arguments import is_array
from mirage_dsl.frontend.dims import Extent, Handle, shape_text
from mirage_dsl.frontend.memory import Arranged, Grouped, Sliced, Stepped, View
from mirage_dsl.frontend.shapes import SymbolicSize, integer


def views_of_index(x: Handle, index: Any) -> list[View]:
    """The views, one after the other, that a basic index stands for.

    Raises:
        ShapeError: It is out of bounds.
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
    found = _Views(list(x.shape))
    axis = 0
    for item in items:
        if item is Ellipsis:
            axis += rank - used
        elif item is None:
            found.insert(axis)
            axis += 1
        elif isinstance(item, slice):
            _slice(found, axis, cast("slice[Any, Any, Any]", item))
            axis += 1
        else:
            _pick(found, axis, item)
    return found.views


class _Views:
    """Views that an index stands for, and the shape behind them."""

    def __init__(self, shape: list[Extent]) -> None:
        self.shape = shape
        self.views: list[View] = []

    def insert(self, axis: int) -> None:
        """A new axis of extent 1."""
        places: list[int | None] = list(range(len(self.shape)))
        places.insert(axis, None)
        self.views.append(Arranged(tuple(places)))
        self.shape.insert(axis, 1)

    def cut(self, axis: int, start: int, stop: int) -> None:
        """Part of an axis."""
        if (start, stop) != (0, self.shape[axis]):
            self.views.append(Sliced(axis, start, stop))
            self.shape[axis] = stop - start

    def pick(self, axis: int, index: int) -> None:
        """One element of an axis, without it."""
        self.cut(axis, index, index + 1)
        places = tuple(i for i in range(len(self.shape)) if i != axis)
        self.views.append(Arranged(places))
        del self.shape[axis]

    def step(self, axis: int, start: int, step: int, count: int) -> None:
        """Elements of an axis that is too short for as many groups."""
        self.views.append(Stepped(axis, start, step, count))
        self.shape[axis] = count

    def group(self, axis: int, size: int) -> None:
        """An axis as groups of so many elements."""
        extent = self.shape[axis]
        assert extent is not None
        self.shape[axis : axis + 1] = [extent // size, size]
        self.views.append(Grouped(axis, size))


def _slice(x: _Views, axis: int, item: slice[Any, Any, Any]) -> None:
    bounds = (item.start, item.stop, item.step)
    if all(bound is None for bound in bounds):
        return
    extent = x.shape[axis]
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
        _every(x, axis, (start, stop, step), extent)
        return
    stop = max(start, stop)
    x.cut(axis, start, stop)


def _every(x: _Views, axis: int, bounds: tuple[int, int, int], extent: int) -> None:
    """Each `step`-th element: one column of the axis as a matrix of `step` columns."""
    start, stop, step = bounds
    if step < 1:
        raise UnsupportedError(
            f"a slice with step {step} of axis {axis}; PyTorch has no negative ones: "
            "use flip",
            user_location(),
        )
    count = len(range(start, stop, step))
    if count < 2:
        x.cut(axis, start, start + count)
    elif count * step <= extent:
        first = min(start, extent - count * step)
        x.cut(axis, first, first + count * step)
        x.group(axis, step)
        x.pick(axis + 1, start - first)
    else:
        x.step(axis, start, step, count)


def _pick(x: _Views, axis: int, item: object) -> None:
    if isinstance(getattr(item, "handle", None), Handle):
        raise UnsupportedError(
            "a tensor beside other indices: one of integers may stand among slices; "
            "use where() to select by a mask, and index one after the other by several",
            user_location(),
        )
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
    x.pick(axis, index % extent)
