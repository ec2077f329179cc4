"""The closure: all useful block values of one loop choice, with all ways to make each.

Nodes are values, edges the operators that make them.  Two results are one node if
shape, stage, abstract key and residues agree (observational equivalence).  A new node
meets all nodes of compatible shape before it; results whose key is not in S are cut
before they are evaluated.

The grid is not simulated: the graph of a grid is the part of the graph without a grid
that reduces no split dim, for a block sees tiles of grid dims like whole dims.

The compiled part is what is done with one edge (evaluate, find, make, link), and which
edges there are between a new node and those before it.  It works on arrays, the
workspace.  `saturate` takes one loop choice from start to end: S, seeds, closure, and
the outputs found in it.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.budget import UNLIMITED, Budget
from mirage_dsl.search.space import Space, Value
from mirage_dsl.search.useful import (
    AS_IN_TARGET,
    IN_TILE,
    Useful,
    add61,
    constant_value,
    element_of,
    iota61,
    is_member,
    key64,
    key_of,
    member_table,
    mul61,
    scramble64,
    sub61,
    useful,
)
from mirage_dsl.search.useful import JOIN as JOIN_STEP

# -- The workspace: arrays, and what their numbers mean --------------------------------


Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# Constants of NumPy's type: Numba compiles a function anew for each literal integer.
LOAD, CONSTANT, ADD, SUB, MUL, DIV, SUM, CONTRACT, JOIN, GATHER, FUNCTION = map(
    np.int64, range(11)
)
"""Kinds of edge.  JOIN is the sum over iterations, GATHER their concatenation."""

NONE = np.int64(-1)
"""No operand."""
_NO_ARG = np.int64(0)

BEFORE, BODY, AFTER = map(np.int64, range(3))
"""Stages; a result has the union of its operands' bits, and 3 is not allowed."""

_NODES, _EDGES, _USED, _GROUPS, _PAIRS, _TESTS, _HITS, _MERGED, _FULL = map(
    np.int64, range(9)
)
_WAITING, _MOST_NODES, _MOST_VALUES, _APART = map(np.int64, range(9, 13))
"""Slots of `Workspace.counts`; the last three are settings: two limits,
and whether equal values are kept apart."""

_INT, _WORD = np.int64, np.uint64

NODE = np.dtype(
    [
        *((name, _INT) for name in ("shape", "stage", "offset", "inverse_at")),
        *((name, _INT) for name in ("constant", "following")),
        *((name, _WORD) for name in ("key", "hash", "f0", "f1", "i0", "i1")),
    ]
)
"""A value: where its residues and their inverses begin, whether it is a constant (2 if
it is 1, 3 if it is -1), the next node of its group; abstract key, hash of everything
that tells it from others, components of its fingerprint and of the formal inverse."""

GROUP = np.dtype([(n, _INT) for n in ("shape", "stage", "constant", "first", "last")])
"""Nodes of equal shape, stage and constancy, as a list in order of birth."""

_EDGE = np.dtype([(n, _INT) for n in ("node", "kind", "a", "b", "c", "arg")])
"""A way to make a node from up to three others; -1 for none."""

FOUND = np.dtype(
    [
        *((n, _INT) for n in ("kind", "arg", "shape", "stage", "constant")),
        ("operands", _INT, (3,)),
        *((n, _WORD) for n in ("f0", "f1")),
    ]
)
"""A useful result that is still to be evaluated: its edge, and what it will be.

Residues of a LOAD or a CONSTANT are already at the end of the pool."""

PART = np.dtype([("over", _INT), ("sigma", _WORD), ("salt", _WORD)])
"""A set of dims over which two shapes may be contracted: its σ, the result's salt."""

_SITE = np.dtype(
    [
        *((name, _INT) for name in ("arity", "over", "along", "way", "swaps")),
        *((name, _WORD) for name in ("word", "f0", "f1")),
        ("keys", _WORD, (3,)),
    ]
)
"""An application of a function, found by its operands' keys: dims that it reduces, the
one that it scans, how it reduces (`search.useful`), whether operands may be
swapped, what keys its residues, the result's fingerprint."""

