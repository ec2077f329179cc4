"""Pairs of bytes: the instructions, the emitted kernels, tensors that lie otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_dsl.backends.triton.lowering.emit import UNPACKING, emit, plan
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_kernel
from mirage_dsl.core.types import Dim
from mirage_dsl.ir.check import check as problems
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check as rules
from mirage_dsl.tile.combined import packed, words
from mirage_dsl.tile.program import Join, Product, walk
from mirage_dsl.tile.text import parse as parse_tiles
from mirage_dsl.tile.text import to_text
from mirage_dsl.verify.verifier import verify
from tests.backends.assembly import halves, run_assembly
from tests.backends.conformance import (
    eighths_of_words,
    pairs_of_bytes,
    pairs_of_halves,
)
from tests.backends.running import check, random_inputs

BYTES = np.arange(256, dtype=np.uint8)
FORMATS = ("f8e4m3", "f8e5m2", "u8", "i8")


# -- The instructions ------------------------------------------------------------------


def of_float(dtype: torch.dtype) -> NDArray[np.float64]:
    bits = torch.arange(256, dtype=torch.uint8)
    return np.array([float(x) for x in bits.view(dtype).double()])


LOW, HIGH = (BYTES & 15).astype(np.float64), (BYTES >> 4).astype(np.float64)
RIGHT: dict[str, list[NDArray[np.float64]]] = {
    "unsigned_pairs": [BYTES.astype(np.float64)],
    "signed_pairs": [BYTES.view(np.int8).astype(np.float64)],
    "half_pairs": [LOW, HIGH],
    "e5m2_pairs": [of_float(torch.float8_e5m2)],
}


@pytest.mark.parametrize("less", [0, 8, 128, 1000])
@pytest.mark.parametrize("name", RIGHT)
def test_every_byte_of_words_becomes_its_numbers(name: str, less: int) -> None:
    """Results have the same byte of two words: the even bytes of four, or the odd."""
    source = UNPACKING[name]
    fulls = re.findall(r"tl\.full\(a\.shape, (.*?), tl\.float16\)", source)
    constants = [float(eval(text, {"less": float(less)})) for text in fulls]
    if not constants and less:
        return
    count = 2 * len(RIGHT[name])
    found = run_assembly(source.split('"""')[3], BYTES.view("<u4"), constants, count)
    for at, result in enumerate(found):
        byte, part = divmod(at, len(RIGHT[name]))
        right = RIGHT[name][part].reshape(-1, 2)[:, byte] - (less if constants else 0)
        np.testing.assert_array_equal(halves(result).ravel(), right)


@pytest.mark.parametrize("less", [0, 8, 16])
def test_every_four_bits_of_words_of_32_become_their_number(less: int) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    source = UNPACKING["eighths"]
    constants = [1024.0 + less, 64.0 + less]
    text = source.split('"""')[3]
    found = run_assembly(text, words[::2], constants, 8, words[1::2])
    for at, result in enumerate(found):
        right = (words >> np.uint32(4 * at) & np.uint32(15)).astype(np.float64) - less
        np.testing.assert_array_equal(halves(result), right.reshape(-1, 2))


# -- The kernels -----------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["", "swap_operands(true)"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_bytes_stay_where_the_matrix_unit_reads_them(dtype: str, schedule: str) -> None:
    graph = pairs_of_bytes(dtype, a=16, schedule=schedule)
    (program,) = programs(graph)
    assert rules(program) == []
    assert parse_tiles(to_text(program)) == program
    assert [str(d) for d in words(program).values()] == ["p"]
    wide = {v for v, t in program.tiles.items() if Dim("p") in t.axes}
    assert wide == {"w_t", "c_t", "c_t/f32", "s", "t", "u"}, "joined behind the loop"
    made = plan(graph)
    assert "kept(" not in made.source
    ptx = str(compile_kernel(made, made.kernels[0], 90).asm["ptx"])
    loop = ptx[ptx.index("cp.async.wait_group") : ptx.rindex("cp.async.wait_group")]
    assert "mma.sync" in loop
    assert "st.shared" not in loop
    check(graph)


