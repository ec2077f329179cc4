"""Concatenations: slices, sums and maxima take them apart, or elements are picked.

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

A write to a part of an argument is one too: `cache[:, 3:5] = k` is traced as a
concatenation of what stays and of what is new, and `cache[:, position] = k` as a choice
by position.  Only the choice can be stored where the argument lies: what is not chosen
anew stays there.  Before → after, where c is an argument of which most stays:

    a = slice c dim(n) start(0) stop(3) to(p)     i = index n
    b = slice c dim(n) start(5) stop(12) to(q)    m = mul (3 <= i), (i < 5)
    y = concat a, k, b dims(p, s, q) to(t)        j = where m, (sub i, 3), 0
                                                  g = gather k, j dim(s)
                                                  y = where m, g, c

A part of one element is taken as it is, under `equal i, 3`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import (
    Dim,
    MemorySpace,
    Scalar,
    boolean,
    extent_scalar,
    scalar,
)
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import Apart, FreshNames, Renaming, numbered_name
from mirage_dsl.ir.infer import apply_type, kernel_types
from mirage_dsl.ir.maps import derived_extents, with_derived_extents
from mirage_dsl.ir.walk import (
    depending,
    looked_at,
    makers,
    read_by,
    renamed,
    users,
    values_of,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.rewrite.expand import expand

# -- Slices that show one part ---------------------------------------------------------
#     c = concat s, t dims(k, r) to(q)               c = concat s, t dims(k, r) to(q)
#     e = exp c                                      e = exp c
#     p = slice e dim(q) start(0) stop(K) to(h) ->   p = slice e dim(q) ... to(k)
#     y = matmul p, v over(h)                        y = matmul p, v over(k)
#
# where K is the extent of k.  What is computed along k is then the same for all
# readers: for p, and for sums over q that are taken apart.


def name_whole_parts(program: ir.KernelGraph) -> ir.KernelGraph:
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


def _whole_parts(program: ir.KernelGraph) -> Iterator[tuple[str, str]]:
    """Dims of slices, each with the concatenated dim that it shows all of."""
    extents = derived_extents(program)
    slices = [n for n in program.applies if n.op is table.SLICE]
    for node in program.applies:
        joined = node.dims("dims") if node.op.kind is Kind.CONCAT else ()
        start = 0
        for dim in joined:
            stop = start + (extents[dim] or 0)
            for part in slices:
                place = part.attr("dim"), part.attr("start"), part.attr("stop")
                if place == (node.attr("to"), start, stop):
                    yield part.dim("to"), dim
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


def take_apart(program: ir.KernelGraph) -> ir.KernelGraph:
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
        return with_derived_extents(graph)
    except CheckError:
        return program


@dataclass
class _Parts:
    """Rewrites a program node by node; `nodes` is what is written so far."""

    program: ir.KernelGraph
    nodes: list[ir.Apply] = field(default_factory=list[ir.Apply])
    known: dict[tuple[str, str, int], str] = field(
        default_factory=dict[tuple[str, str, int], str]
    )

    def __post_init__(self) -> None:
        self.makers = makers(self.program)
        self.types = kernel_types(self.program)
        self.extents = derived_extents(self.program)
        self.taken = values_of(self.program)

    def keep(self, node: ir.Apply, dim: str | None) -> None:
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

    def _is_joined(self, node: ir.Apply, dim: str) -> bool:
        """Whether a value along a dim depends on a concatenation to it."""
        if node.op.kind is Kind.CONCAT and node.attr("to") == dim:
            return True
        made = (self.makers.get(v) for v in node.values if self._has(v, dim))
        return any(n is not None and self._is_joined(n, dim) for n in made)

    def _has(self, value: str, dim: str) -> bool:
        return dim in self.types[value].names

    def _summed(self, node: ir.Apply, dim: str) -> None:
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

    def _pieces(self, node: ir.Apply, dim: str) -> tuple[str, ...]:
        """The dims that are joined to `dim` by the first concatenation to it."""
        if node.op.kind is Kind.CONCAT and node.attr("to") == dim:
            return node.dims("dims")
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
        self, node: ir.Apply, dim: str, number: int, pieces: tuple[str, ...]
    ) -> str:
        """A node applied to parts of its operands."""
        parts = {v: self._part(v, dim, number, pieces) for v in node.values}
        operands = renamed(node.operands, parts)
        attrs: ir.Attrs = node.attrs
        if dim in node.over:
            over = tuple(pieces[number] if d == dim else d for d in node.over)
            attrs = (("over", over),)
        return self._write(node.op, operands, attrs, node)

    def _operand(
        self, node: ir.Apply, dim: str, number: int, pieces: tuple[str, ...]
    ) -> str:
        """An operand of a concatenation, its dim renamed to that of the part."""
        dims = node.dims("dims")
        sizes = [self.extents.get(d) for d in dims]
        if node.attr("to") != dim or sizes != [self.extents.get(d) for d in pieces]:
            raise _StuckError
        value = node.values[number]
        if dims[number] == pieces[number]:
            return value
        attrs: ir.Attrs = (("dims", (dims[number],)), ("to", (pieces[number],)))
        return self._write(table.RENAME, (value,), attrs, node)

    def _cut(self, value: str, dim: str, number: int, pieces: tuple[str, ...]) -> str:
        """A part of an input."""
        sizes = [self.extents.get(d) for d in pieces]
        known = [s for s in sizes if s is not None]
        if len(known) < len(sizes):
            raise _StuckError
        start = sum(known[:number])
        attrs: ir.Attrs = (
            ("dim", dim),
            ("start", start),
            ("stop", start + known[number]),
            ("to", pieces[number]),
        )
        return self._write(table.SLICE, (value,), attrs, None)

    def _write(
        self,
        op: Operator,
        operands: tuple[ir.Operand, ...],
        attrs: ir.Attrs,
        origin: ir.Apply | None,
    ) -> str:
        stem = str(operands[0]) if origin is None else origin.result
        name = numbered_name(stem, self.taken)
        location = None if origin is None else origin.location
        self.nodes.append(ir.Apply(name, op, operands, attrs, location))
        return name


# -- Concatenations whose elements are picked ------------------------------------------

LONGEST = 1 << 24
"""Extents from which on constants of arithmetic are no longer exact."""


def pick_joined(program: ir.KernelGraph) -> ir.KernelGraph | None:
    """The program whose concatenations pick elements of their operands by position.

    None where there is none along a dim of known extent.
    """
    picking = Picking(program)
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
    return expand(_counted_apart(without_dead(with_returned(made, picking.names))))


def _counted_apart(program: ir.KernelGraph) -> ir.KernelGraph:
    """The program that counts dims which results have apart as they have them.

    As those of windows, between whose numbers of rows and of columns there are others:
    one kernel then stores them as they are returned.  So does what is computed of both
    ahead of them.  Before → after:

        i = index q                              i = index (s t)
        y = .. gather x, i ..: f32[q, n]   ->    y = .. gather x, i ..: f32[s, t, n]
        z = unflatten y dim(q) gives(s, t)       return y: f32[s, n, t]
        return z: f32[s, n, t]
    """
    read = read_by(program.applies)
    for view in program.applies:
        factored = view.factored
        if factored is None or factored.flattens:
            continue
        kept = (r.type.names for r in program.returns if r.value == view.result)
        wanted = view.result in read or any(
            not ir.in_a_row(factored.factors, names) for names in kept
        )
        if wanted and _is_counted(program, factored):
            return _counted_apart(_taken_apart(program, factored))
    return program


def _is_counted(program: ir.KernelGraph, factored: ir.Factored) -> bool:
    """Whether a dim is of positions, and only ever taken apart into the same dims."""
    others = (n for n in program.applies if n.factored != factored)
    named = (v for n in others for key, v in n.attrs if key != "over")
    given = (i.type.names for i in program.inputs)
    kept = (r.type.names for r in program.returns)
    every = (*given, *kept, *map(ir.named_in, named))
    return not any(factored.whole in names for names in every)


def _taken_apart(program: ir.KernelGraph, factored: ir.Factored) -> ir.KernelGraph:
    """The program without views, a dim everywhere as those that they give."""
    apart = Apart({factored.whole: factored.factors})
    names: dict[str, str] = {}
    nodes: list[ir.Apply] = []
    for node in program.applies:
        own = with_operands(node, names)
        if node.factored == factored:
            names[node.result] = own.values[0]
        else:
            nodes.append(apart.apply(own))
    indices = (replace(i, axis=apart.axis(i.axis)) for i in program.indices)
    extents = (e for e in program.extents if e[0] != factored.whole)
    made = replace(
        program, nodes=tuple(nodes), indices=tuple(indices), extents=tuple(extents)
    )
    return with_returned(made, names)


@dataclass
class Picking:
    """Rewrites a program node by node; what is picked is picked as early as it can be.

    Attributes:
        program: What is rewritten.
        nodes: What is written so far.
        counted: Index values that it has not.
        names: Of what stands in the place of concatenations, by theirs.
    """

    program: ir.KernelGraph
    nodes: list[ir.Apply] = field(default_factory=list[ir.Apply])
    counted: list[ir.Index] = field(default_factory=list[ir.Index])
    names: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.types = dict(kernel_types(self.program))
        self.extents = derived_extents(self.program)
        self.makers = dict(makers(self.program))
        self._given = looked_at(self.program)
        self._fresh = FreshNames(self.program).fresh
        self._known: dict[tuple[object, ...], str] = {}
        self._positions = {
            i.axis[0].name: i.name for i in self.program.indices if len(i.axis) == 1
        }

    def is_pickable(self, node: ir.Apply) -> bool:
        """Whether it is a concatenation of dims of known extents."""
        if node.op.kind is not Kind.CONCAT:
            return False
        sizes = [self.extents.get(d) for d in (*node.dims("dims"), node.dim("to"))]
        return all(s is not None and s < LONGEST for s in sizes)

    def keep(self, node: ir.Apply) -> None:
        """Write a node; in the place of a concatenation what it picks."""
        node = with_operands(node, self.names)
        if self.is_pickable(node):
            at = self.position(node.dim("to"))
            made = self._chosen(node, at)
            if isinstance(made, str):
                self.names[node.result] = made
                return
        self.add(node)

    # -- Concatenations ------------------------------------------------------------

    def position(self, dim: str) -> str:
        """The index value along a dim."""
        if dim not in self._positions:
            index = ir.Index(self._fresh(f"at_{dim}"), (Dim(dim),))
            self.counted.append(index)
            self.types[index.name] = index.type
            self._positions[dim] = index.name
        return self._positions[dim]

    def _chosen(self, node: ir.Apply, at: str) -> ir.Operand:
        """Elements of the part in which a position lies, of the first ones if not."""
        within: list[str] = []
        places: list[str] = []
        parts = list(zip(node.values, node.dims("dims"), strict=True))
        for number, (_, dim) in enumerate(parts):
            inside = at
            if number < len(parts) - 1:
                within.append(self.write(table.LESS, at, extent_scalar(dim)))
                inside = self.write(table.WHERE, within[-1], at, scalar(0))
            if number:
                inside = self.write(table.WHERE, within[number - 1], scalar(0), inside)
            places.append(inside)
            if number < len(parts) - 1:
                at = self.write(table.SUB, at, extent_scalar(dim))
        shown = [self.shown(*p, at) for p, at in zip(parts, places, strict=True)]
        sources = {(value, dim) for value, dim, _ in shown}
        if len(sources) == 1 and len(shown) > 1:
            ((value, dim),) = sources
            at = self._one_of(within, [at for _, _, at in shown])
            return self.picked(value, at, dim)
        found = [
            self.picked(value, at, dim)
            for (value, dim), at in zip(parts, places, strict=True)
        ]
        return self._one_of(within, found)

    def _one_of(self, within: Sequence[str], parts: Sequence[Any]) -> Any:
        """The first of some parts whose condition is true; the last one has none.

        Of a view and numbers it is a view of what is chosen, which blocks can compute.
        """
        view = self._view_of(within, parts)
        if view is not None:
            parts = [view.values[0] if p == view.result else p for p in parts]
            return self._again(view, (self._one_of(within, parts),))
        made = parts[-1]
        for condition, part in zip(within[::-1], parts[-2::-1], strict=True):
            made = self.write(table.WHERE, condition, part, made)
        return made

    def _view_of(self, within: Sequence[str], parts: Sequence[Any]) -> ir.Apply | None:
        """The view that is the only value of some parts, of the dims of conditions."""
        values = {p for p in parts if isinstance(p, str)}
        view = self.makers.get(min(values)) if len(values) == 1 else None
        if view is None or view.factored is None or view.values[0] in self._given:
            return None
        own, seen = (self.types[v].names for v in (view.values[0], view.result))
        changed = {*own} ^ {*seen}
        there = {d for condition in within for d in self.types[condition].names}
        return None if changed & there else view

    # -- What is picked ------------------------------------------------------------

    def shown(self, value: str, dim: str, at: str) -> tuple[str, str, str]:
        """What slices show, its dim, and positions in it that are those in the slice.

        These are told by extents, so that they are right at other ones too: of slices
        from the beginning, or up to the end.
        """
        node = self.makers.get(value)
        part = None if node is None else node.sliced
        while node is not None and part is not None and part.to == dim:
            if part.dim in self.types[at].names:
                break
            if part.start:
                if part.stop not in (0, self.extents[part.dim]):
                    break
                ahead = self.write(table.ADD, at, extent_scalar(part.dim))
                at = self.write(table.SUB, ahead, extent_scalar(dim))
            value, dim = node.values[0], part.dim
            node = self.makers.get(value)
            part = None if node is None else node.sliced
        return value, dim, at

    def picked(self, value: str, at: str, dim: str) -> ir.Operand:
        """The elements of a value at positions along a dim."""
        key, node = (value, at, dim), self.makers.get(value)
        if node is not None and node.is_one_number:
            return node.operands[-1]
        if dim not in self.types[value].names:
            return value
        if key not in self._known:
            found = self._sunk(value, at, dim)
            if not isinstance(found, str):
                return found
            self._known[key] = found
        return self._known[key]

    def _sunk(self, value: str, at: str, dim: str) -> ir.Operand:
        """The same, picked as early as it can be."""
        node = self.makers.get(value)
        if node is None:
            if self.types[value].space is MemorySpace.NOWHERE:
                return at if self.types[value].names == (dim,) else value
            return self._gather(value, at, dim)
        if node.op.kind is Kind.ELEMENTWISE or node.op is table.CAST:
            found = {v: self.picked(v, at, dim) for v in node.values}
            if not any(isinstance(o, str) for o in found.values()):
                return self._gather(value, at, dim)
            operands = (
                found.get(o, o) if isinstance(o, str) else o for o in node.operands
            )
            return self._again(node, tuple(operands))
        if node.op.kind is Kind.REDUCTION:
            # Of other dims: an element is looked at once, or not at all.
            return self._again(node, (self.picked(node.values[0], at, dim),))
        seen = self._seen(node, at, dim)
        return self._gather(value, at, dim) if seen is None else seen

    def _seen(self, node: ir.Apply, at: str, dim: str) -> ir.Operand | None:
        """Elements of a gather or a view, picked of what it sees; None where not."""
        source, attrs = node.values[0], dict(node.attrs)
        if node.op is table.GATHER:
            if dim in self.types[source].names:
                return None
            return self._again(node, (source, self.picked(node.values[1], at, dim)))
        if node.op is table.INSERT and attrs["to"] == dim:
            return self.picked(source, at, dim)
        if node.op is table.RENAME and attrs["to"] == (dim,):
            return self.picked(source, at, node.dims("dims")[0])
        if not node.is_view or source in self._given:
            return None
        if dim in self.types[source].names:
            return self._again(node, (self.picked(source, at, dim),))
        if node.op is table.FLATTEN:
            flat = self._flattened(node, source)
            return None if flat == node.result else self.picked(flat, at, dim)
        value, dim, at = self.shown(node.result, dim, at)
        return None if value == node.result else self.picked(value, at, dim)

    def _flattened(self, view: ir.Apply, value: str) -> str:
        """A value with some dims as one, as of what it is computed of if that can be.

        Args:
            view: A view of a value that has these dims as one.
            value: That, or what it is made of.
        """
        assert view.factored is not None
        dims, names = {*view.factored.factors}, {*self.types[value].names}
        if not dims & names:
            return value
        key = "flat", view.factored, value
        if key not in self._known:
            node = None if value in self._given else self.makers.get(value)
            if node is not None and self._commutes(node, dims):
                flat = {v: self._flattened(view, v) for v in node.values}
                found = self._again(node, with_operands(node, flat).operands)
            elif view.values == (value,):
                found = view.result
            else:
                found = self._again(view, (value,))
            self._known[key] = found
        return self._known[key]

    def _commutes(self, node: ir.Apply, dims: set[str]) -> bool:
        """Whether an operator may come behind a view of its operands' dims as one."""
        seen = [{*self.types[v].names} & dims for v in node.values]
        if node.op.kind is Kind.ELEMENTWISE or node.op is table.CAST:
            return all(not s or s == dims for s in seen)
        if node.op is table.GATHER:
            return seen == [dims, set()] and node.attr("dim") not in dims
        return seen == [dims] and (node.op.kind is Kind.REDUCTION or node.is_view)

    def _gather(self, value: str, at: str, dim: str) -> str:
        return self.add(
            ir.Apply(
                self._fresh(f"{value}_at_{dim}"),
                table.GATHER,
                (value, at),
                (("dim", dim),),
            )
        )

    # -- Nodes ---------------------------------------------------------------------

    def _again(self, node: ir.Apply, operands: tuple[ir.Operand, ...]) -> str:
        name = self._fresh(node.result)
        return self.add(replace(node, result=name, operands=operands))

    def write(
        self, op: Operator, *operands: ir.Operand, over: tuple[str, ...] = ()
    ) -> str:
        """Write an operator, elementwise or over some dims: the name of its result."""
        stem = next(o for o in operands if isinstance(o, str))
        attrs: ir.Attrs = (("over", over),) if over else ()
        return self.add(ir.Apply(self._fresh(f"{stem}_{op.name}"), op, operands, attrs))

    def add(self, node: ir.Apply) -> str:
        """Write a node: the name of its result."""
        self.nodes.append(node)
        self.makers[node.result] = node
        types = [self.types[v] for v in node.values]
        self.types[node.result] = apply_type(node, types, in_block=False)
        return node.result


