"""From cheap DAGs to sized graphs, of all numbers of kernels in turn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.stabilise import stabilise
from mirage_dsl.search.segments import Plan
from mirage_dsl.search.union.graph import LAUNCH, LIBRARY, Union
from mirage_dsl.search.union.heuristic import Dag
from mirage_dsl.search.union.rebuild import Rebuilder
from mirage_dsl.search.union.sizing import Sizer

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
