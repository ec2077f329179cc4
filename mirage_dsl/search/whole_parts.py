"""Slices that show what was concatenated get the dims of what they show.

    c = concat s, t dims(k, r) to(q)               c = concat s, t dims(k, r) to(q)
    e = exp c                                      e = exp c
    p = slice e dim(q) start(0) stop(K) to(h) ->   p = slice e dim(q) ... to(k)
    y = matmul p, v over(h)                        y = matmul p, v over(k)

where K is the extent of k.  What is computed along k is then the same for all readers:
for p, and for sums over q that are taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.rename import Renaming
from mirage_dsl.ops.definition import Kind
from mirage_dsl.ops.table import SLICE


def name_whole_parts(program: KernelGraph) -> KernelGraph:
    """The program with one name for a concatenated dim and for the slice that shows it.

    Args:
        program: A program of operators of known extents.
    """
    for seen, dim in _whole_parts(program):
        types = kernel_types(program).values()
        if seen != dim and not any({seen, dim} <= set(t.names) for t in types):
            renamed = Renaming(dims={seen: dim}).graph(program)
            merged = tuple(sorted(dict(renamed.extents).items()))
            return name_whole_parts(replace(renamed, extents=merged))
    return program


def _whole_parts(program: KernelGraph) -> Iterator[tuple[str, str]]:
    """Dims of slices, each with the concatenated dim that it shows all of."""
    extents = derived_extents(program, program.extent_of)
    nodes = [n for n in program.nodes if isinstance(n, Apply)]
    slices = [n for n in nodes if n.op is SLICE]
    for node in nodes:
        joined = node.attr("dims") if node.op.kind is Kind.CONCAT else ()
        assert isinstance(joined, tuple)
        start = 0
        for dim in joined:
            stop = start + (extents[dim] or 0)
            for part in slices:
                place = part.attr("dim"), part.attr("start"), part.attr("stop")
                if place == (node.attr("to"), start, stop):
                    yield str(part.attr("to")), dim
            start = stop


__all__ = ["name_whole_parts"]
