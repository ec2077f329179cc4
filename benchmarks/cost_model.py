"""The cost model held to measurements: how well it ranks kernels that a GPU has timed.

    python -m benchmarks.cost_model sample FILE [--count 24] [--hardware H200]
    python -m benchmarks.cost_model measure FILE OUT
    python -m benchmarks.cost_model report FILE ... [--docs FILE]

`sample` needs no GPU: it searches every workload and keeps good and bad candidates.
`measure` times them in one go, each held to float64, what the tuner would refuse to
time included.  `report` needs no GPU either: it ranks by today's model, so that the
effect of a change to it is known at once.

A cell is a program at some sizes.  Its samples are the structures that a search finds,
each at its best sizes by estimate and after random walks from there, so that slow ones
are among them.  A structure's text is kept once, of each sample only its tiles and
schedules.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import mirage_dsl as mirage
from benchmarks.h100_figures import Figure, figures
from mirage_dsl.core.hardware import H100, Hardware, hardware_named
from mirage_dsl.cost.estimate import Cost, estimate
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.analysis.launches import launched_early
from mirage_dsl.ir.graph import BlockGraph, KernelGraph, Schedule, Split
from mirage_dsl.ir.maps import derived_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.search.driver import search
from mirage_dsl.search.variants import neighbours
from tests.programs.workloads import PAPER, WORKLOADS

# -- Samples ---------------------------------------------------------------------------

FLAGS = ("swap_operands", "descriptors", "pdl")
STEPS = 6
"""Steps of a random walk at most."""
SLOWEST = 6.0
"""Samples are left out whose estimate is beyond this multiple of the best one's."""
STRUCTURES = 8
EARLY = 3
"""Structures whose later kernels also start before the ones before have ended."""
SEARCH_SECONDS = 30.0

BlockSizes = tuple[tuple[int, ...], int, int, int, str]
"""Tiles of the grid, of the loop (0 for none), warps, stages, and flags that are on."""


@dataclass
class Sample:
    """One candidate.

    Attributes:
        structure: Its number among the cell's.
        sizes: Of each of its blocks.
        role: `library`: the program itself; `chosen`: the best by estimate; `best`: the
            best sizes of another structure; `early`: the same with dependent launches;
            `walk`: of a random walk.
        measured: µs on the GPU, or None.
        error: Against float64, relative to the largest element, or None.
        reason: Why there is no time.
        compiled: Of each kernel of its own: registers, bytes of shared memory, bytes
            of spills, loads that a loop waits for, and the matrix instruction.
    """

    structure: int
    sizes: tuple[BlockSizes, ...]
    role: str
    measured: float | None = None
    error: float | None = None
    reason: str = ""
    compiled: list[tuple[int, int, int, int, str]] = field(
        default_factory=list[tuple[int, int, int, int, str]]
    )


