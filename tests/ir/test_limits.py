"""Texts and graphs that are long, deep or out of range: linear time, errors of ours."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, MirageError, ParseError, ShapeError
from mirage_dsl.core.types import Scalar, TensorSpec, f16, f32, scalar
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ir.text.parser import parse
from tests.ir.checking import only

HEAD = "mirage 1\nmugraph f({}) -> {} where m = 16, k = 4096 {{\n"


def graph_text(lines: list[str], result: str, inputs: str = "x: f32[m, k]") -> str:
    """A text with these lines, which returns a value of the first input's type."""
    head = HEAD.format(inputs, "f32[m, k]")
    return head + "\n".join(lines) + f"\n  return {result}\n}}\n"


# -- Linear time -----------------------------------------------------------------------


def chain(count: int) -> str:
    lines = [f"  v{i} = exp {f'v{i - 1}' if i else 'x'}" for i in range(count)]
    return graph_text(lines, f"v{count - 1}")


def expressions(count: int) -> str:
    lines = [
        f"  v{i} = {f'v{i - 1}' if i else 'x'} * exp(x) + 2*k^2/m" for i in range(count)
    ]
    return graph_text(lines, f"v{count - 1}")


def one_block(count: int) -> str:
    tile = "f32[m/grid, k]"
    lines = ["  y = block grid(m / 16) {", f"    v0: {tile} = load x"]
    lines += [f"    v{i}: {tile} = exp v{i - 1}" for i in range(1, count)]
    return graph_text([*lines, f"    store y: {tile} = v{count - 1}", "  }"], "y")


