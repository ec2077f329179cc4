"""From a μGraph to the tile programs of its kernels: block graphs and their schedules.

Every decision of the lowering is taken here, or by what is asked from here: orders of
axes and orientations of products, what is computed in one step and which loads are
made twice, masks, descriptors, what is waited for.  With `Pieces` they are taken
at known sizes, with `Unsized` those that are numbers stay formulas.

**Blocks that suit their tiles**: rewritten, which changes no result.

What registers cannot do is done in another way (joined values are split into their
parts, or recomputed whole), and so is what they do slowly: sums of interleaved numbers
are sums of their parts, a vector gets a row for the matrix unit, and sums within a tile
wait until the loop is over.

**Layout** is orders of axes, roles of matrix operands, and who uses what.

A tile can be loaded in any order of axes at no cost, a computed one cannot be turned
freely.  So orders are decided before anything is emitted: backwards from matrix
products and stores to what feeds them, then forwards from what is computed to the
loads beside it.  Orders tell what a matrix product is added to in place, what is
computed in one step with its reader, and which tiles are loaded twice (`Wiring`).

**Positions** that a kernel computes with: what is known of them before it runs.

An index that is computed of an index value and of extents is the same in every call, so
what it is at each position of its dim is known here: whether all of them are inside,
and whether elements that follow one another are picked.  With these nodes

    b = less i, p                            a = gather x, f dim(p)
    f = where b, i, 0                        c = where b, a, d

elements of `a` matter only where `b` holds, and there the index is `i`.  So `a` is a
load of elements one behind the other, that reads nothing where `b` does not hold.

Positions are i64 in programs, as in PyTorch.  In a kernel each takes two registers, and
a comparison two instructions, though extents say how large they get.  What is never
larger than 32 bits hold, and goes nowhere but to such values, to comparisons and to
conversions, is computed in i32: the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import ASYNCHRONOUS_ROWS, WARP
from mirage_dsl.core.types import (
    Axis,
    Dim,
    DType,
    MemorySpace,
    Scalar,
    TensorType,
    Types,
    axis_text,
    boolean,
    dtype_named,
    f32,
    i32,
    i64,
    scalar,
)
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.bounds import magnitudes, shift_row
from mirage_dsl.ir.analysis.launches import (
    Announced,
    after_wait,
    asked_ahead,
    launches,
    loaded_early,
)
from mirage_dsl.ir.analysis.layouts import PAIR, is_multiplied
from mirage_dsl.ir.analysis.settled import unmasked
from mirage_dsl.ir.canonical import free_name
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import Extents, looped_dims, loops_inside_grid, piece_extent
from mirage_dsl.ir.text.printer import block_node_text
from mirage_dsl.ir.walk import (
    makers,
    map_nodes,
    operands_of,
    post_order,
    users,
    with_operands,
)
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Kind, Operator, Term, Truth
from mirage_dsl.tile import program as tp

# -- Blocks that suit their tiles ------------------------------------------------------

Around = TypeVar("Around", bound=tp.Outer)


@dataclass(frozen=True)
class Typed(Generic[Around]):
    """A block while it is made suited.

    Attributes:
        block: The block.
        around: Its kernel graph.
        under: By gathers that read 0 where a truth value is false, that value.
    """

    block: ir.BlockGraph
    around: Around
    under: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def types(self) -> Types:
        """Of the block's values."""
        return block_types(self.block, self.around.types)

    @property
    def pieces(self) -> tp.Pieces:
        """Its pieces."""
        around = self.around
        return tp.Pieces(self.block, self.types, around.extents, around.most)

    def with_block(
        self, block: ir.BlockGraph, around: Around | None = None
    ) -> Typed[Around]:
        """Another block, maybe in another kernel graph; this one if it is the same."""
        if block is self.block:
            return self
        return Typed(block, around or self.around, self.under)


@dataclass(frozen=True)
class Suited(Generic[Around]):
    """A block as tile programs have it.

    Attributes:
        block: The block.
        around: Its kernel graph.
        types: Of the block's values.
        pieces: Its pieces, at the sizes that it was made suited for.
        under: By gathers that read 0 where a truth value is false, that value.
    """

    block: ir.BlockGraph
    around: Around
    types: Types
    pieces: tp.Pieces
    under: Mapping[str, str] = field(default_factory=dict[str, str])


def suited(block: ir.BlockGraph, around: Around) -> Suited[Around]:
    """The block without what registers cannot do, or do slowly.

    Raises:
        UnsupportedError: A joined value is used in a way that needs it whole, or a
            piece has no known size.
    """
    given = eager(block, around)
    sums = deferrable(given.block)
    taken = {v: s for v, s in sums.items() if is_worth_a_tile(s, given, given.pieces)}
    return defer(given, taken)


def eager(block: ir.BlockGraph, around: Around) -> Suited[Around]:
    """The block without what registers cannot do; each sum is done where it stands.

    Raises:
        UnsupportedError: As `suited`.
    """
    given = Typed(block, around)
    given = split_concats(with_hidden(without_certain(given)))
    given = with_rows(split_pairs(split_lanes(given)))
    given = widen_joins(given)
    return Suited(given.block, given.around, given.types, given.pieces, given.under)


# -- Concatenations --------------------------------------------------------------------


Parts = tuple[str, ...]


def split_concats(given: Typed[Around]) -> Typed[Around]:
    """The block without concatenations.

    Registers cannot be joined; but what is computed from a joined value is computed
    from its parts:

        j = concat a, b dims(k, r) to(j)      p1 = matmul a, c over(k)
        q = concat c, d dims(k, r) to(j)      p2 = matmul b, d over(r)
        p = matmul j, q over(j)          →    p  = add p1, p2

    Raises:
        UnsupportedError: A joined value is used in a way that needs it whole.
    """
    if not any(n.op.kind is Kind.CONCAT for n in given.block.applies):
        return given
    return _Splitter(given.types).applied(given)


class _Splitter:
    """Computes with parts of values what was computed with the values.

    Subclasses say what else than a concatenation has parts.
    """

    def __init__(self, types: Types) -> None:
        self._types = types
        self._parts: dict[str, Parts] = {}
        self._dims: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._nodes: list[ir.BlockNode] = []

    def applied(self, given: Typed[Around]) -> Typed[Around]:
        """The block in parts.

        Raises:
            UnsupportedError: A value with parts is used in a way that needs it whole.
        """
        nodes = tuple(self.split(given.block.nodes))
        return given.with_block(replace(given.block, nodes=nodes))

    def split(self, nodes: tuple[ir.BlockNode, ...]) -> list[ir.BlockNode]:
        for node in nodes:
            match node:
                case ir.Apply() if node.op.kind is Kind.CONCAT:
                    joined, to = node.dims("dims"), node.dim("to")
                    self._parts[node.result] = node.values
                    self._dims[node.result] = (to, joined)
                case ir.Apply() if any(v in self._parts for v in node.values):
                    self._apply(node)
                case ir.Accumulate() if node.operand in self._parts:
                    self._accumulate(node)
                case ir.Load():
                    self._load(node)
                case ir.Apply():
                    self._nodes.append(node)
                case _:
                    self._refuse_parts(node.operand, node)
                    self._nodes.append(node)
        return self._nodes

    def _load(self, node: ir.Load) -> None:
        self._nodes.append(node)

    def _refuse_parts(self, value: str, node: ir.BlockNode) -> None:
        if value in self._parts:
            raise UnsupportedError(
                f"{node.result} needs {value} whole, but Triton cannot join values in "
                f"registers; store its parts, and concatenate at the kernel level"
            )

    def _apply(self, node: ir.Apply) -> None:
        first = next(v for v in node.values if v in self._parts)
        to, dims = self._dims[first]
        if to in node.along or node.op.kind is Kind.GATHER:
            self._refuse_parts(first, node)
        self._check(node, to, dims)
        over = to in node.over
        count = len(dims)
        names = tuple(f"{node.result}.{i}" for i in range(count))
        for index, name in enumerate(names):
            operands = tuple(
                self._parts[o][index] if isinstance(o, str) and o in self._parts else o
                for o in node.operands
            )
            part = replace(node, result=name, operands=operands)
            summed = (dims[index] if d == to else d for d in node.over)
            self._nodes.append(part.summing(tuple(summed)))
        if over:
            self._combine(node, names)
        else:
            self._parts[node.result], self._dims[node.result] = names, (to, dims)

    def _check(self, node: ir.Apply, to: str, dims: tuple[str, ...]) -> None:
        """All joined operands are joined alike, no other one has a dim of theirs."""
        for value in node.values:
            if value in self._parts:
                if self._dims[value] != (to, dims):
                    self._refuse_parts(value, node)
            elif {to, *dims} & set(self._types[value].names):
                self._refuse_parts(next(v for v in node.values if v != value), node)

    def _combine(self, node: ir.Apply, names: Parts) -> None:
        """Join the results of a reduction or contraction over the joined dim."""
        op = node.op.join
        assert op is not None
        total, *rest = names
        for index, name in enumerate(rest):
            last = index == len(rest) - 1
            result = node.result if last else f"{node.result}.upto{index + 1}"
            self._nodes.append(
                ir.Apply(result, op, (total, name), location=node.location)
            )
            total = result

    def _accumulate(self, node: ir.Accumulate) -> None:
        if node.kind == ir.JOINED:
            self._refuse_parts(node.operand, node)
        names: list[str] = []
        for index, part in enumerate(self._parts[node.operand]):
            names.append(f"{node.result}.{index}")
            self._nodes.append(replace(node, result=names[-1], operand=part))
        self._parts[node.result] = tuple(names)
        self._dims[node.result] = self._dims[node.operand]


# -- Lanes of short dims ---------------------------------------------------------------

MOST_APART, EIGHTHS = 4, 8
"""Elements of a dim up to which what is summed over it is computed for each apart; and
of one along which words of 32 bits are taken apart."""


def split_lanes(given: Typed[Around]) -> Typed[Around]:
    """The block without dims of few elements along which numbers would be interleaved.

    What is computed of a tile and of positions along another dim, as the halves of
    bytes are, gets the dim as its innermost axis, and registers would have to move for
    every number.  Where in the end all is summed over the dim, sums of parts do:

        i = load index h                       w0 = bit_and q, 15
        s = shift_right q, 4 * i               w1 = shift_right q, 4
        w = bit_and s, 15                 →    x0 = slice x dim(h) start(0) stop(1)
        p = matmul x, w over(n, h)             x1 = slice x dim(h) start(1) stop(2)
                                               p  = matmul x0, w0 + matmul x1, w1

    A dim that is stored, scanned or looked up along stays.
    """
    for dim in _interleaved(given):
        extent = given.around.extents.get(dim.name)
        most = EIGHTHS if loads_words(given.block, given.types) else MOST_APART
        if extent is None or not 1 < extent <= most:
            continue
        parts = _parts_of(dim, extent, given.around)
        try:
            given = _Lanes(given.types, dim, parts).applied(given)
        except UnsupportedError:
            continue
    return given


def loads_words(block: ir.BlockGraph, types: Types) -> bool:
    """Whether a block loads words of 32 bits, of which values may be parts."""
    return any(types[load.result].dtype == i32 for load in block.loads)


def _interleaved(given: Typed[Any]) -> list[Dim]:
    """The dims along which tiles without them meet positions along them alone."""
    block, types, outer = given.block, given.types, given.around.types
    positions = {
        types[n.result].dims
        for n in block.loads
        if outer[n.source].space is MemorySpace.NOWHERE
    }
    found: list[Dim] = []
    for dims in sorted(positions):
        if len(dims) != 1 or dims[0] != dims[0].whole:
            continue
        for node in block.applies:
            met = {types[v].dims for v in node.values}
            others = [d for d in met if d and dims[0] not in d]
            if node.op.kind is Kind.ELEMENTWISE and dims in met and others:
                found.append(dims[0])
                break
    settled = {s.value for s in block.settled}
    return [d for d in found if not any(d in types[v].dims for v in settled)]


def _parts_of(dim: Dim, extent: int, around: tp.Outer) -> tuple[str, ...]:
    """Names of dims of one element for each of a dim."""
    found: list[str] = []
    for at in range(extent):
        name = f"{dim.name}{at}"
        while name in around.extents:
            name += "_"
        found.append(name)
    return tuple(found)


class _Lanes(_Splitter):
    """Splits what has a dim: each element of it is a part."""

    def __init__(self, types: Types, dim: Dim, parts: tuple[str, ...]) -> None:
        super().__init__(types)
        self._dim = dim
        self._lanes = parts

    def applied(self, given: Typed[Around]) -> Typed[Around]:
        """The block in parts, and what is around it with their dims."""
        extents = {**given.around.extents, **dict.fromkeys(self._lanes, 1)}
        around = replace(given.around, extents=extents)
        return given.with_block(super().applied(given).block, around)

    def _load(self, node: ir.Load) -> None:
        self._nodes.append(node)
        if self._dim not in self._types[node.result].dims:
            return
        names: list[str] = []
        for at, part in enumerate(self._lanes):
            names.append(f"{node.result}.{at}")
            place = (("dim", self._dim.name), ("start", at), ("stop", at + 1))
            attrs = (*place, ("to", part))
            self._nodes.append(ir.Apply(names[-1], table.SLICE, (node.result,), attrs))
        self._parts[node.result] = tuple(names)
        self._dims[node.result] = self._dim.name, self._lanes


