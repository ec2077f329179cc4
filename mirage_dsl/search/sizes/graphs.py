"""Sizes of all kernels of a μGraph together, and loops split over the grid.

How many parts a kernel stores along `k#` is what a later one has to read.  So a few
numbers of parts are tried, and the later kernels are sized for each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import TensorType
from mirage_dsl.cost.footprint import tensor_bytes
from mirage_dsl.ir.analysis.layouts import with_channels_last
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, dims_of
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import (
    derived_extents,
    extents_made,
    grid_parts,
    partial_base,
    with_derived_extents,
)
from mirage_dsl.ir.walk import operands_of, results_of
from mirage_dsl.rewrite.split import split_loop
from mirage_dsl.search.budget import UNLIMITED, Budget, SearchBudget
from mirage_dsl.search.result import Plan
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.search.sizes.sizes import (
    SHORTLIST,
    Allowed,
    Sized,
    UnsizedBlock,
    sizes_of_all,
    without_splits,
)

PARTS = (2, 4, 8, 16, 32, 64)
"""Numbers of parts that are tried."""

MORE_PARTS = (128, 256, 512, 1024)
"""And where a loop is split that so few blocks have that these do not fill the GPU."""

BEAM = 6
"""Choices for the kernels so far that are followed up."""

NEAR = 1.1
"""Factor of the best within which others are looked at more closely."""

EQUAL = 1.01
"""Factor within which sizes are taken for equally good."""

BLOCKS_PER_SM = 2
"""A grid of at least so many blocks for every multiprocessor needs no more of them."""

_Known = dict[tuple[object, ...], list[Sized]]
"""Sizes of blocks, by all that they depend on: many graphs share a kernel."""


@dataclass(frozen=True)
class _Tried:
    """What is tried of the block at a position.

    Attributes:
        number: The position.
        inside: Inputs of the graph that are in L2.
        fixed: Dims over parts whose number is decided.
        parts: Numbers of parts of others.
        between: Whether fewer parts will do where there are not so many.
    """

    number: int
    inside: frozenset[str]
    fixed: frozenset[str]
    parts: Sequence[int]
    between: bool


@dataclass(frozen=True)
class Sizer:
    """Sizes all blocks of a graph.

    Attributes:
        hardware: The GPU.
        constraints: Restrictions.
        budget: After which it gives up.
        tally: Counts points and what excluded them, for the ledger.
    """

    hardware: Hardware
    constraints: Constraints
    budget: Budget | SearchBudget = UNLIMITED
    tally: Counter[str] | None = None
    _known: _Known = field(default_factory=_Known)

    def sized(
        self,
        graph: KernelGraph,
        worst: float = math.inf,
        *,
        inside: AbstractSet[str] = frozenset(),
        only: AbstractSet[int] | None = None,
        parts: Sequence[int] = PARTS,
        between: bool = False,
    ) -> Plan | None:
        """The best sizes; None if a block does not fit at any.

        Args:
            graph: Blocks without sizes.
            worst: Estimate in µs from which on a plan is not wanted.
            inside: Inputs that an earlier kernel left in L2.
            only: Positions of the blocks to size; None for all.
            parts: Numbers of parts to try.
            between: Try fewer parts where tiles allow not so many.
        """
        beam: list[tuple[float, KernelGraph]] = [(0.0, graph)]
        fixed: dict[str, None] = {}
        # No kernel takes less than its launch, part of which the one ahead may hide.
        worst += 1e6 * self.hardware.dependent * (len(graph.blocks) - 1)
        worst -= 1e6 * self.hardware.launch * len(graph.blocks)
        for at, node in enumerate(graph.nodes):
            if not isinstance(node, BlockGraph):
                continue
            worst += 1e6 * self.hardware.launch
            if self.budget.late():
                return None
            if only is None or at in only:
                tried = _Tried(at, frozenset(inside), frozenset(fixed), parts, between)
                beam = [s for state in beam for s in self._next(*state, tried)]
                beam = sorted((s for s in beam if s[0] < worst), key=lambda s: s[0])
                beam = beam[:BEAM]
            fixed.update(dict.fromkeys(_parts_stored(node)))
        least = beam[0][0] if beam else 0.0
        near = [g for paid, g in beam if paid <= NEAR * least]
        plans = [Plan.of(g, self.hardware, inside) for g in near]
        return min(plans, key=lambda p: p.microseconds, default=None)

    def joined(self, graph: KernelGraph) -> Plan | None:
        """The plan of a μGraph whose blocks were sized one by one.

        Each may have cut a dim `k` into parts of its own number, but `k#` has one
        extent.  Then all blocks are sized anew; None if they cannot agree.
        """
        if _extents_agree(graph):
            return Plan.of(graph, self.hardware)
        return self.sized(graph)

    def split(
        self, graph: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> Plan | None:
        """The best plan with a loop split over the grid, or several; None if none is.

        Only blocks that leave multiprocessors idle are split, and a second one only if
        that is faster.

        Args:
            graph: A sized μGraph.
            inside: Inputs that an earlier kernel left in L2.
        """
        best, now = None, Plan.of(graph, self.hardware, inside)
        for results in [b.results for b in graph.blocks]:
            nodes = now.graph.nodes
            places = (i for i, n in enumerate(nodes) if isinstance(n, BlockGraph))
            number = next(i for i in places if results_of(nodes[i]) == results)
            found = self._split_block(now.graph, number, inside)
            if found is not None and found.microseconds < now.microseconds:
                now = best = found
            elif best is None:
                best = found
        return best

    def _split_block(
        self, graph: KernelGraph, number: int, inside: AbstractSet[str]
    ) -> Plan | None:
        block = graph.nodes[number]
        assert isinstance(block, BlockGraph)
        extents = derived_extents(graph, graph.extent_of)
        known = {n: e for n, e in extents.items() if e is not None}
        blocks = math.prod(grid_parts(block, known))
        wanted = BLOCKS_PER_SM * self.hardware.sms
        halves = split_loop(graph, number) if blocks < wanted else None
        if halves is None:
            return None
        if not all(map(self.constraints.admits_structure, halves.blocks)):
            return None
        more = [p for p in MORE_PARTS if p * blocks <= 2 * wanted]
        only = {number, number + 1}
        parts = (*PARTS, *more)
        return self.sized(halves, inside=inside, only=only, parts=parts, between=True)

    def _next(
        self,
        paid: float,
        graph: KernelGraph,
        tried: _Tried,
    ) -> Iterator[tuple[float, KernelGraph]]:
        """The graph with sizes for one more block; the best of each number of parts."""
        at = tried.number
        block = graph.nodes[at]
        assert isinstance(block, BlockGraph)
        # What this block and later ones would make of dims is not decided yet.
        before = replace(graph, nodes=graph.nodes[:at])
        extents = derived_extents(before, graph.extent_of)
        made = _parts_stored(block)
        wanted: Sequence[int | None] = tried.parts if made else (None,)
        if made and made[0] in tried.fixed:
            wanted = (extents[made[0]],)
        types = with_channels_last(graph, kernel_types(graph))
        read = tuple(types[s] for s in block.sources)
        sizes = tuple(extents[n] for t in read for n in t.names)
        inside = tried.inside | self._inside(graph, at, types, extents)
        ways = tuple(wanted), tried.between
        key = (block, ways, read, sizes, inside.intersection(block.sources))
        if key not in self._known:
            self._known[key] = self._choose(types, extents, inside, block, *ways)
        for best in self._known[key]:
            nodes = (*graph.nodes[:at], best.block, *graph.nodes[at + 1 :])
            sized = with_derived_extents(replace(graph, nodes=nodes))
            yield paid + best.microseconds, sized

    def _choose(
        self,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        inside: frozenset[str],
        block: BlockGraph,
        counts: Sequence[int | None],
        between: bool,
    ) -> list[Sized]:
        """The best sizes of one block, with each of some numbers of parts."""
        allowed = self.constraints.sizes(block)
        around = types, extents, inside, block
        known = [c for c in counts if c is not None]
        if not known:
            if allowed.grids is None:
                allowed = replace(allowed, whole=True)
            (found,) = self._best(*around, [allowed], keep=SHORTLIST)
            near = [s for s in found if s.microseconds <= EQUAL * found[0].microseconds]
            fewer = [self._without_whole(best, extents) for best in near]
            # The grid that was given stays if it is as good: others are given too.
            return sorted(fewer, key=lambda s: -len(s.block.grid))[:1]
        exact = [_with_parts(allowed, block, range(c, c + 1)) for c in known]
        made = self._best(*around, exact)
        missing = [c for c, own in zip(known, made, strict=True) if not own]
        if missing and between and len(known) > 1:
            ranges = (range(c // 2 + 1, c) for c in missing)
            made += self._best(
                *around, [_with_parts(allowed, block, r) for r in ranges]
            )
        return [best for own in made for best in own]

    def _best(
        self,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        inside: frozenset[str],
        block: BlockGraph,
        choices: list[Allowed],
        keep: int = 1,
    ) -> list[list[Sized]]:
        return sizes_of_all(
            [UnsizedBlock(block, allowed) for allowed in choices],
            types,
            extents,
            hardware=self.hardware,
            keep=keep,
            tally=self.tally,
            inside=inside,
        )

    def _without_whole(self, sized: Sized, extents: Mapping[str, int | None]) -> Sized:
        """The same, dims of which there is one tile not split, if that is allowed."""
        block = sized.block
        whole = {s.dim for s in block.grid if s.tile >= (extents[s.dim] or math.inf)}
        axes = ({s.dim for s in axis} for axis in block.axes)
        gone = frozenset[str]().union(*(axis for axis in axes if axis <= whole))
        if not gone or block.bounds:
            # Bounds are those of the grid that there is.
            return sized
        fewer = without_splits(block, gone)
        if not self.constraints.admits_structure(fewer):
            return sized
        return Sized(fewer, sized.microseconds)

    def _inside(
        self,
        graph: KernelGraph,
        at: int,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
    ) -> frozenset[str]:
        """What earlier kernels left in L2."""
        made: set[str] = set()
        for node in graph.nodes[:at]:
            view = isinstance(node, Apply) and node.is_view
            # A view of an input lies where the input does.
            if not view or made.issuperset(operands_of(node)):
                made.update(results_of(node))
        half = self.hardware.l2_bytes / 2
        return frozenset(n for n in made if tensor_bytes(types[n], extents) < half)


def _with_parts(allowed: Allowed, block: BlockGraph, counts: range) -> Allowed:
    """Grids with so many parts of the dim that a block stores, several of others."""
    (name, *_) = _parts_stored(block)
    base = str(partial_base(name, block))
    place = [axis[0].dim for axis in block.axes].index(base)
    before = allowed.grids

    def admits(grid: tuple[int, ...]) -> bool:
        if grid[place] not in counts:
            return False
        return min(grid) > 1 if before is None else before(grid)

    return replace(allowed, grids=admits)


def _parts_stored(block: BlockGraph) -> tuple[str, ...]:
    """The dims over parts that a block stores."""
    names = (d.name for s in block.stores for d in dims_of(s.axes))
    return tuple(n for n in dict.fromkeys(names) if partial_base(n, block) is not None)


def _extents_agree(graph: KernelGraph) -> bool:
    """Whether all nodes that make a dim make it of one extent."""
    known: dict[str, int] = {}
    made = extents_made(graph, graph.extent_of)
    return all(known.setdefault(name, extent) == extent for _, name, extent in made)
