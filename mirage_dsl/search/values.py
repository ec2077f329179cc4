"""Compiled evaluation of block operators on residues modulo 2**31 - 1.

A packed shape is the mask of a value's dims, plus the bit `PIECE` if it has only one
iteration's piece of the loop dim.  Every dim has extent 2 but the whole loop dim,
which has two iterations of 2; extents of 1 would make different values equal.  The
elements of a value lie row-major by number of dim; a body value has one such array
for each iteration.
"""

# Numba has no types for its decorators, nor for compiled functions.
# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import numpy as np

from mirage_dsl.compiled import inner, once
from mirage_dsl.search.field61 import scramble64

PRIME = (1 << 31) - 1
PIECE = 1 << 48
NAMES = PIECE - 1
ITERATIONS = 2
TILE = 2

_P = np.int64(PRIME)


@inner
def extent(r, shape, dim):
    """How many elements a shape has along a dim."""
    if not (shape >> dim) & 1:
        return 1
    if dim == r.loop and not shape & PIECE:
        return ITERATIONS * TILE
    return TILE


@inner
def elements(r, shape):
    """Elements of a shape, in one iteration."""
    count = 1
    for d in range(r.dims):
        count *= extent(r, shape, d)
    return count


def element_count(shape: int, dims: int, loop: int) -> int:  # noqa: ARG001
    """`elements`, for Python."""
    whole = loop >= 0 and bool(shape >> loop & 1) and not shape & PIECE
    return TILE ** (shape & NAMES).bit_count() * (ITERATIONS if whole else 1)


@inner
def index_map(w, r, outer, inner, slot):
    """For each element of shape `outer`, the one of shape `inner` that it reads.

    Dims that `inner` lacks are ignored.  An index along the whole loop dim becomes
    the index within the tile where `inner` has a piece.  Returns the elements.
    """
    w.maps[slot, 0] = 0
    filled = 1
    stride = elements(r, inner)
    for d in range(r.dims):
        n = extent(r, outer, d)
        if n == 1:
            continue
        m = extent(r, inner, d)
        stride //= m
        # Spread the table: each entry becomes n entries, last first.
        t = n * filled
        while t:
            t -= 1
            w.maps[slot, t] = w.maps[slot, t // n] + t % n % m * stride
        filled *= n
    return filled


@once
def invert(values, source, target, count):
    """Inverses of `count` residues; False if one of them is 0."""
    for t in range(count):
        power = values[source + t]
        if power == 0:
            return False
        exponent, result = _P - 2, np.int64(1)
        while exponent:
            if exponent & 1:
                result = result * power % _P
            power = power * power % _P
            exponent >>= 1
        values[target + t] = result
    return True


@inner
def opaque(word, x):
    """One operand's step of a random function of residues."""
    return scramble64(word ^ np.uint64(x))


@once
def hash_values(values, offset, count, word):
    """A 64-bit hash of `count` residues, started with `word`."""
    for t in range(count):
        word = opaque(word, values[offset + t])
    return word
