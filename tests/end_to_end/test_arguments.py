"""What the doors for μGraphs take, and how they refuse the rest."""

from __future__ import annotations

from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import CheckError, ParseError, UnsupportedError


def exponential(x: Any) -> Any:
    return mirage.exp(x)


@pytest.fixture(scope="module")
def bound() -> mirage.BoundKernel:
    kernel = mirage.kernel(effort="none")(exponential)
    return kernel.bind(mirage.spec((4, 8), "float32"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"method": "fast"}, "method='fast'; expected one of fields, exact"),
        ({"seed": -1}, "seed=-1; expected an integer from 0 on"),
        ({"seed": 0.5}, "seed=0.5; expected an integer"),
        ({"chains": 0}, "chains=0; expected an integer from 1 on"),
        ({"seeds": 0}, "seeds=0; expected an integer from 1 on"),
    ],
)
def test_verify_refuses_what_means_nothing(
    bound: mirage.BoundKernel, options: Any, expected: str
) -> None:
    with pytest.raises(UnsupportedError, match=expected):
        mirage.verify(bound.program, bound.program, **options)


def test_texts_and_candidates_are_graphs_everywhere(bound: mirage.BoundKernel) -> None:
    result = bound.search()
    for given in (result.best, result.best.mugraph, str(result.best.mugraph)):
        assert bound.use(given).ok
        assert mirage.verify(given, bound).ok
        assert mirage.why_not(given, bound, result).verdict == "found"
    wrong: Any = 3
    with pytest.raises(CheckError, match="expected a program or a μGraph"):
        bound.use(wrong)


def test_what_is_pinned_is_read_at_once() -> None:
    with pytest.raises(ParseError, match="expected `mirage 1`"):
        mirage.kernel(mugraph="nonsense")(exponential)
    wrong: Any = 3
    with pytest.raises(CheckError, match="found int"):
        mirage.kernel(mugraph=wrong)(exponential)
