"""Operators of a graph as a program of their own, and what computes it in their place.

a = conv2d x, w ..                              a = conv2d x, w ..
p = max_pool2d a ..      <->  p of a alone  ->  p = block grid(..) { .. }
y = matmul p, v                                 y = matmul p, v
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirage_dsl.ir import graph as ir
from mirage_dsl.ir.canonical import FreshNames, Renaming, free_name
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import read_by, results_of


def alone(graph: ir.KernelGraph, part: Sequence[ir.Apply]) -> ir.KernelGraph:
    """The program of some operators of a graph, of which others see the last.

    What it is given has the axes that it has there, as kernels load it by these.
    """
    types = kernel_types(graph)
    made = {n.result for n in part}
    given = sorted(read_by(part) - made)
    last = part[-1].result
    used = {n for v in (*given, *made) for n in types[v].names}
    return ir.KernelGraph(
        graph.name,
        tuple(ir.Input(v, types[v]) for v in given),
        tuple(part),
        (ir.Return(last, types[last]),),
        tuple((n, e) for n, e in graph.extents if n in used),
    )


def in_place(
    graph: ir.KernelGraph, part: Sequence[ir.Apply], made: ir.KernelGraph
) -> ir.KernelGraph:
    """A graph with what computes the program of some operators in their place.

    Whatever has a name of its own there has a new one here.  Of the operators, the last
    one is replaced; those that nobody sees any more are for `without_dead`.
    """
    names, known = FreshNames(graph), dict(graph.extents)
    own = alone(graph, part).extent_of
    dims: dict[str, str] = {}
    for name, extent in made.extents:
        if name not in own:
            dims[name] = free_name(name, known)
            known[dims[name]] = extent
    (returned,) = made.returns
    tensors = [i.name for i in made.indices]
    tensors += [name for node in made.nodes for name in results_of(node)]
    values = {name: names.fresh(name) for name in tensors}
    values[returned.value] = part[-1].result
    inner = tuple(
        {n.result: names.fresh(n.result) for n in block.made} for block in made.blocks
    )
    placed = Renaming(dims, values, inner).graph(made)
    at = graph.nodes.index(part[-1])
    nodes = (*graph.nodes[:at], *placed.nodes, *graph.nodes[at + 1 :])
    return replace(
        graph,
        nodes=nodes,
        indices=(*graph.indices, *placed.indices),
        extents=tuple(sorted({**known, **placed.extent_of}.items())),
    )
