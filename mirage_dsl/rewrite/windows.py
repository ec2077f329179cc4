"""Pooling and convolutions written out: elements of windows at positions, joined.

They are calls of PyTorch's, which no kernel can contain.  What they compute a kernel
can, since it counts positions.  Before → after, windows of 3 with a stride of 2:

    y = max_pool1d x of(n, c, w)      o  = index v                 places of windows
        gives(n, c, v) kernel(3)      k  = index k                 elements of one
        stride(2) padding(1) ..       at = o * 2 + k - 1: i64[v, k]
                                      inside = (0 <= at) * (at < w)
                                      x_at = gather x, (where inside, at, 0) dim(w)
                                      y = max (where inside, x_at, -inf) over(k)

Of windows in a plane the position is that in the plane, its axes made one by a view.
A convolution multiplies windows of all channels with weights, so that the elements of
one are one dim, which counts channels as well:

    y = conv1d x, f of(n, c, w)          o  = index v
        by(d, p, q) gives(n, d, v)       e  = index k                k counts (c, q)
        stride(2) padding(1) ..          at = o * 2 + e % 3 - 1: i64[v, k]
                                         inside = (0 <= at) * (at < w)
                                         x_c  = flatten x of(c, w) to(c_w)
                                         x_at = gather x_c, (.. e // 3 * w + at ..)
                                         f_c  = rename f dims(p) to(c)
                                         f_k  = flatten f_c of(c, q) to(k)
                                         y = matmul (where inside, x_at, 0), f_k over(k)

Positions follow from the extents of the axes, so this holds at any sizes: at those of a
trial too, where windows may reach further outside.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from mirage_dsl.core.modes import convolutions_round
from mirage_dsl.core.types import Axis, Dim, extent_scalar, f32, scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import FreshNames, free_name
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import looked_at, map_axes, map_blocks
from mirage_dsl.ir.write import OperatorWriter, flatten
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.positions import all_of, row_major, within
from mirage_dsl.rewrite.sinking import GathersGiven, with_gathers_given


def pools(graph: ir.KernelGraph) -> tuple[ir.Apply, ...]:
    """The calls of PyTorch's pooling that can be written out.

    Those in space are left to PyTorch: of eight dims a search has too many ways to
    split, and comes to no end.
    """
    found = (n for n in graph.applies if n.op.pools is not None)
    return tuple(
        n
        for n in found
        if _has_known_axes(n, graph)
        if len(n.axes("gives")) <= 4
        # The last windows may be shorter otherwise, which a mean shows.
        if n.op.pools is not table.SUM or n.numbers["ceil"] == (0,)
    )


def convolutions(graph: ir.KernelGraph) -> tuple[ir.Apply, ...]:
    """The convolutions that can be written out: those of all channels at once.

    Not where what they make counts its channels by the dim that what they read does.
    """
    return tuple(
        n
        for n in graph.applies
        if n.op.convolves
        if n.numbers["groups"] == (1,)
        if _has_known_axes(n, graph)
        if n.axes("by")[0] != n.axes("of")[1]
    )


def _has_known_axes(node: ir.Apply, graph: ir.KernelGraph) -> bool:
    """Whether axes are one dim each, of known extents, but those that are carried.

    Batches are, and the channels of pooling.
    """
    first = 1 if node.op.convolves else 2
    axes = [*node.axes("of")[first:], *node.axes("gives")[first:]]
    axes += node.axes("by") if node.op.convolves else ()
    known = all(graph.extent_of.get(d) is not None for axis in axes for d in axis)
    return known and all(len(axis) == 1 for axis in axes)


def with_windows(graph: ir.KernelGraph, kept: Container[str] = ()) -> ir.KernelGraph:
    """The graph with all windows written out that can be.

    Args:
        graph: The graph.
        kept: Results of calls that stay.
    """
    calls = (*pools(graph), *convolutions(graph))
    wanted = {n.result for n in calls if n.result not in kept}
    if not wanted:
        return graph
    writer = _Writer(graph)
    nodes: list[ir.KernelNode] = []
    for node in graph.nodes:
        if isinstance(node, ir.Apply) and node.result in wanted:
            nodes += writer.written(node)
        else:
            nodes.append(node)
    written = replace(
        graph,
        nodes=tuple(nodes),
        indices=(*graph.indices, *writer.indices),
        extents=tuple(sorted(writer.extents.items())),
    )
    return _loaded_in_order(written) if graph.blocks else written


def windows_given(program: ir.KernelGraph) -> GathersGiven | None:
    """The program with an input for the windows of each convolution.

    Pooling is left.  None where there are no convolutions, and where some are of what
    is computed: their windows are no input.
    """
    there, calls = looked_at(program), convolutions(program)
    some = len(calls) < sum(n.op.convolves for n in program.applies)
    if not calls or some or not all(c.values[0] in there for c in calls):
        return None
    wanted = {c.result for c in calls}
    kept = {n.result for n in program.applies} - wanted
    written = expand(with_windows(program, kept))
    return with_gathers_given(written, hidden=True)


def rounded_as_convolutions(
    graph: ir.KernelGraph, windows: Container[str]
) -> ir.KernelGraph:
    """The graph whose f32 products of windows round to TF32, where PyTorch's may.

    Args:
        graph: A μGraph.
        windows: The inputs that they are; a block that multiplies others too stays.
    """

    def rounded(block: ir.BlockGraph) -> ir.BlockGraph:
        own = {n.result for n in block.loads if n.source in windows}
        if not _multiplies_only(block, own):
            return block
        return replace(block, schedule=replace(block.schedule, allow_tf32=True))

    return map_blocks(graph, rounded) if convolutions_round() else graph


def rounds_windows(block: ir.BlockGraph) -> bool:
    """Whether all that a block multiplies is picked, as elements of windows are."""
    picked = {n.result for n in block.applies if n.op is table.GATHER}
    hidden = {n.result for n in block.applies if n.op is table.WHERE}
    return _multiplies_only(block, picked | hidden)


def _multiplies_only(block: ir.BlockGraph, values: AbstractSet[str]) -> bool:
    """Whether a block has products, each of one of some values."""
    products = [n for n in block.applies if n.op is table.MATMUL]
    return bool(products) and all(not values.isdisjoint(n.values) for n in products)


def _loaded_in_order(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The graph with the axes of each load in the order of what is loaded."""
    types = kernel_types(replace(graph, returns=()))

    def in_order(node: ir.Load | ir.Store) -> tuple[Axis, ...]:
        if isinstance(node, ir.Store):
            return node.axes
        own = {tuple(d.name for d in axis): axis for axis in node.axes}
        order = [tuple(d.name for d in axis) for axis in types[node.source].axes]
        if {*order} != own.keys():
            return node.axes
        return tuple(own[names] for names in order)

    return map_blocks(graph, lambda block: map_axes(block, in_order))


