"""The GPU has the last word: candidates are timed on it, and the timings are kept.

First the structures that a search found, each at its best sizes by estimate and in
several forms, and the program by library kernels.  Then, while time is left, the steps
in sizes and schedule around the fastest.  The choice is made among the fastest, timed
once more.

Timings are true of a GPU, its driver and the versions of PyTorch and Triton, so they
are entries of their own in the cache, apart from the verified μGraphs.
"""

from __future__ import annotations

import ctypes
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.backends.triton.tune import InputSpec, Task, Timing, Tuner
from mirage_dsl.cache import Cache, Key
from mirage_dsl.errors import CacheError
from mirage_dsl.ir.graph import Apply, BlockGraph, Input, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import Cost, estimate
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.variants import (
    costliest,
    neighbours,
    proposals,
    with_others_of,
)
from mirage_dsl.settings import ASSERT_CACHE_HIT, DETERMINISTIC, DISALLOW_SEARCH
from mirage_dsl.timings import (
    Measured,
    stored_timings,
    timings_document,
    timings_key,
)

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int, float | None], None]


@dataclass(frozen=True)
class Plan:
    """How much to time.

    Attributes:
        seconds: After so long nothing more is timed.
        sizes: Sizes of each structure in the first round; each comes in two forms.
        first: Candidates of the first round at most.
        beside: Neighbours of each of the fastest that a later round times.
        rounds: Later rounds at most.
        worst: Structures are left out whose estimate is above this multiple of the
            best one's.
    """

    seconds: float
    sizes: int
    first: int
    beside: int
    rounds: int
    worst: float


PLANS: Mapping[str, Plan] = {
    "quick": Plan(seconds=10.0, sizes=8, first=64, beside=20, rounds=8, worst=1.8),
    "full": Plan(seconds=75.0, sizes=12, first=300, beside=40, rounds=12, worst=6.0),
}
CLIMBERS = 3
"""How many of the fastest have their neighbours timed in a round."""
MOST_OF_ONE = 0.7
"""Share of a round's neighbours of one μGraph that differ in the same kernel."""
FINALISTS = 3
FINAL_REPLAYS = 15
GAIN = 0.995
"""What a round makes of the best time, at most, if it was a gain."""
PATIENCE = 2
"""Rounds without a gain after which no more follow."""


@dataclass(frozen=True)
class Tuned:
    """A search result in the order that a GPU gave it.

    Attributes:
        result: The fastest candidate that is right; then the others, those that were
            timed first.
        measured: What became of each, the fastest first; nothing without a GPU.
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


def tuned(
    result: SearchResult,
    *,
    effort: str = "quick",
    constraints: Constraints | None = None,
    hardware: Hardware = H100,
    use_cache: bool = True,
    progress: Progress | None = None,
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

    Raises:
        CacheError: A hit is demanded, and there is none.
    """
    if DETERMINISTIC.get() or not has_gpu():
        return Tuned(result)
    import torch

    program = result.program
    inputs = tuple(input_spec(i, program) for i in program.inputs)
    key = timings_key(result, inputs, effort, constraints, hardware)
    store = Cache()
    kept = stored_timings(store, key, program) if use_cache else None
    if kept is not None:
        found, measured = kept
    else:
        if ASSERT_CACHE_HIT.get():
            raise CacheError(_missing(store, key, program))
        if DISALLOW_SEARCH.get():
            _log.warning("%s: not timed: %s", program.name, DISALLOW_SEARCH.name)
            return Tuned(result)
        told = progress or _ignore
        screened = hardware.screened()
        climb = _Climb(result, PLANS[effort], constraints, screened, told)
        measured = climb.run(Task(program, inputs, device=torch.cuda.current_device()))
        found = _chosen(measured, result, hardware)
        if use_cache and found:
            store.store(key, timings_document(found, measured, program))
    if not found:
        _log.warning("%s: no candidate could be timed", program.name)
        return Tuned(result, tuple(measured))
    return Tuned(replace(result, candidates=_merged(found, result)), tuple(measured))


def _missing(store: Cache, key: Key, program: KernelGraph) -> str:
    return (
        f"timings of {program.name} are not in the cache, and {ASSERT_CACHE_HIT.name} "
        f"is set: {store.explain_miss(key)}\nCall it once on this GPU without that "
        f"variable.  Its key:\n{key}"
    )


def _ignore(stage: str, done: int, total: int, best: float | None) -> None:
    """The progress of nobody."""


