"""The process that compiles candidates for `tune`: a child of its own for each.

It loads PyTorch and the backend once and never touches the GPU, so that forking is safe
and cheap; a compiler that crashes or hangs costs one candidate.  What a compiler works
out once in a process, the children inherit.  What is compiled stays in the backend's
cache, where the process that times finds it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mirage_dsl.backends.base import DEFAULT_BACKEND, Report, backend_named
from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.processes import ForkServer, own_channel
from mirage_dsl.core.types import f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.tune.measure import Compiled, CompileJob

SECONDS_EACH = 40.0
"""How long one candidate may take."""
SPREAD = 5
"""How many kernels further on in its module each candidate's compilation begins."""
YIELDING = 5
"""What is added to the niceness: the process that times, and a search that still runs,
come first."""


def compiled(job: CompileJob) -> Compiled:
    """Compile and screen one candidate."""
    reports: Sequence[Report] = ()
    try:
        kernels = job.kernels or _in_turn(len(job.graph.blocks), job.index * SPREAD)
        reports = backend_named(job.backend).report(
            job.graph, job.target, kernels=kernels
        )
        together = job.together or (0,) * len(reports)
        pairs = zip(reports, together, strict=True)
        reasons = [r.rejection(least) for r, least in pairs if job.screened]
        reason = next((r for r in reasons if r is not None), "")
    except Exception as failure:
        reason = f"{type(failure).__name__}: {failure}"[:500]
    return Compiled(job.index, reason, tuple(reports))


def _in_turn(count: int, first: int) -> list[int]:
    """The numbers of all kernels of a candidate, from one of them on.

    Candidates share most kernels: each finds those that others began with.
    """
    return [(first + at) % count for at in range(count)]


def _lost(job: CompileJob, status: int | None, _: float) -> Compiled:
    """What is said of a candidate that no child has compiled."""
    ended = f"the compiler ended with {status}"
    reason = "it was not compiled" if status is None else ended
    return Compiled(job.index, reason)


def main(arguments: list[Any]) -> None:
    """Serve; the argument is how many children may run at a time."""
    requests, answers = own_channel()
    os.nice(YIELDING)
    _load()
    most = int(arguments[0])
    ForkServer(requests, answers, most, compiled, _lost, SECONDS_EACH).serve()


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
