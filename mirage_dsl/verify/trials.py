"""Comparison of a program and a candidate by trials over one chain of fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.clock import look
from mirage_dsl.ir.analysis.integers import index_limits
from mirage_dsl.ir.evaluate.graph import BlockEvaluator, evaluate, evaluate_block
from mirage_dsl.ir.graph import Input, KernelGraph
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
from mirage_dsl.verify.fields import Trials, draw_trials
from mirage_dsl.verify.sizes import Shrunk, input_shape

_ATTEMPTS = 8
_MOST_TRIALS = 512
_TRIALS_OF_CHOICES = 24
_FIRST_TRIALS = 2
_ELEMENTS_OF_CHOICES = 84

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
    """

    shrunk: Shrunk
    chain: tuple[int, ...]
    seed: tuple[int, ...]
    exp_oracle: bool = False
    reading: Reading = field(default_factory=Reading)
    blocks: BlockEvaluator = evaluate_block

    def with_reading(self, reading: Reading) -> Field:
        """The same field under another reading of orders."""
        return replace(self, reading=reading)

    @property
    def of_program(self) -> Field:
        """The same field for the program beside itself, whatever the candidate is."""
        alone = Shrunk(self.shrunk.program, self.shrunk.program)
        return replace(self, shrunk=alone, blocks=evaluate_block)

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
        return trials, [
            _drawn(algebra, program, i, limits.get(i.name)) for i in program.inputs
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
        )
        blocks = self.blocks if side == CANDIDATE else evaluate_block
        domain = ResidueDomain(algebra)
        outputs = evaluate(self.graph(side), inputs, domain, blocks)
        if self.graph(side).indices:
            outputs = without_value(outputs)
        return Evaluation(outputs, algebra)


def _drawn(
    algebra: ResidueAlgebra, program: KernelGraph, item: Input, limit: range | None
) -> Residue:
    shape, dtype = input_shape(program, item), item.type.dtype
    if dtype.is_float:
        return algebra.uniform(shape)
    return algebra.any_integers(dtype, shape, limit)


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
    """Compare whole outputs in at least `needed` valid trials."""
    count, done, elements, choices = needed, 0, 0, False
    invalid = Outcome.INVALID_PROGRAM
    for attempt in range(_ATTEMPTS):
        look()
        trials, inputs, program = _program_side(where.of_program, attempt, count)
        sides = (program, where.evaluate(CANDIDATE, trials, inputs, attempt))
        ours, theirs = sides[PROGRAM].outputs, sides[CANDIDATE].outputs
        elements = sum(v.top[0].size for v in ours)
        choices = any(s.algebra.choices for s in sides)
        if choices:
            enough = -(-_ELEMENTS_OF_CHOICES // elements)
            needed = max(needed, _TRIALS_OF_CHOICES, enough)
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


def fresh_sites(where: Field, side: int) -> frozenset[int]:
    """The sites of one side whose value no output depends on.

    They are found by making them random: all at once, or else one after the other.
    """
    trials, inputs = where.draw(0, 1)
    plain = where.with_reading(Reading(still=where.reading.still))
    count = plain.evaluate(side, trials, inputs, 0).algebra.order.sites
    if count == 0:
        return frozenset()
    few, many = where.draw(1, _FIRST_TRIALS), where.draw(1, _TRIALS_OF_CHOICES)

    def agree(
        sites: frozenset[int], drawn: tuple[Trials, list[Residue]]
    ) -> bool | None:
        """Whether the outputs are the same; None if they have no value."""
        reading = Reading(fresh=(sites, sites), still=where.reading.still)
        runs = [
            where.with_reading(reading).evaluate(side, *drawn, 90 + i).outputs
            for i in (0, 1)
        ]
        valid = ~(invalid_trials(runs[0]) | invalid_trials(runs[1]))
        if not valid.any():
            return None
        return _agreement(runs[0], runs[1], valid) is Outcome.EQUAL

    def indifferent(sites: frozenset[int]) -> bool:
        # Another choice may hide a value in many trials, so it takes many to say yes;
        # to say no, one is enough.
        return agree(sites, few) is not False and bool(agree(sites, many))

    everything = frozenset(range(count))
    if indifferent(everything):
        return everything
    found = frozenset[int]()
    for site in range(count):
        if indifferent(found | {site}):
            found |= {site}
    return found
