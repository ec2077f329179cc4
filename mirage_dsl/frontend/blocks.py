"""From a recorded hand-written block to a block graph."""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.errors import CheckError, SourceLocation
from mirage_dsl.frontend.dims import Atoms
from mirage_dsl.frontend.nodes import Builder
from mirage_dsl.frontend.steps import (
    BlockAccumulator,
    BlockLoad,
    BlockStep,
    BlockStore,
    Step,
    Value,
)
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    Schedule,
    Split,
    Store,
)
from mirage_dsl.ir.infer import block_node_type, store_type
from mirage_dsl.ir.maps import parts
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CAST
from mirage_dsl.types import Axis, Dim, TensorType, promote


def add_block(builder: Builder, step: BlockStep) -> None:
    """Add the block graph of a recorded block to a graph.

    Raises:
        CheckError: Its maps contradict each other.
    """
    _BlockBuilder(builder, step).build()


class _BlockBuilder:
    def __init__(self, builder: Builder, step: BlockStep) -> None:
        self._builder = builder
        self._names = builder.names
        self._step = step
        grid = tuple(s for axes, n in step.grid for s in self._axis(axes, n))
        if len({s.dim for s in grid}) != len(grid):
            raise CheckError(
                "two grid dims split one dim; the maps of x, y and z must split "
                "different dims",
                step.location,
            )
        loop = None if step.loop is None else self._loop(step.loop, grid)
        self._block = BlockGraph(grid, loop, (), Schedule(num_warps=step.num_warps))
        self._nodes: list[BlockNode] = []
        self._types: dict[str, TensorType] = {}

    def _axis(self, axes: tuple[Atoms, ...], count: int) -> list[Split]:
        """The splits of x, y or z: one for each dim that a tensor's map gives it."""
        found: dict[str, Split] = {}
        for axis in axes:
            split = _split(self._builder, axis, count, self._step.location)
            found.setdefault(split.dim, replace(split, beside=bool(found)))
        return list(found.values())

    def _loop(self, loop: tuple[Atoms, int], grid: tuple[Split, ...]) -> Split:
        split = _split(self._builder, *loop, self._step.location)
        inside = next((s for s in grid if s.dim == split.dim), None)
        return (
            split
            if inside is None
            else replace(split, tile=parts(inside.tile, loop[1]))
        )

    def build(self) -> None:
        """Translate all items, then add the block."""
        for item in self._step.items:
            match item:
                case BlockLoad():
                    self._load(item)
                case BlockAccumulator():
                    name = self._builder.define(item.result, "sum_over_loop")
                    operand = self._builder.value(item.operand)
                    self._add(Accumulate(name, operand, item.kind))
                case BlockStore():
                    self._store(item)
                case Step():
                    self._apply(item)
        self._builder.nodes.append(replace(self._block, nodes=tuple(self._nodes)))

    def _add(self, node: Load | Apply | Accumulate) -> None:
        outer = self._builder.types
        kind = block_node_type(node, self._block, self._types, outer)
        self._types[node.result] = kind
        self._nodes.append(node)

    def _load(self, item: BlockLoad) -> None:
        source = self._builder.value(item.source)
        grid = {self._names.of(axis)[0] for axis in item.grid}
        loop = None if item.loop is None else self._names.of(item.loop)[0]
        axes = tuple(
            tuple(Dim(d.name, d.name in grid, d.name == loop) for d in axis)
            for axis in self._builder.types[source].axes
        )
        self._add(Load(self._builder.define(item.result, f"{source}_"), source, axes))

    def _apply(self, step: Step) -> None:
        node = self._builder.apply_node(step)
        if node is None:
            return
        if node.op.kind is Kind.CONTRACTION:
            # Products are of storage formats: what was computed in f32 is rounded.
            target = promote(*(v.dtype for v in step.operands if isinstance(v, Value)))
            operands = tuple(
                o
                if not isinstance(o, str) or self._types[o].dtype == target
                else self._cast(o, target.name)
                for o in node.operands
            )
            node = replace(node, operands=operands)
        self._add(node)

    def _cast(self, value: str, dtype: str) -> str:
        name = self._builder.fresh_name(f"{value}_{dtype}_")
        self._add(Apply(name, CAST, (value,), (("dtype", dtype),)))
        return name

    def _store(self, item: BlockStore) -> None:
        operand = self._builder.value(item.operand)
        partial = {self._names.of((atom,))[0] for atom, _ in item.partial}
        axes: list[Axis] = []
        for axis in item.axes:
            dims: list[Dim] = []
            for name in self._names.of(axis):
                found = self._types[operand].dim(name)
                dims.append(found or Dim(name, grid=name in partial))
            axes.append(tuple(dims))
        result = self._builder.define(item.result, "block")
        node = Store(result, operand, tuple(axes), item.result.dtype)
        self._builder.types[result] = store_type(node)
        self._nodes.append(node)


def _split(
    builder: Builder, axis: Atoms, count: int, location: SourceLocation | None
) -> Split:
    """An axis cut into so many parts: its leading dim is."""
    name = builder.names.of(axis)[0]
    extent = builder.names.extents()[name]
    if extent is None or extent < count:
        raise CheckError(
            f"{count} parts of an axis whose leading dim {name} has extent {extent}; "
            "take fewer parts, or reshape",
            location,
        )
    return Split(name, parts(extent, count))
