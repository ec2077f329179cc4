"""Comparison at the true extents, of a few elements of every output.

Trials run at small sizes; here both graphs keep their own extents and tiles.  The first
and the last element along every axis of an output are compared, the last ones being in
the last, ragged tiles, and some between; only what these need is computed.  Inputs are
random functions of the index, so that none of them has to exist as a whole.

One trial says little about sums of very many exponentials, so this adds nothing to the
error bound.

Which elements of every value those need is told by regions.

A region has indices for each dim of a value, ascending; the elements are those of the
product.  Regions follow the graph backwards: what a node sums is needed whole, a slice
moves indices, a block needs what its pieces cover.

A dim that is too long for that is **thinned**: of its elements only those near its
ends, around a random place, and where the first part of a grid ends, are there, in both
graphs; all others are as what lies outside of a ragged tile.  A graph treats all
elements of a dim alike, so it computes the same function of those that are left; and it
still has to meet the last one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim, Scalar, boolean
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import (
    HALF,
    AllTurns,
    Limit,
    Trues,
    Turns,
    index_limits,
    of_words,
    turns_of,
)
from mirage_dsl.ir.evaluate import (
    LOOP,
    BlockEvaluation,
    Inside,
    Label,
    Named,
    NamedArrays,
    grid_label,
)
from mirage_dsl.ir.infer import block_types, kernel_types, operand_axes
from mirage_dsl.ir.maps import (
    iterations,
    known_extents,
    loops_inside_grid,
    partial_base,
    products,
)
from mirage_dsl.ir.walk import applications, depending, live, operands_of
from mirage_dsl.ops.definition import AttributeKind, Kind, Operator
from mirage_dsl.verify import fields
from mirage_dsl.verify.algebra import (
    TOUCHED,
    Order,
    Residue,
    ResidueAlgebra,
    ResidueDomain,
)
from mirage_dsl.verify.certificate import Sampled
from mirage_dsl.verify.fields import (
    KINDS,
    IntArray,
    Trials,
    draw_trials,
    orders_floats,
)
from mirage_dsl.verify.sizes import corresponding_axes
from mirage_dsl.verify.trials import (
    CANDIDATE,
    PROGRAM,
    Reading,
    differences,
    elements_of,
    invalid_trials,
    touched,
    valueless,
    without_value,
)
from mirage_dsl.verify.turns import (
    Point,
    positions_at,
    turning_points,
    turns_elsewhere,
)

# -- Regions ---------------------------------------------------------------------------


Region = dict[str, IntArray]
Extents = Mapping[str, int]

_MARKED = 1 << 20
"""Indices up to which marking them is quicker than sorting."""
_MOST_PLACES = 16
"""Numbers beside which integers turn of which a thinned dim keeps the neighbours."""


@dataclass(frozen=True)
class Thinning:
    """Which dims are thinned, and to what.

    Attributes:
        longest: The extent of the longest dim that is left as it is.
        width: How many elements a thinned one keeps at each place: at its ends, at a
            random one, and at those given.
        seed: What the random place follows from.
        places: Where parts of a grid end, and indices turn; from the end below 0.
        tables: By extent, what samples need of what positions index, as bytes.
        factors: Extents of what such tables are made of, which are left as they are.
    """

    longest: int
    width: int
    seed: int
    places: tuple[int, ...] = ()
    tables: tuple[tuple[int, bytes], ...] = ()
    factors: frozenset[int] = frozenset()

    def kept(self, extent: int) -> IntArray | None:
        """The elements that are left; None for all.

        Dims of one extent keep the same ones, so a renamed one does.
        """
        if extent <= self.longest or extent in self.factors:
            return None
        for table, positions in self.tables:
            if table == extent:
                return np.frombuffer(positions, np.int64)
        rng = np.random.default_rng([self.seed, extent, 32])
        last = extent - self.width
        starts = [0, int(rng.integers(last)), last]
        places = (p % extent for p in self.places if -extent <= p < extent)
        starts += [min(p - self.width // 2, last) for p in places]
        return distinct(*(max(s, 0) + np.arange(self.width) for s in starts))

    def at_parts(self, graph: ir.KernelGraph) -> Thinning:
        """The thinning that also keeps what is where the first parts of grids end."""
        tiles = {
            split.tile
            for block in graph.blocks
            for split in block.grid
            if (graph.extent_of[split.dim] or 0) > self.longest
        }
        return self._also_at(tiles)

    def at_turns(self, turns: AllTurns) -> Thinning:
        """The thinning that also keeps what indices are drawn beside turns."""
        beside = [(r.start + r.stop) // 2 for some in turns.inputs for r in some if r]
        return self._also_at(set(beside[:_MOST_PLACES]))

    def _also_at(self, places: set[int]) -> Thinning:
        return replace(self, places=tuple(sorted(places.union(self.places))))

    def of_dims(self, graph: ir.KernelGraph, extents: Extents) -> Region:
        """The elements that are left of each thinned dim of a graph.

        Raises:
            UnsupportedError: A part of a thinned dim is taken, or one is joined to
                another, so that what is left of them does not follow.
        """
        partial = _numbers_of_parts(graph)
        found: Region = {}
        for name, extent in extents.items():
            kept = self.kept(extent)
            if name not in partial and kept is not None:
                found[name] = kept
        views = [
            n
            for n in applications(graph)
            if n.op.kind in (Kind.VIEW, Kind.CONCAT, Kind.GATHER)
        ]
        viewed = {dim for node in views for dim in _viewed_dims(node)}
        for name, (base, block) in partial.items():
            split = block.grid_split(base)
            if split is not None and base in found and name not in viewed:
                found[name] = distinct(found[base] // split.tile)
            elif self.kept(extents[name]) is not None:
                raise UnsupportedError(f"{name} has too many parts")
        if found:
            tables = {n for n in _tables(graph) if self._is_table(extents[n])}
            _require_whole(graph, found, views, tables)
        return found

    def _is_table(self, extent: int) -> bool:
        return any(extent == table for table, _ in self.tables)


def _require_whole(
    graph: ir.KernelGraph,
    thinned: Region,
    views: Sequence[ir.Apply],
    tables: AbstractSet[str],
) -> None:
    """No part is taken of a thinned dim, nor is one part of another or joined to it.

    But for tables, of which is left what positions say.

    Raises:
        UnsupportedError: One is.
    """
    for view in products(graph):
        parts = {view.whole, *view.factors} - tables
        if not thinned.keys().isdisjoint(parts):
            raise UnsupportedError(f"a long dim is part of {view.whole}, or is it")
    placed = _of_positions(graph)
    for node in views:
        cuts = node.op.kind is Kind.CONCAT or node.sliced is not None
        # Data can be drawn so that they index what is left.
        dims = set(_viewed_dims(node))
        if node.op.kind is Kind.GATHER and node.values[1] in placed:
            cuts, dims = True, dims - tables
        if cuts and not thinned.keys().isdisjoint(dims):
            raise UnsupportedError(
                f"{node.result} takes a part of a long dim, or joins it to another"
            )


def distinct(*indices: IntArray) -> IntArray:
    """The indices of all arrays, each once, ascending; negative ones are left out."""
    first = indices[0]
    if all(len(i) == len(first) and (i == first).all() for i in indices[1:]):
        rising = first.ndim == 1 and (np.diff(first) > 0).all()
        if rising and first[0] >= 0:
            return first
    flat = np.concatenate([i.ravel() for i in indices])
    if flat.max(initial=-1) > _MARKED:
        found = np.unique(flat)
        return found[found >= 0]
    there = np.zeros(flat.max(initial=-1) + 2, np.bool_)
    there[flat] = True
    # -1 marks the last place, which is one more than any index.
    return np.flatnonzero(there[:-1])


def united(a: Region, b: Region) -> Region:
    """The smallest region with both."""
    return {d: distinct(a[d], b[d]) for d in a}


def _axis_region(axis: Axis, indices: IntArray, extents: Extents) -> Region:
    """The indices of an axis's dims, given those of the axis."""
    found: Region = {}
    for dim in reversed(axis):
        found[dim.name] = distinct(indices % extents[dim.name])
        indices = indices // extents[dim.name]
    return found


