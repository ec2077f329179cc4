"""One kernel for all shorter extents of a dim gives what a kernel of its own gives.

The kernels are those that are found for random programs; each dim of their inputs in
turn becomes symbolic.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import pytest

from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import ShapeError, UnsupportedError
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import bind_extents, derived_extents, with_symbolic
from tests.end_to_end.searching import relative_error
from tests.end_to_end.test_random_programs import searched

torch = pytest.importorskip("torch")

SEEDS = range(12)
FEWEST = 100
"""Comparisons of all seeds together, of a few hundred."""

compared: list[int] = []


def shorter(extent: int) -> list[int]:
    return sorted({1, (extent + 1) // 2, extent - 1})


def at(graph: KernelGraph, dim: str, extent: int) -> KernelGraph | None:
    """The graph at an extent of a dim; None if others contradict it."""
    sizes = derived_extents(graph, {**graph.extent_of, dim: extent})
    found = graph.with_extents(sizes)
    return None if check(found) else found


def tensors(graph: KernelGraph) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [
        (0.5 + torch.rand(_shape(graph, axes), generator=generator)).to(dtype)
        for axes, dtype in (
            (i.type.axes, getattr(torch, i.type.dtype.long_name)) for i in graph.inputs
        )
    ]


def _shape(graph: KernelGraph, axes: Any) -> list[int]:
    return [prod(graph.extent_of[d.name] or 1 for d in axis) for axis in axes]


def cases(graph: KernelGraph) -> Iterator[tuple[TritonExecutable, KernelGraph]]:
    """Kernels that serve several extents, each with the graph at one of them."""
    most = {n: e for n, e in graph.extents if e is not None}
    for dim in dict.fromkeys(n for i in graph.inputs for n in i.type.names):
        if most[dim] == 1:
            continue
        symbolic = with_symbolic(graph, [dim])
        try:
            shared = TritonExecutable(symbolic, interpret=True, most=most)
        except UnsupportedError:
            continue
        for extent in shorter(most[dim]):
            sized = at(graph, dim, extent)
            if sized is None:
                continue
            shapes = [tuple(_shape(sized, i.type.axes)) for i in sized.inputs]
            try:
                bind_extents(symbolic, shapes)
            except ShapeError:  # The extent of another input follows from it.
                continue
            yield shared, sized


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_shared_kernels(seed: int) -> None:
    for candidate in searched(seed).candidates[:2]:
        if not candidate.mugraph.blocks:
            continue
        for shared, sized in cases(candidate.mugraph):
            given = tensors(sized)
            expected = TritonExecutable(sized, interpret=True)(*given)
            for a, b in zip(shared(*given), expected, strict=True):
                assert a.shape == b.shape
                if torch.isfinite(b).all():
                    epsilon = torch.finfo(b.dtype).eps
                    assert relative_error(a, b.double().numpy()) <= epsilon, str(sized)
                    compared.append(seed)


def test_enough_was_compared() -> None:
    if set(SEEDS) <= set(compared):
        assert len(compared) >= FEWEST
