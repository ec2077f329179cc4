"""What a tuner times after its first round, for how long, and what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mirage_dsl as mirage
from mirage_dsl import climb, superoptimizer
from mirage_dsl.backends.triton.messages import Timing
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.hardware import H100
from mirage_dsl.search.result import SearchResult
from mirage_dsl.settings import BUDGET_SECONDS, DETERMINISTIC
from mirage_dsl.tuner import Tuned, tuned
from tests.project.test_tuner import Device, _result, gated, library_first

pytestmark = pytest.mark.usefixtures("fresh_cache")


Again = Callable[..., Timing | None]


def _finals(monkeypatch: pytest.MonkeyPatch, again: Again) -> Tuned:
    """A tuning whose finalists are timed by `again`, which gets their numbers."""
    result, device = _result(), Device(monkeypatch, library_first)
    numbers: dict[KernelGraph, int] = {}

    def numbered(candidate: KernelGraph, *, replays: int) -> Timing | None:
        assert replays > 1
        return again(numbers.setdefault(candidate, len(numbers)))

    monkeypatch.setattr(device, "again", numbered)
    return tuned(result)


def test_the_last_word_is_of_the_timings_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock falls all the while; each time, the second finalist is the fastest."""
    calls: list[int] = []

    def again(number: int) -> Timing:
        calls.append(number)
        return Timing(0, len(calls) + (1.0 if number == 1 else 10.0), 1e-4)

    found = _finals(monkeypatch, again)
    count = max(calls) + 1
    assert calls == climb.FINAL_TURNS * list(range(count))
    assert count > 2
    best, second = found.measured[:2]
    assert found.result.best.mugraph == best.mugraph
    # The median of the turns, of which each takes as many calls as there are finalists.
    assert best.timing.microseconds == 2 + count * (climb.FINAL_TURNS // 2) + 1.0
    assert second.timing.microseconds == 1 + count * (climb.FINAL_TURNS // 2) + 10.0


@mirage.kernel
def many_rows(x, w):
    return mirage.rms_norm(x) @ w


def test_one_of_each_choice_of_library_calls_is_a_finalist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it is near: which of them wins depends on the power that they take."""

    def calls(graph: KernelGraph) -> int:
        return len(graph.nodes) - len(graph.blocks)

    def first(graph: KernelGraph) -> Timing:
        return Timing(0, 100.0 + calls(graph), 1e-4)

    shapes = mirage.spec((2048, 1024)), mirage.spec((1024, 2048))
    result = superoptimizer.superoptimize(many_rows.trace(*shapes))
    kinds = {calls(c.mugraph) for c in result} | {calls(result.program)}
    assert kinds > {0, 1}, "kernels of its own, and a library product beside them"
    device = Device(monkeypatch, first)
    finalists: dict[KernelGraph, None] = {}

    def again(candidate: KernelGraph, *, replays: int) -> Timing:
        assert replays > 1
        finalists[candidate] = None
        return Timing(0, 100.0 - (calls(candidate) == 1), 1e-4)

    monkeypatch.setattr(device, "again", again)
    best = tuned(result).result.best.mugraph
    assert {calls(g) for g in finalists} == kinds
    assert len(finalists) <= climb.FINALISTS + climb.OTHER_FINALISTS + 1
    assert calls(best) == 1


def test_long_calls_are_timed_for_longer_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = _result()

    def turns(microseconds: float) -> tuple[int, float]:
        device = Device(monkeypatch, lambda _: Timing(0, microseconds, 1e-4))
        calls: list[KernelGraph] = []

        def again(candidate: KernelGraph, *, replays: int) -> Timing:
            assert replays > 1
            calls.append(candidate)
            return device.judge(candidate)

        monkeypatch.setattr(device, "again", again)
        tuned(result, use_cache=False)
        return len(calls) // len(set(calls)), device.reserve

    assert turns(climb.LONG) == (climb.FINAL_TURNS, climb.FINAL_SECONDS)
    assert turns(climb.LONG + 1) == (climb.LONG_FINAL_TURNS, climb.LONG_FINAL_SECONDS)


def test_what_is_wrong_in_one_turn_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def again(number: int) -> Timing:
        calls.append(number)
        if calls.count(0) == 2 and number == 0:
            return Timing(0, reason="wrong results: error 1.0e+00")
        return Timing(0, 1.0 + number, 1e-4)

    found = _finals(monkeypatch, again)
    assert calls.count(0) == climb.FINAL_TURNS
    assert found.measured[0].timing.microseconds == 2.0
    assert found.measured[-1].timing.reason


def test_a_turn_that_is_cut_short_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []

    def again(number: int) -> Timing | None:
        calls.append(number)
        return Timing(0, 100.0 - number, 1e-4) if len(calls) < 3 else None

    found = _finals(monkeypatch, again)
    assert set(calls) == set(range(max(calls) + 1)), "the first turn only"
    first = {m.mugraph: m.timing for m in found.measured}
    assert all(first[g].microseconds == library_first(g).microseconds for g in first)


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
