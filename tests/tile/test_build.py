"""Tile programs of the examples: what is printed, and what holds at other sizes too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mirage_dsl.backends.triton.lowering.emit import plan
from mirage_dsl.core.types import i32
from mirage_dsl.ir.analysis.launches import launched_early, launches
from mirage_dsl.ir.graph import BlockGraph, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.tile.build import Suited, build, programs, suited
from mirage_dsl.tile.program import (
    Along,
    Announce,
    Ask,
    Compute,
    Convert,
    Formula,
    Load,
    Loop,
    Mask,
    Pick,
    Pieces,
    Positions,
    Product,
    Start,
    Statement,
    Store,
    TileProgram,
    Unsized,
    Update,
    Wait,
    makes,
    outer_of,
    value,
    walk,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
GRAPHS = {f.stem: parse(f.read_text()) for f in sorted(EXAMPLES.glob("*.mu"))}


def scheduled(graph: KernelGraph, **changes: Any) -> KernelGraph:
    return graph.with_schedules(lambda b: replace(b.schedule, **changes))


VARIANTS: dict[str, Any] = {
    "plain": lambda g: g,
    "swapped": lambda g: scheduled(g, swap_operands=True),
    "descriptors": lambda g: scheduled(g, descriptors=True),
    "early": lambda g: scheduled(launched_early(g), prefetch=2),
    "odd": lambda g: g.with_extents({n: e and e + 5 for n, e in g.extents}),
}
CASES = list(product(GRAPHS, VARIANTS))


def statements(program: TileProgram) -> list[Statement]:
    return [s for s, _ in walk(program.body)]


def of_kind(program: TileProgram, *kinds: type) -> list[Any]:
    return [s for s in statements(program) if isinstance(s, kinds)]


# -- What is printed -------------------------------------------------------------------


def printed(line: str) -> str:
    """What kind of statement a line prints, of those that others have no part in."""
    kinds = {
        "tl.load(": "load",
        "_desc.load(": "load",
        "_again_desc.load(": "load",
        "tl.dot(": "product",
        "tl.store(": "store",
        "tl.permute(": "turn",
        "prefetch(": "ask",
        "gdc_wait(": "wait",
        "gdc_launch_dependents(": "announce",
        "tl.full(": "start",
        "for it in": "loop",
    }
    code = line.split("#")[0]
    return next((kind for text, kind in kinds.items() if text in code), "")


def expected(statement: Statement, program: TileProgram) -> str:
    match statement:
        case Load() | Store() | Ask() | Wait() | Announce() | Start() | Loop():
            return type(statement).__name__.lower()
        case Product() if statement.is_matrix:
            return "product"
        case Convert():
            operand = next(
                s.tile
                for s in statements(program)
                if getattr(s, "result", "") == statement.operand and hasattr(s, "tile")
            )
            return "turn" if operand.axes != statement.tile.axes else ""
        case _:
            return ""


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_each_statement_is_printed_where_it_stands(name: str, variant: str) -> None:
    graph = VARIANTS[variant](GRAPHS[name])
    made = programs(graph)
    kernels = plan(graph).kernels
    assert len(made) == len(kernels) > 0
    for program, kernel in zip(made, kernels, strict=True):
        lines = filter(None, map(printed, kernel.lines))
        wanted = (expected(s, program) for s in statements(program))
        assert list(lines) == list(filter(None, wanted))
        assert kernel.schedule.num_warps == program.warps


# -- Other sizes -----------------------------------------------------------------------


def facts(program: TileProgram, sizes: Pieces) -> dict[Any, Any]:
    """What a program says at some sizes."""
    found: dict[Any, Any] = {"warps": value(program.warps, sizes)}
    for s, _ in walk(program.body):
        match s:
            case Load() if value(s.when, sizes):
                found[s.result] = value(s.buffers, sizes), s.via, s.tile
            case Ask() if value(s.when, sizes):
                found["ask", s.source] = s.at
            case Mask() if value(s.when, sizes):
                dims = [d for d, when in s.where if value(when, sizes)]
                found |= {("mask", s.operand.split("/")[0], d): s.fill for d in dims}
            case Product():
                found[s.result] = s.tile, value(s.wgmma, sizes), s.into, s.precision
            case Compute():
                found[s.result] = s.tile, s.op, s.inner, s.rounded
            case _:
                pass
    return found


def resized(graph: KernelGraph) -> Iterator[KernelGraph]:
    """A μGraph with other extents, tiles and warps."""

    def block(node: BlockGraph, times: int, warps: int) -> BlockGraph:
        splits = [replace(s, tile=s.tile * times) for s in node.grid if s.tile > 1]
        if len(splits) < len(node.grid) or node.loop is None:
            return node
        loop = replace(node.loop, tile=node.loop.tile * times)
        schedule = replace(node.schedule, num_warps=warps, num_stages=warps)
        return replace(node, grid=tuple(splits), loop=loop, schedule=schedule)

    for times, warps, more in product((1, 2), (1, 2, 8), (0, 3)):
        other = graph.with_extents(
            {n: e and e * times + more for n, e in graph.extents}
        )
        nodes = [
            block(n, times, warps) if isinstance(n, BlockGraph) else n
            for n in other.nodes
        ]
        yield replace(other, nodes=tuple(nodes))


def suited_blocks(graph: KernelGraph) -> list[Suited[Any]]:
    outer = outer_of(graph)
    return [suited(launch.block, outer) for launch in launches(graph)]


def alike(one: Suited[Any], other: Suited[Any]) -> bool:
    """Whether two blocks have the same statements, but for numbers."""
    here, there = (
        {s.result: s.via for s in of_kind(build(g), Load)} for g in (one, other)
    )
    boxes = all(there.get(name, via) == via for name, via in here.items())
    same = one.block.nodes == other.block.nodes
    return same and boxes and one.pieces.units == other.pieces.units


@pytest.mark.sample(14)
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_a_program_of_formulas_holds_at_other_sizes(name: str, variant: str) -> None:
    """Wherever its statements are the same, its numbers are what they are there."""
    graph, compared = VARIANTS[variant](GRAPHS[name]), 0
    here = suited_blocks(graph)
    open_programs = [build(given, sizes=Unsized(given.pieces)) for given in here]
    for other in resized(graph):
        there = suited_blocks(other)
        for one, program, given in zip(here, open_programs, there, strict=True):
            if alike(one, given):
                compared += 1
                known = build(given)
                assert facts(program, given.pieces) == facts(known, given.pieces)
    assert compared > len(here)


def test_numbers_stay_formulas_until_sizes_are_known() -> None:
    graph = GRAPHS["rms_linear"]
    (open_program,), (known,) = programs(graph, sized=False), programs(graph)
    again = next(s for s in of_kind(open_program, Load) if s.instead is not None)
    assert str(again.buffers) == "max(stages - 1, 1)"
    (matrix,) = of_kind(open_program, Product)
    tall = "lanes(m) >= 64 & (warps >= 4 | lanes(m) >= 256)"
    assert str(matrix.wgmma) == tall
    assert matrix.into == "numerator"
    numbers = [(s.buffers, s.when) for s in of_kind(known, Load)]
    assert not any(isinstance(n, Formula) for pair in numbers for n in pair)


def test_masks_are_known_with_the_sizes() -> None:
    graph = GRAPHS["gqa_running_max"]
    (open_program,), (known,) = programs(graph, sized=False), programs(graph)
    ragged = graph.with_extents({"n": 4000})
    (masked,) = programs(ragged)
    (mask,) = of_kind(open_program, Mask)
    assert [str(when) for _, when in mask.where] == ["loose(n/loop)"]
    assert mask.fill == float("-inf")
    assert not of_kind(known, Mask)
    assert [s.where for s in of_kind(masked, Mask)] == [((mask.where[0][0], True),)]


# -- Single decisions ------------------------------------------------------------------


def test_the_program_of_a_norm_and_a_product() -> None:
    (program,) = programs(GRAPHS["rms_linear"])
    kinds = [type(s).__name__ for s in statements(program)]
    inside = ["Load", "Load", "Load", "Convert", "Compute", "Update", "Product"]
    after = ["Reduce", "Compute", "Compute", "Compute", "Store"]
    assert kinds == ["Start", "Start", "Loop", *inside, *after]
    (update,) = of_kind(program, Update)
    assert (update.target, update.operand, update.op.name) == (
        "all_squares",
        "squares",
        "sum",
    )
    assert [n.text for n in update.notes] == [
        "all_squares: f32[m, k/loop] = accumulate squares"
    ]


TWO_PRODUCTS = """mirage 1
mugraph f(x: f16[m, k], a: f16[k, n], b: f16[k, l]) -> f32[m, n]
where m = 128, k = 256, n = 64, l = 32 {
  y, z = block grid(n / 64) loop(k / 64) {
    xt: f16[m, k/loop] = load x
    at: f16[k/loop, n/grid] = load a
    bt: f16[k/loop, l] = load b
    p: f32[m, n/grid] = matmul xt, at over(k)
    q: f32[m, l] = matmul xt, bt over(k)
    ps: f32[m, n/grid] = accumulate p
    qs: f32[m, l] = accumulate q
    store y: f32[m, n/grid] = ps
    store z: f32[m, l] = qs
  }
  return y
}
"""


def test_which_copy_a_product_reads_may_depend_on_sizes() -> None:
    """Tall products share a tile; a tall one and a small one have a copy each."""
    graph = parse(TWO_PRODUCTS)
    small = graph.with_extents({"l": 8})
    for g, swapped in product((graph, small), (False, True)):
        (program,) = programs(scheduled(g, swap_operands=swapped), sized=False)
        picks, copies = of_kind(program, Pick), of_kind(program, Load)
        (known,) = programs(scheduled(g, swap_operands=swapped))
        assert not of_kind(known, Pick)
        again = [s for s in copies if s.instead is not None]
        assert bool(picks) == bool(again) == swapped
    # Swapped, the rows are n and l: 64 and 8.
    (known,) = programs(scheduled(small, swap_operands=True))
    assert [s.instead for s in of_kind(known, Load)].count("xt") == 1
    right = {s.result: s.right for s in of_kind(known, Product)}
    assert right["p"].split("/")[0] == right["q"].split("/")[0] == "xt"
    assert right["p"].count("again") == 0
    assert right["q"].count("again") == 1


def test_a_joined_value_that_is_computed_with_is_read_again_whole() -> None:
    (program,) = programs(
        parse("""mirage 1
