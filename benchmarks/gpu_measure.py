"""One workload at one size on a GPU: ours, its peers and its floor."""

from __future__ import annotations

import functools
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mirage_dsl as mirage
from benchmarks.floor import read_floor
from benchmarks.gpu_peers import Peer, peers, unfused
from benchmarks.gpu_rows import OURS, Choice, Floor, Row, Spread, System
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import Effort
from mirage_dsl.cost.estimate import estimate
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.store.superoptimize import superoptimize
from mirage_dsl.tune.timing import (
    Time,
    host_microseconds,
    rotating,
    time_call,
    time_in_turns,
)
from mirage_dsl.tune.tuner import LONG
from tests.programs.workloads import PAPER, Shape, Workload

DEVICE = "cuda"
DRAWS = 3
TURNS = 101
"""Of long calls: more than a tuner takes, for here the figures are the result."""
MATRIX = 8192
"""Side of the product whose rate is the arithmetic's."""
FAILURES = (mirage.MirageError, RuntimeError, AssertionError, ValueError, TypeError)


@dataclass(frozen=True)
class Case:
    """A workload at a batch, or with so many rows, in one storage format."""

    workload: Workload
    batch: int
    rows: int
    dtype: str

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of the inputs."""
        if self.rows:
            return self.workload.at_rows(self.rows)
        return self.workload.at_batch(self.batch)

    @property
    def row(self) -> Row:
        """A row without figures."""
        return Row(self.workload.name, self.batch, self.rows, self.dtype)

    def draw(self, seed: int) -> list[Tensor]:
        """Random inputs, so scaled that long sums stay in range."""
        generator = torch.Generator(device=DEVICE).manual_seed(seed)
        tensors: list[Tensor] = []
        for name, shape in self.shapes.items():
            values = torch.randn(shape, generator=generator, device=DEVICE)
            if name.startswith(("w", "a", "b")) and len(shape) > 1:
                values = values / shape[-2] ** 0.5
            values = values.abs() if name == "var" else values
            tensors.append(values.to(getattr(torch, self.dtype)))
        return tensors


def machine() -> dict[str, str]:
    """What the figures are true of."""
    driver = "unknown"
    with suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
        driver = next((w for w in words if w.count(".") == 2), driver)
    found = {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "triton": importlib.metadata.version("triton"),
    }
    for name in ("liger_kernel", "helion"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def warm_up() -> None:
    """Let the search's code be compiled, as it is once on every machine."""
    for workload in PAPER:
        small = replace(workload, full=workload.small, batched=None)
        shapes = [mirage.spec(s, small.dtype) for s in small.full.values()]
        superoptimize(_kernel(small).trace(*shapes), use_cache=False)


def measure(case: Case, names: Sequence[str], effort: Effort) -> Row:
    """All figures of one case; failures are recorded, not raised."""
    row = case.row
    tensors = case.draw(100)
    right: list[Peer] = []
    for peer in _all(case, names, row, tensors, effort):
        started = time.perf_counter()
        system = row.systems.setdefault(peer.name, System())
        try:
            peer.call(*peer.prepare(tensors))
            torch.get_device_module(DEVICE).synchronize()
            system.ready += time.perf_counter() - started
            if peer.whole:
                system.error = _error(case, peer)
            _time(system, peer, tensors)
            right.append(peer)
        except FAILURES as error:
            _fail(system, error)
    ours = row.systems[OURS].cold
    if ours is not None and ours.median > LONG:
        _time_in_turns(row, right, tensors)
    row.failure = row.failure or row.systems[OURS].failure
    return row


def _all(
    case: Case, names: Sequence[str], row: Row, tensors: list[Tensor], effort: Effort
) -> Iterator[Peer]:
    """Ours, then the peers; the floor on the way."""
    kernel = _kernel(case.workload)
    started = time.perf_counter()
    row.systems[OURS] = System()
    try:
        bound = kernel.bind(*tensors)
        row.choice = _choose(bound, effort)
    except FAILURES as error:
        _fail(row.systems[OURS], error)
    else:
        row.systems[OURS].ready = time.perf_counter() - started
        row.floor = _floor(bound.program, tensors, case.dtype)
        yield Peer(OURS, kernel)
    yield from peers(case.workload, names)


