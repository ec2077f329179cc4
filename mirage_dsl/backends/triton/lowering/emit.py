"""μGraph → one readable Python module: Triton kernels and a function that runs them.

Tile programs are printed statement by statement.  What is done, in which order and by
what stands in the program; printing gives names, addresses, positions and masks.  Every
statement stands below the IR line that it comes from.

**The memory of a block**: where its pieces lie, their masks, loads, stores, requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any

from mirage_dsl.backends.library import HELPERS, number
from mirage_dsl.backends.triton.lowering.plan import (
    Gapped,
    KernelPlan,
    Launcher,
    ModulePlan,
    Signature,
    Strides,
    Surroundings,
    head_of,
)
from mirage_dsl.backends.triton.lowering.source import (
    COMPILED,
    TRITON_DTYPE,
    UNPACKING,
    TileCode,
    Variable,
    Writer,
    identifier,
    literal,
    subscript,
    unpacked_texts,
)
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import FIRST_EARLY
from mirage_dsl.core.types import Axis, Dim, DType, Scalar, TensorType, f16, f32, i32
from mirage_dsl.ir.analysis.layouts import FlatValues, built, flat_values
from mirage_dsl.ir.analysis.waiting import Announced, launches
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, LoopBound, Operand, Split
from mirage_dsl.ops.makers import JOIN_PREFIX
from mirage_dsl.ops.table import CAST, OPERATORS, SUB, WHERE
from mirage_dsl.tile.build import build, memory_order
from mirage_dsl.tile.changes import Narrowed, Stretch, Written, changes
from mirage_dsl.tile.combined import packed, positions, runs
from mirage_dsl.tile.program import (
    AGAIN,
    MERGED,
    Along,
    Announce,
    Ask,
    Cast,
    Compute,
    Convert,
    Finite,
    Lane,
    Largest,
    Load,
    Loop,
    Making,
    Mask,
    Merge,
    Notes,
    Part,
    Positions,
    Product,
    Reduce,
    Rescale,
    Scan,
    Start,
    Statement,
    Store,
    TileProgram,
    Update,
    Wait,
    loop_parts,
    makes,
    walk,
)
from mirage_dsl.tile.sizes import (
    Order,
    Outer,
    Piece,
    Pieces,
    counts_down,
    has_excess,
    launch_order,
    outer_of,
    partial_of,
    power_of_two,
)
from mirage_dsl.tile.suited import suited

# -- The memory of a block -------------------------------------------------------------


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
        for place, axis in enumerate(self._axes):
            if axis[0].dim in without:
                continue
            wide = ".to(tl.int64)" if self._wide else ""
            text = f"tl.program_id({place}){wide}"
            if counts_down(axis, self._pieces.block):
                text = f"tl.num_programs({place}) - 1 - {text}"
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

_PREFETCH = '''
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


# -- A module --------------------------------------------------------------------------

EARLY = f"""
# Whether kernels may start before those ahead of them have ended: from \
{FIRST_EARLY.name} on.
EARLY = tl.constexpr(
    not triton.knobs.runtime.interpret
    and torch.cuda.is_available()
    and torch.cuda.get_device_capability() >= {FIRST_EARLY.capability}
)
"""
"""What a module with kernels that start early defines."""
AS_NUMBER = ".to(tl.float32)"
"""What makes a number of a comparison."""
FAR = 2**31
"""Offsets from here on do not fit into 32 bits."""


def emit(graph: KernelGraph) -> str:
    """The Python source that computes a μGraph.

    The module defines one `@triton.jit` function per block graph, and
    `run(*tensors)`, which returns the list of outputs.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    return plan(graph).source


