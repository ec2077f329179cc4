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
        before: Dims of the parts that come before.
        dim: Its own that is joined.
        axes: Of the whole, in the value's order.
        steps: Of each axis of the value, what its stride in elements is a multiple of:
            all of it but symbolic extents.
    """

    whole: str
    axis: int
    before: tuple[str, ...]
    dim: str
    axes: tuple[int, ...]
    steps: tuple[int, ...]


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
            if _is_simple(types[value]) and _is_simple(types[node.result]):
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


def _is_simple(kind: TensorType) -> bool:
    """One dim for each axis, row-major."""
    return kind.layout is None and all(len(axis) == 1 for axis in kind.axes)


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
    steps = outer.steps if outer else _steps(whole, sizes)
    before = [sizes.get(d) for d in joined[:at]]
    known = [e for e in before if e is not None]
    start = sum(known) if len(known) == len(before) else 1
    along = whole.names.index(to)
    offset = start * steps[along] * whole.dtype.itemsize
    if part.dtype != whole.dtype or offset % ALIGNMENT:
        return None
    axes = tuple(whole.names.index(to if n == joined[at] else n) for n in part.names)
    return Place(
        node.result,
        along,
        joined[:at],
        joined[at],
        axes,
        tuple(steps[a] for a in axes),
    )


def _steps(kind: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for name in reversed(kind.names):
        steps.insert(0, step)
        step *= sizes.get(name, 1)
    return tuple(steps)


__all__ = ["ALIGNMENT", "Place", "built", "places"]
