"""The graph builder that Mirage's users know, and `superoptimize` with its parameters.

    g = mirage.new_kernel_graph()
    x = g.new_input(dims=(16, 4096), dtype=mirage.float16)
    w = g.new_input(dims=(4096, 6144), dtype=mirage.float16)
    g.mark_output(g.matmul(g.rms_norm(x, normalized_shape=(4096,)), w))
    kernel = g.superoptimize()
    (y,) = kernel(inputs=[x_cuda, w_cuda])

It records the same operators as a decorated function, so it gives the same programs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_dsl.api.block_builder import ThreadblockGraph
from mirage_dsl.api.bound import BoundKernel, Options, check_options
from mirage_dsl.api.graph_builder import GraphBuilder
from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import (
    SearchError,
    ShapeError,
    UnsupportedError,
    public_methods,
    user_location,
)
from mirage_dsl.frontend.arguments import Leaf, check_dtypes
from mirage_dsl.frontend.dims import Handle
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.trace import Trace
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.search.result import SearchResult
    from mirage_dsl.search.sizes.constraints import Constraints

PRESETS = ("attention", "lora", "mlp")
"""Mirage's, of the parameters of its search."""

Triples = Sequence[int | Sequence[int]] | None


@public_methods("graph")
class Graph(GraphBuilder):
    """A program under construction, which can be searched."""

    def __init__(self, name: str = "program") -> None:
        super().__init__(name)
        self._compiled: dict[tuple[Handle, ...], GraphKernel] = {}

    def _bound(self, options: Options, outputs: Sequence[Handle] = ()) -> BoundKernel:
        program = self.program_of(outputs) if outputs else self.program
        structure = [Leaf(i) for i in range(len(program.returns))]
        trace = Trace(program, structure)
        return BoundKernel(trace, self._specs, options, _nothing)

    def __call__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Tensor] | None = None,
        stream: Any = None,
        **unknown: Any,
    ) -> list[Any]:
        """Run the graph as it is.

        After the first call it takes no more operators.

        Args:
            inputs: Tensors for its inputs, in the order in which those were made.
            outputs: Tensors of the graph to return; those that were marked, in that
                order, unless given.
            stream: The CUDA stream to run on; the current one unless given.
            **unknown: Refused.
        """
        _refuse_unknown("a call of a graph", unknown, "inputs, outputs and stream")
        chosen = tuple(self.own("outputs=", t) for t in outputs or ())
        if outputs is not None and not chosen:
            raise UnsupportedError("outputs=[] asks for nothing", user_location())
        if chosen not in self._compiled:
            bound = self._bound(Options(effort="none"), chosen)
            self._compiled[chosen] = GraphKernel(bound)
        return self._compiled[chosen](inputs, stream)

    def compile(
        self, inputs: Sequence[Any] | None = None, **unknown: Any
    ) -> GraphKernel:
        """The graph as it is, hand-written blocks and library kernels, as a kernel.

        Args:
            inputs: Tensors like those of a call, whose shapes and dtypes are checked.
            **unknown: Refused.

        Raises:
            ShapeError: The inputs have other shapes than those of the graph.
            DTypeError: They have other dtypes.
        """
        _refuse_unknown("compile", unknown, "inputs")
        kernel = GraphKernel(self._bound(Options(effort="none")))
        if inputs is not None:
            found = [tuple(t.shape) for t in inputs]
            expected = [s.shape for s in self._specs]
            if found != expected:
                raise ShapeError(
                    f"compile with inputs of the shapes {found}, expected {expected}",
                    user_location(),
                )
            check_dtypes(kernel.bound.program, inputs)
        return kernel

    def superoptimize(
        self,
        *,
        griddims: Triples = None,
        blockdims: Triples = None,
        imaps: Triples = None,
        omaps: Triples = None,
        fmaps: Sequence[int] | None = None,
        franges: Sequence[int] | None = None,
        previous_checkpoint: str | Path | None = None,
        backend: str = DEFAULT_BACKEND,
        config: str | None = None,
        effort: Any = None,
        budget_seconds: float | None = None,
        **options: Any,
    ) -> GraphKernel:
        """The best kernel of the graph.

        Args:
            griddims: Allowed grids, as numbers of blocks along x, y and z.
            blockdims: Allowed numbers of threads along x, y and z.
            imaps: For x, y and z the axis of an input that they split, or -1.
            omaps: The same for outputs.
            fmaps: The axis of an input that the loop splits, or -1.
            franges: Allowed numbers of loop iterations.
            previous_checkpoint: A file with a search result: read where it exists, and
                written where it does not.  While searching, what is known so far is
                kept beside it, for the next try if this one is interrupted.
            backend: What runs it: `triton`, or `reference`, the evaluator.
            config: Mirage's presets of the above: `attention`, `lora` or `mlp`.  They
                restrict its search; here the whole space is searched.
            effort: `none`, `quick` or `full`.
            budget_seconds: Time limit.
            **options: Further arguments of `superoptimize`.
        """
        backend_named(backend)
        if config not in (None, *PRESETS):
            expected = ", ".join(PRESETS)
            raise SearchError(f"config={config!r}; expected one of {expected}, or none")
        limits = constraints(griddims, blockdims, imaps, omaps, fmaps, franges)
        _add(options, "constraints", limits, "griddims and the other limits")
        check_options("superoptimize", options)
        bound = self._bound(Options(backend=backend))
        path = None if previous_checkpoint is None else Path(previous_checkpoint)
        if path is not None and path.exists():
            from mirage_dsl.search.result import SearchResult

            result = SearchResult.load(path)
            bound.use(result.best.mugraph)
            return GraphKernel(bound, result)
        partial = path and path.with_name(f"{path.name}.partial")
        _add(options, "checkpoint", partial, "previous_checkpoint")
        result = bound.search(effort, budget_seconds, **options)
        if path is not None and partial is not None:
            result.save(path)
            partial.unlink(missing_ok=True)
        return GraphKernel(bound, result)


