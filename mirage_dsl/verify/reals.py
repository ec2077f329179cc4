"""Graphs over the reals: runs over NumPy floats at small sizes, and what they show.

An array has one axis more than the evaluator sees: the first one, over the runs, or of
length 1 for what is the same in all of them.  At the sizes of the verifier most of an
evaluation is overhead, so a dozen runs take little longer than one.

A counterexample is a run in which a candidate differs from its program.

**The real domain** is where a candidate and its program have finite values.

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

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar, boolean, f32
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import fitted, index_limits, turns_of
from mirage_dsl.ir.analysis.launches import calls
from mirage_dsl.ir.evaluate import (
    BlockEvaluator,
    NumpyDomain,
    evaluate,
    evaluate_numpy,
    numpy_dtype,
    of_rank,
    stand_in,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import read_by
from mirage_dsl.ops.definition import Array, Kind, Numbers, Operator, Term
from mirage_dsl.verify.certificate import Counterexample, nested_tuples
from mirage_dsl.verify.sizes import Shrunk, input_shape

# -- Several at once -------------------------------------------------------------------


@dataclass(frozen=True)
class RunsDomain(NumpyDomain):
    """`NumpyDomain` for several runs, at the small sizes of trials.

    What is gathered from outside is NaN.

    Attributes:
        as_calls: Operators that are one call of PyTorch's round its result alone.
    """

    stand_ins: bool = True
    checked: bool = False
    as_calls: bool = False

    def shape(self, value: Array) -> tuple[int, ...]:
        """That of one run."""
        return value.shape[1:]

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Array:
        """The same number in every run."""
        return super().constant(number, extents)[None]

    def index(self, count: int) -> Array:
        """The same positions in every run."""
        return super().index(count)[None]

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """Numbers go with arrays of any rank."""
        rank = max(v.ndim for v in operands)
        aligned = [of_rank(v, rank) for v in operands]
        return super().elementwise(op, aligned)

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        """The axes of a run vanish."""
        return super().reduce(op, value, tuple(a + 1 for a in axes))

    def scan(self, op: Operator, value: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().scan(op, value, axis + 1)

    def contract(self, op: Operator, a: Array, b: Array) -> Array:
        """Runs are one more dim of the batch."""
        runs = max(a.shape[0], b.shape[0])
        merged = [
            np.broadcast_to(v, (runs, *v.shape[1:])).reshape(-1, *v.shape[2:])
            for v in (a, b)
        ]
        found = super().contract(op, *merged)
        return found.reshape(runs, -1, *found.shape[1:])

    def library(
        self,
        op: Operator,
        operands: Sequence[Array],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Array:
        """What stands in for it, in each run."""
        whole = [o.reshape(len(o), math.prod(o.shape[1:])) for o in operands]
        return stand_in(op, whole, numbers, shape, operands[0].shape[1:])

    def running_max(self, value: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().running_max(value, axis + 1)

    def transpose(self, value: Array, order: tuple[int, ...]) -> Array:
        """The axes of a run in another order."""
        return value.transpose((0, *(axis + 1 for axis in order)))

    def reshape(self, value: Array, shape: tuple[int, ...]) -> Array:
        """The axes of a run merged or split."""
        return value.reshape(value.shape[:1] + shape)

    def take(self, value: Array, axis: int, start: int, stop: int) -> Array:
        """A range along an axis of a run."""
        return super().take(value, axis + 1, start, stop)

    def pad(self, value: Array, axis: int, count: int) -> Array:
        """NaN after an axis of a run."""
        return super().pad(value, axis + 1, count)

    def gather(self, op: Operator, value: Array, index: Array, axis: int) -> Array:
        """Along an axis of a run."""
        return super().gather(op, value, index, axis + 1)

    def concat(self, values: Sequence[Array], axis: int) -> Array:
        """Arrays one after the other, in each run."""
        runs = max(v.shape[0] for v in values)
        whole = [np.broadcast_to(v, (runs, *v.shape[1:])) for v in values]
        return super().concat(whole, axis + 1)


def evaluate_runs(
    graph: ir.KernelGraph,
    inputs: Sequence[Array],
    domain: RunsDomain | None = None,
) -> list[Array]:
    """The outputs of several runs.

    Args:
        graph: A program or μGraph that was checked.
        inputs: One array per input, the first axis over the runs; of a graph without
            inputs there is one run.
        domain: The arithmetic; float64 without rounding unless given.
    """
    domain = domain or RunsDomain()
    runs = len(inputs[0]) if inputs else 1
    each = max((largest_value(graph), *(math.prod(v.shape[1:]) for v in inputs)))
    parts = _parts(runs, max(TOGETHER // each, _FEWEST))
    rest, positions = _positions_known(graph, domain)
    found = [
        _outputs_of(rest, [v[p] for v in inputs], positions, domain) for p in parts
    ]
    if len(found) == 1:
        return found[0]
    return [np.concatenate(outputs) for outputs in zip(*found, strict=True)]


@lru_cache(maxsize=64)
def largest_value(graph: ir.KernelGraph) -> int:
    """How many elements the largest tensor of a run has, by the extents known."""
    extents = derived_extents(graph, graph.extent_of)
    sizes = (
        math.prod(extents.get(n) or 1 for n in kind.names)
        for kind in kernel_types(graph).values()
    )
    return max(sizes, default=1)


TOGETHER = 1 << 16
"""Elements of a tensor that are evaluated at once: what an operator makes of more has
left the processor's caches before the next one reads it."""
_FEWEST = 8
"""Runs at once, however large: each evaluation has its overhead."""


