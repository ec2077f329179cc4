"""KernelBench's problems on a GPU: plain calls of ours, of eager and of torch.compile.

Each problem has a process of its own, which is stopped when it takes too long.  There
it is traced and searched without data, with the budget that a first call has; tuned,
on the clock that began with the search; compared with eager; and calls are timed one
after the other, from before a call to the end of what it launched, host time included.

Several processes may be at work, of which one at a time is tuned or timed: then what
compiles has fewer cores to itself than a user's first call.
"""

# The problems are other people's modules, which no checker knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mirage_dsl as mirage
from benchmarks.kernelbench_jobs import Shared
from mirage_dsl.core.hardware import Hardware
from mirage_dsl.core.processes import SPARES, Helper
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import SearchResult
from mirage_dsl.tune.measure import WORKER, compiler

DEVICE = "cuda"
CALLS = 50
SECONDS = 0.5
"""As many calls of each are timed, or fewer that take so long together."""
WARM_UP = 3
OURS, EAGER, COMPILED = "ours", "eager", "torch.compile"
SLACK = 1.02
"""A call that takes at most so many times another's time is no slower."""
QUICK_SECONDS = 15.0
"""What a first call may take."""
ALLOWED_RATIO = 4.0
"""How many times as far from float64 as eager results may be."""
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
        tuned: Whether the GPU has chosen; otherwise the estimate has.
        searching: Seconds of trace and search.
        cut_short: Whether the budget ended the search.
        ready: Seconds of all that a first call does: trace, search, tuning if there was
            one, compilation; without those that other processes were waited for.
        compiling: The same of torch.compile's first call.
        error: The largest difference to eager, as a share of the largest number; where
            that is large, how much farther from float64 than eager's errors explain.
        kernels: Generated kernels of what was chosen.
        microseconds: The median of a call, for ours, eager and torch.compile.
        failures: Why there is no time of one of them.
        launches: What a call puts on the GPU, kernels and copies, as its profiler saw
            it, for each that was timed.
    """

    level: int
    problem: str
    gpu: str = ""
    reason: str = ""
    tuned: bool = True
    searching: float = 0.0
    cut_short: bool = False
    ready: float = 0.0
    compiling: float = 0.0
    error: float = 0.0
    kernels: int = 0
    microseconds: Mapping[str, float] = field(default_factory=dict[str, float])
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    launches: Mapping[str, int] = field(default_factory=dict[str, int])

    def ratio(self, other: str) -> float | None:
        """Our time over another's, if both are there."""
        if not {OURS, other} <= self.microseconds.keys():
            return None
        return self.microseconds[OURS] / self.microseconds[other]

    @property
    def is_slower(self) -> bool:
        """Whether a call of ours takes longer than one of another's."""
        ratios = [self.ratio(EAGER), self.ratio(COMPILED)]
        return any(ratio is not None and ratio > SLACK for ratio in ratios)

    @property
    def launches_more(self) -> bool | None:
        """Whether a call of ours launches more than eager; None if nobody counted."""
        if not {OURS, EAGER} <= self.launches.keys():
            return None
        return self.launches[OURS] > self.launches[EAGER]


@dataclass(frozen=True)
class Asked:
    """How to time a problem.

    Attributes:
        shared: The GPU.
        tuned: Whether the GPU chooses among the candidates, or the estimate.
        compile_seconds: What torch.compile may take to compile.
    """

    shared: Shared
    tuned: bool = True
    compile_seconds: float = 60.0


# -- One problem, in its process -------------------------------------------------------


