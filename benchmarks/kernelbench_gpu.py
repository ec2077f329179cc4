"""KernelBench's problems on a GPU: plain calls of ours, of eager and of torch.compile.

Each problem has a process of its own, which is stopped when it takes too long.  It
searches and tunes as a first call does, compares with eager, and times calls one after
the other: from before a call to the end of what it launched, host time included.
"""

# The problems are other people's modules, which no checker knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import mirage_dsl as mirage
from mirage_dsl.core.settings import CACHE_DIR

CALLS = 50
SECONDS = 1.0
"""As many calls of each are timed, or fewer that take so long together."""
WARM_UP = 3
OURS, EAGER, COMPILED = "ours", "eager", "torch.compile"
SLACK = 1.02
"""A call that takes at most so many times another's time is no slower."""
TOLERANCE = 2e-3
"""How far results may differ, as a share of the largest number: eager uses TF32 in
convolutions, and other orders of summation elsewhere."""


@dataclass(frozen=True)
class Timed:
    """One problem on a GPU.

    Attributes:
        level: 1 to 3.
        problem: Its file's name.
        gpu: Its name.
        reason: Why there are no times of ours, in one line; empty where there are.
        ready: Seconds of the first call: trace, search, tuning and compilation.
        error: The largest difference to eager, as a share of the largest number.
        kernels: Generated kernels of what was chosen.
        microseconds: The median of a call, for ours, eager and torch.compile.
        failures: Why there is no time of one of them.
    """

    level: int
    problem: str
    gpu: str = ""
    reason: str = ""
    ready: float = 0.0
    error: float = 0.0
    kernels: int = 0
    microseconds: Mapping[str, float] = field(default_factory=dict[str, float])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])

    def ratio(self, other: str) -> float | None:
        """Our time over another's, if both are there."""
        if not {OURS, other} <= self.microseconds.keys():
            return None
        return self.microseconds[OURS] / self.microseconds[other]


# -- One problem, in its process -------------------------------------------------------


def timed(level: int, file: Path, names: ModuleType) -> Timed:
    """Time one problem on the GPU at hand."""
    torch.manual_seed(0)
    gpu = torch.cuda.get_device_name()
    with torch.device("cuda"), torch.no_grad():
        model = names.Model(*names.get_init_inputs()).eval().to("cuda")
        inputs = [_on_gpu(value) for value in names.get_inputs()]
        wanted = model(*inputs)
    calls: dict[str, Callable[[], Any]] = {EAGER: lambda: model(*inputs)}
    failures: dict[str, str] = {}
    began = time.monotonic()
    ready, error, kernels = 0.0, 0.0, 0
    with torch.no_grad():
        try:
            kernel = mirage.kernel(model)
            found = kernel(*inputs)
            torch.cuda.synchronize()
            ready = time.monotonic() - began
            error = _furthest(found, wanted)
            kernels = len(kernel.bind(*inputs).mugraph.blocks)
            calls[OURS] = lambda: kernel(*inputs)
        except Exception as problem:
            failures[OURS] = _line(problem)
        try:
            compiled = torch.compile(model)
            compiled(*inputs)
            calls[COMPILED] = lambda: compiled(*inputs)
        except Exception as problem:
            failures[COMPILED] = _line(problem)
        medians = in_turns(calls)
    reason = failures.pop(OURS, "")
    return Timed(
        level, file.stem, gpu, reason, ready, error, kernels, medians, failures
    )


def _on_gpu(value: Any) -> Any:
    return value.to("cuda") if isinstance(value, torch.Tensor) else value


def in_turns(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median time of a call of each in µs, by events; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    began = time.monotonic()
    for _ in range(CALLS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            last.synchronize()
            found[name].append(1e3 * first.elapsed_time(last))
        if time.monotonic() - began > SECONDS * len(calls):
            break
    return {name: statistics.median(times) for name, times in found.items()}


def _furthest(found: Any, wanted: Any) -> float:
    """The largest difference, as a share of the largest number."""
    furthest = 0.0
    for own, theirs in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        apart = (own.double() - theirs.double()).abs()
        largest = float(theirs.double().abs().max()) or 1.0
        furthest = max(furthest, float(apart.max()) / largest)
    return furthest


def _line(error: BaseException) -> str:
    own = isinstance(error, mirage.MirageError)
    text = str(error.message) if own else f"{type(error).__name__}: {error}"
    return next(iter(text.strip().splitlines()), type(error).__name__)


# -- All of them -----------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """How long it may take, in seconds.

    Attributes:
        problem: One problem, from the start of its process.
        whole: All of them: none is begun that could end later.
    """

    problem: float
    whole: float


def each(
    checkout: Path, problems: Sequence[tuple[int, Path]], limits: Limits
) -> Iterator[Timed]:
    """Time each problem in a process of its own, as long as there is time."""
    ends = time.monotonic() + limits.whole
    for level, file in problems:
        left = min(limits.problem, ends - time.monotonic())
        if left < limits.problem / 4:
            return
        found = _elsewhere(checkout, level, file, left)
        if found.reason.startswith("not done") and left < limits.problem:
            # Another run gives it all of its time.
            return
        yield found


def _elsewhere(checkout: Path, level: int, file: Path, seconds: float) -> Timed:
    """One problem in a process that may take so long."""
    with tempfile.TemporaryDirectory(prefix="mirage_dsl-kernelbench-") as scratch:
        said = Path(scratch) / "row.json"
        command = [sys.executable, "-m", "benchmarks.kernelbench", str(checkout)]
        command += ["--one", str(level), str(file), str(said)]
        log = Path(scratch) / "log.txt"
        with log.open("w", encoding="utf-8") as out:
            try:
                subprocess.run(
                    command, check=False, timeout=seconds, stdout=out, stderr=out
                )
            except subprocess.TimeoutExpired:
                return Timed(level, file.stem, reason=f"not done after {seconds:.0f} s")
        if said.exists():
            return Timed(**json.loads(said.read_text(encoding="utf-8")))
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        ended = last[-1] if last else "its process ended without a word"
        return Timed(level, file.stem, reason=ended)


# -- What is printed -------------------------------------------------------------------


def line_of(row: Timed) -> str:
    """A row of the table."""
    times = ", ".join(f"{name} {us:.1f}" for name, us in row.microseconds.items())
    said = row.reason or f"{row.kernels} kernels, error {row.error:.1e}"
    if row.error > TOLERANCE:
        said = f"WRONG, {said}"
    more = "".join(f"; {name}: {why}" for name, why in row.failures.items())
    return (
        f"{row.level}  {row.problem:<50.50} {row.ready:5.1f} s  {times}  {said}{more}"
    )


def summary(rows: Sequence[Timed]) -> str:
    """How often we are no slower, and the rest with their ratios."""
    done = [row for row in rows if OURS in row.microseconds]
    lines = [f"{len(done)} of {len(rows)} timed"]
    for other in (EAGER, COMPILED):
        ratios = {row.problem: row.ratio(other) for row in done}
        known = {name: r for name, r in ratios.items() if r is not None}
        slower = {name: r for name, r in known.items() if r > SLACK}
        lines.append(
            f"no slower than {SLACK} times {other}: {len(known) - len(slower)} of "
            f"{len(known)}"
        )
        for name, ratio in sorted(slower.items(), key=lambda item: -item[1]):
            lines.append(f"  {ratio:6.2f}  {name}")
    late = [row for row in done if row.ready > 15]
    lines.append(f"ready after more than 15 s: {len(late)}")
    lines.append(f"cache: {CACHE_DIR.get()}")
    return "\n".join(lines)
