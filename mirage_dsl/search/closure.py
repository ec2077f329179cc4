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

from mirage_dsl.search.abstract import AS_IN_TARGET
from mirage_dsl.search.compiled import entry, inner, once
from mirage_dsl.search.field61 import add61, mul61, sub61
from mirage_dsl.search.recording import (
    compatible,
    hit,
    note,
    propose,
    record,
    salt64,
    sigma_of,
    without,
)
from mirage_dsl.search.steps import IN_TILE
from mirage_dsl.search.steps import JOIN as JOIN_STEP
from mirage_dsl.search.values import NAMES, PIECE
from mirage_dsl.search.workspace import (
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
    TESTS,
    Rules,
    Workspace,
)

_AS_IN_TARGET = np.uint64(AS_IN_TARGET)


@once
def _sums(w, r, i):
    """Sums of node `i` over every set of its dims."""
    node = w.nodes[i]
    shape, tile = node["shape"], r.loop if node["shape"] & PIECE else NONE
    over = shape & r.reducible if (r.enabled >> SUM) & 1 else 0
    part = over
    while part:
        s = sigma_of(r, part, tile)
        out = without(shape, part, r.loop)
        f0, f1 = mul61(node["f0"], s), mul61(node["f1"], s)
        propose(w, r, SUM, i, part, out, node["stage"], f0, f1)
        part = (part - 1) & over


@once
def _accumulators(w, r, i):
    """The sum and the concatenation of node `i` over the iterations."""
    node = w.nodes[i]
    if node["stage"] != BODY:
        return
    shape, f0, f1 = node["shape"], node["f0"], node["f1"]
    s0, s1 = mul61(f0, r.sigma_loop), mul61(f1, r.sigma_loop)
    propose(w, r, JOIN, i, NO_ARG, shape, AFTER, s0, s1)
    if shape & PIECE:
        propose(w, r, GATHER, i, NO_ARG, shape & NAMES, AFTER, f0, f1)


@once
def _useful_arithmetic(kinds, a, b, r, salt):
    """Which results of two nodes are useful, as a mask like `kinds`.

    Bits: a + b, a - b, b - a, a * b, a / b, b / a.
    """
    hits = 0
    if kinds & 7:
        total = add61(a["f1"], b["f1"])
        if kinds & 1 and hit(r, salt, add61(a["f0"], b["f0"]), total):
            hits |= 1
        if kinds & 2 and hit(r, salt, sub61(a["f0"], b["f0"]), total):
            hits |= 2
        if kinds & 4 and hit(r, salt, sub61(b["f0"], a["f0"]), total):
            hits |= 4
    if kinds & 8 and hit(r, salt, mul61(a["f0"], b["f0"]), mul61(a["f1"], b["f1"])):
        hits |= 8
    if kinds & 16 and hit(r, salt, mul61(a["f0"], b["i0"]), mul61(a["f1"], b["i1"])):
        hits |= 16
    if kinds & 32 and hit(r, salt, mul61(b["f0"], a["i0"]), mul61(b["f1"], a["i1"])):
        hits |= 32
    return hits


@inner
def _keeps_sign(r, a, b, shape, f0, f1):
    """Whether a result is not by -1, or has the sign that it has in the target."""
    if a["constant"] != 3 and b["constant"] != 3:
        return True
    return hit(r, salt64(shape) ^ _AS_IN_TARGET, f0, f1)


