"""Right texts that attackers start from, and changes of texts that know no grammar."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]


@cache
def small_texts() -> tuple[str, ...]:
    """Those of `small.mu`."""
    text = Path(__file__).with_name("small.mu").read_text(encoding="utf-8")
    return tuple(text.split("// ----\n"))


@cache
def right_texts() -> tuple[str, ...]:
    """Small texts first, then the examples and those of the documentation."""
    examples = sorted((ROOT / "examples").glob("*.mu"))
    documents = (ROOT / "docs" / "text-format.md").read_text(encoding="utf-8")
    shown = re.findall(r"```mu\n(.*?)```", documents, re.DOTALL)
    return (*small_texts(), *(p.read_text(encoding="utf-8") for p in examples), *shown)


def some_text(random: Random) -> str:
    """A right text, mostly a small one."""
    return random.choice(small_texts() if random.random() < 0.7 else right_texts())


TOKEN = re.compile(r"[^\W\d]\w*#*|\d[\w./*^#]*|\s+|//[^\n]*|.", re.DOTALL)


def tokens(text: str) -> list[str]:
    """The words, numbers, signs and spaces of a text."""
    return TOKEN.findall(text)
