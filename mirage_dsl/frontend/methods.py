"""How the methods and operators of traced tensors are made: each calls a function.

The functions build on the tensors, so they are looked up when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from mirage_dsl.core.errors import TraceError, UnsupportedError
from mirage_dsl.frontend.location import user_location


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """What `mirage.<name>` returns."""
    from mirage_dsl.frontend.interop import called
    from mirage_dsl.frontend.namespace import function_named

    return called(f"the method {name}", function_named(name), *args, **kwargs)


def method(name: str, complete: Callable[..., None] | None = None) -> Any:
    """A method that calls the function of the same name."""

    def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        if complete is not None:
            complete(name, kwargs)
        return call(name, self, *args, **kwargs)

    calling.__name__ = name
    calling.__doc__ = f"`mirage.{name}` of this tensor."
    return calling


def in_place(name: str) -> Any:
    """An operator of Python that changes its first operand."""

    def changing(self: Any, other: Any) -> Any:
        from mirage_dsl.frontend.inplace import augmented

        return augmented(name, self, other)

    return changing


def logical(sign: str) -> Any:
    """An operator of Python that computes with conditions."""

    def calling(self: Any, *others: Any) -> Any:
        from mirage_dsl.frontend.conditions import of_conditions

        return of_conditions(sign, self, *others)

    return calling


def refused(sign: str, advice: str) -> Callable[..., NoReturn]:
    """An operator of Python that no operator row has."""

    def refusing(_: Any, *__: Any) -> NoReturn:
        raise UnsupportedError(
            f"the operator {sign} on a tensor cannot be traced; {advice}",
            user_location(),
        )

    return refusing


def unknown(what: str) -> Callable[..., NoReturn]:
    """A method that is refused: there are no values yet."""

    def refusing(_: Any, *__: Any, **___: Any) -> NoReturn:
        refuse_value(what, "compute with the tensor itself")

    return refusing


def refuse_value(what: str, advice: str) -> NoReturn:
    """Refuse what needs a tensor's values.

    Raises:
        TraceError: Always.
    """
    raise TraceError(
        f"{what} is not known while the function is traced; {advice}", user_location()
    )
