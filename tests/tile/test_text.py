"""The text of tile programs reads back, and no text breaks the parser."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import MirageError, ParseError
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.maps import derived_extents, with_symbolic
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import Cast, Compute, Loop, Statement, TileProgram
from mirage_dsl.tile.text import parse, parse_all, to_text
from tests.end_to_end.test_text_of_found import graphs_of, program_of
from tests.programs.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.mu"))
SCHEDULES = (
    {},
    {"swap_operands": True},
    {"descriptors": True},
    {"second_load": False, "num_warps": 8},
    {"allow_tf32": True, "pdl": True, "prefetch": 2},
)


def ragged(graph: KernelGraph) -> KernelGraph:
    """The graph at extents that leave ragged tiles."""
    larger = {n: e + 5 for n, e in graph.extents if e is not None and e > 8}
    grown = graph.with_extents(larger)
    return grown.with_extents(derived_extents(grown, grown.extent_of))


def forms(graph: KernelGraph) -> Iterator[KernelGraph]:
    """The graph under several schedules, at several sizes."""
    for changes in SCHEDULES:

        def schedule(block: object, changes: dict[str, object] = changes) -> Schedule:
            del block
            return Schedule(**changes)  # type: ignore[arg-type]

        yield graph.with_schedules(schedule)
    yield ragged(graph)
    yield launched_early(ragged(graph), first=True)
    early = graph.with_schedules(lambda b: replace(b.schedule, num_stages=1))
    inputs = {i.name for i in graph.inputs[1:]}
    yield launched_early(early, first=True, constant=inputs)


@pytest.mark.sample(6)
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_programs_of_examples_read_back(file: Path) -> None:
    for graph in forms(mirage.parse(file.read_text("utf-8"))):
        for sized in (True, False):
            found = programs(graph, sized=sized)
            assert parse_all(to_text(*found)) == found


def test_programs_of_workloads_read_back() -> None:
    """Those of all are read back by `python -m tests.tile.mutants`."""
    rng = random.Random(0)
    for workload in (w for w in WORKLOADS if w.name in ("gated_mlp", "gqa", "moe")):
        for graph in rng.sample(list(graphs_of(program_of(workload))), 4):
            found = programs(graph, sized=rng.random() < 0.5)
            assert parse_all(to_text(*found)) == found


def test_symbolic_extents_read_back() -> None:
    graph = mirage.parse((ROOT / "examples" / "rms_linear.mu").read_text("utf-8"))
    (found,) = programs(with_symbolic(graph, ["m"]), most={"m": 64})
    text = to_text(found)
    assert "m = ?" in text
    assert parse(text) == found


# -- Names -----------------------------------------------------------------------------

HOSTILE = (
    *("load", "tile", "wait", "not", "if", "inf", "nan", "over", "sum", "warps"),
    *("lambda", "a b", "`", "\\", "a`b\\c", "\n", "", "//x", "1", "x/", "a.b/c", "é"),
    *("x: f32[m] = y", "\u2028", "\x00", "k#", "k##", "True", "{", "}"),
)


def simple(name: str, other: str) -> TileProgram:
    """A program of two values with these names, and tensors that have them."""
    graph = mirage.parse((ROOT / "examples" / "rms_linear.mu").read_text("utf-8"))
    (found,) = programs(graph)
    (load,) = (s for s in found.body if isinstance(s, Loop))
    first = load.body[0]
    assert hasattr(first, "tile")
    body: tuple[Statement, ...] = (
        replace(first, result=name, source=other, instead=other),  # type: ignore[call-arg]
        Cast(other, first.tile, name),
    )
    kind = found.tensors["x"]
    return replace(found, name=name, tensors={other: kind, name: kind}, body=body)


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_any_name_reads_back(name: str) -> None:
    for other in ("plain", *HOSTILE[:3], name + "x"):
        if other != name:
            program = simple(name, other)
            assert parse(to_text(program)) == program


# -- Errors ----------------------------------------------------------------------------

TEXT = """tiles 1

