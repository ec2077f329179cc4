"""Tuning: the order that a GPU gives, kept apart from what a search found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl import tuner
from mirage_dsl.backends.triton.tune import Task, Timing
from mirage_dsl.cache import TIMINGS, Cache
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import SearchResult
from mirage_dsl.superoptimizer import superoptimize
from mirage_dsl.tuner import tuned

pytestmark = pytest.mark.usefixtures("fresh_cache")


@mirage.kernel
def gated(x, w):
    return mirage.silu(x @ w.T)


def _result() -> SearchResult:
    w = mirage.spec((96, 64), strides=(1, 96))
    return superoptimize(gated.trace(mirage.spec((16, 64)), w))


class Device:
    """A GPU on which the last candidate is the fastest, and the first one wrong."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tasks: list[Task] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
        monkeypatch.setattr(tuner, "tune", self.tune)

    def tune(self, task: Task, candidates: Sequence[KernelGraph]) -> list[Timing]:
        self.tasks.append(task)
        last = len(candidates) - 1
        good = [Timing(i, 10.0 - i, 1e-4) for i in range(last, 0, -1)]
        return [*good, Timing(0, reason="wrong results")]


def test_without_a_gpu_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = _result()
    assert tuned(result).result is result
    assert Cache().entries(TIMINGS) == []


def test_the_gpu_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _result()
    device = Device(monkeypatch)
    found = tuned(result)
    assert not found.result.best.mugraph.blocks
    assert found.result.candidates[-1] == result.best
    assert set(found.result) >= set(result)
    assert [t.index for t in found.timings][-1] == 0
    x, w = device.tasks[0].inputs
    assert (x.shape, x.strides) == ((16, 64), (64, 1))
    assert (w.shape, w.strides) == ((96, 64), (1, 96))


def test_another_size_that_wins_gets_a_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = _result()
    Device(monkeypatch)

    def other_size_first(task: Task, candidates: Sequence[KernelGraph]) -> list[Timing]:
        known = {c.mugraph for c in result} | {task.program}
        found = [Timing(i, float(c in known), 0) for i, c in enumerate(candidates)]
        return sorted(found, key=lambda t: t.microseconds or 0.0)

    monkeypatch.setattr(tuner, "tune", other_size_first)
    best = tuned(result).result.best
    assert best.mugraph not in {c.mugraph for c in result}
    assert best.certificate is not None
    assert best.certificate.candidate_hash == canonical_hash(best.mugraph)


def test_only_some_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _result()
    Device(monkeypatch)
    found = tuned(result, most=1)
    assert 2 <= len(found.timings) <= tuner.SIZES_EACH + 1
    assert set(found.result) >= set(result)


def test_nothing_is_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _result()
    device = Device(monkeypatch)
    first, second = tuned(result), tuned(result)
    assert first == second
    assert len(device.tasks) == 1
    assert len(Cache().entries(TIMINGS)) == 1
    tuned(result, use_cache=False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    tuned(result)
    assert len(device.tasks) == 3


def test_where_nothing_can_be_timed_the_order_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = _result()
    Device(monkeypatch)
    monkeypatch.setattr(tuner, "tune", lambda *_: [Timing(0, reason="it hangs")])
    assert tuned(result).result is result
    assert "no candidate could be timed" in caplog.text
    assert Cache().entries(TIMINGS) == []


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    found = tuned(_result())
    best = found.timings[0]
    assert not best.reason
    assert best.microseconds is not None
