"""Compiled evaluation of one edge of the closure, into the end of the value pool."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.compiled import inner, once
from mirage_dsl.search.field61 import scramble64
from mirage_dsl.search.steps import JOIN as JOIN_STEP
from mirage_dsl.search.values import (
    ITERATIONS,
    PRIME,
    TILE,
    elements,
    index_map,
    invert,
    opaque,
)
from mirage_dsl.search.workspace import (
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    FULL,
    FUNCTION,
    GATHER,
    JOIN,
    MOST_VALUES,
    SUB,
    USED,
)

_P = np.int64(PRIME)
_SECOND, _RESULT = np.int64(1), np.int64(3)
"""Rows of `Workspace.maps` after that of the first operand."""


@inner
def _reserve(w, size):
    """Whether the value pool has room for `size` more residues; set to 0."""
    used = w.counts[USED]
    if used + size > w.counts[MOST_VALUES]:
        w.counts[FULL] = 1
        return False
    for t in range(used, used + size):
        w.values[t] = 0
    return True


@inner
def _inverses(w, r, number):
    """Where the inverses of a node's residues are; -2 if it has none."""
    node = w.nodes[number]
    if node["inverse_at"] == -1:
        size = elements(r, node["shape"])
        if node["stage"] == BODY:
            size *= ITERATIONS
        if not _reserve(w, size):
            return np.int64(-2)
        node["inverse_at"] = -2
        if invert(w.values, node["offset"], w.counts[USED], size):
            node["inverse_at"] = w.counts[USED]
            w.counts[USED] += size
    return node["inverse_at"]


@once
def _outer(w, x):
    """The shape of all elements that an edge reads."""
    outer = x["shape"]
    if x["kind"] != GATHER:
        for slot in range(3):
            if x["operands"][slot] >= 0:
                outer |= w.nodes[x["operands"][slot]]["shape"]
    return outer


@once
def _open(w, r, x):
    """Say where operands are: first elements, strides of iterations, maps.

    Returns how many elements there are to evaluate, in one iteration; -1 if they are
    too many, or an operand has no inverses that are asked for.
    """
    outer = _outer(w, x)
    if elements(r, outer) > w.maps.shape[1]:
        w.counts[FULL] = 1
        return np.int64(-1)
    for slot in range(3):
        w.starts[slot], w.strides[slot] = 0, 0
        if x["operands"][slot] >= 0:
            node = w.nodes[x["operands"][slot]]
            w.starts[slot] = node["offset"]
            if node["stage"] == BODY:
                w.strides[slot] = elements(r, node["shape"])
            index_map(w, r, outer, node["shape"], slot)
    if x["kind"] == DIV:
        w.starts[1] = _inverses(w, r, x["operands"][1])
        if w.starts[1] < 0:
            return np.int64(-1)
    return index_map(w, r, outer, x["shape"], _RESULT)


@once
def _all_iterations(w, r, shape, count):
    """Let the map of the first operand lead into the iteration of each element."""
    index_map(w, r, shape, np.int64(1) << r.loop, _SECOND)
    for t in range(count):
        w.maps[0, t] += w.maps[1, t] // TILE * w.strides[0]


@once
def _combined(kind, total, x, y):
    """What arithmetic of two residues, or a sum, leaves in place of `total`."""
    if kind == CONTRACT or (kind > SUB and kind <= DIV):
        total += x * y
    elif kind <= SUB:
        total = x - y + _P if kind == SUB else x + y
    else:
        total += x
    return total % _P


@once
def _function(site, x, y, z):
    """A random function of residues, keyed by the site's word."""
    if site["swaps"] and y < x:
        x, y = y, x
    word = opaque(site["word"], x)
    if site["arity"] > 1:
        word = opaque(word, y)
    if site["arity"] > 2:
        word = opaque(word, z)
    return np.int64(scramble64(word) % np.uint64(PRIME))


@inner
def evaluate(w, r, x):
    """Write the result of an edge to the end of the pool; False if there is none."""
    kind, shape, body = x["kind"], x["shape"], x["stage"] == BODY
    if kind <= CONSTANT:
        return True
    count, size = _open(w, r, x), elements(r, shape)
    if count < 0 or not _reserve(w, size * ITERATIONS if body else size):
        return False
    if kind == GATHER:
        _all_iterations(w, r, shape, count)
    site = r.sites[x["arg"] if kind == FUNCTION else 0]
    joins = kind == JOIN or (kind == FUNCTION and site["way"] == JOIN_STEP)
    largest = joins or site["over"] != 0
    for i in range(ITERATIONS if body or joins else 1):
        start = w.counts[USED] + (0 if joins else i * size)
        first = w.starts[0] + i * w.strides[0]
        second = w.starts[1] + i * w.strides[1]
        third = w.starts[2] + i * w.strides[2]
        for t in range(count):
            at = start + w.maps[3, t]
            a = w.values[first + w.maps[0, t]]
            b = w.values[second + w.maps[1, t]]
            if kind != FUNCTION:
                w.values[at] = _combined(kind, w.values[at], a, b)
            elif not largest:
                c = w.values[third + w.maps[2, t]]
                w.values[at] = _function(site, a, b, c)
            elif a > w.values[at]:
                w.values[at] = a
    return True
