"""Well-formedness: one table of rules per level.

A rule is a function from a level's view to the diagnostics it finds.  The rules of
kernel graphs are here, those of block graphs in `ir.check.block`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mirage_dsl.core.errors import CheckError
from mirage_dsl.core.types import (
    LARGEST_INDEX,
    MAX_EXTENT,
    MemorySpace,
    Scalar,
    TensorType,
    axis_text,
    bounded,
    is_name,
    shown_integer,
)
from mirage_dsl.ir.check.block import (
    BlockView,
    Diagnostic,
    check_block,
    listed,
    slice_problem,
)
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph, KernelNode, Return
from mirage_dsl.ir.infer import (
    apply_type,
    library_dims,
    library_shapes,
    store_type,
)
from mirage_dsl.ir.maps import derived_extents, extents_made
from mirage_dsl.ir.text.parser import GraphLike, graph_of
from mirage_dsl.ir.walk import applications, operands_of, read_by, results_of
from mirage_dsl.ops.definition import Kind


@dataclass(frozen=True)
class KernelView:
    """A kernel graph with what its rules ask of it."""

    graph: KernelGraph

    @cached_property
    def inferred(self) -> tuple[dict[str, TensorType], list[Diagnostic]]:
        """Types of kernel-level values as far as they follow, and what broke them."""
        types = {i.name: i.type for i in self.graph.given}
        problems: list[Diagnostic] = []
        for node in self.graph.nodes:
            if isinstance(node, BlockGraph):
                types.update({s.result: store_type(s) for s in node.stores})
            elif all(v in types for v in node.values):
                operands = [types[v] for v in node.values]
                try:
                    types[node.result] = apply_type(node, operands, in_block=False)
                except CheckError as error:
                    problems.append(_type_problem(node, error))
        return types, problems

    @property
    def types(self) -> dict[str, TensorType]:
        """Types of kernel-level values as far as they follow."""
        return self.inferred[0]

    @cached_property
    def blocks(self) -> tuple[BlockView, ...]:
        """The block graphs, each with its place and the kernel level's types."""
        return tuple(
            BlockView(node, i, self.types, self.graph.extent_of)
            for i, node in enumerate(self.graph.nodes)
            if isinstance(node, BlockGraph)
        )


def _type_problem(node: Apply, error: CheckError) -> Diagnostic:
    return Diagnostic(
        "type",
        f"{node.result}: {error.message}",
        node.result,
        "change the operands or the attributes",
        location=node.location,
    )


KernelRule = Callable[[KernelView], Iterator[Diagnostic]]


def _unique_names(view: KernelView) -> Iterator[Diagnostic]:
    graph = view.graph
    names = [i.name for i in graph.given]
    names += [r for n in graph.nodes for r in results_of(n)]
    for name, count in Counter(names).items():
        if count > 1:
            yield Diagnostic(
                "unique-names",
                f"{count} kernel-level values are called {name}",
                name,
                "give each a name of its own",
            )


def _defined(view: KernelView) -> Iterator[Diagnostic]:
    known = {i.name for i in view.graph.given}
    later = {r for n in view.graph.nodes for r in results_of(n)}
    for i, node in enumerate(view.graph.nodes):
        block = i if isinstance(node, BlockGraph) else None
        for name in operands_of(node):
            if name in known:
                continue
            reads = node.loads if isinstance(node, BlockGraph) else ()
            reader = next((n for n in reads if n.source == name), node)
            what = "is defined only later" if name in later else "is not defined"
            user = ", ".join(results_of(node))
            yield Diagnostic(
                "defined",
                f"{name}, which {user} reads, {what}",
                name,
                f"expected one of {listed(known)}",
                block,
                reader.location,
            )
        known.update(results_of(node))


def _types(view: KernelView) -> Iterator[Diagnostic]:
    yield from view.inferred[1]


def _inputs(view: KernelView) -> Iterator[Diagnostic]:
    for item in view.graph.inputs:
        repeated = [n for n, c in Counter(item.type.names).items() if c > 1]
        if repeated:
            yield Diagnostic(
                "input",
                f"input {item.name} has the dim {repeated[0]} twice: {item.type}",
                item.name,
                "the axes of one tensor need different dims",
                location=item.location,
            )
        if any(d.grid or d.loop for d in item.type.dims):
            yield Diagnostic(
                "input",
                f"input {item.name} has a split dim: {item.type}",
                item.name,
                "write /grid and /loop in the loads of a block",
                location=item.location,
            )
        if item.type.space is not MemorySpace.DEVICE:
            yield Diagnostic(
                "input",
                f"input {item.name} lives in {item.type.space.value} memory",
                item.name,
                "expected device memory",
                location=item.location,
            )


