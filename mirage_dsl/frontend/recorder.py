"""Recording operators while a function is traced, of shapes as users write them.

The recorder aligns the axes of operands by NumPy's rules, unifies their dims, and
appends one node per operator to the record of the program (`frontend.program`).
It knows nothing of Python's operators or of other libraries' functions.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    ShapeError,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import (
    AxisNames,
    DType,
    Integers,
    Scalar,
    boolean,
    f32,
    f64,
    promote,
    scalar,
)
from mirage_dsl.frontend.arguments import Origin, is_sequence
from mirage_dsl.frontend.program import (
    Axes,
    CrossedError,
    DimVar,
    DimVars,
    Extent,
    Handle,
    Operand,
    ProgramRecord,
    SharedTail,
    Traced,
    Unifier,
    extent_text,
    extents_of,
    product,
    shape_of,
    shape_text,
    vars_of,
)
from mirage_dsl.ir.graph import (
    Attrs,
    AttrValue,
    slice_length,
)
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator

MOST_COPIES = 64
"""Of a tensor along an axis that it is expanded to, where they are all returned."""


LONG = 4096
"""Nodes after which a trace that is of no use does not go on: of what is written
through views, each more records as many nodes as there were writes."""


class TraceAgainError(BaseException):
    """A function has to be traced once more, with some joints by themselves.

    It passes through the function, which is not to handle it.  Which joints, the
    recorder knows.
    """


Plan = Callable[[Axes], tuple[list[tuple[DimVars, DimVars]], DimVars]]
"""From an operand's axes: which axes must be equal, and which variables stay apart."""


