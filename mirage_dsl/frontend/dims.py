"""Dims of traced values, by unification: the most general names that a function allows.

Every axis of an input starts as a fresh variable.  Operators unify variables, reshapes
factor them: a variable may be bound to a row-major product of others.  Two axes that
share a variable are the same dim of the traced program.

Some variables must stay apart: those of one value, and those that one operator sees at
different places.  `Unifier.unify` refuses to join them, and its caller views the
operand under fresh names instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import DType, Scalar

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


@dataclass
class Unifier:
    """Dim variables, what they are bound to, and which of them must stay apart."""

    _bound: dict[DimVar, DimVars] = field(default_factory=dict[DimVar, DimVars])
    _groups: list[DimVars] = field(default_factory=list[DimVars])
    _tails: list[SharedTail] = field(default_factory=list[SharedTail])
    _pairs: list[tuple[DimVar, DimVar]] = field(
        default_factory=list[tuple[DimVar, DimVar]]
    )
    _vars: dict[str, DimVar] = field(default_factory=dict[str, DimVar])
    _values: int = 0

    def fresh(self, extent: Extent, hint: str | None = None) -> DimVar:
        """A new variable."""
        var = DimVar(extent, len(self._vars) + 1, hint)
        self._vars[var.name] = var
        return var

    def named(self, name: str) -> DimVars:
        """The unbound variables whose product the variable of this name is."""
        return self.resolve((self._vars[name],))

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
        sizes = len(self._groups), len(self._tails), len(self._pairs)
        if group:
            self._groups.append(group)
        if tail:
            self._tails.append(tail)
        self._pairs.extend(renamed)
        try:
            for left, right in pairs:
                self._merge(left, right)
            # What stood before is settled, until a variable is bound.
            self._carry(self._pairs[sizes[2] :], self._tails[sizes[1] :])
            if len(self._bound) > mark:
                self.settle()
            else:
                self._check_groups(self._groups[sizes[0] :])
        except UnsupportedError as reason:
            while len(self._bound) > mark:
                self._bound.popitem()
            del self._groups[sizes[0] :]
            del self._tails[sizes[1] :]
            del self._pairs[sizes[2] :]
            # Without the frames that it came through, which hold the call's tensors.
            return reason.with_traceback(None)
        return None

    def join(self, one: DimVar, other: DimVar) -> None:
        """Make two unbound variables one, when nothing is split any more.

        They stay two where both are axes of one tensor.
        """
        self._bound[one] = (other,)
        try:
            self._check_groups(self._groups)
        except UnsupportedError:
            del self._bound[one]

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
            while len(self._bound) > mark:
                self._bound.popitem()
            raise

    def _regrouped(self, vars: DimVars, extents: Sequence[int]) -> tuple[DimVars, ...]:
        rest = list(reversed(self.resolve(vars)))
        axes: list[DimVars] = []
        mark = len(self._bound)
        for extent in extents:
            axis: list[DimVar] = []
            left = extent
            while left != 1:
                axis.append(self._take(rest, left))
                left = _quotient(left, axis[-1].extent)
            axes.append(tuple(axis))
        if len(self._bound) > mark:
            self.settle()
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
        self._bound[var] = parts
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
                self._bound[new] = (old,)
            else:
                x, y, a, b = self._order(x, y, a, b)
                y_rest = self.fresh(_quotient(_known(y), x.extent))
                self._bound[y] = (x, y_rest)
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

    def settle(self) -> None:
        """Carry new factors through views, slices and concatenations.

        Raises:
            UnsupportedError: No row-major factors serve all of them.
        """
        mark = -1
        while mark != len(self._bound):
            mark = len(self._bound)
            self._carry(self._pairs, self._tails)
        self._check_groups(self._groups)

    def _carry(
        self, pairs: Sequence[tuple[DimVar, DimVar]], tails: Sequence[SharedTail]
    ) -> None:
        """Carry factors through these once."""
        for old, new in pairs:
            self._factor_alike(self.resolve((old,)), self.resolve((new,)))
        for tail in tails:
            self._share_tail(tail)

    def _factor_alike(self, left: DimVars, right: DimVars) -> None:
        a, b = list(reversed(left)), list(reversed(right))
        while a and b:
            x, y = a.pop(), b.pop()
            if x.extent == y.extent:
                continue
            x, y, a, b = self._order(x, y, a, b)
            _, rest = self._split(y, _known(x))
            b.append(rest)

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

    def _check_groups(self, groups: Sequence[DimVars]) -> None:
        for group in groups:
            vars = self.resolve(group)
            if len(set(vars)) != len(vars):
                raise UnsupportedError("two axes of one tensor would be the same dim")


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
