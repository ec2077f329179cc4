"""Chains of segments: the bound below which none is priced, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate, least_microseconds
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.search import driver
from mirage_dsl.search.budget import UNLIMITED
from mirage_dsl.search.driver import search
from mirage_dsl.search.partition import Cutter, computed_again
from mirage_dsl.search.programs import Chains, PartsOf
from mirage_dsl.search.segments import SegmentSearch, silent, structural_search
from mirage_dsl.search.sizes import Constraints, Sizer
from mirage_dsl.verify.verifier import verify
from tests.search import programs


def products(x: Any, w: Any, v: Any) -> Any:
    return mirage.exp(mirage.exp(x @ w) @ v) @ w


def wide() -> KernelGraph:
    specs = [mirage.spec(s, "float16") for s in ((8, 512), (512, 2048), (2048, 512))]
    return trace_function(products, specs, name="products")


def always(enough: float) -> Callable[[object, object], float]:
    return lambda _, __: enough


def plans(enough: float | None) -> tuple[list[tuple[float, str]], int]:
    """Candidates, as estimates and texts, and how many runs the bound has cut."""
    with pytest.MonkeyPatch.context() as patch:
        if enough is not None:
            patch.setattr(driver._Driver, "_enough", always(enough))
        found = search(wide(), H100, k=2, max_kernels=1)
    listed = [(c.cost.microseconds, str(c.mugraph)) for c in found]
    return listed, found.ledger.cut["bound"]


def test_the_bound_cuts_nothing_that_is_wanted() -> None:
    every, none = plans(float("inf"))
    assert none == 0
    assert plans(None)[0] == every
    assert plans(every[0][0])[0][0] == every[0]


def test_what_is_not_wanted_is_not_searched() -> None:
    found, cut = plans(0.0)
    assert found
    assert cut > 0


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["rmslin", "lora", "gated", "gqa"])
def test_no_program_takes_less_than_the_bound(name: str) -> None:
    program = programs.PROGRAMS[name]()
    least = least_microseconds(expand(program), frozenset(), H100)
    assert 1e6 * (H100.launch + H100.ramp) < least
    assert least < estimate(program, H100).microseconds
    for candidate in search(program, H100, k=8, max_kernels=2):
        assert candidate.cost.microseconds >= least


def test_what_lies_in_l2_is_read_faster() -> None:
    program = expand(wide())
    inside = frozenset(i.name for i in program.inputs)
    cold = least_microseconds(program, frozenset(), H100)
    assert least_microseconds(program, inside, H100) < cold


def statistics(x: Any) -> Any:
    both = mirage.softmax(x, axis=0), mirage.softmax(x, axis=1)
    return (mirage.max(x, axis=-1), mirage.sum(x, axis=0), *both, mirage.layer_norm(x))


@pytest.mark.sample(0)
def test_what_one_kernel_makes_slowly_is_cut() -> None:
    """Sums over rows and over columns: one block would have to hold all of x."""
    program = trace_function(statistics, [mirage.spec((512, 1024), "float16")])
    best = search(program, H100, k=1, max_kernels=None).best
    assert len(best.mugraph.blocks) >= 2
    # Library kernels are few: both norms are one call each.
    assert best.cost.microseconds < 0.5 * estimate(program, H100).microseconds


HALVES = """mirage 1
mugraph both(x: f16[m, k], a: f16[k, n], b: f16[k, n]) -> f16[m, n]
where m = 16, k = 2048, n = 128 {
  p = block grid(n / 32, k / 256) loop(k / 64) {
    xt = load x[m, k/grid/loop]
    wt = load a[k/grid/loop, n/grid]
    v = matmul xt, wt over(k)
    s = accumulate v
    store p: f32[k#/grid, m, n/grid] = s
  }
  u = block grid(n / 32) {
    pt = load p[k#, m, n/grid]
    s = sum pt over(k#)
    store u: f16[m, n/grid] = s
  }
  q = block grid(n / 32, k / 512) loop(k / 64) {
    xt = load x[m, k/grid/loop]
    wt = load b[k/grid/loop, n/grid]
    v = matmul xt, wt over(k)
    s = accumulate v
    store q: f32[k#/grid, m, n/grid] = s
  }
  y = block grid(n / 32) {
    qt = load q[k#, m, n/grid]
    ut = load u[m, n/grid]
    s = sum qt over(k#)
    d = mul s, ut
    store y: f16[m, n/grid] = d
  }
  return y
}
"""
"""Two segments in a row, which cut k in 8 parts and in 4."""


def test_segments_that_cut_one_dim_differently_are_sized_together() -> None:
    program = parse(
        "mirage 1\nmugraph both(x: f16[m, k], a: f16[k, n], b: f16[k, n])\n"
        "-> f16[m, n] where m = 16, k = 2048, n = 128 {\n  u = x @ a\n  v = x @ b\n"
        "  y = mul v, u\n  return y\n}\n"
    )
    differing = parse(HALVES)
    assert check(differing)
    plan = Sizer(H100, Constraints()).joined(differing)
    assert plan is not None
    assert not check(plan.graph)
    early = launched_early(plan.graph)
    assert plan.microseconds == estimate(early, H100).microseconds
    assert plan.graph.blocks[0].grid[-1] == plan.graph.blocks[2].grid[-1]
    assert verify(plan.graph, program).ok


def read_again(x: Any, w: Any) -> Any:
    unit = x / mirage.sqrt((x * x).sum(-1, keepdims=True))
    return mirage.tanh(unit @ w) @ w + unit


def test_segments_of_orders_that_compute_again_have_results_of_their_own() -> None:
    """One order reads the norm itself behind the product, the other its root."""
    specs = mirage.spec((4, 8), "float32"), mirage.spec((8, 8), "float32")
    program = expand(trace_function(read_again, specs, name="read_again"))
    again = computed_again(program)
    assert again is not None
    structures = structural_search(H100, 0, 1, UNLIMITED, own=True)
    segments, known = SegmentSearch(structures, H100, keep=1, own=True), PartsOf()
    for form, late in ((program, False), (again, True), (program, False)):
        cutter = Cutter(form, late=late)
        chains = Chains(cutter, segments, 2, silent, known)
        for parts in chains.cheapest(products=False):
            graph = cutter.join([part.graph for part in parts])
            assert graph.blocks
            assert check(graph) == []
            assert verify(graph, program).equivalent
