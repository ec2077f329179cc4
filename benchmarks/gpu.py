"""The workloads on a GPU, beside their peers: right against float64, and how fast.

    python -m benchmarks.gpu --json results.json            # goes on where it stopped
    python -m benchmarks.gpu --rows 512 4096 --json prefill.json
    python -m benchmarks.gpu --merge a.json b.json --json all.json

Every workload goes down the public road: traced, searched, tuned, verified, lowered to
Triton and launched.  Each case is stored when it is done; the same command continues
what was interrupted.  `benchmarks.gpu_chart` makes the chart and the page.

Times are µs of one call in a chain of calls inside a CUDA graph, medians of replays:

    ours       the tuned kernels, inputs not in the L2 cache (cold)
    spread     the largest less the least of the replays, over the median
    hot        the same calls with one set of inputs, which L2 holds if it can
    eager, compile, flash, cuDNN, Liger, Helion
               the peers, cold; `docs/benchmarks.md` says what each of them runs
    cuBLAS     the bare products: it computes less, so it is no peer
    floor      the larger of reading as many bytes and of the products' arithmetic,
               measured in the same run; of floor: the floor over our time
    vs eager, vs best
               time of eager, and of the fastest peer that is right, over ours
    host       host time of a call outside of graphs, ours and eager's
    error      relative to float64, in the norm, the worst of 3 draws
    seconds    of the search and the tuning

Exit code 0: all is right; 1: a result is wrong or missing; 2: the command is, or there
is no GPU; 3: the time of --seconds ended before the cases did.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_chart import line, summary, terminal_table
from benchmarks.gpu_rows import SHORT, Results, Row, load, merged, ordered
from tests.programs.workloads import CIRCLE, PAPER, WORKLOADS, Workload

if TYPE_CHECKING:
    from benchmarks.gpu_measure import Case

BATCHES = (1, 8, 16)
GROUPS = {"paper": PAPER, "circle": CIRCLE, "all": WORKLOADS}
PEERS = ("eager", "compile", "flash", "cudnn", "cublas", "liger", "helion")
SLOW_PEERS = ("helion",)
"""Peers that take minutes to tune; they have to be asked for."""
UNFINISHED = 3
"""Exit code where the time ended before the cases did."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _say_what(parser)
    _say_beside_what(parser)
    _say_where_to(parser)
    return parser


def _say_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workloads",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help=f"names, or {', '.join(GROUPS)} (default: all); --list shows names",
    )
    batches = " ".join(map(str, BATCHES))
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        metavar="B",
        help=f"batches at decode (default: {batches}, or none with --rows); workloads "
        "without a batch are measured once",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        type=int,
        default=[],
        metavar="M",
        help="measure linear layers with so many rows, as at prefill: 512 4096",
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=tuple(SHORT),
        metavar="DTYPE",
        help=f"{', '.join(SHORT)} (default: the workload's own)",
    )


def _say_beside_what(parser: argparse.ArgumentParser) -> None:
    usual = [p for p in PEERS if p not in SLOW_PEERS]
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=usual,
        metavar="PEER",
        help=f"of {', '.join(PEERS)}; those that are not installed are left out, "
        "and eager is always there, since right is what is as near to float64 as it is "
        f"(default: all but {', '.join(SLOW_PEERS)}, which tunes for minutes)",
    )
    parser.add_argument(
        "--effort",
        choices=("quick", "full"),
        default="quick",
        help="of our search and tuning: seconds, or a minute or two (default: quick)",
    )


def _say_where_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, help="start no case after so long; exit code 3"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="where each case is stored; what is there already is not measured again",
    )
    parser.add_argument(
        "--again", action="store_true", help="measure stored cases as well"
    )
    parser.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="measure nothing; join these files, of one machine, into that of --json",
    )
    parser.add_argument("--list", action="store_true", help="print the cases only")


def chosen(names: Sequence[str]) -> list[Workload]:
    """Workloads by name or group, each once.

    Raises:
        ValueError: There is none of that name.
    """
    known = {w.name: (w,) for w in WORKLOADS} | GROUPS
    found: dict[str, Workload] = {}
    for name in names:
        if name not in known:
            raise ValueError(f"no workload {name!r}; there are {', '.join(known)}")
        found.update({w.name: w for w in known[name]})
    return list(found.values())


def cases(options: argparse.Namespace) -> list[Case]:
    """What to measure: batches unless only rows are asked for."""
    from benchmarks.gpu_measure import Case

    batches = options.batches or ([] if options.rows else BATCHES)
    found: list[Case] = []
    for workload in chosen(options.workloads):
        sizes = [(b, 0) for b in (batches if workload.batched else batches[:1])]
        sizes += [(0, r) for r in options.rows if workload.rows]
        for batch, rows in sizes:
            found += [
                Case(workload, 1 if batch and not workload.batched else batch, rows, d)
                for d in options.dtypes or [workload.dtype]
            ]
    return found


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    from mirage_dsl.core.settings import DETERMINISTIC

    return {"effort": options.effort, "deterministic": DETERMINISTIC.get()}


def run(options: argparse.Namespace) -> tuple[Results, bool]:
    """Measure the cases that are not stored yet; also whether all are there now.

    Raises:
        ValueError: What is stored was measured on another machine.
    """
    from benchmarks.gpu_measure import machine, measure, warm_up

    results = Results(machine(), _settings(options))
    if options.json and options.json.exists():
        results = merged([load(options.json), results])
    began = time.monotonic()
    todo = [c for c in cases(options) if options.again or not results.has(c.row)]
    if todo:
        warm_up()
    for case in todo:
        if options.seconds and time.monotonic() - began > options.seconds:
            return results, False
        row = measure(case, options.peers, options.effort)
        print(line(row), flush=True)
        results.put(row)
        if options.json:
            results.save(options.json)
        if any("CUDA error" in s.failure for s in row.systems.values()):
            # Nothing more runs in this process.
            return results, False
    return results, True


def _merge(options: argparse.Namespace) -> Results:
    results = merged([load(f) for f in options.merge])
    if options.json:
        results.save(options.json)
    return results


def bad(rows: Sequence[Row]) -> list[str]:
    """Titles of the rows whose results are wrong or missing."""
    return [r.title for r in rows if not r.right]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or merge, and print the table."""
    options = _parser().parse_args(arguments)
    try:
        if options.merge:
            results, finished = _merge(options), True
        else:
            chosen(options.workloads)
            if options.list:
                print("\n".join(c.row.title for c in cases(options)))
                return 0
            if _no_gpu():
                print("benchmarks.gpu needs a CUDA device", file=sys.stderr)
                return 2
            results, finished = run(options)
    except ValueError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    results.rows = ordered(results.rows, [w.name for w in WORKLOADS])
    terminal_table(results)
    print(summary(results.rows))
    if not finished:
        print("the time is over; the same command continues", file=sys.stderr)
        return UNFINISHED
    return 1 if bad(results.rows) else 0


def _no_gpu() -> bool:
    import torch

    return not torch.cuda.is_available()


if __name__ == "__main__":
    sys.exit(main())
