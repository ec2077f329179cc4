"""The snippets that Mirage's users know run as written, but for the import and sizes.

Kernels run in Triton's interpreter; torch says what is right.
"""

# Tensors have the names that Mirage's users give them.
# ruff: noqa: N806, E741

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mirage_dsl as mi
from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.core.types import Axis
from mirage_dsl.ir.graph import Apply, BlockGraph, KernelGraph
from mirage_dsl.ir.maps import derived_extents, grid_parts, iterations
from mirage_dsl.ops.definition import Kind
from tests.end_to_end.anatomy import Anatomy, only_block

TOLERANCE = 4e-3


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with INTERPRET.scope(True):
        yield


def randn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Fresh random numbers, the same in each run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the relative error is that of fp16."""
    assert found.shape == exact.shape
    error = (found.double() - exact.double()).norm() / exact.double().norm()
    return bool(error < TOLERANCE)


def attention_graph(*, mark: bool) -> mi.Graph:
    """Group-query attention, operator by operator."""
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    A = graph.matmul(Q, K)
    E = graph.exp(A)
    S = graph.reduction(E, 2)
    D = graph.div(E, S)
    O = graph.matmul(D, V)
    if mark:
        graph.mark_output(O)
    return graph


def attention_inputs() -> list[torch.Tensor]:
    return [0.5 * randn(2, 32, 16), 0.5 * randn(2, 16, 64), randn(2, 64, 16)]


def exact_attention(q: Any, k: Any, v: Any) -> Any:
    scores = q.double() @ k.double()
    return torch.softmax(scores, -1) @ v.double()


@pytest.mark.parametrize("mark", [True, False], ids=["marked", "last"])
def test_group_query_attention(mark: bool) -> None:
    graph = attention_graph(mark=mark)
    optimized_graph = graph.superoptimize(config="attention")
    input_tensors = attention_inputs()
    outputs = optimized_graph(inputs=input_tensors)
    assert isinstance(outputs, list)
    assert close(outputs[0], exact_attention(*input_tensors))
    parts = Anatomy(only_block(optimized_graph.mugraph))
    assert len(parts.applied("matmul")) == 2
    (again,) = optimized_graph(input_tensors)
    assert torch.equal(again, outputs[0])


def test_attention_by_softmax() -> None:
    graph = mi.new_kernel_graph()
    Q = graph.new_input(dims=(2, 32, 16), dtype=mi.float16)
    K = graph.new_input(dims=(2, 16, 64), dtype=mi.float16)
    V = graph.new_input(dims=(2, 64, 16), dtype=mi.float16)
    S = graph.softmax(graph.matmul(Q, K))
    graph.mark_output(graph.matmul(S, V))
    kernel = graph.superoptimize()
    # Logits of some hundreds: exponentials without a maximum would overflow.
    q, k, v = attention_inputs()
    (out,) = kernel(inputs=[40 * q, k, v])
    assert out.isfinite().all()
    assert close(out, exact_attention(40 * q, k, v))


def test_norm_and_product() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 96), dtype=mi.float16)
    W = graph.new_input(dims=(96, 64), dtype=mi.float16)
    D = graph.rms_norm(X, normalized_shape=(96,))
    O = graph.matmul(D, W)
    graph.mark_output(O)
    optimized_graph = graph.superoptimize(config="mlp")
    x, w = randn(8, 96), randn(96, 64)
    (out,) = optimized_graph(inputs=[x, w])
    assert close(out, torch.rms_norm(x.double(), (96,)) @ w.double())


def test_norm_gain_and_a_column_major_weight() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(1, 56), dtype=mi.float16)
    G = graph.new_input(dims=(1, 56), dtype=mi.float16)
    W = graph.new_input(dims=(56, 72), strides=(1, 56), dtype=mi.float16)
    D = graph.rms_norm(X, normalized_shape=(56,))
    D = graph.mul(D, G)
    graph.mark_output(graph.matmul(D, W))
    optimized_graph = graph.superoptimize(config="mlp")
    x, g, w = randn(1, 56), randn(1, 56), randn(72, 56).T
    assert w.stride() == (1, 56)
    (out,) = optimized_graph(inputs=[x, g, w])
    assert close(out, (torch.rms_norm(x.double(), (56,)) * g.double()) @ w.double())


def test_projections_of_different_widths() -> None:
    """One axis splits the columns of every weight, and each output along them."""
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 64), dtype=mi.float16)
    weights = [graph.new_input(dims=(64, n), dtype=mi.float16) for n in (128, 64, 64)]
    D = graph.rms_norm(X, normalized_shape=(64,))
    for W in weights:
        graph.mark_output(graph.matmul(D, W))
    kernel = graph.superoptimize(
        griddims=[(4, 1, 1)],
        imaps=[(-1, -1, -1), (1, -1, -1)],
        omaps=[(1, -1, -1)],
        fmaps=[-1, 0, 1],
        franges=[1, 4],
    )
    block = only_block(kernel.mugraph)
    assert [len(axis) for axis in block.axes] == [3]
    assert [s.tile for s in block.grid] == [32, 16, 16]
    inputs = [randn(8, 64), randn(64, 128), randn(64, 64), randn(64, 64)]
    normed = torch.rms_norm(inputs[0].double(), (64,))
    for found, w in zip(kernel(inputs=inputs), inputs[1:], strict=True):
        assert close(found, normed @ w.double())


def test_gated_layer() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 64), dtype=mi.float16)
    W1 = graph.new_input(dims=(64, 96), dtype=mi.float16)
    W2 = graph.new_input(dims=(64, 96), dtype=mi.float16)
    O1 = graph.matmul(X, W1)
    O2 = graph.matmul(X, W2)
    O1 = graph.silu(O1)
    graph.mark_output(graph.mul(O1, O2))
    optimized_graph = graph.superoptimize(config="mlp")
    x, w1, w2 = randn(8, 64), randn(64, 96), randn(96, 64).T.contiguous()
    (out,) = optimized_graph(inputs=[x, w1, w2])
    gate = torch.nn.functional.silu(x.double() @ w1.double())
    assert close(out, gate * (x.double() @ w2.double()))
    assert len(Anatomy(only_block(optimized_graph.mugraph)).applied("matmul")) == 2


def test_low_rank_update() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(2, 64), dtype=mi.float16)
    W = graph.new_input(dims=(64, 48), dtype=mi.float16)
    A = graph.new_input(dims=(64, 16), dtype=mi.float16)
    B = graph.new_input(dims=(16, 48), dtype=mi.float16)
    D = graph.matmul(X, A)
    E = graph.matmul(D, B)
    C = graph.matmul(X, W)
    graph.mark_output(graph.add(C, E))
    optimized_graph = graph.superoptimize(config="lora")
    inputs = [randn(2, 64), randn(64, 48), 0.1 * randn(64, 16), randn(16, 48)]
    (out,) = optimized_graph(inputs=inputs)
    x, w, a, b = (t.double() for t in inputs)
    assert close(out, x @ w + (x @ a) @ b)


def test_the_best_kernel_and_all_of_them(tmp_path: Path) -> None:
    result = mi.superoptimize(attention_graph(mark=True))
    assert len(result) > 1
    assert all(c.certificate is not None and c.certificate.ok for c in result)
    file = tmp_path / "attention.py"
    result.best.mugraph.generate_triton_program(file)
    names = {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert len(names) >= 2, "a kernel and a launcher"


def test_a_checkpoint_saves_the_search(tmp_path: Path) -> None:
    file = tmp_path / "attention.json"
    first = attention_graph(mark=True).superoptimize(previous_checkpoint=file)
    assert file.exists()
    second = attention_graph(mark=True).superoptimize(previous_checkpoint=file)
    assert second.mugraph == first.mugraph
    inputs = attention_inputs()
    assert torch.equal(first(inputs=inputs)[0], second(inputs=inputs)[0])


def test_a_block_written_by_hand() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input(dims=(8, 64), dtype=mi.float16)
    W = graph.new_input(dims=(64, 96), dtype=mi.float16)
    tb_graph = mi.new_threadblock_graph(
        grid_dim=(6, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64
    )
    tX = tb_graph.new_input(dtensor=X, input_map=(-1, -1, -1), forloop_dim=1)
    tW = tb_graph.new_input(dtensor=W, input_map=(1, -1, -1), forloop_dim=0)
    tM = tb_graph.matmul(tX, tW)
    tAccX = tb_graph.forloop_accum(tX, "rms")
    tAccM = tb_graph.forloop_accum(tM)
    tO = tb_graph.div(tAccM, tAccX)
    tb_graph.new_output(stensor=tO, output_map=(1, -1, -1))
    (O,) = graph.customized([X, W], tb_graph)
    graph.mark_output(O)
    x, w = randn(8, 64), randn(64, 96)
    (out,) = graph.compile()(inputs=[x, w])
    assert close(out, torch.rms_norm(x.double(), (64,), eps=0.0) @ w.double())


# -- Search parameters -----------------------------------------------------------------

MIRAGE: dict[str, Any] = {
    "griddims": [(2, 1, 1), (2, 2, 1), (2, 4, 1)],
    "blockdims": [(128, 1, 1)],
    "imaps": [(0, -1, -1), (0, 1, -1), (0, 2, -1), (0, -1, 1)],
    "omaps": [(0, -1, -1), (0, 1, -1), (0, 2, -1), (0, 2, 1)],
    "fmaps": [-1, 1, 2],
    "franges": [1, 4, 8, 16],
}
"""Mirage's parameters for attention, with grids fit for 2 heads."""


