"""The real domain: where a candidate and its program have finite values.

Fields know no sign, so sqrt(x) sqrt(y) is sqrt(x y) there, though for x = y = -1 only
one of them is a number.  Both graphs therefore run in float64 too, on inputs of all
signs and zeros, and have to be finite on the same ones.

**Smaller.**  A candidate that is not finite where the program is, is wrong, also where
that is a single point, as x / sqrt(x) at 0.  The program has to be continuous there: a
quotient of two rounding errors is finite by chance.

**Larger.**  One that is finite where the program is not is wrong too if that is so on a
region, as sqrt(x y) is.  On single points it is not, as where x y / y becomes x; nor if
the program is without value because of infinities, as a row that is masked as a whole.

Neither counts what leaves the range of float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.clock import look
from mirage_dsl.ir.analysis.integers import fitted, index_limits
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.definition import Array, Operator, Term
from mirage_dsl.verify.certificate import Counterexample, nested_tuples
from mirage_dsl.verify.runs import RunsDomain, evaluate_runs
from mirage_dsl.verify.sizes import Shrunk, input_shape

Bools = NDArray[np.bool_]

_POLYNOMIAL = (Term.ADD, Term.SUB, Term.MUL, Term.SUM, Term.CONTRACT)
_FAR = 8.0
"""Signs of differences to constants show farther from 0."""
_ZEROS = 0.3
"""Share of zeros among inputs with some."""
_MOST_ALONE = 4
"""Inputs that are 0 or of another sign than all others, one at a time."""
_NEAR = 1e-9
_NEIGHBOURS = 16
_CLOSE = 0.01
"""How near a neighbour's value is, relative to it, where a function is continuous."""


@dataclass(frozen=True)
class DomainDifference:
    """Inputs on which one graph is finite and the other one is not."""

    smaller: bool
    example: Counterexample

    @property
    def reason(self) -> str:
        """It in words."""
        if self.smaller:
            return "not equivalent: the candidate is not finite where the program is"
        return "not equivalent: the candidate is finite where the program is not"


def domain_difference(shrunk: Shrunk, seed: int) -> DomainDifference | None:
    """Where the domains of both graphs differ; None where no input shows that.

    Args:
        shrunk: Both graphs at small sizes.
        seed: What the inputs follow from.
    """
    graphs = shrunk.candidate, shrunk.program
    if graphs[0] == graphs[1] or all(map(_defined_everywhere, graphs)):
        return None
    draws, ours = _program_side(shrunk.program, seed)
    theirs = _evaluated(shrunk.candidate, draws.inputs)
    for smaller in (True, False):
        for place in _places(draws, ours, theirs, smaller=smaller):
            if not smaller or _continuous(shrunk.program, draws, ours, place):
                example = _example(shrunk, draws, (ours, theirs), place)
                return DomainDifference(smaller, example)
    return None


def _defined_everywhere(graph: KernelGraph) -> bool:
    """Whether a graph computes polynomials alone."""
    return all(
        node.op.term in _POLYNOMIAL or node.is_view
        for level in (graph, *graph.blocks)
        for node in level.nodes
        if isinstance(node, Apply)
    )


@dataclass(frozen=True)
class _Place:
    """An element of an output in a run."""

    run: int
    output: int
    index: tuple[int, ...]


@dataclass(frozen=True)
class _Draws:
    """Inputs; the first axis of each is over the runs.

    Attributes:
        inputs: One array for each input.
        generic: By run, whether no input is at a special point.
    """

    inputs: list[Array]
    generic: Bools


@dataclass
class _Evaluated:
    """The outputs of all runs.

    Attributes:
        outputs: One array for each output.
        undefined: By run, whether an operator had no value for finite operands.
        out_of_range: By run, whether one had an infinite value for finite operands
            other than 0, which is no pole.
    """

    outputs: list[Array]
    undefined: Bools
    out_of_range: Bools


@lru_cache(maxsize=8)
def _program_side(program: KernelGraph, seed: int) -> tuple[_Draws, _Evaluated]:
    draws = _drawn(program, seed)
    return draws, _evaluated(program, draws.inputs)


@dataclass(frozen=True)
class _Watching(RunsDomain):
    """Runs in float64 that keep in mind in which of them values cease to be finite."""

    undefined: set[int] = field(default_factory=set[int])
    out_of_range: set[int] = field(default_factory=set[int])

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """The row's semantics, watched."""
        found = super().elementwise(op, operands)
        if np.isfinite(found).all():
            return found
        rank = found.ndim
        aligned = [v.reshape(v.shape + (1,) * (rank - v.ndim)) for v in operands]
        finite = reduce(np.logical_and, (np.isfinite(v) for v in aligned))
        nowhere_zero = reduce(np.logical_and, (v != 0 for v in aligned))
        self._note(self.undefined, np.isnan(found) & finite)
        self._note(self.out_of_range, np.isinf(found) & finite & nowhere_zero)
        return found

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        """The row's semantics, watched."""
        found = super().reduce(op, value, axes)
        inner = tuple(a + 1 for a in axes)
        if not np.isfinite(found).all():
            self._note(
                self.out_of_range, np.isinf(found) & np.isfinite(value).all(axis=inner)
            )
        return found

    def scan(self, op: Operator, value: Array, axis: int) -> Array:
        """The row's semantics, watched."""
        found = super().scan(op, value, axis)
        if not np.isfinite(found).all():
            before = np.logical_and.accumulate(np.isfinite(value), axis=axis + 1)
            self._note(self.out_of_range, np.isinf(found) & before)
        return found

    def _note(self, runs: set[int], where: Bools) -> None:
        """Add the runs of which an element is marked."""
        marked = where.reshape(len(where), -1).any(axis=1)
        runs.update(int(run) for run in np.flatnonzero(marked))


