"""From cheap DAGs to sized graphs, of all numbers of kernels in turn."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.footprint import tensor_bytes
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, dims_of
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, partial_base, with_derived_extents
from mirage_dsl.ir.walk import results_of
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.search.result import Plan
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.search.sizes.sizes import Sized, Sizes, Unsized, sizes_of_all
from mirage_dsl.search.union.graph import LAUNCH, LIBRARY, Union
from mirage_dsl.search.union.heuristic import Dag
from mirage_dsl.search.union.rebuild import Rebuilder

# -- Sizes of several kernels ----------------------------------------------------------
# How many parts a kernel stores along `k#` is what the next one has to read, so a
# few numbers of parts are tried, and the later kernels are sized for each.

PARTS = (2, 4, 8, 16, 32, 64)
"""Numbers of parts that are tried."""

BEAM = 6
"""Choices for the kernels so far that are followed up."""


_Known = dict[tuple[object, ...], list[Sized]]
"""Sizes of one block, by the numbers of parts and the extents of what it reads."""


@dataclass(frozen=True)
class Sizer:
    """Sizes all blocks of a graph.

    Attributes:
        hardware: The GPU.
        constraints: Restrictions.
        deadline: Reading of `time.monotonic()` after which it gives up.
    """

    hardware: Hardware
    constraints: Constraints
    deadline: float | None = None

    def sized(self, graph: KernelGraph) -> Plan | None:
        """The best sizes; None if a block does not fit at any."""
        beam: list[tuple[float, KernelGraph]] = [(0.0, graph)]
        fixed: dict[str, None] = {}
        for at, node in enumerate(graph.nodes):
            if not isinstance(node, BlockGraph):
                continue
            if self.deadline is not None and time.monotonic() > self.deadline:
                return None
            known = _Known()
            beam = [s for state in beam for s in self._next(*state, at, fixed, known)]
            beam.sort(key=lambda s: s[0])
            beam = beam[:BEAM]
            fixed.update(dict.fromkeys(_parts_stored(node)))
        plans = [
            Plan(estimate(g, self.hardware).microseconds, g) for _, g in beam[:BEAM]
        ]
        return min(plans, key=lambda p: p.microseconds, default=None)

    def _next(
        self,
        paid: float,
        graph: KernelGraph,
        at: int,
        fixed: dict[str, None],
        known: _Known,
    ) -> Iterator[tuple[float, KernelGraph]]:
        """The graph with sizes for one more block; for each number of parts, the best.

        What blocks of the same inputs get is `known`.
        """
        block = graph.nodes[at]
        assert isinstance(block, BlockGraph)
        extents = derived_extents(graph, graph.extent_of)
        made = _parts_stored(block)
        wanted: tuple[int | None, ...] = PARTS if made else (None,)
        if made and made[0] in fixed:
            wanted = (extents[made[0]],)
        types = kernel_types(graph)
        names = [n for s in block.sources for n in types[s].names]
        key = (wanted, *(extents[n] for n in names))
        if key not in known:
            known[key] = self._choose(graph, at, block, wanted)
        for best in known[key]:
            nodes = (*graph.nodes[:at], best.block, *graph.nodes[at + 1 :])
            sized = with_derived_extents(replace(graph, nodes=nodes))
            yield paid + best.microseconds, sized

    def _choose(
        self,
        graph: KernelGraph,
        at: int,
        block: BlockGraph,
        counts: tuple[int | None, ...],
    ) -> list[Sized]:
        """The best sizes of one block, with each of some numbers of parts."""
        allowed = self.constraints.sizes(block)
        choices = [_with_parts(allowed, block, c) for c in counts]
        found = self._best(graph, at, block, choices)
        if not found and allowed.grids is None and counts == (None,):
            # A short dim may have one tile only.
            found = self._best(graph, at, block, [replace(allowed, grids=_any_grid)])
        return found

    def _best(
        self, graph: KernelGraph, at: int, block: BlockGraph, choices: list[Sizes]
    ) -> list[Sized]:
        types = kernel_types(graph)
        extents = derived_extents(graph, graph.extent_of)
        made = {name for n in graph.nodes[:at] for name in results_of(n)}
        half = self.hardware.l2_bytes / 2
        found = sizes_of_all(
            [Unsized(block, allowed) for allowed in choices],
            types,
            extents,
            hardware=self.hardware,
            keep=1,
            inside={n for n in made if tensor_bytes(types[n], extents) < half},
        )
        return [best for own in found for best in own]


def _any_grid(grid: tuple[int, ...]) -> bool:
    """Admits grids with one part of a dim too."""
    return min(grid, default=1) > 0


def _with_parts(allowed: Sizes, block: BlockGraph, count: int | None) -> Sizes:
    """Grids with so many parts of the dim that a block stores, more than 1 of others.

    None leaves them as they are.
    """
    if count is None:
        return allowed
    (name, *_) = _parts_stored(block)
    base = str(partial_base(name, block))
    place = [axis[0].dim for axis in block.axes].index(base)
    before = allowed.grids

    def admits(grid: tuple[int, ...]) -> bool:
        if grid[place] != count:
            return False
        return min(grid) > 1 if before is None else before(grid)

    return replace(allowed, grids=admits)


def _parts_stored(block: BlockGraph) -> tuple[str, ...]:
    """The dims over parts that a block stores."""
    names = (d.name for s in block.stores for d in dims_of(s.axes))
    return tuple(n for n in dict.fromkeys(names) if partial_base(n, block) is not None)


# -- Plans of all numbers of kernels ---------------------------------------------------

HOPELESS = 2.0
"""DAGs that cost this factor more than the best are not sized."""


@dataclass(frozen=True)
class Run:
    """The DAGs of one run of the heuristic, or of the proof, cheapest first."""

    rebuilder: Rebuilder
    dags: Sequence[Dag]


@dataclass
class Planner:
    """Sizes DAGs of different structure.

    Attributes:
        sizer: Chooses the sizes.
        unshifted: Whether shifts were taken out of the program.
        late: Whether to stop.
        counters: Figures for the ledger.
        plans: The sized graphs so far.
    """

    sizer: Sizer
    unshifted: bool
    late: Callable[[], bool]
    counters: Counter[str]
    plans: list[Plan] = field(default_factory=list[Plan])
    _seen: set[str] = field(default_factory=set[str])

    def take(self, runs: Sequence[Run], most: int) -> None:
        """Size the DAGs of some runs, until there are so many plans more."""
        most += len(self.plans)
        for graph in self._structures(runs):
            if len(self.plans) == most or (self.plans and self.late()):
                break
            plan = self.sizer.sized(graph)
            if plan is not None and not check(plan.graph):
                self.plans.append(plan)

    def best(self, count: int) -> list[Plan]:
        """The best plans."""
        return sorted(self.plans, key=lambda p: p.microseconds)[:count]

    def _structures(self, runs: Sequence[Run]) -> Iterator[KernelGraph]:
        """Different graphs, cheapest first of each run and kind in turn."""
        least = min((d.cost for r in runs for d in r.dags), default=0.0)
        groups: dict[tuple[int, int, int], list[tuple[Rebuilder, Dag]]] = {}
        for number, run in enumerate(runs):
            for dag in run.dags:
                if dag.cost <= HOPELESS * least:
                    kinds = _kinds(run.rebuilder.union, dag)
                    groups.setdefault((number, *kinds), []).append((run.rebuilder, dag))
        turns = itertools.zip_longest(*(groups[k] for k in sorted(groups)))
        for item in itertools.chain.from_iterable(turns):
            if item is None:
                continue
            graph = self._safe(item[0].graph(item[1]))
            structure = None if graph is None else canonical_hash(graph, sizes=False)
            if graph is None or structure is None or structure in self._seen:
                continue
            self._seen.add(structure)
            constraints = self.sizer.constraints
            if all(constraints.admits_structure(b) for b in graph.blocks):
                self.counters["structures"] += 1
                yield graph

    def _safe(self, graph: KernelGraph) -> KernelGraph | None:
        """The graph with its shifts put back; None if there is no place for them."""
        safe = stabilise(graph)
        if safe is None and self.unshifted:
            self.counters["unstable"] += 1
            return None
        return safe or graph


def _kinds(u: Union, dag: Dag) -> tuple[int, int]:
    """How many blocks and how many library calls a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int((kinds == LAUNCH).sum()), int((kinds == LIBRARY).sum())
