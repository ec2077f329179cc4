"""Whether two graphs take and give the same tensors, and which dims correspond."""

from __future__ import annotations

from collections.abc import Iterator

from mirage_dsl.core.types import Axis, TensorType, axis_text
from mirage_dsl.ir.graph import KernelGraph

Correspondence = tuple[Axis, Axis]
"""An axis of the program and the same axis of the candidate."""


def interface_difference(candidate: KernelGraph, program: KernelGraph) -> str | None:
    """What differs between the interfaces of two graphs, or None."""
    for what, theirs, ours in (
        ("inputs", candidate.inputs, program.inputs),
        ("outputs", candidate.returns, program.returns),
    ):
        if len(theirs) != len(ours):
            return (
                f"the candidate has {len(theirs)} {what}, the program has {len(ours)}"
            )
    for what, theirs, ours in _interface_types(candidate, program):
        difference = _type_difference(candidate, theirs, program, ours)
        if difference is not None:
            return f"{what}: {difference}"
    return None


def corresponding_axes(
    candidate: KernelGraph, program: KernelGraph
) -> list[Correspondence]:
    """All axes of the interface, those of the program first in each pair."""
    return [
        (ours, theirs)
        for _, theirs_type, ours_type in _interface_types(candidate, program)
        for ours, theirs in zip(ours_type.axes, theirs_type.axes, strict=True)
    ]


def _interface_types(
    candidate: KernelGraph, program: KernelGraph
) -> Iterator[tuple[str, TensorType, TensorType]]:
    for i, (a, b) in enumerate(zip(candidate.inputs, program.inputs, strict=True)):
        yield f"input {i} ({b.name})", a.type, b.type
    for i, (a, b) in enumerate(zip(candidate.returns, program.returns, strict=True)):
        yield f"output {i} ({b.value})", a.type, b.type


def _type_difference(
    candidate: KernelGraph, theirs: TensorType, program: KernelGraph, ours: TensorType
) -> str | None:
    if theirs.dtype != ours.dtype:
        return f"{theirs.dtype} in the candidate, {ours.dtype} in the program"
    if len(theirs.axes) != len(ours.axes):
        return f"{theirs} in the candidate, {ours} in the program"
    for i, (a, b) in enumerate(zip(theirs.axes, ours.axes, strict=True)):
        found, expected = _extent(candidate, a), _extent(program, b)
        if found != expected:
            return (
                f"axis {i} is {axis_text(a)} = {found} in the candidate, "
                f"{axis_text(b)} = {expected} in the program"
            )
    return None


def _extent(graph: KernelGraph, axis: Axis) -> int | None:
    extent = 1
    for dim in axis:
        known = graph.extent_of.get(dim.name)
        if known is None:
            return None
        extent *= known
    return extent