def test_halves_and_scales_are_taken_apart_in_registers() -> None:
    graph = pairs_of_halves(16)
    (program,) = programs(graph)
    assert {*words(program)} == {"w_t", "s_t"}
    parts = packed(program, words=words(program))
    found = {(p.part, p.lane, p.less) for p in parts.floats.values()}
    assert found == {(part, lane, 8) for part in ("low", "high") for lane in (0, 1)}
    made = plan(graph)
    body = made.source.split("def halves_kernel0")[1]
    assert body.count("half_pairs(") == 1
    assert len([s for s, _ in walk(program.body) if isinstance(s, Product)]) == 4
    ptx = str(compile_kernel(made, made.kernels[0], 90).asm["ptx"])
    assert "ld.global" not in ptx, "all loads are copied ahead"
    check(graph)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("h", [8, 5, 2])
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_four_bits_of_words_are_taken_apart_in_registers(
    rows: int, h: int, wide: bool
) -> None:
    graph = eighths_of_words(rows, h=h, wide=wide)
    (program,) = programs(graph)
    parts = packed(program)
    found = {(p.part, p.place, p.less) for p in parts.floats.values()}
    assert found == {("word", place, 8) for place in range(h)}
    made = plan(graph)
    assert made.source.split("def of_words_kernel0")[1].count("eighths(") == 1
    ptx = str(compile_kernel(made, made.kernels[0], 90).asm["ptx"])
    loop = ptx[ptx.index("cp.async.wait_group") : ptx.rindex("cp.async.wait_group")]
    assert "mma.sync" in loop
    assert "cvt.rn.f32.s32" not in loop
    check(graph)


@pytest.mark.parametrize(
    "graph",
    [
        eighths_of_words(bits=3, mask=7, h=8),
        eighths_of_words(mask=7),
        eighths_of_words(mask=31, h=7),
        eighths_of_words(dtype="i16", h=4),
        eighths_of_words(dtype="i64", h=8),
        eighths_of_words(less=2000),
    ],
)
def test_other_parts_of_words_are_left_as_they_are(graph: KernelGraph) -> None:
    (program,) = programs(graph)
    assert not packed(program).floats
    check(graph)


def test_bits_that_words_of_32_do_not_have_are_shifted_in() -> None:
    """From 32 on a wider number has nothing but the sign."""
    graph = eighths_of_words(bits=8, wide=True)
    (program,) = programs(graph)
    places = sorted(p.place for p in packed(program).floats.values())
    assert set(places) == {0, 2, 4, 6}
    check(graph)


def test_other_numbers_of_bytes_are_left_as_they_are() -> None:
    text = str(pairs_of_bytes(d=12))
    for extent in (1, 3, 4):
        graph = parse(text.replace("p = 2", f"p = {extent}"))
        assert problems(graph) == []
        (program,) = programs(graph)
        assert not [s for s, _ in walk(program.body) if isinstance(s, Join)]
        check(graph)


def test_pairs_of_bytes_are_verified() -> None:
    for graph in (pairs_of_bytes(), pairs_of_halves()):
        assert verify(graph, graph).ok


# -- Tensors that lie otherwise --------------------------------------------------------


def at_odd_place(w: torch.Tensor) -> torch.Tensor:
    """Its first byte is the second of a word."""
    flat = torch.zeros(w.numel() + 1, dtype=torch.uint8)[1:]
    found = flat.view(w.dtype).view(w.shape)
    return found.copy_(w)


