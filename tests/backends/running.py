"""Runs μGraphs in Triton's interpreter and compares with the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import DType
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import bind_extents

TORCH = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f64": torch.float64,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
}
TOLERANCE = {"f16": 4e-3, "bf16": 3e-2, "f32": 3e-6, "f64": 1e-12, "bool": 0.0}
TOLERANCE |= dict.fromkeys(("f8e4m3", "f8e5m2"), 4e-3)
TOLERANCE |= dict.fromkeys(("i8", "u8", "i16", "i32", "i64"), 0.0)
"""Largest error allowed, relative to the largest element of the result."""


def shape_of(graph: KernelGraph, index: int, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of an input."""
    extents = {n: e for n, e in graph.extents if e is not None} | sizes
    axes = graph.inputs[index].type.axes
    return tuple(int(np.prod([extents[d.name] for d in axis])) for axis in axes)


def random_inputs(
    graph: KernelGraph, seed: int = 0, low: float | None = None, **sizes: int
) -> list[torch.Tensor]:
    """Tensors for a graph, normal or, with `low`, uniform from there to 4.

    Memory is in the order that the input's layout says.
    """
    generator = torch.Generator().manual_seed(seed)
    made: list[torch.Tensor] = []
    for index, item in enumerate(graph.inputs):
        shape = shape_of(graph, index, sizes)
        order = item.type.order
        stored = [shape[a] for a in order]
        x = torch.randn(stored, generator=generator)
        if low is not None:
            x = low + (4 - low) * torch.rand(stored, generator=generator)
        if item.type.dtype.is_integer:
            # Divisors are not 0, and no number is shifted out of its format.
            x = (20 * x).clamp(min=item.type.dtype.min) if index == 0 else 1 + x**2 % 3
        x = x.permute([order.index(a) for a in range(len(order))])
        made.append(x.to(TORCH[item.type.dtype.name]))
    return made


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor in float64."""
    return tensor.double().cpu().numpy()


def check(
    graph: KernelGraph,
    inputs: Sequence[torch.Tensor] | None = None,
    *,
    tolerance: float | None = None,
    **sizes: int,
) -> list[torch.Tensor]:
    """Interpret the emitted module; its outputs must be the evaluator's.

    Where there is a GPU the module is compiled and run there as well.
    """
    tensors = list(inputs) if inputs is not None else random_inputs(graph, **sizes)
    bind_extents(graph, [tuple(t.shape) for t in tensors])
    found = TritonExecutable(graph, interpret=True)(*tensors)
    expected = evaluate_numpy(graph, *[as_array(t) for t in tensors])
    compare(graph, found, expected, tolerance or allowed(graph))
    if torch.cuda.is_available():
        on_gpu = TritonExecutable(graph)(*[t.cuda() for t in tensors])
        least = max(tolerance or allowed(graph), 2e-5)
        compare(graph, [t.cpu() for t in on_gpu], expected, least)
    return found


def compare(
    graph: KernelGraph,
    found: Sequence[torch.Tensor],
    expected: Sequence[NDArray[Any]],
    tolerance: float,
) -> None:
    """Hold outputs to the right ones: number, dtypes, shapes, elements."""
    assert len(found) == len(expected)
    for one, right, item in zip(found, expected, graph.returns, strict=True):
        assert str(one.dtype) == f"torch.{item.type.dtype.long_name}"
        assert tuple(one.shape) == right.shape
        assert_near(as_array(one), right, tolerance)


def allowed(graph: KernelGraph) -> float:
    """The tolerance of the coarsest dtype of a graph."""
    dtypes: list[DType] = [i.type.dtype for i in graph.inputs]
    dtypes += [r.type.dtype for r in graph.returns]
    return max(TOLERANCE[d.name] for d in dtypes)


def assert_near(found: NDArray[Any], right: NDArray[Any], tolerance: float) -> None:
    """Errors are at most `tolerance` of the largest element."""
    assert np.array_equal(np.isfinite(found), np.isfinite(right))
    scale = max(1e-30, float(np.abs(right[np.isfinite(right)]).max(initial=0)))
    finite = np.isfinite(right)
    np.testing.assert_array_equal(found[~finite], right[~finite])
    error = float(np.abs(found[finite] - right[finite]).max(initial=0)) / scale
    assert error <= tolerance, f"error {error:.3g}, allowed {tolerance:.3g}"
