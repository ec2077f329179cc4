"""Cheap DAGs of the layered graph by re-extraction, and the cheapest, proved.

Knuth's generalisation of Dijkstra's algorithm gives every class its cheapest tree, in
which what is used twice is paid twice.  So it is run again and again with the classes
of the last DAG free, since they are paid already; restarts perturb the costs of whole
kernels, and every second one begins with a part of the best DAG free.

**Proof** is by OR-tools' CP-SAT.

One boolean for each e-node; the outputs are needed, what is needed is made by exactly
one e-node, and an e-node needs its kids.  Few graphs have cycles, such as x = 1/y with
y = 1/x: a solution that uses one is forbidden to, and the solver runs again.  What the
e-nodes of a launch take together of shared memory and registers is a knapsack.  Without
OR-tools there is no bound, and the heuristic's answer stands.

E-nodes that no DAG has which is as cheap as a known one are left out before: often most
of them, and the solver is done several times as fast.
"""

# Numba has no types for compiled functions, nor OR-tools for its models.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.core.work import look
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure import Ints
from mirage_dsl.search.extract import EMPTY, HEAP, pop, push
from mirage_dsl.search.multi_kernel.layered import (
    LAUNCH,
    LIBRARY,
    OPERATE,
    SAVE,
    LayeredGraph,
)
from mirage_dsl.search.multi_kernel.storable import done_once

# -- Re-extraction ---------------------------------------------------------------------


ROUNDS = 8
"""Restarts between two looks at how much better they are."""

STEPS = 8
"""Extractions of one restart."""

_FACTORS = np.array([0.3, 0.6, 1.0, 1.0, 1.5, 3.0])


@dataclass(frozen=True)
class Dag:
    """One program: the e-nodes it uses, and what they cost together in µs."""

    enodes: tuple[int, ...]
    cost: float


def cheap_dags(
    u: LayeredGraph, *, seed: int, patience: int = 32, budget: Budget
) -> list[Dag]:
    """Different DAGs, cheapest first; ends after so many restarts without a better."""
    classes, users = _class_records(u)
    enodes = _enode_records(u)
    graph = (classes, enodes, u.kids, users, np.empty(len(enodes), HEAP))
    factors = np.ones(enodes["group"].max() + 1)
    found: dict[tuple[int, ...], float] = {}
    state = np.array([2 * seed + 0x9E3779B97F4A7C15, 0], np.uint64)
    rows = np.empty((STEPS, u.classes), np.int64)
    costs, least, best, since, turn = np.empty(STEPS), np.inf, np.inf, 0, 0
    while since < patience or turn % ROUNDS:
        count, best = _restart(*graph, factors, state, rows, costs, u.root, best)
        for row, cost in zip(rows[:count], costs[:count], strict=True):
            found.setdefault(tuple(row[row >= 0].tolist()), float(cost))
        turn += 1
        since += 1
        if costs[:count].min() < least - 1e-9:
            # Counted from the end of these rounds on.
            least, since = costs[:count].min(), turn % -ROUNDS
        if budget.late():
            break
    order = sorted(found.items(), key=lambda item: (item[1], item[0]))
    return [Dag(tuple(sorted(enodes)), cost) for enodes, cost in order]


def neighbours(u: LayeredGraph, dag: Dag) -> Iterator[Dag]:
    """DAGs that make one value of a block another way, cheapest change first.

    The search above perturbs whole kernels, so it has one way of most values only.
    What a change needs besides is made by cheapest trees, and what the DAG has is free.
    """
    own = np.array(dag.enodes)
    first = np.flatnonzero(np.diff(u.makes, prepend=-1))
    free = np.zeros(u.classes + 1, np.bool_)
    free[u.makes[own]] = free[-1] = True
    below = np.where(free, 0.0, np.inf)
    while True:
        through = u.cost + below[u.kids].sum(axis=1)
        least = np.minimum.reduceat(through, first)
        least[free[u.makes[first]]] = 0.0
        if np.array_equal(least, below[u.makes[first]]):
            break
        below[u.makes[first]] = least
    order = np.lexsort((through, u.makes))
    pick = np.full(u.classes, -1)
    pick[u.makes[order[first]]] = order[first]
    pick[u.makes[own]] = own
    more = through - u.cost[pick[u.makes]]
    changes = free[u.makes] & (u.kind == OPERATE) & np.isfinite(through)
    changes[own] = False
    numbers = np.flatnonzero(changes)
    kids: list[list[int]] = u.kids.tolist()
    makes: list[int] = u.makes.tolist()
    picks: list[int] = pick.tolist()
    for e in numbers[np.argsort(more[numbers], kind="stable")].tolist():
        enodes = _below(u.root, {makes[e]: e}, picks, kids)
        if enodes is not None:
            yield Dag(enodes, float(u.cost[list(enodes)].sum()))


def _below(
    root: int, changed: Mapping[int, int], picks: list[int], kids: list[list[int]]
) -> tuple[int, ...] | None:
    """The e-nodes that a class needs; None if they need each other in a circle."""
    done: dict[int, bool] = {}
    stack, found = [root], list[int]()
    while stack:
        number = stack[-1]
        e = changed.get(number, picks[number])
        if number not in done:
            done[number] = False
            for kid in kids[e]:
                if kid < 0 or done.get(kid):
                    continue
                if kid in done:
                    return None
                stack.append(kid)
            continue
        stack.pop()
        if not done[number]:
            done[number] = True
            found.append(e)
    return tuple(sorted(found))


_CLASS = np.dtype(
    [
        *((n, np.int64) for n in ("first", "pick", "chosen", "best", "stack")),
        *((n, np.bool_) for n in ("free", "used")),
        ("value", np.float64),
    ],
    align=True,
)
"""A class: where its users begin; the e-nodes that its cheapest tree, the last DAG and
the best one make it by, -1 for none; an entry of a stack, which is another class;
whether it is free, or on the stack before; what its tree costs."""

