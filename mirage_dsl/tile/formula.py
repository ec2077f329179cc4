"""Numbers of a tile program that depend on sizes: formulas over its pieces.

One tile program serves many sizes, so what only a number depends on stays a formula:
`lanes(m/grid) >= 64 & warps >= 4`.  A formula is printed as text, evaluated at one size
or over arrays of sizes, and folded where the numbers are known while it is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from mirage_dsl.core.types import Dim


class LaneCounts(Protocol):
    """What formulas of lanes ask: the sizes of a program, or an array of them.

    Attributes:
        warps: Warps that the schedule gives a block.
        stages: Depth of the loop's software pipeline.
    """

    @property
    def warps(self) -> Any: ...

    @property
    def stages(self) -> Any: ...

    def lanes(self, dim: Dim) -> Any:
        """How many lanes tiles have along a piece: a power of two."""
        ...


class Asked(LaneCounts, Protocol):
    """What all formulas ask, those of masks too."""

    def loose(self, dim: Dim) -> Any:
        """Whether lanes of a piece can lie outside of its dim."""
        ...

    def ends(self, dim: Dim) -> Any:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        ...


@dataclass(frozen=True)
class Formula:
    """An operation on numbers, or a question about sizes.

    Attributes:
        op: `lanes`, `loose`, `ends` (of one dim), `warps`, `stages`, or a row of
            `OPERATIONS`.
        args: What it is applied to.

    Formulas are made by the functions of this module and by `+ - * // >= > & | ~`,
    which fold what is known.  `==` compares formulas, not what they stand for.
    """

    op: str
    args: tuple[Formula | Dim | int | bool, ...] = ()

    def at(self, sizes: LaneCounts) -> Any:
        """What it is at some sizes: a number, or an array with one for each point.

        Those who ask for what may lie outside have sizes that are `Asked`.
        """
        if self.op in ("warps", "stages"):
            return getattr(sizes, self.op)
        if self.op in ("lanes", "loose", "ends"):
            return getattr(sizes, self.op)(*self.args)
        found = (a.at(sizes) if isinstance(a, Formula) else a for a in self.args)
        return OPERATIONS[self.op].compute(*found)

    def __str__(self) -> str:
        if self.op not in OPERATIONS:
            return self.op + (f"({self.args[0]})" if self.args else "")
        row = OPERATIONS[self.op]
        return row.text.format(
            *(_within(a, row.binding, first=at == 0) for at, a in enumerate(self.args))
        )

    def __add__(self, other: Number) -> Number:
        return fold("add", self, other)

    def __sub__(self, other: Number) -> Number:
        return fold("sub", self, other)

    def __mul__(self, other: Number) -> Number:
        return fold("mul", self, other)

    def __floordiv__(self, other: Number) -> Number:
        return fold("div", self, other)

    def __ge__(self, other: Number) -> Number:
        return fold("ge", self, other)

    def __gt__(self, other: Number) -> Number:
        return fold("gt", self, other)

    def __and__(self, other: Number) -> Number:
        return fold("and", self, other)

    def __or__(self, other: Number) -> Number:
        return fold("or", self, other)

    __radd__ = __add__
    __rmul__ = __mul__
    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Number:
        return opposite(self)


Number = Formula | int | bool
"""What a tile program has for a number or a condition."""


# -- Operations ------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """A row of the table of operations.

    Attributes:
        text: How it is written.
        binding: How tightly it binds; operands that bind less get parentheses.
        compute: Its value, of numbers or of arrays.
    """

    text: str
    binding: int
    compute: Callable[..., Any]


def _pick(of_arrays: Callable[..., Any], of_numbers: Callable[..., Any]) -> Any:
    """NumPy's function where an argument is an array, else Python's."""

    def compute(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, (np.ndarray, np.generic)):
                return of_arrays(*args)
        return of_numbers(*args)

    return compute


def _either(condition: bool, yes: Any, no: Any) -> Any:
    return yes if condition else no


def _or(a: Any, b: Any) -> Any:
    return a | b


def _and(a: Any, b: Any) -> Any:
    return a & b


def _div(a: Any, b: Any) -> Any:
    return a // b


TIGHTEST = 9
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "if": Operation("{1} if {0} else {2}", 0, _pick(np.where, _either)),
        "or": Operation("{} | {}", 1, _or),
        "and": Operation("{} & {}", 2, _and),
        "not": Operation("not {}", 3, _pick(np.logical_not, operator.not_)),
        "ge": Operation("{} >= {}", 4, operator.ge),
        "gt": Operation("{} > {}", 4, operator.gt),
        "add": Operation("{} + {}", 5, operator.add),
        "sub": Operation("{} - {}", 5, operator.sub),
        "mul": Operation("{} * {}", 6, operator.mul),
        "div": Operation("{} div {}", 6, _div),
        "max": Operation("max({}, {})", TIGHTEST, _pick(np.maximum, max)),
        "min": Operation("min({}, {})", TIGHTEST, _pick(np.minimum, min)),
    }
)
"""What formulas are made of, besides questions about sizes."""

_NEUTRAL: Mapping[str, int | bool] = MappingProxyType(
    {"and": True, "or": False, "mul": 1, "add": 0}
)
_ABSORBING: Mapping[str, int | bool] = MappingProxyType(
    {"and": False, "or": True, "mul": 0}
)


def _within(arg: Formula | Dim | int | bool, binding: int, *, first: bool) -> str:
    """An operand's text; operations of one binding are read from the left."""
    if not isinstance(arg, Formula) or arg.op not in OPERATIONS or binding == TIGHTEST:
        return str(arg)
    own = OPERATIONS[arg.op].binding
    # Comparisons, `not` and `if` do not follow one another without parentheses.
    chained = first and own == binding and binding in (1, 2, 5, 6)
    return str(arg) if own > binding or chained else f"({arg})"


