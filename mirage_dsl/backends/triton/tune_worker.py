"""The process that judges candidates for `tune`; it talks over its standard streams."""

# torch's random and stream functions are partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch

from mirage_dsl.backends.triton.launch import Executable
from mirage_dsl.backends.triton.screen import compile_only, reject
from mirage_dsl.backends.triton.timing import microseconds, rotating
from mirage_dsl.backends.triton.tune import InputSpec, Task, Timing, receive, send
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.numpy_domain import evaluate_numpy
from mirage_dsl.types import dtype_named

REPEATS = 3
"""Runs of each draw: a race does not show in every one."""
EPSILONS = 8
SMALLEST_TOLERANCE = 2e-5

Tensors = list[torch.Tensor]


class Judge:
    """Holds the inputs and the right outputs of one program."""

    def __init__(self, task: Task, device: str = "cuda") -> None:
        self._task = task
        self._device = device
        self._draws = [self._draw(seed) for seed in range(task.draws)]
        self._right = [self._reference(tensors) for tensors in self._draws]
        self._sets: list[tuple[torch.Tensor, ...]] | None = None

    def _draw(self, seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return [self._tensor(s, generator) for s in self._task.inputs]

    def _tensor(self, spec: InputSpec, generator: torch.Generator) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        tensor = torch.empty_strided(
            spec.shape, spec.strides, dtype=dtype, device=self._device
        )
        values = torch.randn(spec.shape, generator=generator) * spec.scale
        return tensor.copy_(values)

    def _reference(self, tensors: Tensors) -> Tensors:
        arrays = [t.cpu().double().numpy() for t in tensors]
        found = evaluate_numpy(self._task.program, *arrays)
        return [torch.from_numpy(np.asarray(a)).to(self._device) for a in found]

    def judge(self, candidate: KernelGraph) -> Timing:
        """Screen, check, and time one candidate."""
        try:
            reasons = [reject(r) for r in compile_only(candidate, _target())]
            for reason in reasons:
                if reason is not None:
                    return Timing(0, reason=reason)
            run = Executable(candidate)
            error = self.error_of(run)
            if not error <= self.tolerance():
                return Timing(
                    0, error=error, reason=f"wrong results: error {error:.1e}"
                )
            if self._sets is None:
                self._sets = rotating(self._draws[0])
            return Timing(0, microseconds(run, self._sets), error)
        except Exception as failure:
            return Timing(0, reason=f"{type(failure).__name__}: {failure}"[:500])

    def error_of(self, run: Any) -> float:
        """The largest error over all draws, relative to the largest element."""
        worst = 0.0
        for tensors, right in zip(self._draws, self._right, strict=True):
            for _ in range(REPEATS):
                for one, other in zip(run(*tensors), right, strict=True):
                    worst = max(worst, relative_error(one, other))
        return worst

    def tolerance(self) -> float:
        """A few roundings of the coarsest output."""
        epsilons = [r.type.dtype.epsilon for r in self._task.program.returns]
        inputs = [dtype_named(s.dtype) for s in self._task.inputs]
        epsilons += [d.epsilon for d in inputs if d is not None]
        return max(SMALLEST_TOLERANCE, EPSILONS * max(epsilons))


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference over the largest element; infinite for NaN."""
    largest = float(right.abs().max()) or 1.0
    error = float((found.double() - right).abs().max()) / largest
    return error if error == error else float("inf")


def _target() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def main() -> None:
    """Serve requests until the other side closes the pipe."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever a library prints must not get between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    judge: Judge | None = None
    while True:
        try:
            request = receive(sys.stdin.buffer)
        except EOFError:
            return
        if isinstance(request, Task):
            judge = Judge(request)
            send(answers, None)
        elif isinstance(request, KernelGraph):
            assert judge is not None
            send(answers, judge.judge(request))


if __name__ == "__main__":
    main()
