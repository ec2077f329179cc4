"""Names for what is added to a graph."""

from __future__ import annotations

from itertools import count

from mirage_dsl.ir.graph import Apply, KernelGraph


class FreshNames:
    """Names that neither a graph nor its blocks use."""

    def __init__(self, graph: KernelGraph) -> None:
        self._used = {i.name for i in graph.inputs}
        for node in graph.nodes:
            nodes = (node,) if isinstance(node, Apply) else node.nodes
            self._used.update(n.result for n in nodes)

    def fresh(self, base: str) -> str:
        """`base`, with a number behind it where it is taken."""
        names = (base if n == 1 else f"{base}{n}" for n in count(1))
        name = next(n for n in names if n not in self._used)
        self._used.add(name)
        return name