MAX_PARTS = 1 << 10
"""Sets of dims over which one pair of shapes may be contracted."""


MOST_DIMS = 48
"""Bits of a packed shape (`search.closure`)."""
MOST_OUTER = 1 << 12
"""Values of a program, and applications of functions in it."""
MOST_SLOTS = 1 << 22
"""Slots of the table of S; `useful.MAX_MEMBERS` needs a quarter of them."""

RULES = np.dtype(
    [
        *((n, _INT) for n in ("dims", "loop", "arithmetic", "summed", "contracted")),
        *((n, _INT) for n in ("outer_count", "site_count", "everything")),
        *((n, _WORD) for n in ("sigma_loop", "mask")),
        ("sigma", _WORD, (MOST_DIMS, 2)),
        ("outer", _INT, (MOST_OUTER,)),
        ("sites", _SITE, (MOST_OUTER,)),
        ("members", _WORD, (MOST_SLOTS,)),
    ]
)

LARGEST = 1 << 15
_MOST_EDGES = 8 * LARGEST
_MOST_FOUND = 1 << 17
MOST_RESIDUES = 1 << 21

WORKSPACE = np.dtype(
    [
        ("counts", _INT, (16,)),
        ("nodes", NODE, (LARGEST,)),
        ("groups", GROUP, (4096,)),
        ("edges", _EDGE, (_MOST_EDGES,)),
        ("found", FOUND, (_MOST_FOUND,)),
        ("values", _INT, (MOST_RESIDUES,)),
        ("slots", _INT, (4 * LARGEST,)),
        ("maps", _INT, (4, 1 << 13)),
        *((n, _INT, (3,)) for n in ("operands", "starts", "strides")),
        ("parts", PART, (MAX_PARTS,)),
    ]
)


class Rules:
    """What the closure of one loop choice may do: one record, so one pointer.

    Compiled functions get one address; tuples of arrays would be a hundred arguments
    each time one calls another, and take several times as long to compile.

    `arithmetic` is a mask of operators of two nodes (`_ARITHMETIC`), `summed`
    and `contracted` are masks of dims that sums and products may reduce.  `sigma` has,
    for each dim, σ of the whole and of a tile.  `outer` are the dim masks of the
    program's values: an elementwise product may spread over more dims than its operands
    only within one of them.  `members` is the table of S, of `mask + 1` slots; with
    `everything` all values count as useful.
    """

    dims: int
    loop: int
    arithmetic: int
    summed: int
    contracted: int
    outer_count: int
    site_count: int
    everything: int
    sigma_loop: Any
    mask: Any
    sigma: Words
    outer: Ints
    sites: Any
    members: Words

    def __new__(  # noqa: PYI034, a record is no object of the class
        cls,
        *,
        dims: int,
        loop: int,
        arithmetic: int,
        summed: int,
        contracted: int,
        members: Words,
        sigma: Words,
        sigma_loop: Any,
        outer: Ints,
        sites: Any,
        everything: bool = False,
    ) -> Rules:
        """The record; no object of this class, which only has its types."""
        for what, given, most in (
            ("dims", dims, MOST_DIMS),
            ("values", max(len(outer), len(sites)), MOST_OUTER),
            ("useful expressions", len(members), MOST_SLOTS),
        ):
            if given > most:
                raise UnsupportedError(
                    f"the program has {given} {what}; one kernel is searched for at "
                    f"most {most}: split the program"
                )
        made: Any = np.zeros(1, RULES).view(np.recarray)[0]
        made.dims, made.loop, made.arithmetic = dims, loop, arithmetic
        made.summed, made.contracted = summed, contracted
        made.sigma_loop, made.everything = sigma_loop, everything
        made.mask = len(members) - 1
        made.members[: len(members)] = members
        made.sigma[: len(sigma)] = sigma
        made.outer_count, made.site_count = len(outer), len(sites)
        made.outer[: len(outer)] = outer
        made.sites[: len(sites)] = sites
        return made


