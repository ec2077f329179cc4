"""The compiled A* of `search.extract`."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from mirage_dsl.search.field61 import scramble64

_U = np.uint64


@njit(cache=True, nogil=True)
def bounds(start, kids, cost, words):
    """Per value: what every derivation needs, its cheapest edge, its tree's cost."""
    n = len(start) - 1
    mandatory = np.empty((n, words), np.uint64)
    least, tree = np.empty(n), np.empty(n)
    for v in range(n):
        least[v], tree[v] = np.inf, np.inf
        for i in range(words):
            common = ~_U(0)
            for e in range(start[v], start[v + 1]):
                needed = _U(0)
                for t in range(3):
                    if kids[e, t] >= 0:
                        needed |= mandatory[kids[e, t], i]
                common &= needed
            mandatory[v, i] = common
        for e in range(start[v], start[v + 1]):
            total = cost[e]
            for t in range(3):
                if kids[e, t] >= 0:
                    total += tree[kids[e, t]]
            least[v], tree[v] = min(least[v], cost[e]), min(tree[v], total)
        mandatory[v, v // 64] |= _U(1) << _U(v % 64)
    return mandatory, least, tree


@njit(cache=True, nogil=True)
def _bound(opened, mandatory, least, union):
    """A lower bound of what is left to pay for a set of open values."""
    for i in range(len(union)):
        union[i] = _U(0)
    for i in range(len(opened)):
        word = opened[i]
        bit = 0
        while word:
            if word & _U(1):
                for t in range(len(union)):
                    union[t] |= mandatory[64 * i + bit, t]
            word >>= _U(1)
            bit += 1
    total = 0.0
    for i in range(len(union)):
        word = union[i]
        bit = 0
        while word:
            if word & _U(1):
                total += least[64 * i + bit]
            word >>= _U(1)
            bit += 1
    return total


@njit(cache=True, nogil=True)
def _highest(opened):
    """The open value of the highest rank, -1 if none is open."""
    for i in range(len(opened) - 1, -1, -1):
        word = opened[i]
        if word:
            bit = -1
            while word:
                word >>= _U(1)
                bit += 1
            return 64 * i + bit
    return -1


@njit(cache=True, nogil=True)
def _advance(opened, value, kids, e, result):
    """The open values after `value` was decided by edge `e`; may be in place."""
    for i in range(len(opened)):
        result[i] = opened[i]
    result[value // 64] &= ~(_U(1) << _U(value % 64))
    for t in range(3):
        kid = kids[e, t]
        if kid >= 0:
            result[kid // 64] |= _U(1) << _U(kid % 64)


@njit(cache=True, nogil=True)
def _dive(opened, start, kids, cost, tree, row):
    """Complete a DAG greedily from the open values; returns what that costs."""
    total, filled = 0.0, 0
    while row[filled] >= 0:
        filled += 1
    v = _highest(opened)
    while v >= 0:
        pick, least = -1, np.inf
        for e in range(start[v], start[v + 1]):
            price = cost[e]
            for t in range(3):
                kid = kids[e, t]
                if kid >= 0 and not (opened[kid // 64] >> _U(kid % 64)) & _U(1):
                    price += tree[kid]
            if price < least:
                pick, least = e, price
        total += cost[pick]
        row[filled] = pick
        filled += 1
        _advance(opened, v, kids, pick, opened)
        v = _highest(opened)
    return total


@njit(cache=True, nogil=True)
def _trace(parent, edge, state, row):
    """The edges decided up to a state."""
    filled = 0
    for i in range(len(row)):
        row[i] = -1
    while parent[state] >= 0:
        row[filled] = edge[state]
        filled += 1
        state = parent[state]


@njit(cache=True, nogil=True)
def _visit(keys, visits, opened):
    """How often a set of open values has come up, this time included."""
    word = _U(1)
    for i in range(len(opened)):
        word = scramble64(word ^ opened[i])
    mask = _U(len(keys) - 1)
    at = word & mask
    while visits[at] and keys[at] != word:
        at = (at + _U(1)) & mask
    keys[at] = word
    visits[at] += 1
    return visits[at]


@njit(cache=True, nogil=True)
def _slots(states):
    """A power of two with room for so many keys."""
    size = 1024
    while size < 2 * states:
        size *= 2
    return size


@njit(cache=True, nogil=True)
def search(start, kids, cost, mandatory, least, tree, opened, picks, costs, limit):
    """The cheapest DAGs from any row of `opened`, as rows of edges ended by -1.

    Fills the rows of `picks` and their `costs`.  Returns how many there are, how many
    states were expanded, and whether the limit of states was kept; if not, the best
    partial DAGs are completed greedily.
    """
    words, k = opened.shape[1], len(costs)
    bits = np.empty((limit, words), np.uint64)
    paid = np.empty(limit)
    parent, edge = np.empty(limit, np.int64), np.empty(limit, np.int64)
    keys, visits = np.empty(_slots(limit), np.uint64), np.zeros(_slots(limit), np.int32)
    union = np.empty(words, np.uint64)
    heap = [(0.0, np.int64(0))][:0]
    used = len(opened)
    for s in range(used):
        paid[s], parent[s] = 0.0, -1
        for i in range(words):
            bits[s, i] = opened[s, i]
        heapq.heappush(heap, (_bound(bits[s], mandatory, least, union), -s))
    found, expanded, exact = 0, 0, True
    while heap and found < k:
        s = -heapq.heappop(heap)[1]
        v = _highest(bits[s])
        if v < 0 or not exact:
            _trace(parent, edge, s, picks[found])
            costs[found] = paid[s]
            costs[found] += _dive(bits[s], start, kids, cost, tree, picks[found])
            found += 1
        elif _visit(keys, visits, bits[s]) <= k:
            expanded += 1
            exact = used + start[v + 1] - start[v] <= limit
            if not exact:
                heapq.heappush(heap, (-1.0, -s))
                continue
            for e in range(start[v], start[v + 1]):
                _advance(bits[s], v, kids, e, bits[used])
                paid[used], parent[used], edge[used] = paid[s] + cost[e], s, e
                left = _bound(bits[used], mandatory, least, union)
                heapq.heappush(heap, (paid[used] + left, -used))
                used += 1
    return found, expanded, exact
