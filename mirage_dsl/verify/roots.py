"""Square roots: comparing where the argument of every root is a square.

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

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.verify.algebra import Residue
from mirage_dsl.verify.trials import (
    CANDIDATE,
    PROGRAM,
    Evaluation,
    Field,
    Outcome,
    Tally,
    differences,
    invalid_trials,
    touched,
)

_TRIALS = 8
_TRIALS_OF_CHOICES = 24
_BUDGET = 300
_MOST_DRAWN = 4_000_000
"""Elements of inputs, over all trials and steps: some 5 s of attention."""
_PATIENCE = 40


class _Climb:
    """Inputs of a batch of trials on the way to fewer non-squares."""

    def __init__(self, where: Field, components: Sequence[int], choices: bool) -> None:
        self.where = where
        self.count_of_trials = _TRIALS_OF_CHOICES if choices else _TRIALS
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
