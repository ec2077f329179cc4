"""What the evaluator computes with: arrays with named axes, over any array domain."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.types import DType, Scalar, dtype_named
from mirage_dsl.ir.graph import Apply, Factored
from mirage_dsl.ir.infer import library_shapes, operand_axes
from mirage_dsl.ops.definition import Kind, Numbers, Operator

# -- Domains ---------------------------------------------------------------------------

V = TypeVar("V")


class Domain(Protocol[V]):
    """Arrays with positional axes.  The evaluator maps named dims to positions."""

    def shape(self, value: V) -> tuple[int, ...]: ...

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> V:
        """A rank-0 array."""
        ...

    def index(self, count: int) -> V:
        """The integers from 0 to before `count`, exactly."""
        ...

    def elementwise(self, op: Operator, operands: Sequence[V]) -> V:
        """Apply `op` to arrays of equal rank that broadcast (rank 0 goes with any)."""
        ...

    def reduce(self, op: Operator, value: V, axes: tuple[int, ...]) -> V:
        """Apply a reduction; the axes vanish."""
        ...

    def scan(self, op: Operator, value: V, axis: int) -> V:
        """Apply a scan along an axis."""
        ...

    def contract(self, op: Operator, a: V, b: V) -> V:
        """Apply a contraction to (batch, m, k) and (batch, k, n)."""
        ...

    def library(
        self,
        op: Operator,
        operands: Sequence[V],
        numbers: Numbers,
        shape: tuple[int, ...],
    ) -> V:
        """Apply a library operator, whose result has the given shape.

        Args:
            op: The operator.
            operands: With the axes that it knows by their places.
            numbers: Its attributes that are integers.
            shape: Of its result.
        """
        ...

    def running_max(self, value: V, axis: int) -> V:
        """Cumulative maximum along an axis, finite everywhere (see `RunningMax`)."""
        ...

    def cast(self, value: V, dtype: DType) -> V:
        """Round to a storage format where the domain rounds."""
        ...

    def transpose(self, value: V, order: tuple[int, ...]) -> V: ...

    def reshape(self, value: V, shape: tuple[int, ...]) -> V: ...

    def take(self, value: V, axis: int, start: int, stop: int) -> V:
        """The elements from `start` to before `stop` along an axis."""
        ...

    def pad(self, value: V, axis: int, count: int) -> V:
        """Append `count` arbitrary elements; whatever they are must not matter."""
        ...

    def mask(self, value: V, keep: NDArray[np.bool_], fill: float) -> V:
        """`fill` where `keep`, broadcast to the value, is False."""
        ...

    def gather(self, op: Operator, value: V, index: V, axis: int) -> V:
        """Apply a gather along an axis to arrays that broadcast along all others."""
        ...

    def concat(self, values: Sequence[V], axis: int) -> V: ...


# -- Named arrays ----------------------------------------------------------------------
# The evaluator works on these.  Besides the dims of a value there are *hidden*
# axes: one per grid coordinate and one for the iteration, so that all blocks and
# all iterations are evaluated at once.  Operators act on dims by name and carry
# hidden axes along.
#
# Padding of ragged tiles is tracked per dim and masked just where a padded element
# could reach another one: in reductions, contractions and accumulations.


Label = str | tuple[str, ...]
"""Name of an axis: a dim's name, or a hidden axis."""

LOOP: Label = ("loop",)
"""The hidden axis of iterations."""


def grid_label(dim: str) -> Label:
    """The hidden axis of the grid coordinate along `dim`."""
    return ("grid", dim)


@dataclass(frozen=True)
class Inside:
    """Which indices are no padding, over the axes that decide it."""

    labels: tuple[Label, ...]
    keep: NDArray[np.bool_]

    def aligned(self, labels: Sequence[Label]) -> NDArray[np.bool_]:
        """`keep` so that it broadcasts to a value with the axes `labels`."""
        present = [n for n in labels if n in self.labels]
        keep = self.keep.transpose([self.labels.index(n) for n in present])
        sizes = dict(zip(present, keep.shape, strict=True))
        return keep.reshape([sizes.get(n, 1) for n in labels])


