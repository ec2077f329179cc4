"""Structures that cancel no more than the program does, kept beside cheaper ones.

Sums and differences commute, so sum(x - y) is also sum(x) - sum(y), which may be
cheaper; but large sums may cancel where the small differences were accurate.  What is
only equal in exact arithmetic fails the stability verdict later, and if all structures
of a configuration are of that kind, nothing is left.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ops.definition import Term
from mirage_dsl.search.closure.saturate import Saturation
from mirage_dsl.search.closure.workspace import SUB
from mirage_dsl.search.extract.extract import Condensed, Extraction, cheapest
from mirage_dsl.search.space import Space

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CALM = 4
"""Structures of a configuration that are kept for their accuracy, at most."""

MOVED_US = 1e3
"""What a moved difference costs more where structures without are looked for."""


def moved_differences(
    space: Space, saturation: Saturation, names: AbstractSet[str] | None = None
) -> Bools:
    """Edges that subtract where the program does not.

    Args:
        space: The program.
        saturation: Its closure.
        names: Values that are the program's own; all of the space unless given.
    """
    own = [
        key
        for v, key in zip(space.values, saturation.program_keys, strict=True)
        if v.op is not None and v.op.term is Term.SUB
        if names is None or v.name in names
    ]
    made = saturation.key[saturation.edges[:, 0]]
    return (saturation.edges[:, 1] == SUB) & ~np.isin(made, np.array(own, made.dtype))


def calm_ones(
    found: Extraction, part: Condensed, costs: Floats, moved: Bools
) -> list[tuple[tuple[int, ...], float]]:
    """DAGs without moved differences, if others have them; extracted anew if need be.

    Args:
        found: The cheapest DAGs of a configuration.
        part: What they are of.
        costs: Of its edges.
        moved: Which edges are moved differences.
    """
    if not any(moved[list(c)].any() for c in found.chosen):
        return []
    pairs = list(zip(found.chosen, found.costs, strict=True))
    accurate = [(c, cost) for c, cost in pairs if not moved[list(c)].any()]
    if not accurate:
        dearer = cheapest(part, costs + MOVED_US * moved, CALM)
        accurate = [
            (c, float(costs[list(c)].sum()))
            for c in dearer.chosen
            if not moved[list(c)].any()
        ]
    return accurate
