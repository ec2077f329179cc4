"""Hardware is data: one module knows GPUs, and what it knows decides everywhere."""

from __future__ import annotations

import ast
import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import mirage_dsl
from mirage_dsl.backends.triton.running.screen import KernelReport, for_architecture
from mirage_dsl.cli import environment
from mirage_dsl.cli.app import app
from mirage_dsl.core.errors import (
    CacheError,
    CompileError,
    SearchError,
    UnsupportedError,
)
from mirage_dsl.core.hardware import (
    A100,
    ARCHITECTURES,
    DEFAULT,
    H100,
    H200,
    HARDWARE,
    PROPERTIES,
    Figures,
    Hardware,
    Properties,
    architecture_named,
    architecture_of,
    guessed,
    hardware_named,
    known_row,
    row_given,
    with_figures,
)
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.cost.facts import facts_of
from mirage_dsl.cost.footprint import BASE_SHARED, footprint_of, resources
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.search.driver import search
from mirage_dsl.search.multi_kernel.search import multi_kernel
from mirage_dsl.search.result import Candidate, SearchResult
from mirage_dsl.search.variants import neighbours, proposals
from mirage_dsl.store.cache import HARDWARE as MEASURED
from mirage_dsl.store.cache import Cache
from mirage_dsl.store.superoptimize import prepare
from mirage_dsl.tune import devices
from mirage_dsl.tune.devices import (
    current_hardware,
    device_named,
    hardware_of,
    keep_figures,
    measured_figures,
)
from mirage_dsl.tune.timing import COLD_BYTES, cold_bytes
from mirage_dsl.tune.tuner import timings_key
from tests.search import blocks
from tests.search.programs import PROGRAMS
from tests.search.test_multi_kernel import decode

pytestmark = pytest.mark.usefixtures("fresh_cache")

