"""Products of a vector and a matrix: the lowering makes a row of some vectors.

The matrix unit takes the product then, though it works for one row of sixteen.  Where
the tile of the matrix is smaller than what the unit takes, the product is multiplied
and summed in registers: many small blocks of that kind read a matrix at the full rate
of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_dsl.ir.graph import Apply, BlockGraph, Load, Store
from mirage_dsl.search.orientation import is_product, operands_of
from mirage_dsl.types import Dim, TensorType

MATRIX_TILE = 16
"""Sides of a matrix-unit tile: shorter sides of a product are padded to it."""


@dataclass(frozen=True)
class VectorProduct:
    """A product of a vector that could become a row.

    Attributes:
        tensors: Those that the vector alone is computed from, to which a row is added.
        over: What is summed.
        columns: Dims that only the matrix has.
    """

    tensors: frozenset[str]
    over: frozenset[Dim]
    columns: frozenset[Dim]


def vector_products(
    block: BlockGraph, types: Mapping[str, TensorType], outer: Mapping[str, TensorType]
) -> list[VectorProduct]:
    """The products of vectors of a block.

    A vector can only be told to be a row where its tensor has an axis of extent 1.
    """
    sources = _sources(block)
    found: list[VectorProduct] = []
    for node in block.nodes:
        if not isinstance(node, Apply) or not is_product(node) or len(node.values) != 2:
            continue
        first, second = node.values
        dims = {v: set(types[v].dims) for v in node.values}
        if (dims[first] <= dims[second]) == (dims[second] <= dims[first]):
            continue
        vector, matrix = (
            (first, second) if dims[first] <= dims[second] else (second, first)
        )
        over = frozenset(d for d in dims[vector] if d.name in node.over)
        summed = {d.name for d in over}
        tensors = frozenset(
            s
            for s in sources[vector] - sources[matrix]
            if () in outer[s].axes and not summed.isdisjoint(outer[s].names)
        )
        columns = frozenset(dims[matrix] - dims[vector])
        if tensors:
            found.append(VectorProduct(tensors, over, columns))
    return found


def with_a_row(block: BlockGraph, tensors: Iterable[str]) -> frozenset[str]:
    """Values that are computed from tensors to which a row is added."""
    added = set(tensors)
    return frozenset(v for v, of in _sources(block).items() if not of.isdisjoint(added))


def _sources(block: BlockGraph) -> dict[str, frozenset[str]]:
    """The tensors from which each value is computed."""
    found: dict[str, frozenset[str]] = {}
    for node in block.nodes:
        if isinstance(node, Load):
            found[node.result] = frozenset({node.source})
        elif not isinstance(node, Store):
            parts = (found[v] for v in operands_of(node))
            found[node.result] = frozenset[str]().union(*parts)
    return found
