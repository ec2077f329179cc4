"""A block graph as the checker's rules see it: with types, stages and places."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from mirage_dsl.core.errors import CheckError, SourceLocation
from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.graph import (
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ir.infer import block_node_type
from mirage_dsl.ir.maps import Extents
from mirage_dsl.ir.walk import operands_of

# -- Findings --------------------------------------------------------------------------

_LISTED = 12


def listed(names: Collection[str]) -> str:
    """The names, sorted; of many the first ones."""
    first = ", ".join(sorted(names)[:_LISTED])
    return f"{first} and others" if len(names) > _LISTED else first


@dataclass(frozen=True)
class Diagnostic:
    """One broken rule.

    Attributes:
        rule: Name of the rule.
        message: What was found and what was expected.
        name: The value, node or dim that it speaks of.
        hint: What to do.
        block: Position of the block among the kernel graph's nodes; None at the
            kernel level.
        location: The user's line, where one is known.
    """

    rule: str
    message: str
    name: str
    hint: str
    block: int | None = None
    location: SourceLocation | None = None

    def __str__(self) -> str:
        place = "" if self.location is None else f"{self.location}: "
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}{self.message}{hint} [{self.rule}]"


# -- A block graph with types, stages and places ---------------------------------------


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

    @cached_property
    def inferred(self) -> tuple[dict[str, TensorType], list[Diagnostic]]:
        """Types of the block's values as far as they follow, and what broke them."""
        types: dict[str, TensorType] = {}
        problems: list[Diagnostic] = []
        for node in self.block.made:
            if not self._operands_known(node, types):
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

    @cached_property
    def running(self) -> frozenset[str]:
        """Names of the running maxima."""
        return frozenset(
            n.result for n in self.block.nodes if isinstance(n, RunningMax)
        )

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
