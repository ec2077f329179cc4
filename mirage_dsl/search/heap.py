"""A compiled binary heap of numbered states, ordered by their ranks."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.compiled import inner

HEAP = np.dtype([("rank", np.float64), ("state", np.int64)], align=True)
"""The rank of each state, and beside it, as an array of its own, the heap."""
EMPTY = np.int64(0)
"""Size of an empty heap; of NumPy's type, see `search.workspace`."""


@inner
def _before(heap, a, b):
    """Whether state `a` comes before `b`: it is cheaper, or as cheap and newer."""
    first, second = heap[a]["rank"], heap[b]["rank"]
    return first < second or (first == second and a > b)


@inner
def push(heap, size, state):
    """Add a state to a heap of `size` states."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]["state"]
        if _before(heap, other, state):
            break
        heap[at]["state"] = other
        at = above
    heap[at]["state"] = state


@inner
def pop(heap, size):
    """Take the first state out of a heap of `size` states."""
    first, last, at, below = heap[0]["state"], heap[size - 1]["state"], 0, 1
    while below < size - 1:
        other = heap[below]["state"]
        if below + 1 < size - 1 and _before(heap, heap[below + 1]["state"], other):
            below += 1
            other = heap[below]["state"]
        if _before(heap, last, other):
            break
        heap[at]["state"] = other
        at, below = below, 2 * below + 1
    heap[at]["state"] = last
    return first