class Workspace:
    """Arrays of one thread in one record, used again for every closure.

    `values` is the pool of residues, `slots` the hash table of nodes, `counts` has the
    slots named above; `maps`, `operands`, `starts`, `strides` and `parts` are scratch.
    """

    nodes: Any
    groups: Any
    edges: Any
    found: Any
    values: Ints
    slots: Ints
    maps: Ints
    operands: Ints
    starts: Ints
    strides: Ints
    parts: Any
    counts: Ints


def workspace(nodes: int = LARGEST, values: int = MOST_RESIDUES) -> Workspace:
    """An empty workspace for at most `nodes` nodes and `values` residues."""
    made: Any = np.empty(1, WORKSPACE).view(np.recarray)[0]
    made.counts[_MOST_NODES] = min(nodes, LARGEST)
    made.counts[_MOST_VALUES] = min(values, MOST_RESIDUES)
    made.counts[_APART] = 0
    # Compiled code reads the map of an operand that is not there, though for nothing.
    made.maps[:] = 0
    reset(made)
    return made


def reset(w: Workspace) -> None:
    """Empty the workspace."""
    w.counts[:_MOST_NODES] = 0
    w.slots[:] = -1


# -- Operators on residues -------------------------------------------------------------
# A packed shape is the mask of a value's dims, plus the bit `PIECE` if it has
# only one iteration's piece of the loop dim.  Every dim has extent 2 but the
# whole loop dim, which has two iterations of 2; extents of 1 would make different
# values equal.  The elements of a value lie row-major by number of dim; a body
# value has one such array for each iteration.

_PRIME = (1 << 31) - 1
PIECE = 1 << 48
NAMES = PIECE - 1
_ITERATIONS = 2
TILE = 2

_P = np.int64(_PRIME)


@inner
def extent(r, shape, dim):
    """How many elements a shape has along a dim."""
    if not (shape >> dim) & 1:
        return 1
    if dim == r.loop and not shape & PIECE:
        return _ITERATIONS * TILE
    return TILE


@inner
def elements(r, shape):
    """Elements of a shape, in one iteration."""
    count = 1
    for d in range(r.dims):
        count *= extent(r, shape, d)
    return count


def _element_count(shape: int, dims: int, loop: int) -> int:  # noqa: ARG001
    """`elements`, for Python."""
    whole = loop >= 0 and bool(shape >> loop & 1) and not shape & PIECE
    return TILE ** (shape & NAMES).bit_count() * (_ITERATIONS if whole else 1)


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
    used = w.counts[_USED]
    if used + size > w.counts[_MOST_VALUES]:
        w.counts[_FULL] = 1
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
            size *= _ITERATIONS
        if not _reserve(w, size):
            return np.int64(-2)
        node["inverse_at"] = -2
        if invert(w.values, node["offset"], w.counts[_USED], size):
            node["inverse_at"] = w.counts[_USED]
            w.counts[_USED] += size
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
        w.counts[_FULL] = 1
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
    return np.int64(scramble64(word) % np.uint64(_PRIME))


@inner
def evaluate(w, r, x):
    """Write the result of an edge to the end of the pool; False if there is none."""
    kind, shape, body = x["kind"], x["shape"], x["stage"] == BODY
    if kind <= CONSTANT:
        return True
    count, size = _open(w, r, x), elements(r, shape)
    if count < 0 or not _reserve(w, size * _ITERATIONS if body else size):
        return False
    if kind == GATHER:
        _all_iterations(w, r, shape, count)
    site = r.sites[x["arg"] if kind == FUNCTION else 0]
    joins = kind == JOIN or (kind == FUNCTION and site["way"] == JOIN_STEP)
    largest = joins or site["over"] != 0
    for i in range(_ITERATIONS if body or joins else 1):
        start = w.counts[_USED] + (0 if joins else i * size)
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
    n = w.counts[_GROUPS]
    for g in range(n):
        group = w.groups[g]
        alike = group["shape"] == node["shape"] and group["stage"] == node["stage"]
        if alike and group["constant"] == constant:
            w.nodes[group["last"]]["following"] = number
            group["last"] = number
            return
    if n == len(w.groups):
        w.counts[_FULL] = 1
        return
    group = w.groups[n]
    group["shape"], group["stage"] = node["shape"], node["stage"]
    group["constant"] = constant
    group["first"], group["last"] = number, number
    w.counts[_GROUPS] = n + 1


