"""Rules that hold for the whole source: import direction, sizes, forbidden texts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.pace import slowness

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mirage_dsl"
SOURCES = sorted(PACKAGE.rglob("*.py"))
WRITTEN = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]

MAX_FUNCTION_LINES = 40

# A package imports only packages of lower layers, and itself.
LAYERS: dict[str, int] = {
    "core": 0,
    "version": 0,
    "ops": 1,
    "ir": 2,
    "rewrite": 3,
    "cost": 4,
    "tile": 3,
    "verify": 4,
    "frontend": 4,
    "backends": 4,
    "search": 5,
    "store": 6,
    "tune": 7,
    "api": 8,
    "cli": 9,
    "__main__": 10,
}
# Methods that import what stands above when they are called: a graph prints itself, and
# a certificate is checked again.
CALLED = {
    ("mirage_dsl.ir.graph", "mirage_dsl.ir.text.printer"),
    ("mirage_dsl.ir.graph", "mirage_dsl.backends.triton.backend"),
    ("mirage_dsl.verify.certificate", "mirage_dsl.verify.verifier"),
}
# What shows Triton's source, or what its compiler says of it: Triton's own.
SHOWN = {
    ("mirage_dsl", "mirage_dsl.backends.triton.running.screen"),
    ("mirage_dsl.ir.graph", "mirage_dsl.backends.triton.backend"),
    ("mirage_dsl.api.kernel", "mirage_dsl.backends.triton.lowering.emit"),
    ("mirage_dsl.cli.graphs", "mirage_dsl.backends.triton.lowering.emit"),
}
# Modules of which more than a few names are written qualified, and how they are called.
QUALIFIED = {
    "mirage_dsl.ir.graph": "graph as ir",
    "mirage_dsl.tile.program": "program as tp",
    "mirage_dsl.ops.table": "table",
}
MOST_NAMES = 4
# What says something to readers only, and what benchmarks measure with.
UNREAD = ("FieldAlgebra", "host_microseconds", "time_call")
HEAVY = ("torch", "triton", "numba", "ortools", "rich", "click")


_PACKAGES = {f.parent for f in SOURCES}
FOLDERS = {
    ".".join(p.relative_to(ROOT).parts)
    for p in _PACKAGES
    if not any(other.parent == p for other in _PACKAGES)
}
"""Packages without packages in them."""


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _unit(module: str) -> str:
    """What stands beside a module: the folder of modules that it is in, or itself.

    Folders that hold folders are no units: their modules stand beside their folders.
    """
    folder = module.rpartition(".")[0]
    return folder if folder in FOLDERS else module


MODULES = {_module(f) for f in SOURCES}


def _imports(file: Path) -> Iterator[str]:
    """Modules of the package that a file imports, inside functions too."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("mirage_dsl"))
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if not node.module.startswith("mirage_dsl"):
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def _name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", SOURCES, ids=_name)
def test_imports_go_one_way(file: Path) -> None:
    if file == PACKAGE / "__init__.py":
        # The package's front imports what is needed when it is used.
        return
    me = _module(file)
    here = me.split(".")[1]
    for module in _imports(file):
        there = module.split(".")[1]
        if there == here or (me, module) in CALLED:
            continue
        wrong = LAYERS[there] >= LAYERS[here]
        assert not wrong, f"{_name(file)} ({here}) imports {module} ({there})"


@pytest.mark.parametrize("file", SOURCES, ids=_name)
def test_nodes_statements_and_operators_are_written_qualified(file: Path) -> None:
    for node in _tree(file).body:
        if isinstance(node, ast.ImportFrom) and node.module in QUALIFIED:
            package, _, _ = node.module.rpartition(".")
            qualified = f"from {package} import {QUALIFIED[node.module]}"
            few = len(node.names) <= MOST_NAMES
            assert few, f"{_name(file)}:{node.lineno}: {qualified}"


def test_backends_are_named_in_their_registry_alone() -> None:
    """All else asks for one by its name."""
    for file in SOURCES:
        if (PACKAGE / "backends") in file.parents:
            continue
        me, text = _module(file), file.read_text(encoding="utf-8")
        found = set(re.findall(r"\bbackends\.(?:triton|reference)[\w.]*", text))
        for module in found:
            assert (me, f"mirage_dsl.{module}") in SHOWN, f"{_name(file)}: {module}"


