"""How tensors between kernels lie in memory.

A kernel may store its result with the axes in any order.  The best order is that in
which both the kernel that writes and those that read find long runs of elements that
lie together: a kernel that writes one part of a split dim `k#` writes whole rows if the
parts come first, and a kernel that reads columns reads them at full speed if its dim
comes last.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from mirage_dsl.core.types import Axis, AxisNames, Dim, TensorType, Types
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.analysis.launches import FusedCall, calls
from mirage_dsl.ir.infer import operand_axes
from mirage_dsl.ir.maps import (
    Extents,
    grid_parts,
    iterations,
    known_extents,
    partial_base,
)
from mirage_dsl.ir.walk import makers, read_by, users
from mirage_dsl.ops.definition import Kind

# -- Concatenations that cost nothing --------------------------------------------------
# A kernel-level concatenation copies.  Where a block graph makes an operand, it
# can as well store it into its part of the whole, which is then allocated before
# the kernel starts.  Only operands that are made otherwise are copied.  A part may
# start anywhere, for kernels are compiled for where it lies; one of a symbolic extent
# starts where it is aligned, for they are compiled once for all extents.

ALIGNMENT = 16
"""Bytes at whose multiples such parts start."""


@dataclass(frozen=True)
class Place:
    """Where a value lies.

    Attributes:
        whole: The concatenation that it is a part of.
        axis: Of the whole, along which it is a part.
        before: Dims of the parts that come before.
        dim: Its own that is joined.
        axes: Of the whole, in the value's order.
        steps: Of each axis of the value, what its stride in elements is a multiple of:
            all of it but symbolic extents.
    """

    whole: str
    axis: int
    before: tuple[str, ...]
    dim: str
    axes: tuple[int, ...]
    steps: tuple[int, ...]


def places(graph: ir.KernelGraph, types: Types, extents: Extents) -> dict[str, Place]:
    """The places of all values that are made inside of a concatenation."""
    sizes = known_extents(extents)
    made = {result for block in graph.blocks for result in block.results}
    taken = {r.value for r in graph.returns}
    candidates: dict[str, tuple[ir.Apply, int]] = {}
    for node in graph.nodes:
        if isinstance(node, ir.BlockGraph) or node.op.kind is not Kind.CONCAT:
            continue
        for at, value in enumerate(node.values):
            if value in taken or value not in made:
                continue
            if _is_simple(types[value]) and _is_simple(types[node.result]):
                candidates[value] = (node, at)
                taken.add(value)
                made.add(node.result)
    found: dict[str, Place] = {}
    # A whole that is itself a part comes before its own parts.
    for value, (node, at) in reversed(candidates.items()):
        place = _place(value, node, at, types, sizes, found.get(node.result))
        if place is not None:
            found[value] = place
    return found


def built(places: Mapping[str, Place]) -> frozenset[str]:
    """The concatenations that kernels store into."""
    return frozenset(p.whole for p in places.values())


def copied_parts(node: ir.Apply, places: Mapping[str, Place]) -> Iterator[int]:
    """The operands of a concatenation, by number, that no kernel stores there."""
    joined = node.dims("dims")
    for at, value in enumerate(node.values):
        place, before = places.get(value), joined[:at]
        if place is None or (place.whole, place.before) != (node.result, before):
            yield at


def _is_simple(kind: TensorType) -> bool:
    """One dim for each axis, row-major."""
    return kind.layout is None and kind.is_flat


def _place(
    value: str,
    node: ir.Apply,
    at: int,
    types: Types,
    sizes: Mapping[str, int],
    outer: Place | None,
) -> Place | None:
    """The place of an operand.

    None if it has another format, repeats along an axis of the whole, where it has but
    one element to store, or is of symbolic extents and not aligned.
    """
    joined, to = node.dims("dims"), node.dim("to")
    whole, part = types[node.result], types[value]
    steps = outer.steps if outer else _steps(whole, sizes)
    before = [sizes.get(d) for d in joined[:at]]
    known = [e for e in before if e is not None]
    start = sum(known) if len(known) == len(before) else 1
    along = whole.names.index(to)
    offset = start * steps[along] * whole.dtype.itemsize
    repeats = len(part.names) < len(whole.names)
    odd = bool(offset % ALIGNMENT) and not sizes.keys() >= {*whole.names}
    if repeats or odd or part.dtype != whole.dtype:
        return None
    axes = tuple(whole.names.index(to if n == joined[at] else n) for n in part.names)
    return Place(
        node.result,
        along,
        joined[:at],
        joined[at],
        axes,
        tuple(steps[a] for a in axes),
    )


def _steps(kind: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    steps: list[int] = []
    step = 1
    for name in reversed(kind.names):
        steps.insert(0, step)
        step *= sizes.get(name, 1)
    return tuple(steps)


# -- Views that are never made ---------------------------------------------------------
# A kernel may load or store a value whose axes are axes of another tensor side by side,
# in the same memory:
#
#     x_flat = flatten x of(h, w) to(h_w)
#     y = block { load x_flat ... store y: f32[n, h_w] }
#     y_whole = unflatten y dim(h_w) gives(h, w)
#
# The kernel that reads `x_flat` can as well be given `x`, and the one that stores `y`
# be given `y_whole`.  Where the axes lie side by side in memory, the stride of the one
# that they become is that of the last of them.  Where they do not, as in a part of the
# columns of a matrix, positions along it are taken apart.

Groups = tuple[tuple[int, ...], ...]
"""The axes of a tensor that each axis of a flat value consists of."""


@dataclass(frozen=True)
class Flat:
    """Where a value lies that kernels load or store.

    Attributes:
        whole: The tensor in whose memory it lies.
        groups: The axes of the whole, for each of its own.
    """

    whole: str
    groups: Groups

    def joins(self, strides: Sequence[int], shape: Sequence[int]) -> bool:
        """Whether the axes of each group lie side by side in a tensor's memory."""
        return all(
            strides[outer] == strides[inner] * shape[inner]
            for group in self.groups
            for outer, inner in pairwise(group)
        )


