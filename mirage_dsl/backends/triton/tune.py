"""Times candidates on the GPU and tells which are right, and how fast.

Two processes help: one compiles and screens many candidates at a time, one runs what
passes.  A candidate that crashes or hangs either of them costs itself only.  Outputs
are held to the program's in float64, on several draws; times are those of
`mirage_dsl.timing`.  Processes that are well wait for the next program.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mirage_dsl.backends.triton.channel import Helper
from mirage_dsl.backends.triton.spare import SPARES
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.backends.triton.screen import KernelReport

SECONDS_EACH = 20.0
"""How long one candidate may take to be run and timed."""
START_SECONDS = 120.0
JUDGE = ("-m", "mirage_dsl.backends.triton.tune_worker")
COMPILER = ("-m", "mirage_dsl.backends.triton.compile_worker")
"""What Python runs."""

NO_TIME = "the time for tuning was over"
SLOW = 2.0
"""Beyond this multiple of the best time a candidate is not timed precisely."""


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
    device: int = 0


@dataclass(frozen=True)
class Job:
    """A candidate to compile for a target such as `sm_90`, and whether to screen it."""

    index: int
    graph: KernelGraph
    target: str
    screened: bool = True


@dataclass(frozen=True)
class Compiled:
    """What became of a job; no reason means that it is worth timing."""

    index: int
    reason: str
    seconds: float
    reports: tuple[KernelReport, ...] = ()


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


class Tuner:
    """The two processes, at work on one program; to be used in a `with` block.

    Args:
        task: The program that candidates must equal, and the inputs.
        target: What to compile for, such as `sm_90`.
        deadline: `time.monotonic()` after which nothing is started.
        seconds_each: After so long without an answer a candidate is given up.
        jobs: Compilations at a time.
        slow: Beyond this multiple of the best time a rough figure will do.
        screened: Leave out what the compiler's report says is not worth timing.
        turn: Held while a candidate runs, by tuners that share a GPU.

    Attributes:
        reports: What the compiler said of the kernels of each candidate.
    """

    def __init__(
        self,
        task: Task,
        target: str,
        *,
        deadline: float = float("inf"),
        seconds_each: float = SECONDS_EACH,
        jobs: int | None = None,
        slow: float = SLOW,
        screened: bool = True,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._judge = _Judge(task)
        self._target = target
        self._deadline = deadline
        self._seconds_each = seconds_each
        self._slow = slow
        self._screened = screened
        self._turn = turn or nullcontext()
        self.reports: dict[KernelGraph, tuple[KernelReport, ...]] = {}
        self._best = float("inf")
        self._compiler: Helper | None = None
        self._owed = 0
        count = jobs or max(1, len(os.sched_getaffinity(0)) - 1)
        self._command = (*COMPILER, str(count))

    def __enter__(self) -> Self:
        self._judge.start()
        self._compiler = SPARES.take(self._command)
        self._owed = 0
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._judge.rest()
        else:
            self._judge.stop()
        if self._compiler is None:
            return
        if kind is None and not self._owed:
            SPARES.keep(self._command, self._compiler)
        else:
            self._compiler.stop()

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._deadline

    def times(
        self,
        candidates: Sequence[KernelGraph],
        *,
        replays: int = 5,
        progress: Callable[[Timing], None] | None = None,
    ) -> list[Timing]:
        """Judge candidates, in their order; those that time forbids say so.

        Args:
            candidates: μGraphs of one program, of different structure or schedule.
            replays: How often each chain of calls is repeated.
            progress: Told of each result, as it is known.
        """
        found: dict[int, Timing] = {}
        for index, reason in self._compiled(candidates):
            if reason:
                found[index] = Timing(index, reason=reason)
            elif self.late:
                found[index] = Timing(index, reason=NO_TIME)
            else:
                trial = Trial(candidates[index], self._slow * self._best, replays)
                with self._turn:
                    timing = self._judge.judge(trial, self._seconds_each)
                found[index] = replace(timing, index=index)
                if not timing.reason and timing.microseconds is not None:
                    self._best = min(self._best, timing.microseconds)
            if progress is not None:
                progress(found[index])
        return [found[i] for i in range(len(candidates))]

    def again(self, candidate: KernelGraph, *, replays: int) -> Timing:
        """Judge one candidate that has passed, at greater length."""
        trial = Trial(candidate, float("inf"), replays)
        return self._judge.judge(trial, self._seconds_each)

    def _compiled(
        self, candidates: Sequence[KernelGraph]
    ) -> Generator[tuple[int, str], None, None]:
        """Positions as they are compiled, each with a reason if it is out."""
        assert self._compiler is not None
        left = set(range(len(candidates)))
        jobs = [
            Job(i, c, self._target, self._screened)
            for i, c in enumerate(candidates)
            if c.blocks
        ]
        # Library kernels are there already.
        for index in sorted(left - {j.index for j in jobs}):
            left.remove(index)
            yield index, ""
        self._owed += len(jobs)
        with _answers(self._compiler, jobs) as answers:
            while left:
                seconds = max(self._deadline - time.monotonic(), 0.0)
                try:
                    answer = answers.get(timeout=min(seconds, START_SECONDS))
                except queue.Empty:
                    break
                if answer is None:
                    break
                self._owed -= 1
                left.discard(answer.index)
                self.reports[candidates[answer.index]] = answer.reports
                yield answer.index, answer.reason
        reason = NO_TIME if self.late else "the process that compiles ended"
        for index in sorted(left):
            yield index, reason


@contextmanager
def _answers(
    compiler: Helper, jobs: Sequence[Any]
) -> Generator[queue.SimpleQueue[Any], None, None]:
    """A queue that the compiler's answers to some jobs go to; None is its end."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, ValueError):
            for _ in jobs:
                answers.put(compiler.receive())
        answers.put(None)

    if not jobs:
        answers.put(None)
        yield answers
        return
    with suppress(BrokenPipeError):
        compiler.send(list(jobs))
    threading.Thread(target=listen, daemon=True).start()
    yield answers


