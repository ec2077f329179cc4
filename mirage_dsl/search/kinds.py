"""Kinds of plans: what a tuner gets to see of each, whatever the estimate says.

The estimate ranks plans of one kind better than those of different kinds: it may wrong
library kernels, or the cost of another launch.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.definition import Kind
from mirage_dsl.search.result import Plan


def is_one_kernel(graph: KernelGraph) -> bool:
    """Whether a graph launches one generated kernel and nothing else."""
    return len(graph.blocks) == 1 and all(a.is_view for a in graph.applies)


def leaves_products(graph: KernelGraph) -> bool:
    """Whether library kernels compute all products, and generated ones the rest."""
    inside = [n for b in graph.blocks for n in b.applies]
    return bool(inside) and all(n.op.kind is not Kind.CONTRACTION for n in inside)


def splits_a_loop(graph: KernelGraph) -> bool:
    """Whether a kernel stores parts of sums, which a later one joins."""
    axes = [a for b in graph.blocks for store in b.stores for a in store.axes]
    return any(d.grid and d.name.endswith("#") for axis in axes for d in axis)


def with_every_kind(plans: Sequence[Plan], count: int) -> list[Plan]:
    """The plans in their order, but the best of each kind among the first `count`."""
    wanted: list[Plan] = []
    for kind in (is_one_kernel, leaves_products, splits_a_loop):
        best = next((p for p in plans if kind(p.graph)), None)
        if best is not None and best not in plans[:count]:
            wanted.append(best)
    before = count - len(wanted)
    if before < 1:
        return list(plans)
    others = [p for p in plans if p not in wanted]
    return [*others[:before], *wanted, *others[before:]]
