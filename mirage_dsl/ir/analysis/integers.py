"""Inputs of integers and truth values: what indices may be, and values that are drawn.

Integers are computed as they are, by NumPy, in their formats and with the wrap-around
of these.  So what is no arithmetic of rings (shifts, comparisons, floor division) is
exact in verification too.  Where they become floats they become residues.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar, boolean, scalar
from mirage_dsl.ir.graph import Apply, BlockNode, KernelGraph, Load, Store
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of
from mirage_dsl.ops.definition import Array, Kind
from mirage_dsl.ops.table import OPERATORS, WHERE

# -- Indices ---------------------------------------------------------------------------

LESS = OPERATORS["less"]


def index_limits(graph: KernelGraph) -> dict[str, range]:
    """By input of integers, what an index made of it may be, of the smallest extent.

    An index that is an input is within it; what is computed of inputs may still lie
    outside.  Negative ones count from the end, unless a choice puts others in their
    place.  Extents have to be known.
    """
    types = kernel_types(graph)
    reach: dict[tuple[int, str], set[str]] = {
        (0, i.name): {i.name} for i in graph.inputs
    }
    limits: dict[str, range] = {}
    made_by: dict[tuple[int, str], Apply] = {}
    for level, node in _levels(graph):
        source, made = level, level
        read = operands_of(node)
        if isinstance(node, Load):
            source, read = 0, (node.source,)
        elif isinstance(node, Store):
            made = 0
        found = [reach.get((source, value), set[str]()) for value in read]
        reach[made, node.result] = set[str]().union(*found)
        if not isinstance(node, Apply):
            continue
        made_by[level, node.result] = node
        from_end = True
        if node.op.indexed:
            (extent,) = node.numbers["size"]
        elif node.op.kind is Kind.GATHER:
            extent = graph.extent_of[str(node.attr("dim"))]
            from_end = not _replaces_negative(level, node.values[1], made_by)
        else:
            continue
        for name in found[1]:
            if types[name].dtype.is_integer and extent is not None:
                known = limits.get(name, range(-extent, extent))
                least = max(known.start, -extent if from_end else 0)
                limits[name] = range(least, min(known.stop, extent))
    return limits


def _replaces_negative(
    level: int, index: str, made_by: Mapping[tuple[int, str], Apply]
) -> bool:
    """Whether an index is a number wherever what it is made of is below 0."""
    choice = made_by.get((level, index))
    if choice is None or choice.op is not WHERE:
        return False
    holds, number, value = choice.operands
    test = made_by.get((level, str(holds)))
    below = test is not None and test.op is LESS and test.operands == (value, scalar(0))
    return below and isinstance(number, Scalar)


def _levels(graph: KernelGraph) -> Iterator[tuple[int, BlockNode]]:
    """All nodes with the number of their level: 0, or one for each block."""
    for number, node in enumerate(graph.nodes, 1):
        if isinstance(node, Apply):
            yield 0, node
        else:
            yield from ((number, inner) for inner in node.nodes)


# -- Values drawn ----------------------------------------------------------------------

SMALL = 4
"""Half of the integers that are drawn lie below it, so that some are equal."""
_STEPS = 64.0


def any_integers(
    rng: np.random.Generator,
    dtype: DType,
    shape: tuple[int, ...],
    limit: range | None = None,
) -> NDArray[Any]:
    """Random numbers of a format of integers, or truth values; within limits, if any.

    Half of them are small, so that comparisons meet equal ones and products do not wrap
    around; the others are of any size.
    """
    return of_words(dtype, rng.integers(0, 2**62, shape), limit)


def of_words(
    dtype: DType, words: NDArray[np.int64], limit: range | None = None
) -> NDArray[Any]:
    """A number of a format for each random number from 0 on.

    Within limits they are indices, which count from the end where they are negative.
    """
    if limit is not None:
        return _indices(dtype, words, limit)
    if dtype == boolean:
        return words % 2 == 1
    least = max(int(dtype.min), -SMALL)
    small = words // 2 % (SMALL - least) + least
    return np.where(words % 2 == 0, small, words // 2).astype(dtype.long_name)


def fitted(dtype: DType, values: Array, limit: range | None = None) -> Array:
    """Random floats as values that an input may have, near them if it can be.

    Floats are left as they are: rounding them is up to whoever runs a graph.
    """
    if dtype.is_float:
        return values
    steps = np.rint(np.abs(values) * _STEPS)
    if limit is not None:
        return _indices(dtype, steps, limit)
    if dtype == boolean:
        return np.asarray(steps % 2, values.dtype)
    signed = np.where(values < 0, -steps, steps)
    return np.clip(signed, dtype.min, min(dtype.max, 2.0**62)).astype(dtype.long_name)


def _indices(dtype: DType, words: Array, limit: range) -> Array:
    """Indices of an axis, which count from its end where they are negative."""
    least = max(limit.start, int(dtype.min))
    most = min(limit.stop - 1, int(dtype.max))
    return (words % (most - least + 1) + least).astype(dtype.long_name)
