"""Hand-written blocks for the graph builder, as Mirage's users write them.

    tb = mirage.new_threadblock_graph(grid_dim=(64, 1, 1), forloop_range=64)
    x = tb.new_input(X, input_map=(-1, -1, -1), forloop_dim=1)
    w = tb.new_input(W, input_map=(1, -1, -1), forloop_dim=0)
    total = tb.forloop_accum(tb.matmul(x, w))
    tb.new_output(tb.div(total, tb.forloop_accum(x, "rms")), output_map=(1, -1, -1))
    (y,) = g.customized([X, W], tb)

Maps say for each of x, y and z which axis it splits, or -1.  Values inside have the
shapes of whole tensors, though a block only sees its part of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirage_dsl.core.errors import (
    CheckError,
    ShapeError,
    SourceLocation,
    TraceError,
    UnsupportedError,
    public_methods,
    user_location,
)
from mirage_dsl.core.hardware import WARP
from mirage_dsl.core.types import Axis, Dim, Scalar, TensorType, promote
from mirage_dsl.frontend import functions
from mirage_dsl.frontend.interop import called
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.program import (
    Axes,
    Builder,
    DimNames,
    DimVar,
    DimVars,
    Handle,
    Traced,
    shape_text,
    vars_of,
)
from mirage_dsl.frontend.recorder import Recorder, integer
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import block_node_type, store_type
from mirage_dsl.ir.maps import parts
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import CAST

# -- What is recorded of a block -------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    """An input of a block: axes that a grid dim or the loop splits."""

    value: Traced
    source: str
    grid: tuple[DimVars, ...]
    loop: DimVars | None


@dataclass(frozen=True)
class _Store:
    """An output of a block, with the axes of the tensor that it writes.

    `partial` maps a dim over blocks to the axis that the grid splits and the operand
    lacks.
    """

    value: Traced
    operand: str
    axes: Axes
    partial: tuple[tuple[DimVar, DimVars], ...]


@dataclass(frozen=True)
class _Block:
    """A whole block: its grid and loop as axes with numbers of parts.

    Attributes:
        grid: For x, y and z the axes that it splits, and into how many parts.
        loop: The axis that the loop splits, and the number of iterations.
        items: What the block does, in order.
        values: What it computes, by the names that its items use.
        num_warps: Warps of a block.
        location: Where it became part of a graph.
    """

    grid: tuple[tuple[tuple[DimVars, ...], int], ...]
    loop: tuple[DimVars, int] | None
    items: tuple[_Item, ...]
    values: Mapping[str, Traced]
    num_warps: int
    location: SourceLocation | None

    @property
    def results(self) -> tuple[str, ...]:
        """What the block writes."""
        return tuple(i.value.name for i in self.items if isinstance(i, _Store))

    @property
    def sources(self) -> tuple[str, ...]:
        """What the block reads."""
        return tuple(i.source for i in self.items if isinstance(i, _Load))

    def visit(self, names: DimNames) -> None:
        """Name its dims."""
        for item in self.items:
            if isinstance(item, _Store):
                for var, axis in item.partial:
                    names.visit(axis)
                    names.assign(var, ir.partial_dim(names.lead(axis)))
            found = isinstance(item, _Load | _Store)
            names.visit((item.value if found else self.values[item.result]).dims)

    def node(self, builder: Builder) -> ir.BlockGraph:
        """The block graph.

        Raises:
            CheckError: Its maps contradict each other.
        """
        return _BlockBuilder(builder, self).build()


_Item = ir.Apply | _Load | ir.Accumulate | ir.RunningMax | _Store


class _BlockBuilder:
    """Gives the nodes of a block their names."""

    def __init__(self, builder: Builder, step: _Block) -> None:
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
        self._block = ir.BlockGraph(
            grid, loop, (), ir.Schedule(num_warps=step.num_warps)
        )
        self._nodes: list[ir.BlockNode] = []
        self._types: dict[str, TensorType] = {}
        self._after: set[str] = set()
        """Values after the loop."""

    def _axis(self, axes: tuple[DimVars, ...], count: int) -> list[ir.Split]:
        """The splits of x, y or z: one for each dim that a tensor's map gives it."""
        found: dict[str, ir.Split] = {}
        for axis in axes:
            split = _split(self._builder, axis, count, self._step.location)
            found.setdefault(split.dim, replace(split, beside=bool(found)))
        return list(found.values())

    def _loop(self, loop: tuple[DimVars, int], grid: tuple[ir.Split, ...]) -> ir.Split:
        split = _split(self._builder, *loop, self._step.location)
        inside = next((s for s in grid if s.dim == split.dim), None)
        return (
            split
            if inside is None
            else replace(split, tile=parts(inside.tile, loop[1]))
        )

    def build(self) -> ir.BlockGraph:
        """The block, once all of its items are nodes.

        Raises:
            CheckError: Its maps contradict each other.
        """
        for item in self._step.items:
            match item:
                case _Load():
                    self._load(item)
                case ir.Accumulate():
                    self._accumulate(item)
                case ir.RunningMax():
                    name = self._builder.define(item.result, "largest")
                    self._add(ir.RunningMax(name, self._builder.value(item.operand)))
                case _Store():
                    self._store(item)
                case ir.Apply():
                    self._apply(item)
        return replace(self._block, nodes=tuple(self._nodes))

    def _accumulate(self, item: ir.Accumulate) -> None:
        name = self._builder.define(item.result, f"{item.kind}_over_loop")
        operand = self._builder.value(item.operand)
        rescale = None if item.rescale is None else self._builder.value(item.rescale)
        self._add(ir.Accumulate(name, operand, item.kind, rescale))
        self._after.add(name)

    def _add(self, node: ir.ValueNode) -> None:
        outer = self._builder.types
        kind = block_node_type(node, self._block, self._types, outer)
        self._types[node.result] = kind
        self._nodes.append(node)

    def _load(self, item: _Load) -> None:
        source = self._builder.value(item.source)
        grid = {self._names.lead(axis) for axis in item.grid}
        loop = None if item.loop is None else self._names.lead(item.loop)
        axes = tuple(
            tuple(Dim(d.name, d.name in grid, d.name == loop) for d in axis)
            for axis in self._builder.types[source].axes
        )
        self._add(
            ir.Load(self._builder.define(item.value.name, f"{source}_"), source, axes)
        )

    def _apply(self, given: ir.Apply) -> None:
        node = self._builder.apply(given)
        if node is None:
            return
        self._require_whole(node)
        if not self._after.isdisjoint(node.values):
            self._after.add(node.result)
        if node.op.kind is Kind.CONTRACTION:
            # Products are of storage formats: what was computed in f32 is rounded.
            target = promote(*(self._step.values[v].dtype for v in given.values))
            operands = tuple(
                o
                if not isinstance(o, str) or self._types[o].dtype == target
                else self._cast(o, target.name)
                for o in node.operands
            )
            node = replace(node, operands=operands)
        self._add(node)

    def _require_whole(self, node: ir.Apply) -> None:
        """Refuse what needs all of an axis where a block or an iteration has a part.

        Sums and maxima over a part are of that part, and are put together later; the
        extent of an axis, as in a mean, and the shift of a softmax are those of the
        whole.
        """
        named = {
            n for o in node.operands if isinstance(o, Scalar) for n, _ in o.extents
        }
        needed = set(node.over) if node.op.shift_of is not None else named
        split = {s.dim: "grid" for s in self._block.grid}
        loop = self._block.loop
        if loop is not None and self._after.isdisjoint(node.values):
            split[loop.dim] = "loop"
        for dim in sorted(needed & split.keys()):
            what = (
                "a softmax over"
                if node.op.shift_of is not None
                else "a mean over, or the extent of,"
            )
            raise UnsupportedError(
                f"{what} an axis that the {split[dim]} splits (dim {dim}): inside, a "
                "block sees a part of it, and would take that for the whole; sum the "
                "parts, and scale the sum",
                node.location,
            )

    def _cast(self, value: str, dtype: str) -> str:
        name = self._builder.fresh_name(f"{value}_{dtype}_")
        self._add(ir.Apply(name, CAST, (value,), (("dtype", dtype),)))
        return name

    def _store(self, item: _Store) -> None:
        operand = self._builder.value(item.operand)
        partial = {self._names.lead((var,)) for var, _ in item.partial}
        axes: list[Axis] = []
        for axis in item.axes:
            dims: list[Dim] = []
            for name in self._names.of(axis):
                found = self._types[operand].dim(name)
                dims.append(found or Dim(name, grid=name in partial))
            axes.append(tuple(dims))
        result = self._builder.define(item.value.name, "block")
        node = ir.Store(result, operand, tuple(axes), item.value.dtype)
        self._builder.types[result] = store_type(node)
        self._nodes.append(node)


