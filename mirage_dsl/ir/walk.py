"""The walk: what nodes read and make, and graphs with other nodes in their places.

A *level* is a kernel graph or one of its block graphs.  The nodes of each read and make
values of their own level: a load makes a value of its block and reads none of it, its
source is the kernel graph's; so it is with the result of a store.

A rewrite is written with these: it looks at `makers` and `users`, gives other nodes for
some (`map_nodes`, `with_operands`), and drops what nothing needs any more (`live`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, overload

from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir

Node = ir.BlockNode | ir.BlockGraph
"""A node of any level."""

N = TypeVar("N", bound=Node)

# -- What is read and made -------------------------------------------------------------


def operands_of(node: Node) -> tuple[str, ...]:
    """The values of its own level that a node reads, in order, as often as it does."""
    match node:
        case ir.Load():
            return ()
        case ir.Apply():
            return node.values
        case ir.Accumulate():
            return (node.operand, *((node.rescale,) if node.rescale else ()))
        case ir.RunningMax() | ir.Store():
            return (node.operand,)
        case ir.BlockGraph():
            return node.sources


def results_of(node: Node) -> tuple[str, ...]:
    """What a node makes: of a block graph, the tensors that it stores."""
    return node.results if isinstance(node, ir.BlockGraph) else (node.result,)


def values_of(graph: ir.KernelGraph) -> set[str]:
    """The names of all values of a kernel graph, without those inside of its blocks."""
    made = (name for node in graph.nodes for name in results_of(node))
    return {item.name for item in graph.given}.union(made)


def read_last(nodes: Sequence[Node], kept: Iterable[str]) -> list[set[str]]:
    """For each node, the values of its level that it reads and none behind it does.

    Args:
        nodes: In order.
        kept: Values that are wanted in the end.
    """
    seen = set(kept)
    found: list[set[str]] = []
    for node in reversed(nodes):
        found.append({*operands_of(node)} - seen)
        seen |= found[-1]
    return found[::-1]


def read_by(nodes: Iterable[Node]) -> set[str]:
    """The values of their level that any of the nodes reads."""
    return {value for node in nodes for value in operands_of(node)}


@overload
def makers(level: ir.KernelGraph) -> dict[str, ir.Apply]: ...
@overload
def makers(level: ir.BlockGraph) -> dict[str, ir.ValueNode]: ...
def makers(level: ir.KernelGraph | ir.BlockGraph) -> Mapping[str, ir.ValueNode]:
    """What makes each value: of a kernel graph its operators, of a block all nodes.

    Inputs and what block graphs store are not there.
    """
    nodes = level.applies if isinstance(level, ir.KernelGraph) else level.made
    return {node.result: node for node in nodes}


def users(nodes: Iterable[N]) -> dict[str, list[N]]:
    """The nodes that read each value, each node once, of all values made or read."""
    found: dict[str, list[N]] = {}
    for node in nodes:
        for value in dict.fromkeys(operands_of(node)):
            found.setdefault(value, []).append(node)
        for value in results_of(node):
            found.setdefault(value, [])
    return found


def applications(graph: ir.KernelGraph) -> Iterator[ir.Apply]:
    """The operators of both levels."""
    for node in graph.nodes:
        yield from (node,) if isinstance(node, ir.Apply) else node.applies


def looked_at(program: ir.KernelGraph) -> set[str]:
    """What is given to a program, and views of it, which cost nothing."""
    there = {i.name for i in program.given}
    for node in program.applies:
        if node.is_view and there.issuperset(node.values):
            there.add(node.result)
    return there


def depending(nodes: Iterable[Node], on: Iterable[str]) -> set[str]:
    """The values `on`, and all that nodes of their level make of them."""
    found = set(on)
    for node in nodes:
        if not found.isdisjoint(operands_of(node)):
            found.update(results_of(node))
    return found


# -- What is needed --------------------------------------------------------------------


def live(nodes: Iterable[N], wanted: Iterable[str]) -> list[N]:
    """The nodes on which values depend, in their order.

    Of a block graph, what its stores of such values need; it has no loop if no load
    that is left is looped.

    Args:
        nodes: Of one level, stores not among them: those write to another one.
        wanted: Names of values.
    """
    needed = set(wanted)
    kept: list[N] = []
    for node in reversed(list(nodes)):
        made = needed.intersection(results_of(node))
        if made:
            part = _live_block(node, made) if isinstance(node, ir.BlockGraph) else node
            needed.update(operands_of(part))
            kept.append(part)
    return kept[::-1]


def repeats(graph: ir.KernelGraph) -> dict[str, str]:
    """By value that a kernel graph computes twice, the one that is computed first."""
    names: dict[str, str] = {}
    known: dict[ir.Apply, str] = {}
    for node in graph.applies:
        own = replace(with_operands(node, names), result="")
        name = known.setdefault(own, node.result)
        if name != node.result:
            names[node.result] = name
    return names


def without_dead(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The graph without what no returned value needs."""
    return replace(
        graph, nodes=tuple(live(graph.nodes, (r.value for r in graph.returns)))
    )


def _live_block(block: ir.BlockGraph, wanted: set[str]) -> ir.BlockGraph:
    read = read_by(s for s in block.stores if s.result in wanted)
    needed = {n.result for n in live(block.made, read)}
    nodes = tuple(
        n
        for n in block.nodes
        if n.result in (wanted if isinstance(n, ir.Store) else needed)
    )
    loads = (n for n in nodes if isinstance(n, ir.Load))
    looped = any(d.loop for load in loads for axis in load.axes for d in axis)
    return replace(block, nodes=nodes, loop=block.loop if looped else None)


