"""One segment of a program: its best μGraphs of one kernel or a split one, sized."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_dsl.errors import CheckError, UnsupportedError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Store,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.stabilise import stabilise
from mirage_dsl.ops.table import CAST
from mirage_dsl.search.casts import insert_casts
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.family import families, on_grid
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.ledger import Ledger
from mirage_dsl.search.sizes import Sizes, Unsized, choose_sizes, sizes_of_all
from mirage_dsl.search.splitting import Splitter
from mirage_dsl.types import Axis

_log = logging.getLogger(__name__)

HOPELESS = 1.5
"""Structures that start this factor behind do not catch up by their schedule."""

MOST_SPLIT = 6
"""Structures of a segment whose loops are split over the grid, the best ones."""


@dataclass(frozen=True)
class Plan:
    """A sized μGraph and its estimate in µs."""

    microseconds: float
    graph: KernelGraph


@dataclass(frozen=True)
class Found:
    """What the structural search gives.

    Attributes:
        blocks: Unsized blocks.
        complete: Whether that is all.
        unshifted: Whether the blocks lack shifts that the program has.
        counters: Figures for the ledger.
    """

    blocks: tuple[BlockGraph, ...]
    complete: bool = True
    unshifted: bool = False
    counters: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class Sizing:
    """What the structures of a segment are sized for.

    Attributes:
        segment: The segment.
        inside: Its inputs that an earlier kernel left in L2.
        unshifted: Whether the structures need shifts, without which they overflow.
    """

    segment: KernelGraph
    inside: AbstractSet[str]
    unshifted: bool


Structures = Callable[[KernelGraph], Found]
"""The structural search: all worthwhile blocks of a program, without sizes."""


def _reads_joined(block: BlockGraph) -> bool:
    """Whether an operator reads a value that is joined over the loop.

    Such a value is whole in the end, so the block without the loop computes the same
    with less.  Only storing what is joined costs nothing: it goes out piece by piece.
    """
    joined = {
        n.result
        for n in block.nodes
        if isinstance(n, Accumulate) and n.kind == "concat"
    }
    return any(
        isinstance(n, Apply) and not joined.isdisjoint(n.values) for n in block.nodes
    )


@dataclass
class SegmentSearch:
    """Searches segments one by one and keeps the books.

    Attributes:
        structures: The structural search.
        hardware: The GPU to estimate for.
        constraints: Restrictions.
        ledger: Counts.
        deadline: Reading of `time.monotonic()` after which it stops.
        keep: Sized graphs per structure.
        enough: Plans beyond which structures that are much slower are dropped early.
        complete: Whether every segment's space was exhausted so far.
        cut_short: Whether that is for want of time, or because of Ctrl-C.
        interrupted: Whether Ctrl-C was pressed; it ends the search like a deadline.
        split: Whether a segment may become two kernels with its loop split over the
            grid of the first one.
        checkpoint: Keeps what was found, and knows what was found before.
    """

    structures: Structures
    hardware: Hardware = H100
    constraints: Constraints = field(default_factory=Constraints)
    ledger: Ledger = field(default_factory=Ledger)
    deadline: float | None = None
    keep: int = 2
    enough: int = 16
    complete: bool = True
    cut_short: bool = False
    interrupted: bool = False
    split: bool = False
    checkpoint: Checkpoint | None = None

    def late(self) -> bool:
        """Whether the budget is used up; then the search is not complete."""
        on_time = self.deadline is None or time.monotonic() < self.deadline
        if on_time and not self.interrupted:
            return False
        self.complete, self.cut_short = False, True
        return True

    @contextmanager
    def interruptible(self) -> Generator[None]:
        """Ctrl-C in here ends the search with what is known; a second one ends it."""
        try:
            yield
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = self.cut_short = True
            self.complete = False
            _log.warning("interrupted: the best found so far is verified and returned")

    def plans(
        self, segment: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> list[Plan]:
        """μGraphs of a segment by one kernel, best first; none if no kernel holds it.

        With `split` also by two kernels, the first of which shares a loop out between
        blocks.  `inside` are inputs that an earlier kernel left in L2.
        """
        self.ledger.found["segments"] += 1
        try:
            found = self._structures(segment)
        except (UnsupportedError, CheckError) as error:
            self.ledger.note(f"not one kernel: {error.message}")
            return []
        self.complete &= found.complete
        self.ledger.take_structures(found.counters)
        self.ledger.found["structures"] += len(found.blocks)
        plans: list[Plan] = []
        task = Sizing(segment, inside, found.unshifted)
        with self.interruptible():
            groups = families(self._worthwhile(found.blocks))
            for number, family in enumerate(groups):
                if self.late():
                    break
                self._size_family(number, task, family, plans)
        plans = sorted(plans, key=lambda p: p.microseconds)[: self.keep * self.enough]
        if self.split:
            plans = sorted(
                [*plans, *self._split(plans, inside)], key=lambda p: p.microseconds
            )
        return plans

    def _structures(self, segment: KernelGraph) -> Found:
        return self.structures(segment)

    def _size_family(
        self,
        number: int,  # noqa: ARG002
        task: Sizing,
        family: Sequence[BlockGraph],
        plans: list[Plan],
    ) -> None:
        """Append the plans of the structures of a family, that of this number."""
        outer = kernel_types(replace(task.segment, returns=()))
        graph = one_kernel(task.segment, insert_casts(family[0], outer))
        if task.unshifted:
            graph = stabilise(graph)
        if graph is None:
            self.ledger.cut["stability"] += len(family)
            return
        whole = graph.blocks[0]
        blocks = [whole, *(on_grid(whole, b.grid) for b in family[1:])]
        tally: Counter[str] = Counter()
        found = sizes_of_all(
            [Unsized(b, self.constraints.sizes(b)) for b in blocks],
            outer,
            derived_extents(graph, graph.extent_of),
            hardware=self.hardware,
            keep=self.keep,
            tally=tally,
            inside=task.inside,
            worst=self._worst(plans),
        )
        self.ledger.take_sizes(tally)
        plans += [
            Plan(s.microseconds, _with_block(graph, s.block))
            for sized in found
            for s in sized
        ]

    def _worthwhile(self, blocks: Iterable[BlockGraph]) -> Iterator[BlockGraph]:
        """The structures to size."""
        for block in blocks:
            if _reads_joined(block):
                self.ledger.cut["joined values"] += 1
            elif not self.constraints.admits_structure(block):
                self.ledger.cut["constraints"] += 1
            else:
                yield block

    def _split(self, plans: list[Plan], inside: AbstractSet[str]) -> list[Plan]:
        """The best structures with their loops split, where that is worth a thought."""
        tally: Counter[str] = Counter()
        splitter = Splitter(self._allowed, self.hardware, tally)
        found: list[Plan] = []
        seen: set[str] = set()
        for plan in plans:
            structure = canonical_hash(plan.graph, sizes=False)
            if structure in seen:
                continue
            if len(found) == MOST_SPLIT or self.late():
                break
            seen.add(structure)
            halves = splitter.split(plan.graph, inside)
            if halves is not None:
                found.append(Plan(*halves))
        self.ledger.found["loops split"] += len(found)
        self.ledger.take_sizes(tally)
        return found

    def _allowed(self, block: BlockGraph) -> Sizes | None:
        """What the constraints leave of a block's sizes; None of its structure."""
        if not self.constraints.admits_structure(block):
            return None
        return self.constraints.sizes(block)

    def _worst(self, plans: list[Plan]) -> float:
        """The estimate from which on a structure is not worth its sizes."""
        best = sorted(p.microseconds for p in plans)
        return HOPELESS * best[self.enough] if len(best) > self.enough else math.inf

    def resized(
        self, graph: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> KernelGraph | None:
        """The μGraph with the sizes of its blocks chosen anew; None if one is unfit."""
        outer = kernel_types(graph)
        nodes = list(graph.nodes)
        for at, node in enumerate(nodes):
            if not isinstance(node, BlockGraph):
                continue
            extents = derived_extents(graph, graph.extent_of)
            allowed = self.constraints.sizes(node)
            best = choose_sizes(
                node,
                outer,
                extents,
                hardware=self.hardware,
                keep=1,
                allowed=allowed,
                inside=inside,
            )
            if not best:
                return None
            nodes[at] = best[0].block
        return with_derived_extents(replace(graph, nodes=tuple(nodes)))


def one_kernel(segment: KernelGraph, block: BlockGraph) -> KernelGraph:
    """The μGraph that computes a segment by one block graph.

    The block stores every returned value under the type that it is returned with.
    """
    applies = [n for n in segment.nodes if isinstance(n, Apply)]
    origin = {n.result: n.values[0] for n in applies if n.op is CAST}
    stores = {s.result: s for s in block.stores}
    kept: dict[str, BlockNode] = {}
    for item in segment.returns:
        name = item.value
        while name not in stores and name in origin:
            name = origin[name]
        if name in stores:
            axes = _split_axes(item.type.axes, block)
            kept[item.value] = Store(
                item.value, stores[name].operand, axes, item.type.dtype
            )
    inner = [n for n in block.nodes if not isinstance(n, Store)]
    block = replace(block, nodes=(*inner, *kept.values()))
    needed = set(block.sources) | {r.value for r in segment.returns}
    views: list[Apply] = []
    for node in reversed(applies):
        if node.is_view and node.result in needed:
            views.insert(0, node)
            needed.update(node.values)
    return with_derived_extents(replace(segment, nodes=(*views, block)))


def _split_axes(axes: tuple[Axis, ...], block: BlockGraph) -> tuple[Axis, ...]:
    split = {s.dim for s in block.grid}
    return tuple(tuple(replace(d, grid=d.name in split) for d in a) for a in axes)


def _with_block(graph: KernelGraph, block: BlockGraph) -> KernelGraph:
    """A one-kernel μGraph with other sizes."""
    nodes = tuple(block if isinstance(n, BlockGraph) else n for n in graph.nodes)
    return with_derived_extents(replace(graph, nodes=nodes))


def library_plan(
    segment: KernelGraph, hardware: Hardware, inside: AbstractSet[str] = frozenset()
) -> Plan:
    """The segment by pre-defined kernels."""
    return Plan(estimate(segment, hardware, inside).microseconds, segment)


def with_derived_extents(graph: KernelGraph) -> KernelGraph:
    """The graph with the extents that follow from its nodes."""
    return graph.with_extents(derived_extents(graph, graph.extent_of))