@dataclass(frozen=True)
class FlatValues:
    """The flat values of a kernel graph.

    Attributes:
        within: Where each of them lies.
        unmade: Results of views between these and the tensors that they lie in.
    """

    within: Mapping[str, Flat]
    unmade: frozenset[str]

    def of(self, whole: str) -> tuple[str, ...]:
        """The values that lie in a tensor."""
        return tuple(v for v, flat in self.within.items() if flat.whole == whole)


def flat_values(
    graph: ir.KernelGraph, types: Types, parts: Container[str] = ()
) -> FlatValues:
    """What kernels load or store that is a flat view of another tensor, or has one.

    Args:
        graph: The kernel graph.
        types: Types of its values.
        parts: Values that lie in concatenations.
    """
    found = _FlatFinder(graph, types)
    within: dict[str, Flat] = {}
    unmade: set[str] = set()
    for value, flat, views in (*found.loaded(), *found.stored()):
        if value not in parts and flat.whole not in parts:
            within[value] = flat
            unmade.update(views)
    return FlatValues(within, frozenset(unmade))


class _FlatFinder:
    """Looks for flat values: each with where it lies, and the views in between."""

    def __init__(self, graph: ir.KernelGraph, types: Types) -> None:
        self._graph = graph
        self._types = types
        self._readers = users(graph.nodes)
        self._made = makers(graph)
        self._returned = [r.value for r in graph.returns]
        self._tensors = {i.name for i in graph.inputs}
        self._tensors |= {n.result for n in graph.applies if n.op.kind is not Kind.VIEW}

    def loaded(self) -> Iterator[tuple[str, Flat, list[str]]]:
        """Flat forms of tensors that PyTorch made, which only kernels read."""
        for node in self._graph.applies:
            readers = self._readers[node.result]
            if not readers or node.result in self._returned:
                continue
            if not all(isinstance(n, ir.BlockGraph) for n in readers):
                continue
            views = list(self._views(node.result, flattens=True))
            whole = views[0].values[0] if views else ""
            if whole in self._tensors and not self._is_picked(node.result):
                flat = self._flat(whole, node.result, views)
                if flat is not None:
                    alone = [v.result for v in views if self._is_alone(v, views)]
                    yield node.result, flat, alone

    def stored(self) -> Iterator[tuple[str, Flat, list[str]]]:
        """What kernels store of which others read, or the caller gets, a whole form."""
        stored = {result for block in self._graph.blocks for result in block.results}
        for node in self._graph.applies:
            whole = node.result
            views = list(self._views(whole, flattens=False))
            inner = any(_factored(n, flattens=False) for n in self._readers[whole])
            if not views or inner or self._returned.count(whole) > 1:
                continue
            value = views[0].values[0]
            readers = (n for n in self._readers[value] if n not in views)
            alone = all(self._is_alone(v, views) for v in views[:-1])
            if value not in stored or value in self._returned or not alone:
                continue
            if all(isinstance(n, ir.BlockGraph) for n in readers):
                flat = self._flat(whole, value, reversed(views))
                if flat is not None:
                    yield value, flat, [v.result for v in views]

    def _views(self, value: str, *, flattens: bool) -> Iterator[ir.Apply]:
        """The views of one sort that a value is made by, the last one last."""
        node = self._made.get(value)
        if node is not None and _factored(node, flattens=flattens):
            yield from self._views(node.values[0], flattens=flattens)
            yield node

    def _is_alone(self, view: ir.Apply, views: Sequence[ir.Apply]) -> bool:
        """Whether nothing reads a view but kernels, and others that are not made."""
        readers = self._readers[view.result]
        return view.result not in self._returned and all(
            isinstance(n, ir.BlockGraph) or n in views for n in readers
        )

    def _is_picked(self, value: str) -> bool:
        """Whether a kernel reads elements at positions that are data."""
        for block in self._graph.blocks:
            tiles = {load.result for load in block.loads if load.source == value}
            for node in block.applies:
                if node.op.kind is Kind.GATHER and tiles & set(node.values):
                    return True
        return False

    def _flat(self, whole: str, value: str, views: Iterable[ir.Apply]) -> Flat | None:
        """Where a value lies, by the views from the whole on; None if it is no part."""
        outer, inner = self._types[whole], self._types[value]
        parts: dict[str, tuple[str, ...]] = {name: (name,) for name in outer.names}
        for view in views:
            factored = view.factored
            assert factored is not None
            joined = (parts.pop(factor) for factor in factored.factors)
            parts[factored.whole] = tuple(d for dims in joined for d in dims)
        if any(len(axis) != 1 for kind in (outer, inner) for axis in kind.axes):
            return None
        groups = [[outer.names.index(d) for d in parts[n]] for n in inner.names]
        if [at for axis in inner.order for at in groups[axis]] != [*outer.order]:
            return None
        return Flat(whole, tuple(map(tuple, groups)))


