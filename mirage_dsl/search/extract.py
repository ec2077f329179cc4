"""The k cheapest distinct DAGs of a closure, with sharing counted once.

A closure is an AND-OR graph: a value is made by one of its edges, an edge needs all of
its operands.  A DAG chooses one edge for each value it needs.  Values are decided from
the outputs down, in one topological order, so every DAG comes up exactly once and what
is left to pay depends on the set of open values alone.  A* with this state; the bound
is the sum of the cheapest edges of all values that no derivation of an open value
avoids.

What an edge costs is a plain sum over what it works on.  The sizes here are
placeholders, one guess for each dim; they only rank structures.  The real sizes and the
real cost model come after, in `search.sizes`.

Sums and differences commute, so sum(x - y) is also sum(x) - sum(y), which may be
cheaper; but large sums may cancel where the small differences were accurate.  What is
only equal in exact arithmetic fails the stability verdict later.  So it is with a
product of a scaled operand, which is rounded, for a scaled product, and with what is
scaled otherwise before it is compared.  So of every configuration some structures that
cancel no more than the program does, and have its constants where it has them, are kept
beside cheaper ones.
"""

# Numba has no types for its decorators, nor for compiled functions; NumPy gives rows of
# a transposed array no element type.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportArgumentType=false

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, inner, once
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.closure import (
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    PIECE,
    SUB,
    SUM,
    Ints,
    Saturation,
    Words,
)
from mirage_dsl.search.space import Configuration, Space, balanced, block_count
from mirage_dsl.search.useful import scramble64

Floats = NDArray[np.float64]

# -- What edges cost -------------------------------------------------------------------

TILE = 64
"""Placeholder tile of a split dim."""


@dataclass(frozen=True)
class EdgeWork:
    """What every edge of a graph does at some sizes, one entry each.

    Attributes:
        kind: Kind of edge (`search.closure`).
        result: Elements of the result, in one iteration.
        operand: Elements of the first operand; 0 if there is none.
        products: Of a contraction, 0 for others.
        times: How often a block does it.
        flops: f32 operations for each element of the result.
        itemsize: Bytes of each element loaded.
        joins: Whether it is an accumulator.
        blocks: Number of blocks.
    """

    kind: Ints
    result: Floats
    operand: Floats
    products: Floats
    times: Floats
    flops: Floats
    itemsize: Floats
    joins: NDArray[np.bool_]
    blocks: int


def placeholder_tiles(space: Space, configuration: Configuration) -> dict[str, int]:
    """A guess of the tile of every split dim: 1 for batch dims, else at most 64."""
    tiles: dict[str, int] = {}
    for dim in {*configuration.grid, configuration.loop} - {None}:
        assert dim is not None
        batch = space.batch >> space.dims.index(dim) & 1 and space.extent(dim) <= 64
        tiles[dim] = 1 if batch else min(TILE, space.extent(dim))
    return balanced(tiles, space, configuration)


@dataclass(frozen=True, eq=False)
class Shapes:
    """The different ones of some packed shapes (`search.closure`).

    Attributes:
        dims: By shape and dim of the program, whether the shape has the dim.
        pieces: By shape, whether it has one piece of the loop's dim.
        place: The shape of each value.
    """

    dims: NDArray[np.bool_]
    pieces: NDArray[np.bool_]
    place: Ints

    @staticmethod
    def of(space: Space, packed: Ints) -> Shapes:
        """Those of values of a program."""
        different, place = np.unique(packed, return_inverse=True)
        dims = different[:, None] >> np.arange(len(space.dims)) & 1 > 0
        return Shapes(dims, (different & PIECE) != 0, place)

    def elements(self, extents: Sequence[float], loop: int | None, tile: int) -> Floats:
        """Elements of each value.

        Args:
            extents: How long each dim is.
            loop: The number of the loop's dim, if there is a loop.
            tile: How long a piece of it is.
        """
        lengths = np.where(self.dims, np.array(extents, np.float64), 1.0)
        if loop is not None:
            lengths[self.pieces & self.dims[:, loop], loop] = tile
        return lengths.prod(axis=1)[self.place]


