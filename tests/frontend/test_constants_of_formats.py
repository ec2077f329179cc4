"""Numbers and integers are in the format that they are made in, as PyTorch has them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import DTypeError, TraceError

F = torch.nn.functional
ONES = torch.ones(4)
COUNTS = torch.tensor([257, 259, 2049, 30001])

CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "a negative byte": lambda x: torch.tensor(-1).to(torch.uint8) * x,
    "a long byte": lambda x: torch.tensor(300).to(torch.uint8) * x,
    "a long short": lambda x: torch.tensor(70000).to(torch.int16) * x,
    "a part of a whole": lambda x: torch.full((4,), 2.7, dtype=torch.int64) * x,
    "below zero": lambda x: (torch.zeros(4, dtype=torch.uint8) - 1) * x,
    "a product of bytes": lambda x: (
        torch.tensor(200, dtype=torch.uint8) * torch.tensor(3, dtype=torch.uint8) * x
    ),
    "the least byte": lambda x: -torch.tensor(-128, dtype=torch.int8) * x,
    "beyond the largest": lambda x: (
        (torch.full((4,), 2**31 - 1, dtype=torch.int32) + 1) * x
    ),
    "a bound that is infinite": lambda x: (
        torch.tensor(3).clamp(max=float("inf")) * x + (torch.tensor(3) > -1) * x
    ),
    "a long whole number": lambda x: (torch.full((4,), 2**53 - 1) - 2**53 + 1) * x,
    "bf16": lambda x: torch.full((4,), 0.1, dtype=torch.bfloat16).float() * x,
    "f16": lambda x: torch.tensor(0.1, dtype=torch.float16).float() * x,
    "a long half": lambda x: torch.full((4,), 2049.0, dtype=torch.float16).float() * x,
    "a list": lambda x: (
        torch.tensor([0.1, 0.3, 0.7, 0.9], dtype=torch.bfloat16).float() * x
    ),
    "an infinite half": lambda x: (torch.tensor(70000.0).half().float() > 1e6) * x,
    "a root in bf16": lambda x: torch.tensor(3072**0.5, dtype=torch.bfloat16) * x,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_of_their_format(name: str) -> None:
    function = CONSTANTS[name]
    found = mirage.kernel(lambda x: function(x))(ONES)
    torch.testing.assert_close(found, function(ONES), rtol=0, atol=0)


ROUNDED: dict[str, Callable[[Any], Any]] = {
    "integers to bf16": lambda t: t.to(torch.bfloat16).float(),
    "integers to f16": lambda t: t.to(torch.int16).half().float(),
    "compared": lambda t: t.to(torch.bfloat16) == 257,
    "as integers again": lambda t: t.to(torch.bfloat16).long(),
    "of positions": lambda t: t * torch.arange(300, dtype=torch.bfloat16)[-4:].float(),
    "behind abs": lambda t: t.float().half().abs().long(),
    "behind a minus": lambda t: (-t.float().half()).int(),
    "behind relu": lambda t: t.float().half().relu().float(),
    "behind a bound": lambda t: t.float().half().clamp(max=1e4).float() - t,
    "behind a maximum": lambda t: t.float().bfloat16().amax(0).long(),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_roundings_are_seen(name: str) -> None:
    function = ROUNDED[name]
    found = mirage.kernel(lambda t: function(t))(COUNTS)
    torch.testing.assert_close(found, function(COUNTS), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.float64])
def test_the_softmin_of_bytes_wraps(dtype: torch.dtype | None) -> None:
    """The minus is in the tensor's format: 0 stays the least of them."""
    x = torch.tensor([[0, 1, 2], [200, 0, 255]], dtype=torch.uint8)

    def softmin(x: Any) -> Any:
        given = x if dtype else x.float()
        return torch.nn.functional.softmin(given, 1, dtype=dtype)

    expected = softmin(x)
    found = mirage.kernel(softmin)(x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_the_softmin_of_truth_values_is_refused() -> None:
    def softmin(x: Any) -> Any:
        return torch.nn.functional.softmin(x, 1, dtype=torch.float32)

    with pytest.raises(mirage.DTypeError, match="neg of truth values"):
        mirage.kernel(softmin).trace(mirage.spec((2, 3), "bool"))


ARRAYS: dict[str, Callable[[Any], Any]] = {
    "repeat along an axis": lambda x: x.repeat(2, 1) * 1,
    "repeat, all": lambda x: x.repeat(2) * 1,
    "repeat by name": lambda x: x.repeat(2, axis=0) * 1,
    "reshape in order": lambda x: x.reshape(-1, order="C") * 1,
    "ravel in order": lambda x: x.T.ravel("C") * 1,
    "divmod": lambda x: (
        divmod(x.astype("int32"), 4)[1] + divmod(x.astype("int32"), 4)[0]
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_methods_of_arrays(name: str) -> None:
    x, function = np.arange(6, dtype=np.float32).reshape(2, 3), ARRAYS[name]
    np.testing.assert_array_equal(mirage.kernel(lambda x: function(x))(x), function(x))


def test_repeat_is_of_pytorch_where_there_are_no_arrays() -> None:
    bound = mirage.kernel(lambda x: x.repeat(2, 3)).bind(mirage.spec((4, 5), "f32"))
    assert tuple(bound(torch.ones(4, 5)).shape) == (8, 15)


def test_methods_that_are_of_the_other_library() -> None:
    with pytest.raises(mirage.MirageError, match="repeat_interleave"):
        mirage.kernel(lambda x: x.repeat(2, axis=0))(ONES)
    with pytest.raises(mirage.MirageError, match="permute the axes"):
        mirage.kernel(lambda x: x.reshape(-1, order="F"))(np.ones((2, 3)))


def test_buckets_of_other_formats() -> None:
    edges = torch.tensor([2, 5, 9], dtype=torch.int32)

    def segments(x: Any, edges: Any) -> Any:
        return x * torch.bucketize(torch.arange(12), edges, right=True)

    x = torch.ones(12)
    torch.testing.assert_close(mirage.kernel(segments)(x, edges), segments(x, edges))


FILLS: dict[str, Callable[[Any, Any], Any]] = {
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "masked_fill_": lambda x, n: x.clone().masked_fill_(x > 0, n),
    "index_fill": lambda x, n: x.index_fill(0, (x[:, 0] > 0).long(), n),
    "fill_": lambda x, n: x + torch.zeros_like(x).fill_(n),
    "full": lambda x, n: x + torch.full((4, 8), n, dtype=x.dtype),
    "full_like": lambda x, n: x + torch.full_like(x, n),
    "new_full": lambda x, n: x + x.new_full((4, 8), n),
    "scatter": lambda x, n: x.scatter(1, (x[:, :1] > 0).long(), n),
    "scatter, to add": lambda x, n: x.scatter(
        1, (x[:, :1] > 0).long(), n, reduce="add"
    ),
    "pad": lambda x, n: torch.nn.functional.pad(x, (1, 1), value=n),
    "threshold": lambda x, n: torch.nn.functional.threshold(x, 0.1, n),
}


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_fills_reaches_no_infinity_by_itself(
    name: str, dtype: torch.dtype
) -> None:
    """A number beyond a format is refused where eager refuses it, and no other."""
    x = torch.tensor(np.random.default_rng(3).normal(size=(4, 8))).to(dtype)
    fills, most = FILLS[name], torch.finfo(dtype).max

    def kernel(x: Any, number: Any) -> Any:
        return mirage.kernel(fills)(x, number)

    for number in (-most, most, -math.inf, math.inf, -1.01 * most, 1.01 * most):
        if abs(number) in (most, math.inf):
            expected = fills(x, number)
            assert torch.equal(kernel(x, number), expected), number
            continue
        with pytest.raises(RuntimeError, match="without overflow"):
            fills(x, number)
        with pytest.raises(mirage.DTypeError, match="which holds"):
            kernel(x, number)


TABLE = np.arange(4, dtype=np.float32) ** 2
PLACES = np.array([3, 0, 2], dtype=np.int8)

FROM_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda x: torch.tensor(TABLE) * x,
    "another format": lambda x: torch.tensor(PLACES, dtype=torch.float64) * x[:3],
    "as a tensor": lambda x: torch.as_tensor(PLACES) * x[:3],
    "as an array": lambda x: torch.asarray(np.eye(4)[2]) * x,
    "made where it stands": lambda x: torch.tensor(np.array([1.5, 2, -1, 0])) * x,
    "of two axes": lambda x: torch.tensor(np.array([[1, 2], [3, 4]])) * x[:2],
    "a number": lambda x: torch.tensor(np.float64(2.5)) * torch.tensor(np.int32(3)) * x,
    "numbers in lists": lambda x: torch.tensor([np.float64(0.1), 2, 3, 4]) * x,
    "arrays in lists": lambda x: torch.tensor([np.ones(4), TABLE]) + x,
    "truth values": lambda x: x * torch.tensor(TABLE > 3),
    "like another": lambda x: x.half().new_tensor(TABLE) + x.new_tensor(PLACES).sum(),
    "places": lambda x: x[torch.tensor(PLACES.astype(np.int64))],
    "nothing": lambda x: torch.cat([torch.tensor([]), x]) + x,
    "no rows": lambda x: torch.cat([torch.tensor([]), x[None], x[None]], 1),
}


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize("name", FROM_ARRAYS)
def test_arrays_are_constants_of_their_format(name: str) -> None:
    function = FROM_ARRAYS[name]
    found = mirage.kernel(lambda x: function(x))(ONES)
    torch.testing.assert_close(found, function(ONES), rtol=0, atol=0)


def test_an_array_that_changed_is_another_constant() -> None:
    table = np.ones(4, np.float32)
    run = mirage.kernel(lambda x: x * torch.tensor(table))
    for number in (1.0, 2.0, 1.0):
        table[2] = number
        torch.testing.assert_close(run(ONES), torch.from_numpy(table), rtol=0, atol=0)


def test_arrays_whose_change_is_not_seen_are_refused() -> None:
    table = np.zeros(1025, np.float32)
    with pytest.raises(TraceError, match=r"4100 bytes of NumPy's .* expected 4096"):
        mirage.kernel(lambda x: torch.tensor(table)[:4] * x)(ONES)
    with pytest.raises(TraceError, match=r"write torch.tensor of a small array"):
        mirage.kernel(lambda x: torch.from_numpy(TABLE) * x)(ONES)


NARROW = torch.tensor([0.1, -0.3, 0.6, 1.1, 60000, -60000, math.inf, -math.inf])

BEYOND: dict[str, Callable[[Any], Any]] = {
    **{
        name: lambda x, compare=compare: compare(x, 1e5) | compare(x, -1e5)
        for name, compare in vars(operator).items()
        if name in ("lt", "le", "eq", "ne", "gt", "ge")
    },
    "thresholds": lambda x: tuple(F.threshold(x, t, 20) for t in (0.1, 0.3, 0.6, 1e5)),
    "limits": lambda x: (x.clamp(max=65504), F.hardtanh(x, -1e4, 1e4)),
    "softplus": lambda x: tuple(
        F.softplus(x[:4], threshold=t) for t in (0.1, 0.3, 0.6, 1.1)
    ),
    "a factor": lambda x: torch.add(x, x, alpha=6e4),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", BEYOND)
def test_narrow_floats_meet_numbers_as_in_pytorch(
    name: str, dtype: torch.dtype
) -> None:
    function, x = BEYOND[name], NARROW.to(dtype)
    torch.testing.assert_close(mirage.kernel(lambda x: function(x))(x), function(x))


REFUSED: dict[str, Callable[[Any, float], Any]] = {
    "clamp": lambda x, n: x.clamp(max=n),
    "hardtanh": lambda x, n: F.hardtanh(x, -n, n),
    "add": lambda x, n: torch.add(x, x, alpha=n),
    "sub": lambda x, n: x.sub(x, alpha=n),
    "full": lambda x, n: torch.full_like(x, n) + x,
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_beyond_a_format_are_refused_where_pytorch_refuses(name: str) -> None:
    function = REFUSED[name]
    for number, dtype in ((1e5, torch.float16), (1e39, torch.bfloat16)):
        x = NARROW.to(dtype)
        with pytest.raises(RuntimeError, match="without overflow"):
            function(x, number)
        stated = rf"by .*{number:.0f}" if number < 1e6 else r"by .*1e\+39"
        with pytest.raises(DTypeError, match=rf"{stated}.* write an infinity"):
            mirage.kernel(lambda x, n=number: function(x, n))(x)


def test_a_gpu_takes_limits_and_factors_in_f32() -> None:
    x = mirage.spec((8,), mirage.f16)
    for name in ("clamp", "hardtanh", "add", "sub"):
        function = REFUSED[name]
        mirage.kernel(lambda x, f=function: f(x, 1e5)).trace(x)
        with pytest.raises(DTypeError, match="in f32, which holds"):
            mirage.kernel(lambda x, f=function: f(x, 1e39)).trace(x)
