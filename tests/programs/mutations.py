"""Small mistakes in graphs, for tests that wrong graphs are told from right ones.

A mutation changes one node of a program or of a block graph, in a way that a slip of a
programmer or of a rewrite rule might.  Only well-formed graphs come out.  Some of them
still compute the same function (a dropped factor that was 1): the caller has to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import Scalar, TensorType
from mirage_dsl.ir.check import check
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
    stages_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ops.definition import Formats, Kind, Operator
from mirage_dsl.ops.table import OPERATORS

# -- Mistakes about loops --------------------------------------------------------------

Nodes = tuple[BlockNode, ...]


def loop_mistakes(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """What was changed, and the block's nodes, for mistakes of several nodes."""
    yield from _moved_into_loop(block)
    yield from _rescaled_by_others(block)
    yield from _maxima_of_a_tile(block)


def _moved_into_loop(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """f(sum of a, b) computed as the sum of f(a, b): norms, gates, biases, quotients.

    Where `f` is linear in the accumulated operands this is right, elsewhere wrong.
    """
    sums = {
        n.result: n
        for n in block.nodes
        if isinstance(n, Accumulate) and n.kind == "sum"
    }
    stages = stages_of(block)
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Apply) or node.op.kind is Kind.VIEW:
            continue
        summed = [v for v in node.values if v in sums]
        rest = [v for v in node.values if v not in sums]
        if not summed or any(stages[v] != "before" for v in rest):
            continue
        tile = f"{node.result}_tile"
        inner = replace(node, result=tile, operands=_inside(node, sums))
        rescale = sums[summed[0]].rescale
        outer = Accumulate(node.result, tile, rescale=rescale)
        nodes = (*block.nodes[:i], inner, outer, *block.nodes[i + 1 :])
        yield f"{node.op.name} of {node.result} in every iteration", _alive(nodes)


def _inside(node: Apply, sums: dict[str, Accumulate]) -> tuple[Operand, ...]:
    return tuple(
        sums[o].operand if isinstance(o, str) and o in sums else o
        for o in node.operands
    )


def _rescaled_by_others(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """A rescaling where there is none, by each running maximum."""
    maxima = [n.result for n in block.nodes if isinstance(n, RunningMax)]
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Accumulate) or node.kind != "sum":
            continue
        for largest in maxima:
            if largest != node.rescale:
                changed = replace(node, rescale=largest)
                nodes = (*block.nodes[:i], changed, *block.nodes[i + 1 :])
                yield f"{node.result} rescaled by {largest}", nodes


def _maxima_of_a_tile(block: BlockGraph) -> Iterator[tuple[str, Nodes]]:
    """Exponents shifted by the maximum of their own tile, not of all so far."""
    running = {n.result: n.operand for n in block.nodes if isinstance(n, RunningMax)}
    for i, node in enumerate(block.nodes):
        if not isinstance(node, Apply):
            continue
        for at, operand in enumerate(node.operands):
            if isinstance(operand, str) and operand in running:
                kept = running[operand]
                operands = (*node.operands[:at], kept, *node.operands[at + 1 :])
                changed = replace(node, operands=operands)
                nodes = (*block.nodes[:i], changed, *block.nodes[i + 1 :])
                yield f"{kept} for {operand} in {node.result}", nodes


def _alive(nodes: Nodes) -> Nodes:
    """The nodes that stores depend on."""
    used: set[str] = set()
    kept: list[BlockNode] = []
    for node in reversed(nodes):
        if isinstance(node, Store) or node.result in used:
            kept.append(node)
            used.update(_operands(node))
    return tuple(reversed(kept))


def _operands(node: BlockNode) -> tuple[str, ...]:
    match node:
        case Load():
            return ()
        case Apply():
            return node.values
        case Accumulate():
            return (node.operand, *([node.rescale] if node.rescale else []))
        case RunningMax() | Store():
            return (node.operand,)


# -- All mistakes ----------------------------------------------------------------------


@dataclass(frozen=True)
class Mutation:
    """A changed graph, and what was changed."""

    what: str
    graph: KernelGraph


