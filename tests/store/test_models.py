"""Whole models: each distinct program once, over processes and clusters."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl.core.errors import SearchError
from mirage_dsl.core.work import spread
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search import driver
from mirage_dsl.search.result import SearchResult
from mirage_dsl.store import superoptimize

pytestmark = pytest.mark.usefixtures("fresh_cache")

UNHURRIED: dict[str, Any] = {"use_cache": False, "budget_seconds": 1000.0}
"""A search that a slow machine cuts short finds something else."""


@mirage.kernel
def gated(x, w):
    return mirage.silu(x @ w)


@mirage.kernel
def normed(x, w):
    return mirage.rms_norm(x) @ w


def _blocks(count: int) -> list[KernelGraph]:
    """Distinct programs of different sizes."""
    functions = (gated, normed)
    return [
        functions[i % 2].trace(
            mirage.spec((16, 64 + 16 * i)), mirage.spec((64 + 16 * i, 96))
        )
        for i in range(count)
    ]


def _texts(results: list[SearchResult]) -> list[list[str]]:
    return [[to_text(c.mugraph) for c in result] for result in results]


def test_repeated_blocks_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []
    original = driver.search

    def counted(program: KernelGraph, **options: Any) -> SearchResult:
        searched.append(to_text(program))
        return original(program, **options)

    superoptimize.prepare_search(superoptimize.code_version(), None)
    monkeypatch.setattr(superoptimize, "prepare_search", lambda *_: 0.0)
    monkeypatch.setattr(driver, "search", counted)
    layers = _blocks(2) * 12
    told: list[tuple[int, int]] = []
    results = mirage.superoptimize_all(
        layers,
        **UNHURRIED,
        progress=lambda _, done, of, __: told.append((done, of)),
    )
    assert len(searched) == 2
    assert [r.program for r in results] == layers
    assert all(r.candidates == results[i % 2].candidates for i, r in enumerate(results))
    assert told == [(0, 2), (1, 2), (2, 2)]
    alone = superoptimize.superoptimize(layers[0], **UNHURRIED)
    assert alone.candidates == results[0].candidates


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Two processes of their own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        yield pool


@pytest.mark.sample(0)
def test_processes_give_the_same_results(processes: ProcessPoolExecutor) -> None:
    programs = _blocks(3)
    there = mirage.superoptimize_all(programs, executor=processes, **UNHURRIED)
    here = mirage.superoptimize_all(programs, **UNHURRIED)
    assert [r.candidates for r in there] == [r.candidates for r in here]
    assert [r.ledger for r in there] == [r.ledger for r in here]


def test_results_are_stored_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = _blocks(2)
    with ThreadPoolExecutor(1) as pool:
        first = mirage.superoptimize_all(programs, executor=pool)
        monkeypatch.setattr(driver, "search", None)
        again = mirage.superoptimize_all(programs, executor=pool)
    assert [r.candidates for r in again] == [r.candidates for r in first]


def test_programs_and_their_searches_pickle() -> None:
    (program,) = _blocks(1)
    result = superoptimize.superoptimize(program)
    assert pickle.loads(pickle.dumps(result.best.mugraph)) == result.best.mugraph


def _die_once(marker: Path) -> str:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{marker.name} done"


def test_what_a_dead_worker_had_is_done_again(tmp_path: Path) -> None:
    found: dict[int, str] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        markers = [tmp_path / "a", tmp_path / "b"]
        markers[1].touch()
        spread(_die_once, markers, pool, found.__setitem__)
    assert found == {0: "a done", 1: "b done"}


class _Forgetful(ThreadPoolExecutor):
    """Loses the first submission of everything."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        seen = self.__dict__.setdefault("seen", set())
        if str(args) in seen:
            return super().submit(fn, *args, **kwargs)
        seen.add(str(args))
        lost: Future[Any] = Future()
        lost.set_exception(OSError("connection lost"))
        return lost


def test_lost_work_is_submitted_again() -> None:
    found: dict[int, int] = {}
    with _Forgetful(1) as pool:
        spread(abs, [-1, -2, -3], pool, found.__setitem__)
    assert found == {0: 1, 1: 2, 2: 3}


def _refuse(text: str) -> None:
    raise SearchError(text)


def test_errors_of_the_work_are_raised_once() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(SearchError, match="no such"):
        spread(_refuse, ["no such"], pool, lambda *_: None)


@pytest.mark.sample(0)
def test_two_processes_find_the_same_texts() -> None:
    code = (
        "import mirage_dsl as mirage\n"
        "from mirage_dsl.store.superoptimize import superoptimize\n"
        "@mirage.kernel\n"
        "def normed(x, w):\n"
        "    return mirage.rms_norm(x) @ w\n"
        "p = normed.trace(mirage.spec((16, 64)), mirage.spec((64, 96)))\n"
        "r = superoptimize(p, use_cache=False, seed=3)\n"
        "print('\\n'.join(str(c.mugraph) for c in r), r.ledger)"
    )
    texts = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "MIRAGE_DSL_THREADS": threads},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"))
    ]
    assert texts[0] == texts[1]
    assert texts[0].count("mugraph normed") > 1


@mirage.kernel
def deep(x, *weights):
    for w in weights:
        x = mirage.silu(mirage.rms_norm(x) @ w)
    return x


@pytest.mark.sample(0)
def test_segments_of_a_long_program_are_searched_by_processes(
    processes: ProcessPoolExecutor,
) -> None:
    """Six layers are one program; its segments are searched in two processes."""
    program = deep.trace(
        mirage.spec((16, 64)), *(mirage.spec((64, 64)) for _ in range(6))
    )
    assert superoptimize.prepare(program).is_long
    here = mirage.superoptimize(program, **UNHURRIED)
    there = mirage.superoptimize(program, executor=processes, **UNHURRIED)
    assert there.candidates == here.candidates
    assert there.best.mugraph.blocks
    assert here.ledger.found["segments repeated"] > here.ledger.found["segments"]


@pytest.mark.sample(0)
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_loses_nothing_with_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    programs = _blocks(6)
    here = mirage.superoptimize_all(programs, max_kernels=1, **UNHURRIED)
    done: list[int] = []
    monkeypatch.chdir(tmp_path)
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            # No fixed port, and no pages: what is left of the dashboard is loopback's.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def kill(_: str, finished: int, total: int, __: float | None) -> None:
            done.append(finished)
            if finished == 2:
                pid = next(iter(client.run(os.getpid).values()))
                os.kill(pid, signal.SIGKILL)
            assert total == 6

        there = mirage.superoptimize_all(
            programs,
            executor=client.get_executor(),
            max_kernels=1,
            progress=kill,
            **UNHURRIED,
        )
    assert done == list(range(7))
    assert _texts(there) == _texts(here)
    assert [r.candidates for r in there] == [r.candidates for r in here]
