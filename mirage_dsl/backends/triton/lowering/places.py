"""Where the pieces of a block lie: program ids, positions along dims and masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirage_dsl.backends.triton.lowering.names import Names, Writer
from mirage_dsl.core.types import Dim
from mirage_dsl.ir.graph import Split
from mirage_dsl.tile.sizes import Piece, Pieces


class Places:
    """Emits and names program ids, positions and masks of one block.

    A piece `d` has positions `start + lane` within its dim; a looped piece adds
    `it * tile` in iteration `it`.
    """

    def __init__(
        self,
        axes: Sequence[Sequence[Split]],
        pieces: Pieces,
        writer: Writer,
        names: Names,
        size: Callable[[str], str],
        *,
        wide: bool,
    ) -> None:
        self._axes = axes
        self._pieces = pieces
        self._writer = writer
        self._names = names
        self._size = size
        self._wide = wide
        self.far = ""
        self.ids: dict[str, str] = {}
        self._lanes: dict[Dim, str] = {}
        self._starts: dict[Dim, str] = {}
        self._masks: dict[Dim, str] = {}
        self._loop_masks: dict[Dim, str] = {}
        self._in_loop = False

    # -- Program ids and positions -------------------------------------------------

    def emit_ids(self) -> None:
        """Bind the coordinate of each grid axis, and a zero that widens offsets."""
        if self._wide:
            self.far = self._writer.assign(
                self._names.fresh("far"), "tl.full((), 0, tl.int64)"
            )
        for number, axis in enumerate(self._axes):
            name = self._names.fresh("_".join([*(s.dim for s in axis), "id"]))
            wide = ".to(tl.int64)" if self._wide else ""
            text = f"tl.program_id({number}){wide}"
            self.ids |= dict.fromkeys((s.dim for s in axis), name)
            self._writer.assign(name, text)

    def emit_positions(self) -> None:
        """Bind lanes and starting positions of all pieces, and the constant masks."""
        for piece in self._pieces.all:
            self._emit_lanes(piece)
        for piece in self._pieces.all:
            if not piece.unit and piece.loose and piece.loop_tile is None:
                terms = self._outside_loop(piece)
                name = self._names.fresh(f"{piece.dim.name}_in")
                self._masks[piece.dim] = self._writer.assign(name, " & ".join(terms))

    def _emit_lanes(self, piece: Piece) -> None:
        dim, first = piece.dim, self._first(piece)
        if piece.unit:
            self._starts[dim] = first
            return
        wide = ".to(tl.int64)" if self._wide else ""
        lanes = f"tl.arange(0, {piece.width}){wide}"
        self._lanes[dim] = self._writer.assign(
            self._names.fresh(f"{dim.name}_lane"), lanes
        )
        if first:
            self._starts[dim] = self._writer.assign(
                self._names.fresh(f"{dim.name}_at"), f"{first} + {self._lanes[dim]}"
            )
        else:
            self._starts[dim] = self._lanes[dim]

    def _first(self, piece: Piece) -> str:
        """The first position of the block's part, or nothing where it is 0."""
        if piece.grid_tile is None:
            return ""
        identifier = self.ids[piece.dim.name]
        return (
            identifier if piece.grid_tile == 1 else f"{identifier} * {piece.grid_tile}"
        )

    def positions(self, dim: Dim, lanes: int, step: int) -> str:
        """Every so many elements from the first one of the block's part on."""
        wide = ".to(tl.int64)" if self._wide else ""
        text = f"tl.arange(0, {lanes}){wide}" + (f" * {step}" if step != 1 else "")
        first = self._first(self._pieces[dim])
        return f"{first} + {text}" if first else text

    def start(self, dim: Dim) -> str:
        """Positions in the first iteration: a vector, a scalar, or nothing for 0."""
        return self._starts[dim]

    def advance(self, dim: Dim) -> str:
        """What iteration `it` adds to the positions; nothing if not looped."""
        tile = self._pieces[dim].loop_tile
        if tile is None:
            return ""
        return "it" if tile == 1 else f"it * {tile}"

    def offset(self, dim: Dim) -> str:
        """The first position of this iteration's piece, as a 32-bit number."""
        first = self._first(self._pieces[dim])
        text = " + ".join(t for t in (first, self.advance(dim)) if t) or "0"
        # Only the coordinates of the grid have 64 bits.
        return f"({text}).to(tl.int32)" if self._wide and first else text

    # -- Masks ---------------------------------------------------------------------

    def _outside_loop(self, piece: Piece) -> list[str]:
        """Conditions on a lane that do not change from iteration to iteration."""
        lane = self._lanes[piece.dim]
        terms: list[str] = []
        if piece.loop_tile is not None:
            if piece.padded:
                terms.append(f"({lane} < {piece.loop_tile})")
            return terms
        if piece.grid_tile is not None and piece.padded:
            terms.append(f"({lane} < {piece.grid_tile})")
        if piece.ragged_grid:
            at, size = self._starts[piece.dim], self._size(piece.dim.name)
            terms.append(f"({at} < {size})")
        if piece.grid_tile is None and piece.padded:
            terms.append(f"({lane} < {self._size(piece.dim.name)})")
        return terms

    def begin_loop(self) -> None:
        """Bind the masks that change with the iteration."""
        self._in_loop = True
        for piece in self._pieces.all:
            if piece.loop_tile is not None and piece.loose and not piece.unit:
                terms = self._outside_loop(piece) + self._of_iteration(piece)
                name = self._names.fresh(f"{piece.dim.name}_in")
                self._loop_masks[piece.dim] = self._writer.assign(
                    name, " & ".join(terms)
                )

    def _of_iteration(self, piece: Piece) -> list[str]:
        name, step = piece.dim.name, self.advance(piece.dim)
        terms: list[str] = []
        if piece.ragged_loop and piece.grid_tile is not None:
            terms.append(f"({step} + {self._lanes[piece.dim]} < {piece.grid_tile})")
        if piece.ragged_grid or (piece.ragged_loop and piece.grid_tile is None):
            at = self._starts[piece.dim]
            terms.append(f"({step} + {at} < {self._size(name)})")
        return terms

    def end_loop(self) -> None:
        """Leave the loop: looped pieces are indices within a tile from now on."""
        self._in_loop = False
        for piece in self._pieces.all:
            if piece.loop_tile is None or piece.unit:
                continue
            terms = self._outside_loop(piece)
            if piece.ragged_grid:
                size = self._size(piece.dim.name)
                terms.append(f"({self._starts[piece.dim]} < {size})")
            if terms:
                self._masks[piece.dim] = self._bind_late(piece, terms)

    def _bind_late(self, piece: Piece, terms: list[str]) -> str:
        name = self._names.fresh(f"{piece.dim.name}_in")
        return self._writer.assign(name, " & ".join(terms))

    def mask(self, dim: Dim) -> str:
        """The name of the mask of a piece here; nothing if all lanes are inside."""
        if self._in_loop and dim in self._loop_masks:
            return self._loop_masks[dim]
        return self._masks.get(dim, "")