# -- Pairs of bytes --------------------------------------------------------------------


def split_pairs(given: Typed[Around]) -> Typed[Around]:
    """The block whose loop computes for the bytes of a pair apart.

    What is made of bytes for the matrix unit would have to change threads byte by byte,
    with all that lie next to each other.  Two of them in a word of 16 bits move as
    fast as one number of f16 does.  So what the loop makes along a dim of two, which
    is the innermost of the bytes, is made for each of the two; behind the loop they are
    joined, where something reads both:

                                         w0 = slice w dim(d) start(0) stop(1)
        v = matmul x, w over(k)          w1 = slice w dim(d) start(1) stop(2)
        s = accumulate v            →    s0 = accumulate (matmul x, w0 over(k))
        y = silu s                       s1 = accumulate (matmul x, w1 over(k))
                                         s = concat s0, s1 to(d)
                                         y = silu s
    """
    for dim in _paired(given):
        parts = _parts_of(dim, PAIR, given.around)
        try:
            made = _Pairs(given, dim, parts).applied(given)
        except UnsupportedError:
            continue
        if made.pieces[dim].width == PAIR:
            given = made
    return given


def _paired(given: Typed[Any]) -> list[Dim]:
    """The dims of two elements along which the loop reads bytes for products."""
    block, around, types = given.block, given.around, given.types
    settled = {d for s in block.settled for d in types[s.value].dims}
    found: list[Dim] = []
    for load in block.loads if block.loop is not None else ():
        kind = around.types[load.source]
        if kind.dtype.itemsize != 1 or kind.dtype is boolean:
            continue
        *others, dim = memory_order(load, kind) or (Dim(""),)
        if dim != dim.whole or around.extents.get(dim.name) != PAIR:
            continue
        looped = any(d.loop for d in others)
        if (
            looped
            and dim not in settled
            and any(
                is_multiplied(load.result, dim, block, types, summed=summed)
                for summed in (False, True)
            )
        ):
            found.append(dim)
    return list(dict.fromkeys(found))


def paired_dims(graph: ir.KernelGraph) -> set[str]:
    """The dims of pairs of bytes that some block of a μGraph reads for products."""
    types = kernel_types(graph)
    if all(types[s].dtype.itemsize > 1 for b in graph.blocks for s in b.sources):
        return set()
    outer = tp.outer_of(graph)
    found = (_paired(Typed(b, outer)) for b in graph.blocks)
    return {dim.name for dims in found for dim in dims}


class _Pairs(_Lanes):
    """Splits what the loop makes of a dim; what is read behind it is joined again."""

    def __init__(self, given: Typed[Any], dim: Dim, parts: tuple[str, ...]) -> None:
        super().__init__(given.types, dim, parts)
        block: ir.BlockGraph = given.block
        sums = [n for n in block.nodes if isinstance(n, ir.Accumulate | ir.RunningMax)]
        needed = post_order(makers(block), [v for n in sums for v in operands_of(n)])
        self._apart = {n.result for n in (*needed, *sums)}
        self._whole = {n.result for n in block.loads}

    def split(self, nodes: tuple[ir.BlockNode, ...]) -> list[ir.BlockNode]:
        for node in nodes:
            if not isinstance(node, ir.Store) and node.result in self._apart:
                super().split((node,))
            else:
                self._nodes += [*self._joined(operands_of(node)), node]
        read = {v for n in self._nodes for v in operands_of(n)}
        lanes = {v for load in self._whole for v in self._parts.get(load, ())}
        return [
            n
            for n in self._nodes
            if isinstance(n, ir.Store) or n.result in read or n.result not in lanes
        ]

    def _joined(self, values: Iterable[str]) -> Iterable[ir.Apply]:
        """What joins the parts of those values that are there in parts alone."""
        for value in dict.fromkeys(values):
            if value in self._parts and value not in self._whole:
                self._whole.add(value)
                attrs = (("dims", self._lanes), ("to", self._dim.name))
                yield ir.Apply(value, table.CONCAT, self._parts[value], attrs)


# -- Rows for vectors ------------------------------------------------------------------


def with_rows(given: Typed[Around]) -> Typed[Around]:
    """The block with a dim of one row where a product needs it.

    The matrix unit takes tiles only, and it is faster than multiplying and summing in
    registers even if it works for one row of sixteen.  So a vector gets a dim of extent
    1, which is widened like any other short dim.
    """
    block, around, sources = given.block, given.around, set[str]()
    for vector in vector_products(given):
        sides = (vector.over, vector.columns)
        if all(_lanes(side, block, around) >= tp.SMALLEST_DOT for side in sides):
            sources |= vector.tensors
    if not sources:
        return given
    row = Dim("row")
    while row.name in around.extents:
        row = Dim(f"{row.name}_")
    outer = {
        n: replace(t, axes=_with_row(t.axes, row)) if n in sources else t
        for n, t in around.types.items()
    }
    widened = map_nodes(
        block,
        lambda n: (
            replace(n, axes=_with_row(n.axes, row))
            if isinstance(n, ir.Load) and n.source in sources
            else n
        ),
    )
    extents = {**around.extents, row.name: 1}
    return given.with_block(widened, replace(around, types=outer, extents=extents))


def _with_row(axes: tuple[Axis, ...], row: Dim) -> tuple[Axis, ...]:
    """The row takes the place of an axis of extent 1; there must be one."""
    at = axes.index(())
    return (*axes[:at], (row,), *axes[at + 1 :])


@dataclass(frozen=True)
class VectorProduct:
    """A product of a vector that could become a row.

    Attributes:
        tensors: Those to which a row is added: the vector alone is computed from them.
        over: What is summed.
        columns: Dims that only the matrix has.
    """

    tensors: frozenset[str]
    over: tp.Order
    columns: tp.Order


def vector_products(given: Typed[Any]) -> list[VectorProduct]:
    """The products of vectors that can be told to be rows, whatever the tiles are.

    A vector can where its tensor has an axis of extent 1, and no view hides it.
    """
    outer, found = given.around.types, list[VectorProduct]()
    if not any(() in outer[s].axes for s in given.block.sources):
        return found
    made = makers(given.block)
    for node in given.block.applies:
        if node.op.kind is Kind.CONTRACTION:
            vector = _vector(node, given.types, made, given.around)
            if vector is not None and vector.tensors:
                found.append(vector)
    return found


def _vector(
    node: ir.Apply, types: Types, made: Mapping[str, ir.ValueNode], around: tp.Outer
) -> VectorProduct | None:
    """A contraction one of whose operands is a vector."""
    if len(node.values) != 2:
        return None
    alone = [
        tuple(d for d in types[v].dims if d not in types[node.values[1 - i]].dims)
        for i, v in enumerate(node.values)
    ]
    if bool(alone[0]) == bool(alone[1]):
        return None
    vector, matrix = node.values if alone[1] else reversed(node.values)
    over = tuple(d for d in types[vector].dims if d.name in node.over)
    summed = {d.name for d in over}
    tensors = frozenset(
        s
        for s in _sources(vector, made) - _sources(matrix, made)
        if () in around.types[s].axes
        and around.has_layout(s)
        and summed & set(around.types[s].names)
    )
    return VectorProduct(tensors, over, alone[0] or alone[1])


def _lanes(dims: tp.Order, block: ir.BlockGraph, around: tp.Outer) -> int:
    """Elements of a tile of these dims; extents of which nothing is known are one."""
    known = {n: e or around.most.get(n, 1) for n, e in around.extents.items()}
    lanes = 1
    for dim in dims:
        lanes *= piece_extent(dim, block, known)
    return lanes


def _sources(value: str, made: Mapping[str, ir.ValueNode]) -> set[str]:
    """The tensors from which a value is computed."""
    needed = post_order(made, [value])
    return {n.source for n in needed if isinstance(n, ir.Load)}


# -- What is joined over the loop ------------------------------------------------------


def widen_joins(given: Typed[Around]) -> Typed[Around]:
    """Recompute on whole dims what is joined over the loop and then computed with.

        x = load a[m, k/loop]          x_all = load a[m, k]
        y = exp x                 →    j = exp x_all
        j = accumulate y concat

    Registers cannot be filled piece by piece.  The pieces were read a moment ago, so
    the second reading comes out of the cache.  A joined value that is only stored
    stays: it is stored piece by piece.
    """
    block, types = given.block, given.types
    read = users(block.nodes)
    joined = [
        n
        for n in block.nodes
        if isinstance(n, ir.Accumulate)
        and n.kind == ir.JOINED
        and not all(isinstance(u, ir.Store) for u in read[n.result])
    ]
    for node in joined:
        copies = _Widened(block, types)
        value = copies.copy(node.operand)
        if value is None:
            continue
        at = block.nodes.index(node)
        names = {node.result: value}
        rest = [with_operands(n, names) for n in block.nodes[at + 1 :]]
        nodes = (*block.nodes[:at], *copies.nodes, *rest)
        block, types = replace(block, nodes=nodes), copies.types
    return given.with_block(block)


class _Widened:
    """Copies of the nodes that compute a value, with the looped dim whole."""

    def __init__(self, block: ir.BlockGraph, types: Types) -> None:
        self._makers = makers(block)
        self._stages = ir.stages_of(block)
        self.types = dict(types)
        self._done: dict[str, str | None] = {}
        self.nodes: list[ir.BlockNode] = []

    def copy(self, value: str) -> str | None:
        """The name of the copy of a value; None if it cannot be copied."""
        if self._stages[value] == "before":
            return value
        if value not in self._done:
            self._done[value] = self._copied(value)
        return self._done[value]

    def _copied(self, value: str) -> str | None:
        node = self._makers[value]
        name = free_name(f"{value}_all", self.types)
        match node:
            case ir.Load():
                axes = tuple(tuple(_unlooped(d) for d in axis) for axis in node.axes)
                self.nodes.append(replace(node, result=name, axes=axes))
            case ir.Apply():
                copies = {v: self.copy(v) for v in node.values}
                found = {v: c for v, c in copies.items() if c is not None}
                if len(found) < len(copies):
                    return None
                copied = with_operands(node, found)
                assert isinstance(copied, ir.Apply)
                self.nodes.append(replace(copied, result=name))
            case ir.Accumulate() | ir.RunningMax():
                return None
        self.types[name] = self.types[value]
        return name


def _unlooped(dim: Dim) -> Dim:
    return replace(dim, loop=False)


# -- Sums over the loop ----------------------------------------------------------------

MOST_LANES = 32
"""Elements of a tile per thread up to which it is worth keeping a tile of sums."""


def deferrable(block: ir.BlockGraph) -> dict[str, ir.Apply]:
    """Sums within tiles that can wait until the loop is over, by their accumulators."""
    if not any(
        isinstance(n, ir.Apply) and n.op.kind is Kind.REDUCTION for n in block.nodes
    ):
        return {}
    read = users(block.nodes)
    found: dict[str, ir.Apply] = {}
    for node in block.nodes:
        if isinstance(node, ir.Accumulate) and node.adds and not node.rescale:
            summed = _reduction(block, node.operand)
            if summed is not None and read[summed.result] == [node]:
                found[node.result] = summed
    return found


def is_worth_a_tile(summed: ir.Apply, given: Suited[Any], sizes: tp.Sizes) -> tp.Number:
    """Whether there are registers for a tile of what is summed over the loop."""
    lanes = tp.product(map(sizes.lanes, given.types[summed.values[0]].dims))
    return tp.fold("ge", tp.fold("mul", MOST_LANES * WARP, sizes.warps), lanes)


def defer(given: Suited[Around], sums: Mapping[str, ir.Apply]) -> Suited[Around]:
    """Sum over the loop first, elementwise, and within the tile once, after it.

        t = sum x over(k)         s_tile = accumulate x
        s = accumulate t     →    s = sum s_tile over(k)

    A reduction in every iteration makes threads wait for each other every time.

    Args:
        given: The block.
        sums: Those of `deferrable` that wait.
    """
    if not sums:
        return given
    gone = {s.result for s in sums.values()}
    known = dict(given.types)

    def deferred(node: ir.BlockNode) -> Iterable[ir.BlockNode]:
        if isinstance(node, ir.Accumulate) and node.result in sums:
            summed = sums[node.result]
            tile = free_name(f"{node.result}_tile", given.types)
            operand = given.types[summed.values[0]]
            whole = operand.dtype.is_integer
            known[tile] = operand if whole else operand.with_dtype(f32)
            yield replace(node, operand=summed.values[0], result=tile)
            yield replace(summed, operands=(tile,), result=node.result)
        elif isinstance(node, ir.Store) or node.result not in gone:
            yield node

    block, around = map_nodes(given.block, deferred), given.around
    types = {n.result: known[n.result] for n in block.made}
    pieces = tp.Pieces(block, types, around.extents, around.most)
    return Suited(block, around, types, pieces, given.under)


