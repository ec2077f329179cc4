"""Positions that a kernel computes with: what is known of them before it runs.

An index that is computed of an index value and of extents is the same in every call, so
what it is at each position of its dim is known here: whether all of them are inside,
and whether elements that follow one another are picked.  With these nodes

    b = less i, p                            a = gather x, f dim(p)
    f = where b, i, 0                        c = where b, a, d

elements of `a` matter only where `b` holds, and there the index is `i`.  So `a` is a
load of elements one behind the other, that reads nothing where `b` does not hold.

Positions are i64 in programs, as in PyTorch.  In a kernel each takes two registers, and
a comparison two instructions, though extents say how large they get.  What is never
larger than 32 bits hold, and goes nowhere but to such values, to comparisons and to
conversions, is computed in i32: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import MemorySpace, Scalar, TensorType, boolean, i64
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Operand,
    ValueNode,
    dims_of,
)
from mirage_dsl.ir.walk import makers, users
from mirage_dsl.ops.definition import Kind, Truth
from mirage_dsl.ops.table import ADD, CAST, MAXIMUM, MINIMUM, MUL, SUB, WHERE
from mirage_dsl.tile.program import Known

LONGEST = 1 << 16
"""Positions up to which they are looked at one by one."""
FEW_BREAKS = 8
"""Elements follow one another if at most one of so many does not."""

Lanes = NDArray[np.bool_]
"""Positions of a dim of which something holds."""
Values = NDArray[Any]
"""Integers or truth values."""


@dataclass(frozen=True)
class Picked:
    """How a gather is loaded.

    Attributes:
        index: The value that tells the positions.
        known: What is known of them, in the lanes that are read.
        under: A truth value: lanes where it is not `holds` are not read.
        holds: See `under`.
    """

    index: str
    known: Known = "no"
    under: str | None = None
    holds: bool = True


def picked(
    block: BlockGraph,
    types: Mapping[str, TensorType],
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> Mapping[str, Picked]:
    """By the names of a block's gathers, how they are loaded.

    Args:
        block: The block.
        types: Of its values.
        outer: Of tensors.
        extents: Of all dims.
    """
    gathers = [n for n in block.applies if n.op.kind is Kind.GATHER]
    if not gathers:
        return {}
    looking = _Looking(block, types, outer, extents)
    return {node.result: looking.at(node) for node in gathers}


class _Looking:
    def __init__(
        self,
        block: BlockGraph,
        types: Mapping[str, TensorType],
        outer: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
    ) -> None:
        self._made: Mapping[str, ValueNode] = makers(block)
        self._place = {n.result: at for at, n in enumerate(block.nodes)}
        self._users: Mapping[str, list[BlockNode]] = users(block.nodes)
        self._types, self._outer, self._extents = types, outer, extents
        self._settled = {s.value for s in block.settled}
        self._values: dict[str, Values | None] = {}

    def at(self, node: Apply) -> Picked:
        """How one gather is loaded."""
        index, dim = node.values[1], str(node.attr("dim"))
        size, values = self._extents.get(dim), self._of(index)
        if values is None or size is None:
            return Picked(index, "no", *self._chosen_by(node))
        needed = self._needed(node.result, self._dim(index))
        under, holds = self._condition(needed, self._dim(index), node)
        if under is None:
            needed = np.ones(len(values), np.bool_)
        index = self._shortest(index, needed)
        values = self._of(index)
        assert values is not None
        some = values[needed]
        if some.size and (some.min() < 0 or some.max() >= size):
            return Picked(node.values[1])
        steps = np.diff(values)[needed[1:] & needed[:-1]]
        breaks = int((steps != 1).sum())
        row = len(steps) > 0 and breaks * FEW_BREAKS <= len(steps)
        return Picked(index, "in_row" if row else "apart", under, holds)

    # -- What values are at each position of their dim -----------------------------

    def _dim(self, value: str) -> str:
        (name,) = self._types[value].names
        return name

    def _of(self, value: str) -> Values | None:
        """What a value of integers or truth values is; None if nobody knows."""
        if value not in self._values:
            self._values[value] = self._computed(value)
        return self._values[value]

    def _computed(self, value: str) -> Values | None:
        kind, node = self._types[value], self._made[value]
        if len(kind.names) != 1 or value in self._settled:
            return None
        extent = self._extents.get(kind.names[0])
        if extent is None or extent > LONGEST:
            return None
        if isinstance(node, Load):
            counts = self._outer[node.source].space is MemorySpace.NOWHERE
            return (
                np.arange(extent) if counts and len(dims_of(node.axes)) == 1 else None
            )
        exact = kind.dtype in (i64, boolean)
        if not isinstance(node, Apply) or not exact:
            return None
        if node.op.kind is not Kind.ELEMENTWISE:
            return None
        operands: list[Values] = []
        for operand in node.operands:
            own = self._number(operand) if isinstance(operand, Scalar) else None
            own = self._of(operand) if isinstance(operand, str) else own
            if own is None:
                return None
            operands.append(own)
        with np.errstate(all="ignore"):
            found = np.asarray(node.op.numpy(*operands))
        if found.dtype.kind == "f":
            return None
        found = np.broadcast_to(found, (extent,))
        return found.astype(np.bool_ if kind.dtype == boolean else np.int64)

    def _number(self, constant: Scalar) -> Values | None:
        """A constant, if it is an integer."""
        sizes = {n: self._extents.get(n) for n, _ in constant.extents}
        known = {n: e for n, e in sizes.items() if e is not None}
        if len(known) < len(sizes):
            return None
        number = constant.at(known)
        return np.asarray(int(number)) if number == int(number) else None

    # -- Where elements matter -----------------------------------------------------

    def _needed(self, value: str, dim: str) -> Lanes:
        """At which positions of a dim anything depends on a value's elements."""
        extent = self._extents[dim]
        assert extent is not None
        found = np.zeros(extent, np.bool_)
        for user in self._users.get(value, []):
            found |= self._through(user, value, dim)
            if found.all():
                break
        return found

    def _through(self, user: BlockNode, value: str, dim: str) -> Lanes:
        """The same of what one node makes of the value."""
        extent = self._extents[dim]
        assert extent is not None
        whole = np.ones(extent, np.bool_)
        if not isinstance(user, Apply):
            return whole
        if user.op.kind is not Kind.ELEMENTWISE and user.op is not CAST:
            return whole
        if dim not in self._types[user.result].names:
            return whole
        below = self._needed(user.result, dim)
        if user.op is not WHERE or user.operands.count(value) != 1:
            return below
        chosen = user.operands[0]
        holds = self._of(chosen) if isinstance(chosen, str) else None
        if holds is None or chosen == value or self._dim(str(chosen)) != dim:
            return below
        taken = holds.astype(np.bool_)
        return below & (taken if user.operands[1] == value else ~taken)

    def _condition(
        self, needed: Lanes, dim: str, node: Apply
    ) -> tuple[str | None, bool]:
        """A truth value ahead of a gather that tells where its elements matter."""
        if needed.all():
            return None, True
        for name, place in self._place.items():
            kind = self._types.get(name)
            if kind is None or kind.dtype != boolean or kind.names != (dim,):
                continue
            if place > self._place[node.result]:
                break
            holds = self._of(name)
            if holds is None:
                continue
            for side in (True, False):
                if ((holds == side) == needed).all():
                    return name, side
        return None, True

    def _chosen_by(self, node: Apply) -> tuple[str | None, bool]:
        """A truth value that is data, ahead of a gather, under which alone it is read.

        Of new rows of a cache few lanes are taken; the others are not loaded.
        """
        value, readers = node.result, self._users.get(node.result, [])
        while len(readers) == 1 and isinstance(user := readers[0], Apply):
            if user.op is WHERE and user.operands.count(value) == 1:
                chosen = user.operands[0]
                ahead = isinstance(chosen, str) and self._is_ahead(chosen, node)
                if ahead and chosen != value:
                    return str(chosen), user.operands[1] == value
            if user.op.kind is not Kind.ELEMENTWISE and user.op is not CAST:
                break
            value, readers = user.result, self._users.get(user.result, [])
        return None, True

    def _is_ahead(self, chosen: str, node: Apply) -> bool:
        """Whether lanes of a truth value are known where a gather is loaded."""
        if chosen in self._settled or chosen not in self._types:
            return False
        kind, own = self._types[chosen], self._types[node.result]
        ahead = self._place[chosen] < self._place[node.result]
        return ahead and kind.dtype == boolean and {*kind.names} <= {*own.names}

    def _shortest(self, index: str, needed: Lanes) -> str:
        """What is chosen of at all positions that matter, in an index's place."""
        node, values = self._made[index], self._of(index)
        assert values is not None
        if isinstance(node, Apply) and node.op is WHERE:
            for branch in node.operands[1:]:
                other = self._of(branch) if isinstance(branch, str) else None
                if other is None or self._types[str(branch)].names != (
                    self._dim(index),
                ):
                    continue
                if (other[needed] == values[needed]).all():
                    return self._shortest(str(branch), needed)
        return index


# -- In 32 bits ------------------------------------------------------------------------


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
