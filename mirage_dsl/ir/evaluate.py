"""The evaluator: what a program or μGraph means, over any array domain.

One walk serves NumPy floats (the reference semantics, and with rounding a model of a
real run) and field residues (verification).  It works on arrays with named axes, and
follows the nodes of the kernel graph; a block graph is evaluated for all blocks and
iterations at once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from mirage_dsl.core.errors import CheckError, DTypeError, ShapeError
from mirage_dsl.core.types import Dim, DType, Scalar, TensorType, dtype_named, f32
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.infer import block_types, kernel_types, library_shapes, operand_axes
from mirage_dsl.ir.maps import (
    bind_extents,
    iterations,
    loops_inside_grid,
    partial_base,
    parts,
)
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ir.walk import read_last
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Array, Kind, Numbers, Operator, Truth

# -- Domains ---------------------------------------------------------------------------

V = TypeVar("V")


class Domain(Protocol[V]):
    """Arrays with positional axes.  The evaluator maps named dims to positions."""

    def shape(self, value: V) -> tuple[int, ...]: ...

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> V:
        """A rank-0 array."""
        ...

    def index(self, count: int) -> V:
        """The integers from 0 to before `count`, exactly."""
        ...

    def elementwise(self, op: Operator, operands: Sequence[V]) -> V:
        """Apply `op` to arrays of equal rank that broadcast (rank 0 goes with any)."""
        ...

    def reduce(self, op: Operator, value: V, axes: tuple[int, ...]) -> V:
        """Apply a reduction; the axes vanish."""
        ...

    def scan(self, op: Operator, value: V, axis: int) -> V:
        """Apply a scan along an axis."""
        ...

    def contract(self, op: Operator, a: V, b: V) -> V:
        """Apply a contraction to (batch, m, k) and (batch, k, n)."""
        ...

    def library(
        self,
        op: Operator,
        operands: Sequence[V],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> V:
        """Apply a library operator, whose result has the given shape.

        Args:
            op: The operator.
            operands: With the axes that it knows by their places.
            numbers: Its attributes that are integers.
            shape: Of its result.
        """
        ...

    def running_max(self, value: V, axis: int) -> V:
        """Cumulative maximum along an axis, finite everywhere (see `RunningMax`)."""
        ...

    def cast(self, value: V, dtype: DType) -> V:
        """Round to a storage format where the domain rounds."""
        ...

    def transpose(self, value: V, order: tuple[int, ...]) -> V: ...

    def reshape(self, value: V, shape: tuple[int, ...]) -> V: ...

    def take(self, value: V, axis: int, start: int, stop: int) -> V:
        """The elements from `start` to before `stop` along an axis."""
        ...

    def pad(self, value: V, axis: int, count: int) -> V:
        """Append `count` arbitrary elements; whatever they are must not matter."""
        ...

    def mask(self, value: V, keep: NDArray[np.bool_], fill: float) -> V:
        """`fill` where `keep`, broadcast to the value, is False."""
        ...

    def gather(self, op: Operator, value: V, index: V, axis: int) -> V:
        """Apply a gather along an axis to arrays that broadcast along all others."""
        ...

    def concat(self, values: Sequence[V], axis: int) -> V: ...


# -- Named arrays ----------------------------------------------------------------------
# The evaluator works on these.  Besides the dims of a value there are *hidden*
# axes: one per grid coordinate and one for the iteration, so that all blocks and
# all iterations are evaluated at once.  Operators act on dims by name and carry
# hidden axes along.
#
# Padding of ragged tiles is tracked per dim and masked just where a padded element
# could reach another one: in reductions, contractions and accumulations.


Label = str | tuple[str, ...]
"""Name of an axis: a dim's name, or a hidden axis."""

LOOP: Label = ("loop",)
"""The hidden axis of iterations."""


def grid_label(dim: str) -> Label:
    """The hidden axis of the grid coordinate along `dim`."""
    return ("grid", dim)


@dataclass(frozen=True)
class Inside:
    """Which indices are no padding, over the axes that decide it."""

    labels: tuple[Label, ...]
    keep: NDArray[np.bool_]

    def aligned(self, labels: Sequence[Label]) -> NDArray[np.bool_]:
        """`keep` so that it broadcasts to a value with the axes `labels`."""
        present = [n for n in labels if n in self.labels]
        keep = self.keep.transpose([self.labels.index(n) for n in present])
        sizes = dict(zip(present, keep.shape, strict=True))
        return keep.reshape([sizes.get(n, 1) for n in labels])


@dataclass(frozen=True)
class Named(Generic[V]):
    """A value, the name of each of its axes, and the masks of its ragged axes."""

    value: V
    labels: tuple[Label, ...]
    masks: Mapping[Label, Inside] = field(default_factory=dict[Label, Inside])

    def axis(self, label: Label) -> int:
        """Position of the axis `label`."""
        return self.labels.index(label)