_ENODE = np.dtype(
    [
        *((n, np.int64) for n in ("makes", "group", "missing")),
        ("shared", np.bool_),
        *((n, np.float64) for n in ("cost", "own")),
    ],
    align=True,
)
"""An e-node: its class and group, kids that have no tree yet, whether it is likely to
be needed anyway; its µs, and what they are taken to be this time."""


def _class_records(u: LayeredGraph) -> tuple[NDArray[np.void], Ints]:
    """The classes, and one more for the end of the last one's users; and all users."""
    flat = u.kids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat[order], 0) :]
    made = np.zeros(u.classes + 1, _CLASS)
    made["first"] = np.searchsorted(flat[order], np.arange(u.classes + 1))
    made["best"] = -1
    return made, order // 3


def _enode_records(u: LayeredGraph) -> NDArray[np.void]:
    made = np.zeros(len(u.makes), _ENODE)
    made["makes"], made["cost"] = u.makes, u.cost
    made["group"] = np.unique(u.launch, return_inverse=True)[1]
    # Loads and launches are likely to be needed by every other DAG too.
    loads = (u.kind == OPERATE) & (u.tensor[np.maximum(u.kids[:, 0], 0)] >= 0)
    made["shared"] = (u.kind == LAUNCH) | (loads & (u.kids[:, 0] >= 0))
    return made


@once
def _cheapest_trees(classes, enodes, kids, users, heap, root):
    """Pick the e-node that begins each class's cheapest tree, until the root has one.

    -1 for classes that have none, or none that the root needs.
    """
    size = EMPTY
    for c in range(len(classes)):
        classes[c]["pick"] = -1
    for e in range(len(enodes)):
        missing = 0
        for t in range(3):
            missing += kids[e, t] >= 0
        enodes[e]["missing"], heap[e]["rank"] = missing, enodes[e]["own"]
        if missing == 0:
            push(heap, size, e)
            size += 1
    while size:
        e = pop(heap, size)
        size -= 1
        number = enodes[e]["makes"]
        made = classes[number]
        if made["pick"] >= 0:
            continue
        value = 0.0 if made["free"] else heap[e]["rank"]
        made["value"], made["pick"] = value, e
        if number == root:
            return
        for u in range(made["first"], classes[number + 1]["first"]):
            user = users[u]
            x = enodes[user]
            x["missing"] -= 1
            heap[user]["rank"] += value
            if x["missing"] == 0 and classes[x["makes"]]["pick"] < 0:
                push(heap, size, user)
                size += 1


@once
def _collect(classes, enodes, kids, root):
    """Mark the cheapest DAG below the root as chosen; returns its cost."""
    for c in range(len(classes)):
        classes[c]["chosen"] = -1
        classes[c]["used"] = False
    classes[0]["stack"], classes[root]["used"] = root, True
    size, total = 1, 0.0
    while size:
        size -= 1
        made = classes[classes[size]["stack"]]
        e = made["pick"]
        made["chosen"] = e
        total += enodes[e]["cost"]
        for t in range(3):
            kid = kids[e, t]
            if kid >= 0 and not classes[kid]["used"]:
                classes[kid]["used"] = True
                classes[size]["stack"] = kid
                size += 1
    return total


@inner
def _random(state):
    """The next number in [0, 1) of a xorshift generator."""
    x = state[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    state[0] = x
    return np.float64(x >> np.uint64(11)) / 9007199254740992.0


@once
def _begin(state, classes, factors):
    """Perturb all kernels, but in the first turn; free a part of the best DAG."""
    turn = state[1]
    for g in range(len(factors)):
        factors[g] = _FACTORS[int(6 * _random(state))] if turn else 1.0
    share = 0.0
    if turn & np.uint64(1):
        share = 0.3 + 0.6 * _random(state)
    for c in range(len(classes)):
        x = classes[c]
        x["free"] = share > 0 and x["best"] >= 0 and _random(state) < share
    state[1] = turn + np.uint64(1)


@once
def _keep(classes, row, best):
    """Write the chosen e-nodes to a row; whether they are the best, too."""
    for c in range(len(row)):
        e = classes[c]["chosen"]
        row[c] = e
        if best:
            classes[c]["best"] = e


@once
def _free(state, classes, enodes):
    """Let what was chosen be free: all that is shared, and most of the rest."""
    for c in range(len(classes)):
        x = classes[c]
        e = x["chosen"]
        x["free"] = e >= 0 and (enodes[e]["shared"] or _random(state) < 0.7)


@entry
def _restart(
    classes, enodes, kids, users, heap, factors, state, rows, costs, root, best
):
    """Restarts from turn `state[1]` on; fills rows, one a DAG, with their costs.

    Returns how many, and the cost of the best DAG so far, which was `best`.
    """
    count = 0
    for _ in range(len(rows) // STEPS):
        _begin(state, classes, factors)
        last = np.inf
        for step in range(STEPS):
            for e in range(len(enodes)):
                x = enodes[e]
                x["own"] = x["cost"] * (1.0 if step % 2 else factors[x["group"]])
            _cheapest_trees(classes, enodes, kids, users, heap, root)
            paid = _collect(classes, enodes, kids, root)
            _keep(classes, rows[count], paid < best - 1e-9)
            if paid < best - 1e-9:
                best = paid
            costs[count] = paid
            count += 1
            if step and paid > 1.05 * last:
                break
            last = paid
            _free(state, classes, enodes)
    return count, best


# -- Proof -----------------------------------------------------------------------------


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
        for number in np.unique(u.shift[done_once(u.shift)]).tolist():
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
    parts = done_once(shift)
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
