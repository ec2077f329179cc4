"""Casts to f16 and bf16 that a function asks for, where what they take shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ops.table import ROUNDINGS

Function = Callable[..., Any]
F8 = torch.float8_e4m3fn


def products_of_parts(x: Any, w: Any) -> Any:
    """A product in f32 by two of narrower numbers."""
    high = x.half()
    low = (x - high.float()).half()
    return high.float() @ w + low.float() @ w


def written(x: Any, w: Any) -> Any:
    kept = w.half()
    kept[:] = x
    return kept.float() - x


SHOWN: dict[str, Function] = {
    "what it took": lambda x: x - x.half().float(),
    "what bf16 took": lambda x, w: (x - x.bfloat16().float()) * w,
    "returned wide": lambda x: x.half().float(),
    "integers": lambda x: x.half().int(),
    "integers and back": lambda x: x.int().half().int(),
    "steps": lambda x, w: x.half().float().floor() + w.half().float().round(),
    # What is too large for 8 bits is NaN or the largest, by the version of PyTorch.
    "8 bits by way of 16": lambda x: (x / 40).half().to(F8).float(),
    "equal": lambda x, w: (x.half().float() == x, x.type(torch.float16) > w),
    "chosen": lambda x, w: torch.where(w > 0, x, 1.0).half().float().neg().T,
    "one format after the other": lambda x: x.half().bfloat16().float(),
    "beyond the format": lambda x: 1 / (1e6 * x).half().float(),
    "in two parts": products_of_parts,
    "written": written,
}
UNSEEN: dict[str, Function] = {
    "stored": lambda x: x.half(),
    "a product": lambda x, w: x.half() @ w.half(),
    "arithmetic": lambda x, w: (x.half() * w.half()).float(),
    "8 bits": lambda x: x.to(F8).half().float(),
    "a wider format": lambda x: x.half().float().half(),
}


def arguments_of(function: Function) -> list[torch.Tensor]:
    """Numbers of both sides of 2048, where f16 has even ones alone."""
    generator = torch.Generator().manual_seed(3)
    count = function.__code__.co_argcount
    return [4000 * torch.randn(16, 16, generator=generator) for _ in range(count)]


def as_tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", SHOWN)
def test_what_shows_is_eagers(name: str) -> None:
    """By the reference, by library kernels, and by what is emitted."""
    function = SHOWN[name]
    given = arguments_of(function)
    expected = as_tuple(function(*given))
    kernel = mirage.kernel(function, budget_seconds=5)
    reference = kernel.reference(*(a.numpy() for a in given))
    program = kernel.trace(*given)
    every = [
        as_tuple(kernel(*given)),
        [torch.from_numpy(np.asarray(r)) for r in as_tuple(reference)],
        TritonExecutable(program, interpret=True)(*given),
    ]
    if "bf16" not in str(program):
        # The interpreter cuts off what a GPU rounds to bf16.
        best = kernel.bind(*given).search().best
        assert best.mugraph.blocks, best.mugraph
        every.append(TritonExecutable(best.mugraph, interpret=True)(*given))
    for found in every:
        for mine, eager in zip(found, expected, strict=True):
            # Sums of products are added up in any order.
            rounding = 3e-7 * eager.abs().max() if name == "in two parts" else 0
            assert ((mine.double() - eager.double()).abs() <= rounding).all(), (
                mine,
                eager,
            )


@pytest.mark.parametrize("name", UNSEEN)
def test_what_nothing_shows_is_left_out(name: str) -> None:
    program = mirage.kernel(UNSEEN[name]).trace(*arguments_of(UNSEEN[name]))
    assert not {n.op for n in program.applies} & set(ROUNDINGS.values())
