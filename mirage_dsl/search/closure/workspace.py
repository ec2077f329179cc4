"""Arrays on which the compiled closure works, and what its numbers mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError

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
WAITING, MOST_NODES, MOST_VALUES, APART = map(np.int64, range(9, 13))
"""Slots of `Workspace.counts`; the last three are settings: two limits,
and whether equal values are kept apart."""

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

FOUND = np.dtype(
    [
        *((n, _INT) for n in ("kind", "arg", "shape", "stage", "constant")),
        ("operands", _INT, (3,)),
        *((n, _WORD) for n in ("f0", "f1")),
    ]
)
"""A useful result that is still to be evaluated: its edge, and what it will be.

Residues of a LOAD or a CONSTANT are already at the end of the pool."""

PART = np.dtype([("over", _INT), ("sigma", _WORD), ("salt", _WORD)])
"""A set of dims over which two shapes may be contracted: its σ, the result's salt."""

SITE = np.dtype(
    [
        *((name, _INT) for name in ("arity", "over", "along", "way", "swaps")),
        *((name, _WORD) for name in ("word", "f0", "f1")),
        ("keys", _WORD, (3,)),
    ]
)
"""An application of a function, found by its operands' keys: dims that it reduces, the
one that it scans, how it reduces (`search.useful.terms`), whether operands may be
swapped, what keys its residues, the result's fingerprint."""

MAX_PARTS = 1 << 10
"""Sets of dims over which one pair of shapes may be contracted."""


MOST_DIMS = 48
"""Bits of a packed shape (`search.closure.closure`)."""
MOST_OUTER = 1 << 12
"""Values of a program, and applications of functions in it."""
MOST_SLOTS = 1 << 22
"""Slots of the table of S; `abstract.MAX_MEMBERS` needs a quarter of them."""

RULES = np.dtype(
    [
        *((n, _INT) for n in ("dims", "loop", "arithmetic", "summed", "contracted")),
        *((n, _INT) for n in ("outer_count", "site_count", "everything")),
        *((n, _WORD) for n in ("sigma_loop", "mask")),
        ("sigma", _WORD, (MOST_DIMS, 2)),
        ("outer", _INT, (MOST_OUTER,)),
        ("sites", SITE, (MOST_OUTER,)),
        ("members", _WORD, (MOST_SLOTS,)),
    ]
)

LARGEST = 1 << 15
_MOST_EDGES = 8 * LARGEST
_MOST_FOUND = 1 << 17
MOST_RESIDUES = 1 << 21

WORKSPACE = np.dtype(
    [
        ("counts", _INT, (16,)),
        ("nodes", NODE, (LARGEST,)),
        ("groups", GROUP, (4096,)),
        ("edges", EDGE, (_MOST_EDGES,)),
        ("found", FOUND, (_MOST_FOUND,)),
        ("values", _INT, (MOST_RESIDUES,)),
        ("slots", _INT, (4 * LARGEST,)),
        ("maps", _INT, (4, 1 << 13)),
        *((n, _INT, (3,)) for n in ("operands", "starts", "strides")),
        ("parts", PART, (MAX_PARTS,)),
    ]
)


class Rules:
    """What the closure of one loop choice may do: one record, so one pointer.

    Compiled functions get one address; tuples of arrays would be a hundred arguments
    each time one calls another, and take several times as long to compile.

    `arithmetic` is a mask of operators of two nodes (`closure.ARITHMETIC`), `summed`
    and `contracted` are masks of dims that sums and products may reduce.  `sigma` has,
    for each dim, σ of the whole and of a tile.  `outer` are the dim masks of the
    program's values: an elementwise product may spread over more dims than its operands
    only within one of them.  `members` is the table of S, of `mask + 1` slots; with
    `everything` all values count as useful.
    """

    dims: int
    loop: int
    arithmetic: int
    summed: int
    contracted: int
    outer_count: int
    site_count: int
    everything: int
    sigma_loop: Any
    mask: Any
    sigma: Words
    outer: Ints
    sites: Any
    members: Words

    def __new__(  # noqa: PYI034, a record is no object of the class
        cls,
        *,
        dims: int,
        loop: int,
        arithmetic: int,
        summed: int,
        contracted: int,
        members: Words,
        sigma: Words,
        sigma_loop: Any,
        outer: Ints,
        sites: Any,
        everything: bool = False,
    ) -> Rules:
        """The record; no object of this class, which only has its types."""
        for what, given, most in (
            ("dims", dims, MOST_DIMS),
            ("values", max(len(outer), len(sites)), MOST_OUTER),
            ("useful expressions", len(members), MOST_SLOTS),
        ):
            if given > most:
                raise UnsupportedError(
                    f"the program has {given} {what}; one kernel is searched for at "
                    f"most {most}: split the program"
                )
        made: Any = np.zeros(1, RULES).view(np.recarray)[0]
        made.dims, made.loop, made.arithmetic = dims, loop, arithmetic
        made.summed, made.contracted = summed, contracted
        made.sigma_loop, made.everything = sigma_loop, everything
        made.mask = len(members) - 1
        made.members[: len(members)] = members
        made.sigma[: len(sigma)] = sigma
        made.outer_count, made.site_count = len(outer), len(sites)
        made.outer[: len(outer)] = outer
        made.sites[: len(sites)] = sites
        return made


class Workspace:
    """Arrays of one thread in one record, used again for every closure.

    `values` is the pool of residues, `slots` the hash table of nodes, `counts` has the
    slots named above; `maps`, `operands`, `starts`, `strides` and `parts` are scratch.
    """

    nodes: Any
    groups: Any
    edges: Any
    found: Any
    values: Ints
    slots: Ints
    maps: Ints
    operands: Ints
    starts: Ints
    strides: Ints
    parts: Any
    counts: Ints


def workspace(nodes: int = LARGEST, values: int = MOST_RESIDUES) -> Workspace:
    """An empty workspace for at most `nodes` nodes and `values` residues."""
    made: Any = np.empty(1, WORKSPACE).view(np.recarray)[0]
    made.counts[MOST_NODES] = min(nodes, LARGEST)
    made.counts[MOST_VALUES] = min(values, MOST_RESIDUES)
    made.counts[APART] = 0
    # Compiled code reads the map of an operand that is not there, though for nothing.
    made.maps[:] = 0
    reset(made)
    return made


def reset(w: Workspace) -> None:
    """Empty the workspace."""
    w.counts[:MOST_NODES] = 0
    w.slots[:] = -1
