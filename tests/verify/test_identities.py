"""Identities of the reals that verification knows, and false ones that it rejects."""

# All bodies have one signature, whether they use both tensors or not.
# ruff: noqa: ARG005

from __future__ import annotations

from typing import Any

import pytest

from mirage_dsl.core.types import f16, scalar
from mirage_dsl.ir.builder import KernelBuilder, one_over
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.verify.verifier import verify

SEEDS = (0, 1, 2)


def _elementwise(body: Any) -> KernelGraph:
    b: Any = KernelBuilder("f", m=8, n=16)
    x, y = b.input("x", f16, "m, n"), b.input("y", f16, "m, n")
    return b.returns(body(b, x, y)).build()


def _s(b: Any, x: str) -> str:
    return b.sum(b.square(x), over="n")


def _above(b: Any, x: str) -> str:
    """What is positive for every real x."""
    return b.add(b.square(x), 1)


IDENTITIES: dict[str, tuple[Any, Any]] = {
    "quotient by a root": (
        lambda b, x, y: b.div(y, b.sqrt(_s(b, x))),
        lambda b, x, y: b.mul(y, b.rsqrt(_s(b, x))),
    ),
    "squared root": (
        lambda b, x, y: b.square(b.sqrt(_above(b, x))),
        lambda b, x, y: _above(b, x),
    ),
    "root of a product": (
        lambda b, x, y: b.sqrt(b.mul(_above(b, x), _above(b, y))),
        lambda b, x, y: b.mul(b.sqrt(_above(b, x)), b.sqrt(_above(b, y))),
    ),
    "squared roots summed": (
        lambda b, x, y: b.sum(b.square(b.sqrt(_above(b, x))), over="n"),
        lambda b, x, y: b.sum(_above(b, x), over="n"),
    ),
    "relu of a squared root": (
        lambda b, x, y: b.relu(b.mul(b.sub(b.square(b.sqrt(_above(b, x))), y), 7)),
        lambda b, x, y: b.mul(b.relu(b.sub(_above(b, x), y)), 7),
    ),
    "root of 25": (
        lambda b, x, y: b.sqrt(b.mul(x, 25)),
        lambda b, x, y: b.mul(b.sqrt(x), 5),
    ),
    "root as a constant": (
        lambda b, x, y: b.mul(b.mul(x, scalar(128**-0.5)), scalar(128**-0.5)),
        lambda b, x, y: b.mul(x, scalar(1 / 128)),
    ),
    "relu and a positive factor": (
        lambda b, x, y: b.relu(b.mul(x, b.exp(y))),
        lambda b, x, y: b.mul(b.relu(x), b.exp(y)),
    ),
    "maxima in another order": (
        lambda b, x, y: b.max(b.maximum(x, y), over="n"),
        lambda b, x, y: b.maximum(b.max(x, over="n"), b.max(y, over="n")),
    ),
    "condition pulled out": (
        lambda b, x, y: b.mul(b.where(b.less(x, y), x, y), 2),
        lambda b, x, y: b.where(b.less(x, y), b.mul(2, x), b.mul(2, y)),
    ),
    "condition on a tensor pulled out": (
        lambda b, x, y: b.mul(b.where(x, y, 0), 2),
        lambda b, x, y: b.where(x, b.mul(y, 2), 0),
    ),
    "masked by minus infinity": (
        lambda b, x, y: b.exp(b.where(b.less(x, y), x, scalar(float("-inf")))),
        lambda b, x, y: b.mul(b.exp(x), b.less(x, y)),
    ),
    "sum in an exponent": (
        lambda b, x, y: b.exp(b.add(x, y)),
        lambda b, x, y: b.mul(b.exp(x), b.exp(y)),
    ),
    "silu spelled out": (
        lambda b, x, y: b.silu(x),
        lambda b, x, y: b.div(x, b.add(1, b.exp(b.neg(x)))),
    ),
    "root of an exponential": (
        lambda b, x, y: b.sqrt(b.exp(x)),
        lambda b, x, y: b.exp(b.mul(x, 0.5)),
    ),
    "inside of a logarithm": (
        lambda b, x, y: b.log(b.mul(x, y)),
        lambda b, x, y: b.log(b.mul(y, x)),
    ),
}