tile kernel(x: f16[m, k], y: f32[m]) where k = 96, m = 5 {
  block loop(k / 32)
  pieces(m, k/loop)
  warps(4)
  carry total: f32[m] = 0
  loop(k) {
    xt: f16[m, k/loop] = load x[m, k/loop] guarded(m) buffers(max(stages - 1, 1))
    xf: f32[m, k/loop] = convert xt
    e: f32[m, k/loop] = exp(xf * 0.5)
    s: f32[m] = sum e over(k/loop)
    total += s
  }
  store y: f32[m] = total
}
"""

SLIPS = (
    ("tiles 1", "tiles 2", 1, "this is version 2"),
    ("tiles 1", "mirage 1", 1, "expected `tiles 1`"),
    ("sum e", "sun e", 12, "unknown step `sun`; did you mean `sum`?"),
    ("exp(xf", "expp(xf", 11, "did you mean `exp`?"),
    ("xf * 0.5", "xf", 11, ""),
    ("xf * 0.5", "(xf * 2) * 2", 11, "found `(`"),
    ("over(k/loop)", "", 12, "`sum` needs `over(...)`, found none"),
    ("over(k/loop)", "over(k/loop) over(m)", 12, "`over` is given twice"),
    ("over(k/loop)", "when(warps)", 12, "`sum` takes no `when`"),
    ("f16[m, k/loop]", "f17[m, k/loop]", 9, "unknown dtype f17"),
    ("f16[m, k/loop]", "f16[(m k)]", 9, "one piece for each axis"),
    ("load x[m, k/loop]", "load x[m, j/loop]", 9, "no extent is given for dim j"),
    ("stages - 1", "stage - 1", 9, "did you mean `stages`?"),
    ("max(stages", "most(stages", 9, "unknown function most"),
    ("max(stages - 1, 1)", "max(stages)", 9, "`max` takes 2 numbers, found 1"),
    ("loop(k) {", "loop(k)", 8, "expected `{`"),
    ("  warps(4)\n", "  warps(4)\n  warps(4)\n", 7, "`warps` is given twice"),
    ("loop(k / 32)", "loop(k)", 4, "loop needs a tile"),
    ("loop(k / 32)", "num_warp(4)", 4, "did you mean `num_warps`?"),
    ("total += s\n  }", "total += s\n", 16, "the text ends too early"),
    ("y: f32[m])", "x: f32[m])", 3, "a tensor is named twice"),
    (
        "load x[m, k/loop] guarded(m) buffers(max(stages - 1, 1))",
        "positions []",
        9,
        "`positions` is of one axis, found 0",
    ),
)


@pytest.mark.parametrize(("old", "new", "line", "message"), SLIPS)
def test_slips_are_named_with_their_line(
    old: str, new: str, line: int, message: str
) -> None:
    if not message:
        assert parse(TEXT.replace(old, new)) != parse(TEXT)
        return
    with pytest.raises(ParseError) as error:
        parse(TEXT.replace(old, new, 1), "kernel.tiles")
    assert message in error.value.message
    assert error.value.location is not None
    assert (error.value.location.file, error.value.location.line) == (
        "kernel.tiles",
        line,
    )


def test_the_text_of_errors_has_statements_of_many_kinds() -> None:
    (program,) = parse_all(TEXT)
    assert parse(to_text(program)) == program
    with pytest.raises(ParseError, match="found 2 tile programs, expected one"):
        parse(to_text(program, program))
    with pytest.raises(ParseError, match="expected the text of tile programs"):
        parse(3)  # type: ignore[arg-type]


def test_no_text_breaks_the_parser() -> None:
    """Cut, doubled and exchanged pieces give a program or one of our errors."""
    rng, refused = random.Random(1), 0
    for _ in range(200):
        text = TEXT
        for _ in range(rng.randint(1, 3)):
            at, size = rng.randrange(8, len(text)), rng.randint(1, 12)
            other = rng.randrange(8, len(text))
            piece = rng.choice(
                ("", text[other : other + size], rng.choice("`({[/\\&é0"))
            )
            text = text[:at] + piece + text[at + rng.choice((0, size)) :]
        try:
            found = parse_all(text)
        except MirageError:
            refused += 1
        else:
            assert parse_all(to_text(*found)) == found
    assert 50 < refused < 200


def test_reading_and_printing_take_linear_time() -> None:
    program = parse(TEXT)
    (loop,) = (s for s in program.body if isinstance(s, Loop))
    compute = next(s for s in loop.body if isinstance(s, Compute))

    def seconds(count: int) -> float:
        lines = tuple(replace(compute, result=f"e{i}") for i in range(count))
        long = replace(program, body=lines)
        start = time.process_time()
        assert parse(to_text(long)) == long
        return time.process_time() - start

    few, many = (min(seconds(n) for _ in range(3)) for n in (100, 800))
    assert many < 24 * max(few, 0.01)


def test_formats_of_messages() -> None:
    """An error shows the line and the place in it."""
    with pytest.raises(ParseError) as error:
        parse(TEXT.replace("sum e", "sun e"), "k.tiles")
    assert str(error.value).startswith("k.tiles:12: unknown step `sun`")
    assert "    s: f32[m] = sun e over(k/loop)" in str(error.value)