def timed(level: int, file: Path, names: ModuleType, asked: Asked) -> Timed:
    """Time one problem on the GPU at hand."""
    # Here, for it loads what only a process with a GPU needs.
    from mirage_dsl.tune.devices import current_hardware

    gpu, shared = torch.cuda.get_device_name(), asked.shared
    hardware = current_hardware()
    with torch.no_grad():
        model, inputs = without_data(names)
        began = time.monotonic()
        helpers = _loading() if asked.tuned else {}
        try:
            program = mirage.kernel(model).bind(*inputs).program
            found = _searched(program, hardware)
        except Exception as problem:
            for helper in helpers.values():
                helper.stop()
            return Timed(level, file.stem, gpu, reason=_line(problem))
        searching = time.monotonic() - began
        ready = searching
        sizes = Sizes.of(model, inputs)
        del model, inputs
        _load_libraries()
        if asked.tuned:
            given = found, searching, hardware
            found, seconds = _tuned(*given, shared, sizes.tuning, helpers)
            ready += seconds
        times = _Times(shared)
        with shared.room(sizes.timing):
            times.measure(names, found.best.mugraph, asked.compile_seconds)
    reason = times.failures.pop(OURS, "")
    return Timed(
        level,
        file.stem,
        gpu,
        reason,
        asked.tuned,
        searching,
        found.cut_short,
        ready + times.seconds.get(OURS, 0.0),
        times.seconds.get(COMPILED, 0.0),
        times.error,
        times.kernels,
        times.medians,
        times.failures,
        times.launches,
    )


def without_data(names: ModuleType) -> tuple[torch.nn.Module, list[Any]]:
    """A problem's module and its inputs, for their types alone."""
    with torch.device("meta"):
        inputs = list(names.get_inputs())
    try:
        with torch.device("meta"):
            return names.Model(*names.get_init_inputs()).eval(), inputs
    except (NotImplementedError, RuntimeError):
        # It computes with its own values.
        return names.Model(*names.get_init_inputs()).eval(), inputs


def _load_libraries() -> None:
    """What PyTorch loads with the first convolution and the first product."""
    x = torch.zeros(1, 8, 8, 8, device=DEVICE)
    torch.nn.functional.conv2d(x, x)
    torch.mm(x[0, 0], x[0, 0])
    torch.cuda.synchronize()


def _searched(program: KernelGraph, hardware: Hardware) -> SearchResult:
    """What a first call finds, with the budget that a tuning leaves it."""
    from mirage_dsl.store.superoptimize import superoptimize
    from mirage_dsl.tune.tuner import search_seconds

    return superoptimize(
        program,
        effort="quick",
        budget_seconds=search_seconds("quick"),
        hardware=hardware,
        use_cache=False,
    )


Helpers = Mapping[tuple[str, ...], Helper]
"""Processes that help a tuning, by their commands."""


def _loading() -> Helpers:
    """Those of this tuning: they load during the search, as a user's do."""
    return {command: Helper(command) for command in (WORKER, compiler())}


def _tuned(
    found: SearchResult,
    searching: float,
    hardware: Hardware,
    shared: Shared,
    room: int,
    helpers: Helpers,
) -> tuple[SearchResult, float]:
    """What the GPU chooses, and the seconds of that.

    The tuning ends when it would if it followed the search.
    """
    from mirage_dsl.tune.tuner import Ahead, tuned

    with shared.long_turn(room):
        for command, helper in helpers.items():
            SPARES.keep(command, helper)
        began = time.monotonic()
        with Ahead(found.program) as ahead:
            ahead.began = began - searching
            chosen = tuned(
                found, effort="quick", hardware=hardware, use_cache=False, ahead=ahead
            )
        seconds = time.monotonic() - began
        # They hold data.
        SPARES.clear()
    return chosen.result, seconds


