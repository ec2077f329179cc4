"""The GPU benchmark without a GPU: cases, resumption, merging, tables, the chart."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from benchmarks import gpu, gpu_chart, gpu_measure, gpu_peers, layer
from benchmarks.gpu_rows import (
    OURS,
    Choice,
    Floor,
    Results,
    Row,
    Spread,
    System,
    load,
    merged,
)
from mirage_dsl.tune.timing import Time
from tests.programs.workloads import PAPER, WORKLOADS

ROOT = Path(__file__).parents[2]
MACHINE = {"gpu": "GPU", "driver": "1", "torch": "2", "triton": "3"}


def system(time: float, error: float | None = 1e-4) -> System:
    spread = Spread(time, time - 0.1, time + 0.1)
    return System(spread, spread, time / 2, error, 1.0)


def row(name: str = "gqa", batch: int = 1, ours: float = 10.0) -> Row:
    systems = {
        OURS: system(ours),
        "eager": system(20.0),
        "compile": system(15.0),
        "flash": system(5.0, error=0.5),
        "cudnn": system(12.0),
        "cublas": system(1.0, error=None),
    }
    floor = Floor(Spread(5.0, 4.9, 5.1), 8.0, 100, 2.0)
    return Row(name, batch, 0, "float16", Choice(timed=3), systems, floor)


def results(*rows: Row) -> Results:
    return Results(MACHINE, {"effort": "quick"}, list(rows))


def test_figures_of_a_row() -> None:
    found = row()
    assert found.right
    assert found.speedup == 2.0
    assert found.of_floor == 0.8
    assert found.best_peer == ("cudnn", 12.0), "flash is wrong, cuBLAS does less"
    assert not found.slower
    assert row(ours=20.3).right
    assert not row(ours=20.3).slower
    assert row(ours=21.0).slower
    wrong = row()
    wrong.systems[OURS] = system(10.0, error=3e-4)
    assert not wrong.right
    text = gpu_chart.summary([wrong, row(ours=21.0)])
    assert "wrong or failed: gqa b=1 fp16\n" in text
    assert "slower than the unfused program: gqa b=1 fp16\n" in text
    assert "5.0 (wrong)" in gpu_chart.cells(wrong)


def test_results_survive_a_file_and_merge(tmp_path: Path) -> None:
    first, second = results(row(), row(batch=8)), results(row(ours=9.0))
    first.save(tmp_path / "a.json")
    second.save(tmp_path / "b.json")
    assert load(tmp_path / "a.json") == first
    found = merged([load(tmp_path / n) for n in ("a.json", "b.json")])
    assert [r.cold(OURS) for r in found.rows] == [9.0, 10.0]
    other = replace(second, machine={**MACHINE, "driver": "2"})
    with pytest.raises(ValueError, match="driver"):
        merged([first, other])
    (tmp_path / "c.json").write_text(json.dumps({"rows": [{}]}))
    with pytest.raises(ValueError, match=r"c\.json holds no results"):
        load(tmp_path / "c.json")


def test_the_help_explains_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--help"])
    text = capsys.readouterr().out
    for column in gpu_chart.HEAD[gpu_chart.TEXT_COLUMNS :]:
        assert column in text.partition("options:")[0], column
    for code in (0, 1, 2, gpu.UNFINISHED):
        assert f"{code}: " in text


@pytest.mark.parametrize("parser", [gpu._parser, layer._parser])
def test_every_option_is_explained(parser: Callable[[], ArgumentParser]) -> None:
    assert all(action.help for action in parser()._actions)


def test_cases() -> None:
    parse = gpu._parser().parse_args
    found = [c.row.title for c in gpu.cases(parse([]))]
    assert len(found) == len(set(found)) == len(WORKLOADS) + 2 * (len(PAPER) + 3)
    assert "qwen_linear b=1 bf16" in found
    many = gpu.cases(parse(["--rows", "512", "--workloads", "paper", "gqa"]))
    assert {c.row.title for c in many} == {
        "rmsnorm_linear M=512 fp16",
        "gated_mlp M=512 fp16",
        "lora M=512 fp16",
    }
    assert many[0].shapes["x"] == (512, 4096)
    both = parse(["--workloads", "moe", "--dtypes", "float16", "bfloat16"])
    assert [c.dtype for c in gpu.cases(both)] == ["float16", "bfloat16"]
    with pytest.raises(ValueError, match="no workload 'nothing'"):
        gpu.chosen(["nothing"])


def test_all_published_batches_are_measured() -> None:
    parse = gpu._parser().parse_args
    named = ["--workloads", "paper", "lora_small", "mha", "mqa"]
    found = gpu.cases(parse(named))
    assert len(found) == 9 * len(gpu.BATCHES)
    assert len({tuple(c.shapes.items()) for c in found}) == len(found)


def test_peers_that_cannot_be_imported_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helion.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("helion", "benchmarks.helion_functions"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    eager, peer = gpu_peers.peers(WORKLOADS[0], ["helion"])
    assert eager.name == "eager"
    with pytest.raises(RuntimeError, match=r"helion cannot .*a_module_that_is_miss"):
        peer.out([torch.ones(2, 2)])


def test_peers_that_are_not_installed_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = {"helion": ("a_module_that_is_missing", "benchmarks.helion_functions")}
    monkeypatch.setattr(gpu_peers, "OPTIONAL", missing)
    assert [p.name for p in gpu_peers.peers(WORKLOADS[0], ["helion"])] == ["eager"]


@pytest.mark.parametrize("name", gpu_peers.ATTENTION)
def test_attention_peers_compute_the_workload(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = next(w for w in WORKLOADS if w.name == name)
    shapes = {**workload.small}
    if len(shapes["k"]) == 2:
        shapes["q"] = (5, *shapes["q"][1:])
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator) for s in shapes.values()]
    monkeypatch.setattr(gpu_peers, "_compiled", lambda call: call)
    peer = gpu_peers.ATTENTION[name].peer("math", SDPBackend.MATH)
    torch.testing.assert_close(
        peer.out(tensors), gpu_peers.unfused(workload)(*tensors), atol=1e-4, rtol=1e-4
    )


def test_an_interrupted_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def fake(case: gpu_measure.Case, _: object, effort: str) -> Row:
        measured.append(f"{case.row.title} {effort}")
        return row(case.workload.name, case.batch)

    monkeypatch.setattr(gpu_measure, "measure", fake)
    monkeypatch.setattr(gpu_measure, "machine", lambda: MACHINE)
    monkeypatch.setattr(gpu_measure, "warm_up", lambda: None)
    monkeypatch.setattr(gpu, "_no_gpu", lambda: False)
    file = tmp_path / "results.json"
    command = ["--workloads", "gqa", "--json", str(file)]
    assert gpu.main([*command, "--batches", "8"]) == 0
    assert gpu.main([*command, "--seconds", "1e-9"]) == gpu.UNFINISHED
    assert gpu.main(command) == 0
    assert measured == [f"gqa b={b} fp16 quick" for b in (8, 1, 16)]
    assert [r.batch for r in load(file).rows] == [8, 1, 16]
    monkeypatch.setattr(gpu_measure, "machine", lambda: {**MACHINE, "gpu": "other"})
    assert gpu.main(command) == 2


def test_the_chart_and_the_page(tmp_path: Path) -> None:
    rows = [row(w.name, b) for w in PAPER for b in (1, 8)]
    file = tmp_path / "results.json"
    wide = replace(row("lora"), batch=0, rows=512)
    results(*rows, wide, replace(row(ours=11.0), dtype="bfloat16")).save(file)
    svg, png, page = (tmp_path / f"chart.{e}" for e in ("svg", "png", "md"))
    for _ in range(2):
        before = svg.read_bytes() if svg.exists() else None
        arguments = ["--svg", str(svg), "--png", str(png), "--page", str(page)]
        assert gpu_chart.main([str(file), *arguments]) == 0
    assert svg.read_bytes() == before, "equal results give equal files"
    text = svg.read_text(encoding="utf-8")
    for name in (w.name for w in PAPER):
        assert name in text
    assert "10.0" in text
    assert png.read_bytes().startswith(b"\x89PNG")
    written = page.read_text(encoding="utf-8")
    assert (
        "| gqa | b=8 | fp16 | 10.0 | 2% | 10.0 | 20.0 | 15.0 | 5.0 (wrong) |" in written
    )
    assert "| lora | M=512 | fp16 |" in written.partition("(prefill)")[2]
    assert "| gqa | b=1 | 10.0 | 11.0 | 1.10 |" in written
    assert "Liger |" not in written, "empty columns are left out"


def test_the_page_is_that_of_the_stored_results() -> None:
    stored = load(ROOT / "benchmarks" / "results" / "gpu.json")
    written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert gpu_chart.page(stored, "gpu.json", "gpu-benchmark.svg") == written
    assert (ROOT / "docs" / "gpu-benchmark.svg").exists()


def test_the_chart_shows_times_that_are_right() -> None:
    others = replace(row(batch=8), rows=512), replace(row(batch=8), dtype="bfloat16")
    shown = gpu_chart.bars([row(), *others])
    times = {"eager": 20.0, "compile": 15.0, "attention": 12.0, OURS: 10.0}
    assert shown == {"gqa": [("b = 1", times)]}


def test_a_case_is_measured_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_measure, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_measure, "MATRIX", 8)
    monkeypatch.setattr(gpu_measure, "time_call", lambda *_, **__: Time(2.0, 1.0, 3.0))
    monkeypatch.setattr(gpu_measure, "read_floor", lambda _: Time(1.0, 1.0, 1.0))
    monkeypatch.setattr(gpu_measure, "host_microseconds", lambda *_: 4.0)
    for workload in WORKLOADS:
        small = replace(workload, full=workload.small, batched=None)
        case = gpu_measure.Case(small, 1, 0, workload.dtype)
        found = gpu_measure.measure(case, ["eager", "cublas"], "none")
        assert found.right, (found.title, found.failure, found.systems)
        assert found.floor is not None
        assert found.floor.bytes > 0
        assert found.systems["eager"].hot == Spread(2.0, 1.0, 3.0)
        assert "nan" not in gpu_chart.line(found)


@pytest.mark.parametrize("microseconds", [99.0, 101.0])
def test_long_calls_are_timed_in_turns(
    microseconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Time(microseconds, microseconds, microseconds)

    def in_turns(calls: Sequence[object], *, turns: int) -> list[Time]:
        assert turns > 9
        return [Time(200.0 + i, 1.0, 300.0) for i in range(len(calls))]

    monkeypatch.setattr(gpu_measure, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_measure, "MATRIX", 8)
    monkeypatch.setattr(gpu_measure, "time_call", lambda *_, **__: first)
    monkeypatch.setattr(gpu_measure, "time_in_turns", in_turns)
    monkeypatch.setattr(gpu_measure, "read_floor", lambda _: Time(1.0, 1.0, 1.0))
    monkeypatch.setattr(gpu_measure, "host_microseconds", lambda *_: 4.0)
    small = replace(WORKLOADS[0], full=WORKLOADS[0].small, batched=None)
    case = gpu_measure.Case(small, 1, 0, small.dtype)
    found = gpu_measure.measure(case, ["eager"], "none")
    medians = [s.cold.median for s in found.systems.values() if s.cold is not None]
    assert medians == ([200.0, 201.0] if microseconds > 100.0 else [99.0, 99.0])
