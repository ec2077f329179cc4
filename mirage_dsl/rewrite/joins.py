"""Concatenations whose elements are picked where they are read.

A block cannot concatenate what it computes, but it can read either operand at a
position that follows from the one in the concatenation.  Before → after:

    n = neg x                                i = index h
    c = concat n, y dims(p, t) to(h)         b = less i, p
    z = mul c, w                             f = where b, i, 0
                                             a = gather x, f dim(p)
                                             n = neg a
                                             s = sub i, p
                                             l = where b, 0, s
                                             d = gather y, l dim(t)
                                             c = where b, n, d
                                             z = mul c, w

where `p` in an operand's place is the extent of p.  Positions are computed with extents
and not with numbers, so that the rewritten program holds at other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_dsl.core.clock import look
from mirage_dsl.core.types import Dim, MemorySpace, Scalar, scalar
from mirage_dsl.ir.graph import Apply, Index, KernelGraph, Operand
from mirage_dsl.ir.infer import apply_type, kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.rename import FreshNames
from mirage_dsl.ir.walk import makers, with_operands, with_returned, without_dead
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import CAST, GATHER, INSERT, OPERATORS, RENAME, WHERE
from mirage_dsl.rewrite.expand import expand

LESS, SUB = OPERATORS["less"], OPERATORS["sub"]

LONGEST = 1 << 24
"""Extents from which on constants of arithmetic are no longer exact."""


def pick_joined(program: KernelGraph) -> KernelGraph | None:
    """The program whose concatenations pick elements of their operands by position.

    None where there is none along a dim of known extent.
    """
    picking = _Picking(program)
    if not any(map(picking.is_pickable, program.applies)):
        return None
    for node in program.applies:
        look()
        picking.keep(node)
    made = replace(
        program,
        nodes=tuple(picking.nodes),
        indices=(*program.indices, *picking.counted),
    ).with_extents(picking.extents)
    return expand(without_dead(with_returned(made, picking.names)))


@dataclass
class _Picking:
    """Rewrites a program node by node.

    Attributes:
        program: What is rewritten.
        nodes: What is written so far.
        counted: Index values that it has not.
        names: Of what stands in the place of concatenations, by theirs.
    """

    program: KernelGraph
    nodes: list[Apply] = field(default_factory=list[Apply])
    counted: list[Index] = field(default_factory=list[Index])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.types = dict(kernel_types(self.program))
        self.extents = derived_extents(self.program, self.program.extent_of)
        self.makers = dict(makers(self.program))
        self._fresh = FreshNames(self.program).fresh
        self._known: dict[tuple[object, ...], str] = {}
        self._positions = {
            i.axis[0].name: i.name for i in self.program.indices if len(i.axis) == 1
        }

    def is_pickable(self, node: Apply) -> bool:
        """Whether it is a concatenation of dims of known extents."""
        if node.op.kind is not Kind.CONCAT:
            return False
        sizes = [self.extents.get(d) for d in (*_joined(node), str(node.attr("to")))]
        return all(s is not None and s < LONGEST for s in sizes)

    def keep(self, node: Apply) -> None:
        """Write a node; in the place of a concatenation what it picks."""
        node = with_operands(node, self.names)
        if self.is_pickable(node):
            at = self._position(str(node.attr("to")))
            made = self._chosen(node, at)
            if isinstance(made, str):
                self.names[node.result] = made
                return
        self._add(node)

    # -- Concatenations ------------------------------------------------------------

    def _position(self, dim: str) -> str:
        """The index value along a dim."""
        if dim not in self._positions:
            index = Index(self._fresh(f"at_{dim}"), (Dim(dim),))
            self.counted.append(index)
            self.types[index.name] = index.type
            self._positions[dim] = index.name
        return self._positions[dim]

    def _chosen(self, node: Apply, at: str) -> Operand:
        """Elements of the part in which a position lies, of the first ones if not."""
        found: list[Operand] = []
        within: list[str] = []
        parts = list(zip(node.values, _joined(node), strict=True))
        for number, (part, dim) in enumerate(parts):
            inside = at
            if number < len(parts) - 1:
                within.append(self._write(LESS, at, _extent(dim)))
                inside = self._write(WHERE, within[-1], at, scalar(0))
            if number:
                inside = self._write(WHERE, within[number - 1], scalar(0), inside)
            found.append(self._picked(part, inside, dim))
            if number < len(parts) - 1:
                at = self._write(SUB, at, _extent(dim))
        made = found.pop()
        while found:
            part = found.pop()
            made = self._write(WHERE, within[len(found)], part, made)
        return made

    # -- What is picked ------------------------------------------------------------

    def _picked(self, value: str, at: str, dim: str) -> Operand:
        """The elements of a value at positions along a dim."""
        key = value, at, dim
        if dim not in self.types[value].names:
            return value
        if key not in self._known:
            found = self._sunk(value, at, dim)
            if not isinstance(found, str):
                return found
            self._known[key] = found
        return self._known[key]

    def _sunk(self, value: str, at: str, dim: str) -> Operand:
        """The same, picked as early as it can be."""
        node = self.makers.get(value)
        if node is None:
            if self.types[value].space is MemorySpace.NOWHERE:
                return at if self.types[value].names == (dim,) else value
            return self._gather(value, at, dim)
        same = node.operands[-1]
        if node.op is WHERE and node.operands[1] == same and isinstance(same, Scalar):
            return same
        if node.op.kind is Kind.ELEMENTWISE or node.op is CAST:
            found = {v: self._picked(v, at, dim) for v in node.values}
            if not any(isinstance(o, str) for o in found.values()):
                return self._gather(value, at, dim)
            operands = (
                found.get(o, o) if isinstance(o, str) else o for o in node.operands
            )
            return self._again(node, tuple(operands))
        attrs = dict(node.attrs)
        if node.op is GATHER:
            source, index = node.values
            if dim not in self.types[source].names:
                return self._again(node, (source, self._picked(index, at, dim)))
        if node.op is INSERT and attrs["to"] == dim:
            return node.values[0]
        if node.op is RENAME and attrs["to"] == (dim,):
            return self._picked(node.values[0], at, _joined(node)[0])
        return self._gather(value, at, dim)

    def _gather(self, value: str, at: str, dim: str) -> str:
        return self._add(
            Apply(
                self._fresh(f"{value}_at_{dim}"),
                GATHER,
                (value, at),
                (("dim", dim),),
            )
        )

    # -- Nodes ---------------------------------------------------------------------

    def _again(self, node: Apply, operands: tuple[Operand, ...]) -> str:
        name = self._fresh(node.result)
        return self._add(replace(node, result=name, operands=operands))

    def _write(self, op: Operator, *operands: Operand) -> str:
        stem = next(o for o in operands if isinstance(o, str))
        return self._add(Apply(self._fresh(f"{stem}_{op.name}"), op, operands))

    def _add(self, node: Apply) -> str:
        self.nodes.append(node)
        self.makers[node.result] = node
        types = [self.types[v] for v in node.values]
        self.types[node.result] = apply_type(node, types, in_block=False)
        return node.result


def _joined(node: Apply) -> tuple[str, ...]:
    """The dims that a concatenation joins, or that a view renames."""
    dims = node.attr("dims")
    assert isinstance(dims, tuple)
    return dims


def _extent(dim: str) -> Scalar:
    return Scalar(Fraction(1), ((dim, 1),))


__all__ = ["pick_joined"]
