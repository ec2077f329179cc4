"""Shifts of exponents taken out of a program; `ir.stabilise` puts them back.

A shift is `rowshift x`, or the larger one of a shift and of anything else: whatever is
subtracted from all exponents of a row cancels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from mirage_dsl.ir.check import check, sources_of
from mirage_dsl.ir.expand import live
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    KernelGraph,
    KernelNode,
    Load,
    Operand,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.table import MAXIMUM, ROWSHIFT, SUB
from mirage_dsl.types import TensorType


def strip_shifts(program: KernelGraph) -> KernelGraph:
    """The program in which `x - shift` is `x`, for all shifts that are only used so."""
    shifts = _shifts(program)
    types = kernel_types(program)
    # A shift may have dims that the exponent lacks, as where it is one for all rows:
    # the exponential is without them then, unless something needs them.
    stripped = _without(program, _removable(program, shifts, None))
    if check(stripped):
        stripped = _without(program, _removable(program, shifts, types))
    return stripped


def _shifts(program: KernelGraph) -> list[str]:
    """All shifts; one that is larger than another comes behind it."""
    found: list[str] = []
    for node in program.nodes:
        if isinstance(node, Apply) and (
            node.op is ROWSHIFT
            or (node.op is MAXIMUM and not set(node.values).isdisjoint(found))
        ):
            found.append(node.result)
    return found


def _removable(
    program: KernelGraph, shifts: Sequence[str], types: Mapping[str, TensorType] | None
) -> set[str]:
    """Shifts that are only subtracted, or read by such shifts.

    With types, only from what has all of their dims.
    """
    found: set[str] = set()
    returned = {r.value for r in program.returns}
    for shift in reversed(shifts):
        users = [n for n in program.nodes if shift in sources_of(n)]
        if shift not in returned and all(
            isinstance(n, Apply) and (n.result in found or _subtracts(n, shift, types))
            for n in users
        ):
            found.add(shift)
    return found


def _subtracts(node: Apply, shift: str, types: Mapping[str, TensorType] | None) -> bool:
    if node.op is not SUB or node.operands[1] != shift:
        return False
    value = node.operands[0]
    if not isinstance(value, str) or value == shift:
        return False
    return types is None or types[node.result].dims == types[value].dims


def _without(program: KernelGraph, shifts: Collection[str]) -> KernelGraph:
    names: dict[str, str] = {}
    nodes: list[KernelNode] = []
    for node in program.nodes:
        if isinstance(node, Apply):
            moved = replace(node, operands=_renamed(node.operands, names))
            if node.op is SUB and node.operands[1] in shifts:
                kept = moved.operands[0]
                assert isinstance(kept, str)
                names[node.result] = kept
                continue
            nodes.append(moved)
        else:
            nodes.append(_with_sources(node, names))
    returns = tuple(
        replace(r, value=names.get(r.value, r.value)) for r in program.returns
    )
    kept = live(nodes, {r.value for r in returns})
    return replace(program, nodes=tuple(kept), returns=returns)


def _renamed(
    operands: Iterable[Operand], names: Mapping[str, str]
) -> tuple[Operand, ...]:
    return tuple(names.get(o, o) if isinstance(o, str) else o for o in operands)


def _with_sources(block: BlockGraph, names: Mapping[str, str]) -> BlockGraph:
    nodes = tuple(
        replace(n, source=names.get(n.source, n.source)) if isinstance(n, Load) else n
        for n in block.nodes
    )
    return replace(block, nodes=nodes)
