"""Pointers, loads and stores of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirage_dsl.backends.triton.lowering.names import Names, Writer
from mirage_dsl.backends.triton.lowering.places import Places
from mirage_dsl.backends.triton.lowering.tiles import TileCode, Variable, subscript
from mirage_dsl.core.types import Axis, Dim
from mirage_dsl.tile.program import Order, Store
from mirage_dsl.tile.sizes import has_excess, partial_of

Strides = Sequence[str | int]
"""The stride of each axis of a tensor: a number, or a Python expression."""


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

    @property
    def _names(self) -> Names:
        return self._tiles.names

    def address(
        self,
        pointer: str,
        axes: Sequence[Axis],
        strides: Strides,
        order: Sequence[Dim],
        *,
        starts: Mapping[Dim, str] | None = None,
    ) -> Address:
        """The address of a tile whose axes have the order `order`.

        Args:
            pointer: Of the tensor.
            axes: Of the tensor.
            strides: Of the axes.
            order: Dims of the tile.
            starts: Positions in the first iteration, where they are not the tile's.
        """
        first, step = [pointer], list[str]()
        for axis, stride in zip(axes, strides, strict=True):
            factors: list[str | int] = [stride]
            for dim in reversed(axis):
                index, moved = self._index(dim, order, starts or {})
                if index:
                    first.append(times(index, factors))
                if moved:
                    step.append(times(moved, factors))
                extent = self._extents.get(dim.name)
                factors = [*factors, self._size(dim.name) if extent is None else extent]
        return Address(" + ".join(first), " + ".join(step))

    def _index(
        self, dim: Dim, order: Sequence[Dim], starts: Mapping[Dim, str]
    ) -> tuple[str, str]:
        """Positions along a dim, and what an iteration adds to them."""
        base = partial_of(dim, self._block)
        if base is not None:
            return self._number(dim, base), ""
        index = starts.get(dim) or self._places.start(dim)
        moved = self._places.advance(dim)
        if dim in order:
            index += subscript((dim,), order)
        if moved and self._wide:
            moved = f"({self._places.far} + {moved})"
        return index, moved

    def _number(self, dim: Dim, base: str) -> str:
        """Which of the parts along `k#` is the block's.

        Blocks that have no part of `k` compute what all others do, and write it once
        more where the last one does.
        """
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

    def load(self, address: Address, order: Order, name: str) -> None:
        """Load a tile; lanes outside are 0."""
        self._tiles.shape(order)
        pointers = address.first
        if address.step:
            pointers += f" + {address.step}"
        mask = self.mask(order)
        guard = f", mask={mask}, other=0.0" if mask else ""
        self._writer.assign(name, f"tl.load({pointers}{guard})")

    def store(
        self, node: Store, pointer: str, strides: Strides, tile: Variable
    ) -> None:
        """Store the lanes of a tile that are inside."""
        dims = [d for axis in node.at for d in axis]
        missing = [
            d
            for d in dims
            if partial_of(d, self._block) is None
            and not self._tiles.pieces[d].unit
            and d not in tile.axes
        ]
        order = (*tile.axes, *missing)
        # A dim of extent 1 that only the tile has: its lanes are one address.
        extra = tuple((d,) for d in tile.axes if d not in dims)
        axes, steps = (*node.at, *extra), (*strides, *(0 for _ in extra))
        address = self.address(pointer, axes, steps, order)
        value = self._tiles.as_dtype(tile, node.dtype)
        text = value.name
        if missing:
            text = self._spread(value, order)
        mask = self.mask(order)
        guard = f", mask={mask}" if mask else ""
        pointers = self._writer.assign(
            self._names.fresh(f"{node.result}_at"),
            address.first + (f" + {address.step}" if address.step else ""),
        )
        self._writer.line(f"tl.store({pointers}, {text}{guard})")

    def _spread(self, tile: Variable, order: Order) -> str:
        shape = self._tiles.shape(order)
        if not tile.axes:
            return f"tl.full({shape}, 0.0, tl.float32) + {tile.name}"
        return f"tl.broadcast_to({tile.name}{subscript(tile.axes, order)}, {shape})"


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
