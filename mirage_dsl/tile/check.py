"""The checker of tile programs: a list of rules, one function each.

A rule yields what is wrong: the statement, what was found, what was expected, what to
do.  Conditions on sizes are taken as they stand: a rule holds at every size at which a
program may be used, or at the one size that it was made for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Axis, Dim, DType, axis_text, f32, i32, i64
from mirage_dsl.ir.check import Diagnostic
from mirage_dsl.ir.graph import dims_of
from mirage_dsl.ops.definition import Term, Truth
from mirage_dsl.ops.table import OPERATORS, SUB
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.text import statement_text


def check(
    program: tp.TileProgram, made: AbstractSet[str] | None = None
) -> list[Diagnostic]:
    """What is wrong with a tile program; nothing if it is well formed.

    Args:
        program: Any tile program.
        made: Tensors that it has to wait for; None if these are all, as for a first
            kernel whose inputs may be what the kernel ahead of it makes.
    """
    view = _View(program, made)
    found: list[Diagnostic] = []
    for rules in (NAMES, RULES):
        for rule in rules:
            for statement, message, hint in rule(view):
                found.append(view.problem(rule.__name__, statement, message, hint))
        if found:
            # What follows would speak of the same mistakes.
            break
    return found


def check_or_raise(
    program: tp.TileProgram, made: AbstractSet[str] | None = None
) -> None:
    """Nothing, if a tile program is well formed.

    Raises:
        CheckError: It is not; with the first thing that is wrong.
    """
    for first in check(program, made):
        raise CheckError(f"{program.name}: {first}", first.location)


Problem = tuple[tp.Statement | None, str, str]
"""A statement (None: the program), what was found and expected, and what to do."""


@dataclass
class _View:
    """A program, and what several rules ask of it."""

    program: tp.TileProgram
    made: AbstractSet[str] | None

    @property
    def tiles(self) -> Mapping[str, tp.Tile]:
        """The types of its values."""
        return self.program.tiles

    @cached_property
    def statements(self) -> tuple[tuple[tp.Statement, bool], ...]:
        """All statements in order, each with whether it is in the loop."""
        return tuple(tp.walk(self.program.body))

    @cached_property
    def carried(self) -> Mapping[str, tp.Start]:
        """What the loop carries."""
        return {s.result: s for s, _ in self.statements if isinstance(s, tp.Start)}

    @cached_property
    def pieces(self) -> tp.Pieces | None:
        """The pieces at the sizes that the program was made for; None for any sizes."""
        sized = not isinstance(self.program.warps, tp.Formula)
        return tp.pieces_of(self.program) if sized else None

    def outside(self, dim: Dim, *, in_loop: bool) -> tp.Number:
        """Whether lanes of an axis can lie outside of its dim."""
        if self.pieces is None:
            return tp.loose(dim)
        return self.pieces.outside(dim, in_loop=in_loop)

    def ends(self, dim: Dim) -> tp.Number:
        """Whether lanes outside of a piece lie outside of the tensor."""
        return tp.ends(dim) if self.pieces is None else self.pieces.ends(dim)

    def problem(
        self, rule: str, statement: tp.Statement | None, message: str, hint: str
    ) -> Diagnostic:
        """What a rule says of a statement."""
        name, location = self.program.name, None
        if statement is not None:
            text = statement_text(statement)
            message = f"`{text}`: {message}"
            name = (*tp.makes(statement), name)[0]
            location = next((n.location for n in statement.notes if n.location), None)
        return Diagnostic(rule, message, name, hint, location=location)


# -- Names and places ------------------------------------------------------------------


def made_before_read(view: _View) -> Iterator[Problem]:
    """A value is made before a statement reads it."""
    made: set[str] = set()
    for statement, _ in view.statements:
        for name in tp.reads(statement):
            if name not in made:
                known = "is made later" if name in view.tiles else "is made nowhere"
                yield statement, f"reads {name}, which {known}", "make it before"
        made.update(tp.makes(statement))


def made_once(view: _View) -> Iterator[Problem]:
    """A value is made once; in the loop what it carries is assigned again."""
    made: set[str] = set()
    for statement, in_loop in view.statements:
        for name in tp.makes(statement):
            again = name in made
            changes = isinstance(statement, tp.Rescale | tp.Update | tp.Largest) or (
                isinstance(statement, tp.Product) and statement.into == name
            )
            if again and name not in view.carried:
                yield statement, f"{name} is made twice", "give one another name"
            elif again and not (in_loop and changes):
                what = f"assigns {name}, which the loop carries, outside of its body"
                yield statement, what, "change it in the loop"
            made.add(name)


def iterations_stay_inside(view: _View) -> Iterator[Problem]:
    """What an iteration makes is read in it; behind the loop only what is carried."""
    inside = view.program.inside - view.carried.keys()
    made: set[str] = set()
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Loop):
            made = set()
        for name in tp.reads(statement):
            if name in inside and not (in_loop and name in made):
                what = f"reads {name} of an iteration outside of the loop"
                yield statement, what, "carry it"
        made.update(tp.makes(statement))


def one_loop(view: _View) -> Iterator[Problem]:
    """The loop is over the dim that is split; what it carries starts before.

    There is one, or one for each part of the iterations, in their order.
    """
    loop, found = view.program.loop, 0
    parts = tp.loop_parts(view.program.whole)
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Loop):
            found += 1
            if in_loop or found > len(parts):
                yield statement, "a second loop, expected one", "make one loop of them"
            elif statement.part != parts[found - 1]:
                expected = parts[found - 1] or "all iterations"
                what = f"runs {statement.part or 'all iterations'}, expected {expected}"
                yield statement, what, "run each part once, in order"
            if loop is None or loop.dim != statement.dim:
                over = "none" if loop is None else f"one over {loop.dim}"
                yield statement, f"expected {over}", "loop over what the program splits"
        if isinstance(statement, tp.Start) and (in_loop or found):
            yield statement, "starts behind the begin of the loop", "start it before"
    if loop is not None and not found:
        yield None, f"it splits {loop.dim} over iterations, found no loop", "add one"
    elif loop is not None and found < len(parts):
        yield None, f"found no loop for {parts[found]}", "run all iterations"


def pieces_are_there(view: _View) -> Iterator[Problem]:
    """Pieces are of dims that are split so; sides of products and sums have some."""
    program = view.program
    known, grid = set(program.pieces), {split.dim for split in program.grid}
    looped = None if program.loop is None else program.loop.dim
    for dim in program.pieces:
        for by, split in (("grid", dim.name in grid), ("loop", dim.name == looped)):
            if getattr(dim, by) and not split:
                what = f"{dim} is a piece, found no {by} that splits {dim.name}"
                yield None, what, "split it, or list another piece"
        if not (dim.grid or dim.loop) and dim.name not in program.extents:
            what = f"{dim} is a piece, found no extent of {dim.name}"
            yield None, what, "state it behind `where`"
    for side in (side for sides in program.sides for side in sides):
        if not side or not known.issuperset(side):
            found = ", ".join(map(str, side)) or "nothing"
            what = f"a side of a product has {found}, expected pieces"
            yield None, what, "name pieces of the program"
    for statement, _ in view.statements:
        if isinstance(statement, tp.Reduce) and not known.issuperset(statement.over):
            found = ", ".join(map(str, statement.over))
            yield statement, f"is over {found}, expected pieces", "name axes it has"


def few_are_columns(view: _View) -> Iterator[Problem]:
    """The matrix unit takes few columns, but not few rows or summands."""
    for rows, _, over in view.program.sides:
        for dim in view.program.few.intersection((*rows, *over)):
            what = f"{dim} is one of few, found it in rows or sums of a product"
            yield None, what, "name pieces that are columns alone"


def pieces_in_their_place(view: _View) -> Iterator[Problem]:
    """Looped pieces are read and stored in the loop; axes are pieces of the program."""
    known = set(view.program.pieces)
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Load | tp.Store):
            looped = any(d.loop for d in dims_of(statement.at))
            if looped and not in_loop:
                what = "takes the part of an iteration outside of the loop"
                yield statement, what, "put it in the loop"
            if isinstance(statement, tp.Store) and in_loop and not looped:
                what = "every iteration stores the same place"
                yield statement, what, "store it behind the loop"
    for name, tile in view.tiles.items():
        for dim in tile.axes:
            if dim not in known or dim in view.program.units:
                maker = next(s for s, _ in view.statements if name in tp.makes(s))
                yield maker, f"{dim} is no axis of this program's tiles", "list it"


def tensors_as_declared(view: _View) -> Iterator[Problem]:
    """Loads and stores take tensors of the header, with their formats and axes."""
    stored: set[str] = set()
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Load | tp.Store | tp.Ask):
            continue
        name = statement.result if isinstance(statement, tp.Store) else statement.source
        kind = view.program.tensors.get(name)
        if kind is None:
            yield statement, f"{name} is no tensor of the program", "declare it"
            continue
        if _whole(statement.at) != _whole(kind.axes):
            axes = ", ".join(map(axis_text, kind.axes))
            yield statement, f"{name} has the axes [{axes}]", "name a piece of each"
        if isinstance(statement, tp.Store):
            dtype = statement.dtype
            if name in stored:
                yield statement, f"{name} is stored twice", "store it once"
            stored.add(name)
        else:
            dtype = (
                statement.tile.dtype if isinstance(statement, tp.Load) else kind.dtype
            )
        if dtype != kind.dtype:
            yield statement, f"the format is {dtype}, that of {name} {kind.dtype}", ""


def _whole(axes: Sequence[Axis]) -> list[list[str]]:
    return [[d.name for d in axis] for axis in axes]


# -- Axes and formats ------------------------------------------------------------------


def orders_fit(view: _View) -> Iterator[Problem]:
    """Operands lie as a statement reads them: to turn one is a statement of its own."""
    for statement, _ in view.statements:
        for name, expected, exact in _expected_orders(view, statement):
            own = view.tiles[name].axes
            part = tuple(d for d in expected if d in own)
            if own != part or (exact and own != expected):
                what = f"{name} lies as {_axes(own)}, expected {_axes(expected)}"
                yield statement, what, "turn it by `convert`"
        result = _result_axes(view, statement)
        if result is not None:
            own = view.tiles[tp.makes(statement)[0]].axes
            if own != result:
                what = f"its type lies as {_axes(own)}, it makes {_axes(result)}"
                yield statement, what, "say the type that follows"


_Expected = tuple[str, tp.Order, bool]
"""An operand, the order of axes that is read, and whether it must have all of them."""


def _expected_orders(view: _View, statement: tp.Statement) -> Iterator[_Expected]:
    match statement:
        case tp.Compute():
            yield from ((v, statement.tile.axes, False) for v in tp.reads(statement))
        case tp.Load() if statement.along is not None:
            yield from ((v, statement.tile.axes, False) for v in statement.along.reads)
        case tp.Rescale():
            yield statement.scale, view.tiles[statement.target].axes, False
        case tp.Update():
            yield statement.operand, view.tiles[statement.target].axes, False
        case tp.Largest():
            yield statement.operand, statement.tile.axes, True
            yield statement.state, statement.tile.axes, True
        case tp.Product():
            yield from _product_orders(statement)
        case tp.Cast() | tp.Finite() | tp.Mask() | tp.Merge() | tp.Scan():
            yield statement.operand, statement.tile.axes, True
        case tp.Pick():
            yield statement.operand, statement.tile.axes, True
            yield statement.other, statement.tile.axes, True
        case tp.Join():
            rest = tuple(d for d in statement.tile.axes if d != statement.along)
            yield statement.operand, rest, True
            yield statement.other, rest, True
        case _:
            pass


def _product_orders(product: tp.Product) -> Iterator[_Expected]:
    left, right = product.factors
    if not product.is_matrix:
        # What is summed is last in both.
        right = product.batch + product.columns + product.over
    yield product.left, left, True
    yield product.right, right, True
    if product.into is not None:
        yield product.into, product.tile.axes, True


def _result_axes(view: _View, statement: tp.Statement) -> tp.Order | None:
    """The axes of a result where they follow from the operands."""
    match statement:
        case tp.Product() if statement.into is None:
            return statement.made
        case tp.Reduce():
            own = view.tiles[statement.operand].axes
            return tuple(d for d in own if d not in statement.over)
        case tp.Compute():
            made = {d for v in tp.reads(statement) for d in view.tiles[v].axes}
            return tuple(d for d in statement.tile.axes if d in made)
        case tp.Convert():
            own = set(view.tiles[statement.operand].axes)
            return tuple(d for d in statement.tile.axes if d in own) if own else ()
        case tp.Merge():
            return tuple(d for side in statement.sides for d in side)
        case tp.Lane():
            own = view.tiles[statement.operand].axes
            return tuple(d for d in own if d != statement.along)
        case tp.Join():
            return (*view.tiles[statement.operand].axes, statement.along)
        case tp.Load():
            return _read_axes(view, statement.tile.axes, _read_pieces(view, statement))
        case tp.Positions():
            return _read_axes(view, statement.tile.axes, statement.at)
        case _:
            return None


def _read_pieces(view: _View, load: tp.Load) -> tp.Order:
    """The pieces that a load reads: besides where positions are data, those of these.

    The axes of these lie in the order of the tile.
    """
    if load.along is None:
        return dims_of(load.at)
    own = view.tiles[load.along.index].axes
    rest = (d for d in dims_of(load.at) if d != load.along.dim)
    return tuple(dict.fromkeys((*own, *rest)))


def _read_axes(view: _View, axes: tp.Order, pieces: tp.Order) -> tp.Order:
    """The axes of what is read of a tensor, in the order of its tile if they fit."""
    read = {d for d in pieces if d not in view.program.units}
    return axes if set(axes) == read else tuple(sorted(read))


def all_axes_kept(view: _View) -> Iterator[Problem]:
    """Turning keeps all axes; what is reduced over is there; stores have all axes.

    What is scanned is there too, and whole, or the loop's piece of it.
    """
    for statement, _ in view.statements:
        match statement:
            case tp.Convert():
                own = view.tiles[statement.operand].axes
                if sorted(own) != sorted(statement.tile.axes):
                    what = f"{statement.operand} has the axes {_axes(own)}"
                    yield statement, what, "keep all of them"
            case tp.Reduce():
                own = view.tiles[statement.operand].axes
                if not set(statement.over) <= set(own):
                    what = f"{statement.operand} has the axes {_axes(own)}"
                    yield statement, what, "reduce over some of them"
            case tp.Scan():
                own, along = view.tiles[statement.operand].axes, statement.along
                if along not in own or along.grid:
                    what = f"goes along {along}, {statement.operand} has {_axes(own)}"
                    yield statement, what, "scan a whole dim of it, or its pieces"
            case tp.Store():
                own = view.tiles[statement.operand].axes
                extra = [d for d in own if d not in dims_of(statement.at)]
                extra = [d for d in extra if view.program.extents.get(d.name) != 1]
                if extra:
                    what = f"{statement.operand} has the axes {_axes(own)}"
                    yield statement, what, f"store {_axes(tuple(extra))} too"
            case _:
                pass


def halves_are_sums(view: _View) -> Iterator[Problem]:
    """What is summed by halves is the first of several axes, with few lanes, of f32."""
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Reduce) or statement.halves is False:
            continue
        own, over = view.tiles[statement.operand], statement.over
        if statement.op.term is not Term.SUM or own.dtype != f32:
            what = f"the {statement.op.name} of {own.dtype} by halves"
            yield statement, what, "sum numbers of f32 by halves"
        elif len(own.axes) < 2 or own.axes[:1] != over:
            what = f"by halves over {_axes(over)}, {statement.operand} has "
            what += _axes(own.axes)
            yield statement, what, "sum over the first one of several alone"
        elif view.pieces is not None and statement.halves is True:
            lanes = view.pieces.lanes(over[0])
            if lanes > tp.MOST_HALVED:
                what = f"{lanes} lanes along {over[0]}"
                yield statement, what, f"{tp.MOST_HALVED} are the most by halves"


def lanes_are_there(view: _View) -> Iterator[Problem]:
    """A lane is taken along a whole dim of a tile, which has that element."""
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Lane):
            continue
        own, along = view.tiles[statement.operand], statement.along
        extent = view.program.extents.get(along.name) or 0
        if along not in own.axes or along != along.whole:
            what = f"a lane along {along}, {statement.operand} has {_axes(own.axes)}"
            yield statement, what, "take one along a whole dim of it"
        elif statement.at >= extent:
            what = f"element {statement.at} of {extent} along {along}"
            yield statement, what, "take one that is there"
        if own.dtype != statement.tile.dtype:
            yield statement, f"{statement.operand} is in {own.dtype}", "keep its format"


def both_lanes_are_joined(view: _View) -> Iterator[Problem]:
    """Two tiles of one format are the lanes of a whole dim of two elements."""
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Join):
            continue
        along, extent = statement.along, view.program.extents.get(statement.along.name)
        if along != along.whole or extent != len(tp.reads(statement)):
            what = f"joins two tiles along {along}, which has {extent} elements"
            yield statement, what, "join the two of a whole dim"
        for name in tp.reads(statement):
            if view.tiles[name].dtype != statement.tile.dtype:
                what = f"{name} is in {view.tiles[name].dtype}"
                yield statement, what, "keep its format"


def formats_fit(view: _View) -> Iterator[Problem]:
    """Arithmetic is in f32, or in one format of integers; so are products' operands."""
    for statement, _ in view.statements:
        operands = [v for v in tp.reads(statement) if v in view.tiles]
        formats = {v: view.tiles[v].dtype for v in operands}
        match statement:
            case (
                tp.Compute()
                | tp.Reduce()
                | tp.Scan()
                | tp.Rescale()
                | tp.Update()
                | tp.Largest()
            ):
                for name, dtype in formats.items():
                    if dtype != f32 and not dtype.is_integer:
                        what = f"reads {name} in {dtype}, arithmetic is in f32"
                        yield statement, what, "convert it"
                yield from _mixed_integers(statement, formats)
            case tp.Product():
                left, right = formats[statement.left], formats[statement.right]
                narrow = statement.precision == "storage"
                if left != right:
                    yield statement, f"multiplies {left} with {right}", "convert one"
                elif statement.is_matrix and narrow is (left == f32):
                    what = f"operands in {left}, precision {statement.precision}"
                    yield statement, what, "say tf32 or ieee for f32, for it alone"
            case _:
                pass
        yield from _wrongly_made(statement)


