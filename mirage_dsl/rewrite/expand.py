"""Normalisation of programs before the search: fewer operators, one form of each.

    square x           ->  x * x                 derived rows by their expansions
    (x * 2) * 3        ->  x * 6                 constants folded
    x / 8              ->  x * 0.125
    x * 1, x + 0       ->  x
    rename index m->n  ->  index n               if n has an extent without it
    equal nodes        ->  one node
    dead nodes         ->  gone

The result computes the same function; its nodes keep their order and their names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import Dim, Scalar, scalar
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import numbered_name
from mirage_dsl.ir.walk import (
    map_nodes,
    renamed,
    values_of,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator

_ONE, _ZERO = scalar(1), scalar(0)


def expand(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The same function with derived rows expanded and equal nodes merged.

    Operators inside of block graphs are expanded too; the blocks stay.
    """
    rewriter = _Rewriter(values_of(graph), reorder=not graph.blocks, identities=True)
    counted = _Counted(graph)

    def expanded(node: ir.KernelNode) -> Iterable[ir.KernelNode]:
        if isinstance(node, ir.Apply):
            if index := counted.shown_by(with_operands(node, rewriter.alias)):
                rewriter.alias[node.result] = index
                return []
            return rewriter.apply(node)
        return [_expand_block(with_operands(node, rewriter.alias))]

    made = replace(map_nodes(graph, expanded), indices=tuple(counted.by_name.values()))
    return without_dead(with_returned(made, rewriter.alias))


class _Counted:
    """The index values of a graph, and those that renamed ones are.

    Blocks count an index; a view of one they would load from memory.
    """

    def __init__(self, graph: ir.KernelGraph) -> None:
        axes = {axis for item in graph.inputs for axis in item.type.axes}
        self._told = {n for n, extent in graph.extents if extent is not None}
        self._told |= {axis[0].name for axis in axes if len(axis) == 1}
        self.by_name = {item.name: item for item in graph.indices}
        self._names = {item.axis: item.name for item in graph.indices}

    def shown_by(self, node: ir.Apply) -> str | None:
        """The index value that a renamed one is, under the name of the renaming.

        None for other operators, and where nothing but the renaming tells an extent.
        """
        if node.op is not table.RENAME or node.values[0] not in self.by_name:
            return None
        index = self.by_name[node.values[0]]
        old, new = node.dims("dims"), node.dims("to")
        to = dict(zip(old, new, strict=True))
        axis = tuple(Dim(to.get(d.name, d.name)) for d in index.axis)
        if axis not in self._names:
            if not self._told.issuperset(d.name for d in axis):
                return None
            self._names[axis] = node.result
            self.by_name[node.result] = ir.Index(node.result, axis, node.location)
        return self._names[axis]


@dataclass
class _Rewriter:
    """Rewrites a sequence of nodes; `alias` maps values that vanished.

    Attributes:
        taken: Names in use.
        reorder: Whether nodes with swapped operands may merge.  Their results have
            the same dims in another order, which shows in the loads of a block.
        identities: Whether x * 1 may become x: not in a block, where the product is
            f32 whatever x is.
        seen: The value of each key that `once` was asked for.
        keys: The keys of each such value.
    """

    taken: set[str]
    reorder: bool
    identities: bool
    alias: dict[str, str] = field(default_factory=dict[str, str])
    scaled: dict[str, tuple[str, Scalar]] = field(
        default_factory=dict[str, tuple[str, Scalar]]
    )
    seen: dict[object, str] = field(default_factory=dict[object, str])
    keys: dict[str, list[object]] = field(default_factory=dict[str, list[object]])

    def apply(self, node: ir.Apply) -> list[ir.Apply]:
        """The nodes that replace `node`; none if an equal value exists."""
        writer = _Writer(self, node)
        operands = renamed(node.operands, self.alias)
        result = writer.operator(node.op, operands, node.attrs)
        assert isinstance(result, str), node
        return self._named(writer.nodes, result, node.result)

    def _named(self, nodes: list[ir.Apply], result: str, wanted: str) -> list[ir.Apply]:
        """Give the last node the name of the node that it replaces."""
        if nodes and nodes[-1].result == result:
            nodes[-1] = replace(nodes[-1], result=wanted)
            self.keys[wanted] = self.keys.pop(result, [])
            self.seen.update(dict.fromkeys(self.keys[wanted], wanted))
            if result in self.scaled:
                self.scaled[wanted] = self.scaled.pop(result)
            self.taken.discard(result)
        else:
            self.alias[wanted] = result
        return nodes

    def fresh(self, base: str) -> str:
        return numbered_name(base, self.taken)

    def once(self, key: object, result: str) -> str | None:
        """The value with this key, if there is one; else `result` becomes it."""
        found = self.seen.get(key)
        if found is None:
            self.seen[key] = result
            self.keys.setdefault(result, []).append(key)
        return None if found == result else found


