"""The textual form: what short forms stand for, what errors say, and corner cases.

`sugar.mu` and `errors.mu` hold cases: a text behind `// case`, and what is expected of
it behind `// prints`, or in one line `// KindOfError LINE:COLUMN message`.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, ParseError
from mirage_dsl.core.types import (
    Dim,
    Scalar,
    TensorType,
    f16,
    f32,
    parse_scalar,
    scalar,
)
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import (
    Apply,
    BlockGraph,
    Input,
    KernelGraph,
    Load,
    Return,
    Schedule,
    Store,
)
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import ADD, EXP, MATMUL

HERE = Path(__file__).parent
KINDS = {c.__name__: c for c in (ParseError, CheckError)}


def cases(file: str, end: str) -> list[object]:
    """`(text, match of the line that ends it, what follows that line)` by name."""
    text = (HERE / file).read_text(encoding="utf-8")
    found: list[object] = []
    for part in re.split(r"^// case ", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        last = re.search(end, body, flags=re.M)
        assert last is not None, name
        behind = body[last.end() :].strip("\n")
        found.append(pytest.param(body[: last.start()], last, behind, id=name))
    return found


@pytest.mark.parametrize(("text", "_", "printed"), cases("sugar.mu", r"^// prints\n"))
def test_short_form(text: str, _: re.Match[str], printed: str) -> None:
    graph = parse(text)
    assert str(graph).strip() == printed
    assert parse(printed) == graph
    assert check(graph) == []


@pytest.mark.parametrize(
    ("text", "expected", "_"),
    cases("errors.mu", r"^// (\w+Error) (\d+):(\d+) (.*)$"),
)
def test_error(text: str, expected: re.Match[str], _: str) -> None:
    kind, line, column, message = expected.groups()
    with pytest.raises(KINDS[kind]) as caught:
        parse(text, "f.mu")
    error = caught.value
    assert error.location is not None
    assert error.message == message
    assert (error.location.file, error.location.line) == ("f.mu", int(line))
    assert (error.location.column or 0) == int(column)
    assert error.location.text == text.split("\n")[int(line) - 1]


def test_texts_of_the_documentation() -> None:
    page = (HERE.parents[1] / "docs" / "text-format.md").read_text("utf-8")
    texts = re.findall(r"^```mu\n(.*?)^```", page, flags=re.M | re.S)
    *long, _short = texts
    assert len(long) == 3
    for text in long:
        assert str(parse(text)) == text
    for text in texts:
        assert check(parse(text)) == []


def test_error_shows_the_place() -> None:
    text = "mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = 4 {\n  y = epx x\n}"
    with pytest.raises(ParseError) as caught:
        parse(text, "dir/f.mu")
    assert str(caught.value) == (
        "dir/f.mu:3: unknown operator epx; did you mean `exp`?\n"
        "      y = epx x\n"
        "          ^"
    )


def test_errors_are_short_whatever_the_names() -> None:
    name = "x" * 20_000
    text = f"mirage 1\nmugraph f({name}: f32[m]) -> f32[m] where m = 4 {{\n"
    for operand in (name[:-1], "other"):
        with pytest.raises(ParseError) as caught:
            parse(f"{text}  y = exp {operand}\n  return y\n}}\n")
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("depth", [2000, 20000])
def test_deep_nesting_is_an_error_of_ours(depth: int) -> None:
    deep = "exp(" * depth + "x" + ")" * depth
    text = f"mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = 4 {{\n  y = {deep}\n"
    with pytest.raises(ParseError, match="too deeply"):
        parse(text + "  return y\n}\n")


def test_lines_may_end_as_on_windows() -> None:
    text = "mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = 4 {\n\ty = exp x\n"
    text += "  return y\n}\n"
    assert parse(text.replace("\n", "\r\n")) == parse(text)


def test_nodes_know_their_line() -> None:
    text = "mirage 1\nmugraph f(x: f32[m]) -> f32[m] where m = 4 {\n  y = exp x\n"
    (node,) = parse(text + "  return y\n}\n", "f.mu").nodes
    assert isinstance(node, Apply)
    assert str(node.location) == "f.mu:3"


ROUND = """mirage 1
mugraph f(x: f16[m, k], w: f16[k, n]) -> f16[m, n] where m = 16, k = 64, n = 32 {
  y = block grid(n / 16) loop(k / 8) {
    xt = load x[m, k/loop]
    wt = load w[k/loop, n/grid]
    p = matmul xt, wt
    a = accumulate p
    store y: f16[m, n/grid] = a
  }
  return y
}
"""


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        ("grid(n / 16) loop", "grid(n / 512) loop", "tile", 3),
        ("loop(k / 8) {", "loop(k / 8) num_warps(3) {", "schedule", 3),
        ("grid(n / 16) loop", "loop", "piece", 5),
        ("load x[m, k/loop]", "load x[m, k/loop]\n    xu = load x[m, k]", "unused", 5),
        ("    a = acc", "    p2 = accumulate xt\n    a = acc", "unused", 7),
        ("f16[m, n/grid] = a", "f16[m, n/grid] = p", "stage", 8),
        ("f16[m, n/grid] = a", "f32[m, n/grid] = a", "return", 10),
        ("  return y", "  z = exp y\n  return y", "unused", 10),
        ("f(x: f16[m, k]", "f(v: f16[m, m], x: f16[m, k]", "input", 2),
    ],
)
def test_what_the_checker_finds_has_its_line(
    old: str, new: str, rule: str, line: int
) -> None:
    assert old in ROUND
    found = check(parse(ROUND.replace(old, new), "f.mu"))
    first = next(d for d in found if d.rule == rule)
    assert str(first.location) == f"f.mu:{line}"


# -- Printing --------------------------------------------------------------------------

VECTOR = TensorType(f32, ((Dim("m"),),))


def program(*nodes: Apply | BlockGraph, returns: str, m: int | None = 4) -> KernelGraph:
    inputs = (Input("x", VECTOR),)
    result = (Return(returns, VECTOR),)
    return KernelGraph("f", inputs, nodes, result, (("m", m),))


@pytest.mark.parametrize(
    "word",
    [
        "load", "store", "return", "block", "accumulate", "running", "max", "concat",
        "rescale", "where", "layout", "mirage", "mugraph", "grid", "loop", "over",
        "exp", "add", "m", "f32", "true", "_", "π", "info", "e5", "constant",
    ],
)  # fmt: skip
def test_any_word_names_a_value_a_dim_and_a_graph(word: str) -> None:
    type_ = TensorType(f32, ((Dim(word),),))
    graph = KernelGraph(
        word,
        (Input(word, type_),),
        (
            Apply("y", EXP, (word,)),
            Apply(f"{word}2", ADD, ("y", word)),
            Apply("z", ADD, (Scalar(Fraction(-1, 3), ((word, 2),)), f"{word}2")),
        ),
        (Return("z", type_), Return(f"{word}2", type_)),
        ((word, 4),),
    )
    assert check(graph) == []
    assert parse(str(graph)) == graph


@pytest.mark.parametrize("word", ["load", "max", "accumulate", "running", "k"])
def test_any_word_names_a_value_of_a_block(word: str) -> None:
    text = f"""mirage 1
