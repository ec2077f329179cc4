"""What selects elements along an axis: where extremes are.

Positions of extremes are made of reductions and of index values, so that they are
generated like anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]
SEEDS = range(20)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


X = normal(6, 21)
ODD = X.clone()
ODD[1, 5] = ODD[1, 9] = float("nan")
ODD[2], ODD[3], ODD[4, 7] = 1.0, float("-inf"), float("inf")

PLACES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "along an axis": (
        lambda x: (x.argmax(1), torch.argmin(x, dim=0), x.argmax(-1, keepdim=True)),
        [ODD],
    ),
    "of all": (
        lambda x: (x.argmax(), torch.argmin(x), torch.argmax(x, keepdim=True)),
        [ODD],
    ),
    "of pairs": (
        lambda x: (*torch.max(x, 1), x.min(0).indices, x.max(1, keepdim=True)[1]),
        [ODD],
    ),
    "of merged axes": (lambda x: x.reshape(2, 63).argmax(1), [ODD]),
    "of one element": (lambda x: x[:, :1].argmax(1), [ODD]),
    "of integers": (lambda x: (x.argmax(1), x.argmin(0)), [(X * 3).int()]),
    "f16": (lambda x: (x.argmax(1), x.argmin(0)), [ODD.half()]),
    "f64": (lambda x: x.argmax(0), [ODD.double()]),
    "to gather by": (lambda x: x.take_along_dim(x.argmin(1, keepdim=True), 1), [X]),
}


def compared(function: Function, tensors: list[torch.Tensor]) -> None:
    found, expected = mirage.kernel(function)(*tensors), function(*tensors)
    if not isinstance(expected, tuple):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PLACES)
def test_where_extremes_are(name: str) -> None:
    compared(*PLACES[name])


def test_as_numpy() -> None:
    def function(x: Any) -> Any:
        return np.argmax(x), np.argmin(x, axis=1), x.argmax(0), np.argmax(x, 1)

    for one, other in zip(
        mirage.kernel(function)(ODD.numpy()), function(ODD.numpy()), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(mirage.argmax(ODD.numpy(), 1), ODD.argmax(1))


def traced(function: Function, *tensors: torch.Tensor) -> KernelGraph:
    names = (str(t.dtype).removeprefix("torch.") for t in tensors)
    specs = [
        mirage.spec(tuple(t.shape), n) for t, n in zip(tensors, names, strict=True)
    ]
    return mirage.kernel(function).trace(*specs)


SEARCHED: dict[str, Function] = {
    "largest": lambda x: torch.argmax(torch.relu(x) * 2, 1),
    "smallest": lambda x: torch.argmin(x * x, 0),
    "both": lambda x: torch.max(x, 1).indices + torch.min(x, 1).indices,
}


@pytest.mark.parametrize("name", SEARCHED)
def test_places_are_found_in_one_kernel(name: str) -> None:
    program = traced(SEARCHED[name], ODD)
    best = mirage.superoptimize(program, effort="quick", use_cache=False).best
    assert best.certificate.ok
    assert len(best.mugraph.blocks) == len(best.mugraph.nodes) == 1
    assert parse(str(best.mugraph)) == best.mugraph
    found = TritonExecutable(best.mugraph, interpret=True)(ODD)[0]
    assert torch.equal(found, SEARCHED[name](ODD))


WRONG: dict[str, tuple[Function, Function]] = {
    "the smallest": (lambda x: x.argmax(1), lambda x: x.argmin(1)),
    "the other axis": (lambda x: x.argmax(1), lambda x: x.argmax(0)),
    "the next one": (lambda x: x.argmax(1), lambda x: (x.argmax(1) + 1) % 12),
    "the last one": (
        lambda x: x.argmax(1),
        lambda x: torch.where(x == x.amax(1, True), torch.arange(12), 0).amax(1),
    ),
    "of another tensor": (lambda x: x.argmax(1), lambda x: (x * x).argmax(1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_place_is_never_accepted(name: str) -> None:
    right, wrong = (traced(f, torch.zeros(12, 12)) for f in WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed
