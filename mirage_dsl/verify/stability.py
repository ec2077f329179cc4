"""The floating-point verdict: does a candidate err much more than its program?

Algebra accepts any shift of exponents, however bad; only floats see overflow and
cancellation.  Candidate and unfused program run against the program in float64, on
families of inputs, under two models.

**As executed**: f32 arithmetic, storage formats rounded.  Random inputs, inputs far
from 0 on either side, and ramps along every dim: up, down, and so, along other dims, as
row offsets.

**In f32 throughout**, without the rounding of formats, which would hide what cancels:
rows far from 0 that are constant, or of a small deviation.  Sums of such numbers are
exact, so a mean can be.

Each family is taken at a few scales and at about the largest one that the program
survives: it is finite and about right there, and not by luck after an overflow.

PyTorch runs some operators as one call, as those of a norm, which keeps in f32 what
they would store.  Where only that call is about right, at the largest scale of those, a
candidate has to be about right as well; how much it errs is seen where the operators
are.

**Where operators jump**, a candidate has to jump where its program does.

What rounding to a narrower format does to a sum is little; to what becomes an integer
or 8 bits, is compared or rounded, it is a whole step.  Random inputs hardly ever lie
near one, so these are made to:

    2047.9 2048.1    the program in float64 is followed along a line of inputs, and the
       *---|---*     line bisected, until an element of what jumps does so; the inputs
                     lie a distance before that place and behind it

A graph jumps elsewhere if its output before the step is nearer to the exact one behind
it, or the other way round.  What f16 programs round themselves moves their steps as
well.  So at each distance a candidate may miss as many more as the errors of stable
candidates may be larger than those of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar, TensorType, f16
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import attribute_dims
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of, without_dead
from mirage_dsl.ops.definition import Array, Kind, Term
from mirage_dsl.ops.table import EQUAL, EXP, LESS
from mirage_dsl.verify.certificate import Stability
from mirage_dsl.verify.reals import (
    RunsDomain,
    as_held,
    evaluate_runs,
    in_formats,
    inside_calls,
    largest_value,
)
from mirage_dsl.verify.sizes import Shrunk, input_shape

# -- Where operators jump --------------------------------------------------------------


Bools = NDArray[np.bool_]

_SCALES_OF_LINES = (1.0, 8.0, 4096.0, 2.0**18)
"""Steps of 1 are coarse for small numbers, and finer than f16 for large ones; the last
ones are beyond f16."""
_LINES, _FEWEST_LINES = 16, 6
"""At each scale, and where values are so large that a run takes long."""
_ELEMENTS_OF_LINES = 1 << 19
"""Of the largest value, on all lines of a scale."""
_HALVINGS = 30
_DISTANCES = (2.0**-20, 2.0**-17, 2.0**-13, 2.0**-9)
"""Relative to the inputs: many roundings of f32, and less than one of f16 and bf16."""
_MISSED = 1 / 16
"""Share of the steps that a program counts as missing at least."""
_SHOWS = 32
"""A jump is as many roundings of the output's format at least."""
_STEP, _LEAST = 0.25, 1e-3
"""Where none is shown, a step is this much of the output; which is at least so large,
of what it is elsewhere."""


@dataclass(frozen=True)
class _Pair:
    """A place before a step and the one behind it.

    Attributes:
        before: The number of its run.
        behind: That of the other one.
        output: The output that shows the step.
        elements: Of that output, those that do.
        jump: By how much they move.
    """

    before: int
    behind: int
    output: int
    elements: Bools
    jump: Array

    def missed(self, found: Sequence[Array], exact: Sequence[Array]) -> int:
        """How many of the two sides have the output of the other one."""
        count = 0
        for run, sign in ((self.before, 1.0), (self.behind, -1.0)):
            values, right = (v[self.output][run][self.elements] for v in (found, exact))
            moved = ((values.astype(np.float64) - right) * sign * self.jump).sum()
            # What is not a number is on neither side.
            count += not moved < 0.5 * (self.jump**2).sum()
        return count


@dataclass(frozen=True)
class _Still:
    """Two places beside a step of which no output shows anything.

    As where numbers are equal on the step alone.

    Attributes:
        runs: The numbers of their runs.
        sizes: By output, what counts as a step.
    """

    runs: tuple[int, int]
    sizes: list[float]

    def missed(self, found: Sequence[Array], exact: Sequence[Array]) -> int:
        """How many of the two places have an output that is off by a step."""
        return sum(
            not all(
                bool((np.abs(a[run].astype(np.float64) - b[run]) <= size).all())
                for a, b, size in zip(found, exact, self.sizes, strict=True)
            )
            for run in self.runs
        )


@dataclass(frozen=True)
class _Cell:
    """Pairs of one kind, scale and distance, and how many the program misses."""

    name: str
    pairs: Sequence[_Pair | _Still]
    missed: int


@dataclass(frozen=True)
class _Steps:
    """Inputs near the steps of a program; the first axis is over the runs."""

    inputs: list[Array]
    exact: list[Array]
    cells: list[_Cell]


def _step_ratios(
    program: ir.KernelGraph,
    candidate: ir.KernelGraph,
    seed: int,
    executed: _Model,
) -> Iterator[tuple[float, str]]:
    """By scale and distance, how many steps are missed in relation to what may be.

    Args:
        program: At the sizes of trials.
        candidate: Likewise.
        seed: What the inputs follow from.
        executed: How graphs run on a GPU.
    """
    steps = _steps(program, seed, executed.domain)
    if steps is None:
        return
    found = _outputs(candidate, program, steps.inputs, executed.as_calls)
    for cell in steps.cells:
        missed = sum(pair.missed(found, steps.exact) for pair in cell.pairs)
        yield missed / (cell.missed + _MISSED * 2 * len(cell.pairs)), cell.name


