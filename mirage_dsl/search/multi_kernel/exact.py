"""The cheapest DAG of the layered graph, proved by OR-tools' CP-SAT.

One boolean for each e-node; the outputs are needed, what is needed is made by exactly
one e-node, and an e-node needs its kids.  Few graphs have cycles, such as x = 1/y with
y = 1/x: a solution that uses one is forbidden to, and the solver runs again.  What the
e-nodes of a launch take together of shared memory and registers is a knapsack.  Without
OR-tools there is no bound, and the heuristic's answer stands.

E-nodes that no DAG has which is as cheap as a known one are left out before: often most
of them, and the solver is done several times as fast.
"""

# OR-tools has no types for its models.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from mirage_dsl.core.clock import look
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure.workspace import Ints
from mirage_dsl.search.multi_kernel.candidates import once
from mirage_dsl.search.multi_kernel.graph import LAUNCH, LIBRARY, SAVE, LayeredGraph
from mirage_dsl.search.multi_kernel.heuristic import Dag

UNIT = 1e-4
"""µs of one unit of the objective."""


@dataclass(frozen=True)
class SolverAnswer:
    """What the solver found.

    Attributes:
        bound: No DAG costs less, in µs.
        best: The cheapest DAG found, if any.
        optimal: Whether it is the cheapest of all.
        nothing: Whether there is no DAG at all.
    """

    bound: float
    best: Dag | None
    optimal: bool
    nothing: bool = False


