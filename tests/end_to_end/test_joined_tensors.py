"""Slices and concatenations inside of blocks: rotary embeddings, shifts, padding.

They are library kernels of a program; blocks that are found pick the elements of the
operands by their position in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.types import Dim
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.walk import without_dead
from mirage_dsl.ops.definition import Kind
from mirage_dsl.rewrite.concats import joined_parts, pick_joined
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.parts import alone, in_place
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.search.budget import SearchBudget
from mirage_dsl.search.programs import structural_search
from mirage_dsl.search.segments import SegmentSearch
from mirage_dsl.tile import program as tile_program
from mirage_dsl.tile import text as tile_text
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.text import to_text

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def rotary(x: Any, c: Any, s: Any) -> Any:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1) * s + x * c


def rotary_of_both(q: Any, k: Any, c: Any, s: Any) -> Any:
    return rotary(q, c, s), rotary(k, c, s)


def rotary_by_halves(x: Any, c: Any, s: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def rotary_interleaved(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def rotary_of_a_part(x: Any, c: Any, s: Any) -> Any:
    some = c.shape[-1]
    return torch.cat([rotary(x[..., :some], c, s), x[..., some:]], -1)


def rotary_of_heads(x: Any, w: Any, c: Any, s: Any) -> Any:
    rows, length, _ = x.shape
    heads = (x @ w).view(rows, length, -1, c.shape[-1]).transpose(1, 2)
    return rotary(heads, c, s)


def swiglu(x: Any, w: Any) -> Any:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up


def shifted(x: Any) -> Any:
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1) + x


def padded_norm(x: Any, w: Any) -> Any:
    return F.pad(F.rms_norm(x, w.shape, w), (0, 0, 1, 2, 2, 1))


def in_windows(x: Any) -> Any:
    """Windows of 4 by 4, as of transformers of images."""
    rows, height, width, channels = x.shape
    x = x.view(rows, height // 4, 4, width // 4, 4, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)


def windows_of_padded(x: Any, w: Any) -> Any:
    return in_windows(padded_norm(x, w))


def windows_of_rolled(x: Any, w: Any) -> Any:
    return in_windows(torch.roll(F.rms_norm(x, w.shape, w), (-1, 3), (1, 2)))


ODD = [normal(9, 14), normal(9, 14)]
SEARCHED: dict[str, tuple[Function, list[torch.Tensor], int]] = {
    "of q and k": (rotary_of_both, [normal(1, 4, 9, 14), normal(1, 2, 9, 14), *ODD], 1),
    "even": (rotary, [normal(2, 32, 16), normal(32, 16), normal(32, 16)], 1),
    "by halves": (rotary_by_halves, [normal(3, 9, 14), normal(9, 7), normal(9, 7)], 1),
    "interleaved": (
        rotary_interleaved,
        [normal(3, 9, 14), normal(9, 7), normal(9, 7)],
        1,
    ),
    "of a part": (rotary_of_a_part, [normal(3, 9, 14), normal(9, 6), normal(9, 6)], 1),
    "gate and up": (swiglu, [normal(2, 9, 16), normal(24, 16)], 1),
    "rolled": (lambda x: torch.roll(x, 3, -1) * 2 + x, [normal(9, 14)], 1),
    "padded": (lambda x: F.pad(x, (1, 1)) * 2, [normal(9, 30)], 1),
    "the rows before": (
        lambda x: F.pad(x, (0, 0, 1, 0))[:-1] + x,
        [normal(9, 14)],
        1,
    ),
    "shifted by one": (shifted, [normal(9, 14)], 1),
    "padded planes": (
        lambda x: F.pad(x.sigmoid(), (1, 2, 3, 4)).cos(),
        [normal(3, 2, 5, 14)],
        1,
    ),
    "a padded norm": (padded_norm, [normal(2, 5, 9, 14), normal(14)], 1),
    "windows of a padded norm": (
        windows_of_padded,
        [normal(2, 5, 9, 14), normal(14)],
        1,
    ),
    "windows of a rolled norm": (
        windows_of_rolled,
        [normal(2, 8, 12, 14), normal(14)],
        1,
    ),
}


def traced(function: Function, tensors: list[torch.Tensor]) -> KernelGraph:
    specs = [mirage.spec(tuple(t.shape), "float32") for t in tensors]
    return mirage.kernel(function).trace(*specs)


def reads_back(graph: KernelGraph) -> None:
    """As text, at both levels that have one."""
    assert parse(str(graph)) == graph
    for found in programs(graph):
        assert tile_text.parse(to_text(found)) == found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SEARCHED)
def test_blocks_pick_what_was_joined(name: str) -> None:
    function, tensors, kernels = SEARCHED[name]
    program = traced(function, tensors)
    assert check(program) == []
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert all(n.is_view for n in best.mugraph.applies)
    assert len(best.mugraph.blocks) <= kernels
    # Nor does PyTorch copy anything for a result.
    assert best.cost.launches == len(best.mugraph.blocks)
    reads_back(best.mugraph)
    assert all(r.spills == 0 for r in compile_only(best.mugraph, "sm_90"))
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    arrays = evaluate_numpy(best.mugraph, *(t.double().numpy() for t in tensors))
    for one, other, array in zip(found, expected, arrays, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(array, other.double(), rtol=1e-5, atol=1e-5)


# -- In long programs ------------------------------------------------------------------

MOVED: dict[str, tuple[Function, list[torch.Tensor], int]] = {
    "padded": (lambda x: F.pad(x, (2, 3, 3, 4), value=0.5), [normal(4, 20, 30)], 1),
    "rolled": (lambda x: torch.roll(x, (3, 2), (0, 1)), [normal(20, 30)], 1),
    "windows of padded": (
        lambda x: in_windows(F.pad(x, (0, 0, 3, 4, 2, 3))),
        [normal(2, 7, 9, 14)],
        1,
    ),
    "two pads": (
        lambda x: F.pad(F.pad(x, (2, 2)).cumsum(0), (2, 3)),
        [normal(64, 50)],
        2,
    ),
    "of two tensors": (lambda x, y: torch.cat([x, y], 1), [normal(9, 14)] * 2, 0),
}


def with_kernels(program: KernelGraph) -> KernelGraph:
    """The program with a kernel for each part that joins what it sees of a value."""
    made, budget = program, SearchBudget()
    structures = structural_search(H100, 0, 1, budget.now)
    search = SegmentSearch(structures, H100, budget=budget)
    for part in joined_parts(program):
        kernel = search.kernel_of_joined(alone(made, part), most=float("inf"))
        assert kernel is not None
        made = in_place(made, part, kernel)
    return without_dead(made)


ROLLED_WINDOWS = """mirage 1

