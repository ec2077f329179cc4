"""A block as the cost model sees it: its tile programs, as rows of matrices.

Numbers of a tile program are formulas, so one program serves many sizes.  What changes
its statements makes another one: operands swapped, sums that wait until the loop is
over.  What does not depend on sizes is worked out here, once for each program.

**Flow** is who makes and who reads the values of a program, and which of them live at
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import SECTOR
from mirage_dsl.core.types import Dim, Scalar, TensorType, Types, f32
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.integers import CONVERSIONS
from mirage_dsl.ir.analysis.settled import unmasked
from mirage_dsl.ir.maps import Extents, known_extents
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.build import (
    Stage,
    Suited,
    Typed,
    build,
    defer,
    deferrable,
    eager,
    is_worth_a_tile,
    loads_words,
    memory_order,
    vector_products,
)
from mirage_dsl.tile.combined import Deal, deal, packed, runs, words

# -- Who makes and who reads a value ---------------------------------------------------

STAGES: tuple[Stage, ...] = ("before", "body", "after")

Step = tuple[tp.Statement, Stage]
"""A statement, and when it runs."""


class Flow:
    """Who makes and who reads the values of a program.

    What is only another form of a value (f32, turned, masked, merged, the other copy of
    a load) goes by the name of the value itself.  Steps by which bytes are unpacked are
    none, where they are unpacked in one.

    Attributes:
        words: The loads of words.
        packed: What is unpacked from bytes in a step.
        tiles: The types of values.
        stage: When each value is made.
        users: Who reads each value, and when.
        second: Of each tile, whether it is the copy of a load that registers read.
        fresh: What lies in registers as a product left it.
        steps: Statements but changes of form, in order.
    """

    def __init__(self, program: tp.TileProgram) -> None:
        self.tiles = program.tiles
        self.words = words(program)
        self.packed = packed(program, words=self.words)
        self.stage: dict[str, Stage] = {}
        self.users: dict[str, list[Step]] = {}
        self.second: dict[str, tp.Number] = {}
        self.fresh: set[str] = set()
        self._origin: dict[str, str] = {}
        self.steps: list[Step] = []
        stage: Stage = "before"
        for statement, looped in tp.walk(program.body):
            if isinstance(statement, tp.Loop):
                stage = "after"
            else:
                self._visit(statement, "body" if looped else stage)

    def origin(self, tile: str) -> str:
        """The value of which a tile is a form."""
        return self._origin.get(tile, tile)

    def operands(self, statement: tp.Statement) -> list[str]:
        """The values that a statement reads."""
        parts = [self.packed.floats.get(v) for v in tp.makes(statement)]
        found = [p.source for p in parts if p is not None]
        return [self.origin(v) for v in found or tp.reads(statement)]

    def products_of(self, value: str) -> list[tp.Product]:
        """The products that read a value."""
        products = (
            u for u, _ in self.users.get(value, ()) if isinstance(u, tp.Product)
        )
        return [p for p in products if value in self.factors(p)]

    def picks(self, load: tp.Load) -> bool:
        """Whether products read what is at known positions, as elements of windows."""
        known = load.along is not None and load.along.known != "no"
        return known and bool(self.products_of(load.result))

    def is_of_words(self, value: str) -> bool:
        """Whether a value is unpacked of words, where the matrix unit reads them."""
        part = self.packed.floats.get(value)
        return part is not None and (part.lane is not None or part.part == "word")

    def factors(self, product: tp.Product) -> tuple[str, str]:
        """The values that a product multiplies: that with the rows comes first."""
        return self.origin(product.left), self.origin(product.right)

    def _visit(self, statement: tp.Statement, stage: Stage) -> None:
        if not self.packed.steps.isdisjoint(tp.makes(statement)):
            return
        match statement:
            case tp.Convert() | tp.Mask() | tp.Merge() | tp.Pick():
                self._origin[statement.result] = self.origin(statement.operand)
                second = self.second.get(statement.operand, False)
                if isinstance(statement, tp.Pick):
                    second = statement.when
                self.second[statement.result] = second
                return
            case tp.Load() if statement.instead is not None:
                self._origin[statement.result] = self.origin(statement.instead)
                self.second[statement.result] = True
                self.steps.append((statement, stage))
                return
            case _:
                pass
        self.steps.append((statement, stage))
        for value in dict.fromkeys(self.operands(statement)):
            self.users.setdefault(value, []).append((statement, stage))
        made = tp.makes(statement)
        for value in made:
            self.stage.setdefault(value, stage)
        if isinstance(statement, tp.Product) or not self.fresh.isdisjoint(
            self.operands(statement)
        ):
            self.fresh.update(made)


# -- Which of them live at once --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Live:
    """Values that live in registers.

    Attributes:
        names: The values.
        at: A matrix of 0 and 1: one row a step, one column a value.  Steps at which
            no more lives than at another one are left out, but for products.
        products: The row of each product, by its result.
    """

    names: tuple[str, ...]
    at: NDArray[np.float64]
    products: dict[str, int]


def live_tiles(flow: Flow, steps: Sequence[Step]) -> Live:
    """Values that live in registers, and which of them are live at which steps.

    Args:
        flow: Of a program.
        steps: Its steps, in the order in which they run.
    """
    spans = _spans(flow, steps)
    column = {name: at for at, name in enumerate(spans)}
    live = np.zeros((len(steps), len(spans)))
    products: dict[int, str] = {}
    for name, (start, end) in spans.items():
        live[start : max(end, start + 1), column[name]] = 1.0
    for row, (statement, _) in enumerate(steps):
        if isinstance(statement, tp.Product):
            products[row] = statement.result
            # A product reads its operands until its result is complete.
            for value in flow.factors(statement):
                if value in column:
                    live[row, column[value]] = 1.0
    rows = sorted({*_fullest(live), *products})
    found = {products[row]: at for at, row in enumerate(rows) if row in products}
    return Live(tuple(spans), live[rows], found)


def _fullest(live: NDArray[np.float64]) -> list[int]:
    """The rows of a matrix of 0 and 1 whose ones no other row has; of equals the first.

    Products with the matrix are small then: the library splits larger ones among
    threads, which take longer to wait for the next one than it takes.
    """
    # [i, j] says whether row j has all ones of row i.
    within = live @ (1.0 - live).T == 0
    other = ~within.T | np.tri(len(live), k=-1, dtype=bool)
    return np.flatnonzero(~(within & other).any(axis=1)).tolist()


def _spans(flow: Flow, steps: Sequence[Step]) -> dict[str, tuple[int, int]]:
    """From where to where each value is held in registers, as positions of steps.

    A value dies in the step that reads it last, whose result takes its place.
    """
    body = [at for at, (_, stage) in enumerate(steps) if stage == "body"]
    loop = (body[0], body[-1] + 1) if body else (len(steps), 0)
    made: dict[str, int] = {}
    uses: dict[str, list[int]] = {}
    passing = _addresses(flow, steps)
    for at, (statement, _) in enumerate(steps):
        if not passing.isdisjoint(tp.makes(statement)):
            continue
        for name in flow.operands(statement):
            # The matrix unit reads loads from shared memory.
            if name in made or not isinstance(statement, tp.Product):
                uses.setdefault(name, []).append(at)
        if isinstance(statement, tp.Load):
            continue
        for name in tp.makes(statement):
            # What the loop carries is held all through it.
            carried = isinstance(statement, tp.Start)
            made.setdefault(name, loop[0] if carried else at)
            uses.setdefault(name, []).append(loop[1] if carried else at + 1)
    return {
        name: _span(made.get(name), own, loop, early=flow.stage[name] == "before")
        for name, own in uses.items()
    }


def _addresses(flow: Flow, steps: Sequence[Step]) -> AbstractSet[str]:
    """What nothing but loads of the same stage read, as addresses and masks of windows.

    Elements that products read are loaded one after the other, each with its address.
    """
    found, others = set[str](), set[str]()
    for statement, stage in reversed(steps):
        read, made = set(flow.operands(statement)), set(tp.makes(statement))
        own = {name for name in read if flow.stage[name] == stage}
        picks = isinstance(statement, tp.Load) and flow.picks(statement)
        if not picks and not (made and made <= found - others):
            own = set[str]()
        found |= own
        others |= read - own
    return found - others


def _span(
    made: int | None, uses: list[int], loop: tuple[int, int], *, early: bool
) -> tuple[int, int]:
    start, end = loop
    first, last = min(uses) if made is None else made, max(uses)
    if early and any(start <= use < end for use in uses):
        return min(first, start), max(last, end)
    return first, last


# -- Programs as rows of matrices ------------------------------------------------------

UNPACKING = 1.25
"""Operations for each number that is unpacked from bytes, to f16.