def applies(graph: KernelGraph) -> list[Apply]:
    """The operators outside of kernels of its own."""
    return [n for n in graph.nodes if isinstance(n, Apply)]


def fused(**limits: Any) -> list[tuple[BlockGraph, dict[str, int]]]:
    """The kernels of all candidates that are one kernel, with extents."""
    result = mi.superoptimize(attention_graph(mark=True), **limits)
    found: list[tuple[BlockGraph, dict[str, int]]] = []
    for candidate in result:
        graph = candidate.mugraph
        views = all(n.op.kind is Kind.VIEW for n in applies(graph))
        if len(graph.blocks) == 1 and views:
            known = derived_extents(graph, graph.extent_of)
            extents = {n: e for n, e in known.items() if e is not None}
            found.append((only_block(graph), extents))
    return found


def split_axis(axes: tuple[Axis, ...], dim: str) -> int:
    """The axis that a grid dim splits, or -1."""
    split = [i for i, a in enumerate(axes) if any(d.grid and d.name == dim for d in a)]
    return split[0] if split else -1


def allowed(
    block: BlockGraph, imaps: list[tuple[int, ...]], omaps: list[tuple[int, ...]]
) -> bool:
    """Whether the grid dims can be x, y and z so that all maps are among these."""
    for places in itertools.permutations(range(3), len(block.grid)):
        maps = [(n.axes, imaps) for n in block.loads]
        maps += [(n.axes, omaps) for n in block.stores]
        if all(
            any(
                all(
                    split_axis(axes, s.dim) == given[place]
                    for s, place in zip(block.grid, places, strict=True)
                )
                for given in known
            )
            for axes, known in maps
        ):
            return True
    return False


