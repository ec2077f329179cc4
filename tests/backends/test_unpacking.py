"""Floats from bytes in a step: the instructions, the emitted kernels, what is left."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mirage_dsl.backends.triton.lowering.emit import UNPACKING, emit, plan
from mirage_dsl.backends.triton.running.screen import compile_kernel, compile_only
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Dim, f16, f32, u8
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.check import check as problems
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.check import check as rules
from mirage_dsl.tile.combined import Unpacked, packed
from mirage_dsl.tile.program import Lane, Statement, TileProgram, walk
from mirage_dsl.tile.text import parse as parse_tiles
from mirage_dsl.tile.text import to_text
from tests.backends.assembly import halves, run_assembly
from tests.backends.conformance import BEHIND, MULTIPLIED, SUMMED, parts_of_bytes
from tests.backends.running import check

BYTES = np.arange(256, dtype=np.uint8)


# -- The instructions ------------------------------------------------------------------


@pytest.mark.parametrize("less", [0, 8, 128, 1000])
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("low_halves", (BYTES & 15).astype(np.float64)),
        ("high_halves", (BYTES >> 4).astype(np.float64)),
        ("unsigned", BYTES.astype(np.float64)),
        ("signed", BYTES.view(np.int8).astype(np.float64)),
    ],
)
def test_every_byte_becomes_its_number(
    name: str, right: NDArray[np.float64], less: int
) -> None:
    source = UNPACKING[name]
    assembly = source.split('"""')[3]
    offset = re.search(r"tl\.full\(a\.shape, (.*), tl\.float16\)", source)
    assert offset is not None
    constant = float(eval(offset[1], {"less": float(less)}))
    results = run_assembly(assembly, BYTES.view("<u4"), [constant, constant])
    found = np.concatenate([halves(r) for r in results], axis=1).ravel()
    np.testing.assert_array_equal(found, right - less)


# -- The kernels -----------------------------------------------------------------------


def unpacking(
    dtype: str, lines: str, result: str = "f32", axes: str = "a, b"
) -> KernelGraph:
    """A kernel that stores `v`, made of `q` by some lines."""
    halves = "index1" in lines
    graph = parse(
        f"""mirage 1
        mugraph f(q: {dtype}[a, b]) -> {result}[{axes}]
        where a = 8, b = 32{", h = 2" * halves} {{
          {"index1 = index h" * halves}
          y = block grid(a / 4) {{
            q_t = load q[a/grid, b]
            {lines}
            store y[{axes.replace("a", "a/grid")}] = v
          }}
          return y
        }}
        """
    )
    assert problems(graph) == []
    return graph


LOW = "b = bit_and q_t, 15\nc = to_i8 b\nd = sub c, 8\nv = to_f32 d"
BOTH = (
    "i = load index1[h]\nj = mul i, 4\nk = to_u8 j\n"
    "s = shift_right q_t, k\nb = bit_and s, 15\nc = to_i8 b\nd = sub c, 8\nv = to_f32 d"
)
UNPACKED: dict[str, tuple[str, str, str, Unpacked]] = {
    "low": ("u8", LOW, "a, b", Unpacked("q_t", "low", 8)),
    "low of signed bytes": (
        "i8",
        "b = bit_and q_t, 15\nv = to_f32 b",
        "a, b",
        Unpacked("q_t", "low"),
    ),
    "high": (
        "u8",
        "s = shift_right q_t, 4\nv = to_f32 s",
        "a, b",
        Unpacked("q_t", "high"),
    ),
    "high of signed bytes": (
        "i8",
        "s = shift_right q_t, 4\nb = bit_and s, 15\nv = to_f32 b",
        "a, b",
        Unpacked("q_t", "high"),
    ),
    "bytes": ("u8", "v = to_f32 q_t", "a, b", Unpacked("q_t", "byte")),
    "signed bytes": ("i8", "v = to_f32 q_t", "a, b", Unpacked("q_t", "byte")),
    "bytes less 128": (
        "u8",
        "b = to_i16 q_t\nc = sub b, 128\nv = to_f32 c",
        "a, b",
        Unpacked("q_t", "byte", 128),
    ),
}
PATTERNS = torch.arange(256, dtype=torch.int32).to(torch.uint8).reshape(8, 32)


def in_format(dtype: str) -> torch.Tensor:
    return PATTERNS.view(torch.int8) if dtype == "i8" else PATTERNS


@pytest.mark.parametrize("name", UNPACKED)
def test_all_patterns_in_the_interpreter(name: str) -> None:
    dtype, lines, axes, part = UNPACKED[name]
    graph = unpacking(dtype, lines, axes=axes)
    (program,) = programs(graph)
    assert packed(program).floats == {"v": part}
    check(graph, [in_format(dtype)], tolerance=1e-300)
    for target in ("sm_90", "sm_80"):
        assert compile_only(graph, target=target)


