"""The bed of false candidates: none may be accepted, and the right ones must be."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from mirage_dsl.core.errors import MirageError
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.verify.verifier import verify
from tests.verify import graphs
from tests.verify.cases import wrong_ones
from tests.verify.false_candidates import HAND_PICKED

SEEDS = (0, 1, 2)


def _id(pair: tuple[graphs.Maker, graphs.Maker]) -> str:
    return f"{pair[0].__name__}-{pair[1].__name__}"


@pytest.mark.sample(6)
@pytest.mark.parametrize("pair", graphs.RIGHT, ids=_id)
def test_right_candidates_are_accepted(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    program, candidate = pair[0](), pair[1]()
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed, stability=False)
        assert found.equivalent, found.reason
        assert found.error_bound < 1e-12


@pytest.mark.sample(0)
def test_no_mutation_of_a_sample_is_accepted() -> None:
    """The whole bed is `python -m benchmarks.bed`."""
    wrong = 0
    for wrong, case in enumerate(wrong_ones(lambda number: number % 23 == 0), 1):
        for seed in (wrong, wrong + 1):
            found = verify(case.candidate, case.program, seed=seed, stability=False)
            assert not found.equivalent, (case.name, case.what)
            assert found.reason
    assert wrong >= 60


@pytest.mark.parametrize("pair", HAND_PICKED, ids=_id)
def test_known_mistakes_are_rejected(pair: tuple[graphs.Maker, graphs.Maker]) -> None:
    program, candidate = pair[0](), pair[1]()
    for seed in SEEDS:
        found = verify(candidate, program, seed=seed)
        assert not found.equivalent
        assert found.counterexample is not None
        example = found.counterexample
        assert example.expected != example.found
        assert found.stability is None


def test_permuted_outputs_are_rejected() -> None:
    b: Any = KernelBuilder("two", m=8, n=16)
    x = b.input("x", f16, "m, n")
    first, second = b.exp(x), b.square(x)
    right = b.returns(first, second).build()
    permuted = b.returns(second, first).build()
    assert verify(right, right, stability=False).equivalent
    assert not verify(permuted, right, stability=False).equivalent


def test_another_interface_is_named() -> None:
    found = verify(graphs.linear(), graphs.rms_linear())
    assert not found.equivalent
    assert "n = 512" in found.reason or "512" in found.reason


def test_unknown_graph_errors_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MirageError("no sizes")

    monkeypatch.setattr(sys.modules[verify.__module__], "shrink", refuse)
    found = verify(graphs.linear(), graphs.linear())
    assert found.reason == "could not decide: no sizes"
