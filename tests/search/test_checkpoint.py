"""Searches that go on where they were interrupted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mirage_dsl.core.hardware import H100
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search import segments
from mirage_dsl.search import structures as module
from mirage_dsl.search.driver import search
from mirage_dsl.search.memo import Checkpoint
from mirage_dsl.search.multi_kernel import search as union_search
from mirage_dsl.search.result import SearchResult
from mirage_dsl.verify import verifier
from tests.search.programs import Program


def _chain() -> KernelGraph:
    """Two products with a norm between, better in several kernels."""
    p = Program("chain", {"b": 256, "h": 256, "n": 256, "m": 256})
    x, w, v = p.input("x", "b h"), p.input("w", "h n"), p.input("v", "n m")
    y = p.rms_norm(p.matmul(x, w, "h"), "n")
    return p.returns(p.apply("exp", p.matmul(y, v, "n")))


@cache
def _plain() -> SearchResult:
    return search(_chain(), H100, k=4, max_kernels=2)


def _search(path: Path, max_kernels: int = 2) -> SearchResult:
    checkpoint = Checkpoint(path, "1")
    return search(_chain(), H100, k=4, max_kernels=max_kernels, checkpoint=checkpoint)


def test_segments_are_not_searched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "checkpoint"
    plain = _plain()
    first = _search(file)
    monkeypatch.setattr(module, "structures", None)
    second = _search(file)
    for result in (first, second):
        assert result.candidates == plain.candidates
        assert result.ledger == plain.ledger
        assert result.complete == plain.complete


def test_an_interruption_loses_only_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "checkpoint"
    plain = _plain()
    original, calls = module.structures, list[int]()

    def failing(*args: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return original(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "structures", failing)
    with pytest.raises(MemoryError):
        _search(file)
    # The write of the next line was cut short, too.
    with file.open("a", encoding="utf-8") as stream:
        stream.write('["half of a li')
    calls[:] = [1, 1]
    found = _search(file)
    assert found.candidates == plain.candidates
    assert 0 < len(calls) - 2 < plain.ledger.found["segments"]
    monkeypatch.setattr(module, "structures", None)
    assert _search(file).candidates == plain.candidates


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", ["seed", "version", "damage"])
def test_other_searches_do_not_use_it(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "checkpoint"
    _search(file, max_kernels=1)
    if change == "damage":
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("accumulate", "accumulatf"), encoding="utf-8")

    if change == "damage":
        assert "accumulatf" in file.read_text(encoding="utf-8")

    def searched(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(module, "structures", searched)
    checkpoint = Checkpoint(file, "2" if change == "version" else "1")
    with pytest.raises(AssertionError, match="searched"):
        search(
            _chain(),
            H100,
            k=4,
            seed=int(change == "seed"),
            checkpoint=checkpoint,
        )


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
def test_lines_that_are_nested_too_deeply_are_passed_over(
    depth: int, tmp_path: Path
) -> None:
    file = tmp_path / "checkpoint"
    known = Checkpoint(file)
    known.store("a", {"plans": 1})
    with file.open("a", encoding="utf-8") as lines:
        for deep in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            lines.write(f'["b", {deep}, "0"]\n')
    known.store("c", {"plans": 2})
    again = Checkpoint(file)
    assert again.load("a") == {"plans": 1}
    assert again.load("b") is None
    assert again.load("c") == {"plans": 2}


class _KilledError(MemoryError):
    pass


class _Work:
    """Counts what a search does, and dies at some point of it."""

    def __init__(self, patch: pytest.MonkeyPatch, dies_at: int = 0) -> None:
        self.done: Counter[str] = Counter()
        self.dies_at = dies_at
        for owner, name in (
            (module, "structures"),
            (segments, "sizes_of_all"),
            (union_search, "multi_kernel"),
            (verifier, "verify"),
        ):
            patch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if self.done.total() == self.dies_at - 1:
                raise _KilledError
            self.done[name] += 1
            return original(*args, **options)

        return run


def test_wherever_a_search_dies_it_goes_on_from_there(tmp_path: Path) -> None:
    """With the same result as without an interruption, and with less and less work."""
    with pytest.MonkeyPatch.context() as patch:
        whole = _Work(patch)
        plain = _search(tmp_path / "whole").candidates
    total = whole.done.total()
    assert min(whole.done[n] for n in ("structures", "multi_kernel", "verify")) >= 1
    left: list[int] = []
    for percent in (30, 70, 99):
        file = tmp_path / f"{percent}"
        at = max(2, total * percent // 100)
        with pytest.MonkeyPatch.context() as patch:
            _Work(patch, dies_at=at)
            with pytest.raises(_KilledError):
                _search(file)
        with pytest.MonkeyPatch.context() as patch:
            work = _Work(patch)
            assert _search(file).candidates == plain
        # What was under way is done again: one family of structures, at most.
        assert work.done.total() <= total - at + 2
        left.append(work.done.total())
    assert left == sorted(left, reverse=True)
    assert left[-1] < total / 4


def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    code = (
        "from pathlib import Path\n"
        "from tests.search.test_checkpoint import _search\n"
        f"_search(Path({str(file)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up and process.poll() is None:
        if file.exists() and file.read_bytes().count(b"\n") > 3:
            break
        time.sleep(0.01)
    process.kill()
    process.wait()
    known = file.read_bytes().count(b"\n")
    assert known > 3
    assert _search(file).candidates == _plain().candidates
    assert file.read_bytes().count(b"\n") > known


def test_a_cut_short_search_goes_on(tmp_path: Path) -> None:
    """What the budget cut is searched again, what was whole is not.

    What the first search had found counts as well: the best is the same, and beside it
    there may be others, of which none is worse than the last one.
    """
    file = tmp_path / "checkpoint"
    checkpoint = Checkpoint(file, "1")
    first = search(
        _chain(), H100, k=4, max_kernels=2, budget_seconds=0.3, checkpoint=checkpoint
    )
    assert first.cut_short
    assert not first.complete
    again = _search(file)
    assert not again.cut_short
    whole = _plain().candidates
    assert again.candidates[0] == whole[0]
    assert len(again.candidates) == len(whole)
    assert again.candidates[-1].cost.microseconds <= whole[-1].cost.microseconds