# -- Parts that only move elements -----------------------------------------------------
# What pads, rolls and windows make of one value is as many calls as there are axes, and
# those that fill what is around it; one kernel picks all elements.  Before → after:
#
#     z = where s, 0, 0                                 at = index h
#     c = concat z, x, z dims(p, n, p) to(h)            y = block grid(.., h / 8) { .. }
#     f = unflatten c dim(h) gives(t, u)            ->
#     r = concat f, f dims(k, k) to(q)


def joined_parts(graph: ir.KernelGraph) -> list[tuple[ir.Apply, ...]]:
    """Parts that join what they see of one value, and numbers.

    Each ends with a concatenation, and no two have one in common.
    """
    readers = {
        value: {n.result if isinstance(n, ir.Apply) else "" for n in nodes}
        for value, nodes in users(graph.nodes).items()
    }
    for item in graph.returns:
        readers.setdefault(item.value, set()).add("")
    taken: set[str] = set()
    found: list[tuple[ir.Apply, ...]] = []
    for node in reversed(graph.applies):
        if node.op.kind is not Kind.CONCAT or node.result in taken:
            continue
        part = _moved_for(node, graph.applies, readers)
        if len(read_by(part) - {n.result for n in part}) == 1:
            taken.update(n.result for n in part)
            found.append(part)
    return found