def post_order(made: Mapping[str, N], wanted: Iterable[str]) -> list[N]:
    """The nodes on which values depend, depth first, each after what it reads.

    Args:
        made: What makes each value; a value that is not there is just read.
        wanted: The values, in the order in which their nodes are to come.
    """
    order: list[N] = []
    done: set[int] = set()
    pending = [(value, False) for value in reversed(list(wanted))]
    while pending:
        value, finished = pending.pop()
        node = made.get(value)
        if node is None or id(node) in done:
            continue
        if finished:
            done.add(id(node))
            order.append(node)
            continue
        pending.append((value, True))
        pending += [(v, False) for v in reversed(operands_of(node))]
    return order


# -- Other nodes -----------------------------------------------------------------------


def renamed(
    operands: Iterable[ir.Operand], names: Mapping[str, str]
) -> tuple[ir.Operand, ...]:
    """Operands under new names; what is not listed stays."""
    return tuple(names.get(o, o) if isinstance(o, str) else o for o in operands)


def with_operands(node: N, names: Mapping[str, str]) -> N:
    """The node that reads values of other names; those not listed stay."""
    match node:
        case ir.Load():
            return node
        case ir.Apply():
            return replace(node, operands=renamed(node.operands, names))
        case ir.Accumulate():
            rescale = node.rescale and names.get(node.rescale, node.rescale)
            operand = names.get(node.operand, node.operand)
            return replace(node, operand=operand, rescale=rescale)
        case ir.RunningMax() | ir.Store():
            return replace(node, operand=names.get(node.operand, node.operand))
        case ir.BlockGraph():
            return replace(node, nodes=tuple(_reading(n, names) for n in node.nodes))


def _reading(node: ir.BlockNode, names: Mapping[str, str]) -> ir.BlockNode:
    """A load with its source renamed; other nodes as they are."""
    if not isinstance(node, ir.Load):
        return node
    return replace(node, source=names.get(node.source, node.source))


@overload
def map_nodes(
    level: ir.KernelGraph,
    change: Callable[[ir.KernelNode], ir.KernelNode | Iterable[ir.KernelNode]],
) -> ir.KernelGraph: ...
@overload
def map_nodes(
    level: ir.BlockGraph,
    change: Callable[[ir.BlockNode], ir.BlockNode | Iterable[ir.BlockNode]],
) -> ir.BlockGraph: ...
def map_nodes(
    level: ir.KernelGraph | ir.BlockGraph, change: Callable[..., Node | Iterable[Node]]
) -> ir.KernelGraph | ir.BlockGraph:
    """The level with what `change` gives in the place of each node: one, or several."""
    nodes: list[Node] = []
    for node in level.nodes:
        look()
        made = change(node)
        nodes += [made] if isinstance(made, Node) else made
    return replace(level, nodes=tuple(nodes))


def map_axes(
    block: ir.BlockGraph, change: Callable[[ir.Load | ir.Store], tuple[Axis, ...]]
) -> ir.BlockGraph:
    """The block with other axes in its loads and stores."""

    def changed(node: ir.BlockNode) -> ir.BlockNode:
        # Written out, for a search does this for every grid of every structure.
        match node:
            case ir.Load():
                return ir.Load(node.result, node.source, change(node), node.location)
            case ir.Store():
                axes = change(node)
                return ir.Store(
                    node.result, node.operand, axes, node.dtype, node.location
                )
            case _:
                return node

    return replace(block, nodes=tuple(map(changed, block.nodes)))


def each_dim(axes: Iterable[Axis], change: Callable[[Dim], Dim]) -> tuple[Axis, ...]:
    """Axes with other dims in the places of their own."""
    return tuple(tuple(map(change, axis)) for axis in axes)


def map_blocks(
    graph: ir.KernelGraph, change: Callable[[ir.BlockGraph], ir.BlockGraph]
) -> ir.KernelGraph:
    """The graph with other block graphs in the places of its own."""
    return map_nodes(graph, lambda n: change(n) if isinstance(n, ir.BlockGraph) else n)


def bypassed(block: ir.BlockGraph, which: Callable[[ir.Apply], bool]) -> ir.BlockGraph:
    """The block without some operators: what reads them reads their first values."""
    names: dict[str, str] = {}
    kept: list[ir.BlockNode] = []
    for node in block.nodes:
        if isinstance(node, ir.Apply) and which(node):
            operand = node.values[0]
            names[node.result] = names.get(operand, operand)
        else:
            kept.append(with_operands(node, names))
    return replace(block, nodes=tuple(kept))


def with_returned(graph: ir.KernelGraph, names: Mapping[str, str]) -> ir.KernelGraph:
    """The graph that returns values of other names; those not listed stay."""
    returns = tuple(
        replace(r, value=names.get(r.value, r.value)) for r in graph.returns
    )
    return replace(graph, returns=returns)


def seen_in(graph: ir.KernelGraph, value: str) -> str:
    """The value that a view may lie in, which is no view; others are themselves."""
    made = makers(graph)
    while value in made and made[value].is_view:
        (value,) = made[value].values
    return value