@once
def _settle(w, r, x):
    """The node of the value at the end of the pool: an old one, or a new one."""
    shape, stage, f0, f1 = x["shape"], x["stage"], x["f0"], x["f1"]
    size = elements(r, shape)
    if stage == BODY:
        size *= _ITERATIONS
    offset, key = w.counts[_USED], key64(f0, f1)
    h = scramble64(key ^ scramble64(_U(shape * 4 + stage)))
    h = hash_values(w.values, offset, size, h)
    number = w.counts[_NODES]
    if w.counts[_APART]:
        h ^= scramble64(_U(number))
    mask = _U(len(w.slots) - 1)
    at = h & mask
    while w.slots[at] >= 0:
        if w.nodes[w.slots[at]]["hash"] == h:
            w.counts[_MERGED] += 1
            return w.slots[at]
        at = (at + _U(1)) & mask
    w.slots[at] = number
    node = w.nodes[number]
    node["hash"], node["key"] = h, key
    node["shape"], node["stage"], node["offset"] = shape, stage, offset
    node["constant"], node["inverse_at"], node["following"] = x["constant"], -1, -1
    node["f0"], node["f1"] = f0, f1
    node["i0"], node["i1"] = iota61(f0), iota61(f1)
    w.counts[_NODES] = number + 1
    w.counts[_USED] += size
    _enter_group(w, number)
    return number


@once
def _add_edge(w, node, x):
    """Record that an edge makes a node, but of itself."""
    for slot in range(3):
        if x["operands"][slot] == node:
            return
    edge = w.edges[w.counts[_EDGES]]
    edge["node"], edge["kind"], edge["arg"] = node, x["kind"], x["arg"]
    edge["a"], edge["b"] = x["operands"][0], x["operands"][1]
    edge["c"] = x["operands"][2]
    w.counts[_EDGES] += 1


@once
def record(w, r):
    """Evaluate the useful results that are remembered, and link them."""
    for t in range(w.counts[_WAITING]):
        w.counts[_HITS] += 1
        x = w.found[t]
        if w.counts[_NODES] == w.counts[_MOST_NODES] or w.counts[_EDGES] == len(
            w.edges
        ):
            w.counts[_FULL] = 1
        elif evaluate(w, r, x):
            _add_edge(w, _settle(w, r, x), x)
    w.counts[_WAITING] = 0


@inner
def salt64(shape):
    """`useful.salt_of` of a packed shape."""
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
    w.counts[_TESTS] += 1
    if not hit(r, salt, f0, f1):
        return
    if MUL <= kind <= DIV and not _keeps_sign(w, r, a, b, shape, f0, f1):
        return
    n = w.counts[_WAITING]
    if n == len(w.found):
        w.counts[_FULL] = 1
        return
    x = w.found[n]
    x["kind"], x["arg"], x["constant"] = kind, arg, 0
    x["operands"][0], x["operands"][1], x["operands"][2] = a, b, c
    x["shape"], x["stage"] = shape, stage
    x["f0"], x["f1"] = f0, f1
    w.counts[_WAITING] = n + 1


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

_ARITHMETIC = {ADD: 1, SUB: 6, MUL: 8, DIV: 48}
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
    offer(w, r, salt, JOIN, i, NONE, NONE, _NO_ARG, shape, AFTER, s0, s1)
    if shape & PIECE:
        whole = shape & NAMES
        offer(w, r, salt, GATHER, i, NONE, NONE, _NO_ARG, whole, AFTER, f0, f1)


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
        offer(w, r, salt, ADD, j, i, NONE, _NO_ARG, shape, stage, f0, total)
    if kinds & 2:
        f0 = sub61(a0, b0)
        offer(w, r, salt, SUB, i, j, NONE, _NO_ARG, shape, stage, f0, total)
    if kinds & 4:
        f0 = sub61(b0, a0)
        offer(w, r, salt, SUB, j, i, NONE, _NO_ARG, shape, stage, f0, total)
    if kinds & 8:
        f0, f1 = mul61(a0, b0), mul61(a1, b1)
        offer(w, r, salt, MUL, j, i, NONE, _NO_ARG, shape, stage, f0, f1)
    if kinds & 16:
        f0, f1 = mul61(a0, b["i0"]), mul61(a1, b["i1"])
        offer(w, r, salt, DIV, i, j, NONE, _NO_ARG, shape, stage, f0, f1)
    if kinds & 32:
        f0, f1 = mul61(b0, a["i0"]), mul61(b1, a["i1"])
        offer(w, r, salt, DIV, j, i, NONE, _NO_ARG, shape, stage, f0, f1)


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
        w.counts[_FULL] = 1
    return parts


