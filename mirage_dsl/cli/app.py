"""The group of commands, and what holds for all of them."""

from __future__ import annotations

import importlib
from typing import Any

import click

from mirage_dsl.cli.output import fail
from mirage_dsl.core.errors import SettingError
from mirage_dsl.core.settings import setup_logging

# Each command is imported when it is used: --help must not wait for PyTorch.
_COMMANDS = {
    "search": ("search", "Search for the fastest equivalent of a function."),
    "show": ("graphs", "Print a μGraph, its tile programs or its Triton source."),
    "check": ("graphs", "Say whether files hold well-formed μGraphs."),
    "verify": ("graphs", "Say whether two μGraphs compute the same function."),
    "diff": ("graphs", "Say what differs between two μGraphs."),
    "rewrite": ("graphs", "List the rewrites of searches, or apply some to a μGraph."),
    "explain": ("graphs", "Say why a μGraph is fast."),
    "fmt": ("graphs", "Bring .mu files into the standard form."),
    "run": ("run", "Run a μGraph on random inputs and report its error."),
    "compile": ("run", "Compile a μGraph for a GPU, without needing one."),
    "bench": ("run", "Time a μGraph on the current GPU."),
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


def run() -> None:
    """Run the command that the process was started with."""
    app(prog_name="mirage-dsl")
