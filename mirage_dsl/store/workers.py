"""Processes that search parts of a long program, and verify its sections.

A helper loads what a search runs, and forks itself for each piece of work
(`core.processes.ForkServer`).  `Workers` is its executor, for `core.work.spread`: where
there are cores for it, `store.superoptimize` starts one for a program that is too long
for one search.  Work is sent when a child is free for it; what waits until then can be
cancelled, or done here.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Thread
from typing import Any

from mirage_dsl.core.processes import SPARES, ForkServer, Helper, own_channel
from mirage_dsl.core.settings import THREADS

PROGRAM = "import sys; from mirage_dsl.store.workers import main; main(sys.argv[1:])"
"""What Python runs: this module under its own name, by which its classes are found."""
ONE_THREAD: dict[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""For libraries that would take all cores in each of the processes."""
MOST = 8
"""Processes at a time: a long program has about as many different pieces."""
LEFT = 2
"""Threads of the search for its own process, and for what is compiled meanwhile."""
SECONDS_EACH = 300.0
"""How long a piece of work may take."""
TO_END = 1.0
"""Seconds in which a helper without work says that it has none."""


@dataclass(frozen=True)
class _Job:
    """A piece of work, which pickles."""

    number: int
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Done:
    """What came of it.

    Attributes:
        number: Of the job.
        result: What the work gave.
        error: What it raised, or that its process was lost.
    """

    number: int
    result: Any = None
    error: Exception | None = None


@contextmanager
def workers_to_spare() -> Generator[Workers | None]:
    """Workers on the cores that are left, if any."""
    most = min(MOST, THREADS.get() - LEFT)
    if most < 1:
        yield None
        return
    workers = Workers(most)
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


# -- This side -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """Work that somebody waits for."""

    future: Future[Any]
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Ending:
    """There is no more work; what there is need not be done, or is to be first."""

    at_once: bool


class Workers(Executor):
    """Works in forks of a helper process, which starts at once and loads meanwhile.

    One thread takes what arrives, and one alone decides what is sent: neither ever
    waits for the other, so full pipes are emptied.

    Args:
        most: Processes at a time.
    """

    def __init__(self, most: int) -> None:
        self._sender = _Sender(most)
        self._closed = False

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Have a function called with arguments; all of them pickle.

        Raises:
            RuntimeError: It was shut down.
        """
        if self._closed:
            raise RuntimeError("no work is taken any more")
        future: Future[Any] = Future()
        self._sender.events.put(_Asked(future, partial(fn, **kwargs), args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work.

        Args:
            wait: Return when the helper has ended, or waits for another program.
            cancel_futures: End what has begun, too, and the helper with it.
        """
        if not self._closed:
            self._closed = True
            self._sender.events.put(_Ending(cancel_futures))
        if wait:
            self._sender.thread.join()


class _Sender:
    """Sends what children are free for.

    Attributes:
        events: What is asked for and what has arrived, in order.
        thread: Where they are looked at.
    """

    def __init__(self, most: int) -> None:
        self.events: SimpleQueue[_Asked | _Done | _Ending] = SimpleQueue()
        self.thread = Thread(target=self._serve, daemon=True)
        self._most = most
        self._command = ("-c", PROGRAM, str(most))
        self._helper: Helper = SPARES.take(self._command, ONE_THREAD)
        self._listener = Thread(target=self._listen, daemon=True)
        self._waiting: deque[_Asked] = deque()
        self._running: dict[int, Future[Any]] = {}
        self._ready = False
        self._lost: Exception | None = None
        self._listener.start()
        self.thread.start()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                done: _Done = self._helper.receive()
                self.events.put(done)
                if done.number == _LAST:
                    return
        self.events.put(_Done(_LAST, error=BrokenExecutor("the helper has ended")))

    def _serve(self) -> None:
        self._send(_FIRST, _nothing, ())
        ending: _Ending | None = None
        while ending is None or (self._work_is_left and not ending.at_once):
            match event := self.events.get():
                case _Asked():
                    self._waiting.append(event)
                case _Ending():
                    ending = event
                case _Done():
                    self._take(event)
            self._begin()
        self._end()

    @property
    def _work_is_left(self) -> bool:
        return bool(self._waiting or self._running)

    def _take(self, done: _Done) -> None:
        if done.number == _FIRST:
            self._ready = True
        elif done.number == _LAST:
            self._lost = done.error
            for future in self._running.values():
                future.set_exception(done.error)
            self._running.clear()
        elif done.number not in self._running:
            # What another program gave up was still being ended.
            return
        elif done.error is not None:
            self._running.pop(done.number).set_exception(done.error)
        else:
            self._running.pop(done.number).set_result(done.result)

    def _begin(self) -> None:
        """Send as much as there are children for; nothing works where they are lost."""
        free = self._ready or self._lost is not None
        while free and self._waiting and len(self._running) < self._most:
            asked = self._waiting.popleft()
            if not asked.future.set_running_or_notify_cancel():
                continue
            number = next(_NUMBERS)
            error = self._lost or self._send(number, asked.work, asked.arguments)
            if error is None:
                self._running[number] = asked.future
            else:
                asked.future.set_exception(error)

    def _send(
        self, number: int, work: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Exception | None:
        """Send a job; why it cannot be."""
        try:
            self._helper.send([_Job(number, work, arguments)])
        except Exception as error:
            return error
        return None

    def _end(self) -> None:
        """End what is left, and let the helper wait for another program if it can."""
        left = [asked.future for asked in self._waiting]
        for future in (*left, *self._running.values()):
            if not future.cancel():
                future.set_exception(BrokenExecutor("it was shut down"))
        if not self._rests():
            self._helper.stop()

    def _rests(self) -> bool:
        """Whether the helper waits; it gives up what it does, and says so."""
        if not self._ready or self._lost is not None:
            return False
        with suppress(BrokenPipeError):
            self._helper.send([])
        self._send(_LAST, _nothing, ())
        self._listener.join(TO_END)
        if self._listener.is_alive():
            return False
        SPARES.keep(self._command, self._helper)
        return True


_FIRST, _LAST = 0, -1
"""Numbers of the jobs that say that a helper has loaded, and that it has no more."""
_NUMBERS = count(1)
"""Of all other jobs: a helper works for one program after another."""


def _nothing() -> None:
    """What is done to see that something could be."""


# -- The helper's side -----------------------------------------------------------------


def _work(job: _Job) -> _Done:
    try:
        return _Done(job.number, job.work(*job.arguments))
    except Exception as error:
        return _Done(job.number, error=error)


def _lost(job: _Job, status: int | None, seconds: float) -> _Done:
    error = BrokenExecutor(f"a process ended with {status} after {seconds:.1f} s")
    return _Done(job.number, error=error)


def main(arguments: list[str]) -> None:
    """Serve; the argument is how many children may run at a time."""
    # Here, for this module is imported by that one.
    from mirage_dsl.store.superoptimize import load_search

    requests, answers = own_channel()
    load_search()
    gc.freeze()  # or children would copy what they only count references of
    most = int(arguments[0])
    ForkServer(requests, answers, most, _work, _lost, SECONDS_EACH).serve()
