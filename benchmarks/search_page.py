"""The page of `benchmarks.search`: tables of what was measured, and the picture."""

from __future__ import annotations

import math
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
μGraphs without sizes that extraction kept, the best few of each configuration.
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


# -- The picture: seconds of whole searches, and their growth --------------------------

Points = Sequence[tuple[float, float]]

WIDTH, PLOT_LEFT, PLOT_RIGHT = 760, 170, 730
ROW, BAR = 30, 11
GROWTH_HEIGHT = 260
LOW, HIGH = 0.01, 1000.0
"""Seconds at the ends of the logarithmic axes."""

COLOURS = {"structures": "#4878a8", "sizes": "#7fb069", "verification": "#d9a441"}
PAPER_COLOUR = "#b04a4a"

PAPER_SECONDS = ((5, 11), (6, 16), (7, 22), (8, 24), (9, 26), (10, 26), (11, 28))
PAPER_ONE_THREAD = (
    (5, 58),
    (6, 93),
    (7, 150),
    (8, 152),
    (9, 166),
    (10, 166),
    (11, 183),
)
"""The paper's search of RMSNorm and Linear, by operators of a block."""


def draw(measured: Record) -> str:
    """The picture as SVG."""
    found: Record = measured["programs"]
    names = [n for n in measured["paper"] if n in found]
    top = 60
    bars = [_bars(found[n], n, top + ROW * i) for i, n in enumerate(names)]
    bottom = top + ROW * len(names)
    chains = {n: r for n, r in found.items() if n.startswith("chain_")}
    height = bottom + 70 + (GROWTH_HEIGHT + 60 if chains else 0)
    parts = [
        _text(PLOT_LEFT, 22, "Seconds of a complete search, one thread", size=15),
        *_legend(PLOT_LEFT, 40),
        *_seconds_axis(top - 8, bottom),
        *(line for row in bars for line in row),
    ]
    if chains:
        parts += _growth_drawn(chains, bottom + 60)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif">'
    )
    back = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def _bars(record: Record, name: str, y: float) -> list[str]:
    """One program: its steps in a row, so that the end is the whole."""
    found = [_text(PLOT_LEFT - 8, y + 14, name, anchor="end")]
    ends = [record[p]["threads_1"] for p in ("structural", "unverified", "search")]
    left = _across(LOW)
    for end, colour in zip(ends, COLOURS.values(), strict=True):
        right = max(_across(end), left)
        found.append(_box(left, y + 5, right - left, BAR, colour))
        left = right
    found.append(_text(left + 5, y + 14, f"{ends[-1]:.2f}", size=11))
    return found


def _across(seconds: float) -> float:
    share = math.log(max(seconds, LOW) / LOW) / math.log(HIGH / LOW)
    return PLOT_LEFT + share * (PLOT_RIGHT - PLOT_LEFT)


def _seconds_axis(top: float, bottom: float) -> Iterable[str]:
    for exponent in range(-2, 4):
        x = _across(10.0**exponent)
        yield _line(x, top, x, bottom)
        yield _text(x, bottom + 16, f"{10.0**exponent:g}", anchor="middle", size=11)


def _legend(x: float, y: float) -> Iterable[str]:
    for name, colour in COLOURS.items():
        yield _box(x, y - 9, 10, 10, colour)
        yield _text(x + 15, y, name, size=12)
        x += 110


def _growth_drawn(chains: Record, top: float) -> list[str]:
    """Seconds by operators: here, and of the paper."""
    own = sorted((r["operators"], r["search"]["threads_1"]) for r in chains.values())
    lines = {
        "a norm and products in a row, one thread": (own, COLOURS["structures"]),
        "paper, RMSNorm and a product": (PAPER_SECONDS, PAPER_COLOUR),
        "the same on one thread": (PAPER_ONE_THREAD, "#d08a8a"),
    }
    last = max(x for points, _ in lines.values() for x, _ in points)
    found = [_text(PLOT_LEFT, top, "Seconds by number of operators", size=15)]
    low, high = top + 20, top + 20 + GROWTH_HEIGHT

    def at(point: tuple[float, float]) -> tuple[float, float]:
        share = math.log(max(point[1], LOW) / LOW) / math.log(HIGH / LOW)
        x = PLOT_LEFT + (point[0] - 4) / (last - 4) * (PLOT_RIGHT - PLOT_LEFT)
        return x, high - share * (high - low)

    for exponent in range(-2, 4):
        _, y = at((4, 10.0**exponent))
        found.append(_line(PLOT_LEFT, y, PLOT_RIGHT, y))
        found.append(_text(PLOT_LEFT - 8, y + 4, f"{10.0**exponent:g}", "end", 11))
    for operators in range(5, last + 1):
        x, _ = at((operators, LOW))
        found.append(_text(x, high + 16, str(operators), "middle", 11))
    for number, (name, (points, colour)) in enumerate(lines.items()):
        found += _curve([at(p) for p in points], colour)
        y = low + 14 + 16 * number
        found.append(_box(PLOT_RIGHT - 262, y - 9, 10, 10, colour))
        found.append(_text(PLOT_RIGHT - 246, y, name, size=12))
    return found


def _curve(points: Points, colour: str) -> Iterable[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 13) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {place} fill="#222222">{text}</text>'


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{colour}"/>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="#dddddd"/>'