def _indices(view: KernelView) -> Iterator[Diagnostic]:
    """The positions along an axis are below `LARGEST_INDEX`."""
    for item in view.graph.indices:
        if any(d.grid or d.loop for d in item.axis) or not item.axis:
            yield Diagnostic(
                "index",
                f"the index value {item.name} counts {axis_text(item.axis)}",
                item.name,
                "expected an axis of whole dims; write /grid and /loop in loads",
                location=item.location,
            )
        extents = [view.graph.extent_of.get(d.name) for d in item.axis]
        count = prod(e for e in extents if e is not None)
        if count > LARGEST_INDEX:
            yield Diagnostic(
                "index",
                f"the index value {item.name} has {shown_integer(count)} positions",
                item.name,
                f"expected at most {LARGEST_INDEX} (2**30)",
                location=item.location,
            )


def _extents_known(view: KernelView) -> Iterator[Diagnostic]:
    named = {n: v for v, t in reversed(view.types.items()) for n in t.names}
    named.update({n: v for b in view.blocks for n, v in b.split_dims.items()})
    made = derived_extents(view.graph, {})
    named.update({n: view.graph.name for n in made if n not in named})
    for node in applications(view.graph):
        for operand in node.operands:
            if isinstance(operand, Scalar):
                named.update({n: node.result for n, _ in operand.extents})
    for name, value in named.items():
        if name not in view.graph.extent_of:
            yield Diagnostic(
                "extent",
                f"the dim {name} of {value} has no extent",
                name,
                f"state it: {name} = an integer, or {name} = ? where it is symbolic",
            )
    for name, extent in view.graph.extents:
        if extent is not None and not 1 <= extent <= MAX_EXTENT:
            yield Diagnostic(
                "extent",
                f"the dim {name} has extent {shown_integer(extent)}",
                name,
                "expected at least 1"
                if extent < 1
                else f"expected at most {MAX_EXTENT}",
            )


def _extents_derived(view: KernelView) -> Iterator[Diagnostic]:
    found = view.graph.extent_of
    if any(e is not None and not 1 <= e <= MAX_EXTENT for e in found.values()):
        return
    if any(s.tile < 1 for b in view.graph.blocks for s in b.grid):
        return
    for node, name, extent in extents_made(view.graph, found):
        if name in found and found[name] != extent:
            yield Diagnostic(
                "derived-extent",
                f"the dim {name} has extent {found[name]}, "
                f"but {_maker(node)} gives it {extent}",
                name,
                f"set {name} = {extent}, change the tile or the view that makes it, or "
                "give it another name here",
                location=node.location,
            )


def _library_extents(view: KernelView) -> Iterator[Diagnostic]:
    """The extents of a library operator's result are those that PyTorch gives."""
    for node in view.graph.applies:
        if node.op.kind is Kind.LIBRARY and node.result in view.types:
            problem = _library_problem(node, view.graph.extent_of)
            if problem is not None:
                yield Diagnostic(
                    "library-extent",
                    f"{node.result}: {problem}",
                    node.result,
                    f"change the extents, or the attributes of {node.op.name}",
                    location=node.location,
                )


def _library_problem(node: Apply, extents: Mapping[str, int | None]) -> str | None:
    """What is wrong with the extents of a library operator's dims, or None."""
    carried = node.op.carried
    whole = {
        name
        for a, b in zip(node.axes("of")[:carried], node.axes("gives"), strict=False)
        for name in a
        if a == b
    }
    dims = dict.fromkeys(library_dims(node))
    known = {n: extents.get(n) or 1 for n in dims}
    missing = [n for n in dims if extents.get(n) is None and n not in whole]
    if missing:
        return (
            f"the extent of {missing[0]} is symbolic, and only those of a batch may be"
        )
    shapes, shape = library_shapes(node, known)
    assert node.op.shape is not None
    try:
        found = node.op.shape(shapes, node.numbers)
    except CheckError as error:
        return error.message
    if found != shape:
        return f"{node.op.name} gives the shape {found}, the extents say {shape}"
    return None


def _maker(node: KernelNode) -> str:
    if isinstance(node, Apply):
        return f"what makes {node.result}"
    return f"the block of {', '.join(node.results)}"


