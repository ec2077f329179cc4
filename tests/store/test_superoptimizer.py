"""From a program to a stored result: efforts, the cache, what is refused."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import mirage_dsl as mirage
from mirage_dsl.cli.app import app
from mirage_dsl.core.errors import CacheError, SearchError
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.settings import ASSERT_CACHE_HIT, DISALLOW_SEARCH, EFFORT
from mirage_dsl.ir.canonical import Renaming, canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search import driver
from mirage_dsl.search.result import SearchResult
from mirage_dsl.store import superoptimize as store
from mirage_dsl.store.cache import Cache, Key
from mirage_dsl.store.superoptimize import superoptimize, superoptimize_all
from mirage_dsl.verify import verifier
from mirage_dsl.verify.verifier import verify

pytestmark = pytest.mark.usefixtures("fresh_cache")


@mirage.kernel
def gated(x, w):
    return mirage.silu(x @ w)


def _program(m: int = 16) -> KernelGraph:
    return gated.trace(mirage.spec((m, 64)), mirage.spec((64, 96)))


def _never(*_: object, **__: object) -> None:
    raise AssertionError("searched")


def test_a_result_is_verified_and_stored() -> None:
    result = superoptimize(_program())
    assert result.best.mugraph.blocks
    assert all(c.certificate is not None and c.certificate.ok for c in result)
    assert len(Cache().entries()) == 1


def test_nothing_is_searched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = superoptimize(_program())
    monkeypatch.setattr(driver, "search", _never)
    second = superoptimize(_program())
    assert second.candidates == first.candidates
    assert second.program == _program()
    assert second.ledger == first.ledger
    assert second.seconds == first.seconds


def test_a_second_process_starts_from_the_cache() -> None:
    superoptimize(_program())
    code = (
        "import mirage_dsl as mirage\n"
        "@mirage.kernel\n"
        "def gated(x, w):\n"
        "    return mirage.silu(x @ w)\n"
        "b = gated.bind(mirage.spec((16, 64)), mirage.spec((64, 96)))\n"
        "b.search()\n"
        "print(len(b.mugraph.blocks))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, ASSERT_CACHE_HIT.name: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1"


def test_a_stored_result_has_the_lines_of_today() -> None:
    fresh = superoptimize(_program()).best.mugraph
    stored = superoptimize(_program()).best.mugraph

    def lines(graph: KernelGraph) -> list[object]:
        inside = [n for b in graph.blocks for n in b.nodes]
        return [n.location for n in inside if isinstance(n, Apply)]

    assert lines(stored) == lines(fresh)
    assert any(line is not None for line in lines(stored))


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"max_kernels": 1}, {"effort": "full"}],
)
def test_other_settings_are_another_entry(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    superoptimize(_program())
    monkeypatch.setattr(driver, "search", _never)
    with pytest.raises(AssertionError, match="searched"):
        superoptimize(_program(), **change)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="searched"):
        superoptimize(_program(m=8))


def test_a_finished_search_serves_every_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    first = superoptimize(_program(), budget_seconds=19.0)
    assert not first.cut_short
    monkeypatch.setattr(driver, "search", _never)
    for seconds in (1.0, 500.0):
        found = superoptimize(_program(), budget_seconds=seconds)
        assert found.candidates == first.candidates


def _cut_after(seconds: float, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let searches end like those that take too long, with what they have."""
    original = driver.search

    def cut(program: KernelGraph, *gpu: Hardware, **options: Any) -> SearchResult:
        found = original(program, *gpu, **options)
        cut_short = {"complete": False, "cut_short": True, "seconds": seconds}
        return replace(found, **cut_short, **changes)

    monkeypatch.setattr(driver, "search", cut)


