"""Counts: what sums of integers may be at the true extents, and trials do not reach.

Trials are small, so a count of trues is too: it wraps around in no format, is hardly
ever beside the number that it is compared with, and a clamp that it would reach is not
seen.  What intervals tell of both graphs is compared instead: a candidate whose numbers
may be more than a narrow format holds, where the program's are not, and one that
compares counts with other numbers, are undecided.

Only intervals are known, from the inputs' formats on.  So nothing that this module says
is "different", and what it does not say may still be so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from mirage_dsl.core.types import Dim, DType, Scalar, TensorType, boolean
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.ranges import (
    Given,
    Whole,
    kept,
    product_of,
    range_of,
    range_of_format,
    range_of_number,
    within,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents, loops_inside_grid
from mirage_dsl.ops.definition import Kind, Term, Truth

WIDEST = 8
"""Bytes of the widest format: what does not fit there is nobody's concern."""
MANY = 1 << 24
"""For an extent that is not known."""
REACHED = 1.5
"""Counts up to here are what trials come to, as whether there is any."""
MOST_FACTORS = 16
"""Of a product: floats hold that of so many integers."""

Types = Mapping[str, TensorType]


@dataclass(frozen=True)
class Counted:
    """What a graph does with counts.

    Attributes:
        wraps: Bytes of the narrowest format in which a number may wrap around.
        where: The value that does.
        beside: Numbers beside which what is computed of counts turns.
    """

    wraps: int
    where: str
    beside: frozenset[float]


def counts_elsewhere(program: ir.KernelGraph, candidate: ir.KernelGraph) -> str | None:
    """What a candidate does with counts that its program does not; None for nothing."""
    ours, theirs = counted(program), counted(candidate)
    if theirs.wraps < ours.wraps:
        return (
            f"{theirs.where} has {8 * theirs.wraps} bits, and its numbers may be more "
            "than these hold at the true extents; the program's always fit"
        )
    if ours.beside != theirs.beside:
        numbers = sorted(ours.beside ^ theirs.beside)
        return (
            "counts are compared with other numbers than in the program, which trials "
            f"are too small to reach: {', '.join(f'{n:g}' for n in numbers[:4])}"
        )
    return None


@lru_cache(maxsize=64)
def counted(graph: ir.KernelGraph) -> Counted:
    """What a graph does with counts, at its extents."""
    types = kernel_types(graph)
    whole = any(_is_whole(t.dtype) for t in types.values())
    if not whole and not graph.indices and not graph.blocks:
        return Counted(WIDEST, "", frozenset())
    return _Counting(graph, types).found()


def _is_whole(dtype: DType) -> bool:
    return dtype.is_integer or dtype is boolean


