"""Concatenations that cost nothing: kernels store their results where they belong.

A kernel-level concatenation copies.  Where a block graph makes an operand, it can as
well store it into its part of the whole, which is then allocated before the kernel
starts.  Only operands that are made otherwise are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import TensorType

ALIGNMENT = 16
"""Bytes at whose multiples parts start: kernels access them as aligned tensors."""


@dataclass(frozen=True)
class Place:
    """Where a value lies.

    Attributes:
        whole: The concatenation that it is a part of.
        axis: Of the whole, along which it is a part.
        start: Where the part starts.
        count: How far it goes.
        axes: Of the whole, in the value's order.
        strides: In elements, for each axis of the value.
    """

    whole: str
    axis: int
    start: int
    count: int
    axes: tuple[int, ...]
    strides: tuple[int, ...]


def places(
    graph: KernelGraph,
    types: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> dict[str, Place]:
    """The places of all values that are made inside of a concatenation."""
    sizes = {name: extent for name, extent in extents.items() if extent is not None}
    made = {result for block in graph.blocks for result in block.results}
    taken = {r.value for r in graph.returns}
    candidates: dict[str, tuple[Apply, int]] = {}
    for node in graph.nodes:
        if isinstance(node, BlockGraph) or node.op.kind is not Kind.CONCAT:
            continue
        for at, value in enumerate(node.values):
            if value in taken or value not in made:
                continue
            if _is_simple(types[value], sizes) and _is_simple(
                types[node.result], sizes
            ):
                candidates[value] = (node, at)
                taken.add(value)
                made.add(node.result)
    found: dict[str, Place] = {}
    # A whole that is itself a part comes before its own parts.
    for value, (node, at) in reversed(candidates.items()):
        place = _place(value, node, at, types, sizes, found.get(node.result))
        if place is not None:
            found[value] = place
    return found


def built(places: Mapping[str, Place]) -> frozenset[str]:
    """The concatenations that kernels store into."""
    return frozenset(p.whole for p in places.values())


def _is_simple(kind: TensorType, sizes: Mapping[str, int]) -> bool:
    """One dim of known extent for each axis, row-major."""
    return kind.layout is None and all(
        len(axis) == 1 and axis[0].name in sizes for axis in kind.axes
    )


def _place(
    value: str,
    node: Apply,
    at: int,
    types: Mapping[str, TensorType],
    sizes: Mapping[str, int],
    outer: Place | None,
) -> Place | None:
    """The place of an operand; None if it is not aligned or has another format."""
    joined, to = node.attr("dims"), str(node.attr("to"))
    assert isinstance(joined, tuple)
    whole, part = types[node.result], types[value]
    strides = outer.strides if outer else _row_major(whole, sizes)
    start = sum(sizes[d] for d in joined[:at])
    along = whole.names.index(to)
    offset = start * strides[along] * whole.dtype.itemsize
    if part.dtype != whole.dtype or offset % ALIGNMENT:
        return None
    axes = tuple(whole.names.index(to if n == joined[at] else n) for n in part.names)
    return Place(
        node.result,
        along,
        start,
        sizes[joined[at]],
        axes,
        tuple(strides[a] for a in axes),
    )


def _row_major(kind: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for name in reversed(kind.names):
        strides.insert(0, step)
        step *= sizes[name]
    return tuple(strides)


__all__ = ["ALIGNMENT", "Place", "built", "places"]