@dataclass
class _Climb:
    """One program's tuning: what was timed so far, and what to time next."""

    result: SearchResult
    plan: Plan
    constraints: Constraints | None
    hardware: Hardware
    progress: Progress
    timings: dict[KernelGraph, Timing] = field(
        default_factory=dict[KernelGraph, Timing]
    )

    def run(self, task: Task) -> list[Measured]:
        """All that was timed, the fastest first, the program by library kernels too."""
        deadline = time.monotonic() + self.plan.seconds
        with Tuner(task, _target(), deadline=deadline) as tuner:
            self._time(tuner, self._first())
            best, patience = self._best(), PATIENCE
            for _ in range(self.plan.rounds):
                graphs = [] if tuner.late else self._next()
                if not graphs or not patience:
                    break
                self._time(tuner, graphs)
                before, best = best, self._best()
                patience = PATIENCE if best <= GAIN * before else patience - 1
            self._time_again(tuner)
        found = [Measured(g, t) for g, t in self.timings.items()]
        return sorted(found, key=_rank)

    def _first(self) -> list[KernelGraph]:
        """The program, and the structures at their best sizes by estimate."""
        limit = self.plan.worst * self.result.best.cost.microseconds
        found: dict[KernelGraph, Cost] = {}
        for candidate in self.result.candidates:
            if candidate.cost.microseconds <= limit and candidate.mugraph.blocks:
                forms = proposals(
                    candidate.mugraph,
                    count=self.plan.sizes,
                    hardware=self.hardware,
                    constraints=self.constraints,
                )
                found.update(forms)
        ranked = sorted(found, key=lambda g: found[g].microseconds)[: self.plan.first]
        own = [c.mugraph for c in self.result.candidates]
        return list(dict.fromkeys([self.result.program, *own, *ranked]))

    def _next(self) -> list[KernelGraph]:
        """The neighbours of the fastest of different tiles that were not timed yet."""
        found: dict[KernelGraph, None] = {}
        climbers: dict[object, tuple[KernelGraph, int]] = {}
        for graph in self._fastest(len(self.timings)):
            at = costliest(graph, self.hardware)
            if at is not None:
                climbers.setdefault(_tiles(graph, at), (graph, at))
        left, best = CLIMBERS, next(iter(climbers.values()), None)
        for graph, at in climbers.values():
            assert best is not None
            if graph is best[0]:
                new = self._beside(graph)[: self.plan.beside]
            else:
                # The other kernels are tuned with the best.
                start = with_others_of(graph, best[0], at, self.hardware)
                new = [] if start in self.timings else [start]
                new += self._beside(start, at)[: self.plan.beside // 2]
            found.update(dict.fromkeys(new))
            left -= bool(new)
            if not left:
                break
        return list(found)

    def _beside(self, graph: KernelGraph, only: int | None = None) -> list[KernelGraph]:
        """Neighbours that were not timed yet, not too many that differ in one kernel.

        Args:
            graph: What they are beside of.
            only: Index of the kernel that may differ.
        """
        most = self.plan.beside
        if len(graph.blocks) > 1:
            most = math.ceil(MOST_OF_ONE * most)
        count: Counter[int] = Counter()
        found: list[KernelGraph] = []
        for other, _ in neighbours(
            graph, hardware=self.hardware, constraints=self.constraints
        ):
            pairs = enumerate(zip(graph.nodes, other.nodes, strict=True))
            at = next(i for i, (a, b) in pairs if a != b)
            if other in self.timings or only not in (None, at) or count[at] >= most:
                continue
            count[at] += 1
            found.append(other)
        return found

    def _fastest(self, count: int) -> list[KernelGraph]:
        good = [Measured(g, t) for g, t in self.timings.items() if not t.reason]
        ranked = sorted((m for m in good if m.mugraph.blocks), key=_rank)
        return [m.mugraph for m in ranked[:count]]

    def _best(self) -> float:
        known = [t.microseconds for t in self.timings.values() if not t.reason]
        return min((k for k in known if k is not None), default=math.inf)

    def _time(self, tuner: Tuner, graphs: Sequence[KernelGraph]) -> None:
        total = len(self.timings) + len(graphs)

        def tell(timing: Timing) -> None:
            self.timings[graphs[timing.index]] = timing
            best = self._best()
            known = best if math.isfinite(best) else None
            self.progress("tune", len(self.timings), total, known)

        tuner.times(graphs, progress=tell)

    def _time_again(self, tuner: Tuner) -> None:
        """The first few, at greater length: small differences may be noise."""
        graphs = self._fastest(FINALISTS)
        if not self.timings[self.result.program].reason:
            graphs.append(self.result.program)
        for graph in graphs:
            timing = tuner.again(graph, replays=FINAL_REPLAYS)
            self.timings[graph] = timing


def _tiles(graph: KernelGraph, at: int) -> object:
    """What tells apart where to climb: the tiles of the kernel at `at`."""
    node = graph.nodes[at]
    assert isinstance(node, BlockGraph)
    return node.grid, node.loop, at, tuple(len(b.nodes) for b in graph.blocks)


def _rank(measured: Measured) -> tuple[bool, float]:
    timing = measured.timing
    good = not timing.reason and timing.microseconds is not None
    return not good, timing.microseconds or math.inf


def _target() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


# -- The choice ------------------------------------------------------------------------


def _chosen(
    measured: Sequence[Measured], result: SearchResult, hardware: Hardware
) -> list[Candidate]:
    """The fastest candidate that has a certificate, or gets one; none if there is none.

    A certificate names the sizes that it was given for.
    """
    # Here, for it loads compiled code, which is for nothing where nothing is timed.
    from mirage_dsl.verify.verifier import verify

    known = {c.mugraph: c for c in result.candidates}
    for item in _preferred(measured):
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


def _preferred(measured: Sequence[Measured]) -> list[Measured]:
    """Those that are right, the fastest first."""
    good = [m for m in measured if not m.timing.reason]
    return sorted(good, key=lambda m: m.timing.microseconds or math.inf)


def _merged(found: Sequence[Candidate], result: SearchResult) -> tuple[Candidate, ...]:
    first = {c.mugraph for c in found}
    return (*found, *(c for c in result.candidates if c.mugraph not in first))


def input_spec(item: Input, program: KernelGraph) -> InputSpec:
    """Shape and strides as the type tells; elements so that products stay in range."""
    sizes = {d.name: program.extent_of[d.name] or 1 for d in item.type.dims}
    shape = tuple(math.prod(sizes[d.name] for d in axis) for axis in item.type.axes)
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(item.type.layout or tuple(range(len(shape)))):
        strides[axis] = step
        step *= shape[axis]
    summed = {
        name
        for node in program.nodes
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION
        for name in node.over
    }
    terms = math.prod(size for name, size in sizes.items() if name in summed)
    return InputSpec(
        shape, tuple(strides), item.type.dtype.long_name, float(terms) ** -0.25
    )
