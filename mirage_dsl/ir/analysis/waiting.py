"""What a kernel computes before it waits for the kernel ahead of it.

A kernel that is launched early (`pdl`) waits before it reads what the kernel ahead
makes, and before it stores.  If what that kernel makes is needed after the loop only,
the whole loop may come before the wait: small side products and statistics then cost
next to no time.

That is sound for a reason that all kernels of a chain uphold: none lets the next one
start before its own wait is over.  So when a kernel starts, all kernels but the one
right ahead have ended, and what they have read and written is at rest.  The first
kernel of a μGraph waits at once, for its inputs may be what the kernel ahead makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    Schedule,
    stages_of,
)


def launched_early(graph: KernelGraph, *, first: bool = False) -> KernelGraph:
    """Every kernel may start before the one ahead of it has ended.

    Args:
        graph: A μGraph.
        first: Also the first one, which is then ahead of what a call follows.
    """

    def early(block: BlockGraph) -> Schedule:
        waits = first or block is not graph.blocks[0]
        return replace(block.schedule, pdl=True) if waits else block.schedule

    return graph.with_schedules(early)


def launched_in_turn(graph: KernelGraph) -> KernelGraph:
    """No kernel starts before the one ahead of it has ended."""
    return graph.with_schedules(lambda b: replace(b.schedule, pdl=False, prefetch=0))


def behind_kernels(graph: KernelGraph) -> Iterator[tuple[BlockGraph, AbstractSet[str]]]:
    """Block graphs that follow another one, each with what the μGraph made so far."""
    made: set[str] = set()
    ahead = None
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            if isinstance(ahead, BlockGraph):
                yield node, frozenset(made)
            made.update(node.results)
        elif not node.is_view or made.intersection(node.values):
            made.add(node.result)
        ahead = node


def after_wait(block: BlockGraph, made: AbstractSet[str]) -> frozenset[str] | None:
    """The values outside of the loop that need what kernels of the μGraph made.

    Args:
        block: A kernel behind another one.
        made: Tensors that kernels of the μGraph made.

    Returns:
        What has to be computed after the wait, which may follow the loop; None where
        the wait comes first: in a kernel that is not launched early, and where the loop
        itself reads such tensors, or stores.
    """
    if not block.schedule.pdl:
        return None
    stages = stages_of(block)
    late: set[str] = set()
    for node in block.nodes:
        match node:
            case Load():
                needs = node.source in made
            case Apply():
                needs = not late.isdisjoint(node.values)
            case Accumulate() if node.kind == JOINED and block.loop is not None:
                # What is concatenated over the loop is stored in it.
                return None
            case _:
                continue
        if needs and stages[node.result] == "body":
            return None
        if needs:
            late.add(node.result)
    return frozenset(late)


def loads_beside(block: BlockGraph, made: AbstractSet[str]) -> tuple[Load, ...]:
    """Matrices that a loop reads which has to wait, though these are there already.

    Args:
        block: A kernel behind another one.
        made: Tensors that kernels of the μGraph made.
    """
    schedule = block.schedule
    if not schedule.pdl or block.loop is None or after_wait(block, made) is not None:
        return ()
    stages = stages_of(block)
    return tuple(
        n
        for n in block.loads
        if stages[n.result] == "body"
        and n.source not in made
        and len(n.axes) > 1
        and n.result not in block.gathered
    )


def asked_ahead(block: BlockGraph, made: AbstractSet[str]) -> tuple[Load, ...]:
    """Those of them whose first tiles are asked for before the wait."""
    return loads_beside(block, made) if block.schedule.prefetch else ()


def has_work_ahead(block: BlockGraph, made: AbstractSet[str]) -> bool:
    """Whether a kernel has something to do before it waits for the kernel ahead."""
    return runs_ahead(block, made) or bool(asked_ahead(block, made))


def runs_ahead(block: BlockGraph, made: AbstractSet[str]) -> bool:
    """Whether a kernel runs its loop before it waits for the kernel ahead."""
    return block.loop is not None and after_wait(block, made) is not None


Announced = Literal["", "start", "loop"]
"""Whether the kernel behind may start early, and after what of this one."""


@dataclass(frozen=True)
class LaunchedBlock:
    """A graph-defined kernel among the others of its μGraph.

    Attributes:
        block: The kernel.
        announced: When the kernel behind it may start.
        made: What kernels before it made; None where there is none ahead.
    """

    block: BlockGraph
    announced: Announced
    made: AbstractSet[str] | None


def launches(graph: KernelGraph) -> Iterator[LaunchedBlock]:
    """The graph-defined kernels of a μGraph in launch order."""
    behind = dict(behind_kernels(graph))
    for node, following in zip_longest(graph.nodes, graph.nodes[1:]):
        if isinstance(node, BlockGraph):
            yield LaunchedBlock(node, _announced(following, behind), behind.get(node))


def _announced(
    following: Apply | BlockGraph | None, behind: Mapping[BlockGraph, AbstractSet[str]]
) -> Announced:
    """When the next kernel may start: at once, if it has work before it waits.

    Otherwise not before this one's loop is over: blocks that only wait hold resources.
    """
    if not isinstance(following, BlockGraph) or not following.schedule.pdl:
        return ""
    return "start" if has_work_ahead(following, behind[following]) else "loop"
