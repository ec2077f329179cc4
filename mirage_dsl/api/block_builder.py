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
from collections.abc import Callable, Sequence
from typing import Any

from mirage_dsl.core.errors import ShapeError, TraceError, UnsupportedError
from mirage_dsl.core.hardware import WARP
from mirage_dsl.frontend import functions
from mirage_dsl.frontend.dims import Atom, Atoms
from mirage_dsl.frontend.interop import called
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.steps import (
    BlockAccumulator,
    BlockItem,
    BlockLoad,
    BlockStep,
    BlockStore,
    Handle,
    Step,
    Value,
    shape_text,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir.graph import JOINED, accumulator_kinds

_DIRECTIONS = 3


def _operator(name: str) -> Callable[..., Any]:
    function = function_named(name)

    def method(self: ThreadblockGraph, *operands: Any, **kwargs: Any) -> Any:
        del self
        return called(f"block.{name}", function, *operands, **kwargs)

    method.__name__ = name
    method.__doc__ = function.__doc__
    return method


def _counts(what: str, given: Sequence[int]) -> list[int]:
    """Numbers of blocks, threads or iterations.

    Raises:
        ShapeError: They are not one to three numbers above 0.
    """
    counts = [int(count) for count in given]
    if not 1 <= len(counts) <= _DIRECTIONS or min(counts) < 1:
        raise ShapeError(
            f"{what}={tuple(given)}: expected one to three numbers of 1 or more, for "
            "x, y and z",
            user_location(),
        )
    return counts


def _require_map(what: str, given: Sequence[int]) -> None:
    if len(given) > _DIRECTIONS or any(axis < -1 for axis in given):
        raise ShapeError(
            f"{what}={tuple(given)}: expected for each of x, y and z an axis, or -1",
            user_location(),
        )


class ThreadblockGraph:
    """One block under construction."""

    def __init__(
        self, grid_dim: Sequence[int], block_dim: Sequence[int], forloop_range: int
    ) -> None:
        self._grid = [*_counts("grid_dim", grid_dim), 1, 1][:3]
        self._warps = max(1, math.prod(_counts("block_dim", block_dim)) // WARP)
        (self._rounds,) = _counts("forloop_range", (forloop_range,))
        self._recorder: Recorder | None = None
        self._sources: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._splits: dict[int, list[Atoms]] = {}
        self._looped: Atoms | None = None
        self._items: list[BlockItem] = []

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
            raise UnsupportedError(
                "new_input after new_output: what splits an output must be known when "
                "it is made; call new_input for all inputs first",
                user_location(),
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
        value = Value(dtensor.handle.value.dims, dtensor.dtype)
        source = dtensor.handle.value
        self._take_steps()
        self._items.append(BlockLoad(value, source, tuple(split.values()), loop))
        self._sources.append(dtensor)
        return Tensor(self._recorder, Handle(value, axes))

    def _split_axes(self, x: Handle, mapped: Sequence[int]) -> dict[int, Atoms]:
        """The axis that each of x, y and z splits."""
        return {
            i: self._axis(x, axis)
            for i, (axis, blocks) in enumerate(zip(mapped, self._grid, strict=False))
            if axis >= 0 and blocks > 1
        }

    def _axis(self, x: Handle, axis: int) -> Atoms:
        if axis >= len(x.axes) or not x.axes[axis]:
            raise ShapeError(
                f"a map names axis {axis} of {shape_text(x)}, which has no such axis "
                "of extent 2 or more",
                user_location(),
            )
        return x.axes[axis]

    def _take_steps(self) -> None:
        """Put what has been recorded since the last item in its place."""
        assert self._recorder is not None
        self._items.extend(s for s in self._recorder.steps if isinstance(s, Step))
        self._recorder.steps.clear()

    def forloop_accum(self, stensor: Tensor, acc: str | None = None) -> Tensor:
        """A value over all iterations.

        Args:
            stensor: The value of an iteration.
            acc: None for the sum; `sum`, `mean` or `rms` for the sum, the mean or the
                root mean square over the last axis too, which stays with extent 1;
                `max`, `min` or `prod` for that of the iterations, element by element.

        Raises:
            UnsupportedError: There is no such kind; or a mean over an axis that the
                loop does not split, or of which a block sees a part.
        """
        if acc is None:
            return self._accumulate(stensor, "sum")
        if acc == "sum":
            return functions.sum(self._accumulate(stensor, "sum"), -1, keepdims=True)
        if acc in ("mean", "rms"):
            self._require_looped(stensor.handle, acc)
        if acc == "mean":
            return functions.mean(self._accumulate(stensor, "sum"), -1, keepdims=True)
        if acc == "rms":
            total = self._accumulate(functions.square(stensor), "sum")
            return functions.sqrt(functions.mean(total, -1, keepdims=True))
        kinds = [kind for kind in accumulator_kinds() if kind != JOINED]
        if acc in kinds:
            return self._accumulate(stensor, acc)
        raise UnsupportedError(
            f"forloop_accum of kind {acc!r}; expected None, mean, rms, "
            f"{', '.join(kinds)}",
            user_location(),
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
        raise UnsupportedError(
            f"forloop_accum of kind {kind!r} of {shape_text(x)}: the loop does not "
            "split its last axis, so that a sum over iterations is no mean over that; "
            "accumulate without a kind, then reduce and scale",
            user_location(),
        )

    def _accumulate(self, stensor: Tensor, kind: Any) -> Tensor:
        if self._rounds == 1:
            return stensor
        self._take_steps()
        handle = stensor.handle
        value = Value(handle.value.dims, handle.value.dtype)
        self._items.append(BlockAccumulator(value, handle.value, kind))
        return Tensor(stensor.recorder, Handle(value, handle.axes))

    def new_output(
        self, stensor: Tensor, output_map: Sequence[int], forloop_dim: int = -1
    ) -> None:
        """Store a value.

        Args:
            stensor: The value.
            output_map: For x, y and z the axis of the output along which the blocks'
                results lie: that of the dim that it splits.  Where the value has not
                that dim, partial results lie side by side.
            forloop_dim: -1; what is stored is a value after the loop.

        Raises:
            ShapeError: The map does not fit the value.
            UnsupportedError: A value of each iteration is to be stored.
        """
        if forloop_dim >= 0:
            raise UnsupportedError(
                "new_output with forloop_dim: accumulate first", user_location()
            )
        _require_map("output_map", output_map)
        self._take_steps()
        handle, dims = stensor.handle, stensor.recorder.dims
        axes = list(handle.axes)
        partial: list[tuple[Atom, Atoms]] = []
        for index, blocks in enumerate(self._grid):
            named = output_map[index] if index < len(output_map) else -1
            splits = self._splits.get(index, [])
            place = self._output_axis(handle, index, named) if blocks > 1 else None
            if place is None and splits:
                atom = dims.fresh(blocks)
                axes[named] = (atom, *axes[named])
                partial.append((atom, splits[0]))
        atoms = tuple(a for axis in axes for a in axis)
        result = Value(atoms, handle.value.dtype)
        self._items.append(
            BlockStore(result, handle.value, tuple(axes), tuple(partial))
        )
        self._outputs.append(Tensor(stensor.recorder, Handle(result, tuple(axes))))

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
        raise ShapeError(
            f"output_map names axis {named} of {shape_text(x)} for {'xyz'[index]}, "
            f"{reason}",
            user_location(),
        )

    def record(self, recorder: Recorder, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Make the block a step of a kernel graph, and return its outputs.

        Raises:
            TraceError: The inputs are not the block's, or it has no output.
        """
        given = [t.handle.value for t in inputs]
        if given != [t.handle.value for t in self._sources] or not self._outputs:
            raise TraceError(
                f"customized with {len(inputs)} inputs for a block with "
                f"{len(self._sources)} inputs and {len(self._outputs)} outputs; pass "
                "the tensors given to new_input, in that order, after new_output",
                user_location(),
            )
        grid = tuple(
            (tuple(axes), self._grid[i]) for i, axes in sorted(self._splits.items())
        )
        loop = None if self._looped is None else (self._looped, self._rounds)
        items = tuple(self._items)
        recorder.steps.append(
            BlockStep(grid, loop, items, self._warps, user_location())
        )
        return [Tensor(recorder, t.handle) for t in self._outputs]

    def reduction(self, stensor: Tensor, dim: int) -> Tensor:
        """Sum over an axis, which stays with extent 1."""
        return functions.sum(stensor, dim, keepdims=True)

    add = _operator("add")
    clamp = _operator("clamp")
    concat = _operator("concat")
    div = _operator("div")
    exp = _operator("exp")
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
