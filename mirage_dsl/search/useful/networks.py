"""Sub-networks of a monomial: what a value of an equivalent program may consist of.

Some of its factors, summed over some of their variables, where a variable may be summed
only if all factors with it are inside.  Of these only some can be made: operators join
two values that share summed dims, or of which one has all dims of the other, or whose
dims together are those of a value of the program (`Rules.outer`).  So a_ij b_jk d_lm is
no value on the way to a product of four matrices, and S grows with the square of the
number of matrices, not exponentially.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirage_dsl.core.clock import look
from mirage_dsl.search.space import Space
from mirage_dsl.search.useful.terms import (
    ONE,
    Factor,
    Monomial,
    Pair,
    Terms,
    raised,
    times,
)

MAX_NETWORKS = 1 << 14
"""Choices of factors of one monomial beyond which the rest is left out."""

FEW_NETWORKS = 1 << 10
"""The same where these are next to none of all choices."""

MAX_SUMMED = 1 << 10
"""Sets of variables over which some factors are summed, at most."""

MOST_TIMES = 16
"""Times of one term or factor beyond which parts have all of them, or a few."""

Networks = dict[Pair, tuple[Pair, set[int]]]
"""Sub-networks of a monomial by what they leave: fingerprint, and possible dims."""

Part = list[int]
"""Dims of a value as masks: all of them, and of the values that it was joined from."""


@dataclass(frozen=True)
class Choice:
    """Factors and summed variables of a sub-network, whatever the loop.

    Attributes:
        counts: How often each distinct factor is inside.
        blocked: Variables that a factor outside has.
        gone: Variables that are summed, as a mask.
        names: The dims that are left, as a mask.
    """

    counts: tuple[int, ...]
    blocked: int
    gone: int
    names: int


@dataclass(frozen=True)
class Choices:
    """The sub-networks of a monomial; `complete` if there is no other."""

    found: tuple[Choice, ...]
    complete: bool


class NetworkFinder:
    """Finds the sub-networks of the monomials of a program, for one loop choice.

    Attributes:
        truncated: Whether a limit was met, so that some are missing.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms, self.truncated = terms, False
        self._known: dict[tuple[Monomial, bool], Networks] = {}

    def of(self, m: Monomial, *, alone: bool) -> Networks:
        """The sub-networks of a monomial, without its sign.

        Args:
            m: The monomial.
            alone: Whether they are values by themselves.  As a term of a sum one may
                have come about with the sum's other terms, whatever its factors.
        """
        key = m, alone
        if key not in self._known:
            known = self.terms.space.choices
            if key not in known:
                dim = self.terms.dim
                known[key] = _Chooser(self.terms.space, dim, m).all(alone=alone)
            self.truncated |= not known[key].complete
            self._known[key] = self._networks(m, known[key])
        return self._known[key]

    def _networks(self, m: Monomial, choices: Choices) -> Networks:
        powers = [self._powers(f) for f in m.factors]
        found: Networks = {}
        for choice in choices.found:
            look()
            value = rest = ONE
            for pairs, n in zip(powers, choice.counts, strict=True):
                own, other = pairs[n]
                value, rest = times(value, own), times(rest, other)
            states = [list(self._states(v, choice)) for v in m.bound]
            self.truncated |= math.prod(map(len, states)) > MAX_SUMMED
            for chosen in itertools.islice(itertools.product(*states), MAX_SUMMED):
                total, left = value, rest
                for own, other in chosen:
                    total = times(total, (own, own))
                    left = times(left, (other, other))
                found.setdefault(left, (total, set()))[1].add(choice.names)
        return found

    def _powers(self, factor: Factor) -> dict[int, tuple[Pair, Pair]]:
        """By how many of a factor's power are inside: those, and the others."""
        pair, most = self.terms.factor_pair(factor.once), factor.power
        return {n: (raised(pair, n), raised(pair, most - n)) for n in some_counts(most)}

    def _states(self, v: int, choice: Choice) -> Iterator[tuple[int, int]]:
        """The σ of a variable that are inside, and those that are left out.

        The loop dim may be summed within the tile, over the iterations, or both; only
        the index within the tile is a dim of a value.
        """
        terms, dim = self.terms, self.terms.dim[v]
        whole, gone = terms.sigma_whole(dim), choice.gone >> v & 1
        yield (whole, 1) if gone else (1, whole)
        if dim == terms.loop and not choice.blocked >> v & 1:
            tile, loop = terms.sigma(dim, "tile"), terms.sigma(dim, "loop")
            yield (tile, loop) if gone else (loop, tile)


