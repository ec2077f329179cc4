"""Programs around convolutions and pooling, searched and run, beside PyTorch."""

# Names of dims in annotations are no names of types.
# ruff: noqa: F821, UP037

from __future__ import annotations

import functools

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.backends.reference import run_reference
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.definition import Kind
from mirage_dsl.rewrite.windows import with_windows
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult
from tests.programs.windows import MODELS, ROWS

F = torch.nn.functional
LAUNCHES = {
    "residual": 2,
    "normed": 2,
    "transposed": 2,
    "blocks": 4,
    "product, pooled": 4,
}
"""Most kernels, of PyTorch's and of ours."""


@functools.cache
def searched(name: str) -> SearchResult:
    """Without several kernels as one space, which takes longer and finds the same."""
    return search(MODELS[name].traced, H100, k=2, max_kernels=1)


def library(graph: KernelGraph) -> list[str]:
    return [n.op.function for n in graph.applies if n.op.kind is Kind.LIBRARY]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MODELS)
def test_what_is_around_them_is_fused(name: str) -> None:
    best = searched(name).candidates[0]
    assert best.certificate is not None
    assert best.certificate.ok
    assert best.mugraph.blocks
    program = MODELS[name].traced
    # Pooling may be a kernel too.
    both = (program, with_windows(program))
    assert library(best.mugraph) in [library(graph) for graph in both]
    assert best.cost.launches <= LAUNCHES[name]
    assert parse(str(best.mugraph)) == best.mugraph


@pytest.mark.parametrize("name", MODELS)
def test_what_is_found_computes_what_pytorch_does(name: str) -> None:
    inputs = MODELS[name].inputs(seed=1)
    exact = MODELS[name].function(*(i.double() for i in inputs))
    for candidate in searched(name).candidates:
        run = TritonExecutable(candidate.mugraph, interpret=True)
        (found,) = run(*inputs)
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
        (again,) = run_reference(candidate.mugraph, *inputs)
        torch.testing.assert_close(again.double(), exact, rtol=1e-5, atol=1e-6)


def test_operands_may_have_their_channels_last() -> None:
    """PyTorch gives a result then whose strides no kernel was compiled for."""
    x, *weights = MODELS["residual"].inputs(seed=2)
    moved = x.contiguous(memory_format=torch.channels_last)
    assert not moved.is_contiguous()
    best = searched("residual").candidates[0].mugraph
    run = TritonExecutable(best, interpret=True)
    exact = MODELS["residual"].function(x, *weights)
    for operand in (x, moved):
        torch.testing.assert_close(
            run(operand, *weights)[0], exact, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ROWS)
def test_a_row_runs_as_a_library_kernel(name: str) -> None:
    inputs = ROWS[name].inputs(seed=3)
    (found,) = TritonExecutable(ROWS[name].traced, interpret=True)(*inputs)
    expected = ROWS[name].function(*inputs)
    # Outside of its domain a function is NaN.
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert found.is_contiguous()


def batches(
    x: mirage.f32["b", 4, 6, 5],
    w: mirage.f32[4, 4, 3, 3],
) -> torch.Tensor:
    return torch.relu(F.conv2d(x, w, padding=1)) + x


def widths(
    x: mirage.f32[2, 4, 6, "w"],
    w: mirage.f32[4, 4, 3, 3],
) -> torch.Tensor:
    return F.conv2d(x, w, padding=1)


def test_batches_may_be_dynamic() -> None:
    kernel = mirage.kernel(dynamic=("b",))(batches)
    w = torch.randn(4, 4, 3, 3)
    with INTERPRET.scope(value=True):
        for b in (3, 2, 5):
            x = torch.randn(b, 4, 6, 5)
            found = kernel(x, w)
            torch.testing.assert_close(found, batches(x, w), rtol=1e-4, atol=1e-5)


def test_what_a_shape_depends_on_may_not() -> None:
    with pytest.raises(UnsupportedError, match="dynamic dim"):
        mirage.kernel(dynamic=("w",))(widths).trace(
            torch.zeros(2, 4, 6, 5), torch.zeros(4, 4, 3, 3)
        )
