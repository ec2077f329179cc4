"""Comparisons give truth values, which compute as PyTorch's and NumPy's do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.core.errors import DTypeError, MirageError, TraceError
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.text.parser import parse

Function = Callable[..., Any]

BOTH: dict[str, Function] = {
    "comparisons": lambda x, y: (x > y, x >= y, x < y, x <= y, x == y, x != y),
    "with numbers": lambda x, y: (x > 0.1, y >= 0.5, x == 0.1, x != 0.1, x <= 0.1),
    "operators": lambda x, y: ((x > 0) & (y > 0), (x > 0) | (y > 0), (x > 0) ^ (y > 0)),
    "not": lambda x, y: (~(x > 0), ~~(y > 0)),
    "with bools": lambda x, y: ((x > 0) & True, (y > 0) | False, (x > y) ^ True),
    "sums and products": lambda x, y: ((x > 0) + (y > 0), (x > 0) * (y > 0)),
    "compared": lambda x, y: (
        (x > 0) == (y > 0),
        (x > 0) != (y > 0),
        (x > 0) <= (y > 0),
    ),
    "times a tensor": lambda x, y: ((x > 0) * y, y * (x > 0) + (y > 0)),
    "any": lambda x, y: ((x > 2).any(), (x > 1).any(1), (x > y).any(-1)),
    "all": lambda x, y: ((x > -9).all(), (x > 0).all(1), (x > y).all(0)),
    "indexed": lambda x, y: (
        (x > 0)[1],
        (x > 0)[:, 2:5],
        (x > y)[None, 0],
        (x > 0)[1, 2],
    ),
    "views": lambda x, y: ((x > 0).T, (x > 0).reshape(-1), (y > 0).swapaxes(0, 1)),
    "rank 0": lambda x, y: (x[0, 0] > y[0, 0], (x > 0) & (y[0, 0] > 0)),
}
TORCH: dict[str, Function] = {
    "counts": lambda x: ((x > 0).sum(), (x > 0) + 1, torch.where(x > 0, 1, 0)),
    "functions": lambda x, y: (torch.lt(x, y), torch.ge(x, 0.5), x.ne(y), x.eq(x)),
    "logical": lambda x, y: (
        torch.logical_and(x > 0, y),
        torch.logical_or(x, y > 0),
        torch.logical_xor(x > 0, y > 0),
        torch.logical_not(x),
        (x > 0).logical_not(),
    ),
    "casts": lambda x, y: ((x > 0).float(), (x > 0).half() + y, (x > 0).to(y.dtype)),
    "to bool": lambda x, y: (
        x.bool(),
        x.to(torch.bool),
        (x > 0).bool(),
        x.type_as(y > 0),
    ),
    "where": lambda x, y: (
        torch.where(x > y, x, y),
        torch.where(x > 0, x, 0),
        torch.where(x > 0, 0.5, y),
        torch.where(x > 0, 1.0, 0.0),
        torch.where(x > 0, True, False),
        torch.where(x > 0, y > 0, x > y),
        torch.where(x > 0, y > 0, False),
    ),
    "masked_fill": lambda x, y: (
        x.masked_fill(y > 0, -1.0),
        torch.masked_fill(y, ~(x > 0), 2),
    ),
    "floats": lambda x: (
        (x > 0) * 2.0,
        (x > 0) + 0.5,
        torch.exp(x > 0),
        (x > 0) / 2,
    ),
    "joined": lambda x, y: (torch.cat([x > 0, y > 0]), torch.stack([x > 0, y > 0], 1)),
    "torch.any": lambda x: (
        torch.any(x, 1),
        torch.all(x > 0),
        torch.any(x > 0, 1, True),
    ),
    "extremes": lambda x: ((x > 0).amax(1), (x > 0).amin(0)),
    "sum of a cast": lambda x: (
        (x > 0).float().sum(1),
        (x > 0).sum(1, dtype=x.dtype),
    ),
    "expanded": lambda x, y: (y[0] > 0)[None].expand(5, 8) * x,
    "scale": lambda x, y: (x > 0) * y[0, 0],
}
REFUSED: dict[str, Function] = {
    "mean": lambda x: (x > 0).mean(),
    "difference": lambda x, y: (x > 0) - (y > 0),
    "from one": lambda x: 1 - (x > 0),
    "from a tensor": lambda x, y: x - (y > 0),
    "minus": lambda x: -(x > 0),
    "square": lambda x: (x > 0) ** 2,
    "product": lambda x, y: (x > 0) @ y.T,
    "linear": lambda x, y: F.linear(x > 0, y),
    "einsum": lambda x, y: torch.einsum("mk,nk->mn", x > 0, y),
    "silu": lambda x: F.silu(x > 0),
    "abs": lambda x: abs(x > 0),
}


def inputs(function: Function, dtype: torch.dtype) -> list[torch.Tensor]:
    """As many tensors as a function takes, some elements equal and some a constant."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(5, 8, generator=generator).to(dtype) for _ in range(2)]
    drawn[0][0, :3] = 0.1
    drawn[1][0, :2] = drawn[0][0, :2]
    return drawn[: len(inspect.signature(function).parameters)]


def same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
        return
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [*BOTH, *TORCH])
def test_truth_in_torch(name: str, dtype: torch.dtype) -> None:
    function = {**BOTH, **TORCH}[name]
    given = inputs(function, dtype)
    same(mirage.kernel(function)(*given), function(*given))


@pytest.mark.parametrize("name", BOTH)
def test_truth_in_numpy(name: str) -> None:
    given = [t.numpy() for t in inputs(BOTH[name], torch.float32)]
    same(mirage.kernel(BOTH[name])(*given), BOTH[name](*given))


