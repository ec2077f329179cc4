"""The workloads on a GPU: correctness against float64, then times beside PyTorch.

    python -m benchmarks.gpu [--workloads NAME ...] [--batches 1 8 16] [--json FILE]

Every workload goes down the public road: traced, searched, tuned, verified, lowered to
Triton and launched.  Errors are relative (‖out − ref‖ / ‖ref‖), the worst of several
draws, beside those of the unfused program in the same dtype.  Times are medians inside
CUDA graphs, with cold and with hot inputs; the floor is a kernel that reads the same
bytes and no more; the host's time is that of one call outside of graphs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mirage_dsl as mirage
from benchmarks import torch_functions
from benchmarks.floor import read_floor
from mirage_dsl.testing import reference
from mirage_dsl.testing.workloads import WORKLOADS, Workload
from mirage_dsl.timing import Time, host_microseconds, time_call

DRAWS = 3
MOST_ERROR_RATIO = 2.0


@dataclass
class Row:
    """One workload at one batch; times in µs."""

    name: str
    batch: int
    found: int = 0
    search_seconds: float = 0.0
    tuning_seconds: float = 0.0
    timed: int = 0
    compile_seconds: float = 0.0
    kernels: int = 0
    predicted: float = 0.0
    mugraph: str = ""
    rejected: dict[str, int] = field(default_factory=dict[str, int])
    error: float = float("nan")
    unfused_error: float = float("nan")
    ours: Time | None = None
    hot: Time | None = None
    eager: Time | None = None
    compiled: Time | None = None
    floor: Time | None = None
    host: float = float("nan")
    eager_host: float = float("nan")
    failure: str = ""


def _draw(workload: Workload, batch: int, seed: int) -> list[Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    dtype = getattr(torch, workload.dtype)
    tensors: list[Tensor] = []
    for name, shape in workload.at_batch(batch).items():
        values = torch.randn(shape, generator=generator, device="cuda")
        if name.startswith(("w", "a", "b")) and len(shape) > 1:
            values = values / shape[-2] ** 0.5
        tensors.append((values.abs() if name == "var" else values).to(dtype))
    return tensors


def _error(out: Tensor, exact: np.ndarray[Any, Any]) -> float:
    values = out.double().cpu().numpy()
    if not np.isfinite(values).all():
        return float("inf")
    return float(np.linalg.norm(values - exact) / np.linalg.norm(exact))


def _exact(workload: Workload, tensors: Sequence[Tensor]) -> np.ndarray[Any, Any]:
    return workload.function(reference, *(t.double().cpu().numpy() for t in tensors))


def _errors(
    workload: Workload,
    batch: int,
    ours: Callable[..., Tensor],
    unfused: Callable[..., Tensor],
) -> tuple[float, float]:
    worst = [0.0, 0.0]
    for seed in range(DRAWS):
        tensors = _draw(workload, batch, seed)
        exact = _exact(workload, tensors)
        for i, call in enumerate((ours, unfused)):
            worst[i] = max(worst[i], _error(call(*tensors), exact))
    return worst[0], worst[1]


def _kernel(workload: Workload) -> mirage.Kernel:
    names = ", ".join(workload.full)
    scope: dict[str, Any] = {"function": workload.function, "m": mirage}
    source = f"def {workload.name}({names}):\n    return function(m, {names})\n"
    exec(source, scope)
    return mirage.kernel(scope[workload.name])


def measure(workload: Workload, batch: int, *, compare: bool) -> Row:
    """Run one workload at one batch; failures are recorded, not raised."""
    row = Row(workload.name, batch)
    try:
        _measure(workload, batch, row, compare)
    except (mirage.MirageError, RuntimeError, AssertionError, ValueError) as error:
        row.failure = f"{type(error).__name__}: {str(error)[:600]}"
    return row


def _measure(workload: Workload, batch: int, row: Row, compare: bool) -> None:
    tensors = _draw(workload, batch, 100)
    kernel = _kernel(workload)
    bound = kernel.bind(*tensors)
    _search(bound, row)
    start = time.perf_counter()
    kernel(*tensors)
    torch.cuda.synchronize()
    row.compile_seconds = time.perf_counter() - start
    unfused = functools.partial(workload.function, torch_functions)
    row.error, row.unfused_error = _errors(workload, batch, bound, unfused)
    row.ours = time_call(kernel, tensors)
    row.hot = time_call(kernel, tensors, cold=False)
    row.eager = time_call(unfused, tensors)
    row.floor = read_floor(sum(t.numel() * t.element_size() for t in tensors))
    row.host = host_microseconds(kernel, tensors)
    row.eager_host = host_microseconds(unfused, tensors)
    if compare:
        compiled = torch.compile(unfused, mode="max-autotune-no-cudagraphs")
        row.compiled = time_call(compiled, tensors)


def _search(bound: mirage.BoundKernel, row: Row) -> None:
    marks: list[float] = []

    def progress(stage: str, *_: object) -> None:
        if stage == "tune" and not marks:
            marks.append(time.perf_counter())

    start = time.perf_counter()
    result = bound.search(progress=progress)
    total = time.perf_counter() - start
    row.found = len(result)
    row.predicted = result.best.cost.microseconds
    row.kernels = len(result.best.mugraph.nodes)
    row.mugraph = str(result.best.mugraph)
    tuning = bound.tuning
    row.search_seconds, row.tuning_seconds = result.seconds, total - result.seconds
    for item in tuning.measured if tuning else ():
        row.timed += item.timing.microseconds is not None
        reason = item.timing.reason[:60]
        if reason:
            row.rejected[reason] = row.rejected.get(reason, 0) + 1


def _line(row: Row) -> str:
    def shown(value: Time | None) -> str:
        return f"{value.median:8.2f}" if value else "       -"

    verdict = "ok" if row.error <= MOST_ERROR_RATIO * row.unfused_error else "WRONG"
    head = (
        f"{row.name:20s} {row.batch:2d} {row.found:2d} {row.search_seconds:5.1f} "
        f"{row.tuning_seconds:5.1f} {row.timed:3d}"
    )
    if row.failure:
        return f"{head} FAILED {row.failure.splitlines()[0][:90]}"
    return (
        f"{head} {row.kernels:2d} {row.predicted:7.1f} {shown(row.ours)} "
        f"{shown(row.hot)} {shown(row.eager)} {shown(row.compiled)} {shown(row.floor)} "
        f"{row.host:5.1f} {row.eager_host:5.1f} {row.error:.1e} "
        f"{row.unfused_error:.1e} {verdict}"
    )


def _document(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
        "rows": [asdict(r) for r in rows],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [w.name for w in WORKLOADS]
    parser.add_argument("--workloads", nargs="+", choices=names, default=names)
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--compare", action="store_true", help="time torch.compile too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks.gpu needs a CUDA device; none was found", file=sys.stderr)
        return 2
    rows: list[Row] = []
    print(torch.cuda.get_device_name())
    print(
        "workload, batch, found, search s, tuning s, timed, nodes, model µs, ours, "
        "hot, eager, compile, floor, host, eager's host, error, eager's error"
    )
    for workload in (w for w in WORKLOADS if w.name in options.workloads):
        for batch in options.batches if workload.batched else [1]:
            row = measure(workload, batch, compare=options.compare)
            rows.append(row)
            print(_line(row), flush=True)
            if options.json:
                text = json.dumps(_document(rows), indent=1)
                options.json.write_text(text + "\n")
    bad = [r for r in rows if r.failure or r.error > MOST_ERROR_RATIO * r.unfused_error]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
