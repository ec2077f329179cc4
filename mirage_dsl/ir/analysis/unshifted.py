"""Exponentials without a running maximum: some need none, for a bound says so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.core.types import Scalar, TensorType, f32
from mirage_dsl.ir.analysis.bounds import (
    LARGEST_EXPONENT,
    Bound,
    GraphBounds,
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
    ValueNode,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.walk import makers, operands_of
from mirage_dsl.ops.definition import Operator, Term
from mirage_dsl.ops.table import (
    DIV,
    EXP,
    MAX,
    MAXIMUM,
    MINIMUM,
    MUL,
    ROWSHIFT,
    SUB,
    shift_rows,
)


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
        if dtype != f32 and bound.smallest < dtype.smallest:
            return False
    return True


def shift_row(made: Mapping[str, ValueNode], value: Operand) -> Operator | None:
    """The row of a value that is made to be subtracted from exponents, or None.

    That is what a shift's row gives, so far or in the end, and what joins it with
    anything else, or limits it: whatever is subtracted from all exponents of a row
    cancels.
    """
    by = made.get(value) if isinstance(value, str) else None
    match by:
        case RunningMax():
            return ROWSHIFT
        case Accumulate():
            row = shift_row(made, by.operand)
            return row if row is not None and by.reduction is row.shift_of else None
        case Apply() if by.op.shift_of is not None:
            return by.op
        case Apply() if any(by.op is row.join for row in shift_rows()):
            rows = (shift_row(made, v) for v in by.values)
            return next((r for r in rows if r is not None and r.join is by.op), None)
        case Apply() if is_limited(by):
            return next((shift_row(made, v) for v in by.values), None)
        case _:
            return None


def is_limited(node: Apply) -> bool:
    """Whether a node is a value with a constant as its least or its largest."""
    return node.op in (MAXIMUM, MINIMUM) and len(node.values) < len(node.operands)


def is_shifted(made: Mapping[str, ValueNode], exponent: str) -> bool:
    """Whether an exponent has a shift already.

    One that was shifted before it was scaled has: (x - max) / 3 is at most 0 too.  So
    is x - max x whatever else is done with that maximum.
    """
    by = made.get(exponent)
    if not isinstance(by, Apply):
        return False
    if by.op is SUB:
        whole, row = by.operands
        largest = made.get(row) if isinstance(row, str) else None
        if isinstance(largest, Apply) and largest.op is MAX:
            return largest.operands == (whole,)
        return any(shift_row(made, o) is not None for o in by.operands)
    scaled = _scaled(by)
    return scaled is not None and is_shifted(made, scaled)


def _scaled(node: Apply) -> str | None:
    """What a node multiplies by a positive constant, or divides by one."""
    if node.op not in (MUL, DIV):
        return None
    match node.operands:
        case (str(value), Scalar() as factor):
            positive = 0 < factor.value < math.inf
        case (Scalar() as factor, str(value)) if node.op is MUL:
            positive = 0 < factor.value < math.inf
        case _:
            return None
    return value if positive else None


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
    origins = _Origins(graph)
    for number, node in _all_bare(graph):
        exponent = node.values[0]
        known = (node.result, exponent) in safe
        if known or origins.is_below_maximum(number, exponent):
            continue
        if _is_summed(graph, number, node):
            yield Exposed(node.result, exponent)


class _Origins:
    """Where values come from, through the kernels that stored and loaded them."""

    def __init__(self, graph: KernelGraph) -> None:
        self._outer = makers(graph)
        self._blocks = {
            at: makers(node)
            for at, node in enumerate(graph.nodes)
            if isinstance(node, BlockGraph)
        }
        self._stored = {
            store.result: (at, store.operand)
            for at, node in enumerate(graph.nodes)
            if isinstance(node, BlockGraph)
            for store in node.stores
        }

    def is_below_maximum(self, number: int, exponent: str) -> bool:
        """Whether an exponent is x - max x, whichever kernels compute that.

        Args:
            number: Of the kernel that has the exponential.
            exponent: In its block, or at the kernel level.
        """
        place = self._origin((number, exponent))
        node = self._node(place)
        if not isinstance(node, Apply) or node.op is not SUB:
            return False
        whole, row = node.operands
        if not (isinstance(whole, str) and isinstance(row, str)):
            return False
        largest = self._origin((place[0], row))
        below = self._maximum_of(largest)
        while below is not None:
            largest = self._origin(below)
            below = self._maximum_of(largest)
        return largest == self._origin((place[0], whole)) != place

    def _node(self, place: tuple[int, str]) -> ValueNode | None:
        at, name = place
        return self._blocks.get(at, self._outer).get(name)

    def _origin(self, place: tuple[int, str]) -> tuple[int, str]:
        """The place where a value is computed; inputs are of no kernel."""
        at, name = place
        while True:
            node = self._node((at, name)) if at in self._blocks else None
            if isinstance(node, Load):
                at, name = -1, node.source
            elif node is None and name in self._stored:
                at, name = self._stored[name]
            else:
                return (at if node is not None else -1), name

    def _maximum_of(self, place: tuple[int, str]) -> tuple[int, str] | None:
        """What a value is the maximum of, within finite numbers; or None."""
        match self._node(place):
            case Accumulate(operand=operand, reduction=reduction):
                return (place[0], operand) if reduction is MAX else None
            case Apply(op=op, operands=operands):
                limited = op in (MAXIMUM, MINIMUM) and len(set(operands)) > 1
                constants = [o for o in operands if isinstance(o, Scalar)]
                values = [o for o in operands if isinstance(o, str)]
                largest = op is MAX or op.shift_of is MAX
                if largest or (limited and len(constants) == 1):
                    return place[0], values[0]
                return None
            case _:
                return None


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
    "shift_row",
    "unshifted",
]
