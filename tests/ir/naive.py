"""The meaning of a graph, spelled out: one block after the other, without padding.

An independent second reading, to compare the evaluator with.  Tiles at the end are
just shorter; sums are rescaled step by step.  Only for small graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mirage_dsl.core.types import Dim
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    Load,
    RunningMax,
    Store,
    dims_of,
    stages_of,
)
from mirage_dsl.ops.definition import Kind

Value = tuple[Any, tuple[str, ...]]
"""An array and the dim of each of its axes."""


def interpret(graph: KernelGraph, *arrays: Any) -> list[Any]:
    """The outputs, for inputs and returns with one dim per axis."""
    sizes = {n: e for n, e in graph.extents if e is not None}
    values: dict[str, Value] = {
        i.name: (a, i.type.names) for i, a in zip(graph.inputs, arrays, strict=True)
    }
    for node in graph.nodes:
        if isinstance(node, Apply):
            values[node.result] = applied(node, values, sizes)
        else:
            values.update(_Blocks(node, values, sizes).run())
    return [arranged(values[r.value], r.type.names) for r in graph.returns]


def arranged(value: Value, names: tuple[str, ...]) -> Any:
    """The array with the axes `names`, of extent 1 where the value has no such dim."""
    array, dims = value
    order = [dims.index(n) for n in names if n in dims]
    shape = iter(array.transpose(order).shape)
    full = [next(shape) if n in dims else 1 for n in names]
    return array.transpose(order).reshape(full)


def applied(
    node: Apply, values: Mapping[str, Value], sizes: Mapping[str, int]
) -> Value:
    operands: list[Value] = [
        values[o] if isinstance(o, str) else (np.asarray(o.at(sizes)), ())
        for o in node.operands
    ]
    names = tuple(dict.fromkeys(n for _, dims in operands for n in dims))
    attrs: dict[str, Any] = dict(node.attrs)
    match node.op.kind:
        case Kind.ELEMENTWISE:
            return node.op.numpy(*(arranged(o, names) for o in operands)), names
        case Kind.REDUCTION:
            axes = tuple(names.index(n) for n in node.over)
            kept = tuple(n for n in names if n not in node.over)
            return node.op.numpy(operands[0][0], axes), kept
        case Kind.CONTRACTION:
            product = arranged(operands[0], names) * arranged(operands[1], names)
            axes = tuple(names.index(n) for n in node.over)
            return product.sum(axes), tuple(n for n in names if n not in node.over)
        case Kind.VIEW if "dtype" in attrs:
            return operands[0]
        case _:
            raise AssertionError(node.op)


class _Blocks:
    def __init__(
        self, block: BlockGraph, outer: Mapping[str, Value], sizes: Mapping[str, int]
    ) -> None:
        self.block = block
        self.outer = outer
        self.sizes = sizes
        self.results: dict[str, Value] = {}
        self.at: dict[str, int] = {}

    def run(self) -> dict[str, Value]:
        axes = self.block.axes
        counts = [max(-(-self.sizes[s.dim] // s.tile) for s in axis) for axis in axes]
        for place in itertools.product(*map(range, counts)):
            pairs = zip(axes, place, strict=True)
            self.at = {s.dim: p for axis, p in pairs for s in axis}
            self.one_block()
        return self.results

    def one_block(self) -> None:
        stages = stages_of(self.block)
        self.values: dict[str, Value] = {}
        self.states: dict[str, Value] = {}
        nodes = self.block.nodes
        by_stage = {
            stage: [n for n in nodes if stages.get(n.result) == stage]
            for stage in ("before", "body", "after")
        }
        for node in by_stage["before"]:
            self.step(node, 0)
        accumulators = [n for n in nodes if isinstance(n, Accumulate)]
        looped = [d for n in self.block.loads for d in dims_of(n.axes) if d.loop]
        for i in range(self.iterations(looped[0]) if looped else 0):
            for node in (*by_stage["body"], *accumulators):
                self.step(node, i)
        self.values |= {n.result: self.states[n.result] for n in accumulators}
        for node in by_stage["after"]:
            if not isinstance(node, Accumulate):
                self.step(node, 0)
        for store in self.block.stores:
            self.store(store)

    def span(self, dim: Dim) -> tuple[int, int]:
        """Where the block's part of a dim lies."""
        split = self.block.grid_split(dim.name)
        if not dim.grid or split is None:
            return 0, self.sizes[dim.name]
        size = self.sizes[dim.name]
        start = min(self.at[dim.name] * split.tile, size)
        return start, min(start + split.tile, size)

    def iterations(self, dim: Dim) -> int:
        assert self.block.loop is not None
        start, stop = self.span(dim)
        return -(-(stop - start) // self.block.loop.tile)

    def step(self, node: BlockNode, i: int) -> None:
        match node:
            case Load():
                self.values[node.result] = self.load(node, i)
            case Apply():
                self.values[node.result] = applied(node, self.values, self.sizes)
            case RunningMax():
                self.running_max(node)
            case Accumulate():
                self.accumulate(node)
            case Store():
                pass

    def load(self, node: Load, i: int) -> Value:
        dims = dims_of(node.axes)
        names = tuple(d.name for d in dims)
        index: list[slice] = []
        for dim in dims:
            start, stop = self.span(dim)
            if dim.loop:
                assert self.block.loop is not None
                start += i * self.block.loop.tile
                stop = min(stop, start + self.block.loop.tile)
            index.append(slice(start, stop))
        return arranged(self.outer[node.source], names)[tuple(index)], names

    def running_max(self, node: RunningMax) -> None:
        array, dims = self.values[node.operand]
        old = self.states.get(node.result)
        if old is None:
            self.states[node.result] = (array, dims)
        else:
            # Tiles at the end are shorter: what they lack keeps its maximum.
            new = old[0].copy()
            part = tuple(slice(0, n) for n in array.shape)
            new[part] = np.maximum(new[part], array)
            self.states[f"{node.result} before"] = old
            self.states[node.result] = (new, dims)
        whole = self.states[node.result][0]
        seen = tuple(slice(0, n) for n in array.shape)
        self.values[node.result] = (whole[seen], dims)

    def accumulate(self, node: Accumulate) -> None:
        array, dims = self.values[node.operand]
        if node.result not in self.states:
            self.states[node.result] = (array, dims)
            return
        total = self.states[node.result][0]
        part = tuple(slice(0, n) for n in array.shape)
        if node.kind == "concat":
            assert self.block.loop is not None
            at = dims.index(self.block.loop.dim)
            total = np.concatenate([total, array], at)
        elif node.kind == "max":
            total = total.copy()
            total[part] = np.maximum(total[part], array)
        else:
            total = total * self.weight(node.rescale, dims)
            total[part] += array
        self.states[node.result] = (total, dims)

    def weight(self, rescale: str | None, dims: tuple[str, ...]) -> Any:
        if rescale is None:
            return 1.0
        old, new = self.states[f"{rescale} before"], self.states[rescale]
        return arranged((np.exp(old[0] - new[0]), new[1]), dims)

    def store(self, node: Store) -> None:
        dims = dims_of(node.axes)
        names = tuple(d.name for d in dims)
        if node.result not in self.results:
            shape = [self.sizes[n] for n in names]
            self.results[node.result] = (np.full(shape, np.nan), names)
        index: list[slice] = []
        for dim in dims:
            base = dim.name.removesuffix("#")
            if dim.grid and self.block.grid_split(dim.name) is None:
                index.append(slice(self.at[base], self.at[base] + 1))
            else:
                index.append(slice(*self.span(dim)))
        value = arranged(self.values[node.operand], names)
        self.results[node.result][0][tuple(index)] = value
