"""Graphs whatever their values and dims are called: a hash, other names, differences.

Equal hashes mean: the same wiring, operators, attributes, dtypes, axes, maps, tiles
and extents.  The order of nodes that do not depend on each other, and of the operands
of a commutative operator, does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from difflib import SequenceMatcher
from itertools import count
from typing import TYPE_CHECKING, Any

from mirage_dsl.core.types import Axis, AxisNames, Dim, Scalar, TensorType
from mirage_dsl.core.work import look
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.maps import partial_base
from mirage_dsl.ir.walk import operands_of, post_order, results_of, with_operands
from mirage_dsl.ops.definition import AttributeKind, Kind

if TYPE_CHECKING:
    from mirage_dsl.ir.text.parser import GraphLike

_VERSION = "mirage-dsl graph 1"

Part = str | int | bool | None | tuple["Part", ...]
"""What a digest is made of; its `repr` is unambiguous."""


def canonical_hash(
    graph: ir.KernelGraph, *, sizes: bool = True, schedule: bool = False
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


def canonical_names(graph: ir.KernelGraph) -> CanonicalNames:
    """What identifies each dim and value of `graph`."""
    found = _Canonical(graph, sizes=False, schedule=False)
    found.digest()
    return CanonicalNames(found.numbers, found.values, tuple(found.inner))


def _hash(*parts: Part) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class _Canonical:
    def __init__(self, graph: ir.KernelGraph, sizes: bool, schedule: bool) -> None:
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
        constant = [i.constant for i in self.graph.inputs]
        if self.schedule and any(constant):
            # Without, a program has one hash: it has no schedules.
            parts.append(tuple(constant))
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

    def split(self, split: ir.Split) -> Part:
        tile = split.tile if self.sizes else None
        return (self.dim(split.dim), tile, *([True] if split.beside else []))

    def bounds(self, block: ir.BlockGraph) -> Part:
        return tuple(sorted(map(self.bound, block.bounds)))

    def bound(self, bound: ir.LoopBound) -> tuple[str | bool | int, ...]:
        also = () if bound.also is None else (bound.also,)
        return (self.dim(bound.dim), bound.upper, bound.offset, *also)

    def settled(self, block: ir.BlockGraph, inner: Mapping[str, str]) -> Part:
        found = (
            (inner.get(s.value, ""), s.holds, *self.bound(s.bound))
            for s in block.settled
        )
        return ("settled", *sorted(found))

    # -- Nodes -----------------------------------------------------------------------

    def kernel(self, node: ir.KernelNode) -> str:
        if isinstance(node, ir.Apply):
            self.values[node.result] = self.apply(node, self.values)
            return self.values[node.result]
        block, stores = self.block(node)
        for store, digest in zip(node.stores, stores, strict=True):
            self.values[store.result] = _hash("result", block, digest)
        return block

    def block(self, block: ir.BlockGraph) -> tuple[str, list[str]]:
        """The hash of a block graph, and of each of its stores."""
        inner: dict[str, str] = {}
        stores: list[str] = []
        digests: list[str] = []
        for node in block.nodes:
            digest = self.block_node(node, inner)
            digests.append(digest)
            if isinstance(node, ir.Store):
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

    def block_node(self, node: ir.BlockNode, inner: Mapping[str, str]) -> str:
        match node:
            case ir.Load():
                return _hash("load", self.values[node.source], self.axes(node.axes))
            case ir.Apply():
                return self.apply(node, inner)
            case ir.Accumulate():
                rescale = inner[node.rescale] if node.rescale else None
                return _hash("accumulate", node.kind, inner[node.operand], rescale)
            case ir.RunningMax():
                return _hash("running_max", inner[node.operand])
            case ir.Store():
                operand = inner[node.operand]
                return _hash("store", operand, self.axes(node.axes), node.dtype.name)

    def apply(self, node: ir.Apply, values: Mapping[str, str]) -> str:
        operands = [self.operand(o, values) for o in node.operands]
        if node.op.commutative:
            operands.sort(key=repr)
        return _hash("apply", node.op.name, tuple(operands), self.attributes(node))

    def operand(self, operand: ir.Operand, values: Mapping[str, str]) -> Part:
        if isinstance(operand, str):
            return values[operand]
        return self.constant(operand)

    def constant(self, number: Scalar) -> Part:
        powers = sorted((self.dim(n), p) for n, p in number.extents)
        return (str(number.value), tuple(powers))

    def attributes(self, node: ir.Apply) -> Part:
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


def _schedule_part(schedule: ir.Schedule) -> Part:
    return tuple(astuple(schedule))


def _number_dims(graph: ir.KernelGraph) -> dict[str, str]:
    """Every dim's place of first appearance, from the inputs through the nodes.

    `k#` is named after `k`.  Nodes are visited from the returned values backwards,
    operands first, so that their order in the graph does not count.
    """
    found = _Places()
    for item in graph.inputs:
        found.visit(item.type.names)
    counted = {i.name: i.type.names for i in graph.indices}
    for node in _backwards(graph):
        for value in operands_of(node):
            found.visit(counted.get(value, ()))
        if isinstance(node, ir.Apply):
            found.visit(attribute_dims(node))
        else:
            found.visit_block(node)
    for item in graph.returns:
        # Positions may be returned as they are.
        found.visit(item.type.names)
    return found.numbers


class _Places:
    """Numbers dims in the order in which they are visited first."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def visit(self, names: Iterable[str]) -> None:
        for name in names:
            self.numbers.setdefault(name, f"d{len(self.numbers)}")

    def visit_block(self, block: ir.BlockGraph) -> None:
        for name in _block_dims(block):
            base = partial_base(name, block)
            if base is not None and name == ir.partial_dim(base):
                self.visit([base])
                self.numbers.setdefault(name, ir.partial_dim(self.numbers[base]))
            self.visit([name])


