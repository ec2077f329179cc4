"""Mirage's parameters as restrictions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.sizes import Constraints, choose_sizes
from tests.search import blocks

ATTENTION = blocks.attention(1)
"""Grid z (axis 0 of all tensors) and m (axis 1 of Q and the output), loop over n."""


def sized(graph: KernelGraph, constraints: Constraints) -> list[KernelGraph]:
    block = graph.blocks[0]
    if not constraints.admits_structure(block):
        return []
    found = choose_sizes(
        block,
        kernel_types(graph),
        graph.extent_of,
        allowed=constraints.sizes(block),
        hardware=H100,
    )
    return [replace(graph, nodes=(s.block,)) for s in found]


def test_nothing_given_allows_everything() -> None:
    free = Constraints()
    assert free.admits(ATTENTION)
    assert sized(ATTENTION, free)


@pytest.mark.parametrize("grid", [(2, 4, 1), (4, 2, 1), (1, 2, 4)])
def test_grids_in_any_order_of_axes(grid: tuple[int, int, int]) -> None:
    constraints = Constraints(griddims=(grid,))
    found = sized(ATTENTION, constraints)
    assert found
    for graph in found:
        split = graph.blocks[0].grid_split("m")
        assert split is not None
        assert split.tile == 64
        assert constraints.admits(graph)
    assert not constraints.admits(blocks.attention(1, rows=32))


def test_grids_that_the_structure_cannot_have() -> None:
    # z has extent 2, so it cannot be cut into 16.
    assert sized(ATTENTION, Constraints(griddims=((16, 16, 1),))) == []


def test_imaps_are_axes_of_inputs() -> None:
    # q: z splits axis 0, m axis 1; k and v: z splits axis 0 and m none.
    allowed = Constraints(imaps=((0, 1, -1), (0, -1, -1)))
    assert allowed.admits_structure(ATTENTION.blocks[0])
    assert not Constraints(imaps=((0, 1, -1),)).admits_structure(ATTENTION.blocks[0])


def test_grid_axes_are_placed_alike_for_all_maps() -> None:
    # With x for m and y for z in the inputs, the output must use the same places.
    imaps = ((1, 0, -1), (-1, 0, -1))
    same = Constraints(imaps=imaps, omaps=((1, 0, -1),))
    other = Constraints(imaps=imaps, omaps=((0, 1, -1),))
    assert same.admits_structure(ATTENTION.blocks[0])
    assert not other.admits_structure(ATTENTION.blocks[0])


def test_placement_binds_grids_too() -> None:
    maps = {"imaps": ((0, 1, -1), (0, -1, -1)), "omaps": ((0, 1, -1),)}
    assert sized(ATTENTION, Constraints(griddims=((2, 4, 1),), **maps))
    assert sized(ATTENTION, Constraints(griddims=((4, 2, 1),), **maps)) == []


def test_fmaps_are_axes_that_the_loop_splits() -> None:
    block = ATTENTION.blocks[0]
    assert Constraints(fmaps=(-1, 1, 2)).admits_structure(block)
    assert not Constraints(fmaps=(-1, 2)).admits_structure(block)
    assert not Constraints(fmaps=(1, 2)).admits_structure(block)


def test_franges_are_numbers_of_iterations() -> None:
    constraints = Constraints(franges=(16,))
    found = sized(ATTENTION, constraints)
    assert found
    for graph in found:
        loop = graph.blocks[0].loop
        assert loop is not None
        assert loop.tile == 256
    assert not constraints.admits(blocks.attention(1, step=128))


def test_a_block_without_a_loop_has_one_iteration() -> None:
    graph = blocks.ntrans(8)
    assert sized(graph, Constraints(franges=(1,)))
    assert sized(graph, Constraints(franges=(4, 16))) == []


def test_odd_grids_get_odd_tiles() -> None:
    graph = blocks.rms_linear(1).with_extents({"k": 3584, "n": 4736})
    found = sized(graph, Constraints(griddims=((37, 1, 1),), franges=(56,)))
    assert found
    assert {g.blocks[0].grid[0].tile for g in found} == {128}
    assert {g.blocks[0].loop.tile for g in found if g.blocks[0].loop} == {64}


def test_blockdims_are_threads() -> None:
    found = sized(ATTENTION, Constraints(blockdims=((256, 1, 1),)))
    assert {g.blocks[0].schedule.num_warps for g in found} == {8}
    with pytest.raises(SearchError, match="100 threads"):
        sized(ATTENTION, Constraints(blockdims=((100, 1, 1),)))


DECODING = parse("""mirage 1

mugraph decode(q: f16[b, m, d], k: f16[b, d, n], v: f16[b, n, d2]) -> f16[b, m, d2]
  where b = 2, m = 64, d = 16, n = 256, d2 = 16 {
  o, s = block grid(b / 1, n / 64, m / 16) {
    q_t: f16[b/grid, m/grid, d] = load q
    k_t: f16[b/grid, d, n/grid] = load k
    x: f32[b/grid, m/grid, n/grid] = matmul q_t, k_t over(d)
    e: f32[b/grid, m/grid, n/grid] = exp x
    l: f32[b/grid, m/grid] = sum e over(n)
    e2: f16[b/grid, m/grid, n/grid] = cast e dtype(f16)
    v_t: f16[b/grid, n/grid, d2] = load v
    y: f32[b/grid, m/grid, d2] = matmul e2, v_t over(n)
    store o: f32[n#/grid, b/grid, m/grid, d2] = y
    store s: f32[b/grid, m/grid, n#/grid] = l
  }
  r = block grid(b / 1, m / 4) {
    o_t: f32[n#, b/grid, m/grid, d2] = load o
    s_t: f32[b/grid, m/grid, n#] = load s
    total: f32[b/grid, m/grid, d2] = sum o_t over(n#)
    norm: f32[b/grid, m/grid] = sum s_t over(n#)
    y: f32[b/grid, m/grid, d2] = div total, norm
    store r: f16[b/grid, m/grid, d2] = y
  }
  return r
}
""")
IMAPS = ((0, -1, -1), (0, 1, -1), (0, 2, -1), (0, -1, 1))
OMAPS = ((0, -1, -1), (0, 1, -1), (0, 2, -1), (0, 2, 1))
"""Mirage's own for attention: parts lie side by side along axis 2 of the outputs."""


def test_parts_lie_along_any_axis_that_a_map_names() -> None:
    grids = ((2, 4, 4), (2, 16, 1))
    assert check(DECODING) == []
    assert Constraints(grids, None, IMAPS, OMAPS, (-1, 1, 2)).admits(DECODING)
    # An output that y does not split cannot be made by several blocks along y.
    whole = ((0, -1, -1), (0, -1, 1), (0, 1, -1))
    assert not Constraints(grids, None, IMAPS, whole).admits(DECODING)
    # The axis of the parts does not shift the numbers of the others.
    shifted = ((1, 3, 2), (1, 2, -1))
    assert not Constraints(grids, None, IMAPS, shifted).admits(DECODING)


def test_a_dim_in_one_part_is_no_second_kernel() -> None:
    short = ATTENTION.with_extents({"m": 64})
    assert sized(short, Constraints(griddims=((2, 2, 1),), franges=(16,)))
    # Its grid splits z and m, its loop n: in one part they are another structure's.
    assert sized(short, Constraints(griddims=((2, 1, 1),), franges=(16,))) == []
    assert sized(short, Constraints(griddims=((2, 2, 1),), franges=(1,))) == []
