"""Programs of several kernels, searched as one space, as a step of the whole search."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.programs.segments import (
    Progress,
    SegmentSearch,
    plans_json,
    plans_of,
)
from mirage_dsl.search.result import Proof
from mirage_dsl.search.sizes.constraints import Constraints

if TYPE_CHECKING:
    from mirage_dsl.search.multi_kernel import MultiKernel

MOST_KERNELS = 4
"""Kernels of a program that is searched as one space."""

MOST_OPERATORS = 24
"""Operators of a program, or of a segment, that is worth a search."""


def one_space(
    program: KernelGraph,
    segments: SegmentSearch,
    *,
    max_kernels: int | None,
    keep: int,
    seed: int,
    progress: Progress,
    enough: float,
) -> MultiKernel:
    """The best plans of a program of several kernels, and what is known of them.

    Args:
        program: Operators only.
        segments: Whose books are kept, and whose deadline and constraints hold.
        max_kernels: Most kernels, besides those of operators that always are one;
            None without a limit but that of one search.
        keep: Most plans.
        seed: Of all random choices.
        progress: Told of progress.
        enough: Estimate in µs below which nothing better is looked for.
    """
    # Here, for it loads compiled code.
    from mirage_dsl.search.multi_kernel import MultiKernel

    if segments.late():
        return MultiKernel()
    if len(program.nodes) > MOST_OPERATORS:
        segments.exhausted = False
        segments.ledger.note(
            f"several kernels: {len(program.nodes)} operators are too many for one "
            f"search, which takes {MOST_OPERATORS}; the program is cut"
        )
        return MultiKernel()
    progress("several kernels", 0, 1, None)
    most = kernels_of(program, max_kernels)
    found = _found(program, segments, most, keep, seed, enough)
    segments.ledger.take_several(found.counters)
    segments.exhausted &= found.complete
    best = found.plans[0].microseconds if found.plans else None
    progress("several kernels", 1, 1, best)
    return found


def kernels_of(program: KernelGraph, max_kernels: int | None) -> int:
    """How many kernels a program may have as one space.

    Where several are allowed, but no more than half of its products, each kernel would
    have to hold two, as attention does, and the limit would decide, not the estimate.
    And a program without products takes as many reads of its rows as it has sums one
    after the other.  Then there are as many as one search takes.

    Args:
        program: Operators only.
        max_kernels: Most kernels, besides those of operators that always are one;
            None without a limit but that of one search.
    """
    kinds = Counter(n.op.kind for n in program.applies)
    alone = kinds[Kind.GATHER] + kinds[Kind.LIBRARY]
    most = max_kernels or MOST_KERNELS
    products = kinds[Kind.CONTRACTION]
    if most > 1 and (most <= products // 2 or not products):
        most = MOST_KERNELS
    return min(most + alone, MOST_KERNELS)


def covers(found: MultiKernel, program: KernelGraph, constraints: Constraints) -> bool:
    """Whether one space leaves nothing to single kernels and chains of segments.

    There are no more products than kernels, no outputs that may share an axis, and no
    constraints, which the best programs may not meet.
    """
    kinds = [n.op.kind for n in program.applies]
    alike = {frozenset(r.type.names) for r in program.returns}
    few = kinds.count(Kind.CONTRACTION) <= MOST_KERNELS
    free = constraints == Constraints()
    return free and few and len(alike) == 1 and bool(found.plans) and not found.own


def _found(
    program: KernelGraph,
    segments: SegmentSearch,
    max_kernels: int,
    keep: int,
    seed: int,
    enough: float,
) -> MultiKernel:
    """What the search finds, or found before an interruption."""
    from mirage_dsl.search.multi_kernel import MultiKernel, multi_kernel

    options = (max_kernels, keep, seed, segments.constraints, segments.hardware, enough)
    key = segments.memo.key("several", to_text(program), *options)
    known = segments.memo.recall(key, lambda document: _read(document, program))
    if known is not None:
        return known
    found = MultiKernel()
    with segments.budget.step():
        multi_kernel(
            program,
            segments.hardware,
            max_kernels=max_kernels,
            budget=segments.budget.now,
            seed=seed,
            keep=keep,
            constraints=segments.constraints,
            found=found,
            enough=enough,
        )
    segments.memo.keep(key, lambda: _written(found, program))
    return found


def _written(found: MultiKernel, program: KernelGraph) -> dict[str, Any]:
    return {
        "plans": plans_json(found.plans, program),
        "cost": found.cost,
        "bound": found.bound,
        "complete": found.complete,
        "own": found.own,
        "counters": dict(found.counters),
    }


def _read(document: dict[str, Any], program: KernelGraph) -> MultiKernel:
    from mirage_dsl.search.multi_kernel import MultiKernel

    return MultiKernel(
        plans_of(document["plans"], program),
        document["cost"],
        document["bound"],
        None,
        bool(document["complete"]),
        bool(document["own"]),
        Counter({str(k): int(v) for k, v in document["counters"].items()}),
    )


def both_proved(first: Proof | None, second: Proof | None) -> Proof | None:
    """What is proved of two forms of a program: the cheaper cost, and the lower bound.

    One of a form alone says nothing of the other one.
    """
    if first is None or second is None:
        return first or second
    bounds = (first.bound, second.bound)
    known = [b for b in bounds if b is not None]
    bound = min(known) if len(known) == len(bounds) else None
    return Proof(min(first.cost, second.cost), bound)
