"""Progress of a search on a terminal's standard error; nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Report = Callable[[str, int, int, float | None], None]


@contextmanager
def progress_bar(*, quiet: bool = False) -> Generator[Report | None, None, None]:
    """A callback for `superoptimize(progress=)` that draws; None off a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("search", total=1, best="")

        def report(stage: str, done: int, total: int, best: float | None) -> None:
            how = "measured" if stage == "tune" else "estimated"
            shown = "" if best is None else f"best {best:.1f} µs ({how})"
            bar.update(task, description=stage, completed=done, total=total, best=shown)

        yield report
