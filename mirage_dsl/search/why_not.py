"""Why a search did not find a given μGraph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mirage_dsl.errors import CheckError, UnsupportedError
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.expand import expand
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.stabilise import stabilise
from mirage_dsl.ir.strip import strip_shifts
from mirage_dsl.search.constraints import Constraints
from mirage_dsl.search.cost import Cost, estimate
from mirage_dsl.search.driver import search
from mirage_dsl.search.expansion import forms
from mirage_dsl.search.hardware import H100, Hardware
from mirage_dsl.search.membership import Membership
from mirage_dsl.search.outside import outside, with_program_names, without_casts
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.segments import one_kernel
from mirage_dsl.search.space import Configuration, Space, space_of
from mirage_dsl.verify.certificate import Certificate
from mirage_dsl.verify.shifts import maxima_as_shifts
from mirage_dsl.verify.verifier import verify

Verdict = Literal[
    "found",
    "not equivalent",
    "unstable",
    "outside the space",
    "excluded by the constraints",
    "pruned",
    "infeasible",
    "too expensive",
    "cut by the budget",
    "unexplained",
]

MOST_STRUCTURES = 256
"""Structures of the given configuration among which its rank is looked for."""


@dataclass(frozen=True)
class WhyNot:
    """What became of a given μGraph in a search.

    Attributes:
        verdict: In a word.
        reasons: In sentences.
        rank: Its place among the candidates, from 0, if it was found.
        microseconds: Its own estimate.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    rank: int | None = None
    microseconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {reason}" for reason in self.reasons)])


def why_not(
    mugraph: KernelGraph,
    program: KernelGraph,
    result: SearchResult | None = None,
    *,
    max_kernels: int | None = 1,
    constraints: Constraints | None = None,
    hardware: Hardware = H100,
    seed: int = 0,
) -> WhyNot:
    """Why a search of a program did not give a μGraph, or where it did.

    Args:
        mugraph: The μGraph, with sizes.
        program: The traced program.
        result: What the search found; it is searched where this is left out.
        max_kernels: As it was searched with.
        constraints: As it was searched with.
        hardware: As it was searched with.
        seed: As it was searched with.

    Raises:
        CheckError: The μGraph is not well formed.
    """
    check_or_raise(mugraph)
    limits = constraints or Constraints()
    if result is None:
        result = search(
            program,
            max_kernels=max_kernels,
            constraints=limits,
            hardware=hardware,
            seed=seed,
        )
    cost = estimate(mugraph, hardware)
    found = _found(mugraph, cost, result)
    if found is not None:
        return found
    certificate = verify(mugraph, program, seed=seed)
    if not certificate.equivalent:
        return _different(certificate)
    asked = maxima_as_shifts(expand(program))
    question = _Question(
        expand(mugraph), asked, result, cost, max_kernels, limits, seed
    )
    for verdict, reasons in question.answers():
        if reasons:
            return WhyNot(verdict, tuple(reasons), None, cost.microseconds)
    if certificate.stability is not None and not certificate.stability.ok:
        reason = certificate.stability.reason
        return WhyNot("unstable", (reason,), None, cost.microseconds)
    reason = "it is in the space as far as can be told here, and better than the k-th"
    return WhyNot("unexplained", (reason,), None, cost.microseconds)


def _found(mugraph: KernelGraph, cost: Cost, result: SearchResult) -> WhyNot | None:
    structure = canonical_hash(mugraph, sizes=False)
    for rank, candidate in enumerate(result):
        if canonical_hash(candidate.mugraph, sizes=False) != structure:
            continue
        own = candidate.cost.microseconds
        reasons = [f"candidate {rank} of {len(result)}, about {own:.1f} µs"]
        if canonical_hash(candidate.mugraph) != canonical_hash(mugraph):
            limits = _limits(cost)
            fit = f", but does not fit: {limits[0]}" if limits else ""
            reasons.append(
                "with other tiles, which the search prefers; with the given ones about "
                f"{cost.microseconds:.1f} µs{fit}"
            )
        return WhyNot("found", tuple(reasons), rank, cost.microseconds)
    return None


