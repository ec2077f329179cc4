"""Sums done by the blocks that make what is summed, so that it is not stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.hardware import H100, H200
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.loops import summed_where_made
from mirage_dsl.search.driver import search
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.verify.verifier import verify

ROWS = """mirage 1
mugraph f(x: f32[m, k], b: f32[m], w: f32[n]) -> OUT where m = 50, k = 40, n = 50 {
  y = block grid(m / 16) loop(k / 16) {
    t = load x[m/grid, k/loop]
    a = accumulate t
    s = sum a over(k)
    e = exp s
    store y: f32[m/grid] = e
  }
  SECOND
}
"""
SECOND = {
    "in a loop": """z = block loop(m / 16) {
    t = load y[m/loop]
    v = load b[m/loop]
    p = t * v
    a = accumulate p
    s = sum a over(m)
    store z: f32[] = s
  }
  return z""",
    "all at once": """z = block {
    t = load y[m]
    v = load b[m]
    p = t * v
    s = sum p over(m)
    q = sum t over(m)
    d = s / q
    store z: f32[] = d
  }
  return z""",
    "in parts": """p = block grid(m / 8) {
    t = load y[m/grid]
    u = t * t
    s = sum u over(m)
    store p: f32[m#/grid] = s
  }
  z = block {
    t = load p[m#]
    s = sum t over(m#)
    store z: f32[] = s
  }
  return z""",
    "the largest": """z = block loop(m / 16) {
    t = load y[m/loop]
    a = accumulate t max
    s = max a over(m)
    store z: f32[] = s
  }
  return z""",
}
NOT_THERE = {
    "it is read by itself": """z = block {
    t = load y[m]
    s = sum t over(m)
    d = t / s
    store z: f32[m] = d
  }
  return z""",
    "of other elements": """q = rename y dims(m) to(n)
  z = block loop(n / 16) {
    t = load q[n/loop]
    a = accumulate t
    s = sum a over(n)
    store z: f32[] = s
  }
  return z""",
}


def _graph(second: str, out: str = "f32[]") -> str:
    return ROWS.replace("SECOND", second).replace("OUT", out)


@pytest.mark.parametrize("name", SECOND)
def test_pieces_are_summed_where_they_are_made(name: str) -> None:
    graph = parse(_graph(SECOND[name]))
    found = summed_where_made(graph)
    assert found is not None
    assert not check(found)
    first, second = found.blocks
    assert "y" not in first.results
    assert set(second.sources) <= set(first.results)
    certificate = verify(found, graph)
    assert certificate.ok, certificate.reason
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((50, 40), 50, 50)]
    given[0] /= 40
    np.testing.assert_allclose(
        evaluate_numpy(found, *given), evaluate_numpy(graph, *given), rtol=1e-5
    )


def test_what_is_returned_too_is_stored() -> None:
    second = SECOND["in a loop"].replace("return z", "return z, y")
    graph = parse(_graph(second, "f32[], f32[m]"))
    found = summed_where_made(graph)
    assert found is not None
    assert "y" in found.blocks[0].results
    assert verify(found, graph).equivalent


@pytest.mark.parametrize("name", NOT_THERE)
def test_what_else_is_read_stays(name: str) -> None:
    out = "f32[m]" if "itself" in name else "f32[]"
    assert summed_where_made(parse(_graph(NOT_THERE[name], out))) is None


LOOPS = """mirage 1
mugraph f(x: f32[m, k], v: f32[m, k]) -> f32[] where m = 64, k = 64 {
  jm = index m
  jk = index k
  y = block grid(m / 16) loop(k / 16)FIRST {
    t = load x[m/grid, k/loop]
    im = load jm[m/grid]
    ik = load jk[k/loop]
    c = ik <= im
    w = where(c, t, 0)
    a = accumulate w
    s = sum a over(k)
    store y: f32[m/grid] = s
  }
  p = block grid(m / 16) loop(k / 16)SECOND {
    t = load v[m/grid, k/loop]
    u = load y[m/grid]
    im = load jm[m/grid]
    ik = load jk[k/loop]
    c = ik <= im
    w = where(c, t, 0)
    a = accumulate w
    r = sum a over(k)
    z = r * u
    s = sum z over(m)
    store p: f32[m#/grid] = s
  }
  z = block {
    t = load p[m#]
    s = sum t over(m#)
    store z: f32[] = s
  }
  return z
}
"""
BOUND, MASK = " while(k <= m)", "    c = ik <= im\n    w = where(c, t, 0)\n"


def _loops(first: str, second: str) -> str:
    """Two loops over tiles; one that is not bounded has no mask either."""
    text = LOOPS.replace("FIRST", first).replace("SECOND", second)
    for has, tile in ((first, "x"), (second, "v")):
        if not has:
            before, behind = text.split(f"load {tile}[")
            behind = behind.replace(MASK, "    w = t * 2\n", 1)
            text = f"{before}load {tile}[{behind}"
    return text


@pytest.mark.parametrize(
    ("first", "second"), [("", ""), (BOUND, ""), ("", BOUND), (BOUND, BOUND)]
)
def test_joined_loops_visit_what_either_one_does(first: str, second: str) -> None:
    graph = parse(_loops(first, second))
    found = summed_where_made(graph)
    assert found is not None
    joined = found.blocks[0]
    assert len(joined.stores) == 1
    assert bool(joined.bounds) == bool(first and second)
    certificate = verify(found, graph)
    assert certificate.ok, certificate.reason
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]
    np.testing.assert_allclose(
        evaluate_numpy(found, *given), evaluate_numpy(graph, *given), rtol=1e-5
    )


X, LABELS = mirage.spec((4096, 1000), "float32"), mirage.spec((4096,), "int64")
LOSSES = {
    "cross entropy": (lambda x, y: F.cross_entropy(x, y), [X, LABELS]),
    "mean of norms": (lambda x: torch.linalg.norm(x, dim=1).mean(), [X]),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_two_kernels(name: str) -> None:
    function, arguments = LOSSES[name]
    program = mirage.kernel(function).bind(*arguments).program
    best = search(program, H100, budget_seconds=30, max_kernels=2).candidates[0]
    first, second = best.mugraph.blocks
    # Parts are all that lies between the two.
    assert all("m#" in str(s.axes) for s in first.stores), best.mugraph
    assert set(second.sources) <= set(first.results)
    assert all(r.spills == 0 for r in compile_only(best.mugraph, "sm_90"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1000, generator=generator)
    given = [x, torch.randint(0, 1000, (4096,), generator=generator)]
    given = given[: len(arguments)]
    found = TritonExecutable(best.mugraph, interpret=True)(*given)[0]
    torch.testing.assert_close(found, function(*given), rtol=1e-5, atol=1e-5)


def test_a_third_kernel_is_saved_where_four_would_cost_as_much() -> None:
    """Plans of four kernels, whose labels are compared apart, are a bit cheaper."""
    logits, labels = mirage.spec((32768, 4096), "f32"), mirage.spec((32768,), "int64")
    program = mirage.kernel(F.cross_entropy).bind(logits, labels).program
    best = superoptimize(program, hardware=H200, use_cache=False).best
    assert len(best.mugraph.blocks) == 2