def test_more_time_searches_again_what_was_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = driver.search
    _cut_after(3.1, monkeypatch)
    first = superoptimize(_program(), budget_seconds=3.0)
    assert first.cut_short
    with monkeypatch.context() as patch:
        patch.setattr(driver, "search", _never)
        assert superoptimize(_program(), budget_seconds=2.0).cut_short
        assert superoptimize(_program(), budget_seconds=3.0).cut_short
        with pytest.raises(AssertionError, match="searched"):
            superoptimize(_program(), budget_seconds=9.0)
        with DISALLOW_SEARCH.scope(True):
            assert superoptimize(_program(), budget_seconds=9.0).cut_short
    monkeypatch.setattr(driver, "search", whole)
    again = superoptimize(_program(), budget_seconds=9.0)
    assert not again.cut_short
    monkeypatch.setattr(driver, "search", _never)
    assert not superoptimize(_program(), budget_seconds=500.0).cut_short


def test_a_search_that_used_its_budget_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though it stopped a little before, to be on time."""
    _cut_after(1.9, monkeypatch)
    superoptimize(_program(), budget_seconds=2.0)
    monkeypatch.setattr(driver, "search", _never)
    assert superoptimize(_program(), budget_seconds=2.0).seconds == 1.9
    with pytest.raises(AssertionError, match="searched"):
        superoptimize(_program(), budget_seconds=2.1)


def _finding(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let searches find only what costs so many µs, those of the list in turn."""
    original, costs = driver.search, list[float]()

    def search(program: KernelGraph, **options: Any) -> SearchResult:
        found = original(program, **options)
        cost = replace(found.best.cost, microseconds=costs.pop(0))
        one = (replace(found.best, cost=cost),)
        return replace(found, candidates=one, complete=False, cut_short=True)

    monkeypatch.setattr(driver, "search", search)
    monkeypatch.setattr("mirage_dsl.search.driver.finished", lambda found, *_: found)
    return costs


def test_the_cheaper_of_two_results_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = _finding(monkeypatch)
    costs += [18.4, 22.2, 17.0]
    for budget, best in ((1.0, 18.4), (2.0, 18.4), (3.0, 17.0)):
        found = superoptimize(_program(), budget_seconds=budget)
        assert found.best.cost.microseconds == best
    assert not costs
    # The dearer one counts as an answer for its budget all the same.
    assert superoptimize(_program(), budget_seconds=3.0).best.cost.microseconds == 17.0


def test_nothing_better_than_the_library_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = driver.search

    def search(program: KernelGraph, **options: Any) -> SearchResult:
        found = original(program, **options)
        last = next(c for c in found.candidates if not c.mugraph.blocks)
        return replace(found, candidates=(last,), complete=False, cut_short=True)

    monkeypatch.setattr(driver, "search", search)
    program = _alone.trace(mirage.spec((4096, 4096)), mirage.spec((4096, 4096)))
    assert not superoptimize(program, budget_seconds=2.0).best.mugraph.blocks
    monkeypatch.setattr(driver, "search", _never)
    again = superoptimize(program, budget_seconds=2.0)
    assert again.best.mugraph == program


@mirage.kernel
def _alone(x, w):
    return x @ w


# -- Other names -----------------------------------------------------------------------


@mirage.kernel
def swiglu(x, gate, up):
    g = x @ gate
    u = x @ up
    return mirage.silu(g) * u, mirage.sum(u, -1)


@mirage.kernel
def forward(rows, w_t, v3):
    second = rows @ v3
    first = rows @ w_t
    total = mirage.sum(second, -1)
    return mirage.silu(first) * second, total


def _same_programs() -> list[KernelGraph]:
    """The same under other names, in other orders, of dims called crosswise too."""
    shapes = ((16, 64), (64, 96), (64, 96))
    specs = [mirage.spec(shape) for shape in shapes]
    first, second = swiglu.trace(*specs), forward.trace(*specs)
    crossed = {"m": "n", "n": "k", "k": "m"}
    return [first, second, *(Renaming(crossed).graph(p) for p in (first, second))]


def test_the_same_program_under_other_names_is_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = _same_programs()
    first = superoptimize(programs[0])
    monkeypatch.setattr(driver, "search", _never)
    for program in programs[1:]:
        found = superoptimize(program)
        assert found.program == program
        assert len(found) == len(first)
        for candidate, original in zip(found, first, strict=True):
            graph = candidate.mugraph
            check_or_raise(graph)
            assert canonical_hash(graph) == canonical_hash(original.mugraph)
            assert [i.name for i in graph.inputs] == [i.name for i in program.inputs]
            assert [i.type for i in graph.inputs] == [i.type for i in program.inputs]
            assert graph.name == program.name
            assert set(dict(program.extents)) <= set(dict(graph.extents))
            assert parse(to_text(graph)) == graph
        assert verify(found.best.mugraph, program).ok
    assert len(Cache().entries()) == 1


