"""Arithmetic of fingerprints, modulo 2**61 - 1: once on integers, once compiled.

The Python half serves the few terms of a program, the compiled half the millions of
the closure.  `tests/search/test_abstract.py` holds them to each other.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mirage_dsl.core.compiled import inner, once

MODULUS = (1 << 61) - 1
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_SECOND = 0xD6E8FEB86659FD93


def _involution() -> int:
    """The exponent k of `iota`, with k*k = 1 modulo 2**61 - 2, neither 1 nor -1.

    Chosen by the Chinese remainder theorem as 1 or -1 modulo each prime power.
    """
    order = MODULUS - 1
    signs = {2: 1, 9: -1, 25: 1, 7: -1, 11: 1, 13: -1}
    signs |= {31: 1, 41: -1, 61: 1, 151: -1, 331: 1, 1321: -1}
    terms = [sign * (order // m) * pow(order // m, -1, m) for m, sign in signs.items()]
    return sum(terms) % order


Words = NDArray[np.uint64]

IOTA = _involution()


def iota(x: int) -> int:
    """The formal inverse: a multiplicative involution that cancels nothing."""
    return pow(x, IOTA, MODULUS)


def scramble(x: int) -> int:
    """A bijection of 64-bit words that looks random (splitmix64)."""
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def key_of(pair: tuple[int, int]) -> int:
    """One word for a fingerprint; never 0, which marks free slots of hash tables."""
    return (pair[0] ^ (pair[1] * _SECOND & _MASK)) & _MASK or 1


def word_of(text: str) -> int:
    """A 64-bit word that depends on `text` alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def element_of(text: str) -> int:
    """A random non-zero field element that depends on `text` alone."""
    return scramble(word_of(text)) % (MODULUS - 1) + 1


def function_pair(word: int, keys: Sequence[int]) -> tuple[int, int]:
    """The fingerprint of an opaque function of operands with these keys."""
    for key in keys:
        word = scramble(word ^ key)
    return scramble(word) % MODULUS, scramble(word ^ 0x5555) % MODULUS


_U = np.uint64
_P = _U(MODULUS)
_KI = _U(IOTA)


@inner
def mul61(a, b):
    """Product of two residues below 2**61 - 1."""
    al, ah = a & _U(0xFFFFFFFF), a >> _U(32)
    bl, bh = b & _U(0xFFFFFFFF), b >> _U(32)
    low, mid, high = al * bl, ah * bl + al * bh, ah * bh
    r = high * _U(8) + (mid >> _U(29)) + ((mid & _U(0x1FFFFFFF)) << _U(32))
    r += (low & _P) + (low >> _U(61))
    r = (r & _P) + (r >> _U(61))
    if r >= _P:
        r -= _P
    return r


@inner
def add61(a, b):
    """Sum of two residues."""
    r = a + b
    if r >= _P:
        r -= _P
    return r


@inner
def sub61(a, b):
    """Difference of two residues."""
    return add61(a, _P - b)


@inner
def iota61(x):
    """The formal inverse of a residue."""
    exponent, result, power = _KI, _U(1), x
    while exponent:
        if exponent & _U(1):
            result = mul61(result, power)
        power = mul61(power, power)
        exponent >>= _U(1)
    return result


@inner
def scramble64(x):
    """`scramble` on an unsigned word."""
    x = x + _U(_GOLDEN)
    x = (x ^ (x >> _U(30))) * _U(_MIX_1)
    x = (x ^ (x >> _U(27))) * _U(_MIX_2)
    return x ^ (x >> _U(31))


@inner
def key64(a, b):
    """`key_of` on unsigned words."""
    k = a ^ (b * _U(_SECOND))
    if k == _U(0):
        k = _U(1)
    return k


def member_table(keys: Words) -> Words:
    """An open-addressing table of non-zero words, at most a quarter full."""
    size = 16
    while size < 4 * len(keys):
        size *= 2
    table, mask = np.zeros(size, np.uint64), _U(size - 1)
    at = ((keys * _U(_GOLDEN)) >> _U(20)) & mask
    while len(keys):
        free = table[at] == 0
        table[at[free]] = keys[free]
        left = table[at] != keys
        keys, at = keys[left], (at[left] + _U(1)) & mask
    return table


@once
def is_member(table, mask, x):
    """Whether `x` is in a table made by `member_table`, of `mask + 1` slots."""
    i = ((x * _U(_GOLDEN)) >> _U(20)) & mask
    while table[i] != _U(0):
        if table[i] == x:
            return True
        i = (i + _U(1)) & mask
    return False
