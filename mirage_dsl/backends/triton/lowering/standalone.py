"""Programs that run by themselves: an emitted module with inputs and a main."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from mirage_dsl.backends.library import torch_dtype
from mirage_dsl.backends.triton.lowering.emit import emit
from mirage_dsl.core.types import Axis, TensorType, boolean
from mirage_dsl.ir.graph import KernelGraph

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
    parts = [emit(graph), _checked(graph), _inputs(graph), MAIN]
    return "\n\n".join(parts)


def _checked(graph: KernelGraph) -> str:
    names = [f"x{place}" for place in range(len(graph.inputs))]
    listed = ", ".join(names)
    lines = [
        f"def checked_run({listed}):",
        '    """`run`, for tensors of the shapes and dtypes that it was made for."""',
        "    expected = [",
    ]
    for name, item in zip(names, graph.inputs, strict=True):
        shape = _tuple(_extents(item.type, graph.extent_of, "None"))
        lines.append(f"        ({name}, {shape}, {torch_dtype(item.type.dtype)}),")
    return "\n".join([*lines, "    ]", f"{CHECK}    return run({listed})", ""])


def _inputs(graph: KernelGraph) -> str:
    lines = [
        "def make_inputs(device):",
        '    """Random tensors that `checked_run` takes."""',
        "    made = []",
    ]
    for item in graph.inputs:
        extents = _extents(item.type, graph.extent_of, str(SYMBOLIC))
        layout = item.type.layout or range(len(extents))
        slowest_first = _tuple([extents[axis] for axis in layout])
        drawn = f"torch.randn({slowest_first}, device=device)"
        if item.type.dtype == boolean:
            drawn = f"({drawn} > 0)"
        else:
            drawn += f".to({torch_dtype(item.type.dtype)})"
        if item.type.layout is not None:
            drawn += f".permute({[*map(list(layout).index, range(len(extents)))]})"
        lines.append(f"    made.append({drawn})")
    return "\n".join([*lines, "    return made", ""])


def _extents(
    kind: TensorType, known: Mapping[str, int | None], symbolic: str
) -> list[str]:
    """The extent of each axis as text; `symbolic` where one of its dims is."""

    def extent(axis: Axis) -> str:
        sizes = [known[dim.name] for dim in axis]
        numbers = [size for size in sizes if size is not None]
        return str(prod(numbers)) if len(numbers) == len(sizes) else symbolic

    return [extent(axis) for axis in kind.axes]


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"
