"""Operands in several dtypes: refused where PyTorch refuses, else of its result dtype.

NumPy's functions and ours promote.  What traces runs alike by reference
and on library kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import CheckError, MirageError, TraceError, UnsupportedError
from mirage_dsl.core.types import f16, f32
from mirage_dsl.ir.builder import KernelBuilder

HALF, WIDE, BRAIN = torch.float16, torch.float32, torch.bfloat16

FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul": (torch.matmul, [(4, 8), (8, 4)]),
    "an operator": (lambda x, y: x @ y, [(4, 8), (8, 4)]),
    "a method": (lambda x, y: x.matmul(y), [(4, 8), (8, 4)]),
    "bilinear": (
        lambda x, y: F.bilinear(x, y, x[:, None] * x[0]),
        [(8, 8), (8, 8)],
    ),
    "matmul of vectors": (torch.matmul, [(8,), (8,)]),
    "mm": (lambda x, y: x.mm(y), [(4, 8), (8, 4)]),
    "bmm": (lambda x, y: x.bmm(y), [(2, 4, 8), (2, 8, 4)]),
    "mv": (torch.mv, [(4, 8), (8,)]),
    "dot": (torch.dot, [(8,), (8,)]),
    "linear": (F.linear, [(4, 8), (6, 8)]),
    "a bias": (lambda x, b: F.linear(x, x, bias=b), [(4, 8), (4,)]),
    "addmm": (lambda x, y: torch.addmm(y, x, x), [(4, 4), (4, 4)]),
    "baddbmm": (lambda x, y: torch.baddbmm(x, y, y), [(2, 4, 4), (2, 4, 4)]),
    "einsum": (lambda x, y: torch.einsum("ij,jk", x, y), [(4, 8), (8, 3)]),
    "einsum of rows": (lambda x, y: torch.einsum("ij,ij->i", x, y), [(4, 8), (4, 8)]),
    "einsum without sums": (
        lambda x, y: torch.einsum("i,j->ij", x, y),
        [(4,), (8,)],
    ),
    "einsum of one by one": (
        lambda x, y: torch.einsum("ij,ij->ij", x, y),
        [(4, 8), (4, 8)],
    ),
    "keys": (
        lambda x, y: F.scaled_dot_product_attention(x, y, y),
        [(1, 4, 8), (1, 4, 8)],
    ),
    "values": (
        lambda x, y: F.scaled_dot_product_attention(x, x, y),
        [(1, 4, 8), (1, 4, 8)],
    ),
    "a mask": (
        lambda x, y: F.scaled_dot_product_attention(x, x, x, y),
        [(1, 4, 8), (4, 4)],
    ),
    "layer_norm": (lambda x, y: F.layer_norm(x, (8,), y, y), [(4, 8), (8,)]),
    "rms_norm": (lambda x, y: F.rms_norm(x, (8,), y), [(4, 8), (8,)]),
    "group_norm": (lambda x, y: F.group_norm(x, 2, y, y), [(4, 8), (8,)]),
    "batch_norm": (lambda x, y: F.batch_norm(x, y, y * y + 1), [(4, 8), (8,)]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), [(4, 8), (4, 8)]),
    "prelu": (F.prelu, [(4, 8), (8,)]),
    "outer": (torch.outer, [(4,), (8,)]),
    "addcmul": (lambda x, y: torch.addcmul(x, y, x), [(4,), (4,)]),
    "where": (lambda x, y: torch.where(x > 0, x, y), [(4,), (4,)]),
    "cat": (lambda x, y: torch.cat([x, y]), [(4,), (4,)]),
    "mse_loss": (F.mse_loss, [(4,), (4,)]),
}


def interpreted(function: Callable[..., Any], tensors: list[Any]) -> Any:
    """What library kernels give."""
    program = mirage.kernel(function).trace(*tensors)
    (found,) = TritonExecutable(program, interpret=True)(*tensors)
    return found


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtypes", [(HALF, WIDE), (WIDE, HALF), (BRAIN, HALF)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_mixtures_do_as_in_pytorch(name: str, dtypes: tuple[Any, Any]) -> None:
    function, shapes = FUNCTIONS[name]

    def called(x: Any, y: Any) -> Any:
        return function(x, y)

    torch.manual_seed(0)
    given = [torch.randn(s).to(d) for s, d in zip(shapes, dtypes, strict=True)]
    try:
        expected = function(*given)
    except RuntimeError:
        with pytest.raises(TraceError, match="one dtype") as error:
            mirage.kernel(called)(*given)
        assert error.value.location is not None
        return
    for found in (mirage.kernel(called)(*given), interpreted(called, given)):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "function",
    [
        np.matmul,
        np.dot,
        lambda x, y: np.einsum("ij,jk->ik", x, y),
        mirage.matmul,
        lambda x, y: mirage.linear(x, mirage.transpose(y)),
    ],
)
def test_products_promote_elsewhere(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).half()
    y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    expected = x.float() @ y
    for a, b, product in ((x, y, expected), (y.T, x.T, expected.T)):
        for found in (
            mirage.kernel(lambda x, y: function(x, y))(a, b),
            interpreted(lambda x, y: function(x, y), [a.contiguous(), b.contiguous()]),
        ):
            assert found.dtype == WIDE
            torch.testing.assert_close(found, product, rtol=1e-5, atol=1e-5)


def test_a_mixed_product_in_a_text_is_refused() -> None:
    g = KernelBuilder("mixed", m=4, k=8, n=3)
    x, w = g.input("x", f16, "m, k"), g.input("w", f32, "k, n")
    with pytest.raises(CheckError, match="one dtype"):
        g.returns(g.matmul(x, w, over="k")).build()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, m: F.batch_norm(x, m, m, training=True),
        lambda x, m: F.batch_norm(x, m, None, training=True),
        lambda x, m: F.batch_norm(x, None, None, m, training=False),
        lambda x, m: F.batch_norm(x, m, None),
    ],
)
def test_statistics_of_batch_norm_are_neither_forgotten_nor_invented(
    function: Callable[..., Any],
) -> None:
    with pytest.raises(MirageError, match="running") as error:
        mirage.kernel(function)(torch.randn(4, 8), torch.ones(8))
    assert isinstance(error.value, UnsupportedError)
    assert error.value.location is not None
    assert "F.batch_norm" in error.value.location.text


def test_batch_norm_by_the_batch() -> None:
    def by_batch(x: Any, w: Any) -> Any:
        return F.batch_norm(x, None, None, w, w, training=True, momentum=0.3)

    x, w = torch.randn(6, 4), torch.randn(4)
    torch.testing.assert_close(mirage.kernel(by_batch)(x, w), by_batch(x, w))
