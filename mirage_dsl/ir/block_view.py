"""A block graph as the checker's rules see it: with types, stages and places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.diagnostics import Diagnostic
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    dims_of,
    stages_of,
)
from mirage_dsl.ir.infer import block_node_type
from mirage_dsl.ir.maps import Extents, partial_base, parts
from mirage_dsl.types import TensorType


@dataclass(frozen=True)
class BlockView:
    """A block graph with what its rules ask of it.

    Attributes:
        block: The block graph.
        index: Its position among the kernel graph's nodes.
        outer: Types of kernel-level values.
        extents: Extents of all dims.
    """

    block: BlockGraph
    index: int
    outer: Mapping[str, TensorType]
    extents: Extents

    @property
    def name(self) -> str:
        """How messages call the block."""
        return f"the block of {', '.join(self.block.results) or 'no result'}"

    @property
    def split_dims(self) -> dict[str, str]:
        """Dims that the grid and the loop split, with the block's name."""
        loop = () if self.block.loop is None else (self.block.loop.dim,)
        return dict.fromkeys((*(s.dim for s in self.block.grid), *loop), self.name)

    @property
    def parts_made(self) -> dict[str, int]:
        """Number of parts along each `k#` that the block stores, where known."""
        made: dict[str, int] = {}
        for name in {d.name for s in self.block.stores for d in dims_of(s.axes)}:
            base = partial_base(name, self.block)
            split = None if base is None else self.block.grid_split(base)
            whole = None if split is None else self.extents.get(split.dim)
            if split is not None and whole is not None and split.tile > 0:
                made[name] = parts(whole, split.tile)
        return made

    @cached_property
    def inferred(self) -> tuple[dict[str, TensorType], list[Diagnostic]]:
        """Types of the block's values as far as they follow, and what broke them."""
        types: dict[str, TensorType] = {}
        problems: list[Diagnostic] = []
        for node in self.block.nodes:
            if isinstance(node, Store) or not self._operands_known(node, types):
                continue
            try:
                found = block_node_type(node, self.block, types, self.outer)
            except CheckError as error:
                problems.append(
                    self.problem(
                        "type", node, error.message, "change its operands or its axes"
                    )
                )
            else:
                types[node.result] = found
        return types, problems

    def _operands_known(self, node: BlockNode, types: Mapping[str, TensorType]) -> bool:
        if isinstance(node, Load):
            return node.source in self.outer
        return all(v in types for v in operands_of(node))

    @property
    def types(self) -> dict[str, TensorType]:
        """Types of the block's values as far as they follow."""
        return self.inferred[0]

    @cached_property
    def stages(self) -> Mapping[str, str]:
        """Stage of each value."""
        return stages_of(self.block)

    def problem(
        self, rule: str, node: BlockNode | None, message: str, hint: str, name: str = ""
    ) -> Diagnostic:
        """A diagnostic about a node, or about the block."""
        where = self.name if node is None else _shown(node)
        subject = ", ".join(self.block.results) if node is None else node.result
        return Diagnostic(
            rule,
            f"{where}: {message}",
            name or subject or self.name,
            hint,
            self.index,
            (node or self.block).location,
        )


def _shown(node: BlockNode) -> str:
    match node:
        case Load():
            return f"load {node.source} as {node.result}"
        case Store():
            return f"store {node.result}"
        case _:
            return node.result


def with_operands(node: BlockNode, names: Mapping[str, str]) -> BlockNode:
    """The node with values renamed; those not listed stay."""
    match node:
        case Load():
            return node
        case Apply():
            operands = [
                names.get(o, o) if isinstance(o, str) else o for o in node.operands
            ]
            return replace(node, operands=tuple(operands))
        case Accumulate() | RunningMax() | Store():
            return replace(node, operand=names.get(node.operand, node.operand))


def operands_of(node: BlockNode) -> tuple[str, ...]:
    """Names of the block's values that a node reads."""
    match node:
        case Load():
            return ()
        case Apply():
            return node.values
        case Accumulate():
            return (node.operand, *((node.rescale,) if node.rescale else ()))
        case RunningMax() | Store():
            return (node.operand,)