def _factored(node: ir.Apply | ir.BlockGraph, *, flattens: bool) -> bool:
    """Whether a node is a view that makes one dim of several, or several of one."""
    found = node.factored if isinstance(node, ir.Apply) else None
    return found is not None and found.flattens == flattens


PAIR = 2
"""Elements of a dim along which blocks take bytes in pairs, each two as one word."""


def is_multiplied(
    value: str, dim: Dim, block: ir.BlockGraph, types: Types, *, summed: bool = False
) -> bool:
    """Whether a value becomes an operand of a product that keeps a dim of it.

    Args:
        value: The value.
        dim: One of its dims.
        block: The block that makes both.
        types: Of the block's values.
        summed: Ask for a product that sums over the dim.
    """
    made = {value}
    for node in block.applies:
        if made.isdisjoint(node.values):
            continue
        kept = dim in types[node.result].dims
        if node.op.kind is Kind.CONTRACTION and kept != summed:
            return True
        if kept:
            made.add(node.result)
    return False


def innermost(graph: ir.KernelGraph, value: str, dim: str) -> tuple[str, int] | None:
    """The input that a value lies in, and its axis whose last part a dim is.

    None where other views than those that take dims apart lead there.

    Args:
        graph: The kernel graph.
        value: An input, or a view.
        dim: One of its dims.
    """
    made = makers(graph)
    while isinstance(view := made.get(value), ir.Apply):
        found = view.factored
        if found is None or found.flattens or dim in found.factors[:-1]:
            return None
        dim = found.whole if dim in found.factors else dim
        (value,) = view.values
    for item in graph.inputs:
        for at, axis in enumerate(item.type.axes):
            if item.name == value and dim in [d.name for d in axis[-1:]]:
                return value, at
    return None


# -- Reductions of one element ---------------------------------------------------------


def single_elements(graph: ir.KernelGraph, extents: Extents) -> frozenset[str]:
    """Results of reductions over dims of one element, which are views: `x[3]` is one.

    What the caller gets is not among them, nor what it sees a view of: it may change
    that, and not what it was made of.  Nor is what blocks read, who take tensors to be
    aligned, as a row of another one is not.
    """
    seen = read_by(graph.blocks) | {r.value for r in graph.returns}
    found: set[str] = set()
    for node in reversed(graph.applies):
        if node.is_view and node.result in seen:
            seen.update(node.values)
        op = node.op
        keeps = op.kind is Kind.REDUCTION and op.join is not None and not op.shift_of
        if keeps and all(extents.get(d) == 1 for d in node.over):
            found.add(node.result)
    return frozenset(found - seen)


# -- What library kernels with channels last read and make ----------------------------

MemoryOrder = tuple[str, ...]
"""Dims from the slowest to the fastest in memory."""


