"""A compiled binary heap of numbered states, ordered by their ranks."""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from mirage_dsl.search.compiled import inner


@inner
def _before(rank, a, b):
    """Whether state `a` comes before `b`: it is cheaper, or as cheap and newer."""
    return rank[a] < rank[b] or (rank[a] == rank[b] and a > b)


@inner
def push(heap, size, rank, state):
    """Add a state to a binary heap of `size` states."""
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if _before(rank, heap[above], state):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = state


@inner
def pop(heap, size, rank):
    """Take the first state out of a heap of `size` states."""
    first, last, size = heap[0], heap[size - 1], size - 1
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _before(rank, heap[below + 1], heap[below]):
            below += 1
        if _before(rank, last, heap[below]):
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last
    return first
