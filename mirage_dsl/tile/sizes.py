"""The sizes of tiles: the pieces of dims that a block sees, and formulas over them.

Tiles have powers of two of lanes along each axis, and the matrix unit takes no less
than 16, so a piece may be wider than what it holds; a grid split or the loop may also
leave a ragged last tile.  A piece whose lanes can lie outside is `loose`: loads, stores
and reductions mask it.

`Pieces` are the pieces at known sizes, `Unsized` those at many: what the one answers in
numbers, the other answers in formulas, `lanes(m/grid) >= 64 & warps >= 4`.  A formula
is printed as text, evaluated at one size or over arrays of sizes, and folded where the
numbers are known while it is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Axis, Dim, TensorType
from mirage_dsl.ir.analysis.layouts import Place, laid_out, places
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    KernelGraph,
    Load,
    Split,
    Store,
    partial_dim,
)
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ops.definition import Kind

Order = tuple[Dim, ...]
"""Axes of a tile, from the slowest to the fastest."""

# -- Formulas --------------------------------------------------------------------------


class LaneCounts(Protocol):
    """What formulas of lanes ask: the sizes of a program, or an array of them.

    Attributes:
        warps: Warps that the schedule gives a block.
        stages: Depth of the loop's software pipeline.
    """

    @property
    def warps(self) -> Any: ...

    @property
    def stages(self) -> Any: ...

    def lanes(self, dim: Dim) -> Any:
        """How many lanes tiles have along a piece: a power of two."""
        ...


class Asked(LaneCounts, Protocol):
    """What all formulas ask, those of masks too."""

    def loose(self, dim: Dim) -> Any:
        """Whether lanes of a piece can lie outside of its dim."""
        ...

    def ends(self, dim: Dim) -> Any:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        ...


@dataclass(frozen=True)
class Formula:
    """An operation on numbers, or a question about sizes.

    Attributes:
        op: `lanes`, `loose`, `ends` (of one dim), `warps`, `stages`, or a row of
            `OPERATIONS`.
        args: What it is applied to.

    Formulas are made by the functions below and by `+ - * // >= > & | ~`,
    which fold what is known.  `==` compares formulas, not what they stand for.
    """

    op: str
    args: tuple[Formula | Dim | int | bool, ...] = ()

    def at(self, sizes: LaneCounts) -> Any:
        """What it is at some sizes: a number, or an array with one for each point.

        Those who ask for what may lie outside have sizes that are `Asked`.
        """
        if self.op in ("warps", "stages"):
            return getattr(sizes, self.op)
        if self.op in ("lanes", "loose", "ends"):
            return getattr(sizes, self.op)(*self.args)
        found = (a.at(sizes) if isinstance(a, Formula) else a for a in self.args)
        return OPERATIONS[self.op].compute(*found)

    def __str__(self) -> str:
        if self.op not in OPERATIONS:
            return self.op + (f"({self.args[0]})" if self.args else "")
        row = OPERATIONS[self.op]
        return row.text.format(
            *(_within(a, row.binding, first=at == 0) for at, a in enumerate(self.args))
        )

    def __add__(self, other: Number) -> Number:
        return fold("add", self, other)

    def __sub__(self, other: Number) -> Number:
        return fold("sub", self, other)

    def __mul__(self, other: Number) -> Number:
        return fold("mul", self, other)

    def __floordiv__(self, other: Number) -> Number:
        return fold("div", self, other)

    def __ge__(self, other: Number) -> Number:
        return fold("ge", self, other)

    def __gt__(self, other: Number) -> Number:
        return fold("gt", self, other)

    def __and__(self, other: Number) -> Number:
        return fold("and", self, other)

    def __or__(self, other: Number) -> Number:
        return fold("or", self, other)

    __radd__ = __add__
    __rmul__ = __mul__
    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Number:
        return opposite(self)


Number = Formula | int | bool
"""What a tile program has for a number or a condition."""


@dataclass(frozen=True)
class Operation:
    """A row of the table of operations.

    Attributes:
        text: How it is written.
        binding: How tightly it binds; operands that bind less get parentheses.
        compute: Its value, of numbers or of arrays.
    """

    text: str
    binding: int
    compute: Callable[..., Any]


def _pick(of_arrays: Callable[..., Any], of_numbers: Callable[..., Any]) -> Any:
    """NumPy's function where an argument is an array, else Python's."""

    def compute(*args: Any) -> Any:
        for arg in args:
            if isinstance(arg, (np.ndarray, np.generic)):
                return of_arrays(*args)
        return of_numbers(*args)

    return compute


def _either(condition: bool, yes: Any, no: Any) -> Any:
    return yes if condition else no


def _or(a: Any, b: Any) -> Any:
    return a | b


def _and(a: Any, b: Any) -> Any:
    return a & b


def _div(a: Any, b: Any) -> Any:
    return a // b


TIGHTEST = 9
OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "if": Operation("{1} if {0} else {2}", 0, _pick(np.where, _either)),
        "or": Operation("{} | {}", 1, _or),
        "and": Operation("{} & {}", 2, _and),
        "not": Operation("not {}", 3, _pick(np.logical_not, operator.not_)),
        "ge": Operation("{} >= {}", 4, operator.ge),
        "gt": Operation("{} > {}", 4, operator.gt),
        "add": Operation("{} + {}", 5, operator.add),
        "sub": Operation("{} - {}", 5, operator.sub),
        "mul": Operation("{} * {}", 6, operator.mul),
        "div": Operation("{} div {}", 6, _div),
        "max": Operation("max({}, {})", TIGHTEST, _pick(np.maximum, max)),
        "min": Operation("min({}, {})", TIGHTEST, _pick(np.minimum, min)),
    }
)
"""What formulas are made of, besides questions about sizes."""

_NEUTRAL: Mapping[str, int | bool] = MappingProxyType(
    {"and": True, "or": False, "mul": 1, "add": 0}
)
_ABSORBING: Mapping[str, int | bool] = MappingProxyType(
    {"and": False, "or": True, "mul": 0}
)


def _within(arg: Formula | Dim | int | bool, binding: int, *, first: bool) -> str:
    """An operand's text; operations of one binding are read from the left."""
    if not isinstance(arg, Formula) or arg.op not in OPERATIONS or binding == TIGHTEST:
        return str(arg)
    own = OPERATIONS[arg.op].binding
    # Comparisons, `not` and `if` do not follow one another without parentheses.
    chained = first and own == binding and binding in (1, 2, 5, 6)
    return str(arg) if own > binding or chained else f"({arg})"


