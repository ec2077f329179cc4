"""Elementary functions against PyTorch's own, on ordinary and on special numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.ir.evaluate import evaluate_numpy

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.0, 1e-6, -1e-6, 1e-3, 20.0]
SPECIAL += [-88.0, 89.0, 1e4, -1e4, 3e38, -3e38, math.inf, -math.inf, math.nan]
ORDINARY = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 3

Function = Callable[..., Any]

ONE = "acos acosh asin asinh atan atanh ceil cos cosh deg2rad expm1 fix floor frac "
ONE += "log10 log1p log2 logit positive rad2deg round sign sgn sin sinc sinh tan trunc"
UNARY: dict[str, Function] = {name: getattr(torch, name) for name in ONE.split()}
UNARY["mish"] = torch.nn.functional.mish
UNARY["round to decimals"] = lambda x: torch.round(x, decimals=2)
UNARY["round to tens"] = lambda x: x.round(decimals=-1)
UNARY["logit within"] = lambda x: torch.logit(x, eps=2**-10)

TWO = "atan2 copysign floor_divide fmax fmin fmod heaviside hypot logaddexp "
TWO += "ldexp logaddexp2 remainder xlogy"
BINARY: dict[str, Function] = {name: getattr(torch, name) for name in TWO.split()}
BINARY["quotient, rounded down"] = lambda a, b: torch.div(a, b, rounding_mode="floor")
BINARY["quotient, cut off"] = lambda a, b: a.div(b, rounding_mode="trunc")
BINARY["signs"] = lambda a, b: a % b + a // b
BINARY["numbers"] = lambda a, b: torch.fmod(a, 0.75) + (b % -3) + torch.xlogy(2.0, a)
BINARY["special"] = lambda a, b: torch.special.xlog1py(a, b)


def same(function: Function, *operands: torch.Tensor) -> None:
    """Kernels on the CPU compute in float64, and round at the end."""
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda *xs: function(*xs))(*operands)
    expected = function(*(x.double() for x in operands)).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name: str) -> None:
    same(UNARY[name], torch.cat([torch.tensor(SPECIAL), ORDINARY]))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str) -> None:
    special = torch.tensor(SPECIAL)
    both = torch.cartesian_prod(special, special)
    a = torch.cat([both[:, 0], ORDINARY])
    b = torch.cat([both[:, 1], ORDINARY.flip(0)])
    same(BINARY[name], a, b)


NUMPY = "arccos arcsinh arctan arctanh ceil cosh expm1 log10 log1p rint sign tan"


@pytest.mark.parametrize("name", NUMPY.split())
def test_functions_by_the_names_of_numpy(name: str) -> None:
    x = np.concatenate([np.array(SPECIAL), ORDINARY.numpy()]).astype(np.float32)
    with np.errstate(all="ignore"):
        found = mirage.kernel(lambda t: getattr(np, name)(t))(x)
        expected = getattr(np, name)(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_methods_and_operators_are_the_functions() -> None:
    a, b = ORDINARY, ORDINARY.flip(0)
    same(lambda x, y: x.sin() * y.fmod(x) + x.atan2(y) - y.trunc().frac(), a, b)
    same(lambda x, y: (2.5 % x) + (7 // y), a, b)


def test_truths_of_numbers() -> None:
    special = torch.tensor(SPECIAL)
    a, b = torch.cartesian_prod(special, special).T.contiguous()

    def close(a: Any, b: Any) -> Any:
        return (
            torch.isclose(a, b),
            a.isclose(b, rtol=0.5),
            torch.isclose(a, b, 0, 1),
            torch.signbit(torch.where(a == a, a, 0)),
        )

    with np.errstate(all="ignore"):
        found = mirage.kernel(close)(a, b)
    assert all(map(torch.equal, found, close(a, b)))


def test_logarithms_of_numbers_at_their_end() -> None:
    def products(x: Any) -> Any:
        return torch.xlogy(x, 0) + torch.special.xlog1py(x, -1.0) + torch.xlogy(x, 3)

    same(products, torch.tensor(SPECIAL))
    with pytest.raises(mirage.MirageError, match="NaN"):
        mirage.kernel(lambda x: torch.xlogy(x, -1)).trace(ORDINARY)


def test_celu_is_the_largest_number_there() -> None:
    x = torch.tensor([1.7976931348623157e308, 1.0, -0.5, -1e308], dtype=torch.float64)
    celu = torch.nn.functional.celu
    found = mirage.kernel(lambda x: celu(x, 0.8))(x)
    torch.testing.assert_close(found, celu(x, 0.8))


def test_powers_are_float64() -> None:
    def powers(a: Any, n: Any) -> Any:
        return (
            torch.float_power(a, 2),
            torch.float_power(2, a),
            a.float_power(n),
            torch.float_power(n, True),
        )

    n = torch.arange(64)
    with np.errstate(all="ignore"):
        found = mirage.kernel(powers)(ORDINARY, n)
    torch.testing.assert_close(found, powers(ORDINARY, n), equal_nan=True)


@pytest.mark.parametrize("name", ["sign", "round", "expm1", "sinh", "atan"])
def test_a_format_stays(name: str) -> None:
    found = mirage.kernel(lambda t: getattr(torch, name)(t))(ORDINARY.half())
    assert found.dtype == torch.float16


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([0, 1, 2, 200], dtype=torch.uint8),
        torch.tensor([-128, -1, 0, 100], dtype=torch.int8),
        torch.tensor([True, False]),
    ],
)
def test_formulas_of_integers_do_not_wrap_around(x: torch.Tensor) -> None:
    def functions(x: Any) -> Any:
        return (
            *(torch.asin(x), torch.acos(x), torch.atanh(x), torch.logit(x)),
            *(torch.asinh(x), torch.atan(x), torch.sinh(x / 2), torch.cosh(x % 3)),
            *(torch.log1p(x), torch.expm1(x % 5), torch.log2(x), torch.log10(x)),
            *(torch.sin(x), torch.sinc(x), torch.special.entr(x)),
        )

    if x.dtype == torch.bool:
        given: Function = lambda x: functions(x)[:4]  # noqa: E731
    else:
        given = functions
    found, expected = mirage.kernel(lambda x: given(x))(x), given(x)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_formulas_of_numpys_integers_do_not_wrap_around() -> None:
    x = np.array([0, 1, 200], np.uint8)
    with np.errstate(invalid="ignore"):
        found, expected = mirage.kernel(lambda x: np.arcsin(x))(x), np.arcsin(x)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_mish_keeps_its_digits_where_it_vanishes() -> None:
    """In f32, where log(1 + exp(x)) rounds to 0 from -17 on downwards."""
    x = np.linspace(-80, 60, 20011, dtype=np.float32)
    program = mirage.kernel(torch.nn.functional.mish).trace(x)
    (found,) = evaluate_numpy(program, x, compute=np.float32)
    u = np.exp(x.astype(np.float64))
    exact = x * (u * u + 2 * u) / (u * u + 2 * u + 2)
    np.testing.assert_allclose(found, exact, rtol=5e-7)


IN_SPECIAL = "erf exp2 expit expm1 log1p logit round sinc"


@pytest.mark.parametrize("name", IN_SPECIAL.split())
def test_names_of_torch_special(name: str) -> None:
    x = torch.linspace(0.1, 0.9, 12).reshape(3, 4)
    function = getattr(torch.special, name)
    torch.testing.assert_close(mirage.kernel(lambda x: function(x))(x), function(x))


def test_functions_of_torch_special() -> None:
    def function(x: Any) -> Any:
        s = torch.special
        return (
            s.xlogy(x, x),
            s.softmax(x, 1),
            s.log_softmax(x, 1),
            s.logsumexp(x, 1),
            x.softmax(1, torch.float64),
        )

    x = torch.linspace(0.0, 0.9, 12).reshape(3, 4)
    torch.testing.assert_close(mirage.kernel(function)(x), function(x))
