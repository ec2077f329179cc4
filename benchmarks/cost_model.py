"""The cost model held to measurements: how well it ranks kernels that a GPU has timed.

    python -m benchmarks.cost_model sample FILE [--count 24] [--hardware H200]
    python -m benchmarks.cost_model measure FILE OUT
    python -m benchmarks.cost_model report FILE ... [--docs FILE]

`sample` needs no GPU: it searches every workload and keeps good and bad candidates.
`measure` times them in one go, each held to float64, what the tuner would refuse to
time included.  `report` needs no GPU either: it ranks by today's model, so that the
effect of a change to it is known at once.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cost_samples import Cell, cells, sample
from benchmarks.h100_figures import Figure, figures
from mirage_dsl.core.hardware import H100, hardware_named
from mirage_dsl.cost.estimate import Cost, estimate

COUNT = 24
REPLAYS = 5
AT_ONCE = 3
"""Programs whose candidates are compiled at a time; one runs at a time."""
FEWEST = 5
"""Fewer candidates are not ranked."""
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
ROUGH = 8.0
"""Beyond this multiple of the best time a rough figure will do."""


def read(path: Path) -> dict[str, Any]:
    """A document with its cells as objects."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {**document, "cells": [Cell.from_json(c) for c in document["cells"]]}


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a document, one line a sample."""
    plain = {**document, "cells": [c.to_json() for c in document["cells"]]}
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    for key in ("name", "structure"):
        text = text.replace(f'{{"{key}"', f'\n{{"{key}"')
    path.write_text(text + "\n", encoding="utf-8")


def take_samples(path: Path, count: int, hardware: str, names: Sequence[str]) -> None:
    """Sample all programs, or those named, and write them."""
    row = hardware_named(hardware)
    found: list[Cell] = []
    for cell in cells():
        if names and cell.name not in names:
            continue
        start = time.perf_counter()
        sample(cell, count, row)
        seconds = time.perf_counter() - start
        print(f"{cell.name} {cell.batch}: {len(cell.samples)} in {seconds:.1f} s")
        found.append(cell)
        write(path, {"hardware": row.name, "cells": found})


def measure(path: Path, out: Path, seconds: float) -> None:
    """Time all samples of a file on the current GPU."""
    import importlib.metadata

    import torch

    document = read(path)
    document["device"] = torch.cuda.get_device_name()
    document["torch"] = importlib.metadata.version("torch")
    document["triton"] = importlib.metadata.version("triton")
    turn = threading.Lock()
    deadline = time.monotonic() + seconds
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [
            pool.submit(_measure_cell, cell, turn, deadline)
            for cell in document["cells"]
        ]
        for cell, future in zip(document["cells"], waiting, strict=True):
            future.result()
            known = sum(s.measured is not None for s in cell.samples)
            print(f"{cell.name} {cell.batch}: {known}/{len(cell.samples)}", flush=True)
            write(out, document)


def _measure_cell(cell: Cell, turn: threading.Lock, deadline: float) -> None:
    import torch

    from mirage_dsl.ir.text.parser import parse
    from mirage_dsl.tune.channel import Task
    from mirage_dsl.tune.measure import Tuner
    from mirage_dsl.tune.tuner import input_spec

    program = parse(cell.program)
    inputs = tuple(input_spec(i, program) for i in program.inputs)
    major, minor = torch.cuda.get_device_capability()
    tuner = Tuner(
        Task(program, inputs, draws=1),
        f"sm_{major}{minor}",
        deadline=deadline,
        slow=ROUGH,
        screened=False,
        turn=turn,
    )
    with tuner:
        graphs = cell.graphs()
        timings = tuner.times(graphs, replays=REPLAYS)
    for one, graph, timing in zip(cell.samples, graphs, timings, strict=True):
        one.measured = timing.microseconds
        one.error, one.reason = timing.error, timing.reason[:120]
        one.compiled = [
            (r.registers, r.shared_bytes, r.spills, r.sync_loads, r.products)
            for r in tuner.reports.get(graph, ())
        ]


# -- Ranking ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """How well the model ranks the measured candidates of a program.

    Attributes:
        name: Of the program, and its batch.
        count: Candidates.
        spearman: Rank correlation of estimates and times.
        choice: Time of the candidate that the model would choose, over the best time.
        bias: Typical estimate over time.
        spread: Standard deviation of the logarithm of that.
    """

    name: str
    count: int
    spearman: float
    choice: float
    bias: float
    spread: float


def ranking(name: str, times: Sequence[float], costs: Sequence[Cost]) -> Ranking:
    """Rank by estimate; what does not fit on the GPU by the model comes last."""
    ratios = [
        math.log(c.microseconds / t)
        for c, t in zip(costs, times, strict=True)
        if c.feasible
    ]
    keys = [c.microseconds if c.feasible else math.inf for c in costs]
    chosen = times[keys.index(min(keys))]
    bias = math.exp(statistics.fmean(ratios)) if ratios else math.nan
    spread = statistics.pstdev(ratios) if ratios else math.nan
    rank = spearman(times, keys)
    return Ranking(name, len(times), rank, chosen / min(times), bias, spread)


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share their mean rank."""
    x, y = _ranks(a), _ranks(b)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return 0.0
    return statistics.correlation(x, y)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {v: i for i, v in reversed(list(enumerate(ordered)))}
    last = {v: i for i, v in enumerate(ordered)}
    return [(first[v] + last[v]) / 2 for v in values]


