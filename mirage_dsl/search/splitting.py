"""Plans with their loop split over the grid, where one kernel leaves the GPU idle.

Both kernels are sized together: the tile of the first kernel along the split dim
decides how many parts the second one has to join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents, grid_parts
from mirage_dsl.ir.split import split_loop
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.sizes import SHORTLIST, Sized, Sizes, choose_sizes

BLOCKS_PER_SM = 2
"""A grid of at least so many blocks for every multiprocessor needs no more of them."""


@dataclass(frozen=True)
class Splitter:
    """Finds split forms of μGraphs.

    Attributes:
        hardware: The GPU to estimate for.
        sizes: What is allowed of the sizes of a block; None refuses its structure.
        tally: Counts points and what excluded them, for the ledger.
    """

    sizes: Callable[[BlockGraph], Sizes | None]
    hardware: Hardware = H100
    tally: Counter[str] | None = None

    def split(
        self, graph: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> tuple[float, KernelGraph] | None:
        """The best split form of a μGraph of one kernel, and its estimate in µs.

        None where the kernel fills the GPU, cannot be split, or no sizes fit.

        Args:
            graph: A sized μGraph with one block graph.
            inside: Inputs that an earlier kernel left in L2.
        """
        if len(graph.blocks) != 1 or not self._leaves_idle(graph):
            return None
        number = graph.nodes.index(graph.blocks[0])
        halves = split_loop(graph, number)
        if halves is None:
            return None
        best: tuple[float, KernelGraph] | None = None
        for first in self._firsts(halves, number, inside):
            # The first kernel alone takes less, and the second a launch at least.
            least = first.microseconds + 1e6 * self.hardware.launch
            if best is not None and least >= best[0]:
                break
            for second, sized in self._seconds(halves, number, first, inside):
                cost = first.microseconds + second
                if best is None or cost < best[0]:
                    best = (cost, sized)
        if best is None:
            return None
        return estimate(best[1], self.hardware, inside).microseconds, best[1]

    def _leaves_idle(self, graph: KernelGraph) -> bool:
        extents = derived_extents(graph, graph.extent_of)
        known = {n: e for n, e in extents.items() if e is not None}
        count = 1
        for parts in grid_parts(graph.blocks[0], known):
            count *= parts
        return count < BLOCKS_PER_SM * self.hardware.sms

    def _firsts(
        self, graph: KernelGraph, number: int, inside: AbstractSet[str]
    ) -> Iterator[Sized]:
        """The best sizes of the first kernel for each number of parts, best first."""
        seen: set[int] = set()
        for first in self._choices(graph, number, inside, SHORTLIST):
            part = first.block.grid[-1].tile
            if part not in seen:
                seen.add(part)
                yield first

    def _seconds(
        self, graph: KernelGraph, number: int, first: Sized, inside: AbstractSet[str]
    ) -> Iterator[tuple[float, KernelGraph]]:
        """The graph with the first kernel sized so, and the second as is best.

        And the estimate of the second in µs.
        """
        parted = _with_node(graph, number, first.block)
        parts = frozenset(first.block.results)
        for second in self._choices(parted, number + 1, inside | parts, 1):
            yield second.microseconds, _with_node(parted, number + 1, second.block)

    def _choices(
        self, graph: KernelGraph, number: int, inside: AbstractSet[str], keep: int
    ) -> list[Sized]:
        block = graph.nodes[number]
        assert isinstance(block, BlockGraph)
        allowed = self.sizes(block)
        if allowed is None:
            return []
        return choose_sizes(
            block,
            kernel_types(graph),
            derived_extents(graph, graph.extent_of),
            hardware=self.hardware,
            keep=keep,
            allowed=allowed,
            tally=self.tally,
            inside=inside,
        )


def _with_node(graph: KernelGraph, number: int, block: BlockGraph) -> KernelGraph:
    nodes = (*graph.nodes[:number], block, *graph.nodes[number + 1 :])
    changed = replace(graph, nodes=nodes)
    return changed.with_extents(derived_extents(changed, changed.extent_of))