def fold(op: str, *args: Number) -> Number:
    """An operation of the table, or what it is where that is known already."""
    for arg in args:
        if isinstance(arg, Formula):
            return _folded(op, args)
    return OPERATIONS[op].compute(*args)


def _folded(op: str, args: tuple[Number, ...]) -> Number:
    """An operation some of whose operands are formulas."""
    if op == "if" and not isinstance(args[0], Formula):
        return args[1] if args[0] else args[2]
    if op in ("if", "and", "or", "max", "min") and args[-1] == args[-2]:
        return args[-1]
    if op in ("and", "or") and args[0] == opposite(args[1]):
        return op == "or"
    if len(args) == 2:
        for one, other in (args, args[::-1]):
            if not isinstance(one, Formula):
                if one == _ABSORBING.get(op):
                    return one
                if one == _NEUTRAL.get(op):
                    return other
    return Formula(op, args)


WARPS, STAGES = Formula("warps"), Formula("stages")


def lanes(dim: Dim) -> Formula:
    """How many lanes tiles have along a piece."""
    return Formula("lanes", (dim,))


def loose(dim: Dim) -> Formula:
    """Whether lanes of a piece can lie outside of its dim."""
    return Formula("loose", (dim,))


def ends(dim: Dim) -> Formula:
    """Whether lanes outside of a loose piece lie outside of the tensor too.

    Not so where a part of the grid or of the loop ends within lanes that the next part
    goes on in.  A tensor descriptor reads 0 outside of the tensor, and only there.
    """
    return Formula("ends", (dim,))


def opposite(condition: Number) -> Number:
    """Whether a condition does not hold."""
    if isinstance(condition, Formula) and condition.op == "not":
        (inner,) = condition.args
        assert not isinstance(inner, Dim)
        return inner
    return fold("not", condition)


def all_of(conditions: Iterable[Number]) -> Number:
    """Whether all of some conditions hold."""
    return reduce(lambda a, b: fold("and", a, b), conditions, True)