def fold(op: str, *args: Number) -> Number:
    """An operation of the table, or what it is where that is known already."""
    for arg in args:
        if isinstance(arg, Formula):
            return _folded(op, args)
    return OPERATIONS[op].compute(*args)


def _folded(op: str, args: tuple[Number, ...]) -> Number:
    """An operation some of whose operands are formulas."""
    if op == "if" and not isinstance(args[0], Formula):
        return args[1] if args[0] else args[2]
    if op in ("if", "and", "or", "max", "min") and args[-1] == args[-2]:
        return args[-1]
    if op in ("and", "or") and args[0] == opposite(args[1]):
        return op == "or"
    if len(args) == 2:
        for one, other in (args, args[::-1]):
            if not isinstance(one, Formula):
                if one == _ABSORBING.get(op):
                    return one
                if one == _NEUTRAL.get(op):
                    return other
    return Formula(op, args)


# -- Makers ----------------------------------------------------------------------------


WARPS, STAGES = Formula("warps"), Formula("stages")


def lanes(dim: Dim) -> Formula:
    """How many lanes tiles have along a piece."""
    return Formula("lanes", (dim,))


def loose(dim: Dim) -> Formula:
    """Whether lanes of a piece can lie outside of its dim."""
    return Formula("loose", (dim,))


def ends(dim: Dim) -> Formula:
    """Whether lanes outside of a loose piece lie outside of the tensor too.

    Not so where a part of the grid or of the loop ends within lanes that the next part
    goes on in.  A tensor descriptor reads 0 outside of the tensor, and only there.
    """
    return Formula("ends", (dim,))


def opposite(condition: Number) -> Number:
    """Whether a condition does not hold."""
    if isinstance(condition, Formula) and condition.op == "not":
        (inner,) = condition.args
        assert not isinstance(inner, Dim)
        return inner
    return fold("not", condition)


def all_of(conditions: Iterable[Number]) -> Number:
    """Whether all of some conditions hold."""
    return reduce(lambda a, b: fold("and", a, b), conditions, True)


def any_of(conditions: Iterable[Number]) -> Number:
    """Whether one of some conditions holds."""
    return reduce(lambda a, b: fold("or", a, b), conditions, False)


def either(condition: Number, yes: Number, no: Number) -> Number:
    """The one number where a condition holds, else the other."""
    return fold("if", condition, yes, no)


def greatest(first: Number, *others: Number) -> Number:
    """The greatest of some numbers."""
    return reduce(lambda a, b: fold("max", a, b), others, first)


def least(first: Number, *others: Number) -> Number:
    """The least of some numbers."""
    return reduce(lambda a, b: fold("min", a, b), others, first)


def value(number: Number, sizes: Asked) -> Any:
    """What a number is at some sizes."""
    return number.at(sizes) if isinstance(number, Formula) else number