@dataclass
class Recorder(ProgramRecord):
    """Operators on tensors, with their axes aligned, and the record of them."""

    origin: Origin = field(default_factory=Origin)
    asked_strides: bool = False
    """Whether the function asked how its arguments lie in memory."""
    joined: dict[Traced, tuple[Axes, int, tuple[Handle, ...]]] = field(
        default_factory=dict[Traced, tuple[Axes, int, tuple[Handle, ...]]],
        repr=False,
    )
    """Tensors that were written to in part: their axes, which one, and its parts."""
    apart: frozenset[int] | None = None
    """Numbers of slices and concatenations that share no dims with their axes; None
    where what is recorded cannot be traced again."""
    lines_apart: frozenset[str] = frozenset()
    """Lines of the user's, all of whose slices and concatenations share none."""
    positions_apart: bool = False
    """Whether positions that are gathered share no dim with the axis they count."""
    in_the_way: set[int] = field(default_factory=set[int], repr=False)
    """Slices and concatenations that others do not go with, which go on as if these
    could not be moved.  What was recorded is of no use if there are any: they are to
    share no dims with their axes either."""
    joints: list[str] = field(default_factory=list[str], repr=False)
    """The user's line of each slice and concatenation, by its number."""
    _single: dict[Traced, tuple[Traced, DimVars]] = field(
        default_factory=dict[Traced, tuple[Traced, DimVars]], repr=False
    )
    """Slices of one element as they are with that axis, and the axis."""

    def elementwise(self, op: Operator, operands: Sequence[Operand]) -> Handle:
        """Apply an elementwise operator with NumPy's broadcasting."""
        operands = self._beside_constants(op, operands)
        if any(isinstance(o, Handle) and o.value.dtype is f64 for o in operands):
            _refuse_beyond_f32(op, self._numbers(operands))
        axes, fitted = self._broadcast(op.name, operands)
        values = tuple(f if isinstance(f, Scalar) else f.value for f in fitted)
        found = Handle(self._record(op, values, self._union(values)), axes)
        chosen = [o for o in operands[1:] if isinstance(o, Handle)]
        if op.chooses and chosen and all(o.value in self.constants for o in chosen):
            # Of numbers alone no operand says the format.
            return self.cast(found, promote(*(o.value.dtype for o in chosen)))
        return found

    def reduce(
        self, op: Operator, x: Handle, axes: Sequence[int], *, keepdims: bool
    ) -> Handle:
        """Apply a reduction over axes, also those along which elements repeat."""
        gone = self.dims.resolve(vars_of([x.axes[i] for i in axes]))
        kept: list[DimVars] = [
            () if i in axes else x.axes[i] for i in range(len(x.axes))
        ]
        if not keepdims:
            kept = [axis for i, axis in enumerate(x.axes) if i not in axes]
        value, repeated = self._reduce_vars(op, x.value, gone)
        if repeated and not op.selects:
            value = self._of_copies(op, value, repeated)
        return Handle(value, tuple(kept))

    def scan(self, op: Operator, x: Handle, axis: int) -> Handle:
        """Apply a scan along an axis; one of a single element changes nothing."""
        if not x.axes[axis]:
            return x
        x = self._spread(x, axis)
        attrs: Attrs = (("along", AxisNames(_names([x.axes[axis]]))),)
        return Handle(self._record(op, (x.value,), x.value.dims, attrs), x.axes)

    def spread(self, x: Handle) -> Handle:
        """The tensor with elements of its own along all axes."""
        for axis in range(len(x.axes)):
            x = self._spread(x, axis)
        return x

    def _spread(self, x: Handle, axis: int) -> Handle:
        """The tensor with elements of its own along an axis: times as many ones."""
        if set(self.dims.resolve(x.axes[axis])) <= set(self.dims.resolve(x.value.dims)):
            return x
        positions = self.index(x.axes[axis])
        ones = self.elementwise(table.EQUAL, [positions, positions])
        ones = self.cast(ones, x.value.dtype)
        axes: Axes = tuple(a if i == axis else () for i, a in enumerate(x.axes))
        return self.elementwise(table.MUL, [x, Handle(ones.value, axes)])

    def _of_copies(self, op: Operator, value: Traced, vars: DimVars) -> Traced:
        """A reduction of as many copies of a value as some dims have elements."""
        if op.adds:
            number = extents_of(vars)
            return self._record(table.MUL, (value, number), value.dims)
        count = product(vars)
        if count is None or op.join is None:
            raise UnsupportedError.here(
                f"{op.name} over an axis along which the tensor repeats, and whose "
                "extent is not known; give the extent, or reduce the tensor before "
                "it is broadcast"
            )
        found = value
        for bit in format(count, "b")[1:]:
            found = self._record(op.join, (found, found), value.dims)
            if bit == "1":
                found = self._record(op.join, (found, value), value.dims)
        return found

    def full(
        self, shape: Sequence[DimVars | int], number: Scalar, dtype: DType
    ) -> Handle:
        """A tensor of one number; an extent that has no number is its variables.

        Raises:
            DTypeError: It is an integer that f64 does not hold.
        """
        whole = dtype.is_integer and not number.extents
        if whole and number.value == number.value and abs(number.value) > 2**53:
            raise DTypeError.here(
                f"a tensor of {dtype.long_name} and {number}; constants beyond 2**53 "
                "are not possible: pass the number as a tensor"
            )
        axes: Axes = ()
        for extent in shape:
            known = isinstance(extent, tuple)
            axis = extent if known else ((), (self.dims.fresh(extent),))[extent != 1]
            again = known and not set(axis).isdisjoint(vars_of(axes))
            axes = (*axes, tuple(map(self._alike, axis)) if again else axis)
        self.dims.unify(group=vars_of(axes))
        if dtype == boolean and not number.extents:
            number = scalar(number.value != 0)
        return Handle(self._constant(number, dtype), axes)

    def _alike(self, var: DimVar) -> DimVar:
        """Another variable of the same extent."""
        found = self.dims.fresh(var.extent, var.hint)
        if var.extent is None:
            self.dims.measure(found, var)
        return found

    def empty(self, x: Handle, axis: int) -> Handle:
        """The tensor without any elements along an axis."""
        shape: list[DimVars | int] = [
            vars if extent is None else extent
            for vars, extent in zip(x.axes, x.shape, strict=True)
        ]
        shape[axis] = 0
        return self.full(shape, scalar(0), x.value.dtype)

    def whole(self, x: Handle) -> Handle:
        """The tensor with elements of its own where it repeats them along an axis.

        Raises:
            UnsupportedError: They are too many to stand one by one.
        """
        value, found = x.value, dict[DimVar, DimVar]()
        for var in self.dims.resolve(vars_of(x.axes)):
            own = self.dims.resolve(value.dims)
            if var in own:
                continue
            if var.extent is None or var.extent > MOST_COPIES:
                raise UnsupportedError(
                    "an output repeats elements along an expanded axis; return the "
                    "tensor as it is before expanding, and expand the result"
                )
            part = Handle(value, ((), *((a,) for a in own)))
            copied = self.concat([part] * var.extent, 0)
            value, found[var] = copied.value, copied.axes[0][0]
        return Handle(
            value,
            tuple(
                tuple(found.get(a, a) for a in self.dims.resolve(axis))
                for axis in x.axes
            ),
        )

    def _numbers(self, operands: Sequence[Operand]) -> Iterator[Scalar]:
        """The constants among operands."""
        for operand in operands:
            handle = isinstance(operand, Handle)
            number = self.constants.get(operand.value) if handle else operand
            if isinstance(number, Scalar):
                yield number

    def _beside_constants(
        self, op: Operator, operands: Sequence[Operand]
    ) -> Sequence[Operand]:
        """Operands in the format that they have together with constant tensors.

        The dtype of a result follows from the others, since constants have none; of
        truth values alone it would be truth values.
        """
        handles = [o for o in operands if isinstance(o, Handle)]
        if not any(h.value in self.constants for h in handles):
            return operands
        taken = handles[op.chooses and isinstance(operands[0], Handle) :]
        dtype = promote(*(h.value.dtype for h in taken))
        others = [h.value.dtype for h in taken if h.value not in self.constants]
        single = all(d == boolean for d in others)
        return [
            self.cast(o, dtype)
            if isinstance(o, Handle)
            and (single or o.value.dtype != boolean)
            and not (op.chooses and at == 0)
            else o
            for at, o in enumerate(operands)
        ]

    def _reduce_vars(
        self, op: Operator, value: Traced, gone: DimVars
    ) -> tuple[Traced, DimVars]:
        """Reduce over those variables that the value has; also return the others."""
        own = self.dims.resolve(value.dims)
        over = tuple(a for a in gone if a in own)
        rest = tuple(a for a in gone if a not in own)
        if over:
            kept = tuple(a for a in own if a not in over)
            value = self._record(op, (value,), kept, _over(over))
        return value, rest

    def matmul(self, x: Handle, y: Handle) -> Handle:
        """NumPy's matrix product, for ranks from 1, of operands in one dtype."""
        _refuse_truth(x.value, y.value)
        self._check_matmul(x, y)
        dtype = promote(x.value.dtype, y.value.dtype)
        x, y = self.cast(x, dtype), self.cast(y, dtype)
        x_batch, m, k = _matrix(x.axes, vector_is_row=True)

        def plan(axes: Axes) -> tuple[list[tuple[DimVars, DimVars]], DimVars]:
            y_batch, n, y_k = _matrix(axes, vector_is_row=False)
            pairs, batch = self._pair(x_batch, y_batch)
            group = vars_of((*batch, *m, k, *n))
            return [*pairs, (k, y_k)], group

        y = self._fit(y, plan)
        y_batch, n, _ = _matrix(y.axes, vector_is_row=False)
        _, batch = self._pair(x_batch, y_batch)
        value = self._contract(x.value, y.value, self.dims.resolve(k))
        return Handle(value, (*batch, *m, *n))

    def _check_matmul(self, x: Handle, y: Handle) -> None:
        if not x.axes or not y.axes:
            raise ShapeError.here(
                "matmul takes tensors of rank 1 or more, found a scalar; use * instead"
            )
        k, y_k = x.shape[-1], y.shape[max(-2, -len(y.axes))]
        if not _equal(k, y_k):
            raise ShapeError.here(
                f"matmul of {shape_text(x)} by {shape_text(y)}: the inner extents "
                f"{extent_text(k)} and {extent_text(y_k)} must be equal; transpose or "
                "reshape an operand"
            )
        self._broadcast_shape("matmul (batch axes)", x.shape[:-2], y.shape[:-2])

    def _contract(self, x: Traced, y: Traced, k: DimVars) -> Traced:
        """Sum of x * y over k, whichever of them has those dims."""
        _refuse_truth(x, y)
        own_x, own_y = self.dims.resolve(x.dims), self.dims.resolve(y.dims)
        x, missing = self._reduce_vars(
            table.SUM, x, tuple(a for a in k if a not in own_y)
        )
        y, _ = self._reduce_vars(table.SUM, y, tuple(a for a in k if a not in own_x))
        both = tuple(a for a in k if a in own_x and a in own_y)
        if both:
            kept = tuple(a for a in self._union((x, y)) if a not in both)
            value = self._record(table.MATMUL, (x, y), kept, _over(both))
        else:
            value = self._record(table.MUL, (x, y), self._union((x, y)))
        repeated = tuple(a for a in missing if a not in own_x)
        if repeated:
            value = self._record(table.MUL, (value, extents_of(repeated)), value.dims)
        return value

    def cast(self, x: Handle, dtype: DType) -> Handle:
        """Another element format."""
        if x.value.dtype is dtype:
            return x
        whole = x.value.dtype.is_integer
        if dtype == boolean:
            x = self.cast(x, f32) if x.value.dtype.only_stores else x
            zero = self.elementwise(table.EQUAL, [x, scalar(0)])
            return self.elementwise(table.EQUAL, [zero, scalar(0)])
        if dtype.only_stores or x.value.dtype.only_stores:
            return self._by_narrow(x, dtype)
        if whole or dtype.is_integer:
            return self._converted(x, dtype)
        attrs = (("dtype", dtype.name),)
        value = self._record(table.CAST, (x.value,), x.value.dims, attrs, dtype)
        return Handle(value, x.axes)

    def rounded(self, x: Handle, dtype: DType) -> Handle:
        """Another element format that a function asks for by name.

        What does not fit is rounded, in a node of its own where that may show.
        """
        given = x.value.dtype
        exact = given.itemsize == 1 or (given.is_float and given.is_within(dtype))
        if dtype not in table.ROUNDINGS or exact or x.value in self.constants:
            return self.cast(x, dtype)
        x = self.cast(x, f32) if given.is_integer else x
        value = self._record(table.ROUNDINGS[dtype], (x.value,), x.value.dims)
        return self.cast(Handle(value, x.axes), dtype)

    def _by_narrow(self, x: Handle, dtype: DType) -> Handle:
        """To or from floats of 8 bits, by way of f32 where there is no other way."""
        if not dtype.only_stores:
            between = f32 if dtype.is_integer else dtype
            attrs = (("dtype", between.name),)
            value = self._record(table.CAST, (x.value,), x.value.dims, attrs, between)
            return self.cast(Handle(value, x.axes), dtype)
        if not x.value.dtype.is_float or x.value.dtype.only_stores:
            x = self.cast(x, f32)
        value = self._record(table.NARROWINGS[dtype], (x.value,), x.value.dims)
        return Handle(value, x.axes)

    def _converted(self, x: Handle, dtype: DType) -> Handle:
        """To or from integers; floats narrower than f32 are rounded after that."""
        number = self.constants.get(x.value)
        if number is not None:
            value = Fraction(number.value)
            kept = scalar(int(value)) if dtype.is_integer else number
            return Handle(self._constant(kept, dtype), x.axes)
        op = table.CONVERSIONS.get(dtype, table.CONVERSIONS[f32])
        value = self._record(op, (x.value,), x.value.dims)
        return self.cast(Handle(value, x.axes), dtype)

    def slice(self, x: Handle, axis: int, start: int, stop: int) -> Handle:
        """The elements from `start` to before `stop` of one axis.

        Of an axis of unknown extent they count from its end where a slice's do.
        """
        source, extent = x.axes[axis], x.shape[axis]
        if extent is None:
            return self._slice_open(x, axis, start, stop)
        if (start, stop) == (0, extent):
            return x
        number = self._joint()
        single = stop - start == 1
        if single and len(self.dims.resolve(source)) > 1:
            return self._slice_inside(x, axis, start)
        found = None
        if not self._is_apart(number):
            found = self._slice_shared(x, axis, (start, stop), number)
        return found or self._slice_apart(x, axis, start, stop)

    def _slice_open(self, x: Handle, axis: int, start: int, stop: int) -> Handle:
        """A slice of an axis whose extent is not known.

        Raises:
            UnsupportedError: It is several dims, or its part is split.
        """
        source = self.dims.resolve(x.axes[axis])
        if len(source) != 1:
            raise UnsupportedError.here(
                f"a slice of axis {axis}, which is several dims, one of them dynamic; "
                "slice the tensor before it is reshaped"
            )
        length = slice_length(start, stop, None)
        target = (self.dims.fresh(length),)
        if length is None:
            self.dims.measure(target[0], source[0], stop - start)
        axes = _replaced(x.axes, axis, target)
        tail = SharedTail((source, target), self._joint())
        reason = self.dims.unify(group=vars_of(axes), tail=tail)
        if reason is not None:
            raise self._located(reason)
        own = self.dims.resolve(x.value.dims)
        if source[0] not in own:
            return Handle(x.value, _replaced(x.axes, axis, target[: length != 1]))
        dims = tuple(target[0] if a is source[0] else a for a in own)
        ends = source[0], start, stop, target[0]
        value = self._record(table.SLICE, (x.value,), dims, _slice_attrs(*ends))
        if length == 1:
            return self._element(x, axis, value, target)
        return Handle(value, axes)

    def _joint(self) -> int:
        """The number of one more slice or concatenation.

        Raises:
            TraceAgainError: What is recorded is of no use, and long.
        """
        if self.in_the_way and len(self.nodes) > LONG:
            raise TraceAgainError
        self.joints.append(str(user_location()))
        return len(self.joints) - 1

    def _is_apart(self, number: int) -> bool:
        return number in (self.apart or ()) or self.joints[number] in self.lines_apart

    def _slice_shared(
        self, x: Handle, axis: int, bounds: tuple[int, int], number: int
    ) -> Handle | None:
        """A slice that has all dims of the axis but the leading one; None if it cannot.

        Raises:
            TraceAgainError: Not beside another slice or concatenation.
        """
        (start, stop), source = bounds, x.axes[axis]
        target = (self.dims.fresh(stop - start),)
        apart = vars_of(_replaced(x.axes, axis, target))
        tail = SharedTail((source, target), number, bounds)
        reason = self.dims.unify(group=apart, tail=tail)
        if reason is not None:
            self._refuse_shared(reason, number, [source])
            return None
        single = stop - start == 1
        own = self.dims.resolve(x.value.dims)
        lead, new = self.dims.resolve(source)[0], self.dims.resolve(target)[0]
        if lead not in own:
            return Handle(x.value, _replaced(x.axes, axis, () if single else target))
        dims = tuple(new if a is lead else a for a in own)
        # Bounds are in elements of the leading variable, as it is now.
        behind = product(source[1:])
        assert behind is not None
        ends = source[0], start // behind, stop // behind, target[0]
        value = self._record(table.SLICE, (x.value,), dims, _slice_attrs(*ends))
        if not single:
            return Handle(value, _replaced(x.axes, axis, target))
        return self._element(x, axis, value, target)

    def _element(self, x: Handle, axis: int, value: Traced, target: DimVars) -> Handle:
        """A slice of one element, without the axis."""
        element = self._only_one(value, target)
        self._single[element] = value, target
        return Handle(element, _replaced(x.axes, axis, ()))

    def _refuse_shared(
        self, reason: UnsupportedError, number: int, axes: Iterable[DimVars]
    ) -> None:
        """Refuse a slice or concatenation that cannot stand by itself either.

        Raises:
            TraceAgainError: Another one is in its way.
            UnsupportedError: An extent is not known.
        """
        if isinstance(reason, CrossedError) and reason.number != number:
            self._crossed(reason)
        if any(product(axis) is None for axis in axes):
            raise self._located(reason)

    def _crossed(self, reason: UnsupportedError) -> None:
        """Note the slice or concatenation that is in the way, if one is.

        The trace goes on, so that it finds all of them.
        """
        if isinstance(reason, CrossedError) and self.apart is not None:
            self.in_the_way.add(reason.number)

    # -- Axes that are split otherwise here than there -----------------------------
    # A dim is cut into the same factors wherever it occurs.  What needs others sees the
    # axis as one dim of its own, and gives one that may be split in any way.

    def _slice_apart(self, x: Handle, axis: int, start: int, stop: int) -> Handle:
        """A slice that shares no dim with the axis."""
        target = self.dims.fresh(stop - start)
        axes = _replaced(x.axes, axis, (target,) if stop - start > 1 else ())
        if set(self.dims.resolve(x.axes[axis])).isdisjoint(
            self.dims.resolve(x.value.dims)
        ):
            return Handle(x.value, axes)
        value, whole = self._as_one(x, axis)
        dims = tuple(target if a is whole else a for a in value.dims)
        attrs = _slice_attrs(whole, start, stop, target)
        value = self._record(table.SLICE, (value,), dims, attrs)
        if stop - start == 1:
            return self._element(x, axis, value, (target,))
        own = self.dims.fresh(stop - start)
        value = self._as_several(value, target, (own,))
        return Handle(value, _replaced(x.axes, axis, (own,)))

    def _concat_apart(self, parts: Sequence[Handle], axis: int) -> Handle:
        """A concatenation that shares no dim with the axes of its parts."""
        ones = [self._as_one(p, axis) for p in parts]
        extent = sum(whole.extent or 0 for _, whole in ones)
        target, own = self.dims.fresh(extent), self.dims.fresh(extent)
        rest = [a for value, whole in ones for a in value.dims if a is not whole]
        value = self._record(
            table.CONCAT,
            tuple(value for value, _ in ones),
            tuple(dict.fromkeys((target, *self.dims.resolve(rest)))),
            (("dims", tuple(w.name for _, w in ones)), ("to", target.name)),
        )
        value = self._as_several(value, target, (own,))
        return Handle(value, _replaced(parts[0].axes, axis, (own,)))

    def _reshape_apart(self, x: Handle, shape: Sequence[int]) -> Handle:
        """Axes of known extents split and merged in any way."""
        axes: list[DimVars] = []
        for vars, extents in _alike(x.axes, shape):
            try:
                axes.extend(self.dims.regroup(vars, extents))
            except UnsupportedError as reason:
                self._crossed(reason)
                merged = self._spread(Handle(x.value, (vars,)), 0)
                value, whole = self._as_one(merged, 0)
                new: Axes = tuple(
                    () if e == 1 else (self.dims.fresh(e),) for e in extents
                )
                x = Handle(self._as_several(value, whole, vars_of(new)), x.axes)
                axes.extend(new)
        self.dims.unify(group=vars_of(axes))
        return Handle(x.value, tuple(axes))

    def _fit_apart(self, x: Handle, plan: Plan, reason: UnsupportedError) -> Handle:
        """The operand with axes that are split as the others' are."""
        if any(extent is None for extent in x.shape):
            raise self._located(reason)
        found = x
        for at, axis in enumerate(x.axes):
            vars = set(self.dims.resolve(axis))
            if not vars:
                continue
            own = self.dims.fresh(product(axis))
            value = found.value
            if not vars.isdisjoint(self.dims.resolve(value.dims)):
                value, whole = self._as_one(self._spread(found, at), at)
                value = self._as_several(value, whole, (own,))
            found = Handle(value, _replaced(found.axes, at, (own,)))
        self.dims.unify(group=vars_of(found.axes))
        again = self.dims.unify(*plan(found.axes))
        if again is not None:
            raise self._located(again)
        # Those that are split alike anyway stay what they were.
        for old, new in zip(x.axes, found.axes, strict=True):
            self.dims.unify([(old, new)])
        return found

    def _as_one(self, x: Handle, axis: int) -> tuple[Traced, DimVar]:
        """The tensor with one dim along an axis, which nothing splits; and the dim."""
        x = self._spread(x, axis)
        source = self.dims.resolve(x.axes[axis])
        whole = self.dims.fresh(product(source))
        if self.dims.resolve(self.counted.get(x.value, ())) == source:
            return self._counting((whole,)), whole
        own = self.dims.resolve(x.value.dims)
        dims = tuple(
            whole if a is source[0] else a
            for a in own
            if a is source[0] or a not in source
        )
        attrs = (
            ("of", AxisNames(tuple((a.name,) for a in source))),
            ("to", whole.name),
        )
        return self._record(table.FLATTEN, (x.value,), dims, attrs), whole

    def _as_several(self, value: Traced, whole: DimVar, vars: DimVars) -> Traced:
        """The tensor with other dims in the place of one."""
        if value in self.positional and len(vars) == 1:
            found = self._replayed(value, {whole: (vars[0], 0)}, {})
            assert isinstance(found, Traced)
            return found
        own = self.dims.resolve(value.dims)
        at = own.index(whole)
        attrs = (
            ("dim", whole.name),
            ("gives", AxisNames(tuple((a.name,) for a in vars))),
        )
        dims = (*own[:at], *vars, *own[at + 1 :])
        return self._record(table.UNFLATTEN, (value,), dims, attrs)

    def computed(self, value: Traced) -> Traced:
        """A constant as a value that nodes compute: the largest of one element."""
        var = self.dims.fresh(1)
        single = self._spread(Handle(value, ((var,),)), 0)
        found, _ = self._reduce_vars(table.MAX, single.value, (var,))
        return found

    def _only_one(self, x: Traced, vars: DimVars) -> Traced:
        """The value without variables of extent 1: a sum over them is of one number."""
        wide = self.cast(Handle(x, ()), f32).value if x.dtype.only_stores else x
        only = table.MAX if x.dtype == boolean else table.SUM
        found, _ = self._reduce_vars(only, wide, vars)
        return self.cast(Handle(found, ()), x.dtype).value

    def _slice_inside(self, x: Handle, axis: int, index: int) -> Handle:
        """One element of an axis of several dims: one index after the other."""
        source = self.dims.resolve(x.axes[axis])
        split = Handle(
            x.value, (*x.axes[:axis], source[:1], source[1:], *x.axes[axis + 1 :])
        )
        inner = product(source[1:])
        assert inner is not None
        outer = self.slice(split, axis, index // inner, index // inner + 1)
        last = self.slice(outer, axis + 1, index % inner, index % inner + 1)
        return Handle(last.value, (*last.axes[:axis], *last.axes[axis + 1 :]))

    def library(
        self,
        op: Operator,
        operands: Sequence[Handle],
        numbers: Mapping[str, tuple[int, ...]],
        kept: Mapping[int, DimVars],
    ) -> Handle:
        """Apply a library operator.

        Args:
            op: The operator.
            operands: With the axes that it knows by their places.
            numbers: Its attributes that are integers.
            kept: By the places of axes of the result, the axes that they are; all
                others are new.

        Raises:
            ShapeError: The operands' shapes do not fit.
            UnsupportedError: An extent that the result depends on is not known.
        """
        for at, operand in enumerate(operands):
            self._require_known(op, operand, kept if at == 0 else {})
        operands = [self.spread(operand) for operand in operands]
        shapes = [tuple(e or 1 for e in o.shape) for o in operands]
        assert op.shape is not None
        try:
            shape = op.shape(shapes, numbers)
        except CheckError as error:
            raise ShapeError.here(f"{op.name}: {error.message}") from None
        axes: list[DimVars] = []
        for at, extent in enumerate(shape):
            own: DimVars = () if extent == 1 else (self.dims.fresh(extent),)
            axes.append(kept.get(at, own))
        reason = self.dims.unify(group=vars_of(axes))
        if reason is not None:
            raise self._located(reason)
        names = [AxisNames(_names(o.axes)) for o in operands]
        if op.arity < 0:
            names = [AxisNames(tuple(axis for own in names for axis in own.axes))]
        attrs: dict[str, AttrValue] = dict(zip(("of", "by"), names, strict=False))
        attrs["gives"] = AxisNames(_names(axes))
        attrs.update((name, Integers(value)) for name, value in numbers.items())
        dims = self.dims.resolve(vars_of(axes))
        values = tuple(o.value for o in operands)
        value = self._record(op, values, dims, tuple(sorted(attrs.items())))
        return Handle(value, tuple(axes))

    def library_by_groups(
        self,
        name: str,
        operands: Sequence[Handle],
        groups: Sequence[slice],
        kept: Mapping[int, int],
        numbers: Mapping[str, int],
        apart: Collection[int] = (),
    ) -> Handle:
        """Apply a library operator to which several axes are one; see `library`.

        Args:
            name: Of the operator.
            operands: What it is applied to.
            groups: Which axes are the first one to the operator, and so on.
            kept: By the place of an axis of the result that is such a group, the number
                of the operand whose group it is; its axes are several again there.
            numbers: Its attributes that are integers.
            apart: Numbers of operands whose axes are as they are.
        """
        wholes = [self.spread(x) for x in operands]
        merged = list(wholes)
        for at, x in enumerate(wholes):
            if at not in apart:
                merged[at] = Handle(x.value, tuple(vars_of(x.axes[g]) for g in groups))
        given = {key: (int(value),) for key, value in numbers.items()}
        same = {at: merged[of].axes[at] for at, of in kept.items()}
        made = self.library(table.OPERATORS[name], merged, given, same)
        axes: Axes = ()
        for at, axis in enumerate(made.axes):
            own = wholes[kept[at]].axes[groups[at]] if at in kept else (axis,)
            axes = (*axes, *own)
        return Handle(made.value, axes)

    @staticmethod
    def _require_known(op: Operator, x: Handle, kept: Mapping[int, DimVars]) -> None:
        """The shape of a library operator's operand is known.

        Extents may be symbolic along axes that the result has at the same places.
        """
        for at, axis in enumerate(x.axes):
            apart = at < op.carried and kept.get(at) == axis
            if product(axis) is None and not apart:
                raise UnsupportedError.here(
                    f"{op.name} along a dynamic dim: PyTorch's call is planned for one "
                    "extent of it; take the dim out of dynamic="
                )

    def gather(self, x: Handle, axis: int, index: Handle, *, along: bool) -> Handle:
        """The elements at indices along an axis, in whose place are those of the index.

        With `along`, the index has all axes of the tensor, and as long ones but there.
        """

        def plan(axes: Axes) -> tuple[list[tuple[DimVars, DimVars]], DimVars]:
            if not along:
                return [], vars_of((*x.axes, *axes))
            others = [i for i in range(len(axes)) if i != axis]
            pairs = [(x.axes[i], axes[i]) for i in others if axes[i] and x.axes[i]]
            return pairs, vars_of((*x.axes, axes[axis]))

        if x.shape[axis] == 0:
            raise ShapeError.here(
                f"elements at indices of axis {axis} of {shape_text(x)}: it has none"
            )
        x = self._joinable(x, axis) if x.axes[axis] == () else self._spread(x, axis)
        index = self._fit(index, plan)
        place = index.axes[axis : axis + 1] if along else index.axes
        made = (*x.axes[:axis], *place, *x.axes[axis + 1 :])
        source = self.dims.resolve(x.axes[axis])
        shared = x.value in self.positional and not self.positions_apart
        if shared and len(source) == 1:
            value, (first,) = x.value, source
        else:
            value, first = self._as_one(x, axis)
        own = self.dims.resolve(value.dims)
        rest = tuple(a for a in own if a is not first)
        dims = tuple(dict.fromkeys((*self.dims.resolve(index.value.dims), *rest)))
        attrs = (("dim", first.name),)
        return Handle(
            self._record(table.GATHER, (value, index.value), dims, attrs), made
        )

    def pair(self, x: Handle, axis: int, other: Handle, at: int) -> None:
        """Axes as long as each other are one, if they can be."""
        self.dims.unify([(x.axes[axis], other.axes[at])])

    def concat(self, operands: Sequence[Handle], axis: int) -> Handle:
        """Join along one axis; all others must be equal."""
        operands = [self._joinable(x, axis) for x in operands]
        first, parts = operands[0], [operands[0]]

        def plan(axes: Axes) -> tuple[list[tuple[DimVars, DimVars]], DimVars]:
            both = zip(_without(first.axes, axis), _without(axes, axis), strict=True)
            group = (*_without(first.axes, axis), axes[axis])
            return list(both), vars_of(group)

        parts.extend(self._fit(operand, plan) for operand in operands[1:])
        joined = tuple(p.axes[axis] for p in parts)
        extents = [product(j) for j in joined]
        known = [e for e in extents if e is not None]
        target = (self.dims.fresh(sum(known) if len(known) == len(extents) else None),)
        open_parts = [self.dims.resolve(j) for j in joined if product(j) is None]
        if [len(part) for part in open_parts] == [1]:
            self.dims.measure(target[0], open_parts[0][0], sum(known))
        apart = vars_of(_replaced(first.axes, axis, target))
        number = self._joint()
        if self._is_apart(number):
            return self._concat_apart(parts, axis)
        tail = SharedTail((*joined, target), number)
        reason = self.dims.unify(group=apart, tail=tail)
        if reason is not None:
            self._refuse_shared(reason, number, joined)
            return self._concat_apart(parts, axis)
        dims = [self.dims.resolve(target)[0]]
        for part, vars in zip(parts, joined, strict=True):
            lead = self.dims.resolve(vars)[0]
            dims.extend(a for a in self.dims.resolve(part.value.dims) if a is not lead)
        value = self._record(
            table.CONCAT,
            tuple(p.value for p in parts),
            tuple(dict.fromkeys(dims)),
            (("dims", tuple(j[0].name for j in joined)), ("to", target[0].name)),
        )
        return Handle(value, _replaced(first.axes, axis, target))

    def _joinable(self, x: Handle, axis: int) -> Handle:
        """The operand with a dim along the axis, also where its extent is 1."""
        if x.value in self.constants:
            vars = x.axes[axis] or (self.dims.fresh(1),)
            return self._spread(Handle(x.value, _replaced(x.axes, axis, vars)), axis)
        if x.axes[axis]:
            # Along an expanded axis it has no elements of its own.
            return self._spread(x, axis)
        value, target = self._single.get(x.value, (x.value, ()))
        if not target:
            target = (self.dims.fresh(1),)
            dims = (*target, *x.value.dims)
            attrs = (("to", target[0].name),)
            value = self._record(table.INSERT, (x.value,), dims, attrs)
        return Handle(value, _replaced(x.axes, axis, target))

    def reshape(self, x: Handle, shape: Sequence[int]) -> Handle:
        """Split and merge axes, row-major; a symbolic dim counts as -1."""
        if 0 in shape and -1 not in shape:
            # Of what has no elements any number is one.
            return self.full(shape, scalar(0), x.value.dtype)
        vars = vars_of(x.axes)
        try:
            return Handle(x.value, self.dims.regroup(vars, shape))
        except UnsupportedError as reason:
            self._crossed(reason)
            if -1 not in shape:
                return self._reshape_apart(x, shape)
            shown = ", ".join(map(str, shape))
            raise UnsupportedError.here(
                f"reshape of {shape_text(x)} to ({shown}) is no row-major split or "
                f"merge of axes: {reason.message}; reshape so that every new axis "
                "divides, or is a product of, old ones"
            ) from None

    def assigned(self, x: Handle, new: Handle) -> Handle:
        """A value with the shape of `x`, to which it broadcasts, and its dtype.

        Raises:
            ShapeError: It does not broadcast to that shape.
        """
        shape = self._broadcast_shape("assignment", x.shape, new.shape)
        if len(shape) > len(x.axes) or any(
            not _equal(a, b) for a, b in zip(shape, x.shape, strict=True)
        ):
            raise ShapeError.here(
                f"a value of shape {shape_of(shape)} for {shape_text(x)}, which is "
                "changed in place and keeps its shape; write the value to a new name"
            )
        resolve = self.dims.resolve
        own = resolve(new.value.dims)
        whole = new.shape == x.shape and all(
            set(resolve(b)) <= set(own)
            and (extent is not None or resolve(a) == resolve(b))
            for a, b, extent in zip(x.axes, new.axes, x.shape, strict=True)
        )
        if not whole:
            new = self.all_over(x, new)
        return self.rounded(new, x.value.dtype)

    def all_over(self, like: Handle, value: Handle | Scalar) -> Handle:
        """A number, or a value that broadcasts to it, in the shape of a tensor."""
        condition = like
        if like.value.dtype.is_integer:
            # Which is no condition.
            condition = self.elementwise(table.EQUAL, (like, like))
        return self.elementwise(table.WHERE, (condition, value, value))

    def expand(self, x: Handle, shape: Sequence[int | DimVars]) -> Handle:
        """Repeat axes of extent 1, and add leading axes, without copying.

        An extent that has no number is its variables.
        """
        axes = [()] * (len(shape) - len(x.axes)) + list(x.axes)
        for i, (axis, extent) in enumerate(zip(axes, shape, strict=True)):
            have = product(axis)
            symbolic = isinstance(extent, tuple)
            if (symbolic and have is None) or extent in (-1, have):
                continue
            if have != 1:
                sizes = ("?" if isinstance(s, tuple) else str(s) for s in shape)
                raise ShapeError.here(
                    f"cannot expand {shape_text(x)} to ({', '.join(sizes)}): "
                    f"axis {i} has extent {extent_text(have)}, not 1"
                )
            axes[i] = (
                extent if isinstance(extent, tuple) else (self.dims.fresh(extent),)
            )
        self.dims.unify(group=vars_of(axes))
        return Handle(x.value, tuple(axes))

    def _broadcast(
        self, name: str, operands: Sequence[Operand]
    ) -> tuple[Axes, list[Operand]]:
        """Unify the axes of all operands, from the right."""
        axes: Axes | None = None
        shape: tuple[Extent, ...] = ()
        fitted: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Scalar):
                fitted.append(operand)
                continue
            if axes is None:
                axes, shape = operand.axes, operand.shape
                fitted.append(operand)
                continue
            shape = self._broadcast_shape(name, shape, operand.shape)
            before = axes

            def plan(
                new: Axes, before: Axes = before
            ) -> tuple[list[tuple[DimVars, DimVars]], DimVars]:
                pairs, merged = self._pair(before, new)
                return pairs, vars_of(merged)

            placed = self._fit(operand, plan)
            axes = self._pair(axes, placed.axes)[1]
            fitted.append(placed)
        assert axes is not None
        return axes, fitted

    def _broadcast_shape(
        self, name: str, a: tuple[Extent, ...], b: tuple[Extent, ...]
    ) -> tuple[Extent, ...]:
        rank = max(len(a), len(b))
        left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        for i, (x, y) in enumerate(zip(left, right, strict=True)):
            if x != 1 and y != 1 and not _equal(x, y):
                raise ShapeError.here(
                    f"{name}: shapes {shape_of(a)} and {shape_of(b)} do not "
                    f"broadcast: extents {extent_text(x)} and {extent_text(y)} at axis "
                    f"{i - rank}; they must be equal, or one of them 1"
                )
        return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))

    @staticmethod
    def _pair(a: Axes, b: Axes) -> tuple[list[tuple[DimVars, DimVars]], Axes]:
        """Pairs of axes to unify, and the axes of the broadcast."""
        rank = max(len(a), len(b))
        left, right = ((),) * (rank - len(a)) + a, ((),) * (rank - len(b)) + b
        both = list(zip(left, right, strict=True))
        return [(x, y) for x, y in both if x and y], tuple(x or y for x, y in both)

    def _fit(self, x: Handle, plan: Plan) -> Handle:
        """The operand, viewed under fresh names where its own ones would clash."""
        reason = self.dims.unify(*plan(x.axes))
        if reason is None:
            return x
        own = self.dims.resolve(vars_of(x.axes))
        real = self.dims.resolve(x.value.dims)
        names = {a: self._alike(a) for a in own}
        axes = tuple(
            tuple(names[a] for a in self.dims.resolve(axis)) for axis in x.axes
        )
        pairs, group = plan(axes)
        again = self.dims.unify(pairs, (), tuple(names.items()))
        if again is None:
            again = self.dims.unify((), group)
            again = again or self.dims.unify((), tuple(names.values()))
        if again is not None:
            self._crossed(again)
            self._crossed(reason)
            return self._fit_apart(x, plan, reason)
        for old, new in names.items():
            self.dims.unify([((old,), (new,))])
        new = tuple(names[a] for a in real)
        attrs = (
            ("dims", tuple(a.name for a in real)),
            ("to", tuple(a.name for a in new)),
        )
        return Handle(self._record(table.RENAME, (x.value,), new, attrs), axes)

    def _located(self, reason: UnsupportedError) -> UnsupportedError:
        """The reason, with the user's line.

        Raises:
            TraceAgainError: It may be none, once what is in the way no longer is.
        """
        self._crossed(reason)
        if self.in_the_way:
            raise TraceAgainError from None
        return UnsupportedError.here(reason.message)


