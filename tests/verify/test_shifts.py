"""Maxima that only shift exponents become shifts; others stay.

Those that come back behind logarithms are found and put back; mistakes are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import mirage_dsl as mirage
from mirage_dsl.ir.check import check
from mirage_dsl.ir.evaluate import evaluate_numpy
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ops.table import MAX, ROWSHIFT
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import stabilise, strip_shifts
from mirage_dsl.search.rewrites import Use, rewritten
from mirage_dsl.verify.shifts import logarithmic_shifts, reductions_as_shifts
from mirage_dsl.verify.verifier import verify
from tests.pace import Stopwatch


def softmax(x: Any) -> Any:
    e = mirage.exp(x - x.amax(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def at_a_temperature(x: Any) -> Any:
    e = mirage.exp((x - x.amax(-1, keepdims=True)) / 3 * 2)
    return e / e.sum(-1, keepdims=True)


def twice(x: Any) -> Any:
    return mirage.softmax(x - x.amax(-1, keepdims=True), -1)


def with_a_sink(x: Any) -> Any:
    """One more exponent, 0.25, whose exponential no output shows."""
    top = mirage.maximum(x.amax(-1, keepdims=True), 0.25)
    e = mirage.exp(x - top)
    return e / (e.sum(-1, keepdims=True) + mirage.exp(0.25 - top))


def clamped(x: Any) -> Any:
    """The larger maximum counts, for exponentials alone depend on it."""
    return mirage.exp(x - mirage.maximum(x.amax(-1, keepdims=True), 0.25))


def unnormalised(x: Any) -> Any:
    return mirage.exp(x - x.amax(-1, keepdims=True))


def log_softmax(x: Any) -> Any:
    shifted = x - x.amax(-1, keepdims=True)
    return shifted - mirage.log(mirage.exp(shifted).sum(-1, keepdims=True))


def with_the_maximum(x: Any) -> Any:
    top = x.amax(-1, keepdims=True)
    return softmax(x) * top


def relative(x: Any) -> Any:
    return x / x.amax(-1, keepdims=True)


def maxima(function: Callable[..., Any]) -> tuple[int, int]:
    """How many maxima and shifts the program has afterwards."""
    program = mirage.kernel(function).trace(mirage.spec((8, 16)))
    return counted(reductions_as_shifts(expand(program)))


def test_a_softmax_of_what_is_shifted_already_has_two_shifts() -> None:
    assert maxima(twice) == (0, 2)


def counted(program: KernelGraph) -> tuple[int, int]:
    names = [n.op.name for n in program.nodes if isinstance(n, Apply)]
    return names.count("max"), names.count("rowshift")


@pytest.mark.parametrize(
    "function", [softmax, at_a_temperature, with_a_sink, log_softmax]
)
def test_maxima_of_exponents_become_shifts(function: Callable[..., Any]) -> None:
    assert maxima(function) == (0, 1)


@pytest.mark.parametrize(
    "function", [unnormalised, clamped, with_the_maximum, relative]
)
def test_maxima_that_matter_stay(function: Callable[..., Any]) -> None:
    assert maxima(function) == (1, 0)


def test_one_that_matters_does_not_keep_the_others() -> None:
    assert maxima(lambda x: (softmax(x), unnormalised(x + 1))) == (1, 1)


def test_attention_by_hand_is_searched_like_attention() -> None:
    def by_hand(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ k.T) @ v

    def by_name(q: Any, k: Any, v: Any) -> Any:
        return mirage.softmax(q @ k.T) @ v

    specs = mirage.spec((16, 64)), mirage.spec((512, 64)), mirage.spec((512, 64))
    found = [
        mirage.superoptimize(mirage.kernel(f).trace(*specs), use_cache=False).best
        for f in (by_hand, by_name)
    ]
    assert found[0].cost.microseconds == found[1].cost.microseconds
    assert all(c.certificate is not None and c.certificate.ok for c in found)


# -- Shifts that come back behind a logarithm ------------------------------------------

SEEDS = range(20)

PROGRAMS: dict[str, Callable[..., Any]] = {
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "log-softmax": lambda x: functional.log_softmax(x, -1),
    "by hand": lambda x: (
        x.amax(-1) + torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1))
    ),
    "of two": lambda x: torch.logsumexp(x, -1) - torch.logsumexp(2 * x, -1),
    "softmax of it": lambda x: torch.softmax(functional.log_softmax(x, -1), -1),
}
KEPT: dict[str, Callable[..., Any]] = {
    "not added": lambda x: torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)),
    "added twice": lambda x: torch.logsumexp(x, -1) + x.amax(-1),
    "subtracted": lambda x: (
        torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)) - x.amax(-1)
    ),
    "the maximum itself": lambda x: torch.log(x.amax(-1).exp()),
    "beside a large sum": lambda x: (
        torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)) + 1e10 * x.sum(-1)
    ),
    "beside a mask": lambda x: (
        torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True))
        + torch.where(x > 2, -3e38, x)
    ),
}


def _traced(function: Callable[..., Any]) -> KernelGraph:
    return mirage.kernel(function).trace(mirage.f32[(6, 40)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_maxima_that_come_back_are_shifts(name: str) -> None:
    program = rewritten(_traced(PROGRAMS[name]), Use.NORMAL)
    shifted = reductions_as_shifts(program)
    assert not any(n.op is MAX for n in shifted.applies)
    assert any(n.op is ROWSHIFT for n in shifted.applies)
    stripped = strip_shifts(shifted)
    assert not any(n.op is ROWSHIFT for n in stripped.applies)
    assert verify(stripped, program, stability=False).equivalent
    x = np.random.default_rng(0).normal(size=(6, 40))
    for a, b in zip(
        evaluate_numpy(stripped, x), evaluate_numpy(program, x), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KEPT)
def test_maxima_whose_value_matters_stay(name: str) -> None:
    program = rewritten(_traced(KEPT[name]), Use.NORMAL)
    assert reductions_as_shifts(program) == program
    assert logarithmic_shifts(program, 0) == program


WHOLE = """mirage 1

