"""Prints one tile program as one NumPy function: what one block does, in order.

The function takes the block's coordinates and the tensors, one axis for each dim.  A
tile is an f32 array with as many lanes as on a GPU: what no load or mask fills is NaN,
or another element of the tensor, so nothing is right by chance.  Along each piece of a
dim the block has positions (`k_loop_at`) and knows which are inside (`k_loop_in`).
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from string import ascii_letters

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim, DType, Scalar, f32
from mirage_dsl.ir.graph import BlockGraph, LoopBound, Operand
from mirage_dsl.ir.maps import parts
from mirage_dsl.ops.definition import Operator
from mirage_dsl.tile import program as tp
from mirage_dsl.tile.program import Piece, partial_of

CALLED = {"np", "rows", "span", "read", "write", "rounded", "finite", "range", "it"}
CALLED |= {"as_format"}
"""What a function uses: NumPy, the rows' NumPy facets, what `backend` defines."""


class Printer:
    """One tile program at known extents, on its way to text."""

    def __init__(self, program: tp.TileProgram) -> None:
        self.program, self.pieces = program, tp.pieces_of(program)
        self.axes = {name: tile.axes for name, tile in tp.tiles_of(program).items()}
        self.formats = {n: tile.dtype for n, tile in tp.tiles_of(program).items()}
        self._block = BlockGraph(program.grid, program.loop, ())
        self._names, self._lines = dict[str, str](), list[str]()

    def source(self) -> str:
        """The function."""
        given = [f"{split.dim} id" for split in self.program.grid]
        given += [f"{tensor} tensor" for tensor in self.program.tensors]
        self.line(0, f"def {self.program.name}({', '.join(map(self.name, given))}):")
        self.positions(1, self.pieces.all)
        self.region(self.program.body, 1)
        return "\n".join(self._lines) + "\n"

    def region(self, body: Sequence[tp.Statement], depth: int) -> None:
        """Statements in order, each below the lines that it comes from."""
        for step in body:
            for note in step.notes:
                self.line(depth, f"# {note.text}")
            if isinstance(step, tp.Loop):
                looped = [p for p in self.pieces.all if p.loop_tile is not None]
                whole = looped[0].grid_tile or looped[0].extent or 1
                count = parts(whole, looped[0].loop_tile or 1)
                self.line(depth, f"for it in range({count}):")
                self.bounds(depth + 1, looped[0], step.part)
                self.positions(depth + 1, looped, " + it * {}")
                self.region(step.body, depth + 1)
                # From now on lanes are those of the first iteration.
                self.positions(depth, looped)
            for text in self.lines(step):
                self.line(depth, text)

    def bounds(self, depth: int, looped: Piece, part: str) -> None:
        """Leave out the iterations that the block does not visit, or not in a part."""
        tile, begin = looped.loop_tile or 1, "0"
        if looped.grid_tile is not None:
            begin = f"{self.name(f'{looped.dim.name} id')} * {looped.grid_tile}"
        at = f"{begin} + it * {tile}"
        conditions = [self.bound(b, at, tile)[0] for b in self.program.bounds]
        covered = {False: ["True"], True: ["True"]}
        for bound in self.program.whole:
            covered[bound.upper].append(self.bound(bound, at, tile)[1])
        begun, unended = (" and ".join(covered[upper]) for upper in (False, True))
        runs = {"ahead": f"not ({begun})", "whole": f"{begun} and {unended}"}
        runs |= {"": "True", "behind": f"{begun} and not ({unended})"}
        for condition in (*conditions, runs[part]):
            self.line(depth, f"if not ({condition}): continue")

    def bound(self, bound: LoopBound, at: str, tile: int) -> tuple[str, str]:
        """Whether a bound lets an iteration through, and whether it covers it."""
        width = next(s.tile for s in self.program.grid if s.dim == bound.dim)
        first = f"{self.name(f'{bound.dim} id')} * {width} + {bound.offset}"
        last, end = f"{first} + {width - 1}", f"{at} + {tile - 1}"
        if bound.upper:
            also = -1 if bound.also is None else bound.also
            return f"{at} <= max({last}, {also})", f"{end} <= {first}"
        return f"{end} >= {first}", f"{at} >= {last}"

    # -- Text --------------------------------------------------------------------------

    def line(self, depth: int, text: str) -> None:
        """Add a line."""
        self._lines.append("    " * depth + text)

    def name(self, wanted: str) -> str:
        """The Python name of a tile, tensor, piece or coordinate: always the same."""
        if wanted not in self._names:
            found, taken = re.sub(r"\W", "_", wanted), {*self._names.values()}
            while found in CALLED | taken or keyword.iskeyword(found):
                found += "_"
            self._names[wanted] = found
        return self._names[wanted]

    def spread(self, text: str, axes: tp.Order, order: tp.Order) -> str:
        """Something with some axes as it broadcasts against others."""
        if not axes or axes == order:
            return text
        return f"{text}[{', '.join(':' if d in axes else 'None' for d in order)}]"

    def operand(self, of: Operand, order: tp.Order = (), dtype: DType = f32) -> str:
        """A constant of a format, or a tile as it broadcasts against others."""
        if isinstance(of, str):
            return self.spread(self.name(of), self.axes[of], order)
        known = {n: e for n, e in self.program.extents.items() if e is not None}
        text = f"np.float32('{of.at(known)}')"
        return f"as_format({text}, '{dtype.long_name}')" if dtype.is_integer else text

    # -- Places ------------------------------------------------------------------------

    def positions(self, depth: int, pieces: Iterable[Piece], step: str = "") -> None:
        """Bind where pieces lie and which lanes are inside."""
        for piece in pieces:
            start, ends = "0", str(piece.extent)
            if piece.grid_tile is not None:
                start = f"{self.name(f'{piece.dim.name} id')} * {piece.grid_tile}"
                ends += f", {start} + {piece.grid_tile}"
            start += step.format(piece.loop_tile)
            at, inside = self.name(f"{piece.dim} at"), self.name(f"{piece.dim} in")
            lanes = f"span({start}, {piece.width}, {piece.size}, {ends})"
            bound = f"{at} = {start}" if piece.unit else f"{at}, {inside} = {lanes}"
            self.line(depth, bound)

    def inside(self, dims: Iterable[Dim], order: tp.Order) -> str:
        """Which lanes of a tile are inside along some of its axes."""
        masks = [self.spread(self.name(f"{d} in"), (d,), order) for d in dims]
        return " & ".join(masks) or "True"

    def picked(self, along: tp.Along, order: tp.Order) -> tuple[str, str]:
        """Positions that are data, from the end below 0, and which of them exist."""
        size = self.program.extents[along.dim.name]
        at = f"np.int64({self.operand(along.index, order)})"
        at = at if along.known != "no" else f"np.where({at} < 0, {at} + {size}, {at})"
        inside = f"({at} >= 0) & ({at} < {size})"
        if along.under is not None:
            inside += f" & ({self.operand(along.under, order)} == {along.holds})"
        return f"np.clip({at}, 0, {size} - 1)", inside

    def place(
        self,
        tensor: str,
        at: Sequence[Axis],
        order: tp.Order,
        along: tp.Along | None = None,
    ) -> str:
        """A tensor and the positions of a tile's lanes in it, dim by dim."""
        found: list[str] = []
        for dim in (d for axis in at for d in axis):
            base = partial_of(dim, self._block)
            if along is not None and dim == along.dim:
                found.append(self.picked(along, order)[0])
            elif base is None:
                own = (dim,) if dim in order else ()
                found.append(self.spread(self.name(f"{dim} at"), own, order))
            else:
                last = (self.program.extents[dim.name] or 1) - 1
                found.append(f"np.minimum({self.name(f'{base} id')}, {last})")
        return f"{self.name(f'{tensor} tensor')}, [{', '.join(found)}]"

    def counted(self, axis: Axis, order: tp.Order) -> str:
        """The row-major positions of a tile's lanes along an axis."""
        text = "0"
        for dim in axis:
            own = (dim,) if dim in order else ()
            at = self.spread(self.name(f"{dim} at"), own, order)
            text = f"({text}) * {self.program.extents[dim.name]} + {at}"
        return text

    # -- Statements --------------------------------------------------------------------

    def lines(self, step: tp.Statement) -> list[str]:
        """The lines of a statement; none where it means nothing to a single thread."""
        match step:
            case tp.Loop() | tp.Ask() | tp.Wait() | tp.Announce():
                return []
            case tp.Store(result, operand, at, dtype):
                own, dims = self.axes[operand], [d for axis in at for d in axis]
                dims = [d for d in dims if partial_of(d, self._block) is None]
                order = (*own, *(d for d in self.pieces.axes(dims) if d not in own))
                place, inside = self.place(result, at, order), self.inside(order, order)
                text = f"rounded({self.operand(operand, order)}, '{dtype}')"
                return [f"write({place}, {inside}, {text})"]
            case tp.Largest(result, tile, operand, state, scale):
                last, largest = self.name(state), self.name(result)
                both = f"{last}, {self.operand(operand, tile.axes)}"
                made = [f"{largest} = finite(np.maximum({both}))"]
                if scale is not None:
                    made.append(f"{self.name(scale)} = np.exp({last} - {largest})")
                return [*made, f"{last} = np.maximum({both})"]
            case _:
                return [f"{self.name(tp.makes(step)[0])} = {self.expression(step)}"]

    def expression(self, step: tp.Statement) -> str:
        """What a statement makes, or assigns again."""
        match step:
            case tp.Compute(_, tile, op, operands, inner):
                given = (self.formats[o] for o in operands if isinstance(o, str))
                whole = next((d for d in given if d.is_integer), f32)
                texts = [self.operand(o, tile.axes, whole) for o in operands]
                found = row(op, row(inner, *texts)) if inner else row(op, *texts)
                kind = "float32" if tile.dtype.only_stores else tile.dtype.long_name
                return f"np.asarray({found}, '{kind}')"
            case tp.Cast(_, tile, operand):
                return f"rounded({self.name(operand)}, '{tile.dtype}')"
            case tp.Finite(_, _, operand):
                return f"finite({self.name(operand)})"
            case tp.Convert(_, tile, operand) | tp.Merge(_, tile, operand):
                # All tiles are f32, and products take as many axes as there are.
                turns = [self.axes[operand].index(d) for d in tile.axes]
                return f"np.transpose({self.name(operand)}, {turns})"
            case tp.Lane(_, _, of, along, at):
                return f"{self.name(of)}.take({at}, {self.axes[of].index(along)})"
            case tp.Mask(_, tile, operand, fill, where):
                inside = self.inside([d for d, _ in where], tile.axes)
                number = self.operand(Scalar(fill), (), tile.dtype)
                return f"np.where({inside}, {self.name(operand)}, {number})"
            case tp.Scan(_, tile, op, operand, along):
                return row(op, self.name(operand), str(self.axes[operand].index(along)))
            case tp.Reduce(_, tile, op, operand, over):
                axes = tuple(self.axes[operand].index(d) for d in over)
                found = row(op, self.name(operand), str(axes))
                return f"np.asarray({found}, '{tile.dtype.long_name}')"
            case _:
                return self.other(step)

    def other(self, step: tp.Statement) -> str:
        """The same of what is read, multiplied, or carried by the loop."""
        match step:
            case tp.Positions(_, tile, at):
                return f"np.{tile.dtype.long_name}({self.counted(at, tile.axes)})"
            case tp.Load(_, tile, source, at, via, guarded):
                # Beyond a tensor boxes have zeros; of pointers nothing is known.
                beyond = "0" if via == "descriptor" else "nan"
                place = self.place(source, at, tile.axes, step.along)
                inside = self.inside(guarded, tile.axes)
                if step.along is not None:
                    inside += f" & {self.picked(step.along, tile.axes)[1]}"
                return f"read({place}, {inside}, '{beyond}')"
            case tp.Product():
                return self.product(step)
            case tp.Start(_, tile, number):
                shape = [self.pieces[d].width for d in tile.axes]
                return (
                    f"np.full({shape}, {self.operand(Scalar(number), (), tile.dtype)})"
                )
            case tp.Rescale(target, scale):
                return f"{self.name(target)} * {self.operand(scale, self.axes[target])}"
            case tp.Update(target, operand, op) if op.join is not None:
                added = self.operand(operand, self.axes[target])
                return row(op.join, self.name(target), added)
            case _:
                raise UnsupportedError(f"no NumPy for {type(step).__name__}")

    def product(self, step: tp.Product) -> str:
        """A sum over axes, added to what the loop carries if it says so."""
        letters = dict(zip(self.pieces.dims, ascii_letters, strict=False))
        orders = self.axes[step.left], self.axes[step.right], step.tile.axes
        a, b, c = ("".join(letters[d] for d in axes) for axes in orders)
        operands = f"{self.name(step.left)}, {self.name(step.right)}"
        text = f"np.einsum('{a},{b}->{c}', {operands}, optimize=True)"
        return text if step.into is None else f"{self.name(step.into)} + {text}"


def row(op: Operator, *operands: str) -> str:
    """A call of a row's NumPy facet."""
    return f"rows['{op.name}']({', '.join(operands)})"
