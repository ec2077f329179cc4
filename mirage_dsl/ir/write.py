"""Operators written one after the other, each under a name that is free."""

from __future__ import annotations

from typing import Protocol

from mirage_dsl.core.types import AxisNames
from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import FreshNames
from mirage_dsl.ops import table
from mirage_dsl.ops.definition import Operator


class NodeList(Protocol):
    """A list of nodes of any level."""

    def append(self, node: ir.Apply, /) -> None:
        """Add an operator."""
        ...


class OperatorWriter:
    """Appends operators to a list of nodes.

    Args:
        nodes: The list; others may add to it, too.
        names: Where the names of results are taken from.
    """

    def __init__(self, nodes: NodeList, names: FreshNames) -> None:
        self._nodes, self._names = nodes, names

    def __call__(
        self, name: str, op: Operator, *operands: ir.Operand, **attrs: ir.AttrValue
    ) -> str:
        """Write an operator, whose result is called `name` if that is free.

        Returns the name of the result.
        """
        result = self._names.fresh(name)
        given = tuple(sorted(attrs.items()))
        self._nodes.append(ir.Apply(result, op, operands, given))
        return result


# -- Dims as one, and apart ------------------------------------------------------------


def flatten(result: str, value: str, dims: tuple[str, ...], to: str) -> ir.Apply:
    """A view of several dims as one."""
    of = AxisNames(tuple((dim,) for dim in dims))
    return ir.Apply(result, table.FLATTEN, (value,), (("of", of), ("to", to)))


def unflatten(result: str, value: str, dim: str, dims: tuple[str, ...]) -> ir.Apply:
    """A view of one dim as several."""
    gives = AxisNames(tuple((dim,) for dim in dims))
    attrs: ir.Attrs = (("dim", dim), ("gives", gives))
    return ir.Apply(result, table.UNFLATTEN, (value,), attrs)
