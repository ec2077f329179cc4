"""Cheap DAGs of the layered graph by repeated re-extraction.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.closure.workspace import Ints
from mirage_dsl.search.extract import EMPTY, HEAP, pop, push
from mirage_dsl.search.multi_kernel.graph import LAUNCH, OPERATE, LayeredGraph

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


def search(
    u: LayeredGraph, *, seed: int = 0, patience: int = 32, budget: Budget = UNLIMITED
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