def with_channels_last(graph: ir.KernelGraph, types: Types) -> dict[str, TensorType]:
    """The types with the layouts that kernels with channels last ask for.

    So lies what such a kernel makes, what a block stores for one, and views of either,
    but for what is returned: that is row-major, and so is what such a view shows.
    """
    found = dict(types)
    kernels = [n for n in graph.applies if n.op.channels_last_of is not None]
    if not kernels:
        return found
    shown = {n.result: n for n in graph.applies if n.factored is not None}
    views = {n.result: n for n in graph.applies if n.is_view}
    returned = {_source(r.value, views) for r in graph.returns}
    stored = {s.result for b in graph.blocks for s in b.stores}
    wanted: dict[str, MemoryOrder] = {}
    for node in kernels:
        wanted[node.result] = _channels_last(node.axes("gives"))
        for value, axes in zip(node.values, operand_axes(node), strict=True):
            source, dims = _behind_views(value, _channels_last(axes.axes), shown)
            if dims and source in stored:
                wanted.setdefault(source, dims)
    for value, dims in wanted.items():
        if value not in returned:
            found[value] = _lying(found[value], dims)
    for name, node in shown.items():
        source, view = found[node.values[0]], node.factored
        if source.layout is not None and view is not None:
            dims = _refactored(dims_in_memory(source), view)
            found[name] = _lying(found[name], dims)
    return found


def lies_with_channels_last(kind: TensorType, axes: AxisNames) -> bool:
    """Whether a tensor lies as a kernel with channels last reads it."""
    dims = _channels_last(axes.axes)
    return dims_in_memory(kind) == tuple(d for d in dims if d in kind.names)


def _channels_last(axes: Sequence[tuple[str, ...]]) -> MemoryOrder:
    first, channels, *inner = axes
    return tuple(name for axis in (first, *inner, channels) for name in axis)


def dims_in_memory(kind: TensorType) -> MemoryOrder:
    """The dims of a tensor in the order in which they lie in memory."""
    return tuple(d.name for axis in kind.order for d in kind.axes[axis])


def _lying(kind: TensorType, dims: MemoryOrder) -> TensorType:
    """A type with its dims in this order in memory, as far as its axes can have it."""
    if any(len(axis) > 1 for axis in kind.axes) or {*dims} != {*kind.names}:
        return kind
    axes = range(len(kind.axes))
    order = sorted(axes, key=lambda a: [dims.index(d.name) for d in kind.axes[a]])
    return replace(kind, layout=None if order == list(axes) else tuple(order))


def _source(value: str, views: Mapping[str, ir.Apply]) -> str:
    """What a view, or a view of one, shows."""
    while value in views:
        value = views[value].values[0]
    return value


def _behind_views(
    value: str, dims: MemoryOrder, shown: Mapping[str, ir.Apply]
) -> tuple[str, MemoryOrder]:
    """What views show a part of under other dims, and its own; none where it cannot."""
    while value in shown and dims:
        view = shown[value].factored
        assert view is not None
        turned = replace(view, flattens=not view.flattens)
        value, dims = shown[value].values[0], _refactored(dims, turned)
    return value, dims


def _refactored(dims: MemoryOrder, view: ir.Factored) -> MemoryOrder:
    """Dims with one for several, or several for one; none where they lie apart."""
    old, new = (view.whole,), view.factors
    if view.flattens:
        old, new = new, old
    for at in range(len(dims)):
        if dims[at : at + len(old)] == old:
            return (*dims[:at], *new, *dims[at + len(old) :])
    return ()


# -- What library kernels make, and what is stored for them ----------------------------
# The axes of a value are in the order in which its operands name them; PyTorch makes a
# product of batches with the batches first, and element by element what lies as its
# operand does.  A copy into the order of the axes would only be copied again by the
# next one, and takes longer than a block that reads any order.  Nor does a product take
# batches that lie behind rows without a copy, so a block stores them first for it.

LIBRARY_ROW = 64
"""Columns for which a product for each batch is no worse than one and a copy: [A]."""

SOFTMAXES = frozenset({"softmax", "log_softmax", "_safe_softmax"})
_ROWS = frozenset({*SOFTMAXES, "layer_norm", "rms_norm"})
"""Calls that compute rows, and make them as what they are computed from lies."""

_BY_NAME = frozenset({Kind.ELEMENTWISE, Kind.CONTRACTION, Kind.CONCAT})
_ANY_STRIDES = frozenset({*_BY_NAME, Kind.REDUCTION, Kind.LIBRARY})
"""Kinds of operators that make a result in any order of its axes, and that read
operands in any."""


def middle(
    a: Sequence[str], b: Sequence[str], result: Container[str]
) -> tuple[MemoryOrder, MemoryOrder] | None:
    """What lies around the dim that a product sums over, in the middle of an operand.

    `x[n, c, h, w]` by `weight[k, c]` is a product of matrices for each n, with the
    columns h and w, and lies as [n, k, h, w] without a copy.

    Args:
        a: Dims of the operand, from the slowest to the fastest.
        b: Dims of the matrix that it is multiplied by.
        result: Dims of the product.

    Returns:
        The dims before and after it; None for any other product.
    """
    summed = [d for d in a if d not in result]
    shared = [d for d in b if d in a]
    if len(summed) != 1 or shared != summed or len(b) != 2:
        return None
    at = a.index(summed[0])
    before, after = tuple(a[:at]), tuple(a[at + 1 :])
    return (before, after) if before and after else None


