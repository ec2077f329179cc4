"""Times candidates on the GPU, in processes that help, and tells which are right.

Two processes help: one compiles and screens many candidates at a time, one runs what
passes.  What they are told and say goes through pipes.  A candidate that crashes or
hangs either of them costs itself only.  Outputs are held to the program's in float64,
on several draws; times are those of `mirage_dsl.tune.timing`.  Processes that are well
wait for the next program.  The workers' sides are `trial_worker` and `compile_worker`.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from mirage_dsl.backends.base import DEFAULT_BACKEND
from mirage_dsl.core.processes import SPARES, Helper
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.backends.base import Report


# -- What is said ----------------------------------------------------------------------


@dataclass(frozen=True)
class InputSpec:
    """A tensor to draw: shape, strides in elements, and the scale of its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    scale: float = 1.0


@dataclass(frozen=True)
class Tf32:
    """What PyTorch may round to TF32 of f32, before it multiplies.

    Attributes:
        convolutions: Operands of convolutions; so it is unless somebody says otherwise.
        products: Those of matrix products.
    """

    convolutions: bool = True
    products: bool = False


@dataclass(frozen=True)
class Task:
    """What a worker needs before it can judge candidates.

    Attributes:
        program: What they compute.
        inputs: The tensors to draw.
        draws: How many sets of them.
        device: The number of the GPU.
        backend: What runs them.
        tf32: How PyTorch multiplies in the process that asks.
    """

    program: KernelGraph
    inputs: tuple[InputSpec, ...]
    draws: int = 3
    device: int = 0
    backend: str = DEFAULT_BACKEND
    tf32: Tf32 = Tf32()


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
        kernels: The numbers of its own kernels that are to be compiled, ahead of the
            rest; none for all.
    """

    index: int
    graph: KernelGraph
    target: str
    screened: bool = True
    together: tuple[int, ...] = ()
    backend: str = DEFAULT_BACKEND
    kernels: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """What became of a job; no reason means that it is worth timing."""

    index: int
    reason: str
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


# -- The process that runs candidates --------------------------------------------------

WORKER = ("-m", "mirage_dsl.tune.trial_worker")
"""What Python runs."""


class TrialProcess:
    """Holds one program; started anew after it died.

    Args:
        task: The program and its inputs.

    Attributes:
        ready_at: The reading of `time.monotonic()` at which the process that runs now
            could have begun to judge, once that is known.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._helper: Helper | None = None
        self.ready_at: float | None = None

    def start(self) -> None:
        """Begin, without waiting until it is ready."""
        if self._helper is not None:
            return
        self._helper = SPARES.take(WORKER)
        self.ready_at = None
        with suppress(BrokenPipeError):
            self._helper.send(self._task)

    def prepare(self, seconds: float) -> str:
        """Wait until it can judge; why it cannot, or nothing."""
        self.start()
        if self.ready_at is not None:
            return ""
        assert self._helper is not None
        try:
            with _deadline(self._helper, seconds):
                self.ready_at = self._helper.receive()
        except EOFError:
            return self._ended()
        except TimeoutError:
            self.stop()
            return f"the process that runs it was not ready within {seconds:.1f} s"
        return ""

    def judge(self, trial: Trial, seconds: float) -> Timing:
        """Run one candidate in the process, which is ready.

        Raises:
            TimeoutError: It took longer; the process is gone.
        """
        started = time.monotonic()
        try:
            timing: Timing = self._answer(trial, seconds)
        except (EOFError, BrokenPipeError):
            return Timing(0, reason=self._ended())
        return replace(timing, seconds=time.monotonic() - started)

    def finals(self, final: Final, seconds: float) -> list[Timing] | None:
        """Run candidates in turns in the process, which is ready; None if that fails.

        Raises:
            TimeoutError: It took longer; the process is gone.
        """
        try:
            return self._answer(final, seconds)
        except (EOFError, BrokenPipeError):
            self.stop()
            return None

    def _answer(self, request: Trial | Final, seconds: float) -> Any:
        assert self._helper is not None
        assert self.ready_at is not None
        try:
            with _deadline(self._helper, seconds):
                self._helper.send(request)
                return self._helper.receive()
        except TimeoutError:
            self.stop()
            raise

    def _ended(self) -> str:
        return f"the process that ran it ended with {self.stop()}"

    def rest(self) -> None:
        """Leave the process to the next program, if it waits for requests."""
        helper, self._helper = self._helper, None
        if helper is None:
            return
        if self.ready_at is not None and helper.alive:
            with suppress(BrokenPipeError):
                helper.send(None)
            SPARES.keep(WORKER, helper)
        else:
            helper.stop()
        self.ready_at = None

    def stop(self) -> int | None:
        """End the process; its exit status."""
        helper, self._helper = self._helper, None
        self.ready_at = None
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
    timer.daemon = True
    timer.start()
    try:
        yield
    except (EOFError, BrokenPipeError):
        if expired.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


# -- Measuring -------------------------------------------------------------------------

