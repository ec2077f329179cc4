"""What the search costs: its spaces, its steps, and what its ideas are good for.

    python -m benchmarks.search [--programs NAME ...] [--quick] [--limit SECONDS]
                                [--json FILE] [--docs FILE] [--plot FILE]

Programs are searched for one kernel at their published sizes, from nothing: no result
is taken from the cache, but the search's code is compiled beforehand.  The ablations
take a loop choice at a time and stop at a limit of seconds, or where the closure's
arrays are full.  `--docs` and `--plot` render what was measured now, or earlier and is
read by `--from`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mirage_dsl as mirage
from benchmarks.search_page import draw, render
from mirage_dsl.core.hardware import H100
from mirage_dsl.core.settings import THREADS
from mirage_dsl.frontend.trace import trace_function
from mirage_dsl.ir.graph import Apply, KernelGraph
from mirage_dsl.rewrite.expand import expand
from mirage_dsl.rewrite.shifts import strip_shifts
from mirage_dsl.rewrite.sinking import sink_views
from mirage_dsl.search.budget import Budget
from mirage_dsl.search.closure import Workspace, saturate, workspace
from mirage_dsl.search.driver import search
from mirage_dsl.search.space import space_of
from mirage_dsl.search.structures import structures
from tests.programs.workloads import PAPER, WORKLOADS

Record = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]

QUICK = ("rmsnorm_linear", "lora", "ntrans")
REPEATS = 3
BUDGET_SECONDS = 20.0
LONGEST_CHAIN = 8
THREAD_COUNTS = (1, 2)


def _chain(count: int) -> KernelGraph:
    """A chain of `count` matrix products, with a norm in front."""

    def function(x: Any, *weights: Any) -> Any:
        x = mirage.rms_norm(x)
        for w in weights:
            x = x @ w
        return x

    sizes = [512, 256, 1024, 384, 768, 128, 640, 320, 896][: count + 1]
    shapes = [(64, sizes[0]), *itertools.pairwise(sizes)]
    specs = [mirage.spec(s, "float16") for s in shapes]
    return trace_function(function, specs, name=f"chain_{count}")


def _updates(count: int) -> KernelGraph:
    """`count` gated updates in a row, and a norm."""

    def function(x: Any, *others: Any) -> Any:
        for h in others:
            x = x + (h - x) * h
        return mirage.rms_norm(x)

    specs = [mirage.spec((8, 4096), "float16") for _ in range(count + 1)]
    return trace_function(function, specs, name=f"updates_{count}")


def programs() -> dict[str, Callable[[], KernelGraph]]:
    """All programs by name."""
    found: dict[str, Callable[[], KernelGraph]] = {}
    for w in WORKLOADS:

        def traced(w: Any = w) -> KernelGraph:
            specs = [mirage.spec(s, w.dtype) for s in w.full.values()]
            names = ", ".join(w.full)
            scope: dict[str, Any] = {"function": w.function, "m": mirage}
            exec(f"def {w.name}({names}): return function(m, {names})", scope)
            return trace_function(scope[w.name], specs, name=w.name)

        found[w.name] = traced
    for count in range(1, LONGEST_CHAIN + 1):
        found[f"chain_{count}"] = lambda count=count: _chain(count)
    for count in range(1, 4):
        found[f"updates_{count}"] = lambda count=count: _updates(count)
    return found


def _plain(program: KernelGraph) -> KernelGraph:
    """What the structural search sees: primitive operators without shifts."""
    return strip_shifts(sink_views(expand(program)))


def _best(
    run: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The least seconds of a few runs."""
    least = float("inf")
    for _ in range(repeats):
        began = clock()
        run()
        least = min(least, clock() - began)
    return least


def _by_threads(run: Callable[[int], Any], repeats: int) -> Record:
    """The least seconds for each number of threads."""
    return {f"threads_{t}": _best(lambda t=t: run(t), repeats) for t in THREAD_COUNTS}


