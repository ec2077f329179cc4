"""Recording operators while a function is traced.

The recorder aligns the axes of operands by
NumPy's rules, unifies their dims, and appends one step per operator.  It knows nothing
of Python's operators or of other libraries' functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from mirage_dsl.core.errors import DTypeError, ShapeError, TraceError, UnsupportedError
from mirage_dsl.core.types import DType, Scalar, boolean, promote
from mirage_dsl.frontend.dims import Atoms, Extent, SharedTail, Unifier, product
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.specs import Origin
from mirage_dsl.frontend.steps import (
    Axes,
    BlockStep,
    Casting,
    Cut,
    Detail,
    Handle,
    Inserted,
    Join,
    Number,
    Over,
    Renaming,
    Step,
    Value,
    extent_text,
    shape_of,
    shape_text,
)
from mirage_dsl.ir.infer import result_dtype
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import (
    CAST,
    CONCAT,
    INSERT,
    MATMUL,
    MAX,
    MUL,
    RENAME,
    SLICE,
    SUM,
    WHERE,
)

Plan = Callable[[Axes], tuple[list[tuple[Atoms, Atoms]], Atoms]]
"""From an operand's axes: which axes must be equal, and which atoms stay apart."""


@dataclass
class Recorder:
    """The steps of one trace and the dims that they share."""

    dims: Unifier = field(default_factory=Unifier)
    steps: list[Step | BlockStep] = field(default_factory=list[Step | BlockStep])
    closed: bool = False
    origin: Origin = field(default_factory=Origin)
    constants: dict[Value, Number] = field(
        default_factory=dict[Value, Number], repr=False
    )
    """Values that are one number all over, which no step computes."""
    joined: dict[Value, tuple[Axes, int, tuple[Handle, ...]]] = field(
        default_factory=dict[Value, tuple[Axes, int, tuple[Handle, ...]]], repr=False
    )
    """Tensors that were written to in part: their axes, which one, and its parts."""
    _single: dict[Value, tuple[Value, Atoms]] = field(
        default_factory=dict[Value, tuple[Value, Atoms]], repr=False
    )
    """Slices of one element as they are with that axis, and the axis."""

    def elementwise(self, op: Operator, operands: Sequence[Handle | Number]) -> Handle:
        """Apply an elementwise operator with NumPy's broadcasting."""
        axes, fitted = self._broadcast(op.name, self._beside_constants(operands))
        values = tuple(f if isinstance(f, Number) else f.value for f in fitted)
        return Handle(self._record(op, values, self._union(values), None), axes)

    def reduce(
        self, op: Operator, x: Handle, axes: Sequence[int], *, keepdims: bool
    ) -> Handle:
        """Apply a reduction over axes, also those along which elements repeat."""
        gone = self.dims.resolve(a for i in axes for a in x.axes[i])
        kept: list[Atoms] = [() if i in axes else x.axes[i] for i in range(len(x.axes))]
        if not keepdims:
            kept = [axis for i, axis in enumerate(x.axes) if i not in axes]
        value, repeated = self._reduce_atoms(op, x.value, gone)
        if repeated and not op.selects:
            value = self._of_copies(op, value, repeated)
        return Handle(value, tuple(kept))

    def _of_copies(self, op: Operator, value: Value, atoms: Atoms) -> Value:
        """A reduction of as many copies of a value as some dims have elements."""
        if op.adds:
            number = Number(Fraction(1), tuple((a, 1) for a in atoms))
            return self._record(MUL, (value, number), value.dims, None)
        count = product(atoms)
        if count is None or op.join is None:
            raise UnsupportedError(
                f"{op.name} over an axis along which the tensor repeats, and whose "
                "extent is not known; give the extent, or reduce the tensor before "
                "it is broadcast",
                user_location(),
            )
        found = value
        for bit in format(count, "b")[1:]:
            found = self._record(op.join, (found, found), value.dims, None)
            if bit == "1":
                found = self._record(op.join, (found, value), value.dims, None)
        return found

    def full(
        self, shape: Sequence[Atoms | int], number: Number, dtype: DType
    ) -> Handle:
        """A tensor that holds one number; an extent that has no number is its atoms."""
        axes = tuple(
            extent
            if isinstance(extent, tuple)
            else (() if extent == 1 else (self.dims.fresh(extent),))
            for extent in shape
        )
        self.dims.unify(group=tuple(a for axis in axes for a in axis))
        return Handle(self._constant(number, dtype), axes)

    def _constant(self, number: Number, dtype: DType) -> Value:
        value = Value((), dtype)
        self.constants[value] = number
        return value

    def _beside_constants(
        self, operands: Sequence[Handle | Number]
    ) -> Sequence[Handle | Number]:
        """Operands in the format that they have together with constant tensors.

        The dtype of a result follows from the others, since constants have none.
        """
        handles = [o for o in operands if isinstance(o, Handle)]
        if not any(h.value in self.constants for h in handles):
            return operands
        dtype = promote(*(h.value.dtype for h in handles))
        return [
            self.cast(o, dtype)
            if isinstance(o, Handle) and o.value.dtype != boolean
            else o
            for o in operands
        ]

    def _of_constants(
        self, op: Operator, operands: tuple[Value | Number, ...], detail: Detail
    ) -> Value:
        """What an operator makes of constants alone.

        Raises:
            UnsupportedError: It is no number that is the same all over.
        """
        numbers = [self.constants[o] if isinstance(o, Value) else o for o in operands]
        dtypes = [o.dtype for o in operands if isinstance(o, Value)]
        if op.kind is Kind.VIEW and op is not INSERT:
            dtype = detail.dtype if isinstance(detail, Casting) else dtypes[0]
            return self._constant(numbers[0], dtype)
        known = op.kind is Kind.ELEMENTWISE and not any(n.powers for n in numbers)
        with np.errstate(all="ignore"):
            found = (
                float(op.numpy(*(float(n.value) for n in numbers))) if known else None
            )
        if found is None or not math.isfinite(found):
            raise UnsupportedError(
                f"{op.name} of a tensor of one constant; use the number itself, or "
                "pass the tensor as an argument",
                user_location(),
            )
        dtype = result_dtype(op, [_format(o) for o in operands])
        return self._constant(Number(Fraction(found)), dtype)

    def _reduce_atoms(
        self, op: Operator, value: Value, gone: Atoms
    ) -> tuple[Value, Atoms]:
        """Reduce over those of the atoms that the value has; also return the others."""
        own = self.dims.resolve(value.dims)
        over = tuple(a for a in gone if a in own)
        rest = tuple(a for a in gone if a not in own)
        if over:
            kept = tuple(a for a in own if a not in over)
            value = self._record(op, (value,), kept, Over(over))
        return value, rest

    def matmul(self, x: Handle, y: Handle) -> Handle:
        """NumPy's matrix product, for ranks from 1, of operands in one dtype."""
        _refuse_truth(x.value, y.value)
        self._check_matmul(x, y)
        dtype = promote(x.value.dtype, y.value.dtype)
        x, y = self.cast(x, dtype), self.cast(y, dtype)
        x_batch, m, k = _matrix(x.axes, vector_is_row=True)

        def plan(axes: Axes) -> tuple[list[tuple[Atoms, Atoms]], Atoms]:
            y_batch, n, y_k = _matrix(axes, vector_is_row=False)
            pairs, batch = self._pair(x_batch, y_batch)
            group = tuple(a for axis in (*batch, *m, k, *n) for a in axis)
            return [*pairs, (k, y_k)], group

        y = self._fit(y, plan)
        y_batch, n, _ = _matrix(y.axes, vector_is_row=False)
        _, batch = self._pair(x_batch, y_batch)
        value = self._contract(x.value, y.value, self.dims.resolve(k))
        return Handle(value, (*batch, *m, *n))

    def _check_matmul(self, x: Handle, y: Handle) -> None:
        if not x.axes or not y.axes:
            raise ShapeError(
                "matmul takes tensors of rank 1 or more, found a scalar; use * instead",
                user_location(),
            )
        k, y_k = x.shape[-1], y.shape[max(-2, -len(y.axes))]
        if not _equal(k, y_k):
            raise ShapeError(
                f"matmul of {shape_text(x)} by {shape_text(y)}: the inner extents "
                f"{extent_text(k)} and {extent_text(y_k)} must be equal; transpose or "
                "reshape an operand",
                user_location(),
            )
        self._broadcast_shape("matmul (batch axes)", x.shape[:-2], y.shape[:-2])

    def _contract(self, x: Value, y: Value, k: Atoms) -> Value:
        """Sum of x * y over k, whichever of them has those dims."""
        _refuse_truth(x, y)
        own_x, own_y = self.dims.resolve(x.dims), self.dims.resolve(y.dims)
        x, missing = self._reduce_atoms(SUM, x, tuple(a for a in k if a not in own_y))
        y, _ = self._reduce_atoms(SUM, y, tuple(a for a in k if a not in own_x))
        both = tuple(a for a in k if a in own_x and a in own_y)
        if both:
            kept = tuple(a for a in self._union((x, y)) if a not in both)
            value = self._record(MATMUL, (x, y), kept, Over(both))
        else:
            value = self._record(MUL, (x, y), self._union((x, y)), None)
        repeated = tuple(a for a in missing if a not in own_x)
        if repeated:
            number = Number(Fraction(1), tuple((a, 1) for a in repeated))
            value = self._record(MUL, (value, number), value.dims, None)
        return value

    def cast(self, x: Handle, dtype: DType) -> Handle:
        """Another element format."""
        if x.value.dtype == dtype:
            return x
        value = self._record(CAST, (x.value,), x.value.dims, Casting(dtype))
        return Handle(value, x.axes)

    def slice(self, x: Handle, axis: int, start: int, stop: int) -> Handle:
        """The elements from `start` to before `stop` of one axis."""
        source, extent = x.axes[axis], x.shape[axis]
        if (start, stop) == (0, extent):
            return x
        single = stop - start == 1
        if single and len(self.dims.resolve(source)) > 1:
            return self._slice_inside(x, axis, start)
        target = (self.dims.fresh(stop - start),)
        apart = tuple(a for ax in _replaced(x.axes, axis, target) for a in ax)
        tail = SharedTail((source, target), (start, stop))
        reason = self.dims.unify(group=apart, tail=tail)
        if reason is not None:
            raise self._located(reason)
        own = self.dims.resolve(x.value.dims)
        lead, new = self.dims.resolve(source)[0], self.dims.resolve(target)[0]
        if lead not in own:
            return Handle(x.value, _replaced(x.axes, axis, () if single else target))
        dims = tuple(new if a is lead else a for a in own)
        value = self._record(SLICE, (x.value,), dims, Cut(source, start, target))
        if not single:
            return Handle(value, _replaced(x.axes, axis, target))
        only = MAX if value.dtype == boolean else SUM
        element, _ = self._reduce_atoms(only, value, target)
        self._single[element] = value, target
        return Handle(element, _replaced(x.axes, axis, ()))

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

    def concat(self, operands: Sequence[Handle], axis: int) -> Handle:
        """Join along one axis; all others must be equal."""
        operands = [self._joinable(x, axis) for x in operands]
        first, parts = operands[0], [operands[0]]

        def plan(axes: Axes) -> tuple[list[tuple[Atoms, Atoms]], Atoms]:
            both = zip(_without(first.axes, axis), _without(axes, axis), strict=True)
            group = (*_without(first.axes, axis), axes[axis])
            return list(both), tuple(a for ax in group for a in ax)

        parts.extend(self._fit(operand, plan) for operand in operands[1:])
        joined = tuple(p.axes[axis] for p in parts)
        self._check_joined(parts, joined)
        extents = [product(j) for j in joined]
        known = [e for e in extents if e is not None]
        target = (self.dims.fresh(sum(known) if len(known) == len(extents) else None),)
        apart = tuple(a for ax in _replaced(first.axes, axis, target) for a in ax)
        reason = self.dims.unify(group=apart, tail=SharedTail((*joined, target)))
        if reason is not None:
            raise self._located(reason)
        dims = [self.dims.resolve(target)[0]]
        for part, atoms in zip(parts, joined, strict=True):
            lead = self.dims.resolve(atoms)[0]
            dims.extend(a for a in self.dims.resolve(part.value.dims) if a is not lead)
        value = self._record(
            CONCAT,
            tuple(p.value for p in parts),
            tuple(dict.fromkeys(dims)),
            Join(joined, target),
        )
        return Handle(value, _replaced(first.axes, axis, target))

    def _joinable(self, x: Handle, axis: int) -> Handle:
        """The operand with a dim along the axis, also where its extent is 1."""
        if x.axes[axis]:
            return x
        value, target = self._single.get(x.value, (x.value, ()))
        if not target:
            target = (self.dims.fresh(1),)
            dims = (*target, *x.value.dims)
            value = self._record(INSERT, (x.value,), dims, Inserted(target))
        return Handle(value, _replaced(x.axes, axis, target))

    def _check_joined(self, parts: Sequence[Handle], joined: Sequence[Atoms]) -> None:
        for part, axis in zip(parts, joined, strict=True):
            own = self.dims.resolve(part.value.dims)
            if any(a not in own for a in self.dims.resolve(axis)):
                raise UnsupportedError(
                    "concat along an expanded axis is not supported; concatenate "
                    "before expanding",
                    user_location(),
                )

    def reshape(self, x: Handle, shape: Sequence[int]) -> Handle:
        """Split and merge axes, row-major; a symbolic dim counts as -1."""
        atoms = tuple(a for axis in x.axes for a in axis)
        try:
            return Handle(x.value, self.dims.regroup(atoms, shape))
        except UnsupportedError as reason:
            shown = ", ".join(map(str, shape))
            raise UnsupportedError(
                f"reshape of {shape_text(x)} to ({shown}) is no row-major split or "
                f"merge of axes: {reason.message}; reshape so that every new axis "
                "divides, or is a product of, old ones",
                user_location(),
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
            raise ShapeError(
                f"a value of shape {shape_of(shape)} for {shape_text(x)}, which is "
                "changed in place and keeps its shape; write the value to a new name",
                user_location(),
            )
        resolve = self.dims.resolve
        own = resolve(new.value.dims)
        whole = new.shape == x.shape and all(
            set(resolve(b)) <= set(own)
            and (extent is not None or resolve(a) == resolve(b))
            for a, b, extent in zip(x.axes, new.axes, x.shape, strict=True)
        )
        if not whole:
            new = self.elementwise(WHERE, (x, new, new))
        return self.cast(new, x.value.dtype)

    def expand(self, x: Handle, shape: Sequence[int | Atoms]) -> Handle:
        """Repeat axes of extent 1, and add leading axes, without copying.

        An extent that has no number is its atoms.
        """
        axes = [()] * (len(shape) - len(x.axes)) + list(x.axes)
        for i, (axis, extent) in enumerate(zip(axes, shape, strict=True)):
            have = product(axis)
            symbolic = isinstance(extent, tuple)
            if (symbolic and have is None) or extent in (-1, have):
                continue
            if have != 1:
                sizes = ("?" if isinstance(s, tuple) else str(s) for s in shape)
                raise ShapeError(
                    f"cannot expand {shape_text(x)} to ({', '.join(sizes)}): "
                    f"axis {i} has extent {extent_text(have)}, not 1",
                    user_location(),
                )
            axes[i] = (
                extent if isinstance(extent, tuple) else (self.dims.fresh(extent),)
            )
        self.dims.unify(group=tuple(a for axis in axes for a in axis))
        return Handle(x.value, tuple(axes))

    def _broadcast(
        self, name: str, operands: Sequence[Handle | Number]
    ) -> tuple[Axes, list[Handle | Number]]:
        """Unify the axes of all operands, from the right."""
        axes: Axes | None = None
        shape: tuple[Extent, ...] = ()
        fitted: list[Handle | Number] = []
        for operand in operands:
            if isinstance(operand, Number):
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
            ) -> tuple[list[tuple[Atoms, Atoms]], Atoms]:
                pairs, merged = self._pair(before, new)
                return pairs, tuple(a for axis in merged for a in axis)

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
                raise ShapeError(
                    f"{name}: shapes {shape_of(a)} and {shape_of(b)} do not "
                    f"broadcast: extents {extent_text(x)} and {extent_text(y)} at axis "
                    f"{i - rank}; they must be equal, or one of them 1",
                    user_location(),
                )
        return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))

    @staticmethod
    def _pair(a: Axes, b: Axes) -> tuple[list[tuple[Atoms, Atoms]], Axes]:
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
        own = self.dims.resolve(a for axis in x.axes for a in axis)
        real = self.dims.resolve(x.value.dims)
        names = {a: self.dims.fresh(a.extent, a.hint) for a in own}
        axes = tuple(
            tuple(names[a] for a in self.dims.resolve(axis)) for axis in x.axes
        )
        pairs, group = plan(axes)
        if self.dims.unify(pairs, (), tuple(names.items())) is not None:
            raise self._located(reason)
        again = self.dims.unify((), group) or self.dims.unify((), tuple(names.values()))
        if again is not None:
            raise self._located(again)
        for old, new in names.items():
            self.dims.unify([((old,), (new,))])
        detail = Renaming(tuple((a, names[a]) for a in real))
        value = self._record(RENAME, (x.value,), tuple(names[a] for a in real), detail)
        return Handle(value, axes)

    def _located(self, reason: UnsupportedError) -> UnsupportedError:
        return UnsupportedError(reason.message, user_location())

    def _union(self, operands: Sequence[Value | Number]) -> Atoms:
        values = [v for v in operands if isinstance(v, Value)]
        found = (a for v in values for a in self.dims.resolve(v.dims))
        return tuple(dict.fromkeys(found))

    def _record(
        self,
        op: Operator,
        operands: tuple[Value | Number, ...],
        dims: Atoms,
        detail: Detail,
    ) -> Value:
        location = user_location()
        if self.closed:
            raise TraceError(
                f"{op.name} of a tensor whose trace has ended: a symbolic tensor must "
                "not be kept outside of the decorated function",
                location,
            )
        if any(o in self.constants for o in operands):
            plain = [o for o in operands if isinstance(o, Value)]
            single = op.kind is not Kind.ELEMENTWISE
            if single or all(o in self.constants for o in plain):
                return self._of_constants(op, operands, detail)
            operands = tuple(
                self.constants.get(o, o) if isinstance(o, Value) else o
                for o in operands
            )
        if isinstance(detail, Casting):
            dtype = detail.dtype
        else:
            dtype = result_dtype(op, [_format(o) for o in operands])
        result = Value(dims, dtype)
        self.steps.append(Step(result, op, operands, detail, location))
        return result


