"""Split loops in the search: when they are tried, sized, and which ones win."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.hardware import H100, H200
from mirage_dsl.core.types import f16, f32, u8
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import grid_parts, iterations
from mirage_dsl.search.driver import search
from mirage_dsl.search.multi_kernel.storable import cut_dims
from mirage_dsl.search.result import Plan, SearchResult, is_one_kernel, splits_a_loop
from mirage_dsl.search.segments import MOST_SPLIT, Found, SegmentSearch
from mirage_dsl.search.sizes import Constraints, Sizer
from tests.programs import mugraphs
from tests.search import programs
from tests.search.test_driver import safe_attention

SIZER = Sizer(H100, Constraints())


def extents(graph: KernelGraph) -> dict[str, int]:
    return {n: e for n, e in graph.extents if e is not None}


@pytest.mark.parametrize(("batch", "parts"), [(1, 16), (8, 4), (16, 2)])
def test_keys_are_split_until_the_gpu_is_full(batch: int, parts: int) -> None:
    whole = mugraphs.attention(2 * batch, 256, 4096)
    found = SIZER.split(whole)
    assert found is not None
    graph = found.graph
    assert not check(graph)
    assert found.microseconds == estimate(launched_early(graph), H100).microseconds
    assert found.microseconds < estimate(whole, H100).microseconds
    blocks = math.prod(grid_parts(graph.blocks[0], extents(graph)))
    assert 64 <= blocks <= 512
    assert parts / 2 <= extents(graph)["n#"] <= 2 * parts
    assert iterations(graph.blocks[0], extents(graph)) > 1


def test_a_grid_that_fills_the_gpu_stays() -> None:
    assert SIZER.split(mugraphs.attention(64, 1024, 4096)) is None


def test_what_is_not_allowed_is_not_tried() -> None:
    # Of two kernels, one has a grid of one dim.
    limits = Constraints(griddims=((32, 2, 1), (2, 32, 1)))
    sizer = Sizer(H100, limits)
    assert sizer.split(mugraphs.attention(2, 256, 4096)) is None


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(safe_attention(), H100, k=4, max_kernels=2)


def test_the_search_splits_attention(found: SearchResult) -> None:
    best = found.best
    assert len(best.mugraph.blocks) == len(best.mugraph.nodes) == 2
    assert best.certificate is not None
    assert best.certificate.ok
    assert splits_a_loop(best.mugraph)


def test_the_best_single_kernel_is_among_the_candidates(found: SearchResult) -> None:
    single = [c for c in found if len(c.mugraph.nodes) == 1]
    assert single
    assert found.best.cost.microseconds < 0.6 * single[0].cost.microseconds


@pytest.mark.sample(0)
def test_a_sum_over_groups_is_split_between_blocks() -> None:
    """No dim of the sum is long: 32 groups of 64 bytes with two numbers each."""

    def product(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> Any:
        shifts = (4 * torch.arange(2)[:, None]).to(packed.dtype)
        numbers = ((packed.unsqueeze(1) >> shifts) & 15).to(torch.int8) - 8
        groups = numbers.to(x.dtype).reshape(32, -1, 4096) * scale[:, None]
        return x @ groups.reshape(-1, 4096)

    specs = [((8, 4096), f16), ((2048, 4096), u8), ((32, 4096), f16)]
    program = mirage.kernel(product).trace(*(mirage.spec(*s) for s in specs))
    (k, _, _) = program.applies[-1].over
    assert [h.dim for h in cut_dims(program)] == [k]
    found = search(program, H200, k=8, max_kernels=2, verify=False)
    (split, *_) = [c for c in found if len(c.mugraph.blocks) == 2]
    assert k in {s.dim for s in split.mugraph.blocks[0].grid}
    # Blocks of few columns whose warps share the groups are better than both.
    whole = search(program, H200, k=1, max_kernels=1, verify=False).best
    assert "pair" in dict(found.best.mugraph.extents)
    assert found.best.cost.microseconds <= whole.cost.microseconds
    assert found.best.cost.microseconds < split.cost.microseconds


def test_a_view_whose_summed_dim_is_cut() -> None:
    """Both factors are of one input, the other one by a view of it."""

    def similarity(x: torch.Tensor) -> Any:
        return (2 * x) @ (2 * x).mT

    program = mirage.kernel(similarity).trace(mirage.spec((64, 256), f32))
    (k,) = program.applies[-1].over
    assert [h.dim for h in cut_dims(program)] == [k]
    x = torch.randn((64, 256), generator=torch.Generator().manual_seed(0))
    found = search(program, H200, k=3, max_kernels=2)
    assert found.best.mugraph.blocks
    for candidate in found:
        assert candidate.certificate.ok
        (product,) = TritonExecutable(candidate.mugraph, interpret=True)(x)
        exact = similarity(x.double())
        assert (product - exact).abs().max() < 1e-5 * exact.abs().max()


def test_one_kernel_is_one_kernel() -> None:
    result = search(programs.gated(), H100, k=4, max_kernels=1, verify=False)
    assert all(len(c.mugraph.blocks) <= 1 for c in result)
    # Of attention a call of PyTorch's beats one kernel, so the program is cut as well.
    result = search(safe_attention(), H100, k=4, max_kernels=1, verify=False)
    assert any(is_one_kernel(c.mugraph) for c in result)


def test_a_product_that_streams_its_weights_is_not_split() -> None:
    assert (
        len(search(programs.gated(), H100, k=2, max_kernels=2).best.mugraph.nodes) == 1
    )


@pytest.mark.sample(0)
def test_constraints_hold_for_both_kernels() -> None:
    # Two grid dims leave no place for a third in a grid of 64 blocks.
    limits = Constraints(griddims=((32, 2, 1), (2, 32, 1)))
    result = search(safe_attention(), H100, k=4, max_kernels=2, constraints=limits)
    for candidate in result:
        for block in candidate.mugraph.blocks:
            known = extents(candidate.mugraph)
            assert math.prod(grid_parts(block, known)) == 64


def test_one_candidate_is_the_best_one() -> None:
    result = search(safe_attention(), H100, k=1, max_kernels=2, verify=False)
    assert len(result.best.mugraph.nodes) == 2


def _squares(count: int) -> KernelGraph:
    """A kernel without a loop; each count is a structure of its own."""
    g = KernelBuilder("squares", m=16, k=64)
    with g.block(grid={"m": 1}) as b:
        value = b.load(g.input("x", f16, "m, k"), "m/grid, k")
        for _ in range(count):
            value = b.square(value)
        out = b.store(value, "m/grid, k")
    return g.returns(out).build()


def test_structures_that_cannot_be_split_do_not_hide_those_that_can() -> None:
    def no_structures(segment: KernelGraph, written: bool) -> Found:  # noqa: ARG001
        return Found(())

    segments = SegmentSearch(no_structures, H100, split=True)
    others = [Plan(1.0, _squares(n + 1)) for n in range(MOST_SPLIT)]
    last = Plan(2.0, mugraphs.attention(2, 256, 4096))
    (split,) = segments.split_apart([*others, last])
    assert splits_a_loop(split.graph)


@pytest.mark.parametrize("width", [5_000_000, 8_388_608, 10_000_000])
def test_a_row_of_any_length_is_split(width: int) -> None:
    # No tile that is a power of two makes 2, 4, ..., 64 parts of ten million.
    def norm(x: Any) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[1:])

    program = mirage.kernel(norm).bind(torch.empty(4, width, device="meta")).program
    best = search(program, H200, max_kernels=2).best
    assert len(best.mugraph.blocks) == len(best.mugraph.nodes) == 3
    blocks = math.prod(grid_parts(best.mugraph.blocks[0], extents(best.mugraph)))
    assert blocks > 64