def as_libraries_make(
    graph: ir.KernelGraph, types: Types, extents: Extents
) -> dict[str, MemoryOrder]:
    """How values lie that library kernels make, or batches of products that are stored.

    Those that are row-major are left out.  What is returned lies as the returned type
    says, or, where nothing has to be copied for it, with its own axes.

    Args:
        graph: The kernel graph.
        types: Types of its values, channels last where library kernels want them there.
        extents: Of its dims.
    """
    found: dict[str, MemoryOrder] = {}
    if not any(n.op.kind in _BY_NAME or _is_call(n) for n in graph.applies):
        return found
    own = _Unseen(graph, types)

    def lies(value: str) -> MemoryOrder:
        return found.get(value, types[value].names)

    for node in graph.nodes:
        if isinstance(node, ir.BlockGraph):
            for store in node.stores:
                order = own.order_stored(store.result, map(lies, node.sources))
                if order != types[store.result].names:
                    found[store.result] = order
            continue
        source = next(iter(node.values), "")
        if source in found and _shows_each_axis(node, types):
            axes = dict(zip(types[source].names, types[node.result].names, strict=True))
            found[node.result] = tuple(axes[d] for d in found[source])
        if not own.may_lie_otherwise(node):
            continue
        order = _made(node, own.call_of(node), types, lies, extents)
        if order != types[node.result].names:
            found[node.result] = own.returned.get(node.result, order)
    return {v: dims for v, dims in found.items() if dims != types[v].names}


Steps = Mapping[str, int]
"""How many elements of memory are between neighbours along each dim of a value."""
Copied = Mapping[str, tuple[str, ...]]
"""The operands that PyTorch copies for a product, by its result."""


def copied_for_products(
    graph: ir.KernelGraph, types: Types, extents: Extents
) -> Copied:
    """What PyTorch copies before it multiplies, by the product's result.

    It multiplies batches of matrices.  The batches of an operand have to be one axis in
    memory, and so its rows and what is summed, one of which has its elements side by
    side: heads that are cut out of a projection have no such axis of batches.

    Args:
        graph: The kernel graph.
        types: Types of its values, with their layouts.
        extents: Of its dims; products of dims of symbolic extents are left out.
    """
    products = [n for n in graph.applies if n.op.kind is Kind.CONTRACTION]
    if not products:
        return {}
    sizes, single = known_extents(extents), single_elements(graph, extents)
    steps = {i.name: _row_major(types[i.name].names, sizes) for i in graph.given}
    for node in graph.nodes:
        seen = None
        if isinstance(node, ir.Apply) and (node.is_view or node.result in single):
            seen = _steps_of_view(node, steps, types, sizes)
        made = node.results if isinstance(node, ir.BlockGraph) else (node.result,)
        for value in made:
            steps[value] = seen or _row_major(dims_in_memory(types[value]), sizes)
    copied = ((n.result, _copied_for(n, steps, types, sizes)) for n in products)
    return {result: values for result, values in copied if values}


def _row_major(names: MemoryOrder, sizes: Mapping[str, int]) -> Steps:
    inner = itertools.accumulate(
        (sizes.get(d, 1) for d in reversed(names)), initial=1, func=operator.mul
    )
    return dict(zip(reversed(names), inner, strict=False))


def _steps_of_view(
    node: ir.Apply,
    steps: Mapping[str, Steps],
    types: Types,
    sizes: Mapping[str, int],
) -> Steps | None:
    """Those of what a view shows; None where it copies."""
    source, names = node.values[0], types[node.result].names
    own, factored = steps[source], node.factored
    if factored is None:
        before = types[source].names
        if len(before) == len(names):
            return {d: own[b] for b, d in zip(before, names, strict=True)}
        return {d: own.get(d, 0) for d in names}
    if not factored.flattens:
        inner = _row_major(factored.factors, sizes)
        step = own[factored.whole]
        return {d: step * inner[d] if d in inner else own[d] for d in names}
    if not _is_one_axis(factored.factors, own, sizes):
        return None
    last = own[factored.factors[-1]]
    return {d: last if d == factored.whole else own[d] for d in names}


def _copied_for(
    node: ir.Apply,
    steps: Mapping[str, Steps],
    types: Types,
    sizes: Mapping[str, int],
) -> tuple[str, ...]:
    """The operands of a product that are copied."""
    result = dims_in_memory(types[node.result])
    a, b = (dims_in_memory(types[v]) for v in node.values)
    if not sizes.keys() >= {*a, *b} or middle(a, b, result) or middle(b, a, result):
        return ()
    batch = tuple(d for d in result if d in a and d in b)
    columns_first = next((d for d in result if d not in batch), "") in b
    summed = tuple(d for d in (b if columns_first else a) if d not in result)
    found: list[str] = []
    for value, own in zip(node.values, (a, b), strict=True):
        rows = tuple(d for d in result if d in own and d not in batch)
        axes = (batch, rows, summed)
        together = all(_is_one_axis(axis, steps[value], sizes) for axis in axes)
        ends = [_step(axis, steps[value], sizes) for axis in (rows, summed)]
        if not (together and 1 in ends):
            found.append(value)
    return tuple(dict.fromkeys(found))