def _wrongly_made(statement: tp.Statement) -> Iterator[Problem]:
    """What computes makes f32 or integers, what counts i64, or i32 if that will do."""
    match statement:
        case tp.Positions() if statement.tile.dtype not in (i32, i64):
            yield statement, f"makes {statement.tile.dtype}", "positions are integers"
        case (
            tp.Compute()
            | tp.Reduce()
            | tp.Scan()
            | tp.Product()
            | tp.Start()
            | tp.Largest()
        ):
            whole = statement.tile.dtype.is_integer
            if isinstance(statement, tp.Compute) and statement.tile.dtype.only_stores:
                whole = statement.op.gives == statement.tile.dtype
            alone = not whole or isinstance(statement, tp.Product | tp.Largest)
            if statement.tile.dtype != f32 and alone:
                what = f"makes {statement.tile.dtype}, arithmetic is in f32"
                yield statement, what, "cast the result"
        case _:
            pass


def _mixed_integers(
    statement: tp.Statement, formats: Mapping[str, DType]
) -> Iterator[Problem]:
    """Integers are computed with integers of their format, and give it."""
    if isinstance(statement, tp.Compute):
        given = [o for o in statement.operands if isinstance(o, str)]
        first = statement.operands[0]
        if statement.op.chooses and isinstance(first, str):
            given = given[1:]
        read = {formats[name] for name in given}
    else:
        read = set(formats.values())
    if not any(d.is_integer for d in read) and not (
        isinstance(statement, tp.Compute | tp.Reduce | tp.Scan)
        and statement.tile.dtype.is_integer
    ):
        return
    if len(read) > 1:
        named = " and ".join(sorted(map(str, read)))
        yield statement, f"computes with {named}", "convert one of them"
    elif isinstance(statement, tp.Compute | tp.Reduce | tp.Scan):
        made = statement.tile.dtype
        op = statement.op
        expected = f32 if op.truth is Truth.COMPARES else op.gives or min(read, key=str)
        if made != expected:
            yield statement, f"makes {made}, expected {expected}", "say what follows"


