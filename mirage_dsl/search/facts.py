"""A block graph as the cost model sees it, whatever its sizes are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from mirage_dsl.errors import SearchError
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    Load,
    RunningMax,
    Store,
    stages_of,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.liveness import Live, in_order, live_tiles
from mirage_dsl.search.orientation import (
    ROW,
    Orientation,
    is_product,
    operands_of,
)
from mirage_dsl.search.rows import (
    MATRIX_TILE,
    VectorProduct,
    vector_products,
    with_a_row,
)
from mirage_dsl.search.tables import Tables, in_memory, tables_of
from mirage_dsl.types import Dim, TensorType, f32


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
    """What does not depend on sizes: types, stages and uses of a block's values.

    Attributes:
        small: Names of the split dims whose tiles are less than the matrix unit takes,
            where that decides about products of vectors.
    """

    block: BlockGraph
    outer: Mapping[str, TensorType]
    extents: Mapping[str, int]
    types: Mapping[str, TensorType]
    stages: Mapping[str, str]
    small: frozenset[str]

    def at(self, block: BlockGraph) -> BlockFacts:
        """The same of the block with other tiles; what is known stays known."""
        if block is self.block:
            return self
        found = replace(self, block=block)
        found.__dict__.update({**self.__dict__, "block": block})
        return found

    @cached_property
    def dims(self) -> Mapping[str, tuple[Dim, ...]]:
        """The dims of each value; that of a vector that becomes a row has one more."""
        return {
            v: (*t.dims, ROW) if v in self._rowed else t.dims
            for v, t in self.types.items()
        }

    @cached_property
    def _rowed(self) -> frozenset[str]:
        taken = (v.tensors for v in self._vectors if self._has_lanes(v))
        return with_a_row(self.block, frozenset[str]().union(*taken))

    @cached_property
    def _vectors(self) -> list[VectorProduct]:
        return vector_products(self.block, self.types, self.outer)

    def _has_lanes(self, product: VectorProduct) -> bool:
        """Whether the tile of a vector's matrix is what the matrix unit takes."""
        return all(
            math.prod(map(self._least, side)) >= MATRIX_TILE
            for side in (product.over, product.columns)
        )

    def _least(self, dim: Dim) -> int:
        """The least extent of a piece; of those that are not small what suffices."""
        if dim.grid or dim.loop:
            return 1 if dim.name in self.small else MATRIX_TILE
        return self.extents.get(dim.name, 1)

    @cached_property
    def columns_of_vectors(self) -> frozenset[str]:
        """Names of the grid's dims that only the matrices of vectors have."""
        return frozenset(d.name for v in self._vectors for d in v.columns if d.grid)

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
    def live(self) -> Live:
        """Which values live in registers, and when."""
        return live_tiles(self.block.nodes, self.stages)

    @cached_property
    def chained(self) -> bool:
        """Whether some product of the body depends on another one."""
        after: set[str] = set()
        for node in in_order(self.block.nodes, self.stages):
            if isinstance(node, Store) or self.stages[node.result] != "body":
                continue
            product = is_product(node)
            fed = not after.isdisjoint(operands_of(node))
            if product and fed:
                return True
            if product or fed:
                after.add(node.result)
        return False

    @cached_property
    def tables(self) -> Tables:
        """The same as rows of matrices, in which a column is a point."""
        return tables_of(self)

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

    @cached_property
    def fresh(self) -> frozenset[str]:
        """Values that lie in registers as a product left them."""
        found: set[str] = set()
        for node in self.block.nodes:
            if isinstance(node, Store | Load):
                continue
            if is_product(node) or not found.isdisjoint(operands_of(node)):
                found.add(node.result)
        return frozenset(found)

    @cached_property
    def used_only_after(self) -> frozenset[str]:
        """Values made before the loop that only code after it reads."""
        if self.block.loop is None:
            return frozenset()
        early: set[str] = set()
        for node in self.block.nodes:
            if isinstance(node, Accumulate):
                early.add(node.operand)
            elif not isinstance(node, Store) and self.stages[node.result] != "after":
                early.update(operands_of(node))
        before = (v for v, stage in self.stages.items() if stage == "before")
        return frozenset(v for v in before if v not in early)

    @cached_property
    def turned_loads(self) -> tuple[frozenset[str], frozenset[str]]:
        """Loads that registers want in another order than memory has.

        As products are, and swapped.  These loads meet what a product made in an
        operand of another one, so their order is decided, and no thread's elements lie
        together: nothing can be copied ahead.
        """
        loads = {n.result: n for n in self.block.loads}
        found: tuple[set[str], set[str]] = set(), set()
        for node in self.block.nodes:
            if not isinstance(node, Apply) or is_product(node):
                continue
            if self.fresh.isdisjoint(node.values) or node.result not in self.fresh:
                continue
            for value in loads.keys() & set(node.values):
                last = next(iter(in_memory(loads[value], self)), None)
                for orientation, chosen in zip(self.orientations, found, strict=True):
                    order = [
                        d
                        for d in orientation.imposed.get(node.result, ())
                        if d in self.dims[value]
                    ]
                    if len(order) > 1 and order[-1] != last:
                        chosen.add(value)
        return frozenset(found[0]), frozenset(found[1])


def facts_of(
    block: BlockGraph,
    outer: Mapping[str, TensorType],
    extents: Mapping[str, int | None],
    small: frozenset[str] | None = None,
) -> BlockFacts:
    """The facts of `block`, given types and extents of the kernel level.

    Args:
        block: The block.
        outer: Types of the kernel-level tensors that it loads.
        extents: Extents of the kernel-level dims.
        small: Split dims with tiles less than the matrix unit takes; the block's own
            unless they are given.

    Raises:
        SearchError: An extent is unknown.
    """
    if small is None:
        small = _small(block, outer)
    return _facts(_Question(block, outer, extents, small)).at(block)


def _small(block: BlockGraph, outer: Mapping[str, TensorType]) -> frozenset[str]:
    """None where no vector could become a row, whose facts are one for all tiles."""
    if not any(() in outer[s].axes for s in block.sources if s in outer):
        return frozenset()
    splits = [*block.grid, *([block.loop] if block.loop else [])]
    return frozenset(s.dim for s in splits if s.tile < MATRIX_TILE)


class _Question:
    """What facts depend on; of the nodes, which they are, for their hash is slow."""

    def __init__(
        self,
        block: BlockGraph,
        outer: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        small: frozenset[str],
    ) -> None:
        self.block, self.outer, self.extents = block, outer, extents
        self.small = small
        schedule = block.schedule
        self._key = (
            id(block.nodes),
            tuple((s.dim, s.beside) for s in block.grid),
            block.loop and block.loop.dim,
            (schedule.descriptors, schedule.second_load),
            tuple(outer.get(s) for s in block.sources),
            tuple(extents.items()),
            small,
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._key == other._key


@lru_cache(maxsize=256)
def _facts(question: _Question) -> BlockFacts:
    """The facts, kept for a while: sizes of one structure are priced again and again.

    A question that is kept holds its nodes, so nothing else has their id.
    """
    block, outer, extents = question.block, question.outer, question.extents
    types = block_types(block, outer)
    names = {d.name for t in types.values() for d in t.dims}
    known = {n: e for n, e in extents.items() if e is not None}
    missing = sorted(n for n in names if n not in known and not _made(n, block))
    if missing:
        raise SearchError(
            f"the extents of {', '.join(missing)} are not known; sizes can be chosen "
            "only for concrete shapes, so state them"
        )
    return BlockFacts(block, outer, known, types, stages_of(block), question.small)


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
