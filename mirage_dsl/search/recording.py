"""Compiled book-keeping of the closure: finding, making and linking nodes."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.compiled import inner, once
from mirage_dsl.search.abstract import AS_IN_TARGET
from mirage_dsl.search.evaluation import evaluate
from mirage_dsl.search.field61 import iota61, is_member, key64, mul61, scramble64
from mirage_dsl.search.values import (
    ITERATIONS,
    NAMES,
    PIECE,
    elements,
    hash_values,
)
from mirage_dsl.search.workspace import (
    APART,
    BODY,
    DIV,
    EDGES,
    FULL,
    GROUPS,
    HITS,
    MERGED,
    MOST_NODES,
    MUL,
    NODES,
    TESTS,
    USED,
    WAITING,
)

_U = np.uint64
_AS_IN_TARGET = _U(AS_IN_TARGET)


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


@once
def _settle(w, r, x):
    """The node of the value at the end of the pool: an old one, or a new one."""
    shape, stage, f0, f1 = x["shape"], x["stage"], x["f0"], x["f1"]
    size = elements(r, shape)
    if stage == BODY:
        size *= ITERATIONS
    offset, key = w.counts[USED], key64(f0, f1)
    h = scramble64(key ^ scramble64(_U(shape * 4 + stage)))
    h = hash_values(w.values, offset, size, h)
    number = w.counts[NODES]
    if w.counts[APART]:
        h ^= scramble64(_U(number))
    mask = _U(len(w.slots) - 1)
    at = h & mask
    while w.slots[at] >= 0:
        if w.nodes[w.slots[at]]["hash"] == h:
            w.counts[MERGED] += 1
            return w.slots[at]
        at = (at + _U(1)) & mask
    w.slots[at] = number
    node = w.nodes[number]
    node["hash"], node["key"] = h, key
    node["shape"], node["stage"], node["offset"] = shape, stage, offset
    node["constant"], node["inverse_at"], node["following"] = x["constant"], -1, -1
    node["f0"], node["f1"] = f0, f1
    node["i0"], node["i1"] = iota61(f0), iota61(f1)
    w.counts[NODES] = number + 1
    w.counts[USED] += size
    _enter_group(w, number)
    return number


@once
def _add_edge(w, node, x):
    """Record that an edge makes a node, but of itself."""
    for slot in range(3):
        if x["operands"][slot] == node:
            return
    edge = w.edges[w.counts[EDGES]]
    edge["node"], edge["kind"], edge["arg"] = node, x["kind"], x["arg"]
    edge["a"], edge["b"] = x["operands"][0], x["operands"][1]
    edge["c"] = x["operands"][2]
    w.counts[EDGES] += 1


@once
def record(w, r):
    """Evaluate the useful results that are remembered, and link them."""
    for t in range(w.counts[WAITING]):
        w.counts[HITS] += 1
        x = w.found[t]
        if w.counts[NODES] == w.counts[MOST_NODES] or w.counts[EDGES] == len(w.edges):
            w.counts[FULL] = 1
        elif evaluate(w, r, x):
            _add_edge(w, _settle(w, r, x), x)
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


@once
def _keeps_sign(w, r, a, b, shape, f0, f1):
    """Whether a result is not by -1, or has the sign that it has in the target."""
    if w.nodes[a]["constant"] != 3 and w.nodes[b]["constant"] != 3:
        return True
    return hit(r, salt64(shape) ^ _AS_IN_TARGET, f0, f1)


@inner
def offer(w, r, salt, kind, a, b, c, arg, shape, stage, f0, f1):
    """Remember a result if it is useful, to be evaluated by `record`.

    Args:
        w: The workspace.
        r: The rules.
        salt: `salt64` of the shape.
        kind: Kind of edge.
        a: First operand.
        b: Second operand.
        c: Third operand.
        arg: The edge's argument.
        shape: Shape of the result.
        stage: Its stage.
        f0: One half of its fingerprint.
        f1: The other half.
    """
    w.counts[TESTS] += 1
    if not hit(r, salt, f0, f1):
        return
    if MUL <= kind <= DIV and not _keeps_sign(w, r, a, b, shape, f0, f1):
        return
    n = w.counts[WAITING]
    if n == len(w.found):
        w.counts[FULL] = 1
        return
    x = w.found[n]
    x["kind"], x["arg"], x["constant"] = kind, arg, 0
    x["operands"][0], x["operands"][1], x["operands"][2] = a, b, c
    x["shape"], x["stage"] = shape, stage
    x["f0"], x["f1"] = f0, f1
    w.counts[WAITING] = n + 1


@inner
def sigma_of(r, over, shape):
    """σ of some dims of a shape."""
    product, piece = _U(1), shape & PIECE
    for d in range(r.dims):
        if (over >> d) & 1:
            tile = 1 if piece and d == r.loop else 0
            product = mul61(product, r.sigma[d, tile])
    return product


@inner
def without(r, shape, over):
    """A shape without some dims."""
    shape &= ~over
    if r.loop >= 0 and not (shape >> r.loop) & 1:
        shape &= NAMES
    return shape


@inner
def compatible(r, a, b):
    """Whether two shapes have the loop dim in the same piece, if both have it."""
    if r.loop < 0 or not (a & b) >> r.loop & 1:
        return True
    return (a & PIECE) == (b & PIECE)
