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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_dsl.errors import SearchError, TraceError
from mirage_dsl.frontend import composites, functions
from mirage_dsl.frontend.bound import BoundKernel, Options
from mirage_dsl.frontend.dims import Atoms
from mirage_dsl.frontend.location import user_location
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.naming import TracedInput, build_graph
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.specs import layout_of, spec
from mirage_dsl.frontend.steps import Handle, Value
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.trace import Arguments, Leaf, Trace
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.types import DType, TensorSpec, f16

if TYPE_CHECKING:
    from mirage_dsl.search.constraints import Constraints
    from mirage_dsl.search.result import SearchResult

log = logging.getLogger(__name__)

Triples = Sequence[int | Sequence[int]] | None


def _operator(name: str) -> Callable[..., Tensor]:
    function = function_named(name)

    def method(self: Graph, *operands: Any, **kwargs: Any) -> Tensor:
        self.require_open()
        return function(*operands, **kwargs)

    method.__name__ = name
    method.__doc__ = function.__doc__
    return method


class Graph:
    """A program under construction."""

    def __init__(self, name: str = "program") -> None:
        self.name = name
        self.recorder = Recorder()
        self._inputs: list[TracedInput] = []
        self._specs: list[TensorSpec] = []
        self._outputs: list[Handle] = []

    def new_input(
        self,
        dims: Sequence[int],
        dtype: DType | str = f16,
        strides: Sequence[int] | None = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """A tensor that the caller will pass.

        Args:
            dims: Its shape.
            dtype: Its element format.
            strides: In elements; row-major unless given.
            name: Its name in texts.
        """
        self.require_open()
        given = spec(dims, dtype, strides)
        extents = [e for e in given.shape if isinstance(e, int)]
        axes: tuple[Atoms, ...] = tuple(
            () if e == 1 else (self.recorder.dims.fresh(e),) for e in extents
        )
        atoms = tuple(a for axis in axes for a in axis)
        self.recorder.dims.unify(group=atoms)
        layout = None
        if given.strides is not None:
            layout = layout_of(extents, given.strides)
            if layout is None:
                raise TraceError(
                    f"new_input with dims {tuple(dims)} and strides {given.strides}, "
                    "which are no dense array in any order of the axes",
                    user_location(),
                )
        handle = Handle(Value(atoms, given.dtype), axes)
        plain = layout == tuple(range(len(axes)))
        traced = TracedInput(
            name or f"x{len(self._inputs)}", handle, None if plain else layout
        )
        self._inputs.append(traced)
        self._specs.append(given)
        return Tensor(self.recorder, handle)

    def mark_output(self, tensor: Any, strides: Sequence[int] | None = None) -> None:
        """Make a tensor an output; outputs are row-major."""
        self.require_open()
        if not isinstance(tensor, Tensor) or tensor.recorder is not self.recorder:
            raise TraceError(
                f"mark_output takes a tensor of this graph, found "
                f"{type(tensor).__name__}",
                user_location(),
            )
        if strides is not None:
            layout = layout_of([int(e) for e in tensor.shape], strides)
            if layout != tuple(range(tensor.ndim)):
                raise TraceError(
                    f"mark_output with strides {tuple(strides)}: outputs are "
                    "row-major; transpose the tensor instead",
                    user_location(),
                )
        self._outputs.append(tensor.handle)

    @property
    def program(self) -> KernelGraph:
        """The program; once asked for, the graph takes no more operators.

        Raises:
            TraceError: It has no output.
        """
        if not self._outputs:
            raise TraceError(
                "the graph has no output; call mark_output", user_location()
            )
        self.recorder.closed = True
        return build_graph(self.name, self.recorder, self._inputs, self._outputs)

    def require_open(self) -> None:
        """Refuse operators once the program has been taken.

        Raises:
            TraceError: It has.
        """
        if self.recorder.closed:
            raise TraceError(
                "the graph has been turned into a program and takes no more operators; "
                "build a new one",
                user_location(),
            )

    def _bound(self) -> BoundKernel:
        program = self.program
        structure = [Leaf(i) for i in range(len(self._outputs))]
        arguments = Arguments(
            {},
            tuple(i.name for i in self._inputs),
            tuple(self._specs),
            tuple((None,) * len(s.shape) for s in self._specs),
            tuple(self._specs),
        )
        return BoundKernel(Trace(program, structure), arguments, Options(), _nothing)

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
                written where it does not.
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
        bound = self._bound()
        path = None if previous_checkpoint is None else Path(previous_checkpoint)
        if path is not None and path.exists():
            from mirage_dsl.search.result import SearchResult

            result = SearchResult.load(path)
            bound.use(result.best.mugraph)
            return GraphKernel(bound, result)
        result = bound.search(effort, budget_seconds, **options)
        if path is not None:
            result.save(path)
        return GraphKernel(bound, result)

    def reduction(self, tensor: Tensor, dim: int) -> Tensor:
        """Sum over an axis, which stays with extent 1."""
        self.require_open()
        return functions.sum(tensor, dim, keepdims=True)

    def clamp(self, tensor: Tensor, min_val: float, max_val: float) -> Tensor:
        """The tensor limited from below and above."""
        self.require_open()
        return functions.clamp(tensor, min_val, max_val)

    def rms_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor over its root mean square along its last axes."""
        self.require_open()
        return composites.rms_norm(tensor, normalized_shape=normalized_shape, **options)

    def layer_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor with mean 0 and variance 1 along its last axes."""
        self.require_open()
        return composites.layer_norm(
            tensor, normalized_shape=normalized_shape, **options
        )

    abs = _operator("abs")
    add = _operator("add")
    batch_norm = _operator("batch_norm")
    chunk = _operator("chunk")
    concat = _operator("concat")
    div = _operator("div")
    exp = _operator("exp")
    gelu = _operator("gelu")
    group_norm = _operator("group_norm")
    log = _operator("log")
    matmul = _operator("matmul")
    max = _operator("max")
    maximum = _operator("maximum")
    mean = _operator("mean")
    minimum = _operator("minimum")
    mul = _operator("mul")
    permute = _operator("permute")
    pow = _operator("pow")
    relu = _operator("relu")
    reshape = _operator("reshape")
    rsqrt = _operator("rsqrt")
    sigmoid = _operator("sigmoid")
    silu = _operator("silu")
    softmax = _operator("softmax")
    sqrt = _operator("sqrt")
    square = _operator("square")
    sub = _operator("sub")
    sum = _operator("sum")
    tanh = _operator("tanh")
    transpose = _operator("transpose")
    where = _operator("where")


def _nothing() -> None:
    """Nobody keeps prepared calls of a built graph."""


class GraphKernel:
    """The best μGraph of a built graph.

    Attributes:
        bound: It and its program.
        result: Everything that the search found.
    """

    def __init__(self, bound: BoundKernel, result: SearchResult) -> None:
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
        return f"<GraphKernel {self.bound.program.name}: {self.result!r}>"


def new_kernel_graph(name: str = "program") -> Graph:
    """An empty program."""
    return Graph(name)


new_graph = new_kernel_graph


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
