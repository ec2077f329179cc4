"""Prints one tile program as one NumPy function: what one block does, in order.

The function takes the block's coordinates and the tensors, one axis for each dim.  A
tile is an f32 array with as many lanes as on a GPU: what no load or mask fills is NaN,
or another element of the tensor, so nothing is right by chance.  Along each piece of a
dim the block has positions (`k_loop_at`) and knows which are inside (`k_loop_in`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from string import ascii_letters

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.ir.graph import Operand
from mirage_dsl.ops.definition import Operator
from mirage_dsl.tile import program as tp


class Printer:
    """One tile program at known extents, on its way to text."""

    def __init__(self, program: tp.TileProgram) -> None:
        self.program, self.pieces = program, tp.pieces_of(program)
        self.axes = {name: tile.axes for name, tile in program.tiles.items()}
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
                self.line(depth, f"for it in range({tp.iterations(self.program)}):")
                if self.program.bounds or step.part:
                    ids = {s.dim: self.name(f"{s.dim} id") for s in self.program.grid}
                    blocks = ", ".join(f"'{dim}': {name}" for dim, name in ids.items())
                    runs = f"runs('{step.part}', {{{blocks}}}, it)"
                    self.line(depth + 1, f"if not {runs}: continue")
                self.positions(depth + 1, looped, "it")
                self.region(step.body, depth + 1)
                # From now on lanes are those of the first iteration.
                self.positions(depth, looped)
            for text in self.lines(step):
                self.line(depth, text)

    # -- Text --------------------------------------------------------------------------

    def line(self, depth: int, text: str) -> None:
        """Add a line."""
        self._lines.append("    " * depth + text)

    def name(self, wanted: str) -> str:
        """The Python name of a tile, tensor, piece or coordinate: always the same."""
        found = re.sub(r"\W", "_", wanted)
        return self._names.setdefault(wanted, f"{found}_{len(self._names)}")

    def spread(self, text: str, axes: tp.Order, order: tp.Order) -> str:
        """Something with some axes as it broadcasts against others."""
        if not axes or axes == order:
            return text
        return f"{text}[{', '.join(':' if d in axes else 'None' for d in order)}]"

    def operand(self, of: Operand, order: tp.Order) -> str:
        """A constant, or a tile as it broadcasts against others."""
        if isinstance(of, str):
            return self.spread(self.name(of), self.axes[of], order)
        known = {n: e for n, e in self.program.extents.items() if e is not None}
        return f"np.float32('{of.at(known)}')"

    def row(self, op: Operator, operands: Iterable[str]) -> str:
        """A row of the table on each element."""
        return f"floats.elementwise(rows['{op.name}'], [{', '.join(operands)}])"

    # -- Places ------------------------------------------------------------------------

    def positions(self, depth: int, pieces: Iterable[tp.Piece], it: str = "0") -> None:
        """Bind where lanes of pieces lie, and which are inside; units have one lane."""
        for piece in pieces:
            at, inside = self.name(f"{piece.dim} at"), self.name(f"{piece.dim} in")
            split = piece.grid_tile is not None
            block = self.name(f"{piece.dim.name} id") if split else "0"
            lanes = f"pieces['{piece.dim}'].positions({block}, {it})"
            unit = f"{at} = {lanes}[0].item()"
            self.line(depth, unit if piece.unit else f"{at}, {inside} = {lanes}")

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

    def at(self, dim: Dim, order: tp.Order) -> str:
        """The positions of a tile's lanes along a dim, as they broadcast."""
        own = (dim,) if dim in order else ()
        return self.spread(self.name(f"{dim} at"), own, order)

    def place(self, step: tp.Load | tp.Store, order: tp.Order) -> str:
        """A tensor and the positions of a tile's lanes in it, dim by dim."""
        loads, found = isinstance(step, tp.Load), list[str]()
        for dim in (d for axis in step.at for d in axis):
            base = tp.partial_of(dim, self.pieces.block.grid)
            if loads and step.along is not None and dim == step.along.dim:
                found.append(self.picked(step.along, order)[0])
            elif base is None:
                found.append(self.at(dim, order))
            else:
                last = (self.program.extents[dim.name] or 1) - 1
                found.append(f"np.minimum({self.name(f'{base} id')}, {last})")
        tensor = step.source if loads else step.result
        return f"{self.name(f'{tensor} tensor')}, [{', '.join(found)}]"

    def counted(self, axis: Axis, order: tp.Order) -> str:
        """The row-major positions of a tile's lanes along an axis."""
        text = "0"
        for dim in axis:
            size = self.program.extents[dim.name]
            text = f"({text}) * {size} + {self.at(dim, order)}"
        return text

    # -- Statements --------------------------------------------------------------------

    def lines(self, step: tp.Statement) -> list[str]:
        """The lines of a statement; none where it means nothing to a single thread."""
        match step:
            case tp.Loop() | tp.Ask() | tp.Wait() | tp.Announce():
                return []
            case tp.Store(_, operand, at, dtype):
                order = self.pieces.axes_stored(at, self.axes[operand])
                place, inside = self.place(step, order), self.inside(order, order)
                tile = self.operand(operand, order)
                text = f"floats.cast({tile}, dtype_named('{dtype}'))"
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
                texts = [self.operand(o, tile.axes) for o in operands]
                return self.row(op, [self.row(inner, texts)] if inner else texts)
            case tp.Cast(_, tile, operand):
                return f"floats.cast({self.name(operand)}, dtype_named('{tile.dtype}'))"
            case tp.Finite(_, _, operand):
                return f"finite({self.name(operand)})"
            case tp.Convert(_, tile, operand) | tp.Merge(_, tile, operand):
                # All tiles are f32, and products take as many axes as there are.
                turns = [self.axes[operand].index(d) for d in tile.axes]
                return f"np.transpose({self.name(operand)}, {turns})"
            case tp.Lane(_, _, of, along, at):
                return f"{self.name(of)}.take({at}, {self.axes[of].index(along)})"
            case tp.Join(_, _, operand, other):
                return f"np.stack(({self.name(operand)}, {self.name(other)}), -1)"
            case tp.Mask(_, tile, operand, fill, where):
                inside = self.inside([d for d, _ in where], tile.axes)
                return f"floats.mask({self.name(operand)}, {inside}, float('{fill}'))"
            case tp.Scan(_, _, op, operand, along):
                at = self.axes[operand].index(along)
                return f"floats.scan(rows['{op.name}'], {self.name(operand)}, {at})"
            case tp.Reduce(_, _, op, operand, over):
                at = tuple(map(self.axes[operand].index, over))
                return f"floats.reduce(rows['{op.name}'], {self.name(operand)}, {at})"
            case _:
                return self.other(step)

    def other(self, step: tp.Statement) -> str:
        """The same of what is read, multiplied, or carried by the loop."""
        match step:
            case tp.Positions(_, tile, at):
                return f"np.{tile.dtype.long_name}({self.counted(at, tile.axes)})"
            case tp.Load(_, tile):
                # Beyond a tensor boxes have zeros; of pointers nothing is known.
                beyond = "0" if step.via == "descriptor" else "nan"
                inside = self.inside(step.guarded, tile.axes)
                if step.along is not None:
                    inside += f" & {self.picked(step.along, tile.axes)[1]}"
                return f"read({self.place(step, tile.axes)}, {inside}, '{beyond}')"
            case tp.Product():
                return self.product(step)
            case tp.Start(_, tile, value):
                kind = tile.dtype.long_name if tile.dtype.is_integer else "float32"
                full = f"np.full({self.pieces.shape(tile.axes)}, float('{value}'))"
                return f"as_format({full}, '{kind}')"
            case tp.Rescale(target, scale):
                return f"{self.name(target)} * {self.operand(scale, self.axes[target])}"
            case tp.Update(target, operand, op) if op.join is not None:
                added = self.operand(operand, self.axes[target])
                return self.row(op.join, [self.name(target), added])
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
