"""Maxima that only shift exponents become shifts; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.verify.shifts import reductions_as_shifts


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