RECORDING: ContextVar[Recorder | None] = ContextVar("recording", default=None)
"""The trace that is being recorded, to which what no argument holds belongs."""


def _names(axes: Iterable[DimVars]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(a.name for a in axis) for axis in axes)


def _over(vars: DimVars) -> Attrs:
    return (("over", tuple(a.name for a in vars)),)


def _refuse_truth(x: Traced, y: Traced) -> None:
    if x.dtype is boolean or y.dtype is boolean:
        raise DTypeError.here(
            f"a product of {x.dtype} by {y.dtype}: PyTorch multiplies no truth "
            "values; cast them to the other operand's dtype"
        )
    if x.dtype.is_integer or y.dtype.is_integer:
        raise DTypeError.here(
            f"a product of {x.dtype} by {y.dtype}: there is none of integers; convert "
            "them, as with .to(torch.float16)"
        )
    if x.dtype.only_stores or y.dtype.only_stores:
        raise DTypeError.here(
            f"a product of {x.dtype.long_name} by {y.dtype.long_name}: PyTorch "
            "computes in no floats of 8 bits; cast both, as with .to(torch.float16)"
        )


def _matrix(
    axes: Axes, *, vector_is_row: bool
) -> tuple[Axes, tuple[DimVars, ...], DimVars]:
    """Batch axes, the free axis (none for a vector), and the contracted axis."""
    if len(axes) == 1:
        return (), (), axes[0]
    if vector_is_row:
        return axes[:-2], (axes[-2],), axes[-1]
    return axes[:-2], (axes[-1],), axes[-2]


