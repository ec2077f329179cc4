"""What follows in a block where values are the same all over a tile.

Masks are: where the tiles of an iteration lie wholly on one side of what a comparison
of positions divides, its result is one number.  What an operator makes of such numbers
is `followed`; what is left to compute in iterations whose masks are settled,
`unmasked`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mirage_dsl.core.types import Scalar, Types, boolean
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.walk import live, read_by, with_operands
from mirage_dsl.ops.definition import Formats, Kind, Term
from mirage_dsl.ops.table import ADD, MAXIMUM, MUL, WHERE


def followed(node: ir.Apply, known: Mapping[str, float]) -> float | None:
    """What an operator gives all over a tile; None where that does not follow.

    Args:
        node: The operator.
        known: Values that are one number all over a tile; NaN stands for one that is
            not known.
    """
    values = [
        known.get(o) if isinstance(o, str) else (None if o.extents else float(o.value))
        for o in node.operands
    ]
    values = [None if v is None or math.isnan(v) else v for v in values]
    op = node.op
    if op is WHERE:
        return _chosen(*values)
    if op.kind is Kind.VIEW or op.kind is Kind.REDUCTION:
        kept = op.kind is Kind.VIEW or values[0] == op.neutral
        return values[0] if kept else None
    if op.kind is Kind.CONTRACTION:
        return 0.0 if 0.0 in values else None
    if op.kind is not Kind.ELEMENTWISE or op.formats is Formats.INTEGERS:
        return None
    if all(v is not None for v in values):
        with np.errstate(all="ignore"):
            return float(op.numpy(*(np.asarray(v, np.float64) for v in values)))
    return _partly(node, values)


def _chosen(
    condition: float | None, first: float | None, second: float | None
) -> float | None:
    if condition is None:
        return first if first == second else None
    return first if condition else second


def _partly(node: ir.Apply, values: list[float | None]) -> float | None:
    """What follows of one operand alone, the others being finite."""
    low = values[0] == -math.inf
    match node.op.term:
        case Term.MUL:
            return 0.0 if 0.0 in values else None
        case Term.DIV:
            return 0.0 if values[0] == 0.0 else None
        case Term.ADD:
            return -math.inf if -math.inf in values else None
        case Term.SUB:
            return -math.inf if low else None
        case _:
            return None


# -- Without masks ---------------------------------------------------------------------


def unmasked(block: ir.BlockGraph, types: Types) -> ir.BlockGraph:
    """What a block computes in iterations in which all of `settled` is.

        near = j <= i                          y = matmul s, v
        w = where(near, s, -inf)        →
        y = matmul w, v

    Args:
        block: The block.
        types: Of its values.
    """
    known = {s.value: float(s.holds) for s in block.settled}
    names: dict[str, str] = {}
    nodes: list[ir.BlockNode] = []
    for given in block.nodes:
        node = with_operands(given, names)
        if isinstance(node, ir.Apply) and node.result not in known:
            kept = _kept(node, known, types)
            if kept is not None:
                names[node.result] = kept
                continue
            truth = types[node.result].dtype == boolean
            value = _truth(node, known) if truth else None
            if value is not None:
                known[node.result] = value
            node = _with_numbers(node, known, types)
        nodes.append(node)
    stored = read_by(n for n in nodes if isinstance(n, ir.Store))
    left = {
        id(n) for n in live([n for n in nodes if not isinstance(n, ir.Store)], stored)
    }
    rest = (n for n in nodes if isinstance(n, ir.Store) or id(n) in left)
    return replace(block, nodes=tuple(rest), settled=())


def _truth(node: ir.Apply, known: Mapping[str, float]) -> float | None:
    """What follows of truth values: of any of two that holds, too."""
    either = node.op is MAXIMUM and any(known.get(v) == 1.0 for v in node.values)
    return 1.0 if either else followed(node, known)


def _kept(node: ir.Apply, known: Mapping[str, float], types: Types) -> str | None:
    """The operand that the result is, with all its dims; None if it is none."""
    kept: ir.Operand | None = None
    if node.op is WHERE:
        condition = node.operands[0]
        value = known.get(condition) if isinstance(condition, str) else None
        if value is not None:
            kept = node.operands[1 if value else 2]
    elif node.op in (ADD, MUL):
        numbers = [known.get(o) if isinstance(o, str) else None for o in node.operands]
        neutral = 0.0 if node.op is ADD else 1.0
        if neutral in numbers:
            kept = node.operands[1 - numbers.index(neutral)]
    if not isinstance(kept, str):
        return None
    own, other = types[node.result], types[kept]
    alike = own.dtype == other.dtype and set(own.dims) == set(other.dims)
    return kept if alike else None


def _with_numbers(node: ir.Apply, known: Mapping[str, float], types: Types) -> ir.Apply:
    """The operator with numbers for what is known, where no dim is lost by that."""
    if node.op.kind is not Kind.ELEMENTWISE or known.keys().isdisjoint(node.values):
        return node
    operands = tuple(
        Scalar(Fraction(int(known[o]))) if isinstance(o, str) and o in known else o
        for o in node.operands
    )
    left = {d for o in operands if isinstance(o, str) for d in types[o].dims}
    whole = left == set(types[node.result].dims)
    return replace(node, operands=operands) if whole else node
