"""What single kernels can do: the closures, and the grids over them, with costs.

A closure reads the program's inputs and everything that an earlier kernel may have
stored.  A kernel is a closure with a grid: of the closure's edges it has those that
reduce no split dim.  Cut dims obey three rules: a sum within the parts needs a grid
over them, a grid over them allows nothing but that, and both halves go together else.
"""

# Numba has no types for compiled functions, NumPy none for rows of arrays.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.table import EXP
from mirage_dsl.search.additive import (
    SM_BYTES_PER_US,
    TILE,
    additive_cost,
    work_of,
)
from mirage_dsl.search.partition import is_view
from mirage_dsl.search.saturate import Saturation, saturate
from mirage_dsl.search.space import Configuration, Space, block_count
from mirage_dsl.search.union.candidates import Candidates
from mirage_dsl.search.union.halves import Halves
from mirage_dsl.search.values import NAMES, PIECE
from mirage_dsl.search.workspace import (
    BODY,
    CONTRACT,
    FUNCTION,
    GATHER,
    LOAD,
    SUM,
    Ints,
    Workspace,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_GRID = 3

WAITING = 1.5
"""Loads outside of a loop are not overlapped with anything."""

SHIFT_US = 20.0
"""What every exponential with a shift costs more.  Sums of the same exponential in two
kernels would have two different shifts, so they should be made in one."""

SHORT = 16
"""Extent of a dim that is split into single indices, and tile of a longer one."""

LARGEST_LOAD = 1 << 15
LARGEST_VALUE = 1 << 14
"""Elements of what a block loads, or computes, beyond which it cannot be held; these
are the limits of shared memory and of registers at placeholder sizes."""


@dataclass(frozen=True, eq=False)
class Closure:
    """All that kernels of one loop choice can compute.

    Attributes:
        space: The program with everything that may be read.
        saturation: Its closure.
        whole: The cut dim that is not cut here, since the loop runs over all of it.
        cut: The dims that are.
        reduced: Dims that each edge reduces, as masks.
        shapes: Dims that the operands of each edge have together.
        extra: µs that each edge costs more than by its work.
    """

    space: Space
    saturation: Saturation
    whole: Halves | None
    cut: tuple[Halves, ...]
    reduced: Ints
    shapes: Ints
    extra: Floats


@dataclass(frozen=True, eq=False)
class Kernel:
    """A configuration: one way to split a closure between blocks.

    Attributes:
        closure: The closure.
        configuration: Grid and loop, over halves.
        alive: Edges that it has.
        cost: µs of each edge.
        saves: Tensor, node and µs of everything that it can store.
    """

    closure: Closure
    configuration: Configuration
    alive: Bools
    cost: Floats
    saves: tuple[tuple[str, int, float], ...]


def closures(
    found: Candidates,
    w: Workspace,
    *,
    seed: int = 0,
    deadline: float | None = None,
) -> Iterator[Closure]:
    """The closures of all loop choices, until the deadline.

    A loop over a dim that nothing sums only gathers; a grid over it does better.  A
    loop over a short dim has one iteration.
    """
    space = found.space()
    halves = {n for h in found.cut for n in (h.part, h.within)}
    choices: list[tuple[Space, str | None, Halves | None]] = [(space, None, None)]
    choices += [(space, h.within, None) for h in found.cut]
    summed = space.names(space.reduced)
    choices += [
        (space, d, None)
        for d in space.loop_dims
        if d in summed and d not in halves and space.extent(d) > TILE
    ]
    choices += [(found.space(h), h.dim, h) for h in found.cut]
    for own, loop, whole in choices:
        if deadline is not None and time.monotonic() > deadline:
            return
        saturation = saturate(own, loop, w, seed=seed, deadline=deadline)
        cut = tuple(h for h in found.cut if h != whole)
        yield _closure(own, saturation, whole, cut, found.unshifted)


def _closure(
    space: Space,
    saturation: Saturation,
    whole: Halves | None,
    cut: tuple[Halves, ...],
    unshifted: bool,
) -> Closure:
    _, kind, a, b, _, arg = saturation.edges.T
    over = np.array([v.over for v in space.values], np.int64)
    sites = np.array([*saturation.sites, 0])[np.where(kind == FUNCTION, arg, 0)]
    reduced = np.where((kind == SUM) | (kind == CONTRACT), arg, 0)
    reduced = np.where(kind == FUNCTION, over[sites], reduced)
    shape: Ints = np.append(saturation.shape & NAMES, 0)
    exponential = [unshifted and space.values[i].op is EXP for i in saturation.sites]
    shifted = np.array([*exponential, False])[np.where(kind == FUNCTION, arg, -1)]
    extra = np.where(shifted, SHIFT_US, 0.0)
    return Closure(space, saturation, whole, cut, reduced, shape[a] | shape[b], extra)


def kernels(closure: Closure) -> Iterator[Kernel]:
    """All configurations of a closure that can store something.

    Degenerate ones, whose grid or loop has one part, are left out.
    """
    space, loop = closure.space, closure.saturation.loop
    within = {h.within: h.part for h in closure.cut}
    stored = 0
    for i in space.stored:
        stored |= space.values[i].names
    dims = [d for d in space.names(stored) if d not in within]
    for count in range(min(MAX_GRID, len(dims)) + 1):
        for grid in itertools.combinations(dims, count):
            if loop in within and within[loop] not in grid:
                continue
            configuration = Configuration(grid, loop)
            cut = [h for h in closure.cut if h.part in grid]
            for summed in (None, *cut):
                if loop in within and (summed is None or loop != summed.within):
                    continue
                tiled = tuple(h for h in cut if h != summed)
                kernel = _kernel(closure, configuration, tiled)
                if kernel is not None:
                    yield kernel


def _tiled(space: Space, tiled: tuple[Halves, ...]) -> Space:
    """A space in which parts of some dims are tiles: these are not summed over."""
    extents: dict[str, int | None] = {}
    for half in tiled:
        whole = space.extent(half.part) * space.extent(half.within)
        extents[half.part], extents[half.within] = -(-whole // TILE), TILE
    return replace(space, program=space.program.with_extents(extents))


def _kernel(
    closure: Closure, configuration: Configuration, tiled: tuple[Halves, ...]
) -> Kernel | None:
    """A configuration; None if it is degenerate or has nothing to store.

    `tiled` are cut dims of which each block makes a part of the result, and no sum.
    """
    space = _tiled(closure.space, tiled)
    tiles = placeholder_tiles(space, configuration)
    if any(tiles[d] >= space.extent(d) for d in tiles):
        return None
    saturation = closure.saturation
    cost = additive_cost(work_of(space, saturation, configuration, tiles))
    waiting = (saturation.edges[:, 1] == LOAD) & (
        saturation.stage[saturation.edges[:, 0]] != BODY
    )
    cost[waiting] *= WAITING
    cost += closure.extra
    waves = max(1.0, block_count(space, tiles, configuration.grid) / 132)
    sizes = _held(space, saturation, configuration, tiles)
    alive = _alive(closure, configuration)
    alive &= closure.reduced & space.mask(tuple(h.within for h in tiled)) == 0
    most = np.where(saturation.edges[:, 1] == LOAD, LARGEST_LOAD, LARGEST_VALUE)
    alive &= sizes[saturation.edges[:, 0]] <= most
    saves = tuple(_saves(closure, configuration, alive, sizes * waves))
    return Kernel(closure, configuration, alive, cost, saves) if saves else None


def _saves(
    closure: Closure, configuration: Configuration, alive: Bools, sizes: Floats
) -> Iterator[tuple[str, int, float]]:
    """Tensors that have all split dims, from values that are not just loaded."""
    space, saturation = closure.space, closure.saturation
    grid = space.mask(configuration.grid)
    computed = alive & (saturation.edges[:, 1] != LOAD)
    makes = np.zeros(len(sizes), np.bool_)
    makes[saturation.edges[computed, 0]] = True
    for output, nodes in zip(space.outputs, saturation.roots, strict=True):
        if grid & ~space.values[output.value].names:
            continue
        for node in nodes:
            if makes[node]:
                moved = sizes[node] * output.type.dtype.itemsize
                yield output.name, node, float(moved / SM_BYTES_PER_US)


def placeholder_tiles(space: Space, configuration: Configuration) -> dict[str, int]:
    """A guess of the tile of every split dim: 64, less for short dims, 1 for parts."""
    everywhere = -1
    for value in space.values:
        if value.is_load:
            everywhere &= value.names
    parts = {space.dims[p] for p, _ in space.halves}
    single = parts | set(space.names(everywhere))
    tiles: dict[str, int] = {}
    for dim in {*configuration.grid, configuration.loop} - {None}:
        assert dim is not None
        extent = space.extent(dim)
        short = 1 if dim in single or extent <= SHORT else SHORT
        tiles[dim] = TILE if extent > TILE and dim not in parts else short
    return tiles


def _held(
    space: Space,
    saturation: Saturation,
    configuration: Configuration,
    tiles: dict[str, int],
) -> Floats:
    """Elements of every node in one block."""
    shapes = saturation.shape
    count = np.ones(len(shapes))
    looped = (shapes & PIECE) != 0
    for i, dim in enumerate(space.dims):
        size = float(space.extent(dim))
        if dim in configuration.grid:
            size = float(tiles[dim])
        sizes = np.full(len(shapes), size)
        if dim == configuration.loop:
            sizes[looped] = tiles[dim]
        count *= np.where(shapes >> i & 1, sizes, 1.0)
    return count


def _alive(closure: Closure, configuration: Configuration) -> Bools:
    """The edges that a configuration has."""
    space = closure.space
    grid = space.mask(configuration.grid)
    reduced, shapes = closure.reduced, closure.shapes
    kind, arg = closure.saturation.edges[:, 1], closure.saturation.edges[:, 5]
    # What a loop joins, a grid or no loop computes for less.
    alive = (reduced & grid == 0) & (kind != GATHER)
    read = np.where(kind == LOAD, arg, 0)
    names = np.array([v.names for v in space.values], np.int64)[read]
    for part, within in space.halves:
        sums_part, sums_within = reduced >> part & 1 > 0, reduced >> within & 1 > 0
        if grid >> part & 1:
            # A block has its own part of every tensor, but none of partial results.
            partial = (names >> part & 1 > 0) & (names >> within & 1 == 0)
            alive &= ~((kind == LOAD) & partial)
        else:
            alive &= ~(sums_within & ~sums_part)
            alive &= ~(sums_part & ~sums_within & (shapes >> within & 1 > 0))
    return alive


def library(program: KernelGraph, tensors: AbstractSet[str]) -> list[Apply]:
    """The program's operators as pre-defined kernels, between known tensors."""
    return [
        n
        for n in program.nodes
        if isinstance(n, Apply) and not is_view(n) and tensors >= {n.result, *n.values}
    ]