def parts_of(block: BlockGraph, extents: dict[str, int]) -> tuple[int, ...]:
    """Numbers of blocks along the grid dims that are cut, in ascending order."""
    return tuple(sorted(n for n in grid_parts(block, extents) if n > 1))


def test_search_parameters_of_attention() -> None:
    blocks = fused(**MIRAGE)
    assert blocks
    for block, extents in blocks:
        assert parts_of(block, extents) in {(2,), (2, 2), (2, 4)}
        assert block.schedule.num_warps == 4
        assert iterations(block, extents) in MIRAGE["franges"]
        assert allowed(block, MIRAGE["imaps"], MIRAGE["omaps"])
    kernel = attention_graph(mark=True).superoptimize(**MIRAGE)
    inputs = attention_inputs()
    assert close(kernel(inputs=inputs)[0], exact_attention(*inputs))


def test_one_grid_leaves_kernels_of_that_grid() -> None:
    blocks = fused(griddims=[(2, 4, 1)])
    assert blocks
    assert {parts_of(b, e) for b, e in blocks} == {(2, 4)}


def test_blocks_of_so_many_threads() -> None:
    blocks = fused(blockdims=[(256, 1, 1)])
    assert blocks
    assert {b.schedule.num_warps for b, _ in blocks} == {8}


def test_numbers_of_iterations() -> None:
    blocks = fused(franges=[4])
    assert blocks
    assert {iterations(b, e) for b, e in blocks} == {4}


@pytest.mark.sample(1)
@pytest.mark.parametrize("fmaps", [[-1], [-1, 2], [-1, 1, 2]])
def test_axes_that_the_loop_splits(fmaps: list[int]) -> None:
    blocks = fused(fmaps=fmaps)
    assert blocks
    for block, _ in blocks:
        for load in block.loads:
            split = [i for i, a in enumerate(load.axes) if any(d.loop for d in a)]
            assert (split or [-1])[0] in fmaps


@pytest.mark.parametrize("imaps", [[(0, -1, -1)], [(0, 1, -1), (0, -1, -1)]])
def test_axes_of_inputs_that_the_grid_splits(imaps: list[tuple[int, ...]]) -> None:
    blocks = fused(imaps=imaps)
    assert blocks
    every = [*itertools.product((-1, 0, 1, 2), repeat=3)]
    assert all(allowed(b, imaps, every) for b, _ in blocks)
    dims = {s.dim for b, _ in blocks for s in b.grid}
    assert len(dims) == len(imaps), "heads alone, or heads and rows"


def test_axes_of_outputs_that_the_grid_splits() -> None:
    blocks = fused(omaps=[(0, 1, -1)])
    assert blocks
    every = [*itertools.product((-1, 0, 1, 2), repeat=3)]
    assert all(allowed(b, every, [(0, 1, -1)]) for b, _ in blocks)


def test_parameters_that_leave_nothing_still_give_the_program() -> None:
    kernel = attention_graph(mark=True).superoptimize(
        griddims=[(3, 5, 7)], budget_seconds=2
    )
    assert not kernel.mugraph.blocks
    inputs = attention_inputs()
    assert close(kernel(inputs=inputs)[0], exact_attention(*inputs))


def test_blocks_that_no_gpu_has_are_refused() -> None:
    with pytest.raises(SearchError, match="100 threads"):
        attention_graph(mark=True).superoptimize(blockdims=[(100, 1, 1)])
