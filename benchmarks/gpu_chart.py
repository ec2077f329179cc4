"""The bar chart and the page of stored results; needs no GPU.

    python -m benchmarks.gpu_chart results.json --svg chart.svg --png chart.png

Bars are speeds relative to PyTorch eager, one panel for each of the paper's workloads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_rows import OURS, Results, Row, load
from benchmarks.gpu_tables import page
from tests.programs.workloads import PAPER

SYSTEMS = {
    "eager": ("PyTorch eager", "#b9bec6"),
    "compile": ("torch.compile, max-autotune", "#7f8794"),
    "attention": ("best attention library", "#5b8dc9"),
    OURS: ("mirage_dsl", "#d9541e"),
}
"""Label and colour of each bar, in order."""
LIBRARIES = ("flash", "cudnn")
COLUMNS = 3
WIDTH = 0.2


def _time(row: Row, system: str) -> float | None:
    if system != "attention":
        return row.cold(system)
    times = [row.cold(name) for name in LIBRARIES if row.is_right(name)]
    return min((t for t in times if t is not None), default=None)


def bars(rows: Sequence[Row]) -> dict[str, list[tuple[str, dict[str, float]]]]:
    """For each workload its sizes, and for each of those the times of the systems."""
    found: dict[str, list[tuple[str, dict[str, float]]]] = {}
    for name, dtype in ((w.name, w.dtype) for w in PAPER):
        mine = [r for r in rows if (r.workload, r.dtype, r.rows) == (name, dtype, 0)]
        for row in sorted(mine, key=lambda r: r.batch):
            times = {s: _time(row, s) for s in SYSTEMS}
            known = {s: t for s, t in times.items() if t is not None}
            if "eager" in known:
                found.setdefault(name, []).append((f"b = {row.batch}", known))
    return found


def draw(results: Results) -> Any:
    """The figure.

    Raises:
        ValueError: None of the paper's workloads is in the results.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    # Texts stay texts, and equal results give equal files.
    mpl.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "mirage", "font.size": 9}
    )
    from matplotlib.figure import Figure

    groups = bars(results.rows)
    if not groups:
        raise ValueError("none of the paper's workloads is in the results")
    lines = -(-len(groups) // COLUMNS)
    figure = Figure(figsize=(9.6, 0.9 + 2.2 * lines), layout="constrained")
    panels = figure.subplots(lines, min(COLUMNS, len(groups)), squeeze=False).flat
    handles: dict[str, Any] = {}
    for panel, (name, sizes) in zip(panels, groups.items(), strict=False):
        handles.update(_panel(panel, name, sizes))
    for panel in list(panels)[len(groups) :]:
        panel.set_axis_off()
    shown = [s for s in SYSTEMS if s in handles]
    figure.legend(
        [handles[s] for s in shown],
        [SYSTEMS[s][0] for s in shown],
        loc="outside upper center",
        ncols=len(shown),
        frameon=False,
    )
    machine = results.machine
    figure.supxlabel(
        f"{machine['gpu']}, PyTorch {machine['torch']}, Triton {machine['triton']}; "
        "cold L2, inside CUDA graphs; above our bars: µs",
        fontsize=8,
    )
    figure.supylabel("speed relative to eager", fontsize=9)
    return figure


def _panel(
    panel: Any, name: str, sizes: Sequence[tuple[str, dict[str, float]]]
) -> dict[str, Any]:
    """One workload's bars; a handle of each system that it has."""
    handles: dict[str, Any] = {}
    present = [s for s in SYSTEMS if any(s in times for _, times in sizes)]
    for place, system in enumerate(present):
        shift = (place - (len(present) - 1) / 2) * WIDTH
        for at, (_, times) in enumerate(sizes):
            if system not in times:
                continue
            height = times["eager"] / times[system]
            handles[system] = panel.bar(
                at + shift, height, WIDTH, color=SYSTEMS[system][1]
            )
            if system == OURS:
                text = f"{times[system]:.1f}"
                panel.text(at + shift, height, text, ha="center", va="bottom", size=8)
    panel.set_title(name, fontsize=10)
    panel.set_xticks(range(len(sizes)), [label for label, _ in sizes])
    panel.margins(y=0.15)
    panel.spines[["top", "right"]].set_visible(False)
    return handles


def save(figure: Any, file: Path) -> None:
    """Write the figure; the ending tells the format."""
    file.parent.mkdir(parents=True, exist_ok=True)
    stamp = {"Date": None} if file.suffix == ".svg" else {"Software": None}
    figure.savefig(file, dpi=160, metadata=stamp, facecolor="white")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is asked for."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu_chart",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown with the tables")
    parser.add_argument("--chart", default="gpu-benchmark.svg", help="as the page says")
    options = parser.parse_args(arguments)
    try:
        results = load(options.results)
        figures = [f for f in (options.svg, options.png) if f is not None]
        figure = draw(results) if figures else None
    except ValueError as error:
        print(f"benchmarks.gpu_chart: {error}", file=sys.stderr)
        return 2
    for file in figures:
        save(figure, file)
    if options.page is not None:
        text = page(results, options.results.name, options.chart)
        options.page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
