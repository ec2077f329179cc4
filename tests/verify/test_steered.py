"""Draws that are brought beside what a program decides by, of several inputs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.verify.steered import Steering, integer_part

Function = Callable[..., Any]
SEEDS = range(20)

I64, I32 = mirage.spec((64,), "int64"), mirage.spec((64,), "int32")
F32 = mirage.spec((64,), "float32")
BYTES = mirage.spec((8, 64), "int8")
TABLE = mirage.spec((300, 8), "float16")
PAGED = [
    mirage.spec((12, 16, 8), "float16"),
    mirage.spec((6,), "int64"),
    mirage.spec((9,), "int64"),
]
GENERATOR, ADDEND = 1103515245, 12345


def near(q: Any, k: Any, table: Any) -> Any:
    """Distances in three kinds of steps."""
    n = (k[None] - q[:, None]).abs()
    far = torch.where(n < 32, 8 + (n - 8) // 4, 14 + (n - 32) // 64)
    return table[torch.where(n < 8, n, far.clamp(max=15))]


# A function, its arguments, and pairs of what a wrong one has in the place of what.
CASES: dict[str, tuple[Function, list[Any], list[tuple[str, str]]]] = {
    "a random number": (
        lambda a: (a * GENERATOR + ADDEND) >> 16,
        [I64],
        [(", 12345", ", 12344"), (", 12345", ", 12346"), (", 16", ", 17")],
    ),
    "bits of a random number": (
        lambda a: ((a * GENERATOR + ADDEND) >> 16) & 3,
        [I32],
        [(", 12345", ", 12344"), (", 12345", ", 12346")],
    ),
    "a random row": (
        lambda t, a: t[((a * GENERATOR + ADDEND) >> 16) % 300],
        [TABLE, I64],
        [(", 12345", ", 12344"), (", 12345", ", 12346")],
    ),
    "years of days": (
        lambda a: (a * 400 + 100) // 146097,
        [I64],
        [(", 100\n", ", 101\n"), (", 100\n", ", 99\n"), ("146097", "146098")],
    ),
    "a share of a hash": (
        lambda a: (a * 31 + 7) % 1000003 < 5000,
        [I64],
        [
            (", 7\n", ", 8\n"),
            (", 5000", ", 5001"),
            (", 5000", ", 4999"),
            ("less remainder1", "less_equal remainder1"),
        ],
    ),
    "a square": (
        lambda a: a * a < 1000000,
        [I64],
        [(", 1000000", ", 1000001"), ("less mul1", "less_equal mul1")],
    ),
    "other bits": (
        lambda a: (a ^ 5555) == 12345,
        [I64],
        [(", 12345", ", 12344"), (", 5555", ", 5556"), ("bit_xor", "bit_or")],
    ),
    "other bits, further down": (
        lambda a: (a ^ 8450) >> 1 < 5254,
        [I32],
        [(", 5254", ", 5255"), ("less shift", "less_equal shift")],
    ),
    "a multiple of other bits": (
        lambda a: torch.where((a ^ 8685) * 3 + 1522 < 1820, a, 0),
        [I32],
        [(", 1522", ", 1523"), (", 1820", ", 1819")],
    ),
    "one beside another": (
        lambda a, b: a * 3 + 1000 < b * 2,
        [I64, I64],
        [(", 1000", ", 999"), (", 1000", ", 1001"), ("less add1", "less_equal add1")],
    ),
    "both sides of one": (
        lambda a: a * 3 < a + 5001,
        [I64],
        [(", 5001", ", 5000"), (", 5001", ", 5003")],
    ),
    "minutes and seconds": (
        lambda a, b: a % 100 * 60 + b % 60 < 3000,
        [I64, I64],
        [
            ("remainder b, 60", "remainder b, 61"),
            (", 3000", ", 2999"),
            (", 3000", ", 3001"),
        ],
    ),
    "a product of rows": (
        lambda a, b: ((a.int() * b.int()).sum(-1) + 128) >> 8,
        [BYTES, BYTES],
        [(", 128", ", 129"), (", 128", ", 127")],
    ),
    "a negative factor": (
        lambda a: (a * -7 + 3) // 1000,
        [I64],
        [(", 3\n", ", 4\n"), (", 3\n", ", 2\n"), (", 1000", ", 1001")],
    ),
    "a product that is rounded": (
        lambda a: ((a.long() * 1518500249 + (1 << 30)) >> 31).int(),
        [I32],
        [("1073741824", "1073741825"), ("1073741824", "1073741823")],
    ),
    "a random number of a float": (
        lambda x: ((x * 100).long() * GENERATOR + ADDEND) >> 16,
        [F32],
        [(", 12345", ", 12344"), (", 12345", ", 12346"), (", 16", ", 17")],
    ),
    "a square of a float": (
        lambda x: (x * 100).long() ** 2 < 10000,
        [F32],
        [(", 10000", ", 10001"), ("less square", "less_equal square")],
    ),
    "a float that becomes two integers": (
        lambda x: (x * 9).long() % 1000 * ((x * 9).int() // 1000) < 50000,
        [F32],
        [(", 50000", ", 49999"), (", 50000", ", 50001")],
    ),
    "a float of 8 bits": (
        lambda x: (x * 127).round().to(torch.int8).int() * 3 + 7 < 200,
        [F32],
        [(", 7\n", ", 8\n"), (", 200", ", 199")],
    ),
    "a hash of a float": (
        lambda x: ((x * 9).int() * 73856093 ^ (x * 9).int() >> 5) % 1024 < 500,
        [F32],
        [(", 500", ", 501"), (", 5\n", ", 6\n")],
    ),
    "an integer of an integer": (
        lambda a: ((a.float() * 0.3).int() * GENERATOR + ADDEND) >> 16,
        [I32],
        [(", 12345", ", 12344"), (", 12345", ", 12346")],
    ),
    "an integer of an integer of a float": (
        lambda x: (((x * 7).int() * 0.3).long() * GENERATOR + ADDEND) >> 16,
        [F32],
        [(", 12345", ", 12344"), (", 12345", ", 12346")],
    ),
    "a remainder times a quotient": (
        lambda a: a % 1000 * (a // 1000) < 50000,
        [I64],
        [(", 50000", ", 49999"), (", 50000", ", 50001")],
    ),
    "a cube that wraps around": (
        lambda a: (a * a * a + 4) // 1000,
        [I64],
        [(", 4\n", ", 5\n"), (", 1000", ", 1001")],
    ),
    "places in blocks, further on": (
        lambda cache, blocks, at: cache[blocks[(at + 3) // 16], (at + 3) % 16],
        PAGED,
        [(", 16\n", ", 17\n"), ("at, 3\n", "at, 4\n")],
    ),
    "rows of blocks": (
        lambda cache, blocks, at: cache.flatten(0, 1)[blocks[at // 16] * 16 + at % 16],
        PAGED,
        [("floor_divide at, 16\n", "floor_divide at, 15\n"), (", 16\n", ", 17\n")],
    ),
    "distances in steps": (
        near,
        [
            mirage.spec((16,), "int64"),
            mirage.spec((24,), "int64"),
            mirage.spec((16, 4), "float16"),
        ],
        [("sub abs1, 32", "sub abs1, 31"), ("sub abs1, 32", "sub abs1, 33")],
    ),
}


def program_of(name: str) -> KernelGraph:
    function, arguments, _ = CASES[name]
    return mirage.kernel(function).bind(*arguments).program


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_others_are_refused(name: str) -> None:
    program = program_of(name)
    text = to_text(program)
    for here, other in CASES[name][2]:
        assert here in text, text
        wrong = text.replace(here, other)
        accepted = [
            seed
            for seed in SEEDS
            if mirage.verify(wrong, program, seed=seed, stability=False).equivalent
        ]
        assert not accepted, (here, other)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_each_is_itself(name: str) -> None:
    program = program_of(name)
    for seed in SEEDS:
        assert mirage.verify(program, program, seed=seed, stability=False).equivalent


# Two functions that are the same, and their arguments.
EQUAL: dict[str, tuple[Function, Function, list[Any]]] = {
    "a square": (lambda a: a * a < 1000000, lambda a: a * a <= 999999, [I64]),
    "bits by a remainder": (
        lambda a: ((a * GENERATOR + ADDEND) >> 16) & 3,
        lambda a: ((a * GENERATOR + ADDEND) >> 16) % 4,
        [I64],
    ),
    "an index that has bounds": (
        lambda t, x: t[(x.sigmoid() * 29).long().clamp(min=0)],
        lambda t, x: t[(x.sigmoid() * 29).long()],
        [mirage.spec((30, 8), "float16"), mirage.spec((16,), "float32")],
    ),
    "a multiple": (
        lambda a: a * 7 < 1001,
        lambda a: a * 7 <= 1000,
        [I32],
    ),
    "a shift by a quotient": (
        lambda a, b: (a - b) >> 4,
        lambda a, b: (a - b) // 16,
        [I64, I64],
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", EQUAL)
def test_the_same_is_the_same(name: str) -> None:
    one, other, arguments = EQUAL[name]
    program, candidate = (
        mirage.kernel(f).bind(*arguments).program for f in (one, other)
    )
    for seed in SEEDS:
        assert mirage.verify(candidate, program, seed=seed, stability=False).equivalent


def test_both_sides_of_a_turn_are_drawn() -> None:
    part = integer_part(program_of("a square"))
    assert part is not None
    rng = np.random.default_rng(0)
    drawn = rng.integers(-9, 4000, (64, 64))
    (found,) = Steering(part, [drawn], rng).run()
    assert {999, 1000} <= set(np.abs(found).ravel().tolist())


def test_what_jumps_over_a_turn_is_brought_there() -> None:
    program = program_of("a random number")
    part = integer_part(program)
    assert part is not None
    rng = np.random.default_rng(0)
    drawn = rng.integers(-9, 4000, (64, 64))
    (found,) = Steering(part, [drawn], rng).run()
    rests = (found * GENERATOR + ADDEND) % (1 << 16)
    assert (rests == 0).any()
    assert (rests == (1 << 16) - 1).any()


def test_positions_alone_and_floats_are_not_moved() -> None:
    floats = mirage.kernel(lambda x: torch.where(x > 1, x, 0)).bind(mirage.spec((64,)))
    assert integer_part(floats.program) is None
    placed = mirage.kernel(lambda x: x * (torch.arange(64) % 3)).bind(I64)
    assert integer_part(placed.program) is None