@pytest.mark.parametrize("name", REFUSED)
def test_what_gives_no_floats_is_refused(name: str) -> None:
    function = REFUSED[name]
    with pytest.raises((DTypeError, TraceError)) as error:
        mirage.kernel(function)(*inputs(function, torch.float32))
    assert error.value.location is not None


def test_numpy_makes_wide_numbers_of_truth() -> None:
    def function(x: Any) -> Any:
        return (x > 0) * 2.0, (x > 0) + 1, (x > 0).sum(), np.exp(x > 0)

    x = inputs(lambda x: x, torch.float32)[0].numpy()
    for found, expected in zip(mirage.kernel(function)(x), function(x), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_truth_as_arguments() -> None:
    def masked(mask: Any, y: Any) -> Any:
        return torch.where(mask, y, 0.0), y.masked_fill(~mask, -1.0), mask & (y > 0)

    x, y = inputs(masked, torch.float32)
    mask = x > 0
    same(mirage.kernel(masked)(mask, y), masked(mask, y))
    found = mirage.kernel(lambda m, y: np.where(m, y, -y))(mask.numpy(), y.numpy())
    np.testing.assert_array_equal(found, np.where(mask.numpy(), y.numpy(), -y.numpy()))
    out = torch.empty(5, 8, dtype=torch.bool)
    mirage.kernel(lambda x: x > 0)(x, out=out)
    assert torch.equal(out, mask)


# -- As graphs, searched and run --------------------------------------------------

PROGRAMS: dict[str, Function] = {
    "stored": lambda x, y: x > y,
    "fused": lambda x, y: (x.exp() > 1.5) & ~(y < 0.1),
    "loaded": lambda x, m: (torch.where(m, x, 0.0).sum(1), ~m),
    "in softmax": lambda x, m: x.masked_fill(~m, -1e4).softmax(-1),
    "in a product": lambda x, y, m: (x * m.to(x.dtype)) @ y.T,
    "computed in a product": lambda x, y: (x > 0).to(x.dtype) @ y.T,
    "reduced": lambda x, m: ((x > 1.5).any(1), (x * m).sum(1)),
    "of sums": lambda x, y: ((x * x).sum(1, keepdim=True) > 30.0) * y,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_candidates_compute_truth(name: str) -> None:
    from mirage_dsl.backends.triton.running.launch import TritonExecutable

    program = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 32, generator=generator) for _ in range(2))
    given = {"x": x, "y": y, "m": torch.rand(16, 32, generator=generator) > 0.5}
    tensors = [given[n] for n in inspect.signature(program).parameters]
    bound = mirage.kernel(program).bind(*tensors)
    result = bound.search("quick", budget_seconds=4, use_cache=False)
    expected = program(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for candidate in result.candidates[:3]:
        assert parse(str(candidate.mugraph)) == candidate.mugraph
        found = TritonExecutable(candidate.mugraph, interpret=True)(*tensors)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_emitted_kernels_of_truth_compile() -> None:
    def function(m: Any, x: Any) -> Any:
        return (x * x > 0.5) & m, torch.where(m, x, 0.0)

    specs = mirage.spec((64, 64), "bool"), mirage.spec((64, 64), "float16")
    bound = mirage.kernel(function).bind(*specs)
    bound.search("quick", budget_seconds=4, use_cache=False)
    reports = mirage.compile_only(bound.mugraph, "sm_90")
    assert reports


RULES = {
    "  y: bool[m] = cast x dtype(bool)\n": "compare with 0",
    "  y: f32[m] = less x, 0\n": "is bool",
    "  c: bool[m] = less x, 0\n  y: bool[m] = add c, c\n": "is f32",
    "  y: bool[m] = mul x, 1\n": "is f32",
    (
        "  y = block grid(m / 1) {\n"
        "    t: f32[m/grid] = load x\n"
        "    store y: bool[m/grid] = t\n"
        "  }\n"
    ): "t is f32, but it is stored as bool",
}


@pytest.mark.parametrize("body", RULES)
def test_only_comparisons_make_truth(body: str) -> None:
    stated = "f32" if "f32[m] = less" in body else "bool"
    head = f"mirage 1\n\nmugraph g(x: f32[m]) -> {stated}[m] where m = 4 {{\n"
    with pytest.raises(MirageError, match=RULES[body]):
        check_or_raise(parse(f"{head}{body}  return y\n}}\n"))


CHOSEN: dict[str, Any] = {
    "a number or 0": lambda x: torch.where(x > 0, 1.0, torch.zeros_like(x)),
    "1 or 0": lambda x: torch.where(x > 0, torch.ones(4), torch.zeros(4)),
    "half precision": lambda x: torch.where(x > 0, 2.0, x.new_zeros(4).half()),
    "truth": lambda x: torch.where(x > 0, True, torch.zeros(4, dtype=torch.bool)),
    "one of each row": lambda x: torch.zeros(4, 4).scatter(1, x.long()[:, None], 1.0),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_chosen_of_constants_has_their_dtype(name: str) -> None:
    x = torch.tensor([0.0, 2.0, 3.0, 1.0])
    found, expected = mirage.kernel(CHOSEN[name])(x), CHOSEN[name](x)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_pytorchs_tensors_equal_no_text_and_not_nothing() -> None:
    def chosen(x: Any, mask: Any = None) -> Any:
        plain = x == None or mask == "causal"  # noqa: E711
        return (x, 2 * x, 3 * x)[plain + 2 * (mask != None)]  # noqa: E711

    x = torch.ones(2, 3)
    for mask in (None, x):
        found, expected = mirage.kernel(chosen)(x, mask), chosen(x, mask)
        torch.testing.assert_close(found, expected)
    with pytest.raises(TraceError, match="found NoneType"):
        mirage.kernel(chosen)(x.numpy())
