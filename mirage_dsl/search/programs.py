"""Whole programs: as one space of several kernels, or cut into chains of segments.

The cheapest chains are found by dynamic programming.  Every run of a few groups
(`search.partition`) is a segment, and searched like a program.  Not all of them: no
kernel takes less than a launch and the time of its tensors' bytes, so a run is passed
over if no chain through it can be among the best.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mirage_dsl.cost.estimate import launched, least_microseconds
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.budget import Budget, SearchBudget
from mirage_dsl.search.partition import Cutter, Group
from mirage_dsl.search.result import Plan, Proof
from mirage_dsl.search.segments import (
    Progress,
    SegmentSearch,
    plans_json,
    plans_of,
    silent,
    structural_search,
    without_cancelling,
)
from mirage_dsl.search.sizes import Constraints

if TYPE_CHECKING:
    from mirage_dsl.search.multi_kernel.search import MultiKernel

# -- One space of several kernels ------------------------------------------------------

MOST_KERNELS = 4
"""Kernels of a program that is searched as one space."""

MOST_OPERATORS = 24
"""Operators of a program, or of a segment, that is worth a search."""


def one_space(
    program: KernelGraph,
    segments: SegmentSearch,
    *,
    max_kernels: int | None,
    keep: int,
    seed: int,
    progress: Progress,
    enough: float,
) -> MultiKernel:
    """The best plans of a program of several kernels, and what is known of them.

    Args:
        program: Operators only.
        segments: Whose books are kept, and whose deadline and constraints hold.
        max_kernels: Most kernels, besides those of operators that always are one;
            None without a limit but that of one search.
        keep: Most plans.
        seed: Of all random choices.
        progress: Told of progress.
        enough: Estimate in µs below which nothing better is looked for.
    """
    # Here, for it loads compiled code.
    from mirage_dsl.search.multi_kernel.search import MultiKernel

    if segments.late():
        return MultiKernel()
    if len(program.nodes) > MOST_OPERATORS:
        segments.exhausted = False
        segments.ledger.note(
            f"several kernels: {len(program.nodes)} operators are too many for one "
            f"search, which takes {MOST_OPERATORS}; the program is cut"
        )
        return MultiKernel()
    progress("several kernels", 0, 1, None)
    most = kernels_of(program, max_kernels)
    found = _found(program, segments, most, keep, seed, enough)
    segments.ledger.take_several(found.counters)
    segments.exhausted &= found.complete
    best = found.plans[0].microseconds if found.plans else None
    progress("several kernels", 1, 1, best)
    return found


def kernels_of(program: KernelGraph, max_kernels: int | None) -> int:
    """How many kernels a program may have as one space.

    Where several are allowed, but no more than half of its products, each kernel would
    have to hold two, as attention does, and the limit would decide, not the estimate.
    And a program without products takes as many reads of its rows as it has sums one
    after the other.  Then there are as many as one search takes.

    Args:
        program: Operators only.
        max_kernels: Most kernels, besides those of operators that always are one;
            None without a limit but that of one search.
    """
    kinds = Counter(n.op.kind for n in program.applies)
    alone = kinds[Kind.GATHER] + kinds[Kind.LIBRARY]
    most = max_kernels or MOST_KERNELS
    products = kinds[Kind.CONTRACTION]
    if most > 1 and (most <= products // 2 or not products):
        most = MOST_KERNELS
    return min(most + alone, MOST_KERNELS)


def covers(found: MultiKernel, program: KernelGraph, constraints: Constraints) -> bool:
    """Whether one space leaves nothing to single kernels and chains of segments.

    There are no more products than kernels, no outputs that may share an axis, no
    scans, whose rows a space holds whole, and no constraints, which the best programs
    may not meet.
    """
    kinds = [n.op.kind for n in program.applies]
    alike = {frozenset(r.type.names) for r in program.returns}
    few = kinds.count(Kind.CONTRACTION) <= MOST_KERNELS
    free = constraints == Constraints() and Kind.SCAN not in kinds
    return free and few and len(alike) == 1 and bool(found.plans) and not found.own


def _found(
    program: KernelGraph,
    segments: SegmentSearch,
    max_kernels: int,
    keep: int,
    seed: int,
    enough: float,
) -> MultiKernel:
    """What the search finds, or found before an interruption."""
    from mirage_dsl.search.multi_kernel.search import MultiKernel, multi_kernel

    options = (max_kernels, keep, seed, segments.constraints, segments.hardware, enough)
    key = segments.memo.key("several", to_text(program), *options)
    known = segments.memo.recall(key, lambda document: _read(document, program))
    if known is not None:
        return known
    found = MultiKernel()
    with segments.budget.step():
        multi_kernel(
            program,
            segments.hardware,
            max_kernels=max_kernels,
            budget=segments.budget.now,
            seed=seed,
            keep=keep,
            constraints=segments.constraints,
            found=found,
            enough=enough,
        )
    segments.memo.keep(key, lambda: _written(found, program))
    return found


def _written(found: MultiKernel, program: KernelGraph) -> dict[str, Any]:
    return {
        "plans": plans_json(found.plans, program),
        "cost": found.cost,
        "bound": found.bound,
        "complete": found.complete,
        "own": found.own,
        "counters": dict(found.counters),
    }


def _read(document: dict[str, Any], program: KernelGraph) -> MultiKernel:
    from mirage_dsl.search.multi_kernel.search import MultiKernel

    return MultiKernel(
        plans_of(document["plans"], program),
        document["cost"],
        document["bound"],
        None,
        bool(document["complete"]),
        bool(document["own"]),
        Counter({str(k): int(v) for k, v in document["counters"].items()}),
    )


def both_proved(first: Proof | None, second: Proof | None) -> Proof | None:
    """What is proved of two forms of a program: the cheaper cost, and the lower bound.

    One of a form alone says nothing of the other one.
    """
    if first is None or second is None:
        return first or second
    bounds = (first.bound, second.bound)
    known = [b for b in bounds if b is not None]
    bound = min(known) if len(known) == len(bounds) else None
    return Proof(min(first.cost, second.cost), bound)


# -- Chains of segments ----------------------------------------------------------------

MOST_GROUPS = 4
"""Groups of the longest segment."""

Parts = tuple[Plan, ...]
"""The plans of successive segments."""

PartsOf = dict[tuple[frozenset[Apply], frozenset[str]], list[Parts]]
"""Ways to compute some operators, which other orders of a program have too; and what of
them others read, which is not the same where values are computed again."""


@dataclass(frozen=True)
class Chains:
    """Finds the chains of one way to order a program's operators.

    Attributes:
        cutter: The program, in that order.
        segments: Searches segments.
        keep: How many chains, and plans of a segment, to keep.
        progress: Told of progress.
        found: What is known of segments of the program, in this order or another one.
    """

    cutter: Cutter
    segments: SegmentSearch
    keep: int
    progress: Progress
    found: PartsOf = field(default_factory=PartsOf)
    calls: PartsOf = field(default_factory=PartsOf)
    """Library kernels that are several groups."""
    whole: bool = True
    """Whether all groups may be one segment: in one of the orders is enough."""

    def cheapest(
        self, enough: float = math.inf, *, products: bool = True
    ) -> list[Parts]:
        """The cheapest chains.

        Args:
            enough: Estimate in µs from which on a chain is not wanted.
            products: Whether generated kernels may compute products; else these are
                left to library kernels, which the estimate may wrong.
        """
        groups = self.cutter.groups
        best: list[list[tuple[float, Parts]]] = [[(0.0, ())]]
        for end in range(1, len(groups) + 1):
            ways: list[tuple[float, Parts]] = []
            for start in range(max(0, end - MOST_GROUPS), end):
                spent = min((cost for cost, _ in best[start]), default=math.inf)
                if spent + self._least[start, end] + self._rest[end] > enough:
                    self.segments.ledger.cut["bound"] += 1
                    continue
                if self._is_known(start, end):
                    continue
                for parts in self._ways(groups[start:end], products):
                    added = sum(p.microseconds for p in parts)
                    ways += [(cost + added, (*p, *parts)) for cost, p in best[start]]
            ways.sort(key=lambda w: (w[0], len(w[1])))
            best.append(ways[: self.keep])
            known = ways[0][0] if ways and end == len(groups) else None
            self.progress("cut", end, len(groups), known)
        return [parts for _, parts in best[-1]]

    def wanted(
        self, enough: float = math.inf, *, products: bool = True
    ) -> Iterator[tuple[KernelGraph, frozenset[str]]]:
        """The segments that `cheapest` may search, and what of them is in L2."""
        for (start, end), least in self._least.items():
            run = self.cutter.groups[start:end]
            fits = sum(len(a.nodes) for a in run) <= MOST_OPERATORS or len(run) == 1
            if not fits or any(a.library for a in run) or self._is_known(start, end):
                continue
            if not products and any(a.is_product for a in run):
                continue
            hopeless = self._first[start] + least + self._rest[end] > enough
            if not hopeless or not any(a.is_product for a in run):
                segment = self.cutter.segment(_nodes_of(run))
                yield segment, self._left_in_l2(segment)

    def _is_known(self, start: int, end: int) -> bool:
        """Whether a run is all groups, which another order has as one segment."""
        count = len(self.cutter.groups)
        return not self.whole and end - start == count > 1

    # -- Bounds ----------------------------------------------------------------------

    @cached_property
    def _least(self) -> Mapping[tuple[int, int], float]:
        """What no kernels that compute a run take less than, in µs."""
        groups, hardware = self.cutter.groups, self.segments.hardware
        found: dict[tuple[int, int], float] = {}
        for end in range(1, len(groups) + 1):
            for start in range(max(0, end - MOST_GROUPS), end):
                run = groups[start:end]
                free = all(n.is_view for a in run for n in a.nodes)
                segment = self.cutter.segment(_nodes_of(run))
                inside = self._left_in_l2(segment)
                library = any(a.library for a in run)
                bound = least_microseconds(segment, inside, hardware)
                found[start, end] = 0.0 if free or library else bound
        return found

    @cached_property
    def _rest(self) -> list[float]:
        """The same for all groups from one on."""
        count = len(self.cutter.groups)
        found = [math.inf] * count + [0.0]
        for (start, end), least in sorted(self._least.items(), reverse=True):
            found[start] = min(found[start], least + found[end])
        return found

    @cached_property
    def _first(self) -> list[float]:
        """The same for all groups up to one."""
        found = [0.0] + [math.inf] * len(self.cutter.groups)
        for (start, end), least in sorted(self._least.items()):
            found[end] = min(found[end], found[start] + least)
        return found

    # -- Segments --------------------------------------------------------------------

    def _ways(self, run: Sequence[Group], products: bool) -> list[Parts]:
        """Ways to compute successive groups, as one segment."""
        if products or not any(a.is_product for a in run):
            return [*self._searched(run), *self._one_call(run)]
        return [(self._library(run[0]),)] if len(run) == 1 else self._one_call(run)

    def _key(self, run: Sequence[Group]) -> tuple[frozenset[Apply], frozenset[str]]:
        nodes = _nodes_of(run)
        return frozenset(nodes), self.cutter.needed(nodes)

    def _one_call(self, run: Sequence[Group]) -> list[Parts]:
        """The library kernel that several groups are together, if they are one."""
        if len(run) == 1 or any(a.library for a in run):
            return []
        key = self._key(run)
        if key not in self.calls:
            plan = self._library(Group(tuple(_nodes_of(run))))
            single = len(launched(plan.graph)) == 1
            self.calls[key] = [(plan,)] if single else []
        return self.calls[key]

    def _searched(self, run: Sequence[Group]) -> list[Parts]:
        key = self._key(run)
        if key not in self.found:
            self.found[key] = self._search(run)
        return self.found[key]

    def _search(self, run: Sequence[Group]) -> list[Parts]:
        nodes, single = _nodes_of(run), len(run) == 1
        segment = self.cutter.segment(nodes)
        inside = self._left_in_l2(segment)
        plans: list[Plan] = []
        library = any(a.library for a in run)
        fits = len(nodes) <= MOST_OPERATORS or single
        late = self.segments.late()
        searched = not library and fits
        if searched and (not late or self.segments.is_known(segment, inside)):
            found = self.segments.plans(segment, inside)
            plans = without_cancelling(found, segment)[: self.keep]
        ways: list[Parts] = [(p,) for p in plans]
        if not single:
            return ways
        alone = self._library(run[0])
        dear = not plans or plans[0].microseconds > alone.microseconds
        if dear and len(nodes) > 1 and not self.segments.late():
            group = run[0]
            for left, right in (
                self.cutter.halves(group),
                *self.cutter.at_calls(group),
            ):
                if self.segments.late():
                    break
                seconds = self._searched((right,))
                ways += [(*a, *b) for a in self._searched((left,)) for b in seconds]
        ways.append((alone,))
        ways.sort(key=lambda w: sum(p.microseconds for p in w))
        return ways[: self.keep]

    def _library(self, group: Group) -> Plan:
        segment = self.cutter.segment(group.nodes)
        inside = self._left_in_l2(segment)
        return Plan.of(segment, self.segments.hardware, inside, self.cutter.copied)

    def _left_in_l2(self, segment: KernelGraph) -> frozenset[str]:
        """Inputs of a segment that an earlier one makes, unless they are too large."""
        most = self.segments.hardware.l2_bytes / 2
        return self.cutter.made_before(segment, most)


def _nodes_of(run: Sequence[Group]) -> list[Apply]:
    return [n for a in run for n in a.nodes]


# -- A first answer --------------------------------------------------------------------


class Quick:
    """A quick search of some forms of a program: products left to libraries at first.

        library kernels    |   x @ w      |                | c @ v   | ...
        one kernel each    |              | scale, softmax |         | ...

    It is what a search returns whose time is up before it has found anything better.
    Segments are searched with no other operators than their own (`useful.useful`):
    that takes hundredths of a second each, and misses what algebra could do.

    Attributes:
        plans: What was found so far.
    """

    def __init__(self, search: SegmentSearch, budget: Budget) -> None:
        """Take another search's hardware, constraints and seed, but not its books."""
        self.plans: list[Plan] = []
        self._end = budget
        self._search = SegmentSearch(
            structural_search(search.hardware, search.seed, 1, budget, own=True),
            search.hardware,
            search.constraints,
            budget=SearchBudget(now=budget),
            keep=1,
            enough=1,
            executor=search.executor,
            seed=search.seed,
            own=True,
        )

    def fuse(
        self,
        program: KernelGraph,
        *,
        products: bool = False,
        until: Budget | None = None,
    ) -> None:
        """Find the cheapest plan, and the next one.

        Half of the time is for segments: what was not searched by then is left to
        library kernels, and the plan is made of both.

        Args:
            program: Operators only.
            products: Whether kernels may compute products; else libraries do.
            until: The time for it, if that is not all that there is.
        """
        end = until or self._end
        if products and end.late():
            return
        self._search.budget.now = end.half()
        cutter = Cutter(program)
        chains = Chains(cutter, self._search, 2, silent)
        with self._search.budget.step(end):
            self._search.ahead(chains.wanted(products=products))
            for parts in chains.cheapest(products=products):
                graph = cutter.join([p.graph for p in parts])
                joined = self._search.sizer.joined(graph)
                if joined is not None:
                    moved = self._search.with_joined(joined.graph) or joined
                    self.plans.append(min(joined, moved, key=lambda p: p.microseconds))
