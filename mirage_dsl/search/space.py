"""What there is to search: a program over numbered dims, grid and loop choices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import SourceLocation, UnsupportedError
from mirage_dsl.core.hardware import GRID_AXES
from mirage_dsl.core.types import (
    AxisNames,
    MemorySpace,
    Scalar,
    TensorType,
    boolean,
    f64,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import parts
from mirage_dsl.ops.definition import Kind, Operator, Term

# -- Numbered programs, grid and loop choices ------------------------------------------
# Sets of dims are bit masks: bit i stands for `Space.dims[i]`.

MAX_DIMS = 40
"""Dims of one program; bit 48 of a packed shape is taken."""


MOST_CHOICES = 256
"""Choices of one dim of each output that are looked at."""

MOST_LAYERS = 3
"""Kernels one after the other; each may have others beside it."""

MOST_SHARED = 12
"""Choices of axes that several dims share, for each loop."""


@dataclass(frozen=True)
class Configuration:
    """A structural choice: every tensor that has one of these dims is split in it.

    Attributes:
        grid: Dims split between blocks.
        loop: The dim over which a block iterates, or None.
        shared: Those dims of the grid that share an axis, by axis.  Every output has
            one dim of each axis.
    """

    grid: tuple[str, ...] = ()
    loop: str | None = None
    shared: tuple[tuple[str, ...], ...] = ()

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """The dims of each axis of the grid, at most three."""
        others = {d for axis in self.shared for d in axis}
        return (*((d,) for d in self.grid if d not in others), *self.shared)

    @property
    def splits(self) -> tuple[ir.Split, ...]:
        """The grid with tiles of 1, to be chosen."""
        return tuple(
            ir.Split(dim, 1, beside=at > 0)
            for axis in self.axes
            for at, dim in enumerate(axis)
        )

    def splits_less(self, other: Configuration) -> bool:
        """Whether it splits some of the dims that another one does, and no more."""
        return self.shared == other.shared and {*self.grid} < {*other.grid}

    def __str__(self) -> str:
        axes = ", ".join(" & ".join(axis) for axis in self.axes)
        return f"grid({axes}) loop({self.loop or ''})"


@dataclass(frozen=True)
class Value:
    """A value of the program.

    Attributes:
        name: Its kernel-level name; of a constant, its text.
        names: Its dims, as a mask.
        type: Its kernel-level type; None for a constant.
        op: The operator that makes it; None for tensors read and for constants.
        operands: Indices of operands among `Space.values`.
        over: Dims that the operator reduces, as a mask.
        along: The dim that it scans, as a mask.
        constant: The number, for a constant.
        counted: Whether it is integers or truth values that are made of positions and
            constants alone, element by element.
        location: The user's line that made it.
    """

    name: str
    names: int
    type: TensorType | None = None
    op: Operator | None = None
    operands: tuple[int, ...] = ()
    over: int = 0
    along: int = 0
    constant: Scalar | None = None
    counted: bool = False
    location: SourceLocation | None = field(default=None, compare=False)

    @property
    def term(self) -> Term | None:
        """What its operator is to the search; None for tensors read and for constants.

        What is counted takes no memory and next to no time, in whatever order it is
        computed, so its operators are functions of which nothing is known: it is
        computed as it is written.
        """
        if self.op is None:
            return None
        return Term.FUNCTION if self.counted else self.op.term

    @property
    def is_load(self) -> bool:
        """Whether it is a tensor that a block reads."""
        return self.op is None and self.constant is None

    @property
    def function(self) -> str:
        """What tells its uninterpreted function from others; `over` is separate."""
        assert self.op is not None
        return f"{self.op.name} along {self.along}" if self.along else self.op.name


@dataclass(frozen=True)
class Output:
    """A tensor that a block must write.

    Attributes:
        value: Index of its value among `Space.values`.
        name: Its kernel-level name.
        type: Its kernel-level type.
    """

    value: int
    name: str
    type: TensorType


@dataclass(frozen=True)
class Space:
    """A program made ready for the search.

    Attributes:
        program: The program.
        dims: All dims of its values, in order of appearance.
        values: Tensors read, constants and operator results, operands first.
        outputs: Each distinct returned tensor that is not an input.
        stored: Computed values that an earlier kernel may have stored, so that a block
            may read them.
        halves: Dims cut in two, as (number of the part, index within the part); a value
            that lost the second but not the first is partial.
        targets: How many of the outputs the search is for, all if None; the others are
            only looked for among the values that it finds.
    """

    program: ir.KernelGraph
    dims: tuple[str, ...]
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    stored: frozenset[int] = frozenset()
    halves: tuple[tuple[int, int], ...] = ()
    targets: int | None = None

    def mask(self, names: tuple[str, ...]) -> int:
        """The mask of some dims."""
        return sum(1 << self.dims.index(n) for n in names)

    def names(self, mask: int) -> tuple[str, ...]:
        """The dims of a mask, in order of appearance."""
        return tuple(d for i, d in enumerate(self.dims) if mask >> i & 1)

    @cached_property
    def choices(self) -> dict[Any, Any]:
        """What `search.useful` found, which all loop choices share."""
        return {}

    @cached_property
    def loads(self) -> tuple[int, ...]:
        """Indices of the tensors that a block may read."""
        values = enumerate(self.values)
        return tuple(i for i, v in values if v.is_load or i in self.stored)

    def attributes(self, over: int, along: int = 0) -> ir.Attrs:
        """The attributes of an operator that reduces or scans some dims."""
        if along:
            return (("along", AxisNames((self.names(along),))),)
        return (("over", self.names(over)),) if over else ()

    def representable(self, names: int) -> bool:
        """Whether a value of these dims is whole, or partial in one cut dim only."""
        partial = 0
        for part, within in self.halves:
            has_part, has_within = names >> part & 1, names >> within & 1
            if has_within and not has_part:
                return False
            partial += has_part and not has_within
        return partial <= 1

    @cached_property
    def constants(self) -> tuple[int, ...]:
        """Indices of the constants."""
        return tuple(i for i, v in enumerate(self.values) if v.constant is not None)

    @cached_property
    def functions(self) -> tuple[int, ...]:
        """Indices of the results of uninterpreted functions."""
        return tuple(i for i, v in enumerate(self.values) if _is_opaque(v))

    @cached_property
    def terms(self) -> frozenset[Term]:
        """Abstract operations that the program uses."""
        return frozenset(v.term for v in self.values if v.term is not None)

    @cached_property
    def reduced(self) -> int:
        """Dims that the program sums over."""
        summed = (Term.SUM, Term.CONTRACT)
        masks = [v.over for v in self.values if v.term in summed]
        return union_of(masks)

    @cached_property
    def contracted(self) -> int:
        """Dims over which it sums floats, for there are no products of integers."""
        summed = (Term.SUM, Term.CONTRACT)
        masks = [
            v.over
            for v in self.values
            if v.term in summed and v.type is not None and not v.type.dtype.is_integer
        ]
        return union_of(masks)

    @cached_property
    def batch(self) -> int:
        """Dims of which blocks take one index at a time, as a mask.

        All tensors read have them, or products only in both operands: masks, biases and
        tables of positions need not have the heads of attention.
        """
        everywhere = -1
        sides = whole = 0
        for value in self.values:
            if value.is_load:
                everywhere &= value.names
            elif value.op is not None and value.op.kind is Kind.CONTRACTION:
                one, other = (self.values[i].names for i in value.operands)
                sides |= one ^ other | value.over
                # What the matrix unit has nothing of is multiplied one by one.
                if one & ~other and other & ~one:
                    whole |= one & other
        return everywhere | whole & ~sides

    def folds(self, loop: str | None) -> bool:
        """Whether the program reduces a dim; so a loop over it is of use, or none."""
        return loop is None or any(
            v.over >> self.dims.index(loop) & 1 for v in self.values
        )

    @cached_property
    def output_dims(self) -> tuple[str, ...]:
        """Dims that every output has, in order of the first one's type."""
        first, *rest = (o.type.names for o in self.outputs)
        return tuple(n for n in first if all(n in names for names in rest))

    @cached_property
    def shared_axes(self) -> tuple[tuple[str, ...], ...]:
        """Dims of which every output has exactly one, so that they may share an axis.

        A value with two of them would be of no use but to sums over one of them, and
        what a grid splits is not summed.
        """
        return tuple(_one_of_each([o.type.names for o in self.outputs]))

    @cached_property
    def loop_dims(self) -> tuple[str, ...]:
        """Dims over which a block may iterate: those of the tensors read."""
        return self.names(union_of(self.values[i].names for i in self.loads))

    def extent(self, dim: str, symbolic: int = 1024) -> int:
        """The extent of a dim; `symbolic` where it is not known."""
        return self.program.extent_of[dim] or symbolic


