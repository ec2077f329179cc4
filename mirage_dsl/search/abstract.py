"""Abstract expressions as fingerprints, and the set S of all that are useful.

Under the paper's axioms (section 4.3) a sum over a dim is multiplication by a formal
constant, so the abstract expression of a value is a sum of monomials over atoms:
tensors, constants, one σ for each piece of a dim, and opaque functions.  Evaluated at
random field elements it is a fingerprint that costs one field operation for each
operator, and equal expressions get equal fingerprints.

Nothing cancels: x / x is not 1, for division multiplies by `iota`; and x - x is not 0,
for a fingerprint has a second component in which minus reads as plus.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from mirage_dsl.ops.definition import Term
from mirage_dsl.search.field61 import (
    IOTA,
    MODULUS,
    element_of,
    function_pair,
    key_of,
    word_of,
)
from mirage_dsl.search.space import Space, Value
from mirage_dsl.types import Scalar

Pair = tuple[int, int]
Factors = tuple[tuple[int, int], ...]
"""Atoms with positive exponents, sorted."""
Monomial = tuple[Factors, Factors, int]
"""Numerator, denominator and sign: x and -x are two terms, for they do not cancel."""
Sum = tuple[tuple[Monomial, int], ...]
"""Monomials with how often each occurs, sorted."""

MAX_MEMBERS = 400_000
"""Size of S at which it is cut off; the search is then not complete."""
MAX_SUBSETS = 1 << 14
"""Partial sums of one sum beyond which only small and large ones are taken."""

_ONE: Monomial = ((), (), 1)


def constant_value(number: Scalar) -> int | None:
    """The value of a constant that counts as a number: 1 or -1; others are atoms."""
    if number.extents or not isinstance(number.value, Fraction):
        return None
    return int(number.value) if number.value in (1, -1) else None


def function_word(value: Value) -> int:
    """What keys the uninterpreted function that makes `value`."""
    return word_of(f"{value.function} over {value.over}")


@dataclass(frozen=True)
class Site:
    """An application of an uninterpreted function, found by its operands' keys."""

    value: int
    keys: tuple[int, ...]
    result: Pair


