"""Sums of loops split between warps: what comes of it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.types import Dim, DType, f8e4m3, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import Renaming
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Split
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.loops import split_loop
from mirage_dsl.rewrite.warps import split_between_warps
from mirage_dsl.store.superoptimize import Fitting
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check as problems
from mirage_dsl.tile.program import Product, Reduce, walk
from mirage_dsl.verify.verifier import verify
from tests.backends import running
from tests.programs import mugraphs
from tests.verify import graphs


def product(dtype: DType = f8e4m3, *, k: int = 256, tile: int = 64) -> KernelGraph:
    """A loop over k that multiplies few rows, and sums squares of the weights."""
    g = KernelBuilder("product", m=5, k=k, n=40)
    x, w = g.input("x", f16, "m, k"), g.input("w", dtype, "k, n")
    with g.block(grid={"n": 16}, loop=("k", tile)) as b:
        part = b.load(w, "k/loop, n/grid")
        wide = b.apply("cast", part, dtype="f16")
        total = b.accumulate(b.matmul(b.load(x, "m, k/loop"), wide, over="k"))
        sizes = b.accumulate(b.sum(b.square(wide), over="k"))
        out = b.store(b.div(total, b.sqrt(sizes)), "m, n/grid", dtype=f32)
    return g.returns(out).build()


def between(graph: KernelGraph, warps: int = 4, length: int = 16) -> KernelGraph:
    """A graph whose first node is split between warps."""
    found = split_between_warps(graph, 0, warps=warps, length=length)
    assert found is not None
    assert check(found) == []
    assert parse(str(found)) == found
    return found


@pytest.mark.parametrize("warps", [2, 4, 8])
@pytest.mark.parametrize("dtype", [f16, f8e4m3], ids=str)
def test_the_split_form_is_right(dtype: DType, warps: int) -> None:
    graph = product(dtype)
    found = between(graph, warps)
    certificate = verify(found, graph)
    assert certificate.ok, certificate.reason
    # Three iterations and the ragged rest of a fourth, for some.
    running.check(between(product(dtype, k=16 * 14), warps))


def test_each_warp_has_a_product_of_its_own() -> None:
    found = between(product(), 8)
    (program,) = programs(found)
    assert problems(program) == []
    statements = [s for s, _ in walk(program.body)]
    (one,) = (s for s in statements if isinstance(s, Product))
    batch = Dim("k", loop=True)
    assert one.batch == (batch,)
    assert one.into is not None
    sums = [s for s in statements if isinstance(s, Reduce) and s.over == (batch,)]
    assert [s.halves for s in sums] == [True]
    assert "tl.split(" in emit(found)
    (block,) = found.blocks
    assert (block.loop, block.schedule.num_warps) == (Split("k", 8), 8)
    assert (found.extent_of["k"], found.extent_of["k_slice"]) == (16, 16)


def test_it_compiles_without_waiting_loads() -> None:
    graph = mugraphs.gated_mlp(8, 1024, 64, tile_n=32)
    (report,) = compile_only(between(graph, 8, 64))
    assert (report.products, report.spills, report.sync_loads) == ("mma", 0, 0)


def test_parts_of_the_grid_stay() -> None:
    program = graphs.gated_mlp()
    split = split_loop(graphs.gated_mlp_fused(), 0, count=2)
    assert split is not None
    loop = split.blocks[0].loop
    assert loop is not None
    found = between(split, 2, loop.tile // 2)
    assert verify(found, program).ok
    before = [s.type for s in split.returns]
    assert [s.type for s in found.returns] == before


REFUSED: dict[str, KernelGraph] = {
    "a running maximum": graphs.attention_online(),
    "the extent is a constant": mugraphs.rmsnorm_linear(3, 64, 64, tile_k=32),
    "parts of slices": product(k=200),
    "no loop": graphs.gated_mlp(),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_split_stays(why: str) -> None:
    graph = REFUSED[why]
    at = next((i for i, n in enumerate(graph.nodes) if isinstance(n, BlockGraph)), 0)
    assert split_between_warps(graph, at, warps=4, length=16) is None


def test_a_dim_that_others_know_stays() -> None:
    graph = product()
    g = KernelBuilder("both", m=5, k=256)
    x = g.input("x", f16, "m, k")
    with g.block(grid={"m": 1}) as b:
        other = b.store(b.sum(b.load(x, "m/grid, k"), over="k"), "m/grid", dtype=f32)
    alone = g.returns(other).build()
    nodes = (*graph.nodes, *alone.nodes)
    both = replace(graph, nodes=nodes, returns=(*graph.returns, *alone.returns))
    assert split_between_warps(both, 0, warps=4, length=16) is None


def test_unknown_extents_stay() -> None:
    graph = product().with_extents({"m": 5, "k": None, "n": 40})
    assert split_between_warps(graph, 0, warps=4, length=16) is None


def test_what_was_found_serves_the_same_program_under_other_names() -> None:
    """The dim of the slices has the program's name, and another extent."""
    program = graphs.gated_mlp()
    found = between(graphs.gated_mlp_fused(), 2, 8)
    dims = {n: f"{n}_other" for n, _ in program.extents}
    other = Renaming(dims, {}).graph(program)
    fitting = Fitting(program, other)
    assert verify(fitting.mugraph(found, {}), other).ok


def test_a_kernel_takes_its_text() -> None:
    def scaled(x: Any, w: Any) -> Any:
        return 2 * (x @ w.to(x.dtype))

    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(0)).half()
    w = torch.randn(256, 32).to(torch.float8_e4m3fn)
    text = """mirage 1
    mugraph f(x: f16[m, k], w: f8e4m3[k, n]) -> f16[m, n] where m = 5, k = 256, n = 32 {
      y = block grid(n / 16) loop(k / 64) {
        a = load x[m, k/loop]
        b = load w[k/loop, n/grid]
        c = cast b dtype(f16)
        p = matmul a, c over(k)
        s = accumulate p
        t = mul s, 2
        store y[m, n/grid] = t
      }
      return y
    }
    """
    kernel = mirage.kernel(mugraph=str(between(parse(text))))(scaled)
    right = scaled(x.double(), w)
    assert (kernel(x, w).double() - right).norm() < 2e-3 * right.norm()
