"""Interruptions, and the same result every time, of the search for several kernels."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.driver import search
from mirage_dsl.search.multi_kernel import search as union_search
from mirage_dsl.search.multi_kernel.search import multi_kernel
from tests.search.test_multi_kernel import decode


def test_ctrl_c_keeps_what_was_sized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed while the proof runs, it gives the best so far, verified."""

    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(union_search, "prove", pressed)
    result = search(decode(), H100, max_kernels=2, k=4)
    assert result.cut_short
    assert not result.complete
    assert len(result.best.mugraph.blocks) == 2
    assert result.best.certificate is not None
    assert result.best.certificate.ok


class Clock:
    """The monotonic clock, which tests move on by hand: no machine is too slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        self._real = time.monotonic
        monkeypatch.setattr(time, "monotonic", self.now)

    def now(self) -> float:
        return self._real() + self._ahead

    def move(self, seconds: float) -> None:
        self._ahead += seconds


def test_a_proof_that_takes_its_time_leaves_some_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    given: list[float] = []

    def endless(*_: Any, budget: Budget, **__: Any) -> None:
        given.append(budget.seconds)
        clock.move(given[-1])

    monkeypatch.setattr(union_search, "prove", endless)
    result = search(decode(), H100, max_kernels=2, k=4, budget_seconds=1000.0)
    assert 400.0 < given[0] < 425.0
    assert result.seconds < 1000.0
    assert len(result) > 1


def test_what_was_found_is_verified_when_finding_took_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    def slow(stage: str, done: int, *_: object) -> None:
        clock.move(850.0 if (stage, done) == ("several kernels", 0) else 0.0)

    # One kernel for the logits, which one call of PyTorch's does not store.
    program = decode(capped=True)
    result = search(
        program, H100, max_kernels=2, k=4, budget_seconds=1000.0, progress=slow
    )
    assert result.cut_short
    assert len(result) > 1
    assert all(c.certificate is not None and c.certificate.ok for c in result)


def test_the_same_list_on_any_number_of_threads() -> None:
    results = [search(decode(), H100, max_kernels=3, k=4, threads=n) for n in (1, 2)]
    texts = [[to_text(c.mugraph) for c in r] for r in results]
    assert texts[0] == texts[1]
    assert len(texts[0]) > 1
    assert results[0].ledger == results[1].ledger
    assert results[0].proof == results[1].proof


@pytest.mark.sample(0)
def test_other_seeds_find_as_good_a_program() -> None:
    costs = [multi_kernel(decode(), H100, max_kernels=2, seed=n).cost for n in range(3)]
    assert costs[1:] == pytest.approx(costs[:-1], rel=1e-6)


def test_the_proof_is_cut_by_work_and_not_by_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it has the same bound on a busy machine."""
    monkeypatch.setattr(union_search, "PROOF_EFFORT", 0.02)
    found = [multi_kernel(decode(), H100, max_kernels=3) for _ in range(2)]
    assert not found[0].complete
    assert found[0].bound is not None
    assert found[0].bound == found[1].bound
    first, second = ([str(p.graph) for p in f.plans] for f in found)
    assert first == second
