"""Compiled evaluation of one edge of the closure, into the end of the value pool."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.search.compiled import entry, inner, once
from mirage_dsl.search.field61 import scramble64
from mirage_dsl.search.steps import JOIN as JOIN_STEP
from mirage_dsl.search.values import (
    ITERATIONS,
    add_elements,
    add_onto,
    add_products,
    elements,
    index_map,
    invert,
    largest_onto,
    loop_map,
    opaque,
    residue_of,
)
from mirage_dsl.search.workspace import (
    BODY,
    CONTRACT,
    DIV,
    FULL,
    FUNCTION,
    GATHER,
    JOIN,
    MOST_VALUES,
    SUB,
    SUM,
    USED,
)


@inner
def reserve(w, size):
    """Whether the value pool has room for `size` more residues; set to 0."""
    used = w.counts[USED]
    if used + size > w.counts[MOST_VALUES]:
        w.counts[FULL] = 1
        return False
    for t in range(used, used + size):
        w.values[t] = 0
    return True


@inner
def _at(w, r, node, iteration, offset):
    """Where the residues of a node begin for an iteration."""
    if w.nodes[node]["stage"] != BODY or iteration == 0:
        return offset
    return offset + iteration * elements(w.nodes[node]["shape"], r.dims, r.loop)


@once
def _inverses(w, r, node):
    """Where the inverses of a node's residues are; -1 if it has none."""
    if w.nodes[node]["inverse_at"] == -1:
        size = elements(w.nodes[node]["shape"], r.dims, r.loop)
        size *= ITERATIONS if w.nodes[node]["stage"] == BODY else 1
        at = w.counts[USED]
        if not reserve(w, size):
            return np.int64(-1)
        if invert(w.values, w.nodes[node]["offset"], at, size):
            w.nodes[node]["inverse_at"] = at
            w.counts[USED] += size
        else:
            w.nodes[node]["inverse_at"] = -2
    return max(w.nodes[node]["inverse_at"], -1)


@once
def _products(w, r, a, b, b_values, shape, iterations):
    """Products of two nodes, summed over some dims."""
    union = w.nodes[a]["shape"] | w.nodes[b]["shape"]
    if elements(union, r.dims, r.loop) > w.maps.shape[1]:
        w.counts[FULL] = 1
        return False
    index_map(union, w.nodes[a]["shape"], r.dims, r.loop, w.maps[0])
    index_map(union, w.nodes[b]["shape"], r.dims, r.loop, w.maps[1])
    n = index_map(union, shape, r.dims, r.loop, w.maps[2])
    size = elements(shape, r.dims, r.loop)
    for i in range(iterations):
        pa, pb = _at(w, r, a, i, w.nodes[a]["offset"]), _at(w, r, b, i, b_values)
        target = w.counts[USED] + i * size
        add_products(w.values, pa, w.maps[0], pb, w.maps[1], target, w.maps[2], n)
    return True


@once
def _linear(w, r, a, b, sign, shape, iterations):
    """Sum or difference of two nodes."""
    index_map(shape, w.nodes[a]["shape"], r.dims, r.loop, w.maps[0])
    n = index_map(shape, w.nodes[b]["shape"], r.dims, r.loop, w.maps[1])
    for i in range(iterations):
        pa, pb = (
            _at(w, r, a, i, w.nodes[a]["offset"]),
            _at(w, r, b, i, w.nodes[b]["offset"]),
        )
        target = w.counts[USED] + i * n
        add_elements(w.values, pa, w.maps[0], pb, w.maps[1], sign, target, n)
    return True


@once
def _reduce(w, r, a, shape, iterations, largest):
    """Sum, or maximum, of a node over the dims that `shape` lacks."""
    n = index_map(w.nodes[a]["shape"], shape, r.dims, r.loop, w.maps[0])
    size = elements(shape, r.dims, r.loop)
    for i in range(iterations):
        pa, target = _at(w, r, a, i, w.nodes[a]["offset"]), w.counts[USED] + i * size
        if largest:
            largest_onto(w.values, pa, target, w.maps[0], n)
        else:
            add_onto(w.values, pa, target, w.maps[0], n)
    return True


@once
def _join(w, r, a, shape, largest):
    """Sum, or maximum, of a body node over the iterations."""
    n = index_map(shape, shape, r.dims, r.loop, w.maps[0])
    target = w.counts[USED]
    for i in range(ITERATIONS):
        pa = _at(w, r, a, i, w.nodes[a]["offset"])
        if largest:
            largest_onto(w.values, pa, target, w.maps[0], n)
        else:
            add_onto(w.values, pa, target, w.maps[0], n)
    return True


@once
def _gather(w, r, a, shape):
    """Concatenation of a body node over the iterations."""
    n = index_map(shape, w.nodes[a]["shape"], r.dims, r.loop, w.maps[0])
    loop_map(shape, r.dims, r.loop, w.maps[1])
    target = w.counts[USED]
    for t in range(n):
        pa = _at(w, r, a, w.maps[1, t], w.nodes[a]["offset"])
        w.values[target + t] = w.values[pa + w.maps[0, t]]
    return True


@once
def _function(w, r, a, b, c, site, shape, iterations):
    """A random function of up to three nodes, keyed by the site's word."""
    n = 0
    for slot, node in enumerate((a, b, c)):
        if node >= 0:
            n = index_map(shape, w.nodes[node]["shape"], r.dims, r.loop, w.maps[slot])
    for i in range(iterations):
        pa = _at(w, r, a, i, w.nodes[a]["offset"])
        pb = _at(w, r, b, i, w.nodes[b]["offset"]) if b >= 0 else 0
        pc = _at(w, r, c, i, w.nodes[c]["offset"]) if c >= 0 else 0
        for t in range(n):
            x = w.values[pa + w.maps[0, t]]
            y = w.values[pb + w.maps[1, t]] if b >= 0 else np.int64(0)
            if r.sites[site]["swaps"] and y < x:
                x, y = y, x
            word = opaque(r.sites[site]["word"], x)
            if b >= 0:
                word = opaque(word, y)
            if c >= 0:
                word = opaque(word, w.values[pc + w.maps[2, t]])
            w.values[w.counts[USED] + i * n + t] = residue_of(scramble64(word))
    return True


@entry
def evaluate(w, r, op, a, b, c, arg, shape, stage):
    """Write the result of an edge to the end of the pool; False if there is none."""
    iterations = ITERATIONS if stage == BODY else 1
    b_values = np.int64(0)
    if op == DIV:
        b_values = _inverses(w, r, b)
    elif b >= 0:
        b_values = w.nodes[b]["offset"]
    count = elements(shape, r.dims, r.loop)
    if count > w.maps.shape[1]:
        w.counts[FULL] = 1
        return False
    if b_values < 0 or not reserve(w, count * iterations):
        return False
    if op <= SUB:
        return _linear(w, r, a, b, -1 if op == SUB else 1, shape, iterations)
    if op <= DIV or op == CONTRACT:
        return _products(w, r, a, b, b_values, shape, iterations)
    if op == SUM or (op == FUNCTION and r.sites[arg]["over"]):
        return _reduce(w, r, a, shape, iterations, op == FUNCTION)
    if op == JOIN or (op == FUNCTION and r.sites[arg]["way"] == JOIN_STEP):
        return _join(w, r, a, shape, op == FUNCTION)
    if op == GATHER:
        return _gather(w, r, a, shape)
    return _function(w, r, a, b, c, arg, shape, iterations)
