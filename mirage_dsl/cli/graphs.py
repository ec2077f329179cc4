"""Commands on `.mu` files: show, check, verify, diff, explain, rewrite, fmt."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from pathlib import Path

import click

from mirage_dsl.cli.app import MU_FILE, answer, json_option, negative, say, say_json
from mirage_dsl.cli.inputs import read_graph, read_text, resize, trace_target
from mirage_dsl.core.errors import CheckError, ParseError, SourceLocation
from mirage_dsl.core.hardware import DEFAULT, HARDWARE
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.verify.certificate import Method

size_option = click.option(
    "--size",
    "sizes",
    multiple=True,
    metavar="DIM=EXTENT",
    help="Use another extent for a dim; may be repeated.",
)
spec_option = click.option(
    "--spec",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Dtype and shape of an argument, as in f16[16,4096]; one for each.",
)

device_option = click.option(
    "--device",
    default=DEFAULT.name,
    show_default=True,
    help=f"The GPU to estimate for: {', '.join(h.name for h in HARDWARE)}, a name that "
    "has one of them, or that of a GPU that was measured here.",
)


@click.command(
    "show",
    epilog="Examples: mirage-dsl show best.mu; mirage-dsl show best.mu --triton; "
    "mirage-dsl show best.mu --tiles",
)
@click.argument("file", type=MU_FILE)
@click.option("--triton", is_flag=True, help="Show the Triton source.")
@click.option(
    "--tiles",
    is_flag=True,
    help="Show the tile programs: what one block does, in order.",
)
@size_option
@json_option
def show_command(
    file: str, triton: bool, tiles: bool, sizes: tuple[str, ...], as_json: bool
) -> None:
    """Print the μGraph of FILE (.mu, or a saved search result), or what is made of it.

    FILE may be - for standard input.
    """
    if triton and tiles:
        raise click.UsageError("found --triton and --tiles, expected one of them")
    graph = resize(read_graph(file), sizes)
    if tiles:
        from mirage_dsl.tile.build import programs
        from mirage_dsl.tile.printer import to_text

        source = to_text(*programs(graph))
        answer(as_json, {"name": graph.name, "tiles": source}, source)
        return
    if triton:
        from mirage_dsl.backends.triton.lowering.emit import emit

        source = emit(graph)
        answer(as_json, {"name": graph.name, "triton": source}, source)
        return
    text = str(graph)
    value = {
        "name": graph.name,
        "text": text,
        "kernels": len(graph.blocks),
        "extents": dict(graph.extents),
    }
    answer(as_json, value, text)


@click.command("check", epilog="Example: mirage-dsl check examples/*.mu")
@click.argument("files", nargs=-1, required=True, type=MU_FILE)
@json_option
def check_command(files: tuple[str, ...], as_json: bool) -> None:
    """Say whether each of FILES holds a well-formed μGraph; exit 1 if one does not.

    Checks syntax, types, dims, stages and maps.  Whether it computes what it should is
    another question: see `mirage-dsl verify`.
    """
    found = {file: _problems(file) for file in files}
    if as_json:
        say_json([{"file": f, "ok": not p, "problems": p} for f, p in found.items()])
    else:
        for file, problems in found.items():
            say("\n".join(problems) if problems else f"{file}: ok")
    if any(found.values()):
        negative()


def _problems(file: str) -> list[str]:
    from mirage_dsl.ir.check.graph import check

    try:
        graph = read_graph(file)
    except (ParseError, CheckError) as error:
        return [str(error)]
    return [str(d) if d.location is not None else f"{file}: {d}" for d in check(graph)]


@click.command(
    "verify",
    epilog="Example: mirage-dsl verify edited.mu best.mu; "
    "mirage-dsl verify best.mu model.py:rms_linear --spec f16[16,4096] ...",
)
@click.argument("candidate", type=MU_FILE)
@click.argument("program")
@spec_option
@click.option("--seed", default=0, show_default=True, help="Of all random choices.")
@click.option(
    "--stability/--no-stability",
    default=True,
    show_default=True,
    help="Also compare floating-point errors.",
)
@click.option(
    "--method",
    type=click.Choice(["fields", "exact"]),
    default="fields",
    show_default=True,
    help="Residues, with a bound on errors; or exact normal forms, which decide less.",
)
@json_option
def verify_command(
    candidate: str,
    program: str,
    specs: tuple[str, ...],
    seed: int,
    stability: bool,
    method: Method,
    as_json: bool,
) -> None:
    """Say whether CANDIDATE computes the same function as PROGRAM; exit 1 if not.

    Both are .mu files; PROGRAM may also be FILE:FUNCTION with specs.  The answer comes
    from evaluation over finite fields at random inputs, at small sizes and for a few
    elements at the true ones, with a bound on the probability of error, and a
    counterexample where they differ.  With --method exact it comes from normal forms
    at tiny sizes, without chance, or is "unknown".
    """
    from mirage_dsl.verify.verifier import verify

    certificate = verify(
        read_graph(candidate),
        trace_target(program, specs),
        seed=seed,
        stability=stability,
        method=method,
    )
    answer(as_json, certificate.to_dict(), str(certificate))
    if not certificate.ok:
        negative()


@click.command("diff", epilog="Example: mirage-dsl diff best.mu edited.mu")
@click.argument("first", type=MU_FILE)
@click.argument("second", type=MU_FILE)
@json_option
def diff_command(first: str, second: str, as_json: bool) -> None:
    """Say what differs between two μGraphs, whatever their values are called.

    Exit 1 if they differ.
    """
    from mirage_dsl.ir.diff import diff

    text = diff(read_graph(first), read_graph(second))
    same = _same(read_graph(first), read_graph(second))
    answer(as_json, {"same": same, "diff": text}, text or "no difference")
    if not same:
        negative()


def _same(a: KernelGraph, b: KernelGraph) -> bool:
    from mirage_dsl.ir.canonical import canonical_hash

    return canonical_hash(a, schedule=True) == canonical_hash(b, schedule=True)


@click.command(
    "explain",
    epilog="Examples: mirage-dsl explain best.mu; "
    "mirage-dsl explain best.mu --program program.mu",
)
@click.argument("file", type=MU_FILE)
@click.option(
    "--program",
    metavar="PROGRAM",
    help="What to compare with: a .mu file, or FILE:FUNCTION with --spec.",
)
@device_option
@spec_option
@size_option
@json_option
def explain_command(
    file: str,
    program: str | None,
    device: str,
    specs: tuple[str, ...],
    sizes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say why the μGraph of FILE is fast: kernels, bytes, operations, what bounds it.

    With --program, beside that program run by library kernels.
    """
    from mirage_dsl.cost.explain import explain
    from mirage_dsl.tune.devices import device_named

    graph = resize(read_graph(file), sizes)
    other = None if program is None else trace_target(program, specs)
    explanation = explain(graph, other, device_named(device))
    answer(as_json, explanation.to_json(), str(explanation))


