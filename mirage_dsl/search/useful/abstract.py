"""S: the keys of all abstract expressions that can be part of an equivalent program.

A value is useful if it is a sub-network of a monomial of the target: some of its
factors, some of its σ, where a σ may be there only if all factors with its variable
are; or a sum of sub-networks that leave the same rest.  Members are pairs of a
fingerprint's key and the dims that the value then has.  The dims matter: without them
Σ_h w * Σ_h x, which is no part of Σ_h w * x, would count as useful.

Of the sub-networks of a monomial only some can be made: operators join two values that
share summed dims, or of which one has all dims of the other, or whose dims together are
those of a value of the program (`Rules.outer`).  So a_ij b_jk d_lm is no value on the
way to a product of four matrices, and S grows with the square of the number of
matrices, not exponentially.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_dsl.core.clock import look
from mirage_dsl.core.types import Scalar
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.space import Space
from mirage_dsl.search.useful.field61 import MODULUS, key_of, scramble
from mirage_dsl.search.useful.terms import (
    ONE,
    REDUCE,
    Factor,
    Monomial,
    Pair,
    Steps,
    Sum,
    Terms,
    folded,
    raised,
    times,
)

MAX_MEMBERS = 200_000
"""Size of S at which it is cut off; the search is then not complete."""
MAX_SUBSETS = 1 << 12
"""Partial sums of one sum beyond which only small and large ones are taken."""

AS_IN_TARGET = 0x2545F4914F6CDD1D
"""Marks the keys of values that have the sign that they have in the target.

