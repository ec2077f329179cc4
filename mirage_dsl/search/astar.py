"""The compiled A* of `search.extract`."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.search.compiled import entry, inner, once
from mirage_dsl.search.field61 import scramble64
from mirage_dsl.search.heap import pop, push
from mirage_dsl.search.workspace import Ints, Words

Floats = NDArray[np.float64]

_U = np.uint64


@entry
def bounds(start, kids, cost, mandatory, least, tree):
    """Fill in, per value: what every derivation needs, its cheapest edge and tree."""
    for v in range(len(least)):
        least[v], tree[v] = np.inf, np.inf
        for i in range(mandatory.shape[1]):
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


@inner
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


@inner
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


@inner
def _advance(opened, value, kids, e, result):
    """The open values after `value` was decided by edge `e`; may be in place."""
    for i in range(len(opened)):
        result[i] = opened[i]
    result[value // 64] &= ~(_U(1) << _U(value % 64))
    for t in range(3):
        kid = kids[e, t]
        if kid >= 0:
            result[kid // 64] |= _U(1) << _U(kid % 64)


@once
def _dive(opened, start, kids, cost, tree, row):
    """Complete a DAG greedily from the open values; returns what that costs."""
    total, filled = 0.0, 0
    while row[filled] >= 0:
        filled += 1
    v = _highest(opened)
    while v >= 0:
        pick, least = start[v], np.inf
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


@once
def _trace(parent, edge, state, row):
    """The edges decided up to a state."""
    filled = 0
    for i in range(len(row)):
        row[i] = -1
    while parent[state] >= 0:
        row[filled] = edge[state]
        filled += 1
        state = parent[state]


@once
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


class Scratch(NamedTuple):
    """Arrays of one search: of its states the open values, and how they came about."""

    bits: Words
    paid: Floats
    rank: Floats
    parent: Ints
    edge: Ints
    heap: Ints
    keys: Words
    visits: NDArray[np.int32]
    union: Words


def scratch(limit: int, words: int) -> Scratch:
    """Arrays for so many states, of so many words of open values."""
    slots = 1 << (2 * limit - 1).bit_length()
    return Scratch(
        np.empty((limit, words), np.uint64),
        np.empty(limit),
        np.empty(limit),
        np.empty(limit, np.int64),
        np.empty(limit, np.int64),
        np.empty(limit + 1, np.int64),
        np.empty(slots, np.uint64),
        np.zeros(slots, np.int32),
        np.empty(words, np.uint64),
    )


@entry
def search(start, kids, cost, mandatory, least, tree, opened, picks, costs, x):
    """The cheapest DAGs from any row of `opened`, as rows of edges ended by -1.

    Fills the rows of `picks` and their `costs`; `x` is a `Scratch`.  Returns how many
    there are, how many states were expanded, and whether the limit of states was kept;
    if not, the best partial DAGs are completed greedily.
    """
    bits, paid, rank, heap = x.bits, x.paid, x.rank, x.heap
    k, limit, used, size = len(costs), len(paid), len(opened), np.int64(0)
    for s in range(used):
        paid[s], x.parent[s] = 0.0, -1
        for i in range(opened.shape[1]):
            bits[s, i] = opened[s, i]
        rank[s] = _bound(bits[s], mandatory, least, x.union)
        push(heap, size, rank, s)
        size += 1
    found, expanded, exact = 0, 0, True
    while size and found < k:
        s = pop(heap, size, rank)
        size -= 1
        v = _highest(bits[s])
        if v < 0 or not exact:
            _trace(x.parent, x.edge, s, picks[found])
            costs[found] = paid[s]
            costs[found] += _dive(bits[s], start, kids, cost, tree, picks[found])
            found += 1
        elif _visit(x.keys, x.visits, bits[s]) <= k:
            expanded += 1
            exact = used + start[v + 1] - start[v] <= limit
            if not exact:
                rank[s] = -1.0
                push(heap, size, rank, s)
                size += 1
                continue
            for e in range(start[v], start[v + 1]):
                _advance(bits[s], v, kids, e, bits[used])
                paid[used] = paid[s] + cost[e]
                x.parent[used], x.edge[used] = s, e
                left = _bound(bits[used], mandatory, least, x.union)
                rank[used] = paid[used] + left
                push(heap, size, rank, used)
                size, used = size + 1, used + 1
    return found, expanded, exact
