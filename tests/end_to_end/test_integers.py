"""Integers, truth values, weights of 8 and 4 bits: traced, searched, verified, run.

What the search finds runs in Triton's interpreter and gives what eager PyTorch does;
what is wrong by a bit is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.result import SearchResult

Function = Callable[..., Any]
SEEDS = range(20)


def numbers(low: int, high: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def bits(a: Any, b: Any) -> Any:
    return ((a // b) + (a % b) * 3) ^ (a << 2), (a > b) & (b < 50)


def counts(a: Any, b: Any) -> Any:
    return (a * b).sum(1), a.amax(1), (a > b).sum(1), (a > b).any(1)


def masked(x: Any, keep: Any, a: Any) -> Any:
    filled = x.masked_fill(~keep | (a > 3), -1.0)
    return torch.where(keep, x, 0.0).softmax(-1), filled


def by_channel(x: Any, q: Any, scale: Any) -> Any:
    return x @ (q.to(x.dtype) * scale)


def by_group(x: Any, q: Any, scale: Any) -> Any:
    return torch.einsum("mgs,gsn->mn", x, q.to(x.dtype) * scale[:, None])


def nibbles(x: Any, packed: Any, scale: Any) -> Any:
    low, high = (packed & 15).to(torch.int8) - 8, (packed >> 4).to(torch.int8) - 8
    half = x.shape[1] // 2
    low, high = low.to(x.dtype) * scale, high.to(x.dtype) * scale
    return x[:, :half] @ low + x[:, half:] @ high


WIDE = numbers(-100, 100, 24, 40, dtype=torch.int32)
SMALL = numbers(1, 90, 24, 40, dtype=torch.int32)
BYTES = numbers(0, 256, 24, 40, dtype=torch.uint8)
HALF = normal(16, 64).half()
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "bits": (bits, [WIDE, SMALL]),
    "counts": (counts, [WIDE, SMALL]),
    "masked": (masked, [normal(24, 40), normal(24, 40) > 0, WIDE]),
    "without a sign": (lambda a: (-a, (-a).float() * 2, ~a + 1), [BYTES]),
    "weights by channel": (
        by_channel,
        [HALF, numbers(-127, 128, 64, 32, dtype=torch.int8), normal(32).half()],
    ),
    "weights by group": (
        by_group,
        [
            HALF.reshape(16, 4, 16),
            numbers(-127, 128, 4, 16, 32, dtype=torch.int8),
            normal(4, 32).half(),
        ],
    ),
    "weights of 4 bits": (
        nibbles,
        [HALF, numbers(0, 256, 32, 32, dtype=torch.uint8), normal(32).half()],
    ),
}


def searched(function: Function, tensors: list[torch.Tensor]) -> SearchResult:
    names = (str(t.dtype).removeprefix("torch.") for t in tensors)
    specs = [
        mirage.spec(tuple(t.shape), n) for t, n in zip(tensors, names, strict=True)
    ]
    program = mirage.kernel(function).trace(*specs)
    return mirage.superoptimize(program, effort="quick", use_cache=False)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_that_computes_what_pytorch_does(name: str) -> None:
    function, tensors = CASES[name]
    best = searched(function, tensors).best
    assert best.certificate.ok
    assert all(n.is_view for n in best.mugraph.applies), "library kernels are left"
    assert parse(str(best.mugraph)) == best.mugraph
    expected = function(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = TritonExecutable(best.mugraph, interpret=True)(*tensors)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        if other.is_floating_point():
            error = (one.double() - other.double()).norm() / other.double().norm()
            assert error < 3e-3
        else:
            assert torch.equal(one, other)


LONG, WEIGHTS = WIDE.long(), numbers(-9, 9, 40, dtype=torch.int64)
PRODUCTS: dict[str, Function] = {
    "alone": lambda a, w, x: ((a * w).sum(1), x.abs()),
    "beside floats": lambda a, w, x: ((a * w).sum(1), (a * x).sum(1)),
    "of two and of three": lambda a, w, x: (
        (a * a).sum(1),
        ((a * w) * x).sum(1),
        (a * w).sum(1),
    ),
    "and again": lambda a, w, x: ((a * w).sum(1, keepdim=True) * x * a).sum(1),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_integers_are_summed_in_their_format(name: str) -> None:
    """No product of matrices has integers, in whatever order sums are searched."""
    function, x = PRODUCTS[name], normal(24, 40)
    specs = [mirage.spec((24, 40), "int64"), mirage.spec((40,), "int64")]
    program = mirage.kernel(function).trace(*specs, mirage.spec((24, 40), "float32"))
    found = mirage.superoptimize(program, budget_seconds=2, use_cache=False).best
    assert found.mugraph.blocks
    expected = function(LONG, WEIGHTS, x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    run = TritonExecutable(found.mugraph, interpret=True)
    for one, other in zip(run(LONG, WEIGHTS, x), expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-2)


def constants(a: Any) -> Any:
    return a // 3, a % -7, a.amin(1), a.amax(0), a.prod(1, dtype=a.dtype), -a - 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_kernels_of_integers_run_and_compile(dtype: str) -> None:
    """Ragged tiles, whose lanes outside hold the ends of the format."""
    low = 0 if dtype == "uint8" else -100
    a = numbers(low, 100, 13, 21, dtype=getattr(torch, dtype))
    divided = (
        constants if dtype != "uint8" else lambda a: (a // 3, a.amin(1), a.amax(0))
    )
    mugraph = searched(divided, [a]).best.mugraph
    found = TritonExecutable(mugraph, interpret=True)(a)
    for one, other in zip(found, divided(a), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert mugraph.blocks
    assert mirage.compile_only(mugraph)


# -- What must not be accepted -------------------------------------------------------


def _traced(function: Function) -> KernelGraph:
    shapes = {"a": (6, 12), "b": (6, 12), "q": (12, 8), "x": (6, 12), "s": (8,)}
    shapes |= {"y": (6, 4, 16), "p": (4, 16, 8), "t": (5, 8)}
    formats = {"q": "uint8", "p": "int8", **dict.fromkeys("xyst", "float16")}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    specs = [mirage.spec(shapes[n], formats.get(n, "int32")) for n in names]
    return mirage.kernel(function).trace(*specs)


def halves(q: Any, shifts: Any) -> Any:
    value = (q.unsqueeze(1) >> shifts[:, None].to(q.dtype)) & 15
    return value.reshape(-1, q.shape[1]).to(torch.float16)


WRONG: dict[str, tuple[Function, Function]] = {
    "the halves in the other order": (
        lambda q: halves(q, torch.arange(2) * 4),
        lambda q: halves(q, 4 - torch.arange(2) * 4),
    ),
    "and for or": (lambda a, b: a & b, lambda a, b: a | b),
    "and for or of conditions": (
        lambda a, b: (a > 0) & (b > 0),
        lambda a, b: (a > 0) | (b > 0),
    ),
    "a shift by one more": (lambda a: a << 2, lambda a: a << 3),
    "the other shift": (lambda a: a >> 1, lambda a: a // 4),
    "rounded towards zero": (
        lambda a, b: a // b,
        lambda a, b: torch.where((a % b != 0) & (a < 0), a // b + 1, a // b),
    ),
    "or equal": (lambda a, b: a < b, lambda a, b: a <= b),
    "off by one": (lambda a, b: a < b, lambda a, b: a < b + 1),
    "no wrap-around": (
        lambda a: (a * a).long(),
        lambda a: a.long() * a.long(),
    ),
    "wrapped to 8 bits": (lambda a: a + 1, lambda a: (a + 1).to(torch.int8).int()),
    "the other nibble": (
        lambda x, q, s: x @ ((q & 15).to(x.dtype) * s),
        lambda x, q, s: x @ ((q >> 4).to(x.dtype) * s),
    ),
    "the scale of the next group": (
        lambda y, p, t: by_group(y, p, t[:-1]),
        lambda y, p, t: by_group(y, p, t[1:]),
    ),
    "the sign of the other operand": (
        lambda a, x: torch.where(a % 97 == 5, x, 0.0),
        lambda a, x: torch.where(torch.fmod(a, 97) == 5, x, 0.0),
    ),
    "or equal, of a sum": (lambda a, b: a + b < 1000, lambda a, b: a + b <= 1000),
    "the offset left out": (
        lambda x, q, s: x @ (((q & 15).to(torch.int8) - 8).to(x.dtype) * s),
        lambda x, q, s: x @ ((q & 15).to(x.dtype) * s),
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_by_a_bit_is_never_accepted(name: str) -> None:
    right, wrong = map(_traced, WRONG[name])
    for seed in SEEDS:
        found = mirage.verify(wrong, right, seed=seed, stability=False)
        assert not found.equivalent, seed


RIGHT: dict[str, tuple[Function, Function]] = {
    "laws of rings": (lambda a, b: (a + b) * b, lambda a, b: b * b + a * b),
    "a shift as a product": (lambda a: a << 3, lambda a: a * 8),
    "bits": (lambda a, b: ~(a & b), lambda a, b: ~a | ~b),
    "turned over": (lambda a, b: a < b, lambda a, b: ~(a >= b)),
    "scales behind": (
        lambda x, q, s: x @ (q.to(x.dtype) * s),
        lambda x, q, s: (x @ q.to(x.dtype)) * s,
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_holds_of_integers_is_accepted(name: str) -> None:
    one, other = map(_traced, RIGHT[name])
    assert mirage.verify(other, one, stability=False).equivalent
