"""Values that must not be stored, since nothing keeps their exponentials in range.

A shift is put back into the block that sums the exponential.  So a value that scales
with an exponential, and still has the dim over which it will be summed, can only stay
inside of a block; sums, and partial sums, can be stored beside their maxima.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.homogeneity import (
    Degree,
    NotHomogeneousError,
    applied,
    scaling_of,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.table import EXP


def large_exponentials(halved: KernelGraph, definitions: Sequence[Apply]) -> set[str]:
    """Names of the values that scale with an exponential along a dim summed later.

    Args:
        halved: The program over halves.
        definitions: Its operators, and those of further values.
    """
    types = kernel_types(replace(halved, nodes=tuple(definitions)))
    parts = {n for n in halved.extent_of if n.endswith("#")}
    found: set[str] = set()
    for number, node in enumerate(halved.nodes):
        if not isinstance(node, Apply) or node.op is not EXP:
            continue
        try:
            summed = set(scaling_of(halved, number, node.result).summed) - parts
        except NotHomogeneousError:
            continue
        scaled = _scaled(node.result, definitions)
        found.update(n for n in scaled if summed & set(types[n].names))
    return found


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