def _axes(axes: tp.Order) -> str:
    return f"[{', '.join(map(str, axes))}]"


# -- Conditions ------------------------------------------------------------------------


def made_where_read(view: _View) -> Iterator[Problem]:
    """What is made under a condition is read under it only."""
    made: dict[str, tp.Number] = {}
    for statement, _ in view.statements:
        own: tp.Number = True
        if isinstance(statement, tp.Convert | tp.Mask):
            own = statement.when
        for name, condition in _reading(statement, own):
            given = made.get(name, True)
            if not _follows(condition, given):
                what = f"reads {name}, which is made only when {given}"
                yield statement, what, "pick another value otherwise"
        for name in tp.makes(statement):
            made[name] = own


def _reading(
    statement: tp.Statement, own: tp.Number
) -> Iterator[tuple[str, tp.Number]]:
    """The values that a statement reads, and when it reads each."""
    match statement:
        case tp.Pick():
            yield statement.operand, tp.opposite(statement.when)
            yield statement.other, statement.when
        case tp.Load():
            if statement.along is not None:
                yield from ((v, statement.when) for v in statement.along.reads)
            if statement.instead is not None:
                yield statement.instead, tp.opposite(statement.when)
        case _:
            yield from ((name, own) for name in tp.reads(statement))


def loads_have_stand_ins(view: _View) -> Iterator[Problem]:
    """A load that may be left out names the same tile, which serves instead."""
    loads = {s.result: s for s, _ in view.statements if isinstance(s, tp.Load)}
    origin: dict[str, str] = {}
    for statement, _ in view.statements:
        if isinstance(statement, tp.Convert):
            origin[statement.result] = origin.get(statement.operand, statement.operand)
        if not isinstance(statement, tp.Load):
            continue
        serving = statement.instead
        if serving is None:
            if statement.when is not True:
                yield statement, "nothing serves where it is not made", "say `instead`"
            continue
        first = loads.get(origin.get(serving, serving))
        read = statement.source, statement.at, statement.along
        if first is None or (first.source, first.at, first.along) != read:
            yield statement, f"{serving} is another tile", "let the same tile serve"


