"""Calls with arrays: the reference semantics, traced, then evaluated at once."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from mirage_dsl.core.errors import ShapeError
from mirage_dsl.frontend.arguments import (
    bind_arguments,
    is_torch,
    leaves_of,
    refuse_modes,
    to_numpy,
    to_torch,
    without_strides,
)
from mirage_dsl.frontend.location import user_location
from mirage_dsl.ir.evaluate.floats import evaluate_numpy, numpy_dtype

if TYPE_CHECKING:
    from mirage_dsl.frontend.trace import Trace

F = TypeVar("F", bound=Callable[..., Any])

SYNONYMS = {"dim": "axis", "keepdim": "keepdims"}
"""PyTorch's names of arguments, and NumPy's."""


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array or a PyTorch tensor (without importing them)."""
    torch = sys.modules.get("torch")
    kinds: Any = np.ndarray if torch is None else (np.ndarray, torch.Tensor)
    return isinstance(value, kinds) and getattr(value, "ndim", 0) > 0


def public(function: F) -> F:
    """Let a function on symbolic tensors also take arrays.

    Where it takes NumPy's `axis` or `keepdims`, it takes PyTorch's `dim` and `keepdim`
    as well.
    """
    places = {name: at for at, name in enumerate(signature(function).parameters)}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        from mirage_dsl.frontend.tensor import Tensor

        for theirs, ours in SYNONYMS.items():
            if theirs in kwargs and ours in places and theirs not in places:
                if ours in kwargs or len(args) > places[ours]:
                    raise ShapeError(
                        f"{function.__name__}: give {ours} or {theirs}, not both",
                        user_location(),
                    )
                kwargs[ours] = kwargs.pop(theirs)
        leaves = leaves_of((args, kwargs))
        traced = any(isinstance(leaf, Tensor) for leaf in leaves)
        if traced or not any(is_array(leaf) for leaf in leaves):
            return function(*args, **kwargs)
        return call_by_reference(function, args, kwargs)

    return cast(F, called)


def call_by_reference(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Trace a function and evaluate its program on the arrays it was called with."""
    from mirage_dsl.frontend.trace import trace_call

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
