"""Values through pipes, to and from processes that this one has started."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

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
        root = str(Path(__file__).resolve().parents[3])
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


__all__ = [
    "HEADER",
    "Helper",
    "arriving",
    "framed",
    "own_channel",
    "receive",
    "send",
    "taken",
]
