"""What a tuner times after its first round."""

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
