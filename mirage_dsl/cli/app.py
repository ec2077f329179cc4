"""The group of commands, and what holds for all: what they print, how they end."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import math
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click

from mirage_dsl.core.errors import MirageError, SettingError
from mirage_dsl.core.settings import setup_logging

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
    """A file to write, in a directory that exists: refused before the work is done.

    Args:
        kept: What is written to it.
        never: The suffix by which files of another kind are known.
    """

    def __init__(self, kept: str, never: str) -> None:
        super().__init__(dir_okay=False, writable=True)
        self.kept, self.never = kept, never

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        path = Path(value).absolute()
        if not path.parent.is_dir():
            self.fail(f"{value}: there is no directory {path.parent}", param, ctx)
        reason = None if path.exists() else _not_created(path)
        if reason is not None:
            said = f"{value}: {path.parent} cannot be written to: {reason}"
            self.fail(said, param, ctx)
        if value == "-" or path.suffix == self.never:
            text = f"found {value!r}, expected the name of a file for {self.kept}"
            self.fail(f"{text}, which does not end in {self.never}", param, ctx)
        return super().convert(value, param, ctx)


def _not_created(path: Path) -> str | None:
    """Why there can be no such file; None if there can: it is tried, and removed."""
    try:
        path.open("xb").close()
        path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return None


NEW_TEXT = _NewFile("the text of a μGraph", ".json")
NEW_RESULT = _NewFile("JSON", ".mu")


class _Finite(click.FloatRange):
    """A number that is one: `nan` and `inf` are read as floats too."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"found {value}, expected a finite number", param, ctx)
        return found


MEGABYTES = _Finite(min=0)
SEED = click.IntRange(min=0)


def json_option(command: Callable[P, None]) -> Callable[P, None]:
    """The option `--json`, as the parameter `as_json`; errors are reported likewise."""

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            raise  # Nobody reads on: Click ends the command in silence.
        except (MirageError, OSError, MemoryError) as error:
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


def fail(error: MirageError | OSError | MemoryError, *, as_json: bool) -> NoReturn:
    """Report an error without a traceback and end the command."""
    message = str(error) or type(error).__name__
    if isinstance(error, MemoryError):
        message = f"there is not enough memory: {message}"
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    if as_json:
        say_json({"error": {"kind": type(error).__name__, "message": message}})
    else:
        click.echo(f"{click.style('error', fg='red')}: {message}", err=True)
    sys.exit(ERROR)


# -- The group -------------------------------------------------------------------------

# Each command is imported when it is used: --help must not wait for PyTorch.
_COMMANDS = {
    "search": ("graphs", "Search for the fastest equivalent of a function."),
    "show": ("graphs", "Print a μGraph, its tile programs or its Triton source."),
    "check": ("graphs", "Say whether files hold well-formed μGraphs."),
    "verify": ("graphs", "Say whether two μGraphs compute the same function."),
    "diff": ("graphs", "Say what differs between two μGraphs."),
    "rewrite": ("graphs", "List the rewrites of searches, or apply some to a μGraph."),
    "explain": ("graphs", "Say why a μGraph is fast."),
    "fmt": ("graphs", "Bring .mu files into the standard form."),
    "run": ("graphs", "Run a μGraph on random inputs and report its error."),
    "compile": ("graphs", "Compile a μGraph for a GPU, without needing one."),
    "bench": ("graphs", "Time a μGraph on the current GPU."),
    "cache": ("environment", "List, move and remove what searches have found."),
    "env": ("environment", "List the environment variables and their values."),
    "doctor": ("environment", "Say what works on this machine."),
}

_HELP = """A superoptimizer for tensor programs.

It searches for the fastest kernels that compute the same as a Python function on
tensors, verifies them, and writes them in Triton.  A μGraph is the description of such
kernels; it is kept as text in .mu files.

\b
Search, keep the best μGraph, look at it and check an edited copy:
  mirage-dsl search model.py:rms_linear --spec f16[16,4096] \\
      --spec f16[4096,6144] -o best.mu
  mirage-dsl explain best.mu
  mirage-dsl show best.mu --triton
  mirage-dsl verify edited.mu best.mu

\b
Exit codes: 0 yes or done; 1 a negative answer (not equivalent, not well formed);
2 wrong usage or an error.
"""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx  # The commands are the same everywhere.
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"mirage_dsl.cli.{_COMMANDS[cmd_name][0]}")
        return vars(module)[f"{cmd_name}_command"]

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            setup_logging()
        except SettingError as error:
            fail(error, as_json=False)
        return super().invoke(ctx)


@click.group(
    cls=_Lazy,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96},
)
@click.version_option(package_name="mirage_dsl", prog_name="mirage-dsl")
def app() -> None:
    """The group; its help is `_HELP`."""
