"""The picture of `benchmarks.search`: seconds of whole searches, and their growth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
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
        parts += _growth(chains, bottom + 60)
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


def _growth(chains: Record, top: float) -> list[str]:
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
