"""Tuning without a GPU: the worker's checks, and candidates that kill or hang it."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mirage_dsl.backends.triton import (
    compile_worker,
    judge_process,
    spare,
    tune_worker,
)
from mirage_dsl.backends.triton import tune as tuning
from mirage_dsl.backends.triton.channel import Helper
from mirage_dsl.backends.triton.compile_worker import compiled
from mirage_dsl.backends.triton.launch import Executable
from mirage_dsl.backends.triton.messages import (
    CompileJob,
    Final,
    InputSpec,
    Task,
    Timing,
    Trial,
)
from mirage_dsl.backends.triton.screen import compile_only
from mirage_dsl.backends.triton.tune import Tuner
from mirage_dsl.backends.triton.tune_worker import LOST, Judge, relative_error
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.testing import mugraphs
from mirage_dsl.timing import Time, chain_length
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
from mirage_dsl.backends.triton.messages import Final, Task, Timing
while True:
    request = receive(sys.stdin.buffer)
    if request is None:
        continue
    if isinstance(request, Task):
        if request.program.name == "large":
            time.sleep(1.5)
        send(sys.stdout.buffer, time.monotonic())
        continue
    if isinstance(request, Final):
        names = [graph.name for graph in request.graphs]
        if "crash" in names:
            os._exit(7)
        if "hang" in names:
            time.sleep(60)
        found = [] if "none" in names else [Timing(0, 10.0 * len(n)) for n in names]
        send(sys.stdout.buffer, found)
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
from mirage_dsl.backends.triton.messages import Compiled
def compiled(job):
    if job.graph.name == "broken":
        os._exit(3)
    if job.graph.name == "endless":
        time.sleep(60)
    return Compiled(job.index, "spills" if job.graph.name == "spills" else "", 0.0)
worker.compiled = compiled
worker.SECONDS_EACH = 2.0
worker._load = lambda: None
worker.main(sys.argv[1:])
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = ((judge_process, "JUDGE", FAKE_JUDGE), (tuning, "COMPILER", FAKE_COMPILER))
    for module, name, text in fakes:
        file = tmp_path / f"{name.lower()}.py"
        file.write_text(text)
        monkeypatch.setattr(module, name, (str(file),))


def named(name: str, *, kernels: bool = True) -> KernelGraph:
    return replace(GRAPH if kernels else KernelGraph("", (), (), (), ()), name=name)


@pytest.mark.usefixtures("helpers")
def test_crashes_and_hangs_cost_only_themselves() -> None:
    names = ["longest", "crash", "broken", "hang", "spills", "endless", "best"]
    seen: list[Timing] = []
    graphs = [named(n) for n in names] + [named("library", kernels=False)]
    with Tuner(Task(GRAPH, INPUTS), "sm_90", seconds_each=3, jobs=3) as tuner:
        found = tuner.times(graphs, progress=seen.append)
        again = tuner.finals([graphs[0], graphs[-2]])
    assert again is not None
    assert [(t.index, t.microseconds) for t in again] == [(0, 70), (1, 40)]
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


@pytest.mark.usefixtures("helpers")
def test_a_trial_ends_with_the_time() -> None:
    """However long a candidate may take: nothing is waited for beyond the deadline."""
    started = time.monotonic()
    graphs = [named("good", kernels=False), named("hang", kernels=False)]
    with Tuner(Task(GRAPH, INPUTS), "sm_90", deadline=started + 2.0) as tuner:
        good, hanging = tuner.times(graphs)
        assert tuner.finals(graphs[:1]) is None, "a new process takes seconds"
        (late,) = tuner.times(graphs[:1])
    assert good.microseconds == 4
    assert hanging.reason == late.reason == tuning.NO_TIME
    assert time.monotonic() - started < 2.0 + tuning.GRACE + 1.0


@pytest.mark.usefixtures("helpers")
def test_some_time_is_left_once_all_is_ready() -> None:
    """Inputs that take long to draw, after a long search, do not end the tuning."""
    task = Task(named("large"), INPUTS)
    with Tuner(task, "sm_90", deadline=time.monotonic() - 1) as tuner:
        tuner.least = 5.0
        (found,) = tuner.times([named("library", kernels=False)])
        left = tuner.deadline - time.monotonic()
    assert found.microseconds == 7
    assert 3.0 < left <= 5.0
    marks = tuner.marks
    assert marks.ready is not None
    assert marks.first is not None
    assert marks.ready <= marks.first == marks.last


@pytest.mark.usefixtures("helpers")
def test_the_last_seconds_are_for_the_best() -> None:
    graph = named("library", kernels=False)
    deadline = time.monotonic() + 30.0
    with Tuner(Task(GRAPH, INPUTS), "sm_90", deadline=deadline) as tuner:
        tuner.times([graph])
        tuner.reserve = 60.0
        assert tuner.late
        (found,) = tuner.times([graph])
        again = tuner.finals([graph])
    assert found.reason == tuning.NO_TIME
    assert again is not None
    assert not again[0].reason


@pytest.mark.usefixtures("helpers")
@pytest.mark.parametrize("end", ["crash", "hang", "none"])
def test_finals_that_end_badly_say_nothing(end: str) -> None:
    """What is known of the candidates already stands."""
    good = named("good", kernels=False)
    with Tuner(Task(GRAPH, INPUTS), "sm_90") as tuner:
        tuner.times([good])
        tuner.deadline = time.monotonic() + 2.0
        assert tuner.finals([good, named(end)]) is None
        if end == "none":
            assert tuner.finals([good]) is not None, "the process is well"


@pytest.mark.usefixtures("helpers")
def test_what_time_forbids_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compiles is free for the next program at once."""
    started: list[tuple[str, ...]] = []

    def start(command: tuple[str, ...]) -> Helper:
        started.append(command)
        return Helper(command)

    monkeypatch.setattr(spare, "Helper", start)
    task = Task(GRAPH, INPUTS)
    graphs = [named("endless"), named("waiting"), named("more")]
    deadline = time.monotonic() + 1.5
    with Tuner(task, "sm_90", jobs=1, deadline=deadline) as tuner:
        tuner.times([named("library", kernels=False)])
        found = tuner.times(graphs)
    assert {t.reason for t in found} == {tuning.NO_TIME}
    with Tuner(task, "sm_90", jobs=1) as tuner:
        (best,) = tuner.times([named("best")])
    assert best.microseconds == 4
    assert len(started) == 2, "one of each kind"