mugraph program(
    x: f32[m, k, n, h, d]
) -> f32[m, p, q, s] where m = 3, k = 4, n = 3, h = 2, d = 5, p = 6, q = 2 {
  rows: f32[m, t, h, d] = flatten x of(k, n) to(t)
  below: f32[m, u, h, d] = slice rows dim(t) start(1) stop(12) to(u)
  first: f32[m, r, h, d] = flatten x of(k, n) to(r)
  above: f32[m, v, h, d] = slice first dim(r) start(0) stop(1) to(v)
  turned: f32[m, w, h, d] = concat below, above dims(u, v) to(w)
  apart: f32[m, p, q, h, d] = unflatten turned dim(w) gives(p, q)
  columns: f32[m, p, q, b] = flatten apart of(h, d) to(b)
  right: f32[m, p, q, c] = slice columns dim(b) start(3) stop(10) to(c)
  ahead: f32[m, p, q, j] = flatten apart of(h, d) to(j)
  left: f32[m, p, q, g] = slice ahead dim(j) start(0) stop(3) to(g)
  both: f32[m, p, q, s] = concat right, left dims(c, g) to(s)
  return both
}
"""


def test_windows_of_others_that_are_rolled_are_a_kernel() -> None:
    """Rows are taken apart between both rolls."""
    program = parse(ROLLED_WINDOWS)
    made = with_kernels(program)
    assert len(made.blocks) == 1
    assert all(n.is_view for n in made.applies)
    certificate = mirage.verify(made, program)
    assert certificate.ok, certificate.reason
    x = normal(3, 4, 3, 2, 5)
    (found,) = TritonExecutable(made, interpret=True)(x)
    rolled = torch.roll(x.reshape(3, 12, 10), (-1, -3), (1, 2))
    torch.testing.assert_close(found, rolled.unflatten(1, (6, 2)))


@pytest.mark.parametrize("name", MOVED)
def test_what_only_moves_elements_is_a_kernel(name: str) -> None:
    """Whatever it is estimated to take at these sizes."""
    function, tensors, kernels = MOVED[name]
    program = traced(function, tensors)
    made = with_kernels(program)
    assert len(made.blocks) == kernels
    assert parse(str(made)) == made
    if not kernels:
        return
    assert all(n.op.kind is not Kind.CONCAT for n in made.applies)
    certificate = mirage.verify(made, program)
    assert certificate.ok, certificate.reason
    (found,) = TritonExecutable(made, interpret=True)(*tensors)
    torch.testing.assert_close(found, function(*tensors))


# -- The rewrite -----------------------------------------------------------------------

PICKED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "three": (
        lambda a, b, c: torch.cat([a, b.exp(), c], -1) * 2,
        [normal(9, 14), normal(9, 4), normal(9, 5)],
    ),
    "one in the other": (
        lambda a, b: torch.cat([torch.cat([a, b], 1).exp(), a, b], 1),
        [normal(9, 14), normal(9, 4)],
    ),
    "along two axes": (lambda x: torch.roll(x, (3, 2), (0, 1)), [normal(9, 14)]),
    "broadcast": (
        lambda x, y: torch.cat([x * y, y.expand(9, 14)], 1),
        [normal(9, 14), normal(14)],
    ),
    "repeated along it": (
        lambda x, y: torch.cat([x + y, x[:, :1].expand(9, 3)], 1),
        [normal(9, 14), normal(14)],
    ),
    "stacked": (lambda x, y: torch.stack([x, y, x * y], 1), [normal(9, 14)] * 2),
    "reversed": (lambda x: torch.flip(x, (1,)) * 2, [normal(3, 5)]),
    "of one part": (lambda x: torch.cat([x.exp()], 1), [normal(3, 5)]),
    "of numbers": (
        lambda x: torch.cat([torch.ones_like(x), torch.zeros_like(x)], 1),
        [normal(3, 5)],
    ),
    "renamed": (lambda x: torch.cat([x.T.exp(), x.T + x], 1), [normal(5, 5)]),
    "both sides": (lambda x: F.pad(x, (1, 2, 3, 4), value=0.5), [normal(3, 5)]),
    **{name: (function, tensors) for name, (function, tensors, _) in SEARCHED.items()},
    "heads of a product": (
        rotary_of_heads,
        [normal(2, 9, 16), normal(16, 24), normal(9, 6), normal(9, 6)],
    ),
}


@pytest.mark.parametrize("name", PICKED)
def test_what_is_picked_is_what_was_joined(name: str) -> None:
    function, tensors = PICKED[name]
    program = sink_views(expand(traced(function, tensors)))
    found = pick_joined(program)
    if found is None:
        assert all(n.op.kind is not Kind.CONCAT for n in program.applies)
        return
    assert check(found) == []
    assert parse(str(found)) == found
    assert all(n.op.kind is not Kind.CONCAT for n in found.applies)
    certificate = mirage.verify(found, program, stability=False)
    assert certificate.equivalent, certificate.reason
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    arrays = evaluate_numpy(found, *(t.double().numpy() for t in tensors))
    for array, other in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, other.double(), rtol=1e-5, atol=1e-6)


# -- What must not be accepted ---------------------------------------------------------

ROTARY = """mirage 1
mugraph f(
    x: f16[m, n, h], c: f16[n, h], s: f16[n, h]
) -> f16[m, n, h] where m = 4, n = 32, h = 16 {
  i = index h
  upper = slice x dim(h) start(8) stop(16) to(p)
  lower = slice x dim(h) start(0) stop(8) to(q)
  y = block grid(m / 2, n / 16) {
    t = load x[m/grid, n/grid, h]
    u = load upper[m/grid, n/grid, p]
    l = load lower[m/grid, n/grid, q]
    ct = load c[n/grid, h]
    st = load s[n/grid, h]
    at = load i[h]
    first = less at, 1*p
    ahead = where first, at, 0
    back = sub at, 1*p
    behind = where first, 0, back
    a = gather u, ahead dim(p)
    b = gather l, behind dim(q)
    negative = mul a, -1
    turned = where first, negative, b
    v = mul turned, st
    w = mul t, ct
    r = add v, w
    store y: f16[m/grid, n/grid, h] = r
  }
  return y
}
"""


def rotary_program() -> KernelGraph:
    shapes = (4, 32, 16), (32, 16), (32, 16)
    return mirage.kernel(rotary).trace(*(mirage.spec(s, "float16") for s in shapes))


MUTANTS: dict[str, tuple[str, str]] = {
    "the first one twice": ("less at, 1*p", "less_equal at, 1*p"),
    "the element behind": (
        "back = sub at, 1*p",
        "far = sub at, 1*p\n    back = add far, 1",
    ),
    "halves swapped": ("where first, negative, b", "where first, b, negative"),
    "the other side": ("where first, negative, b", "where first, negative, a"),
    "the other sign": ("mul a, -1", "mul a, 1"),
    "the sign of the other": (
        "turned = where first, negative, b",
        "minus = mul b, -1\n    turned = where first, a, minus",
    ),
    "from the other half": ("start(8) stop(16)", "start(0) stop(8)"),
    "one element aside": ("start(8) stop(16)", "start(7) stop(15)"),
    "sine and cosine": ("load c[", "load s["),
    "one for all": ("ahead = where first, at, 0", "ahead = where first, 0, at"),
}


def test_the_block_is_right() -> None:
    graph, program = parse(ROTARY), rotary_program()
    assert check(graph) == []
    reads_back(graph)
    found = mirage.verify(graph, program)
    assert found.ok, found.reason


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_position_is_never_accepted(name: str) -> None:
    old, new = MUTANTS[name]
    assert old in ROTARY
    wrong, program = parse(ROTARY.replace(old, new)), rotary_program()
    for seed in SEEDS:
        found = mirage.verify(wrong, program, seed=seed, stability=False)
        assert not found.equivalent, seed


@pytest.mark.parametrize(("n", "h"), [(32, 16), (33, 16), (16, 14), (31, 22)])
def test_nothing_is_read_outside_of_what_was_joined(n: int, h: int) -> None:
    """Around the tensors there is nothing but NaN."""
    half = h // 2
    text = ROTARY.replace("n = 32, h = 16", f"n = {n}, h = {h}")
    text = text.replace("start(8) stop(16)", f"start({half}) stop({h})")
    text = text.replace("stop(8)", f"stop({half})")

    def among_nothing(*shape: int) -> torch.Tensor:
        rows, *rest = shape
        around = torch.full((3 * rows, *rest), float("nan"), dtype=torch.float16)
        around[rows : 2 * rows] = normal(*shape).half()
        return around[rows : 2 * rows]

    tensors = [among_nothing(*s) for s in ((4, n, h), (n, h), (n, h))]
    found = TritonExecutable(parse(text), interpret=True)(*tensors)[0]
    expected = rotary(*(t.float() for t in tensors)).half()
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


# -- How they are loaded ---------------------------------------------------------------


def loads_of(text: str) -> dict[str, tile_program.Load]:
    (found,) = programs(parse(text))
    statements = (s for s, _ in tile_program.walk(found.body))
    return {s.result: s for s in statements if isinstance(s, tile_program.Load)}


def test_what_is_not_chosen_is_not_read() -> None:
    loads = loads_of(ROTARY)
    first, second = (loads[name].along for name in "ab")
    assert first == tile_program.Along(Dim("p"), "at", "in_row", "first")
    assert second == tile_program.Along(Dim("q"), "back", "in_row", "first", False)


INDICES: dict[str, tuple[str, str, tuple[str, str | None]]] = {
    "read wherever it lies": ("a = gather u, ahead dim(p)", "", ("in_row", "first")),
    "read by a sum": (
        "store y: f16[m/grid, n/grid, h] = r",
        "z = sum a over(h)\n    m2 = add r, z\n"
        "    store y: f16[m/grid, n/grid, h] = m2",
        ("apart", None),
    ),
    "backwards": ("ahead = where first, at, 0", "ahead = sub 15, at", ("no", None)),
    "outside": ("ahead = where first, at, 0", "ahead = add at, 1", ("no", None)),
    "one for all": (
        "ahead = where first, at, 0",
        "ahead = sub at, at",
        ("apart", "first"),
    ),
}


@pytest.mark.parametrize("name", INDICES)
def test_positions_are_known_where_they_are(name: str) -> None:
    old, new, expected = INDICES[name]
    assert old in ROTARY
    along = loads_of(ROTARY.replace(old, new or old))["a"].along
    assert along is not None
    assert (along.known, along.under) == expected
