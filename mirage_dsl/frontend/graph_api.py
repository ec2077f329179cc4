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

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_dsl.errors import SearchError
from mirage_dsl.frontend.block_api import ThreadblockGraph
from mirage_dsl.frontend.bound import BoundKernel, Options
from mirage_dsl.frontend.graph_builder import GraphBuilder
from mirage_dsl.frontend.trace import Leaf, Trace
from mirage_dsl.ir.graph import KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.search.constraints import Constraints
    from mirage_dsl.search.result import SearchResult

log = logging.getLogger(__name__)

Triples = Sequence[int | Sequence[int]] | None


class Graph(GraphBuilder):
    """A program under construction, which can be searched."""

    _compiled: GraphKernel | None = None

    def _bound(self, options: Options) -> BoundKernel:
        program = self.program
        structure = [Leaf(i) for i in range(len(program.returns))]
        trace = Trace(program, structure)
        return BoundKernel(trace, self._specs, options, _nothing)

    def __call__(self, inputs: Sequence[Any], **_: Any) -> list[Any]:
        """Run the graph as it is; the outputs in the order in which they were marked.

        After the first call it takes no more operators.
        """
        if self._compiled is None:
            self._compiled = self.compile()
        return self._compiled(inputs)

    def compile(self, **_: Any) -> GraphKernel:
        """The graph as it is, hand-written blocks and library kernels, as a kernel."""
        return GraphKernel(self._bound(Options(effort="none")))

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
        backend: str = "triton",
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
            backend: `triton`.
            config: Mirage's presets of the above, which restrict its search; here the
                whole space is searched whatever they say.
            effort: `none`, `quick` or `full`.
            budget_seconds: Time limit.
            **options: Further arguments of `superoptimize`.
        """
        if backend != "triton":
            raise SearchError(f"backend={backend!r}; expected 'triton'")
        if config is not None:
            log.debug("config=%r: the whole space is searched", config)
        limits = constraints(griddims, blockdims, imaps, omaps, fmaps, franges)
        if limits is not None:
            options["constraints"] = limits
        bound = self._bound(Options())
        path = None if previous_checkpoint is None else Path(previous_checkpoint)
        if path is not None and path.exists():
            from mirage_dsl.search.result import SearchResult

            result = SearchResult.load(path)
            bound.use(result.best.mugraph)
            return GraphKernel(bound, result)
        if path is None:
            return GraphKernel(bound, bound.search(effort, budget_seconds, **options))
        partial = path.with_name(f"{path.name}.partial")
        options["checkpoint"] = partial
        result = bound.search(effort, budget_seconds, **options)
        result.save(path)
        partial.unlink(missing_ok=True)
        return GraphKernel(bound, result)


def _nothing() -> None:
    """Nobody keeps prepared calls of a built graph."""


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

    def __call__(self, inputs: Sequence[Any], **_: Any) -> list[Any]:
        """The outputs, in the order in which they were marked."""
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
        reduction_dimx: Mirage's; unused, since reductions name their axes.
    """
    del reduction_dimx
    return ThreadblockGraph(grid_dim, block_dim, forloop_range)


def constraints(
    griddims: Triples,
    blockdims: Triples,
    imaps: Triples,
    omaps: Triples,
    fmaps: Sequence[int] | None,
    franges: Sequence[int] | None,
) -> Constraints | None:
    """Mirage's search parameters as constraints; None where all are left out."""
    from mirage_dsl.search.constraints import Constraints

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
        **options: Arguments of `mirage_dsl.superoptimizer.superoptimize`: effort,
            budget_seconds, max_kernels, use_cache, executor, progress and others.
    """
    from mirage_dsl.superoptimizer import superoptimize as run

    if not isinstance(program, KernelGraph):
        if not isinstance(program, Graph | BoundKernel):
            raise SearchError(
                f"superoptimize takes a program, found {type(program).__name__}; get "
                "one by kernel.trace(...) or kernel.bind(...)"
            )
        program = program.program
    limits = constraints(griddims, blockdims, imaps, omaps, fmaps, franges)
    if limits is not None:
        options["constraints"] = limits
    return run(program, **options)
