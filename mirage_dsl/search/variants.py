"""The same μGraph at other sizes and schedules, for a tuner to time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirage_dsl.core.hardware import Architecture, Hardware
from mirage_dsl.cost.estimate import Cost, Priced, estimate, launched
from mirage_dsl.cost.facts import BlockFacts, facts_of
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import awaited, launched_early, loads_beside
from mirage_dsl.ir.check import check
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import (
    derived_extents,
    iterations,
    most_early,
    partial_extents,
    with_derived_extents,
)
from mirage_dsl.rewrite.loops import without_loop
from mirage_dsl.search.sizes import Constraints, Sized, choose_sizes
from mirage_dsl.tile.program import SMALLEST_DOT

DIFFERENT = 24
"""Sizes of a kernel from which proposals are taken."""
LATER = 1.1
"""Each further proposal of one grid ranks as if it took this much longer."""
LEAST_SHARE = 0.5
"""A kernel that would get less than this of one proposal gets none."""

MOST_WARPS = 16
MOST_STAGES = 8


def proposals(
    mugraph: ir.KernelGraph,
    *,
    count: int = 6,
    hardware: Hardware,
    constraints: Constraints | None = None,
) -> list[tuple[ir.KernelGraph, Cost]]:
    """What is worth timing of a structure: its best sizes, each in several forms.

    One block is varied at a time, the others stay as they are.  Sizes do not change
    what is computed, but a certificate names the sizes that it was given for.

    The forms are those that the estimate does not tell apart, where the GPU has both:
    pointers or tensor descriptors, and launches that do or do not wait for the kernel
    before.

    Args:
        mugraph: A sized μGraph of known extents.
        count: About how many sizes; there are twice as many proposals.
        hardware: The GPU to estimate for.
        constraints: Restrictions.
    """
    found: dict[ir.KernelGraph, Cost] = {}
    own = hardware.architecture
    for graph, cost in _worth_timing(mugraph, count, hardware, constraints):
        early = launched_early(graph) if own.early_launches else graph
        found[early] = cost
        if own.descriptors:
            found[_with_descriptors(early)] = cost
    return list(found.items())


def _worth_timing(
    mugraph: ir.KernelGraph,
    count: int,
    hardware: Hardware,
    constraints: Constraints | None,
) -> list[tuple[ir.KernelGraph, Cost]]:
    """Other sizes, most of them of the kernels that most of the time goes to."""
    limits = constraints or Constraints()
    own = estimate(mugraph, hardware)
    found = {mugraph: own}
    if not math.isfinite(own.microseconds):
        return list(found.items())
    types = kernel_types(mugraph)
    extents = derived_extents(mugraph)
    for at, part in zip(launched(mugraph), own.kernels, strict=True):
        node = mugraph.nodes[at]
        share = count * part.microseconds / own.microseconds
        if not isinstance(node, ir.BlockGraph) or share < LEAST_SHARE:
            continue
        sized = choose_sizes(
            node,
            types,
            extents,
            hardware=hardware,
            keep=DIFFERENT,
            allowed=limits.sizes(node),
        )
        for other in _different(sized, math.ceil(share)):
            graph = _with_node(mugraph, at, other.block)
            cost = estimate(graph, hardware)
            if cost.feasible:
                found[graph] = cost
    return list(found.items())


def _different(sized: Sequence[Sized], count: int) -> list[Sized]:
    """The best, of different grids rather than of one.

    How a block goes through its part matters less than how large the part is, and the
    estimate errs more between grids than within one; but hopeless grids are left out.
    """
    turns: dict[object, int] = {}
    order: list[tuple[float, int]] = []
    for at, item in enumerate(sized):
        turn = turns[item.block.grid] = turns.get(item.block.grid, -1) + 1
        order.append((item.microseconds * LATER**turn, at))
    return [sized[at] for _, at in sorted(order)[:count]]


def _with_descriptors(graph: ir.KernelGraph) -> ir.KernelGraph:
    """The kernels with loops load through tensor descriptors."""
    return graph.with_schedules(
        lambda b: (
            b.schedule if b.loop is None else replace(b.schedule, descriptors=True)
        )
    )


def unlooped(
    mugraph: ir.KernelGraph,
    *,
    hardware: Hardware,
    constraints: Constraints | None = None,
) -> ir.KernelGraph | None:
    """A μGraph whose costliest kernel has all iterations at once, at its best sizes.

    The estimate errs more between a loop and none than between two tiles of a loop, so
    a tuner times both.  None where that kernel has no loop, or too long a one.

    Args:
        mugraph: A sized μGraph of known extents.
        hardware: The GPU to estimate for.
        constraints: Restrictions.
    """
    limits = constraints or Constraints()
    at = costliest(mugraph, hardware)
    node = None if at is None else mugraph.nodes[at]
    block = without_loop(node) if isinstance(node, ir.BlockGraph) else None
    if at is None or block is None or not limits.admits_structure(block):
        return None
    types = kernel_types(mugraph)
    extents = derived_extents(mugraph)
    allowed = limits.sizes(block)
    sized = choose_sizes(
        block, types, extents, hardware=hardware, keep=1, allowed=allowed
    )
    if not sized:
        return None
    made = _with_node(mugraph.with_extents(extents), at, sized[0].block)
    return None if check(made) else made


def neighbours(
    mugraph: ir.KernelGraph,
    *,
    hardware: Hardware,
    constraints: Constraints | None = None,
) -> list[tuple[ir.KernelGraph, Cost]]:
    """μGraphs one step away in a tile or the schedule, by estimate, the best first.

    A tuner climbs along them: near the best sizes the estimate's errors are larger
    than the differences.  So of each only the kernel that differs is estimated anew:
    networks have hundreds of neighbours, of dozens of kernels each.

    Args:
        mugraph: A sized μGraph of known extents.
        hardware: The GPU to estimate for.
        constraints: Restrictions.

    Raises:
        SearchError: An extent is unknown.
    """
    types = kernel_types(mugraph)
    extents = derived_extents(mugraph)
    found: dict[tuple[int, ir.BlockGraph], Cost] = {}
    made = awaited(mugraph)
    priced = Priced(mugraph, hardware)
    if not math.isfinite(priced.cost.microseconds):
        return []
    for at, node in enumerate(mugraph.nodes):
        if not isinstance(node, ir.BlockGraph):
            continue
        facts = facts_of(node, types, extents)
        for block in _steps(facts, made.get(node), hardware.architecture):
            if block.schedule.early:
                early = min(block.schedule.early, most_early(block, extents))
                block = replace(block, schedule=replace(block.schedule, early=early))
            cost = priced.with_sizes(at, block)
            if cost.feasible:
                found[at, block] = cost
    ranked = sorted(found.items(), key=lambda item: item[1].microseconds)
    told = mugraph.with_extents(extents)
    graphs = ((_with_node(told, at, block), cost) for (at, block), cost in ranked)
    return [g for g in graphs if constraints is None or constraints.admits(g[0])]


def costliest(mugraph: ir.KernelGraph, hardware: Hardware) -> int | None:
    """Index of the block graph that takes most of the time; None if there is none."""
    parts = estimate(mugraph, hardware).kernels
    timed = zip(launched(mugraph), parts, strict=True)
    blocks = [t for t in timed if isinstance(mugraph.nodes[t[0]], ir.BlockGraph)]
    return max(blocks, key=lambda t: t[1].microseconds)[0] if blocks else None


def with_others_of(
    mugraph: ir.KernelGraph, other: ir.KernelGraph, at: int, hardware: Hardware
) -> ir.KernelGraph:
    """The kernels but the one at `at` in the sizes that they have in `other`.

    A kernel's best sizes hardly depend on those of the kernels beside it, so what was
    found for one of them serves all.  A graph of another structure stays as it is.
    """
    changed = told = with_derived_extents(mugraph)
    for index, (own, new) in enumerate(zip(mugraph.nodes, other.nodes, strict=False)):
        if (
            index != at
            and isinstance(own, ir.BlockGraph)
            and isinstance(new, ir.BlockGraph)
            and own.nodes == new.nodes
        ):
            changed = _with_node(changed, index, new)
    taken = changed is not told and estimate(changed, hardware).feasible
    return changed if taken else mugraph


def _steps(
    facts: BlockFacts, made: AbstractSet[str] | None, own: Architecture
) -> Iterator[ir.BlockGraph]:
    block = facts.block
    axes = block.axes
    for at, axis in enumerate(axes):
        for changed in _axes_beside(axis, facts):
            other = _on_axes(block, (*axes[:at], changed, *axes[at + 1 :]))
            if _loop_fits(other):
                yield other
                # As much for each warp as before.
                yield from _with_warps(other, larger=_grows(axis, changed))
    yield from _trades(facts)
    if block.loop is not None:
        yield from _other_loops(facts, block.loop)
    for schedule in _schedules_beside(facts, own):
        yield replace(block, schedule=schedule)
    if made is not None and loads_beside(block, made):
        for tiles in _beside_number(block.schedule.prefetch, ir.PREFETCHED):
            yield replace(block, schedule=replace(block.schedule, prefetch=tiles))
        for early in _early_beside(facts):
            yield replace(block, schedule=replace(block.schedule, early=early))


def _other_loops(facts: BlockFacts, loop: ir.Split) -> Iterator[ir.BlockGraph]:
    """The block with another tile of its loop, or with all of it at once."""
    block, stages = facts.block, facts.block.schedule.num_stages
    for tile in _tiles_beside(loop, facts):
        changed = replace(block, loop=ir.Split(loop.dim, tile))
        if _loop_fits(changed):
            yield changed
            yield from _with_warps(changed, larger=tile > loop.tile)
            # As many bytes in flight as before.
            count = stages * loop.tile // tile
            if 2 <= count <= MOST_STAGES:
                schedule = replace(block.schedule, num_stages=count)
                yield replace(changed, schedule=schedule)
    if iterations(block, facts.extents) <= 2:
        whole = without_loop(block)
        if whole is not None:
            yield whole
            yield from _with_warps(whole, larger=True)


def _with_warps(block: ir.BlockGraph, *, larger: bool) -> Iterator[ir.BlockGraph]:
    """The block with twice as many warps or half of them."""
    warps = block.schedule.num_warps
    count = warps * 2 if larger else warps // 2
    if 1 <= count <= MOST_WARPS:
        yield replace(block, schedule=replace(block.schedule, num_warps=count))


def _trades(facts: BlockFacts) -> Iterator[ir.BlockGraph]:
    """One tile of the grid doubled and another halved: as many blocks as before."""
    block = facts.block
    for wide, narrow in itertools.permutations(range(len(block.axes)), 2):
        axes = list(block.axes)
        larger = [a for a in _axes_beside(axes[wide], facts) if _grows(axes[wide], a)]
        less = [
            a for a in _axes_beside(axes[narrow], facts) if not _grows(axes[narrow], a)
        ]
        if larger and less:
            axes[wide], axes[narrow] = larger[0], less[0]
            changed = _on_axes(block, axes)
            loops = [block.loop]
            if block.loop is not None:
                tiles = _tiles_beside(block.loop, facts)
                loops += [ir.Split(block.loop.dim, tile) for tile in tiles]
            for loop in loops:
                if _loop_fits(replace(changed, loop=loop)):
                    yield replace(changed, loop=loop)


GridAxis = tuple[ir.Split, ...]


def _axes_beside(axis: GridAxis, facts: BlockFacts) -> Iterator[GridAxis]:
    """An axis with half of its tiles, or twice; dims that cannot stay as they are."""
    for smaller in (True, False):
        changed = tuple(
            next(
                (
                    replace(split, tile=tile)
                    for tile in _tiles_beside(split, facts)
                    if (tile < split.tile) is smaller
                ),
                split,
            )
            for split in axis
        )
        if changed != axis:
            yield changed


def _grows(before: GridAxis, after: GridAxis) -> bool:
    return any(b.tile > a.tile for a, b in zip(before, after, strict=True))


def _on_axes(block: ir.BlockGraph, axes: Sequence[GridAxis]) -> ir.BlockGraph:
    return replace(block, grid=tuple(itertools.chain(*axes)))


def _tiles_beside(split: ir.Split, facts: BlockFacts) -> Iterator[int]:
    least = SMALLEST_DOT if split.dim in facts.matrix_dims else 1
    most = 1 << max(facts.extents[split.dim] - 1, 1).bit_length()
    if split.dim in facts.batch_dims:
        return
    for tile in (split.tile // 2, split.tile * 2):
        if least <= tile < most:
            yield tile


def _schedules_beside(facts: BlockFacts, own: Architecture) -> Iterator[ir.Schedule]:
    old = facts.block.schedule
    for warps in (old.num_warps // 2, old.num_warps * 2):
        if 1 <= warps <= MOST_WARPS:
            yield replace(old, num_warps=warps)
    if facts.products:
        yield replace(old, swap_operands=not old.swap_operands)
    if facts.block.loop is not None:
        for stages in (old.num_stages - 1, old.num_stages + 1):
            if 1 <= stages <= MOST_STAGES:
                yield replace(old, num_stages=stages)
        if own.descriptors or old.descriptors:
            yield replace(old, descriptors=not old.descriptors)
    if old.pdl:
        yield replace(old, pdl=False, prefetch=0, early=0)


def _early_beside(facts: BlockFacts) -> Iterator[int]:
    """Iterations to load before the wait: one more, or one less."""
    block = facts.block
    most = most_early(block, facts.extents)
    for early in (block.schedule.early - 1, block.schedule.early + 1):
        if 0 <= early <= most:
            yield early


def _beside_number(number: int, numbers: Sequence[int]) -> list[int]:
    """The one before and the one behind it."""
    at = numbers.index(number)
    return [numbers[i] for i in (at - 1, at + 1) if 0 <= i < len(numbers)]


def _loop_fits(block: ir.BlockGraph) -> bool:
    """A block does not loop over less than one tile of its part."""
    return block.loop is None or all(
        s.tile >= block.loop.tile for s in block.grid if s.dim == block.loop.dim
    )


def _with_node(graph: ir.KernelGraph, at: int, block: ir.BlockGraph) -> ir.KernelGraph:
    """The graph, which tells all its extents, with another block, and those of that."""
    changed, known = graph.with_node(at, block), graph.extent_of
    if partial_extents(block, known).items() <= known.items():
        return changed
    return with_derived_extents(changed)
