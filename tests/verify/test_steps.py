"""Roundings that algebra does not see, before what jumps: whole steps."""

from __future__ import annotations

import pytest

import mirage_dsl as mirage

SEEDS = range(3)
INTO_I8 = """b = round a
  c = maximum b, -127
  d = minimum c, 127
  y = to_i8 d"""


def text(head: str, *lines: str) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    where = "m = 16, k = 64, n = 8"
    return f"mirage 1\n\nmugraph f({head} where {where} {{\n{body}\n  return y\n}}\n"


WIDE = "x: f32[m, k], z: f32[m, k], w: f32[k, n])"
HALF = "x: f16[m, k], z: f16[m, k], w: f16[k, n])"
INSERTED: dict[str, tuple[str, list[str], list[str]]] = {
    "integers": (
        f"{WIDE} -> i32[m, k]",
        ["y = to_i32 x"],
        ["h = cast x dtype(f16)", "y = to_i32 h"],
    ),
    "integers, bf16 for f16": (
        f"{HALF} -> i32[m, k]",
        ["y = to_i32 x"],
        ["h = cast x dtype(bf16)", "y = to_i32 h"],
    ),
    "8 bits by way of 16": (
        f"{WIDE} -> f32[m, k]",
        ["a = to_f8e4m3 x", "y = cast a dtype(f32)"],
        ["h = cast x dtype(f16)", "a = to_f8e4m3 h", "y = cast a dtype(f32)"],
    ),
    "quantised": (
        f"{WIDE} -> i8[m, k]",
        ["a = mul x, 37", INTO_I8],
        ["e = mul x, 37", "a = cast e dtype(f16)", INTO_I8],
    ),
    "quantised, earlier": (
        f"{WIDE} -> i8[m, k]",
        ["a = mul x, z", INTO_I8],
        ["e = cast x dtype(f16)", "g = cast e dtype(f32)", "a = mul g, z", INTO_I8],
    ),
    "quantised products": (
        f"{WIDE} -> i8[m, n]",
        ["a = matmul x, w", INTO_I8],
        [
            "e = cast x dtype(bf16)",
            "g = cast w dtype(bf16)",
            "h = matmul e, g",
            "a = cast h dtype(f32)",
            INTO_I8,
        ],
    ),
    "compared": (
        f"{WIDE} -> f32[m, k]",
        ["a = less x, z", "y = where a, 1, x"],
        ["h = cast x dtype(f16)", "a = less h, z", "y = where a, 1, x"],
    ),
    "compared with a number": (
        f"{WIDE} -> bool[m, k]",
        ["y = less_equal x, 0.1"],
        ["h = cast x dtype(f16)", "y = less_equal h, 0.1"],
    ),
    "equal": (
        f"{WIDE} -> bool[m, k]",
        ["y = equal x, z"],
        ["h = cast x dtype(f16)", "g = cast z dtype(f16)", "y = equal h, g"],
    ),
    "steps": (
        f"{WIDE} -> f32[m, k]",
        ["a = floor x", "y = fmod a, 3"],
        [
            "h = cast x dtype(bf16)",
            "e = cast h dtype(f32)",
            "a = floor e",
            "y = fmod a, 3",
        ],
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", INSERTED)
def test_a_rounding_before_a_step_is_refused(name: str, seed: int) -> None:
    head, program, candidate = INSERTED[name]
    asked, found = text(head, *program), text(head, *candidate)
    refused = mirage.verify(found, asked, seed=seed)
    assert refused.equivalent
    assert not refused.ok, refused
    # The text that rounds more is right as it stands, and so is one that rounds less.
    assert mirage.verify(found, found, seed=seed).ok
    accepted = mirage.verify(asked, found, seed=seed)
    assert accepted.ok, accepted


ALLOWED: dict[str, tuple[str, list[str], list[str]]] = {
    "in another order": (
        f"{WIDE} -> i8[m, n]",
        ["a = matmul x, w", INTO_I8],
        ["e = mul x, 3", "g = matmul e, w", "a = mul g, 1/3", INTO_I8],
    ),
    "f16 that rounds elsewhere": (
        f"{HALF} -> i8[m, k]",
        ["e = mul x, z", "a = mul e, 5", INTO_I8],
        ["e = mul z, 5", "a = mul e, x", INTO_I8],
    ),
    "f16 that does not round": (
        f"{HALF} -> bool[m, k]",
        ["e = mul x, z", "a = add e, z", "y = less a, 0.3"],
        [
            "e = cast x dtype(f32)",
            "g = cast z dtype(f32)",
            "h = add e, 1",
            "a = mul h, g",
            "y = less a, 0.3",
        ],
    ),
    "f16 by a rounding more": (
        f"{HALF} -> i32[m, n]",
        ["e = mul x, z", "a = matmul e, w", "y = to_i32 a"],
        [
            "g = mul x, 2",
            "e = mul g, z",
            "a = matmul e, w",
            "h = mul a, 0.5",
            "y = to_i32 h",
        ],
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ALLOWED)
def test_what_rounds_like_the_program_is_accepted(name: str, seed: int) -> None:
    head, program, candidate = ALLOWED[name]
    certificate = mirage.verify(text(head, *candidate), text(head, *program), seed=seed)
    assert certificate.ok, certificate
