"""Hand-written blocks of the graph builder, against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, ShapeError, TraceError, UnsupportedError
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse


def agrees(graph: KernelGraph, expected: Any, *arrays: Any) -> None:
    assert check(graph) == []
    assert parse(str(graph)) == graph
    (found,) = evaluate_numpy(graph, *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def rms_linear(accumulator: str = "rms") -> KernelGraph:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(8, 64), dtype=mirage.float16)
    w = g.new_input(dims=(64, 96), dtype=mirage.float16)
    tb = mirage.new_threadblock_graph(
        grid_dim=(6, 1, 1), block_dim=(128, 1, 1), forloop_range=4, reduction_dimx=64
    )
    tx = tb.new_input(dtensor=x, input_map=(-1, -1, -1), forloop_dim=1)
    tw = tb.new_input(dtensor=w, input_map=(1, -1, -1), forloop_dim=0)
    product = tb.forloop_accum(tb.matmul(tx, tw))
    scale = tb.forloop_accum(tx, accumulator)
    tb.new_output(stensor=tb.div(product, scale), output_map=(1, -1, -1))
    (out,) = g.customized([x, w], tb)
    g.mark_output(out)
    return g.compile().mugraph


def test_norm_and_product_in_one_block() -> None:
    graph = rms_linear()
    x, w = random(8, 64), random(64, 96)
    agrees(graph, (x / np.sqrt((x * x).mean(-1, keepdims=True))) @ w, x, w)
    (block,) = graph.blocks
    assert [(s.dim, s.tile) for s in block.grid] == [("n", 16)]
    assert block.loop is not None
    assert (block.loop.dim, block.loop.tile) == ("k", 16)
    assert block.schedule.num_warps == 4
    program = mirage.kernel(lambda a, b: mirage.rms_norm(a, eps=0) @ b).trace(
        mirage.spec((8, 64)), mirage.spec((64, 96))
    )
    assert mirage.verify(graph, program).ok


def test_kinds_of_accumulators() -> None:
    x, w = random(8, 64), random(64, 96)
    agrees(rms_linear("sum"), (x @ w) / x.sum(-1, keepdims=True), x, w)
    agrees(rms_linear("mean"), (x @ w) / x.mean(-1, keepdims=True), x, w)
    with pytest.raises(UnsupportedError, match="'median'"):
        rms_linear("median")


def test_partial_products_lie_side_by_side() -> None:
    g = mirage.new_kernel_graph()
    x, w = g.new_input(dims=(8, 64)), g.new_input(dims=(64, 96))
    tb = mirage.new_threadblock_graph((4, 2), (128, 1, 1), 2)
    tx, tw = tb.new_input(x, (1, -1), 1), tb.new_input(w, (0, 1), 0)
    tb.new_output(tb.forloop_accum(tb.matmul(tx, tw)), (1, 1))
    (parts,) = g.customized([x, w], tb)
    assert tuple(parts.shape) == (8, 4 * 96)
    g.mark_output(g.sum(g.reshape(parts, (8, 4, 96)), 1))
    a, b = random(8, 64), random(64, 96)
    agrees(g.compile().mugraph, a @ b, a, b)


def test_attention_in_one_block() -> None:
    g = mirage.new_graph()
    q, k = g.new_input(dims=(2, 16, 8)), g.new_input(dims=(2, 8, 32))
    v = g.new_input(dims=(2, 32, 8))
    tb = mirage.new_threadblock_graph((2, 2, 1), (128, 1, 1), 4)
    tq = tb.new_input(q, (0, 1, -1))
    tk, tv = tb.new_input(k, (0, -1, -1), 2), tb.new_input(v, (0, -1, -1), 1)
    e = tb.exp(tb.matmul(tq, tk))
    top, bottom = (
        tb.forloop_accum(tb.matmul(e, tv)),
        tb.forloop_accum(tb.reduction(e, 2)),
    )
    tb.new_output(tb.div(top, bottom), (0, 1, -1))
    (out,) = g.customized([q, k, v], tb)
    g.mark_output(out)
    a, b, c = random(2, 16, 8), random(2, 8, 32), random(2, 32, 8)
    weights = np.exp(a @ b)
    expected = weights @ c / weights.sum(-1, keepdims=True)
    agrees(g.compile().mugraph, expected, a, b, c)


def test_a_kernel_with_blocks_runs() -> None:
    g = mirage.new_graph()
    x = g.new_input(dims=(6, 8), dtype=mirage.float32)
    tb = mirage.new_threadblock_graph((3, 1, 1))
    tb.new_output(tb.exp(tb.new_input(x, (0, -1, -1))), (0, -1, -1))
    (out,) = g.customized([x], tb)
    g.mark_output(g.relu(out))
    kernel = g.compile()
    assert "as built" in repr(kernel)
    a = random(6, 8).astype(np.float32)
    (found,) = kernel(inputs=[a])
    np.testing.assert_allclose(found, np.exp(a), rtol=1e-6)
    assert "def run(" in kernel.to_triton_code()


def pair(*, meet: bool = False) -> mirage.Graph:
    """One axis splits the columns of two weights, whose dims have different names."""
    g = mirage.new_kernel_graph()
    x, w, v = (
        g.new_input(dims=d, dtype=mirage.float16) for d in ((8, 64), (64, 96), (64, 24))
    )
    tb = mirage.new_threadblock_graph((6, 1, 1), (128, 1, 1), 2)
    tx = tb.new_input(x, (-1, -1, -1), 1)
    tw, tv = (tb.new_input(t, (1, -1, -1), 0) for t in (w, v))
    one, other = (tb.forloop_accum(tb.matmul(tx, t)) for t in (tw, tv))
    tb.new_output(tb.silu(one), (1, -1, -1))
    tb.new_output(tb.reduction(other, 1) if meet else other, (1, -1, -1))
    for out in g.customized([x, w, v], tb):
        g.mark_output(out)
    return g


def test_one_grid_dim_splits_a_dim_of_each_output() -> None:
    graph = pair().compile().mugraph
    (block,) = graph.blocks
    assert [[s.tile for s in axis] for axis in block.axes] == [[16, 4]]
    assert check(graph) == []
    assert parse(str(graph)) == graph
    x, w, v = random(8, 64), random(64, 96), random(64, 24)
    y, z = evaluate_numpy(graph, x, w, v)
    np.testing.assert_allclose(y, (x @ w) / (1 + np.exp(-(x @ w))), 1e-6, 1e-9)
    np.testing.assert_allclose(z, x @ v, rtol=1e-9, atol=1e-9)
    program = mirage.kernel(lambda a, b, c: (mirage.silu(a @ b), a @ c)).trace(
        *(mirage.spec(s) for s in ((8, 64), (64, 96), (64, 24)))
    )
    assert mirage.verify(graph, program).ok


def test_what_a_grid_dim_splits_for_several_outputs_is_not_summed() -> None:
    with pytest.raises(CheckError, match="an axis of its own"):
        pair(meet=True).compile()


def test_maps_that_do_not_fit() -> None:
    g = mirage.new_graph()
    x = g.new_input(dims=(6, 1))
    tb = mirage.new_threadblock_graph((3, 1, 1))
    with pytest.raises(ShapeError, match="names axis 1"):
        tb.new_input(x, (1, -1, -1))
    tx = tb.new_input(x, (0, -1, -1))
    with pytest.raises(ShapeError, match="must name an axis"):
        tb.new_output(tx, (-1, -1, -1))
    with pytest.raises(TraceError, match="0 outputs"):
        g.customized([x], tb)


def test_too_many_parts() -> None:
    g = mirage.new_graph()
    x = g.new_input(dims=(6, 8))
    tb = mirage.new_threadblock_graph((7, 1, 1))
    tb.new_output(tb.exp(tb.new_input(x, (0, -1, -1))), (0, -1, -1))
    (out,) = g.customized([x], tb)
    g.mark_output(out)
    with pytest.raises(CheckError, match="7 parts") as error:
        g.compile()
    assert error.value.location is not None
    assert "g.customized" in error.value.location.text


def one_input(
    inside: Callable[[Any, Any], Any],
    output_map: Sequence[int] = (0, -1, -1),
    *,
    split: int = 0,
    grid: Sequence[int] = (2, 1, 1),
    rounds: int = 1,
) -> KernelGraph:
    """A block over an input of (8, 64), whose columns a loop splits."""
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(8, 64), dtype=mirage.float32)
    tb = mirage.new_threadblock_graph(grid, (128, 1, 1), rounds)
    tx = tb.new_input(x, (split, -1, -1), 1 if rounds > 1 else -1)
    tb.new_output(inside(tb, tx), output_map)
    (out,) = g.customized([x], tb)
    g.mark_output(out)
    return g.program


def without_block(inside: Callable[[Any, Any], Any], x: Any) -> Any:
    """What a block computes, by the kernel graph's operators."""
    kernel = mirage.kernel(lambda x: inside(mirage, x))
    return evaluate_numpy(kernel.trace(mirage.spec(x.shape, mirage.float32)), x)[0]


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "rms_norm": lambda tb, x: tb.rms_norm(x),
    "mean": lambda _, x: mirage.mean(x, 1, keepdims=True),
    "variance": lambda _, x: mirage.var(x, 1, keepdims=True),
    "layer_norm": lambda _, x: mirage.layer_norm(x),
    "softmax": lambda _, x: mirage.softmax(x),
    "the extent": lambda _, x: x / x.shape[1],
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_a_whole_axis_is_refused_where_a_block_sees_a_part(
    name: str,
) -> None:
    inside = WHOLE[name]
    x = random(8, 64)
    whole = without_block(inside, x)
    agrees(one_input(inside), whole, x)
    with pytest.raises(UnsupportedError, match="the grid splits") as error:
        one_input(inside, (1, -1, -1), split=1)
    assert error.value.location is not None
    with pytest.raises(UnsupportedError, match="the loop splits"):
        one_input(
            lambda tb, x: tb.forloop_accum(tb.reduction(inside(tb, x), 1)), rounds=4
        )


