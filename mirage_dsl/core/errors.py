"""The kinds of error that a user can meet, each with the place it speaks of.

Every message says what was found, what was expected, where, and what to do.  Code
raises the class that names the kind; it never raises `MirageError` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def __str__(self) -> str:
        if self.location is None:
            return self.message
        excerpt = self.location.excerpt()
        place = f"{self.location}: {self.message}"
        return f"{place}\n{excerpt}" if excerpt else place


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


class ParseError(MirageError):
    """A `.mu` text that is not in the language."""


class EquivalenceError(MirageError):
    """A μGraph that computes another function than its program."""


class SearchError(MirageError):
    """A search that cannot give what was asked for."""


class CompileError(MirageError):
    """A kernel that the backend could not compile or run."""


class CacheError(MirageError):
    """An entry of the cache that is missing, damaged or refused."""


class SettingError(MirageError):
    """An environment variable with a value that its setting does not take."""
