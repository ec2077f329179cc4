"""Pooling by generated kernels: right in the interpreter, compiled, faster on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.rewrite.parts import alone, in_place
from mirage_dsl.rewrite.windows import pools, with_windows
from mirage_dsl.search.budget import SearchBudget
from mirage_dsl.search.driver import search
from mirage_dsl.search.programs import structural_search
from mirage_dsl.search.result import SearchResult
from mirage_dsl.search.segments import SegmentSearch

Function = Callable[[torch.Tensor], torch.Tensor]

CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "rows": (lambda x: functional.max_pool1d(x, 8, 1, 4, 3), (2, 3, 150)),
    "rows apart": (lambda x: functional.max_pool1d(x, 3, 2, 1), (2, 3, 151)),
    "means of rows": (lambda x: functional.avg_pool1d(x, 5, 1, 2), (2, 3, 130)),
    "planes": (lambda x: functional.max_pool2d(x, 4, 1, 1), (2, 3, 13, 40)),
    "planes apart": (lambda x: functional.max_pool2d(x, 3, 2, 1), (2, 4, 12, 35)),
    "means of planes": (
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (2, 3, 12, 35),
    ),
    "one image": (lambda x: functional.max_pool2d(x, 2, 1), (1, 5, 9, 33)),
}


def searched() -> SegmentSearch:
    budget = SearchBudget()
    return SegmentSearch(structural_search(H100, 0, 1, budget.now), H100, budget=budget)


def program_of(name: str) -> KernelGraph:
    function, shape = CASES[name]
    return mirage.kernel(function).bind(mirage.spec(shape, "float32")).program


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_computes_it(name: str) -> None:
    """The kernel of a search, whatever it is estimated to take at these sizes."""
    program = program_of(name)
    (call,) = pools(program)
    function, shape = CASES[name]
    made = searched().kernel_of_pool(program, most=float("inf"))
    assert made is not None, call
    (block,) = made.blocks
    assert block.loop is None
    assert parse(str(made)) == made
    assert mirage.verify(made, program).ok
    assert all(r.spills == 0 for r in compile_only(made, "sm_90"))
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    x[0, 0, ..., 3] = float("nan")
    (found,) = TritonExecutable(made, interpret=True)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)


@pytest.mark.parametrize("shape", [(1, 3, 40), (2, 1, 40), (3, 40), (1, 1, 40)])
def test_a_kernel_stands_in_the_place_of_a_call(shape: tuple[int, ...]) -> None:
    """It loads what a caller passes by its own axes, those of one element too."""
    function: Function = lambda x: functional.max_pool1d(x, 3, 2, 1)  # noqa: E731
    program = mirage.kernel(function).bind(mirage.spec(shape, "float32")).program
    (call,) = pools(program)
    kernel = searched().kernel_of_pool(alone(program, [call]), most=float("inf"))
    assert kernel is not None
    made = in_place(program, [call], kernel)
    assert parse(str(made)) == made
    assert mirage.verify(made, program).ok
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    (found,) = TritonExecutable(made, interpret=True)(x)
    torch.testing.assert_close(found, function(x))


def test_no_kernel_computes_in_f64() -> None:
    x = mirage.spec((2, 3, 40), "float64")
    program = mirage.kernel(CASES["rows"][0]).bind(x).program
    assert searched().kernel_of_pool(program, most=float("inf")) is None


def network(x: torch.Tensor) -> torch.Tensor:
    y = functional.max_pool2d(torch.relu(x), 3, 1, 1)
    return functional.avg_pool2d(y * 2, 3, 1, 1) + 1


def test_calls_among_kernels_are_replaced() -> None:
    x = mirage.spec((32, 64, 256, 256), "float32")
    program = mirage.kernel(network).bind(x).program
    found = mirage.superoptimize(program, hardware=H100, use_cache=False)
    assert found.best.certificate is not None
    assert found.best.certificate.ok
    assert not pools(found.best.mugraph)
    assert len(found.best.mugraph.blocks) >= 2
    assert found.best.cost.microseconds < estimate(found.library, H100).microseconds


def between_convolutions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = functional.max_pool2d(torch.relu(functional.conv2d(x, w)) + 0.5, 3, 2)
    return functional.conv2d(x, w)


def of_convolutions() -> KernelGraph:
    shapes = (64, 16, 256, 256), (16, 16, 3, 3)
    specs = [mirage.spec(shape, "float32") for shape in shapes]
    return mirage.kernel(between_convolutions).bind(*specs).program


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(of_convolutions(), H100)


@pytest.mark.sample(0)
def test_among_convolutions_they_are_verified_in_sections(found: SearchResult) -> None:
    best = found.best
    assert not pools(best.mugraph)
    assert best.certificate is not None
    assert "sections" in best.certificate.reason


@pytest.mark.parametrize("which", [0, 1])
def test_what_stays_a_call_stands_for_itself(which: int) -> None:
    """The other one is written out on both sides, with its axes in another order."""
    program = of_convolutions()
    call = pools(program)[which]
    kernel = searched().kernel_of_pool(alone(program, [call]), most=float("inf"))
    assert kernel is not None
    certificate = mirage.verify(in_place(program, [call], kernel), program)
    assert certificate.ok
    assert "1 section by itself" in certificate.reason


def test_kernels_load_what_is_written_out_as_it_lies(found: SearchResult) -> None:
    graphs = [c.mugraph for c in found if c.mugraph.blocks and pools(c.mugraph)]
    assert graphs
    for graph in graphs:
        assert not check(with_windows(graph))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    function, shape = CASES[name]
    made = searched().kernel_of_pool(program_of(name), most=float("inf"))
    assert made is not None
    x = torch.randn(*shape, device="cuda")
    x[0, 0, ..., 3] = float("nan")
    (found,) = TritonExecutable(made, interpret=False)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)
