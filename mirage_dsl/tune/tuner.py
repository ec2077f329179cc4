"""The GPU has the last word: candidates are timed on it, and the timings are kept.

What is timed is up to `Climb`.  The choice is made among the fastest, and verified at
its own sizes.  The processes that time start while the search still runs.

First the structures that a search found are timed, each at its best sizes by estimate
and in several forms, and the program by library kernels.  Then, while time is left, the
steps in sizes and schedule around the fastest, and those few once more, in turns.

Timings are true of a GPU, its driver and the versions of PyTorch and of the backend, so
they are entries of their own in the cache, apart from the verified μGraphs.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import itertools
import logging
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from mirage_dsl.backends.base import DEFAULT_BACKEND, Backend, backend_named
from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.files import typed
from mirage_dsl.core.hardware import DEFAULT, Hardware, architecture_of
from mirage_dsl.core.modes import convolutions_round
from mirage_dsl.core.settings import (
    ASSERT_CACHE_HIT,
    BUDGET_SECONDS,
    DETERMINISTIC,
    DISALLOW_SEARCH,
)
from mirage_dsl.core.types import packed
from mirage_dsl.core.work import OutOfTimeError, until
from mirage_dsl.cost.estimate import Cost, estimate, launched
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import Apply, BlockGraph, Input, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.search.variants import (
    costliest,
    neighbours,
    proposals,
    unlooped,
    with_others_of,
)
from mirage_dsl.store.cache import TIMINGS, Cache, Entry, Key
from mirage_dsl.store.superoptimize import (
    AREAS,
    Fitting,
    code_version,
    result_json,
    result_of,
    usable,
    vouched,
)
from mirage_dsl.tune.measure import (
    NO_TIME,
    InputSpec,
    Marks,
    Task,
    Tf32,
    Timing,
    Tuner,
)

# -- Timings in the cache --------------------------------------------------------------

Timings = tuple[list[Candidate], list["Measured"]]

_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Measured:
    """A μGraph and what a GPU said of it."""

    mugraph: KernelGraph
    timing: Timing


def timings_key(
    result: SearchResult,
    inputs: Sequence[InputSpec],
    effort: str,
    constraints: Constraints | None,
    hardware: Hardware,
    overlap: str = "False",
    backend: str = DEFAULT_BACKEND,
) -> Key:
    """What timings are stored under: the candidates, the inputs, and the machine.

    Calls that overlap (`Ahead.overlapping`) have timings of their own.
    """
    program = result.program
    hashes = [canonical_hash(c.mugraph, schedule=True)[:16] for c in result.candidates]
    parts = {
        "program": canonical_hash(program),
        "inputs": "; ".join(str(i) for i in inputs),
        "candidates": ", ".join(hashes),
        "effort": effort,
        "constraints": str(constraints or Constraints()),
        "hardware": hardware.fingerprint,
        "overlap": overlap,
        "backend": backend,
        **_surroundings(backend_named(backend)),
        "code": code_version(*AREAS, "backends"),
    }
    return Key(TIMINGS, tuple(parts.items()))


def _surroundings(backend: Backend) -> dict[str, str]:
    """What times depend on beside the code."""
    import torch

    driver = "unknown"
    with suppress(OSError):
        driver = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "tf32": str(allowed_tf32()),
        **{n: importlib.metadata.version(n) for n in ("torch", *backend.packages)},
    }


def timings_document(
    found: Sequence[Candidate], measured: Sequence[Measured], program: KernelGraph
) -> dict[str, Any]:
    """What is stored: the choice, and what became of each candidate."""
    chosen = SearchResult(program, tuple(found), complete=False, seconds=0.0)
    return {
        **result_json(chosen),
        "measured": [
            {"mugraph": to_text(m.mugraph), "timing": asdict(m.timing)}
            for m in measured
        ],
    }


def stored_timings(
    store: Cache, key: Key, program: KernelGraph, hardware: Hardware
) -> tuple[list[Candidate], list[Measured]] | None:
    """The choice and what became of each candidate, or None.

    A choice that another machine made is verified; its times are believed.
    """

    def read(entry: Entry) -> Timings:
        records = typed(tuple[_Record, ...], entry.content.get("measured"))
        saved = SearchResult.from_json(dict(entry.content))
        fitting = Fitting(saved.program, program)
        chosen = result_of(entry.content, program)
        measured = [
            Measured(fitting.mugraph(parse(r.mugraph), {}), r.timing) for r in records
        ]
        return list(vouched(entry, chosen, hardware, seconds=0.0)), measured

    def write(found: Timings) -> dict[str, Any]:
        return timings_document(*found, program)

    return usable(store, key, read, write)


@dataclass(frozen=True)
class _Record:
    """What is written of a `Measured`."""

    mugraph: str
    timing: Timing


# -- What is timed ---------------------------------------------------------------------

Progress = Callable[[str, int, int, float | None], None]


@dataclass(frozen=True)
class Allowance:
    """How much to time.

    Attributes:
        seconds: After so long nothing more is timed; the search before it counts.
        search: How many of them a search may take.
        least: But there are so many, however long the search has taken.
        each: How long one candidate may take to be run and timed.
        sizes: Sizes of each structure in the first round; each comes in two forms.
        first: Candidates of the first round at most.
        beside: Neighbours of each of the fastest that a later round times.
        rounds: Later rounds at most.
        worst: Structures are left out whose estimate is above this multiple of the
            best one's.
    """

    seconds: float
    search: float
    least: float
    each: float
    sizes: int
    first: int
    beside: int
    rounds: int
    worst: float


ALLOWANCES: Mapping[str, Allowance] = {
    "quick": Allowance(
        seconds=13.0,
        search=6.0,
        least=5.0,
        each=5.0,
        sizes=8,
        first=40,
        beside=20,
        rounds=8,
        worst=1.8,
    ),
    "full": Allowance(
        seconds=88.0,
        search=60.0,
        least=20.0,
        each=20.0,
        sizes=12,
        first=300,
        beside=40,
        rounds=12,
        worst=6.0,
    ),
}
FINAL_SECONDS = 1.2
"""What is left at the end for the few that are timed once more."""
LONG = 100.0
"""From so many µs on, what a call takes depends on the clocks that power allows."""
LONG_FINAL_SECONDS = 2.5
CLIMBERS = 3
"""How many of the fastest have their neighbours timed in a round."""
MOST_OF_ONE = 0.7
"""Share of a round's neighbours of one μGraph that differ in the same kernel."""
ALIKE = 2
"""Structures in the first round that are launched alike: most differ by little."""
EACH_KIND = 6
"""Sizes that each number of kernels has in the first round, whatever its estimate."""
KERNELS_EACH = 10
"""Kernels of a candidate of the first round, on average: of networks there are fewer
candidates, or none would be compiled in time."""
HOPEFUL = 1.2
"""Multiple of the best time up to which the first of another kind is climbed from."""
FINALISTS = 4
OTHER_FINALISTS = 3
"""Those of other library calls, which take another share of the power."""
NEAR = 1.1
"""Multiple of the best time up to which they are finalists."""
MOST_SPENT = 3.0
"""Seconds of a trace, at most, by which a tuning is shorter."""
CERTIFY_SECONDS = 1.0
"""For verifying what was chosen, if there is not more time left.  Of a network in which
many kernels have other sizes it may take longer: then what is known to be right is
chosen, which takes about as long."""
GAIN = 0.995
"""What a round makes of the best time, at most, if it was a gain."""
PATIENCE = 2
"""Rounds without a gain after which no more follow."""