class _Times:
    """Measures what a problem's calls take, and says what could not be measured.

    Attributes:
        seconds: Of first calls, by whose they are.
        medians: µs of a call.
        failures: Why there is none.
        error: As in `Timed`.
        kernels: As in `Timed`.
        launches: As in `Timed`.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.seconds: dict[str, float] = {}
        self.medians: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self.launches: dict[str, int] = {}
        self.error = 0.0
        self.kernels = 0

    def measure(
        self, names: ModuleType, mugraph: KernelGraph, compile_seconds: float
    ) -> None:
        """Run and time eager, ours and torch.compile."""
        torch.manual_seed(0)
        with self._shared.turn(), torch.device(DEVICE):
            model = names.Model(*names.get_init_inputs()).eval().to(DEVICE)
            inputs = [_on_gpu(value) for value in names.get_inputs()]
            wanted = model(*inputs)
            torch.cuda.synchronize()
        calls: dict[str, Callable[[], Any]] = {EAGER: lambda: model(*inputs)}
        try:
            kernel = mirage.kernel(mugraph=mugraph)(model)
            # Verified there once more, which no first call does.
            self.kernels = len(kernel.bind(*inputs).mugraph.blocks)
            found = self._first(OURS, lambda: kernel(*inputs))
            with self._shared.turn():
                self.error = furthest(found, wanted)
                if self.error > TOLERANCE:
                    # Where float64 has no room, the difference to eager stays.
                    with contextlib.suppress(torch.OutOfMemoryError):
                        self.error = beyond(found, wanted, _in_double(model, inputs))
            calls[OURS] = lambda: kernel(*inputs)
            del found
        except Exception as problem:
            self.failures[OURS] = _line(problem)
        del wanted
        try:
            compiled = torch.compile(model)
            with within(compile_seconds), _benchmarks_in(self._shared):
                self._first(COMPILED, lambda: compiled(*inputs))
            calls[COMPILED] = lambda: compiled(*inputs)
        except (Exception, TooLong) as problem:
            self.failures[COMPILED] = _line(problem)
        with self._shared.turn():
            torch.cuda.empty_cache()
            self.medians = in_turns(calls)
            self.launches = {name: launched(call) for name, call in calls.items()}

    def _first(self, name: str, call: Callable[[], Any]) -> Any:
        """A first call; others that are waited for meanwhile do not count."""
        began, waited = time.monotonic(), self._shared.waited
        found = call()
        torch.cuda.synchronize()
        others = self._shared.waited - waited
        self.seconds[name] = time.monotonic() - began - others
        return found


# -- What it takes of the GPU's memory -------------------------------------------------

BESIDE = 3 << 30
"""Bytes of libraries' workspaces, and of what a process has on a GPU in any case."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a problem's tensors.

    Attributes:
        held: Of its inputs, parameters and buffers.
        outputs: Of its results.
        largest: Of the largest tensor that eager makes on the way.
    """

    held: int
    outputs: int
    largest: int

    @classmethod
    def of(cls, model: torch.nn.Module, inputs: Sequence[Any]) -> Sizes:
        """Those of a module and its inputs, of whose data nothing is asked."""
        given = [*model.parameters(), *model.buffers(), *tree_leaves(inputs)]
        held = _bytes(given)
        made = _Made()
        try:
            with made:
                outputs = _bytes(tree_leaves(model(*inputs)))
        except (NotImplementedError, RuntimeError):
            # It asks for data: as if there were no other on the GPU.
            return cls(held, held, 1 << 60)
        return cls(held, outputs, max(made.largest, outputs))

    @property
    def timing(self) -> int:
        """For data and results of eager's, ours and torch.compile's calls."""
        return self.held * 2 + self.outputs * 3 + self.largest * 4 + BESIDE

    @property
    def tuning(self) -> int:
        """For the draws of a tuning: three, with results in float64, and copies."""
        return self.held * 7 + self.outputs * 12 + self.largest * 8 + BESIDE


class _Made(TorchDispatchMode):
    """Notes the largest tensor that operators make."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.largest = max(self.largest, _bytes(tree_leaves(made)))
        return made


def _bytes(values: Sequence[Any]) -> int:
    return sum(
        value.numel() * value.element_size()
        for value in values
        if isinstance(value, torch.Tensor)
    )


# -- How calls are timed ---------------------------------------------------------------


class TooLong(BaseException):
    """Something took longer than it may; no handler of errors is to keep it."""


@contextlib.contextmanager
def within(seconds: float) -> Generator[None, None, None]:
    """Raise `TooLong` in this thread, the main one, after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLong(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _benchmarks_in(shared: Shared) -> Generator[None, None, None]:
    """While it lasts, torch.compile times its own choices when it is our turn."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    own: Any = CachingAutotuner
    before = own.benchmark_all_configs

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with shared.turn():
            return before(*args, **kwargs)

    own.benchmark_all_configs = in_turn
    try:
        yield
    finally:
        own.benchmark_all_configs = before


def _on_gpu(value: Any) -> Any:
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


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