@pytest.mark.parametrize("stopped", [(), (1,), range(99)], ids=["no", "once", "slow"])
def test_what_is_far_too_slow_runs_a_few_times(
    monkeypatch: pytest.MonkeyPatch, stopped: Sequence[int]
) -> None:
    """But not what was slow once, when the host did something else."""
    slow = len(stopped) > 1
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    right = Executable(GRAPH, interpret=True)
    known = {t[0].data_ptr(): right(*t) for t in judge.draws}
    calls: list[torch.Tensor] = []

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        time.sleep(0.01 if len(calls) in stopped else 0.0)
        calls.append(tensors[0])
        return known[tensors[0].data_ptr()]

    def time_sets(*_: object, **options: Any) -> Time:
        assert options["chain"] < 1e6
        return Time(5.0, 5.0, 5.0)

    monkeypatch.setattr(tune_worker, "Executable", lambda _: run)
    monkeypatch.setattr(tune_worker, "rotating", lambda _: [])
    monkeypatch.setattr(tune_worker, "time_sets", time_sets)
    timing = judge.judge(Trial(GRAPH, 20.0, 5))
    assert not timing.reason
    assert timing.microseconds is not None
    assert (timing.microseconds > 9000) == slow
    few = 1 + tune_worker.ROUGH_CALLS + len(judge.draws)
    assert (len(calls) <= few) == slow


