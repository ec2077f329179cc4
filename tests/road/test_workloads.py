"""Every workload goes down the same road: traced, searched, verified, emitted, run."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.frontend.bound import BoundKernel
from mirage_dsl.ir.check import check
from mirage_dsl.testing import reference
from mirage_dsl.testing.workloads import WORKLOADS, Shape, Workload

TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}
"""Relative errors that rounding of storage and products explains at small sizes."""


def kernel_of(workload: Workload) -> mirage.Kernel:
    """The workload as a user would write it."""
    names = ", ".join(workload.full)
    scope: dict[str, Any] = {"function": workload.function, "m": mirage}
    exec(f"def {workload.name}({names}): return function(m, {names})", scope)
    return mirage.kernel(scope[workload.name])


@functools.cache
def searched(name: str, small: bool) -> BoundKernel:
    """The workload after its search, at small or published sizes."""
    workload = next(w for w in WORKLOADS if w.name == name)
    shapes = workload.small if small else workload.full
    specs = [mirage.spec(s, workload.dtype) for s in shapes.values()]
    bound = kernel_of(workload).bind(*specs)
    bound.search(effort="quick")
    return bound


def draw(shapes: dict[str, Shape], seed: int) -> list[np.ndarray[Any, Any]]:
    """Random inputs; weights are scaled so that products stay of order one."""
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal(s) for s in shapes.values()]
    for i, name in enumerate(shapes):
        if name.startswith(("w", "a", "b")) and arrays[i].ndim > 1:
            arrays[i] /= arrays[i].shape[-2] ** 0.5
        if name == "var":
            arrays[i] = np.abs(arrays[i])
    return arrays


NAMES = [w.name for w in WORKLOADS]
BY_NAME = {w.name: w for w in WORKLOADS}


@pytest.mark.parametrize("name", NAMES)
def test_found_and_verified(name: str) -> None:
    bound = searched(name, small=False)
    for candidate in bound.search():
        assert not check(candidate.mugraph)
        assert candidate.certificate is not None
        assert candidate.certificate.equivalent
        assert mirage.parse(str(candidate.mugraph)) == candidate.mugraph


@pytest.mark.parametrize("name", NAMES)
def test_runs_right_in_the_interpreter(name: str) -> None:
    import torch

    from mirage_dsl.backends.triton.launch import Executable

    workload, bound = BY_NAME[name], searched(name, small=True)
    assert bound.mugraph.blocks, "nothing of it became a fused kernel"
    run = Executable(bound.mugraph, interpret=True)
    arrays = draw(workload.small, seed=5)
    dtype = getattr(torch, workload.dtype)
    tensors = [torch.from_numpy(a).to(dtype) for a in arrays]
    (out,) = run(*tensors)
    exact = workload.function(reference, *(t.double().numpy() for t in tensors))
    error = np.linalg.norm(out.double().numpy() - exact) / np.linalg.norm(exact)
    assert out.shape == exact.shape
    assert error < TOLERANCE[workload.dtype]


@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_hopper(name: str) -> None:
    from mirage_dsl.backends.triton.screen import compile_only

    for report in compile_only(searched(name, small=False).mugraph, target="sm_90"):
        assert report.cubin_bytes > 0
        assert not report.spills, report