class _Chooser:
    """Finds the choices of one monomial; sets of variables are masks."""

    def __init__(self, space: Space, dim: list[int], m: Monomial) -> None:
        self.space, self.dim = space, dim
        self.outer = {v.names for v in space.values}
        self.bound = _mask(m.bound)
        self.most = tuple(f.power for f in m.factors)
        self.variables = [_mask(f.indices) for f in m.factors]
        self.complete = True

    def all(self, *, alone: bool) -> Choices:
        """All of them; if they are `alone`, only those that can be made."""
        choices = [some_counts(n) for n in self.most]
        total = math.prod(map(len, choices))
        limit = MAX_NETWORKS if total < MAX_NETWORKS**2 else FEW_NETWORKS
        step = -(-total // limit)
        found: list[Choice] = []
        for at in range(0, total, step):
            found += self._summed(_place(at, choices), alone=alone)
        if step > 1:
            found += self._summed(self.most, alone=alone)
        few = any(len(c) <= n for c, n in zip(choices, self.most, strict=True))
        return Choices(tuple(found), self.complete and step == 1 and not few)

    def _summed(self, counts: tuple[int, ...], *, alone: bool) -> Iterator[Choice]:
        """Some factors, summed over every set of variables that may be.

        The more is summed, the more is connected: what cannot be made with some sums
        cannot be made with fewer.
        """
        inside = [v for v, n in zip(self.variables, counts, strict=True) if n]
        used = _union(inside)
        rows = zip(self.variables, counts, self.most, strict=True)
        blocked = _union([v for v, n, most in rows if n < most])
        everything = self.bound & ~blocked
        seen, work = {everything}, [everything]
        while work:
            look()
            gone = work.pop()
            if alone and not self._formable(inside, gone):
                continue
            names = self._names(used & ~gone)
            if names is not None:
                yield Choice(counts, blocked, gone, names)
            for v in _members(gone):
                less = gone & ~(1 << v)
                if len(seen) == MAX_SUMMED:
                    self.complete = False
                elif less not in seen:
                    seen.add(less)
                    work.append(less)

    def _names(self, variables: int) -> int | None:
        """The dims of unsummed variables; None if no value has such dims."""
        names = 0
        for v in _members(variables):
            bit = 1 << self.dim[v]
            if names & bit:
                return None
            names |= bit
        return names if self.space.representable(names) else None

    def _formable(self, inside: list[int], gone: int) -> bool:
        """Whether operators can join the factors, two values at a time."""
        groups: list[int] = []
        for own in inside:
            shared = [g for g in groups if g & own & gone]
            groups = [g for g in groups if not g & own & gone]
            groups.append(_union([own, *shared]))
        parts: list[Part] = [[self._dims(g & ~gone)] for g in groups]
        while len(parts) > 1:
            pairs = itertools.combinations(parts, 2)
            met = next((pair for pair in pairs if self._meet(*pair)), None)
            if met is None:
                return False
            a, b = met
            parts = [p for p in parts if p is not a and p is not b]
            parts.append([a[0] | b[0], *a, *b])
        return True

    def _meet(self, a: Part, b: Part) -> bool:
        """Whether two values can be joined, or some that they were joined from."""
        for x, y in itertools.product(a, b):
            union = x | y
            if union in (x, y) or any(union & ~names == 0 for names in self.outer):
                return True
        return False

    def _dims(self, variables: int) -> int:
        return _union([1 << self.dim[v] for v in _members(variables)])


def some_counts(most: int) -> Sequence[int]:
    """How many of so many equal things a part may have: from 0 to all.

    Of very many few, or all, halves and quarters: what is doubled has these as parts.
    """
    if most <= MOST_TIMES:
        return range(most + 1)
    halves = (most >> n for n in range(most.bit_length()))
    return (*range(MOST_TIMES + 1), *sorted(h for h in halves if h > MOST_TIMES))


def _place(at: int, choices: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The combination of this number, in the order of `itertools.product`."""
    found: list[int] = []
    for own in reversed(choices):
        at, place = divmod(at, len(own))
        found.append(own[place])
    return tuple(reversed(found))


def _mask(variables: tuple[int, ...]) -> int:
    return _union([1 << v for v in variables])


def _union(masks: list[int]) -> int:
    total = 0
    for mask in masks:
        total |= mask
    return total


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
