"""KernelBench: which of its problems get in, and what becomes of them.

    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --trace
    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --trace --levels 1 --only softmax
    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --search --check --json rows.json
    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --gpu --jobs 12 --json gpu.json

KernelBench (https://github.com/ScalingIntelligence/KernelBench) holds 250 PyTorch
modules in three levels: single operators, short chains of them, whole models.  It is
not part of this project: PATH_TO_CHECKOUT is a clone of it, whose files are executed.

Each problem is taken at its true sizes, in evaluation mode, with parameters and buffers
as arguments.  Printed is a line for each problem, then totals and how often each reason
stands in the way.

--trace, --search   Nothing is computed and no data is made, so the memory that a
        problem would need does not count.  A search has a user's budget, 20 s.
--check Searches each problem at reduced sizes as well, runs what it found in Triton's
        interpreter, and compares with eager in float64.
--gpu   Times plain calls of ours, eager and torch.compile, each problem in a process of
        its own, --jobs of which prepare theirs while one at a time is timed.  Needs a
        GPU.  The problems are mixed, so that those done after some time are a sample.
        With --untuned ours is the best by estimate; a run without it then tunes those
        that were slower first.

With --json what was done stays in the file, and the next run does the rest.

Exit code 0: every problem was tried; 1: fewer traced than --least asks for, or a result
is wrong; 2: there is no KernelBench at that path, no problem fits --levels and --only,
or there is no GPU for --gpu.
"""

# The problems are other people's modules, which no checker knows.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

import mirage_dsl as mirage
from benchmarks.kernelbench_gpu import (
    TOLERANCE,
    Processes,
    Timed,
    TooLong,
    module_of,
    without_data,
)
from benchmarks.kernelbench_gpu import line_of as gpu_line
from benchmarks.kernelbench_gpu import summary as gpu_summary
from benchmarks.kernelbench_jobs import Limits, each, mixed
from benchmarks.kernelbench_search import Checked, Searched, checked, searched
from mirage_dsl.core.types import dtype_of
from tests.pace import nominal_clock

LEVELS = (1, 2, 3)
REASON_WIDTH = 110
"""Characters of a reason in the table."""


@dataclass(frozen=True)
class Row:
    """What became of one problem.

    Attributes:
        level: 1 to 3.
        problem: Its file's name, which begins with its number.
        reason: Why it does not trace, in one line; empty where it does.
        operators: How many operators its program has; 0 where it has none.
        seconds: Of tracing alone.
        search: What a search at its true sizes found.
        check: What a search at reduced sizes found, compared with eager.
        failure: Why there is no search, in one line.
        checking: Why there is no check, in one line.
    """

    level: int
    problem: str
    reason: str
    operators: int
    seconds: float
    search: Searched | None = None
    check: Checked | None = None
    failure: str = ""
    checking: str = ""

    @property
    def traced(self) -> bool:
        """Whether there is a program."""
        return not self.reason


# -- Problems --------------------------------------------------------------------------


def problems(
    checkout: Path, levels: Sequence[int], only: str
) -> Iterator[tuple[int, Path]]:
    """Level and file of each problem, in the order of levels and numbers."""
    for level in levels:
        files = (checkout / f"level{level}").glob("*.py")
        for file in sorted(files, key=_number):
            if only.lower() in file.stem.lower():
                yield level, file


def folder_of(checkout: Path) -> Path | None:
    """Where the levels are: in the path itself, or in its folder of the same name."""
    for folder in (checkout, checkout / "KernelBench"):
        if (folder / "level1").is_dir():
            return folder
    return None


def _number(file: Path) -> tuple[int, str]:
    found = re.match(r"\d+", file.stem)
    return (int(found.group()) if found else 0), file.stem


# -- Tracing ---------------------------------------------------------------------------


