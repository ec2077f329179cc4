"""The level that is printed: tile programs are checked, and stand in for block graphs.

A candidate's tile programs are made for its own sizes as the backend makes them, so
what changes their statements is as it is printed.  What is a number in them stays a
formula, so that trials evaluate them at small, ragged sizes; lanes are as many as on a
GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.ir.analysis.waiting import launches
from mirage_dsl.ir.evaluate.domain import Domain, Named
from mirage_dsl.ir.evaluate.graph import BlockEvaluator
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, partial_dim
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check_or_raise
from mirage_dsl.tile.evaluate import evaluate_tiles
from mirage_dsl.tile.program import TileProgram, pieces_of
from mirage_dsl.verify.constants import with_numbers_of

V = TypeVar("V")

_MOST = 4096
"""What symbolic dims that blocks hold whole are taken to be at most."""


def hold_to_rules(candidate: KernelGraph) -> None:
    """Nothing, if a candidate's tile programs are well formed at its own sizes.

    Trials see what a program computes at small sizes.  They do not see a wait that is
    missing, two values in one place, or a mask that the true extents need.

    Raises:
        CheckError: A rule of the level is broken.
    """
    try:
        found = programs(candidate)
    except UnsupportedError:
        return
    for program, launch in zip(found, launches(candidate), strict=True):
        check_or_raise(program, launch.made)


def tile_level(candidate: KernelGraph, small: KernelGraph) -> BlockEvaluator | None:
    """What evaluates a candidate's blocks at small sizes, by its tile programs.

    None where there are none: what the backend cannot express is not run either.

    Args:
        candidate: The candidate.
        small: The same at the sizes of a trial.
    """
    candidate = with_numbers_of(candidate, small)
    most = {n: _MOST for n, e in candidate.extents if e is None}
    try:
        found = programs(candidate, sized=False, most=most)
        pairs = zip(found, small.blocks, strict=True)
        if not all(holds_at(p, b, small.extent_of) for p, b in pairs):
            found = programs(small)
    except UnsupportedError:
        return None
    blocks = zip(candidate.blocks, found, strict=True)
    return evaluator_of({b.results: p for b, p in blocks})


def holds_at(
    program: TileProgram, block: BlockGraph, extents: Mapping[str, int | None]
) -> bool:
    """Whether what has one lane in a program has one at the sizes of a block too.

    Splits may have: any tile serves, also one of a single element.  Not so where the
    number of parts is an extent of what is stored.
    """
    stored = {d.name for s in block.stores for axis in s.axes for d in axis}
    if any(partial_dim(d.name) in stored for d in program.units if d.grid):
        return False
    sized = replace(_at(program, block), extents={**program.extents, **extents})
    pieces = pieces_of(sized)
    return all(pieces[d].unit for d in program.units)


def evaluator_of(
    tile_programs: Mapping[tuple[str, ...], TileProgram],
) -> BlockEvaluator:
    """What evaluates blocks by the tile programs of those with the same results."""

    def evaluate(
        block: BlockGraph,
        outer: Mapping[str, Named[V]],
        extents: Mapping[str, int],
        domain: Domain[V],
    ) -> dict[str, Named[V]]:
        program = _at(tile_programs[block.results], block)
        return evaluate_tiles(program, outer, extents, domain)

    return evaluate


def _at(program: TileProgram, block: BlockGraph) -> TileProgram:
    """The program with the tiles of a block, but 1 where it knows of one lane."""
    parts = {d.name for d in program.units if d.grid and not d.loop}
    steps = {d.name for d in program.units if d.loop}
    grid = tuple(replace(s, tile=1) if s.dim in parts else s for s in block.grid)
    loop = block.loop
    if loop is not None and loop.dim in steps:
        loop = replace(loop, tile=1)
    return replace(program, grid=grid, loop=loop)


__all__ = ["evaluator_of", "hold_to_rules", "holds_at", "tile_level"]
