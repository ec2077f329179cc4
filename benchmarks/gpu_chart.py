"""The tables, the bar chart and the page of stored results; needs no GPU.

    python -m benchmarks.gpu_chart results.json --svg chart.svg --png chart.png

Bars are speeds relative to PyTorch eager, one panel for each of the paper's workloads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_rows import NOISE, OURS, SHORT, Results, Row, Spread, load, ordered
from tests.programs.workloads import PAPER, WORKLOADS

# -- Tables, for the terminal and for the page -----------------------------------------

HEAD = (
    "workload",
    "size",
    "type",
    "ours",
    "spread",
    "hot",
    "eager",
    "compile",
    "flash",
    "cuDNN",
    "Liger",
    "Helion",
    "cuBLAS",
    "floor",
    "of floor",
    "vs eager",
    "vs best",
    "host",
    "eager's",
    "error",
    "eager's",
    "seconds",
)
TEXT_COLUMNS = 3
DASH = "–"


def _figure(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _error(value: float | None) -> str:
    return DASH if value is None else f"{value:.1e}"


def _spread(found: Spread | None) -> str:
    if found is None:
        return DASH
    return f"{(found.high - found.low) / found.median:.0%}"


def _cold(row: Row, name: str) -> str:
    system = row.systems.get(name)
    if system is None:
        return DASH
    if system.cold is None:
        return "fails"
    wrong = name != "cublas" and not row.is_right(name)
    return _figure(system.cold.median) + (" (wrong)" if wrong else "")


def versus_best(row: Row) -> float | None:
    """The fastest peer's time over ours."""
    peer, ours = row.best_peer, row.cold(OURS)
    return peer[1] / ours if peer and ours else None


def cells(row: Row) -> list[str]:
    """A row as texts, in the order of `HEAD`."""
    ours, eager = row.systems.get(OURS), row.systems.get("eager")
    hot = ours.hot.median if ours and ours.hot else None
    size = f"M={row.rows}" if row.rows else f"b={row.batch}"
    floor = row.floor.microseconds if row.floor else None
    return [
        row.workload,
        size,
        SHORT.get(row.dtype, row.dtype),
        _cold(row, OURS),
        _spread(ours.cold if ours else None),
        _figure(hot),
        *(_cold(row, n) for n in ("eager", "compile", "flash", "cudnn")),
        *(_cold(row, n) for n in ("liger", "helion", "cublas")),
        _figure(floor),
        DASH if row.of_floor is None else f"{row.of_floor:.0%}",
        _figure(row.speedup, 2),
        _figure(versus_best(row), 2),
        _figure(ours.host if ours else None),
        _figure(eager.host if eager else None),
        _error(ours.error if ours else None),
        _error(eager.error if eager else None),
        _figure(row.choice.search + row.choice.tuning),
    ]


def line(row: Row) -> str:
    """A row as it is measured, in one line."""
    if row.failure:
        return f"{row.title}: FAILED {row.failure.splitlines()[0][:100]}"
    spread = row.systems[OURS].cold
    peer = row.best_peer
    parts = [
        f"{row.title}: {_cold(row, OURS)} µs",
        f"({_figure(spread.low)} to {_figure(spread.high)})" if spread else "",
        f"eager {_cold(row, 'eager')}",
        f"best {peer[0]} {peer[1]:.1f}" if peer else "",
        f"floor {_figure(row.floor.microseconds if row.floor else None)}",
        f"error {_error(row.systems[OURS].error)}",
        f"search {row.choice.search:.1f} s, tuning {row.choice.tuning:.1f} s",
        f"{row.choice.timed} timed",
        "" if row.right else "WRONG",
        "SLOWER" if row.slower else "",
    ]
    return "  ".join(p for p in parts if p)


def summary(rows: Sequence[Row]) -> str:
    """What the rows come to, in a few lines."""
    wrong = [r.title for r in rows if not r.right]
    slower = [r.title for r in rows if r.slower]
    behind = [r.title for r in rows if (versus_best(r) or 1.0) * NOISE < 1.0]
    return "\n".join(
        f"{what}: {', '.join(names) if names else 'none'}"
        for what, names in (
            ("wrong or failed", wrong),
            ("slower than the unfused program", slower),
            ("slower than the best peer", behind),
        )
    )


def terminal_table(results: Results) -> None:
    """Print the rows."""
    from rich.console import Console
    from rich.table import Table

    machine = ", ".join(f"{k} {v}" for k, v in results.machine.items())
    table = Table(title=f"µs, cold L2, inside CUDA graphs; {machine}")
    for at, name in enumerate(HEAD):
        table.add_column(name, justify="left" if at < TEXT_COLUMNS else "right")
    for row in results.rows:
        style = "red" if not row.right else "yellow" if row.slower else None
        table.add_row(*cells(row), style=style)
    console = Console()
    if not console.is_terminal:
        console = Console(width=240)
    console.print(table)


# -- The page --------------------------------------------------------------------------