@dataclass(frozen=True)
class _Scope:
    """The values among which a node's operands may be exchanged."""

    types: dict[str, TensorType]
    stages: dict[str, str]

    def alike(self, value: str, before: Sequence[str]) -> list[str]:
        """Other values of the same dims and stage, of those made before a node."""
        own = set(self.types[value].dims)
        return [
            other
            for other in before
            if other != value
            and set(self.types[other].dims) == own
            and self.types[other].dtype == self.types[value].dtype
            and self.stages.get(other) == self.stages.get(value)
        ]


Change = tuple[str, "list[BlockNode]"]
"""What was changed, and the nodes in place of the old one."""


def mutations(graph: KernelGraph) -> Iterator[Mutation]:
    """All single mutations of a graph that are well formed."""
    for what, changed in _all_changes(graph):
        if changed != graph and _well_formed(changed):
            yield Mutation(what, changed)


def _well_formed(graph: KernelGraph) -> bool:
    try:
        return not check(graph)
    except MirageError:
        return False


def _all_changes(graph: KernelGraph) -> Iterator[tuple[str, KernelGraph]]:
    types = kernel_types(graph)
    for i, node in enumerate(graph.nodes):
        if isinstance(node, BlockGraph):
            for what, block in _block_changes(node, types):
                yield f"kernel {i}: {what}", _with_node(graph, i, [block])
            continue
        made = [*(x.name for x in graph.inputs), *_results(graph.nodes[:i])]
        for what, nodes in _apply_changes(node, _Scope(types, {}), made):
            new = [n for n in nodes if isinstance(n, Apply)]
            yield f"kernel {i}: {what}", _with_node(graph, i, new)
    yield from _return_changes(graph, types)


def _results(nodes: Sequence[KernelNode]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Apply):
            yield node.result
        else:
            yield from node.results


def _with_node(
    graph: KernelGraph, index: int, nodes: Sequence[KernelNode]
) -> KernelGraph:
    changed = (*graph.nodes[:index], *nodes, *graph.nodes[index + 1 :])
    return replace(graph, nodes=changed)


def _return_changes(
    graph: KernelGraph, types: dict[str, TensorType]
) -> Iterator[tuple[str, KernelGraph]]:
    for i, item in enumerate(graph.returns):
        for other, found in types.items():
            same = set(found.dims) == set(types[item.value].dims)
            if other != item.value and same and found.dtype == item.type.dtype:
                returns = list(graph.returns)
                returns[i] = replace(item, value=other)
                yield f"return {other}", replace(graph, returns=tuple(returns))


def _block_changes(
    block: BlockGraph, outer: dict[str, TensorType]
) -> Iterator[tuple[str, BlockGraph]]:
    types = block_types(block, outer)
    scope = _Scope(types, dict(stages_of(block)))
    made: list[str] = []
    for i, node in enumerate(block.nodes):
        for what, nodes in _node_changes(node, scope, made, outer):
            changed = (*block.nodes[:i], *nodes, *block.nodes[i + 1 :])
            yield what, replace(block, nodes=changed)
        if not isinstance(node, Store):
            made.append(node.result)
    for what, nodes in loop_mistakes(block):
        yield what, replace(block, nodes=nodes)


def _node_changes(
    node: BlockNode, scope: _Scope, made: list[str], outer: dict[str, TensorType]
) -> Iterator[Change]:
    match node:
        case Load():
            for name, other in outer.items():
                if name != node.source and other == outer[node.source]:
                    yield f"load {name} for {node.source}", [replace(node, source=name)]
        case Apply():
            yield from _apply_changes(node, scope, made)
        case Accumulate():
            yield from _accumulate_changes(node, scope, made)
        case RunningMax() | Store():
            for other in scope.alike(node.operand, made):
                yield (
                    f"{other} for {node.operand} in {node.result}",
                    [replace(node, operand=other)],
                )


def _accumulate_changes(
    node: Accumulate, scope: _Scope, made: list[str]
) -> Iterator[Change]:
    for other in scope.alike(node.operand, made):
        yield f"accumulate {other}", [replace(node, operand=other)]
        if node.kind == "sum":
            changed = replace(node, rescale=other)
            yield f"{node.result} rescaled by {other}", [changed]
    if node.kind == "sum":
        maximum = replace(node, kind="max", rescale=None)
        yield f"maximum for the sum {node.result}", [maximum]
    if node.rescale is not None:
        yield f"no rescaling of {node.result}", [replace(node, rescale=None)]


