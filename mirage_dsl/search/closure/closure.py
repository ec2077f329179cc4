"""The closure: all useful block values of one loop choice, with all ways to make each.

Nodes are values, edges the operators that make them.  Two results are one node if
shape, stage, abstract key and residues agree (observational equivalence).  A new node
meets all nodes of compatible shape before it; results whose key is not in S are cut
before they are evaluated.

The grid is not simulated: the graph of a grid is the part of the graph without a grid
that reduces no split dim, for a block sees tiles of grid dims like whole dims.

This is the compiled part: what is done with one edge (evaluate, find, make, link), and
which edges there are between a new node and those before it.  `saturate` starts it.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.search.closure.workspace import (
    ADD,
    AFTER,
    APART,
    BODY,
    CONSTANT,
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
    MOST_NODES,
    MOST_VALUES,
    MUL,
    NO_ARG,
    NODES,
    NONE,
    PAIRS,
    SUB,
    SUM,
    TESTS,
    USED,
    WAITING,
    Rules,
    Workspace,
)
from mirage_dsl.search.useful.abstract import AS_IN_TARGET
from mirage_dsl.search.useful.field61 import (
    add61,
    iota61,
    is_member,
    key64,
    mul61,
    scramble64,
    sub61,
)
from mirage_dsl.search.useful.terms import IN_TILE
from mirage_dsl.search.useful.terms import JOIN as JOIN_STEP

# -- Operators on residues -------------------------------------------------------------
# A packed shape is the mask of a value's dims, plus the bit `PIECE` if it has
# only one iteration's piece of the loop dim.  Every dim has extent 2 but the
# whole loop dim, which has two iterations of 2; extents of 1 would make different
# values equal.  The elements of a value lie row-major by number of dim; a body
# value has one such array for each iteration.

PRIME = (1 << 31) - 1
PIECE = 1 << 48
NAMES = PIECE - 1
ITERATIONS = 2
TILE = 2

_P = np.int64(PRIME)


@inner
def extent(r, shape, dim):
    """How many elements a shape has along a dim."""
    if not (shape >> dim) & 1:
        return 1
    if dim == r.loop and not shape & PIECE:
        return ITERATIONS * TILE
    return TILE


@inner
def elements(r, shape):
    """Elements of a shape, in one iteration."""
    count = 1
    for d in range(r.dims):
        count *= extent(r, shape, d)
    return count


def element_count(shape: int, dims: int, loop: int) -> int:  # noqa: ARG001
    """`elements`, for Python."""
    whole = loop >= 0 and bool(shape >> loop & 1) and not shape & PIECE
    return TILE ** (shape & NAMES).bit_count() * (ITERATIONS if whole else 1)


@inner
def index_map(w, r, outer, inner, slot):
    """For each element of shape `outer`, the one of shape `inner` that it reads.

    Dims that `inner` lacks are ignored.  An index along the whole loop dim becomes
    the index within the tile where `inner` has a piece.  Returns the elements.
    """
    w.maps[slot, 0] = 0
    filled = 1
    stride = elements(r, inner)
    for d in range(r.dims):
        n = extent(r, outer, d)
        if n == 1:
            continue
        m = extent(r, inner, d)
        stride //= m
        # Spread the table: each entry becomes n entries, last first.
        t = n * filled
        while t:
            t -= 1
            w.maps[slot, t] = w.maps[slot, t // n] + t % n % m * stride
        filled *= n
    return filled


@once
def invert(values, source, target, count):
    """Inverses of `count` residues; False if one of them is 0."""
    for t in range(count):
        power = values[source + t]
        if power == 0:
            return False
        exponent, result = _P - 2, np.int64(1)
        while exponent:
            if exponent & 1:
                result = result * power % _P
            power = power * power % _P
            exponent >>= 1
        values[target + t] = result
    return True


@inner
def opaque(word, x):
    """One operand's step of a random function of residues."""
    return scramble64(word ^ np.uint64(x))


@once
def hash_values(values, offset, count, word):
    """A 64-bit hash of `count` residues, started with `word`."""
    for t in range(count):
        word = opaque(word, values[offset + t])
    return word


# -- One edge --------------------------------------------------------------------------


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


# -- Finding, making and linking nodes -------------------------------------------------


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


# -- Edges between a node and those before it ------------------------------------------

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
    # A field of a record takes Python microseconds to look up.
    counts = w.counts
    limit = counts[PAIRS] + pairs
    i = start
    while i < counts[NODES] and counts[PAIRS] < limit and not counts[FULL]:
        meet(w, r, i)
        i += 1
    return i
