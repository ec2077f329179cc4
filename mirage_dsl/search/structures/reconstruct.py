"""From the edges of a DAG to a block graph, with tiles of 1 as placeholders."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import Axis, Scalar
from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    Split,
    Store,
)
from mirage_dsl.ops.definition import Operator, Term
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.search.closure.edges import NAMES
from mirage_dsl.search.closure.saturate import Saturation
from mirage_dsl.search.closure.workspace import (
    ADD,
    BODY,
    CONSTANT,
    CONTRACT,
    DIV,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    MUL,
    SUB,
    SUM,
    Words,
)
from mirage_dsl.search.space import Configuration, Space

_TERM = {
    int(ADD): Term.ADD,
    int(SUB): Term.SUB,
    int(MUL): Term.MUL,
    int(DIV): Term.DIV,
    int(SUM): Term.SUM,
    int(CONTRACT): Term.CONTRACT,
}
_ROW = {op.term: op for op in OPERATORS.values() if op.expansion is None}


def row_of(kind: int) -> Operator:
    """The operator of a kind of edge that is no load, constant or function."""
    return _ROW[_TERM[kind]]


@dataclass(frozen=True)
class Edge:
    """One chosen way to make a node."""

    node: int
    kind: int
    operands: tuple[int, ...]
    arg: int


def chosen_edges(saturation: Saturation, chosen: tuple[int, ...]) -> dict[int, Edge]:
    """The edges of a DAG by the node that each makes."""
    rows = saturation.edges[list(chosen)].tolist()
    return {
        node: Edge(node, kind, tuple(o for o in operands if o >= 0), arg)
        for node, kind, *operands, arg in rows
    }


def edge_words(saturation: Saturation) -> Words:
    """A word for each edge; their sum tells DAGs apart, but for their constants.

    Edges that a constant enters have the word 0.
    """
    node, kind, *operands, arg = saturation.edges.T
    constant = np.zeros(len(saturation.shape) + 1, np.bool_)
    constant[node[kind == CONSTANT]] = True
    blind = constant[node] | constant[np.stack(operands)].any(axis=0)
    word = np.zeros(len(node), np.uint64)
    for part in (kind, saturation.shape[node], saturation.stage[node], arg):
        word = (word ^ part.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        word ^= word >> np.uint64(29)
    return np.where(blind, np.uint64(0), word)


def reconstruct(
    space: Space,
    saturation: Saturation,
    configuration: Configuration,
    edges: dict[int, Edge],
) -> BlockGraph | None:
    """The block graph of a DAG; None if it has a loop in which nothing changes."""
    looped = any(
        e.kind == LOAD and saturation.stage[n] == BODY for n, e in edges.items()
    )
    if configuration.loop is not None and not looped:
        return None
    return _Writer(space, saturation, configuration, edges).block()


class Drawings:
    """The block graphs of one closure's DAGs, each written once for all grids."""

    def __init__(self, space: Space, saturation: Saturation, loop: str | None) -> None:
        self.space, self.saturation = space, saturation
        self.configuration = Configuration((), loop)
        self._plain: dict[frozenset[int], tuple[int, BlockGraph] | None] = {}
        self._numbers: dict[tuple[BlockNode, ...], int] = {}

    def plain(self, chosen: tuple[int, ...]) -> tuple[int, BlockGraph] | None:
        """The block graph of a DAG without a grid; equal ones have equal numbers.

        None if it has a loop in which nothing changes.
        """
        key = frozenset(chosen)
        if key not in self._plain:
            edges = chosen_edges(self.saturation, chosen)
            block = reconstruct(self.space, self.saturation, self.configuration, edges)
            if block is not None:
                number = self._numbers.setdefault(block.nodes, len(self._numbers))
                self._plain[key] = (number, block)
            else:
                self._plain[key] = None
        return self._plain[key]