mugraph f(x: f32[m]) -> f32[m] where m = 4 {{
  {word} = block loop(m / 2) {{
    {word} = load x[m/loop]
    b = {word} * 2
    c = running max {word}
    d = accumulate {word} max
    e = accumulate {word} concat
    g = accumulate {word} rescale c
    store {word}: f32[m] = e
  }}
  return {word}
}}
"""
    graph = parse(text)
    assert parse(str(graph)) == graph


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (scalar(3), "3"),
        (scalar(-0.5), "-0.5"),
        (scalar(0.1), "0.1"),
        (scalar(1e-6), "1e-06"),
        (scalar(1e300), "1e+300"),
        (scalar(Fraction(1, 3)), "1/3"),
        (scalar(Fraction(2**53 + 1)), "9007199254740993"),
        (scalar(float("inf")), "inf"),
        (scalar(float("-inf")), "-inf"),
        (scalar(0.0), "0"),
        (scalar(-0.0), "-0.0"),
        (scalar(-0.0).times(scalar(-2)), "0"),
        (Scalar(-0.0, (("k", 1),)), "-0.0*k"),
        (Scalar(Fraction(1), (("k", -1),)), "1/k"),
        (Scalar(Fraction(2, 3), (("k", 2), ("m#", -1))), "2/3*k^2/m#"),
    ],
)
def test_constants_read_back(value: Scalar, text: str) -> None:
    assert str(value) == text
    assert parse_scalar(text) == value
    assert hash(parse_scalar(text)) == hash(value)


def test_zeros_of_both_signs_differ() -> None:
    assert scalar(-0.0) != scalar(0.0) == Scalar(0.0) == scalar(0)
    assert len({scalar(-0.0), scalar(0), scalar(-0.0)}) == 2
    assert math.copysign(1, parse_scalar("-0.0").at({})) == -1
    assert math.copysign(1, scalar(-1e-300).at({})) == -1


@pytest.mark.parametrize(
    "text", ["", "k", "1/", "1//k", "1*2*", "1e999", "--1", "1.2.3"]
)
def test_not_a_constant(text: str) -> None:
    with pytest.raises(ValueError, match="not a constant"):
        parse_scalar(text)


def test_only_changed_schedule_parameters_are_printed() -> None:
    load = Load("t", "x", ((Dim("m"),),))
    store = Store("y", "t", ((Dim("m"),),), f32)
    schedule = Schedule(num_warps=8, pdl=True)
    block = BlockGraph((), None, (load, store), schedule)
    graph = program(block, returns="y")
    assert "  y = block num_warps(8) pdl(true) {" in str(graph)
    assert parse(str(graph)) == graph


def test_unknown_extents() -> None:
    graph = program(Apply("y", EXP, ("x",)), returns="y", m=None)
    assert "where m = ?" in str(graph)
    assert parse(str(graph)) == graph


def test_derived_extents_are_computed_anew() -> None:
    text = (HERE.parents[1] / "examples" / "gqa_split_kv.mu").read_text("utf-8")
    assert parse(text).extent_of["n#"] == 16
    assert parse(text.replace("n / 256", "n / 512")).extent_of["n#"] == 8


def test_constants_may_name_a_dim_ahead_of_what_makes_it() -> None:
    graph = parse("""mirage 1