mugraph logsumexp(x: f32[m, k]) -> f32[m] where m = 64, k = 256 {
  y = block grid(m / 16) loop(k / 32) {
    t = load x[m/grid, k/loop]
    e = exp t
    s = sum e over(k)
    a = accumulate s
    l = log a
    store y: f32[m/grid] = l
  }
  return y
}
"""

SPLIT = """mirage 1

mugraph logsumexp(x: f32[m, k]) -> f32[m] where m = 64, k = 256 {
  p = block grid(m / 16, k / 64) loop(k / 32) {
    t = load x[m/grid, k/grid/loop]
    e = exp t
    s = sum e over(k)
    a = accumulate s
    store p: f32[m/grid, k#/grid] = a
  }
  y = block grid(m / 16) {
    t = load p[m/grid, k#]
    s = sum t over(k#)
    l = log s
    store y: f32[m/grid] = l
  }
  return y
}
"""


@pytest.mark.parametrize("text", [WHOLE, SPLIT])
def test_the_shift_is_put_back_behind_the_logarithm(text: str) -> None:
    bare = parse(text)
    program = _program()
    found = stabilise(bare)
    assert found is not None
    assert not check(found)
    certificate = verify(found, program)
    assert certificate.ok, certificate
    assert "tested in float64" in certificate.rests_on
    x = 1e4 * np.random.default_rng(0).normal(size=(64, 256))
    (right,) = evaluate_numpy(program, x)
    (y,) = evaluate_numpy(found, x)
    assert np.isfinite(y).all()
    np.testing.assert_allclose(y, right, rtol=1e-12)


def _program() -> KernelGraph:
    return mirage.kernel(PROGRAMS["logsumexp"]).trace(mirage.f32[(64, 256)])


MISTAKES = {
    "not put back": ("add l_low, last", "add l_low, 0"),
    "subtracted": ("add l_low, last", "sub l_low, last"),
    "twice": ("add l_low, last", "add last, last"),
    "not rescaled": (" rescale largest", ""),
    "half": ("exp moved", "exp t"),
    "before the logarithm": ("add l_low, last", "mul l_low, last"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name: str) -> None:
    found = stabilise(parse(WHOLE))
    assert found is not None
    old, new = MISTAKES[name]
    text = str(found)
    assert text.count(old) == 1, text
    wrong = parse(text.replace(old, new))
    for seed in SEEDS:
        assert not verify(wrong, _program(), seed=seed, stability=False).equivalent


def test_values_of_other_rows_are_refused() -> None:
    """A shift of another row, where both have as many."""
    program = mirage.kernel(lambda x: torch.logsumexp(x, -1)).trace(mirage.f32[(8, 8)])
    wrong = parse(
        """mirage 1

mugraph logsumexp(x: f32[m, k]) -> f32[m] where m = 8, k = 8 {
  s: f32[m] = rowshift x over(k)
  c: f32[k] = rowshift x over(m)
  r: f32[m] = rename c dims(k) to(m)
  d: f32[m, k] = sub x, s
  e: f32[m, k] = exp d
  t: f32[m] = sum e over(k)
  l: f32[m] = log t
  y: f32[m] = add l, r
  return y
}
"""
    )
    for seed in SEEDS:
        assert not verify(wrong, program, seed=seed, stability=False).equivalent


ROWS = """mirage 1

mugraph logsumexp(x: f32[m, k]) -> f32[m] where m = 1024, k = 40 {
  s: f32[m] = rowshift x over(k)
  d: f32[m, k] = sub x, s
  e: f32[m, k] = exp d
  t: f32[m] = sum e over(k)
  l: f32[m] = log t
  y: f32[m] = add l, s
  g: f32[m] = sum x over(k)
  big: f32[m] = mul g, 10000000000000
  i = index m
"""
HIDDEN = {
    "in a large sum": "z = add big, l",
    "for negative inputs": "c: bool[m] = less g, 0\n  z = where c, l, y",
    "for large inputs": "c: bool[m] = less 10000, g\n  z = where c, l, y",
    "in late rows": "c: bool[m] = less 900, i\n  z = where c, l, y",
    "where a term is 0": "n = relu g\n  o = sub g, n\n  p = mul o, s\n  z = add y, p",
}
RIGHT = {"in a large sum": "z = add big, y"}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", HIDDEN)
def test_shifts_that_matter_rarely_are_found(name: str) -> None:
    """With 0 in the place of all shifts these candidates are right."""
    wrong = parse(f"{ROWS}  {HIDDEN[name]}\n  return z\n}}\n")
    right = RIGHT.get(name, "z = add y, 0")
    program = parse(f"{ROWS}  {right}\n  return z\n}}\n")
    assert verify(program, program, stability=False).equivalent
    for seed in SEEDS:
        assert not verify(wrong, program, seed=seed, stability=False).equivalent


@pytest.mark.sample(0)
def test_one_pass_over_the_logits() -> None:
    """What reads a row of logits reads it once, a label's loss hardly more."""

    def loss(x: Any, t: Any) -> Any:
        return functional.cross_entropy(x, t)

    shapes = mirage.f16[(256, 32000)], mirage.i64[(256,)]
    bound = mirage.kernel(loss).bind(*shapes)
    result = bound.search()
    best = result.best
    read = 256 * 32000 * 2
    assert sum(k.dram_bytes for k in best.cost.kernels) < 1.1 * read
    assert best.certificate is not None
    assert best.certificate.ok


COMPUTED = """mirage 1

mugraph logsumexp(x: f32[m, k]) -> f32[m] where m = 64, k = 256 {
  y = block grid(m / 16) {
    t = load x[m/grid, k]
    a = mul t, t
    s = sum a over(k)
    q = sqrt s
    n = div t, q
    r = maximum n, 0
    z = add r, t
    v = max z over(k)
    w = maximum v, -3.4028234663852886e+38
    u = minimum w, 3.4028234663852886e+38
    d = sub z, u
    top = rowshift d over(k)
    least = maximum top, -3.4028234663852886e+38
    limited = minimum least, 3.4028234663852886e+38
    moved = sub d, limited
    e = exp moved
    f = sum e over(k)
    low = log f
    l = add low, limited
    o = add u, l
    store y: f32[m/grid] = o
  }
  return y
}
"""
"""Its maximum is the program's, and shifted once more; roots hide differences."""


def _normed(x: Any) -> Any:
    y = torch.relu(x / torch.sqrt((x * x).sum(-1, keepdim=True))) + x
    return torch.logsumexp(y, -1)


COMPUTED_WRONGLY = {
    "another maximum": ("v = max z", "v = max r"),
    "a shift that stays": ("l = add low, limited", "l = add low, 0"),
    "a shift too much": ("o = add u, l", "o = add w, limited"),
    "without the maximum": ("o = add u, l", "o = add l, 0"),
}


@pytest.mark.sample(0)
def test_a_maximum_of_a_block_may_be_the_one_of_the_program() -> None:
    program = mirage.kernel(_normed).trace(mirage.f32[(64, 256)])
    for seed in SEEDS:
        watch = Stopwatch()
        certificate = verify(parse(COMPUTED), program, seed=seed)
        assert certificate.ok, certificate
        # As shifts they are not equal, which takes minutes to see behind roots.
        assert watch.seconds < 10.0


@pytest.mark.parametrize("name", COMPUTED_WRONGLY)
def test_a_block_with_a_wrong_maximum_is_refused(name: str) -> None:
    program = mirage.kernel(_normed).trace(mirage.f32[(64, 256)])
    old, new = COMPUTED_WRONGLY[name]
    assert COMPUTED.count(old) == 1
    wrong = parse(COMPUTED.replace(old, new))
    assert not verify(wrong, program, seed=3, stability=False).equivalent


LONG = (1024, 393216)


@pytest.mark.sample(1)
@pytest.mark.parametrize("scale", [1, 2])
def test_log_softmax_of_long_rows_reads_them_once_for_their_sum(scale: int) -> None:
    """The sum's logarithm and the shift are stored apart, and subtracted in turn."""
    kernel = mirage.kernel(lambda x: torch.log_softmax(x * scale, -1))
    found = kernel.bind(mirage.f32[LONG]).search(effort="quick", use_cache=False)
    assert len(found.best.mugraph.blocks) == len(found.best.mugraph.nodes) == 2
    assert len(found.best.mugraph.blocks[0].results) == 2
    assert found.best.certificate is not None
    assert found.best.certificate.ok
