"""Concatenated dims: slices that show a part, sums and maxima taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mirage_dsl.core.errors import CheckError
from mirage_dsl.ir.graph import Apply, Attrs, KernelGraph, Operand
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.rename import Renaming
from mirage_dsl.ir.walk import makers, renamed
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import RENAME, SLICE
from mirage_dsl.rewrite.expand import expand

# -- Slices that show one part ---------------------------------------------------------
#     c = concat s, t dims(k, r) to(q)               c = concat s, t dims(k, r) to(q)
#     e = exp c                                      e = exp c
#     p = slice e dim(q) start(0) stop(K) to(h) ->   p = slice e dim(q) ... to(k)
#     y = matmul p, v over(h)                        y = matmul p, v over(k)
#
# where K is the extent of k.  What is computed along k is then the same for all
# readers: for p, and for sums over q that are taken apart.


def name_whole_parts(program: KernelGraph) -> KernelGraph:
    """The program with one name for a concatenated dim and for the slice that shows it.

    Args:
        program: A program of operators of known extents.
    """
    for seen, dim in _whole_parts(program):
        types = kernel_types(program).values()
        if seen != dim and not any({seen, dim} <= set(t.names) for t in types):
            alike = Renaming(dims={seen: dim}).graph(program)
            merged = tuple(sorted(dict(alike.extents).items()))
            return name_whole_parts(replace(alike, extents=merged))
    return program


def _whole_parts(program: KernelGraph) -> Iterator[tuple[str, str]]:
    """Dims of slices, each with the concatenated dim that it shows all of."""
    extents = derived_extents(program, program.extent_of)
    slices = [n for n in program.applies if n.op is SLICE]
    for node in program.applies:
        joined = node.attr("dims") if node.op.kind is Kind.CONCAT else ()
        assert isinstance(joined, tuple)
        start = 0
        for dim in joined:
            stop = start + (extents[dim] or 0)
            for part in slices:
                place = part.attr("dim"), part.attr("start"), part.attr("stop")
                if place == (node.attr("to"), start, stop):
                    yield str(part.attr("to")), dim
            start = stop


# -- Reductions over what was concatenated ---------------------------------------------
# A block cannot concatenate what it computes, but a sum over a concatenated dim is the
# sum of those over its parts:
#
#     t = concat x, u dims(k, r) to(q)            p = matmul x, w over(k)
#     v = concat w, b dims(h, s) to(q)     ->     s = matmul u, b over(r)
#     y = matmul t, v over(q)                     y = add p, s
#
# so that a low-rank update by concatenated operands is the one kernel that it is
# when it is written as a sum.  So is a maximum the largest of those of the parts,
# and any other reduction what its row says that parts make (`Operator.join`).  What
# is no concatenation along the dim is read in parts.


class _StuckError(Exception):
    """A value of which no part can be computed by itself."""


def take_apart(program: KernelGraph) -> KernelGraph:
    """The same function with sums over concatenated dims taken apart where possible.

    Args:
        program: A program of operators; it may be in any form.
    """
    nodes = program.applies
    joined = {n.attr("to") for n in nodes if n.op.kind is Kind.CONCAT}
    if len(nodes) < len(program.nodes) or not any(joined & set(n.over) for n in nodes):
        return program
    parts = _Parts(program)
    for node in nodes:
        dim = next((d for d in node.over if d in joined), None)
        parts.keep(node, dim)
    graph = replace(program, nodes=tuple(parts.nodes))
    try:
        graph = expand(graph)
        return graph.with_extents(derived_extents(graph, graph.extent_of))
    except CheckError:
        return program


@dataclass
class _Parts:
    """Rewrites a program node by node; `nodes` is what is written so far."""

    program: KernelGraph
    nodes: list[Apply] = field(default_factory=list[Apply])
    known: dict[tuple[str, str, int], str] = field(
        default_factory=dict[tuple[str, str, int], str]
    )

    def __post_init__(self) -> None:
        self.makers = makers(self.program)
        self.types = kernel_types(self.program)
        self.extents = derived_extents(self.program, self.program.extent_of)
        self.taken = {i.name for i in self.program.given} | self.makers.keys()

    def keep(self, node: Apply, dim: str | None) -> None:
        """Write a node; if it sums a concatenated dim, the sum of its parts."""
        before = len(self.nodes), dict(self.known)
        try:
            if dim is not None and self._is_joined(node, dim):
                self._summed(node, dim)
                return
        except _StuckError:
            del self.nodes[before[0] :]
            self.known = before[1]
        self.nodes.append(node)

    def _is_joined(self, node: Apply, dim: str) -> bool:
        """Whether a value along a dim depends on a concatenation to it."""
        if node.op.kind is Kind.CONCAT and node.attr("to") == dim:
            return True
        made = (self.makers.get(v) for v in node.values if self._has(v, dim))
        return any(n is not None and self._is_joined(n, dim) for n in made)

    def _has(self, value: str, dim: str) -> bool:
        return dim in self.types[value].names

    def _summed(self, node: Apply, dim: str) -> None:
        """What a node's parts make together, under the node's name."""
        join = node.op.join
        if join is None:
            raise _StuckError
        pieces = self._pieces(node, dim)
        total = self._of_part(node, dim, 0, pieces)
        for number in range(1, len(pieces)):
            part = self._of_part(node, dim, number, pieces)
            total = self._write(join, (total, part), (), node)
        last = self.nodes[-1]
        self.nodes[-1] = replace(last, result=node.result)

    def _pieces(self, node: Apply, dim: str) -> tuple[str, ...]:
        """The dims that are joined to `dim` by the first concatenation to it."""
        if node.op.kind is Kind.CONCAT and node.attr("to") == dim:
            dims = node.attr("dims")
            assert isinstance(dims, tuple)
            return dims
        for value in node.values:
            maker = self.makers.get(value)
            if maker and self._has(value, dim) and self._is_joined(maker, dim):
                return self._pieces(maker, dim)
        raise _StuckError

    def _part(self, value: str, dim: str, number: int, pieces: tuple[str, ...]) -> str:
        """The part of a value along `dim`, with the dim of that part."""
        if not self._has(value, dim):
            return value
        key = value, dim, number
        if key not in self.known:
            if pieces[number] in self.types[value].names:
                raise _StuckError
            self.known[key] = self._made(value, dim, number, pieces)
        return self.known[key]

    def _made(self, value: str, dim: str, number: int, pieces: tuple[str, ...]) -> str:
        node = self.makers.get(value)
        if node is None:
            return self._cut(value, dim, number, pieces)
        if node.op.kind is Kind.CONCAT:
            return self._operand(node, dim, number, pieces)
        if node.op.kind in (Kind.VIEW, Kind.LIBRARY) or dim in node.across:
            raise _StuckError
        return self._of_part(node, dim, number, pieces)

    def _of_part(
        self, node: Apply, dim: str, number: int, pieces: tuple[str, ...]
    ) -> str:
        """A node applied to parts of its operands."""
        parts = {v: self._part(v, dim, number, pieces) for v in node.values}
        operands = renamed(node.operands, parts)
        attrs: Attrs = node.attrs
        if dim in node.over:
            over = tuple(pieces[number] if d == dim else d for d in node.over)
            attrs = (("over", over),)
        return self._write(node.op, operands, attrs, node)

    def _operand(
        self, node: Apply, dim: str, number: int, pieces: tuple[str, ...]
    ) -> str:
        """An operand of a concatenation, its dim renamed to that of the part."""
        dims = node.attr("dims")
        assert isinstance(dims, tuple)
        sizes = [self.extents.get(d) for d in dims]
        if node.attr("to") != dim or sizes != [self.extents.get(d) for d in pieces]:
            raise _StuckError
        value = node.values[number]
        if dims[number] == pieces[number]:
            return value
        attrs: Attrs = (("dims", (dims[number],)), ("to", (pieces[number],)))
        return self._write(RENAME, (value,), attrs, node)

    def _cut(self, value: str, dim: str, number: int, pieces: tuple[str, ...]) -> str:
        """A part of an input."""
        sizes = [self.extents.get(d) for d in pieces]
        known = [s for s in sizes if s is not None]
        if len(known) < len(sizes):
            raise _StuckError
        start = sum(known[:number])
        attrs: Attrs = (
            ("dim", dim),
            ("start", start),
            ("stop", start + known[number]),
            ("to", pieces[number]),
        )
        return self._write(SLICE, (value,), attrs, None)

    def _write(
        self,
        op: Operator,
        operands: tuple[Operand, ...],
        attrs: Attrs,
        origin: Apply | None,
    ) -> str:
        stem = str(operands[0]) if origin is None else origin.result
        count = 1
        while f"{stem}_{count}" in self.taken:
            count += 1
        name = f"{stem}_{count}"
        self.taken.add(name)
        location = None if origin is None else origin.location
        self.nodes.append(Apply(name, op, operands, attrs, location))
        return name


__all__ = [
    "name_whole_parts",
]
