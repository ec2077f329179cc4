"""The tables of `benchmarks.search`, as a page of documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]

_INTRODUCTION = """\
# What the search costs

Measured by `python -m benchmarks.search`, with the search's code compiled before, on a
machine of {cores} cores. The figures are in `benchmarks/results/search.json`, from
which this page is made. Each program is searched for one kernel at its published sizes.
Seconds are the least of a few runs.
"""

_SPACE = """\
## The spaces

|S| is the number of useful abstract expressions, nodes are values of the closure: both
of the largest loop choice. Different grids share a closure. Structures are the distinct
μGraphs without sizes that extraction kept, up to eight of each configuration.
"""

_TIME = """\
## Seconds

The steps of a search, on one thread and on two: structures (closure, extraction,
reconstruction), sizes (casts, tiles, schedules, running maxima), and verification with
stability of all returned candidates; then the whole. Threads share out loop choices, so
they serve the structural step alone. `processor` is the processor's time of a whole
search on one thread, which other work on the machine stretches less.
"""

_STRUCTURAL = """\
The structural step on one thread:
"""

_ABLATIONS = """\
## Without its ideas

Closures of all loop choices, in nodes: as they are, with all values taken as useful (no
pruning by abstract expressions), and with equal values kept apart (no observational
equivalence). `>` marks those that did not finish in {limit:g} s for each program or
filled the closure's arrays (32 768 nodes of a loop choice).
"""

_GROWTH = """\
## Growth with the number of operators

A norm and matrix products in a row, and gated updates and a norm.
"""

_PAPER = """\
## Beside the paper

The paper (arXiv 2405.05751, on its authors' machine) reports for RMSNorm, by the
largest number of operators in a block:

| operators | 5 | 6 | 7 | 8 | 9 | 10 | 11 |
|---|--:|--:|--:|--:|--:|--:|--:|
| seconds | 11 | 16 | 22 | 24 | 26 | 26 | 28 |
| without multithreading | 58 | 93 | 150 | 152 | 166 | 166 | 183 |
| without abstract expressions | 768 | 19934 | > 36000 | | | | |

The search here has no limit of operators. Its time on the same program is the row
`rmsnorm_linear` above. The spaces are not the same: here sizes are parameters that are
chosen afterwards, there they are part of what is enumerated; and kernels that need
several blocks in turn are not in the tables on this page.
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in lines) + "\n"


def _space(found: Record) -> str:
    head = ("program", "operators", "configurations", "loops", "\\|S\\|", "nodes")
    rows = [
        (
            name,
            *(r[c] for c in ("operators", "configurations", "loops", "useful")),
            *(r[c] for c in ("nodes", "structures", "candidates")),
            "yes" if r["complete"] else "no",
        )
        for name, r in found.items()
    ]
    return _table((*head, "structures", "returned", "complete"), rows)


def _seconds(found: Record) -> str:
    head = ("program", "structures", "sizes", "verification", "whole")
    rows = [
        (
            name,
            *(f"{one:.2f} / {two:.2f}" for one, two in zip(*_steps(r), strict=True)),
            f"{r['processor']:.2f}",
        )
        for name, r in found.items()
    ]
    return _table((*head, "processor"), rows)


def _steps(record: Record) -> list[list[float]]:
    """Seconds of each step and of the whole, for 1 and for 2 threads."""
    found: list[list[float]] = []
    for threads in ("threads_1", "threads_2"):
        parts = ("structural", "unverified", "search")
        structural, unverified, whole = (record[p][threads] for p in parts)
        sizes, verification = unverified - structural, whole - unverified
        found.append([structural, max(sizes, 0.0), max(verification, 0.0), whole])
    return found


def _structural(found: Record) -> str:
    steps = ("closure", "extract", "reconstruct")
    rows = [
        (name, *(f"{r['steps'].get(step, 0.0):.3f}" for step in steps))
        for name, r in found.items()
    ]
    return _table(("program", *steps), rows)


def _ablated(record: Record) -> str:
    mark = "" if record["finished"] else "> "
    return f"{mark}{record['nodes']} ({record['seconds']:.1f} s)"


def _ablations(found: Record) -> str:
    rows = [
        (
            name,
            r["all_nodes"],
            _ablated(r["without_pruning"]),
            _ablated(r["without_merging"]),
        )
        for name, r in found.items()
    ]
    return _table(("program", "as it is", "no pruning", "no equivalence"), rows)


def _growth(found: Record) -> str:
    grown = {n: r for n, r in found.items() if n.startswith(("chain_", "updates_"))}
    rows = [
        (
            name,
            *(r[c] for c in ("operators", "useful", "nodes", "pairs")),
            f"{r['processor']:.2f}",
            "yes" if r["complete"] else "no",
        )
        for name, r in grown.items()
    ]
    head = ("program", "operators", "\\|S\\|", "nodes", "pairs", "seconds", "complete")
    return _table(head, rows)


def render(measured: Record, plot: str | None = None) -> str:
    """The page of a measurement, with a picture if there is one."""
    found: Record = measured["programs"]
    order = [n for n in measured["paper"] if n in found]
    order += [n for n in found if n not in order]
    found = {n: found[n] for n in order}
    plain = {n: r for n, r in found.items() if not n.startswith(("chain_", "updates_"))}
    parts = [
        _INTRODUCTION.format(cores=measured["machine"]["cores"]),
        _SPACE + "\n" + _space(plain),
        _TIME + "\n" + _seconds(plain),
        _STRUCTURAL + "\n" + _structural(plain),
        _ABLATIONS.format(limit=measured["limit_seconds"]) + "\n" + _ablations(found),
    ]
    if len(plain) < len(found):
        parts.append(_GROWTH + "\n" + _growth(found))
    if plot is not None:
        parts.insert(1, f"![Seconds of a search]({plot})\n")
    return "\n".join([*parts, _PAPER])