def positions_are_data(view: _View) -> Iterator[Problem]:
    """Where positions are data they are integers, of a whole dim, read by pointers."""
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Load) or statement.along is None:
            continue
        dim, index = statement.along.dim, statement.along.index
        dtype = view.tiles[index].dtype
        if dim not in dims_of(statement.at) or dim != dim.whole:
            what = f"positions along {dim}, which is no whole dim of it"
            yield statement, what, "name a whole dim of the tensor"
        if not dtype.is_integer:
            yield statement, f"positions in {dtype}", "convert them to integers"
        if statement.via != "pointer":
            what = f"a box has no positions that are data, as along {dim}"
            yield statement, what, "load by pointers"


_MOST_ATOMS = 12


def _follows(given: tp.Number, expected: tp.Number) -> bool:
    """Whether a condition holds wherever another one does, at any sizes."""
    claim = tp.any_of([tp.opposite(given), expected])
    atoms = sorted(_atoms(claim), key=str)
    if len(atoms) > _MOST_ATOMS:
        return False
    rows = itertools.product((False, True), repeat=len(atoms))
    return all(_truth(claim, dict(zip(atoms, row, strict=True))) for row in rows)


def _atoms(number: tp.Number) -> set[tp.Formula]:
    """What a condition is made of, besides and, or and not."""
    if not isinstance(number, tp.Formula):
        return set()
    if number.op not in ("and", "or", "not"):
        return {number}
    found: set[tp.Formula] = set()
    for arg in number.args:
        assert not isinstance(arg, Dim)
        found |= _atoms(arg)
    return found


