"""The memory of a block: where its pieces lie, their masks, loads, stores, requests."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_dsl.backends.triton.lowering.plan import Gapped, Signature, Strides
from mirage_dsl.backends.triton.lowering.source import (
    TRITON_DTYPE,
    TileCode,
    Variable,
    Writer,
    subscript,
)
from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.ir.graph import Split
from mirage_dsl.tile.build import memory_order
from mirage_dsl.tile.program import Ask, Store
from mirage_dsl.tile.sizes import (
    Order,
    Piece,
    Pieces,
    counts_down,
    has_excess,
    partial_of,
    power_of_two,
)


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
        size: Callable[[str], str],
        *,
        wide: bool,
    ) -> None:
        self._axes = axes
        self._pieces = pieces
        self._writer = writer
        self._size = size
        self._wide = wide
        self.far = ""
        self.ids: dict[str, str] = {}
        # Of the pieces that are axes of tiles.
        self._lanes: dict[Dim, str] = {}
        # Of all pieces.
        self._steps: dict[Dim, str] = {}
        self._starts: dict[Dim, str] = {}
        self._masks: dict[Dim, str] = {}
        self._loop_masks: dict[Dim, str] = {}
        self._in_loop = False

    # -- Program ids and positions -------------------------------------------------

    def emit_ids(self, without: Container[str] = ()) -> None:
        """Bind the coordinate of each grid axis, and a zero that widens offsets.

        Args:
            without: The dims of an axis whose coordinates are data.
        """
        if self._wide:
            self.far = self._writer.define("far", "tl.full((), 0, tl.int64)")
        for number, axis in enumerate(self._axes):
            if axis[0].dim in without:
                continue
            wide = ".to(tl.int64)" if self._wide else ""
            text = f"tl.program_id({number}){wide}"
            if counts_down(axis, self._pieces.block):
                text = f"tl.num_programs({number}) - 1 - {text}"
            name = self._writer.define("_".join([*(s.dim for s in axis), "id"]), text)
            self.ids |= dict.fromkeys((s.dim for s in axis), name)

    def emit_id_at(
        self, split: Split, spans: Sequence[tuple[int | str, int]], number: int
    ) -> None:
        """Bind the coordinate of the block that has positions, or of the nearest.

        Args:
            split: Whose coordinate it is.
            spans: The first position of each, and how many blocks have some of it; one
                block after the other is theirs along the axis.
            number: Of the axis.
        """
        size = self._size(split.dim)
        last = f"({size} - 1) // {split.tile}"
        if size.isdigit():
            last = str((int(size) - 1) // split.tile)
        text, before = "", 0
        for first, count in spans:
            if isinstance(first, int):
                at = str(first // split.tile)
            else:
                at = f"tl.minimum(tl.maximum({first} // {split.tile}, 0), {last})"
            if sum(n for _, n in spans) > 1:
                at = f"{at} + tl.program_id({number}) - {before}"
            text = (
                f"tl.where(tl.program_id({number}) < {before}, {text}, {at})"
                if text
                else at
            )
            before += count
        if len(spans) == 1 and spans[0][1] == 1 and isinstance(spans[0][0], int):
            text = f"tl.full((), {text}, tl.int32)"
        dtype = "tl.int64" if self._wide else "tl.int32"
        self.ids[split.dim] = self._writer.define(
            f"{split.dim}_id", f"({text}).to({dtype})"
        )

    def emit_positions(self, which: Callable[[Piece], bool] = lambda _: True) -> None:
        """Bind lanes and starting positions of pieces, and their constant masks."""
        pieces = [piece for piece in self._pieces.all if which(piece)]
        for piece in pieces:
            self._emit_lanes(piece)
        for piece in pieces:
            if piece.loop_tile is None and self.is_axis(piece.dim) and piece.loose:
                terms = self._outside_loop(piece)
                self._masks[piece.dim] = self._bind_mask(piece, terms)

    def _emit_lanes(self, piece: Piece) -> None:
        dim, first, tile = piece.dim, self._first(piece), piece.loop_tile
        self._steps[dim] = "" if tile is None else "it" if tile == 1 else f"it * {tile}"
        if piece.unit:
            self._starts[dim] = first
            return
        wide = ".to(tl.int64)" if self._wide else ""
        lanes = f"tl.arange(0, {piece.width}){wide}"
        self._lanes[dim] = self._writer.define(f"{dim.name}_lane", lanes)
        if first:
            self._starts[dim] = self._writer.define(
                f"{dim.name}_at", f"{first} + {self._lanes[dim]}"
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

    def run(self, side: Order) -> dict[Dim, str]:
        """Positions along pieces that lie in memory as one axis: of the last, of all.

        What the others add is the block's part of the first one.
        """
        lanes = prod(self._pieces.shape(side))
        wide = ".to(tl.int64)" if self._wide else ""
        wanted = "_".join([*(d.name for d in side), "lane"])
        name = self._writer.define(wanted, f"tl.arange(0, {lanes}){wide}")
        found = {d: self._first(self._pieces[d]) for d in side[:-1]}
        return {**found, side[-1]: name}

    def part(self, name: str) -> str:
        """The first position of the block's part of a dim that the grid splits."""
        tile = next(s.tile for a in self._axes for s in a if s.dim == name)
        identifier = self.ids[name]
        return identifier if tile == 1 else f"{identifier} * {tile}"

    def start(self, dim: Dim) -> str:
        """Positions in the first iteration: a vector, a scalar, or nothing for 0."""
        return self._starts[dim]

    def advance(self, dim: Dim) -> str:
        """What iteration `it` adds to the positions; nothing if not looped."""
        return self._steps[dim]

    def is_piece(self, dim: Dim) -> bool:
        """Whether a dim of a store is a piece; else it numbers the parts, `k#`."""
        return dim in self._steps

    def is_axis(self, dim: Dim) -> bool:
        """Whether tiles have an axis for a dim."""
        return dim in self._lanes

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
            looped = piece.loop_tile is not None and self.is_axis(piece.dim)
            if looped and piece.loose:
                terms = self._outside_loop(piece) + self._of_iteration(piece)
                self._loop_masks[piece.dim] = self._bind_mask(piece, terms)

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
            if piece.loop_tile is None or not self.is_axis(piece.dim):
                continue
            terms = self._outside_loop(piece)
            if piece.ragged_grid:
                size = self._size(piece.dim.name)
                terms.append(f"({self._starts[piece.dim]} < {size})")
            if terms:
                self._masks[piece.dim] = self._bind_mask(piece, terms)

    def _bind_mask(self, piece: Piece, terms: list[str]) -> str:
        return self._writer.define(f"{piece.dim.name}_in", " & ".join(terms))

    def mask(self, dim: Dim) -> str:
        """The name of the mask of a piece here; nothing if all lanes are inside."""
        if self._in_loop and dim in self._loop_masks:
            return self._loop_masks[dim]
        return self._masks.get(dim, "")