class _Writer:
    """Writes the nodes of one block graph."""

    def __init__(
        self,
        space: Space,
        saturation: Saturation,
        configuration: Configuration,
        edges: dict[int, Edge],
    ) -> None:
        self.space, self.saturation = space, saturation
        self.configuration, self.edges = configuration, dict(edges)
        self.nodes: list[BlockNode] = []
        self.names: dict[int, str] = {}
        program = space.program
        self.taken = {i.name for i in program.given}
        self.taken |= {n.result for n in program.applies}
        self.roots = [next(n for n in some if n in edges) for some in saturation.roots]
        self.fuse_sums()

    def fuse_sums(self) -> None:
        """sum(sum(x, a), b) → sum(x, (a, b)), if the inner one serves nothing else."""
        uses = Counter(o for e in self.edges.values() for o in e.operands)
        uses.update(self.roots)
        for node in sorted(self.edges):
            edge = self.edges.get(node)
            while edge is not None and edge.kind == SUM:
                inner = self.edges[edge.operands[0]]
                if inner.kind != SUM or uses[inner.node] > 1:
                    break
                edge = replace(edge, operands=inner.operands, arg=edge.arg | inner.arg)
                self.edges[node] = edge
                del self.edges[inner.node]

    def order(self) -> list[int]:
        """Nodes by stage, loads first, operands before results."""
        placed: dict[int, None] = {}

        def visit(node: int) -> None:
            if node not in placed:
                for operand in self.edges[node].operands:
                    visit(operand)
                placed[node] = None

        for root in self.roots:
            visit(root)
        stage = self.saturation.stage
        return sorted(placed, key=lambda n: (int(stage[n]), self.edges[n].kind != LOAD))

    def block(self) -> BlockGraph:
        """The whole graph."""
        for node in self.order():
            self.write(self.edges[node])
        for root, output in zip(self.roots, self.space.outputs, strict=True):
            axes = self.split(output.type.axes, loop=None)
            dtype = output.type.dtype
            self.nodes.append(Store(output.name, self.names[root], axes, dtype))
        grid = self.configuration.splits
        loop = self.configuration.loop
        return BlockGraph(
            grid, None if loop is None else Split(loop, 1), tuple(self.nodes)
        )

    def split(self, axes: tuple[Axis, ...], loop: str | None) -> tuple[Axis, ...]:
        """Axes with the pieces that a block sees."""
        grid = self.configuration.grid
        return tuple(
            tuple(replace(d, grid=d.name in grid, loop=d.name == loop) for d in axis)
            for axis in axes
        )

    def fresh(self, stem: str, number: str = "") -> str:
        """A name that nothing else has."""
        name = stem + number
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def write(self, edge: Edge) -> None:
        """Append the node of one edge."""
        if edge.kind == CONSTANT:
            return
        if edge.kind == LOAD:
            source = self.space.values[edge.arg]
            assert source.type is not None
            name = self.fresh(f"{source.name}_t")
            axes = self.split(source.type.axes, self.configuration.loop)
            self.nodes.append(Load(name, source.name, axes))
        else:
            name = self.fresh("v", str(len(self.names)))
            kind = self.accumulator(edge)
            if kind is not None:
                operand = self.names[edge.operands[0]]
                self.nodes.append(Accumulate(name, operand, kind))
            else:
                self.nodes.append(self.apply(name, edge))
        self.names[edge.node] = name

    def accumulator(self, edge: Edge) -> str | None:
        """The kind of the accumulator that an edge is, or None."""
        if edge.kind == JOIN:
            return "sum"
        if edge.kind == GATHER:
            return JOINED
        if edge.kind == FUNCTION and self.saturation.site_joins[edge.arg]:
            return self.function(edge).name
        return None

    def function(self, edge: Edge) -> Operator:
        """The operator of a site."""
        op = self.space.values[self.saturation.sites[edge.arg]].op
        assert op is not None
        return op

    def apply(self, name: str, edge: Edge) -> Apply:
        """The operator of an edge."""
        if edge.kind == FUNCTION:
            op, along = self.function(edge), self.saturation.site_along[edge.arg]
            over = self.saturation.site_over[edge.arg]
        else:
            op, along = row_of(edge.kind), 0
            over = edge.arg if edge.kind in (SUM, CONTRACT) else 0
        operands = tuple(self.operand(o) for o in self.arranged(op, edge))
        attrs = self.space.attributes(over, along)
        return Apply(name, op, operands, attrs, self.location(edge.node, op))

    def operand(self, node: int) -> Operand:
        """The name of a node, or its constant."""
        edge = self.edges[node]
        if edge.kind != CONSTANT:
            return self.names[node]
        constant = self.space.values[edge.arg].constant
        assert isinstance(constant, Scalar)
        return constant

    def arranged(self, op: Operator, edge: Edge) -> tuple[int, ...]:
        """Operands in the order that reads best, where they may be swapped."""
        if not op.commutative or len(edge.operands) != 2:
            return edge.operands
        a, b = edge.operands
        swap = self.edges[a].kind == CONSTANT
        if edge.kind == CONTRACT:
            # The operand with the result's first dim comes first, as in x @ w.
            shape = self.saturation.shape
            own = int(shape[a] ^ shape[b]) & NAMES
            first = own & -own
            swap = bool(first & int(shape[b]))
        return (b, a) if swap else (a, b)

    def location(self, node: int, op: Operator) -> SourceLocation | None:
        """The user's line of an equal value, else of a use of the same operator."""
        return self._locations.get(int(self.saturation.key[node])) or (
            self._locations.get(op.name)
        )

    @cached_property
    def _locations(self) -> dict[int | str, SourceLocation | None]:
        found: dict[int | str, SourceLocation | None] = {}
        for value, key in zip(
            self.space.values, self.saturation.program_keys, strict=True
        ):
            if value.op is not None:
                found.setdefault(key, value.location)
                found.setdefault(value.op.name, value.location)
        return found