@dataclass(frozen=True, eq=False)
class Edges:
    """What is true of the edges of a loop choice whatever the grid and the tiles.

    Attributes:
        saturation: The loop choice.
        nodes: Shapes of its nodes.
        joint: Shapes of both operands of contractions together.
        contracts: Numbers of these edges.
        joins: Which edges are accumulators.
        looped: Which edges every iteration does.
        reduced: Dims that each edge reduces, or scans: no grid splits them.
        flops: f32 operations for each element of the result.
        itemsize: Bytes of each element loaded.
    """

    saturation: Saturation
    nodes: Shapes
    joint: Shapes
    contracts: Ints
    joins: NDArray[np.bool_]
    looped: NDArray[np.bool_]
    reduced: Ints
    flops: Floats
    itemsize: Floats

    @staticmethod
    def of(space: Space, saturation: Saturation) -> Edges:
        """Those of a loop choice of a program."""
        node, kind, first, second, _, arg = saturation.edges.T
        function = kind == FUNCTION
        joins = np.array((*saturation.site_joins, False))[np.where(function, arg, -1)]
        joins |= (kind == JOIN) | (kind == GATHER)
        doer = np.where(joins, first, node)
        contracts = np.flatnonzero(kind == CONTRACT)
        over = np.array((*saturation.site_over, 0), np.int64)
        over |= np.array((*saturation.site_along, 0), np.int64)
        summed = np.where((kind == SUM) | (kind == CONTRACT), arg, 0)
        shape = saturation.shape
        return Edges(
            saturation,
            Shapes.of(space, shape),
            Shapes.of(space, shape[first[contracts]] | shape[second[contracts]]),
            contracts,
            joins,
            saturation.stage[doer] == BODY,
            np.where(function, over[np.where(function, arg, -1)], summed),
            _flops(space, saturation, kind, arg),
            _itemsizes(space, kind, arg),
        )


