"""Accumulators and running maxima: what a loop carries from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mirage_dsl.backends.triton.arith import LOG2_E, MINUS_INFINITY, finite_shift
from mirage_dsl.backends.triton.layout import Layout, Order
from mirage_dsl.backends.triton.tiles import Tile, TileCode
from mirage_dsl.ir.graph import Accumulate, BlockGraph, RunningMax

Value = Callable[[str], Tile]


class Accumulators:
    """Emits the carried values of one block."""

    def __init__(self, block: BlockGraph, tiles: TileCode, layout: Layout) -> None:
        self._block = block
        self._tiles = tiles
        self._layout = layout
        self._tile_of: dict[str, Tile] = {}
        self._last: dict[str, str] = {}
        self._scales: dict[str, Tile] = {}

    def start(self) -> None:
        """Before the loop: nothing accumulated yet."""
        for node in self._block.nodes:
            match node:
                case Accumulate() if self._takes_last(node):
                    # Without the guard: where all is masked it stays -inf.
                    axes = self._layout.orders[node.operand]
                    self._tile_of[node.result] = Tile(self._last[node.operand], axes)
                case Accumulate() if node.kind != "concat":
                    start = "0.0" if node.kind == "sum" else MINUS_INFINITY
                    axes = self._layout.orders[node.result]
                    name = self._bind(node.result, axes, start)
                    self._tile_of[node.result] = Tile(name, axes)
                case RunningMax():
                    axes = self._layout.orders[node.result]
                    name = self._bind(f"{node.result}_last", axes, MINUS_INFINITY)
                    self._last[node.result] = name
                case _:
                    pass

    def _takes_last(self, node: Accumulate) -> bool:
        """Whether it is a running maximum's value in the last iteration."""
        return node.kind == "max" and node.operand in self._last

    def _bind(self, wanted: str, axes: Order, value: str) -> str:
        shape = self._tiles.shape(axes)
        return self._tiles.writer.assign(
            self._tiles.names.fresh(wanted), f"tl.full({shape}, {value}, tl.float32)"
        )

    def tile(self, node: Accumulate) -> Tile:
        """The accumulator."""
        return self._tile_of[node.result]

    def rescale(self, node: Accumulate) -> None:
        """Shrink what was accumulated relative to an older maximum."""
        if node.rescale is None:
            return
        accumulator = self._tile_of[node.result]
        scale = self._tiles.aligned(self._scales[node.rescale], accumulator.axes)
        name = accumulator.name
        self._tiles.writer.assign(name, f"{name} * {scale}")

    def add(self, node: Accumulate, operand: Tile) -> Tile:
        """Take in the value of one iteration; what lies outside counts as neutral."""
        accumulator = self._tile_of[node.result]
        if self._takes_last(node):
            return accumulator
        name, axes = accumulator.name, accumulator.axes
        fill = 0.0 if node.kind == "sum" else float("-inf")
        looped = [d for d in axes if d.loop]
        tile = self._tiles.masked(self._tiles.as_f32(operand), looped, fill)
        aligned = self._tiles.aligned(tile, axes)
        if node.kind == "sum":
            self._tiles.writer.assign(name, f"{name} + {aligned}")
        else:
            self._tiles.writer.assign(name, f"tl.maximum({name}, {aligned})")
        if node.rescale is not None:
            return accumulator
        fills = {d: fill for d in axes if tile.fills.get(d) == fill}
        return replace(accumulator, fills=fills)

    def running_max(self, node: RunningMax, operand: Tile) -> Tile:
        """The new maximum, and by how much sums relative to the old one shrink.

        The old maximum may be -inf, the new one stands as 0 for it: then the factor is
        0, and so is what was accumulated.
        """
        operand = self._tiles.as_f32(operand)
        if self._block.loop is None:
            return self._guarded(node, operand.name, operand.axes)
        axes, last = self._layout.orders[node.result], self._last[node.result]
        looped = [d for d in axes if d.loop]
        operand = self._tiles.masked(operand, looped, float("-inf"))
        highest = self._tiles.writer.assign(
            self._tiles.names.fresh(f"{node.result}_next"),
            f"tl.maximum({last}, {self._tiles.aligned(operand, axes)})",
        )
        tile = self._guarded(node, highest, axes)
        if self._serves_rescaling(node):
            scale = self._tiles.writer.assign(
                self._tiles.names.fresh(f"{node.result}_scale"),
                f"tl.exp2(({last} - {tile.name}) * {LOG2_E})",
            )
            self._scales[node.result] = Tile(scale, axes)
        self._tiles.writer.assign(last, highest)
        return tile

    def _guarded(self, node: RunningMax, highest: str, axes: Order) -> Tile:
        name = self._tiles.names.fresh(node.result)
        return Tile(self._tiles.writer.assign(name, finite_shift(highest)), axes)

    def _serves_rescaling(self, node: RunningMax) -> bool:
        return any(
            isinstance(n, Accumulate) and n.rescale == node.result
            for n in self._block.nodes
        )