@pytest.mark.parametrize("factor", [1.0, 1.1, float("nan")])
def test_what_a_chain_of_calls_returns_has_to_be_right(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """A kernel that is right alone may be wrong where calls overlap."""
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    right = Executable(GRAPH, interpret=True)

    def time_sets(
        run: Executable, *_: object, look: Callable[[Any], None], **__: object
    ) -> Time:
        look(run(*judge.draws[0]))
        look([out * factor for out in run(*judge.draws[0])])
        return Time(5.0, 5.0, 5.0)

    monkeypatch.setattr(tune_worker, "Executable", lambda _: right)
    monkeypatch.setattr(tune_worker, "rotating", lambda _: [])
    monkeypatch.setattr(tune_worker, "time_sets", time_sets)
    timing = judge.judge(Trial(GRAPH, float("inf"), 5))
    assert ("wrong in a chain of calls" in timing.reason) == (factor != 1.0)
    assert (timing.microseconds is None) == (factor != 1.0)


def test_each_finalist_has_to_be_right_in_its_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    right = Executable(GRAPH, interpret=True)(*judge.draws[0])

    def time_in_turns(
        calls: Sequence[object], *, seconds: float, look: Callable[[int, Any], None]
    ) -> list[Time]:
        assert seconds == 0.5
        look(0, right)
        look(1, [out * 1.1 for out in right])
        look(1, right)
        return [Time(5.0, 4.0, 6.0) for _ in calls]

    monkeypatch.setattr(tune_worker, "Executable", lambda graph: graph)
    monkeypatch.setattr(tune_worker, "rotating", lambda _: [])
    monkeypatch.setattr(tune_worker, "time_in_turns", time_in_turns)
    good, wrong = judge.finals(Final((GRAPH, named("wrong")), 0.5))
    assert (good.microseconds, good.reason) == (5.0, "")
    assert wrong.microseconds is None
    assert "wrong in a chain of calls" in wrong.reason


def test_chains_of_long_calls_are_short() -> None:
    assert chain_length(5.0, 4, 10_000.0) == 40
    assert chain_length(1000.0, 4, 10_000.0) == 10
    assert chain_length(1000.0, 16, 10_000.0) == 16, "each input once"
    assert chain_length(1000.0, 4, float("inf")) == 40


def test_a_gpu_that_is_lost_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next candidate gets a new one."""

    class Lost:
        @staticmethod
        def synchronize() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def ended(status: int) -> None:
        raise SystemExit(status)

    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    trial, final = Trial(GRAPH, float("inf"), 1), Final((GRAPH,), 1.0)
    assert "CompileError" in judge.judge(trial).reason
    assert judge.finals(final) == []
    monkeypatch.setattr(torch, "get_device_module", lambda _: Lost)
    monkeypatch.setattr(os, "_exit", ended)
    with pytest.raises(SystemExit, match=str(LOST)):
        judge.judge(trial)
    with pytest.raises(SystemExit, match=str(LOST)):
        judge.finals(final)


def test_warming_up_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs the program, and what fails is not lost on the candidates."""
    judge = Judge(Task(GRAPH, INPUTS), "cpu")
    ran: list[KernelGraph] = []

    def refuse(graph: KernelGraph) -> None:
        ran.append(graph)
        raise RuntimeError

    monkeypatch.setattr(tune_worker, "Executable", refuse)
    judge.warm_up()
    assert ran == [GRAPH]


def test_inputs_are_drawn_until_the_outputs_are_numbers() -> None:
    g = KernelBuilder("root", m=4, k=8)
    x = g.input("x", f16, "m, k")
    program = g.returns(g.mul(g.sqrt(x), 2.0**15)).build()
    judge = Judge(Task(program, (InputSpec((4, 8), (8, 1), "float16"),)), "cpu")
    for (drawn,), (right,) in zip(judge.draws, judge.right, strict=True):
        assert bool((drawn >= 0).all())
        assert float(right.max()) < torch.finfo(torch.float16).max


def test_what_children_inherit_was_compiled() -> None:
    """A kernel that Triton refuses would leave all of it to each child."""
    (report,) = compile_only(compile_worker._smallest())
    assert report.cubin_bytes


def test_compilations_are_screened() -> None:
    done = compiled(CompileJob(3, GRAPH, "sm_90"))
    assert (done.index, done.reason) == (3, "")
    assert "target" in compiled(CompileJob(0, GRAPH, "sm")).reason


def test_lost_occupancy_is_screened() -> None:
    wide = mugraphs.rmsnorm_linear(
        16, 4096, 6144, schedule=Schedule(num_stages=7), tile_n=32, tile_k=256
    )
    (report,) = compiled(CompileJob(0, wide, "sm_90")).reports
    assert report.resident == 1
    assert compiled(CompileJob(0, wide, "sm_90", together=(1,))).reason == ""
    lost = compiled(CompileJob(0, wide, "sm_90", together=(2,)))
    assert "2 are needed for all at once" in lost.reason
    assert (
        compiled(CompileJob(0, wide, "sm_90", screened=False, together=(2,))).reason
        == ""
    )
