"""The evaluator: what a program or μGraph means, over any array domain.

One walk serves NumPy floats (the reference semantics, and with rounding a model of a
real run) and field residues (verification).  It follows the nodes of the kernel graph;
`ir.evaluate_block` evaluates a block graph for all blocks and iterations at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from mirage_dsl.errors import CheckError
from mirage_dsl.ir.domain import Domain
from mirage_dsl.ir.evaluate_block import evaluate_block
from mirage_dsl.ir.graph import Apply, BlockGraph, Input, KernelGraph, Return
from mirage_dsl.ir.infer import block_types, kernel_types
from mirage_dsl.ir.maps import bind_extents
from mirage_dsl.ir.named import Named, NamedArrays
from mirage_dsl.types import TensorType

V = TypeVar("V")


def evaluate(graph: KernelGraph, inputs: Sequence[V], domain: Domain[V]) -> list[V]:
    """The outputs of `graph`, in order, with axes as the returned types say.

    Args:
        graph: A program or μGraph that `check` accepts.
        inputs: One array per input, axes as the input's type says.
        domain: The arithmetic.

    Raises:
        ShapeError: The arrays do not fit the input types.
        CheckError: The graph is not well formed in a way that shows here.
    """
    extents = bind_extents(graph, [domain.shape(v) for v in inputs])
    types = kernel_types(graph)
    arrays = NamedArrays(domain)
    values: dict[str, Named[V]] = {}
    for item, value in zip(graph.inputs, inputs, strict=True):
        values[item.name] = _from_caller(arrays, item, value, extents)
    for node in graph.nodes:
        match node:
            case Apply():
                values[node.result] = _apply(
                    arrays, node, values, extents, types[node.result]
                )
            case BlockGraph():
                block_types(node, types)
                values.update(evaluate_block(node, values, extents, domain))
    return [_to_caller(arrays, r, _lookup(values, r.value)) for r in graph.returns]


def _lookup(values: Mapping[str, Named[V]], name: str) -> Named[V]:
    if name not in values:
        raise CheckError(f"unknown value {name}; a node must define it first")
    return values[name]


def _from_caller(
    arrays: NamedArrays[V], item: Input, value: V, extents: Mapping[str, int]
) -> Named[V]:
    names = item.type.names
    flat = arrays.domain.reshape(value, tuple(extents[n] for n in names))
    return Named(arrays.domain.cast(flat, item.type.dtype), names)


def _apply(
    arrays: NamedArrays[V],
    node: Apply,
    values: Mapping[str, Named[V]],
    extents: Mapping[str, int],
    result: TensorType,
) -> Named[V]:
    """A library kernel: its result is rounded to its storage format."""
    operands = [
        _lookup(values, o)
        if isinstance(o, str)
        else Named(arrays.domain.constant(o, extents), ())
        for o in node.operands
    ]
    found = arrays.apply(node, operands)
    return Named(arrays.domain.cast(found.value, result.dtype), found.labels)


def _to_caller(arrays: NamedArrays[V], item: Return, named: Named[V]) -> V:
    if sorted(item.type.names) != sorted(map(str, named.labels)):
        raise CheckError(
            f"returned {item.value} has the dims {', '.join(map(str, named.labels))}, "
            f"its returned type is {item.type}"
        )
    moved = arrays.arranged(named, item.type.names)
    sizes = dict(zip(moved.labels, arrays.domain.shape(moved.value), strict=True))
    shape: list[int] = []
    for axis in item.type.axes:
        extent = 1
        for dim in axis:
            extent *= sizes[dim.name]
        shape.append(extent)
    value = arrays.domain.reshape(moved.value, tuple(shape))
    return arrays.domain.cast(value, item.type.dtype)