@once
def _insert_arithmetic(w, r, i, j, hits, shape, stage):
    """Record the useful results of two nodes."""
    a, b = w.nodes[i], w.nodes[j]
    a0, a1, b0, b1 = a["f0"], a["f1"], b["f0"], b["f1"]
    p0, p1, q0, q1 = a["i0"], a["i1"], b["i0"], b["i1"]
    if hits & 1:
        f0, f1 = add61(a0, b0), add61(a1, b1)
        note(w, ADD, j, i, NONE, NO_ARG, shape, stage, f0, f1)
    if hits & 2:
        f0, f1 = sub61(a0, b0), add61(a1, b1)
        note(w, SUB, i, j, NONE, NO_ARG, shape, stage, f0, f1)
    if hits & 4:
        f0, f1 = sub61(b0, a0), add61(a1, b1)
        note(w, SUB, j, i, NONE, NO_ARG, shape, stage, f0, f1)
    if hits & 8:
        f0, f1 = mul61(a0, b0), mul61(a1, b1)
        if _keeps_sign(r, a, b, shape, f0, f1):
            note(w, MUL, j, i, NONE, NO_ARG, shape, stage, f0, f1)
    if hits & 16:
        f0, f1 = mul61(a0, q0), mul61(a1, q1)
        if _keeps_sign(r, a, b, shape, f0, f1):
            note(w, DIV, i, j, NONE, NO_ARG, shape, stage, f0, f1)
    if hits & 32:
        f0, f1 = mul61(b0, p0), mul61(b1, p1)
        if _keeps_sign(r, a, b, shape, f0, f1):
            note(w, DIV, j, i, NONE, NO_ARG, shape, stage, f0, f1)


@once
def _contractions(w, r, i, j, parts, shape, stage):
    """Products of two nodes summed over every listed set of dims, if useful."""
    f0 = mul61(w.nodes[i]["f0"], w.nodes[j]["f0"])
    f1 = mul61(w.nodes[i]["f1"], w.nodes[j]["f1"])
    for p in range(parts):
        g0, g1 = mul61(f0, w.sigmas[p]), mul61(f1, w.sigmas[p])
        if hit(r, w.salts[p], g0, g1):
            over = w.parts[p]
            out = without(shape, over, r.loop)
            note(w, CONTRACT, j, i, NONE, over, out, stage, g0, g1)


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
    names_a, names_b = a & NAMES, b & NAMES
    if not (r.enabled >> CONTRACT) & 1 or names_a == names_b:
        return 0
    over = names_a & names_b & r.reducible
    tile = r.loop if (a | b) & PIECE else NONE
    part, parts = over, 0
    while part and parts < len(w.parts):
        w.parts[parts], w.sigmas[parts] = part, sigma_of(r, part, tile)
        w.salts[parts] = salt64((a | b) & ~part)
        parts += 1
        part = (part - 1) & over
    w.counts[FULL] |= part > 0
    return parts


@once
def _arithmetic_kinds(enabled, constant_a, constant_b):
    """Bits of `_useful_arithmetic` that make sense: 1 is no factor, -1 no divisor."""
    kinds = (enabled >> ADD) & 1
    kinds |= ((enabled >> SUB) & 1) * 6
    if constant_a != 2 and constant_b != 2:
        kinds |= ((enabled >> MUL) & 1) * 8
    if constant_b < 2:
        kinds |= ((enabled >> DIV) & 1) * 16
    if constant_a < 2:
        kinds |= ((enabled >> DIV) & 1) * 32
    return kinds


@once
def _pairs(w, r, i):
    """Operators of node `i` and every node before it, and itself."""
    node = w.nodes[i]
    for g in range(w.counts[GROUPS]):
        group = w.groups[g]
        a, b, stage = node["shape"], group["shape"], node["stage"] | group["stage"]
        constants = node["constant"] > 0 and group["constant"] > 0
        if stage == 3 or constants or not compatible(a, b, r.loop):
            continue
        spread, parts = _spread_allowed(r, a, b), _list_parts(w, r, a, b)
        salt = salt64(a | b)
        j, pairs, tests = group["first"], 0, 0
        while j >= 0 and j <= i:
            other = w.nodes[j]
            kinds = 0
            if spread:
                kinds = _arithmetic_kinds(
                    r.enabled, node["constant"], other["constant"]
                )
            if i == j:
                kinds &= 1 | 2 | 8 | 16
            hits = _useful_arithmetic(kinds, node, other, r, salt)
            if hits:
                _insert_arithmetic(w, r, i, j, hits, a | b, stage)
            if parts:
                _contractions(w, r, i, j, parts, a | b, stage)
            pairs, tests = pairs + 1, tests + _bits(kinds) + parts
            j = other["following"]
        w.counts[PAIRS] += pairs
        w.counts[TESTS] += tests