def _replaced(axes: Axes, index: int, vars: DimVars) -> Axes:
    return (*axes[:index], vars, *axes[index + 1 :])


def _slice_attrs(source: DimVar, start: int, stop: int, target: DimVar) -> Attrs:
    return (
        ("dim", source.name),
        ("start", start),
        ("stop", stop),
        ("to", target.name),
    )


def _without(axes: Axes, index: int) -> Axes:
    return (*axes[:index], *axes[index + 1 :])


def _alike(
    axes: Axes, shape: Sequence[int]
) -> Iterator[tuple[DimVars, tuple[int, ...]]]:
    """Axes and extents side by side that are equally long, as few as can be."""
    old = list(reversed(axes))
    vars: DimVars = ()
    extents: tuple[int, ...] = ()
    for extent in shape:
        extents = (*extents, extent)
        while old and (product(vars) or 0) < math.prod(extents):
            vars = (*vars, *old.pop())
        if product(vars) == math.prod(extents):
            yield vars, extents
            vars, extents = (), ()


def _equal(a: Extent, b: Extent) -> bool:
    """Whether extents may be equal; symbolic ones are compared by the unifier."""
    return a == b or a is None or b is None


def _refuse_beyond_f32(op: Operator, numbers: Iterable[Scalar]) -> None:
    """Refuse constants beside f64 that f32, as which they are given, does not hold.

    A maximum with the lowest number of all may be one with minus infinity.

    Raises:
        UnsupportedError: There is one.
    """
    for number in numbers:
        last = op in (table.MAXIMUM, table.MINIMUM) and abs(number.value) == f64.max
        exact = isinstance(number.value, Fraction) and number.value != 0
        if exact and not number.is_moderate and not last:
            raise UnsupportedError.here(
                f"{op.name} of f64 and the constant {float(number.value):g}: constants "
                "are numbers of the range of f32; pass it as a tensor"
            )