def _reduction(block: ir.BlockGraph, value: str) -> ir.Apply | None:
    """The sum that computes `value` in the loop's body."""
    node = makers(block)[value]
    body = ir.stages_of(block)[value] == "body"
    if not isinstance(node, ir.Apply) or not body:
        return None
    is_sum = node.op.kind is Kind.REDUCTION and node.op.term is Term.SUM
    return node if is_sum else None


# -- Orders of axes and roles of operands ----------------------------------------------


ROWS_OF_A_WARP = 64
"""Rows of a matrix product that one warp may hold."""
ROWS_OUTSIDE_LOOPS = 16
"""The same where there is no loop, up to `WARPS_OUTSIDE_LOOPS`.

On a Hopper GPU with Triton 3.6, kernels without a loop gave wrong results with products
of 512 and of 128 rows on 4 warps, whatever the barriers and stages; on 8 warps products
of so many rows were right.  The cause is not known: their PTX looks right.
"""
WARPS_OUTSIDE_LOOPS = 8
MOST_WARPS = 16
WARPS_OF_A_GROUP = 4
"""Warps that the matrix unit takes rows from together, where it reads tiles itself."""


@dataclass(frozen=True)
class ProductAxes(tp.Contracted):
    """How a contraction becomes a matrix product.

    Attributes:
        left: Position of the operand that has the rows.
    """

    left: int
    batch: tp.Order
    rows: tp.Order
    columns: tp.Order
    over: tp.Order


@dataclass(frozen=True)
class _Wish:
    """An order that a consumer would like; a matrix product insists."""

    order: tp.Order
    strong: bool


def is_read(node: ir.BlockNode, block: ir.BlockGraph) -> bool:
    """Whether a node's tile is read of memory, as it is: a load, or a gather of one."""
    if isinstance(node, ir.Load):
        return node.result not in block.gathered
    return isinstance(node, ir.Apply) and node.op.kind is Kind.GATHER


class Layout:
    """Orders of axes and products of one block.

    Attributes:
        orders: Axes of each value; for a load, of the copy that matrix products read.
        register_orders: Axes of the copy of a load that other operators read.
        products: The product of each contraction, by its result.
    """

    def __init__(self, given: Suited[Any], sizes: tp.Sizes) -> None:
        block, types = given.block, given.types
        self._block = block
        self._types = types
        self._extents: Extents = given.around.extents
        self._sizes = sizes
        self._axes: dict[str, tp.Order] = {}
        self._wishes: dict[str, _Wish] = {}
        self._register_wishes: dict[str, _Wish] = {}
        self.orders: dict[str, tp.Order] = {}
        self.register_orders: dict[str, tp.Order] = {}
        self.products: dict[str, ProductAxes] = {}
        self._left: dict[str, str] = {}
        self._asynchronous: dict[str, tp.Number] = {}
        self._batches: dict[str, frozenset[Dim]] = {}
        read = [n for n in block.made if is_read(n, block)]
        self._loads = {n.result for n in read}
        # What comes of memory by no arithmetic: loads, and lanes of them.
        self._plain = self._loads | {
            n.result for n in block.applies if n.op is table.SLICE
        }
        for node in reversed(block.nodes):
            self._backward(node)
        for node in block.nodes:
            self._forward(node)
        for load in read:
            self._settle_load(load.result)

    def is_integer(self, value: str) -> bool:
        """Whether a value is of integers."""
        return self._types[value].dtype.is_integer

    @cached_property
    def magnitudes(self) -> Mapping[str, float]:
        """How large values are at most, whatever finite numbers are loaded."""
        return magnitudes(self._block, self._types, self._extents)

    def is_of_bytes(self, value: str) -> bool:
        """Whether a value is of numbers of 8 bits, which all other floats hold."""
        dtype = self._types[value].dtype
        return dtype.itemsize == 1 and dtype is not boolean

    def axes(self, value: str) -> tp.Order:
        """The axes of a value's tile, in the order of its type."""
        if value not in self._axes:
            self._axes[value] = self._sizes.axes(self._types[value].dims)
        return self._axes[value]

    def order_of_load(self, value: str) -> tp.Order:
        """The axes of the one copy of a load that needs no second one."""
        return self.register_orders.get(value) or self.orders[value]

    def is_asynchronous(self, value: str) -> tp.Number:
        """Whether a product may be one whose tiles the matrix unit reads by itself.

        On some architecture it does, for whole groups of warps, from
        `ASYNCHRONOUS_ROWS` on; the tiles of smaller products are read to registers.
        """
        if value not in self._asynchronous:
            exact = self._types[self._left[value]].dtype is f32
            fits = not exact or self._block.schedule.allow_tf32
            tall = self._has_rows(self.products[value], ASYNCHRONOUS_ROWS)
            self._asynchronous[value] = tp.all_of([fits, tall, self._has_groups])
        return self._asynchronous[value]

    def _has_rows(self, product: ProductAxes, count: int) -> tp.Number:
        """Whether a matrix product has so many rows, and no batch."""
        if not product.is_matrix:
            return False
        tall = tp.fold("ge", self.lanes(product.rows), count)
        return tp.all_of(
            [tall, tp.opposite(tp.fold("gt", self.lanes(product.batch), 1))]
        )

    @cached_property
    def _has_groups(self) -> tp.Number:
        """Whether `warps` are whole groups of warps."""
        each = ROWS_OUTSIDE_LOOPS if self._block.loop is None else ROWS_OF_A_WARP
        rows = max(each * WARPS_OF_A_GROUP, ASYNCHRONOUS_ROWS)
        many = [self._has_rows(product, rows) for product in self.products.values()]
        return tp.any_of([tp.fold("ge", self._sizes.warps, WARPS_OF_A_GROUP), *many])

    @cached_property
    def warps(self) -> tp.Number:
        """Warps of a block: the schedule's, or enough for the rows of every product."""
        rows = [
            tp.either(self._has_rows(p, ASYNCHRONOUS_ROWS), self.lanes(p.rows), 0)
            for p in self.products.values()
        ]
        most = tp.greatest(0, *rows)
        needed = tp.least(MOST_WARPS, tp.fold("div", most, ROWS_OF_A_WARP))
        if self._block.loop is None:
            outside = tp.fold("div", most, ROWS_OUTSIDE_LOOPS)
            needed = tp.greatest(needed, tp.least(WARPS_OUTSIDE_LOOPS, outside))
        return tp.greatest(self._sizes.warps, needed)

    @cached_property
    def _made(self) -> Mapping[str, ir.ValueNode]:
        """What makes each value."""
        return makers(self._block)

    def batches(self, value: str) -> frozenset[Dim]:
        """The pieces that are the batch of a matrix product which a value is made of.

        Warps have a matrix each then, so they hold the piece, also in what is made of
        the product element by element.
        """
        if value not in self._batches:
            node = self._made[value]
            match node:
                case ir.Apply() if node.op.kind is Kind.CONTRACTION:
                    product = self.products[value]
                    alone = product.is_matrix and len(product.batch) == 1
                    found = frozenset(product.batch if alone else ())
                case ir.Apply() if node.op.kind is Kind.ELEMENTWISE:
                    found = frozenset[Dim]().union(*map(self.batches, node.values))
                case ir.Accumulate():
                    found = self.batches(node.operand)
                case ir.Apply() if node.op is table.CONCAT:
                    found = self.batches(node.values[0])
                case _:
                    found = frozenset[Dim]()
            self._batches[value] = found
        return self._batches[value]

    def lanes(self, axes: tp.Order) -> tp.Number:
        """How many lanes some axes have together."""
        return tp.product(map(self._sizes.lanes, axes))

    def _wish(self, value: str, order: Sequence[Dim], *, strong: bool) -> None:
        """Note a wish; dims that `order` lacks come last.

        So several threads join the parts of a split dim.  With the parts first, one
        thread loads them all, and joining takes up to 1.8 µs longer on an H200.
        """
        own = self.axes(value)
        wanted = tuple(d for d in order if d in own)
        wish = _Wish(wanted + tuple(d for d in own if d not in wanted), strong)
        if not strong:
            self._register_wishes.setdefault(value, wish)
        known = self._wishes.get(value)
        if known is None or (strong and not known.strong):
            self._wishes[value] = wish

    # -- Backwards -----------------------------------------------------------------

    def _backward(self, node: ir.BlockNode) -> None:
        match node:
            case ir.Load():
                pass
            case ir.Store():
                dims = [d for axis in node.axes for d in axis]
                self._wish(node.operand, dims, strong=False)
            case ir.Accumulate() | ir.RunningMax():
                self._pass_on(node.result, node.operand)
            case ir.Apply():
                if node.op.kind is Kind.CONTRACTION:
                    self._plan_product(node)
                    return
                gathers = node.op.kind is Kind.GATHER
                for value in node.values[1:] if gathers else node.values:
                    self._pass_on(node.result, value)

    def _pass_on(self, result: str, operand: str) -> None:
        wish = self._wishes.get(result)
        if wish is not None:
            self._wish(operand, wish.order, strong=wish.strong)

    def _plan_product(self, node: ir.Apply) -> None:
        sides = [self.axes(v) for v in node.values]
        if len(sides) == 1:
            sides *= 2
        wish = self._wishes.get(node.result)
        alone = [[d for d in sides[i] if d not in sides[1 - i]] for i in (0, 1)]
        left = self._left_operand(node, alone, wish)
        right = 1 - left
        shared = [d for d in sides[left] if d in sides[right]]
        order = list(wish.order) if wish else []

        def wished(dims: list[Dim]) -> tp.Order:
            return tuple(
                sorted(dims, key=lambda d: order.index(d) if d in order else -1)
            )

        product = ProductAxes(
            left,
            batch=wished([d for d in shared if d.name not in node.over]),
            rows=wished(alone[left]),
            columns=wished(alone[right]),
            over=tuple(d for d in shared if d.name in node.over),
        )
        self.products[node.result] = product
        self._left[node.result] = node.values[left % len(node.values)]
        for value, axes in zip(
            (node.values[left], node.values[-1 if right else 0]),
            product.factors,
            strict=True,
        ):
            self._wish(value, axes, strong=product.is_matrix)

    def _left_operand(
        self, node: ir.Apply, alone: list[list[Dim]], wish: _Wish | None
    ) -> int:
        """The operand that has the rows of the product.

        Few columns are the other's.  What another product insists on is obeyed.
        Otherwise a computed operand is better left, where it may stay in registers;
        else the result comes in the order of the store.  `swap_operands` turns this
        round.
        """
        for at, side in enumerate(alone):
            if side and self._sizes.few.issuperset(side):
                return 1 - at
        wished = 0
        for dim in wish.order if wish else ():
            if dim in alone[0] or dim in alone[1]:
                wished = 0 if dim in alone[0] else 1
                break
        if wish is not None and wish.strong:
            return wished
        computed = [v not in self._plain for v in node.values]
        if len(computed) == 2 and computed[0] != computed[1]:
            wished = computed.index(True)
        return 1 - wished if self._block.schedule.swap_operands else wished

    # -- Forwards ------------------------------------------------------------------

    def _forward(self, node: ir.BlockNode) -> None:
        match node:
            case ir.Load() | ir.Store():
                pass
            case ir.Accumulate() | ir.RunningMax():
                self.orders[node.result] = self._order_of(node.operand)
            case ir.Apply():
                if node.result not in self._loads:
                    self.orders[node.result] = self._apply_order(node)

    def _order_of(self, value: str) -> tp.Order:
        """The order of an operand; a load that no one decided on decides now."""
        if value in self.orders:
            return self.orders[value]
        if value in self.register_orders:
            return self.register_orders[value]
        wish = self._register_wishes.get(value)
        self.register_orders[value] = wish.order if wish else self.axes(value)
        return self.register_orders[value]

    def _apply_order(self, node: ir.Apply) -> tp.Order:
        if node.op.kind is Kind.CONTRACTION:
            return self.products[node.result].made
        if node.op is table.CONCAT:
            axes, lane = self.axes(node.result), self._order_of(node.values[0])
            return (*lane, *(d for d in axes if d not in lane))
        if node.op.kind is not Kind.ELEMENTWISE:
            axes, (value, *_) = self.axes(node.result), node.values
            wish = self._wishes.get(value) if node.op is table.SLICE else None
            order = wish.order if wish and wish.strong else self._order_of(value)
            return tuple(d for d in order if d in axes)
        axes = self.axes(node.result)
        order = self._joint_order(node, axes)
        for value in node.values:
            if value in self._loads and value not in self.register_orders:
                own = self.axes(value)
                self.register_orders[value] = tuple(d for d in order if d in own)
        return order

    def _joint_order(self, node: ir.Apply, axes: tp.Order) -> tp.Order:
        """The order of a computed operand with all axes, else the wished one."""
        decided = [self._decided(v) for v in node.values]
        for order in decided:
            if order is not None and len(order) == len(axes):
                return order
        wish = self._wishes.get(node.result)
        if wish is not None:
            return wish.order
        merged = [d for order in decided if order for d in order]
        return tuple(dict.fromkeys([*merged, *axes]))

    def _decided(self, value: str) -> tp.Order | None:
        return self.orders.get(value) or self.register_orders.get(value)

    def _settle_load(self, value: str) -> None:
        wish = self._wishes.get(value)
        if wish is not None and wish.strong:
            self.orders[value] = wish.order
        else:
            self.orders[value] = self._order_of(value)
        self.register_orders.setdefault(value, self.orders[value])