def _truth(number: tp.Number, values: Mapping[tp.Formula, bool]) -> bool:
    if not isinstance(number, tp.Formula):
        return bool(number)
    if number in values:
        return values[number]
    args = [_truth(a, values) for a in number.args if not isinstance(a, Dim)]
    return bool(tp.fold(number.op, *args))


# -- Lanes outside ---------------------------------------------------------------------


def loads_stay_inside(view: _View) -> Iterator[Problem]:
    """By pointers, no lane outside of a tensor is read."""
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Load) or statement.via != "pointer":
            continue
        for dim in statement.tile.axes:
            loose = view.outside(dim, in_loop=True)
            if dim not in statement.guarded and not _follows(loose, False):
                what = f"lanes of {dim} can lie outside, and are not guarded"
                yield statement, what, f"add {dim} to `guarded`"


def masks_fill(view: _View) -> Iterator[Problem]:
    """A mask fills with what a reduction takes as neutral, along its own axes."""
    neutral_ones = {o.neutral for o in OPERATORS.values() if o.neutral is not None}
    for statement, _ in view.statements:
        if not isinstance(statement, tp.Mask):
            continue
        if statement.fill not in neutral_ones:
            allowed = ", ".join(f"{n:g}" for n in sorted(neutral_ones))
            yield (
                statement,
                f"fills with {statement.fill}",
                f"fill with one of {allowed}",
            )
        for dim, _ in statement.where:
            if dim not in statement.tile.axes:
                yield statement, f"{dim} is no axis of it", "mask its own axes"


