"""Shifts of exponents that come back behind a logarithm.

    s = shift x over(k)
    y = log(sum exp(x - s) over(k)) + s

does not depend on s, but over fields log is a random function, which does not know
that log(a exp(-s)) is log(a) - s.  So this is seen in float64: with random numbers in
the place of shifts, drawn again and again, outputs stay what they are.  Shifts that
pass are 0 on that side of a comparison.  What is left to compare is the function
itself, exactly as without shifts; that no shift matters is a test of real numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mirage_dsl.core.errors import MirageError
from mirage_dsl.ir.analysis.indices import index_limits
from mirage_dsl.ir.evaluate.floats import NumpyDomain
from mirage_dsl.ir.evaluate.graph import evaluate
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, RunningMax
from mirage_dsl.ir.walk import map_nodes
from mirage_dsl.ops.definition import Array, Operator
from mirage_dsl.ops.table import LOG, shift_rows
from mirage_dsl.verify.integers import fitted
from mirage_dsl.verify.sizes import input_shape, shrink

TOLERANCE = 1e-9
"""Of the largest output: rounding in float64 errs far less, what depends far more."""
DRAWS = 3


@dataclass(frozen=True)
class _Drawn(NumpyDomain):
    """Random numbers, or 0, in the place of shifts; equal ones for equal operands."""

    key: int = 0
    scale: float = 1.0

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        if op.shift_of is None:
            return super().reduce(op, value, axes)
        kept = [n for i, n in enumerate(value.shape) if i not in axes]
        return self._shift(value, kept, *axes)

    def running_max(self, value: Array, axis: int) -> Array:
        return self._shift(value, value.shape, axis)

    def _shift(self, value: Array, shape: Sequence[int], *axes: int) -> Array:
        of = zlib.crc32(np.ascontiguousarray(value).tobytes())
        return self.scale * np.random.default_rng([self.key, of, *axes]).normal(
            size=tuple(shape)
        )


def no_shift_matters(graph: KernelGraph, seed: int) -> bool:
    """Whether a graph has logarithms and shifts, and no output depends on the shifts.

    Args:
        graph: At small sizes.
        seed: What the draws follow from.
    """
    return _has_logarithms(graph) and _has_shifts(graph) and _same(graph, seed)


def logarithmic_shifts(graph: KernelGraph, seed: int) -> KernelGraph:
    """The graph, with shifts in the place of reductions whose values do not matter.

    Only where there are logarithms; else fields tell.
    """
    rows = {row.shift_of: row for row in shift_rows()}
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


def with_shifts(graph: KernelGraph, rows: Mapping[str, Operator]) -> KernelGraph:
    """The graph with rows of shifts in the place of reductions, by their results."""
    return map_nodes(
        graph,
        lambda n: (
            replace(n, op=rows[n.result])
            if isinstance(n, Apply) and n.result in rows
            else n
        ),
    )


def _indifferent(graph: KernelGraph, seed: int) -> bool:
    try:
        return _same(shrink(graph, graph, ragged=False, seed=seed).program, seed)
    except MirageError:
        return False


def _same(graph: KernelGraph, seed: int) -> bool:
    """Whether outputs are the same, and finite somewhere, whatever the shifts are."""
    rng = np.random.default_rng([seed, 7])
    limits = index_limits(graph)
    for key in range(DRAWS):
        inputs = [
            fitted(
                i.type.dtype,
                rng.uniform(0.25, 3.0, input_shape(graph, i)),
                limits.get(i.name),
            )
            for i in graph.inputs
        ]
        plain, moved = (
            evaluate(
                graph,
                inputs,
                _Drawn(stand_ins=True, checked=False, key=key, scale=scale),
            )
            for scale in (0.0, 1.0)
        )
        if not all(map(_close, plain, moved)):
            return False
    return True


def _close(a: Array, b: Array) -> bool:
    """Whether two results agree, and are finite in the same places, if in any."""
    finite = np.isfinite(a)
    if not finite.any() or not np.array_equal(finite, np.isfinite(b)):
        return False
    largest = max(1.0, float(np.abs(a[finite]).max()))
    return bool(np.abs(a[finite] - b[finite]).max() <= TOLERANCE * largest)


def _has_logarithms(graph: KernelGraph) -> bool:
    blocks = (n for block in graph.blocks for n in block.applies)
    return any(n.op is LOG for n in (*graph.applies, *blocks))


def _has_shifts(graph: KernelGraph) -> bool:
    nodes = [n for node in graph.nodes for n in _nodes(node)]
    return any(
        isinstance(n, RunningMax)
        or (isinstance(n, Apply) and n.op.shift_of is not None)
        for n in nodes
    )


def _nodes(node: object) -> tuple[object, ...]:
    return node.nodes if isinstance(node, BlockGraph) else (node,)


__all__ = ["logarithmic_shifts", "no_shift_matters", "with_shifts"]
