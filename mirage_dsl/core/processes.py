"""Processes of this package that help: pipes to them, and those that fork for each job.

A helper is started from nothing, so it inherits no thread and no GPU, and does not run
the user's program again.  It loads what it needs once.  A `ForkServer` forks itself for
each job then: what it has loaded its children have, and a job that crashes or hangs
costs itself only.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, Generic, TypeVar

# -- Pipes and the processes behind them -----------------------------------------------

HEADER = 8
"""Bytes of the length that goes ahead of every value."""


def framed(value: object) -> bytes:
    """A value as it goes through a pipe."""
    data = pickle.dumps(value)
    return len(data).to_bytes(HEADER, "little") + data


def send(pipe: IO[bytes], value: object) -> None:
    """Write one value."""
    pipe.write(framed(value))
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read one value.

    Raises:
        EOFError: The other side is gone.
    """
    header = pipe.read(HEADER)
    if len(header) < HEADER:
        raise EOFError
    return pickle.loads(pipe.read(int.from_bytes(header, "little")))


def arriving(pipe: IO[bytes]) -> Iterator[Any]:
    """Values as they are asked for.

    When the other side is gone, this process ends at once, whatever it does: nobody
    else would end a candidate that hangs.
    """
    values: SimpleQueue[Any] = SimpleQueue()

    def listen() -> None:
        status = 1
        try:
            with suppress(EOFError):
                while True:
                    values.put(receive(pipe))
            status = 0
        finally:
            os._exit(status)

    Thread(target=listen, daemon=True).start()
    while True:
        yield values.get()


def taken(data: bytearray) -> Any:
    """Remove the first value from the bytes read so far; None if it is incomplete."""
    size = int.from_bytes(data[:HEADER], "little")
    if len(data) < HEADER or len(data) < HEADER + size:
        return None
    value = pickle.loads(bytes(data[HEADER : HEADER + size]))
    del data[: HEADER + size]
    return value


def own_channel() -> tuple[IO[bytes], IO[bytes]]:
    """Where a started process reads requests and writes answers.

    Whatever a library prints goes to standard error, so as not to get between the
    answers.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # A thread that still waits at `sys.stdin` would make Python abort at its end.
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb"), answers


WHAT_WAITS = 1 << 20
"""Bytes that a pipe holds until a process that still loads reads them: a program of
some hundred operators, where Linux would stop who sends it after 65536 bytes."""


class Helper:
    """A process of this package, with pipes to it.

    It leads a group of its own, so that its children end with it: they hold the pipes,
    too, which cannot be closed before.

    Args:
        command: What Python runs.
        environment: Variables that it has besides those of this process.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={
                **os.environ,
                **(environment or {}),
                "PYTHONPATH": os.pathsep.join(paths),
            },
        )
        assert self._process.stdin is not None
        with suppress(OSError):
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, WHAT_WAITS)

    def send(self, value: object) -> None:
        """Write one value.

        Raises:
            BrokenPipeError: The process has ended.
        """
        assert self._process.stdin is not None
        send(self._process.stdin, value)

    def receive(self) -> Any:
        """Wait for one value.

        Raises:
            EOFError: The process has ended.
        """
        assert self._process.stdout is not None
        return receive(self._process.stdout)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once; readers of its answers find their end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> int:
        """End the process and close the pipes; its exit status."""
        self.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        return status


# -- Helpers that wait for more work ---------------------------------------------------
# Loading PyTorch and setting up a GPU takes them seconds, longer than many a
# tuning.  One of each kind waits for a while, then ends; the end of this process
# ends it too.

IDLE_SECONDS = 30.0
"""How long a process waits."""