def _evaluated(graph: KernelGraph, inputs: list[Array]) -> _Evaluated:
    domain = _Watching()
    outputs = evaluate_runs(graph, inputs, domain=domain)
    runs = np.arange(len(inputs[0]))
    return _Evaluated(
        outputs,
        np.isin(runs, list(domain.undefined)),
        np.isin(runs, list(domain.out_of_range)),
    )


# -- Inputs ----------------------------------------------------------------------------


def _drawn(program: KernelGraph, seed: int) -> _Draws:
    rng = np.random.default_rng([seed, 13])
    shapes = [input_shape(program, i) for i in program.inputs]
    generic = list(_generic(rng, shapes))
    special = list(_special(rng, shapes))
    runs = zip(*generic, *special, strict=True)
    limits = index_limits(program)
    # Three decimals read well in a counterexample.
    inputs = [
        fitted(item.type.dtype, np.round(np.stack(values), 3), limits.get(item.name))
        for item, values in zip(program.inputs, runs, strict=True)
    ]
    return _Draws(inputs, np.arange(len(generic) + len(special)) < len(generic))


def _generic(
    rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]
) -> Iterator[list[Array]]:
    """Inputs of mixed signs, and of one sign each."""
    for scale in (1.0, _FAR):
        yield [scale * _away_from_zero(rng, s) for s in shapes]
    for signs in _signs(len(shapes)):
        pairs = zip(signs, shapes, strict=True)
        yield [sign * rng.uniform(0.25, 2.0, s) for sign, s in pairs]


def _away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.01, 2.0, shape) * rng.choice((-1.0, 1.0), shape)


def _signs(count: int) -> Iterator[tuple[float, ...]]:
    """All positive, all negative, and each input of another sign than the others."""
    for sign in (1.0, -1.0):
        yield (sign,) * count
        for other in range(min(count, _MOST_ALONE) if count > 1 else 0):
            yield tuple(-sign if at == other else sign for at in range(count))


def _special(
    rng: np.random.Generator, shapes: Sequence[tuple[int, ...]]
) -> Iterator[list[Array]]:
    """Inputs with zeros and ties."""
    yield [np.zeros(s) for s in shapes]
    yield [rng.integers(-2, 3, s).astype(np.float64) for s in shapes]
    for low in (-2.0, 0.0):
        yield [rng.uniform(low, 2.0, s) * (rng.random(s) >= _ZEROS) for s in shapes]
    for alone in range(min(len(shapes), _MOST_ALONE)):
        yield [
            np.zeros(s) if at == alone else rng.uniform(0.25, 2.0, s)
            for at, s in enumerate(shapes)
        ]


# -- Comparison ------------------------------------------------------------------------


def _places(
    draws: _Draws, ours: _Evaluated, theirs: _Evaluated, *, smaller: bool
) -> Iterator[_Place]:
    """Elements of which one graph alone has a value, one for each output and run."""
    if smaller:
        counted = ~theirs.out_of_range
    else:
        counted = draws.generic & ours.undefined & ~ours.out_of_range
    pairs = zip(ours.outputs, theirs.outputs, strict=True)
    for number, values in enumerate(pairs):
        look()
        a, b = (np.isfinite(v) for v in values)
        differ = a & ~b if smaller else ~a & b
        for run in np.flatnonzero(counted):
            for index in np.argwhere(differ[run])[:1]:
                yield _Place(int(run), number, tuple(int(i) for i in index))


def _continuous(
    program: KernelGraph, draws: _Draws, ours: _Evaluated, place: _Place
) -> bool:
    """Whether the program has about the same value at some inputs nearby."""
    rng = np.random.default_rng([place.run, 17])
    # An input moves as a whole, which does not leave a domain by all of its corners.
    moved: list[Array] = []
    for item, value in zip(program.inputs, draws.inputs, strict=True):
        signs = rng.choice((-1.0, 1.0), (_NEIGHBOURS,) + (1,) * (value.ndim - 1))
        steps = (
            _NEAR * signs if item.type.dtype.is_float else 0 * signs.astype(np.int64)
        )
        moved.append(value[place.run] + steps)
    near = evaluate_runs(program, moved)[place.output][(slice(None), *place.index)]
    outputs = ours.outputs[place.output]
    value = outputs[(place.run, *place.index)]
    scale = max(abs(value), np.median(np.abs(outputs[np.isfinite(outputs)])))
    return bool((np.abs(near - value) <= _CLOSE * scale).any())


def _example(
    shrunk: Shrunk,
    draws: _Draws,
    sides: tuple[_Evaluated, _Evaluated],
    place: _Place,
) -> Counterexample:
    expected, found = (side.outputs[place.output][place.run] for side in sides)
    return Counterexample(
        sizes=tuple(sorted(shrunk.sizes.items())),
        inputs=tuple(nested_tuples(v[place.run].tolist()) for v in draws.inputs),
        output=place.output,
        index=place.index,
        expected=float(expected[place.index]),
        found=float(found[place.index]),
        expected_output=nested_tuples(expected.tolist()),
        found_output=nested_tuples(found.tolist()),
    )
