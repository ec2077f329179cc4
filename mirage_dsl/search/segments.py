"""Segments of a program: the best μGraphs of each, of one kernel or with a split loop.

Segments that differ only in names, as the layers of a model do, are searched once; with
an executor, all that a program will need are searched there at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from mirage_dsl.core.errors import CheckError, UnsupportedError
from mirage_dsl.core.hardware import GRID_AXES, Hardware
from mirage_dsl.core.types import Dim, Types, f64
from mirage_dsl.core.work import spread
from mirage_dsl.cost.estimate import estimate, least_microseconds, library_kernel
from mirage_dsl.cost.footprint import never_fits
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import copied_for_products, with_channels_last
from mirage_dsl.ir.canonical import Apart, Renaming, canonical_hash, new_name
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import lines_of, to_text, with_lines
from mirage_dsl.ir.walk import (
    live,
    makers,
    map_blocks,
    operands_of,
    values_of,
    with_operands,
    without_dead,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CAST, SUB
from mirage_dsl.rewrite.casts import coarse_tensors, insert_casts
from mirage_dsl.rewrite.concats import joined_parts, pick_joined
from mirage_dsl.rewrite.layouts import flattened
from mirage_dsl.rewrite.loops import scanned_in_loop
from mirage_dsl.rewrite.parts import alone, in_place
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.rewrite.sinking import GathersGiven, with_gathers_given
from mirage_dsl.rewrite.sums import InParts, in_parts, row_length
from mirage_dsl.rewrite.windows import (
    pools,
    rounded_as_convolutions,
    with_windows,
)
from mirage_dsl.search.budget import Budget, SearchBudget
from mirage_dsl.search.memo import Memo, names_of, normal_text, renamed
from mirage_dsl.search.partition import Cutter
from mirage_dsl.search.result import Ledger, Plan
from mirage_dsl.search.rewrites import REWRITES, Use, rewritten
from mirage_dsl.search.sizes import (
    Constraints,
    Sizer,
    UnsizedBlock,
    blocks_at,
    families,
    on_grid,
    parts_stored,
    sizes_of_all,
)

AHEAD = 0.7
"""Share of the time that is left for segments that are searched at the same time."""

HOPELESS = 1.5
"""Structures that start this factor behind do not catch up by their schedule."""

MOST_SPLIT = 6
"""Structures of a segment whose loops are split over the grid, the best ones."""


WORTH_A_SEARCH = 0.04
"""Share of the time from which on a call of PyTorch's is searched as a kernel."""

MOST_SPARED = 4
"""Plans that are kept since they are accurate, where better ones may not be."""
NOT_WORTH_IT = 1.02
"""By how much a plan that cancels has to be better than one that does not."""
MOST_PAIRS = 16
"""Plans of two kernels for rows in parts, of one length of the parts."""

LONGEST_HELD = 32768
"""Elements of a row that no block holds with what is made of it: half the registers of
a multiprocessor.  Where its variance can be had in parts, no kernel of it is sought."""
FAR_FROM_BYTES = 1.1
"""Where the kernel that combines variances of parts takes more than so often what its
bytes do, they are combined by a kernel ahead of it."""
PART_LENGTHS = (4096, 16384)
"""Elements that parts of a row have at most: what a block of few warps holds; where
that gives no plans, what there are fewer of to read for blocks that combine them."""


@dataclass(frozen=True)
class Found:
    """What the structural search gives.

    Attributes:
        blocks: Unsized blocks.
        complete: Whether that is all.
        unshifted: Whether the blocks lack shifts that the program has.
        counters: Figures for the ledger.
    """

    blocks: tuple[ir.BlockGraph, ...]
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

    segment: ir.KernelGraph
    inside: AbstractSet[str]
    unshifted: bool


Structures = Callable[[ir.KernelGraph, bool], Found]
"""The structural search: all worthwhile blocks of a program, without sizes.

Or only those of the program as it is written."""


def reads_joined(block: ir.BlockGraph) -> bool:
    """Whether an operator reads a value that is joined over the loop.

    Such a value is whole in the end, so the block without the loop computes the same
    with less.  Only storing what is joined costs nothing: it goes out piece by piece.
    """
    joined = {
        n.result
        for n in block.nodes
        if isinstance(n, ir.Accumulate) and n.kind == ir.JOINED
    }
    return any(
        isinstance(n, ir.Apply) and not joined.isdisjoint(n.values) for n in block.nodes
    )


