"""The evaluator: what a program or μGraph means, over any array domain.

One walk serves NumPy floats (the reference semantics, and with rounding a model of a
real run) and field residues (verification).  It follows the nodes of the kernel graph;
`ir.evaluate.graph` evaluates a block graph for all blocks and iterations at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.clock import look
from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import Dim, Scalar, TensorType
from mirage_dsl.ir.evaluate.domain import (
    LOOP,
    Domain,
    Inside,
    Label,
    Named,
    NamedArrays,
    grid_label,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    LoopBound,
    Return,
    RunningMax,
    Store,
    dims_of,
)
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import (
    bind_extents,
    iterations,
    loops_inside_grid,
    partial_base,
    parts,
)
from mirage_dsl.ops import table

# -- Block graphs: all blocks and all iterations at once -------------------------------
# A load cuts each split dim into tiles and gives the tile numbers hidden axes of
# their own, so the operators of the block run once, on arrays with those axes in
# addition. Accumulators reduce the axis of iterations; stores put grid axes back
# into their dims.

V = TypeVar("V")

_Met = Callable[[NDArray[np.int64], int, NDArray[np.int64], int], NDArray[np.bool_]]


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
            look()
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
        masks: dict[Label, Inside] = {}
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

    def masks_of(self, dim: Dim) -> dict[Label, Inside]:
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
        inside = start[..., None] + np.arange(width) < end[..., None]
        found: dict[Label, Inside] = {}
        if not inside.all():
            found[dim.name] = Inside((*labels, dim.name), inside)
        if dim.loop and not (start < end).all():
            found[LOOP] = Inside(tuple(labels), start < end)
        return found

    # -- Operators -----------------------------------------------------------------

    def apply(self, node: Apply) -> Named[V]:
        operands = [
            self.value(o) if isinstance(o, str) else Named(self.constant(o), ())
            for o in node.operands
        ]
        return self.settle(node, self.arrays.apply(node, operands))

    def constant(self, number: Scalar) -> V:
        """The value of a constant."""
        return self.arrays.domain.constant(number, self.extents)

    def running_max(self, node: RunningMax) -> Named[V]:
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

    def _iterations(self, bound: LoopBound, met: _Met) -> Inside:
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

    def settle(self, node: Apply, named: Named[V]) -> Named[V]:
        """A truth value as it is taken where its bounds cover iterations."""
        for settled in self.block.settled:
            if settled.value == node.result:
                inside = self._iterations(settled.bound, settled.bound.covers)
                rest = replace(inside, keep=~inside.keep)
                named = self._only(rest, named, float(settled.holds))
        return named

    # -- Accumulators --------------------------------------------------------------

    def accumulate(self, node: Accumulate) -> Named[V]:
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

    def store(self, node: Store) -> Named[V]:
        named = self.value(node.operand)
        dims = dims_of(node.axes)
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
    [BlockGraph, Mapping[str, Named[Any]], Mapping[str, int], Domain[Any]],
    dict[str, Named[Any]],
]
"""What gives the stored tensors of a block: `evaluate_block`, or another level."""


def evaluate(
    graph: KernelGraph,
    inputs: Sequence[V],
    domain: Domain[V],
    blocks: BlockEvaluator = evaluate_block,
) -> list[V]:
    """The outputs of `graph`, in order, with axes as the returned types say.

    Args:
        graph: A program or μGraph that `check` accepts.
        inputs: One array per input, axes as the input's type says.
        domain: The arithmetic.
        blocks: What evaluates block graphs.

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
    for node in graph.nodes:
        look()
        match node:
            case Apply():
                values[node.result] = _apply(
                    arrays, node, values, extents, types[node.result]
                )
            case BlockGraph():
                block_types(node, types)
                values.update(blocks(node, values, extents, domain))
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
    node: Apply,
    values: Mapping[str, Named[V]],
    extents: Mapping[str, int],
    result: TensorType,
) -> Named[V]:
    """A library kernel: its result is rounded to its storage format."""
    operands = [
        _lookup(values, o)
        if isinstance(o, str)
        else Named(arrays.domain.constant(o, extents), ())
        for o in node.operands
    ]
    found = arrays.apply(node, operands, extents)
    return Named(arrays.domain.cast(found.value, result.dtype), found.labels)


def _to_caller(arrays: NamedArrays[V], item: Return, named: Named[V]) -> V:
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