@dataclass(frozen=True)
class _Axis:
    """Along one axis: where the windows are.

    Attributes:
        given: The dim that they are of.
        place: The dim over the windows.
        element: The dim over the elements of one; none if a dim counts those of all.
        stride: From one window to the next.
        padding: By how much the first one begins ahead of the axis.
        dilation: From one element to the next.
    """

    given: str
    place: str
    element: str
    stride: int
    padding: int
    dilation: int


@dataclass
class _Writer:
    """Writes the nodes in the place of pooling.

    Attributes:
        graph: Whose pooling it is.
        indices: Those that it has made.
        extents: Of all dims, the new ones too.
    """

    graph: ir.KernelGraph
    indices: list[ir.Index] = field(default_factory=list[ir.Index])
    extents: dict[str, int | None] = field(default_factory=dict[str, int | None])

    def __post_init__(self) -> None:
        self.extents.update(self.graph.extents)
        self._types = kernel_types(self.graph)
        self._names = FreshNames(self.graph)
        self._nodes: list[ir.Apply] = []
        self._write = OperatorWriter(self._nodes, self._names)

    def written(self, node: ir.Apply) -> list[ir.Apply]:
        """The nodes of one call; the last one has its name."""
        self._nodes = []
        self._write = OperatorWriter(self._nodes, self._names)
        made = self._convolved(node) if node.op.convolves else self._pooled(node)
        last = self._nodes[-1]
        assert last.result == made
        self._nodes[-1] = replace(last, result=node.result, location=node.location)
        return self._nodes

    def _pooled(self, node: ir.Apply) -> ir.Operand:
        """What pooling makes."""
        reduction = node.op.pools
        assert reduction is not None
        axes = self._axes(node)
        elements = [self._index(axis.element) for axis in axes]
        ats = list(map(self._position, axes, elements))
        inside = self._inside(axes, ats)
        names = [axis.given for axis in axes]
        place = row_major(self._write, ats, names)
        picked = self._picked(node.values[0], names, inside, place)
        fill = scalar(0 if reduction is table.SUM else -math.inf)
        over = tuple(a.element for a in axes)
        windows = self._do(table.WHERE, inside, picked, fill)
        joined = self._do(reduction, windows, over=over)
        if reduction is table.SUM:
            count = self._count(node, inside, over)
            dtype = self._types[node.result].dtype
            joined = self._do(table.DIV, joined, count)
            if isinstance(count, str) and dtype.itemsize < f32.itemsize:
                # What is counted is in f32, and so is what is divided by it.
                joined = self._do(table.CAST, joined, dtype=dtype.name)
        return joined

    def _convolved(self, node: ir.Apply) -> ir.Operand:
        """What a convolution makes: products of weights and windows of all channels."""
        source, weights = node.values
        (channels,), (taken,) = node.axes("of")[1], node.axes("by")[1]
        if taken != channels:
            weights = self._do(table.RENAME, weights, dims=(taken,), to=(channels,))
        names = [channels, *(axis[0] for axis in node.axes("by")[2:])]
        weights, dim = self._in_one(weights, names)
        channel, *elements = self._digits(dim, names)
        axes = self._axes(node)
        ats = list(map(self._position, axes, elements))
        inside = self._inside(axes, ats)
        names = [axis[0] for axis in node.axes("of")[1:]]
        place = row_major(self._write, [channel, *ats], names)
        picked = self._picked(source, names, inside, place)
        windows = self._do(table.WHERE, inside, picked, scalar(0))
        return self._do(table.MATMUL, windows, weights, over=(dim,))

    def _axes(self, node: ir.Apply) -> list[_Axis]:
        """The axes behind the batch and the channels."""
        given, made = (
            [axis[0] for axis in node.axes(name)[2:]] for name in ("of", "gives")
        )
        numbers, once = node.numbers, (1,) * len(given)
        sides = (numbers["stride"], numbers["padding"], numbers.get("dilation", once))
        if node.op.convolves:
            windows = [axis[0] for axis in node.axes("by")[2:]]
        else:
            windows = [self._dim("w", size) for size in numbers["kernel"]]
        return [
            _Axis(*names) for names in zip(given, made, windows, *sides, strict=True)
        ]

    def _digits(self, dim: str, names: Sequence[str]) -> list[str]:
        """Positions in dims that one dim counts, row-major."""
        index = self._index(dim)
        found: list[str] = []
        for at, name in enumerate(names):
            each = extent_scalar(*names[at + 1 :])
            digit = self._do(table.FLOOR_DIVIDE, index, each) if each.extents else index
            if at > 0:
                digit = self._do(table.REMAINDER, digit, extent_scalar(name))
            found.append(digit)
        return found

    def _position(self, axis: _Axis, element: str) -> str:
        """Where on its axis each element of each window is."""
        first = self._do(table.MUL, self._index(axis.place), scalar(axis.stride))
        further = self._do(table.MUL, element, scalar(axis.dilation))
        begins = self._do(table.ADD, first, further)
        return self._do(table.SUB, begins, scalar(axis.padding))

    def _inside(self, axes: list[_Axis], ats: list[str]) -> str:
        """Whether positions are on all axes."""
        both = zip(axes, ats, strict=True)
        found = [w for a, at in both for w in within(self._write, at, a.given)]
        return all_of(self._write, found)

    def _picked(
        self, source: str, names: Sequence[str], inside: str, place: str
    ) -> str:
        """The elements of a tensor at places on its last axes, anything elsewhere."""
        source, dim = self._in_one(source, names)
        place = self._do(table.WHERE, inside, place, scalar(0))
        return self._do(table.GATHER, source, place, dim=dim)

    def _in_one(self, source: str, names: Sequence[str]) -> tuple[str, str]:
        """A tensor with its last axes as one dim."""
        if len(names) == 1:
            return source, names[0]
        sizes = [self.extents[name] or 1 for name in names]
        dim = self._dim("_".join(names), math.prod(sizes))
        view = flatten(self._names.fresh("flatten"), source, tuple(names), dim)
        self._nodes.append(view)
        return view.result, dim

    def _count(self, node: ir.Apply, inside: str, over: tuple[str, ...]) -> ir.Operand:
        """By what a sum is divided: the elements of a window, or those on the axes."""
        if node.numbers["padded"] != (0,):
            return scalar(math.prod(node.numbers["kernel"]))
        ones = self._do(table.WHERE, inside, scalar(1), scalar(0))
        count = self._do(table.SUM, ones, over=over)
        # At other sizes windows may be outside as a whole.
        return self._do(table.MAXIMUM, count, scalar(1))

    # -- Names -----------------------------------------------------------------------

    def _do(self, op: Operator, *operands: ir.Operand, **attrs: ir.AttrValue) -> str:
        """The result of one more operator."""
        return self._write(op.name, op, *operands, **attrs)

    def _index(self, dim: str) -> str:
        """The positions along a dim."""
        name = self._names.fresh("index")
        self.indices.append(ir.Index(name, (Dim(dim),)))
        return name

    def _dim(self, base: str, extent: int) -> str:
        """A new dim."""
        name = free_name(base, self.extents)
        self.extents[name] = extent
        return name
