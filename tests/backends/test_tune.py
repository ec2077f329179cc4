"""Tuning without a GPU: the worker's checks, and candidates that kill or hang it."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mirage_dsl.backends.triton import tune as tuning
from mirage_dsl.backends.triton.compile_worker import compiled
from mirage_dsl.backends.triton.launch import Executable
from mirage_dsl.backends.triton.tune import InputSpec, Job, Task, Timing, Trial, Tuner
from mirage_dsl.backends.triton.tune_worker import LOST, Judge, relative_error
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.testing import mugraphs
from mirage_dsl.types import f16

GRAPH = mugraphs.rmsnorm_linear(8, 64, 96, tile_n=32, tile_k=16)
INPUTS = (
    InputSpec((8, 64), (64, 1), "float16"),
    InputSpec((64, 96), (1, 64), "float16", 0.5),
)


def test_graphs_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(GRAPH)) == GRAPH


def test_right_and_wrong_candidates() -> None:
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    right = Executable(GRAPH, interpret=True)
    assert judge.error_of(right) <= judge.tolerance()

    def wrong(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [right(*tensors)[0] * 1.1]

    assert judge.error_of(wrong) > judge.tolerance()
    assert relative_error(torch.tensor([float("nan")]), torch.ones(1)) == float("inf")


FAKE_JUDGE = """
import os, sys, time
from mirage_dsl.backends.triton.channel import receive, send
from mirage_dsl.backends.triton.tune import Task, Timing
while True:
    request = receive(sys.stdin.buffer)
    if request is None:
        continue
    if isinstance(request, Task):
        send(sys.stdout.buffer, None)
        continue
    name = request.graph.name
    if name == "crash":
        os._exit(7)
    if name == "hang":
        time.sleep(60)
    send(sys.stdout.buffer, Timing(0, float(len(name)), 0.0))
"""
FAKE_COMPILER = """
import os, sys, time
from mirage_dsl.backends.triton import compile_worker as worker
from mirage_dsl.backends.triton.tune import Compiled
def compiled(job):
    if job.graph.name == "broken":
        os._exit(3)
    if job.graph.name == "endless":
        time.sleep(60)
    return Compiled(job.index, "spills" if job.graph.name == "spills" else "", 0.0)
worker.compiled = compiled
worker.SECONDS_EACH = 2.0
worker.LOADED = ()
worker.main(sys.argv[1:])
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("JUDGE", FAKE_JUDGE), ("COMPILER", FAKE_COMPILER)):
        file = tmp_path / f"{name.lower()}.py"
        file.write_text(text)
        monkeypatch.setattr(tuning, name, (str(file),))


def named(name: str, *, kernels: bool = True) -> KernelGraph:
    return replace(GRAPH if kernels else KernelGraph("", (), (), (), ()), name=name)


@pytest.mark.usefixtures("helpers")
def test_crashes_and_hangs_cost_only_themselves() -> None:
    names = ["longest", "crash", "broken", "hang", "spills", "endless", "best"]
    seen: list[Timing] = []
    graphs = [named(n) for n in names] + [named("library", kernels=False)]
    with Tuner(Task(GRAPH, INPUTS), "sm_90", seconds_each=3, jobs=3) as tuner:
        found = tuner.times(graphs, progress=seen.append)
        assert tuner.again(graphs[0], replays=3).microseconds == 7
    assert [t.index for t in found] == list(range(8))
    assert {t.index for t in seen} == set(range(8))
    assert [t.microseconds for t in found if not t.reason] == [7, 4, 7]
    reasons = dict(zip(names, (t.reason for t in found), strict=False))
    assert "ended with 7" in reasons["crash"]
    assert "compiler ended with 3" in reasons["broken"]
    assert "no answer within 3 s" in reasons["hang"]
    assert reasons["spills"] == "spills"
    assert "compiler ended with -9" in reasons["endless"]


@pytest.mark.usefixtures("helpers")
def test_what_time_forbids_is_not_timed() -> None:
    deadline = time.monotonic() - 1
    with Tuner(Task(GRAPH, INPUTS), "sm_90", deadline=deadline) as tuner:
        assert tuner.late
        (found,) = tuner.times([GRAPH])
    assert found.reason == tuning.NO_TIME


def test_a_gpu_that_is_lost_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next candidate gets a new one."""

    class Lost:
        @staticmethod
        def synchronize() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def ended(status: int) -> None:
        raise SystemExit(status)

    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    trial = Trial(GRAPH, float("inf"), 1)
    assert "CompileError" in judge.judge(trial).reason
    monkeypatch.setattr(torch, "get_device_module", lambda _: Lost)
    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(SystemExit, match=str(LOST)):
        judge.judge(trial)


def test_inputs_are_drawn_until_the_outputs_are_numbers() -> None:
    g = KernelBuilder("root", m=4, k=8)
    x = g.input("x", f16, "m, k")
    program = g.returns(g.mul(g.sqrt(x), 2.0**15)).build()
    judge = Judge(Task(program, (InputSpec((4, 8), (8, 1), "float16"),)), "cpu")
    for (drawn,), (right,) in zip(judge.draws, judge.right, strict=True):
        assert bool((drawn >= 0).all())
        assert float(right.max()) < torch.finfo(torch.float16).max


def test_compilations_are_screened() -> None:
    done = compiled(Job(3, GRAPH, "sm_90"))
    assert (done.index, done.reason) == (3, "")
    assert "target" in compiled(Job(0, GRAPH, "sm")).reason