class Size(int):
    """A known extent: an integer that remembers its dims.

    A tensor times or divided by it keeps the meaning "times the extent", which stays
    right when the program is verified at other sizes.  Arithmetic gives plain integers.
    """

    vars: DimVars

    @classmethod
    def of(cls, vars: DimVars, extent: int) -> Size:
        """The extent of an axis."""
        size = cls(extent)
        size.vars = vars
        return size


class SymbolicSize:
    """An extent that is not known while tracing, or so much more than one."""

    def __init__(self, vars: DimVars, more: int = 0) -> None:
        self._vars = vars
        self.more = more

    @property
    def vars(self) -> DimVars:
        """The variables of which it is the extent."""
        if self.more:
            self._refuse()
        return self._vars

    def beside(self, vars: DimVars, dims: Unifier) -> int | None:
        """How much more it is than the extent of an axis; None if nothing tells."""
        both = dims.resolve(self._vars), dims.resolve(vars)
        if both[0] == both[1]:
            return self.more
        if [len(axis) for axis in both] != [1, 1]:
            return None
        (root, own), (other, its) = (dims.measured(axis[0]) for axis in both)
        return self.more + own - its if root is other else None

    def _refuse(self, *_: object) -> NoReturn:
        raise TraceError.here(
            "the extent of a dynamic dim has no number while tracing: use it in "
            "reshape, as a factor of a tensor, or less a number in a slice of that "
            "dim, as x[: n - 1], or take the dim out of dynamic="
        )

    def _beside(self, other: object) -> Any:
        """To a tensor it is a number of its elements."""
        tensor = isinstance(getattr(other, "handle", None), Handle)
        return NotImplemented if tensor else self._refuse()

    def __add__(self, other: Any) -> Any:
        """An extent that is so much more."""
        if isinstance(other, int):
            return SymbolicSize(self._vars, self.more + other)
        return self._beside(other)

    def __sub__(self, other: Any) -> Any:
        """An extent that is so much less."""
        return self + -other if isinstance(other, int) else self._beside(other)

    __radd__ = __add__
    __int__ = __index__ = __float__ = __bool__ = _refuse
    __rsub__ = __mul__ = __rmul__ = __truediv__ = _beside
    __rtruediv__ = __floordiv__ = __mod__ = __pow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # PyTorch asks for it before it hands arguments to a traced tensor.
        torch = sys.modules.get("torch")
        return SymbolicSize if torch is None else torch.SymInt

    def __repr__(self) -> str:
        return "?"