@dataclass(frozen=True)
class Named(Generic[V]):
    """A value, the name of each of its axes, and the masks of its ragged axes."""

    value: V
    labels: tuple[Label, ...]
    masks: Mapping[Label, Inside] = field(default_factory=dict[Label, Inside])

    def axis(self, label: Label) -> int:
        """Position of the axis `label`."""
        return self.labels.index(label)


class NamedArrays(Generic[V]):
    """Operators of the table on named arrays."""

    def __init__(self, domain: Domain[V]) -> None:
        self.domain = domain

    def extent(self, named: Named[V], label: Label) -> int:
        """Length of the axis `label`."""
        return self.domain.shape(named.value)[named.axis(label)]

    def arranged(self, named: Named[V], labels: Sequence[Label]) -> Named[V]:
        """The same value with its axes in the order `labels`."""
        if tuple(labels) == named.labels:
            return named
        order = tuple(named.axis(n) for n in labels)
        return replace(
            named,
            value=self.domain.transpose(named.value, order),
            labels=tuple(labels),
        )

    def split_axis(
        self, named: Named[V], label: Label, outer: Label, size: int
    ) -> Named[V]:
        """Cut an axis into tiles of `size`, numbered by the new axis `outer`."""
        at, extent = named.axis(label), self.extent(named, label)
        count = -(-extent // size)
        value = named.value
        if count * size != extent:
            value = self.domain.pad(value, at, count * size - extent)
        shape = list(self.domain.shape(value))
        shape[at : at + 1] = [count, size]
        labels = list(named.labels)
        labels.insert(at, outer)
        return replace(
            named, value=self.domain.reshape(value, tuple(shape)), labels=tuple(labels)
        )

    def join_axes(
        self, named: Named[V], outer: Label, label: Label, extent: int
    ) -> Named[V]:
        """Undo `split_axis`: tiles in the order of `outer`, cut to `extent`."""
        labels = [n for n in named.labels if n != outer]
        at = labels.index(label)
        labels.insert(at, outer)
        moved = self.arranged(named, labels)
        shape = list(self.domain.shape(moved.value))
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
        value = self.domain.reshape(moved.value, tuple(shape))
        if shape[at] > extent:
            value = self.domain.take(value, at, 0, extent)
        labels.remove(outer)
        return replace(moved, value=value, labels=tuple(labels))

    def repeated(self, named: Named[V], label: Label, count: int) -> Named[V]:
        """The value once for each index of a new first axis."""
        shape = self.domain.shape(named.value)
        value = self.domain.reshape(named.value, (1, *shape))
        if count > 1:
            value = self.domain.concat([value] * count, 0)
        return replace(named, value=value, labels=(label, *named.labels))

    def masked(self, named: Named[V], labels: Iterable[Label], fill: float) -> Named[V]:
        """`fill` in place of the padding along the axes `labels`."""
        masks = [named.masks[n] for n in labels if n in named.masks]
        if not masks:
            return named
        keep = masks[0].aligned(named.labels)
        for mask in masks[1:]:
            keep = keep & mask.aligned(named.labels)
        return replace(named, value=self.domain.mask(named.value, keep, fill))

    def elementwise(self, op: Operator, operands: Sequence[Named[V]]) -> Named[V]:
        """Broadcast by name and apply."""
        labels = tuple(dict.fromkeys(n for o in operands for n in o.labels))
        values = [self._aligned(o, labels) for o in operands]
        masks = {n: m for o in operands for n, m in o.masks.items()}
        return Named(self.domain.elementwise(op, values), labels, masks)

    def _aligned(self, named: Named[V], labels: Sequence[Label]) -> V:
        if not named.labels:
            return named.value
        moved = self.arranged(named, [n for n in labels if n in named.labels])
        sizes = dict(zip(moved.labels, self.domain.shape(moved.value), strict=True))
        shape = tuple(sizes.get(n, 1) for n in labels)
        return self.domain.reshape(moved.value, shape)

    def reduce(
        self, op: Operator, named: Named[V], labels: Sequence[Label]
    ) -> Named[V]:
        """Reduce the axes `labels`; padding counts as the neutral element."""
        assert op.neutral is not None
        ready = self.masked(named, labels, op.neutral)
        axes = tuple(ready.axis(n) for n in labels)
        return Named(
            self.domain.reduce(op, ready.value, axes),
            tuple(n for n in ready.labels if n not in labels),
            {n: m for n, m in ready.masks.items() if n not in labels},
        )

    def scan(self, op: Operator, named: Named[V], labels: Sequence[Label]) -> Named[V]:
        """Scan the axis that the axes `labels` make, row-major.

        Nothing is masked: they are whole, so that padding lies behind all elements.
        """
        rest = [n for n in named.labels if n not in labels]
        moved = self.arranged(named, [*rest, *labels])
        shape = self.domain.shape(moved.value)
        head = shape[: len(rest)]
        merged = self.domain.reshape(
            moved.value, (*head, math.prod(shape[len(head) :]))
        )
        found = self.domain.scan(op, merged, len(rest))
        whole = replace(moved, value=self.domain.reshape(found, shape))
        return self.arranged(whole, named.labels)

    def contract(
        self, op: Operator, a: Named[V], b: Named[V], over: Sequence[Label]
    ) -> Named[V]:
        """Sum of products over `over`; other shared axes are batch axes."""
        # Padding may hold infinities, so zeros on one side only would not do.
        a, b = self.masked(a, over, 0.0), self.masked(b, over, 0.0)
        batch = [n for n in a.labels if n in b.labels and n not in over]
        left = [n for n in a.labels if n not in b.labels]
        right = [n for n in b.labels if n not in a.labels]
        product = self.domain.contract(
            op,
            self._grouped(a, batch, left, over),
            self._grouped(b, batch, over, right),
        )
        sizes = {n: self.extent(o, n) for o in (a, b) for n in o.labels}
        labels = (*batch, *left, *right)
        masks = {n: m for o in (a, b) for n, m in o.masks.items() if n in labels}
        shape = tuple(sizes[n] for n in labels)
        return Named(self.domain.reshape(product, shape), labels, masks)

    def _grouped(self, named: Named[V], *groups: Sequence[Label]) -> V:
        """One axis per group."""
        moved = self.arranged(named, [n for group in groups for n in group])
        sizes = dict(zip(moved.labels, self.domain.shape(moved.value), strict=True))
        shape = tuple(math.prod(sizes[n] for n in group) for group in groups)
        return self.domain.reshape(moved.value, shape)

    def gather(
        self, op: Operator, source: Named[V], index: Named[V], dim: str
    ) -> Named[V]:
        """The elements at the indices along `dim`; padding is at the first of them."""
        index = self.masked(index, index.labels, 0.0)
        rest = [n for n in source.labels if n != dim and n not in index.labels]
        labels = (*index.labels, dim, *rest)
        value = self.domain.gather(
            op,
            self._aligned(source, labels),
            self._aligned(index, labels),
            len(index.labels),
        )
        sizes = {n: self.extent(o, n) for o in (source, index) for n in o.labels}
        made = (*index.labels, *rest)
        found = self.domain.reshape(value, tuple(sizes[n] for n in made))
        masks = {n: m for o in (source, index) for n, m in o.masks.items() if n != dim}
        return Named(found, made, masks)

    def concat(
        self, operands: Sequence[Named[V]], joined: Sequence[str], to: str
    ) -> Named[V]:
        """Join the dim `joined[i]` of each operand into `to`."""
        renamed = [
            self.relabelled(o, {d: to}) for o, d in zip(operands, joined, strict=True)
        ]
        labels = tuple(dict.fromkeys(n for o in renamed for n in o.labels))
        sizes = {n: self.extent(o, n) for o in renamed for n in o.labels}
        full: list[V] = []
        for item in renamed:
            grown = item
            for label in labels:
                if label not in grown.labels:
                    grown = self.repeated(grown, label, sizes[label])
            full.append(self.arranged(grown, labels).value)
        masks = {n: m for o in renamed for n, m in o.masks.items() if n != to}
        mask = self._joined_mask(renamed, to)
        if mask is not None:
            masks[to] = mask
        return Named(self.domain.concat(full, labels.index(to)), labels, masks)

    def _joined_mask(self, operands: Sequence[Named[V]], to: str) -> Inside | None:
        masks = [o.masks.get(to) for o in operands]
        if all(m is None for m in masks):
            return None
        deciding = tuple(dict.fromkeys(n for m in masks if m for n in m.labels))
        deciding = (*(n for n in deciding if n != to), to)
        pieces: list[NDArray[np.bool_]] = []
        for item, mask in zip(operands, masks, strict=True):
            whole = np.ones((1,) * (len(deciding) - 1) + (self.extent(item, to),), bool)
            pieces.append(whole if mask is None else mask.aligned(deciding) & whole)
        head = np.broadcast_shapes(*(p.shape[:-1] for p in pieces))
        full = [np.broadcast_to(p, (*head, p.shape[-1])) for p in pieces]
        return Inside(deciding, np.concatenate(full, -1))

    def relabelled(self, named: Named[V], names: Mapping[str, str]) -> Named[V]:
        """The same value with dims renamed."""

        def new(label: Label) -> Label:
            return names.get(label, label) if isinstance(label, str) else label

        masks = {
            new(n): Inside(tuple(new(k) for k in m.labels), m.keep)
            for n, m in named.masks.items()
        }
        return Named(named.value, tuple(new(n) for n in named.labels), masks)

    def view(
        self, node: Apply, named: Named[V], extents: Mapping[str, int] | None = None
    ) -> Named[V]:
        """Apply a row of `Kind.VIEW`: attributes say which view it is."""
        attrs: dict[str, Any] = dict(node.attrs)
        if node.factored is not None:
            assert extents is not None, node
            sizes = [extents[name] for name in node.factored.factors]
            return self.refactored(named, node.factored, sizes)
        if "dtype" in attrs:
            dtype = dtype_named(attrs["dtype"])
            assert dtype is not None, attrs
            return replace(named, value=self.domain.cast(named.value, dtype))
        if "dims" in attrs:
            return self.relabelled(
                named, dict(zip(attrs["dims"], attrs["to"], strict=True))
            )
        if "dim" not in attrs:
            return self.repeated(named, attrs["to"], 1)
        at = named.axis(attrs["dim"])
        taken = self.domain.take(named.value, at, attrs["start"], attrs["stop"])
        return self.relabelled(replace(named, value=taken), {attrs["dim"]: attrs["to"]})

    def refactored(
        self, named: Named[V], factored: Factored, sizes: Sequence[int]
    ) -> Named[V]:
        """Several axes made one, or one several of these sizes, behind all others."""
        whole, factors = (factored.whole,), factored.factors
        old, new = (factors, whole) if factored.flattens else (whole, factors)
        rest = [n for n in named.labels if n not in old]
        moved = self.arranged(named, [*rest, *old])
        head = self.domain.shape(moved.value)[: len(rest)]
        shape = (math.prod(sizes),) if factored.flattens else tuple(sizes)
        value = self.domain.reshape(moved.value, (*head, *shape))
        return Named(value, (*rest, *new), named.masks)

    def library(
        self, node: Apply, operands: Sequence[Named[V]], extents: Mapping[str, int]
    ) -> Named[V]:
        """Apply a library operator to its operands as it sees them."""
        shapes, shape = library_shapes(node, extents)
        values = [
            self.domain.reshape(self.arranged(o, axes.names).value, own)
            for o, axes, own in zip(operands, operand_axes(node), shapes, strict=True)
        ]
        names = [name for axis in node.axes("gives") for name in axis]
        found = self.domain.library(node.op, values, node.numbers, shape)
        flat = tuple(extents[name] for name in names)
        return Named(self.domain.reshape(found, flat), tuple(names))

    def apply(
        self,
        node: Apply,
        operands: Sequence[Named[V]],
        extents: Mapping[str, int] | None = None,
    ) -> Named[V]:
        """Apply an operator node; where it knows axes, it needs the extents of dims."""
        match node.op.kind:
            case Kind.ELEMENTWISE:
                return self.elementwise(node.op, operands)
            case Kind.REDUCTION:
                return self.reduce(node.op, operands[0], node.over)
            case Kind.SCAN:
                return self.scan(node.op, operands[0], node.along)
            case Kind.CONTRACTION:
                return self.contract(node.op, operands[0], operands[1], node.over)
            case Kind.VIEW:
                return self.view(node, operands[0], extents)
            case Kind.GATHER:
                source, index = operands
                return self.gather(node.op, source, index, str(node.attr("dim")))
            case Kind.CONCAT:
                joined, to = node.attr("dims"), str(node.attr("to"))
                assert isinstance(joined, tuple)
                return self.concat(operands, joined, to)
            case Kind.LIBRARY:
                assert extents is not None, node
                return self.library(node, operands, extents)
