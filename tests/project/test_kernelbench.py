"""KernelBench's table: what it says of problems of ours in KernelBench's form."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from benchmarks.kernelbench import main, trace

TRACES = """
    import torch

    class Model(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            self.first = torch.nn.Linear(size, size)
            self.second = torch.nn.Linear(size, size)
            self.second.weight = self.first.weight
            self.norm = torch.nn.BatchNorm1d(size)

        def forward(self, x, scale):
            return torch.relu(self.norm(self.second(self.first(x)))) * scale

    def get_inputs():
        return [torch.rand(2**20, 2**16), 3.0]

    def get_init_inputs():
        return [2**16]
"""
"""Too large for any memory, with a shared weight and a counter of batches."""
STOPS = TRACES.replace("torch.relu(", "torch.linalg.svdvals(")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A KernelBench of two problems."""
    folder = tmp_path / "KernelBench" / "level2"
    (tmp_path / "KernelBench" / "level1").mkdir(parents=True)
    folder.mkdir()
    (folder / "10_stops.py").write_text(dedent(STOPS))
    (folder / "2_traces.py").write_text(dedent(TRACES))
    return tmp_path


def test_a_line_for_each_problem(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = checkout / "rows.json"
    code = main([str(checkout), "--trace", "--json", str(written), "--least", "2"])
    assert code == 1
    first, second = json.loads(written.read_text())
    assert (first["problem"], first["reason"]) == ("2_traces", "")
    assert first["operators"] > 5
    assert second["problem"] == "10_stops"
    assert "svd" in second["reason"]
    shown = capsys.readouterr().out
    assert "level 2: 1 of 2 traced" in shown
    assert main([str(checkout), "--trace", "--only", "TRACES", "--least", "1"]) == 0


def test_what_is_no_checkout(tmp_path: Path, checkout: Path) -> None:
    assert main([str(tmp_path / "none"), "--trace"]) == 2
    assert main([str(checkout), "--trace", "--only", "nothing"]) == 2


def test_parameters_are_arguments_during_the_trace_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)).eval()
    before = dict(model.named_parameters())
    program = trace(model, [torch.zeros(2, 4)])
    # The tensor, weight and bias of both, mean, variance, and the counter of batches.
    assert len(program.inputs) == 8
    assert all(before[name] is p for name, p in model.named_parameters())
