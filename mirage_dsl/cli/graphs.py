"""Commands on functions and μGraphs, which are read from FILE:FUNCTION and `.mu` files.

`search` makes μGraphs of a function.  `show`, `check`, `verify`, `diff`, `explain` and
`rewrite` look at what is computed and how; `run`, `compile` and `bench` execute it;
`fmt` writes a file in the standard form.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import numpy as np
from numpy.typing import NDArray

from mirage_dsl.cli.app import (
    ERROR,
    MU_FILE,
    NEGATIVE,
    NEW_RESULT,
    NEW_TEXT,
    SEED,
    answer,
    fail,
    json_option,
    negative,
    progress_bar,
    say,
    say_json,
)
from mirage_dsl.core.errors import (
    CacheError,
    CheckError,
    CompileError,
    MirageError,
    ParseError,
    ShapeError,
    SourceLocation,
    TraceError,
    location_of_error,
)
from mirage_dsl.core.hardware import DEFAULT, EARLIEST, HARDWARE, architecture_named
from mirage_dsl.core.settings import EFFORTS, Effort
from mirage_dsl.core.types import MAX_EXTENT, TensorSpec, boolean, dtype_named
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import Input, KernelGraph
from mirage_dsl.ir.maps import derived_extents, known_extents
from mirage_dsl.ir.text.parser import parse
from mirage_dsl.ir.text.printer import to_text
from mirage_dsl.verify.certificate import Method

if TYPE_CHECKING:
    import torch

    from mirage_dsl.search.result import Candidate, SearchResult


# -- What commands are given -----------------------------------------------------------

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

_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
_SIZE = re.compile(r"(?P<name>[^=\s]+)=(?P<extent>[1-9][0-9]*)")


def read_text(path: str) -> str:
    """The text of a file; `-` is standard input.

    Raises:
        ParseError: The file is no text.
    """
    content = _standard_input() if path == "-" else Path(path).read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError(f"{path} is no UTF-8 text: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _standard_input() -> bytes:
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise ParseError("there is no standard input to read; name a file")
    return stream.read()


def read_graph(path: str) -> KernelGraph:
    """The graph of a `.mu` file, or the best one of a saved search result."""
    text = read_text(path)
    if path.endswith(".json"):
        from mirage_dsl.search.result import SearchResult

        return SearchResult.load(path).best.mugraph
    return parse(text, path)


def resize(graph: KernelGraph, sizes: Sequence[str]) -> KernelGraph:
    """The graph with extents replaced, as in `--size m=8`.

    Raises:
        CheckError: It is not well formed at these sizes.
    """
    if not sizes:
        return graph
    chosen: dict[str, int] = {}
    for size in sizes:
        found = _SIZE.fullmatch(size)
        if found is None:
            raise click.BadParameter(
                f"{size!r}: expected NAME=EXTENT, as in m=16", param_hint="--size"
            )
        if found["name"] in chosen:
            raise click.BadParameter(
                f"{found['name']} is given twice", param_hint="--size"
            )
        chosen[found["name"]] = _extent(found["extent"], size, "--size")
    unknown = sorted(chosen.keys() - graph.extent_of.keys())
    if unknown:
        raise click.BadParameter(
            f"{graph.name} has no dim {', '.join(unknown)}; its dims are "
            f"{', '.join(graph.extent_of)}",
            param_hint="--size",
        )
    resized = graph.with_extents(chosen)
    resized = graph.with_extents(derived_extents(resized))
    check_or_raise(resized)
    return resized


def parse_spec(text: str) -> TensorSpec:
    """`f16[16,4096]`: dtype and shape; a name in the shape is a symbolic extent."""
    found = _SPEC.fullmatch(text.replace(" ", ""))
    dtype = dtype_named(found["dtype"]) if found else None
    if found is None or dtype is None:
        raise click.BadParameter(
            f"{text!r}: expected a dtype (f16, bf16, f32, i32, bool, ...) and a shape, "
            "as in f16[16,4096]",
            param_hint="--spec",
        )
    shape: list[int | str] = []
    for part in found["shape"].split(",") if found["shape"] else ():
        if not re.fullmatch(r"[1-9][0-9]*|[A-Za-z_]\w*", part):
            raise click.BadParameter(
                f"{text!r}: {part!r} is neither a positive number nor a name",
                param_hint="--spec",
            )
        shape.append(_extent(part, text, "--spec") if part.isdigit() else part)
    return TensorSpec(dtype, tuple(shape))


def _extent(digits: str, given: str, option: str) -> int:
    """The extent that an argument of the command line states.

    Raises:
        click.BadParameter: It is larger than any.
    """
    if len(digits) > len(str(MAX_EXTENT)) or int(digits) > MAX_EXTENT:
        raise click.BadParameter(
            f"{given[:60]!r}: an extent is at most {MAX_EXTENT} (2**63 - 1)",
            param_hint=option,
        )
    return int(digits)


def load_function(target: str) -> Callable[..., Any]:
    """The Python function of `FILE:FUNCTION`, without its decorator."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise click.BadParameter(
            f"{target!r}: expected FILE:FUNCTION, as in model.py:rms_linear",
            param_hint="FILE:FUNCTION",
        )
    if not Path(path).is_file():
        raise click.BadParameter(f"there is no file {path}", param_hint="FILE:FUNCTION")
    with _code_of_users():
        module = _load_module(Path(path))
    found = getattr(module, name, None)
    function = getattr(found, "function", found)
    if not callable(function):
        names = [n for n, v in vars(module).items() if _offered(v, module.__name__)]
        raise click.BadParameter(
            f"{path} has no function {name}; it has {', '.join(names) or 'none'}",
            param_hint="FILE:FUNCTION",
        )
    return function


