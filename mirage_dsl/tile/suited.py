"""Rewrites of a block graph that suit its tiles and change no result.

What registers cannot do is done in another way (joined values are split into their
parts, or recomputed whole), and so is what they do slowly: sums of interleaved numbers
are sums of their parts, a vector gets a row for the matrix unit, and sums within a tile
wait until the loop is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import WARP
from mirage_dsl.core.types import (
    Axis,
    Dim,
    MemorySpace,
    TensorType,
    f32,
)
from mirage_dsl.ir.canonical import free_name
from mirage_dsl.ir.graph import (
    JOINED,
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    Load,
    RunningMax,
    Store,
    ValueNode,
    stages_of,
)
from mirage_dsl.ir.infer import block_types
from mirage_dsl.ir.maps import piece_extent
from mirage_dsl.ir.walk import makers, map_nodes, post_order, users, with_operands
from mirage_dsl.ops.definition import Kind, Term
from mirage_dsl.ops.table import SLICE
from mirage_dsl.tile.sizes import (
    SMALLEST_DOT,
    Number,
    Order,
    Outer,
    Pieces,
    Sizes,
    fold,
)

Around = TypeVar("Around", bound=Outer)


@dataclass(frozen=True)
class Suited(Generic[Around]):
    """A block as tile programs have it.

    Attributes:
        block: The block.
        around: Its kernel graph.
        types: Of the block's values.
        pieces: Its pieces, at the sizes that it was made suited for.
    """

    block: BlockGraph
    around: Around
    types: Mapping[str, TensorType]
    pieces: Pieces


def suited(block: BlockGraph, around: Around) -> Suited[Around]:
    """The block without what registers cannot do, or do slowly.

    Raises:
        UnsupportedError: A joined value is used in a way that needs it whole, or a
            piece has no known size.
    """
    given = eager(block, around)
    sums = deferrable(given.block)
    taken = {v: s for v, s in sums.items() if is_worth_a_tile(s, given, given.pieces)}
    return defer(given, taken)


def eager(block: BlockGraph, around: Around) -> Suited[Around]:
    """The block without what registers cannot do; each sum is done where it stands.

    Raises:
        UnsupportedError: As `suited`.
    """
    types = block_types(block, around.types)
    split = split_concats(block, types)
    types = _types_after(split, block, around, types)
    apart, around = split_lanes(split, around, types)
    types = _types_after(apart, split, around, types)
    rowed, around = with_rows(apart, around, types)
    types = _types_after(rowed, apart, around, types)
    widened = widen_joins(rowed, types)
    types = _types_after(widened, rowed, around, types)
    pieces = Pieces(widened, types, around.extents, around.most)
    return Suited(widened, around, types, pieces)


def _types_after(
    block: BlockGraph,
    before: BlockGraph,
    around: Outer,
    types: Mapping[str, TensorType],
) -> Mapping[str, TensorType]:
    """Types of a rewritten block's values; those before it, if it was left alone."""
    return types if block is before else block_types(block, around.types)


# -- Concatenations --------------------------------------------------------------------


Parts = tuple[str, ...]


def split_concats(block: BlockGraph, types: Mapping[str, TensorType]) -> BlockGraph:
    """The block without concatenations.

    Registers cannot be joined; but what is computed from a joined value is computed
    from its parts:

        j = concat a, b dims(k, r) to(j)      p1 = matmul a, c over(k)
        q = concat c, d dims(k, r) to(j)      p2 = matmul b, d over(r)
        p = matmul j, q over(j)          →    p  = add p1, p2

    Raises:
        UnsupportedError: A joined value is used in a way that needs it whole.
    """
    if not any(n.op.kind is Kind.CONCAT for n in block.applies):
        return block
    return replace(block, nodes=tuple(_Splitter(types).split(block.nodes)))