def lanes_outside_are_neutral(view: _View) -> Iterator[Problem]:
    """What is reduced over, or accumulated, holds the neutral element outside."""
    outside = tp.Outside(view.tiles, view.program.extents, view.ends)
    fills: dict[str, tp.Fills] = {}
    for statement, in_loop in view.statements:
        for name, dims, expected in _needed(view, statement):
            for dim in dims:
                held, holds = fills[name].get(dim, (math.nan, False))
                loose = view.outside(dim, in_loop=in_loop)
                if not _follows(loose, holds if held == expected else False):
                    what = (
                        f"{name} may hold anything in lanes outside of {dim}, expected "
                        f"{expected:g}"
                    )
                    yield statement, what, "mask it"
        fills |= outside.after(statement, fills)


def _needed(
    view: _View, statement: tp.Statement
) -> Iterator[tuple[str, tp.Order, float]]:
    """Operands, axes, and what these must hold outside."""
    match statement:
        case tp.Reduce():
            yield statement.operand, statement.over, tp.neutral(statement.op)
        case tp.Product():
            yield statement.left, statement.over, 0.0
            yield statement.right, statement.over, 0.0
        case tp.Update():
            axes = view.tiles[statement.target].axes
            looped = tuple(d for d in axes if d.loop)
            yield statement.operand, looped, tp.neutral(statement.op)
        case tp.Largest():
            looped = tuple(d for d in statement.tile.axes if d.loop)
            yield statement.operand, looped, -math.inf
        case _:
            pass


