"""One AND-OR graph of all programs of several kernels.

Its classes are tensors in memory after each layer of kernels, launches, and values in
blocks.  A tensor is there after a layer if a kernel of the layer saves it, or if it was
there before; a block's value is made from others, or loaded, which needs the tensor and
the launch.  Layers keep the kernels in order, so the graph has no cycles but those
within a closure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.search.closure import CONTRACT, LOAD, Ints
from mirage_dsl.search.extract import needed
from mirage_dsl.search.multi_kernel.kernels import LIMITS, KernelChoice

Floats = NDArray[np.float64]

OPERATE, SAVE, LAUNCH, LIBRARY, PASS = range(5)
"""Kinds of e-node: an edge of a closure, a store, and so on."""


@dataclass(frozen=True)
class LibraryChoice:
    """A pre-defined kernel: the tensor that it makes, those that it reads, its µs."""

    result: str
    operands: tuple[str, ...]
    cost: float


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """The graph, reduced to what the outputs need.

    E-nodes are rows of the arrays, sorted by class.

    Attributes:
        makes: Class of each e-node.
        kids: Classes that it needs, -1 for none.
        cost: Its µs.
        kind: Its kind.
        kernel: Number of its kernel (of its call for `LIBRARY`), -1 for `PASS`.
        layer: Its layer.
        detail: Number of its edge, or of its save.
        shift: The shift that it chooses or shares (`Closure.shift`), -1 for none.
        room: What it takes of each limit of its launch, one row an e-node.
        tensor: Of each class the number of its tensor, -1 if it is none.
        root: The class of all outputs.
        total: How many e-nodes there were before the reduction.
    """

    makes: Ints
    kids: Ints
    cost: Floats
    kind: Ints
    kernel: Ints
    layer: Ints
    detail: Ints
    shift: Ints
    room: Ints
    tensor: Ints
    root: int
    total: int

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.tensor)

    def take(self, enodes: Ints) -> LayeredGraph:
        """The graph of some of its e-nodes, in their order; the classes stay."""
        return LayeredGraph(
            self.makes[enodes],
            self.kids[enodes],
            self.cost[enodes],
            self.kind[enodes],
            self.kernel[enodes],
            self.layer[enodes],
            self.detail[enodes],
            self.shift[enodes],
            self.room[enodes],
            self.tensor,
            self.root,
            self.total,
        )

    @cached_property
    def launch(self) -> Ints:
        """Number of each e-node's launch, -1 where it belongs to none."""
        inside = (self.kind == OPERATE) | (self.kind == SAVE) | (self.kind == LAUNCH)
        return np.where(inside, self.kernel * (self.layer.max() + 1) + self.layer, -1)


@dataclass
class _Builder:
    """Collects e-nodes as chunks of rows; a launch costs `launch_us`."""

    tensors: dict[str, int]
    layers: int
    launch_us: float
    rows: list[Ints] = field(default_factory=list[Ints])
    costs: list[Floats] = field(default_factory=list[Floats])
    classes: int = 0
    _single: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    _prices: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.classes = (self.layers + 1) * len(self.tensors)

    def at(self, name: str, layer: int) -> int:
        """The class of a tensor after a layer."""
        return layer * len(self.tensors) + self.tensors[name]

    def add(self, rows: Ints, costs: Floats) -> None:
        """E-nodes as rows.

        Columns: class, three kids, kind, kernel, layer, detail, what should be done in
        one launch, and the share of each limit.
        """
        self._settle()
        self.rows.append(rows)
        self.costs.append(costs)

    def one(self, row: Sequence[int], cost: float) -> None:
        """One e-node that takes no room."""
        self._single.append(row)
        self._prices.append(cost)

    def _settle(self) -> None:
        """Make a chunk of the e-nodes that came one by one."""
        if self._single:
            made = np.zeros((len(self._single), 9 + LIMITS), np.int64)
            made[:, :8], made[:, 8] = self._single, -1
            self.rows.append(made)
            self.costs.append(np.array(self._prices))
            self._single.clear()
            self._prices.clear()

    def whole(self) -> tuple[Ints, Floats]:
        """All e-nodes and their costs, in the order in which they came."""
        self._settle()
        return np.concatenate(self.rows), np.concatenate(self.costs)


def layered_graph(
    inputs: Sequence[str],
    outputs: Sequence[str],
    stored: Sequence[str],
    kernels: Sequence[KernelChoice],
    calls: Sequence[LibraryChoice],
    layers: int,
    launch_us: float,
    views: Sequence[tuple[str, str]] = (),
) -> LayeredGraph | None:
    """The graph of all programs of at most `layers` layers; None if there is none.

    Args:
        inputs: Tensors that are there from the start.
        outputs: Tensors that must be there in the end.
        stored: All tensors that kernels may store.
        kernels: What single kernels can do.
        calls: Pre-defined kernels.
        layers: Kernels on the longest chain.
        launch_us: µs that a kernel costs more than its work.
        views: Tensors that are there as soon as other ones are, with these.
    """
    names = dict.fromkeys((*inputs, *stored))
    b = _Builder({n: i for i, n in enumerate(names)}, layers, launch_us)
    for name in inputs:
        b.one((b.at(name, 0), -1, -1, -1, PASS, -1, 0, 0), 0.0)
    for layer in range(1, layers + 1):
        for name in names:
            before = b.at(name, layer - 1)
            b.one((b.at(name, layer), before, -1, -1, PASS, -1, layer, 0), 0.0)
        for name, seen in views:
            kid = b.at(seen, layer)
            b.one((b.at(name, layer), kid, -1, -1, PASS, -1, layer, 0), 0.0)
    parts = [_part(k) for k in kernels]
    for number, part in enumerate(parts):
        for layer in range(1, layers + 1):
            _add_kernel(b, part, number, layer)
    for number, call in enumerate(calls):
        for layer in range(1, layers + 1):
            _add_call(b, call, number, layer)
    return _reduced(b, _all_of(b, outputs, layers))


