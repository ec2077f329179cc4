"""KernelBench's table: what it says of problems of ours in KernelBench's form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from benchmarks.kernelbench import left_of, main, read_rows, trace
from benchmarks.kernelbench_gpu import (
    COMPILED,
    EAGER,
    OURS,
    TOLERANCE,
    Sizes,
    Timed,
    beyond,
    furthest,
    module_of,
    without_data,
)
from benchmarks.kernelbench_gpu import summary as gpu_summary
from benchmarks.kernelbench_jobs import Limits, Shared, each, mixed
from benchmarks.kernelbench_search import checked, compared, eager_launches, reduced

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
STOPS = TRACES.replace("torch.relu(", "torch.nan_to_num(")


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
    assert "nan_to_num" in second["reason"]
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


SEARCHED = """
    import torch

    batch_size = 4096
    size = 1024

    class Model(torch.nn.Module):
        def __init__(self, size):
            super().__init__()
            if size < 64:
                raise ValueError(size)
            self.linear = torch.nn.Linear(size, 4)

        def forward(self, x):
            return torch.relu(self.linear(x)) * 2

    def get_inputs():
        return [torch.rand(batch_size, size)]

    def get_init_inputs():
        return [size]
"""


def test_a_search_and_a_check_are_kept_and_not_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "level1"
    folder.mkdir()
    file = folder / "1_linear.py"
    file.write_text(dedent(SEARCHED))
    kept = tmp_path / "rows.json"
    asked = [str(tmp_path), "--json", str(kept), "--search", "--check"]
    assert main(asked) == 0
    (row,) = read_rows(kept)
    assert row.search is not None
    assert row.check is not None
    assert row.check.right
    assert row.search.eager == 3
    assert 1 <= row.search.launches <= 3
    assert "1 of them to the end" in capsys.readouterr().out
    before = kept.read_text()
    file.write_text("raise ValueError")
    assert main(asked) == 0
    assert kept.read_text() == before


def test_sizes_are_reduced_until_eager_runs(tmp_path: Path) -> None:
    file = tmp_path / "1_linear.py"
    file.write_text(dedent(SEARCHED))
    names = reduced(file)
    assert names is not None
    assert (names.batch_size, names.size) == (2, 64)
    assert checked(file, "none").right


def test_a_wrong_result_is_no_right_one() -> None:
    exact = torch.linspace(-1, 1, 9, dtype=torch.float64)
    plain = exact.float()
    wrong = plain.clone()
    wrong[3] += 1e-4
    assert compared([plain], [plain], [exact]).right
    assert not compared([wrong], [plain], [exact]).right
    assert not compared([plain[1:]], [plain], [exact]).right
    assert not compared([exact], [plain], [exact]).right
    assert not compared([], [plain], [exact]).right
    assert not compared([torch.full((9,), torch.nan)], [plain], [exact]).right


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (torch.nn.ReLU(), 1),
        (torch.nn.Flatten(), 0),
        (torch.nn.Conv1d(3, 4, 2), 2),
        (torch.nn.Conv1d(3, 4, 2, bias=False), 1),
    ],
)
def test_kernels_of_eager(module: torch.nn.Module, count: int) -> None:
    x = torch.zeros(2, 3, 8, device="meta")
    assert eager_launches(module.to("meta"), [x]) == count


def test_attention_of_eager_is_one_kernel() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x) + 1

    assert eager_launches(Attention(), [torch.zeros(2, 3, 8, 4, device="meta")]) == 2


def test_a_table_of_times(checkout: Path) -> None:
    assert main([str(checkout), "--gpu"]) == (0 if torch.cuda.is_available() else 2)
    rows = [
        Timed(
            1,
            "fast",
            microseconds={OURS: 1.0, EAGER: 2.0, COMPILED: 0.5},
            launches={OURS: 2, EAGER: 2, COMPILED: 1},
        ),
        Timed(
            1,
            "slow",
            microseconds={OURS: 3.0, EAGER: 2.0},
            launches={OURS: 3, EAGER: 1},
        ),
        Timed(1, "stopped", reason="not done after 60 s"),
    ]
    text = gpu_summary(rows)
    assert "2 of 3 timed" in text
    assert "no slower than 1.02 times eager: 1 of 2; " in text
    assert "slower than 1.02 times eager: 1\n    1.50  slow\n" in text
    assert "no slower than 1.02 times torch.compile: 0 of 1" in text
    assert "slower than 1.02 times torch.compile: 1\n    2.00  fast" in text
    assert "no more launches than eager: 1 of 2; " in text
    assert "more launches than eager: 1\n     3 for 1  slow" in text


# -- Several processes beside one GPU --------------------------------------------------


def files(*names: str) -> list[tuple[int, Path]]:
    """Problems by level and name, as `1/2_relu`."""
    return [(int(name[0]), Path(f"{name[2:]}.py")) for name in names]


def test_one_has_its_turn_and_the_others_prepare(tmp_path: Path) -> None:
    shared = Shared(tmp_path, 100)
    preparing, timing = threading.Barrier(3), 0
    most = 0

    def one(level: int, file: Path, seconds: float) -> str:
        nonlocal timing, most
        # Nobody goes on before three are there.
        preparing.wait(seconds)
        with shared.room(40), shared.turn():
            timing += 1
            most = max(most, timing)
            time.sleep(0.01)
            timing -= 1
        return f"{level}/{file.stem}"

    found = files(*(f"{level}/{at}_x" for level in (1, 2, 3) for at in range(2)))
    rows = list(each(found, Limits(60.0, jobs=3), one))
    assert sorted((level, file.stem) for level, file, _ in rows) == sorted(
        (level, file.stem) for level, file in found
    )
    assert all(row == f"{level}/{file.stem}" for level, file, row in rows)
    assert most == 1


def test_room_is_given_in_the_order_in_which_it_was_asked_for(tmp_path: Path) -> None:
    shared = Shared(tmp_path, 100)
    order: list[int] = []

    def asks(wanted: int) -> None:
        with shared.room(wanted):
            order.append(wanted)

    threads = [threading.Thread(target=asks, args=(size,)) for size in (1000, 30)]
    with shared.room(60):
        for count, thread in enumerate(threads, 2):
            thread.start()
            while len(json.loads((tmp_path / "room.json").read_text() or "[]")) < count:
                time.sleep(0.001)
        # There are 40 left, but who asked first wants all.
        assert not order
    for thread in threads:
        thread.join()
    assert order == [1000, 30]
    assert json.loads((tmp_path / "room.json").read_text()) == []


def test_who_died_has_no_room(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (tmp_path / "room.json").write_text(json.dumps([[process.pid, 100, 0]]))
    with Shared(tmp_path, 100).room(1):
        ((pid, _, _),) = json.loads((tmp_path / "room.json").read_text())
    assert pid == os.getpid()


def test_what_the_end_finds_at_work_is_left_out() -> None:
    def one(level: int, file: Path, seconds: float) -> str | None:
        if file.stem == "fast":
            return f"done at level {level}"
        time.sleep(seconds)
        return None

    found = files("1/fast", "1/late", "1/never")
    own = list(each(found, Limits(0.02, 60.0), one))
    assert own == [
        (1, Path("fast.py"), "done at level 1"),
        *((*f, None) for f in found[1:]),
    ]
    assert list(each(found, Limits(60.0, 0.5), one)) == own[:1]


def test_a_sample_has_every_level_and_kind_first() -> None:
    convolutions = [f"1/{at}_conv_{at}" for at in range(20)]
    others = ["1/30_ReLU", "1/31_Softmax", "1/32_GELU"]
    found = files(*convolutions, *others, *(f"3/{at}_Net{at}" for at in range(5)))
    order = mixed(found, seed=1)
    assert sorted(order) == sorted(found)
    assert order == mixed(found, seed=1) != mixed(found, seed=2)
    assert {level for level, _ in order[:4]} == {1, 3}
    first = [file.stem for level, file in order if level == 1][:4]
    assert {name.split("_")[1] for name in first} == {"conv", "ReLU", "Softmax", "GELU"}


def test_a_tuned_run_begins_with_what_was_slower_untuned() -> None:
    found = files("1/new", "1/slow", "1/fast", "1/slow_for_compiled", "1/stopped")
    times = {
        "slow": {OURS: 3.0, EAGER: 2.0},
        "fast": {OURS: 1.0, EAGER: 2.0, COMPILED: 1.0},
        "slow_for_compiled": {OURS: 1.0, EAGER: 2.0, COMPILED: 0.5},
        "stopped": {},
    }
    rows = {
        (1, name): Timed(1, name, tuned=False, microseconds=own)
        for name, own in times.items()
    }
    assert left_of(found, rows, tuned=False) == files("1/new")
    slower = files("1/slow", "1/slow_for_compiled", "1/new")
    assert left_of(found, rows, tuned=True) == slower
    tuned = {at: replace(row, tuned=True) for at, row in rows.items()}
    assert left_of(found, tuned, tuned=True) == files("1/new")


def test_what_a_problem_takes_of_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "1_linear.py"
    file.write_text(dedent(SEARCHED))
    model, inputs = without_data(module_of(file))
    sizes = Sizes.of(model, inputs)
    assert sizes.held == 4 * (4096 * 1024 + 1024 * 4 + 4)
    assert sizes.outputs == sizes.largest == 4 * 4096 * 4


def test_how_far_results_are_apart() -> None:
    inf, nan = float("inf"), float("nan")
    right = torch.tensor([1.0, 4.0, -inf, nan])
    assert furthest([right.clone()], [right]) == 0.0
    assert furthest([torch.tensor([1.0, 4.4, -inf, nan])], [right]) == pytest.approx(
        0.1
    )
    for wrong in ([nan, 4.0, -inf, nan], [1.0, 4.0, inf, nan], [1.0, 4.0, -inf, 0.0]):
        assert furthest([torch.tensor(wrong)], [right]) > TOLERANCE
    assert furthest(torch.tensor([2, 3]), torch.tensor([2, 4])) == 0.25


def test_noise_is_as_far_from_float64_as_eagers() -> None:
    exact = torch.tensor([0.0, 1e-17], dtype=torch.float64)
    eager, ours = torch.tensor([3e-9, -2e-9]), torch.tensor([-5e-9, 8e-9])
    assert furthest(ours, eager) > 1
    assert beyond(ours, eager, exact) == 0
    assert beyond(1e3 * ours, eager, exact) > 1
    assert beyond(torch.tensor([1.0, float("nan")]), eager, exact) == float("inf")
