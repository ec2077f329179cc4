"""Shared memory of a block: which values lie there, how large they are, and how long.

Stages of the loop's loads are free again after the loop, so what the code after it
needs takes their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import Store
from mirage_dsl.search.facts import BlockFacts
from mirage_dsl.search.footprint import Footprint, Numbers

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
    facts = footprint.facts
    first, second = footprint.stage_buffers
    stages = dict(zip(_looped_loads(facts), first + second, strict=True))
    found: list[SharedBuffer] = []
    for node in facts.block.nodes:
        if isinstance(node, Store):
            continue
        name = node.result
        if name not in stages and name not in facts.matrix_operands:
            continue
        size = footprint.held(name) * facts.types[name].dtype.itemsize
        if name in stages:
            size = size * stages[name]
        elif name in facts.fresh:
            size = np.where(_stays_in_registers(name, footprint), 0.0, size)
        after = facts.stages[name] == "after"
        ending = after or name in facts.used_only_after
        found.append(SharedBuffer(name, size, not after, ending))
    return found


def _looped_loads(facts: BlockFacts) -> list[str]:
    loads = (load.result for load in facts.block.loads)
    return [name for name in loads if facts.stages[name] == "body"]


def _stays_in_registers(value: str, footprint: Footprint) -> Bools:
    """Where what a product made is only the operand that has the rows."""
    facts = footprint.facts
    readers = [p.node.result for p in facts.products if value in p.node.values]
    as_is, swapped = (
        all(o.left[r] == value for r in readers) for o in facts.orientations
    )
    return np.where(footprint.points.swap_operands, swapped, as_is)
