"""All functions on tensors, in one namespace: `mirage.functions`."""

from __future__ import annotations

from typing import Any

from mirage_dsl.frontend import composites, functions

_HOMES = (composites, functions)


def _is_public(name: str, value: object) -> bool:
    return hasattr(value, "__wrapped__") and not name.startswith("_")


NAMES = tuple(
    sorted({n for home in _HOMES for n, v in vars(home).items() if _is_public(n, v)})
)
"""Names of the functions."""


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return next(vars(home)[name] for home in _HOMES if name in vars(home))
    raise AttributeError(
        f"mirage.functions has no {name!r}; it has {', '.join(NAMES)}"
    )


def __dir__() -> list[str]:
    return list(NAMES)
