"""The numbers that a program states, as fields read them and as small sizes need them.

A float such as 0.1 or 1/sqrt(128) stands for a number that has no finite binary
expansion.  A constant within rounding of a rational of small height is read as that
rational; one whose square is, as the root of it with its sign, so that identities such
as `c * c = 1/128` hold.  That is a rational times roots of primes, each the same
wherever it occurs, so that `c / 50` in one constant is `c` divided by 50.  All others
are read as the exact fraction that they store.
Whichever reading applies, it moves the constant by less than its rounding error.

Other numbers are compared with positions.  A window of 1024 masks nothing where a
dim has 7 elements, so a wrong window would pass there.  In trials at small sizes the
numbers in sums and comparisons of positions are brought together, in both graphs
alike: they stay in order, and the distance between two neighbours is that in truth,
or a few if it is more.  So 1023 and 1024 stay one apart.  Numbers that follow from
extents follow them by themselves, and factors stay.  At the true extents, where
samples are compared too, the numbers are the true ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain, count

from mirage_dsl.core.types import Scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.walk import map_blocks, map_nodes
from mirage_dsl.ops.definition import Kind, Term, Truth
from mirage_dsl.ops.table import MAXIMUM, MINIMUM, WHERE

# -- How a constant is read ------------------------------------------------------------

_HEIGHT = 10**7
_SQUARE_SIZE = 2**32
"""Of the square of a root, the most that numerator and denominator multiply to."""
_ROUNDING = Fraction(1, 2**50)


@dataclass(frozen=True)
class Number:
    """A constant: `rational`, or `sign` times the root of `square`."""

    rational: Fraction
    square: Fraction | None = None
    sign: int = 1

    def modulo(self, p: int) -> int:
        """The residue; without the roots in the field, that of the exact rational."""
        root = None if self.square is None else _root(self.square, p)
        return _residue(self.rational, p) if root is None else self.sign * root % p


def _residue(value: Fraction, p: int) -> int:
    return value.numerator * pow(value.denominator, -1, p) % p


def _root(square: Fraction, p: int) -> int | None:
    """The product of the roots of its primes; None where one has none."""
    rational, primes = _split(square)
    found = _residue(rational, p)
    for prime in primes:
        root = pow(prime, (p + 1) // 4, p)
        if root * root % p != prime % p:
            return None
        found = found * root % p
    return found


@lru_cache(maxsize=1024)
def _split(square: Fraction) -> tuple[Fraction, tuple[int, ...]]:
    """The root of a rational as another one, times roots of different primes."""
    left = square.numerator * square.denominator
    rational, primes = Fraction(1, square.denominator), list[int]()
    for prime in chain((2,), count(3, 2)):
        if prime * prime > left:
            break
        while left % prime**2 == 0:
            left //= prime**2
            rational *= prime
        if left % prime == 0:
            left //= prime
            primes.append(prime)
    return rational, (*primes, left) if left > 1 else tuple(primes)


def _near(value: Fraction, height: int) -> Fraction | None:
    """The rational of small height within rounding of `value`, or None."""
    close = value.limit_denominator(height)
    small = abs(close.numerator) <= height
    return close if small and abs(close - value) <= abs(value) * _ROUNDING else None


def _near_square(value: Fraction) -> Fraction | None:
    """The rational within rounding of a square that is not large, or None."""
    most = math.isqrt(int(_SQUARE_SIZE / value))
    close = value.limit_denominator(most) if most else None
    if close is None or close.numerator * close.denominator > _SQUARE_SIZE:
        return None
    return close if close and abs(close - value) <= value * _ROUNDING else None


@lru_cache(maxsize=1024)
def _read(value: Fraction) -> Number:
    sign = (value > 0) - (value < 0)
    rational = _near(value, _HEIGHT)
    if rational is not None:
        return Number(rational, None, sign)
    return Number(value, _near_square(value * value), sign)


def read_number(value: Scalar, extents: Mapping[str, int]) -> Number | float:
    """The constant at the given extents; an infinity stays a float."""
    if isinstance(value.value, float):
        if math.isinf(value.value):
            return value.value
        return _read(Fraction(value.value))
    factor = Fraction(1)
    for name, power in value.extents:
        factor *= Fraction(extents[name]) ** power
    number = _read(value.value)
    square = None if number.square is None else number.square * factor**2
    return Number(number.rational * factor, square, number.sign)


# -- What positions are compared with --------------------------------------------------

Numbers = Mapping[Fraction, Fraction]
"""What stands for each number."""


def _is_beside(node: ir.Apply) -> bool:
    """Whether numbers of an operator are compared with or added to its operands."""
    if node.op.kind is not Kind.ELEMENTWISE:
        return False
    sums = node.op.term in (Term.ADD, Term.SUB)
    return (
        sums or node.op.truth is Truth.COMPARES or node.op in (MAXIMUM, MINIMUM, WHERE)
    )


class _Walk:
    """The operators that compute with positions, at both levels of a graph."""

    def __init__(self, graph: ir.KernelGraph) -> None:
        self._graph = graph
        self._positions = {i.name for i in graph.indices}

    def kernel(self) -> Iterator[ir.Apply]:
        """Those with numbers beside positions, in order."""
        for node in self._graph.nodes:
            if isinstance(node, ir.Apply):
                yield from self._apply(node, self._positions)
            else:
                yield from self._block(node)

    def _block(self, block: ir.BlockGraph) -> Iterator[ir.Apply]:
        own = {n.result for n in block.loads if n.source in self._positions}
        for node in block.applies:
            yield from self._apply(node, own)

    @staticmethod
    def _apply(node: ir.Apply, positions: set[str]) -> Iterator[ir.Apply]:
        values = node.values[node.op is WHERE :]
        if not values or not positions.issuperset(values):
            return
        if node.op.kind is Kind.VIEW or node.op.kind is Kind.ELEMENTWISE:
            if node.op.truth is not Truth.COMPARES:
                positions.add(node.result)
            if _is_beside(node):
                yield node


def literals(graph: ir.KernelGraph) -> set[Fraction]:
    """The integers beside positions, without their signs."""
    found = (_literal(o) for n in _Walk(graph).kernel() for o in n.operands)
    beside = {abs(number) for number in found if number is not None}
    bounds = (b for k in graph.blocks for b in (*k.bounds, *_settling(k)))
    found = {n for b in bounds for n in (abs(b.offset), b.also) if n is not None}
    return beside | set(map(Fraction, found))


def _settling(block: ir.BlockGraph) -> Iterator[ir.LoopBound]:
    return (s.bound for s in block.settled)


def _literal(operand: ir.Operand) -> Fraction | None:
    """The integer that an operand is; None for what is none, or follows extents."""
    number = ir.integer_of(operand, {})
    return None if number is None else Fraction(number)


def brought_together(numbers: Iterable[Fraction], most: int) -> Numbers:
    """Each number with one as far from the one before, or so far at most."""
    found: dict[Fraction, Fraction] = {}
    last = now = Fraction(0)
    for number in sorted(numbers):
        now += min(number - last, Fraction(most))
        found[number], last = now, number
    return found


def with_literals(graph: ir.KernelGraph, numbers: Numbers) -> ir.KernelGraph:
    """The graph with other numbers beside positions."""
    if not literals(graph):
        return graph
    beside = {id(n) for n in _Walk(graph).kernel()}

    def changed(operand: ir.Operand) -> ir.Operand:
        number = _literal(operand)
        if number is None:
            return operand
        return Scalar((-1 if number < 0 else 1) * numbers[abs(number)])

    def operands(node: ir.Apply) -> tuple[ir.Operand, ...]:
        return (
            tuple(map(changed, node.operands)) if id(node) in beside else node.operands
        )

    def moved(node: ir.BlockNode) -> ir.BlockNode:
        return (
            replace(node, operands=operands(node))
            if isinstance(node, ir.Apply)
            else node
        )

    def bound(given: ir.LoopBound) -> ir.LoopBound:
        number = int(numbers[Fraction(abs(given.offset))])
        also = given.also
        also = None if also is None else int(numbers[Fraction(also)])
        offset = -number if given.offset < 0 else number
        return replace(given, offset=offset, also=also)

    nodes: list[ir.KernelNode] = []
    for node in graph.nodes:
        if isinstance(node, ir.BlockGraph):
            bounds = tuple(map(bound, node.bounds))
            settled = tuple(replace(s, bound=bound(s.bound)) for s in node.settled)
            block = map_nodes(node, moved)
            nodes.append(replace(block, bounds=bounds, settled=settled))
        else:
            nodes.append(replace(node, operands=operands(node)))
    return replace(graph, nodes=tuple(nodes))


def with_numbers_of(graph: ir.KernelGraph, small: ir.KernelGraph) -> ir.KernelGraph:
    """The graph with the numbers that it has at the sizes of a trial.

    Args:
        graph: A graph at its own sizes.
        small: The same at small ones.
    """
    if not literals(graph):
        return graph
    blocks = iter(small.blocks)

    def renumbered(block: ir.BlockGraph) -> ir.BlockGraph:
        twin = next(blocks)
        pairs = zip(block.nodes, twin.nodes, strict=True)
        nodes = (
            replace(own, operands=other.operands)
            if isinstance(own, ir.Apply) and isinstance(other, ir.Apply)
            else own
            for own, other in pairs
        )
        return replace(
            block, nodes=tuple(nodes), bounds=twin.bounds, settled=twin.settled
        )

    return map_blocks(graph, renumbered)
