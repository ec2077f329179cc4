"""Programs of several kernels, searched as one space, as a step of the whole search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirage_dsl.cost.estimate import launched
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
from mirage_dsl.search.space import MOST_LAYERS

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
    Then there are as many as one search takes: so the best program may have fewer than
    it could, which tells that more would not help (`covers`).

    Args:
        program: Operators only.
        max_kernels: Most kernels, besides those of operators that always are one;
            None without a limit but that of one search.
    """
    kinds = Counter(n.op.kind for n in program.applies)
    alone = kinds[Kind.GATHER] + kinds[Kind.LIBRARY]
    most = max_kernels or MOST_KERNELS
    if 1 < most <= kinds[Kind.CONTRACTION] // 2:
        most = MOST_KERNELS
    return min(most + alone, MOST_KERNELS)


def covers(
    found: MultiKernel,
    program: KernelGraph,
    max_kernels: int | None,
    constraints: Constraints,
    least: Callable[[int], float],
) -> bool:
    """Whether one space leaves nothing to single kernels and chains of segments.

    There are no outputs that may share an axis, and no constraints, which the best
    programs may not meet.  And more kernels than the space has would not help: it has
    one for each product, or the best program has fewer, or takes no longer than one
    more launch would.

    Args:
        found: What was found.
        program: Operators only.
        max_kernels: As it was searched with.
        constraints: The same.
        least: What no program of so many kernels takes less than, in µs.
    """
    products = sum(n.op.kind is Kind.CONTRACTION for n in program.applies)
    alike = {frozenset(r.type.names) for r in program.returns}
    if constraints != Constraints() or len(alike) > 1 or products > MOST_KERNELS:
        return False
    if not found.plans or found.own:
        return False
    in_a_row = min(kernels_of(program, max_kernels), MOST_LAYERS)
    best = min(found.plans, key=lambda p: p.microseconds)
    few = products <= in_a_row or len(launched(best.graph)) < in_a_row
    return few or best.microseconds <= least(in_a_row + 1)


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
