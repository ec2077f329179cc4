"""Evaluation of one block graph, for all blocks and all iterations at once.

A load cuts each split dim into tiles and gives the tile numbers hidden axes of their
own, so the operators of the block run once, on arrays with those axes in addition.
Accumulators reduce the axis of iterations; stores put grid axes back into their dims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.domain import Domain
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    Load,
    RunningMax,
    Store,
    dims_of,
)
from mirage_dsl.ir.maps import iterations, loops_inside_grid, partial_base, parts
from mirage_dsl.ir.named import LOOP, Label, Mask, Named, NamedArrays, grid_label
from mirage_dsl.ops import table
from mirage_dsl.types import Dim

V = TypeVar("V")


def evaluate_block(
    block: BlockGraph,
    outer: Mapping[str, Named[V]],
    extents: Mapping[str, int],
    domain: Domain[V],
) -> dict[str, Named[V]]:
    """The kernel-level tensors that the block stores.

    Args:
        block: The block graph.
        outer: Kernel-level values by name.
        extents: Extents of all kernel-level dims.
        domain: The arithmetic.

    Raises:
        CheckError: The block is not well formed in a way that shows here.
    """
    return BlockEvaluation(block, extents, NamedArrays(domain)).run(outer)


class BlockEvaluation(Generic[V]):
    """One evaluation of a block graph.

    Of the coordinates of the grid, and of the positions in a tile, it takes all; a
    subclass may take fewer.
    """

    def __init__(
        self,
        block: BlockGraph,
        extents: Mapping[str, int],
        arrays: NamedArrays[V],
    ) -> None:
        self.block = block
        self.extents = extents
        self.arrays = arrays
        self.values: dict[str, Named[V]] = {}
        self.running: set[str] = set()

    def run(self, outer: Mapping[str, Named[V]]) -> dict[str, Named[V]]:
        """The tensors that the block stores."""
        stored: dict[str, Named[V]] = {}
        for node in self.block.nodes:
            match node:
                case Load():
                    if node.source not in outer:
                        raise CheckError(f"load {node.source}: no such tensor")
                    self.values[node.result] = self.load(node, outer[node.source])
                case Apply():
                    self.values[node.result] = self.apply(node)
                case Accumulate():
                    self.values[node.result] = self.accumulate(node)
                case RunningMax():
                    self.values[node.result] = self.running_max(node)
                    self.running.add(node.result)
                case Store():
                    stored[node.result] = self.store(node)
        return stored

    def value(self, name: str) -> Named[V]:
        if name not in self.values:
            raise CheckError(f"unknown value {name}; a node must define it first")
        return self.values[name]

    def in_body(self, name: str, what: str) -> Named[V]:
        named = self.value(name)
        if LOOP not in named.labels:
            raise CheckError(f"{what} {name}: not a value of the loop body")
        return named

    # -- Loads ---------------------------------------------------------------------

    def load(self, node: Load, source: Named[V]) -> Named[V]:
        dims = dims_of(node.axes)
        named = self.arrays.arranged(source, [d.name for d in dims])
        for dim in dims:
            named = self.piece(named, dim)
        masks: dict[Label, Mask] = {}
        for dim in dims:
            masks.update(self.masks_of(dim))
        return replace(named, masks=masks)

    def piece(self, named: Named[V], dim: Dim) -> Named[V]:
        """Cut a dim into the parts of the grid, and these into those of the loop."""
        if dim.grid:
            outer = grid_label(dim.name)
            named = self.arrays.split_axis(
                named, dim.name, outer, self.grid_tile(dim.name)
            )
        if dim.loop:
            tile = self.loop_tile(dim.name)
            named = self.arrays.split_axis(named, dim.name, LOOP, tile)
        return named

    def grid_tile(self, name: str) -> int:
        split = self.block.grid_split(name)
        if split is None:
            raise CheckError(f"{name}/grid: the grid does not split {name}")
        return min(split.tile, self.extents[name])

    def loop_tile(self, name: str) -> int:
        if self.block.loop is None or self.block.loop.dim != name:
            raise CheckError(f"{name}/loop: the loop does not split {name}")
        inside = loops_inside_grid(self.block)
        span = self.grid_tile(name) if inside else self.extents[name]
        return min(self.block.loop.tile, span)

    def coordinates(self, name: str) -> NDArray[np.int64]:
        """The coordinates along a grid dim."""
        return np.arange(parts(self.extents[name], self.grid_tile(name)))

    def positions(self, dim: Dim, width: int) -> NDArray[np.int64]:  # noqa: ARG002
        """The positions within a piece of `width` elements."""
        return np.arange(width)

    def masks_of(self, dim: Dim) -> dict[Label, Mask]:
        """Masks of a ragged piece, and of iterations that lie wholly outside."""
        whole = self.extents[dim.name]
        labels: list[Label] = []
        start, end = np.zeros((), np.int64), np.asarray(whole)
        if dim.grid:
            tile = self.grid_tile(dim.name)
            start = self.coordinates(dim.name) * tile
            end = np.minimum(start + tile, whole)
            labels.append(grid_label(dim.name))
        width = self.grid_tile(dim.name) if dim.grid else whole
        if dim.loop:
            width = self.loop_tile(dim.name)
            count = iterations(self.block, self.extents)
            start = start[..., None] + np.arange(count) * width
            end = end[..., None]
            labels.append(LOOP)
        inside = start[..., None] + self.positions(dim, width) < end[..., None]
        found: dict[Label, Mask] = {}
        if not inside.all():
            found[dim.name] = Mask((*labels, dim.name), inside)
        if dim.loop and not (start < end).all():
            found[LOOP] = Mask(tuple(labels), start < end)
        return found

    # -- Operators -----------------------------------------------------------------

    def apply(self, node: Apply) -> Named[V]:
        operands = [
            self.value(o)
            if isinstance(o, str)
            else Named(self.arrays.domain.constant(o, self.extents), ())
            for o in node.operands
        ]
        return self.arrays.apply(node, operands)

    def running_max(self, node: RunningMax) -> Named[V]:
        named = self.masked_iterations(
            self.in_body(node.operand, "running_max"), -math.inf
        )
        largest = self.arrays.domain.running_max(named.value, named.axis(LOOP))
        return replace(named, value=largest)

    def masked_iterations(self, named: Named[V], fill: float) -> Named[V]:
        """`fill` where an element exists in other iterations only."""
        varying = [n for n, m in named.masks.items() if LOOP in m.labels]
        return self.arrays.masked(named, varying, fill)

    # -- Accumulators --------------------------------------------------------------

    def accumulate(self, node: Accumulate) -> Named[V]:
        named = self.in_body(node.operand, "accumulate")
        if node.kind == "concat":
            return self.concatenated(named)
        if node.kind == "max":
            if node.operand in self.running:
                return self.last(named)
            named = self.masked_iterations(named, -math.inf)
            return self.after_loop(self.arrays.reduce(table.MAX, named, [LOOP]))
        if node.rescale is not None:
            named = self.rescaled(named, self.in_body(node.rescale, "rescale by"))
        named = self.masked_iterations(named, 0.0)
        return self.after_loop(self.arrays.reduce(table.SUM, named, [LOOP]))

    def rescaled(self, named: Named[V], largest: Named[V]) -> Named[V]:
        """Times exp(m_i - m_last), for the running maximum m."""
        at = largest.axis(LOOP)
        count = self.arrays.extent(largest, LOOP)
        last = self.arrays.domain.take(largest.value, at, count - 1, count)
        shift = self.arrays.elementwise(
            table.SUB, [largest, replace(largest, value=last)]
        )
        weight = self.arrays.elementwise(table.EXP, [shift])
        return self.arrays.elementwise(table.MUL, [named, weight])

    def last(self, named: Named[V]) -> Named[V]:
        """The value of the last iteration, which is a running maximum's maximum.

        Taking it as such, not as a maximum, keeps it equal to what accumulators were
        rescaled to when a domain replaces the running maximum by random values.
        """
        at, count = named.axis(LOOP), self.arrays.extent(named, LOOP)
        value = self.arrays.domain.take(named.value, at, count - 1, count)
        shape = list(self.arrays.domain.shape(value))
        del shape[at]
        labels = tuple(n for n in named.labels if n != LOOP)
        kept = Named(
            self.arrays.domain.reshape(value, tuple(shape)), labels, named.masks
        )
        return self.after_loop(kept)

    def after_loop(self, named: Named[V]) -> Named[V]:
        """Masks after the loop: an index of a tile counts if any iteration has it."""
        masks: dict[Label, Mask] = {}
        for label, mask in named.masks.items():
            if label == LOOP:
                continue
            if LOOP in mask.labels:
                at = mask.labels.index(LOOP)
                rest = tuple(n for n in mask.labels if n != LOOP)
                masks[label] = Mask(rest, np.asarray(mask.keep.any(axis=at)))
            else:
                masks[label] = mask
        return replace(named, masks=masks)

    def concatenated(self, named: Named[V]) -> Named[V]:
        assert self.block.loop is not None
        name = self.block.loop.dim
        if name not in named.labels:
            raise CheckError(f"concatenation needs the looped dim {name}")
        piece = Dim(name, grid=loops_inside_grid(self.block))
        extent = self.grid_tile(name) if piece.grid else self.extents[name]
        joined = self.arrays.join_axes(named, LOOP, name, extent)
        masks = {n: m for n, m in named.masks.items() if LOOP not in m.labels}
        return replace(joined, masks={**masks, **self.masks_of(piece)})

    # -- Stores --------------------------------------------------------------------

    def store(self, node: Store) -> Named[V]:
        named = self.value(node.operand)
        dims = dims_of(node.axes)
        for dim in dims:
            base = partial_base(dim.name, self.block) if dim.grid else None
            if base is not None:
                named = self.numbered(named, dim.name, base)
            elif dim.grid:
                extent = self.stored_extent(dim.name)
                outer = grid_label(dim.name)
                if outer not in named.labels:
                    raise CheckError(
                        f"store {node.result}: {node.operand} has no {dim}"
                    )
                named = self.arrays.join_axes(named, outer, dim.name, extent)
        names = tuple(d.name for d in dims)
        if set(names) != set(named.labels):
            raise CheckError(
                f"store {node.result}: {node.operand} has the axes "
                f"{', '.join(map(str, named.labels))}, the store has {', '.join(names)}"
            )
        value = self.arrays.arranged(named, names).value
        return Named(self.arrays.domain.cast(value, node.dtype), names)

    def stored_extent(self, name: str) -> int:
        """How many elements the parts of a dim have together."""
        return self.extents[name]

    def numbered(self, named: Named[V], partial: str, base: str) -> Named[V]:
        """The grid coordinate along `base` as the dim `partial`."""
        outer = grid_label(base)
        if outer not in named.labels:
            return self.arrays.repeated(named, partial, len(self.coordinates(base)))
        labels = tuple(partial if n == outer else n for n in named.labels)
        return replace(named, labels=labels)