PACKAGE = Path(mirage_dsl.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
OTHERS = [f for f in SOURCES if f != PACKAGE / "core" / "hardware.py"]

GPU = re.compile(
    r"\b(?:G?[ABHLTV]\d{2,3}|Ada|"
    r"(?i:RTX|GeForce|Turing|Ampere|Hopper|Blackwell|sm_?\d\d))\b"
)
CAPABILITY = re.compile(r"capability|major|minor|\barch\b|architecture")

# The doors: where a GPU need not be named.
DOORS = {
    "store/superoptimize.py",
    "cost/explain.py",
    "tune/tuner.py",
    "search/why_not.py",
    "backends/triton/running/screen.py",
    "api/kernel.py",
    "api/graph.py",
    "api/compatibility.py",
    "cli/environment.py",
    "cli/graphs.py",
}


def _place(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


@cache
def _code(file: Path) -> list[ast.AST]:
    """The nodes of a file but texts that stand alone: docstrings."""
    left: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    found: list[ast.AST] = []
    while left:
        node = left.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        found.append(node)
        left += ast.iter_child_nodes(node)
    return found


def _words(node: ast.AST) -> Iterator[str]:
    """The names and texts of a node, words of names apart."""
    for name in ("id", "attr", "name", "arg", "asname"):
        word = getattr(node, name, None)
        if isinstance(word, str):
            yield word.replace("_", " ")
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _telling() -> set[float]:
    """Figures of the rows that could hardly stand for anything else."""
    found = set(_numbers([*map(asdict, HARDWARE), *map(asdict, ARCHITECTURES)]))
    digits = {n: f"{n:.9e}".split("e")[0].rstrip("0").replace(".", "") for n in found}
    return {1.9, 227.0, 228.0} | {
        n
        for n in found
        if (n > 100 or not float(n).is_integer())
        and len(digits[n]) > 1
        and not math.log2(n).is_integer()
        and n != 255
    }


def _knowledge(file: Path, telling: set[float]) -> Iterator[str]:
    """What a file knows of a GPU."""
    for node in _code(file):
        for word in _words(node):
            if GPU.search(word):
                yield f"{_place(file)} names a GPU: {word}"
        if isinstance(node, ast.Compare) and CAPABILITY.search(ast.unparse(node)):
            yield f"{_place(file)} compares a capability: {ast.unparse(node)}"
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        if number and node.value in telling:
            yield f"{_place(file)}:{node.lineno} has {node.value!r} of a GPU"


def test_no_other_module_knows_a_gpu() -> None:
    telling = _telling()
    assert [k for file in OTHERS for k in _knowledge(file, telling)] == []


@pytest.mark.parametrize(
    "text",
    [
        "waves = max(1.0, blocks / 132)",
        "LAUNCH_US = 1.9",
        "HOPPER = 90",
        "early = arch >= 90",
        "ok = major >= 8",
        "def f(hardware=H100): ...",
        "target = 'sm_90'",
        "EXCHANGE = 4.5e-11",
    ],
)
def test_the_scan_sees_what_once_stood_outside(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert len(list(_knowledge(tmp_path / "module.py", _telling()))) == 1


def test_only_doors_choose_a_gpu() -> None:
    chosen = {
        _place(f)
        for f in OTHERS
        for n in _code(f)
        if isinstance(n, ast.Name) and n.id == "DEFAULT"
    }
    assert chosen == DOORS
    for file in SOURCES:
        if _place(file) in DOORS:
            continue
        for node in _code(file):
            if isinstance(node, ast.FunctionDef):
                own = node.args
                given = (*own.posonlyargs, *own.args)[::-1]
                pairs = [*zip(given, own.defaults[::-1], strict=False)]
                pairs += zip(own.kwonlyargs, own.kw_defaults, strict=True)
                free = [a.arg for a, default in pairs if default is not None]
                assert "hardware" not in free, f"{_place(file)}:{node.lineno}"


# -- What is searched for another GPU --------------------------------------------------

SLOW = 1e-5
MADE_UP = replace(
    H100,
    name="made up",
    sms=20,
    launch=SLOW,
    ranking=replace(H100.ranking, launch_us=1e6 * SLOW),
)


def _parts(graph: KernelGraph) -> int:
    """Into how many parts the first kernel splits its loop."""
    split = graph.blocks[0].grid[-1]
    extent = graph.extent_of[split.dim]
    assert extent is not None
    return -(-extent // split.tile)


def test_a_small_gpu_gets_larger_parts_and_a_proof_of_its_own() -> None:
    ours, other = (multi_kernel(decode(), h, max_kernels=2) for h in (H100, MADE_UP))
    assert _parts(other.plans[0].graph) < _parts(ours.plans[0].graph)
    for result in (ours, other):
        assert result.cost == pytest.approx(result.bound, abs=1e-3)
    assert ours.cost is not None
    assert other.cost is not None
    # Two launches, and as much work by fewer multiprocessors.
    assert other.cost > ours.cost + 2 * (1e6 * SLOW - H100.ranking.launch_us)


def test_dear_launches_ask_for_fewer_kernels() -> None:
    counts = [
        [
            len(c.mugraph.nodes)
            for c in search(PROGRAMS["lora"](), h, k=4, max_kernels=2, verify=False)
        ]
        for h in (H100, MADE_UP)
    ]
    assert counts[1].count(1) > counts[0].count(1)


def test_a_gpu_without_asynchronous_products_is_not_priced_with_them() -> None:
    schedule = Schedule(4, 5, swap_operands=True)
    graph = blocks.rms_linear(8, 64, 128, schedule)
    facts = facts_of(graph.blocks[0], kernel_types(graph), graph.extent_of)
    hopper, ampere = (footprint_of(facts, h) for h in (H100, A100))
    assert hopper.asynchronous.all()
    assert not ampere.asynchronous.any()
    # The lowering is the same, with two copies of x; no tile is in use for longer.
    x, w = 2 * 16 * 128, 2 * 128 * 64
    assert resources(hopper).shared[0] == BASE_SHARED + 5 * w + (5 + 4) * x
    assert resources(ampere).shared[0] == BASE_SHARED + 4 * w + (4 + 4) * x
    alike = replace(H100, architecture=A100.architecture)
    assert estimate(graph, alike).microseconds > estimate(graph, H100).microseconds


def test_only_what_a_gpu_can_do_is_proposed_for_it() -> None:
    graph = blocks.split_attention(1, 16)
    for hardware in (H100, A100):
        own = hardware.architecture
        found = [g for g, _ in proposals(graph, count=4, hardware=hardware)]
        found += [g for g, _ in neighbours(found[0], hardware=hardware)]
        schedules = [b.schedule for g in found for b in g.blocks]
        assert any(s.pdl for s in schedules) is own.early_launches
        assert any(s.descriptors for s in schedules) is own.descriptors


def test_gpus_of_other_constants_share_no_results() -> None:
    program = PROGRAMS["lora"]()
    result = SearchResult(
        program,
        (Candidate(program, estimate(program, H100), None),),
        complete=True,
        seconds=0.0,
    )
    rows = [
        H100,
        H200,
        A100,
        replace(H100, ramp=8e-7),
        replace(H100, ranking=A100.ranking),
    ]
    rows.append(replace(H100, architecture=A100.architecture))
    keys = {prepare(program, hardware=h).key for h in rows}
    assert len(keys) == len(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirage_dsl.tune.tuner._surroundings", lambda _: {})
        times = {timings_key(result, (), "quick", None, h) for h in rows}
    assert len(times) == len(rows)
    assert prepare(program, hardware=replace(H100)).key in keys


# -- Instruction sets ------------------------------------------------------------------


def test_architectures_are_sorted_and_later_ones_keep_what_earlier_ones_have() -> None:
    capabilities = [a.capability for a in ARCHITECTURES]
    assert capabilities == sorted(set(capabilities))
    early = [a.early_launches for a in ARCHITECTURES]
    assert early == sorted(early)
    for own in ARCHITECTURES:
        assert architecture_named(own.target) == own == architecture_of(own.capability)


def test_an_unknown_architecture_is_as_the_one_before_it() -> None:
    unknown = architecture_of((9, 9))
    assert unknown.capability == (9, 9)
    assert replace(unknown, capability=(9, 0)) == H100.architecture
    assert architecture_of((7, 0)).shared_per_sm == ARCHITECTURES[0].shared_per_sm
    assert not architecture_of((7, 0)).supported
    with pytest.raises(UnsupportedError, match="expected one like sm_90 or sm_80"):
        architecture_named("gfx942")


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "resident"),
    [
        ("sm_90", 32, 0, 4, 16),
        ("sm_90", 168, 0, 4, 3),
        ("sm_90", 32, 113 * 1024, 4, 2),
        ("sm_86", 32, 0, 4, 12),
        ("sm_86", 16, 0, 1, 16),
        ("sm_89", 16, 0, 1, 24),
        ("sm_80", 32, 163 * 1024, 4, 1),
        ("sm_121", 32, 50 * 1024, 4, 1),
    ],
)
def test_blocks_that_share_a_multiprocessor(
    target: str, registers: int, shared: int, warps: int, resident: int
) -> None:
    report = KernelReport(
        "k", registers, shared, 0, 0, 0, "none", 0, 0, 0.0, warps, target
    )
    assert report.resident == resident
    assert report.shared_limit == architecture_named(target).shared_per_block


def test_kernels_are_launched_in_turn_where_none_starts_early() -> None:
    graph = launched_early(blocks.split_attention(1, 16))
    assert for_architecture(graph, 90) == graph == for_architecture(graph, 120)
    assert not any(b.schedule.pdl for b in for_architecture(graph, 89).blocks)


# -- GPUs that nobody knows ------------------------------------------------------------

GAMES = Properties(
    "NVIDIA GeForce RTX 4090",
    (8, 9),
    128,
    75_497_472,
    102_400,
    1536,
    2.52e9,
    10.5e9,
    384,
)
CARD = replace(
    PROPERTIES["H100"], name="NVIDIA H100 PCIe", sms=114, memory_clock=1.593e9
)


def test_a_row_scaled_to_its_own_device_stays_as_it_is() -> None:
    for row in HARDWARE:
        own = guessed(PROPERTIES[row.name])
        assert own.nearest == row
        found = list(_numbers(asdict(own.hardware)))
        assert found == pytest.approx(list(_numbers(asdict(row))), rel=1e-12)


def test_limits_are_the_devices_own_and_rates_follow_its_properties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whatever rows there are by now: these figures are scaled from the A100's.
    monkeypatch.setattr("mirage_dsl.core.hardware.HARDWARE", (H100, A100))
    found = guessed(GAMES).hardware
    assert (found.sms, found.l2_bytes) == (128, 75_497_472)
    assert found.architecture.shared_per_block == 99 * 1024
    assert found.architecture.blocks_per_sm == 24
    assert found.small_tensor_factor == 1.0
    assert not found.dependent
    peak = GAMES.peak_dram_rate
    assert peak == pytest.approx(1.008e12)
    assert 0.8 * peak < found.dram_rate < peak
    assert found.f32_matmul_rate == pytest.approx(0.72 * 8.26e13, rel=0.1)
    twice = guessed(replace(GAMES, sms=256, bus_bits=768)).hardware
    for name in ("dram_rate", "l2_rate", "tensor_rate", "f32_rate"):
        assert getattr(twice, name) == pytest.approx(2 * getattr(found, name))
    faster = guessed(replace(GAMES, clock=2 * 2.52e9)).hardware
    assert faster.matrix_step == pytest.approx(found.matrix_step / 2)
    assert faster.tensor_rate == pytest.approx(2 * found.tensor_rate)


@pytest.mark.parametrize(
    "device",
    [
        CARD,
        GAMES,
        replace(PROPERTIES["A100"], name="NVIDIA A100-SXM4-40GB", memory_clock=1.215e9),
        replace(PROPERTIES["H100"], name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16),
        replace(PROPERTIES["H200"], name="NVIDIA GH200 480GB"),
        Properties("NVIDIA Z999", (15, 0), 300, 2**28, 512 * 1024, 4096),
    ],
    ids=lambda d: d.name,
)
def test_no_device_becomes_another_one_in_silence(
    device: Properties, caplog: pytest.LogCaptureFixture
) -> None:
    assert known_row(device) is None
    with caplog.at_level(logging.WARNING, "mirage_dsl"):
        found = [hardware_of(replace(device, name=device.name)) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0] not in HARDWARE
    assert (found[0].name, found[0].sms) == (device.name, device.sms)
    warnings = [r.getMessage() for r in caplog.records if device.name in r.getMessage()]
    assert len(warnings) == 1
    assert "doctor --measure" in warnings[0]
    assert guessed(device).nearest.name in warnings[0]
    assert ("the clock" in warnings[0]) is (device.clock is None)
    for field in fields(Hardware):
        value = getattr(found[0], field.name)
        assert not isinstance(value, float) or 0 <= value < math.inf, field.name
    assert estimate(blocks.rms_linear(8), found[0]).microseconds > 0


def test_known_devices_get_their_rows_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "mirage_dsl"):
        for row in HARDWARE:
            assert hardware_of(PROPERTIES[row.name]) is row
    assert not caplog.records
    assert hardware_named("NVIDIA H100 80GB HBM3") is H100
    assert hardware_named("nvidia a100-sxm4-80gb") is A100
    with pytest.raises(SearchError, match="known are H100, H200, A100"):
        hardware_named("NVIDIA GH200 480GB")


def test_a_user_gives_a_row_or_its_name() -> None:
    assert row_given(H100) is row_given("h100") is H100
    with pytest.raises(SearchError, match="known are H100"):
        row_given("Q7")
    with pytest.raises(SearchError, match="hardware=90; expected one of 'H100'"):
        row_given(90)


def test_what_pytorch_tells_becomes_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        multi_processor_count=132,
        L2_cache_size=50_000_000,
        shared_memory_per_multiprocessor=233_472,
        max_threads_per_multi_processor=2048,
    )
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    known = PROPERTIES["H100"]
    silent = replace(known, clock=None, memory_clock=None, bus_bits=None)
    assert devices.properties_here() == silent
    assert current_hardware() is H100
    told.clock_rate, told.memory_clock_rate = 1_980_000, 2_619_000
    told.memory_bus_width = 5120
    assert devices.properties_here() == known


def test_cold_inputs_outgrow_the_cache_of_the_gpu_that_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = SimpleNamespace(L2_cache_size=50 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: told)
    assert cold_bytes(torch.device("cuda", 0)) == COLD_BYTES
    told.L2_cache_size = 126 << 20
    assert cold_bytes(torch.device("cuda", 0)) == 5 * 126 << 20
    assert cold_bytes(torch.device("cpu")) == COLD_BYTES


# -- GPUs that the user has measured ---------------------------------------------------

FIGURES = Figures(dram_rate=9e11, l2_rate=4e12, launch=2e-6, tensor_rate=1.5e14)


def test_measured_figures_are_used_for_the_device_that_has_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = replace(GAMES, name="NVIDIA other")
    before = hardware_of(other)
    caplog.clear()
    keep_figures(other, FIGURES)
    with caplog.at_level(logging.WARNING, "mirage_dsl"):
        found = hardware_of(other)
    assert not caplog.records
    assert found == with_figures(before, FIGURES) == device_named("nvidia OTHER")
    assert found.fingerprint != before.fingerprint
    for field in fields(Figures):
        assert getattr(found, field.name) == getattr(FIGURES, field.name)
    longer = found.ranking.launch_us - before.ranking.launch_us
    assert longer == pytest.approx(1e6 * (found.launch - before.launch))
    assert hardware_of(PROPERTIES["H100"]) is H100
    assert measured_figures(replace(other, sms=64)) is None


def test_a_known_device_that_was_measured_has_the_users_figures() -> None:
    keep_figures(PROPERTIES["H200"], FIGURES)
    found = hardware_of(PROPERTIES["H200"])
    assert (found.name, found.dram_rate) == ("H200 (measured)", FIGURES.dram_rate)
    assert found.architecture == H200.architecture


def test_figures_from_elsewhere_or_damaged_do_not_count(tmp_path: Path) -> None:
    keep_figures(GAMES, FIGURES)
    Cache().export(tmp_path / "all.json")
    Cache().clear()
    Cache().import_from(tmp_path / "all.json")
    assert len(Cache().entries(MEASURED)) == 1
    assert measured_figures(GAMES) is None
    (entry,) = Cache().entries(MEASURED)
    for figures in ({}, {"dram_rate": 1}, {**asdict(FIGURES), "launch": -1.0}, None):
        Cache().store(entry.key, {"device": asdict(GAMES), "figures": figures})
        assert measured_figures(GAMES) is None
    Cache().store(entry.key, {"device": 3, "figures": asdict(FIGURES)})
    with pytest.raises(SearchError):
        device_named(GAMES.name)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_figures_that_no_gpu_has_are_refused(wrong: float) -> None:
    with pytest.raises(CacheError, match="dram_rate came out"):
        keep_figures(GAMES, replace(FIGURES, dram_rate=wrong))
    assert measured_figures(GAMES) is None


def _run(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def test_measuring_takes_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CompileError, match="needs a CUDA device"):
        devices.measure()
    found = _run("doctor", "--measure")
    assert found.exit_code == 2
    assert found.output.count("error") == 1
    assert "machine with the GPU" in found.output
    found = _run("doctor", "--measure", "--json")
    assert json.loads(found.output)["error"]["kind"] == "CompileError"


def test_doctor_says_what_estimates_rest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def estimates() -> str:
        return {f.what: f.found for f in environment._gpu()}["estimates"]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert DEFAULT.name in estimates()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "properties_here", lambda: PROPERTIES["A100"])
    assert estimates() == "the row A100"
    monkeypatch.setattr(devices, "properties_here", lambda: GAMES)
    assert f"scaled from those of the {guessed(GAMES).nearest.name}" in estimates()
    assert "doctor --measure" in estimates()
    monkeypatch.setattr(devices, "measure", lambda: FIGURES)
    assert (
        "estimates: figures that were measured here"
        in _run("doctor", "--measure").output
    )
    assert "measured here" in estimates()


