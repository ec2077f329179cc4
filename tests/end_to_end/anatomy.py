"""What a block graph consists of, so that tests speak of structure and not of text."""

from __future__ import annotations

from functools import cached_property

from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Store,
    dims_of,
    stages_of,
)
from mirage_dsl.ops.definition import Kind


def only_block(graph: KernelGraph) -> BlockGraph:
    """The one kernel of a μGraph that launches nothing else."""
    launched = [
        n for n in graph.nodes if isinstance(n, Apply) and n.op.kind is not Kind.VIEW
    ]
    assert not launched, f"{len(launched)} library kernels"
    assert len(graph.blocks) == 1, f"{len(graph.blocks)} kernels"
    return graph.blocks[0]


class Anatomy:
    """The nodes of a block by what they do, and what each value is made of."""

    def __init__(self, block: BlockGraph) -> None:
        self.block = block
        self.stage = stages_of(block)

    @cached_property
    def made_of(self) -> dict[str, frozenset[str]]:
        """For every value the values on the paths to it, and the sources read."""
        found: dict[str, frozenset[str]] = {}
        for node in self.block.nodes:
            if not isinstance(node, Store):
                parts = (found.get(v, frozenset({v})) for v in _operands(node))
                found[node.result] = frozenset({node.result}).union(*parts)
        return found

    def made_from(self, result: str, *sources: str) -> bool:
        """Whether all of these are on the paths to a value."""
        return set(sources) <= self.made_of[result]

    @property
    def accumulators(self) -> list[Accumulate]:
        """All accumulators."""
        return [n for n in self.block.nodes if isinstance(n, Accumulate)]

    @property
    def running(self) -> list[RunningMax]:
        """All running maxima."""
        return [n for n in self.block.nodes if isinstance(n, RunningMax)]

    @property
    def loaded(self) -> dict[str, Load]:
        """Loads by source; a source that is loaded twice is an error."""
        loads = {n.source: n for n in self.block.loads}
        assert len(loads) == len(self.block.loads)
        return loads

    @property
    def looped(self) -> set[str]:
        """The sources of which each iteration reads a part."""
        return {
            source
            for source, load in self.loaded.items()
            if any(d.loop for d in dims_of(load.axes))
        }

    def applied(self, name: str, stage: str | None = None) -> list[Apply]:
        """The operators of a name, in a stage."""
        return [
            n
            for n in self.block.nodes
            if isinstance(n, Apply)
            and n.op.name == name
            and stage in (None, self.stage[n.result])
        ]

    @property
    def stored(self) -> str:
        """The value of the only store."""
        (store,) = self.block.stores
        return store.operand

    def is_loaded(self, value: str) -> bool:
        """Whether a value comes from memory as it is."""
        return any(n.result == value for n in self.block.loads)


def _operands(node: BlockNode) -> tuple[str, ...]:
    match node:
        case Load():
            return (node.source,)
        case Apply():
            return node.values
        case Accumulate():
            return (
                (node.operand,)
                if node.rescale is None
                else (node.operand, node.rescale)
            )
        case RunningMax() | Store():
            return (node.operand,)
