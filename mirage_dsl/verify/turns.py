"""Places at the true extents where what is computed of positions turns.

A mask ends, `k // 64` goes one up, `k % 16` begins anew: small sizes do not have all of
these places, for factors stay as they are, and few elements that are taken at random
meet one.  So samples are taken beside them.

    index:     0  1  2  3  4  5  6  7
    index % 3: 0  1  2  0  1  2  0  1
                     *  *     *  *       the two sides of each turn

Of what several dims say together, as a causal mask, the others have a random index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import Scalar, flat_type
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import known_extents
from mirage_dsl.ir.walk import operands_of, with_operands, without_dead
from mirage_dsl.ops.definition import Kind

Point = Mapping[str, int]
"""An index of each dim that positions are of."""

_LONGEST = 1 << 20
"""Dims that are longer have random places alone."""
_TURNS = 2
"""How many places are taken of each value along each of its dims."""
_MOST_TURNS, _ELSEWHERE, _BASES = 64, 16, 3
"""Turns of each value along each of its dims, and points beside those that a program
does not have, at most; and points from which on turns are looked for."""
_INFINITE = 2.0**1000
"""What an infinity counts as, of which the difference from another one is a number."""


@lru_cache(maxsize=16)
def turning_points(
    program: ir.KernelGraph, count: int, seed: int, dims: frozenset[str]
) -> tuple[Point, ...]:
    """At most so many points, as many at random as beside turns.

    Args:
        program: Extents have to be known.
        count: How many.
        seed: What random choices follow from.
        dims: Those of which there is an index too, a random one.
    """
    extents = known_extents(program.extent_of)
    counted = {d.name: extents[d.name] for i in program.indices for d in i.axis}
    counted |= {name: extents[name] for name in sorted(dims)}
    rng = np.random.default_rng([seed, 34])
    found: list[Point] = []
    for value in _last_positions(program):
        positions = _Positions(program, value, extents)
        found += positions.turns(_any_point(counted, rng), rng)
    if len(found) > count // 2:
        kept = rng.choice(len(found), count // 2, replace=False)
        found = [found[at] for at in kept]
    return (*found, *(_any_point(counted, rng) for _ in range(count - len(found))))


@lru_cache(maxsize=32)
def turns_elsewhere(
    candidate: ir.KernelGraph, program: ir.KernelGraph, seed: int
) -> tuple[Point, ...]:
    """Points beside turns of a candidate where its program has none of such a dim.

    Dims are the candidate's, and told apart by their extents: names are not the same.
    """
    if not candidate.indices:
        return ()
    known = {(extent, place) for _, extent, place, _ in _places(program, seed)}
    found: list[Point] = []
    for dim, extent, place, base in _places(candidate, seed):
        if not known.isdisjoint({(extent, place + by) for by in (-1, 0, 1)}):
            continue
        found += [{**base, dim: place - 1}, {**base, dim: place}]
    if len(found) > _ELSEWHERE:
        rng = np.random.default_rng([seed, 35])
        some = rng.choice(len(found) // 2, _ELSEWHERE // 2, replace=False)
        found = [found[2 * at + by] for at in some for by in (0, 1)]
    return tuple(found)


@lru_cache(maxsize=32)
def _places(
    graph: ir.KernelGraph, seed: int
) -> tuple[tuple[str, int, int, Point], ...]:
    """By dim, its extent and a place where a value of positions turns along it.

    All from a few points on, whose indices are alike where extents are: of one a mask
    may be false along the whole dim.
    """
    flat, extents = _in_one_level(graph), known_extents(graph.extent_of)
    counted = {d.name: extents[d.name] for i in flat.indices for d in i.axis}
    bases = [
        {
            name: int(np.random.default_rng([seed, 36, number, n]).integers(n))
            for name, n in counted.items()
        }
        for number in range(_BASES)
    ]
    found: list[tuple[str, int, int, Point]] = []
    for value in _last_positions(flat):
        positions = _Positions(flat, value, extents)
        for dim in kernel_types(flat)[value].names:
            for base in bases if extents[dim] <= _LONGEST else ():
                turns = positions.turns_along(dim, base)[:_MOST_TURNS]
                found += [(dim, extents[dim], int(at), base) for at in turns]
    return tuple(found)


def _in_one_level(graph: ir.KernelGraph) -> ir.KernelGraph:
    """What a μGraph makes of positions, element by element, as if without blocks.

    It returns what anything else reads.
    """
    made: list[ir.Apply] = []
    names: dict[str, str] = {index.name: index.name for index in graph.indices}
    read = {item.value for item in graph.returns}
    for number, node in enumerate(graph.nodes):
        own = dict(names)
        for inner in (node,) if isinstance(node, ir.Apply) else node.nodes:
            if isinstance(inner, ir.Load) and inner.source in names:
                own[inner.result] = names[inner.source]
            elif _is_elementwise(inner) and own.keys() >= set(inner.values):
                name = f"{inner.result} {number}"
                made.append(replace(with_operands(inner, own), result=name))
                own[inner.result] = name
            else:
                read.update(own[o] for o in operands_of(inner) if o in own)
        names = own if isinstance(node, ir.Apply) else names
    flat = replace(graph, inputs=(), nodes=tuple(made), returns=())
    types = kernel_types(flat)
    returned = ((n.result, types[n.result]) for n in made if n.result in read)
    returns = (ir.Return(v, flat_type(t.dtype, t.dims, t.space)) for v, t in returned)
    return replace(flat, returns=tuple(returns))


def _is_elementwise(node: ir.BlockNode) -> TypeGuard[ir.Apply]:
    """Whether it computes each element of values of its own."""
    if not isinstance(node, ir.Apply):
        return False
    return node.op.kind is Kind.ELEMENTWISE and bool(node.values)


def positions_at(
    program: ir.KernelGraph, value: str, at: Mapping[str, NDArray[np.int64]]
) -> NDArray[np.float64] | None:
    """A value at all combinations of indices; None if it is not made of positions.

    Args:
        program: Extents have to be known.
        value: Outside of blocks.
        at: By dim of the value.
    """
    if value not in _made_of_positions(program):
        return None
    others = {d.name: np.zeros(1, np.int64) for i in program.indices for d in i.axis}
    positions = _Positions(program, value, known_extents(program.extent_of))
    return positions.at({**others, **at})


def _any_point(extents: Mapping[str, int], rng: np.random.Generator) -> dict[str, int]:
    return {name: int(rng.integers(extent)) for name, extent in extents.items()}


def _last_positions(program: ir.KernelGraph) -> list[str]:
    """The values made of positions alone, element by element, that others read."""
    made = _made_of_positions(program)
    others = (n for n in program.applies if n.result not in made)
    read = {item.value for item in program.returns}.union(*(n.values for n in others))
    return [n.result for n in program.applies if n.result in made & read]


def _made_of_positions(program: ir.KernelGraph) -> set[str]:
    """The positions outside of blocks, and what is made of them element by element."""
    made = {index.name for index in program.indices}
    for node in program.applies:
        if _is_elementwise(node) and made.issuperset(node.values):
            made.add(node.result)
    return made


@dataclass(frozen=True)
class _Positions:
    """A value that is made of positions.

    Attributes:
        program: What computes it.
        value: Its name.
        extents: Of all dims.
    """

    program: ir.KernelGraph
    value: str
    extents: Mapping[str, int]

    def turns(self, base: Point, rng: np.random.Generator) -> Iterator[Point]:
        """Points beside turns along each dim from a point on."""
        for dim in kernel_types(self.program)[self.value].names:
            if self.extents[dim] > _LONGEST:
                continue
            places = self.turns_along(dim, base)
            some = min(_TURNS, len(places))
            for place in rng.choice(places, some, replace=False) if some else ():
                yield {**base, dim: int(place) - 1}
                yield {**base, dim: int(place)}

    def turns_along(self, dim: str, base: Point) -> NDArray[np.int64]:
        """The places along a dim, from a point on, at which the value turns."""
        return _turns_of(self._along(dim, base))

    def _along(self, dim: str, base: Point) -> NDArray[np.float64]:
        """The values along one dim, at a point's indices of the others."""
        at = {name: np.array([i]) for name, i in base.items()}
        at[dim] = np.arange(self.extents[dim])
        return self.at(at).ravel()

    def at(self, at: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float64]:
        """The values at all combinations of indices of the dims of positions."""
        given: list[ir.Input] = []
        arrays: list[NDArray[np.int64]] = []
        for index in self.program.indices:
            given.append(ir.Input(index.name, index.type.in_memory))
            place = np.zeros((1,) * len(index.axis), np.int64)
            for number, d in enumerate(index.axis):
                along = (-1,) + (1,) * (len(index.axis) - 1 - number)
                place = place * self.extents[d.name] + at[d.name].reshape(along)
            arrays.append(place)
        (found,) = evaluate_numpy(self._of_inputs(given, at), *arrays)
        return found

    def _of_inputs(
        self, given: list[ir.Input], at: Mapping[str, NDArray[np.int64]]
    ) -> ir.KernelGraph:
        """What computes the value of positions that are given, as many as there are."""
        kind = kernel_types(self.program)[self.value]
        known = {item.name for item in given}
        nodes: list[ir.Apply] = []
        for node in self.program.applies:
            if node.op.kind is Kind.ELEMENTWISE and known.issuperset(node.values):
                known.add(node.result)
                nodes.append(
                    replace(node, operands=tuple(map(self._number, node.operands)))
                )
        graph = replace(
            self.program,
            inputs=tuple(given),
            indices=(),
            nodes=tuple(nodes),
            returns=(ir.Return(self.value, kind.in_memory),),
            extents=tuple((name, len(places)) for name, places in at.items()),
        )
        return without_dead(graph)

    def _number(self, operand: str | Scalar) -> str | Scalar:
        """A constant at the true extents."""
        if isinstance(operand, str) or not operand.extents:
            return operand
        powers = (Fraction(self.extents[n]) ** power for n, power in operand.extents)
        return Scalar(math.prod(powers, start=Fraction(operand.value)))


def _turns_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The places at which values do not go on as they mostly do."""
    steps = np.diff(np.nan_to_num(values, posinf=_INFINITE, neginf=-_INFINITE))
    if not len(steps):
        return np.zeros(0, np.int64)
    kinds, counts = np.unique(steps, return_counts=True)
    return np.flatnonzero(steps != kinds[np.argmax(counts)]) + 1
