"""The closure: all useful block values of one loop choice, with all ways to make each.

Nodes are values, edges the operators that make them.  Two results are one node if
shape, stage, abstract key and residues agree (observational equivalence).  A new node
meets all nodes of compatible shape before it; results whose key is not in S are cut
before they are evaluated.

The grid is not simulated: the graph of a grid is the part of the graph without a grid
that reduces no split dim, for a block sees tiles of grid dims like whole dims.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np
from numba import njit

from mirage_dsl.search.evaluation import evaluate
from mirage_dsl.search.field61 import (
    add61,
    iota61,
    is_member,
    key64,
    mul61,
    scramble64,
    sub61,
)
from mirage_dsl.search.values import NAMES, PIECE, element_count, hash_values
from mirage_dsl.search.workspace import (
    ADD,
    AFTER,
    BODY,
    CONTRACT,
    DIV,
    EDGES,
    FULL,
    FUNCTION,
    GATHER,
    GROUPS,
    HITS,
    JOIN,
    MERGED,
    MUL,
    NODES,
    PAIRS,
    SUB,
    SUM,
    TESTS,
    USED,
)

_U = np.uint64


@njit(cache=True, nogil=True)
def reset(w):
    """Empty the workspace."""
    w.count[:] = 0
    w.slots[:] = -1


@njit(cache=True, nogil=True)
def _node_hash(w, shape, stage, key, offset, count):
    word = scramble64(key ^ scramble64(_U(shape * 4 + stage)))
    return hash_values(w.values, offset, count, word)


@njit(cache=True, nogil=True)
def _enter_group(w, node):
    """Append a node to the list of those with its shape, stage and constancy."""
    n = w.count[GROUPS]
    g = 0
    while g < n and not (
        w.group_shape[g] == w.shape[node]
        and w.group_stage[g] == w.stage[node]
        and w.group_constant[g] == (w.constant[node] > 0)
    ):
        g += 1
    w.following[node] = -1
    if g < n:
        w.following[w.group_last[g]] = node
    else:
        if n == len(w.group_shape):
            w.count[FULL] = 1
            return
        w.group_shape[g] = w.shape[node]
        w.group_stage[g] = w.stage[node]
        w.group_constant[g] = w.constant[node] > 0
        w.group_first[g] = node
        w.count[GROUPS] = n + 1
    w.group_last[g] = node


@njit(cache=True, nogil=True)
def settle(w, dims, loop, shape, stage, f0, f1, constant):
    """The node of the value at the end of the pool: an old one, or a new one."""
    size = element_count(shape, dims, loop) * (2 if stage == BODY else 1)
    offset, key = w.count[USED], key64(f0, f1)
    h = _node_hash(w, shape, stage, key, offset, size)
    mask = _U(len(w.slots) - 1)
    at = h & mask
    while w.slots[at] >= 0:
        if w.hashes[w.slots[at]] == h:
            w.count[MERGED] += 1
            return w.slots[at]
        at = (at + _U(1)) & mask
    node = w.count[NODES]
    w.slots[at] = node
    w.hashes[node] = h
    w.shape[node], w.stage[node], w.offset[node] = shape, stage, offset
    w.key[node], w.constant[node], w.inverse_at[node] = key, constant, -1
    w.fingerprint[node, 0], w.fingerprint[node, 1] = f0, f1
    w.formal_inverse[node, 0], w.formal_inverse[node, 1] = iota61(f0), iota61(f1)
    w.count[NODES] = node + 1
    w.count[USED] += size
    _enter_group(w, node)
    return node


@njit(cache=True, nogil=True)
def add_edge(w, node, op, a, b, c, arg):
    """Record that `op` of `a`, `b`, `c` makes `node`; -1 stands for no operand."""
    if node == a or node == b or node == c:
        return
    e = w.count[EDGES]
    w.edges[e, 0], w.edges[e, 1], w.edges[e, 2] = node, op, a
    w.edges[e, 3], w.edges[e, 4], w.edges[e, 5] = b, c, arg
    w.count[EDGES] = e + 1


@njit(cache=True, nogil=True)
def _insert(w, r, op, a, b, c, arg, shape, stage, f0, f1):
    """Evaluate a useful result and record it."""
    full = w.count[NODES] == len(w.shape) or w.count[EDGES] == len(w.edges)
    if full or not evaluate(w, r, op, a, b, c, arg, shape, stage):
        w.count[FULL] |= full
        return
    node = settle(w, r.dims, r.loop, shape, stage, f0, f1, 0)
    add_edge(w, node, op, a, b, c, arg)


@njit(inline="always")
def _propose(w, r, op, a, b, c, arg, shape, stage, f0, f1):
    """Record the result of an operator if its abstract expression is useful."""
    w.count[TESTS] += 1
    if is_member(r.members, key64(f0, f1)):
        w.count[HITS] += 1
        _insert(w, r, op, a, b, c, arg, shape, stage, f0, f1)


@njit(cache=True, nogil=True)
def _sigma(r, over, piece):
    """σ of some dims; the loop dim is a tile if `piece`."""
    product = _U(1)
    for d in range(r.dims):
        if (over >> d) & 1:
            tile = 1 if d == r.loop and piece else 0
            product = mul61(product, r.sigma[d, tile])
    return product


@njit(cache=True, nogil=True)
def _without(shape, over, loop):
    """A shape without some dims."""
    shape &= ~over
    if loop >= 0 and not (shape >> loop) & 1:
        shape &= NAMES
    return shape


@njit(cache=True, nogil=True)
def _sums(w, r, i):
    """Sums of node `i` over every set of its dims."""
    over = w.shape[i] & r.reducible if (r.enabled >> SUM) & 1 else 0
    part = over
    while part:
        s = _sigma(r, part, w.shape[i] & PIECE)
        shape = _without(w.shape[i], part, r.loop)
        f0, f1 = mul61(w.fingerprint[i, 0], s), mul61(w.fingerprint[i, 1], s)
        _propose(w, r, SUM, i, -1, -1, part, shape, w.stage[i], f0, f1)
        part = (part - 1) & over


@njit(cache=True, nogil=True)
def _accumulators(w, r, i):
    """The sum and the concatenation of node `i` over the iterations."""
    if w.stage[i] != BODY:
        return
    f0, f1 = w.fingerprint[i, 0], w.fingerprint[i, 1]
    s0, s1 = mul61(f0, r.sigma_loop), mul61(f1, r.sigma_loop)
    _propose(w, r, JOIN, i, -1, -1, 0, w.shape[i], AFTER, s0, s1)
    if w.shape[i] & PIECE:
        _propose(w, r, GATHER, i, -1, -1, 0, w.shape[i] & NAMES, AFTER, f0, f1)


@njit(cache=True, nogil=True)
def _linear(w, r, i, j, shape, stage):
    """i + j, i - j and j - i."""
    a0, a1 = w.fingerprint[i, 0], w.fingerprint[i, 1]
    b0, b1 = w.fingerprint[j, 0], w.fingerprint[j, 1]
    total = add61(a1, b1)
    if (r.enabled >> ADD) & 1:
        _propose(w, r, ADD, j, i, -1, 0, shape, stage, add61(a0, b0), total)
    if (r.enabled >> SUB) & 1 and i != j:
        _propose(w, r, SUB, i, j, -1, 0, shape, stage, sub61(a0, b0), total)
        _propose(w, r, SUB, j, i, -1, 0, shape, stage, sub61(b0, a0), total)


@njit(cache=True, nogil=True)
def _products(w, r, i, j, shape, stage):
    """i * j, i / j and j / i; the constant 1 is no factor."""
    a0, a1 = w.fingerprint[i, 0], w.fingerprint[i, 1]
    b0, b1 = w.fingerprint[j, 0], w.fingerprint[j, 1]
    unit_i, unit_j = w.constant[i] == 2, w.constant[j] == 2
    if (r.enabled >> MUL) & 1 and not (unit_i or unit_j):
        f0, f1 = mul61(a0, b0), mul61(a1, b1)
        _propose(w, r, MUL, j, i, -1, 0, shape, stage, f0, f1)
    if (r.enabled >> DIV) & 1 and i != j:
        if not unit_j:
            b0, b1 = w.formal_inverse[j, 0], w.formal_inverse[j, 1]
            f0, f1 = mul61(a0, b0), mul61(a1, b1)
            _propose(w, r, DIV, i, j, -1, 0, shape, stage, f0, f1)
        if not unit_i:
            a0, a1 = w.formal_inverse[i, 0], w.formal_inverse[i, 1]
            b0, b1 = w.fingerprint[j, 0], w.fingerprint[j, 1]
            f0, f1 = mul61(a0, b0), mul61(a1, b1)
            _propose(w, r, DIV, j, i, -1, 0, shape, stage, f0, f1)


@njit(cache=True, nogil=True)
def _contractions(w, r, i, j, over, shape, stage):
    """Products of i and j summed over every set of the dims `over`."""
    f0 = mul61(w.fingerprint[i, 0], w.fingerprint[j, 0])
    f1 = mul61(w.fingerprint[i, 1], w.fingerprint[j, 1])
    part = over
    while part:
        s = _sigma(r, part, shape & PIECE)
        out = _without(shape, part, r.loop)
        _propose(w, r, CONTRACT, j, i, -1, part, out, stage, mul61(f0, s), mul61(f1, s))
        part = (part - 1) & over


@njit(cache=True, nogil=True)
def compatible(a, b, loop):
    """Whether two shapes have the loop dim in the same piece, if both have it."""
    both = loop >= 0 and (a >> loop) & 1 and (b >> loop) & 1
    return not both or (a & PIECE) == (b & PIECE)


@njit(cache=True, nogil=True)
def _spread_allowed(r, a, b):
    """Whether an elementwise result may have the dims of both shapes."""
    union = (a | b) & NAMES
    if union == a & NAMES or union == b & NAMES:
        return True
    for names in r.outer:
        if union & ~names == 0:
            return True
    return False


@njit(cache=True, nogil=True)
def _contracted(r, a, b):
    """The dims that a contraction of two shapes may sum over, as a mask."""
    names_a, names_b = a & NAMES, b & NAMES
    if not (r.enabled >> CONTRACT) & 1 or names_a == names_b:
        return 0
    return names_a & names_b & r.reducible


@njit(cache=True, nogil=True)
def _pairs(w, r, i):
    """Operators of node `i` and every node before it."""
    for g in range(w.count[GROUPS]):
        a, b = w.shape[i], w.group_shape[g]
        stage = w.stage[i] | w.group_stage[g]
        constants = w.constant[i] > 0 and w.group_constant[g]
        if stage == 3 or constants or not compatible(a, b, r.loop):
            continue
        shape = a | b
        spread, over = _spread_allowed(r, a, b), _contracted(r, a, b)
        j = w.group_first[g]
        while j >= 0 and j <= i:
            w.count[PAIRS] += 1
            if spread:
                _linear(w, r, i, j, shape, stage)
                _products(w, r, i, j, shape, stage)
            if over:
                _contractions(w, r, i, j, over, shape, stage)
            j = w.following[j]


@njit(cache=True, nogil=True)
def _apply_site(w, r, site, a, b, c):
    """The function of a site on operands that have its keys."""
    shape, stage, constants = w.shape[a], w.stage[a], w.constant[a] > 0
    for node in (b, c):
        if node < 0:
            continue
        if not compatible(shape, w.shape[node], r.loop):
            return
        shape |= w.shape[node]
        stage |= w.stage[node]
        constants = constants and w.constant[node] > 0
    over = r.site_over[site]
    if stage == 3 or constants or over & ~shape:
        return
    if over and shape & PIECE and (over >> r.loop) & 1:
        return
    f0, f1 = r.site_pair[site, 0], r.site_pair[site, 1]
    out = _without(shape, over, r.loop)
    _propose(w, r, FUNCTION, a, b, c, site, out, stage, f0, f1)


@njit(cache=True, nogil=True)
def _fill_site(w, r, site, i, position):
    """Applications of a site to node `i` at a position and nodes before it."""
    arity = r.site_arity[site]
    if arity == 1:
        _apply_site(w, r, site, i, -1, -1)
        return
    second = 0 if position else 1
    third = 3 - position - second
    # Each tuple comes up once: where its latest node stands first.
    for j in range(i + (second > position)):
        if w.key[j] != r.site_keys[site, second]:
            continue
        if arity == 2:
            _apply_at(w, r, site, i, position, j, second, -1, 2)
            continue
        for k in range(i + (third > position)):
            if w.key[k] == r.site_keys[site, third]:
                _apply_at(w, r, site, i, position, j, second, k, third)


@njit(cache=True, nogil=True)
def _apply_at(w, r, site, i, at_i, j, at_j, k, at_k):
    """The function of a site on nodes given with their positions."""
    a, b, c = -1, -1, -1
    for node, at in ((i, at_i), (j, at_j), (k, at_k)):
        if at == 0:
            a = node
        elif at == 1:
            b = node
        else:
            c = node
    _apply_site(w, r, site, a, b, c)


@njit(cache=True, nogil=True)
def _functions(w, r, i):
    """Functions that have node `i` as their latest operand."""
    for site in range(len(r.site_arity)):
        for position in range(r.site_arity[site]):
            same = r.site_keys[site, position] == r.site_keys[site, 0]
            if r.site_swaps[site] and position and same:
                continue
            if r.site_keys[site, position] == w.key[i]:
                _fill_site(w, r, site, i, position)


@njit(cache=True, nogil=True)
def grow(w, r, start, pairs):
    """Meet nodes from `start` on with all before them, until none is left.

    Returns the next node; stops early after about `pairs` pairs, or when full.
    """
    limit = w.count[PAIRS] + pairs
    i = start
    while i < w.count[NODES] and w.count[PAIRS] < limit and not w.count[FULL]:
        _sums(w, r, i)
        _accumulators(w, r, i)
        _functions(w, r, i)
        _pairs(w, r, i)
        i += 1
    return i