def _bytes(view: KernelView) -> Iterator[Diagnostic]:
    extents = view.graph.extent_of
    for name, kind in view.types.items():
        size = prod(max(extents.get(n) or 1, 1) for n in kind.names)
        if size * kind.dtype.itemsize > MAX_EXTENT:
            yield Diagnostic(
                "bytes",
                f"{name} is {kind}, which is {shown_integer(size)} elements or more",
                name,
                f"expected at most {MAX_EXTENT} bytes",
            )


def _names(view: KernelView) -> Iterator[Diagnostic]:
    graph = view.graph
    values = [*view.types, *(n.result for b in graph.blocks for n in b.nodes)]
    for name in dict.fromkeys((graph.name, *values, *graph.extent_of)):
        if not is_name(name):
            yield Diagnostic(
                "names",
                f"{name!r} names the graph, a value or a dim",
                name,
                "take letters, digits and _, and no digit first; inf and nan are "
                "numbers",
            )


def _constants(view: KernelView) -> Iterator[Diagnostic]:
    for node in applications(view.graph):
        for operand in node.operands:
            try:
                if isinstance(operand, Scalar):
                    bounded(operand)
            except ValueError as error:
                yield Diagnostic(
                    "constant",
                    f"{node.result}: {error}",
                    node.result,
                    "take another constant",
                    location=node.location,
                )


def _slices(view: KernelView) -> Iterator[Diagnostic]:
    for node in view.graph.applies:
        yield from slice_problem(node, view.graph.extent_of, None)


def _returns(view: KernelView) -> Iterator[Diagnostic]:
    if not view.graph.returns:
        yield Diagnostic(
            "return",
            f"{view.graph.name} returns nothing",
            view.graph.name,
            "return at least one value",
        )
    known = {i.name for i in view.graph.given}
    known.update(r for n in view.graph.nodes for r in results_of(n))
    for item in view.graph.returns:
        if item.value not in known:
            yield Diagnostic(
                "return",
                f"returned value {item.value} is not defined",
                item.value,
                f"expected one of {listed(known)}",
                location=item.location,
            )
        elif item.value in view.types:
            yield from _return_fits(item, view.types[item.value])


def _return_fits(item: Return, value: TensorType) -> Iterator[Diagnostic]:
    name, returned = item.value, item.type
    if Counter(returned.dims) != Counter(d.whole for d in value.dims):
        yield Diagnostic(
            "return",
            f"{name} is returned as {returned}, but it is {value}",
            name,
            "the returned type may order and group the dims of the value, no more",
            location=item.location,
        )
    if returned.dtype != value.dtype:
        yield Diagnostic(
            "return",
            f"{name} is returned as {returned.dtype}, but it is {value.dtype}",
            name,
            f"return {value.dtype}, or cast or store it as {returned.dtype}",
            location=item.location,
        )


def _unused(view: KernelView) -> Iterator[Diagnostic]:
    used = {r.value for r in view.graph.returns}
    used |= read_by(view.graph.nodes)
    for i, node in enumerate(view.graph.nodes):
        makers = node.stores if isinstance(node, BlockGraph) else (node,)
        for maker in makers:
            name = maker.result
            if name not in used:
                yield Diagnostic(
                    "unused",
                    f"nothing reads {name}",
                    name,
                    "remove what computes it, or return it",
                    i if isinstance(node, BlockGraph) else None,
                    maker.location,
                )


def _blocks(view: KernelView) -> Iterator[Diagnostic]:
    for block in view.blocks:
        yield from check_block(block)


KERNEL_RULES: tuple[KernelRule, ...] = (
    _names,
    _unique_names,
    _defined,
    _inputs,
    _indices,
    _types,
    _constants,
    _extents_known,
    _extents_derived,
    _library_extents,
    _bytes,
    _slices,
    _returns,
    _unused,
    _blocks,
)
"""The rules of kernel graphs, in order of reporting."""


def check(graph: GraphLike) -> list[Diagnostic]:
    """All rules that a graph breaks; an empty list means that it is well formed.

    Args:
        graph: A program or μGraph, its text, or a candidate of a search.

    Raises:
        CheckError: It is none, or a type rule of its text does not hold.
        ParseError: The text is not in the language.
    """
    view = KernelView(graph_of(graph))
    return [found for rule in KERNEL_RULES for found in rule(view)]


def check_or_raise(graph: KernelGraph) -> None:
    """Check `graph`.

    Raises:
        CheckError: It breaks a rule; the message lists all of them.
    """
    found = check(graph)
    if not found:
        return
    listed = "".join(f"\n  {d}" for d in found)
    raise CheckError(
        f"{graph.name} is not well formed:{listed}",
        next((d.location for d in found if d.location is not None), None),
    )
