"""Tuning without a GPU: the worker's checks, and candidates that kill or hang it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from mirage_dsl.backends.triton import tune as tuning
from mirage_dsl.backends.triton.launch import Executable
from mirage_dsl.backends.triton.pickling import dumps
from mirage_dsl.backends.triton.tune import InputSpec, Task, Timing, tune
from mirage_dsl.backends.triton.tune_worker import Judge, relative_error
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.testing import mugraphs

GRAPH = mugraphs.rmsnorm_linear(8, 64, 96, tile_n=32, tile_k=16)
INPUTS = (
    InputSpec((8, 64), (64, 1), "float16"),
    InputSpec((64, 96), (1, 64), "float16", 0.5),
)


def test_graphs_survive_pickling() -> None:
    assert pickle.loads(dumps(GRAPH)) == GRAPH


def test_right_and_wrong_candidates() -> None:
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    right = Executable(GRAPH, interpret=True)
    assert judge.error_of(right) <= judge.tolerance()

    def wrong(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [right(*tensors)[0] * 1.1]

    assert judge.error_of(wrong) > judge.tolerance()
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


FAKE_WORKER = """
import os, sys, time
from mirage_dsl.backends.triton.tune import Timing, receive, send
while True:
    request = receive(sys.stdin.buffer)
    name = getattr(request, "name", "")
    if name == "crash":
        os._exit(7)
    if name == "hang":
        time.sleep(60)
    send(sys.stdout.buffer, Timing(0, float(len(name)) or None, 0.0))
"""


def named(name: str) -> KernelGraph:
    return KernelGraph(name, (), (), (), ())


def test_crashes_and_hangs_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(FAKE_WORKER)
    monkeypatch.setattr(tuning, "COMMAND", (str(worker),))
    seen: list[Timing] = []
    found = tune(
        Task(GRAPH, INPUTS),
        [named("longest"), named("crash"), named("hang"), named("best")],
        seconds_each=4,
        progress=seen.append,
    )
    assert [t.index for t in found[:2]] == [3, 0]
    assert found[0].microseconds == 4
    reasons = {t.index: t.reason for t in found}
    assert "ended with 7" in reasons[1]
    assert "no answer within 4 s" in reasons[2]
    assert [t.index for t in seen] == [0, 1, 2, 3]
