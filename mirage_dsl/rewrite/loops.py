"""Loops of blocks: over a scan, split, done where others are, left out, or bounded.

**Over a scan.**  A scan goes on from one iteration to the next, so that a block holds a
piece of a long row at a time, and what came before.  Before → after:

    y = block grid(m / 1) {                  y = block grid(m / 1) loop(k / 1024) {
      t = load x[m/grid, k]                    t = load x[m/grid, k/loop]
      u = mul t, 2                      →      u = mul t, 2
      c = cumsum u along(k)                    c = cumsum u along(k)
      store y[m/grid, k] = c                   a = accumulate c concat
    }                                          store y[m/grid, k] = a
                                             }

**Split.**  A block iterates over a dim L and accumulates.  If there are too few blocks
to fill a GPU, the iterations can be shared out as well (split-K, flash decoding): one
kernel for the parts, one that joins them.  Before → after, with k looped over:

    a = accumulate p                 1: over k/grid/loop:  a = accumulate p
    y = f(a)                            store a[k#/grid, ..]
                                     2: a = sum(load a[k#, ..], over k#);  y = f(a)

A sum right after the loop moves into the first kernel, so that less is stored.  What
was accumulated relative to a running maximum is joined relative to the largest of the
parts' maxima: each part is weighted by exp(maximum - largest).

**Done where what it sums is made.**  A block that has a piece of what another one sums
can sum that piece, so that it need not be stored.  Before → after:

    1: over m/grid:  f = ..                  1: over m/grid:  f = ..
       store f[m/grid]                          p = sum(f, over m)
    2: over m/loop:  a = accumulate f   →       store p[m#/grid]
       y = sum(a, over m)                    2: y = sum(load p[m#], over m#)

**Left out.**  A block that reads little may have all of it in registers at once: what
is accumulated is then what there is of the one iteration.  Before → after:

    y = block grid(m / 1) loop(k / 64) {     y = block grid(m / 1) {
      t = load x[m/grid, k/loop]               t = load x[m/grid, k]
      p = sum t over(k)                  →     p = sum t over(k)
      a = accumulate p                         store y[m/grid] = p
      store y[m/grid] = a                    }
    }

**Bounded.**  Iterations whose mask is wholly false are left out: a block bounds its
loop by its own place along a dim of the grid.  Before → after, where nothing is
accumulated of what is masked:

    loop(d / 64) {                       loop(d / 64) while(d <= n) {
      c = jt <= it                         c = jt <= it
      w = where(c, s, -inf)        →       w = where(c, s, -inf)
      ...                                  ...

A comparison of the positions along the loop's dim and along one of the grid's is taken
to fail, or to hold, all over a tile.  What follows from constants then is followed
through the block; where every accumulator gets its neutral element, only iterations in
which it may be otherwise are visited.

In iterations in which the comparison is known too, but adds something, it need not be
made:

    loop(d / 64) while(d <= n) {           loop(d / 64) while(d <= n)
      c = jt <= it                           settled(c == 1 if d <= n) {
      w = where(c, s, -inf)          →       c = jt <= it
      ...                                    w = where(c, s, -inf)
                                             ...

In `while` the bound is one that some positions of both tiles meet, in `settled` one
that all of them do.  A prefix that all rows see, `(j <= i) | (j < 7)`, is visited by
all blocks: `while(d <= n | d <= 6)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from mirage_dsl.core.types import Axis, Dim, DType, MemorySpace, extent_scalar, f32
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.settled import followed
from mirage_dsl.ir.canonical import FreshNames, new_name
from mirage_dsl.ir.check import MAX_GRID_DIMS, check
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import (
    derived_extents,
    partial_base,
    parts,
    with_derived_extents,
)
from mirage_dsl.ir.text.printer import bounds_text, settled_text
from mirage_dsl.ir.walk import (
    each_dim,
    live,
    map_blocks,
    read_by,
    results_of,
    users,
    with_operands,
    without_dead,
)
from mirage_dsl.ir.write import OperatorWriter
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind, Operator, Term
from mirage_dsl.rewrite.sinking import without_twins

# -- Over a scan -----------------------------------------------------------------------


def scanned_in_loop(block: ir.BlockGraph) -> ir.BlockGraph | None:
    """A block without sizes that loops over the dim that it scans.

    None where it has a loop, scans no dim or several, or has another use of the dim
    than one by one: a sum over it is there when the loop is over.
    """
    dim = _scanned(block)
    if dim is None:
        return None
    nodes: list[ir.BlockNode] = []
    for node in block.nodes:
        match node:
            case ir.Load():
                nodes.append(replace(node, axes=_in_pieces(node.axes, dim)))
            case ir.Store():
                if dim not in {d.name for d in ir.dims_of(node.axes)}:
                    return None
                joined = f"{node.result}_joined"
                nodes.append(ir.Accumulate(joined, node.operand, ir.JOINED))
                nodes.append(replace(node, operand=joined))
            case _:
                nodes.append(node)
    return replace(block, loop=ir.Split(dim, 1), nodes=tuple(nodes))


def _scanned(block: ir.BlockGraph) -> str | None:
    """The one dim that all scans of a block go along, if it can loop over it."""
    scans = [n for n in block.applies if n.op.kind is Kind.SCAN]
    along = {n.along for n in scans}
    if block.loop is not None or len(along) != 1 or not all(map(_goes_on, scans)):
        return None
    (dim,) = next(iter(along))
    plain = (Kind.ELEMENTWISE, Kind.SCAN)
    if any(dim in n.over for n in block.applies) or any(
        n.op.kind not in plain and not n.over and "dtype" not in n.op.attributes
        for n in block.applies
    ):
        return None
    return dim if block.grid_split(dim) is None else None


def _goes_on(node: ir.Apply) -> bool:
    return len(node.along) == 1 and table.total_of(node.op) is not None


def _in_pieces(axes: tuple[Axis, ...], dim: str) -> tuple[Axis, ...]:
    return each_dim(axes, lambda d: replace(d, loop=d.loop or d.name == dim))


# -- Split over the grid ---------------------------------------------------------------


def split_loop(
    graph: ir.KernelGraph, number: int, *, count: int = 4
) -> ir.KernelGraph | None:
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
    if not isinstance(block, ir.BlockGraph) or not _may_split(graph, block):
        return None
    split = _Splitting(graph, block)
    if not split.crossing or not all(map(split.storable, split.crossing.values())):
        return None
    nodes = list(graph.nodes)
    nodes[number : number + 1] = [split.first(count), split.second()]
    made = replace(graph, nodes=tuple(nodes))
    made = with_derived_extents(made)
    return None if check(made) else made


def _may_split(graph: ir.KernelGraph, block: ir.BlockGraph) -> bool:
    if block.loop is None or len(block.axes) >= MAX_GRID_DIMS:
        return False
    dims = {*(s.dim for s in block.grid), block.loop.dim}
    # The dims over parts must be new.
    if any(ir.partial_dim(d) in graph.extent_of or d.endswith("#") for d in dims):
        return False
    if block.loop.dim in {s.dim for s in block.grid}:
        return False
    sums = [n for n in block.nodes if isinstance(n, ir.Accumulate)]
    lasts = [n.operand for n in sums if n.operand in _running(block)]
    return all(n.reduction is not None for n in sums) and len(lasts) == len({*lasts})


def _running(block: ir.BlockGraph) -> set[str]:
    return {n.result for n in block.nodes if isinstance(n, ir.RunningMax)}


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
    graph: ir.KernelGraph
    block: ir.BlockGraph
    crossing: dict[str, _Crossing] = field(default_factory=dict[str, _Crossing])
    maxima: dict[str, _Crossing] = field(default_factory=dict[str, _Crossing])
    """By the name of the running maximum."""
    lasts: dict[str, str] = field(default_factory=dict[str, str])
    """Names of running maxima as they are after the loop."""

    def __post_init__(self) -> None:
        assert self.block.loop is not None
        self.loop = self.block.loop
        self.types = block_types(self.block, kernel_types(self.graph))
        self.stages = ir.stages_of(self.block)
        self.users = users(self.block.nodes)
        self.names = FreshNames(self.graph)
        running = _running(self.block)
        for node in self.block.nodes:
            if isinstance(node, ir.Accumulate) and node.operand in running:
                self.lasts[node.operand] = node.result
                self._cross_shift(node.operand)
            elif isinstance(node, ir.Accumulate):
                self._cross(node.result, node)

    # -- What crosses ----------------------------------------------------------------

    def _cross(self, value: str, origin: ir.Accumulate) -> None:
        """Store `value`, or the sums that are all that is needed of it."""
        reduced = [n for n in self.users[value] if self._moves(n, origin)]
        if reduced and len(reduced) == len(self.users[value]):
            for node in reduced:
                assert isinstance(node, ir.Apply)
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
            self.maxima[shift] = _Crossing(shift, table.MAX, None, tensor)

    def _moves(self, node: ir.BlockNode, origin: ir.Accumulate) -> bool:
        """Whether a reduction may come before joining the parts."""
        if not isinstance(node, ir.Apply) or node.op is not origin.reduction:
            return False
        return origin.rescale is None or not set(node.over) & set(
            self.types[origin.rescale].names
        )

    def storable(self, crossing: _Crossing) -> bool:
        """Whether neither the value nor its shift is indexed within a loop's tile."""
        names = [n for n in (crossing.value, crossing.shift) if n is not None]
        return not any(d.loop for n in names for d in self.types[n].dims)

    # -- The first kernel ------------------------------------------------------------

    def first(self, count: int) -> ir.BlockGraph:
        """The parts of all sums, each block over its share of the iterations."""
        last: dict[str, str] = {}
        extra: list[ir.BlockNode] = []
        for shift in self.maxima:
            last[shift] = self.names.fresh(f"{shift}_last")
            extra.append(ir.Accumulate(last[shift], shift, table.MAX.name))
        stores: list[ir.BlockNode] = [
            ir.Store(c.tensor, c.value, self._stored(c.value), self._format(c.value))
            for c in self.crossing.values()
        ]
        stores += [
            ir.Store(c.tensor, last[c.value], self._stored(c.value), f32)
            for c in self.maxima.values()
        ]
        kept = live(self.block.made, read_by((*extra, *stores)))
        nodes = [self._repieced(n) for n in kept]
        grid = (*self.block.grid, ir.Split(self.loop.dim, self._part(count)))
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

    def _repieced(self, node: ir.BlockNode) -> ir.BlockNode:
        if not isinstance(node, ir.Load):
            return node
        axes = each_dim(node.axes, lambda d: replace(d, grid=d.grid or d.loop))
        return replace(node, axes=axes)

    def _stored(self, value: str) -> tuple[Axis, ...]:
        """Axes of the parts of a value: a new dim over parts first."""
        own = self.types[value].dims
        numbered = [Dim(n, grid=True) for n in self._numbered(value)]
        return tuple((d,) for d in (*numbered, *own))

    def _numbered(self, value: str) -> tuple[str, ...]:
        """Dims over blocks: of the loop, and of grid dims that the value lacks."""
        return tuple(ir.partial_dim(d) for d in (self.loop.dim, *self._lacked(value)))

    def _lacked(self, value: str) -> tuple[str, ...]:
        """Grid dims along which all blocks compute the same, one of each axis."""
        names = self.types[value].names
        return tuple(
            axis[0].dim
            for axis in self.block.axes
            if not any(s.dim in names for s in axis)
        )

    # -- The second kernel -----------------------------------------------------------

    def second(self) -> ir.BlockGraph:
        """Joins the parts and does what came after the loop."""
        joined: list[ir.BlockNode] = []
        weights: dict[str, str] = {}
        for shift in self.maxima:
            joined += self._weighted(shift, weights)
        for crossing in self.crossing.values():
            joined += self._joined(crossing, weights)
        rest = [n for n in self.block.nodes if self._comes_later(n)]
        stores = [n for n in rest if isinstance(n, ir.Store)]
        others = [n for n in rest if not isinstance(n, ir.Store)]
        made = (*joined, *others)
        return ir.BlockGraph(
            self.block.grid,
            None,
            (*live(made, read_by(stores)), *stores),
            ir.Schedule(num_stages=2, pdl=self.block.schedule.pdl),
        )

    def _comes_later(self, node: ir.BlockNode) -> bool:
        if isinstance(node, ir.Store):
            return True
        if isinstance(node, ir.Accumulate) or node.result in self.crossing:
            return False
        return self.stages[node.result] != "body"

    def _load(self, crossing: _Crossing) -> tuple[list[ir.BlockNode], str]:
        """The parts of a value, replicas joined into one."""
        value = crossing.value
        axes = tuple(
            (d.whole if d.name in self._numbered(value) else d,)
            for (d,) in self._stored(value)
        )
        loaded = self.names.fresh(f"{value}_parts")
        nodes: list[ir.BlockNode] = [ir.Load(loaded, crossing.tensor, axes)]
        write = OperatorWriter(nodes, self.names)
        lacked = tuple(ir.partial_dim(d) for d in self._lacked(value))
        if not lacked:
            return nodes, loaded
        if not crossing.reduction.adds:
            # All replicas are equal, so the largest is any of them.
            return nodes, write(f"{value}_part", table.MAX, loaded, over=lacked)
        total = write(f"{value}_total", table.SUM, loaded, over=lacked)
        share = extent_scalar(*lacked).inverse
        return nodes, write(f"{value}_part", table.MUL, total, share)

    def _weighted(self, shift: str, weights: dict[str, str]) -> list[ir.BlockNode]:
        """exp(maximum - largest), which is 0 for a part in which all is masked."""
        nodes, peaks = self._load(self.maxima[shift])
        write = OperatorWriter(nodes, self.names)
        top = self.lasts.get(shift) or self.names.fresh(f"{shift}_top")
        over = (("over", (ir.partial_dim(self.loop.dim),)),)
        nodes.append(ir.Apply(top, table.ROWSHIFT, (peaks,), over))
        moved = write(f"{shift}_moved", table.SUB, peaks, top)
        weights[shift] = write(f"{shift}_weight", table.EXP, moved)
        return nodes

    def _joined(
        self, crossing: _Crossing, weights: Mapping[str, str]
    ) -> list[ir.BlockNode]:
        value, shift = crossing.value, crossing.shift
        over = (("over", (ir.partial_dim(self.loop.dim),)),)
        nodes, part = self._load(crossing)
        if shift is not None:
            write = OperatorWriter(nodes, self.names)
            part = write(f"{value}_weighted", table.MUL, part, weights[shift])
        nodes.append(ir.Apply(value, crossing.reduction, (part,), over))
        return nodes


