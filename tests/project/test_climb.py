"""What a tuner times after its first round, for how long, and what it says."""

from __future__ import annotations

import pytest

import mirage_dsl as mirage
from mirage_dsl import climb, superoptimizer
from mirage_dsl.backends.triton.messages import Timing
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.hardware import H100
from mirage_dsl.search.result import SearchResult
from mirage_dsl.settings import BUDGET_SECONDS, DETERMINISTIC
from mirage_dsl.tuner import tuned
from tests.project.test_tuner import Device, _result, gated, library_first

pytestmark = pytest.mark.usefixtures("fresh_cache")


def test_the_last_word_is_of_the_longer_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    result, device = _result(), Device(monkeypatch, library_first)

    def again(candidate: KernelGraph, *, replays: int) -> Timing:
        assert replays > 5
        return Timing(0, 1.0 if candidate.blocks else 50.0, 1e-4)

    monkeypatch.setattr(device, "again", again)
    assert tuned(result).result.best.mugraph.blocks


def test_no_round_begins_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    result, device = _result(), Device(monkeypatch, library_first)
    device.late = True
    tuned(result)
    first = len(device.timed)
    device.timed.clear()
    device.late = False
    tuned(result, use_cache=False)
    assert len(device.timed) > first


@pytest.mark.parametrize("told", [False, True])
def test_who_is_not_told_of_progress_is_told_how_long_it_takes(
    told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = _result()
    Device(monkeypatch, library_first)
    tuned(result, progress=(lambda *_: None) if told else None)
    lines = [r.message for r in caplog.records if "up to about 13 s" in r.message]
    assert len(lines) == (not told)
    tuned(result)
    assert len(caplog.records) == len(lines), "what is in the cache takes no time"


def test_a_search_leaves_time_to_the_tuning_that_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = gated.bind(mirage.spec((16, 64)), mirage.spec((96, 64), strides=(1, 96)))
    budgets: list[float | None] = []

    def searched(
        *_: object, budget_seconds: float | None, **__: object
    ) -> SearchResult:
        budgets.append(budget_seconds)
        return _result()

    monkeypatch.setattr(superoptimizer, "superoptimize", searched)
    bound.search()
    Device(monkeypatch, library_first)
    monkeypatch.setattr("mirage_dsl.frontend.bound._current_hardware", lambda: H100)
    bound.search()
    bound.search(effort="none")
    bound.search(budget_seconds=2.0)
    with BUDGET_SECONDS.scope(3.0):
        bound.search()
    with DETERMINISTIC.scope(True):
        bound.search()
    own = climb.ALLOWANCES["quick"]
    assert budgets == [None, own.search, None, 2.0, 3.0, None]
    assert own.search + own.least < own.seconds
