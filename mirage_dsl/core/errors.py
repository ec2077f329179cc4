"""The kinds of error that a user can meet, each with the place it speaks of.

Every message says what was found, what was expected, where, and what to do.  Code
raises the class that names the kind, as `ShapeError.here(...)` where the place is the
line of the user that is being run; it never raises `MirageError` itself.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count, islice, takewhile
from traceback import walk_tb
from types import FrameType, FunctionType
from typing import Any, Self, TypeVar, cast

_SHOWN = 120
"""Characters of a line that a message shows."""


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's Python file, or of a `.mu` text.

    `line` and `column` count from 1.  `text` is that line, without its newline.
    """

    file: str
    line: int
    text: str = ""
    column: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def excerpt(self) -> str:
        """The line with a caret under the column, indented for a message.

        Of a long line the part around the column.
        """
        if not self.text:
            return ""
        at = 0 if self.column is None else self.column - 1
        first = max(0, at - _SHOWN // 2) if len(self.text) > _SHOWN else 0
        before = "..." if first else ""
        shown = f"    {before}{self.text[first : first + _SHOWN].rstrip()}"
        if first + _SHOWN < len(self.text):
            shown += "..."
        if self.column is None:
            return shown
        return f"{shown}\n    {' ' * (len(before) + at - first)}^"


class MirageError(Exception):
    """Base of all errors of this package.

    Args:
        message: What was found, what was expected and what to do.
        location: The user's line, where one is known.
    """

    def __init__(self, message: str, location: SourceLocation | None = None) -> None:
        self.message = message
        self.location = location
        super().__init__(message)
        made = _MADE.get()
        if made is not None:
            made.append(self)

    @classmethod
    def here(cls, message: str) -> Self:
        """The error with the line of the user that is being run."""
        return cls(message, user_location())

    def __str__(self) -> str:
        if self.location is None:
            return self.message
        excerpt = self.location.excerpt()
        place = f"{self.location}: {self.message}"
        return f"{place}\n{excerpt}" if excerpt else place


_MADE: ContextVar[list[MirageError] | None] = ContextVar("_MADE", default=None)


@contextmanager
def caught_by_users() -> Generator[Callable[[], list[MirageError]]]:
    """Ask which errors that are made meanwhile code of the user's caught.

    A caught error's traceback begins with the frame that caught it.
    """
    made: list[MirageError] = []

    def caught() -> list[MirageError]:
        tracebacks = ((error, error.__traceback__) for error in made)
        return [error for error, t in tracebacks if t and _is_users(t.tb_frame)]

    token = _MADE.set(made)
    try:
        yield caught
    finally:
        _MADE.reset(token)
        made.clear()


class TraceError(MirageError):
    """The decorated function does something that cannot be traced."""


class ShapeError(MirageError):
    """Shapes or dims that do not fit together."""


class DTypeError(MirageError):
    """A dtype that the operation does not take."""


class UnsupportedError(MirageError):
    """A valid request that this version cannot serve; it says which one."""


class CheckError(MirageError):
    """A μGraph that is not well formed."""


class TruthError(CheckError):
    """A μGraph that computes with truth values what takes numbers alone."""


class ParseError(MirageError):
    """A `.mu` text that is not in the language."""


class EquivalenceError(MirageError):
    """A μGraph that computes another function than its program."""


class SearchError(MirageError):
    """A search that cannot give what was asked for."""


class CompileError(MirageError):
    """A kernel that the backend could not compile or run."""


class RefusedError(CompileError):
    """A kernel that the compiler or the GPU does not take: nothing has run yet."""


class CacheError(MirageError):
    """An entry of the cache that is missing, damaged or refused."""


class SettingError(MirageError):
    """An environment variable with a value that its setting does not take."""


# -- The line of the user that an operation comes from ---------------------------------

LIBRARIES = frozenset({"mirage_dsl", "torch", "numpy", "functools", "contextlib"})
"""Packages whose lines are not the user's."""

_DEFINITIONS = ("def ", "async def ")


def user_location() -> SourceLocation | None:
    """The innermost line on the stack that no library holds."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        frame = frame.f_back
    if frame is None:
        return None
    return location_of_frame(frame)


def _is_library(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    if frame.f_code.co_filename.startswith("<frozen"):
        return True
    return module.partition(".")[0] in LIBRARIES


def location_of_error(error: BaseException) -> SourceLocation | None:
    """The innermost line that an error came through and that no library holds."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    places = [location_of_frame(frame) for frame in frames if not _is_library(frame)]
    return places[-1] if places else None


def location_of_frame(frame: FrameType) -> SourceLocation:
    """The line that a frame is at, with the column where its expression starts."""
    code = frame.f_code
    index = frame.f_lasti // 2
    position = next(islice(code.co_positions(), index, index + 1), None)
    column = position[2] if position is not None else None
    text = linecache.getline(code.co_filename, frame.f_lineno).rstrip("\n")
    return SourceLocation(
        code.co_filename, frame.f_lineno, text, None if column is None else column + 1
    )


def location_of_function(function: object) -> SourceLocation | None:
    """The line where a function is defined, below its decorators."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    file, number = code.co_filename, code.co_firstlineno
    text = linecache.getline(file, number)
    if text.lstrip().startswith("@"):
        lines = ((n, linecache.getline(file, n)) for n in count(number + 1))
        rest = takewhile(lambda line: line[1], lines)
        found = (line for line in rest if line[1].lstrip().startswith(_DEFINITIONS))
        number, text = next(found, (number, text))
    column = len(text) - len(text.lstrip()) + 1 if text else None
    return SourceLocation(file, number, text.rstrip("\n"), column)


def _is_users(frame: FrameType) -> bool:
    """Whether a frame runs code of the user's, and no library's or Python's own."""
    module = str(frame.f_globals.get("__name__", ""))
    return not _is_library(frame) and (
        module.partition(".")[0] not in sys.stdlib_module_names
    )


# -- What is no error of ours ----------------------------------------------------------

FOREIGN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What Python and the libraries raise for arguments that they cannot use."""


def is_misuse(error: Exception) -> bool:
    """Whether arguments may be the reason of one of these.

    What else is a RuntimeError is not: no memory, a recursion without end.
    """
    return not isinstance(error, RuntimeError) or type(error) is RuntimeError


_PUBLIC = "__public_name__"

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def public_function(name: str) -> Callable[[F], F]:
    """Let a function that users call answer arguments it cannot use in words.

    What Python raises for them becomes an `UnsupportedError` with the arguments that
    were found and those that are expected.  What code of the user's raises, as a
    callback, stays as it is.

    Args:
        name: What users call it.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except FOREIGN as error:
                raised = [frame for frame, _ in walk_tb(error.__traceback__)]
                if not is_misuse(error) or any(map(_is_users, raised)):
                    raise
                raise misuse(name, function, args, kwargs, error) from error

        vars(called)[_PUBLIC] = name
        return cast("F", called)

    return decorate


def inside(function: F) -> F:
    """A public function as it is for callers that answer for it."""
    known = getattr(function, _PUBLIC, None)
    return function if known is None else cast(Any, function).__wrapped__


def public_methods(name: str) -> Callable[[C], C]:
    """Let the public methods of a class answer as `public_function` does.

    Args:
        name: What users call its objects.
    """

    def decorate(kind: C) -> C:
        for attribute, held in list(vars(kind).items()):
            if isinstance(held, FunctionType) and (
                attribute == "__call__" or not attribute.startswith("_")
            ):
                shown = f"a call of {name}"
                if attribute != "__call__":
                    shown = f"{name}.{attribute}"
                setattr(kind, attribute, public_function(shown)(held))
        return kind

    return decorate


def misuse(
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> UnsupportedError:
    """What to raise for arguments that ended in a foreign error."""
    given = [*map(_shown, args), *(f"{n}={_shown(v)}" for n, v in kwargs.items())]
    try:
        expected = f"; expected {_plain(inspect.signature(function))}"
    except (TypeError, ValueError):
        expected = ""
    # Python names the function that does it, which may be one of several alike.
    does, called = getattr(function, "__qualname__", name), name.rpartition(" ")[2]
    reason = str(error).replace(f"{does}()", f"{called}()") or type(error).__name__
    text = f"{name} with these arguments is not supported ({reason}): found "
    text += f"({', '.join(given)}){expected}{_fault(error)}"
    return UnsupportedError.here(text)


def _plain(signature: inspect.Signature) -> inspect.Signature:
    """A signature without types, most of which are any."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=empty)


_INNER = ("cost", "rewrite", "search", "tile", "tune", "verify")
"""Packages that are given programs, and next to nothing that users write."""


def _fault(error: Exception) -> str:
    """Where it was raised, if that is where arguments are seldom the reason."""
    frame, line = list(walk_tb(error.__traceback__))[-1]
    package, *inner = str(frame.f_globals.get("__name__", "")).split(".")
    if package != __name__.partition(".")[0] or inner[:1] not in [[p] for p in _INNER]:
        return ""
    module = ".".join((package, *inner))
    return (
        f"; if they are as expected, {type(error).__name__} in {module}, line {line}, "
        "is a fault of this library: please report it with the program"
    )


def _shown(value: object) -> str:
    """An argument in a message: of plain values the text, of others the class."""
    kind = type(value).__qualname__
    plain = isinstance(value, bool | int | float | str | tuple | list | type(None))
    try:
        text = f"{value!r}" if plain else kind
    except (RecursionError, ValueError):
        return kind
    return text if len(text) <= _SHOWN // 2 else kind
