"""The nodes of the μGraph: kernel graphs, and the block graphs inside them.

Values are named; a node names its operands and its results, so a graph prints and
parses without loss.  A kernel graph's nodes are pre-defined kernels (`Apply`: a
library call) and graph-defined ones (`BlockGraph`).  Thread graphs are not stored:
they are the operators between two shared-memory values, formed by rule when a block
graph is lowered.

A node's `location` is the user's line, where one is known; it tells no two nodes apart.

Structural nodes are a closed set of frozen dataclasses, to be handled by `match` with
`assert_never`; operators are data (`ops.table`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.core.types import (
    Axis,
    AxisNames,
    Dim,
    DType,
    Integers,
    MemorySpace,
    Scalar,
    TensorType,
    i64,
)
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import OPERATORS

AttrValue = int | float | str | tuple[str, ...] | AxisNames | Integers
Attrs = tuple[tuple[str, AttrValue], ...]
"""Attributes sorted by name."""

Operand = str | Scalar
"""The name of a value, or a constant."""


def integer_of(operand: Operand, extents: Mapping[str, int | None]) -> int | None:
    """The integer that a constant is; None if it is none, or follows other extents."""
    number = None if isinstance(operand, str) else operand.exact_at(extents)
    if not isinstance(number, Fraction) or number.denominator != 1:
        return None
    return int(number)


def gridded(axes: Iterable[Axis], names: Container[str]) -> tuple[Axis, ...]:
    """Axes of which the grid splits the dims of these names, and no others."""
    return tuple(
        tuple(
            d if d.grid == (d.name in names) else Dim(d.name, not d.grid, d.loop)
            for d in axis
        )
        for axis in axes
    )


def named_in(value: AttrValue) -> tuple[str, ...]:
    """The names in an attribute, of dims or else."""
    match value:
        case AxisNames():
            return value.names
        case tuple():
            return value
        case str():
            return (value,)
        case _:
            return ()


def in_a_row(dims: tuple[str, ...], names: Sequence[str]) -> bool:
    """Whether dims that are among some names follow each other there."""
    at = names.index(dims[0]) if dims else 0
    return tuple(names[at : at + len(dims)]) == dims


JOINED = "concat"
"""The kind of an accumulator that joins values along the loop dim."""


@dataclass(frozen=True)
class Input:
    """A tensor that the caller passes.

    Attributes:
        name: Its name.
        type: Its dtype and axes.
        constant: What is ahead of a call in its stream does not write it, as weights:
            kernels may read it before they wait.  It is the caller's promise.
        location: Where the user's program names it.
    """

    name: str
    type: TensorType
    constant: bool = False
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    @property
    def stated(self) -> str:
        """What the textual form says of it behind its name."""
        return f"constant {self.type}" if self.constant else str(self.type)


@dataclass(frozen=True)
class Index:
    """An index value: a tensor that equals the position along its one axis.

    It is known everywhere and lies in no memory: a block that loads a tile of it
    counts.  An axis of several dims counts them row-major, as a tensor's axis does.
    """

    name: str
    axis: Axis
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    @property
    def type(self) -> TensorType:
        """Integers along the axis."""
        return TensorType(i64, (self.axis,), MemorySpace.NOWHERE)


@dataclass(frozen=True)
class Factored:
    """One dim that is several dims, row-major.

    Attributes:
        whole: The one.
        factors: The several.
        flattens: Whether a view makes the one of the several; else it takes it apart.
    """

    whole: str
    factors: tuple[str, ...]
    flattens: bool

    def copies(self, names: tuple[str, ...]) -> bool:
        """Whether it moves elements of an operand whose dims are in this order."""
        return self.flattens and not in_a_row(self.factors, names)


@dataclass(frozen=True)
class PartOfDim:
    """Part of a dim: its elements from `start` to before `stop`.

    A start below 0 and a stop of 0 or below count from the end of the dim, wherever
    that is: those from 1 to 0 are all but the first one.

    Attributes:
        dim: The dim.
        to: The dim of these elements.
        start: The first one.
        stop: Behind the last one.
    """

    dim: str
    to: str
    start: int
    stop: int

    @property
    def from_end(self) -> bool:
        """Whether the extent of the dim tells where the elements lie."""
        return self.start < 0 or self.stop <= 0

    def bounds(self, extent: int) -> tuple[int, int]:
        """The first element and the one behind the last, counted from the front."""
        return slice_bounds(self.start, self.stop, extent)

    def length(self, extent: int | None) -> int | None:
        """How many elements they are; None where nothing tells."""
        return slice_length(self.start, self.stop, extent)


def slice_bounds(start: int, stop: int, extent: int) -> tuple[int, int]:
    """The bounds of a slice, counted from the front."""
    return start + extent * (start < 0), stop + extent * (stop <= 0)


def slice_length(start: int, stop: int, extent: int | None) -> int | None:
    """How many elements a slice has; None where the extent would tell."""
    if extent is None and (start < 0) is not (stop <= 0):
        return None
    first, last = slice_bounds(start, stop, extent or 0)
    return last - first


@dataclass(frozen=True)
class Apply:
    """A pre-defined operator.

    In a kernel graph it is a kernel of its own (a library call), but for views
    (`Kind.VIEW`), which cost nothing.  Attribute `over` of reductions and contractions
    names dims; `dtype` of `cast` is a dtype's short name.
    """

    result: str
    op: Operator
    operands: tuple[Operand, ...]
    attrs: Attrs = ()
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    def attr(self, name: str) -> AttrValue:
        """The attribute called `name`.

        Raises:
            KeyError: The node has none of that name.
        """
        return dict(self.attrs)[name]

    @property
    def over(self) -> tuple[str, ...]:
        """Names of the dims that the operator sums over; `()` if it sums none."""
        value = dict(self.attrs).get("over", ())
        assert isinstance(value, tuple)
        return value

    def summing(self, over: tuple[str, ...]) -> Apply:
        """The same over other dims; itself, if it sums none."""
        attrs = tuple((k, over if k == "over" else v) for k, v in self.attrs)
        return replace(self, attrs=attrs)

    @property
    def along(self) -> tuple[str, ...]:
        """The dims of the axis that the operator scans; `()` if it scans none."""
        value = dict(self.attrs).get("along")
        return value.names if isinstance(value, AxisNames) else ()

    @property
    def across(self) -> tuple[str, ...]:
        """Dims along which elements of the result depend on several of the operands.

        It sums over them, or scans them.
        """
        return self.over + self.along

    @property
    def is_view(self) -> bool:
        """Whether it only looks at its operand in another way, in the same format."""
        return self.op.kind is Kind.VIEW and "dtype" not in self.op.attributes

    @cached_property
    def factored(self) -> Factored | None:
        """What a view does that makes one dim of several, or several of one."""
        if self.op.kind is not Kind.VIEW:
            return None
        attrs = dict(self.attrs)
        for name, flattens in (("of", True), ("gives", False)):
            axes = attrs.get(name)
            if isinstance(axes, AxisNames):
                return Factored(
                    str(attrs["to" if flattens else "dim"]), axes.names, flattens
                )
        return None

    @cached_property
    def sliced(self) -> PartOfDim | None:
        """What a view does that shows part of a dim."""
        attrs = dict(self.attrs)
        start, stop = attrs.get("start"), attrs.get("stop")
        if not (isinstance(start, int) and isinstance(stop, int)):
            return None
        return PartOfDim(str(attrs["dim"]), str(attrs["to"]), start, stop)

    @property
    def stands_alone(self) -> bool:
        """Whether no block computes it of what the block has computed.

        So a generated kernel ends before it, and another one starts behind it; or that
        one does it, where it is a gather (`rewrite.sinking`).
        """
        alone = (Kind.CONCAT, Kind.GATHER, Kind.LIBRARY)
        return self.is_view or self.op.kind in alone or len(self.along) > 1

    @property
    def is_one_number(self) -> bool:
        """Whether all elements are the same constant."""
        chosen = self.operands[1:] if self.op.chooses else ()
        first = next(iter(chosen), None)
        return isinstance(first, Scalar) and all(o == first for o in chosen)

    def dim(self, name: str) -> str:
        """The attribute called `name`, which names a dim."""
        return str(self.attr(name))

    def dims(self, name: str) -> tuple[str, ...]:
        """The attribute called `name`, which names dims."""
        value = self.attr(name)
        assert isinstance(value, tuple)
        return value

    def axes(self, name: str) -> tuple[tuple[str, ...], ...]:
        """The attribute called `name`, which tells axes."""
        value = self.attr(name)
        assert isinstance(value, AxisNames)
        return value.axes

    @property
    def numbers(self) -> Mapping[str, tuple[int, ...]]:
        """The attributes that are several integers, by name."""
        return {n: v.numbers for n, v in self.attrs if isinstance(v, Integers)}

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The operands that are values, in order, without constants."""
        return tuple(o for o in self.operands if isinstance(o, str))