def _fail(system: System, error: Exception) -> None:
    system.failure = f"{type(error).__name__}: {str(error)[:600]}"


def _kernel(workload: Workload) -> mirage.Kernel:
    """The workload as a user would decorate it, with its own argument names."""
    names = ", ".join(workload.full)
    scope: dict[str, Any] = {"function": workload.function, "m": mirage}
    source = f"def {workload.name}({names}):\n    return function(m, {names})\n"
    exec(source, scope)
    return mirage.kernel(scope[workload.name])


def _choose(bound: mirage.BoundKernel, effort: Effort) -> Choice:
    started = time.perf_counter()
    result = bound.search(effort=effort)
    total = time.perf_counter() - started
    choice = Choice(
        found=len(result),
        nodes=len(result.best.mugraph.nodes),
        predicted=result.best.cost.microseconds,
        search=result.seconds,
        tuning=max(0.0, total - result.seconds),
        mugraph=str(result.best.mugraph),
    )
    for item in bound.tuning.measured if bound.tuning else ():
        choice.timed += item.timing.microseconds is not None
        reason = item.timing.reason[:60]
        if reason:
            choice.rejected[reason] = choice.rejected.get(reason, 0) + 1
    return choice


# -- Errors ----------------------------------------------------------------------------


def _error(case: Case, peer: Peer) -> float:
    """The worst of several draws, in the norm, relative to float64."""
    return max(_distance(case, peer, seed) for seed in range(DRAWS))


def _distance(case: Case, peer: Peer, seed: int) -> float:
    tensors = case.draw(seed)
    exact = unfused(case.workload)(*[t.double() for t in tensors])
    out = peer.out(tensors).double()
    if out.shape != exact.shape or not out.isfinite().all():
        return float("inf")
    return float((out - exact).norm() / exact.norm())


# -- Times -----------------------------------------------------------------------------


def _time(system: System, peer: Peer, tensors: Sequence[Tensor]) -> None:
    inputs = list(peer.prepare(tensors))
    system.cold = _spread(time_call(peer.call, inputs))
    system.hot = _spread(time_call(peer.call, inputs, cold=False))
    system.host = host_microseconds(peer.call, inputs)


def _time_in_turns(row: Row, right: Sequence[Peer], tensors: Sequence[Tensor]) -> None:
    """Cold times once more, so that each system sees the clocks that the others see."""
    calls = [(p.call, rotating(list(p.prepare(tensors)))) for p in right]
    for peer, found in zip(right, time_in_turns(calls, turns=TURNS), strict=True):
        row.systems[peer.name].cold = _spread(found)


def _spread(found: Time) -> Spread:
    return Spread(found.median, found.low, found.high)


def _floor(program: KernelGraph, tensors: Sequence[Tensor], dtype: str) -> Floor:
    kernels = estimate(program, H100).kernels
    flops = sum(k.tensor_flops for k in kernels)
    extents = program.extent_of
    outputs = sum(_size(r.type.names, extents) for r in program.returns)
    size = sum(t.numel() * t.element_size() for t in tensors)
    size += outputs * tensors[0].element_size()
    rate = _rate(dtype)
    return Floor(_spread(read_floor(size)), 1e6 * flops / rate, size, flops)


def _size(names: Sequence[str], extents: Any) -> int:
    count = 1
    for name in names:
        count *= extents[name] or 1
    return count


@functools.cache
def _rate(dtype: str) -> float:
    """FLOP/s of a large library product."""
    shape = (MATRIX, MATRIX)
    pair = [torch.randn(shape, device=DEVICE).to(getattr(torch, dtype)) for _ in "ab"]
    call: Callable[..., Tensor] = torch.matmul
    # The least time: later ones are those of a GPU that saves power.
    return 2 * MATRIX**3 / (1e-6 * time_call(call, pair, cold=False).low)
