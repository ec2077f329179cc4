"""Which candidates a tuner times: a first round, then steps around the fastest.

First the structures that a search found, each at its best sizes by estimate and in
several forms, and the program by library kernels.  Then, while time is left, the steps
in sizes and schedule around the fastest, and those few once more, in turns.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.cost.estimate import Cost, estimate
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.search.sizes.variants import (
    costliest,
    neighbours,
    proposals,
    with_others_of,
)
from mirage_dsl.tune.channel import Timing
from mirage_dsl.tune.measure import Tuner
from mirage_dsl.tune.timings import Measured

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
HOPEFUL = 1.2
"""Multiple of the best time up to which the first of another kind is climbed from."""
FINALISTS = 4
OTHER_FINALISTS = 3
"""Those of other library calls, which take another share of the power."""
NEAR = 1.1
"""Multiple of the best time up to which they are finalists."""
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
    timings: dict[KernelGraph, Timing] = field(
        default_factory=dict[KernelGraph, Timing]
    )
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
            graphs = [] if tuner.late else self._next()
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
        limit = self.allowance.worst * self.result.best.cost.microseconds
        found: dict[KernelGraph, Cost] = {}
        for candidate in self.result.candidates:
            if candidate.cost.microseconds <= limit and candidate.mugraph.blocks:
                forms = proposals(
                    candidate.mugraph,
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
        return list(dict.fromkeys([self.result.library, *own, *first]))

    def _next(self) -> list[KernelGraph]:
        """The neighbours of the fastest of different tiles that were not timed yet.

        Ahead of them what the first round left out that is launched as the fastest is.
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
            if not left:
                break
        return list(found)

    def _climbers(self) -> Iterator[tuple[KernelGraph, int]]:
        """The fastest of each choice of tiles, and the kernel that takes most of it.

        The first of each kind that may still become the fastest come first.
        """
        seen: set[object] = set()
        ranked = self._fastest()
        limit = HOPEFUL * self._best()
        kinds: dict[object, KernelGraph] = {}
        for graph in ranked:
            if (self.timings[graph].microseconds or math.inf) <= limit:
                kinds.setdefault(_kind(graph), graph)
        for graph in dict.fromkeys((*kinds.values(), *ranked)):
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
        for other in self._neighbours(graph):
            pairs = enumerate(zip(graph.nodes, other.nodes, strict=True))
            at = next(i for i, (a, b) in pairs if a != b)
            if other in self.timings or only not in (None, at) or count[at] >= most:
                continue
            count[at] += 1
            found.append(other)
        return found

    def _neighbours(self, graph: KernelGraph) -> list[KernelGraph]:
        """One step away; the fastest often stay the same for some rounds."""
        if graph not in self._stepped:
            found = neighbours(
                graph, hardware=self.hardware, constraints=self.constraints
            )
            self._stepped[graph] = [other for other, _ in found]
        return self._stepped[graph]

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

    def _finalists(self) -> list[KernelGraph]:
        """The fastest, those of other library calls that are near, and the program."""
        ranked = self._fastest()
        limit = NEAR * self._best()
        others: dict[object, KernelGraph] = {}
        for graph in ranked:
            if (self.timings[graph].microseconds or math.inf) <= limit:
                others.setdefault(_library_calls(graph), graph)
        found = ranked[:FINALISTS]
        found += [g for g in others.values() if g not in found][:OTHER_FINALISTS]
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


def _in_turns(found: Mapping[KernelGraph, Cost]) -> list[KernelGraph]:
    """By estimate, but ahead of all others the best few of each kind, in turns.

    The estimate errs more between one kernel and two, or between library calls and
    none, than between two sizes of one μGraph.
    """
    ranked = sorted(found, key=lambda g: found[g].microseconds)
    kinds: dict[object, list[KernelGraph]] = {}
    for graph in ranked:
        kinds.setdefault(_kind(graph), []).append(graph)
    turns = itertools.zip_longest(*(own[:EACH_KIND] for own in kinds.values()))
    heads = (g for turn in turns for g in turn if g is not None)
    return list(dict.fromkeys((*heads, *ranked)))


def _kind(graph: KernelGraph) -> object:
    """How many kernels it has, and what library calls."""
    return len(graph.blocks), _library_calls(graph)


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


__all__ = ["ALLOWANCES", "Allowance", "Climb", "Progress"]