def _split(
    builder: Builder, axis: DimVars, count: int, location: SourceLocation | None
) -> ir.Split:
    """An axis cut into so many parts: its leading dim is."""
    name = builder.names.lead(axis)
    extent = builder.names.extents()[name]
    if extent is None or extent < count:
        raise CheckError(
            f"{count} parts of an axis whose leading dim {name} has extent {extent}; "
            "take fewer parts, or reshape",
            location,
        )
    return ir.Split(name, parts(extent, count))


# -- Blocks under construction ---------------------------------------------------------

_DIRECTIONS = 3

BROADCAST = ("add", "div", "maximum", "mul", "pow", "sub")
"""Operators of two tensors whose axes of extent 1 are those of the other one."""


def _operator(name: str) -> Callable[..., Any]:
    function = function_named(name)

    def method(self: ThreadblockGraph, *operands: Any, **kwargs: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, Tensor)]
        if name in BROADCAST and len(tensors) == len(operands) == 2:
            return self.broadcast(function, *tensors, **kwargs)
        return called(f"block.{name}", function, *operands, **kwargs)

    method.__name__ = name
    method.__doc__ = function.__doc__
    return method


def _counts(what: str, given: Sequence[int]) -> list[int]:
    """Numbers of blocks, threads or iterations.

    Raises:
        ShapeError: They are not one to three numbers above 0.
        TraceError: One is no integer.
    """
    counts = [integer(count, what) for count in given]
    if not 1 <= len(counts) <= _DIRECTIONS or min(counts) < 1:
        raise ShapeError.here(
            f"{what}={tuple(given)}: expected one to three numbers of 1 or more, for "
            "x, y and z"
        )
    return counts


