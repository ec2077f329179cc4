"""What a loop sums, split between the warps of a block: each has its own slices.

Warps that share a tile of a product wait for each other in every iteration, and where
there are few rows that is most of what they do.  Before → after, with k looped over,
two elements of a slice, and as many slices in an iteration as the block has warps:

    x[m, k], w[k, n], k = 64                x[m, (k s)], w[(k s), n], k = 32, s = 2
    block loop(k / 8) {                     block loop(k / 4) num_warps(4) {
      p = matmul x_t, w_t over(k)     →       p = matmul x_t, w_t over(s)
      y = accumulate p                        t = accumulate p
    }                                       }
                                            y = sum t over(k)

The slices are the batch of the product, of which each warp has a matrix; their sums
meet once, after the loop.  The dim keeps its name: it is that of the slices now.  So
what the grid splits stays split, and what is summed over its parts keeps its dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mirage_dsl.core.types import Axis, Dim, Scalar, TensorType
from mirage_dsl.ir.canonical import FreshNames, free_name
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Split,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.walk import map_nodes, users
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import SUM


def split_between_warps(
    graph: KernelGraph, number: int, *, warps: int, length: int
) -> KernelGraph | None:
    """The μGraph with what one block sums over its loop split between its warps.

    Args:
        graph: The μGraph.
        number: Position of the block among the graph's nodes.
        warps: Of the block, each with its own slice in an iteration.
        length: Elements of a slice.

    Returns:
        The μGraph, or None where that cannot be: no loop, parts that are no multiples
        of slices, or a dim that serves for something else than these sums.
    """
    block = graph.nodes[number]
    if not isinstance(block, BlockGraph) or block.loop is None:
        return None
    slicing = _Slicing(graph, block, block.loop.dim, length)
    if not slicing.fits:
        return None
    made = slicing.graph_after(number, warps)
    return None if check(made) else made


@dataclass
class _Slicing:
    """One block's loop over `dim`, to be one over slices of some length."""

    graph: KernelGraph
    block: BlockGraph
    dim: str
    length: int

    def __post_init__(self) -> None:
        self.outer = kernel_types(self.graph)
        self.types = block_types(self.block, self.outer)
        self.users = users(self.block.nodes)
        self.extents = self.graph.extent_of
        self.inner = free_name(f"{self.dim}_slice", self.extents)
        self.names = FreshNames(self.graph)
        self.products = {n.result for n in self.block.applies if self._sums_products(n)}

    # -- Whether it can be -----------------------------------------------------------

    @property
    def fits(self) -> bool:
        """Whether all that the dim is for are sums over the loop."""
        return (
            bool(self.products)
            and self._divides()
            and self._is_alone()
            and not (self.block.bounds or self.block.settled or self.block.gathered)
            and all(map(self._may_stay, self.block.nodes))
        )

    def _divides(self) -> bool:
        """Whether the dim, and each block's part of it, are whole slices."""
        tiles = [s.tile for s in self.block.grid if s.dim == self.dim]
        extent = self.extents[self.dim]
        return extent is not None and not any(
            size % self.length for size in (extent, *tiles)
        )

    def _is_alone(self) -> bool:
        """Whether only this block reads what has the dim, and none its extent."""
        inputs = {i.name for i in self.graph.inputs}
        having = {n for n, t in self.outer.items() if self.dim in t.names}
        nodes = [n for n in self.graph.nodes if n is not self.block]
        read = {v for n in nodes for v in _read(n)} | {
            r.value for r in self.graph.returns
        }
        known = {n for c in _constants(self.graph) for n, _ in c.extents}
        others = {s.dim for n in nodes for s in _splits(n)}
        return (
            having <= inputs
            and not having & read
            and self.dim not in known
            and self.dim not in others
        )

    def _may_stay(self, node: BlockNode) -> bool:
        match node:
            case Load():
                return all(d.loop for d in dims_of(node.axes) if d.name == self.dim)
            case Store():
                return all(d.name != self.dim for d in dims_of(node.axes))
            case RunningMax():
                return False
            case Accumulate():
                return node.adds and node.rescale is None
            case Apply():
                return self._may_apply(node)

    def _may_apply(self, node: Apply) -> bool:
        if not any(self.dim in self.types[v].names for v in node.values):
            return True
        if node.op.kind is Kind.CONTRACTION:
            return node.result in self.products
        if node.op.kind is Kind.REDUCTION:
            return node.op is SUM
        return not _mentions(node, self.dim)

    def _sums_products(self, node: Apply) -> bool:
        """Whether it is a product over the dim that the loop adds up, and no more."""
        if node.op.kind is not Kind.CONTRACTION or self.dim not in node.over:
            return False
        both = all(self.dim in self.types[v].names for v in node.values)
        readers = self.users[node.result]
        return (
            both
            and len(node.values) == 2
            and all(isinstance(r, Accumulate) for r in readers)
        )

    # -- What comes of it ------------------------------------------------------------

    def graph_after(self, number: int, warps: int) -> KernelGraph:
        """The graph with slices in place of elements, so many in an iteration."""
        extent = self.extents[self.dim]
        assert extent is not None
        nodes = (*self.graph.nodes[:number], self._block(warps))
        inputs = tuple(replace(i, type=self._sliced(i.type)) for i in self.graph.inputs)
        changed = replace(
            self.graph, inputs=inputs, nodes=(*nodes, *self.graph.nodes[number + 1 :])
        )
        sizes = {self.dim: extent // self.length, self.inner: self.length}
        return changed.with_extents({**self.extents, **sizes})

    def _block(self, warps: int) -> BlockGraph:
        block = map_nodes(self.block, self._changed)
        grid = tuple(
            replace(s, tile=s.tile // self.length) if s.dim == self.dim else s
            for s in block.grid
        )
        schedule = replace(block.schedule, num_warps=warps)
        loop = Split(self.dim, warps)
        return replace(block, grid=grid, loop=loop, schedule=schedule)

    def _changed(self, node: BlockNode) -> Iterable[BlockNode]:
        match node:
            case Load():
                yield replace(node, axes=self._in_slices(node.axes))
            case Apply() if node.result in self.products:
                over = (*(d for d in node.over if d != self.dim), self.inner)
                yield _summing(node, over)
            case Apply() if node.op is SUM and self.dim in node.over:
                yield _summing(node, (*node.over, self.inner))
            case Accumulate() if node.operand in self.products:
                tile = self.names.fresh(f"{node.result}_slices")
                yield replace(node, result=tile)
                over = (("over", (self.dim,)),)
                yield Apply(node.result, SUM, (tile,), over, location=node.location)
            case _:
                yield node

    def _sliced(self, kind: TensorType) -> TensorType:
        return replace(kind, axes=self._in_slices(kind.axes))

    def _in_slices(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes with the slices, and what is within one, in place of the dim."""
        inner = Dim(self.inner)
        return tuple(
            tuple(
                part
                for d in axis
                for part in ((d, inner) if d.name == self.dim else (d,))
            )
            for axis in axes
        )


def _summing(node: Apply, over: tuple[str, ...]) -> Apply:
    attrs = tuple((k, over if k == "over" else v) for k, v in node.attrs)
    return replace(node, attrs=attrs)


def _mentions(node: Apply, dim: str) -> bool:
    """Whether an attribute of an operator names a dim."""
    return any(dim == v or (isinstance(v, tuple) and dim in v) for _, v in node.attrs)


def _read(node: object) -> Iterator[str]:
    match node:
        case BlockGraph():
            yield from node.sources
        case Apply():
            yield from node.values
        case _:
            pass


def _splits(node: object) -> Iterator[Split]:
    if isinstance(node, BlockGraph):
        yield from node.splits


def _constants(graph: KernelGraph) -> Iterator[Scalar]:
    """The constants of all nodes."""
    for level in (graph, *graph.blocks):
        for node in level.nodes:
            if isinstance(node, Apply):
                yield from (o for o in node.operands if isinstance(o, Scalar))


__all__ = ["split_between_warps"]
