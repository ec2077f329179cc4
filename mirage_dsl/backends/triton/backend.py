"""Triton as a backend: what `backends.base` asks of one, and programs for readers.

On a GPU kernels are compiled and launched.  Tensors of the CPU are computed by Triton's
interpreter where the settings say so, which is slow; where they do not, nothing of what
is below is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from mirage_dsl.backends.base import Backend
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.settings import INTERPRET
from mirage_dsl.core.types import Axis, TensorType, boolean, torch_dtype
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ir.maps import Extents

if TYPE_CHECKING:
    from mirage_dsl.backends.triton.running.launch import TritonExecutable
    from mirage_dsl.backends.triton.running.screen import KernelReport

DEVICES = ("cpu", "cuda")
_COMPILING = ("torch", "triton.compiler", "triton.tools.tensor_descriptor")
"""What is imported before the first kernel is compiled."""


class Triton(Backend):
    """Kernels in Triton, library kernels by PyTorch."""

    name = "triton"
    packages = ("triton",)
    tuned = True

    def takes(self, device: str) -> bool:
        """CUDA tensors, and those of the CPU where kernels are to be interpreted."""
        return device == "cuda" or INTERPRET.get()

    def emit(self, graph: KernelGraph) -> str:
        """A Python module: kernels, and a function `run` that launches them."""
        from mirage_dsl.backends.triton.lowering.emit import emit

        return emit(graph)

    def compile(
        self, graph: KernelGraph, device: str, *, most: Mapping[str, int] | None = None
    ) -> TritonExecutable:
        """What launches the module, or interprets it on the CPU."""
        from mirage_dsl.backends.triton.running.launch import TritonExecutable

        if device not in DEVICES:
            raise UnsupportedError(
                f"device={device!r}; Triton runs on one of {', '.join(DEVICES)}"
            )
        return TritonExecutable(graph, interpret=device == "cpu", most=most)

    def report(
        self,
        graph: KernelGraph,
        target: str | None = None,
        *,
        kernels: Sequence[int] | None = None,
    ) -> list[KernelReport]:
        """What ptxas made of each kernel."""
        from mirage_dsl.backends.triton.running.screen import TARGET, compile_only

        return compile_only(graph, target or TARGET, kernels=kernels)

    def load(self, device: str | None = None) -> None:
        """Import the compiler; for a GPU start Triton's driver too."""
        for name in _COMPILING:
            importlib.import_module(name)
        if device == "cuda":
            from triton.runtime.driver import driver

            active: Any = driver.active
            active.get_current_device()


# -- Programs that run by themselves: an emitted module with inputs and a main ---------

SYMBOLIC = 128
"""What inputs of a program's main have for a symbolic extent."""

MAIN = """\
if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not triton.knobs.runtime.interpret:
        raise SystemExit("PyTorch sees no GPU; TRITON_INTERPRET=1 runs this without")
    for output in checked_run(*make_inputs(device)):
        print(tuple(output.shape), output.dtype, output.flatten()[:4].tolist())
"""

CHECK = """\
    for place, (tensor, shape, dtype) in enumerate(expected):
        alike = len(shape) == tensor.ndim and tensor.dtype == dtype
        if not alike or any(e not in (None, n) for e, n in zip(shape, tensor.shape)):
            raise ValueError(
                f"input {place}: found {tuple(tensor.shape)} of {tensor.dtype}, "
                f"expected {shape} of {dtype}"
            )
"""


def standalone(graph: KernelGraph) -> str:
    """The emitted module, with a check of shapes, random inputs and a main.

    `checked_run(*tensors)` is `run` for tensors of its shapes and dtypes alone, an
    axis of a symbolic extent being of any; `make_inputs(device)` makes some.

    Raises:
        UnsupportedError: Triton cannot express something of the graph.
    """
    from mirage_dsl.backends.triton.lowering.emit import emit

    dtypes = [torch_dtype(item.type.dtype) for item in graph.inputs]
    parts = [emit(graph), _checked(graph, dtypes), _inputs(graph, dtypes), MAIN]
    return "\n\n".join(parts)


def _checked(graph: KernelGraph, dtypes: Sequence[str]) -> str:
    names = [f"x{place}" for place in range(len(graph.inputs))]
    listed = ", ".join(names)
    lines = [
        f"def checked_run({listed}):",
        '    """`run`, for tensors of the shapes and dtypes that it was made for."""',
        "    expected = [",
    ]
    for name, item, dtype in zip(names, graph.inputs, dtypes, strict=True):
        shape = _tuple(_extents(item.type, graph.extent_of, "None"))
        lines.append(f"        ({name}, {shape}, {dtype}),")
    return "\n".join([*lines, "    ]", f"{CHECK}    return run({listed})", ""])


def _inputs(graph: KernelGraph, dtypes: Sequence[str]) -> str:
    lines = [
        "def make_inputs(device):",
        '    """Random tensors that `checked_run` takes."""',
        "    made = []",
    ]
    for item, dtype in zip(graph.inputs, dtypes, strict=True):
        extents = _extents(item.type, graph.extent_of, str(SYMBOLIC))
        layout = item.type.layout or range(len(extents))
        slowest_first = _tuple([extents[axis] for axis in layout])
        drawn = f"torch.randn({slowest_first}, device=device)"
        if item.type.dtype == boolean:
            drawn = f"({drawn} > 0)"
        else:
            drawn += f".to({dtype})"
        if item.type.layout is not None:
            drawn += f".permute({[*map(list(layout).index, range(len(extents)))]})"
        lines.append(f"    made.append({drawn})")
    return "\n".join([*lines, "    return made", ""])


def _extents(kind: TensorType, known: Extents, symbolic: str) -> list[str]:
    """The extent of each axis as text; `symbolic` where one of its dims is."""

    def extent(axis: Axis) -> str:
        sizes = [known[dim.name] for dim in axis]
        numbers = [size for size in sizes if size is not None]
        return str(prod(numbers)) if len(numbers) == len(sizes) else symbolic

    return [extent(axis) for axis in kind.axes]


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"
