"""Roundings that a program asks for, left out where nothing tells.

A function that asks for a narrower format, as `x.half()`, rounds.  Most often that is
storage: what is computed of it is rounded as coarsely again, and a kernel may keep the
finer number.  It is more where a finer format goes on with the rounded number:

    h = round_f16 x          x - h is what the rounding took, and not 0
    y = to_i32 h             2049 becomes 2048

So a rounding stays where a path leads from it to a result of a finer format, or to an
operator that jumps where its operand moves a little.  Before → after, elsewhere:

    r = round_f16 x          h = cast x dtype(f16)
    h = cast r dtype(f16)    p = matmul h, w
    p = matmul h, w
"""

from __future__ import annotations

from dataclasses import replace

from mirage_dsl.core.types import DType
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import users, with_operands, with_returned
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import ROUNDINGS

_ROWS = {row: dtype for dtype, row in ROUNDINGS.items()}
_MOVES = (Kind.VIEW, Kind.GATHER, Kind.CONCAT)


def without_unseen_roundings(program: KernelGraph) -> KernelGraph:
    """The same program without roundings that nothing shows.

    Args:
        program: A traced program.
    """
    roundings = [node for node in program.applies if node.op in _ROWS]
    if not roundings:
        return program
    seeing = _Seeing(program)
    unseen = {
        node.result: node.values[0]
        for node in roundings
        if not seeing.sees(node.result, _ROWS[node.op])
    }
    if not unseen:
        return program
    for name, value in unseen.items():
        unseen[name] = unseen.get(value, value)
    nodes = tuple(
        with_operands(n, unseen)
        for n in program.nodes
        if not (isinstance(n, Apply) and n.result in unseen)
    )
    return with_returned(replace(program, nodes=nodes), unseen)


class _Seeing:
    """Who reads what in a program, and in which formats."""

    def __init__(self, program: KernelGraph) -> None:
        self.users = users(program.nodes)
        self.types = kernel_types(program)
        self.returned = {r.value for r in program.returns}

    def sees(self, value: str, dtype: DType) -> bool:
        """Whether anything shows that a value was rounded to a format."""
        # What a rounding gives is in the wide format; its cast is the first reader.
        waiting, met = [value], {value}
        while waiting:
            name = waiting.pop()
            finer = not self.types[name].dtype.is_within(dtype)
            if name in self.returned and finer:
                return True
            for node in self.users[name]:
                if not isinstance(node, Apply) or node.op.jumps:
                    return True
                if node.op in _ROWS:
                    if _ROWS[node.op] != dtype:
                        return True
                    continue
                found = self.types[node.result].dtype
                moved = node.op.kind in _MOVES or node.op.chooses
                if node.result not in met and (moved or not found.is_within(dtype)):
                    met.add(node.result)
                    waiting.append(node.result)
        return False
