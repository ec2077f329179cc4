"""The reference semantics on NumPy arrays and PyTorch tensors of the CPU."""

# PyTorch's bridge to NumPy is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage_dsl.frontend.given import is_torch, refuse_modes
from mirage_dsl.frontend.trace import Trace, bind_arguments, trace_call, without_strides
from mirage_dsl.frontend.tree import leaves_of
from mirage_dsl.ir.evaluate.floats import evaluate_numpy, numpy_dtype


def call_by_reference(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Trace a function and evaluate its program on the arrays it was called with."""
    refuse_modes(leaves_of((args, kwargs)))
    arguments = without_strides(bind_arguments(function, args, kwargs))
    trace = trace_call(function, arguments)
    return evaluate_trace(trace, arguments.tensors)


def evaluate_trace(trace: Trace, tensors: Sequence[Any]) -> Any:
    """Evaluate a traced program in float64, rounded to its dtypes at the end.

    PyTorch tensors among the arguments make the results PyTorch tensors.
    """
    arrays = [to_numpy(t) for t in tensors]
    results = evaluate_numpy(trace.program, *arrays)
    with np.errstate(over="ignore"):
        rounded = [
            np.asarray(r).astype(numpy_dtype(ret.type.dtype))
            for r, ret in zip(results, trace.program.returns, strict=True)
        ]
    if any(is_torch(t) for t in tensors):
        return trace.rebuild(trace.alike([to_torch(r) for r in rounded], tensors))
    return trace.rebuild(rounded)


def to_numpy(value: Any) -> Any:
    """An array on the same memory; bfloat16 as `ml_dtypes` has it."""
    if not is_torch(value):
        return value
    value = value.detach()
    if str(value.dtype) == "torch.bfloat16":
        import torch

        bits = value.view(torch.int16).numpy()
        return bits.view(_bfloat16())
    return value.numpy()


def to_torch(array: Any) -> Any:
    """A PyTorch tensor on the same memory."""
    import torch

    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype == _bfloat16():
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
