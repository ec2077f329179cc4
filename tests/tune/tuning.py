"""A search result, and a GPU that says what a test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Self

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.hardware import PROPERTIES
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import SearchResult
from mirage_dsl.store.superoptimize import prepare, superoptimize
from mirage_dsl.tune import tuner
from mirage_dsl.tune.measure import Marks, Task, Timing


@mirage.kernel
def gated(x, w):
    return mirage.silu(x @ w.T)


def searched(rows: int = 16) -> SearchResult:
    """What a search finds for the gate, and leaves in the cache."""
    result = _found(rows)
    return prepare(result.program).keep(result)


@cache
def _found(rows: int) -> SearchResult:
    w = mirage.spec((96, 64), strides=(1, 96))
    return superoptimize(gated.trace(mirage.spec((rows, 64)), w), use_cache=False)


TrialWorker = Callable[[KernelGraph], Timing]


def library_first(graph: KernelGraph) -> Timing:
    """The fewer kernels of its own, the faster."""
    return Timing(0, 10.0 + len(graph.blocks), 1e-4)


class Device:
    """A GPU that says of each candidate what `judge` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, judge: TrialWorker) -> None:
        self.tasks: list[Task] = []
        self.timed: list[KernelGraph] = []
        self.running = 0
        self.failures: list[type[BaseException] | None] = []
        self.marks = Marks()
        self.judge = judge
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
        told = PROPERTIES["H100"]
        monkeypatch.setattr("mirage_dsl.tune.devices.properties_here", lambda: told)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(tuner, "Tuner", self.tuner)

    def tuner(
        self,
        task: Task,
        target: str,
        form: Callable[[KernelGraph], KernelGraph] | None,
    ) -> Device:
        assert target == "sm_90"
        self.tasks.append(task)
        self.form = form
        return self

    def __enter__(self) -> Self:
        self.running += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.running -= 1
        self.failures.append(kind)

    form: Callable[[KernelGraph], KernelGraph] | None = None
    late = False
    deadline = reserve = least = seconds_each = 0.0
    together: Callable[[KernelGraph], tuple[int, ...]]

    def times(
        self, candidates: Sequence[KernelGraph], *, progress: Callable[[Timing], None]
    ) -> None:
        assert len(set(candidates)) == len(candidates)
        assert not set(candidates) & set(self.timed)
        for index, graph in enumerate(candidates):
            self.timed.append(graph)
            progress(replace(self.judge(graph), index=index))

    def finals(self, candidates: Sequence[KernelGraph]) -> list[Timing] | None:
        assert set(candidates) <= set(self.timed)
        return [replace(self.judge(g), index=i) for i, g in enumerate(candidates)]
