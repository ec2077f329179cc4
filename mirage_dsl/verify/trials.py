"""Comparison of a program and a candidate by trials over one chain of fields.

On non-squares the root of the fields is a random odd function, for which products of
roots and squares of roots need not be what they are over the reals.  Where a candidate
differs from its program only on elements that such a root has touched, the comparison
is repeated on inputs chosen so that ever fewer arguments are non-squares, until every
element of every output has been compared untouched.

One slice of one input is drawn anew at a time and kept, trial by trial, if it does not
bring more non-squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.work import look
from mirage_dsl.ir.analysis.integers import (
    AllTurns,
    Limit,
    Turns,
    index_limits,
    rare_numbers,
)
from mirage_dsl.ir.evaluate import BlockEvaluator, evaluate, evaluate_block
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.ir.walk import applications
from mirage_dsl.verify.algebra import (
    INVALID,
    MASKED,
    RAISED,
    TOUCHED,
    Order,
    OrderModel,
    Residue,
    ResidueAlgebra,
    ResidueDomain,
)
from mirage_dsl.verify.fields import KINDS, Conversions, Trials, draw_trials
from mirage_dsl.verify.sizes import Shrunk, input_shape
from mirage_dsl.verify.steered import (
    Steering,
    floats_made_whole,
    integer_part,
    runs_of,
)

# -- Trials ----------------------------------------------------------------------------

_ATTEMPTS = 8
_MOST_TRIALS = 512
_TRIALS_OF_CHOICES = 24
_FIRST_TRIALS = 2
_ELEMENTS_OF_CHOICES = 84
_ELEMENTS_OF_TURNS = 32
"""For each number that is drawn since something turns there, up to so many numbers."""
_MOST_TURNS = 16
_INTEGERS_OF_ANY_SIZE = 128
"""Of an input, at least, in each field: some are the least of their format."""

_STEERED = 300
"""The attempt in which integers are steered beside what a program decides."""

PROGRAM, CANDIDATE = 0, 1


class Outcome(Enum):
    """What a set of trials found.

    TOUCHED: they differ, but only where the root of a non-square was taken, for which
    an identity of the reals may fail.  INVALID_PROGRAM, INVALID_CANDIDATE: outputs of
    that side have no value in nearly all trials.
    """

    EQUAL = "equal"
    DIFFERENT = "different"
    TOUCHED = "touched"
    INVALID_PROGRAM = "invalid program"
    INVALID_CANDIDATE = "invalid candidate"


@dataclass(frozen=True)
class Reading:
    """How order-like operators are read.

    Attributes:
        model: The model of order.
        fresh: Each side's fresh sites.
        still: Whether each side's shifts are 0.
    """

    model: OrderModel = OrderModel.RANK
    fresh: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    still: tuple[bool, bool] = (False, False)

    @property
    def of_program(self) -> Reading:
        """The same reading of the program, whatever the candidate's is."""
        fresh, still = self.fresh[PROGRAM], self.still[PROGRAM]
        return replace(self, fresh=(fresh, frozenset()), still=(still, False))


@dataclass
class Evaluation:
    """One side's outputs, and the algebra that made them."""

    outputs: list[Residue]
    algebra: ResidueAlgebra