@pytest.mark.parametrize("kind", ["mean", "rms"])
def test_means_over_the_loop(kind: str) -> None:
    x = random(8, 64)
    powers = x * x if kind == "rms" else x
    mean = powers.mean(1, keepdims=True)
    expected = np.sqrt(mean) if kind == "rms" else mean
    for rounds in (1, 4):
        found = one_input(lambda tb, t: tb.forloop_accum(t, kind), rounds=rounds)
        agrees(found, expected, x)
    with pytest.raises(UnsupportedError, match="the grid splits"):
        one_input(lambda tb, t: tb.forloop_accum(t, kind), (1, -1, -1), split=1)
    with pytest.raises(UnsupportedError, match="the grid splits"):
        one_input(
            lambda tb, t: tb.forloop_accum(t, kind), (1, -1, -1), split=1, rounds=4
        )
    with pytest.raises(UnsupportedError, match="does not split its last axis"):
        one_input(lambda tb, t: tb.forloop_accum(tb.reduction(t, 1), kind), rounds=4)


@pytest.mark.parametrize(
    ("inside", "right"),
    [
        (lambda tb, x: tb.exp(x), 0),
        (lambda _, x: x.T, 1),
        (lambda _, x: x.reshape(4, 2, 64), 0),
        (lambda _, x: x.reshape(1, 8, 64), 1),
    ],
)
def test_an_output_map_names_the_axis_that_is_split(
    inside: Callable[[Any, Any], Any], right: int
) -> None:
    x = random(8, 64)
    whole = without_block(inside, x)
    agrees(one_input(inside, (right, -1, -1)), whole, x)
    for wrong in (*{0, 1} - {right}, 7, -1):
        with pytest.raises(ShapeError, match=f"an axis of the output: {right}"):
            one_input(inside, (wrong, -1, -1))
    with pytest.raises(ShapeError, match="y, which splits no input"):
        one_input(inside, (right, 1, -1), grid=(2, 3, 1))
    agrees(one_input(inside, (right, 1, -1), grid=(2, 1, 1)), whole, x)