def any_of(conditions: Iterable[Number]) -> Number:
    """Whether one of some conditions holds."""
    return reduce(lambda a, b: fold("or", a, b), conditions, False)


def either(condition: Number, yes: Number, no: Number) -> Number:
    """The one number where a condition holds, else the other."""
    return fold("if", condition, yes, no)


def greatest(first: Number, *others: Number) -> Number:
    """The greatest of some numbers."""
    return reduce(lambda a, b: fold("max", a, b), others, first)


def least(first: Number, *others: Number) -> Number:
    """The least of some numbers."""
    return reduce(lambda a, b: fold("min", a, b), others, first)


def value(number: Number, sizes: Asked) -> Any:
    """What a number is at some sizes."""
    return number.at(sizes) if isinstance(number, Formula) else number


# -- Pieces ----------------------------------------------------------------------------


SMALLEST_DOT = 16
"""Smallest number of rows, columns and summands of a matrix product."""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    """The number of tiles of `b` that cover `a`."""
    return -(-a // b)


@dataclass(frozen=True)
class Piece:
    """What a block sees of one dim.

    Attributes:
        dim: The dim with its flags.
        extent: Of the whole dim, None where symbolic.
        most: The largest extent, if it is symbolic and the block holds it whole.
        grid_tile: Elements of a block's part; None without grid split.
        loop_tile: Elements of an iteration's part; None without loop split.
        width: Lanes of the tile, a power of two.
        excess: Whether blocks may have no part at all, since the grid's axis is longer.
    """

    dim: Dim
    extent: int | None
    grid_tile: int | None
    loop_tile: int | None
    width: int
    excess: bool = False
    most: int | None = None

    @property
    def size(self) -> int:
        """Elements that a tile holds when it is not ragged."""
        tile = self.loop_tile or self.grid_tile or self.extent or self.most
        assert tile is not None
        return tile

    @property
    def unit(self) -> bool:
        """Whether tiles have no axis for this piece."""
        return self.width == 1

    @property
    def padded(self) -> bool:
        """Whether a tile may have more lanes than elements."""
        return self.width != self.size or self.most is not None

    @property
    def ragged_grid(self) -> bool:
        """Whether the last blocks' parts may be shorter than the others."""
        if self.grid_tile is None:
            return False
        return self.excess or _ragged(self.extent, self.grid_tile)

    @property
    def ragged_loop(self) -> bool:
        """Whether an iteration's part may be shorter than `loop_tile`."""
        if self.loop_tile is None:
            return False
        of = self.extent if self.grid_tile is None else self.grid_tile
        return _ragged(of, self.loop_tile)

    @property
    def loose(self) -> bool:
        """Whether lanes can lie outside of the dim."""
        return self.padded or self.ragged_grid or self.ragged_loop

    @property
    def ends(self) -> bool:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        if not self.loose:
            return False
        inside_part = (
            self.grid_tile is not None
            and self.loop_tile is not None
            and self.grid_tile % self.loop_tile != 0
        )
        whole = not self.padded or self.size in (self.extent, self.most)
        return whole and not inside_part


def _ragged(extent: int | None, tile: int) -> bool:
    return tile != 1 and (extent is None or extent % tile != 0)


MOST_PROGRAMS = 65_535
"""Of a launch, along its second and third axis."""


def launch_order(
    block: BlockGraph,
    extents: Mapping[str, int | None],
    types: Mapping[str, TensorType],
) -> tuple[tuple[Split, ...], ...]:
    """The grid's axes in the order of the launch's: along the first blocks are next.

    Blocks without products, which have no operand to share, follow one another as their
    results lie in memory: what blocks of one time read and write lies together.
    Measured on an H200: 3.06 ms for 3.24 where 1.6e9 numbers are mapped in tiles of
    2 x 1024, 255 µs for 272 with planes of 4096, 303 for 315 where a middle axis is
    summed.  All others stand in the order of the grid.  If a later axis has too many
    parts, the one of most parts is first.
    """

    def count(axis: Sequence[Split]) -> int:
        return max(_parts(s, extents) or 0 for s in axis)

    axes = _as_stored(block, types)
    if all(count(a) <= MOST_PROGRAMS for a in axes[1:]):
        return axes
    return tuple(sorted(block.axes, key=count, reverse=True))


def _as_stored(
    block: BlockGraph, types: Mapping[str, TensorType]
) -> tuple[tuple[Split, ...], ...]:
    """The axes of a block, from the innermost one of its results on."""
    stored = {_in_memory(n.axes, types[n.result]) for n in block.stores}
    products = any(n.op.kind is Kind.CONTRACTION for n in block.applies)
    if products or len(stored) != 1:
        return block.axes
    inner = {dim: at for at, dim in enumerate(reversed(stored.pop()))}
    last = len(inner)
    return tuple(
        sorted(block.axes, key=lambda axis: min(inner.get(s.dim, last) for s in axis))
    )


def _in_memory(axes: Sequence[Axis], kind: TensorType) -> tuple[str, ...]:
    """The dims of a tensor from the slowest to the fastest."""
    return tuple(d.name for axis in kind.order for d in axes[axis])


def counts_down(axis: Sequence[Split], block: BlockGraph) -> bool:
    """Whether the last part of an axis is the first block's.

    So where a block iterates up to its place: the longest blocks start first, and the
    short ones fill what is left at the end.
    """
    upper = {b.upper for b in block.bounds} == {True}
    return upper and any(b.dim == s.dim for b in block.bounds for s in axis)


def _parts(split: Split, extents: Mapping[str, int | None]) -> int | None:
    extent = extents.get(split.dim)
    return None if extent is None else ceil_div(extent, split.tile)


def has_excess(
    split: Split, block: BlockGraph, extents: Mapping[str, int | None]
) -> bool:
    """Whether the axis of a split may have more blocks than the split has parts."""
    axis = next(a for a in block.axes if split in a)
    own = _parts(split, extents) or 0
    counts = [_parts(s, extents) for s in axis]
    return len(axis) > 1 and any(n is None or n > own for n in counts)


def partial_of(dim: Dim, block: BlockGraph) -> str | None:
    """The split dim whose grid coordinate indexes the store dim `k#`, or None."""
    if not dim.grid or block.grid_split(dim.name) is not None:
        return None
    split = next((s for s in block.grid if partial_dim(s.dim) == dim.name), None)
    return None if split is None else split.dim


@dataclass(frozen=True)
class Outer:
    """What the tiles of a block depend on in its kernel graph.

    Attributes:
        types: Types of the kernel-level tensors.
        extents: Extents of all dims, None where symbolic.
        most: The largest extents of symbolic dims that blocks may hold whole.
        packed: Tensors that are row-major and contiguous by construction.
        placed: Tensors that are made inside of a concatenation.
        inputs: Tensors of the caller, whose layout their types tell.
        pointers: Use no tensor descriptors, whatever the schedule says.
    """

    types: Mapping[str, TensorType]
    extents: Mapping[str, int | None]
    most: Mapping[str, int]
    packed: frozenset[str]
    placed: Mapping[str, Place]
    inputs: frozenset[str]
    pointers: bool

    def has_layout(self, tensor: str) -> bool:
        """Whether a type tells how a tensor lies in memory; not so for views."""
        return tensor in self.packed or tensor in self.inputs


def outer_of(
    graph: KernelGraph,
    *,
    most: Mapping[str, int] | None = None,
    pointers: bool = False,
) -> Outer:
    """What the tiles of a μGraph's blocks depend on."""
    extents = derived_extents(graph, graph.extent_of)
    most = {n: e for n, e in (most or {}).items() if extents.get(n) is None}
    types = laid_out(graph, kernel_types(graph), {**extents, **most})
    placed = places(graph, types, extents)
    return Outer(
        types,
        extents,
        most,
        packed=_packed(graph) - placed.keys(),
        placed=placed,
        inputs=frozenset(i.name for i in graph.inputs),
        pointers=pointers,
    )


def _packed(graph: KernelGraph) -> frozenset[str]:
    """Tensors that the kernels themselves make contiguous."""
    found: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, BlockGraph):
            found.update(node.results)
        elif node.op.kind is not Kind.VIEW:
            found.add(node.result)
    return frozenset(found)


