"""What a command prints: progress, text for people, or JSON; and how it ends."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click

from mirage_dsl.core.errors import MirageError

# -- Progress --------------------------------------------------------------------------

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


# -- Output ----------------------------------------------------------------------------
# Exit codes: 0 for yes, 1 for a negative answer (not equivalent, not well formed, not
# formatted), 2 for wrong usage and errors.

NEGATIVE = 1
ERROR = 2

P = ParamSpec("P")

MU_FILE = click.Path(dir_okay=False, allow_dash=True)


class _NewFile(click.Path):
    """A file to write, in a directory that exists: refused before the work is done."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        folder = Path(value).absolute().parent
        if not folder.is_dir():
            self.fail(f"{value}: there is no directory {folder}", param, ctx)
        return super().convert(value, param, ctx)


NEW_FILE = _NewFile(dir_okay=False)


def json_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option `--json`, as the parameter `as_json`; errors are reported likewise."""

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (MirageError, OSError) as error:
            fail(error, as_json=bool(kwargs["as_json"]))

    option = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON in place of text."
    )
    return option(reporting)


def say(text: str) -> None:
    """Print to standard output, with one newline at the end."""
    click.echo(text.rstrip("\n"))


def say_json(value: object) -> None:
    """Print as JSON."""
    click.echo(json.dumps(value, indent=2, default=_plain, ensure_ascii=False))


def answer(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    """Print a result in the form that was asked for."""
    if as_json:
        say_json(value)
    else:
        say(text)


def negative() -> NoReturn:
    """End the command with the exit code of a negative answer."""
    sys.exit(NEGATIVE)


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    return repr(value)


def fail(error: MirageError | OSError, *, as_json: bool) -> NoReturn:
    """Report an error without a traceback and end the command."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if as_json:
        say_json({"error": {"kind": type(error).__name__, "message": message}})
    else:
        click.echo(f"{click.style('error', fg='red')}: {message}", err=True)
    sys.exit(ERROR)
