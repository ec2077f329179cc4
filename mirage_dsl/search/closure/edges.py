"""What the compiled closure does with one edge: evaluate, find, make, link."""

from __future__ import annotations

import numpy as np

from mirage_dsl.core.compiled import inner, once
from mirage_dsl.search.closure.workspace import (
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
    NODES,
    SUB,
    TESTS,
    USED,
    WAITING,
)
from mirage_dsl.search.useful.abstract import AS_IN_TARGET
from mirage_dsl.search.useful.field61 import iota61, is_member, key64, mul61, scramble64
from mirage_dsl.search.useful.terms import JOIN as JOIN_STEP

# -- Operators on residues -------------------------------------------------------------
# A packed shape is the mask of a value's dims, plus the bit `PIECE` if it has
# only one iteration's piece of the loop dim.  Every dim has extent 2 but the
# whole loop dim, which has two iterations of 2; extents of 1 would make different
# values equal.  The elements of a value lie row-major by number of dim; a body
# value has one such array for each iteration.

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false


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

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false


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

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false


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