class Sizes(Protocol):
    """What is asked of the pieces of a block, whether their sizes are known or not."""

    @property
    def dims(self) -> Order:
        """All pieces, in order of appearance."""
        ...

    @property
    def units(self) -> frozenset[Dim]:
        """Those that are known to have one lane."""
        ...

    @property
    def warps(self) -> Number:
        """Warps that the schedule gives a block."""
        ...

    @property
    def stages(self) -> Number:
        """Depth of the loop's software pipeline."""
        ...

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that are axes of tiles."""
        ...

    def lanes(self, dim: Dim) -> Number:
        """How many lanes tiles have along a piece."""
        ...

    def loose(self, dim: Dim) -> Number:
        """Whether lanes of a piece can lie outside of its dim."""
        ...

    def outside(self, dim: Dim, *, in_loop: bool) -> Number:
        """The same of a tile's axis, which after the loop is an index within a tile."""
        ...

    def ends(self, dim: Dim) -> Number:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        ...

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        ...


LARGEST_BOX = 256
"""Elements of one axis that the copy engine moves at once."""
ALIGNMENT = 16
"""Bytes to which its addresses and strides are aligned."""
SHARED_ALIGNMENT = 128
"""The same in shared memory, where the tiles of all stages lie one behind the other."""
MOST_AXES = 5


