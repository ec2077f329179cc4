"""Commands that compile or run μGraphs: run, compile, bench."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

from mirage_dsl.cli.app import (
    MU_FILE,
    answer,
    json_option,
    negative,
    say,
    say_json,
)
from mirage_dsl.cli.graphs import size_option
from mirage_dsl.cli.inputs import read_graph, resize
from mirage_dsl.core.errors import CompileError, ShapeError
from mirage_dsl.core.hardware import DEFAULT, EARLIEST
from mirage_dsl.core.types import boolean
from mirage_dsl.ir.analysis.integers import Limit, index_limits
from mirage_dsl.ir.evaluate.floats import evaluate_numpy, numpy_dtype
from mirage_dsl.ir.graph import Input, KernelGraph

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]


@click.command(
    "run",
    epilog="Examples: mirage-dsl run best.mu --size k=256; "
    "mirage-dsl run best.mu --interpret --size m=4 --size k=256 --size n=128",
)
@click.argument("file", type=MU_FILE)
@click.option("--program", type=MU_FILE, help="The .mu file to compare with.")
@click.option("--interpret", is_flag=True, help="Run the Triton code on the CPU.")
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
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
    shape: list[int] = []
    for axis in item.type.axes:
        extent = 1
        for dim in axis:
            known = graph.extent_of[dim.name]
            if known is None:
                raise ShapeError(
                    f"the extent of {dim.name} is symbolic; set it with "
                    f"--size {dim.name}=16"
                )
            extent *= known
        shape.append(extent)
    return tuple(shape)


def random_inputs(graph: KernelGraph, seed: int) -> list[Array]:
    """Normal numbers in the inputs' dtypes; truth values where they are above 0.

    Integers are spread over what their format holds, up to thousands; indices lie in
    what is indexed.
    """
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
