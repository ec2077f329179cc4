"""Loops split over the grid: one kernel for the parts, one that joins them.

A block iterates over a dim L and accumulates.  If there are too few blocks to fill a
GPU, the iterations can be shared out as well (split-K, flash decoding).  Before →
after, with k looped over:

    a = accumulate p                 1: over k/grid/loop:  a = accumulate p
    y = f(a)                            store a[k#/grid, ..]
                                     2: a = sum(load a[k#, ..], over k#);  y = f(a)

A sum right after the loop moves into the first kernel, so that less is stored.  What
was accumulated relative to a running maximum is joined relative to the largest of the
parts' maxima: each part is weighted by exp(maximum - largest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mirage_dsl.core.types import Axis, Dim, DType, Scalar, f32, scalar
from mirage_dsl.ir.canonical import FreshNames
from mirage_dsl.ir.check.block import MAX_GRID_DIMS
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Schedule,
    Split,
    Store,
    partial_dim,
    stages_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents, parts
from mirage_dsl.ir.walk import live, read_by, users
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.table import EXP, MAX, MUL, ROWSHIFT, SUB, SUM


def split_loop(
    graph: KernelGraph, number: int, *, count: int = 4
) -> KernelGraph | None:
    """The μGraph with the loop of one block split over the grid.

    Args:
        graph: The μGraph.
        number: Position of the block among the graph's nodes.
        count: Between how many blocks the iterations are shared out; whole tiles of
            the loop go to each.

    Returns:
        The μGraph with two kernels in place of one, or None where that cannot be: no
        loop, no free grid dim, or results of which no parts are joined.
    """
    block = graph.nodes[number]
    if not isinstance(block, BlockGraph) or not _may_split(graph, block):
        return None
    split = _Splitting(graph, block)
    if not split.crossing or not all(map(split.storable, split.crossing.values())):
        return None
    nodes = list(graph.nodes)
    nodes[number : number + 1] = [split.first(count), split.second()]
    made = replace(graph, nodes=tuple(nodes))
    made = made.with_extents(derived_extents(made, made.extent_of))
    return None if check(made) else made


def _may_split(graph: KernelGraph, block: BlockGraph) -> bool:
    if block.loop is None or len(block.axes) >= MAX_GRID_DIMS:
        return False
    dims = {*(s.dim for s in block.grid), block.loop.dim}
    # The dims over parts must be new.
    if any(partial_dim(d) in graph.extent_of or d.endswith("#") for d in dims):
        return False
    if block.loop.dim in {s.dim for s in block.grid}:
        return False
    sums = [n for n in block.nodes if isinstance(n, Accumulate)]
    lasts = [n.operand for n in sums if n.operand in _running(block)]
    return all(n.reduction is not None for n in sums) and len(lasts) == len({*lasts})


def _running(block: BlockGraph) -> set[str]:
    return {n.result for n in block.nodes if isinstance(n, RunningMax)}


@dataclass(frozen=True)
class _Crossing:
    """A value of the first kernel that the second one joins from its parts.

    Attributes:
        value: Its name in both kernels.
        reduction: What joins its parts, and those of the accumulator it comes from.
        shift: The running maximum that it is relative to.
        tensor: The kernel-level tensor of the parts.
    """

    value: str
    reduction: Operator
    shift: str | None
    tensor: str


@dataclass
class _Splitting:
    graph: KernelGraph
    block: BlockGraph
    crossing: dict[str, _Crossing] = field(default_factory=dict[str, _Crossing])
    maxima: dict[str, _Crossing] = field(default_factory=dict[str, _Crossing])
    """By the name of the running maximum."""
    lasts: dict[str, str] = field(default_factory=dict[str, str])
    """Names of running maxima as they are after the loop."""

    def __post_init__(self) -> None:
        assert self.block.loop is not None
        self.loop = self.block.loop
        self.types = block_types(self.block, kernel_types(self.graph))
        self.stages = stages_of(self.block)
        self.users = users(self.block.nodes)
        self.names = FreshNames(self.graph)
        running = _running(self.block)
        for node in self.block.nodes:
            if isinstance(node, Accumulate) and node.operand in running:
                self.lasts[node.operand] = node.result
                self._cross_shift(node.operand)
            elif isinstance(node, Accumulate):
                self._cross(node.result, node)

    # -- What crosses ----------------------------------------------------------------

    def _cross(self, value: str, origin: Accumulate) -> None:
        """Store `value`, or the sums that are all that is needed of it."""
        reduced = [n for n in self.users[value] if self._moves(n, origin)]
        if reduced and len(reduced) == len(self.users[value]):
            for node in reduced:
                assert isinstance(node, Apply)
                self._cross(node.result, origin)
            return
        shift = origin.rescale
        if shift is not None:
            self._cross_shift(shift)
        tensor = self.names.fresh(f"{value}_parts")
        assert origin.reduction is not None
        self.crossing[value] = _Crossing(value, origin.reduction, shift, tensor)

    def _cross_shift(self, shift: str) -> None:
        if shift not in self.maxima:
            tensor = self.names.fresh(f"{shift}_parts")
            self.maxima[shift] = _Crossing(shift, MAX, None, tensor)

    def _moves(self, node: BlockNode, origin: Accumulate) -> bool:
        """Whether a reduction may come before joining the parts."""
        if not isinstance(node, Apply) or node.op is not origin.reduction:
            return False
        return origin.rescale is None or not set(node.over) & set(
            self.types[origin.rescale].names
        )

    def storable(self, crossing: _Crossing) -> bool:
        """Whether neither the value nor its shift is indexed within a loop's tile."""
        names = [n for n in (crossing.value, crossing.shift) if n is not None]
        return not any(d.loop for n in names for d in self.types[n].dims)

    # -- The first kernel ------------------------------------------------------------

    def first(self, count: int) -> BlockGraph:
        """The parts of all sums, each block over its share of the iterations."""
        last: dict[str, str] = {}
        extra: list[BlockNode] = []
        for shift in self.maxima:
            last[shift] = self.names.fresh(f"{shift}_last")
            extra.append(Accumulate(last[shift], shift, MAX.name))
        stores: list[BlockNode] = [
            Store(c.tensor, c.value, self._stored(c.value), self._format(c.value))
            for c in self.crossing.values()
        ]
        stores += [
            Store(c.tensor, last[c.value], self._stored(c.value), f32)
            for c in self.maxima.values()
        ]
        kept = live(self.block.made, read_by((*extra, *stores)))
        nodes = [self._repieced(n) for n in kept]
        grid = (*self.block.grid, Split(self.loop.dim, self._part(count)))
        return replace(self.block, grid=grid, nodes=(*nodes, *extra, *stores))

    def _format(self, value: str) -> DType:
        """In which parts are stored: f32, or an integer's own."""
        dtype = self.types[value].dtype
        return dtype if dtype.is_integer else f32

    def _part(self, count: int) -> int:
        """Elements of L that a block gets: whole tiles of the loop."""
        extent = self.graph.extent_of.get(self.loop.dim)
        tile = self.loop.tile
        rounds = count if extent is None else parts(parts(extent, tile), count)
        return rounds * tile

    def _repieced(self, node: BlockNode) -> BlockNode:
        if not isinstance(node, Load):
            return node
        axes = tuple(
            tuple(replace(d, grid=d.grid or d.loop) for d in a) for a in node.axes
        )
        return replace(node, axes=axes)

    def _stored(self, value: str) -> tuple[Axis, ...]:
        """Axes of the parts of a value: a new dim over parts first."""
        own = self.types[value].dims
        numbered = [Dim(n, grid=True) for n in self._numbered(value)]
        return tuple((d,) for d in (*numbered, *own))

    def _numbered(self, value: str) -> tuple[str, ...]:
        """Dims over blocks: of the loop, and of grid dims that the value lacks."""
        return tuple(partial_dim(d) for d in (self.loop.dim, *self._lacked(value)))

    def _lacked(self, value: str) -> tuple[str, ...]:
        """Grid dims along which all blocks compute the same, one of each axis."""
        names = self.types[value].names
        return tuple(
            axis[0].dim
            for axis in self.block.axes
            if not any(s.dim in names for s in axis)
        )

    # -- The second kernel -----------------------------------------------------------

    def second(self) -> BlockGraph:
        """Joins the parts and does what came after the loop."""
        joined: list[BlockNode] = []
        weights: dict[str, str] = {}
        for shift in self.maxima:
            joined += self._weighted(shift, weights)
        for crossing in self.crossing.values():
            joined += self._joined(crossing, weights)
        rest = [n for n in self.block.nodes if self._comes_later(n)]
        stores = [n for n in rest if isinstance(n, Store)]
        others = [n for n in rest if not isinstance(n, Store)]
        made = (*joined, *others)
        return BlockGraph(
            self.block.grid,
            None,
            (*live(made, read_by(stores)), *stores),
            Schedule(num_stages=2, pdl=self.block.schedule.pdl),
        )

    def _comes_later(self, node: BlockNode) -> bool:
        if isinstance(node, Store):
            return True
        if isinstance(node, Accumulate) or node.result in self.crossing:
            return False
        return self.stages[node.result] != "body"

    def _load(self, crossing: _Crossing) -> tuple[list[BlockNode], str]:
        """The parts of a value, replicas joined into one."""
        value = crossing.value
        axes = tuple(
            (d.whole if d.name in self._numbered(value) else d,)
            for (d,) in self._stored(value)
        )
        loaded = self.names.fresh(f"{value}_parts")
        nodes: list[BlockNode] = [Load(loaded, crossing.tensor, axes)]
        lacked = tuple(partial_dim(d) for d in self._lacked(value))
        if not lacked:
            return nodes, loaded
        one = self.names.fresh(f"{value}_part")
        if not crossing.reduction.adds:
            # All replicas are equal, so the largest is any of them.
            nodes.append(Apply(one, MAX, (loaded,), (("over", lacked),)))
            return nodes, one
        total = self.names.fresh(f"{value}_total")
        nodes.append(Apply(total, SUM, (loaded,), (("over", lacked),)))
        nodes.append(Apply(one, MUL, (total, _one_over(lacked))))
        return nodes, one

    def _weighted(self, shift: str, weights: dict[str, str]) -> list[BlockNode]:
        """exp(maximum - largest), which is 0 for a part in which all is masked."""
        nodes, peaks = self._load(self.maxima[shift])
        fresh = self.names.fresh
        top = self.lasts.get(shift) or fresh(f"{shift}_top")
        moved = fresh(f"{shift}_moved")
        weights[shift] = fresh(f"{shift}_weight")
        over = (("over", (partial_dim(self.loop.dim),)),)
        return [
            *nodes,
            Apply(top, ROWSHIFT, (peaks,), over),
            Apply(moved, SUB, (peaks, top)),
            Apply(weights[shift], EXP, (moved,)),
        ]

    def _joined(
        self, crossing: _Crossing, weights: Mapping[str, str]
    ) -> list[BlockNode]:
        value, shift = crossing.value, crossing.shift
        over = (("over", (partial_dim(self.loop.dim),)),)
        nodes, part = self._load(crossing)
        if shift is not None:
            weighted = self.names.fresh(f"{value}_weighted")
            nodes.append(Apply(weighted, MUL, (part, weights[shift])))
            part = weighted
        nodes.append(Apply(value, crossing.reduction, (part,), over))
        return nodes


def _one_over(dims: Iterable[str]) -> Scalar:
    product = scalar(1)
    for dim in dims:
        product = product.times(Scalar(scalar(1).value, ((dim, -1),)))
    return product
