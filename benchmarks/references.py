"""The operators of Helion's examples and of Liger, in plain PyTorch, as kernels.

    python -m benchmarks.references
    python -m benchmarks.references --only attention --seconds 60
    python -m benchmarks.references --trace

Each is an ordinary function (`helion_references.py`, `liger_references.py`), given to
`mirage.kernel` as it is.  Printed is for each whether it traces, what a search at the
sizes of its example finds with a user's budget, 20 s, beside eager's number of kernels,
and whether what is found at reduced sizes is right: it runs in Triton's interpreter,
beside eager in float64.  Neither Helion nor Liger is needed.

--trace  Nothing is searched: the program is run by library kernels.

Exit code 0: all trace and are right; 1: some are not; 2: none fits --only.
"""

# Functions of PyTorch's are handed through, of which checkers know little.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

import mirage_dsl as mirage
from benchmarks import helion_references, liger_references
from benchmarks.kernelbench_search import Checked, Searched, compared, searched
from benchmarks.reference_cases import Reference
from mirage_dsl.core.settings import INTERPRET, Effort

PROJECTS: Mapping[str, Sequence[Reference]] = {
    "helion": helion_references.REFERENCES,
    "liger": liger_references.REFERENCES,
}
UNIT = 2.0**-7
"""Of bf16, as a share of the largest number.

Triton's interpreter cuts bits off where a GPU rounds, and eager's error may be small by
luck, so that a result in bf16 may be off by this much.
"""
REASON_WIDTH = 150
"""Characters of a reason in the table."""


@dataclass(frozen=True)
class Row:
    """What became of an operator.

    Attributes:
        project: Whose operator it is.
        name: Of the operator.
        reason: Why it does not trace or run, in one line; empty where it does.
        operators: Of its program.
        search: What a search at its example's sizes found.
        check: Its result at reduced sizes beside eager's in float64.
        seconds: Of all of it.
    """

    project: str
    name: str
    reason: str = ""
    operators: int = 0
    search: Searched | None = None
    check: Checked | None = None
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether it runs, and its numbers are eager's."""
        return self.check is not None and self.check.right


# -- Eager in float64 ------------------------------------------------------------------

_WIDENING = frozenset({"float", "half", "bfloat16", "double", "type_as"})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})


class _InFloat64(TorchFunctionMode):
    """Casts to floats, but those of 8 bits, are casts to float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.__name__ in _WIDENING:
            return args[0].to(torch.float64)
        if func.__name__ == "_scaled_mm":
            x, other, by_row, by_column = map(_double, args[:4])
            return (x.double() @ other.double()) * by_row * by_column
        args, told = tree_map(_wide, (args, kwargs or {}))
        made = func(*args, **told)
        constructor = "device" in told and not any(map(torch.is_tensor, args))
        return _double(made) if constructor else made


def _wide(value: Any) -> Any:
    """A dtype of floats as float64; anything else as it is."""
    known = isinstance(value, torch.dtype) and value in _FLOATS
    return torch.float64 if known else value


def _double(value: Any) -> Any:
    """A float tensor in float64, but for one of 8 bits, which says what is rounded."""
    floats = isinstance(value, torch.Tensor) and value.dtype in _FLOATS
    return value.double() if floats else value


def exactly(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """What a function gives where all floats are float64, as tensors."""
    with _InFloat64():
        return tree_leaves(function(*map(_double, arguments)))


# -- Trying ----------------------------------------------------------------------------


def tried(
    project: str, reference: Reference, effort: Effort = "quick", budget: float = 20.0
) -> Row:
    """What becomes of one operator."""
    began = time.monotonic()
    row = Row(project, reference.name)
    try:
        row = replace(row, check=checked(reference, effort, budget))
        with torch.device("meta"):
            large = reference.arguments(small=False)
        function = _called(reference.function)
        program = mirage.kernel(function).trace(*map(_spec, large))
        row = replace(row, operators=len(program.nodes))
        if effort != "none":
            found = searched(program, function, large, effort)
            row = replace(row, search=found)
    except Exception as error:
        own = isinstance(error, mirage.MirageError)
        text = str(error.message) if own else f"{type(error).__name__}: {error}"
        reason = next(iter(text.strip().splitlines()), repr(error))
        row = replace(row, reason=reason)
    return replace(row, seconds=time.monotonic() - began)


def checked(reference: Reference, effort: Effort, budget: float) -> Checked:
    """What a kernel gives at reduced sizes, beside eager."""
    torch.manual_seed(0)
    arguments = reference.arguments(small=True)
    with torch.no_grad(), INTERPRET.scope(True):
        plain = tree_leaves(reference.function(*arguments))
        exact = exactly(reference.function, arguments)
        kernel = mirage.kernel(
            effort=effort, budget_seconds=budget, config={"use_cache": False}
        )
        found = kernel(_called(reference.function))(*arguments)
    check = compared(tree_leaves(found), plain, exact)
    cut = any(t.dtype == torch.bfloat16 for t in plain)
    return replace(check, right=check.right or (cut and check.error <= UNIT))


def _called(function: Callable[..., Any]) -> Any:
    """A function in Python, also where PyTorch's own is in C++."""
    return lambda *arguments: function(*arguments)