def test_a_renamed_result_has_the_lines_of_its_program() -> None:
    """Each line belongs to the operators that it says, whatever their order is."""
    first, second, *_ = _same_programs()
    superoptimize(first)
    found = superoptimize(second)
    inside = [n for b in found.best.mugraph.blocks for n in b.nodes]
    texts = {
        n.op.name: n.location.text
        for n in inside
        if isinstance(n, Apply) and n.location is not None
    }
    assert texts["silu"].strip().startswith("return mirage.silu(first)")
    assert texts["sum"].strip() == "total = mirage.sum(second, -1)"


def test_layers_of_a_model_are_searched_once_whatever_they_are_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, searched = driver.search, list[str]()

    def search(program: KernelGraph, **options: Any) -> SearchResult:
        searched.append(program.name)
        return original(program, **options)

    monkeypatch.setattr(driver, "search", search)
    programs = _same_programs()
    results = superoptimize_all(programs)
    assert searched == ["swiglu"]
    for result, program in zip(results, programs, strict=True):
        assert result.program == program
        assert verify(result.best.mugraph, program).ok


# -- Who asks at the same time ---------------------------------------------------------

ASK = """
import sys
import mirage_dsl as mirage
from mirage_dsl.search import driver
from mirage_dsl.store.superoptimize import superoptimize

original = driver.search
def search(*given, **options):
    print("searched", flush=True)
    import time
    time.sleep(1)
    return original(*given, **options)
driver.search = search

@mirage.kernel
def PROGRAM(x, w):
    return mirage.silu(x @ w)

superoptimize(PROGRAM.trace(mirage.spec((16, 64)), mirage.spec((64, 96))))
"""


def test_processes_that_ask_at_once_search_once(tmp_path: Path) -> None:
    _compile_the_search()
    started: list[subprocess.Popen[str]] = []
    for name in ("one", "other"):
        script = tmp_path / f"{name}.py"
        script.write_text(ASK.replace("PROGRAM", name))
        env = {**os.environ, "PYTHONPATH": str(Path(mirage.__file__).parents[1])}
        command = [sys.executable, str(script)]
        started.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        )
    said = [p.communicate()[0] for p in started]
    assert [p.returncode for p in started] == [0, 0]
    assert "".join(said).count("searched") == 1


def _compile_the_search() -> None:
    superoptimize(_program(), use_cache=False)


def test_threads_that_ask_at_once_search_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original, searched = driver.search, list[str]()

    def search(program: KernelGraph, **options: Any) -> SearchResult:
        searched.append(program.name)
        time.sleep(0.3)
        return original(program, **options)

    monkeypatch.setattr(driver, "search", search)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(superoptimize, _same_programs()))
    assert len(searched) == 1
    assert len({r.best.cost.microseconds for r in results}) == 1


HOLD = """
import sys, time
from pathlib import Path
from mirage_dsl.store.cache import Cache, Key
with Cache(Path(sys.argv[1])).turn(Key("mugraphs", (("a", "b"),)), 1):
    print("held", flush=True)
    time.sleep(100)
"""


def test_a_dead_process_keeps_nobody_waiting(fresh_cache: Path) -> None:
    cache, key = Cache(fresh_cache), Key("mugraphs", (("a", "b"),))
    env = {**os.environ, "PYTHONPATH": str(Path(mirage.__file__).parents[1])}
    command = [sys.executable, "-c", HOLD, str(fresh_cache)]
    holder = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    with cache.turn(key, 0.2):
        assert 0.2 <= time.monotonic() - began < 2
    holder.kill()
    holder.communicate()
    began = time.monotonic()
    with cache.turn(key, 20.0):
        assert time.monotonic() - began < 2


