"""Elements at positions of another dim: diagonals, and what else is picked by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.verify.verifier import verify

Function = Callable[..., Any]
SEEDS = range(20)
RANGES = (17, 38, 55, 117)
"""Seeds of which small sizes would end ahead of a range of positions."""


def _windows(x: Any) -> Any:
    """The largest elements of windows of four, of which some are outside."""
    at = torch.arange(32)[:, None] * 2 + torch.arange(4) - 1
    inside = (at >= 0) & (at < x.shape[-1])
    rows = torch.where(inside, at, torch.zeros_like(at))
    return torch.where(inside, x[:, rows], -torch.inf).amax(-1)


FLOATS = [((64, 64), "float32")]
LABELLED = [((32, 64), "float32"), ((32,), "int64")]
PROGRAMS: dict[str, tuple[Function, list[tuple[tuple[int, ...], str]]]] = {
    "einsum": (lambda x: torch.einsum("ii->i", x), FLOATS),
    "einsum of several": (
        lambda x: torch.einsum("bii->b", x),
        [((8, 64, 64), "float32")],
    ),
    "diagonal": (lambda x: torch.diagonal(x), FLOATS),
    "above the main one": (lambda x: x.diagonal(20), [((64, 96), "float32")]),
    "below the main one": (lambda x: x.diagonal(-30), [((64, 96), "float32")]),
    "of a product": (lambda x: (x @ x).relu().diagonal(1), FLOATS),
    "trace": (lambda x: torch.trace(x), FLOATS),
    "multi_margin_loss": (F.multi_margin_loss, LABELLED),
    "fewer positions": (lambda x: x[:, torch.arange(40)], FLOATS),
    "positions below 0": (lambda x: x[:, torch.arange(40) - 2], FLOATS),
    "every position twice": (lambda x: x[torch.arange(64) // 2], FLOATS),
    "windows": (_windows, FLOATS),
    "a table for each column": (
        lambda x, at: x[at + torch.arange(26) * 100].sum(1),
        [((2600, 16), "float32"), ((64, 26), "int64")],
    ),
}
ROWS = [((96, 200), "float32")]


def _blocks_on_the_diagonal(x: Any) -> Any:
    rows, columns = torch.arange(96)[:, None] // 64, torch.arange(200) // 64
    return torch.where(rows == columns, x, 0.0)


def _every_16th_column(x: Any) -> Any:
    return torch.where(torch.arange(200) % 16 == 3, x, 0.0)


def _up_to_a_quarter(x: Any) -> Any:
    return torch.where(torch.arange(200) * 4 < 301, x, 0.0)


def _some_columns(x: Any, y: Any) -> Any:
    x = x.clone()
    x[:, 3:6] = torch.tanh(y)
    return x


def _near_the_diagonal(q: Any, k: Any) -> Any:
    rows, columns = torch.arange(96)[:, None], torch.arange(96)
    far = (columns > rows) | (columns < rows - 9)
    return torch.softmax((q @ k.T).masked_fill(far, -torch.inf), -1)


MASKS: dict[str, tuple[Function, list[tuple[tuple[int, ...], str]]]] = {
    "blocks": (_blocks_on_the_diagonal, ROWS),
    "every 16th": (_every_16th_column, ROWS),
    "up to a quarter": (_up_to_a_quarter, ROWS),
    "some columns": (_some_columns, [((17, 21), "float32"), ((17, 3), "float32")]),
    "near": (_near_the_diagonal, [((96, 16), "float32"), ((96, 16), "float32")]),
}


def _traced(name: str) -> KernelGraph:
    function, specs = (PROGRAMS | MASKS)[name]
    return mirage.kernel(function).trace(*(mirage.spec(*spec) for spec in specs))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_position_is_inside_at_small_sizes(name: str) -> None:
    program = _traced(name)
    for seed in SEEDS:
        found = verify(program, program, seed=seed)
        assert found.ok, (seed, str(found))


MUTANTS = {
    "einsum": ("gather x, index1", "gather x, a", "a = add index1, 1"),
    "einsum of several": ("gather x, index1", "gather x, a", "a = sub index1, 1"),
    "diagonal": ("gather x, index1", "gather x, a", "a = mul index1, 2"),
    "above the main one": ("start(20) stop(84)", "start(21) stop(85)", ""),
    "below the main one": ("start(30) stop(64)", "start(29) stop(63)", ""),
    "trace": ("gather x, index1", "gather x, a", "a = sub index1, 1"),
    "multi_margin_loss": ("where1 dim(k)", "a dim(k)", "a = sub where1, 1"),
    "fewer positions": ("gather x, index1", "gather x, a", "a = add index1, 1"),
    "positions below 0": ("sub index1, 2", "sub index1, 1", ""),
    "every position twice": ("floor_divide index1, 2", "floor_divide index1, 3", ""),
    "windows": ("sub add1, 1", "sub add1, 2", ""),
    "windows, apart": ("mul index1, 2", "mul index1, 3", ""),
    "windows, counted from 1": ("less_equal 0", "less 0", ""),
    "windows, up to the end": ("less sub1", "less_equal sub1", ""),
    "a table for each column": ("mul index1, 100", "mul index1, 99", ""),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_shifted_position_is_refused(name: str) -> None:
    before, after, node = MUTANTS[name]
    program = _traced(name.partition(",")[0])
    lines = str(program).splitlines()
    at = next(i for i, line in enumerate(lines) if before in line)
    lines[at] = lines[at].replace(before, after)
    if node:
        lines.insert(at, node)
    mutant = parse("\n".join(lines))
    for seed in SEEDS:
        assert not verify(mutant, program, seed=seed).equivalent, seed


OF_MASKS = {
    "blocks": ("floor_divide index2, 64", "floor_divide index2, 65", SEEDS),
    "blocks, half as long": (
        "floor_divide index1, 64",
        "floor_divide index1, 32",
        SEEDS,
    ),
    "every 16th, the next": ("equal remainder1, 3", "equal remainder1, 4", SEEDS),
    "every 16th, or 17th": ("remainder index1, 16", "remainder index1, 17", SEEDS),
    "up to a quarter, one more": ("less mul1, 301", "less mul1, 305", SEEDS),
    "up to a quarter, or a fifth": ("mul index1, 4", "mul index1, 5", SEEDS),
    "some columns, one late": ("less_equal 3, ", "less_equal 4, ", RANGES),
    "some columns, moved": ("sub at_k, 3", "sub at_k, 4", RANGES),
    "some columns, otherwise": ("tanh y", "log y", RANGES),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", OF_MASKS)
def test_a_mask_that_turns_elsewhere_is_refused(name: str) -> None:
    """Small sizes have no place for factors of 64, or end ahead of a range."""
    before, after, seeds = OF_MASKS[name]
    program = _traced(name.partition(",")[0])
    assert before in str(program)
    mutant = parse(str(program).replace(before, after))
    for seed in seeds:
        assert not verify(mutant, program, seed=seed).equivalent, seed


def test_rows_that_a_mask_leaves_empty_say_nothing_of_stability() -> None:
    """At some small sizes rows far behind the last column have no element near."""
    program = _traced("near")
    for seed in SEEDS:
        found = verify(program, program, seed=seed)
        assert found.ok, (seed, str(found))


WINDOWS = """mirage 1
mugraph f(x: f32[m, k]) -> f32[m, n] where m = 64, k = 64, n = 31, w = 4 {
  rows = index n
  columns = index w
  BODY
  return y
}
"""
AS_WRITTEN = """
  twice = mul rows, 2
  at = add twice, columns
  before = sub at, 1
  first = less_equal 0, before
  last = less before, 1*k
  inside = mul first, last
  place = where inside, before, 0
  p = gather x, place dim(k)
  v = where inside, p, -inf
  y = max v over(w)
