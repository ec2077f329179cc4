"""A block graph as numbers: how big each value is at a batch of parameter points.

Tiles and schedules are arrays with one entry a point, so that one pass of NumPy prices
hundreds of sizes of a structure; one graph is a batch of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.errors import SearchError
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.maps import loops_inside_grid
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.orientation import ROW, Orientation, is_product, single_rows
from mirage_dsl.types import Dim, TensorType, f32

Numbers = NDArray[np.float64]

MATRIX_TILE = 16
"""Sides of a matrix-unit tile: shorter sides of a product are padded to it."""


ASYNCHRONOUS = 64
"""Rows from which on a product may be one that the matrix unit runs by itself."""


@dataclass(frozen=True)
class Points:
    """Parameter points of one block graph, one entry of each array a point.

    `grid` has one array per split, in the block's order; `loop` is all ones where the
    block has no loop.
    """

    grid: tuple[Numbers, ...]
    loop: Numbers
    num_warps: Numbers
    num_stages: Numbers
    swap_operands: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.loop)

    def take(self, index: NDArray[np.intp]) -> Points:
        """The points at `index`."""
        return Points(
            tuple(g[index] for g in self.grid),
            self.loop[index],
            self.num_warps[index],
            self.num_stages[index],
            self.swap_operands[index],
        )


def points_of(block: BlockGraph) -> Points:
    """The one point that a sized block graph stands at."""
    one, schedule = np.ones(1), block.schedule
    return Points(
        tuple(one * s.tile for s in block.grid),
        one * (block.loop.tile if block.loop else 1),
        one * schedule.num_warps,
        one * schedule.num_stages,
        np.array([schedule.swap_operands]),
    )


@dataclass(frozen=True)
class Product:
    """A contraction of a block: the dims of its sides, outer and summed."""

    node: Apply
    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]
    columns: tuple[Dim, ...]
    over: tuple[Dim, ...]
    full_precision: bool

    @property
    def is_vector(self) -> bool:
        """Whether a side has no dim, so that the matrix unit has nothing to gain."""
        return not self.rows or not self.columns


@dataclass(frozen=True, eq=False)
class BlockFacts:
    """What does not depend on sizes: types, stages and uses of a block's values."""

    block: BlockGraph
    outer: Mapping[str, TensorType]
    extents: Mapping[str, int]
    types: Mapping[str, TensorType]
    stages: Mapping[str, str]

    @cached_property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dims of each value; that of a vector that becomes a row has one more."""
        return {
            v: (*t.dims, ROW) if v in self._rowed else t.dims
            for v, t in self.types.items()
        }

    @cached_property
    def _rowed(self) -> frozenset[str]:
        return single_rows(self.block, self.types, self.outer)

    @cached_property
    def orientations(self) -> tuple[Orientation, Orientation]:
        """Which side of each product has the rows: as they are, and swapped."""
        as_is, swapped = (
            Orientation(self.block, self.types, self._rowed, swap=swap)
            for swap in (False, True)
        )
        return as_is, swapped

    @cached_property
    def products(self) -> tuple[Product, ...]:
        """The contractions, in order."""
        return tuple(
            _product(n, self.types, self.dims)
            for n in self.block.nodes
            if isinstance(n, Apply) and is_product(n)
        )

    def product_of(self, node: BlockNode) -> Product | None:
        """The contraction that a node is, or None."""
        return next((p for p in self.products if p.node is node), None)

    @cached_property
    def sides(self) -> tuple[tuple[Dim, ...], ...]:
        """The dims of each side of the products that the matrix unit takes."""
        matrix = (p for p in self.products if not p.is_vector)
        return tuple(s for p in matrix for s in (p.rows, p.columns, p.over))

    @cached_property
    def matrix_dims(self) -> frozenset[str]:
        """Names of dims that are part of a side of some product, no batch dims."""
        return frozenset(d.name for side in self.sides for d in side)

    @cached_property
    def joint_dims(self) -> frozenset[str]:
        """Those of `matrix_dims` that are nowhere a side alone: others fill it too."""
        alone = {side[0].name for side in self.sides if len(side) == 1}
        return self.matrix_dims - alone

    @cached_property
    def batch_dims(self) -> frozenset[str]:
        """Names of dims over which some product is batched."""
        return frozenset(d.name for p in self.products for d in p.batch)

    @cached_property
    def matrix_operands(self) -> frozenset[str]:
        """Values that a product reads."""
        return frozenset(v for p in self.products for v in p.node.values)

    @cached_property
    def register_operands(self) -> frozenset[str]:
        """Values that anything but a product reads."""
        found: set[str] = set()
        for node in self.block.nodes:
            match node:
                case Load():
                    continue
                case Apply():
                    if node.op.kind is not Kind.CONTRACTION:
                        found.update(node.values)
                case Accumulate() | RunningMax() | Store():
                    found.add(node.operand)
        return frozenset(found)


def facts_of(
    block: BlockGraph,
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
) -> BlockFacts:
    """The facts of `block`, given types and extents of the kernel level.

    Raises:
        SearchError: An extent is unknown.
    """
    types = block_types(block, outer)
    names = {d.name for t in types.values() for d in t.dims}
    known = {n: e for n, e in extents.items() if e is not None}
    missing = sorted(n for n in names if n not in known and not _made(n, block))
    if missing:
        raise SearchError(
            f"the extents of {', '.join(missing)} are not known; sizes can be chosen "
            "only for concrete shapes, so state them"
        )
    return BlockFacts(block, outer, known, types, stages_of(block))


def _made(name: str, block: BlockGraph) -> bool:
    """Whether an operator inside the block makes the dim (its extent is derived)."""
    for node in block.nodes:
        if isinstance(node, Apply) and "to" in dict(node.attrs):
            to = node.attr("to")
            if to == name or (isinstance(to, tuple) and name in to):
                return True
    return False


def _product(
    node: Apply,
    types: Mapping[str, TensorType],
    dims: Mapping[str, tuple[Dim, ...]],
) -> Product:
    left, right = (dims[v] for v in node.values)
    shared = {d.name for d in left} & {d.name for d in right}
    over = set(node.over)
    return Product(
        node,
        tuple(d for d in left if d.name in shared - over),
        tuple(d for d in left if d.name not in shared),
        tuple(d for d in right if d.name not in shared),
        tuple(d for d in left if d.name in over),
        all(types[v].dtype == f32 for v in node.values),
    )


@dataclass(frozen=True)
class Footprint:
    """Element counts of a structure's values at a batch of points."""

    facts: BlockFacts
    points: Points

    @cached_property
    def _pieces(self) -> dict[Dim, Numbers]:
        return {}

    def piece(self, dim: Dim) -> Numbers:
        """Elements of a piece that hold data."""
        if dim not in self._pieces:
            self._pieces[dim] = np.minimum(self._tile(dim), self._extent(dim.name))
        return self._pieces[dim]

    def _extent(self, name: str) -> float:
        return float(self.facts.extents.get(name, 1))

    def _tile(self, dim: Dim) -> Numbers:
        block = self.facts.block
        if dim.loop and block.loop is not None:
            return self.points.loop
        for split, tiles in zip(block.grid, self.points.grid, strict=True):
            if dim.grid and split.dim == dim.name:
                return tiles
        if dim.grid:
            return np.ones(len(self.points))
        return np.full(len(self.points), self._extent(dim.name))

    def elements(self, dims: Sequence[Dim]) -> Numbers:
        """Elements with data in a value of these dims."""
        return _product_of([self.piece(d) for d in dims], len(self.points))

    def held(self, value: str) -> Numbers:
        """Elements that a value takes on the GPU."""
        return self.padded_elements(self.facts.dims[value])

    def asynchronous(self, product: Product) -> NDArray[np.bool_]:
        """Where the matrix unit reads a product's tiles by itself.

        Hopper's does, for whole groups of four warps and from 64 rows on.
        """
        rows = [
            self.padded_elements(o.rows[product.node.result])
            for o in self.facts.orientations
        ]
        tall = np.where(self.points.swap_operands, rows[1], rows[0]) >= ASYNCHRONOUS
        alone = self.padded_elements(product.batch) == 1
        fits = not (product.is_vector or product.full_precision)
        return tall & alone & (self.points.num_warps >= 4) & fits

    def padded_elements(self, dims: Sequence[Dim]) -> Numbers:
        """Elements that a value of these dims takes."""
        key = tuple(dims)
        if key not in self._padded_elements:
            factors = [self._padded[d] for d in key]
            self._padded_elements[key] = _product_of(factors, len(self.points))
        return self._padded_elements[key]

    @cached_property
    def _padded_elements(self) -> dict[tuple[Dim, ...], Numbers]:
        return {}

    @cached_property
    def _padded(self) -> dict[Dim, Numbers]:
        """Elements of pieces as the GPU holds them.

        Powers of two; the widest dim of a side is widened to what a product takes.
        """
        dims = {d for own in self.facts.dims.values() for d in own}
        found = {d: power_of_two(self._tile(d)) for d in dims}
        for side in self.facts.sides:
            lanes = _product_of([found[d] for d in side], len(self.points))
            missing = np.maximum(MATRIX_TILE / lanes, 1.0)
            widest = np.argmax([found[d] for d in side], axis=0)
            for at, dim in enumerate(side):
                found[dim] = np.where(widest == at, found[dim] * missing, found[dim])
        return found

    @cached_property
    def blocks(self) -> Numbers:
        """Blocks of the launch."""
        count = np.ones(len(self.points))
        for split, tiles in zip(self.facts.block.grid, self.points.grid, strict=True):
            count = count * np.ceil(self._extent(split.dim) / tiles)
        return count

    @cached_property
    def iterations(self) -> Numbers:
        """Iterations of a block."""
        block = self.facts.block
        if block.loop is None:
            return np.ones(len(self.points))
        span = np.full(len(self.points), self._extent(block.loop.dim))
        if loops_inside_grid(block):
            for split, tiles in zip(block.grid, self.points.grid, strict=True):
                if split.dim == block.loop.dim:
                    span = np.minimum(span, tiles)
        return np.ceil(span / self.points.loop)


def power_of_two(sizes: Numbers) -> Numbers:
    """The next power of two of each."""
    return np.exp2(np.ceil(np.log2(np.maximum(sizes, 1.0))))


def _product_of(factors: list[Numbers], count: int) -> Numbers:
    result = np.ones(count)
    for factor in factors:
        result = result * factor
    return result


def tensor_bytes(value: TensorType, extents: Mapping[str, int | None]) -> float:
    """Bytes of a device tensor.

    Raises:
        SearchError: An extent is unknown.
    """
    return value.dtype.itemsize * size_of(value.names, extents)


def size_of(names: tuple[str, ...], extents: Mapping[str, int | None]) -> float:
    size = 1.0
    for name in names:
        extent = extents.get(name)
        if extent is None:
            raise SearchError(
                f"the extent of {name} is not known; costs need concrete shapes"
            )
        size *= extent
    return size
