"""Conditions: traced tensors that are 1 where something holds, else 0.

In PyTorch and NumPy these are of a type of their own, which has operators of its own,
and which some functions treat differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.frontend import functions as f
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.steps import Number, Step, Value
from mirage_dsl.frontend.tensor import Tensor

COMPARISONS = frozenset({"less", "less_equal", "equal"})
KEEPING = frozenset(
    ("mul", "sub", "minimum", "maximum", "where", "rename", "slice", "concat", "insert")
)
"""Operators that make conditions of conditions, as `1 - a` and `a * b` do."""


def is_condition(x: object) -> bool:
    """Whether a tensor is a comparison, or made of comparisons only."""
    if not isinstance(x, Tensor):
        return False
    found: set[Value] = set()

    def holds(operand: Value | Number) -> bool:
        if isinstance(operand, Number):
            return operand.value in (0, 1) and not operand.powers
        return operand in found

    for step in x.recorder.steps:
        if isinstance(step, Step) and (
            step.op.name in COMPARISONS
            or (step.op.name in KEEPING and all(map(holds, step.operands)))
        ):
            found.add(step.result)
    return x.handle.value in found


def _not(a: Any) -> Any:
    return f.sub(1, a)


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "&": f.mul,
    "|": f.maximum,
    "^": f.not_equal,
    "~": _not,
}


def of_conditions(sign: str, *operands: Any) -> Any:
    """An operator of Python on conditions, which is bitwise on all else.

    Raises:
        UnsupportedError: An operand is no condition.
    """
    if not all(is_condition(x) or isinstance(x, bool) for x in operands):
        raise UnsupportedError(
            f"the operator {sign} on a tensor cannot be traced; it is possible on "
            "conditions, such as x > 0",
            user_location(),
        )
    return _OPERATORS[sign](*operands)


def _function(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The same on any tensors, which hold where they are not 0."""

    def function(*operands: Any) -> Any:
        given = (x if is_condition(x) else f.not_equal(x, 0) for x in operands)
        return operator(*given)

    return function


LOGICAL: Mapping[str, Callable[..., Any]] = {
    "logical_and": _function(f.mul),
    "logical_or": _function(f.maximum),
    "logical_xor": _function(f.not_equal),
    "logical_not": _function(_not),
}
"""By the names that PyTorch and NumPy share."""

__all__ = ["LOGICAL", "is_condition", "of_conditions"]
