"""Numbers that show how a candidate differs from its program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.analysis.integers import fitted, index_limits
from mirage_dsl.ir.evaluate.floats import NumpyDomain, evaluate_numpy
from mirage_dsl.ir.evaluate.graph import BlockEvaluator, evaluate
from mirage_dsl.ops.definition import Array
from mirage_dsl.verify.certificate import Counterexample, nested_tuples
from mirage_dsl.verify.sizes import Shrunk, input_shape

_TOLERANCE = 1e-9
_SCALES = (1.0, 1.0, 8.0, 8.0, 64.0, 1.0)
_ZEROS = 5
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
            if index is None:
                continue
            return Counterexample(
                sizes=tuple(sorted(shrunk.sizes.items())),
                inputs=tuple(nested_tuples(i.tolist()) for i in inputs),
                output=number,
                index=index,
                expected=float(a[index]),
                found=float(b[index]),
                expected_output=nested_tuples(a.tolist()),
                found_output=nested_tuples(b.tolist()),
            )
    return None


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
    for draw, scale in enumerate(scales):
        inputs = [_values(rng, s, scale, positive=draw % 2 == 1) for s in shapes]
        if draw == _ZEROS:
            inputs = [v * (rng.random(v.shape) < 0.75) for v in inputs]
        items = zip(program.inputs, inputs, strict=True)
        inputs = [fitted(i.type.dtype, v, limits.get(i.name)) for i, v in items]
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