@click.command(
    "rewrite",
    epilog="Examples: mirage-dsl rewrite; mirage-dsl rewrite best.mu; "
    "mirage-dsl rewrite best.mu --by split-loop --by launch-early",
)
@click.argument("file", type=MU_FILE, required=False)
@click.option(
    "--by",
    "names",
    multiple=True,
    metavar="NAME",
    help="Apply this one and print what comes of it; may be repeated.",
)
@json_option
def rewrite_command(file: str | None, names: tuple[str, ...], as_json: bool) -> None:
    """List the rewrites that searches use, or those that change the μGraph of FILE.

    With --by, print it after them; exit 1 if they leave it as it is.
    """
    from mirage_dsl.search.rewrites import REWRITES

    if file is None:
        if names:
            raise click.UsageError("found --by without a FILE to rewrite")
        rows = REWRITES.values()
        lines = [f"{r.name}: {r.what}\n    {r.when}" for r in rows]
        value = {r.name: {"what": r.what, "when": r.when} for r in rows}
        answer(as_json, value, "\n".join(lines))
        return
    graph = read_graph(file)
    if not names:
        found = [n for n, row in REWRITES.items() if row(graph) != graph]
        answer(as_json, {"changes": found}, "\n".join(found) or "none changes it")
        return
    after = graph
    for name in names:
        if name not in REWRITES:
            raise click.UsageError(f"found --by {name}, expected {', '.join(REWRITES)}")
        after = REWRITES[name](after)
    answer(as_json, {"name": after.name, "text": str(after)}, str(after))
    if after == graph:
        negative()


# -- The standard form -----------------------------------------------------------------

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