@contextmanager
def _code_of_users() -> Generator[None]:
    """Run code of the user's: what it prints is no result, what it raises has a line.

    Raises:
        TraceError: The code raised something else than an error of this package.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (MirageError, click.ClickException):
        raise
    except SyntaxError as error:
        text = (error.text or "").rstrip("\n")
        place = SourceLocation(
            error.filename or "", error.lineno or 1, text, error.offset or None
        )
        raise TraceError(f"{type(error).__name__}: {error.msg}", place) from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise TraceError(said, location_of_error(error)) from error


def _load_module(path: Path) -> ModuleType:
    name = f"_mirage_dsl_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # As when Python runs the file, so that it can import its neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _offered(value: object, module: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module


def trace_target(target: str, specs: Sequence[str]) -> KernelGraph:
    """The program of `FILE:FUNCTION` at the given specs, or that of a `.mu` file."""
    if target.endswith((".mu", ".json")) or target == "-":
        if specs:
            raise click.BadParameter(
                f"{target} says what its inputs are; specs are for FILE:FUNCTION",
                param_hint="--spec",
            )
        return read_graph(target)
    from mirage_dsl.frontend.trace import trace_function

    function = load_function(target)
    given = [parse_spec(s) for s in specs]
    signature = inspect.signature(function)
    try:
        signature.bind(*given)
    except TypeError as error:
        name = target.rpartition(":")[2]
        raise click.BadParameter(
            f"{len(given)} given for {name}{signature}: {error}; give one for each "
            "argument, in their order",
            param_hint="--spec",
        ) from None
    with _code_of_users():
        return trace_function(function, given)


# -- What is computed, and how ---------------------------------------------------------


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
        from mirage_dsl.tile.text import to_text

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
    another question: see `mirage-dsl verify`.  All are checked; exit 2 if one cannot be
    read.
    """
    found = [(file, *_checked(file)) for file in files]
    if as_json:
        say_json([{"file": f, "ok": not p, "problems": p} for f, _, p in found])
    else:
        for file, _, problems in found:
            say("\n".join(problems) if problems else f"{file}: ok")
    code = max(code for _, code, _ in found)
    if code:
        sys.exit(code)


def _checked(file: str) -> tuple[int, list[str]]:
    """The exit code that one file asks for, and what is wrong with it."""
    from mirage_dsl.ir.check import check

    try:
        graph = read_graph(file)
    except (ParseError, CheckError) as error:
        return NEGATIVE, [str(error)]
    except CacheError as error:
        return ERROR, [str(error)]
    except OSError as error:
        return ERROR, [f"{file}: {error.strerror}"]
    found = check(graph)
    problems = [str(d) if d.location is not None else f"{file}: {d}" for d in found]
    return NEGATIVE if problems else 0, problems


