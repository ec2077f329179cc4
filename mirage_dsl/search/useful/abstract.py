"""S: the keys of all abstract expressions that can be part of an equivalent program.

A value is useful if it is a sub-network of a monomial of the target: some of its
factors, some of its σ, where a σ may be there only if all factors with its variable
are; or a sum of sub-networks that leave the same rest.  Members are pairs of a
fingerprint's key and the dims that the value then has.  The dims matter: without them
Σ_h w * Σ_h x, which is no part of Σ_h w * x, would count as useful.
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
from mirage_dsl.search.useful.networks import NetworkFinder, some_counts
from mirage_dsl.search.useful.terms import (
    REDUCE,
    Monomial,
    Pair,
    Steps,
    Sum,
    Terms,
    folded,
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
