"""First tiles of a loop, asked into the L2 cache while a kernel waits."""

from __future__ import annotations

from collections.abc import Iterable

from mirage_dsl.backends.triton.loading import memory_order
from mirage_dsl.backends.triton.memory import Memory
from mirage_dsl.backends.triton.params import Signature
from mirage_dsl.backends.triton.pieces import Piece, Pieces, power_of_two
from mirage_dsl.backends.triton.places import Places
from mirage_dsl.backends.triton.tiles import TileCode
from mirage_dsl.ir.graph import Load
from mirage_dsl.types import Dim

LINE = 128
"""Bytes of a cache line."""

FUNCTION = '''
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

    @property
    def _pieces(self) -> Pieces:
        return self._tiles.pieces

    def ask(self, loads: Iterable[Load], tiles: int) -> None:
        """Ask for the first few tiles of some loads of the loop.

        Tiles that may lie partly outside of their tensors are left out.
        """
        for load in loads:
            box = self._box(load)
            if box is not None:
                self._ask(load, box, tiles)

    def _box(self, load: Load) -> tuple[Dim, ...] | None:
        """The dims in the order of memory, or None if it is not to be asked for."""
        if not self._signature.around.has_layout(load.source):
            return None
        box = memory_order(load, self._signature.type(load.source))
        inside = box and not any(self._pieces[d].loose for d in box)
        return box if inside else None

    def _ask(self, load: Load, box: tuple[Dim, ...], tiles: int) -> None:
        writer, names = self._tiles.writer, self._tiles.names
        of_line = LINE // self._signature.dtype(load.source).itemsize
        starts: dict[Dim, str] = {}
        writer.line(f"# the first tiles of {load.source}, while this kernel waits")
        for dim in box:
            step = of_line if dim == box[-1] else 1
            lanes = max(1, self._lanes(self._pieces[dim], tiles) // step)
            starts[dim] = writer.assign(
                names.fresh(f"{load.source}_{dim.name}"),
                self._places.positions(dim, lanes, step),
            )
        pointer, strides = self._signature.access(load.source)
        dims = tuple(d for axis in load.axes for d in axis)
        address = self._memory.address(pointer, load.axes, strides, dims, starts=starts)
        writer.line(f"prefetch({address.first})")

    @staticmethod
    def _lanes(piece: Piece, tiles: int) -> int:
        """Elements of the first few tiles; those of one that is not looped over."""
        if piece.loop_tile is None:
            return piece.width
        part = piece.grid_tile or piece.extent or piece.loop_tile
        most = power_of_two(part // piece.loop_tile + 1) // 2
        return piece.width * min(tiles, most)


__all__ = ["FUNCTION", "Prefetcher"]
