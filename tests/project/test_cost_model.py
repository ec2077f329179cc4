"""The cost model ranks the kernels that were measured as well as the page says."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.cost_model import (
    cells,
    figure_rankings,
    measured_rankings,
    read,
    sample,
    sizes_of,
    spearman,
    with_sizes,
    write,
)
from mirage_dsl.core.hardware import H200

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_ranks() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Equal values share their rank; the figure is that of textbooks.
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9487, abs=1e-4)
    assert spearman([1, 1], [1, 2]) == 0


def test_kernels_by_hand_on_an_h100() -> None:
    found = {r.name: r for r in figure_rankings()}
    assert statistics.fmean(r.spearman for r in found.values()) > 0.85
    assert min(r.spearman for r in found.values()) > 0.6
    assert all(0.85 < r.bias < 1.2 for r in found.values())
    assert all(r.choice < 1.1 for r in found.values())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("file", "mean", "choice"),
    [("cost_model_h200.json", 0.78, 1.08), ("cost_model_h200_fresh.json", 0.71, 1.08)],
)
def test_kernels_of_this_project_on_an_h200(
    file: str, mean: float, choice: float
) -> None:
    found = measured_rankings(RESULTS / file)
    assert len(found) == 34
    assert statistics.fmean(r.spearman for r in found) > mean
    assert statistics.geometric_mean(r.choice for r in found) < choice
    assert all(r.spearman > 0 for r in found)


def test_static_choices_are_faster_than_library_kernels() -> None:
    for cell in read(RESULTS / "cost_model_h200_static.json")["cells"]:
        library, chosen = cell.samples
        assert chosen.role == "chosen", cell.name
        assert chosen.measured < library.measured, cell.name


def test_samples_are_kept_with_their_sizes(tmp_path: Path) -> None:
    cell = next(c for c in cells() if c.name == "exp_small")
    sample(cell, 4, H200)
    write(tmp_path / "one.json", {"hardware": "H200", "cells": [cell]})
    (kept,) = read(tmp_path / "one.json")["cells"]
    assert kept == cell
    assert [s.role for s in kept.samples] == ["library"]


def test_stored_sizes_give_back_the_kernels() -> None:
    document = read(RESULTS / "cost_model_h200_fresh.json")
    cell = next(c for c in document["cells"] if c.name == "gqa")
    for one, graph in zip(cell.samples, cell.graphs(), strict=True):
        assert sizes_of(graph) == one.sizes
        assert with_sizes(graph, one.sizes) == graph
    # The file is as it was written.
    text = (RESULTS / "cost_model_h200_fresh.json").read_text(encoding="utf-8")
    assert len(json.loads(text)["cells"]) == len(document["cells"])