@dataclass(frozen=True)
class Split:
    """A dim cut into tiles of `tile` elements; the last one may be ragged.

    With `beside`, the split before it in the grid numbers the same blocks: block i has
    tile i of both dims, or nothing of one that has fewer tiles.
    """

    dim: str
    tile: int
    beside: bool = False


@dataclass(frozen=True)
class Load:
    """An input of a block (the paper's input iterator).

    `axes` follow the source's axes; each dim says whether the block sees the part of
    its grid coordinate, of the iteration, of both, or all of it: imap and fmap.
    """

    result: str
    source: str
    axes: tuple[Axis, ...]
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Accumulate:
    """A value over all iterations: reduced, or joined along the loop dim.

    `kind` is the name of a reduction that can be made in steps (`Operator.in_steps`),
    or `JOINED`.  The result exists after the loop.  Reductions are elementwise over
    tiles: a dim `k/loop` of the operand stays in the result as the index within a tile,
    to be reduced after the loop; where the last tile is ragged, what lies outside
    counts as the neutral element.

    The maximum of a `RunningMax` is its value in the last iteration.

    With `rescale`, the name of a `RunningMax` m, the result is the sum over iterations
    i of operand_i * exp(m_i - m_last): the operand was computed relative to m_i.
    """

    result: str
    operand: str
    kind: str = "sum"
    rescale: str | None = None
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    @property
    def reduction(self) -> Operator | None:
        """The reduction over iterations; None where it joins them along the dim."""
        return None if self.kind == JOINED else OPERATORS[self.kind]

    @property
    def adds(self) -> bool:
        """Whether it is the sum over iterations."""
        return self.kind != JOINED and OPERATORS[self.kind].adds


