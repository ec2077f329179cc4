"""Bytes in pairs: products with weights of 8 or 4 bits as tile programs do them fast.

A tile program takes bytes two at a time where a dim of two is the innermost of what it
loads, and its warps need not wait for each other where each has its own part of what is
summed: a batch of products, whose sums are added behind the loop.  So the columns of
weights are pairs, and the rows are parts.  Before → after, weights of f8:

    y = block grid(n / 64) loop(k / 64) {      y = block grid(c / 32) loop(a / 4) {
      x_t = load x[m, k/loop]                    x_t = load x[m, (a/loop b)]
      w_t = load w[k/loop, n/grid]               w_t = load w[(a/loop b), (c/grid p)]
      v = cast w_t dtype(f16)                    v = cast w_t dtype(f16)
      q = matmul x_t, v over(k)           →      q = matmul x_t, v over(b)
      s = accumulate q                           s_parts = accumulate q
                                                 s = sum s_parts over(a)
      store y[m, n/grid] = s                     store y[m, (c/grid p)] = s
    }                                          }

Where weights have scales for groups of rows, the groups are parts already.  The tensors
are the same: an axis is several dims, row-major.  Of columns there are few enough in a
block for all blocks to have some: a loop that is split over the grid, and a kernel that
joins its parts, become one kernel again, and so do groups that the grid has in place of
a loop, and a kernel that sums over them.

Of matrices the other way round, `[n, k]` as those of `torch.nn.Linear`, rows lie side
by side, and they are the pairs:

    w_t = load w[n/grid, k/loop]        →    w_t = load w[n/grid, (a/loop (b p))]
    q = matmul x_t, v over(k)           →    q = matmul x_t, v over(b, p)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from mirage_dsl.core.types import Dim, boolean
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.layouts import PAIR, is_multiplied
from mirage_dsl.ir.canonical import Apart, free_name, new_name
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.walk import (
    makers,
    map_blocks,
    map_nodes,
    operands_of,
    users,
    with_operands,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import SUM

ROWS = (64, 32)
"""Rows of weights in a part: of what a warp multiplies in one iteration."""
FEWEST_PARTS = 8
"""Parts from which on rows are worth to be parts: two iterations of four warps."""


def with_pairs(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose blocks take weights in pairs; None where none can."""
    if all(i.type.dtype.itemsize > 1 for i in graph.inputs):
        return None
    made = whole = _with_whole_loops(graph)
    for at, node in enumerate(whole.nodes):
        if isinstance(node, ir.BlockGraph):
            made = _with_pairs(made, at) or made
    return None if made == whole or check(made) else made


def _with_pairs(graph: ir.KernelGraph, at: int) -> ir.KernelGraph | None:
    """The μGraph in which one block does."""
    block = graph.nodes[at]
    assert isinstance(block, ir.BlockGraph)
    if block.loop is None or block.bounds or block.settled:
        return None
    columns = _inner(block, graph, summed=False)
    if columns:
        return _in_parts(_paired(graph, columns), at)
    parts = _in_parts(graph, at)
    if parts is None:
        return None
    block = parts.nodes[at]
    assert isinstance(block, ir.BlockGraph)
    rows = _inner(block, parts, summed=True)
    apart = [name for name in rows if parts.extent_of[name] != PAIR]
    return _paired(parts, apart) if rows else None


def _paired(graph: ir.KernelGraph, names: Sequence[str]) -> ir.KernelGraph | None:
    """The μGraph in which some dims are pairs."""
    found: ir.KernelGraph | None = graph
    for name in names:
        found = found and _taken_apart(found, name, PAIR, f"{name}_pairs", "pair")
    return found


# -- One kernel ------------------------------------------------------------------------