def _is_one_axis(dims: Iterable[str], steps: Steps, sizes: Mapping[str, int]) -> bool:
    """Whether dims, of which the last is the fastest, are known to lie as one."""
    long = [d for d in dims if sizes.get(d) != 1]
    return all(
        b in sizes and steps[a] == steps[b] * sizes[b] for a, b in pairwise(long)
    )


def _step(dims: Sequence[str], steps: Steps, sizes: Mapping[str, int]) -> int:
    """That of an axis of such dims; 1 for what has one element."""
    return next((steps[d] for d in reversed(dims) if sizes[d] != 1), 1)


def around_libraries(
    graph: ir.KernelGraph, types: Types, extents: Extents
) -> dict[str, TensorType]:
    """The types with the layouts that library kernels make, and want, without a copy.

    They depend on no sizes of blocks.
    """
    found = with_channels_last(graph, types)
    for value, dims in as_libraries_make(graph, found, extents).items():
        found[value] = _lying(found[value], dims)
    return found


class _Unseen:
    """Which values only kernels see that read tensors of any strides.

    Attributes:
        returned: The order that the caller wants, of what is returned.
    """

    def __init__(self, graph: ir.KernelGraph, types: Types) -> None:
        self.returned = {r.value: r.type.names for r in graph.returns}
        self._types = types
        self._readers = users(graph.nodes)
        self._graph = graph
        # What kernels store into their places of lies as they want it.
        stored = {result for block in graph.blocks for result in block.results}
        for node in graph.applies:
            if node.op.kind is Kind.CONCAT and not stored.isdisjoint(node.values):
                stored.add(node.result)
        self._stored = stored

    @cached_property
    def _calls(self) -> Mapping[str, FusedCall]:
        return calls(self._graph, self._types)

    @cached_property
    def _inner(self) -> frozenset[str]:
        return frozenset[str]().union(*(c.inner for c in self._calls.values()))

    def call_of(self, node: ir.Apply) -> FusedCall | None:
        """The call that makes a value."""
        return self._calls.get(node.result)

    def may_lie_otherwise(self, node: ir.Apply) -> bool:
        """Whether a kernel may make its result in any order."""
        free = node.op.kind in _BY_NAME and node.result not in self._stored
        if not (free and self._is_simple(node.result)):
            return False
        call = self.call_of(node)
        made = call is None or call.name in {*_ROWS, "linear", "batch_norm"}
        return made and node.result not in self._inner

    def order_stored(self, value: str, sources: Iterable[MemoryOrder]) -> MemoryOrder:
        """How a block stores a value: as the library kernel that reads it has its axes.

        That of a product has batches first, and these and the rest as in the first
        source that has all dims; without batches, what is summed is side by side, as
        the other factor has it.

        Args:
            value: What it stores.
            sources: How what it reads lies.
        """
        names = self._types[value].names
        readers = [n for n in self._readers[value] if isinstance(n, ir.Apply)]
        joined = any(n.op.kind is Kind.CONCAT for n in readers)
        product = next(filter(self._is_product_of_batches, readers), None)
        if joined or value in self.returned or not self._is_simple(value):
            return names
        if product is None:
            plain = next(filter(self._is_plain_product, readers), None)
            if plain is not None:
                return self._summed_together(value, plain)
            return next(_axes_read(value, readers), names)
        order = _of_widest(sources, names)
        a, b = (self._types[v].names for v in product.values)
        batch = [d for d in order if d in a and d in b and d not in product.over]
        rest = [d for d in order if d not in batch]
        last = rest[-1] in product.over
        # Rows side by side, and so what is summed.
        return (*batch, *sorted(rest, key=lambda d: (d in product.over) == last))

    def _summed_together(self, value: str, product: ir.Apply) -> MemoryOrder:
        """The dims of a factor with those side by side that are summed."""
        names = self._types[value].names
        (other,) = (v for v in product.values if v != value)
        over = tuple(d for d in self._types[other].names if d in product.over)
        at = names.index(over[0])
        if names[at : at + len(over)] == over:
            return names
        rest = tuple(d for d in names if d not in over)
        return (*rest, *over) if names[-1] in over else (*over, *rest)

    def _is_plain_product(self, node: ir.Apply) -> bool:
        """Whether it is a product of two matrices."""
        if not self._is_product(node):
            return False
        a, b = ({*self._types[v].names} for v in node.values)
        return a & b == {*node.over} and node.values[0] != node.values[1]

    def _is_product_of_batches(self, node: ir.Apply) -> bool:
        if not self._is_product(node):
            return False
        a, b = ({*self._types[v].names} for v in node.values)
        batch = (a & b).difference(node.over)
        return bool(batch) and a != batch != b

    def _is_product(self, node: ir.Apply) -> bool:
        """Whether it is a product, and no other function of PyTorch's has it."""
        apart = node.op.kind is Kind.CONTRACTION and node.result not in self._inner
        return apart and self.call_of(node) is None

    def _is_simple(self, value: str) -> bool:
        """Whether axes of one dim each may be in any order for all who read them."""
        simple = _is_simple(self._types[value])
        return simple and all(map(self._reads_any, self._readers[value]))

    def _reads_any(self, node: ir.Apply | ir.BlockGraph) -> bool:
        """Whether a node reads any strides; of a view, whether all do who see it."""
        if isinstance(node, ir.BlockGraph) or node.op.kind in _ANY_STRIDES:
            return True
        seen = _shows_each_axis(node, self._types) and node.result not in self.returned
        return seen and all(map(self._reads_any, self._readers[node.result]))


