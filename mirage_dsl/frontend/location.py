"""Finding the line of the user's file that an operation comes from."""

from __future__ import annotations

import linecache
import sys
from itertools import count, islice, takewhile
from types import FrameType

from mirage_dsl.core.errors import SourceLocation

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
