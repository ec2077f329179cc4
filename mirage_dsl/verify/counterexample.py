"""Numbers that show how a candidate differs from its program."""

from __future__ import annotations

import numpy as np

from mirage_dsl.ir.numpy_domain import evaluate_numpy
from mirage_dsl.ops.definition import Array
from mirage_dsl.verify.certificate import Counterexample
from mirage_dsl.verify.sizes import Shrunk
from mirage_dsl.verify.trials import input_shape

_TOLERANCE = 1e-9
_DRAWS = 6


def find_counterexample(shrunk: Shrunk, seed: int) -> Counterexample | None:
    """Inputs on which float64 results differ, or None if a few draws show none."""
    rng = np.random.default_rng([seed, 5])
    program = shrunk.program
    shapes = [input_shape(program, i) for i in program.inputs]
    for draw in range(_DRAWS):
        inputs = [_values(rng, s, positive=draw % 2 == 1) for s in shapes]
        expected = evaluate_numpy(program, *inputs)
        found = evaluate_numpy(shrunk.candidate, *inputs)
        for number, (a, b) in enumerate(zip(expected, found, strict=True)):
            index = _first_difference(a, b)
            if index is None:
                continue
            return Counterexample(
                sizes=tuple(sorted(shrunk.sizes.items())),
                inputs=tuple(i.tolist() for i in inputs),
                output=number,
                index=index,
                expected=float(a[index]),
                found=float(b[index]),
                expected_output=a.tolist(),
                found_output=b.tolist(),
            )
    return None


def _values(
    rng: np.random.Generator, shape: tuple[int, ...], *, positive: bool
) -> Array:
    """Values that read well: three digits."""
    drawn = rng.uniform(0.25, 3.0, shape) if positive else rng.normal(size=shape)
    return np.round(drawn, 3)


def _first_difference(a: Array, b: Array) -> tuple[int, ...] | None:
    finite = np.isfinite(a)
    if not finite.any():
        return None
    scale = max(float(np.abs(a[finite]).max()), 1e-30)
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= _TOLERANCE * scale
    places = np.argwhere(finite & ~close)
    return None if len(places) == 0 else tuple(int(i) for i in places[0])
