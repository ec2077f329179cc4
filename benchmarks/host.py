"""Host time of a call, ours and others': `python -m benchmarks.host [--json FILE]`.

The time is that of Python and the driver for one call outside of CUDA graphs, and none
of the GPU's: the median of batches of calls that nobody waits for.  The μGraphs are
written by hand, so that nothing depends on what a search finds.  Each runs

- `ours`: as a `@mirage.kernel`;
- `triton`: the emitted module as it stands, with `kernel[grid](...)` and `torch.empty`;
- `eager` and `compiled`: the same program in PyTorch.
"""

# torch.compile is only partly typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import mirage_dsl as mirage
from benchmarks import torch_functions
from mirage_dsl.backends.triton.running.interpret import load_module
from mirage_dsl.backends.triton.running.launch import TritonExecutable
from mirage_dsl.core.types import f16
from mirage_dsl.ir.builder import KernelBuilder
from mirage_dsl.ir.graph import KernelGraph, Schedule
from mirage_dsl.tune.timing import host_microseconds
from tests.programs import mugraphs
from tests.programs.workloads import WORKLOADS

ROUNDS = 3
SCALE = 0.2
ROWS, COLUMNS = 16, 1024


@dataclass(frozen=True)
class Case:
    """What to call.

    Attributes:
        name: In words.
        function: The program, of a module of functions and of tensors.
        names: Of the tensors.
        shapes: Of the tensors.
        mugraph: What runs it; without it, library kernels.
    """

    name: str
    function: Callable[..., Any]
    names: Sequence[str]
    shapes: Sequence[Sequence[int]]
    mugraph: KernelGraph | None = None


@dataclass
class Row:
    """Host µs of a call.

    Attributes:
        name: What is called.
        kernels: Generated kernels.
        library: Library kernels.
        short: Whether it took the short way.
        ours: By the prepared call.
        keywords: The same with arguments by keyword.
        out: The same into a tensor of the caller.
        triton: Through `kernel[grid](...)`.
        eager: By PyTorch.
        compiled: By `torch.compile`, where that was asked for.
    """

    name: str
    kernels: int
    library: int
    short: bool
    ours: float
    keywords: float
    out: float
    triton: float
    eager: float
    compiled: float | None = None


def _chain(kernels: int, library: int = 0) -> Case:
    """Elementwise kernels in a row, and behind some of them one of the library's."""
    g = KernelBuilder("chain", m=ROWS, k=COLUMNS)
    value = g.input("x", f16, "m, k")
    for at in range(kernels):
        with g.block(grid={"m": 1}) as b:
            t = b.tanh(b.load(value, "m/grid, k"))
            value = b.store(t, "m/grid, k", dtype=f16)
        if at < library:
            value = g.tanh(value)

    def function(module: Any, x: Any) -> Any:
        for _ in range(kernels + library):
            x = module.tanh(x)
        return x

    name = f"{kernels} in a row" + f" around {library} of the library" * bool(library)
    shapes = ((ROWS, COLUMNS),)
    return Case(name, function, ("x",), shapes, g.returns(value).build())


def _of(workload: str, form: str, mugraph: KernelGraph | None = None) -> Case:
    found = next(w for w in WORKLOADS if w.name == workload)
    shapes = found.at_batch(1)
    names = tuple(shapes)
    name = f"{workload}, {form}"
    return Case(name, found.function, names, tuple(shapes.values()), mugraph)


def cases() -> list[Case]:
    """What is measured."""
    attention = functools.partial(mugraphs.attention, 2, 256, 4096, splits=16)
    mapped = Schedule(num_stages=4, descriptors=True)
    early = Schedule(num_stages=3, pdl=True)
    both = Schedule(num_stages=3, pdl=True, descriptors=True)
    mlp = functools.partial(mugraphs.gated_mlp, 8, 4096, 4096)
    return [
        _of("gated_mlp", "pointers", mlp()),
        _of("gated_mlp", "descriptors", mlp(schedule=mapped)),
        _of("rmsnorm_linear", "pointers", mugraphs.rmsnorm_linear(2, 4096, 6144)),
        _of("ntrans", "pointers", mugraphs.ntrans(8, 4096)),
        _of("gqa", "two kernels", attention(schedule=early)),
        _of("gqa", "two kernels, descriptors", attention(schedule=both)),
        *(_chain(kernels) for kernels in (1, 2, 4, 8)),
        _chain(2, library=1),
        _of("rmsnorm_linear", "unfused"),
        _of("gated_mlp", "unfused"),
    ]


def kernel_of(case: Case) -> mirage.Kernel:
    """The program as a user writes it."""
    names = ", ".join(case.names)
    scope: dict[str, Any] = {"function": case.function, "mirage": mirage}
    exec(f"def program({names}):\n    return function(mirage, {names})\n", scope)
    return mirage.kernel(effort="none")(scope["program"])


def _host(call: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> float:
    return min(host_microseconds(call, inputs) for _ in range(ROUNDS))


def measure(case: Case, *, compare: bool) -> Row:
    """Time the calls of one case."""
    inputs = [SCALE * torch.randn(*s, device="cuda") for s in case.shapes]
    inputs = [t.half() for t in inputs]
    kernel = kernel_of(case)
    bound = kernel.bind(*inputs)
    if case.mugraph is not None:
        bound.use(case.mugraph)
    found = kernel(*inputs)
    graph = bound.mugraph

    def by_keyword(*tensors: torch.Tensor) -> Any:
        return kernel(**dict(zip(case.names, tensors, strict=True)))

    run = vars(load_module(TritonExecutable(graph).source))["run"]
    eager = functools.partial(case.function, torch_functions)
    torch.compiler.reset()
    return Row(
        case.name,
        kernels=len(graph.blocks),
        library=len(graph.nodes) - len(graph.blocks),
        short=bound.prepared(inputs).guarded is not None,
        ours=_host(kernel, inputs),
        keywords=_host(by_keyword, inputs),
        out=_host(functools.partial(kernel, out=found), inputs),
        triton=_host(run, inputs),
        eager=_host(eager, inputs),
        compiled=_host(torch.compile(eager), inputs) if compare else None,
    )


def _line(row: Row) -> str:
    compiled = f"{row.compiled:8.1f}" if row.compiled is not None else "       -"
    return (
        f"{row.name:40s} {row.kernels:3d} {row.library:3d} "
        f"{'yes' if row.short else 'no':>5s} {row.ours:8.1f} {row.keywords:8.1f} "
        f"{row.out:8.1f} {row.triton:8.1f} "
        f"{row.eager:8.1f} {compiled}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true", help="torch.compile too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks.host needs a CUDA device; none was found", file=sys.stderr)
        return 2
    print(
        "call, kernels, library's, short way, ours, by keyword, out=, triton, eager, "
        "compiled (µs)"
    )
    rows: list[Row] = []
    for case in cases():
        rows.append(measure(case, compare=options.compare))
        print(_line(rows[-1]), flush=True)
    if options.json:
        document = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": importlib.metadata.version("triton"),
            "rows": [asdict(r) for r in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
