"""Exponentials that share the shift of another one, which they are added to.

    e = exp(s)                          t = the shift of s
    f = exp(u)                   ->     top = maximum(t, rowshift u)
    y = sum e + sum f                   f = exp(u - top)

and e, or what was summed of it relative to t, gets the weight exp(t - top).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirage_dsl.ir.block_view import operands_of
from mirage_dsl.ir.fresh import FreshNames
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    BlockNode,
    stages_of,
)
from mirage_dsl.ir.homogeneity import NotHomogeneousError
from mirage_dsl.ops.table import MAXIMUM, ROWSHIFT, SUB
from mirage_dsl.types import TensorType


def shifted_alike(
    block: BlockGraph,
    types: Mapping[str, TensorType],
    companions: Collection[str],
    shift: str,
    kept: Collection[str],
    names: FreshNames,
) -> tuple[list[BlockNode], str, dict[str, BlockNode]]:
    """A shift that is as large as any exponent, and the exponentials shifted by it.

    Args:
        block: The block of the companions.
        types: Of its values.
        companions: Their names.
        shift: Of the exponential that they are added to.
        kept: Names of the shift's dims.
        names: To take new ones from.

    Returns:
        New nodes, the name of the shift, and the new companions by their names; their
        exponents are among the new nodes.

    Raises:
        NotHomogeneousError: An exponent is another one in each iteration.
    """
    stages = stages_of(block)
    nodes: list[BlockNode] = []
    applied = [
        n for n in block.nodes if isinstance(n, Apply) and n.result in companions
    ]
    for node in applied:
        (exponent,) = node.values
        if stages[exponent] == "body":
            raise NotHomogeneousError
        over = tuple(d for d in types[exponent].names if d not in kept)
        if over:
            largest = names.fresh("top")
            nodes.append(Apply(largest, ROWSHIFT, (exponent,), (("over", over),)))
        else:
            largest = exponent
        larger = names.fresh("larger")
        nodes.append(Apply(larger, MAXIMUM, (shift, largest)))
        shift = larger
    found: dict[str, BlockNode] = {}
    for node in applied:
        moved = names.fresh("moved")
        nodes.append(Apply(moved, SUB, (node.values[0], shift)))
        found[node.result] = replace(node, operands=(moved,))
    return nodes, shift, found


def sorted_by_reads(nodes: Sequence[BlockNode]) -> tuple[BlockNode, ...]:
    """The nodes, each behind what it reads, otherwise as they are.

    Raises:
        NotHomogeneousError: Some wait for each other.
    """
    left, found, made = list(nodes), list[BlockNode](), set[str]()
    while left:
        ready = (n for n in left if made.issuperset(operands_of(n)))
        node = next(ready, None)
        if node is None:
            raise NotHomogeneousError
        left.remove(node)
        found.append(node)
        made.add(node.result)
    return tuple(found)
