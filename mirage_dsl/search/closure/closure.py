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

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.search.closure.edges import (
    NAMES,
    PIECE,
    compatible,
    offer,
    record,
    salt64,
    sigma_of,
    without,
)
from mirage_dsl.search.closure.workspace import (
    ADD,
    AFTER,
    BODY,
    CONTRACT,
    DIV,
    FULL,
    FUNCTION,
    GATHER,
    GROUPS,
    JOIN,
    MUL,
    NO_ARG,
    NODES,
    NONE,
    PAIRS,
    SUB,
    SUM,
    Rules,
    Workspace,
)
from mirage_dsl.search.useful.field61 import add61, mul61, sub61
from mirage_dsl.search.useful.terms import IN_TILE
from mirage_dsl.search.useful.terms import JOIN as JOIN_STEP

ARITHMETIC = {ADD: 1, SUB: 6, MUL: 8, DIV: 48}
"""Bits of `Rules.arithmetic`: a + b, a - b, b - a, a * b, a / b, b / a."""


@once
def _sums(w, r, i):
    """Sums of node `i` over every set of its dims."""
    node = w.nodes[i]
    shape, stage = node["shape"], node["stage"]
    over = shape & r.summed
    part = over
    while part:
        s = sigma_of(r, part, shape)
        out = without(r, shape, part)
        f0, f1 = mul61(node["f0"], s), mul61(node["f1"], s)
        offer(w, r, salt64(out), SUM, i, NONE, NONE, part, out, stage, f0, f1)
        part = (part - 1) & over


@once
def _accumulators(w, r, i):
    """The sum and the concatenation of node `i` over the iterations."""
    node = w.nodes[i]
    if node["stage"] != BODY:
        return
    shape, f0, f1 = node["shape"], node["f0"], node["f1"]
    s0, s1, salt = mul61(f0, r.sigma_loop), mul61(f1, r.sigma_loop), salt64(shape)
    offer(w, r, salt, JOIN, i, NONE, NONE, NO_ARG, shape, AFTER, s0, s1)
    if shape & PIECE:
        whole = shape & NAMES
        offer(w, r, salt, GATHER, i, NONE, NONE, NO_ARG, whole, AFTER, f0, f1)


@once
def _kinds(r, a, b):
    """Bits of `Rules.arithmetic` that make sense: 1 is no factor, -1 no divisor."""
    kinds = r.arithmetic
    if a["constant"] == 2 or b["constant"] == 2:
        kinds &= ~8
    if b["constant"] >= 2:
        kinds &= ~16
    if a["constant"] >= 2:
        kinds &= ~32
    return kinds


@once
def _arithmetic(w, r, i, j, salt, shape, stage):
    """Sums, differences, products and quotients of two nodes."""
    a, b = w.nodes[i], w.nodes[j]
    kinds = _kinds(r, a, b)
    if i == j:
        kinds &= 1 | 2 | 8 | 16
    a0, a1, b0, b1 = a["f0"], a["f1"], b["f0"], b["f1"]
    total = add61(a1, b1)
    if kinds & 1:
        f0 = add61(a0, b0)
        offer(w, r, salt, ADD, j, i, NONE, NO_ARG, shape, stage, f0, total)
    if kinds & 2:
        f0 = sub61(a0, b0)
        offer(w, r, salt, SUB, i, j, NONE, NO_ARG, shape, stage, f0, total)
    if kinds & 4:
        f0 = sub61(b0, a0)
        offer(w, r, salt, SUB, j, i, NONE, NO_ARG, shape, stage, f0, total)
    if kinds & 8:
        f0, f1 = mul61(a0, b0), mul61(a1, b1)
        offer(w, r, salt, MUL, j, i, NONE, NO_ARG, shape, stage, f0, f1)
    if kinds & 16:
        f0, f1 = mul61(a0, b["i0"]), mul61(a1, b["i1"])
        offer(w, r, salt, DIV, i, j, NONE, NO_ARG, shape, stage, f0, f1)
    if kinds & 32:
        f0, f1 = mul61(b0, a["i0"]), mul61(b1, a["i1"])
        offer(w, r, salt, DIV, j, i, NONE, NO_ARG, shape, stage, f0, f1)


@once
def _contractions(w, r, i, j, parts, shape, stage):
    """Products of two nodes summed over every listed set of dims."""
    f0 = mul61(w.nodes[i]["f0"], w.nodes[j]["f0"])
    f1 = mul61(w.nodes[i]["f1"], w.nodes[j]["f1"])
    for p in range(parts):
        part = w.parts[p]
        over, g0, g1 = part["over"], mul61(f0, part["sigma"]), mul61(f1, part["sigma"])
        out = without(r, shape, over)
        offer(w, r, part["salt"], CONTRACT, j, i, NONE, over, out, stage, g0, g1)


