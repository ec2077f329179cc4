"""The compiled A* of `search.extract.extract`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.search.closure.workspace import Ints, Words
from mirage_dsl.search.useful.field61 import scramble64

# -- A heap of numbered states ---------------------------------------------------------

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false


HEAP = np.dtype([("rank", np.float64), ("state", np.int64)], align=True)
"""The rank of each state, and beside it, as an array of its own, the heap."""
EMPTY = np.int64(0)
"""Size of an empty heap; of NumPy's type, see `search.closure.workspace`."""


@inner
def _before(heap, a, b):
    """Whether state `a` comes before `b`: it is cheaper, or as cheap and newer."""
    first, second = heap[a]["rank"], heap[b]["rank"]
    return first < second or (first == second and a > b)


@inner
def push(heap, size, state):
    """Add a state to a heap of `size` states."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]["state"]
        if _before(heap, other, state):
            break
        heap[at]["state"] = other
        at = above
    heap[at]["state"] = state


@inner
def pop(heap, size):
    """Take the first state out of a heap of `size` states."""
    first, last, at, below = heap[0]["state"], heap[size - 1]["state"], 0, 1
    while below < size - 1:
        other = heap[below]["state"]
        if below + 1 < size - 1 and _before(heap, heap[below + 1]["state"], other):
            below += 1
            other = heap[below]["state"]
        if _before(heap, last, other):
            break
        heap[at]["state"] = other
        at, below = below, 2 * below + 1
    heap[at]["state"] = last
    return first


# -- What can be made, and is needed ---------------------------------------------------

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false


Bools = NDArray[np.bool_]


def needed(
    makes: Ints, kids: Ints, alive: Bools, roots: Ints, classes: int
) -> tuple[Bools, Bools]:
    """E-nodes whose kids can all be made and that the roots may use; classes made.

    Args:
        makes: The class that each e-node makes.
        kids: The classes that it needs, -1 for none.
        alive: The e-nodes that may be used.
        roots: The classes that are wanted, as far as they can be made.
        classes: How many classes there are.
    """
    made, wanted = np.zeros((2, classes + 1), np.bool_)
    # A kid that is not there is the class after the last one.
    made[-1] = wanted[-1] = True
    keep = np.zeros(len(makes), np.bool_)
    wanted[roots] = True
    _reach(makes, kids, alive, made, wanted, keep)
    return keep, made[:-1]


@entry
def _reach(makes, kids, alive, made, wanted, keep):
    """Mark what can be made, then from above what of it is needed.

    E-nodes mostly come after those that make their kids, so few rounds are needed.
    """
    changed = True
    while changed:
        changed = False
        for e in range(len(makes)):
            if not alive[e] or made[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                made[makes[e]] = changed = True
    changed = True
    while changed:
        changed = False
        e = len(makes)
        while e:
            e -= 1
            if not alive[e] or keep[e] or not wanted[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                keep[e] = changed = True
                for t in range(3):
                    wanted[kids[e, t]] = True


# -- A* --------------------------------------------------------------------------------

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false


_U = np.uint64

STATE = np.dtype(
    [("paid", np.float64), ("parent", np.int64), ("edge", np.int64)], align=True
)
"""What a state's decisions cost, and the last of them: its edge, the state before."""

VISIT = np.dtype([("word", np.uint64), ("count", np.int64)], align=True)
"""A set of open values, as a hash, and how often it came up."""