def _format(operand: Value | Number) -> DType | Scalar:
    """What of an operand decides the dtype of a result."""
    if isinstance(operand, Value):
        return operand.dtype
    return Scalar(operand.value, tuple((a.hint or "", p) for a, p in operand.powers))


def _refuse_truth(x: Value, y: Value) -> None:
    if boolean in (x.dtype, y.dtype):
        raise DTypeError(
            f"a product of {x.dtype} by {y.dtype}: PyTorch multiplies no truth "
            "values; cast them to the other operand's dtype",
            user_location(),
        )


def _matrix(
    axes: Axes, *, vector_is_row: bool
) -> tuple[Axes, tuple[Atoms, ...], Atoms]:
    """Batch axes, the free axis (none for a vector), and the contracted axis."""
    if len(axes) == 1:
        return (), (), axes[0]
    if vector_is_row:
        return axes[:-2], (axes[-2],), axes[-1]
    return axes[:-2], (axes[-1],), axes[-2]


def _replaced(axes: Axes, index: int, atoms: Atoms) -> Axes:
    return (*axes[:index], atoms, *axes[index + 1 :])


def _without(axes: Axes, index: int) -> Axes:
    return (*axes[:index], *axes[index + 1 :])


def _equal(a: Extent, b: Extent) -> bool:
    """Whether extents may be equal; symbolic ones are compared by the unifier."""
    return a == b or a is None or b is None