def _is_call(node: ir.Apply) -> bool:
    """Whether it is a library operator that has its axes in order."""
    return node.op.kind is Kind.LIBRARY and node.op.channels_last_of is None


def _axes_read(value: str, readers: Iterable[ir.Apply]) -> Iterator[MemoryOrder]:
    """The dims of a value as library operators have its axes, but for channels last.

    PyTorch copies most operands that lie otherwise.
    """
    for node in readers:
        if _is_call(node):
            yield operand_axes(node)[node.values.index(value)].names


def _shows_each_axis(node: ir.Apply, types: Types) -> bool:
    """Whether a node is a view, as a slice, with an axis for each of what it shows."""
    return (
        node.op.kind is Kind.VIEW
        and node.factored is None
        and len(types[node.result].names) == len(types[node.values[0]].names)
    )


Lies = Callable[[str], MemoryOrder]
"""How a value lies."""


def _made(
    node: ir.Apply, call: FusedCall | None, types: Types, lies: Lies, extents: Extents
) -> MemoryOrder:
    """How a library kernel makes its result, if it is to copy nothing."""
    names = types[node.result].names
    if call is not None and call.name == "linear":
        a, b = lies(call.value("a")), types[call.value("b")].names
        around = _wide_middle(a, b, names, extents)
        before, after = around or (tuple(d for d in a if d not in b), ())
        return (*before, *call.dims(call.value("c")), *after)
    if call is not None:
        order = _of_widest([lies(call.value("x"))], names)
        if call.name == "batch_norm":
            return channels_together(order, call.dims(call.value("mean")))
        kept = call.name in SOFTMAXES and len(call.over) == 1
        return order if kept else rows_last(order, call.over)
    if node.op.kind is Kind.CONTRACTION:
        first, second = map(lies, node.values)
        return _of_product(first, second, names, extents)
    orders = [lies(v) for v in node.values]
    if node.op.kind is Kind.CONCAT:
        joined, to = node.dims("dims"), node.dim("to")
        pairs = zip(orders, joined, strict=True)
        orders = [tuple(to if d == own else d for d in dims) for dims, own in pairs]
    return _of_widest(orders, names)


def _wide_middle(
    a: MemoryOrder, b: MemoryOrder, result: MemoryOrder, extents: Extents
) -> tuple[MemoryOrder, MemoryOrder] | None:
    """As `middle`, of columns that are worth a product of each batch."""
    found = middle(a, b, result)
    if found is None or prod(extents.get(d) or 0 for d in found[1]) < LIBRARY_ROW:
        return None
    return found


def channels_together(dims: MemoryOrder, channels: MemoryOrder) -> MemoryOrder:
    """Dims with those of channels side by side, where the first of them is."""
    at = min(dims.index(d) for d in channels)
    after = (d for d in dims[at:] if d not in channels)
    return (*dims[:at], *channels, *after)


def rows_last(dims: MemoryOrder, over: Sequence[str]) -> MemoryOrder:
    """Dims with those of a row behind all others, where PyTorch's norms want them."""
    return (*(d for d in dims if d not in over), *over)


def _of_product(
    first: MemoryOrder, second: MemoryOrder, result: MemoryOrder, extents: Extents
) -> MemoryOrder:
    """Batches first, then rows and columns, as they lie in the operands."""
    for a, b in ((first, second), (second, first)):
        around = _wide_middle(a, b, result, extents)
        if around is not None:
            before, after = around
            return (*before, *(d for d in b if d in result), *after)
    batch = [d for d in first if d in second and d in result]
    own = [d for d in (*first, *second) if d in result and d not in batch]
    return (*batch, *own)


