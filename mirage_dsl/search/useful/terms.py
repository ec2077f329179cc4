"""Normal forms of a program's values: sums of products of indexed factors.

Under the paper's axioms (section 4.3) a sum over a dim is multiplication by a formal
constant σ, so every value is a sum of monomials over atoms: tensors, constants, opaque
functions, and sums that a division or a product with another sum keeps whole.  Factors
carry index variables, as in Σ_h w[h, n] * x[b, h]: which factors a σ sums is known.

Equal monomials are counted together, and so are equal factors: x doubled or squared n
times is one term, not 2ⁿ.  A sum of very many different terms is one atom.

Evaluated at random field elements a normal form is a fingerprint.  Nothing cancels in
it: division multiplies by `iota`, and a second component reads minus as plus.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_dsl.core.clock import look
from mirage_dsl.core.types import Scalar
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.space import Space, Value
from mirage_dsl.search.useful.field61 import (
    MODULUS,
    element_of,
    function_pair,
    iota,
    key_of,
    word_of,
)

# -- Reductions in steps ---------------------------------------------------------------
# A maximum over some dims is a maximum over a part of them first; over the loop's
# dim it is one within each tile and one over the iterations, in either order.
# Sums need no such rules, for a sum is a product with σ (`search.useful.terms`).

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


def word_of_step(value: Value, over: int, state: int = DONE) -> int:
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
        return function_pair(
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

ONE: Pair = (1, 1)

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


def raised(a: Pair, power: int) -> Pair:
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
        return raised(self._pairs[factor.atom][factor.inverted], factor.power)

    def pair(self, whole: Sum) -> Pair:
        """Fingerprint of a sum; the second component knows no sign."""
        first = second = 0
        for m in whole:
            product = ONE
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
        if value.op is None:
            return self._leaf(value)
        operands = [self.sum_of(i) for i in value.operands]
        match value.op.term:
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
        atom = self.atom((word, keys), function_pair(word, keys), operands)
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
