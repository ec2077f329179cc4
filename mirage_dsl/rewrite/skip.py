"""Iterations whose mask is wholly false are left out; where it is true, it is gone.

A block bounds its loop by its own place along a dim of the grid.  Before → after, where
nothing is accumulated of what is masked:

    loop(d / 64) {                       loop(d / 64) while(d <= n) {
      c = jt <= it                         c = jt <= it
      w = where(c, s, -inf)        →       w = where(c, s, -inf)
      ...                                  ...

A comparison of the positions along the loop's dim and along one of the grid's is taken
to fail, or to hold, all over a tile.  What follows from constants then is followed
through the block; where every accumulator gets its neutral element, only iterations in
which it may be otherwise are visited.

In iterations in which the comparison is known too, but adds something, it need not be
made:

    loop(d / 64) while(d <= n) {           loop(d / 64) while(d <= n)
      c = jt <= it                           settled(c == 1 if d <= n) {
      w = where(c, s, -inf)          →       c = jt <= it
      ...                                    w = where(c, s, -inf)
                                             ...

In `while` the bound is one that some positions of both tiles meet, in `settled` one
that all of them do.  A prefix that all rows see, `(j <= i) | (j < 7)`, is visited by
all blocks: `while(d <= n | d <= 6)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

from mirage_dsl.core.types import MemorySpace
from mirage_dsl.ir.analysis.settled import followed
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    LoopBound,
    RunningMax,
    Settled,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.printer import bounds_text, settled_text
from mirage_dsl.ir.walk import map_blocks
from mirage_dsl.ops.definition import Term
from mirage_dsl.ops.table import OPERATORS

NEAR = 32 * 2**20
"""Bytes that stay in the L2 cache beside others, whoever reads them."""

_LESS, _LESS_EQUAL = OPERATORS["less"], OPERATORS["less_equal"]


def skip_tiles(graph: KernelGraph) -> KernelGraph | None:
    """The μGraph whose blocks leave out what is masked; None where nothing is."""
    axes = _axes(graph)
    made = map_blocks(graph, lambda block: _bounded(block, axes, graph))
    return None if made == graph else made


def settle_masks(graph: KernelGraph) -> KernelGraph | None:
    """The μGraph whose iterations do without masks where these hide nothing.

    It is for blocks that leave iterations out; None where nothing is settled.
    """
    axes = _axes(graph)

    def settled(block: BlockGraph) -> BlockGraph:
        if not block.bounds or block.settled:
            return block
        masks = (
            replace(m, bound=replace(m.bound, also=None)) for m in _masks(block, axes)
        )
        return replace(block, settled=tuple(masks))

    made = map_blocks(graph, settled)
    return None if made == graph else made


def unproven(graph: KernelGraph) -> str | None:
    """What bounds say of iterations that does not follow; None if all of it does.

    Those that are left out may be needed, or a mask may not be settled: trials at a few
    sizes of tiles do not see what is so at others.
    """
    axes = _axes(graph)
    for block in graph.blocks:
        masks = tuple(_masks(block, axes)) if block.bounds else ()
        for bound in block.bounds:
            if not any(_is_within(bound, other.bound) for other in masks):
                assert block.loop is not None
                what = bounds_text((bound,), block.loop.dim)
                return f"{what} may leave out iterations that are needed"
        sure = tuple(_comparisons(block, axes)) if block.settled else ()
        for settled in block.settled:
            if not any(_is_settled(settled, other) for other in sure):
                assert block.loop is not None
                what = settled_text((settled,), block.loop.dim)
                return f"{what} may be wrong in some iterations"
    return None


def _is_settled(settled: Settled, sure: Settled) -> bool:
    """Whether a truth value is settled at most where it surely is."""
    alike = (settled.value, settled.holds) == (sure.value, sure.holds)
    return alike and _is_within(sure.bound, settled.bound)


def _is_within(bound: LoopBound, other: LoopBound) -> bool:
    """Whether a bound leaves out no more than another one."""
    more = bound.offset - other.offset
    alike = (bound.dim, bound.upper) == (other.dim, other.upper)
    also = -1 if bound.also is None else bound.also
    wide = other.also is None or also >= other.also
    return alike and wide and (more >= 0 if bound.upper else more <= 0)


def _axes(graph: KernelGraph) -> dict[str, str]:
    """The dim of each index value that has one."""
    return {i.name: i.axis[0].name for i in graph.indices if len(i.axis) == 1}


def _bounded(
    block: BlockGraph, axes: Mapping[str, str], graph: KernelGraph
) -> BlockGraph:
    if block.loop is not None and not block.bounds:
        found = dict.fromkeys(m.bound for m in _masks(block, axes))
        block = replace(block, bounds=tuple(found))
    return _evened(block, graph) if block.bounds else block


def _evened(block: BlockGraph, graph: KernelGraph) -> BlockGraph:
    """The block with the dims that bound its loop last among the grid's.

    Blocks of one length are numbered one after the other then, and those that iterate
    least start last (`tile.sizes.counts_down`).  Where tensors are large the order is
    left: blocks that run together are to read the same tiles.
    """
    types, bounding = kernel_types(graph), {b.dim for b in block.bounds}
    read = {n.source for n in block.loads if any(d.loop for d in dims_of(n.axes))}
    extents = derived_extents(graph, graph.extent_of)
    size = 0
    for kind in (types[name] for name in read):
        if kind.space is not MemorySpace.NOWHERE:
            known = [extents.get(name) for name in kind.names]
            size += kind.dtype.itemsize * prod(e or NEAR for e in known)
    if size > NEAR:
        return block
    axes = sorted(block.axes, key=lambda a: any(s.dim in bounding for s in a))
    return replace(block, grid=tuple(s for axis in axes for s in axis))


def _masks(block: BlockGraph, axes: Mapping[str, str]) -> Iterator[Settled]:
    """Comparisons that hide all of an iteration which their bounds do not let through.

    In iterations that these cover they hide nothing.
    """
    starts = tuple(_starts(block, axes))
    for found in _comparisons(block, axes):
        hidden = {found.value: float(not found.holds)}
        if _is_neutral(block, hidden):
            yield found
            continue
        # Where it is hidden, but for what comes first: a prefix that all see.
        for value, number, also in starts if found.bound.upper else ():
            if value not in hidden and _is_neutral(block, {**hidden, value: number}):
                yield replace(found, bound=replace(found.bound, also=also))
                break


def _starts(
    block: BlockGraph, axes: Mapping[str, str]
) -> Iterator[tuple[str, float, int]]:
    """Comparisons of a position along the loop's dim with a number.

    Each with its result in tiles that have no position up to the last number.
    """
    assert block.loop is not None
    places, looped = _places(block, axes), block.loop.dim
    for node in block.applies:
        if node.op not in (_LESS, _LESS_EQUAL):
            continue
        difference = _difference(node, places, int(node.op is _LESS))
        match dict(difference or {}):
            case {"": offset, **sign} if sign == {looped: 1} and offset <= 0:
                # d + offset <= 0 does not hold behind -offset.
                yield node.result, 0.0, -offset
            case {"": offset, **sign} if sign == {looped: -1} and offset > 0:
                # offset - d <= 0 holds from offset on.
                yield node.result, 1.0, offset - 1
            case _:
                pass


def _comparisons(block: BlockGraph, axes: Mapping[str, str]) -> Iterator[Settled]:
    """Where comparisons of positions hold all over tiles, and where they fail."""
    places = _places(block, axes)
    for node in block.applies:
        if node.op not in (_LESS, _LESS_EQUAL):
            continue
        difference = _difference(node, places, int(node.op is _LESS))
        for held in (False, True) if difference is not None else ():
            bound = _bound_of(difference or {}, block, held=held)
            if bound is not None:
                yield Settled(node.result, not held, bound)


# -- Comparisons of positions ----------------------------------------------------------

Place = Mapping[str, int]
"""A sum of positions: how often each dim is in it; a whole number by the name ``."""


def _places(block: BlockGraph, axes: Mapping[str, str]) -> dict[str, Place]:
    """The values of a block that are sums of positions and whole numbers."""
    found: dict[str, Place] = {}
    for node in block.nodes:
        if isinstance(node, Load) and node.source in axes:
            found[node.result] = {axes[node.source]: 1}
        elif isinstance(node, Apply) and node.op.term in (Term.ADD, Term.SUB):
            total = _difference(node, found, 0, -1 if node.op.term is Term.SUB else 1)
            if total is not None:
                found[node.result] = total
    return found


def _difference(
    node: Apply, places: Mapping[str, Place], more: int, sign: int = -1
) -> Place | None:
    """The first operand less the second one, or their sum, and so much more."""
    total = {"": more}
    for operand, factor in zip(node.operands, (1, sign), strict=True):
        if isinstance(operand, str):
            place = places.get(operand)
        else:
            value = operand.value
            whole = isinstance(value, Fraction) and value.denominator == 1
            place = {"": int(value)} if whole and not operand.extents else None
        if place is None:
            return None
        for name, count in place.items():
            total[name] = total.get(name, 0) + factor * count
    return {n: c for n, c in total.items() if c or not n}


def _bound_of(difference: Place, block: BlockGraph, *, held: bool) -> LoopBound | None:
    """Where `difference <= 0` is not `held` somewhere in a tile; None if unknown."""
    assert block.loop is not None
    looped, offset = block.loop.dim, difference[""]
    others = [n for n in difference if n not in ("", looped)]
    if len(others) != 1 or looped not in difference:
        return None
    (dim,) = others
    signs = difference[looped], difference[dim]
    if signs not in ((1, -1), (-1, 1)) or block.grid_split(dim) is None:
        return None
    if not _is_in_part(block, dim):
        return None
    if signs[0] > 0:
        # d - n + offset <= 0, or more than 0.
        return LoopBound(dim, held is False, -offset if not held else 1 - offset)
    return LoopBound(dim, held, offset if not held else offset - 1)


def _is_in_part(block: BlockGraph, dim: str) -> bool:
    """Whether all that the block sees of a dim is its part."""
    pieces = {d for n in block.loads for d in dims_of(n.axes) if d.name == dim}
    return all(d.grid and not d.loop for d in pieces)


# -- What follows ----------------------------------------------------------------------


def _is_neutral(block: BlockGraph, known: dict[str, float]) -> bool:
    """Whether every accumulator gets its neutral element, given some values."""
    known = dict(known)
    for node in block.nodes:
        match node:
            case Apply() if node.result not in known:
                value = followed(node, known)
                if value is not None:
                    known[node.result] = value
            case RunningMax():
                if known.get(node.operand) != -math.inf:
                    return False
                known[node.result] = math.nan
            case Accumulate():
                if not _adds_nothing(node, known):
                    return False
            case Apply() | Load() | Store():
                pass
    return True


def _adds_nothing(node: Accumulate, known: Mapping[str, float]) -> bool:
    reduction, value = node.reduction, known.get(node.operand)
    if reduction is None:
        return False
    # A running maximum stays what it was.
    return value is not None and (math.isnan(value) or value == reduction.neutral)


__all__ = ["settle_masks", "skip_tiles", "unproven"]