Instructions for eight halves of bytes: two that spread bytes, four masks, four
subtractions.
"""
UNPACKING_WORDS = 1.125
UNPACKING_FLOATS = 0.75
"""The same of words: a shift, four masks and four subtractions for eight halves; and of
floats: one instruction that spreads four bytes, and two that convert them."""


# A column of these matrices is a parameter point (`cost.footprint`), so one
# pass of NumPy prices all values, loads or products of a program at all
# points.  All that does not depend on the points is worked out here, once for
# each program.

Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]
Column = NDArray[np.float64]
"""One number for each row, as a column."""


@dataclass(frozen=True, eq=False)
class Products:
    """One row for each product.

    Attributes:
        own: The products.
        rows: Rows of the sizes of the dims of its rows.
        columns: Of its columns.
        over: Of what it sums.
        batch: Of what it is batched over.
        sides: For rows, columns and over in turn, the dims of each product's.
        useful: All its dims.
        vector: Whether the matrix unit has nothing to take.
        exact: Whether it is of f32 factors as they are.
        rounded: Whether it is of f32 factors that are rounded to TF32.
        looped: Whether it runs in every iteration.
    """

    own: tuple[tp.Product, ...]
    rows: Rows
    columns: Rows
    over: Rows
    batch: Rows
    sides: Rows
    useful: Rows
    vector: Flags
    exact: Flags
    rounded: Flags
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
        left: Whether it has the rows.
        first: Whether it is not the same value as the operand before, or the same lane
            of a load as one of any product before.
        loaded: Whether it is a load.
        fresh: Whether it lies in registers as a product left it.
        words: Whether it is made of words, which lie there as a product wants them.
        mixed: Whether other operators read the same copy of a load, which lies as
            neither wants it.
        kept: Whether it is converted from bytes where these were loaded.
        lane: Whether it is a lane of a load.
        run: Whether it is loaded with merged axes.
        looped: Whether the value is made in every iteration.
    """

    product: Rows
    value: Rows
    itemsize: Column
    left: Flags
    first: Flags
    loaded: Flags
    fresh: Flags
    words: Flags
    mixed: tuple[tp.Number, ...]
    kept: Flags
    lane: Flags
    run: Flags
    looped: Flags


@dataclass(frozen=True, eq=False)
class Loads:
    """One row for each load.

    Attributes:
        own: The loads.
        again: Of each, the copy that registers read.
        value: Row of its sizes.
        dims: The dims of its tile.
        runs: The same in the order of memory, the innermost first.
        apart: Dims with more than one lane of which nothing lies together.
        itemsize: Bytes of an element.
        word: Bytes of a word of two elements; 0 where there are none.
        source: Bytes of what it is loaded from.
        share: Of its lanes, those that are read.
        steps: Of each, how far apart known positions are along dims, by places.
        overlapping: How often it reads each element, at known positions; 0 elsewhere.
        looped: Whether it is made in every iteration.
        pieces: Whether it is, of what lies together a piece each time.
        late: Whether only code after the loop reads it.
        turned: Whether registers want it in another order than memory has.
        readers: Which products read it.
        picked: Whether products read it, of known positions.
        single: Whether its elements are picked one by one, at positions that are data.
        windows: Whether it reads windows: elements along dims that no result has.
    """

    own: tuple[tp.Load, ...]
    again: tuple[tp.Load | None, ...]
    value: Rows
    dims: Rows
    runs: Rows
    apart: Rows
    itemsize: Column
    word: Column
    source: Column
    share: Column
    steps: tuple[Mapping[int, int], ...]
    overlapping: Column
    looped: Flags
    pieces: Flags
    late: Flags
    turned: Flags
    readers: Column
    picked: Flags
    single: Flags
    windows: Flags


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
class Stores:
    """One row for each store.

    Attributes:
        own: The stores.
        dims: The dims of each tile.
        looped: Whether it is stored in every iteration.
        runs: The dims in the order of memory, the innermost first.
        itemsize: Bytes of an element.
    """

    own: tuple[tp.Store, ...]
    dims: tuple[Rows, ...]
    looped: tuple[bool, ...]
    runs: Rows
    itemsize: Column


@dataclass(frozen=True, eq=False)
class Shared:
    """One row for each value that lies in shared memory.

    After the loop its stages are free again.  What is made before the loop and used in
    it stays for as long as the loop does, what is used only after it to the end.

    Attributes:
        names: The values.
        value: Row of its sizes.
        itemsize: Bytes of an element.
        staged: The rows of the loop's loads, in their order.
        looping: Whether it lives while the loop runs, or where there is no loop.
        ending: Whether it lives after the loop.
    """

    names: tuple[str, ...]
    value: Rows
    itemsize: Column
    staged: Rows
    looping: Flags
    ending: Flags


