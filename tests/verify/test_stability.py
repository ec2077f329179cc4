"""Candidates that are right as algebra and lose what their program keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.types import DType, bf16, boolean, f16, f32, scalar
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify import stability
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.verifier import verify

SEEDS = range(5)
_EPS = scalar(1e-6)

# -- Shifts of exponents ---------------------------------------------------------------


def _first(b: Any, x: str) -> str:
    return b.sum(b.slice(x, dim="n", start=0, stop=1, to="one"), over="one")


def _largest_of_four(b: Any, x: str) -> str:
    return b.max(b.slice(x, dim="n", start=0, stop=4, to="four"), over="four")


Shift = Callable[[Any, str], str | None]

BAD_SHIFTS: dict[str, Shift] = {
    "none": lambda *_: None,
    "minimum": lambda b, x: b.neg(b.max(b.neg(x), over="n")),
    "mean": lambda b, x: b.mul(b.sum(x, over="n"), one_over("n")),
    "first element": _first,
    "maximum of four": _largest_of_four,
    "maximum of all rows": lambda b, x: b.max(b.max(x, over="n"), over="m"),
    "half of the maximum": lambda b, x: b.mul(b.max(x, over="n"), scalar(0.5)),
    "bounded maximum": lambda b, x: b.minimum(b.max(x, over="n"), scalar(100)),
    "maximum above 0": lambda b, x: b.max(b.apply("relu", x), over="n"),
    "largest size": lambda b, x: b.max(b.apply("abs", x), over="n"),
}
GOOD_SHIFTS: dict[str, Shift] = {
    "maximum": lambda b, x: b.max(x, over="n"),
    "more than the maximum": lambda b, x: b.add(b.max(x, over="n"), 1),
}

LOGITS: dict[str, Callable[[Any, DType], str]] = {
    "an input": lambda b, dtype: b.input("x", dtype, "m, n"),
    "a sum": lambda b, dtype: b.add(
        b.input("x", dtype, "m, n"), b.input("y", dtype, "m, n")
    ),
    "a product": lambda b, dtype: b.mul(
        b.input("x", dtype, "m, n"), b.input("y", dtype, "m, n")
    ),
    "a contraction": lambda b, dtype: b.matmul(
        b.input("q", dtype, "m, d"), b.input("k", dtype, "n, d"), over="d"
    ),
}


def _softmax(logits: str, dtype: DType, shift: Shift, *, more: bool) -> KernelGraph:
    b: Any = KernelBuilder("f", m=7, n=9, d=5)
    x = LOGITS[logits](b, dtype)
    by = shift(b, x)
    e = b.exp(x if by is None else b.sub(x, by))
    weights = b.div(e, b.sum(e, over="n"))
    if more:
        weights = b.add(weights, b.input("z", dtype, "m, n"))
    return b.returns(weights).build()


def _rowshift(b: Any, x: str) -> str:
    return b.rowshift(x, over="n")


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", BAD_SHIFTS)
def test_shifts_that_do_not_reach_are_unstable(
    name: str, logits: str, dtype: DType
) -> None:
    for more in (False, True):
        program = _softmax(logits, dtype, _rowshift, more=more)
        candidate = _softmax(logits, dtype, BAD_SHIFTS[name], more=more)
        for seed in SEEDS if dtype is f32 else SEEDS[:2]:
            found = verify(candidate, program, seed=seed)
            assert found.equivalent
            assert found.stability is not None
            assert not found.stability.ok
            assert "not finite where the program is" in found.stability.reason


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("logits", LOGITS)
@pytest.mark.parametrize("name", GOOD_SHIFTS)
def test_shifts_that_reach_are_stable(name: str, logits: str, dtype: DType) -> None:
    program = _softmax(logits, dtype, _rowshift, more=True)
    candidate = _softmax(logits, dtype, GOOD_SHIFTS[name], more=True)
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.ok, found.stability


# -- What one call of PyTorch's computes -----------------------------------------------


def _rms_norm(stored: str | None) -> KernelGraph:
    """The norm by operators, or by two kernels, of which the first stores a value."""
    b: Any = KernelBuilder("f", m=16, n=24)
    x = b.input("x", f16, "m, n")
    if stored is None:
        mean = b.mul(b.sum(b.square(x), over="n"), one_over("n"))
        return b.returns(b.div(x, b.sqrt(b.add(mean, 2.0**-23)))).build()
    with b.block(grid={"m": 4}) as t:
        loaded = t.load(x, "m/grid, n")
        made = t.mul(t.sum(t.square(loaded), over="n"), one_over("n"))
        made = made if stored == "mean" else t.sqrt(t.add(made, 2.0**-23))
        held = t.store(made, "m/grid", dtype=f16)
    with b.block(grid={"m": 4}) as t:
        root = t.load(held, "m/grid")
        root = t.sqrt(t.add(root, 2.0**-23)) if stored == "mean" else root
        y = t.store(t.div(t.load(x, "m/grid, n"), root), "m/grid, n")
    return b.returns(y).build()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_pytorch_keeps_within_a_call_is_not_rounded(seed: int) -> None:
    """The mean of squares of numbers beyond 256 is no f16, and the norm is one call."""
    program = _rms_norm(None)
    assert verify(_rms_norm("root"), program, seed=seed).ok
    found = verify(_rms_norm("mean"), program, seed=seed)
    assert found.equivalent
    assert found.stability is not None
    assert not found.stability.ok


@pytest.mark.parametrize("logits", LOGITS)
def test_no_shift_is_as_good_where_the_program_has_none(logits: str) -> None:
    program = _softmax(logits, f16, BAD_SHIFTS["none"], more=False)
    b: Any = KernelBuilder("f", m=7, n=9, d=5)
    e = b.exp(LOGITS[logits](b, f16))
    candidate = b.returns(b.mul(e, b.div(1, b.sum(e, over="n")))).build()
    for seed in SEEDS:
        assert verify(candidate, program, seed=seed).ok


Attention = Callable[[Any, str, str, int], str]


def _normalised_before(b: Any, logits: str, v: str, _beside: int) -> str:
    e = b.exp(logits)
    return b.matmul(b.cast(b.div(e, b.sum(e, over="n")), dtype="f16"), v, over="n")


def _normalised_after(b: Any, logits: str, v: str, _beside: int) -> str:
    e = b.exp(logits)
    weighted = b.matmul(b.cast(e, dtype="f16"), v, over="n")
    return b.div(weighted, b.sum(e, over="n"))


def _sum_that_vanishes(b: Any, logits: str, v: str, beside: int) -> str:
    e = b.exp(logits)
    total = b.sub(b.add(b.sum(e, over="n"), beside), beside)
    return b.matmul(b.cast(b.div(e, total), dtype="f16"), v, over="n")


def _attention(form: Attention, beside: int = 1) -> KernelGraph:
    b: Any = KernelBuilder("f", m=7, n=9, d=5, e=4)
    q, k = b.input("q", f16, "m, d"), b.input("k", f16, "n, d")
    v = b.input("v", f16, "n, e")
    with b.block(grid={"m": 7}) as t:
        logits = t.matmul(t.load(q, "m/grid, d"), t.load(k, "n, d"), over="d")
        found = form(t, logits, t.load(v, "n, e"), beside)
        y = t.store(found, "m/grid, e")
    return b.returns(y).build()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_right_between_small_bounds_alone_is_unstable(seed: int) -> None:
    """Exponentials in f32 hold logits from -87 to 88; those in f16 from -16 to 11."""
    program = _attention(_normalised_before)
    found = verify(_attention(_normalised_after), program, seed=seed)
    assert found.stability is not None
    assert not found.stability.ok


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beside", [1, 100])
def test_sums_that_vanish_beside_a_constant_are_refused(beside: int, seed: int) -> None:
    """Where all logits are below -17 or -12, which the program survives."""
    program = _attention(_normalised_before)
    assert not verify(_attention(_sum_that_vanishes, beside), program, seed=seed).ok


# -- Overflows that a program loses ----------------------------------------------------


def _normed_logits(b: Any, x: str, g: str, w: str, *, divided_after: bool) -> str:
    norm = b.sqrt(b.mul(b.sum(b.mul(x, x), over="c"), one_over("c")))
    if divided_after:
        scaled = b.cast(b.mul(x, g), dtype="f16")
        return b.div(b.matmul(scaled, w, over="c"), norm)
    return b.matmul(b.mul(b.div(x, norm), g), w, over="c")


def _normed_softmax(*, fused: bool) -> KernelGraph:
    """Softmax of a product with a norm and a gain; values do not depend on `c`."""
    b: Any = KernelBuilder("f", m=16, n=9, c=11, e=5)
    x, g = b.input("x", f16, "m, c"), b.input("g", f16, "c")
    w, v = b.input("w", f16, "n, c"), b.input("v", f16, "n, e")
    if fused:
        with b.block(grid={"m": 4}) as t:
            loaded = t.load(x, "m/grid, c"), t.load(g, "c"), t.load(w, "n, c")
            found = _normed_logits(t, *loaded, divided_after=True)
            logits = t.store(found, "m/grid, n")
    else:
        logits = _normed_logits(b, x, g, w, divided_after=False)
    e = b.exp(b.sub(logits, b.rowshift(logits, over="n")))
    # Twice the weights: attention is one call, which stores no logits.
    weights = b.mul(b.div(e, b.sum(e, over="n")), 2)
    return b.returns(b.matmul(weights, v, over="n")).build()


def test_what_is_right_by_luck_after_an_overflow_says_nothing() -> None:
    """All weights are equal, as x / inf is 0; the values are about equal too."""
    program, candidate = _normed_softmax(fused=False), _normed_softmax(fused=True)
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.ok, found.stability


SATURATED: dict[str, Callable[[Any, str], str]] = {
    "sigmoid": lambda b, x: b.sigmoid(x),
    "tanh": lambda b, x: b.tanh(x),
    "exp": lambda b, x: b.exp(b.neg(b.square(x))),
    "clamp": lambda b, x: b.minimum(b.maximum(x, -1), 1),
}


@pytest.mark.parametrize("name", SATURATED)
def test_an_overflow_that_does_no_harm_counts(name: str) -> None:
    """The product is infinite at scales of 512; what is made of it is right."""
    graphs: list[KernelGraph] = []
    for spoiled in (False, True):
        b: Any = KernelBuilder("f", m=7, n=9)
        x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m, n")
        product = b.mul(x, y)
        if spoiled:
            # An infinity less itself is no number.
            product = b.add(product, b.sub(product, product))
        graphs.append(b.returns(SATURATED[name](b, product)).build())
    program, candidate = graphs
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed).stability
        assert found is not None
        assert not found.ok
        assert "not finite where the program is" in found.reason


# -- Infinities that are meant ---------------------------------------------------------


def _masked(fill: float, *, exact: bool = True) -> KernelGraph:
    """Scores of which a mask, and positions, take some out."""
    b: Any = KernelBuilder("f", m=32, k=64, n=48)
    q, w = b.input("q", f16, "m, k"), b.input("w", f16, "k, n")
    mask = b.input("mask", boolean, "m, n")
    if not exact:
        # The same but for rounding: what is near to it in size is lost.
        q = b.sub(b.add(q, scalar(2048)), scalar(2048))
    product = b.matmul(q, w, over="k")
    return b.returns(b.where(mask, scalar(fill), product)).build()


def test_scores_that_are_taken_out_are_no_sizes_of_others() -> None:
    program = _masked(-np.inf)
    for seed in SEEDS:
        found = verify(program, program, seed=seed).stability
        assert found is not None
        assert found.ok, found.reason
        lossy = verify(_masked(-np.inf, exact=False), program, seed=seed).stability
        assert lossy is not None
        assert not lossy.ok


@pytest.mark.parametrize("fill", [0.0, np.inf, -65504.0])
def test_another_number_in_the_place_of_an_infinity_is_an_error(fill: float) -> None:
    candidate, program = _masked(fill), _masked(-np.inf)
    for seed in SEEDS:
        assert not verify(candidate, program, seed=seed).ok
        shrunk = shrink(candidate, program, ragged=False, seed=seed)
        assert not stability.measure_stability(shrunk, seed).ok


# -- Truth values ----------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"m": 6, "n": 9}, {"m": 2, "n": 3}], ids=str)
def test_about_half_of_a_mask_holds_in_every_run(sizes: dict[str, int]) -> None:
    """So that both sides of a condition are seen on inputs of every kind."""
    b: Any = KernelBuilder("f", **sizes)
    mask, x = b.input("mask", boolean, "m, n"), b.input("x", f16, "m, n")
    program = b.returns(b.where(mask, b.sum(x, over="n"), x)).build()
    rng = np.random.default_rng(0)
    plain = [rng.normal(size=tuple(sizes.values())) for _ in program.inputs]
    families = stability._families_of(program, 0, stability._EXECUTED, plain)
    asked = stability._asked(families, stability._LADDER)
    drawn, _ = stability._drawn(program, families, asked, stability._EXECUTED)
    shares = drawn.mean(axis=(1, 2))
    assert len(shares) > 20
    assert (abs(shares - 0.5) < 0.2).all()


# -- Cancellation ----------------------------------------------------------------------


def _mean(b: Any, x: str) -> str:
    return b.mul(b.sum(x, over="k"), one_over("k"))


def _deviation(b: Any, variance: str) -> str:
    return b.sqrt(b.add(variance, _EPS))


def _product(b: Any, x: str, w: str) -> str:
    """A product of a computed operand, in the format of the other one in a block."""
    if isinstance(b, KernelBuilder):
        return b.matmul(x, w, over="k")
    dtype = b.type_of(w).dtype
    return b.matmul(x if dtype is f32 else b.cast(x, dtype=dtype.name), w, over="k")


def _one_pass_variance(b: Any, x: str) -> str:
    return b.sub(_mean(b, b.square(x)), b.square(_mean(b, x)))


def _two_passes(b: Any, x: str, w: str) -> str:
    centred = b.sub(x, _mean(b, x))
    variance = _mean(b, b.square(centred))
    return _product(b, b.div(centred, _deviation(b, variance)), w)


def _divided_after(b: Any, x: str, w: str) -> str:
    centred = b.sub(x, _mean(b, x))
    variance = _mean(b, b.square(centred))
    return b.div(_product(b, centred, w), _deviation(b, variance))


def _mean_taken_out(b: Any, x: str, w: str) -> str:
    """The product of the mean with the sum of weights is subtracted after."""
    mean = _mean(b, x)
    product = b.sub(b.matmul(x, w, over="k"), b.mul(mean, b.sum(w, over="k")))
    variance = _mean(b, b.square(b.sub(x, mean)))
    return b.div(product, _deviation(b, variance))


def _squares_minus_square(b: Any, x: str, w: str) -> str:
    centred = b.sub(x, _mean(b, x))
    deviation = _deviation(b, _one_pass_variance(b, x))
    return _product(b, b.div(centred, deviation), w)


def _one_pass(b: Any, x: str, w: str) -> str:
    mean = _mean(b, x)
    product = b.sub(b.matmul(x, w, over="k"), b.mul(mean, b.sum(w, over="k")))
    return b.div(product, _deviation(b, _one_pass_variance(b, x)))


Form = Callable[[Any, str, str], str]
STABLE: tuple[Form, ...] = (_two_passes, _divided_after)
UNSTABLE: tuple[Form, ...] = (
    _mean_taken_out,
    _squares_minus_square,
    _one_pass,
)


def _norm_linear(form: Form, dtype: DType, k: int, *, fused: bool) -> KernelGraph:
    b: Any = KernelBuilder("norm", m=16, k=k, n=32)
    x, w = b.input("x", dtype, "m, k"), b.input("w", dtype, "k, n")
    if not fused:
        return b.returns(form(b, x, w)).build()
    with b.block(grid={"m": 4}) as t:
        found = form(t, t.load(x, "m/grid, k"), t.load(w, "k, n"))
        y = t.store(found, "m/grid, n")
    return b.returns(y).build()


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("k", [64, 100])
@pytest.mark.parametrize("form", UNSTABLE, ids=lambda f: f.__name__)
def test_what_cancels_is_unstable(form: Form, dtype: DType, k: int) -> None:
    program = _norm_linear(_two_passes, dtype, k, fused=False)
    candidate = _norm_linear(form, dtype, k, fused=True)
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.equivalent, found.reason
        assert not found.ok, (seed, found.stability)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("k", [64, 100])
@pytest.mark.parametrize("form", STABLE, ids=lambda f: f.__name__)
def test_what_does_not_cancel_is_stable(form: Form, dtype: DType, k: int) -> None:
    program = _norm_linear(_two_passes, dtype, k, fused=False)
    candidate = _norm_linear(form, dtype, k, fused=True)
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.ok, (seed, found.reason, found.stability)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("form", UNSTABLE, ids=lambda f: f.__name__)
def test_what_cancels_shows_where_random_inputs_give_no_number(
    form: Form, dtype: DType
) -> None:
    """Means of random rows are below 0, so that their logarithms are NaN."""

    def logged(some: Form) -> Form:
        return lambda b, x, w: b.mul(some(b, x, w), b.log(_mean(b, x)))

    program = _norm_linear(logged(_two_passes), dtype, 64, fused=False)
    candidate = _norm_linear(logged(form), dtype, 64, fused=True)
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert found.equivalent
        assert not found.ok, (seed, found.stability)
    right = _norm_linear(logged(_divided_after), dtype, 64, fused=True)
    assert verify(right, program).ok


@pytest.mark.sample(0)
def test_a_search_goes_on_where_one_kernel_is_unstable() -> None:
    """One kernel would be a little faster, and sums squares; two are accurate."""
    shapes = [(16, 4096), (4096, 6144)]
    program = trace_function(
        lambda x, w: mirage.layer_norm(x) @ w,
        [mirage.spec(shape, "float16") for shape in shapes],
    )
    found = mirage.superoptimize(program, use_cache=False)
    assert found.ledger.cut["stability"] > 0
    assert found.best.certificate is not None
    assert found.best.certificate.ok
    assert len(found.best.mugraph.blocks) == len(found.best.mugraph.nodes) == 2
    assert found.best.cost.microseconds < 21


def distances(sums: str) -> KernelGraph:
    """The mean over rows of what one distance is longer than another one."""

    def loss(a: Any, p: Any, n: Any) -> Any:
        d, e = a - p, a - n
        if sums == "squares":
            near, far = (d * d).sum(-1).sqrt(), (e * e).sum(-1).sqrt()
        elif sums == "halves":
            near, far = (((d * d) / 2).sum(-1) * 2).sqrt(), (e * e).sum(-1).sqrt()
        else:
            # |d|^2 = |a|^2 - 2 a p + |p|^2 cancels where a is large.
            near = ((a * a).sum(-1) - (2 * a * p).sum(-1) + (p * p).sum(-1)).sqrt()
            far = (e * e).sum(-1).sqrt()
        return mirage.maximum(near - far + 1, 0).mean()

    return trace_function(loss, [mirage.spec((64, 32), "float32")] * 3)


@pytest.mark.parametrize("seed", range(3))
def test_one_number_is_compared_to_the_program_s_errors_around_it(seed: int) -> None:
    """That its roundings cancel in one run is luck, of which candidates have less."""
    program = distances("squares")
    good = verify(distances("halves"), program, seed=seed)
    assert good.ok, good
    bad = verify(distances("apart"), program, seed=seed)
    assert bad.stability is None or not bad.stability.ok


@pytest.mark.parametrize("seed", range(10))
def test_what_loses_small_numbers_is_unstable(seed: int) -> None:
    """Of numbers near 1 it loses a bit, and of a thousandth of them ten."""
    right, wrong = (
        mirage.kernel(f).trace(mirage.spec((8, 64)))
        for f in (lambda x: torch.expm1(x), lambda x: torch.exp(x) - 1)
    )
    found = mirage.verify(wrong, right, seed=seed)
    assert found.equivalent
    assert found.stability is not None
    assert not found.stability.ok
    assert mirage.verify(right, wrong, seed=seed).ok