@lru_cache(maxsize=16)
def _steps(program: ir.KernelGraph, seed: int, executed: RunsDomain) -> _Steps | None:
    """The inputs; None where nothing jumps."""
    watched = _watched(program)
    if watched is None:
        return None
    rng = np.random.default_rng([seed, 23])
    lines = list(_lines(program, rng))
    places = [(line, line.places(watched, rng)) for line in lines]
    drawn: list[list[Array]] = []
    names: list[str] = []
    for line, (at, runs) in places:
        for distance in _DISTANCES if len(runs) else ():
            drawn += [line.at(at + side * distance, runs) for side in (-1, 1, 3)]
            names.append(f"{line.name}, {distance:.0e} from steps")
    if not drawn:
        return None
    sizes = [len(d[0]) for d in drawn]
    joined = [np.concatenate(v) for v in zip(*drawn, strict=True)]
    inputs = [
        as_held(v, i.type.dtype) if i.type.dtype.is_float else v
        for i, v in zip(program.inputs, joined, strict=True)
    ]
    exact = _outputs(program, program, inputs)
    rounded = _outputs(program, program, inputs, executed)
    starts = np.cumsum([0, *sizes])
    cells: list[_Cell] = []
    for number, name in enumerate(names):
        look()
        first = [int(start) for start in starts[3 * number : 3 * number + 3]]
        found = list(_pairs(program, exact, first, sizes[3 * number]))
        for still in (False, True):
            pairs = [p for p in found if isinstance(p, _Still) is still]
            if pairs:
                missed = sum(p.missed(rounded, exact) for p in pairs)
                cells.append(_Cell(name, pairs, missed))
    return _Steps(inputs, exact, cells)


def _lines(program: ir.KernelGraph, rng: np.random.Generator) -> Iterator[_Line]:
    """Lines on which the inputs of one format move, at each scale that it holds."""
    for dtype in dict.fromkeys(i.type.dtype for i in program.inputs):
        if dtype.is_float and not dtype.only_stores:
            for scale in _SCALES_OF_LINES:
                if scale <= dtype.max:
                    yield _Line.drawn(program, rng, dtype, scale)


