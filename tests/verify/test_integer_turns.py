"""Numbers that integers are compared with: others in their place are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.analysis.integers import turns_of
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.driver import search

HEAD = "mirage 1\n\nmugraph f({} {{\n"
CHOSEN = " y = where b, x, 0\n return y\n"
WHOLE = "x: {dtype}[m, k]) -> {dtype}[m, k] where m = 16, k = 32"
PICKED = "w: f16[v, k], ids: i64[n]) -> f16[n, k] where v = 1000, k = 24, n = 6"
FLOAT = "x: f32[m, k]) -> i32[m, k] where m = 16, k = 32"
TWO = "x: i32[m, k], z: i32[m]) -> i32[m, k] where m = 16, k = 32"
LENGTHS = "x: f16[m, k], n: i64[m]) -> f16[m, k] where m = 8, k = 128"
LABELLED = "x: f32[m, k], t: i64[m]) -> f32[m] where m = 6, k = {}"
UNLABELLED = (
    " b = equal t, {}\n i = where b, 0, t\n n = less i, 0\n j = where n, 1*k, i\n"
    " g = gather x, j dim(k)\n y = where b, 0, g\n return y\n"
)
OF_OTHERS = (
    " i = sub ids, 1000\n a = less_equal 1000, ids\n c = less ids, {}\n b = mul a, c\n"
    " j = where b, i, 0\n g = gather w, j dim(v)\n y = where b, g, 0\n return y\n"
)
GATHERED = " g = gather w, ids dim(v)\n y = where b, 0, g\n return y\n"

# Header, lines with {} for a number, the number, one that is another function.
CASES: dict[str, tuple[str, str, int, int]] = {
    "less i8": (WHOLE.format(dtype="i8"), f" b = less x, {{}}\n{CHOSEN}", 100, 101),
    "equal i16": (WHOLE.format(dtype="i16"), f" b = equal x, {{}}\n{CHOSEN}", 5, 6),
    "less i32": (WHOLE.format(dtype="i32"), f" b = less x, {{}}\n{CHOSEN}", 99, 98),
    "equal i32": (
        WHOLE.format(dtype="i32"),
        f" b = equal x, {{}}\n{CHOSEN}",
        -100,
        -99,
    ),
    "minimum": (
        WHOLE.format(dtype="i64"),
        " y = minimum x, {}\n return y\n",
        1 << 40,
        (1 << 40) + 1,
    ),
    "of a sum": (
        WHOLE.format(dtype="i32"),
        f" s = add x, 7\n b = less s, {{}}\n{CHOSEN}",
        900,
        901,
    ),
    "of a remainder": (
        WHOLE.format(dtype="i32"),
        f" s = remainder x, 1000\n b = less s, {{}}\n{CHOSEN}",
        900,
        901,
    ),
    "an index": (PICKED, f" b = equal ids, {{}}\n{GATHERED}", 50, 51),
    "the last index": (
        PICKED,
        " i = minimum ids, {}\n y = gather w, i dim(v)\n return y\n",
        999,
        998,
    ),
    "an index under a root": (
        PICKED,
        " i = minimum ids, {}\n g = gather w, i dim(v)\n s = square g\n"
        " t = sum s over(k)\n r = rsqrt t\n y = mul g, r\n return y\n",
        999,
        998,
    ),
    "no index": (LABELLED.format(1000), UNLABELLED, -100, -99),
    "no index of a few": (LABELLED.format(32), UNLABELLED, -100, -101),
    "no index of many": (LABELLED.format(128256), UNLABELLED, -100, -101),
    "beyond what is here": (PICKED, OF_OTHERS, 2000, 2001),
    "the last that is here": (PICKED, OF_OTHERS, 2000, 1999),
    "of floats": (
        FLOAT,
        " i = to_i32 x\n y = minimum i, {}\n return y\n",
        100,
        101,
    ),
    "of two": (TWO, f" s = add z, {{}}\n b = less x, s\n{CHOSEN}", 64, 65),
    "a position": (
        LENGTHS,
        f" i = index k\n l = sub n, {{}}\n b = less i, l\n{CHOSEN}",
        64,
        65,
    ),
}


def graph(name: str, number: int) -> KernelGraph:
    header, lines, *_ = CASES[name]
    return mirage.parse(HEAD.format(header) + lines.format(number) + "}\n")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_another_number_is_another_function(name: str, seed: int) -> None:
    *_, number, other = CASES[name]
    program = graph(name, number)
    assert mirage.verify(program, program, seed=seed).equivalent
    assert not mirage.verify(graph(name, other), program, seed=seed).equivalent


def test_a_number_that_the_program_does_not_have() -> None:
    program = mirage.parse(
        HEAD.format(WHOLE.format(dtype="i32")) + " y = mul x, 1\n return y\n}\n"
    )
    candidate = graph("equal i32", 777)
    chosen = str(candidate).replace("where b, x, 0", "where b, 0, x")
    assert not mirage.verify(chosen, program).equivalent


def test_another_way_to_say_the_same() -> None:
    header = HEAD.format(WHOLE.format(dtype="i32"))
    less = f"{header} b = less x, 1000\n{CHOSEN}}}\n"
    most = f"{header} b = less_equal x, 999\n{CHOSEN}}}\n"
    assert mirage.verify(less, most).ok


def test_turns_lie_in_the_format_and_inside_of_what_is_indexed() -> None:
    small = graph("less i8", 127)
    assert turns_of(small, small).inputs == ((range(126, 128),),)
    picked = graph("an index", 999)
    assert turns_of(picked, picked).inputs == ((), (range(998, 1000),))
    beyond = graph("no index of a few", -100)
    assert turns_of(beyond, beyond).inputs[1] == (range(-100, -99), range(2))
    made = graph("of floats", 100)
    assert turns_of(made, graph("of floats", 7)).made == (range(6, 9), range(99, 102))


def embedded(ids: Any, w: Any, g: Any) -> Any:
    """Two norms of rows, most of which are the last that may be picked."""
    x = torch.nn.functional.rms_norm(w[ids.clamp(max=99)], g.shape, g)
    return torch.nn.functional.rms_norm(x, g.shape, g)


def masked(ids: Any, w: Any, g: Any) -> Any:
    x = torch.where((ids < 100)[:, None], w[ids], 0)
    return torch.nn.functional.rms_norm(x, g.shape, g, 1e-6)


@pytest.mark.parametrize("rows", [1000, 128256])
@pytest.mark.parametrize(
    ("function", "number", "other"),
    [(embedded, ", 99\n", ", 98\n"), (masked, ", 100\n", ", 101\n")],
)
def test_indices_of_long_tables_under_roots(
    function: Any, number: str, other: str, rows: int
) -> None:
    """Of a long table only rows are left that are picked."""
    program = mirage.kernel(function).trace(
        mirage.spec((256,), "int64"),
        mirage.spec((rows, 512), "float16"),
        mirage.spec((512,), "float16"),
    )
    text = to_text(program)
    assert text.count(number) == 1
    for seed in range(4):
        assert mirage.verify(program, program, seed=seed).ok
        wrong = mirage.verify(text.replace(number, other), program, seed=seed)
        assert not wrong.ok


def between(w: Any, ids: Any) -> Any:
    return torch.nn.functional.rms_norm(w[ids.clamp(3, 900)], w.shape[1:])


def hashed(w: Any, ids: Any) -> Any:
    return w[(ids * 31 + 7) % 1000]


def other_words(w: Any, ids: Any) -> Any:
    return w[torch.where(ids >= 2000, ids - 2000, ids)]


def distances(w: Any, ids: Any) -> Any:
    return w[(ids[:, None] - ids).clamp(-128, 128) + 128]


def distances_of_positions(w: Any, ids: Any) -> Any:
    at = torch.arange(len(ids))
    return w[(at[:, None] - at).clamp(-128, 128) + 128] * ids[:, None, None]


@pytest.mark.parametrize(
    ("function", "number", "other"),
    [
        (between, ", 3\n", ", 4\n"),
        (between, ", 900\n", ", 899\n"),
        (hashed, ", 7\n", ", 8\n"),
        (hashed, ", 31\n", ", 32\n"),
        (other_words, "ids, 2000\n", "ids, 2001\n"),
        (distances, "add minimum1, 128\n", "add minimum1, 127\n"),
        (distances_of_positions, "add minimum1, 128\n", "add minimum1, 127\n"),
    ],
)
def test_indices_that_need_long_tables_or_certain_numbers(
    function: Any, number: str, other: str
) -> None:
    """At sizes at which no index would be inside nothing could be decided."""
    program = mirage.kernel(function).trace(
        mirage.spec((1000, 16), "float16"), mirage.spec((300,), "int64")
    )
    text = to_text(program)
    assert text.count(number) == 1, text
    for seed in range(4):
        assert mirage.verify(text, program, seed=seed).ok
        assert not mirage.verify(text.replace(number, other), program, seed=seed).ok


def part(ids: Any, w: Any) -> Any:
    """The second part of a vocabulary."""
    local = ids - 32064
    inside = (local >= 0) & (ids < 64128)
    x = w[torch.where(inside, local, 0)]
    return torch.where(inside[:, None], x, 0)


def hashed(ids: Any, w: Any) -> Any:
    return torch.nn.functional.normalize(w[(ids * 31 + 7) % 128256], dim=-1)


@pytest.mark.parametrize(
    ("function", "rows", "number", "others"),
    [
        (part, 32064, " 64128\n", (" 64127\n", " 64129\n")),
        (hashed, 128256, ", 7\n", (", 8\n",)),
    ],
)
def test_rows_that_are_left_out_of_long_tables(
    function: Any, rows: int, number: str, others: tuple[str, ...]
) -> None:
    """What is made of them counts in draws whose indices are left."""
    shapes = mirage.spec((64,), "int64"), mirage.spec((rows, 512), "bfloat16")
    program = mirage.kernel(function).trace(*shapes)
    text = to_text(program)
    assert text.count(number) == 1
    for seed in range(3):
        certificate = mirage.verify(program, program, seed=seed)
        assert certificate.ok
        assert certificate.sampled is not None
        assert certificate.sampled.elements
        for other in others:
            wrong = mirage.verify(text.replace(number, other), program, seed=seed)
            assert not wrong.ok


def test_indices_at_sizes_that_no_draw_compares() -> None:
    """Of a symbolic table small sizes do not have the rows at which an index turns."""
    text = (
        "mirage 1\n\nmugraph f(w: f16[v, k], ids: i64[n]) -> f16[n, k]"
        " where v = ?, n = ?, k = 24 {\n"
        " i = minimum ids, 9999\n y = gather w, i dim(v)\n return y\n}\n"
    )
    assert mirage.verify(text, text).ok
    wrong = mirage.verify(text.replace("9999", "9998"), text)
    assert not wrong.ok
    assert "other numbers" in wrong.reason


FOUND: dict[str, tuple[Any, str, str]] = {
    "argmax": (lambda x: (x.argmax(-1) == 5).float(), ", 5\n", ", 6\n"),
    "a clamp": (lambda x: x.argmin(-1).clamp(max=7), ", 7\n", ", 8\n"),
    "topk": (lambda x: (torch.topk(x, 4)[1] < 40).float(), ", 40\n", ", 41\n"),
}


@pytest.mark.parametrize("name", FOUND)
def test_positions_that_data_choose_keep_their_numbers(name: str) -> None:
    """Hardly any draw has the largest element at a place; another is undecided then."""
    function, number, other = FOUND[name]
    program = mirage.kernel(function).trace(mirage.spec((8, 1000), "float32"))
    text = to_text(program)
    assert text.count(number) == 1
    wrong = mirage.verify(text.replace(number, other), program)
    assert not wrong.ok
    seen = wrong.sampled is not None and wrong.sampled.difference is not None
    assert seen or "positions that data choose" in wrong.reason
    found = search(program, H100, k=1)
    assert found.best.certificate is not None
    assert found.best.certificate.ok
    assert found.best.mugraph.blocks


# A program in which data choose a position, and what others have in the place of what.
CHOSEN_BY_DATA: dict[str, tuple[Any, list[Any], list[tuple[str, str]]]] = {
    "a sum of them": (
        lambda x: (x.argmax(-1) + 5) // 16,
        [mirage.spec((8, 64))],
        [(", 5\n", ", 6\n"), (", 16\n", ", 17\n"), (", 5\n", ", 4\n")],
    ),
    "below a number": (
        lambda x: x.argmin(-1) < 32,
        [mirage.spec((8, 64))],
        [("less min2, 32", "less_equal min2, 32"), (", 32\n", ", 31\n")],
    ),
    "of integers": (
        lambda a: a.argmin(-1) < 32,
        [mirage.spec((8, 64), "int64")],
        [("less min2, 32", "less_equal min2, 32"), ("min a over", "max a over")],
    ),
    "below what is given": (
        lambda x, a: x.argmax(-1) < a - 3,
        [mirage.spec((8, 64)), mirage.spec((8,), "int64")],
        [("sub a, 3", "sub a, 2"), ("less min1, sub1", "less_equal min1, sub1")],
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CHOSEN_BY_DATA)
def test_positions_that_data_choose_are_told(name: str) -> None:
    function, arguments, others = CHOSEN_BY_DATA[name]
    program = mirage.kernel(function).bind(*arguments).program
    text = to_text(program)
    for seed in range(20):
        assert mirage.verify(program, program, seed=seed, stability=False).equivalent
        for here, other in others:
            assert here in text, text
            wrong = text.replace(here, other)
            found = mirage.verify(wrong, program, seed=seed, stability=False)
            assert not found.equivalent, (seed, here, other)