@inner
def _pairs(w, r, i):
    """Operators of node `i` and every node before it, and itself."""
    node = w.nodes[i]
    for g in range(w.counts[_GROUPS]):
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
            w.counts[_PAIRS] += 1
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
def _meet(w, r, i):
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
    limit = counts[_PAIRS] + pairs
    i = start
    while i < counts[_NODES] and counts[_PAIRS] < limit and not counts[_FULL]:
        _meet(w, r, i)
        i += 1
    return i


# -- One loop choice from start to end -------------------------------------------------


PAIRS_A_CALL = 1_000_000
"""Work between two looks at the clock, well under a second."""

KIND = {
    Term.ADD: ADD,
    Term.SUB: SUB,
    Term.MUL: MUL,
    Term.DIV: DIV,
    Term.SUM: SUM,
    Term.CONTRACT: CONTRACT,
    Term.FUNCTION: FUNCTION,
}


@dataclass(frozen=True)
class Saturation:
    """The AND-OR graph of a loop choice.

    Attributes:
        loop: The dim over which blocks iterate, or None.
        shape: Packed shape of each node (see `search.closure`).
        stage: Stage of each node.
        key: Abstract key of each node.
        edges: Rows of node, kind, three operands (-1 for none) and an argument: the
            program's value for loads and constants, reduced dims, or a site.
        sites: For each site, a value of the program that its function makes.
        site_over: For each site, the dims that it reduces.
        site_along: For each site, the dim that it scans.
        site_joins: For each site, whether it is an accumulator.
        program_keys: Abstract key of each value of the program.
        roots: For each output, the nodes that compute it and may be stored.
        counters: Figures for the ledger.
        complete: Whether no limit was met.
    """

    loop: str | None
    shape: Ints
    stage: Ints
    key: Words
    edges: Ints
    sites: tuple[int, ...]
    site_over: tuple[int, ...]
    site_along: tuple[int, ...]
    site_joins: tuple[bool, ...]
    program_keys: tuple[int, ...]
    roots: tuple[tuple[int, ...], ...]
    counters: dict[str, int]
    complete: bool


def saturate(
    space: Space,
    loop: str | None,
    w: Workspace,
    *,
    seed: int = 0,
    budget: Budget = UNLIMITED,
    own: bool = False,
    everything: bool = False,
    apart: bool = False,
) -> Saturation:
    """All useful values of a block that iterates over `loop`.

    Args:
        space: The program.
        loop: The dim over which the block iterates, or None.
        w: Arrays to work in.
        seed: Of fingerprints and residues.
        budget: Of its growth.
        own: Take only the program's own values as useful.
        everything: Take all values as useful, to see what S is good for.
        apart: Do not merge equal values, to see what merging is good for.
    """
    s = useful(space, loop, seed, own=own)
    r = _rules(space, s, loop, everything)
    references = _references(space, s, r, w, seed)
    reset(w)
    w.counts[_APART] = apart
    _enter_seeds(space, s, r, w, references)
    at = 0
    while at < w.counts[_NODES] and not w.counts[_FULL]:
        if budget.late():
            break
        at = int(grow(w, r, at, PAIRS_A_CALL))
    n, e = int(w.counts[_NODES]), int(w.counts[_EDGES])
    return Saturation(
        loop,
        w.nodes["shape"][:n].copy(),
        w.nodes["stage"][:n].copy(),
        w.nodes["key"][:n].copy(),
        w.edges[:e].copy().view(np.int64).reshape(-1, len(_EDGE.names or ())),
        tuple(site.value for site in s.sites),
        tuple(site.over for site in s.sites),
        tuple(site.along for site in s.sites),
        tuple(site.way == JOIN_STEP for site in s.sites),
        tuple(key_of(pair) for pair in s.fingerprints),
        tuple(_roots(space, s, w, o.value, references[o.value]) for o in space.outputs),
        _counters(s, w),
        at == n and not w.counts[_FULL] and not s.truncated,
    )