class _Counting:
    """Follows whole numbers through both levels of a graph."""

    def __init__(self, graph: ir.KernelGraph, types: Types) -> None:
        self._graph, self._types = graph, types
        extents = derived_extents(graph, graph.extent_of)
        self._extents = {n: e or MANY for n, e in extents.items()}
        self._block: ir.BlockGraph | None = None
        self._known: dict[str, Whole | None] = {}
        self._wraps, self._where = WIDEST, ""
        self._beside: set[float] = set()

    def found(self) -> Counted:
        for item in self._graph.inputs:
            self._known[item.name] = range_of_format(item.type.dtype)
        for index in self._graph.indices:
            count = math.prod(self._extents[d.name] for d in index.axis)
            self._known[index.name] = Whole(0, count - 1)
        for node in self._graph.nodes:
            if isinstance(node, ir.BlockGraph):
                self._read_block(node)
            else:
                self._apply(node, self._types)
        return Counted(self._wraps, self._where, frozenset(self._beside))

    def _read_block(self, block: ir.BlockGraph) -> None:
        types, outer = block_types(block, self._types), self._known
        self._block, self._known = block, dict(outer)
        for node in block.nodes:
            self._visit(node, types)
            if isinstance(node, ir.Store):
                outer[node.result] = self._known.get(node.operand)
        self._block, self._known = None, outer

    def _visit(self, node: ir.BlockNode, types: Types) -> None:
        match node:
            case ir.Load():
                self._known[node.result] = self._known.get(node.source)
            case ir.Store():
                pass
            case ir.Accumulate():
                value = self._known.get(node.operand)
                if node.adds and node.rescale is None:
                    value = self._sum(value, self._iterations())
                elif node.rescale is not None:
                    value = None
                self._keep(node.result, value, types)
            case ir.RunningMax():
                self._known[node.result] = self._known.get(node.operand)
            case ir.Apply():
                self._apply(node, types)

    def _iterations(self) -> float:
        """By how much more elements a block has than an iteration."""
        assert self._block is not None
        loop = self._block.loop
        assert loop is not None
        part = Dim(loop.dim, grid=loops_inside_grid(self._block))
        return max(self._elements(part) / loop.tile, 1.0)

    def _elements(self, dim: Dim) -> int:
        """How many elements of a dim a tensor or a tile has."""
        extent, block = self._extents.get(dim.name, MANY), self._block
        if block is None or not (dim.grid or dim.loop):
            return extent
        split = block.loop if dim.loop else block.grid_split(dim.name)
        return extent if split is None else min(split.tile, extent)

    # -- One operator ----------------------------------------------------------------

    def _apply(self, node: ir.Apply, types: Types) -> None:
        given = [self._operand(o) for o in node.operands]
        match node.op.kind:
            case Kind.REDUCTION | Kind.SCAN | Kind.CONTRACTION:
                value = self._joined(node, given, types)
            case _:
                self._compare(node, given)
                value = range_of(node.op, given)
        self._keep(node.result, value, types)

    def _operand(self, operand: ir.Operand) -> Whole | None:
        if isinstance(operand, str):
            return self._known.get(operand)
        return range_of_number(operand.exact_at(self._extents))

    def _joined(self, node: ir.Apply, given: Given, types: Types) -> Whole | None:
        """What a reduction, a scan or a product comes to."""
        dims = {d for v in node.values for d in types[v].dims}
        along = {*node.over, *node.along}
        count = math.prod(self._elements(d) for d in dims if d.name in along)
        if node.op.kind is Kind.CONTRACTION:
            return self._sum(product_of([*given, *given][:2]), count)
        (value,) = given[:1]
        if value is None or node.op.term is Term.SUM or node.op.name == "cumsum":
            return self._sum(value, count)
        if node.op.name not in ("prod", "cumprod"):
            return value
        largest = max(abs(value.least), abs(value.most))
        most = largest if largest <= 1 else largest ** min(count, MOST_FACTORS)
        return replace(value, least=min(value.least, 0) and -most, most=most)

    def _sum(self, value: Whole | None, count: float) -> Whole | None:
        if value is None:
            return None
        least, most = min(value.least * count, 0), max(value.most * count, 0)
        return Whole(least, most, value.counted or count > 1, value.data)

    def _keep(self, result: str, value: Whole | None, types: Types) -> None:
        """Note what a value is: what its format holds, if it may wrap around."""
        dtype = types[result].dtype
        bounds = range_of_format(dtype)
        wraps = bounds is not None and value is not None and not within(value, bounds)
        if wraps and dtype.itemsize < self._wraps and dtype is not boolean:
            self._wraps, self._where = dtype.itemsize, result
        self._known[result] = kept(value, dtype)

    def _compare(self, node: ir.Apply, given: Given) -> None:
        """Note beside which numbers a count makes a difference."""
        extreme = node.op.name in ("maximum", "minimum")
        if node.op.truth is not Truth.COMPARES and not extreme:
            return
        for at, (one, other) in enumerate((given, given[::-1])):
            number = node.operands[1 - at]
            if one is None or not one.counted or not isinstance(number, Scalar):
                continue
            if other is None:
                continue
            zero = max(one.least, 0)
            for turn in _turns(node.op.name, other.least, first=at == 0):
                if one.least < turn < one.most and abs(turn - zero) > REACHED:
                    self._beside.add(turn)


def _turns(name: str, number: float, *, first: bool) -> tuple[float, ...]:
    """Beside which numbers a comparison with one turns, of the first or the second."""
    below, above = number - 0.5, number + 0.5
    match name:
        case "less":
            return (below,) if first else (above,)
        case "less_equal":
            return (above,) if first else (below,)
        case "maximum" | "minimum":
            return (number,)
        case _:
            return below, above