def around(axis: int) -> tuple[slice, slice, slice]:
    """All axes before one, that one, and all behind."""
    return slice(axis), slice(axis, axis + 1), slice(axis + 1, None)


def sizes_of(x: Handle) -> tuple[Any, ...]:
    """The shape of a value: `Size` or `SymbolicSize` per axis."""
    return tuple(
        SymbolicSize(axis) if extent is None else Size.of(axis, extent)
        for axis, extent in zip(x.axes, x.shape, strict=True)
    )


def integer(value: object, what: str) -> int:
    """An argument that must be an integer.

    Raises:
        TraceError: It is not one.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        # Arrays of several numbers, or of floats, are none.
        with suppress(TypeError):
            return operator.index(value)
    raise TraceError.here(f"{what} must be an integer, found {type(value).__name__}")


def extents_given(shape: Iterable[object]) -> list[DimVars | int]:
    """The extents of a shape; one that is not known is the variables of its dims."""
    return [
        s.vars if isinstance(s, SymbolicSize) else integer(s, "an extent")
        for s in shape
    ]


def with_correction(name: str, kwargs: dict[str, Any]) -> None:
    """Complete the arguments of the method `var` or `std`, which libraries share.

    Raises:
        TraceError: Nothing tells which library's default is meant.
    """
    given = kwargs.keys()
    if given & {"correction", "ddof", "unbiased", "axis", "keepdims"}:
        return
    if not given & {"dim", "keepdim"}:
        raise TraceError.here(
            f"the method {name} divides by n in NumPy and by n - 1 in PyTorch; state "
            "correction=0 or correction=1"
        )
    kwargs["correction"] = 1


def normal_axis(axis: object, rank: int, what: str) -> int:
    """An axis counted from the front.

    Raises:
        ShapeError: There is no such axis.
    """
    index = integer(axis, f"axis of {what}")
    if not -rank <= index < rank:
        raise ShapeError.here(
            f"{what}: axis {index} of a tensor of rank {rank}; expected "
            f"{-rank} to {rank - 1}"
            if rank
            else f"{what}: axis {index} of a scalar, which has no axes"
        )
    return index % rank


def normal_axes(axis: object, rank: int, what: str) -> tuple[int, ...]:
    """One axis, several, or (for None) all of them, counted from the front.

    Raises:
        ShapeError: There is no such axis, or it is given twice.
        TraceError: Nothing tells how many there are.
    """
    if axis is None:
        return tuple(range(rank))
    given = axis if is_sequence(axis) else (axis,)
    if not rank and tuple(given) in ((), (0,), (-1,)):
        # To both libraries a number has an axis of one element there.
        return ()
    if not given:
        raise TraceError.here(
            f"{what} over no axes, which are all in PyTorch and none in NumPy; state "
            "the axes, or None for all"
        )
    axes = tuple(normal_axis(a, rank, what) for a in given)
    if len(set(axes)) != len(axes):
        raise ShapeError.here(f"{what}: an axis is given twice: {axes}")
    return axes


def kept(keepdims: object, what: str) -> bool:
    """Whether a reduction keeps the axes that it reduces.

    Raises:
        TraceError: It is no flag; in NumPy a dtype stands in its place.
    """
    if not isinstance(keepdims, int):
        raise TraceError.here(
            f"keepdims of {what} must be True or False, found {keepdims!r}"
        )
    return bool(keepdims)


def flat_arguments(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """`f(2, 3)` and `f((2, 3))` alike."""
    first = arguments[0] if len(arguments) == 1 else None
    if type(first) is np.ndarray and first.ndim == 1:
        return tuple(first.tolist())
    return tuple(first) if is_sequence(first) else arguments


def permutation(x: Handle, order: Sequence[int]) -> tuple[int, ...]:
    """An order of all axes, counted from the front.

    Raises:
        ShapeError: `order` is no permutation of the axes.
    """
    rank = len(x.axes)
    axes = tuple(normal_axis(a, rank, "permute") for a in order)
    if sorted(axes) != list(range(rank)):
        raise ShapeError.here(
            f"permute of {shape_text(x)} by {tuple(order)}: name each of the {rank} "
            "axes once"
        )
    return axes


def reshaped(recorder: Recorder, x: Handle, shape: Sequence[object]) -> Handle:
    """Axes split and merged, with one -1 inferred."""
    holes = [i for i, s in enumerate(shape) if isinstance(s, int) and s == -1]
    if len(holes) > 1:
        raise ShapeError.here("reshape: only one extent can be -1")
    total = product(vars_of(x.axes))
    if total is None:
        return _reshaped_symbolic(recorder, x, shape, holes)
    wanted = [integer(s, "an extent of reshape") for s in shape]
    if holes:
        wanted[holes[0]] = 1
        given = product_of(wanted)
        wanted[holes[0]] = total // given if given > 0 and total % given == 0 else -1
    if min(wanted, default=1) < 0 or product_of(wanted) != total:
        raise ShapeError.here(
            f"reshape of {shape_text(x)}, {total} elements, to "
            f"({', '.join(map(str, shape))}): the numbers of elements must be equal"
        )
    return recorder.reshape(x, wanted)


def _reshaped_symbolic(
    recorder: Recorder, x: Handle, shape: Sequence[object], holes: list[int]
) -> Handle:
    """Reshape where some dim is symbolic: a symbolic extent stands for its own dim."""
    vars = recorder.dims.resolve(vars_of(x.axes))
    symbolic = [s for s in shape if isinstance(s, SymbolicSize)]
    given = [
        -1 if isinstance(s, SymbolicSize) and s.vars else integer(s, "an extent")
        for s in shape
    ]
    if not holes:
        return recorder.reshape(x, given)
    known = product(a for a in vars if a.extent is not None)
    assert known is not None
    if len(symbolic) == sum(a.extent is None for a in vars):
        rest = product_of([g for g in given if g != -1])
        if known % rest == 0:
            given[holes[0]] = known // rest
            return recorder.reshape(x, given)
    return _with_merged_rest(recorder, x, given, holes[0])


def _with_merged_rest(
    recorder: Recorder, x: Handle, shape: list[int], hole: int
) -> Handle:
    """Reshape where the -1 takes in symbolic dims: the axes behind come off first."""
    tail = product_of(shape[hole + 1 :])
    if hole or min(shape[1:], default=1) < 1:
        raise UnsupportedError.here(
            "reshape of a tensor with dynamic dims: a -1 that takes in a dynamic dim "
            "must come first, with numbers behind it"
        )
    vars = list(recorder.dims.resolve(vars_of(x.axes)))
    behind: list[Any] = []
    while (product(behind) or 0) < tail and vars and vars[-1].extent is not None:
        behind.insert(0, vars.pop())
    inner = product(behind)
    if inner is None or inner % tail:
        raise UnsupportedError.here(
            f"reshape of {shape_text(x)} with dynamic dims to {shape_of(shape)}: the "
            "trailing axes must be made of whole dims with known extents"
        )
    flat = recorder.reshape(
        Handle(x.value, (tuple(behind),)), [inner // tail, *shape[1:]]
    )
    return Handle(x.value, ((*vars, *flat.axes[0]), *flat.axes[1:]))


def product_of(numbers: Sequence[int]) -> int:
    """The product of integers."""
    result = 1
    for number in numbers:
        result *= number
    return result
