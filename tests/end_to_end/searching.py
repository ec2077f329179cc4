"""Workloads as users would write them, and their searches, each run once a process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import mirage_dsl as mirage
from mirage_dsl.api.kernel import BoundKernel
from tests.programs.workloads import WORKLOADS, Shape, Workload

NAMES = [w.name for w in WORKLOADS]
BY_NAME = {w.name: w for w in WORKLOADS}


def kernel_of(workload: Workload) -> mirage.Kernel:
    """The workload as a user would write it."""
    names = ", ".join(workload.full)
    scope: dict[str, Any] = {"function": workload.function, "m": mirage}
    exec(f"def {workload.name}({names}): return function(m, {names})", scope)
    return mirage.kernel(scope[workload.name])


def bound_kernel(name: str, *, small: bool) -> BoundKernel:
    """The workload bound to its small or published shapes."""
    workload = BY_NAME[name]
    shapes = workload.small if small else workload.full
    specs = [mirage.spec(s, workload.dtype) for s in shapes.values()]
    return kernel_of(workload).bind(*specs)


@functools.cache
def searched(name: str, small: bool) -> BoundKernel:
    """The workload after its search, at small or published sizes."""
    bound = bound_kernel(name, small=small)
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


def relative_error(found: Any, exact: Any) -> float:
    """‖found - exact‖ / ‖exact‖, for one tensor and one float64 array."""
    values = found.double().numpy() if hasattr(found, "double") else found
    assert values.shape == exact.shape
    return float(np.linalg.norm(values - exact) / max(np.linalg.norm(exact), 1e-30))