def _watched(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """The program that returns what jumps with floats; None where nothing does.

    Numbers that move are equal at one place alone: so it says where one passes another.
    """
    types = kernel_types(program)
    nodes: list[ir.KernelNode] = []
    found: list[str] = []
    for node in program.nodes:
        if isinstance(node, ir.Apply) and _jumps_with_floats(node, types):
            found.append(node.result)
            nodes.append(replace(node, op=LESS) if node.op is EQUAL else node)
        else:
            nodes.append(node)
    if not found:
        return None
    returns = tuple(ir.Return(value, types[value]) for value in found)
    return without_dead(replace(program, nodes=tuple(nodes), returns=returns))


def _jumps_with_floats(node: ir.Apply, types: Mapping[str, TensorType]) -> bool:
    jumps = node.op.jumps and node.op.kind is not Kind.LIBRARY
    return jumps and any(types[v].dtype.is_float for v in node.values)


def _pairs(
    program: ir.KernelGraph, exact: list[Array], first: Sequence[int], count: int
) -> Iterator[_Pair | _Still]:
    """The places before and behind each step, where the program has values."""
    largest = [np.abs(v).max(initial=0.0, where=np.isfinite(v)) for v in exact]
    for at in range(count):
        runs = [start + at for start in first]
        sides = [v[runs].astype(np.float64) for v in exact]
        if not all(np.isfinite(s).all() for s in sides):
            continue
        shown = [
            _shown(item.type.dtype, s)
            for item, s in zip(program.returns, sides, strict=True)
        ]
        output = int(np.argmax([share for share, _ in shown]))
        share, elements = shown[output]
        if share > 0:
            before, behind, _ = sides[output]
            yield _Pair(runs[0], runs[1], output, elements, (behind - before)[elements])
            continue
        sizes = [
            _STEP * max(np.abs(s).max(), _LEAST * most)
            for s, most in zip(sides, largest, strict=True)
        ]
        yield _Still((runs[0], runs[1]), sizes)


def _shown(dtype: DType, sides: Array) -> tuple[float, Bools]:
    """How large a jump an output shows, relative to it, and the elements that do.

    Args:
        dtype: Of the output.
        sides: It before a step, behind it, and further on.
    """
    jump, goes_on = np.abs(np.diff(sides, axis=0))
    size = float(np.abs(sides).max()) or 1.0
    rounding = _SHOWS * dtype.epsilon * size if dtype.is_float else 0.0
    clear = (jump > rounding) & (jump > 4 * goes_on)
    most = float(jump.max(initial=0.0, where=clear))
    return most / size, clear & (jump >= 0.5 * most)


# -- Lines of inputs -------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """Several lines, each from one random input to another one.

    Attributes:
        name: In words.
        start: One array for each input, the first axis over the lines.
        end: Likewise; those of other formats do not move.
    """

    name: str
    start: list[Array]
    end: list[Array]

    @classmethod
    def drawn(
        cls,
        program: ir.KernelGraph,
        rng: np.random.Generator,
        dtype: DType,
        scale: float,
    ) -> _Line:
        """Lines of inputs of a scale, on which those of a format move."""
        most = _ELEMENTS_OF_LINES // largest_value(program)
        count = max(_FEWEST_LINES, min(_LINES, most))
        shapes = [(count, *input_shape(program, i)) for i in program.inputs]
        start, end = (
            in_formats(
                program, [scale * rng.normal(size=s) for s in shapes], stored=True
            )
            for _ in range(2)
        )
        moves = [i.type.dtype == dtype for i in program.inputs]
        kept = [
            b if moving else a for a, b, moving in zip(start, end, moves, strict=True)
        ]
        return cls(f"inputs of scale {scale:g}", start, kept)

    def at(self, place: Array, runs: Array) -> list[Array]:
        """The inputs at places of some of the lines."""
        found: list[Array] = []
        for a, b in zip(self.start, self.end, strict=True):
            if a.dtype.kind in "iu":
                found.append(a[runs])
                continue
            t = place.reshape((-1,) + (1,) * (a.ndim - 1))
            found.append(a[runs] + t * (b - a)[runs])
        return found

    def places(
        self, watched: ir.KernelGraph, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Where an element of what jumps does so, and on which lines one does."""
        every = np.arange(len(self.start[0]))
        ends = [
            _side_by_side(
                evaluate_runs(watched, self.at(np.full(len(every), t), every))
            )
            for t in (0.0, 1.0)
        ]
        differ: Bools = (ends[0] != ends[1]) & ~np.isnan(ends[0]) & ~np.isnan(ends[1])
        runs = np.flatnonzero(differ.any(axis=1))
        if not len(runs):
            return np.zeros(0), runs
        chance = np.where(differ, rng.random(differ.shape), -1.0)
        element = np.argmax(chance[runs], axis=1)
        own = ends[0][runs, element]
        low, high = np.zeros(len(runs)), np.ones(len(runs))
        for _ in range(_HALVINGS):
            look()
            middle = (low + high) / 2
            found = _side_by_side(evaluate_runs(watched, self.at(middle, runs)))
            same = found[np.arange(len(runs)), element] == own
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return (low + high) / 2, runs


def _side_by_side(outputs: list[Array]) -> Array:
    """All elements of all outputs, by run."""
    flat = [v.reshape(len(v), -1).astype(np.float64) for v in outputs]
    return np.concatenate(flat, axis=1)


# -- How much a candidate errs ---------------------------------------------------------


ALLOWED_RATIO = 4.0
_LADDER = (512.0, 4096.0, 262144.0)
"""Scales at which it is seen what a program survives."""
_REFINED = 512.0
"""Scales up to which the edge of what a program survives is sought closely.

There exponents overflow or vanish.  Further on the range of a storage format ends, and
what a candidate keeps may be a few times larger than what its program keeps.
"""
_REFINEMENTS = 2
"""How often the step from what a program survives to what it does not is quartered."""
_MARGIN = 0.8
"""So much below that edge candidates have to be right: at the edge itself numbers are
subnormal, and the reciprocal of one, say, overflows where a quotient by it does not."""
_LOW_LADDER = (2.0**-4, 2.0**-10, 2.0**-18)
"""Those at which one is tried that survives no other, if it is not 0 there."""
_SCALES = (2.0**-10, 1.0, 8.0)
_OFFSETS = (64.0,)
_HEIGHTS = (4.0, 40.0)
_SMALL = 1e-3
"""Parts of an output are compared to this much of its largest element, or to more."""
_LEVELS, _FINENESS = 512, 8192
"""Constant rows are powers of 2 times 1 + i / fineness, i odd and less than levels.

Sums of so few bits are exact in f32, though not those of their squares.  And the mean
of equal ones is again what they are: 1 / n is off by less than half of the last bit of
a number this little above a power of 2.
"""
_NEIGHBOURS = 4
"""Runs beside one that count as well where a candidate errs by more than the program:
of few numbers, or of rows that hardly anything is left of, that was right by chance."""
_LAST_BITS = 2.0**-22
"""By how much inputs beside such rows are nudged: what a function makes of the last
bits of f32 is nobody's error."""
_DEVIATION = 1 / 1024
"""What rows that are nearly constant deviate by, relative to their level."""


@dataclass(frozen=True)
class _WithoutOverflow(RunsDomain):
    """Storage formats of their own precision, but of any range."""

    def cast(self, value: Array, dtype: DType) -> Array:
        """Rounded; what the format would turn to infinity keeps its exponent."""
        found = super().cast(value, dtype)
        lost = np.isinf(found) & np.isfinite(value)
        if not lost.any():
            return found
        with np.errstate(all="ignore"):
            significand, exponent = np.frexp(value)
            kept = np.ldexp(super().cast(significand, dtype), exponent)
        return np.where(lost, kept, found)


@dataclass(frozen=True)
class _Model:
    """How graphs are run.

    Attributes:
        domain: The arithmetic, where each operator stores what it makes.
        as_calls: That of candidates, whose calls store their results alone.
        unbounded: As the first one, where formats do not overflow.
        stored: The formats in which inputs exist are those of storage.
        survived: The error up to which a program counts as right.
    """

    domain: RunsDomain
    as_calls: RunsDomain
    unbounded: RunsDomain
    stored: bool
    survived: float


_EXECUTED = _Model(
    RunsDomain(np.float32, round_casts=True),
    RunsDomain(np.float32, round_casts=True, as_calls=True),
    _WithoutOverflow(np.float32, round_casts=True),
    stored=True,
    survived=0.5,
)
_IN_F32 = _Model(
    RunsDomain(np.float32),
    RunsDomain(np.float32),
    RunsDomain(np.float32),
    stored=False,
    survived=1e-2,
)


def measure_stability(shrunk: Shrunk, seed: int) -> Stability:
    """Compare the errors of both graphs over the families of inputs."""
    if not shrunk.program.inputs:
        return _stability_of_constants(shrunk)
    models = [_EXECUTED]
    if _adds_values(shrunk.candidate):
        models.append(_IN_F32)
    ratios: list[tuple[float, str]] = []
    for model in models:
        look()
        runs = _program_runs(shrunk.program, seed, model)
        if runs.names:
            sides = shrunk.candidate, shrunk.program
            found = _outputs(*sides, runs.inputs, model.as_calls)
            own = _ratios(runs, found)
            if model is _EXECUTED and ALLOWED_RATIO < max(own) < math.inf:
                others = _runs_beside(shrunk.program, seed)
                values = (_outputs(*sides, o.inputs, model.as_calls) for o in others)
                own = _ratios(runs, found, list(zip(others, values, strict=True)))
            ratios += zip(own, runs.names, strict=True)
    used = len(ratios)
    ratios += _step_ratios(shrunk.program, shrunk.candidate, seed, _EXECUTED)
    worst, where = max(ratios, key=lambda r: r[0], default=(0.0, ""))
    return _verdict(worst, where, used)


def _stability_of_constants(shrunk: Shrunk) -> Stability:
    """The same of what is made of no inputs."""
    exact = evaluate_runs(shrunk.program, [])
    least = [
        _least(r, v, _EXECUTED)
        for r, v in zip(shrunk.program.returns, exact, strict=True)
    ]
    graphs = (shrunk.program, shrunk.candidate)
    own, found = (evaluate_runs(g, [], _EXECUTED.domain) for g in graphs)
    (errors,) = _errors(own, exact, least)
    allowed = [_at_least_rounding(shrunk.program, errors)]
    runs = _Runs(["no inputs"], [], exact, allowed, least, [False])
    (ratio,) = _ratios(runs, found)
    return _verdict(ratio, "without inputs", 1)


def _adds_values(graph: ir.KernelGraph) -> bool:
    """Whether values are added or subtracted, so that they can cancel.

    What is only exponentiated does not count: ramps show what becomes of that.
    """
    for level in (graph, *graph.blocks):
        exponents = {v for n in level.applies if n.op is EXP for v in n.values}
        if any(
            n.op.term in (Term.ADD, Term.SUB)
            and len(n.values) > 1
            and n.result not in exponents
            for n in level.applies
        ):
            return True
    return False


def _verdict(worst: float, where: str, used: int) -> Stability:
    if used == 0:
        return Stability(
            False, 0.0, "stability unknown: the program is finite on no test input"
        )
    if np.isinf(worst):
        reason = f"unstable: not finite where the program is ({where})"
        return Stability(False, worst, reason)
    if worst > ALLOWED_RATIO:
        reason = f"unstable: {worst:.1f} times the error of the program ({where})"
        return Stability(False, worst, reason)
    reason = f"stable: at most {worst:.2f} times the error of the program"
    return Stability(True, worst, reason)


# -- Infinities that are meant ---------------------------------------------------------
# Scores that a mask takes out, or the largest element of no elements, are infinities
# that a program means.  They are no sizes that errors are compared to.


_DRAWS = 2
"""Floats with which an element is infinite that is so with all."""


def _outputs(
    graph: ir.KernelGraph,
    program: ir.KernelGraph,
    inputs: Sequence[Array],
    domain: RunsDomain | None = None,
) -> list[Array]:
    """The outputs of runs, as `evaluate_runs` has them, of a program or a candidate.

    Elements whose infinity the program means are 0 where they are that infinity, and no
    number where they are anything else.
    """
    found = evaluate_runs(graph, inputs, domain)
    known = _known_infinities(program)
    if not known:
        return found
    meant = _infinities(program, inputs, known)
    return [
        np.where(np.isinf(at), np.where(v == at, 0.0, np.nan), v)
        for v, at in zip(found, meant, strict=True)
    ]


def _known_infinities(program: ir.KernelGraph) -> list[float]:
    """The infinities among the constants of a program."""
    operands = (o for node in program.applies for o in node.operands)
    values = (o.value for o in operands if isinstance(o, Scalar))
    return sorted({v for v in values if isinstance(v, float) and math.isinf(v)})


def _infinities(
    program: ir.KernelGraph, inputs: Sequence[Array], known: Sequence[float]
) -> list[Array]:
    """The outputs of runs where they are infinities that are meant, and 0 elsewhere.

    That is one of the program's constants, or what is infinite with other floats too,
    and so hangs on integers and masks alone.  Others may be too large for floats.
    """
    exact = evaluate_runs(program, inputs)
    if not any(np.isinf(value).any() for value in exact):
        # As of attention, where a mask is such a constant and no result is.
        return [np.zeros_like(value) for value in exact]
    rng = np.random.default_rng(11)
    plain = [
        [
            rng.normal(size=v.shape) if i.type.dtype.is_float else v
            for i, v in zip(program.inputs, inputs, strict=True)
        ]
        for _ in range(_DRAWS)
    ]
    others = [evaluate_runs(program, values) for values in plain]
    found: list[Array] = []
    for value, *same in zip(exact, *others, strict=True):
        always = np.logical_and.reduce([value == other for other in same])
        meant = np.isinf(value) & (np.isin(value, known) | always)
        found.append(np.where(meant, value, 0.0))
    return found


# -- The program -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Runs:
    """A program on inputs of families: in float64, and its errors.

    Attributes:
        names: Of the runs.
        inputs: One array for each input; the first axis is over the runs.
        exact: The outputs in float64, likewise.
        allowed: By run, for each output, the error that counts as one.
        least: For each output, a size that errors are compared to at least.
        called: By run, whether the program is right there as calls only.
    """

    names: list[str]
    inputs: list[Array]
    exact: list[Array]
    allowed: list[list[float]]
    least: list[float]
    called: list[bool]


@lru_cache(maxsize=16)
def _program_runs(program: ir.KernelGraph, seed: int, model: _Model) -> _Runs:
    """The runs in which the program is finite and right; its candidates share them."""
    runs = _runs_at(program, seed, model, _LADDER)
    if model is not _EXECUTED or not all(runs.called):
        return runs
    low = _runs_at(program, seed, model, _LOW_LADDER)
    return low if low.names else runs


def _runs_at(
    program: ir.KernelGraph, seed: int, model: _Model, ladder: tuple[float, ...]
) -> _Runs:
    """`_program_runs` with the scales of a ladder beside those of each family."""
    rng = np.random.default_rng([seed, 9])
    plain = [_normal(rng, program, i) for i in program.inputs]
    families = _families_of(program, seed, model, plain)
    tried = _tried(program, families, _asked(families, ladder), model, plain)
    tried, within = _to_the_edge(program, families, tried, model)
    says = [
        (called or scale <= within.get(number, scale))
        and (ladder is _LADDER or all(bool(v[at].any()) for v in tried.exact))
        for at, ((number, scale), called) in enumerate(
            zip(tried.asked, tried.called, strict=True)
        )
    ]
    tried = _chosen(tried, _kept(tried, families, says))
    allowed = [_at_least_rounding(program, errors) for errors in tried.errors]
    if not tried.asked:
        return _Runs([], tried.inputs, tried.exact, allowed, tried.least, [])
    if model is _IN_F32:
        nudged = [v * _nudges(rng, v) for v in plain]
        others = _families_of(program, seed, model, nudged)
        allowed = _largest(allowed, _nudged_errors(program, others, tried, model))
    names = [
        families[number].name.format(f"{scale:g}") for number, scale in tried.asked
    ]
    return _Runs(names, tried.inputs, tried.exact, allowed, tried.least, tried.called)


_Asked = tuple[int, float]
"""The number of a family, and a scale."""


@dataclass(frozen=True)
class _Tried:
    """A program on families of inputs at some scales.

    Attributes:
        asked: The family and the scale of each run.
        inputs: One array for each input; the first axis is over the runs.
        exact: The outputs in float64, likewise.
        errors: By run, the error of each output; infinite where a run says nothing.
        least: For each output, a size that errors are compared to at least.
        survived: By run, whether the program is finite and about right.
        called: By run, whether it is that only where its calls are.
    """

    asked: list[_Asked]
    inputs: list[Array]
    exact: list[Array]
    errors: list[list[float]]
    least: list[float]
    survived: list[bool]
    called: list[bool]


def _families_of(
    program: ir.KernelGraph, seed: int, model: _Model, plain: list[Array]
) -> list[_Family]:
    rng = np.random.default_rng([seed, 10])
    found = _families if model is _EXECUTED else _even_rows
    return list(found(program, rng, plain))


def _asked(families: list[_Family], ladder: tuple[float, ...]) -> list[_Asked]:
    """All families at their own scales and at those of a ladder, in order."""
    return [
        (number, scale)
        for number, family in enumerate(families)
        for scale in sorted({*family.scales, *ladder})
    ]


def _drawn(
    program: ir.KernelGraph,
    families: list[_Family],
    asked: list[_Asked],
    model: _Model,
) -> list[Array]:
    """The inputs of runs, in their formats."""
    drawn = [families[number].at(scale) for number, scale in asked]
    stacked = [np.stack(values) for values in zip(*drawn, strict=True)]
    return in_formats(program, stacked, stored=model.stored)


def _tried(
    program: ir.KernelGraph,
    families: list[_Family],
    asked: list[_Asked],
    model: _Model,
    plain: list[Array],
) -> _Tried:
    """The program at these scales; the plain inputs beside give outputs' sizes."""
    beside = [_Family("", lambda _: plain)]
    inputs = _drawn(
        program, [*families, *beside], [*asked, (len(families), 1.0)], model
    )
    exact = _outputs(program, program, inputs)
    least = [_least(r, v, model) for r, v in zip(program.returns, exact, strict=True)]
    inputs, exact = ([v[:-1] for v in values] for values in (inputs, exact))
    return _judged(program, asked, inputs, exact, least, model, calls=True)


def _judged(
    program: ir.KernelGraph,
    asked: list[_Asked],
    inputs: list[Array],
    exact: list[Array],
    least: list[float],
    model: _Model,
    *,
    calls: bool,
) -> _Tried:
    """Runs, and which of them the program survives, also by its calls alone."""
    look()
    errors, called = _program_errors(program, inputs, exact, least, model, calls=calls)
    right = [max(e) <= model.survived for e in errors]
    survived = [r and not c for r, c in zip(right, called, strict=True)]
    called = [r and c for r, c in zip(right, called, strict=True)]
    return _Tried(asked, inputs, exact, errors, least, survived, called)


def _tried_also(
    program: ir.KernelGraph,
    families: list[_Family],
    tried: _Tried,
    asked: list[_Asked],
    model: _Model,
) -> _Tried:
    """The program at more scales."""
    inputs = _drawn(program, families, asked, model)
    exact = _outputs(program, program, inputs)
    return _judged(program, asked, inputs, exact, tried.least, model, calls=False)


def _to_the_edge(
    program: ir.KernelGraph, families: list[_Family], tried: _Tried, model: _Model
) -> tuple[_Tried, dict[int, float]]:
    """Runs up to what the program survives; and how far families are to be used.

    That is the largest scale, for each family that is not survived at any scale.
    """
    for _ in range(_REFINEMENTS):
        quarters = [(n, s) for n, *ends in _edges(tried) for s in _quarters(*ends)]
        if quarters:
            more = _tried_also(program, families, tried, quarters, model)
            tried = _joined(tried, _chosen(more, _halvings(more.survived)))
    within = {number: _MARGIN * low for number, low, _ in _edges(tried)}
    if within:
        inner = list(within.items())
        more = _tried_also(program, families, tried, inner, model)
        tried = _joined(tried, more)
    return tried, within


def _quarters(low: float, high: float) -> tuple[float, float, float]:
    """The scales that part a step into four of equal ratios."""
    middle = math.sqrt(low * high)
    return math.sqrt(low * middle), middle, math.sqrt(middle * high)


def _halvings(survived: list[bool]) -> list[int]:
    """Which quarters halving a step twice would look at: the middle, then one beside.

    All are run at once, since a run costs less than one more evaluation; but what is
    survived beyond a scale that is not may be luck.
    """
    middles = range(1, len(survived), 3)
    return [at for m in middles for at in (m, m + 1 if survived[m] else m - 1)]


def _edges(tried: _Tried) -> list[tuple[int, float, float]]:
    """By family, the largest scale that is survived and the next that is not.

    Families that survive all scales up to `_REFINED`, or none, have no such edge.
    """
    runs: dict[int, list[tuple[float, bool]]] = {}
    for (number, scale), survived in zip(tried.asked, tried.survived, strict=True):
        runs.setdefault(number, []).append((scale, survived))
    found: list[tuple[int, float, float]] = []
    for number, seen in runs.items():
        low = max((s for s, survived in seen if survived), default=0.0)
        high = min((s for s, _ in seen if s > low), default=0.0)
        if 0.0 < low < high <= _REFINED:
            found.append((number, low, high))
    return found


def _joined(one: _Tried, other: _Tried) -> _Tried:
    """The runs of both."""
    return _Tried(
        one.asked + other.asked,
        [np.concatenate(v) for v in zip(one.inputs, other.inputs, strict=True)],
        [np.concatenate(v) for v in zip(one.exact, other.exact, strict=True)],
        one.errors + other.errors,
        one.least,
        one.survived + other.survived,
        one.called + other.called,
    )


def _chosen(tried: _Tried, kept: list[int]) -> _Tried:
    """Some of the runs."""
    return _Tried(
        [tried.asked[at] for at in kept],
        [v[kept] for v in tried.inputs],
        [v[kept] for v in tried.exact],
        [tried.errors[at] for at in kept],
        tried.least,
        [tried.survived[at] for at in kept],
        [tried.called[at] for at in kept],
    )


def _nudges(rng: np.random.Generator, values: Array) -> Array:
    """What changes the last bits of numbers."""
    return 1 + _LAST_BITS * rng.choice((-1, 1), values.shape)


def _largest(one: list[list[float]], other: list[list[float]]) -> list[list[float]]:
    """The larger error by run and output, of those that say something."""
    return [
        [max(a, b) if math.isfinite(b) else a for a, b in zip(*pair, strict=True)]
        for pair in zip(one, other, strict=True)
    ]


def _nudged_errors(
    program: ir.KernelGraph, families: list[_Family], tried: _Tried, model: _Model
) -> list[list[float]]:
    """By run, what the last bits of other inputs make of each output."""
    drawn = zip(
        program.inputs,
        _drawn(program, families, tried.asked, model),
        tried.inputs,
        strict=True,
    )
    inputs = [a if item.type.dtype.is_float else b for item, a, b in drawn]
    moved = _outputs(program, program, inputs)
    return _errors(moved, tried.exact, tried.least)


@lru_cache(maxsize=16)
def _runs_beside(program: ir.KernelGraph, seed: int) -> list[_Runs]:
    """The runs on inputs that differ in their last bits; none of formats without them.

    The roundings of one sum may cancel where those of another one of its kind do not.
    """
    runs = _program_runs(program, seed, _EXECUTED)
    rng = np.random.default_rng([seed, 12])
    floats = [i.type.dtype for i in program.inputs if i.type.dtype.is_float]
    found: list[_Runs] = []
    for _ in range(_NEIGHBOURS * any(f.epsilon < _LAST_BITS for f in floats)):
        inputs = [
            as_held(v * _nudges(rng, v), i.type.dtype) if i.type.dtype.is_float else v
            for i, v in zip(program.inputs, runs.inputs, strict=True)
        ]
        exact = _outputs(program, program, inputs)
        errors, _ = _program_errors(
            program, inputs, exact, runs.least, _EXECUTED, calls=True
        )
        found.append(replace(runs, inputs=inputs, exact=exact, allowed=errors))
    return found


def _kept(tried: _Tried, families: list[_Family], says: list[bool]) -> list[int]:
    """Of each family the scales that matter and the largest one, if survived.

    And the largest one of those that only calls survive.
    """
    kept: set[int] = set()
    largest: dict[tuple[int, bool], int] = {}
    runs = zip(tried.asked, tried.survived, tried.called, says, strict=True)
    for at, ((number, scale), survived, called, said) in enumerate(runs):
        if not ((survived or called) and said):
            continue
        if scale in families[number].scales:
            kept.add(at)
        kind = number, called
        if kind not in largest or scale > tried.asked[largest[kind]][1]:
            largest[kind] = at
    return sorted(kept | set(largest.values()))


def _least(item: ir.Return, exact: Array, model: _Model) -> float:
    """The size that errors of an output are compared to at least."""
    if not item.type.dtype.is_float:
        # One that turns over is an error of 1, wherever it stands.
        return 1.0
    elsewhere = 0.0
    if model is _IN_F32:
        # What cancels to nothing is compared to the size that the output has elsewhere:
        # on plain inputs, or, where these give no numbers, at least on some.
        runs = np.abs(exact).reshape(len(exact), -1)
        sizes = runs.max(axis=1, initial=0.0, where=np.isfinite(runs))
        elsewhere = float(sizes[-1] or min(sizes[sizes > 0], default=0.0))
    return _SMALL * elsewhere + 1e-30


def _program_errors(
    program: ir.KernelGraph,
    inputs: list[Array],
    exact: list[Array],
    least: list[float],
    model: _Model,
    *,
    calls: bool,
) -> tuple[list[list[float]], list[bool]]:
    """The error of each output, by run, and whether it is that of calls.

    It is where the program does not survive by operators that store what they make, and
    infinite where a run says nothing either way.  What calls do not round, a candidate
    may; and it errs otherwise where an error decides between elements.
    """
    found = _errors_within(
        program, inputs, exact, least, (model.domain, model.unbounded)
    )
    called = [False for _ in found]
    rest = [at for at, errors in enumerate(found) if max(errors) > model.survived]
    calls = calls and model.as_calls != model.domain
    if not (rest and calls and inside_calls(program)):
        return found, called
    inputs, exact = ([v[rest] for v in a] for a in (inputs, exact))
    unbounded = replace(model.unbounded, as_calls=True)
    own = _errors_within(program, inputs, exact, least, (model.as_calls, unbounded))
    rounded = _outputs(program, program, inputs, model.unbounded)
    with np.errstate(all="ignore"):
        both = _largest(own, _errors(rounded, exact, least))
    for at, errors in zip(rest, both, strict=True):
        found[at] = [max(e, model.survived / ALLOWED_RATIO) for e in errors]
        called[at] = True
    return found, called


def _errors_within(
    program: ir.KernelGraph,
    inputs: list[Array],
    exact: list[Array],
    least: list[float],
    domains: tuple[RunsDomain, RunsDomain],
) -> list[list[float]]:
    """The error of each output, by run; infinite in one that says nothing.

    Where formats do not hold the exact values, a program can look finite, and even
    right, only because it lost an overflow: what is divided by an infinite norm is 0,
    and softmax gives weights to zeros as well.  Then it would err far less if formats
    had any range.  Where it would not, as a sigmoid of infinity, the overflow is
    harmless, and the run says as much as others.
    """
    domain, other = domains
    found = [[math.inf for _ in exact] for _ in inputs[0]]
    if not found:
        return found
    rounded = _outputs(program, program, inputs, domain)
    says = np.flatnonzero(_held(program, inputs, exact) & _finite(rounded))
    if not len(says):
        return found
    inputs, exact, rounded = ([v[says] for v in a] for a in (inputs, exact, rounded))
    errors = without = _errors(rounded, exact, least)
    if other != domain:
        unbounded = _outputs(program, program, inputs, other)
        without = _errors(unbounded, exact, least)
    for at, own, kept in zip(says.tolist(), errors, without, strict=True):
        most = _at_least_rounding(program, kept)
        if not any(e > ALLOWED_RATIO * m for e, m in zip(own, most, strict=True)):
            found[at] = own
    return found


def _held(
    program: ir.KernelGraph, inputs: list[Array], exact: list[Array]
) -> NDArray[np.bool_]:
    """By run, whether formats hold the inputs and the exact outputs."""
    return _in_each_run(
        np.abs(values) <= item.type.dtype.max
        for items, arrays in ((program.inputs, inputs), (program.returns, exact))
        for item, values in zip(items, arrays, strict=True)
    )


def _finite(outputs: list[Array]) -> NDArray[np.bool_]:
    """By run, whether all outputs are."""
    return _in_each_run(map(np.isfinite, outputs))


def _in_each_run(what: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """By run, whether something holds for all elements of all arrays."""
    each = [v.all(axis=tuple(range(1, v.ndim))) for v in what]
    return np.asarray(np.logical_and.reduce(each))


def _errors(
    found: list[Array], exact: list[Array], least: list[float]
) -> list[list[float]]:
    """By run, the error of each output."""
    sides = zip(found, exact, least, strict=True)
    return np.stack([_error(*side) for side in sides], axis=1).tolist()


def _at_least_rounding(program: ir.KernelGraph, errors: list[float]) -> list[float]:
    items = zip(program.returns, errors, strict=True)
    return [max(error, item.type.dtype.epsilon) for item, error in items]


def _ratios(
    runs: _Runs,
    found: list[Array],
    beside: Sequence[tuple[_Runs, list[Array]]] = (),
) -> list[float]:
    """By run, the largest ratio of an error to what is allowed.

    Args:
        runs: The program's.
        found: A candidate's outputs of them.
        beside: Runs beside them, and its outputs of these: the largest errors count.
    """
    allowed = runs.allowed
    with np.errstate(all="ignore"):
        errors = _errors(found, runs.exact, runs.least)
        for others, values in beside:
            allowed = _largest(allowed, others.allowed)
            own = _errors(values, others.exact, others.least)
            errors = _largest(errors, own)
    worst = (np.array(errors) / np.array(allowed)).max(axis=1)
    return np.where(_finite(found), worst, np.inf).tolist()


def _error(found: Array, exact: Array, least: float) -> Array:
    """By run, the largest error relative to the largest element of its row."""
    whole, rows = (len(exact), -1), np.abs(exact, dtype=np.float64)
    most = rows.reshape(whole).max(axis=1)
    if rows.ndim > 1:
        # Rows are short, and NumPy reduces those one by one: columns are quicker.
        columns = (rows[..., at : at + 1] for at in range(rows.shape[-1]))
        rows = reduce(np.maximum, columns)
    least_of_run = (_SMALL * most + least).reshape(-1, *(1 for _ in rows.shape[1:]))
    errors = np.subtract(found, exact, dtype=np.float64)
    np.abs(errors, out=errors)
    errors /= np.maximum(rows, least_of_run)
    return errors.reshape(whole).max(axis=1)


# -- Families of inputs ----------------------------------------------------------------


@dataclass(frozen=True)
class _Family:
    """Inputs of one kind at any scale.

    Attributes:
        name: In words, with a place for the scale.
        at: The inputs of a scale, not yet rounded to their formats.
        scales: Those that matter beside the largest that the program survives.
    """

    name: str
    at: Callable[[float], list[Array]]
    scales: tuple[float, ...] = ()


def _families(
    program: ir.KernelGraph, rng: np.random.Generator, plain: list[Array]
) -> Iterator[_Family]:
    """Random inputs, near 0 and far; small scales; ramps along all dims; rows alike."""
    yield _Family("random inputs of scale {}", partial(_scaled, plain), _SCALES)
    for number, far in enumerate(program.inputs):
        # A shift by the largest of relu(x), say, is right from 0 on alone.
        for side in ("", "-"):
            name = f"{far.name} around {side}{{}}"
            moved = partial(_moved, plain, number, side == "-")
            yield _Family(name, moved, _OFFSETS)
    for number, item in enumerate(program.inputs):
        # What a scale makes small may not be too large for a format without it.
        if item.type.dtype is f16 and len(item.type.names) <= 1:
            name = f"{item.name} a thousandth, others of scale {{}}"
            yield _Family(name, partial(_all_but_scaled, plain, number), (1.0,))
    noise = [1.0 + 0.1 * _normal(rng, program, i) for i in program.inputs]
    for number, item in enumerate(program.inputs):
        # Of products that are about equal none is the largest by far, on either side.
        for side in ("", "-") if number == 0 else ("-",):
            name = f"{item.name} about {side}{{}}, others about 1"
            yield _Family(name, partial(_leveled, noise, number, side == "-"))
    reduced = _reduced(program)
    for dim in _unlike_dims(program, reduced):
        # Ramps along a dim that is not reduced are offsets of rows, to both sides.
        ways = ("up", "down") if dim in reduced else ("up", "below 0")
        heights = _HEIGHTS if dim in reduced else _HEIGHTS[-1:]
        for way in ways:
            ramps = [_ramp(program, i, dim, way) for i in program.inputs]
            if way == "below 0":
                ramps = _first_negated(ramps)
            name = f"ramp {way} to {{}} along {dim}"
            yield _Family(name, partial(_ramped, noise, ramps), heights)


def _unlike_dims(program: ir.KernelGraph, reduced: set[str]) -> list[str]:
    """The dims of inputs, but one of those that only go along beside each other.

    Where the same values have two dims, and no operator speaks of either, exchanging
    elements along one is as exchanging them along the other.
    """
    types = kernel_types(program)
    along = reduced | {d.name for i in program.indices for d in i.axis}
    for node in program.applies:
        along.update(attribute_dims(node))
        if node.op.kind is Kind.LIBRARY:
            along.update(n for v in operands_of(node) for n in types[v].names)
    found: dict[object, str] = {}
    for dim in dict.fromkeys(n for i in program.inputs for n in i.type.names):
        having = frozenset(name for name, kind in types.items() if dim in kind.names)
        found.setdefault(dim if dim in along else having, dim)
    return list(found.values())


def _even_rows(
    program: ir.KernelGraph, rng: np.random.Generator, plain: list[Array]
) -> Iterator[_Family]:
    """One input constant along a dim that is reduced: wholly, or nearly so."""
    reduced = _reduced(program)
    for number, item in enumerate(program.inputs):
        sizes = [program.extent_of[n] or 1 for n in item.type.names]
        for dim in item.type.names:
            if dim not in reduced:
                continue
            shape = [
                1 if name == dim else size
                for name, size in zip(item.type.names, sizes, strict=True)
            ]
            level = 1.0 + (2 * rng.integers(0, _LEVELS // 2, shape) + 1) / _FINENESS
            bits = rng.integers(0, 2, sizes) * _DEVIATION
            for what, rows in (
                ("constant", np.broadcast_to(level, sizes)),
                ("nearly constant", level + bits),
            ):
                made = rows.reshape(input_shape(program, item))
                name = f"{item.name} {what} along {dim}, near {{}}"
                yield _Family(name, partial(_replaced, plain, number, made))


def _scaled(plain: list[Array], scale: float) -> list[Array]:
    return [scale * v for v in plain]


def _all_but_scaled(plain: list[Array], number: int, scale: float) -> list[Array]:
    """Random inputs at a scale, but one of them a thousandth."""
    return [(v / 1024 if at == number else scale * v) for at, v in enumerate(plain)]


def _moved(plain: list[Array], number: int, below: bool, scale: float) -> list[Array]:
    """Random inputs, one of them around the scale, or as far below 0."""
    offset = -scale if below else scale
    return [v + offset if at == number else v for at, v in enumerate(plain)]


def _leveled(noise: list[Array], number: int, below: bool, scale: float) -> list[Array]:
    """Noise around 1, one input times the scale, or times as much below 0."""
    factor = -scale if below else scale
    return [factor * v if at == number else v for at, v in enumerate(noise)]


def _replaced(
    plain: list[Array], number: int, made: Array, scale: float
) -> list[Array]:
    """Random inputs, one of them another one times the scale."""
    return [scale * made if at == number else v for at, v in enumerate(plain)]


def _ramped(noise: list[Array], ramps: list[Array | None], scale: float) -> list[Array]:
    """Noise around 1, times ramps up to the scale where there is one."""
    pairs = zip(noise, ramps, strict=True)
    return [v if ramp is None else scale * ramp * v for v, ramp in pairs]


def _ramp(program: ir.KernelGraph, item: ir.Input, dim: str, way: str) -> Array | None:
    """A ramp from about 0 to 1 along a dim, or back, in the shape of an input."""
    names = item.type.names
    if dim not in names:
        return None
    sizes = [program.extent_of[n] or 1 for n in names]
    at = names.index(dim)
    rising = np.linspace(0.05, 1.0, sizes[at])
    steps = rising[::-1] if way == "down" else rising
    along = steps.reshape([-1 if i == at else 1 for i in range(len(sizes))])
    return np.broadcast_to(along, sizes).reshape(input_shape(program, item))


def _first_negated(ramps: list[Array | None]) -> list[Array | None]:
    """Products of what the ramps give are negative then."""
    first = next(at for at, ramp in enumerate(ramps) if ramp is not None)
    return [
        -ramp if at == first and ramp is not None else ramp
        for at, ramp in enumerate(ramps)
    ]


def _reduced(program: ir.KernelGraph) -> set[str]:
    """The dims that are summed or otherwise reduced somewhere."""
    return {dim for node in program.applies for dim in node.across}


def _normal(rng: np.random.Generator, program: ir.KernelGraph, item: ir.Input) -> Array:
    return rng.normal(size=input_shape(program, item))
