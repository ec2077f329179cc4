"""One AND-OR graph of all programs of several kernels, and the kernels in it.

A kernel is a closure with a grid.  The closure reads the program's inputs and
everything that an earlier kernel may have stored; of its edges a kernel has those that
reduce no split dim.  Cut dims obey three rules: a sum within the parts needs a grid
over them, a grid over them allows nothing but that, and both halves go together else.

The graph's classes are tensors in memory after each layer of kernels, launches, and
values in blocks.  A tensor is there after a layer if a kernel of the layer saves it, or
if it was there before; a block's value is made from others, or loaded, which needs the
tensor and the launch.  Layers keep the kernels in order, so the graph has no cycles but
those within a closure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.hardware import SECTOR, Hardware
from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.closure import (
    AFTER,
    BEFORE,
    BODY,
    CONTRACT,
    FUNCTION,
    GATHER,
    JOIN,
    LOAD,
    NAMES,
    Ints,
    Saturation,
    Workspace,
    saturate,
)
from mirage_dsl.search.extract import (
    TILE,
    Edges,
    additive_cost,
    moved_differences,
    needed,
    piece_of,
    work_of,
)
from mirage_dsl.search.multi_kernel.storable import LONG, Candidates, Halves, beside
from mirage_dsl.search.space import Configuration, Space, block_count

# -- Tiles to price kernels at ---------------------------------------------------------
# A kernel enters the layered graph at several points, each with its own costs and with
# its own share of the limits.  The points are a coarse sweep; the real one is
# `search.sizes`.

# NumPy gives rows of arrays no element type.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SHORT = 16
"""Extent of a dim that is split into single indices, and tile of a longer one."""

LARGEST = 1 << 14
"""Elements of an output that a block may make, if it can make less."""

STAGES = 2
"""Stages of a loop's loads: fewer do not overlap with anything."""

WORD = 4
"""Bytes of a register."""

LIMITS = 3
"""Shared memory in the loop, after it, and registers."""


@dataclass(frozen=True)
class Point:
    """Tiles of the grid's long dims, and of the loop's."""

    grid: int = TILE
    loop: int = TILE


POINTS = (
    Point(),
    Point(32, 128),
    Point(128, 64),
    Point(32, 32),
    Point(128, 32),
    Point(16, 64),
)
"""In the order in which they are taken, while the layered graph stays small enough."""