def _spec(value: Any) -> Any:
    """The spec of a tensor; anything else is a constant."""
    if not isinstance(value, torch.Tensor):
        return value
    return mirage.spec(tuple(value.shape), str(value.dtype).removeprefix("torch."))


# -- What is printed -------------------------------------------------------------------


def line_of(row: Row) -> str:
    """A row of the table."""
    said: list[str] = []
    if row.check is not None:
        error = f"{row.check.error:.1e}, eager {row.check.eager:.1e}"
        said.append(f"{'right' if row.check.right else 'WRONG'} ({error})")
    if row.operators:
        said.append(f"{row.operators} operators")
    if row.search is not None:
        cut = ", cut short" if row.search.cut_short else ""
        more = "MORE than " if row.search.launches > row.search.eager else ""
        said.append(
            f"{row.search.seconds:.1f} s{cut}, {row.search.launches} launches, "
            f"{more}eager's {row.search.eager}"
        )
    said += [row.reason[:REASON_WIDTH]] if row.reason else []
    return f"{row.project:<7} {row.name:<34} {'; '.join(said)}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Totals for each project."""
    for project in sorted({row.project for row in rows}):
        own = [row for row in rows if row.project == project]
        said = f"{project}: {sum(row.right for row in own)} of {len(own)} are right"
        found = [row.search for row in own if row.search is not None]
        if found:
            whole = sum(not s.cut_short for s in found)
            few = sum(s.launches <= s.eager for s in found)
            said += f"; of {len(found)} searched {whole} to the end, {few} with no "
            said += "more launches than eager"
        yield said


def main(arguments: Sequence[str] | None = None) -> int:
    """Try all operators, and print what became of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.references",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument(
        "--project", choices=tuple(PROJECTS), help="those of one of them (both)"
    )
    parser.add_argument("--trace", action="store_true", help="search none of them")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of a search for a check (20)"
    )
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    given = parser.parse_args(arguments)
    chosen = [
        (project, reference)
        for project, references in PROJECTS.items()
        for reference in references
        if given.project in (None, project) and given.only.lower() in reference.name
    ]
    if not chosen:
        print("no operator fits --only and --project")
        return 2
    rows: list[Row] = []
    for project, reference in chosen:
        effort = "none" if given.trace else "quick"
        rows.append(tried(project, reference, effort, given.seconds))
        print(line_of(rows[-1]), flush=True)
    print("\n".join(summary(rows)))
    if given.json is not None:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    return int(not all(row.right for row in rows))


if __name__ == "__main__":
    sys.exit(main())
