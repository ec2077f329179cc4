"""Results that are stored where an argument lies: `kernel(cache, new, out=cache)`.

A kernel stores what one block computes while others still read.  So a result may take
the place of an input only where one kernel reads the input, the one that stores the
result, and each of its blocks reads just the elements that it stores.  Elsewhere the
result is computed beside and copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirage_dsl.ir.analysis.layouts import FlatValues, Groups, flat_values
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Load, Store, dims_of
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.walk import operands_of, results_of
from mirage_dsl.ops.definition import Kind

if TYPE_CHECKING:
    import torch

Pairs = tuple[tuple[int, int, int], ...]
"""Numbers of an input and of a result, and by how many bytes that lies behind."""


def span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    if not tensor.numel():
        return 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * (1 + sum((n - 1) * s for n, s in pairs))


def overlaps(tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> Pairs:
    """Which results share memory with which inputs, and how far apart they begin.

    Raises:
        RuntimeError: A tensor has no memory or no strides.
    """
    found: list[tuple[int, int, int]] = []
    for at, given in enumerate(tensors if out else ()):
        begin, end = given.data_ptr(), given.data_ptr() + span(given)
        for to, taken in enumerate(out):
            first = taken.data_ptr()
            if begin < first + span(taken) and first < end:
                found.append((at, to, first - begin))
    return tuple(found)


def may_stay(
    graph: KernelGraph,
    pairs: Pairs,
    tensors: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
) -> bool:
    """Whether results may be stored where these inputs lie."""
    return all(
        _same_place(tensors[at], out[to])
        and _reads_what_it_stores(graph, graph.inputs[at].name, graph.returns[to].value)
        for at, to, _ in pairs
    )


def _same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    layouts: list[tuple[Any, ...]] = [
        (t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (a, b)
    ]
    return layouts[0] == layouts[1]


def _reads_what_it_stores(graph: KernelGraph, source: str, result: str) -> bool:
    """Whether one kernel reads a tensor, of which each block stores what it reads."""
    flat = flat_values(graph, kernel_types(graph))
    read, stored = flat.of(source) or (source,), flat.of(result) or (result,)
    readers = [
        n
        for n in graph.nodes
        if {source, *read} & set(operands_of(n)) and not flat.unmade & {*results_of(n)}
    ]
    if len(readers) != 1 or sum(r.value == result for r in graph.returns) != 1:
        return False
    (block,) = readers
    if not isinstance(block, BlockGraph) or len({*read, *stored}) != 2:
        return False
    if len({_groups(flat, v) for v in (*read, *stored)}) != 1:
        return False
    stores = [n for n in block.nodes if isinstance(n, Store) and n.result in stored]
    if len(stores) != 1:
        return False
    own = {d.name for d in dims_of(stores[0].axes) if d.grid}
    loads = [n for n in block.nodes if isinstance(n, Load) and n.source in read]
    picked = {
        n.values[0] for n in block.applies if n.op.kind is Kind.GATHER and n.values
    }
    return own >= {s.dim for s in block.grid} and all(
        _without_loop(n) == stores[0].axes and n.result not in picked for n in loads
    )


def _groups(flat: FlatValues, value: str) -> Groups | None:
    """How the axes of a value lie in another tensor; None of one that lies in none."""
    return flat.within[value].groups if value in flat.within else None


def _without_loop(load: Load) -> object:
    """The axes of what all iterations read together."""
    return tuple(tuple(replace(d, loop=False) for d in axis) for axis in load.axes)


__all__ = ["Pairs", "may_stay", "overlaps", "span"]
