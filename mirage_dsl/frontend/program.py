"""The record of a traced program, its dims, and the kernel graph that is made of it.

Every axis of an input starts as a fresh variable.  Operators unify variables, reshapes
factor them: a variable may be bound to a row-major product of others.  Two axes that
share a variable are the same dim of the traced program.  So dims get the most general
names that a function allows.

Some variables must stay apart: those of one value, and those that one operator sees at
different places.  `Unifier.unify` refuses to join them, and its caller views the
operand under fresh names instead.

A record has the nodes in their order, and what is known without computing it: constants
and positions.  What is one dim is known at the end only, when every axis has been
factored; till then nodes name the variables.  Then `build_graph` keeps the nodes that
a result needs, and names their dims and values.

A loop over the places where a condition holds is traced for each place that there is.
What an iteration writes to tensors is kept where its condition holds; what else it
computes stays in it, for nobody knows whether eager would have computed it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import Any, Protocol

import numpy as np

from mirage_dsl.core.errors import (
    CheckError,
    DTypeError,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import (
    LARGEST_INDEX,
    Axis,
    AxisNames,
    Dim,
    DType,
    Scalar,
    TensorType,
    i64,
    scalar,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import apply_type, checked_dtype, result_dtype
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import AttributeKind, Formats, Kind, Operator

Extent = int | None
"""Extent of a variable; None while it is symbolic."""


@dataclass(eq=False)
class DimVar:
    """A dim variable.

    Attributes:
        extent: None where it is symbolic.  1 only where tensors are joined: other axes
            of extent 1 have no dim.
        serial: Order of creation.
        hint: The name that the user gave it.
    """

    extent: Extent
    serial: int
    hint: str | None = None

    @property
    def name(self) -> str:
        """What it is called until all dims are known."""
        return f"~{self.serial}"


DimVars = tuple[DimVar, ...]
"""A row-major product of variables: one axis, `()` where its extent is 1."""


@dataclass(frozen=True)
class SharedTail:
    """Axes that may differ in their leading dim only: those of a slice or a concat.

    A slice takes part of the leading dim, so its bounds are multiples of the product
    of all the dims behind.

    Attributes:
        members: The axes.
        number: Of the slice or concatenation, in the order of the trace.
        offsets: Bounds, in elements of an axis.
    """

    members: tuple[DimVars, ...]
    number: int
    offsets: tuple[int, ...] = ()


class CrossedError(UnsupportedError):
    """A slice or concatenation that other uses of its axis do not go with.

    Attributes:
        number: Which one, in the order of the trace.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class PartedError(UnsupportedError):
    """An index along an axis that is of one dim to it, and of several elsewhere."""


Axes = tuple[DimVars, ...]


@dataclass(frozen=True, eq=False)
class Traced:
    """What a node computes, or an input: dims and dtype, without axis order.

    Attributes:
        name: What nodes call it until all dims are known.
        dims: Its dims, each once.
        dtype: Its element format.
    """

    name: str
    dims: DimVars
    dtype: DType


@dataclass(frozen=True)
class Handle:
    """A value as the user sees it: with axes.

    An axis may hold variables that the value has not: the value is the same all along
    them, as after `expand`.
    """

    value: Traced
    axes: Axes

    @cached_property
    def shape(self) -> tuple[Extent, ...]:
        """Extents of the axes."""
        return tuple(product(axis) for axis in self.axes)


Operand = Handle | Scalar
"""What an operator takes; a constant has extents of variables, by their names."""


KEPT = (
    "a tensor of a trace that has ended, which has no values: while a kernel was "
    "traced something kept it, as functools.cache, a dict or an attribute do; empty "
    "that, make the tensor outside of the kernel, and pass it as an argument"
)
"""What of a traced tensor is left behind its trace."""


_PAIR, _TAIL, _GROUP = range(3)
"""Kinds of what must hold of variables, in the order in which it is seen to."""

_Rule = tuple[int, int]
"""What must hold of variables: its kind, and its number among those."""