@dataclass(frozen=True)
class RunningMax:
    """The maximum of a body value over this and all earlier iterations.

    A body value itself.  It serves only to keep exponentials in range: verification
    replaces it by random numbers, which must not change any output.  Where it is
    -inf (everything masked so far) it counts as some finite number, and a rescaling
    from there is by 0.
    """

    result: str
    operand: str
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Store:
    """An output of a block (the paper's output saver).

    `result` is the kernel-level tensor.  `axes` are its axes, with `/grid` where a
    block writes only its part: the omap.  A dim `k#` is indexed by the coordinate of
    the grid dim `k`.  `dtype` is the storage format.
    """

    result: str
    operand: str
    axes: tuple[Axis, ...]
    dtype: DType
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


ValueNode = Load | Apply | Accumulate | RunningMax
"""What makes a value of a block."""

BlockNode = ValueNode | Store


PREFETCHED = (0, 1, 2, 4, 8)
"""Numbers of tiles that `Schedule.prefetch` may have."""
WRITTEN_OUT = 8
"""Iterations, at most, of a loop that loads some of them early (`Schedule.early`)."""


@dataclass(frozen=True)
class Schedule:
    """How a block graph is lowered; but for `allow_tf32` it never changes results.

    Attributes:
        num_warps: Warps of a block.
        num_stages: Software-pipeline depth of the loop.
        swap_operands: Compute matmuls transposed, so that the long side of the
            product is the matrix unit's M.
        descriptors: Load through tensor descriptors (TMA) instead of pointers.
        second_load: Load a tile again for register code if a matmul also reads it.
        pdl: Programmatic dependent launch.
        prefetch: Where the loop has to wait for the kernel ahead, so many tiles of each
            matrix that it reads besides are asked into the L2 cache before that.
        early: Where the loop has to wait for the kernel ahead, what it reads besides in
            so many of its first iterations is loaded before that.
        allow_tf32: Round the operands of f32 products to TF32, whose significands have
            11 bits, and use the matrix unit.  Nothing but a user chooses this.
    """

    num_warps: int = 4
    num_stages: int = 3
    swap_operands: bool = False
    descriptors: bool = False
    second_load: bool = True
    pdl: bool = False
    prefetch: int = 0
    early: int = 0
    allow_tf32: bool = False


def grid_axes(grid: Iterable[Split]) -> tuple[tuple[Split, ...], ...]:
    """The axes along which blocks are numbered, each with the dims it splits."""
    found: list[list[Split]] = []
    for split in grid:
        if split.beside and found:
            found[-1].append(split)
        else:
            found.append([split])
    return tuple(map(tuple, found))


