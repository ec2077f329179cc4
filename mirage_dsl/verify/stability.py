"""The floating-point verdict: does a candidate err much more than its program?

Algebra accepts any shift of exponents, however bad; only floats see overflow and
cancellation.  Candidate and unfused program run under a model of real execution (f32
arithmetic, storage formats rounded) against the program in float64, at several scales,
far from 0, and with ramps along every dim: up, down, and so, along other dims, as row
offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mirage_dsl.ir.graph import Apply, Input, KernelGraph
from mirage_dsl.ir.numpy_domain import numpy_dtype
from mirage_dsl.ops.definition import Array
from mirage_dsl.verify.certificate import Stability
from mirage_dsl.verify.runs import evaluate_runs
from mirage_dsl.verify.sizes import Shrunk, input_shape

ALLOWED_RATIO = 4.0
_SCALES = (1.0, 8.0)
_OFFSET = 64.0
"""Around which one input lies: what subtracts squares of means shows there."""
_HEIGHTS = (4.0, 40.0)


def measure_stability(shrunk: Shrunk, seed: int) -> Stability:
    """Compare the errors of both graphs over the families of inputs."""
    runs = _program_runs(shrunk.program, seed)
    if not runs.names:
        return _verdict(0.0, "", 0)
    fused = _executed(shrunk.candidate, runs.inputs)
    ratios = [
        _ratio(
            shrunk.program,
            [v[at] for v in runs.reference],
            [v[at] for v in runs.plain],
            [v[at] for v in fused],
        )
        for at in range(len(runs.names))
    ]
    worst = int(np.argmax(ratios))
    return _verdict(ratios[worst], runs.names[worst], len(ratios))


@dataclass(frozen=True)
class _Runs:
    """A program on families of inputs: in float64, and as it would be executed.

    The first axis of all arrays is that of the families.
    """

    names: list[str]
    inputs: list[Array]
    reference: list[Array]
    plain: list[Array]


@lru_cache(maxsize=4)
def _program_runs(program: KernelGraph, seed: int) -> _Runs:
    """The families on which the program is finite; its candidates share them."""
    families = list(_families(program, seed))
    inputs = [np.stack(v) for v in zip(*(given for _, given in families), strict=True)]
    plain = _executed(program, inputs)
    reference = evaluate_runs(program, inputs)
    kept = [
        at
        for at in range(len(families))
        if all(np.isfinite(v[at]).all() for v in plain)
        and _representable(program, [v[at] for v in reference])
    ]
    return _Runs(
        [families[at][0] for at in kept],
        *([v[kept] for v in some] for some in (inputs, reference, plain)),
    )


def _representable(program: KernelGraph, outputs: list[Array]) -> bool:
    """Whether the storage formats hold the exact outputs.

    Where they do not, a program can look finite only because it lost an overflow, as
    dividing by an infinite norm does.
    """
    return all(
        bool((np.abs(value) <= item.type.dtype.max).all())
        for item, value in zip(program.returns, outputs, strict=True)
    )


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


def _executed(graph: KernelGraph, inputs: list[Array]) -> list[Array]:
    return evaluate_runs(graph, inputs, compute=np.float32, round_casts=True)


def _ratio(
    program: KernelGraph,
    reference: list[Array],
    plain: list[Array],
    fused: list[Array],
) -> float:
    """The largest ratio of relative errors, those within rounding counted as it."""
    worst = 0.0
    for item, exact, ours, theirs in zip(
        program.returns, reference, plain, fused, strict=True
    ):
        if not np.isfinite(theirs).all():
            return float("inf")
        rounding = item.type.dtype.epsilon
        allowed = max(_error(ours, exact), rounding)
        worst = max(worst, _error(theirs, exact) / allowed)
    return worst


def _error(found: Array, exact: Array) -> float:
    """The largest error relative to the largest element of its row."""
    rows = np.abs(exact)
    if rows.ndim:
        rows = rows.max(axis=-1, keepdims=True)
    scale = np.maximum(rows, 1e-3 * np.abs(exact).max() + 1e-30)
    return float((np.abs(found - exact) / scale).max())


def _families(program: KernelGraph, seed: int) -> Iterator[tuple[str, list[Array]]]:
    """Sets of inputs, named."""
    rng = np.random.default_rng([seed, 9])
    for scale in _SCALES:
        drawn = [scale * _normal(rng, program, i) for i in program.inputs]
        yield f"random inputs of scale {scale:g}", _stored(program, drawn)
    for far in program.inputs:
        drawn = [_normal(rng, program, i) for i in program.inputs]
        drawn[program.inputs.index(far)] += _OFFSET
        yield f"{far.name} around {_OFFSET:g}", _stored(program, drawn)
    for dim, height in _ramps(program):
        way = "up" if height > 0 else "down"
        name = f"ramp {way} to {abs(height):g} along {dim}"
        inputs = [_ramp(rng, program, i, dim, height) for i in program.inputs]
        yield name, _stored(program, inputs)


def _ramps(program: KernelGraph) -> Iterator[tuple[str, float]]:
    """Ramps both ways along dims that are reduced; along others one, as row offsets."""
    applied = (n for n in program.nodes if isinstance(n, Apply))
    reduced = {dim for node in applied for dim in node.over}
    for dim in dict.fromkeys(n for i in program.inputs for n in i.type.names):
        if dim not in reduced:
            yield dim, _HEIGHTS[-1]
            continue
        for height in _HEIGHTS:
            yield dim, height
            yield dim, -height


def _stored(program: KernelGraph, inputs: list[Array]) -> list[Array]:
    # Inputs exist in their storage format; their rounding is nobody's error.
    formats = (numpy_dtype(i.type.dtype) for i in program.inputs)
    pairs = zip(inputs, formats, strict=True)
    return [v.astype(f).astype(np.float64) for v, f in pairs]


def _normal(rng: np.random.Generator, program: KernelGraph, item: Input) -> Array:
    return rng.normal(size=input_shape(program, item))


def _ramp(
    rng: np.random.Generator, program: KernelGraph, item: Input, dim: str, height: float
) -> Array:
    """Values near 1, times a ramp from 0 to |height| along `dim`, rising or falling."""
    names = item.type.names
    sizes = [program.extent_of[n] or 1 for n in names]
    noise = 1.0 + 0.1 * rng.normal(size=sizes)
    if dim in names:
        at = names.index(dim)
        rising = np.linspace(0.05, 1.0, sizes[at]) * abs(height)
        steps = rising if height > 0 else rising[::-1]
        noise = noise * steps.reshape([-1 if i == at else 1 for i in range(len(sizes))])
    return noise.reshape(input_shape(program, item))
