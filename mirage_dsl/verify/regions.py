"""Which elements of every value a few elements of the outputs need.

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

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    Factored,
    KernelGraph,
    Load,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import (
    iterations,
    loops_inside_grid,
    partial_base,
    products,
)
from mirage_dsl.ir.walk import applications, live, operands_of
from mirage_dsl.ops.definition import AttributeKind, Kind
from mirage_dsl.verify.fields import IntArray

Region = dict[str, IntArray]
Extents = Mapping[str, int]

_MARKED = 1 << 20
"""Indices up to which marking them is quicker than sorting."""


@dataclass(frozen=True)
class Thinning:
    """Which dims are thinned, and to what.

    Attributes:
        longest: The extent of the longest dim that is left as it is.
        width: How many elements a thinned one keeps at each place: at its ends, at a
            random one, and at those given.
        seed: What the random place follows from.
        places: Where parts of a grid end.
    """

    longest: int
    width: int
    seed: int
    places: tuple[int, ...] = ()

    def kept(self, extent: int) -> IntArray | None:
        """The elements that are left; None for all.

        Dims of one extent keep the same ones, so a renamed one does.
        """
        if extent <= self.longest:
            return None
        rng = np.random.default_rng([self.seed, extent, 32])
        last = extent - self.width
        starts = [0, int(rng.integers(last)), last]
        starts += [min(p - self.width // 2, last) for p in self.places if p < extent]
        return distinct(*(max(s, 0) + np.arange(self.width) for s in starts))

    def at_parts(self, graph: KernelGraph) -> Thinning:
        """The thinning that also keeps what is where the first parts of grids end."""
        tiles = {
            split.tile
            for block in graph.blocks
            for split in block.grid
            if (graph.extent_of[split.dim] or 0) > self.longest
        }
        return replace(self, places=tuple(sorted(tiles)))

    def of_dims(self, graph: KernelGraph, extents: Extents) -> Region:
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
        for view in products(graph):
            if not found.keys().isdisjoint((view.whole, *view.factors)):
                raise UnsupportedError(f"a long dim is part of {view.whole}, or is it")
        for node in views:
            cuts = node.op.kind is not Kind.VIEW or "start" in dict(node.attrs)
            if cuts and not found.keys().isdisjoint(_viewed_dims(node)):
                raise UnsupportedError(
                    f"{node.result} takes a part of a long dim, or joins it to another"
                )
        return found


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


def axis_region(axis: Axis, indices: IntArray, extents: Extents) -> Region:
    """The indices of an axis's dims, given those of the axis."""
    found: Region = {}
    for dim in reversed(axis):
        found[dim.name] = distinct(indices % extents[dim.name])
        indices = indices // extents[dim.name]
    return found


def _numbers_of_parts(graph: KernelGraph) -> dict[str, tuple[str, BlockGraph]]:
    """The dims `k#`, each with the dim that is cut and the block that cuts it."""
    return {
        d.name: (base, block)
        for block in graph.blocks
        for store in block.stores
        for d in dims_of(store.axes)
        if d.grid and (base := partial_base(d.name, block)) is not None
    }


def counted_extents(graph: KernelGraph, extents: Extents, thinned: Region) -> Extents:
    """The extents by which constants are made where some dims are thinned.

    What every block stores alike is averaged over the blocks, as 1/k# of their sum: of
    those that are left, that is.  All other sums over thinned dims are of the terms
    that both graphs keep, and what they are divided by is the same number in both.
    """
    numbers = _numbers_of_parts(graph).keys() & thinned.keys()
    return {**extents, **{name: len(thinned[name]) for name in numbers}}