def _require_map(what: str, given: Sequence[int]) -> None:
    if len(given) > _DIRECTIONS or any(axis < -1 for axis in given):
        raise ShapeError.here(
            f"{what}={tuple(given)}: expected for each of x, y and z an axis, or -1"
        )


def power_of_two(warps: int) -> int:
    """The largest number of warps that Triton's kernels may have: 8 of 12."""
    return 1 << (max(1, warps).bit_length() - 1)


@dataclass(frozen=True)
class Difference:
    """By how much a running maximum grows in an iteration: its old value less its new.

    Attributes:
        largest: The running maximum.
    """

    largest: str


@dataclass(frozen=True)
class Rescaling:
    """What makes a sum relative to an old maximum one relative to the new.

    Attributes:
        largest: The running maximum.
    """

    largest: str


@public_methods("block")
class ThreadblockGraph:
    """One block under construction."""

    def __init__(
        self,
        grid_dim: Sequence[int],
        block_dim: Sequence[int],
        forloop_range: int,
        reduction_dimx: int = 1,
    ) -> None:
        self._grid = [*_counts("grid_dim", grid_dim), 1, 1][:3]
        threads = math.prod(_counts("block_dim", block_dim))
        self._warps = power_of_two(threads // WARP)
        (self._rounds,) = _counts("forloop_range", (forloop_range,))
        (self._dimx,) = _counts("reduction_dimx", (reduction_dimx,))
        self._recorder: Recorder | None = None
        self._sources: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._splits: dict[int, list[DimVars]] = {}
        self._parts: dict[int, DimVar] = {}
        """For x, y and z the dim over blocks along which partial results lie."""
        self._looped: DimVars | None = None
        self._items: list[_Item] = []
        self._values: dict[str, Traced] = {}

    def new_input(
        self, dtensor: Tensor, input_map: Sequence[int], forloop_dim: int = -1
    ) -> Tensor:
        """The part of a tensor that a block sees.

        Args:
            dtensor: A tensor of the kernel graph.
            input_map: For x, y and z the axis that it splits, or -1.
            forloop_dim: The axis that the loop splits, or -1.

        Raises:
            ShapeError: A map names an axis that there is not.
            UnsupportedError: The block has an output already.
        """
        _require_map("input_map", input_map)
        if self._outputs:
            raise UnsupportedError.here(
                "new_input after new_output: what splits an output must be known when "
                "it is made; call new_input for all inputs first"
            )
        if self._recorder is None:
            self._recorder = Recorder(dims=dtensor.recorder.dims)
        axes = dtensor.handle.axes
        split = self._split_axes(dtensor.handle, input_map)
        for index, axis in split.items():
            known = self._splits.setdefault(index, [])
            if axis not in known:
                known.append(axis)
        looped = forloop_dim >= 0 and self._rounds > 1
        loop = self._axis(dtensor.handle, forloop_dim) if looped else None
        self._looped = self._looped or loop
        source = dtensor.handle.value
        value = dtensor.recorder.dims.value(source.dims, source.dtype)
        self._take_nodes()
        self._values[value.name] = value
        self._items.append(_Load(value, source.name, tuple(split.values()), loop))
        self._sources.append(dtensor)
        return Tensor(self._recorder, Handle(value, axes))

    def _split_axes(self, x: Handle, mapped: Sequence[int]) -> dict[int, DimVars]:
        """The axis that each of x, y and z splits."""
        return {
            i: self._axis(x, axis)
            for i, (axis, blocks) in enumerate(zip(mapped, self._grid, strict=False))
            if axis >= 0 and blocks > 1
        }

    def _axis(self, x: Handle, axis: int) -> DimVars:
        if axis >= len(x.axes) or not x.axes[axis]:
            raise ShapeError.here(
                f"a map names axis {axis} of {shape_text(x)}, which has no such axis "
                "of extent 2 or more"
            )
        return x.axes[axis]

    def _take_nodes(self) -> None:
        """Put what has been recorded since the last item in its place."""
        assert self._recorder is not None
        self._items.extend(n for n in self._recorder.nodes if isinstance(n, ir.Apply))
        self._values.update(self._recorder.made)
        self._recorder.nodes.clear()

    def forloop_accum(self, stensor: Tensor, acc: str | None = None) -> Tensor:
        """A value over all iterations.

        Args:
            stensor: The value of an iteration.
            acc: None for the sum; `sum`, `mean` or `rms` for the sum, the mean or the
                root mean square over the last axis too, which stays with extent 1;
                `sum_todimx` for a sum that leaves `reduction_dimx` of the last axis:
                parts of so many elements are added up; `max`, `min` or `prod` for that
                of the iterations, element by element.

        Raises:
            ShapeError: The last axis has no whole number of such parts.
            UnsupportedError: There is no such kind; or a mean over an axis that the
                loop does not split, or of which a block sees a part.
        """
        if acc is None:
            return self._over_all(stensor)
        if acc == "sum":
            return functions.sum(self._accumulate(stensor, "sum"), -1, keepdims=True)
        if acc in ("mean", "rms"):
            self._require_looped(stensor.handle, acc)
        if acc == "mean":
            return functions.mean(self._accumulate(stensor, "sum"), -1, keepdims=True)
        if acc == "rms":
            total = self._accumulate(functions.square(stensor), "sum")
            return functions.sqrt(functions.mean(total, -1, keepdims=True))
        if acc == "sum_todimx":
            return self.reduction_to_dimx(self._accumulate(stensor, "sum"), -1)
        kinds = [kind for kind in ir.accumulator_kinds() if kind != ir.JOINED]
        if acc in kinds:
            return self._over_all(stensor, acc)
        raise UnsupportedError.here(
            f"forloop_accum of kind {acc!r}; expected None, mean, rms, sum_todimx, "
            f"{', '.join(kinds)}"
        )

    def _require_looped(self, x: Handle, kind: str) -> None:
        """Refuse a mean over the iterations that is none over the last axis."""
        if self._rounds == 1:
            return
        last = x.axes[-1] if x.axes else ()
        looped = self._looped
        dims = None if self._recorder is None else self._recorder.dims
        if dims and looped and dims.resolve(looped)[0] in dims.resolve(last):
            return
        raise UnsupportedError.here(
            f"forloop_accum of kind {kind!r} of {shape_text(x)}: the loop does not "
            "split its last axis, so that a sum over iterations is no mean over that; "
            "accumulate without a kind, then reduce and scale"
        )

    def reduction_to_dimx(self, stensor: Tensor, dim: int) -> Tensor:
        """The sum of the parts of an axis that have `reduction_dimx` elements.

        Raises:
            ShapeError: There is no such axis, or no whole number of such parts.
        """
        shape = tuple(map(int, stensor.shape))
        known = -len(shape) <= dim < len(shape)
        dim = dim % len(shape) if known else dim
        extent = shape[dim] if known else 0
        if extent < self._dimx or extent % self._dimx:
            raise ShapeError.here(
                f"the parts of {shape_text(stensor.handle)} are added up: expected an "
                f"axis of a multiple of reduction_dimx={self._dimx} at {dim}"
            )
        split = (*shape[:dim], extent // self._dimx, self._dimx, *shape[dim + 1 :])
        return functions.sum(functions.reshape(stensor, split), dim)

    def broadcast(
        self, function: Callable[..., Any], x: Tensor, y: Tensor, **options: Any
    ) -> Tensor:
        """A function of two tensors, element by element.

        An axis of which each iteration sees one element has extent 1 in a block, and so
        goes with any other, as in Mirage.
        """
        name = f"block.{function.__name__}"
        at = self._one_each(x), self._one_each(y)
        if x.ndim != y.ndim or at == (None, None):
            return called(name, function, x, y, **options)
        axis = next(a for a in at if a is not None)
        found = {int(x.shape[axis]), int(y.shape[axis])}
        if len(found) == 1 or 1 in found or not {*at} <= {axis, None}:
            return called(name, function, x, y, **options)
        left, right = self._apart(x, axis), self._apart(y, axis)
        made = called(name, function, left, right, **options)
        shape = tuple(map(int, made.shape))
        merged = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        return functions.reshape(made, merged)

    def _one_each(self, x: Tensor) -> int | None:
        """The axis that the loop cuts into single elements of its leading dim."""
        if self._looped is None or self._recorder is None or self._rounds == 1:
            return None
        dims = self._recorder.dims
        lead = dims.resolve(self._looped)[0]
        if lead.extent != self._rounds:
            return None
        axes = (dims.resolve(axis) for axis in x.handle.axes)
        return next((at for at, axis in enumerate(axes) if axis[:1] == (lead,)), None)

    def _apart(self, x: Tensor, axis: int) -> Tensor:
        """A tensor with the looped dim of an axis as an axis of its own before it."""
        shape = tuple(map(int, x.shape))
        parts = self._rounds if self._one_each(x) == axis else 1
        split = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
        return functions.reshape(x, split)

    def forloop_accum_max(self, stensor: Tensor) -> Tensor:
        """The largest over all iterations, element by element."""
        return self._over_all(stensor, "max")

    def reduction_max(self, stensor: Tensor, dim: int) -> tuple[Tensor, Difference]:
        """The largest along an axis in this iteration and all before it.

        It keeps exponentials in range: what is computed relative to it is summed by
        `forloop_accum_rescale`.

        Args:
            stensor: The value of an iteration.
            dim: The axis, which stays with extent 1.

        Returns:
            The largest so far, and by how much it has grown in this iteration, of which
            only `exp` means something.
        """
        largest = functions.max(stensor, dim, keepdims=True)
        if self._rounds > 1:
            self._take_nodes()
            value = self._value_like(largest)
            self._items.append(ir.RunningMax(value.name, largest.handle.value.name))
            largest = Tensor(stensor.recorder, Handle(value, largest.handle.axes))
        return largest, Difference(largest.handle.value.name)

    def forloop_accum_rescale(
        self, stensor: Tensor, rescale: Rescaling, acc: str | None = None
    ) -> Tensor:
        """The sum over all iterations of what is relative to the largest so far.

        Args:
            stensor: The value of an iteration, such as `exp(x - largest)`.
            rescale: `exp` of the second result of `reduction_max`.
            acc: None, or `sum` for the sum over the last axis too, which stays with
                extent 1.

        Raises:
            UnsupportedError: The factor is another one, or there is no such kind.
        """
        given: Any = rescale
        if not isinstance(given, Rescaling):
            raise UnsupportedError.here(
                "forloop_accum_rescale by something else than exp of the second result "
                f"of reduction_max, found {type(given).__name__}"
            )
        if acc not in (None, "sum"):
            raise UnsupportedError.here(
                f"forloop_accum_rescale of kind {acc!r}; expected None or sum"
            )
        if acc is None:
            return self._over_all(stensor, rescale=given.largest)
        total = self._accumulate(stensor, "sum", given.largest)
        return functions.sum(total, -1, keepdims=True)

    def _accumulate(
        self, stensor: Tensor, kind: str, rescale: str | None = None
    ) -> Tensor:
        if self._rounds == 1:
            return stensor
        self._take_nodes()
        value, operand = self._value_like(stensor), stensor.handle.value.name
        self._items.append(ir.Accumulate(value.name, operand, kind, rescale))
        return Tensor(stensor.recorder, Handle(value, stensor.handle.axes))

    def _over_all(
        self, stensor: Tensor, kind: str = "sum", rescale: str | None = None
    ) -> Tensor:
        """The reduction over all iterations, element by element.

        An axis of which each iteration sees one element has one element in the end.
        """
        total = self._accumulate(stensor, kind, rescale)
        axis = self._one_each(stensor)
        if axis is None:
            return total
        return function_named(kind)(self._apart(total, axis), axis)

    def _value_like(self, x: Tensor) -> Traced:
        """A new value of the block with the dims and the dtype of another one."""
        value = x.recorder.dims.value(x.handle.value.dims, x.handle.value.dtype)
        self._values[value.name] = value
        return value

    def new_output(
        self, stensor: Tensor, output_map: Sequence[int], forloop_dim: int = -1
    ) -> None:
        """Store a value.

        Args:
            stensor: The value.
            output_map: For x, y and z the axis of the output along which the blocks'
                results lie: that of the dim that it splits.  Where the value has not
                that dim, partial results lie side by side.
            forloop_dim: The axis along which the values of all iterations lie side by
                side, one that the loop splits; -1 for a value after the loop.

        Raises:
            ShapeError: A map does not fit the value.
        """
        if forloop_dim >= 0 and self._rounds > 1:
            stensor = self._joined(stensor, forloop_dim)
        _require_map("output_map", output_map)
        self._take_nodes()
        handle, dims = stensor.handle, stensor.recorder.dims
        axes = list(handle.axes)
        partial: list[tuple[DimVar, DimVars]] = []
        for index, blocks in enumerate(self._grid):
            named = output_map[index] if index < len(output_map) else -1
            splits = self._splits.get(index, [])
            place = self._output_axis(handle, index, named) if blocks > 1 else None
            if place is None and splits:
                var = self._parts.setdefault(index, dims.fresh(blocks))
                axes[named] = (var, *axes[named])
                partial.append((var, splits[0]))
        vars = vars_of(axes)
        result = dims.value(vars, handle.value.dtype)
        self._items.append(
            _Store(result, handle.value.name, tuple(axes), tuple(partial))
        )
        self._outputs.append(Tensor(stensor.recorder, Handle(result, tuple(axes))))

    def _joined(self, stensor: Tensor, axis: int) -> Tensor:
        """The values of all iterations, side by side along an axis."""
        assert self._recorder is not None
        dims, handle = self._recorder.dims, stensor.handle
        named = handle.axes[axis] if axis < len(handle.axes) else ()
        looped = self._looped
        if looped is None or dims.resolve(looped)[0] not in dims.resolve(named):
            raise ShapeError.here(
                f"new_output with forloop_dim={axis} of {shape_text(handle)}: the loop "
                "does not split that axis; accumulate over the iterations, or name the "
                "axis that the inputs' forloop_dim named"
            )
        return self._accumulate(stensor, ir.JOINED)

    def _output_axis(self, x: Handle, index: int, named: int) -> int | None:
        """The axis of a value that x, y or z splits; None where it has not that dim.

        Raises:
            ShapeError: The map of the output names another one, or none.
        """
        assert self._recorder is not None
        dims, splits = self._recorder.dims, self._splits.get(index, [])
        leads = {dims.resolve(split)[0] for split in splits}
        held = [
            i for i, a in enumerate(x.axes) if not leads.isdisjoint(dims.resolve(a))
        ]
        if held == [named] or not (held or splits or named >= 0):
            return named
        if splits and not held and 0 <= named < len(x.axes):
            return None
        place = f": {held[0]}, on which its dim lies" if held else ""
        reason = (
            f"which splits the work, so it must name an axis of the output{place}"
            if splits
            else "which splits no input, so it must be -1"
        )
        raise ShapeError.here(
            f"output_map names axis {named} of {shape_text(x)} for {'xyz'[index]}, "
            f"{reason}"
        )

    def record(self, recorder: Recorder, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Make the block a step of a kernel graph, and return its outputs.

        Raises:
            TraceError: The inputs are not the block's, or it has no output.
        """
        given = [t.handle.value for t in inputs]
        if given != [t.handle.value for t in self._sources] or not self._outputs:
            raise TraceError.here(
                f"customized with {len(inputs)} inputs for a block with "
                f"{len(self._sources)} inputs and {len(self._outputs)} outputs; pass "
                "the tensors given to new_input, in that order, after new_output"
            )
        grid = tuple(
            (tuple(axes), self._grid[i]) for i, axes in sorted(self._splits.items())
        )
        loop = None if self._looped is None else (self._looped, self._rounds)
        items, values = tuple(self._items), dict(self._values)
        recorder.nodes.append(
            _Block(grid, loop, items, values, self._warps, user_location())
        )
        return [Tensor(recorder, t.handle) for t in self._outputs]

    def reduction(self, stensor: Tensor, dim: int) -> Tensor:
        """Sum over an axis, which stays with extent 1."""
        return functions.sum(stensor, dim, keepdims=True)

    def mul_scalar(self, stensor: Tensor, scalar: float) -> Tensor:
        """A value times a number."""
        return called("block.mul_scalar", functions.mul, stensor, scalar)

    def exp(self, stensor: Tensor | Difference, **options: Any) -> Any:
        """The exponential of a value, or of what a running maximum has grown by."""
        if isinstance(stensor, Difference):
            return Rescaling(stensor.largest)
        return called("block.exp", functions.exp, stensor, **options)

    add = _operator("add")
    clamp = _operator("clamp")
    concat = _operator("concat")
    div = _operator("div")
    gelu = _operator("gelu")
    matmul = _operator("matmul")
    maximum = _operator("maximum")
    mul = _operator("mul")
    pow = _operator("pow")
    relu = _operator("relu")
    rms_norm = _operator("rms_norm")
    rsqrt = _operator("rsqrt")
    sigmoid = _operator("sigmoid")
    silu = _operator("silu")
    sqrt = _operator("sqrt")
    square = _operator("square")
    sub = _operator("sub")
    tanh = _operator("tanh")