def measured_rankings(path: Path) -> list[Ranking]:
    """The rankings of a file, for programs with several candidates."""
    document = read(path)
    hardware = hardware_named(document["hardware"])
    found: list[Ranking] = []
    for cell in document["cells"]:
        pairs = [
            (s.measured, estimate(g, hardware))
            for s, g in zip(cell.samples, cell.graphs(), strict=True)
            if s.measured is not None
        ]
        if len(pairs) > FEWEST:
            times, costs = zip(*pairs, strict=True)
            found.append(ranking(f"{cell.name} {cell.batch}", times, costs))
    return found


def figure_rankings() -> list[Ranking]:
    """The rankings of the kernels written by hand for an H100."""
    groups: dict[str, list[Figure]] = {}
    for figure in figures():
        groups.setdefault(figure.workload, []).append(figure)
    found: list[Ranking] = []
    for name, group in groups.items():
        costs = [_known_to_fit(estimate(f.graph, H100)) for f in group]
        found.append(ranking(name, [f.microseconds for f in group], costs))
    return found


def _known_to_fit(cost: Cost) -> Cost:
    """The cost of a kernel that is known to fit."""
    kernels = tuple(replace(k, limit=None) for k in cost.kernels)
    return replace(cost, kernels=kernels)


def table(rankings: Sequence[Ranking]) -> str:
    """A table in Markdown, the mean last."""
    lines = [
        "| program | candidates | Spearman | choice | estimate / time | spread |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {r.name} | {r.count} | {r.spearman:.2f} | {r.choice:.2f} | {r.bias:.2f} "
        f"| {r.spread:.2f} |"
        for r in rankings
    ]
    mean = statistics.fmean(r.spearman for r in rankings)
    choice = statistics.geometric_mean(r.choice for r in rankings)
    total = sum(r.count for r in rankings)
    lines.append(f"| mean | {total} | {mean:.2f} | {choice:.2f} | | |")
    return "\n".join(lines)


def report(paths: Sequence[Path]) -> str:
    """Tables of all measurements."""
    parts = ["H100, by hand:", "", table(figure_rankings()), ""]
    for path in paths:
        parts += [f"`{path.name}`:", "", table(measured_rankings(path)), ""]
    return "\n".join(parts)


def _insert(page: Path, tables: str) -> None:
    """Put tables between the marks of a page."""
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    tail = rest.partition(END)[2]
    page.write_text(f"{head}{BEGIN}\n\n{tables}\n{END}{tail}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("sample")
    one.add_argument("file", type=Path)
    one.add_argument("--count", type=int, default=COUNT)
    one.add_argument("--hardware", default="H200")
    one.add_argument("--programs", nargs="*", default=[])
    two = commands.add_parser("measure")
    two.add_argument("file", type=Path)
    two.add_argument("out", type=Path)
    two.add_argument("--seconds", type=float, default=240.0)
    three = commands.add_parser("report")
    three.add_argument("files", type=Path, nargs="+")
    three.add_argument("--docs", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "sample":
        take_samples(options.file, options.count, options.hardware, options.programs)
    elif options.command == "measure":
        measure(options.file, options.out, options.seconds)
    elif options.docs is None:
        print(report(options.files))
    else:
        _insert(options.docs, report(options.files))
    return 0


if __name__ == "__main__":
    sys.exit(main())