@dataclass(frozen=True, eq=False)
class Tables:
    """All of them.

    A row of `members`, as of the other matrices of dims, ends with places of a dim of
    extent 1.

    Attributes:
        extents: Of each piece of the program, and 1 after the last.
        members: The dims of each row of the sizes.
        value: Row of the sizes of each value.
        products: The products.
        operands: Their operands.
        loads: The loads.
        stores: The stores.
        shared: What lies in shared memory.
        work: The other operators.
        windows: Which pieces are of windows, whose elements are joined.
    """

    extents: Column
    members: Rows
    value: Mapping[str, int]
    products: Products
    operands: Operands
    loads: Loads
    stores: Stores
    shared: Shared
    work: Work
    windows: Flags


class _Builder:
    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, self.flow, self.program = facts, facts.flow, facts.program
        self.place = facts.place
        self.sets: dict[tp.Order, int] = {}
        self.value = {v: self.row(t.axes) for v, t in self.flow.tiles.items()}

    def row(self, dims: tp.Order) -> int:
        """The row of the sizes of some dims."""
        return self.sets.setdefault(dims, len(self.sets))

    def rows(self, sets: Iterable[tp.Order]) -> Rows:
        return np.array([self.row(dims) for dims in sets], dtype=np.intp)

    def places(self, sets: Iterable[Sequence[Dim]]) -> Rows:
        """Dims as places, each row filled up to the same length.

        A dim that is no piece of the program, as that of parts, has one element.
        """
        end = len(self.place)
        found = [[self.place.get(d, end) for d in dims] for dims in sets]
        longest = max(map(len, found), default=0)
        filled = [own + [end] * (longest - len(own)) for own in found]
        return np.array(filled, dtype=np.intp).reshape(len(found), longest)

    def tables(self) -> Tables:
        extents = self.program.extents
        products, operands = self.products(), self.operands()
        loads, stores, work = self.loads(), self.stores(), self.work()
        return Tables(
            extents=as_column([*(extents.get(d.name) or 1 for d in self.place), 1]),
            members=self.places(self.sets),
            value=self.value,
            products=products,
            operands=operands,
            loads=loads,
            stores=stores,
            shared=self.shared(),
            work=work,
            windows=self.windows(loads),
        )

    def products(self) -> Products:
        own = self.facts.products
        return Products(
            own=own,
            rows=self.rows(p.rows for p in own),
            columns=self.rows(p.columns for p in own),
            over=self.rows(p.over for p in own),
            batch=self.rows(p.batch for p in own),
            sides=self.places(
                [*(p.rows for p in own), *(p.columns for p in own)]
                + [p.over for p in own]
            ),
            useful=self.places((*p.rows, *p.columns, *p.over, *p.batch) for p in own),
            vector=flags(not p.is_matrix for p in own),
            exact=flags(p.precision == "ieee" for p in own),
            rounded=flags(p.precision == "tf32" for p in own)[:, None],
            looped=flags(self.facts.looped[p.result] for p in own)[:, None],
        )

    def operands(self) -> Operands:
        flow = self.flow
        own = [
            (at, p, side)
            for at, p in enumerate(self.facts.products)
            for side in (p.left, p.right)
        ]
        values = [flow.origin(side) for _, _, side in own]
        merged = runs(self.program, lambda _: True)
        makers = [self.facts.loads.get(v) for v in values]
        lanes = {s.result for s, _ in flow.steps if isinstance(s, tp.Lane)}
        again = {i for i, v in enumerate(values) if v in lanes and v in values[:i]}
        return Operands(
            product=np.array([at for at, _, _ in own], dtype=np.intp),
            value=np.array([self.value[v] for v in values], dtype=np.intp),
            itemsize=as_column(flow.tiles[v].dtype.itemsize for v in values),
            left=flags(side == p.left for _, p, side in own),
            first=flags(
                i not in again
                and (side == p.left or flow.origin(p.left) != flow.origin(p.right))
                for i, (_, p, side) in enumerate(own)
            ),
            loaded=flags(load is not None for load in makers),
            fresh=flags(v in flow.fresh for v in values),
            words=flags(map(flow.is_of_words, values)),
            mixed=tuple(
                load is not None and self.is_mixed(load, side)
                for load, (_, _, side) in zip(makers, own, strict=True)
            ),
            run=flags(v in merged for v in values),
            kept=flags(side in flow.packed.factors for _, _, side in own),
            lane=flags(v in lanes for v in values),
            looped=flags(flow.stage[v] == "body" for v in values)[:, None],
        )

    def is_mixed(self, load: tp.Load, read: str) -> tp.Number:
        """Whether a product reads the copy of a load that other operators read too.

        That is of copies in shared memory: what is not pipelined goes to registers.
        """
        if load.via == "descriptor" or not self.facts.serves_registers(load.result):
            return False
        if self.flow.stage[load.result] != "body":
            return False
        again = self.facts.again.get(load.result)
        if again is None:
            return True
        return tp.either(again.when, self.flow.second.get(read, False), True)

    def loads(self) -> Loads:
        facts, flow = self.facts, self.flow
        own, tensors = tuple(facts.loads.values()), self.program.tensors
        names = [load.result for load in own]
        kinds = [tensors[load.source] for load in own]
        readers = [
            [float(p in flow.products_of(v)) for p in facts.products] for v in names
        ]
        extents, reached = self.program.extents, self.reached(own)
        steps = tuple(map(self.steps, own))
        return Loads(
            own=own,
            again=tuple(facts.again.get(v) for v in names),
            value=np.array([self.value[v] for v in names], dtype=np.intp),
            dims=self.places(load.tile.axes for load in own),
            runs=self.places(map(self.run, own, kinds)),
            apart=self.places(map(self.apart, own, kinds)),
            itemsize=as_column(kind.dtype.itemsize for kind in kinds),
            word=as_column(
                2 * kind.dtype.itemsize * (v in flow.words)
                for v, kind in zip(names, kinds, strict=True)
            ),
            source=as_column(
                kind.dtype.itemsize
                * min(prod(extents[n] or 1 for n in names) for names in some)
                for kind, some in zip(kinds, reached, strict=True)
            ),
            share=as_column(map(self.share, own)),
            steps=steps,
            overlapping=as_column(map(self.overlapping, own, kinds, self.reached(own))),
            looped=flags(flow.stage[v] == "body" for v in names)[:, None],
            pieces=flags(map(self.in_pieces, own, kinds))[:, None],
            late=flags(v in facts.used_only_after for v in names),
            turned=flags(v in facts.turned_loads for v in names),
            readers=np.array(readers).reshape(len(own), len(facts.products)),
            picked=flags(map(flow.picks, own))[:, None],
            single=flags(map(self.is_single, own, kinds))[:, None],
            windows=flags(map(self.is_of_windows, steps))[:, None],
        )

    def is_single(self, load: tp.Load, kind: TensorType) -> bool:
        """Whether elements are picked one by one, at positions that are data."""
        unknown = load.along is not None and load.along.known == "no"
        return unknown and not self.run(load, kind)

    def in_pieces(self, load: tp.Load, kind: TensorType) -> bool:
        """Whether the loop goes along the innermost dim."""
        loop, run = self.program.loop, self.run(load, kind)
        looped = self.flow.stage[load.result] == "body"
        return looped and loop is not None and bool(run) and run[0].name == loop.dim

    def run(self, load: tp.Load, kind: TensorType) -> tp.Order:
        """The dims that lie one behind the other, innermost first: up to one at data.

        Positions that follow one another along an index's axis do as those of a dim.
        """
        order, along = memory_order(load, kind)[::-1], load.along
        if along is None:
            return order
        at = order.index(along.dim)
        axes = self.flow.tiles[along.index].axes
        if along.known == "in_row" and len(axes) == 1:
            return (*order[:at], *axes, *order[at + 1 :])
        if at > 0:
            return order[:at]
        steps, extents = self.strides.get(along.index, {}), self.program.extents
        # Of windows both their places and their elements follow one another; these
        # fill the gaps between those.
        most = SECTOR // kind.dtype.itemsize if len(axes) > 1 else 1
        in_row = [d for d in load.tile.axes[::-1] if 0 < steps.get(d, 0) <= most]
        longest = max(in_row, key=lambda d: extents[d.name] or 0, default=None)
        return () if longest is None else (longest,)

    def apart(self, load: tp.Load, kind: TensorType) -> tp.Order:
        """Dims of a tile that part lanes that read what lies together.

        Threads are laid along the last axes of a tile whose addresses are not known:
        those of an index have to be the last ones for neighbours to read neighbours.
        Windows of 65536 positions: 2.5 ms on an H100 with one row in a tile, 13 with
        16 rows between the axis of windows and that of their elements.
        """
        along, order, run = load.along, load.tile.axes, self.run(load, kind)
        if along is None or along.known != "no" or not run:
            return ()
        own = self.flow.tiles[along.index].axes
        if run[0] not in own:
            return ()
        return tuple(d for d in order[order.index(run[0]) :] if d not in own)

    def overlapping(
        self, load: tp.Load, kind: TensorType, reached: Sequence[AbstractSet[str]]
    ) -> float:
        """How many known positions there are for each element of a tensor."""
        along, extents = load.along, self.program.extents
        if along is None or along.known == "no" or kind.names[-1] != along.dim.name:
            return 0.0
        there, picked = (prod(extents[n] or 1 for n in names) for names in reached)
        return picked / there

    @cached_property
    def stored(self) -> frozenset[int]:
        """The places of dims that results have."""
        every = (s for s, _ in self.flow.steps)
        dims = {d for s in every if isinstance(s, tp.Store) for d in ir.dims_of(s.at)}
        return frozenset(self.place[d] for d in dims if d in self.place)

    def is_of_windows(self, steps: Mapping[int, int]) -> bool:
        """Whether elements at such steps are of windows: no result has all of these."""
        return len(steps) > 1 and not steps.keys() <= self.stored

    def windows(self, loads: Loads) -> Flags:
        """Which pieces several lanes read one element along, and no result has."""
        read = zip(loads.steps, loads.windows[:, 0], strict=True)
        found = {at for steps, wide in read if wide for at in steps}
        return flags(at in found - self.stored for at in range(len(self.place) + 1))

    def steps(self, load: tp.Load) -> Mapping[int, int]:
        """How far apart known positions are along dims, by places; none if unknown.

        Of windows several lanes read one element, which is then in L1.
        """
        along = load.along
        if along is None:
            return {}
        found = self.strides.get(along.index, {})
        axes = self.flow.tiles[along.index].axes
        if not found.keys() >= {*axes}:
            return {}
        return {self.place[d]: abs(found[d]) for d in axes if d in self.place}

    @cached_property
    def strides(self) -> Mapping[str, Mapping[Dim, int]]:
        """By what a step along each of its dims changes integers, where that is known.

        Where one of two numbers is chosen, and one is a constant, it is as in the
        other: positions outside are moved to some place inside.  If both change alike,
        as of one that may count from the end, it is as in both.  Quotients and rests
        change by no one number, but the dims that they lack do not change them.
        """
        found: dict[str, Mapping[Dim, int]] = {}
        for statement in self.program.statements:
            match statement:
                case tp.Positions():
                    sizes = [self.program.extents[d.name] or 0 for d in statement.at]
                    made = {d: prod(sizes[i + 1 :]) for i, d in enumerate(statement.at)}
                case tp.Convert() | tp.Cast():
                    made = found.get(statement.operand)
                case tp.Compute(inner=None):
                    made = self._strides_of(statement, found)
                case _:
                    made = None
            if made is not None:
                found.update(dict.fromkeys(tp.makes(statement), made))
        return found

    def _strides_of(
        self, statement: tp.Compute, known: Mapping[str, Mapping[Dim, int]]
    ) -> Mapping[Dim, int] | None:
        """`strides` of what is computed of integers; None where none are known."""
        tiles = [o for o in statement.operands if isinstance(o, str)]
        if statement.op in CONVERSIONS:
            return known.get(tiles[0])
        if statement.op is table.WHERE:
            chosen = [o for o in statement.operands[1:] if isinstance(o, str)]
            steps = [known.get(o) for o in chosen]
            return steps[0] if steps and steps.count(steps[0]) == len(steps) else None
        if not tiles or not all(tile in known for tile in tiles):
            return None
        if statement.op is table.MUL and len(tiles) == 1:
            factor = _whole_number(statement.operands, self.program.extents)
            each = known[tiles[0]].items()
            return {d: n * factor for d, n in each} if factor else None
        if statement.op in (table.FLOOR_DIVIDE, table.REMAINDER):
            return {}
        if statement.op not in (table.ADD, table.SUB):
            return None
        signs = 1, -1 if statement.op is table.SUB else 1
        signed = list(zip(statement.operands, signs, strict=True))
        found: dict[Dim, int] = {}
        for dim in statement.tile.axes:
            parts = [
                (known[o].get(dim), sign)
                for o, sign in signed
                if isinstance(o, str) and dim in self.flow.tiles[o].axes
            ]
            steps = [step * sign for step, sign in parts if step is not None]
            if len(steps) == len(parts):
                found[dim] = sum(steps)
        return found

    def share(self, load: tp.Load) -> float:
        """Of the lanes of a load, those that are read where some are left out.

        Positions of one dim are each read by one lane.  Those of several, as of
        windows, are read by many, and few lie outside.
        """
        along = load.along
        if along is None or along.under is None:
            return 1.0
        extents, axes = self.program.extents, self.flow.tiles[along.index].axes
        if len(axes) > 1:
            return 1.0
        lanes = prod(extents[d.name] or 1 for d in axes)
        return min(1.0, (extents[along.dim.name] or 1) / lanes)

    def reached(self, own: Iterable[tp.Load]) -> list[list[AbstractSet[str]]]:
        """The dims of what each load reads; at data, of the tensor or of its elements.

        Where the elements are more, some are read again.
        """
        varying: dict[str, frozenset[str]] = {}
        for statement in self.program.statements:
            names = frozenset[str]().union(*(varying[v] for v in tp.reads(statement)))
            if isinstance(statement, tp.Load):
                names |= {d.name for d in ir.dims_of(statement.at)}
                if statement.along is not None:
                    names -= {statement.along.dim.name}
            elif isinstance(statement, tp.Positions):
                names |= {d.name for d in statement.at}
            varying.update(dict.fromkeys(tp.makes(statement), names))
        found: list[list[AbstractSet[str]]] = []
        for load in own:
            tensor = {d.name for d in ir.dims_of(load.at)}
            at_data = load.along is not None
            found.append([tensor, *([varying[load.result]] if at_data else [])])
        return found

    def stores(self) -> Stores:
        tensors = self.program.tensors
        found = [
            (s, stage == "body")
            for s, stage in self.flow.steps
            if isinstance(s, tp.Store)
        ]
        return Stores(
            tuple(s for s, _ in found),
            tuple(self.places([ir.dims_of(s.at)])[0] for s, _ in found),
            tuple(looped for _, looped in found),
            self.places(_written_run(s, tensors.get(s.result)) for s, _ in found),
            as_column(s.dtype.itemsize for s, _ in found),
        )

    def shared(self) -> Shared:
        flow = self.flow
        looped = [v for v in self.facts.loads if flow.stage[v] == "body"]
        names = looped + [
            v for v in flow.stage if v not in looped and self.is_shared(v)
        ]
        stages = [flow.stage[v] for v in names]
        late = self.facts.used_only_after
        return Shared(
            tuple(names),
            np.array([self.value[v] for v in names], dtype=np.intp),
            as_column(flow.tiles[v].dtype.itemsize for v in names),
            np.arange(len(looped), dtype=np.intp),
            flags(stage != "after" for stage in stages),
            flags(
                stage == "after" or v in late
                for v, stage in zip(names, stages, strict=True)
            ),
        )

    def is_shared(self, value: str) -> bool:
        """Whether products read a value from there.

        What a product made stays in registers as the operand with the rows.
        """
        flow, products = self.flow, self.flow.products_of(value)
        stays = value in flow.fresh and all(
            flow.factors(p)[0] == value for p in products
        )
        return bool(products) and not stays and not flow.is_of_words(value)

    def work(self) -> Work:
        flops = (np.zeros((1, len(self.sets))), np.zeros((1, len(self.sets))))
        maxima, reductions, others = [0, 0], [0, 0], [0, 0]
        unpacked = self.flow.packed.floats
        for statement, stage in self.flow.steps:
            once = stage != "body"
            match statement:
                case tp.Compute() | tp.Cast() if statement.result in unpacked:
                    row, wide = self.value[statement.result], statement.tile.dtype
                    each = self.unpacking(statement.result)
                    flops[once][0, row] += each + table.CAST.flops * (wide == f32)
                    others[once] += 1
                case tp.Compute():
                    row = self.value[statement.result]
                    flops[once][0, row] += statement.op.flops
                    others[once] += 1
                    if statement.inner is not None:
                        flops[once][0, row] += statement.inner.flops
                        others[once] += 1
                case tp.Cast():
                    flops[once][0, self.value[statement.result]] += table.CAST.flops
                    others[once] += 1
                case tp.Reduce() | tp.Scan():
                    row = self.value[self.flow.origin(statement.operand)]
                    flops[once][0, row] += statement.op.flops
                    reductions[once] += 1
                case tp.Largest():
                    maxima[once] += 1
                case tp.Rescale():
                    flops[once][0, self.value[statement.target]] += 1
                case _:
                    pass
        return Work(
            flops,
            (maxima[0], maxima[1]),
            (reductions[0], reductions[1]),
            (others[0], others[1]),
        )

    def unpacking(self, value: str) -> float:
        """Operations for each number that is unpacked, to f16."""
        part = self.flow.packed.floats[value]
        if part.lane is None:
            return UNPACKING
        floats = self.flow.tiles[part.source].dtype.is_float
        return UNPACKING_FLOATS if floats else UNPACKING_WORDS