@dataclass(frozen=True)
class Useful:
    """S of one loop choice.

    Attributes:
        keys: Keys of all subexpressions of all equivalents of the outputs.
        fingerprints: Of every value of the program.
        sites: Applications of uninterpreted functions, each once.
        site_of: The site of each value that such a function makes.
        sigma: σ of each piece of each dim: of a whole dim, and within a tile.
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


def useful(space: Space, loop: str | None, seed: int = 0) -> Useful:
    """S of a program, with σ of `loop` in two factors: iterations and tile.

    Dims that the loop does not split have one σ each: this keeps S small for long
    chains of contractions.
    """
    terms = _Terms(space, loop, seed)
    sums = [terms.sum_of(i) for i in range(len(space.values))]
    keys, truncated = terms.subexpressions([sums[o.value] for o in space.outputs])
    pairs = tuple(terms.pair(s) for s in sums)
    # The program itself is in the space even where S was cut off.
    keys.update(key_of(p) for p in pairs)
    sites: dict[tuple[int, tuple[int, ...]], Site] = {}
    found = list[tuple[int, tuple[int, ...]]]()
    for i in space.functions:
        operands = terms.operand_keys(space.values[i])
        found.append((function_word(space.values[i]), operands))
        sites.setdefault(found[-1], Site(i, operands, pairs[i]))
    order = {key: number for number, key in enumerate(sites)}
    tile = [terms.value(terms.sigma_atom(d, "tile"))[0] for d in space.dims]
    whole = [terms.pair(terms.sigma(1 << i))[0] for i in range(len(space.dims))]
    return Useful(
        frozenset(keys),
        pairs,
        tuple(sites.values()),
        {i: order[key] for i, key in zip(space.functions, found, strict=True)},
        tuple(zip(whole, tile, strict=True)),
        terms.value(terms.sigma_atom(loop or "", "loop"))[0],
        truncated,
    )


class _Terms:
    """Normal forms of a program's values, with interned atoms."""

    def __init__(self, space: Space, loop: str | None, seed: int) -> None:
        self.space, self.loop, self.seed = space, loop, seed
        self.atoms: dict[object, int] = {}
        self.pairs: list[Pair] = []
        self.parts: list[tuple[Sum, ...]] = []
        self.sums: dict[int, Sum] = {}

    # Atoms.

    def intern(self, key: object, pair: Pair, parts: tuple[Sum, ...] = ()) -> int:
        """The number of an atom; `parts` are the sums inside it."""
        if key not in self.atoms:
            self.atoms[key] = len(self.pairs)
            self.pairs.append(pair)
            self.parts.append(parts)
        return self.atoms[key]

    def symbol(self, text: str) -> int:
        """An atom without parts."""
        x = element_of(f"{self.seed} {text}")
        return self.intern(text, (x, x))

    def value(self, atom: int) -> Pair:
        """Fingerprint of an atom."""
        return self.pairs[atom]

    def sigma_atom(self, dim: str, piece: str) -> int:
        """The σ of a piece of a dim."""
        return self.symbol(f"sigma {dim} {piece}")

    def sigma(self, dims: int) -> Sum:
        """The σ of some dims, whole."""
        atoms: list[int] = []
        for name in self.space.names(dims):
            atoms.append(self.sigma_atom(name, "tile"))
            if name == self.loop:
                atoms.append(self.sigma_atom(name, "loop"))
        return (((tuple(sorted((a, 1) for a in atoms)), (), 1), 1),)

    # Normal forms.

    def sum_of(self, index: int) -> Sum:
        """The normal form of a value of the program."""
        if index not in self.sums:
            self.sums[index] = self._sum_of(self.space.values[index])
        return self.sums[index]

    def _sum_of(self, value: Value) -> Sum:
        if value.constant is not None:
            number = constant_value(value.constant)
            if number is not None:
                return ((((), (), number), 1),)
            return _atom_sum(self.symbol(f"constant {value.constant}"))
        if value.op is None:
            return _atom_sum(self.symbol(f"tensor {value.name}"))
        operands = [self.sum_of(i) for i in value.operands]
        match value.op.term:
            case Term.ADD:
                return _plus(operands[0], operands[1], 1)
            case Term.SUB:
                return _plus(operands[0], operands[1], -1)
            case Term.MUL:
                return self.times(operands[0], operands[1])
            case Term.DIV:
                return self.times(operands[0], self.inverse(operands[1]))
            case Term.SUM | Term.CONTRACT:
                return reduce(self.times, [*operands, self.sigma(value.over)])
            case Term.IDENTITY:
                return operands[0]
            case Term.FUNCTION:
                keys = self.operand_keys(value)
                word = function_word(value)
                pair = function_pair(word, keys)
                return _atom_sum(self.intern((word, keys), pair, tuple(operands)))

    def operand_keys(self, value: Value) -> tuple[int, ...]:
        """Keys of a function's operands; in fixed order if they may be swapped."""
        keys = tuple(key_of(self.pair(self.sum_of(i))) for i in value.operands)
        assert value.op is not None
        return tuple(sorted(keys)) if value.op.commutative else keys

    def times(self, a: Sum, b: Sum) -> Sum:
        """The product; a product of two sums stays one, of their atoms."""
        if len(a) > 1 and len(b) > 1:
            a, b = self.enclosed(a), self.enclosed(b)
        total: dict[Monomial, int] = {}
        for (m, c), (n, d) in itertools.product(a, b):
            product = (_join(m[0], n[0]), _join(m[1], n[1]), m[2] * n[2])
            total[product] = total.get(product, 0) + c * d
        return _sorted_sum(total)

    def inverse(self, a: Sum) -> Sum:
        """The formal inverse."""
        (((num, den, sign), count),) = self.enclosed(a)
        if count > 1:
            number: Sum = ((_ONE, count),)
            atom = self.intern(number, self.pair(number))
            num = _join(num, ((atom, 1),))
        return (((den, num, sign), 1),)

    def enclosed(self, a: Sum) -> Sum:
        """A sum as one monomial: what its terms share, times an atom for the rest."""
        if len(a) == 1:
            return a
        num = _shared([m[0] for m, _ in a])
        den = _shared([m[1] for m, _ in a])
        terms = {(_less(m[0], num), _less(m[1], den), m[2]): c for m, c in a}
        rest = tuple(sorted(terms.items()))
        atom = self.intern(rest, self.pair(rest), (rest,))
        return (((_join(num, ((atom, 1),)), den, 1), 1),)

    # Fingerprints.

    def monomial_pair(self, m: Monomial) -> Pair:
        """Fingerprint of a monomial; the second component knows no sign."""
        first = second = 1
        for atom, e in m[0]:
            x, y = self.pairs[atom]
            first = first * pow(x, e, MODULUS) % MODULUS
            second = second * pow(y, e, MODULUS) % MODULUS
        for atom, e in m[1]:
            x, y = self.pairs[atom]
            first = first * pow(x, IOTA * e, MODULUS) % MODULUS
            second = second * pow(y, IOTA * e, MODULUS) % MODULUS
        return first * m[2] % MODULUS, second

    def pair(self, a: Sum) -> Pair:
        """Fingerprint of a sum."""
        first = second = 0
        for m, c in a:
            x, y = self.monomial_pair(m)
            first, second = first + c * x, second + c * y
        return first % MODULUS, second % MODULUS

    # Decomposition.

    def subexpressions(self, targets: Sequence[Sum]) -> tuple[set[int], bool]:
        """Keys of all subexpressions of all equivalents, and whether some lack."""
        keys: set[int] = set()
        seen: set[Sum] = set()
        work, truncated = list(targets), False
        negative = Term.SUB in self.space.terms or any(
            self.space.values[i].constant == Scalar(Fraction(-1))
            for i in self.space.constants
        )
        while work:
            whole = work.pop()
            if whole in seen:
                continue
            seen.add(whole)
            for (num, den, _), _ in whole:
                work.extend(p for a, _ in num + den for p in self.parts[a])
                if den:
                    work.append((((den, (), 1), 1),))
            for part in _partial_sums(whole):
                self._add_quotients(part, keys, negative)
            truncated |= _subset_count(whole) > MAX_SUBSETS
            if len(keys) > MAX_MEMBERS:
                return keys, True
        return keys, truncated

    def _add_quotients(self, part: Sum, keys: set[int], negative: bool) -> None:
        """Add `part` divided by every divisor that all its terms share."""
        total = self.pair(part)
        nums = _divisors(_shared([m[0] for m, _ in part]))
        dens = _divisors(_shared([m[1] for m, _ in part]))
        for first, second in itertools.product(
            self._reciprocals([(num, (), 1) for num in nums]),
            self._reciprocals([((), den, 1) for den in dens]),
        ):
            x = total[0] * first[0] * second[0] % MODULUS
            y = total[1] * first[1] * second[1] % MODULUS
            keys.add(key_of((x, y)))
            if negative:
                keys.add(key_of((-x % MODULUS, y)))

    def _reciprocals(self, monomials: list[Monomial]) -> list[Pair]:
        pairs = [self.monomial_pair(m) for m in monomials]
        # Only a sum like x - x has the residue 0; its quotients are 0 too.
        return [
            (pow(x, -1, MODULUS) if x else 0, pow(y, -1, MODULUS)) for x, y in pairs
        ]