def attribute_dims(node: ir.Apply) -> Iterator[str]:
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


def _block_dims(block: ir.BlockGraph) -> Iterator[str]:
    yield from (s.dim for s in block.grid)
    if block.loop is not None:
        yield block.loop.dim
    for node in block.nodes:
        match node:
            case ir.Load() | ir.Store():
                yield from (d.name for d in ir.dims_of(node.axes))
            case ir.Apply():
                yield from attribute_dims(node)
            case ir.Accumulate() | ir.RunningMax():
                pass


def _backwards(graph: ir.KernelGraph) -> list[ir.KernelNode]:
    """The nodes, operands first, in an order that the returned values decide."""
    made = {r: n for n in graph.nodes for r in results_of(n)}
    order = post_order(made, (r.value for r in graph.returns))
    done = set(map(id, order))
    return order + [n for n in graph.nodes if id(n) not in done]


# -- Renamed graphs --------------------------------------------------------------------

Names = Mapping[str, str]
_DIM_KINDS = {
    AttributeKind.DIMS,
    AttributeKind.NEW_DIMS,
    AttributeKind.DIM,
    AttributeKind.NEW_DIM,
}


@dataclass(frozen=True)
class Renaming:
    """New names; what is not listed keeps its own.

    Attributes:
        dims: Dims by their old names; `k#` follows `k`.
        values: Kernel-level values.
        inner: Values of each block graph, in the order of the kernel graph's blocks.
    """

    dims: Names = field(default_factory=dict[str, str])
    values: Names = field(default_factory=dict[str, str])
    inner: tuple[Names, ...] = ()

    def graph(self, graph: ir.KernelGraph) -> ir.KernelGraph:
        """The graph under the new names."""
        dims = {n: _new_dim(self.dims, n) for n, _ in graph.extents}
        return replace(self, dims={**dims, **self.dims})._graph(graph)

    def _graph(self, graph: ir.KernelGraph) -> ir.KernelGraph:
        none: Names = {}
        blocks = iter((*self.inner, *(none for _ in graph.blocks)))
        return replace(
            graph,
            inputs=tuple(
                replace(i, name=_new(self.values, i.name), type=self.type(i.type))
                for i in graph.inputs
            ),
            indices=tuple(
                replace(i, name=_new(self.values, i.name), axis=self.axes((i.axis,))[0])
                for i in graph.indices
            ),
            nodes=tuple(
                self.block(n, next(blocks))
                if isinstance(n, ir.BlockGraph)
                else self.apply(n, self.values)
                for n in graph.nodes
            ),
            returns=tuple(
                replace(r, value=_new(self.values, r.value), type=self.type(r.type))
                for r in graph.returns
            ),
            extents=tuple(sorted((_new(self.dims, n), e) for n, e in graph.extents)),
        )

    def type(self, kind: TensorType) -> TensorType:
        """A type with its dims renamed."""
        return replace(kind, axes=self.axes(kind.axes))

    def axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Axes with their dims renamed."""
        return tuple(
            tuple(replace(d, name=_new(self.dims, d.name)) for d in axis)
            for axis in axes
        )

    def apply(self, node: ir.Apply, values: Names) -> ir.Apply:
        """An operator node, where `values` are the names of its level."""
        kinds = node.op.attributes

        def operand(value: ir.Operand) -> ir.Operand:
            if isinstance(value, Scalar):
                return value.rename(self.dims)
            return _new(values, value)

        attrs = list(node.attrs)
        for at, (name, value) in enumerate(attrs):
            if isinstance(value, AxisNames):
                attrs[at] = (name, value.each(lambda dim: _new(self.dims, dim)))
            elif kinds.get(name) not in _DIM_KINDS:
                continue
            elif isinstance(value, tuple):
                attrs[at] = (name, tuple(_new(self.dims, d) for d in value))
            else:
                attrs[at] = (name, _new(self.dims, str(value)))
        return replace(
            node,
            result=_new(values, node.result),
            operands=tuple(operand(o) for o in node.operands),
            attrs=tuple(attrs),
        )

    def block(self, block: ir.BlockGraph, inner: Names) -> ir.BlockGraph:
        """A block graph, where `inner` are the new names of its values."""
        grid = tuple(replace(s, dim=_new(self.dims, s.dim)) for s in block.grid)
        loop = block.loop and replace(block.loop, dim=_new(self.dims, block.loop.dim))
        nodes = tuple(self.block_node(n, inner) for n in block.nodes)
        bounds = tuple(map(self.bound, block.bounds))
        settled = tuple(
            replace(s, value=_new(inner, s.value), bound=self.bound(s.bound))
            for s in block.settled
        )
        return replace(
            block, grid=grid, loop=loop, nodes=nodes, bounds=bounds, settled=settled
        )

    def bound(self, bound: ir.LoopBound) -> ir.LoopBound:
        """A bound of a loop."""
        return replace(bound, dim=_new(self.dims, bound.dim))

    def block_node(self, node: ir.BlockNode, inner: Names) -> ir.BlockNode:
        """One node of a block graph."""
        if isinstance(node, ir.Apply):
            return self.apply(node, inner)
        level = self.values if isinstance(node, ir.Store) else inner
        result = _new(level, node.result)
        moved = replace(with_operands(node, inner), result=result, location=None)
        if isinstance(moved, ir.Load):
            source = _new(self.values, moved.source)
            return replace(moved, source=source, axes=self.axes(moved.axes))
        if isinstance(moved, ir.Store):
            return replace(moved, axes=self.axes(moved.axes))
        return moved


def _new(names: Names, name: str) -> str:
    return names.get(name, name)


def _new_dim(names: Names, name: str) -> str:
    if name in names:
        return names[name]
    base = next((n for n in names if ir.partial_dim(n) == name), None)
    return name if base is None else ir.partial_dim(names[base])


# -- Dims taken apart ------------------------------------------------------------------


@dataclass(frozen=True)
class Apart:
    """Several dims in the place of one, row-major; the first is split as that one was.

    Attributes:
        dims: The several, by the name of the one.
    """

    dims: Mapping[str, tuple[str, ...]]

    def names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Dims with the several in the places of those that are taken apart."""
        return tuple(n for name in names for n in self.dims.get(name, (name,)))

    def axes(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Axes with their dims taken apart."""
        return tuple(map(self.axis, axes))

    def axis(self, axis: Axis) -> Axis:
        """One axis with its dims taken apart."""
        found: list[Dim] = []
        for dim in axis:
            first, *inner = self.names((dim.name,))
            found += [replace(dim, name=first), *map(Dim, inner)]
        return tuple(found)

    def type(self, kind: TensorType) -> TensorType:
        """A type with its dims taken apart."""
        return replace(kind, axes=self.axes(kind.axes))

    def apply(self, node: ir.Apply) -> ir.Apply:
        """An operator that sums over the dims, if it knows them at all."""
        operands = tuple(
            self._constant(o) if isinstance(o, Scalar) else o for o in node.operands
        )
        return replace(node, operands=operands).summing(self.names(node.over))

    def _constant(self, number: Scalar) -> Scalar:
        powers = {n: p for name, p in number.extents for n in self.names((name,))}
        return Scalar(number.value, tuple(sorted(powers.items())))


# -- Fresh names -----------------------------------------------------------------------


class FreshNames:
    """Names that neither a graph nor its blocks use."""

    def __init__(self, graph: ir.KernelGraph) -> None:
        self._used = {i.name for i in graph.given}
        for node in graph.nodes:
            nodes = (node,) if isinstance(node, ir.Apply) else node.nodes
            self._used.update(n.result for n in nodes)

    def fresh(self, base: str) -> str:
        """`base`, with a number behind it where it is taken."""
        return new_name(base, self._used)


def free_name(base: str, taken: Container[str]) -> str:
    """`base`, with a number behind it where it is taken."""
    names = (base if n == 1 else f"{base}{n}" for n in count(1))
    return next(n for n in names if n not in taken)


def new_name(base: str, taken: set[str]) -> str:
    """A free name, which is taken then."""
    taken.add(name := free_name(base, taken))
    return name


def numbered_name(base: str, taken: set[str], first: int = 1) -> str:
    """`base_1`, or with a larger number, whatever is free; it is taken then."""
    names = (f"{base}_{n}" for n in count(first))
    taken.add(name := next(n for n in names if n not in taken))
    return name


def longer_name(base: str, taken: set[str], more: str = "_") -> str:
    """`base`, with as much behind it as makes it a free name; it is taken then."""
    while base in taken:
        base += more
    taken.add(base)
    return base


# -- Differences -----------------------------------------------------------------------

_INDENT = "  "


def diff(first: GraphLike, second: GraphLike) -> str:
    """The changes that lead from one graph, text or candidate to another.

    Empty if they are equal.

    Values that compute the same are shown under their names in the first.  Lines that
    begin with - are only in the first, those with + only in the second; `x: old -> new`
    is a change.
    """
    from mirage_dsl.ir.text.parser import graph_of

    a, b = graph_of(first), graph_of(second)
    if a == b:
        return ""
    if _same_hash(a, b):
        return "the same graph under other names or in another order"
    return "\n".join(_changes(a, _aligned(a, b)))


def _same_hash(a: ir.KernelGraph, b: ir.KernelGraph) -> bool:
    try:
        return canonical_hash(a, schedule=True) == canonical_hash(b, schedule=True)
    except (KeyError, ValueError):
        # One of them is not well formed, and so not the same as anything.
        return False


def _aligned(a: ir.KernelGraph, b: ir.KernelGraph) -> ir.KernelGraph:
    """`b` with the names of `a` for what both have; inputs keep their names."""
    try:
        names_a, names_b = canonical_names(a), canonical_names(b)
    except (KeyError, ValueError):
        return b
    inputs = {i.name for i in b.given}
    values = _renaming(names_a.values, names_b.values, inputs)
    dims = _missing_only(names_a.dims, names_b.dims)
    renamed = Renaming(dims, values).graph(b)
    # Which blocks correspond shows once the tensors that they store have their names.
    number = {id(block): i for i, block in enumerate(a.blocks)}
    inner: list[Mapping[str, str]] = []
    none: Mapping[str, str] = {}
    for i, block in enumerate(renamed.blocks):
        key = _key(block, a)
        match = next((o for o in a.blocks if _key(o, renamed) == key), None)
        theirs = none if match is None else names_a.inner[number[id(match)]]
        inner.append(_renaming(theirs, names_b.inner[i], set()))
    return Renaming(inner=tuple(inner)).graph(renamed)


def _renaming(
    a: Mapping[str, str], b: Mapping[str, str], fixed: set[str]
) -> dict[str, str]:
    """New names for the values `b`: those of equal values in `a`, else unused ones."""
    pool: dict[str, list[str]] = {}
    for name, digest in a.items():
        pool.setdefault(digest, []).append(name)
    found = {n: n for n in b if n in fixed}
    for name, digest in b.items():
        names = pool.get(digest, [])
        if name not in fixed and names:
            found[name] = names.pop(0)
    taken = set(found.values())
    for name in b:
        if name in found:
            continue
        found[name] = longer_name(name, taken, "_new")
    return found


def _missing_only(a: Mapping[str, str], b: Mapping[str, str]) -> dict[str, str]:
    """New names for those dims of `b` that `a` does not have."""
    free = {number: name for name, number in a.items() if name not in b}
    return {n: free[at] for n, at in b.items() if n not in a and at in free}


def _changes(a: ir.KernelGraph, b: ir.KernelGraph) -> Iterator[str]:
    yield from _mapping("name", {"": a.name}, {"": b.name})
    inputs = [{i.name: i.stated for i in g.inputs} for g in (a, b)]
    yield from _mapping("input", *inputs)
    if inputs[0] == inputs[1] and list(inputs[0]) != list(inputs[1]):
        yield f"inputs: {', '.join(inputs[0])} -> {', '.join(inputs[1])}"
    indices = [{i.name: str(i.type) for i in g.indices} for g in (a, b)]
    yield from _mapping("index", *indices)
    yield from _mapping("extent", _extents(a), _extents(b))
    yield from _nodes(a, b)
    returns = [", ".join(f"{r.value}: {r.type}" for r in g.returns) for g in (a, b)]
    yield from _mapping("return", {"": returns[0]}, {"": returns[1]})


def _extents(graph: ir.KernelGraph) -> dict[str, object]:
    return {n: "?" if e is None else e for n, e in graph.extents}


def _mapping(what: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        label = f"{what} {name}".rstrip()
        if name not in b:
            yield f"- {label}: {a[name]}"
        elif name not in a:
            yield f"+ {label}: {b[name]}"
        elif a[name] != b[name]:
            yield f"{label}: {a[name]} -> {b[name]}"


def _nodes(a: ir.KernelGraph, b: ir.KernelGraph) -> Iterator[str]:
    texts_a, texts_b = _node_texts(a), _node_texts(b)
    keys_a = [_key(n, b) for n in a.nodes]
    keys_b = [_key(n, a) for n in b.nodes]
    matcher = SequenceMatcher(None, keys_a, keys_b, autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag == "equal":
            for i, j in zip(range(start_a, end_a), range(start_b, end_b), strict=True):
                yield from _node(a.nodes[i], b.nodes[j], texts_a[i], texts_b[j])
            continue
        yield from (f"- {line}" for t in texts_a[start_a:end_a] for line in t)
        yield from (f"+ {line}" for t in texts_b[start_b:end_b] for line in t)


def _key(node: ir.KernelNode, other: ir.KernelGraph) -> str:
    """By what a node is found in the other graph: a result that both have."""
    if isinstance(node, ir.Apply):
        return node.result
    shared = [r for block in other.blocks for r in block.results if r in node.results]
    return min(shared or node.results, default="")


def _node_texts(graph: ir.KernelGraph) -> list[list[str]]:
    """The lines of each node, as printed: head, body and end of a block."""
    heights = [
        len(n.nodes) + 2 if isinstance(n, ir.BlockGraph) else 1 for n in graph.nodes
    ]
    lines = str(graph).splitlines()[:-2]
    at = len(lines) - sum(heights)
    texts: list[list[str]] = []
    for height in heights:
        texts.append([line.removeprefix(_INDENT) for line in lines[at : at + height]])
        at += height
    return texts


def _node(
    a: ir.KernelNode, b: ir.KernelNode, text_a: Sequence[str], text_b: Sequence[str]
) -> Iterator[str]:
    if not (isinstance(a, ir.BlockGraph) and isinstance(b, ir.BlockGraph)):
        yield from _lines(text_a, text_b)
        return
    grid_a, grid_b = ({s.dim: s.tile for s in g.grid} for g in (a, b))
    found = [
        *_mapping("grid tile of", grid_a, grid_b),
        *_mapping("loop", {"": _loop(a.loop)}, {"": _loop(b.loop)}),
        *_mapping("schedule", asdict(a.schedule), asdict(b.schedule)),
        *_lines(text_a[1:-1], text_b[1:-1]),
    ]
    axes_a, axes_b = (
        ", ".join(" & ".join(s.dim for s in axis) for axis in g.axes) for g in (a, b)
    )
    if grid_a == grid_b and axes_a != axes_b:
        found.append(f"grid order: {axes_a} -> {axes_b}")
    if found:
        yield f"block of {', '.join(b.results)}:"
        yield from (_INDENT + line.removeprefix(_INDENT) for line in found)


def _loop(split: ir.Split | None) -> str:
    return "none" if split is None else f"{split.dim} / {split.tile}"


def _lines(a: Sequence[str], b: Sequence[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag != "equal":
            yield from (f"- {line.strip()}" for line in a[start_a:end_a])
            yield from (f"+ {line.strip()}" for line in b[start_b:end_b])
