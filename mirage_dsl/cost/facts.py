"""A block graph as the cost model sees it, whatever its sizes are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.clock import look
from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.types import Dim, TensorType, f32
from mirage_dsl.cost.orientation import (
    MATRIX_TILE,
    ROW,
    Orientation,
    VectorProduct,
    is_product,
    operands_of,
    vector_products,
    with_a_row,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    dims_of,
    stages_of,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ops.definition import Kind, Term

# -- Which tiles are live at once ------------------------------------------------------

STAGES = {"before": 0, "body": 1, "after": 2}


@dataclass(frozen=True, eq=False)
class Live:
    """Values that live in registers.

    Attributes:
        nodes: The nodes, in the order in which the code runs.
        names: The values.
        at: A matrix of 0 and 1: one row a node, one column a value.
    """

    nodes: tuple[BlockNode, ...]
    names: tuple[str, ...]
    at: NDArray[np.float64]


def position(node: BlockNode, stages: Mapping[str, str]) -> int:
    """When the code of a node runs."""
    if isinstance(node, Store):
        return STAGES["after"] + 1
    return STAGES[stages[node.result]]


def in_order(nodes: Iterable[BlockNode], stages: Mapping[str, str]) -> list[BlockNode]:
    """Nodes in the order in which the code runs."""
    return sorted(nodes, key=lambda n: position(n, stages))


def live_tiles(nodes: Iterable[BlockNode], stages: Mapping[str, str]) -> Live:
    """Values that live in registers, and which of them are live at each node."""
    order = in_order(nodes, stages)
    spans = _spans(order, stages)
    names = list(spans)
    live = np.zeros((len(order), len(names)))
    for column, name in enumerate(names):
        start, end = spans[name]
        live[start : max(end, start + 1), column] = 1.0
    for row, node in enumerate(order):
        # A product reads its operands until its result is complete.
        if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
            for value in set(node.values) & spans.keys():
                live[row, names.index(value)] = 1.0
    return Live(tuple(order), tuple(names), live)


def _spans(
    nodes: list[BlockNode], stages: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """From where to where each value is held in registers, as positions in `nodes`.

    A value dies in the node that reads it last, whose result takes its place.
    """
    body = [i for i, n in enumerate(nodes) if position(n, stages) == STAGES["body"]]
    loop = (body[0], body[-1] + 1) if body else (len(nodes), 0)
    fused = _summed_in_place(nodes)
    made: dict[str, int] = {}
    uses: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for name in operands_of(node):
            loaded = name not in made
            if not (loaded and is_product(node)):
                uses.setdefault(name, []).append(at)
        if not isinstance(node, Store | Load) and node.result not in fused:
            # Accumulators are held all through the loop.
            carried = isinstance(node, Accumulate | RunningMax) and bool(body)
            made[node.result] = loop[0] if carried else at
            uses.setdefault(node.result, []).append(loop[1] if carried else at + 1)
    loads = {n.result for n in nodes if isinstance(n, Load)}
    return {
        name: _span(made.get(name), uses[name], loop, stages[name] == "before")
        for name in uses
        if name in made or name in loads
    }


def _span(
    made: int | None, uses: list[int], loop: tuple[int, int], before: bool
) -> tuple[int, int]:
    start, end = loop
    first, last = min(uses) if made is None else made, max(uses)
    if before and any(start <= use < end for use in uses):
        return min(first, start), max(last, end)
    return first, last


def _summed_in_place(nodes: list[BlockNode]) -> set[str]:
    """Products that go straight into an accumulator, which the matrix unit adds to."""
    products = {n.result for n in nodes if is_product(n)}
    summed = {n.operand for n in nodes if isinstance(n, Accumulate) and n.adds}
    others = [v for n in nodes if not isinstance(n, Accumulate) for v in operands_of(n)]
    return (products & summed) - set(others)


# -- Structures as rows of matrices ----------------------------------------------------
# A column of these matrices is a parameter point (`cost.footprint`), so one
# pass of NumPy prices all values, loads or products of a structure at all
# points.  All that does not depend on the points is worked out here, once for
# each structure.

Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]
Column = NDArray[np.float64]
"""One number for each row, as a column."""


@dataclass(frozen=True, eq=False)
class Products:
    """One row for each product.

    Attributes:
        rows: Rows of the sizes of the dims of its rows.
        columns: Of its columns.
        over: Of what it sums.
        batch: Of what it is batched over.
        both: Of rows and columns.
        upright: Of the rows that the lowering takes; `turned`: with operands swapped.
        sides: For rows, columns and over in turn, the dims of each product's.
        useful: All its dims.
        vector: Whether a side has no dim.
        exact: Whether it is of f32 factors.
        looped: Whether it runs in every iteration.
    """

    rows: Rows
    columns: Rows
    over: Rows
    batch: Rows
    both: Rows
    upright: Rows
    turned: Rows
    sides: Rows
    useful: Rows
    vector: Flags
    exact: Flags
    looped: Flags

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def matrix(self) -> Flags:
        """Those that the matrix unit takes."""
        return ~(self.vector | self.exact)


@dataclass(frozen=True, eq=False)
class Operands:
    """One row for each operand of each product.

    Attributes:
        product: Its product.
        value: Row of its sizes.
        itemsize: Bytes of an element.
        left: Whether it has the rows, and the same with operands swapped.
        first: Whether it is not the same value as the operand before.
        loaded: Whether it is a load.
        fresh: Whether it lies in registers as a product left it.
        mixed: Whether it is a load that lies as one copy for others than products too;
            and whether that depends on its products (`by_product`).
        by_product: See there.
        readers: Which products read the value.
        looped: Whether the value is made in every iteration.
    """

    product: Rows
    value: Rows
    itemsize: Column
    left: tuple[Flags, Flags]
    first: Flags
    loaded: Flags
    fresh: Flags
    mixed: Flags
    by_product: Flags
    readers: Column
    looped: Flags


@dataclass(frozen=True, eq=False)
class Loads:
    """One row for each load.

    Attributes:
        value: Row of its sizes.
        dims: The dims of its tile.
        runs: The same in the order of memory, the innermost first.
        itemsize: Bytes of an element.
        source: Bytes of what it is loaded from.
        names: What it is loaded from.
        looped: Whether it is made in every iteration.
        late: Whether only code after the loop reads it.
        turned: Whether registers want it in another order than memory has, and the
            same with operands swapped.
        readers: Which products read it.
        read: How many these are.
        both: Whether products and other operators read it.
        awaited: Whether its products are read by operators of the body.
    """

    value: Rows
    dims: Rows
    runs: Rows
    itemsize: Column
    source: Column
    names: tuple[str, ...]
    looped: Flags
    late: Flags
    turned: tuple[Flags, Flags]
    readers: Column
    read: Column
    both: Flags
    awaited: Flags


@dataclass(frozen=True, eq=False)
class Work:
    """Operators but products: in every iteration, and once.

    Attributes:
        flops: Operations for each element of each value.
        maxima: Running maxima.
        reductions: Reductions.
        others: All others.
    """

    flops: tuple[Column, Column]
    maxima: tuple[int, int]
    reductions: tuple[int, int]
    others: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Tables:
    """All of them.

    A row of `members`, as of the other matrices of dims, ends with places of a dim of
    extent 1.

    Attributes:
        dims: All pieces of dims.
        extents: Of each, and 1 after the last.
        widened: Sides of products, whose tiles are widened one after the other.
        members: The dims of each row of the sizes.
        value: Row of the sizes of each value.
        products: The products.
        operands: Their operands.
        loads: The loads.
        stores: The dims of each store.
        work: The other operators.
    """

    dims: tuple[Dim, ...]
    extents: Column
    widened: tuple[tuple[int, ...], ...]
    members: Rows
    value: Mapping[str, int]
    products: Products
    operands: Operands
    loads: Loads
    stores: tuple[Rows, ...]
    work: Work


def tables_of(facts: BlockFacts) -> Tables:
    """The tables of a structure."""
    return _Builder(facts).tables()


class _Builder:
    def __init__(self, facts: BlockFacts) -> None:
        self.facts = facts
        found = dict.fromkeys(d for own in facts.dims.values() for d in own)
        found.update((d, None) for s in facts.block.stores for d in dims_of(s.axes))
        self.place = {d: at for at, d in enumerate(found)}
        self.sets: dict[tuple[Dim, ...], int] = {}
        self.value = {v: self.row(dims) for v, dims in facts.dims.items()}

    def row(self, dims: tuple[Dim, ...]) -> int:
        """The row of the sizes of some dims."""
        return self.sets.setdefault(dims, len(self.sets))

    def places(self, sets: Iterable[Sequence[Dim]]) -> Rows:
        """Dims as places, each row filled up to the same length."""
        found = [[self.place[d] for d in dims] for dims in sets]
        longest = max(map(len, found), default=0)
        end = len(self.place)
        filled = [own + [end] * (longest - len(own)) for own in found]
        return np.array(filled, dtype=np.intp).reshape(len(found), longest)

    def tables(self) -> Tables:
        extents = self.facts.extents
        products, operands = self.products(), self.operands()
        sides = (tuple(self.place[d] for d in side) for side in self.facts.sides)
        return Tables(
            dims=tuple(self.place),
            extents=as_column([*(extents.get(d.name, 1) for d in self.place), 1]),
            widened=tuple(_once(sides)),
            members=self.places(self.sets),
            value=self.value,
            products=products,
            operands=operands,
            loads=self.loads(),
            stores=tuple(self.stored(s) for s in self.facts.block.stores),
            work=self.work(),
        )

    def products(self) -> Products:
        own = self.facts.products
        as_is, swapped = self.facts.orientations
        results = [p.node.result for p in own]
        return Products(
            rows=self.rows(p.rows for p in own),
            columns=self.rows(p.columns for p in own),
            over=self.rows(p.over for p in own),
            batch=self.rows(p.batch for p in own),
            both=self.rows((*p.rows, *p.columns) for p in own),
            upright=self.rows(as_is.rows[r] for r in results),
            turned=self.rows(swapped.rows[r] for r in results),
            sides=self.places(
                [*(p.rows for p in own), *(p.columns for p in own)]
                + [p.over for p in own]
            ),
            useful=self.places((*p.rows, *p.columns, *p.over, *p.batch) for p in own),
            vector=flags(p.is_vector for p in own),
            exact=flags(p.full_precision for p in own),
            looped=self.looped(results),
        )

    def operands(self) -> Operands:
        facts, read = self.facts, list(_operands(self.facts.products))
        values = [v for _, v, _ in read]
        products = [facts.products[at].node.result for at, _, _ in read]
        loads = {load.result for load in facts.block.loads}
        mixed = [v in loads & facts.register_operands for v in values]
        schedule = facts.block.schedule
        alone = [not schedule.descriptors] * len(values)
        by_product = [schedule.second_load] * len(values)
        as_is, swapped = facts.orientations
        return Operands(
            product=np.array([at for at, _, _ in read], dtype=np.intp),
            value=np.array([self.value[v] for v in values], dtype=np.intp),
            itemsize=as_column(facts.types[v].dtype.itemsize for v in values),
            left=(
                flags(
                    as_is.left[p] == v for p, v in zip(products, values, strict=True)
                ),
                flags(
                    swapped.left[p] == v for p, v in zip(products, values, strict=True)
                ),
            ),
            first=flags(first for _, _, first in read),
            loaded=flags(v in loads for v in values),
            fresh=flags(v in facts.fresh for v in values),
            mixed=flags(mixed) & flags(alone),
            by_product=flags(by_product),
            readers=self.readers(values),
            looped=self.looped(values),
        )

    def loads(self) -> Loads:
        facts = self.facts
        own = facts.block.loads
        names = [load.result for load in own]
        sources = [facts.outer[load.source] for load in own]
        readers = self.readers(names)
        return Loads(
            value=np.array([self.value[v] for v in names], dtype=np.intp),
            dims=self.places(facts.types[v].dims for v in names),
            runs=self.places(in_memory(load, facts) for load in own),
            itemsize=as_column(s.dtype.itemsize for s in sources),
            source=as_column(
                s.dtype.itemsize * prod(facts.extents[n] for n in s.names)
                for s in sources
            ),
            names=tuple(load.source for load in own),
            looped=self.looped(names),
            late=flags(v in facts.used_only_after for v in names),
            turned=(
                flags(v in facts.turned_loads[0] for v in names),
                flags(v in facts.turned_loads[1] for v in names),
            ),
            readers=readers,
            read=readers.sum(axis=1, keepdims=True),
            both=flags(
                v in facts.matrix_operands & facts.register_operands for v in names
            )[:, None],
            awaited=flags(_all_awaited(v, facts) for v in names)[:, None],
        )

    def work(self) -> Work:
        flops = (np.zeros((1, len(self.sets))), np.zeros((1, len(self.sets))))
        maxima, reductions, others = [0, 0], [0, 0], [0, 0]
        dims = self.facts.dims
        for node in self.facts.block.nodes:
            if isinstance(node, Store | Load) or is_product(node):
                continue
            once = self.facts.stages[node.result] != "body"
            if isinstance(node, RunningMax):
                maxima[once] += 1
            elif isinstance(node, Apply):
                widest = max((node.result, *node.values), key=lambda v: len(dims[v]))
                flops[once][0, self.value[widest]] += node.op.flops
                reduces = node.op.kind is Kind.REDUCTION
                (reductions if reduces else others)[once] += 1
            elif node.rescale is not None:
                flops[0][0, self.value[node.result]] += 1
        return Work(
            flops,
            (maxima[0], maxima[1]),
            (reductions[0], reductions[1]),
            (others[0], others[1]),
        )

    def stored(self, store: Store) -> Rows:
        return self.places([dims_of(store.axes)])[0]

    def rows(self, sets: Iterable[tuple[Dim, ...]]) -> Rows:
        return np.array([self.row(dims) for dims in sets], dtype=np.intp)

    def looped(self, values: Iterable[str]) -> Flags:
        stages = self.facts.stages
        return flags(stages.get(v) == "body" for v in values)[:, None]

    def readers(self, values: Sequence[str]) -> Column:
        own = self.facts.products
        found = [[float(v in p.node.values) for p in own] for v in values]
        return np.array(found).reshape(len(values), len(own))


def flags(values: Iterable[bool]) -> Flags:
    return np.array(list(values), dtype=bool)


def as_column(values: Iterable[float]) -> Column:
    return np.array(list(values), dtype=np.float64)[:, None]


def _once(sides: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The sides that change something: a dim that is a side is wide enough then."""
    wide: set[int] = set()
    for side in sides:
        if len(side) > 1 or not wide.issuperset(side):
            yield side
        if len(side) == 1:
            wide.update(side)


def _operands(products: Sequence[Product]) -> Iterator[tuple[int, str, bool]]:
    """Products, their operands, and whether these are new."""
    for at, product in enumerate(products):
        seen: set[str] = set()
        for value in product.node.values:
            yield at, value, value not in seen
            seen.add(value)


def in_memory(load: Load, facts: BlockFacts) -> tuple[Dim, ...]:
    """The dims of a load in the order of memory, the innermost first."""
    kind = facts.outer[load.source]
    return tuple(d for axis in reversed(kind.order) for d in reversed(load.axes[axis]))


def _all_awaited(load: str, facts: BlockFacts) -> bool:
    """Whether the products of a loaded tile are read by operators of the body."""
    products = {p.node.result for p in facts.products if load in p.node.values}
    read = {
        value
        for node in facts.block.nodes
        if isinstance(node, Apply) and node.op.term is not Term.ADD
        for value in node.values
    }
    return products <= read


# -- Facts of a block graph ------------------------------------------------------------


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
    look()
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
