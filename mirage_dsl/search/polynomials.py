"""Polynomials whose factors are values, their inverses, and sums of products of them.

Like terms are collected: numbers and powers of extents are exact, so that terms cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mirage_dsl.types import Scalar

Powers = tuple[tuple[str, int], ...]
Product = tuple[tuple["Atom", ...], Powers]
"""Atoms in order, with repetition, and powers of extents."""
Polynomial = dict[Product, Fraction]


@dataclass(frozen=True, order=True)
class Atom:
    """A factor: a value, its inverse, or the sum of a product of atoms over dims.

    Attributes:
        dims: The dims that it has, sorted.
        value: The value's name; of a sum, "".
        inverted: Whether it stands below the line.
        inside: The atoms of which it is the sum.
        over: The dims over which it is summed, sorted.
    """

    dims: tuple[str, ...]
    value: str
    inverted: bool = False
    inside: tuple[Atom, ...] = ()
    over: tuple[str, ...] = ()


def added(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    """A + sign * b."""
    found = dict(a)
    for term, number in b.items():
        found[term] = found.get(term, Fraction(0)) + sign * number
    return {term: number for term, number in found.items() if number}


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    """The product."""
    found: Polynomial = {}
    for (first, p), x in a.items():
        for (second, q), y in b.items():
            powers = Scalar(x, p).times(Scalar(y, q)).extents
            term = tuple(sorted((*first, *second))), powers
            found[term] = found.get(term, Fraction(0)) + x * y
    return {term: number for term, number in found.items() if number}


def summed(atoms: tuple[Atom, ...], powers: Powers, over: frozenset[str]) -> Product:
    """The sum of a product over some dims, with all that is constant moved out."""
    inside = tuple(a for a in atoms if over & set(a.dims))
    outside = [a for a in atoms if not over & set(a.dims)]
    dims = {d for a in inside for d in a.dims}
    for dim in sorted(over - dims):
        powers = Scalar(Fraction(1), powers).times(extent_power(dim, 1)).extents
    gone = over & dims
    if inside:
        if len(inside) == 1 and inside[0].over:
            gone, inside = gone | set(inside[0].over), inside[0].inside
        left = tuple(sorted(dims - gone))
        outside.append(Atom(left, "", False, inside, tuple(sorted(gone))))
    return tuple(sorted(outside)), powers


def extent_power(dim: str, power: int) -> Scalar:
    """A power of an extent."""
    return Scalar(Fraction(1), ((dim, power),))
