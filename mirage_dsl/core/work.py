"""Long work: the clock that it looks at, so that it ends in time, and workers for it.

A step of the search does not know how long it takes: a program may have hundreds of
operators, or a value a million terms.  So what works in many steps takes a `look` at
each, and whoever started it says `until` when it may run.  Without that it runs to its
end.  What can be done in pieces is `spread` on the workers of any executor, where a
worker that dies loses nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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


def seconds_left() -> float | None:
    """The time until `look` ends the work that asks; None without a limit."""
    end = _end.get()
    return None if end == math.inf else max(0.0, end - time.monotonic())


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


A = TypeVar("A")
B = TypeVar("B")

_log = logging.getLogger("mirage_dsl.spread")

ATTEMPTS = 2
"""Times that an item is given to the executor before it is done here."""


EACH_LOOK = 0.05
"""Seconds after which who waits looks at the clock."""


@dataclass(frozen=True)
class _Raised:
    """The work itself raised: no worker died, and to do it again would not help."""

    error: Exception


def spread(
    work: Callable[[A], B],
    items: Sequence[A],
    executor: Executor,
    done: Callable[[int, B], None],
    *,
    here: bool = False,
) -> None:
    """Do `work` on every item, and tell `done` each item's number and result.

    An item whose worker was lost is submitted again, and in the end done here.  Work,
    items and results must pickle where the workers are processes.

    Args:
        work: What to do with an item.
        items: The items, those that take longest first.
        executor: What has the workers.
        done: Told of each result.
        here: Whether to do items here as well, from the last on, while workers are at
            the others.

    Raises:
        Exception: What the work raised; items not yet begun are cancelled.
        OutOfTimeError: The time of who asks is up.
    """
    spreader = _Spreader(work, items, executor)
    for number in range(len(items)):
        spreader.submit(number)
    try:
        while spreader.pending:
            taken = spreader.taken_back() if here else None
            if taken is not None:
                done(taken, work(items[taken]))
            for number, found in spreader.arrived(wait_for_one=taken is None):
                done(number, found)
    finally:
        for future in spreader.pending:
            future.cancel()
    for number in sorted(spreader.here):
        done(number, work(items[number]))


@dataclass
class _Spreader(Generic[A, B]):
    """Submits items, and again where their workers were lost.

    Attributes:
        pending: Numbers of the items that were submitted.
        here: Numbers of those that no worker will do.
    """

    work: Callable[[A], B]
    items: Sequence[A]
    executor: Executor
    pending: dict[Future[B | _Raised], int] = field(default_factory=dict[Any, int])
    here: list[int] = field(default_factory=list[int])
    attempts: Counter[int] = field(default_factory=Counter[int])

    def submit(self, number: int) -> None:
        self.attempts[number] += 1
        try:
            future = self.executor.submit(_guarded, self.work, self.items[number])
        except RuntimeError as error:
            # The pool is broken or shut down; it takes no more work.
            _log.warning("the executor takes no work: %s", error)
            self.here.append(number)
        else:
            self.pending[future] = number

    def taken_back(self) -> int | None:
        """The number of an item that no worker has begun, and will not any more."""
        for future in reversed(self.pending):
            if future.cancel():
                return self.pending.pop(future)
        return None

    def arrived(self, *, wait_for_one: bool) -> Iterator[tuple[int, B]]:
        """Give what came, or else wait for something; submit again what was lost."""
        there = wait(self.pending, 0.0).done
        while wait_for_one and not there:
            look()
            there = wait(self.pending, EACH_LOOK, FIRST_COMPLETED).done
        for future in there:
            number = self.pending.pop(future)
            found = _result(future)
            if isinstance(found, _Raised):
                raise found.error
            if found is not None:
                yield number, found[0]
            elif self.attempts[number] < ATTEMPTS:
                self.submit(number)
            else:
                self.here.append(number)


def _guarded(work: Callable[[A], B], item: A) -> B | _Raised:
    try:
        return work(item)
    except Exception as error:
        return _Raised(error)


def _result(future: Future[B | _Raised]) -> tuple[B] | _Raised | None:
    """The result in a tuple, or None if the worker was lost."""
    # Executors report a lost worker by errors of their own; those of the work are
    # caught where it runs.
    error = None if future.cancelled() else future.exception()
    if future.cancelled() or error is not None:
        _log.warning("a worker was lost: %s", error or "cancelled")
        return None
    found = future.result()
    return found if isinstance(found, _Raised) else (found,)