def _whole_number(operands: Iterable[ir.Operand], extents: Extents) -> int | None:
    """The constant among operands, if it is an integer."""
    constants = (o for o in operands if isinstance(o, Scalar))
    return next((ir.integer_of(c, extents) for c in constants), None)


def _written_run(store: tp.Store, kind: TensorType | None) -> tp.Order:
    """Dims of what is stored, innermost first; row-major if the tensor is not known."""
    order = range(len(store.at)) if kind is None else kind.order
    return tuple(d for axis in reversed(order) for d in reversed(store.at[axis]))


def flags(values: Iterable[bool]) -> Flags:
    return np.array(list(values), dtype=bool)


def as_column(values: Iterable[float]) -> Column:
    return np.array(list(values), dtype=np.float64)[:, None]


# -- Facts of a program ----------------------------------------------------------------


FEW_BYTES = 8
"""One part of so many of what loops read may differ between blocks that share it."""


@dataclass(frozen=True, eq=False)
class ProgramFacts:
    """What does not depend on sizes of one tile program of a block, sizes open.

    Attributes:
        program: The tile program, with one loop that makes all masks.
        unmasked: The same for iterations in which all masks are settled that can be;
            None where none is.
        covered: What covers these iterations.
    """

    program: tp.TileProgram
    unmasked: ProgramFacts | None = None
    covered: tuple[ir.LoopBound, ...] = ()

    @cached_property
    def place(self) -> Mapping[Dim, int]:
        """Of each piece, which one it is."""
        return {d: at for at, d in enumerate(self.program.pieces)}

    @cached_property
    def flow(self) -> Flow:
        """Who makes and reads its values."""
        return Flow(self.program)

    @cached_property
    def deal(self) -> Deal | None:
        """How it can deal words to the matrix unit; None if it cannot."""
        taken = self.flow.words
        if not taken:
            return None
        found = deal(self.program, taken, runs(self.program, lambda _: True))
        return None if found is None or found.when is False else found

    @cached_property
    def products(self) -> tuple[tp.Product, ...]:
        """Its products, in order."""
        return tuple(s for s, _ in self.flow.steps if isinstance(s, tp.Product))

    @cached_property
    def looped(self) -> Mapping[str, bool]:
        """Whether each product runs in every iteration."""
        return {
            s.result: stage == "body"
            for s, stage in self.flow.steps
            if isinstance(s, tp.Product)
        }

    @cached_property
    def loads(self) -> Mapping[str, tp.Load]:
        """Its loads but second copies, by the names of their values."""
        every = (s for s, _ in self.flow.steps if isinstance(s, tp.Load))
        return {s.result: s for s in every if s.instead is None}

    @cached_property
    def again(self) -> Mapping[str, tp.Load]:
        """The copies of loads that registers read, by the names of the loads."""
        every = (s for s, _ in self.flow.steps if isinstance(s, tp.Load))
        return {self.flow.origin(s.result): s for s in every if s.instead is not None}

    @cached_property
    def read_in_loops(self) -> float:
        """Bytes of the tensors that loops read."""
        loads = self.tables.loads
        return float(loads.source[loads.looped[:, 0]].sum())

    @cached_property
    def shared(self) -> frozenset[str]:
        """Dims along whose axes blocks read the same in their loops.

        Not where all are, nor where no product reads it.  What hangs on little of the
        bytes may differ, as masks do.
        """
        axes, whole = ir.grid_axes(self.program.grid), self.read_in_loops
        if not self.products or not whole:
            return frozenset()
        loads = self.tables.loads
        looped = zip(loads.own, loads.source[:, 0], loads.looped[:, 0], strict=True)
        read = [({d.name for d in ir.dims_of(n.at)}, b) for n, b, own in looped if own]

        def differ(axis: tuple[ir.Split, ...]) -> float:
            dims = {s.dim for s in axis}
            return sum(size for own, size in read if own & dims)

        found = [axis for axis in axes if FEW_BYTES * differ(axis) <= whole]
        if len(found) == len(axes):
            return frozenset()
        return frozenset(split.dim for axis in found for split in axis)

    @cached_property
    def apart(self) -> list[tuple[ir.Split, ...]]:
        """The other axes, as what loops read lies in memory: the slowest one first."""
        loads = self.tables.loads
        looped = zip(loads.own, loads.looped[:, 0], strict=True)
        dims = [d.name for n, own in looped if own for d in ir.dims_of(n.at)]
        axes = ir.grid_axes(self.program.grid)
        others = (axis for axis in axes if axis[0].dim not in self.shared)

        def place(axis: tuple[ir.Split, ...]) -> int:
            return min((dims.index(s.dim) for s in axis if s.dim in dims), default=0)

        return sorted(others, key=place)

    @cached_property
    def counts_down(self) -> bool:
        """Whether blocks of long loops start first, along a shared axis."""
        shared, program = self.shared, self.program
        axes = (a for a in ir.grid_axes(program.grid) if a[0].dim in shared)
        return any(tp.counts_down(axis, program) for axis in axes)

    @cached_property
    def tables(self) -> Tables:
        """The program as rows of matrices, in which a column is a point."""
        return _Builder(self).tables()

    @cached_property
    def live(self) -> Live:
        """Which values live in registers, and when."""
        return live_tiles(self.flow, self.flow.steps)

    @cached_property
    def chained(self) -> bool:
        """Whether some product of the body depends on another one."""
        after: set[str] = set()
        for statement, stage in self.flow.steps:
            if stage != "body":
                continue
            fed = not after.isdisjoint(self.flow.operands(statement))
            if isinstance(statement, tp.Product):
                if not after.isdisjoint(self.flow.factors(statement)):
                    return True
                after.update(tp.makes(statement))
            elif fed:
                after.update(tp.makes(statement))
        return False

    def serves_registers(self, value: str) -> bool:
        """Whether anything but a product reads a value."""
        return any(
            not isinstance(u, tp.Product) for u, _ in self.flow.users.get(value, ())
        )

    @cached_property
    def used_only_after(self) -> frozenset[str]:
        """Values made before the loop that only code after it reads."""
        if self.program.loop is None:
            return frozenset()
        return frozenset(
            v
            for v, stage in self.flow.stage.items()
            if stage == "before"
            and all(when == "after" for _, when in self.flow.users.get(v, ()))
        )

    @cached_property
    def turned_loads(self) -> frozenset[str]:
        """Loads that registers want in another order than memory has.

        These loads meet what a product made in an operand of another one, so no
        thread's elements lie together: nothing can be copied ahead.
        """
        flow, found, towards = self.flow, set[str](), set[str]()
        for statement, _ in reversed(flow.steps):
            operands = flow.operands(statement)
            if isinstance(statement, tp.Product):
                if statement.is_matrix:
                    towards.update(flow.factors(statement))
            elif not towards.isdisjoint(tp.makes(statement)):
                towards.update(operands)
                if not flow.fresh.isdisjoint(operands):
                    found.update(v for v in operands if self._is_turned(v))
        return frozenset(found)

    def _is_turned(self, value: str) -> bool:
        load = self.again.get(value) or self.loads.get(value)
        if load is None or len(load.tile.axes) < 2:
            return False
        order = memory_order(load, self.program.tensors[load.source])
        return load.tile.axes[-1] != order[-1]


