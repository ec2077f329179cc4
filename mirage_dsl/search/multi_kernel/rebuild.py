"""From a DAG of the layered graph to a kernel graph of blocks with tiles of 1."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from mirage_dsl.core.types import Axis, Dim, DType, MemorySpace, TensorType, flat_type
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    Input,
    KernelGraph,
    KernelNode,
    Load,
    Return,
    Split,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import with_derived_extents
from mirage_dsl.ir.walk import operands_of, with_operands, with_returned
from mirage_dsl.rewrite.casts import insert_casts
from mirage_dsl.search.closure import BODY, LOAD
from mirage_dsl.search.multi_kernel.dags import Dag
from mirage_dsl.search.multi_kernel.graph import LIBRARY, OPERATE, SAVE, LayeredGraph
from mirage_dsl.search.multi_kernel.halves import Joining
from mirage_dsl.search.multi_kernel.kernels import KernelChoice
from mirage_dsl.search.space import Output
from mirage_dsl.search.structures import Edge, chosen_edges, reconstruct

# -- Views and concatenations of computed tensors --------------------------------------
# No block can do that, so such a node, here called opaque, parts the program: its
# result is a tensor that kernels may read, as if it were an input, and its
# operands are tensors that kernels have to store.  In between it costs nothing,
# or a library kernel.


@dataclass(frozen=True)
class Opened:
    """A program parted at its opaque nodes.

    Attributes:
        program: What kernels have to compute, the opaque nodes' results given.
        opaque: The opaque nodes, operands under the names that are stored.
        wanted: What has to be there in the end.
    """

    program: KernelGraph
    opaque: tuple[Apply, ...]
    wanted: tuple[str, ...]


def opened(program: KernelGraph) -> Opened:
    """Part a program of operators only."""
    types = kernel_types(program)
    origin = uncast(program)
    there = {i.name for i in program.given}
    opaque: list[Apply] = []
    kept: list[Apply] = []
    for node in program.nodes:
        assert isinstance(node, Apply)
        if node.is_view and node.values[0] in there:
            there.add(node.result)
            kept.append(node)
        elif node.stands_alone:
            opaque.append(with_operands(node, origin))
        else:
            kept.append(node)
    given = {n.result for n in opaque}
    returned = {r.value: r for r in program.returns if r.value not in given}
    stored = dict.fromkeys(v for n in opaque for v in n.values)
    others = [
        Return(v, _stored(types[v]))
        for v in stored
        if v not in {*given, *there, *(origin.get(r, r) for r in returned)}
    ]
    inputs = [Input(n.result, _stored(types[n.result])) for n in opaque]
    parted = replace(
        program,
        inputs=(*program.inputs, *inputs),
        nodes=tuple(kept),
        returns=(*returned.values(), *others),
    )
    wanted = dict.fromkeys(origin.get(r.value, r.value) for r in program.returns)
    return Opened(parted, tuple(opaque), tuple(w for w in wanted if w not in there))


def uncast(program: KernelGraph) -> Mapping[str, str]:
    """What each result of a cast is the cast of, in the end."""
    origin: dict[str, str] = {}
    for node in program.nodes:
        if isinstance(node, Apply) and "dtype" in node.op.attributes:
            source = node.values[0]
            origin[node.result] = origin.get(source, source)
    return origin


def _stored(kind: TensorType) -> TensorType:
    """The type of a tensor between kernels: one dim per axis."""
    return flat_type(kind.dtype, kind.dims, MemorySpace.DEVICE)


# -- From a DAG to a kernel graph ------------------------------------------------------


@dataclass
class _Use:
    """What a DAG uses of one kernel of one layer."""

    edges: list[int] = field(default_factory=list[int])
    saves: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Rebuilder:
    """Writes the DAGs of one layered graph.

    Attributes:
        program: The program without shifts.
        layered: The layered graph.
        kernels: Its kernels.
        calls: Its pre-defined kernels.
        formats: Of the stored tensors in the unfused program.
    """

    program: KernelGraph
    layered: LayeredGraph
    kernels: list[KernelChoice]
    calls: list[Apply]
    formats: Mapping[str, DType]

    def graph(self, dag: Dag) -> KernelGraph:
        """The kernel graph of a DAG."""
        written: list[KernelNode] = []
        there: set[str] = {i.name for i in self.program.given}
        for kind, number, use in self._uses(dag):
            if kind == LIBRARY:
                node: KernelNode | None = self.calls[number]
                made: AbstractSet[str] = {self.calls[number].result} - there
            else:
                node = self._block(self.kernels[number], use, there)
                made = set() if node is None else set(node.results)
            if node is not None and made:
                written.append(node)
                there |= made
        return self._finished(written)

    def structure(self, dag: Dag) -> Hashable:
        """What the graph of a DAG depends on: DAGs at several points have one graph."""
        found: list[Hashable] = []
        for kind, number, use in self._uses(dag):
            if kind == LIBRARY:
                found.append(self.calls[number].result)
                continue
            kernel = self.kernels[number]
            saves = tuple(kernel.saves[i][:2] for i in use.saves)
            found.append((id(kernel.closure), kernel.configuration, *use.edges, saves))
        return tuple(found)

    def _uses(self, dag: Dag) -> Iterator[tuple[int, int, _Use]]:
        """Kernels in launch order, library calls of a layer first."""
        u = self.layered
        found: dict[tuple[int, int, int], _Use] = {}
        for e in dag.enodes:
            kind, detail = int(u.kind[e]), int(u.detail[e])
            key = (int(u.layer[e]), -int(kind == LIBRARY), int(u.kernel[e]))
            if kind == LIBRARY:
                found[key] = _Use()
            elif kind == OPERATE:
                found.setdefault(key, _Use()).edges.append(detail)
            elif kind == SAVE:
                found.setdefault(key, _Use()).saves.append(detail)
        for (_, library, number), use in sorted(found.items(), key=lambda i: i[0]):
            yield LIBRARY if library else OPERATE, number, use

    def _block(
        self, kernel: KernelChoice, use: _Use, there: AbstractSet[str]
    ) -> BlockGraph | None:
        """The block of a kernel; None if all that it saves is there already."""
        closure, configuration = kernel.closure, kernel.configuration
        space = closure.space
        saves = [kernel.saves[i][:2] for i in use.saves]
        saves = [(name, node) for name, node in saves if name not in there]
        if not saves:
            return None
        edges = chosen_edges(closure.saturation, tuple(use.edges))
        edges = _needed(edges, [n for _, n in saves])
        stage = closure.saturation.stage
        if not any(e.kind == LOAD and stage[n] == BODY for n, e in edges.items()):
            configuration = replace(configuration, loop=None)
        by_name = {o.name: o for o in space.outputs}
        outputs: list[Output] = [by_name[name] for name, _ in saves]
        block = reconstruct(
            replace(space, outputs=tuple(outputs)),
            replace(closure.saturation, roots=tuple((n,) for _, n in saves)),
            configuration,
            edges,
        )
        assert block is not None
        return _joined(block, Joining(closure.cut))

    def _finished(self, written: list[KernelNode]) -> KernelGraph:
        """The graph of some kernels: views before them, types in agreement, casts."""
        origin = uncast(self.program)
        returns = with_returned(self.program, origin).returns
        graph = replace(self.program, nodes=(), returns=())
        for node in written:
            graph = self._with_views(graph, operands_of(node))
            if isinstance(node, BlockGraph):
                types = kernel_types(graph)
                node = insert_casts(_fitting(node, types), types, self.formats)
            graph = replace(graph, nodes=(*graph.nodes, node))
        graph = self._with_views(graph, [r.value for r in returns])
        return with_derived_extents(replace(graph, returns=returns))

    def _with_views(self, graph: KernelGraph, names: Iterable[str]) -> KernelGraph:
        """The graph with those of the program's views that are read, if not there."""
        origin = uncast(self.program)
        made = {n.result for n in graph.applies}
        needed, views = set(names), list[Apply]()
        for node in reversed(self.program.nodes):
            if not isinstance(node, Apply) or not node.is_view:
                continue
            if node.result in needed - made:
                seen = node.values[0]
                views.insert(0, replace(node, operands=(origin.get(seen, seen),)))
                needed.update(views[0].values)
        return replace(graph, nodes=(*graph.nodes, *views))


