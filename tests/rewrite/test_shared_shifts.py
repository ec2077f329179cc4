"""Exponentials that are added to each other get one shift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.analysis.bounds import NotHomogeneousError
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import Accumulate, Apply, KernelGraph, RunningMax
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.ops.table import EXP, MAXIMUM, SUB
from mirage_dsl.rewrite.shifts import sorted_by_reads, stabilise, strip_shifts
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs

SIZES = {"h": 2, "s": 256, "d": 64, "t": 4096, "e": 64, "r": 8}


def inputs(b: Any) -> list[str]:
    shapes = {"q": "h, s, d", "k": "h, d, t", "v": "h, t, e"}
    shapes |= {"k1": "h, d, r", "v1": "h, r, e", "sinks": "h"}
    return [b.input(name, f16, axes) for name, axes in shapes.items()]


def program() -> KernelGraph:
    """Attention on a cache and on some more keys, with a sink for each head."""
    b: Any = KernelBuilder("attention", **SIZES)
    q, k, v, k1, v1, sinks = inputs(b)
    logits, more = b.matmul(q, k, over="d"), b.matmul(q, k1, over="d")
    shift = b.maximum(b.rowshift(logits, over="t"), b.rowshift(more, over="r"))
    shift = b.maximum(shift, sinks)
    e, f = b.exp(b.sub(logits, shift)), b.exp(b.sub(more, shift))
    total = b.add(b.sum(e, over="t"), b.sum(f, over="r"))
    total = b.add(total, b.exp(b.sub(sinks, shift)))
    values = b.add(b.matmul(e, v, over="t"), b.matmul(f, v1, over="r"))
    return b.returns(b.div(values, total)).build()


def unshifted() -> KernelGraph:
    return strip_shifts(program())


def finish(t: Any, e_v: str, e_sum: str, rest: tuple[str, ...]) -> str:
    """The result, from the sums over the cache."""
    qt, k1t, v1t, sink = rest
    f = t.exp(t.matmul(qt, k1t, over="d"))
    total = t.add(t.add(e_sum, t.sum(f, over="r")), t.exp(sink))
    values = t.add(e_v, t.matmul(t.cast(f, dtype="f16"), v1t, over="r"))
    return t.store(t.div(values, total), "h/grid, s/grid, e", dtype=f16)


def rest_of(t: Any, q: str, k1: str, v1: str, sinks: str) -> tuple[str, ...]:
    return (
        t.load(q, "h/grid, s/grid, d"),
        t.load(k1, "h/grid, d, r"),
        t.load(v1, "h/grid, r, e"),
        t.load(sinks, "h/grid"),
    )


def in_a_loop() -> KernelGraph:
    b: Any = KernelBuilder("attention", **SIZES)
    q, k, v, *others = inputs(b)
    with b.block(grid={"h": 1, "s": 64}, loop=("t", 64)) as t:
        rest = rest_of(t, q, *others)
        kt, vt = t.load(k, "h/grid, d, t/loop"), t.load(v, "h/grid, t/loop, e")
        e = t.exp(t.matmul(rest[0], kt, over="d"))
        total = t.accumulate(t.sum(e, over="t"))
        pv = t.accumulate(t.matmul(t.cast(e, dtype="f16"), vt, over="t"))
        y = finish(t, pv, total, rest)
    return b.returns(y).build()


def at_once() -> KernelGraph:
    b: Any = KernelBuilder("attention", **SIZES)
    q, k, v, *others = inputs(b)
    with b.block(grid={"h": 1, "s": 16}) as t:
        rest = rest_of(t, q, *others)
        kt, vt = t.load(k, "h/grid, d, t"), t.load(v, "h/grid, t, e")
        e = t.exp(t.matmul(rest[0], kt, over="d"))
        pv = t.matmul(t.cast(e, dtype="f16"), vt, over="t")
        y = finish(t, pv, t.sum(e, over="t"), rest)
    return b.returns(y).build()


def in_parts() -> KernelGraph:
    b: Any = KernelBuilder("attention", **SIZES)
    q, k, v, *others = inputs(b)
    o, l = graphs.sums_of_parts(b, q, k, v)  # noqa: E741
    with b.block(grid={"h": 1, "s": 64}) as c:
        ot = c.sum(c.load(o, "h/grid, s/grid, e, t#"), over="t#")
        lt = c.sum(c.load(l, "h/grid, s/grid, t#"), over="t#")
        y = finish(c, ot, lt, rest_of(c, q, *others))
    return b.returns(y).build()


def operators(graph: KernelGraph) -> list[str]:
    return [n.op.name for n in graph.nodes if isinstance(n, Apply)]


def test_shifts_larger_than_others_are_taken_out() -> None:
    """Also where an exponent has fewer dims than the shift."""
    assert not {"rowshift", "maximum", "sub"} & {*operators(unshifted())}
    assert verify(unshifted(), program(), stability=False).equivalent


def test_a_larger_shift_that_is_returned_stays() -> None:
    b: Any = KernelBuilder("f", m=8, n=16)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m")
    top = b.maximum(b.rowshift(x, over="n"), y)
    graph = b.returns(b.exp(b.sub(x, top)), top).build()
    assert strip_shifts(graph) == graph


def test_exponentials_that_need_the_dims_of_the_shift_keep_it() -> None:
    b: Any = KernelBuilder("f", m=8, n=16)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "n")
    top = b.rowshift(x, over="n")
    e = b.exp(b.sub(y, top))
    graph = b.returns(b.div(e, b.sum(e, over="n")), b.sum(e, over="m")).build()
    assert strip_shifts(graph) == graph


@pytest.mark.parametrize("candidate", [in_a_loop, at_once, in_parts])
def test_one_shift_for_all(candidate: Callable[[], KernelGraph]) -> None:
    before = verify(candidate(), program())
    assert before.stability is not None
    assert not before.stability.ok
    stable = stabilise(candidate())
    assert stable is not None
    assert not check(stable)
    found = verify(stable, program())
    assert found.equivalent, found.reason
    assert found.stability is not None
    assert found.stability.ok, found.stability.reason
    names = [n.op.name for b in stable.blocks for n in b.nodes if isinstance(n, Apply)]
    assert names.count("maximum") == 2
    assert stabilise(stable) is None


def test_sums_over_the_loop_are_weighted_after_it() -> None:
    stable = stabilise(in_a_loop())
    assert stable is not None
    nodes = stable.blocks[0].nodes
    (running,) = (n.result for n in nodes if isinstance(n, RunningMax))
    sums = [n for n in nodes if isinstance(n, Accumulate)]
    assert (
        sorted((n.kind, n.rescale) for n in sums if n.rescale) == [("sum", running)] * 2
    )
    assert [n.operand for n in sums if n.kind == "max"] == [running]


def test_exponentials_of_one_loop_have_no_common_shift() -> None:
    b: Any = KernelBuilder("f", m=8, n=64)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m, n")
    with b.block(grid={"m": 2}, loop=("n", 8)) as t:
        sums = [
            t.accumulate(t.sum(t.exp(t.load(s, "m/grid, n/loop")), over="n"))
            for s in (x, y)
        ]
        z = t.store(t.div(sums[0], t.add(*sums)), "m/grid", dtype=f16)
    assert stabilise(b.returns(z).build()) is None


def test_nodes_are_put_behind_what_they_read() -> None:
    exponential = Apply("e", EXP, ("moved",))
    moved = Apply("moved", SUB, ("x", "larger"))
    larger = Apply("larger", MAXIMUM, ("x", "last"))
    last, x = Accumulate("last", "x", "max"), Apply("x", EXP, ("x0",))
    start = Apply("x0", EXP, ())
    assert sorted_by_reads([exponential, moved, start, x, larger, last]) == (
        start,
        x,
        last,
        larger,
        moved,
        exponential,
    )
    with pytest.raises(NotHomogeneousError):
        sorted_by_reads([exponential, moved, larger, last])


# -- Of kernels that follow one another ------------------------------------------------

SOFTMAX = """mirage 1

