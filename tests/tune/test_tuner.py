"""Tuning: the order that a GPU gives, kept apart from what a search found."""

from __future__ import annotations

import importlib.metadata
import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import ASSERT_CACHE_HIT, DETERMINISTIC, DISALLOW_SEARCH
from mirage_dsl.cost.estimate import estimate, launched
from mirage_dsl.ir.canonical import Renaming, canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.search.result import SearchResult
from mirage_dsl.store.cache import TIMINGS, Cache
from mirage_dsl.store.superoptimize import for_program
from mirage_dsl.tune import tuner
from mirage_dsl.tune.measure import NO_TIME, Timing
from mirage_dsl.tune.tuner import Ahead, timings_key, tuned
from tests.programs import mugraphs
from tests.tune.tuning import Device, TrialWorker, gated, library_first, searched

pytestmark = pytest.mark.usefixtures("fresh_cache")


def test_without_a_gpu_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = searched()
    assert tuned(result).result is result
    assert Cache().entries(TIMINGS) == []


def test_the_gpu_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()
    device = Device(monkeypatch, library_first)
    found = tuned(result)
    assert not found.result.best.mugraph.blocks
    assert set(found.result) >= set(result)
    assert device.timed[0] == result.program
    x, w = device.tasks[0].inputs
    assert (x.shape, x.strides) == ((16, 64), (64, 1))
    assert (w.shape, w.strides) == ((96, 64), (1, 96))
    assert x.scale == w.scale == 64**-0.25


def test_all_that_the_search_found_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what the estimate thinks little of: it may be wrong."""
    result = searched()
    device = Device(monkeypatch, library_first)
    allowance = replace(tuner.ALLOWANCES["quick"], first=0, rounds=0, worst=0.0)
    monkeypatch.setitem(tuner.ALLOWANCES, "quick", allowance)
    tuned(result)
    assert set(device.timed) == {result.program, *(c.mugraph for c in result)}


def test_many_sizes_and_schedules_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()
    device = Device(monkeypatch, library_first)
    seen: list[tuple[str, int, int, float | None]] = []
    tuned(result, progress=lambda *news: seen.append(news))
    schedules = {b.schedule for g in device.timed for b in g.blocks}
    assert {s.descriptors for s in schedules} == {True, False}
    assert len({s.num_stages for s in schedules}) > 1
    assert len({s.num_warps for s in schedules}) > 1
    assert len({(b.grid, b.loop) for g in device.timed for b in g.blocks}) > 4
    assert [news[0] for news in seen] == ["tune"] * len(device.timed)
    assert seen[-1][3] == 10.0


def test_steps_lead_to_the_best_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times fall with the stages: the climb goes where no proposal was."""

    def judge(graph: KernelGraph) -> Timing:
        stages = sum(b.schedule.num_stages for b in graph.blocks)
        return Timing(0, 20.0 - stages if graph.blocks else 30.0, 1e-4)

    result = searched()
    device = Device(monkeypatch, judge)
    best = tuned(result).result.best
    known = {c.mugraph for c in result}
    assert best.mugraph not in known
    assert judge(best.mugraph) == min(
        map(judge, device.timed), key=lambda t: t.microseconds or 0.0
    )
    assert best.certificate is not None
    assert best.certificate.candidate_hash == canonical_hash(best.mugraph)


def test_blocks_that_run_together_by_estimate_have_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(monkeypatch, library_first)
    tuned(searched())
    one_wave = mugraphs.attention(32, 256, 4096, tile_m=64, splits=2)
    assert [k.waves for k in estimate(one_wave, H100).kernels] == [1, 1]
    # 256 blocks on 132 multiprocessors.
    assert device.together(one_wave)[0] == 2
    many = mugraphs.attention(256, 256, 4096, tile_m=64, splits=2)
    assert device.together(many)[0] == 0


def test_what_is_wrong_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()

    def judge(graph: KernelGraph) -> Timing:
        if graph == result.best.mugraph:
            return Timing(0, error=1.0, reason="wrong results")
        return Timing(0, 10.0 - len(graph.blocks), 1e-4)

    Device(monkeypatch, judge)
    found = tuned(result)
    assert found.result.best.mugraph.blocks
    assert found.result.best.mugraph != result.best.mugraph
    assert found.measured[-1].timing.reason == "wrong results"