def _needed(edges: dict[int, Edge], roots: list[int]) -> dict[int, Edge]:
    """The edges below some nodes."""
    found: dict[int, Edge] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = edges[node]
            stack.extend(edges[node].operands)
    return found


def _joined(block: BlockGraph, joining: Joining) -> BlockGraph:
    """A block over halves as one over dims."""
    grid = tuple(replace(s, dim=joining.name(s.dim)) for s in block.grid)
    gridded = frozenset(s.dim for s in block.grid)
    loop = None if block.loop is None else Split(joining.name(block.loop.dim), 1)
    nodes: list[BlockNode] = []
    for node in block.nodes:
        if isinstance(node, Load | Store):
            nodes.append(replace(node, axes=joining.axes(node.axes)))
        elif isinstance(node, Apply) and node.over:
            over = joining.over(node.over, gridded)
            attrs = tuple((k, over if k == "over" else v) for k, v in node.attrs)
            nodes.append(replace(node, attrs=attrs))
        else:
            nodes.append(node)
    return BlockGraph(grid, loop, tuple(nodes))


def _fitting(block: BlockGraph, types: Mapping[str, TensorType]) -> BlockGraph:
    """The block with its loads' axes as those of the tensors that there are."""
    nodes: list[BlockNode] = []
    for node in block.nodes:
        if isinstance(node, Load):
            pieces = {d.name: d for d in dims_of(node.axes)}
            axes = tuple(_pieces(a, pieces) for a in types[node.source].axes)
            node = replace(node, axes=axes)
        nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def _pieces(axis: Axis, pieces: Mapping[str, Dim]) -> Axis:
    return tuple(pieces[d.name] for d in axis)