def _moved_for(
    node: ir.Apply, nodes: Sequence[ir.Apply], readers: Mapping[str, AbstractSet[str]]
) -> tuple[ir.Apply, ...]:
    """A concatenation, and what moves elements or makes numbers for nothing else."""
    part = {node.result}
    for above in reversed(nodes):
        read = readers[above.result]
        joins = above.op.kind is Kind.CONCAT or above.is_one_number
        if not read.isdisjoint(part) and (above.is_view or (joins and read <= part)):
            part.add(above.result)
    return tuple(n for n in nodes if n.result in part)


# -- Writes to a part of an argument ---------------------------------------------------

LESS_EQUAL = table.OPERATORS["less_equal"]

Part = tuple[int, int, str, str]
"""Of a concatenation: where it begins, its extent, its value and the value's dim."""


@dataclass(frozen=True)
class Overwrite:
    """A concatenation that is an argument but for some parts.

    Attributes:
        node: The concatenation.
        source: The argument.
        dim: The dim of the argument along which it is.
        parts: What is new.
    """

    node: ir.Apply
    source: str
    dim: str
    parts: tuple[Part, ...]


def updates_chosen(program: ir.KernelGraph) -> ir.KernelGraph:
    """The same program, with writes to a part of an argument as choices by position.

    Args:
        program: A traced program; with blocks in it, it stays as it is.
    """
    if program.blocks:
        return program
    for node in program.applies:
        update = _update(program, node) if node.op.kind is Kind.CONCAT else None
        made = None if update is None else _chosen(program, update)
        if made is not None:
            return updates_chosen(made)
    return program