"""
IN_A_BLOCK = """
  y = block grid(m / 16) loop(n / 8) {
    i = load rows[n/loop]
    j = load columns[w]
    t = load x[m/grid, k]
    twice = mul i, 2
    before = sub twice, 1
    at = add before, j
    first = less_equal FIRST, at
    last = less at, 1*k
    inside = mul first, last
    place = where inside, at, 0
    p = gather t, place dim(k)
    v = where inside, p, FILL
    l = max v over(w)
    a = accumulate l concat
    store y: f32[m/grid, n] = a
  }
"""


def test_an_element_that_a_window_counts_from_the_end_is_a_difference() -> None:
    """Where it is as wide as the row, it has that one anyway."""
    program = parse(WINDOWS.replace("BODY", AS_WRITTEN))
    negative = AS_WRITTEN.replace("mul first, last", "less_equal first, last")
    candidate = parse(WINDOWS.replace("BODY", negative))
    for seed in SEEDS:
        assert not verify(candidate, program, seed=seed).equivalent, seed


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("first", "fill", "right"),
    [("0", "-inf", True), ("1", "-inf", False), ("0", "0", False)],
)
def test_dims_of_positions_alone_are_as_long_on_both_sides(
    first: str, fill: str, right: bool
) -> None:
    """That of a window is a dim of no tensor."""
    program = parse(WINDOWS.replace("BODY", AS_WRITTEN))
    block = IN_A_BLOCK.replace("FIRST", first).replace("FILL", fill)
    candidate = parse(WINDOWS.replace("BODY", block))
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.ok == right, (seed, str(found))


LONGER = WINDOWS.replace("n = 31", "n = 32")


def test_what_nothing_chooses_is_picked_by_blocks_alone() -> None:
    """PyTorch refuses positions outside, whatever becomes of the elements."""
    program = parse(LONGER.replace("BODY", AS_WRITTEN))
    anywhere = AS_WRITTEN.replace("gather x, place", "gather x, before")
    library = parse(LONGER.replace("BODY", anywhere))
    inside = IN_A_BLOCK.replace("FIRST", "0").replace("FILL", "-inf")
    block = parse(
        LONGER.replace("BODY", inside.replace("gather t, place", "gather t, at"))
    )
    for seed in SEEDS:
        assert not verify(library, program, seed=seed).equivalent, seed
        assert verify(block, program, seed=seed).ok, seed


def test_positions_that_exist_need_no_condition() -> None:
    """One ahead of the first is the last one, which nothing chooses either."""
    program = parse(WINDOWS.replace("BODY", AS_WRITTEN))
    anywhere = AS_WRITTEN.replace("gather x, place", "gather x, before")
    candidate = parse(WINDOWS.replace("BODY", anywhere))
    for seed in SEEDS:
        assert verify(candidate, program, seed=seed).ok, seed


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("extent", [60, 400, 4000])
@pytest.mark.parametrize(
    ("made", "number"),
    [("mul index1, 64", 32), ("mul index1, index1", None)],
    ids=["multiples", "squares"],
)
def test_one_element_that_a_candidate_alone_leaves_out(
    made: str, number: int | None, extent: int, seed: int
) -> None:
    """No mask of the program turns there, and small sizes may be too short."""

    def function(x: Any) -> Any:
        n = x.shape[0]
        return mirage.where(mirage.arange(n) < n, x, 0.0) * 2

    program = mirage.kernel(function).trace(mirage.spec((extent,), "float32"))
    place = number * extent if number else (extent // 2) ** 2
    lines = str(program).splitlines()
    (at,) = (i for i, line in enumerate(lines) if "= where" in line)
    lines[at] = lines[at].replace("where less1", "where kept")
    lines[at:at] = [
        f"m1 = {made}",
        f"h1 = less m1, {place}",
        f"h2 = less {place}, m1",
        "other = maximum h1, h2",
        "kept = mul less1, other",
    ]
    assert not verify(parse("\n".join(lines)), program, seed=seed).equivalent
