"""Verification: does a candidate compute the function of its program?

Both run over finite fields at small sizes, on random inputs, under random
interpretations of their functions.  The search decides nothing here: sizes, primes and
randomness are the verifier's own.  Numerical stability is a verdict apart.

The level that is printed is verified as well: a candidate's tile programs are made for
its own sizes as the backend makes them, so what changes their statements is as it is
printed.  What is a number in them stays a formula, so that trials evaluate them at
small, ragged sizes; lanes are as many as on a GPU.

Long graphs, and those that call libraries, are verified section by section
(`verify.sections`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import index
from typing import Any, SupportsIndex, TypeVar, get_args

from mirage_dsl.core.errors import MirageError, UnsupportedError, user_location
from mirage_dsl.core.work import seconds_left, spread, until
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import (
    drawn_of_few,
    index_outside,
    numbers_of_found,
    turn_elsewhere,
    turns_of,
)
from mirage_dsl.ir.analysis.launches import launches
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.evaluate import BlockEvaluator, Domain, Named, evaluate_numpy
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents, iterations, known_extents, piece_extent
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ops.definition import Kind, Operator, Term
from mirage_dsl.rewrite.loops import unproven
from mirage_dsl.rewrite.windows import convolutions, pools, with_windows
from mirage_dsl.tile.build import certain_of, programs
from mirage_dsl.tile.check import check_or_raise
from mirage_dsl.tile.evaluate import evaluate_tiles
from mirage_dsl.tile.program import Lane, TileProgram, pieces_of, walk
from mirage_dsl.verify.algebra import OrderModel
from mirage_dsl.verify.certificate import (
    Certificate,
    Counterexample,
    Method,
    Sampled,
    Sizes,
    Stability,
    Verdict,
)
from mirage_dsl.verify.constants import with_numbers_of
from mirage_dsl.verify.counts import counts_elsewhere
from mirage_dsl.verify.exact import verify_exact
from mirage_dsl.verify.fields import MOST_FIELDS, Depth, chains_for, graph_depth
from mirage_dsl.verify.reals import (
    domain_difference,
    find_counterexample,
    floats_agree,
    levels_agree,
)
from mirage_dsl.verify.sampled import Sampling, compare_samples
from mirage_dsl.verify.sections import Section, mended, sections_of
from mirage_dsl.verify.shifts import (
    computes_shifts,
    logarithmic_shifts,
    no_shift_matters,
)
from mirage_dsl.verify.sizes import (
    Shrunk,
    hides_by_data,
    interface_difference,
    made_of_positions,
    shrink,
)
from mirage_dsl.verify.stability import measure_stability
from mirage_dsl.verify.trials import (
    CANDIDATE,
    PROGRAM,
    Field,
    Outcome,
    Reading,
    Tally,
    fresh_sites,
    run_trials,
    settle_roots,
    sites,
)

# -- Tile programs stand in for block graphs -------------------------------------------

V = TypeVar("V")

_MOST = 4096
"""What symbolic dims that blocks hold whole are taken to be at most."""


def hold_to_rules(candidate: ir.KernelGraph) -> None:
    """Nothing, if a candidate's tile programs are well formed at its own sizes.

    Trials see what a program computes at small sizes.  They do not see a wait that is
    missing, two values in one place, or a mask that the true extents need.

    Raises:
        CheckError: A rule of the level is broken.
    """
    try:
        found = programs(candidate)
    except UnsupportedError:
        return
    for program, launch in zip(found, launches(candidate), strict=True):
        check_or_raise(program, launch.made)


def tile_level(
    candidate: ir.KernelGraph, small: ir.KernelGraph
) -> BlockEvaluator | None:
    """What evaluates a candidate's blocks at small sizes, by its tile programs.

    None where there are none: what the backend cannot express is not run either.

    Args:
        candidate: The candidate.
        small: The same at the sizes of a trial.
    """
    candidate = with_numbers_of(candidate, small)
    most = {n: _MOST for n, e in candidate.extents if e is None}
    try:
        found = programs(candidate, sized=False, most=most, noted=False)
        pairs = zip(found, small.blocks, strict=True)
        held = all(holds_at(p, b, small.extent_of) for p, b in pairs)
        if not held or certain_of(candidate) != certain_of(small):
            found = programs(small, noted=False)
    except UnsupportedError:
        return None
    blocks = zip(candidate.blocks, found, strict=True)
    return evaluator_of({b.results: p for b, p in blocks})


def holds_at(
    program: TileProgram, block: ir.BlockGraph, extents: Mapping[str, int | None]
) -> bool:
    """Whether what has one lane in a program has one at the sizes of a block too.

    Splits may have: any tile serves, also one of a single element.  Not so where the
    number of parts is an extent of what is stored.  What takes lanes of a dim one by
    one holds where there are as many.
    """
    apart = {s.along.name for s, _ in walk(program.body) if isinstance(s, Lane)}
    if any(extents.get(n) != program.extents[n] for n in apart):
        return False
    stored = {d.name for s in block.stores for axis in s.axes for d in axis}
    if any(ir.partial_dim(d.name) in stored for d in program.units if d.grid):
        return False
    sized = replace(_at(program, block), extents={**program.extents, **extents})
    pieces = pieces_of(sized)
    return all(pieces[d].unit for d in program.units)


def evaluator_of(
    tile_programs: Mapping[tuple[str, ...], TileProgram],
) -> BlockEvaluator:
    """What evaluates blocks by the tile programs of those with the same results."""

    def evaluate(
        block: ir.BlockGraph,
        outer: Mapping[str, Named[V]],
        extents: Mapping[str, int],
        domain: Domain[V],
    ) -> dict[str, Named[V]]:
        program = _at(tile_programs[block.results], block)
        return evaluate_tiles(program, outer, extents, domain)

    return evaluate


def _at(program: TileProgram, block: ir.BlockGraph) -> TileProgram:
    """The program with the tiles of a block, but 1 where it knows of one lane."""
    parts = {d.name for d in program.units if d.grid and not d.loop}
    steps = {d.name for d in program.units if d.loop}
    grid = tuple(replace(s, tile=1) if s.dim in parts else s for s in block.grid)
    loop = block.loop
    if loop is not None and loop.dim in steps:
        loop = replace(loop, tile=1)
    return replace(program, grid=grid, loop=loop)


# -- Positions of library kernels ------------------------------------------------------


@lru_cache(maxsize=64)
def picks_outside(graph: ir.KernelGraph) -> bool:
    """Whether library kernels pick elements that do not exist, at positions of no data.

    PyTorch refuses that, also where nothing of them is chosen; lanes of a block are
    just not read.
    """
    for node in graph.applies:
        if node.op.kind is not Kind.GATHER:
            continue
        extent = graph.extent_of.get(str(node.attr("dim")))
        positions = made_of_positions(graph, node.values[1])
        if extent is None or positions is None:
            continue
        (at,) = evaluate_numpy(positions)
        if at.size and (at.min() < -extent or at.max() >= extent):
            return True
    return False


# -- Verification ----------------------------------------------------------------------

_RESTS_ON = (
    "a wrong sum of k exponentials passes a trial with probability (k-1)/q for random "
    "primes, and in measurements also for these; k at the test sizes"
)
_ON_SHIFTS = "; that no shift behind a logarithm matters was tested in float64"
_ON_INTEGERS = (
    "; integers are compared on random ones, which is testing: no bound speaks of rare "
    "values"
)


def verify(
    candidate: GraphLike,
    program: GraphLike,
    *,
    seed: int = 0,
    chains: int = 2,
    seeds: int = 2,
    stability: bool = True,
    method: Method = "fields",
    executor: Executor | None = None,
) -> Certificate:
    """Whether `candidate` computes the function of `program`.

    Args:
        candidate: A μGraph with the program's inputs and outputs, its text, or a
            candidate of a search.
        program: A traced program, or any μGraph to compare with; its text, or a bound
            kernel.
        seed: What all random choices follow from.
        chains: Number of chains of primes, each with sizes of its own.
        seeds: Valid trials per chain.
        stability: Also judge floating-point behaviour.
        method: Evaluation over finite fields, whose verdict is right but for a bounded
            probability; or exact normal forms at tiny sizes, which decide less.
        executor: Where sections of a long graph are verified at the same time.

    Returns:
        The certificate; what could not be decided is not equivalent, with the reason.

    Raises:
        CheckError: One of them is no graph.
        UnsupportedError: Another argument means nothing.
    """
    _check_numbers(seed, chains, seeds, method)
    mugraph, asked = graph_of(candidate), graph_of(program, "program", "mugraph")
    both = _with_windows_alike(mugraph, asked)
    if method == "exact":
        found = verify_exact(*both, seed=seed, stability=stability)
    else:
        how = _How(seed, chains, seeds, stability)
        sections = _by_sections(*both, how, executor)
        found = _whole(*both, how) if sections is None else sections
    if both == (mugraph, asked):
        return found
    return replace(
        found,
        candidate_hash=canonical_hash(mugraph),
        program_hash=canonical_hash(asked),
    )


def _check_numbers(seed: int, chains: int, seeds: int, method: str) -> None:
    """Refuse arguments of `verify` that mean nothing.

    Raises:
        UnsupportedError: One does not.
    """
    for name, value, least in (
        ("seed", seed, 0),
        ("chains", chains, 1),
        ("seeds", seeds, 1),
    ):
        if not _is_integer(value, least):
            raise UnsupportedError(
                f"{name}={value!r}; expected an integer from {least} on",
                user_location(),
            )
    if method not in get_args(Method):
        raise UnsupportedError(
            f"method={method!r}; expected one of {', '.join(get_args(Method))}",
            user_location(),
        )


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, SupportsIndex) and index(value) >= least


def _with_windows_alike(
    candidate: ir.KernelGraph, program: ir.KernelGraph
) -> tuple[ir.KernelGraph, ir.KernelGraph]:
    """Both with their windows written out, but for what they call alike.

    What PyTorch computes stands for itself there, which takes less.
    """
    theirs, ours = (
        {n.result: n.op.function for n in (*pools(g), *convolutions(g))}
        for g in (candidate, program)
    )
    as_many = len(pools(candidate)) == len(pools(program))
    # Equal convolutions may be one.
    if as_many and set(theirs.values()) == set(ours.values()):
        return candidate, program
    kept = {name for name, what in theirs.items() if ours.get(name) == what}
    return with_windows(candidate, kept), with_windows(program, kept)


@dataclass(frozen=True)
class _How:
    """How to verify: as `verify` takes it."""

    seed: int = 0
    chains: int = 2
    seeds: int = 2
    stability: bool = True


def _by_sections(
    candidate: ir.KernelGraph,
    program: ir.KernelGraph,
    how: _How,
    executor: Executor | None,
) -> Certificate | None:
    """The certificate of a candidate all of whose sections are equal and accurate.

    None for another one, of which only the whole says what is wrong.
    """
    try:
        same = interface_difference(candidate, program) is None
        sections = sections_of(candidate, program) if same else None
    except MirageError:
        return None
    if sections is None:
        return None
    if not sections:
        return replace(
            identity(program, seed=how.seed),
            candidate_hash=canonical_hash(candidate),
            reason="the same operators in the same places",
            rests_on="the candidate's sections are those of the program",
        )
    if executor is not None:
        _verify_at_once(sections, how, executor)
    # All of them, for what is right stays where the rest is not (`mended`).
    found = [_of_section(section, how) for section in sections]
    if not all(c.ok for c in found):
        return None
    return replace(
        _together(found, how),
        candidate_hash=canonical_hash(candidate),
        program_hash=canonical_hash(program),
    )


def _together(found: Sequence[Certificate], how: _How) -> Certificate:
    """What certificates of all sections say of the whole."""
    verdicts = [c.stability for c in found if c.stability is not None]
    compared = [c.sampled for c in found if c.sampled is not None]
    widest = max(found, key=lambda c: len(c.primes[0]) if c.primes else 0)
    trials = min(c.trials for c in found)
    return replace(
        widest,
        error_bound=min(1.0, sum(c.error_bound for c in found)),
        trials=trials,
        stability=max(verdicts, key=lambda v: v.worst_ratio, default=None),
        reason=f"equivalent in {_counted(found)}, in {trials} trials or more over "
        f"{how.chains} chains of primes",
        sampled=Sampled(
            sum(s.elements for s in compared),
            reason=next((s.reason for s in compared if s.reason), ""),
            thinned=any(s.thinned for s in compared),
        ),
    )


def _counted(found: Sequence[Certificate]) -> str:
    if len(found) == 1:
        return "1 section by itself"
    return f"{len(found)} sections by themselves"


_of_sections: dict[tuple[Section, _How], Certificate] = {}
"""What was found of sections; equal layers of a model have one."""
_MOST_SECTIONS = 1024


def _of_section(section: Section, how: _How) -> Certificate:
    """The certificate of a section."""
    found = _of_sections.get((section, how))
    if found is None:
        found = _whole(section.candidate, section.program, how)
        _remember(section, how, found)
    return found


def _remember(section: Section, how: _How, found: Certificate) -> None:
    if len(_of_sections) == _MOST_SECTIONS:
        _of_sections.clear()
    _of_sections[section, how] = found


def _verify_at_once(sections: Iterable[Section], how: _How, executor: Executor) -> None:
    """Verify those that were not yet where there are processes for it, and here."""
    tasks = [
        _SectionTask(section, how, seconds_left())
        for section in dict.fromkeys(sections)
        if (section, how) not in _of_sections
    ]
    if len(tasks) == 1:
        return

    def done(at: int, found: Certificate) -> None:
        _remember(tasks[at].section, how, found)

    spread(_SectionTask.run, tasks, executor, done, here=True)


@dataclass(frozen=True)
class _SectionTask:
    """A section to verify elsewhere, in so many seconds; it pickles."""

    section: Section
    how: _How
    seconds: float | None

    def run(self) -> Certificate:
        """Verify it."""
        end = None if self.seconds is None else time.monotonic() + self.seconds
        with until(end):
            return _whole(self.section.candidate, self.section.program, self.how)


def as_far_as_verified(
    candidate: ir.KernelGraph, program: ir.KernelGraph, *, seed: int
) -> ir.KernelGraph | None:
    """A candidate with the program's nodes where it is not known to be right.

    That is where `verify` found a section wrong or inaccurate, or did not come to it.
    None if nothing of the candidate is left then.
    """
    how = _How(seed)

    def is_right(section: Section) -> bool:
        found = _of_sections.get((section, how))
        return found is not None and found.ok

    return mended(candidate, program, is_right)


def _whole(mugraph: ir.KernelGraph, asked: ir.KernelGraph, how: _How) -> Certificate:
    """The certificate of graphs as they are.

    Maxima that are computed as they stand may be the same on both sides; and what the
    program computes may be a shift for the candidate.  What a block computes is none.
    """
    both = (mugraph, asked, how.seed, how.chains, how.seeds)
    plain, shifted = _Verification(*both, as_it_stands=True), _Verification(*both)
    as_it_stands = any(map(computes_shifts, mugraph.blocks))
    first, second = (plain, shifted) if as_it_stands else (shifted, plain)
    certificate = first.run(how.stability)
    if certificate.equivalent or first.compared == second.compared:
        return certificate
    again = second.run(how.stability)
    return again if again.equivalent else certificate


def identity(program: ir.KernelGraph, *, seed: int = 0) -> Certificate:
    """The certificate of a program as a candidate for itself, which needs no trial.

    It holds for programs that `verify` cannot decide too.
    """
    return Certificate(
        equivalent=True,
        error_bound=0.0,
        rests_on="the candidate is the program",
        seed=seed,
        stability=Stability(True, 1.0, "stable: the program itself"),
        candidate_hash=canonical_hash(program),
        program_hash=canonical_hash(program),
        reason="the program itself",
        verdict="equal",
    )


def recheck(
    certificate: Certificate, candidate: ir.KernelGraph, program: ir.KernelGraph
) -> bool:
    """Whether a stored certificate is of these graphs and comes out the same again."""
    hashes = (certificate.candidate_hash, certificate.program_hash)
    if hashes != (canonical_hash(candidate), canonical_hash(program)):
        return False
    by_fields = certificate.method == "fields"
    if by_fields and certificate.trials == 0 and candidate == program:
        return certificate.equivalent
    chains = max(1, len(certificate.primes))
    again = verify(
        candidate,
        program,
        seed=certificate.seed,
        chains=chains,
        seeds=max(1, certificate.trials // chains),
        stability=certificate.stability is not None,
        method=certificate.method,
    )
    same_stability = (again.stability is None) == (certificate.stability is None) and (
        again.stability is None
        or certificate.stability is None
        or again.stability.ok == certificate.stability.ok
    )
    return again.equivalent == certificate.equivalent and same_stability


_MANY_SITES = 8
"""Choices of a program from which on finding those that are indifferent takes longer
than to see that all are the same on both sides."""


@dataclass
class _Verification:
    candidate: ir.KernelGraph
    program: ir.KernelGraph
    seed: int
    chains: int
    seeds: int
    as_it_stands: bool = False
    sizes: list[Sizes] = field(default_factory=list[Sizes])
    primes: tuple[tuple[int, ...], ...] = ()
    depth: Depth = field(default_factory=Depth)
    still: bool = False
    whole: bool = False

    @cached_property
    def compared(self) -> tuple[ir.KernelGraph, ir.KernelGraph]:
        """Candidate and program, their maxima behind logarithms read as shifts."""
        both = self.candidate, self.program
        if self.as_it_stands:
            return both
        found = [logarithmic_shifts(g, self.seed) for g in both]
        return found[0], found[1]

    def run(self, stability: bool) -> Certificate:
        difference = interface_difference(self.candidate, self.program)
        if difference is not None:
            return self._certificate(f"another interface: {difference}", "different")
        try:
            fields = self._fields()
            tallies, reading = self._tallies(fields)
        except MirageError as error:
            return self._certificate(f"could not decide: {error.message}")
        failed = next((t for t in tallies if t.outcome is not Outcome.EQUAL), None)
        if failed is not None:
            invalid = failed.outcome is Outcome.INVALID_PROGRAM
            if invalid and self._may_have_values():
                return self._at_whole_sizes().run(stability)
            return self._refused(failed.outcome, fields[tallies.index(failed)].shrunk)
        sampled = self._sampled(fields[0].with_reading(reading))
        if sampled.difference is not None:
            said = f"not equivalent: {sampled}"
            return self._certificate(said, "different", sampled=sampled)
        printed = (
            self._left_out()
            or self._of_found(fields[0].shrunk)
            or self._of_counts()
            or (None if sampled.elements else self._of_indices(fields[0].shrunk))
            or self._printed(fields[-1], reading)
        )
        if printed is not None:
            return self._certificate(printed, sampled=sampled)
        return self._in_floats(fields, tallies, sampled, stability)

    def _in_floats(
        self,
        fields: Sequence[Field],
        tallies: Sequence[Tally],
        sampled: Sampled,
        stability: bool,
    ) -> Certificate:
        """The certificate of a candidate that is equal over fields."""
        domains = domain_difference(fields[0].shrunk, self.seed)
        if domains is not None:
            return self._certificate(
                domains.reason,
                "different",
                counterexample=domains.example,
                sampled=sampled,
            )
        verdict = measure_stability(fields[0].shrunk, self.seed) if stability else None
        if verdict is not None and verdict.is_unknown and self._may_have_values():
            return self._at_whole_sizes().run(stability)
        trials = sum(t.trials for t in tallies)
        reason = f"equivalent in {trials} trials over {len(fields)} chains of primes"
        return self._certificate(
            reason,
            "equal",
            error_bound=_error_bound(fields, tallies),
            trials=trials,
            stability=verdict,
            sampled=sampled,
        )

    def _at_whole_sizes(self) -> _Verification:
        return replace(self, whole=True, sizes=[])

    def _may_have_values(self) -> bool:
        """Whether a program may have values at sizes at which its windows are inside.

        The largest element of a window without any has no sum, nor has that of a row
        which is masked as a whole.
        """
        masked = bool(self.program.indices) or hides_by_data(self.program)
        return masked and not self.whole

    def _left_out(self) -> str | None:
        """What is said of what no trial shows; None if nothing is.

        That is what library kernels do not read, and iterations that may be wrong.
        """
        if picks_outside(self.candidate) and not picks_outside(self.program):
            return (
                "not equivalent: library kernels of the candidate pick elements that "
                "do not exist, which PyTorch refuses"
            )
        found = unproven(self.candidate)
        if found is None:
            return None
        return (
            f"could not decide: {found}; no comparison of positions in the block says "
            "otherwise"
        )

    def _of_found(self, shrunk: Shrunk) -> str | None:
        """What is said of positions that data choose, which no draw brings anywhere."""
        numbers = [numbers_of_found(g) for g in (shrunk.program, shrunk.candidate)]
        if numbers[PROGRAM] == numbers[CANDIDATE]:
            return None
        return (
            "could not decide: positions that data choose, as of a largest element, "
            "are compared with other numbers than in the program"
        )

    def _of_counts(self) -> str | None:
        """What is said of counts at the true extents, which no trial reaches."""
        found = counts_elsewhere(self.program, self.candidate)
        return None if found is None else f"could not decide: {found}"

    def _of_indices(self, shrunk: Shrunk) -> str | None:
        """What is said of indices, where no draw at the true extents was compared."""
        if drawn_of_few(shrunk.program) and not drawn_of_few(self.program):
            return (
                "could not decide: at the sizes of trials hardly any numbers of an "
                "input keep all indices inside, and no elements could be compared at "
                "the true extents"
            )
        if not turn_elsewhere(shrunk.program, shrunk.candidate):
            return None
        return (
            "could not decide: what is indexed by an input is told by other numbers "
            "than in the program, and no elements could be compared at the true extents"
        )

    def _printed(self, where: Field, reading: Reading) -> str | None:
        """What is wrong with the candidate's tile programs; None if nothing is.

        They are held to the rules of their level at the true sizes, and compared over
        one field, with ragged tiles if there are two; where values are chosen and the
        field says no, floats have the last word.
        """
        if not self.candidate.blocks:
            return None
        try:
            hold_to_rules(self.candidate)
            blocks = tile_level(self.candidate, where.shrunk.candidate)
            if blocks is None:
                return None
            where = replace(where, blocks=blocks, rare=False)
            if self.depth.choices and reading.fresh[CANDIDATE]:
                where = where.with_reading(reading)
                fresh = (reading.fresh[PROGRAM], fresh_sites(where, CANDIDATE))
                reading = replace(reading, fresh=fresh)
            (tally,) = self._under([where], reading)
        except MirageError as error:
            return f"could not decide: of its tile programs, {error.message}"
        if tally.outcome is Outcome.EQUAL:
            return None
        if tally.choices and levels_agree(where.shrunk, self.seed, blocks):
            # A random order does not know that max(0, -1) is 0, as lanes outside of a
            # tensor may hold that are added up without a mask.
            return None
        return (
            "could not decide: its block graphs compute the function, but the tile "
            "programs that were made of them do not"
        )

    def _sampled(self, where: Field) -> Sampled:
        """The comparison at the true extents."""
        try:
            return compare_samples(
                *self.compared,
                Sampling(where.chain, self.seed, where.exp_oracle, where.reading),
            )
        except MirageError as error:
            return Sampled(reason=error.message)

    # -- Trials ----------------------------------------------------------------------

    def _fields(self) -> list[Field]:
        """Where trials run: one field per chain, every other one with ragged tiles."""
        depths = [graph_depth(g) for g in self.compared]
        self.depth = depths[0].joined(depths[1])
        length = min(self.depth.exps + 1, MOST_FIELDS)
        self.primes = chains_for(length, self.chains, self.seed)
        found: list[Field] = []
        candidate, program = self.compared
        for number, chain in enumerate(self.primes):
            shrunk = shrink(
                candidate,
                program,
                ragged=number % 2 == 1,
                seed=self.seed + number // 2,
                whole=self.whole,
            )
            self.sizes.append(tuple(sorted(shrunk.sizes.items())))
            deep = self.depth.exps + 1 > MOST_FIELDS
            turns = turns_of(shrunk.program, shrunk.candidate)
            where = Field(shrunk, chain, (self.seed, number), deep, turns=turns)
            found.append(replace(where, steered=not number))
        return found

    def _tallies(self, fields: Sequence[Field]) -> tuple[list[Tally], Reading]:
        """One tally per field, up to the first that fails under every reading.

        Also the reading under which they were made.
        """
        first = fields[0].shrunk
        sides = (first.program, first.candidate)
        still = [no_shift_matters(g, self.seed) for g in sides]
        self.still = any(still)
        plain = Reading(still=(still[PROGRAM], still[CANDIDATE]))
        if not self.depth.choices:
            return self._under(fields, plain), plain
        where = fields[0].with_reading(plain)
        if self.as_it_stands or sites(where, PROGRAM) > _MANY_SITES:
            # Mostly the same maxima on both sides, and no site needs to be fresh.
            tallies = self._under(fields, plain, settling=False)
            if tallies[-1].outcome is Outcome.EQUAL:
                return tallies, plain
        fresh = (fresh_sites(where, PROGRAM), fresh_sites(where, CANDIDATE))
        by_rank, by_squares = (Reading(m, fresh, plain.still) for m in OrderModel)
        ranked = self._under(fields, by_rank)
        if ranked[-1].outcome is Outcome.EQUAL:
            return ranked, by_rank
        # What roots of non-squares have hidden once, they hide again.
        settling = ranked[-1].outcome is not Outcome.TOUCHED
        paley = self._under(fields, by_squares, settling=settling)
        if paley[-1].outcome is Outcome.EQUAL:
            return paley, by_squares
        # A few trials may hide that an output depends on what is fresh, as in
        # `argmax(x) < n`: the same maxima on both sides need none to be.
        standing = self._under(fields, plain, settling=False) if any(fresh) else ranked
        if standing[-1].outcome is Outcome.EQUAL:
            return standing, plain
        return ranked, by_rank

    def _under(
        self, fields: Sequence[Field], reading: Reading, *, settling: bool = True
    ) -> list[Tally]:
        tallies: list[Tally] = []
        for where in fields:
            tally = run_trials(where.with_reading(reading), self.seeds)
            if tally.outcome is Outcome.TOUCHED and settling:
                tally = self._settled(where.with_reading(reading), tally.choices)
            tallies.append(tally)
            if tally.outcome is not Outcome.EQUAL:
                break
        return tallies

    def _settled(self, where: Field, choices: bool) -> Tally:
        """Tell identities of roots from differences, floats first: they are quick."""
        if not floats_agree(where.shrunk, self.seed):
            return Tally(Outcome.DIFFERENT, 0, 0, choices)
        return settle_roots(where, self.depth.roots, choices)

    # -- Results ---------------------------------------------------------------------

    def _refused(self, outcome: Outcome, shrunk: Shrunk) -> Certificate:
        match outcome:
            case Outcome.INVALID_PROGRAM:
                index = index_outside(shrunk.program)
                return self._certificate(
                    f"could not decide: no test input brings this index inside: {index}"
                    if index
                    else "could not decide: the program divides by zero or computes "
                    "with infinities on every test input"
                )
            case Outcome.INVALID_CANDIDATE:
                return self._certificate(
                    "not equivalent: the candidate divides by zero or computes with "
                    "infinities where the program does not",
                    "different",
                )
            case _:
                pass
        example = find_counterexample(shrunk, self.seed)
        if example is not None:
            return self._certificate(
                "not equivalent", "different", counterexample=example
            )
        return self._certificate(
            "could not establish equivalence: float64 results agree at the test sizes, "
            "but residues differ; the candidate relies on an identity that is not in "
            "the verified algebra, or differs on rare inputs"
        )

    def _rests_on(self) -> str:
        """What the bound assumes, and what it does not speak of."""
        graphs = (self.candidate, self.program)
        given = (i.type.dtype for g in graphs for i in g.inputs)
        made = (
            n.op.gives
            for g in graphs
            for level in (g, *g.blocks)
            for n in level.applies
        )
        whole = any(d is not None and d.is_integer for d in (*given, *made))
        return _RESTS_ON + _ON_SHIFTS * self.still + _ON_INTEGERS * whole

    def _stands_in(self) -> bool:
        """Whether floats at small sizes are those of functions that stand in."""
        graphs = (self.candidate, self.program)
        return any(n.op.kind is Kind.LIBRARY for g in graphs for n in g.applies)

    def _certificate(
        self,
        reason: str,
        verdict: Verdict = "unknown",
        *,
        error_bound: float = 1.0,
        trials: int = 0,
        stability: Stability | None = None,
        counterexample: Counterexample | None = None,
        sampled: Sampled | None = None,
    ) -> Certificate:
        return Certificate(
            equivalent=verdict == "equal",
            error_bound=error_bound,
            rests_on=self._rests_on(),
            trials=trials,
            primes=self.primes,
            seed=self.seed,
            counterexample=None if self._stands_in() else counterexample,
            stability=stability,
            sizes=tuple(self.sizes),
            candidate_hash=canonical_hash(self.candidate),
            program_hash=canonical_hash(self.program),
            reason=reason,
            verdict=verdict,
            sampled=sampled,
        )


def trial_error(terms: int, q: int) -> float:
    """The most that one trial errs with: terms of a difference, lowest prime.

    Even a difference of one term may vanish, where a factor of it does.
    """
    return 1.0 if terms > q else max(terms - 1, 1) / q


def _multiplied_out(shrunk: Shrunk, terms: int) -> int:
    """As many terms as a product over dims makes of sums of so many.

    Of n sums of exponentials it makes terms^n.  Where nothing is exponentiated terms
    stand for a degree, of which the product has n times as much.
    """
    graphs = shrunk.program, shrunk.candidate
    count = max(map(_factors, graphs))
    deep = count > 1 and any(graph_depth(g).exps for g in graphs)
    return terms**count if deep else terms * count


def _factors(graph: ir.KernelGraph) -> int:
    """How many factors products over dims have at most, one within the other."""
    types, extents = kernel_types(graph), derived_extents(graph, graph.extent_of)
    sizes = known_extents(extents)
    count = 1
    for node in graph.nodes:
        if isinstance(node, ir.Apply):
            count *= math.prod(sizes[d] for d in node.across if _multiplies(node.op))
            continue
        inside = block_types(node, types)
        for n in node.nodes:
            if isinstance(n, ir.Accumulate) and n.reduction and node.loop is not None:
                count *= iterations(node, sizes) if _multiplies(n.reduction) else 1
            elif isinstance(n, ir.Apply) and _multiplies(n.op):
                dims = [d for d in inside[n.values[0]].dims if d.name in n.across]
                count *= math.prod(piece_extent(d, node, sizes) for d in dims)
    return count


def _multiplies(op: Operator) -> bool:
    """Whether it may multiply elements along dims, for all that its row says."""
    if op.kind is Kind.SCAN:
        return op.join is None or op.join.term is not Term.ADD
    return op.kind is Kind.REDUCTION and not op.adds and not op.selects


_LEAST_TERMS = 10_000
"""What of a program without sums is a polynomial's degree, and more."""


