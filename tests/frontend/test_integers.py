"""Integers and float64: dtypes, promotion and values are PyTorch's and NumPy's."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, DTypeError
from mirage_dsl.core.types import DTYPES, INTEGERS, promote
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]
NAMES = [d.long_name for d in INTEGERS]

BOTH: dict[str, Function] = {
    "sums and products": lambda a, b: (a + b, a - b, a * b, -a, abs(a), a * a * a * a),
    "divisions": lambda a, b: (a // b, a % b, a // 3, a % 7, 50 // b),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a, a & 15, a << 2, a >> 1),
    "comparisons": lambda a, b: (a < b, a <= 3, a == b, a != b, a > 10, b <= 2),
    "floats": lambda a, b: (a / b, a * 0.5, a + 1.5),
    "numbers": lambda a, b: (a + 1, a * True, 3 - b, a**2),
    "reductions": lambda a: (a.max(), a.min()),
    "views": lambda a: (a.T, a[1], a[:, 2:5], a.reshape(-1)),
}
TORCH: dict[str, Function] = {
    "sums": lambda a: (a.sum(), a.sum(1), a.prod(0), a.sum(0, dtype=torch.int32)),
    "extremes": lambda a: (a.amax(1), a.amin(0), a.clamp(2, 5), torch.relu(a)),
    "functions": lambda a: (torch.exp(a % 3), torch.sqrt(abs(a)), torch.sigmoid(a % 5)),
    "named": lambda a, b: (
        torch.bitwise_and(a, b),
        torch.bitwise_not(a),
        torch.remainder(a, b),
        torch.floor_divide(a, b),
        torch.div(a, b, rounding_mode="floor"),
        torch.bitwise_left_shift(a, 1),
    ),
    "rests": lambda a, b: (
        torch.fmod(a, b),
        a.fmod(-b),
        torch.fmod(a, 7),
        torch.div(a, b, rounding_mode="trunc"),
        torch.div(a, 7, rounding_mode="trunc"),
        (b > 3) % b,
        a // (b > 0),
    ),
    "whole numbers": lambda a: (a.floor(), a.ceil(), a.trunc(), a.round()),
    "powers": lambda a, b: (a**3, a**1, b**20, b**2.0, 2.0**b, (abs(a) + 1) ** 0.5),
    "signs": lambda a, b: (
        torch.copysign(a, 3 - b),
        torch.copysign(a, -1),
        torch.copysign(a, b.half() - 3),
    ),
    "conversions": lambda a: (a.float(), a.half(), a.long(), a.to(torch.int8)),
    "exponents": lambda a: (torch.logsumexp(a, 1), torch.exp(a)),
    "conditions": lambda a, b: (
        torch.where(a > b, a, b),
        torch.where(a > b, a, 0),
        torch.where(a > b, 1, 0),
        a.masked_fill(b > 2, 7),
        (a > b) + a,
        (a > b) * b,
        a.bool(),
        torch.logical_not(a),
        (a > 0).sum(1),
    ),
    "numbers beyond them": lambda a: (
        *(a + 300, a - 70000, -3 - a, a * -2, a * 2**33),
        *(a & -32, a | -2, 200 ^ a, torch.add(a, 7, alpha=-50)),
        (a + 300) // 3 > 5,
    ),
    "rank 0": lambda a, b: (a + b[0, 0], a[0, 0] * 2.0),
    "einsum": lambda a, b: (
        torch.einsum("ij,k->ijk", a, b[0]),
        torch.einsum("ij,k->i", a, b[0]),
        torch.einsum("ij,ij->ji", a, b.half()),
        torch.einsum("i,ij,j->ij", a[:, 0] > 0, a, b[0].float()),
        torch.einsum("ij->j", a),
    ),
    "joined": lambda a, b: (torch.cat([a, b]), torch.stack([a, b], 1)),
}
NUMPY: dict[str, Function] = {
    "functions": lambda a, b: (np.exp(a % 3), np.sqrt(abs(a)), np.maximum(a, b)),
    "named": lambda a, b: (np.mod(a, b), np.invert(a), np.left_shift(a, 1)),
    "means": lambda a, b: (a.mean(0), np.mean(b)),
    "rests": lambda a, b: (np.fmod(a, b), a % np.int64(3), a // np.int32(3)),
    "whole numbers": lambda a: (np.floor(a), np.round(a, 1), np.trunc(a), np.rint(a)),
    "powers": lambda a, b: (a**3, b**2.0),
    "einsum": lambda a, b: (
        np.einsum("ij->i", a),
        np.einsum("ij,k->ik", a, b[0]),
        np.einsum("ij,k->i", a, b[0]),
        np.einsum("ij,ij->ji", a, b.astype(np.float16)),
        np.einsum("ij,k->i", a > 0, b[0] > 3),
        np.einsum("ij->j", a > 0),
    ),
    "conversions": lambda a: (a.astype(np.float32), a.astype(np.int8), a + 0.5),
    "conditions": lambda a, b: (np.where(a > b, a, b), (a > b).sum(), (a > b) + a),
}


def given(name: str, function: Function | None = None) -> list[torch.Tensor]:
    """Numbers of all signs, some of which overflow in products, and divisors.

    As many as a function takes.
    """
    count = 2 if function is None else len(inspect.signature(function).parameters)
    generator = torch.Generator().manual_seed(0)
    low = 0 if name == "uint8" else -100
    a = torch.randint(low, 100, (5, 8), generator=generator)
    b = torch.randint(1, 7, (5, 8), generator=generator)
    return [x.to(getattr(torch, name)) for x in (a, b)[:count]]


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert str(one.dtype) == str(other.dtype)
        assert tuple(one.shape) == tuple(other.shape)
        one, other = (np.asarray(v).astype(np.float64) for v in (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-3 if one.max() < 2 else 1e-6)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", [*BOTH, *TORCH])
def test_as_pytorch(name: str, dtype: str) -> None:
    function = {**BOTH, **TORCH}[name]
    tensors = given(dtype, function)
    same(mirage.kernel(function)(*tensors), function(*tensors))


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", [*BOTH, *NUMPY])
def test_as_numpy(name: str, dtype: str) -> None:
    function = {**BOTH, **NUMPY}[name]
    arrays = [t.numpy() for t in given(dtype, function)]
    with np.errstate(all="ignore"):
        expected = function(*arrays)
    same(mirage.kernel(function)(*arrays), expected)


def test_means_and_shifts_of_integers() -> None:
    def computed(a: Any) -> Any:
        b = a.clone()
        b.view(-1)[2:] <<= 1
        b[0] >>= 1
        return b, a.mean(dtype=torch.float64), (a > 3).mean(0, dtype=torch.float32)

    given = torch.arange(12).view(3, 4)
    torch.testing.assert_close(mirage.kernel(computed)(given), computed(given))


def test_promotion_is_that_of_pytorch() -> None:
    for a, b in itertools.product(DTYPES, repeat=2):
        names = (getattr(torch, d.long_name) for d in (a, b))
        if a != b and (a.only_stores or b.only_stores):
            with pytest.raises(RuntimeError, match="Float8"):
                torch.promote_types(*names)
        else:
            assert promote(a, b) == torch.promote_types(*names)


def test_there_is_one_object_for_each_format() -> None:
    for dtype in DTYPES:
        assert pickle.loads(pickle.dumps(dtype)) is dtype
        assert copy.deepcopy(dtype) is copy.copy(dtype) is dtype
        assert dtype == getattr(torch, dtype.long_name)
        assert len({*DTYPES, dtype}) == len(DTYPES)


NUMBERS = [kind(3) for kind in (np.int8, np.int64, np.float16, np.float64)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: str(n.dtype))
@pytest.mark.parametrize("dtype", [*NAMES, "float16", "float32"])
def test_numbers_of_numpy_as_arguments(number: Any, dtype: str) -> None:
    """They have the format that they have as constants, and as operands of eager."""

    def mixed(a: Any, n: Any) -> Any:
        return a + n, n * a, a / n, a > n

    (a,) = given("uint8", lambda a: a)
    tensor = a.to(getattr(torch, dtype))
    for x in (tensor, tensor.numpy()):
        same(mirage.kernel(mixed)(x, number), mixed(x, number))


def test_integers_are_filled_as_integers() -> None:
    x = torch.tensor([2**62 + 1, -(2**63) + 1, 5, 2**53 + 1])

    def filled(x: Any) -> Any:
        y = x.masked_fill(x == 5, 3.7)
        y.masked_fill_(y == 3, -1.2)
        return y

    assert torch.equal(mirage.kernel(filled)(x), filled(x))


PAIRS = list(itertools.permutations([*NAMES, "float32"], 2))


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_mixtures_promote(pair: tuple[str, str]) -> None:
    def mixed(a: Any, b: Any) -> Any:
        return a + b, a * b, a < b

    a, b = given("int64")
    tensors = [abs(t).to(getattr(torch, n)) for t, n in zip((a, b), pair, strict=True)]
    same(mirage.kernel(mixed)(*tensors), mixed(*tensors))
    arrays = [t.numpy() for t in tensors]
    same(mirage.kernel(mixed)(*arrays), mixed(*arrays))


def test_numpys_own_floats_simply_work() -> None:
    def function(x: Any, w: Any) -> Any:
        y = np.exp(x - x.max(1, keepdims=True)) @ w
        return y, y.mean(0), np.where(x > 0, x, 0.0), x.astype(np.float32)

    random = np.random.default_rng(0)
    x, w = random.normal(size=(6, 8)), random.normal(size=(8, 4))
    for one, other in zip(mirage.kernel(function)(x, w), function(x, w), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-13)


REFUSED: dict[str, Function] = {
    "a product": lambda a: a @ a.T,
    "a mean": lambda a: a.float().sum() + torch.mean(a),
    "a number beyond the format": lambda a: a > 300,
    "bits of floats": lambda a: torch.bitwise_and(a.float(), a.float()),
    "softmax": lambda a: torch.softmax(a, 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    with pytest.raises((DTypeError, mirage.UnsupportedError)) as error:
        mirage.kernel(REFUSED[name])(given("int8")[0])
    assert error.value.location is not None


@pytest.mark.parametrize("softmax", [lambda a: torch.softmax(a, 1), mirage.softmax])
def test_a_softmax_of_integers_speaks_of_what_was_written(softmax: Function) -> None:
    with pytest.raises(DTypeError, match="softmax takes floats, found int8; convert"):
        mirage.kernel(lambda a: softmax(a))(given("int8")[0])


SHIFTS: dict[str, Function] = {
    "a number": lambda a: a << 8,
    "below none": lambda a: a >> -1,
    "NumPy's number": lambda a: a << np.int64(8),
    "a tensor": lambda a: a << torch.tensor(8),
    "a full one": lambda a: torch.bitwise_right_shift(a, torch.full_like(a, 8)),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_out_of_a_format_are_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=r"of i8 by .*, expected 0 to 7"):
        mirage.kernel(SHIFTS[name])(given("int8")[0])


def test_shifts_out_of_a_format_are_no_texts() -> None:
    text = str(mirage.kernel(lambda a: a << 7).trace(mirage.spec((5, 8), "int8")))
    with pytest.raises(CheckError, match=r"of i8 by .*, expected 0 to 7"):
        parse(text.replace("a, 7", "a, 8"))


@pytest.mark.parametrize("name", [*BOTH, *TORCH])
def test_programs_are_well_formed_texts(name: str) -> None:
    function = {**BOTH, **TORCH}[name]
    count = len(inspect.signature(function).parameters)
    program = mirage.kernel(function).trace(*[mirage.spec((5, 8), "int32")] * count)
    check_or_raise(program)
    assert parse(str(program)) == program


def test_constant_tensors_beyond_f64_are_refused() -> None:
    most = torch.iinfo(torch.int64).max
    x = torch.arange(4).view(2, 2)
    for function in (
        lambda x: torch.where(x > 0, x, torch.tensor(most)),
        lambda x: x.new_full((), most) + x,
        lambda x: torch.full((2,), most) + x,
        lambda x: torch.masked.amin(x, 1, mask=x > 0),
    ):
        with pytest.raises(mirage.MirageError, match="beyond 2\\*\\*53"):
            mirage.kernel(function).trace(x)


@pytest.mark.parametrize("dtype", NAMES)
def test_powers_of_two_and_of_minus_one(dtype: str) -> None:
    least = 0 if dtype == "uint8" else -5
    exponents = torch.tensor([0, 1, 6, 7, 8, 31, 63, 64, 100, least, least // 2])
    exponents = exponents.to(getattr(torch, dtype))

    def function(e: Any) -> Any:
        return 2**e, torch.pow(2, e), (-1) ** e, (2 ** torch.arange(3)).sum() * e

    found = mirage.kernel(function)(exponents)
    for mine, right in zip(found, function(exponents), strict=True):
        assert mine.dtype == right.dtype
        assert torch.equal(mine, right)