def tiles_at(
    space: Space, configuration: Configuration, point: Point
) -> dict[str, int]:
    """The tile of every split dim: less for short dims, 1 for numbers of parts."""
    parts = {space.dims[p] for p, _ in space.halves}
    single = parts | set(space.names(space.batch))
    tiles: dict[str, int] = {}
    for dim in {*configuration.grid, configuration.loop} - {None}:
        assert dim is not None
        extent = space.extent(dim)
        wanted, usual = point.grid, TILE
        if dim == configuration.loop:
            others = _beside(space, dim)
            wanted, usual = (max(1, t // others) for t in (point.loop, TILE))
        long = max((t for t in (wanted, usual) if t < extent), default=0)
        long = min(long, wanted)
        short = 1 if dim in single or extent <= SHORT else SHORT
        tiles[dim] = short if dim in parts or not long else long
    return tiles


def _beside(space: Space, dim: str) -> int:
    """Elements that a sum adds in one iteration for each index of a short dim."""
    if space.extent(dim) >= LONG:
        return 1
    parts = {space.dims[p] for p, _ in space.halves}
    sums = [space.names(v.over) for v in space.values]
    own = beside(sums, lambda d: 1 if d in parts else space.extent(d))
    return own.get(dim, 1)


def with_room(
    tiles: dict[str, int], space: Space, configuration: Configuration
) -> dict[str, int]:
    """Smaller tiles, the largest first, where a block would make too much of an output.

    A tile of 64 groups is 2,048 columns if a group has 32.
    """
    found = dict(tiles)
    grid = set(configuration.grid)
    outputs = [o.type.names for o in space.outputs[: space.targets]]
    shared = [names for names in outputs if grid <= set(names)]
    while found and shared:
        least = min(
            math.prod(found[n] if n in grid else space.extent(n) for n in names)
            for names in shared
        )
        largest = max(configuration.grid, key=lambda d: found[d], default=None)
        if least <= LARGEST or largest is None or found[largest] == 1:
            break
        found[largest] //= 2
    return found


def whole_sectors(kind: TensorType, space: Space, tiles: Mapping[str, int]) -> float:
    """How often the bytes of a tensor are moved: runs of a block are whole sectors."""
    run = kind.dtype.itemsize
    for axis in reversed(kind.order):
        for dim in reversed(kind.axes[axis]):
            run *= tiles.get(dim.name, space.extent(dim.name))
            if dim.name in tiles or run >= SECTOR:
                return max(1.0, SECTOR / run)
    return 1.0


def held(
    space: Space, edges: Edges, configuration: Configuration, tiles: dict[str, int]
) -> Floats:
    """Elements of every node in one block."""
    grid = configuration.grid
    extents = [tiles[d] if d in grid else space.extent(d) for d in space.dims]
    return edges.nodes.elements(extents, *piece_of(space, configuration, tiles))


def limits(hardware: Hardware) -> tuple[int, int, int]:
    """Bytes of shared memory in the loop and after it, and words of registers."""
    own = hardware.architecture
    words = int(hardware.register_share * own.registers_per_sm)
    return own.shared_per_block, own.shared_per_block, words


def room(space: Space, saturation: Saturation, alive: Bools, sizes: Floats) -> Ints:
    """What every edge takes of each limit, one row an edge.

    Loads of the loop have their stages in shared memory, other operands of products
    one copy; accumulators, products and what is loaded before a loop are in registers.
    What is in shared memory before the loop counts in the loop only.  All other values
    come and go.
    """
    node, kind, first, second, _, arg = saturation.edges.T
    stage = saturation.stage
    found = np.zeros((len(kind), LIMITS), np.int64)
    bytes_of = np.array(
        [0 if v.type is None else v.type.dtype.itemsize for v in space.values]
    )
    product = np.zeros(len(stage) + 1, np.bool_)
    of_product = alive & (kind == CONTRACT)
    product[first[of_product]] = product[second[of_product]] = True
    joined = np.zeros(len(stage) + 1, np.bool_)
    joined[first[alive & (kind == JOIN)]] = True
    load = kind == LOAD
    size = sizes[node] * np.where(load, bytes_of[np.where(load, arg, 0)], 1)
    looped = load & (stage[node] == BODY)
    found[looped, 0] = STAGES * size[looped]
    other = load & ~looped & product[node]
    late = other & (stage[node] == AFTER)
    found[other & ~late, 0] = size[other & ~late]
    found[late, 1] = size[late]
    kept = (kind == JOIN) | ((kind == CONTRACT) & ~joined[node])
    found[kept, 2] = sizes[node][kept]
    if saturation.loop is not None:
        early = load & (stage[node] == BEFORE)
        found[early, 2] = size[early] / WORD
    return found


# -- Closures, grids, costs ------------------------------------------------------------

MAX_GRID = 3

MATRIX_RANK = 2

WAITING = 1.5
"""Loads outside of a loop are not overlapped with anything."""

MOVED_US = 1.0
"""What a difference costs that the program does not take (`search.extract`)."""

SHIFT_US = 20.0
"""What every exponential with a shift costs more.  Sums of the same exponential in two
kernels would have two different shifts, so they should be made in one, and their parts
combined in one (`Closure.shift`)."""


@dataclass(frozen=True, eq=False)
class Closure:
    """All that kernels of one loop choice can compute.

    Attributes:
        space: The program with everything that may be read.
        saturation: Its closure.
        cut: The cut dims but one that the loop runs over all of.
        shapes: Dims that the operands of each edge have together.
        extra: µs that each edge costs more than by its work.
        shift: What chooses a shift: an exponential, or combining parts, which one
            kernel should do (`candidates.once`).  By edge, -1 for none.
        products: Names of the program's products.
        edges: What its edges do.
    """

    space: Space
    saturation: Saturation
    cut: tuple[Halves, ...]
    shapes: Ints
    extra: Floats
    shift: Ints
    products: frozenset[str]
    edges: Edges


@dataclass(frozen=True, eq=False)
class KernelChoice:
    """A configuration: one way to split a closure between blocks, at some tiles.

    Attributes:
        closure: The closure.
        configuration: Grid and loop, over halves.
        tiled: Cut dims of which each block makes a part of the result, and no sum.
        alive: Edges that it has.
        cost: µs of each edge.
        room: What each edge takes of every limit (`limits`).
        saves: Tensor, node and µs of everything that it can store.
    """

    closure: Closure
    configuration: Configuration
    tiled: tuple[Halves, ...]
    alive: Bools
    cost: Floats
    room: Ints
    saves: tuple[tuple[str, int, float], ...]


def closures(
    found: Candidates,
    w: Workspace,
    *,
    seed: int,
    budget: Budget,
) -> Iterator[Closure]:
    """The closures of all loop choices, until the budget is used up.

    A loop over a dim that nothing sums only gathers; a grid over it does better.  A
    loop over a short dim has one iteration, unless it numbers whole matrices.
    """
    space = found.space()
    halves = {n for h in found.cut for n in (h.part, h.within)}
    choices: list[tuple[Space, str | None, Halves | None]] = [(space, None, None)]
    choices += [(space, h.within, None) for h in found.cut]
    summed = space.names(space.reduced)
    choices += [
        (space, d, None)
        for d in space.loop_dims
        if d in summed and d not in halves and _loops(space, d)
    ]
    choices += [(found.space(h), h.dim, h) for h in found.cut]
    for own, loop, whole in choices:
        if budget.late():
            return
        saturation = saturate(own, loop, w, seed=seed, budget=budget, own=found.own)
        cut = tuple(h for h in found.cut if h != whole)
        yield _closure(own, saturation, cut, found)


def _loops(space: Space, dim: str) -> bool:
    """Whether a loop over a summed dim would have several iterations."""
    if space.extent(dim) > TILE:
        return True
    bit = space.mask((dim,))
    ranks = [v.names.bit_count() for v in space.values if v.is_load and v.names & bit]
    return 1 < space.extent(dim) <= SHORT and max(ranks, default=0) > MATRIX_RANK


def _closure(
    space: Space,
    saturation: Saturation,
    cut: tuple[Halves, ...],
    found: Candidates,
) -> Closure:
    _, kind, a, b, _, arg = saturation.edges.T
    function, load = kind == FUNCTION, kind == LOAD
    sites = np.array([*saturation.sites, 0])[np.where(function, arg, 0)]
    shape: Ints = np.append(saturation.shape & NAMES, 0)
    chosen = np.array([found.shifts.get(v.name, -1) for v in space.values])
    shift = np.where(function, chosen[sites], -1)
    extra = np.where(shift >= 0, SHIFT_US, 0.0)
    program = {n.result for n in found.program.applies}
    products = frozenset(
        n.result for n in found.program.applies if n.op.kind is Kind.CONTRACTION
    )
    extra += MOVED_US * moved_differences(space, saturation, program)
    shift = np.where(load, chosen[np.where(load, arg, 0)], shift)
    joint = shape[a] | shape[b]
    edges = Edges.of(space, saturation)
    return Closure(space, saturation, cut, joint, extra, shift, products, edges)


def kernels(closure: Closure, hardware: Hardware) -> Iterator[KernelChoice]:
    """All configurations of a closure that can store something, at one point.

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
                kernel = _kernel(closure, configuration, tiled, Point(), hardware)
                if kernel is not None:
                    yield kernel


def at_points(
    kernel: KernelChoice, points: Sequence[Point], hardware: Hardware
) -> list[KernelChoice]:
    """A kernel at several points, without those that another one beats in all."""
    found: list[KernelChoice] = []
    for point in points:
        other = _kernel(
            kernel.closure, kernel.configuration, kernel.tiled, point, hardware
        )
        if other is None or any(_beats(k, other) for k in found):
            continue
        found = [k for k in found if not _beats(other, k)]
        found.append(other)
    return found


def _beats(a: KernelChoice, b: KernelChoice) -> bool:
    """Whether a kernel can do all that another one does, for no more."""
    can = b.alive
    costs = {(n, i): c for n, i, c in a.saves}
    return bool(
        a.alive[can].all()
        and (a.cost[can] <= b.cost[can]).all()
        and (a.room[can] <= b.room[can]).all()
        and all(costs.get((n, i), np.inf) <= c for n, i, c in b.saves)
    )


def _tiled(space: Space, tiled: tuple[Halves, ...], point: Point) -> Space:
    """A space in which parts of some dims are tiles: these are not summed over."""
    if not tiled:
        return space
    extents: dict[str, int | None] = {}
    for half in tiled:
        whole = space.extent(half.part) * space.extent(half.within)
        extents[half.part], extents[half.within] = -(-whole // point.grid), point.grid
    return replace(space, program=space.program.with_extents(extents))


def _kernel(
    closure: Closure,
    configuration: Configuration,
    tiled: tuple[Halves, ...],
    point: Point,
    hardware: Hardware,
) -> KernelChoice | None:
    """A configuration; None if it is degenerate or has nothing to store."""
    space = _tiled(closure.space, tiled, point)
    tiles = with_room(tiles_at(space, configuration, point), space, configuration)
    if any(tiles[d] >= space.extent(d) for d in tiles):
        return None
    saturation = closure.saturation
    cost = additive_cost(work_of(space, closure.edges, configuration, tiles), hardware)
    waiting = (saturation.edges[:, 1] == LOAD) & (
        saturation.stage[saturation.edges[:, 0]] != BODY
    )
    cost[waiting] *= WAITING
    cost += closure.extra
    waves = max(1.0, block_count(space, tiles, configuration) / hardware.sms)
    sizes = held(space, closure.edges, configuration, tiles)
    alive = _alive(closure, configuration)
    within = space.mask(tuple(h.within for h in tiled))
    alive &= closure.edges.reduced & within == 0
    most = limits(hardware)
    alive &= sizes[saturation.edges[:, 0]] <= most[-1]
    taken = room(space, saturation, alive, sizes)
    alive &= (taken <= most).all(axis=1)
    rate = hardware.ranking.bytes_per_us
    saves = tuple(_saves(closure, configuration, tiles, alive, sizes * waves, rate))
    if not saves:
        return None
    return KernelChoice(closure, configuration, tiled, alive, cost, taken, saves)


def _saves(
    closure: Closure,
    configuration: Configuration,
    tiles: Mapping[str, int],
    alive: Bools,
    sizes: Floats,
    rate: float,
) -> Iterator[tuple[str, int, float]]:
    """Tensors that have all split dims, from values that are not just loaded.

    With the µs that storing their elements takes, at a rate in bytes a µs.  What
    kernels leave to each other may lie in any order, results of the program do not.
    """
    space, saturation = closure.space, closure.saturation
    grid = space.mask(configuration.grid)
    computed = alive & (saturation.edges[:, 1] != LOAD)
    makes = np.zeros(len(sizes), np.bool_)
    results = space.outputs[: space.targets]
    makes[saturation.edges[computed, 0]] = True
    for output, nodes in zip(space.outputs, saturation.roots, strict=True):
        if grid & ~space.values[output.value].names:
            continue
        for node in nodes:
            if makes[node]:
                moved = sizes[node] * output.type.dtype.itemsize
                if output in results:
                    moved *= whole_sectors(output.type, space, tiles)
                yield output.name, node, float(moved / rate)


def _alive(closure: Closure, configuration: Configuration) -> Bools:
    """The edges that a configuration has."""
    space = closure.space
    grid = space.mask(configuration.grid)
    reduced, shapes = closure.edges.reduced, closure.shapes
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
        if isinstance(n, Apply) and not n.is_view and tensors >= {n.result, *n.values}
    ]


# -- The layered graph -----------------------------------------------------------------

OPERATE, SAVE, LAUNCH, LIBRARY, PASS = range(5)
"""Kinds of e-node: an edge of a closure, a store, and so on."""


@dataclass(frozen=True)
class LibraryChoice:
    """A pre-defined kernel: the tensor that it makes, those that it reads, its µs."""

    result: str
    operands: tuple[str, ...]
    cost: float


@dataclass(frozen=True, eq=False)
class LayeredGraph:
    """The graph, reduced to what the outputs need.

    E-nodes are rows of the arrays, sorted by class.

    Attributes:
        makes: Class of each e-node.
        kids: Classes that it needs, -1 for none.
        cost: Its µs.
        kind: Its kind.
        kernel: Number of its kernel (of its call for `LIBRARY`), -1 for `PASS`.
        layer: Its layer.
        detail: Number of its edge, or of its save.
        shift: The shift that it chooses or shares (`Closure.shift`), -1 for none.
        room: What it takes of each limit of its launch, one row an e-node.
        tensor: Of each class the number of its tensor, -1 if it is none.
        root: The class of all outputs.
        total: How many e-nodes there were before the reduction.
    """

    makes: Ints
    kids: Ints
    cost: Floats
    kind: Ints
    kernel: Ints
    layer: Ints
    detail: Ints
    shift: Ints
    room: Ints
    tensor: Ints
    root: int
    total: int

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.tensor)

    def take(self, enodes: Ints) -> LayeredGraph:
        """The graph of some of its e-nodes, in their order; the classes stay."""
        return LayeredGraph(
            self.makes[enodes],
            self.kids[enodes],
            self.cost[enodes],
            self.kind[enodes],
            self.kernel[enodes],
            self.layer[enodes],
            self.detail[enodes],
            self.shift[enodes],
            self.room[enodes],
            self.tensor,
            self.root,
            self.total,
        )

    @cached_property
    def launch(self) -> Ints:
        """Number of each e-node's launch, -1 where it belongs to none."""
        inside = (self.kind == OPERATE) | (self.kind == SAVE) | (self.kind == LAUNCH)
        return np.where(inside, self.kernel * (self.layer.max() + 1) + self.layer, -1)


@dataclass
class _Builder:
    """Collects e-nodes as chunks of rows; a launch costs `launch_us`."""

    tensors: dict[str, int]
    layers: int
    launch_us: float
    rows: list[Ints] = field(default_factory=list[Ints])
    costs: list[Floats] = field(default_factory=list[Floats])
    classes: int = 0
    _single: list[Sequence[int]] = field(default_factory=list[Sequence[int]])
    _prices: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.classes = (self.layers + 1) * len(self.tensors)

    def at(self, name: str, layer: int) -> int:
        """The class of a tensor after a layer."""
        return layer * len(self.tensors) + self.tensors[name]

    def add(self, rows: Ints, costs: Floats) -> None:
        """E-nodes as rows.

        Columns: class, three kids, kind, kernel, layer, detail, what should be done in
        one launch, and the share of each limit.
        """
        self._settle()
        self.rows.append(rows)
        self.costs.append(costs)

    def one(self, row: Sequence[int], cost: float) -> None:
        """One e-node that takes no room."""
        self._single.append(row)
        self._prices.append(cost)

    def _settle(self) -> None:
        """Make a chunk of the e-nodes that came one by one."""
        if self._single:
            made = np.zeros((len(self._single), 9 + LIMITS), np.int64)
            made[:, :8], made[:, 8] = self._single, -1
            self.rows.append(made)
            self.costs.append(np.array(self._prices))
            self._single.clear()
            self._prices.clear()

    def whole(self) -> tuple[Ints, Floats]:
        """All e-nodes and their costs, in the order in which they came."""
        self._settle()
        return np.concatenate(self.rows), np.concatenate(self.costs)


def layered_graph(
    inputs: Sequence[str],
    outputs: Sequence[str],
    stored: Sequence[str],
    kernels: Sequence[KernelChoice],
    calls: Sequence[LibraryChoice],
    layers: int,
    launch_us: float,
    views: Sequence[tuple[str, str]],
) -> LayeredGraph | None:
    """The graph of all programs of at most `layers` layers; None if there is none.

    Args:
        inputs: Tensors that are there from the start.
        outputs: Tensors that must be there in the end.
        stored: All tensors that kernels may store.
        kernels: What single kernels can do.
        calls: Pre-defined kernels.
        layers: Kernels on the longest chain.
        launch_us: µs that a kernel costs more than its work.
        views: Tensors that are there as soon as other ones are, with these.
    """
    names = dict.fromkeys((*inputs, *stored))
    b = _Builder({n: i for i, n in enumerate(names)}, layers, launch_us)
    for name in inputs:
        b.one((b.at(name, 0), -1, -1, -1, PASS, -1, 0, 0), 0.0)
    for layer in range(1, layers + 1):
        for name in names:
            before = b.at(name, layer - 1)
            b.one((b.at(name, layer), before, -1, -1, PASS, -1, layer, 0), 0.0)
        for name, seen in views:
            kid = b.at(seen, layer)
            b.one((b.at(name, layer), kid, -1, -1, PASS, -1, layer, 0), 0.0)
    parts = [_part(k) for k in kernels]
    for number, part in enumerate(parts):
        for layer in range(1, layers + 1):
            _add_kernel(b, part, number, layer)
    for number, call in enumerate(calls):
        for layer in range(1, layers + 1):
            _add_call(b, call, number, layer)
    return _reduced(b, _all_of(b, outputs, layers))


def _all_of(b: _Builder, names: Sequence[str], layer: int) -> int:
    """The class of several tensors after a layer."""
    found = b.at(names[0], layer)
    for name in names[1:]:
        b.one((b.classes, found, b.at(name, layer), -1, PASS, -1, layer, 0), 0.0)
        found, b.classes = b.classes, b.classes + 1
    return found


def _add_call(b: _Builder, call: LibraryChoice, number: int, layer: int) -> None:
    """A pre-defined kernel in one layer."""
    kid = _all_of(b, tuple(dict.fromkeys(call.operands)), layer - 1)
    row = (b.at(call.result, layer), kid, -1, -1, LIBRARY, number, layer, 0)
    b.one(row, call.cost + b.launch_us)


@dataclass(frozen=True, eq=False)
class _Part:
    """A kernel's edges that lead from tensors to saves."""

    kernel: KernelChoice
    edges: Ints
    nodes: Ints


def _part(kernel: KernelChoice) -> _Part:
    """Leave out what no save needs, or what cannot be made."""
    rows = kernel.closure.saturation.edges
    nodes = len(kernel.closure.saturation.shape)
    alive = np.flatnonzero(kernel.alive)
    makes, kids = rows[alive, 0], np.ascontiguousarray(rows[alive, 2:5])
    roots = np.array([n for _, n, _ in kernel.saves], np.int64)
    keep, _ = needed(makes, kids, np.ones(len(alive), np.bool_), roots, nodes)
    kept = alive[keep]
    return _Part(kernel, kept, np.unique(rows[kept, 0]))


def _add_kernel(b: _Builder, part: _Part, number: int, layer: int) -> None:
    """A kernel in one layer."""
    if not len(part.edges):
        return
    kernel = part.kernel
    rows = kernel.closure.saturation.edges[part.edges]
    launch = b.classes
    place = np.full(len(kernel.closure.saturation.shape) + 1, -1)
    place[part.nodes] = launch + 1 + np.arange(len(part.nodes))
    b.classes += 1 + len(part.nodes)
    b.one((launch, -1, -1, -1, LAUNCH, number, layer, 0), b.launch_us)
    made = np.empty((len(rows), 9 + LIMITS), np.int64)
    made[:, 0] = place[rows[:, 0]]
    made[:, 1:4] = place[rows[:, 2:5]]
    made[:, 4:7] = (OPERATE, number, layer)
    made[:, 7] = part.edges
    made[:, 8] = kernel.closure.shift[part.edges]
    made[:, 9:] = kernel.room[part.edges]
    values = kernel.closure.space.values
    loads = np.flatnonzero(rows[:, 1] == LOAD)
    read: list[int] = rows[loads, 5].tolist()
    made[loads, 1] = [b.at(values[value].name, layer - 1) for value in read]
    made[loads, 2] = launch
    b.add(made, kernel.cost[part.edges])
    for i, (name, node, cost) in enumerate(kernel.saves):
        if place[node] >= 0:
            row = (b.at(name, layer), int(place[node]), -1, -1, SAVE, number, layer, i)
            b.one(row, cost)


def _reduced(b: _Builder, root: int) -> LayeredGraph | None:
    """Only what can be made and what the outputs need, classes numbered anew."""
    rows, cost = b.whole()
    kids = np.ascontiguousarray(rows[:, 1:4])
    alive = np.ones(len(rows), np.bool_)
    keep, _ = needed(rows[:, 0].copy(), kids, alive, np.array([root]), b.classes)
    total = len(rows)
    rows, cost = rows[keep], cost[keep]
    if root not in rows[:, 0]:
        return None
    order = np.argsort(rows[:, 0], kind="stable")
    rows, cost = rows[order], cost[order]
    classes = np.unique(rows[:, 0])
    place = np.full(b.classes + 1, -1)
    place[classes] = np.arange(len(classes))
    count = len(b.tensors) * (b.layers + 1)
    tensor = np.where(classes < count, classes % len(b.tensors), -1)
    return LayeredGraph(
        place[rows[:, 0]],
        np.ascontiguousarray(place[rows[:, 1:4]]),
        cost,
        rows[:, 4],
        rows[:, 5],
        rows[:, 6],
        rows[:, 7],
        rows[:, 8],
        rows[:, 9:],
        tensor,
        int(place[root]),
        total,
    )


def without_products(u: LayeredGraph, kernels: Sequence[KernelChoice]) -> Ints | None:
    """Numbers of the e-nodes that leave products to pre-defined kernels.

    No kernel contracts, nor makes a product of the program by other operators; None if
    there is no program without that.
    """
    alive = np.ones(len(u.makes), np.bool_)
    used: list[int] = np.unique(u.kernel[u.kind == LAUNCH]).tolist()
    for number in used:
        closure = kernels[number].closure
        edges, space = closure.saturation.edges, closure.space
        products = np.zeros(len(closure.saturation.shape), np.bool_)
        for output, nodes in zip(space.outputs, closure.saturation.roots, strict=True):
            if output.name in closure.products:
                products[list(nodes)] = True
        own = np.flatnonzero((u.kernel == number) & (u.kind == OPERATE))
        row = edges[u.detail[own]]
        made = products[row[:, 0]] & (row[:, 1] != LOAD)
        alive[own] = ~made & (row[:, 1] != CONTRACT)
    keep, made = needed(u.makes, u.kids, alive, np.array([u.root]), u.classes)
    return np.flatnonzero(keep) if made[u.root] else None
