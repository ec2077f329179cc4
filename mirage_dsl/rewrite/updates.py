"""Writes to a part of an argument: chosen by position, as those at data are.

`cache[:, 3:5] = k` is traced as a concatenation of what stays and of what is new, and
`cache[:, position] = k` as a choice by position.  Only the choice can be stored where
the argument lies: what is not chosen anew stays there.  Before → after, where c is an
argument of which most stays:

    a = slice c dim(n) start(0) stop(3) to(p)     i = index n
    b = slice c dim(n) start(5) stop(12) to(q)    m = mul (3 <= i), (i < 5)
    y = concat a, k, b dims(p, s, q) to(t)        j = where m, (sub i, 3), 0
                                                  g = gather k, j dim(s)
                                                  y = where m, g, c

A part of one element is taken as it is, under `equal i, 3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Scalar, boolean, scalar
from mirage_dsl.ir.canonical import Renaming
from mirage_dsl.ir.graph import Apply, KernelGraph, Operand
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import (
    depending,
    makers,
    with_operands,
    with_returned,
    without_dead,
)
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import (
    EQUAL,
    INSERT,
    MAX,
    MUL,
    OPERATORS,
    SLICE,
    SUB,
    SUM,
    WHERE,
)
from mirage_dsl.rewrite.concats import Picking

LESS, LESS_EQUAL = OPERATORS["less"], OPERATORS["less_equal"]


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

    node: Apply
    source: str
    dim: str
    parts: tuple[Part, ...]


def updates_chosen(program: KernelGraph) -> KernelGraph:
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


def _update(program: KernelGraph, node: Apply) -> Overwrite | None:
    """The update that a concatenation is, if it is one of which most stays.

    What is new must not be made of the argument: what reads it could not be stored over
    it in turn, and a rotation of a part of a tensor is one kernel as a concatenation.
    """
    extents, made = program.extent_of, makers(program)
    dims = node.attr("dims")
    assert isinstance(dims, tuple)
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


def _shown(made: Mapping[str, Apply], value: str, dim: str) -> tuple[str, str, int]:
    """What a slice shows: the tensor, its dim, and from which element on."""
    first, node = 0, made.get(value)
    while node is not None and node.op is SLICE and node.attr("to") == dim:
        start = node.attr("start")
        assert isinstance(start, int)
        first, value, dim = first + start, node.values[0], str(node.attr("dim"))
        node = made.get(value)
    return value, dim, first


# -- The choice ------------------------------------------------------------------------


def _chosen(program: KernelGraph, update: Overwrite) -> KernelGraph | None:
    """The program with a choice in the place of a concatenation, if that can be."""
    to = str(update.node.attr("to"))
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
            within = picking.write(EQUAL, at, scalar(start))
            new: Operand = _only_one(picking, value, dim)
        else:
            within = picking.write(LESS, at, scalar(start + extent))
            if start:
                ahead = picking.write(LESS_EQUAL, scalar(start), at)
                within = picking.write(MUL, ahead, within)
            place = picking.write(SUB, at, scalar(start)) if start else at
            # The first one elsewhere.
            place = picking.write(WHERE, within, place, scalar(0))
            new = picking.picked(value, place, dim)
        result = picking.write(WHERE, within, new, result)
    return result


def _only_one(picking: Picking, value: str, dim: str) -> str:
    """A value without a dim of extent 1: a sum over it is of one number."""
    node, kind = picking.makers.get(value), picking.types[value]
    if node is not None and node.op is INSERT and node.attr("to") == dim:
        return node.values[0]
    if kind.dtype.only_stores:
        raise CheckError(f"{kind.dtype} cannot be added up")
    only = MAX if kind.dtype == boolean else SUM
    return picking.write(only, value, over=(dim,))


def _with_own_extents(program: KernelGraph) -> KernelGraph:
    """The program without the extents of dims that nothing names any more."""
    named = {n for kind in kernel_types(program).values() for n in kind.names}
    for node in program.applies:
        scalars = (o for o in node.operands if isinstance(o, Scalar))
        named |= {name for o in scalars for name, _ in o.extents}
    extents = {n: e for n, e in program.extents if n in named}
    return replace(program, extents=tuple(sorted(extents.items())))