def operand_regions(
    node: Apply,
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
        region = _viewed(node, region)
    whole = {d: _all_of(d, extents, thinned) for d in node.across}
    if node.op.kind is Kind.GATHER:
        gathered = str(attrs["dim"])
        whole[gathered] = np.arange(extents[gathered])
    return [{d: whole[d] if d in whole else region[d] for d in own} for own in names]


def _all_of(dim: str, extents: Extents, thinned: Region) -> IntArray:
    kept = thinned.get(dim)
    return np.arange(extents[dim]) if kept is None else kept


def _some_of(dim: str, extents: Extents, thinned: Region) -> IntArray:
    """The first and the last element of a dim, and one between, at any extent alike."""
    every = _all_of(dim, extents, thinned)
    rng = np.random.default_rng([extents[dim], 33])
    return distinct(every[[0, int(rng.integers(len(every))), -1]])


def _viewed(node: Apply, region: Region) -> Region:
    attrs = dict(node.attrs)
    old, new = attrs.get("dims"), attrs["to"]
    if isinstance(old, tuple) and isinstance(new, tuple):
        names = dict(zip(new, old, strict=True))
        return {names.get(d, d): i for d, i in region.items()}
    kept = {d: i for d, i in region.items() if d != new}
    start = attrs.get("start")
    if isinstance(start, int):
        kept[str(attrs["dim"])] = region[str(new)] + start
    return kept


def _factored(view: Factored, region: Region, extents: Extents) -> Region:
    """What a view needs of the dims that it makes one, or of the one."""
    axis = tuple(map(Dim, view.factors))
    if view.flattens:
        return axis_region(axis, region[view.whole], extents)
    index = np.zeros(1, np.int64)
    for name in view.factors:
        index = (index[:, None] * extents[name] + region[name]).ravel()
    return {view.whole: index}


def _joined(
    node: Apply, region: Region, names: Sequence[tuple[str, ...]], extents: Extents
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
        graph: KernelGraph,
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
            if isinstance(node, BlockGraph):
                self._block(node)
            elif node.result in self.regions:
                names = [self._types[v].names for v in node.values]
                own = self.regions[node.result]
                summed = (len(_all_of(d, extents, thinned)) for d in node.across)
                self.work += _size(own) * math.prod(summed)
                self.elements += _size(own)
                needs = operand_regions(node, own, names, extents, thinned)
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

    def _block(self, block: BlockGraph) -> None:
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
            self._need(load.source, {d.name: pieces.of(d) for d in dims_of(load.axes)})
        types = block_types(block, self._types)
        for node in block.made:
            own = set(types[node.result].dims)
            dims = own.union(*(types[v].dims for v in operands_of(node)))
            # A join of pieces has no extent; its operands are counted anyway.
            sizes = {d: pieces.indices(d).size for d in dims if d.name in self._extents}
            self.work += math.prod(sizes.values())
            self.elements += math.prod(n for d, n in sizes.items() if d in own)

    def _stored(
        self, block: BlockGraph, store: Store, sample: BlockSample, whole: set[str]
    ) -> None:
        region = self.regions[store.result]
        for dim in dims_of(store.axes):
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


def _whole_dims(block: BlockGraph) -> set[str]:
    """Dims of which every position in a piece is needed.

    They are summed or viewed somewhere, or the block sees different pieces of them.
    """
    found = {block.loop.dim} if block.loop else set[str]()
    pieces: dict[str, Dim] = {}
    for node in block.nodes:
        if isinstance(node, Apply):
            found.update(node.across, _viewed_dims(node))
        elif isinstance(node, Load | Store):
            for dim in dims_of(node.axes):
                if pieces.setdefault(dim.name, dim) != dim:
                    found.add(dim.name)
    return found


def _viewed_dims(node: Apply) -> Iterator[str]:
    for name, value in node.attrs:
        if node.op.attributes[name] in (AttributeKind.DIM, AttributeKind.NEW_DIM):
            yield str(value)
        elif isinstance(value, tuple):
            yield from value


@dataclass(frozen=True)
class SampledPieces:
    """Where the sampled pieces of a block lie in their dims."""

    block: BlockGraph
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

    def stored(self, block: BlockGraph, name: str) -> Region:
        """The region of a stored tensor that the sampled pieces make."""
        store = next(s for s in block.stores if s.result == name)
        found: Region = {}
        for dim in dims_of(store.axes):
            base = partial_base(dim.name, block) if dim.grid else None
            parts = None if base is None else self.sample.coordinates[base]
            found[dim.name] = self.of(dim) if parts is None else parts
        return found

    def of(self, dim: Dim) -> IntArray:
        """The indices that some position has."""
        return distinct(self.indices(dim))