@dataclass
class Climb:
    """One program's tuning: what was timed so far, and what to time next."""

    result: SearchResult
    allowance: Allowance
    constraints: Constraints | None
    hardware: Hardware
    progress: Progress
    form: Callable[[KernelGraph], KernelGraph] | None = None
    timings: dict[KernelGraph, Timing] = field(
        default_factory=dict[KernelGraph, Timing]
    )
    _forms: set[KernelGraph] = field(default_factory=set[KernelGraph])
    _alike: dict[object, list[KernelGraph]] = field(
        default_factory=dict[object, list[KernelGraph]]
    )
    _stepped: dict[KernelGraph, list[KernelGraph]] = field(
        default_factory=dict[KernelGraph, list[KernelGraph]]
    )

    def run(self, tuner: Tuner, began: float) -> list[Measured]:
        """All that was timed, the fastest first, the program by library kernels too.

        Ahead of all others are those that were timed once more: the clock may have
        fallen in the meantime.

        Args:
            tuner: What times them.
            began: Reading of `time.monotonic()` from which the seconds count.
        """
        tuner.deadline = began + self.allowance.seconds
        tuner.least, tuner.reserve = self.allowance.least, FINAL_SECONDS
        tuner.seconds_each = self.allowance.each
        tuner.together = self._together
        self._time(tuner, self._first())
        if self._best() > LONG:
            tuner.reserve = LONG_FINAL_SECONDS
        best, patience = self._best(), PATIENCE
        for _ in range(self.allowance.rounds):
            graphs = [] if tuner.late else self._next(tuner)
            if not graphs or not patience:
                break
            self._time(tuner, graphs)
            before, best = best, self._best()
            patience = PATIENCE if best <= GAIN * before else patience - 1
        last = self._time_again(tuner)
        found = [Measured(g, t) for g, t in self.timings.items()]
        return sorted(found, key=lambda m: (m.mugraph not in last, *_rank(m)))

    def _first(self) -> list[KernelGraph]:
        """The program, and the structures at their best sizes by estimate."""
        found: dict[KernelGraph, Cost] = {}
        for structure in self._structures():
            forms = proposals(
                structure,
                count=self.allowance.sizes,
                hardware=self.hardware,
                constraints=self.constraints,
            )
            found.update(forms)
        own = [c.mugraph for c in self.result.candidates]
        count = Counter(map(_launches, own))
        first: list[KernelGraph] = []
        for graph in _in_turns(found):
            launches = _launches(graph)
            if count[launches] >= ALIKE:
                self._alike.setdefault(launches, []).append(graph)
            elif len(first) < self.allowance.first:
                count[launches] += 1
                first.append(graph)
        most = KERNELS_EACH * (len(own) + self.allowance.first)
        return list(_as_many([self.result.library, *own, *first], most))

    def _structures(self) -> Iterator[KernelGraph]:
        """What the search found, and the same without the loop of the costliest kernel.

        Those whose estimates are not hopeless.
        """
        limit = self.allowance.worst * self.result.best.cost.microseconds
        near = (c for c in self.result.candidates if c.cost.microseconds <= limit)
        found = [c.mugraph for c in near if c.mugraph.blocks]
        yield from found
        seen = {canonical_hash(g, sizes=False) for g in found}
        for graph in found:
            other = unlooped(
                graph, hardware=self.hardware, constraints=self.constraints
            )
            if other is None or (key := canonical_hash(other, sizes=False)) in seen:
                continue
            seen.add(key)
            if estimate(other, self.hardware).microseconds <= limit:
                yield other

    def _next(self, tuner: Tuner) -> list[KernelGraph]:
        """The neighbours of the fastest of different tiles that were not timed yet.

        Ahead of them what the first round left out that is launched as the fastest is.
        Of networks it takes long to estimate them, so not after the time is over.
        """
        fastest = self._fastest()
        alike = self._alike.pop(_launches(fastest[0]), []) if fastest else []
        found = dict.fromkeys(g for g in alike if g not in self.timings)
        left = CLIMBERS
        best: KernelGraph | None = None
        for graph, at in self._climbers():
            if best is None:
                best = graph
                new = self._beside(graph)[: self.allowance.beside]
            else:
                # The other kernels are tuned with the best.
                start = with_others_of(graph, best, at, self.hardware)
                new = [] if start in self.timings else [start]
                new += self._beside(start, at)[: self.allowance.beside // 2]
            found.update(dict.fromkeys(new))
            left -= bool(new)
            if not left or tuner.late:
                break
        return list(found)

    def _climbers(self) -> Iterator[tuple[KernelGraph, int]]:
        """The fastest of each choice of tiles, and the kernel that takes most of it.

        The first of each kind that may still become the fastest come first.
        """
        seen: set[object] = set()
        ranked = self._fastest()
        for graph in dict.fromkeys((*self._near(HOPEFUL, _kind), *ranked)):
            at = costliest(graph, self.hardware) if graph.blocks else None
            if at is not None and (tiles := _tiles(graph, at)) not in seen:
                seen.add(tiles)
                yield graph, at

    def _beside(self, graph: KernelGraph, only: int | None = None) -> list[KernelGraph]:
        """Neighbours that were not timed yet, not too many that differ in one kernel.

        Args:
            graph: What they are beside of.
            only: Index of the kernel that may differ.
        """
        most = self.allowance.beside
        if len(graph.blocks) > 1:
            most = math.ceil(MOST_OF_ONE * most)
        count: Counter[int] = Counter()
        found: list[KernelGraph] = []
        formed = self._formed(graph)
        for other in self._neighbours(graph):
            pairs = enumerate(zip(formed.nodes, other.nodes, strict=True))
            at = next(i for i, (a, b) in pairs if a != b)
            if other in self._forms or only not in (None, at) or count[at] >= most:
                continue
            count[at] += 1
            found.append(other)
        return found

    def _neighbours(self, graph: KernelGraph) -> list[KernelGraph]:
        """One step away; the fastest often stay the same for some rounds."""
        if graph not in self._stepped:
            formed = self._formed(graph)
            found = neighbours(
                formed, hardware=self.hardware, constraints=self.constraints
            )
            # Without what the form puts there it would be the same once more.
            self._stepped[graph] = [g for g, _ in found if self._formed(g) == g]
        return self._stepped[graph]

    def _formed(self, graph: KernelGraph) -> KernelGraph:
        """What it is timed as, if that has neighbours which it has not."""
        return graph if self.form is None else self.form(graph)

    def _together(self, graph: KernelGraph) -> tuple[int, ...]:
        """Blocks of each block graph that share a multiprocessor if all run at once.

        By estimate they do; 0 for launches of several waves.
        """
        cost = estimate(graph, self.hardware)
        return tuple(
            math.ceil(part.blocks / self.hardware.sms) if part.waves == 1 else 0
            for part in cost.kernels
            if part.blocks
        )

    def _fastest(self) -> list[KernelGraph]:
        """All that is right, the fastest first."""
        good = [Measured(g, t) for g, t in self.timings.items() if not t.reason]
        return [m.mugraph for m in sorted(good, key=_rank)]

    def _near(
        self, times: float, kind: Callable[[KernelGraph], object]
    ) -> list[KernelGraph]:
        """The fastest of each kind that takes at most so many times the best time."""
        limit = times * self._best()
        found: dict[object, KernelGraph] = {}
        for graph in self._fastest():
            if (self.timings[graph].microseconds or math.inf) <= limit:
                found.setdefault(kind(graph), graph)
        return list(found.values())

    def _best(self) -> float:
        known = [t.microseconds for t in self.timings.values() if not t.reason]
        return min((k for k in known if k is not None), default=math.inf)

    def _time(self, tuner: Tuner, graphs: Sequence[KernelGraph]) -> None:
        total = len(self.timings) + len(graphs)

        def tell(timing: Timing) -> None:
            graph = graphs[timing.index]
            self.timings[graph] = timing
            self._forms.add(self._formed(graph))
            best = self._best()
            known = best if math.isfinite(best) else None
            self.progress("tune", len(self.timings), total, known)

        tuner.times(graphs, progress=tell)

    def _finalists(self) -> list[KernelGraph]:
        """The fastest, those of other library calls that are near, and the program."""
        found = self._fastest()[:FINALISTS]
        others = self._near(NEAR, _library_calls)
        found += [g for g in others if g not in found][:OTHER_FINALISTS]
        program = self.result.library
        if program not in found and not self.timings[program].reason:
            found.append(program)
        return found

    def _time_again(self, tuner: Tuner) -> frozenset[KernelGraph]:
        """The first few, in turns: small differences may be noise, or a lower clock.

        Those of them that turned out wrong are not among what is returned.
        """
        graphs = self._finalists()
        timings = tuner.finals(graphs)
        if timings is None:
            return frozenset()
        for graph, timing in zip(graphs, timings, strict=True):
            error = max(timing.error or 0.0, self.timings[graph].error or 0.0)
            self.timings[graph] = replace(timing, error=error)
        return frozenset(g for g in graphs if not self.timings[g].reason)


def _as_many(graphs: Iterable[KernelGraph], most: int) -> Iterator[KernelGraph]:
    """The first of some graphs that have so many kernels together; but at least one."""
    total = 0
    for graph in dict.fromkeys(graphs):
        if total and total + len(graph.blocks) > most:
            break
        total += len(graph.blocks)
        yield graph


def _in_turns(found: Mapping[KernelGraph, Cost]) -> list[KernelGraph]:
    """By estimate, but ahead of all others the best few of each kind, in turns.

    The estimate errs more between one kernel and two, a loop and none, or library calls
    and none, than between two sizes of one μGraph.
    """
    ranked = sorted(found, key=lambda g: found[g].microseconds)
    kinds: dict[object, list[KernelGraph]] = {}
    for graph in ranked:
        kinds.setdefault(_kind(graph), []).append(graph)
    turns = itertools.zip_longest(*(own[:EACH_KIND] for own in kinds.values()))
    heads = (g for turn in turns for g in turn if g is not None)
    return list(dict.fromkeys((*heads, *ranked)))


def _kind(graph: KernelGraph) -> object:
    """How many kernels it has, how many of them loop, and what library calls."""
    loops = sum(block.loop is not None for block in graph.blocks)
    return len(graph.blocks), loops, _library_calls(graph)


def _library_calls(graph: KernelGraph) -> object:
    """What library calls it has, in what order."""
    return tuple(n.op.name for n in graph.nodes if not isinstance(n, BlockGraph))


def _launches(graph: KernelGraph) -> object:
    """Tiles and schedule of each kernel, and the library calls beside them."""
    return tuple(
        (n.grid, n.loop, n.schedule) if isinstance(n, BlockGraph) else n.op.name
        for n in graph.nodes
    )


def _tiles(graph: KernelGraph, at: int) -> object:
    """What tells apart where to climb: the tiles of the kernel at `at`."""
    node = graph.nodes[at]
    assert isinstance(node, BlockGraph)
    return node.grid, node.loop, at, tuple(len(b.nodes) for b in graph.blocks)


def _rank(measured: Measured) -> tuple[bool, float]:
    timing = measured.timing
    good = not timing.reason and timing.microseconds is not None
    return not good, timing.microseconds or math.inf


# -- The tuner -------------------------------------------------------------------------

_log = logging.getLogger("mirage_dsl.tuner")

CLEARLY = 0.8
"""Share of the program's estimate; plans of less are better, though estimates err.

So are those that take no more, in this share of its launches: a network whose kernels
are short takes as long as the host takes to launch them, which no estimate counts."""

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
        constant: Inputs that this does not write.
        backend: What compiles and runs the candidates.
        spent: Seconds that were spent before the search, of the time for all.

    Attributes:
        overlap: As given.
        constant: As given.
        backend: As given.
        began: Reading of `time.monotonic()` from which the time for all counts.
        searched: The same, when the search had ended.
        chosen: The same, when the choice was made; None before.
    """

    def __init__(
        self,
        program: KernelGraph,
        untold: str | None = None,
        *,
        overlap: bool = False,
        constant: AbstractSet[str] = frozenset(),
        backend: str = DEFAULT_BACKEND,
        spent: float = 0.0,
    ) -> None:
        self.overlap = overlap
        self.constant = constant
        self.backend = backend
        self.began = self.searched = time.monotonic()
        self._spent = min(spent, MOST_SPENT)
        self.chosen: float | None = None
        self._program = program
        self._untold = untold
        self._tuner: Tuner | None = None

    def start(self) -> None:
        """Start the processes if there will be something to time, without waiting.

        Called when a search begins: they load what they need, and draw inputs, at the
        same time.
        """
        self.began = time.monotonic() - self._spent
        if _is_tuned(self.backend):
            self.tuner()

    def tuner(self) -> Tuner:
        """The processes; started unless they have been."""
        if self._tuner is None:
            if self._untold is not None:
                seconds = ALLOWANCES[self._untold].seconds
                text = "%s: finding kernels for this GPU, once; up to about %.0f s"
                _log.warning(text, self._program.name, seconds)
            task = replace(task_of(self._program), backend=self.backend)
            tuner = Tuner(task, _target(), form=self.form)
            self._tuner = tuner.__enter__()
        return self._tuner

    @property
    def overlapping(self) -> str:
        """Whether calls overlap, and the places of inputs that are constant then."""
        inputs = enumerate(self._program.inputs)
        places = (str(at) for at, item in inputs if item.name in self.constant)
        return " ".join([str(self.overlap), *places])

    @property
    def form(self) -> Callable[[KernelGraph], KernelGraph] | None:
        """What candidates are compiled and timed as, where it is not as they are."""
        if not self.overlap:
            return None
        return partial(launched_early, first=True, constant=self.constant)

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
        result, inputs, effort, constraints, hardware, begun.overlapping, begun.backend
    )
    kept = stored_timings(store, key, program, hardware) if use_cache else None
    if kept is None:
        if ASSERT_CACHE_HIT.get():
            raise CacheError(_missing(store, key, program))
        if DISALLOW_SEARCH.get():
            _log.warning("%s: not timed: %s", program.name, DISALLOW_SEARCH.name)
            return Tuned(result)
        screened, told = hardware.screened(), progress or _ignore
        allowance = ALLOWANCES[effort]
        climb = Climb(result, allowance, constraints, screened, told, begun.form)
        with begun if ahead is None else nullcontext():
            begun.searched = time.monotonic()
            with _TURN:
                # Another thread may have tuned it.
                kept = (
                    stored_timings(store, key, program, hardware) if use_cache else None
                )
                if kept is None:
                    kept = _climbed(climb, begun, hardware)
                    if use_cache and kept[0] and not _ran_out(kept[1]):
                        store.store(key, timings_document(*kept, program))
    return _in_order(result, hardware, *kept)


def _is_tuned(backend: str) -> bool:
    """Whether candidates are timed: there is a GPU, and the backend's are for it."""
    return not DETERMINISTIC.get() and has_gpu() and backend_named(backend).tuned


def _in_order(
    result: SearchResult,
    hardware: Hardware,
    found: Sequence[Candidate],
    measured: Sequence[Measured],
) -> Tuned:
    """The result with what was chosen first, as it is where nothing could be timed.

    Or where no generated kernel was, for want of time, that clearly takes less than the
    program by estimate: as of a network, whose dozens of kernels take long to compile.
    Of what calls libraries alone there are times, which say more.
    """
    if not found:
        _log.warning("%s: no candidate could be timed", result.program.name)
        return Tuned(result, tuple(measured))
    if _ran_out(measured) and _is_clearly_better(result, hardware):
        _log.info("%s: the best by estimate, untimed", result.program.name)
        return Tuned(result, tuple(measured))
    return Tuned(replace(result, candidates=_merged(found, result)), tuple(measured))


def _ran_out(measured: Sequence[Measured]) -> bool:
    """Whether time was over before any generated kernel was judged."""
    reasons = [m.timing.reason for m in measured if m.mugraph.blocks]
    return bool(reasons) and set(reasons) == {NO_TIME}


def _is_clearly_better(result: SearchResult, hardware: Hardware) -> bool:
    """Whether the best has generated kernels, and is better than the program by far."""
    best, program = result.best.cost, estimate(result.library, hardware)
    fewer = best.launches < CLEARLY * program.launches
    most = program.microseconds * (1.0 if fewer else CLEARLY)
    return bool(result.best.mugraph.blocks) and best.microseconds < most


def _climbed(
    climb: Climb, ahead: Ahead, hardware: Hardware
) -> tuple[list[Candidate], list[Measured]]:
    """The choice, and all that was timed; the wait for one's turn does not count."""
    waited = time.monotonic() - ahead.searched
    tuner = ahead.tuner()
    measured = climb.run(tuner, ahead.began + waited)
    end = max(tuner.deadline, time.monotonic() + CERTIFY_SECONDS)
    found = _chosen(measured, climb.result, hardware, end)
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

AS_FAST = 1.005
"""By how much medians of finalists, which are timed in turn, may differ by chance.

[A] It is about what two runs of one kernel differ by."""


def _chosen(
    measured: Sequence[Measured],
    result: SearchResult,
    hardware: Hardware,
    end: float,
) -> list[Candidate]:
    """The first candidate that has a certificate, or gets one; none if there is none.

    Of those about as fast as the first the one with fewest launches comes first.  A
    certificate names the sizes that it was given for.  None is given after `end`, a
    reading of `time.monotonic()`: then the fastest that has one is chosen.
    """
    known = {c.mugraph: c for c in result.candidates}
    good = _fewest_first([m for m in measured if not m.timing.reason])
    try:
        with until(end):
            for graph in good:
                candidate = known.get(graph) or _of_other_sizes(graph, hardware)
                if candidate.certificate is None and graph.blocks:
                    candidate = _verified(candidate, result.program)
                if candidate is not None:
                    return [candidate]
            return []
    except OutOfTimeError:
        _log.info("%s: no time to verify other sizes", result.program.name)
    ranked = (m.mugraph for m in sorted(measured, key=_rank) if not m.timing.reason)
    right = (known.get(graph) for graph in ranked)
    return [
        c for c in right if c is not None and (c.certificate or not c.mugraph.blocks)
    ][:1]


def _fewest_first(measured: Sequence[Measured]) -> list[KernelGraph]:
    """The μGraphs, ahead of all the one with fewest launches of those as fast.

    Finalists come first, by their times; others behind them have times of before.
    """
    graphs = [m.mugraph for m in measured]
    times = [m.timing.microseconds or math.inf for m in measured]
    near = itertools.takewhile(
        lambda at: times[0] <= times[at] <= AS_FAST * times[0], range(len(graphs))
    )
    first = min(near, key=lambda at: len(launched(graphs[at])), default=0)
    return [*graphs[first : first + 1], *graphs[:first], *graphs[first + 1 :]]


def _of_other_sizes(graph: KernelGraph, hardware: Hardware) -> Candidate:
    return Candidate(graph, estimate(graph, hardware.screened()), None)


def _verified(candidate: Candidate, program: KernelGraph) -> Candidate | None:
    """The candidate with its certificate; None if it is refused."""
    # Here, for it loads compiled code, which is for nothing where nothing is timed.
    from mirage_dsl.verify.verifier import verify

    certificate = verify(candidate.mugraph, program)
    if not certificate.ok:
        _log.warning("%s: at other sizes: %s", program.name, certificate)
        return None
    return replace(candidate, certificate=certificate)


def _merged(found: Sequence[Candidate], result: SearchResult) -> tuple[Candidate, ...]:
    first = {c.mugraph for c in found}
    return (*found, *(c for c in result.candidates if c.mugraph not in first))


def task_of(program: KernelGraph) -> Task:
    """What the processes need to know of a program, for the current GPU."""
    import torch

    inputs = tuple(input_spec(i, program) for i in program.inputs)
    device = torch.cuda.current_device()
    return Task(program, inputs, device=device, tf32=allowed_tf32())


def allowed_tf32() -> Tf32:
    """How PyTorch multiplies f32 in this process."""
    import torch

    matmul: Any = torch.backends.cuda.matmul
    newer = hasattr(matmul, "fp32_precision")
    products = matmul.fp32_precision == "tf32" if newer else matmul.allow_tf32
    return Tf32(convolutions_round(), products)


def input_spec(item: Input, program: KernelGraph) -> InputSpec:
    """Shape and strides as the type tells; elements so that products stay in range."""
    sizes = {d.name: program.extent_of[d.name] or 1 for d in item.type.dims}
    shape = item.type.shape_at(sizes)
    strides = packed(shape, item.type.order)
    summed = {
        name
        for node in program.nodes
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION
        for name in node.over
    }
    terms = math.prod(size for name, size in sizes.items() if name in summed)
    return InputSpec(shape, strides, item.type.dtype.long_name, float(terms) ** -0.25)