def prove(
    u: LayeredGraph,
    *,
    budget: Budget = UNLIMITED,
    effort: float = math.inf,
    max_kernels: int | None = None,
    most: Sequence[int] = (),
    known: Dag | None = None,
    seed: int = 0,
) -> SolverAnswer | None:
    """Prove the cheapest DAG; None where OR-tools is not installed.

    Args:
        u: The graph.
        budget: Stop after it with the bound reached.
        effort: Stop after so much work, by the solver's own measure, which is about a
            second and does not depend on how busy the machine is.
        max_kernels: Most launches of a DAG.
        most: The limits of a launch: what its e-nodes may take together.
        known: A DAG that is allowed; nothing dearer is looked at.
        seed: Of the solver.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return None
    kept = None
    if known is not None:
        kept = cheap_enough(u, known.cost + UNIT * (len(known.enodes) + 1))
    model = _Model(u if kept is None else u.take(kept), cp_model)
    if max_kernels is not None:
        model.limit_launches(max_kernels)
    model.limit_room(most)
    model.shift_once()
    if known is not None:
        model.limit_cost(known)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.subsolvers.append("core")
    # Finding the symmetries of these models takes longer than they save.
    solver.parameters.symmetry_level = 0
    solver.parameters.random_seed = seed
    answer = _solved(model, solver, budget, effort)
    if kept is None or answer.best is None:
        return answer
    enodes: list[int] = kept[list(answer.best.enodes)].tolist()
    return replace(answer, best=Dag(tuple(enodes), answer.best.cost))


def cheap_enough(u: LayeredGraph, most: float) -> Ints:
    """Numbers of the e-nodes that DAGs of at most so many µs may have, and some others.

    A DAG costs no less than the dearest way down from its root.  A load leads to the
    kernel ahead, and needs its own launch besides; no way down passes a launch twice.
    """
    launches = np.zeros(u.classes + 1)
    own = u.kind == LAUNCH
    launches[u.makes[own]] = u.cost[own]
    loads = launches[u.kids[:, 1]] > 0
    cost = u.cost + np.where(loads, launches[u.kids[:, 1]], 0.0)
    kids = u.kids.copy()
    kids[loads, 1] = -1
    first = np.flatnonzero(np.diff(u.makes, prepend=-1))
    # One more for no kid, which costs nothing; it is the last, and so -1.
    below = np.full(u.classes + 1, np.inf)
    below[-1] = 0.0
    while True:
        through = cost + below[kids].max(axis=1)
        least = np.minimum.reduceat(through, first)
        if np.array_equal(least, below[u.makes[first]]):
            break
        below[u.makes[first]] = least
    above = np.full(u.classes + 1, np.inf)
    above[u.root] = 0.0
    while True:
        before = above.copy()
        paid = above[u.makes]
        np.minimum.at(above, kids, (paid + cost)[:, None])
        np.minimum.at(above, u.kids[loads, 1], (paid + u.cost)[loads])
        if np.array_equal(above, before):
            break
    return np.flatnonzero(above[u.makes] + through <= most)


def _solved(model: _Model, solver: Any, budget: Budget, effort: float) -> SolverAnswer:
    """Solve, again and again while the solution needs itself."""
    best, bound = None, 0.0
    while True:
        solver.parameters.max_time_in_seconds = max(0.0, budget.seconds)
        if effort < math.inf:
            solver.parameters.max_deterministic_time = max(0.0, effort)
        status = solver.status_name(solver.solve(model.model))
        effort -= solver.response_proto.deterministic_time
        if solver.response_proto.best_objective_bound > -math.inf:
            bound = max(bound, UNIT * solver.best_objective_bound)
        if status not in ("OPTIMAL", "FEASIBLE"):
            break
        u, chosen = model.u, [e for e, x in enumerate(model.x) if solver.value(x)]
        enodes = _used(u, chosen)
        ring = _ring(u, enodes)
        if not ring:
            best = Dag(enodes, float(u.cost[list(enodes)].sum()))
            break
        model.forbid(ring)
    return SolverAnswer(bound, best, status == "OPTIMAL", status == "INFEASIBLE")


class _Model:
    """The integer programme of a layered graph."""

    def __init__(self, u: LayeredGraph, cp_model: Any) -> None:
        self.u = u
        self.model = cp_model.CpModel()
        self.x = [self.model.new_bool_var("") for _ in range(len(u.cost))]
        self.weighted = cp_model.LinearExpr.weighted_sum
        ways: dict[int, list[int]] = defaultdict(list)
        for e, c in enumerate(u.makes.tolist()):
            ways[c].append(e)
        self.ways = ways
        self.model.add_exactly_one(self.x[e] for e in ways[u.root])
        for c, enodes in ways.items():
            if len(enodes) > 1 and c != u.root:
                self.model.add_at_most_one(self.x[e] for e in enodes)
            self.need(enodes)
        self.save_once()
        units: list[int] = np.rint(u.cost / UNIT).astype(np.int64).tolist()
        self.cost = self.weighted(self.x, units)
        self.model.minimize(self.cost)

    def limit_cost(self, known: Dag) -> None:
        """No more than a known DAG, whose costs are rounded one by one."""
        self.model.add(self.cost <= int(known.cost / UNIT) + len(known.enodes))

    def need(self, enodes: list[int]) -> None:
        """The kids of the e-nodes of one class, where one of them is chosen."""
        look()
        by_kid: dict[int, list[int]] = defaultdict(list)
        for e in enodes:
            for kid in set(self.u.kids[e].tolist()) - {-1}:
                by_kid[kid].append(e)
        for kid, users in by_kid.items():
            made = self.ways[kid]
            names = [self.x[e] for e in (*users, *made)]
            self.model.add(
                self.weighted(names, [1] * len(users) + [-1] * len(made)) <= 0
            )

    def save_once(self) -> None:
        """A tensor is stored by one kernel only."""
        u = self.u
        by_tensor: dict[int, list[int]] = defaultdict(list)
        for e in np.flatnonzero((u.kind == SAVE) | (u.kind == LIBRARY)).tolist():
            by_tensor[int(u.tensor[u.makes[e]])].append(e)
        for enodes in by_tensor.values():
            if len(enodes) > 1:
                self.model.add_at_most_one(self.x[e] for e in enodes)

    def forbid(self, enodes: list[int]) -> None:
        """Not all of the e-nodes."""
        self.model.add_bool_or(self.x[e].negated() for e in enodes)

    def limit_launches(self, most: int) -> None:
        """At most so many kernels."""
        u = self.u
        launches = np.flatnonzero((u.kind == LAUNCH) | (u.kind == LIBRARY)).tolist()
        self.model.add(sum(self.x[e] for e in launches) <= most)

    def limit_room(self, most: Sequence[int]) -> None:
        """What fits on a multiprocessor: a knapsack for each launch and limit."""
        u = self.u
        for column, limit in enumerate(most):
            taking = np.flatnonzero(u.room[:, column])
            for launch in np.unique(u.launch[taking]).tolist():
                own = taking[u.launch[taking] == launch]
                if self.largest(own, column) > limit:
                    names = [self.x[e] for e in own.tolist()]
                    taken = u.room[own, column].tolist()
                    self.model.add(self.weighted(names, taken) <= limit)

    def largest(self, enodes: Ints, column: int) -> int:
        """The most that some e-nodes can take, one of each class."""
        each: dict[int, int] = {}
        for c, taken in zip(
            self.u.makes[enodes].tolist(),
            self.u.room[enodes, column].tolist(),
            strict=True,
        ):
            each[c] = max(each.get(c, 0), taken)
        return sum(each.values())

    def shift_once(self) -> None:
        """Parts are combined in one launch, or else there are several shifts."""
        u = self.u
        for number in np.unique(u.shift[once(u.shift)]).tolist():
            by_launch: dict[int, list[int]] = defaultdict(list)
            for e in np.flatnonzero(u.shift == number).tolist():
                by_launch[int(u.launch[e])].append(e)
            if len(by_launch) < 2:
                continue
            used = [self.model.new_bool_var("") for _ in by_launch]
            for made, enodes in zip(used, by_launch.values(), strict=True):
                for e in enodes:
                    self.model.add_implication(self.x[e], made)
            self.model.add_at_most_one(used)


def _used(u: LayeredGraph, chosen: list[int]) -> tuple[int, ...]:
    """Those of the chosen e-nodes that the root needs."""
    by_class = {int(u.makes[e]): e for e in chosen}
    found: set[int] = set()
    stack = [u.root]
    while stack:
        e = by_class[stack.pop()]
        if e not in found:
            found.add(e)
            stack.extend(k for k in u.kids[e].tolist() if k >= 0)
    return tuple(sorted(found))


def _ring(u: LayeredGraph, enodes: Sequence[int]) -> list[int]:
    """E-nodes that need each other in a circle; empty if there are none."""
    by_class = {int(u.makes[e]): e for e in enodes}
    needs = {e: [by_class[k] for k in u.kids[e].tolist() if k >= 0] for e in enodes}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return error.args[1][1:]
    return []


def launches(u: LayeredGraph, dag: Dag) -> int:
    """How many kernels a DAG has."""
    kinds = u.kind[list(dag.enodes)]
    return int(((kinds == LAUNCH) | (kinds == LIBRARY)).sum())


def obeys(u: LayeredGraph, dag: Dag, most: Sequence[int]) -> bool:
    """Whether the launches of a DAG keep to the limits and combine all parts once."""
    enodes = np.array(dag.enodes)
    launch, shift = u.launch[enodes], u.shift[enodes]
    parts = once(shift)
    chosen = set(zip(shift[parts], launch[parts], strict=True))
    if len(chosen) > len({s for s, _ in chosen}):
        return False
    inside = launch >= 0
    _, place = np.unique(launch[inside], return_inverse=True)
    for column, limit in enumerate(most):
        taken = np.bincount(place, weights=u.room[enodes[inside], column])
        if (taken > limit).any():
            return False
    return True