@once
def _bits(mask):
    """How many of six bits are set."""
    count = 0
    for bit in range(6):
        count += (mask >> bit) & 1
    return count


@inner
def _apply_site(w, r, number, a, b, c):
    """The function of a site on operands that have its keys."""
    site, first = r.sites[number], w.nodes[a]
    shape, stage = first["shape"], first["stage"]
    constants = first["constant"] > 0
    for operand in (b, c):
        if operand >= 0:
            node = w.nodes[operand]
            if not compatible(shape, node["shape"], r.loop):
                return
            shape |= node["shape"]
            stage |= node["stage"]
            constants = constants and node["constant"] > 0
    over, way = site["over"], site["way"]
    if stage == 3 or constants or over & ~shape:
        return
    in_tile = shape & PIECE != 0 and (over >> max(r.loop, 0)) & 1 != 0
    if in_tile != (way == IN_TILE) or (way == JOIN_STEP and stage != BODY):
        return
    if way == JOIN_STEP:
        stage = AFTER
    w.counts[TESTS] += 1
    out = without(shape, over, r.loop)
    if hit(r, salt64(out), site["f0"], site["f1"]):
        note(w, FUNCTION, a, b, c, number, out, stage, site["f0"], site["f1"])


@inner
def _key_at(site, position):
    """The key of an operand of a site."""
    if position == 0:
        return site["key0"]
    return site["key1"] if position == 1 else site["key2"]


@inner
def _apply_at(w, r, number, i, at_i, j, at_j, k, at_k):
    """The function of a site on nodes given with their positions."""
    a, b, c = NONE, NONE, NONE
    for node, at in ((i, at_i), (j, at_j), (k, at_k)):
        if at == 0:
            a = node
        elif at == 1:
            b = node
        else:
            c = node
    _apply_site(w, r, number, a, b, c)


@once
def _fill_site(w, r, number, i, position):
    """Applications of a site to node `i` at a position and nodes before it."""
    site = r.sites[number]
    arity = site["arity"]
    if arity == 1:
        _apply_site(w, r, number, i, NONE, NONE)
        return
    second = 0 if position else 1
    third = 3 - position - second
    # Each tuple comes up once: at the first position that its latest node has.
    for j in range(i + (second > position)):
        if w.nodes[j]["key"] != _key_at(site, second):
            continue
        if arity == 2:
            _apply_at(w, r, number, i, position, j, second, NONE, third)
            continue
        for k in range(i + (third > position)):
            if w.nodes[k]["key"] == _key_at(site, third):
                _apply_at(w, r, number, i, position, j, second, k, third)


@once
def _functions(w, r, i):
    """Functions that have node `i` as their latest operand."""
    key = w.nodes[i]["key"]
    for number in range(r.site_count):
        site = r.sites[number]
        for position in range(site["arity"]):
            swapped = site["swaps"] and position and site["key0"] == site["key1"]
            if _key_at(site, position) == key and not swapped:
                _fill_site(w, r, number, i, position)


@entry
def _meet(w, r, i):
    """Find the useful results of node `i` and all nodes before it."""
    _sums(w, r, i)
    _accumulators(w, r, i)
    _functions(w, r, i)
    _pairs(w, r, i)


def grow(w: Workspace, r: Rules, start: int, pairs: int) -> int:
    """Meet nodes from `start` on with all before them, until none is left.

    Returns the next node; stops early after about `pairs` pairs, or when full.
    """
    limit = w.counts[PAIRS] + pairs
    i = start
    while i < w.counts[NODES] and w.counts[PAIRS] < limit and not w.counts[FULL]:
        _meet(w, r, i)
        record(w, r)
        i += 1
    return i