@pytest.mark.parametrize(("spent", "shorter"), [(1.0, 1.0), (100.0, tuner.MOST_SPENT)])
def test_seconds_that_went_by_before_shorten_a_tuning(
    spent: float, shorter: float
) -> None:
    ahead = Ahead(searched().program, spent=spent)
    before = time.monotonic()
    ahead.start()
    assert before - shorter <= ahead.began <= time.monotonic() - shorter


def test_what_is_not_verified_in_time_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fastest has other sizes than those that were verified in the search."""
    result = searched()
    known = {c.mugraph for c in result.candidates}

    def judge(graph: KernelGraph) -> Timing:
        if not graph.blocks:
            return Timing(0, 30.0, 1e-4)
        return Timing(0, 20.0 if graph in known else 10.0, 1e-4)

    device = Device(monkeypatch, judge)
    with monkeypatch.context() as over:
        late = replace(tuner.ALLOWANCES["quick"], seconds=-1e6)
        over.setitem(tuner.ALLOWANCES, "quick", late)
        over.setattr(tuner, "CERTIFY_SECONDS", 0.0)
        assert tuned(result, use_cache=False).result.best.mugraph in known
    device.timed.clear()
    found = tuned(result, use_cache=False).result.best
    assert found.mugraph not in known
    assert found.certificate is not None


@pytest.mark.parametrize(("reason", "kernels"), [(NO_TIME, True), ("spills", False)])
def test_what_is_clearly_better_by_estimate_needs_no_time(
    reason: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where time was over before a kernel was judged; another process times it."""
    result = searched()

    def judge(graph: KernelGraph) -> Timing:
        return Timing(0, reason=reason) if graph.blocks else Timing(0, 30.0, 1e-4)

    device = Device(monkeypatch, judge)
    program = estimate(result.library, H100).microseconds
    assert result.best.cost.microseconds < tuner.CLEARLY * program
    assert bool(tuned(result).result.best.mugraph.blocks) == kernels
    assert (Cache().entries(TIMINGS) == []) == kernels
    device.timed.clear()
    monkeypatch.setattr(tuner, "CLEARLY", 0.0)
    assert not tuned(result, use_cache=False).result.best.mugraph.blocks