def shifts_are_finite(view: _View) -> Iterator[Problem]:
    """A shift that may be infinite is made finite before it is subtracted."""
    shifts: dict[str, float | None] = {}
    """The values that are shifts, with what they are where all is masked."""
    for statement, _ in view.statements:
        match statement:
            case tp.Reduce() if statement.op.shift_of is not None:
                shifts[statement.result] = statement.op.neutral
            case tp.Largest():
                shifts[statement.result] = None
            case tp.Finite():
                fill = shifts.get(statement.operand)
                shifts[statement.result] = None if fill == statement.fill else fill
            case tp.Convert() | tp.Cast() | tp.Mask() | tp.Merge() if (
                statement.operand in shifts
            ):
                shifts[statement.result] = shifts[statement.operand]
            case tp.Compute() if SUB in (statement.op, statement.inner):
                values = (o for o in reversed(statement.operands) if isinstance(o, str))
                last = next((v for v in values if v in shifts), None)
                fill = None if last is None else shifts[last]
                if fill is not None:
                    what = f"subtracts {last}, which is {fill} where all is masked"
                    yield statement, what, "read it by `finite`"
            case _:
                pass


# -- What a loop carries ---------------------------------------------------------------


def carried_start_neutral(view: _View) -> Iterator[Problem]:
    """What a loop carries starts with the neutral element of what changes it."""
    for statement, _ in view.statements:
        match statement:
            case tp.Update():
                target, expected = statement.target, tp.neutral(statement.op)
            case tp.Product() if statement.into is not None:
                target, expected = statement.into, 0.0
            case tp.Largest():
                target, expected = statement.state, -math.inf
            case tp.Rescale():
                target, expected = statement.target, 0.0
            case _:
                continue
        start = view.carried.get(target)
        if start is None:
            what = f"changes {target}, which no loop carries"
            yield statement, what, f"begin with `carry {target}`"
        elif start.value != expected:
            what = f"{target} starts with {start.value:g}, expected {expected:g}"
            yield statement, what, "start with the neutral element"


def sums_are_rescaled_first(view: _View) -> Iterator[Problem]:
    """Sums that are relative to an older maximum shrink before they are added to."""
    changed: set[str] = set()
    scales = {s.scale for s, _ in view.statements if isinstance(s, tp.Largest)}
    for statement, _ in view.statements:
        match statement:
            case tp.Loop():
                changed.clear()
            case tp.Convert() if statement.operand in scales:
                scales.add(statement.result)
            case tp.Rescale():
                if statement.scale not in scales:
                    what = f"{statement.scale} is the scale of no maximum"
                    yield statement, what, "rescale by that of a `largest`"
                if statement.target in changed:
                    what = f"{statement.target} was added to before"
                    yield statement, what, "rescale it first"
                changed.add(statement.target)
            case tp.Update():
                changed.add(statement.target)
            case tp.Product() if statement.into is not None:
                changed.add(statement.into)
            case _:
                pass


def maxima_before_their_sums(view: _View) -> Iterator[Problem]:
    """A carried maximum is read as it was, or behind the statement that changes it."""
    states = {s.state for s, _ in view.statements if isinstance(s, tp.Largest)}
    for statement, in_loop in view.statements:
        if in_loop and not isinstance(statement, tp.Largest):
            for name in tp.reads(statement):
                if name in states:
                    what = f"reads {name}, which changes in this iteration"
                    yield statement, what, "read the result of `largest`"


# -- Memory and kernels beside ---------------------------------------------------------


