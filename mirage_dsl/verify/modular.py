"""Arithmetic modulo primes below 2**31 on broadcasting arrays, compiled by Numba.

A product of two residues has up to 62 bits, so it fits `int64` exactly; its quotient
by the prime is found in floating point and corrected by at most one.
"""

# Numba's decorators have no types.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import guvectorize, njit, vectorize
from numpy.typing import NDArray

from mirage_dsl.settings import use_numba_cache

use_numba_cache()

IntArray = NDArray[np.int64]


@njit(inline="always")
def _product(a, b, p):
    r = a * b - np.int64(float(a) * float(b) / p) * p
    if r < 0:
        return r + p
    if r >= p:
        return r - p
    return r


@njit(inline="always")
def _power(base, exponent, p):
    result = np.int64(1)
    while exponent > 0:
        if exponent & 1:
            result = _product(result, base, p)
        base = _product(base, base, p)
        exponent >>= 1
    return result


@vectorize(["int64(int64, int64, int64)"], cache=True)
def _add(a, b, p):
    r = a + b
    return r - p if r >= p else r


@vectorize(["int64(int64, int64, int64)"], cache=True)
def _subtract(a, b, p):
    r = a - b
    return r + p if r < 0 else r


@vectorize(["int64(int64, int64, int64)"], cache=True)
def _multiply(a, b, p):
    return _product(a, b, p)


@vectorize(["int64(int64, int64, int64)"], cache=True)
def _powmod(base, exponent, p):
    return _power(base, exponent, p)


@guvectorize(
    ["void(int64[:, :], int64[:, :], int64, int64[:, :])"],
    "(m,k),(k,n),()->(m,n)",
    cache=True,
)
def _matmul(a, b, p, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = np.int64(0)
            for k in range(a.shape[1]):
                total += _product(a[i, k], b[k, j], p)
            out[i, j] = total % p


Ternary = Callable[[Any, Any, Any], IntArray]

add: Ternary = cast("Ternary", _add)
subtract: Ternary = cast("Ternary", _subtract)
multiply: Ternary = cast("Ternary", _multiply)
power: Ternary = cast("Ternary", _powmod)
"""`power(base, exponent, p)`; exponents are not reduced."""
matmul: Ternary = cast("Ternary", _matmul)
"""`matmul(a, b, p)`: matrix product of the last two axes; `p` has the leading ones."""


def inverse(a: IntArray, p: IntArray) -> IntArray:
    """1/a, and 0 where `a` is 0."""
    return power(a, p - 2, p)
