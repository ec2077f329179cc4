"""One segment of a program: its best μGraphs, of one kernel or with a split loop."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mirage_dsl.core.clock import OutOfTimeError, until
from mirage_dsl.core.errors import CheckError, UnsupportedError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.types import Axis
from mirage_dsl.cost.estimate import library_kernel
from mirage_dsl.ir.analysis.layouts import with_channels_last
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    Store,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import (
    derived_extents,
    extents_made,
    grid_parts,
    with_derived_extents,
)
from mirage_dsl.ir.walk import live, map_blocks
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CAST
from mirage_dsl.rewrite.casts import insert_casts
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.rewrite.split import split_loop
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.result import Ledger, Plan
from mirage_dsl.search.rewrites import REWRITES
from mirage_dsl.search.sizes.constraints import Constraints
from mirage_dsl.search.sizes.sizes import (
    SHORTLIST,
    Allowed,
    Sized,
    UnsizedBlock,
    choose_sizes,
    sizes_of_all,
)
from mirage_dsl.search.structures.family import families, on_grid

# -- Loops split over the grid ---------------------------------------------------------
# Both kernels are sized together: the tile of the first kernel along the split
# dim decides how many parts the second one has to join.

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

    sizes: Callable[[BlockGraph], Allowed | None]
    hardware: Hardware
    tally: Counter[str] | None = None

    def split(
        self, graph: KernelGraph, inside: AbstractSet[str] = frozenset()
    ) -> Plan | None:
        """The best split form of a μGraph of one kernel.

        None where the kernel fills the GPU, cannot be split, or no sizes fit.

        Args:
            graph: A sized μGraph with one block graph.
            inside: Inputs that an earlier kernel left in L2.
        """
        if len(graph.blocks) != 1:
            return None
        return self._split_block(graph, graph.nodes.index(graph.blocks[0]), inside)

    def split_all(self, graph: KernelGraph) -> Plan | None:
        """A μGraph with every block split where that is faster; None if none is.

        Args:
            graph: A sized μGraph.
        """
        best: Plan | None = None
        left = [b.results for b in graph.blocks]
        for results in left:
            number = next(
                at
                for at, node in enumerate(graph.nodes)
                if isinstance(node, BlockGraph) and node.results == results
            )
            made = frozenset(
                name
                for node in graph.nodes[:number]
                if isinstance(node, BlockGraph)
                for name in node.results
            )
            found = self._split_block(graph, number, made)
            if found is not None:
                whole = Plan.of(found.graph, self.hardware)
                if whole.microseconds < Plan.of(graph, self.hardware).microseconds:
                    best, graph = whole, whole.graph
        return best

    def _split_block(
        self, graph: KernelGraph, number: int, inside: AbstractSet[str]
    ) -> Plan | None:
        block = graph.nodes[number]
        assert isinstance(block, BlockGraph)
        if not self._leaves_idle(graph, block):
            return None
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
        return None if best is None else Plan.of(best[1], self.hardware, inside)

    def _leaves_idle(self, graph: KernelGraph, block: BlockGraph) -> bool:
        extents = derived_extents(graph, graph.extent_of)
        known = {n: e for n, e in extents.items() if e is not None}
        count = 1
        for parts in grid_parts(block, known):
            count *= parts
        return count < BLOCKS_PER_SM * self.hardware.sms

    def _firsts(
        self, graph: KernelGraph, number: int, inside: AbstractSet[str]
    ) -> Iterator[Sized]:
        """The best sizes of the first kernel for each number of parts, best first."""
        extents = derived_extents(graph, graph.extent_of)
        seen: set[int] = set()
        for first in self._choices(graph, number, inside, SHORTLIST):
            split = first.block.grid[-1]
            # Fixed grids may leave the loop in one piece: then nothing is split.
            if split.tile not in seen and split.tile < (extents[split.dim] or 0):
                seen.add(split.tile)
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


# -- Segments --------------------------------------------------------------------------

_log = logging.getLogger("mirage_dsl.search.segments")

HOPELESS = 1.5
"""Structures that start this factor behind do not catch up by their schedule."""

MOST_SPLIT = 6
"""Structures of a segment whose loops are split over the grid, the best ones."""


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


Structures = Callable[[KernelGraph, bool], Found]
"""The structural search: all worthwhile blocks of a program, without sizes.