# -- Addresses, loads and stores -------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """The pointers of a load or store.

    Attributes:
        first: An expression of the pointers, of the first iteration in a loop.
        step: What iteration `it` adds; nothing outside of loops.
    """

    first: str
    step: str


class Memory:
    """Emits the memory accesses of one block."""

    def __init__(
        self,
        places: Places,
        tiles: TileCode,
        extents: Mapping[str, int | None],
        size: Callable[[str], str],
        *,
        wide: bool,
    ) -> None:
        self._block = tiles.pieces.block
        self._places = places
        self._tiles = tiles
        self._extents = extents
        self._size = size
        self._wide = wide

    @property
    def _writer(self) -> Writer:
        return self._tiles.writer

    def address(
        self,
        pointer: str,
        axes: Sequence[Axis],
        strides: Strides,
        order: Sequence[Dim],
        *,
        starts: Mapping[Dim, str] | None = None,
        without: Dim | None = None,
    ) -> Address:
        """The address of a tile whose axes have the order `order`.

        Args:
            pointer: Of the tensor.
            axes: Of the tensor.
            strides: Of the axes.
            order: Dims of the tile.
            starts: Positions in the first iteration, where they are not the tile's.
            without: The dim along which it is the address of the first position.
        """
        first, step = [pointer], list[str]()
        for axis, stride in zip(axes, strides, strict=True):
            if isinstance(stride, Gapped):
                at, moved = self._at(axis, order, starts or {})
                (step if moved else first).extend(taken_apart(at, stride))
                continue
            factors: list[str | int] = [stride]
            for dim in reversed(axis):
                index, moved = "", ""
                if dim != without:
                    index, moved = self._index(dim, order, starts or {})
                if index:
                    first.append(times(index, factors))
                if moved:
                    step.append(times(moved, factors))
                factors = [*factors, self.size(dim)]
        return Address(" + ".join(first), " + ".join(step))

    def size(self, dim: Dim) -> str | int:
        """The extent of a dim."""
        extent = self._extents.get(dim.name)
        return self._size(dim.name) if extent is None else extent

    def stride(
        self, axes: Sequence[Axis], strides: Strides, dim: Dim
    ) -> list[str | int]:
        """How far apart in memory the positions along a dim of a tensor are."""
        pairs = zip(axes, strides, strict=True)
        axis, stride = next((a, s) for a, s in pairs if dim in a)
        assert not isinstance(stride, Gapped)
        behind = axis[axis.index(dim) + 1 :]
        return [stride, *(self.size(d) for d in reversed(behind))]

    def positions(self, axis: Axis, order: Sequence[Dim]) -> str:
        """The row-major positions along an axis; nothing for 0."""
        return self._at(axis, order, {})[0]

    def _at(
        self, axis: Axis, order: Sequence[Dim], starts: Mapping[Dim, str]
    ) -> tuple[str, bool]:
        """The row-major positions along an axis, and whether iterations move them."""
        found, factors, moves = list[str](), list[str | int](), False
        for dim in reversed(axis):
            index, moved = self._index(dim, order, starts)
            found += [times(text, factors) for text in (index, moved) if text]
            factors, moves = [*factors, self.size(dim)], moves or bool(moved)
        return " + ".join(found), moves

    def _index(
        self, dim: Dim, order: Sequence[Dim], starts: Mapping[Dim, str]
    ) -> tuple[str, str]:
        """Positions along a dim, and what an iteration adds to them."""
        if not self._places.is_piece(dim):
            return self._number(dim), ""
        index = starts[dim] if dim in starts else self._places.start(dim)
        moved = self._places.advance(dim)
        if dim in order:
            index += subscript((dim,), order)
        if moved and self._wide:
            moved = f"({self._places.far} + {moved})"
        return index, moved

    def _number(self, dim: Dim) -> str:
        """Which of the parts along `k#` is the block's.

        Blocks that have no part of `k` compute what all others do, and write it once
        more where the last one does.
        """
        base = partial_of(dim, self._block)
        assert base is not None
        number, split = self._places.ids[base], self._block.grid_split(base)
        if split is None or not has_excess(split, self._block, self._extents):
            return number
        return f"tl.minimum({number}, {self._size(dim.name)} - 1)"

    def mask(self, order: Sequence[Dim]) -> str:
        """The condition under which a lane of a tile is inside; nothing if all are."""
        parts: list[str] = []
        for dim in order:
            name = self._places.mask(dim)
            if name:
                parts.append(name + subscript((dim,), order))
        return " & ".join(parts)

    def load(
        self,
        address: Address,
        order: Order,
        name: str,
        *,
        whole: bool = False,
        inside: str = "",
    ) -> None:
        """Load a tile, of integers if they are whole; lanes outside are 0.

        Args:
            address: Its pointers.
            order: Its axes.
            name: Of the variable.
            whole: Whether it is of integers.
            inside: What lanes have to meet besides.
        """
        self._tiles.shape(order)
        pointers = address.first
        if address.step:
            pointers += f" + {address.step}"
        mask = " & ".join(m for m in (self.mask(order), inside) if m)
        other = "0" if whole else "0.0"
        guard = f", mask={mask}, other={other}" if mask else ""
        self._writer.assign(name, f"tl.load({pointers}{guard})")

    def store(
        self,
        node: Store,
        pointer: str,
        strides: Strides,
        tile: Variable,
        lanes: Order = (),
        chosen: Callable[[Order], str] = lambda _: "",
    ) -> None:
        """Store the lanes of a tile that are inside.

        Args:
            node: What is stored where.
            pointer: Of the tensor.
            strides: Of its axes.
            tile: What is stored.
            lanes: The axes along which it is, where the tile lacks some of them.
            chosen: What lanes of these axes have to meet besides.
        """
        lanes = lanes or tile.axes
        dims = [d for axis in node.at for d in axis]
        missing = [d for d in dims if self._places.is_axis(d) and d not in lanes]
        order = (*lanes, *missing)
        # A dim of extent 1 that only the tile has: its lanes are one address.
        extra = tuple((d,) for d in lanes if d not in dims)
        axes, steps = (*node.at, *extra), (*strides, *(0 for _ in extra))
        address = self.address(pointer, axes, steps, order)
        value = self._tiles.as_dtype(tile, node.dtype)
        text = value.name
        if tile.axes != order:
            text = self._spread(value, order)
        mask = " & ".join(m for m in (self.mask(order), chosen(order)) if m)
        guard = f", mask={mask}" if mask else ""
        pointers = self._writer.define(
            f"{node.result}_at",
            address.first + (f" + {address.step}" if address.step else ""),
        )
        self._writer.line(f"tl.store({pointers}, {text}{guard})")

    def _spread(self, tile: Variable, order: Order) -> str:
        shape = self._tiles.shape(order)
        if tile.dtype.only_stores and not tile.axes:
            return f"tl.broadcast_to({tile.name}, {shape})"
        if not tile.axes and not tile.dtype.is_integer:
            return f"tl.full({shape}, 0.0, tl.float32) + {tile.name}"
        if not tile.axes:
            zero = f"tl.full({shape}, 0, {TRITON_DTYPE[tile.dtype.name]})"
            return f"{zero} + {tile.name}"
        return f"tl.broadcast_to({tile.name}{subscript(tile.axes, order)}, {shape})"


def taken_apart(position: str, axis: Gapped) -> list[str]:
    """What a position along an axis that is several axes adds to an address."""
    whole = f"({position})" if " " in position else position
    found: list[str] = []
    for at, (size, stride) in enumerate(zip(axis.sizes, axis.strides, strict=True)):
        inner = axis.sizes[at + 1 :]
        text = f"{whole} // {product(inner)}" if inner else whole
        if at:
            text = f"({text}) % {size}" if inner else f"{text} % {size}"
        found.append(times(f"({text})", [stride]))
    return found if position else []


def product(factors: Sequence[str | int]) -> str:
    """Factors as one number, or as an expression that may be divided by."""
    known = prod(f for f in factors if isinstance(f, int))
    others = [f for f in factors if isinstance(f, str)]
    if not others:
        return str(known)
    text = " * ".join([*others, *([str(known)] if known != 1 else [])])
    return f"({text})" if " " in text else text


def times(index: str, factors: Sequence[str | int]) -> str:
    """`index` times the factors, numbers first multiplied with each other."""
    numbers, others = 1, list[str]()
    for factor in factors:
        if isinstance(factor, int):
            numbers *= factor
        else:
            others.append(factor)
    if numbers != 1:
        others.append(str(numbers))
    return " * ".join([index, *others])


# -- What is asked for ahead -----------------------------------------------------------

LINE = 128
"""Bytes of a cache line."""

PREFETCH = '''
@triton.jit
def prefetch(lines):
    """Ask cache lines into the L2 cache, without waiting for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [lines.to(tl.uint64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
'''
"""What a module with such kernels defines."""


class Prefetcher:
    """Emits the requests of one block, ahead of its wait."""

    def __init__(
        self, tiles: TileCode, places: Places, memory: Memory, signature: Signature
    ) -> None:
        self._tiles = tiles
        self._places = places
        self._memory = memory
        self._signature = signature

    def ask(self, asked: Ask) -> None:
        """Ask for the first few tiles of a load of the loop."""
        writer = self._tiles.writer
        source, pieces = asked.source, self._tiles.pieces
        of_line = LINE // self._signature.dtype(source).itemsize
        starts: dict[Dim, str] = {}
        writer.line(f"# the first tiles of {source}, while this kernel waits")
        box = memory_order(asked, self._signature.type(source))
        for dim in box:
            step = of_line if dim == box[-1] else 1
            lanes = max(1, self._lanes(pieces[dim], asked.tiles) // step)
            starts[dim] = writer.define(
                f"{source}_{dim.name}",
                self._places.positions(dim, lanes, step),
            )
        pointer, strides = self._signature.access(source)
        dims = tuple(d for axis in asked.at for d in axis)
        address = self._memory.address(pointer, asked.at, strides, dims, starts=starts)
        writer.below("if EARLY:", [f"prefetch({address.first})"])

    @staticmethod
    def _lanes(piece: Piece, tiles: int) -> int:
        """Elements of the first few tiles; those of one that is not looped over."""
        if piece.loop_tile is None:
            return piece.width
        part = piece.grid_tile or piece.extent or piece.loop_tile
        most = power_of_two(part // piece.loop_tile + 1) // 2
        return piece.width * min(tiles, most)
