"""Every reduction, on infinities, NaN and ragged tiles: all that computes it agrees.

A block sees lanes outside of its tensors, a loop joins iterations, a loop split over
the grid joins parts, PyTorch runs what is in no block: each has its own code, and all
of it follows from the row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from mirage_dsl.backends.reference import run_reference
from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.types import DType, f16, f32
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Accumulate, BlockGraph, KernelGraph, Schedule
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.loops import split_loop
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import Reduce, walk
from tests.backends.conformance import summed_batch
from tests.backends.running import TORCH, as_array

REDUCTIONS = [o for o in OPERATORS.values() if o.kind is Kind.REDUCTION]
STEPWISE = [o for o in REDUCTIONS if o.in_steps]
SPECIAL = (-np.inf, np.inf, np.nan)
REFERENCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: torch.sum(x, 1),
    "max": lambda x: torch.amax(x, 1),
    "min": lambda x: torch.amin(x, 1),
    "prod": lambda x: torch.prod(x, 1),
}
M, K = 8, 11


def library(op: Operator, dtype: DType) -> KernelGraph:
    g = KernelBuilder("library", m=M, k=K)
    x = g.input("x", dtype, "m, k")
    return g.returns(g.apply(op, x, over="k")).build()


def whole(op: Operator, dtype: DType) -> KernelGraph:
    g = KernelBuilder("whole", m=M, k=K)
    x = g.input("x", dtype, "m, k")
    with g.block(grid={"m": 3}) as b:
        # What lies outside is no zero any more.
        t = b.add(b.sub(b.load(x, "m/grid, k"), 0.5), 0.5)
        out = b.store(b.apply(op, t, over="k"), "m/grid", dtype=f32)
    return g.returns(out).build()


def looped(op: Operator, dtype: DType, *, inside: bool) -> KernelGraph:
    """Reduced within the tiles first, or over the iterations first."""
    g = KernelBuilder("looped", m=M, k=K)
    x = g.input("x", dtype, "m, k")
    with g.block(grid={"m": 3}, loop=("k", 4)) as b:
        t = b.add(b.sub(b.load(x, "m/grid, k/loop"), 0.5), 0.5)
        if inside:
            total = b.accumulate(b.apply(op, t, over="k"), op.name)
        else:
            total = b.apply(op, b.accumulate(t, op.name), over="k")
        out = b.store(total, "m/grid", dtype=f32)
    return g.returns(out).build()


def split(op: Operator, dtype: DType) -> KernelGraph:
    """The iterations shared out between blocks; those of the other dim all alike."""
    g = KernelBuilder("split", m=M, k=K, n=5)
    x = g.input("x", dtype, "m, k")
    w = g.input("w", f32, "n")
    with g.block(grid={"m": 3, "n": 2}, loop=("k", 2)) as b:
        t = b.add(b.sub(b.load(x, "m/grid, k/loop"), 0.5), 0.5)
        total = b.accumulate(b.apply(op, t, over="k"), op.name)
        y = b.add(total, b.mul(b.load(w, "n/grid"), 0.0))
        out = b.store(y, "m/grid, n/grid", dtype=f32)
    found = split_loop(g.returns(out).build(), 0, count=2)
    assert found is not None
    return found


def rows(dtype: DType) -> torch.Tensor:
    """Rows of usual numbers, with each special one first, last and in between."""
    x = np.random.default_rng(1).uniform(0.5, 1.5, (M, K))
    x[:, 3] *= -1
    for i, special in enumerate(SPECIAL):
        x[i, (0, 5, K - 1)[i]] = special
        x[i + 3, K - 1 - i] = special
    x[6] = -np.inf
    return torch.from_numpy(x).to(TORCH[dtype.name])


def alike(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    special = ~np.isfinite(expected)
    np.testing.assert_array_equal(found[special], expected[special])
    np.testing.assert_allclose(found[~special], expected[~special], rtol=tolerance)


FORMS: dict[str, Callable[[Operator, DType], KernelGraph]] = {
    "library kernel": library,
    "one tile": whole,
    "tiles": lambda op, dtype: looped(op, dtype, inside=True),
    "iterations": lambda op, dtype: looped(op, dtype, inside=False),
    "blocks": split,
}


@pytest.mark.sample(15)
@pytest.mark.parametrize("dtype", [f32, f16], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", STEPWISE, ids=lambda o: o.name)
def test_infinities_and_nan(op: Operator, form: str, dtype: DType) -> None:
    graph, x = FORMS[form](op, dtype), rows(dtype)
    expected = as_array(REFERENCE[op.name](x.double()))
    alike(op.numpy(x.double().numpy(), (1,)), expected, 1e-12)
    inputs = [x, torch.ones(5)][: len(graph.inputs)]
    if len(inputs) == 2:
        expected = np.repeat(expected[:, None], 5, 1)
    tolerance = 1e-5 if graph.returns[0].type.dtype == f32 else 2e-3
    alike(evaluate_numpy(graph, *map(as_array, inputs))[0], expected, 1e-12)
    alike(as_array(run_reference(graph, *inputs)[0]), expected, tolerance)
    alike(
        as_array(TritonExecutable(graph, interpret=True)(*inputs)[0]),
        expected,
        tolerance,
    )


def test_the_reference_of_each_is_known() -> None:
    assert REFERENCE.keys() == {op.name for op in STEPWISE}


@pytest.mark.parametrize("op", STEPWISE, ids=lambda o: o.name)
def test_accumulators_are_text(op: Operator) -> None:
    graph = looped(op, f16, inside=True)
    assert parse(str(graph)) == graph
    (block,) = graph.blocks
    (kind,) = [n.kind for n in block.nodes if isinstance(n, Accumulate)]
    assert kind == op.name


@pytest.mark.parametrize("op", STEPWISE, ids=lambda o: o.name)
def test_parts_of_a_joined_dim_are_joined(op: Operator) -> None:
    g = KernelBuilder("joined", m=M, k=K, r=3)
    x, y = g.input("x", f32, "m, k"), g.input("y", f32, "m, r")
    with g.block(grid={"m": 3}) as b:
        both = b.concat(
            b.load(x, "m/grid, k"), b.load(y, "m/grid, r"), dims="k, r", to="j"
        )
        out = b.store(b.apply(op, both, over="j"), "m/grid")
    graph = g.returns(out).build()
    tensors = [rows(f32), torch.full((M, 3), 1.25)]
    expected = as_array(REFERENCE[op.name](torch.cat(tensors, 1).double()))
    alike(
        as_array(TritonExecutable(graph, interpret=True)(*tensors)[0]), expected, 1e-5
    )


def test_shifts_of_masked_rows_are_low_wherever_they_are_computed() -> None:
    """A larger shift can still be taken over them."""
    shift = OPERATORS["rowshift"]
    x = torch.full((M, K), -torch.inf, dtype=torch.float16)
    for form in ("library kernel", "one tile"):
        graph = FORMS[form](shift, f16)
        (reference,) = run_reference(graph, x)
        (printed,) = TritonExecutable(graph, interpret=True)(x)
        assert (reference <= -65504).all()
        assert (printed <= -65504).all()


def test_the_printed_largest_of_nan_is_nan() -> None:
    source = emit(whole(OPERATORS["max"], f32))
    assert "tl.reduce(" in source
    assert "tl.PropagateNan.ALL" in source


def test_blocks_that_share_a_part_store_one_of_equal_ones() -> None:
    graph = split(OPERATORS["prod"], f32)
    assert [type(n) for n in graph.nodes] == [BlockGraph, BlockGraph]
    assert str(graph).count("prod") == 3


# -- By halves -------------------------------------------------------------------------


def halves(graph: KernelGraph, *, sized: bool = True) -> dict[str, str]:
    """How each reduction of a graph is made, by its name."""
    statements = (s for p in programs(graph, sized=sized) for s, _ in walk(p.body))
    return {s.result: str(s.halves) for s in statements if isinstance(s, Reduce)}


@pytest.mark.parametrize("tile", [2, 4, 8, 16])
@pytest.mark.parametrize("columns", [8, 16])
def test_what_warps_hold_is_summed_without_shuffles(tile: int, columns: int) -> None:
    graph = summed_batch(tile, groups=32, rows=columns)
    graph = graph.with_schedules(lambda _: Schedule(num_warps=tile))
    assert halves(graph) == {"t7": "True"}
    assert halves(graph, sized=False) == {"t7": "16 >= lanes(g/loop)"}
    emitted = plan(graph)
    text = compile_kernel(emitted, emitted.kernels[0], 90).asm["ptx"]
    behind = text[text.rindex("mma.sync") :]
    # Of fewer results than there are threads some have the same one.
    assert 16 * columns < 32 * tile or "shfl.sync" not in behind
    # `tl.sum` has eleven: its reductions swap lanes, then meet in shared memory.
    assert behind.count("bar.sync") <= (9 if columns == 8 else 7)


def test_more_than_warps_hold_is_summed_as_before() -> None:
    assert list(halves(summed_batch(32, groups=64)).values()) == ["False"]


def test_what_is_no_batch_is_summed_as_before() -> None:
    g = KernelBuilder("both", g=8, m=16, k=16, n=16)
    x, w = g.input("x", f16, "g, m, k"), g.input("w", f16, "g, k, n")
    with g.block(grid={"m": 16}) as b:
        left, right = b.load(x, "g, m/grid, k"), b.load(w, "g, k, n")
        product = b.matmul(left, right, over="k")
        outs = [b.sum(product, over="g"), b.sum(b.square(left), over="g")]
        outs += [b.sum(product, over="n"), b.sum(product, over="g, n")]
        axes = ("m/grid, n", "m/grid, k", "g, m/grid", "m/grid")
        stores = [b.store(o, a, dtype=f32) for o, a in zip(outs, axes, strict=True)]
    found = halves(g.returns(*stores).build())
    assert list(found.values()) == ["True", "False", "False", "False"]