Or only those of its other form, in which sums are multiplied out."""


def _reads_joined(block: BlockGraph) -> bool:
    """Whether an operator reads a value that is joined over the loop.

    Such a value is whole in the end, so the block without the loop computes the same
    with less.  Only storing what is joined costs nothing: it goes out piece by piece.
    """
    joined = {
        n.result for n in block.nodes if isinstance(n, Accumulate) and n.kind == JOINED
    }
    return any(
        isinstance(n, Apply) and not joined.isdisjoint(n.values) for n in block.nodes
    )


def _only_joins(block: BlockGraph) -> bool:
    """Whether a loop goes over elements that have nothing to do with each other.

    Then a grid that splits its dim computes the same, in more blocks that wait for
    nothing.
    """
    return block.loop is not None and all(
        n.kind == JOINED
        if isinstance(n, Accumulate)
        else isinstance(n, Load | Store)
        or (isinstance(n, Apply) and n.op.kind is Kind.ELEMENTWISE)
        for n in block.nodes
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
    hardware: Hardware
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
    def interruptible(self, deadline: float | None = None) -> Generator[None]:
        """What is in here ends with what is known when the deadline comes.

        So it does with Ctrl-C; a second one ends the search.

        Args:
            deadline: Another one than the search's.
        """
        try:
            with until(self.deadline if deadline is None else deadline):
                yield
        except OutOfTimeError:
            self.complete, self.cut_short = False, True
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = self.cut_short = True
            self.complete = False
            _log.warning("interrupted: the best found so far is verified and returned")

    def plans(
        self,
        segment: KernelGraph,
        inside: AbstractSet[str] = frozenset(),
        *,
        multiplied: bool = False,
    ) -> list[Plan]:
        """μGraphs of a segment by one kernel, best first; none if no kernel holds it.

        With `split` also by two kernels, the first of which shares a loop out between
        blocks.  `inside` are inputs that an earlier kernel left in L2; `multiplied`
        asks for the segment's other form only, in which sums are multiplied out.
        """
        self.ledger.found["segments"] += 1
        plans: list[Plan] = []
        with self.interruptible():
            self._size(segment, inside, multiplied, plans)
        plans = sorted(plans, key=lambda p: p.microseconds)[: self.keep * self.enough]
        if self.split:
            with self.interruptible():
                self._split(plans.copy(), inside, plans)
        return sorted(plans, key=lambda p: p.microseconds)

    def _size(
        self,
        segment: KernelGraph,
        inside: AbstractSet[str],
        multiplied: bool,
        plans: list[Plan],
    ) -> None:
        """Append the plans of all structures of a segment."""
        try:
            found = self._structures(segment, multiplied)
        except (UnsupportedError, CheckError) as error:
            self.ledger.note(f"not one kernel: {error.message}")
            return
        self.complete &= found.complete
        self.ledger.take_structures(found.counters)
        self.ledger.found["structures"] += len(found.blocks)
        task = Sizing(segment, inside, found.unshifted)
        groups = families(self._worthwhile(found.blocks))
        for number, family in enumerate(groups):
            if self.late():
                break
            self._size_family(number, task, family, plans)

    def _structures(self, segment: KernelGraph, multiplied: bool) -> Found:
        return self.structures(segment, multiplied)

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
        if graph.indices:
            blocks = [_bounded(graph, b) for b in blocks]
        tally: Counter[str] = Counter()
        found = sizes_of_all(
            [UnsizedBlock(b, self.constraints.sizes(b)) for b in blocks],
            outer,
            derived_extents(graph, graph.extent_of),
            hardware=self.hardware,
            keep=self.keep,
            tally=tally,
            inside=task.inside,
            worst=self._worst(plans),
        )
        self.ledger.take_sizes(tally)
        beside = self._beside(graph, task.inside)
        plans += [
            Plan(beside + s.microseconds, _with_block(graph, s.block))
            for sized in found
            for s in sized
        ]

    def _beside(self, graph: KernelGraph, inside: AbstractSet[str]) -> float:
        """The estimate in µs of what a one-kernel μGraph leaves to the library."""
        types, extents = kernel_types(graph), derived_extents(graph, graph.extent_of)
        return sum(
            library_kernel(n, types, extents, inside, self.hardware).microseconds
            for n in graph.nodes
            if isinstance(n, Apply) and not n.is_view
        )

    def _worthwhile(self, blocks: Iterable[BlockGraph]) -> Iterator[BlockGraph]:
        """The structures to size."""
        admitted: list[BlockGraph] = []
        for block in blocks:
            if _reads_joined(block):
                self.ledger.cut["joined values"] += 1
            elif not self.constraints.admits_structure(block):
                self.ledger.cut["constraints"] += 1
            else:
                admitted.append(block)
        loopless = any(b.loop is None for b in admitted)
        for block in admitted:
            if loopless and _only_joins(block):
                self.ledger.cut["loops that only join"] += 1
            else:
                yield block

    def _split(
        self, whole: list[Plan], inside: AbstractSet[str], plans: list[Plan]
    ) -> None:
        """Append the best structures with their loops split, where that is worth it."""
        tally: Counter[str] = Counter()
        splitter = Splitter(self._allowed, self.hardware, tally)
        seen: set[str] = set()
        most = len(plans) + MOST_SPLIT
        for plan in whole:
            structure = canonical_hash(plan.graph, sizes=False)
            if structure in seen:
                continue
            if len(plans) == most or self.late():
                break
            seen.add(structure)
            halves = splitter.split(plan.graph, inside)
            if halves is not None:
                plans.append(halves)
        self.ledger.found["loops split"] += MOST_SPLIT + len(plans) - most
        self.ledger.take_sizes(tally)

    def split_apart(self, plans: Sequence[Plan]) -> list[Plan]:
        """The best plans of several kernels with loops split, where that is faster."""
        tally: Counter[str] = Counter()
        splitter = Splitter(self._allowed, self.hardware, tally)
        made: list[Plan] = []
        seen: set[str] = set()
        for plan in sorted(plans, key=lambda p: p.microseconds):
            structure = canonical_hash(plan.graph, sizes=False)
            if structure in seen:
                continue
            if len(seen) == MOST_SPLIT or self.late():
                break
            seen.add(structure)
            halves = splitter.split_all(plan.graph)
            if halves is not None:
                made.append(halves)
        self.ledger.found["loops split"] += len(made)
        self.ledger.take_sizes(tally)
        return made

    def _allowed(self, block: BlockGraph) -> Allowed | None:
        """What the constraints leave of a block's sizes; None of its structure."""
        if not self.constraints.admits_structure(block):
            return None
        return self.constraints.sizes(block)

    def _worst(self, plans: list[Plan]) -> float:
        """The estimate from which on a structure is not worth its sizes."""
        best = sorted(p.microseconds for p in plans)
        return HOPELESS * best[self.enough] if len(best) > self.enough else math.inf

    def resized(
        self,
        graph: KernelGraph,
        inside: AbstractSet[str] = frozenset(),
        touching: AbstractSet[str] | None = None,
    ) -> KernelGraph | None:
        """The μGraph with the sizes of its blocks chosen anew; None if one is unfit.

        Args:
            graph: The μGraph.
            inside: Inputs that an earlier kernel left in L2.
            touching: Only of blocks that read or store one of these tensors.
        """
        outer = with_channels_last(graph, kernel_types(graph))
        nodes = list(graph.nodes)
        for at, node in enumerate(nodes):
            if not isinstance(node, BlockGraph):
                continue
            if touching is not None and touching.isdisjoint(
                (*node.sources, *node.results)
            ):
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

    def with_channels_last(self, graph: KernelGraph) -> KernelGraph | None:
        """The μGraph with channels last; None where no convolution can have them so."""
        made = REWRITES["channels-last"](graph)
        if made == graph:
            return None
        types = kernel_types(made)
        turned = with_channels_last(made, types)
        return self.resized(made, touching={n for n in types if turned[n] != types[n]})