mugraph f(x: f16[m, k]) -> f32[m, k] where m = 16, k = 64 {
  y = block grid(m / 16) loop(k / 16) {
    xt: f16[m/grid, k/loop] = load x
    e: f32[m/grid, k/loop] = exp xt
    r: f32[m/grid] = sum e over(k)
    t: f32[m/grid] = accumulate r
    j: f32[m/grid, k] = accumulate e concat
    z: f32[m/grid, k] = div j, t
    store y: f32[m/grid, k] = z
  }
  return y
}
""")
    )
    whole = next(s for s in of_kind(program, Load) if s.result == "xt_all")
    assert not any(d.loop for d in whole.tile.axes)


# -- Positions of several dims ---------------------------------------------------------

PICKED = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m, n] where m = 4, k = 100, n = 99, w = 8 {
  rows = index n
  columns = index w
  y = block grid(n / 32, m / 1) {
    r = load rows[n/grid]
    c = load columns[w]
    t = load x[m/grid, k]
    a = add r, c
    at = sub a, 4
    CONDITION
    place = where inside, at, 0
    p = gather t, place dim(k)
    v = where READ, p, 0
    l = sum v over(w)
    store y: f32[m/grid, n/grid] = l
  }
  return y
}
"""
AHEAD, ON = "ahead = less_equal 0, at", "on = less at, 1*k"
BOTH = f"{AHEAD}\n    {ON}\n    inside = mul ahead, on"
SWAPPED = f"{BOTH}\n    other = mul on, ahead"