def _lengths_of_sums(graph: ir.KernelGraph) -> Iterator[int]:
    """Of how many elements what sums, scans or accumulates makes one, at most."""
    sizes = known_extents(derived_extents(graph, graph.extent_of))
    # What is put together in a block is no longer than all that there is.
    joined = sum(sizes.values())
    for level in (graph, *graph.blocks):
        for node in level.applies:
            if node.across:
                yield math.prod(sizes.get(name, joined) for name in node.across)
    for block in graph.blocks:
        if block.loop is not None:
            yield sizes[block.loop.dim]


def _error_bound(fields: Sequence[Field], tallies: Sequence[Tally]) -> float:
    """The probability that a wrong candidate passes all trials.

    A trial of one chain errs with at most (k - 1)/q, where k counts terms of
    exponential sums after bringing both sides to one denominator: no more than the
    square of the product of the two longest sums, but for products over dims; and no
    less than the degree of what has no sums.
    Choices with two outcomes err with 3/4 per element and trial, the most that one
    comparison can hide.
    """
    bound = 1.0
    missed = 1.0
    for where, tally in zip(fields, tallies, strict=True):
        graphs = where.shrunk.program, where.shrunk.candidate
        longest = [sorted(_lengths_of_sums(g))[-2:] for g in graphs]
        summed = max(_LEAST_TERMS, max(map(math.prod, longest)) ** 2)
        terms = _multiplied_out(where.shrunk, summed)
        bound *= trial_error(terms, where.chain[0]) ** tally.trials
        missed *= 0.75 ** (tally.elements * tally.trials) if tally.choices else 0.0
    return min(1.0, max(bound, missed, 1e-300))