@dataclass
class Cell:
    """A program at some sizes.

    Attributes:
        name: Of the program.
        batch: Which of its published batches.
        program: Its text.
        structures: Texts of μGraphs, at some sizes each.
        samples: The candidates.
    """

    name: str
    batch: int
    program: str
    structures: list[str] = field(default_factory=list[str])
    samples: list[Sample] = field(default_factory=list[Sample])

    def graphs(self) -> list[KernelGraph]:
        """The samples as μGraphs."""
        parsed = [parse(s) for s in self.structures]
        return [with_sizes(parsed[s.structure], s.sizes) for s in self.samples]

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that are as by default."""
        document = asdict(self)
        for sample in document["samples"]:
            for name in ("error", "measured", "reason", "compiled"):
                if not sample[name]:
                    del sample[name]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Cell:
        """The cell that `to_json` wrote."""
        samples = [
            Sample(**{**s, "sizes": tuple(_block_sizes(b) for b in s["sizes"])})
            for s in document["samples"]
        ]
        return cls(**{**document, "samples": samples})


def _block_sizes(values: list[Any]) -> BlockSizes:
    grid, *rest = values
    loop, warps, stages, flags = rest
    return tuple(grid), loop, warps, stages, flags


def sizes_of(graph: KernelGraph) -> tuple[BlockSizes, ...]:
    """Tiles and schedules of the blocks, in order."""
    return tuple(
        (
            tuple(s.tile for s in b.grid),
            b.loop.tile if b.loop else 0,
            b.schedule.num_warps,
            b.schedule.num_stages,
            " ".join(f for f in FLAGS if getattr(b.schedule, f)),
        )
        for b in graph.blocks
    )


def with_sizes(graph: KernelGraph, sizes: tuple[BlockSizes, ...]) -> KernelGraph:
    """The μGraph with these tiles and schedules."""
    left = iter(sizes)
    nodes = tuple(
        _sized(n, next(left)) if isinstance(n, BlockGraph) else n for n in graph.nodes
    )
    changed = replace(graph, nodes=nodes)
    return changed.with_extents(derived_extents(changed, changed.extent_of))


def _sized(block: BlockGraph, sizes: BlockSizes) -> BlockGraph:
    tiles, loop, warps, stages, flags = sizes
    grid = tuple(Split(s.dim, t) for s, t in zip(block.grid, tiles, strict=True))
    on = {f: f in flags.split() for f in FLAGS}
    return replace(
        block,
        grid=grid,
        loop=Split(block.loop.dim, loop) if block.loop else None,
        schedule=Schedule(warps, stages, **on),
    )


# -- Programs --------------------------------------------------------------------------


def traced(
    name: str,
    function: Callable[..., Any],
    shapes: dict[str, tuple[int, ...]],
    dtype: str = "float16",
) -> KernelGraph:
    """A function on a namespace and tensors, traced."""
    names = ", ".join(shapes)
    scope: dict[str, Any] = {"function": function, "m": mirage}
    exec(f"def {name}({names}): return function(m, {names})", scope)
    specs = [mirage.spec(s, dtype) for s in shapes.values()]
    return trace_function(scope[name], specs, name=name)


_SINGLE: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]]]] = {
    "exp_small": (lambda m, x: m.exp(x), {"x": (256, 64)}),
    "exp_medium": (lambda m, x: m.exp(x), {"x": (512, 4096)}),
    "exp_large": (lambda m, x: m.exp(x), {"x": (4096, 4096)}),
    "scale_medium": (lambda _, x, s: x * s, {"x": (512, 4096), "s": (512, 1)}),
    "add_large": (lambda _, x, y: x + y, {"x": (4096, 4096), "y": (4096, 4096)}),
    "sum_rows": (lambda m, x: m.sum(x, 1), {"x": (512, 4096)}),
    "sum_columns": (lambda m, x: m.sum(x, 0), {"x": (4096, 512)}),
    "sum_large": (lambda m, x: m.sum(x, 1), {"x": (4096, 4096)}),
    "matmul_tiny": (lambda _, x, w: x @ w, {"x": (16, 256), "w": (256, 256)}),
    "matmul_rank": (lambda _, x, w: x @ w, {"x": (16, 4096), "w": (4096, 16)}),
    "matmul_short": (lambda _, x, w: x @ w, {"x": (16, 16), "w": (16, 4096)}),
    "matmul_square": (lambda _, x, w: x @ w, {"x": (2048, 2048), "w": (2048, 2048)}),
    "matmul_batch": (
        lambda _, x, w: x @ w,
        {"x": (16, 256, 64), "w": (16, 64, 4096)},
    ),
}


def cells() -> Iterator[Cell]:
    """All programs without samples: the workloads, and single library kernels."""
    for workload in WORKLOADS:
        for batch in (1, 8, 16) if workload in PAPER else (1,):
            shapes = workload.at_batch(batch)
            graph = traced(workload.name, workload.function, shapes, workload.dtype)
            yield Cell(workload.name, batch, to_text(graph))
    for name, (function, shapes) in _SINGLE.items():
        yield Cell(name, 1, to_text(traced(name, function, shapes)))


# -- Sampling --------------------------------------------------------------------------


def sample(cell: Cell, count: int, hardware: Hardware, seed: int = 0) -> None:
    """Fill a cell with up to `count` candidates; single operators get the library's."""
    program = parse(cell.program)
    _add(cell, program, "library")
    if cell.name in _SINGLE:
        return
    found = _structures(program, hardware)
    for number, graph in enumerate(found):
        _add(cell, graph, "best" if number else "chosen")
    for graph in found[:EARLY]:
        _add(cell, launched_early(graph), "early")
    rng = random.Random(seed)
    tries = 0
    while found and len(cell.samples) < count and tries < 8 * count:
        graph = _walk(found[tries % len(found)], rng, hardware)
        if rng.random() < 0.5:
            graph = launched_early(graph)
        _add(cell, graph, "walk")
        tries += 1


def _structures(program: KernelGraph, hardware: Hardware) -> list[KernelGraph]:
    """The best μGraphs of different structure, of one kernel and of several."""
    found: dict[KernelGraph, float] = {}
    for kernels in (1, 2):
        result = search(
            program,
            k=STRUCTURES,
            budget_seconds=SEARCH_SECONDS,
            max_kernels=kernels,
            hardware=hardware,
        )
        found |= {c.mugraph: c.cost.microseconds for c in result if c.mugraph.blocks}
    least = min(found.values(), default=0.0)
    kept = [g for g, cost in found.items() if cost <= SLOWEST * least]
    return sorted(kept, key=found.__getitem__)[: STRUCTURES + 2]


def _walk(graph: KernelGraph, rng: random.Random, hardware: Hardware) -> KernelGraph:
    for _ in range(rng.randint(1, STEPS)):
        beside = neighbours(graph, hardware=hardware)
        if not beside:
            break
        least = beside[0][1].microseconds
        near = [g for g, c in beside if c.microseconds <= SLOWEST * least]
        graph = rng.choice(near)
    return graph


def _add(cell: Cell, graph: KernelGraph, role: str) -> None:
    """Add a candidate, unless it is there."""
    known = [_unsized(parse(s)) for s in cell.structures]
    own = _unsized(graph)
    if own not in known:
        known.append(own)
        cell.structures.append(to_text(graph))
    at = known.index(own)
    sizes = sizes_of(graph)
    if all((s.structure, s.sizes) != (at, sizes) for s in cell.samples):
        cell.samples.append(Sample(at, sizes, role))


def _unsized(graph: KernelGraph) -> str:
    """The text of a structure, the same for all sizes."""
    ones = [((1,) * len(b.grid), 1, 1, 1, "") for b in graph.blocks]
    return to_text(with_sizes(graph, tuple(ones)))


# -- Measuring -------------------------------------------------------------------------

COUNT = 24
REPLAYS = 5
AT_ONCE = 3
"""Programs whose candidates are compiled at a time; one runs at a time."""
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
    from mirage_dsl.tune.measure import Task, Tuner
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

FEWEST = 5
"""Fewer candidates are not ranked."""


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


# -- The command -----------------------------------------------------------------------

BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"


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
