"""The search from a program to verified μGraphs: the whole package in turn.

    expand -> cut into segments -> for each segment: structures -> casts -> sizes
           -> join -> stabilise -> verify against the original program -> k best

The whole program is one segment first.  Only where one kernel cannot hold it, or is
far from what the hardware could do, are runs of its atoms (`search.partition`) searched
too; dynamic programming picks the cheapest chain of segments.  The program by library
kernels is always a candidate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from mirage_dsl.errors import SearchError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.stabilise import stabilise
from mirage_dsl.search.certified import certified, identity_of
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import estimate
from mirage_dsl.search.footprint import tensor_bytes
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.kinds import with_every_kind
from mirage_dsl.search.ledger import Ledger
from mirage_dsl.search.memory import Remembering
from mirage_dsl.search.partition import Atom, Cutter
from mirage_dsl.search.result import Candidate, Proof, SearchResult
from mirage_dsl.search.segments import Plan, library_plan
from mirage_dsl.search.several import MOST_OPERATORS, both, several
from mirage_dsl.search.sink import sink_views
from mirage_dsl.search.structural import Progress, silent, structural_search

GOOD_ENOUGH = 1.5
"""One kernel within this factor of the roofline is not cut."""

MOST_ATOMS = 4
"""Atoms of the longest segment."""


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
    deadline = None if budget_seconds is None else started + budget_seconds
    segments = Remembering(
        structural_search(seed, threads, deadline, progress or silent),
        hardware,
        constraints or Constraints(),
        deadline=deadline,
        split=max_kernels != 1,
        checkpoint=checkpoint,
        executor=executor,
        seed=seed,
    )
    driver = _Driver(program, segments, k, seed, max_kernels, progress or silent)
    candidates = driver.candidates(driver.plans(), verify=verify)
    return SearchResult(
        program,
        tuple(candidates),
        complete=driver.segments.complete,
        seconds=time.monotonic() - started,
        ledger=driver.ledger,
        cut_short=driver.segments.cut_short,
        proof=driver.proof,
    )


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
    _found: dict[tuple[str, ...], list[tuple[Plan, ...]]] = field(
        default_factory=dict[tuple[str, ...], list[tuple[Plan, ...]]]
    )

    @property
    def ledger(self) -> Ledger:
        return self.segments.ledger

    # -- Plans ---------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        """μGraphs by estimate, best first; the last resort is the program itself."""
        program = expand(self.program)
        sunk = sink_views(program)
        library = library_plan(self.program, self.segments.hardware)
        plans: list[Plan] = []
        with self.segments.interruptible():
            plans += self._allowed(self._whole(Cutter(sunk)))
            if self._worth_cutting(plans, library):
                for form in dict.fromkeys((program, sunk)):
                    plans += self._allowed(self._several(form))
                    self._found.clear()
                    cutters = (Cutter(form), Cutter(form, late=True))
                    cutters = {c.order: c for c in cutters}.values()
                    self.segments.ahead(i for c in cutters for i in self._runs(c))
                    for cutter in cutters:
                        plans += self._allowed(self._chains(cutter))
                        plans += self._allowed(self._chains(cutter, products=False)[:1])
        return sorted([*plans, library], key=lambda p: p.microseconds)

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

    def _chains(self, cutter: Cutter, *, products: bool = True) -> list[Plan]:
        """The cheapest chains of segments, by dynamic programming over the atoms.

        Without `products` these are left to library kernels, which the estimate may
        wrong.
        """
        atoms = cutter.atoms
        best: list[list[tuple[float, tuple[Plan, ...]]]] = [[(0.0, ())]]
        for end in range(1, len(atoms) + 1):
            ways: list[tuple[float, tuple[Plan, ...]]] = []
            for start in range(max(0, end - MOST_ATOMS), end):
                run = atoms[start:end]
                if products or not any(a.is_product for a in run):
                    found = self._segment_plans(cutter, run)
                elif len(run) == 1:
                    found = [(self._library(cutter, run[0]),)]
                else:
                    continue
                for parts in found:
                    added = sum(p.microseconds for p in parts)
                    ways += [(cost + added, (*p, *parts)) for cost, p in best[start]]
            ways.sort(key=lambda w: (w[0], len(w[1])))
            best.append(ways[: self.k])
            known = ways[0][0] if ways and end == len(atoms) else None
            self.progress("cut", end, len(atoms), known)
        return [self._joined(cutter, parts) for _, parts in best[-1]]

    def _runs(self, cutter: Cutter) -> Iterator[tuple[KernelGraph, frozenset[str]]]:
        """The segments that the chains will ask for, and what of them is in L2."""
        atoms = cutter.atoms
        for end in range(1, len(atoms) + 1):
            for start in range(max(0, end - MOST_ATOMS), end):
                run = atoms[start:end]
                nodes = [n for a in run for n in a.nodes]
                fits = len(nodes) <= MOST_OPERATORS or len(run) == 1
                if fits and not any(a.library for a in run):
                    segment = cutter.segment(nodes)
                    yield segment, self._left_in_l2(segment)

    def _joined(self, cutter: Cutter, parts: Sequence[Plan]) -> Plan:
        graph = cutter.join([p.graph for p in parts])
        return Plan(estimate(graph, self.segments.hardware).microseconds, graph)

    def _segment_plans(
        self, cutter: Cutter, atoms: Sequence[Atom]
    ) -> list[tuple[Plan, ...]]:
        """Ways to compute successive atoms, as one segment."""
        nodes = [n for a in atoms for n in a.nodes]
        key = tuple(n.result for n in nodes)
        if key not in self._found:
            self._found[key] = self._search_segment(cutter, atoms, nodes)
        return self._found[key]

    def _search_segment(
        self, cutter: Cutter, atoms: Sequence[Atom], nodes: list[Apply]
    ) -> list[tuple[Plan, ...]]:
        single = len(atoms) == 1
        segment = cutter.segment(nodes)
        inside = self._left_in_l2(segment)
        plans: list[Plan] = []
        library = any(a.library for a in atoms)
        fits = len(nodes) <= MOST_OPERATORS or single
        if not library and fits and not self.segments.late():
            plans = self.segments.plans(segment, inside)[: self.k]
        ways = [(p,) for p in plans]
        if not single:
            return ways
        if not ways and len(nodes) > 1 and not self.segments.late():
            left, right = cutter.halves(atoms[0])
            firsts = self._segment_plans(cutter, (left,))
            seconds = self._segment_plans(cutter, (right,))
            ways = [(*a, *b) for a in firsts for b in seconds]
        ways.append((self._library(cutter, atoms[0]),))
        ways.sort(key=lambda w: sum(p.microseconds for p in w))
        return ways[: self.k]

    def _library(self, cutter: Cutter, atom: Atom) -> Plan:
        segment = cutter.segment(atom.nodes)
        inside = self._left_in_l2(segment)
        return library_plan(segment, self.segments.hardware, inside)

    def _left_in_l2(self, segment: KernelGraph) -> frozenset[str]:
        """Inputs of a segment that an earlier one makes, unless they are too large."""
        own = {i.name for i in self.program.inputs}
        extents = derived_extents(segment, segment.extent_of)
        most = self.segments.hardware.l2_bytes / 2
        return frozenset(
            i.name
            for i in segment.inputs
            if i.name not in own and tensor_bytes(i.type, extents) < most
        )

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
        resized = None if safe is None else self.segments.resized(safe)
        return [graph] if resized is None else [resized, graph]
