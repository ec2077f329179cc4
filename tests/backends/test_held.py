"""Attention without a multiplication of each score: the text, and the numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mirage_dsl.backends.triton.lowering import kernel
from mirage_dsl.backends.triton.lowering.emit import emit, plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel, compile_only
from mirage_dsl.core.types import f32, scalar
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.maps import with_symbolic
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.loops import settle_masks, skip_tiles, split_loop
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.combined import NONE_HELD, Held, held_over
from mirage_dsl.tile.program import TileProgram
from tests.backends.running import as_array, check, random_inputs
from tests.programs import mugraphs
from tests.tile.test_held import rows

LOG2_E = "1.4426950408889634"
FACTOR = scalar(0.125)
INF, LOWEST = float("inf"), torch.finfo(torch.float32).min

CAUSAL = """mirage 1
mugraph causal(q: f16[h, n, d], k: f16[h, m, d], v: f16[h, m, e]) -> f16[h, n, e]
where h = 2, n = 64, m = 64, d = 16, e = 16 {
  i = index n
  j = index m
  y = block grid(h / 1, n / 32) loop(m / 16) {
    q_t = load q[h/grid, n/grid, d]
    i_t = load i[n/grid]
    k_t = load k[h/grid, m/loop, d]
    v_t = load v[h/grid, m/loop, e]
    j_t = load j[m/loop]
    x = matmul q_t, k_t over(d)
    s = mul x, 0.125
    seen = j_t <= i_t
    w = where(seen, s, -inf)
    t = rowshift w over(m)
    top = running max t
    p = exp(w - top)
    p16 = cast p dtype(f16)
    o = matmul p16, v_t over(m)
    os = accumulate o rescale top
    l = sum p over(m)
    ls = accumulate l rescale top
    z = os / ls
    store y: f16[h/grid, n/grid, e] = z
  }
  return y
}
"""
PAGED = """mirage 1
mugraph paged(q: f16[b, g, d], k: f16[u, p, d], v: f16[u, p, e], table: i64[b, n])
-> f16[b, g, e] where b = 2, g = 4, d = 16, e = 16, p = 16, u = 9, n = 3 {
  y = block grid(b / 1) loop(n / 1) {
    q_t = load q[b/grid, g, d]
    at = load table[b/grid, n/loop]
    k_at = load k[u, p, d]
    v_at = load v[u, p, e]
    k_t = gather k_at, at dim(u)
    v_t = gather v_at, at dim(u)
    x = matmul q_t, k_t over(d)
    s = mul x, 0.125
    t = rowshift s over(n, p)
    top = running max t
    w = exp(s - top)
    w16 = cast w dtype(f16)
    o = matmul w16, v_t over(n, p)
    os = accumulate o rescale top
    l = sum w over(n, p)
    ls = accumulate l rescale top
    z = os / ls
    store y: f16[b/grid, g, e] = z
  }
  return y
}
"""


def causal() -> KernelGraph:
    """Iterations ahead of the diagonal and others, each in a loop of its own."""
    skipped = skip_tiles(parse(CAUSAL))
    assert skipped is not None
    settled = settle_masks(skipped)
    assert settled is not None
    return settled


def attention(m: int = 32, n: int = 64, **options: Any) -> KernelGraph:
    given: dict[str, Any] = {
        "tile_m": min(m, 16),
        "tile_n": 16,
        "factor": FACTOR,
        **options,
    }
    return mugraphs.attention(2, m, n, 16, **given)


def divided(graph: KernelGraph) -> KernelGraph:
    found = split_loop(graph, 0, count=2)
    assert found is not None
    return found


FORMS: dict[str, KernelGraph] = {
    "plain": attention(),
    "ragged": attention(n=75),
    "split": attention(n=75, splits=3),
    "split by a rewrite": divided(attention(n=75)),
    "swapped": attention(schedule=Schedule(swap_operands=True)),
    "descriptors": attention(schedule=Schedule(descriptors=True)),
    "one load": attention(schedule=Schedule(second_load=False)),
    "a norm": attention(n=75, norm=True, keys_last=False, factor=scalar(0.25)),
    "f32": attention(dtype=f32),
    "one query": attention(m=1),
    "one query, split": attention(m=1, splits=2),
    "a group of queries": attention(m=4, n=75, splits=2, keys_last=False),
    "causal": causal(),
    "pages": parse(PAGED),
    "no loop": rows(),
    "no loop, an ordinary maximum": rows(maximum="m = max s over(n)", width="75"),
    "the logarithm of the sum": rows(
        result="l = sum e over(n)\n g = log l\n r = add m, g"
    ),
    "a mask": rows("t = mul x, 0.125\n far = bias_t < 0\n s = where(far, -inf, t)"),
    "a sum ahead": rows("b = add x, bias_t\n s = mul b, 0.125"),
    "two factors": rows("t = mul x, 0.25\n s = mul t, 0.5"),
}
NUMBERS = {"two factors": "0.5", "a norm": "0.25"}
LOOPS = {"causal": 2}
"""Those with more than one loop."""


def nothing(_: TileProgram) -> Held:
    """In the place of `held_over`: all values are as they were."""
    return NONE_HELD


def before(graph: KernelGraph, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is emitted where nothing is held without its factor."""
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "held_over", nothing)
        return emit(graph)


