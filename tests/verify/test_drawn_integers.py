"""Integers of any size and of either sign are met in trials, and what floats become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.types import DType, boolean, i8, i32, i64, u8
from mirage_dsl.ir.analysis.integers import Bias, any_integers
from mirage_dsl.ir.graph import KernelGraph

Function = Callable[..., Any]
SEEDS = range(20)
FEW, MANY = (3,), (16, 32)


def traced(function: Function, shape: tuple[int, ...], *dtypes: str) -> KernelGraph:
    return (
        mirage.kernel(function).bind(*(mirage.spec(shape, d) for d in dtypes)).program
    )


# A function, another one, the shape and dtypes of their operands.
OTHERS: dict[str, tuple[Function, Function, tuple[int, ...], str]] = {
    "a sum for bits of few": (
        lambda a, b: a | (b << 7),
        lambda a, b: a + (b << 7),
        FEW,
        "uint8 uint8",
    ),
    "other bits for bits of few": (
        lambda a, b: a | (b << 3),
        lambda a, b: a ^ (b << 3),
        FEW,
        "int8 int8",
    ),
    "a difference that wraps": (
        lambda a, b: a - b < 0,
        lambda a, b: a < b,
        MANY,
        "int64 int64",
    ),
    "a mean that wraps": (
        lambda a, b: (a + b) // 2,
        lambda a, b: (a & b) + ((a ^ b) >> 1),
        MANY,
        "int64 int64",
    ),
    "a product that wraps": (lambda a: (a * 3) // 3, lambda a: a + 0, MANY, "int64"),
    "floats of a sum that wraps": (
        lambda a, b: a.float() + b.float(),
        lambda a, b: (a + b).float(),
        MANY,
        "int64 int64",
    ),
    "the largest and one": (lambda a: a + 1 > a, lambda a: a == a, MANY, "int32"),
    "the smallest has no opposite": (
        lambda a: -a,
        lambda a: (-a).clamp(min=-(2**31) + 1),
        MANY,
        "int32",
    ),
    "the size of the smallest": (
        lambda a: a.abs() < 128,
        lambda a: (a < 128) & (a > -128),
        MANY,
        "int64",
    ),
    "rows below 0": (
        lambda a: a.amax(-1),
        lambda a: a.clamp(min=0).amax(-1),
        MANY,
        "int64",
    ),
    "rows far below 0": (
        lambda a: a.amax(-1),
        lambda a: a.clamp(min=-100000).amax(-1),
        MANY,
        "int64",
    ),
    "rows far above 0": (
        lambda a: a.amin(-1),
        lambda a: a.clamp(max=100000).amin(-1),
        MANY,
        "int64",
    ),
    "two numbers at once": (
        lambda n, m: (n < 100) & (m > 5),
        lambda n, m: (n < 100) & (m > 6),
        (1,),
        "int64 int64",
    ),
    "three numbers at once": (
        lambda a, b, c: (a == 50) & (b == 60) & (c == 70),
        lambda a, b, c: (a == 50) & (b == 60) & (c == 71),
        (1,),
        "int64 int64 int64",
    ),
    "the highest bits": (
        lambda a: (a >> 62) & 1,
        lambda a: (a >> 63) & 1,
        MANY,
        "int64",
    ),
    "the end of a long range": (
        lambda a: (a >> 20) == 5,
        lambda a: ((a + 1) >> 20) == 5,
        MANY,
        "int32",
    ),
    "a float in fewer bits": (
        lambda x: x.to(torch.int32),
        lambda x: x.to(torch.int32).to(torch.int16).to(torch.int32),
        MANY,
        "float32",
    ),
    "a comparison of floats": (
        lambda x: (x > 0).to(torch.int32),
        lambda x: (x < 0).to(torch.int32),
        MANY,
        "float32",
    ),
    "equal ones counted": (
        lambda x: (x > 0).sum(-1),
        lambda x: (x >= 0).sum(-1),
        MANY,
        "float32",
    ),
    "a running count": (
        lambda x: (x > 0).cumsum(-1),
        lambda x: (x > 1).cumsum(-1),
        MANY,
        "float32",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_refused(name: str) -> None:
    function, other, shape, dtypes = OTHERS[name]
    program, candidate = (traced(f, shape, *dtypes.split()) for f in (function, other))
    for seed in SEEDS:
        found = mirage.verify(candidate, program, seed=seed, stability=False)
        assert not found.equivalent


@pytest.mark.parametrize("name", OTHERS)
def test_each_is_itself(name: str) -> None:
    function, other, shape, dtypes = OTHERS[name]
    for graph in (traced(f, shape, *dtypes.split()) for f in (function, other)):
        assert mirage.verify(graph, graph, stability=False).equivalent


@pytest.mark.parametrize("dtype", [i8, u8, i32, i64], ids=str)
def test_the_ends_of_formats_are_drawn(dtype: DType) -> None:
    drawn = any_integers(np.random.default_rng(0), dtype, (4096,))
    assert (drawn.min(), drawn.max()) == (dtype.min, dtype.max)
    bits = 8 * dtype.itemsize
    lengths = {abs(int(n)).bit_length() for n in drawn}
    assert lengths >= set(range(1, bits - 1))


@pytest.mark.parametrize("sign", [-1, 1])
def test_signs_and_sizes_lean_as_asked(sign: int) -> None:
    bias = Bias(far=True, sign=sign)
    drawn = any_integers(np.random.default_rng(0), i32, (4096,), bias=bias)
    assert ((drawn < 0) == (sign < 0)).all()
    assert np.median(np.abs(drawn.astype(np.int64))) > 2**20
    unsigned = any_integers(np.random.default_rng(0), boolean, (64,), bias=bias)
    assert len(set(unsigned.tolist())) == 2
