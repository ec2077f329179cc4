"""Gathers move towards the inputs, so that less is computed.

    l = sub x, s                       g = gather x, i dim(k)
    y = gather l, i dim(k)      ->     y = sub g, s

where s lacks k.  What is computed element by element of what is gathered has as few
elements as that; of a row of logits, the one that its label names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from mirage_dsl.core.types import TensorType
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.rename import FreshNames
from mirage_dsl.ir.walk import makers, without_dead
from mirage_dsl.ops.definition import Kind


def gather_first(program: KernelGraph) -> KernelGraph:
    """The program with gathers of what is computed element by element before that.

    Only where no more elements are gathered than there are; others stay.

    Args:
        program: Operators of known extents.
    """
    mover = _Mover(program)
    nodes = [made for node in program.applies for made in mover.moved(node)]
    if nodes == list(program.applies):
        return program
    return without_dead(replace(program, nodes=tuple(nodes)))


class _Mover:
    def __init__(self, program: KernelGraph) -> None:
        self.program = program
        self.types = kernel_types(program)
        self.made = makers(program)
        self.names = FreshNames(program)

    def moved(self, node: Apply) -> list[Apply]:
        """A node, or what computes a gather's result of gathered operands."""
        if node.op.kind is not Kind.GATHER or not self._passes(node, node.values[0]):
            return [node]
        nodes = self._of(self.made[node.values[0]], node, node.result)
        made = kernel_types(replace(self.program, nodes=self._before(node, nodes)))
        same = made[node.result] == self.types[node.result]
        return nodes if same else [node]

    def _before(self, node: Apply, nodes: list[Apply]) -> tuple[Apply, ...]:
        """The operators up to a gather, with others in its place."""
        applies = self.program.applies
        return (*applies[: applies.index(node)], *nodes)

    def _passes(self, gather: Apply, value: str) -> bool:
        """Whether a value is computed element by element, of as many at least."""
        by = self.made.get(value)
        return (
            by is not None
            and by.op.kind is Kind.ELEMENTWISE
            and gather.attr("dim") in self.types[value].names
            and _elements(self.types, gather.result, self.program)
            <= _elements(self.types, value, self.program)
        )

    def _of(self, by: Apply, gather: Apply, result: str) -> list[Apply]:
        """What computes a gathered result of gathered operands."""
        nodes: list[Apply] = []
        operands = list(by.operands)
        for at, operand in enumerate(operands):
            if isinstance(operand, str) and (
                gather.attr("dim") in self.types[operand].names
            ):
                fresh = self.names.fresh(f"{operand}_gathered")
                operands[at] = fresh
                if self._passes(gather, operand):
                    nodes += self._of(self.made[operand], gather, fresh)
                else:
                    rest = gather.operands[1:]
                    nodes.append(
                        replace(gather, result=fresh, operands=(operand, *rest))
                    )
        return [*nodes, replace(by, result=result, operands=tuple(operands))]


def _elements(
    types: Mapping[str, TensorType], value: str, program: KernelGraph
) -> float:
    """How many elements a value has; of unknown extents, no number."""
    extents = (program.extent_of[name] for name in types[value].names)
    return math.prod(e if e is not None else math.nan for e in extents)


__all__ = ["gather_first"]