@once
def _spread_allowed(r, a, b):
    """Whether an elementwise result may have the dims of both shapes."""
    union = (a | b) & NAMES
    if union in (a & NAMES, b & NAMES):
        return True
    for t in range(r.outer_count):  # noqa: SIM110, no generators in compiled code
        if union & ~r.outer[t] == 0:
            return True
    return False


@once
def _list_parts(w, r, a, b):
    """List the sets of dims over which two shapes may be contracted."""
    if (a & NAMES) == (b & NAMES):
        return 0
    over = a & b & r.contracted
    part, parts = over, 0
    while part and parts < len(w.parts):
        listed = w.parts[parts]
        listed["over"], listed["sigma"] = part, sigma_of(r, part, a | b)
        listed["salt"] = salt64((a | b) & ~part)
        parts += 1
        part = (part - 1) & over
    if part > 0:
        w.counts[FULL] = 1
    return parts


@inner
def _pairs(w, r, i):
    """Operators of node `i` and every node before it, and itself."""
    node = w.nodes[i]
    for g in range(w.counts[GROUPS]):
        group = w.groups[g]
        a, b, stage = node["shape"], group["shape"], node["stage"] | group["stage"]
        constants = node["constant"] > 0 and group["constant"] > 0
        if stage == 3 or constants or not compatible(r, a, b):
            continue
        spread, parts = _spread_allowed(r, a, b), _list_parts(w, r, a, b)
        shape, salt, j = a | b, salt64(a | b), group["first"]
        while j >= 0 and j <= i:
            if spread:
                _arithmetic(w, r, i, j, salt, shape, stage)
            _contractions(w, r, i, j, parts, shape, stage)
            w.counts[PAIRS] += 1
            j = w.nodes[j]["following"]


@inner
def _apply_site(w, r, number):
    """The function of a site on the operands at hand, which have its keys."""
    site, operands = r.sites[number], w.operands
    shape, stage, constants = np.int64(0), np.int64(0), True
    for slot in range(site["arity"]):
        node = w.nodes[operands[slot]]
        if not compatible(r, shape, node["shape"]):
            return
        shape |= node["shape"]
        stage |= node["stage"]
        constants = constants and node["constant"] > 0
    over, way = site["over"], site["way"]
    if stage == 3 or constants or (over | site["along"]) & ~shape:
        return
    if shape & PIECE and (site["along"] >> r.loop) & 1:
        return
    in_tile = shape & PIECE != 0 and (over >> max(r.loop, 0)) & 1 != 0
    if in_tile != (way == IN_TILE) or (way == JOIN_STEP and stage != BODY):
        return
    if way == JOIN_STEP:
        stage = AFTER
    out = without(r, shape, over)
    salt, f0, f1 = salt64(out), site["f0"], site["f1"]
    a, b, c = operands[0], operands[1], operands[2]
    offer(w, r, salt, FUNCTION, a, b, c, number, out, stage, f0, f1)


@once
def _fill_site(w, r, number, i, position):
    """Applications of a site to node `i` at a position and nodes before it."""
    site, operands = r.sites[number], w.operands
    arity, keys = site["arity"], site["keys"]
    for slot in range(3):
        operands[slot] = NONE
    operands[position] = i
    if arity == 1:
        _apply_site(w, r, number)
        return
    second = 0 if position else 1
    third = 3 - position - second
    # Each tuple comes up once: at the first position that its latest node has.
    for j in range(i + (second > position)):
        if w.nodes[j]["key"] != keys[second]:
            continue
        operands[second] = j
        if arity == 2:
            _apply_site(w, r, number)
            continue
        for k in range(i + (third > position)):
            if w.nodes[k]["key"] == keys[third]:
                operands[third] = k
                _apply_site(w, r, number)


@once
def _functions(w, r, i):
    """Functions that have node `i` as their latest operand."""
    key = w.nodes[i]["key"]
    for number in range(r.site_count):
        site = r.sites[number]
        keys = site["keys"]
        for position in range(site["arity"]):
            swapped = site["swaps"] and position and keys[0] == keys[1]
            if keys[position] == key and not swapped:
                _fill_site(w, r, number, i, position)


@entry
def meet(w, r, i):
    """Add the useful results of node `i` and all nodes before it.

    Results that are remembered already are added too; with -1 nothing else.
    """
    if i >= 0:
        _sums(w, r, i)
        _accumulators(w, r, i)
        _functions(w, r, i)
        _pairs(w, r, i)
    record(w, r)


def grow(w: Workspace, r: Rules, start: int, pairs: int) -> int:
    """Meet nodes from `start` on with all before them, until none is left.

    Returns the next node; stops early after about `pairs` pairs, or when full.
    """
    limit = w.counts[PAIRS] + pairs
    i = start
    while i < w.counts[NODES] and w.counts[PAIRS] < limit and not w.counts[FULL]:
        meet(w, r, i)
        i += 1
    return i