# -- Facts of a block ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BlockFacts:
    """What does not depend on sizes of a block graph: its programs, and their dims.

    Attributes:
        block: The block.
        extents: Of all dims.
        small: Names of the split dims whose tiles are less than the matrix unit takes,
            where that decides about products of vectors.
        vectors: Of each product of a vector that may become a row, what is summed and
            what only the matrix has.
        given: The block at some of its sizes, as programs are built from it.
    """

    block: ir.BlockGraph
    extents: Mapping[str, int]
    small: frozenset[str]
    vectors: tuple[tuple[tp.Order, tp.Order], ...]
    given: Suited[tp.Outer]

    def at(self, block: ir.BlockGraph) -> BlockFacts:
        """The same of the block with other tiles; what is known stays known."""
        if block is self.block:
            return self
        found = replace(self, block=block)
        found.__dict__.update({**self.__dict__, "block": block})
        return found

    @cached_property
    def columns_of_vectors(self) -> frozenset[str]:
        """Names of the grid's dims that only the matrices of vectors have."""
        return frozenset(d.name for _, own in self.vectors for d in own if d.grid)

    def rows_of_vectors(
        self, grid: Mapping[str, Any], loop: Any
    ) -> list[NDArray[np.bool_]]:
        """For each product of a vector, whether the matrix unit takes it as a row.

        It does what the tile programs do (`tile.build.with_rows`): both sides have as
        many elements as the unit takes, all dims of a side together.

        Args:
            grid: The grid's tiles by dim.
            loop: The loop's tile.
        """

        def elements(side: tp.Order) -> Any:
            return prod(
                loop
                if dim.loop
                else grid[dim.name]
                if dim.grid and dim.name in grid
                else self.extents[dim.name]
                for dim in side
            )

        return [
            np.asarray(np.minimum(elements(over), elements(own)) >= tp.SMALLEST_DOT)
            for over, own in self.vectors
        ]

    @cached_property
    def _programs(self) -> dict[tuple[bool, frozenset[str]], ProgramFacts]:
        return {}

    @cached_property
    def deferrable(self) -> Mapping[str, tp.Number]:
        """Sums that wait until the loop is over where a condition on sizes holds."""
        given = self.given
        sizes = tp.Unsized(given.pieces)
        return {
            v: is_worth_a_tile(s, given, sizes) for v, s in self._deferrable.items()
        }

    @cached_property
    def _deferrable(self) -> Mapping[str, ir.Apply]:
        return deferrable(self.given.block)

    @cached_property
    def plain(self) -> ProgramFacts:
        """The program without swapped operands, in which all sums wait that can."""
        return self.program(swapped=False, deferred=frozenset(self._deferrable))

    @property
    def own(self) -> ProgramFacts:
        """The program that the block has at its own sizes."""
        given, block = self.given, self.block
        deferred = frozenset[str]()
        if self._deferrable:
            around = given.around
            sized = replace(block, nodes=given.block.nodes)
            pieces = tp.Pieces(sized, given.types, around.extents, around.most)
            worth = self._deferrable.items()
            deferred = frozenset(
                v for v, s in worth if is_worth_a_tile(s, given, pieces)
            )
        swapped = block.schedule.swap_operands
        return self.program(swapped=swapped, deferred=deferred)

    def program(self, *, swapped: bool, deferred: frozenset[str]) -> ProgramFacts:
        """One of the programs of the block.

        Args:
            swapped: Whether the operands of products are swapped.
            deferred: Which sums wait until the loop is over.

        Raises:
            UnsupportedError: No tile program can express the block.
        """
        key = swapped, deferred
        if key not in self._programs:
            sums = {v: s for v, s in self._deferrable.items() if v in deferred}
            given = defer(self.given, sums)
            schedule = replace(given.block.schedule, swap_operands=swapped)
            block = replace(given.block, schedule=schedule)
            self._programs[key] = self._of(replace(given, block=block))
        return self._programs[key]

    @staticmethod
    def _of(given: Suited[tp.Outer]) -> ProgramFacts:
        """The program of a block in which every iteration makes the same."""

        def built(block: ir.BlockGraph) -> tp.TileProgram:
            own = replace(given, block=block)
            return build(own, sizes=tp.Unsized(given.pieces), noted=False)

        block = given.block
        covered = tuple(dict.fromkeys(s.bound for s in block.settled))
        plain = built(replace(block, settled=()))
        if not covered:
            return ProgramFacts(plain)
        rest = ProgramFacts(built(unmasked(block, given.types)))
        return ProgramFacts(plain, rest, covered)

    @cached_property
    def products(self) -> tuple[tp.Product, ...]:
        """Its products, in order."""
        return self.plain.products

    @cached_property
    def sides(self) -> tuple[tp.Order, ...]:
        """The dims of each side of the products that the matrix unit takes."""
        sides = self.plain.program.sides
        return tuple(side for own in sides for side in own)

    @cached_property
    def copies_words(self) -> bool:
        """Whether a loop may read rows that begin at single words of four bytes."""
        loads = self.plain.tables.loads
        if not loads.runs.size or self.products:
            return False
        innermost = self.plain.tables.extents[:, 0][loads.runs[:, 0]]
        odd = (innermost % 2 == 1) & (innermost > 1)
        return bool((odd & (loads.itemsize == 4)[:, 0] & loads.looped[:, 0]).any())

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
        """Names of dims over which some matrix product is batched, one by one.

        Also of those along which windows lie that are not beside each other.
        """
        return _one_by_one(self.given)

    @cached_property
    def takes_words(self) -> bool:
        """Whether it loads words of 32 bits beside products."""
        return bool(self.products) and loads_words(self.block, self.given.types)

    @cached_property
    def warp_dims(self) -> frozenset[str]:
        """Those of which each warp has a part, as of rows of pairs of bytes."""
        return _all_batch_dims(self.given) - self.batch_dims