def waits_before_dependent(view: _View) -> Iterator[Problem]:
    """What the kernel ahead makes is read, and anything stored, behind the wait."""
    waits = [s for s, _ in view.statements if isinstance(s, tp.Wait)]
    early = view.program.schedule.pdl
    if early and not waits:
        yield None, "it is launched early, found no `wait`", "wait for the kernel ahead"
    if not early and waits:
        yield waits[0], "the kernel is not launched early", "leave it out"
    if not early:
        return
    waited = False
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Wait):
            if waited or in_loop:
                yield statement, "waits more than once", "wait once, outside of loops"
            waited = True
        elif not waited and isinstance(statement, tp.Store):
            what = "stores before the wait: what is there may still be read"
            yield statement, what, "wait before"
        elif (
            isinstance(statement, tp.Load | tp.Ask)
            and (not waited or _is_early(statement))
            and (view.made is None or statement.source in view.made)
        ):
            what = f"reads {statement.source} before the kernel ahead has made it"
            yield statement, what, "wait before"


def _is_early(statement: tp.Load | tp.Ask) -> bool:
    """Whether a statement of the loop is made before the wait in first iterations."""
    return isinstance(statement, tp.Load) and statement.early > 0


def early_loads_know_where(view: _View) -> Iterator[Problem]:
    """What is loaded before the wait depends on nothing behind it.

    It goes to registers, its positions are known, and its loop begins with the first
    iteration.
    """
    for statement, in_loop in view.statements:
        if not isinstance(statement, tp.Load) or not statement.early:
            continue
        program = view.program
        pipelined = program.schedule.num_stages > 1 or statement.via == "descriptor"
        bounded = program.bounds or program.whole
        if not in_loop or pipelined or bounded or statement.along is not None:
            what = "is loaded before the wait"
            yield statement, what, "load it so in the first iterations of a plain loop"


def announced_behind_wait(view: _View) -> Iterator[Problem]:
    """The kernel behind starts once, and when this one knows that all ahead ended.

    So when a kernel starts, all but the one right ahead are at rest.
    """
    waited, announced = not view.program.schedule.pdl, False
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Wait):
            waited = True
        if isinstance(statement, tp.Announce):
            if not waited:
                what = "announces before the wait"
                yield statement, what, "announce behind it"
            if announced or in_loop:
                yield statement, "announces more than once", "announce once"
            announced = True
    if view.program.schedule.pdl and not announced:
        what = "it is launched early, and lets no kernel behind start"
        yield None, what, "announce"


def copies_are_apart(view: _View) -> Iterator[Problem]:
    """Registers do not read a buffer that the matrix unit reads across iterations.

    A large product that is added up in place reads its tiles while the next iteration
    runs, and the pipeline fills the buffers of what registers read.
    """
    if not view.program.schedule.second_load:
        return
    for statement, in_loop in view.statements:
        if not isinstance(statement, tp.Load) or not in_loop or statement.instead:
            continue
        users = view.program.readers.get(statement.result, ())
        users = [u for u in users if not isinstance(u, tp.Load | tp.Pick | tp.Merge)]
        across = [
            u
            for u in users
            if isinstance(u, tp.Product) and u.into is not None and u.wgmma is not False
        ]
        registers = [u for u in users if not isinstance(u, tp.Product)]
        if across and registers:
            what = (
                f"{across[0].into} is added to across iterations by the matrix unit, "
                f"and `{statement_text(registers[0])}` reads the same buffer"
            )
            yield statement, what, "load it again for registers"


def buffers_in_loops(view: _View) -> Iterator[Problem]:
    """Loads of the loop have buffers, those outside of it none."""
    for statement, in_loop in view.statements:
        if isinstance(statement, tp.Load) and (statement.buffers == 0) is in_loop:
            expected = "one or more" if in_loop else "none"
            what = f"found {statement.buffers} buffers, expected {expected}"
            yield statement, what, "say buffers(...) in loops only"


Rule = Callable[[_View], Iterator[Problem]]
NAMES: tuple[Rule, ...] = (
    made_before_read,
    made_once,
    iterations_stay_inside,
    one_loop,
    pieces_are_there,
    few_are_columns,
    pieces_in_their_place,
    tensors_as_declared,
)
"""Rules without which the others cannot be asked."""
RULES: tuple[Rule, ...] = (
    orders_fit,
    all_axes_kept,
    halves_are_sums,
    lanes_are_there,
    both_lanes_are_joined,
    formats_fit,
    made_where_read,
    loads_have_stand_ins,
    positions_are_data,
    loads_stay_inside,
    masks_fill,
    lanes_outside_are_neutral,
    shifts_are_finite,
    carried_start_neutral,
    sums_are_rescaled_first,
    maxima_before_their_sums,
    waits_before_dependent,
    early_loads_know_where,
    announced_behind_wait,
    copies_are_apart,
    buffers_in_loops,
)
"""The others."""