# -- Who uses what ---------------------------------------------------------------------


Stage = Literal["before", "body", "after"]

MODERATE = 2.0**60
"""Constants up to this, and down to one over it, may be multiplied by one another."""
LARGEST_FACTOR = 2.0**126
"""Numbers up to this may be multiplied by log2(e): f32 holds what they become."""


class Wiring:
    """Stages and users of the values of one block.

    Attributes:
        stages: The stage of each value.
        users: The nodes that read each value.
        shifted: For exponentials of a tile minus a row, the subtraction: lanes outside
            are masked once for both.
        scaled: For exponentials of a tile times a constant, the product: the constant
            takes the factor that the two-based exponential wants.
        rounded: Products of which a row is subtracted that may be made of them.
    """

    def __init__(self, block: ir.BlockGraph, layout: Layout) -> None:
        self._block = block
        self._layout = layout
        self.stages: Mapping[str, Stage] = ir.stages_of(block)
        self.users = users(block.nodes)
        self._makers = makers(block)
        self._fused: dict[str, list[ir.Apply]] = {}
        self._absorbed: set[str] = set()
        for node in block.nodes if block.loop is not None else ():
            if isinstance(node, ir.Accumulate) and node.adds:
                self._find_fused(node)

        self.shifted: dict[str, ir.Apply] = {}
        self.scaled: dict[str, ir.Apply] = {}
        self.rounded: set[str] = set()
        for node in block.applies:
            if node.op is table.SUB:
                self._find_rounded(node)
            if node.op is table.EXP:
                self._find_shift(node)
                self._find_scale(node)

    def _alone_of(self, node: ir.Apply, op: Operator) -> ir.Apply | None:
        """What makes an operand, if that is `op` and nobody else reads it."""
        maker = self._makers[node.values[0]]
        if not isinstance(maker, ir.Apply) or maker.op is not op:
            return None
        return maker if len(self.users[maker.result]) == 1 else None

    def _find_shift(self, node: ir.Apply) -> None:
        """An exponential of a difference, whose subtrahend has fewer dims."""
        maker = self._alone_of(node, table.SUB)
        if maker is not None and len(maker.values) == 2:
            whole, row = (self._layout.axes(v) for v in maker.values)
            if len(row) < len(whole) and set(row) <= set(whole):
                self.shifted[node.result] = maker
                self._absorbed.add(maker.result)

    def _find_scale(self, node: ir.Apply) -> None:
        """An exponential of a product with what may take another factor.

        That is a constant, or a row of which no number can be large: others would
        overflow before the tile's make the product small.
        """
        maker = self._alone_of(node, table.MUL)
        if maker is None:
            return
        if any(map(_is_moderate, maker.operands)) or self.factor_row(maker) is not None:
            self.scaled[node.result] = maker
            self._absorbed.add(maker.result)

    def factor_row(self, product: ir.Apply) -> str | None:
        """The operand with fewer dims, if it stays in range times a usual factor."""
        axes = self._layout.axes(product.result)
        rows = (v for v in product.values if len(self._layout.axes(v)) < len(axes))
        most = (v for v in rows if self._layout.magnitudes[v] <= LARGEST_FACTOR)
        return next(most, None)

    def _find_rounded(self, node: ir.Apply) -> None:
        """A product from which something with fewer dims is subtracted."""
        whole, row = node.operands
        maker = self._makers[whole] if isinstance(whole, str) else None
        if (
            isinstance(maker, ir.Apply)
            and maker.op is table.MUL
            and isinstance(row, str)
        ):
            axes, fewer = map(self._layout.axes, (maker.result, row))
            if self._layout.is_integer(maker.result):
                return
            if len(fewer) < len(axes) or self.is_shift(row):
                self.rounded.add(maker.result)

    def is_needless(self, cast: ir.Apply) -> bool:
        """Whether a cast changes no number and is there for the matrix unit alone.

        Products that are summed in registers take f32, in which numbers of 8 bits are
        what they are: going by way of f16 would cost two conversions an element.
        """
        (operand,) = cast.values
        maker = self._makers[operand]
        if isinstance(maker, ir.Apply) and maker.op.gives is f32:
            (operand,) = maker.values
        return self._layout.is_of_bytes(operand) and all(
            isinstance(user, ir.Apply)
            and user.op.kind is Kind.CONTRACTION
            and not self._layout.products[user.result].is_matrix
            for user in self.users[cast.result]
        )

    def is_joined(self, value: str) -> bool:
        """Whether a value is concatenated over the loop."""
        return self._block.loop is not None and any(
            isinstance(n, ir.Accumulate) and n.result == value and n.kind == ir.JOINED
            for n in self._block.nodes
        )

    def fused_into(self, node: ir.Accumulate) -> list[ir.Apply]:
        """The products that are added to this accumulator in place."""
        return self._fused.get(node.result, [])

    def is_fused(self, node: ir.Apply) -> bool:
        """Whether the statement of another node computes what this operator says."""
        return node.result in self._absorbed

    def _find_fused(self, node: ir.Accumulate) -> None:
        """A product, or a sum of products, whose only reader is an accumulator."""
        absorbed: set[str] = set()
        order = self._layout.orders[node.result]
        products = self._products_of(node.operand, order, absorbed)
        if products:
            self._fused[node.result] = products
            self._absorbed |= absorbed

    def _products_of(
        self, value: str, order: tp.Order, absorbed: set[str]
    ) -> list[ir.Apply] | None:
        maker = self._makers[value]
        single = len(self.users[value]) == 1 and self.stages[value] == "body"
        if not single or not isinstance(maker, ir.Apply):
            return None
        absorbed.add(value)
        if maker.op.kind is Kind.CONTRACTION:
            product = self._layout.products[value]
            plain = product.is_matrix and not product.is_merged
            return [maker] if plain and product.made == order else None
        if maker.op.term is not Term.ADD or len(maker.values) != 2:
            return None
        found = [self._products_of(v, order, absorbed) for v in maker.values]
        parts = [p for p in found if p is not None]
        return parts[0] + parts[1] if len(parts) == 2 else None

    def is_loaded_twice(self, node: ir.Load | ir.Apply) -> tp.Number:
        """Whether registers get their own copy of a tile that a product reads.

        A large product that the matrix unit runs by itself reads its tile while the
        next iteration runs and the pipeline refills the buffer that registers read, be
        it for an operator or for a small product: wrong results, unless each has
        buffers of its own.  A product that other operators of the body read is over
        within its iteration, so its tile serves all.
        """
        if not self._block.schedule.second_load or self.stages[node.result] != "body":
            return False
        products = self.products_of(node.result)
        if not products:
            return False
        beside = len(products) < len(self.users[node.result])
        apart = tp.opposite(tp.all_of(map(self.ends_in_iteration, products)))
        return tp.all_of(
            [apart, tp.any_of([beside, self._mixes_products(node.result)])]
        )

    def ends_in_iteration(self, product: ir.Apply) -> tp.Number:
        """Whether a product is read by the matrix unit, and awaited in the body."""
        if product.result in self._absorbed:
            return False
        return self._layout.is_asynchronous(product.result)

    def _mixes_products(self, value: str) -> tp.Number:
        """Whether products that read a value asynchronously and others share it."""
        alone = [
            self._layout.is_asynchronous(p.result) for p in self.products_of(value)
        ]
        return tp.all_of([tp.any_of(alone), tp.opposite(tp.all_of(alone))])

    def reads_again(self, product: ir.Apply, value: str) -> tp.Number:
        """Whether a product reads the copy of a tile that is meant for registers."""
        if not self._layout.products[product.result].is_matrix:
            return True
        synchronous = tp.opposite(self._layout.is_asynchronous(product.result))
        return tp.all_of([synchronous, self._mixes_products(value)])

    def products_of(self, value: str) -> list[ir.Apply]:
        """The matrix products that read a value."""
        return [
            u
            for u in self.users[value]
            if isinstance(u, ir.Apply)
            and u.op.kind is Kind.CONTRACTION
            and self._layout.products[u.result].is_matrix
        ]

    def is_shift(self, value: str) -> bool:
        """Whether it is what exponents are shifted by."""
        return shift_row(self._makers, value) is not None

    def shift_in(self, node: ir.Apply) -> tuple[int, Operator] | None:
        """Which operand of a subtraction is a shift that may be infinite, and its row.

        A shift of which another one is subtracted is none of exponents.
        """
        if node.op is not table.SUB:
            return None
        for at in (1, 0):
            shift = node.operands[at]
            row = shift_row(self._makers, shift)
            if row is not None and isinstance(shift, str):
                return (at, row) if self.may_be_infinite(shift) else None
        return None

    def may_be_infinite(self, shift: str) -> bool:
        """Whether a shift may be infinite; a running maximum sees to that itself."""
        return not isinstance(self._makers[shift], ir.RunningMax)


def _is_moderate(operand: ir.Operand) -> bool:
    """Whether it is a constant that no usual factor takes out of the range of f32."""
    if isinstance(operand, str):
        return False
    return 1 / MODERATE <= abs(operand.value) <= MODERATE


# -- Positions -------------------------------------------------------------------------


LONGEST = 1 << 16
"""Positions up to which they are looked at one by one."""
FEW_BREAKS = 8
"""Elements follow one another if at most one of so many does not."""

Lanes = NDArray[np.bool_]
"""Positions of a dim of which something holds."""
Values = NDArray[Any]
"""Integers or truth values."""


def picked(given: Suited[Any]) -> Mapping[str, tp.Along]:
    """By the names of a block's gathers, where they are loaded, by values of it."""
    gathers = [n for n in given.block.applies if n.op.kind is Kind.GATHER]
    if not gathers:
        return {}
    looking = _Looking(given)
    return {node.result: looking.at(node) for node in gathers}


def unread(block: ir.BlockGraph, gathers: Mapping[str, tp.Along]) -> frozenset[str]:
    """Values of which nothing is made: gathers are loaded at others in their place."""
    alive = {s.value for s in block.settled}
    for node in reversed(block.nodes):
        if isinstance(node, ir.Apply) and node.result in gathers:
            how = gathers[node.result]
            alive.update((node.values[0], how.index))
            alive.update(() if how.under is None else (how.under,))
        elif not isinstance(node, ir.Apply) or node.result in alive:
            alive.update(operands_of(node))
    made = (n.result for n in block.applies if n.result not in gathers)
    return frozenset(made) - alive