Multiplication by -1 may only lead to those, or every value would come with a detour
over its negative.
"""

_MINUS_ONE = Scalar(Fraction(-1))


def salt_of(names: int) -> int:
    """What the dims of a value add to its key in S."""
    return scramble(names)


@dataclass(frozen=True)
class Site:
    """An application of an uninterpreted function, found by its operands' keys.

    Attributes:
        value: A value of the program that the function makes.
        word: What keys the function.
        keys: Keys of the operands.
        result: Fingerprint of the result.
        over: Dims that it reduces, as a mask.
        way: How it does so (`search.useful.terms`).
        along: The dim that it scans, as a mask.
    """

    value: int
    word: int
    keys: tuple[int, ...]
    result: Pair
    over: int = 0
    way: int = REDUCE
    along: int = 0


@dataclass(frozen=True)
class Useful:
    """S of one loop choice.

    Attributes:
        keys: Members: keys of fingerprints, salted with the dims of the value.
        fingerprints: Of every value of the program.
        sites: Applications of uninterpreted functions, each once.
        site_of: The site of each value that such a function makes.
        sigma: σ of each dim: of the whole, and of a tile.
        sigma_loop: σ of the iterations.
        truncated: Whether a limit was met, so that keys are missing.
    """

    keys: frozenset[int]
    fingerprints: tuple[Pair, ...]
    sites: tuple[Site, ...]
    site_of: dict[int, int]
    sigma: tuple[tuple[int, int], ...]
    sigma_loop: int
    truncated: bool


def useful(
    space: Space, loop: str | None, seed: int = 0, *, own: bool = False
) -> Useful:
    """S of a program, with σ of `loop` in two factors: iterations and tile.

    Dims that the loop does not split have one σ each: this keeps S small for long
    chains of contractions.

    Args:
        space: The program.
        loop: The dim over which blocks iterate, or None.
        seed: Of the random elements.
        own: Take only values of the program itself, and what iterations add to them.
    """
    terms = Terms(space, loop, seed)
    sums = [terms.sum_of(i) for i in range(len(space.values))]
    pairs = tuple(terms.pair(s) for s in sums)
    members = _Members(terms, _has_negatives(space))
    if own:
        members.take_iterations(space, pairs)
    else:
        members.take([sums[o.value] for o in space.outputs[: space.targets]])
    # The program itself is in the space even where S was cut off.
    for value, pair in zip(space.values, pairs, strict=True):
        if any(space.values[i].constant == _MINUS_ONE for i in value.operands):
            members.add_as_is(pair, value.names)
        else:
            members.add(pair, value.names)
    sites, site_of = _sites(terms, pairs, members)
    dims = range(len(space.dims))
    return Useful(
        frozenset(members.keys),
        pairs,
        sites,
        site_of,
        tuple((terms.sigma_whole(d), terms.sigma(d, "tile")) for d in dims),
        terms.sigma(terms.loop, "loop"),
        own or members.truncated or terms.truncated,
    )


def _sites(
    terms: Terms, pairs: Sequence[Pair], members: _Members
) -> tuple[tuple[Site, ...], dict[int, int]]:
    """All sites, and the number of one that makes each value of a function.

    What steps make on the way to a value joins S.
    """
    space = terms.space
    sites: dict[object, Site] = {}
    made: dict[tuple[Pair, bool], object] = {}
    for i in space.functions:
        value = space.values[i]
        word, keys = terms.application(i)
        assert value.op is not None
        if not value.op.in_steps:
            found = Site(i, word, keys, pairs[i], along=value.along)
            sites.setdefault((word, keys), found)
            made.setdefault((pairs[i], False), (word, keys))
            continue
        base, over = folded(space, i)
        loop = over & (1 << terms.loop) if terms.loop >= 0 else 0
        names = space.values[base].names
        for step in Steps(value, over, loop, pairs[base], names).all():
            members.add(step.result, step.names)
            found = Site(i, word, (step.key,), step.result, step.over, step.way)
            key = step.key, step.over, step.way, step.result
            sites.setdefault(key, found)
            if step.way == REDUCE:
                made.setdefault((step.result, True), key)
    order = {key: number for number, key in enumerate(sites)}
    site_of: dict[int, int] = {}
    for i in space.functions:
        op = space.values[i].op
        assert op is not None
        site_of[i] = order[made[pairs[i], op.in_steps]]
    return tuple(sites.values()), site_of


def _has_negatives(space: Space) -> bool:
    """Whether an equivalent program may have a value with the sign reversed."""
    return Term.SUB in space.terms or any(
        space.values[i].constant == _MINUS_ONE for i in space.constants
    )


class _Members:
    """Collects S."""

    def __init__(self, terms: Terms, negative: bool) -> None:
        self.terms, self.negative = terms, negative
        self.keys: set[int] = set()
        self.truncated = False
        self.networks = NetworkFinder(terms)

    def add_as_is(self, pair: Pair, names: int) -> None:
        """Add a value with some dims, and the sign that it has in the target."""
        if self.negative:
            self.keys.add(key_of(pair) ^ salt_of(names) ^ AS_IN_TARGET or 1)
        self.add(pair, names)

    def add(self, pair: Pair, names: int) -> None:
        """Add a value with some dims, with both signs where there is a minus."""
        salt = salt_of(names)
        self.keys.add(key_of(pair) ^ salt or 1)
        if self.negative:
            self.keys.add(key_of((-pair[0] % MODULUS, pair[1])) ^ salt or 1)

    def take_iterations(self, space: Space, pairs: Sequence[Pair]) -> None:
        """Add what each iteration adds to the program's sums over the loop."""
        if self.terms.loop < 0:
            return
        share = pow(self.terms.sigma(self.terms.loop, "loop"), -1, MODULUS)
        for value, pair in zip(space.values, pairs, strict=True):
            if value.over >> self.terms.loop & 1:
                self.add_as_is(times(pair, (share, share)), value.names)

    def take(self, targets: Sequence[Sum]) -> None:
        """Add all parts of some sums, and of the sums inside their atoms."""
        seen: set[Sum] = set()
        work = list(targets)
        while work:
            whole = work.pop()
            if whole in seen:
                continue
            seen.add(whole)
            for m in whole:
                work.extend(p for f in m.factors for p in self.terms.parts[f.atom])
                divisor = tuple(
                    replace(f, inverted=False) for f in m.factors if f.inverted
                )
                if divisor:
                    work.append((Monomial(divisor),))
            for part in self._partial_sums(whole):
                self._add_sum(part)
                if len(self.keys) > MAX_MEMBERS:
                    self.truncated = True
                    return

    def _partial_sums(self, whole: Sum) -> Iterator[Sum]:
        """All non-empty sums of terms of `whole`; of very many of them only some."""
        choices = [some_counts(m.count) for m in whole]
        self.truncated |= any(
            len(c) <= m.count for m, c in zip(whole, choices, strict=True)
        )
        if math.prod(map(len, choices)) > MAX_SUBSETS:
            self.truncated = True
            yield from _some_partial_sums(whole)
            return
        for chosen in itertools.product(*choices):
            part = tuple(
                replace(m, count=n) for m, n in zip(whole, chosen, strict=True) if n
            )
            if part:
                yield part

    def _add_sum(self, part: Sum) -> None:
        """Add what `part` is divided by anything that all its terms can leave."""
        look()
        alone = len(part) == 1 and part[0].count == 1
        options = [self.networks.of(m.once, alone=alone) for m in part]
        self.truncated |= self.networks.truncated
        first, *others = options
        for rest in first:
            if not all(rest in o for o in others):
                continue
            pairs = list(zip(part, options, strict=True))
            x = sum(m.sign * m.count * o[rest][0][0] for m, o in pairs)
            y = sum(m.count * o[rest][0][1] for m, o in pairs)
            names = {0}
            for o in options:
                names = {a | b for a in names for b in o[rest][1]}
            for mask in names:
                self.add_as_is((x % MODULUS, y % MODULUS), mask)


def _some_partial_sums(whole: Sum) -> Iterator[Sum]:
    """The whole, single terms, runs of terms, and all terms but one.

    Of very long sums only the runs from the first term on.
    """
    count = len(whole)
    edges = itertools.combinations(range(count + 1), 2)
    if count * count > 2 * MAX_SUBSETS:
        edges = ((0, end) for end in range(1, count + 1))
    for i, j in edges:
        yield whole[i:j]
    for i in range(count):
        yield (whole[i],)
        yield whole[:i] + whole[i + 1 :]


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