@dataclass
class Unifier:
    """Dim variables, what they are bound to, and which of them must stay apart.

    What must hold of variables is looked at anew where one of them was bound, and only
    there: a long program has thousands of them.
    """

    _bound: dict[DimVar, DimVars] = field(default_factory=dict[DimVar, DimVars])
    _groups: list[DimVars] = field(default_factory=list[DimVars])
    _tails: list[SharedTail] = field(default_factory=list[SharedTail])
    _pairs: list[tuple[DimVar, DimVar]] = field(
        default_factory=list[tuple[DimVar, DimVar]]
    )
    _vars: dict[str, DimVar] = field(default_factory=dict[str, DimVar])
    _values: int = 0
    _rules: dict[DimVar, set[_Rule]] = field(
        default_factory=lambda: defaultdict[DimVar, set[_Rule]](set)
    )
    """What must hold of each unbound variable, and of what was taken back some."""
    _unsettled: set[_Rule] = field(default_factory=set[_Rule])
    """What has to be seen to, since variables of it were bound."""
    _measures: dict[DimVar, tuple[DimVar, int]] = field(
        default_factory=dict[DimVar, tuple[DimVar, int]]
    )
    """Symbolic variables that are so much longer than others, or as long."""

    def fresh(self, extent: Extent, hint: str | None = None) -> DimVar:
        """A new variable."""
        var = DimVar(extent, len(self._vars) + 1, hint)
        self._vars[var.name] = var
        return var

    def named(self, name: str) -> DimVars:
        """The unbound variables whose product the variable of this name is."""
        return self.resolve((self._vars[name],))

    def copied(self) -> Unifier:
        """The same variables, of which what is settled from now on is apart."""
        return Unifier(
            dict(self._bound),
            list(self._groups),
            list(self._tails),
            list(self._pairs),
            dict(self._vars),
            self._values,
            defaultdict(set, {v: set(rules) for v, rules in self._rules.items()}),
            _measures=dict(self._measures),
        )

    def measure(self, var: DimVar, source: DimVar, more: int = 0) -> None:
        """Note that a symbolic variable is so much longer than another one."""
        self._measures.setdefault(var, (source, more))

    def measured(self, var: DimVar) -> tuple[DimVar, int]:
        """What a symbolic variable follows from, and how much longer it is."""
        more, seen = 0, {var}
        while var in self._measures:
            source, own = self._measures[var]
            (var,), more = self.resolve((source,)), more + own
            if var in seen:
                break
            seen.add(var)
        return var, more

    def value(self, dims: DimVars, dtype: DType) -> Traced:
        """A new value."""
        self._values += 1
        return Traced(f"%{self._values}", dims, dtype)

    def resolve(self, vars: Iterable[DimVar]) -> DimVars:
        """The unbound variables whose product `vars` is."""
        found: list[DimVar] = []
        for var in vars:
            if var in self._bound:
                found.extend(self.resolve(self._bound[var]))
            else:
                found.append(var)
        return tuple(found)

    def hints(self) -> dict[DimVar, str]:
        """The user's name for every unbound variable that has one; no name twice.

        Of several variables that became one dim the first one's name counts.  Where the
        user gave several dims one name, or named a dim that was split, they get
        numbers.
        """
        chosen: dict[DimVar, str] = {}
        for var in self._vars.values():
            if var.hint is None:
                continue
            found = self.resolve((var,))
            for i, part in enumerate(found):
                name = f"{var.hint}{i}" if len(found) > 1 else var.hint
                chosen.setdefault(part, name)
        taken: set[str] = set()
        for var, name in chosen.items():
            number = 2
            unique = name
            while unique in taken:
                unique = f"{name}{number}"
                number += 1
            taken.add(unique)
            chosen[var] = unique
        return chosen

    def unify(
        self,
        pairs: Sequence[tuple[DimVars, DimVars]] = (),
        group: DimVars = (),
        renamed: Sequence[tuple[DimVar, DimVar]] = (),
        tail: SharedTail | None = None,
    ) -> UnsupportedError | None:
        """Make both axes of each pair equal, and keep the variables of `group` apart.

        Args:
            pairs: Axes of equal extent.
            group: Variables, none of which may stand for the same dim.
            renamed: Old and new variables of a view: they factor alike.
            tail: Axes that share all but their leading dim.

        Returns:
            None, or the reason why it is impossible; then nothing has changed.
        """
        mark = len(self._bound)
        sizes = len(self._pairs), len(self._tails), len(self._groups)
        self._pairs.extend(renamed)
        self._tails.extend([tail] if tail else ())
        self._groups.extend([group] if group else ())
        new = [(_PAIR, at) for at in range(sizes[0], len(self._pairs))]
        new += [(_TAIL, at) for at in range(sizes[1], len(self._tails))]
        new += [(_GROUP, at) for at in range(sizes[2], len(self._groups))]
        for rule in new:
            for var in self.resolve(self._vars_of(rule)):
                self._rules[var].add(rule)
        try:
            for left, right in pairs:
                self._merge(left, right)
            self._unsettled.update(new)
            self._settle()
            self._compare_measures()
        except UnsupportedError as reason:
            self._back_to(mark)
            del self._pairs[sizes[0] :]
            del self._tails[sizes[1] :]
            del self._groups[sizes[2] :]
            # Without the frames that it came through, which hold the call's tensors.
            return reason.with_traceback(None)
        return None

    def _vars_of(self, rule: _Rule) -> DimVars:
        kind, at = rule
        if kind == _PAIR:
            return self._pairs[at]
        if kind == _TAIL:
            return vars_of(self._tails[at].members)
        return self._groups[at]

    def _bind(self, var: DimVar, vars: DimVars) -> None:
        """Let an unbound variable be the product of others."""
        self._bound[var] = vars
        rules = self._rules[var]
        self._unsettled |= rules
        for part in vars:
            self._rules[part] |= rules

    def _back_to(self, mark: int) -> None:
        """Let as many variables be bound as were, and nothing be unsettled."""
        while len(self._bound) > mark:
            self._bound.popitem()
        self._unsettled.clear()

    def join(self, one: DimVar, other: DimVar) -> None:
        """Make two unbound variables one, when nothing is split any more.

        They stay two where both are axes of one tensor.
        """
        mark = len(self._bound)
        self._bind(one, (other,))
        self._unsettled = {rule for rule in self._unsettled if rule[0] == _GROUP}
        try:
            self._settle()
        except UnsupportedError:
            self._back_to(mark)

    def regroup(self, vars: DimVars, extents: Sequence[int]) -> tuple[DimVars, ...]:
        """Cut a product of variables into axes of the given extents, row-major.

        A symbolic variable counts as the extent -1 and is never factored.

        Raises:
            UnsupportedError: The axes are no product of factors of the variables;
                nothing has changed then.
        """
        mark = len(self._bound)
        try:
            return self._regrouped(vars, extents)
        except UnsupportedError:
            self._back_to(mark)
            raise

    def _regrouped(self, vars: DimVars, extents: Sequence[int]) -> tuple[DimVars, ...]:
        rest = list(reversed(self.resolve(vars)))
        axes: list[DimVars] = []
        for extent in extents:
            axis: list[DimVar] = []
            left = extent
            while left != 1:
                axis.append(self._take(rest, left))
                left = _quotient(left, axis[-1].extent)
            axes.append(tuple(axis))
        self._settle()
        return tuple(axes)

    def _take(self, rest: list[DimVar], wanted: int) -> DimVar:
        """Take the next factor, splitting the next variable where it is too long."""
        if not rest:
            raise UnsupportedError("the axes have more elements than the tensor")
        var = rest.pop()
        if var.extent is None or wanted == -1:
            if var.extent is None and wanted == -1:
                return var
            raise UnsupportedError("a symbolic dim cannot be split or merged into this")
        if wanted % var.extent == 0:
            return var
        if var.extent % wanted:
            raise UnsupportedError(
                f"an axis of extent {var.extent} has no leading factor {wanted}"
            )
        lead, tail = self._split(var, wanted)
        rest.append(tail)
        return lead

    def _split(self, var: DimVar, lead: int) -> tuple[DimVar, DimVar]:
        assert var.extent is not None
        parts = self.fresh(lead), self.fresh(var.extent // lead)
        self._bind(var, parts)
        return parts

    def _merge(self, left: DimVars, right: DimVars) -> None:
        """Bind variables until both axes are the same product."""
        a, b = list(reversed(left)), list(reversed(right))
        while a and b:
            x, y = a.pop(), b.pop()
            if x in self._bound or y in self._bound:
                a.extend(reversed(self._bound.get(x, (x,))))
                b.extend(reversed(self._bound.get(y, (y,))))
            elif x is y:
                continue
            elif x.extent == y.extent:
                old, new = sorted((x, y), key=lambda var: var.serial)
                self._bind(new, (old,))
            else:
                x, y, a, b = self._order(x, y, a, b)
                y_rest = self.fresh(_quotient(_known(y), x.extent))
                self._bind(y, (x, y_rest))
                b.append(y_rest)
        if a or b:
            raise UnsupportedError("the axes factor into different dims")

    @staticmethod
    def _order(
        x: DimVar, y: DimVar, a: list[DimVar], b: list[DimVar]
    ) -> tuple[DimVar, DimVar, list[DimVar], list[DimVar]]:
        """The shorter variable first; it must divide the longer one."""
        if _known(x) > _known(y):
            x, y, a, b = y, x, b, a
        if _known(y) % _known(x):
            raise UnsupportedError(
                f"axes that are split at {x.extent} and at {y.extent} have no common "
                "row-major factors"
            )
        return x, y, a, b

    def _settle(self) -> None:
        """Carry new factors through views, slices and concatenations.

        Raises:
            UnsupportedError: No row-major factors serve all of them.
        """
        groups: set[int] = set()
        while self._unsettled:
            rules = sorted(self._unsettled)
            self._unsettled.clear()
            for kind, at in rules:
                if kind == _PAIR and at < len(self._pairs):
                    self._factor_alike(*(self.resolve((v,)) for v in self._pairs[at]))
                elif kind == _TAIL and at < len(self._tails):
                    self._share_tail(self._tails[at])
                elif kind == _GROUP and at < len(self._groups):
                    groups.add(at)
        for at in sorted(groups):
            vars = self.resolve(self._groups[at])
            again = next((v for at, v in enumerate(vars) if v in vars[:at]), None)
            if again is not None:
                raise UnsupportedError(_same_dim(again))

    def _factor_alike(self, left: DimVars, right: DimVars) -> None:
        a, b = list(reversed(left)), list(reversed(right))
        while a and b:
            x, y = a.pop(), b.pop()
            if x.extent == y.extent:
                continue
            x, y, a, b = self._order(x, y, a, b)
            _, rest = self._split(y, _known(x))
            b.append(rest)

    def _compare_measures(self) -> None:
        """Refuse dims that would be longer than themselves.

        Raises:
            UnsupportedError: There is one.
        """
        if not self._measures:
            return
        seen: dict[tuple[DimVar, DimVar], int] = {}
        for var in self._measures:
            (own,), (root, more) = self.resolve((var,)), self.measured(var)
            if seen.setdefault((own, root), more) != more or (own is root and more):
                raise UnsupportedError(
                    "two axes of dynamic extents, one of which is a slice of the other "
                    "or of the same dim, and not as long"
                )

    def _share_tail(self, tail: SharedTail) -> None:
        members = [self.resolve(m) for m in tail.members]
        longest = max(members, key=lambda m: product(m[1:]) or 0)
        inner = product(longest[1:]) or 0
        if inner == 1:
            return
        extents = [product(m) for m in members]
        if None in extents:
            raise UnsupportedError(
                "a slice or concatenation of unknown extent along an axis that is "
                f"split into parts of {inner}"
            )
        if any(e % inner or e == inner for e in extents if e is not None) or any(
            offset % inner for offset in tail.offsets
        ):
            raise CrossedError(
                f"a slice or concatenation along an axis that is split into parts of "
                f"{inner} elsewhere, which it cuts through",
                tail.number,
            )
        try:
            for member in members:
                self._split_off(self.resolve(member), longest[1:], inner)
        except UnsupportedError as error:
            raise CrossedError(error.message, tail.number) from None

    def _split_off(self, member: DimVars, tail: DimVars, inner: int) -> None:
        extent = product(member)
        assert extent is not None
        if product(member[1:]) != inner:
            self._merge(member, (self.fresh(extent // inner), *tail))
        else:
            self._merge(member[1:], tail)


def _same_dim(var: DimVar) -> str:
    """What is wrong where a tensor would have a dim twice."""
    said = "two axes of one tensor would be the same dim"
    if var.extent is None:
        return (
            f"{said}; make such a mask of positions, as arange(n)[:, None] >= arange(n)"
        )
    return f"{said}, of {var.extent} elements; pass the other tensor as an argument"


def _known(var: DimVar) -> int:
    if var.extent is None:
        raise UnsupportedError(
            f"the dim {var.hint or '?'} is symbolic and meets a fixed extent; give "
            "both axes one symbolic name, or make the dim concrete"
        )
    return var.extent


def _quotient(extent: int, factor: Extent) -> int:
    return 1 if factor is None else extent // factor


def product(vars: Iterable[DimVar]) -> Extent:
    """The extent of an axis; None where a factor is symbolic."""
    extents = [var.extent for var in vars]
    if any(e is None for e in extents):
        return None
    return math.prod(e for e in extents if e is not None)


# -- Extents ---------------------------------------------------------------------------


def vars_of(axes: Iterable[DimVars]) -> DimVars:
    """The variables of axes, from the first to the last."""
    return tuple([var for axis in axes for var in axis])


def extents_of(vars: Iterable[DimVar], power: int = 1) -> Scalar:
    """A power of the extent of an axis, whatever that will be."""
    powers = dict[str, int]()
    for var in vars:
        powers[var.name] = powers.get(var.name, 0) + power
    return Scalar(Fraction(1), tuple(sorted(powers.items())))


def extent_text(extent: Extent) -> str:
    """An extent for a message."""
    return "?" if extent is None else str(extent)


def shape_of(shape: Sequence[Extent]) -> str:
    """A shape for a message."""
    return f"({', '.join(map(extent_text, shape))}{',' if len(shape) == 1 else ''})"


def shape_text(x: Handle) -> str:
    """Dtype and shape of a value for a message: `f16[16, 4096]`."""
    return f"{x.value.dtype}[{', '.join(map(extent_text, x.shape))}]"


# -- Iterations that may not happen ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class Branch:
    """An iteration, and the condition under which it happens."""

    condition: Handle


class Branches:
    """The iterations of a trace.

    Attributes:
        current: That which is being traced.
        begun: Whether there was any: without, nothing has to be noted.
    """

    def __init__(self) -> None:
        self.current: Branch | None = None
        self.begun = False
        self._made: dict[object, Branch] = {}
        self._settling = False

    def begin(self, condition: Handle) -> Branch:
        """An iteration begins that happens where its condition holds."""
        self.begun, self.current = True, Branch(condition)
        return self.current

    def note(self, result: object, operands: Sequence[object]) -> None:
        """Note what was computed of what.

        Raises:
            TraceError: One of these was computed in an iteration that has ended.
        """
        if self._settling:
            return
        for value in operands:
            self.require_open(value)
        if self.current is not None:
            self._made[result] = self.current

    def require_open(self, value: object) -> None:
        """Refuse a value of an iteration that has ended.

        Raises:
            TraceError: It is one.
        """
        if self._made.get(value, self.current) is not self.current:
            raise TraceError.here(
                "a tensor that an iteration over nonzero() computed is used behind it, "
                "and nobody knows whether there was such an iteration; add to a tensor "
                "that was made before the loop, or write to that"
            )

    def conditional(self, value: object) -> Branch | None:
        """The iteration on which it depends whether a new value is kept.

        Args:
            value: What the memory that is written to holds now.
        """
        return None if value in self._made else self.current

    @contextmanager
    def settling(self) -> Generator[None]:
        """Compute what is right whether or not there is the iteration."""
        self._settling = True
        try:
            yield
        finally:
            self._settling = False

    def refuse_unfinished(self) -> None:
        """Refuse that the function has ended within a loop, or has left it.

        Raises:
            TraceError: It has.
        """
        if self.current is not None:
            raise TraceError.here(
                "a loop over nonzero() was left before its end, by break or return: "
                "nobody knows in which iteration; compute under a condition instead"
            )


_PARTED = "an index of an axis that is split or made of several; index before reshaping"

_REGROUPED = (table.FLATTEN, table.UNFLATTEN)
"""Views that make one dim of several, or several of one."""


# -- The record ------------------------------------------------------------------------


@dataclass
class ProgramRecord:
    """The nodes of one trace and the dims that they share."""

    dims: Unifier = field(default_factory=Unifier)
    nodes: list[ir.Apply | Block] = field(default_factory=list["ir.Apply | Block"])
    """Operators, their values and dims under the names of `Traced` and `DimVar`."""
    made: dict[str, Traced] = field(default_factory=dict[str, Traced], repr=False)
    """What operators made, by name."""
    closed: bool = False
    branches: Branches = field(default_factory=Branches)
    constants: dict[Traced, Scalar] = field(
        default_factory=dict[Traced, Scalar], repr=False
    )
    """Values that are one number all over, which no node computes."""
    counted: dict[Traced, DimVars] = field(
        default_factory=dict[Traced, DimVars], repr=False
    )
    """Index values: the axis along which each is the position."""
    positional: dict[Traced, _Step] = field(
        default_factory=dict[Traced, "_Step"], repr=False
    )
    """What is computed of index values and numbers alone, and how."""

    def input(self, dtype: DType, axes: Sequence[tuple[Extent, str | None]]) -> Handle:
        """An input with a fresh dim for every axis whose extent is not 1.

        Args:
            dtype: Its element format.
            axes: Extents, None where they are symbolic, and the user's names.
        """
        found = tuple(
            () if extent == 1 else (self.dims.fresh(extent, hint),)
            for extent, hint in axes
        )
        vars = vars_of(found)
        self.dims.unify(group=vars)
        return Handle(self.dims.value(vars, dtype), found)

    def index(self, axis: DimVars) -> Handle:
        """The positions along an axis; along one of extent 1 they are 0."""
        if not axis:
            return Handle(self._constant(scalar(0), i64), ((),))
        return Handle(self._counting(axis), (axis,))

    def _counting(self, axis: DimVars) -> Traced:
        count = product(self.dims.resolve(axis))
        if count is not None and count > LARGEST_INDEX:
            raise UnsupportedError.here(
                f"{count} positions along an axis; expected at most {LARGEST_INDEX} "
                "(2**30)"
            )
        value = self.dims.value(axis, i64)
        self.counted[value] = axis
        self.positional[value] = _Step(None, (), (), i64)
        return value

    def _constant(self, number: Scalar, dtype: DType) -> Traced:
        value = self.dims.value((), dtype)
        self.constants[value] = _in_format(number, dtype)
        return value

    def _of_constants(
        self,
        op: Operator,
        operands: tuple[Traced | Scalar, ...],
        dtype: DType | None,
    ) -> Traced | None:
        """What an operator makes of constants alone; None where it is no constant."""
        numbers = [self.constants[o] if isinstance(o, Traced) else o for o in operands]
        dtypes = [o.dtype for o in operands if isinstance(o, Traced)]
        if op.kind is Kind.VIEW and op is not table.INSERT:
            return self._constant(numbers[0], dtype or dtypes[0])
        known = op.kind is Kind.ELEMENTWISE and not any(n.extents for n in numbers)
        if not known or op.formats is Formats.INTEGERS:
            return None
        made = result_dtype(op, _formats(operands))
        exact = made.is_integer and all(map(_is_whole, numbers))
        of = np.int64 if exact else np.float64
        with np.errstate(all="ignore"):
            found = 0 + op.numpy(*(of(n.value) for n in numbers)).item()
        if not math.isfinite(found):
            return None
        return self._constant(scalar(found), made)

    def computed(self, value: Traced) -> Traced:
        """A constant as a value that nodes compute."""
        raise NotImplementedError

    def _number(self, operand: Traced | Scalar) -> Traced | Scalar:
        """The number that a constant is; other operands as they are."""
        return (
            self.constants.get(operand, operand)
            if isinstance(operand, Traced)
            else operand
        )

    def _node(self, operand: Traced | Scalar) -> Traced | Scalar:
        """The value that nodes compute in the place of a constant."""
        if isinstance(operand, Traced) and operand in self.constants:
            return self.computed(operand)
        return operand

    def _union(self, operands: Sequence[Traced | Scalar]) -> DimVars:
        vars = [a for v in operands if isinstance(v, Traced) for a in v.dims]
        return tuple(dict.fromkeys(self.dims.resolve(vars)))

    def _record(
        self,
        op: Operator,
        operands: tuple[Traced | Scalar, ...],
        dims: DimVars,
        attrs: ir.Attrs = (),
        dtype: DType | None = None,
    ) -> Traced:
        """Append a node; a cast tells the dtype of its result."""
        location = user_location()
        if self.closed:
            raise TraceError(
                f"{op.name} of {KEPT}",
                location,
            )
        if self.constants and any(o in self.constants for o in operands):
            plain = [o for o in operands if isinstance(o, Traced)]
            alone = all(o in self.constants for o in plain)
            found = self._of_constants(op, operands, dtype) if alone else None
            if found is not None:
                return found
            single = op.kind is not Kind.ELEMENTWISE or alone
            operands = tuple(map(self._node if single else self._number, operands))
        if operands[0] in self.positional and self._is_moved(op, attrs):
            return self._moved(op, operands[0], attrs)
        try:
            found = checked_dtype(op, _formats(operands))
        except CheckError as error:
            raise DTypeError(error.message, location) from None
        result = self.dims.value(dims, dtype or found)
        if self.branches.begun:
            self.branches.note(result, operands)
        self._note_positions(result, op, operands, attrs)
        names = tuple(o.name if isinstance(o, Traced) else o for o in operands)
        self.nodes.append(ir.Apply(result.name, op, names, attrs, location))
        self.made[result.name] = result
        return result

    def are_alike(self, one: Handle, other: Handle) -> bool:
        """Whether two tensors are the same, or what was computed twice in one way."""
        if one == other:
            return True
        if self.branches.begun or len(one.axes) != len(other.axes):
            return False
        twice = _Twice()
        for node in self.nodes:
            if isinstance(node, ir.Apply):
                twice.made[node.result] = node
        if not twice.alike(one.value.name, other.value.name):
            return False
        known = {
            var: self.dims.named(twin)
            for name, twin in twice.twins.items()
            for var in self.dims.named(name)
        }
        for mine, theirs in zip(one.axes, other.axes, strict=True):
            same = self.dims.resolve(theirs)
            twins = tuple(v for var in same for v in known.get(var, (var,)))
            if self.dims.resolve(mine) not in (same, twins):
                return False
        return True

    # -- What is known of positions ------------------------------------------------
    # A view of a value that is computed of positions alone is the same computation on
    # positions along other dims: nothing has to lie in memory to be looked at.

    def _note_positions(
        self,
        result: Traced,
        op: Operator,
        operands: tuple[Traced | Scalar, ...],
        attrs: ir.Attrs,
    ) -> None:
        plain = [o for o in operands if isinstance(o, Traced)]
        known = plain and all(o in self.positional for o in plain)
        if not known or not (op.kind is Kind.ELEMENTWISE or op is table.CAST):
            return
        self.positional[result] = _Step(op, operands, attrs, result.dtype)

    def _is_moved(self, op: Operator, attrs: ir.Attrs) -> bool:
        """Whether positions seen so are other ones.

        A slice of a dynamic dim stays one: it tells how long that has to be.
        """
        if op is not table.SLICE:
            return op is table.RENAME
        return product(self.dims.named(str(dict(attrs)["dim"]))) is not None

    def _moved(self, op: Operator, operand: Traced | Scalar, attrs: ir.Attrs) -> Traced:
        """A value computed of positions, along other dims or from a start on."""
        told = dict(attrs)
        if op is table.RENAME:
            old, new = told["dims"], told["to"]
            assert isinstance(old, tuple)
            assert isinstance(new, tuple)
            moves = {
                a: (b, 0)
                for one, other in zip(old, new, strict=True)
                for a, b in zip(
                    self.dims.named(one), self.dims.named(other), strict=True
                )
            }
        else:
            start = told["start"]
            assert isinstance(start, int)
            lead, *behind = self.dims.named(str(told["dim"]))
            first = start // (product(behind) or 1)
            moves = {lead: (self.dims.named(str(told["to"]))[0], first)}
        for old, (new, _) in moves.items():
            if new.extent is None:
                self.dims.measure(new, old)
        assert isinstance(operand, Traced)
        found = self._replayed(operand, moves, {})
        assert isinstance(found, Traced)
        return found

    def _replayed(
        self,
        value: Traced | Scalar,
        moves: Mapping[DimVar, tuple[DimVar, int]],
        done: dict[Traced, Traced],
    ) -> Traced | Scalar:
        if not isinstance(value, Traced) or value in self.constants:
            return value
        own = self.dims.resolve(value.dims)
        if moves.keys().isdisjoint(own):
            return value
        if value not in done:
            step = self.positional[value]
            dims = tuple(moves[a][0] if a in moves else a for a in own)
            if step.op is None:
                done[value] = self._counted_on(own, dims, moves)
            else:
                operands = tuple(self._replayed(o, moves, done) for o in step.operands)
                done[value] = self._record(
                    step.op, operands, dims, step.attrs, step.dtype
                )
        return done[value]

    def _counted_on(
        self,
        own: DimVars,
        dims: DimVars,
        moves: Mapping[DimVar, tuple[DimVar, int]],
    ) -> Traced:
        """Positions along an axis that is renamed, or of which a part is seen."""
        starts = [moves[a][1] if a in moves else 0 for a in own]
        sizes = [(a.extent, b.extent) for a, b in zip(own, dims, strict=True)]
        if all(before == now for before, now in sizes[1:]):
            total, behind = self._counting(dims), product(own[1:])
            assert behind is not None or not starts[0]
            first = starts[0] * (behind or 1)
            return (
                self._record(table.ADD, (total, scalar(first)), dims)
                if first
                else total
            )
        total = None
        for at, var in enumerate(dims):
            behind = product(own[at + 1 :])
            assert behind is not None
            term = self._counting((var,))
            if starts[at]:
                term = self._record(table.ADD, (term, scalar(starts[at])), (var,))
            if behind != 1:
                term = self._record(table.MUL, (term, scalar(behind)), (var,))
            if total is not None:
                term = self._record(table.ADD, (total, term), (*total.dims, var))
            total = term
        assert total is not None
        return total


@dataclass(frozen=True)
class _Step:
    """How a value is computed of positions; an index value itself has no operator.

    Attributes:
        op: The operator.
        operands: What it is applied to.
        attrs: Its attributes.
        dtype: Of the result.
    """

    op: Operator | None
    operands: tuple[Traced | Scalar, ...]
    attrs: ir.Attrs
    dtype: DType


def _is_whole(number: Scalar) -> bool:
    return math.isfinite(number.value) and number.value == int(number.value)


def _in_format(number: Scalar, dtype: DType) -> Scalar:
    """What a format holds of a constant: whole numbers that wrap around, or 16 bits.

    As PyTorch makes tensors of numbers.  What depends on extents stays as it is, and
    floats of 32 bits, whose rounding is that of the computing.
    """
    if number.extents or not math.isfinite(number.value):
        return number
    if dtype.is_integer:
        low, high = int(dtype.min), int(dtype.max)
        return scalar((int(number.value) - low) % (high - low + 1) + low)
    if dtype not in table.ROUNDINGS:
        return number
    with np.errstate(over="ignore"):
        return scalar(
            float(table.ROUNDINGS[dtype].numpy(np.float64(float(number.value))))
        )


@dataclass
class _Twice:
    """What was computed twice in one way, where each of two slices has its own dim.

    Attributes:
        made: The node of each value.
        twins: By names, the dims of the one's slices for those of the other's.
    """

    made: dict[object, ir.Apply] = field(default_factory=dict[object, ir.Apply])
    twins: dict[str, str] = field(default_factory=dict[str, str])

    def alike(self, one: object, other: object) -> bool:
        """Whether two values, or constants, are the same but for dims of slices."""
        first, second = self.made.get(one), self.made.get(other)
        if one == other or first is None or second is None:
            return one == other
        if first.op is not second.op or len(first.operands) != len(second.operands):
            return False
        if not all(map(self.alike, first.operands, second.operands)):
            return False
        mine = {key: str(value) for key, value in first.attrs}
        theirs = {key: self._named(value) for key, value in second.attrs}
        if first.op is table.SLICE:
            self.twins[theirs.pop("to")] = mine.pop("to")
        return mine == theirs

    def _named(self, names: object) -> str:
        return re.sub(r"~\d+", lambda n: self.twins.get(n[0], n[0]), str(names))


def _formats(operands: Sequence[Traced | Scalar]) -> list[DType | Scalar]:
    return [o.dtype if isinstance(o, Traced) else o for o in operands]


# -- Names, once all dims are known ----------------------------------------------------

_LETTERS = "mknhdpqstuvwbcgraf"


@dataclass
class DimNames:
    """Names of variables, given in order of appearance."""

    dims: Unifier
    taken: set[str]
    _names: dict[DimVar, str] = field(default_factory=dict[DimVar, str])
    _hints: dict[DimVar, str] = field(default_factory=dict[DimVar, str])

    def __post_init__(self) -> None:
        self._hints = self.dims.hints()
        self.taken = self.taken | set(self._hints.values())
        self._fresh = self._candidates()

    def visit(self, vars: Iterable[DimVar]) -> None:
        """Name those variables that have no name yet."""
        for var in self.dims.resolve(vars):
            if var not in self._names:
                self._names[var] = self._hints.get(var) or next(self._fresh)

    def _candidates(self) -> Iterator[str]:
        numbered = (f"{c}{i}" for i in count(1) for c in _LETTERS)
        for name in (*_LETTERS,):
            if name not in self.taken:
                yield name
        for name in numbered:
            if name not in self.taken:
                yield name

    def lead(self, vars: DimVars) -> str:
        """The name of the leading dim of an axis."""
        return self._names[self.dims.resolve(vars[:1])[0]]

    def assign(self, var: DimVar, name: str) -> None:
        """Give a variable a name that follows from another one's."""
        self._names.setdefault(var, name)

    def of(self, vars: Iterable[DimVar]) -> tuple[str, ...]:
        """Names of the dims of an axis."""
        return tuple(self._names[a] for a in self.dims.resolve(vars))

    def factor(self, var: DimVar, power: int) -> Scalar:
        """A power of an extent; of a dim that no tensor has, the number itself."""
        if var not in self._names and var.extent is None:
            alike = self.dims.measured(var)
            same = (v for v in self._names if alike == self.dims.measured(v))
            var = next(same, var)
            if var not in self._names:
                raise UnsupportedError(_UNTOLD)
        if var in self._names:
            return Scalar(Fraction(1), ((self._names[var], power),))
        assert var.extent is not None
        return Scalar(Fraction(var.extent) ** power)

    def axes(self, handle: Handle) -> tuple[tuple[Dim, ...], ...]:
        """The axes of a value, named."""
        return tuple(tuple(Dim(n) for n in self.of(axis)) for axis in handle.axes)

    def extents(self) -> dict[str, Extent]:
        """Extents of all named dims."""
        return {name: var.extent for var, name in self._names.items()}

    def measured(self, name: str) -> tuple[str, int]:
        """The dim that a symbolic one follows from, and how much longer it is.

        Raises:
            UnsupportedError: It follows from none.
        """
        var = next(v for v, known in self._names.items() if known == name)
        source, more = self.dims.measured(var)
        if source is var or source not in self._names:
            raise UnsupportedError(_UNTOLD)
        return self._names[source], more


_UNTOLD = (
    "the extent of a slice of a dynamic dim that no tensor of the results has; take "
    "the extent of one that they are made of"
)


# -- Programs --------------------------------------------------------------------------


class Block(Protocol):
    """A hand-written block, which becomes a node once all dims are known."""

    @property
    def results(self) -> tuple[str, ...]:
        """What the block writes."""
        ...

    @property
    def sources(self) -> tuple[str, ...]:
        """What the block reads."""
        ...

    def visit(self, names: DimNames, /) -> None:
        """Name its dims."""
        ...

    def node(self, builder: Builder, /) -> ir.BlockGraph:
        """The block graph, whose results the builder then knows."""
        ...


def results_of(node: ir.Apply | Block) -> tuple[str, ...]:
    """What a recorded node makes."""
    return (node.result,) if isinstance(node, ir.Apply) else node.results


def sources_of(node: ir.Apply | Block) -> tuple[str, ...]:
    """What a recorded node reads."""
    return node.values if isinstance(node, ir.Apply) else node.sources


@dataclass(frozen=True)
class TracedInput:
    """An input of the program: its name, its handle and its memory layout."""

    name: str
    handle: Handle
    layout: tuple[int, ...] | None = None


class Builder:
    """Gives the nodes of a trace their names, and knows the types of values."""

    def __init__(self, names: DimNames) -> None:
        self.names = names
        self.nodes: list[ir.KernelNode] = []
        self._types: dict[str, TensorType] = {}
        self._untyped: list[ir.Apply] = []
        self._dims = names.dims
        self._values: dict[str, str] = {}
        self._indices: dict[Axis, str] = {}
        self._taken = set(names.taken)

    def input(self, traced: TracedInput) -> ir.Input:
        """The input, under its own name."""
        value = traced.handle.value
        kind = TensorType(
            value.dtype, self.names.axes(traced.handle), layout=traced.layout
        )
        self._values[value.name] = traced.name
        self._taken.add(traced.name)
        self._types[traced.name] = kind
        return ir.Input(traced.name, kind)

    def index(self, value: Traced, axis: DimVars) -> ir.Index | None:
        """The index value, under a fresh name; None if there is one along its axis."""
        (dims,) = self.names.axes(Handle(value, (axis,)))
        known = self._indices.get(dims)
        if known is not None:
            self._values[value.name] = known
            return None
        found = ir.Index(self.define(value.name, "index"), dims)
        self._indices[dims], self._types[found.name] = found.name, found.type
        return found

    def apply(self, node: ir.Apply) -> ir.Apply | None:
        """The node under its names; None if it changes nothing."""
        attrs = self._attrs(node)
        if attrs is None:
            self._values[node.result] = self._values[node.values[0]]
            return None
        operands = tuple(
            self._scalar(o) if isinstance(o, Scalar) else self._values[o]
            for o in node.operands
        )
        op = node.op
        if op in _REGROUPED:
            op, attrs = _renaming(replace(node, attrs=attrs))
        name = self.define(node.result, op.name)
        return ir.Apply(name, op, operands, attrs, node.location)

    def add(self, node: ir.Apply | Block) -> None:
        """Add the node to the program, unless it changes nothing."""
        if not isinstance(node, ir.Apply):
            self.nodes.append(node.node(self))
            return
        found = self.apply(node)
        if found is not None:
            self.nodes.append(found)
            self._untyped.append(found)

    @property
    def types(self) -> dict[str, TensorType]:
        """Types of the values so far, by their names in the program."""
        for node in self._untyped:
            types = [self._types[v] for v in node.values]
            self._types[node.result] = apply_type(node, types, in_block=False)
        self._untyped.clear()
        return self._types

    def value(self, name: str) -> str:
        """The name of a recorded value."""
        return self._values[name]

    def define(self, value: str, stem: str) -> str:
        """A name for a recorded value."""
        name = self.fresh_name(stem)
        self._values[value] = name
        return name

    def fresh_name(self, stem: str) -> str:
        """A name that nothing has."""
        numbered = (f"{stem}{i}" for i in count(1))
        name = next(n for n in numbered if n not in self._taken)
        self._taken.add(name)
        return name

    def _attrs(self, node: ir.Apply) -> ir.Attrs | None:
        """The attributes with names of dims, or None for a view that changes nothing.

        Where one dim is meant, it is the leading one of what an axis was factored
        into, and bounds are in elements of it.
        """
        found = dict(node.attrs)
        for key, kind in node.op.attributes.items():
            value = found[key]
            if node.op in _REGROUPED and isinstance(value, AxisNames):
                found[key] = AxisNames(tuple((d,) for d in self._dims_of(value.names)))
            elif kind in (AttributeKind.DIM, AttributeKind.NEW_DIM):
                found[key], *others = self._dims_of((str(value),))
                if others and node.op.kind is Kind.GATHER:
                    raise PartedError(_PARTED, node.location)
            elif isinstance(value, AxisNames):
                axes = (self._dims_of(axis) for axis in value.axes)
                found[key] = AxisNames(tuple(axes))
            elif isinstance(value, int):
                _, *behind = self._dims.named(node.dim("dim"))
                found[key] = value // (product(behind) or 1)
            elif isinstance(value, tuple):
                joins = node.op.kind is Kind.CONCAT
                found[key] = (
                    tuple(self._dims_of((name,))[0] for name in value)
                    if joins
                    else self._dims_of(value)
                )
        if node.op in _REGROUPED:
            factored = replace(node, attrs=tuple(found.items())).factored
            if factored is not None and factored.factors == (factored.whole,):
                return None
        return tuple(found.items()) if node.op is not table.RENAME else _changed(found)

    def _dims_of(self, vars: Iterable[str]) -> tuple[str, ...]:
        return self.names.of([a for name in vars for a in self._dims.named(name)])

    def _scalar(self, number: Scalar) -> Scalar:
        result = Scalar(number.value)
        for name, power in number.extents:
            for factor in self._dims.named(name):
                result = result.times(self.names.factor(factor, power))
        return result

    def output(self, handle: Handle) -> ir.Return:
        """A returned value under its axes."""
        own = self._dims.resolve(handle.value.dims)
        shown = self._dims.resolve(vars_of(handle.axes))
        if set(own) != set(shown):
            raise UnsupportedError(
                "an output repeats elements along an expanded axis; return the tensor "
                "as it is before expanding, and expand the result"
            )
        dtype = handle.value.dtype
        return ir.Return(
            self._values[handle.value.name], TensorType(dtype, self.names.axes(handle))
        )


def _changed(attrs: dict[str, Any]) -> ir.Attrs | None:
    """Those of a renaming without the dims that keep their names."""
    pairs = zip(attrs["dims"], attrs["to"], strict=True)
    changed = [(old, new) for old, new in pairs if old != new]
    if not changed:
        return None
    old, new = zip(*changed, strict=True)
    return (("dims", old), ("to", new))


def _renaming(node: ir.Apply) -> tuple[Operator, ir.Attrs]:
    """A view that takes no dim apart is another name of it."""
    factored = node.factored
    assert factored is not None
    if len(factored.factors) > 1:
        return node.op, node.attrs
    old, new = factored.factors, (factored.whole,)
    if node.op is table.UNFLATTEN:
        old, new = new, old
    return table.RENAME, (("dims", old), ("to", new))


def build_graph(
    name: str,
    recorder: ProgramRecord,
    inputs: Sequence[TracedInput],
    outputs: Sequence[Handle],
) -> ir.KernelGraph:
    """The kernel graph of a finished trace.

    Raises:
        UnsupportedError: The dims have no common factors, or an output is expanded.
    """
    live, read = _live(recorder.nodes, outputs)
    for node in live:
        if isinstance(node, ir.Apply) and node.op in _REGROUPED:
            _join_single(recorder.dims, node)
    names = DimNames(recorder.dims, {i.name for i in inputs})
    for traced in inputs:
        names.visit(vars_of(traced.handle.axes))
    counted = [(v, a) for v, a in recorder.counted.items() if v.name in read]
    for _, axis in counted:
        names.visit(axis)
    for node in live:
        if isinstance(node, ir.Apply):
            names.visit(recorder.made[node.result].dims)
        else:
            node.visit(names)
    builder = Builder(names)
    declared = tuple(builder.input(i) for i in inputs)
    found = (builder.index(v, axis) for v, axis in counted)
    indices = [i for i in found if i is not None]
    for node in live:
        builder.add(node)
    returns = tuple(builder.output(o) for o in outputs)
    extents = tuple(sorted(names.extents().items()))
    nodes = tuple(builder.nodes)
    graph = ir.KernelGraph(name, declared, nodes, returns, extents, tuple(indices))
    return _with_measures(graph, builder)


def _with_measures(graph: ir.KernelGraph, builder: Builder) -> ir.KernelGraph:
    """The program with a view that tells each symbolic extent that nothing else tells.

    Along such a dim there are positions alone, which are a part of another dim's:

        j = index r          ->     i = index t
                                    j = slice i dim(t) start(0) stop(-1) to(r)
    """
    if all(extent is not None for _, extent in graph.extents):
        return graph
    given = {n for i in graph.inputs for n in i.type.names}
    told = given | derived_extents(graph, {}).keys()
    untold = [n for n, e in graph.extents if e is None and n not in told]
    indices = {item.axis: item for item in graph.indices}
    views: list[ir.KernelNode] = []
    for dim in untold:
        source, more = builder.names.measured(dim)
        item = indices.pop((Dim(dim),), None)
        if item is None or source not in told or more > 0:
            raise UnsupportedError(_UNTOLD)
        whole = (Dim(source),)
        if whole not in indices:
            indices[whole] = ir.Index(builder.fresh_name("index"), whole)
        operands = (indices[whole].name,)
        attrs: ir.Attrs = (("dims", (source,)), ("to", (dim,)))
        if more:
            attrs = (("dim", source), ("start", 0), ("stop", more), ("to", dim))
        views.append(
            ir.Apply(item.name, table.SLICE if more else table.RENAME, operands, attrs)
        )
    nodes = (*views, *graph.nodes)
    return replace(graph, nodes=nodes, indices=tuple(indices.values()))


def _join_single(dims: Unifier, node: ir.Apply) -> None:
    """Make one of the dims of a view that takes none apart, and is none then.

    Where another axis of the tensor is the same dim, it is another name of it.
    """
    factored = node.factored
    assert factored is not None
    vars = dims.resolve(a for name in factored.factors for a in dims.named(name))
    (whole,) = dims.named(factored.whole)
    if len(vars) == 1 and vars[0] is not whole:
        dims.join(whole, vars[0])


def _live(
    nodes: Sequence[ir.Apply | Block], outputs: Sequence[Handle]
) -> tuple[list[ir.Apply | Block], set[str]]:
    """The nodes that an output depends on, in order, and all values that are read."""
    needed = {o.value.name for o in outputs}
    kept: list[ir.Apply | Block] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(results_of(node)):
            needed.update(sources_of(node))
            kept.append(node)
    return kept[::-1], needed
