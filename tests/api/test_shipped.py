"""What was found is shipped and explained; and when nothing can be tuned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mirage_dsl as mirage
from mirage_dsl.core.errors import CompileError
from mirage_dsl.core.hardware import A100, PROPERTIES
from tests.api.test_kernel import MUGRAPH, bound_rms_linear, rms_linear


def test_what_was_tuned_can_be_shipped(tmp_path: Path) -> None:
    """With its schedule: as text, and as the saved result of a search."""
    found = bound_rms_linear().search(effort="quick")
    tuned = mirage.parse(
        MUGRAPH.replace(
            "loop(k / 16) {",
            "loop(k / 16) num_warps(8) num_stages(2) descriptors(true) pdl(true) {",
        )
    )
    first = replace(found.best, mugraph=tuned)
    replace(found, candidates=(first, *found.candidates)).save(tmp_path / "best.json")
    (tmp_path / "best.mu").write_text(str(tuned), "utf-8")
    for shipped in (
        (tmp_path / "best.mu").read_text("utf-8"),
        mirage.SearchResult.load(tmp_path / "best.json").best.mugraph,
    ):
        kernel = mirage.kernel(mugraph=shipped)(rms_linear.function)
        bound = kernel.bind(mirage.spec((4, 32)), mirage.spec((32, 16)))
        assert bound.mugraph == tuned
        code = bound.to_triton_code()
        for part in ("num_stages=2", "num_warps=8", "gdc_wait()", "TensorDescriptor("):
            assert part in code


def test_a_search_in_a_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CompileError, match="call it once before capturing"):
        bound_rms_linear().search()


def test_explanations_are_for_the_gpu_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bound = bound_rms_linear()
    bound.use(MUGRAPH)
    assert bound.explain().hardware == "H100"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        "mirage_dsl.tune.devices.properties_here", lambda: PROPERTIES["H200"]
    )
    assert bound.explain().hardware == "H200"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bound.search(hardware=A100)
    assert bound.explain().hardware == "A100"
