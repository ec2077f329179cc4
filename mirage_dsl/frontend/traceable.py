"""What the decorator refuses, before anything is traced."""

from __future__ import annotations

import inspect

from mirage_dsl.errors import TraceError
from mirage_dsl.frontend.location import user_location


def require_traceable(function: object) -> None:
    """Refuse what cannot be traced whatever it does.

    Raises:
        TraceError: It is no function, has no signature, or returns no tensors.
    """
    if not callable(function):
        raise TraceError(
            f"kernel takes a function, found {type(function).__name__}; settings are "
            "keywords, as in @mirage.kernel(effort='full')",
            user_location(),
        )
    name = getattr(function, "__name__", type(function).__name__)
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise TraceError(
            f"kernel takes a function that returns tensors; {name} is a coroutine or a "
            "generator",
            user_location(),
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise TraceError(
            f"{name} is built in, and Python does not know its arguments; write a "
            f"function that calls it, as lambda x: {name}(x)",
            user_location(),
        ) from None
