"""Arithmetic modulo primes below 2**31 on broadcasting arrays, compiled by Numba.

A product of two residues has up to 62 bits, so it fits `int64` exactly; its quotient
by the prime is found in floating point and corrected by at most one.  Sums of products
take the two halves of a factor apart, and so are reduced only now and then.
"""

# Numba's decorators have no types.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import njit, types, vectorize
from numpy.typing import NDArray

from mirage_dsl.settings import use_numba_cache

use_numba_cache()

IntArray = NDArray[np.int64]

_SAFE = 32768
"""Products of a residue with one of 16 bits whose sum fits 63 bits."""
_NARROW = 16


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


def _stack(rank: int) -> Any:
    """Numba's type of a contiguous operand, which may be a view of constants."""
    return types.Array(types.int64, rank, "C", readonly=True)


@njit(inline="always")
def _dot(a, b, p, out):
    """One row by a narrow matrix, one column after the other."""
    for j in range(b.shape[1]):
        low, high = np.int64(0), np.int64(0)
        for k in range(len(a)):
            low += a[k] * (b[k, j] & 0xFFFF)
            high += a[k] * (b[k, j] >> 16)
            if k % _SAFE == _SAFE - 1:
                low, high = low % p, high % p
        out[j] = (low % p + (high % p) * 65536) % p


@njit(inline="always")
def _row(a, b, p, out):
    """One row by a wide matrix, which is read in the order of memory."""
    low, high = np.zeros(b.shape[1], np.int64), np.zeros(b.shape[1], np.int64)
    for k in range(len(a)):
        for j in range(b.shape[1]):
            low[j] += a[k] * (b[k, j] & 0xFFFF)
            high[j] += a[k] * (b[k, j] >> 16)
        if k % _SAFE == _SAFE - 1:
            for j in range(len(out)):
                low[j], high[j] = low[j] % p, high[j] % p
    # Loops, for expressions of arrays take seconds to compile.
    for j in range(len(out)):
        out[j] = (low[j] % p + (high[j] % p) * 65536) % p


# Not a generalised ufunc: Numba caches one in two files, and two processes that compile
# it at the same time leave a pair that does not fit together and crashes.
@njit(types.void(_stack(3), _stack(3), _stack(1), types.int64[:, :, ::1]), cache=True)
def _matmul(a, b, p, out):
    narrow = b.shape[2] < _NARROW
    for batch in range(out.shape[0]):
        for i in range(out.shape[1]):
            if narrow:
                _dot(a[batch, i], b[batch], p[batch], out[batch, i])
            else:
                _row(a[batch, i], b[batch], p[batch], out[batch, i])


@vectorize(["int64(int64, int64, int64)"], cache=True)
def _drawn(key, index, p):
    state = np.uint64(key) + np.uint64(index) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return np.int64(((state >> np.uint64(32)) * np.uint64(p)) >> np.uint64(32))


Ternary = Callable[[Any, Any, Any], IntArray]

add: Ternary = cast("Ternary", _add)
subtract: Ternary = cast("Ternary", _subtract)
multiply: Ternary = cast("Ternary", _multiply)
power: Ternary = cast("Ternary", _powmod)
"""`power(base, exponent, p)`; exponents are not reduced."""
drawn: Ternary = cast("Ternary", _drawn)
"""`drawn(key, index, p)`: random residues, each by its index."""


def matmul(a: IntArray, b: IntArray, p: IntArray) -> IntArray:
    """Matrix product of the last two axes; `p` has the leading ones."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], np.shape(p))
    out = np.empty((*leading, a.shape[-2], b.shape[-1]), np.int64)
    _matmul(
        _stacked(a, (*leading, *a.shape[-2:]), 2),
        _stacked(b, (*leading, *b.shape[-2:]), 2),
        _stacked(p, leading, 0),
        out.reshape(-1, *out.shape[-2:]),
    )
    return out


def _stacked(a: IntArray, shape: tuple[int, ...], kept: int) -> IntArray:
    """`a` broadcast to `shape`, all but its last `kept` axes merged into one."""
    whole = np.broadcast_to(a, shape)
    count = math.prod(shape[: len(shape) - kept])
    merged = whole.reshape(count, *shape[len(shape) - kept :])
    return np.ascontiguousarray(merged, dtype=np.int64)


def inverse(a: IntArray, p: IntArray) -> IntArray:
    """1/a, and 0 where `a` is 0."""
    return power(a, p - 2, p)
