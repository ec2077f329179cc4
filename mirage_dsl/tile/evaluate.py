"""The meaning of a tile program, over any array domain.

It computes what the block graph computes, in the program's own order: statement after
statement, iteration after iteration, for all blocks at once.  Lanes are real: a tile
has as many along each axis as on a GPU, and what no load, mask or box fills holds
arbitrary numbers (`Domain.pad`), so that a mask that is missing shows in the result.
So do operands whose axes are not in the order that a statement reads.

What is no arithmetic (waits, announcements, buffers, which instruction multiplies) has
no meaning here: `check` looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar, assert_never

import numpy as np

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Axis, Dim, scalar
from mirage_dsl.core.work import look
from mirage_dsl.ir.evaluate import (
    LOOP,
    Domain,
    Inside,
    Label,
    Named,
    NamedArrays,
    grid_label,
    index_values,
)
from mirage_dsl.ir.graph import Index, Operand, dims_of
from mirage_dsl.ir.maps import known_extents, parts
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator
from mirage_dsl.tile import program as tp

V = TypeVar("V")


def evaluate_tiles(
    program: tp.TileProgram,
    outer: Mapping[str, Named[V]],
    extents: Mapping[str, int],
    domain: Domain[V],
) -> dict[str, Named[V]]:
    """The kernel-level tensors that a tile program stores.

    Args:
        program: The tile program; its formulas are taken at these extents.
        outer: Kernel-level values by name.
        extents: Extents of all kernel-level dims.
        domain: The arithmetic.

    Raises:
        CheckError: The program is not well formed in a way that shows here.
    """
    sized = replace(program, extents={**program.extents, **extents})
    return _Evaluation(sized, domain).run(outer)


class _Evaluation(Generic[V]):
    """One evaluation of a tile program whose extents are known."""

    def __init__(self, program: tp.TileProgram, domain: Domain[V]) -> None:
        self.program = program
        self.domain = domain
        self.arrays = NamedArrays(domain)
        self.extents = known_extents(program.extents)
        self.pieces: tp.Pieces = tp.pieces_of(program)
        self.values: dict[str, Named[V]] = {}
        self.orders: dict[str, tp.Order] = {}
        self.stored: dict[str, list[tuple[tp.Store, Named[V]]]] = {}
        self.loaded: dict[tuple[str, tuple[Axis, ...], Dim | None], Named[V]] = {}
        self.outer: Mapping[str, Named[V]] = {}
        self.iteration: int | None = None

    def run(self, outer: Mapping[str, Named[V]]) -> dict[str, Named[V]]:
        """The tensors that the program stores."""
        self.outer = outer
        self._region(self.program.body)
        return {name: self._whole(parts_) for name, parts_ in self.stored.items()}

    def _region(self, body: Sequence[tp.Statement]) -> None:
        for statement in body:
            look()
            if isinstance(statement, tp.Loop):
                if self.program.loop is None:
                    raise CheckError("a loop, but the program splits no dim for it")
                for number in range(tp.iterations(self.program)):
                    self.iteration = number
                    before = dict(self.values)
                    self._region(statement.body)
                    self._leave_out(before, number, statement.part)
                self.iteration = None
            else:
                self._statement(statement)

    def _leave_out(
        self, before: Mapping[str, Named[V]], number: int, part: tp.Part
    ) -> None:
        """What the loop carries is as before in blocks that do not visit an iteration.

        Args:
            before: All values before the iteration.
            number: Of the iteration.
            part: Of the iterations: which of them the loop runs.
        """
        kept = self._runs(number, part)
        started = [s for s in self.program.statements if isinstance(s, tp.Start)]
        for statement in started if kept else ():
            name, axes = statement.result, statement.tile.axes
            one = Named(self.domain.take(self.domain.index(2), 0, 1, 2), ("one",))
            count = self._masked(self._without(one, "one"), kept, 0.0)
            none = Named(self.domain.constant(scalar(0), {}), ())
            left_out = self.arrays.elementwise(table.EQUAL, [count, none])
            both = [left_out, before[name], self.values[name]]
            self._assign(name, axes, self._elementwise(table.WHERE, both, axes))

    def _runs(self, number: int, part: tp.Part) -> list[Inside]:
        """Which blocks run an iteration in a part, if not all do."""
        program = self.program
        bounds = (*program.bounds, *(program.whole if part else ()))
        if not bounds:
            return []
        dims = [*dict.fromkeys(b.dim for b in bounds)]
        if program.loop is not None and program.within_grid:
            dims += [program.loop.dim] * (program.loop.dim not in dims)
        labels = tuple(map(grid_label, dims))
        counts = [self._blocks(label) for label in labels]
        blocks = dict(zip(dims, np.ix_(*map(np.arange, counts)), strict=True))
        found = tp.runs(program, part, blocks, number)
        return [Inside(labels, np.broadcast_to(found, counts))]

    def _statement(self, statement: tp.Statement) -> None:
        match statement:
            case tp.Load():
                self._load(statement)
            case tp.Positions():
                self._positions(statement)
            case tp.Store():
                named = self.get(statement.operand)
                cast = self.domain.cast(named.value, statement.dtype)
                found = self._inside(statement, replace(named, value=cast))
                self.stored.setdefault(statement.result, []).append((statement, found))
            case tp.Start():
                self._put(statement, self._filled(statement))
            case tp.Rescale():
                self._change(statement.target, table.MUL, statement.scale)
            case tp.Update():
                assert statement.op.join is not None
                self._change(statement.target, statement.op.join, statement.operand)
            case tp.Largest():
                self._largest(statement)
            case tp.Product():
                self._product(statement)
            case tp.Ask() | tp.Wait() | tp.Announce() | tp.Loop():
                pass
            case _:
                self._made(statement)

    def _made(self, statement: _Made) -> None:
        """Statements that make one value of others."""
        if isinstance(statement, tp.Convert | tp.Mask) and not self._holds(
            statement.when
        ):
            return
        match statement:
            case tp.Compute():
                found = self._compute(statement)
            case tp.Cast():
                named = self.get(statement.operand)
                dtype = statement.tile.dtype
                found = replace(named, value=self.domain.cast(named.value, dtype))
            case tp.Finite() | tp.Merge():
                # Maxima that serve as shifts are finite in every domain.
                found = self.get(statement.operand)
            case tp.Convert() | tp.Lane() | tp.Join():
                found = self._formed(statement)
            case tp.Mask():
                where = [d for d, when in statement.where if self._holds(when)]
                masks = [self._lanes_inside(d) for d in where]
                found = self._masked(self.get(statement.operand), masks, statement.fill)
            case tp.Pick():
                other = self._holds(statement.when)
                found = self.get(statement.other if other else statement.operand)
            case tp.Reduce():
                found = self._reduce(statement)
            case tp.Scan():
                named = self.get(statement.operand)
                found = self.arrays.scan(
                    statement.op, named, _names((statement.along,))
                )
            case _:
                assert_never(statement)
        self._put(statement, found)

    # -- Values --------------------------------------------------------------------

    def get(self, name: str) -> Named[V]:
        """A value that was made."""
        if name not in self.values:
            raise CheckError(f"{name} is read before it is made")
        return self.values[name]

    def _put(
        self,
        statement: tp.Start | tp.Load | tp.Positions | tp.Product | tp.Largest | _Made,
        named: Named[V],
    ) -> None:
        self._assign(statement.result, statement.tile.axes, named)

    def _assign(self, name: str, axes: tp.Order, named: Named[V]) -> None:
        """Bind a value, whose axes must lie as its type says."""
        found = tuple(n for n in named.labels if isinstance(n, str))
        if found != _names(axes):
            raise CheckError(
                f"{name} has the axes [{', '.join(found)}], its type says "
                f"[{', '.join(_names(axes))}]; turn it first"
            )
        self.values[name], self.orders[name] = named, axes

    def _lanes(self, named: Named[V], axes: Sequence[Dim]) -> Named[V]:
        """The value with its lanes in an order, behind what tells blocks apart."""
        blocks = [n for n in named.labels if not isinstance(n, str)]
        own = [d.name for d in axes if d.name in named.labels]
        if len(blocks) + len(own) != len(named.labels):
            raise CheckError(
                f"a value with the axes {', '.join(map(str, named.labels))} cannot be "
                f"arranged as [{', '.join(_names(axes))}]"
            )
        return self.arrays.arranged(named, [*blocks, *own])

    def _operand(self, operand: Operand, axes: tp.Order, of: str) -> Named[V]:
        """A constant, or a value whose axes are some of `axes` in their order."""
        if not isinstance(operand, str):
            return Named(self.domain.constant(operand, self.extents), ())
        named = self.get(operand)
        own = [n for n in named.labels if isinstance(n, str)]
        if own != [n for n in _names(axes) if n in own]:
            raise CheckError(
                f"{of} reads {operand} with the axes [{', '.join(own)}], expected "
                f"some of [{', '.join(_names(axes))}] in this order"
            )
        return named

    def _holds(self, condition: tp.Number) -> bool:
        return bool(tp.value(condition, self.pieces))

    def _elementwise(
        self, op: Operator, operands: Sequence[Named[V]], axes: tp.Order
    ) -> Named[V]:
        return self._lanes(self.arrays.elementwise(op, operands), axes)

    def _compute(self, statement: tp.Compute) -> Named[V]:
        axes, of = statement.tile.axes, statement.result
        operands = [self._operand(o, axes, of) for o in statement.operands]
        if statement.inner is not None:
            operands = [self._elementwise(statement.inner, operands, axes)]
        return self._elementwise(statement.op, operands, axes)

    def _formed(self, statement: tp.Convert | tp.Lane | tp.Join) -> Named[V]:
        """A tile in another order of axes, what it is at a place of one, or two."""
        if isinstance(statement, tp.Join):
            return self._joined(statement)
        named = self.get(statement.operand)
        if isinstance(statement, tp.Convert):
            return self._lanes(named, statement.tile.axes)
        name = statement.along.name
        if name not in named.labels or statement.at >= self.arrays.extent(named, name):
            raise CheckError(
                f"{statement.result} is element {statement.at} along {name}, which "
                f"{statement.operand} lacks"
            )
        at = named.axis(name)
        one = self.domain.take(named.value, at, statement.at, statement.at + 1)
        return self._without(replace(named, value=one), name)

    def _joined(self, statement: tp.Join) -> Named[V]:
        """Two tiles as the two lanes along a dim."""
        along, lanes = statement.along, (statement.operand, statement.other)
        first, second = map(self.get, lanes)
        there = along.name in {*first.labels, *second.labels}
        if there or self.pieces[along].width != len(lanes):
            raise CheckError(f"{statement.result} joins two lanes along {along}")
        both = self._together(first, second)
        labels = tuple(along.name if n == LOOP else n for n in both.labels)
        return self._lanes(replace(both, labels=labels), statement.tile.axes)

    def _reduce(self, statement: tp.Reduce) -> Named[V]:
        named, over = self.get(statement.operand), _names(statement.over)
        missing = [n for n in over if n not in named.labels]
        if missing:
            raise CheckError(
                f"{statement.result} is reduced over {', '.join(missing)}, which "
                f"{statement.operand} lacks"
            )
        return self.arrays.reduce(statement.op, named, over)

    def _product(self, statement: tp.Product) -> None:
        operands: list[Named[V]] = []
        sides = (statement.left, statement.right)
        for name, axes in zip(sides, statement.factors, strict=True):
            wanted = _names(axes)
            named = self.get(name)
            own = tuple(n for n in named.labels if isinstance(n, str))
            fits = own == wanted if statement.is_matrix else set(own) == set(wanted)
            if not fits:
                raise CheckError(
                    f"{statement.result} reads {name} with the axes "
                    f"[{', '.join(own)}], expected [{', '.join(wanted)}]"
                )
            operands.append(named)
        over = _names(statement.over)
        left, right = operands
        found = self.arrays.contract(table.MATMUL, left, right, over)
        found = self._lanes(found, statement.tile.axes)
        if statement.into is None:
            self._put(statement, found)
        else:
            self._add(statement.into, table.ADD, found)

    # -- What a loop carries -------------------------------------------------------

    def _filled(self, statement: tp.Start) -> Named[V]:
        """A tile with the same number in every lane."""
        zero = self.domain.constant(scalar(0), self.extents)
        if statement.tile.dtype.is_integer:
            zero = self.domain.cast(zero, statement.tile.dtype)
        named = Named(self.domain.reshape(zero, ()), ())
        for dim in reversed(statement.tile.axes):
            named = self.arrays.repeated(named, dim.name, self.pieces[dim].width)
        keep = np.zeros(self.domain.shape(named.value), bool)
        return replace(
            named, value=self.domain.mask(named.value, keep, statement.value)
        )

    def _change(self, target: str, op: Operator, operand: str) -> None:
        """Assign a carried tile anew: an operation on it and a value."""
        self.get(target)
        self._add(target, op, self._operand(operand, self.orders[target], target))

    def _add(self, target: str, op: Operator, operand: Named[V]) -> None:
        carried = self.get(target)
        axes = self.orders[target]
        found = self._elementwise(op, [carried, operand], axes)
        self._assign(target, axes, found)

    def _largest(self, statement: tp.Largest) -> None:
        axes = statement.tile.axes
        new = self._operand(statement.operand, axes, statement.result)
        last = self._operand(statement.state, axes, statement.result)
        both = self._together(last, new)
        at = both.axis(LOOP)
        largest = self.domain.running_max(both.value, at)
        now = self._iteration_of(replace(both, value=largest), 1)
        now = self._lanes(now, axes)
        if statement.scale is not None:
            shrunk = self._elementwise(table.SUB, [last, now], axes)
            scale = self._elementwise(table.EXP, [shrunk], axes)
            self._assign(statement.scale, axes, scale)
        self._assign(statement.state, axes, now)
        self._put(statement, now)

    def _together(self, first: Named[V], second: Named[V]) -> Named[V]:
        """Two values along a new axis, as if of two iterations."""
        labels = tuple(dict.fromkeys((*first.labels, *second.labels)))
        sizes = {n: self.arrays.extent(v, n) for v in (first, second) for n in v.labels}
        full: list[V] = []
        for named in (first, second):
            for label in labels:
                if label not in named.labels:
                    named = self.arrays.repeated(named, label, sizes[label])
            arranged = self.arrays.arranged(named, labels)
            full.append(self.arrays.repeated(arranged, LOOP, 1).value)
        return Named(self.domain.concat(full, 0), (LOOP, *labels))

    def _iteration_of(self, named: Named[V], number: int) -> Named[V]:
        """One position of the axis of iterations, which vanishes."""
        at = named.axis(LOOP)
        one = self.domain.take(named.value, at, number, number + 1)
        return self._without(replace(named, value=one), LOOP)

    def _without(self, named: Named[V], label: Label) -> Named[V]:
        """The value without an axis of extent 1."""
        shape = list(self.domain.shape(named.value))
        del shape[named.axis(label)]
        labels = tuple(n for n in named.labels if n != label)
        return Named(self.domain.reshape(named.value, tuple(shape)), labels)

    # -- Lanes and pieces ----------------------------------------------------------

    def _lanes_inside(self, dim: Dim, *, tensor: bool = False) -> Inside:
        """Which lanes of a piece are inside of it, for each block.

        With `tensor`, which are inside of the tensor.  After the loop a lane of a
        looped piece is inside if it is in the first iteration.
        """
        piece, extent = self.pieces[dim], self.extents[dim.name]
        labels: list[Label] = [dim.name]
        block = np.zeros((), np.int64)
        if piece.grid_tile is not None:
            labels.insert(0, grid_label(dim.name))
            block = np.arange(parts(extent, piece.grid_tile))[:, None]
        at, inside = piece.positions(block, self.iteration or 0)
        return Inside(tuple(labels), at < extent if tensor else inside)

    def _masked(
        self, named: Named[V], masks: Sequence[Inside], fill: float
    ) -> Named[V]:
        """`fill` in the lanes that one of the masks leaves out."""
        for mask in masks:
            for label in mask.labels:
                if label not in named.labels:
                    if isinstance(label, str):
                        raise CheckError(
                            f"a value is masked along {label}, it has none"
                        )
                    count = mask.keep.shape[mask.labels.index(label)]
                    named = self.arrays.repeated(named, label, count)
        partial = [m for m in masks if not m.keep.all()]
        return self.arrays.under(partial, named, fill)

    # -- Loads ---------------------------------------------------------------------

    def _load(self, statement: tp.Load) -> None:
        if not self._holds(statement.when):
            if statement.instead is None:
                raise CheckError(f"{statement.result} is not made, and nothing instead")
            axes = self.orders.get(statement.instead, statement.tile.axes)
            self._assign(statement.result, axes, self.get(statement.instead))
            return
        named = self._in_iteration(statement, self._cut(statement))
        if statement.along is not None:
            named = self._picked(statement, named, statement.along)
        axes = statement.tile.axes
        box = statement.via == "descriptor"
        dims = axes if box else statement.guarded
        masks = [self._lanes_inside(d, tensor=box) for d in dims]
        self._put(statement, self._lanes(self._masked(named, masks, 0.0), axes))

    def _picked(
        self, statement: tp.Load, source: Named[V], along: tp.Along
    ) -> Named[V]:
        """The elements at positions that are data; lanes that are not read count 0."""
        index = self.get(along.index)
        guarded = [d for d in statement.guarded if d.name in index.labels]
        masks = [self._lanes_inside(d) for d in guarded]
        index = self._masked(index, masks, 0.0)
        if along.under is None:
            return self.arrays.gather(table.GATHER, source, index, along.dim.name)
        found = self.arrays.gather(
            table.GATHER, source, self._read_under(along, index), along.dim.name
        )
        return self._read_under(along, found)

    def _read_under(self, along: tp.Along, named: Named[V]) -> Named[V]:
        """A value with 0 in the lanes that are not read."""
        assert along.under is not None
        zero = Named(self.domain.constant(scalar(0), self.extents), ())
        sides = [named, zero] if along.holds else [zero, named]
        return self.arrays.elementwise(table.WHERE, [self.get(along.under), *sides])

    def _positions(self, statement: tp.Positions) -> None:
        kind = Index("", tuple(d.whole for d in statement.at)).type
        found = index_values(self.arrays, kind, self.extents)
        named = self._in_iteration(statement, self._pieces("", found, (statement.at,)))
        self._put(statement, self._lanes(named, statement.tile.axes))

    def _in_iteration(
        self, statement: tp.Load | tp.Positions, named: Named[V]
    ) -> Named[V]:
        """What of a cut tensor the iteration sees."""
        if LOOP not in named.labels:
            return named
        if self.iteration is None:
            raise CheckError(
                f"{statement.result} loads the part of an iteration outside of the loop"
            )
        return self._iteration_of(named, self.iteration)

    def _cut(self, statement: tp.Load) -> Named[V]:
        """The tensor as blocks and iterations see it, with arbitrary padding."""
        if statement.source not in self.outer:
            raise CheckError(f"load {statement.source}: no such tensor")
        along = None if statement.along is None else statement.along.dim
        return self._pieces(
            statement.source, self.outer[statement.source], statement.at, along
        )

    def _pieces(
        self,
        source: str,
        whole: Named[V],
        at: tuple[Axis, ...],
        along: Dim | None = None,
    ) -> Named[V]:
        """A tensor cut as `at` says, but where positions are data `along` a dim."""
        key = (source, at, along)
        if key not in self.loaded:
            named = replace(whole, masks={})
            dims = dims_of(at)
            for dim in dims:
                if dim.name not in named.labels and self.extents[dim.name] == 1:
                    named = self.arrays.repeated(named, dim.name, 1)
            if {d.name for d in dims} != set(named.labels):
                raise CheckError(
                    f"load {source}: it has the dims "
                    f"{', '.join(map(str, named.labels))}, found "
                    f"{', '.join(map(str, dims))}"
                )
            for dim in dims:
                named = named if dim == along else self._piece(named, dim)
            self.loaded[key] = named
        return self.loaded[key]

    def _piece(self, named: Named[V], dim: Dim) -> Named[V]:
        """One dim cut into parts of the grid and iterations, and padded to lanes."""
        piece, name = self.pieces[dim], dim.name
        if piece.grid_tile is not None:
            named = self.arrays.split_axis(
                named, name, grid_label(name), piece.grid_tile
            )
        if piece.loop_tile is not None:
            named = self.arrays.split_axis(named, name, LOOP, piece.loop_tile)
        missing = piece.width - self.arrays.extent(named, name)
        if missing:
            padded = self.domain.pad(named.value, named.axis(name), missing)
            named = replace(named, value=padded)
        return self._without(named, name) if dim in self.program.units else named

    # -- Stores --------------------------------------------------------------------

    def _inside(self, statement: tp.Store, named: Named[V]) -> Named[V]:
        """The lanes that a store writes: elements of each piece, for every block."""
        labels: list[Label] = []
        for dim in dims_of(statement.at):
            base = tp.partial_of(dim, self.program.grid)
            if base is None:
                named = self._elements(named, dim)
                labels.append(dim.name)
            if dim.grid:
                label = grid_label(dim.name if base is None else base)
                if label not in named.labels:
                    named = self.arrays.repeated(named, label, self._blocks(label))
                labels.append(label)
        for label in [n for n in named.labels if n not in labels]:
            if not isinstance(label, str) or self.extents.get(label) != 1:
                raise CheckError(
                    f"store {statement.result}: {statement.operand} has the axis "
                    f"{label}, which the store lacks"
                )
            first = self.domain.take(named.value, named.axis(label), 0, 1)
            named = self._without(replace(named, value=first), label)
        return named

    def _elements(self, named: Named[V], dim: Dim) -> Named[V]:
        """The lanes of a piece that hold its elements."""
        piece = self.pieces[dim]
        if dim.name not in named.labels:
            return self.arrays.repeated(named, dim.name, piece.size)
        if self.arrays.extent(named, dim.name) == piece.size:
            return named
        at = named.axis(dim.name)
        taken = self.domain.take(named.value, at, 0, piece.size)
        return replace(named, value=taken)

    def _blocks(self, label: Label) -> int:
        name = label[1]
        tile = next(s.tile for s in self.program.grid if s.dim == name)
        return parts(self.extents[name], min(tile, self.extents[name]))

    def _whole(self, found: Sequence[tuple[tp.Store, Named[V]]]) -> Named[V]:
        """A tensor, of what was stored in each iteration."""
        statement, named = found[-1]
        dims = dims_of(statement.at)
        looped = next((d for d in dims if d.loop), None)
        if looped is not None:
            pieces = [self.arrays.arranged(n, named.labels).value for _, n in found]
            at = named.axis(looped.name)
            named = replace(named, value=self.domain.concat(pieces, at))
            span = self.pieces[looped].grid_tile or self.extents[looped.name]
            if self.arrays.extent(named, looped.name) > span:
                cut = self.domain.take(named.value, at, 0, span)
                named = replace(named, value=cut)
        for dim in dims:
            base = tp.partial_of(dim, self.program.grid)
            if base is not None:
                label = grid_label(base)
                labels = tuple(dim.name if n == label else n for n in named.labels)
                named = replace(named, labels=labels)
            elif dim.grid:
                extent = self.extents[dim.name]
                named = self.arrays.join_axes(
                    named, grid_label(dim.name), dim.name, extent
                )
        return self.arrays.arranged(named, [d.name for d in dims])


_Made = (tp.Compute | tp.Cast | tp.Finite | tp.Convert | tp.Lane | tp.Join) | (
    tp.Mask | tp.Merge | tp.Pick | tp.Reduce | tp.Scan
)


def _names(axes: Sequence[Dim]) -> tuple[str, ...]:
    return tuple(d.name for d in axes)
