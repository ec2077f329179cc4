"""The k cheapest distinct DAGs of an AND-OR graph, with sharing counted once.

A DAG chooses one edge for each value it needs.  Values are decided from the outputs
down, in one topological order, so every DAG comes up exactly once and what is left to
pay depends on the set of open values alone.  A* with this state; the bound is the sum
of the cheapest edges of all values that no derivation of an open value avoids.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import entry, once
from mirage_dsl.search.closure.workspace import Ints
from mirage_dsl.search.extract.astar import arrays, bounds, needed, search

Floats = NDArray[np.float64]

MAX_STATES = 200_000
"""States of one extraction; beyond it the remaining DAGs are the best ones at hand."""
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


def cheapest(c: Condensed, cost: Floats, k: int) -> Extraction:
    """The `k` cheapest DAGs; `cost` is that of every edge of the whole graph."""
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
        *graph, *arrays(MAX_STATES, opened), picks, costs, len(opened)
    )
    chosen = tuple(tuple(c.edge[row[row >= 0]].tolist()) for row in picks[:found])
    paid = tuple(map(float, costs[:found]))
    return Extraction(chosen, paid, int(expanded), bool(exact))
