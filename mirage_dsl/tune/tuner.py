"""The GPU has the last word: candidates are timed on it, and the timings are kept.

What is timed is up to `climb`.  The choice is made among the fastest, and verified at
its own sizes.  The processes that time start while the search still runs.

Timings are true of a GPU, its driver and the versions of PyTorch and of the backend, so
they are entries of their own in the cache, apart from the verified μGraphs.
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.hardware import DEFAULT, Hardware, architecture_of
from mirage_dsl.core.settings import (
    ASSERT_CACHE_HIT,
    BUDGET_SECONDS,
    DETERMINISTIC,
    DISALLOW_SEARCH,
)
from mirage_dsl.core.types import packed
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.analysis.waiting import launched_early
from mirage_dsl.ir.graph import Apply, Input, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.store.cache import Cache, Key
from mirage_dsl.tune.channel import InputSpec, Task
from mirage_dsl.tune.climb import ALLOWANCES, Climb, Progress
from mirage_dsl.tune.measure import Marks, Tuner
from mirage_dsl.tune.timings import (
    Measured,
    stored_timings,
    timings_document,
    timings_key,
)

_log = logging.getLogger("mirage_dsl.tuner")

_TURN = threading.RLock()
"""One program is tuned at a time: two would disturb each other's times."""


@dataclass(frozen=True)
class Tuned:
    """A search result in the order that a GPU gave it.

    Attributes:
        result: The fastest candidate that is right; then the others, those that were
            timed first.
        measured: What became of each, the fastest first, but ahead of all others those
            that were timed once more; nothing without a GPU.
    """

    result: SearchResult
    measured: tuple[Measured, ...] = ()


def has_gpu() -> bool:
    """Whether there is a GPU that PyTorch can use.

    PyTorch takes seconds to load, so without a driver it is not asked.
    """
    if sys.platform == "linux" and "torch" not in sys.modules:
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return False
    import torch

    return torch.cuda.is_available()


def search_seconds(effort: str) -> float | None:
    """How long a search may take that a tuning follows; None where none does.

    What the settings say goes before.
    """
    if effort == "none" or not has_gpu() or DETERMINISTIC.get():
        return None
    return BUDGET_SECONDS.get() or ALLOWANCES[effort].search


class Ahead:
    """A tuning that may follow a search; to be used in a `with` block around both.

    The tuning's seconds count from where the search begins, or from here if it takes no
    search.

    Args:
        program: What will be searched and tuned.
        untold: The effort, where nobody is told of the progress: a line says then how
            long it takes.
        overlap: Whether the first kernel of a call may start before what is ahead of it
            has ended: then so it is timed.
        backend: What compiles and runs the candidates.

    Attributes:
        overlap: As given.
        backend: As given.
        began: Reading of `time.monotonic()`.
        searched: The same, when the search had ended.
        chosen: The same, when the choice was made; None before.
    """

    def __init__(
        self,
        program: KernelGraph,
        untold: str | None = None,
        *,
        overlap: bool = False,
        backend: str = DEFAULT_BACKEND,
    ) -> None:
        self.overlap = overlap
        self.backend = backend
        self.began = self.searched = time.monotonic()
        self.chosen: float | None = None
        self._program = program
        self._untold = untold
        self._tuner: Tuner | None = None

    def start(self) -> None:
        """Start the processes if there will be something to time, without waiting.

        Called when a search begins: they load what they need, and draw inputs, at the
        same time.
        """
        self.began = time.monotonic()
        if _is_tuned(self.backend):
            self.tuner()

    def tuner(self) -> Tuner:
        """The processes; started unless they have been."""
        if self._tuner is None:
            if self._untold is not None:
                seconds = ALLOWANCES[self._untold].seconds
                text = "%s: finding kernels for this GPU, once; up to about %.0f s"
                _log.warning(text, self._program.name, seconds)
            form = partial(launched_early, first=True) if self.overlap else None
            task = replace(task_of(self._program), backend=self.backend)
            tuner = Tuner(task, _target(), form=form)
            self._tuner = tuner.__enter__()
        return self._tuner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        tuner, self._tuner = self._tuner, None
        if tuner is not None:
            tuner.__exit__(kind, *rest)
            if kind is None and self.chosen is not None:
                _log.info("%s: %s", self._program.name, self._account(tuner.marks))

    def _account(self, marks: Marks) -> str:
        """Where the time went, in seconds from the beginning of the search."""
        times = {
            "searched": self.searched,
            "inputs ready": marks.ready,
            "first compiled": marks.compiled,
            "first timed": marks.first,
            "last timed": marks.last,
            "chosen": self.chosen,
            "done": time.monotonic(),
        }
        texts = [
            f"{what} at {at - self.began:.1f}"
            for what, at in times.items()
            if at is not None
        ]
        return f"{', '.join(texts)} s; the slowest took {marks.slowest:.1f} s"


