"""False acceptances at tiny primes, against the bound that certificates state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.fields import chain_from
from mirage_dsl.verify.sizes import shrink
from mirage_dsl.verify.trials import Field, differences, invalid_trials
from mirage_dsl.verify.verifier import trial_error
from tests.verify import graphs
from tests.verify.false_candidates import (
    softmax_normalised_per_tile,
    splits_combined_without_weights,
)

TRIALS = 1500


def _rates(program: KernelGraph, candidate: KernelGraph, q: int) -> tuple[float, float]:
    """How often an element matches, and how often the whole output does."""
    where = Field(
        shrink(candidate, program, ragged=False, seed=1), chain_from(q, 2), (7,)
    )
    trials, inputs = where.draw(0, TRIALS)
    ours, theirs = (where.evaluate(s, trials, inputs, 0).outputs for s in (0, 1))
    valid = ~(invalid_trials(ours) | invalid_trials(theirs))
    same = ~differences(ours[0], theirs[0])[valid].reshape(int(valid.sum()), -1)
    return float(same.mean()), float(same.all(axis=1).mean())


def _product(factors: int, zero: bool) -> KernelGraph:
    """(e^x - e^y1) (e^x - e^y2) ...: a sum of exponentials with many zeros."""
    b: Any = KernelBuilder("product", m=16)
    x = b.input("x", f16, "m")
    ys = [b.input(f"y{i}", f16, "m") for i in range(factors)]
    gaps = [b.sub(b.exp(x), b.exp(y)) for y in ys]
    found = b.mul(gaps[0], 0 if zero else 1)
    for gap in gaps[1:]:
        found = b.mul(found, gap)
    return b.returns(found).build()


@pytest.mark.parametrize("q", [11, 83])
@pytest.mark.parametrize("factors", [1, 2, 3, 5])
def test_the_worst_sums_reach_the_bound(factors: int, q: int) -> None:
    element, _ = _rates(_product(factors, False), _product(factors, True), q)
    bound = trial_error(factors + 1, q)
    noise = 4 * np.sqrt(bound / (TRIALS * 5))
    assert element <= bound + noise
    assert element >= 0.7 * bound - noise


@pytest.mark.parametrize("q", [11, 83])
@pytest.mark.parametrize(
    "candidate", [softmax_normalised_per_tile, splits_combined_without_weights]
)
def test_wrong_attention_stays_far_below(candidate: graphs.Maker, q: int) -> None:
    element, whole = _rates(graphs.attention(), candidate(), q)
    assert 0.3 / q <= element <= 2 / q
    assert whole <= 2 / q**2
    assert whole <= trial_error(6**4, q)


def test_the_bound_is_of_terms_less_one() -> None:
    assert trial_error(5, 83) == 4 / 83
    assert trial_error(1, 83) == 1 / 83
    assert trial_error(1000, 83) == 1