class NamedArrays(Generic[V]):
    """Operators of the table on named arrays."""

    def __init__(self, domain: Domain[V]) -> None:
        self.domain = domain

    def extent(self, named: Named[V], label: Label) -> int:
        """Length of the axis `label`."""
        return self.domain.shape(named.value)[named.axis(label)]

    def arranged(self, named: Named[V], labels: Sequence[Label]) -> Named[V]:
        """The same value with its axes in the order `labels`."""
        if tuple(labels) == named.labels:
            return named
        order = tuple(named.axis(n) for n in labels)
        value = self.domain.transpose(named.value, order)
        return Named(value, tuple(labels), named.masks)

    def split_axis(
        self, named: Named[V], label: Label, outer: Label, size: int
    ) -> Named[V]:
        """Cut an axis into tiles of `size`, numbered by the new axis `outer`."""
        at, extent = named.axis(label), self.extent(named, label)
        count = -(-extent // size)
        value = named.value
        if count * size != extent:
            value = self.domain.pad(value, at, count * size - extent)
        shape = list(self.domain.shape(value))
        shape[at : at + 1] = [count, size]
        labels = list(named.labels)
        labels.insert(at, outer)
        value = self.domain.reshape(value, tuple(shape))
        return Named(value, tuple(labels), named.masks)

    def join_axes(
        self, named: Named[V], outer: Label, label: Label, extent: int
    ) -> Named[V]:
        """Undo `split_axis`: tiles in the order of `outer`, cut to `extent`."""
        labels = [n for n in named.labels if n != outer]
        at = labels.index(label)
        labels.insert(at, outer)
        moved = self.arranged(named, labels)
        shape = list(self.domain.shape(moved.value))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
        value = self.domain.reshape(moved.value, tuple(shape))
        if shape[at] > extent:
            value = self.domain.take(value, at, 0, extent)
        labels.remove(outer)
        return Named(value, tuple(labels), moved.masks)

    def repeated(self, named: Named[V], label: Label, count: int) -> Named[V]:
        """The value once for each index of a new first axis."""
        shape = self.domain.shape(named.value)
        value = self.domain.reshape(named.value, (1, *shape))
        if count > 1:
            value = self.domain.concat([value] * count, 0)
        return Named(value, (label, *named.labels), named.masks)

    def masked(self, named: Named[V], labels: Iterable[Label], fill: float) -> Named[V]:
        """`fill` in place of the padding along the axes `labels`."""
        masks = [named.masks[n] for n in labels if n in named.masks]
        return self.under(masks, named, fill)

    def under(self, masks: Sequence[Inside], named: Named[V], fill: float) -> Named[V]:
        """`fill` in the place of what one of the masks leaves out."""
        if not masks:
            return named
        keep = masks[0].aligned(named.labels)
        for mask in masks[1:]:
            keep = keep & mask.aligned(named.labels)
        value = self.domain.mask(named.value, keep, fill)
        return Named(value, named.labels, named.masks)

    def elementwise(self, op: Operator, operands: Sequence[Named[V]]) -> Named[V]:
        """Broadcast by name and apply."""
        labels = tuple(dict.fromkeys(n for o in operands for n in o.labels))
        values = [self._aligned(o, labels) for o in operands]
        masks = {n: m for o in operands for n, m in o.masks.items()}
        return Named(self.domain.elementwise(op, values), labels, masks)

    def _aligned(self, named: Named[V], labels: Sequence[Label]) -> V:
        if not named.labels:
            return named.value
        moved = self.arranged(named, [n for n in labels if n in named.labels])
        sizes = dict(zip(moved.labels, self.domain.shape(moved.value), strict=True))
        shape = tuple(sizes.get(n, 1) for n in labels)
        return self.domain.reshape(moved.value, shape)

    def reduce(
        self, op: Operator, named: Named[V], labels: Sequence[Label]
    ) -> Named[V]:
        """Reduce the axes `labels`; padding counts as the neutral element."""
        assert op.neutral is not None
        ready = self.masked(named, labels, op.neutral)
        axes = tuple(ready.axis(n) for n in labels)
        return Named(
            self.domain.reduce(op, ready.value, axes),
            tuple(n for n in ready.labels if n not in labels),
            {n: m for n, m in ready.masks.items() if n not in labels},
        )

    def scan(self, op: Operator, named: Named[V], labels: Sequence[Label]) -> Named[V]:
        """Scan the axis that the axes `labels` make, row-major.

        Nothing is masked: they are whole, so that padding lies behind all elements.
        """
        rest = [n for n in named.labels if n not in labels]
        moved = self.arranged(named, [*rest, *labels])
        shape = self.domain.shape(moved.value)
        head = shape[: len(rest)]
        merged = self.domain.reshape(
            moved.value, (*head, math.prod(shape[len(head) :]))
        )
        found = self.domain.scan(op, merged, len(rest))
        whole = replace(moved, value=self.domain.reshape(found, shape))
        return self.arranged(whole, named.labels)

    def contract(
        self, op: Operator, a: Named[V], b: Named[V], over: Sequence[Label]
    ) -> Named[V]:
        """Sum of products over `over`; other shared axes are batch axes."""
        # Padding may hold infinities, so zeros on one side only would not do.
        a, b = self.masked(a, over, 0.0), self.masked(b, over, 0.0)
        batch = [n for n in a.labels if n in b.labels and n not in over]
        left = [n for n in a.labels if n not in b.labels]
        right = [n for n in b.labels if n not in a.labels]
        product = self.domain.contract(
            op,
            self._grouped(a, batch, left, over),
            self._grouped(b, batch, over, right),
        )
        sizes = {n: self.extent(o, n) for o in (a, b) for n in o.labels}
        labels = (*batch, *left, *right)
        masks = {n: m for o in (a, b) for n, m in o.masks.items() if n in labels}
        shape = tuple(sizes[n] for n in labels)
        return Named(self.domain.reshape(product, shape), labels, masks)

    def _grouped(self, named: Named[V], *groups: Sequence[Label]) -> V:
        """One axis per group."""
        moved = self.arranged(named, [n for group in groups for n in group])
        sizes = dict(zip(moved.labels, self.domain.shape(moved.value), strict=True))
        shape = tuple(math.prod(sizes[n] for n in group) for group in groups)
        return self.domain.reshape(moved.value, shape)

    def gather(
        self, op: Operator, source: Named[V], index: Named[V], dim: str
    ) -> Named[V]:
        """The elements at the indices along `dim`; padding is at the first of them."""
        index = self.masked(index, index.labels, 0.0)
        rest = [n for n in source.labels if n != dim and n not in index.labels]
        labels = (*index.labels, dim, *rest)
        value = self.domain.gather(
            op,
            self._aligned(source, labels),
            self._aligned(index, labels),
            len(index.labels),
        )
        sizes = {n: self.extent(o, n) for o in (source, index) for n in o.labels}
        made = (*index.labels, *rest)
        found = self.domain.reshape(value, tuple(sizes[n] for n in made))
        masks = {n: m for o in (source, index) for n, m in o.masks.items() if n != dim}
        return Named(found, made, masks)

    def concat(
        self, operands: Sequence[Named[V]], joined: Sequence[str], to: str
    ) -> Named[V]:
        """Join the dim `joined[i]` of each operand into `to`."""
        renamed = [
            self.relabelled(o, {d: to}) for o, d in zip(operands, joined, strict=True)
        ]
        labels = tuple(dict.fromkeys(n for o in renamed for n in o.labels))
        sizes = {n: self.extent(o, n) for o in renamed for n in o.labels}
        full: list[V] = []
        for item in renamed:
            grown = item
            for label in labels:
                if label not in grown.labels:
                    grown = self.repeated(grown, label, sizes[label])
            full.append(self.arranged(grown, labels).value)
        masks = {n: m for o in renamed for n, m in o.masks.items() if n != to}
        mask = self._joined_mask(renamed, to)
        if mask is not None:
            masks[to] = mask
        return Named(self.domain.concat(full, labels.index(to)), labels, masks)

    def _joined_mask(self, operands: Sequence[Named[V]], to: str) -> Inside | None:
        masks = [o.masks.get(to) for o in operands]
        if all(m is None for m in masks):
            return None
        deciding = tuple(dict.fromkeys(n for m in masks if m for n in m.labels))
        deciding = (*(n for n in deciding if n != to), to)
        pieces: list[NDArray[np.bool_]] = []
        for item, mask in zip(operands, masks, strict=True):
            whole = np.ones((1,) * (len(deciding) - 1) + (self.extent(item, to),), bool)
            pieces.append(whole if mask is None else mask.aligned(deciding) & whole)
        head = np.broadcast_shapes(*(p.shape[:-1] for p in pieces))
        full = [np.broadcast_to(p, (*head, p.shape[-1])) for p in pieces]
        return Inside(deciding, np.concatenate(full, -1))

    def relabelled(self, named: Named[V], names: Mapping[str, str]) -> Named[V]:
        """The same value with dims renamed."""

        def new(label: Label) -> Label:
            return names.get(label, label) if isinstance(label, str) else label

        masks = {
            new(n): Inside(tuple(new(k) for k in m.labels), m.keep)
            for n, m in named.masks.items()
        }
        return Named(named.value, tuple(new(n) for n in named.labels), masks)

    def view(
        self, node: ir.Apply, named: Named[V], extents: Mapping[str, int] | None = None
    ) -> Named[V]:
        """Apply a row of `Kind.VIEW`: attributes say which view it is."""
        attrs: dict[str, Any] = dict(node.attrs)
        if node.factored is not None:
            assert extents is not None, node
            sizes = [extents[name] for name in node.factored.factors]
            return self.refactored(named, node.factored, sizes)
        if "dtype" in attrs:
            dtype = dtype_named(attrs["dtype"])
            assert dtype is not None, attrs
            return replace(named, value=self.domain.cast(named.value, dtype))
        if "dims" in attrs:
            return self.relabelled(
                named, dict(zip(attrs["dims"], attrs["to"], strict=True))
            )
        if "dim" not in attrs:
            return self.repeated(named, attrs["to"], 1)
        part = node.sliced
        assert part is not None, node
        at = named.axis(part.dim)
        start, stop = part.bounds(self.domain.shape(named.value)[at])
        taken = self.domain.take(named.value, at, start, stop)
        return self.relabelled(replace(named, value=taken), {part.dim: part.to})

    def refactored(
        self, named: Named[V], factored: ir.Factored, sizes: Sequence[int]
    ) -> Named[V]:
        """Several axes made one, or one several of these sizes, behind all others."""
        whole, factors = (factored.whole,), factored.factors
        old, new = (factors, whole) if factored.flattens else (whole, factors)
        rest = [n for n in named.labels if n not in old]
        moved = self.arranged(named, [*rest, *old])
        head = self.domain.shape(moved.value)[: len(rest)]
        shape = (math.prod(sizes),) if factored.flattens else tuple(sizes)
        value = self.domain.reshape(moved.value, (*head, *shape))
        return Named(value, (*rest, *new), named.masks)

    def library(
        self, node: ir.Apply, operands: Sequence[Named[V]], extents: Mapping[str, int]
    ) -> Named[V]:
        """Apply a library operator to its operands as it sees them."""
        shapes, shape = library_shapes(node, extents)
        values = [
            self.domain.reshape(self.arranged(o, axes.names).value, own)
            for o, axes, own in zip(operands, operand_axes(node), shapes, strict=True)
        ]
        names = [name for axis in node.axes("gives") for name in axis]
        found = self.domain.library(node.op, values, node.numbers, shape)
        flat = tuple(extents[name] for name in names)
        return Named(self.domain.reshape(found, flat), tuple(names))

    def apply(
        self,
        node: ir.Apply,
        operands: Sequence[Named[V]],
        extents: Mapping[str, int] | None = None,
    ) -> Named[V]:
        """Apply an operator node; where it knows axes, it needs the extents of dims."""
        match node.op.kind:
            case Kind.ELEMENTWISE:
                return self.elementwise(node.op, operands)
            case Kind.REDUCTION:
                return self.reduce(node.op, operands[0], node.over)
            case Kind.SCAN:
                return self.scan(node.op, operands[0], node.along)
            case Kind.CONTRACTION:
                return self.contract(node.op, operands[0], operands[1], node.over)
            case Kind.VIEW:
                return self.view(node, operands[0], extents)
            case Kind.GATHER:
                source, index = operands
                return self.gather(node.op, source, index, node.dim("dim"))
            case Kind.CONCAT:
                joined, to = node.dims("dims"), node.dim("to")
                return self.concat(operands, joined, to)
            case Kind.LIBRARY:
                assert extents is not None, node
                return self.library(node, operands, extents)


# -- Block graphs: all blocks and all iterations at once -------------------------------
# A load cuts each split dim into tiles and gives the tile numbers hidden axes of
# their own, so the operators of the block run once, on arrays with those axes in
# addition. Accumulators reduce the axis of iterations; stores put grid axes back
# into their dims.

_Met = Callable[[NDArray[np.int64], int, NDArray[np.int64], int], NDArray[np.bool_]]


def evaluate_block(
    block: ir.BlockGraph,
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
        block: ir.BlockGraph,
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
            look()
            match node:
                case ir.Load():
                    if node.source not in outer:
                        raise CheckError(f"load {node.source}: no such tensor")
                    self.values[node.result] = self.load(node, outer[node.source])
                case ir.Apply():
                    self.values[node.result] = self.apply(node)
                case ir.Accumulate():
                    self.values[node.result] = self.accumulate(node)
                case ir.RunningMax():
                    self.values[node.result] = self.running_max(node)
                    self.running.add(node.result)
                case ir.Store():
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

    def load(self, node: ir.Load, source: Named[V]) -> Named[V]:
        dims = ir.dims_of(node.axes)
        named = self.arrays.arranged(source, [d.name for d in dims])
        for dim in dims:
            named = self.piece(named, dim)
        masks: dict[Label, Inside] = {}
        for dim in dims:
            masks.update(self.masks_of(dim))
        return Named(named.value, named.labels, masks)

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

    def masks_of(self, dim: Dim) -> dict[Label, Inside]:
        """Masks of a ragged piece, and of iterations that lie wholly outside."""
        if not (dim.grid or dim.loop):
            return {}
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
        inside = start[..., None] + np.arange(width) < end[..., None]
        found: dict[Label, Inside] = {}
        if not inside.all():
            found[dim.name] = Inside((*labels, dim.name), inside)
        if dim.loop and not (start < end).all():
            found[LOOP] = Inside(tuple(labels), start < end)
        return found

    # -- Operators -----------------------------------------------------------------

    def apply(self, node: ir.Apply) -> Named[V]:
        operands = [
            self.value(o) if isinstance(o, str) else Named(self.constant(o), ())
            for o in node.operands
        ]
        if self.goes_on(node, operands[0]):
            return self.scanned_on(node, operands[0])
        return self.settle(node, self.arrays.apply(node, operands))

    def goes_on(self, node: ir.Apply, operand: Named[V]) -> bool:
        """Whether a scan is of pieces of the loop, one iteration behind another."""
        loop = self.block.loop
        if loop is None or node.along != (loop.dim,) or LOOP not in operand.labels:
            return False
        return self.arrays.extent(operand, loop.dim) == self.loop_tile(loop.dim)

    def scanned_on(self, node: ir.Apply, operand: Named[V]) -> Named[V]:
        """A scan over all iterations; what is no element joins as if it were not."""
        total = table.total_of(node.op)
        assert total is not None
        assert total.neutral is not None
        labels: tuple[Label, ...] = (LOOP, *node.along)
        ready = self.arrays.masked(operand, labels, total.neutral)
        return self.arrays.scan(node.op, ready, labels)

    def constant(self, number: Scalar) -> V:
        """The value of a constant."""
        return self.arrays.domain.constant(number, self.extents)

    def running_max(self, node: ir.RunningMax) -> Named[V]:
        named = self.visited(self.in_body(node.operand, "running_max"), -math.inf)
        named = self.masked_iterations(named, -math.inf)
        largest = self.arrays.domain.running_max(named.value, named.axis(LOOP))
        return replace(named, value=largest)

    def masked_iterations(self, named: Named[V], fill: float) -> Named[V]:
        """`fill` where an element exists in other iterations only."""
        varying = [n for n, m in named.masks.items() if LOOP in m.labels]
        return self.arrays.masked(named, varying, fill)

    def iteration_numbers(self) -> NDArray[np.int64]:
        """Those of the iterations."""
        return np.arange(iterations(self.block, self.extents))

    def visited(self, named: Named[V], fill: float) -> Named[V]:
        """`fill` in the iterations that a bound leaves out."""
        for bound in self.block.bounds:
            named = self._only(self._iterations(bound, bound.met), named, fill)
        return named

    def _iterations(self, bound: ir.LoopBound, met: _Met) -> Inside:
        """Which iterations of which blocks a bound lets through, or covers."""
        loop = self.block.loop
        assert loop is not None
        tile, width = self.loop_tile(loop.dim), self.grid_tile(bound.dim)
        labels: list[Label] = [grid_label(bound.dim), LOOP]
        at = self.iteration_numbers() * tile
        first = self.coordinates(bound.dim)[:, None] * width
        if loops_inside_grid(self.block):
            labels.insert(1, grid_label(loop.dim))
            part = self.coordinates(loop.dim) * self.grid_tile(loop.dim)
            at, first = part[:, None] + at, first[..., None]
        return Inside(tuple(labels), met(at, tile, first, width))

    def _only(self, keep: Inside, named: Named[V], fill: float) -> Named[V]:
        """The value in some iterations, `fill` in the others."""
        for axis, label in enumerate(keep.labels):
            if label not in named.labels:
                count = keep.keep.shape[axis]
                named = self.arrays.repeated(named, label, count)
        value = self.arrays.domain.mask(named.value, keep.aligned(named.labels), fill)
        return replace(named, value=value)

    def settle(self, node: ir.Apply, named: Named[V]) -> Named[V]:
        """A truth value as it is taken where its bounds cover iterations."""
        for settled in self.block.settled:
            if settled.value == node.result:
                inside = self._iterations(settled.bound, settled.bound.covers)
                rest = replace(inside, keep=~inside.keep)
                named = self._only(rest, named, float(settled.holds))
        return named

    # -- Accumulators --------------------------------------------------------------

    def accumulate(self, node: ir.Accumulate) -> Named[V]:
        named = self.in_body(node.operand, "accumulate")
        reduction = node.reduction
        if reduction is None:
            return self.concatenated(named)
        if reduction is table.ROWSHIFT.shift_of and node.operand in self.running:
            return self.last(named)
        if node.rescale is not None:
            named = self.rescaled(named, self.in_body(node.rescale, "rescale by"))
        assert reduction.neutral is not None
        named = self.visited(named, reduction.neutral)
        named = self.masked_iterations(named, reduction.neutral)
        return self.after_loop(self.arrays.reduce(reduction, named, [LOOP]))

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
        if not named.masks:
            return named
        masks: dict[Label, Inside] = {}
        for label, mask in named.masks.items():
            if label == LOOP:
                continue
            if LOOP in mask.labels:
                at = mask.labels.index(LOOP)
                rest = tuple(n for n in mask.labels if n != LOOP)
                masks[label] = Inside(rest, np.asarray(mask.keep.any(axis=at)))
            else:
                masks[label] = mask
        return replace(named, masks=masks)

    def concatenated(self, named: Named[V]) -> Named[V]:
        assert self.block.loop is not None
        name = self.block.loop.dim
        if name not in named.labels:
            raise CheckError(f"concatenation needs the looped dim {name}")
        piece = Dim(name, grid=loops_inside_grid(self.block))
        joined = self.joined(named, LOOP, replace(piece, loop=True))
        masks = {n: m for n, m in named.masks.items() if LOOP not in m.labels}
        return replace(joined, masks={**masks, **self.masks_of(piece)})

    # -- Stores --------------------------------------------------------------------

    def store(self, node: ir.Store) -> Named[V]:
        named = self.value(node.operand)
        dims = ir.dims_of(node.axes)
        for dim in dims:
            base = partial_base(dim.name, self.block) if dim.grid else None
            if base is not None:
                named = self.numbered(named, dim.name, base)
            elif dim.grid:
                outer = grid_label(dim.name)
                if outer not in named.labels:
                    raise CheckError(
                        f"store {node.result}: {node.operand} has no {dim}"
                    )
                named = self.joined(named, outer, dim)
        names = tuple(d.name for d in dims)
        if set(names) != set(named.labels):
            raise CheckError(
                f"store {node.result}: {node.operand} has the axes "
                f"{', '.join(map(str, named.labels))}, the store has {', '.join(names)}"
            )
        value = self.arrays.arranged(named, names).value
        return Named(self.arrays.domain.cast(value, node.dtype), names)

    def joined(self, named: Named[V], parts: Label, piece: Dim) -> Named[V]:
        """The parts of a piece one after the other: of the loop, or of the grid."""
        inside = piece.grid and piece.loop
        extent = self.grid_tile(piece.name) if inside else self.extents[piece.name]
        return self.arrays.join_axes(named, parts, piece.name, extent)

    def numbered(self, named: Named[V], partial: str, base: str) -> Named[V]:
        """The grid coordinate along `base` as the dim `partial`."""
        outer = grid_label(base)
        if outer not in named.labels:
            return self.arrays.repeated(named, partial, len(self.coordinates(base)))
        labels = tuple(partial if n == outer else n for n in named.labels)
        return replace(named, labels=labels)


# -- Kernel graphs ---------------------------------------------------------------------


BlockEvaluator = Callable[
    [ir.BlockGraph, Mapping[str, Named[Any]], Mapping[str, int], Domain[Any]],
    dict[str, Named[Any]],
]
"""What gives the stored tensors of a block: `evaluate_block`, or another level."""


def evaluate(
    graph: ir.KernelGraph,
    inputs: Sequence[V],
    domain: Domain[V],
    blocks: BlockEvaluator = evaluate_block,
    unstored: Container[str] = (),
) -> list[V]:
    """The outputs of `graph`, in order, with axes as the returned types say.

    Args:
        graph: A program or μGraph that `check` accepts.
        inputs: One array per input, axes as the input's type says.
        domain: The arithmetic.
        blocks: What evaluates block graphs.
        unstored: Floats that no tensor holds, and that are f32 whatever their type.

    Raises:
        ShapeError: The arrays do not fit the input types.
        CheckError: The graph is not well formed in a way that shows here.
    """
    extents = bind_extents(graph, [domain.shape(v) for v in inputs])
    types = kernel_types(graph)
    arrays = NamedArrays(domain)
    values: dict[str, Named[V]] = {}
    for item, value in zip(graph.inputs, inputs, strict=True):
        values[item.name] = _from_caller(arrays, item.type, value, extents)
    for item in graph.indices:
        values[item.name] = index_values(arrays, item.type, extents)
    # Only what is still to be read is kept: programs make more than memory holds.
    ended = read_last(graph.nodes, (r.value for r in graph.returns))
    for node, gone in zip(graph.nodes, ended, strict=True):
        look()
        match node:
            case ir.Apply():
                kind = f32 if node.result in unstored else types[node.result].dtype
                values[node.result] = _apply(arrays, node, values, extents, kind)
            case ir.BlockGraph():
                block_types(node, types)
                values.update(blocks(node, values, extents, domain))
        for value in gone:
            values.pop(value, None)
    return [_to_caller(arrays, r, _lookup(values, r.value)) for r in graph.returns]


def _lookup(values: Mapping[str, Named[V]], name: str) -> Named[V]:
    if name not in values:
        raise CheckError(f"unknown value {name}; a node must define it first")
    return values[name]


def _from_caller(
    arrays: NamedArrays[V], kind: TensorType, value: V, extents: Mapping[str, int]
) -> Named[V]:
    flat = arrays.domain.reshape(value, tuple(extents[n] for n in kind.names))
    return Named(arrays.domain.cast(flat, kind.dtype), kind.names)


def index_values(
    arrays: NamedArrays[V], kind: TensorType, extents: Mapping[str, int]
) -> Named[V]:
    """The positions along an axis of a type."""
    shape = tuple(extents[n] for n in kind.names)
    counted = arrays.domain.index(math.prod(shape))
    return Named(arrays.domain.reshape(counted, shape), kind.names)


def _apply(
    arrays: NamedArrays[V],
    node: ir.Apply,
    values: Mapping[str, Named[V]],
    extents: Mapping[str, int],
    dtype: DType,
) -> Named[V]:
    """A library kernel: its result is rounded to the format that holds it.

    Raises:
        ShapeError: An index is outside; with the node's line.
    """
    operands = [
        _lookup(values, o)
        if isinstance(o, str)
        else Named(arrays.domain.constant(o, extents), ())
        for o in node.operands
    ]
    try:
        found = arrays.apply(node, operands, extents)
    except ShapeError as error:
        raise ShapeError(error.message, error.location or node.location) from None
    return Named(arrays.domain.cast(found.value, dtype), found.labels)


def _to_caller(arrays: NamedArrays[V], item: ir.Return, named: Named[V]) -> V:
    if sorted(item.type.names) != sorted(map(str, named.labels)):
        raise CheckError(
            f"returned {item.value} has the dims {', '.join(map(str, named.labels))}, "
            f"its returned type is {item.type}"
        )
    moved = arrays.arranged(named, item.type.names)
    sizes = dict(zip(moved.labels, arrays.domain.shape(moved.value), strict=True))
    shape: list[int] = []
    for axis in item.type.axes:
        extent = 1
        for dim in axis:
            extent *= sizes[dim.name]
        shape.append(extent)
    value = arrays.domain.reshape(moved.value, tuple(shape))
    return arrays.domain.cast(value, item.type.dtype)


# -- NumPy floats ----------------------------------------------------------------------

Compute = type[np.float64] | type[np.float32]


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of a storage format; what NumPy has not is `ml_dtypes`'."""
    return np.dtype(getattr(ml_dtypes, dtype.long_name, dtype.long_name))


def of_rank(value: Array, rank: int) -> Array:
    """The array with so many axes, new ones of one element behind its own."""
    return value.reshape(value.shape + (1,) * (rank - value.ndim))


class ArrayDomain:
    """How elements of any kind are moved in NumPy's arrays."""

    def shape(self, value: Array) -> tuple[int, ...]:
        """The array's shape."""
        return value.shape

    def transpose(self, value: Array, order: tuple[int, ...]) -> Array:
        """Axes in another order."""
        return value.transpose(order)

    def reshape(self, value: Array, shape: tuple[int, ...]) -> Array:
        """Axes merged or split."""
        return value.reshape(shape)

    def take(self, value: Array, axis: int, start: int, stop: int) -> Array:
        """A range along an axis."""
        index = (slice(None),) * axis + (slice(start, stop),)
        return value[index]

    def concat(self, values: Sequence[Array], axis: int) -> Array:
        """Arrays one after the other."""
        return np.concatenate(list(values), axis)


@dataclass(frozen=True)
class NumpyDomain(ArrayDomain):
    """Floats of one format, and integers in their own formats.

    Attributes:
        compute: The format of all arithmetic.
        round_casts: Round where a real run does: inputs, casts, stores and kernel-level
            results to their storage formats.  Otherwise nothing is rounded.
        stand_ins: Evaluate, in the place of a library operator, a function of a few
            elements of its operands at random places: at the small sizes of trials
            extents are none that its windows would make.
        checked: Refuse indices outside of what is gathered, whose elements are NaN
            otherwise.
    """

    compute: Compute = np.float64
    round_casts: bool = False
    stand_ins: bool = False
    checked: bool = True

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Array:
        """The number at the given extents."""
        return np.asarray(number.at(extents), dtype=self.compute)

    def index(self, count: int) -> Array:
        """The positions along an axis."""
        return np.arange(count, dtype=np.int64)

    def elementwise(self, op: Operator, operands: Sequence[Array]) -> Array:
        """The row's NumPy semantics; constants beside integers are of their format."""
        found = next((v.dtype for v in operands if v.dtype.kind in "iu"), None)
        if found is not None:
            operands = [
                v
                if v.dtype == found or (op.chooses and at == 0)
                else as_format(v, found)
                for at, v in enumerate(operands)
            ]
        with np.errstate(all="ignore"):
            return self._kept(op, op.numpy(*operands))

    def _kept(self, op: Operator, value: Array) -> Array:
        """Integers as they are, all else in floats, truth values as 1 and 0."""
        if value.dtype.kind in "iu" and op.truth is not Truth.COMPARES:
            return value
        return np.asarray(value, dtype=self.compute)

    def reduce(self, op: Operator, value: Array, axes: tuple[int, ...]) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            found = self._kept(op, np.asarray(op.numpy(value, axes)))
        # NumPy adds up small integers in larger ones.
        return found.astype(value.dtype) if value.dtype.kind in "iu" else found

    def scan(self, op: Operator, value: Array, axis: int) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            return self._kept(op, np.asarray(op.numpy(value, axis)))

    def contract(self, op: Operator, a: Array, b: Array) -> Array:
        """The row's NumPy semantics."""
        with np.errstate(all="ignore"):
            return np.asarray(op.numpy(a, b), dtype=self.compute)

    def library(
        self,
        op: Operator,
        operands: Sequence[Array],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> Array:
        """PyTorch's own function on the CPU, or what stands in for it.

        Raises:
            ShapeError: It gives another shape, or an index is outside.
        """
        if self.stand_ins:
            whole = [o.reshape(1, -1) for o in operands]
            return stand_in(op, whole, numbers, shape, operands[0].shape)[0]
        if op.indexed and not _is_inside(operands[1], 0, shape[1]):
            raise _outside(op, operands[1], 0, shape[1])
        found = np.asarray(op.numpy(*operands, **numbers))
        if found.dtype.kind == "f":
            found = found.astype(self.compute)
        if found.shape != shape:
            raise ShapeError(
                f"{op.name} gives the shape {found.shape}, where the extents of its "
                f"dims say {shape}"
            )
        return found

    def running_max(self, value: Array, axis: int) -> Array:
        """Cumulative maximum.

        -inf becomes the lowest finite number: any finite number serves, and with this
        one a rescaling from "nothing seen yet" to a real maximum is by zero.
        """
        largest = np.maximum.accumulate(value, axis=axis)
        lowest = np.asarray(np.finfo(self.compute).min, self.compute)
        return np.where(np.isneginf(largest), lowest, largest)

    def cast(self, value: Array, dtype: DType) -> Array:
        """Round to `dtype` if this domain rounds; integers stay what they are."""
        if dtype.is_integer:
            return value.astype(dtype.long_name)
        if value.dtype.kind in "iu":
            value = value.astype(self.compute)
        if not self.round_casts:
            return value
        with np.errstate(all="ignore"):
            return value.astype(numpy_dtype(dtype)).astype(self.compute)

    def pad(self, value: Array, axis: int, count: int) -> Array:
        """NaN, so that a mask forgotten anywhere shows in the result.

        There are no such integers; another one is as good as any.
        """
        shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
        fill = np.nan if value.dtype.kind == "f" else _ODD
        padding = np.full(shape, fill, value.dtype)
        return np.concatenate([value, padding], axis)

    def mask(self, value: Array, keep: NDArray[np.bool_], fill: float) -> Array:
        """`fill` where `keep` is False."""
        return np.where(keep, value, as_format(np.asarray(fill), value.dtype))

    def gather(self, op: Operator, value: Array, index: Array, axis: int) -> Array:
        """The row's NumPy semantics.

        Raises:
            ShapeError: An index is outside.
        """
        index = of_rank(index, max(value.ndim, index.ndim))
        extent = value.shape[axis]
        if _is_inside(index, -extent, extent):
            return np.asarray(op.numpy(value, index, axis))
        if self.checked:
            raise _outside(op, index, -extent, extent)
        inside = (index >= -extent) & (index < extent)
        found = op.numpy(value, np.where(inside, index, 0), axis)
        fill = np.nan if found.dtype.kind == "f" else _ODD
        return np.where(inside, found, np.asarray(fill, found.dtype))


def _is_inside(index: Array, first: int, end: int) -> bool:
    """Whether there is no index, or all are at least the first and before the end."""
    return not index.size or bool(first <= index.min() and index.max() < end)


def _outside(op: Operator, index: Array, first: int, end: int) -> ShapeError:
    low, high = int(index.min()), int(index.max())
    # What a function that counts from the front alone makes of those below 0.
    below = f" ({end} may stand for one below 0)" if high == end else ""
    return ShapeError(
        f"{op.name}: indices from {low} to {high} of a dim of extent {end}; expected "
        f"{first} to {end - 1}{below}"
    )


_TERMS = 3
"""Products whose mean stands in for an element of a library operator's result."""


_SPREAD = 1000.0
"""What stand-ins of indices are multiplied with, so that they differ."""


def stand_in(
    op: Operator,
    operands: Sequence[Array],
    numbers: Numbers,
    shape: tuple[int, ...],
    first: tuple[int, ...],
) -> Array:
    """A function of a library operator's operands that is as good as any other one.

    Each element is the mean of a few products of elements of all operands, at places
    that follow from the operator and its attributes.

    Args:
        op: The operator.
        operands: One row of elements for each run.
        numbers: Its attributes that are integers.
        shape: Of the result in each run.
        first: The shape of the first operand, along whose second axis are indices.
    """
    text = f"{op.function} {sorted(numbers.items())}"
    lengths = tuple(operand.shape[1] for operand in operands)
    runs, dtype = max(map(len, operands)), np.result_type(*operands)
    total = np.zeros((runs, math.prod(shape)), dtype)
    with np.errstate(all="ignore"):
        for term in _places_of_terms(text, lengths, math.prod(shape)):
            product = np.ones_like(total)
            for operand, places in zip(operands, term, strict=True):
                product *= np.take(operand, places, axis=1)
            total += product
        mean = np.asarray(total / dtype.type(_TERMS)).reshape(runs, *shape)
        if op.gives is None:
            return mean
        places = np.floor(np.abs(np.nan_to_num(mean)) * _SPREAD) % first[1]
        return places.astype(op.gives.long_name)


@lru_cache(maxsize=64)
def _places_of_terms(
    text: str, lengths: tuple[int, ...], count: int
) -> tuple[tuple[NDArray[np.int32], ...], ...]:
    """Of each term, the places in each operand of what a result's elements are of."""
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return tuple(
        tuple(rng.integers(length, size=count).astype(np.int32) for length in lengths)
        for _ in range(_TERMS)
    )


_ODD = 107


def as_format(number: Array, into: np.dtype[Any] | str) -> Array:
    """Numbers in another format; what integers start a minimum with is their largest.

    Infinities have no integer but the last one on their side.
    """
    dtype = np.dtype(into)
    if dtype.kind == "b":
        return number > 0
    if dtype.kind not in "iu" or number.dtype.kind != "f":
        return number.astype(dtype)
    limits = np.iinfo(dtype)
    ends = np.where(number < 0, limits.min, limits.max).astype(dtype)
    finite = np.where(np.isinf(number), 0, number).astype(np.int64).astype(dtype)
    return np.where(np.isinf(number), ends, finite)


def evaluate_numpy(
    graph: GraphLike,
    *arrays: ArrayLike,
    compute: Compute = np.float64,
    round_casts: bool = False,
    stand_ins: bool = False,
    checked: bool = True,
) -> list[Array]:
    """Evaluate a program or μGraph on NumPy arrays.

    Args:
        graph: What to evaluate: a graph, its text, or a candidate of a search.
        *arrays: One per input, axes as the input's type says, of any float dtype.
        compute: The format of all arithmetic, and of the results.
        round_casts: Round to storage formats where a real run does.
        stand_ins: As `NumpyDomain` says, for the sizes of trials.
        checked: Refuse indices that are outside of what is gathered.

    Returns:
        One array per output, axes as the returned type says.

    Raises:
        CheckError: The graph is not well formed.
        DTypeError: An array of complex numbers or of no numbers.
        ShapeError: Arrays that do not fit the input types; indices outside.
    """
    graph = graph_of(graph)
    domain = NumpyDomain(compute, round_casts, stand_ins, checked)
    values = [_numbers(a, compute) for a in arrays]
    try:
        return evaluate(graph, values, domain)
    except (AssertionError, IndexError, KeyError, ValueError):
        # What is not well formed fails in many ways; the checker says why.
        check_or_raise(graph)
        raise


def _numbers(array: ArrayLike, compute: Compute) -> Array:
    found = np.asarray(array)
    if found.dtype.kind not in "biuf" and found.dtype.name not in vars(ml_dtypes):
        raise DTypeError(
            f"found an array of {found.dtype}, expected floats such as float16, "
            "bfloat16 or float32"
        )
    return found if found.dtype.kind in "iu" else found.astype(compute)