def _numbers_of_parts(graph: ir.KernelGraph) -> dict[str, tuple[str, ir.BlockGraph]]:
    """The dims `k#`, each with the dim that is cut and the block that cuts it."""
    return {
        d.name: (base, block)
        for block in graph.blocks
        for store in block.stores
        for d in ir.dims_of(store.axes)
        if d.grid and (base := partial_base(d.name, block)) is not None
    }


def _of_positions(graph: ir.KernelGraph) -> set[str]:
    """The values of all levels that depend on positions."""
    found = depending(graph.nodes, (index.name for index in graph.indices))
    inside: set[str] = set()
    for block in graph.blocks:
        loaded = (load.result for load in block.loads if load.source in found)
        inside |= depending(block.made, loaded)
    return found | inside


@lru_cache(maxsize=16)
def _tables(graph: ir.KernelGraph) -> frozenset[str]:
    """The dims that positions index, as windows do, and what these are made of."""
    if not graph.indices:
        return frozenset()
    placed = _of_positions(graph)
    found = {
        str(node.attr("dim"))
        for node in applications(graph)
        if node.op.kind is Kind.GATHER and node.values[1] in placed
    }
    for view in products(graph):
        if view.whole in found:
            found.update(view.factors)
    return frozenset(found)


def _indexed(graph: ir.KernelGraph) -> dict[str, str]:
    """By name, the dim that a value is an index of, or what an index is made of."""
    found: dict[str, str] = {}
    for node in reversed(graph.applies):
        if node.op.kind is Kind.GATHER:
            found[node.values[1]] = str(node.attr("dim"))
        elif node.result in found:
            found |= {v: found[node.result] for v in node.values if v not in found}
    return found


def _counted_extents(
    graph: ir.KernelGraph, extents: Extents, thinned: Region
) -> Extents:
    """The extents by which constants are made where some dims are thinned.

    What every block stores alike is averaged over the blocks, as 1/k# of their sum: of
    those that are left, that is.  All other sums over thinned dims are of the terms
    that both graphs keep, and what they are divided by is the same number in both.
    """
    numbers = _numbers_of_parts(graph).keys() & thinned.keys()
    return {**extents, **{name: len(thinned[name]) for name in numbers}}


def _operand_regions(
    node: ir.Apply,
    region: Region,
    names: Sequence[tuple[str, ...]],
    extents: Extents,
    thinned: Region,
) -> list[Region | None]:
    """What an operator needs of each value it reads; None for nothing.

    Args:
        node: The operator.
        region: What is needed of its result.
        names: The dims of each value that it reads.
        extents: Of all dims.
        thinned: What is left of thinned ones.
    """
    attrs = dict(node.attrs)
    if node.op.kind is Kind.CONCAT:
        return list(_joined(node, region, names, extents))
    if node.op.kind is Kind.LIBRARY:
        return [{d: _some_of(d, extents, thinned) for d in own} for own in names]
    if node.factored is not None:
        region = {**region, **_factored(node.factored, region, extents)}
    elif node.op.kind is Kind.VIEW and "dtype" not in attrs:
        region = _viewed(node, region, extents)
    whole = {d: _all_of(d, extents, thinned) for d in node.across}
    if node.op.kind is Kind.GATHER:
        gathered = str(attrs["dim"])
        whole[gathered] = _all_of(gathered, extents, thinned)
    return [{d: whole[d] if d in whole else region[d] for d in own} for own in names]


def _all_of(dim: str, extents: Extents, thinned: Region) -> IntArray:
    kept = thinned.get(dim)
    return np.arange(extents[dim]) if kept is None else kept


def _some_of(dim: str, extents: Extents, thinned: Region) -> IntArray:
    """The first and the last element of a dim, and one between, at any extent alike."""
    every = _all_of(dim, extents, thinned)
    rng = np.random.default_rng([extents[dim], 33])
    return distinct(every[[0, int(rng.integers(len(every))), -1]])


def _viewed(node: ir.Apply, region: Region, extents: Extents) -> Region:
    attrs = dict(node.attrs)
    old, new = attrs.get("dims"), attrs["to"]
    if isinstance(old, tuple) and isinstance(new, tuple):
        names = dict(zip(new, old, strict=True))
        return {names.get(d, d): i for d, i in region.items()}
    kept = {d: i for d, i in region.items() if d != new}
    if node.sliced is not None:
        start, _ = node.sliced.bounds(extents[node.sliced.dim])
        kept[node.sliced.dim] = region[node.sliced.to] + start
    return kept


def _factored(view: ir.Factored, region: Region, extents: Extents) -> Region:
    """What a view needs of the dims that it makes one, or of the one."""
    axis = tuple(map(Dim, view.factors))
    if view.flattens:
        return _axis_region(axis, region[view.whole], extents)
    index = np.zeros(1, np.int64)
    for name in view.factors:
        index = (index[:, None] * extents[name] + region[name]).ravel()
    return {view.whole: index}


def _joined(
    node: ir.Apply, region: Region, names: Sequence[tuple[str, ...]], extents: Extents
) -> Iterator[Region | None]:
    joined, to = node.attr("dims"), region[str(node.attr("to"))]
    assert isinstance(joined, tuple)
    start = 0
    for own, dim in zip(names, joined, strict=True):
        extent = extents[dim]
        inside = to[(to >= start) & (to < start + extent)] - start
        start += extent
        yield (
            {d: inside if d == dim else region[d] for d in own} if len(inside) else None
        )


@dataclass
class BlockSample:
    """What of a block is evaluated.

    Attributes:
        coordinates: By dim of the grid: which blocks.
        positions: By dim: which positions of a piece; all of those not listed.
    """

    coordinates: Region = field(default_factory=dict[str, IntArray])
    positions: Region = field(default_factory=dict[str, IntArray])