class Pieces:
    """All pieces of one block at known sizes, by dim.

    Args:
        block: The block.
        types: Types of its values.
        extents: Extents of all dims, None where symbolic.
        most: The largest extents of symbolic dims that blocks may hold whole.
    """

    def __init__(
        self,
        block: BlockGraph,
        types: Mapping[str, TensorType],
        extents: Mapping[str, int | None],
        most: Mapping[str, int],
    ) -> None:
        self.block = block
        self._extents = extents
        self._most = most
        self._by_dim: dict[Dim, Piece] = {}
        for dim in dict.fromkeys(_all_dims(block, types)):
            self._by_dim[dim] = self._piece(dim)
        for node in block.nodes:
            if isinstance(node, Apply) and node.op.kind is Kind.CONTRACTION:
                self._widen(node, types)

    def __getitem__(self, dim: Dim) -> Piece:
        return self._by_dim[dim]

    @property
    def all(self) -> tuple[Piece, ...]:
        """All pieces, in order of appearance."""
        return tuple(self._by_dim.values())

    @property
    def dims(self) -> Order:
        """Their dims."""
        return tuple(self._by_dim)

    @property
    def units(self) -> frozenset[Dim]:
        """Those of one lane."""
        return frozenset(d for d, piece in self._by_dim.items() if piece.unit)

    @property
    def warps(self) -> int:
        """Warps that the schedule gives a block."""
        return self.block.schedule.num_warps

    @property
    def stages(self) -> int:
        """Depth of the loop's software pipeline."""
        return self.block.schedule.num_stages

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that are axes of tiles."""
        return tuple(d for d in dims if not self._by_dim[d].unit)

    def lanes(self, dim: Dim) -> int:
        """How many lanes tiles have along a piece."""
        return self._by_dim[dim].width

    def shape(self, axes: Sequence[Dim]) -> tuple[int, ...]:
        """How many lanes tiles have along each of some pieces."""
        return tuple(self._by_dim[d].width for d in axes)

    def loose(self, dim: Dim) -> bool:
        """Whether lanes of a piece can lie outside of its dim."""
        return self._by_dim[dim].loose

    def outside(self, dim: Dim, *, in_loop: bool) -> bool:
        """The same of a tile's axis, which after the loop is an index within a tile."""
        piece = self._by_dim[dim]
        if in_loop or piece.loop_tile is None:
            return piece.loose
        return piece.padded or piece.ragged_grid

    def ends(self, dim: Dim) -> bool:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        return self._by_dim[dim].ends

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        if not 0 < len(box) <= MOST_AXES:
            return False
        widths = self.shape(box)
        fits = (
            max(widths) <= LARGEST_BOX
            and widths[-1] * itemsize >= ALIGNMENT
            and prod(widths) * itemsize % SHARED_ALIGNMENT == 0
        )
        last = self._by_dim[box[-1]]
        steps = [t for t in (last.grid_tile, last.loop_tile) if t and t != last.extent]
        # Strides of the packed tensor, or what divides them if not all is known.
        inner = [self._by_dim[d].extent or 1 for d in box[1:]]
        strides = [prod(inner[i:]) for i in range(len(inner))]
        return fits and all(s * itemsize % ALIGNMENT == 0 for s in (*strides, *steps))

    def _piece(self, dim: Dim) -> Piece:
        extent = self._extents.get(dim.name)
        grid = loop = None
        excess = False
        if dim.grid:
            split = self.block.grid_split(dim.name)
            if split is None:
                raise UnsupportedError(f"{dim}: the grid does not split {dim.name}")
            grid = _clamp(split.tile, extent)
            excess = has_excess(split, self.block, self._extents)
        if dim.loop:
            split = self.block.loop
            if split is None or split.dim != dim.name:
                raise UnsupportedError(f"{dim}: the loop does not split {dim.name}")
            loop = _clamp(split.tile, extent if grid is None else grid)
        size = loop or grid or extent
        most = self._most.get(dim.name) if size is None else None
        if size is None and most is None:
            raise UnsupportedError(
                f"dim {dim.name} is symbolic and whole in a block; "
                f"split it by the grid or by the loop"
            )
        width = power_of_two(size or most or 1)
        piece = Piece(dim, extent, grid, loop, width, excess, most)
        # A part that can lie wholly outside needs an axis that carries its mask.
        return replace(piece, width=2) if piece.unit and piece.loose else piece

    def _widen(self, node: Apply, types: Mapping[str, TensorType]) -> None:
        """Widen the dims of a matrix product to the smallest that `tl.dot` takes."""
        a, b = (types[v].dims for v in node.values)
        over = [d for d in a if d.name in node.over]
        rows = [d for d in a if d not in b]
        columns = [d for d in b if d not in a]
        if rows and columns:
            self.widen(rows, columns, over)

    def widen(
        self, rows: Sequence[Dim], columns: Sequence[Dim], over: Sequence[Dim]
    ) -> None:
        """Widen the sides of a matrix product, unless it sums over one lane."""
        if all(self[d].unit for d in over):
            return
        for group in (rows, columns, over):
            lanes = 1
            for dim in group:
                lanes *= self[dim].width
            if lanes < SMALLEST_DOT:
                last = max(group, key=lambda d: (self[d].width, group.index(d)))
                piece = self._by_dim[last]
                width = piece.width * (SMALLEST_DOT // lanes)
                self._by_dim[last] = replace(piece, width=width)


class Unsized:
    """The pieces of a block at any sizes that change none of its statements.

    Args:
        like: The pieces at one of these sizes: the same ones have one lane, and the
            same boxes are moved by the copy engine, at all of them.
    """

    warps: Number = WARPS
    stages: Number = STAGES

    def __init__(self, like: Pieces) -> None:
        self._like = like
        self.dims, self.units = like.dims, like.units

    def axes(self, dims: Sequence[Dim]) -> Order:
        """Those of `dims` that have more than one lane."""
        return self._like.axes(dims)

    def lanes(self, dim: Dim) -> Number:
        """How many lanes tiles have along a piece."""
        return 1 if dim in self.units else lanes(dim)

    def loose(self, dim: Dim) -> Number:
        """Whether lanes of a piece can lie outside of its dim."""
        return False if dim in self.units else loose(dim)

    def outside(self, dim: Dim, *, in_loop: bool) -> Number:  # noqa: ARG002
        """The same: what is outside of a ragged last tile is masked after it too."""
        return self.loose(dim)

    def ends(self, dim: Dim) -> Number:
        """Whether lanes outside of a loose piece lie outside of the tensor too."""
        return ends(dim)

    def fits_box(self, box: Order, itemsize: int) -> bool:
        """Whether the copy engine moves boxes of these pieces, slowest first."""
        return self._like.fits_box(box, itemsize)


def _clamp(tile: int, extent: int | None) -> int:
    return tile if extent is None else min(tile, extent)


def _all_dims(block: BlockGraph, types: Mapping[str, TensorType]) -> list[Dim]:
    dims = [d for v, t in types.items() if v not in block.gathered for d in t.dims]
    for node in block.nodes:
        if isinstance(node, Load) and node.result not in block.gathered:
            dims += [d for axis in node.axes for d in axis]
        if isinstance(node, Store):
            dims += [
                d for axis in node.axes for d in axis if partial_of(d, block) is None
            ]
    return dims
