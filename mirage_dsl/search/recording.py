"""Compiled book-keeping of the closure: finding, making and linking nodes."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.search.compiled import entry, inner, once
from mirage_dsl.search.evaluation import evaluate
from mirage_dsl.search.field61 import iota61, is_member, key64, mul61, scramble64
from mirage_dsl.search.values import NAMES, PIECE, elements, hash_values
from mirage_dsl.search.workspace import (
    APART,
    BODY,
    EDGES,
    FULL,
    GROUPS,
    HITS,
    MERGED,
    MOST_NODES,
    NO_ARG,
    NODES,
    NONE,
    TESTS,
    USED,
    WAITING,
)

_U = np.uint64


@once
def _node_hash(w, shape, stage, key, offset, count):
    word = scramble64(key ^ scramble64(_U(shape * 4 + stage)))
    return hash_values(w.values, offset, count, word)


@once
def _enter_group(w, number):
    """Append a node to the list of those with its shape, stage and constancy."""
    node = w.nodes[number]
    constant = node["constant"] > 0
    n = w.counts[GROUPS]
    for g in range(n):
        group = w.groups[g]
        alike = group["shape"] == node["shape"] and group["stage"] == node["stage"]
        if alike and group["constant"] == constant:
            w.nodes[group["last"]]["following"] = number
            group["last"] = number
            return
    if n == len(w.groups):
        w.counts[FULL] = 1
        return
    group = w.groups[n]
    group["shape"], group["stage"] = node["shape"], node["stage"]
    group["constant"] = constant
    group["first"], group["last"] = number, number
    w.counts[GROUPS] = n + 1


@entry
def settle(w, dims, loop, shape, stage, f0, f1, constant):
    """The node of the value at the end of the pool: an old one, or a new one."""
    size = elements(shape, dims, loop) * (2 if stage == BODY else 1)
    offset, key = w.counts[USED], key64(f0, f1)
    h = _node_hash(w, shape, stage, key, offset, size)
    if w.counts[APART]:
        h ^= scramble64(_U(w.counts[NODES]))
    mask = _U(len(w.slots) - 1)
    at = h & mask
    while w.slots[at] >= 0:
        if w.nodes[w.slots[at]]["hash"] == h:
            w.counts[MERGED] += 1
            return w.slots[at]
        at = (at + _U(1)) & mask
    number = w.counts[NODES]
    w.slots[at] = number
    node = w.nodes[number]
    node["hash"], node["key"] = h, key
    node["shape"], node["stage"], node["offset"] = shape, stage, offset
    node["constant"], node["inverse_at"], node["following"] = constant, -1, -1
    node["f0"], node["f1"] = f0, f1
    node["i0"], node["i1"] = iota61(f0), iota61(f1)
    w.counts[NODES] = number + 1
    w.counts[USED] += size
    _enter_group(w, number)
    return number


@entry
def add_edge(w, node, kind, a, b, c, arg):
    """Record that a kind of edge makes `node` of `a`, `b` and `c`."""
    if node == a or node == b or node == c:  # noqa: SIM109, compiles to less
        return
    edge = w.edges[w.counts[EDGES]]
    edge["node"], edge["kind"], edge["arg"] = node, kind, arg
    edge["a"], edge["b"], edge["c"] = a, b, c
    w.counts[EDGES] += 1


@inner
def note(w, kind, a, b, c, arg, shape, stage, f0, f1):
    """Remember a useful result, to be evaluated by `record`."""
    n = w.counts[WAITING]
    if n == len(w.found):
        w.counts[FULL] = 1
        return
    found = w.found[n]
    found["kind"], found["arg"] = kind, arg
    found["a"], found["b"], found["c"] = a, b, c
    found["shape"], found["stage"] = shape, stage
    found["f0"], found["f1"] = f0, f1
    w.counts[WAITING] = n + 1


@entry
def record(w, r):
    """Evaluate the useful results that are remembered, and link them."""
    for t in range(w.counts[WAITING]):
        w.counts[HITS] += 1
        x = w.found[t]
        kind, arg, shape, stage = x["kind"], x["arg"], x["shape"], x["stage"]
        a, b, c = x["a"], x["b"], x["c"]
        if w.counts[NODES] == w.counts[MOST_NODES] or w.counts[EDGES] == len(w.edges):
            w.counts[FULL] = 1
        elif evaluate(w, r, kind, a, b, c, arg, shape, stage):
            f0, f1 = x["f0"], x["f1"]
            node = settle(w, r.dims, r.loop, shape, stage, f0, f1, NO_ARG)
            add_edge(w, node, kind, a, b, c, arg)
    w.counts[WAITING] = 0


@inner
def salt64(shape):
    """`abstract.salt_of` of a packed shape."""
    return scramble64(_U(shape & NAMES))


@inner
def hit(r, salt, first, second):
    """Whether a value with these dims and this fingerprint is useful."""
    key = key64(first, second) ^ salt
    if key == _U(0):
        key = _U(1)
    if r.everything:
        return True
    return is_member(r.members, r.mask, key)


@inner
def propose(w, r, kind, a, arg, shape, stage, f0, f1):
    """Record the result of an operator of one node if it is useful."""
    w.counts[TESTS] += 1
    if hit(r, salt64(shape), f0, f1):
        note(w, kind, a, NONE, NONE, arg, shape, stage, f0, f1)


@inner
def sigma_of(r, over, tile):
    """σ of some dims; of a tile of the dim `tile` if that is one of them."""
    product = _U(1)
    for d in range(r.dims):
        if (over >> d) & 1:
            product = mul61(product, r.sigma[d, 1 if d == tile else 0])
    return product


@inner
def without(shape, over, loop):
    """A shape without some dims."""
    shape &= ~over
    if loop >= 0 and not (shape >> loop) & 1:
        shape &= NAMES
    return shape


@inner
def compatible(a, b, loop):
    """Whether two shapes have the loop dim in the same piece, if both have it."""
    both = loop >= 0 and (a >> loop) & 1 and (b >> loop) & 1
    return not both or (a & PIECE) == (b & PIECE)
