"""Normal forms of a program's values: sums of products of indexed factors.

Under the paper's axioms (section 4.3) a sum over a dim is multiplication by a formal
constant σ, so every value is a sum of monomials over atoms: tensors, constants, opaque
functions, and sums that a division or a product with another sum keeps whole.  Factors
carry index variables, as in Σ_h w[h, n] * x[b, h]: which factors a σ sums is known.

Evaluated at random field elements a normal form is a fingerprint.  Nothing cancels in
it: division multiplies by `iota`, and a second component reads minus as plus.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from mirage_dsl.ops.definition import Term
from mirage_dsl.search.field61 import (
    MODULUS,
    element_of,
    function_pair,
    iota,
    key_of,
    word_of,
)
from mirage_dsl.search.space import Space, Value
from mirage_dsl.search.steps import folded
from mirage_dsl.types import Scalar

Pair = tuple[int, int]
ONE: Pair = (1, 1)


@dataclass(frozen=True, order=True)
class Factor:
    """An atom with index variables, in the numerator or in the denominator."""

    atom: int
    indices: tuple[int, ...]
    inverted: bool = False


@dataclass(frozen=True, order=True)
class Monomial:
    """sign * Σ over `bound` of the product of `factors` (sorted, with repetition)."""

    factors: tuple[Factor, ...] = ()
    bound: tuple[int, ...] = ()
    sign: int = 1


Sum = tuple[Monomial, ...]
"""Monomials, sorted, with repetition."""


def times(a: Pair, b: Pair) -> Pair:
    """The product of two fingerprints."""
    return a[0] * b[0] % MODULUS, a[1] * b[1] % MODULUS


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
    """

    def __init__(self, space: Space, loop: str | None, seed: int) -> None:
        self.space, self.seed = space, seed
        self.loop = -1 if loop is None else space.dims.index(loop)
        self.parts: list[tuple[Sum, ...]] = []
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
        return self._pairs[factor.atom][factor.inverted]

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
            first, second = first + m.sign * product[0], second + product[1]
        return first % MODULUS, second % MODULUS

    # Normal forms.

    def sum_of(self, index: int) -> Sum:
        """The normal form of a value of the program."""
        if index not in self._sums:
            self._sums[index] = self._make(index, self.space.values[index])
        return self._sums[index]

    def _make(self, index: int, value: Value) -> Sum:
        if value.op is None:
            return self._leaf(value)
        operands = [self.sum_of(i) for i in value.operands]
        match value.op.term:
            case Term.ADD:
                return tuple(sorted(operands[0] + operands[1]))
            case Term.SUB:
                return tuple(sorted(operands[0] + _negated(operands[1])))
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
        return tuple(
            sorted(
                Monomial(
                    _renamed(m.factors, names), tuple(sorted(m.bound + bound)), m.sign
                )
                for m in whole
            )
        )

    def product(self, a: Sum, b: Sum) -> Sum:
        """The product; of two sums it stays one, of the atoms that enclose them."""
        if len(a) > 1 and len(b) > 1:
            a, b = self.enclosed(a), self.enclosed(b)
        return tuple(sorted(self._joined(m, n) for m, n in itertools.product(a, b)))

    def _joined(self, m: Monomial, n: Monomial) -> Monomial:
        """The product of monomials, with their bound variables kept apart."""
        names: dict[int, int] = {}
        for v in n.bound:
            if v in m.bound:
                copy = v
                while copy in m.bound or copy in n.bound or copy in names.values():
                    copy = self.variable(self.dim[v], ("copy", copy))
                names[v] = copy
        factors = m.factors + _renamed(n.factors, names)
        bound = m.bound + tuple(names.get(v, v) for v in n.bound)
        return Monomial(tuple(sorted(factors)), tuple(sorted(bound)), m.sign * n.sign)

    def inverse(self, a: Sum) -> Sum:
        """The formal inverse."""
        (m,) = self.enclosed(a)
        flipped = (Factor(f.atom, f.indices, not f.inverted) for f in m.factors)
        return (Monomial(tuple(sorted(flipped)), (), m.sign),)

    def enclosed(self, a: Sum) -> Sum:
        """A sum as one monomial without bound variables.

        What all its terms share stands outside; an atom holds the rest.
        """
        if len(a) == 1 and not a[0].bound:
            return a
        common = Counter(a[0].factors)
        for m in a[1:]:
            common &= Counter(m.factors)
        free = len(self.space.dims)
        for factor in list(common):
            if any(v >= free for v in factor.indices):
                del common[factor]
        rest: Sum = tuple(
            sorted(Monomial(_less(m.factors, common), m.bound, m.sign) for m in a)
        )
        indices = {v for m in rest for f in m.factors for v in f.indices if v < free}
        atom = self.atom(rest, self.pair(rest), (rest,))
        inside = Factor(atom, tuple(sorted(indices)))
        return (Monomial(tuple(sorted((*common.elements(), inside)))),)


def _negated(whole: Sum) -> Sum:
    return tuple(Monomial(m.factors, m.bound, -m.sign) for m in whole)


def _renamed(
    factors: tuple[Factor, ...], names: Mapping[int, int]
) -> tuple[Factor, ...]:
    """Factors with some index variables renamed."""
    return tuple(
        sorted(
            Factor(
                f.atom, tuple(sorted(names.get(v, v) for v in f.indices)), f.inverted
            )
            for f in factors
        )
    )


def _less(factors: tuple[Factor, ...], taken: Counter[Factor]) -> tuple[Factor, ...]:
    """Factors without some of them."""
    return tuple(sorted((Counter(factors) - taken).elements()))