def along_of(condition: str, read: str = "inside") -> tuple[TileProgram, Along]:
    """How the positions of windows are read, under a condition."""
    text = PICKED.replace("CONDITION", condition).replace("READ", read)
    (program,) = programs(parse(text))
    along = next(s.along for s in of_kind(program, Load) if s.along is not None)
    return program, along


def test_positions_that_a_condition_keeps_inside_are_not_compared() -> None:
    program, along = along_of(BOTH)
    assert (along.index, along.known, along.under) == ("at", "apart", "inside")
    assert "place" not in {n for s, _ in walk(program.body) for n in makes(s)}


def test_a_condition_of_the_same_comparisons_serves() -> None:
    _, along = along_of(SWAPPED, "other")
    assert (along.index, along.known, along.under) == ("at", "apart", "other")


@pytest.mark.parametrize(
    "condition",
    [
        AHEAD.replace("ahead", "inside"),
        ON.replace("on", "inside"),
        BOTH.replace("less_equal 0", "less_equal -1"),
        BOTH.replace("1*k", "101"),
    ],
)
def test_positions_that_may_be_outside_are_compared(condition: str) -> None:
    _, along = along_of(condition)
    assert along.known == "no"


def test_lanes_that_are_read_otherwise_count() -> None:
    """Where the condition does not decide what is read, it says nothing."""
    _, along = along_of(f"{BOTH}\n    never = less 5, at", "never")
    assert along.known == "no"


