"""Sides of matrix products that lie in memory as one axis.

A side of several pieces becomes one axis of a matrix (`Merge`).  Where the pieces of a
load are the elements of one run of memory, row-major and whole but for the outermost,
the load can have that axis from the start: it reads more bytes at once, and nothing
has to be moved for the product.

    x = load x[m, (k/loop n h)]   axes n, h, m    →    axes (n h), m
    y = merge x  sides (n, h), (m)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.tile.program import Load, Merge, TileProgram, reads, walk
from mirage_dsl.tile.sizes import Order

Sides = tuple[Order, ...]


def runs(program: TileProgram, exact: Callable[[Dim], bool]) -> Mapping[str, Sides]:
    """The loads that can have merged axes, each with the pieces of every axis.

    Args:
        program: The program.
        exact: Whether all lanes of a piece are inside, always.
    """
    readers: dict[str, list[object]] = {}
    loads: dict[str, Load] = {}
    for statement, _ in walk(program.body):
        for value in reads(statement):
            readers.setdefault(value, []).append(statement)
        if isinstance(statement, Load):
            loads[statement.result] = statement
    found: dict[str, Sides] = {}
    for name, load in loads.items():
        sides = {
            m.sides if isinstance(m, Merge) else None for m in readers.get(name, ())
        }
        (side, *others) = sides or (None,)
        if side is None or others or not _is_plain(load):
            continue
        several = [s for s in side if len(s) > 1]
        if several and all(_is_run(s, load.at, exact) for s in several):
            found[name] = side
    return found


def _is_plain(load: Load) -> bool:
    """Whether each lane has its own address, and there is no other copy."""
    pointer = load.via == "pointer" and load.along is None
    return pointer and load.instead is None and load.when is True


def _is_run(side: Order, at: tuple[Axis, ...], exact: Callable[[Dim], bool]) -> bool:
    """Whether pieces are next to each other in an axis, and whole but for the first."""
    whole = all(not d.grid and not d.loop for d in side[1:])
    if not whole or not all(map(exact, side)):
        return False
    for axis in at:
        if side[0] in axis:
            first = axis.index(side[0])
            return axis[first : first + len(side)] == side
    return False


__all__ = ["Sides", "runs"]
