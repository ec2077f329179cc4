"""Processes that help: values through pipes to them, and waiting for the next task."""

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
from typing import IO, Any

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


__all__ = [
    "HEADER",
    "SPARES",
    "Helper",
    "Spares",
    "arriving",
    "framed",
    "own_channel",
    "receive",
    "send",
    "taken",
]