mugraph softmax(x: f16[m, k]) -> f16[m, k] where m = 16, k = 4096 {
  top = rowshift x over(k)
  moved = sub x, top
  e = exp moved
  total = sum e over(k)
  y = div e, total
  return y
}
"""
WHOLE = """  total = block grid(m / 1) loop(k / 64) {
    x_t: f16[m/grid, k/loop] = load x
    e: f32[m/grid, k/loop] = exp x_t
    e_sum: f32[m/grid] = sum e over(k)
    e_all: f32[m/grid] = accumulate e_sum
    store total: f16[m/grid] = e_all
  }
"""
PARTS = """  parts = block grid(m / 1, k / 512) loop(k / 64) {
    x_t: f16[m/grid, k/grid/loop] = load x
    e: f32[m/grid, k/grid/loop] = exp x_t
    e_sum: f32[m/grid] = sum e over(k)
    e_all: f32[m/grid] = accumulate e_sum
    store parts: f32[k#/grid, m/grid] = e_all
  }
  total = block grid(m / 1) {
    p: f32[k#, m/grid] = load parts
    e_all: f32[m/grid] = sum p over(k#)
    store total: f16[m/grid] = e_all
  }
"""
QUOTIENT = """  y = block grid(m / 4, k / 256) {
    x_t: f16[m/grid, k/grid] = load x
    total_t: f16[m/grid] = load total
    e: f32[m/grid, k/grid] = exp x_t
    q: f32[m/grid, k/grid] = div e, total_t
    store y: f16[m/grid, k/grid] = q
  }
  return y
}
"""


def of_several(*kernels: str) -> KernelGraph:
    return parse("".join((SOFTMAX.split("  top")[0], *kernels)))


@pytest.mark.parametrize("sums", [WHOLE, PARTS], ids=["whole", "parts"])
def test_a_later_kernel_has_the_shift_of_the_sum_that_it_reads(sums: str) -> None:
    shifted = stabilise(of_several(sums, QUOTIENT))
    assert shifted is not None
    assert check(shifted) == []
    found = verify(shifted, parse(SOFTMAX))
    assert found.ok, found
    stores = {s.result: s.dtype for b in shifted.blocks for s in b.stores}
    assert stores["total"] == f32
    assert stores["y"] == f16


def test_the_shift_of_another_row_does_not_do() -> None:
    shifted = stabilise(of_several(PARTS, QUOTIENT))
    text = to_text(shifted) if shifted is not None else ""
    named = "= rowshift maxima2 over(k#)"
    assert named in text
    lesser = text.replace(named, "= min maxima2 over(k#)")
    found = verify(parse(lesser), parse(SOFTMAX))
    assert found.stability is not None
    assert not found.stability.ok


def test_two_sums_of_one_exponential_have_no_common_shift() -> None:
    other = WHOLE.replace("total", "total2")
    halved = QUOTIENT.replace("div e, total_t", "div e, both")
    read = "    other = load total2[m/grid]\n    both = add total_t, other\n    e:"
    halved = halved.replace("    e:", read)
    assert stabilise(of_several(WHOLE, other, halved)) is None
