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

from mirage_dsl.search.compiled import inner, once
from mirage_dsl.search.field61 import scramble64

PRIME = (1 << 31) - 1
PIECE = 1 << 48
NAMES = PIECE - 1
ITERATIONS = 2
TILE = 2

_P = np.int64(PRIME)
_UP = np.uint64(PRIME)


@inner
def extent(shape, dim, loop):
    """How many elements a shape has along a dim."""
    if not (shape >> dim) & 1:
        return 1
    if dim == loop and not shape & PIECE:
        return ITERATIONS * TILE
    return TILE


@inner
def elements(shape, dims, loop):
    """Elements of a shape, in one iteration."""
    count = 1
    for d in range(dims):
        count *= extent(shape, d, loop)
    return count


def element_count(shape: int, dims: int, loop: int) -> int:  # noqa: ARG001
    """`elements`, for Python."""
    whole = loop >= 0 and bool(shape >> loop & 1) and not shape & PIECE
    return TILE ** (shape & NAMES).bit_count() * (ITERATIONS if whole else 1)


@inner
def index_map(outer, inner, dims, loop, table):
    """For each element of shape `outer`, the one of shape `inner` that it reads.

    Dims that `inner` lacks are ignored.  An index along the whole loop dim becomes
    the index within the tile where `inner` has a piece.
    """
    table[0] = 0
    filled = 1
    stride = elements(inner, dims, loop)
    for d in range(dims):
        n = extent(outer, d, loop)
        if n == 1:
            continue
        m = extent(inner, d, loop)
        stride //= m
        # Spread the table: each entry becomes n entries, last first.
        for t in range(filled - 1, -1, -1):
            base = table[t]
            for i in range(n - 1, -1, -1):
                table[t * n + i] = base + (i % m) * stride
        filled *= n
    return filled


@once
def loop_map(shape, dims, loop, table):
    """For each element of a shape with the whole loop dim, its iteration."""
    only = np.int64(1) << loop
    filled = index_map(shape, only, dims, loop, table)
    for t in range(filled):
        table[t] //= TILE


@once
def inverse31(x):
    """Inverse of a non-zero residue."""
    exponent, result, power = _P - 2, np.int64(1), x
    while exponent:
        if exponent & 1:
            result = result * power % _P
        power = power * power % _P
        exponent >>= 1
    return result


@once
def invert(values, source, target, count):
    """Inverses of `count` residues; False if one of them is 0."""
    for t in range(count):
        x = values[source + t]
        if x == 0:
            return False
        values[target + t] = inverse31(x)
    return True


@once
def add_elements(values, a, a_map, b, b_map, sign, target, count):
    """Target = a + sign * b, elementwise over maps."""
    for t in range(count):
        x = values[a + a_map[t]] + sign * values[b + b_map[t]]
        values[target + t] = (x + _P) % _P


@once
def add_products(values, a, a_map, b, b_map, target, target_map, count):
    """target[map] += a * b: a product, or with a smaller target a contraction."""
    for t in range(count):
        at = target + target_map[t]
        x = values[a + a_map[t]] * values[b + b_map[t]]
        values[at] = (values[at] + x) % _P


@inner
def add_onto(values, a, target, target_map, count):
    """target[map] += a: a sum."""
    for t in range(count):
        at = target + target_map[t]
        values[at] = (values[at] + values[a + t]) % _P


@inner
def largest_onto(values, a, target, target_map, count):
    """target[map] = max(target, a), in the order of residues."""
    for t in range(count):
        at = target + target_map[t]
        values[at] = max(values[at], values[a + t])


@inner
def opaque(word, x):
    """One operand's step of a random function of residues."""
    return scramble64(word ^ np.uint64(x))


@once
def residue_of(word):
    """The residue that a word of a random function stands for."""
    return np.int64(word % _UP)


@once
def hash_values(values, offset, count, word):
    """A 64-bit hash of `count` residues, started with `word`."""
    for t in range(count):
        word = scramble64(word ^ np.uint64(values[offset + t]))
    return word
