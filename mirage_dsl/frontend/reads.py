"""What a traced function reads besides its arguments, and whether that has changed.

Numbers, texts and functions that it finds in its closure, its module or the instance
that it is a method of become part of the program.  A kernel looks before each call
whether they are the same, and traces anew where one is not.  What the function reads
from other objects is read once, when it is traced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from mirage_dsl.frontend.calls import CONSTANTS
from mirage_dsl.frontend.location import LIBRARIES

_GONE = object()
"""In the place of what is not there any more."""


class Reads:
    """The constants and functions that a function reads, as they were when it is made.

    Args:
        function: The function.
        kernel: The class of kernels, which are looked into like functions.
    """

    def __init__(self, function: object, kernel: type) -> None:
        self._kernel = kernel
        self._readers: list[Callable[[], Any]] = []
        self._functions: set[int] = set()
        self._enter(function)
        self._seen = [read() for read in self._readers]

    @property
    def seen(self) -> tuple[Any, ...]:
        """The values, as a key."""
        return tuple(self._seen)

    def changed(self) -> bool:
        """Whether any of them is another one now."""
        try:
            return [read() for read in self._readers] != self._seen
        except (RuntimeError, ValueError):
            # A closure's name was deleted, or an array has taken a number's place.
            return True

    def _enter(self, function: object, instance: object = None) -> None:
        """Add what a function reads, and what the functions that it reads do."""
        match self._plain(function):
            case partial(func=inner, args=args):
                self._enter(inner, args[0] if args else None)
            case MethodType() as method:
                self._enter(method.__func__, method.__self__)
            case FunctionType() as found:
                plain = inspect.unwrap(found)
                if isinstance(plain, FunctionType) and id(plain) not in self._functions:
                    self._functions.add(id(plain))
                    self._add(plain, instance)
            case _:
                pass

    def _plain(self, value: Any) -> object:
        """The function of a kernel; anything else is itself."""
        return value.function if isinstance(value, self._kernel) else value

    def _add(self, function: FunctionType, instance: object) -> None:
        space = function.__globals__
        for name in sorted(set(_names(function.__code__))):
            self._watch(space.get(name, _GONE), partial(space.get, name, _GONE))
            if instance is not None:
                # Without running properties.
                kept = inspect.getattr_static(instance, name, _GONE)
                self._watch(kept, partial(getattr, instance, name, _GONE))
        for cell in function.__closure__ or ():
            read = partial(getattr, cell, "cell_contents")
            try:
                self._watch(read(), read)
            except ValueError:
                continue

    def _watch(self, value: Any, read: Callable[[], Any]) -> None:
        """Watch a constant or a function; what that reads is watched as well."""
        inner = self._plain(value)
        if isinstance(inner, FunctionType):
            # What `exec` defines may belong to no module.
            module: str | None = inner.__module__
            if (module or "").partition(".")[0] in LIBRARIES:
                return
            self._enter(inner)
        elif not (
            type(value) in CONSTANTS
            or (isinstance(value, tuple) and all(type(v) in CONSTANTS for v in value))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        ):
            return
        self._readers.append(read)


def _names(code: CodeType) -> Iterator[str]:
    """The names that code reads, that of the functions inside of it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
