"""The search from a program to verified μGraphs: the whole package in turn.

    expand -> cut into segments -> for each segment: structures -> casts -> sizes
           -> join -> stabilise -> verify against the original program -> k best

The whole program is one segment first.  Only where one kernel cannot hold it, or is
far from what the hardware could do, are programs of several kernels searched, and
chains of segments (`search.chains`).  The program by library
kernels is always a candidate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from mirage_dsl.errors import SearchError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.stabilise import stabilise
from mirage_dsl.search.certified import certified, identity_of
from mirage_dsl.search.chains import MOST_ATOMS, Chains, Found
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.footprint import tensor_bytes
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.kinds import with_every_kind
from mirage_dsl.search.ledger import Ledger
from mirage_dsl.search.memory import Remembering
from mirage_dsl.search.partition import Cutter
from mirage_dsl.search.result import Candidate, Proof, SearchResult
from mirage_dsl.search.segments import HOPELESS, Plan, library_plan
from mirage_dsl.search.several import MOST_OPERATORS, both, several
from mirage_dsl.search.sink import sink_views
from mirage_dsl.search.structural import Progress, silent, structural_search
from mirage_dsl.verify.shifts import maxima_as_shifts

GOOD_ENOUGH = 1.5
"""One kernel within this factor of the roofline is not cut."""

TO_FIND = 0.85
"""Share of the budget for finding plans; the rest is left to verify them."""

SPARE = 2
"""Plans at hand for each one wanted, where that decides what is searched no more."""


def search(
    program: KernelGraph,
    *,
    k: int = 8,
    budget_seconds: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    max_kernels: int | None = 1,
    constraints: Constraints | None = None,
    hardware: Hardware = H100,
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
        k: How many μGraphs to return at most, all of different structure.
        budget_seconds: Stop searching after so long and return the best so far; the
            first candidate is verified all the same.
        seed: Of all random choices.
        threads: For the structural search; None for one.
        max_kernels: 1 keeps a program in one kernel if that beats library kernels; more
            let the estimate decide where to cut, and whether to split a loop over the
            grid; None without a limit.
        constraints: Restrictions on grids, maps, loops and blocks.
        hardware: The GPU to estimate for.
        verify: Whether to verify; without it candidates carry no certificates.
        progress: Told of progress.
        checkpoint: Keeps what was found so far, and knows that of before.
        executor: Where the segments of a program that is cut are searched.

    Raises:
        SearchError: An extent is unknown, or the constraints are contradictory.
    """
    _require_extents(program)
    started = time.monotonic()
    found_by = _after(started, budget_seconds, TO_FIND)
    segments = Remembering(
        structural_search(seed, threads, found_by),
        hardware,
        constraints or Constraints(),
        deadline=found_by,
        split=max_kernels != 1,
        checkpoint=checkpoint,
        executor=executor,
        seed=seed,
    )
    driver = _Driver(program, segments, k, seed, max_kernels, progress or silent)
    plans = driver.plans()
    segments.deadline = _after(started, budget_seconds)
    return driver.result(driver.candidates(plans, verify=verify), started)


def _after(started: float, seconds: float | None, share: float = 1.0) -> float | None:
    """When a share of the time is over; None without a limit."""
    return None if seconds is None else started + share * seconds


def _require_extents(program: KernelGraph) -> None:
    missing = [n for n, e in program.extents if e is None]
    if missing:
        raise SearchError(
            f"{program.name}: the extents of {', '.join(missing)} are symbolic; the "
            "search prices concrete sizes, so search at a typical one"
        )


