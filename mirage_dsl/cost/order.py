"""The orders of a kernel's statements and blocks, which change nothing computed.

Operators that move data between threads (reductions, operands that a product wants
otherwise) need a synchronisation before what they made is read.  Operators of one
depth, counted in such steps, share one; so statements are sorted by depth.  A load that
comes after such a wait sets out late, unless the loop runs ahead with it; so loads come
first.  Of equally good orders that one is taken in which the fewest registers are live
at once.

Blocks that read the same in their loops follow one another where L2 does not hold what
all loops read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.cost.facts import (
    STAGES,
    Flow,
    ProgramFacts,
    Step,
    facts_as_searched,
    live_tiles,
)
from mirage_dsl.cost.footprint import Footprint, footprint_of, resources
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.walk import operands_of
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.build import Stage

Steps = Sequence[Step]


def in_good_order(graph: ir.KernelGraph, hardware: Hardware) -> ir.KernelGraph:
    """The μGraph with the statements and axes of its blocks in their best order."""
    types = kernel_types(graph)
    extents = derived_extents(graph)

    def ordered(node: ir.BlockGraph) -> ir.BlockGraph:
        try:
            facts = facts_as_searched(node, types, extents)
            footprint = footprint_of(facts, hardware)
            return replace(_best_order(node, footprint), grid=_grid(node, footprint))
        except UnsupportedError:
            return node

    nodes = (ordered(n) if isinstance(n, ir.BlockGraph) else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _best_order(block: ir.BlockGraph, footprint: Footprint) -> ir.BlockGraph:
    """The first of the best: what is as good as it was stays as it was."""
    steps = footprint.facts.flow.steps
    best = min([steps, *_orders(footprint)], key=lambda order: _price(order, footprint))
    return block if best is steps else replace(block, nodes=_nodes_in(best, block))


def _price(steps: Steps, footprint: Footprint) -> tuple[bool, int, int, float]:
    """What is worse: it does not fit, late loads, waits of one run, registers."""
    facts = footprint.facts
    exchanging = exchanges(facts)
    room = resources(footprint, live_tiles(facts.flow, steps))
    waits = sum(synchronisations(facts.flow, steps, exchanging).values())
    late = late_loads(steps, exchanging)
    return not room.feasible[0], late, waits, float(room.registers[0])


# -- Synchronisations ------------------------------------------------------------------


def synchronisations(
    flow: Flow, steps: Steps, exchanging: AbstractSet[str]
) -> dict[Stage, int]:
    """How often the threads of a block wait for each other, in each stage.

    What a statement hands to other threads can be read after the next synchronisation;
    one is enough for all that was handed over before.

    Args:
        flow: Of the program.
        steps: Its steps, in the order in which they run.
        exchanging: What `exchanges` found.
    """
    found: dict[Stage, int] = dict.fromkeys(STAGES, 0)
    waiting: dict[Stage, set[str]] = {stage: set() for stage in STAGES}
    for statement, stage in steps:
        if not waiting[stage].isdisjoint(flow.operands(statement)):
            found[stage] += 1
            waiting[stage].clear()
        waiting[stage].update(v for v in tp.makes(statement) if v in exchanging)
    for stage, left in waiting.items():
        found[stage] += bool(left)
    return found


def late_loads(steps: Steps, exchanging: AbstractSet[str]) -> int:
    """Loads outside of the loop that set out only when threads have met."""
    met, late = set[str](), 0
    for statement, stage in steps:
        if isinstance(statement, tp.Load):
            late += stage in met and stage != "body"
        elif not exchanging.isdisjoint(tp.makes(statement)):
            met.add(stage)
    return late


def exchanges(facts: ProgramFacts) -> frozenset[str]:
    """Values that move between threads: reductions, and operands made for a product."""
    flow, found = facts.flow, set[str]()
    for statement, _ in flow.steps:
        if isinstance(statement, tp.Reduce | tp.Scan):
            found.add(statement.result)
        elif isinstance(statement, tp.Product):
            left, right = flow.factors(statement)
            if left not in flow.fresh:
                found.add(left)
            found.add(right)
    return frozenset(found - facts.loads.keys())


# -- Orders ----------------------------------------------------------------------------


def _orders(footprint: Footprint) -> Iterator[Steps]:
    """Orders worth a thought: by depth, loads first, what ends values first."""
    steps = footprint.facts.flow.steps
    depths = _depths(footprint.facts)
    numbers = range(len(steps))
    by_depth = sorted(numbers, key=lambda at: depths[at])
    loads = sorted(by_depth, key=lambda at: _loads_first(depths[at][0], steps[at]))
    for order in (by_depth, loads, _thrifty(footprint, depths)):
        yield [steps[at] for at in order]


def _loads_first(stage: int, step: Step) -> tuple[int, bool]:
    return stage, not isinstance(step[0], tp.Load)


def _depths(facts: ProgramFacts) -> list[tuple[int, int]]:
    """For each step its stage, and after how many synchronisations of it it can run."""
    exchanging, ready = exchanges(facts), dict[str, tuple[int, int]]()
    found: list[tuple[int, int]] = []
    for statement, when in facts.flow.steps:
        stage, depth = STAGES.index(when), 0
        if isinstance(statement, tp.Store) and when == "after":
            stage += 1
        for value in facts.flow.operands(statement):
            made, since = ready[value]
            if made == STAGES.index(when):
                depth = max(depth, since + (value in exchanging))
        found.append((stage, depth))
        ready.update(
            (value, (STAGES.index(when), depth)) for value in tp.makes(statement)
        )
    return found


def _thrifty(footprint: Footprint, depths: list[tuple[int, int]]) -> Iterator[int]:
    """By depth; of steps that can run the one that leaves the fewest bytes live."""
    flow = footprint.facts.flow
    operands = [set(flow.operands(statement)) for statement, _ in flow.steps]
    made = [set(tp.makes(statement)) for statement, _ in flow.steps]
    before = _before(operands, made)
    left = dict.fromkeys(set[str]().union(*operands, *made), 0)
    for own in operands:
        for value in own:
            left[value] += 1
    done, there = set[int](), set[str]()
    waiting = list(range(len(flow.steps)))

    def growth(at: int) -> float:
        ends = (v for v in operands[at] if left[v] == 1 and v in there)
        more = sum(float(footprint.held(v)[0]) for v in made[at] - operands[at])
        return more - sum(float(footprint.held(v)[0]) for v in ends)

    while waiting:
        can = [at for at in waiting if before[at] <= done]
        at = min(can, key=lambda c: (depths[c], growth(c), c))
        waiting.remove(at)
        for value in operands[at]:
            left[value] -= 1
        there |= made[at]
        done.add(at)
        yield at


def _before(
    operands: Sequence[AbstractSet[str]], made: Sequence[AbstractSet[str]]
) -> list[set[int]]:
    """For each step those that have to come before: what is carried is changed in turn.

    So a step follows those that make what it reads or changes, and those that read what
    it changes.
    """
    return [
        {
            other
            for other in range(at)
            if not made[other].isdisjoint(operands[at] | made[at])
            or not operands[other].isdisjoint(made[at])
        }
        for at in range(len(made))
    ]


# -- Blocks ----------------------------------------------------------------------------


def _grid(block: ir.BlockGraph, footprint: Footprint) -> tuple[ir.Split, ...]:
    """The axes of the grid, those first along which blocks are next to each other.

    Blocks along shared axes come together, so that what they read is in L2.  [M] H200,
    µs: attention [4, 32, 2048, 128] 814, now 695, with a mask of truth values
    [8, 32, 2048, 64] 944, now 832, [1, 32, 2048, 128] 147, now 144.

    The long blocks of bounded loops shall start first, over as many of the other axes
    as L2 holds: causal attention [4, 32, 2048, 128] 376, now 347, where 358 is what it
    takes head by head.
    """
    facts = footprint.facts
    if not facts.shared or facts.read_in_loops < footprint.held_bytes:
        return block.grid
    shared = [axis for axis in block.axes if axis[0].dim in facts.shared]
    apart = [axis[0].dim for axis in facts.apart]
    others = sorted(
        (a for a in block.axes if a not in shared), key=lambda a: apart.index(a[0].dim)
    )
    ahead = int(footprint.held_together[0]) if facts.counts_down else 0
    if facts.counts_down and not ahead:
        return block.grid
    last = len(others) - ahead
    axes = (*others[last:], *shared, *others[:last])
    return tuple(split for axis in axes for split in axis)


# -- Back to a block graph -------------------------------------------------------------


def _nodes_in(steps: Steps, block: ir.BlockGraph) -> tuple[ir.BlockNode, ...]:
    """The nodes in the order of the steps that they became.

    Nodes that share a step with another one follow what they read.
    """
    place: dict[str, int] = {}
    for at, (statement, _) in enumerate(steps):
        for value in tp.makes(statement):
            place[value] = at
    keys: dict[str, float] = {}
    for node in block.nodes:
        if not isinstance(node, ir.Store):
            last = max((keys[v] for v in operands_of(node)), default=-1.0)
            keys[node.result] = max(place.get(node.result, last), last)
    return tuple(sorted(block.nodes, key=lambda n: _key(n, keys, len(steps))))


def _key(node: ir.BlockNode, keys: Mapping[str, float], end: int) -> tuple[float, bool]:
    if isinstance(node, ir.Store):
        return end, True
    return keys[node.result], not isinstance(node, ir.Load)