def _atom_sum(atom: int) -> Sum:
    return (((((atom, 1),), (), 1), 1),)


def _sorted_sum(terms: dict[Monomial, int]) -> Sum:
    return tuple(sorted(terms.items()))


def _plus(a: Sum, b: Sum, sign: int) -> Sum:
    total = dict(a)
    for (num, den, own), count in b:
        term = (num, den, own * sign)
        total[term] = total.get(term, 0) + count
    return _sorted_sum(total)


def _join(a: Factors, b: Factors) -> Factors:
    """The product of two lists of factors."""
    if not a or not b:
        return a or b
    total = dict(a)
    for atom, e in b:
        total[atom] = total.get(atom, 0) + e
    return tuple(sorted(total.items()))


def _less(a: Factors, b: Factors) -> Factors:
    """The quotient; `b` divides `a`."""
    powers = dict(b)
    return tuple((x, e - powers.get(x, 0)) for x, e in a if e > powers.get(x, 0))


def _shared(factors: list[Factors]) -> Factors:
    """The greatest common divisor."""
    common = dict(factors[0])
    for other in factors[1:]:
        powers = dict(other)
        common = {x: min(e, powers[x]) for x, e in common.items() if x in powers}
    return tuple(sorted(common.items()))


def _divisors(factors: Factors) -> Iterator[Factors]:
    for powers in itertools.product(*(range(e + 1) for _, e in factors)):
        yield tuple((x, p) for (x, _), p in zip(factors, powers, strict=True) if p)


def _subset_count(whole: Sum) -> int:
    count = 1
    for _, c in whole:
        count *= c + 1
    return count


def _partial_sums(whole: Sum) -> Iterator[Sum]:
    """All non-empty sums of terms of `whole`, each up to as often as there."""
    if _subset_count(whole) > MAX_SUBSETS:
        yield from _some_partial_sums(whole)
        return
    for counts in itertools.product(*(range(c + 1) for _, c in whole)):
        part = tuple((m, n) for (m, _), n in zip(whole, counts, strict=True) if n)
        if part:
            yield part


def _some_partial_sums(whole: Sum) -> Iterator[Sum]:
    """The whole, single terms, runs of terms, and all terms but one."""
    for i, j in itertools.combinations(range(len(whole) + 1), 2):
        yield whole[i:j]
    for i in range(len(whole)):
        yield whole[:i] + whole[i + 1 :]