class _Splitter:
    """Computes with parts of values what was computed with the values.

    Subclasses say what else than a concatenation has parts.
    """

    def __init__(self, types: Mapping[str, TensorType]) -> None:
        self._types = types
        self._parts: dict[str, Parts] = {}
        self._dims: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._nodes: list[BlockNode] = []

    def split(self, nodes: tuple[BlockNode, ...]) -> list[BlockNode]:
        for node in nodes:
            match node:
                case Apply() if node.op.kind is Kind.CONCAT:
                    joined, to = node.attr("dims"), str(node.attr("to"))
                    assert isinstance(joined, tuple)
                    self._parts[node.result] = node.values
                    self._dims[node.result] = (to, joined)
                case Apply() if any(v in self._parts for v in node.values):
                    self._apply(node)
                case Accumulate() if node.operand in self._parts:
                    self._accumulate(node)
                case Load():
                    self._load(node)
                case Apply():
                    self._nodes.append(node)
                case _:
                    self._refuse_parts(node.operand, node)
                    self._nodes.append(node)
        return self._nodes

    def _load(self, node: Load) -> None:
        self._nodes.append(node)

    def _refuse_parts(self, value: str, node: BlockNode) -> None:
        if value in self._parts:
            raise UnsupportedError(
                f"{node.result} needs {value} whole, but Triton cannot join values in "
                f"registers; store its parts, and concatenate at the kernel level"
            )

    def _apply(self, node: Apply) -> None:
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
            attrs = tuple(
                (k, tuple(dims[index] if d == to else d for d in v))
                if k == "over" and isinstance(v, tuple)
                else (k, v)
                for k, v in node.attrs
            )
            self._nodes.append(
                replace(node, result=name, operands=operands, attrs=attrs)
            )
        if over:
            self._combine(node, names)
        else:
            self._parts[node.result], self._dims[node.result] = names, (to, dims)

    def _check(self, node: Apply, to: str, dims: tuple[str, ...]) -> None:
        """All joined operands are joined alike, no other one has a dim of theirs."""
        for value in node.values:
            if value in self._parts:
                if self._dims[value] != (to, dims):
                    self._refuse_parts(value, node)
            elif {to, *dims} & set(self._types[value].names):
                self._refuse_parts(next(v for v in node.values if v != value), node)

    def _combine(self, node: Apply, names: Parts) -> None:
        """Join the results of a reduction or contraction over the joined dim."""
        op = node.op.join
        assert op is not None
        total, *rest = names
        for index, name in enumerate(rest):
            last = index == len(rest) - 1
            result = node.result if last else f"{node.result}.upto{index + 1}"
            self._nodes.append(Apply(result, op, (total, name), location=node.location))
            total = result

    def _accumulate(self, node: Accumulate) -> None:
        if node.kind == JOINED:
            self._refuse_parts(node.operand, node)
        names: list[str] = []
        for index, part in enumerate(self._parts[node.operand]):
            names.append(f"{node.result}.{index}")
            self._nodes.append(replace(node, result=names[-1], operand=part))
        self._parts[node.result] = tuple(names)
        self._dims[node.result] = self._dims[node.operand]


# -- Lanes of short dims ---------------------------------------------------------------

MOST_APART = 4
"""Elements of a dim up to which what is summed over it is computed for each apart."""


