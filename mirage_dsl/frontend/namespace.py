"""Functions by name: all of mirage's in one namespace, and logic's, as libraries say.

As a module it is `mirage.functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import u8
from mirage_dsl.frontend import composites, constructors, functions
from mirage_dsl.frontend.functions import complement, is_condition, is_float, public

_HOMES = (composites, constructors, functions)
_ALL: dict[str, Callable[..., Any]] = {
    name: value
    for home in _HOMES
    for name, value in vars(home).items()
    if hasattr(value, "__wrapped__")
}

NAMES = tuple(sorted(_ALL))
"""Names of the functions."""


def function_named(name: str) -> Callable[..., Any]:
    """The function called `name`.

    Raises:
        KeyError: There is none.
    """
    return _ALL[name]


def __getattr__(name: str) -> Any:
    if name in _ALL:
        return _ALL[name]
    raise AttributeError(f"mirage.functions has no {name!r}; it has {', '.join(NAMES)}")


def __dir__() -> list[str]:
    return list(NAMES)


# -- Truth values, such as comparisons give --------------------------------------------

_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "&": functions.bitwise_and,
    "|": functions.bitwise_or,
    "^": functions.bitwise_xor,
    "~": functions.bitwise_not,
}


def of_bits(sign: str, *operands: Any) -> Any:
    """An operator of Python on truth values and on the bits of integers.

    Raises:
        UnsupportedError: An operand has other values.
    """
    for x in operands:
        if is_float(x) or isinstance(x, float):
            raise UnsupportedError.here(
                f"the operator {sign} on a tensor cannot be traced; it is possible on "
                "conditions, such as x > 0, and on integers"
            )
    return _OPERATORS[sign](*operands)


def _truth(x: Any) -> Any:
    """Where a tensor is not 0."""
    return x if is_condition(x) else functions.not_equal(x, 0)


def _function(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The same on any tensors, which hold where they are not 0."""

    def function(*operands: Any) -> Any:
        return operator(*map(_truth, operands))

    return function


@public
def _any(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Whether any element along axes is not 0."""
    return _as_bytes(x, functions.amax(_truth(x), axis, keepdims))


@public
def _all(x: Any, axis: Any = None, keepdims: Any = False) -> Any:
    """Whether no element along axes is 0."""
    return _as_bytes(x, functions.amin(_truth(x), axis, keepdims))


def _as_bytes(x: Any, found: Any) -> Any:
    """PyTorch's answer about bytes is one, which were its truth values once."""
    if x.handle.value.dtype == u8 and x.recorder.origin.library == "torch":
        return functions.to(found, u8)
    return found


LOGICAL: Mapping[str, Callable[..., Any]] = {
    "all": _all,
    "any": _any,
    "logical_and": _function(functions.mul),
    "logical_not": _function(complement),
    "logical_or": _function(functions.maximum),
    "logical_xor": _function(functions.not_equal),
}
"""By the names that PyTorch and NumPy share."""
