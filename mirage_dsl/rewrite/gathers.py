"""Gathers moved to what they pick elements of, and into the blocks that read them.

A gather of what was computed element by element picks elements of the operands first.
Before → after, with v gathered along:

    y = sub x, row                           p = gather x, i dim(v)
    g = gather y, i dim(v)                   g = sub p, row

A block that reads what a gather has picked picks it itself, so that it is never
stored.  Before → after:

    g = gather w, i dim(v)                   y = block grid(n / 4) {
    y = block grid(n / 4) {                    a = load i[n/grid]
      t = load g[n/grid, d]            →       b = load w[v, d]
      ..                                       t = gather b, a dim(v)
    }                                          ..
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from mirage_dsl.core.types import (
    Dim,
    MemorySpace,
    Scalar,
    TensorType,
    boolean,
    flat_type,
    i64,
    scalar,
)
from mirage_dsl.ir.canonical import FreshNames
from mirage_dsl.ir.check.graph import check
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    Load,
    Store,
    ValueNode,
    dims_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import (
    live,
    makers,
    map_blocks,
    map_nodes,
    post_order,
    read_by,
    results_of,
    with_operands,
    without_dead,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import ADD, CAST, CONVERSIONS, OPERATORS, WHERE

LESS = OPERATORS["less"]

# -- In front of what is computed element by element -----------------------------------


def sink_gathers(program: KernelGraph) -> KernelGraph | None:
    """The program whose gathers pick elements before these are computed with.

    None where no gather can move, or would make more elements than it spares.
    """
    sinking = _Sinking(program)
    made = map_nodes(program, sinking.nodes_for)
    return without_dead(made) if made != program else None


class _Sinking:
    def __init__(self, program: KernelGraph) -> None:
        self._types = kernel_types(program)
        self._makers = makers(program)
        self._extents = derived_extents(program, program.extent_of)
        self._names = FreshNames(program)

    def nodes_for(self, node: Apply | BlockGraph) -> list[Apply | BlockGraph]:
        """What stands in the place of a node of the program."""
        if isinstance(node, Apply) and node.op.kind is Kind.GATHER:
            return list(self._sunk(node))
        return [node]

    def _sunk(self, node: Apply) -> list[Apply]:
        """A gather, moved as far as it can be."""
        (source, index), dim = node.values, str(node.attr("dim"))
        if self._types[source].space is MemorySpace.NOWHERE:
            return self._counted(node, index, dim)
        maker = self._makers.get(source)
        if maker is None or not self._spares(source, index, dim):
            return [node]
        if maker.op.kind is not Kind.ELEMENTWISE and maker.op is not CAST:
            return [node]
        found: list[Apply] = []
        picked: dict[str, str] = {}
        for value in dict.fromkeys(maker.values):
            if dim in self._types[value].names:
                name = picked[value] = self._names.fresh(f"{value}_at_{index}")
                moved = replace(node, result=name, operands=(value, index))
                found += self._sunk(moved)
        operands = tuple(
            picked.get(o, o) if isinstance(o, str) else o for o in maker.operands
        )
        return [*found, replace(maker, result=node.result, operands=operands)]

    def _counted(self, node: Apply, index: str, dim: str) -> list[Apply]:
        """The positions at indices: they themselves, counted from the start."""
        if self._types[node.values[0]].names != (dim,):
            return [node]
        wide, behind = self._names.fresh(index), self._names.fresh(f"{index}_behind")
        below, at = self._names.fresh(f"{index}_below"), node.location
        extent = Scalar(Fraction(1), ((dim, 1),))
        return [
            Apply(wide, CONVERSIONS[i64], (index,), location=at),
            Apply(below, LESS, (wide, scalar(0)), location=at),
            Apply(behind, ADD, (wide, extent), location=at),
            Apply(node.result, WHERE, (below, behind, wide), location=at),
        ]

    def _spares(self, source: str, index: str, dim: str) -> bool:
        """Whether no more elements are picked than there are."""
        own, picked = set(self._types[source].names), set(self._types[index].names)
        if picked < own:
            return True
        sizes = [
            [self._extents.get(n) for n in names]
            for names in (own, picked | (own - {dim}))
        ]
        if any(e is None for row in sizes for e in row):
            return False
        whole, some = (prod(e or 1 for e in row) for row in sizes)
        return some <= whole


# -- As inputs -------------------------------------------------------------------------
# A search knows nothing of gathers: what they pick is as good as an input to it where
# it can be picked before anything else is computed, and blocks pick it in the end.


@dataclass(frozen=True)
class GathersGiven:
    """A program some of whose gathers are done before it.

    Attributes:
        program: It has an input for what each of them picks.
        picked: The names of these inputs.
        ahead: These gathers and what their indices are computed by.
    """

    program: KernelGraph
    picked: frozenset[str]
    ahead: tuple[Apply, ...]

    def restored(self, graph: KernelGraph) -> KernelGraph:
        """A μGraph of the program as one of the whole, its gathers done by blocks.

        One that reads nothing of what they pick stays as it is.
        """
        if self.picked.isdisjoint(i.name for i in graph.inputs):
            return graph
        inputs = tuple(i for i in graph.inputs if i.name not in self.picked)
        names, renamed = FreshNames(graph), dict[str, str]()
        nodes: list[Apply] = []
        for node in self.ahead:
            if node.result not in self.picked:
                renamed[node.result] = names.fresh(node.result)
            made = with_operands(node, renamed)
            nodes.append(replace(made, result=renamed.get(node.result, node.result)))
        whole = replace(graph, inputs=inputs, nodes=(*nodes, *graph.nodes))
        return without_dead(whole)


def with_gathers_given(program: KernelGraph) -> GathersGiven | None:
    """The program without gathers that need nothing of what it computes.

    They are gathers of inputs and of views of these, by integers that are inputs or are
    computed of them one by one.  None where there are none.
    """
    types = kernel_types(program)
    there = {i.name for i in program.inputs}
    exact = {i.name for i in program.given}
    returned = {r.value for r in program.returns}
    picked: list[Apply] = []
    for node in program.applies:
        if node.op.kind is Kind.GATHER and node.result not in returned:
            if node.values[0] in there and node.values[1] in exact:
                picked.append(node)
                if types[node.result].dtype.is_integer:
                    exact.add(node.result)
        elif node.is_view and there.issuperset(node.values):
            there.add(node.result)
        if _is_of_integers(node, types) and exact.issuperset(node.values):
            exact.add(node.result)
    if not picked:
        return None
    done = {n.result for n in picked}
    rest = [n for n in program.nodes if done.isdisjoint(results_of(n))]
    rest = live(rest, returned)
    given = [n.result for n in picked if n.result in read_by(rest)]
    inputs = [
        Input(n, flat_type(types[n].dtype, types[n].dims, MemorySpace.DEVICE))
        for n in given
    ]
    opened = replace(program, inputs=(*program.inputs, *inputs), nodes=tuple(rest))
    return GathersGiven(opened, frozenset(given), tuple(live(program.applies, given)))


# -- Into blocks -----------------------------------------------------------------------


def fuse_gathers(graph: KernelGraph) -> KernelGraph | None:
    """The μGraph whose blocks pick elements themselves; None where none can."""
    fusing = _Fusing(graph)
    made = map_blocks(graph, fusing.block)
    if made == graph:
        return None
    made = without_dead(made)
    return None if check(made) else made


class _Fusing:
    def __init__(self, graph: KernelGraph) -> None:
        self._types = kernel_types(graph)
        self._names = FreshNames(graph)
        self._kernels: Mapping[str, Apply] = makers(graph)
        self._stored: Mapping[str, tuple[BlockGraph, Store]] = {
            store.result: (block, store)
            for block in graph.blocks
            for store in block.stores
        }

    def block(self, block: BlockGraph) -> BlockGraph:
        """The block that picks what it loads of gathers."""
        made = map_nodes(block, self._node)
        return block if made == block else _without_twins(made)

    def _node(self, node: BlockNode) -> list[BlockNode]:
        gather = self._kernels.get(node.source) if isinstance(node, Load) else None
        if gather is None or gather.op.kind is not Kind.GATHER:
            return [node]
        assert isinstance(node, Load)
        if self._types[gather.values[0]].space is MemorySpace.NOWHERE:
            return [node]
        nodes: list[BlockNode] = []
        picked = self._picked(gather, {d.name: d for d in dims_of(node.axes)}, nodes)
        return [*nodes, replace(picked, result=node.result)]

    def _picked(
        self, gather: Apply, pieces: Mapping[str, Dim], nodes: list[BlockNode]
    ) -> Apply:
        """A gather in the block, of these pieces."""
        (source, index), dim = gather.values, str(gather.attr("dim"))
        at = self._copied(index, pieces, nodes)
        table = self._loaded(source, {**pieces, dim: Dim(dim)}, nodes)
        return replace(gather, operands=(table, at))

    def _loaded(
        self, tensor: str, pieces: Mapping[str, Dim], nodes: list[BlockNode]
    ) -> str:
        """The name of a new load of some pieces."""
        axes = self._types[tensor].axes
        cut = tuple(tuple(pieces[d.name] for d in axis) for axis in axes)
        nodes.append(Load(self._names.fresh(f"{tensor}_at"), tensor, cut))
        return nodes[-1].result

    # -- Indices -------------------------------------------------------------------
    # What is computed of them one by one is computed again in the block, where it
    # is exact: they are integers.

    def _copied(
        self, tensor: str, pieces: Mapping[str, Dim], nodes: list[BlockNode]
    ) -> str:
        """The name of the pieces of an index in the block."""
        if self._is_exact(tensor):
            if tensor in self._kernels:
                node = self._kernels[tensor]
                if node.op.kind is Kind.GATHER:
                    return self._again(self._picked(node, pieces, nodes), {}, nodes)
                names = {v: self._copied(v, pieces, nodes) for v in node.values}
                return self._again(node, names, nodes)
            block, store = self._stored[tensor]
            return self._inner(block, store.operand, pieces, nodes)
        return self._loaded(tensor, pieces, nodes)

    def _inner(
        self,
        block: BlockGraph,
        value: str,
        pieces: Mapping[str, Dim],
        nodes: list[BlockNode],
    ) -> str:
        """The same of a value of another block."""
        node = makers(block)[value]
        if isinstance(node, Load):
            return self._copied(node.source, pieces, nodes)
        assert isinstance(node, Apply)
        names = {v: self._inner(block, v, pieces, nodes) for v in node.values}
        return self._again(node, names, nodes)

    def _again(
        self, node: Apply, names: Mapping[str, str], nodes: list[BlockNode]
    ) -> str:
        copied = with_operands(node, names)
        nodes.append(replace(copied, result=self._names.fresh(node.result)))
        return nodes[-1].result

    def _is_exact(self, tensor: str) -> bool:
        """Whether a tensor is computed one by one, as integers."""
        if tensor in self._kernels:
            node = self._kernels[tensor]
            if node.op.kind is Kind.GATHER:
                source = self._types[node.values[0]]
                return source.dtype.is_integer and source.space is MemorySpace.DEVICE
            return _is_of_integers(node, self._types)
        if tensor not in self._stored:
            return False
        block, store = self._stored[tensor]
        made, types = makers(block), block_types(block, self._types)
        needed = post_order(made, [store.operand])
        return all(isinstance(n, Load) or _is_of_integers(n, types) for n in needed)


def _without_twins(block: BlockGraph) -> BlockGraph:
    """The block with one of all loads that are equal, and of all operators."""
    first, names = dict[ValueNode, str](), dict[str, str]()

    def kept(node: BlockNode) -> list[BlockNode]:
        node = with_operands(node, names)
        if not isinstance(node, Load | Apply):
            return [node]
        known = first.setdefault(replace(node, result=""), node.result)
        if known != node.result:
            names[node.result] = known
        return [node] if known == node.result else []

    return map_nodes(block, kept)


def _is_of_integers(node: ValueNode, types: Mapping[str, TensorType]) -> bool:
    """Whether a node computes integers or truth values, one by one."""
    by_element = isinstance(node, Apply) and node.op.kind is Kind.ELEMENTWISE
    dtype = types[node.result].dtype
    return by_element and (dtype.is_integer or dtype == boolean)


__all__ = ["fuse_gathers", "sink_gathers"]