@dataclass(frozen=True)
class Field:
    """Where and how trials run.

    Attributes:
        shrunk: Both graphs at small sizes.
        chain: The primes.
        seed: What the random choices follow from.
        exp_oracle: Read exp at the top of the chain as a random function.
        blocks: What evaluates the candidate's block graphs.
        turns: Numbers beside which what is computed of integers turns.
        rare: Whether trials go on until what is rare has happened.  What tile programs
            may have wrong that blocks have right, as a mask or a lane, is not rare.
        steered: Whether trials beside turns that are looked for come on top.
    """

    shrunk: Shrunk
    chain: tuple[int, ...]
    seed: tuple[int, ...]
    exp_oracle: bool = False
    reading: Reading = field(default_factory=Reading)
    blocks: BlockEvaluator = evaluate_block
    turns: AllTurns = field(default_factory=AllTurns)
    rare: bool = True
    steered: bool = False

    def with_reading(self, reading: Reading) -> Field:
        """The same field under another reading of orders."""
        return replace(self, reading=reading)

    @property
    def of_program(self) -> Field:
        """The same field for the program beside itself, whatever the candidate is."""
        alone = Shrunk(self.shrunk.program, self.shrunk.program)
        reading = self.reading.of_program
        return replace(
            self, shrunk=alone, reading=reading, blocks=evaluate_block, rare=True
        )

    def graph(self, side: int) -> KernelGraph:
        """The graph of a side."""
        return self.shrunk.candidate if side == CANDIDATE else self.shrunk.program

    def generator(self, *key: int) -> np.random.Generator:
        """A stream of random numbers of its own for each key."""
        return np.random.default_rng([*self.seed, *key])

    def draw(self, attempt: int, count: int) -> tuple[Trials, list[Residue]]:
        """An interpretation of functions, and inputs."""
        rng = self.generator(attempt, 1)
        trials = draw_trials(self.chain, count, rng)
        algebra = ResidueAlgebra(trials, Order(), rng)
        program = self.shrunk.program
        limits = index_limits(program)
        turns = self.turns.inputs or ((),) * len(program.inputs)
        return trials, [
            _drawn(algebra, program, item, limits.get(item.name), beside)
            for item, beside in zip(program.inputs, turns, strict=True)
        ]

    def evaluate(
        self, side: int, trials: Trials, inputs: Sequence[Residue], *stream: int
    ) -> Evaluation:
        """The outputs of one side; `stream` names its source of fresh values."""
        reading = self.reading
        order = Order(reading.model, reading.fresh[side], still=reading.still[side])
        algebra = ResidueAlgebra(
            trials,
            order,
            self.generator(*stream, 2 + side),
            exp_oracle=self.exp_oracle,
            turns=self.turns,
        )
        blocks = self.blocks if side == CANDIDATE else evaluate_block
        domain = ResidueDomain(algebra, reads_anything=side == CANDIDATE)
        outputs = evaluate(self.graph(side), inputs, domain, blocks)
        if self.graph(side).indices:
            outputs = without_value(outputs)
        return Evaluation(outputs, algebra)


def elements_of(*turns: Turns) -> int:
    """How many have to be drawn for each number beside a turn to be among them."""
    numbers = sum(map(rare_numbers, turns))
    return _ELEMENTS_OF_TURNS * min(numbers, _MOST_TURNS)


def _drawn(
    algebra: ResidueAlgebra,
    program: KernelGraph,
    item: Input,
    limit: Limit | None,
    turns: Turns,
) -> Residue:
    shape, dtype = input_shape(program, item), item.type.dtype
    if dtype.is_float:
        return algebra.uniform(shape)
    return algebra.any_integers(dtype, shape, limit, turns)


def differences(a: Residue, b: Residue) -> NDArray[np.bool_]:
    """Where two outputs differ, trial by trial."""
    one, other = (v.all_flags() & (MASKED | RAISED) for v in (a, b))
    tops = (a.top, b.top)
    if a.exact is not None and b.exact is not None:
        tops = (a.exact, b.exact)
    differ = (tops[0] != tops[1]) & (one == 0) | (one != other)
    return np.asarray(differ, dtype=np.bool_)


def without_value(outputs: Sequence[Residue]) -> list[Residue]:
    """Outputs whose elements that never have a value count as equal to each other.

    A mask that is made of positions leaves the same rows empty in every trial, and what
    is divided by the sum of an empty row has no residue.  Such an element is both
    infinities from here on.  Where no element has a value, all stay as they are.
    """
    never = [np.asarray(v.flagged(INVALID).all(axis=0)) for v in outputs]
    if all(n.all() for n in never):
        return list(outputs)
    return [_marked(v, n) for v, n in zip(outputs, never, strict=True)]