@once
def _require(start, kids, needs, v):
    """Fill in what every derivation of a value needs."""
    for i in range(needs.shape[1]):
        common = ~_U(0)
        for e in range(start[v], start[v + 1]):
            needed = _U(0)
            for t in range(3):
                if kids[e, t] >= 0:
                    needed |= needs[kids[e, t], i]
            common &= needed
        needs[v, i] = common
    needs[v, v // 64] |= _U(1) << _U(v % 64)


@entry
def bounds(start, kids, cost, needs, least, tree):
    """Fill in, per value: what every derivation needs, its cheapest edge and tree."""
    for v in range(len(least)):
        _require(start, kids, needs, v)
        own, whole = np.inf, np.inf
        for e in range(start[v], start[v + 1]):
            total = cost[e]
            for t in range(3):
                if kids[e, t] >= 0:
                    total += tree[kids[e, t]]
            if cost[e] < own:
                own = cost[e]
            if total < whole:
                whole = total
        least[v], tree[v] = own, whole


@once
def _bound(bits, s, needs, least):
    """A lower bound of what is left to pay in a state."""
    words, spare, total = bits.shape[1], len(bits) - 1, 0.0
    for i in range(words):
        bits[spare, i] = _U(0)
    for i in range(words):
        word, v = bits[s, i], 64 * i
        while word:
            if word & _U(1):
                for t in range(words):
                    bits[spare, t] |= needs[v, t]
            word >>= _U(1)
            v += 1
    for i in range(words):
        word, v = bits[spare, i], 64 * i
        while word:
            if word & _U(1):
                total += least[v]
            word >>= _U(1)
            v += 1
    return total


@inner
def _open(bits, s, needs, least, states, heap, size):
    """Add a state to the heap of `size` states."""
    heap[s]["rank"] = states[s]["paid"] + _bound(bits, s, needs, least)
    push(heap, size, s)


@inner
def _highest(bits, s):
    """The open value of the highest rank, -1 if none is open."""
    i = bits.shape[1]
    while i:
        i -= 1
        word = bits[s, i]
        if word:
            v = 64 * i - 1
            while word:
                word >>= _U(1)
                v += 1
            return v
    return -1


@inner
def _advance(bits, s, value, kids, e, after):
    """The open values after `value` was decided by edge `e`; may be in place."""
    for i in range(bits.shape[1]):
        bits[after, i] = bits[s, i]
    bits[after, value // 64] &= ~(_U(1) << _U(value % 64))
    for t in range(3):
        kid = kids[e, t]
        if kid >= 0:
            bits[after, kid // 64] |= _U(1) << _U(kid % 64)


@once
def _dive(bits, s, start, kids, cost, tree, row, filled):
    """Complete a DAG greedily from the open values; returns what that costs."""
    total, v = 0.0, _highest(bits, s)
    while v >= 0:
        pick, least = start[v], np.inf
        for e in range(start[v], start[v + 1]):
            price = cost[e]
            for t in range(3):
                kid = kids[e, t]
                if kid >= 0 and not (bits[s, kid // 64] >> _U(kid % 64)) & _U(1):
                    price += tree[kid]
            if price < least:
                pick, least = e, price
        total += cost[pick]
        row[filled] = pick
        filled += 1
        _advance(bits, s, v, kids, pick, s)
        v = _highest(bits, s)
    return total


@once
def _trace(states, s, row):
    """Fill a row with the edges decided up to a state; returns how many."""
    filled = 0
    while states[s]["parent"] >= 0:
        row[filled] = states[s]["edge"]
        filled += 1
        s = states[s]["parent"]
    return filled


@once
def _visit(visits, bits, s):
    """How often a set of open values has come up, this time included."""
    word = _U(1)
    for i in range(bits.shape[1]):
        word = scramble64(word ^ bits[s, i])
    mask = _U(len(visits) - 1)
    at = word & mask
    while visits[at]["count"] and visits[at]["word"] != word:
        at = (at + _U(1)) & mask
    visit = visits[at]
    visit["word"] = word
    visit["count"] += 1
    return visit["count"]


def arrays(limit: int, opened: Words) -> tuple[NDArray[np.void] | Words, ...]:
    """Open values of states, states, heap and visits of a search.

    The first states are rows of open values; the row after the last state is scratch.
    """
    bits = np.empty((limit + 1, opened.shape[1]), np.uint64)
    states = np.empty(limit, STATE)
    bits[: len(opened)] = opened
    states[: len(opened)] = (0.0, -1, -1)
    slots = 1 << (2 * limit - 1).bit_length()
    return bits, states, np.empty(limit + 1, HEAP), np.zeros(slots, VISIT)


@entry
def search(
    start, kids, cost, needs, least, tree, bits, states, heap, seen, picks, costs, used
):
    """The cheapest DAGs from any of the first `used` states, as rows of edges.

    Takes `arrays`, and fills `picks`, rows of -1, and their `costs`.  Returns how many
    DAGs there are, how many states were expanded, and whether the limit of states was
    kept; if not, the best partial DAGs are completed greedily.
    """
    size, found, expanded, exact = EMPTY, 0, 0, True
    while size < used:
        _open(bits, size, needs, least, states, heap, size)
        size += 1
    while size and found < len(costs):
        s = pop(heap, size)
        size -= 1
        v = _highest(bits, s)
        if v < 0 or not exact:
            filled = _trace(states, s, picks[found])
            costs[found] = states[s]["paid"]
            costs[found] += _dive(
                bits, s, start, kids, cost, tree, picks[found], filled
            )
            found += 1
        elif _visit(seen, bits, s) <= len(costs):
            expanded += 1
            exact = used + start[v + 1] - start[v] <= len(states)
            if not exact:
                heap[s]["rank"] = -1.0
                push(heap, size, s)
                size += 1
                continue
            for e in range(start[v], start[v + 1]):
                _advance(bits, s, v, kids, e, used)
                state = states[used]
                state["paid"] = states[s]["paid"] + cost[e]
                state["parent"], state["edge"] = s, e
                _open(bits, used, needs, least, states, heap, size)
                size, used = size + 1, used + 1
    return found, expanded, exact
