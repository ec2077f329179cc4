"""What memory traced tensors stand on: storages, views of them, and writes.

A program has values only, and no memory.  So a write is a new value of the whole
storage, which all views of it read anew: `x[:, :4] += y` becomes the concatenation of
the sum and of the rest of x.  Which results share memory is PyTorch's matter; where
that depends on strides that a trace does not know, the two storages are linked, and
what one of them holds is in doubt once the other was written to.  Integers, slices,
None and `...` as an index make a view.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex, cast

import numpy as np

from mirage_dsl.core.errors import (
    ShapeError,
    SourceLocation,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.frontend.arguments import is_array
from mirage_dsl.frontend.program import (
    Axes,
    DimVars,
    Extent,
    Handle,
    Unifier,
    shape_text,
    vars_of,
)
from mirage_dsl.frontend.recorder import (
    Recorder,
    SymbolicSize,
    integer,
    product_of,
    reshaped,
    sizes_of,
)
from mirage_dsl.ir.graph import slice_length
from mirage_dsl.ops.table import EQUAL, WHERE

# -- Storages and views ----------------------------------------------------------------

MOST_WORK: Any = 100_000
"""Steps of deciding whether two regions have an element in common."""


@dataclass(frozen=True)
class Strided:
    """Elements of a storage, numbered row-major: where an index lies.

    Attributes:
        offset: The first one.
        shape: Extents.
        strides: How far apart neighbours are; 0 along repeated elements.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def row_major(cls, shape: Sequence[int]) -> Strided:
        """All elements of a tensor, in order."""
        strides = [product_of(shape[i + 1 :]) for i in range(len(shape))]
        return cls(0, tuple(shape), tuple(strides))

    @property
    def _proper(self) -> list[tuple[int, int]]:
        """Extent and stride of the axes that have several elements."""
        both = zip(self.shape, self.strides, strict=True)
        return [(extent, stride) for extent, stride in both if extent > 1]

    @property
    def contiguous(self) -> bool:
        """Whether they follow each other without gaps."""
        step = 1
        for extent, stride in reversed(self._proper):
            if stride != step:
                return False
            step *= extent
        return True

    @property
    def ordered(self) -> bool:
        """Whether earlier axes have the larger strides, so that results have too."""
        strides = [stride for _, stride in self._proper if stride]
        return strides == sorted(strides, reverse=True)

    @property
    def repeats(self) -> bool:
        """Whether one element stands at several indices."""
        return any(not stride for _, stride in self._proper)

    def reshaped(self, shape: Sequence[int]) -> Strided | None:
        """The same elements in another shape; None where no strides give it."""
        if 0 in shape:
            return Strided(self.offset, tuple(shape), (1,) * len(shape))
        chunks: list[list[int]] = []
        for extent, stride in self._proper:
            if chunks and chunks[-1][1] == extent * stride:
                chunks[-1] = [chunks[-1][0] * extent, stride]
            else:
                chunks.append([extent, stride])
        strides: list[int] = []
        for extent in reversed(shape):
            if extent == 1:
                strides.append(1)
                continue
            if not chunks or chunks[-1][0] % extent:
                return None
            strides.append(chunks[-1][1])
            chunks[-1] = [chunks[-1][0] // extent, chunks[-1][1] * extent]
            if chunks[-1][0] == 1:
                chunks.pop()
        return Strided(self.offset, tuple(shape), tuple(reversed(strides)))

    def touches(self, other: Strided) -> bool:
        """Whether the two have an element in common, or may have one."""
        try:
            return np.shares_memory(
                self._elements(), other._elements(), max_work=MOST_WORK
            )
        except np.exceptions.TooHardError:
            return True

    def _elements(self) -> np.ndarray:
        """An array with these elements at these addresses, which nobody may read."""
        base = np.lib.stride_tricks.as_strided(_GROUND, (self.offset + 1,), (1,))
        return np.lib.stride_tricks.as_strided(base[-1:], self.shape, self.strides)


_GROUND = np.zeros(1, np.int8)


class View(Protocol):
    """A way to see a tensor in the same memory.  Views of one kind compare equal."""

    def of(self, recorder: Recorder, x: Handle, /) -> Handle:
        """The view of a tensor."""
        ...

    def put(self, recorder: Recorder, x: Handle, new: Handle, /) -> Handle:
        """The tensor after its view became `new`."""
        ...

    def region(self, layout: Strided, /) -> Strided | None:
        """The elements of the view; None where no strides give them."""
        ...


@dataclass(frozen=True)
class Arranged:
    """Axes in another order, axes of extent 1 added and left out.

    `places` has for each axis of the view the axis that it is, None for a new one.
    """

    places: tuple[int | None, ...]

    def of(self, _recorder: Recorder, x: Handle) -> Handle:
        return Handle(x.value, _arranged(x.axes, self.places))

    def put(self, _recorder: Recorder, x: Handle, new: Handle) -> Handle:
        back = {place: i for i, place in enumerate(self.places) if place is not None}
        places = tuple(back.get(i) for i in range(len(x.axes)))
        return Handle(new.value, _arranged(new.axes, places))

    def region(self, layout: Strided) -> Strided:
        return Strided(
            layout.offset,
            tuple(1 if i is None else layout.shape[i] for i in self.places),
            tuple(1 if i is None else layout.strides[i] for i in self.places),
        )


def _arranged(axes: Axes, places: Sequence[int | None]) -> Axes:
    return tuple(() if i is None else axes[i] for i in places)


@dataclass(frozen=True)
class Reshaped:
    """Axes split and merged, row-major; the shape may have a -1."""

    shape: tuple[object, ...]

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        return reshaped(recorder, x, self.shape)

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        return reshaped(recorder, new, sizes_of(x))

    def region(self, layout: Strided) -> Strided | None:
        """The elements of the view; None where no strides give them."""
        return layout.reshaped(_completed(self.shape, layout.shape))


@dataclass(frozen=True)
class Flattened:
    """The axes from `first` to `last` merged."""

    first: int
    last: int

    def of(self, _recorder: Recorder, x: Handle) -> Handle:
        return Handle(
            x.value,
            (
                *x.axes[: self.first],
                vars_of(x.axes[self.first : self.last + 1]),
                *x.axes[self.last + 1 :],
            ),
        )

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        return reshaped(recorder, new, sizes_of(x))

    def region(self, layout: Strided) -> Strided | None:
        """The elements of the view; None where no strides give them."""
        merged = product_of(layout.shape[self.first : self.last + 1])
        before, behind = layout.shape[: self.first], layout.shape[self.last + 1 :]
        return layout.reshaped((*before, merged, *behind))


def _completed(shape: Sequence[object], old: Sequence[int]) -> list[int]:
    """A shape with its -1 inferred."""
    wanted = [integer(s, "an extent") for s in shape]
    rest = product_of([w for w in wanted if w != -1])
    return [product_of(old) // rest if w == -1 else w for w in wanted]


@dataclass(frozen=True)
class Grouped:
    """One axis split into groups of `size` elements, which are an axis behind it."""

    axis: int
    size: int

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        shape = [-1 if e is None else e for e in x.shape]
        groups = shape[self.axis] // self.size
        shape[self.axis : self.axis + 1] = [groups, self.size]
        return recorder.reshape(x, shape)

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        return recorder.reshape(new, [-1 if e is None else e for e in x.shape])

    def region(self, layout: Strided) -> Strided:
        shape, strides = list(layout.shape), list(layout.strides)
        groups, step = shape[self.axis] // self.size, strides[self.axis]
        shape[self.axis : self.axis + 1] = [groups, self.size]
        strides[self.axis : self.axis + 1] = [step * self.size, step]
        return Strided(layout.offset, tuple(shape), tuple(strides))


@dataclass(frozen=True)
class Sliced:
    """The elements from `start` to before `stop` of one axis, which stays."""

    axis: int
    start: int
    stop: int

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        """The view of a tensor: of what was written to it, where that is all of it."""
        if self.start == self.stop:
            return recorder.empty(x, self.axis)
        parts = _parts(recorder, x, self.axis)
        if len(parts) == 1:
            return recorder.slice(x, self.axis, self.start, self.stop)
        found: list[Handle] = []
        at = 0
        for part in parts:
            extent = _extent(part, self.axis)
            start, stop = max(self.start - at, 0), min(self.stop - at, extent)
            if start < stop:
                found.append(recorder.slice(part, self.axis, start, stop))
            at += extent
        return joined(recorder, found, self.axis)

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        extent = _extent(x, self.axis)
        if self.start == self.stop:
            return x
        if (self.start, self.stop) == (0, extent):
            return new
        parts = [new]
        if self.start:
            parts.insert(0, Sliced(self.axis, 0, self.start).of(recorder, x))
        if self.stop < extent:
            parts.append(Sliced(self.axis, self.stop, extent).of(recorder, x))
        return joined(recorder, parts, self.axis)

    def region(self, layout: Strided) -> Strided:
        shape = list(layout.shape)
        shape[self.axis] = self.stop - self.start
        offset = layout.offset + self.start * layout.strides[self.axis]
        return Strided(offset, tuple(shape), layout.strides)


@dataclass(frozen=True)
class OpenSlice:
    """Part of an axis whose extent is not known: bounds as those of a slice.

    That is from the end where the start is below 0, or the stop 0 or below.
    """

    axis: int
    start: int
    stop: int

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        return recorder.slice(x, self.axis, self.start, self.stop)

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        parts = [new]
        if self.start:
            parts.insert(0, OpenSlice(self.axis, 0, self.start).of(recorder, x))
        if self.stop:
            parts.append(OpenSlice(self.axis, self.stop, 0).of(recorder, x))
        return joined(recorder, parts, self.axis)

    def region(self, layout: Strided) -> None:
        """No strides of known extents give its elements."""
        del layout


@dataclass(frozen=True)
class Stepped:
    """Each `step`-th element of one axis, of which the last group lacks elements."""

    axis: int
    start: int
    step: int
    count: int

    @property
    def _views(self) -> tuple[tuple[View, ...], Sliced]:
        """The views that give all elements but the last one, and that one."""
        groups = (self.count - 1) * self.step
        last = self.start + groups
        column = Sliced(self.axis + 1, 0, 1)
        return (
            Sliced(self.axis, self.start, last),
            Grouped(self.axis, self.step),
            column,
            Flattened(self.axis, self.axis + 1),
        ), Sliced(self.axis, last, last + 1)

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        views, last = self._views
        found = x
        for view in views:
            found = view.of(recorder, found)
        return recorder.concat([found, last.of(recorder, x)], self.axis)

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        views, last = self._views
        size = self.count - 1
        seen = [x]
        for view in views[:-1]:
            seen.append(view.of(recorder, seen[-1]))
        found = Sliced(self.axis, 0, size).of(recorder, new)
        for view, old in zip(reversed(views), reversed(seen), strict=True):
            found = view.put(recorder, old, found)
        single = Sliced(self.axis, size, self.count).of(recorder, new)
        return last.put(recorder, found, single)

    def region(self, layout: Strided) -> Strided:
        shape, strides = list(layout.shape), list(layout.strides)
        offset = layout.offset + self.start * strides[self.axis]
        shape[self.axis], strides[self.axis] = (
            self.count,
            strides[self.axis] * self.step,
        )
        return Strided(offset, tuple(shape), tuple(strides))


def joined(recorder: Recorder, parts: Sequence[Handle], axis: int) -> Handle:
    """Parts of an axis that was written to, joined: parts of parts at once."""
    flat = [p for part in parts for p in _parts(recorder, part, axis)]
    if len(flat) == 1:
        return flat[0]
    found = recorder.concat(flat, axis)
    recorder.joined[found.value] = found.axes, axis, tuple(flat)
    return found


def _parts(recorder: Recorder, x: Handle, axis: int) -> tuple[Handle, ...]:
    """What a tensor was joined of along an axis: itself, where it was not."""
    if x.value not in recorder.joined:
        return (x,)
    axes, along, parts = recorder.joined[x.value]
    resolve = recorder.dims.resolve
    old, new = [resolve(a) for a in axes], [resolve(a) for a in x.axes]
    places = [old.index(a) if a and a in old else None for a in new]
    seen = {place for place in places if place is not None}
    missing = any(a and at not in seen for at, a in enumerate(old))
    regrouped = any(a and a not in old for a in new)
    if places[axis] != along or missing or regrouped:
        return (x,)
    return tuple(Handle(p.value, _arranged(p.axes, places)) for p in parts)


def _extent(x: Handle, axis: int) -> int:
    extent = x.shape[axis]
    assert extent is not None
    return extent


@dataclass(frozen=True)
class Expanded:
    """Axes of extent 1 repeated, and leading axes added; -1 keeps an extent.

    An extent that has no number is its variables.
    """

    shape: tuple[int | DimVars, ...]

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        return recorder.expand(x, self.shape)

    def put(self, _recorder: Recorder, _x: Handle, _new: Handle) -> Handle:
        """Refused: the element that was written stands at other indices too."""
        raise TraceError.here(
            "a write into a part of an expanded tensor, whose elements stand at "
            "several indices; write before expanding, or clone() it first"
        )

    def region(self, layout: Strided) -> Strided | None:
        """The elements of the view; None where there is no number of them."""
        wanted = [s for s in self.shape if not isinstance(s, tuple)]
        if len(wanted) < len(self.shape):
            return None
        new = len(wanted) - len(layout.shape)
        old, strides = (1,) * new + layout.shape, (0,) * new + layout.strides
        return Strided(
            layout.offset,
            tuple(o if s == -1 else s for o, s in zip(old, wanted, strict=True)),
            tuple(
                t if s in (-1, o) else 0
                for o, s, t in zip(old, wanted, strides, strict=True)
            ),
        )


@dataclass(frozen=True)
class Diagonal:
    """The main diagonal of square matrices, as a new last axis.

    `first` is the axis of rows, `second` that of columns.
    """

    first: int
    second: int

    def of(self, recorder: Recorder, x: Handle) -> Handle:
        """The view of a tensor: of each row the element in its own column."""
        matrices = Handle(x.value, tuple(x.axes[i] for i in self._order(x)))
        if not x.axes[self.first]:
            return Handle(x.value, matrices.axes[:-1])
        rows = recorder.index(x.axes[self.first])
        rank = len(x.axes)
        place = Handle(rows.value, (*((),) * (rank - 2), *rows.axes, ()))
        found = recorder.gather(matrices, rank - 1, place, along=True)
        return Handle(found.value, found.axes[:-1])

    def put(self, recorder: Recorder, x: Handle, new: Handle) -> Handle:
        order = self._order(x)
        if not x.axes[self.first]:
            return self._back(Handle(new.value, (*new.axes, ())), order)
        rows, columns = (recorder.index(x.axes[i]) for i in order[-2:])
        left = Handle(rows.value, (*rows.axes, ()))
        met = recorder.elementwise(EQUAL, [left, columns])
        inside = Handle(new.value, (*new.axes, ()))
        matrices = Handle(x.value, tuple(x.axes[i] for i in order))
        found = recorder.elementwise(WHERE, [met, inside, matrices])
        return recorder.cast(self._back(found, order), x.value.dtype)

    def region(self, layout: Strided) -> Strided:
        ends = (self.first, self.second)
        rest = [i for i in range(len(layout.shape)) if i not in ends]
        step = sum(layout.strides[i] for i in ends)
        return Strided(
            layout.offset,
            (*(layout.shape[i] for i in rest), layout.shape[self.first]),
            (*(layout.strides[i] for i in rest), step),
        )

    @staticmethod
    def _back(x: Handle, order: list[int]) -> Handle:
        """Axes that stand in an order where they were."""
        places = range(len(order))
        return Handle(x.value, tuple(x.axes[order.index(i)] for i in places))

    def _order(self, x: Handle) -> list[int]:
        """The axes, those of the matrices behind all others."""
        ends = [self.first, self.second]
        return [i for i in range(len(x.axes)) if i not in ends] + ends


Path = tuple[View, ...]
"""From a storage to a view of it."""


@dataclass(eq=False)
class Storage:
    """The memory of a tensor and of its views.

    Attributes:
        handle: What it holds now, in the shape of the tensor that it was made for.
        argument: Whether it is the caller's.
        row_major: Whether that tensor's strides are known to fall from axis to axis;
            unless it is the caller's, it has no gaps.
        strides: Of the caller's tensor, where they are known.
        writes: The region of each write, None where that is not known.
        links: Storages that may be the same memory.
        doubt: The line after which it may hold something else.
        like: Where it holds one number all over, which no step computes: a tensor of
            the same shape, if there is one.
        array: Whether NumPy has an array there even where it has no axes.
    """

    handle: Handle
    argument: bool = False
    row_major: bool = False
    strides: tuple[int, ...] | None = None
    writes: list[Strided | None] = field(default_factory=list[Strided | None])
    links: list[Storage] = field(default_factory=list["Storage"])
    doubt: tuple[SourceLocation | None] | None = None
    like: Handle | None = None
    array: bool = False

    def region(self, path: Path) -> Strided | None:
        """The elements of a view; None where extents or strides are not known."""
        shape = [e for e in self.handle.shape if e is not None]
        if len(shape) < len(self.handle.axes):
            return None
        found: Strided | None = Strided.row_major(shape)
        for view in path:
            found = None if found is None else view.region(found)
        return found

    def layout(self, path: Path) -> Strided | None:
        """How a view lies in memory; None where that is not known for certain."""
        shape = [e for e in self.handle.shape if e is not None]
        found: Strided | None = None
        if len(shape) == len(self.handle.axes):
            if self.strides is not None:
                found = Strided(0, tuple(shape), self.strides)
            elif self.row_major and not self.argument:
                found = Strided.row_major(shape)
        for view in path:
            found = None if found is None else view.region(found)
        return found

    def read(self, recorder: Recorder, path: Path) -> Handle:
        """What a view holds now.

        Raises:
            TraceError: That depends on strides.
        """
        if self.doubt is not None:
            (line,) = self.doubt
            raise TraceError.here(
                f"this tensor may share memory with the one written to{_at(line)}: "
                "that depends on strides, which are not known while tracing; clone() "
                "one of the two before the write"
            )
        found = self.handle
        for view in path:
            found = view.of(recorder, found)
        return found

    def write(self, recorder: Recorder, path: Path, new: Handle, old: Handle) -> Handle:
        """Make a view hold another value than the old one; what it holds then."""
        branch = recorder.branches.conditional(self.handle.value)
        if branch is None:
            self._put(recorder, path, new)
            return new
        with recorder.branches.settling():
            new = recorder.elementwise(WHERE, (branch.condition, new, old))
            new = recorder.cast(new, old.value.dtype)
            self._put(recorder, path, new)
        return new

    def _put(self, recorder: Recorder, path: Path, new: Handle) -> None:
        if path and self.like is not None:
            # Parts of it can be parts of a value only.
            number = recorder.constants[self.handle.value]
            whole = recorder.all_over(self.like, number)
            self.handle = recorder.cast(whole, self.handle.value.dtype)
        self.like = None
        seen = [self.handle]
        for view in path[:-1]:
            seen.append(view.of(recorder, seen[-1]))
        region = self.region(path)
        for view, old in zip(reversed(path), reversed(seen), strict=False):
            new = view.put(recorder, old, new)
        self.handle = new
        self.writes.append(region)
        for other in self.linked()[1:]:
            other.doubt = (user_location(),)
            other.writes.append(None)

    def linked(self) -> list[Storage]:
        """This storage, and all that may be the same memory."""
        found: list[Storage] = [self]
        for storage in found:
            found.extend(s for s in storage.links if s not in found)
        return found

    def touched(self, since: int, region: Strided | None) -> bool:
        """Whether a write from number `since` on may have changed a region."""
        return any(
            region is None or written is None or written.touches(region)
            for written in self.writes[since:]
        )


def _at(line: SourceLocation | None) -> str:
    return "" if line is None else f" at {line}"


def link(one: Storage, other: Storage) -> None:
    """Note that two storages may be the same memory."""
    one.links.append(other)
    other.links.append(one)


def always_a_view(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a reshape is a view whatever the strides: it merges no axes."""
    # One element more behind each axis leaves a gap between its rows.
    strides = Strided.row_major([extent + 1 for extent in old]).strides
    return Strided(0, tuple(old), strides).reshaped(new) is not None


# -- Basic indexing --------------------------------------------------------------------


def views_of_index(x: Handle, index: Any, dims: Unifier) -> list[View]:
    """The views, one after the other, that a basic index stands for.

    Args:
        x: The tensor.
        index: The index.
        dims: Of the trace.

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
        raise ShapeError.here(f"{used} indices for {shape_text(x)} of rank {rank}")
    if not any(i is Ellipsis for i in items):
        items.append(Ellipsis)
    found = _Views(list(x.shape), list(x.axes), dims)
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

    def __init__(self, shape: list[Extent], axes: list[DimVars], dims: Unifier) -> None:
        self.shape = shape
        self.views: list[View] = []
        self._axes = axes
        """Those that no view has changed."""
        self._dims = dims

    def bound(self, axis: int, given: object) -> int:
        """The bound of a slice of an axis of unknown extent, or an index into it.

        Raises:
            TraceError: It has no number, or is the extent of another axis.
        """
        if not isinstance(given, SymbolicSize):
            return integer(given, "the bound of a slice")
        more = given.beside(self._axes[axis], self._dims)
        return int(given) if more is None else more

    def insert(self, axis: int) -> None:
        """A new axis of extent 1."""
        places: list[int | None] = list(range(len(self.shape)))
        places.insert(axis, None)
        self._axes.insert(axis, ())
        self.views.append(Arranged(tuple(places)))
        self.shape.insert(axis, 1)

    def cut(self, axis: int, start: int, stop: int) -> None:
        """Part of an axis."""
        if (start, stop) != (0, self.shape[axis]):
            self.views.append(Sliced(axis, start, stop))
            self.shape[axis] = stop - start

    def cut_open(self, axis: int, start: int, stop: int) -> None:
        """Part of an axis of unknown extent."""
        view = OpenSlice(axis, start, stop)
        self.views.append(view)
        self.shape[axis] = slice_length(start, stop, None)

    def pick(self, axis: int, index: int) -> None:
        """One element of an axis, without it."""
        if self.shape[axis] is None:
            self.cut_open(axis, index, index + 1)
        else:
            self.cut(axis, index, index + 1)
        places = tuple(i for i in range(len(self.shape)) if i != axis)
        self.views.append(Arranged(places))
        del self.shape[axis]
        del self._axes[axis]

    def step(self, axis: int, start: int, step: int, count: int) -> None:
        """Elements of an axis that is too short for as many groups."""
        self.views.append(Stepped(axis, start, step, count))
        self.shape[axis] = count

    def group(self, axis: int, size: int) -> None:
        """An axis as groups of so many elements."""
        extent = self.shape[axis]
        assert extent is not None
        self.shape[axis : axis + 1] = [extent // size, size]
        self._axes[axis : axis + 1] = [(), ()]
        self.views.append(Grouped(axis, size))


def _slice(x: _Views, axis: int, item: slice[Any, Any, Any]) -> None:
    bounds = (item.start, item.stop, item.step)
    if all(bound is None for bound in bounds):
        return
    extent = x.shape[axis]
    if extent is None:
        _open_slice(x, axis, bounds)
        return
    for bound in bounds:
        if bound is not None:
            integer(bound, "the bound of a slice")
    start, stop, step = item.indices(extent)
    if step != 1:
        _every(x, axis, (start, stop, step), extent)
        return
    stop = max(start, stop)
    x.cut(axis, start, stop)


def _open_slice(x: _Views, axis: int, bounds: tuple[object, ...]) -> None:
    """A slice of an axis of unknown extent, which has to be long enough at calls."""
    start, stop, step = bounds
    first = 0 if start is None else x.bound(axis, start)
    last = 0 if stop is None else x.bound(axis, stop)
    to_end = stop is None or (isinstance(stop, SymbolicSize) and last >= 0)
    last = 0 if to_end else last
    if step not in (None, 1) or first < 0 < last:
        raise UnsupportedError.here(
            f"a slice of axis {axis}, whose extent is dynamic, with a step or from its "
            "end to a place counted from its begin: take elements at positions, as "
            "x[2 * arange(4)], slice it before the call, or take the dim out of "
            "dynamic="
        )
    empty = last == 0 and not to_end
    empty = empty or (isinstance(start, SymbolicSize) and first >= 0)
    if empty or ((first < 0) is (last <= 0) and first >= last):
        x.cut(axis, 0, 0)
    elif first or not to_end:
        x.cut_open(axis, first, last)


def _every(x: _Views, axis: int, bounds: tuple[int, int, int], extent: int) -> None:
    """Each `step`-th element: one column of the axis as a matrix of `step` columns."""
    start, stop, step = bounds
    if step < 1:
        raise UnsupportedError.here(
            f"a slice with step {step} of axis {axis}; PyTorch has no negative ones: "
            "use flip"
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
        raise UnsupportedError.here(
            "a tensor beside other indices: one of integers may stand among slices; "
            "use where() to select by a mask, and index one after the other by several"
        )
    if is_array(item):
        kind = type(item)
        raise UnsupportedError.here(
            f"an index that is a {kind.__module__.partition('.')[0]} {kind.__name__}, "
            "whose values would be frozen into the program; pass it as an argument, "
            "write the positions as a list, or make them by arange"
        )
    if isinstance(item, bool) or not isinstance(item, SupportsIndex):
        raise UnsupportedError.here(
            f"an index of type {type(item).__name__}: only integers, slices, None and "
            "... are possible; use where() to select by values"
        )
    extent = x.shape[axis]
    if extent is None:
        index = x.bound(axis, item)
        if isinstance(item, SymbolicSize) and index >= 0:
            raise ShapeError.here(
                f"an index of axis {axis} that is its extent, or beyond"
            )
        x.pick(axis, index)
        return
    index = operator.index(item)
    if not -extent <= index < extent:
        raise ShapeError.here(f"index {index} of axis {axis}, whose extent is {extent}")
    x.pick(axis, index % extent)
