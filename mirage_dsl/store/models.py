"""Whole models: each distinct program is searched once, on as many workers as given."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from mirage_dsl.core.spread import spread
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.driver import Progress
from mirage_dsl.search.result import SearchResult
from mirage_dsl.store.results import for_program
from mirage_dsl.store.superoptimize import Job, prepare


def superoptimize_all(
    programs: Sequence[KernelGraph],
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> list[SearchResult]:
    """The results of `superoptimize` for several programs, as of a model's blocks.

    Programs of the same canonical hash, like the repeated blocks of a transformer, are
    searched once.  Every result is stored when it is there, so an interrupted run goes
    on where it was.

    Args:
        programs: Traced programs of known extents.
        executor: Where the searches run: processes, a cluster; of a program too long
            for one search, those of its segments.  What a lost worker had is searched
            again, by another one or in this process.
        progress: Called with `programs`, how many are done and of how many.
        checkpoint: As for `superoptimize`; used where the search runs in this process.
        **options: Arguments of `superoptimize`, for all programs.

    Raises:
        MirageError: As `superoptimize` raises.
    """
    hashes = [canonical_hash(p) for p in programs]
    jobs: dict[str, Job] = {}
    for program, name in zip(programs, hashes, strict=True):
        if name not in jobs:
            jobs[name] = prepare(program, **options)
    known = {name: job.known() for name, job in jobs.items()}
    found = {name: result for name, result in known.items() if result is not None}

    def tell() -> None:
        if progress is not None:
            progress("programs", len(found), len(jobs), None)

    tell()
    missing = [name for name in jobs if name not in found]
    short = [n for n in missing if executor is not None and not jobs[n].is_long]

    def done(number: int, document: dict[str, Any]) -> None:
        name = short[number]
        found[name] = jobs[name].keep(jobs[name].received(document))
        tell()

    if executor is not None:
        spread(Job.run_there, [jobs[n] for n in short], executor, done)
    for name in missing:
        if name not in found:
            found[name] = jobs[name].result(None, checkpoint, executor)
            tell()
    return [
        for_program(found[name], program)
        for program, name in zip(programs, hashes, strict=True)
    ]
