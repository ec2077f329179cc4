"""The backend `numpy_tiles`: NumPy functions, called for one block after the other.

An example, which `CONTRIBUTING.md` walks through.  It prints tile programs (`printer`)
and lets the reference evaluator be the host: what runs library kernels and calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirage_dsl.backends.base import Backend, Report
from mirage_dsl.backends.reference import Evaluated, Function
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import dtype_named, f32
from mirage_dsl.ir.evaluate import as_format, numpy_dtype
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tile.build import programs
from tests.backends.numpy_tiles.printer import Printer


class NumpyTiles(Backend):
    """Kernels as NumPy functions, library kernels by the evaluator."""

    name, packages, tuned = "numpy_tiles", ("numpy",), False
    printer = Printer

    def takes(self, device: str) -> bool:
        """Tensors of the CPU."""
        return device == "cpu"

    def emit(self, graph: KernelGraph) -> str:
        """One function for each graph-defined kernel, in launch order."""
        if any(extent is None for _, extent in graph.extents):
            raise UnsupportedError(f"{graph.name}: NumPy is printed for known extents")
        return "\n\n".join(self.printer(p).source() for p in programs(graph))

    def compile(
        self, graph: KernelGraph, device: str, *, most: Mapping[str, int] | None = None
    ) -> Evaluated:
        """What runs it; for symbolic extents it prints when it sees them."""
        if not self.takes(device):
            raise UnsupportedError(f"{self.name} runs on the CPU, not on {device}")
        programs(graph, most=most)
        return Evaluated(graph, self.emit, self.kernels, most)

    def report(self, graph: KernelGraph, target: str | None = None) -> list[Report]:  # noqa: ARG002
        """Python needs nothing that could be counted."""
        return [Report(p.name, None, None, None) for p in programs(graph)]

    def load(self, device: str | None = None) -> None:
        """All is loaded."""

    def kernels(self, graph: KernelGraph) -> list[Function]:
        """The functions, which the host calls for one block after the other."""
        scope = {f.__name__: f for f in (span, read, write, rounded, finite, as_format)}
        scope |= {"np": np, "rows": {name: op.numpy for name, op in OPERATORS.items()}}
        exec(self.emit(graph), scope)
        return [scope[p.name] for p in programs(graph)]


# -- What functions call ---------------------------------------------------------------


def span(start: int, lanes: int, size: int, *ends: int) -> tuple[Any, Any]:
    """Positions of a piece's lanes, and which hold its elements."""
    lane = np.arange(lanes)
    return start + lane, (lane < size) & (start + lane < min(ends))


def read(tensor: Any, at: Sequence[Any], inside: Any, beyond: str) -> Any:
    """A tile: 0 outside of `inside`, `beyond` where the tensor has no element."""
    odd = np.float32(beyond) if tensor.dtype.kind == "f" else 107
    padded = np.pad(tensor, (0, 1), constant_values=odd)
    found = padded[tuple(map(np.minimum, at, tensor.shape))]
    return np.where(inside, found, found.dtype.type(0))


def write(tensor: Any, at: Sequence[Any], inside: Any, tile: Any) -> None:
    """Store the lanes that are inside."""
    *places, kept, lanes = np.broadcast_arrays(*at, inside, tile)
    tensor[tuple(p[kept] for p in places)] = lanes[kept] if places else lanes


def rounded(tile: Any, dtype: str) -> Any:
    """Rounded to a storage format, as f32."""
    found = np.asarray(tile).astype(numpy_dtype(dtype_named(dtype) or f32))
    return found if found.dtype.kind in "iu" else found.astype("f4")


def finite(row: Any) -> Any:
    """A shift with 0 for -inf."""
    return np.where(np.isneginf(row), np.float32(0), row)
