"""How products of a block become matrix products: rows, and who reads what how."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_dsl.core.types import Dim, TensorType
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ops.definition import Kind

# -- Products as matrix products -------------------------------------------------------
# The lowering decides which operand of a product has the rows, and what fits the
# tall instruction of newer matrix units; the estimate has to know.  The same
# rules, on structures.

ROW = Dim("1")
"""The dim of a single row that a vector gets, so that the matrix unit can take it."""

Order = tuple[Dim, ...]


def operands_of(node: BlockNode) -> tuple[str, ...]:
    """The values that a node reads."""
    match node:
        case Load():
            return ()
        case Apply():
            return node.values
        case Accumulate() | RunningMax() | Store():
            return (node.operand,)


def is_product(node: BlockNode) -> bool:
    """Whether a node is a contraction."""
    return isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION


@dataclass(frozen=True)
class _Wish:
    order: Order
    strong: bool


class Orientation:
    """Which operand of each product has the rows.

    Attributes:
        rows: For each product, by its result, the dims of its rows.
        left: For each product, the operand that has them.
        imposed: The order of dims of values that products decide on.
    """

    def __init__(
        self,
        block: BlockGraph,
        types: Mapping[str, TensorType],
        rowed: frozenset[str],
        *,
        swap: bool,
    ) -> None:
        self._dims = {
            v: (*t.dims, ROW) if v in rowed else t.dims for v, t in types.items()
        }
        self._loads = {n.result for n in block.loads}
        self._swap = swap
        self._wishes: dict[str, _Wish] = {}
        self.rows: dict[str, Order] = {}
        self.left: dict[str, str] = {}
        for node in reversed(block.nodes):
            self._visit(node)
        self.imposed = {v: w.order for v, w in self._wishes.items() if w.strong}

    def _visit(self, node: BlockNode) -> None:
        match node:
            case Load():
                pass
            case Store():
                order = tuple(d for axis in node.axes for d in axis)
                self._wish(node.operand, order, strong=False)
            case Apply() if is_product(node):
                self._product(node)
            case _:
                wish = self._wishes.get(node.result)
                for value in operands_of(node) if wish else ():
                    assert wish is not None
                    self._wish(value, wish.order, strong=wish.strong)

    def _wish(self, value: str, order: Iterable[Dim], *, strong: bool) -> None:
        known = self._wishes.get(value)
        if known is not None and (known.strong or not strong):
            return
        own = self._dims[value]
        wanted = tuple(d for d in order if d in own)
        rest = tuple(d for d in own if d not in wanted)
        self._wishes[value] = _Wish(wanted + rest, strong)

    def _product(self, node: Apply) -> None:
        values = node.values if len(node.values) == 2 else node.values * 2
        sides = [self._dims[v] for v in values]
        alone = [tuple(d for d in sides[i] if d not in sides[1 - i]) for i in (0, 1)]
        left = self._left(node, alone)
        shared = [d for d in sides[0] if d in sides[1]]
        batch = tuple(d for d in shared if d.name not in node.over)
        over = tuple(d for d in shared if d.name in node.over)
        rows, columns = alone[left], alone[1 - left]
        self.rows[node.result] = rows
        self.left[node.result] = values[left]
        strong = bool(rows and columns and over)
        self._wish(values[left], batch + rows + over, strong=strong)
        self._wish(values[1 - left], batch + over + columns, strong=strong)

    def _left(self, node: Apply, alone: list[Order]) -> int:
        wish = self._wishes.get(node.result)
        first = [d for d in (wish.order if wish else ()) if d in alone[0] + alone[1]]
        wished = 1 if first and first[0] in alone[1] else 0
        if wish is not None and wish.strong:
            return wished
        computed = [v not in self._loads for v in node.values]
        if len(computed) == 2 and computed[0] != computed[1]:
            wished = computed.index(True)
        return 1 - wished if self._swap else wished


# -- Rows for vectors ------------------------------------------------------------------
# The matrix unit takes the product then, though it works for one row of sixteen.  Where
# the tile of the matrix is smaller than what the unit takes, the product is multiplied
# and summed in registers: many small blocks of that kind read a matrix at the full rate
# of the memory.

MATRIX_TILE = 16
"""Sides of a matrix-unit tile: shorter sides of a product are padded to it."""


@dataclass(frozen=True)
class VectorProduct:
    """A product of a vector that could become a row.

    Attributes:
        tensors: Those that the vector alone is computed from, to which a row is added.
        over: What is summed.
        columns: Dims that only the matrix has.
    """

    tensors: frozenset[str]
    over: frozenset[Dim]
    columns: frozenset[Dim]


def vector_products(
    block: BlockGraph, types: Mapping[str, TensorType], outer: Mapping[str, TensorType]
) -> list[VectorProduct]:
    """The products of vectors of a block.

    A vector can only be told to be a row where its tensor has an axis of extent 1.
    """
    sources = _sources(block)
    found: list[VectorProduct] = []
    for node in block.nodes:
        if not isinstance(node, Apply) or not is_product(node) or len(node.values) != 2:
            continue
        first, second = node.values
        dims = {v: set(types[v].dims) for v in node.values}
        if (dims[first] <= dims[second]) == (dims[second] <= dims[first]):
            continue
        vector, matrix = (
            (first, second) if dims[first] <= dims[second] else (second, first)
        )
        over = frozenset(d for d in dims[vector] if d.name in node.over)
        summed = {d.name for d in over}
        tensors = frozenset(
            s
            for s in sources[vector] - sources[matrix]
            if () in outer[s].axes and not summed.isdisjoint(outer[s].names)
        )
        columns = frozenset(dims[matrix] - dims[vector])
        if tensors:
            found.append(VectorProduct(tensors, over, columns))
    return found


def with_a_row(block: BlockGraph, tensors: Iterable[str]) -> frozenset[str]:
    """Values that are computed from tensors to which a row is added."""
    added = set(tensors)
    return frozenset(v for v, of in _sources(block).items() if not of.isdisjoint(added))


def _sources(block: BlockGraph) -> dict[str, frozenset[str]]:
    """The tensors from which each value is computed."""
    found: dict[str, frozenset[str]] = {}
    for node in block.nodes:
        if isinstance(node, Load):
            found[node.result] = frozenset({node.source})
        elif not isinstance(node, Store):
            parts = (found[v] for v in operands_of(node))
            found[node.result] = frozenset[str]().union(*parts)
    return found
