"""From cheap DAGs to sized graphs, of all numbers of kernels in turn."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.search.multi_kernel.graph import LAUNCH, LIBRARY, LayeredGraph
from mirage_dsl.search.multi_kernel.heuristic import Dag, neighbours
from mirage_dsl.search.multi_kernel.rebuild import Rebuilder
from mirage_dsl.search.result import Plan, is_one_kernel, with_every_kind
from mirage_dsl.search.sizes.graphs import Sizer

CRUDE = 2.0
"""What the additive model, which has a few tiles and no schedules, may be off by: DAGs
that cost this factor more than the best are not sized."""

VARIED = 3
"""Graphs that are varied."""

SIMILAR = 1.03
"""Factor of the best graph within which others are varied."""


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
        keep: Plans that are wanted.
        unshifted: Whether shifts were taken out of the program.
        serves: Whether a DAG keeps to the limits.
        late: Whether to stop.
        counters: Figures for the ledger.
        plans: The sized graphs so far.
    """

    sizer: Sizer
    keep: int
    unshifted: bool
    serves: Callable[[LayeredGraph, Dag], bool]
    late: Callable[[], bool]
    counters: Counter[str]
    plans: list[Plan] = field(default_factory=list[Plan])
    _seen: set[str] = field(default_factory=set[str])
    _sized: set[str] = field(default_factory=set[str])
    _known: set[Hashable] = field(default_factory=set[Hashable])
    _best: dict[Hashable, tuple[float, Rebuilder, Dag]] = field(
        default_factory=dict[Hashable, tuple[float, Rebuilder, Dag]]
    )

    def take(self, runs: Sequence[Run], most: int) -> None:
        """Size the first so many graphs of some runs; what is there does not count."""
        made = itertools.islice(self._structures(self._in_turn(runs)), 2 * most)
        while most and (one := next(made, None)) is not None:
            most -= self._size(*one)
            if self.plans and self.late():
                break

    def take_kind(self, is_one: Callable[[KernelGraph], bool], run: Run) -> None:
        """Size the best graph of a kind, whatever its estimate, if none was yet."""
        if any(is_one(p.graph) for p in self.plans) or self.late():
            return
        for _, _, graph in self._structures(self._in_turn([run])):
            if is_one(graph):
                plan = self.sizer.sized(graph, math.inf)
                if plan is not None and not check(plan.graph):
                    self.plans.append(plan)
                    return

    def vary(self, most: int) -> None:
        """Size what differs from the best graphs in one value of a block.

        That is the best of each number of kernels, and of one kernel with each grid,
        for the best of all may be close to another one; where a better one is found, it
        goes on from there.
        """
        varied = set[Dag]()
        while len(varied) < VARIED and not self.late():
            least = min((cost for cost, _, _ in self._best.values()), default=0.0)
            todo = [
                (cost, rebuilder, dag)
                for cost, rebuilder, dag in self._best.values()
                if dag not in varied and cost <= SIMILAR * least
            ]
            if not todo:
                break
            _, rebuilder, dag = min(todo, key=lambda one: one[0])
            varied.add(dag)
            others = (
                (rebuilder, d)
                for d in neighbours(rebuilder.layered, dag)
                if self.serves(rebuilder.layered, d)
            )
            others = itertools.islice(others, 4 * most)
            for made in itertools.islice(self._structures(others), most):
                self._size(*made)
                if self.late():
                    break

    def _size(self, rebuilder: Rebuilder, dag: Dag, graph: KernelGraph) -> bool:
        """Choose the sizes of a graph, and keep it if it is one of the best.

        Returns False if that one is there already: graphs that differ in their grids
        only may be one with the best sizes.
        """
        plan = self.sizer.sized(graph, self._worst())
        if plan is None or check(plan.graph):
            return True
        structure = canonical_hash(plan.graph, sizes=False)
        if structure in self._sized:
            return False
        self._sized.add(structure)
        self.plans.append(plan)
        kind: Hashable = _kernel_counts(rebuilder.layered, dag)
        if is_one_kernel(plan.graph):
            # Its grid is most of what there is to choose.
            kind = kind, tuple(s.dim for s in plan.graph.blocks[0].grid)
        known = self._best.get(kind)
        if known is None or plan.microseconds < known[0]:
            self._best[kind] = plan.microseconds, rebuilder, dag
        return True

    def best(self) -> list[Plan]:
        """The best plans, and the best of each kind."""
        ranked = sorted(self.plans, key=lambda p: p.microseconds)
        return with_every_kind(ranked, self.keep)[: self.keep]

    def _worst(self) -> float:
        """The estimate in µs from which on a plan is none of the best."""
        costs = sorted(p.microseconds for p in self.plans)
        return costs[self.keep - 1] if len(costs) >= self.keep else math.inf

    def _in_turn(self, runs: Sequence[Run]) -> Iterator[tuple[Rebuilder, Dag]]:
        """The DAGs, cheapest first of each run and kind in turn."""
        least = min((d.cost for r in runs for d in r.dags), default=0.0)
        groups: dict[tuple[int, int, int], list[tuple[Rebuilder, Dag]]] = {}
        for number, run in enumerate(runs):
            for dag in run.dags:
                if dag.cost <= CRUDE * least:
                    kinds = _kernel_counts(run.rebuilder.layered, dag)
                    groups.setdefault((number, *kinds), []).append((run.rebuilder, dag))
        turns = itertools.zip_longest(*(groups[k] for k in sorted(groups)))
        yield from filter(None, itertools.chain.from_iterable(turns))

    def _structures(
        self, dags: Iterable[tuple[Rebuilder, Dag]]
    ) -> Iterator[tuple[Rebuilder, Dag, KernelGraph]]:
        """The graphs of DAGs, each structure once."""
        for rebuilder, dag in dags:
            key = rebuilder.structure(dag)
            if key in self._known:
                continue
            self._known.add(key)
            graph = self._safe(rebuilder.graph(dag))
            structure = None if graph is None else canonical_hash(graph, sizes=False)
            if graph is None or structure is None or structure in self._seen:
                continue
            self._seen.add(structure)
            constraints = self.sizer.constraints
            if all(constraints.admits_structure(b) for b in graph.blocks):
                self.counters["structures"] += 1
                yield rebuilder, dag, graph

    def _safe(self, graph: KernelGraph) -> KernelGraph | None:
        """The graph with its shifts put back; None if there is no place for them."""
        safe = stabilise(graph)
        if safe is None and self.unshifted:
            self.counters["unstable"] += 1
            return None
        return safe or graph


def _kernel_counts(u: LayeredGraph, dag: Dag) -> tuple[int, int]:
    """How many blocks and how many library calls a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int((kinds == LAUNCH).sum()), int((kinds == LIBRARY).sum())
