"""Questions about who uses what in a block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mirage_dsl.backends.triton.arith import fusible
from mirage_dsl.backends.triton.layout import Layout
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ops.definition import Kind

Stage = Literal["before", "body", "after"]


class Wiring:
    """Stages and users of the values of one block.

    Attributes:
        stages: The stage of each value.
        users: The nodes that read each value.
    """

    def __init__(self, block: BlockGraph, layout: Layout) -> None:
        self._block = block
        self._layout = layout
        self.stages: Mapping[str, Stage] = stages_of(block)
        self.users: dict[str, list[BlockNode]] = {v: [] for v in self.stages}
        for node in block.nodes:
            for value in operands_of(node):
                self.users[value].append(node)

    def is_joined(self, value: str) -> bool:
        """Whether a value is concatenated over the loop."""
        return self._block.loop is not None and any(
            isinstance(n, Accumulate) and n.result == value and n.kind == "concat"
            for n in self._block.nodes
        )

    def fused_into(self, node: Accumulate) -> Apply | None:
        """The product that is added to this accumulator in place."""
        for other in self._block.nodes:
            if isinstance(other, Apply) and other.result == node.operand:
                return other if self.is_fused(other) else None
        return None

    def is_fused(self, node: Apply) -> bool:
        """Whether an operator is a product that its accumulator computes."""
        if node.op.kind is not Kind.CONTRACTION or self._block.loop is None:
            return False
        users = self.users[node.result]
        return (
            len(users) == 1
            and isinstance(users[0], Accumulate)
            and users[0].kind == "sum"
            and self.stages[node.result] == "body"
            and fusible(self._layout.products[node.result])
        )

    def is_loaded_twice(self, node: Load) -> bool:
        """Whether registers get their own copy of a tile that a product reads.

        On Hopper a product reads its tile asynchronously while the pipeline already
        refills the buffer that registers read: wrong results, unless each has buffers
        of its own.
        """
        if not self._block.schedule.second_load or self.stages[node.result] != "body":
            return False
        kinds = {self._is_matrix_product(u) for u in self.users[node.result]}
        return kinds == {True, False}

    def _is_matrix_product(self, node: BlockNode) -> bool:
        return (
            isinstance(node, Apply)
            and node.op.kind is Kind.CONTRACTION
            and self._layout.products[node.result].is_matrix
        )

    def needs_guard(self, value: str) -> bool:
        """Whether anything but a running maximum, which guards itself, reads it."""
        return not all(isinstance(u, RunningMax) for u in self.users[value])


def operands_of(node: BlockNode) -> tuple[str, ...]:
    """The values that a node reads, each once."""
    match node:
        case Load():
            return ()
        case Apply():
            return tuple(dict.fromkeys(node.values))
        case Accumulate() | RunningMax() | Store():
            return (node.operand,)