def work_of(
    space: Space, edges: Edges, configuration: Configuration, tiles: dict[str, int]
) -> EdgeWork:
    """What the edges of a loop choice do, for a grid and for tiles."""
    node, kind, first = edges.saturation.edges.T[:3]
    elements = _elements(space, edges.nodes, configuration, tiles)
    loop = configuration.loop
    count = -(-_local(space, configuration, tiles, loop) // tiles[loop]) if loop else 1
    products = np.zeros(len(kind))
    products[edges.contracts] = _elements(space, edges.joint, configuration, tiles)
    return EdgeWork(
        kind,
        elements[node],
        np.where(first >= 0, elements[first], 0.0),
        products,
        np.where(edges.looped, float(count), 1.0),
        edges.flops,
        edges.itemsize,
        edges.joins,
        block_count(space, tiles, configuration),
    )


def _local(
    space: Space, configuration: Configuration, tiles: dict[str, int], dim: str
) -> int:
    """The extent of a dim that one block sees over all iterations."""
    if dim in configuration.grid and dim != configuration.loop:
        return tiles[dim]
    return space.extent(dim)


def _elements(
    space: Space, shapes: Shapes, configuration: Configuration, tiles: dict[str, int]
) -> Floats:
    extents = [_local(space, configuration, tiles, dim) for dim in space.dims]
    return shapes.elements(extents, *piece_of(space, configuration, tiles))


def piece_of(
    space: Space, configuration: Configuration, tiles: Mapping[str, int]
) -> tuple[int | None, int]:
    """The number of the loop's dim, if there is a loop, and how long a piece is."""
    loop = configuration.loop
    return (None, 1) if loop is None else (space.dims.index(loop), tiles[loop])


def _flops(space: Space, saturation: Saturation, kind: Ints, arg: Ints) -> Floats:
    flops = np.where(kind == DIV, 4.0, 1.0)
    for e in np.flatnonzero(kind == FUNCTION):
        op = space.values[saturation.sites[arg[e]]].op
        assert op is not None
        flops[e] = op.flops
    return flops


def _itemsizes(space: Space, kind: Ints, arg: Ints) -> Floats:
    sizes = np.zeros(len(kind))
    for e in np.flatnonzero(kind == LOAD):
        tensor = space.values[arg[e]].type
        assert tensor is not None
        sizes[e] = tensor.dtype.itemsize
    return sizes


def additive_cost(work: EdgeWork, hardware: Hardware) -> Floats:
    """Microseconds of a GPU, as a sum over edges; see `hardware.Ranking`."""
    rates = hardware.ranking
    us = work.flops * work.result / rates.operations_per_us
    reads = work.result * work.itemsize / rates.bytes_per_us
    us = np.where(work.kind == LOAD, reads, us)
    us = np.where(work.kind == CONTRACT, work.products / rates.products_per_us, us)
    us = np.where(work.kind == SUM, work.operand / rates.operations_per_us, us)
    us = np.where(work.joins, 0.5 * work.operand / rates.operations_per_us, us)
    us = np.where(work.kind == CONSTANT, 0.0, us + rates.step_us)
    return us * work.times * max(1.0, work.blocks / hardware.sms)


# -- The cheapest DAGs -----------------------------------------------------------------

MAX_STATES, FEW_STATES = 200_000, 8_000
"""States of one extraction, and of one that has to be quick; beyond them the remaining
DAGs are the best ones at hand."""
MAX_ROOT_CHOICES = 8

_U = np.uint64


@dataclass(frozen=True)
class Condensed:
    """The part of a graph that matters: values that can be made and are needed.

    Attributes:
        edge: Number of each kept edge in the whole graph, by value it makes.
        start: Where each value's edges begin; values in topological order.
        kids: Operands of each kept edge, -1 for none.
        starts: Choices of values that together are all outputs.
        cyclic: Whether edges were left out because they closed a cycle.
    """

    edge: Ints
    start: Ints
    kids: Ints
    starts: tuple[tuple[int, ...], ...]
    cyclic: bool


def condense(
    edges: Ints,
    nodes: int,
    alive: NDArray[np.bool_],
    roots: tuple[tuple[int, ...], ...],
) -> Condensed | None:
    """Keep what the roots need; None if some output cannot be made.

    Args:
        edges: Rows of node, kind and three operands (-1 for none).
        nodes: Number of nodes.
        alive: Edges that may be used.
        roots: Alternatives for each output.
    """
    makes = np.ascontiguousarray(edges[:, 0])
    kids = np.ascontiguousarray(edges[:, 2:5])
    wanted = np.array(sorted({n for some in roots for n in some}), np.int64)
    keep, made = needed(makes, kids, alive, wanted, nodes)
    found = tuple(tuple(n for n in some if made[n]) for some in roots)
    if not all(found):
        return None
    kept = np.flatnonzero(keep)
    by_node = kept[np.argsort(makes[kept], kind="stable")]
    rank, dropped = _ranks(makes[by_node], kids[by_node], nodes)
    if dropped:
        by_node = by_node[_progressive(makes[by_node], kids[by_node])]
        alive = np.ones(len(by_node), np.bool_)
        keep, _ = needed(makes[by_node], kids[by_node], alive, wanted, nodes)
        by_node = by_node[keep]
        rank, dropped = _ranks(makes[by_node], kids[by_node], nodes)
    inside = _inside(rank, makes[by_node], kids[by_node])
    by_node = by_node[inside]
    order = np.argsort(rank[makes[by_node]], kind="stable")
    edge = by_node[order]
    ranked = np.where(kids[edge] >= 0, rank[kids[edge]], -1)
    count = int(rank.max()) + 1
    start = np.searchsorted(rank[makes[edge]], np.arange(count + 1))
    choices = itertools.islice(itertools.product(*found), MAX_ROOT_CHOICES)
    starts = tuple(tuple(int(rank[n]) for n in choice) for choice in choices)
    return Condensed(edge, start.astype(np.int64), ranked, starts, bool(dropped))


def _progressive(makes: Ints, kids: Ints) -> NDArray[np.bool_]:
    """Edges that some DAG may use: no operand needs the node itself to be made.

    What every derivation of a node needs is a greatest fixpoint over bit sets.
    """
    groups: dict[int, list[list[int]]] = {}
    for node, operands in zip(makes.tolist(), kids.tolist(), strict=True):
        groups.setdefault(node, []).append([k for k in operands if k >= 0])
    needs = dict.fromkeys(groups, -1)
    changed = True
    while changed:
        changed = False
        for node, ways in groups.items():
            common = -1
            for way in ways:
                common &= reduce(or_, (needs[k] for k in way), 0)
            common |= 1 << node
            changed |= common != needs[node]
            needs[node] = common
    return np.array(
        [
            not any(needs[k] >> node & 1 for k in operands if k >= 0)
            for node, operands in zip(makes.tolist(), kids.tolist(), strict=True)
        ],
        np.bool_,
    )


def _inside(rank: Ints, makes: Ints, kids: Ints) -> NDArray[np.bool_]:
    """Edges whose operands all come before the value they make."""
    own = rank[makes]
    below = (kids < 0) | ((rank[kids] >= 0) & (rank[kids] < own[:, None]))
    return (own >= 0) & below.all(axis=1)


def _ranks(makes: Ints, kids: Ints, nodes: int) -> tuple[Ints, bool]:
    """A topological number for each node that is made; and whether cycles are cut."""
    first = np.searchsorted(makes, np.arange(nodes + 1))
    rank = np.full(nodes, -1)
    rank[makes] = -2
    total = np.count_nonzero(rank == -2)
    return rank, bool(_place(first, kids, rank, total))


@entry
def _place(first, kids, rank, total):
    """Give each node of rank -2 a topological number; says whether cycles were broken.

    Edges are sorted by node; those of node n begin at `first[n]`.

    A node is placed when all its edges have placed operands.  Where a cycle leaves
    none, the first node with one complete edge is placed, and loses the other edges.
    """
    placed, broken = 0, 0
    while placed < total:
        before = placed
        for n in range(len(rank)):
            if rank[n] == -2:
                missing, whole = _missing(rank, kids, first[n], first[n + 1])
                if missing == 0 or (broken == 2 and whole):
                    rank[n] = placed
                    placed += 1
                    if broken == 2:
                        broken = 1
        if placed == before:
            broken = 2
    return broken


@once
def _missing(rank, kids, start, stop):
    """Edges with operands that have no rank, and whether one edge has all."""
    missing, whole = 0, False
    for e in range(start, stop):
        ready = True
        for t in range(3):
            ready = ready and (kids[e, t] < 0 or rank[kids[e, t]] >= 0)
        if ready:
            whole = True
        else:
            missing += 1
    return missing, whole


@dataclass(frozen=True)
class Extraction:
    """The DAGs found, cheapest first.

    Attributes:
        chosen: For each DAG the numbers of its edges in the whole graph.
        costs: Their costs.
        expanded: States that were expanded.
        exact: Whether these are provably the cheapest.
    """

    chosen: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]
    expanded: int
    exact: bool


