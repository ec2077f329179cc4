"""The order of a kernel's statements, which changes nothing that is computed.

Operators that move data between threads (reductions, operands that a product wants
otherwise) need a synchronisation before what they made is read.  Operators of one
depth, counted in such steps, share one; so statements are sorted by depth.  A load that
comes after such a wait sets out late, unless the loop runs ahead with it; so loads come
first.  Of equally good orders that one is taken in which the fewest registers are live
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_dsl.core.hardware import Hardware
from mirage_dsl.cost.facts import BlockFacts, facts_of
from mirage_dsl.cost.footprint import footprint_of
from mirage_dsl.cost.live import live_tiles, operands_of
from mirage_dsl.cost.resources import resources
from mirage_dsl.ir.graph import (
    Accumulate,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    Store,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.tile.program import Reduce

STAGES: tuple[str, ...] = ("before", "body", "after")


def in_good_order(graph: KernelGraph, hardware: Hardware) -> KernelGraph:
    """The μGraph with the statements of its blocks in their best order."""
    types = kernel_types(graph)
    extents = derived_extents(graph, graph.extent_of)
    nodes = tuple(
        _best_order(facts_of(n, types, extents), hardware)
        if isinstance(n, BlockGraph)
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _best_order(facts: BlockFacts, hardware: Hardware) -> BlockGraph:
    """The first of the best: what is as good as it was stays as it was."""
    orders = [facts.block.nodes, *_orders(facts, hardware)]
    return min(
        (replace(facts.block, nodes=nodes) for nodes in orders),
        key=lambda block: _price(block, facts, hardware),
    )


def _price(
    block: BlockGraph, facts: BlockFacts, hardware: Hardware
) -> tuple[bool, int, int, float]:
    """What is worse: it does not fit, late loads, waits of one run, registers."""
    footprint = footprint_of(facts, hardware)
    live = live_tiles(block.nodes, facts.stages)
    room = resources(footprint, live)
    ordered = facts.at(block)
    waits = sum(synchronisations(ordered).values())
    return not room.feasible[0], late_loads(ordered), waits, float(room.registers[0])


# -- Synchronisations ------------------------------------------------------------------


def synchronisations(facts: BlockFacts) -> dict[str, int]:
    """How often the threads of a block wait for each other, in each stage.

    What an operator hands to other threads can be read after the next synchronisation;
    one is enough for all that was handed over before.
    """
    found = dict.fromkeys(STAGES, 0)
    exchanging = exchanges(facts)
    waiting: dict[str, set[str]] = {stage: set() for stage in STAGES}
    for node in facts.block.nodes:
        stage = _runs_in(node, facts)
        if not waiting[stage].isdisjoint(operands_of(node)):
            found[stage] += 1
            waiting[stage].clear()
        if not isinstance(node, Store) and node.result in exchanging:
            waiting[stage].add(node.result)
    for stage, left in waiting.items():
        found[stage] += bool(left)
    return found


def late_loads(facts: BlockFacts) -> int:
    """Loads outside of the loop that set out only when threads have met."""
    exchanging, met, late = exchanges(facts), set[str](), 0
    for node in facts.block.nodes:
        stage = _runs_in(node, facts)
        if isinstance(node, Load):
            late += stage in met and stage != "body"
        elif not isinstance(node, Store) and node.result in exchanging:
            met.add(stage)
    return late


def exchanges(facts: BlockFacts) -> frozenset[str]:
    """Values that move between threads: reductions, and operands made for a product."""
    schedule = facts.block.schedule
    program = facts.program(swapped=schedule.swap_operands, deferred=frozenset())
    flow, found = program.flow, set[str]()
    for statement, _ in flow.statements:
        if isinstance(statement, Reduce):
            found.add(statement.result)
    for product in program.products:
        left = flow.origin(product.left)
        for value in {left, flow.origin(product.right)} - program.loads.keys():
            if value not in flow.fresh or left != value:
                found.add(value)
    return frozenset(found)


# -- Orders ----------------------------------------------------------------------------


def _orders(facts: BlockFacts, hardware: Hardware) -> Iterator[tuple[BlockNode, ...]]:
    """Orders worth a thought: by depth, loads first, what ends values first."""
    depths, nodes = _depths(facts), facts.block.nodes
    by_depth = tuple(sorted(nodes, key=lambda n: depths[id(n)]))
    yield by_depth
    yield tuple(sorted(by_depth, key=lambda n: _loads_first(depths[id(n)][0], n)))
    yield tuple(_thrifty(facts, depths, hardware))


def _loads_first(stage: int, node: BlockNode) -> tuple[int, bool]:
    return stage, not isinstance(node, Load)


def _depths(facts: BlockFacts) -> dict[int, tuple[int, int]]:
    """For each node its stage, and after how many synchronisations of it it can run."""
    exchanging, ready = exchanges(facts), dict[str, tuple[int, int]]()
    found: dict[int, tuple[int, int]] = {}
    for node in facts.block.nodes:
        stage, depth = STAGES.index(_runs_in(node, facts)), 0
        for value in operands_of(node):
            made, when = ready[value]
            if made == stage:
                depth = max(depth, when + (value in exchanging))
        found[id(node)] = stage, depth
        if not isinstance(node, Store):
            ready[node.result] = stage, depth
    return found


def _runs_in(node: BlockNode, facts: BlockFacts) -> str:
    """The stage in which a node runs; accumulators are added to in the loop."""
    if isinstance(node, Store):
        return "after"
    looped = facts.block.loop is not None
    return (
        "body" if isinstance(node, Accumulate) and looped else facts.stages[node.result]
    )


def _thrifty(
    facts: BlockFacts, depths: dict[int, tuple[int, int]], hardware: Hardware
) -> Iterator[BlockNode]:
    """By depth; of nodes that can run the one that leaves the fewest bytes live."""
    footprint = footprint_of(facts, hardware)
    left = dict.fromkeys(facts.stages, 0)
    for node in facts.block.nodes:
        for value in set(operands_of(node)):
            left[value] += 1
    done: set[str] = set()
    waiting = list(enumerate(facts.block.nodes))

    def growth(node: BlockNode) -> float:
        ends = sum(
            float(footprint.held(v)[0])
            for v in set(operands_of(node))
            if left[v] == 1 and v in done
        )
        made = 0.0 if isinstance(node, Store) else float(footprint.held(node.result)[0])
        return made - ends

    while waiting:
        can = [
            (at, n)
            for at, n in waiting
            if done.issuperset(operands_of(n)) and _follows(n, done)
        ]
        at, node = min(can, key=lambda c: (depths[id(c[1])], growth(c[1]), c[0]))
        waiting.remove((at, node))
        for value in set(operands_of(node)):
            left[value] -= 1
        if not isinstance(node, Store):
            done.add(node.result)
        yield node


def _follows(node: BlockNode, done: set[str]) -> bool:
    """Whether the running maximum that an accumulator is scaled by is there."""
    match node:
        case Accumulate():
            return node.rescale is None or node.rescale in done
        case _:
            return True