class _Judge:
    """The process that runs candidates; started anew after it died."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._helper: Helper | None = None
        self._ready = False

    def start(self) -> None:
        """Begin, without waiting until it is ready."""
        self._helper = SPARES.take(JUDGE)
        self._ready = False
        with suppress(BrokenPipeError):
            self._helper.send(self._task)

    def judge(self, trial: Trial, seconds: float) -> Timing:
        """Run one candidate."""
        if self._helper is None:
            self.start()
        assert self._helper is not None
        started = time.monotonic()
        try:
            if not self._ready:
                with _deadline(self._helper, START_SECONDS):
                    self._helper.receive()
                self._ready = True
            started = time.monotonic()
            with _deadline(self._helper, seconds):
                self._helper.send(trial)
                timing: Timing = self._helper.receive()
        except (EOFError, BrokenPipeError):
            status = self.stop()
            reason = f"the process that ran it ended with {status}"
            return Timing(0, reason=reason)
        except TimeoutError:
            self.stop()
            return Timing(0, reason=f"no answer within {seconds:g} s")
        return replace(timing, seconds=time.monotonic() - started)

    def rest(self) -> None:
        """Leave the process to the next program, if it waits for requests."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        if self._ready and helper.alive:
            with suppress(BrokenPipeError):
                helper.send(None)
            SPARES.keep(JUDGE, helper)
        else:
            helper.stop()

    def stop(self) -> int | None:
        """End the process; its exit status."""
        helper, self._helper = self._helper, None
        return None if helper is None else helper.stop()


@contextmanager
def _deadline(helper: Helper, seconds: float) -> Generator[None, None, None]:
    """Kill the process if the block takes longer.

    Raises:
        TimeoutError: It did.
    """
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        helper.kill()

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield
    except (EOFError, BrokenPipeError):
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


__all__ = [
    "NO_TIME",
    "Compiled",
    "InputSpec",
    "Job",
    "Task",
    "Timing",
    "Trial",
    "Tuner",
]