def split_lanes(
    block: BlockGraph, around: Around, types: Mapping[str, TensorType]
) -> tuple[BlockGraph, Around]:
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

    Args:
        block: The block.
        around: Its kernel graph.
        types: Of the block's values.
    """
    for dim in _interleaved(block, around, types):
        extent = around.extents.get(dim.name)
        if extent is None or not 1 < extent <= MOST_APART:
            continue
        parts = _parts_of(dim, extent, around)
        try:
            nodes = tuple(_Lanes(types, dim, parts).split(block.nodes))
        except UnsupportedError:
            continue
        block = replace(block, nodes=nodes)
        extents = {**around.extents, **dict.fromkeys(parts, 1)}
        around = replace(around, extents=extents)
        types = block_types(block, around.types)
    return block, around


def _interleaved(
    block: BlockGraph, around: Outer, types: Mapping[str, TensorType]
) -> list[Dim]:
    """The dims along which tiles without them meet positions along them alone."""
    positions = {
        types[n.result].dims
        for n in block.loads
        if around.types[n.source].space is MemorySpace.NOWHERE
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


def _parts_of(dim: Dim, extent: int, around: Outer) -> tuple[str, ...]:
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

    def __init__(
        self, types: Mapping[str, TensorType], dim: Dim, parts: tuple[str, ...]
    ) -> None:
        super().__init__(types)
        self._dim = dim
        self._lanes = parts

    def _load(self, node: Load) -> None:
        self._nodes.append(node)
        if self._dim not in self._types[node.result].dims:
            return
        names: list[str] = []
        for at, part in enumerate(self._lanes):
            names.append(f"{node.result}.{at}")
            place = (("dim", self._dim.name), ("start", at), ("stop", at + 1))
            attrs = (*place, ("to", part))
            self._nodes.append(Apply(names[-1], SLICE, (node.result,), attrs))
        self._parts[node.result] = tuple(names)
        self._dims[node.result] = self._dim.name, self._lanes


# -- Rows for vectors ------------------------------------------------------------------


def with_rows(
    block: BlockGraph, around: Around, types: Mapping[str, TensorType]
) -> tuple[BlockGraph, Around]:
    """The block with a dim of one row where a product needs it.

    The matrix unit takes tiles only, and it is faster than multiplying and summing in
    registers even if it works for one row of sixteen.  So a vector gets a dim of extent
    1, which is widened like any other short dim.

    Args:
        block: The block.
        around: Its kernel graph.
        types: Of the block's values.
    """
    sources: set[str] = set()
    if not any(() in around.types[s].axes for s in block.sources):
        return block, around
    for vector in vector_products(block, types, around):
        sides = (vector.over, vector.columns)
        if all(_lanes(side, block, around) >= SMALLEST_DOT for side in sides):
            sources |= vector.tensors
    if not sources:
        return block, around
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
            if isinstance(n, Load) and n.source in sources
            else n
        ),
    )
    extents = {**around.extents, row.name: 1}
    changed = replace(around, types=outer, extents=extents)
    return widened, changed


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
    over: Order
    columns: Order


def vector_products(
    block: BlockGraph, types: Mapping[str, TensorType], around: Outer
) -> list[VectorProduct]:
    """The products of vectors that can be told to be rows, whatever the tiles are.

    A vector can where its tensor has an axis of extent 1, and no view hides it.
    """
    made = makers(block)
    found: list[VectorProduct] = []
    for node in block.applies:
        if node.op.kind is Kind.CONTRACTION:
            vector = _vector(node, types, made, around)
            if vector is not None and vector.tensors:
                found.append(vector)
    return found


def _vector(
    node: Apply,
    types: Mapping[str, TensorType],
    made: Mapping[str, ValueNode],
    around: Outer,
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


def _lanes(dims: Order, block: BlockGraph, around: Outer) -> int:
    """Elements of a tile of these dims; extents of which nothing is known are one."""
    known = {n: e or around.most.get(n, 1) for n, e in around.extents.items()}
    lanes = 1
    for dim in dims:
        lanes *= piece_extent(dim, block, known)
    return lanes


def _sources(value: str, made: Mapping[str, ValueNode]) -> set[str]:
    """The tensors from which a value is computed."""
    needed = post_order(made, [value])
    return {n.source for n in needed if isinstance(n, Load)}


# -- What is joined over the loop ------------------------------------------------------


def widen_joins(block: BlockGraph, types: Mapping[str, TensorType]) -> BlockGraph:
    """Recompute on whole dims what is joined over the loop and then computed with.

        x = load a[m, k/loop]          x_all = load a[m, k]
        y = exp x                 →    j = exp x_all
        j = accumulate y concat

    Registers cannot be filled piece by piece.  The pieces were read a moment ago, so
    the second reading comes out of the cache.  A joined value that is only stored
    stays: it is stored piece by piece.
    """
    read = users(block.nodes)
    joined = [
        n
        for n in block.nodes
        if isinstance(n, Accumulate)
        and n.kind == JOINED
        and not all(isinstance(u, Store) for u in read[n.result])
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
    return block


class _Widened:
    """Copies of the nodes that compute a value, with the looped dim whole."""

    def __init__(self, block: BlockGraph, types: Mapping[str, TensorType]) -> None:
        self._makers = makers(block)
        self._stages = stages_of(block)
        self.types = dict(types)
        self._done: dict[str, str | None] = {}
        self.nodes: list[BlockNode] = []

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
            case Load():
                axes = tuple(tuple(_unlooped(d) for d in axis) for axis in node.axes)
                self.nodes.append(replace(node, result=name, axes=axes))
            case Apply():
                copies = {v: self.copy(v) for v in node.values}
                found = {v: c for v, c in copies.items() if c is not None}
                if len(found) < len(copies):
                    return None
                copied = with_operands(node, found)
                assert isinstance(copied, Apply)
                self.nodes.append(replace(copied, result=name))
            case Accumulate() | RunningMax():
                return None
        self.types[name] = self.types[value]
        return name


def _unlooped(dim: Dim) -> Dim:
    return replace(dim, loop=False)


# -- Sums over the loop ----------------------------------------------------------------

MOST_LANES = 32
"""Elements of a tile per thread up to which it is worth keeping a tile of sums."""


def deferrable(block: BlockGraph) -> dict[str, Apply]:
    """Sums within tiles that can wait until the loop is over, by their accumulators."""
    if not any(
        isinstance(n, Apply) and n.op.kind is Kind.REDUCTION for n in block.nodes
    ):
        return {}
    read = users(block.nodes)
    found: dict[str, Apply] = {}
    for node in block.nodes:
        if isinstance(node, Accumulate) and node.adds and not node.rescale:
            summed = _reduction(block, node.operand)
            if summed is not None and read[summed.result] == [node]:
                found[node.result] = summed
    return found


def is_worth_a_tile(summed: Apply, given: Suited[Any], sizes: Sizes) -> Number:
    """Whether there are registers for a tile of what is summed over the loop."""
    lanes: Number = 1
    for dim in given.types[summed.values[0]].dims:
        lanes = fold("mul", lanes, sizes.lanes(dim))
    return fold("ge", fold("mul", MOST_LANES * WARP, sizes.warps), lanes)


def defer(given: Suited[Around], sums: Mapping[str, Apply]) -> Suited[Around]:
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

    def deferred(node: BlockNode) -> Iterable[BlockNode]:
        if isinstance(node, Accumulate) and node.result in sums:
            summed = sums[node.result]
            tile = free_name(f"{node.result}_tile", given.types)
            operand = given.types[summed.values[0]]
            whole = operand.dtype.is_integer
            known[tile] = operand if whole else operand.with_dtype(f32)
            yield replace(node, operand=summed.values[0], result=tile)
            yield replace(summed, operands=(tile,), result=node.result)
        elif isinstance(node, Store) or node.result not in gone:
            yield node

    block, around = map_nodes(given.block, deferred), given.around
    types = {n.result: known[n.result] for n in block.made}
    pieces = Pieces(block, types, around.extents, around.most)
    return Suited(block, around, types, pieces)


def _reduction(block: BlockGraph, value: str) -> Apply | None:
    """The sum that computes `value` in the loop's body."""
    node = makers(block)[value]
    body = stages_of(block)[value] == "body"
    if not isinstance(node, Apply) or not body:
        return None
    is_sum = node.op.kind is Kind.REDUCTION and node.op.term is Term.SUM
    return node if is_sum else None
