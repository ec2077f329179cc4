"""The proof of the cheapest DAG on graphs written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mirage_dsl.search.budget import Budget
from mirage_dsl.search.multi_kernel.dags import Dag, cheap_enough, neighbours, prove
from mirage_dsl.search.multi_kernel.layered import (
    LAUNCH,
    OPERATE,
    PASS,
    SAVE,
    LayeredGraph,
)


def test_what_needs_itself_is_no_solution() -> None:
    """Of x = 1/y and y = 1/x: the cheapest choice is none, the dear one is proved."""
    kids = [[1, -1, -1], [0, -1, -1], [-1, -1, -1], [1, -1, -1]]
    columns = np.zeros(4, np.int64)
    u = SimpleNamespace(
        makes=np.array([0, 1, 1, 2]),
        kids=np.array(kids),
        cost=np.array([1.0, 1.0, 7.0, 0.5]),
        **dict.fromkeys(("kind", "tensor", "layer", "kernel"), columns),
        **dict.fromkeys(("shift", "launch"), columns - 1),
        room=np.zeros((4, 0), np.int64),
        root=2,
    )
    proof: Any = prove(cast("LayeredGraph", u), budget=Budget.of(10.0))
    assert proof.optimal
    assert proof.best.enodes == (2, 3)
    assert proof.bound == pytest.approx(7.5)


LAYERS, VALUES = 3, 4


def layered(seed: int) -> LayeredGraph:
    """A random graph: each layer has a launch, a load, values and a save."""
    rng = np.random.default_rng(seed)
    rows = [(0, -1, -1, PASS)]
    tensor = 0
    for _ in range(LAYERS):
        launch, load = tensor + 1, tensor + 2
        rows += [(launch, -1, -1, LAUNCH), (load, tensor, launch, OPERATE)]
        for value in range(load + 1, load + VALUES):
            for _ in range(rng.integers(1, 4)):
                first, second = rng.integers(load, value, 2)
                rows.append((value, first, second, OPERATE))
        saved = load + VALUES
        rows.append((saved, saved - 1, -1, SAVE))
        # What the layer reads may be wanted as it is.
        rows.append((saved, tensor, -1, PASS))
        tensor = saved
    table = np.array(rows)
    kids = np.column_stack([table[:, 1:3], np.full(len(rows), -1)])
    none = np.full(len(rows), -1)
    kind = table[:, 3]
    cost = np.where(kind == PASS, 0.0, rng.integers(1, 9, len(rows)) / 2)
    room = np.zeros((len(rows), 0), np.int64)
    number = np.zeros(len(rows), np.int64)
    layer = np.maximum(table[:, 0] - 1, 0) // (VALUES + 2)
    classes = np.full(tensor + 1, -1)
    return LayeredGraph(
        table[:, 0],
        kids,
        cost,
        kind,
        number,
        layer,
        number,
        none,
        room,
        classes,
        tensor,
        len(rows),
    )


def dags(u: LayeredGraph) -> Iterator[frozenset[int]]:
    """All of them; kids have lower numbers than what is made of them."""

    def below(wanted: frozenset[int], chosen: frozenset[int]) -> Iterator[Any]:
        if not wanted:
            yield chosen
            return
        top = max(wanted)
        for e in np.flatnonzero(u.makes == top).tolist():
            kids = {k for k in u.kids[e].tolist() if k >= 0}
            yield from below((wanted | kids) - {top}, chosen | {e})

    return below(frozenset([u.root]), frozenset())


@pytest.mark.parametrize("seed", range(6))
def test_no_dag_that_is_cheap_enough_loses_an_enode(seed: int) -> None:
    u = layered(seed)
    costs = {dag: float(u.cost[list(dag)].sum()) for dag in dags(u)}
    least, most = min(costs.values()), max(costs.values())
    for limit in (least, (least + most) / 2, most):
        kept = set(cheap_enough(u, limit).tolist())
        assert all(dag <= kept for dag, cost in costs.items() if cost <= limit)
    assert len(cheap_enough(u, least)) < len(u.cost)


def test_what_is_left_out_changes_no_proof() -> None:
    u = layered(1)
    every = [Dag(tuple(sorted(d)), float(u.cost[list(d)].sum())) for d in dags(u)]
    alone = prove(u, budget=Budget.of(10.0))
    assert alone is not None
    for known in (min(every, key=cost), max(every, key=cost)):
        behind = prove(u, budget=Budget.of(10.0), known=known)
        assert behind is not None
        assert behind.optimal
        assert behind.best in every
        assert behind.best.cost == pytest.approx(alone.bound)


@pytest.mark.parametrize("seed", range(6))
def test_neighbours_make_one_value_another_way(seed: int) -> None:
    """Every other way to make a value of a DAG is in one of them, and all are DAGs."""
    u = layered(seed)
    every = sorted(dags(u), key=lambda d: u.cost[list(d)].sum())
    for own in (every[len(every) // 2], every[-1]):
        base = Dag(tuple(sorted(own)), float(u.cost[list(own)].sum()))
        found = list(neighbours(u, base))
        assert all(frozenset(d.enodes) in every for d in found)
        assert all(d.cost == pytest.approx(u.cost[list(d.enodes)].sum()) for d in found)
        used = set(u.makes[list(own)].tolist())
        others = np.flatnonzero(np.isin(u.makes, list(used)) & (u.kind == OPERATE))
        changes = set(others.tolist()) - own
        assert changes or own != every[-1]
        assert changes <= {e for d in found for e in d.enodes}


def cost(dag: Dag) -> float:
    return dag.cost
