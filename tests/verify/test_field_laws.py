"""Laws of the field semantics, for every row of the operator table."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import Scalar, scalar
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ops.definition import Kind, Operator
from mirage_dsl.ops.makers import EXACT
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.verify import fields
from mirage_dsl.verify.algebra import (
    INVALID,
    MASKED,
    RAISED,
    Order,
    OrderModel,
    Residue,
    ResidueAlgebra,
    ResidueDomain,
    section,
)
from mirage_dsl.verify.constants import read_number
from mirage_dsl.verify.fields import (
    LOWEST_PRIMES,
    chain_from,
    chains_for,
    draw_trials,
    graph_depth,
)
from mirage_dsl.verify.verifier import identity, recheck, verify

TRIALS = 6

FAITHFUL_UP_TO = {1: 19, 2: 17, 3: 17, 4: 13, 5: 11, 6: 7}
"""By number of fields: integers whose prime factors are no larger are squares."""


def algebra(fields: int = 3, seed: int = 0, **options: Any) -> ResidueAlgebra:
    rng = np.random.default_rng(seed)
    trials = draw_trials(chains_for(fields, 1, seed)[0], TRIALS, rng)
    return ResidueAlgebra(trials, options.pop("order", Order()), rng, **options)


def lifted(f: ResidueAlgebra, integers: Any) -> Residue:
    """The image of an array of integers, in all trials."""
    values = np.asarray(integers, dtype=np.int64)
    primes = (f.prime(i, values.ndim) for i in range(f.trials.fields))
    return Residue(tuple(values[None] % p for p in primes))


def same(a: Residue, b: Residue) -> bool:
    return bool((a.top == b.top).all())


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 5, 4), (3, 9, 20), (3, 64)])
def test_many_powers_and_inverses_are_those_of_each(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    chain = [LOWEST_PRIMES[n][0] for n in (1, 3, 6)]
    p = np.array(chain).reshape((3,) + (1,) * (len(shape) - 1))
    a = rng.integers(0, p, shape)
    a[0], a[1, ..., 0], a[2, ..., -1] = 0, 0, 1
    assert (fields.inverse(a, p) == fields.power(a, p - 2, p)).all()
    base = rng.integers(1, p)
    assert (fields.exponential(base, a, p) == fields.power(base, a, p)).all()
    widened = np.broadcast_to(a[:1], (1, *shape[1:]))
    assert (fields.inverse(widened, p) == fields.power(widened, p - 2, p)).all()


@pytest.mark.parametrize("model", OrderModel)
@pytest.mark.parametrize("flagged", [False, True])
def test_the_largest_is_what_is_left_of_pairs(model: OrderModel, flagged: bool) -> None:
    """With infinities, values that are touched or invalid, truth values and ties."""
    f = algebra(order=Order(model))
    rng = np.random.default_rng(1)
    a = lifted(f, rng.integers(0, [2, 4, 10**6], (4, 7, 3)))
    if flagged:
        flags = 1 << rng.integers(0, 16, a.top.shape)
        few = np.where(rng.random(flags.shape) < 0.4, flags, 0)
        few[:, 0], few[:, 1] = MASKED, RAISED
        a = replace(a, flags=few.astype(np.uint16))
    columns = (section(a, 1, i, i + 1) for i in range(7))
    pairs = reduce(f.maximum, columns)
    found = f.max(a, (1,))
    assert (found.top == pairs.top[:, :, 0]).all()
    assert (found.parts[0] == pairs.parts[0][:, :, 0]).all()
    assert (found.all_flags() == pairs.all_flags()[:, :, 0]).all()
    assert f.choices


@pytest.mark.parametrize("columns", [3, 40])
@pytest.mark.parametrize("length", [1, 70_001])
def test_products_are_exact(length: int, columns: int) -> None:
    """Of the largest residues too, whose sums overflow unless reduced on the way."""
    p = np.array([2133931799, 1939937999])
    a = np.full((2, 2, length), p[:, None, None] - 1)
    b = np.random.default_rng(0).integers(0, p[1], (2, length, columns))
    b[:, :, 0] = p[:, None] - 1
    expected = a.astype(object) @ b.astype(object) % p[:, None, None]
    np.testing.assert_array_equal(fields.matmul(a, b, p), expected.astype(np.int64))


def test_drawn_residues_are_uniform_and_follow_the_index() -> None:
    p = np.int64(1057776719)
    index = np.arange(2**16)
    found = fields.drawn(np.int64(7), index, p)
    assert (fields.drawn(np.int64(7), index[::-1], p) == found[::-1]).all()
    assert len(np.unique(found)) > 0.999 * len(found)
    assert ((found >= 0) & (found < p)).all()
    counts = np.histogram(found, bins=16, range=(0, int(p)))[0]
    assert (abs(counts - 4096) < 5 * 64).all()
    assert (fields.drawn(np.int64(8), index, p) != found).mean() > 0.999


EXACT_OF_INTEGERS = [
    op
    for op in OPERATORS.values()
    if op.kind is Kind.ELEMENTWISE
    and op.field_note == EXACT
    and op.name in {"add", "sub", "mul", "neg", "square"}
]


@pytest.mark.parametrize("op", EXACT_OF_INTEGERS, ids=lambda o: o.name)
def test_field_is_the_image_of_integer_arithmetic(op: Operator) -> None:
    f, rng = algebra(), np.random.default_rng(1)
    operands = [rng.integers(-50, 50, (3, 4)) for _ in range(op.arity)]
    found = op.field(f, *(lifted(f, x) for x in operands))
    assert same(found, lifted(f, op.numpy(*operands)))


@pytest.mark.parametrize("name", ["sum", "cumsum", "cumprod", "matmul", "concat"])
def test_operators_on_dims_are_the_image_of_integer_arithmetic(name: str) -> None:
    f, rng, op = algebra(), np.random.default_rng(2), OPERATORS[name]
    a, b = rng.integers(-50, 50, (2, 3, 4)), rng.integers(-50, 50, (2, 4, 5))
    if op.kind is Kind.REDUCTION:
        found, expected = op.field(f, lifted(f, a), (0, 2)), op.numpy(a, (0, 2))
    elif op.kind is Kind.SCAN:
        found, expected = op.field(f, lifted(f, a), 2), op.numpy(a, 2)
    elif op.kind is Kind.CONTRACTION:
        found, expected = op.field(f, lifted(f, a), lifted(f, b)), op.numpy(a, b)
    else:
        c = rng.integers(-50, 50, (2, 7, 4))
        found = op.field(f, 1, lifted(f, a), lifted(f, c))
        expected = op.numpy(1, a, c)
    assert same(found, lifted(f, expected))


@pytest.mark.parametrize("op", list(OPERATORS.values()), ids=lambda o: o.name)
def test_every_row_has_a_shape_preserving_field_semantics(op: Operator) -> None:
    f = algebra(4)
    if op.kind is Kind.ELEMENTWISE:
        operands = [f.uniform((3, 4)) for _ in range(op.arity)]
        found = op.field(f, *operands)
        assert found.top.shape == (TRIALS, 3, 4)
        again = op.field(f, *operands)
        assert same(found, again)
    elif op.kind is Kind.REDUCTION:
        assert op.field(f, f.uniform((3, 4)), (1,)).top.shape == (TRIALS, 3)
    elif op.kind is Kind.SCAN:
        assert op.field(f, f.uniform((3, 5)), 1).top.shape == (TRIALS, 3, 5)
    elif op.kind is Kind.CONTRACTION:
        a, b = f.uniform((2, 3, 4)), f.uniform((2, 4, 5))
        assert op.field(f, a, b).top.shape == (TRIALS, 2, 3, 5)
    elif op.kind is Kind.VIEW:
        value = f.uniform((3,))
        assert op.field(f, value) is value
    elif op.kind is Kind.GATHER:
        values, index = f.uniform((3, 4)), f.uniform((3, 4))
        assert op.field(f, values, index).top.shape == (TRIALS, 3, 4)
    elif op.kind is Kind.LIBRARY:
        operands = [f.uniform((3, 4)) for _ in range(abs(op.arity))]
        assert same(op.field(f, *operands), op.field(f, *operands))
    else:
        a, b = f.uniform((2, 3)), f.uniform((2, 4))
        assert op.field(f, 1, a, b).top.shape == (TRIALS, 2, 7)


@pytest.mark.parametrize(
    "op",
    [o for o in OPERATORS.values() if o.expansion is not None],
    ids=lambda o: o.name,
)
def test_expansions_have_the_same_field_semantics(op: Operator) -> None:
    f = algebra(4)
    operands = [f.uniform((5,)) for _ in range(op.arity)]
    assert op.expansion is not None
    assert same(op.field(f, *operands), op.expansion(f, *operands))


@pytest.mark.parametrize(
    "op",
    [o for o in OPERATORS.values() if o.commutative and o.kind is Kind.ELEMENTWISE],
    ids=lambda o: o.name,
)
def test_commutative_rows_commute(op: Operator) -> None:
    for model in OrderModel:
        f = algebra(4, order=Order(model))
        a, b = f.uniform((5,)), f.uniform((5,))
        assert same(op.field(f, a, b), op.field(f, b, a))


def test_exp_turns_sums_into_products() -> None:
    f = algebra()
    a, b = f.uniform((9,)), f.uniform((9,))
    assert same(f.exp(f.add(a, b)), f.mul(f.exp(a), f.exp(b)))
    assert same(f.exp(f.sub(a, b)), f.div(f.exp(a), f.exp(b)))
    assert not same(f.exp(f.mul(a, b)), f.mul(f.exp(a), f.exp(b)))


def test_exp_loses_the_lowest_component_and_says_when_none_is_left() -> None:
    f = algebra(2)
    once = f.exp(f.uniform((4,)))
    assert once.parts[0] is None
    with pytest.raises(UnsupportedError, match="nested deeper than 1"):
        f.exp(once)
    assert algebra(2, exp_oracle=True).exp(once).parts[0] is not None


def test_a_lost_component_stays_lost() -> None:
    f = algebra(3)
    mixed = f.mul(f.exp(f.uniform((4,))), f.uniform((4,)))
    assert mixed.parts[0] is None
    assert mixed.parts[1] is not None


def test_roots_square_back_just_where_they_are_of_squares() -> None:
    f = algebra(1)
    x = f.uniform((400,))
    root = f.sqrt(x)
    back = f.mul(root, root)
    touched = root.flagged(4)
    assert (back.top == x.top)[~touched].all()
    assert not (back.top == x.top)[touched].any()
    assert 0.4 < touched.mean() < 0.6
    assert f.non_squares.sum() == touched.sum()


def test_roots_of_exponentials_and_small_integers_are_exact() -> None:
    f = algebra(2)
    x = f.uniform((50,))
    assert same(f.sqrt(f.exp(f.add(x, x))), f.exp(x))
    assert same(f.sqrt(lifted(f, [1, 4, 9, 144])), lifted(f, [1, 2, 3, 12]))


def test_roots_are_odd_about_nothing() -> None:
    f = algebra(1)
    x = f.uniform((50,))
    minus = f.sub(f.constant(scalar(0)), x)
    assert not (f.sqrt(x).top == f.sqrt(minus).top).any()


def test_masked_elements_follow_the_reals() -> None:
    f = algebra()
    x, lowest = f.uniform((3,)), f.constant(Scalar(-math.inf))
    gone = f.add(x, lowest)
    assert gone.flagged(MASKED).all()
    assert (f.exp(gone).top == 0).all()
    assert f.maximum(gone, x).flagged(MASKED).sum() == 0
    assert same(f.maximum(gone, x), x)
    assert f.mul(gone, f.constant(scalar(0.125))).flagged(MASKED).all()
    for wrong in (f.div(x, gone), f.mul(gone, x), f.sum(gone, (0,)), f.sqrt(gone)):
        assert wrong.flagged(INVALID).all()


def test_infinite_elements_follow_the_reals() -> None:
    f = algebra()
    x, lowest = f.uniform((3,)), f.constant(Scalar(-math.inf))
    gone, above = f.add(x, lowest), f.sub(x, lowest)
    assert (f.constant(Scalar(math.inf)).flags == RAISED).all()
    assert (above.flags == RAISED).all()
    assert (f.sub(x, above).flags == MASKED).all()
    for a, b in ((above, gone), (gone, above), (above, x), (x, above)):
        assert (f.maximum(a, b).flags == RAISED).all()
    assert f.mul(above, f.constant(scalar(0.125))).flagged(RAISED).all()
    for wrong in (f.exp(above), f.add(above, gone), f.sub(gone, gone), f.sqrt(above)):
        assert wrong.flagged(INVALID).all()
        assert not wrong.flagged(MASKED | RAISED).any()


def test_division_by_zero_is_flagged() -> None:
    f = algebra()
    x = f.uniform((3,))
    assert f.div(x, f.sub(x, x)).flagged(INVALID).all()
    assert not f.div(x, x).flagged(INVALID).any()


def test_random_orders_are_orders() -> None:
    f = algebra(1)
    a, b, c = (f.uniform((20,)) for _ in range(3))
    left = f.maximum(f.maximum(a, b), c)
    assert same(left, f.maximum(a, f.maximum(b, c)))
    assert same(f.maximum(a, a), a)


def test_squares_as_positives_commute_with_arithmetic() -> None:
    f = algebra(2, order=Order(OrderModel.PALEY))
    a, b, c = (f.uniform((20,)) for _ in range(3))
    moved = f.maximum(f.add(a, c), f.add(b, c))
    assert same(moved, f.add(f.maximum(a, b), c))
    scale = f.exp(c)
    scaled = f.maximum(f.mul(a, scale), f.mul(b, scale))
    assert same(scaled, f.mul(f.maximum(a, b), scale))


def test_oracles_depend_on_name_and_operands_only() -> None:
    f = algebra()
    x, y = f.uniform((5,)), f.uniform((5,))
    assert same(f.oracle("log", x), f.oracle("log", x))
    assert not same(f.oracle("log", x), f.oracle("erf", x))
    assert not same(f.oracle("log", x), f.oracle("log", y))
    # Equal tops are equal operands: what was lost below does not matter.
    through = f.div(f.mul(x, f.exp(y)), f.exp(y))
    assert through.parts[0] is None
    assert same(f.oracle("log", x), f.oracle("log", through))


def test_shifts_are_fresh_at_every_site() -> None:
    f = algebra()
    x = f.uniform((4, 5))
    assert not same(f.shift(x, (1,)), f.shift(x, (1,)))


def is_prime(number: int) -> bool:
    """Whether `number`, below 2**32, is prime (Miller-Rabin, exact in that range)."""
    witnesses = (2, 3, 5, 7)
    if number < 2 or any(number % w == 0 for w in witnesses):
        return number in witnesses
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, pow(w, odd, number), twos) for w in witnesses)


def _passes(number: int, x: int, twos: int) -> bool:
    """Whether 1 or -1 shows up among x, x^2, x^4, ... as it must for a prime."""
    if x in (1, number - 1):
        return True
    return any((x := x * x % number) == number - 1 for _ in range(twos - 1))


def is_sign_faithful(primes: tuple[int, ...], limit: int) -> bool:
    """Whether a chain has the properties that `fields` states."""
    odd_primes = [q for q in range(3, limit + 1, 2) if is_prime(q)]
    linked = all(b == 2 * a + 1 for a, b in pairwise(primes))
    return linked and all(
        p < 2**31
        and is_prime(p)
        and p % 8 == 7
        and all(p % q == q - 1 for q in odd_primes)
        for p in primes
    )


@pytest.mark.parametrize("fields", LOWEST_PRIMES)
def test_chains_are_sign_faithful(fields: int) -> None:
    for lowest in LOWEST_PRIMES[fields]:
        chain = chain_from(lowest, fields)
        assert is_sign_faithful(chain, FAITHFUL_UP_TO[fields])
        assert all(pow(2 * 3 * 5, (p - 1) // 2, p) == 1 for p in chain)
        assert all(pow(p - 1, (p - 1) // 2, p) == p - 1 for p in chain)
    assert not is_sign_faithful((1073740571, 2147481143), 5)


def test_is_prime_agrees_with_trial_division() -> None:
    for n in range(500):
        plain = n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
        assert is_prime(n) == plain


def test_omegas_have_the_order_of_the_field_below() -> None:
    trials = algebra(3).trials
    for i in (1, 2):
        for t in range(trials.count):
            omega, p = int(trials.omegas[i, t]), int(trials.primes[i, t])
            assert omega != 1
            assert pow(omega, int(trials.primes[i - 1, t]), p) == 1


def test_constants_are_read_as_the_numbers_they_stand_for() -> None:
    p = LOWEST_PRIMES[1][0]

    def read(value: float | Fraction) -> int:
        number = read_number(scalar(value), {})
        assert not isinstance(number, float)
        return number.modulo(p)

    assert read(0.1) * 10 % p == 1
    assert read(1e-6) * 10**6 % p == 1
    assert read(Fraction(1, 3)) * 3 % p == 1
    assert read(128**-0.5) ** 2 * 128 % p == 1
    assert (read(-(2**0.5)) + read(2**0.5)) % p == 0
    # What is made one constant is what it was made of.
    for prime in LOWEST_PRIMES[1]:
        for root, factor in ((128**-0.5, 50), (24**0.5, 30), (96**-0.5, 7)):
            both = read_number(scalar(Fraction(root) / factor), {})
            alone = read_number(scalar(root), {})
            assert not isinstance(both, float)
            assert not isinstance(alone, float)
            assert both.square is not None
            assert both.modulo(prime) * factor % prime == alone.modulo(prime)
    assert read(math.pi) != read(math.e)
    mean = read_number(Scalar(Fraction(1), (("k", -1),)), {"k": 7})
    assert not isinstance(mean, float)
    assert mean.modulo(p) * 7 % p == 1


# -- Reductions ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_products_over_axes_are_products(count: int) -> None:
    f = algebra()
    x = f.uniform((2, count, 3))
    for axes in ((1,), (0, 2), (0, 1, 2)):
        found = OPERATORS["prod"].reduced(f, x, axes)
        inner = tuple(a + 1 for a in axes)
        for trial, p in enumerate(f.trials.primes[-1]):
            exact = x.top[trial].astype(object).prod(axis=axes) % int(p)
            np.testing.assert_array_equal(found.top[trial], exact)
        assert found.top.ndim == x.top.ndim - len(inner)


@pytest.mark.parametrize("name", ["max", "min", "prod", "sum"])
def test_the_parts_of_a_reduction_are_joined(name: str) -> None:
    op, f = OPERATORS[name], algebra()
    assert op.join is not None
    x = f.uniform((4, 5))
    whole = op.reduced(f, x, (1,))
    for cut in (1, 3):
        parts = (section(x, 1, 0, cut), section(x, 1, cut, 5))
        joined = op.join.on(f, *(op.reduced(f, part, (1,)) for part in parts))
        assert same(joined, whole)
    assert same(op.reduced(f, op.reduced(f, x, (0,)), (0,)), op.reduced(f, x, (0, 1)))


@pytest.mark.parametrize("name", ["max", "min", "prod", "sum"])
def test_what_is_neutral_changes_nothing(name: str) -> None:
    op, f = OPERATORS[name], algebra()
    assert op.neutral is not None
    domain, x = ResidueDomain(f), f.uniform((4, 5))
    keep = np.arange(5) < 3
    found = op.reduced(f, domain.mask(x, keep, op.neutral), (1,))
    assert found.flags is None or not found.flags.any()
    assert same(found, op.reduced(f, section(x, 1, 0, 3), (1,)))


def test_a_minimum_sees_minus_infinity_and_ignores_infinity() -> None:
    op, f = OPERATORS["min"], algebra()
    domain, x = ResidueDomain(f), f.uniform((4, 5))
    keep = np.arange(5) < 3
    found = op.reduced(f, domain.mask(x, keep, -math.inf), (1,))
    assert (found.all_flags() == MASKED).all()
    nothing = op.reduced(f, domain.mask(x, np.zeros(5, bool), math.inf), (1,))
    assert (nothing.all_flags() == RAISED).all()
    for wrong in ("max", "sum", "prod"):
        raised = OPERATORS[wrong].reduced(f, domain.mask(x, keep, math.inf), (1,))
        assert raised.flagged(INVALID | RAISED).all()


def test_a_condition_that_is_no_truth_value_chooses_between_integers_too() -> None:
    """Or what it is made of would never matter, and any other thing would serve."""
    f = algebra(4)
    condition, domain = f.uniform((64,)), ResidueDomain(f)
    found = domain.elementwise(
        OPERATORS["where"], [condition, domain.index(64), f.constant(scalar(100))]
    )
    assert found.exact is not None
    hidden = found.exact == 100
    assert hidden.any()
    assert not hidden.all()


# -- How long a chain a graph asks for -------------------------------------------------


def test_a_random_function_reads_what_lies_deep() -> None:
    """|exp(x)| starts anew, but its operand needs a second field."""
    program = trace_function(
        lambda x: mirage.functions.abs(mirage.functions.exp(x * 2)),
        [mirage.spec((4, 5), "float16")],
    )
    assert graph_depth(program).exps == 1
    certificate = verify(expand(program), program)
    assert certificate.equivalent, certificate.reason


def test_a_program_is_itself() -> None:
    """Even one that no trial can decide: 1 / (x - x) is defined nowhere."""
    program = trace_function(lambda x: 1 / (x - x), [mirage.spec((4, 5), "float16")])
    assert not verify(program, program).equivalent
    certificate = identity(program)
    assert certificate.ok
    assert recheck(certificate, program, program)
    found = mirage.superoptimize(program, use_cache=False)
    assert found.best.mugraph == program


@pytest.mark.parametrize("model", OrderModel)
def test_known_numbers_have_the_order_of_the_reals(model: OrderModel) -> None:
    f = algebra(order=Order(model, still=True))
    still = f.shift(f.uniform((3, 4)), (1,))
    least, most = (f.constant(scalar(x)) for x in (-3.4e38, 3.4e38))
    smallest = OPERATORS["minimum"].field
    assert smallest is not None
    for limited in (f.maximum(still, least), smallest(f, still, most)):
        assert not limited.top.any()
        assert limited.top.shape == still.top.shape
    for number in (-7, 5):
        larger = f.maximum(still, f.constant(scalar(number)))
        assert np.array_equal(larger.top, lifted(f, [max(0, number)] * 3).top)
    assert not f.choices
