"""Functions of two tensors that only PyTorch computes, and divisors of integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import DTypeError
from mirage_dsl.ops.table import SPECIAL_OF_TWO

GENERATOR = torch.Generator().manual_seed(5)
X = torch.rand(3, 4, generator=GENERATOR)
DEGREE = torch.tensor([0.0, 1.0, 3.0, 6.0])
A, B = (
    torch.randint(-30, 30, shape, generator=GENERATOR) for shape in ((3, 4), (3, 1))
)


@pytest.mark.parametrize("name", SPECIAL_OF_TWO)
def test_of_two(name: str) -> None:
    function = getattr(torch.special, name)

    def several(x: Any, n: Any) -> Any:
        found = function(x + 1, n), function(n[:, None] + 2, x[:, 0])
        if name.startswith("gamma"):
            return found
        return *found, function(1.5, x), function(x * 2, 3)

    near: Any = {"rtol": 1e-4, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(
        mirage.kernel(several)(X, DEGREE), several(X, DEGREE), **near
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_divisors_of_integers(dtype: torch.dtype) -> None:
    def divisors(i: Any, j: Any) -> Any:
        return (
            torch.gcd(i, j),
            torch.lcm(i, j),
            i.gcd(torch.tensor(12)),
            torch.lcm(i, i * 0),
            torch.gcd(i, j.long()),
        )

    given = A.to(dtype), B.to(dtype)
    found, expected = mirage.kernel(divisors)(*given), divisors(*given)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_divisors_of_the_lowest_integers() -> None:
    """Their sizes are beyond the format; what C computes of them is told apart."""
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        least = torch.iinfo(dtype).min
        i = torch.tensor([least, least, least, 0], dtype=dtype)
        j = torch.tensor([least, 6, 0, least], dtype=dtype)
        found = mirage.kernel(lambda i, j: torch.lcm(i, j))(i, j)
        assert torch.equal(found, torch.lcm(i, j))


def test_functions_that_change_their_tensor() -> None:
    def changed(x: Any, i: Any, j: Any) -> Any:
        x, i = x.abs() + 1, i.clone()
        x.lgamma_().i0_()
        i.gcd_(j).lcm_(j + 7)
        return x.erfc_(), i, (x + 4).mvlgamma_(2), (x + 1).polygamma_(1)

    given = X, A, B
    torch.testing.assert_close(mirage.kernel(changed)(*given), changed(*given))


def test_floats_have_no_divisors() -> None:
    with pytest.raises(DTypeError, match="gcd of f32; PyTorch has it of integers"):
        mirage.kernel(lambda x: torch.gcd(x, x))(X)