def _counters(s: Useful, w: Workspace) -> dict[str, int]:
    count = w.counts
    return {
        "useful": len(s.keys),
        "nodes": int(count[_NODES]),
        "edges": int(count[_EDGES]),
        "pairs": int(count[_PAIRS]),
        "tests": int(count[_TESTS]),
        "cut_by_abstract_expression": int(count[_TESTS] - count[_HITS]),
        "merged": int(count[_MERGED]),
        "overflows": int(count[_FULL]),
        "useful_truncated": int(s.truncated),
    }


def enabled_kinds(space: Space) -> set[np.int64]:
    """The kinds of edge that can help the program."""
    terms = space.terms
    names = [v.names for v in space.values]
    dots = any(
        v.term is Term.CONTRACT and names[v.operands[0]] == names[v.operands[1]]
        for v in space.values
    )
    kinds = {KIND[t] for t in terms if t in KIND}
    if Term.DIV in terms or dots:
        kinds.add(MUL)
    if Term.CONTRACT in terms and (MUL in kinds or space.halves):
        kinds.add(SUM)
    if MUL in kinds and Term.SUM in terms and space.contracted:
        kinds.add(CONTRACT)
    return kinds


def _rules(space: Space, s: Useful, loop: str | None, everything: bool) -> Rules:
    values = [space.values[site.value] for site in s.sites]
    sites = np.zeros(len(values), _SITE)
    for row, site, value in zip(sites, s.sites, values, strict=True):
        assert value.op is not None
        row["arity"], row["over"], row["way"] = len(site.keys), site.over, site.way
        row["along"] = site.along
        row["swaps"], row["word"] = value.op.commutative, site.word
        row["f0"], row["f1"] = site.result
        row["keys"][: len(site.keys)] = site.keys
    enabled = enabled_kinds(space)
    return Rules(
        dims=len(space.dims),
        loop=-1 if loop is None else space.dims.index(loop),
        arithmetic=sum(_ARITHMETIC.get(kind, 0) for kind in enabled),
        summed=space.reduced if SUM in enabled else 0,
        contracted=space.contracted if CONTRACT in enabled else 0,
        members=member_table(np.array(sorted(s.keys), np.uint64)),
        sigma=np.array(s.sigma, np.uint64).reshape(-1, 2),
        sigma_loop=np.uint64(s.sigma_loop),
        outer=np.array(sorted({v.names for v in space.values}), np.int64),
        sites=sites,
        everything=everything,
    )


def _references(
    space: Space, s: Useful, r: Rules, w: Workspace, seed: int
) -> list[Ints]:
    """Residues of every value of the program, unsplit.

    Raises:
        UnsupportedError: A program of more or larger values than the arrays hold, or
            that divides by zero whatever the inputs.
    """
    if len(space.values) > w.counts[_MOST_NODES]:
        raise UnsupportedError(
            f"the program has {len(space.values)} values; one kernel is searched for "
            f"at most {w.counts[_MOST_NODES]}: split the program"
        )
    for attempt in range(4):
        found = _evaluate_program(space, s, r, w, seed + 1000 * attempt)
        if found is not None:
            return found
        if w.counts[_FULL]:
            raise UnsupportedError(
                "a value of the program has too many dims; one kernel is searched for "
                f"values of at most {w.maps.shape[1].bit_length() - 2} dims"
            )
    raise UnsupportedError(
        "the program divides by zero whatever its inputs; the search can compare "
        "values only where they exist"
    )