def _apply_changes(node: Apply, scope: _Scope, made: list[str]) -> Iterator[Change]:
    yield from _wiring(node, scope, made)
    yield from _other_operators(node)
    yield from _other_constants(node)
    yield from _other_dims(node, scope)
    if node.op.kind is Kind.ELEMENTWISE:
        yield from _dropped(node, scope)
        yield from _negated(node)


def _wiring(node: Apply, scope: _Scope, made: list[str]) -> Iterator[Change]:
    if len(node.operands) == 2 and not node.op.commutative:
        swapped = replace(node, operands=node.operands[::-1])
        yield f"operands of {node.result} swapped", [swapped]
    for i, operand in enumerate(node.operands):
        if not isinstance(operand, str):
            continue
        for other in scope.alike(operand, made):
            new = _with_operand(node, i, other)
            yield f"{other} for {operand} in {node.result}", [new]


def _with_operand(node: Apply, index: int, operand: Operand) -> Apply:
    operands = (*node.operands[:index], operand, *node.operands[index + 1 :])
    return replace(node, operands=operands)


def _other_operators(node: Apply) -> Iterator[Change]:
    """Every other row of the same form, but for views."""
    if node.op.kind is Kind.VIEW:
        return
    for op in OPERATORS.values():
        if op is not node.op and _same_form(op, node.op):
            changed = replace(node, op=op)
            yield f"{op.name} for {node.op.name} in {node.result}", [changed]


def _same_form(a: Operator, b: Operator) -> bool:
    forms = [
        (o.kind, o.arity, o.attributes, o.formats is Formats.INTEGERS, o.gives)
        for o in (a, b)
    ]
    return forms[0] == forms[1]


_CONSTANTS: tuple[tuple[str, Callable[[Scalar], Scalar]], ...] = (
    ("doubled", lambda c: c.times(Scalar(Fraction(2)))),
    ("negated", lambda c: c.times(Scalar(Fraction(-1)))),
    ("without extents", lambda c: Scalar(c.value)),
    ("left out", lambda c: c.times(Scalar(Fraction(0)))),
    ("squared", lambda c: c.times(c)),
    ("off by one", lambda c: Scalar(c.value + 1, c.extents)),
)


def _other_constants(node: Apply) -> Iterator[Change]:
    for i, operand in enumerate(node.operands):
        if isinstance(operand, str) or not math.isfinite(operand.value):
            continue
        for what, change in _CONSTANTS:
            if what == "without extents" and not operand.extents:
                continue
            changed = _with_operand(node, i, change(operand))
            yield f"constant of {node.result} {what}", [changed]


def _other_dims(node: Apply, scope: _Scope) -> Iterator[Change]:
    """Another dim summed over, one fewer, or one more."""
    over = node.over
    if not over:
        return
    names = [n for v in node.values for n in scope.types[v].names]
    others = [n for n in dict.fromkeys(names) if n not in over]
    choices = [(*over[:i], *over[i + 1 :]) for i in range(len(over))]
    choices += [(*less, n) for less in choices for n in others]
    choices += [(*over, n) for n in others]
    attrs = {k: v for k, v in node.attrs if k != "over"}
    for choice in choices:
        if choice:
            changed = tuple(sorted({**attrs, "over": choice}.items()))
            what = f"{node.result} over {', '.join(choice)}"
            yield what, [replace(node, attrs=changed)]


def _dropped(node: Apply, scope: _Scope) -> Iterator[Change]:
    """The operator left out: its first operand times one instead."""
    for operand in node.values:
        if scope.types[operand].dims == scope.types[node.result].dims:
            one = Scalar(Fraction(1))
            kept = Apply(node.result, OPERATORS["mul"], (operand, one))
            yield f"{operand} in place of {node.op.name} in {node.result}", [kept]


def _negated(node: Apply) -> Iterator[Change]:
    for i, operand in enumerate(node.operands):
        if isinstance(operand, str):
            name = f"{node.result}_negated"
            minus = Apply(name, OPERATORS["neg"], (operand,))
            changed = _with_operand(node, i, name)
            yield f"-{operand} in {node.result}", [minus, changed]