def test_nobody_waits_longer_than_a_search_takes() -> None:
    """Another one, for a larger budget, is not waited for to its end."""
    job = store.prepare(_program(), budget_seconds=0.1)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with store.prepare(_program(), budget_seconds=100.0).turn():
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    began = time.monotonic()
    with job.turn():
        assert time.monotonic() - began < 5
    done.set()
    holder.join()


# -- What others made ------------------------------------------------------------------


def _from_elsewhere(tmp_path: Path) -> None:
    """Export the cache, and import it into an empty one."""
    file = tmp_path / "all.json"
    Cache().export(file)
    Cache().clear()
    Cache().import_from(file)


def test_what_was_imported_is_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = superoptimize(_program())
    _from_elsewhere(tmp_path)
    monkeypatch.setattr(driver, "search", _never)
    original, asked = verifier.verify, list[object]()

    def verify(candidate: Any, program: Any, **options: Any) -> Any:
        asked.append(candidate)
        return original(candidate, program, **options)

    monkeypatch.setattr(verifier, "verify", verify)
    again = superoptimize(_program())
    assert [c.mugraph for c in again] == [c.mugraph for c in first]
    assert len(asked) == sum(bool(c.mugraph.blocks) for c in first)
    superoptimize(_program())
    assert len(asked) == sum(bool(c.mugraph.blocks) for c in first)


def _other_function(text: str) -> str:
    return text.replace("= silu ", "= sigmoid ")


def _in_tf32(text: str) -> str:
    return text.replace("num_stages(2)", "num_stages(2) allow_tf32(true)")


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [_other_function, _in_tf32])
def test_a_forged_result_is_searched_anew(
    change: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its certificate is that of the right one, its hashes those of the forged one."""
    first = superoptimize(_program())

    def forge(content: dict[str, Any]) -> None:
        for candidate in content["candidates"]:
            text = change(candidate["mugraph"])
            candidate["mugraph"] = text
            certificate = candidate["certificate"]
            certificate["candidate_hash"] = canonical_hash(parse(text))

    _edit(forge)
    _from_elsewhere(tmp_path)
    with caplog.at_level(logging.WARNING, "mirage_dsl"):
        again = superoptimize(_program())
    assert again.candidates == first.candidates
    assert "is not usable" in caplog.text


def test_an_interrupted_search_is_no_answer_for_the_whole_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it take the place of one that had more time."""
    _cut_after(3.0, monkeypatch)
    superoptimize(_program(), budget_seconds=3.0)
    _cut_after(0.5, monkeypatch, interrupted=True)
    superoptimize(_program(), budget_seconds=10.0)
    monkeypatch.setattr(driver, "search", _never)
    assert superoptimize(_program(), budget_seconds=3.0).seconds == 3.0
    with pytest.raises(AssertionError, match="searched"):
        superoptimize(_program(), budget_seconds=10.0)


def test_without_the_cache_nothing_is_stored() -> None:
    superoptimize(_program(), use_cache=False)
    assert Cache().entries() == []


def test_effort_none_is_the_program_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "search", _never)
    with EFFORT.scope("none"):
        result = superoptimize(_program())
    assert result.best.mugraph == _program()
    assert result.best.cost.launches == 2
    assert not result.complete


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(SearchError, match="'max': expected none, quick, full"):
        superoptimize(_program(), effort="max")  # type: ignore[arg-type]


def test_limits_that_are_none_are_refused() -> None:
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(SearchError, match=r"budget_seconds=.* above 0"):
            superoptimize(_program(), budget_seconds=seconds)
    with pytest.raises(SearchError, match="max_kernels=0; expected 1 or more"):
        superoptimize(_program(), max_kernels=0)


def test_a_demanded_hit_explains_the_miss() -> None:
    superoptimize(_program())
    with ASSERT_CACHE_HIT.scope(True):
        superoptimize(_program())
        with pytest.raises(CacheError) as caught:
            superoptimize(_program(), seed=5)
    text = str(caught.value)
    assert "MIRAGE_DSL_ASSERT_CACHE_HIT is set" in text
    assert "seed: asked for 5, stored 0" in text


