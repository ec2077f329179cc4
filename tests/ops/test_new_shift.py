"""A shift that a row adds while the program runs goes down the whole road.

The shift by the minimum, for exponents `s - x`: softmin.  Nothing but the table is
changed: what recognises, strips, searches, verifies, checks and prints shifts reads the
row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph, RunningMax
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import applications
from mirage_dsl.ops.definition import Operator
from mirage_dsl.ops.makers import ROWS, shift
from mirage_dsl.ops.table import MIN
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import strip_shifts
from mirage_dsl.search.sizes import Constraints
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.tile import build as tiles
from mirage_dsl.tile.check import check
from mirage_dsl.tile.program import Finite, walk
from mirage_dsl.tile.text import parse as parse_tiles
from mirage_dsl.tile.text import to_text
from mirage_dsl.verify.shifts import reductions_as_shifts
from mirage_dsl.verify.verifier import verify

M, K, N = 6, 150, 20


@pytest.fixture(scope="module")
def lowshift() -> Iterator[Operator]:
    before = dict(ROWS)
    try:
        yield shift(
            "lowshift",
            MIN,
            triton="tl.min({0}, axis={axis})",
            torch="torch.amin({0}, {axes}).clamp(max=torch.finfo(torch.float32).max)",
        )
    finally:
        ROWS.clear()
        ROWS.update(before)


def softmin(x: Any, v: Any) -> Any:
    """Written by hand, as a safe softmin is."""
    e = mirage.exp(x.amin(-1, keepdims=True) - x)
    return (e / e.sum(-1, keepdims=True)) @ v


def with_its_minimum(x: Any, v: Any) -> Any:
    """Here the minimum matters."""
    return softmin(x, v) * x.amin(-1, keepdims=True)


def traced(function: Any) -> KernelGraph:
    specs = mirage.spec((M, K), "float32"), mirage.spec((K, N), "float32")
    return expand(mirage.kernel(function).trace(*specs))


def rows(graph: KernelGraph) -> set[str]:
    return {n.op.name for n in applications(graph)}


def test_without_the_row_a_minimum_is_one() -> None:
    assert "min" in rows(reductions_as_shifts(traced(softmin)))


def test_a_minimum_that_only_shifts_is_recognised(lowshift: Operator) -> None:
    found = rows(reductions_as_shifts(traced(softmin)))
    assert lowshift.name in found
    assert "min" not in found


def test_one_that_matters_stays(lowshift: Operator) -> None:
    found = rows(reductions_as_shifts(traced(with_its_minimum)))
    assert "min" in found
    assert lowshift.name not in found


def test_taken_out_it_leaves_the_exponent_negated(lowshift: Operator) -> None:
    bare = strip_shifts(reductions_as_shifts(traced(softmin)))
    assert lowshift.name not in rows(bare)
    assert "sub" not in rows(bare)
    (exponential,) = (n for n in bare.applies if n.op.name == "exp")
    (negated,) = (n for n in bare.applies if n.result == exponential.values[0])
    assert [str(o) for o in negated.operands] == ["x", "-1"]


@pytest.fixture(scope="module")
def found(lowshift: Operator) -> list[KernelGraph]:  # noqa: ARG001
    """What is found for a softmin that is written by hand."""
    limits = Constraints(franges=(3,))
    result = superoptimize(traced(softmin), use_cache=False, constraints=limits)
    return [c.mugraph for c in result]


def online(graph: KernelGraph) -> bool:
    return any(isinstance(n, RunningMax) for b in graph.blocks for n in b.nodes)


def test_it_is_found_online(found: list[KernelGraph]) -> None:
    graph = next(g for g in found if online(g))
    assert len(graph.nodes) == 1
    assert verify(graph, traced(softmin)).ok


def agrees(graph: KernelGraph, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((M, K), generator=generator) * scale
    v = torch.rand((K, N), generator=generator)
    expected = torch.softmax(-x.double(), -1) @ v.double()
    (values,) = TritonExecutable(graph, interpret=True)(x, v)
    np.testing.assert_allclose(values.numpy(), expected.numpy(), rtol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_what_is_found_computes_it(found: list[KernelGraph], scale: float) -> None:
    agrees(next(g for g in found if online(g)), scale)


def test_the_library_computes_it(lowshift: Operator) -> None:
    shifted = reductions_as_shifts(traced(softmin))
    assert lowshift.name in rows(shifted)
    agrees(shifted, 1e4)


BLOCK = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m, k] where m = 6, k = 20 {
  y = block grid(m / 4) {
    t = load x[m/grid, k]
    s = lowshift t over(k)
    e = exp(s - t)
    store y: f32[m/grid, k] = e
  }
  return y
}
"""


def masked() -> list[torch.Tensor]:
    """Rows of which some, and one of which all elements are masked."""
    x = torch.randn((6, 20), generator=torch.Generator().manual_seed(0)) * 100
    x[1, ::3] = x[2] = float("inf")
    return [x]


def test_in_a_block_it_is_finite_where_all_is_masked(lowshift: Operator) -> None:
    graph = parse(BLOCK)
    assert parse(str(graph)) == graph
    assert lowshift.name in rows(graph)
    (expected,) = evaluate_numpy(graph, *(t.double().numpy() for t in masked()))
    assert (expected[2] == 0).all()
    assert np.isfinite(expected).all()
    (values,) = TritonExecutable(graph, interpret=True)(*masked())
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-5, atol=1e-30)


def test_its_tile_program_makes_it_finite(lowshift: Operator) -> None:
    (program,) = tiles.programs(parse(BLOCK))
    assert parse_tiles(to_text(program)) == program
    (step,) = (s for s, _ in walk(program.body) if isinstance(s, Finite))
    assert step.fill == lowshift.neutral
    assert not check(program)
    wrong = to_text(program).replace("finite s fill(inf)", "finite s")
    assert wrong != to_text(program)
    (problem,) = check(parse_tiles(wrong))
    assert "which is inf where all is masked" in str(problem)