def rescaled(count: int) -> str:
    lines = ["  y = block loop(k / 64) {", "    t: f32[m, k/loop] = load x"]
    lines += ["    r = running max max(t, k)", "    s = sum(exp(t - r), k)"]
    lines += ["    a0 = accumulate s rescale r"]
    for i in range(1, count // 2):
        lines += [f"    b{i} = accumulate s rescale r", f"    a{i} = a{i - 1} + b{i}"]
    lines += [f"    store y: f32[m] = a{count // 2 - 1}", "  }"]
    return graph_text(lines, "y").replace("-> f32[m, k]", "-> f32[m]")


def many_blocks(count: int) -> str:
    tile, lines = "f32[m/grid, k]", list[str]()
    for i in range(count // 4):
        lines += [f"  v{i} = block grid(m / 16) {{"]
        lines += [f"    t: {tile} = load {f'v{i - 1}' if i else 'x'}", "    e = exp t"]
        lines += [f"    store v{i}: {tile} = e", "  }"]
    return graph_text(lines, f"v{count // 4 - 1}")


def many_inputs(count: int) -> str:
    inputs = ",\n".join(f"x{i}: f32[m, k]" for i in range(count // 2))
    lines = [f"  v{i} = {f'v{i - 1}' if i else 'x0'} + x{i}" for i in range(count // 2)]
    return graph_text(lines, f"v{count // 2 - 1}", inputs)


def many_dims(count: int) -> str:
    old = ["k", *(f"d{i}" for i in range(count))]
    lines = [
        f"  v{i} = rename {f'v{i - 1}' if i else 'x'} dims({old[i]}) to(d{i})"
        for i in range(count)
    ]
    text = graph_text(lines, f"v{count - 1}")
    return text.replace("-> f32[m, k]", f"-> f32[m, d{count - 1}]")


def one_expression(count: int) -> str:
    return graph_text([f"  y = x {'+ exp(x) ' * count}"], "y")


def shared_axis(count: int) -> str:
    dims = [f"d{i}" for i in range(count // 8)]
    inputs = ",\n".join(f"x{d}: f32[m, {d}]" for d in dims)
    results = ", ".join(f"f32[m, {d}]" for d in dims)
    grid = " & ".join(f"{d} / 16" for d in dims)
    lines = [f"  {', '.join(f'y{d}' for d in dims)} = block grid({grid}) {{"]
    for d in dims:
        lines += [f"    t{d}: f32[m, {d}/grid] = load x{d}", f"    e{d} = exp t{d}"]
        lines += [f"    store y{d}: f32[m, {d}/grid] = e{d}"]
    text = graph_text([*lines, "  }"], ", ".join(f"y{d}" for d in dims), inputs)
    sizes = "".join(f", {d} = 64" for d in dims)
    return text.replace("-> f32[m, k]", f"-> {results}").replace(
        "k = 4096", f"k = 4096{sizes}"
    )


def seconds(work: Callable[[], object]) -> float:
    """CPU time of the fastest run: of three short ones, or of a long one."""
    gc.collect()
    gc.disable()
    try:
        taken: list[float] = []
        while sum(taken) < 0.5 and len(taken) < 3:
            started = time.process_time()
            work()
            taken.append(time.process_time() - started)
        return min(taken)
    finally:
        gc.enable()


def everything(text: str) -> KernelGraph:
    """Read, checked, printed and hashed."""
    graph = parse(text)
    assert check(graph) == []
    assert str(graph).endswith("}\n")
    canonical_hash(graph)
    kernel_types(graph)
    return graph


SHAPES = {
    **dict.fromkeys((chain, expressions), (500, 8000)),
    **dict.fromkeys((one_block, rescaled, many_blocks, many_inputs), (200, 1600)),
    **dict.fromkeys((many_dims, one_expression, shared_axis), (200, 1600)),
}
"""Kinds of texts, each with a short and a long length."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear_in_the_length(shape: Callable[[int], str]) -> None:
    lengths = SHAPES[shape]
    short, long = map(shape, lengths)
    graph = everything(short)
    assert parse(str(graph)) == graph
    ratio = seconds(lambda: everything(long)) / seconds(lambda: everything(short))
    # What is quadratic would take up to the square of that as long.
    most = 2 * lengths[1] / lengths[0]
    assert ratio < most, f"{shape.__name__}: {lengths} takes {ratio:.1f} times as long"


# -- Nothing but errors of ours --------------------------------------------------------

LONG = "9" * 5000
BIG = "9" * 200
SLICED = "slice x dim(k) start(0) stop({}) to(e)"
WRONG = {
    "layout without numbers": chain(1).replace("f32[m, k]", "f32[m, k] layout()", 1),
    "long extent": f"mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = {LONG} {{",
    "long version": f"mirage {LONG}\n",
    "version of two parts": chain(1).replace("mirage 1", "mirage 1.5"),
    "long tile": one_block(3).replace("m / 16", f"m / {LONG}"),
    "long constant": chain(1).replace("exp x", f"mul x, {LONG}"),
    "long denominator": chain(1).replace("exp x", f"mul x, 1/{LONG}"),
    "long power": chain(1).replace("exp x", f"mul x, 1*k^{LONG}"),
    "high power": chain(1).replace("exp x", "mul x, 1*k^65"),
    "many powers": chain(1).replace("exp x", "mul x, 1" + "*k" * 65),
    "constant beyond floats": chain(1).replace("exp x", f"mul x, 1{'0' * 309}"),
    "product beyond floats": chain(1).replace(
        "exp x", f"mul(x, 1{'0' * 200} * 1{'0' * 200})"
    ),
    "long bound": chain(1).replace("exp x", SLICED.format(LONG)),
    "number of stages": one_block(3).replace(
        "{\n    v0", f"num_stages({LONG}) {{\n    v0"
    ),
    "a number as a new dim": chain(1).replace("exp x", "insert x to(inf)"),
    "a constant as a new dim": chain(1).replace("exp x", "insert x to(inf*k)"),
    "marks": chain(1).replace("exp x", f"mul x, 1*q{'#' * 3000}"),
    "brackets": graph_text([f"  y = {'(' * 30000}x{')' * 30000}"], "y"),
    "calls": graph_text([f"  y = {'exp(' * 30000}x{')' * 30000}"], "y"),
    "right operands": graph_text([f"  y = {'x + (' * 9000}x{')' * 9000}"], "y"),
    "a surrogate": chain(1).replace("exp", "e\udc80p"),
    "nothing but a mark": "\ufeff",
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", WRONG)
def test_errors_of_texts_have_a_place(name: str) -> None:
    with pytest.raises((ParseError, CheckError)) as caught:
        parse(WRONG[name])
    place = caught.value.location
    assert place is not None
    assert place.column is not None or not place.text
    assert max(map(len, str(caught.value).split("\n"))) < 400


def test_what_is_just_in_range_is_read() -> None:
    text = graph_text([f"  y = {'exp(' * 99}x{')' * 99}"], "y")
    assert len(parse(text).nodes) == 99
    top = chain(1).replace("exp x", f"mul x, {'9' * 308}*k^64/m^64")
    assert parse(str(parse(top))) == parse(top)
    text = chain(1).replace("k = 4096", f"k = {2**55}")
    assert check(text) == []


def test_a_caller_near_the_end_of_the_stack_gets_an_error_of_ours() -> None:
    text = graph_text([f"  y = {'exp(' * 99}x{')' * 99}"], "y")

    def deep(left: int) -> KernelGraph:
        return deep(left - 1) if left else parse(text)

    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    with pytest.raises(ParseError, match="nested too deeply"):
        deep(sys.getrecursionlimit() - depth - 150)


# -- Extents ---------------------------------------------------------------------------


def named(number: int) -> str:
    """A short name of a number."""
    return f"{'-' * (number < 0)}{number.bit_length()} bits"


@pytest.mark.parametrize("extent", [0, -1, -(2**63), 2**63, 2**64, 10**5000], ids=named)
def test_extents_out_of_range(extent: int) -> None:
    with pytest.raises(ShapeError):
        mirage.spec((4, extent))
    with pytest.raises(ShapeError):
        mirage.spec(("m", extent), "float32")
    with pytest.raises(ShapeError):
        TensorSpec(f16, (extent,))
    with pytest.raises(ShapeError):
        f16["m", extent]
    graph = parse(chain(1))
    assert {d.rule for d in check(graph.with_extents({"k": extent}))} & {"extent"}
    assert len(str(check(graph.with_extents({"k": extent}))[0])) < 200


def test_tensors_of_more_bytes_than_there_can_be() -> None:
    assert mirage.spec((2**31, 2**29), "float32").shape == (2**31, 2**29)
    with pytest.raises(ShapeError, match="bytes"):
        mirage.spec((2**31, 2**30, 2), "float32")
    with pytest.raises(ShapeError, match="bytes"):
        mirage.spec((2**32, "m", 2**32), "float32")
    found = check(parse(chain(1).replace("m = 16", f"m = {2**60}")))
    assert [d.rule for d in found] == ["bytes", "bytes"]


def test_new_inputs_of_the_graph_builder() -> None:
    for extent in (0, -4, 2**63):
        graph = mirage.new_kernel_graph()
        with pytest.raises(MirageError):
            graph.new_input(dims=(extent, 4), dtype=mirage.float16)


# -- One dim, one extent ---------------------------------------------------------------

FEW, MORE = (
    "slice x dim(k) start(0) stop(4) to(e)",
    "slice x dim(k) start(4) stop(12) to(e)",
)
IN_BLOCK = """block grid(m / 4) {
    t = load x[m/grid, k]
    s = slice t dim(k) start(0) stop(4) to(e)
    store v[m/grid, e] = s
  }"""
PARTS = """block grid(k / TILE) {
    t = load x[m, k/grid]
    s = sum(t, k)
    store NAME[m, k#/grid] = s
  }"""
TWICE = {
    "two slices": (FEW, "m, e", MORE, "m, e"),
    "the longer one first": (MORE, "m, e", FEW, "m, e"),
    "a slice and a renaming": (FEW, "m, e", "rename x dims(m) to(e)", "e, k"),
    "two renamings": (
        "rename x dims(m) to(e)",
        "e, k",
        "rename x dims(k) to(e)",
        "m, e",
    ),
    "an input's dim": (
        "rename x dims(m) to(o)",
        "o, k",
        "slice x dim(k) start(0) stop(8) to(l)",
        "m, l",
    ),
    "a join and an insertion": (
        "concat x, x dims(k, k) to(e)",
        "m, e",
        "insert x to(e)",
        "m, k, e",
    ),
    "two joins": (
        "concat x, x dims(k, k) to(e)",
        "m, e",
        "concat x, x, x dims(k, k, k) to(e)",
        "m, e",
    ),
    "a slice in a block": (MORE, "m, e", IN_BLOCK, "m, e"),
    "parts of two kernels": (
        PARTS.replace("TILE", "16").replace("NAME", "u"),
        "m, k#",
        PARTS.replace("TILE", "32").replace("NAME", "v"),
        "m, k#",
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_dim_has_one_extent(name: str) -> None:
    u, of_u, v, of_v = TWICE[name]
    lines = [f"  u = {u}", f"  v = {v}", f"  a = sum u over({of_u})"]
    lines += [f"  b = sum v over({of_v})"]
    text = graph_text(lines, "a, b", "x: f32[m, k], l: f32[l]")
    text = text.replace("-> f32[m, k]", "-> f32[], f32[]").replace(
        "m = 16", "m = 16, l = 5"
    )
    graph = parse(text)
    found = [d for d in check(graph) if d.rule != "unused"]
    assert {d.rule for d in found} == {"derived-extent"}, [str(d) for d in found]
    assert all(d.location is not None for d in found)
    with pytest.raises(MirageError):
        mirage.evaluate(graph, np.ones((16, 4096)), np.ones(5))


def test_sizes_that_give_a_dim_two_extents_are_refused() -> None:
    lines = ["  u = slice x dim(k) start(0) stop(8) to(e)"]
    lines += ["  v = rename x dims(m) to(e)", "  a = sum u over(m, e)"]
    lines += ["  b = sum v over(e, k)"]
    text = graph_text(lines, "a, b").replace("-> f32[m, k]", "-> f32[], f32[]")
    graph = parse(text.replace("m = 16", "m = ?"))
    assert check(graph) == []
    mirage.evaluate(graph, np.ones((8, 4096)))
    with pytest.raises(ShapeError, match="the dim e would have the extents"):
        mirage.evaluate(graph, np.ones((9, 4096)))


# -- Names and constants of graphs that no text made -----------------------------------


@pytest.mark.parametrize("name", ["a b", "", "1x", "a\n", "inf", "nan", "x-y", "a·"])
def test_names_that_no_text_can_have(name: str) -> None:
    b = KernelBuilder("f", m=4)
    graph = b.returns(b.exp(b.input("x", f32, "m"))).build()
    for changed in (
        replace(graph, name=name),
        replace(graph, inputs=(*graph.inputs, replace(graph.inputs[0], name=name))),
        graph.with_extents({name: 4}),
    ):
        assert "names" in {d.rule for d in check(changed)}


@pytest.mark.parametrize(
    "constant",
    [scalar(10**400), scalar(-(10**400)), Scalar(scalar(1).value, (("m", -65),))],
)
def test_constants_out_of_range(constant: Scalar) -> None:
    b = KernelBuilder("f", m=4)
    graph = b.returns(b.mul(b.input("x", f32, "m"), constant)).unchecked()
    only(graph, "constant")
    assert constant.at({"m": 2**62}) in (float("inf"), -float("inf"), 0.0)