def _all_of(b: _Builder, names: Sequence[str], layer: int) -> int:
    """The class of several tensors after a layer."""
    found = b.at(names[0], layer)
    for name in names[1:]:
        b.one((b.classes, found, b.at(name, layer), -1, PASS, -1, layer, 0), 0.0)
        found, b.classes = b.classes, b.classes + 1
    return found


def _add_call(b: _Builder, call: LibraryChoice, number: int, layer: int) -> None:
    """A pre-defined kernel in one layer."""
    kid = _all_of(b, tuple(dict.fromkeys(call.operands)), layer - 1)
    row = (b.at(call.result, layer), kid, -1, -1, LIBRARY, number, layer, 0)
    b.one(row, call.cost + b.launch_us)


@dataclass(frozen=True, eq=False)
class _Part:
    """A kernel's edges that lead from tensors to saves."""

    kernel: KernelChoice
    edges: Ints
    nodes: Ints


def _part(kernel: KernelChoice) -> _Part:
    """Leave out what no save needs, or what cannot be made."""
    rows = kernel.closure.saturation.edges
    nodes = len(kernel.closure.saturation.shape)
    alive = np.flatnonzero(kernel.alive)
    makes, kids = rows[alive, 0], np.ascontiguousarray(rows[alive, 2:5])
    roots = np.array([n for _, n, _ in kernel.saves], np.int64)
    keep, _ = needed(makes, kids, np.ones(len(alive), np.bool_), roots, nodes)
    kept = alive[keep]
    return _Part(kernel, kept, np.unique(rows[kept, 0]))


def _add_kernel(b: _Builder, part: _Part, number: int, layer: int) -> None:
    """A kernel in one layer."""
    if not len(part.edges):
        return
    kernel = part.kernel
    rows = kernel.closure.saturation.edges[part.edges]
    launch = b.classes
    place = np.full(len(kernel.closure.saturation.shape) + 1, -1)
    place[part.nodes] = launch + 1 + np.arange(len(part.nodes))
    b.classes += 1 + len(part.nodes)
    b.one((launch, -1, -1, -1, LAUNCH, number, layer, 0), b.launch_us)
    made = np.empty((len(rows), 9 + LIMITS), np.int64)
    made[:, 0] = place[rows[:, 0]]
    made[:, 1:4] = place[rows[:, 2:5]]
    made[:, 4:7] = (OPERATE, number, layer)
    made[:, 7] = part.edges
    made[:, 8] = kernel.closure.shift[part.edges]
    made[:, 9:] = kernel.room[part.edges]
    values = kernel.closure.space.values
    loads = np.flatnonzero(rows[:, 1] == LOAD)
    read: list[int] = rows[loads, 5].tolist()
    made[loads, 1] = [b.at(values[value].name, layer - 1) for value in read]
    made[loads, 2] = launch
    b.add(made, kernel.cost[part.edges])
    for i, (name, node, cost) in enumerate(kernel.saves):
        if place[node] >= 0:
            row = (b.at(name, layer), int(place[node]), -1, -1, SAVE, number, layer, i)
            b.one(row, cost)


def _reduced(b: _Builder, root: int) -> LayeredGraph | None:
    """Only what can be made and what the outputs need, classes numbered anew."""
    rows, cost = b.whole()
    kids = np.ascontiguousarray(rows[:, 1:4])
    alive = np.ones(len(rows), np.bool_)
    keep, _ = needed(rows[:, 0].copy(), kids, alive, np.array([root]), b.classes)
    total = len(rows)
    rows, cost = rows[keep], cost[keep]
    if root not in rows[:, 0]:
        return None
    order = np.argsort(rows[:, 0], kind="stable")
    rows, cost = rows[order], cost[order]
    classes = np.unique(rows[:, 0])
    place = np.full(b.classes + 1, -1)
    place[classes] = np.arange(len(classes))
    count = len(b.tensors) * (b.layers + 1)
    tensor = np.where(classes < count, classes % len(b.tensors), -1)
    return LayeredGraph(
        place[rows[:, 0]],
        np.ascontiguousarray(place[rows[:, 1:4]]),
        cost,
        rows[:, 4],
        rows[:, 5],
        rows[:, 6],
        rows[:, 7],
        rows[:, 8],
        rows[:, 9:],
        tensor,
        int(place[root]),
        total,
    )


def without_products(u: LayeredGraph, kernels: Sequence[KernelChoice]) -> Ints | None:
    """Numbers of the e-nodes that leave products to pre-defined kernels.

    No kernel contracts, nor makes a product of the program by other operators; None if
    there is no program without that.
    """
    alive = np.ones(len(u.makes), np.bool_)
    used: list[int] = np.unique(u.kernel[u.kind == LAUNCH]).tolist()
    for number in used:
        closure = kernels[number].closure
        edges, space = closure.saturation.edges, closure.space
        products = np.zeros(len(closure.saturation.shape), np.bool_)
        for output, nodes in zip(space.outputs, closure.saturation.roots, strict=True):
            if output.name in closure.products:
                products[list(nodes)] = True
        own = np.flatnonzero((u.kernel == number) & (u.kind == OPERATE))
        row = edges[u.detail[own]]
        made = products[row[:, 0]] & (row[:, 1] != LOAD)
        alive[own] = ~made & (row[:, 1] != CONTRACT)
    keep, made = needed(u.makes, u.kids, alive, np.array([u.root]), u.classes)
    return np.flatnonzero(keep) if made[u.root] else None
