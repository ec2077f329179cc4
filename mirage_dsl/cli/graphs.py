"""Commands on `.mu` files: show, check, verify, diff, explain, rewrite."""

from __future__ import annotations

import click

from mirage_dsl.cli.inputs import read_graph, resize, trace_target
from mirage_dsl.cli.output import MU_FILE, answer, json_option, negative, say, say_json
from mirage_dsl.core.errors import CheckError, ParseError
from mirage_dsl.core.hardware import DEFAULT, HARDWARE
from mirage_dsl.ir.graph import KernelGraph
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