class Demands:
    """What a graph has to compute for regions of its outputs.

    Attributes:
        regions: What is needed of each kernel-level value, by name.
        blocks: The pieces of each block that are evaluated, by its results.
        work: Products and elements that this takes.
        elements: Those alone, of all values.
    """

    def __init__(
        self,
        graph: ir.KernelGraph,
        extents: Extents,
        outputs: Sequence[Region],
        thinned: Region,
    ) -> None:
        self.regions: dict[str, Region] = {}
        self.blocks: dict[tuple[str, ...], SampledPieces] = {}
        self.work = 0
        self.elements = 0
        self._extents, self._thinned = extents, thinned
        self._types = kernel_types(graph)
        for item, region in zip(graph.returns, outputs, strict=True):
            self._need(item.value, region)
        for node in reversed(graph.nodes):
            if isinstance(node, ir.BlockGraph):
                self._block(node)
            elif node.result in self.regions:
                names = [self._types[v].names for v in node.values]
                own = self.regions[node.result]
                summed = (len(_all_of(d, extents, thinned)) for d in node.across)
                self.work += _size(own) * math.prod(summed)
                self.elements += _size(own)
                needs = _operand_regions(node, own, names, extents, thinned)
                for value, need in zip(node.values, needs, strict=True):
                    if need is not None:
                        self._need(value, need)
        for item in graph.given:
            if item.name in self.regions:
                self.work += _size(self.regions[item.name])
                self.elements += _size(self.regions[item.name])

    def _need(self, value: str, region: Region) -> None:
        known = self.regions.get(value)
        self.regions[value] = region if known is None else united(known, region)

    def _block(self, block: ir.BlockGraph) -> None:
        # What is not needed may be split along dims of which no piece is.
        alive = live([block], set(self.regions))
        if not alive:
            return
        (part,) = alive
        results, block = block.results, part
        sample = BlockSample()
        whole = _whole_dims(block)
        for store in block.stores:
            self._stored(block, store, sample, whole)
        pieces = self.blocks[results] = SampledPieces(
            block, self._extents, sample, self._thinned
        )
        for load in block.loads:
            self._need(
                load.source, {d.name: pieces.of(d) for d in ir.dims_of(load.axes)}
            )
        types = block_types(block, self._types)
        for node in block.made:
            own = set(types[node.result].dims)
            dims = own.union(*(types[v].dims for v in operands_of(node)))
            # A join of pieces has no extent; its operands are counted anyway.
            sizes = {d: pieces.indices(d).size for d in dims if d.name in self._extents}
            self.work += math.prod(sizes.values())
            self.elements += math.prod(n for d, n in sizes.items() if d in own)

    def _stored(
        self,
        block: ir.BlockGraph,
        store: ir.Store,
        sample: BlockSample,
        whole: set[str],
    ) -> None:
        region = self.regions[store.result]
        for dim in ir.dims_of(store.axes):
            indices = region[dim.name]
            base = partial_base(dim.name, block) if dim.grid else None
            split = block.grid_split(dim.name) if dim.grid else None
            if base is not None:
                _add(sample.coordinates, base, indices)
                continue
            if split is not None:
                _add(sample.coordinates, dim.name, indices // split.tile)
                indices = indices % split.tile
            if dim.name not in whole:
                _add(sample.positions, dim.name, indices)


def _size(region: Region) -> int:
    return math.prod(len(i) for i in region.values())


def _add(region: Region, dim: str, indices: IntArray) -> None:
    region[dim] = distinct(region.get(dim, indices), indices)


def _whole_dims(block: ir.BlockGraph) -> set[str]:
    """Dims of which every position in a piece is needed.

    They are summed or viewed somewhere, or the block sees different pieces of them.
    """
    found = {block.loop.dim} if block.loop else set[str]()
    pieces: dict[str, Dim] = {}
    for node in block.nodes:
        if isinstance(node, ir.Apply):
            found.update(node.across, _viewed_dims(node))
        elif isinstance(node, ir.Load | ir.Store):
            for dim in ir.dims_of(node.axes):
                if pieces.setdefault(dim.name, dim) != dim:
                    found.add(dim.name)
    return found


def _viewed_dims(node: ir.Apply) -> Iterator[str]:
    for name, value in node.attrs:
        if node.op.attributes[name] in (AttributeKind.DIM, AttributeKind.NEW_DIM):
            yield str(value)
        elif isinstance(value, tuple):
            yield from value


@dataclass(frozen=True)
class SampledPieces:
    """Where the sampled pieces of a block lie in their dims."""

    block: ir.BlockGraph
    extents: Extents
    sample: BlockSample
    thinned: Region
    _known: dict[Dim, IntArray] = field(default_factory=dict[Dim, IntArray])

    def grid_tile(self, name: str) -> int:
        """Width of a part of the grid."""
        split = self.block.grid_split(name)
        assert split is not None, name
        return min(split.tile, self.extents[name])

    def indices(self, dim: Dim) -> IntArray:
        """The index of every position, padding too, by (part,) (iteration,) position.

        What lies outside of the dim, or of the grid's part, is -1.
        """
        if dim not in self._known:
            self._known[dim] = self._indices(dim)
        return self._known[dim]

    def _indices(self, dim: Dim) -> IntArray:
        extent = width = self.extents[dim.name]
        kept = self.thinned.get(dim.name)
        if kept is not None and not (dim.grid or dim.loop):
            return self.sample.positions.get(dim.name, kept)
        start, end = np.zeros((), np.int64), np.asarray(extent)
        if dim.grid:
            width = self.grid_tile(dim.name)
            start = self.sample.coordinates[dim.name] * width
            end = np.minimum(start + width, extent)
        if dim.loop:
            width = self._loop_tile(width if dim.grid else extent)
            steps = self._iterations(dim.name, start, width) * width
            start, end = start[..., None] + steps, end[..., None]
        positions = self.sample.positions.get(dim.name)
        if positions is None:
            positions = np.arange(width)
        found = start[..., None] + positions
        inside = found < end[..., None]
        if kept is not None:
            inside &= np.isin(found, kept)
        return np.where(inside, found, -1)

    def numbers(self, dim: Dim) -> IntArray:
        """The numbers of the iterations over a looped piece."""
        extent = self.extents[dim.name]
        start = np.zeros((), np.int64)
        if dim.grid:
            start = self.sample.coordinates[dim.name] * self.grid_tile(dim.name)
        width = self._loop_tile(self.grid_tile(dim.name) if dim.grid else extent)
        return self._iterations(dim.name, start, width)

    def _loop_tile(self, span: int) -> int:
        assert self.block.loop is not None
        whole = self.extents[self.block.loop.dim]
        return min(
            self.block.loop.tile, span if loops_inside_grid(self.block) else whole
        )

    def _iterations(self, name: str, starts: IntArray, width: int) -> IntArray:
        """The numbers of the iterations that any sampled block computes."""
        count, kept = iterations(self.block, self.extents), self.thinned.get(name)
        if kept is None:
            return np.arange(count)
        met = (kept - starts[..., None]) // width
        return distinct(np.where(met < count, np.maximum(met, -1), -1))

    def stored(self, block: ir.BlockGraph, name: str) -> Region:
        """The region of a stored tensor that the sampled pieces make."""
        store = next(s for s in block.stores if s.result == name)
        found: Region = {}
        for dim in ir.dims_of(store.axes):
            base = partial_base(dim.name, block) if dim.grid else None
            parts = None if base is None else self.sample.coordinates[base]
            found[dim.name] = self.of(dim) if parts is None else parts
        return found

    def of(self, dim: Dim) -> IntArray:
        """The indices that some position has."""
        return distinct(self.indices(dim))


# -- Comparison ------------------------------------------------------------------------


_LITTLE_WORK = 1e6
_MUCH_WORK = 4e6
_MOST_WORK = 1e8
"""Products and elements of an evaluation, over all fields, some 5 ns each: what many
elements along each axis may take, what several may, and what one may."""
_MOST_ELEMENTS = 8e6
"""Elements of all values together, over all fields: 64 MB."""


class _Way(NamedTuple):
    """How much is compared.

    Attributes:
        along: Elements along each axis of an output.
        points: Points beside them, of axes that positions are of.
        longest: The longest extent that is not thinned.
        width: How many elements the others keep at a place.
        most: The work.
    """

    along: int
    points: int
    longest: int
    width: int
    most: float


_WAYS = (
    _Way(3, 64, 1 << 16, 192, _LITTLE_WORK),
    _Way(3, 16, 1 << 16, 192, _LITTLE_WORK),
    _Way(3, 4, 1 << 16, 192, _MUCH_WORK),
    _Way(3, 0, 1 << 16, 192, _MUCH_WORK),
    _Way(2, 0, 1 << 16, 192, _MUCH_WORK),
    _Way(1, 0, 1 << 16, 192, _MOST_WORK),
    _Way(3, 0, 1 << 10, 192, _MUCH_WORK),
    _Way(1, 0, 1 << 10, 192, _MUCH_WORK),
    _Way(1, 0, 1 << 5, 8, _MOST_WORK),
)
"""Best first."""
_WAY_OF_INTEGERS = _Way(3, 64, 1 << 5, 8, _LITTLE_WORK)
"""Beside one of these that leaves no time for draws of many integers."""
_ATTEMPTS = 6
_DRAWS_OF_CHOICES = 8
_SAME_DRAWS = 3
"""In a row in which the same elements have no value, until these count as never having
any: of a few elements, what data leave out is left out twice by chance."""
_BESIDE = (16, 4, 2)
"""Points beside turns that a candidate alone has, as many as there is time for."""
_MOST_DRAWS = 96
"""Where integers turn, of which one row may hide behind its root in most draws."""
_RARE: Mapping[int, Trues] = MappingProxyType(
    {_MOST_DRAWS: (1, 64), _MOST_DRAWS + 1: (63, 64), _MOST_DRAWS + 2: (1, 256)}
)
"""The draws of which few truth values are true, or few are not."""
_DRAWS_OF_ROOTS = 2
"""How often as many there are as it takes without roots of non-squares, which hide
where elements differ."""


@dataclass(frozen=True)
class Sampling:
    """What is compared at the true extents, and over which fields.

    Attributes:
        chain: The primes.
        seed: What random choices follow from.
        exp_oracle: Read exp at the top of the chain as a random function.
        reading: Of orders.
        turns: Numbers beside which what is computed of integers turns.
        ordered: Whether a graph asks which of floats is larger.
    """

    chain: tuple[int, ...]
    seed: int
    exp_oracle: bool
    reading: Reading
    turns: AllTurns = field(default_factory=AllTurns)
    ordered: bool = False

    @property
    def of_fresh(self) -> Sampling:
        """That of a program whose sites are fresh, beside itself as it stands."""
        still = self.reading.still[PROGRAM]
        reading = replace(self.reading.of_program, still=(still, still))
        return replace(self, reading=reading)

    @property
    def without_fresh(self) -> Sampling:
        """The same, with every choice made as it stands."""
        nothing = frozenset[int]()
        return replace(self, reading=replace(self.reading, fresh=(nothing, nothing)))


def compare_samples(
    candidate: ir.KernelGraph, program: ir.KernelGraph, sampling: Sampling
) -> Sampled:
    """Compare a few elements of every output at the true extents."""
    if any(e is None for g in (candidate, program) for _, e in g.extents):
        return Sampled(reason="symbolic extents")
    ordered = any(map(orders_floats, (program, candidate)))
    turns = turns_of(program, candidate)
    sampling = replace(sampling, turns=turns, ordered=ordered)
    if not _fresh_holds(program, sampling.of_fresh):
        # At small sizes no output depended on what is fresh, and here one does.
        sampling = sampling.without_fresh
    return _compared_best(candidate, program, sampling)


@lru_cache(maxsize=8)
def _fresh_holds(program: ir.KernelGraph, sampling: Sampling) -> bool:
    """Whether a program computes the same where its fresh sites are as they stand.

    Args:
        program: Extents have to be known.
        sampling: That of its fresh sites beside none.
    """
    fresh = any(sampling.reading.fresh)
    return not fresh or not _compared_best(program, program, sampling).difference


def _compared_best(
    candidate: ir.KernelGraph, program: ir.KernelGraph, sampling: Sampling
) -> Sampled:
    """What a comparison comes to, by the best way that there is time for."""
    compared = any(sampling.turns.inputs)
    for way in _WAYS:
        if way.points and not program.indices and not compared:
            continue
        look()
        found = _compared_by(candidate, program, sampling, way)
        if found is not None:
            break
    else:
        return Sampled(reason="one element takes too many operations")
    if not compared or found.difference or way.most <= _LITTLE_WORK:
        return found
    # There was no time for as many draws as integers take.
    with contextlib.suppress(UnsupportedError):
        more = _compared_by(candidate, program, sampling, _WAY_OF_INTEGERS)
        if more is not None and (more.difference or not found.elements):
            return more
    return found


def _compared_by(
    candidate: ir.KernelGraph, program: ir.KernelGraph, sampling: Sampling, way: _Way
) -> Sampled | None:
    """What a comparison of so many elements comes to; None if it takes too much."""
    compared = any(sampling.turns.inputs)
    thinning = _thinned_by(way, candidate, sampling)
    thinning = _with_tables(program, thinning, way.along, way.points, compared)
    _require_same_dims(candidate, program, thinning)
    how = thinning, way.along, way.points, compared
    ours, fields = _program_side(program, *how), len(sampling.chain)
    if _is_too_much(ours, fields, way.most):
        return None
    theirs = _Side(candidate, ours.axes, thinning)
    if _is_too_much(theirs, fields, way.most):
        return None
    outputs = partial(_program_outputs, program, sampling, *how)
    found = _compared(outputs, theirs, sampling, ours.drawing)
    if found.difference:
        return found
    beside = _compared_beside_turns(candidate, program, sampling, way)
    return found if beside is None else beside


def _thinned_by(way: _Way, candidate: ir.KernelGraph, sampling: Sampling) -> Thinning:
    """The thinning of a way, for a candidate and what is drawn."""
    thinning = Thinning(way.longest, way.width, sampling.seed)
    return thinning.at_parts(candidate).at_turns(sampling.turns)


def _compared_beside_turns(
    candidate: ir.KernelGraph, program: ir.KernelGraph, sampling: Sampling, way: _Way
) -> Sampled | None:
    """A difference beside turns of positions that a program does not have, if any."""
    points = turns_elsewhere(candidate, program, sampling.seed)
    for count in _BESIDE:
        if not points:
            return None
        thinning = _thinned_by(way, candidate, sampling)
        axes = _axes_at(candidate, thinning, points[:count])
        thinning = _for_tables(program, thinning, axes)
        ours, theirs = (_Side(g, axes, thinning) for g in (program, candidate))
        fields = len(sampling.chain)
        if any(_is_too_much(side, fields, _MUCH_WORK) for side in (ours, theirs)):
            continue
        outputs = partial(ours.outputs, sampling, PROGRAM, drawing=ours.drawing)
        found = _compared(outputs, theirs, sampling, ours.drawing)
        return found if found.difference else None
    return None


def _axes_at(
    graph: ir.KernelGraph, thinning: Thinning, points: Sequence[Point]
) -> list[list[IntArray]]:
    """The indices of points along each axis of each output; of others one."""
    rng = np.random.default_rng([thinning.seed, 37])

    def indices(names: Sequence[str], extents: Sequence[int]) -> list[int]:
        own = list(_at_points(points, names, extents, thinning))
        return own or [_between(rng, extents, thinning)]

    return _of_axes(graph, indices)


@lru_cache(maxsize=4 * len(_WAYS))
def _with_tables(
    program: ir.KernelGraph, thinning: Thinning, count: int, points: int, compared: bool
) -> Thinning:
    """`_for_tables` of the samples of a program, which its candidates share."""
    axes = sample_axes(program, thinning, count, points, compared=compared)
    return _for_tables(program, thinning, axes)


def _for_tables(
    program: ir.KernelGraph, thinning: Thinning, axes: list[list[IntArray]]
) -> Thinning:
    """The thinning that leaves of long tables what elements of a program need.

    Of what positions index, as windows do, it is known what that is.
    """
    extents = known_extents(program.extent_of)
    long = {d for d in _tables(program) if extents[d] > thinning.longest}
    made = [view for view in products(program) if view.whole in long]
    factors = frozenset(extents[f] for view in made for f in view.factors)
    found = {extents[d]: np.zeros(1, np.int64) for d in long}
    if not found:
        return thinning
    # What is needed of an index does not hang on what is left of the table.
    thinning = replace(thinning, tables=_as_bytes(found), factors=factors)
    regions = _Side(program, axes, thinning).demands.regions
    for node in program.applies:
        dim = str(node.attr("dim")) if node.op.kind is Kind.GATHER else ""
        if dim not in long or node.values[1] not in regions:
            continue
        positions = positions_at(program, node.values[1], regions[node.values[1]])
        if positions is None:
            raise UnsupportedError(f"{node.values[1]} is an index of a long dim")
        inside = np.clip(positions.astype(np.int64), 0, extents[dim] - 1)
        found[extents[dim]] = distinct(found[extents[dim]], inside.ravel())
    return replace(thinning, tables=_as_bytes(found))


def _as_bytes(found: Mapping[int, IntArray]) -> tuple[tuple[int, bytes], ...]:
    return tuple((extent, found[extent].tobytes()) for extent in sorted(found))


def _is_too_much(side: _Side, fields: int, most: float) -> bool:
    """Whether one graph takes more than so much work, or room, over all fields."""
    demands = side.demands
    return fields * demands.elements > _MOST_ELEMENTS or fields * demands.work > most


def _require_same_dims(
    candidate: ir.KernelGraph, program: ir.KernelGraph, thinning: Thinning
) -> None:
    """Axes with thinned dims are made of the same dims in both graphs.

    Raises:
        UnsupportedError: One is cut otherwise, so that other elements would be left.
    """
    for ours, theirs in corresponding_axes(candidate, program):
        extents = [
            [g.extent_of[d.name] or 1 for d in axis]
            for g, axis in ((program, ours), (candidate, theirs))
        ]
        thinned = any(thinning.kept(e) is not None for side in extents for e in side)
        if thinned and extents[0] != extents[1]:
            raise UnsupportedError("a long axis is made of other dims in the candidate")


def _compared(
    outputs: Callable[[int], tuple[Residue, ...]],
    candidate: _Side,
    sampling: Sampling,
    drawing: Sequence[Drawing],
) -> Sampled:
    """What a comparison comes to.

    Args:
        outputs: Those of the program, in an attempt.
        candidate: What of it is computed.
        sampling: Over which fields.
        drawing: How each input is drawn.
    """
    needed = _draws(candidate, sampling)
    done, missing = 0.0, [np.ones((), np.bool_)] * len(candidate.axes)
    empty: list[list[int]] = [[] for _ in missing]
    same = 1
    for attempt in range(_MOST_DRAWS if needed > 1 else _ATTEMPTS):
        ours = outputs(attempt)
        before, empty = empty, [np.flatnonzero(valueless(v)).tolist() for v in ours]
        same = same + 1 if empty == before else 1
        if invalid_trials(ours).any() or (any(empty) and same < _SAME_DRAWS):
            # One draw does not tell what never has a value from what had none there.
            continue
        theirs = candidate.outputs(sampling, CANDIDATE, attempt, drawing)
        if invalid_trials(theirs).any():
            return Sampled(difference="the candidate divides by zero there")
        place = _difference(ours, theirs, candidate.axes)
        if place is not None:
            return Sampled(difference=place)
        hidden = [differences(a, b) for a, b in zip(ours, theirs, strict=True)]
        missing = [m & h for m, h in zip(missing, hidden, strict=True)]
        elements = sum(h.size for h in hidden)
        done += 1 - sum(int(h.sum()) for h in hidden) / elements
        if done >= needed and not any(m.any() for m in missing):
            place = _where_rare(outputs, candidate, sampling, drawing)
            if place is not None:
                return Sampled(difference=place)
            return Sampled(elements=elements, thinned=bool(candidate.thinned))
    return Sampled(reason="roots of non-squares or divisions by zero in every draw")


def _where_rare(
    outputs: Callable[[int], tuple[Residue, ...]],
    candidate: _Side,
    sampling: Sampling,
    drawing: Sequence[Drawing],
) -> str | None:
    """Where graphs differ if hardly any, or nearly all, of their truth values hold.

    What has no value then, as a row that is masked as a whole, says nothing; nor do
    graphs that ask which of floats is larger: 0 or 1, say, in any order.
    """
    regions, work = candidate.demands.regions, candidate.demands.work
    masks = any(
        i.type.dtype is boolean and i.name in regions for i in candidate.graph.inputs
    )
    much = len(sampling.chain) * work > _LITTLE_WORK
    if not masks or much or sampling.ordered:
        return None
    for attempt in _RARE:
        ours = outputs(attempt)
        if invalid_trials(ours).any():
            continue
        theirs = candidate.outputs(sampling, CANDIDATE, attempt, drawing)
        if invalid_trials(theirs).any():
            return "the candidate divides by zero there"
        place = _difference(ours, theirs, candidate.axes)
        if place is not None:
            return place
    return None


def _draws(side: _Side, sampling: Sampling) -> int:
    """How many draws it takes for integers to lie beside each of their turns.

    And to be drawn each way; and for choices to come out either way: a number that is
    cut off at both ends is one of these in a draw whose order has them the other way
    round.
    """
    regions, most = side.demands.regions, 1
    if len(sampling.chain) * side.demands.work > _LITTLE_WORK:
        return most
    if sampling.ordered and not all(sampling.reading.fresh):
        most = _DRAWS_OF_CHOICES
    for item, turns in zip(side.graph.inputs, sampling.turns.inputs, strict=True):
        if turns and item.name in regions:
            drawn = math.prod(len(i) for i in regions[item.name].values())
            enough = -(-_DRAWS_OF_ROOTS * elements_of(turns) // drawn)
            most = max(most, enough, KINDS)
    return min(most, _MOST_DRAWS // 2)


@lru_cache(maxsize=2 * _MOST_DRAWS)
def _program_outputs(
    program: ir.KernelGraph,
    sampling: Sampling,
    thinning: Thinning,
    count: int,
    points: int,
    compared: bool,
    attempt: int,
) -> tuple[Residue, ...]:
    """A program's sampled elements, which its candidates share."""
    side = _program_side(program, thinning, count, points, compared)
    return side.outputs(sampling, PROGRAM, attempt, side.drawing)


@lru_cache(maxsize=4 * len(_WAYS))
def _program_side(
    program: ir.KernelGraph, thinning: Thinning, count: int, points: int, compared: bool
) -> _Side:
    axes = sample_axes(program, thinning, count, points, compared=compared)
    return _Side(program, axes, thinning)


def _places(axes: Sequence[tuple[int, IntArray]]) -> IntArray:
    """The row-major places, for one trial, of indices along axes of some extents."""
    found = np.zeros((1,) * (len(axes) + 1), np.int64)
    for at, (extent, indices) in enumerate(axes):
        along = (-1,) + (1,) * (len(axes) - 1 - at)
        found = found * extent + indices.reshape(along)
    return found


@lru_cache(maxsize=8)
def _drawn_parts(
    keys: tuple[int, ...], primes: tuple[int, ...], axes: tuple[tuple[int, bytes], ...]
) -> tuple[IntArray, ...]:
    """Residues of an input, in each field, which a program and its candidates share.

    Args:
        keys: Of the input, one for each field.
        primes: Of the fields.
        axes: The extent of each dim, and what indices along it are needed.
    """
    index = _places([(n, np.frombuffer(own, np.int64)) for n, own in axes])
    return tuple(
        fields.drawn(key, index, p) for key, p in zip(keys, primes, strict=True)
    )


def _difference(
    ours: Sequence[Residue], theirs: Sequence[Residue], axes: list[list[IntArray]]
) -> str | None:
    """The first element that differs and depends on no root of a non-square."""
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        places = np.argwhere(differences(a, b) & ~(touched(a) | touched(b)))
        if len(places):
            indices = zip(axes[number], places[0][1:], strict=True)
            where = ", ".join(str(axis[i]) for axis, i in indices)
            return f"output {number} differs at [{where}]"
    return None


def sample_axes(
    program: ir.KernelGraph,
    thinning: Thinning,
    count: int,
    points: int = 0,
    *,
    compared: bool = False,
) -> list[list[IntArray]]:
    """The indices along each axis of each output: the last, the first, others.

    Args:
        program: Extents have to be known.
        thinning: Of its dims.
        count: How many, of each axis.
        points: How many beside these, of axes of which positions are.
        compared: Also of axes of integers, which are compared with numbers.
    """
    rng = np.random.default_rng([thinning.seed, 31])
    whole = [i for i in program.inputs if compared and i.type.dtype.is_integer]
    dims = frozenset(name for item in whole for name in item.type.names)
    beside = turning_points(program, points, thinning.seed, dims) if points else ()

    def indices(names: Sequence[str], extents: Sequence[int]) -> list[int]:
        last, between = math.prod(extents) - 1, _between(rng, extents, thinning)
        # What is masked may be neither of the first nor of the last; windows of the
        # last may end behind what they are windows of.
        chosen = [between, last, 0] if program.indices else [last, 0, between]
        return [*chosen[:count], *_at_points(beside, names, extents, thinning)]

    return _of_axes(program, indices)


def _of_axes(
    graph: ir.KernelGraph, indices: Callable[[Sequence[str], Sequence[int]], list[int]]
) -> list[list[IntArray]]:
    """Indices along each axis of each output, chosen by its dims and their extents."""

    def along(axis: Axis) -> IntArray:
        names = [d.name for d in axis]
        return np.unique(indices(names, [graph.extent_of[n] or 1 for n in names]))

    return [[along(axis) for axis in item.type.axes] for item in graph.returns]


def _at_points(
    points: Sequence[Point],
    names: Sequence[str],
    extents: Sequence[int],
    thinning: Thinning,
) -> Iterator[int]:
    """The indices of points along an axis of some dims, of which thinning leaves them.

    An axis of which no positions are has none.  Of its other dims it is the last one.
    """
    kept = [thinning.kept(extent) for extent in extents]
    for point in points:
        if point.keys().isdisjoint(names):
            continue
        own = [point.get(n, e - 1) for n, e in zip(names, extents, strict=True)]
        left = zip(own, kept, strict=True)
        if all(places is None or i in places for i, places in left):
            index = 0
            for place, extent in zip(own, extents, strict=True):
                index = index * extent + place
            yield index


def _between(
    rng: np.random.Generator, extents: Sequence[int], thinning: Thinning
) -> int:
    """A random index of an axis, of which thinning leaves the element."""
    index = 0
    for extent in extents:
        kept = thinning.kept(extent)
        drawn = rng.integers(extent) if kept is None else rng.choice(kept)
        index = index * extent + int(drawn)
    return index


@dataclass(frozen=True)
class Drawing:
    """How the integers of an input are drawn.

    Attributes:
        limit: How far the indices in it may go.
        left: What is left of the dim of which it has indices; None for all.
        extent: Of that dim.
        trues: How many truth values are true.
    """

    limit: Limit | None = None
    left: IntArray | None = None
    extent: int = 0
    trues: Trues = HALF


def _of_attempt(drawing: Sequence[Drawing], attempt: int) -> list[Drawing]:
    """How inputs are drawn in an attempt."""
    trues = _RARE.get(attempt, HALF)
    return [replace(how, trues=trues) for how in drawing]


class _Side:
    """One graph, and what of it is computed."""

    def __init__(
        self, graph: ir.KernelGraph, axes: list[list[IntArray]], thinning: Thinning
    ) -> None:
        self.graph, self.axes = graph, axes
        self.extents = known_extents(graph.extent_of)
        self.types = kernel_types(graph)
        regions: list[Region] = []
        for item, indices in zip(graph.returns, axes, strict=True):
            pairs = zip(item.type.axes, indices, strict=True)
            found = [_axis_region(a, i, self.extents) for a, i in pairs]
            regions.append({d: i for region in found for d, i in region.items()})
        self.thinned = thinning.of_dims(graph, self.extents)
        self.demands = Demands(graph, self.extents, regions, self.thinned)
        self.counts = _counted_extents(graph, self.extents, self.thinned)

    @cached_property
    def drawing(self) -> tuple[Drawing, ...]:
        """How each input of this graph, which is a program, is drawn."""
        limits, indexed = index_limits(self.graph), _indexed(self.graph)
        found: list[Drawing] = []
        for item in self.graph.inputs:
            dim = indexed.get(item.name, "")
            left, extent = self.thinned.get(dim), self.extents.get(dim, 0)
            found.append(Drawing(limits.get(item.name), left, extent))
        return tuple(found)

    def outputs(
        self,
        sampling: Sampling,
        side: int,
        attempt: int,
        drawing: Sequence[Drawing],
    ) -> tuple[Residue, ...]:
        """The sampled elements of every output, given how integers are drawn."""
        rng = np.random.default_rng([sampling.seed, attempt, 41])
        trials = draw_trials(sampling.chain, 1, rng)
        keys = rng.integers(0, 2**62, (len(self.graph.inputs), trials.fields))
        reading = sampling.reading
        order = Order(reading.model, reading.fresh[side], still=reading.still[side])
        own = np.random.default_rng([sampling.seed, attempt, 42 + side])
        algebra = ResidueAlgebra(
            trials,
            order,
            own,
            exp_oracle=sampling.exp_oracle,
            turns=sampling.turns,
        )
        domain = ResidueDomain(algebra, reads_anything=side == CANDIDATE)
        arrays = self._arrays(domain)
        values: dict[str, Named[Residue]] = {}
        turns = sampling.turns.inputs or ((),) * len(keys)
        drawn = zip(keys, _of_attempt(drawing, attempt), turns, strict=True)
        for item, (key, how, beside) in zip(self.graph.inputs, drawn, strict=True):
            if item.name in self.demands.regions:
                values[item.name] = self._drawn(item, key, trials, how, beside)
        for item in self.graph.indices:
            if item.name in self.demands.regions:
                places = domain.algebra.positions(self._places(item)[0])
                values[item.name] = Named(places, item.type.names)
        for node in self.graph.nodes:
            look()
            if isinstance(node, ir.BlockGraph):
                values.update(self._block(node, values, domain))
            elif node.result in self.demands.regions:
                values[node.result] = self._apply(node, values, arrays)
        found = [self._picked(i, values) for i in range(len(self.axes))]
        return tuple(without_value(found) if self.graph.indices else found)

    def _arrays(self, domain: ResidueDomain) -> ThinnedArrays:
        """The operators outside of blocks."""
        tables = _tables(self.graph)
        return ThinnedArrays(domain, self.extents, self.thinned, tables)

    def _drawn(
        self,
        item: ir.Input,
        keys: IntArray,
        trials: Trials,
        drawing: Drawing,
        turns: Turns = (),
    ) -> Named[Residue]:
        """An input: a random function of the index in the caller's tensor."""
        names = item.type.names
        if not item.type.dtype.is_float:
            # Of the highest field, whose numbers are the most.
            words = fields.drawn(keys[-1], self._places(item), trials.primes[-1][0])
            dtype, limit = item.type.dtype, drawing.limit
            bias = trials.bias(len(names))
            exact = of_words(dtype, words, limit, turns, drawing.trues, bias)
            if drawing.left is not None:
                exact = _left(exact, drawing.left, drawing.extent)
            algebra = ResidueAlgebra(trials, Order(), np.random.default_rng(0))
            return Named(algebra.whole(exact), names)
        region = self.demands.regions[item.name]
        parts = _drawn_parts(
            tuple(keys.tolist()),
            tuple(int(p[0]) for p in trials.primes),
            tuple((self.extents[n], region[n].tobytes()) for n in names),
        )
        return Named(Residue(parts), names)

    def _places(self, item: ir.Input | ir.Index) -> IntArray:
        """The row-major places of what is needed of a tensor, for one trial."""
        region, names = self.demands.regions[item.name], item.type.names
        return _places([(self.extents[n], region[n]) for n in names])

    def _region(self, name: str) -> Region:
        return self.demands.regions[name]

    def _apply(
        self,
        node: ir.Apply,
        values: Mapping[str, Named[Residue]],
        arrays: NamedArrays[Residue],
    ) -> Named[Residue]:
        """A library operator on what it needs of its operands."""
        names = [self.types[v].names for v in node.values]
        own = self._region(node.result)
        needs = iter(_operand_regions(node, own, names, self.extents, self.thinned))
        operands: list[Named[Residue]] = []
        kept: list[int] = []
        for at, operand in enumerate(node.operands):
            if not isinstance(operand, str):
                number = arrays.domain.constant(operand, self.counts)
                operands.append(Named(number, ()))
                continue
            need = next(needs)
            if need is not None:
                kept.append(at)
                whole = self._region(operand)
                operands.append(taken(values[operand], whole, need))
        if node.op.kind is Kind.CONCAT:
            return self._joined(node, operands, kept, arrays)
        if node.sliced is not None:
            return arrays.relabelled(operands[0], {node.sliced.dim: node.sliced.to})
        if node.op.kind is Kind.LIBRARY:
            return self._library(node, operands, arrays)
        if node.factored is not None:
            return self._refactored(node.factored, operands[0], own, arrays)
        found = arrays.apply(node, operands)
        if not node.along:
            return found
        (value,) = node.values
        (have,) = _operand_regions(node, own, names, self.extents, self.thinned)
        assert have is not None, value
        return taken(found, have, own)

    def _refactored(
        self,
        view: ir.Factored,
        operand: Named[Residue],
        own: Region,
        arrays: NamedArrays[Residue],
    ) -> Named[Residue]:
        """The elements that are needed where dims become one, or one several."""
        if not view.flattens:
            sizes = [len(own[name]) for name in view.factors]
            return arrays.refactored(operand, view, sizes)
        parts = _axis_region(
            tuple(map(Dim, view.factors)), own[view.whole], self.extents
        )
        sizes = [len(parts[name]) for name in view.factors]
        found = arrays.refactored(operand, view, sizes)
        index = np.zeros(1, np.int64)
        for name in view.factors:
            index = (index[:, None] * self.extents[name] + parts[name]).ravel()
        return taken(found, {**own, view.whole: index}, own)

    def _joined(
        self,
        node: ir.Apply,
        operands: Sequence[Named[Residue]],
        kept: Sequence[int],
        arrays: NamedArrays[Residue],
    ) -> Named[Residue]:
        """A concatenation of those operands that are needed."""
        joined, own = node.attr("dims"), self._region(node.result)
        assert isinstance(joined, tuple)
        dims = [joined[i] for i in kept]
        found = arrays.concat(operands, dims, str(node.attr("to")))
        # The operands that have the other dims may be those that are not needed.
        for name in self.types[node.result].names:
            if name not in found.labels:
                found = arrays.repeated(found, name, len(own[name]))
        return found

    def _library(
        self,
        node: ir.Apply,
        operands: Sequence[Named[Residue]],
        arrays: NamedArrays[Residue],
    ) -> Named[Residue]:
        """A random function of those elements of its operands that are there."""
        domain, region = arrays.domain, self._region(node.result)
        assert isinstance(domain, ResidueDomain)
        values: list[Residue] = []
        for operand, axes in zip(operands, operand_axes(node), strict=True):
            values.append(arrays.arranged(operand, axes.names).value)
        names = [name for axis in node.axes("gives") for name in axis]
        index = np.zeros((1,) * len(names), np.int64)
        for at, name in enumerate(names):
            along = (-1,) + (1,) * (len(names) - 1 - at)
            index = index * self.extents[name] + region[name].reshape(along)
        found = domain.of_library(node.op, values, node.numbers, index)
        return Named(found, tuple(names))

    def _block(
        self,
        block: ir.BlockGraph,
        values: Mapping[str, Named[Residue]],
        domain: ResidueDomain,
    ) -> dict[str, Named[Residue]]:
        pieces = self.demands.blocks.get(block.results)
        if pieces is None:
            return {}
        regions, tables = self.demands.regions, _tables(self.graph)
        sampled = SampledBlock(pieces, domain, regions, self.counts, tables)
        stored = sampled.run(values)
        return {
            name: taken(value, pieces.stored(block, name), self._region(name))
            for name, value in stored.items()
            if name in self.demands.regions
        }

    def _picked(self, number: int, values: Mapping[str, Named[Residue]]) -> Residue:
        """The sampled elements of an output, with its axes."""
        item, samples = self.graph.returns[number], self.axes[number]
        named, region = values[item.value], self._region(item.value)
        places: dict[Label, IntArray] = {}
        for at, (axis, indices) in enumerate(zip(item.type.axes, samples, strict=True)):
            rest = indices.reshape((-1,) + (1,) * (len(samples) - 1 - at))
            for dim in reversed(axis):
                extent = self.extents[dim.name]
                places[dim.name] = np.searchsorted(region[dim.name], rest % extent)
                rest = rest // extent
        index = (slice(None), *(places[n] for n in named.labels))
        shape = (1, *(len(s) for s in samples))
        return named.value.each(lambda a: a[index].reshape(shape))


def taken(named: Named[Residue], have: Region, want: Region) -> Named[Residue]:
    """The elements of the region `want`, a part of `have`."""
    value = named.value
    for at, name in enumerate(named.labels):
        assert isinstance(name, str)
        if len(have[name]) != len(want[name]):
            value = _gathered(value, at, np.searchsorted(have[name], want[name]))
    return replace(named, value=value)


def _placed(value: Residue, axis: int, have: IntArray, want: IntArray) -> Residue:
    """The elements at the indices `want`, of an axis with those at `have`.

    Any where one is negative.
    """
    if want.size == len(have) and (want.ravel() == have).all():
        split = want.shape
        return value.each(
            lambda a: a.reshape(a.shape[: axis + 1] + split + a.shape[axis + 2 :])
        )
    return _gathered(value, axis, np.searchsorted(have, np.maximum(want, have[0])))


def _gathered(value: Residue, axis: int, places: IntArray) -> Residue:
    """The elements at `places`, whose axes take the place of the one."""
    return value.each(lambda a: np.take(a, places, axis + 1))


class ThinnedArrays(NamedArrays[Residue]):
    """Operators on what is left of thinned dims.

    Args:
        domain: Of the elements.
        extents: Of all dims, as they are in truth.
        thinned: What is left.
        tables: Thinned dims that positions index.
    """

    def __init__(
        self,
        domain: ResidueDomain,
        extents: Extents,
        thinned: Region,
        tables: AbstractSet[str],
    ) -> None:
        super().__init__(domain)
        self._extents, self._thinned = extents, thinned
        self._tables = tables

    def gather(
        self, op: Operator, source: Named[Residue], index: Named[Residue], dim: str
    ) -> Named[Residue]:
        """The elements at the indices; in the place of those left out others before.

        What is made of the latter counts as what depends on a root of a non-square: it
        has to be seen in a draw whose indices are left.  Of a table all that a program
        needs is left: what else a candidate reads there is another element.
        """
        kept = self._thinned.get(dim)
        if kept is None or index.value.exact is None:
            return super().gather(op, source, index, dim)
        index = self.masked(index, index.labels, 0.0)
        assert index.value.exact is not None
        places, there = _places_left(index.value.exact, kept, self._extents[dim])
        if dim in self._tables:
            # The last one before may be that which the program reads.
            places = np.where(there, places, len(kept) - 1 - places)
            there = np.ones_like(there)
        moved = replace(index, value=replace(index.value, exact=places))
        found = super().gather(op, source, moved, dim)
        if there.all():
            return found
        if found.value.exact is not None:
            raise UnsupportedError("an index is one of what is left out of a long dim")
        rest = (1,) * (len(found.labels) - len(index.labels))
        hidden = np.uint16(sum(TOUCHED << i for i in range(len(found.value.parts))))
        flags = np.where(there.reshape(there.shape + rest), np.uint16(0), hidden)
        value = replace(found.value, flags=found.value.all_flags() | flags)
        return replace(found, value=value)


def _places_left(
    indices: NDArray[Any], kept: IntArray, extent: int
) -> tuple[IntArray, NDArray[np.bool_]]:
    """Where, among the elements that are left, those are that have these indices.

    Or the last ones before, and whether it is they themselves.
    """
    wanted = indices.astype(np.int64)
    wanted = np.where(wanted < 0, wanted + extent, wanted)
    inside = (wanted >= 0) & (wanted < extent)
    places = np.searchsorted(kept, np.where(inside, wanted, 0), "right") - 1
    there = ~inside | (kept[places] == wanted)
    return np.where(inside, places, len(kept)), there


def _left(indices: NDArray[Any], kept: IntArray, extent: int) -> NDArray[Any]:
    """Indices of elements that are left, in the place of those of others."""
    wanted = indices.astype(np.int64)
    inside = (wanted >= -extent) & (wanted < extent)
    before = np.searchsorted(kept, np.where(inside, wanted % extent, 0), "right") - 1
    found = kept[before] - np.where(wanted < 0, extent, 0)
    return np.where(inside, found, wanted).astype(indices.dtype)


class SampledBlock(BlockEvaluation[Residue]):
    """Evaluation of some blocks, and of some positions in their pieces."""

    def __init__(
        self,
        pieces: SampledPieces,
        domain: ResidueDomain,
        regions: Mapping[str, Region],
        counts: Mapping[str, int],
        tables: AbstractSet[str],
    ) -> None:
        arrays = ThinnedArrays(domain, pieces.extents, pieces.thinned, tables)
        super().__init__(pieces.block, pieces.extents, arrays)
        self.domain = domain
        self.pieces, self.regions, self.counts = pieces, regions, counts

    def constant(self, number: Scalar) -> Residue:
        """A constant, of as many parts as are left."""
        return self.domain.constant(number, self.counts)

    def coordinates(self, name: str) -> IntArray:
        """Those of the sampled blocks."""
        return self.pieces.sample.coordinates[name]

    def iteration_numbers(self) -> IntArray:
        """Those that are evaluated."""
        loop = self.block.loop
        assert loop is not None
        return self.pieces.numbers(Dim(loop.dim, loops_inside_grid(self.block), True))

    def masks_of(self, dim: Dim) -> dict[Label, Inside]:
        """Masks of what is no element: beyond the end, or thinned out."""
        inside = self.pieces.indices(dim) >= 0
        if inside.all():
            return {}
        labels: list[Label] = [grid_label(dim.name)] if dim.grid else []
        labels += [LOOP] if dim.loop else []
        found: dict[Label, Inside] = {dim.name: Inside((*labels, dim.name), inside)}
        iterations = np.asarray(inside.any(axis=-1))
        if dim.loop and not iterations.all():
            found[LOOP] = Inside(tuple(labels), iterations)
        return found

    def joined(self, named: Named[Residue], parts: Label, piece: Dim) -> Named[Residue]:
        """The sampled elements of a piece one after the other."""
        inside = self.pieces.indices(piece) >= 0
        if piece.grid and piece.loop:
            if piece.name in self.pieces.thinned:
                raise UnsupportedError(f"pieces of {piece} are joined, of a long dim")
            return super().joined(named, parts, piece)
        whole = self.arrays.join_axes(named, parts, piece.name, inside.size)
        if inside.all():
            return whole
        at = whole.axis(piece.name)
        places = np.flatnonzero(inside)
        return replace(whole, value=_gathered(whole.value, at, places))

    def load(self, node: ir.Load, source: Named[Residue]) -> Named[Residue]:
        """The sampled pieces of a tensor; padding is random."""
        dims = ir.dims_of(node.axes)
        named = self.arrays.arranged(source, [d.name for d in dims])
        masks: dict[Label, Inside] = {}
        for dim in dims:
            named = self._cut(named, dim, self.regions[node.source][dim.name])
            masks.update(self.masks_of(dim))
        return replace(named, masks=masks)

    def _cut(self, named: Named[Residue], dim: Dim, have: IntArray) -> Named[Residue]:
        indices, at = self.pieces.indices(dim), named.axis(dim.name)
        value = _placed(named.value, at, have, indices)
        labels = [n for n in (grid_label(dim.name),) if dim.grid]
        labels += [LOOP] if dim.loop else []
        after = (*named.labels[:at], *labels, *named.labels[at:])
        inside = (indices >= 0).reshape(
            indices.shape + (1,) * (len(named.labels) - at - 1)
        )
        if not inside.all():
            value = self.domain.padded(value, inside)
        return Named(value, after)
