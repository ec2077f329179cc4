"""Names: fresh ones, and the same graph under other names of dims and values."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from mirage_dsl.core.types import Axis, AxisNames, Scalar, TensorType
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    LoopBound,
    Operand,
    Store,
    partial_dim,
)
from mirage_dsl.ir.walk import with_operands
from mirage_dsl.ops.definition import AttributeKind

# -- Fresh names -----------------------------------------------------------------------


class FreshNames:
    """Names that neither a graph nor its blocks use."""

    def __init__(self, graph: KernelGraph) -> None:
        self._used = {i.name for i in graph.given}
        for node in graph.nodes:
            nodes = (node,) if isinstance(node, Apply) else node.nodes
            self._used.update(n.result for n in nodes)

    def fresh(self, base: str) -> str:
        """`base`, with a number behind it where it is taken."""
        name = free_name(base, self._used)
        self._used.add(name)
        return name


def free_name(base: str, taken: Container[str]) -> str:
    """`base`, with a number behind it where it is taken."""
    names = (base if n == 1 else f"{base}{n}" for n in count(1))
    return next(n for n in names if n not in taken)


# -- Renamed graphs --------------------------------------------------------------------

Names = Mapping[str, str]
_DIM_KINDS = {
    AttributeKind.DIMS,
    AttributeKind.NEW_DIMS,
    AttributeKind.DIM,
    AttributeKind.NEW_DIM,
}


@dataclass(frozen=True)
class Renaming:
    """New names; what is not listed keeps its own.

    Attributes:
        dims: Dims by their old names; `k#` follows `k`.
        values: Kernel-level values.
        inner: Values of each block graph, in the order of the kernel graph's blocks.
    """

    dims: Names = field(default_factory=dict[str, str])
    values: Names = field(default_factory=dict[str, str])
    inner: tuple[Names, ...] = ()

    def graph(self, graph: KernelGraph) -> KernelGraph:
        """The graph under the new names."""
        dims = {n: _new_dim(self.dims, n) for n, _ in graph.extents}
        return replace(self, dims={**dims, **self.dims})._graph(graph)

    def _graph(self, graph: KernelGraph) -> KernelGraph:
        none: Names = {}
        blocks = iter((*self.inner, *(none for _ in graph.blocks)))
        return replace(
            graph,
            inputs=tuple(
                replace(i, name=_new(self.values, i.name), type=self.type(i.type))
                for i in graph.inputs
            ),
            indices=tuple(
                replace(i, name=_new(self.values, i.name), axis=self.axes((i.axis,))[0])
                for i in graph.indices
            ),
            nodes=tuple(
                self.block(n, next(blocks))
                if isinstance(n, BlockGraph)
                else self.apply(n, self.values)
                for n in graph.nodes
            ),
            returns=tuple(
                replace(r, value=_new(self.values, r.value), type=self.type(r.type))
                for r in graph.returns
            ),
            extents=tuple(sorted((_new(self.dims, n), e) for n, e in graph.extents)),
        )

    def type(self, kind: TensorType) -> TensorType:
        """A type with its dims renamed."""
        return replace(kind, axes=self.axes(kind.axes))

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes with their dims renamed."""
        return tuple(
            tuple(replace(d, name=_new(self.dims, d.name)) for d in axis)
            for axis in axes
        )

    def apply(self, node: Apply, values: Names) -> Apply:
        """An operator node, where `values` are the names of its level."""
        kinds = node.op.attributes

        def operand(value: Operand) -> Operand:
            if isinstance(value, Scalar):
                return value.rename(self.dims)
            return _new(values, value)

        attrs = list(node.attrs)
        for at, (name, value) in enumerate(attrs):
            if isinstance(value, AxisNames):
                attrs[at] = (name, value.each(lambda dim: _new(self.dims, dim)))
            elif kinds.get(name) not in _DIM_KINDS:
                continue
            elif isinstance(value, tuple):
                attrs[at] = (name, tuple(_new(self.dims, d) for d in value))
            else:
                attrs[at] = (name, _new(self.dims, str(value)))
        return replace(
            node,
            result=_new(values, node.result),
            operands=tuple(operand(o) for o in node.operands),
            attrs=tuple(attrs),
        )

    def block(self, block: BlockGraph, inner: Names) -> BlockGraph:
        """A block graph, where `inner` are the new names of its values."""
        grid = tuple(replace(s, dim=_new(self.dims, s.dim)) for s in block.grid)
        loop = block.loop and replace(block.loop, dim=_new(self.dims, block.loop.dim))
        nodes = tuple(self.block_node(n, inner) for n in block.nodes)
        bounds = tuple(map(self.bound, block.bounds))
        settled = tuple(
            replace(s, value=_new(inner, s.value), bound=self.bound(s.bound))
            for s in block.settled
        )
        return replace(
            block, grid=grid, loop=loop, nodes=nodes, bounds=bounds, settled=settled
        )

    def bound(self, bound: LoopBound) -> LoopBound:
        """A bound of a loop."""
        return replace(bound, dim=_new(self.dims, bound.dim))

    def block_node(self, node: BlockNode, inner: Names) -> BlockNode:
        """One node of a block graph."""
        if isinstance(node, Apply):
            return self.apply(node, inner)
        level = self.values if isinstance(node, Store) else inner
        result = _new(level, node.result)
        moved = replace(with_operands(node, inner), result=result, location=None)
        if isinstance(moved, Load):
            source = _new(self.values, moved.source)
            return replace(moved, source=source, axes=self.axes(moved.axes))
        if isinstance(moved, Store):
            return replace(moved, axes=self.axes(moved.axes))
        return moved


def _new(names: Names, name: str) -> str:
    return names.get(name, name)


def _new_dim(names: Names, name: str) -> str:
    if name in names:
        return names[name]
    base = next((n for n in names if partial_dim(n) == name), None)
    return name if base is None else partial_dim(names[base])