def in_odd_rows(w: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(w.shape[0], w.shape[1] + 3, dtype=torch.uint8)
    return wide.view(w.dtype)[:, : w.shape[1]].copy_(w)


def in_even_rows(w: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(w.shape[0], w.shape[1] + 6, dtype=torch.uint8)
    return wide.view(w.dtype)[:, 4 : w.shape[1] + 4].copy_(w)


def turned(w: torch.Tensor) -> torch.Tensor:
    return w.view(torch.uint8).T.contiguous().T.view(w.dtype)


LYING: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "at an odd place": (at_odd_place, True),
    "in rows of odd length": (in_odd_rows, True),
    "in wider rows": (in_even_rows, False),
    "turned": (turned, True),
}


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("how", LYING)
def test_no_word_is_read_where_none_lies(how: str, dtype: str) -> None:
    graph = pairs_of_bytes(dtype)
    x, w, c = random_inputs(graph)
    place, apart = LYING[how]
    tensors = [x, place(w), c]
    variant = TritonExecutable(graph, interpret=True)._check(tensors, ())
    assert variant.apart == ({"w"} if apart else set())
    check(graph, tensors)


def test_words_of_scales_are_guarded_too() -> None:
    graph = pairs_of_halves()
    x, w, s = random_inputs(graph)
    wide = torch.zeros(s.shape[0], s.shape[1] + 1, dtype=s.dtype)[:, 1:].copy_(s)
    tensors = [x, w, wide]
    variant = TritonExecutable(graph, interpret=True)._check(tensors, ())
    assert variant.apart == {"s"}
    check(graph, tensors)


SCALED = """mirage 1

mugraph scaled(x: f16[m, (a b)], w: u8[(a b), (d p)], c: f16[a, (d p)])
    -> f32[m, (d p)], f16[a, (d p)] where m = 8, a = 8, b = 16, d = 32, p = 2 {
  s = block grid(a / 4) {
    c_t = load c[a/grid, (d p)]
    e = mul c_t, 2
    store s: f16[a/grid, (d p)] = e
  }
  y = block grid(d / 16) loop(a / 4) {
    x_t = load x[m, (a/loop b)]
    w_t = load w[(a/loop b), (d/grid p)]
    s_t = load s[a/loop, (d/grid p)]
    f = to_f32 w_t
    v = cast f dtype(f16)
    q = matmul x_t, v over(b)
    g = mul q, s_t
    z = accumulate g
    t = sum z over(a)
    store y: f32[m, (d/grid p)] = t
  }
  return y, s
}
"""


def test_words_of_what_is_made_in_tensors_of_the_callers() -> None:
    graph = parse(SCALED)
    assert problems(graph) == []
    x, w, c = random_inputs(graph)
    executable = TritonExecutable(graph, interpret=True)
    assert executable._check([x, w, c], ()).apart == set()
    right, scales = executable(x, w, c)
    wide = torch.zeros(8, 65, dtype=torch.float16)[:, 1:]
    outs = [torch.zeros_like(right), wide]
    assert executable._check([x, w, c], outs).apart == {"s"}
    executable(x, w, c, out=outs)
    assert torch.equal(outs[0], right)
    assert torch.equal(wide, scales)


VIEWED = """mirage 1

mugraph viewed(x: f16[m, k], w: {dtype}[k, n]) -> f32[m, n]
where m = 5, k = 128, a = 8, b = 16, n = {n}, d = {d}, p = 2 {{
  x_ab = unflatten x dim(k) gives(a, b)
  w_k = unflatten w dim(k) gives(a, b)
  w_dp = unflatten w_k dim(n) gives(d, p)
  y = block grid(d / 16) loop(a / 4) {{
    x_t = load x_ab[m, a/loop, b]
    w_t = load w_dp[a/loop, b, d/grid, p]
    {convert}
    q = matmul x_t, v over(b)
    s = accumulate q
    t = sum s over(a)
    store y[m, d/grid, p] = t
  }}
  z = flatten y of(d, p) to(n)
  return z
}}
"""


def viewed(dtype: str, d: int) -> KernelGraph:
    convert = "v = cast w_t dtype(f16)"
    if not dtype.startswith("f"):
        convert = "f = to_f32 w_t\n    v = cast f dtype(f16)"
    return parse(VIEWED.format(dtype=dtype, convert=convert, d=d, n=2 * d))


@pytest.mark.parametrize("dtype", ["f8e4m3", "u8"])
@pytest.mark.parametrize("d", [32, 20])
def test_words_of_views_are_guarded_by_what_is_viewed(dtype: str, d: int) -> None:
    graph = viewed(dtype, d)
    assert problems(graph) == []
    assert "w_dp_words" in emit(graph)
    x, w = random_inputs(graph)
    for place, apart in LYING.values():
        tensors = [x, place(w)]
        variant = TritonExecutable(graph, interpret=True)._check(tensors, ())
        assert variant.apart == ({"w_dp"} if apart else set())
        check(graph, tensors)
