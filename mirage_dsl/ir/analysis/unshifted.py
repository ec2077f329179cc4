"""Exponentials without a running maximum: some need none, for a bound says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.core.types import TensorType, f32
from mirage_dsl.ir.analysis.bounds import (
    LARGEST_EXPONENT,
    Bound,
    GraphBounds,
    smallest_normal,
)
from mirage_dsl.ir.analysis.homogeneity import NotHomogeneousError, Scaling, scaling_of
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    Operand,
    RunningMax,
    Store,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.walk import makers, operands_of
from mirage_dsl.ops.definition import Term
from mirage_dsl.ops.table import EXP, MAXIMUM, ROWSHIFT, SUB


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


@dataclass(frozen=True)
class Exposed:
    """An exponential that is summed and may overflow.

    Attributes:
        result: Its name.
        exponent: The name of its exponent.
    """

    result: str
    exponent: str

    def __str__(self) -> str:
        return (
            f"{self.result} has no running maximum: sums of it are infinite where "
            f"{self.exponent} exceeds {LARGEST_EXPONENT:g}"
        )


def needs_no_shift(
    graph: KernelGraph, number: int, node: Apply, found: Scaling
) -> Unshifted | None:
    """Why an exponential stays in range without a shift, or None.

    Nothing that scales with it may overflow, and nothing of it that is rounded to a
    storage dtype may fall below the numbers of full precision.

    Args:
        graph: The μGraph without that shift.
        number: The position of its block, or its own.
        node: The exponential.
        found: What scales with it.
    """
    bounds = GraphBounds(graph)
    largest = bounds.blocks.get(number, bounds.kernel)[node.values[0]].magnitude
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
    for number, node in _all_bare(graph):
        try:
            found = scaling_of(graph, number, node.result)
        except NotHomogeneousError:
            continue
        if found.summed or found.accumulators:
            why = needs_no_shift(graph, number, node, found)
            if why is not None:
                yield why


def exposed(graph: KernelGraph) -> Iterator[Exposed]:
    """The exponentials of a μGraph that are summed, have no shift, and may need one."""
    safe = {(u.result, u.exponent) for u in unshifted(graph)}
    for number, node in _all_bare(graph):
        exponent = node.values[0]
        if (node.result, exponent) not in safe and _is_summed(graph, number, node):
            yield Exposed(node.result, exponent)


def _is_summed(graph: KernelGraph, number: int, node: Apply) -> bool:
    """Whether something in proportion to an exponential is summed."""
    kernel: set[str] = set()
    for at, outer in enumerate(graph.nodes):
        nodes: Sequence[BlockNode] = (
            (outer,) if isinstance(outer, Apply) else outer.nodes
        )
        found = kernel if isinstance(outer, Apply) else set[str]()
        for inner in nodes:
            if at == number and inner is node:
                found.add(node.result)
            elif not found.isdisjoint(operands_of(inner)):
                if _sums(inner):
                    return True
                if not isinstance(inner, Apply) or inner.op.term is not Term.FUNCTION:
                    (kernel if isinstance(inner, Store) else found).add(inner.result)
            elif isinstance(inner, Load) and inner.source in kernel:
                found.add(inner.result)
    return False


def _sums(node: BlockNode) -> bool:
    if isinstance(node, Apply):
        return node.op.adds
    return isinstance(node, Accumulate) and node.adds


def bare(level: KernelGraph | BlockGraph) -> list[Apply]:
    """The exponentials of a level that have no shift."""
    made = makers(level)
    return [
        n
        for n in level.applies
        if n.op is EXP and n.values and not is_shifted(made, n.values[0])
    ]


def _all_bare(graph: KernelGraph) -> Iterator[tuple[int, Apply]]:
    """The exponentials without a shift, each behind the number of its kernel."""
    outer = {n.result for n in bare(graph)}
    for number, kernel in enumerate(graph.nodes):
        if isinstance(kernel, BlockGraph):
            yield from ((number, node) for node in bare(kernel))
        elif kernel.result in outer:
            yield number, kernel


__all__ = [
    "Exposed",
    "Unshifted",
    "bare",
    "exposed",
    "is_shifted",
    "needs_no_shift",
    "unshifted",
]