def test_folders_import_each_other_in_one_direction() -> None:
    arrows: dict[str, set[str]] = {}
    for file in SOURCES:
        me = _module(file)
        for module in _imports(file):
            if (me, module) not in CALLED and file != PACKAGE / "__init__.py":
                arrows.setdefault(_unit(me), set()).add(_unit(module))
    for unit, others in arrows.items():
        others.discard(unit)
    try:
        list(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, its docstring aside."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node) is None:
        return lines
    text = node.body[0]
    return lines - ((text.end_lineno or text.lineno) - text.lineno + 1)


@pytest.mark.parametrize("file", WRITTEN, ids=_name)
def test_functions_are_short(file: Path) -> None:
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _code_lines(node)
            place = f"{_name(file)}:{node.lineno}"
            assert length <= MAX_FUNCTION_LINES, f"{place} {node.name}: {length} lines"


@pytest.mark.parametrize("file", SOURCES, ids=_name)
def test_every_module_says_what_it_is_for(file: Path) -> None:
    if file.stat().st_size:
        assert ast.get_docstring(_tree(file)), f"{_name(file)} has no docstring"


def _defined(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names that a module defines at its top, with their lines.

    Commands of the command line are left out: their decorators enter them.
    """
    for node in tree.body:
        targets: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not any("command(" in ast.unparse(d) for d in node.decorator_list):
                yield node.name, node.lineno
        elif isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.lineno


def _read(tree: ast.Module) -> Iterator[str]:
    """Names that a module reads, imports, or has as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                n
                for n in body
                if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


def test_everything_at_the_top_of_a_module_is_used() -> None:
    trees = {
        f: _without_docstrings(ast.parse(f.read_text(encoding="utf-8")))
        for f in SOURCES
    }
    read = {name for tree in trees.values() for name in _read(tree)}
    for file, tree in trees.items():
        # Rows are used by being in the table; the builder serves who writes by hand.
        if file in (PACKAGE / "ops" / "table.py", PACKAGE / "ir" / "builder.py"):
            continue
        for name, line in _defined(tree):
            used = name in read or name in UNREAD or name.startswith("__")
            assert used, f"{_name(file)}:{line}: {name} is used nowhere in the package"


WALKED = re.compile(
    r"\.result: \w+ for \w+ in [\w.]*nodes\b"
    r"|\[\s*\w+ for (\w+) in [\w.]*\w\.nodes if isinstance\(\1, (?:ir\.)?Apply\)\s*\]"
)
"""What makes each value, and a level's operators, gathered by hand."""


def test_graphs_are_walked_by_the_walk() -> None:
    walk = PACKAGE / "ir" / "walk.py"
    by_hand = [
        _name(f) for f in SOURCES if WALKED.search(f.read_text("utf-8")) and f != walk
    ]
    assert by_hand == [], "ir.walk has makers, and graphs have `applies`"
    assert WALKED.search(walk.read_text("utf-8"))
    assert WALKED.search("[n for n in graph.nodes if isinstance(n, Apply)]")
    assert WALKED.search("[n for n in graph.nodes if isinstance(n, ir.Apply)]")


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [f for f in files if f.is_file()]


def test_no_path_of_a_machine_is_written_down() -> None:
    homes = "|".join(("work", "tmp", "root", "home", "Users", "opt"))
    pattern = re.compile(rf"(?<![\w./~$}}-])/({homes})/\w")
    for file in _tracked():
        text = file.read_text(encoding="utf-8", errors="replace")
        found = pattern.search(text)
        assert not found, f"{_name(file)}: {found.group() if found else ''}"


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert not done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _python(
        f"import sys, mirage_dsl\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    )
    assert loaded == "", f"import mirage_dsl loads {loaded}"


def test_importing_the_package_is_fast() -> None:
    code = (
        "import time\nstart = time.perf_counter()\nimport mirage_dsl\n"
        "print(time.perf_counter() - start)"
    )
    seconds = min(float(_python(code)) for _ in range(3))
    assert seconds < 0.5 * slowness()


def test_the_library_never_prints() -> None:
    for file in SOURCES:
        if file.parent.name == "cli":
            continue
        for node in ast.walk(_tree(file)):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name):
                assert called.id != "print", f"{_name(file)}:{called.lineno} prints"