def _refuse_unknown(what: str, unknown: Mapping[str, Any], known: str) -> None:
    """Refuse arguments that mean nothing here.

    Raises:
        UnsupportedError: There is one; it is named.
    """
    if unknown:
        raise UnsupportedError(
            f"{what} has {', '.join(unknown)}=, which is not supported; expected "
            f"{known}",
            user_location(),
        )


def _on(stream: Any) -> AbstractContextManager[Any]:
    """Where a kernel runs on a given stream.

    Raises:
        UnsupportedError: It is no CUDA stream.
    """
    if stream is None:
        return nullcontext()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(stream, torch.cuda.Stream):
        raise UnsupportedError(
            f"stream={stream!r}; expected a torch.cuda.Stream", user_location()
        )
    return torch.cuda.stream(stream)


def _nothing() -> None:
    """Nobody keeps prepared calls of a built graph."""


@public_methods("a graph's kernel")
class GraphKernel:
    """The best μGraph of a built graph.

    Attributes:
        bound: It and its program.
        result: Everything that the search found, if there was one.
    """

    def __init__(self, bound: BoundKernel, result: SearchResult | None = None) -> None:
        self.bound = bound
        self.result = result

    @property
    def mugraph(self) -> KernelGraph:
        """The μGraph."""
        return self.bound.mugraph

    def __call__(
        self, inputs: Sequence[Any], stream: Any = None, **unknown: Any
    ) -> list[Any]:
        """The outputs, in the order in which they were marked.

        Args:
            inputs: Tensors for the graph's inputs.
            stream: The CUDA stream to run on; the current one unless given.
            **unknown: Refused.
        """
        _refuse_unknown("a call of a graph's kernel", unknown, "inputs and stream")
        with _on(stream):
            return self.bound(*inputs)

    def to_triton_code(self) -> str:
        """Its Triton source."""
        return self.bound.to_triton_code()

    def generate_triton_program(self, path: str | Path) -> None:
        """Write its Triton source to a file."""
        self.mugraph.generate_triton_program(path)

    def __repr__(self) -> str:
        found = "as built" if self.result is None else repr(self.result)
        return f"<GraphKernel {self.bound.program.name}: {found}>"