@click.command(
    "verify",
    epilog="Example: mirage-dsl verify edited.mu best.mu; "
    "mirage-dsl verify best.mu model.py:rms_linear --spec f16[16,4096] ...",
)
@click.argument("candidate", type=MU_FILE)
@click.argument("program")
@spec_option
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of all random choices."
)
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
    from mirage_dsl.ir.canonical import diff

    both = read_graph(first), read_graph(second)
    text, same = diff(*both), _same(*both)
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

    if specs and program is None:
        raise click.UsageError("found --spec without a --program to trace")
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


# -- Execution -------------------------------------------------------------------------

Array = NDArray[Any]


@click.command(
    "run",
    epilog="Examples: mirage-dsl run best.mu --size k=256; "
    "mirage-dsl run best.mu --interpret --size m=4 --size k=256 --size n=128",
)
@click.argument("file", type=MU_FILE)
@click.option("--program", type=MU_FILE, help="The .mu file to compare with.")
@click.option("--interpret", is_flag=True, help="Run the Triton code on the CPU.")
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of the random inputs."
)
@size_option
@json_option
def run_command(
    file: str,
    program: str | None,
    interpret: bool,
    seed: int,
    sizes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the μGraph of FILE on random inputs; print shapes and errors.

    On a GPU the emitted kernels run; with --interpret they run in Triton's
    interpreter, which is slow, so give small sizes; else the evaluator runs, rounding
    as the kernels would.  The reference is the same graph, or PROGRAM, in float64.
    """
    from mirage_dsl.ir.evaluate import evaluate_numpy

    graph = resize(read_graph(file), sizes)
    reference = graph if program is None else resize(read_graph(program), sizes)
    arrays = random_inputs(graph, seed)
    how, outputs = _execute(graph, arrays, interpret=interpret)
    expected = evaluate_numpy(reference, *arrays)
    errors = [relative_error(a, b) for a, b in zip(outputs, expected, strict=True)]
    lines = [f"{graph.name} by {how}"]
    lines += [
        f"output {i}: shape {out.shape}, relative error {error:.2e}"
        for i, (out, error) in enumerate(zip(outputs, errors, strict=True))
    ]
    records = [
        {"shape": list(out.shape), "error": error}
        for out, error in zip(outputs, errors, strict=True)
    ]
    answer(as_json, {"by": how, "outputs": records}, "\n".join(lines))


def shape_of(item: Input, graph: KernelGraph) -> tuple[int, ...]:
    """The shape of an input.

    Raises:
        ShapeError: An extent is symbolic.
    """
    for name in item.type.names:
        if graph.extent_of[name] is None:
            raise ShapeError(
                f"the extent of {name} is symbolic; set it with --size {name}=16"
            )
    return item.type.shape_at(known_extents(graph.extent_of))


def random_inputs(graph: KernelGraph, seed: int) -> list[Array]:
    """Normal numbers in the inputs' dtypes; truth values where they are above 0.

    Integers are spread over what their format holds, up to thousands; indices lie in
    what is indexed.
    """
    from mirage_dsl.ir.analysis.integers import Limit, index_limits
    from mirage_dsl.ir.evaluate import numpy_dtype

    generator = np.random.default_rng(seed)
    limits = index_limits(graph)
    found: list[Array] = []
    for item in graph.inputs:
        dtype = item.type.dtype
        drawn = generator.standard_normal(shape_of(item, graph))
        if dtype.is_integer:
            inside = limits.get(item.name, Limit(0, 4096)).from_front
            most = min(len(inside), int(dtype.max))
            drawn = np.floor(np.abs(drawn) * 1024) % most + inside.start
        elif dtype == boolean:
            drawn = drawn > 0
        found.append(drawn.astype(numpy_dtype(dtype)))
    return found


def relative_error(found: Array, expected: Array) -> float:
    """‖found − expected‖ / ‖expected‖."""
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / (norm or 1.0)


def _execute(
    graph: KernelGraph, arrays: list[Array], *, interpret: bool
) -> tuple[str, list[Array]]:
    import torch

    from mirage_dsl.ir.evaluate import evaluate_numpy

    gpu = torch.cuda.is_available() and not interpret
    if not gpu and not interpret:
        outputs = evaluate_numpy(graph, *arrays, compute=np.float32, round_casts=True)
        return "the evaluator in float32", outputs
    from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named

    tensors = [_to_torch(a) for a in arrays]
    if gpu:
        tensors = [t.cuda() for t in tensors]
    backend = backend_named(DEFAULT_BACKEND)
    found = backend.compile(graph, "cuda" if gpu else "cpu")(*tensors)
    how = torch.cuda.get_device_name() if gpu else "Triton's interpreter"
    return how, [t.double().cpu().numpy() for t in found]


def _to_torch(array: Array) -> torch.Tensor:
    import torch

    if array.dtype.kind in "iu":
        return torch.as_tensor(array)
    exact = torch.as_tensor(array.astype(np.float32))
    return exact.to(getattr(torch, array.dtype.name))


@click.command(
    "compile",
    epilog=f"Example: mirage-dsl compile best.mu --target {EARLIEST.target}",
)
@click.argument("file", type=MU_FILE)
@click.option(
    "--target",
    default=DEFAULT.architecture.target,
    show_default=True,
    help=f"{EARLIEST.target} or a later one.",
)
@size_option
@json_option
def compile_command(
    file: str, target: str, sizes: tuple[str, ...], as_json: bool
) -> None:
    """Compile the μGraph of FILE and report registers, shared memory and spills.

    Needs no GPU.  Exit 1 if a kernel is not worth running: it spills registers, needs
    too much shared memory, or waits for each load.
    """
    from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named

    if not architecture_named(target).supported:
        raise click.BadParameter(
            f"kernels are made for {EARLIEST.target} and later", param_hint="--target"
        )
    graph = resize(read_graph(file), sizes)
    reports = backend_named(DEFAULT_BACKEND).report(graph, target)
    reasons = [r for r in (each.rejection() for each in reports) if r is not None]
    if as_json:
        say_json({"target": target, "kernels": reports, "rejected": reasons})
    else:
        say(f"{graph.name} for {target}")
        for report in reports:
            say(f"{report.name}:")
            for name, value in list(asdict(report).items())[1:]:
                shown = f"{value:.2f}" if isinstance(value, float) else value
                say(f"  {name.replace('_', ' '):<16} {shown}")
        for reason in reasons:
            say(f"rejected: {reason}")
    if reasons:
        negative()


@click.command("bench", epilog="Example: mirage-dsl bench best.mu program.mu")
@click.argument("file", type=MU_FILE)
@click.argument("program", type=MU_FILE)
@size_option
@json_option
def bench_command(
    file: str, program: str, sizes: tuple[str, ...], as_json: bool
) -> None:
    """Time the μGraph of FILE beside that of PROGRAM on the current GPU.

    Both are .mu files of the same function: a program as it was traced runs by library
    kernels.  Measured in a CUDA graph with inputs that are not in the cache.
    """
    import torch

    if not torch.cuda.is_available():
        raise CompileError(
            "bench needs a CUDA device, and PyTorch finds none; `mirage-dsl explain` "
            "estimates times, and `mirage-dsl compile` screens kernels, without one"
        )
    from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
    from mirage_dsl.tune.timing import time_both

    graph = resize(read_graph(file), sizes)
    other = resize(read_graph(program), sizes)
    compiled = backend_named(DEFAULT_BACKEND).compile
    result = time_both(compiled(graph, "cuda"), compiled(other, "cuda"), graph)
    answer(as_json, asdict(result), str(result))


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
        inside = (found for found in path.rglob("*.mu") if found.is_file())
        files += sorted(inside) if path.is_dir() else [path]
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


_EPILOG = f"""
\b
Examples:
  mirage-dsl search model.py:rms_linear --spec f16[16,4096] --spec f16[4096,6144]
  mirage-dsl search model.py:attention --spec f16[2,256,64] --spec f16[2,64,4096] \\
      --spec f16[2,4096,64] --max-kernels 3 --effort full -o best.mu
  mirage-dsl search program.mu --size m=8 --json
  mirage-dsl search program.mu --device {HARDWARE[-1].name} --explain mine.mu
"""


@click.command("search", epilog=_EPILOG)
@click.argument("target", metavar="FILE:FUNCTION")
@spec_option
@click.option("--size", "sizes", multiple=True, metavar="DIM=EXTENT", help="Set a dim.")
@click.option("--effort", type=click.Choice(EFFORTS), help="How long to search.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time limit.",
)
@click.option(
    "--max-kernels",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Most kernels that the program may be cut into; 0 for any number.",
)
@device_option
@click.option(
    "--seed", type=SEED, default=0, show_default=True, help="Of all random choices."
)
@click.option("--no-cache", is_flag=True, help="Search anew, and store nothing.")
@click.option("--all", "show_all", is_flag=True, help="Print all μGraphs found.")
@click.option("-o", "--output", type=NEW_TEXT, help="Write the best to a .mu file.")
@click.option("--save", type=NEW_RESULT, help="Write the whole result to a file.")
@click.option(
    "--explain",
    "given",
    type=MU_FILE,
    help="Say why this μGraph was not found, or where it was.",
)
@json_option
def search_command(
    target: str,
    specs: tuple[str, ...],
    sizes: tuple[str, ...],
    effort: Effort | None,
    budget: float | None,
    max_kernels: int,
    device: str,
    seed: int,
    no_cache: bool,
    show_all: bool,
    output: str | None,
    save: str | None,
    given: str | None,
    as_json: bool,
) -> None:
    """Search for the fastest verified equivalents of a function, or of a .mu program.

    FUNCTION is an ordinary Python function on tensors, decorated or not; it is traced
    at the given specs.  What was found before comes from the cache.
    """
    from mirage_dsl.search.why_not import why_not
    from mirage_dsl.store.superoptimize import superoptimize
    from mirage_dsl.tune.devices import device_named

    mine = None if given is None else read_graph(given)
    row, most = device_named(device), max_kernels or None
    program = resize(trace_target(target, specs), sizes)
    with progress_bar(quiet=as_json) as progress:
        result = superoptimize(
            program,
            effort=effort,
            budget_seconds=budget,
            max_kernels=most,
            use_cache=not no_cache,
            hardware=row,
            seed=seed,
            progress=progress,
        )
    _write(result, output, save, as_json=as_json)
    if mine is None:
        answer(as_json, result.to_json(), describe(result, show_all=show_all))
        return
    found = why_not(mine, program, result, max_kernels=most, hardware=row, seed=seed)
    answer(as_json, found.to_json(), str(found))


def _write(
    result: SearchResult, output: str | None, save: str | None, *, as_json: bool
) -> None:
    """The best μGraph and the whole result, to the files that are asked for.

    Where that fails the result is printed: the search is not to be lost.
    """
    try:
        if output is not None:
            Path(output).write_text(str(result.best.mugraph), encoding="utf-8")
        if save is not None:
            result.save(save)
    except OSError as error:
        answer(as_json, result.to_json(), describe(result))
        fail(error, as_json=False)


def describe(result: SearchResult, *, show_all: bool = False) -> str:
    """A search result for people: counts, a table, the best text."""
    lines = [
        f"{len(result)} μGraphs in {result.seconds:.2f} s; {_state(result)}",
        *([] if result.proof is None else [str(result.proof)]),
        str(result.ledger),
        "",
        f"{'':>3} {'estimate':>10} {'kernels':>8} {'DRAM':>9}  verified",
    ]
    lines += [_row(i, c) for i, c in enumerate(result.candidates)]
    chosen: Any = result.candidates if show_all else result.candidates[:1]
    for candidate in chosen:
        lines += ["", str(candidate.mugraph).rstrip("\n")]
    return "\n".join(lines)


def _state(result: SearchResult) -> str:
    if result.complete:
        return "the whole space was searched"
    if result.cut_short:
        return "cut short: with more time there may be more"
    return "limits of the space were met"


def _row(number: int, candidate: Candidate) -> str:
    cost, certificate = candidate.cost, candidate.certificate
    if certificate is None:
        verified = "the program itself"
    else:
        stable = certificate.stability is None or certificate.stability.ok
        verified = f"error <= {certificate.error_bound:.0e}"
        verified += "" if stable else ", unstable"
    return (
        f"{number:>3} {cost.microseconds:>7.1f} µs {cost.launches:>8} "
        f"{cost.bytes / 1e6:>6.1f} MB  {verified}"
    )