def _marked(value: Residue, never: NDArray[np.bool_]) -> Residue:
    if not never.any():
        return value
    flags = np.where(never, np.uint16(MASKED | RAISED), value.all_flags())
    return Residue(value.parts, flags)


def valueless(output: Residue) -> NDArray[np.bool_]:
    """Which elements `without_value` has found to have none."""
    return output.all_flags() & (MASKED | RAISED) == MASKED | RAISED


def invalid_trials(outputs: Sequence[Residue]) -> NDArray[np.bool_]:
    """The trials in which an output has an element without a value."""
    found = [_per_trial(v.flagged(INVALID)) for v in outputs]
    return np.asarray(np.logical_or.reduce(found))


def touched(value: Residue) -> NDArray[np.bool_]:
    """Where the top component depends on the root of a non-square."""
    return value.flagged(TOUCHED << (len(value.parts) - 1))


def _per_trial(flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(flags.reshape(flags.shape[0], -1).any(axis=1))


@dataclass
class Tally:
    """What the trials of one field came to."""

    outcome: Outcome
    trials: int
    elements: int
    choices: bool


def run_trials(where: Field, needed: int) -> Tally:
    """Compare whole outputs in at least `needed` valid trials, and beside turns."""
    tally = _run_trials(where, needed)
    steered = where.rare and where.steered and tally.outcome is Outcome.EQUAL
    if steered and _differs_beside_turns(where):
        return replace(tally, outcome=Outcome.DIFFERENT)
    return tally


def _run_trials(where: Field, needed: int) -> Tally:
    count, done, elements, choices = needed, 0, 0, False
    invalid = Outcome.INVALID_PROGRAM
    for attempt in range(_ATTEMPTS):
        look()
        trials, inputs, program = _program_side(where.of_program, attempt, count)
        sides = (program, where.evaluate(CANDIDATE, trials, inputs, attempt))
        ours, theirs = sides[PROGRAM].outputs, sides[CANDIDATE].outputs
        elements = sum(v.top[0].size for v in ours)
        choices = any(s.algebra.choices for s in sides)
        enough = _enough(where, elements, choices)
        needed = max(needed, enough if where.rare else min(enough, KINDS))
        count = max(count, needed)
        bad_program, bad_candidate = invalid_trials(ours), invalid_trials(theirs)
        if (bad_candidate & ~bad_program).any():
            invalid = Outcome.INVALID_CANDIDATE
        valid = ~(bad_program | bad_candidate)
        outcome = _agreement(ours, theirs, valid)
        if outcome is not Outcome.EQUAL:
            return Tally(outcome, done, elements, choices)
        done += int(valid.sum())
        if done >= needed:
            return Tally(Outcome.EQUAL, done, elements, choices)
        if 0 < valid.sum() < count / 2:
            # Rows masked as a whole leave few valid trials, not none.
            count = min(2 * count, _MOST_TRIALS)
    return Tally(invalid, done, elements, choices)


def _differs_beside_turns(where: Field) -> bool:
    """Whether outputs differ where integers are steered beside what is decided."""
    steered = _steered_program_side(where.of_program)
    if steered is None:
        return False
    trials, inputs, program = steered
    theirs = where.evaluate(CANDIDATE, trials, inputs, _STEERED).outputs
    valid = ~(invalid_trials(program.outputs) | invalid_trials(theirs))
    return _agreement(program.outputs, theirs, valid) is Outcome.DIFFERENT


@lru_cache(maxsize=8)
def _steered_program_side(
    where: Field,
) -> tuple[Trials, list[Residue], Evaluation] | None:
    """Trials, inputs that are steered, and a program's outputs; None for none."""
    program = where.shrunk.program
    part = integer_part(program)
    if part is None:
        return None
    trials, inputs = where.draw(_STEERED, runs_of(part))
    algebra = ResidueAlgebra(trials, Order(), where.generator(_STEERED))
    drawn = _integers_of(program, inputs)
    made = [item for item in part.inputs if item.name not in drawn]
    turns, within = where.turns.made, where.turns.made_within
    for item in made:
        shape = input_shape(part, item)
        any_of = algebra.any_integers(item.type.dtype, shape, within, turns)
        drawn[item.name] = _whole(any_of)
    names = [item.name for item in part.inputs]
    limits = {item.name: within for item in made} if within is not None else {}
    given = [drawn[name] for name in names]
    steering = Steering(part, given, where.generator(_STEERED), limits)
    drawn = dict(zip(names, steering.run(), strict=True))
    for at, item in enumerate(program.inputs):
        if item.name in drawn and not item.type.dtype.is_float:
            inputs[at] = algebra.whole(drawn[item.name])
    wanted = [drawn.get(name) for name, _ in floats_made_whole(program)]
    trials = replace(trials, conversions=Conversions(wanted))
    return trials, inputs, where.evaluate(PROGRAM, trials, inputs, _STEERED)


def _integers_of(
    program: KernelGraph, inputs: Sequence[Residue]
) -> dict[str, NDArray[Any]]:
    both = zip(program.inputs, inputs, strict=True)
    return {item.name: v.exact for item, v in both if v.exact is not None}


def _whole(value: Residue) -> NDArray[Any]:
    assert value.exact is not None
    return value.exact


def _enough(where: Field, elements: int, choices: bool) -> int:
    """How many trials of so many elements it takes for rare things to happen in one."""
    rare = elements_of(*where.turns.inputs, where.turns.made)
    if choices:
        rare = max(rare, _ELEMENTS_OF_CHOICES, _TRIALS_OF_CHOICES * elements)
    return max(-(-rare // elements), _enough_of_integers(where))


def _enough_of_integers(where: Field) -> int:
    """How many trials it takes for each input of integers to have rare numbers."""
    program, candidate = where.shrunk.program, where.shrunk.candidate
    turns = where.turns.inputs or ((),) * len(program.inputs)
    limits = index_limits(program)
    needed = KINDS * any(map(_makes_integers, (program, candidate)))
    for item, beside in zip(program.inputs, turns, strict=True):
        if item.type.dtype.is_integer:
            rare = elements_of(beside)
            if item.name not in limits:
                rare = max(rare, _INTEGERS_OF_ANY_SIZE)
            drawn = prod(input_shape(program, item))
            needed = max(needed, KINDS, -(-rare // drawn))
    return needed


def _makes_integers(graph: KernelGraph) -> bool:
    """Whether a graph makes integers of what may be floats."""
    made = (n.op.gives for n in applications(graph))
    return any(dtype is not None and dtype.is_integer for dtype in made)


@lru_cache(maxsize=8)
def _program_side(
    where: Field, attempt: int, count: int
) -> tuple[Trials, list[Residue], Evaluation]:
    """Trials, inputs, and the outputs of a program, which its candidates share."""
    trials, inputs = where.draw(attempt, count)
    return trials, inputs, where.evaluate(PROGRAM, trials, inputs, attempt)


def _agreement(
    ours: Sequence[Residue], theirs: Sequence[Residue], valid: NDArray[np.bool_]
) -> Outcome:
    found = Outcome.EQUAL
    for a, b in zip(ours, theirs, strict=True):
        if a.top.shape != b.top.shape:
            return Outcome.DIFFERENT
        differ = differences(a, b)[valid]
        if not differ.any():
            continue
        if (differ & ~(touched(a) | touched(b))[valid]).any():
            return Outcome.DIFFERENT
        found = Outcome.TOUCHED
    return found


def sites(where: Field, side: int) -> int:
    """How often one side chooses: its maxima, comparisons and the like."""
    plain = where.with_reading(Reading(still=where.reading.still))
    if side == PROGRAM:
        return _program_side(plain.of_program, 0, 1)[2].algebra.order.sites
    trials, inputs = plain.draw(0, 1)
    return plain.evaluate(side, trials, inputs, 0).algebra.order.sites


def fresh_sites(where: Field, side: int) -> frozenset[int]:
    """The sites of one side whose value no output depends on.

    They are found by making them random: all at once, or else one after the other.
    """
    plain = where.with_reading(Reading(still=where.reading.still))
    if side == PROGRAM:
        return _fresh_sites_of_program(plain.of_program)
    return _fresh_sites(plain, side)


@lru_cache(maxsize=8)
def _fresh_sites_of_program(plain: Field) -> frozenset[int]:
    """Those of a program, which its candidates share."""
    return _fresh_sites(plain, PROGRAM)


def _fresh_sites(plain: Field, side: int) -> frozenset[int]:
    count = sites(plain, side)
    if count == 0:
        return frozenset()
    # Another choice may hide a value in many trials, so it takes many to say yes; to
    # say no, one is enough.
    few, many = (_Choices(plain, side, n) for n in (_FIRST_TRIALS, _TRIALS_OF_CHOICES))

    def indifferent(sites: frozenset[int]) -> bool:
        return few.agree(sites) is not False and bool(many.agree(sites))

    everything = frozenset(range(count))
    if indifferent(everything):
        return everything
    found = frozenset[int]()
    for site in range(count):
        if indifferent(found | {site}):
            found |= {site}
    return found


class _Choices:
    """Outputs of one side, whose sites are made random."""

    def __init__(self, plain: Field, side: int, count: int) -> None:
        self.plain, self.side = plain, side
        self.drawn = plain.draw(1, count)

    def outputs(self, sites: frozenset[int], stream: int) -> list[Residue]:
        reading = replace(self.plain.reading, fresh=(sites, sites))
        where = self.plain.with_reading(reading)
        return where.evaluate(self.side, *self.drawn, stream).outputs

    @cached_property
    def chosen(self) -> list[Residue]:
        """The outputs where no site is random."""
        return self.outputs(frozenset(), 90)

    def agree(self, sites: frozenset[int]) -> bool | None:
        """Whether the outputs are the same; None if they have no value."""
        runs = self.chosen, self.outputs(sites, 91)
        valid = ~(invalid_trials(runs[0]) | invalid_trials(runs[1]))
        if not valid.any():
            return None
        return _agreement(*runs, valid) is Outcome.EQUAL


# -- Square roots ----------------------------------------------------------------------

_TRIALS_OF_ROOTS = 8
_BUDGET = 300
_MOST_DRAWN = 4_000_000
"""Elements of inputs, over all trials and steps: some 5 s of attention."""
_PATIENCE = 40


class _Climb:
    """Inputs of a batch of trials on the way to fewer non-squares."""

    def __init__(self, where: Field, components: Sequence[int], choices: bool) -> None:
        self.where = where
        self.count_of_trials = _TRIALS_OF_CHOICES if choices else _TRIALS_OF_ROOTS
        self.enough = self.count_of_trials // 4
        self.components = list(components)
        self.rng = where.generator(200)
        self.trials, self.inputs = where.draw(100, self.count_of_trials)
        self.seen: list[NDArray[np.int64]] = []
        self.best = np.full(self.count_of_trials, np.iinfo(np.int64).max)

    def evaluate(self, inputs: Sequence[Residue]) -> tuple[list[Evaluation], bool]:
        """Both sides, and whether all untouched elements agree."""
        # One stream for all steps: padding and fresh values stay the same, so only
        # the inputs decide which roots are taken of squares.
        sides = [
            self.where.evaluate(s, self.trials, inputs, 100)
            for s in (PROGRAM, CANDIDATE)
        ]
        return sides, self._compare(sides)

    def _compare(self, sides: Sequence[Evaluation]) -> bool:
        ours, theirs = sides[PROGRAM].outputs, sides[CANDIDATE].outputs
        valid = ~(invalid_trials(ours) | invalid_trials(theirs))
        fresh = not self.seen
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            clean = ~(touched(a) | touched(b))
            if (differences(a, b) & clean)[valid].any():
                return False
            if fresh:
                self.seen.append(np.zeros(clean.shape, dtype=np.int64))
            counted = clean & valid.reshape((-1,) + (1,) * (clean.ndim - 1))
            self.seen[number] |= counted
        return True

    def covered(self) -> bool:
        """Every element was compared untouched in enough trials."""
        return all((s.sum(axis=0) >= self.enough).all() for s in self.seen)

    def count(self, sides: Sequence[Evaluation]) -> NDArray[np.int64]:
        """Non-squares per trial, over the components that reach an output."""
        ours = sides[PROGRAM].algebra.non_squares
        theirs = sides[CANDIDATE].algebra.non_squares
        counts: NDArray[np.int64] = (ours + theirs)[self.components]
        return np.asarray(np.add.reduce(counts, axis=0), dtype=np.int64)

    def proposal(self) -> list[Residue]:
        """The inputs with one slice of one of them drawn anew; integers stay."""
        free = [at for at, v in enumerate(self.inputs) if v.exact is None]
        if not free:
            return list(self.inputs)
        number = free[int(self.rng.integers(len(free)))]
        chosen = self.inputs[number]
        shape: tuple[int, ...] = chosen.top.shape[1:]
        new = self._uniform(shape)
        place: tuple[slice | int, ...] = (slice(None),)
        axes: list[int] = [i for i, n in enumerate(shape) if n > 1]
        if axes:
            axis = axes[int(self.rng.integers(len(axes)))]
            index = int(self.rng.integers(shape[axis]))
            place = (slice(None),) * (axis + 1) + (index,)
        mixed: list[NDArray[np.int64]] = []
        for old, drawn in zip(chosen.parts, new, strict=True):
            assert old is not None
            part: NDArray[np.int64] = old.copy()
            part[place] = drawn[place]
            mixed.append(part)
        proposed = list(self.inputs)
        proposed[number] = Residue(tuple(mixed))
        return proposed

    def _uniform(self, shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
        primes = self.trials.primes
        axes = (-1,) + (1,) * len(shape)
        full = (self.count_of_trials, *shape)
        return [self.rng.integers(0, 2**62, full) % p.reshape(axes) for p in primes]

    def keep(self, proposed: Sequence[Residue], better: NDArray[np.bool_]) -> None:
        """Take the proposal in the trials where it is no worse."""
        merged: list[Residue] = []
        for old, new in zip(self.inputs, proposed, strict=True):
            if old.exact is not None:
                merged.append(old)
                continue
            take = better.reshape((-1,) + (1,) * old.rank)
            parts: list[NDArray[np.int64]] = []
            for a, b in zip(new.parts, old.parts, strict=True):
                assert a is not None
                assert b is not None
                parts.append(np.where(take, a, b))
            merged.append(Residue(tuple(parts)))
        self.inputs = merged


def settle_roots(where: Field, distances: frozenset[int], choices: bool) -> Tally:
    """Compare all elements untouched by roots of non-squares.

    Args:
        where: The field of the trials.
        distances: Numbers of exponentials between the roots and the outputs, which
            tell the components that matter.
        choices: Whether there are choices with two outcomes, so that it takes more
            trials to meet both.
    """
    top = len(where.chain) - 1
    components = sorted({top - d for d in distances if d <= top}) or [top]
    climb = _Climb(where, components, choices)
    sides, agree = climb.evaluate(climb.inputs)
    climb.best = climb.count(sides)
    stale = 0
    drawn = sum(i.top.size for i in climb.inputs)
    for _ in range(min(_BUDGET, max(_PATIENCE, _MOST_DRAWN // drawn))):
        if not agree:
            return Tally(Outcome.DIFFERENT, 0, 0, choices)
        if climb.covered():
            elements = sum(s[0].size for s in climb.seen)
            return Tally(Outcome.EQUAL, climb.enough, elements, choices)
        proposed = climb.proposal()
        sides, agree = climb.evaluate(proposed)
        count = climb.count(sides)
        stale = 0 if (count < climb.best).any() else stale + 1
        if stale > _PATIENCE:
            break
        better = count <= climb.best
        climb.keep(proposed, better)
        climb.best = np.where(better, count, climb.best)
    return Tally(Outcome.TOUCHED, 0, 0, choices)
