"""Words: each has one meaning, in the glossary and in names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mirage_dsl"
FILES = sorted(PACKAGE.rglob("*.py"))
GLOSSARY = ROOT / "docs" / "architecture.md"

OF_EACH_LEVEL = {
    frozenset({"ir.graph", "tile.program"}): {"Load", "Store"},
    frozenset({"ir.text.forms", "tile.text"}): {
        "AssignForm",
        "BlockForm",
        "StoreForm",
    },
}
"""Names that block graphs and tile programs share: the same thing, at two levels."""

SAY_NOTHING = (
    "calm",
    "companions",
    "judge",
    "kinds",
    "needs",
    "rehearsal",
    "several",
    "spare",
    "starter",
    "union",
    "whole",
)
"""Words that modules were called by, and that told a newcomer nothing."""


def _module(file: Path) -> str:
    name = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _classes() -> dict[str, set[str]]:
    """The modules that define each public class."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(_module(file))
    return found


def test_a_class_has_a_name_of_its_own() -> None:
    shared = {name for names in OF_EACH_LEVEL.values() for name in names}
    for name, modules in _classes().items():
        if name in shared:
            assert name in OF_EACH_LEVEL[frozenset(modules)], name
        else:
            assert len(modules) == 1, f"{name} is a class of {', '.join(modules)}"


def test_modules_are_named_by_what_they_are() -> None:
    for file in FILES:
        words = set(re.split(r"[._]", _module(file)))
        assert words.isdisjoint(SAY_NOTHING), _module(file)


def _glossary() -> list[str]:
    """The words of the glossary, in its order."""
    text = GLOSSARY.read_text("utf-8").split("## Words\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\*\*.+?) \|", text, re.MULTILINE)
    return [word for row in rows for word in re.findall(r"\*\*(.+?)\*\*", row)]


def test_the_glossary_has_each_word_once() -> None:
    words = _glossary()
    assert len(words) > 30
    assert len(words) == len(set(words))


NAMED = re.compile(r"`([\w/]+\.(?:py|lark|mu|md|toml|svg))`")
OF_OTHERS = {"name.dot", "model.py", "best.mu", "edited.mu", "program.mu", "mine.mu"}
"""Files of the reader's, in examples."""


def test_files_that_pages_name_are_there() -> None:
    names = {f.relative_to(ROOT).as_posix() for f in ROOT.glob("*.*")}
    for folder in ("mirage_dsl", "tests", "docs", "benchmarks", "examples"):
        names |= {f.relative_to(ROOT).as_posix() for f in (ROOT / folder).rglob("*.*")}
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        if page.name == "CHANGELOG.md":
            continue
        for name in NAMED.findall(page.read_text("utf-8")):
            there = any(f"/{own}".endswith(f"/{name}") for own in names)
            assert there or name in OF_OTHERS, f"{page.name}: {name}"
