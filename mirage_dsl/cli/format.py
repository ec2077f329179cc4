"""`mirage-dsl fmt`: the standard form of `.mu` files, comments kept."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from pathlib import Path

import click

from mirage_dsl.cli.inputs import read_text
from mirage_dsl.cli.output import json_option, negative, say, say_json
from mirage_dsl.core.errors import ParseError, SourceLocation
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text

_HEAD = re.compile(r"\s*([\w#]+|\S)(?:\s+([\w#]+))?")
_COMMENT = "//"


@click.command(
    "fmt",
    epilog="Examples: mirage-dsl fmt best.mu; mirage-dsl fmt --check examples",
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file differs.")
@click.option("--diff", "show_diff", is_flag=True, help="Show the differences.")
@json_option
def fmt_command(
    paths: tuple[str, ...], check: bool, show_diff: bool, as_json: bool
) -> None:
    """Bring .mu files, and those in directories, into the standard form.

    The standard form states the type of every value, so it is also a way to complete
    a file that was written by hand.
    """
    changed: list[Path] = []
    files = _files(paths)
    for file in files:
        text = read_text(str(file))
        formatted = format_text(text, str(file))
        if formatted == text:
            continue
        changed.append(file)
        if show_diff and not as_json:
            say(_difference(text, formatted, file))
        if not check:
            file.write_text(formatted, encoding="utf-8")
    if as_json:
        say_json({"files": len(files), "changed": [str(f) for f in changed]})
    else:
        verb = "would change" if check else "changed"
        for file in changed:
            say(f"{verb} {file}")
        say(f"{len(changed)} of {len(files)} files {verb}")
    if check and changed:
        negative()


def _files(paths: tuple[str, ...]) -> list[Path]:
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.rglob("*.mu")) if path.is_dir() else [path]
    return files


def _difference(old: str, new: str, file: Path) -> str:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(file), "standard form", lineterm=""
    )
    return "\n".join(lines)


def format_text(text: str, filename: str = "<mu>") -> str:
    """The standard form of a text, its comments beside the same statements.

    Raises:
        ParseError: The text is not in the language, or a comment stands inside of a
            statement, where it cannot be kept.
    """
    formatted = to_text(parse(text, filename))
    lines = formatted.rstrip("\n").split("\n")
    places = {head: number for number, head in enumerate(_heads(lines)) if head}
    above: dict[int, list[str]] = defaultdict(list)
    beside: dict[int, str] = {}
    waiting: list[tuple[int, str]] = []
    old = text.split("\n")
    for number, head in enumerate(_heads([_code(line) for line in old])):
        comment = _comment(old[number])
        if head is None:
            waiting += [(number, comment)] if comment else []
            continue
        if head in places:
            above[places[head]] += [c for _, c in waiting]
            waiting = []
            if comment:
                beside[places[head]] = comment
        elif comment:
            raise _misplaced(number, old[number], filename)
    if waiting:
        above[len(lines)] = [c for _, c in waiting]
    return _merged(lines, above, beside)


def _merged(
    lines: list[str], above: dict[int, list[str]], beside: dict[int, str]
) -> str:
    merged: list[str] = []
    for number, line in enumerate([*lines, ""]):
        indent = line[: len(line) - len(line.lstrip())]
        merged += [indent + comment for comment in above.get(number, [])]
        end = f"  {beside[number]}" if number in beside else ""
        merged.append(line + end)
    return "\n".join(merged[:-1]) + "\n"


def _heads(lines: list[str]) -> list[tuple[str, str, int] | None]:
    """What a statement starts with, and how often that came before; None if blank."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    heads: list[tuple[str, str, int] | None] = []
    for line in lines:
        found = _HEAD.match(line)
        if found is None:
            heads.append(None)
            continue
        words = found[1], found[2] or ""
        heads.append((*words, seen[words]))
        seen[words] += 1
    return heads


def _code(line: str) -> str:
    return line.partition(_COMMENT)[0]


def _comment(line: str) -> str:
    _, sign, rest = line.partition(_COMMENT)
    return (sign + rest).rstrip()


def _misplaced(number: int, line: str, filename: str) -> ParseError:
    column = line.index(_COMMENT) + 1
    return ParseError(
        "the standard form has no line for this comment; move it above a statement",
        SourceLocation(filename, number + 1, line, column),
    )