def _closures(plain: KernelGraph, w: Workspace) -> Record:
    """The largest closure over all loop choices."""
    space = space_of(plain)
    found = [saturate(space, loop, w).counters for loop in (None, *space.loop_dims)]
    return {
        "loops": len(found),
        "useful": max(c["useful"] for c in found),
        "nodes": max(c["nodes"] for c in found),
        "all_nodes": sum(c["nodes"] for c in found),
        "pairs": sum(c["pairs"] for c in found),
    }


def _ablation(plain: KernelGraph, w: Workspace, limit: float, **off: bool) -> Record:
    """The closures without one idea, until the limit of seconds."""
    space, nodes, done = space_of(plain), 0, True
    began = time.monotonic()
    for loop in (None, *space.loop_dims):
        found = saturate(space, loop, w, budget=Budget(began + limit), **off)
        nodes += len(found.shape)
        done &= found.complete
        if time.monotonic() - began > limit:
            done = False
            break
    return {"nodes": nodes, "finished": done, "seconds": time.monotonic() - began}


def measure(program: KernelGraph, limit: float, repeats: int) -> Record:
    """Everything about one program."""
    plain, w = _plain(program), workspace()
    found = structures(plain, H100)
    # Also loads Numba's code and touches memory, outside the measurement.
    result = search(program, H100, threads=2, budget_seconds=BUDGET_SECONDS)
    again = structures(plain, H100)
    return {
        "operators": sum(isinstance(n, Apply) for n in plain.nodes),
        "configurations": found.counters["configurations"],
        **_closures(plain, w),
        "extracted": found.counters.get("extracted", 0),
        "structures": len(found.structures),
        "candidates": len(result.candidates),
        "complete": result.complete,
        "steps": again.seconds,
        "structural": _by_threads(
            lambda t: structures(plain, H100, threads=t), repeats
        ),
        "unverified": _by_threads(
            lambda t: search(
                program, H100, threads=t, budget_seconds=BUDGET_SECONDS, verify=False
            ),
            repeats,
        ),
        "search": _by_threads(
            lambda t: search(program, H100, threads=t, budget_seconds=BUDGET_SECONDS),
            repeats,
        ),
        "processor": _best(
            lambda: search(program, H100, threads=1, budget_seconds=BUDGET_SECONDS),
            repeats,
            time.process_time,
        ),
        "without_pruning": _ablation(plain, w, limit, everything=True),
        "without_merging": _ablation(plain, w, limit, apart=True),
    }


def _chosen(names: Iterable[str] | None, quick: bool) -> list[str]:
    known = programs()
    if quick and not names:
        return list(QUICK)
    wanted = list(names or known)
    for name in wanted:
        if name not in known:
            raise SystemExit(f"no program {name}; there are {', '.join(known)}")
    return wanted


def _measured(
    names: list[str], limit: float, repeats: int, keep: Callable[[Record], None]
) -> Record:
    """Measurements of some programs; `keep` gets what there is after each."""
    known: Record = {}
    found = {
        "machine": {"cores": THREADS.get()},
        "limit_seconds": limit,
        "paper": [w.name for w in PAPER],
        "programs": known,
    }
    every = programs()
    for at, name in enumerate(names):
        print(f"[{at + 1}/{len(names)}] {name}", file=sys.stderr, flush=True)
        known[name] = measure(every[name](), limit, repeats)
        keep(found)
    return found


def _store(found: Record, path: Path | None) -> None:
    """Write measurements to a file, if one is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(found, indent=1, sort_keys=True) + "\n"
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and store what was asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__)
    parser.add_argument("--programs", nargs="+", metavar="NAME")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--docs", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--from", type=Path, dest="known", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.known is not None:
        found = json.loads(options.known.read_text(encoding="utf-8"))
    else:
        names = _chosen(options.programs, options.quick)
        found = _measured(
            names, options.limit, options.repeats, lambda f: _store(f, options.json)
        )
    _store(found, options.json)
    # In the order of the file, from which the page can be made again.
    found = json.loads(json.dumps(found, sort_keys=True))
    plot = None if options.plot is None else options.plot.name
    page = render(found, plot)
    if options.docs is not None:
        options.docs.write_text(page, encoding="utf-8")
    if options.plot is not None:
        options.plot.write_text(draw(found), encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
