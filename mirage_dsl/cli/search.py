"""`mirage-dsl search`: from a Python function to μGraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mirage_dsl.cli.app import MU_FILE, NEW_FILE, answer, json_option, progress_bar
from mirage_dsl.cli.graphs import (
    device_option,
    read_graph,
    resize,
    spec_option,
    trace_target,
)
from mirage_dsl.core.hardware import HARDWARE
from mirage_dsl.core.settings import EFFORTS, Effort
from mirage_dsl.search.result import Candidate, SearchResult

_EPILOG = f"""
\b
Examples:
  mirage-dsl search model.py:rms_linear --spec f16[16,4096] --spec f16[4096,6144]
  mirage-dsl search model.py:attention --spec f16[2,256,64] --spec f16[2,64,4096] \\
      --spec f16[2,4096,64] --max-kernels 3 --effort full -o best.mu
  mirage-dsl search program.mu --size m=8 --json
  mirage-dsl search program.mu --device {HARDWARE[-1].name} --explain mine.mu
"""


@click.command("search", epilog=_EPILOG)
@click.argument("target", metavar="FILE:FUNCTION")
@spec_option
@click.option("--size", "sizes", multiple=True, metavar="DIM=EXTENT", help="Set a dim.")
@click.option("--effort", type=click.Choice(EFFORTS), help="How long to search.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time limit.",
)
@click.option(
    "--max-kernels",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Most kernels that the program may be cut into; 0 for any number.",
)
@device_option
@click.option("--seed", default=0, show_default=True, help="Of all random choices.")
@click.option("--no-cache", is_flag=True, help="Search anew, and store nothing.")
@click.option("--all", "show_all", is_flag=True, help="Print all μGraphs found.")
@click.option("-o", "--output", type=NEW_FILE, help="Write the best to a .mu file.")
@click.option("--save", type=NEW_FILE, help="Write the whole result to a file.")
@click.option(
    "--explain",
    "given",
    type=MU_FILE,
    help="Say why this μGraph was not found, or where it was.",
)
@json_option
def search_command(
    target: str,
    specs: tuple[str, ...],
    sizes: tuple[str, ...],
    effort: Effort | None,
    budget: float | None,
    max_kernels: int,
    device: str,
    seed: int,
    no_cache: bool,
    show_all: bool,
    output: str | None,
    save: str | None,
    given: str | None,
    as_json: bool,
) -> None:
    """Search for the fastest verified equivalents of a function, or of a .mu program.

    FUNCTION is an ordinary Python function on tensors, decorated or not; it is traced
    at the given specs.  What was found before comes from the cache.
    """
    from mirage_dsl.search.why_not import why_not
    from mirage_dsl.store.superoptimize import superoptimize
    from mirage_dsl.tune.devices import device_named

    mine = None if given is None else read_graph(given)
    row, most = device_named(device), max_kernels or None
    program = resize(trace_target(target, specs), sizes)
    with progress_bar(quiet=as_json) as progress:
        result = superoptimize(
            program,
            effort=effort,
            budget_seconds=budget,
            max_kernels=most,
            use_cache=not no_cache,
            hardware=row,
            seed=seed,
            progress=progress,
        )
    _write(result, output, save)
    if mine is None:
        answer(as_json, result.to_json(), describe(result, show_all=show_all))
        return
    found = why_not(mine, program, result, max_kernels=most, hardware=row, seed=seed)
    answer(as_json, found.to_json(), str(found))


def _write(result: SearchResult, output: str | None, save: str | None) -> None:
    """The best μGraph and the whole result, to the files that are asked for."""
    if output is not None:
        Path(output).write_text(str(result.best.mugraph), encoding="utf-8")
    if save is not None:
        result.save(save)


def describe(result: SearchResult, *, show_all: bool = False) -> str:
    """A search result for people: counts, a table, the best text."""
    lines = [
        f"{len(result)} μGraphs in {result.seconds:.2f} s; {_state(result)}",
        *([] if result.proof is None else [str(result.proof)]),
        str(result.ledger),
        "",
        f"{'':>3} {'estimate':>10} {'kernels':>8} {'DRAM':>9}  verified",
    ]
    lines += [_row(i, c) for i, c in enumerate(result.candidates)]
    chosen: Any = result.candidates if show_all else result.candidates[:1]
    for candidate in chosen:
        lines += ["", str(candidate.mugraph).rstrip("\n")]
    return "\n".join(lines)


def _state(result: SearchResult) -> str:
    if result.complete:
        return "the whole space was searched"
    if result.cut_short:
        return "cut short: with more time there may be more"
    return "limits of the space were met"


def _row(number: int, candidate: Candidate) -> str:
    cost, certificate = candidate.cost, candidate.certificate
    if certificate is None:
        verified = "the program itself"
    else:
        stable = certificate.stability is None or certificate.stability.ok
        verified = f"error <= {certificate.error_bound:.0e}"
        verified += "" if stable else ", unstable"
    return (
        f"{number:>3} {cost.microseconds:>7.1f} µs {cost.launches:>8} "
        f"{cost.bytes / 1e6:>6.1f} MB  {verified}"
    )
