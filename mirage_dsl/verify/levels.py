"""What a graph asks of a chain of fields, found without numbers.

The field semantics of the operators run over an algebra of depths: how many
exponentials lie on the deepest path to a value, how many lie between a square root
and it, and whether choices (maxima, conditions) were made on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Scalar
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    RunningMax,
    Store,
)
from mirage_dsl.ops.definition import Axes
from mirage_dsl.ops.table import ROWSHIFT


@dataclass(frozen=True)
class Depth:
    """What was found on the paths to a value.

    Attributes:
        exps: Exponentials on the deepest path since the last random function.
        roots: Numbers of exponentials between a square root and the value.
        choices: Whether a choice has two outcomes, so that trials must meet both.
    """

    exps: int = 0
    roots: frozenset[int] = frozenset()
    choices: bool = False

    def joined(self, *others: Depth) -> Depth:
        """What lies on the paths to any of the values."""
        both = (self, *others)
        return Depth(
            max(d.exps for d in both),
            frozenset[int]().union(*(d.roots for d in both)),
            any(d.choices for d in both),
        )


class DepthAlgebra:
    """`FieldAlgebra` over depths."""

    def constant(self, value: Scalar) -> Depth:  # noqa: ARG002
        return Depth()

    def _join(self, a: Depth, b: Depth) -> Depth:
        return a.joined(b)

    add = sub = mul = div = matmul = _join

    def exp(self, a: Depth) -> Depth:
        return Depth(a.exps + 1, frozenset(r + 1 for r in a.roots), a.choices)

    def sqrt(self, a: Depth) -> Depth:
        return Depth(a.exps, a.roots | {0}, a.choices)

    def maximum(self, a: Depth, b: Depth) -> Depth:
        return _chosen(a, b)

    def sum(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return a

    def max(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return _chosen(a)

    def fold(
        self,
        join: Callable[[Depth, Depth], Depth],
        a: Depth,
        axes: Axes,  # noqa: ARG002
    ) -> Depth:
        """Of any number of elements, unless each one nests exponentials deeper."""
        pair = join(a, a)
        if join(pair, pair) != pair:
            raise UnsupportedError(
                "a reduction joins its elements by exponentials of exponentials, as "
                "deep as it has elements; no chain of fields is that long"
            )
        return pair

    def scan(self, join: Callable[[Depth, Depth], Depth], a: Depth, axis: int) -> Depth:
        """As of a fold over the axis."""
        return self.fold(join, a, (axis,))

    def shift(self, a: Depth, axes: Axes) -> Depth:  # noqa: ARG002
        return Depth()

    def concat(self, axis: int, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth().joined(*operands)

    def oracle(self, name: str, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth(0, _rooted(*operands), any(d.choices for d in operands))

    def indicator(self, name: str, *operands: Depth) -> Depth:  # noqa: ARG002
        return Depth(0, _rooted(*operands), True)

    def choose(self, condition: Depth, a: Depth, b: Depth) -> Depth:
        chosen = _chosen(a, b)
        return Depth(chosen.exps, chosen.roots | _rooted(condition), True)


def _rooted(*operands: Depth) -> frozenset[int]:
    # A random function needs only the top component, where a root is 0 links away.
    return frozenset({0}) if any(d.roots for d in operands) else frozenset()


def _chosen(*operands: Depth) -> Depth:
    joined = Depth().joined(*operands)
    return Depth(joined.exps, joined.roots, True)


def graph_depth(graph: KernelGraph) -> Depth:
    """What evaluating a graph asks for.

    The chain must serve every value: a random function starts anew with its result,
    but first reads an operand that may lie deep.
    """
    values = {i.name: Depth() for i in graph.given}
    deepest = 0
    for node in graph.nodes:
        match node:
            case Apply():
                values[node.result] = _apply(node, values)
                deepest = max(deepest, values[node.result].exps)
            case BlockGraph():
                inside, stored = _block(node, values)
                values.update(stored)
                deepest = max(deepest, *(d.exps for d in inside.values()))
    outputs = Depth().joined(*(values[r.value] for r in graph.returns))
    return replace(outputs, exps=deepest)


def _apply(node: Apply, values: Mapping[str, Depth]) -> Depth:
    algebra = DepthAlgebra()
    operands = [
        values[o] if isinstance(o, str) else algebra.constant(o) for o in node.operands
    ]
    return node.op.without_axes(algebra, *operands)


def _block(
    block: BlockGraph, outer: Mapping[str, Depth]
) -> tuple[dict[str, Depth], dict[str, Depth]]:
    """Depths of the values inside of a block, and of those that it stores."""
    values: dict[str, Depth] = {}
    stored: dict[str, Depth] = {}
    running: set[str] = set()
    for node in block.nodes:
        match node:
            case Load():
                values[node.result] = outer[node.source]
            case Apply():
                values[node.result] = _apply(node, values)
            case Accumulate():
                of_running = (
                    node.operand in running and node.reduction is ROWSHIFT.shift_of
                )
                kept = values[node.operand]
                values[node.result] = kept if of_running else _accumulated(node, values)
            case RunningMax():
                values[node.result] = Depth()
                running.add(node.result)
            case Store():
                stored[node.result] = values[node.operand]
    return values, stored


def _accumulated(node: Accumulate, values: Mapping[str, Depth]) -> Depth:
    value = values[node.operand]
    if node.reduction is None:
        return value
    if node.rescale is None:
        return node.reduction.reduced(DepthAlgebra(), value, ())
    return value.joined(DepthAlgebra().exp(values[node.rescale]))
