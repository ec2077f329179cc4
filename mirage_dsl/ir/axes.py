"""Type rules of grids whose axes split several dims at once: `grid(a / 32 & b / 8)`.

Block i of such an axis has tile i of `a` and tile i of `b`; where one of them has fewer
tiles, the last blocks have nothing of it.  No value may depend on two of the dims, and
none of them is reduced: then the tiles of one dim could as well be computed by blocks
of their own, and evaluation and verification need not know that they are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.graph import Apply, BlockGraph, Load, Store, dims_of, partial_dim
from mirage_dsl.types import Dim, TensorType


def check_load(node: Load, block: BlockGraph) -> None:
    """A load has a part of one dim of an axis.

    Raises:
        CheckError: It has parts of two, or iterates over a part.
    """
    for axis in _shared(block):
        parts = _parts(dims_of(node.axes), axis)
        if len(parts) > 1:
            raise _meeting(f"load {node.source}", parts, axis)
        if any(d.loop for d in parts):
            raise _alone(f"load {node.source}: the loop splits {parts[0]}", parts, axis)


def check_apply(
    node: Apply, operands: Sequence[TensorType], result: TensorType, block: BlockGraph
) -> None:
    """The dims of an axis stay apart, and parts of them stay what they are.

    Raises:
        CheckError: Two of them meet, or a part is reduced, renamed or joined.
    """
    for axis in _shared(block):
        parts = _parts((d for t in operands for d in t.dims), axis)
        if len(parts) > 1:
            raise _meeting(node.op.name, parts, axis)
        if parts and parts[0] not in result.dims:
            raise _alone(f"{node.op.name} takes away {parts[0]}", parts, axis)


def check_store(node: Store, block: BlockGraph) -> None:
    """A store has one dim of an axis: a part, or the number of parts of one.

    Raises:
        CheckError: It has several.
    """
    for axis in _shared(block):
        own = {*axis, *map(partial_dim, axis)}
        found = [d for d in dims_of(node.axes) if d.grid and d.name in own]
        if len(found) > 1:
            raise _meeting(f"store {node.result}", found, axis)


def _shared(block: BlockGraph) -> Iterator[tuple[str, ...]]:
    """The dims of each axis that splits several."""
    return (tuple(s.dim for s in axis) for axis in block.axes if len(axis) > 1)


def _parts(dims: Iterable[Dim], axis: Sequence[str]) -> list[Dim]:
    return [d for d in dict.fromkeys(dims) if d.grid and d.name in axis]


def _meeting(what: str, parts: Sequence[Dim], axis: Sequence[str]) -> CheckError:
    return CheckError(
        f"{what}: {_listed(parts)} meet, but one axis of the grid splits "
        f"{_listed(axis)}, so a block has tiles of equal number only; give each an "
        "axis of its own"
    )


def _alone(what: str, parts: Sequence[Dim], axis: Sequence[str]) -> CheckError:
    return CheckError(
        f"{what}, but one axis of the grid splits {_listed(axis)}; give "
        f"{parts[0].name} an axis of its own"
    )


def _listed(dims: Iterable[Dim | str]) -> str:
    return " and ".join(map(str, dims))