def new_kernel_graph(name: str = "program") -> Graph:
    """An empty program."""
    return Graph(name)


new_graph = new_kernel_graph


def new_threadblock_graph(
    grid_dim: Sequence[int],
    block_dim: Sequence[int] = (128, 1, 1),
    forloop_range: int = 1,
    reduction_dimx: int = 1,
) -> ThreadblockGraph:
    """An empty block.

    Args:
        grid_dim: Numbers of blocks along x, y and z.
        block_dim: Numbers of threads along x, y and z.
        forloop_range: Number of iterations of the loop.
        reduction_dimx: What an accumulator of kind `sum_todimx` leaves of its last
            axis.
    """
    return ThreadblockGraph(grid_dim, block_dim, forloop_range, reduction_dimx)


def constraints(
    griddims: Triples,
    blockdims: Triples,
    imaps: Triples,
    omaps: Triples,
    fmaps: Sequence[int] | None,
    franges: Sequence[int] | None,
) -> Constraints | None:
    """Mirage's search parameters as constraints; None where all are left out."""
    from mirage_dsl.search.sizes.constraints import Constraints

    limits = Constraints(
        _triples(griddims, "griddims", 1),
        _triples(blockdims, "blockdims", 1),
        _triples(imaps, "imaps", -1),
        _triples(omaps, "omaps", -1),
        None if fmaps is None else tuple(fmaps),
        None if franges is None else tuple(franges),
    )
    return None if limits == Constraints() else limits


def _triples(
    given: Triples, name: str, fill: int
) -> tuple[tuple[int, int, int], ...] | None:
    if given is None:
        return None
    found: list[tuple[int, int, int]] = []
    for entry in given:
        numbers = (entry,) if isinstance(entry, int) else tuple(entry)
        if not 1 <= len(numbers) <= 3:
            raise SearchError(f"{name}: expected triples for x, y, z, found {entry}")
        x, y, z = (*numbers, fill, fill)[:3]
        found.append((x, y, z))
    return tuple(found)


def superoptimize(
    program: Any,
    *,
    griddims: Triples = None,
    blockdims: Triples = None,
    imaps: Triples = None,
    omaps: Triples = None,
    fmaps: Sequence[int] | None = None,
    franges: Sequence[int] | None = None,
    **options: Any,
) -> SearchResult:
    """Search for μGraphs of a program, verified and cheapest first.

    Args:
        program: A traced program, a graph builder, or a bound kernel.
        griddims: Allowed grids, as for `Graph.superoptimize`.
        blockdims: Allowed blocks.
        imaps: Allowed maps of inputs.
        omaps: Allowed maps of outputs.
        fmaps: Allowed axes of the loop.
        franges: Allowed numbers of iterations.
        **options: Arguments of `mirage_dsl.store.superoptimize.superoptimize`: effort,
            budget_seconds, max_kernels, use_cache, executor, progress and others.
    """
    from mirage_dsl.store.superoptimize import superoptimize as run

    if not isinstance(program, KernelGraph):
        if not isinstance(program, Graph | BoundKernel):
            raise SearchError(
                f"superoptimize takes a program, found {type(program).__name__}; get "
                "one by kernel.trace(...) or kernel.bind(...)"
            )
        program = program.program
    limits = constraints(griddims, blockdims, imaps, omaps, fmaps, franges)
    _add(options, "constraints", limits, "griddims and the other limits")
    check_options("superoptimize", options)
    return run(program, **options)


def _add(options: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Put what an argument means among the options, where it was given.

    Raises:
        UnsupportedError: The option was given as well.
    """
    if value is None:
        return
    if options.get(name) is not None:
        raise UnsupportedError(f"give {source} or {name}, not both", user_location())
    options[name] = value
