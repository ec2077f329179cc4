"""Cheap DAGs of the union by repeated re-extraction.

Knuth's generalisation of Dijkstra's algorithm gives every class its cheapest tree, in
which what is used twice is paid twice.  So it is run again and again with the classes
of the last DAG free, since they are paid already; restarts perturb the costs of whole
kernels, and every second one begins with a part of the best DAG free.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.search.compiled import entry, inner, once
from mirage_dsl.search.heap import pop, push
from mirage_dsl.search.union.graph import LAUNCH, OPERATE, Union
from mirage_dsl.search.workspace import Ints

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROUNDS = 8
"""Restarts between two looks at the clock."""

STEPS = 8
"""Extractions of one restart."""

_FACTORS = np.array([0.3, 0.6, 1.0, 1.0, 1.5, 3.0])


@dataclass(frozen=True)
class Dag:
    """One program: the e-nodes it uses, and what they cost together in µs."""

    enodes: tuple[int, ...]
    cost: float


@dataclass(frozen=True)
class Links:
    """A union as lists: the users of each class, and the group of each e-node."""

    union: Union
    users: Ints
    first: Ints
    group: Ints
    groups: int
    shared: Ints


def links_of(u: Union) -> Links:
    """Prepare a union."""
    flat = u.kids.reshape(-1)
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat[order], 0) :]
    first = np.searchsorted(flat[order], np.arange(u.classes + 1))
    names, group = np.unique(u.launch, return_inverse=True)
    # Loads and launches are likely to be needed by every other DAG too.
    loads = (u.kind == OPERATE) & (u.tensor[np.maximum(u.kids[:, 0], 0)] >= 0)
    shared = (u.kind == LAUNCH) | (loads & (u.kids[:, 0] >= 0))
    return Links(u, order // 3, first, group, len(names), shared.astype(np.int64))


def search(
    u: Union, *, seed: int = 0, patience: int = 128, deadline: float | None = None
) -> list[Dag]:
    """Different DAGs, cheapest first; ends after so many restarts without a better."""
    links = links_of(u)
    graph = (u.makes, u.kids, u.cost, links.users, links.first)
    graph = (*graph, links.group, np.ones(links.groups), links.shared, u.root)
    found: dict[tuple[int, ...], float] = {}
    best = np.full(u.classes, -1)
    state = np.array([2 * seed + 0x9E3779B97F4A7C15, 0], np.uint64)
    rows, costs = (
        np.empty((ROUNDS * STEPS, u.classes), np.int64),
        np.empty(ROUNDS * STEPS),
    )
    scratch, least, since = _scratch(u.classes, len(u.makes)), np.inf, 0
    while since < patience:
        count = _restart(*graph, state, best, (rows, costs), scratch)
        for row, cost in zip(rows[:count], costs[:count], strict=True):
            found.setdefault(tuple(row[row >= 0].tolist()), float(cost))
        since += ROUNDS
        if costs[:count].min() < least - 1e-9:
            least, since = costs[:count].min(), 0
        if deadline is not None and time.monotonic() > deadline:
            break
    order = sorted(found.items(), key=lambda item: (item[1], item[0]))
    return [Dag(tuple(sorted(enodes)), cost) for enodes, cost in order]


@inner
def _fill(array, value):
    """Numba compiles a loop far sooner than an assignment to a slice."""
    for i in range(len(array)):
        array[i] = value


@inner
def _copy(array, out):
    for i in range(len(array)):
        out[i] = array[i]


class _Scratch(NamedTuple):
    """Arrays of one restart, by class and by e-node."""

    free: Bools
    used: Bools
    pick: Ints
    chosen: Ints
    stack: Ints
    value: Floats
    missing: Ints
    total: Floats
    own: Floats
    heap: Ints


def _scratch(classes: int, enodes: int) -> _Scratch:
    return _Scratch(
        np.zeros(classes, np.bool_),
        np.zeros(classes, np.bool_),
        np.empty(classes, np.int64),
        np.empty(classes, np.int64),
        np.empty(classes, np.int64),
        np.empty(classes),
        np.empty(enodes, np.int64),
        np.empty(enodes),
        np.empty(enodes),
        np.empty(enodes, np.int64),
    )


@once
def _cheapest_trees(makes, kids, users, first, x):
    """The e-node that begins each class's cheapest tree; -1 if there is none."""
    missing, total, pick, size = x.missing, x.total, x.pick, 0
    for e in range(len(makes)):
        missing[e], total[e] = 0, x.own[e]
        for t in range(3):
            missing[e] += kids[e, t] >= 0
        if missing[e] == 0:
            push(x.heap, size, total, e)
            size += 1
    _fill(pick, -1)
    while size:
        e = pop(x.heap, size, total)
        size -= 1
        c = makes[e]
        if pick[c] >= 0:
            continue
        x.value[c], pick[c] = 0.0 if x.free[c] else total[e], e
        for u in range(first[c], first[c + 1]):
            user = users[u]
            missing[user] -= 1
            total[user] += x.value[c]
            if missing[user] == 0 and pick[makes[user]] < 0:
                push(x.heap, size, total, user)
                size += 1


@inner
def _collect(pick, kids, cost, root, x):
    """The DAG below the root: fills `chosen` by class, returns its cost."""
    _fill(x.chosen, -1)
    _fill(x.used, False)
    x.stack[0], x.used[root] = root, True
    size, total = 1, 0.0
    while size:
        size -= 1
        c = x.stack[size]
        e = pick[c]
        x.chosen[c] = e
        total += cost[e]
        for t in range(3):
            kid = kids[e, t]
            if kid >= 0 and not x.used[kid]:
                x.used[kid] = True
                x.stack[size] = kid
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
def _begin(turn, state, best, factors, free):
    """Perturb all kernels, but in the first turn; free a part of the best DAG."""
    _fill(free, False)
    for g in range(len(factors)):
        factors[g] = _FACTORS[int(6 * _random(state))] if turn else 1.0
    if turn % 2:
        share = 0.3 + 0.6 * _random(state)
        for c in range(len(best)):
            free[c] = best[c] >= 0 and _random(state) < share


@entry
def _restart(
    makes, kids, cost, users, first, group, factors, shared, root, state, best, dags, x
):
    """Restarts from turn `state[1]` on; fills rows, one a DAG, with their costs.

    Returns how many.
    """
    rows, costs = dags
    turn, count, least = int(state[1]), 0, np.inf
    if best[root] >= 0:
        least = _collect(best, kids, cost, root, x)
    for _ in range(len(rows) // STEPS):
        _begin(turn, state, best, factors, x.free)
        last = np.inf
        for step in range(STEPS):
            for e in range(len(cost)):
                x.own[e] = cost[e] * (1.0 if step % 2 else factors[group[e]])
            _cheapest_trees(makes, kids, users, first, x)
            paid = _collect(x.pick, kids, cost, root, x)
            if paid < least - 1e-9:
                least = paid
                _copy(x.chosen, best)
            _copy(x.chosen, rows[count])
            costs[count] = paid
            count += 1
            if step and paid > 1.05 * last:
                break
            last = paid
            for c in range(len(best)):
                e = x.chosen[c]
                x.free[c] = e >= 0 and (shared[e] or _random(state) < 0.7)
        turn += 1
    state[1] = turn
    return count