def one_kernel(segment: KernelGraph, block: BlockGraph) -> KernelGraph:
    """The μGraph that computes a segment by one block graph.

    The block stores every returned value that it computes, under the type that it is
    returned with.  Casts of inputs that are returned, which are no values of their own
    for the search, are left to the library.
    """
    origin = {n.result: n.values[0] for n in segment.applies if n.op is CAST}
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
    block = replace(block, nodes=(*block.made, *kept.values()))
    # What is in memory before the block is seen another way, or cast, beside it.
    needed = set(block.sources) | {r.value for r in segment.returns} - kept.keys()
    beside = live(segment.applies, needed)
    return with_derived_extents(replace(segment, nodes=(*beside, block)))


def _split_axes(axes: tuple[Axis, ...], block: BlockGraph) -> tuple[Axis, ...]:
    split = {s.dim for s in block.grid}
    return tuple(tuple(replace(d, grid=d.name in split) for d in a) for a in axes)


def _bounded(graph: KernelGraph, block: BlockGraph) -> BlockGraph:
    """A structure that leaves out what masks hide, so that sizes are chosen for that.

    Constraints are on the grid as it is: its order is chosen behind them.
    """
    made = REWRITES["skip-tiles"](_with_block(graph, block))
    return replace(block, bounds=made.blocks[0].bounds)


