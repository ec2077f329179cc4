"""Products of a vector with a matrix that a matrix product reads as well.

The vector becomes a row, so that the matrix unit reads the tile of the matrix for both.
Registers would want a copy of their own: the tile would be moved twice.

    t = matmul w, v over(k)         v_row = load v with a dim of one row
    s = accumulate t           →    t = matmul w, v_row over(k)
                                    s_row = accumulate t
                                    s = sum s_row over(row)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_dsl.backends.triton.pieces import SMALLEST_DOT
from mirage_dsl.backends.triton.plan import Surroundings
from mirage_dsl.backends.triton.rewrite import fresh, sums_up, users_of
from mirage_dsl.backends.triton.rows import lanes_of
from mirage_dsl.ir.graph import Accumulate, Apply, BlockGraph, BlockNode, Load, Store
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.vectors import vectors_beside
from mirage_dsl.ops.table import SUM
from mirage_dsl.types import Dim, TensorType


def with_rows_beside(
    block: BlockGraph, around: Surroundings
) -> tuple[BlockGraph, Surroundings]:
    """The block with a row for each vector that shares its matrix."""
    types = block_types(block, around.types)
    found = _rows_of(block, types, around)
    if not found:
        return block, around
    writer = _Rows(block, types, around)
    gone = {
        load.result
        for load in found.values()
        if all(
            isinstance(u, Apply) and u.result in found
            for u in writer.users[load.result]
        )
    }
    for node in block.nodes:
        # Stores make tensors, whose names are others.
        if isinstance(node, Store):
            writer.nodes.append(node)
        elif node.result not in gone:
            writer.add(node, found.get(node.result))
    return replace(block, nodes=tuple(writer.nodes)), writer.around


def _rows_of(
    block: BlockGraph, types: Mapping[str, TensorType], around: Surroundings
) -> dict[str, Load]:
    """The products that get a row, each with the load of its vector."""
    loads = {n.result: n for n in block.loads}
    return {
        result: loads[beside.vector]
        for result, beside in vectors_beside(block, types).items()
        if all(
            lanes_of(side, block, around) >= SMALLEST_DOT
            for side in (beside.over, beside.columns)
        )
    }


class _Rows:
    """Rewrites the nodes of a block, one after the other."""

    def __init__(
        self, block: BlockGraph, types: Mapping[str, TensorType], around: Surroundings
    ) -> None:
        self.around = around
        self.nodes: list[BlockNode] = []
        self._taken = set(types) | set(around.types)
        self._row = Dim(fresh("row", set(around.extents)))
        self.users = users_of(block)
        self._summed: dict[str, str] = {}
        self._loads: dict[str, str] = {}

    def add(self, node: BlockNode, vector: Load | None) -> None:
        """Add what becomes of a node.

        Args:
            node: The node.
            vector: The load of the vector of a product that gets a row.
        """
        if vector is not None:
            assert isinstance(node, Apply)
            self._product(node, vector)
        elif isinstance(node, Accumulate) and node.operand in self._summed:
            operand = self._summed[node.operand]
            name = self._name(f"{node.result}_row")
            self.nodes.append(replace(node, result=name, operand=operand))
            self._sum(name, node.result)
        else:
            self.nodes.append(node)

    def _product(self, node: Apply, vector: Load) -> None:
        row = self._loaded(vector)
        operands = tuple(row if o == vector.result else o for o in node.operands)
        name = self._name(f"{node.result}_row")
        self.nodes.append(replace(node, operands=operands, result=name))
        users = self.users[node.result]
        if len(users) == 1 and sums_up(users[0]):
            # The sum over the row once, after the loop.
            self._summed[node.result] = name
        else:
            self._sum(name, node.result)

    def _sum(self, operand: str, result: str) -> None:
        over = (("over", (self._row.name,)),)
        self.nodes.append(Apply(result, SUM, (operand,), over))

    def _loaded(self, vector: Load) -> str:
        """The vector as a row, by a load of its own."""
        if vector.result not in self._loads:
            around, row = self.around, self._row
            kind = around.types[vector.source]
            source = self._name(f"{vector.source}/row")
            layout = kind.layout and (*kind.layout, len(kind.axes))
            rowed = replace(kind, axes=(*kind.axes, (row,)), layout=layout)
            self.around = replace(
                around,
                types={**around.types, source: rowed},
                extents={**around.extents, row.name: 1},
                rows={**around.rows, source: vector.source},
            )
            name = self._loads[vector.result] = self._name(f"{vector.result}_row")
            axes = (*vector.axes, (row,))
            self.nodes.append(replace(vector, result=name, source=source, axes=axes))
        return self._loads[vector.result]

    def _name(self, wanted: str) -> str:
        name = fresh(wanted, self._taken)
        self._taken.add(name)
        return name


__all__ = ["with_rows_beside"]
