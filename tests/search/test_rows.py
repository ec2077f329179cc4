"""Products of a vector and a matrix, as the cost model and the lowering see them."""

from __future__ import annotations

import pytest

from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.hardware import H100, H200
from mirage_dsl.core.types import f16
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.facts import facts_of
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.search.sizes import choose_sizes


def product(tile: int, *, row: str = "1, k", step: int = 4096) -> KernelGraph:
    """A row, or a vector, times a matrix of 14336 rows, `tile` of them in a block."""
    g = KernelBuilder("product", k=4096, n=14336)
    x, w = g.input("x", f16, row), g.input("w", f16, "n, k")
    loop = ("k", step) if step < 4096 else None
    with g.block(grid={"n": tile}, loop=loop, schedule=Schedule(4, 2)) as b:
        part = "k/loop" if loop else "k"
        left = b.load(x, row.replace("k", part))
        right = b.load(w, f"n/grid, {part}")
        found = b.matmul(right, left, over="k")
        out = b.store(b.accumulate(found) if loop else found, "1, n/grid")
    return g.returns(out).build()


@pytest.mark.parametrize("step", [256, 4096])
@pytest.mark.parametrize("row", ["1, k", "k"])
@pytest.mark.parametrize("tile", [1, 4, 8, 16, 64])
def test_the_cost_model_knows_what_the_lowering_does(
    tile: int, row: str, step: int
) -> None:
    graph = product(tile, row=row, step=step)
    extents = derived_extents(graph, graph.extent_of)
    facts = facts_of(graph.blocks[0], kernel_types(graph), extents)
    (only,) = facts.products
    assert only.is_matrix == ("tl.dot" in emit(graph))


def test_small_blocks_that_read_a_matrix_once_are_fast() -> None:
    # Measured on an H200: 117 MB in 28 µs.
    assert estimate(product(4), H200).microseconds < 50
    assert estimate(product(4), H200).feasible


def test_tiles_below_the_matrix_units_are_tried() -> None:
    graph = product(64)
    found = choose_sizes(
        graph.blocks[0], kernel_types(graph), graph.extent_of, hardware=H100
    )
    assert found[0].block.grid[0].tile < 16
    assert found == sorted(found, key=lambda s: s.microseconds)