def _with_block(graph: KernelGraph, block: BlockGraph) -> KernelGraph:
    """A one-kernel μGraph with other sizes."""
    return with_derived_extents(map_blocks(graph, lambda _: block))


def joined_plan(
    graph: KernelGraph,
    hardware: Hardware,
    constraints: Constraints,
    deadline: float | None = None,
) -> Plan | None:
    """The plan of a μGraph that joins those of successive segments.

    Each segment may have cut a dim `k` into parts of its own number, but `k#` has one
    extent.  Then all blocks are sized anew, together; None if they cannot agree.
    """
    if _extents_agree(graph):
        return Plan.of(graph, hardware)
    # Here, for it loads compiled code.
    from mirage_dsl.search.multi_kernel.planning import Sizer

    return Sizer(hardware, constraints, deadline).sized(graph)


def _extents_agree(graph: KernelGraph) -> bool:
    """Whether all nodes that make a dim make it of one extent."""
    known: dict[str, int] = {}
    made = extents_made(graph, graph.extent_of)
    return all(known.setdefault(name, extent) == extent for _, name, extent in made)


# -- What is called during a search ----------------------------------------------------

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage, how much of it is done, of how much, and the best µs."""


def structural_search(
    hardware: Hardware,
    seed: int,
    threads: int | None,
    deadline: float | None,
    *,
    own: bool = False,
    per_configuration: int = 8,
) -> Structures:
    """The closure search of a segment without the shifts that keep it in range.

    With `own` it knows no operators but the segment's, which takes little time.
    """
    from mirage_dsl.search.structures.structures import structures

    def run(segment: KernelGraph, multiplied: bool) -> Found:
        plain = strip_shifts(segment)
        found = structures(
            plain,
            hardware,
            per_configuration=per_configuration,
            threads=threads,
            deadline=deadline,
            seed=seed,
            own=own,
            multiplied=multiplied,
        )
        return Found(
            tuple(s.block for s in found.structures),
            found.complete,
            len(plain.nodes) < len(segment.nodes),
            found.counters,
        )

    return run


def silent(stage: str, done: int, total: int, best: float | None) -> None:
    """The progress of nobody."""