def cheapest(
    c: Condensed, cost: Floats, k: int, states: int = MAX_STATES
) -> Extraction:
    """The cheapest DAGs.

    Args:
        c: What they are of.
        cost: Of every edge of the whole graph.
        k: How many.
        states: Beyond which they are the best ones at hand.
    """
    own = np.ascontiguousarray(cost[c.edge])
    words = (len(c.start) + 62) // 64
    opened = np.zeros((len(c.starts), words), _U)
    for row, nodes in zip(opened, c.starts, strict=True):
        for n in nodes:
            row[n // 64] |= _U(1 << (n % 64))
    count = len(c.start) - 1
    mandatory = np.empty((count, words), np.uint64)
    least, tree = np.empty(count), np.empty(count)
    graph = (c.start, c.kids, own, mandatory, least, tree)
    bounds(*graph)
    picks, costs = np.full((k, len(c.start)), -1), np.empty(k)
    found, expanded, exact = search(
        *graph, *arrays(states, opened), picks, costs, len(opened)
    )
    chosen = tuple(tuple(c.edge[row[row >= 0]].tolist()) for row in picks[:found])
    paid = tuple(map(float, costs[:found]))
    return Extraction(chosen, paid, int(expanded), bool(exact))


# -- A heap of numbered states ---------------------------------------------------------

HEAP = np.dtype([("rank", np.float64), ("state", np.int64)], align=True)
"""The rank of each state, and beside it, as an array of its own, the heap."""
EMPTY = np.int64(0)
"""Size of an empty heap; of NumPy's type, see `search.closure`."""


@inner
def _before(heap, a, b):
    """Whether state `a` comes before `b`: it is cheaper, or as cheap and newer."""
    first, second = heap[a]["rank"], heap[b]["rank"]
    return first < second or (first == second and a > b)


@inner
def push(heap, size, state):
    """Add a state to a heap of `size` states."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]["state"]
        if _before(heap, other, state):
            break
        heap[at]["state"] = other
        at = above
    heap[at]["state"] = state


@inner
def pop(heap, size):
    """Take the first state out of a heap of `size` states."""
    first, last, at, below = heap[0]["state"], heap[size - 1]["state"], 0, 1
    while below < size - 1:
        other = heap[below]["state"]
        if below + 1 < size - 1 and _before(heap, heap[below + 1]["state"], other):
            below += 1
            other = heap[below]["state"]
        if _before(heap, last, other):
            break
        heap[at]["state"] = other
        at, below = below, 2 * below + 1
    heap[at]["state"] = last
    return first


# -- What can be made, and is needed ---------------------------------------------------


Bools = NDArray[np.bool_]


def needed(
    makes: Ints, kids: Ints, alive: Bools, roots: Ints, classes: int
) -> tuple[Bools, Bools]:
    """E-nodes whose kids can all be made and that the roots may use; classes made.

    Args:
        makes: The class that each e-node makes.
        kids: The classes that it needs, -1 for none.
        alive: The e-nodes that may be used.
        roots: The classes that are wanted, as far as they can be made.
        classes: How many classes there are.
    """
    made, wanted = np.zeros((2, classes + 1), np.bool_)
    # A kid that is not there is the class after the last one.
    made[-1] = wanted[-1] = True
    keep = np.zeros(len(makes), np.bool_)
    wanted[roots] = True
    _reach(makes, kids, alive, made, wanted, keep)
    return keep, made[:-1]


@entry
def _reach(makes, kids, alive, made, wanted, keep):
    """Mark what can be made, then from above what of it is needed.

    E-nodes mostly come after those that make their kids, so few rounds are needed.
    """
    changed = True
    while changed:
        changed = False
        for e in range(len(makes)):
            if not alive[e] or made[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                made[makes[e]] = changed = True
    changed = True
    while changed:
        changed = False
        e = len(makes)
        while e:
            e -= 1
            if not alive[e] or keep[e] or not wanted[makes[e]]:
                continue
            if made[kids[e, 0]] and made[kids[e, 1]] and made[kids[e, 2]]:
                keep[e] = changed = True
                for t in range(3):
                    wanted[kids[e, t]] = True


# -- A* --------------------------------------------------------------------------------


STATE = np.dtype(
    [("paid", np.float64), ("parent", np.int64), ("edge", np.int64)], align=True
)
"""What a state's decisions cost, and the last of them: its edge, the state before."""

VISIT = np.dtype([("word", np.uint64), ("count", np.int64)], align=True)
"""A set of open values, as a hash, and how often it came up."""


@once
def _require(start, kids, needs, v):
    """Fill in what every derivation of a value needs."""
    for i in range(needs.shape[1]):
        common = ~_U(0)
        for e in range(start[v], start[v + 1]):
            needed = _U(0)
            for t in range(3):
                if kids[e, t] >= 0:
                    needed |= needs[kids[e, t], i]
            common &= needed
        needs[v, i] = common
    needs[v, v // 64] |= _U(1) << _U(v % 64)


@entry
def bounds(start, kids, cost, needs, least, tree):
    """Fill in, per value: what every derivation needs, its cheapest edge and tree."""
    for v in range(len(least)):
        _require(start, kids, needs, v)
        own, whole = np.inf, np.inf
        for e in range(start[v], start[v + 1]):
            total = cost[e]
            for t in range(3):
                if kids[e, t] >= 0:
                    total += tree[kids[e, t]]
            if cost[e] < own:
                own = cost[e]
            if total < whole:
                whole = total
        least[v], tree[v] = own, whole


@once
def _bound(bits, s, needs, least):
    """A lower bound of what is left to pay in a state."""
    words, spare, total = bits.shape[1], len(bits) - 1, 0.0
    for i in range(words):
        bits[spare, i] = _U(0)
    for i in range(words):
        word, v = bits[s, i], 64 * i
        while word:
            if word & _U(1):
                for t in range(words):
                    bits[spare, t] |= needs[v, t]
            word >>= _U(1)
            v += 1
    for i in range(words):
        word, v = bits[spare, i], 64 * i
        while word:
            if word & _U(1):
                total += least[v]
            word >>= _U(1)
            v += 1
    return total


@inner
def _open(bits, s, needs, least, states, heap, size):
    """Add a state to the heap of `size` states."""
    heap[s]["rank"] = states[s]["paid"] + _bound(bits, s, needs, least)
    push(heap, size, s)


@inner
def _highest(bits, s):
    """The open value of the highest rank, -1 if none is open."""
    i = bits.shape[1]
    while i:
        i -= 1
        word = bits[s, i]
        if word:
            v = 64 * i - 1
            while word:
                word >>= _U(1)
                v += 1
            return v
    return -1


@inner
def _advance(bits, s, value, kids, e, after):
    """The open values after `value` was decided by edge `e`; may be in place."""
    for i in range(bits.shape[1]):
        bits[after, i] = bits[s, i]
    bits[after, value // 64] &= ~(_U(1) << _U(value % 64))
    for t in range(3):
        kid = kids[e, t]
        if kid >= 0:
            bits[after, kid // 64] |= _U(1) << _U(kid % 64)


@once
def _dive(bits, s, start, kids, cost, tree, row, filled):
    """Complete a DAG greedily from the open values; returns what that costs."""
    total, v = 0.0, _highest(bits, s)
    while v >= 0:
        pick, least = start[v], np.inf
        for e in range(start[v], start[v + 1]):
            price = cost[e]
            for t in range(3):
                kid = kids[e, t]
                if kid >= 0 and not (bits[s, kid // 64] >> _U(kid % 64)) & _U(1):
                    price += tree[kid]
            if price < least:
                pick, least = e, price
        total += cost[pick]
        row[filled] = pick
        filled += 1
        _advance(bits, s, v, kids, pick, s)
        v = _highest(bits, s)
    return total


@once
def _trace(states, s, row):
    """Fill a row with the edges decided up to a state; returns how many."""
    filled = 0
    while states[s]["parent"] >= 0:
        row[filled] = states[s]["edge"]
        filled += 1
        s = states[s]["parent"]
    return filled


@once
def _visit(visits, bits, s):
    """How often a set of open values has come up, this time included."""
    word = _U(1)
    for i in range(bits.shape[1]):
        word = scramble64(word ^ bits[s, i])
    mask = _U(len(visits) - 1)
    at = word & mask
    while visits[at]["count"] and visits[at]["word"] != word:
        at = (at + _U(1)) & mask
    visit = visits[at]
    visit["word"] = word
    visit["count"] += 1
    return visit["count"]


def arrays(limit: int, opened: Words) -> tuple[NDArray[np.void] | Words, ...]:
    """Open values of states, states, heap and visits of a search.

    The first states are rows of open values; the row after the last state is scratch.
    """
    bits = np.empty((limit + 1, opened.shape[1]), np.uint64)
    states = np.empty(limit, STATE)
    bits[: len(opened)] = opened
    states[: len(opened)] = (0.0, -1, -1)
    slots = 1 << (2 * limit - 1).bit_length()
    return bits, states, np.empty(limit + 1, HEAP), np.zeros(slots, VISIT)


@entry
def search(
    start, kids, cost, needs, least, tree, bits, states, heap, seen, picks, costs, used
):
    """The cheapest DAGs from any of the first `used` states, as rows of edges.

    Takes `arrays`, and fills `picks`, rows of -1, and their `costs`.  Returns how many
    DAGs there are, how many states were expanded, and whether the limit of states was
    kept; if not, the best partial DAGs are completed greedily.
    """
    size, found, expanded, exact = EMPTY, 0, 0, True
    while size < used:
        _open(bits, size, needs, least, states, heap, size)
        size += 1
    while size and found < len(costs):
        s = pop(heap, size)
        size -= 1
        v = _highest(bits, s)
        if v < 0 or not exact:
            filled = _trace(states, s, picks[found])
            costs[found] = states[s]["paid"]
            costs[found] += _dive(
                bits, s, start, kids, cost, tree, picks[found], filled
            )
            found += 1
        elif _visit(seen, bits, s) <= len(costs):
            expanded += 1
            exact = used + start[v + 1] - start[v] <= len(states)
            if not exact:
                heap[s]["rank"] = -1.0
                push(heap, size, s)
                size += 1
                continue
            for e in range(start[v], start[v + 1]):
                _advance(bits, s, v, kids, e, used)
                state = states[used]
                state["paid"] = states[s]["paid"] + cost[e]
                state["parent"], state["edge"] = s, e
                _open(bits, used, needs, least, states, heap, size)
                size, used = size + 1, used + 1
    return found, expanded, exact


# -- Those that cancel no more than the program ----------------------------------------

ACCURATE = 4
"""Structures of a configuration that are kept for their accuracy, at most."""


def moved_differences(
    space: Space, saturation: Saturation, names: AbstractSet[str] | None = None
) -> Bools:
    """Edges that subtract where the program does not.

    Args:
        space: The program.
        saturation: Its closure.
        names: Values that are the program's own; all of the space unless given.
    """
    own = [
        key
        for v, key in zip(space.values, saturation.program_keys, strict=True)
        if v.term is Term.SUB
        if names is None or v.name in names
    ]
    made = saturation.key[saturation.edges[:, 0]]
    return (saturation.edges[:, 1] == SUB) & ~np.isin(made, np.array(own, made.dtype))


def entered_by_constants(saturation: Saturation) -> Bools:
    """Edges that make a constant, or read one."""
    made, kind, *operands, _ = saturation.edges.T
    constant = np.zeros(len(saturation.shape) + 1, np.bool_)
    constant[made[kind == CONSTANT]] = True
    return np.asarray(constant[made] | constant[np.stack(operands)].any(axis=0))


def multiplied(saturation: Saturation) -> Bools:
    """Edges that make an operand of a product."""
    made, kind, *operands, _ = saturation.edges.T
    found = np.zeros(len(saturation.shape) + 1, np.bool_)
    found[np.stack(operands)[:, kind == CONTRACT]] = True
    return found[made]


def moved_constants(saturation: Saturation) -> Bools:
    """Edges that constants enter, where they enter none of the program's values."""
    made = saturation.key[saturation.edges[:, 0]]
    own = np.isin(made, np.array(saturation.program_keys, made.dtype))
    own |= saturation.edges[:, 1] == CONSTANT
    return entered_by_constants(saturation) & ~own


def accurate_ones(
    found: Extraction,
    accurate: Callable[[], Condensed | None],
    costs: Floats,
    moved: Bools,
) -> list[tuple[tuple[int, ...], float]]:
    """DAGs without moved edges, if others have them; extracted anew if need be.

    Args:
        found: The cheapest DAGs of a configuration.
        accurate: What they are of without moved edges; asked for if need be.
        costs: Of its edges.
        moved: Which edges are moved differences, or what moved constants enter.
    """
    if not any(moved[list(c)].any() for c in found.chosen):
        return []
    pairs = list(zip(found.chosen, found.costs, strict=True))
    there = [(c, cost) for c, cost in pairs if not moved[list(c)].any()]
    if there or (part := accurate()) is None:
        return there
    others = cheapest(part, costs, ACCURATE, FEW_STATES)
    return list(zip(others.chosen, others.costs, strict=True))