@dataclass(frozen=True)
class LoopBound:
    """Which iterations a block visits, by its place along a dim of the grid.

    Those whose tile of the loop's dim has a position up to (`upper`), or from, that of
    an element of the block's tile of `dim`, plus `offset`; and those with a position
    up to `also`, wherever the block is.
    """

    dim: str
    upper: bool
    offset: int = 0
    also: int | None = None

    def met(
        self, at: NDArray[np.int64], tile: int, first: NDArray[np.int64], width: int
    ) -> NDArray[np.bool_]:
        """Whether iterations are visited.

        Args:
            at: Where their tiles of the loop's dim begin.
            tile: The length of these.
            first: Where the block's tile of `dim` begins.
            width: The length of that.
        """
        found = at + (tile - 1) >= first + self.offset
        if self.upper:
            found = at <= first + (width - 1 + self.offset)
        return np.asarray(found if self.also is None else found | (at <= self.also))

    def covers(
        self, at: NDArray[np.int64], tile: int, first: NDArray[np.int64], width: int
    ) -> NDArray[np.bool_]:
        """Whether all positions of iterations meet it for all elements of the block.

        It is for bounds without `also`.

        Args:
            at: As for `met`, like the others.
            tile: The same.
            first: The same.
            width: The same.
        """
        if self.upper:
            return np.asarray(at + (tile - 1) <= first + self.offset)
        return np.asarray(at >= first + (width - 1 + self.offset))


@dataclass(frozen=True)
class Settled:
    """A mask that is the same all over the tiles of some iterations.

    In iterations that a bound covers, the truth value `value` is taken for what `holds`
    says, and what follows from it is not computed.
    """

    value: str
    holds: bool
    bound: LoopBound


@dataclass(frozen=True)
class BlockGraph:
    """A graph-defined kernel: what one block computes.

    Attributes:
        grid: The splits by which blocks are numbered, along up to three axes: a split
            that is not `beside` the one before it starts an axis.
        loop: The split over which the block iterates, or None.
        nodes: In an order that respects operands.  Stages (before the loop, body,
            after the loop) follow from the wiring.
        schedule: Parameters of the lowering.
        bounds: What iterations have to meet, all of them, to be visited.  One that is
            left out adds the neutral element to every accumulator.
        settled: Masks that some of the iterations do without.
        location: Where a text begins it.
    """

    grid: tuple[Split, ...]
    loop: Split | None
    nodes: tuple[BlockNode, ...]
    schedule: Schedule = Schedule()
    bounds: tuple[LoopBound, ...] = ()
    settled: tuple[Settled, ...] = ()
    location: SourceLocation | None = field(default=None, compare=False, repr=False)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Loads in order."""
        return tuple(n for n in self.nodes if isinstance(n, Load))

    @cached_property
    def gathered(self) -> frozenset[str]:
        """The loads of which gathers only pick elements: no tile of them is made."""
        picked, read = set[str](), set[str]()
        for node in self.nodes:
            match node:
                case Load():
                    pass
                case Apply() if node.op.kind is Kind.GATHER:
                    picked.update(node.values[:1])
                    read.update(node.values[1:])
                case Apply():
                    read.update(node.values)
                case Accumulate() | RunningMax() | Store():
                    read.add(node.operand)
        return frozenset(n.result for n in self.loads) & (picked - read)

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Stores in order."""
        return tuple(n for n in self.nodes if isinstance(n, Store))

    @cached_property
    def applies(self) -> tuple[Apply, ...]:
        """Operators in order."""
        return tuple(n for n in self.nodes if isinstance(n, Apply))

    @cached_property
    def made(self) -> tuple[ValueNode, ...]:
        """What makes the block's values: all nodes but the stores, in order."""
        return tuple(n for n in self.nodes if not isinstance(n, Store))

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Kernel-level tensors that the block reads, each once, in order."""
        return tuple(dict.fromkeys(n.source for n in self.loads))

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Kernel-level tensors that the block writes."""
        return tuple(n.result for n in self.stores)

    @cached_property
    def axes(self) -> tuple[tuple[Split, ...], ...]:
        """The axes along which blocks are numbered, each with the dims it splits."""
        return grid_axes(self.grid)

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the grid, and that of the loop."""
        return self.grid if self.loop is None else (*self.grid, self.loop)

    @cached_property
    def _split_of(self) -> Mapping[str, Split]:
        return {s.dim: s for s in reversed(self.grid)}

    def grid_split(self, dim: str) -> Split | None:
        """The grid's split of `dim`, or None."""
        return self._split_of.get(dim)

    @cached_property
    def axis_of(self) -> Mapping[str, int]:
        """The position among `axes` of the axis that splits a dim."""
        return {s.dim: at for at, axis in enumerate(self.axes) for s in axis}


