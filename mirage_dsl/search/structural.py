"""The structural search of a segment: what `SegmentSearch` is given to call."""

from __future__ import annotations

from collections.abc import Callable

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.strip import strip_shifts
from mirage_dsl.search.segments import Found, Structures

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage, how much of it is done, of how much, and the best µs."""


def structural_search(
    seed: int, threads: int | None, deadline: float | None
) -> Structures:
    """The closure search of a segment without the shifts that keep it in range."""
    from mirage_dsl.search.structures import structures

    def run(segment: KernelGraph) -> Found:
        plain = strip_shifts(segment)
        found = structures(plain, threads=threads, deadline=deadline, seed=seed)
        return Found(
            tuple(s.block for s in found.structures),
            found.complete,
            len(plain.nodes) < len(segment.nodes),
            found.counters,
        )

    return run


def silent(stage: str, done: int, total: int, best: float | None) -> None:
    """The progress of nobody."""
