"""Shared memory of a block: which values lie there, how large they are, and how long.

Stages of the loop's loads are free again after the loop, so what the code after it
needs takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import Accumulate, Apply, BlockNode, Load, RunningMax, Store
from mirage_dsl.ops.definition import Term
from mirage_dsl.search.footprint import BlockFacts, Footprint, Numbers, Product
from mirage_dsl.search.orientation import is_product, operands_of
from mirage_dsl.types import Dim

STAGES = {"before": 0, "body": 1, "after": 2}

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class SharedBuffer:
    """Shared memory of one value.

    Attributes:
        value: Its name.
        size: Bytes, by point; all stages of a loop's load together.
        looping: Whether it lives while the loop runs, or where there is no loop.
        ending: Whether it lives after the loop.
    """

    value: str
    size: Numbers
    looping: bool
    ending: bool


def shared_buffers(footprint: Footprint) -> list[SharedBuffer]:
    """What lies in shared memory, and when: after the loop its buffers are free again.

    What is made before the loop and used in it stays for as long as the loop does, what
    is used only after it to the end.
    """
    facts, late = footprint.facts, used_only_after(footprint.facts)
    found: list[SharedBuffer] = []
    for node in facts.block.nodes:
        if isinstance(node, Store):
            continue
        size, stage = _held(node, footprint), facts.stages[node.result]
        if stage == "body" and isinstance(node, Load):
            size = size * sum(buffers(node, footprint))
        after = stage == "after"
        ending = after or node.result in late
        found.append(SharedBuffer(node.result, size, not after, ending))
    return found


def _held(node: BlockNode, footprint: Footprint) -> Numbers:
    """Bytes of shared memory of a value, 0 where it lives in registers."""
    facts = footprint.facts
    assert not isinstance(node, Store)
    name = node.result
    looped_load = isinstance(node, Load) and facts.stages[name] == "body"
    if not looped_load and name not in facts.matrix_operands:
        return np.zeros(len(footprint.points))
    size = footprint.held(name) * facts.types[name].dtype.itemsize
    if isinstance(node, Load):
        return size
    # What a product made may stay in registers as the operand that has the rows.
    if name not in from_products(facts):
        return size
    readers = [p.node.result for p in facts.products if name in p.node.values]
    as_is, swapped = (
        all(o.left[r] == name for r in readers) for o in facts.orientations
    )
    return np.where(np.where(footprint.points.swap_operands, swapped, as_is), 0.0, size)


def buffers(load: Load, footprint: Footprint) -> list[Numbers]:
    """Stage buffers of each copy of a load of the loop; 0 where there is no such copy.

    A tile that the matrix unit reads by itself is in use for one iteration longer.
    What reads a tile in another way has a copy of its own, unless the matrix unit is
    done within the iteration.
    """
    facts, stages = footprint.facts, footprint.points.num_stages
    name = load.result
    alone = [footprint.asynchronous(p) for p in facts.products if name in p.node.values]
    none = np.zeros(len(stages), dtype=bool)
    any_alone = np.logical_or.reduce([none, *alone])
    all_alone = np.logical_and.reduce([~none, *alone]) if alone else none
    both = name in facts.matrix_operands & facts.register_operands
    mixed = (any_alone & ~all_alone) | both
    mixed &= facts.block.schedule.second_load
    fewer = np.maximum(stages - 1.0, 1.0)
    shared = both & all_alone & _all_awaited(name, facts)
    return [
        np.where(any_alone & ~shared, stages, fewer),
        np.where(mixed & ~shared, fewer, 0.0),
    ]


def _all_awaited(load: str, facts: BlockFacts) -> bool:
    """Whether the products of a loaded tile are read by operators of the body."""
    products = {p.node.result for p in facts.products if load in p.node.values}
    read = {
        value
        for node in facts.block.nodes
        if isinstance(node, Apply) and node.op.term is not Term.ADD
        for value in node.values
    }
    return products <= read


@lru_cache(maxsize=4)
def from_products(facts: BlockFacts) -> set[str]:
    """Values that lie in registers as a product left them."""
    found: set[str] = set()
    for node in facts.block.nodes:
        if isinstance(node, Store):
            continue
        if is_product(node):
            found.add(node.result)
        elif isinstance(node, Accumulate | RunningMax):
            if node.operand in found:
                found.add(node.result)
        elif isinstance(node, Apply) and not found.isdisjoint(node.values):
            found.add(node.result)
    return found


@lru_cache(maxsize=4)
def used_only_after(facts: BlockFacts) -> frozenset[str]:
    """Values made before the loop that only code after it reads."""
    early: set[str] = set()
    for node in facts.block.nodes:
        if isinstance(node, Store):
            continue
        early.update(
            v for v in operands_of(node) if position(node, facts) < STAGES["after"]
        )
        if isinstance(node, Accumulate):
            early.add(node.operand)
    return frozenset(
        name
        for name, stage in facts.stages.items()
        if stage == "before" and name not in early and facts.block.loop is not None
    )


def position(node: BlockNode, facts: BlockFacts) -> int:
    if isinstance(node, Store):
        return STAGES["after"] + 1
    return STAGES[facts.stages[node.result]]


@lru_cache(maxsize=4)
def turned_loads(facts: BlockFacts) -> tuple[frozenset[str], frozenset[str]]:
    """Loads that registers want in another order than memory has: as is, and swapped.

    They meet what a product made in an operand of another one, so their order is
    decided, and no thread's elements lie together: nothing can be copied ahead.
    """
    fresh, loads = from_products(facts), {n.result: n for n in facts.block.loads}
    found: tuple[set[str], set[str]] = set(), set()
    for node in facts.block.nodes:
        if not isinstance(node, Apply) or is_product(node):
            continue
        if fresh.isdisjoint(node.values) or node.result not in fresh:
            continue
        for value in loads.keys() & set(node.values):
            last = _last_in_memory(loads[value], facts)
            for orientation, chosen in zip(facts.orientations, found, strict=True):
                order = [
                    d
                    for d in orientation.imposed.get(node.result, ())
                    if d in facts.dims[value]
                ]
                if len(order) > 1 and order[-1] != last:
                    chosen.add(value)
    return frozenset(found[0]), frozenset(found[1])


def _last_in_memory(load: Load, facts: BlockFacts) -> Dim | None:
    """The dim of a load whose elements lie side by side."""
    kind = facts.outer[load.source]
    order = kind.layout or tuple(range(len(load.axes)))
    dims = [d for axis in order for d in load.axes[axis]]
    return dims[-1] if dims else None


def merged(product: Product, footprint: Footprint) -> Bools:
    """Where a side of a product has several dims, whose tiles have to be merged."""
    found = np.zeros(len(footprint.points), dtype=bool)
    for side in (product.rows, product.columns, product.over):
        wide = [footprint.padded_elements((d,)) > 1 for d in side]
        found |= np.sum(wide, axis=0) > 1 if wide else np.False_
    return found