KernelNode = Apply | BlockGraph


@dataclass(frozen=True)
class Return:
    """One output: a value, and the type under which the caller gets it.

    The type's axes may order or group the value's dims in another way.
    """

    value: str
    type: TensorType
    location: SourceLocation | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class KernelGraph:
    """A whole μGraph: kernels over device tensors.  A traced program is one too.

    Attributes:
        name: Name of the user's function.
        inputs: In the caller's order.
        nodes: Kernels in launch order.
        returns: Outputs in the caller's order.
        extents: Extent of every dim by name, sorted; None where it is symbolic.
        indices: Index values, which nobody passes.
    """

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[KernelNode, ...]
    returns: tuple[Return, ...]
    extents: tuple[tuple[str, int | None], ...]
    indices: tuple[Index, ...] = ()

    @property
    def given(self) -> tuple[Input | Index, ...]:
        """What no node makes: the caller's tensors, and index values."""
        return (*self.inputs, *self.indices)

    @cached_property
    def extent_of(self) -> Mapping[str, int | None]:
        """Extents by dim name."""
        return dict(self.extents)

    @cached_property
    def blocks(self) -> tuple[BlockGraph, ...]:
        """The graph-defined kernels, in launch order."""
        return tuple(n for n in self.nodes if isinstance(n, BlockGraph))

    @cached_property
    def applies(self) -> tuple[Apply, ...]:
        """The operators: library kernels and views, in order."""
        return tuple(n for n in self.nodes if isinstance(n, Apply))

    def with_extents(self, extents: Mapping[str, int | None]) -> KernelGraph:
        """The same graph at other sizes; dims not listed stay as they are."""
        merged = {**self.extent_of, **extents}
        return replace(self, extents=tuple(sorted(merged.items())))

    def with_node(self, at: int, node: KernelNode) -> KernelGraph:
        """The same graph with another node at a place."""
        return replace(self, nodes=(*self.nodes[:at], node, *self.nodes[at + 1 :]))

    def with_schedules(self, change: Callable[[BlockGraph], Schedule]) -> KernelGraph:
        """The same graph with each kernel lowered as `change` says."""
        nodes = [
            replace(n, schedule=change(n)) if isinstance(n, BlockGraph) else n
            for n in self.nodes
        ]
        return replace(self, nodes=tuple(nodes))

    def __str__(self) -> str:
        """The graph as `.mu` text, which `parse` reads back."""
        from mirage_dsl.ir.text.printer import to_text

        return to_text(self)

    def generate_triton_program(self, path: str | Path) -> None:
        """Write a Triton program to a file, one that runs by itself.

        It has `run(*tensors)`, the same with a check of shapes and dtypes, and a main
        that calls that with random inputs: on a GPU, or in Triton's interpreter.
        """
        from mirage_dsl.backends.triton.backend import standalone

        Path(path).write_text(standalone(self), encoding="utf-8")


def stages_of(block: BlockGraph) -> dict[str, Literal["before", "body", "after"]]:
    """The stage of every value of a block, by name (stores have none).

    A value is in the body if it depends on a looped load without an accumulator
    between, after the loop if it depends on an accumulator, else before the loop.
    """
    stages: dict[str, Literal["before", "body", "after"]] = {}
    for node in block.nodes:
        match node:
            case Load():
                looped = any(d.loop for axis in node.axes for d in axis)
                stages[node.result] = "body" if looped else "before"
            case Apply():
                operands = {stages[v] for v in node.values}
                body, after = "body" in operands, "after" in operands
                stages[node.result] = "body" if body else "after" if after else "before"
            case RunningMax():
                stages[node.result] = "body"
            case Accumulate():
                stages[node.result] = "after"
            case Store():
                pass
    return stages


def accumulator_kinds() -> tuple[str, ...]:
    """What an accumulator's kind may be: reductions made in steps, and `JOINED`."""
    return (*(o.name for o in OPERATORS.values() if o.in_steps), JOINED)


def is_accumulated(kind: str) -> bool:
    """Whether an accumulator may be of a kind: one of `accumulator_kinds`."""
    op = OPERATORS.get(kind)
    return kind == JOINED or (op is not None and op.in_steps)


def partial_dim(name: str) -> str:
    """The dim over the blocks between which the dim `name` is split."""
    return f"{name}#"


def dims_of(axes: tuple[Axis, ...]) -> tuple[Dim, ...]:
    """All dims of `axes`, flattened."""
    return tuple(d for axis in axes for d in axis)
