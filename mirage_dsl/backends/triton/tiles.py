"""Tiles in registers, and the code that turns, aligns, converts and masks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mirage_dsl.backends.triton.names import Names, Writer
from mirage_dsl.backends.triton.pieces import Pieces
from mirage_dsl.errors import UnsupportedError
from mirage_dsl.types import Dim, DType, f32

LARGEST_TILE = 1 << 20
"""Elements that Triton allows in one tensor."""

TRITON_DTYPE = {"f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32"}


@dataclass(frozen=True)
class Tile:
    """A Triton tensor.

    Attributes:
        name: Its Python name.
        axes: Dims of its axes; those of one element are left out.
        dtype: Element format.
        fills: For loose dims, what the lanes outside hold, where that is known.
    """

    name: str
    axes: tuple[Dim, ...]
    dtype: DType = f32
    fills: Mapping[Dim, float] = field(default_factory=dict[Dim, float])


class TileCode:
    """Emits the changes of form that tiles need, each once per stage."""

    def __init__(
        self,
        writer: Writer,
        names: Names,
        pieces: Pieces,
        mask_of: Callable[[Dim], str],
    ) -> None:
        self.writer = writer
        self.names = names
        self.pieces = pieces
        self.mask_of = mask_of
        self._made: list[dict[tuple[object, ...], Tile]] = [{}]
        self._bound: list[dict[str, str]] = [{}]

    def enter(self) -> None:
        """Begin a scope: what is made in it is not visible after `leave`."""
        self._made.append({})
        self._bound.append({})

    def leave(self) -> None:
        """End the innermost scope."""
        self._made.pop()
        self._bound.pop()

    def bind(self, wanted: str, expression: str) -> str:
        """The name of an expression of tiles, computed here or before."""
        for scope in self._bound:
            if expression in scope:
                return scope[expression]
        name = self.writer.assign(self.names.fresh(wanted), expression)
        self._bound[-1][expression] = name
        return name

    def shape(self, axes: Sequence[Dim]) -> str:
        """The shape of a tile as a Python tuple.

        Raises:
            UnsupportedError: Triton has no tensors of that size.
        """
        widths = [self.pieces[d].width for d in axes]
        if prod(widths) > LARGEST_TILE:
            dims = ", ".join(map(str, axes))
            raise UnsupportedError(
                f"a tile of [{dims}] has {prod(widths)} elements; "
                f"Triton allows {LARGEST_TILE}: split more, or use smaller tiles"
            )
        return f"({', '.join(map(str, widths))}{',' * (len(widths) == 1)})"

    def _once(
        self, key: tuple[object, ...], make: Callable[[], Tile | None], tile: Tile
    ) -> Tile:
        for scope in self._made:
            if key in scope:
                return scope[key]
        made = make() or tile
        self._made[-1][key] = made
        return made

    def arranged(self, tile: Tile, order: Sequence[Dim]) -> Tile:
        """The tile with its axes in the order that they have in `order`."""
        axes = tuple(d for d in order if d in tile.axes)
        assert len(axes) == len(tile.axes), (tile, order)
        if axes == tile.axes:
            return tile

        def make() -> Tile:
            turns = ", ".join(str(tile.axes.index(d)) for d in axes)
            name = self.names.fresh(f"{tile.name}_t")
            self.writer.assign(name, f"tl.permute({tile.name}, ({turns}))")
            return replace(tile, name=name, axes=axes)

        return self._once(("arranged", tile.name, axes), make, tile)

    def aligned(self, tile: Tile, order: Sequence[Dim]) -> str:
        """An atomic expression that broadcasts against tiles with axes `order`."""
        turned = self.arranged(tile, order)
        return turned.name + subscript(turned.axes, order)

    def as_f32(self, tile: Tile) -> Tile:
        """The tile in f32, as all arithmetic is."""
        return self.as_dtype(tile, f32)

    def as_dtype(self, tile: Tile, dtype: DType) -> Tile:
        """The tile in another element format."""
        if tile.dtype == dtype:
            return tile

        def make() -> Tile:
            name = self.names.fresh(f"{tile.name}_{dtype}")
            self.writer.assign(name, f"{tile.name}.to({TRITON_DTYPE[dtype.name]})")
            return replace(tile, name=name, dtype=dtype)

        return self._once(("dtype", tile.name, dtype), make, tile)

    def masked(self, tile: Tile, dims: Sequence[Dim], fill: float) -> Tile:
        """The tile with `fill` in the lanes outside of `dims`."""
        loose = [
            d
            for d in tile.axes
            if d in dims and self.pieces[d].loose and tile.fills.get(d) != fill
        ]
        masks = [(d, self.mask_of(d)) for d in loose]
        masks = [(d, m) for d, m in masks if m]
        if not masks:
            return tile

        def make() -> Tile:
            name = self.names.fresh(f"{tile.name}_m")
            inside = " & ".join(m + subscript((d,), tile.axes) for d, m in masks)
            self.writer.assign(name, f"tl.where({inside}, {tile.name}, {number(fill)})")
            fills = {d: f for d, f in tile.fills.items() if f == fill}
            fills.update((d, fill) for d in loose)
            return replace(tile, name=name, fills=fills)

        key = ("masked", tile.name, fill, tuple(loose))
        return self._once(key, make, tile)

    def reshaped(self, name: str, shape: str, wanted: str) -> str:
        """Bind `name` in another shape."""
        return self.writer.assign(
            self.names.fresh(wanted), f"tl.reshape({name}, {shape})"
        )


def subscript(axes: Sequence[Dim], order: Sequence[Dim]) -> str:
    """What spreads a tile over the axes `order`: `[:, None]`, or nothing."""
    if not axes or list(axes) == list(order):
        return ""
    return f"[{', '.join(':' if d in axes else 'None' for d in order)}]"


def number(value: float) -> str:
    """A constant as an atomic Python expression that reads back exactly."""
    if value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 or str(value)[0] == "-" else repr(value)