def launched(call: Callable[[], Any]) -> int:
    """How many kernels and copies one call puts on the GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events: Any = seen.events()
    return sum(event.device_type.name == "CUDA" for event in events)


def furthest(found: Any, wanted: Any) -> float:
    """The largest difference, as a share of the largest number; inf for other NaNs."""
    pairs = zip(tree_leaves(found), tree_leaves(wanted), strict=True)
    return max((_apart(own, theirs) for own, theirs in pairs), default=0.0)


def beyond(found: Any, wanted: Any, exact: Any) -> float:
    """How much farther results are from exact ones than eager's errors account for.

    Sums that cancel, as the mean of what has just been centred, are noise in both.
    """
    return max(0.0, furthest(found, exact) - ALLOWED_RATIO * furthest(wanted, exact))


def _in_double(model: Any, inputs: Sequence[Any]) -> Any:
    """What a model gives in float64; it is as it was afterwards."""
    wide = [i.double() if _is_float(i) else i for i in inputs]
    try:
        return model.double()(*wide)
    finally:
        model.float()


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _apart(own: torch.Tensor, theirs: torch.Tensor) -> float:
    if not (own.is_floating_point() and theirs.is_floating_point()):
        own, theirs = own.double(), theirs.double()
    difference = float((own - theirs).abs_().max())
    if difference != difference:
        # What is infinite or no number in both is alike.
        alike = (own == theirs) | (own.isnan() & theirs.isnan())
        difference = float((own - theirs).abs_().masked_fill_(alike, 0.0).max())
    finite = theirs.abs().nan_to_num_(0.0, 0.0, 0.0)
    error = difference / (float(finite.max()) or 1.0)
    return error if error == error else float("inf")


def _line(error: BaseException) -> str:
    own = isinstance(error, mirage.MirageError)
    text = str(error.message) if own else f"{type(error).__name__}: {error}"
    return next(iter(text.strip().splitlines()), type(error).__name__)


# -- The processes ---------------------------------------------------------------------

ENVIRONMENT = {
    # PyTorch asks the driver's library whether there is a GPU: what was forked behind
    # any other way could not use it.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # torch.compile's own processes would be one for each core in each of ours.
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
LOADED = (
    "benchmarks.kernelbench",
    "mirage_dsl.backends.library",
    "mirage_dsl.backends.triton.running.launch",
    "mirage_dsl.search.driver",
    "mirage_dsl.store.superoptimize",
    "mirage_dsl.tune.devices",
    "mirage_dsl.tune.tuner",
    "mirage_dsl.verify.verifier",
    "torch._dynamo",
    "torch._inductor.compile_fx",
)
"""What is imported once, for all problems."""
RESERVED = 1 << 30
"""Bytes of the GPU's memory that each process may have before its data."""
SHARE = 0.9


class Processes:
    """Runs each problem in a process of its own, to be used in a `with` block.

    They are forked from one that has imported what they need and knows no GPU; where
    such cannot use the GPU, each imports it by itself.

    Args:
        jobs: How many there are at a time.
        tuned: Whether the GPU chooses.
        compile_seconds: What torch.compile may take.
    """

    def __init__(self, jobs: int, tuned: bool, compile_seconds: float) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="mirage_dsl-kernelbench-")
        self._folder = Path(self._scratch.name)
        self._jobs, self._tuned, self._seconds = jobs, tuned, compile_seconds

    def __enter__(self) -> Self:
        """Compile the search, where it is not yet, and look at the GPU's memory."""
        os.environ.update(ENVIRONMENT)
        root = str(Path(__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        for kind in ("forkserver", "spawn"):
            self._context: Any = multiprocessing.get_context(kind)
            if kind == "forkserver":
                self._context.set_forkserver_preload([*LOADED])
            said = self._folder / f"{kind}.json"
            process = self._context.Process(target=_first_process, args=(said,))
            process.start()
            process.join()
            if said.exists():
                total = json.loads(said.read_text())
                room = int(SHARE * total) - RESERVED * self._jobs
                shared = Shared(self._folder, room)
                self._asked = Asked(shared, self._tuned, self._seconds)
                return self
        raise RuntimeError("no process could use the GPU; its error is above")

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def one(self, level: int, file: Path, seconds: float) -> Timed | None:
        """What becomes of one problem; None if it is not done after so many seconds."""
        said = self._folder / f"{level}-{file.stem}.json"
        log = said.with_suffix(".txt")
        process = self._context.Process(
            target=_one_process, args=(level, file, self._asked, said, log)
        )
        process.start()
        process.join(seconds)
        if process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            return None
        if said.exists():
            return Timed(**json.loads(said.read_text(encoding="utf-8")))
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        last = text.strip().splitlines()[-1:] or ["its process ended without a word"]
        return Timed(level, file.stem, reason=last[0])


def _first_process(said: Path) -> None:
    """Write the bytes of the GPU, once what the search needs is compiled."""
    from mirage_dsl.store.superoptimize import code_version, prepare_search

    total = torch.cuda.mem_get_info()[1]
    prepare_search(code_version(), None)
    said.write_text(json.dumps(total))


def _one_process(level: int, file: Path, asked: Asked, said: Path, log: Path) -> None:
    """Time one problem, and write its row to a file."""
    # Its children end with it.
    os.setsid()
    with log.open("w", encoding="utf-8") as out:
        os.dup2(out.fileno(), sys.stdout.fileno())
        os.dup2(out.fileno(), sys.stderr.fileno())
    row = timed(level, file, module_of(file), asked)
    part = said.with_suffix(".part")
    part.write_text(json.dumps(asdict(row)), encoding="utf-8")
    part.replace(said)


def module_of(file: Path) -> ModuleType:
    """A problem's names."""
    module = ModuleType(file.stem)
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), vars(module))
    return module