def configurations(space: Space) -> Iterator[Configuration]:
    """Every structural configuration, fewer splits first."""
    for loop in (None, *space.loop_dims):
        for shared in _disjoint(space.shared_axes, GRID_AXES):
            dims = tuple(itertools.chain(*shared))
            if loop not in dims:
                for count in range(GRID_AXES - len(shared) + 1):
                    for grid in itertools.combinations(space.output_dims, count):
                        yield Configuration((*grid, *dims), loop, shared)


def _disjoint(
    axes: tuple[tuple[str, ...], ...], most: int
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The first few sets of axes without a dim in common, the empty one first."""
    found = (
        chosen
        for count in range(most + 1)
        for chosen in itertools.combinations(axes, count)
        if len(set(itertools.chain(*chosen))) == sum(map(len, chosen))
    )
    return itertools.islice(found, 1 + MOST_SHARED)


def _one_of_each(outputs: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Sets of two or more dims of which each output has exactly one."""
    seen: set[frozenset[str]] = set()
    for chosen in itertools.islice(itertools.product(*outputs), MOST_CHOICES):
        dims = tuple(dict.fromkeys(chosen))
        own = frozenset(dims)
        single = all(len(own.intersection(names)) == 1 for names in outputs)
        if len(own) > 1 and single and own not in seen:
            seen.add(own)
            yield dims


def space_of(program: ir.KernelGraph) -> Space:
    """Read a program.

    Raises:
        UnsupportedError: A value that no block graph can compute.
    """
    reader = _Reader(program)
    for name, kind in reader.types.items():
        if kind.dtype == f64:
            raise UnsupportedError(
                f"`{name}` is f64, and blocks compute in f32; it stays with library "
                "kernels: use f32 where that is precise enough"
            )
    for item in program.given:
        reader.view(item.name)
    for node in program.nodes:
        if not isinstance(node, ir.Apply):
            raise UnsupportedError(
                "the search takes a program of operators, found a block graph; "
                "search the program that it was made from"
            )
        reader.read(node)
    returned = dict.fromkeys(r.value for r in program.returns)
    outputs = tuple(
        Output(reader.index[name], name, reader.types[name])
        for name in returned
        if not reader.is_load(name)
    )
    if not outputs:
        raise UnsupportedError("every output is an input: there is nothing to compute")
    return reader.finish(outputs)


def _is_opaque(value: Value) -> bool:
    kinds = (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.SCAN)
    op = value.op
    return op is not None and value.term is Term.FUNCTION and op.kind in kinds


def union_of(masks: Iterable[int]) -> int:
    """The bits of all masks."""
    total = 0
    for mask in masks:
        total |= mask
    return total


@dataclass
class _Reader:
    """Values read so far; `index` finds them by kernel-level name."""

    program: ir.KernelGraph
    values: list[Value] = field(default_factory=list[Value])
    index: dict[str, int] = field(default_factory=dict[str, int])
    constants: dict[Scalar, int] = field(default_factory=dict[Scalar, int])
    dims: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        self.types = kernel_types(self.program)

    def mask(self, names: tuple[str, ...]) -> int:
        return sum(1 << self.dims.setdefault(n, len(self.dims)) for n in names)

    def view(self, name: str) -> None:
        """A tensor that exists in memory: an input, or a view of one."""
        kind = self.types[name]
        self.index[name] = len(self.values)
        counted = kind.space is MemorySpace.NOWHERE
        self.values.append(Value(name, self.mask(kind.names), kind, counted=counted))

    def read(self, node: ir.Apply) -> None:
        if node.op.term is Term.IDENTITY and "dtype" in node.op.attributes:
            self.index[node.result] = self.index[node.values[0]]
        elif node.op.kind is Kind.VIEW and self.is_load(node.values[0]):
            self.view(node.result)
        elif node.op.kind is Kind.VIEW or node.stands_alone:
            raise UnsupportedError(
                f"a block cannot compute `{node.result}` = {node.op.name} of a "
                "computed tensor; compute the operand in a kernel of its own",
                node.location,
            )
        else:
            self._operator(node)

    def is_load(self, name: str) -> bool:
        """Whether a kernel-level value exists in memory before the block."""
        return self.values[self.index[name]].is_load

    def _operator(self, node: ir.Apply) -> None:
        operands = tuple(self._operand(o) for o in node.operands)
        kind = self.types[node.result]
        names, over = self.mask(kind.names), self.mask(node.over)
        own = [self.values[i] for i in operands]
        exact = kind.dtype.is_integer or kind.dtype == boolean
        counted = exact and node.op.kind is Kind.ELEMENTWISE
        counted &= any(v.counted for v in own)
        counted &= all(v.counted or v.constant is not None for v in own)
        self.index[node.result] = len(self.values)
        self.values.append(
            Value(
                node.result,
                names,
                kind,
                node.op,
                operands,
                over,
                self.mask(node.along),
                counted=counted,
                location=node.location,
            )
        )

    def _operand(self, operand: ir.Operand) -> int:
        if isinstance(operand, str):
            return self.index[operand]
        if operand not in self.constants:
            self.constants[operand] = len(self.values)
            self.values.append(Value(str(operand), 0, constant=operand))
        return self.constants[operand]

    def finish(self, outputs: tuple[Output, ...]) -> Space:
        """The space of the values that the outputs need."""
        needed: set[int] = set()
        stack = [o.value for o in outputs]
        while stack:
            i = stack.pop()
            if i not in needed:
                needed.add(i)
                stack.extend(self.values[i].operands)
        if len(self.dims) > MAX_DIMS:
            raise UnsupportedError(
                f"the program has {len(self.dims)} dims; the search takes {MAX_DIMS}"
            )
        number = {old: new for new, old in enumerate(sorted(needed))}
        kept = (self.values[i] for i in number)
        values = tuple(
            replace(v, operands=tuple(number[o] for o in v.operands)) for v in kept
        )
        outs = tuple(replace(o, value=number[o.value]) for o in outputs)
        return Space(self.program, tuple(self.dims), values, outs)


def block_count(
    space: Space, tiles: dict[str, int], configuration: Configuration
) -> int:
    """How many blocks a grid has at some tiles."""
    return prod(
        max(-(-space.extent(d) // tiles[d]) for d in axis)
        for axis in configuration.axes
    )


# -- Dims that share an axis of the grid -----------------------------------------------


def matched(
    tiles: Sequence[Sequence[int]], extents: Sequence[int]
) -> list[tuple[int, ...]]:
    """Tiles of the dims of an axis, given those that each dim may have.

    Of several dims each has the smallest tile of which there are no more than the axis
    has blocks.  So there are not many more choices than one of the dims has alone, and
    tiles of different dims are about as numerous, as far as they can be.
    """
    if len(tiles) == 1:
        return [(t,) for t in tiles[0]]
    counts = [
        {tile: parts(extent, tile) for tile in sorted(own)}
        for own, extent in zip(tiles, extents, strict=True)
    ]
    found: dict[tuple[int, ...], None] = {}
    for blocks in sorted({n for own in counts for n in own.values()}):
        fitting = [[t for t, n in own.items() if n <= blocks] for own in counts]
        if all(fitting):
            found[tuple(own[0] for own in fitting)] = None
    return list(found)


def along_axes(counts: NDArray[np.int64], block: ir.BlockGraph) -> NDArray[np.int64]:
    """Blocks along each axis of a grid, from the numbers of tiles of its dims."""
    if len(block.axes) == len(block.grid):
        return counts
    starts = [at for at, split in enumerate(block.grid) if not split.beside]
    return np.maximum.reduceat(counts, starts, axis=1)


def balanced(
    tiles: dict[str, int], space: Space, configuration: Configuration
) -> dict[str, int]:
    """Tiles of which the dims of each axis have about equal numbers."""
    found = dict(tiles)
    for axis in configuration.shared:
        blocks = max(parts(space.extent(d), tiles[d]) for d in axis)
        for dim in axis:
            least = parts(space.extent(dim), blocks)
            found[dim] = min(tiles[dim], 1 << (least - 1).bit_length())
    return found