def tuned(
    result: SearchResult,
    *,
    effort: str = "quick",
    constraints: Constraints | None = None,
    hardware: Hardware = DEFAULT,
    use_cache: bool = True,
    progress: Progress | None = None,
    ahead: Ahead | None = None,
) -> Tuned:
    """Time candidates on the current GPU, also at other sizes than the estimate's best.

    The program by library kernels is timed too.  Without a GPU, where nothing could be
    timed, or where the choice has to be deterministic, the order stays as it is.

    Args:
        result: What a search found.
        effort: `quick` or `full`.
        constraints: Restrictions that other sizes must keep to.
        hardware: The GPU to estimate for.
        use_cache: Look in the cache first, and store what was measured.
        progress: Told how many candidates were timed, of how many so far, and the best
            time in µs.
        ahead: What began with the search.

    Raises:
        CacheError: A hit is demanded, and there is none.
    """
    begun = ahead or Ahead(result.program, None if progress else effort)
    if not _is_tuned(begun.backend):
        return Tuned(result)
    program, store = result.program, Cache()
    inputs = task_of(program).inputs
    key = timings_key(
        result, inputs, effort, constraints, hardware, begun.overlap, begun.backend
    )
    kept = stored_timings(store, key, program, hardware) if use_cache else None
    if kept is None:
        if ASSERT_CACHE_HIT.get():
            raise CacheError(_missing(store, key, program))
        if DISALLOW_SEARCH.get():
            _log.warning("%s: not timed: %s", program.name, DISALLOW_SEARCH.name)
            return Tuned(result)
        screened, told = hardware.screened(), progress or _ignore
        climb = Climb(result, ALLOWANCES[effort], constraints, screened, told)
        with begun if ahead is None else nullcontext():
            begun.searched = time.monotonic()
            with _TURN:
                # Another thread may have tuned it.
                kept = (
                    stored_timings(store, key, program, hardware) if use_cache else None
                )
                if kept is None:
                    kept = _climbed(climb, begun, hardware)
                    if use_cache and kept[0]:
                        store.store(key, timings_document(*kept, program))
    return _in_order(result, *kept)


def _is_tuned(backend: str) -> bool:
    """Whether candidates are timed: there is a GPU, and the backend's are for it."""
    return not DETERMINISTIC.get() and has_gpu() and backend_named(backend).tuned


def _in_order(
    result: SearchResult, found: Sequence[Candidate], measured: Sequence[Measured]
) -> Tuned:
    """The result with what was chosen first, as it is where nothing could be timed."""
    if not found:
        _log.warning("%s: no candidate could be timed", result.program.name)
        return Tuned(result, tuple(measured))
    return Tuned(replace(result, candidates=_merged(found, result)), tuple(measured))


def _climbed(
    climb: Climb, ahead: Ahead, hardware: Hardware
) -> tuple[list[Candidate], list[Measured]]:
    """The choice, and all that was timed; the wait for one's turn does not count."""
    waited = time.monotonic() - ahead.searched
    measured = climb.run(ahead.tuner(), ahead.began + waited)
    found = _chosen(measured, climb.result, hardware)
    ahead.chosen = time.monotonic()
    return found, measured


def _missing(store: Cache, key: Key, program: KernelGraph) -> str:
    return (
        f"timings of {program.name} are not in the cache, and {ASSERT_CACHE_HIT.name} "
        f"is set: {store.explain_miss(key)}\nCall it once on this GPU without that "
        f"variable.  Its key:\n{key}"
    )


def _ignore(stage: str, done: int, total: int, best: float | None) -> None:
    """The progress of nobody."""


def _target() -> str:
    import torch

    return architecture_of(torch.cuda.get_device_capability()).target


# -- The choice ------------------------------------------------------------------------


def _chosen(
    measured: Sequence[Measured], result: SearchResult, hardware: Hardware
) -> list[Candidate]:
    """The first candidate that has a certificate, or gets one; none if there is none.

    A certificate names the sizes that it was given for.
    """
    # Here, for it loads compiled code, which is for nothing where nothing is timed.
    from mirage_dsl.verify.verifier import verify

    known = {c.mugraph: c for c in result.candidates}
    for item in measured:
        if item.timing.reason:
            continue
        graph = item.mugraph
        candidate = known.get(graph)
        if candidate is None:
            cost = estimate(graph, hardware.screened())
            candidate = Candidate(graph, cost, None)
        if candidate.certificate is None and graph.blocks:
            certificate = verify(graph, result.program)
            if not certificate.ok:
                _log.warning("%s: at other sizes: %s", result.program.name, certificate)
                continue
            candidate = replace(candidate, certificate=certificate)
        return [candidate]
    return []


def _merged(found: Sequence[Candidate], result: SearchResult) -> tuple[Candidate, ...]:
    first = {c.mugraph for c in found}
    return (*found, *(c for c in result.candidates if c.mugraph not in first))


def task_of(program: KernelGraph) -> Task:
    """What the processes need to know of a program, for the current GPU."""
    import torch

    inputs = tuple(input_spec(i, program) for i in program.inputs)
    return Task(program, inputs, device=torch.cuda.current_device())


def input_spec(item: Input, program: KernelGraph) -> InputSpec:
    """Shape and strides as the type tells; elements so that products stay in range."""
    sizes = {d.name: program.extent_of[d.name] or 1 for d in item.type.dims}
    shape = tuple(math.prod(sizes[d.name] for d in axis) for axis in item.type.axes)
    strides = packed(shape, item.type.order)
    summed = {
        name
        for node in program.nodes
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION
        for name in node.over
    }
    terms = math.prod(size for name, size in sizes.items() if name in summed)
    return InputSpec(shape, strides, item.type.dtype.long_name, float(terms) ** -0.25)