def _of_widest(orders: Iterable[MemoryOrder], names: MemoryOrder) -> MemoryOrder:
    """As the first operand that has all dims, if there is one."""
    return next((o for o in orders if {*o} == {*names}), names)


# -- Orders of axes in memory ----------------------------------------------------------

TOGETHER = 64
"""Bytes that lie together in memory for full speed."""

BETTER = 1.02
"""An order must be so much better to take the place of the usual one."""

MOST_AXES = 5

Order = tuple[int, ...]


@dataclass(frozen=True)
class _Access:
    """How one kernel reads or writes a tensor: its axes, and how many elements."""

    axes: tuple[Axis, ...]
    block: ir.BlockGraph
    elements: float


def laid_out(
    graph: ir.KernelGraph, types: Types, extents: Extents
) -> dict[str, TensorType]:
    """The types with a layout for what one block graph writes for others.

    What is returned, or read by a library kernel, stays row-major, but that parts of a
    split dim come first, channels last where a library kernel wants them there, and
    what library kernels make for each other without a copy.
    """
    found = around_libraries(graph, types, extents)
    fixed = {r.value for r in graph.returns} | places(graph, types, extents).keys()
    fixed |= {name for name, kind in found.items() if kind.layout is not None}
    for block in graph.blocks:
        for store in block.stores:
            if store.result not in fixed:
                order = _order(store, block, graph, types[store.result], extents)
                if order != tuple(range(len(store.axes))):
                    kind = types[store.result]
                    found[store.result] = replace(kind, layout=order)
    return found


def _order(
    store: ir.Store,
    block: ir.BlockGraph,
    graph: ir.KernelGraph,
    kind: TensorType,
    extents: Extents,
) -> Order:
    usual = _parts_first(store, block)
    sizes = known_extents(extents)
    readers = _readers(store.result, graph)
    if readers is None or len(store.axes) > MOST_AXES:
        return usual
    blocks = (block, *(reader for _, reader in readers))
    if not sizes.keys() >= {*kind.names, *(s.dim for b in blocks for s in b.splits)}:
        return usual
    accesses = [_access(store.axes, block, sizes)]
    accesses += [_access(load.axes, reader, sizes) for load, reader in readers]
    size = kind.dtype.itemsize
    best, cost = usual, _cost(usual, accesses, size, sizes)
    for order in itertools.permutations(range(len(store.axes))):
        other = _cost(order, accesses, size, sizes)
        if other * BETTER < cost:
            best, cost = order, other
    return best


def _parts_first(store: ir.Store, block: ir.BlockGraph) -> Order:
    axes = range(len(store.axes))
    return tuple(sorted(axes, key=lambda a: not _is_partial(store.axes[a], block)))


def _is_partial(axis: Axis, block: ir.BlockGraph) -> bool:
    return any(partial_base(d.name, block) is not None for d in axis)


def _readers(
    name: str, graph: ir.KernelGraph
) -> list[tuple[ir.Load, ir.BlockGraph]] | None:
    """The loads of a tensor; None if anything but block graphs reads it."""
    if any(name in n.values for n in graph.nodes if not isinstance(n, ir.BlockGraph)):
        return None
    return [
        (load, block)
        for block in graph.blocks
        for load in block.loads
        if load.source == name
    ]


def _access(
    axes: tuple[Axis, ...], block: ir.BlockGraph, sizes: Mapping[str, int]
) -> _Access:
    tile = prod(_piece(d, block, sizes) for axis in axes for d in axis)
    visits = prod(grid_parts(block, sizes))
    if any(d.loop for axis in axes for d in axis):
        visits *= iterations(block, sizes)
    return _Access(axes, block, float(tile * visits))


def _piece(dim: Dim, block: ir.BlockGraph, sizes: Mapping[str, int]) -> int:
    if dim.loop and block.loop is not None:
        return min(block.loop.tile, sizes[dim.name])
    tiles = {s.dim: s.tile for s in block.grid}
    if dim.grid:
        return min(tiles.get(dim.name, 1), sizes[dim.name])
    return sizes[dim.name]


def _cost(
    order: Order, accesses: Sequence[_Access], size: int, sizes: Mapping[str, int]
) -> float:
    """Time of all accesses, up to a factor."""
    return sum(a.elements / _share(order, a, size, sizes) for a in accesses)


def _share(order: Order, access: _Access, size: int, sizes: Mapping[str, int]) -> float:
    """Share of the bandwidth that the length of the runs of an access allows."""
    run = size
    for axis in reversed(order):
        for dim in reversed(access.axes[axis]):
            piece = _piece(dim, access.block, sizes)
            run *= piece
            if piece < sizes[dim.name]:
                return min(1.0, run / TOGETHER)
    return min(1.0, run / TOGETHER)