NO_IDENTITIES: dict[str, tuple[Any, Any]] = {
    "root of the negative": (
        lambda b, x, y: b.sqrt(x),
        lambda b, x, y: b.sqrt(b.neg(x)),
    ),
    "swapped under a root": (
        lambda b, x, y: b.sqrt(b.sub(x, y)),
        lambda b, x, y: b.sqrt(b.sub(y, x)),
    ),
    "negative root": (
        lambda b, x, y: b.div(x, b.sqrt(x)),
        lambda b, x, y: b.neg(b.sqrt(x)),
    ),
    "root of a square": (
        lambda b, x, y: b.sqrt(b.square(x)),
        lambda b, x, y: b.mul(x, 1),
    ),
    "relu and a negative factor": (
        lambda b, x, y: b.relu(b.mul(x, -7)),
        lambda b, x, y: b.mul(b.relu(x), -7),
    ),
    "upper bound": (
        lambda b, x, y: b.minimum(b.maximum(x, 0), 6),
        lambda b, x, y: b.minimum(b.maximum(x, 0), 7),
    ),
    "bound of a squared root": (
        lambda b, x, y: b.minimum(b.square(b.sqrt(x)), y),
        lambda b, x, y: b.minimum(x, b.add(y, 1)),
    ),
    "lower bound": (
        lambda b, x, y: b.minimum(b.maximum(x, 0), 6),
        lambda b, x, y: b.minimum(b.maximum(x, -1), 6),
    ),
    "bound left out": (
        lambda b, x, y: b.minimum(b.maximum(x, 0), 6),
        lambda b, x, y: b.relu(x),
    ),
    "condition turned": (
        lambda b, x, y: b.where(b.less(x, y), x, y),
        lambda b, x, y: b.where(b.less(y, x), x, y),
    ),
    "condition ignored": (
        lambda b, x, y: b.where(x, y, 0),
        lambda b, x, y: b.mul(y, 1),
    ),
    "mask ignored": (
        lambda b, x, y: b.exp(b.where(x, y, scalar(float("-inf")))),
        lambda b, x, y: b.exp(y),
    ),
    "fill of a mask": (
        lambda b, x, y: b.exp(b.where(x, y, scalar(-10000.0))),
        lambda b, x, y: b.exp(b.where(x, y, scalar(0))),
    ),
    "nested exponentials": (
        lambda b, x, y: b.exp(b.exp(x)),
        lambda b, x, y: b.exp(b.exp(y)),
    ),
    "product of exponentials in an exponential": (
        lambda b, x, y: b.exp(b.exp(b.add(x, y))),
        lambda b, x, y: b.exp(b.add(b.exp(x), b.exp(y))),
    ),
    "logarithm of a sum": (
        lambda b, x, y: b.log(b.mul(x, y)),
        lambda b, x, y: b.log(b.add(x, y)),
    ),
    "mean over the other dim": (
        lambda b, x, y: b.mul(b.sum(x, over="n"), one_over("n")),
        lambda b, x, y: b.mul(b.sum(x, over="n"), one_over("m")),
    ),
    "shift that matters": (
        lambda b, x, y: b.exp(b.sub(x, b.rowshift(x, over="n"))),
        lambda b, x, y: b.exp(x),
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", IDENTITIES)
def test_identities_hold(name: str) -> None:
    left, right = (_elementwise(f) for f in IDENTITIES[name])
    for seed in SEEDS:
        assert verify(left, right, seed=seed, stability=False).equivalent
        assert verify(right, left, seed=seed, stability=False).equivalent


@pytest.mark.parametrize("name", NO_IDENTITIES)
def test_false_identities_do_not(name: str) -> None:
    left, right = (_elementwise(f) for f in NO_IDENTITIES[name])
    for seed in SEEDS:
        assert not verify(left, right, seed=seed, stability=False).equivalent
        assert not verify(right, left, seed=seed, stability=False).equivalent


def test_too_deep_is_never_a_wrong_acceptance() -> None:
    def tower(b: Any, x: str) -> str:
        for _ in range(7):
            x = b.exp(x)
        return x

    deep = _elementwise(lambda b, x, y: tower(b, x))
    other = _elementwise(lambda b, x, y: tower(b, b.mul(x, 2)))
    assert verify(deep, deep, stability=False).equivalent
    found = verify(other, deep, stability=False)
    assert not found.equivalent
    assert found.reason


def test_division_by_zero_is_undecided() -> None:
    nothing = _elementwise(lambda b, x, y: b.div(x, b.sub(y, y)))
    found = verify(nothing, nothing)
    assert not found.equivalent
    assert "could not decide" in found.reason
