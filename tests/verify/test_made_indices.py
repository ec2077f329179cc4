"""Indices that several inputs make, or floats: what reads elsewhere is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.driver import search

Function = Callable[..., Any]
SEEDS = range(20)

Q, K = mirage.spec((64,), "int64"), mirage.spec((96,), "int64")
TABLE = mirage.spec((160, 32), "float16")


def buckets(q: Any, k: Any, table: Any) -> Any:
    """As of relative positions: near ones apart, those further in steps."""
    n = (k[None, :] - q[:, None]).abs()
    return table[torch.where(n < 8, n, 8 + (n - 8) // 4).clamp(max=15)]


def inverted(x: Any, order: Any) -> Any:
    places = torch.empty_like(order)
    places[order] = torch.arange(order.shape[0])
    return x[places]


def in_batches(cache: Any, new: Any, position: Any) -> Any:
    cache = cache.clone()
    cache[torch.arange(new.shape[0]), position] = new
    return cache


def at_pairs(x: Any, new: Any, row: Any, column: Any) -> Any:
    x = x.clone()
    x[row, column] = new
    return x


# A function, its arguments, and pairs of what a wrong one has in the place of what.
CASES: dict[str, tuple[Function, list[Any], list[tuple[str, str]]]] = {
    "a difference": (
        lambda q, k, t: t[q[:, None] - k[None] + 63],
        [Q, K, TABLE],
        [(", 63\n", ", 62\n"), ("sub q, k", "add q, k")],
    ),
    "how far apart": (
        lambda q, k, t: t[(q[:, None] - k[None]).abs()],
        [Q, K, TABLE],
        [("abs sub1", "mul sub1, 1"), ("abs sub1", "square sub1")],
    ),
    "buckets": (
        buckets,
        [Q, K, TABLE],
        [
            ("minimum where1, 15", "minimum where1, 14"),
            ("floor_divide sub2, 4", "floor_divide sub2, 5"),
            ("less abs1, 8", "less abs1, 6"),
            ("add 8, floor", "add 9, floor"),
        ],
    ),
    "digits": (
        lambda q, r, t: t[q * 16 + r],
        [Q, Q, TABLE],
        [("mul q, 16", "mul q, 15"), ("add mul1, r", "add mul1, q")],
    ),
    "a running sum": (
        lambda q, t: t[q.cumsum(0)],
        [Q, TABLE],
        [("cumsum q along(m)", "mul q, 1"), ("cumsum q along(m)", "mul q, 2")],
    ),
    "floats in steps": (
        lambda x, t: t[(x * 31).long().clamp(0, 31)],
        [mirage.spec((64, 48), "float16"), TABLE],
        [
            ("minimum maximum1, 31", "minimum maximum1, 30"),
            ("maximum to_i641, 0", "maximum to_i641, 1"),
            ("mul x, 31", "mul x, 30"),
        ],
    ),
    "floats between two": (
        lambda x, t: t[(x.sigmoid() * 31).long()],
        [mirage.spec((64, 48), "float16"), TABLE],
        [("mul sigmoid1, 31", "mul sigmoid1, 32"), ("sigmoid x", "tanh x")],
    ),
    "a clamped product": (
        lambda a, b, t: t[(a * b).clamp(max=63)],
        [Q, Q, mirage.spec((64, 32), "float16")],
        [
            ("minimum mul1, 63", "minimum mul1, 62"),
            ("minimum mul1, 63", "minimum mul1, 64"),
            ("minimum mul1, 63", "mul mul1, 1"),
        ],
    ),
    "a step far from 0": (
        lambda a, b, t: t[torch.where(b < 23, b, 23 + (b - 23) // 2) + a],
        [Q, Q, mirage.spec((35, 32), "float16")],
        [
            ("floor_divide sub1, 2", "floor_divide sub1, 1"),
            ("sub b, 23", "sub b, 22"),
            ("floor_divide sub1", "remainder sub1"),
        ],
    ),
    "a remainder of floats": (
        lambda x, t: t[(x * 4).floor().long() % 10],
        [mirage.spec((64,), "float16"), mirage.spec((10, 32), "float16")],
        [(", 10\n", ", 9\n"), (", 10\n", ", 11\n")],
    ),
    "floats that are rounded and clamped": (
        lambda x, t: t[(x * 15).round().clamp(0, 15).long()],
        [mirage.spec((64,), "float16"), mirage.spec((16, 32), "float16")],
        [
            ("minimum maximum1, 15", "minimum maximum1, 14"),
            ("round mul1", "floor mul1"),
        ],
    ),
    "beside a short table": (
        lambda a, b, t: t[torch.minimum(a.clamp(max=6), b)],
        [Q, Q, mirage.spec((7, 32), "float16")],
        [("minimum a, 6", "minimum a, 7"), ("minimum a, 6", "minimum a, 5")],
    ),
    "beside floats": (
        lambda a, b, x, t: t[
            torch.minimum(torch.maximum(a, b), (x * 15).long().clamp(0, 15))
        ],
        [
            Q,
            Q,
            mirage.spec((64,), "float16"),
            mirage.spec((16, 32), "float16"),
        ],
        [("minimum maximum2, 15", "minimum maximum2, 14")],
    ),
    "digits of two": (
        lambda a, b, t: t[a // 16 * 4 + b // 32],
        [Q, Q, mirage.spec((32, 32), "float16")],
        [
            ("floor_divide a, 16", "floor_divide a, 17"),
            ("floor_divide b, 32", "floor_divide b, 33"),
            ("floor_divide b, 32", "floor_divide b, 31"),
        ],
    ),
    "places in blocks": (
        lambda cache, blocks, place: cache[blocks[place // 16], place % 16],
        [
            mirage.spec((12, 16, 8), "float16"),
            mirage.spec((6,), "int64"),
            mirage.spec((9,), "int64"),
        ],
        [
            ("floor_divide place, 16", "floor_divide place, 17"),
            ("floor_divide place, 16", "floor_divide place, 15"),
            ("remainder place, 16", "remainder place, 15"),
        ],
    ),
    "steps of neighbours": (
        lambda a, t: t[(a[1:] - a[:-1]).abs()],
        [Q, TABLE],
        [("sub slice", "add slice"), ("abs sub1", "square sub1")],
    ),
    "interleaved bits": (
        lambda a, b, t: t[(a & 1) | ((b & 1) << 1) | ((a & 2) << 1) | ((b & 2) << 2)],
        [Q, Q, mirage.spec((16, 32), "float16")],
        [
            ("bit_and a, 1", "bit_and a, 3"),
            ("shift_left bit_and4, 2", "shift_left bit_and4, 1"),
        ],
    ),
    "an inverted order": (
        inverted,
        [mirage.spec((256, 64), "float16"), mirage.spec((256,), "int64")],
        [("add index1, 1", "add index1, 0"), ("equal index", "less_equal index")],
    ),
    "a cache in batches": (
        in_batches,
        [
            mirage.spec((8, 128, 64), "float16"),
            mirage.spec((8, 64), "float16"),
            mirage.spec((8,), "int64"),
        ],
        [("equal index", "less index"), ("new, cache", "cache, new")],
    ),
    "at pairs": (
        at_pairs,
        [
            mirage.spec((32, 48, 8), "float16"),
            mirage.spec((12, 8), "float16"),
            mirage.spec((12,), "int64"),
            mirage.spec((12,), "int64"),
        ],
        [("add index", "sub index"), ("mul equal1, equal2", "maximum equal1, equal2")],
    ),
}


def test_differences_of_any_size_are_drawn() -> None:
    """Limits of both are as far apart as numbers go."""
    program = (
        mirage.kernel(lambda q, r, t: t[(q - r).clamp(min=0)]).bind(Q, Q, TABLE).program
    )
    assert all(mirage.verify(program, program, seed=s).equivalent for s in range(4))


@pytest.mark.sample(1)
@pytest.mark.parametrize("width", [2, 12])
def test_the_place_of_the_largest_is_an_index(width: int) -> None:
    """Among drawn residues none may be the largest: such a draw says nothing."""
    arguments = mirage.spec((9, width)), mirage.spec((width, 4))
    program = mirage.kernel(lambda x, t: t[x.argmax(1)]).bind(*arguments).program
    text = to_text(program)
    other = text.replace("max x over(k)", "min x over(k)")
    assert other != text
    for seed in SEEDS:
        assert mirage.verify(program, program, seed=seed).equivalent
        assert not mirage.verify(other, program, seed=seed).equivalent


def test_what_hangs_on_the_largest_at_the_true_extents_alone() -> None:
    """At sizes of up to four it is part 0 that has the largest, whichever that is."""
    x = mirage.spec((16, 32))
    program = mirage.kernel(lambda x: x.argmax(1) // 4).bind(x).program
    other = mirage.kernel(lambda x: x.argmin(1) // 4).bind(x).program
    for seed in range(20):
        assert mirage.verify(program, program, seed=seed, stability=False).equivalent
        assert not mirage.verify(other, program, seed=seed, stability=False).equivalent


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_they_are_searched(name: str) -> None:
    """A candidate with a kernel of its own is verified."""
    function, arguments, _ = CASES[name]
    program = mirage.kernel(function).bind(*arguments).program
    found = search(program, H100, budget_seconds=5, max_kernels=2)
    assert any(c.mugraph.blocks for c in found.candidates)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_others_are_refused(name: str) -> None:
    function, arguments, others = CASES[name]
    program = mirage.kernel(function).bind(*arguments).program
    text = to_text(program)
    for here, other in others:
        assert here in text, text
        wrong = text.replace(here, other)
        accepted = [
            s for s in SEEDS if mirage.verify(wrong, program, seed=s).equivalent
        ]
        assert not accepted, (here, other)
    assert all(mirage.verify(text, program, seed=s).equivalent for s in range(4))
