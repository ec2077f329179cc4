"""What a tuner times after its first round, and what it says."""

from __future__ import annotations

import pytest

from mirage_dsl.backends.triton.messages import Timing
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.tuner import tuned
from tests.project.test_tuner import Device, _result, library_first

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
