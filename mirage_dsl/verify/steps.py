"""Where operators jump: does a candidate jump where its program does?

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.clock import look
from mirage_dsl.core.types import DType, TensorType
from mirage_dsl.ir.graph import Apply, KernelGraph, KernelNode, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import without_dead
from mirage_dsl.ops.definition import Array, Kind
from mirage_dsl.ops.table import EQUAL, LESS
from mirage_dsl.verify.runs import RunsDomain, as_held, evaluate_runs, in_formats
from mirage_dsl.verify.sizes import input_shape

Bools = NDArray[np.bool_]

_SCALES = (1.0, 8.0, 4096.0, 2.0**18)
"""Steps of 1 are coarse for small numbers, and finer than f16 for large ones; the last
ones are beyond f16."""
_LINES = 16
"""At each scale."""
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


def step_ratios(
    program: KernelGraph,
    candidate: KernelGraph,
    seed: int,
    executed: RunsDomain,
) -> Iterator[tuple[float, str]]:
    """By scale and distance, how many steps are missed in relation to what may be.

    Args:
        program: At the sizes of trials.
        candidate: Likewise.
        seed: What the inputs follow from.
        executed: The arithmetic of a real run.
    """
    steps = _steps(program, seed, executed)
    if steps is None:
        return
    found = evaluate_runs(candidate, steps.inputs, executed)
    for cell in steps.cells:
        missed = sum(pair.missed(found, steps.exact) for pair in cell.pairs)
        yield missed / (cell.missed + _MISSED * 2 * len(cell.pairs)), cell.name


@lru_cache(maxsize=16)
def _steps(program: KernelGraph, seed: int, executed: RunsDomain) -> _Steps | None:
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
    exact = evaluate_runs(program, inputs)
    rounded = evaluate_runs(program, inputs, executed)
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


def _lines(program: KernelGraph, rng: np.random.Generator) -> Iterator[_Line]:
    """Lines on which the inputs of one format move, at each scale that it holds."""
    for dtype in dict.fromkeys(i.type.dtype for i in program.inputs):
        if dtype.is_float and not dtype.only_stores:
            for scale in _SCALES:
                if scale <= dtype.max:
                    yield _Line.drawn(program, rng, dtype, scale)


def _watched(program: KernelGraph) -> KernelGraph | None:
    """The program that returns what jumps with floats; None where nothing does.

    Numbers that move are equal at one place alone: so it says where one passes another.
    """
    types = kernel_types(program)
    nodes: list[KernelNode] = []
    found: list[str] = []
    for node in program.nodes:
        if isinstance(node, Apply) and _jumps_with_floats(node, types):
            found.append(node.result)
            nodes.append(replace(node, op=LESS) if node.op is EQUAL else node)
        else:
            nodes.append(node)
    if not found:
        return None
    returns = tuple(Return(value, types[value]) for value in found)
    return without_dead(replace(program, nodes=tuple(nodes), returns=returns))


def _jumps_with_floats(node: Apply, types: Mapping[str, TensorType]) -> bool:
    jumps = node.op.jumps and node.op.kind is not Kind.LIBRARY
    return jumps and any(types[v].dtype.is_float for v in node.values)


def _pairs(
    program: KernelGraph, exact: list[Array], first: Sequence[int], count: int
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
        program: KernelGraph,
        rng: np.random.Generator,
        dtype: DType,
        scale: float,
    ) -> _Line:
        """Lines of inputs of a scale, on which those of a format move."""
        shapes = [(_LINES, *input_shape(program, i)) for i in program.inputs]
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
        self, watched: KernelGraph, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Where an element of what jumps does so, and on which lines one does."""
        every = np.arange(_LINES)
        ends = [
            _joined(evaluate_runs(watched, self.at(np.full(_LINES, t), every)))
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
            found = _joined(evaluate_runs(watched, self.at(middle, runs)))
            same = found[np.arange(len(runs)), element] == own
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return (low + high) / 2, runs


def _joined(outputs: list[Array]) -> Array:
    """All elements of all outputs, by run."""
    flat = [v.reshape(len(v), -1).astype(np.float64) for v in outputs]
    return np.concatenate(flat, axis=1)
