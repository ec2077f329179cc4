"""Formulas of the operator table that are longer than a line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mirage_dsl.ops.definition import Array
from mirage_dsl.types import scalar

_ONE = scalar(1)


def sigmoid_field(f: Any, x: Any) -> Any:
    """The logistic function through the exponential, over any algebra."""
    one = f.constant(_ONE)
    return f.div(one, f.add(one, f.exp(f.sub(f.constant(scalar(0)), x))))


def tanh_field(f: Any, x: Any) -> Any:
    """The hyperbolic tangent through the exponential, over any algebra."""
    return f.sub(
        f.mul(f.constant(scalar(2)), sigmoid_field(f, f.add(x, x))), f.constant(_ONE)
    )


def silu_gradient(m: Any, x: Any, y: Any, g: Any) -> tuple[Any, ...]:
    """The upstream gradient times the slope of x * sigmoid(x)."""
    one = m.constant(_ONE)
    gate = sigmoid_field(m, x[0])
    return (m.mul(g, m.add(gate, m.mul(y, m.sub(one, gate)))),)


def bell(m: Any, x: Any) -> Any:
    """The slope of the error function."""
    square = m.sub(m.constant(scalar(0)), m.mul(x, x))
    return m.mul(m.exp(square), m.constant(scalar(2 / math.sqrt(math.pi))))


def erf(x: Array) -> Array:
    """The error function, element by element."""
    values = np.asarray(x)
    exact = np.vectorize(math.erf, otypes=[np.float64])(values.astype(np.float64))
    return exact.astype(values.dtype)


def stable_sigmoid(x: Array) -> Array:
    """The logistic function, without overflow for any operand."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), dtype=np.asarray(x).dtype)


def rowshift(a: Array, axes: tuple[int, ...]) -> Array:
    """The maximum, by which a row of exponents is shifted.

    For a masked row it is a finite number that no other row's maximum is below, so that
    a larger maximum can still be taken over both.
    """
    largest: Array = np.max(a, axis=axes)
    lowest = np.asarray(np.finfo(np.float16).min, largest.dtype)
    return np.where(np.isneginf(largest), lowest, largest)