def test_positions_of_windows_are_counted_in_32_bits() -> None:
    program, along = along_of(BOTH)
    made = {n: s for s, _ in walk(program.body) for n in makes(s)}
    for name in (along.index, "r", "c"):
        statement = made[name]
        assert isinstance(statement, Compute | Positions)
        assert statement.tile.dtype == i32


SHARED = """mirage 1
mugraph shared(q: f16[n, d], k: TYPE[m, d], v: f16[m, d], r: TYPE[m]) -> f32[n, d]
where n = 64, m = 128, d = 16 {
  y = block grid(n / 32) loop(m / 32) {
    q_t = load q[n/grid, d]
    k_t = load k[m/loop, d]
    k16 = cast k_t dtype(f16)
    s = matmul q_t, k16 over(d)
    r_t = load r[m/loop]
    x = mul s, ROW
    p = exp x
    p16 = cast p dtype(f16)
    v_t = load v[m/loop, d]
    o = matmul p16, v_t over(m)
    z = accumulate o
    store y: f32[n/grid, d] = z
  }
  return y
}
"""


def test_loads_of_an_iteration_come_first() -> None:
    (program,) = programs(parse(SHARED.replace("TYPE", "f16").replace("ROW", "r_t")))
    (loop,) = (s for s in program.body if isinstance(s, Loop))
    loads = [s.result for s in loop.body if isinstance(s, Load)]
    assert loads == ["k_t", "r_t", "v_t"]
    assert all(isinstance(s, Load) for s in loop.body[: len(loads)])


@pytest.mark.parametrize(
    ("dtype", "row", "inner"),
    [("f16", "r_t", "mul"), ("f32", "r_t", None), ("f16", "s", None)],
)
def test_an_exponential_takes_a_factor_that_cannot_be_large(
    dtype: str, row: str, inner: str | None
) -> None:
    """A row of f32 times log2(e) may overflow where its product with scores is 1."""
    (program,) = programs(parse(SHARED.replace("TYPE", dtype).replace("ROW", row)))
    (made,) = (
        s
        for s, _ in walk(program.body)
        if isinstance(s, Compute) and s.op.name == "exp"
    )
    assert (made.inner and made.inner.name) == inner
    assert made.operands[1:] == ("r_t/f32",) * bool(inner)
