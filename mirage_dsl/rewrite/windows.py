"""Pooling written out: elements of windows at positions, and a reduction of them.

PyTorch's pooling is a call of its own, which no kernel can contain.  What it computes a
kernel can, since it counts positions.  Before → after, windows of 3 with a stride of 2:

    y = max_pool1d x of(n, c, w)      o  = index v                 places of windows
        gives(n, c, v) kernel(3)      k  = index k                 elements of one
        stride(2) padding(1) ..       at = o * 2 + k - 1: i64[v, k]
                                      inside = (0 <= at) * (at < w)
                                      x_at = gather x, (where inside, at, 0) dim(w)
                                      y = max (where inside, x_at, -inf) over(k)

Of windows in a plane the position is that in the plane, its axes made one by a view.
Positions follow from the extents of the axes, so this holds at any sizes: at those of a
trial too, where windows may reach further outside.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_dsl.core.types import AxisNames, Dim, Scalar, extent_scalar, f32, scalar
from mirage_dsl.ir.canonical import FreshNames, Renaming, free_name
from mirage_dsl.ir.graph import (
    Apply,
    Attrs,
    BlockNode,
    Index,
    Input,
    KernelGraph,
    KernelNode,
    Load,
    Operand,
    Return,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import map_blocks, results_of
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator


def pools(graph: KernelGraph) -> tuple[Apply, ...]:
    """The calls of PyTorch's pooling that can be written out."""
    return tuple(n for n in graph.applies if _can_be_written(n, graph))


def _can_be_written(node: Apply, graph: KernelGraph) -> bool:
    """Whether windows are whole, and extents known, of axes that are one dim each.

    Those in space are left to PyTorch: of eight dims a search has too many ways to
    split, and comes to no end.
    """
    if node.op.pools is None:
        return False
    axes = (*node.axes("of")[2:], *node.axes("gives")[2:])
    single = all(len(axis) == 1 for axis in axes) and len(axes) <= 4
    known = all(graph.extent_of.get(d) is not None for axis in axes for d in axis)
    # The last windows may be shorter otherwise, which a mean shows.
    whole = node.op.pools is not table.SUM or node.numbers["ceil"] == (0,)
    return single and known and whole


def with_windows(graph: KernelGraph, kept: Container[str] = ()) -> KernelGraph:
    """The graph with all pooling written out that can be.

    Args:
        graph: The graph.
        kept: Results of calls that stay.
    """
    wanted = {n.result for n in pools(graph) if n.result not in kept}
    if not wanted:
        return graph
    writer = _Writer(graph)
    nodes: list[KernelNode] = []
    for node in graph.nodes:
        if isinstance(node, Apply) and node.result in wanted:
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


def _loaded_in_order(graph: KernelGraph) -> KernelGraph:
    """The graph with the axes of each load in the order of what is loaded."""
    types = kernel_types(replace(graph, returns=()))

    def loaded(node: BlockNode) -> BlockNode:
        if not isinstance(node, Load):
            return node
        own = {tuple(d.name for d in axis): axis for axis in node.axes}
        order = [tuple(d.name for d in axis) for axis in types[node.source].axes]
        if {*order} != own.keys():
            return node
        return replace(node, axes=tuple(own[names] for names in order))

    return map_blocks(
        graph, lambda b: replace(b, nodes=tuple(loaded(n) for n in b.nodes))
    )


def alone(graph: KernelGraph, call: Apply) -> KernelGraph:
    """The program of one call of a graph.

    What it is given has the axes that it has there, as kernels load it by these.
    """
    types = kernel_types(graph)
    (source,) = call.values
    given, made = types[source], types[call.result]
    used = {*given.names, *made.names}
    return KernelGraph(
        graph.name,
        (Input(source, given),),
        (call,),
        (Return(call.result, made),),
        tuple((n, e) for n, e in graph.extents if n in used),
    )


def in_place(graph: KernelGraph, call: Apply, made: KernelGraph) -> KernelGraph:
    """A graph with what computes the program of one of its calls in that one's place.

    Whatever has a name of its own there has a new one here.
    """
    names, known = FreshNames(graph), dict(graph.extents)
    own = alone(graph, call).extent_of
    dims: dict[str, str] = {}
    for name, extent in made.extents:
        if name not in own:
            dims[name] = free_name(name, known)
            known[dims[name]] = extent
    (returned,) = made.returns
    tensors = [i.name for i in made.indices]
    tensors += [name for node in made.nodes for name in results_of(node)]
    values = {name: names.fresh(name) for name in tensors}
    values[returned.value] = call.result
    inner = tuple(
        {n.result: names.fresh(n.result) for n in block.made} for block in made.blocks
    )
    placed = Renaming(dims, values, inner).graph(made)
    at = graph.nodes.index(call)
    nodes = (*graph.nodes[:at], *placed.nodes, *graph.nodes[at + 1 :])
    return replace(
        graph,
        nodes=nodes,
        indices=(*graph.indices, *placed.indices),
        extents=tuple(sorted({**known, **placed.extent_of}.items())),
    )