def test_both_halves_are_an_axis() -> None:
    graph = unpacking("u8", BOTH, axes="a, b, h")
    (program,) = programs(graph)
    (part,) = packed(program).floats.values()
    assert (part.part, part.less, str(part.along)) == ("both", 8, "h")
    source = emit(graph)
    assert "tl.join(q_t_low, q_t_high)" in source
    assert " >> " not in source.split("def f_kernel0")[1], "steps are left out"
    (found,) = check(graph, [PATTERNS], tolerance=1e-300)
    right = torch.stack([PATTERNS & 15, PATTERNS >> 4], dim=-1).float() - 8
    assert torch.equal(found, right)
    assert compile_only(graph)


LEFT: dict[str, tuple[str, str]] = {
    "signs are shifted in": ("i8", "s = shift_right q_t, 4\nv = to_f32 s"),
    "three bits": ("u8", "b = bit_and q_t, 7\nv = to_f32 b"),
    "shifted by three": ("u8", "s = shift_right q_t, 3\nv = to_f32 s"),
    "wraps around": ("u8", "b = bit_and q_t, 15\nc = sub b, 8\nv = to_f32 c"),
    "wraps around with a sign": ("i8", "c = sub q_t, 100\nv = to_f32 c"),
    "a sign that was none": ("u8", "b = to_i8 q_t\nv = to_f32 b"),
    "more than f16 holds": (
        "u8",
        "b = to_i16 q_t\nc = sub b, 3001\nv = to_f32 c",
    ),
    "masked twice": ("u8", "b = bit_and q_t, 15\nc = bit_and b, 9\nv = to_f32 c"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_something_else_is_computed_step_by_step(name: str) -> None:
    dtype, lines = LEFT[name]
    graph = unpacking(dtype, lines)
    (program,) = programs(graph)
    assert not packed(program).floats
    check(graph, [in_format(dtype)], tolerance=1e-300)


def test_steps_that_others_read_stay() -> None:
    graph = unpacking("u8", LOW.replace("v =", "w =") + "\nz = to_f32 b\nv = mul w, z")
    (program,) = programs(graph)
    assert packed(program).steps == {"b", "c", "d"}
    graph = unpacking("u8", LOW.replace("v =", "w =") + "\nv = where (b > 3), w, 1.0")
    (program,) = programs(graph)
    assert "b" not in packed(program).steps
    check(graph, [PATTERNS], tolerance=1e-300)


# -- The matrix unit -------------------------------------------------------------------


def product(dtype: str, convert: str, schedule: str = "") -> KernelGraph:
    return parse(
        f"""mirage 1
        mugraph f(x: f16[m, k], w: {dtype}[k, n]) -> f16[m, n]
        where m = 8, k = 128, n = 64 {{
          y = block grid(n / 32) loop(k / 64) {schedule} {{
            x_t = load x[m, k/loop]
            w_t = load w[k/loop, n/grid]
            {convert}
            p = matmul x_t, v over(k)
            s = accumulate p
            store y[m, n/grid] = s
          }}
          return y
        }}
        """
    )


@pytest.mark.parametrize("schedule", ["", "swap_operands(true)"])
@pytest.mark.parametrize(
    ("dtype", "convert"),
    [
        ("f8e4m3", "v = cast w_t dtype(f16)"),
        ("f8e5m2", "v = cast w_t dtype(f16)"),
        ("i8", "c = to_f32 w_t\nv = cast c dtype(f16)"),
        ("u8", "b = bit_and w_t, 15\nc = to_f32 b\nv = cast c dtype(f16)"),
    ],
)
def test_bytes_are_converted_where_they_were_loaded(
    dtype: str, convert: str, schedule: str
) -> None:
    graph = product(dtype, convert, schedule)
    made = plan(graph)
    assert made.source.count(" = kept(") == 1
    compiled = compile_kernel(made, made.kernels[0], 90)
    ptx = str(compiled.asm["ptx"])
    assert not re.search(r"ld\.shared(\.v\d)?\.[bu]8\b", ptx), "byte by byte"
    check(graph)


def test_other_operands_are_left_to_the_compiler() -> None:
    assert "kept(" not in emit(product("f16", "c = mul w_t, 2\nv = cast c dtype(f16)"))


# -- Sums over parts of bytes ----------------------------------------------------------


def of_kind(program: TileProgram, kind: type[Statement]) -> list[Statement]:
    return [s for s, _ in walk(program.body) if isinstance(s, kind)]


@pytest.mark.parametrize("product", [MULTIPLIED, SUMMED, BEHIND])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_sums_over_parts_of_bytes_interleave_nothing(count: int, product: str) -> None:
    graph = parts_of_bytes(count, 8 // count // 2 * 2, product=product)
    assert problems(graph) == []
    (program,) = programs(graph)
    assert rules(program) == []
    assert parse_tiles(to_text(program)) == program
    wide = {v for v, t in program.tiles.items() if Dim("h") in t.axes}
    assert wide == {"i_t", "x_t"}, "nothing that is computed has the axis"
    assert len(of_kind(program, Lane)) == 2 * count
    assert "tl.join" not in emit(graph)


@pytest.mark.parametrize("schedule", ["", "swap_operands(true)"])
def test_halves_are_multiplied_apart(schedule: str) -> None:
    graph = parts_of_bytes(schedule=schedule)
    (program,) = programs(graph)
    parts = packed(program)
    assert {u.part for u in parts.floats.values()} == {"low", "high"}
    assert {"i_t", "i_t.0", "j.1", "k.0"} <= parts.steps, "shifts are not computed"
    made = plan(graph)
    body = made.source.split("def parts_kernel0")[1]
    assert (body.count("tl.dot("), body.count("tl.split("), body.count(" >> ")) == (
        2,
        1,
        0,
    )
    assert "n_h_lane" in body, "the other factor is loaded as it lies in memory"
    ptx = str(compile_kernel(made, made.kernels[0], 90).asm["ptx"])
    assert not re.search(r"st\.shared(\.v\d)?\.[bu]8\b", ptx), "byte by byte"


STAYS = {
    "stored": (
        ("f32[m, d] where", "f32[m, d], f16[n, d, h] where"),
        ("  y = block", "  y, z = block"),
        ("    u: f32", "    w: f16[n, d/grid, h] = accumulate v concat\n    u: f32"),
        ("    store y", "    store z: f16[n, d/grid, h] = w\n    store y"),
        ("return y", "return y, z"),
    ),
    "more than four": (("h = 2", "h = 8"),),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_sum_of_few_stays(name: str) -> None:
    text = str(parts_of_bytes())
    for old, new in STAYS[name]:
        assert old in text
        text = text.replace(old, new)
    graph = parse(text)
    assert problems(graph) == []
    (program,) = programs(graph)
    assert not of_kind(program, Lane)


def sliced(extent: int, start: int, stop: int, then: str) -> KernelGraph:
    """A slice of what a block computes, written by a user."""
    kind = "f32[m]" if then == "sum" else "f32[m, j]"
    last = "u over(j)" if then == "sum" else "u, u"
    return parse(
        f"mirage 1\nmugraph f(x: f16[m, k]) -> {kind} where m = 16, k = {extent} {{\n"
        "  y = block grid(m / 4) {\n    t = load x[m/grid, k]\n    e = exp t\n"
        f"    u = slice e dim(k) start({start}) stop({stop}) to(j)\n"
        f"    v = {then} {last}\n    store y: {kind.replace('m', 'm/grid')} = v\n"
        "  }\n  return y\n}"
    )


@pytest.mark.parametrize("then", ["sum", "mul"])
@pytest.mark.parametrize(
    ("extent", "at"), [(2, 1), (3, 0), (3, 2), (4, 2), (5, 4), (8, 3)]
)
def test_one_element_of_a_short_axis_is_taken(extent: int, at: int, then: str) -> None:
    check(sliced(extent, at, at + 1, then))


@pytest.mark.parametrize(
    ("extent", "start", "stop"), [(8, 0, 4), (4, 0, 2), (16, 2, 3)]
)
def test_other_slices_inside_of_blocks_are_refused(
    extent: int, start: int, stop: int
) -> None:
    """Registers do not move: several elements would have to."""
    with pytest.raises(UnsupportedError, match="cannot rearrange registers"):
        programs(sliced(extent, start, stop, "mul"))


def test_tiles_of_less_than_four_bytes_compile() -> None:
    """As a row's zero points for two groups."""
    g = KernelBuilder("zeros", p=8, n=2)
    z, s = g.input("z", u8, "p, n"), g.input("s", f32, "p, n")
    with g.block(grid={"p": 1}) as b:
        value = b.sub(b.apply("to_f32", b.load(z, "p/grid, n")), 8)
        out = b.store(b.mul(value, b.load(s, "p/grid, n")), "p/grid, n", dtype=f16)
    graph = g.returns(out).build()
    assert re.search(r"unsigned\(t\d", emit(graph))
    assert compile_only(graph)
    check(graph)
