"""What the cost model asks of a structure, as rows of matrices.

A column of these matrices is a parameter point (`search.footprint`), so one pass of
NumPy prices all values, loads or products of a structure at all points.  All that does
not depend on the points is worked out here, once for each structure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.ir.graph import Apply, Load, RunningMax, Store, dims_of
from mirage_dsl.ops.definition import Kind, Term
from mirage_dsl.search.orientation import is_product
from mirage_dsl.types import Dim

if TYPE_CHECKING:
    from mirage_dsl.search.facts import BlockFacts, Product

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
