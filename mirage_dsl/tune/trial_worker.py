"""The process that runs candidates for `tune`; it talks over its standard streams."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirage_dsl.backends.base import Executable, backend_named
from mirage_dsl.backends.library import HELPERS
from mirage_dsl.core.processes import arriving, own_channel, send
from mirage_dsl.core.types import DType, Scalar, dtype_named, f16, f32
from mirage_dsl.ir.analysis.integers import Limit, index_limits
from mirage_dsl.ir.evaluate import evaluate
from mirage_dsl.ir.graph import KernelGraph, Return
from mirage_dsl.ir.infer import kernel_types
from mirage_dsl.ops.definition import Kind, Numbers, Operator
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tune.measure import (
    Final,
    InputSpec,
    Task,
    Timing,
    Trial,
)
from mirage_dsl.tune.timing import rotating, time_in_turns, time_sets

# -- The evaluator over float64 tensors ------------------------------------------------
# Products of thousands of rows take seconds on a CPU.  Operators are those of
# `library`, which tests hold to the table's semantics; nothing is rounded.

# Emitted expressions have no types, and torch's functions only in part.
# pyright: reportUnknownMemberType=false


@dataclass(frozen=True)
class TorchDomain:
    """Tensors of float64 on one device."""

    device: str

    def shape(self, value: Tensor) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(value.shape)

    def constant(self, number: Scalar, extents: Mapping[str, int]) -> Tensor:
        """The number at the given extents."""
        return self._full((), number.at(extents))

    def index(self, count: int) -> Tensor:
        """The positions along an axis."""
        return torch.arange(count, device=self.device)

    def elementwise(self, op: Operator, operands: Sequence[Tensor]) -> Tensor:
        """The row's expression; constants beside integers are of their format."""
        if op.chooses:
            operands = [operands[0] != 0, *operands[1:]]
        found = next((v.dtype for v in operands if is_whole(v)), None)
        if found is not None:
            operands = [
                v if v.dtype == found or (op.chooses and at == 0) else v.to(found)
                for at, v in enumerate(operands)
            ]
        value = _evaluated(op.name, tuple(operands))
        return value if is_whole(value) else value.double()

    def reduce(self, op: Operator, value: Tensor, axes: tuple[int, ...]) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, (value,), axes, dtype=value.dtype)

    def scan(self, op: Operator, value: Tensor, axis: int) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, (value,), (axis,), dtype=value.dtype)

    def contract(self, op: Operator, a: Tensor, b: Tensor) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, (a, b))

    def library(
        self,
        op: Operator,
        operands: Sequence[Tensor],
        numbers: Numbers,
        shape: tuple[int, ...],  # noqa: ARG002
    ) -> Tensor:
        """The row's expression."""
        return _evaluated(op.name, tuple(operands), numbers=tuple(numbers.items()))

    def running_max(self, value: Tensor, axis: int) -> Tensor:
        """Cumulative maximum, with the lowest finite number for -inf."""
        lowest = torch.finfo(torch.float64).min
        return torch.cummax(value, axis).values.clamp(min=lowest)

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """The value as it is; integers stay integers."""
        if dtype.is_integer:
            return value.to(getattr(torch, dtype.long_name))
        return value.double()

    def transpose(self, value: Tensor, order: tuple[int, ...]) -> Tensor:
        """Axes in another order."""
        return value.permute(order)

    def reshape(self, value: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Axes merged or split."""
        return value.reshape(shape)

    def take(self, value: Tensor, axis: int, start: int, stop: int) -> Tensor:
        """A range along an axis."""
        return value.narrow(axis, start, stop - start)

    def pad(self, value: Tensor, axis: int, count: int) -> Tensor:
        """NaN, so that a mask forgotten anywhere shows in the result."""
        shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
        fill = 107 if is_whole(value) else float("nan")
        return torch.cat([value, self._full(shape, fill).to(value.dtype)], axis)

    def mask(self, value: Tensor, keep: NDArray[np.bool_], fill: float) -> Tensor:
        """`fill` where `keep` is False."""
        kept = torch.from_numpy(keep).to(self.device)
        if is_whole(value):
            limits = torch.iinfo(value.dtype)
            number = int(min(max(fill, limits.min), limits.max))
            return torch.where(kept, value, torch.full_like(value, number))
        return torch.where(kept, value, self._full((), fill))

    def gather(self, op: Operator, value: Tensor, index: Tensor, axis: int) -> Tensor:
        """PyTorch's."""
        del op
        rank = max(value.ndim, index.ndim)
        index = index.reshape(index.shape + (1,) * (rank - index.ndim)).long()
        return torch.take_along_dim(value, index % value.shape[axis], axis)

    def concat(self, values: Sequence[Tensor], axis: int) -> Tensor:
        """Tensors one after the other."""
        return torch.cat(list(values), axis)

    def _full(self, shape: tuple[int, ...], number: float) -> Tensor:
        return torch.full(shape, number, dtype=torch.float64, device=self.device)


def evaluate_torch(graph: KernelGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a program or μGraph in float64, on the device of its inputs."""
    domain = TorchDomain(str(tensors[0].device) if tensors else "cpu")
    given = [t if is_whole(t) else t.double() for t in tensors]
    return evaluate(graph, given, domain)


def is_whole(tensor: Tensor) -> bool:
    """Whether it holds integers."""
    return not tensor.is_floating_point() and tensor.dtype is not torch.bool


def _evaluated(
    name: str,
    operands: tuple[Tensor, ...],
    axes: tuple[int, ...] = (),
    numbers: tuple[tuple[str, tuple[int, ...]], ...] = (),
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    names = {f"x{i}": x for i, x in enumerate(operands)}
    code = _code(name, len(operands), axes, numbers, str(dtype))
    return eval(code, {**_scope(), **names})


@cache
def _code(
    name: str,
    count: int,
    axes: tuple[int, ...],
    numbers: tuple[tuple[str, tuple[int, ...]], ...],
    dtype: str,
) -> CodeType:
    operands = [f"x{i}" for i in range(count)]
    fields = {"axes": axes, "axis": sum(axes[:1]), "dtype": dtype, **dict(numbers)}
    text = OPERATORS[name].torch.format(*operands, **fields)
    return compile(text, f"<{name}>", "eval")


@cache
def _scope() -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch}
    for helper in HELPERS.values():
        exec(helper, scope)
    return scope


# -- The process -----------------------------------------------------------------------

# torch's random and stream functions are partly untyped.
# pyright: reportUnknownMemberType=false


# The module runs as a program, so its own name is another.
_log = logging.getLogger("mirage_dsl.backends.trial_worker")

REPEATS = 3
"""Runs of each draw: a race does not show in every one."""
CHAIN = 10_000.0
"""µs that a chain of calls takes, about, where calls are not short."""
FAR_OFF = 2_000.0
"""A call that takes so many µs, and longer than what is of interest, is timed once."""
ROUGH_CALLS = 3
"""Calls that have to take so long."""
MOST_KEPT = 64
"""Candidates that are ready to run: of a network it takes a second to make one so."""
LONG = 1.0
"""Seconds of a trial that are worth a word."""
LOST = 70
"""Exit status of a process whose GPU is lost to it."""
EPSILONS = 8
SMALLEST_TOLERANCE = 2e-5
TF32_ERRORS, MOST_OF_TF32 = 2, 0.05
"""Times PyTorch's own error that a candidate may be off where libraries may round to
TF32, and the largest error that is taken for rounding."""
LEAST_POSITIVE = 2.0**-14
"""Among many numbers one is 0, of which there is no logarithm."""


def _as_drawn(values: torch.Tensor) -> torch.Tensor:
    return values


def _positive(values: torch.Tensor) -> torch.Tensor:
    """Sizes of numbers, none 0 but those of 8 bits, which PyTorch only stores."""
    found = values.abs()
    computes = found.is_floating_point() and found.itemsize > 1
    return found.clamp_min_(LEAST_POSITIVE) if computes else found


def _definite(values: torch.Tensor) -> torch.Tensor:
    """Symmetric matrices with large diagonals, of square ones, which have factors."""
    square = values.ndim > 1 and values.shape[-1] == values.shape[-2]
    if not square or not values.is_floating_point() or values.itemsize == 1:
        return values
    count = values.shape[-1]
    diagonal = torch.eye(count, dtype=values.dtype, device=values.device)
    return values.copy_((values + values.mT) / (2 * count) + 4 * diagonal)


FORMS = (
    *((_as_drawn, 1.0), (_positive, 1.0), (_as_drawn, 0.1), (_positive, 0.1)),
    *((_positive, 0.01), (_definite, 1.0)),
)
"""Ways to draw inputs: what is made of normal numbers, and by what they are scaled."""

Tensors = list[torch.Tensor]


class TrialWorker:
    """Holds the inputs and the right outputs of one program."""

    def __init__(self, task: Task, device: str = "cuda") -> None:
        self._task = task
        self._device = device
        self._backend = backend_named(task.backend)
        self.draws: list[Tensors] = []
        self.right: list[Tensors] = []
        for seed in range(task.draws):
            tensors, right = self._usable(seed)
            self.draws.append(tensors)
            self.right.append(right)
        self._sets: list[tuple[torch.Tensor, ...]] | None = None
        self._executables: dict[KernelGraph, Executable] = {}

    def _usable(self, seed: int) -> tuple[Tensors, Tensors]:
        """Inputs whose outputs are numbers that the outputs' types can hold.

        Normal numbers will do for most programs.  Some want positive ones, such as
        variances, some smaller ones, and some matrices that have a factor.

        Raises:
            RuntimeError: PyTorch's kernels take none of them.
        """
        found: tuple[Tensors, Tensors] | None = None
        refusal: RuntimeError | None = None
        for made, scale in FORMS:
            tensors = [made(t) for t in self._draw(seed, scale)]
            try:
                right = evaluate_torch(self._task.program, tensors)
            except RuntimeError as error:
                refusal = error
                continue
            found = tensors, right
            if all(map(self._holds, right, self._task.program.returns)):
                break
        if found is None:
            assert refusal is not None
            raise refusal
        return found

    @staticmethod
    def _holds(right: torch.Tensor, item: Return) -> bool:
        dtype = item.type.dtype
        # What is scaled to 8 bits reaches their largest number, at any scale.
        scaled = not dtype.is_float or dtype.only_stores
        most = math.inf if scaled else dtype.max
        return bool(right.isfinite().all()) and float(right.abs().max()) < most / 4

    def _draw(self, seed: int, scale: float) -> Tensors:
        generator = torch.Generator(self._device).manual_seed(seed)
        program = self._task.program
        limits = index_limits(program)
        pairs = zip(self._task.inputs, program.inputs, strict=True)
        return [
            self._tensor(s, scale, generator, limits.get(item.name))
            for s, item in pairs
        ]

    def _tensor(
        self,
        spec: InputSpec,
        scale: float,
        generator: torch.Generator,
        limit: Limit | None = None,
    ) -> torch.Tensor:
        dtype = getattr(torch, spec.dtype)
        tensor = torch.empty_strided(
            spec.shape, spec.strides, dtype=dtype, device=self._device
        )
        values = torch.randn(spec.shape, generator=generator, device=self._device)
        if limit is not None:
            inside = limit.from_front
            drawn = (values.abs() * 2**20).long() % len(inside)
            return tensor.copy_(drawn + inside.start)
        if is_whole(tensor):
            limits = torch.iinfo(dtype)
            wide = (values * min(limits.max / 4, 1024)).round()
            return tensor.copy_(wide.clamp(max(limits.min, -1024), limits.max))
        truth = dtype is torch.bool
        return tensor.copy_(values > 0 if truth else values * (spec.scale * scale))

    def warm_up(self) -> None:
        """All that takes its time once: the backend, its driver, libraries, captures.

        The program itself, which is run for that, needs no kernels but the library's.
        """
        with suppress(Exception):
            self._backend.load(self._device)
        self.judge(Trial(self._task.program, float("inf"), 1))

    def compiled(self, graph: KernelGraph) -> Executable:
        """What runs a candidate; the last ones are kept, for the fastest run again."""
        found = self._executables.pop(graph, None)
        if found is None:
            found = self._backend.compile(graph, "cuda")
        self._executables[graph] = found
        if len(self._executables) > MOST_KEPT:
            del self._executables[next(iter(self._executables))]
        return found

    def judge(self, trial: Trial) -> Timing:
        """Check and time one candidate."""
        begun = time.perf_counter()
        try:
            run = self.compiled(trial.graph)
            far_off = max(trial.limit, FAR_OFF)
            rough = self._rough(run, far_off)
            started = time.perf_counter()
            slow = rough > far_off
            error = self.error_of(run, 1 if slow else REPEATS)
            if not error <= self.tolerance():
                return Timing(
                    0, error=error, reason=f"wrong results: error {error:.1e}"
                )
            checked = time.perf_counter()
            microseconds, error = (
                (rough, error) if slow else self._time(run, trial, error)
            )
        except Exception as failure:
            if self._is_lost():
                os._exit(LOST)
            return Timing(0, reason=f"{type(failure).__name__}: {failure}"[:500])
        ended = time.perf_counter()
        if ended - begun > LONG:
            _log.info(
                "%s: %.1f s to start, %.1f s to check, %.1f s to time %.0f µs",
                trial.graph.name,
                started - begun,
                checked - started,
                ended - checked,
                microseconds,
            )
        return self._chained(microseconds, error)

    def _rough(self, run: Any, far_off: float) -> float:
        """µs of a call, with what the host takes for it.

        A host at work can stop a process for longer than that, so one call that took
        long says nothing.
        """
        device = torch.get_device_module(self._device)
        run(*self.draws[0])
        device.synchronize()
        least = float("inf")
        for _ in range(ROUGH_CALLS):
            start = time.perf_counter()
            run(*self.draws[0])
            device.synchronize()
            least = min(least, 1e6 * (time.perf_counter() - start))
            if least <= far_off:
                break
        return least

    def _time(self, run: Any, trial: Trial, error: float) -> tuple[float, float]:
        """µs in a chain, and the error if it is larger there, where calls overlap."""
        errors = [error]
        found = time_sets(
            run,
            self._copies(),
            replays=trial.replays,
            limit=trial.limit,
            chain=CHAIN,
            look=lambda outputs: errors.append(_largest(outputs, self.right[0])),
        )
        return found.median, max(errors)

    def _copies(self) -> list[tuple[torch.Tensor, ...]]:
        """Sets of inputs, all of them copies of the first draw."""
        if self._sets is None:
            self._sets = rotating(self.draws[0])
        return self._sets

    def finals(self, final: Final) -> list[Timing]:
        """Time candidates in turns; none of them if that fails."""
        errors = [0.0 for _ in final.graphs]

        def look(at: int, outputs: Tensors) -> None:
            errors[at] = max(errors[at], _largest(outputs, self.right[0]))

        try:
            found = time_in_turns(
                [(self.compiled(g), self._copies()) for g in final.graphs],
                seconds=final.seconds,
                look=look,
            )
        except Exception as failure:
            if self._is_lost():
                os._exit(LOST)
            _log.warning("no turns: %s: %s", type(failure).__name__, failure)
            return []
        return [
            self._chained(one.median, error)
            for one, error in zip(found, errors, strict=True)
        ]

    def _chained(self, microseconds: float, error: float) -> Timing:
        """What became of a candidate whose outputs in a chain have some error."""
        if error <= self.tolerance():
            return Timing(0, microseconds, error)
        return Timing(0, error=error, reason=f"wrong in a chain of calls: {error:.1e}")

    def _is_lost(self) -> bool:
        """Whether the GPU does nothing more for this process, as after a bad access."""
        try:
            torch.get_device_module(self._device).synchronize()
        except RuntimeError:
            return True
        return False

    def error_of(self, run: Any, repeats: int = REPEATS) -> float:
        """The largest error over all draws, relative to the largest element."""
        worst = 0.0
        for tensors, right in zip(self.draws, self.right, strict=True):
            for _ in range(repeats):
                worst = max(worst, _largest(run(*tensors), right))
        return worst

    def tolerance(self) -> float:
        """A few roundings of the coarsest format; 8 bits are rounded to only once.

        Libraries choose themselves which of their kernels round to TF32 where they may:
        one that computes the program may do so, and that of another layout not.  What
        follows may make more of it, as a hyperbolic tangent of long sums that are
        nearly 0: so PyTorch's own error counts there too.
        """
        formats = [r.type.dtype for r in self._task.program.returns]
        formats += [dtype_named(s.dtype) or f32 for s in self._task.inputs]
        if _rounds_to_tf32(self._task):
            # Which has as many bits.
            formats.append(f16)
        epsilons = [d.epsilon for d in formats if d.is_float and not d.only_stores]
        own = min(TF32_ERRORS * self._own_error, MOST_OF_TF32)
        return max(SMALLEST_TOLERANCE, EPSILONS * max(epsilons, default=0.0), own)

    @cached_property
    def _own_error(self) -> float:
        """That of PyTorch's kernels for the program, where these may round to TF32."""
        if not _rounds_to_tf32(self._task):
            return 0.0
        try:
            error = self.error_of(self.compiled(self._task.program), 1)
        except Exception as failure:
            # As where there is no room for it.
            _log.info("the program: %s: %s", type(failure).__name__, failure)
            return 0.0
        return error if math.isfinite(error) else 0.0


def _rounds_to_tf32(task: Task) -> bool:
    """Whether libraries may compute products of a program with operands in TF32."""
    types = kernel_types(task.program)
    for node in task.program.applies:
        convolves = node.op.on_matrix_units and task.tf32.convolutions
        multiplies = node.op.kind is Kind.CONTRACTION and task.tf32.products
        if (convolves or multiplies) and types[node.values[0]].dtype == f32:
            return True
    return False


def _largest(found: Tensors, right: Tensors) -> float:
    """The largest error of some outputs."""
    pairs = zip(found, right, strict=True)
    return max((relative_error(one, other) for one, other in pairs), default=0.0)


def relative_error(found: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference over the largest element; infinite for NaN.

    Of truth values, integers and floats of 8 bits it is the share that differs, since
    each may turn over.
    """
    if not found.is_floating_point() or found.itemsize == 1:
        return float((found.double() != right).double().mean())
    largest = float(right.abs().max()) or 1.0
    error = float((found.double() - right).abs().max()) / largest
    return error if error == error else float("inf")


def main() -> None:
    """Serve requests until the other side closes the pipe."""
    requests, answers = own_channel()
    judge: TrialWorker | None = None
    for request in arriving(requests):
        if request is None:
            # The inputs of a program that is done with.
            judge = None
            torch.cuda.empty_cache()
        elif isinstance(request, Task):
            torch.cuda.set_device(request.device)
            torch.backends.cudnn.allow_tf32 = request.tf32.convolutions
            torch.backends.cuda.matmul.allow_tf32 = request.tf32.products
            judge = TrialWorker(request)
            judge.warm_up()
            # One clock for all processes.
            send(answers, time.monotonic())
        elif isinstance(request, Final):
            assert judge is not None
            send(answers, judge.finals(request))
        else:
            assert judge is not None
            send(answers, judge.judge(request))


if __name__ == "__main__":
    main()
