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

**Normal forms** of a program's values are sums of products of indexed factors.

Under the paper's axioms (section 4.3) a sum over a dim is multiplication by a formal
constant σ, so every value is a sum of monomials over atoms: tensors, constants, opaque
functions, and sums that a division or a product with another sum keeps whole.  Factors
carry index variables, as in Σ_h w[h, n] * x[b, h]: which factors a σ sums is known.

Equal monomials are counted together, and so are equal factors: x doubled or squared n
times is one term, not 2ⁿ.  A sum of very many different terms is one atom.

Evaluated at random field elements a normal form is a fingerprint.  Nothing cancels in
it: division multiplies by `iota`, and a second component reads minus as plus.

**Fingerprints** are numbers modulo 2**61 - 1, and their arithmetic is written twice.

The Python half serves the few terms of a program, the compiled half the millions of
the closure.  `tests/search/test_useful.py` holds them to each other.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import inner, once
from mirage_dsl.core.types import Scalar
from mirage_dsl.core.work import look
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.space import Space, Value, union_of

# -- Fingerprints ----------------------------------------------------------------------


MODULUS = (1 << 61) - 1
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_SECOND = 0xD6E8FEB86659FD93


def _involution() -> int:
    """The exponent k of `iota`, with k*k = 1 modulo 2**61 - 2, neither 1 nor -1.

    Chosen by the Chinese remainder theorem as 1 or -1 modulo each prime power.
    """
    order = MODULUS - 1
    signs = {2: 1, 9: -1, 25: 1, 7: -1, 11: 1, 13: -1}
    signs |= {31: 1, 41: -1, 61: 1, 151: -1, 331: 1, 1321: -1}
    terms = [sign * (order // m) * pow(order // m, -1, m) for m, sign in signs.items()]
    return sum(terms) % order


Words = NDArray[np.uint64]

IOTA = _involution()


def iota(x: int) -> int:
    """The formal inverse: a multiplicative involution that cancels nothing."""
    return pow(x, IOTA, MODULUS)


def scramble(x: int) -> int:
    """A bijection of 64-bit words that looks random (splitmix64)."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def key_of(pair: tuple[int, int]) -> int:
    """One word for a fingerprint; never 0, which marks free slots of hash tables."""
    return (pair[0] ^ (pair[1] * _SECOND & _MASK)) & _MASK or 1


def word_of(text: str) -> int:
    """A 64-bit word that depends on `text` alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def element_of(text: str) -> int:
    """A random non-zero field element that depends on `text` alone."""
    return scramble(word_of(text)) % (MODULUS - 1) + 1


def _function_pair(word: int, keys: Sequence[int]) -> tuple[int, int]:
    """The fingerprint of an opaque function of operands with these keys."""
    for key in keys:
        word = scramble(word ^ key)
    return scramble(word) % MODULUS, scramble(word ^ 0x5555) % MODULUS


_U = np.uint64
_P = _U(MODULUS)
_KI = _U(IOTA)


@inner
def mul61(a, b):
    """Product of two residues below 2**61 - 1."""
    al, ah = a & _U(0xFFFFFFFF), a >> _U(32)
    bl, bh = b & _U(0xFFFFFFFF), b >> _U(32)
    low, mid, high = al * bl, ah * bl + al * bh, ah * bh
    r = high * _U(8) + (mid >> _U(29)) + ((mid & _U(0x1FFFFFFF)) << _U(32))
    r += (low & _P) + (low >> _U(61))
    r = (r & _P) + (r >> _U(61))
    if r >= _P:
        r -= _P
    return r


@inner
def add61(a, b):
    """Sum of two residues."""
    r = a + b
    if r >= _P:
        r -= _P
    return r


@inner
def sub61(a, b):
    """Difference of two residues."""
    return add61(a, _P - b)


@inner
def iota61(x):
    """The formal inverse of a residue."""
    exponent, result, power = _KI, _U(1), x
    while exponent:
        if exponent & _U(1):
            result = mul61(result, power)
        power = mul61(power, power)
        exponent >>= _U(1)
    return result


@inner
def scramble64(x):
    """`scramble` on an unsigned word."""
    x = x + _U(_GOLDEN)
    x = (x ^ (x >> _U(30))) * _U(_MIX_1)
    x = (x ^ (x >> _U(27))) * _U(_MIX_2)
    return x ^ (x >> _U(31))


@inner
def key64(a, b):
    """`key_of` on unsigned words."""
    k = a ^ (b * _U(_SECOND))
    if k == _U(0):
        k = _U(1)
    return k


def member_table(keys: Words) -> Words:
    """An open-addressing table of non-zero words, at most a quarter full."""
    size = 16
    while size < 4 * len(keys):
        size *= 2
    table, mask = np.zeros(size, np.uint64), _U(size - 1)
    at = ((keys * _U(_GOLDEN)) >> _U(20)) & mask
    while len(keys):
        free = table[at] == 0
        table[at[free]] = keys[free]
        left = table[at] != keys
        keys, at = keys[left], (at[left] + _U(1)) & mask
    return table


@once
def is_member(table, mask, x):
    """Whether `x` is in a table made by `member_table`, of `mask + 1` slots."""
    i = ((x * _U(_GOLDEN)) >> _U(20)) & mask
    while table[i] != _U(0):
        if table[i] == x:
            return True
        i = (i + _U(1)) & mask
    return False


# -- Reductions in steps ---------------------------------------------------------------
# A maximum over some dims is a maximum over a part of them first; over the loop's
# dim it is one within each tile and one over the iterations, in either order.
# Sums need no such rules, for a sum is a product with σ (`search.useful`).

Pair = tuple[int, int]

REDUCE, IN_TILE, JOIN = range(3)
"""What a step does: reduces dims; reduces the index within the loop's tile, and dims;
joins the iterations."""

MOST_DIMS = 4
"""Dims of a reduction beyond which it is not made in steps."""

WHOLE, TILE, JOINED, DONE = range(4)
"""How much of the loop's dim is reduced: nothing, the index within the tile, the
iterations, everything."""


@dataclass(frozen=True)
class Step:
    """One step: the keys of what it takes, what it reduces, and what it makes.

    Attributes:
        key: Key of the operand.
        over: Dims that it reduces, as a mask.
        way: What it does with them.
        result: Fingerprint of the result.
        names: Dims of the result.
    """

    key: int
    over: int
    way: int
    result: Pair
    names: int


def folded(space: Space, index: int) -> tuple[int, int]:
    """What a reduction reduces and over which dims, nested ones taken as one."""
    value = space.values[index]
    assert value.op is not None
    base, over = value.operands[0], value.over
    while space.values[base].op is value.op:
        over |= space.values[base].over
        base = space.values[base].operands[0]
    return base, over


def word_of_step(value: Value, over: int, state: int) -> int:
    """What keys the function that reduces `over`, and the loop's dim as far as said."""
    text = f"{value.function} over {over}"
    return word_of(f"{text} as far as {state}" if state in (TILE, JOINED) else text)


@dataclass(frozen=True)
class Steps:
    """The steps of one reduction.

    Attributes:
        value: A value of the program that it makes.
        over: All dims over which it reduces.
        loop: The bit of the loop's dim if that is one of them, else 0.
        base: Fingerprint of what is reduced.
        names: Its dims.
    """

    value: Value
    over: int
    loop: int
    base: Pair
    names: int

    def all(self) -> Iterator[Step]:
        """Every step from every partial result."""
        rest = self.over & ~self.loop
        if self.over.bit_count() > MOST_DIMS:
            whole = WHOLE if self.loop else DONE
            yield self._step(0, whole, self.over, DONE, REDUCE)
            return
        for gone in _subsets(rest):
            for more in _subsets(rest & ~gone):
                yield from self._from(gone, more)

    def _from(self, gone: int, more: int) -> Iterator[Step]:
        """Steps from where `gone` is reduced to where `more` is too."""
        if not self.loop:
            if more:
                yield self._step(gone, DONE, more, DONE, REDUCE)
            return
        if more:
            for state in (WHOLE, TILE, JOINED, DONE):
                yield self._step(gone, state, more, state, REDUCE)
        yield self._step(gone, WHOLE, more | self.loop, DONE, REDUCE)
        yield self._step(gone, WHOLE, more | self.loop, TILE, IN_TILE)
        yield self._step(gone, JOINED, more | self.loop, DONE, IN_TILE)
        if not more:
            yield self._step(gone, WHOLE, 0, JOINED, JOIN)
            yield self._step(gone, TILE, 0, DONE, JOIN)

    def _step(self, gone: int, before: int, over: int, after: int, way: int) -> Step:
        key = key_of(self._pair(gone, before))
        gone |= over & ~self.loop
        names = self.names & ~gone
        if after in (TILE, DONE):
            names &= ~self.loop
        return Step(key, over, way, self._pair(gone, after), names)

    def _pair(self, gone: int, state: int) -> Pair:
        """Fingerprint of a partial result."""
        if state == DONE:
            gone |= self.loop
        if not gone and state in (WHOLE, DONE):
            return self.base
        return _function_pair(
            word_of_step(self.value, gone, state), (key_of(self.base),)
        )


def _subsets(mask: int) -> Iterator[int]:
    part = mask
    while True:
        yield part
        if not part:
            return
        part = (part - 1) & mask


# -- Normal forms ----------------------------------------------------------------------

_ONE: Pair = (1, 1)

MOST_TERMS = 256
"""Different terms of a sum beyond which it is kept whole."""


@dataclass(frozen=True, order=True)
class Factor:
    """A power of an atom with index variables, above or below the line."""

    atom: int
    indices: tuple[int, ...]
    inverted: bool = False
    power: int = 1

    @property
    def once(self) -> Factor:
        """Its first power."""
        return self if self.power == 1 else replace(self, power=1)


@dataclass(frozen=True, order=True)
class Monomial:
    """sign * count * Σ over `bound` of the product of `factors` (sorted)."""

    factors: tuple[Factor, ...] = ()
    bound: tuple[int, ...] = ()
    sign: int = 1
    count: int = 1

    @property
    def once(self) -> Monomial:
        """The same, counted once."""
        return self if self.count == 1 else replace(self, count=1)


Sum = tuple[Monomial, ...]
"""Monomials, sorted, each once; those of either sign apart, for nothing cancels."""


def sum_of_terms(terms: Iterable[Monomial]) -> Sum:
    """A sum, equal terms counted together."""
    counts: Counter[Monomial] = Counter()
    for m in terms:
        counts[m.once] += m.count
    return tuple(
        sorted(m if n == 1 else replace(m, count=n) for m, n in counts.items())
    )


def product_of(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """Factors, sorted, equal ones as one power."""
    powers: Counter[Factor] = Counter()
    for f in factors:
        powers[f.once] += f.power
    return tuple(
        sorted(f if n == 1 else replace(f, power=n) for f, n in powers.items())
    )


def times(a: Pair, b: Pair) -> Pair:
    """The product of two fingerprints."""
    return a[0] * b[0] % MODULUS, a[1] * b[1] % MODULUS


def _raised(a: Pair, power: int) -> Pair:
    """A power of a fingerprint."""
    return a if power == 1 else (pow(a[0], power, MODULUS), pow(a[1], power, MODULUS))


def constant_value(number: Scalar) -> int | None:
    """The value of a constant that counts as a number: 1 or -1; others are atoms."""
    if number.extents or not isinstance(number.value, Fraction):
        return None
    return int(number.value) if number.value in (1, -1) else None


class Terms:
    """The normal forms of a program, for one loop choice.

    Attributes:
        parts: For each atom the sums inside it.
        dim: For each index variable its dim; the first ones are the free dims.
        truncated: Whether a sum was kept whole for its length.
    """

    def __init__(self, space: Space, loop: str | None, seed: int) -> None:
        self.space, self.seed = space, seed
        self.loop = -1 if loop is None else space.dims.index(loop)
        self.parts: list[tuple[Sum, ...]] = []
        self.truncated = False
        self.dim = list(range(len(space.dims)))
        self._pairs: list[tuple[Pair, Pair]] = []
        self._atoms: dict[object, int] = {}
        self._variables: dict[object, int] = {}
        self._sums: dict[int, Sum] = {}

    # Atoms, variables and σ.

    def atom(self, key: object, pair: Pair, parts: tuple[Sum, ...] = ()) -> int:
        """The number of an atom; `parts` are the sums inside it."""
        if key not in self._atoms:
            self._atoms[key] = len(self.parts)
            self._pairs.append((pair, (iota(pair[0]), iota(pair[1]))))
            self.parts.append(parts)
        return self._atoms[key]

    def variable(self, dim: int, origin: object) -> int:
        """The bound variable of a dim and of what binds it."""
        key = dim, origin
        if key not in self._variables:
            self._variables[key] = len(self.dim)
            self.dim.append(dim)
        return self._variables[key]

    def sigma(self, dim: int, piece: str) -> int:
        """The σ of a piece of a dim: `tile` or, of the loop dim, `loop`."""
        name = self.space.dims[dim] if dim >= 0 else ""
        return element_of(f"{self.seed} sigma {name} {piece}")

    def sigma_whole(self, dim: int) -> int:
        """The σ of a whole dim."""
        tile = self.sigma(dim, "tile")
        return tile * self.sigma(dim, "loop") % MODULUS if dim == self.loop else tile

    # Fingerprints.

    def factor_pair(self, factor: Factor) -> Pair:
        """Fingerprint of a factor."""
        return _raised(self._pairs[factor.atom][factor.inverted], factor.power)

    def pair(self, whole: Sum) -> Pair:
        """Fingerprint of a sum; the second component knows no sign."""
        first = second = 0
        for m in whole:
            product = _ONE
            for factor in m.factors:
                product = times(product, self.factor_pair(factor))
            for v in m.bound:
                s = self.sigma_whole(self.dim[v])
                product = times(product, (s, s))
            first += m.sign * m.count * product[0]
            second += m.count * product[1]
        return first % MODULUS, second % MODULUS

    # Normal forms.

    def sum_of(self, index: int) -> Sum:
        """The normal form of a value of the program."""
        if index not in self._sums:
            look()
            found = self._make(index, self.space.values[index])
            if len(found) > MOST_TERMS:
                self.truncated = True
                found = self.enclosed(found)
            self._sums[index] = found
        return self._sums[index]

    def _make(self, index: int, value: Value) -> Sum:
        operands = [self.sum_of(i) for i in value.operands]
        match value.term:
            case None:
                return self._leaf(value)
            case Term.ADD:
                return sum_of_terms(operands[0] + operands[1])
            case Term.SUB:
                return sum_of_terms(operands[0] + _negated(operands[1]))
            case Term.MUL:
                return self.product(operands[0], operands[1])
            case Term.DIV:
                return self.product(operands[0], self.inverse(operands[1]))
            case Term.SUM:
                return self._bind(operands[0], value.over, index)
            case Term.CONTRACT:
                whole = self.product(operands[0], operands[1])
                return self._bind(whole, value.over, index)
            case Term.FUNCTION | Term.IDENTITY:
                return self._function(index, tuple(operands))

    def _leaf(self, value: Value) -> Sum:
        number = None if value.constant is None else constant_value(value.constant)
        if number is not None:
            return (Monomial(sign=number),)
        kind = "tensor" if value.constant is None else "constant"
        text = f"{kind} {value.name}"
        x = element_of(f"{self.seed} {text}")
        return self._single(self.atom(text, (x, x)), value.names)

    def _single(self, atom: int, names: int) -> Sum:
        indices = tuple(i for i in range(len(self.space.dims)) if names >> i & 1)
        return (Monomial((Factor(atom, indices),)),)

    def _function(self, index: int, operands: tuple[Sum, ...]) -> Sum:
        word, keys = self.application(index)
        atom = self.atom((word, keys), _function_pair(word, keys), operands)
        return self._single(atom, self.space.values[index].names)

    def application(self, index: int) -> tuple[int, tuple[int, ...]]:
        """What keys a function's result: a word, and the keys of its operands.

        The keys are in fixed order if the operands may be swapped.
        """
        value = self.space.values[index]
        assert value.op is not None
        operands, over = value.operands, value.over
        if value.op.in_steps:
            base, over = folded(self.space, index)
            operands = (base,)
        keys = tuple(key_of(self.pair(self.sum_of(i))) for i in operands)
        ordered = tuple(sorted(keys)) if value.op.commutative else keys
        return word_of(f"{value.function} over {over}"), ordered

    def _bind(self, whole: Sum, over: int, origin: int) -> Sum:
        """The sum over some dims."""
        dims = [i for i in range(len(self.space.dims)) if over >> i & 1]
        names = {d: self.variable(d, origin) for d in dims}
        bound = tuple(names.values())
        return sum_of_terms(
            replace(
                m,
                factors=_renamed(m.factors, names),
                bound=tuple(sorted(m.bound + bound)),
            )
            for m in whole
        )

    def product(self, a: Sum, b: Sum) -> Sum:
        """The product; of two sums it stays one, of the atoms that enclose them."""
        if _several(a) and _several(b):
            a, b = self.enclosed(a), self.enclosed(b)
        return sum_of_terms(self._joined(m, n) for m, n in itertools.product(a, b))

    def _joined(self, m: Monomial, n: Monomial) -> Monomial:
        """The product of monomials, with their bound variables kept apart."""
        names: dict[int, int] = {}
        for v in n.bound:
            if v in m.bound:
                copy = v
                while copy in m.bound or copy in n.bound or copy in names.values():
                    copy = self.variable(self.dim[v], ("copy", copy))
                names[v] = copy
        factors = product_of(m.factors + _renamed(n.factors, names))
        bound = m.bound + tuple(names.get(v, v) for v in n.bound)
        count = m.count * n.count
        return Monomial(factors, tuple(sorted(bound)), m.sign * n.sign, count)

    def inverse(self, a: Sum) -> Sum:
        """The formal inverse."""
        (m,) = self.enclosed(a)
        flipped = (replace(f, inverted=not f.inverted) for f in m.factors)
        return (Monomial(tuple(sorted(flipped)), (), m.sign),)

    def enclosed(self, a: Sum) -> Sum:
        """A sum as one monomial without bound variables.

        What all its terms share stands outside; an atom holds the rest.
        """
        if not _several(a) and not a[0].bound:
            return a
        common = _powers(a[0].factors)
        for m in a[1:]:
            common &= _powers(m.factors)
        free = len(self.space.dims)
        for factor in list(common):
            if any(v >= free for v in factor.indices):
                del common[factor]
        rest = sum_of_terms(replace(m, factors=_less(m.factors, common)) for m in a)
        indices = {v for m in rest for f in m.factors for v in f.indices if v < free}
        atom = self.atom(rest, self.pair(rest), (rest,))
        inside = Factor(atom, tuple(sorted(indices)))
        return (Monomial(product_of((*_factors(common), inside))),)


def _several(whole: Sum) -> bool:
    """Whether it has more than one term, equal ones included."""
    return len(whole) > 1 or any(m.count > 1 for m in whole)


def _negated(whole: Sum) -> Sum:
    return tuple(replace(m, sign=-m.sign) for m in whole)


def _renamed(
    factors: tuple[Factor, ...], names: Mapping[int, int]
) -> tuple[Factor, ...]:
    """Factors with some index variables renamed."""
    return product_of(
        replace(f, indices=tuple(sorted(names.get(v, v) for v in f.indices)))
        for f in factors
    )


def _powers(factors: tuple[Factor, ...]) -> Counter[Factor]:
    """The power of each factor."""
    return Counter({f.once: f.power for f in factors})


def _factors(powers: Counter[Factor]) -> list[Factor]:
    return [replace(f, power=n) for f, n in powers.items() if n]


def _less(factors: tuple[Factor, ...], taken: Counter[Factor]) -> tuple[Factor, ...]:
    """Factors without some of them."""
    return product_of(_factors(_powers(factors) - taken))


# -- S ---------------------------------------------------------------------------------


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
        way: How it does so (`search.useful`).
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
            value = rest = _ONE
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
        return {
            n: (_raised(pair, n), _raised(pair, most - n)) for n in some_counts(most)
        }

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
        used = union_of(inside)
        rows = zip(self.variables, counts, self.most, strict=True)
        blocked = union_of([v for v, n, most in rows if n < most])
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
            groups.append(union_of([own, *shared]))
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
        return union_of([1 << self.dim[v] for v in _members(variables)])


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
    return union_of([1 << v for v in variables])


def _members(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
