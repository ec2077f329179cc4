"""What is known while a function is traced: values of constants and positions alone.

A mask such as `torch.arange(6) % 2 == 0` is computed by the program like any other
value, but no argument changes it.  So where a shape depends on its elements, they are
computed at once, by the evaluator that is the meaning of the program.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from mirage_dsl.core.types import Scalar, f64
from mirage_dsl.frontend.program import (
    Handle,
    build_graph,
    product,
    results_of,
    sources_of,
    vars_of,
)
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir.evaluate import evaluate_numpy, numpy_dtype

MOST_ELEMENTS = 2**20
"""Of a value that is computed while a function is traced."""


def known(x: Tensor) -> np.ndarray[Any, Any] | None:
    """The elements of a tensor that no argument changes; None for others.

    Returns:
        An array of the tensor's shape and dtype.
    """
    recorder, handle = x.recorder, x.handle
    extents = [extent for extent in handle.shape if extent is not None]
    if len(extents) < len(handle.shape) or math.prod(extents) > MOST_ELEMENTS:
        return None
    dtype = numpy_dtype(handle.value.dtype)
    number = recorder.constants.get(handle.value)
    if number is not None:
        exact = _exact(recorder, number)
        return None if exact is None else np.full(extents, exact, dtype)
    if not _is_of_constants(recorder, handle):
        return None
    return _along(recorder, handle, extents, _computed(recorder, handle).astype(dtype))


def _exact(recorder: Recorder, number: Scalar) -> float | None:
    """A constant of the program, which may depend on extents; None for dynamic ones."""
    if not number.extents:
        return float(number.value)
    sizes = {name: product(recorder.dims.named(name)) for name, _ in number.extents}
    return number.known_at(sizes)


def _is_of_constants(recorder: Recorder, handle: Handle) -> bool:
    """Whether a value depends on positions and numbers alone."""
    sources = {name: node for node in recorder.nodes for name in results_of(node)}
    free = {value.name for value in recorder.counted}
    waiting, seen = [handle.value.name], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name in free:
            continue
        seen.add(name)
        node = sources.get(name)
        if node is None:
            return False
        waiting.extend(sources_of(node))
    return True


def _computed(recorder: Recorder, handle: Handle) -> np.ndarray[Any, Any]:
    """The elements, with an axis for each dim of the value, in their order."""
    # What naming the dims settles is of this value alone.
    apart = copy.copy(recorder)
    apart.dims = recorder.dims.copied()
    own = apart.dims.resolve(handle.value.dims)
    whole = Handle(handle.value, tuple((var,) for var in own))
    program = build_graph("known", apart, (), [whole])
    wide = any(value.dtype is f64 for value in recorder.made.values())
    compute = np.float64 if wide else np.float32
    (found,) = evaluate_numpy(program, compute=compute, round_casts=True)
    return found


def _along(
    recorder: Recorder,
    handle: Handle,
    extents: list[int],
    found: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """The elements along the axes of a tensor, which repeat along some of them."""
    own = recorder.dims.resolve(handle.value.dims)
    shown = recorder.dims.resolve(vars_of(handle.axes))
    moved = found.transpose([own.index(var) for var in shown if var in own])
    sizes = [var.extent or 1 for var in shown]
    there = [size if var in own else 1 for var, size in zip(shown, sizes, strict=True)]
    return np.broadcast_to(moved.reshape(there), sizes).reshape(extents)
