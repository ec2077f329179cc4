"""Products of vectors with matrices that a product of matrices reads as well.

The lowering makes a row of such a vector, and the cost model has to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_dsl.ir.graph import Apply, BlockGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.types import Dim, TensorType

HALF = 2
"""Bytes of an element that the matrix unit takes without rounding it."""


@dataclass(frozen=True)
class Beside:
    """A vector beside a product of matrices.

    Attributes:
        vector: The loaded value.
        over: Its dims, all of which are summed.
        columns: Dims that only the matrix has.
    """

    vector: str
    over: tuple[Dim, ...]
    columns: tuple[Dim, ...]


def vectors_beside(
    block: BlockGraph, types: Mapping[str, TensorType]
) -> dict[str, Beside]:
    """Products of loaded vectors that could be rows, by their results.

    Args:
        block: The block.
        types: Of its values.
    """
    products = [
        n
        for n in block.nodes
        if isinstance(n, Apply) and n.op.kind is Kind.CONTRACTION and len(n.values) == 2
    ]
    dims = {v: types[v].dims for n in products for v in n.values}
    shared: set[str] = set()
    for node in products:
        first, second = (set(dims[v]) for v in node.values)
        if not first <= second and not second <= first:
            shared.update(node.values)
    loads = {n.result for n in block.loads}
    found: dict[str, Beside] = {}
    for node in products:
        formats = {types[v].dtype for v in node.values}
        if len(formats) > 1 or types[node.values[0]].dtype.itemsize != HALF:
            continue
        for vector, matrix in (node.values, node.values[::-1]):
            over = tuple(d for d in dims[vector] if d.name in node.over)
            if vector in loads and matrix in shared and over == dims[vector]:
                columns = tuple(d for d in dims[matrix] if d not in over)
                found[node.result] = Beside(vector, over, columns)
    return found
