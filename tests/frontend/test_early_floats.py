"""Sums of two small integers that become floats are sums of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.types import f32
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ops.table import CONVERSIONS, SUB


def program(function: Callable[..., Any], *tensors: torch.Tensor) -> KernelGraph:
    return mirage.kernel(function).bind(*tensors).program


def drawn(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.randint(-(2**30), 2**30, shape, dtype=torch.int64).to(dtype)


def differences(graph: KernelGraph) -> set[str]:
    """Of which formats there are differences."""
    kinds: set[str] = set()
    made = {n.result: n for n in graph.applies}
    for node in graph.applies:
        if node.op is SUB:
            floats = all(_is_float(made.get(v)) for v in node.values)
            kinds.add("floats" if floats else "integers")
    return kinds


def _is_float(node: Apply | None) -> bool:
    return node is not None and node.op is CONVERSIONS[f32]


def zero_points(q: Any, z: Any) -> Any:
    return ((q & 15) - ((z & 15) + 1)).to(torch.float16)


def wide(q: Any, z: Any) -> Any:
    return ((q & 1023) - (z & 15)).to(torch.float16)


def unknown(q: Any, z: Any) -> Any:
    return (q - (z & 15)).to(torch.float32)


def shown(q: Any, z: Any) -> Any:
    d = (q & 15) - (z & 15)
    return d.to(torch.float16), d


def read_twice(q: Any, z: Any) -> Any:
    d = (q & 15) - (z & 15)
    return d.to(torch.float16) * (d > 3)


CASES: dict[Callable[..., Any], str] = {
    zero_points: "floats",
    wide: "integers",
    unknown: "integers",
    shown: "integers",
    read_twice: "integers",
}


@pytest.mark.parametrize("function", CASES)
def test_only_where_all_floats_hold_the_numbers(function: Callable[..., Any]) -> None:
    tensors = drawn(8, 16), drawn(8, 16)
    assert differences(program(function, *tensors)) == {CASES[function]}
    found = mirage.kernel(function, effort="none")(*tensors)
    right = function(*tensors)
    for own, wanted in zip(_all(found), _all(right), strict=True):
        assert own.dtype == wanted.dtype
        assert torch.equal(own, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize("mask", [15, 127])
def test_what_wraps_around_stays_an_integer(dtype: torch.dtype, mask: int) -> None:
    def function(q: Any, z: Any) -> Any:
        q, z = q & mask, z & mask
        return (q - z).float(), (q + z).float()

    tensors = drawn(8, 16, dtype=dtype), drawn(8, 16, dtype=dtype)
    found = mirage.kernel(function, effort="none")(*tensors)
    for own, wanted in zip(_all(found), function(*tensors), strict=True):
        assert torch.equal(own, wanted)


def _all(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def test_zero_points_leave_products() -> None:
    """A search takes `x @ (q - z)` apart, as it does of floats."""

    def function(x: Any, packed: Any, zeros: Any) -> Any:
        shifts = torch.arange(0, 32, 4)
        q = (packed[:, None] >> shifts[None, :, None]) & 15
        z = (zeros & 15)[None, None]
        return x @ (q - z).to(x.dtype).reshape(-1, packed.shape[1])

    tensors = torch.randn(4, 64).half(), drawn(8, 32), drawn(32)
    graph = program(function, *tensors)
    assert differences(graph) == {"floats"}
    right = function(*tensors)
    found = mirage.kernel(function, effort="none")(*tensors)
    torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-1)