def trace(model: torch.nn.Module, inputs: Sequence[Any]) -> Any:
    """The program of a module; its parameters and buffers are arguments.

    Those of a dtype that no kernel takes, as counters of batches, stay what they are:
    they stop the trace if they are used.
    """
    state = {name: t for name, t in _named(model) if dtype_of(t.dtype) is not None}

    def problem(state: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        with _standing_for(model, state):
            return model(*inputs)

    specs = {name: _spec(tensor) for name, tensor in state.items()}
    return mirage.kernel(problem).trace(specs, [_spec(value) for value in inputs])


def _spec(value: Any) -> Any:
    """The spec of a tensor; anything else is a constant."""
    if not isinstance(value, torch.Tensor):
        return value
    dtype = str(value.dtype).removeprefix("torch.")
    return mirage.spec(tuple(value.shape), dtype, value.stride())


@contextlib.contextmanager
def _standing_for(model: torch.nn.Module, state: Mapping[str, Any]) -> Iterator[None]:
    """The module with other tensors in the place of its own ones."""
    places = {id(tensor): place for place, tensor in _named(model)}
    before = [
        (own, name, tensor)
        for module in model.modules()
        for own in (module._parameters, module._buffers)
        for name, tensor in own.items()
        if places.get(id(tensor)) in state
    ]
    for own, name, tensor in before:
        own[name] = state[places[id(tensor)]]
    try:
        yield
    finally:
        for own, name, tensor in before:
            own[name] = tensor


def _named(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Each parameter and buffer once, by its first name."""
    yield from model.named_parameters()
    yield from model.named_buffers()


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raise `TooLong` after so many seconds of this process."""

    def stop(*_: object) -> None:
        raise TooLong(f"not done after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    # Other work on the machine does not count.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True)
class Wanted:
    """What to do with a problem that traces.

    Attributes:
        search: Search it at its true sizes.
        check: Search it at reduced sizes, and compare.
        seconds: That each step may take.
        nominal: Count them in processor time of the machine that limits of tests are
            stated for.
    """

    search: bool = False
    check: bool = False
    seconds: int = 30
    nominal: bool = False

    def done(self, row: Row) -> bool:
        """Whether a row has all of it."""
        searched = row.search is not None or row.failure or not self.search
        return not row.traced or bool(
            searched and (row.check is not None or row.checking or not self.check)
        )


def tried(level: int, file: Path, wanted: Wanted, known: Row | None = None) -> Row:
    """What becomes of one problem; what is known of it is not done again."""
    began = time.monotonic()
    try:
        with warnings.catch_warnings(), _within(wanted.seconds):
            warnings.simplefilter("ignore")
            model, inputs = without_data(module_of(file))
            began = time.monotonic()
            program = trace(model, inputs)
    except (Exception, TooLong) as error:
        # Whatever another library raises is a reason as well.
        reason = _reason(error)
        return Row(level, file.stem, reason, 0, time.monotonic() - began)
    seconds = time.monotonic() - began
    row = known or Row(level, file.stem, "", len(program.nodes), seconds)
    if wanted.search and row.search is None:
        try:
            with _within(wanted.seconds):
                found = searched(program, model.to("meta"), inputs)
                row = replace(row, search=found)
        except (Exception, TooLong) as error:
            row = replace(row, failure=_reason(error))
    if wanted.check and row.check is None:
        try:
            with _within(wanted.seconds):
                row = replace(row, check=checked(file))
        except (Exception, TooLong) as error:
            row = replace(row, checking=_reason(error))
    return row


def _reason(error: BaseException) -> str:
    """An error in one line; those of others with their class."""
    own = isinstance(error, mirage.MirageError)
    text = str(error.message) if own else f"{type(error).__name__}: {error}"
    return next(iter(text.strip().splitlines()), type(error).__name__)


# -- What is printed -------------------------------------------------------------------


def line_of(row: Row) -> str:
    """A row of the table."""
    said = f"traced, {row.operators} operators" if row.traced else row.reason
    if row.search is not None:
        said = _of_search(row.search)
    if row.check is not None and row.check.reason:
        said += f"; not checked: {row.check.reason}"
    elif row.check is not None:
        error = f"{row.check.error:.1e}, eager {row.check.eager:.1e}"
        said += f"; {'right' if row.check.right else 'WRONG'} ({error})"
    for stopped in (row.failure, row.checking):
        said += f"; {stopped}" if stopped else ""
    shown = said if len(said) <= REASON_WIDTH else f"{said[: REASON_WIDTH - 1]}…"
    return f"{row.level}  {row.problem:<58.58} {row.seconds:6.2f} s  {shown}"


def _of_search(search: Searched) -> str:
    """A search in a few words."""
    more = "MORE than " if search.launches > search.eager else ""
    cut = ", cut short" if search.cut_short else ""
    return (
        f"{search.seconds:.1f} s{cut}, {search.launches} launches, {more}eager's "
        f"{search.eager}, {search.microseconds:.0f} of {search.library:.0f} us"
    )


def summary(rows: Sequence[Row]) -> str:
    """Totals for each level, and reasons by how many problems they stop."""
    lines: list[str] = []
    for level in sorted({row.level for row in rows}):
        own = [row for row in rows if row.level == level]
        lines.append(f"level {level}: {_count(own)}")
    lines.append(f"together: {_count(rows)}")
    reasons = Counter(_kind(row.reason) for row in rows if not row.traced)
    lines.extend(f"{number:4}  {kind}" for kind, number in reasons.most_common())
    return "\n".join(lines)


def _count(rows: Sequence[Row]) -> str:
    said = f"{sum(row.traced for row in rows)} of {len(rows)} traced"
    found = [row.search for row in rows if row.search is not None]
    failed = sum(bool(row.failure) for row in rows)
    if found or failed:
        short = sum(not s.cut_short for s in found)
        few = sum(s.launches <= s.eager for s in found)
        said += f"; {len(found)} searched, {failed} not; {short} of them to the end, "
        said += f"{few} with no more launches than eager"
    checks = [row.check for row in rows if row.check and not row.check.reason]
    if checks:
        said += f"; {sum(c.right for c in checks)} of {len(checks)} checked are right"
    return said


def _kind(reason: str) -> str:
    """A reason without its numbers, so that alike ones count as one."""
    return re.sub(r"\d+(, \d+)*", "N", reason)[:REASON_WIDTH]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernelbench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkout", type=Path, help="a clone of KernelBench")
    parser.add_argument("--trace", action="store_true", help="trace each problem")
    parser.add_argument(
        "--search", action="store_true", help="and search it at its true sizes"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="and run what is found at reduced sizes, beside eager in float64",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="time calls on the GPU at hand"
    )
    parser.add_argument(
        "--whole",
        type=float,
        default=float("inf"),
        help="with --gpu, seconds for all problems together (no limit)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="with --gpu, processes at a time (1)"
    )
    parser.add_argument(
        "--untuned",
        action="store_true",
        help="with --gpu, time the best by estimate, without a tuning",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="with --gpu, of the order (0)"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count budgets in this process's processor time, as on the machine that "
        "limits of tests are stated for: other work on this one lengthens nothing",
    )
    parser.add_argument(
        "--levels", type=int, nargs="+", choices=LEVELS, default=LEVELS, help="(all)"
    )
    parser.add_argument("--only", default="", help="problems with this in their names")
    parser.add_argument(
        "--least", type=int, default=0, help="exit code 1 if fewer trace (0)"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=90,
        help="that one step of a problem may take (90)",
    )
    parser.add_argument(
        "--json", type=Path, help="keep the rows in this file, and go on from it"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all problems, and print what became of them."""
    given = _parser().parse_args(arguments)
    folder = folder_of(given.checkout)
    if folder is None:
        print(f"{given.checkout} holds no level1: clone KernelBench and pass its path")
        return 2
    found = list(problems(folder, given.levels, given.only))
    if not found:
        print(f"no problem of {folder} fits --levels and --only")
        return 2
    if given.gpu:
        limits = Limits(given.seconds, given.whole, given.jobs)
        found = mixed(found, given.seed)
        return _on_gpu(found, limits, not given.untuned, given.json)
    wanted = Wanted(given.search, given.check, given.seconds, given.processor_time)
    rows = _all(found, wanted, given.json)
    print(summary(rows))
    wrong = any(r.check and not (r.check.right or r.check.reason) for r in rows)
    return int(wrong or sum(row.traced for row in rows) < given.least)


def _all(
    found: Sequence[tuple[int, Path]], wanted: Wanted, kept: Path | None
) -> list[Row]:
    """A row for each problem, those of the file first."""
    # What tracing imports takes seconds, which are no problem's.
    trace(torch.nn.Softmax(-1), [torch.zeros(2, 2)])
    rows = {(r.level, r.problem): r for r in read_rows(kept)}
    for level, file in found:
        at = level, file.stem
        if at not in rows or not wanted.done(rows[at]):
            if wanted.nominal:
                time.monotonic = nominal_clock()
            rows[at] = tried(level, file, wanted, rows.get(at))
            print(line_of(rows[at]), flush=True)
            write_rows(list(rows.values()), kept)
    return [rows[level, file.stem] for level, file in found]


def _on_gpu(
    found: Sequence[tuple[int, Path]], limits: Limits, tuned: bool, kept: Path | None
) -> int:
    """Time all problems that are not in the file as they are asked for."""
    if not torch.cuda.is_available():
        print("--gpu needs a GPU, and PyTorch sees none")
        return 2
    began = time.monotonic()
    rows: dict[tuple[int, str], Timed] = {}
    if kept is not None and kept.exists():
        known = [Timed(**r) for r in json.loads(kept.read_text(encoding="utf-8"))]
        rows = {(row.level, row.problem): row for row in known}
    left = left_of(found, rows, tuned)
    with Processes(limits.jobs, tuned, limits.problem / 2) as processes:
        print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
        whole = limits.whole - (time.monotonic() - began)
        for level, file, row in each(left, replace(limits, whole=whole), processes.one):
            late = f"not done after {limits.problem:.0f} s"
            row = row or Timed(level, file.stem, reason=late, tuned=tuned)
            rows[level, file.stem] = row
            print(f"{time.monotonic() - began:4.0f}  {gpu_line(row)}", flush=True)
            if kept is not None:
                text = json.dumps([asdict(r) for r in rows.values()], indent=1)
                kept.write_text(text + "\n", encoding="utf-8")
    missing = left_of(found, rows, tuned)
    print(f"left to another run: {len(missing)}")
    for level, file in missing:
        print(f"  {level}  {file.stem}")
    print(gpu_summary(list(rows.values())))
    return int(any(row.error > TOLERANCE for row in rows.values()))


def left_of(
    found: Sequence[tuple[int, Path]],
    rows: Mapping[tuple[int, str], Timed],
    tuned: bool,
) -> list[tuple[int, Path]]:
    """What is to be timed: first what is slower untuned, then what is not there yet."""
    slower = [
        (level, file)
        for level, file in found
        if tuned
        and (row := rows.get((level, file.stem))) is not None
        and not row.tuned
        and row.is_slower
    ]
    return slower + [(lv, file) for lv, file in found if (lv, file.stem) not in rows]


def read_rows(kept: Path | None) -> list[Row]:
    """The rows of a file; none if there is no file yet."""
    if kept is None or not kept.exists():
        return []
    rows: list[Row] = []
    for record in json.loads(kept.read_text(encoding="utf-8")):
        if record["search"] is not None:
            record["search"] = Searched(**record["search"])
        if record["check"] is not None:
            record["check"] = Checked(**record["check"])
        rows.append(Row(**record))
    return rows


def write_rows(rows: Sequence[Row], kept: Path | None) -> None:
    """Write them to a file, if there is to be one."""
    if kept is not None:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        kept.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