@dataclass
class _Driver:
    program: KernelGraph
    segments: Remembering
    k: int
    seed: int
    max_kernels: int | None
    progress: Progress
    proof: Proof | None = None

    @property
    def ledger(self) -> Ledger:
        return self.segments.ledger

    def result(self, found: Sequence[Candidate], started: float) -> SearchResult:
        """What was found since a reading of `time.monotonic()`."""
        return SearchResult(
            self.program,
            tuple(found),
            complete=self.segments.complete,
            seconds=time.monotonic() - started,
            ledger=self.ledger,
            cut_short=self.segments.cut_short,
            proof=self.proof,
        )

    # -- Plans ---------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        """μGraphs by estimate, best first; the last resort is the program itself."""
        program = maxima_as_shifts(expand(self.program))
        sunk = sink_views(program)
        library = library_plan(self.program, self.segments.hardware)
        plans = [library]
        with self.segments.interruptible():
            whole = self._allowed(self._whole(Cutter(sunk)))
            plans += whole
            if self._worth_cutting(whole, library):
                for form in dict.fromkeys((program, sunk)):
                    plans += self._allowed(self._several(form))
                    self._cut(form, plans)
        return sorted(plans, key=lambda p: p.microseconds)

    def _cut(self, form: KernelGraph, plans: list[Plan]) -> None:
        """Append the plans of one form of the program, cut into segments."""
        cutters = (Cutter(form), Cutter(form, late=True))
        found = Found()
        chains = [
            Chains(c, self.segments, self.k, self.progress, found)
            for c in {c.order: c for c in cutters}.values()
        ]
        enough = self._enough(plans)
        self.segments.ahead(item for c in chains for item in c.wanted(enough))
        for own in chains:
            some = own.cheapest(products=False)[:1] + own.cheapest(self._enough(plans))
            plans += self._allowed([self._joined(own.cutter, parts) for parts in some])

    def _enough(self, plans: list[Plan]) -> float:
        """The estimate in µs from which on one more plan makes no difference.

        There are as many that are better, and some to replace those that verification
        refuses, or they are hopeless, as far as estimates go.
        """
        ranked = sorted(plans, key=lambda p: p.microseconds)
        most = HOPELESS * ranked[0].microseconds
        seen: set[str] = set()
        for plan in ranked:
            if plan.microseconds > most:
                break
            seen.add(canonical_hash(plan.graph, sizes=False))
            if len(seen) == SPARE * self.k:
                return plan.microseconds
        return most

    def _allowed(self, plans: list[Plan]) -> list[Plan]:
        kept = [p for p in plans if self.segments.constraints.admits(p.graph)]
        self.ledger.cut["constraints"] += len(plans) - len(kept)
        return kept

    def _whole(self, cutter: Cutter) -> list[Plan]:
        self.progress("search", 0, 1, None)
        if not cutter.order or any(a.library for a in cutter.atoms):
            return []
        if len(cutter.order) > MOST_OPERATORS and len(cutter.atoms) > MOST_ATOMS:
            self.segments.complete = False
            self.ledger.note(
                f"one kernel: {len(cutter.order)} operators with {len(cutter.atoms)} "
                "places to cut are not searched as one; the program is cut"
            )
            return []
        plans = self.segments.plans(cutter.segment(cutter.order))
        joined = [self._joined(cutter, (p,)) for p in plans]
        self.progress("search", 1, 1, plans[0].microseconds if plans else None)
        return joined

    def _several(self, program: KernelGraph) -> list[Plan]:
        """Programs of several kernels, searched as one space."""
        plans, proof = several(
            program,
            self.segments,
            max_kernels=self.max_kernels,
            keep=self.k,
            seed=self.seed,
            progress=self.progress,
        )
        self.proof = both(self.proof, proof)
        return plans

    def _worth_cutting(self, whole: list[Plan], library: Plan) -> bool:
        if not whole:
            return True
        if self.segments.late():
            return False
        enough = library.microseconds
        if self.max_kernels != 1:
            enough = min(enough, GOOD_ENOUGH * self._roofline())
        return whole[0].microseconds > enough

    def _roofline(self) -> float:
        """µs of reading the inputs and writing the outputs once, with one launch."""
        types = kernel_types(self.program)
        extents = derived_extents(self.program, self.program.extent_of)
        names = {i.name for i in self.program.inputs}
        names |= {r.value for r in self.program.returns}
        hardware = self.segments.hardware
        moved = sum(tensor_bytes(types[n], extents) for n in sorted(names))
        seconds = moved / hardware.dram_rate + hardware.launch + hardware.ramp
        return 1e6 * seconds

    def _joined(self, cutter: Cutter, parts: Sequence[Plan]) -> Plan:
        graph = cutter.join([p.graph for p in parts])
        if len(parts) == 1:
            return Plan(parts[0].microseconds, graph)
        return Plan(estimate(graph, self.segments.hardware).microseconds, graph)

    # -- Candidates ----------------------------------------------------------------

    def candidates(self, plans: list[Plan], *, verify: bool) -> list[Candidate]:
        """The k best plans of different structure that are equal to the program."""
        kept: list[Candidate] = []
        seen: set[str] = set()
        for at, plan in enumerate(with_every_kind(plans, self.k)):
            if len(kept) == self.k or (kept and self.segments.late()):
                self.ledger.cut["cost rank"] += len(plans) - at
                break
            structure = canonical_hash(plan.graph, sizes=False)
            if structure in seen:
                self.ledger.cut["duplicate"] += 1
                continue
            seen.add(structure)
            best = kept[0].cost.microseconds if kept else None
            with self.segments.interruptible():
                self.progress("verify", len(kept), self.k, best)
                candidate = self._candidate(plan.graph, verify=verify)
                if candidate is not None:
                    kept.append(candidate)
        return sorted(kept, key=lambda c: c.cost.microseconds)

    def _candidate(self, graph: KernelGraph, *, verify: bool) -> Candidate | None:
        """The stabilised form if that is right, else the plain one if that is.

        Right means equal to the program and about as accurate in floating point.
        """
        for form in self._forms(graph):
            cost = estimate(form, self.segments.hardware)
            if not verify:
                return Candidate(form, cost, None)
            if form == self.program:
                return Candidate(form, cost, identity_of(form, self.seed))
            certificate = certified(form, self.program, self.segments, self.seed)
            self.ledger.found["verified"] += 1
            if certificate.ok:
                return Candidate(form, cost, certificate)
            reason = "stability" if certificate.equivalent else "verification"
            self.ledger.cut[reason] += 1
        return None

    def _forms(self, graph: KernelGraph) -> list[KernelGraph]:
        if not graph.blocks:
            return [graph]
        safe = stabilise(graph)
        if safe is None or safe == graph:
            return [graph]
        resized = self.segments.resized(safe)
        return [graph] if resized is None else [resized, graph]