class _Looking:
    def __init__(self, given: Suited[Any]) -> None:
        block, around = given.block, given.around
        self._made: Mapping[str, ir.ValueNode] = makers(block)
        self._place = {n.result: at for at, n in enumerate(block.nodes)}
        self._users: Mapping[str, list[ir.BlockNode]] = users(block.nodes)
        self._types, self._under = given.types, given.under
        self._outer: Types = around.types
        self._extents: Extents = around.extents
        self._settled = {s.value for s in block.settled}
        self._values: dict[str, Values | None] = {}

    def at(self, node: ir.Apply) -> tp.Along:
        """How one gather is loaded."""
        index, dim = node.values[1], Dim(node.dim("dim"))
        size, values = self._extents.get(dim.name), self._of(index)
        if values is None or size is None:
            return self._bounded(node, size)
        needed = self._needed(node.result, self._dim(index))
        under, holds = self._condition(needed, self._dim(index), node)
        if under is None:
            needed = np.ones(len(values), np.bool_)
        index = self._shortest(index, needed)
        values = self._of(index)
        assert values is not None
        some = values[needed]
        if some.size and (some.min() < 0 or some.max() >= size):
            return tp.Along(dim, node.values[1])
        steps = np.diff(values)[needed[1:] & needed[:-1]]
        breaks = int((steps != 1).sum())
        row = len(steps) > 0 and breaks * FEW_BREAKS <= len(steps)
        return tp.Along(dim, index, "in_row" if row else "apart", under, holds)

    def _bounded(self, node: ir.Apply, size: int | None) -> tp.Along:
        """How a gather is loaded whose positions are not looked at one by one.

        As those of windows, which have several dims: that they are inside may follow
        from what they are computed of, and from what is read at all.
        """
        index, dim = node.values[1], Dim(node.dim("dim"))
        under, holds = self._chosen_by(node)
        if node.result in self._under:
            under, holds = self._under[node.result], True
        true = frozenset[str]()
        if under is not None and holds:
            true = self._all_true(under)
        chosen = self._taken(index, true)
        span = self._between(chosen, self._held(true))
        alike = {*self._types[chosen].names} == {*self._types[index].names}
        inside = (
            size is not None and span is not None and 0 <= span[0] <= span[1] < size
        )
        if alike and inside:
            return tp.Along(dim, chosen, "apart", under, holds)
        return tp.Along(dim, index, "no", under, holds)

    # -- What follows from a condition -----------------------------------------------

    def _all_true(self, condition: str) -> frozenset[str]:
        """The truth values of which one is the product: where it is true, all are."""
        node = self._made[condition]
        if not isinstance(node, ir.Apply) or node.op is not table.MUL:
            return frozenset((condition,))
        return frozenset[str]().union(*map(self._all_true, node.values))

    def _taken(self, index: str, true: AbstractSet[str]) -> str:
        """What is chosen of where some truth values are true, in an index's place."""
        node = self._made[index]
        if isinstance(node, ir.Apply) and node.op is table.WHERE:
            condition, first, _ = node.operands
            known = isinstance(condition, str) and self._all_true(condition) <= true
            if known and isinstance(first, str):
                return self._taken(first, true)
        return index

    def _held(self, true: AbstractSet[str]) -> Mapping[str, Span]:
        """Between what integers are where some comparisons are true."""
        found: dict[str, Span] = {}
        for name in true:
            node = self._made[name]
            if not isinstance(node, ir.Apply) or node.op not in (
                table.LESS,
                table.LESS_EQUAL,
            ):
                continue
            (small, large), strict = node.operands, node.op is table.LESS
            least, most = (ir.integer_of(o, self._extents) for o in (small, large))
            if isinstance(small, str) and most is not None:
                low, high = found.get(small, (-MOST, MOST))
                found[small] = low, min(high, most - strict)
            elif isinstance(large, str) and least is not None:
                low, high = found.get(large, (-MOST, MOST))
                found[large] = max(low, least + strict), high
        return found

    def _between(self, value: str, held: Mapping[str, Span]) -> Span | None:
        """Between what an integer lies in lanes that are read; None if nobody knows."""
        node = self._made[value]
        if self._types[value].dtype != i64:
            return None
        if isinstance(node, ir.Apply):
            parts = {v: self._between(v, held) for v in node.values}
            known = {v: span for v, span in parts.items() if span is not None}
            own = _span(node, known, self._outer, self._extents)
        else:
            own = _span(node, {}, self._outer, self._extents)
            # Lanes outside are not read.
            own = None if own is None else (own[0], own[1] // 2 - 1)
        return _both(own, held.get(value))

    # -- What values are at each position of their dim -----------------------------

    def _dim(self, value: str) -> str:
        (name,) = self._types[value].names
        return name

    def _of(self, value: str) -> Values | None:
        """What a value of integers or truth values is; None if nobody knows."""
        if value not in self._values:
            self._values[value] = self._computed(value)
        return self._values[value]

    def _computed(self, value: str) -> Values | None:
        kind, node = self._types[value], self._made[value]
        if len(kind.names) != 1 or value in self._settled:
            return None
        extent = self._extents.get(kind.names[0])
        if extent is None or extent > LONGEST:
            return None
        if isinstance(node, ir.Load):
            counts = self._outer[node.source].space is MemorySpace.NOWHERE
            return (
                np.arange(extent)
                if counts and len(ir.dims_of(node.axes)) == 1
                else None
            )
        exact = kind.dtype in (i64, boolean)
        if not isinstance(node, ir.Apply) or not exact:
            return None
        if node.op.kind is not Kind.ELEMENTWISE:
            return None
        operands: list[Values] = []
        for operand in node.operands:
            own = self._number(operand) if isinstance(operand, Scalar) else None
            own = self._of(operand) if isinstance(operand, str) else own
            if own is None:
                return None
            operands.append(own)
        with np.errstate(all="ignore"):
            found = np.asarray(node.op.numpy(*operands))
        if found.dtype.kind == "f":
            return None
        found = np.broadcast_to(found, (extent,))
        return found.astype(np.bool_ if kind.dtype == boolean else np.int64)

    def _number(self, constant: Scalar) -> Values | None:
        """A constant, if it is an integer."""
        number = ir.integer_of(constant, self._extents)
        return None if number is None else np.asarray(number)

    # -- Where elements matter -----------------------------------------------------

    def _needed(self, value: str, dim: str) -> Lanes:
        """At which positions of a dim anything depends on a value's elements."""
        extent = self._extents[dim]
        assert extent is not None
        found = np.zeros(extent, np.bool_)
        for user in self._users.get(value, []):
            found |= self._through(user, value, dim)
            if found.all():
                break
        return found

    def _through(self, user: ir.BlockNode, value: str, dim: str) -> Lanes:
        """The same of what one node makes of the value."""
        extent = self._extents[dim]
        assert extent is not None
        whole = np.ones(extent, np.bool_)
        if not isinstance(user, ir.Apply):
            return whole
        if user.op.kind is not Kind.ELEMENTWISE and user.op is not table.CAST:
            return whole
        if dim not in self._types[user.result].names:
            return whole
        below = self._needed(user.result, dim)
        if user.op is not table.WHERE or user.operands.count(value) != 1:
            return below
        chosen = user.operands[0]
        holds = self._of(chosen) if isinstance(chosen, str) else None
        if holds is None or chosen == value or self._dim(str(chosen)) != dim:
            return below
        taken = holds.astype(np.bool_)
        return below & (taken if user.operands[1] == value else ~taken)

    def _condition(
        self, needed: Lanes, dim: str, node: ir.Apply
    ) -> tuple[str | None, bool]:
        """A truth value ahead of a gather that tells where its elements matter."""
        if needed.all():
            return None, True
        for name, place in self._place.items():
            kind = self._types.get(name)
            if kind is None or kind.dtype != boolean or kind.names != (dim,):
                continue
            if place > self._place[node.result]:
                break
            holds = self._of(name)
            if holds is None:
                continue
            for side in (True, False):
                if ((holds == side) == needed).all():
                    return name, side
        return None, True

    def _chosen_by(self, node: ir.Apply) -> tuple[str | None, bool]:
        """A truth value that is data, ahead of a gather, under which alone it is read.

        Of new rows of a cache few lanes are taken; the others are not loaded.
        """
        value, readers = node.result, self._users.get(node.result, [])
        while len(readers) == 1 and isinstance(user := readers[0], ir.Apply):
            if user.op is table.WHERE and user.operands.count(value) == 1:
                chosen = user.operands[0]
                ahead = isinstance(chosen, str) and self._is_ahead(chosen, node)
                if ahead and chosen != value:
                    return str(chosen), user.operands[1] == value
            if user.op.kind is not Kind.ELEMENTWISE and user.op is not table.CAST:
                break
            value, readers = user.result, self._users.get(user.result, [])
        return None, True

    def _is_ahead(self, chosen: str, node: ir.Apply) -> bool:
        """Whether lanes of a truth value are known where a gather is loaded."""
        if chosen in self._settled or chosen not in self._types:
            return False
        kind, own = self._types[chosen], self._types[node.result]
        ahead = self._place[chosen] < self._place[node.result]
        return ahead and kind.dtype == boolean and {*kind.names} <= {*own.names}

    def _shortest(self, index: str, needed: Lanes) -> str:
        """What is chosen of at all positions that matter, in an index's place."""
        node, values = self._made[index], self._of(index)
        assert values is not None
        if isinstance(node, ir.Apply) and node.op is table.WHERE:
            for branch in node.operands[1:]:
                other = self._of(branch) if isinstance(branch, str) else None
                if other is None or self._types[str(branch)].names != (
                    self._dim(index),
                ):
                    continue
                if (other[needed] == values[needed]).all():
                    return self._shortest(str(branch), needed)
        return index


# -- What holds in every call ----------------------------------------------------------


def without_certain(given: Typed[Around]) -> Typed[Around]:
    """The block without conditions of positions that hold wherever elements are read.

    As those of windows without padding, of which none is outside:

        i = less at, w        (at is never as large)
        m = mul i, j                               g = gather x, at dim(w)
        p = where m, at, 0              →          v = where j, g, 0
        g = gather x, p dim(w)
        v = where m, g, 0
    """
    block = given.block
    if not any(n.op.kind is Kind.GATHER for n in block.applies):
        return given
    certain = _Certain(given)
    nodes = certain.nodes()
    if not certain.names:
        return given
    kept = {s.value for s in block.settled}
    found: list[ir.BlockNode] = []
    for node in reversed(nodes):
        if not isinstance(node, ir.Apply | ir.Load) or node.result in kept:
            found.append(node)
            kept.update(operands_of(node))
    return given.with_block(replace(block, nodes=tuple(reversed(found))))


def certain_of(graph: ir.KernelGraph) -> frozenset[str]:
    """What `without_certain` leaves out of the blocks of a graph at its extents."""
    picking = [
        b for b in graph.blocks if any(n.op.kind is Kind.GATHER for n in b.applies)
    ]
    if not picking:
        return frozenset()
    around, found = tp.outer_of(graph), set[str]()
    for block in picking:
        certain = _Certain(Typed(block, around))
        certain.nodes()
        found |= certain.names.keys()
    return frozenset(found)


class _Certain:
    """Which truth values are true at all positions, and what is read in whose place."""

    def __init__(self, given: Typed[Any]) -> None:
        self.names: dict[str, str] = {}
        block = self._block = given.block
        self._types: Types = given.types
        self._around: tp.Outer = given.around
        self._users: Mapping[str, list[ir.BlockNode]] = users(block.nodes)
        self._settled = {s.value for s in block.settled}
        self._spans: dict[str, Span] = {}
        self._true: set[str] = set()

    def nodes(self) -> list[ir.BlockNode]:
        """The nodes of the block without those in whose place others are read."""
        return [n for n in map(self._node, self._block.nodes) if n is not None]

    def _node(self, node: ir.BlockNode) -> ir.BlockNode | None:
        """The node as it reads others; None where another is read in its place."""
        node = with_operands(node, self.names)
        if not isinstance(node, ir.Load | ir.Apply) or node.result in self._settled:
            return node
        if self._types[node.result].dtype == boolean:
            return self._truth(node)
        if isinstance(node, ir.Apply) and node.op is table.WHERE:
            condition, first, _ = node.operands
            if condition in self._true and isinstance(first, str):
                return self._as(first, node)
        span = _span(node, self._spans, self._around.types, self._around.extents)
        if span is not None:
            inside = isinstance(node, ir.Load)
            # Lanes outside are not read.
            self._spans[node.result] = (0, span[1] // 2 - 1) if inside else span
        return node

    def _truth(self, node: ir.Load | ir.Apply) -> ir.BlockNode | None:
        """The same of a truth value."""
        if not isinstance(node, ir.Apply):
            return node
        if node.op in (table.LESS, table.LESS_EQUAL):
            parts = [
                _operand(o, self._spans, self._around.extents) for o in node.operands
            ]
            if parts[0] is not None and parts[1] is not None:
                strict = node.op is table.LESS
                if parts[0][1] + strict <= parts[1][0]:
                    self._true.add(node.result)
        elif node.op is table.MUL:
            others = [v for v in node.values if v not in self._true]
            if not others:
                self._true.add(node.result)
            elif len(others) < len(node.values):
                return self._as(others[0], node)
        return node

    def _as(self, other: str, node: ir.Apply) -> ir.BlockNode | None:
        """A node whose readers can read another value; itself where they cannot."""
        kind, own = self._types[other], self._types[node.result]
        spread = all(
            isinstance(u, ir.Apply) and u.op.kind is Kind.ELEMENTWISE
            for u in self._users.get(node.result, [])
        )
        alike = {*kind.names} == {*own.names} or spread
        if kind.dtype != own.dtype or not alike:
            return node
        self.names[node.result] = other
        return None


# -- What is read as 0 -----------------------------------------------------------------


def with_hidden(given: Typed[Around]) -> Typed[Around]:
    """The block whose gathers read 0 themselves where all that is made of them is 0.

        g = gather x, at dim(w)
        v = where m, g, 0           →    v = gather x, at dim(w)     (0 but under m)

    So a product reads what was loaded, as it lies.  Also the truth values, by gathers.
    """
    block, hiding = given.block, dict[str, ir.Apply]()
    if any(n.op.kind is Kind.GATHER for n in block.applies):
        hiding = _hiding(block, given.types)
    if not hiding:
        return given
    under = {n.result: n.values[0] for n in hiding.values()}
    found: list[ir.BlockNode] = []
    for node in block.nodes:
        if isinstance(node, ir.Apply) and node.result in hiding:
            found.append(replace(node, result=hiding[node.result].result))
        elif not isinstance(node, ir.Apply) or node.result not in under:
            found.append(node)
    return Typed(replace(block, nodes=tuple(found)), given.around, under)


def _hiding(block: ir.BlockGraph, types: Types) -> dict[str, ir.Apply]:
    """By gathers what alone reads them, and has 0 in the place of some elements."""
    place = {n.result: at for at, n in enumerate(block.nodes)}
    made, readers = makers(block), users(block.nodes)
    found: dict[str, ir.Apply] = {}
    for node in block.applies:
        if node.op is not table.WHERE or node.operands[2] != scalar(0):
            continue
        condition, chosen, _ = node.operands
        gather = made.get(str(chosen))
        if not isinstance(gather, ir.Apply) or gather.op.kind is not Kind.GATHER:
            continue
        several = len(types[gather.values[1]].names) > 1
        alone = len(readers[gather.result]) == 1 and several
        if not alone or not isinstance(condition, str):
            continue
        narrow = {*types[condition].names} <= {*types[gather.result].names}
        if narrow and place[condition] < place[gather.result]:
            found[gather.result] = node
    return found


# -- In 32 bits ------------------------------------------------------------------------


MOST = 2**31
"""Numbers from here on do not fit, nor do those below its negative."""

Span = tuple[int, int]
"""The least and the largest that integers can be."""


def narrow(
    block: ir.BlockGraph, types: Types, outer: Types, extents: Extents
) -> frozenset[str]:
    """The values in i64 of a block that are computed in i32.

    Args:
        block: The block.
        types: Of its values.
        outer: Types of kernel-level values.
        extents: Of all dims, None where symbolic: nothing is known of such positions.
    """
    if not any(outer[n.source].space is MemorySpace.NOWHERE for n in block.loads):
        return frozenset()
    spans: dict[str, Span] = {}
    for node in block.made:
        if types[node.result].dtype == i64:
            span = _span(node, spans, outer, extents)
            if span is not None and span[0] >= -MOST and span[1] < MOST:
                spans[node.result] = span
    readers = users(block.nodes)
    found, before = set(spans), set[str]()
    while found != before:
        before = set(found)
        for value in before:
            if not all(_takes(n, value, found, types, extents) for n in readers[value]):
                found.discard(value)
        # What is computed of a value in i64 is in i64 too.
        for node in block.applies:
            if not _integers(node, types) <= found:
                found.discard(node.result)
    return frozenset(found)


def _span(
    node: ir.ValueNode, spans: Mapping[str, Span], outer: Types, extents: Extents
) -> Span | None:
    """Between what the results of a node lie; None where that is not known."""
    if isinstance(node, ir.Load):
        kind = outer[node.source]
        known = [extents.get(name) for name in kind.names]
        if kind.space is not MemorySpace.NOWHERE or None in known:
            return None
        # Lanes outside count on, up to less than twice as far.
        return 0, 2 * prod(e or 0 for e in known)
    if not isinstance(node, ir.Apply):
        return None
    given = node.operands[1:] if node.op is table.WHERE else node.operands
    parts = [_operand(o, spans, extents) for o in given]
    if len(parts) != 2 or parts[0] is None or parts[1] is None:
        return None
    (a, b), (c, d) = parts[0], parts[1]
    if node.op is table.ADD:
        return a + c, b + d
    if node.op is table.SUB:
        return a - d, b - c
    if node.op is table.MUL:
        corners = a * c, a * d, b * c, b * d
        return min(corners), max(corners)
    if node.op in (table.MAXIMUM, table.MINIMUM, table.WHERE):
        return min(a, c), max(b, d)
    return _divided(node.op, (a, b), c) if 0 < c == d else None


def _divided(op: Operator, span: Span, by: int) -> Span | None:
    """`_span` of integers that are divided by a number above 0."""
    first, last = span
    if op is table.FLOOR_DIVIDE:
        return first // by, last // by
    if op is table.REMAINDER:
        return 0, min(last, by - 1) if first >= 0 else by - 1
    return None


def _both(one: Span | None, other: Span | None) -> Span | None:
    """Between what integers lie that lie in both spans; None is any."""
    if one is None or other is None:
        return one or other
    return max(one[0], other[0]), min(one[1], other[1])


def _operand(
    operand: ir.Operand, spans: Mapping[str, Span], extents: Extents
) -> Span | None:
    if isinstance(operand, str):
        return spans.get(operand)
    number = ir.integer_of(operand, extents)
    return None if number is None else (number, number)


def _integers(node: ir.Apply, types: Types) -> set[str]:
    """The operands in i64 of an operator."""
    return {v for v in node.values if types[v].dtype == i64}


def _takes(
    node: object, value: str, found: set[str], types: Types, extents: Extents
) -> bool:
    """Whether a reader of a value takes it in i32, as it takes its other operands."""
    if not isinstance(node, ir.Apply):
        return False
    if node.op.kind is Kind.GATHER:
        # Positions are of any format; that of what is picked stays.
        return value != node.values[0]
    if node.result in found or node.op.gives is not None:
        return True
    if node.op.truth is not Truth.COMPARES:
        return False
    numbers = [
        ir.integer_of(o, extents) for o in node.operands if isinstance(o, Scalar)
    ]
    fits = all(n is not None and -MOST <= n < MOST for n in numbers)
    return fits and _integers(node, types) <= found and value in node.values


# -- Tile programs ---------------------------------------------------------------------


INFINITY = float("inf")


def memory_order(load: ir.Load | tp.Load | tp.Ask, kind: TensorType) -> tp.Order:
    """The dims of a loaded tensor from the slowest to the fastest."""
    axes = load.axes if isinstance(load, ir.Load) else load.at
    return tuple(d for axis in kind.order for d in axes[axis])


def programs(
    graph: ir.KernelGraph,
    *,
    sized: bool = True,
    most: Mapping[str, int] | None = None,
    noted: bool = True,
) -> tuple[tp.TileProgram, ...]:
    """The tile programs of a μGraph's graph-defined kernels, in launch order.

    Args:
        graph: The μGraph.
        sized: At the sizes of its dims and schedules; else numbers that depend on
            sizes stay formulas.
        most: The largest extents of symbolic dims: blocks can hold these whole.
        noted: Whether statements say which lines they come from.

    Raises:
        UnsupportedError: A tile program cannot express something of it.
    """
    outer, found = tp.outer_of(graph, most=most), list[tp.TileProgram]()
    for launch in launches(graph):
        given = suited(launch.block, outer)
        program = build(
            given,
            name=f"{graph.name}_kernel{len(found)}",
            sizes=None if sized else tp.Unsized(given.pieces),
            announced=launch.announced,
            made=launch.made,
            noted=noted,
        )
        found.append(program)
    return tuple(found)


def build(
    given: Suited[Any],
    *,
    name: str = "kernel",
    sizes: tp.Sizes | None = None,
    announced: Announced = "",
    made: AbstractSet[str] | None = None,
    noted: bool = True,
) -> tp.TileProgram:
    """The tile program of a block.

    Args:
        given: The block, as `suited` returned it.
        name: Of the kernel.
        sizes: Of its pieces, if not those that it was made suited for.
        announced: When the kernel behind it may start; never before this one's wait.
        made: What it has to wait for, as `awaited` says; None where that is all.
        noted: Whether statements say which lines they come from.

    Raises:
        UnsupportedError: A tile program cannot express something of it.
    """
    if given.block.schedule.pdl and not announced:
        announced = "loop"
    builder = _Builder(given, sizes or given.pieces, made, noted=noted)
    return builder.build(name, announced)


def _apart(loop: tp.Loop) -> tp.Loop:
    """A loop whose values have names of their own, beside those of another part."""
    made = {n for s in loop.body for n in tp.makes(s)}
    carried = {s.target for s in loop.body if isinstance(s, tp.Rescale | tp.Update)}
    carried |= {s.state for s in loop.body if isinstance(s, tp.Largest)}
    carried |= {s.into for s in loop.body if isinstance(s, tp.Product) and s.into}
    names: dict[str, str] = {}
    for name in made - carried:
        base, slash, rest = name.partition("/")
        names[name] = f"{base}.{loop.part}{slash}{rest}"
    return replace(loop, body=tuple(tp.renamed(s, names) for s in loop.body))


class _Builder:
    def __init__(
        self,
        given: Suited[Any],
        sizes: tp.Sizes,
        made: AbstractSet[str] | None,
        *,
        noted: bool,
    ) -> None:
        block, types = given.block, given.types
        self._block, self._types = block, types
        self._outer: tp.Outer = given.around
        self._sizes, self._made, self._is_noted = sizes, made, noted
        self._late = None if made is None else after_wait(block, made)
        early = () if made is None else loaded_early(block, made)
        self._early = frozenset(n.result for n in early)
        self._layout = Layout(given, sizes)
        self._wiring = Wiring(block, self._layout)
        around = self._outer
        self._narrow = narrow(block, types, around.types, around.extents)
        self._picked = picked(given)
        self._unread = unread(block, self._picked) if self._picked else frozenset[str]()
        self._loads = {n.result: n for n in block.loads}
        self._body: list[tp.Statement] = []
        self._notes: list[tp.Note] = []
        self._in_loop = False
        # Of values of the block: the tile that has each, and the copy for registers.
        self._values: dict[str, str] = {}
        self._again: dict[str, str] = {}
        # What the loop carries for an accumulator or a running maximum, and by what
        # sums relative to the latter shrink.
        self._carried: dict[str, str] = {}
        self._scales: dict[str, str] = {}
        # Of tiles.
        self._tiles: dict[str, tp.Tile] = {}
        self._fills: dict[str, tp.Fills] = {}
        ends = self._sizes.ends
        self._outside = tp.Outside(self._tiles, self._outer.extents, ends)
        self._formed: list[dict[tuple[object, ...], str]] = [{}]

    # -- The order of statements ---------------------------------------------------

    def build(self, name: str, announced: Announced) -> tp.TileProgram:
        block, waits = self._block, self._block.schedule.pdl
        self._ask()
        if waits and self._late is None:
            for node in block.loads:
                if node.result in self._early and self._is_before(node):
                    self._node(node)
            self._add(tp.Wait())
            waits = False
        if announced == "start" and not waits:
            self._add(tp.Announce())
        self._stage("before")
        if block.loop is not None:
            self._loop(block.loop.dim)
        if waits:
            self._add(tp.Wait())
        if announced == "loop" or (announced and waits):
            self._add(tp.Announce())
        self._stage("before", late=True)
        self._stage("after")
        for store in block.stores:
            if not self._wiring.is_joined(store.operand):
                self._note(store)
                self._store(store, store.axes, store.operand)
        return self._program(name)

    def _program(self, name: str) -> tp.TileProgram:
        block, outer = self._block, self._outer
        kept = {*block.sources, *block.results}
        return tp.TileProgram(
            name,
            block.grid,
            block.loop,
            loops_inside_grid(block),
            {
                n: t
                for n, t in outer.types.items()
                if n in kept and t.space is not MemorySpace.NOWHERE
            },
            dict(outer.extents),
            block.schedule,
            self._sizes.dims,
            self._sizes.units,
            tuple(
                (p.rows, p.columns, p.over)
                for p in self._layout.products.values()
                if p.is_matrix
            ),
            self._layout.warps,
            tuple(self._body),
            self._noted(),
            block.bounds,
            self._whole(),
            self._sizes.few,
        )

    def _whole(self) -> tuple[ir.LoopBound, ...]:
        """What covers the iterations in which all masks are settled that can be."""
        made = self._wiring.stages
        settled = (s.bound for s in self._block.settled if s.value in made)
        return tuple(dict.fromkeys(settled))

    def _ask(self) -> None:
        """Ask for the first tiles of what the loop reads, if it has to wait."""
        asked = () if self._made is None else asked_ahead(self._block, self._made)
        for load in asked:
            if not self._outer.has_layout(load.source):
                continue
            box = memory_order(load, self._outer.types[load.source])
            inside = tp.opposite(tp.any_of(self._sizes.loose(d) for d in box))
            if box and inside is not False:
                tiles = self._block.schedule.prefetch
                self._add(tp.Ask(load.source, load.axes, tiles, inside))

    def _stage(self, stage: Stage, *, late: bool = False) -> None:
        """The statements of a stage; before the loop the late ones, or the others."""
        for node in self._block.nodes:
            if isinstance(node, ir.Store) or self._wiring.stages[node.result] != stage:
                continue
            if stage == "before" and late is not self._is_late(node):
                continue
            if stage == "before" and node.result in self._early:
                # It was loaded before the wait.
                continue
            if isinstance(node, ir.Accumulate):
                if self._block.loop is None:
                    self._note(node)
                    self._pass_through(node)
            else:
                self._node(node)

    def _is_before(self, node: ir.Load) -> bool:
        """Whether a load stands before the loop."""
        return self._wiring.stages[node.result] == "before"

    def _is_late(self, node: ir.BlockNode) -> bool:
        """Whether a node needs what the kernel ahead makes, and can wait for it."""
        return self._late is not None and node.result in self._late

    def _loop(self, dim: str) -> None:
        if len({d.grid for d in looped_dims(self._block)}) > 1:
            raise UnsupportedError(
                f"loop over {dim}: some loads loop over the block's part of it "
                f"and others over all of it; use {dim}/grid/loop in all, or none"
            )
        self._start()
        before, notes = self._body, self._noted()
        parts = tp.loop_parts(self._whole())
        masked = parts[-1] if parts[-1] != "whole" else parts[0]
        loops: list[tp.Statement] = []
        held: list[dict[str, tp.Fills]] = []
        tiles, fills = dict(self._tiles), self._fills
        for part in parts:
            self._tiles.clear()
            self._tiles |= tiles
            self._fills = dict(fills)
            loop = self._part(dim, part)
            loops.append(loop if part == masked else _apart(loop))
            held.append({v: self._fills[v] for v in self._carried.values()})
        for name in held[0]:
            self._fills[name] = tp.held_alike([h[name] for h in held])
        loops[0] = replace(loops[0], notes=notes)
        self._body = [*before, *loops]

    def _part(self, dim: str, part: tp.Part) -> tp.Loop:
        """The loop over some iterations."""
        block, wiring = self._block, self._wiring
        if part == "whole":
            self._block = unmasked(block, self._types)
            self._wiring = Wiring(self._block, self._layout)
        self._body, self._in_loop = [], True
        self._formed.append({})
        for node in self._loads_first():
            if isinstance(node, ir.Accumulate):
                self._accumulate(node)
            elif isinstance(node, ir.Store):
                continue
            elif self._wiring.stages[node.result] == "body":
                self._node(node)
        self._formed.pop()
        loop = tp.Loop(dim, tuple(self._body), part, closing=self._noted())
        self._block, self._wiring, self._in_loop = block, wiring, False
        return loop

    def _loads_first(self) -> list[ir.BlockNode]:
        """The nodes of the loop, what it loads at known positions first.

        The pipeline copies where the load stands.  Behind a product the copy would be
        asked for when that is awaited, and of an iteration less is on its way: 1.02
        of the time in attention with a maximum.
        """
        nodes = self._block.nodes
        return sorted(nodes, key=lambda n: not isinstance(n, ir.Load))

    def _node(self, node: ir.Load | ir.Apply | ir.RunningMax) -> None:
        if isinstance(node, ir.Apply) and self._wiring.is_fused(node):
            return
        self._note(node)
        match node:
            case ir.Load() if node.result in self._block.gathered:
                pass
            case ir.Load():
                self._load(node, node)
            case ir.Apply() if node.op.kind is Kind.GATHER:
                self._load(node, self._loads[node.values[0]])
            case ir.Apply() if node.result in self._unread:
                pass
            case ir.Apply():
                self._values[node.result] = self._apply(node)
            case ir.RunningMax():
                self._running_max(node)

    # -- Statements and notes ------------------------------------------------------

    def _note(self, node: ir.BlockNode) -> None:
        """The next statement comes from a node."""
        if not self._is_noted:
            return
        if isinstance(node, ir.Store):
            kind = f"[{', '.join(map(axis_text, node.axes))}]"
        else:
            for absorbed in (self._wiring.shifted, self._wiring.scaled):
                if node.result in absorbed:
                    self._note(absorbed[node.result])
            kind = f": {self._types[node.result]}"
        location = node.location if isinstance(node, ir.Apply) else None
        self._notes.append(tp.Note(block_node_text(node, kind), location))

    def _noted(self) -> tp.Notes:
        """What was noted since the last statement."""
        notes = tuple(self._notes)
        self._notes.clear()
        return notes

    def _add(self, statement: tp.Statement, fills: tp.Fills | None = None) -> None:
        if self._notes:
            statement = replace(statement, notes=self._noted())
        self._body.append(statement)
        self._fills |= self._outside.after(statement, self._fills, fills)

    def _make(
        self,
        statement: tp.Making,
        fills: tp.Fills | None = None,
    ) -> str:
        """Add a statement that makes a value; the value's name.

        Args:
            statement: The statement.
            fills: What lanes outside hold, if more is known of them, or less.
        """
        self._add(statement, fills)
        self._tiles[statement.result] = statement.tile
        return statement.result

    def _once(
        self, key: tuple[object, ...], wanted: str, make: Callable[[str], str]
    ) -> str:
        """A change of form, made here or before in a scope that is visible here."""
        for scope in self._formed:
            if key in scope:
                return scope[key]
        made = self._formed[-1][key] = make(self._fresh(wanted))
        return made

    def _fresh(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._tiles:
            count += 1
            name = f"{wanted}{count}"
        return name

    def _in_registers(self, value: str) -> str:
        """The tile of a value that registers read."""
        return self._again.get(value) or self._values[value]

    # -- Changes of form -----------------------------------------------------------

    def _masked(
        self, value: str, dims: Sequence[Dim], fill: float, when: tp.Number = True
    ) -> str:
        """The tile with `fill` in the lanes outside of `dims`."""
        tile, fills = self._tiles[value], self._fills[value]
        where: list[tuple[Dim, tp.Number]] = []
        for dim in tile.axes:
            if dim not in dims:
                continue
            lacks = self._sizes.outside(dim, in_loop=self._in_loop)
            known, holds = fills.get(dim, (None, False))
            if known == fill:
                lacks = tp.all_of([lacks, tp.opposite(holds)])
            if lacks is not False:
                where.append((dim, lacks))
        if not where:
            return value

        def make(name: str) -> str:
            held = {d: f for d, f in fills.items() if f[0] == fill}
            held.update((d, (fill, True)) for d, _ in where)
            return self._make(
                tp.Mask(name, tile, value, fill, tuple(where), when), held
            )

        return self._once(
            ("mask", value, fill, tuple(where), when), f"{value}/mask", make
        )

    def _turned(self, value: str, order: Sequence[Dim], when: tp.Number = True) -> str:
        """The tile with its axes in the order that they have in `order`."""
        tile = self._tiles[value]
        axes = tuple(d for d in order if d in tile.axes)
        assert len(axes) == len(tile.axes), (value, tile, order)
        if axes == tile.axes:
            return value
        return self._converted(value, tp.Tile(tile.dtype, axes), "turn", when)

    def _in_f32(self, value: str) -> str:
        """The tile in f32, as all arithmetic is but that of integers."""
        tile = self._tiles[value]
        if tile.dtype is f32 or tile.dtype.is_integer:
            return value
        return self._converted(value, tp.Tile(f32, tile.axes), "f32", when=True)

    def _converted(self, value: str, tile: tp.Tile, how: str, when: tp.Number) -> str:
        def make(name: str) -> str:
            return self._make(tp.Convert(name, tile, value, when))

        return self._once((how, value, tile, when), f"{value}/{how}", make)

    # -- Loads and stores ----------------------------------------------------------

    def _load(self, node: ir.Load | ir.Apply, of: ir.Load) -> None:
        """The tile that products read, and the one that other operators read.

        Args:
            node: The load, or the gather that picks its elements.
            of: The load.
        """
        if self._outer.types[of.source].space is MemorySpace.NOWHERE:
            order = self._layout.order_of_load(node.result)
            dtype = self._computed(node.result)
            positions = tp.Positions(node.result, tp.Tile(dtype, order), of.axes[0])
            self._values[node.result] = self._make(positions)
            return
        in_body = self._wiring.stages[node.result] == "body"
        twice = self._wiring.is_loaded_twice(node) if in_body else False
        first, second = self._buffers(node) if in_body else (0, 0)
        order = self._layout.orders[node.result]
        read = self._read(node, of, order)
        name = self._make(replace(read, buffers=first))
        self._values[node.result] = self._turned(name, order)
        if twice is not False:
            order = self._layout.register_orders[node.result]
            again = replace(
                self._read(node, of, order),
                result=f"{node.result}{tp.AGAIN}",
                buffers=second,
                when=twice,
                instead=self._values[node.result],
            )
            self._again[node.result] = self._turned(self._make(again), order)

    def _read(self, node: ir.Load | ir.Apply, of: ir.Load, order: tp.Order) -> tp.Load:
        """How a load is made: its tile, what is read, by what, and what is guarded."""
        kind = self._outer.types[of.source]
        box = self._box(node, kind) if isinstance(node, ir.Load) else None
        if box is not None:
            tile = tp.Tile(kind.dtype, self._sizes.axes(box))
            return tp.Load(node.result, tile, of.source, of.axes, "descriptor")
        guarded = tuple(d for d in order if self._sizes.loose(d) is not False)
        tile, along = tp.Tile(kind.dtype, order), None
        if isinstance(node, ir.Apply):
            along = self._along(node, order)
        early = self._early and node.result in self._early and self._in_loop
        return tp.Load(
            node.result,
            tile,
            of.source,
            of.axes,
            guarded=guarded,
            along=along,
            early=self._block.schedule.early if early else 0,
        )

    def _along(self, node: ir.Apply, order: tp.Order) -> tp.Along:
        """Where a gather reads, and which lanes."""
        how = self._picked[node.result]
        # Where a mask is settled, another value may stand in the index's place.
        index = node.values[1] if how.known == "no" else how.index
        index = self._turned(self._in_registers(index), order)
        under = how.under and self._turned(self._in_registers(how.under), order)
        return replace(how, index=index, under=under)

    def _box(self, node: ir.Load, kind: TensorType) -> tp.Order | None:
        """The dims of a descriptor in the order of memory, or None to use pointers."""
        wanted = self._block.schedule.descriptors and not self._outer.pointers
        if not wanted or self._wiring.stages[node.result] != "body":
            return None
        # Triton takes truth values for single bits, of which it has no descriptors.
        if not self._outer.has_layout(node.source) or not kind.dtype.is_float:
            return None
        box = memory_order(node, kind)
        return box if self._sizes.fits_box(box, kind.dtype.itemsize) else None

    def _buffers(self, node: ir.Load | ir.Apply) -> tuple[tp.Number, tp.Number]:
        """Stages of shared memory of each copy of a load of the loop.

        A tile that the matrix unit reads by itself is in use for one iteration longer,
        unless the product is over within the iteration, since others read it too.
        """
        users = self._wiring.users[node.result]
        products = [
            u
            for u in users
            if isinstance(u, ir.Apply) and u.op.kind is Kind.CONTRACTION
        ]
        alone = [self._layout.is_asynchronous(p.result) for p in products]
        shared = bool(products) and len(products) < len(users)
        awaited = not any(map(self._wiring.is_fused, products))
        within = tp.all_of([shared and awaited, *alone])
        longer = tp.all_of([tp.any_of(alone), tp.opposite(within)])
        fewer = tp.greatest(tp.fold("sub", self._sizes.stages, 1), 1)
        return tp.either(longer, self._sizes.stages, fewer), fewer

    def _store(self, node: ir.Store, axes: tuple[Axis, ...], value: str) -> None:
        tile = self._in_registers(value)
        self._add(tp.Store(node.result, tile, axes, node.dtype))

    # -- Operators -----------------------------------------------------------------

    def _apply(self, node: ir.Apply) -> str:
        """The tile of an operator's result."""
        if node.op.kind is Kind.CONTRACTION:
            return self._product(node, None)
        if node.result in self._wiring.shifted:
            return self._shifted_exp(node, self._wiring.shifted[node.result])
        if node.result in self._wiring.scaled:
            return self._scaled_exp(node, self._wiring.scaled[node.result])
        operands = self._operands(node)
        if node.op.kind is Kind.ELEMENTWISE:
            return self._elementwise(node, operands)
        if node.op is table.CONCAT:
            return self._join(node, operands)
        (operand,) = operands
        assert isinstance(operand, str)
        if node.op is table.SLICE and self._is_lane(node, operand):
            return self._lane(node, operand)
        if node.op.kind is Kind.REDUCTION:
            return self._reduction(node, operand)
        if node.op.kind is Kind.SCAN and len(node.along) == 1:
            return self._scan(node, operand)
        if "dtype" in node.op.attributes:
            return self._cast(node, operand)
        raise UnsupportedError(
            f"{node.result} = {node.op.name}: inside a block Triton cannot "
            f"rearrange registers; put it at the kernel level",
            node.location,
        )

    def _operands(self, node: ir.Apply) -> list[ir.Operand]:
        """The tiles that an operator reads, and its constants."""
        found = [
            self._in_registers(o) if isinstance(o, str) else o for o in node.operands
        ]
        shift = self._wiring.shift_in(node)
        if shift is not None:
            at, row = shift
            value, neutral = found[at], row.neutral
            assert isinstance(value, str)
            assert neutral is not None
            found[at] = self._finite(value, neutral)
        return found

    def _finite(self, row: str, neutral: float) -> str:
        """A shift that is finite where all lanes are outside too."""

        def make(name: str) -> str:
            return self._make(tp.Finite(name, self._tiles[row], row, neutral))

        return self._once(("finite", row), f"{row}/finite", make)

    def _forms(
        self, operands: Sequence[ir.Operand], order: tp.Order
    ) -> tuple[ir.Operand, ...]:
        """The operands in f32, with axes in this order."""
        return tuple(
            self._turned(self._in_f32(o), order) if isinstance(o, str) else o
            for o in operands
        )

    def _elementwise(self, node: ir.Apply, operands: Sequence[ir.Operand]) -> str:
        order = self._layout.orders[node.result]
        forms = self._forms(operands, order)
        rounded = node.result in self._wiring.rounded
        tile = tp.Tile(self._computed(node.result), order)
        compute = tp.Compute(node.result, tile, node.op, forms, rounded=rounded)
        return self._make(compute)

    def _computed(self, value: str) -> DType:
        """The format in which a value is computed: f32, or an integer's own.

        Floats of 8 bits are what an operator gives that makes them.
        """
        if value in self._narrow:
            return i32
        dtype = self._types[value].dtype
        return dtype if dtype.is_integer or dtype.only_stores else f32

    def _shifted_exp(self, node: ir.Apply, difference: ir.Apply) -> str:
        """exp(whole - row) in one step.

        Below a shift, lanes outside are taken as -inf, as the shift has taken them:
        their exponentials are 0, and no sum has to mask them again.
        """
        whole, row = self._operands(difference)
        assert isinstance(whole, str)
        assert isinstance(row, str)
        order = self._layout.orders[node.result]
        row, whole = self._in_f32(row), self._in_f32(whole)
        shift = self._wiring.is_shift(difference.values[1])
        own = self._tiles[row].axes
        along = [d for d in self._tiles[whole].axes if shift and d not in own]
        whole = self._masked(whole, along, -INFINITY)
        below = self._fills[whole]
        fills = {
            d: (0.0, below[d][1])
            for d in along
            if d in below and below[d][0] == -INFINITY
        }
        forms = (self._turned(whole, order), self._turned(row, order))
        tile = tp.Tile(f32, order)
        return self._make(
            tp.Compute(node.result, tile, node.op, forms, difference.op), fills
        )

    def _scaled_exp(self, node: ir.Apply, product: ir.Apply) -> str:
        """exp(whole * factor) in one step."""
        row = self._wiring.factor_row(product)
        last = [isinstance(o, Scalar) or o == row for o in product.operands]
        operands = self._operands(product)
        if last[0] and not last[1]:
            operands.reverse()
        order = self._layout.orders[node.result]
        forms = self._forms(operands, order)
        tile = tp.Tile(f32, order)
        scaled = tp.Compute(node.result, tile, node.op, forms, product.op)
        return self._make(scaled, {})

    def _cast(self, node: ir.Apply, operand: str) -> str:
        dtype = dtype_named(str(node.attr("dtype")))
        assert dtype is not None
        tile = self._tiles[operand]
        if tile.dtype is dtype or self._wiring.is_needless(node):
            return operand
        return self._make(tp.Cast(node.result, tp.Tile(dtype, tile.axes), operand))

    def _is_lane(self, node: ir.Apply, operand: str) -> bool:
        """Whether a slice is one element of a short axis that registers hold whole."""
        part = node.sliced
        assert part is not None
        extent = self._outer.extents.get(part.dim)
        short = extent is not None and extent <= EIGHTHS
        single = part.length(extent) == 1
        return short and single and Dim(part.dim) in self._tiles[operand].axes

    def _lane(self, node: ir.Apply, operand: str) -> str:
        """One element of a dim of few."""
        assert node.sliced is not None
        along = Dim(node.sliced.dim)
        at, _ = node.sliced.bounds(self._outer.extents[along.name] or 0)
        own = self._tiles[operand]
        tile = tp.Tile(own.dtype, tuple(d for d in own.axes if d != along))
        lane = self._make(tp.Lane(node.result, tile, operand, along, at))
        return self._turned(lane, self._layout.orders[node.result])

    def _join(self, node: ir.Apply, operands: Sequence[ir.Operand]) -> str:
        """The two elements of a dim, which is the last axis."""
        along, order = Dim(node.dim("to")), self._layout.orders[node.result]
        first, second = (self._turned(str(o), order[:-1]) for o in operands)
        tile = tp.Tile(self._tiles[first].dtype, order)
        return self._make(tp.Join(node.result, tile, first, second, along))

    def _reduction(self, node: ir.Apply, operand: str) -> str:
        operand = self._in_f32(operand)
        axes = self._tiles[operand].axes
        over = tuple(d for d in axes if d.name in node.over)
        operand = self._masked(operand, over, tp.neutral(node.op))
        rest = tuple(d for d in axes if d not in over)
        tile = tp.Tile(self._tiles[operand].dtype, rest)
        halves = self._by_halves(node, operand, over)
        return self._make(tp.Reduce(node.result, tile, node.op, operand, over, halves))

    def _by_halves(self, node: ir.Apply, operand: str, over: tp.Order) -> tp.Number:
        """Whether it sums what warps hold: the batch of a matrix product."""
        (value,), own = node.values, self._tiles[operand]
        fits = node.op.term is Term.SUM and own.dtype is f32
        if not fits or len(own.axes) < 2 or own.axes[:1] != over:
            return False
        if over[0] not in self._layout.batches(value):
            return False
        return tp.fold("ge", tp.MOST_HALVED, self._sizes.lanes(over[0]))

    def _scan(self, node: ir.Apply, operand: str) -> str:
        operand = self._in_f32(operand)
        if self._goes_on(node):
            return self._scan_on(node, operand)
        tile = self._tiles[operand]
        along = next((d for d in tile.axes if d.name in node.along), None)
        # A dim of one element is no axis of tiles.
        if along is None:
            return operand
        return self._make(tp.Scan(node.result, tile, node.op, operand, along))

    def _scan_on(self, node: ir.Apply, operand: str) -> str:
        """A scan of one iteration's elements, joined with all that came before.

        What these make together is carried to the next iteration.
        """
        total, join = table.total_of(node.op), node.op.join
        assert total is not None
        assert join is not None
        order, before = self._layout.orders[node.result], self._carried[node.result]
        own = all_of_them = self._turned(operand, order)
        along = next((d for d in order if d.name in node.along), None)
        tile = tp.Tile(self._tiles[own].dtype, order)
        if along is not None:
            masked = self._masked(own, (along,), tp.neutral(total))
            scan = tp.Scan(f"{node.result}/own", tile, node.op, masked, along)
            rest = tp.Tile(tile.dtype, tuple(d for d in order if d != along))
            whole = tp.Reduce(f"{node.result}/all", rest, total, masked, (along,))
            own, all_of_them = self._make(scan), self._make(whole)
        found = self._make(tp.Compute(node.result, tile, join, (own, before)), {})
        self._add(tp.Update(before, all_of_them, total))
        return found

    # -- Products ------------------------------------------------------------------

    def _product(self, node: ir.Apply, into: str | None) -> str:
        """A contraction, added to a carried tile in place or a value of its own."""
        product = self._layout.products[node.result]
        values = node.values if len(node.values) == 2 else node.values * 2
        sides = values[product.left], values[1 - product.left]
        # What is outside of an iteration's part is not added to a carried tile.
        looped = () if into is None else (d for d in product.made if d.loop)
        zero = (*product.over, *looped)
        if product.is_matrix:
            left = self._matrix(node, sides[0], product, 0, zero)
            right = self._matrix(node, sides[1], product, 1, zero)
        else:
            order = (*product.made, *product.over)
            masked = [
                self._masked(self._in_f32(self._in_registers(v)), zero, 0.0)
                for v in sides
            ]
            left, right = (self._turned(v, order) for v in masked)
        precision = "storage"
        if product.is_matrix and self._tiles[left].dtype is f32:
            precision = "tf32" if self._block.schedule.allow_tf32 else "ieee"
        found = tp.Product(
            node.result,
            tp.Tile(f32, product.made),
            left,
            right,
            product.batch,
            product.rows,
            product.columns,
            product.over,
            self._layout.is_asynchronous(node.result),
            precision,
            into,
        )
        if into is None:
            return self._make(found)
        self._add(found)
        return into

    def _matrix(
        self,
        node: ir.Apply,
        value: str,
        product: ProductAxes,
        side: Literal[0, 1],
        zero: Sequence[Dim],
    ) -> str:
        """One side of a matrix product: 0 has the rows, 1 the columns.

        Outside of the pieces `zero` it is 0.
        """
        order, first = product.factors[side], self._values[value]
        again = self._again.get(value, first)
        reads_again = again != first and self._wiring.reads_again(node, value)
        if isinstance(reads_again, tp.Formula):
            one = self._side(first, zero, order, tp.opposite(reads_again))
            other = self._side(again, zero, order, reads_again)
            tile, name = self._tiles[one], self._fresh(f"{value}/pick")
            found = self._make(tp.Pick(name, tile, one, other, reads_again))
        else:
            first = again if reads_again else first
            found = self._side(first, zero, order)
        if not product.is_merged:
            return found
        groups = (product.rows, product.over)
        if side == 1:
            groups = (product.over, product.columns)
        if product.batch:
            groups = (product.batch, *groups)
        tile, name = self._tiles[found], self._fresh(f"{first}{tp.MERGED}")
        return self._make(tp.Merge(name, tile, found, groups))

    def _side(
        self, value: str, zero: Sequence[Dim], order: tp.Order, when: tp.Number = True
    ) -> str:
        masked = self._masked(value, zero, 0.0, when)
        return self._turned(masked, order, when)

    # -- What a loop carries -------------------------------------------------------

    def _start(self) -> None:
        """Before the loop: nothing accumulated yet."""
        for node in self._block.nodes:
            match node:
                case ir.Accumulate() if self._takes_last(node):
                    # Without the guard: where all is masked it stays -inf.
                    self._carried[node.result] = self._carried[node.operand]
                case ir.Accumulate() if node.reduction is not None:
                    self._carry(node.result, node.result, tp.neutral(node.reduction))
                case ir.RunningMax():
                    self._carry(node.result, f"{node.result}/last", -INFINITY)
                case ir.Apply() if self._goes_on(node):
                    self._carry_scan(node)
                case _:
                    pass

    def _carry(self, value: str, name: str, start: float) -> None:
        tile = tp.Tile(self._computed(value), self._layout.orders[value])
        self._carried[value] = self._make(tp.Start(name, tile, start))

    def _goes_on(self, node: ir.Apply) -> bool:
        """Whether a scan goes on from one iteration of the loop to the next."""
        return node.op.kind is Kind.SCAN and any(
            d.loop for d in self._types[node.values[0]].dims if d.name in node.along
        )

    def _carry_scan(self, node: ir.Apply) -> None:
        """All that a scan has joined before an iteration."""
        total, order = table.total_of(node.op), self._layout.orders[node.result]
        assert total is not None
        rest = tuple(d for d in order if d.name not in node.along)
        tile = tp.Tile(self._computed(node.result), rest)
        start = tp.Start(f"{node.result}/before", tile, tp.neutral(total))
        self._carried[node.result] = self._make(start)

    def _takes_last(self, node: ir.Accumulate) -> bool:
        """Whether it is a running maximum's value in the last iteration."""
        return node.reduction is table.MAX and node.operand in self._carried

    def _accumulate(self, node: ir.Accumulate) -> None:
        """Take in the value of one iteration; what lies outside counts as neutral."""
        reduction = node.reduction
        if reduction is None:
            self._store_joined(node)
            return
        fused = self._wiring.fused_into(node)
        for product in fused:
            self._note(product)
        self._note(node)
        target = self._values[node.result] = self._carried[node.result]
        axes = self._tiles[target].axes
        if node.rescale is not None:
            scale = self._turned(self._scales[node.rescale], axes)
            self._add(tp.Rescale(target, scale))
        for product in fused:
            self._product(product, target)
        if fused or self._takes_last(node):
            return
        fill = tp.neutral(reduction)
        operand = self._in_f32(self._in_registers(node.operand))
        operand = self._masked(operand, [d for d in axes if d.loop], fill)
        self._add(tp.Update(target, self._turned(operand, axes), reduction))

    def _store_joined(self, node: ir.Accumulate) -> None:
        """A value joined over the loop is stored piece by piece, in the loop."""
        for user in self._wiring.users[node.result]:
            if not isinstance(user, ir.Store):
                raise UnsupportedError(
                    f"{node.result} is joined over the loop and then used by "
                    f"{user.result}: only a store of it can be emitted; compute it "
                    f"in the loop, or in a kernel of its own"
                )
            self._note(node)
            self._note(user)
            pieces = {d.name: d for d in self._types[node.operand].dims}
            axes = tuple(tuple(pieces.get(d.name, d) for d in a) for a in user.axes)
            self._store(user, axes, node.operand)

    def _pass_through(self, node: ir.Accumulate) -> None:
        """Without a loop there is one iteration: its value is the result."""
        tile = self._in_registers(node.operand)
        joined = node.reduction is None
        self._values[node.result] = tile if joined else self._in_f32(tile)

    def _running_max(self, node: ir.RunningMax) -> None:
        axes = self._layout.orders[node.result]
        operand = self._in_f32(self._in_registers(node.operand))
        looped = [d for d in axes if d.loop]
        operand = self._turned(self._masked(operand, looped, -INFINITY), axes)
        tile, state = tp.Tile(f32, axes), self._carried[node.result]
        scale = f"{node.result}/scale" if self._serves_rescaling(node) else None
        largest = tp.Largest(node.result, tile, operand, state, scale)
        self._values[node.result] = self._make(largest)
        if scale is not None:
            self._scales[node.result], self._tiles[scale] = scale, tile

    def _serves_rescaling(self, node: ir.RunningMax) -> bool:
        return any(
            isinstance(n, ir.Accumulate) and n.rescale == node.result
            for n in self._block.nodes
        )