def _only_joins(block: ir.BlockGraph) -> bool:
    """Whether a loop goes over elements that have nothing to do with each other.

    Then a grid that splits its dim computes the same, in more blocks that wait for
    nothing.
    """
    return block.loop is not None and all(
        n.kind == ir.JOINED
        if isinstance(n, ir.Accumulate)
        else isinstance(n, ir.Load | ir.Store)
        or (isinstance(n, ir.Apply) and n.op.kind is Kind.ELEMENTWISE)
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
        budget: Of the whole search.
        keep: Sized graphs per structure.
        enough: Plans beyond which structures that are much slower are dropped early.
        exhausted: Whether no limit but time cut a segment's space so far.
        split: Whether a segment may become two kernels with its loop split over the
            grid of the first one.
        memo: Keeps what was found, and knows what was found before.
        executor: Where segments that are known to be needed are searched.
        seed: Of the structural search.
        own: Whether that knows no operators but a segment's own.
    """

    structures: Structures
    hardware: Hardware
    constraints: Constraints = field(default_factory=Constraints)
    ledger: Ledger = field(default_factory=Ledger)
    budget: SearchBudget = field(default_factory=SearchBudget)
    keep: int = 2
    enough: int = 16
    exhausted: bool = True
    split: bool = False
    memo: Memo = field(default_factory=Memo)
    executor: Executor | None = None
    seed: int = 0
    own: bool = False
    _tally: Counter[str] = field(default_factory=Counter[str])

    @property
    def complete(self) -> bool:
        """Whether every segment's space was exhausted so far."""
        return self.exhausted and not self.budget.cut_short

    @cached_property
    def sizer(self) -> Sizer:
        """Chooses the sizes of graphs of several kernels."""
        return Sizer(self.hardware, self.constraints, self.budget, self._tally)

    def late(self) -> bool:
        """Whether the present step of the search has to end."""
        return self.budget.late()

    def key(
        self, segment: ir.KernelGraph, inside: AbstractSet[str], written: bool = False
    ) -> str:
        """What the plans of a segment depend on."""
        exact = "" if self.constraints == Constraints() else to_text(segment)
        return self.memo.key(
            normal_text(segment),
            exact,
            [n for n, i in enumerate(segment.inputs) if i.name in inside],
            self.seed,
            self.constraints,
            self.hardware,
            (self.keep, self.enough, self.split),
            written,
        )

    def is_known(self, segment: ir.KernelGraph, inside: AbstractSet[str]) -> bool:
        """Whether `plans` has nothing to search."""
        return self.key(segment, inside) in self.memo.known

    def plans(
        self,
        segment: ir.KernelGraph,
        inside: AbstractSet[str] = frozenset(),
        *,
        written: bool = False,
    ) -> list[Plan]:
        """μGraphs of a segment by one kernel, best first; none if no kernel holds it.

        With `split` also by two kernels, the first of which shares a loop out between
        blocks, or has the variances of parts of rows.  `inside` are inputs that an
        earlier kernel left in L2; `written` leaves other forms of the segment out.
        """
        key = self.key(segment, inside, written)
        if key in self.memo.known:
            self.ledger.found["segments repeated"] += 1
            return self.memo.known[key].of(segment)
        known = self.memo.recall(key, lambda found: self._taken(found, segment))
        if known is None:
            known = self._searched(key, segment, inside, written)
        self.memo.known[key] = _Finding(segment, known)
        return list(known)

    def _searched(
        self, key: str, segment: ir.KernelGraph, inside: AbstractSet[str], written: bool
    ) -> list[Plan]:
        before, self.exhausted = self.exhausted, True
        try:
            with self._own_ledger():
                self.ledger.found["segments"] += 1
                plans: list[Plan] = []
                parts = self.split and not written
                first = parts and row_length(segment) > LONGEST_HELD
                if first:
                    with self.budget.step():
                        self._add_in_parts(segment, inside, plans)
                if not plans:
                    with self.budget.step():
                        self._size(key, segment, inside, written, plans)
                    self._keep_best(segment, inside, plans)
                if parts and not first:
                    with self.budget.step():
                        self._add_in_parts(segment, inside, plans)
                plans.sort(key=lambda p: p.microseconds)
                self.memo.keep(key, lambda: self.document(plans, segment))
        finally:
            self.exhausted &= before
        return plans

    def _keep_best(
        self, segment: ir.KernelGraph, inside: AbstractSet[str], plans: list[Plan]
    ) -> None:
        """Leave the best plans of one kernel, and append those of loops in halves."""
        plans.sort(key=lambda p: p.microseconds)
        most = self.keep * self.enough
        spared = (p for p in plans[most:] if _subtracts_alike(p.graph, segment))
        plans[most:] = islice(spared, MOST_SPARED)
        if self.split:
            with self.budget.step():
                plans += self.split_apart(plans, inside)

    @contextmanager
    def _own_ledger(self) -> Generator[None]:
        """What is counted in here is counted by itself, and added in the end."""
        whole, self.ledger = self.ledger, Ledger()
        try:
            yield
        finally:
            whole.add(self.ledger)
            self.ledger = whole

    def _size(
        self,
        key: str,
        segment: ir.KernelGraph,
        inside: AbstractSet[str],
        written: bool,
        plans: list[Plan],
    ) -> None:
        """Append the plans of all structures of a segment."""
        try:
            found = self._structures(key, segment, written)
        except (UnsupportedError, CheckError) as error:
            self.ledger.note(f"not one kernel: {error.message}")
            return
        self.exhausted &= found.complete
        self.ledger.take_structures(found.counters)
        self.ledger.found["structures"] += len(found.blocks)
        task = Sizing(segment, inside, found.unshifted)
        looped = (scanned_in_loop(b) for b in found.blocks)
        blocks = (*found.blocks, *(b for b in looped if b is not None))
        groups = families(self._worthwhile(blocks))
        for number, family in enumerate(groups):
            if self.late():
                break
            plans += self._family(f"{key} family {number}", task, family, plans)

    def _structures(self, key: str, segment: ir.KernelGraph, written: bool) -> Found:
        key = f"{key} structures"
        known = self.memo.recall(key, lambda document: _found(document, segment))
        if known is not None:
            return known
        found = self.structures(segment, written)
        self.memo.keep(key, lambda: _found_json(found, segment))
        return found

    def _family(
        self,
        key: str,
        task: Sizing,
        family: Sequence[ir.BlockGraph],
        plans: Sequence[Plan],
    ) -> list[Plan]:
        """The plans of the structures of a family, behind some of others."""
        known = self.memo.recall(key, lambda found: self._taken(found, task.segment))
        if known is None:
            with self._own_ledger():
                known = self._size_family(task, family, plans)
                made = known
                self.memo.keep(key, lambda: self.document(made, task.segment))
        return known

    def _size_family(
        self, task: Sizing, family: Sequence[ir.BlockGraph], plans: Sequence[Plan]
    ) -> list[Plan]:
        outer = kernel_types(replace(task.segment, returns=()))
        coarse = coarse_tensors(task.segment)
        cast = insert_casts(family[0], outer, coarse=coarse)
        kept = self._with_room(task.segment, cast, block_types(cast, outer), family)
        if not kept:
            return []
        if kept[0] is not family[0]:
            cast = on_grid(cast, kept[0].grid)
        family = kept
        graph = one_kernel(task.segment, cast)
        if task.unshifted:
            graph = stabilise(graph)
        if graph is None:
            self.ledger.cut["stability"] += len(family)
            return []
        whole = graph.blocks[0]
        blocks = [whole, *(on_grid(whole, b.grid) for b in family[1:])]
        if graph.indices:
            blocks = [_bounded(graph, b) for b in blocks]
        tally: Counter[str] = Counter()
        found = sizes_of_all(
            [UnsizedBlock(b, self.constraints.sizes(b)) for b in blocks],
            outer,
            derived_extents(graph),
            hardware=self.hardware,
            keep=self.keep,
            tally=tally,
            inside=task.inside,
            worst=self._worst(plans),
        )
        self.ledger.take_sizes(tally)
        beside = self._beside(graph, task.inside)
        return [
            Plan(beside + s.microseconds, _with_block(graph, s.block))
            for sized in found
            for s in sized
        ]

    def _with_room(
        self,
        segment: ir.KernelGraph,
        cast: ir.BlockGraph,
        types: Types,
        family: Sequence[ir.BlockGraph],
    ) -> Sequence[ir.BlockGraph]:
        """The structures of a family of which no tile is too large at any sizes.

        Where elements are picked, a thread holds those that it reads and no tiles; and
        a part of a dim that views make is not told by what is split.

        Args:
            segment: What they compute.
            cast: The first one, with casts.
            types: Of its values.
            family: All.
        """
        if segment.indices or not all(map(_keeps_dims, cast.applies)):
            return family
        tiles = {
            types[n.result]
            for n in cast.applies
            if n.op.kind in (Kind.ELEMENTWISE, Kind.CONTRACTION)
        }
        kept = [
            block
            for block in family
            if not never_fits(
                tiles, {s.dim for s in block.splits}, segment.extent_of, self.hardware
            )
        ]
        self.ledger.cut["tiles beyond registers"] += len(family) - len(kept)
        return kept

    def _beside(self, graph: ir.KernelGraph, inside: AbstractSet[str]) -> float:
        """The estimate in µs of what a one-kernel μGraph leaves to the library."""
        types, extents = kernel_types(graph), derived_extents(graph)
        copied = copied_for_products(graph, types, extents)
        return sum(
            library_kernel(
                n, types, extents, inside, self.hardware, copied
            ).microseconds
            for n in graph.nodes
            if isinstance(n, ir.Apply) and not n.is_view
        )

    def _worthwhile(self, blocks: Iterable[ir.BlockGraph]) -> Iterator[ir.BlockGraph]:
        """The structures to size."""
        admitted: list[ir.BlockGraph] = []
        for block in blocks:
            if reads_joined(block):
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

    def split_apart(
        self, plans: Iterable[Plan], inside: AbstractSet[str] = frozenset()
    ) -> list[Plan]:
        """The best structures of some plans with loops split, where that can be."""
        made: list[Plan] = []
        seen: set[str] = set()
        for plan in sorted(plans, key=lambda p: p.microseconds):
            structure = canonical_hash(plan.graph, sizes=False)
            if structure in seen:
                continue
            if len(made) == MOST_SPLIT or self.late():
                break
            seen.add(structure)
            halves = self.sizer.split(plan.graph, inside)
            if halves is not None:
                made.append(halves)
        self.ledger.found["loops split"] += len(made)
        self.ledger.take_sizes(self._tally)
        self._tally.clear()
        return made

    # -- Rows in parts ---------------------------------------------------------------

    def _add_in_parts(
        self, segment: ir.KernelGraph, inside: AbstractSet[str], plans: list[Plan]
    ) -> None:
        """Append plans of kernels, the first of which has the variances of parts.

        The second combines them, or that is a kernel between the two.  Not where no two
        kernels could be better than a plan that is there, or where that is less
        accurate than the verdict of verification allows; nor of products, whose sums
        would have two dims.
        """
        if any(n.op.kind is Kind.CONTRACTION for n in segment.applies):
            return
        forms = {
            f.length: f for f in map(partial(in_parts, segment), PART_LENGTHS) if f
        }
        for rows in forms.values():
            cutter = Cutter(rows.program)
            two, three = (
                [self._told_before(cutter, part, inside) for part in parts]
                for parts in _parts_of(cutter, rows)
            )
            least = sum(least_microseconds(*s, self.hardware) for s in two)
            best = min((p.microseconds for p in plans), default=math.inf)
            whole = rows.restored(rows.program)
            if self.late() or least >= best or not self._is_right(whole, segment):
                continue
            found = self._in_turn(cutter, two)
            if self._takes_longer_than_its_bytes(*two[-1]):
                found += self._in_turn(cutter, three)
                found.sort(key=lambda p: p.microseconds)
            graphs = (p.graph for p in _accurate_ones(found, rows.program))
            made = [Plan.of(rows.restored(g), self.hardware, inside) for g in graphs]
            plans += made
            if made:
                break

    def _in_turn(
        self,
        cutter: Cutter,
        parts: Sequence[tuple[ir.KernelGraph, AbstractSet[str]]],
    ) -> list[Plan]:
        """The best plans of segments that run one after the other, a kernel each."""
        return [
            Plan(
                sum(p.microseconds for p in some),
                cutter.join([p.graph for p in some]),
            )
            for some in _together([self._flat_plans(*s) for s in parts])
        ]

    def _flat_plans(
        self, segment: ir.KernelGraph, inside: AbstractSet[str]
    ) -> list[Plan]:
        """The plans of a segment as it is written, of as few dims as it can have.

        The dims of the parts beside those of the rows would be more than a grid has.
        """
        flat = flattened(segment)
        if flat is None:
            return self.plans(segment, inside, written=True)
        plans = self.plans(flat.program, inside, written=True)
        whole = (_named_as(segment, flat.restored(p.graph)) for p in plans)
        return [replace(p, graph=g) for p, g in zip(plans, whole, strict=True)]

    def _takes_longer_than_its_bytes(
        self, segment: ir.KernelGraph, inside: AbstractSet[str]
    ) -> bool:
        """Whether the best kernel of a segment, if any, is far from streaming."""
        plans = self._flat_plans(segment, inside)
        if not plans:
            return True
        cost = estimate(plans[0].graph, self.hardware, inside)
        moved = sum(k.dram_bytes for k in cost.kernels) / self.hardware.dram_rate
        least = 1e6 * (moved + self.hardware.launch + self.hardware.ramp)
        return plans[0].microseconds > FAR_FROM_BYTES * least

    def _told_before(
        self, cutter: Cutter, nodes: Sequence[ir.Apply], inside: AbstractSet[str]
    ) -> tuple[ir.KernelGraph, AbstractSet[str]]:
        """Some nodes as a segment, and what is in L2 before it."""
        segment = cutter.segment(nodes)
        before = cutter.made_before(segment, self.hardware.l2_bytes / 2)
        return segment, before | inside

    def _is_right(self, form: ir.KernelGraph, segment: ir.KernelGraph) -> bool:
        """Whether another form of a segment is equal to it, and about as accurate.

        Where it is not, neither are the plans of it, and their search would be for
        nothing.
        """
        # Here, for a result from the cache needs no compiled code.
        from mirage_dsl.verify.verifier import verify

        with self.budget.step():
            return verify(form, segment, seed=self.seed).ok
        return False

    def with_channels_last(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph with channels last; None where no convolution can have them so.

        Blocks that read or store what lies otherwise then are sized anew.
        """
        made = REWRITES["channels-last"](graph)
        if made == graph:
            return None
        types = kernel_types(made)
        turned = with_channels_last(made, types)
        moved = {n for n in types if turned[n] != types[n]}
        return self.sizer.sized(made, only=blocks_at(made, moved))

    def with_pairs(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph that takes bytes in pairs; None where no block can."""
        made = REWRITES["pairs"](graph)
        changed = _changed(graph, made)
        return self.sizer.sized(made, only=changed) if changed else None

    def with_sums(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph whose blocks sum their own results; None where none can.

        They keep their sizes, or have others, by which there are fewer parts.
        """
        made = REWRITES["sum-where-made"](graph)
        changed = _changed(graph, made)
        if not changed:
            return None
        joining = {
            at
            for at in changed
            if not isinstance(block := made.nodes[at], ir.BlockGraph)
            or not parts_stored(block)
        }
        plans = [self.sizer.sized(made, only=some) for some in (joining, changed)]
        found = [plan for plan in plans if plan is not None]
        return min(found, key=lambda p: p.microseconds, default=None)

    def with_windows(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph whose pooling kernels do; None where they do none of it.

        A call that takes little of the time is not worth their search.
        """
        made, calls = graph, pools(graph)
        if not calls:
            return None
        enough = WORTH_A_SEARCH * Plan.of(graph, self.hardware).microseconds
        for call in calls:
            program = alone(made, [call])
            taken = Plan.of(program, self.hardware).microseconds
            if taken < enough:
                continue
            found = partial(self.kernel_of_pool, program, HOPELESS * taken)
            kernel = self.memo.once(("windows", program), found)
            if kernel is not None:
                made = in_place(made, [call], kernel)
        return None if made is graph else Plan.of(made, self.hardware)

    def kernel_of_pool(
        self, program: ir.KernelGraph, most: float
    ) -> ir.KernelGraph | None:
        """The best kernel for a call of PyTorch's pooling, which takes `most` µs.

        It has no loop: what one loads ahead goes to shared memory element by element.

        Args:
            program: The call.
            most: Estimate in µs from which on a kernel is not wanted.
        """
        return self._picking_kernel(rewritten(with_windows(program), Use.NORMAL), most)

    def with_joined(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph whose pads and rolls are kernels; None if none of them should be."""
        made = graph
        for part in joined_parts(graph):
            program = alone(made, part)
            taken = Plan.of(program, self.hardware).microseconds
            found = partial(self.kernel_of_joined, program, taken)
            kernel = self.memo.once(("joined", program), found)
            if kernel is not None:
                made = in_place(made, part, kernel)
        return None if made is graph else Plan.of(without_dead(made), self.hardware)

    def kernel_of_joined(
        self, program: ir.KernelGraph, most: float
    ) -> ir.KernelGraph | None:
        """The best kernel for what only moves elements, which takes `most` µs.

        Args:
            program: Concatenations of views of one input, and of numbers.
            most: Estimate in µs from which on a kernel is not wanted.
        """
        form = pick_joined(rewritten(program, Use.NORMAL))
        return None if form is None else self._picking_kernel(form, most)

    def _picking_kernel(
        self, form: ir.KernelGraph, most: float
    ) -> ir.KernelGraph | None:
        """A program as a block that picks elements itself, and views of its result."""
        inner, views = _without_last_views(form)
        flat = flattened(inner)
        given = with_gathers_given(inner if flat is None else flat.program)
        if given is None or self.late():
            return None
        block = as_written(given.program)
        if block is None:
            return None
        whole = given.restored(one_kernel(given.program, block))
        best = self.sized_for_gathers(REWRITES["fuse-gathers"](whole))
        if best is None or best.microseconds > most:
            return None
        made = best.graph if flat is None else flat.restored(best.graph)
        if not views:
            return made
        (inside,), (lies,) = inner.returns, made.returns
        views = tuple(with_operands(v, {inside.value: lies.value}) for v in views)
        extents = {**form.extent_of, **made.extent_of}
        return replace(
            made,
            nodes=(*made.nodes, *views),
            returns=form.returns,
            extents=tuple(sorted(extents.items())),
        )

    def picking(self, graph: ir.KernelGraph, given: GathersGiven) -> Plan | None:
        """A μGraph whose blocks pick the elements of windows, at sizes for that.

        f32 products of windows round to TF32, as convolutions of libraries do.  None
        where windows would be stored.

        Args:
            graph: A μGraph with inputs in their place.
            given: What these are.
        """
        whole = given.restored(rounded_as_convolutions(graph, given.picked))
        fused = REWRITES["fuse-gathers"](whole)
        if any(n.op.kind is Kind.GATHER for n in fused.applies):
            return None
        return self.sized_for_gathers(fused)

    def with_gathers(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph whose gathers are kernels that compute their own indices."""
        made = REWRITES["gathers-as-kernels"](graph)
        return None if made is graph else self.sized_for_gathers(made)

    def sized_for_gathers(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph with other sizes for its blocks that pick elements themselves.

        They had those for reading what a gather ahead of them had picked.  None if
        there are no such blocks, or none fits.
        """
        return self._sized_anew(graph, lambda block: bool(block.gathered))

    def sized_for_bounds(self, graph: ir.KernelGraph) -> Plan | None:
        """A μGraph with other sizes for its blocks that leave iterations out.

        They had those for all iterations.  None if there are no such blocks.
        """
        return self._sized_anew(graph, lambda block: bool(block.bounds))

    def _sized_anew(
        self, graph: ir.KernelGraph, wanted: Callable[[ir.BlockGraph], bool]
    ) -> Plan | None:
        """A μGraph with other sizes for some of its blocks; None if there are none."""
        only = {
            at
            for at, node in enumerate(graph.nodes)
            if isinstance(node, ir.BlockGraph) and wanted(node)
        }
        return self.sizer.sized(graph, only=only) if only else None

    def _worst(self, plans: Sequence[Plan]) -> float:
        """The estimate from which on a structure is not worth its sizes."""
        best = sorted(p.microseconds for p in plans)
        return HOPELESS * best[self.enough] if len(best) > self.enough else math.inf

    # -- Many at once ----------------------------------------------------------------

    def ahead(self, items: Iterable[tuple[ir.KernelGraph, frozenset[str]]]) -> None:
        """Search segments on the executor, if there is one, and remember them.

        Those that take longest first; they end when a part of the time is left, for
        chains to be made of what was found.
        """
        if self.executor is None or self.late():
            return
        missing: dict[str, _Task] = {}
        for segment, inside in items:
            key = self.key(segment, inside)
            if key not in self.memo.known and key not in missing:
                missing[key] = self._task(segment, inside)
        keys = sorted(missing, key=lambda k: -len(missing[k].segment.nodes))

        def done(number: int, answer: _Answer) -> None:
            key = keys[number]
            segment = missing[key].segment
            self._add(answer.ledger, answer.complete, answer.cut_short)
            self.memo.known[key] = _Finding(segment, answer.plans)
            if not answer.cut_short:
                self.memo.keep(key, lambda: answer.document(segment))

        tasks = [missing[key] for key in keys]
        spread(_Task.run, tasks, self.executor, done, here=True)

    def _task(self, segment: ir.KernelGraph, inside: frozenset[str]) -> _Task:
        left = AHEAD * self.budget.now.seconds
        seconds = None if left == math.inf else max(0.0, left)
        return _Task(
            segment,
            inside,
            self.seed,
            seconds,
            self.hardware,
            self.constraints,
            (self.keep, self.enough, self.split, self.own),
        )

    # -- Documents -------------------------------------------------------------------

    def document(self, plans: list[Plan], segment: ir.KernelGraph) -> dict[str, Any]:
        """The finding of a search of one segment, as JSON."""
        cut_short = self.budget.cut_short
        answer = _Answer(plans, self.ledger, self.exhausted, cut_short)
        return answer.document(segment)

    def _taken(self, document: dict[str, Any], segment: ir.KernelGraph) -> list[Plan]:
        """The plans of a document, whose books are added to these."""
        plans = plans_of(document["plans"], segment)
        ledger = Ledger.from_dict(document["ledger"])
        self._add(ledger, bool(document["complete"]), bool(document["cut_short"]))
        return plans

    def _add(self, ledger: Ledger, complete: bool, cut_short: bool) -> None:
        """Take the books of a search that was done elsewhere, or before."""
        self.ledger.add(ledger)
        self.exhausted &= complete
        self.budget.cut_short |= cut_short


@dataclass(frozen=True)
class _Finding:
    """The plans of a segment."""

    segment: ir.KernelGraph
    plans: list[Plan]

    def of(self, segment: ir.KernelGraph) -> list[Plan]:
        """The same for a segment that differs only in names."""
        own, other = names_of(self.segment), names_of(segment)
        if own == other:
            return list(self.plans)
        found: list[Plan] = []
        for plan in self.plans:
            graph = renamed(plan.graph, own, other)
            lines = lines_of(graph, self.segment)
            found.append(Plan(plan.microseconds, with_lines(graph, segment, lines)))
        return found


@dataclass(frozen=True)
class _Task:
    """A segment to search elsewhere; it pickles."""

    segment: ir.KernelGraph
    inside: frozenset[str]
    seed: int
    seconds: float | None
    hardware: Hardware
    constraints: Constraints
    options: tuple[int, int, bool, bool]

    def run(self) -> _Answer:
        """Search."""
        budget = Budget.of(self.seconds)
        keep, enough, split, own = self.options
        search = SegmentSearch(
            structural_search(self.hardware, self.seed, 1, budget, own=own),
            self.hardware,
            self.constraints,
            budget=SearchBudget(now=budget),
            keep=keep,
            enough=enough,
            split=split,
            seed=self.seed,
        )
        plans = search.plans(self.segment, self.inside)
        cut_short = search.budget.cut_short
        return _Answer(plans, search.ledger, search.exhausted, cut_short)


@dataclass(frozen=True)
class _Answer:
    """What was found elsewhere; it pickles."""

    plans: list[Plan]
    ledger: Ledger
    complete: bool
    cut_short: bool

    def document(self, segment: ir.KernelGraph) -> dict[str, Any]:
        """The same as `SegmentSearch.document` has it."""
        return {
            "plans": plans_json(self.plans, segment),
            "complete": self.complete,
            "cut_short": self.cut_short,
            "ledger": self.ledger.as_dict(),
        }


def plans_json(plans: Iterable[Plan], segment: ir.KernelGraph) -> list[Any]:
    """Plans of a segment, as JSON."""
    return [
        (p.microseconds, to_text(p.graph), lines_of(p.graph, segment)) for p in plans
    ]


def plans_of(record: Iterable[Any], segment: ir.KernelGraph) -> list[Plan]:
    """The reverse."""
    return [
        Plan(cost, with_lines(parse(text), segment, lines))
        for cost, text, lines in record
    ]


def _found_json(found: Found, segment: ir.KernelGraph) -> dict[str, Any]:
    graphs = [one_kernel(segment, block) for block in found.blocks]
    return {
        "blocks": plans_json([Plan(0.0, g) for g in graphs], segment),
        "complete": found.complete,
        "unshifted": found.unshifted,
        "counters": dict(found.counters),
    }


def _found(document: dict[str, Any], segment: ir.KernelGraph) -> Found:
    graphs = [p.graph for p in plans_of(document["blocks"], segment)]
    return Found(
        tuple(g.blocks[0] for g in graphs),
        bool(document["complete"]),
        bool(document["unshifted"]),
        {str(k): int(v) for k, v in document["counters"].items()},
    )


def one_kernel(segment: ir.KernelGraph, block: ir.BlockGraph) -> ir.KernelGraph:
    """The μGraph that computes a segment by one block graph.

    The block stores every returned value that it computes, under the type that it is
    returned with.  Casts of inputs that are returned, which are no values of their own
    for the search, are left to the library.
    """
    origin = {n.result: n.values[0] for n in segment.applies if n.op is CAST}
    stores = {s.result: s for s in block.stores}
    kept: dict[str, ir.BlockNode] = {}
    for item in segment.returns:
        name = item.value
        while name not in stores and name in origin:
            name = origin[name]
        if name in stores:
            axes = ir.gridded(item.type.axes, {s.dim for s in block.grid})
            kept[item.value] = ir.Store(
                item.value, stores[name].operand, axes, item.type.dtype
            )
    block = replace(block, nodes=(*block.made, *kept.values()))
    # What is in memory before the block is seen another way, or cast, beside it.
    needed = set(block.sources) | {r.value for r in segment.returns} - kept.keys()
    beside = live(segment.applies, needed)
    return with_derived_extents(replace(segment, nodes=(*beside, block)))


def _changed(graph: ir.KernelGraph, made: ir.KernelGraph) -> set[int]:
    """The places of what a μGraph made of another one has and that one has not."""
    if made == graph:
        return set()
    return {at for at, node in enumerate(made.nodes) if node not in graph.nodes}


def _without_last_views(
    program: ir.KernelGraph,
) -> tuple[ir.KernelGraph, tuple[ir.Apply, ...]]:
    """A program without views of what it computes in the end, and these."""
    (item,) = program.returns
    made, types = makers(program), kernel_types(program)
    views: list[ir.Apply] = []
    value, names = item.value, list(item.type.names)
    while value in made and (factored := made[value].factored) is not None:
        own = [factored.whole], list(factored.factors)
        new, old = own[::-1] if factored.flattens else own
        at = names.index(old[0])
        if names[at : at + len(old)] != old:
            break
        names[at : at + len(old)] = new
        views.insert(0, made[value])
        value = made[value].values[0]
    if not views:
        return program, ()
    nodes = tuple(n for n in program.nodes if n not in views)
    axes = tuple((Dim(n),) for n in names)
    lies = replace(types[value].in_memory, axes=axes)
    returns = (ir.Return(value, lies),)
    return replace(program, nodes=nodes, returns=returns), tuple(views)


def as_written(segment: ir.KernelGraph) -> ir.BlockGraph | None:
    """A segment as one block without a loop, its result split along each of its dims.

    But along the last one, where it has one more than a grid has.  None where it has
    still more, or what no block computes in.
    """
    (item,) = segment.returns
    dims = item.type.names
    grid = tuple(ir.Split(n, 1) for n in dims[: -1 if len(dims) > GRID_AXES else None])
    block, types = ir.BlockGraph(grid, None, ()), kernel_types(segment)
    apart = any(n.is_view or n.op.kind is Kind.CONCAT for n in segment.applies)
    if len(grid) > GRID_AXES or apart or any(t.dtype == f64 for t in types.values()):
        return None
    split = {s.dim for s in block.grid}
    names: dict[str, str] = {}
    nodes: list[ir.BlockNode] = []
    for given in segment.given:
        names[given.name] = f"{given.name}_t"
        axes = ir.gridded(types[given.name].axes, split)
        nodes.append(ir.Load(names[given.name], given.name, axes))
    for node in segment.applies:
        names[node.result] = f"{node.result}_t"
        made = with_operands(node, names)
        nodes.append(replace(made, result=names[node.result]))
    axes, dtype = ir.gridded(item.type.axes, split), item.type.dtype
    nodes.append(ir.Store(item.value, names[item.value], axes, dtype))
    read = {v for n in nodes if not isinstance(n, ir.Load) for v in operands_of(n)}
    kept = (n for n in nodes if not isinstance(n, ir.Load) or n.result in read)
    coarse = coarse_tensors(segment)
    return insert_casts(replace(block, nodes=tuple(kept)), types, coarse=coarse)


def _bounded(graph: ir.KernelGraph, block: ir.BlockGraph) -> ir.BlockGraph:
    """A structure that leaves out what masks hide, so that sizes are chosen for that.

    Constraints are on the grid as it is: its order is chosen behind them.
    """
    made = REWRITES["skip-tiles"](_with_block(graph, block))
    return replace(block, bounds=made.blocks[0].bounds)


def _keeps_dims(node: ir.Apply) -> bool:
    """Whether a node picks no elements, and makes no dim of others."""
    casts = "dtype" in node.op.attributes
    return casts or node.op.kind not in (Kind.VIEW, Kind.CONCAT, Kind.GATHER)


def _with_block(graph: ir.KernelGraph, block: ir.BlockGraph) -> ir.KernelGraph:
    """A one-kernel μGraph with other sizes."""
    return with_derived_extents(map_blocks(graph, lambda _: block))


def _named_as(segment: ir.KernelGraph, graph: ir.KernelGraph) -> ir.KernelGraph:
    """A flat form's μGraph: a segment's names are those of its inputs and results."""
    taken = {*values_of(graph), *values_of(segment)}
    given = {i.name for i in segment.inputs}
    flat = (values_of(graph) & values_of(segment)) - given
    names = {name: new_name(f"{name}_flat", taken) for name in sorted(flat)}
    for own, wanted in zip(graph.returns, segment.returns, strict=True):
        names[own.value] = wanted.value
    return Renaming(values=names).graph(graph)


def _parts_of(
    cutter: Cutter, rows: InParts
) -> tuple[list[list[ir.Apply]], list[list[ir.Apply]]]:
    """What the kernels of a program in parts have: of two kernels, and of three."""
    ahead = [n for n in cutter.order if n.result in rows.first]
    behind = [n for n in cutter.order if n.result not in rows.first]
    known, between = set(rows.statistics), list[ir.Apply]()
    for node in behind:
        if known.issuperset(node.values):
            known.add(node.result)
            between.append(node)
    rest = [n for n in behind if n not in between]
    parts = [ahead, between, rest]
    return [ahead, behind], parts if between and rest else []


def _together(plans: Sequence[Sequence[Plan]]) -> list[tuple[Plan, ...]]:
    """The best plans of kernels in turn, and those that differ from them in one."""
    if not plans or not all(plans):
        return []
    best = tuple(own[0] for own in plans)
    ways = [best]
    for at in reversed(range(len(plans))):
        ways += [(*best[:at], p, *best[at + 1 :]) for p in plans[at][1:]]
    return sorted(ways, key=lambda way: sum(p.microseconds for p in way))


def _accurate_ones(plans: Sequence[Plan], program: ir.KernelGraph) -> list[Plan]:
    """Those of some plans, sorted, that subtract as a program does, if they are there.

    If they take longer, or there are none, the best plans: of those with one estimate
    the first, for the others differ in the order of operands.
    """
    most = NOT_WORTH_IT * plans[0].microseconds if plans else 0.0
    alike = (
        p
        for p in plans
        if p.microseconds <= most and _subtracts_alike(p.graph, program)
    )
    different = {p.microseconds: p for p in reversed(plans)}
    best = list(different.values())[::-1][:MOST_PAIRS]
    return list(islice(alike, MOST_SPARED)) or best


def without_cancelling(plans: Sequence[Plan], program: ir.KernelGraph) -> list[Plan]:
    """Plans, sorted, but those that are little better than one that subtracts alike.

    They are mostly refused, since a part of a program meets any numbers when it is
    verified by itself, and then the whole is verified for them.
    """
    alike = [_subtracts_alike(p.graph, program) for p in plans]
    pairs = list(zip(plans, alike, strict=True))
    least = next((p.microseconds for p, own in pairs if own), math.inf)
    return [p for p, own in pairs if own or NOT_WORTH_IT * p.microseconds < least]


def _subtracts_alike(graph: ir.KernelGraph, program: ir.KernelGraph) -> bool:
    """Whether a μGraph subtracts only values of such dims as its program does.

    x * r - m * r for (x - m) * r cancels what was small: of such plans most are less
    accurate than the program.
    """
    return _differences(graph) <= _differences(program)


def _differences(graph: ir.KernelGraph) -> set[frozenset[frozenset[str]]]:
    """The dims of both operands of all differences, none of them joined of others."""
    outer, joined = kernel_types(graph), _joined_dims(graph)
    levels = [(graph.applies, outer)]
    levels += [(b.applies, block_types(b, outer)) for b in graph.blocks]
    return {
        frozenset(frozenset(joined.names(types[v].names)) for v in node.values)
        for nodes, types in levels
        for node in nodes
        if node.op is SUB and len(node.values) == 2
    }


def _joined_dims(graph: ir.KernelGraph) -> Apart:
    """The dims that views make of several, as those of which they are made."""
    parts: dict[str, tuple[str, ...]] = {}
    for node in graph.applies:
        if node.factored is not None and node.factored.flattens:
            names = Apart(parts).names(node.factored.factors)
            parts[node.factored.whole] = names
    return Apart(parts)


# -- What is called during a search ----------------------------------------------------

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage, how much of it is done, of how much, and the best µs."""


def structural_search(
    hardware: Hardware,
    seed: int,
    threads: int | None,
    budget: Budget,
    *,
    own: bool = False,
    per_configuration: int = 5,
    alike: bool = False,
) -> Structures:
    """The closure search of a segment without the shifts that keep it in range.

    With `own` it knows no operators but the segment's, which takes little time.
    """
    from mirage_dsl.search.structures import structures

    def run(segment: ir.KernelGraph, written: bool) -> Found:
        plain = strip_shifts(segment)
        found = structures(
            plain,
            hardware,
            per_configuration=per_configuration,
            alike=alike,
            threads=threads,
            budget=budget,
            seed=seed,
            own=own,
            written=written,
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
