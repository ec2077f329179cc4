"""Searches that go on where they were interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search import structures as module
from mirage_dsl.search.checkpoint import Checkpoint
from mirage_dsl.search.driver import search
from mirage_dsl.search.result import SearchResult
from tests.search.programs import Program


def _chain() -> KernelGraph:
    """Two products with a norm between, better in several kernels."""
    p = Program("chain", {"b": 256, "h": 512, "n": 512, "m": 512})
    x, w, v = p.input("x", "b h"), p.input("w", "h n"), p.input("v", "n m")
    y = p.rms_norm(p.matmul(x, w, "h"), "n")
    return p.returns(p.apply("exp", p.matmul(y, v, "n")))


def _search(path: Path, max_kernels: int = 2) -> SearchResult:
    checkpoint = Checkpoint(path, "1")
    return search(_chain(), k=4, max_kernels=max_kernels, checkpoint=checkpoint)


def test_segments_are_not_searched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "checkpoint"
    plain = search(_chain(), k=4, max_kernels=2)
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
    plain = search(_chain(), k=4, max_kernels=2)
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
            k=4,
            seed=int(change == "seed"),
            checkpoint=checkpoint,
        )
