"""KernelBench: which of its problems get in, and where the others stop.

    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --trace
    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --trace --levels 1 --only softmax
    python -m benchmarks.kernelbench PATH_TO_CHECKOUT --trace --json traced.json

KernelBench (https://github.com/ScalingIntelligence/KernelBench) holds 250 PyTorch
modules in three levels: single operators, short chains of them, whole models.  It is
not part of this project: PATH_TO_CHECKOUT is a clone of it, whose files are executed.

Each problem is taken at its true sizes, in evaluation mode, with parameters and buffers
as arguments.  Nothing is computed and no data is made, so the memory that it would need
does not count.  Printed is a line for each problem, then totals and how often each
reason stands in the way.

Exit code 0: every problem was tried; 1: fewer traced than --least asks for; 2: there is
no KernelBench at that path, or no problem fits --levels and --only.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import mirage_dsl as mirage
from mirage_dsl.core.types import dtype_of

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
    """

    level: int
    problem: str
    reason: str
    operators: int
    seconds: float

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


def _module_of(file: Path) -> ModuleType:
    """A problem's names, executed where tensors have no data."""
    module = ModuleType(f"kernelbench_{_number(file)[0]}")
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), vars(module))
    return module


def _model_of(names: ModuleType) -> torch.nn.Module:
    """The problem's module; without data, unless it computes with its own values."""
    try:
        with torch.device("meta"):
            return names.Model(*names.get_init_inputs()).eval()
    except (NotImplementedError, RuntimeError):
        return names.Model(*names.get_init_inputs()).eval()


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


class TooLong(BaseException):
    """A problem took longer than it may; no handler of errors is to keep it."""


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    """Raise `TooLong` after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLong(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(level: int, file: Path, seconds: int) -> Row:
    """What becomes of one problem, which may take so many seconds."""
    began = time.monotonic()
    try:
        with warnings.catch_warnings(), _within(seconds):
            warnings.simplefilter("ignore")
            names = _module_of(file)
            model = _model_of(names)
            with torch.device("meta"):
                inputs = names.get_inputs()
            began = time.monotonic()
            program = trace(model, inputs)
    except mirage.MirageError as error:
        found = str(error.message), 0
    except (Exception, TooLong) as error:
        # Whatever another library raises is a reason as well.
        found = f"{type(error).__name__}: {error}", 0
    else:
        found = "", len(program.nodes)
    reason = found[0].strip().splitlines()[0] if found[0].strip() else ""
    return Row(level, file.stem, reason, found[1], time.monotonic() - began)


# -- What is printed -------------------------------------------------------------------


def line_of(row: Row) -> str:
    """A row of the table."""
    said = f"traced, {row.operators} operators" if row.traced else row.reason
    shown = said if len(said) <= REASON_WIDTH else f"{said[: REASON_WIDTH - 1]}…"
    return f"{row.level}  {row.problem:<58.58} {row.seconds:6.2f} s  {shown}"


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
    return f"{sum(row.traced for row in rows)} of {len(rows)} traced"


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
    parser.add_argument(
        "--trace",
        action="store_true",
        required=True,
        help="trace each problem, and do no more",
    )
    parser.add_argument(
        "--levels", type=int, nargs="+", choices=LEVELS, default=LEVELS, help="(all)"
    )
    parser.add_argument("--only", default="", help="problems with this in their names")
    parser.add_argument(
        "--least", type=int, default=0, help="exit code 1 if fewer trace (0)"
    )
    parser.add_argument(
        "--seconds", type=int, default=30, help="that one problem may take (30)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
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
    # What tracing imports takes seconds, which are no problem's.
    trace(torch.nn.Softmax(-1), [torch.zeros(2, 2)])
    rows: list[Row] = []
    for level, file in found:
        rows.append(tried(level, file, given.seconds))
        print(line_of(rows[-1]), flush=True)
    print(summary(rows))
    if given.json is not None:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return int(sum(row.traced for row in rows) < given.least)


if __name__ == "__main__":
    sys.exit(main())
