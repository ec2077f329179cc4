"""Times in turns: what is timed how often, in which order, and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mirage_dsl.tune import timing


class _Event:
    def __init__(self, clock: float) -> None:
        self._clock = clock

    def elapsed_time(self, other: _Event) -> float:
        """In milliseconds, as PyTorch's."""
        return other._clock - self._clock


class _Gpu:
    """Runs calls at once; its clock falls all the while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 0.0
        self.slowness = 1.0
        self.replayed: list[str] = []
        monkeypatch.setattr(timing, "_beside_current", lambda: self)
        monkeypatch.setattr(timing, "_rough", lambda call, *_: [call.cost])
        monkeypatch.setattr(timing, "_Chain", self._chain)
        monkeypatch.setattr(timing, "_marked", self._marked)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: self)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def synchronize(self) -> None: ...

    def _chain(self, call: _Call, _sets: Any, length: int, _stream: object) -> _Chain:
        return _Chain(self, call, length)

    def _marked(self, work: Callable[[], None], _: object) -> tuple[_Event, _Event]:
        start = _Event(self.clock)
        work()
        return start, _Event(self.clock)


class _Call:
    def __init__(self, name: str, cost: float) -> None:
        self.name = name
        self.cost = cost


class _Chain:
    def __init__(self, gpu: _Gpu, call: _Call, length: int) -> None:
        self.gpu, self.call, self.length = gpu, call, length

    def replay(self) -> None:
        self.gpu.replayed.append(self.call.name)
        self.gpu.slowness *= 1.001
        self.gpu.clock += self.length * self.call.cost * self.gpu.slowness / 1000.0

    def show(self, look: Callable[[Any], None]) -> None:
        look(self.call.name)


def test_all_calls_meet_the_same_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu(monkeypatch)
    calls = [_Call("a", 300.0), _Call("b", 303.0), _Call("c", 50.0)]
    shown: list[tuple[int, str]] = []
    a, b, c = timing.time_in_turns(
        [(call, [()]) for call in calls], look=lambda at, out: shown.append((at, out))
    )
    turns = timing.TURNS + timing.SETTLING
    assert gpu.slowness > 1.1
    assert b.median / a.median == pytest.approx(1.01, abs=0.004)
    assert c.median / a.median == pytest.approx(1 / 6, rel=0.004)
    assert a.low < a.median < a.high
    assert shown == [(0, "a"), (1, "b"), (2, "c")]
    orders = {tuple(gpu.replayed[3 * i : 3 * i + 3]) for i in range(turns)}
    assert {frozenset(order) for order in orders} == {frozenset("abc")}
    assert len(orders) > 1, "nobody always follows the same one"
    assert len(gpu.replayed) == 3 * turns


def test_turns_end_with_their_time_but_one_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = _Gpu(monkeypatch)
    (found,) = timing.time_in_turns([(_Call("a", 5.0), [()])], seconds=0.0)
    assert found.median == found.low == found.high
    assert len(gpu.replayed) == timing.SETTLING + 1


@pytest.mark.gpu
def test_turns_tell_what_alone_tells() -> None:
    """On a GPU, of calls so short that power is no matter."""
    x = torch.randn(1 << 22, device="cuda")
    shown: list[int] = []
    calls = [(torch.neg, timing.rotating([x])), (torch.neg, [(x[: 1 << 20],)])]
    long, short = timing.time_in_turns(calls, look=lambda at, _: shown.append(at))
    alone = timing.time_call(torch.neg, [x])
    assert long.median == pytest.approx(alone.median, rel=0.1)
    assert short.median < long.median / 2
    assert set(shown) == {0, 1}