def plan(
    graph: KernelGraph,
    *,
    wide: bool = False,
    pointers: bool = False,
    out: bool = False,
    dense: Collection[str] = (),
    gapped: Collection[str] = (),
    over: Iterable[tuple[str, str]] = (),
    most: Mapping[str, int] | None = None,
) -> ModulePlan:
    """The emitted module with its parts.

    Args:
        graph: What to emit.
        wide: Use 64-bit offsets even where the extents do not call for them, as for
            inputs whose strides reach far.
        pointers: Use no tensor descriptors, as for inputs whose strides or addresses
            they cannot express.
        out: `run` takes tensors for the outputs too, of any strides.
        dense: Inputs and outputs that have no gaps between their elements: strides
            that follow from symbolic extents are computed and not compiled in.
        gapped: Flat values that have gaps between the axes that are one for kernels.
        over: Results of kernels that are stored where what they read lies, each with
            that: elements that stay are neither read nor stored.
        most: The largest extents of symbolic dims: blocks can hold these whole.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    outer = outer_of(graph, most=most, pointers=pointers)
    flat = flat_values(graph, outer.types, outer.placed)
    given = _given(graph, outer, flat) if out else None
    taken = {v for whole in given or () for v in (whole, *flat.of(whole))}
    around = Surroundings(
        outer.types,
        outer.extents,
        outer.most,
        packed=outer.packed - taken,
        placed=outer.placed,
        inputs=outer.inputs,
        pointers=pointers,
        given=given,
        wide=wide or any(is_far(t, outer.extents) for t in outer.types.values()),
        dense=dense,
        flat=flat,
        gapped=gapped,
        over=dict(over),
    )
    kernels = _kernels(graph, around)
    launcher = Launcher(graph, around, [k.name for k in kernels])
    run = launcher.write(kernels)
    lines = _head(graph, kernels)
    for kernel in kernels:
        lines += ["", "", *kernel.lines]
    for helper in sorted(launcher.helpers):
        lines += ["", *HELPERS[helper].rstrip("\n").split("\n")]
    lines += ["", "", *run]
    return ModulePlan(graph, "\n".join(lines) + "\n", tuple(kernels), around)


def _kernels(graph: KernelGraph, around: Surroundings) -> list[KernelPlan]:
    found: list[KernelPlan] = []
    for launch in launches(graph):
        check_rank(launch.block)
        name = f"{identifier(graph.name)}_kernel{len(found)}"
        kernel = emit_block(
            launch.block, name, around, announced=launch.announced, made=launch.made
        )
        found.append(kernel)
    return found


def _head(graph: KernelGraph, kernels: list[KernelPlan]) -> list[str]:
    lines = [
        f'"""{graph.name}: {len(kernels)} Triton kernel{"s" * (len(kernels) != 1)}."""',
        "",
        "import torch",
        "import triton",
        "import triton.language as tl",
    ]
    if any(k.schedule.pdl for k in kernels):
        lines.append(
            "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
        )
    if any(p.kind == "descriptor" for k in kernels for p in k.params):
        lines.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    if any(k.schedule.pdl for k in kernels):
        lines += ["", *EARLY.rstrip("\n").split("\n")]
    if any(k.prefetches for k in kernels):
        lines += ["", *_PREFETCH.rstrip("\n").split("\n")]
    for text in functions_called(line for k in kernels for line in k.lines):
        lines += ["", *text.rstrip("\n").split("\n")]
    return lines


def _given(graph: KernelGraph, outer: Outer, flat: FlatValues) -> dict[str, int]:
    """Values that can be made in the caller's tensors, with the number of the output.

    A value must lie in the caller's tensor as a view: its axes may be cut out of the
    output's, but not joined.
    """
    placed = outer.placed
    made = built(placed).union(*(b.results for b in graph.blocks)) - placed.keys()
    made |= {flat.within[v].whole for v in made & flat.within.keys()}
    found: dict[str, int] = {}
    for at, item in enumerate(graph.returns):
        kind = outer.types[item.value]
        alike = kind.axes == item.type.axes or all(len(a) == 1 for a in kind.axes)
        if item.value in made and kind.dtype == item.type.dtype and alike:
            found.setdefault(item.value, at)
    return found


def is_far(kind: TensorType, extents: Mapping[str, int | None]) -> bool:
    """Whether a packed tensor has too many elements for 32 bits, by what is known."""
    sizes = [extents.get(n) for n in kind.names]
    known = [s for s in sizes if s is not None]
    return prod(known) >= FAR


def check_rank(block: BlockGraph) -> None:
    """Refuse what the launch cannot number.

    Raises:
        UnsupportedError: The grid has more than three axes.
    """
    if len(block.axes) > 3:
        raise UnsupportedError(
            f"a grid of {len(block.axes)} axes; a launch has at most 3"
        )


# -- One kernel ------------------------------------------------------------------------

FULL_PRECISION = 'input_precision="ieee"'
TF32 = 'input_precision="tf32"'
"""f32 products as they are, and with operands rounded to TF32."""

PRECISIONS = {"storage": "", "tf32": f", {TF32}", "ieee": f", {FULL_PRECISION}"}

APART = "max_num_imprecise_acc=1"
"""Keeps a product apart from the sum that it is added to.