LONG_ROW = 64
"""Windows along a row so long are enough for one side of a product."""


def _one_by_one(given: Suited[tp.Outer]) -> frozenset[str]:
    """Dims of batches, and those of windows that products read but for their rows."""
    made = {n.result: n for n in given.block.applies}
    found = set(_batch_dims(given))
    for node in made.values():
        if node.op.kind is not Kind.CONTRACTION:
            continue
        for gather in (made.get(value) for value in node.values):
            if gather is None or gather.op.kind is not Kind.GATHER:
                continue
            index = given.types[gather.values[1]].names
            rows = [name for name in index if name not in node.over]
            if len(index) == 1 or not rows:
                continue
            long = (given.around.extents.get(rows[-1]) or 0) >= LONG_ROW
            kept = {*node.over, *rows[-1 if long else -2 :]}
            found.update(n for n in given.types[gather.result].names if n not in kept)
    return frozenset(found)


def _batch_dims(given: Suited[tp.Outer]) -> frozenset[str]:
    """Not the loop's, where a block takes bytes in pairs: warps have parts of it."""
    loop, found = given.block.loop, _all_batch_dims(given)
    return found - {loop.dim} if loop is not None and _takes_pairs(given) else found


def _takes_pairs(given: Suited[tp.Outer]) -> bool:
    """Whether a block has joined what it made of pairs, or sums over parts of words."""
    block, types = given.block, given.types
    loads = {load.result for load in block.loads}
    lanes = {n.values[0] for n in block.applies if n.op is table.SLICE} & loads
    words = bool(lanes) and loads_words(block, types)
    joined = any(n.op is table.CONCAT for n in block.applies)
    return joined or words or any(types[v].dtype.itemsize == 1 for v in lanes)


