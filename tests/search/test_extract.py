"""Extraction against the enumeration of all DAGs of random AND-OR graphs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_dsl.search.extract import cheapest, condense

Ints = NDArray[np.int64]


def random_graph(seed: int, nodes: int = 9) -> Ints:
    """Rows of node, kind and operands; two leaves, then one to three edges a node."""
    rng = np.random.default_rng(seed)
    rows = [[n, 0, -1, -1, -1, 0] for n in range(2)]
    for node in range(2, nodes):
        for _ in range(rng.integers(1, 4)):
            a, b = rng.integers(0, node, 2)
            rows.append([node, 1, int(a), int(b) if rng.random() < 0.7 else -1, -1, 0])
    return np.array(rows, np.int64)


def all_dags(edges: Ints, root: int) -> set[frozenset[int]]:
    """Every choice of one edge for each value that is needed, as sets of edges."""
    by_node: dict[int, list[int]] = {}
    for e, row in enumerate(edges):
        by_node.setdefault(int(row[0]), []).append(e)
    found: set[frozenset[int]] = set()
    order = sorted(by_node)
    for choice in itertools.product(*(by_node[n] for n in order)):
        pick = dict(zip(order, choice, strict=True))
        used: set[int] = set()
        stack = [root]
        while stack:
            e = pick[stack.pop()]
            if e not in used:
                used.add(e)
                stack.extend(int(k) for k in edges[e, 2:5] if k >= 0)
        found.add(frozenset(used))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_cheapest_dags_in_order(seed: int) -> None:
    edges = random_graph(seed)
    cost = np.random.default_rng(seed + 100).uniform(1, 5, len(edges))
    root = int(edges[-1, 0])
    dags = all_dags(edges, root)
    expected = sorted(sum(float(cost[e]) for e in dag) for dag in dags)
    part = condense(edges, root + 1, np.ones(len(edges), np.bool_), ((root,),))
    assert part is not None
    assert not part.cyclic
    result = cheapest(part, cost, len(dags) + 5)
    assert result.exact
    assert {frozenset(c) for c in result.chosen} == dags
    np.testing.assert_allclose(result.costs, expected)
    few = cheapest(part, cost, 3)
    np.testing.assert_allclose(few.costs, expected[:3])


def test_several_outputs_share() -> None:
    edges = random_graph(5)
    count = int(edges[-1, 0]) + 1
    part = condense(
        edges, count, np.ones(len(edges), np.bool_), ((count - 1,), (count - 2,))
    )
    assert part is not None
    (best,) = cheapest(part, np.ones(len(edges)), 1).chosen
    made = {int(edges[e, 0]) for e in best}
    assert {count - 1, count - 2} <= made
    assert len(made) == len(best)


def test_dead_edges_are_not_used() -> None:
    edges = random_graph(1)
    alive = np.ones(len(edges), np.bool_)
    alive[0] = False
    root = int(edges[-1, 0])
    part = condense(edges, root + 1, alive, ((root,),))
    if part is not None:
        for dag in cheapest(part, np.ones(len(edges)), 50).chosen:
            assert 0 not in dag


def test_an_output_that_cannot_be_made() -> None:
    edges = np.array([[0, 0, -1, -1, -1, 0], [1, 1, 2, -1, -1, 0]], np.int64)
    assert condense(edges, 3, np.ones(2, np.bool_), ((1,),)) is None


def test_a_cycle_without_another_way_costs_nothing() -> None:
    """1 = f(0), 0 = g(1): the second edge is in no DAG, so nothing is lost."""
    rows = [[0, 0, -1, -1, -1, 0], [1, 1, 0, -1, -1, 0], [0, 1, 1, -1, -1, 0]]
    edges = np.array(rows, np.int64)
    part = condense(edges, 2, np.ones(3, np.bool_), ((1,),))
    assert part is not None
    assert not part.cyclic
    (dag,) = cheapest(part, np.ones(3), 5).chosen
    assert set(dag) == {0, 1}


def test_a_cycle_with_another_way_is_cut_and_told() -> None:
    """0 and 1 can be made from leaves, and from each other."""
    rows = [[2, 0, -1], [3, 0, -1], [0, 1, 2], [1, 1, 3], [0, 1, 1], [1, 1, 0]]
    edges = np.array([[*r, -1, -1, 0] for r in rows], np.int64)
    part = condense(edges, 4, np.ones(6, np.bool_), ((0,), (1,)))
    assert part is not None
    assert part.cyclic
    assert cheapest(part, np.ones(6), 5).chosen
