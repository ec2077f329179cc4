"""From a μGraph to the tile programs of its kernels: block graphs and their schedules.

Every decision of the lowering is taken here, or by what is asked from here: orders of
axes and orientations of products, what is computed in one step and which loads are
made twice (`layout`), masks, descriptors, what is waited for.  With
`sizes.Pieces` they are taken at known sizes, with `sizes.Unsized` those that are
numbers stay formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Literal

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    MemorySpace,
    Scalar,
    TensorType,
    axis_text,
    dtype_named,
    f32,
    i32,
)
from mirage_dsl.ir.analysis.settled import unmasked
from mirage_dsl.ir.analysis.waiting import Announced, after_wait, asked_ahead, launches
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockNode,
    KernelGraph,
    LoopBound,
    Operand,
    RunningMax,
)
from mirage_dsl.ir.graph import Load as BlockLoad
from mirage_dsl.ir.graph import Store as BlockStore
from mirage_dsl.ir.maps import looped_dims, loops_inside_grid
from mirage_dsl.ir.text.printer import block_node_text
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import MAX, SLICE
from mirage_dsl.tile.layout import Layout, ProductAxes, Stage, Wiring
from mirage_dsl.tile.positions import narrow, picked
from mirage_dsl.tile.program import (
    AGAIN,
    MERGED,
    Along,
    Announce,
    Ask,
    Cast,
    Compute,
    Convert,
    Fills,
    Finite,
    Lane,
    Largest,
    Load,
    Loop,
    Making,
    Mask,
    Merge,
    Note,
    Notes,
    Part,
    Pick,
    Positions,
    Product,
    Reduce,
    Rescale,
    Scan,
    Start,
    Statement,
    Store,
    Tile,
    TileProgram,
    Update,
    Wait,
    held_after,
    held_by,
    loop_parts,
    makes,
    neutral,
    renamed,
)
from mirage_dsl.tile.sizes import (
    Formula,
    Number,
    Order,
    Outer,
    Sizes,
    Unsized,
    all_of,
    any_of,
    either,
    fold,
    greatest,
    opposite,
    outer_of,
)
from mirage_dsl.tile.suited import MOST_APART, Suited, suited

INFINITY = float("inf")


def memory_order(load: BlockLoad | Load | Ask, kind: TensorType) -> Order:
    """The dims of a loaded tensor from the slowest to the fastest."""
    axes = load.axes if isinstance(load, BlockLoad) else load.at
    return tuple(d for axis in kind.order for d in axes[axis])


def programs(
    graph: KernelGraph, *, sized: bool = True, most: Mapping[str, int] | None = None
) -> tuple[TileProgram, ...]:
    """The tile programs of a μGraph's graph-defined kernels, in launch order.

    Args:
        graph: The μGraph.
        sized: At the sizes of its dims and schedules; else numbers that depend on
            sizes stay formulas.
        most: The largest extents of symbolic dims: blocks can hold these whole.

    Raises:
        UnsupportedError: A tile program cannot express something of it.
    """
    outer, found = outer_of(graph, most=most), list[TileProgram]()
    for launch in launches(graph):
        given = suited(launch.block, outer)
        program = build(
            given,
            name=f"{graph.name}_kernel{len(found)}",
            sizes=None if sized else Unsized(given.pieces),
            announced=launch.announced,
            made=launch.made,
        )
        found.append(program)
    return tuple(found)


def build(
    given: Suited[Any],
    *,
    name: str = "kernel",
    sizes: Sizes | None = None,
    announced: Announced = "",
    made: AbstractSet[str] | None = None,
    noted: bool = True,
) -> TileProgram:
    """The tile program of a block.

    Args:
        given: The block, as `suited` returned it.
        name: Of the kernel.
        sizes: Of its pieces, if not those that it was made suited for.
        announced: When the kernel behind it may start; never before this one's wait.
        made: What kernels of the μGraph made before; None in the first kernel.
        noted: Whether statements say which lines they come from.

    Raises:
        UnsupportedError: A tile program cannot express something of it.
    """
    if given.block.schedule.pdl and not announced:
        announced = "loop"
    builder = _Builder(given, sizes or given.pieces, made, noted=noted)
    return builder.build(name, announced)


def _apart(loop: Loop) -> Loop:
    """A loop whose values have names of their own, beside those of another part."""
    made = {n for s in loop.body for n in makes(s)}
    carried = {s.target for s in loop.body if isinstance(s, Rescale | Update)}
    carried |= {s.state for s in loop.body if isinstance(s, Largest)}
    carried |= {s.into for s in loop.body if isinstance(s, Product) and s.into}
    names: dict[str, str] = {}
    for name in made - carried:
        base, slash, rest = name.partition("/")
        names[name] = f"{base}.{loop.part}{slash}{rest}"
    return replace(loop, body=tuple(renamed(s, names) for s in loop.body))


def _held_in_all(held: Sequence[Fills]) -> Fills:
    """What lanes outside hold, whichever of several loops was the last."""
    first, *others = held
    return {
        dim: (fill, all_of([holds, *(o[dim][1] for o in others)]))
        for dim, (fill, holds) in first.items()
        if all(dim in o and o[dim][0] == fill for o in others)
    }


class _Builder:
    def __init__(
        self,
        given: Suited[Any],
        sizes: Sizes,
        made: AbstractSet[str] | None,
        *,
        noted: bool,
    ) -> None:
        block, types = given.block, given.types
        self._block, self._types = block, types
        self._outer: Outer = given.around
        self._sizes, self._made, self._is_noted = sizes, made, noted
        self._late = None if made is None else after_wait(block, made)
        self._layout = Layout(block, types, sizes)
        self._wiring = Wiring(block, self._layout)
        around = self._outer
        self._narrow = narrow(block, types, around.types, around.extents)
        self._picked = picked(block, types, around.types, around.extents)
        self._loads = {n.result: n for n in block.loads}
        self._body: list[Statement] = []
        self._notes: list[Note] = []
        self._in_loop = False
        # Of values of the block: the tile that has each, and the copy for registers.
        self._values: dict[str, str] = {}
        self._again: dict[str, str] = {}
        # What the loop carries for an accumulator or a running maximum, and by what
        # sums relative to the latter shrink.
        self._carried: dict[str, str] = {}
        self._scales: dict[str, str] = {}
        # Of tiles.
        self._tiles: dict[str, Tile] = {}
        self._fills: dict[str, Fills] = {}
        self._formed: list[dict[tuple[object, ...], str]] = [{}]

    # -- The order of statements ---------------------------------------------------

    def build(self, name: str, announced: Announced) -> TileProgram:
        block, waits = self._block, self._block.schedule.pdl
        self._ask()
        if waits and self._late is None:
            self._add(Wait())
            waits = False
        if announced == "start" and not waits:
            self._add(Announce())
        self._stage("before")
        if block.loop is not None:
            self._loop(block.loop.dim)
        if waits:
            self._add(Wait())
        if announced == "loop" or (announced and waits):
            self._add(Announce())
        self._stage("before", late=True)
        self._stage("after")
        for store in block.stores:
            if not self._wiring.is_joined(store.operand):
                self._note(store)
                self._store(store, store.axes, store.operand)
        return self._program(name)

    def _program(self, name: str) -> TileProgram:
        block, outer = self._block, self._outer
        kept = {*block.sources, *block.results}
        return TileProgram(
            name,
            block.grid,
            block.loop,
            loops_inside_grid(block),
            {
                n: t
                for n, t in outer.types.items()
                if n in kept and t.space is not MemorySpace.NOWHERE
            },
            dict(outer.extents),
            block.schedule,
            self._sizes.dims,
            self._sizes.units,
            tuple(
                (p.rows, p.columns, p.over)
                for p in self._layout.products.values()
                if p.is_matrix
            ),
            self._layout.warps,
            tuple(self._body),
            self._noted(),
            block.bounds,
            self._whole(),
        )

    def _whole(self) -> tuple[LoopBound, ...]:
        """What covers the iterations in which all masks are settled that can be."""
        made = self._wiring.stages
        settled = (s.bound for s in self._block.settled if s.value in made)
        return tuple(dict.fromkeys(settled))

    def _ask(self) -> None:
        """Ask for the first tiles of what the loop reads, if it has to wait."""
        asked = () if self._made is None else asked_ahead(self._block, self._made)
        for load in asked:
            if not self._outer.has_layout(load.source):
                continue
            box = memory_order(load, self._outer.types[load.source])
            inside = opposite(any_of(self._sizes.loose(d) for d in box))
            if box and inside is not False:
                tiles = self._block.schedule.prefetch
                self._add(Ask(load.source, load.axes, tiles, inside))

    def _stage(self, stage: Stage, *, late: bool = False) -> None:
        """The statements of a stage; before the loop the late ones, or the others."""
        for node in self._block.nodes:
            if (
                isinstance(node, BlockStore)
                or self._wiring.stages[node.result] != stage
            ):
                continue
            if stage == "before" and late is not self._is_late(node):
                continue
            if isinstance(node, Accumulate):
                if self._block.loop is None:
                    self._note(node)
                    self._pass_through(node)
            else:
                self._node(node)

    def _is_late(self, node: BlockNode) -> bool:
        """Whether a node needs what the kernel ahead makes, and can wait for it."""
        return self._late is not None and node.result in self._late

    def _loop(self, dim: str) -> None:
        if len({d.grid for d in looped_dims(self._block)}) > 1:
            raise UnsupportedError(
                f"loop over {dim}: some loads loop over the block's part of it "
                f"and others over all of it; use {dim}/grid/loop in all, or none"
            )
        self._start()
        before, notes = self._body, self._noted()
        parts = loop_parts(self._whole())
        masked = parts[-1] if parts[-1] != "whole" else parts[0]
        loops: list[Statement] = []
        held: list[dict[str, Fills]] = []
        tiles, fills = self._tiles, self._fills
        for part in parts:
            self._tiles, self._fills = dict(tiles), dict(fills)
            loop = self._part(dim, part)
            loops.append(loop if part == masked else _apart(loop))
            held.append({v: self._fills[v] for v in self._carried.values()})
        for name in held[0]:
            self._fills[name] = _held_in_all([h[name] for h in held])
        loops[0] = replace(loops[0], notes=notes)
        self._body = [*before, *loops]

    def _part(self, dim: str, part: Part) -> Loop:
        """The loop over some iterations."""
        block, wiring = self._block, self._wiring
        if part == "whole":
            self._block = unmasked(block, self._types)
            self._wiring = Wiring(self._block, self._layout)
        self._body, self._in_loop = [], True
        self._formed.append({})
        for node in self._block.nodes:
            if isinstance(node, Accumulate):
                self._accumulate(node)
            elif isinstance(node, BlockStore):
                continue
            elif self._wiring.stages[node.result] == "body":
                self._node(node)
        self._formed.pop()
        loop = Loop(dim, tuple(self._body), part, closing=self._noted())
        self._block, self._wiring, self._in_loop = block, wiring, False
        return loop

    def _node(self, node: BlockLoad | Apply | RunningMax) -> None:
        if isinstance(node, Apply) and self._wiring.is_fused(node):
            return
        self._note(node)
        match node:
            case BlockLoad() if node.result in self._block.gathered:
                pass
            case BlockLoad():
                self._load(node, node)
            case Apply() if node.op.kind is Kind.GATHER:
                self._load(node, self._loads[node.values[0]])
            case Apply():
                self._values[node.result] = self._apply(node)
            case RunningMax():
                self._running_max(node)

    # -- Statements and notes ------------------------------------------------------

    def _note(self, node: BlockNode) -> None:
        """The next statement comes from a node."""
        if not self._is_noted:
            return
        if isinstance(node, BlockStore):
            kind = f"[{', '.join(map(axis_text, node.axes))}]"
        else:
            for absorbed in (self._wiring.shifted, self._wiring.scaled):
                if node.result in absorbed:
                    self._note(absorbed[node.result])
            kind = f": {self._types[node.result]}"
        location = node.location if isinstance(node, Apply) else None
        self._notes.append(Note(block_node_text(node, kind), location))

    def _noted(self) -> Notes:
        """What was noted since the last statement."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def _add(self, statement: Statement) -> None:
        if self._notes:
            statement = replace(statement, notes=self._noted())
        self._body.append(statement)

    def _make(
        self,
        statement: Making,
        fills: Fills | None = None,
    ) -> str:
        """Add a statement that makes a value; the value's name."""
        self._add(statement)
        self._tiles[statement.result] = statement.tile
        self._fills[statement.result] = fills or {}
        return statement.result

    def _once(
        self, key: tuple[object, ...], wanted: str, make: Callable[[str], str]
    ) -> str:
        """A change of form, made here or before in a scope that is visible here."""
        for scope in self._formed:
            if key in scope:
                return scope[key]
        made = self._formed[-1][key] = make(self._fresh(wanted))
        return made

    def _fresh(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._tiles:
            count += 1
            name = f"{wanted}{count}"
        return name

    def _in_registers(self, value: str) -> str:
        """The tile of a value that registers read."""
        return self._again.get(value) or self._values[value]

    # -- Changes of form -----------------------------------------------------------

    def _masked(
        self, value: str, dims: Sequence[Dim], fill: float, when: Number = True
    ) -> str:
        """The tile with `fill` in the lanes outside of `dims`."""
        tile, fills = self._tiles[value], self._fills[value]
        where: list[tuple[Dim, Number]] = []
        for dim in tile.axes:
            if dim not in dims:
                continue
            lacks = self._sizes.outside(dim, in_loop=self._in_loop)
            known, holds = fills.get(dim, (None, False))
            if known == fill:
                lacks = all_of([lacks, opposite(holds)])
            if lacks is not False:
                where.append((dim, lacks))
        if not where:
            return value

        def make(name: str) -> str:
            held = {d: f for d, f in fills.items() if f[0] == fill}
            held.update((d, (fill, True)) for d, _ in where)
            return self._make(Mask(name, tile, value, fill, tuple(where), when), held)

        return self._once(
            ("mask", value, fill, tuple(where), when), f"{value}/mask", make
        )

    def _turned(self, value: str, order: Sequence[Dim], when: Number = True) -> str:
        """The tile with its axes in the order that they have in `order`."""
        tile = self._tiles[value]
        axes = tuple(d for d in order if d in tile.axes)
        assert len(axes) == len(tile.axes), (value, tile, order)
        if axes == tile.axes:
            return value
        return self._converted(value, Tile(tile.dtype, axes), "turn", when)

    def _in_f32(self, value: str) -> str:
        """The tile in f32, as all arithmetic is but that of integers."""
        tile = self._tiles[value]
        if tile.dtype is f32 or tile.dtype.is_integer:
            return value
        return self._converted(value, Tile(f32, tile.axes), "f32", when=True)

    def _converted(self, value: str, tile: Tile, how: str, when: Number) -> str:
        def make(name: str) -> str:
            return self._make(Convert(name, tile, value, when), self._fills[value])

        return self._once((how, value, tile, when), f"{value}/{how}", make)

    # -- Loads and stores ----------------------------------------------------------

    def _load(self, node: BlockLoad | Apply, of: BlockLoad) -> None:
        """The tile that products read, and the one that other operators read.

        Args:
            node: The load, or the gather that picks its elements.
            of: The load.
        """
        if self._outer.types[of.source].space is MemorySpace.NOWHERE:
            order = self._layout.order_of_load(node.result)
            dtype = self._computed(node.result)
            positions = Positions(node.result, Tile(dtype, order), of.axes[0])
            self._values[node.result] = self._make(positions)
            return
        in_body = self._wiring.stages[node.result] == "body"
        twice = self._wiring.is_loaded_twice(node) if in_body else False
        first, second = self._buffers(node) if in_body else (0, 0)
        order = self._layout.orders[node.result]
        read = self._read(node, of, order)
        name = self._copy(replace(read, buffers=first))
        self._values[node.result] = self._turned(name, order)
        if twice is not False:
            order = self._layout.register_orders[node.result]
            again = replace(
                self._read(node, of, order),
                result=f"{node.result}{AGAIN}",
                buffers=second,
                when=twice,
                instead=self._values[node.result],
            )
            self._again[node.result] = self._turned(self._copy(again), order)

    def _read(self, node: BlockLoad | Apply, of: BlockLoad, order: Order) -> Load:
        """How a load is made: its tile, what is read, by what, and what is guarded."""
        kind = self._outer.types[of.source]
        box = self._box(node, kind) if isinstance(node, BlockLoad) else None
        if box is not None:
            tile = Tile(kind.dtype, self._sizes.axes(box))
            return Load(node.result, tile, of.source, of.axes, "descriptor")
        guarded = tuple(d for d in order if self._sizes.loose(d) is not False)
        tile, along = Tile(kind.dtype, order), None
        if isinstance(node, Apply):
            along = self._along(node, order)
        return Load(node.result, tile, of.source, of.axes, guarded=guarded, along=along)

    def _along(self, node: Apply, order: Order) -> Along:
        """Where a gather reads, and which lanes."""
        how, dim = self._picked[node.result], Dim(str(node.attr("dim")))
        if how.known == "no":
            # Where a mask is settled, another value may stand in the index's place.
            how = replace(how, index=node.values[1])
        index = self._turned(self._in_registers(how.index), order)
        under = how.under and self._turned(self._in_registers(how.under), order)
        return Along(dim, index, how.known, under, how.holds)

    def _box(self, node: BlockLoad, kind: TensorType) -> Order | None:
        """The dims of a descriptor in the order of memory, or None to use pointers."""
        wanted = self._block.schedule.descriptors and not self._outer.pointers
        if not wanted or self._wiring.stages[node.result] != "body":
            return None
        # Triton takes truth values for single bits, of which it has no descriptors.
        if not self._outer.has_layout(node.source) or not kind.dtype.is_float:
            return None
        box = memory_order(node, kind)
        return box if self._sizes.fits_box(box, kind.dtype.itemsize) else None

    def _copy(self, load: Load) -> str:
        if load.via == "pointer":
            return self._make(load, dict.fromkeys(load.guarded, (0.0, True)))
        held = {d: (0.0, self._sizes.ends(d)) for d in load.tile.axes}
        return self._make(load, {d: f for d, f in held.items() if f[1] is not False})

    def _buffers(self, node: BlockLoad | Apply) -> tuple[Number, Number]:
        """Stages of shared memory of each copy of a load of the loop.

        A tile that the matrix unit reads by itself is in use for one iteration longer,
        unless the product is over within the iteration, since others read it too.
        """
        users = self._wiring.users[node.result]
        products = [
            u for u in users if isinstance(u, Apply) and u.op.kind is Kind.CONTRACTION
        ]
        alone = [self._layout.is_asynchronous(p.result) for p in products]
        shared = bool(products) and len(products) < len(users)
        awaited = not any(map(self._wiring.is_fused, products))
        within = all_of([shared and awaited, *alone])
        longer = all_of([any_of(alone), opposite(within)])
        fewer = greatest(fold("sub", self._sizes.stages, 1), 1)
        return either(longer, self._sizes.stages, fewer), fewer

    def _store(self, node: BlockStore, axes: tuple[Axis, ...], value: str) -> None:
        tile = self._in_registers(value)
        self._add(Store(node.result, tile, axes, node.dtype))

    # -- Operators -----------------------------------------------------------------

    def _apply(self, node: Apply) -> str:
        """The tile of an operator's result."""
        if node.op.kind is Kind.CONTRACTION:
            return self._product(node, None)
        if node.result in self._wiring.shifted:
            return self._shifted_exp(node, self._wiring.shifted[node.result])
        if node.result in self._wiring.scaled:
            return self._scaled_exp(node, self._wiring.scaled[node.result])
        operands = self._operands(node)
        if node.op.kind is Kind.ELEMENTWISE:
            return self._elementwise(node, operands)
        (operand,) = operands
        assert isinstance(operand, str)
        if node.op is SLICE and self._is_lane(node, operand):
            return self._lane(node, operand)
        if node.op.kind is Kind.REDUCTION:
            return self._reduction(node, operand)
        if node.op.kind is Kind.SCAN and len(node.along) == 1:
            return self._scan(node, operand)
        if "dtype" in node.op.attributes:
            return self._cast(node, operand)
        raise UnsupportedError(
            f"{node.result} = {node.op.name}: inside a block Triton cannot "
            f"rearrange registers; put it at the kernel level",
            node.location,
        )

    def _operands(self, node: Apply) -> list[Operand]:
        """The tiles that an operator reads, and its constants."""
        found = [
            self._in_registers(o) if isinstance(o, str) else o for o in node.operands
        ]
        shift = self._wiring.shift_in(node)
        if shift is not None:
            at, row = shift
            value, neutral = found[at], row.neutral
            assert isinstance(value, str)
            assert neutral is not None
            found[at] = self._finite(value, neutral)
        return found

    def _finite(self, row: str, neutral: float) -> str:
        """A shift that is finite where all lanes are outside too."""

        def make(name: str) -> str:
            fills = {
                d: (0.0 if f == neutral else f, holds)
                for d, (f, holds) in self._fills[row].items()
            }
            return self._make(Finite(name, self._tiles[row], row, neutral), fills)

        return self._once(("finite", row), f"{row}/finite", make)

    def _forms(self, operands: Sequence[Operand], order: Order) -> tuple[Operand, ...]:
        """The operands in f32, with axes in this order."""
        return tuple(
            self._turned(self._in_f32(o), order) if isinstance(o, str) else o
            for o in operands
        )

    def _elementwise(self, node: Apply, operands: Sequence[Operand]) -> str:
        order = self._layout.orders[node.result]
        forms = self._forms(operands, order)
        rounded = node.result in self._wiring.rounded
        tile = Tile(self._computed(node.result), order)
        compute = Compute(node.result, tile, node.op, forms, rounded=rounded)
        return self._make(compute, self._computed_fills(node.op, operands, order))

    def _computed(self, value: str) -> DType:
        """The format in which a value is computed: f32, or an integer's own.

        Floats of 8 bits are what an operator gives that makes them.
        """
        if value in self._narrow:
            return i32
        dtype = self._types[value].dtype
        return dtype if dtype.is_integer or dtype.only_stores else f32

    def _computed_fills(
        self, op: Operator, operands: Sequence[Operand], order: Order
    ) -> Fills:
        """What the result holds in lanes outside, where that follows."""
        constants = [
            self._constant(o) if isinstance(o, Scalar) else None for o in operands
        ]
        fills: dict[Dim, tuple[float, Number]] = {}
        dtypes = (self._tiles[o].dtype for o in operands if isinstance(o, str))
        dtype = next((d for d in dtypes if d.is_integer), f32)
        for dim in order:
            found = [
                self._fills[o].get(dim)
                if isinstance(o, str)
                else None
                if constant is None
                else (constant, True)
                for o, constant in zip(operands, constants, strict=True)
            ]
            known = [f for f in found if f is not None]
            if len(known) < len(found):
                continue
            result = held_by(op, [f for f, _ in known], dtype)
            if result == result:
                fills[dim] = result, all_of(holds for _, holds in known)
        return fills

    def _constant(self, constant: Scalar) -> float | None:
        """A constant's number; None where a symbolic extent is part of it."""
        known: dict[str, int] = {}
        for name, _ in constant.extents:
            extent = self._outer.extents.get(name)
            if extent is None:
                return None
            known[name] = extent
        return constant.at(known)

    def _shifted_exp(self, node: Apply, difference: Apply) -> str:
        """exp(whole - row) in one step.

        Below a shift, lanes outside are taken as -inf, as the shift has taken them:
        their exponentials are 0, and no sum has to mask them again.
        """
        whole, row = self._operands(difference)
        assert isinstance(whole, str)
        assert isinstance(row, str)
        order = self._layout.orders[node.result]
        row, whole = self._in_f32(row), self._in_f32(whole)
        shift = self._wiring.is_shift(difference.values[1])
        own = self._tiles[row].axes
        along = [d for d in self._tiles[whole].axes if shift and d not in own]
        whole = self._masked(whole, along, -INFINITY)
        below = self._fills[whole]
        fills = {
            d: (0.0, below[d][1])
            for d in along
            if d in below and below[d][0] == -INFINITY
        }
        forms = (self._turned(whole, order), self._turned(row, order))
        tile = Tile(f32, order)
        return self._make(
            Compute(node.result, tile, node.op, forms, difference.op), fills
        )

    def _scaled_exp(self, node: Apply, product: Apply) -> str:
        """exp(whole * constant) in one step."""
        operands = sorted(self._operands(product), key=lambda o: isinstance(o, Scalar))
        order = self._layout.orders[node.result]
        forms = self._forms(operands, order)
        return self._make(
            Compute(node.result, Tile(f32, order), node.op, forms, product.op)
        )

    def _cast(self, node: Apply, operand: str) -> str:
        dtype = dtype_named(str(node.attr("dtype")))
        assert dtype is not None
        tile = self._tiles[operand]
        if tile.dtype is dtype or self._wiring.is_needless(node):
            return operand
        cast = Cast(node.result, Tile(dtype, tile.axes), operand)
        return self._make(cast, self._fills[operand])

    def _is_lane(self, node: Apply, operand: str) -> bool:
        """Whether a slice is one element of a short axis that registers hold whole."""
        start, stop = node.attr("start"), node.attr("stop")
        assert isinstance(start, int)
        assert isinstance(stop, int)
        along = Dim(str(node.attr("dim")))
        extent = self._outer.extents.get(along.name)
        short = extent is not None and extent <= MOST_APART
        return short and stop == start + 1 and along in self._tiles[operand].axes

    def _lane(self, node: Apply, operand: str) -> str:
        """One element of a dim of few."""
        along, at = Dim(str(node.attr("dim"))), node.attr("start")
        assert isinstance(at, int)
        own = self._tiles[operand]
        tile = Tile(own.dtype, tuple(d for d in own.axes if d != along))
        fills = {d: f for d, f in self._fills[operand].items() if d != along}
        lane = self._make(Lane(node.result, tile, operand, along, at), fills)
        return self._turned(lane, self._layout.orders[node.result])

    def _reduction(self, node: Apply, operand: str) -> str:
        operand = self._in_f32(operand)
        axes = self._tiles[operand].axes
        over = tuple(d for d in axes if d.name in node.over)
        operand = self._masked(operand, over, neutral(node.op))
        rest = tuple(d for d in axes if d not in over)
        fills = held_after(node.op, self._fills[operand], rest)
        tile = Tile(self._tiles[operand].dtype, rest)
        return self._make(Reduce(node.result, tile, node.op, operand, over), fills)

    def _scan(self, node: Apply, operand: str) -> str:
        operand = self._in_f32(operand)
        tile = self._tiles[operand]
        along = next((d for d in tile.axes if d.name in node.along), None)
        # A dim of one element is no axis of tiles.
        if along is None:
            return operand
        return self._make(Scan(node.result, tile, node.op, operand, along))

    # -- Products ------------------------------------------------------------------

    def _product(self, node: Apply, into: str | None) -> str:
        """A contraction, added to a carried tile in place or a value of its own."""
        product = self._layout.products[node.result]
        values = node.values if len(node.values) == 2 else node.values * 2
        sides = values[product.left], values[1 - product.left]
        if product.is_matrix:
            left = self._matrix(node, sides[0], product, 0)
            right = self._matrix(node, sides[1], product, 1)
        else:
            order = (*product.result, *product.over)
            masked = [
                self._masked(self._in_f32(self._in_registers(v)), product.over, 0.0)
                for v in sides
            ]
            left, right = (self._turned(v, order) for v in masked)
        precision = "storage"
        if product.is_matrix and self._tiles[left].dtype is f32:
            precision = "tf32" if self._block.schedule.allow_tf32 else "ieee"
        found = Product(
            node.result,
            Tile(f32, product.result),
            left,
            right,
            product.batch,
            product.rows,
            product.columns,
            product.over,
            self._layout.is_asynchronous(node.result),
            precision,
            into,
        )
        if into is None:
            return self._make(found)
        self._add(found)
        return into

    def _matrix(
        self, node: Apply, value: str, product: ProductAxes, side: Literal[0, 1]
    ) -> str:
        """One side of a matrix product: 0 has the rows, 1 the columns."""
        order, first = product.operands[side], self._values[value]
        again = self._again.get(value, first)
        reads_again = again != first and self._wiring.reads_again(node, value)
        if isinstance(reads_again, Formula):
            one = self._side(first, product, order, opposite(reads_again))
            other = self._side(again, product, order, reads_again)
            tile, name = self._tiles[one], self._fresh(f"{value}/pick")
            found = self._make(Pick(name, tile, one, other, reads_again))
        else:
            first = again if reads_again else first
            found = self._side(first, product, order)
        if product.is_plain:
            return found
        groups = (product.rows, product.over)
        if side == 1:
            groups = (product.over, product.columns)
        if product.batch:
            groups = (product.batch, *groups)
        tile, name = self._tiles[found], self._fresh(f"{first}{MERGED}")
        return self._make(Merge(name, tile, found, groups))

    def _side(
        self, value: str, product: ProductAxes, order: Order, when: Number = True
    ) -> str:
        masked = self._masked(value, product.over, 0.0, when)
        return self._turned(masked, order, when)

    # -- What a loop carries -------------------------------------------------------

    def _start(self) -> None:
        """Before the loop: nothing accumulated yet."""
        for node in self._block.nodes:
            match node:
                case Accumulate() if self._takes_last(node):
                    # Without the guard: where all is masked it stays -inf.
                    self._carried[node.result] = self._carried[node.operand]
                case Accumulate() if node.reduction is not None:
                    self._carry(node.result, node.result, neutral(node.reduction))
                case RunningMax():
                    self._carry(node.result, f"{node.result}/last", -INFINITY)
                case _:
                    pass

    def _carry(self, value: str, name: str, start: float) -> None:
        tile = Tile(self._computed(value), self._layout.orders[value])
        self._carried[value] = self._make(Start(name, tile, start))

    def _takes_last(self, node: Accumulate) -> bool:
        """Whether it is a running maximum's value in the last iteration."""
        return node.reduction is MAX and node.operand in self._carried

    def _accumulate(self, node: Accumulate) -> None:
        """Take in the value of one iteration; what lies outside counts as neutral."""
        reduction = node.reduction
        if reduction is None:
            self._store_joined(node)
            return
        fused = self._wiring.fused_into(node)
        for product in fused:
            self._note(product)
        self._note(node)
        target = self._values[node.result] = self._carried[node.result]
        axes = self._tiles[target].axes
        if node.rescale is not None:
            scale = self._turned(self._scales[node.rescale], axes)
            self._add(Rescale(target, scale))
        for product in fused:
            self._product(product, target)
        if fused or self._takes_last(node):
            return
        fill = neutral(reduction)
        operand = self._in_f32(self._in_registers(node.operand))
        operand = self._masked(operand, [d for d in axes if d.loop], fill)
        held = self._fills[operand]
        operand = self._turned(operand, axes)
        self._add(Update(target, operand, reduction))
        if node.rescale is None:
            self._fills[target] = {d: f for d, f in held.items() if f[0] == fill}

    def _store_joined(self, node: Accumulate) -> None:
        """A value joined over the loop is stored piece by piece, in the loop."""
        for user in self._wiring.users[node.result]:
            if not isinstance(user, BlockStore):
                raise UnsupportedError(
                    f"{node.result} is joined over the loop and then used by "
                    f"{user.result}: only a store of it can be emitted; compute it "
                    f"in the loop, or in a kernel of its own"
                )
            self._note(node)
            self._note(user)
            pieces = {d.name: d for d in self._types[node.operand].dims}
            axes = tuple(tuple(pieces.get(d.name, d) for d in a) for a in user.axes)
            self._store(user, axes, node.operand)

    def _pass_through(self, node: Accumulate) -> None:
        """Without a loop there is one iteration: its value is the result."""
        tile = self._in_registers(node.operand)
        joined = node.reduction is None
        self._values[node.result] = tile if joined else self._in_f32(tile)

    def _running_max(self, node: RunningMax) -> None:
        axes = self._layout.orders[node.result]
        operand = self._in_f32(self._in_registers(node.operand))
        looped = [d for d in axes if d.loop]
        operand = self._turned(self._masked(operand, looped, -INFINITY), axes)
        tile, state = Tile(f32, axes), self._carried[node.result]
        scale = f"{node.result}/scale" if self._serves_rescaling(node) else None
        largest = Largest(node.result, tile, operand, state, scale)
        self._values[node.result] = self._make(largest)
        if scale is not None:
            self._scales[node.result] = scale
            self._tiles[scale], self._fills[scale] = tile, {}

    def _serves_rescaling(self, node: RunningMax) -> bool:
        return any(
            isinstance(n, Accumulate) and n.rescale == node.result
            for n in self._block.nodes
        )
