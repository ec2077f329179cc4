"""The search for programs of several kernels, as one search.

    strip shifts -> storable values -> closures -> kernels -> union
                 -> heuristic -> proof -> rebuild -> sizes -> stabilise -> sizes

What comes out is sized and well formed; the driver verifies it like everything else.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.stabilise import stabilise, strip_shifts
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import library_kernel
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.segments import Plan
from mirage_dsl.search.union.candidates import Candidates, candidates
from mirage_dsl.search.union.exact import launches, prove
from mirage_dsl.search.union.graph import LAUNCH, LIBRARY, Call, Union, union
from mirage_dsl.search.union.halves import cut_dims
from mirage_dsl.search.union.heuristic import Dag
from mirage_dsl.search.union.heuristic import search as cheap_dags
from mirage_dsl.search.union.kernels import Closure, Kernel, closures, kernels, library
from mirage_dsl.search.union.rebuild import Rebuilder
from mirage_dsl.search.union.sizing import Sizer
from mirage_dsl.search.workspace import Workspace, workspace

PROOF_SECONDS = 5.0
"""Most time for the proof."""

TRIED = 3
"""Graphs that are sized for each one kept: the model of the union is crude."""

DEARER_US = (0.0, 2.0, 5.0, 20.0)
"""What launches cost more, one after the other, while a DAG has too many."""

HOPELESS = 2.0
"""DAGs that cost this factor more than the best are not sized."""


@dataclass
class MultiKernel:
    """What the search found.

    Attributes:
        plans: Sized graphs, best estimate first, all of different structure.
        cost: The additive cost of the best program found, in µs at placeholder sizes.
        bound: No program of the space costs less; None if nothing is proved.
        heuristic: The additive cost of the heuristic's best.
        complete: Whether the space was exhausted and the best program proved.
        counters: Figures for the ledger.
        seconds: Time of each step.
    """

    plans: list[Plan] = field(default_factory=list[Plan])
    cost: float | None = None
    bound: float | None = None
    heuristic: float | None = None
    complete: bool = False
    counters: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def graphs(self) -> list[KernelGraph]:
        """The graphs of the plans."""
        return [p.graph for p in self.plans]

    def spend(self, step: str, since: float) -> float:
        """Add the time since then to a step; returns the time now."""
        now = time.perf_counter()
        self.seconds[step] = self.seconds.get(step, 0.0) + now - since
        return now


def multi_kernel(
    program: KernelGraph,
    *,
    max_kernels: int = 3,
    deadline: float | None = None,
    seed: int = 0,
    keep: int = 8,
    hardware: Hardware = H100,
    constraints: Constraints | None = None,
    arrays: Workspace | None = None,
) -> MultiKernel:
    """The best graphs of up to `max_kernels` kernels, searched as one space.

    Args:
        program: A traced program of known extents.
        max_kernels: Most kernels, library calls included.
        deadline: Reading of `time.monotonic()` at which to stop.
        seed: Of all random choices.
        keep: How many graphs to size and return at most.
        hardware: The GPU to estimate for.
        constraints: Restrictions on grids, maps, loops and blocks.
        arrays: Arrays of the closure to use again.
    """
    found = MultiKernel()
    whole = expand(program)
    plain = strip_shifts(whole)
    search = _Search(
        plain,
        len(plain.nodes) < len(whole.nodes),
        max_kernels,
        deadline,
        seed,
        hardware,
        constraints or Constraints(),
        arrays or workspace(),
        found,
    )
    search.run(keep)
    return found


@dataclass
class _Search:
    program: KernelGraph
    unshifted: bool
    max_kernels: int
    deadline: float | None
    seed: int
    hardware: Hardware
    constraints: Constraints
    arrays: Workspace
    found: MultiKernel

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def run(self, keep: int) -> None:
        """Search and size."""
        try:
            dags = self.dags()
        except UnsupportedError:
            return
        self.size(dags, keep)

    def dags(self) -> list[tuple[Rebuilder, Dag]]:
        """The cheapest DAGs of the unions of two layers and more."""
        began = time.perf_counter()
        tensors, choices = self._closures()
        began = self.found.spend("closures", began)
        own: list[Kernel] = [k for c in choices for k in kernels(c)]
        space = choices[0].space
        inputs = [v.name for v in space.values if v.is_load]
        outputs = [o.name for o in space.outputs[: space.targets]]
        stored = [space.values[i].name for i in sorted(space.stored)]
        calls = library(self.program, {*inputs, *stored})
        priced = self._priced(calls)
        found: list[tuple[Rebuilder, Dag]] = []
        for layers in range(min(2, self.max_kernels), self.max_kernels + 1):
            began = time.perf_counter()
            graph = union(inputs, outputs, stored, own, priced, layers)
            self.found.spend("union", began)
            if graph is not None:
                rebuilder = Rebuilder(self.program, graph, own, calls, tensors.formats)
                dags = self._dags(graph, prove_it=layers == self.max_kernels)
                found += [(rebuilder, d) for d in dags]
                self.found.counters["enodes"] = len(graph.cost)
        self.found.counters["kernels"] += len(own)
        return found

    def _closures(self) -> tuple[Candidates, list[Closure]]:
        """What kernels may store, and what they can compute from it."""
        tensors = candidates(
            self.program,
            cut_dims(self.program),
            self.arrays,
            unshifted=self.unshifted,
            seed=self.seed,
            deadline=self.deadline,
        )
        self.found.counters.update(tensors.counters)
        choices = list(
            closures(tensors, self.arrays, seed=self.seed, deadline=self.deadline)
        )
        self.found.complete = tensors.complete and not self.late()
        for closure in choices:
            self.found.complete &= closure.saturation.complete
            self.found.counters["nodes"] += len(closure.saturation.shape)
        return tensors, choices

    def _priced(self, calls: list[Apply]) -> list[Call]:
        types = kernel_types(self.program)
        extents = derived_extents(self.program, self.program.extent_of)
        priced: list[Call] = []
        for node in calls:
            cost = library_kernel(node, types, extents, frozenset(), self.hardware)
            own = cost.microseconds - 1e6 * (self.hardware.launch + self.hardware.ramp)
            priced.append(Call(node.result, node.values, own))
        return priced

    def _dags(self, graph: Union, *, prove_it: bool) -> list[Dag]:
        """The cheapest DAGs of few enough kernels: the heuristic's, and the proved."""
        began = time.perf_counter()
        dags = self._cheap(graph)
        began = self.found.spend("heuristic", began)
        if prove_it:
            self.found.heuristic = dags[0].cost if dags else None
            dags += self._proved(graph)
            dags.sort(key=lambda d: d.cost)
            self.found.cost = dags[0].cost if dags else None
            self.found.spend("proof", began)
        return dags

    def _cheap(self, graph: Union) -> list[Dag]:
        """The heuristic's DAGs of few enough kernels.

        While the cheapest one has too many, launches are made dearer.
        """
        kept: dict[tuple[int, ...], Dag] = {}
        launch = (graph.kind == LAUNCH) | (graph.kind == LIBRARY)
        for extra in DEARER_US:
            dearer = replace(graph, cost=graph.cost + np.where(launch, extra, 0.0))
            dags = cheap_dags(dearer, seed=self.seed, deadline=self.deadline)
            for dag in dags:
                if launches(graph, dag) <= self.max_kernels:
                    cost = float(graph.cost[list(dag.enodes)].sum())
                    kept[dag.enodes] = Dag(dag.enodes, cost)
            if dags and launches(graph, dags[0]) <= self.max_kernels:
                break
        return sorted(kept.values(), key=lambda d: (d.cost, d.enodes))

    def _proved(self, graph: Union) -> list[Dag]:
        """The proof's DAG, if it comes to one; takes note of the bound."""
        seconds = PROOF_SECONDS
        if self.deadline is not None:
            seconds = min(seconds, self.deadline - time.monotonic())
        proof = None
        if seconds > 0:
            proof = prove(
                graph, seconds=seconds, max_kernels=self.max_kernels, seed=self.seed
            )
        self.found.complete &= proof is not None and proof.optimal
        if proof is None:
            return []
        self.found.bound = proof.bound
        return [] if proof.best is None else [proof.best]

    def size(self, dags: list[tuple[Rebuilder, Dag]], keep: int) -> None:
        """Size the first DAGs of different structure; keeps the best."""
        began = time.perf_counter()
        sizer = Sizer(self.hardware, self.constraints, self.deadline)
        plans = self.found.plans
        for graph in self._structures(dags):
            if len(plans) == TRIED * keep or (plans and self.late()):
                break
            plan = sizer.sized(graph)
            if plan is not None and not check(plan.graph):
                plans.append(plan)
        plans.sort(key=lambda p: p.microseconds)
        del plans[keep:]
        self.found.spend("sizes", began)

    def _structures(self, dags: list[tuple[Rebuilder, Dag]]) -> Iterator[KernelGraph]:
        """Different graphs, cheapest first of each number of kernels in turn."""
        least = min((d.cost for _, d in dags), default=0.0)
        groups: dict[tuple[int, int], list[tuple[Rebuilder, Dag]]] = {}
        for rebuilder, dag in sorted(dags, key=lambda item: item[1].cost):
            if dag.cost <= HOPELESS * least:
                kinds = _kinds(rebuilder.union, dag)
                groups.setdefault(kinds, []).append((rebuilder, dag))
        seen: set[str | None] = set()
        turns = itertools.zip_longest(*(groups[k] for k in sorted(groups)))
        for item in itertools.chain.from_iterable(turns):
            if item is None:
                continue
            graph = self._safe(item[0].graph(item[1]))
            structure = None if graph is None else canonical_hash(graph, sizes=False)
            if graph is None or structure in seen:
                continue
            seen.add(structure)
            if all(self.constraints.admits_structure(b) for b in graph.blocks):
                self.found.counters["structures"] += 1
                yield graph

    def _safe(self, graph: KernelGraph) -> KernelGraph | None:
        """The graph with its shifts put back; None if there is no place for them."""
        safe = stabilise(graph)
        if safe is None and self.unshifted:
            self.found.counters["unstable"] += 1
            return None
        return safe or graph


def _kinds(u: Union, dag: Dag) -> tuple[int, int]:
    """How many blocks and how many library calls a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int((kinds == LAUNCH).sum()), int((kinds == LIBRARY).sum())
