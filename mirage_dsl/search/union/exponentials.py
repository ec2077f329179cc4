"""Values that must not be stored, since nothing keeps their exponentials in range.

A shift is put back into the block that sums the exponential.  So a value that scales
with an exponential, and still has the dim over which it will be summed, can only stay
inside of a block; sums, and partial sums, can be stored beside their maxima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.homogeneity import (
    Degree,
    NotHomogeneousError,
    applied,
    scaling_of,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.table import EXP


@dataclass(frozen=True)
class Exponentials:
    """What scales with the exponentials of a program whose shifts are stripped.

    Attributes:
        large: Values that must not be stored.
        shifts: What makes a kernel choose a shift, each by a number: an exponential,
            or a tensor of its partial sums, which is weighted by one where it is read.
    """

    large: frozenset[str] = frozenset()
    shifts: Mapping[str, int] = field(default_factory=dict[str, int])


def exponentials(halved: KernelGraph, definitions: Sequence[Apply]) -> Exponentials:
    """Follow every exponential.

    Args:
        halved: The program over halves.
        definitions: Its operators, and those of further values.
    """
    types = kernel_types(replace(halved, nodes=tuple(definitions)))
    parts = {n for n in halved.extent_of if n.endswith("#")}
    large: set[str] = set()
    shifts: dict[str, int] = {}
    for number, node in enumerate(halved.nodes):
        if not isinstance(node, Apply) or node.op is not EXP:
            continue
        try:
            summed = set(scaling_of(halved, number, node.result).summed)
        except NotHomogeneousError:
            continue
        shifts.setdefault(node.result, 2 * number)
        for name in _scaled(node.result, definitions):
            names = set(types[name].names)
            if (summed - parts) & names:
                large.add(name)
            elif summed & parts & names:
                shifts.setdefault(name, 2 * number + 1)
    return Exponentials(frozenset(large), shifts)


def _scaled(exponential: str, definitions: Sequence[Apply]) -> set[str]:
    """Values that scale with an exponential."""
    degrees: dict[str, Degree] = {exponential: 1}
    for node in definitions:
        if node.result == exponential:
            continue
        try:
            degrees[node.result] = applied(node, degrees)
        except NotHomogeneousError:
            # Neither with it nor without it: as bad.
            degrees[node.result] = 1
    return {name for name, degree in degrees.items() if degree}