class _Writer:
    """Writes the nodes that replace one node: an `Algebra` over operands."""

    def __init__(self, rewriter: _Rewriter, node: ir.Apply) -> None:
        self.rewriter = rewriter
        self.base = node.result
        self.location: SourceLocation | None = node.location
        self.nodes: list[ir.Apply] = []

    def operator(
        self, op: Operator, operands: tuple[ir.Operand, ...], attrs: ir.Attrs
    ) -> ir.Operand:
        if op.expansion is not None:
            result: ir.Operand = op.expansion(self, *operands)
            return result
        if op is table.MUL:
            return self.mul(*operands)
        if op is table.DIV:
            return self.div(*operands)
        if op is table.ADD:
            return self.add(*operands)
        if op is table.SUB:
            return self.sub(*operands)
        return self.node(op, operands, attrs)

    def node(
        self, op: Operator, operands: tuple[ir.Operand, ...], attrs: ir.Attrs = ()
    ) -> str:
        shown = operands
        if op.commutative and self.rewriter.reorder:
            shown = tuple(
                sorted(operands, key=lambda o: (isinstance(o, Scalar), str(o)))
            )
        result = self.rewriter.fresh(self.base)
        equal = self.rewriter.once((op.name, shown, attrs), result)
        if equal is not None:
            self.rewriter.taken.discard(result)
            return equal
        self.nodes.append(ir.Apply(result, op, operands, attrs, self.location))
        return result

    # -- The algebra in which expansions are written ---------------------------------

    def constant(self, value: Scalar) -> ir.Operand:
        return value

    def add(self, a: ir.Operand, b: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and isinstance(b, Scalar) and a.extents == b.extents:
            return _number(a.value + b.value, a)
        if self.rewriter.identities and isinstance(a, Scalar) and a == _ZERO:
            return b
        if self.rewriter.identities and isinstance(b, Scalar) and b == _ZERO:
            return a
        return self.node(table.ADD, (a, b))

    def sub(self, a: ir.Operand, b: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and isinstance(b, Scalar) and a.extents == b.extents:
            return _number(a.value - b.value, a)
        if self.rewriter.identities and isinstance(b, Scalar) and b == _ZERO:
            return a
        return self.node(table.SUB, (a, b))

    def mul(self, a: ir.Operand, b: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            return a.times(b)
        if isinstance(a, Scalar):
            a, b = b, a
        if isinstance(b, Scalar) and isinstance(a, str):
            return self.scale(a, b)
        return self.node(table.MUL, (a, b))

    def scale(self, value: str, by: Scalar) -> ir.Operand:
        """Times a constant, merged with a constant that `value` was multiplied by."""
        if value in self.rewriter.scaled and by.is_moderate:
            inner, before = self.rewriter.scaled[value]
            if before.times(by).is_moderate:
                value, by = inner, before.times(by)
        if self.rewriter.identities and by == _ONE:
            return value
        result = self.node(table.MUL, (value, by))
        if by.is_moderate:
            self.rewriter.scaled.setdefault(result, (value, by))
        return result

    def div(self, a: ir.Operand, b: ir.Operand) -> ir.Operand:
        if isinstance(b, Scalar) and isinstance(b.value, Fraction) and b.is_moderate:
            return self.mul(a, b.inverse)
        return self.node(table.DIV, (a, b))

    def exp(self, a: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and not a.extents:
            return scalar(math.exp(a.value))
        return self.node(table.EXP, (a,))

    def sqrt(self, a: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and not a.extents:
            return scalar(math.sqrt(a.value))
        return self.node(table.SQRT, (a,))

    def maximum(self, a: ir.Operand, b: ir.Operand) -> ir.Operand:
        if isinstance(a, Scalar) and isinstance(b, Scalar):
            assert not a.extents
            assert not b.extents
            return max(a, b, key=lambda s: s.value)
        return self.node(table.MAXIMUM, (a, b))


def _number(value: Fraction | float, like: Scalar) -> Scalar:
    if value == 0:
        return _ZERO
    return Scalar(value, like.extents)


def _expand_block(block: ir.BlockGraph) -> ir.BlockGraph:
    taken = {n.result for n in block.nodes}
    rewriter = _Rewriter(taken, reorder=True, identities=False)

    def expanded(node: ir.BlockNode) -> Iterable[ir.BlockNode]:
        if isinstance(node, ir.Apply):
            return rewriter.apply(node)
        moved = with_operands(node, rewriter.alias)
        key = None if isinstance(node, ir.Store) else replace(moved, result="")
        equal = None if key is None else rewriter.once(key, node.result)
        if equal is None:
            return [moved]
        rewriter.alias[node.result] = equal
        return []

    return map_nodes(block, expanded)
