"""The benchmark of the search measures what its page shows."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.search import measure, programs
from benchmarks.search_page import draw, render

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "search.json"
PAGE = Path(__file__).parents[2] / "docs" / "search-benchmark.md"
PICTURE = PAGE.with_suffix(".svg")


def test_the_page_is_that_of_the_stored_results() -> None:
    stored = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert render(stored, PICTURE.name) == PAGE.read_text(encoding="utf-8")
    assert draw(stored) == PICTURE.read_text(encoding="utf-8")


def test_the_picture_is_well_formed() -> None:
    root = ElementTree.fromstring(PICTURE.read_text(encoding="utf-8"))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("rmsnorm_linear", "gqa", "ntrans"):
        assert name in texts


def test_a_measurement_has_all_that_the_page_shows() -> None:
    record = measure(programs()["gated_mlp"](), limit=0.1, repeats=1)
    assert record["complete"]
    assert record["without_pruning"]["nodes"] > 10 * record["all_nodes"]
    measured = {
        "machine": {"cores": 1},
        "limit_seconds": 0.1,
        "paper": ["gated_mlp"],
        "programs": {"gated_mlp": record},
    }
    assert "| gated_mlp | 4 |" in render(measured)