# -- What an update is -----------------------------------------------------------------


def _update(program: ir.KernelGraph, node: ir.Apply) -> Overwrite | None:
    """The update that a concatenation is, if it is one of which most stays.

    What is new must not be made of the argument: what reads it could not be stored over
    it in turn, and a rotation of a part of a tensor is one kernel as a concatenation.
    """
    extents, made = program.extent_of, makers(program)
    dims = node.dims("dims")
    sizes = [extents.get(d) for d in dims]
    known = [size for size in sizes if size is not None]
    whole, sources = sum(known), {i.name for i in program.inputs}
    if len(known) < len(sizes):
        return None
    start, stays, new = 0, dict[tuple[str, str], int](), list[Part]()
    for value, dim, size in zip(node.values, dims, known, strict=True):
        source, along, first = _shown(made, value, dim)
        if source in sources and extents.get(along) == whole and first == start:
            stays[source, along] = stays.get((source, along), 0) + size
        else:
            new.append((start, size, value, dim))
        start += size
    if len(stays) != 1 or not new:
        return None
    (((source, along), count),) = stays.items()
    changed = depending(program.applies, [source])
    if 2 * count <= whole or any(value in changed for _, _, value, _ in new):
        return None
    return Overwrite(node, source, along, tuple(new))


def _shown(made: Mapping[str, ir.Apply], value: str, dim: str) -> tuple[str, str, int]:
    """What a slice shows: the tensor, its dim, and from which element on."""
    first, node = 0, made.get(value)
    while node is not None and node.sliced is not None and node.sliced.to == dim:
        if node.sliced.start < 0:
            break
        first, value, dim = first + node.sliced.start, node.values[0], node.sliced.dim
        node = made.get(value)
    return value, dim, first


