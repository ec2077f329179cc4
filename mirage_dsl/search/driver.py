"""The search from a program to verified μGraphs: the whole package in turn.

    expand -> cut into segments -> for each segment: structures -> casts -> sizes
           -> join -> stabilise -> verify against the original program -> k best

Programs with products are one space of all their kernels (`search.multi_kernel`), of
which a single kernel is the case of one layer.  What that does not cover is one segment
first and, unless one kernel comes close to what the hardware could do, cut into chains
of segments (`search.programs`).  The program by library kernels is always a
candidate.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.garbage import rarely_collected
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.modes import convolutions_round
from mirage_dsl.core.types import i32
from mirage_dsl.core.work import OutOfTimeError, until
from mirage_dsl.cost.estimate import estimate, launched
from mirage_dsl.cost.explain import roofline
from mirage_dsl.cost.footprint import tensor_bytes
from mirage_dsl.cost.order import in_good_order
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ops.definition import Kind
from mirage_dsl.rewrite.casts import without_narrow_vectors
from mirage_dsl.rewrite.layouts import FlatForm, flattened
from mirage_dsl.rewrite.shifts import stabilise
from mirage_dsl.rewrite.sinking import GathersGiven, with_gathers_given
from mirage_dsl.rewrite.sums import read_in_turn
from mirage_dsl.rewrite.windows import windows_given
from mirage_dsl.search.budget import UNLIMITED, Budget, SearchBudget
from mirage_dsl.search.memo import Checkpoint, Memo
from mirage_dsl.search.partition import Cutter, computed_again
from mirage_dsl.search.programs import (
    MOST_GROUPS,
    MOST_OPERATORS,
    Chains,
    Parts,
    PartsOf,
    Quick,
    both_proved,
    covers,
    one_space,
)
from mirage_dsl.search.result import (
    AS_GOOD,
    Candidate,
    Ledger,
    Plan,
    Proof,
    SearchResult,
    best_first,
    hash_but_for_factors,
    is_one_kernel,
    leaves_products,
    with_every_kind,
)
from mirage_dsl.search.rewrites import REWRITES, Use, rewrites, rewritten
from mirage_dsl.search.segments import (
    HOPELESS,
    Progress,
    SegmentSearch,
    silent,
    structural_search,
)
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.sections import has_parts

if TYPE_CHECKING:
    from mirage_dsl.search.multi_kernel.search import MultiKernel

# -- Certificates ----------------------------------------------------------------------


def certified(
    form: KernelGraph,
    program: KernelGraph,
    memo: Memo,
    seed: int,
    executor: Executor | None = None,
) -> Certificate:
    """The certificate of a μGraph, which may say that it is wrong."""
    # Here, for a result from the cache needs no compiled code.
    from mirage_dsl.verify.verifier import verify

    if memo.checkpoint is None:
        return verify(form, program, seed=seed, executor=executor)
    key = memo.key("verify", to_text(form), to_text(program), seed)
    known = memo.recall(key, Certificate.from_dict)
    if known is not None:
        return known
    found = verify(form, program, seed=seed, executor=executor)
    memo.keep(key, found.to_dict, whole=True)
    return found


def identity_of(program: KernelGraph, seed: int) -> Certificate:
    """The certificate of a program for itself."""
    from mirage_dsl.verify.verifier import identity

    return identity(program, seed=seed)


# -- The search ------------------------------------------------------------------------

ROUND_UP = 1 + 1e-6
"""What estimates of one μGraph may differ by."""
GOOD_ENOUGH = 1.03
"""Several kernels are not searched where one is within this factor of the roofline."""

MOST_DIMS = 5
"""Values of more dims are slow to verify: an answer is verified before the search."""

BEFORE_SECURED = 0.03
"""Share of the budget after which an answer is verified as soon as there is one."""

SPARE = 2
"""Plans at hand for each one wanted, where that decides what is searched no more."""


@rarely_collected()
def search(
    program: KernelGraph,
    hardware: Hardware,
    *,
    k: int = 8,
    budget_seconds: float | None = None,
    spent: float = 0.0,
    seed: int = 0,
    threads: int | None = None,
    max_kernels: int | None = 1,
    constraints: Constraints | None = None,
    verify: bool = True,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """The best μGraphs of a program, cheapest first, each verified against it.

    The same program, seed and options give the same result, unless the budget cut in or
    Ctrl-C did, after which the best so far are verified and returned.

    Args:
        program: A traced program of known extents.
        hardware: The GPU to estimate for.
        k: How many μGraphs to return at most, all of different structure.
        budget_seconds: Stop searching after so long and return the best so far; the
            first candidate is verified all the same.
        spent: Seconds that its caller has waited already, as for its code to be loaded:
            steps that may go on beyond the budget have so much less for that.
        seed: Of all random choices.
        threads: For the structural search; None for one.
        max_kernels: 1 keeps a program in one kernel if that beats library kernels; more
            let the estimate decide where to cut, and whether to split a loop over the
            grid; None without a limit.
        constraints: Restrictions on grids, maps, loops and blocks.
        verify: Whether to verify; without it candidates carry no certificates.
        progress: Told of progress.
        checkpoint: Keeps what was found so far, and knows that of before.
        executor: Where the segments of a program that is cut are searched.

    Raises:
        SearchError: An extent is unknown, or the constraints are contradictory.
    """
    _require_extents(program)
    budget = SearchBudget(budget_seconds, spent)
    segments = SegmentSearch(
        structural_search(hardware, seed, threads, budget.found),
        hardware,
        constraints or Constraints(),
        budget=budget,
        split=max_kernels != 1,
        memo=Memo(budget, checkpoint),
        executor=executor,
        seed=seed,
    )
    driver = _Driver(
        program, segments, k, seed, max_kernels, verify, progress or silent
    )
    plans = driver.plans()
    found = driver.candidates(plans)
    if driver.missed(found):
        plans = driver.cut_as_well(plans)
        found = driver.candidates(plans)
    if driver.needs_its_maxima(found):
        found = driver.candidates(driver.with_its_maxima(plans))
    return driver.result(found)


MOST_SEVERAL = 32
"""μGraphs of several kernels, where all are listed."""

MOST_IN_PAIRS = 3
"""Structures that are made to take bytes in pairs, the best ones."""

MOST_STRUCTURES = 4096
"""Of a configuration, where all are listed.  The largest that was seen has 48."""


class EveryMugraph:
    """All μGraphs of the space of a program, cheapest first: `len()`, and an iterator.

    They are the structures of one kernel, each with the best sizes that fit the GPU,
    and what the search finds of several.  Each is verified when it is taken, and left
    out if it is wrong or less accurate; what was verified once is not again.

    Attributes:
        program: What they compute.
        complete: Whether the space of one kernel was exhausted.
        ledger: What was looked at, and what was cut by what.
    """

    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        self._plans = _one_of_each(driver.plans())
        self.program = driver.program
        self.complete = driver.segments.complete
        self.ledger = driver.ledger

    def __len__(self) -> int:
        return len(self._plans)

    def __iter__(self) -> Iterator[Candidate]:
        for plan in self._plans:
            candidate = self._driver.verified(plan.graph)
            if candidate is not None:
                yield _finished(candidate, self._driver.segments.hardware)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "incomplete"
        return f"<{len(self)} μGraphs of {self.program.name}, {state}>"


def every_mugraph(
    program: KernelGraph,
    hardware: Hardware,
    *,
    seed: int = 0,
    max_kernels: int | None = 1,
    constraints: Constraints | None = None,
    progress: Progress | None = None,
) -> EveryMugraph:
    """List the space of a program; see `search` for the arguments.

    Raises:
        SearchError: An extent is unknown, or the constraints are contradictory.
    """
    _require_extents(program)
    found = structural_search(
        *(hardware, seed, None, UNLIMITED),
        per_configuration=MOST_STRUCTURES,
        alike=True,
    )
    segments = SegmentSearch(
        found,
        hardware,
        constraints or Constraints(),
        keep=1,
        enough=sys.maxsize,
        split=max_kernels != 1,
        seed=seed,
    )
    k = MOST_SEVERAL
    said = progress or silent
    return EveryMugraph(
        _Driver(program, segments, k, seed, max_kernels, True, said, listed=True)
    )


def _microseconds(plan: Plan) -> float:
    return plan.microseconds


def _structure(plan: Plan) -> str:
    return canonical_hash(plan.graph, sizes=False)


def _one_of_each(plans: Sequence[Plan]) -> list[Plan]:
    """The first plan of each structure."""
    found: dict[str, Plan] = {}
    for plan in plans:
        found.setdefault(_structure(plan), plan)
    return list(found.values())


def _require_extents(program: KernelGraph) -> None:
    missing = [n for n, e in program.extents if e is None]
    if missing:
        raise SearchError(
            f"{program.name}: the extents of {', '.join(missing)} are symbolic; the "
            "search prices concrete sizes, so search at a typical one"
        )


def _takes_long_to_verify(program: KernelGraph) -> bool:
    """Whether an answer may take longer to verify than plans to find.

    What stands in for library kernels, as for convolutions, is computed of more
    numbers, and each section between them has verdicts of its own.
    """
    if len(program.nodes) > MOST_OPERATORS or _widest(program) > MOST_DIMS:
        return True
    return any(n.op.kind is Kind.LIBRARY for n in program.applies)


def _widest(program: KernelGraph) -> int:
    """How many dims a value has at most."""
    return max(len(kind.names) for kind in kernel_types(program).values())


@dataclass
class _Driver:
    """One search.

    Attributes:
        secured: Candidates that were verified before the search, or while it went on.
        known: What verification made of each plan that it has seen.
        cut: Whether the program was cut into segments, too.
        refused: Whether verification left too little of what one space has.
        written: The program in normal form, before what is proved of it is used.
        forms: The program in normal form, and its other forms.
        spaces: What was found of each form as one space.
        library: µs of the program by library kernels.
        proof: What is proved of programs of several kernels.
        waiting: µs that plans of several kernels take beside the roofline, at least.
        gathers: Those that are inputs of the forms, in the order of the forms.
        flattened: How the forms have fewer dims, if they have.
        apart: Whether the forms keep the dims of the program.
        listed: Whether all structures of one kernel are wanted, and not the best.
    """

    program: KernelGraph
    segments: SegmentSearch
    k: int
    seed: int
    max_kernels: int | None
    verify: bool
    progress: Progress
    proof: Proof | None = None
    secured: list[Candidate] = field(default_factory=list[Candidate])
    known: dict[KernelGraph, Candidate | None] = field(
        default_factory=dict[KernelGraph, Candidate | None]
    )
    cut: bool = False
    refused: bool = False
    written: KernelGraph | None = None
    forms: list[KernelGraph] = field(default_factory=list[KernelGraph])
    spaces: dict[KernelGraph, MultiKernel] = field(
        default_factory=dict[KernelGraph, "MultiKernel"]
    )
    library: float = math.inf
    waiting: float = 0.0
    gathers: list[GathersGiven] = field(default_factory=list[GathersGiven])
    flattened: FlatForm | None = None
    apart: bool = False
    listed: bool = False

    @property
    def budget(self) -> SearchBudget:
        return self.segments.budget

    @property
    def ledger(self) -> Ledger:
        return self.segments.ledger

    @cached_property
    def quick(self) -> Quick:
        """What finds an answer soon."""
        return Quick(self.segments, self.budget.fused)

    def result(self, found: Sequence[Candidate]) -> SearchResult:
        """What was found."""
        return SearchResult(
            self.program,
            tuple(found),
            complete=self.segments.complete,
            seconds=time.monotonic() - self.budget.started,
            ledger=self.ledger,
            cut_short=self.budget.cut_short,
            proof=self.proof,
            interrupted=self.budget.interrupted,
        )

    # -- Plans ---------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        """μGraphs by estimate, best first; the last resort is the program itself.

        Those of the quick search among them, where it was needed: for a long program,
        or for one whose search did not come to its end.
        """
        asked = self.program
        with self.budget.step(self.budget.joined):
            # Plans without them are never looked at, be they faster.
            asked = REWRITES["stabilise"](asked)
        plans = [Plan.of(asked, self.segments.hardware)]
        self.library = plans[0].microseconds
        forms = self.forms
        with self.budget.step(self.budget.joined):
            opened = self._opened(rewritten(self.program, Use.NORMAL))
            forms.append(self._flat(opened))
        if forms:
            if _takes_long_to_verify(forms[0]):
                self._secure(forms[0])
            plans += self._secured_with_windows()
            with self.budget.step(self.budget.joined):
                self.written = forms[0]
                forms[0] = rewritten(forms[0], Use.PROVEN)
                self._search_forms(plans)
        if self.budget.cut_short and not self.budget.interrupted:
            self._hurry()
        plans += self._allowed(self.quick.plans)
        return self._ranked(plans)

    def _secured_with_windows(self) -> list[Plan]:
        """`_with_windows`, the best of them verified: that takes long.

        Where all are listed, each is when it is taken.
        """
        plans = self._with_windows()
        if self.listed:
            return plans
        best = min(filter(self._is_unseen, plans), key=_microseconds, default=None)
        if best is not None:
            self._try(best.graph, self.budget.secured, self.verified)
        return plans

    def _with_windows(self) -> list[Plan]:
        """Plans whose convolutions of inputs are products of windows, in kernels.

        A search of what they compute where windows are an input; blocks pick the
        elements in the end.
        """
        given = windows_given(rewritten(self.program, Use.NORMAL))
        if given is None or self.budget.late():
            return []
        segments = self.segments
        if convolutions_round():
            hardware = segments.hardware.rounding_products()
            segments = replace(segments, hardware=hardware)
        form = _Driver(
            given.program,
            segments,
            self.k,
            self.seed,
            self.max_kernels,
            self.verify,
            self.progress,
            apart=True,
        )
        found: list[Plan] = []
        with self.budget.step(self.budget.joined):
            found += sorted(form.unverified(), key=_microseconds)
        made = (self.segments.picking(p.graph, given) for p in _one_of_each(found))
        plans = list(islice((p for p in made if p is not None), 2 * self.k))
        return [p for p in plans if self.segments.constraints.admits(p.graph)]

    def unverified(self) -> list[Plan]:
        """What the search of the program as it is finds."""
        plans = [Plan.of(self.program, self.segments.hardware)]
        self.library = plans[0].microseconds
        self.written = rewritten(self.program, Use.NORMAL)
        self.forms.append(rewritten(self.written, Use.PROVEN))
        self._search_forms(plans)
        return plans

    def _ranked(self, plans: list[Plan]) -> list[Plan]:
        """The plans, best first, without iterations and masks that do nothing."""
        for row in ("skip-tiles", "settle-masks") if self.program.indices else ():
            plans = [self._varied(plan, row) for plan in plans]
        segments = self.segments
        for made in (
            segments.sized_for_bounds,
            segments.sized_for_gathers,
            segments.with_gathers,
            segments.with_sums,
            segments.with_windows,
            segments.with_joined,
            segments.with_channels_last,
        ):
            plans = sorted(plans, key=_microseconds)
            plans += self._others(made, plans)
        plans = sorted(plans, key=_microseconds)
        return sorted(plans + self._in_pairs(plans), key=_microseconds)

    def _in_pairs(self, plans: Sequence[Plan]) -> list[Plan]:
        """The best structures that can take bytes in pairs, made to do so.

        Of all plans: what is split to have more blocks does better without, in pairs.
        None where constraints may name the dims that become several.
        """
        formats = {i.type.dtype for i in self.program.inputs}
        words = i32 in formats
        packed = words or any(dtype.itemsize == 1 for dtype in formats)
        if not packed or self.segments.constraints != Constraints():
            return []
        found = self._made_in_pairs(plans)
        if not found and self.forms and not is_one_kernel(plans[0].graph):
            # What is split between blocks may have no loop whose rows could be parts.
            with self.budget.step(self.budget.joined):
                whole = self._allowed(self._whole(Cutter(self.forms[-1])))
                whole = sorted(whole, key=_microseconds)
                found = self._made_in_pairs(whole)
                if words:
                    # Those of 32 bits are taken apart as they are.
                    found += whole[:MOST_IN_PAIRS]
        return found

    def _made_in_pairs(self, plans: Sequence[Plan]) -> list[Plan]:
        made = (self.segments.with_pairs(p.graph) for p in _one_of_each(plans))
        return list(islice((p for p in made if p is not None), MOST_IN_PAIRS))

    def _others(
        self, of: Callable[[KernelGraph], Plan | None], plans: Sequence[Plan]
    ) -> list[Plan]:
        """What is made of the best plans, beside them: estimates are but guesses.

        Of plans that are about as good as the best the one with fewest blocks is among
        them, for of two kernels in one more can be made than of each.
        """
        near = sum(p.microseconds <= AS_GOOD * plans[0].microseconds for p in plans)
        few = min(range(near), key=lambda at: len(plans[at].graph.blocks), default=0)
        made = (of(p.graph) for at, p in enumerate(plans) if at < self.k or at == few)
        found = [plan for plan in made if plan is not None]
        return [p for p in found if self.segments.constraints.admits(p.graph)]

    def _varied(self, plan: Plan, row: str) -> Plan:
        """A plan, or what a rewrite makes of it if that is estimated to take no more.

        What only numbers blocks in another order costs the same.
        """
        graph = REWRITES[row](plan.graph)
        if graph == plan.graph:
            return plan
        other = Plan.of(graph, self.segments.hardware)
        return other if other.microseconds <= plan.microseconds * ROUND_UP else plan

    def _search_forms(self, plans: list[Plan]) -> None:
        """Append the plans of the whole search of a form, and of others made of it."""
        for row in rewrites(Use.PROGRAM):
            self.forms.append(self._opened(row(self.forms[-1])))
        self._search(plans)

    def _search(self, plans: list[Plan]) -> None:
        """Append the plans of the whole search.

        Each form as one space, until one covers all that there is; else as one kernel,
        and cut.  What has no products is mostly one kernel, and searched so first.
        """
        if any(n.op.kind is Kind.CONTRACTION for n in self.forms[0].applies):
            # In the later forms fewer views part the program.
            for form in dict.fromkeys(reversed(self.forms)):
                if self._one_space(form, plans):
                    return self._complete(form, plans)
                self._secure_best(plans)
        return self._search_kernels(plans)

    def _complete(self, form: KernelGraph, plans: list[Plan]) -> None:
        """Append plans of kinds that one space, which covers a form, does not have.

        These are one kernel in which sums are multiplied out, and products that are all
        left to library kernels, of which there may be more than a space of few kernels
        has.
        """
        if self.listed:
            plans += self._allowed(self._whole(Cutter(form)))
        elif (other := REWRITES["multiply-out"](form)) != form:
            plans += self._allowed(self._space(other, 1).plans)
        self._leave_products(form, plans)

    def _leave_products(self, form: KernelGraph, plans: list[Plan]) -> None:
        """Append the best chain that does, if the space of a form has no such plan."""
        if not any(leaves_products(p.graph) for p in self.spaces[form].plans):
            for chains in self._chains(form):
                some = chains.cheapest(products=False)[:1]
                plans += self._from_chains(chains.cutter, some)

    def _search_kernels(self, plans: list[Plan]) -> None:
        """Append the plans as one kernel, and as several where that is worth it."""
        self._secure_best(plans)
        whole: list[Plan] = []
        for form in dict.fromkeys(self.forms[1:]):
            whole += self._allowed(self._whole(Cutter(form)))
        plans += whole
        if whole and not any(is_one_kernel(p.graph) for p in whole):
            self.waiting = self._waiting(self.forms[-1])
        if self._worth_cutting([p.microseconds for p in whole]):
            self._search_cut(plans)

    def _search_cut(self, plans: list[Plan]) -> None:
        """Append the plans of several kernels."""
        self.cut = True
        for form in dict.fromkeys(self.forms):
            covered = self._one_space(form, plans)
            if form in self.spaces:
                found = self.spaces[form].plans
                plans += self._allowed(self.segments.split_apart(found))
            if covered and not self.refused:
                self._leave_products(form, plans)
            else:
                self._cut(form, plans)

    def missed(self, found: Sequence[Candidate]) -> bool:
        """Whether what seemed good enough to end the search could not be verified."""
        self.budget.now = self.budget.found
        kernels = sorted(c.cost.microseconds for c in found if c.mugraph.blocks)
        ready = len(self.forms) > 1 and not self.cut
        covered = any(map(self._covered, self.spaces))
        if not ready or self.budget.late():
            return False
        if covered and 2 * len(kernels) >= self.k:
            return False
        return self._worth_cutting(kernels)

    def cut_as_well(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans, and those of several kernels, best first."""
        more, self.refused = list(plans), True
        # Those of one space are searched for once more: the best were of one kind.
        self.spaces.clear()
        with self.budget.step(self.budget.joined):
            self._search_kernels(more)
            if not self.cut:
                self._search_cut(more)
        return self._ranked(more)

    def needs_its_maxima(self, found: Sequence[Candidate]) -> bool:
        """Whether no kernel with a shift in place of a maximum is of use.

        exp((x - max) / 3) is accurate where exp(x / 3 - max') is not.
        """
        self.budget.now = self.budget.found
        replaced = bool(self.forms) and self.written not in (None, self.forms[0])
        useful = bool(found) and bool(found[0].mugraph.blocks)
        return replaced and not useful and not self.budget.late()

    def with_its_maxima(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans, and those of the program with its own maxima, best first."""
        more = list(plans)
        if self.written is not None:
            self.forms = [self.written]
            with self.budget.step(self.budget.joined):
                self._search_forms(more)
        return self._ranked(more)

    def _secure(self, program: KernelGraph) -> None:
        """Have an answer to a long program before its search, and verify it.

        Verifying what the search finds will take about as long, so what is not verified
        by when plans are found has no better one.  What cannot be right in part has all
        the time.
        """
        self.quick.fuse(program, until=self.budget.secured)
        started = time.monotonic()
        for plan in self._allowed(self.quick.plans):
            in_parts = self.verify and has_parts(plan.graph, self.program)
            end = self.budget.found if in_parts else self.budget.over
            self._try(plan.graph, end, self.verified)
            if not self.secured and in_parts:
                self._try(plan.graph, self.budget.over, self._as_far_as_verified)
            if self.secured:
                self.budget.keep(time.monotonic() - started)
                break

    def _secure_best(self, plans: Sequence[Plan]) -> None:
        """Have the best of some plans verified, where there may be no time for it.

        A search that has not ended by now may take all that is left.
        """
        if self.secured or not self.budget.past(BEFORE_SECURED):
            return
        best = min(filter(self._is_unseen, plans), key=_microseconds, default=None)
        if best is None and not self.quick.plans:
            with self.budget.step(self.budget.secured):
                self._fuse()
            quick = self._allowed(self.quick.plans)
            best = min(filter(self._is_unseen, quick), key=_microseconds, default=None)
        if best is not None:
            self._try(best.graph, self.budget.verified, self.verified)

    def _is_unseen(self, plan: Plan) -> bool:
        """Whether a plan is an answer that was not verified: it beats the libraries."""
        return plan.microseconds < self.library and plan.graph not in self.known

    def _try(
        self,
        graph: KernelGraph,
        until: Budget,
        verified: Callable[[KernelGraph], Candidate | None],
    ) -> None:
        """Secure what comes of a μGraph in time."""
        with self.budget.step(until):
            candidate = verified(graph)
            if candidate is not None:
                self.secured.append(candidate)

    def _as_far_as_verified(self, graph: KernelGraph) -> Candidate | None:
        """What is known to be right of a μGraph, and the rest as the program has it."""
        from mirage_dsl.verify.verifier import as_far_as_verified

        for form in self._forms(graph):
            part = as_far_as_verified(form, self.program, seed=self.seed)
            candidate = None if part is None else self.verified(part)
            if candidate is not None:
                return candidate
        return None

    def _hurry(self) -> None:
        """Find what can be found quickly, where time is up.

        What is left is for verifying, where there is an answer.
        """
        if not self.quick.plans:
            self._fuse()
        if not self.secured:
            self._fuse(products=True)

    def _fuse(self, *, products: bool = False) -> None:
        """The quick search of all forms."""
        for form in dict.fromkeys(self.forms):
            self.quick.fuse(form, products=products)

    def _cut(self, form: KernelGraph, plans: list[Plan]) -> None:
        """Append the plans of one form of the program, cut into segments.

        Also the best of those that leave products to library kernels: a tuner sees that
        program, whatever its estimate.
        """
        chains, enough = self._chains(form), self._enough(plans)
        self.segments.ahead(item for c in chains for item in c.wanted(enough))
        for own in chains:
            enough = self._enough(plans)
            plans += self._from_chains(own.cutter, own.cheapest(products=False)[:1])
            self._secure_best(plans)
            plans += self._from_chains(own.cutter, own.cheapest(enough))

    def _chains(self, form: KernelGraph) -> list[Chains]:
        """The ways to order a form, which share what is known of segments."""
        again = computed_again(form) or form
        cutters = (Cutter(form), Cutter(again, late=True))
        known = PartsOf()
        return [
            Chains(c, self.segments, self.k, self.progress, known, whole=at == 0)
            for at, c in enumerate({c.order: c for c in cutters}.values())
        ]

    def _from_chains(self, cutter: Cutter, found: Sequence[Parts]) -> list[Plan]:
        """The plans of some chains."""
        joined = (self._joined(cutter, parts) for parts in found)
        return self._allowed([p for p in joined if p is not None])

    def _enough(self, plans: list[Plan]) -> float:
        """The estimate in µs from which on one more plan makes no difference.

        There are as many that are better, and some to replace those that verification
        refuses, or they are hopeless, as far as estimates go.
        """
        ranked = sorted(plans, key=_microseconds)
        if self.refused:
            # Plans that are better say nothing of those that are accurate.
            return HOPELESS * ranked[0].microseconds
        if any(len(found.plans) == self.k for found in self.spaces.values()):
            # There are enough of them: more have to be better than all.
            return ranked[0].microseconds
        most = HOPELESS * ranked[0].microseconds
        seen: set[str] = set()
        for plan in ranked:
            if plan.microseconds > most:
                break
            seen.add(_structure(plan))
            if len(seen) == SPARE * self.k:
                return plan.microseconds
        return most

    def _opened(self, form: KernelGraph) -> KernelGraph:
        """A form of the program in which gathers that may come first are inputs."""
        given = with_gathers_given(form)
        if given is None:
            return form
        self.gathers.append(given)
        return given.program

    def _flat(self, form: KernelGraph) -> KernelGraph:
        """A form in which dims that always stand side by side are one.

        As it is where gathers are inputs, or constraints name dims.
        """
        free = self.segments.constraints == Constraints() and not self.apart
        if free and not self.gathers:
            self.flattened = flattened(form)
        return form if self.flattened is None else self.flattened.program

    def _closed(self, plan: Plan) -> Plan:
        """A plan of a form as one of the program; blocks that read gathers do them."""
        graph = plan.graph
        for given in reversed(self.gathers):
            graph = given.restored(graph)
        if graph != plan.graph:
            plan = Plan.of(graph, self.segments.hardware)
        if self.flattened is not None:
            plan = Plan(plan.microseconds, self.flattened.restored(graph))
        gathers = any(n.op.kind is Kind.GATHER for n in graph.applies)
        return self._varied(plan, "fuse-gathers") if gathers else plan

    def _allowed(self, plans: list[Plan]) -> list[Plan]:
        plans = list(map(self._closed, plans))
        kept = [p for p in plans if self.segments.constraints.admits(p.graph)]
        self.ledger.cut["constraints"] += len(plans) - len(kept)
        return kept

    def _whole(self, cutter: Cutter) -> list[Plan]:
        """The plans of all operators as one kernel."""
        self.progress("search", 0, 1, None)
        if not cutter.order or any(a.library for a in cutter.groups):
            return []
        if len(cutter.order) > MOST_OPERATORS and len(cutter.groups) > MOST_GROUPS:
            self.segments.exhausted = False
            self.ledger.note(
                f"one kernel: {len(cutter.order)} operators with {len(cutter.groups)} "
                "places to cut are not searched as one; the program is cut"
            )
            return []
        segment = cutter.segment(cutter.order)
        plans = self.segments.plans(segment)
        self.progress("search", 1, 1, plans[0].microseconds if plans else None)
        return [Plan(p.microseconds, cutter.join([p.graph])) for p in plans]

    def _one_space(self, program: KernelGraph, plans: list[Plan]) -> bool:
        """Append the plans of a form as one space, once; whether these are all."""
        if self.max_kernels == 1:
            return False
        if program not in self.spaces:
            found = self._space(program, self.max_kernels)
            self.proof = both_proved(self.proof, found.proof)
            self.spaces[program] = found
            plans += self._allowed(found.plans)
        return self._covered(program)

    def _space(self, program: KernelGraph, max_kernels: int | None) -> MultiKernel:
        """What there is of a form as one space of so many kernels."""
        return one_space(
            program,
            self.segments,
            max_kernels=max_kernels,
            keep=MOST_SEVERAL if self.refused else self.k,
            seed=self.seed,
            progress=self.progress,
            enough=GOOD_ENOUGH * roofline(self.program, self.segments.hardware),
        )

    def _covered(self, program: KernelGraph) -> bool:
        """Whether a form was searched as one space that leaves nothing else to find."""
        known = self.spaces.get(program)
        constraints = self.segments.constraints
        return known is not None and covers(known, program, constraints)

    def _worth_cutting(self, whole: Sequence[float]) -> bool:
        """Whether to cut a program that one kernel computes in so many µs."""
        if not whole:
            return True
        if self.budget.late():
            return False
        if self.max_kernels == 1 and len(launched(self.program)) == 1:
            # One call of a library's is what a kernel is compared with.
            return False
        enough = self.library
        if self.max_kernels != 1:
            least = roofline(self.program, self.segments.hardware) + self.waiting
            enough = min(enough, GOOD_ENOUGH * least)
        return whole[0] > enough

    def _waiting(self, form: KernelGraph) -> float:
        """µs of reading long rows for their means and squares, before they are used.

        A kernel each, where none holds a row; what was read before may be in L2.
        """
        hardware, types = self.segments.hardware, kernel_types(form)
        extents = derived_extents(form)
        kernel = hardware.launch + hardware.ramp - hardware.dependent
        total = 0.0
        for names in read_in_turn(form):
            moved = sum(tensor_bytes(types[n], extents) for n in sorted(names))
            fits = moved < hardware.l2_bytes
            rate = hardware.l2_rate if fits else hardware.dram_rate
            total += kernel + moved / rate
        return 1e6 * total

    def _joined(self, cutter: Cutter, parts: Sequence[Plan]) -> Plan | None:
        graph = cutter.join([p.graph for p in parts])
        if len(parts) == 1:
            return Plan(parts[0].microseconds, graph)
        return self.segments.sizer.joined(graph)

    # -- Candidates ----------------------------------------------------------------

    def candidates(self, plans: list[Plan]) -> list[Candidate]:
        """The k best plans of different structure that are equal to the program.

        Of those that differ only in where constants multiply, the best that is
        accurate.
        """
        self.budget.now = self.budget.over
        kept: list[Candidate] = []
        seen: set[str] = set()
        right: set[str] = set()
        for at, plan in enumerate(with_every_kind(plans, self.k)):
            if len(kept) == self.k or self._ends(kept):
                self.ledger.cut["cost rank"] += len(plans) - at
                break
            structure, kind = _structure(plan), hash_but_for_factors(plan.graph)
            if structure in seen or kind in right:
                self.ledger.cut["duplicate"] += 1
                continue
            seen.add(structure)
            best = kept[0].cost.microseconds if kept else None
            with self.budget.step():
                self.progress("verify", len(kept), self.k, best)
                candidate = self.verified(plan.graph)
                if candidate is not None:
                    kept.append(candidate)
                    right.add(kind)
                    self.budget.now = self.budget.verified
        if not any(c.mugraph.blocks for c in kept):
            # What was secured may be a part of a plan, and so no plan of these.
            kept += [c for c in self.secured if c not in kept]
        return best_first(kept or [self._as_written()])[: self.k]

    def _ends(self, kept: Sequence[Candidate]) -> bool:
        """Whether to verify no more; one candidate there is even after Ctrl-C."""
        return bool(kept or not self.budget.interrupted) and self.budget.late()

    def _as_written(self) -> Candidate:
        """The program as a candidate for itself."""
        certificate = identity_of(self.program, self.seed) if self.verify else None
        cost = estimate(self.program, self.segments.hardware)
        return Candidate(self.program, cost, certificate)

    def verified(self, graph: KernelGraph) -> Candidate | None:
        """`_candidate`, once for each μGraph."""
        if graph not in self.known:
            self.known[graph] = self._candidate(graph)
        return self.known[graph]

    def _candidate(self, graph: KernelGraph) -> Candidate | None:
        """The stabilised form if that is right, else the plain one if that is.

        Right means equal to the program and about as accurate in floating point.  What
        is only equal is tried without casts that it can do without.
        """
        forms = deque(self._forms(graph))
        while forms:
            form = forms.popleft()
            cost = estimate(form, self.segments.hardware)
            if form == self.program:
                return self._as_written()
            if not self.verify:
                return Candidate(form, cost, None)
            certificate = certified(
                *(form, self.program, self.segments.memo, self.seed),
                self.segments.executor,
            )
            self.ledger.found["verified"] += 1
            if certificate.ok:
                return Candidate(form, cost, certificate)
            reason = "stability" if certificate.equivalent else "verification"
            self.ledger.cut[reason] += 1
            if certificate.equivalent:
                forms.extend(self._sized(without_narrow_vectors(form)))
        return None

    def _forms(self, graph: KernelGraph) -> list[KernelGraph]:
        if not graph.blocks:
            return [graph]
        safe = stabilise(graph)
        return [graph] if safe == graph else [*self._sized(safe), graph]

    def _sized(self, form: KernelGraph | None) -> list[KernelGraph]:
        """A form of a candidate at its best sizes; nothing if there is none."""
        resized = None if form is None else self.segments.sizer.sized(form)
        return [] if resized is None else [resized.graph]


def finished(
    result: SearchResult, hardware: Hardware, budget: Budget = UNLIMITED
) -> SearchResult:
    """The result with its candidates ordered and launched as is best.

    Neither changes what is computed, so nothing is verified anew.  Every kernel but the
    first may start before the one ahead of it has ended, where the GPU can do that, and
    waits for its data itself.

    Args:
        result: What a search found.
        hardware: The GPU.
        budget: Candidates that it leaves no time for stay as they are; the cheapest
            ones are the first.
    """
    candidates = list(result.candidates)
    with suppress(OutOfTimeError), until(budget.end):
        for at, candidate in enumerate(result.candidates):
            candidates[at] = _finished(candidate, hardware)
    return replace(result, candidates=tuple(best_first(candidates)))


def _finished(candidate: Candidate, hardware: Hardware) -> Candidate:
    graph = in_good_order(candidate.mugraph, hardware)
    if hardware.dependent > 0:
        graph = launched_early(graph)
    if graph == candidate.mugraph:
        return candidate
    return replace(candidate, mugraph=graph, cost=estimate(graph, hardware))
