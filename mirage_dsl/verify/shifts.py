"""Shifts of exponents: reductions that do nothing else, and those that come back.

A reduction may only shift exponents, as a safe softmax that is written by hand has:

    s = max x over(k)                      s = rowshift x over(k)
    e = exp(x - s)                   ->    e = exp(x - s)
    y = e / sum(e, over k)                 y = e / sum(e, over k)

The search takes shifts out and puts running maxima back; a reduction whose value
matters has to be computed as it is.  Which rows shift, and by what, the table says.

A shift may come back behind a logarithm:

    s = shift x over(k)
    y = log(sum exp(x - s) over(k)) + s

does not depend on s, but over fields log is a random function, which does not know
that log(a exp(-s)) is log(a) - s.  So this is seen in float64: with random numbers in
the place of shifts, drawn again and again, outputs stay what they are.  Shifts that
pass are 0 on that side of a comparison.  What is left to compare is the function
itself, exactly as without shifts; that no shift matters is a test of real numbers.

Nothing may hide a shift: large constants, as masks are filled with, are brought near,
since a sum with one would absorb shifts; inputs are positive, of both signs, and near
the numbers that they may be compared with; shifts are small, and large enough that
a number added below a logarithm shows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import Scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.bounds import is_limited
from mirage_dsl.ir.analysis.integers import Limit, fitted, index_limits
from mirage_dsl.ir.evaluate import NumpyDomain, evaluate
from mirage_dsl.ir.walk import map_nodes, users
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Array, Operator
from mirage_dsl.verify.sizes import input_shape, shrink

# -- Shifts that come back behind a logarithm ------------------------------------------

TOLERANCE = 1e-9
"""Of the largest output: rounding in float64 errs far less, what depends far more."""
LARGEST = 1e6
"""The largest output that the tolerance grows with."""
NEAR = 1024
"""The largest constant of a test, in the place of larger ones."""


@dataclass(frozen=True)
class _Draw:
    """How inputs and shifts are drawn.

    Attributes:
        shifts: Their standard deviation.
        least: The least input.
        most: The largest one.
        literal: How many of the inputs are near a constant of the graph, and whether
            shifts are near what they stand for, since such inputs may be large.
        stride: Between positions, so that those of large extents are met.
        everywhere: Whether outputs have to be finite in the same places, else only
            those are compared that are finite both times.
    """

    shifts: float = 1.0
    least: float = 0.25
    most: float = 3.0
    literal: float = 0.0
    stride: int = 1
    everywhere: bool = True


DRAWS = (
    _Draw(),
    _Draw(),
    _Draw(shifts=50.0, stride=64, everywhere=False),
    _Draw(least=-3.0, stride=8, everywhere=False),
    _Draw(least=-3.0, most=-0.25, everywhere=False),
    _Draw(least=-3.0, literal=0.25, everywhere=False),
    _Draw(least=-3.0, literal=0.75, stride=3, everywhere=False),
)


@dataclass(frozen=True)
class _Drawn(NumpyDomain):
    """Random numbers, or 0, in the place of shifts; equal ones for equal operands."""

    key: int = 0
    scale: float = 1.0
    draw: _Draw = field(default_factory=_Draw)

    def index(self, count: int) -> Array:
        """The positions along an axis, as far apart as drawn."""
        return super().index(count) * self.draw.stride

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Array:
        """The number, brought near if it is large."""
        value = super().constant(number, extents)
        return np.where(np.isinf(value), value, np.clip(value, -NEAR, NEAR))

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        if op.shift_of is None:
            return super().reduce(op, value, axes)
        kept = [n for i, n in enumerate(value.shape) if i not in axes]
        around = super().reduce(op, value, axes) if self.draw.literal else 0.0
        return around + self._shift(value, kept, *axes)

    def running_max(self, value: Array, axis: int) -> Array:
        around = super().running_max(value, axis) if self.draw.literal else 0.0
        return around + self._shift(value, value.shape, axis)

    def _shift(self, value: Array, shape: Sequence[int], *axes: int) -> Array:
        of = zlib.crc32(np.ascontiguousarray(value).tobytes())
        return self.scale * np.random.default_rng([self.key, of, *axes]).normal(
            size=tuple(shape)
        )


def no_shift_matters(graph: ir.KernelGraph, seed: int) -> bool:
    """Whether a graph has logarithms and shifts, and no output depends on the shifts.

    Args:
        graph: At small sizes.
        seed: What the draws follow from.
    """
    return _has_logarithms(graph) and _has_shifts(graph) and _same(graph, seed)


def logarithmic_shifts(graph: ir.KernelGraph, seed: int) -> ir.KernelGraph:
    """The graph, with shifts in the place of reductions whose values do not matter.

    Only where there are logarithms; else fields tell.
    """
    rows = {row.shift_of: row for row in table.shift_rows()}
    found = {n.result: rows[n.op] for n in graph.applies if n.op in rows}
    if not found or not _has_logarithms(graph):
        return graph
    every = with_shifts(graph, found)
    if _indifferent(every, seed):
        return every
    for name, row in found.items():
        shifted = with_shifts(graph, {name: row})
        graph = shifted if _indifferent(shifted, seed) else graph
    return graph


def computes_shifts(block: ir.BlockGraph) -> bool:
    """Whether a block computes a reduction for which a shift may stand."""
    rows = {row.shift_of for row in table.shift_rows()}
    made = (
        n.op if isinstance(n, ir.Apply) else n.reduction
        for n in block.nodes
        if isinstance(n, ir.Apply | ir.Accumulate)
    )
    return any(op in rows for op in made)


def with_shifts(graph: ir.KernelGraph, rows: Mapping[str, Operator]) -> ir.KernelGraph:
    """The graph with rows of shifts in the place of reductions, by their results."""
    return map_nodes(
        graph,
        lambda n: (
            replace(n, op=rows[n.result])
            if isinstance(n, ir.Apply) and n.result in rows
            else n
        ),
    )


def _indifferent(graph: ir.KernelGraph, seed: int) -> bool:
    try:
        return _same(shrink(graph, graph, ragged=False, seed=seed).program, seed)
    except MirageError:
        return False


def _same(graph: ir.KernelGraph, seed: int) -> bool:
    """Whether outputs are the same, and finite somewhere, whatever the shifts are."""
    rng = np.random.default_rng([seed, 7])
    numbers = np.array(sorted(_numbers(graph)) or [0.0])
    limits = index_limits(graph)
    for key, draw in enumerate(DRAWS):
        inputs = [
            _drawn(rng, graph, i, draw, numbers, limits.get(i.name))
            for i in graph.inputs
        ]
        plain, moved = (
            evaluate(
                graph,
                inputs,
                _Drawn(stand_ins=True, checked=False, key=key, scale=scale, draw=draw),
            )
            for scale in (0.0, draw.shifts)
        )
        alike = (
            _close(a, b, draw.everywhere) for a, b in zip(plain, moved, strict=True)
        )
        if not all(alike):
            return False
    return True


def _drawn(
    rng: np.random.Generator,
    graph: ir.KernelGraph,
    given: ir.Input,
    draw: _Draw,
    numbers: Array,
    limit: Limit | None,
) -> Array:
    """Random values of an input, some of them on either side of a number."""
    shape = input_shape(graph, given)
    values = rng.uniform(draw.least, draw.most, shape)
    found = fitted(given.type.dtype, values, limit)
    near = rng.choice(numbers, shape)
    near = near + rng.integers(-1, 2, shape) / (2 if given.type.dtype.is_float else 1)
    picked = rng.uniform(size=shape) < draw.literal
    if given.type.dtype.is_integer:
        dtype = given.type.dtype
        near = np.clip(np.rint(near), max(dtype.min, -NEAR), min(dtype.max, NEAR))
    elif not given.type.dtype.is_float:
        return found
    return np.where(picked, near.astype(found.dtype), found)


def _numbers(graph: ir.KernelGraph) -> set[float]:
    """The constants of a graph that name no extents, brought near."""
    nodes = (n for level in (graph, *graph.blocks) for n in level.applies)
    found = (o for n in nodes for o in n.operands if isinstance(o, Scalar))
    values = (float(o.at({})) for o in found if not o.extents)
    return {min(max(v, -NEAR), NEAR) for v in values if np.isfinite(v)}


def _close(a: Array, b: Array, everywhere: bool) -> bool:
    """Whether two results agree: also in where they are finite, or only there."""
    finite = np.isfinite(a)
    if everywhere and not (finite.any() and np.array_equal(finite, np.isfinite(b))):
        return False
    finite &= np.isfinite(b)
    a, b = a[finite], b[finite]
    largest = np.abs(a).max(initial=1.0)
    return bool(np.abs(a - b).max(initial=0.0) <= TOLERANCE * min(largest, LARGEST))


def _has_logarithms(graph: ir.KernelGraph) -> bool:
    blocks = (n for block in graph.blocks for n in block.applies)
    return any(n.op is table.LOG for n in (*graph.applies, *blocks))


def _has_shifts(graph: ir.KernelGraph) -> bool:
    nodes = [n for node in graph.nodes for n in _nodes(node)]
    return any(
        isinstance(n, ir.RunningMax)
        or (isinstance(n, ir.Apply) and n.op.shift_of is not None)
        for n in nodes
    )


def _nodes(node: object) -> tuple[object, ...]:
    return node.nodes if isinstance(node, ir.BlockGraph) else (node,)


# -- Reductions that only shift --------------------------------------------------------


def reductions_as_shifts(program: ir.KernelGraph) -> ir.KernelGraph:
    """The program, with shifts in the place of reductions that are nothing else.

    Args:
        program: A traced program of known extents.
    """
    rows = {row.shift_of: row for row in table.shift_rows()}
    found = {
        node.result: rows[node.op]
        for node in program.applies
        if node.op in rows and _shifts(program, node, rows[node.op])
    }
    if not found:
        return program
    # One verification is enough where all of them are shifts, as in a deep model.
    every = with_shifts(program, found)
    if _agrees_with_itself(every):
        return every
    for name, row in sorted(found.items(), key=lambda item: item[0]):
        shifted = with_shifts(program, {name: row})
        if _agrees_with_itself(shifted):
            program = shifted
    return program


def _agrees_with_itself(program: ir.KernelGraph) -> bool:
    """Whether no output depends on the values of the program's shifts.

    Both sides of a comparison draw them anew, so they agree only then.
    """
    # Imported with the first maximum: it compiles.
    from mirage_dsl.verify.verifier import verify

    try:
        return verify(program, program, chains=1, stability=False).equivalent
    except MirageError:
        return False


def _shifts(program: ir.KernelGraph, node: ir.Apply, row: Operator) -> bool:
    """Whether a reduction is only subtracted, from what ends in exponents alone.

    Or the other way round; and what joins it with something may be in its place.
    Behind a logarithm it may be added again.
    """
    read = users(program.applies)[node.result]
    back = any(n.op is table.LOG for n in program.applies)
    return bool(read) and all(
        (n.op is row.join and _shifts(program, n, row))
        or (back and n.op in (table.ADD, table.SUB))
        or (back and is_limited(n) and _shifts(program, n, row))
        or (
            n.op is table.SUB
            and n.operands[0] != n.operands[1]
            and _in_exponents(program, n.result)
        )
        for n in read
    )


def _in_exponents(program: ir.KernelGraph, value: str) -> bool:
    """Whether a value is only exponentiated, as it is, scaled, or shifted again."""
    if any(r.value == value for r in program.returns):
        return False
    read = users(program.applies)[value]
    return bool(read) and all(
        n.op is table.EXP
        or n.op.shift_of is not None
        or (
            (n.op is table.SUB and n.operands[1] != value)
            and _in_exponents(program, n.result)
        )
        or (n.op is table.MUL and _in_exponents(program, n.result))
        or (
            (n.op is table.DIV and n.operands[1] != value)
            and _in_exponents(program, n.result)
        )
        for n in read
    )