class _Clock:
    """A GPU whose times are known: what is read, and what is multiplied."""

    launch, read, tensor = 1e-6, 2e12, 4e14

    def seconds(self, call: Any, given: tuple[Any, ...]) -> float:
        if call is torch.mm:
            return 2 * devices.SQUARE**3 / self.tensor
        size = sum(t.numel() * t.element_size() for t in given)
        return self.launch + size / self.read


def test_figures_follow_from_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*shape: int, **_: Any) -> torch.Tensor:
        return torch.empty(*shape, device="meta", dtype=_["dtype"])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch, "zeros", empty)
    monkeypatch.setattr(torch, "randn", empty)
    monkeypatch.setattr(devices, "properties_here", lambda: GAMES)
    monkeypatch.setattr(devices, "_seconds", _Clock().seconds)
    found = devices.measure()
    assert asdict(found) == pytest.approx(
        asdict(Figures(_Clock.read, _Clock.read, _Clock.launch, _Clock.tensor))
    )


@pytest.mark.gpu
def test_the_gpu_here_can_be_measured() -> None:
    device = devices.properties_here()
    before = hardware_of(device)
    figures = devices.measure()
    assert not figures.faults()
    peak = device.peak_dram_rate
    assert peak is None or 0.3 * peak < figures.dram_rate < 1.1 * peak
    assert figures.l2_rate > 0.5 * figures.dram_rate
    assert 2e-7 < figures.launch < 2e-5
    keep_figures(device, figures)
    assert current_hardware() == with_figures(before, figures)