f32 products are added one after the other: over the whole loop, each would be rounded
at the size of the sum.  Tile by tile, few are.  Triton makes one chain of a sum and a
product again, unless the product has this limit, which says nothing for f32 otherwise.
"""

LOG2_E = math.log2(math.e)

FUNCTIONS: Mapping[str, str] = MappingProxyType(
    {
        "power": '''
@triton.jit
def power(a, b):
    """a to the power b, of any sign and size, as the C library has it."""
    x, y = tl.cast(a, tl.float64), tl.cast(b, tl.float64)
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole = tl.where(tl.floor(y * 0.5) * 2.0 == y, size, -size)
    part = tl.where(x == 0, size, tl.where(x == float("-inf"), size, float("nan")))
    below = tl.where(tl.floor(y) == y, whole, part)
    found = tl.where(x < 0, below, tl.where(1.0 / x < 0, below, size))
    found = tl.where(tl.abs(y) == float("inf"), tl.where(x == -1, 1.0, found), found)
    found = tl.where(y == 0, 1.0, tl.where(x == 1, 1.0, found))
    return tl.cast(found, tl.float32)
''',
        "log1p": '''
@triton.jit
def log1p(a):
    """The logarithm of 1 + a, also where a is next to nothing beside 1."""
    x = tl.cast(a, tl.float64)
    near = x - x * x * (0.5 - x / 3.0)
    return tl.cast(tl.where(tl.abs(x) < 1e-5, near, tl.log(1.0 + x)), tl.float32)
''',
        "expm1": '''
@triton.jit
def expm1(a):
    """e to the power a, less 1, also where that is next to nothing beside 1."""
    x = tl.cast(a, tl.float64)
    near = x + x * x * (0.5 + x / 6.0)
    return tl.cast(tl.where(tl.abs(x) < 1e-5, near, tl.exp(x) - 1.0), tl.float32)
''',
        "round_even": '''
@triton.jit
def round_even(a):
    """The nearest whole number, of two equally near ones the even one."""
    low = tl.floor(a)
    rest = a - low
    odd = tl.floor(low * 0.5) * 2.0 != low
    return tl.where((rest > 0.5) | ((rest == 0.5) & odd), low + 1.0, low)
''',
        "to_f8e4m3": '''
@triton.jit
def to_f8e4m3(a):
    """The nearest number of 8 bits; what is beyond the largest one is that one."""
    low = tl.maximum(a, -448.0, propagate_nan=tl.PropagateNan.ALL)
    inside = tl.minimum(low, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return inside.to(tl.float8e4nv)
''',
        "to_f8e5m2": '''
@triton.jit
def to_f8e5m2(a):
    """The nearest number of 8 bits; what is beyond the largest one is infinite."""
    bits = a.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinite = tl.where(a < 0, 0xFC, 0x7C).to(tl.uint8)
    bits = tl.where(tl.abs(a) >= 61440.0, infinite, bits)
    return bits.to(tl.float8e5, bitcast=True)
''',
        "fmod": '''
@triton.jit
def fmod(a, b):
    """What is left of a after as many whole b as fit, with the sign of a."""
    x, y = tl.cast(a, tl.float64), tl.abs(tl.cast(b, tl.float64))
    left = tl.abs(x)
    # f32 values are up to 2**277 apart; 2**24 times b fits a number of times that
    # float64 holds, so that each step is exact but for one b too many.
    for step in tl.static_range(12):
        size = y * 2.0 ** (264 - 24 * step)
        left = left - tl.floor(left / size) * size
        left = tl.where(left < 0, left + size, left)
    found = tl.where(x < 0, -left, left)
    beyond = tl.where(y == float("inf"), x, found)
    return tl.cast(tl.where(tl.abs(x) < y, beyond, found), tl.float32)
''',
        "atan2": '''
@triton.jit
def atan2(a, b):
    """The angle of the point b to the right and a up, between -pi and pi."""
    y, x = tl.cast(a, tl.float64), tl.cast(b, tl.float64)
    rise, run = tl.abs(y), tl.abs(x)
    less, more = tl.where(rise > run, run, rise), tl.where(rise > run, rise, run)
    slope = less / tl.where(more == 0, 1.0, more)
    slope = tl.where(less == more, tl.where(more > 0, 1.0, slope), slope)
    # An eighth of the angle, whose series ends soon.
    for _ in tl.static_range(3):
        slope = slope / (1.0 + tl.sqrt(1.0 + slope * slope))
    z = slope * slope
    tail = z * (1.0 / 9.0 - z * (1.0 / 11.0 - z / 13.0))
    series = 1.0 - z * (1.0 / 3.0 - z * (1.0 / 5.0 - z * (1.0 / 7.0 - tail)))
    angle = 8.0 * slope * series
    angle = tl.where(rise > run, 1.5707963267948966 - angle, angle)
    # What is below 0, or is -0, whose reciprocal is.
    left = tl.where(x == 0, 1.0 / x, x)
    angle = tl.where(left < 0, 3.141592653589793 - angle, angle)
    down = tl.where(y == 0, 1.0 / y, y)
    angle = tl.where(down < 0, -angle, angle)
    angle = tl.where(x != x, x, tl.where(y != y, y, angle))
    return tl.cast(angle, tl.float32)
''',
        "floor_divide": '''
@triton.jit
def floor_divide(a, b):
    """a / b rounded down, of integers; the GPU rounds towards 0."""
    below = (a % b != 0) & ((a < 0) != (b < 0))
    return a // b - below.to((a // b).dtype)
''',
        "remainder": '''
@triton.jit
def remainder(a, b):
    """What is left of a by b, with the sign of b; the GPU gives it that of a."""
    rest = a % b
    other = (rest != 0) & ((rest < 0) != (b < 0))
    return tl.where(other, rest + b, rest)
''',
        **UNPACKING,
    }
)
"""Functions that an emitted module defines when a template calls them."""

_JOIN = """
@triton.jit
def {}(a, b):
    return {}
