"""Results in files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_dsl.cli.graphs import describe
from mirage_dsl.core.errors import CacheError
from mirage_dsl.core.hardware import H100
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.search.result import Candidate, Ledger, Proof, SearchResult, best_first
from mirage_dsl.verify.verifier import verify
from tests.search import blocks, programs


@pytest.fixture(scope="module")
def result() -> SearchResult:
    program = programs.rmslin()
    graph = blocks.attention(1)
    ledger = Ledger()
    ledger.found["structures"] = 7
    ledger.cut["registers"] = 3
    ledger.note("one segment stayed with library kernels")
    certificate = verify(program, program)
    candidates = (
        Candidate(graph, estimate(graph, H100), certificate),
        Candidate(program, estimate(program, H100), None),
    )
    proof = Proof(10.5, 10.0)
    return SearchResult(program, candidates, False, 0.5, ledger, True, proof)


def test_round_trip(result: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    result.save(path)
    assert SearchResult.load(path) == result


def test_the_gap_of_the_proof(result: SearchResult) -> None:
    assert result.bound == 10.0
    assert result.gap == pytest.approx(0.05)
    document = result.to_json()
    assert document["cut_short"]
    assert document["proof"] == {
        "cost": 10.5,
        "bound": 10.0,
        "gap": pytest.approx(0.05),
        "optimal": False,
    }
    assert "proved is 10.00" in describe(result)
    assert Proof(10.5, 10.5 - 1e-5).optimal
    assert Proof(10.5, None).gap is None


def costing(candidate: Candidate, microseconds: float, launches: int) -> Candidate:
    kernels = candidate.cost.kernels[:1] * launches
    cost = replace(candidate.cost, microseconds=microseconds, kernels=kernels)
    return replace(candidate, cost=cost)


def test_estimates_that_say_nothing_leave_it_to_launches(result: SearchResult) -> None:
    """PyTorch's calls, which need no compiling, are given more."""
    calls = result.candidates[1]
    assert not calls.mugraph.blocks
    ours = replace(calls, mugraph=blocks.lora(1))
    best = costing(ours, 100.0, 3)
    for other, microseconds, launches, first in (
        (ours, 100.9, 2, True),
        (ours, 101.1, 2, False),
        (ours, 100.9, 3, False),
        (calls, 102.9, 2, True),
        (calls, 102.9, 3, False),
        (calls, 103.1, 2, False),
    ):
        beside = costing(other, microseconds, launches)
        assert (best_first([best, beside])[0] is beside) == first


def test_it_is_a_sequence(result: SearchResult) -> None:
    assert len(result) == 2
    assert result[0] is result.best
    assert list(result) == list(result.candidates)
    assert result[1:] == result.candidates[1:]
    assert result.best in result


def test_graphs_are_readable_in_the_file(result: SearchResult, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    result.save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    text = document["content"]["candidates"][0]["mugraph"]
    assert text == str(result.best.mugraph)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d["content"].update(seconds=9.0), "checksum"),
        (lambda d: d.update(version=99), "version 99, expected 2"),
        (lambda d: d.update(format="something"), "not a saved search result"),
        (lambda d: d.pop("content"), "damaged"),
    ],
)
def test_damage_is_found(result, tmp_path, spoil, message) -> None:
    path = tmp_path / "found.json"
    result.save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    spoil(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(CacheError, match=message):
        SearchResult.load(path)


def test_what_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    path.write_text("mirage", encoding="utf-8")
    with pytest.raises(CacheError, match="cannot be read as JSON"):
        SearchResult.load(path)
    with pytest.raises(CacheError, match="cannot be read"):
        SearchResult.load(tmp_path / "missing.json")


def test_ledger_reads_in_the_order_of_the_search() -> None:
    ledger = Ledger()
    ledger.take_sizes({"sizes tried": 10, "registers": 2, "shared memory": 1})
    ledger.cut["verification"] += 1
    assert str(ledger).splitlines() == [
        "sizes tried: 10",
        "cut by shared memory: 1",
        "cut by registers: 2",
        "cut by verification: 1",
    ]