@dataclass(frozen=True)
class _Axis:
    """Along one axis: where the windows are.

    Attributes:
        given: The dim that they are of.
        place: The dim over the windows.
        element: The dim over the elements of one.
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

    graph: KernelGraph
    indices: list[Index] = field(default_factory=list[Index])
    extents: dict[str, int | None] = field(default_factory=dict[str, int | None])
    _nodes: list[KernelNode] = field(default_factory=list[KernelNode])

    def __post_init__(self) -> None:
        self.extents.update(self.graph.extents)
        self._types = kernel_types(self.graph)
        self._names = FreshNames(self.graph)

    def written(self, node: Apply) -> list[KernelNode]:
        """The nodes of one call; the last one has its name."""
        self._nodes, reduction = [], node.op.pools
        assert reduction is not None
        axes = self._axes(node)
        ats = [self._position(axis) for axis in axes]
        inside = self._all(
            [w for a, at in zip(axes, ats, strict=True) for w in self._within(a, at)]
        )
        place = self._do(table.WHERE, inside, self._flat(axes, ats), scalar(0))
        source, dim = self._in_one(node.values[0], axes)
        picked = self._do(table.GATHER, source, place, attrs=(("dim", dim),))
        fill = scalar(0 if reduction is table.SUM else -math.inf)
        over: Attrs = (("over", tuple(a.element for a in axes)),)
        joined = self._do(
            reduction, self._do(table.WHERE, inside, picked, fill), attrs=over
        )
        if reduction is table.SUM:
            count = self._count(node, inside, over)
            dtype = self._types[node.result].dtype
            joined = self._do(table.DIV, joined, count)
            if isinstance(count, str) and dtype.itemsize < f32.itemsize:
                # What is counted is in f32, and so is what is divided by it.
                attrs: Attrs = (("dtype", dtype.name),)
                joined = self._do(table.CAST, joined, attrs=attrs)
        last = self._nodes[-1]
        assert isinstance(last, Apply)
        assert last.result == joined
        self._nodes[-1] = replace(last, result=node.result, location=node.location)
        return self._nodes

    def _axes(self, node: Apply) -> list[_Axis]:
        """The axes behind the batch and the channels."""
        given, made = (
            [axis[0] for axis in node.axes(name)[2:]] for name in ("of", "gives")
        )
        numbers, once = node.numbers, (1,) * len(given)
        sides = (numbers["stride"], numbers["padding"], numbers.get("dilation", once))
        windows = [self._dim("w", size) for size in numbers["kernel"]]
        return [
            _Axis(*names) for names in zip(given, made, windows, *sides, strict=True)
        ]

    def _position(self, axis: _Axis) -> str:
        """Where on its axis each element of each window is."""
        first = self._do(table.MUL, self._index(axis.place), scalar(axis.stride))
        further = self._do(table.MUL, self._index(axis.element), scalar(axis.dilation))
        begins = self._do(table.ADD, first, further)
        return self._do(table.SUB, begins, scalar(axis.padding))

    def _within(self, axis: _Axis, at: str) -> tuple[str, str]:
        """Whether it is on the axis at all."""
        end = extent_scalar(axis.given)
        ahead = self._do(table.LESS_EQUAL, scalar(0), at)
        return ahead, self._do(table.LESS, at, end)

    def _all(self, conditions: list[str]) -> str:
        """Whether all of some hold."""
        found, *others = conditions
        for other in others:
            found = self._do(table.MUL, found, other)
        return found

    def _flat(self, axes: list[_Axis], ats: list[str]) -> str:
        """Positions on all axes as one, row-major."""
        found = ats[0]
        for axis, at in zip(axes[1:], ats[1:], strict=True):
            rows = self._do(table.MUL, found, Scalar(Fraction(1), ((axis.given, 1),)))
            found = self._do(table.ADD, rows, at)
        return found

    def _in_one(self, source: str, axes: list[_Axis]) -> tuple[str, str]:
        """A tensor with its last axes as one dim."""
        given = tuple(axis.given for axis in axes)
        if len(given) == 1:
            return source, given[0]
        sizes = [self.extents[name] or 1 for name in given]
        dim = self._dim("_".join(given), math.prod(sizes))
        of = AxisNames(tuple((name,) for name in given))
        return self._do(table.FLATTEN, source, attrs=(("of", of), ("to", dim))), dim

    def _count(self, node: Apply, inside: str, over: Attrs) -> Operand:
        """By what a sum is divided: the elements of a window, or those on the axes."""
        if node.numbers["padded"] != (0,):
            return scalar(math.prod(node.numbers["kernel"]))
        ones = self._do(table.WHERE, inside, scalar(1), scalar(0))
        count = self._do(table.SUM, ones, attrs=over)
        # At other sizes windows may be outside as a whole.
        return self._do(table.MAXIMUM, count, scalar(1))

    # -- Names -----------------------------------------------------------------------

    def _do(self, op: Operator, *operands: Operand, attrs: Attrs = ()) -> str:
        """The result of one more operator."""
        name = self._names.fresh(op.name)
        self._nodes.append(Apply(name, op, operands, attrs))
        return name

    def _index(self, dim: str) -> str:
        """The positions along a dim."""
        name = self._names.fresh("index")
        self.indices.append(Index(name, (Dim(dim),)))
        return name

    def _dim(self, base: str, extent: int) -> str:
        """A new dim."""
        name = free_name(base, self.extents)
        self.extents[name] = extent
        return name