# -- Done where what it sums is made ---------------------------------------------------


def summed_where_made(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose blocks sum what they store, where only a sum of it is read.

    None where there are no two blocks of which one sums what the other stores, over a
    dim that this one splits.
    """
    made_by = {
        result: at
        for at, node in enumerate(graph.nodes)
        if isinstance(node, ir.BlockGraph)
        for result in node.results
    }
    for number, node in enumerate(graph.nodes):
        if not isinstance(node, ir.BlockGraph):
            continue
        makers = {made_by[source] for source in node.sources if source in made_by}
        if len(makers) != 1:
            continue
        found = _parts_made_ahead(graph, makers.pop(), number)
        if found is not None:
            return summed_where_made(found) or found
    return None


def _parts_made_ahead(
    graph: ir.KernelGraph, ahead: int, number: int
) -> ir.KernelGraph | None:
    """The μGraph without one block, whose sums the one ahead makes; None for none."""
    first, block = graph.nodes[ahead], graph.nodes[number]
    assert isinstance(first, ir.BlockGraph)
    assert isinstance(block, ir.BlockGraph)
    own, other = ({s.dim for s in b.grid} for b in (block, first))
    if own != other:
        if len(other - own) != 1 or not own < other:
            return None
        (dim,) = other - own
        split = _split_at(graph, number, dim)
        return split and _appended(split, ahead, number)
    stored = (d.name for s in block.stores for d in ir.dims_of(s.axes))
    sums = any(partial_base(name, block) is not None for name in stored)
    return _appended(graph, ahead, number) if sums else None


def _split_at(graph: ir.KernelGraph, number: int, dim: str) -> ir.KernelGraph | None:
    """The μGraph with the sums of a block over a dim split over the grid, loopless."""
    block, nodes = graph.nodes[number], list(graph.nodes)
    assert isinstance(block, ir.BlockGraph)
    if block.loop is None:
        nodes[number] = _looping(block, dim)
        graph = with_derived_extents(replace(graph, nodes=tuple(nodes)))
    elif block.loop.dim != dim:
        return None
    split = None if check(graph) else split_loop(graph, number)
    if split is None:
        return None
    first, nodes = split.nodes[number], list(split.nodes)
    assert isinstance(first, ir.BlockGraph)
    loopless = without_loop(first)
    if loopless is None:
        return None
    nodes[number] = loopless
    return replace(split, nodes=tuple(nodes))


def _looping(block: ir.BlockGraph, dim: str) -> ir.BlockGraph:
    """A block that loops over a dim that it sums over."""
    nodes: list[ir.BlockNode] = []
    names = {n.result for n in block.made}
    for node in block.nodes:
        if isinstance(node, ir.Load):
            nodes.append(replace(node, axes=_in_pieces(node.axes, dim)))
        elif isinstance(node, ir.Apply) and dim in node.over and node.op.in_steps:
            steps = new_name(f"{node.result}_steps", names)
            nodes.append(ir.Accumulate(steps, node.values[0], node.op.name))
            nodes.append(replace(node, operands=(steps,)))
        else:
            nodes.append(node)
    return replace(block, loop=ir.Split(dim, 1), nodes=tuple(nodes))


def _appended(graph: ir.KernelGraph, ahead: int, number: int) -> ir.KernelGraph | None:
    """A block behind what another one of its grid does; None where it can not be."""
    first, second = graph.nodes[ahead], graph.nodes[number]
    assert isinstance(first, ir.BlockGraph)
    assert isinstance(second, ir.BlockGraph)
    there = {i.name for i in graph.given}
    there.update(r for node in graph.nodes[:ahead] for r in results_of(node))
    if not there.union(first.results).issuperset(second.sources):
        return None
    stores = {s.result: s for s in first.stores}
    fresh, names = FreshNames(graph), dict[str, str]()
    types = block_types(first, kernel_types(graph))
    moved: list[ir.BlockNode] = []
    for node in second.nodes:
        if isinstance(node, ir.Load) and node.source in stores:
            store = stores[node.source]
            if node.axes != store.axes or not _alike(
                types[store.operand].dtype, store.dtype
            ):
                return None
            names[node.result] = store.operand
        elif isinstance(node, ir.Store):
            moved.append(with_operands(node, names))
        else:
            own = with_operands(node, names)
            names[node.result] = fresh.fresh(node.result)
            moved.append(replace(own, result=names[node.result]))
    loads = [n for n in moved if isinstance(n, ir.Load)]
    rest = [n for n in moved if not isinstance(n, ir.Load)]
    # A loop of both visits what either one does.
    shared = second.bounds if second.loop else first.bounds
    bounds = tuple(b for b in first.bounds if b in shared)
    nodes = list(graph.nodes)
    joined = replace(first, nodes=(*loads, *first.nodes, *rest), bounds=bounds)
    nodes[ahead] = without_twins(joined)
    del nodes[number]
    made = with_derived_extents(without_dead(replace(graph, nodes=tuple(nodes))))
    return None if check(made) else made


def _alike(made: DType, stored: DType) -> bool:
    """Whether what is stored is what was made, or nearly so: not as narrow floats."""
    floats = made.is_float and stored.is_float and stored.itemsize > 1
    return made == stored or floats


# -- Left out --------------------------------------------------------------------------


def without_loop(block: ir.BlockGraph) -> ir.BlockGraph | None:
    """A block that has all iterations at once; None where it has no loop.

    The schedule is for no loop; that the tiles fit is not looked at.  What is added in
    each iteration without depending on it is added once: then it is another result,
    and there is None too.
    """
    if block.loop is None:
        return None
    stages = ir.stages_of(block)
    names: dict[str, str] = {}
    nodes: list[ir.BlockNode] = []
    for node in block.nodes:
        match node:
            case ir.Accumulate() | ir.RunningMax():
                if stages[node.operand] != "body":
                    return None
                names[node.result] = names.get(node.operand, node.operand)
            case ir.Load():
                whole = each_dim(node.axes, lambda d: replace(d, loop=False))
                nodes.append(replace(node, axes=whole))
            case _:
                nodes.append(with_operands(node, names))
    schedule = replace(
        block.schedule, num_stages=2, descriptors=False, prefetch=0, early=0
    )
    return ir.BlockGraph(block.grid, None, tuple(nodes), schedule)


# -- Bounded by masks ------------------------------------------------------------------

NEAR = 32 * 2**20
"""Bytes that stay in the L2 cache beside others, whoever reads them."""


def skip_tiles(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose blocks leave out what is masked; None where nothing is."""
    axes = _axes(graph)
    made = map_blocks(graph, lambda block: _bounded(block, axes, graph))
    return None if made == graph else made


def settle_masks(graph: ir.KernelGraph) -> ir.KernelGraph | None:
    """The μGraph whose iterations do without masks where these hide nothing.

    It is for blocks that leave iterations out; None where nothing is settled.
    """
    axes = _axes(graph)

    def settled(block: ir.BlockGraph) -> ir.BlockGraph:
        if not block.bounds or block.settled:
            return block
        masks = (
            replace(m, bound=replace(m.bound, also=None)) for m in _masks(block, axes)
        )
        return replace(block, settled=tuple(masks))

    made = map_blocks(graph, settled)
    return None if made == graph else made


def unproven(graph: ir.KernelGraph) -> str | None:
    """What bounds say of iterations that does not follow; None if all of it does.

    Those that are left out may be needed, or a mask may not be settled: trials at a few
    sizes of tiles do not see what is so at others.
    """
    axes = _axes(graph)
    for block in graph.blocks:
        masks = tuple(_masks(block, axes)) if block.bounds else ()
        for bound in block.bounds:
            if not any(_is_within(bound, other.bound) for other in masks):
                assert block.loop is not None
                what = bounds_text((bound,), block.loop.dim)
                return f"{what} may leave out iterations that are needed"
        sure = tuple(_comparisons(block, axes)) if block.settled else ()
        for settled in block.settled:
            if not any(_is_settled(settled, other) for other in sure):
                assert block.loop is not None
                what = settled_text((settled,), block.loop.dim)
                return f"{what} may be wrong in some iterations"
    return None


def _is_settled(settled: ir.Settled, sure: ir.Settled) -> bool:
    """Whether a truth value is settled at most where it surely is."""
    alike = (settled.value, settled.holds) == (sure.value, sure.holds)
    return alike and _is_within(sure.bound, settled.bound)


def _is_within(bound: ir.LoopBound, other: ir.LoopBound) -> bool:
    """Whether a bound leaves out no more than another one."""
    more = bound.offset - other.offset
    alike = (bound.dim, bound.upper) == (other.dim, other.upper)
    also = -1 if bound.also is None else bound.also
    wide = other.also is None or also >= other.also
    return alike and wide and (more >= 0 if bound.upper else more <= 0)


def _axes(graph: ir.KernelGraph) -> dict[str, str]:
    """The dim of each index value that has one."""
    return {i.name: i.axis[0].name for i in graph.indices if len(i.axis) == 1}


def _bounded(
    block: ir.BlockGraph, axes: Mapping[str, str], graph: ir.KernelGraph
) -> ir.BlockGraph:
    if block.loop is not None and not block.bounds:
        found = dict.fromkeys(m.bound for m in _masks(block, axes))
        block = replace(block, bounds=tuple(found))
    return _evened(block, graph) if block.bounds else block


def _evened(block: ir.BlockGraph, graph: ir.KernelGraph) -> ir.BlockGraph:
    """The block with the dims that bound its loop last among the grid's.

    Blocks of one length are numbered one after the other then, and those that iterate
    least start last (`tile.program.counts_down`).  Where tensors are large the order is
    left: blocks that run together are to read the same tiles.
    """
    types, bounding = kernel_types(graph), {b.dim for b in block.bounds}
    read = {n.source for n in block.loads if any(d.loop for d in ir.dims_of(n.axes))}
    extents = derived_extents(graph)
    size = 0
    for kind in (types[name] for name in read):
        if kind.space is not MemorySpace.NOWHERE:
            known = [extents.get(name) for name in kind.names]
            size += kind.dtype.itemsize * prod(e or NEAR for e in known)
    if size > NEAR:
        return block
    axes = sorted(block.axes, key=lambda a: any(s.dim in bounding for s in a))
    return replace(block, grid=tuple(s for axis in axes for s in axis))


def _masks(block: ir.BlockGraph, axes: Mapping[str, str]) -> Iterator[ir.Settled]:
    """Comparisons that hide all of an iteration which their bounds do not let through.

    In iterations that these cover they hide nothing.
    """
    starts = tuple(_starts(block, axes))
    for found in _comparisons(block, axes):
        hidden = {found.value: float(not found.holds)}
        if _is_neutral(block, hidden):
            yield found
            continue
        # Where it is hidden, but for what comes first: a prefix that all see.
        for value, number, also in starts if found.bound.upper else ():
            if value not in hidden and _is_neutral(block, {**hidden, value: number}):
                yield replace(found, bound=replace(found.bound, also=also))
                break


def _starts(
    block: ir.BlockGraph, axes: Mapping[str, str]
) -> Iterator[tuple[str, float, int]]:
    """Comparisons of a position along the loop's dim with a number.

    Each with its result in tiles that have no position up to the last number.
    """
    assert block.loop is not None
    looped = block.loop.dim
    for node, difference in _compared(block, axes):
        match dict(difference):
            case {"": offset, **sign} if sign == {looped: 1} and offset <= 0:
                # d + offset <= 0 does not hold behind -offset.
                yield node.result, 0.0, -offset
            case {"": offset, **sign} if sign == {looped: -1} and offset > 0:
                # offset - d <= 0 holds from offset on.
                yield node.result, 1.0, offset - 1
            case _:
                pass


def _comparisons(block: ir.BlockGraph, axes: Mapping[str, str]) -> Iterator[ir.Settled]:
    """Where comparisons of positions hold all over tiles, and where they fail."""
    for node, difference in _compared(block, axes):
        for held in (False, True):
            bound = _bound_of(difference, block, held=held)
            if bound is not None:
                yield ir.Settled(node.result, not held, bound)


# -- Comparisons of positions ----------------------------------------------------------

Place = Mapping[str, int]
"""A sum of positions: how often each dim is in it; a whole number by the name ``."""


def _compared(
    block: ir.BlockGraph, axes: Mapping[str, str]
) -> Iterator[tuple[ir.Apply, Place]]:
    """Comparisons of positions, each with what is at most 0 where it holds."""
    places = _places(block, axes)
    for node in block.applies:
        if node.op in (table.LESS, table.LESS_EQUAL):
            difference = _difference(node, places, int(node.op is table.LESS))
            if difference is not None:
                yield node, difference


def _places(block: ir.BlockGraph, axes: Mapping[str, str]) -> dict[str, Place]:
    """The values of a block that are sums of positions and whole numbers."""
    found: dict[str, Place] = {}
    for node in block.nodes:
        if isinstance(node, ir.Load) and node.source in axes:
            found[node.result] = {axes[node.source]: 1}
        elif isinstance(node, ir.Apply) and node.op.term in (Term.ADD, Term.SUB):
            total = _difference(node, found, 0, -1 if node.op.term is Term.SUB else 1)
            if total is not None:
                found[node.result] = total
    return found


def _difference(
    node: ir.Apply, places: Mapping[str, Place], more: int, sign: int = -1
) -> Place | None:
    """The first operand less the second one, or their sum, and so much more."""
    total = {"": more}
    for operand, factor in zip(node.operands, (1, sign), strict=True):
        number = ir.integer_of(operand, {})
        place = {"": number} if number is not None else None
        if isinstance(operand, str):
            place = places.get(operand)
        if place is None:
            return None
        for name, count in place.items():
            total[name] = total.get(name, 0) + factor * count
    return {n: c for n, c in total.items() if c or not n}


def _bound_of(
    difference: Place, block: ir.BlockGraph, *, held: bool
) -> ir.LoopBound | None:
    """Where `difference <= 0` is not `held` somewhere in a tile; None if unknown."""
    assert block.loop is not None
    looped, offset = block.loop.dim, difference[""]
    others = [n for n in difference if n not in ("", looped)]
    if len(others) != 1 or looped not in difference:
        return None
    (dim,) = others
    signs = difference[looped], difference[dim]
    if signs not in ((1, -1), (-1, 1)) or block.grid_split(dim) is None:
        return None
    if not _is_in_part(block, dim):
        return None
    if signs[0] > 0:
        # d - n + offset <= 0, or more than 0.
        return ir.LoopBound(dim, held is False, -offset if not held else 1 - offset)
    return ir.LoopBound(dim, held, offset if not held else offset - 1)


def _is_in_part(block: ir.BlockGraph, dim: str) -> bool:
    """Whether all that the block sees of a dim is its part."""
    pieces = {d for n in block.loads for d in ir.dims_of(n.axes) if d.name == dim}
    return all(d.grid and not d.loop for d in pieces)


# -- What follows ----------------------------------------------------------------------


def _is_neutral(block: ir.BlockGraph, known: dict[str, float]) -> bool:
    """Whether every accumulator gets its neutral element, given some values."""
    known = dict(known)
    for node in block.nodes:
        match node:
            case ir.Apply() if node.result not in known:
                value = followed(node, known)
                if value is not None:
                    known[node.result] = value
            case ir.RunningMax():
                if known.get(node.operand) != -math.inf:
                    return False
                known[node.result] = math.nan
            case ir.Accumulate():
                if not _adds_nothing(node, known):
                    return False
            case ir.Apply() | ir.Load() | ir.Store():
                pass
    return True


def _adds_nothing(node: ir.Accumulate, known: Mapping[str, float]) -> bool:
    reduction, value = node.reduction, known.get(node.operand)
    if reduction is None:
        return False
    # A running maximum stays what it was.
    return value is not None and (math.isnan(value) or value == reduction.neutral)