def test_searching_can_be_disallowed() -> None:
    with DISALLOW_SEARCH.scope(True):
        with pytest.raises(SearchError, match="MIRAGE_DSL_DISALLOW_SEARCH is set"):
            superoptimize(_program())
        assert superoptimize(_program(), effort="none").best.mugraph == _program()
    superoptimize(_program())
    with DISALLOW_SEARCH.scope(True):
        superoptimize(_program())


def _edit(change: object) -> None:
    """Store another content under the key of the only entry."""
    entry = Cache().entries()[0]
    content = json.loads(json.dumps(dict(entry.content)))
    change(content)  # type: ignore[operator]
    Cache().store(entry.key, content)


def _swap_mugraph(content: dict[str, list[dict[str, str]]]) -> None:
    other = gated.trace(mirage.spec((16, 64)), mirage.spec((64, 96)))
    content["candidates"][0]["mugraph"] = to_text(other)


def _drop_certificate(content: dict[str, list[dict[str, None]]]) -> None:
    content["candidates"][0]["certificate"] = None


def _drop_lines(content: dict[str, object]) -> None:
    del content["lines"]


def _each_value(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values are in JSON; of lists the first two."""
    items = content.items() if isinstance(content, dict) else enumerate(content[:2])
    for name, value in items:
        yield (*at, name)
        if isinstance(value, dict | list):
            yield from _each_value(value, (*at, name))


WRONG = (None, True, -1, 10**400, 1e308, float("nan"), "", "x", [], [[1]], {}, {"a": 1})


def test_values_of_wrong_types_are_a_miss_or_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a right checksum, signed by this machine, anywhere in an entry."""
    first = superoptimize(_program())
    entry = Cache().entries()[0]
    text = json.dumps(entry.content)
    monkeypatch.setattr(driver, "search", lambda *_, **__: first)
    monkeypatch.setattr("mirage_dsl.search.driver.finished", lambda found, *_: found)
    random = Random(1)
    for path in random.sample(list(_each_value(json.loads(text))), 25):
        content = json.loads(text)
        holder = content
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = random.choice(WRONG)
        Cache().store(entry.key, content)
        found = superoptimize(_program())
        assert [c.mugraph for c in found] == [c.mugraph for c in first]
        CliRunner().invoke(app, ["cache", "show", ""], catch_exceptions=False)


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [_swap_mugraph, _drop_certificate, _drop_lines])
def test_an_entry_without_its_certificates_is_searched_anew(
    change: object, caplog: pytest.LogCaptureFixture
) -> None:
    first = superoptimize(_program())
    _edit(change)
    with caplog.at_level(logging.WARNING, "mirage_dsl"):
        assert superoptimize(_program()).candidates == first.candidates
    assert "is not usable" in caplog.text


def test_a_search_runs_in_an_executor() -> None:
    with ThreadPoolExecutor(1) as pool:
        result = superoptimize(_program(), executor=pool, use_cache=False)
    expected = superoptimize(_program(), use_cache=False)
    assert result.candidates == expected.candidates


def test_progress_is_told() -> None:
    told: list[str] = []
    superoptimize(_program(), progress=lambda stage, *_: told.append(stage))
    assert {"search", "verify"} <= set(told)


def test_only_a_search_begins() -> None:
    begun: list[str] = []
    superoptimize(_program(), effort="none", begin=lambda: begun.append("none"))
    assert not begun
    superoptimize(_program(), begin=lambda: begun.append("first"))
    superoptimize(_program(), begin=lambda: begun.append("second"))
    assert begun == ["first"]
    with ThreadPoolExecutor(1) as pool:
        superoptimize(
            _program(),
            executor=pool,
            use_cache=False,
            begin=lambda: begun.append("elsewhere"),
        )
    assert begun == ["first", "elsewhere"]


def test_code_changes_change_the_version() -> None:
    version = store.code_version()
    assert version.startswith(mirage.__version__)
    assert len(version.split()[1]) == 16
    package = Path(mirage.__file__).parent
    for area in store.AREAS:
        assert (package / area).is_dir() or (package / f"{area}.py").is_file()
    modules = ("core/hardware", "core/work")
    assert len({store.code_version(module) for module in modules}) == 2
