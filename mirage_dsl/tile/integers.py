"""Integers of 64 bits that a kernel computes in 32: positions, and what follows them.

Positions are i64 in programs, as in PyTorch.  In a kernel each takes two registers, and
a comparison two instructions, though extents say how large they get.  What is never
larger than 32 bits hold, and goes nowhere but to such values, to comparisons and to
conversions, is computed in i32: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod

from mirage_dsl.core.types import MemorySpace, Scalar, TensorType, i64
from mirage_dsl.ir.graph import Apply, BlockGraph, Load, Operand, ValueNode
from mirage_dsl.ir.walk import users
from mirage_dsl.ops.definition import Truth
from mirage_dsl.ops.table import ADD, MAXIMUM, MINIMUM, MUL, SUB, WHERE

MOST = 2**31
"""Numbers from here on do not fit, nor do those below its negative."""

Span = tuple[int, int]
"""The least and the largest that integers can be."""


def narrow(
    block: BlockGraph,
    types: Mapping[str, TensorType],
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> frozenset[str]:
    """The values in i64 of a block that are computed in i32.

    Args:
        block: The block.
        types: Of its values.
        outer: Types of kernel-level values.
        extents: Of all dims, None where symbolic: nothing is known of such positions.
    """
    if not any(outer[n.source].space is MemorySpace.NOWHERE for n in block.loads):
        return frozenset()
    spans: dict[str, Span] = {}
    for node in block.made:
        if types[node.result].dtype == i64:
            span = _span(node, spans, outer, extents)
            if span is not None and span[0] >= -MOST and span[1] < MOST:
                spans[node.result] = span
    readers = users(block.nodes)
    found, before = set(spans), set[str]()
    while found != before:
        before = set(found)
        for value in before:
            if not all(_takes(n, value, found, types) for n in readers[value]):
                found.discard(value)
        # What is computed of a value in i64 is in i64 too.
        for node in block.applies:
            if not _integers(node, types) <= found:
                found.discard(node.result)
    return frozenset(found)


def _span(
    node: ValueNode,
    spans: Mapping[str, Span],
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> Span | None:
    """Between what the results of a node lie; None where that is not known."""
    if isinstance(node, Load):
        kind = outer[node.source]
        known = [extents.get(name) for name in kind.names]
        if kind.space is not MemorySpace.NOWHERE or None in known:
            return None
        # Lanes outside count on, up to less than twice as far.
        return 0, 2 * prod(e or 0 for e in known)
    if not isinstance(node, Apply):
        return None
    given = node.operands[1:] if node.op is WHERE else node.operands
    parts = [_operand(o, spans) for o in given]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    (a, b), (c, d) = parts[0], parts[1]
    if node.op is ADD:
        return a + c, b + d
    if node.op is SUB:
        return a - d, b - c
    if node.op is MUL:
        corners = a * c, a * d, b * c, b * d
        return min(corners), max(corners)
    if node.op in (MAXIMUM, MINIMUM, WHERE):
        return min(a, c), max(b, d)
    return None


def _operand(operand: Operand, spans: Mapping[str, Span]) -> Span | None:
    if isinstance(operand, str):
        return spans.get(operand)
    number = _whole(operand)
    return None if number is None else (number, number)


def _whole(constant: Scalar) -> int | None:
    value = constant.value
    whole = isinstance(value, Fraction) and value.denominator == 1
    return int(value) if whole and not constant.extents else None


def _integers(node: Apply, types: Mapping[str, TensorType]) -> set[str]:
    """The operands in i64 of an operator."""
    return {v for v in node.values if types[v].dtype == i64}


def _takes(
    node: object, value: str, found: set[str], types: Mapping[str, TensorType]
) -> bool:
    """Whether a reader of a value takes it in i32, as it takes its other operands."""
    if not isinstance(node, Apply):
        return False
    if node.result in found or node.op.gives is not None:
        return True
    if node.op.truth is not Truth.COMPARES:
        return False
    numbers = [_whole(o) for o in node.operands if isinstance(o, Scalar)]
    fits = all(n is not None and -MOST <= n < MOST for n in numbers)
    return fits and _integers(node, types) <= found and value in node.values


__all__ = ["narrow"]