def _all_batch_dims(given: Suited[tp.Outer]) -> frozenset[str]:
    found: set[str] = set()
    for node in given.block.nodes:
        if isinstance(node, ir.Apply) and node.op.kind is Kind.CONTRACTION:
            sides = [set(given.types[v].names) for v in node.values]
            shared = sides[0].intersection(*sides[1:])
            # What the matrix unit has nothing of is multiplied element by element.
            if all(side - shared for side in sides):
                found |= shared - set(node.over)
    return frozenset(found)


@dataclass(frozen=True)
class Tried:
    """What the sizes that a search tries have in common.

    Attributes:
        small: Split dims whose tiles are less than the matrix unit takes.
        split: Dims that all structures split which are priced together.
    """

    small: frozenset[str]
    split: frozenset[str]


def facts_of(
    block: ir.BlockGraph, outer: Types, extents: Extents, tried: Tried | None = None
) -> BlockFacts:
    """The facts of `block`, given types and extents of the kernel level.

    Args:
        block: The block.
        outer: Types of the kernel-level tensors that it loads.
        extents: Extents of the kernel-level dims.
        tried: The facts are for all these sizes, whatever the block's own are.

    Raises:
        SearchError: An extent is unknown.
        UnsupportedError: No tile program can express the block.
    """
    look()
    if tried is not None and tried.split:
        # All that splits decide is which batches of products are one by one.
        alone = replace(tried, split=frozenset[str]())
        together = _facts(_Question(block, outer, extents, alone))
        tried = replace(tried, split=together.batch_dims & tried.split)
        if not tried.split:
            return together.at(block)
    return _facts(_Question(block, outer, extents, tried)).at(block)


