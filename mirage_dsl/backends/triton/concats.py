"""Concatenations inside a block, resolved into their parts.

Registers cannot be joined; but what is computed from a joined value is computed from
its parts:

    j = concat a, b dims(k, r) to(j)      p1 = matmul a, c over(k)
    q = concat c, d dims(k, r) to(j)      p2 = matmul b, d over(r)
    p = matmul j, q over(j)          →    p  = add p1, p2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage_dsl.errors import UnsupportedError
from mirage_dsl.ir.graph import Accumulate, Apply, BlockGraph, BlockNode, Load
from mirage_dsl.ops.definition import Kind, Term
from mirage_dsl.ops.table import ADD, MAXIMUM
from mirage_dsl.types import TensorType

Parts = tuple[str, ...]


def split_concats(block: BlockGraph, types: Mapping[str, TensorType]) -> BlockGraph:
    """The block without concatenations.

    Raises:
        UnsupportedError: A joined value is used in a way that needs it whole.
    """
    if not any(isinstance(n, Apply) and n.op.kind is Kind.CONCAT for n in block.nodes):
        return block
    return replace(block, nodes=tuple(_Splitter(types).split(block.nodes)))


class _Splitter:
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
                case Load() | Apply():
                    self._nodes.append(node)
                case _:
                    self._refuse_parts(node.operand, node)
                    self._nodes.append(node)
        return self._nodes

    def _refuse_parts(self, value: str, node: BlockNode) -> None:
        if value in self._parts:
            raise UnsupportedError(
                f"{node.result} needs {value} whole, but Triton cannot join values in "
                f"registers; store its parts, and concatenate at the kernel level"
            )

    def _apply(self, node: Apply) -> None:
        first = next(v for v in node.values if v in self._parts)
        to, dims = self._dims[first]
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
        op = ADD if node.op.term in (Term.SUM, Term.CONTRACT) else MAXIMUM
        total, *rest = names
        for index, name in enumerate(rest):
            last = index == len(rest) - 1
            result = node.result if last else f"{node.result}.upto{index + 1}"
            self._nodes.append(Apply(result, op, (total, name), location=node.location))
            total = result

    def _accumulate(self, node: Accumulate) -> None:
        if node.kind == "concat":
            self._refuse_parts(node.operand, node)
        names: list[str] = []
        for index, part in enumerate(self._parts[node.operand]):
            names.append(f"{node.result}.{index}")
            self._nodes.append(replace(node, result=names[-1], operand=part))
        self._parts[node.result] = tuple(names)
        self._dims[node.result] = self._dims[node.operand]


__all__ = ["split_concats"]
