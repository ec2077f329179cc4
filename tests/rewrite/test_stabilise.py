"""Shifts taken out of programs and put back into μGraphs."""

from __future__ import annotations

from typing import Any

import pytest

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.analysis.bounds import NotHomogeneousError, exposed, scaling_of
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import Accumulate, Apply, BlockGraph, KernelGraph, RunningMax
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs


def _operators(graph: KernelGraph) -> list[str]:
    return [n.op.name for n in graph.nodes if isinstance(n, Apply)]


def test_rowshifts_are_taken_out() -> None:
    program = graphs.attention()
    stripped = strip_shifts(program)
    assert _operators(stripped) == ["matmul", "exp", "sum", "div", "matmul"]
    assert verify(stripped, program, stability=False).equivalent


def test_a_shift_with_another_use_stays() -> None:
    b: Any = KernelBuilder("f", m=8, n=16)
    x = b.input("x", f16, "m, n")
    top = b.rowshift(x, over="n")
    e = b.exp(b.sub(x, top))
    program = b.returns(b.div(e, b.sum(e, over="n")), b.exp(top)).build()
    assert strip_shifts(program) == program


def test_a_program_without_shifts_is_itself() -> None:
    assert strip_shifts(graphs.rms_linear()) == graphs.rms_linear()


@pytest.mark.parametrize(
    "candidate",
    [graphs.attention_loop, graphs.flash_decoding, graphs.attention_unshifted],
)
def test_shifts_are_put_back(candidate: graphs.Maker) -> None:
    program = graphs.attention()
    before = verify(candidate(), program)
    assert before.stability is not None
    assert not before.stability.ok
    stable = stabilise(candidate())
    assert stable is not None
    assert not check(stable)
    found = verify(stable, program)
    assert found.equivalent, found.reason
    assert found.stability is not None
    assert found.stability.ok, found.stability.reason


def test_every_sum_of_exponentials_is_rescaled() -> None:
    stable = stabilise(graphs.attention_loop())
    assert stable is not None
    block = stable.blocks[0]
    running = [n.result for n in block.nodes if isinstance(n, RunningMax)]
    sums = [n for n in block.nodes if isinstance(n, Accumulate)]
    assert len(running) == 1
    assert [n.rescale for n in sums] == running * 2


@pytest.mark.parametrize(
    "candidate",
    [graphs.rms_linear_fused, graphs.gated_mlp_fused, graphs.attention_online],
)
def test_nothing_to_do_is_none(candidate: graphs.Maker) -> None:
    assert stabilise(candidate()) is None


def _loop_over_n(after: Any) -> KernelGraph:
    b: Any = KernelBuilder("f", m=8, n=64)
    x = b.input("x", f16, "m, n")
    with b.block(grid={"m": 2}, loop=("n", 8)) as t:
        e = t.exp(t.load(x, "m/grid, n/loop"))
        y = t.store(after(t, t.accumulate(t.sum(e, over="n"))), "m/grid", dtype=f16)
    return b.returns(y).build()


def _scaled_softmax(factor: str, largest: str, shift: str) -> KernelGraph:
    return parse(
        "mirage 1\nmugraph f(x: f32[m, k]) -> f32[m, k] where m = 8, k = 64 {\n"
        f"  t = {largest} x over(k)\n  s = {shift}\n  r = {factor}\n  e = exp r\n"
        "  a = sum e over(k)\n  y = div e, a\n  return y\n}\n"
    )


@pytest.mark.parametrize("largest", ["max", "rowshift"])
@pytest.mark.parametrize("factor", ["div s, 3", "mul s, 3", "mul 1/3, s", "mul s, 1/k"])
def test_what_is_scaled_behind_its_shift_needs_no_other(
    largest: str, factor: str
) -> None:
    assert stabilise(_scaled_softmax(factor, largest, "sub x, t")) is None


@pytest.mark.parametrize(
    ("factor", "shift"),
    [("mul s, -1", "sub x, t"), ("div 3, s", "sub x, t"), ("div s, 3", "sub t, x")],
)
def test_what_is_not_below_zero_needs_one(factor: str, shift: str) -> None:
    found = stabilise(_scaled_softmax(factor, "max", shift))
    assert found is not None
    assert _operators(found).count("rowshift") == 1


def test_a_sum_that_leaves_as_it_is_has_no_shift() -> None:
    assert stabilise(_loop_over_n(lambda _, s: s)) is None


def test_one_plus_a_sum_has_no_shift() -> None:
    assert stabilise(_loop_over_n(lambda t, s: t.div(s, t.add(s, 1)))) is None


def test_a_ratio_of_powers_has_one() -> None:
    graph = _loop_over_n(lambda t, s: t.div(t.mul(s, 3), t.sqrt(t.mul(s, s))))
    stable = stabilise(graph)
    assert stable is not None
    assert verify(stable, graph, stability=False).equivalent