def _different(certificate: Certificate) -> WhyNot:
    shown = certificate.counterexample
    reasons = [certificate.reason, *([str(shown)] if shown else [])]
    return WhyNot("not equivalent", tuple(dict.fromkeys(reasons)))


def _limits(cost: Cost) -> list[str]:
    return [
        f"kernel {number} takes {part.limit}"
        for number, part in enumerate(cost.kernels, 1)
        if part.limit is not None
    ]


@dataclass(frozen=True)
class _Question:
    """One μGraph that is equivalent and was not found; both are expanded."""

    mugraph: KernelGraph
    program: KernelGraph
    result: SearchResult
    cost: Cost
    max_kernels: int | None
    constraints: Constraints
    seed: int

    def answers(self) -> Iterator[tuple[Verdict, list[str]]]:
        """Reasons by verdict, the first that has some decides."""
        named = with_program_names(self.mugraph, self.program)
        if named is None:
            yield "outside the space", ["its inputs are viewed in other ways"]
            return
        space = self._space()
        yield "outside the space", list(outside(named, space, self.max_kernels))
        yield "excluded by the constraints", self._excluded()
        if space is not None:
            yield "pruned", self._pruned(named)
        yield "infeasible", _limits(self.cost)
        yield "too expensive", self._expensive(named)
        if not self.result.complete:
            yield "cut by the budget", self._unfinished()

    def _unfinished(self) -> list[str]:
        result = self.result
        reasons = [f"the search ended after {result.seconds:.1f} s, not exhausted"]
        if result.proof is not None and not result.proof.optimal:
            reasons.append(str(result.proof))
        return reasons

    def _space(self) -> Space | None:
        """The space of the program as one kernel, if there is one."""
        try:
            return space_of(strip_shifts(self.program))
        except (UnsupportedError, CheckError):
            return None

    def _excluded(self) -> list[str]:
        if self.constraints.admits(self.mugraph):
            return []
        return ["its grid, maps, loop or threads are not among the allowed ones"]

    def _pruned(self, named: KernelGraph) -> list[str]:
        """Of one kernel only: several are searched by segments of their own.

        What one of the program's forms has is not pruned.
        """
        if len(named.blocks) != 1:
            return []
        strangers = [
            Membership(space_of(form.program), named.blocks[0]).stranger()
            for form in forms(strip_shifts(self.program))
        ]
        return [] if None in strangers else [s for s in strangers[:1] if s is not None]

    def _expensive(self, named: KernelGraph) -> list[str]:
        own, last = self.cost.microseconds, self.result.candidates[-1].cost.microseconds
        reasons: list[str] = []
        if own > last:
            reasons.append(
                f"estimated at {own:.1f} µs; the last of the {len(self.result)} "
                f"candidates at {last:.1f} µs, the best at "
                f"{self.result.best.cost.microseconds:.1f} µs"
            )
        if len(named.blocks) == 1:
            reasons += self._rank(named)
        return reasons

    def _rank(self, named: KernelGraph) -> list[str]:
        """Its place in its configuration, of which the search keeps a few."""
        from mirage_dsl.search.structures import structures

        block = named.blocks[0]
        loop = None if block.loop is None else block.loop.dim
        split = {frozenset(s.dim for s in axis) for axis in block.axes}

        def allow(c: Configuration) -> bool:
            return c.loop == loop and set(map(frozenset, c.axes)) == split

        found = structures(
            strip_shifts(self.program),
            per_configuration=MOST_STRUCTURES,
            allow=allow,
            seed=self.seed,
        )
        wanted = _bare_hash(named)
        for rank, structure in enumerate(found.structures):
            graph = one_kernel(self.program, structure.block)
            if wanted in (_bare_hash(graph), _bare_hash(stabilise(graph) or graph)):
                return [
                    f"in its configuration, {structure.configuration}, it is number "
                    f"{rank + 1} of {len(found.structures)} by the cost that "
                    "extraction adds up; the search keeps the first few of each"
                ]
        return []


def _bare_hash(graph: KernelGraph) -> str:
    """The structure without the casts, which only the sizing puts in."""
    nodes = [without_casts(n) if isinstance(n, BlockGraph) else n for n in graph.nodes]
    return canonical_hash(replace(graph, nodes=tuple(nodes)), sizes=False)