SECONDS_EACH = 20.0
"""How long one candidate may take to be run and timed."""
GRACE = 1.0
"""A candidate that is being timed at the deadline is given up after so many seconds."""
START_SECONDS = 120.0
SETTLING = 1.0
"""How long the process that compiles may take to give up what it has begun."""
AHEAD = -1
"""The index of a job whose answer nobody waits for."""
FEW_KERNELS = 8
"""So many kernels of one candidate are compiled by one process in time."""
COMPILER = ("-m", "mirage_dsl.tune.compile_worker")
"""What Python runs, with the number of compilations at a time behind it."""


def compiler(jobs: int | None = None) -> tuple[str, ...]:
    """The command for so many compilations at a time; as there are cores but one."""
    return *COMPILER, str(jobs or max(1, len(os.sched_getaffinity(0)) - 1))


NO_TIME = "the time for tuning was over"
TURNS_SHARE = 0.7
"""Of the time that is left, the share after which no more turns begin."""
SLOW = 2.0
"""Beyond this multiple of the best time a candidate is not timed precisely."""


@dataclass
class Marks:
    """When things happened, as readings of `time.monotonic()`.

    Attributes:
        ready: The process that runs candidates had its inputs and the right outputs.
        compiled: The first candidate was compiled.
        first: The first candidate was timed.
        last: The last one was.
        slowest: Seconds that the slowest candidate took to be run and timed.
    """

    ready: float | None = None
    compiled: float | None = None
    first: float | None = None
    last: float | None = None
    slowest: float = 0.0

    def timed(self, seconds: float) -> None:
        """Note that a candidate was run."""
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.slowest = max(self.slowest, seconds)