def _parts(runs: int, most: int) -> list[slice]:
    """All runs in parts of about as many."""
    count = max(1, math.ceil(runs / most))
    ends = [runs * at // count for at in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


@lru_cache(maxsize=16)
def _positions_known(
    graph: ir.KernelGraph, domain: RunsDomain
) -> tuple[ir.KernelGraph, list[Array]]:
    """A graph to which what it makes of positions alone is given, and that.

    Every run would make it anew, which is most of the work where windows are written
    with positions.
    """
    fixed = {i.name for i in graph.indices}
    if not fixed or any(extent is None for _, extent in graph.extents):
        return graph, []
    made: list[ir.Apply] = []
    others: list[ir.KernelNode] = []
    for node in graph.nodes:
        if isinstance(node, ir.Apply) and _is_of(fixed, node):
            fixed.add(node.result)
            made.append(node)
        else:
            others.append(node)
    read = read_by(others) | {r.value for r in graph.returns}
    types = kernel_types(graph)
    known = [(n.result, types[n.result].in_memory) for n in made if n.result in read]
    positions = evaluate(
        replace(
            graph,
            inputs=(),
            nodes=tuple(made),
            returns=tuple(ir.Return(name, kind) for name, kind in known),
        ),
        [],
        domain,
    )
    rest = replace(
        graph,
        inputs=(*graph.inputs, *(ir.Input(name, kind) for name, kind in known)),
        nodes=tuple(others),
        indices=tuple(i for i in graph.indices if i.name in read),
    )
    return rest, positions


def _is_of(values: AbstractSet[str], node: ir.Apply) -> bool:
    """Whether an operator of ours reads nothing else, and something."""
    own = node.op.kind is not Kind.LIBRARY
    return own and bool(node.values) and values >= {*node.values}


def _outputs_of(
    graph: ir.KernelGraph,
    inputs: Sequence[Array],
    positions: Sequence[Array],
    domain: RunsDomain,
) -> list[Array]:
    """The outputs of runs that are evaluated at once."""
    look()
    runs = len(inputs[0]) if inputs else 1
    given = [v if v.dtype.kind in "iu" else v.astype(domain.compute) for v in inputs]
    inside = inside_calls(graph) if domain.as_calls else ()
    outputs = evaluate(graph, [*given, *positions], domain, unstored=inside)
    return [np.broadcast_to(v, (runs, *v.shape[1:])) for v in outputs]


@lru_cache(maxsize=64)
def inside_calls(graph: ir.KernelGraph) -> frozenset[str]:
    """Floats narrower than f32 that PyTorch, within a call, does not store."""
    types = kernel_types(graph)
    inner = (v for call in calls(graph, types).values() for v in call.inner)
    narrow = (v for v in inner if types[v].dtype.is_float)
    return frozenset(v for v in narrow if types[v].dtype.itemsize < f32.itemsize)


# -- Inputs of runs --------------------------------------------------------------------


def in_formats(
    program: ir.KernelGraph, drawn: Sequence[Array], *, stored: bool
) -> list[Array]:
    """Inputs of runs as their formats hold them; their rounding is nobody's error.

    Args:
        program: Whose inputs they are.
        drawn: Random floats, one array for each input, the first axis over the runs.
        stored: Floats are rounded to the formats of storage, and not to f32.
    """
    found: list[Array] = []
    limits = index_limits(program)
    for item, values in zip(program.inputs, drawn, strict=True):
        dtype = item.type.dtype
        if dtype.is_integer:
            found.append(fitted(dtype, values, limits.get(item.name)))
            continue
        if dtype == boolean:
            values = values > _middle(values)
        found.append(as_held(values, dtype if stored else f32))
    return found


def as_held(values: Array, dtype: DType) -> Array:
    """Floats rounded to a format."""
    with np.errstate(over="ignore"):
        return values.astype(numpy_dtype(dtype)).astype(np.float64)


def _middle(drawn: Array) -> Array:
    """What about half of the elements of each draw are above, or of all draws."""
    axes = tuple(range(1, drawn.ndim)) if drawn[0].size > 1 else None
    return np.median(drawn, axis=axes, keepdims=True)


# -- Counterexamples -------------------------------------------------------------------

_TOLERANCE = 1e-9
_SCALES = (1.0, 1.0, 8.0, 8.0, 64.0, 1.0)
_DRAW_WITH_ZEROS = 5
"""The draw in which some elements are 0, as those of masks are."""


def find_counterexample(
    shrunk: Shrunk, seed: int, *, finite: bool = False
) -> Counterexample | None:
    """Inputs on which float64 results differ, or None if a few draws show none.

    Args:
        shrunk: Both graphs at small sizes.
        seed: What the draws follow from.
        finite: Only where both results are; else a candidate that overflows counts.
    """
    for inputs, expected, found in _draws(shrunk, seed, _SCALES):
        for number, (a, b) in enumerate(zip(expected, found, strict=True)):
            counted = np.isfinite(a) & (np.isfinite(b) | (not finite))
            index = _first_difference(a, b, counted)
            if index is not None:
                return _counterexample(shrunk, inputs, number, index, a, b)
    return None


def _counterexample(
    shrunk: Shrunk,
    inputs: Sequence[Array],
    output: int,
    index: tuple[int, ...],
    expected: Array,
    found: Array,
) -> Counterexample:
    """Inputs, and an element in which an output of both sides differs."""
    return Counterexample(
        sizes=tuple(sorted(shrunk.sizes.items())),
        inputs=tuple(nested_tuples(i.tolist()) for i in inputs),
        output=output,
        index=index,
        expected=float(expected[index]),
        found=float(found[index]),
        expected_output=nested_tuples(expected.tolist()),
        found_output=nested_tuples(found.tolist()),
    )


def floats_agree(shrunk: Shrunk, seed: int) -> bool:
    """Whether float64 results agree wherever both are finite, and are so somewhere.

    An identity of square roots holds on a part of the reals; the other part shows
    nothing.  Inputs are near 1, where shifts of exponents do no harm.
    """
    shared = False
    for _, expected, found in _draws(shrunk, seed, (1.0, 1.0)):
        for a, b in zip(expected, found, strict=True):
            both = np.isfinite(a) & np.isfinite(b)
            shared |= bool(both.any())
            if _first_difference(a, b, both) is not None:
                return False
    return shared


def levels_agree(shrunk: Shrunk, seed: int, blocks: BlockEvaluator) -> bool:
    """Whether a candidate's float64 results are the same at a lower level.

    A result that is finite has to be so there too: what lies outside of tensors is no
    number, and shows where it is read.

    Args:
        shrunk: Both graphs at small sizes.
        seed: What the draws follow from.
        blocks: Evaluates the candidate's blocks at that level.
    """
    candidate, seen = shrunk.candidate, False
    for inputs, _, found in _draws(shrunk, seed, _SCALES):
        lower = evaluate(
            candidate, inputs, NumpyDomain(stand_ins=True, checked=False), blocks
        )
        for a, b in zip(found, lower, strict=True):
            counted = np.isfinite(a)
            seen |= bool(counted.any())
            if not np.isfinite(b[counted]).all():
                return False
            if _first_difference(a, b, counted) is not None:
                return False
    return seen


def _draws(
    shrunk: Shrunk, seed: int, scales: tuple[float, ...]
) -> Iterator[tuple[list[Array], list[Array], list[Array]]]:
    """Inputs, the program's outputs, the candidate's; every other draw positive."""
    rng = np.random.default_rng([seed, 5])
    program = shrunk.program
    shapes = [input_shape(program, i) for i in program.inputs]
    limits = index_limits(program)
    turns = turns_of(program, shrunk.candidate).inputs
    for draw, scale in enumerate(scales):
        inputs = [_values(rng, s, scale, positive=draw % 2 == 1) for s in shapes]
        if draw == _DRAW_WITH_ZEROS:
            inputs = [v * (rng.random(v.shape) < 0.75) for v in inputs]
        items = zip(program.inputs, inputs, turns, strict=True)
        inputs = [fitted(i.type.dtype, v, limits.get(i.name), t) for i, v, t in items]
        expected, found = (
            evaluate_numpy(graph, *inputs, stand_ins=True, checked=False)
            for graph in (program, shrunk.candidate)
        )
        yield inputs, expected, found


def _values(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float, *, positive: bool
) -> Array:
    """Values that read well: three decimals."""
    drawn = rng.uniform(0.25, 3.0, shape) if positive else rng.normal(size=shape)
    return np.round(scale * drawn, 3)


def _first_difference(
    a: Array, b: Array, counted: NDArray[np.bool_]
) -> tuple[int, ...] | None:
    if not counted.any():
        return None
    scale = max(float(np.abs(a[counted]).max()), 1e-30)
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= _TOLERANCE * scale
    places = np.argwhere(counted & ~close)
    return None if len(places) == 0 else tuple(int(i) for i in places[0])


# -- The real domain -------------------------------------------------------------------


Bools = NDArray[np.bool_]

_POLYNOMIAL = (Term.ADD, Term.SUB, Term.MUL, Term.SUM, Term.CONTRACT)
_FAR = 8.0
"""Signs of differences to constants show farther from 0."""
_SHARE_OF_ZEROS = 0.3
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
    if not shrunk.program.inputs:
        # What is made of constants alone is the same on every input.
        return None
    draws, ours = _program_side(shrunk.program, seed)
    theirs = _evaluated(shrunk.candidate, draws.inputs)
    for smaller in (True, False):
        for place in _places(draws, ours, theirs, smaller=smaller):
            if not smaller or _continuous(shrunk.program, draws, ours, place):
                run = [v[place.run] for v in draws.inputs]
                a, b = (s.outputs[place.output][place.run] for s in (ours, theirs))
                example = _counterexample(shrunk, run, place.output, place.index, a, b)
                return DomainDifference(smaller, example)
    return None


def _defined_everywhere(graph: ir.KernelGraph) -> bool:
    """Whether a graph computes polynomials alone."""
    return all(
        node.op.term in _POLYNOMIAL or node.is_view
        for level in (graph, *graph.blocks)
        for node in level.nodes
        if isinstance(node, ir.Apply)
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
def _program_side(program: ir.KernelGraph, seed: int) -> tuple[_Draws, _Evaluated]:
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
        aligned = [of_rank(v, found.ndim) for v in operands]
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


def _evaluated(graph: ir.KernelGraph, inputs: list[Array]) -> _Evaluated:
    domain = _Watching()
    # All at once: it says which run a number is of.
    outputs = _outputs_of(graph, inputs, (), domain)
    runs = np.arange(len(inputs[0]))
    return _Evaluated(
        outputs,
        np.isin(runs, list(domain.undefined)),
        np.isin(runs, list(domain.out_of_range)),
    )


# -- Inputs ----------------------------------------------------------------------------


def _drawn(program: ir.KernelGraph, seed: int) -> _Draws:
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
    # Of rows without positive numbers 0 is the largest.
    for least, most in ((-2.0, 2.0), (0.0, 2.0), (-2.0, 0.0)):
        yield [_with_zeros(rng, s, least, most) for s in shapes]
    for alone in range(min(len(shapes), _MOST_ALONE)):
        yield [
            np.zeros(s) if at == alone else rng.uniform(0.25, 2.0, s)
            for at, s in enumerate(shapes)
        ]


def _with_zeros(
    rng: np.random.Generator, shape: tuple[int, ...], least: float, most: float
) -> Array:
    """Numbers between two, of which some are 0: one at least, and one at least not."""
    kept = np.array(rng.random(shape) >= _SHARE_OF_ZEROS)
    if kept.size > 1:
        place = int(rng.integers(kept.size))
        kept.flat[place], kept.flat[place - 1] = False, True
    return rng.uniform(least, most, shape) * kept


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
    program: ir.KernelGraph, draws: _Draws, ours: _Evaluated, place: _Place
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