def facts_as_searched(
    block: ir.BlockGraph, outer: Types, extents: Extents
) -> BlockFacts:
    """The facts of a sized block, where it can be those of its structure.

    A search has them since it chose the sizes, so the block costs what it found, and no
    program is built anew.  How the kernel is launched changes no statement that costs
    anything, so the programs are those of a launch behind nothing.

    Args:
        block: The block.
        outer: Types of the kernel-level tensors that it loads.
        extents: Extents of the kernel-level dims.

    Raises:
        SearchError: An extent is unknown.
        UnsupportedError: No tile program can express the block.
    """
    alone = replace(block, schedule=replace(block.schedule, pdl=False))
    if block.schedule.descriptors or len(block.axes) < len(block.grid):
        return facts_of(alone, outer, extents)
    split = frozenset(s.dim for s in block.splits)
    short = frozenset(s.dim for s in block.splits if s.tile < tp.SMALLEST_DOT)
    facts = facts_of(alone, outer, extents, Tried(frozenset(), split))
    small = frozenset[str]()
    tiles = {s.dim: s.tile for s in block.grid}
    rows = facts.rows_of_vectors(tiles, block.loop and block.loop.tile)
    if rows and not all(rows):
        small = facts.columns_of_vectors & short
        if any(rows) or not small:
            return facts_of(alone, outer, extents)
        facts = facts_of(alone, outer, extents, Tried(small, split))
    long = {s.dim for s in block.splits if s.tile > 1}
    alike = long.isdisjoint(facts.batch_dims) and short.isdisjoint(
        facts.matrix_dims - facts.joint_dims - facts.batch_dims - small
    )
    return facts if alike else facts_of(alone, outer, extents)


class _Question:
    """What facts depend on."""

    def __init__(
        self, block: ir.BlockGraph, outer: Types, extents: Extents, tried: Tried | None
    ) -> None:
        self.block, self.outer, self.extents = block, outer, extents
        self.tried = tried
        schedule = block.schedule
        types = tuple(outer.get(s) for s in block.sources)
        # How many parts it makes of a dim itself follows from its tiles.
        parts = {ir.partial_dim(n) for n in extents}
        parts.difference_update(n for t in types if t is not None for n in t.names)
        self._key = (
            block.nodes,
            tuple((s.dim, s.beside) for s in block.grid),
            block.loop and block.loop.dim,
            block.bounds,
            block.settled,
            tried or _distinct_tiles(block),
            replace(schedule, num_warps=1, num_stages=1, swap_operands=False),
            types,
            tuple(i for i in extents.items() if i[0] not in parts),
        )
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._key == other._key


def _distinct_tiles(block: ir.BlockGraph) -> tuple[int, ...]:
    """Tiles as far as statements depend on them.

    What the matrix unit takes is enough for rows for vectors and for axes of tiles; but
    boxes of descriptors have more limits, and dims that are split together depend on
    each other.
    """
    tiles = tuple(s.tile for s in block.splits)
    if block.schedule.descriptors or len(block.axes) < len(block.grid):
        return tiles
    return tuple(min(t, tp.SMALLEST_DOT) for t in tiles)


@lru_cache(maxsize=256)
def _facts(question: _Question) -> BlockFacts:
    """The facts, kept for a while: a structure is priced again and again."""
    block, outer = question.block, question.outer
    types = {n: t for n, t in outer.items() if n in block.sources}
    known = known_extents(question.extents)
    names = {n for t in types.values() for n in t.names}
    missing = sorted(n for n in names if n not in known)
    if missing:
        raise SearchError(
            f"the extents of {', '.join(missing)} are not known; sizes can be chosen "
            "only for concrete shapes, so state them"
        )
    around = tp.Outer(
        types,
        known,
        most={},
        packed=frozenset(types),
        placed={},
        inputs=frozenset(),
        pointers=False,
    )
    tried = question.tried
    given = eager(block if tried is None else _at_typical_sizes(block, tried), around)
    if tried is not None:
        given = _batched(given, tried)
    extents = known_extents(given.around.extents)
    small = frozenset[str]() if tried is None else tried.small
    return BlockFacts(block, extents, small, _vectors(block, around), given)


def _vectors(
    block: ir.BlockGraph, around: tp.Outer
) -> tuple[tuple[tp.Order, tp.Order], ...]:
    found = vector_products(Typed(block, around))
    return tuple((v.over, v.columns) for v in found)


def _at_typical_sizes(block: ir.BlockGraph, tried: Tried) -> ir.BlockGraph:
    """A block at tiles whose programs serve all that a search tries."""

    def sized(split: ir.Split) -> ir.Split:
        return replace(split, tile=2 if split.dim in tried.small else tp.SMALLEST_DOT)

    loop = None if block.loop is None else sized(block.loop)
    return replace(block, grid=tuple(map(sized, block.grid)), loop=loop)


def _batched(given: Suited[tp.Outer], tried: Tried) -> Suited[tp.Outer]:
    """A block with the batch dims of products one by one, as a search splits them."""
    block, batch = given.block, _one_by_one(given) & tried.split
    if not batch:
        return given

    def sized(split: ir.Split) -> ir.Split:
        return replace(split, tile=1) if split.dim in batch else split

    loop = None if block.loop is None else sized(block.loop)
    block = replace(block, grid=tuple(map(sized, block.grid)), loop=loop)
    around = given.around
    pieces = tp.Pieces(block, given.types, around.extents, around.most)
    return replace(given, block=block, pieces=pieces)