# -- The choice ------------------------------------------------------------------------


def _chosen(program: ir.KernelGraph, update: Overwrite) -> ir.KernelGraph | None:
    """The program with a choice in the place of a concatenation, if that can be."""
    to = update.node.dim("to")
    types = kernel_types(program).values()
    if any({to, update.dim} <= set(t.names) for t in types):
        return None
    try:
        program = Renaming(dims={to: update.dim}).graph(program)
        merged = tuple(sorted(dict(program.extents).items()))
        picking = Picking(replace(program, extents=merged))
        for node in program.applies:
            if node.result == update.node.result:
                picking.names[node.result] = _choice(picking, update)
            else:
                picking.add(with_operands(node, picking.names))
        made = replace(
            program,
            nodes=tuple(picking.nodes),
            indices=(*program.indices, *picking.counted),
            extents=merged,
        )
        made = without_dead(with_returned(made, picking.names))
        return _with_own_extents(made)
    except CheckError:
        return None


def _choice(picking: Picking, update: Overwrite) -> str:
    """What a concatenation gave, chosen by position along the argument's dim."""
    result, at = update.source, picking.position(update.dim)
    for start, extent, value, dim in reversed(update.parts):
        if extent == 1:
            within = picking.write(table.EQUAL, at, scalar(start))
            new: ir.Operand = _only_one(picking, value, dim)
        else:
            within = picking.write(table.LESS, at, scalar(start + extent))
            if start:
                ahead = picking.write(LESS_EQUAL, scalar(start), at)
                within = picking.write(table.MUL, ahead, within)
            place = picking.write(table.SUB, at, scalar(start)) if start else at
            # The first one elsewhere.
            place = picking.write(table.WHERE, within, place, scalar(0))
            new = picking.picked(value, place, dim)
        result = picking.write(table.WHERE, within, new, result)
    return result


def _only_one(picking: Picking, value: str, dim: str) -> str:
    """A value without a dim of extent 1: a sum over it is of one number."""
    node, kind = picking.makers.get(value), picking.types[value]
    if node is not None and node.op is table.INSERT and node.attr("to") == dim:
        return node.values[0]
    if kind.dtype.only_stores:
        raise CheckError(f"{kind.dtype} cannot be added up")
    only = table.MAX if kind.dtype == boolean else table.SUM
    return picking.write(only, value, over=(dim,))


def _with_own_extents(program: ir.KernelGraph) -> ir.KernelGraph:
    """The program without the extents of dims that nothing names any more."""
    named = {n for kind in kernel_types(program).values() for n in kind.names}
    for node in program.applies:
        scalars = (o for o in node.operands if isinstance(o, Scalar))
        named |= {name for o in scalars for name, _ in o.extents}
    extents = {n: e for n, e in program.extents if n in named}
    return replace(program, extents=tuple(sorted(extents.items())))
