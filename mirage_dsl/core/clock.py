"""The clock that long work looks at, so that it ends in time wherever it is.

A step of the search does not know how long it takes: a program may have hundreds of
operators, or a value a million terms.  So what works in many steps takes a `look` at
each, and whoever started it says `until` when it may run.  Without that it runs to its
end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("_end", default=math.inf)


class OutOfTimeError(Exception):
    """The time is up.  Whoever set it catches this; no user sees it."""


def look() -> None:
    """Go on, unless the time is up.

    Raises:
        OutOfTimeError: It is.
    """
    end = _end.get()
    if end < math.inf and time.monotonic() > end:
        raise OutOfTimeError


@contextmanager
def until(deadline: float | None) -> Generator[None]:
    """Work that ends at its first `look` after a reading of `time.monotonic()`.

    Of several around it the earliest counts.  It holds in this thread alone; None is no
    limit.
    """
    before = _end.get()
    token = _end.set(before if deadline is None else min(before, deadline))
    try:
        yield
    finally:
        _end.reset(token)
