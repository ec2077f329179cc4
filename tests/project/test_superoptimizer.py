"""From a program to a stored result: efforts, the cache, what is refused."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mirage_dsl as mirage
from mirage_dsl import superoptimizer
from mirage_dsl.cache import Cache
from mirage_dsl.errors import CacheError, SearchError
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.ir.printer import to_text
from mirage_dsl.search import driver
from mirage_dsl.search.result import SearchResult
from mirage_dsl.settings import ASSERT_CACHE_HIT, DISALLOW_SEARCH, EFFORT
from mirage_dsl.superoptimizer import superoptimize

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


def _cut_after(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end like those that take too long, with what they have."""
    original = driver.search

    def cut(program: KernelGraph, **options: Any) -> SearchResult:
        found = original(program, **options)
        return replace(found, complete=False, cut_short=True, seconds=seconds)

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


def test_an_interrupted_search_is_no_answer_for_the_whole_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it take the place of one that had more time."""
    _cut_after(3.0, monkeypatch)
    superoptimize(_program(), budget_seconds=3.0)
    _cut_after(0.5, monkeypatch)
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
    version = superoptimizer.code_version()
    assert version.startswith(mirage.__version__)
    assert len(version.split()[1]) == 16
    package = Path(superoptimizer.__file__).parent
    assert (package / "search").is_dir()
