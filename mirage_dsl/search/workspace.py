"""Arrays on which the compiled closure works, and what its numbers mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

LOAD, CONSTANT, ADD, SUB, MUL, DIV, SUM, CONTRACT, JOIN, GATHER, FUNCTION = range(11)
"""Kinds of edge.  JOIN is the sum over iterations, GATHER their concatenation."""

BEFORE, BODY, AFTER = range(3)
"""Stages; a result has the union of its operands' bits, and 3 is not allowed."""

NODES, EDGES, USED, GROUPS, PAIRS, TESTS, HITS, MERGED, FULL = range(9)
"""Slots of `Workspace.count`."""


class Rules(NamedTuple):
    """What the closure of one loop choice may do.

    `enabled` is a mask of edge kinds, `reducible` of dims.  `sigma` has, for each dim,
    σ of the whole and of a tile.  `outer` are the dim masks of the program's values:
    an elementwise product may spread over more dims than its operands only within one
    of them.  A site is an application of a function: it is found by its operands' keys.
    """

    dims: int
    loop: int
    enabled: int
    reducible: int
    members: Words
    sigma: Words
    sigma_loop: Any
    outer: Ints
    site_arity: Ints
    site_keys: Words
    site_pair: Words
    site_word: Words
    site_over: Ints
    site_swaps: Ints


class Workspace(NamedTuple):
    """Arrays of one thread, used again for every closure."""

    shape: Ints
    stage: Ints
    offset: Ints
    inverse_at: Ints
    key: Words
    fingerprint: Words
    formal_inverse: Words
    constant: Ints
    following: Ints
    values: Ints
    slots: Ints
    hashes: Words
    edges: Ints
    group_shape: Ints
    group_stage: Ints
    group_constant: Ints
    group_first: Ints
    group_last: Ints
    maps: Ints
    count: Ints


def workspace(nodes: int = 1 << 15, values: int = 1 << 21) -> Workspace:
    """Empty arrays for at most `nodes` nodes."""
    ints = np.int64
    return Workspace(
        shape=np.empty(nodes, ints),
        stage=np.empty(nodes, ints),
        offset=np.empty(nodes, ints),
        inverse_at=np.empty(nodes, ints),
        key=np.empty(nodes, np.uint64),
        fingerprint=np.empty((nodes, 2), np.uint64),
        formal_inverse=np.empty((nodes, 2), np.uint64),
        constant=np.empty(nodes, ints),
        following=np.empty(nodes, ints),
        values=np.empty(values, ints),
        slots=np.empty(4 * nodes, ints),
        hashes=np.empty(nodes, np.uint64),
        edges=np.empty((8 * nodes, 6), ints),
        group_shape=np.empty(4096, ints),
        group_stage=np.empty(4096, ints),
        group_constant=np.empty(4096, ints),
        group_first=np.empty(4096, ints),
        group_last=np.empty(4096, ints),
        maps=np.empty((4, 1 << 13), ints),
        count=np.zeros(16, ints),
    )
