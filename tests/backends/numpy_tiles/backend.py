"""The backend `numpy_tiles`: NumPy functions, called for one block after the other.

An example, which `CONTRIBUTING.md` walks through.  It prints tile programs (`printer`)
and lets the reference evaluator be the host: what runs library kernels and calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mirage_dsl.backends.reference import Function, Hosted
from mirage_dsl.core.errors import UnsupportedError
from mirage_dsl.core.types import dtype_named
from mirage_dsl.ir.evaluate import NumpyDomain, as_format
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.ops.table import OPERATORS
from mirage_dsl.tile.build import programs
from mirage_dsl.tile.program import TileProgram, pieces_of, runs
from tests.backends.numpy_tiles.printer import Printer

FLOATS = NumpyDomain(np.float32, round_casts=True)
"""What the rows of the operator table do in f32, and integers in their own formats."""


class NumpyTiles(Hosted):
    """Kernels as NumPy functions, library kernels by the evaluator."""

    name = "numpy_tiles"
    printer = Printer

    def emit(self, graph: KernelGraph) -> str:
        """One function for each graph-defined kernel, in launch order."""
        if None in graph.extent_of.values():
            raise UnsupportedError(f"{graph.name}: NumPy is printed for known extents")
        return "\n\n".join(self.printer(p).source() for p in programs(graph))

    def function(self, program: TileProgram) -> Function:
        """What is printed for a kernel, which the host calls block after block."""
        scope: dict[str, Any] = {"np": np, "floats": FLOATS, "rows": OPERATORS}
        scope |= {"pieces": {str(p.dim): p for p in pieces_of(program).all}}
        scope |= {"runs": partial(runs, program), "dtype_named": dtype_named}
        scope |= {f.__name__: f for f in (as_format, read, write, finite)}
        exec(self.printer(program).source(), scope)
        return scope[program.name]


# -- What functions call ---------------------------------------------------------------


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


def finite(row: Any) -> Any:
    """A shift with 0 for -inf."""
    return np.where(np.isneginf(row), np.float32(0), row)