mugraph f(x: f32[m, n]) -> f32[m, u] where m = 4, n = 56, u = 53 {
  y: f32[m, n] = mul x, 1/u
  z: f32[m, u] = slice y dim(n) start(3) stop(56) to(u)
  return z
}
""")
    assert "u = 53" in str(graph)
    assert parse(str(graph)) == graph


def test_extents_that_contradict_the_tiles_are_kept() -> None:
    text = (HERE.parents[1] / "examples" / "gqa_split_kv.mu").read_text("utf-8")
    graph = parse(text).with_extents({"n#": 7})
    assert "n# = 7" in str(graph)
    assert parse(str(graph)) == graph


def test_a_graph_that_is_not_well_formed_is_printed_too() -> None:
    broken = Apply("y", MATMUL, ("x", "nowhere"), (("over", ("k",)),))
    assert "  y = matmul x, nowhere over(k)\n" in str(program(broken, returns="y"))
    block = BlockGraph((), None, (Load("t", "x", ((Dim("q", loop=True),),)),))
    assert "    t = load x[q/loop]\n" in str(program(block, returns="y"))


def test_long_headers_have_a_line_for_each_input() -> None:
    many = replace(
        program(returns="x"), inputs=tuple(Input(f"x{i}", VECTOR) for i in range(12))
    )
    printed = str(replace(many, returns=(Return("x0", VECTOR),)))
    assert printed.splitlines()[2:5] == [
        "mugraph f(",
        "    x0: f32[m],",
        "    x1: f32[m],",
    ]
    assert max(map(len, printed.splitlines())) <= 96


def test_reading_is_the_only_thing_that_imports_lark() -> None:
    code = (
        "import sys, mirage_dsl.ir.text.parser, mirage_dsl.ir.text.printer; "
        "sys.exit('lark' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_half_precision_layouts_and_groups() -> None:
    dims = [Dim(n) for n in "abc"]
    type_ = TensorType(f16, ((dims[0],), (), (dims[1], dims[2])), layout=(2, 0, 1))
    graph = KernelGraph(
        "f",
        (Input("x", type_), Input("s", TensorType(f16, ()))),
        (),
        (
            Return(
                "x", TensorType(f16, ((dims[2], dims[0]), (dims[1],)), layout=(1, 0))
            ),
        ),
        (("a", 2), ("b", None), ("c", 4)),
    )
    assert "    x: f16[a, 1, (b c)] layout(2, 0, 1),\n    s: f16[]\n" in str(graph)
    assert parse(str(graph)) == graph


# -- What is taken for a graph ---------------------------------------------------------


def bound() -> mirage.BoundKernel:
    kernel = mirage.kernel(lambda x, w: mirage.silu(x @ w), effort="none")
    return kernel.bind(mirage.spec((4, 8)), mirage.spec((8, 4)))


def test_texts_and_candidates_are_graphs() -> None:
    kernel = bound()
    best = mirage.superoptimize(kernel.program, effort="none").best
    x, w = np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
    (expected,) = mirage.evaluate(kernel.program, x, w)
    for graph in (str(kernel.program), best, kernel):
        assert mirage.check(graph) == []
        assert mirage.verify(graph, kernel).equivalent
        assert mirage.diff(graph, kernel.program) == ""
        np.testing.assert_array_equal(mirage.evaluate(graph, x, w)[0], expected)


def test_what_is_no_graph_is_said() -> None:
    program = bound().program
    for call in (
        lambda: mirage.check(3),
        lambda: mirage.verify(program, None),
        lambda: mirage.diff(program, 3.5),
        lambda: mirage.evaluate([program]),
    ):
        with pytest.raises(CheckError, match="expected a program or a μGraph"):
            call()
    with pytest.raises(ParseError, match="found int"):
        mirage.parse(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ParseError, match="begins with its version"):
        mirage.check("x")