class Tuner:
    """The two processes, at work on one program; to be used in a `with` block.

    Args:
        task: The program that candidates must equal, and the inputs.
        target: What to compile for, such as `sm_90`.
        deadline: `time.monotonic()` after which nothing is started, and what has been
            started ends soon.
        jobs: Compilations at a time.
        slow: Beyond this multiple of the best time a rough figure will do.
        screened: Leave out what the compiler's report says is not worth timing.
        turn: Held while a candidate runs, by tuners that share a GPU.
        form: What a candidate is compiled and run as, where it is not as it is.

    Attributes:
        deadline: It may be set while nothing is timed.
        reserve: Seconds before the deadline that are left to `finals`.
        least: Seconds that there are at least once the processes are ready.
        seconds_each: After so long without an answer a candidate is given up.
        together: Tells how many blocks of each kernel of a candidate have to share a
            multiprocessor (`CompileJob`).
        reports: What the compiler said of the kernels of each candidate.
        marks: When things happened.
    """

    def __init__(
        self,
        task: Task,
        target: str,
        *,
        deadline: float = float("inf"),
        jobs: int | None = None,
        slow: float = SLOW,
        screened: bool = True,
        turn: AbstractContextManager[object] | None = None,
        form: Callable[[KernelGraph], KernelGraph] | None = None,
    ) -> None:
        self.deadline = deadline
        self.reserve = 0.0
        self.least = 0.0
        self.seconds_each = SECONDS_EACH
        self.together: Callable[[KernelGraph], tuple[int, ...]] = _any_number
        self.reports: dict[KernelGraph, tuple[Report, ...]] = {}
        self.marks = Marks()
        self._judge = TrialProcess(task)
        self._backend = task.backend
        self._target = target
        self._slow = slow
        self._screened = screened
        self._turn = turn or nullcontext()
        self._form = form or _as_it_is
        self._best = float("inf")
        self._compiler: Helper | None = None
        self._settled = True
        self._command = compiler(jobs)

    def __enter__(self) -> Self:
        """Start the processes, without waiting until they are ready."""
        self._judge.start()
        try:
            self._compiler = SPARES.take(self._command)
        except BaseException:
            self._judge.stop()
            raise
        self._settled = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._judge.rest()
        else:
            self._judge.stop()
        compiler, self._compiler = self._compiler, None
        if compiler is None:
            return
        if kind is None and self._settled and compiler.alive:
            SPARES.keep(self._command, compiler)
        else:
            compiler.stop()

    @property
    def late(self) -> bool:
        """Whether the time for candidates is over."""
        return self._left <= 0

    @property
    def _left(self) -> float:
        return self.deadline - self.reserve - time.monotonic()

    def times(
        self,
        candidates: Sequence[KernelGraph],
        *,
        replays: int = 5,
        progress: Callable[[Timing], None] | None = None,
    ) -> list[Timing]:
        """TrialWorker candidates, in their order; those that time forbids say so.

        Args:
            candidates: μGraphs of one program, of different structure or schedule.
            replays: How often each chain of calls is repeated.
            progress: Told of each result, as it is known.
        """
        found: dict[int, Timing] = {}
        for index, reason in self._compiled(candidates):
            reason = reason or self._prepared()
            if reason:
                timing = Timing(index, reason=reason)
            else:
                graph = self._form(candidates[index])
                trial = Trial(graph, self._slow * self._best, replays)
                with self._turn:
                    timing = self._judged(trial)
            found[index] = replace(timing, index=index)
            if not timing.reason and timing.microseconds is not None:
                self._best = min(self._best, timing.microseconds)
            if progress is not None:
                progress(found[index])
        return [found[i] for i in range(len(candidates))]

    def finals(self, candidates: Sequence[KernelGraph]) -> list[Timing] | None:
        """Time candidates that have passed once more, in turns; None without time.

        No process is started for it.
        """
        left = self.deadline - time.monotonic()
        if left <= 0 or self._judge.ready_at is None:
            return None
        left = min(left, self.seconds_each * len(candidates))
        final = Final(tuple(map(self._form, candidates)), TURNS_SHARE * left)
        try:
            found = self._judge.finals(final, left)
        except TimeoutError:
            return None
        if not found:
            return None
        return [replace(t, index=i) for i, t in enumerate(found)]

    def _judged(self, trial: Trial) -> Timing:
        """What became of one candidate, which may be that the time was over."""
        if self.late:
            return Timing(0, reason=NO_TIME)
        seconds = min(self.seconds_each, self._left + GRACE)
        try:
            timing = self._judge.judge(trial, seconds)
        except TimeoutError:
            if self.late:
                return Timing(0, reason=NO_TIME)
            return Timing(0, reason=f"no answer within {seconds:.3g} s")
        self.marks.timed(timing.seconds)
        return timing

    def _prepared(self) -> str:
        """Wait for the process that runs candidates; why it is not there, or nothing.

        The first one is waited for in any case, a later one in the time that is left.
        """
        first = self.marks.ready is None
        if not first and self.late:
            return NO_TIME
        seconds = START_SECONDS if first else min(START_SECONDS, self._left + GRACE)
        reason = self._judge.prepare(seconds)
        if first:
            self.marks.ready = self._judge.ready_at or time.monotonic()
            self.deadline = max(self.deadline, time.monotonic() + self.least)
        return reason

    def _compiled(
        self, candidates: Sequence[KernelGraph]
    ) -> Generator[tuple[int, str], None, None]:
        """Positions as they are compiled, each with a reason if it is out."""
        assert self._compiler is not None
        left = set(range(len(candidates)))
        jobs = [
            CompileJob(
                i,
                self._form(c),
                self._target,
                self._screened,
                self.together(c),
                self._backend,
            )
            for i, c in enumerate(candidates)
            if c.blocks
        ]
        answers = _Answers(self._compiler, [*self._ahead(jobs), *jobs])
        # Library kernels are there already.
        for index in sorted(left - {j.index for j in jobs}):
            left.remove(index)
            yield index, ""
        while left:
            answer = answers.next(min(max(self._left, 0.0), START_SECONDS))
            if answer is None:
                break
            if answer.index == AHEAD:
                continue
            left.discard(answer.index)
            self.marks.compiled = self.marks.compiled or time.monotonic()
            self.reports[candidates[answer.index]] = answer.reports
            yield answer.index, answer.reason
        self._settled = answers.settle()
        reason = NO_TIME if self.late else "the process that compiles ended"
        for index in sorted(left):
            yield index, reason

    def _ahead(self, jobs: Sequence[CompileJob]) -> list[CompileJob]:
        """What compiles the kernels of the first candidate of all, if it has many.

        All processes together, that it may be timed, and run, while there is time.
        """
        if self.reports or not jobs or len(jobs[0].graph.blocks) <= FEW_KERNELS:
            return []
        count, processes = len(jobs[0].graph.blocks), int(self._command[-1])
        each = math.ceil(count / processes)
        parts = (tuple(range(count))[at : at + each] for at in range(0, count, each))
        return [
            replace(jobs[0], index=AHEAD, together=(), kernels=part) for part in parts
        ]


def _as_it_is(graph: KernelGraph) -> KernelGraph:
    return graph


def _any_number(_: KernelGraph) -> tuple[int, ...]:
    """Nothing is known of what has to run together."""
    return ()


class _Answers:
    """The compiler's answers to some jobs, as they come.

    Args:
        compiler: The process.
        jobs: What it is asked to compile.
    """

    def __init__(self, compiler: Helper, jobs: Sequence[CompileJob]) -> None:
        self._compiler = compiler
        self._arrived: queue.SimpleQueue[Compiled | None] = queue.SimpleQueue()
        self._listener = threading.Thread(
            target=self._listen, args=(len(jobs),), daemon=True
        )
        if jobs:
            with suppress(BrokenPipeError):
                compiler.send(list(jobs))
        self._listener.start()

    def _listen(self, count: int) -> None:
        with suppress(EOFError, ValueError):
            for _ in range(count):
                self._arrived.put(self._compiler.receive())
        self._arrived.put(None)

    def next(self, seconds: float) -> Compiled | None:
        """The next one; None after the last one, or so many seconds."""
        try:
            return self._arrived.get(timeout=seconds)
        except queue.Empty:
            return None

    def settle(self) -> bool:
        """Let nothing more be compiled; whether the process is ready for other jobs."""
        if self._listener.is_alive():
            with suppress(BrokenPipeError):
                self._compiler.send([])
            self._listener.join(SETTLING)
        return not self._listener.is_alive()
