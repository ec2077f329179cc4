"""Reads a μGraph from `.mu` text: the inverse of `printer`.

The language is described in `docs/text-format.md`.
"""

from __future__ import annotations

import re

from mirage_dsl.core.errors import ParseError
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.elaborate import elaborate
from mirage_dsl.ir.text.errors import Source, Word
from mirage_dsl.ir.text.printer import VERSION


def parse(text: str, filename: str = "<mu>") -> KernelGraph:
    """The graph that `text` describes.

    Args:
        text: `.mu` text.
        filename: Its name, for messages.

    Raises:
        ParseError: The text is not in the language.
        CheckError: A type rule does not hold, or a stated type is another.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParseError(f"expected the text of a μGraph, found {type(text).__name__}")
    # Lark is imported with the first text that is read.
    from mirage_dsl.ir.text.syntax import read

    source = Source(filename, text)
    _require_version(source)
    try:
        return elaborate(read(source), source)
    except RecursionError:
        raise ParseError(
            "the expressions are nested too deeply; name the inner ones on lines of "
            "their own",
            source.whole(),
        ) from None


def _require_version(source: Source) -> None:
    """Refuse a text of another version before its syntax is looked at."""
    for number, line in enumerate(source.text.split("\n"), 1):
        content = line.split("//")[0].strip()
        if not content:
            continue
        column = line.index(content[0]) + 1
        found = re.match(r"mirage\s+0*([0-9]+)(?=\s|$)", content)
        if found is None:
            raise source.wrong(
                Word(content, number, column),
                f"a text begins with its version, expected `mirage {VERSION}`",
            )
        if found[1] != str(VERSION):
            raise source.wrong(
                Word(content, number, column),
                f"this is version {found[1][:20]} of the text format; this program "
                f"reads version {VERSION}",
            )
        return
    raise ParseError(f"the text is empty, expected `mirage {VERSION}`", source.whole())
