"""What programs that were written for Mirage call beside the graph builder.

They run as they are but for the import.  What means nothing here is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from mirage_dsl.api.bound import BoundKernel, Options
from mirage_dsl.api.graph import (
    Graph,
    GraphKernel,
    Lowering,
    input_specs,
    nothing,
    superoptimize,
)
from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import (
    DTypeError,
    TraceError,
    UnsupportedError,
    user_location,
)
from mirage_dsl.core.types import dtype_of
from mirage_dsl.frontend.arguments import Leaf
from mirage_dsl.frontend.trace import Trace
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import SearchResult

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Mugraphs(SearchResult):
    """What a search found, as Mirage's users take it: a list, and a kernel."""

    @cached_property
    def kernel(self) -> GraphKernel:
        """The best μGraph, to be called."""
        structure = [Leaf(i) for i in range(len(self.program.returns))]
        specs = input_specs(self.program)
        options = Options(mugraph=self.best.mugraph)
        bound = BoundKernel(Trace(self.program, structure), specs, options, nothing)
        return GraphKernel(bound, self)

    def __call__(self, inputs: Sequence[Any], **options: Any) -> list[Any]:
        """The outputs of the best μGraph; see `GraphKernel`."""
        return self.kernel(inputs, **options)


def optimize(graph: Graph, **options: Any) -> Mugraphs:
    """What `superoptimize` is called in the first releases of Mirage."""
    return superoptimize(graph, all=False, **options)


def generate_triton_program(
    graph: Any,
    *,
    target_cc: int | None = None,
    input_strides: Sequence[Sequence[int]] | None = None,
    output_tensors: Sequence[Any] | None = None,
    **lowering: Any,
) -> dict[str, Any]:
    """The Triton program of a μGraph.

    Args:
        graph: A graph of the builder, its kernel, a candidate or a μGraph.
        target_cc: The compute capability of a GPU, such as 80 or 90.  One program
            serves all: Triton compiles it for the GPU that it runs on.
        input_strides: Of the inputs, in elements.  One program serves all: it takes
            its strides from the tensors that it is given.
        output_tensors: What to return of a graph under construction; what was marked
            unless given.
        **lowering: How blocks are lowered, see `api.graph.Lowering`.

    Returns:
        `code`, the source; `output_shapes`, a list of lists.

    Raises:
        TraceError: The graph is none.
    """
    del target_cc, input_strides
    if isinstance(graph, Graph):
        given = [graph.own("output_tensors=", t) for t in output_tensors or ()]
        mugraph = graph.program_of(given) if given else graph.program
    else:
        mugraph = getattr(graph, "mugraph", graph)
    if not isinstance(mugraph, KernelGraph):
        raise TraceError(
            f"a program of {type(graph).__name__}; expected a graph of the builder, "
            "its kernel, a candidate or a μGraph",
            user_location(),
        )
    known = "graph, target_cc, input_strides, output_tensors"
    mugraph = Lowering.of("generate_triton_program", lowering, known).applied(mugraph)
    shapes = [
        [prod(mugraph.extent_of[d.name] or 1 for d in axis) for axis in r.type.axes]
        for r in mugraph.returns
    ]
    code = backend_named(DEFAULT_BACKEND).emit(mugraph)
    return {"code": code, "output_shapes": shapes}


generate_cuda_program = generate_triton_program
"""The program for CUDA's GPUs, which is one of Triton's here."""


def convert_dtype_to_torch_type(dtype: object) -> torch.dtype:
    """PyTorch's dtype for one of ours.

    Raises:
        DTypeError: It is none of ours.
    """
    import torch

    found = dtype_of(dtype)
    if found is None:
        raise DTypeError(
            f"{dtype!r} is no dtype; expected one such as mirage.float16",
            user_location(),
        )
    return getattr(torch, found.long_name)


def set_gpu_device_id(device_id: int) -> None:
    """Make a GPU the current one, on which kernels are timed and run.

    Raises:
        UnsupportedError: PyTorch sees none of that number.
    """
    import torch

    count = torch.cuda.device_count()
    if not 0 <= device_id < count:
        raise UnsupportedError(
            f"set_gpu_device_id({device_id}): PyTorch sees {count} GPUs",
            user_location(),
        )
    torch.cuda.set_device(device_id)