# -- What is printed -------------------------------------------------------------------


def line_of(row: Timed) -> str:
    """A row of the table."""
    times = ", ".join(f"{name} {us:.1f}" for name, us in row.microseconds.items())
    said = row.reason or f"{row.kernels} kernels, error {row.error:.1e}"
    if row.error > TOLERANCE:
        said = f"WRONG, {said}"
    more = "".join(f"; {name}: {why}" for name, why in row.failures.items())
    how = "" if row.tuned else " untuned"
    return (
        f"{row.level}  {row.problem:<50.50} {row.ready:5.1f} s{how}  {times}  "
        f"{said}{more}"
    )


def summary(rows: Sequence[Timed]) -> str:
    """How often we are no slower and launch no more, and the rest."""
    lines: list[str] = []
    for level in sorted({row.level for row in rows}):
        own = [row for row in rows if row.level == level]
        lines.append(f"level {level}: {_count(own)}")
    lines.append(f"together: {_count(rows)}")
    for other in (EAGER, COMPILED):
        slower = [row for row in rows if (row.ratio(other) or 0.0) > SLACK]
        lines.append(f"slower than {SLACK} times {other}: {len(slower)}")
        slower.sort(key=lambda row: -(row.ratio(other) or 0.0))
        for row in slower:
            how = "" if row.tuned else ", untuned"
            lines.append(f"  {row.ratio(other):6.2f}  {row.problem}{how}")
    more = [row for row in rows if row.launches_more]
    lines.append(f"more launches than {EAGER}: {len(more)}")
    for row in more:
        counts = f"{row.launches[OURS]:4} for {row.launches[EAGER]}"
        lines.append(f"  {counts}  {row.problem}")
    return "\n".join(lines)


def _count(rows: Sequence[Timed]) -> str:
    done = [row for row in rows if OURS in row.microseconds]
    said = f"{len(done)} of {len(rows)} timed, {sum(r.tuned for r in done)} of them"
    said += " tuned"
    for other in (EAGER, COMPILED):
        ratios = [r for row in done if (r := row.ratio(other)) is not None]
        said += f"; no slower than {SLACK} times {other}: "
        said += f"{sum(r <= SLACK for r in ratios)} of {len(ratios)}"
    counted = [more for row in done if (more := row.launches_more) is not None]
    said += f"; no more launches than eager: {counted.count(False)} of {len(counted)}"
    late = sum(row.ready > QUICK_SECONDS for row in done)
    short = sum(row.cut_short for row in done)
    wrong = sum(row.error > TOLERANCE for row in done)
    said += f"; {late} ready after more than {QUICK_SECONDS:.0f} s, {short} searches "
    return said + f"cut short, {wrong} wrong"