_Kind = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass
class Spares:
    """The waiting processes, by command and environment."""

    _waiting: dict[_Kind, tuple[Helper, threading.Timer]] = field(
        default_factory=dict[_Kind, tuple[Helper, threading.Timer]]
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Helper:
        """A process that runs a command: one that waits, or else a new one."""
        with self._lock:
            helper, timer = self._waiting.pop(_kind(command), (None, None))
        if timer is not None:
            timer.cancel()
        if helper is not None:
            if helper.alive:
                return helper
            helper.stop()
        return Helper(command, environment)

    def keep(self, command: Sequence[str], helper: Helper) -> None:
        """Let a process wait that owes no answers, unless one does already."""
        kind = _kind(command)
        timer = threading.Timer(IDLE_SECONDS, self._end, (kind, helper))
        timer.daemon = True
        with self._lock:
            if kind not in self._waiting:
                self._waiting[kind] = helper, timer
                timer.start()
                return
        helper.stop()

    def _end(self, kind: _Kind, helper: Helper) -> None:
        with self._lock:
            if self._waiting.get(kind, (None,))[0] is not helper:
                return
            del self._waiting[kind]
        helper.stop()

    def clear(self) -> None:
        """End all that wait."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for helper, timer in waiting:
            timer.cancel()
            helper.stop()


def _kind(command: Sequence[str]) -> _Kind:
    return tuple(command), tuple(sorted(os.environ.items()))


SPARES = Spares()
atexit.register(SPARES.clear)


# -- Processes that fork for each job --------------------------------------------------

Job = TypeVar("Job")
Answer = TypeVar("Answer")


@dataclass
class _Child(Generic[Job]):
    job: Job
    process: int
    pipe: int
    started: float
    data: bytearray = field(default_factory=bytearray)


class ForkServer(Generic[Job, Answer]):
    """A helper's side: keeps some children at work, one fork of it for each job.

    Args:
        requests: Where lists of jobs arrive; an empty one ends all there are.
        answers: Where the answer to each is sent.
        most: How many children work at a time.
        work: What a child does.
        lost: The answer where a child gave none: with its exit status, or None where
            there was no child, and the seconds that it took.
        seconds: How long a job may take.
    """

    def __init__(
        self,
        requests: IO[bytes],
        answers: IO[bytes],
        most: int,
        work: Callable[[Job], Answer],
        lost: Callable[[Job, int | None, float], Answer],
        seconds: float,
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._most = most
        self._work = work
        self._lost = lost
        self._seconds = seconds
        self._waiting: deque[Job] = deque()
        self._children: dict[int, _Child[Job]] = {}
        self._selector = selectors.DefaultSelector()
        self._arrived = bytearray()

    def serve(self) -> None:
        """Until the other side closes the pipe; no child is left then."""
        try:
            self._serve()
        finally:
            self._end_children()

    def _serve(self) -> None:
        source = self._requests.fileno()
        self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fd == source:
                    if not self._accept():
                        return
                else:
                    self._read(self._children[key.fd])
            self._end_late_ones()
            while self._waiting and len(self._children) < self._most:
                self._start(self._waiting.popleft())

    def _accept(self) -> bool:
        """Take what has arrived."""
        data = os.read(self._requests.fileno(), 1 << 16)
        self._arrived += data
        while (jobs := taken(self._arrived)) is not None:
            if not jobs:
                self._give_up()
            self._waiting.extend(jobs)
        return bool(data)

    def _give_up(self) -> None:
        """Answer what waits, and end what has begun, which is answered then."""
        for job in self._waiting:
            send(self._answers, self._lost(job, None, 0.0))
        self._waiting.clear()
        self._end_children()

    def _end_children(self) -> None:
        for child in self._children.values():
            os.kill(child.process, signal.SIGKILL)

    def _start(self, job: Job) -> None:
        end, other = os.pipe()
        process = os.fork()
        if not process:
            self._child(job, other)
        os.close(other)
        self._children[end] = _Child(job, process, end, time.monotonic())
        self._selector.register(end, selectors.EVENT_READ)

    def _child(self, job: Job, pipe: int) -> None:
        """Work in a forked process, and end it without the parent's clean-up."""
        status = 1
        try:
            # The parent reads to the end and does not need the length.
            data = framed(self._work(job))[HEADER:]
            with os.fdopen(pipe, "wb") as out:
                out.write(data)
            status = 0
        finally:
            os._exit(status)

    def _read(self, child: _Child[Job]) -> None:
        data = os.read(child.pipe, 1 << 16)
        if data:
            child.data += data
            return
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        del self._children[child.pipe]
        _, status = os.waitpid(child.process, 0)
        if child.data and not status:
            send(self._answers, pickle.loads(bytes(child.data)))
            return
        seconds = time.monotonic() - child.started
        ended = os.waitstatus_to_exitcode(status)
        send(self._answers, self._lost(child.job, ended, seconds))

    def _end_late_ones(self) -> None:
        for child in self._children.values():
            if time.monotonic() - child.started > self._seconds:
                os.kill(child.process, signal.SIGKILL)