@pytest.mark.parametrize(
    ("share", "launches", "kernels"),
    [(0.75, 10, True), (0.85, 10, False), (0.85, 7, True), (1.01, 7, False)],
)
def test_fewer_launches_make_a_plan_clearly_better(
    share: float, launches: int, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a host has to launch takes as long as it does, which no estimate counts."""
    found = searched()
    program = estimate(found.library, H100)
    cost = replace(
        found.best.cost,
        microseconds=share * program.microseconds,
        launches=launches * program.launches / 10,
    )
    best = replace(found.best, cost=cost)
    result = replace(found, candidates=(best, *found.candidates[1:]))

    def judge(graph: KernelGraph) -> Timing:
        return Timing(0, reason=NO_TIME) if graph.blocks else Timing(0, 30.0, 1e-4)

    Device(monkeypatch, judge)
    chosen = tuned(result, use_cache=False).result.best
    assert bool(chosen.mugraph.blocks) == kernels


def test_of_library_calls_times_say_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another form of the program was slower, whatever its estimate says."""
    result = searched()
    names = {n.result: f"{n.result}_too" for n in result.program.applies}
    other = Renaming({}, names, ()).graph(result.program)
    assert other != result.program
    first = replace(result.best, mugraph=other)
    result = replace(result, candidates=(first, *result.candidates))

    def judge(graph: KernelGraph) -> Timing:
        if graph.blocks:
            return Timing(0, reason=NO_TIME)
        return Timing(0, 60.0 if graph == other else 30.0, 1e-4)

    Device(monkeypatch, judge)
    assert tuned(result, use_cache=False).result.best.mugraph == result.program


def test_nothing_is_timed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()
    device = Device(monkeypatch, library_first)
    first, second = tuned(result), tuned(result)
    assert first.result.best == second.result.best
    assert [m.timing for m in first.measured] == [m.timing for m in second.measured]
    assert len(device.tasks) == 1
    assert len(Cache().entries(TIMINGS)) == 1
    device.timed.clear()
    tuned(result, use_cache=False)
    device.timed.clear()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    tuned(result)
    assert len(device.tasks) == 3


def _others(text: str) -> str:
    return text.replace("= silu ", "= sigmoid ")


@pytest.mark.parametrize(
    "judge", [library_first, lambda g: Timing(0, 9.0 - len(g.blocks))]
)
def test_timings_from_elsewhere_choose_nothing_wrong(
    judge: TrialWorker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = searched()
    device = Device(monkeypatch, judge)
    best = tuned(result).result.best.mugraph
    entry, file = Cache().entries(TIMINGS)[0], tmp_path / "all.json"
    for forge, times in ((False, 1), (True, 2)):
        content = json.loads(json.dumps(entry.content))
        for candidate in content["candidates"] if forge else ():
            candidate["mugraph"] = _others(candidate["mugraph"])
            digest = canonical_hash(parse(candidate["mugraph"]))
            if candidate["certificate"] is not None:
                candidate["certificate"]["candidate_hash"] = digest
        Cache().store(entry.key, content)
        Cache().export(file)
        Cache().import_from(file)
        device.timed.clear()
        assert tuned(result).result.best.mugraph == best
        assert len(device.tasks) == times


def test_timings_serve_the_same_program_under_another_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = searched()
    device = Device(monkeypatch, lambda g: Timing(0, 9.0 - len(g.blocks)))
    tuned(result)
    program = replace(result.program, name="another")
    names = {"m": "n", "n": "k", "k": "m"}
    other = for_program(result, Renaming(names, {"x": "w", "w": "x"}).graph(program))
    found = tuned(other)
    assert len(device.tasks) == 1
    best = found.result.best.mugraph
    assert [i.name for i in best.inputs] == ["w", "x"]
    assert best.name == "another"
    assert {m.mugraph.name for m in found.measured} == {"another"}


@pytest.mark.parametrize("part", ["gpu", "driver", "cuda", "torch", "triton", "code"])
def test_timings_are_those_of_one_machine(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = searched()
    Device(monkeypatch, library_first)
    before = dict(timings_key(result, (), "quick", None, H100).parts)
    driver = tmp_path / "version"
    driver.write_text("another driver\n", "utf-8")
    version = importlib.metadata.version
    other = {"torch": "torch", "triton": "triton"}.get(part)

    def changed(name: str) -> str:
        return "another" if name == other else version(name)

    monkeypatch.setattr(importlib.metadata, "version", changed)
    if part == "gpu":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    elif part == "driver":
        monkeypatch.setattr(tuner, "_DRIVER", driver)
    elif part == "cuda":
        monkeypatch.setattr(torch.version, "cuda", "another")
    elif part == "code":
        monkeypatch.setattr(tuner, "code_version", lambda *_: "another")
    after = dict(timings_key(result, (), "quick", None, H100).parts)
    assert {name for name in before if before[name] != after[name]} == {part}


def test_candidates_are_timed_for_backends_that_run_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = searched()
    device = Device(monkeypatch, library_first)
    for name in ("reference", "triton"):
        with Ahead(result.program, backend=name) as ahead:
            ahead.start()
            timed = tuned(result, ahead=ahead, use_cache=False).measured
        assert bool(timed) == (name == "triton")
    assert [task.backend for task in device.tasks] == ["triton"]


def test_timings_are_those_of_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()
    Device(monkeypatch, library_first)
    keys = [
        timings_key(result, (), "quick", None, H100, backend=name)
        for name in ("reference", "triton")
    ]
    assert keys[0] != keys[1] == timings_key(result, (), "quick", None, H100)


def test_threads_tune_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has timed the other takes from the cache; another program waits."""
    result, at_once = searched(), list[int]()
    device = Device(monkeypatch, library_first)
    judge = device.judge
    busy = threading.Lock()

    def slow(graph: KernelGraph) -> Timing:
        at_once.append(busy.acquire(blocking=False))
        time.sleep(0.001)
        if at_once[-1]:
            busy.release()
        return judge(graph)

    device.judge = slow
    other = searched(rows=32)
    found: list[SearchResult] = []
    threads = [
        threading.Thread(target=lambda r=r: found.append(tuned(r).result))
        for r in (result, result, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert len(device.tasks) == 2
    assert all(at_once)


def test_settings_forbid_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched()
    device = Device(monkeypatch, library_first)
    with DETERMINISTIC.scope(True):
        assert tuned(result).result is result
    with DISALLOW_SEARCH.scope(True):
        assert tuned(result).result is result
    with ASSERT_CACHE_HIT.scope(True), pytest.raises(CacheError, match="a GPU"):
        tuned(result)
    assert not device.tasks
    tuned(result)
    with ASSERT_CACHE_HIT.scope(True):
        assert not tuned(result).result.best.mugraph.blocks


def test_where_nothing_can_be_timed_the_order_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    result = searched()
    Device(monkeypatch, lambda _: Timing(0, reason="it hangs"))
    assert tuned(result).result is result
    assert "no candidate could be timed" in caplog.text
    assert Cache().entries(TIMINGS) == []


def _bound() -> mirage.BoundKernel:
    w = mirage.spec((96, 64), strides=(1, 96))
    return gated.bind(mirage.spec((16, 64)), w)


def test_the_processes_start_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, library_first)
    running: list[int] = []
    found = _bound().search(progress=lambda *_: running.append(device.running))
    assert running
    assert min(running) == 1
    assert not found.best.mugraph.blocks
    assert len(device.tasks) == 1
    assert (device.running, device.failures) == (0, [None])


def test_no_process_starts_for_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, library_first)
    with DETERMINISTIC.scope(True):
        _bound().search()
    with DISALLOW_SEARCH.scope(True):
        _bound().search()
    assert not device.tasks
    _bound().search()
    assert len(device.tasks) == 1, "the search was known, the timings were not"
    _bound().search()
    with ASSERT_CACHE_HIT.scope(True):
        _bound().search()
    _bound().search(effort="none", use_cache=False)
    assert len(device.tasks) == 1


def test_no_process_is_left_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch, library_first)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _bound().search(progress=fail)
    assert (device.running, device.failures) == (0, [ZeroDivisionError])


def test_the_search_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it took is no longer there for the tuning, but for the least.

    Nor is what tracing took, which may have been for an earlier call.
    """
    caplog.set_level("INFO", "mirage_dsl.tuner")
    device, bound = Device(monkeypatch, library_first), _bound()
    started = time.monotonic() - bound.trace.seconds
    bound.search(progress=lambda stage, *_: stage == "verify" and time.sleep(0.2))
    allowance = tuner.ALLOWANCES["quick"]
    assert started <= device.deadline - allowance.seconds < time.monotonic() - 0.2
    assert device.least == allowance.least
    assert 0 < device.reserve < allowance.least
    assert device.seconds_each == allowance.each
    (line,) = [r.message for r in caplog.records if "searched at" in r.message]
    assert re.search(r"chosen at \d+\.\d, done at \d+\.\d s; the slowest took", line)


@pytest.mark.parametrize("searching", [False, True])
def test_the_wait_for_others_does_not_count(
    searching: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The time is neither shorter nor longer for it; it is no part of the search."""
    caplog.set_level("INFO", "mirage_dsl.tuner")
    device, result = Device(monkeypatch, library_first), searched()

    def run() -> None:
        if searching:
            _bound().search()
        else:
            tuned(result)

    thread = threading.Thread(target=run)
    with tuner._TURN:
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
        released = time.monotonic()
    thread.join(60)
    began = device.deadline - tuner.ALLOWANCES["quick"].seconds
    assert released - 1.0 < began < released + 0.5
    (line,) = [r.message for r in caplog.records if "searched at" in r.message]
    assert float(line.partition("searched at ")[2].partition(",")[0]) < 1.0


def test_a_search_without_tuning_has_no_timings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Device(monkeypatch, library_first)
    bound = _bound()
    bound.search()
    assert bound.tuning is not None
    bound.search(effort="none")
    assert bound.tuning is None


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    found = tuned(searched())
    best = found.measured[0].timing
    assert not best.reason
    assert best.microseconds is not None
    slowest = next(m for m in found.measured if m.mugraph == found.result.program)
    assert best.microseconds <= (slowest.timing.microseconds or 0.0)


def test_of_those_as_fast_the_one_with_fewest_launches_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = searched()
    several = {c.mugraph for c in result.candidates if len(launched(c.mugraph)) > 1}
    assert several
    assert len(several) < len(result.candidates)

    def judge(graph: KernelGraph) -> Timing:
        return Timing(0, 10.0 if len(launched(graph)) > 1 else 10.04, 1e-4)

    Device(monkeypatch, judge)
    found = tuned(result, use_cache=False).result.best
    assert len(launched(found.mugraph)) == 1