def test_two_exponentials_get_shifts_of_their_own() -> None:
    b: Any = KernelBuilder("two", m=8, n=64)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m, n")
    with b.block(grid={"m": 2}, loop=("n", 8)) as t:
        both: list[str] = []
        for source in (x, y):
            xt = t.load(source, "m/grid, n/loop")
            e = t.exp(xt)
            top = t.accumulate(t.sum(t.mul(e, xt), over="n"))
            both.append(t.div(top, t.accumulate(t.sum(e, over="n"))))
        z = t.store(t.add(*both), "m/grid", dtype=f16)
    graph = b.returns(z).build()
    stable = stabilise(graph)
    assert stable is not None
    running = [n for n in stable.blocks[0].nodes if isinstance(n, RunningMax)]
    assert len(running) == 2
    assert verify(stable, graph, stability=False).equivalent


def test_softmax_inside_of_an_iteration_needs_no_running_maximum() -> None:
    b: Any = KernelBuilder("inner", m=64, n=16, e=8)
    x, w = b.input("x", f16, "m, n"), b.input("w", f16, "m, e")
    with b.block(grid={"e": 4}, loop=("m", 8)) as t:
        e = t.exp(t.load(x, "m/loop, n"))
        p = t.cast(t.div(e, t.sum(e, over="n")), dtype="f16")
        wt = t.load(w, "m/loop, e/grid")
        y = t.store(t.accumulate(t.matmul(p, wt, over="m")), "n, e/grid", dtype=f16)
    graph = b.returns(y).build()
    stable = stabilise(graph)
    assert stable is not None
    block = stable.blocks[0]
    assert not any(isinstance(n, RunningMax) for n in block.nodes)
    assert verify(stable, graph, stability=False).equivalent


def test_scaling_follows_values_across_kernels() -> None:
    graph = graphs.flash_decoding()
    block = graph.nodes[0]
    assert isinstance(block, BlockGraph)
    e = next(n for n in block.nodes if isinstance(n, Apply) and n.op.name == "exp")
    found = scaling_of(graph, 0, e.result)
    assert found.summed == ["t"]
    assert found.partial == {"t#"}
    assert found.combined == [1]
    product = next(n for n in block.nodes if isinstance(n, Apply))
    with pytest.raises(NotHomogeneousError):
        scaling_of(graph, 0, product.result)


def test_parts_combined_by_two_kernels_have_no_common_shift() -> None:
    """Numerators are combined in one kernel, denominators in the next."""
    b: Any = KernelBuilder("attention", h=2, s=256, t=4096, d=64, e=64)
    q, k = b.input("q", f16, "h, s, d"), b.input("k", f16, "h, d, t")
    v = b.input("v", f16, "h, t, e")
    o, parts = graphs.sums_of_parts(b, q, k, v)
    with b.block(grid={"h": 1, "s": 64}) as c:
        ot = c.load(o, "h/grid, s/grid, e, t#")
        above = c.store(c.sum(ot, over="t#"), "h/grid, s/grid, e", dtype=f32)
    with b.block(grid={"h": 1, "s": 64}) as c:
        at, lt = c.load(above, "h/grid, s/grid, e"), c.load(parts, "h/grid, s/grid, t#")
        y = c.store(c.div(at, c.sum(lt, over="t#")), "h/grid, s/grid, e", dtype=f16)
    assert stabilise(b.returns(y).build()) is None


_IN_THREE_KERNELS = """
mirage 1

mugraph f(x: f32[m, k]) -> f32[m] where m = 8, k = 64 {
  top = block grid(m / 2) loop(k / 16) {
    x_t: f32[m/grid, k/loop] = load x
    v1: f32[m/grid, k/loop] = accumulate x_t max
    v2: f32[m/grid] = max v1 over(k)
    v3: f32[m/grid] = minimum v2, 100
    store top: f32[m/grid] = v3
  }
  moved = block grid(m / 2, k / 16) {
    x_t: f32[m/grid, k/grid] = load x
    top_t: f32[m/grid] = load top
    v1: f32[m/grid, k/grid] = sub x_t, top_t
    store moved: f32[m/grid, k/grid] = v1
  }
  total = block grid(m / 2) loop(k / 16) {
    moved_t: f32[m/grid, k/loop] = load moved
    v1: f32[m/grid, k/loop] = exp moved_t
    v2: f32[m/grid, k/loop] = accumulate v1
    v3: f32[m/grid] = sum v2 over(k)
    store total: f32[m/grid] = v3
  }
  return total
}
"""


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ("", "", 0),
        ("max v1 over(k)", "rowshift v1 over(k)", 0),
        # Not a maximum, not that of what it is subtracted from, not subtracted.
        ("accumulate x_t max", "accumulate x_t min", 1),
        ("v1 over(k)\n    v3", "v1 over(k)\n    v9: f32[m/grid] = neg v2\n    v3", 0),
        ("v3: f32[m/grid] = minimum v2", "v3: f32[m/grid] = mul v2", 1),
        ("sub x_t, top_t", "add x_t, top_t", 1),
    ],
)
def test_a_maximum_of_another_kernel_keeps_exponents_in_range(
    before: str, after: str, count: int
) -> None:
    graph = parse(_IN_THREE_KERNELS.replace(before, after, 1))
    assert len(list(exposed(graph))) == count
