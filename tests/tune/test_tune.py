"""Tuning without a GPU: the worker's checks, and candidates that kill or hang it."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_dsl.backends.triton.running.screen import compile_only
from mirage_dsl.core import processes
from mirage_dsl.core.processes import Helper
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.tune import compile_worker, measure
from mirage_dsl.tune import measure as tuning
from mirage_dsl.tune.compile_worker import compiled
from mirage_dsl.tune.measure import (
    CompileJob,
    Task,
    Timing,
    Tuner,
)
from tests.core.ending import ends
from tests.programs import mugraphs
from tests.tune.trials import GRAPH, INPUTS


def test_graphs_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(GRAPH)) == GRAPH


COMPILING = """
import os, sys, time
from mirage_dsl.tune import compile_worker as worker
def compiled(job):
    os.write(answers, os.getpid().to_bytes(8, "little"))
    time.sleep(60)
answers = os.dup(sys.stdout.fileno())
worker.compiled = compiled
worker._load = lambda: None
worker.main(["1"])
"""


def _ends(helper: Helper, child: int) -> bool:
    """Whether a child ends once its helper's owner is gone: the pipe is closed."""
    vars(helper)["_process"].stdin.close()
    return ends(child)


def test_compilations_end_with_the_owner(tmp_path: Path) -> None:
    file = tmp_path / "compiling.py"
    file.write_text(COMPILING)
    helper = Helper((str(file),))
    helper.send([CompileJob(0, KernelGraph("", (), (), (), ()), "sm_90")])
    child = int.from_bytes(vars(helper)["_process"].stdout.read(8), "little")
    try:
        assert _ends(helper, child)
    finally:
        helper.stop()


FAKE_WORKER = """
import os, sys, time
from mirage_dsl.core.processes import receive, send
from mirage_dsl.tune.measure import Final, Task, Timing
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
from mirage_dsl.tune import compile_worker as worker
from mirage_dsl.tune.measure import Compiled
def compiled(job):
    if job.graph.name == "broken":
        os._exit(3)
    if job.graph.name == "endless":
        time.sleep(60)
    return Compiled(job.index, "spills" if job.graph.name == "spills" else "")
worker.compiled = compiled
worker.SECONDS_EACH = 2.0
worker._load = lambda: None
worker.main(sys.argv[1:])
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = (measure, "WORKER", FAKE_WORKER)
    for module, name, text in (worker, (tuning, "COMPILER", FAKE_COMPILER)):
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
    with Tuner(Task(GRAPH, INPUTS), "sm_90", jobs=3) as tuner:
        tuner.seconds_each = 3
        found = tuner.times(graphs, progress=seen.append)
        # Whatever was the last one: a process is there.
        tuner.times(graphs[-1:])
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
def test_candidates_may_be_run_in_another_form() -> None:
    """The processes are told of that form, and the answers are the candidates'."""
    graphs = [named("kernel"), named("library", kernels=False)]
    task = Task(GRAPH, INPUTS)

    def longer(graph: KernelGraph) -> KernelGraph:
        return replace(graph, name=f"{graph.name}, early")

    with Tuner(task, "sm_90", form=longer) as tuner:
        found = tuner.times(graphs)
        again = tuner.finals(graphs)
        assert set(tuner.reports) == {graphs[0]}
    lengths = [len("kernel, early"), len("library, early")]
    assert [t.microseconds for t in found] == lengths
    assert again is not None
    assert [t.microseconds for t in again] == [10 * length for length in lengths]


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


@pytest.mark.sample(2)
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

    def start(command: tuple[str, ...], environment: None) -> Helper:
        started.append(command)
        return Helper(command, environment)

    monkeypatch.setattr(processes, "Helper", start)
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


def test_what_children_inherit_was_compiled() -> None:
    """A kernel that Triton refuses would leave all of it to each child."""
    (report,) = compile_only(compile_worker._smallest())
    assert report.cubin_bytes


def test_kernels_of_the_first_candidate_are_shared_out() -> None:
    """Each to one process, if there are many, until anything has been compiled."""
    tuner = Tuner(Task(GRAPH, INPUTS), "sm_90", jobs=4)
    many, few = (
        CompileJob(0, chained(count), "sm_90", together=(1,) * count)
        for count in (tuning.FEW_KERNELS + 3, tuning.FEW_KERNELS)
    )
    ahead = tuner._ahead([many, few])
    assert len(ahead) == 4
    assert [k for job in ahead for k in job.kernels] == list(range(11))
    assert {(j.index, j.graph, j.together) for j in ahead} == {
        (tuning.AHEAD, many.graph, ())
    }
    assert tuner._ahead([few, many]) == []
    tuner.reports[GRAPH] = ()
    assert tuner._ahead([many]) == []


def test_some_kernels_of_a_candidate_are_compiled_alone() -> None:
    graph = chained(3)
    reports = compiled(CompileJob(tuning.AHEAD, graph, "sm_90", kernels=(1,))).reports
    assert len(reports) == 1
    assert len(compiled(CompileJob(0, graph, "sm_90")).reports) == 3


def chained(count: int) -> KernelGraph:
    """Kernels one after the other."""
    g = KernelBuilder("chained", m=16, k=32)
    value = g.input("x", f16, "m, k")
    for _ in range(count):
        with g.block(grid={"m": 16}) as b:
            value = b.store(b.exp(b.load(value, "m/grid, k")), "m/grid, k")
    return g.returns(value).build()


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
