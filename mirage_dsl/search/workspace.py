"""Arrays on which the compiled closure works, and what its numbers mean."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# Constants of NumPy's type: Numba compiles a function anew for each literal integer.
LOAD, CONSTANT, ADD, SUB, MUL, DIV, SUM, CONTRACT, JOIN, GATHER, FUNCTION = map(
    np.int64, range(11)
)
"""Kinds of edge.  JOIN is the sum over iterations, GATHER their concatenation."""

NONE = np.int64(-1)
"""No operand."""
NO_ARG = np.int64(0)

BEFORE, BODY, AFTER = map(np.int64, range(3))
"""Stages; a result has the union of its operands' bits, and 3 is not allowed."""

NODES, EDGES, USED, GROUPS, PAIRS, TESTS, HITS, MERGED, FULL = map(np.int64, range(9))
"""Slots of `Workspace.counts`."""

_INT, _WORD = np.int64, np.uint64

NODE = np.dtype(
    [
        *((name, _INT) for name in ("shape", "stage", "offset", "inverse_at")),
        *((name, _INT) for name in ("constant", "following")),
        *((name, _WORD) for name in ("key", "hash", "f0", "f1", "i0", "i1")),
    ]
)
"""A value: where its residues and their inverses begin, whether it is a constant (2 if
it is 1, 3 if it is -1), the next node of its group; abstract key, hash of everything
that tells it from others, components of its fingerprint and of the formal inverse."""

GROUP = np.dtype([(n, _INT) for n in ("shape", "stage", "constant", "first", "last")])
"""Nodes of equal shape, stage and constancy, as a list in order of birth."""

EDGE = np.dtype([(n, _INT) for n in ("node", "kind", "a", "b", "c", "arg")])
"""A way to make a node from up to three others; -1 for none."""

SITE = np.dtype(
    [
        *((name, _INT) for name in ("arity", "over", "swaps")),
        *((name, _WORD) for name in ("word", "f0", "f1", "key0", "key1", "key2")),
    ]
)
"""An application of a function, found by its operands' keys: dims that it reduces,
whether operands may be swapped, what keys its residues, the result's fingerprint."""

MAX_PARTS = 1 << 10
"""Sets of dims over which one pair of shapes may be contracted."""


class Rules(NamedTuple):
    """What the closure of one loop choice may do.

    `enabled` is a mask of edge kinds, `reducible` of dims.  `sigma` has, for each dim,
    σ of the whole and of a tile.  `outer` are the dim masks of the program's values:
    an elementwise product may spread over more dims than its operands only within one
    of them.
    """

    dims: int
    loop: int
    enabled: int
    reducible: int
    members: Words
    sigma: Words
    sigma_loop: Any
    outer: Ints
    sites: Any


class Workspace(NamedTuple):
    """Arrays of one thread, used again for every closure.

    `values` is the pool of residues, `slots` the hash table of nodes, `maps`, `parts`,
    `sigmas` and `salts` are scratch, `counts` has the slots named above.
    """

    nodes: Any
    groups: Any
    edges: Any
    values: Ints
    slots: Ints
    maps: Ints
    parts: Ints
    sigmas: Words
    salts: Words
    counts: Ints


def workspace(nodes: int = 1 << 15, values: int = 1 << 21) -> Workspace:
    """Empty arrays for at most `nodes` nodes and `values` residues."""
    return Workspace(
        nodes=np.empty(nodes, NODE),
        groups=np.empty(4096, GROUP),
        edges=np.empty(8 * nodes, EDGE),
        values=np.empty(values, _INT),
        slots=np.empty(4 * nodes, _INT),
        maps=np.empty((4, 1 << 13), _INT),
        parts=np.empty(MAX_PARTS, _INT),
        sigmas=np.empty(MAX_PARTS, _WORD),
        salts=np.empty(MAX_PARTS, _WORD),
        counts=np.zeros(16, _INT),
    )


def reset(w: Workspace) -> None:
    """Empty the workspace."""
    w.counts[:] = 0
    w.slots[:] = -1
