"""A hash of what a graph is, whatever its values and dims are called.

Equal hashes mean: the same wiring, operators, attributes, dtypes, axes, maps, tiles
and extents.  The order of nodes that do not depend on each other, and of the operands
of a commutative operator, does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from itertools import chain

from mirage_dsl.core.clock import look
from mirage_dsl.core.types import Axis, AxisNames, Scalar, TensorType
from mirage_dsl.ir.graph import (
    Accumulate,
    Apply,
    BlockGraph,
    BlockNode,
    KernelGraph,
    KernelNode,
    Load,
    LoopBound,
    Operand,
    RunningMax,
    Schedule,
    Split,
    Store,
    dims_of,
    partial_dim,
)
from mirage_dsl.ir.maps import partial_base
from mirage_dsl.ir.walk import operands_of, post_order, results_of
from mirage_dsl.ops.definition import AttributeKind, Kind

_VERSION = "mirage-dsl graph 1"

Part = str | int | bool | None | tuple["Part", ...]
"""What a digest is made of; its `repr` is unambiguous."""


def canonical_hash(
    graph: KernelGraph, *, sizes: bool = True, schedule: bool = False
) -> str:
    """The hash of `graph`, as 64 hexadecimal digits.

    Args:
        graph: A program or μGraph whose names are defined before their use.
        sizes: Cover extents and tiles; without them, graphs that differ only in size
            have one hash.
        schedule: Cover the parameters of the lowering.
    """
    look()
    return _Canonical(graph, sizes, schedule).digest()


@dataclass(frozen=True)
class CanonicalNames:
    """What identifies each dim and value of a graph, whatever it is called.

    Attributes:
        dims: By name of a dim, its place of first appearance.
        values: By name of a kernel-level value, the hash of what it is.
        inner: The same for the values of each block graph; tiles do not matter here.
    """

    dims: Mapping[str, str]
    values: Mapping[str, str]
    inner: tuple[Mapping[str, str], ...]


def canonical_names(graph: KernelGraph) -> CanonicalNames:
    """What identifies each dim and value of `graph`."""
    found = _Canonical(graph, sizes=False, schedule=False)
    found.digest()
    return CanonicalNames(found.numbers, found.values, tuple(found.inner))


def _hash(*parts: Part) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class _Canonical:
    def __init__(self, graph: KernelGraph, sizes: bool, schedule: bool) -> None:
        self.graph = graph
        self.sizes = sizes
        self.schedule = schedule
        self.numbers = _number_dims(graph)
        self.inner: list[dict[str, str]] = []
        self.values: dict[str, str] = {
            i.name: _hash("input", at) for at, i in enumerate(graph.inputs)
        }
        for item in graph.indices:
            if all(d.name in self.numbers for d in item.axis):
                self.values[item.name] = _hash("index", self.axes((item.axis,)))

    def digest(self) -> str:
        nodes = [self.kernel(node) for node in self.graph.nodes]
        parts: list[Part] = [
            _VERSION,
            tuple(self.type(i.type) for i in self.graph.inputs),
            # Counting the nodes tells one that is computed twice from one shared.
            tuple(sorted(nodes)),
            tuple(
                (self.values[r.value], self.type(r.type)) for r in self.graph.returns
            ),
        ]
        if self.sizes:
            known = [(self.dim(n), e) for n, e in self.graph.extents if self.uses(n)]
            parts.append(tuple(sorted(known)))
        return _hash(*parts)

    # -- Dims and types --------------------------------------------------------------

    def uses(self, name: str) -> bool:
        return name in self.numbers

    def dim(self, name: str) -> str:
        return self.numbers[name]

    def axes(self, axes: tuple[Axis, ...]) -> Part:
        return tuple(
            tuple((self.dim(d.name), d.grid, d.loop) for d in axis) for axis in axes
        )

    def type(self, kind: TensorType) -> Part:
        return (kind.dtype.name, self.axes(kind.axes), kind.layout)

    def split(self, split: Split) -> Part:
        tile = split.tile if self.sizes else None
        return (self.dim(split.dim), tile, *([True] if split.beside else []))

    def bounds(self, block: BlockGraph) -> Part:
        return tuple(sorted(map(self.bound, block.bounds)))

    def bound(self, bound: LoopBound) -> tuple[str | bool | int, ...]:
        also = () if bound.also is None else (bound.also,)
        return (self.dim(bound.dim), bound.upper, bound.offset, *also)

    def settled(self, block: BlockGraph, inner: Mapping[str, str]) -> Part:
        found = (
            (inner.get(s.value, ""), s.holds, *self.bound(s.bound))
            for s in block.settled
        )
        return ("settled", *sorted(found))

    # -- Nodes -----------------------------------------------------------------------

    def kernel(self, node: KernelNode) -> str:
        if isinstance(node, Apply):
            self.values[node.result] = self.apply(node, self.values)
            return self.values[node.result]
        block, stores = self.block(node)
        for store, digest in zip(node.stores, stores, strict=True):
            self.values[store.result] = _hash("result", block, digest)
        return block

    def block(self, block: BlockGraph) -> tuple[str, list[str]]:
        """The hash of a block graph, and of each of its stores."""
        inner: dict[str, str] = {}
        stores: list[str] = []
        digests: list[str] = []
        for node in block.nodes:
            digest = self.block_node(node, inner)
            digests.append(digest)
            if isinstance(node, Store):
                stores.append(digest)
            else:
                inner[node.result] = digest
        self.inner.append(inner)
        schedule = _schedule_part(block.schedule) if self.schedule else None
        whole = _hash(
            "block",
            tuple(self.split(s) for s in block.grid),
            self.split(block.loop) if block.loop else None,
            tuple(sorted(digests)),
            schedule,
            *([self.bounds(block)] if block.bounds else []),
            *([self.settled(block, inner)] if block.settled else []),
        )
        return whole, stores

    def block_node(self, node: BlockNode, inner: Mapping[str, str]) -> str:
        match node:
            case Load():
                return _hash("load", self.values[node.source], self.axes(node.axes))
            case Apply():
                return self.apply(node, inner)
            case Accumulate():
                rescale = inner[node.rescale] if node.rescale else None
                return _hash("accumulate", node.kind, inner[node.operand], rescale)
            case RunningMax():
                return _hash("running_max", inner[node.operand])
            case Store():
                operand = inner[node.operand]
                return _hash("store", operand, self.axes(node.axes), node.dtype.name)

    def apply(self, node: Apply, values: Mapping[str, str]) -> str:
        operands = [self.operand(o, values) for o in node.operands]
        if node.op.commutative:
            operands.sort(key=repr)
        return _hash("apply", node.op.name, tuple(operands), self.attributes(node))

    def operand(self, operand: Operand, values: Mapping[str, str]) -> Part:
        if isinstance(operand, str):
            return values[operand]
        return self.constant(operand)

    def constant(self, number: Scalar) -> Part:
        powers = sorted((self.dim(n), p) for n, p in number.extents)
        return (str(number.value), tuple(powers))

    def attributes(self, node: Apply) -> Part:
        attrs = dict(node.attrs)
        found: dict[str, Part] = {}
        for name, kind in node.op.attributes.items():
            value = attrs[name]
            if isinstance(value, tuple):
                found[name] = tuple(self.dim(d) for d in value)
            elif isinstance(value, AxisNames):
                found[name] = str(value.each(self.dim))
            elif kind in (AttributeKind.DIM, AttributeKind.NEW_DIM):
                found[name] = self.dim(str(value))
            else:
                found[name] = str(value)
        if node.op.kind is Kind.CONCAT:
            return tuple(found.items())
        # Lists of dims are sets, and lists of old and new dims are sets of pairs.
        lists = [v for v in found.values() if isinstance(v, tuple)]
        single = tuple((n, v) for n, v in found.items() if not isinstance(v, tuple))
        return (single, tuple(sorted(zip(*lists, strict=True), key=repr)))


def _schedule_part(schedule: Schedule) -> Part:
    return tuple(astuple(schedule))


def _number_dims(graph: KernelGraph) -> dict[str, str]:
    """Every dim's place of first appearance, from the inputs through the nodes.

    `k#` is named after `k`.  Nodes are visited from the returned values backwards,
    operands first, so that their order in the graph does not count.
    """
    numbers: dict[str, str] = {}

    def visit(name: str) -> None:
        if name not in numbers:
            numbers[name] = f"d{len(numbers)}"

    for item in graph.inputs:
        for name in item.type.names:
            visit(name)
    counted = {i.name: i.type.names for i in graph.indices}
    for node in _backwards(graph):
        counting = (counted.get(value, ()) for value in operands_of(node))
        own = _attribute_dims(node) if isinstance(node, Apply) else ()
        for name in chain(*counting, own):
            visit(name)
        if isinstance(node, Apply):
            continue
        for name in _block_dims(node):
            base = partial_base(name, node)
            if base is not None and name == partial_dim(base):
                visit(base)
                numbers.setdefault(name, partial_dim(numbers[base]))
            visit(name)
    return numbers


def _attribute_dims(node: Apply) -> Iterator[str]:
    attrs = dict(node.attrs)
    for name, kind in node.op.attributes.items():
        value = attrs[name]
        if isinstance(value, tuple):
            yield from value
        elif isinstance(value, AxisNames):
            yield from value.names
        elif kind in (AttributeKind.DIM, AttributeKind.NEW_DIM):
            yield str(value)
    for operand in node.operands:
        if isinstance(operand, Scalar):
            yield from (n for n, _ in operand.extents)


def _block_dims(block: BlockGraph) -> Iterator[str]:
    yield from (s.dim for s in block.grid)
    if block.loop is not None:
        yield block.loop.dim
    for node in block.nodes:
        match node:
            case Load() | Store():
                yield from (d.name for d in dims_of(node.axes))
            case Apply():
                yield from _attribute_dims(node)
            case Accumulate() | RunningMax():
                pass


def _backwards(graph: KernelGraph) -> list[KernelNode]:
    """The nodes, operands first, in an order that the returned values decide."""
    made = {r: n for n in graph.nodes for r in results_of(n)}
    order = post_order(made, (r.value for r in graph.returns))
    done = set(map(id, order))
    return order + [n for n in graph.nodes if id(n) not in done]