def _evaluate_program(
    space: Space, s: Useful, r: Rules, w: Workspace, seed: int
) -> list[Ints] | None:
    reset(w)
    # Each value is a node of its own, numbered like the value.
    w.counts[_APART] = 1
    rng = np.random.default_rng(seed)
    fields = _Fields(w.counts, w.found[0], w.values)
    counts, nodes = w.counts, w.nodes
    found: list[Ints] = []
    for i, value in enumerate(space.values):
        kind = LOAD if value.term is None else KIND[value.term]
        x = _ahead(fields, kind, s.site_of.get(i, value.over), value.names, BEFORE)
        x["operands"][: len(value.operands)] = value.operands
        size = int(_element_count(value.names, r.dims, r.loop))
        if value.op is None:
            _append(fields, _random(value, size, rng, seed), size)
        _meet(w, r, NONE)
        if counts[_NODES] == i:
            return None
        at = int(nodes[i]["offset"])
        found.append(fields.values[at : at + size].copy())
    return found


class _Fields(NamedTuple):
    """What is written to a workspace again and again: looking fields up takes long.

    Attributes:
        counts: Its counts.
        ahead: The result that is evaluated next.
        values: Its pool of residues.
    """

    counts: Ints
    ahead: Any
    values: Ints


def _ahead(w: _Fields, kind: Any, arg: int, shape: int, stage: Any) -> Any:
    """The result that is evaluated next; of no operands, nor a fingerprint, as yet."""
    w.counts[_WAITING] = 1
    x = w.ahead
    x["kind"], x["arg"], x["shape"], x["stage"] = kind, arg, shape, stage
    x["operands"], x["constant"], x["f0"], x["f1"] = NONE, 0, 0, 0
    return x


def _append(w: _Fields, residues: Any, size: int) -> None:
    """Put residues at the end of the pool, which belong to the result ahead."""
    used = int(w.counts[_USED])
    w.values[used : used + size] = residues


def _random(value: Value, size: int, rng: np.random.Generator, seed: int) -> Any:
    """Residues of a tensor or of a constant."""
    if value.constant is None:
        return rng.integers(1, _PRIME, size)
    number = constant_value(value.constant)
    if number is not None:
        return number % _PRIME
    return element_of(f"{seed} residue {value.constant}") % (_PRIME - 1) + 1


def _enter_seeds(
    space: Space, s: Useful, r: Rules, w: Workspace, references: list[Ints]
) -> None:
    """Make nodes of the tensors read and of the constants."""
    fields = _Fields(w.counts, w.found[0], w.values)
    for i in (*space.loads, *space.constants):
        value, residues = space.values[i], references[i]
        shape, stage = value.names, BEFORE
        if r.loop >= 0 and value.names >> r.loop & 1:
            residues = _pieces(residues, value.names, r.loop)
            shape, stage = shape | PIECE, BODY
        _append(fields, residues, len(residues))
        x = _ahead(fields, LOAD, i, shape, stage)
        x["f0"], x["f1"] = s.fingerprints[i]
        if value.constant is not None:
            x["kind"] = CONSTANT
            known = {1: 2, -1: 3}
            x["constant"] = known.get(constant_value(value.constant) or 0, 1)
        _meet(w, r, NONE)


def _pieces(residues: Ints, names: int, loop: int) -> Ints:
    """The tiles of all iterations, one after the other."""
    before = TILE ** (names & ((1 << loop) - 1)).bit_count()
    tiles = residues.reshape(before, _ITERATIONS, TILE, -1)
    return np.moveaxis(tiles, 1, 0).reshape(-1)


def _roots(
    space: Space, s: Useful, w: Workspace, output: int, reference: Ints
) -> tuple[int, ...]:
    """The nodes with an output's shape, key and residues, not in the body."""
    n = int(w.counts[_NODES])
    names, key = space.values[output].names, key_of(s.fingerprints[output])
    nodes = w.nodes[:n]
    alike = (nodes["shape"] == names) & (nodes["stage"] != BODY)
    alike &= nodes["key"] == key
    found: list[int] = []
    values = w.values
    for node in np.flatnonzero(alike):
        at = int(nodes[node]["offset"])
        if np.array_equal(values[at : at + len(reference)], reference):
            found.append(int(node))
    return tuple(found)
