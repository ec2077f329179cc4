"""The process that compiles candidates for `tune`: a child of its own for each.

It loads PyTorch and the backend once and never touches the GPU, so that forking is safe
and cheap; a compiler that crashes or hangs costs one candidate.  What a compiler works
out once in a process, the children inherit.  What is compiled stays in the backend's
cache, where the process that times finds it.
"""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from mirage_dsl.backends.base import DEFAULT_BACKEND, Report, backend_named
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.tune.measure import (
    HEADER,
    Compiled,
    CompileJob,
    framed,
    own_channel,
    send,
    taken,
)

SECONDS_EACH = 40.0
"""How long one candidate may take."""
GIVEN_UP = "it was not compiled"
YIELDING = 5
"""What is added to the niceness: the process that times, and a search that still runs,
come first."""


@dataclass
class _Child:
    job: CompileJob
    process: int
    pipe: int
    started: float
    data: bytearray = field(default_factory=bytearray)


def compiled(job: CompileJob) -> Compiled:
    """Compile and screen one candidate."""
    start = time.perf_counter()
    reports: Sequence[Report] = ()
    try:
        reports = backend_named(job.backend).report(job.graph, job.target)
        together = job.together or (0,) * len(reports)
        pairs = zip(reports, together, strict=True)
        reasons = [r.rejection(least) for r, least in pairs if job.screened]
        reason = next((r for r in reasons if r is not None), "")
    except Exception as failure:
        reason = f"{type(failure).__name__}: {failure}"[:500]
    seconds = time.perf_counter() - start
    return Compiled(job.index, reason, seconds, tuple(reports))


class Server:
    """Keeps some children at work."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes], most: int) -> None:
        self._requests = requests
        self._answers = answers
        self._most = most
        self._waiting: deque[CompileJob] = deque()
        self._children: dict[int, _Child] = {}
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
        """Take what has arrived: lists of jobs; an empty one ends all there are."""
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
            send(self._answers, Compiled(job.index, GIVEN_UP, 0.0))
        self._waiting.clear()
        self._end_children()

    def _end_children(self) -> None:
        for child in self._children.values():
            os.kill(child.process, signal.SIGKILL)

    def _start(self, job: CompileJob) -> None:
        end, other = os.pipe()
        process = os.fork()
        if not process:
            _child(job, other)
        os.close(other)
        self._children[end] = _Child(job, process, end, time.monotonic())
        self._selector.register(end, selectors.EVENT_READ)

    def _read(self, child: _Child) -> None:
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
        reason = f"the compiler ended with {os.waitstatus_to_exitcode(status)}"
        send(self._answers, Compiled(child.job.index, reason, seconds))

    def _end_late_ones(self) -> None:
        for child in self._children.values():
            if time.monotonic() - child.started > SECONDS_EACH:
                os.kill(child.process, signal.SIGKILL)


def _child(job: CompileJob, pipe: int) -> None:
    """Compile in a forked process, and end it without the parent's clean-up."""
    status = 1
    try:
        # The parent reads to the end and does not need the length.
        data = framed(compiled(job))[HEADER:]
        with os.fdopen(pipe, "wb") as out:
            out.write(data)
        status = 0
    finally:
        os._exit(status)


def main(arguments: list[Any]) -> None:
    """Serve; the argument is how many children may run at a time."""
    requests, answers = own_channel()
    os.nice(YIELDING)
    _load()
    Server(requests, answers, int(arguments[0])).serve()


def _load() -> None:
    """What every child needs.

    Triton's hash of its own files, which names each entry of its cache, takes as long
    as compiling a candidate, or longer; children find it done.
    """
    backend = backend_named(DEFAULT_BACKEND)
    backend.load()
    with suppress(MirageError):
        backend.report(_smallest())


def _smallest() -> KernelGraph:
    """A kernel that takes little to compile."""
    g = KernelBuilder("smallest", n=16)
    x = g.input("x", f32, "n")
    with g.block(grid={"n": 16}) as b:
        out = b.store(b.exp(b.load(x, "n/grid")), "n/grid")
    return g.returns(out).build()


if __name__ == "__main__":
    main(sys.argv[1:])
