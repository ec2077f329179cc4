"""Times candidates on the GPU and keeps the fastest that is right.

Every candidate runs in a process apart, so one that crashes or hangs costs itself
only.  Outputs are held to the program's in float64, on several draws; times are those
of `timing`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from mirage_dsl.backends.triton.pickling import dumps
from mirage_dsl.ir.graph import KernelGraph

SECONDS_EACH = 60.0
"""How long one candidate may take, compilation included."""
START_SECONDS = 120.0
HEADER = 8
COMMAND = ("-m", "mirage_dsl.backends.triton.tune_worker")
"""What Python runs as the worker."""


@dataclass(frozen=True)
class InputSpec:
    """A tensor to draw: shape, strides in elements, and the scale of its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    scale: float = 1.0


@dataclass(frozen=True)
class Task:
    """What a worker needs before it can judge candidates."""

    program: KernelGraph
    inputs: tuple[InputSpec, ...]
    draws: int = 2


@dataclass(frozen=True)
class Timing:
    """What became of one candidate.

    Attributes:
        index: Its position among the candidates.
        microseconds: Time of a call, or None where it was not timed.
        error: Largest error relative to the largest element, or None.
        reason: Why it is out; empty for a good one.
    """

    index: int
    microseconds: float | None = None
    error: float | None = None
    reason: str = ""


def tune(
    task: Task,
    candidates: Sequence[KernelGraph],
    *,
    seconds_each: float = SECONDS_EACH,
    progress: Callable[[Timing], None] | None = None,
) -> list[Timing]:
    """Time all candidates; those that are right come first, the fastest ahead.

    Args:
        task: The program that they must equal, and the inputs.
        candidates: μGraphs of one program, of different structure or schedule.
        seconds_each: After so long without an answer a candidate is given up.
        progress: Told of each result.
    """
    found: list[Timing] = []
    worker = _Worker(task)
    try:
        for index, candidate in enumerate(candidates):
            timing = replace(worker.judge(candidate, seconds_each), index=index)
            found.append(timing)
            if progress is not None:
                progress(timing)
    finally:
        worker.stop()
    return sorted(found, key=_rank)


def _rank(timing: Timing) -> tuple[bool, float]:
    good = not timing.reason and timing.microseconds is not None
    return not good, timing.microseconds or float("inf")


class _Worker:
    """A process that judges candidates; started anew after it died."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, candidate: KernelGraph, seconds: float) -> Timing:
        try:
            if self._process is None:
                self._start()
            return cast("Timing", self._ask(candidate, seconds))
        except (EOFError, BrokenPipeError):
            code = self.stop()
            return Timing(0, reason=f"the process that ran it ended with {code}")
        except TimeoutError:
            self.stop()
            return Timing(0, reason=f"no answer within {seconds:g} s")

    def _start(self) -> None:
        root = str(Path(__file__).resolve().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._ask(self._task, START_SECONDS)

    def _ask(self, request: object, seconds: float) -> object:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with _deadline(self._process, seconds) as expired:
            try:
                send(self._process.stdin, request)
                return receive(self._process.stdout)
            except (EOFError, BrokenPipeError):
                if expired.is_set():
                    raise TimeoutError from None
                raise

    def stop(self) -> int | None:
        """End the process; its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        process.kill()
        return process.wait()


@contextmanager
def _deadline(
    process: subprocess.Popen[bytes], seconds: float
) -> Generator[threading.Event, None, None]:
    """Kill the process, and set the event, if the block takes longer."""
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()


def send(pipe: IO[bytes], value: object) -> None:
    """Write one value."""
    data = dumps(value)
    pipe.write(len(data).to_bytes(HEADER, "little") + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> object:
    """Read one value.

    Raises:
        EOFError: The other side is gone.
    """
    header = pipe.read(HEADER)
    if len(header) < HEADER:
        raise EOFError
    return pickle.loads(pipe.read(int.from_bytes(header, "little")))


__all__ = ["InputSpec", "Task", "Timing", "receive", "send", "tune"]