def test_pieces_of_the_grid_are_not_joined() -> None:
    def joined(tb: Any, x: Any) -> Any:
        return tb.concat([x, x], 1)

    x = random(8, 64)
    agrees(one_input(joined), np.concatenate([x, x], 1), x)
    with pytest.raises(CheckError, match="concat of k/grid"):
        one_input(joined, (1, -1, -1), split=1)


def test_arguments_of_blocks_that_mean_nothing_are_refused() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(8, 64))
    for wrong in ({"grid_dim": (2, 1, 1, 1)}, {"grid_dim": (0, 1, 1)}):
        with pytest.raises(ShapeError, match="grid_dim"):
            mirage.new_threadblock_graph(**wrong)
    with pytest.raises(ShapeError, match="block_dim"):
        mirage.new_threadblock_graph((2, 1, 1), (128, 1, 1, 2))
    with pytest.raises(ShapeError, match="forloop_range"):
        mirage.new_threadblock_graph((2, 1, 1), forloop_range=0)
    numbers: Any = 2.5
    with pytest.raises(TraceError, match="forloop_range must be an integer"):
        mirage.new_threadblock_graph((2, 1, 1), forloop_range=numbers)
    tb = mirage.new_threadblock_graph((2, 1, 1))
    for given in ((0, -1, -1, 1), (-2, -1, -1)):
        with pytest.raises(ShapeError, match="input_map"):
            tb.new_input(x, given)
    t = tb.new_input(x, (0, -1, -1))
    with pytest.raises(UnsupportedError, match=r"block.exp .*'base'"):
        tb.exp(t, base=2)
    with pytest.raises(ShapeError, match="output_map"):
        tb.new_output(t, (0, -1, -1, 1))
    tb.new_output(t, (0, -1, -1))
    with pytest.raises(UnsupportedError, match="new_input after new_output"):
        tb.new_input(x, (0, -1, -1))


