"""Fingerprints, and which of them are useful."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numba import njit

from mirage_dsl.search.closure import salt64
from mirage_dsl.search.space import Space, space_of
from mirage_dsl.search.useful import (
    MODULUS,
    Pair,
    Useful,
    add61,
    iota,
    iota61,
    is_member,
    key64,
    key_of,
    member_table,
    mul61,
    salt_of,
    scramble,
    scramble64,
    sub61,
    times,
    useful,
)
from tests.search.programs import PROGRAMS, Program


def pairs(count: int) -> list[tuple[int, int]]:
    rng = random.Random(3)
    edges = [0, 1, MODULUS - 1, 1 << 60, (1 << 32) - 1]
    values = edges + [rng.randrange(MODULUS) for _ in range(count)]
    return [(a, b) for a in values for b in values]


@njit
def _compiled(x, y):
    """All compiled operations of the field, which only compiled code can call."""
    return (
        mul61(x, y),
        add61(x, y),
        sub61(x, y),
        iota61(x),
        key64(x, y),
        scramble64(x),
    )


def test_compiled_field_is_the_field() -> None:
    for a, b in pairs(12):
        found = [int(v) for v in _compiled(np.uint64(a), np.uint64(b))]
        sums = [a * b % MODULUS, (a + b) % MODULUS, (a - b) % MODULUS]
        assert found == [*sums, iota(a), key_of((a, b)), scramble(a)]


@njit
def _salt(shape):
    return salt64(shape)


def test_compiled_salt_is_the_salt() -> None:
    for names in (0, 1, 5, 1 << 39):
        assert int(_salt(np.int64(names | 1 << 48))) == salt_of(names)


def test_formal_inverse_is_an_involution_that_does_not_cancel() -> None:
    for a, b in pairs(6):
        assert iota(a * b % MODULUS) == iota(a) * iota(b) % MODULUS
        assert iota(iota(a)) == a
        if a > 1 and a != MODULUS - 1:
            assert a * iota(a) % MODULUS != 1


@njit
def _members(table, keys):
    mask = np.uint64(len(table) - 1)
    count = 0
    for k in keys:
        count += is_member(table, mask, k)
    return count


def test_member_table_has_its_members_only() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(1, 2**63, 1000).astype(np.uint64)
    table = member_table(keys[:500])
    assert _members(table, keys) == 500
    assert _members(table, keys[500:]) == 0


def value_named(space: Space, s: Useful, name: str) -> Pair:
    index = [v.name for v in space.values].index(name)
    return s.fingerprints[index]


def has(space: Space, s: Useful, pair: Pair, dims: str) -> bool:
    salt = salt_of(space.mask(tuple(dims.split())))
    return (key_of(pair) ^ salt or 1) in s.keys


def sigma(space: Space, s: Useful, dim: str) -> Pair:
    whole = s.sigma[space.dims.index(dim)][0]
    return whole, whole


def inverted(pair: Pair) -> Pair:
    return iota(pair[0]), iota(pair[1])


def test_parts_of_a_norm_and_product() -> None:
    space = space_of(PROGRAMS["rmslin"]())
    s = useful(space, None)
    x, w = value_named(space, s, "x"), value_named(space, s, "w")
    root = value_named(space, s, "t3")
    product = times(times(x, w), sigma(space, s, "h"))
    assert has(space, s, product, "b n")
    assert has(space, s, times(product, inverted(root)), "b n")
    assert has(space, s, times(x, inverted(root)), "b h")
    assert has(space, s, times(x, x), "b h")
    # Only with more dims than any value of the program.
    assert not has(space, s, times(w, inverted(root)), "b h n")


def test_what_no_equivalent_program_computes_is_not_useful() -> None:
    space = space_of(PROGRAMS["rmslin"]())
    s = useful(space, None)
    x, w = value_named(space, s, "x"), value_named(space, s, "w")
    h = sigma(space, s, "h")
    # The right expression, but of other dims: Σ_h w * x is no part of Σ_h (w * x).
    assert not has(space, s, times(times(x, w), h), "b h n")
    # A factor may not be summed away from the others of its index.
    assert not has(space, s, times(w, h), "n")
    assert not has(space, s, times(x, h), "b")
    assert not has(space, s, times(x, times(x, x)), "b h")


def test_loop_dims_may_be_summed_in_two_steps() -> None:
    space = space_of(PROGRAMS["rmslin"]())
    s = useful(space, "h")
    x, w = value_named(space, s, "x"), value_named(space, s, "w")
    tile = s.sigma[space.dims.index("h")][1]
    loop = s.sigma_loop
    square = times(x, x)
    assert has(space, s, times(square, (loop, loop)), "b h")
    assert has(space, s, times(square, (tile, tile)), "b")
    assert has(space, s, times(times(x, w), (tile, tile)), "b n")
    assert times((tile, tile), (loop, loop)) == sigma(space, s, "h")


def test_minus_does_not_cancel() -> None:
    p = Program("p", {"m": 4, "n": 5})
    x, y = p.input("x", "m n"), p.input("y", "m n")
    space = space_of(p.returns(p.apply("add", x, p.apply("sub", y, x))))
    s = useful(space, None)
    out = s.fingerprints[space.outputs[0].value]
    a, b = value_named(space, s, "x"), value_named(space, s, "y")
    assert out[0] == b[0]
    assert out != b
    assert out[1] == (2 * a[1] + b[1]) % MODULUS


def chain(count: int) -> Space:
    p = Program("chain", {f"d{i}": 64 for i in range(count + 1)})
    value = p.input("a0", "d0 d1")
    for i in range(1, count):
        value = p.matmul(value, p.input(f"a{i}", f"d{i} d{i + 1}"), f"d{i}")
    return space_of(p.returns(value))


@pytest.mark.parametrize("count", [3, 5, 8, 12])
def test_long_chains_stay_small(count: int) -> None:
    """|S| grows with the square of the number of matrices: products of neighbours."""
    space = chain(count)
    for loop in (None, "d0", "d1", f"d{count}"):
        s = useful(space, loop)
        assert not s.truncated
        assert len(s.keys) <= 2 * count * (count + 1)


def test_what_no_operator_can_join_is_not_useful() -> None:
    space = chain(4)
    s = useful(space, None)
    a, b, c, d = (value_named(space, s, f"a{i}") for i in range(4))
    d1, d2, d3 = (sigma(space, s, f"d{i}") for i in (1, 2, 3))
    neighbours = times(times(b, c), d2)
    assert has(space, s, neighbours, "d1 d3")
    assert has(space, s, times(times(neighbours, d), d3), "d1 d4")
    assert has(space, s, times(times(neighbours, a), d1), "d0 d3")
    # No value of the program has all dims of two matrices apart.
    assert not has(space, s, times(a, c), "d0 d1 d2 d3")
    assert not has(space, s, times(times(neighbours, a), d1), "d0 d1 d3")


def test_what_is_apart_may_be_joined_where_the_program_does() -> None:
    p = Program("outer", {"m": 4, "n": 5, "k": 6})
    x, y, w = p.input("x", "m"), p.input("y", "n"), p.input("w", "m n k")
    space = space_of(p.returns(p.apply("mul", p.apply("mul", w, x), y)))
    s = useful(space, None)
    both = times(value_named(space, s, "x"), value_named(space, s, "y"))
    assert has(space, s, both, "m n")


def test_terms_of_a_sum_need_not_be_values_by_themselves() -> None:
    """((a + b) c) d: the sum joins a with what it is multiplied by."""
    p = Program("sum", {"i": 4, "j": 5, "k": 6, "l": 7})
    a, b = p.input("a", "i"), p.input("b", "i j")
    c, d = p.input("c", "j k"), p.input("d", "k l")
    both = p.apply("add", a, b)
    space = space_of(p.returns(p.matmul(both, p.matmul(c, d, "k"), "j")))
    s = useful(space, None)
    x, y, z = (value_named(space, s, n) for n in "abc")
    total = ((x[0] + y[0]) % MODULUS, (x[1] + y[1]) % MODULUS)
    assert has(space, s, times(times(total, z), sigma(space, s, "j")), "i k")


def test_a_sum_of_many_terms_is_cut_and_told() -> None:
    p = Program("many", {"m": 4})
    value = p.input("x0", "m")
    for i in range(1, 16):
        value = p.apply("add", value, p.input(f"x{i}", "m"))
    space = space_of(p.returns(value))
    s = useful(space, None)
    assert s.truncated
    assert has(space, s, s.fingerprints[-1], "m")
