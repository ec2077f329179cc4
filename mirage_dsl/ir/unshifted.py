"""Exponentials that need no running maximum, because a bound says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mirage_dsl.ir.bounds import LARGEST_EXPONENT, Bound, smallest_normal
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Operand,
    RunningMax,
    Store,
)
from mirage_dsl.ir.graph_bounds import GraphBounds
from mirage_dsl.ir.homogeneity import NotHomogeneousError, Scaling, scaling_of
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ops.table import EXP, MAXIMUM, ROWSHIFT, SUB
from mirage_dsl.types import TensorType, f32


@dataclass(frozen=True)
class Unshifted:
    """An exponential that is in range as it is.

    Attributes:
        result: Its name.
        exponent: The name of its exponent.
        largest: The exponent's magnitude is at most this.
    """

    result: str
    exponent: str
    largest: float

    def __str__(self) -> str:
        return (
            f"{self.result} needs no running maximum: {self.exponent} is between "
            f"-{self.largest:.4g} and {self.largest:.4g} whatever the inputs are"
        )


def needs_no_shift(
    graph: KernelGraph, number: int, node: Apply, found: Scaling
) -> Unshifted | None:
    """Why an exponential of a block stays in range without a shift, or None.

    Nothing that scales with it may overflow, and nothing of it that is rounded to a
    storage dtype may fall below the numbers of full precision.

    Args:
        graph: The μGraph without that shift.
        number: The block's position.
        node: The exponential.
        found: What scales with it.
    """
    bounds = GraphBounds(graph)
    largest = bounds.blocks[number][node.values[0]].magnitude
    if largest > LARGEST_EXPONENT:
        return None
    outer = kernel_types(graph)
    sound = _in_range(found.kernel_degrees, bounds.kernel, outer)
    for at, degrees in found.block_degrees.items():
        block = graph.nodes[at]
        assert isinstance(block, BlockGraph)
        sound &= _in_range(degrees, bounds.blocks[at], block_types(block, outer))
    return Unshifted(node.result, node.values[0], largest) if sound else None


def _in_range(
    values: Iterable[str],
    bounds: Mapping[str, Bound],
    types: Mapping[str, TensorType],
) -> bool:
    """Whether values can neither overflow nor, rounded, lose their precision."""
    for value in values:
        bound, dtype = bounds[value], types[value].dtype
        if math.isinf(bound.magnitude):
            return False
        if dtype != f32 and bound.smallest < smallest_normal(dtype):
            return False
    return True


def is_shifted(makers: Mapping[str, object], exponent: str) -> bool:
    """Whether an exponent has a shift already."""
    made = makers.get(exponent)
    if not isinstance(made, Apply) or made.op is not SUB:
        return False
    return _is_shift(makers, made.operands[1])


def _is_shift(makers: Mapping[str, object], value: Operand) -> bool:
    """Whether a value is made to be subtracted from exponents."""
    by = makers.get(value) if isinstance(value, str) else None
    if isinstance(by, Accumulate):
        return by.kind == "max" and _is_shift(makers, by.operand)
    if isinstance(by, Apply) and by.op is MAXIMUM:
        return any(_is_shift(makers, o) for o in by.operands)
    return isinstance(by, RunningMax) or (isinstance(by, Apply) and by.op is ROWSHIFT)


def unshifted(graph: KernelGraph) -> Iterator[Unshifted]:
    """The exponentials of a μGraph that have no shift and need none."""
    for number, block in enumerate(graph.nodes):
        for node in _bare(block) if isinstance(block, BlockGraph) else ():
            try:
                found = scaling_of(graph, number, node.result)
            except NotHomogeneousError:
                continue
            if found.summed or found.accumulators:
                why = needs_no_shift(graph, number, node, found)
                if why is not None:
                    yield why


def _bare(block: BlockGraph) -> list[Apply]:
    """The exponentials of a block without a shift."""
    makers = {n.result: n for n in block.nodes if not isinstance(n, Store)}
    applied = (n for n in block.nodes if isinstance(n, Apply))
    return [
        n
        for n in applied
        if n.op is EXP and n.values and not is_shifted(makers, n.values[0])
    ]


__all__ = ["Unshifted", "is_shifted", "needs_no_shift", "unshifted"]