def attended(q: Any, k: Any, v: Any) -> Any:
    x = q @ k
    e = np.exp(x - x.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


def test_a_running_maximum_and_rescaled_sums() -> None:
    g = mirage.new_kernel_graph()
    q = g.new_input((2, 64, 16), mirage.float16)
    k = g.new_input((2, 16, 128), mirage.float16)
    v = g.new_input((2, 128, 16), mirage.float16)
    tb = mirage.new_threadblock_graph((2, 4, 1), (128, 1, 1), 4, 64)
    bq = tb.new_input(dtensor=q, input_map=(0, 1, -1), forloop_dim=-1)
    bk = tb.new_input(dtensor=k, input_map=(0, -1, -1), forloop_dim=2)
    bv = tb.new_input(dtensor=v, input_map=(0, -1, -1), forloop_dim=1)
    x = tb.matmul(bq, bk)
    largest, grown = tb.reduction_max(x, dim=2)
    e, factor = tb.exp(tb.sub(x, largest)), tb.exp(grown)
    y = tb.forloop_accum_rescale(tb.matmul(e, bv), factor)
    total = tb.forloop_accum_rescale(e, factor, "sum")
    tb.new_output(tb.div(y, total), output_map=(0, 1, -1))
    g.mark_output(g.customized([q, k, v], tb)[0])
    arrays = random(2, 64, 16), random(2, 16, 128), random(2, 128, 16)
    graph = g.compile().mugraph
    agrees(graph, attended(*arrays), *arrays)
    program = mirage.kernel(attention_as_written).trace(
        *(mirage.spec(a.shape) for a in arrays)
    )
    assert mirage.verify(graph, program).ok
    with pytest.raises(UnsupportedError, match="second result of reduction_max"):
        tb.forloop_accum_rescale(e, e)


def attention_as_written(q: Any, k: Any, v: Any) -> Any:
    return mirage.softmax(q @ k, -1) @ v


def test_parts_are_added_up_to_what_is_left_of_an_axis() -> None:
    g = mirage.new_kernel_graph()
    q = g.new_input((2, 64, 16), mirage.float16)
    k = g.new_input((2, 16, 128), mirage.float16)
    v = g.new_input((2, 128, 16), mirage.float16)
    tb = mirage.new_threadblock_graph((2, 8, 4), (128, 1, 1), 2, 16)
    bq = tb.new_input(dtensor=q, input_map=(0, -1, 1), forloop_dim=-1)
    bk = tb.new_input(dtensor=k, input_map=(0, 2, -1), forloop_dim=2)
    bv = tb.new_input(dtensor=v, input_map=(0, 1, -1), forloop_dim=1)
    e = tb.exp(tb.matmul(bq, bk))
    tb.new_output(tb.forloop_accum(tb.matmul(e, bv)), output_map=(0, 2, 1))
    tb.new_output(tb.forloop_accum(e, "sum"), output_map=(0, 2, 1))
    parts = g.customized([q, k, v], tb)
    assert [tuple(p.shape) for p in parts] == [(2, 64, 128), (2, 64, 8)]
    tb = mirage.new_threadblock_graph((2, 16, 1), (128, 1, 1), 1, 16)
    y = tb.new_input(dtensor=parts[0], input_map=(0, 1, -1), forloop_dim=-1)
    s = tb.new_input(dtensor=parts[1], input_map=(0, 1, -1), forloop_dim=-1)
    y, s = tb.forloop_accum(y, "sum_todimx"), tb.forloop_accum(s, "sum")
    tb.new_output(tb.div(y, s), output_map=(0, 1, -1))
    g.mark_output(g.customized(parts, tb)[0])
    arrays = random(2, 64, 16), random(2, 16, 128), random(2, 128, 16)
    agrees(g.compile().mugraph, attended(*arrays), *arrays)
    with pytest.raises(ShapeError, match="multiple of reduction_dimx=16"):
        tb.forloop_accum(s, "sum_todimx")
    with pytest.raises(ShapeError, match="at 7"):
        tb.reduction_to_dimx(y, 7)


def test_values_of_all_iterations_side_by_side() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input((8, 64), mirage.float32)
    tb = mirage.new_threadblock_graph((2, 1, 1), (384, 1, 1), 4, 1)
    tx = tb.new_input(dtensor=x, input_map=(0, -1, -1), forloop_dim=1)
    y = tb.mul_scalar(tx, 3.0)
    with pytest.raises(ShapeError, match="does not split that axis"):
        tb.new_output(y, output_map=(0, -1, -1), forloop_dim=0)
    tb.new_output(y, output_map=(0, -1, -1), forloop_dim=1)
    g.mark_output(g.customized([x], tb)[0])
    array = random(8, 64)
    graph = g.compile().mugraph
    agrees(graph, 3 * array, array)
    # Of 384 threads Triton takes 256.
    assert graph.blocks[0].schedule.num_warps == 8


def test_strides_may_stand_before_the_dtype() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input((8, 6), (1, 8), mirage.float32)
    y = g.new_input((8, 6), None, "float32")
    g.mark_output(g.mul_scalar(g.add(x, y), 2))
    assert [i.type.layout for i in g.program.inputs] == [(1, 0), None]
    assert {i.type.dtype.name for i in g.program.inputs} == {"f32"}


def test_an_axis_of_one_element_in_each_iteration_goes_with_any_other() -> None:
    g = mirage.new_kernel_graph()
    x = g.new_input((8, 64), mirage.float32)
    y = g.new_input((8, 4), mirage.float32)
    tb = mirage.new_threadblock_graph((2, 1, 1), (128, 1, 1), 4, 1)
    bx = tb.new_input(dtensor=x, input_map=(0, -1, -1), forloop_dim=-1)
    by = tb.new_input(dtensor=y, input_map=(0, -1, -1), forloop_dim=1)
    total = tb.forloop_accum(tb.mul(bx, by))
    assert tuple(total.shape) == (8, 64)
    tb.new_output(tb.add(total, tb.forloop_accum(by, "max")), output_map=(0, -1, -1))
    g.mark_output(g.customized([x, y], tb)[0])
    a, b = random(8, 64), random(8, 4)
    expected = a * b.sum(-1, keepdims=True) + b.max(-1, keepdims=True)
    agrees(g.compile().mugraph, expected, a, b)
