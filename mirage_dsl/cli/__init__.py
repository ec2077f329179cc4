"""The command line: `mirage-dsl`, or `python -m mirage_dsl`."""

from __future__ import annotations


def main() -> None:
    """Run the command that the process was started with."""
    from mirage_dsl.cli.app import app

    app(prog_name="mirage-dsl")
