"""Flat values: kernels are given the tensors that these lie in, and no view is made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from mirage_dsl.backends.base import overlaps, stored_over
from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.backends.triton.lowering.kernel import Variant
from mirage_dsl.backends.triton.running import direct
from mirage_dsl.backends.triton.running.direct import direct_call
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from tests.backends.driver import Driver
from tests.backends.running import random_inputs

ELEMENTS = """mirage 1

mugraph f(x: f32[m, k, n], y: f32[m, k, n]) -> f32[m, k, n] where m = 3, k = 5, n = 7 {
  x_flat = flatten x of(m, k, n) to(v)
  y_flat = flatten y of(m, k, n) to(v)
  z = block grid(v / 16) {
    a = load x_flat[v/grid]
    b = load y_flat[v/grid]
    c = a * 2
    d = c + b
    store z: f32[v/grid] = d
  }
  z_whole = unflatten z dim(v) gives(m, k, n)
  return z_whole
}
"""
LOOP = """mirage 1

mugraph f(x: f32[m, k, n]) -> f32[m] where m = 3, k = 6, n = 10 {
  x_flat = flatten x of(k, n) to(v)
  s = block grid(m / 1) loop(v / 16) {
    a = load x_flat[m/grid, v/loop]
    b = a * a
    t = accumulate b
    u = sum t over(v)
    store s: f32[m/grid] = u
  }
  return s
}
"""
TWO_GROUPS = """mirage 1

mugraph f(x: f32[a, b, c, d], w: f32[e, c]) -> f32[a, b, d, e], f32[a, b]
    where a = 2, b = 3, c = 4, d = 5, e = 6 {
  x_rows = flatten x of(a, b) to(r)
  r1, r2 = block grid(r / 4) {
    t = load x_rows[r/grid, c, d]
    u = load w[e, c]
    p = matmul t, u over(c)
    s = sum t over(c, d)
    store r1: f32[r/grid, d, e] = p
    store r2: f32[r/grid] = s
  }
  y = unflatten r1 dim(r) gives(a, b)
  z = unflatten r2 dim(r) gives(a, b)
  return y, z
}
"""
BEHIND = """mirage 1

mugraph f(x: f32[m, k, n], y: f32[m, k, n]) -> f32[m, k, n] where m = 3, k = 5, n = 7 {
  s = x + y
  s_flat = flatten s of(m, k, n) to(v)
  z = block grid(v / 16) {
    a = load s_flat[v/grid]
    c = exp a
    store z: f32[v/grid] = c
  }
  z_whole = unflatten z dim(v) gives(m, k, n)
  r = z_whole * y
  return r
}
"""
TWO_OF_THREE = """mirage 1

mugraph f(x: f32[m, k, n]) -> f32[m, k, n] where m = 4, k = 4, n = 4 {
  x_flat = flatten x of(m, k) to(v)
  z = block grid(v / 4) {
    a = load x_flat[v/grid, n]
    c = a * 2
    store z: f32[v/grid, n] = c
  }
  z_whole = unflatten z dim(v) gives(m, k)
  return z_whole
}
"""
RETURNED = ELEMENTS.replace("-> f32[m, k, n]", "-> f32[m, k, n], f32[v]").replace(
    "return z_whole", "return z_whole, z"
)
"""The flat form is returned too, so both are tensors."""

TEXTS = {
    "elements": ELEMENTS,
    "loop": LOOP,
    "two groups": TWO_GROUPS,
    "behind PyTorch": BEHIND,
    "flat form returned": RETURNED,
}
Form = Callable[[torch.Tensor], torch.Tensor]


def with_gaps(x: torch.Tensor) -> torch.Tensor:
    """The same values in every other column of a wider tensor."""
    wide = torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


def part_of_rows(x: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=x.dtype)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def turned(x: torch.Tensor) -> torch.Tensor:
    """The same values, the first axis last in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


FORMS: tuple[Form, ...] = (torch.clone, with_gaps, part_of_rows, turned)


@pytest.mark.parametrize("name", TEXTS)
def test_tensors_of_any_strides(name: str) -> None:
    graph = parse(TEXTS[name])
    inputs = random_inputs(graph)
    executable = TritonExecutable(graph, interpret=True)
    wanted = executable(*inputs)
    reference = _by_pytorch(name, inputs)
    torch.testing.assert_close(wanted, reference)
    for at, form in itertools.product(range(len(inputs)), FORMS):
        given = [form(x) if i == at else x for i, x in enumerate(inputs)]
        torch.testing.assert_close(executable(*given), reference)
    for form in FORMS:
        out = [form(torch.zeros_like(t)) for t in wanted]
        found = executable(*inputs, out=out)
        assert all(a is b for a, b in zip(found, out, strict=True))
        torch.testing.assert_close(out, reference)


