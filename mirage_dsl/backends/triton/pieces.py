"""The pieces of dims that a block sees: their sizes, padding, positions and masks.

Triton's tiles have powers of two of elements along each axis, and `tl.dot` has a
smallest size, so a piece may be wider than what it holds; a grid split or the loop may
also leave a ragged last tile.  A piece whose lanes can lie outside is `loose`: loads,
stores and reductions mask it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import Apply, BlockGraph, Load, Split, Store, partial_dim
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import Dim, TensorType

SMALLEST_DOT = 16
"""Smallest number of rows, columns and summands of a matrix product."""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """The number of tiles of `b` that cover `a`."""
    return -(-a // b)


@dataclass(frozen=True)
class Piece:
    """What a block sees of one dim.

    Attributes:
        dim: The dim with its flags.
        extent: Of the whole dim, None where symbolic.
        most: The largest extent, if it is symbolic and the block holds it whole.
        grid_tile: Elements of a block's part; None without grid split.
        loop_tile: Elements of an iteration's part; None without loop split.
        width: Lanes of the tile, a power of two.
        excess: Whether blocks may have no part at all, since the grid's axis is longer.
    """

    dim: Dim
    extent: int | None
    grid_tile: int | None
    loop_tile: int | None
    width: int
    excess: bool = False
    most: int | None = None

    @property
    def size(self) -> int:
        """Elements that a tile holds when it is not ragged."""
        tile = self.loop_tile or self.grid_tile or self.extent or self.most
        assert tile is not None
        return tile

    @property
    def unit(self) -> bool:
        """Whether tiles have no axis for this piece."""
        return self.width == 1

    @property
    def padded(self) -> bool:
        """Whether a tile may have more lanes than elements."""
        return self.width != self.size or self.most is not None

    @property
    def ragged_grid(self) -> bool:
        """Whether the last blocks' parts may be shorter than the others."""
        if self.grid_tile is None:
            return False
        return self.excess or _ragged(self.extent, self.grid_tile)

    @property
    def ragged_loop(self) -> bool:
        """Whether an iteration's part may be shorter than `loop_tile`."""
        if self.loop_tile is None:
            return False
        of = self.extent if self.grid_tile is None else self.grid_tile
        return _ragged(of, self.loop_tile)

    @property
    def loose(self) -> bool:
        """Whether lanes can lie outside of the dim."""
        return self.padded or self.ragged_grid or self.ragged_loop


def _ragged(extent: int | None, tile: int) -> bool:
    return tile != 1 and (extent is None or extent % tile != 0)


MOST_PROGRAMS = 65_535
"""Of a launch, along its second and third axis."""


def launch_order(
    block: BlockGraph, extents: Mapping[str, int | None]
) -> tuple[tuple[Split, ...], ...]:
    """The grid's axes in the order of the launch's.

    It is the order of the grid, unless a later one has too many parts: then the one of
    most parts is first.
    """

    def count(axis: Sequence[Split]) -> int:
        return max(_parts(s, extents) or 0 for s in axis)

    if all(count(a) <= MOST_PROGRAMS for a in block.axes[1:]):
        return block.axes
    return tuple(sorted(block.axes, key=count, reverse=True))


def _parts(split: Split, extents: Mapping[str, int | None]) -> int | None:
    extent = extents.get(split.dim)
    return None if extent is None else ceil_div(extent, split.tile)


def has_excess(
    split: Split, block: BlockGraph, extents: Mapping[str, int | None]
) -> bool:
    """Whether the axis of a split may have more blocks than the split has parts."""
    axis = next(a for a in block.axes if split in a)
    own = _parts(split, extents) or 0
    counts = [_parts(s, extents) for s in axis]
    return len(axis) > 1 and any(n is None or n > own for n in counts)


def partial_of(dim: Dim, block: BlockGraph) -> str | None:
    """The split dim whose grid coordinate indexes the store dim `k#`, or None."""
    if not dim.grid or block.grid_split(dim.name) is not None:
        return None
    split = next((s for s in block.grid if partial_dim(s.dim) == dim.name), None)
    return None if split is None else split.dim


class Pieces:
    """All pieces of one block, by dim.

    Args:
        block: The block.
        types: Types of its values.
        extents: Extents of all dims, None where symbolic.
        most: The largest extents of symbolic dims that blocks may hold whole.
    """

    def __init__(
        self,
        block: BlockGraph,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        most: Mapping[str, int],
    ) -> None:
        self.block = block
        self._extents = extents
        self._most = most
        self._by_dim: dict[Dim, Piece] = {}
        for dim in dict.fromkeys(_all_dims(block, types)):
            self._by_dim[dim] = self._piece(dim)
        for node in block.nodes:
            if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
                self._widen(node, types)

    def __getitem__(self, dim: Dim) -> Piece:
        return self._by_dim[dim]

    @property
    def all(self) -> tuple[Piece, ...]:
        """All pieces, in order of appearance."""
        return tuple(self._by_dim.values())

    def axes(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """Those of `dims` that are axes of tiles."""
        return tuple(d for d in dims if not self._by_dim[d].unit)

    def _piece(self, dim: Dim) -> Piece:
        extent = self._extents.get(dim.name)
        grid = loop = None
        excess = False
        if dim.grid:
            split = self.block.grid_split(dim.name)
            if split is None:
                raise UnsupportedError(f"{dim}: the grid does not split {dim.name}")
            grid = _clamp(split.tile, extent)
            excess = has_excess(split, self.block, self._extents)
        if dim.loop:
            split = self.block.loop
            if split is None or split.dim != dim.name:
                raise UnsupportedError(f"{dim}: the loop does not split {dim.name}")
            loop = _clamp(split.tile, extent if grid is None else grid)
        size = loop or grid or extent
        most = self._most.get(dim.name) if size is None else None
        if size is None and most is None:
            raise UnsupportedError(
                f"dim {dim.name} is symbolic and whole in a block; "
                f"split it by the grid or by the loop"
            )
        width = power_of_two(size or most or 1)
        piece = Piece(dim, extent, grid, loop, width, excess, most)
        # A part that can lie wholly outside needs an axis that carries its mask.
        return replace(piece, width=2) if piece.unit and piece.loose else piece

    def _widen(self, node: Apply, types: Mapping[str, TensorType]) -> None:
        """Widen the dims of a matrix product to the smallest that `tl.dot` takes."""
        a, b = (types[v].dims for v in node.values)
        over = [d for d in a if d.name in node.over]
        rows = [d for d in a if d not in b]
        columns = [d for d in b if d not in a]
        if not rows or not columns or all(self[d].unit for d in over):
            return
        for group in (rows, columns, over):
            lanes = 1
            for dim in group:
                lanes *= self[dim].width
            if lanes < SMALLEST_DOT:
                last = max(group, key=lambda d: (self[d].width, group.index(d)))
                piece = self._by_dim[last]
                width = piece.width * (SMALLEST_DOT // lanes)
                self._by_dim[last] = replace(piece, width=width)


def _clamp(tile: int, extent: int | None) -> int:
    return tile if extent is None else min(tile, extent)


def _all_dims(block: BlockGraph, types: Mapping[str, TensorType]) -> list[Dim]:
    dims = [d for t in types.values() for d in t.dims]
    for node in block.nodes:
        if isinstance(node, Load):
            dims += [d for axis in node.axes for d in axis]
        if isinstance(node, Store):
            dims += [
                d for axis in node.axes for d in axis if partial_of(d, block) is None
            ]
    return dims