def _with_whole_loops(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The μGraph whose loops are not split over the grid, where that only adds."""
    nodes = list(graph.nodes)
    for at, (first, second) in enumerate(pairwise(graph.nodes)):
        if not isinstance(first, ir.BlockGraph) or not isinstance(
            second, ir.BlockGraph
        ):
            continue
        joining = _Joining if first.loop is not None else _Looping
        made = joining(graph, first, second).block()
        if made is not None:
            nodes[at : at + 2] = [made]
            gone = {ir.partial_dim(s.dim) for s in first.grid if s not in made.grid}
            extents = tuple(e for e in graph.extents if e[0] not in gone)
            return replace(graph, nodes=tuple(nodes), extents=extents)
    return graph


class _Joining:
    """Makes one block of two: the second sums what parts of the first store."""

    def __init__(
        self, graph: ir.KernelGraph, first: ir.BlockGraph, second: ir.BlockGraph
    ) -> None:
        self.graph, self.first, self.second = graph, first, second
        self.rows = "" if first.loop is None else first.loop.dim
        self.grid = tuple(s for s in first.grid if s.dim != self.rows)
        self.names: dict[str, str] = {}

    def block(self) -> ir.BlockGraph | None:
        first, second = self.first, self.second
        plain = not (first.bounds or first.settled or second.bounds or second.settled)
        split = 0 < len(self.grid) < len(first.grid) and second.loop is None
        if not plain or not split or not self._sums() or _moves(second, self.grid):
            return None
        taken = {n.result for n in first.nodes}
        for node in second.made:
            if node.result not in self.names:
                self.names[node.result] = new_name(node.result, taken)
        nodes = [self._on_grid(n) for n in first.nodes if not isinstance(n, ir.Store)]
        nodes += [self._renamed(n) for n in second.nodes if not self._is_gone(n)]
        return replace(first, grid=self.grid, nodes=tuple(nodes))

    def _sums(self) -> bool:
        """Whether all that the first block stores is summed, and nothing else of it."""
        made, part = makers(self.first), Dim(ir.partial_dim(self.rows), grid=True)
        stores = {s.result: s for s in self.first.stores}
        read = users(self.second.nodes)
        loads = [n for n in self.second.loads if n.source in stores]
        for load in loads:
            store, (sums, *others) = stores[load.source], read[load.result]
            adds = _is_sum(store.operand, made) and (part,) in store.axes
            if (
                not adds
                or others
                or not isinstance(sums, ir.Apply)
                or sums.op is not SUM
            ):
                return False
            if sums.over != (part.name,):
                return False
            self.names[load.result] = self.names[sums.result] = store.operand
        once = sorted(n.source for n in loads) == sorted(stores)
        return once and _is_between(self.graph, self.first, self.second)

    def _is_gone(self, node: ir.BlockNode) -> bool:
        """Whether a node of the second block only adds what the first one stored."""
        stored = {s.operand for s in self.first.stores}
        made = not isinstance(node, ir.Store) and node.result in self.names
        return made and self.names[node.result] in stored

    def _on_grid(self, node: ir.BlockNode) -> ir.BlockNode:
        """A node in the one block, whose grid is the first one's without the rows."""
        if not isinstance(node, ir.Load | ir.Store):
            return node
        split = {s.dim for s in self.grid}
        return replace(node, axes=ir.gridded(node.axes, split))

    def _renamed(self, node: ir.BlockNode) -> ir.BlockNode:
        """The same of a node of the second block."""
        named = with_operands(self._on_grid(node), self.names)
        if isinstance(named, ir.Store):
            return named
        return replace(named, result=self.names[named.result])


def _is_between(
    graph: ir.KernelGraph, first: ir.BlockGraph, second: ir.BlockGraph
) -> bool:
    """Whether nothing but the second block reads what the first one stores."""
    elsewhere = [n for n in graph.nodes if n not in (first, second)]
    wanted = {v for n in elsewhere for v in operands_of(n)}
    wanted |= {r.value for r in graph.returns}
    return wanted.isdisjoint(s.result for s in first.stores)


def _moves(block: ir.BlockGraph, grid: Sequence[ir.Split]) -> bool:
    """Whether operators name dims of which a block sees other pieces on a grid."""
    split = {s.dim for s in grid}
    axes = [axis for n in (*block.loads, *block.stores) for axis in n.axes]
    moved = {d.name for axis in axes for d in axis if d.grid != (d.name in split)}
    return any(_names(n, name, sums=True) for n in block.applies for name in moved)


class _Looping:
    """Makes one block of two without loops: it loops over what the second sums over.

    That is what the first block's grid splits and the second's does not.  What the
    second makes of each part ahead of its sums is made in iterations.
    """

    def __init__(
        self, graph: ir.KernelGraph, first: ir.BlockGraph, second: ir.BlockGraph
    ) -> None:
        self.graph, self.first, self.second = graph, first, second
        shared = {s.dim for s in second.grid}
        self.grid = tuple(s for s in first.grid if s.dim in shared)
        self.rows = [s for s in first.grid if s.dim not in shared]
        self.inside = {n.result for n in first.made}
        self.behind: set[str] = set()
        self.names: dict[str, str] = {}
        self.taken = {n.result for n in first.nodes}

    def block(self) -> ir.BlockGraph | None:
        """The one block, or None where the two cannot be one."""
        first, second = self.first, self.second
        plain = not (first.bounds or first.settled or second.bounds or second.settled)
        apart = len(self.rows) == 1 and len(self.grid) == len(second.grid) > 0
        if not plain or not apart or second.loop is not None:
            return None
        between = self._stores_whole() and _is_between(self.graph, first, second)
        if not between or _moves(second, self.grid):
            return None
        nodes = [self._looped(n) for n in first.nodes if not isinstance(n, ir.Store)]
        for node in second.nodes:
            made = self._of_second(node)
            if made is None:
                return None
            nodes += made
        grid, loop = self.grid, self.rows[0]
        return replace(first, grid=grid, loop=loop, nodes=tuple(nodes))

    def _stores_whole(self) -> bool:
        """Whether what the first block stores is not rounded, nor reduced."""
        types = block_types(self.first, kernel_types(self.graph))
        row = Dim(self.rows[0].dim, grid=True)
        return all(
            s.dtype == types[s.operand].dtype and any(row in axis for axis in s.axes)
            for s in self.first.stores
        )

    def _of_second(self, node: ir.BlockNode) -> list[ir.BlockNode] | None:
        """A node of the second block in the one block; None where it cannot be."""
        row = self.rows[0].dim
        stored = {s.result: s for s in self.first.stores}
        if isinstance(node, ir.Load) and node.source in stored:
            store = stored[node.source]
            self.names[node.result] = store.operand
            plain = (ir.gridded(axes, ()) for axes in (node.axes, store.axes))
            return [] if len(set(plain)) == 1 else None
        if isinstance(node, ir.Load):
            parts = any(d.name == row for axis in node.axes for d in axis)
            return self._kept(node, inside=parts)
        read = {self.names[v] for v in operands_of(node)}
        if isinstance(node, ir.Apply) and node.op is SUM and read <= self.inside:
            return self._summed(node) if node.over == (row,) else None
        if not isinstance(node, ir.Apply | ir.Store):
            return None
        inside = bool(read & self.inside)
        if inside and (read & self.behind or isinstance(node, ir.Store)):
            return None
        elementwise = isinstance(node, ir.Store) or node.op.kind is Kind.ELEMENTWISE
        if inside and not elementwise:
            return None
        return self._kept(node, inside=inside, behind=bool(read & self.behind))

    def _summed(self, node: ir.Apply) -> list[ir.BlockNode]:
        """A sum over parts: over those of an iteration behind that over iterations."""
        name = new_name(f"{node.result}_parts", self.taken)
        whole = ir.Accumulate(name, self.names[node.values[0]])
        (made,) = self._kept(node, inside=False, behind=True)
        return [whole, with_operands(made, {self.names[node.values[0]]: name})]

    def _kept(
        self, node: ir.BlockNode, *, inside: bool, behind: bool = False
    ) -> list[ir.BlockNode]:
        """A node of the second block under a free name."""
        named = with_operands(self._looped(node), self.names)
        if isinstance(named, ir.Store):
            return [named]
        name = self.names[node.result] = new_name(named.result, self.taken)
        if inside:
            self.inside.add(name)
        if behind:
            self.behind.add(name)
        return [replace(named, result=name)]

    def _looped(self, node: ir.BlockNode) -> ir.BlockNode:
        """A node whose grid does not split the rows, but whose loop does."""
        if not isinstance(node, ir.Load | ir.Store):
            return node
        row, split = self.rows[0].dim, {s.dim for s in self.grid}
        axes = tuple(
            tuple(replace(d, loop=d.name == row) for d in axis)
            for axis in ir.gridded(node.axes, split)
        )
        return replace(node, axes=axes)


def _is_sum(value: str, made: Mapping[str, ir.BlockNode]) -> bool:
    """Whether a value is added to by a loop, or is a sum of what is."""
    node = made[value]
    if isinstance(node, ir.Apply) and node.op is SUM:
        return _is_sum(node.values[0], made)
    return _adds(node)


# -- Bytes that lie side by side -------------------------------------------------------


def _inner(block: ir.BlockGraph, graph: ir.KernelGraph, *, summed: bool) -> list[str]:
    """The dims along which a block's bytes for products lie side by side.

    Those of columns, which the grid splits, or those over which the products sum.
    """
    outer = kernel_types(graph)
    types = block_types(block, outer)
    found: dict[str, None] = {}
    for load in block.loads:
        kind = outer[load.source]
        axes = [load.axes[a] for a in kind.order] if load.axes else []
        dim = axes[-1][-1] if axes and axes[-1] else None
        of_bytes = kind.dtype.itemsize == 1 and kind.dtype is not boolean
        if dim is None or not of_bytes or dim.loop or dim.grid == summed:
            continue
        known = graph.extent_of[dim.name] is not None
        if known and is_multiplied(load.result, dim, block, types, summed=summed):
            found[dim.name] = None
    return list(found)


# -- Rows ------------------------------------------------------------------------------


def _in_parts(graph: ir.KernelGraph | None, at: int) -> ir.KernelGraph | None:
    """The μGraph whose block has parts of rows as a batch of its products."""
    if graph is None:
        return None
    block = graph.nodes[at]
    assert isinstance(block, ir.BlockGraph)
    assert block.loop is not None
    rows = block.loop.dim
    summed = [
        n for n in block.applies if n.op.kind is Kind.CONTRACTION and rows in _over(n)
    ]
    if not summed:
        return graph
    extent = graph.extent_of[rows] or 1
    if any(d.name == rows and d.grid for n in block.loads for a in n.axes for d in a):
        return None
    for count in ROWS:
        inner = [graph.extent_of[n] or 1 for n in _over(summed[0]) if n != rows]
        part = count
        for size in inner:
            part //= size
        if part and extent % part == 0 and extent // part >= FEWEST_PARTS:
            names = f"{rows}_parts", f"{rows}_part"
            made = graph if part == 1 else _taken_apart(graph, rows, part, *names)
            return made and _batched(made, at, {n.result for n in summed})
    return None


def _over(node: ir.Apply) -> tuple[str, ...]:
    return tuple(node.over)


def _batched(
    graph: ir.KernelGraph, at: int, products: set[str]
) -> ir.KernelGraph | None:
    """The μGraph whose block sums products over the loop's dim behind the loop."""
    block = graph.nodes[at]
    assert isinstance(block, ir.BlockGraph)
    assert block.loop is not None
    parts, read = block.loop.dim, users(block.nodes)
    sums = {u.result for p in products for u in read[p] if _adds(u)}
    if any(not _adds(u) for p in products for u in read[p]):
        return None
    taken = {n.result for n in block.made}

    def changed(node: ir.BlockNode) -> Iterator[ir.BlockNode]:
        if isinstance(node, ir.Apply) and node.result in products:
            over = tuple(n for n in node.over if n != parts)
            yield node.summing(over)
        elif isinstance(node, ir.Accumulate) and node.result in sums:
            tile = free_name(f"{node.result}_parts", taken)
            yield replace(node, result=tile)
            yield ir.Apply(node.result, SUM, (tile,), (("over", (parts,)),))
        else:
            yield node

    nodes = tuple(n for node in block.nodes for n in changed(node))
    return graph.with_node(at, replace(block, nodes=nodes))


def _adds(node: ir.BlockNode) -> bool:
    return isinstance(node, ir.Accumulate) and node.adds and node.rescale is None


# -- Dims taken apart ------------------------------------------------------------------


def _taken_apart(
    graph: ir.KernelGraph, name: str, count: int, outer: str, inner: str
) -> ir.KernelGraph | None:
    """The μGraph in which a dim is two, of which the inner one has so many elements.

    None where something has to know the dim as one, or elements are left over.
    """
    extents = dict(graph.extents)
    extent = extents.pop(name)
    if extent is None or extent % count or not _can_be_taken_apart(graph, name):
        return None
    outer, inner = free_name(outer, extents), free_name(inner, extents)
    extents |= {outer: extent // count, inner: count}
    apart = Apart({name: (outer, inner)})

    def split(given: ir.Split) -> ir.Split:
        if given.dim != name:
            return given
        return replace(given, dim=outer, tile=max(1, given.tile // count))

    def taken_apart(node: ir.BlockNode) -> ir.BlockNode:
        match node:
            case ir.Load() | ir.Store():
                return replace(node, axes=apart.axes(node.axes))
            case ir.Apply():
                return apart.apply(node)
            case _:
                return node

    def inside(block: ir.BlockGraph) -> ir.BlockGraph:
        loop = None if block.loop is None else split(block.loop)
        made = replace(block, grid=tuple(map(split, block.grid)), loop=loop)
        return map_nodes(made, taken_apart)

    return replace(
        map_blocks(graph, inside),
        inputs=tuple(replace(i, type=apart.type(i.type)) for i in graph.inputs),
        returns=tuple(replace(r, type=apart.type(r.type)) for r in graph.returns),
        extents=tuple(sorted(extents.items())),
    )


def _can_be_taken_apart(graph: ir.KernelGraph, name: str) -> bool:
    """Whether only blocks have a dim, and none knows its positions or its parts."""
    types = kernel_types(graph)
    beside = [types[n.result] for n in graph.applies]
    beside += [types[v] for n in graph.applies for v in n.values]
    if any(name in t.names for t in beside) or f"{name}#" in graph.extent_of:
        return False
    if any(name == d.name for i in graph.indices for d in i.axis):
        return False
    inside = [n for block in graph.blocks for n in block.applies]
    bounds = [b for block in graph.blocks for b in block.bounds]
    bounds += [s.bound for block in graph.blocks for s in block.settled]
    bound = any(name == b.dim for b in bounds)
    return not bound and not any(_names(n, name) for n in inside)


def _names(node: ir.Apply, name: str, *, sums: bool = False) -> bool:
    """Whether an operator has to know a dim as one; sums can be over several."""
    return any((sums or k != "over") and name in ir.named_in(v) for k, v in node.attrs)