"""


def functions_called(lines: Iterable[str]) -> list[str]:
    """The functions that a module has to define for the lines of its kernels.

    Among them are those by which `tl.reduce` and `tl.associative_scan` join elements
    (`JOIN_PREFIX`), as the templates of the joins say.
    """
    code = "\n".join(lines)
    names = set(re.findall(rf"\b{JOIN_PREFIX}(\w+)\b", code))
    joined = [
        _JOIN.format(f"{JOIN_PREFIX}{join.name}", join.triton.format("a", "b"))
        for join in dict.fromkeys(o.join for o in OPERATORS.values())
        if join is not None and join.name in names
    ]
    code = "\n".join((code, *joined))
    called = [t for n, t in FUNCTIONS.items() if re.search(rf"(?<![\w.]){n}\(", code)]
    compiled = [COMPILED] * any("COMPILED" in text for text in called)
    return compiled + called + joined


def emit_block(
    block: BlockGraph,
    name: str,
    around: Surroundings,
    *,
    announced: Announced = "",
    made: AbstractSet[str] | None = None,
) -> KernelPlan:
    """The Triton kernel of a block graph.

    Args:
        block: What to emit.
        name: Of the kernel.
        around: Its kernel graph.
        announced: When the kernel behind it may start; never before this one's wait.
        made: What kernels of the μGraph made before; None in the first kernel.

    Raises:
        UnsupportedError: Triton cannot express something of it.
    """
    given = suited(block, around)
    program = build(given, name=name, announced=announced, made=made)
    return _Printer(program, given.pieces, given.around).plan()


class _Printer:
    def __init__(
        self, program: TileProgram, pieces: Pieces, around: Surroundings
    ) -> None:
        self._program, self._pieces, self._around = program, pieces, around
        self._writer = Writer()
        signature = self._signature = Signature(around, self._writer.names)
        self._axes = launch_order(pieces.block, around.extents, around.types)
        places = self._places = Places(
            self._axes,
            pieces,
            self._writer,
            signature.size,
            wide=around.wide,
        )
        tiles = self._tiles = TileCode(self._writer, pieces, places.mask)
        self._memory = Memory(
            places, tiles, around.extents, signature.size, wide=around.wide
        )
        self._packed = packed(program, lambda d: pieces[d].width)
        self._runs = runs(program, lambda d: not pieces[d].loose)
        self._changes = changes(program, around.over)
        self._variables: dict[str, Variable] = {}
        # Truth values as bits, by the names of those that are numbers.
        self._truths: dict[str, str] = {}
        self._chosen_by = _deciding(program)
        self._hoisted = False
        self._ranges: Mapping[Part, tuple[str, str]] = {}
        self._addresses: dict[str, Address] = {}
        self._descriptors: dict[str, str] = {}
        self._print = self._methods()

    def _methods(self) -> Mapping[type, Callable[[Any], None]]:
        """What prints each kind of statement."""
        return {
            Load: self._load,
            Store: self._store,
            Ask: self._ask,
            Positions: self._positions,
            Compute: self._compute,
            Cast: self._cast,
            Finite: self._finite,
            Convert: self._convert,
            Mask: self._mask,
            Merge: self._merge,
            Lane: self._lane,
            Reduce: self._reduce,
            Scan: self._scan,
            Product: self._product,
            Start: self._start,
            Rescale: self._rescale,
            Update: self._update,
            Largest: self._largest,
            Wait: self._wait,
            Announce: self._announce,
            Loop: self._loop,
        }

    # -- The kernel ----------------------------------------------------------------

    def plan(self) -> KernelPlan:
        """The kernel."""
        program, block = self._program, self._pieces.block
        self._writer.indent()
        narrowed = self._changes.narrowed
        if narrowed is None:
            self._places.emit_ids()
            self._places.emit_positions()
            self._region(program.body, program.closing)
        else:
            self._narrowed(narrowed)
        self._writer.dedent()
        params = self._signature.in_order()
        grid = tuple(self._blocks(a) for a in self._axes) or ("1",)
        lines = (*head_of(program.name, params), *self._writer.lines)
        assert isinstance(program.warps, int)
        schedule = replace(block.schedule, num_warps=program.warps)
        block = replace(block, schedule=schedule)
        return KernelPlan(program.name, block, params, grid, lines)

    def _narrowed(self, narrowed: Narrowed) -> None:
        """The kernel with those blocks along an axis that are at places."""
        places, known = self._places, narrowed.stretches
        places.emit_ids(without=known)
        places.emit_positions(lambda piece: piece.dim.name not in known)
        self._region(narrowed.ahead, ())
        for dim, each in known.items():
            split = self._pieces.block.grid_split(dim)
            assert split is not None
            spans = [(self._first(p), p.blocks(split.tile)) for p in each]
            number = next(n for n, a in enumerate(self._axes) if split in a)
            places.emit_id_at(split, spans, number)
        places.emit_positions(lambda piece: piece.dim.name in known)
        rest = [s for s in self._program.body if s not in narrowed.ahead]
        self._region(rest, self._program.closing)

    def _first(self, stretch: Stretch) -> int | str:
        """The first position of a stretch: a number, or an expression."""
        if isinstance(stretch.first, int):
            return stretch.first
        return self._form(stretch.first, (), i32)

    def _blocks(self, axis: Sequence[Split]) -> str:
        """How many blocks the launch has along an axis of the grid."""
        narrowed = self._changes.narrowed
        if narrowed is not None and axis[0].dim in narrowed.stretches:
            found = narrowed.stretches[axis[0].dim]
            return str(sum(each.blocks(axis[0].tile) for each in found))
        return self._signature.parts(axis)

    def _region(self, body: Sequence[Statement], closing: Notes) -> None:
        left_out = self._packed.steps | self._changes.unused
        for statement in body:
            if statement.notes:
                self._writer.comment(statement.notes)
            if not left_out or left_out.isdisjoint(makes(statement)):
                self._print[type(statement)](statement)
        self._writer.comment(closing)

    def _loop(self, loop: Loop) -> None:
        self._hoist()
        stages = self._program.schedule.num_stages
        if not self._ranges:
            self._ranges = self._parts()
        first, end = self._ranges[loop.part]
        self._writer.line(f"for it in tl.range({first}, {end}, num_stages={stages}):")
        self._writer.indent()
        self._tiles.enter()
        before = len(self._writer.lines)
        self._places.begin_loop()
        self._region(loop.body, loop.closing)
        if len(self._writer.lines) == before:
            self._writer.line("pass")
        self._tiles.leave()
        self._writer.dedent()
        if loop.part == loop_parts(self._program.whole)[-1]:
            self._places.end_loop()

    def _parts(self) -> Mapping[Part, tuple[str, str]]:
        """Of each part, the first iteration, and the one behind the last."""
        program = self._program
        first, end = self._visited(self._signature.iterations(program))
        ranges: dict[Part, tuple[str, str]] = {"": (first, end)}
        if not program.whole:
            return ranges
        begin, last = first, end
        for bound in program.whole:
            place = self._covered(bound)
            if bound.upper:
                last = self._assign("it_whole", f"tl.minimum({place}, {last})")
            else:
                begin = self._assign("it_whole", f"tl.maximum({place}, {begin})")
        if begin != first:
            begin = self._assign("it_whole", f"tl.minimum({begin}, {end})")
            ranges["ahead"] = first, begin
        if last != end:
            last = self._assign("it_masked", f"tl.maximum({last}, {begin})")
            ranges["behind"] = last, end
        ranges["whole"] = begin, last
        return ranges

    def _place(self, bound: LoopBound, shift: int) -> str:
        """The tile of the loop that a block's place, so far shifted, lies in."""
        return self._tile_of(f"{self._places.part(bound.dim)} + {shift}")

    def _tile_of(self, place: str | int) -> str:
        """The tile of the loop that a position of its dim lies in."""
        program = self._program
        assert program.loop is not None
        if program.within_grid:
            place = f"{place} - {self._places.part(program.loop.dim)}"
        if isinstance(place, int):
            return str(place // program.loop.tile)
        # Integers are divided towards 0, so what is below comes to 0 first.
        return f"tl.maximum({place}, 0) // {program.loop.tile}"

    def _covered(self, bound: LoopBound) -> str:
        """Where the iterations end that a bound covers, or begin."""
        program = self._program
        assert program.loop is not None
        shift = bound.offset + 1
        if not bound.upper:
            width = next(s.tile for s in program.grid if s.dim == bound.dim)
            shift = bound.offset + width - 1 + program.loop.tile - 1
        return f"({self._place(bound, shift)}).to(tl.int32)"

    def _visited(self, count: str) -> tuple[str, str]:
        """The first iteration that the block visits, and the one behind the last."""
        program, first, end = self._program, "0", count
        loop = program.loop
        assert loop is not None
        for bound in program.bounds:
            width = next(s.tile for s in program.grid if s.dim == bound.dim)
            shift = bound.offset + (width - 1 + loop.tile if bound.upper else 0)
            place = self._place(bound, shift)
            if bound.also is not None:
                # The checker has seen that it is one from above.
                place = f"tl.maximum({place}, {self._tile_of(bound.also + loop.tile)})"
            if bound.upper:
                place = f"tl.minimum({place}, {end})"
                end = self._assign("it_end", f"({place}).to(tl.int32)")
            else:
                place = place if first == "0" else f"tl.maximum({place}, {first})"
                first = self._assign("it_first", f"({place}).to(tl.int32)")
        return first, end

    def _wait(self, _: Wait) -> None:
        self._if_early("gdc_wait()  # until the kernel before is done")

    def _announce(self, _: Announce) -> None:
        self._if_early("gdc_launch_dependents()  # the next kernel may start")

    def _if_early(self, statement: str) -> None:
        self._writer.below("if EARLY:", [statement])

    # -- Names ---------------------------------------------------------------------

    def _bind(self, wanted: str, expression: str) -> str:
        return self._tiles.bind(wanted, expression)

    def _assign(self, wanted: str, expression: str) -> str:
        return self._writer.define(wanted, expression)

    def _name(self, statement: Making, name: str) -> None:
        """Note the name of a statement's result."""
        tile = statement.tile
        self._variables[statement.result] = Variable(name, tile.axes, tile.dtype)

    def _format(self, step: Compute) -> DType:
        """The format of integers that a step computes with, or f32."""
        operands = (o for o in step.operands if isinstance(o, str))
        dtypes = (self._variables[o].dtype for o in operands)
        return next((d for d in dtypes if d.is_integer), f32)

    def _form(self, operand: Operand, order: Order, dtype: DType = f32) -> str:
        """An atomic expression that broadcasts against tiles with axes `order`."""
        if isinstance(operand, Scalar):
            return self._signature.constant(operand, dtype)
        tile = self._variables[operand]
        return tile.name + subscript(tile.axes, order)

    # -- Memory --------------------------------------------------------------------

    def _hoist(self) -> None:
        """Before the loop: bind what does not change in the addresses of its loads."""
        if self._hoisted:
            return
        self._hoisted = True
        shared: dict[str, str] = {}
        for load, looped in walk(self._program.body):
            if not looped or not isinstance(load, Load):
                continue
            if load.via == "descriptor":
                box = self._box(load)
                widths = self._pieces.shape(box)
                self._descriptors[load.result] = self._signature.descriptor(
                    self._key(load), box, widths
                )
                continue
            address = self._address(load)
            original = load.result.removesuffix(AGAIN)
            name = shared.get(address.first, "")
            if not name or not self._program.whole:
                name = self._assign(f"{original}_first", address.first)
            shared[address.first] = name
            self._addresses[load.result] = replace(address, first=name)

    def _box(self, load: Load) -> Order:
        return memory_order(load, self._signature.type(load.source))

    def _key(self, load: Load) -> str:
        """The parameter that is read: a copy's is another one, for the same tensor."""
        source = load.source
        return source if load.instead is None else self._signature.alias_of(source)

    def _address(self, load: Load) -> Address:
        pointer, strides = self._signature.access(self._key(load))
        along = None if load.along is None else load.along.dim
        starts: dict[Dim, str] = {}
        for side in self._runs.get(load.result, ()):
            if len(side) > 1:
                starts |= self._places.run(side)
        order = self._axes_of(load)
        return self._memory.address(
            pointer, load.at, strides, order, starts=starts, without=along
        )

    def _axes_of(self, load: Load) -> Order:
        """The axes of a loaded tile: a run of pieces is one, named by the last."""
        sides = self._runs.get(load.result)
        return load.tile.axes if sides is None else tuple(s[-1] for s in sides)

    def _picked(self, load: Load, along: Along) -> tuple[str, str]:
        """What positions that are data add to an address, and which of them exist.

        They are counted from the end below 0; none outside of the tensor is read.
        """
        index, order = self._variables[along.index], load.tile.axes
        _, strides = self._signature.access(self._key(load))
        step = self._memory.stride(load.at, strides, along.dim)
        if along.known != "no":
            wide = ".to(tl.int64)" if self._around.wide else ""
            at = f"{index.name}{subscript(index.axes, order)}{wide}"
            return times(at, step), self._under(along, order)
        size = self._memory.size(along.dim)
        given = self._assign(f"{along.dim.name}_given", f"{index.name}.to(tl.int64)")
        counted = f"tl.where({given} < 0, {given} + {size}, {given})"
        at = self._assign(f"{along.dim.name}_at", counted)
        compared, axes = at, index.axes
        if order and not axes:
            # Triton's interpreter cannot spread the truth value of a scalar.
            axes = order[:1]
            zeros = f"tl.full({self._tiles.shape(axes)}, 0, tl.int64)"
            compared = self._assign(f"{along.dim.name}_at", f"{at} + {zeros}")
        inside = f"({compared} >= 0) & ({compared} < {size})"
        inside = self._assign(f"{along.dim.name}_in", inside) + subscript(axes, order)
        inside = " & ".join(m for m in (inside, self._under(along, order)) if m)
        return times(at + subscript(index.axes, order), step), inside

    def _under(self, along: Along, order: Order) -> str:
        """The lanes that are read at all; nothing if all are."""
        if along.under is None:
            return ""
        return self._chosen(along.under, order, holds=along.holds)

    def _chosen(self, under: str, order: Order, *, holds: bool) -> str:
        """The lanes for which a truth value is true, or those for which it is not."""
        tile = self._variables[under]
        sign, name = "!=" if holds else "==", self._truths.get(tile.name)
        text = f"({tile.name} {sign} 0)"
        if name is not None:
            text = name if holds else f"(~{name})"
        return text + subscript(tile.axes, order)

    def _load(self, load: Load) -> None:
        if load.instead is not None:
            self._writer.line("# once more for what is no matrix product")
        name, axes = self._writer.names.fresh(load.result), self._axes_of(load)
        if load.result in self._descriptors:
            box = self._box(load)
            offsets = ", ".join(self._places.offset(d) for d in box)
            text = f"{self._descriptors[load.result]}.load([{offsets}])"
            if axes != box:
                text = f"tl.reshape({text}, {self._tiles.shape(axes)})"
            self._writer.assign(name, text)
        else:
            address = self._addresses.get(load.result) or self._address(load)
            whole, inside = load.tile.dtype.is_integer, ""
            if load.along is not None:
                moved, inside = self._picked(load, load.along)
                step = " + ".join(t for t in (address.step, moved) if t)
                address = replace(address, step=step)
            self._memory.load(address, axes, name, whole=whole, inside=inside)
        self._name(load, name)

    def _store(self, store: Store) -> None:
        pointer, strides = self._signature.access(store.result)
        change = self._changes.stores.get(store.result)
        if change is None:
            tile = self._variables[store.operand]
            self._memory.store(store, pointer, strides, tile)
            return
        for part in change:
            self._memory.store(
                store,
                pointer,
                strides,
                self._new(store, part),
                part.tile.axes,
                partial(self._changed, part),
            )

    def _new(self, store: Store, part: Written) -> Variable:
        """What a store changes elements to."""
        if isinstance(part.value, str):
            return self._variables[part.value]
        axes, dtype = part.tile.axes, part.tile.dtype
        number = self._signature.constant(part.value, dtype)
        text = (
            f"tl.full({self._tiles.shape(axes)}, {number}, {TRITON_DTYPE[dtype.name]})"
        )
        return Variable(self._bind(store.result, text), axes, dtype)

    def _changed(self, part: Written, order: Order) -> str:
        """The lanes of a part that a store changes."""
        return " & ".join(self._met(name, order, holds) for name, holds in part.under)

    def _met(self, name: str, order: Order, holds: bool) -> str:
        """The lanes for which a condition holds, or those for which it does not."""
        under = self._variables[name]
        if under.axes or not order:
            return self._chosen(name, order, holds=holds)
        # Triton's interpreter cannot spread the truth value of a scalar.
        sign = "!=" if holds else "=="
        zeros = f"tl.full({self._tiles.shape(order)}, 0, tl.int32)"
        return f"({zeros} + ({under.name} {sign} 0).to(tl.int32) != 0)"

    def _positions(self, step: Positions) -> None:
        text = self._memory.positions(step.at, step.tile.axes)
        shape = self._tiles.shape(step.tile.axes)
        dtype = TRITON_DTYPE[step.tile.dtype.name]
        cast = f"({text}).to({dtype})" if step.tile.axes else ""
        text = cast or f"tl.full({shape}, {text or 0}, {dtype})"
        self._name(step, self._bind(step.result, text))

    def _ask(self, asked: Ask) -> None:
        code = Prefetcher(self._tiles, self._places, self._memory, self._signature)
        code.ask(asked)

    # -- One element at a time -----------------------------------------------------

    def _compute(self, step: Compute) -> None:
        order = step.tile.axes
        self._tiles.shape(order)
        if step.result in self._packed.floats:
            self._unpack(step)
            return
        dtype = self._format(step)
        forms = [self._form(o, order, dtype) for o in step.operands]
        if step.inner is SUB:
            # The difference comes first: it is small where both are large, and then it
            # is exact, while products with log2(e) may overflow, or err by more than 1.
            whole, row = forms
            text = f"tl.exp2(({whole} - {row}) * {LOG2_E})"
        elif step.inner is not None:
            whole, factor = forms
            text = f"tl.exp2({whole} * ({factor} * {LOG2_E}))"
        elif step.rounded:
            # Compilers make one operation of a product and a difference.  What is left
            # of the largest element less itself is then not 0 but the product's
            # rounding error, and infinite as an exponent where logits are large.
            # Nothing is made of two sums: adding 0 to the product ends it.
            a, b = forms
            text = f"tl.fma({a}, {b}, 0.0)"
        else:
            text = step.op.triton.format(*forms)
            if step.op.triton.endswith(AS_NUMBER) and step.result in self._chosen_by:
                self._truth(step, text.removesuffix(AS_NUMBER))
                return
            chosen = self._variables.get(str(step.operands[0]))
            if step.op is WHERE and chosen and chosen.name in self._truths:
                holds = self._truths[chosen.name] + subscript(chosen.axes, order)
                text = f"tl.where({holds}, {forms[1]}, {forms[2]})"
        self._name(step, self._bind(step.result, text))

    def _truth(self, step: Compute, text: str) -> None:
        """A comparison that decides what is read, also as the bits that it gives.

        Triton loads lanes together if it sees that a mask is the same for them, which
        it does not where truth values are numbers.
        """
        holds = self._assign(f"{step.result}_holds", text)
        name = self._bind(step.result, holds + AS_NUMBER)
        self._truths[name] = holds
        self._name(step, name)

    def _cast(self, cast: Cast) -> None:
        if cast.result in self._packed.floats:
            self._unpack(cast)
            return
        name = self._variables[cast.operand].name
        dtype = TRITON_DTYPE[cast.tile.dtype.name]
        text = CAST.triton.format(name, dtype=dtype)
        self._name(cast, self._bind(cast.result, text))

    def _unpack(self, step: Compute | Cast) -> None:
        """Floats of the parts of bytes, in f16, which holds them, or from there in f32.

        What is both halves of a byte is joined along an axis behind the others.
        """
        part = self._packed.floats[step.result]
        source = self._variables[part.source]
        texts = [
            self._bind(f"{part.source}_{name}", text)
            for name, text in unpacked_texts(part, source)
        ]
        axes = source.axes
        (name, *others) = texts
        if part.along is not None:
            axes = (*axes, part.along)
            name = self._bind(f"{part.source}_halves", f"tl.join({name}, {others[0]})")
        made = self._tiles.arranged(Variable(name, axes, f16), step.tile.axes)
        self._variables[step.result] = self._tiles.as_dtype(made, step.tile.dtype)

    def _finite(self, step: Finite) -> None:
        row = self._variables[step.operand]
        name = self._bind(row.name, finite_shift(row.name, step.fill))
        self._variables[step.result] = replace(row, name=name)

    # -- Changes of form -----------------------------------------------------------

    def _convert(self, step: Convert) -> None:
        tile = self._variables[step.operand]
        if tile.dtype is not step.tile.dtype:
            tile = self._tiles.as_dtype(tile, step.tile.dtype)
        else:
            tile = self._tiles.arranged(tile, step.tile.axes)
        self._variables[step.result] = tile

    def _mask(self, step: Mask) -> None:
        dims = tuple(d for d, _ in step.where)
        tile = self._tiles.masked(self._variables[step.operand], dims, step.fill)
        self._variables[step.result] = tile

    def _merge(self, step: Merge) -> None:
        lanes = [prod(self._pieces.shape(side)) for side in step.sides]
        tile = self._variables[step.operand]
        if step.operand in self._runs:
            self._variables[step.result] = tile
            return
        shape = f"({', '.join(map(str, lanes))})"
        original = self._variables[step.result.rpartition(MERGED)[0]]
        name = self._tiles.reshaped(tile.name, shape, f"{original.name}_r")
        self._variables[step.result] = replace(tile, name=name)

    @cached_property
    def _counted(self) -> frozenset[str]:
        """Values whose lanes are numbers."""
        return positions(self._program)

    def _lane(self, step: Lane) -> None:
        if step.operand in self._counted:
            dtype = TRITON_DTYPE[step.tile.dtype.name]
            self._name(
                step, self._bind(step.result, f"tl.full((), {step.at}, {dtype})")
            )
            return
        tile = self._variables[step.operand]
        sides = self._runs.get(step.operand)
        if sides is not None:
            axes = tuple(d for side in sides for d in side)
            tile = self._tiles.reshaped_as(tile, axes)
        lane = self._tiles.lane(tile, step.along, step.at)
        self._variables[step.result] = self._tiles.arranged(lane, step.tile.axes)

    # -- Sums ----------------------------------------------------------------------

    def _reduce(self, step: Reduce) -> None:
        tile = self._variables[step.operand]
        name, axes = tile.name, list(tile.axes)
        for dim in reversed(step.over):
            text = step.op.triton.format(name, axis=axes.index(dim))
            name = self._bind(step.result, text)
            axes.remove(dim)
        self._name(step, name)

    def _scan(self, step: Scan) -> None:
        tile = self._variables[step.operand]
        text = step.op.triton.format(tile.name, axis=tile.axes.index(step.along))
        self._name(step, self._bind(step.result, text))

    def _product(self, product: Product) -> None:
        self._tiles.shape(product.tile.axes)
        if not product.is_matrix:
            self._multiply_and_sum(product)
            return
        left, right = self._factor(product.left), self._factor(product.right)
        options = PRECISIONS[product.precision]
        if product.into is not None:
            self._add_product(product, f"{left}, {right}", options)
            return
        name = self._bind(product.result, f"tl.dot({left}, {right}{options})")
        if product.is_merged:
            shape = self._tiles.shape(product.tile.axes)
            name = self._tiles.reshaped(name, shape, product.result)
        self._name(product, name)

    def _factor(self, value: str) -> str:
        """The name of an operand of the matrix unit."""
        name = self._variables[value].name
        if value in self._packed.factors:
            return self._bind(name, f"kept({name})")
        return name

    def _add_product(self, product: Product, operands: str, options: str) -> None:
        """Add a product to a carried tile in place."""
        assert product.into is not None
        target = self._variables[product.into].name
        if product.precision == "ieee":
            text = f"tl.dot({operands}{options}, {APART})"
            name = self._bind(product.result, text)
            self._writer.assign(target, f"{target} + {name}")
        else:
            self._writer.assign(target, f"tl.dot({operands}, {target}{options})")

    def _multiply_and_sum(self, product: Product) -> None:
        order = (*product.tile.axes, *product.over)
        self._tiles.shape(order)
        a, b = (self._form(v, order) for v in (product.left, product.right))
        name = self._bind(product.result, f"{a} * {b}")
        for axis in range(len(order) - 1, len(product.tile.axes) - 1, -1):
            name = self._bind(product.result, f"tl.sum({name}, axis={axis})")
        self._name(product, name)

    # -- What the loop carries -----------------------------------------------------

    def _start(self, step: Start) -> None:
        self._hoist()
        shape = self._tiles.shape(step.tile.axes)
        dtype = step.tile.dtype
        value, name = literal(step.value, dtype), TRITON_DTYPE[dtype.name]
        text = f"tl.full({shape}, {value}, {name})"
        self._name(step, self._assign(step.result, text))

    def _rescale(self, step: Rescale) -> None:
        target = self._variables[step.target]
        scale = self._form(step.scale, target.axes)
        self._writer.assign(target.name, f"{target.name} * {scale}")

    def _update(self, step: Update) -> None:
        target = self._variables[step.target]
        name, operand = target.name, self._form(step.operand, target.axes)
        assert step.op.join is not None
        self._writer.assign(name, step.op.join.triton.format(name, operand))

    def _largest(self, step: Largest) -> None:
        """The new maximum, and by how much sums relative to the old one shrink.

        The old maximum may be -inf, the new one stands as 0 for it: then the factor is
        0, and so is what was accumulated.
        """
        last = self._variables[step.state].name
        operand = self._form(step.operand, step.tile.axes)
        highest = self._assign(f"{step.result}_next", f"tl.maximum({last}, {operand})")
        name = self._assign(step.result, finite_shift(highest, -math.inf))
        self._name(step, name)
        if step.scale is not None:
            text = f"tl.exp2(({last} - {name}) * {LOG2_E})"
            scale = self._assign(step.scale, text)
            self._variables[step.scale] = Variable(scale, step.tile.axes)
        self._writer.assign(last, highest)


def _deciding(program: TileProgram) -> frozenset[str]:
    """The truth values that decide what is read: which lanes, and at which positions.

    Of programs whose positions are known, where it is of use to see through them.
    """
    statements = [s for s, _ in walk(program.body)]
    along = [s.along for s in statements if isinstance(s, Load) and s.along]
    if all(a.known == "no" for a in along):
        return frozenset()
    chosen = (
        s.operands[0]
        for s in statements
        if isinstance(s, Compute) and s.op is WHERE and s.tile.dtype.is_integer
    )
    under = (a.under for a in along)
    return frozenset(n for n in (*chosen, *under) if isinstance(n, str))


def finite_shift(name: str, fill: float) -> str:
    """The expression of a shift with 0 for what it is where all is masked."""
    return f"tl.where({name} == {number(fill)}, 0.0, {name})"