def statements(source: str) -> list[str]:
    """The statements of the first kernel."""
    first = source.partition("_kernel0(\n")[2].partition("\n\n\n")[0]
    lines = (line.strip() for line in first.split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def instructions(graph: KernelGraph, pattern: str) -> int:
    """How many instructions of the first kernel match."""
    emitted = plan(graph)
    ptx = compile_kernel(emitted, emitted.kernels[0], 90).asm["ptx"]
    return len(re.findall(pattern, ptx))


def inputs_of(graph: KernelGraph, size: float = 1.0) -> list[Tensor]:
    """Tensors whose scores are of a size."""
    drawn = random_inputs(graph)
    integers = [not t.is_floating_point() for t in drawn]
    drawn[0] = size * drawn[0]
    return [t % 9 if i else t for t, i in zip(drawn, integers, strict=True)]


@pytest.mark.parametrize("name", FORMS)
def test_a_score_is_multiplied_once_less(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = FORMS[name]
    old, new = (statements(s) for s in (before(graph, monkeypatch), emit(graph)))
    number = NUMBERS.get(name, "0.125")
    times = re.compile(rf"(tl\.fma\(\w+, {number}, 0\.0\)|\w+ \* {number})$")
    scores, left = ([s for s in lines if times.search(s)] for lines in (old, new))
    assert len(scores) == LOOPS.get(name, 1)
    exponentials = [line for line in new if "tl.exp2(" in line]
    factor = f"({number} * {LOG2_E})"
    units = dict(line.split(" = ", 1) for line in new if "_unit = " in line)
    assert all(factor in unit for unit in units.values())
    for line in exponentials:
        of_unit = re.search(r"tl\.fma\(\w+, (\w+_unit)", line)
        assert (of_unit is not None and of_unit[1] in units) or f") * {factor})" in line
    # A maximum that is stored, or read by something else, is multiplied once.
    read = "split" in name or "group" in name or "logarithm" in name
    assert len(left) == read
    assert len(new) == len(old) - len(scores) + len(left)


@pytest.mark.parametrize("name", FORMS)
def test_the_numbers_are_right(name: str) -> None:
    graph = FORMS[name]
    check(graph, inputs_of(graph))


@pytest.mark.parametrize("name", ["plain", "split", "causal", "pages", "one query"])
def test_kernels_compile(name: str) -> None:
    assert all(r.spills == 0 for r in compile_only(FORMS[name], "sm_90"))


def test_a_score_is_one_instruction_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 by 64 each of 128 threads has 32."""
    graph = mugraphs.attention(2, 64, 128, factor=FACTOR)

    new = instructions(graph, r"(mul|fma\.rn)\.f32")
    monkeypatch.setattr(kernel, "held_over", nothing)
    assert instructions(graph, r"(mul|fma\.rn)\.f32") - new == 32


def test_maxima_stay_in_the_loop_as_they_are_held() -> None:
    """The one that is stored behind the loop is multiplied there."""
    source = emit(FORMS["split"])
    loop, _, behind = source.partition("for it in")[2].partition("# store")
    assert "0.125, 0.0)" not in loop
    stored = re.search(r"(\w+) = tl\.fma\(largest_last, 0\.125, 0\.0\)", behind)
    assert stored is not None
    assert f", {stored[1]}" in behind


def test_products_that_are_held_are_rounded() -> None:
    """Compilers would make one operation of them and the difference."""
    (product,) = re.findall(r"= tl\.fma\(logits, (.*), 0\.0\)", emit(FORMS["a norm"]))
    assert product.startswith("v") or "[" in product
    two = emit(FORMS["two factors"])
    assert re.search(r"tl\.fma\(x, 0\.25, 0\.0\)", two)


TWICE = {
    "a square": "a = mul m, m",
    "a sum": "a = add m, m",
    "a choice": "a = where(m, m, 0)",
    "equals": "c = equal m, m\n a = where(c, m, 0)",
}


@pytest.mark.parametrize("name", TWICE)
def test_a_maximum_that_is_read_twice_is_multiplied_once(name: str) -> None:
    result = f"l = sum e over(n)\n {TWICE[name]}\n r = add a, l"
    graph = rows(maximum="m = max s over(n)", result=result)
    assert held_over(programs(graph)[0]).factors
    check(graph)


def test_factors_of_extents() -> None:
    graph = with_symbolic(rows("s = mul x, 1/i"), ["i"])
    source = emit(graph)
    assert f"((1.0 / i_size) * {LOG2_E}))" in source
    assert "fma(" not in source
    check(graph, inputs_of(rows()), i=32)


OTHERS = {
    "a factor below 0": rows("s = mul x, -0.125"),
    "0": rows("s = mul x, 0"),
    "a factor above 1": rows("s = mul x, 1.5"),
    "a bias": rows("t = mul x, 0.125\n s = add t, bias_t"),
    "the lowest number": rows(
        f"t = mul x, 0.125\n far = bias_t < 0\n s = where(far, {LOWEST!r}, t)"
    ),
    "read by others": rows(result="z = mul e, s\n r = sum z over(n)"),
    "a cast": rows("t = mul x, 0.125\n s = cast t dtype(f16)"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = OTHERS[name]
    assert emit(graph) == before(graph, monkeypatch)
    check(graph, inputs_of(graph))


# -- Numbers of all sizes --------------------------------------------------------------

MASK = "far = bias_t < 0\n w = where(far, {}, x)\n s = mul w, 0.125"
SIZED = {
    "nothing masked": "s = mul x, 0.125",
    "masked by -inf": "t = mul x, 0.125\n far = bias_t < 0\n s = where(far, -inf, t)",
    "masked by -inf ahead": MASK.format("-inf"),
    "masked by the lowest ahead": MASK.format(repr(LOWEST)),
    "masked by the largest ahead": MASK.format(repr(-LOWEST)),
    "masked by the lowest": (
        f"t = mul x, 0.125\n far = bias_t < 0\n s = where(far, {LOWEST!r}, t)"
    ),
    "the smallest factor": f"s = mul x, {2.0**-60}",
    "a bias": "t = mul x, 0.125\n s = add t, bias_t",
}


def sized(scores: str) -> KernelGraph:
    """Sums of exponentials of f32 tiles, with what others read of the maximum."""
    graph = rows(scores, result="l = sum e over(n)\n r = add l, m")
    return parse(str(graph).replace("f16[", "f32["))


def drawn(size: float) -> list[Tensor]:
    """Scores of a size; rows that are masked not, partly, but for one and wholly."""
    generator = torch.Generator().manual_seed(1)
    q, k = (torch.randn(s, generator=generator) for s in ((32, 16), (16, 72)))
    q *= size
    bias = torch.ones(32, 72)
    bias[1, 9:], bias[2, 1:], bias[3] = -1, -1, -1
    q[4] = 0
    return [q, k, bias]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("name", SIZED)
def test_scores_of_any_size(
    name: str, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, tensors = sized(SIZED[name]), drawn(size)
    (found,) = TritonExecutable(graph, interpret=True)(*tensors)
    with monkeypatch.context() as patched:
        patched.setattr(kernel, "held_over", nothing)
        (old,) = TritonExecutable(graph, interpret=True)(*tensors)
    right = exact(name, tensors)
    assert torch.equal(found.isnan(), old.isnan())
    assert torch.equal(found.isinf(), old.isinf())
    finite = old.isfinite()
    missed, own = ((t.double() - right)[finite].abs() for t in (found, old))
    allowed = 1e-6 * right[finite].abs().clamp(min=1.0) + 2 * own
    assert (missed <= allowed).all(), (missed - allowed).max()


def exact(name: str, tensors: list[Tensor]) -> Tensor:
    """The same in float64, of the products that f32 has."""
    q, k, bias = tensors
    x = (q @ k).double()
    far, kind = bias < 0, name.removesuffix(" ahead").removeprefix("masked by ")
    fill = {"-inf": -INF, "the lowest": LOWEST, "the largest": -LOWEST}.get(kind)
    if fill is not None and name.endswith("ahead"):
        x = torch.where(far, fill, x)
    s = x * (2.0**-60 if name == "the smallest factor" else 0.125)
    if fill is not None and not name.endswith("ahead"):
        s = torch.where(far, fill, s)
    s = s + bias if name == "a bias" else s
    m = s.amax(-1, keepdim=True)
    shift = torch.where(m == -INF, 0.0, m)
    return torch.exp(s - shift).sum(-1) + m[:, 0]


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_attention_to_large_scores(size: float, splits: int) -> None:
    """The largest of each row takes all of the weight, whichever part it is in."""
    graph = attention(n=75, splits=splits, dtype=f32)
    q, k, v = random_inputs(graph)
    (found,) = TritonExecutable(graph, interpret=True)(size * q, k, v)
    scores = 0.125 * (size * q).double() @ k.double()
    right = torch.softmax(scores, -1) @ v.double()
    np.testing.assert_allclose(as_array(found), right.numpy(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("value", [-INF, LOWEST])
@pytest.mark.parametrize("splits", [1, 3])
def test_keys_that_are_far_below(value: float, splits: int) -> None:
    """Scores that are infinite, or lowest: of tiles, of parts, in a head of all."""
    graph = attention(n=75, splits=splits, dtype=f32)
    q, k, v = random_inputs(graph)
    q[:, :, 0], k[0, 0, :50] = 1.0, value
    if value == LOWEST:
        k[1], q[1, :, 1:] = 0.0, 0.0
        k[1, 0] = value
    q[:, :, 1:] *= 0.5
    (found,) = TritonExecutable(graph, interpret=True)(q, k, v)
    scores = 0.125 * (q @ k).double()
    right = torch.softmax(scores, -1) @ v.double()
    np.testing.assert_allclose(as_array(found), right.numpy(), rtol=1e-4, atol=1e-4)
