"""Processes that help: what they are told and say, through pipes, and between tasks."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from mirage_dsl.backends.base import DEFAULT_BACKEND
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Report


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


class Helper:
    """A process of this package, with pipes to it.

    It leads a group of its own, so that its children end with it: they hold the pipes,
    too, which cannot be closed before.

    Args:
        command: What Python runs.
    """

    def __init__(self, command: Sequence[str]) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

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

    def take(self, command: Sequence[str]) -> Helper:
        """A process that runs a command: one that waits, or else a new one."""
        with self._lock:
            helper, timer = self._waiting.pop(_kind(command), (None, None))
        if timer is not None:
            timer.cancel()
        if helper is not None:
            if helper.alive:
                return helper
            helper.stop()
        return Helper(command)

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


# -- What is said ----------------------------------------------------------------------


@dataclass(frozen=True)
class InputSpec:
    """A tensor to draw: shape, strides in elements, and the scale of its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    scale: float = 1.0


@dataclass(frozen=True)
class Task:
    """What a worker needs before it can judge candidates.

    Attributes:
        program: What they compute.
        inputs: The tensors to draw.
        draws: How many sets of them.
        device: The number of the GPU.
        backend: What runs them.
    """

    program: KernelGraph
    inputs: tuple[InputSpec, ...]
    draws: int = 3
    device: int = 0
    backend: str = DEFAULT_BACKEND


@dataclass(frozen=True)
class CompileJob:
    """A candidate to compile.

    Attributes:
        index: Its position among the candidates.
        graph: The candidate.
        target: Such as `sm_90`.
        screened: Whether to leave out what is not worth timing.
        together: For each of its own kernels, how many blocks have to share a
            multiprocessor for all to run at once; 0, or nothing, where they need not.
        backend: What compiles it.
    """

    index: int
    graph: KernelGraph
    target: str
    screened: bool = True
    together: tuple[int, ...] = ()
    backend: str = DEFAULT_BACKEND


@dataclass(frozen=True)
class Compiled:
    """What became of a job; no reason means that it is worth timing."""

    index: int
    reason: str
    seconds: float
    reports: tuple[Report, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A request to judge one candidate.

    Attributes:
        graph: The candidate.
        limit: µs beyond which a rough time will do.
        replays: How often the chain of calls is repeated.
    """

    graph: KernelGraph
    limit: float
    replays: int


@dataclass(frozen=True)
class Final:
    """A request to time candidates that have passed once more, in turns.

    Attributes:
        graphs: The candidates.
        seconds: After so long no more turns begin.
    """

    graphs: tuple[KernelGraph, ...]
    seconds: float


@dataclass(frozen=True)
class Timing:
    """What became of one candidate.

    Attributes:
        index: Its position among the candidates.
        microseconds: Time of a call, or None where it was not timed.
        error: Largest error relative to the largest element, or None.
        reason: Why it is out; empty for a good one.
        seconds: What it took to judge.
    """

    index: int
    microseconds: float | None = None
    error: float | None = None
    reason: str = ""
    seconds: float = 0.0
