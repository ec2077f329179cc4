"""Python names for the values, dims and tensors of an emitted module."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable
from pathlib import PurePath

from mirage_dsl.backends.triton.lowering.library import HELPERS
from mirage_dsl.core.errors import SourceLocation
from mirage_dsl.ops.makers import JOIN_PREFIX

RESERVED = frozenset(
    {"tl", "triton", "torch", "libdevice", "it", "run", "grid", "prefetch", "device"}
    | {"EARLY", "power", "TensorDescriptor", "gdc_launch_dependents", "gdc_wait"}
    | HELPERS.keys()
    | set(dir(builtins))
    | set(keyword.kwlist)
)
"""Names that Python has, or that an emitted module uses itself."""


def identifier(name: str) -> str:
    """A Python name that resembles `name`: `k#` becomes `k_parts`."""
    text = re.sub(r"\W", "_", name.replace("#", "_parts"), flags=re.ASCII)
    if not text or text[0].isdigit():
        text = f"v{text}"
    if text in RESERVED or text.startswith(JOIN_PREFIX):
        text += "_"
    return text


def source_comment(location: SourceLocation) -> str:
    """A comment that shows the user's line; no line of text ends the comment."""
    place = f"{PurePath(location.file).name}:{location.line}"
    text = f"# src[{place}] {location.text.strip()}".rstrip()
    return "".join(c if c.isprintable() else " " for c in text)


class Names:
    """Gives out names that are different from all others of one scope.

    Args:
        taken: Names that the scope uses already.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """A name like `wanted` that nobody has yet."""
        base = identifier(wanted)
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


class Writer:
    """Collects lines of Python at a current indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def line(self, text: str = "") -> None:
        """Add one line."""
        self.lines.append("    " * self._depth + text if text else "")

    def assign(self, name: str, expression: str) -> str:
        """Add `name = expression` and return the name."""
        self.line(f"{name} = {expression}")
        return name

    def indent(self) -> None:
        """Go one level in."""
        self._depth += 1

    def dedent(self) -> None:
        """Go one level out."""
        self._depth -= 1

    def text(self) -> str:
        """All lines, each ended."""
        return "".join(f"{line}\n" for line in self.lines)
