"""Shifts that keep exponentials in range: taken out before the search, put back after.

Softmax is traced as `e = exp(x - rowshift(x))`, `e / sum(e)`.  The search works on the
program without shifts, where e is plainly `exp(x)`; the chosen μGraph then gets

    s = ...                        s = ...
    e = exp s                      t = rowshift(s, over k)
    a = accumulate(e ...)    ->    m = running_max t
                                   e = exp(s - m)
                                   a = accumulate(e ...) rescaled by m

and, where the parts of a split dim are combined by a later kernel, each part stores its
maximum and is weighted by exp(maximum - largest maximum) there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    KernelNode,
    Load,
    Operand,
    RunningMax,
    Store,
    dims_of,
    stages_of,
)
from mirage_dsl.ir.homogeneity import NotHomogeneousError, Scaling, scaling_of
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.unshifted import is_shifted, needs_no_shift
from mirage_dsl.ops.table import EXP, MUL, ROWSHIFT, SUB
from mirage_dsl.types import Axis, Dim, TensorType, f32


def strip_shifts(program: KernelGraph) -> KernelGraph:
    """The program in which `x - shift` is `x`, for all shifts that are only used so."""
    types = kernel_types(program)
    shifts = {
        node.result
        for node in program.nodes
        if isinstance(node, Apply) and node.op is ROWSHIFT
    }
    removable = {s for s in shifts if _only_subtracted(program, s, types)}
    return _without_shifts(program, removable)


def _only_subtracted(
    program: KernelGraph, shift: str, types: Mapping[str, TensorType]
) -> bool:
    if any(r.value == shift for r in program.returns):
        return False
    return all(
        isinstance(node, Apply) and _subtracts(node, shift, types)
        for node in program.nodes
        if shift in _operands(node)
    )


def _subtracts(node: Apply, shift: str, types: Mapping[str, TensorType]) -> bool:
    if node.op is not SUB or node.operands[1] != shift:
        return False
    value = node.operands[0]
    if not isinstance(value, str) or value == shift:
        return False
    return types[node.result].dims == types[value].dims


def _operands(node: KernelNode) -> tuple[str, ...]:
    return node.values if isinstance(node, Apply) else node.sources


def _without_shifts(program: KernelGraph, shifts: set[str]) -> KernelGraph:
    names: dict[str, str] = {}
    nodes: list[KernelNode] = []
    for node in program.nodes:
        if isinstance(node, Apply):
            moved = replace(node, operands=_renamed(node.operands, names))
            if node.op is SUB and node.operands[1] in shifts:
                kept = moved.operands[0]
                assert isinstance(kept, str)
                names[node.result] = kept
                continue
            nodes.append(moved)
        else:
            nodes.append(_with_sources(node, names))
    returns = tuple(
        replace(r, value=names.get(r.value, r.value)) for r in program.returns
    )
    live = _live(nodes, {r.value for r in returns})
    return replace(program, nodes=tuple(live), returns=returns)


def _renamed(
    operands: Iterable[Operand], names: Mapping[str, str]
) -> tuple[Operand, ...]:
    return tuple(names.get(o, o) if isinstance(o, str) else o for o in operands)


def _with_sources(block: BlockGraph, names: Mapping[str, str]) -> BlockGraph:
    nodes = tuple(
        replace(n, source=names.get(n.source, n.source)) if isinstance(n, Load) else n
        for n in block.nodes
    )
    return replace(block, nodes=nodes)


def _live(nodes: Sequence[KernelNode], wanted: set[str]) -> list[KernelNode]:
    kept: list[KernelNode] = []
    for node in reversed(nodes):
        results = (node.result,) if isinstance(node, Apply) else node.results
        if not wanted.isdisjoint(results):
            kept.append(node)
            wanted.update(_operands(node))
    return kept[::-1]


def stabilise(mugraph: KernelGraph) -> KernelGraph | None:
    """The μGraph with running maxima, or None where no exponential can have one.

    An exponential gets a shift if it is summed and every output is independent of its
    scale, as in softmax; others stay as they are.  So does one that is proven to be in
    range without a shift.
    """
    graph, stable = mugraph, False
    for number, node in enumerate(mugraph.nodes):
        if isinstance(node, Apply):
            continue
        for inner in node.nodes:
            if isinstance(inner, Apply) and inner.op is EXP:
                shifted = _shifted(graph, number, inner.result)
                graph, stable = shifted or graph, stable or shifted is not None
    for node in mugraph.nodes:
        if isinstance(node, Apply) and node.op is EXP:
            shifted = _shifted_kernel(graph, node)
            graph, stable = shifted or graph, stable or shifted is not None
    return graph if stable else None


def _shifted(graph: KernelGraph, number: int, result: str) -> KernelGraph | None:
    """The graph with an exponential in range, by a shift where it needs one."""
    block = graph.nodes[number]
    assert isinstance(block, BlockGraph)
    node = next(n for n in block.nodes if isinstance(n, Apply) and n.result == result)
    makers = {n.result: n for n in block.nodes if not isinstance(n, Store)}
    if not node.values or is_shifted(makers, node.values[0]):
        return None
    try:
        found = scaling_of(graph, number, result)
        if not found.summed and not found.accumulators:
            return None
        if needs_no_shift(graph, number, node, found) is not None:
            return graph
        shifted = _Shift(graph, number, node, found).run()
        check_or_raise(shifted)
    except (NotHomogeneousError, CheckError):
        return None
    return shifted


def _shifted_kernel(graph: KernelGraph, node: Apply) -> KernelGraph | None:
    """An exponential that is a kernel of its own, shifted by two kernels before it."""
    makers = {n.result: n for n in graph.nodes if isinstance(n, Apply)}
    if not node.values or is_shifted(makers, node.values[0]):
        return None
    number = graph.nodes.index(node)
    try:
        found = scaling_of(graph, number, node.result)
    except NotHomogeneousError:
        return None
    exponent, names = node.values[0], _names_of(graph)
    dims = kernel_types(graph)[exponent].names
    over = tuple(d for d in dims if d in found.summed)
    if not over:
        return None
    top, moved = names.fresh("top"), names.fresh("moved")
    made = (
        Apply(top, ROWSHIFT, (exponent,), (("over", over),)),
        Apply(moved, SUB, (exponent, top)),
        replace(node, operands=(moved,)),
    )
    nodes = (*graph.nodes[:number], *made, *graph.nodes[number + 1 :])
    return replace(graph, nodes=nodes)


@dataclass
class _Names:
    """Names that a graph does not use yet."""

    used: set[str]

    def fresh(self, base: str) -> str:
        name, count = base, 1
        while name in self.used:
            count += 1
            name = f"{base}{count}"
        self.used.add(name)
        return name


def _names_of(graph: KernelGraph) -> _Names:
    used = {i.name for i in graph.inputs}
    for node in graph.nodes:
        if isinstance(node, Apply):
            used.add(node.result)
        else:
            used.update(n.result for n in node.nodes)
    return _Names(used)


class _Shift:
    """One exponential of one block getting its shift."""

    def __init__(
        self, graph: KernelGraph, number: int, node: Apply, found: Scaling
    ) -> None:
        block = graph.nodes[number]
        assert isinstance(block, BlockGraph)
        self.graph, self.number, self.block = graph, number, block
        self.node, self.found = node, found
        self.names = _names_of(graph)
        self.exponent = node.values[0]
        self.types = block_types(block, kernel_types(graph))

    def run(self) -> KernelGraph:
        nodes = list(self.graph.nodes)
        block, largest = self._own_block()
        if len(self.found.combined) > 1:
            # Each would choose a largest maximum of its own.
            raise NotHomogeneousError
        if self.found.combined:
            block, stored, axes = self._storing(block, largest)
            for number in self.found.combined:
                combining = nodes[number]
                assert isinstance(combining, BlockGraph)
                nodes[number] = self._weighted(combining, stored, axes)
        nodes[self.number] = block
        return replace(self.graph, nodes=tuple(nodes))

    def _own_block(self) -> tuple[BlockGraph, str]:
        """The block with the shift, and the name of the shift."""
        nodes: list[BlockNode] = []
        shift = ""
        running = (
            bool(self.found.accumulators)
            and stages_of(self.block)[self.node.result] == "body"
        )
        for node in self.block.nodes:
            if isinstance(node, Apply) and node.result == self.node.result:
                made, shift = self._shift_nodes(running)
                nodes += made
            elif isinstance(node, Accumulate) and running:
                scaled = node.result in self.found.accumulators
                nodes.append(replace(node, rescale=shift) if scaled else node)
            else:
                nodes.append(node)
        return replace(self.block, nodes=tuple(nodes)), shift

    def _shift_nodes(self, running: bool) -> tuple[list[BlockNode], str]:
        dims = self.types[self.exponent].names
        over = tuple(d for d in dims if d in self.found.summed)
        nodes: list[BlockNode] = []
        shift = self.exponent
        if over:
            shift = self.names.fresh("top")
            nodes.append(Apply(shift, ROWSHIFT, (self.exponent,), (("over", over),)))
        if running:
            nodes.append(RunningMax(self.names.fresh("largest"), shift))
            shift = nodes[-1].result
        if shift == self.exponent:
            raise NotHomogeneousError
        moved = self.names.fresh("moved")
        nodes.append(Apply(moved, SUB, (self.exponent, shift)))
        nodes.append(replace(self.node, operands=(moved,)))
        return nodes, shift

    # -- Parts of a split dim -------------------------------------------------------

    def _storing(
        self, block: BlockGraph, shift: str
    ) -> tuple[BlockGraph, str, tuple[Axis, ...]]:
        """The block that also stores its shift, along the dims over parts."""
        added: list[BlockNode] = []
        operand = shift
        if any(isinstance(n, RunningMax) and n.result == shift for n in block.nodes):
            operand = self.names.fresh("last")
            added.append(Accumulate(operand, shift, "max"))
        elif stages_of(block)[shift] == "body":
            raise NotHomogeneousError
        own = self.types[self.exponent].dims
        kept = [d for d in own if d.name not in self.found.summed]
        kept += [Dim(name, grid=True) for name in sorted(self.found.partial)]
        if any(d.loop for d in kept):
            raise NotHomogeneousError
        axes = tuple((d,) for d in kept)
        stored = self.names.fresh("maxima")
        added.append(Store(stored, operand, axes, f32))
        return replace(block, nodes=(*block.nodes, *added)), stored, axes

    def _weighted(
        self, block: BlockGraph, stored: str, axes: tuple[Axis, ...]
    ) -> BlockGraph:
        """A later block, with every scaled part weighted by its maximum."""
        scaled = [n for n in block.loads if self.found.kernel_degrees.get(n.source)]
        if any(self.found.kernel_degrees[n.source] != 1 for n in scaled):
            raise NotHomogeneousError
        pieces = {d.name: d for n in scaled for d in dims_of(n.axes)}
        maxima = self.names.fresh("maxima")
        seen = tuple(tuple(pieces.get(d.name, d.whole) for d in a) for a in axes)
        top, moved, weight = (self.names.fresh(n) for n in ("top", "moved", "weight"))
        over = tuple(sorted(self.found.partial))
        nodes: list[BlockNode] = [
            Load(maxima, stored, seen),
            Apply(top, ROWSHIFT, (maxima,), (("over", over),)),
            Apply(moved, SUB, (maxima, top)),
            Apply(weight, EXP, (moved,)),
        ]
        names: dict[str, str] = {}
        for node in scaled:
            names[node.result] = self.names.fresh(f"{node.result}_weighted")
        for node in block.nodes:
            nodes.append(_with_operands(node, names))
            if node in scaled:
                assert isinstance(node, Load)
                weighted = names[node.result]
                nodes.append(Apply(weighted, MUL, (node.result, weight)))
        return replace(block, nodes=tuple(nodes))


def _with_operands(node: BlockNode, names: Mapping[str, str]) -> BlockNode:
    match node:
        case Load():
            return node
        case Apply():
            return replace(node, operands=_renamed(node.operands, names))
        case Accumulate() | RunningMax() | Store():
            return replace(node, operand=names.get(node.operand, node.operand))