def _by_pytorch(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    match name, inputs:
        case "elements", [x, y]:
            return [x * 2 + y]
        case "flat form returned", [x, y]:
            return [x * 2 + y, (x * 2 + y).flatten()]
        case "loop", [x]:
            return [(x * x).sum((1, 2))]
        case "two groups", [x, w]:
            return [torch.einsum("abcd,ec->abde", x, w), x.sum((2, 3))]
        case "behind PyTorch", [x, y]:
            return [torch.exp(x + y) * y]
        case _:
            raise AssertionError(name)


VIEWS = ("flatten(", "unflatten(", "reshape(", "copy_(")


@pytest.mark.parametrize("name", [n for n in TEXTS if n != "flat form returned"])
@pytest.mark.parametrize("out", [False, True])
def test_no_view_is_made(name: str, out: bool) -> None:
    graph = parse(TEXTS[name])
    around = plan(graph, Variant(out=out)).around
    for gapped in ((), tuple(around.flat.within)):
        source = plan(graph, Variant(out=out, gapped=gapped)).source
        # What PyTorch computes last is copied.
        expected = "copy_(" if out and name == "behind PyTorch" else ""
        run = source[source.index("def run(") :]
        assert [v for v in VIEWS if v in run] == [expected] * bool(expected)


def test_a_view_that_others_see_is_made() -> None:
    source = plan(parse(RETURNED)).source
    assert source.count("unflatten(") == 1
    assert "x.flatten(" not in source


def test_positions_are_taken_apart_where_there_are_gaps() -> None:
    source = plan(parse(ELEMENTS), Variant(gapped=("x_flat",))).source
    assert "(v_at // 35) * x_stride0 + ((v_at // 7) % 5) * x_stride1" in source
    assert "y_ptr + v_at * y_stride2" in source
    wide = plan(parse(ELEMENTS), Variant(gapped=("x_flat",), wide=True)).source
    assert "v_at // 35" in wide


@pytest.mark.parametrize("name", TEXTS)
def test_it_compiles(name: str) -> None:
    assert all(r.spills == 0 for r in compile_only(parse(TEXTS[name]), "sm_90"))


@pytest.mark.parametrize(
    ("text", "stays"), [(ELEMENTS, True), (TWO_OF_THREE, True), (RETURNED, False)]
)
def test_an_argument_is_updated_in_place(text: str, stays: bool) -> None:
    graph = parse(text)
    for form in FORMS:
        inputs = random_inputs(graph)
        x = form(inputs[0])
        expected = TritonExecutable(graph, interpret=True)(*inputs)
        out = [x, *(torch.empty_like(t) for t in expected[1:])]
        TritonExecutable(graph, interpret=True)(x, *inputs[1:], out=out)
        torch.testing.assert_close(out, expected)
        shared = overlaps([x], [x])
        assert (stored_over(graph, shared, [x], [x]) is not None) is stays


def test_what_is_cut_otherwise_is_not_updated_in_place() -> None:
    """The blocks that read elements of a tensor are others than store them."""
    graph = parse(
        TWO_OF_THREE.replace(
            "store z: f32[v/grid, n]", "store z: f32[n, v/grid]"
        ).replace("-> f32[m, k, n]", "-> f32[n, m, k]")
    )
    x = torch.randn(4, 4, 4)
    expected = 2 * x.permute(2, 0, 1)
    assert stored_over(graph, overlaps([x], [x]), [x], [x]) is None
    TritonExecutable(graph, interpret=True)(x, out=[x])
    torch.testing.assert_close(x, expected)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    yield Driver(monkeypatch)
    direct.compiled.cache_clear()


@pytest.mark.parametrize("form", FORMS)
def test_a_short_call_launches_and_nothing_else(driver: Driver, form: Form) -> None:
    graph: KernelGraph = parse(ELEMENTS)
    x, y = random_inputs(graph)
    gapped = () if form is torch.clone or form is with_gaps else ("x_flat",)
    given = [form(x), y]
    run = direct_call(plan(graph, Variant(gapped=gapped)), given)
    assert run is not None
    found = run.call(*given)
    assert found is not None
    (out,) = found
    assert out.shape == (3, 5, 7)
    assert out.is_contiguous()
    (launch,) = driver.launches
    assert launch["given"] == [t.data_ptr() for t in (*given, out)]
    assert driver.sizes == [out.nbytes]
