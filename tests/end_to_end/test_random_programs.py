"""Programs that nobody wrote go down the whole road: right, in time, without a crash.

A random program is traced, searched with a small budget, verified, emitted, and run in
Triton's interpreter against NumPy in float64.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.api.kernel import BoundKernel
from mirage_dsl.core.types import dtype_named
from mirage_dsl.ir.check import check
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import SearchResult
from tests.end_to_end.searching import relative_error
from tests.programs.random_programs import SOON, RandomProgram, random_program

ODD = (2, 3, 5, 77, 1000, 4099)
"""Extents that tiles do not divide, more than one tile of them."""

BUDGET_SECONDS = 1.5
WHOLE_SECONDS = 600.0
"""The budget of searches that do not end by the clock."""
MOST_SECONDS = 20.0
"""For one program; a loaded machine needs a few times what an idle one does."""

FEW = [*range(16), *range(1000, 1012)]
MANY = [*range(16, 130), *range(1012, 1070)]


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Compile the search outside of everybody's time."""
    bound(random_program(3)).search(effort="quick")


def program_of(seed: int) -> RandomProgram:
    """Small extents, or odd ones of up to some thousands from seed 1000 on."""
    return random_program(seed, extents=ODD) if seed >= 1000 else random_program(seed)


def bound(program: RandomProgram) -> BoundKernel:
    """The program as a user would bind it."""
    names = ", ".join(program.shapes)
    scope: dict[str, Any] = {"function": program.function, "m": mirage}
    exec(f"def program({names}): return function(m, {names})", scope)
    return mirage.kernel(scope["program"]).bind(*program.specs)


@functools.cache
def searched(seed: int) -> SearchResult:
    """What a small budget finds."""
    kernel = bound(program_of(seed))
    return kernel.search(effort="quick", budget_seconds=BUDGET_SECONDS)


def tensors_of(program: RandomProgram) -> list[Any]:
    """Random inputs in the program's format."""
    import torch

    dtype = getattr(torch, program.dtype)
    return [torch.from_numpy(a).to(dtype) for a in program.inputs()]


def errors(graph: KernelGraph, program: RandomProgram) -> list[float]:
    """Relative errors of all outputs, with what is emitted run by the interpreter."""
    from mirage_dsl.backends.triton.running.launch import TritonExecutable

    tensors = tensors_of(program)
    exact = program.expected(*(t.double().numpy() for t in tensors))
    outputs = TritonExecutable(graph, interpret=True)(*tensors)
    return [relative_error(o, e) for o, e in zip(outputs, exact, strict=True)]


def go_down_the_road(seed: int) -> None:
    """Everything that a first call does, for all candidates that have kernels."""
    program = program_of(seed)
    started = time.monotonic()
    result = searched(seed)
    dtype = dtype_named(program.dtype)
    assert dtype is not None
    rounding = [max(8 * dtype.epsilon, 4 * e) for e in errors(result.program, program)]
    for candidate in result.candidates[:2]:
        assert not check(candidate.mugraph)
        assert candidate.certificate is not None
        assert candidate.certificate.ok, candidate.certificate
        found = errors(candidate.mugraph, program)
        for error, allowed in zip(found, rounding, strict=True):
            assert error < allowed, f"{program.source}\n{candidate.mugraph}"
    assert time.monotonic() - started < MOST_SECONDS, program.source


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", FEW)
def test_random_programs(seed: int) -> None:
    go_down_the_road(seed)


@pytest.mark.sample(0)
@pytest.mark.parametrize("seed", MANY)
def test_more_random_programs(seed: int) -> None:
    go_down_the_road(seed)


@pytest.mark.sample(0)
def test_most_random_programs_become_one_kernel() -> None:
    graphs = [
        bound(program_of(seed)).search(budget_seconds=WHOLE_SECONDS).best.mugraph
        for seed in SOON
    ]
    fused = [g for g in graphs if len(g.blocks) == 1]
    assert len(fused) > 0.7 * len(graphs)
