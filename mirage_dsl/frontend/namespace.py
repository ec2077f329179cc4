"""All functions on tensors, in one namespace: `mirage.functions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mirage_dsl.frontend import composites, einsum, functions, views

_HOMES = (composites, einsum, functions, views)
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