_PAGE = """\
# GPU benchmark

{machine}. Made from `benchmarks/results/{file}` by `python -m benchmarks.gpu_chart`.

![Speed relative to PyTorch eager]({chart})

## How to run it

    python -m benchmarks.gpu --json results.json
    python -m benchmarks.gpu --rows 512 4096 --json results.json
    python -m benchmarks.gpu_chart results.json --svg chart.svg --png chart.png

Each case is stored when it is done, and the same command continues an interrupted
run. `--seconds` ends a run in time, `--workloads`, `--batches`, `--rows` and `--dtypes`
choose parts of it, and `--merge a.json b.json --json all.json` joins parts that ran on
one machine. `python -m benchmarks.gpu --help` has the rest. The chart wants the extra
`bench`: `pip install mirage_dsl[bench]`. Liger is measured where `liger-kernel` is
installed, and Helion where it is and `--peers` names it, for its tuning takes minutes;
`benchmarks/results/helion_h200.json` is a run beside it, with its quick effort.

## What is measured

Times are of one call in a chain of calls inside a CUDA graph, medians of repeated
replays, in µs. Each workload is a decorated function that goes down the public road,
tuned with `effort="{effort}"`. Rows may come from several runs, on GPUs of one kind;
each was measured in one run with its peers.

- **ours**: the tuned kernels with cold inputs: calls rotate over copies of the inputs
  that exceed the L2 cache several times. **spread**: the largest less the least of the
  replays, over the median. **hot**: the same call with one set of inputs.
- **eager**, **compile**: the same function on PyTorch tensors as it is written, and
  through `torch.compile` with max-autotune. **flash**, **cuDNN**:
  `scaled_dot_product_attention` with that backend, inputs copied beforehand into the
  layouts that it likes; in qknorm after a compiled norm. **Liger**: its norm or gate
  around PyTorch's products. **Helion**: one kernel, with its own tuning.
- **cuBLAS**: the bare products with the weights, without all else. It is no peer, since
  it computes less.
- **floor**: the larger of a kernel that reads as many bytes as the inputs and outputs
  have, and the products' operations at the rate of a large library product, both
  measured in the same run. **of floor**: the floor over our time.
- **vs eager**, **vs best**: eager's time, and that of the fastest peer with the right
  result, over ours. More than 1 is faster.
- **host**: host time of one call outside of CUDA graphs, ours and eager's, longer where
  the machine does other work too; `python -m benchmarks.host` measures it by itself.
- **error**: ‖out − ref‖ / ‖ref‖, ref computed in float64, the worst of {draws} draws of
  random inputs, ours and eager's. More than twice eager's error counts as wrong.
- **seconds**: of the search and the tuning.

Long calls of large products run at the clocks that the GPU's power allows, which change
while it is measured; theirs is most of the spread. Calls of more than 100 µs are
therefore timed once more, in short chains in turn with those of their peers: all meet
the same clocks, so their medians can be compared more closely than the spread tells.

{summary}

{tables}"""


def page(results: Results, file: str, chart: str, draws: int = 3) -> str:
    """The page of some results."""
    rows = ordered(results.rows, [w.name for w in WORKLOADS])
    groups = {
        "Decode sizes": [r for r in rows if not r.rows],
        "Many rows (prefill)": [r for r in rows if r.rows],
    }
    tables = [
        f"## {title}\n\n{_markdown([cells(r) for r in found], HEAD)}"
        for title, found in groups.items()
        if found
    ]
    pairs = _pairs(rows)
    if pairs:
        tables.append(f"## bf16 beside fp16\n\n{_markdown(pairs, PAIR_HEAD)}")
    return _PAGE.format(
        machine=_machine(results),
        file=file,
        chart=chart,
        effort=results.settings.get("effort", "quick"),
        draws=draws,
        summary="  \n".join(summary(rows).splitlines()),
        tables="\n".join(tables),
    )


def _machine(results: Results) -> str:
    known = results.machine
    return (
        f"{known['gpu']}, driver {known['driver']}, PyTorch {known['torch']}, "
        f"Triton {known['triton']}"
    )


PAIR_HEAD = ("workload", "size", "fp16", "bf16", "bf16 / fp16")


def _pairs(rows: Sequence[Row]) -> list[list[str]]:
    """Our times of what was measured in both formats."""
    known = {r.key: r for r in rows}
    found: list[list[str]] = []
    for row in rows:
        *same, dtype = row.key
        other = known.get((*same, "bfloat16"))
        one, two = row.cold(OURS), other.cold(OURS) if other else None
        if dtype == "float16" and one and two:
            figures = [_figure(one), _figure(two), _figure(two / one, 2)]
            found.append([*cells(row)[:2], *figures])
    return found


def _markdown(table: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    """A table without the columns that are empty."""
    kept = [i for i in range(len(head)) if any(r[i] != DASH for r in table)]
    text = [i for i in kept if head[i] in HEAD[:TEXT_COLUMNS]]
    lines = [
        [head[i] for i in kept],
        ["---" if i in text else "--:" for i in kept],
        *([r[i] for i in kept] for r in table),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


# -- The chart -------------------------------------------------------------------------

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
