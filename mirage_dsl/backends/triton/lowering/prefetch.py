"""First tiles of a loop, asked into the L2 cache while a kernel waits."""

from __future__ import annotations

from mirage_dsl.backends.triton.lowering.memory import Memory
from mirage_dsl.backends.triton.lowering.params import Signature
from mirage_dsl.backends.triton.lowering.places import Places
from mirage_dsl.backends.triton.lowering.tiles import TileCode
from mirage_dsl.core.types import Dim
from mirage_dsl.tile.build import memory_order
from mirage_dsl.tile.program import Ask
from mirage_dsl.tile.sizes import Piece, power_of_two

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

    def ask(self, asked: Ask) -> None:
        """Ask for the first few tiles of a load of the loop."""
        writer, names = self._tiles.writer, self._tiles.names
        source, pieces = asked.source, self._tiles.pieces
        of_line = LINE // self._signature.dtype(source).itemsize
        starts: dict[Dim, str] = {}
        writer.line(f"# the first tiles of {source}, while this kernel waits")
        box = memory_order(asked, self._signature.type(source))
        for dim in box:
            step = of_line if dim == box[-1] else 1
            lanes = max(1, self._lanes(pieces[dim], asked.tiles) // step)
            starts[dim] = writer.assign(
                names.fresh(f"{source}_{dim.name}"),
                self._places.positions(dim, lanes, step),
            )
        pointer, strides = self._signature.access(source)
        dims = tuple(d for axis in asked.at for d in axis)
        address = self._memory.address(pointer, asked.at, strides, dims, starts=starts)
        writer.line("if EARLY:")
        writer.indent()
        writer.line(f"prefetch({address.first})")
        writer.dedent()

    @staticmethod
    def _lanes(piece: Piece, tiles: int) -> int:
        """Elements of the first few tiles; those of one that is not looped over."""
        if piece.loop_tile is None:
            return piece.width
        part = piece.grid_tile or piece.extent or piece.loop_tile
        most = power_of_two(part // piece.loop_tile + 1) // 2
        return piece.width * min(tiles, most)


__all__ = ["FUNCTION", "Prefetcher"]
