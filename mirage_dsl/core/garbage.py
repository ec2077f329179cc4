"""Python's garbage collector, while many objects are made that live on."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

RARELY = 100_000
"""New objects after which there is a collection, in place of Python's 700.

A search makes millions of small objects, few of them in circles.  Python looks through
the new ones every 700, and now and then through all there are: that took 4 % of a
search.  What circles hold in the meantime is some ten MB.
"""


@dataclass
class _Asked:
    """Who has asked for rare collections, and what there was before."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    before: tuple[int, int, int] = (0, 0, 0)


_asked = _Asked()


@contextmanager
def rarely_collected() -> Generator[None]:
    """Collect garbage rarely, until the last who asked for it at once has ended.

    It concerns the whole process.  Where collections are as rare already, or there are
    none, all stays as it is.
    """
    with _asked.lock:
        if not _asked.count:
            _asked.before = gc.get_threshold()
        _asked.count += 1
        if 0 < _asked.before[0] < RARELY:
            gc.set_threshold(RARELY, *_asked.before[1:])
    try:
        yield
    finally:
        with _asked.lock:
            _asked.count -= 1
            if not _asked.count:
                gc.set_threshold(*_asked.before)
