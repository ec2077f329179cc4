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
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex, cast, overload

from mirage_dsl.api.block_builder import ThreadblockGraph, power_of_two
from mirage_dsl.api.kernel import BoundKernel, Options, checked_options
from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import (
    EquivalenceError,
    SearchError,
    ShapeError,
    TraceError,
    UnsupportedError,
    public_methods,
)
from mirage_dsl.core.types import Axis, TensorSpec, f16, packed
from mirage_dsl.frontend import composites, functions
from mirage_dsl.frontend.arguments import Leaf, check_dtypes, order_of, spec
from mirage_dsl.frontend.interop import called
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.program import (
    Handle,
    TracedInput,
    build_graph,
    results_of,
    sources_of,
)
from mirage_dsl.frontend.recorder import Recorder
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.frontend.trace import Trace
from mirage_dsl.ir.canonical import canonical_hash
from mirage_dsl.ir.check import check_or_raise
from mirage_dsl.ir.graph import Input, KernelGraph

if TYPE_CHECKING:
    from mirage_dsl.api.compatibility import Mugraphs
    from mirage_dsl.search.driver import EveryMugraph
    from mirage_dsl.search.result import Candidate, SearchResult
    from mirage_dsl.search.segments import Progress
    from mirage_dsl.search.sizes import Constraints
    from mirage_dsl.verify.certificate import Certificate


# -- The builder without its search ----------------------------------------------------


def _operator(name: str) -> Callable[..., Tensor]:
    function = function_named(name)

    def method(self: GraphBuilder, *operands: Any, **kwargs: Any) -> Tensor:
        return self.computed(name, function, *operands, **kwargs)

    method.__name__ = name
    method.__doc__ = function.__doc__
    return method


def _listed(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


@public_methods("graph")
class GraphBuilder:
    """A program under construction."""

    def __init__(self, name: str = "program") -> None:
        self.name = name
        self.recorder = Recorder()
        self._inputs: list[TracedInput] = []
        self._outputs: list[Handle] = []
        self._made: dict[str, Handle] = {}

    def new_input(
        self,
        dims: Sequence[int],
        dtype: Any = None,
        strides: Any = None,
        *,
        name: str | None = None,
    ) -> Tensor:
        """A tensor that the caller will pass.

        By position, the strides may stand before the dtype, as Mirage has them.

        Args:
            dims: Its shape.
            dtype: Its element format; f16 unless given.
            strides: In elements; row-major unless given.
            name: Its name in texts.
        """
        self.require_open()
        if _listed(dtype) or not (strides is None or _listed(strides)):
            dtype, strides = strides, dtype
        given = spec(dims, f16 if dtype is None else dtype, strides)
        extents = [e for e in given.shape if isinstance(e, int)]
        handle = self.recorder.input(given.dtype, [(e, None) for e in extents])
        layout = None
        if given.strides is not None:
            layout = order_of(extents, given.strides)
        plain = layout == tuple(range(len(extents)))
        traced = TracedInput(
            name or f"x{len(self._inputs)}", handle, None if plain else layout
        )
        self._inputs.append(traced)
        return Tensor(self.recorder, handle)

    def mark_output(self, tensor: Any, strides: Sequence[int] | None = None) -> None:
        """Make a tensor an output; outputs are row-major."""
        self.require_open()
        handle = self.own("mark_output", tensor)
        if strides is not None:
            shape = [int(e) for e in tensor.shape]
            dense = packed(shape, range(tensor.ndim))
            pairs = zip(shape, strides, dense, strict=True)
            if any(e != 1 and given != wanted for e, given, wanted in pairs):
                raise TraceError.here(
                    f"mark_output with strides {tuple(strides)}: outputs are "
                    "row-major; transpose the tensor instead"
                )
        self._outputs.append(handle)

    def own(self, what: str, tensor: Any) -> Handle:
        """The value of a tensor of this graph.

        Raises:
            TraceError: It is another graph's, or no tensor of a graph.
        """
        if not isinstance(tensor, Tensor) or tensor.recorder is not self.recorder:
            raise TraceError.here(
                f"{what} takes a tensor of this graph, found {type(tensor).__name__}"
            )
        return tensor.handle

    @property
    def program(self) -> KernelGraph:
        """The program; once asked for, the graph takes no more operators.

        Where no output is marked, outputs are the tensors that nothing reads.

        Raises:
            TraceError: It has no output.
        """
        return self.program_of(self._outputs or self._unread())

    def program_of(self, outputs: Sequence[Handle]) -> KernelGraph:
        """The program with other outputs than the marked ones."""
        self.recorder.closed = True
        graph = build_graph(self.name, self.recorder, self._inputs, outputs)
        if graph.blocks:
            check_or_raise(graph)
        return graph

    def computed(
        self, name: str, function: Callable[..., Any], *operands: Any, **options: Any
    ) -> Any:
        """What a function makes of tensors of the graph, by the name of a method."""
        self.require_open()
        return self._kept(called(f"graph.{name}", function, *operands, **options))

    def _kept(self, made: Any) -> Any:
        """What was made, remembered with its axes: a tensor or several."""
        tensors: Sequence[Any] = (made,) if isinstance(made, Tensor) else made
        for tensor in tensors:
            if tensor.recorder is not self.recorder:
                raise TraceError.here(
                    f"operands of graph {self.name} belong to another graph; use "
                    "tensors of one graph"
                )
            self._made[tensor.handle.value.name] = tensor.handle
        return made

    def _unread(self) -> list[Handle]:
        """What the graph's own methods made and no operator reads, in order."""
        nodes = self.recorder.nodes
        read = {name for node in nodes for name in sources_of(node)}
        unread = [n for node in nodes for n in results_of(node) if n not in read]
        if not unread or not all(name in self._made for name in unread):
            raise TraceError.here("the graph has no output; call mark_output")
        return [self._made[name] for name in unread]

    def require_open(self) -> None:
        """Refuse operators once the program has been taken.

        Raises:
            TraceError: It has.
        """
        if self.recorder.closed:
            raise TraceError.here(
                "the graph has been turned into a program and takes no more operators; "
                "build a new one"
            )

    def customized(
        self, inputs: Sequence[Tensor], block: ThreadblockGraph
    ) -> list[Tensor]:
        """The outputs of a hand-written block.

        Args:
            inputs: The tensors that the block reads, in the order of its inputs.
            block: The block, with its outputs.
        """
        self.require_open()
        return self._kept(block.record(self.recorder, inputs))

    def reduction(self, tensor: Tensor, dim: int) -> Tensor:
        """Sum over an axis, which stays with extent 1."""
        return self.computed("reduction", functions.sum, tensor, dim, keepdims=True)

    def clamp(self, tensor: Tensor, min_val: float, max_val: float) -> Tensor:
        """The tensor limited from below and above."""
        return self.computed("clamp", functions.clamp, tensor, min_val, max_val)

    def mul_scalar(self, tensor: Tensor, scalar: float) -> Tensor:
        """The tensor times a number."""
        return self.computed("mul_scalar", functions.mul, tensor, scalar)

    def rms_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor over its root mean square along its last axes.

        Args:
            tensor: The tensor.
            normalized_shape: Their extents; None for the last axis alone.
            **options: Further arguments of `mirage.rms_norm`.
        """
        options["normalized_shape"] = normalized_shape
        return self.computed("rms_norm", composites.rms_norm, tensor, **options)

    def layer_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor with mean 0 and variance 1 along its last axes.

        Args:
            tensor: The tensor.
            normalized_shape: Their extents; None for the last axis alone.
            **options: Further arguments of `mirage.layer_norm`.
        """
        options["normalized_shape"] = normalized_shape
        return self.computed("layer_norm", composites.layer_norm, tensor, **options)

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
    min = _operator("min")
    minimum = _operator("minimum")
    mul = _operator("mul")
    permute = _operator("permute")
    pow = _operator("pow")
    prod = _operator("prod")
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


# -- The graph -------------------------------------------------------------------------

PRESETS = ("attention", "lora", "mlp")
"""Mirage's, of the parameters of its search."""

TRANSPILERS = {"cuda": DEFAULT_BACKEND}
"""Mirage's names of backends, where ours is another for the same machines."""

CODES = Path("generated_codes")
"""Where `save_codes` writes."""

WARPS_OF_GROUP = 4

_log = logging.getLogger("mirage_dsl.search")

Triples = Sequence[int | Sequence[int]] | None


@dataclass(frozen=True)
class Lowering:
    """How hand-written blocks are lowered, in Mirage's words.

    Attributes:
        enable_online_softmax: Subtract running maxima from exponents that have none,
            where no output depends on them.
        pipeline_stages: Tiles that a loop has in flight; those of the block unless
            given.
        num_warp_groups: Groups of 4 warps; all compute, as Triton divides the work.
        profiling: Refused if true.
    """

    enable_online_softmax: bool = False
    pipeline_stages: int | None = None
    num_warp_groups: int | None = None
    profiling: bool = False

    @classmethod
    def of(cls, what: str, given: Mapping[str, Any], others: str) -> Self:
        """The lowering that arguments ask for.

        Raises:
            UnsupportedError: An argument means nothing here; it is named.
        """
        known = [f.name for f in fields(cls)]
        unknown = {name: value for name, value in given.items() if name not in known}
        _refuse_unknown(what, unknown, f"{others} and {', '.join(known)}")
        found = cls(**given)
        if found.profiling:
            raise UnsupportedError.here(
                f"{what} with profiling=True: there is no profiler here; a kernel's "
                "`explain()` says where its time goes, by the cost model"
            )
        return found

    def applied(self, graph: KernelGraph) -> KernelGraph:
        """A graph with its blocks so lowered."""
        if self.enable_online_softmax:
            from mirage_dsl.rewrite.shifts import stabilise

            graph = stabilise(graph) or graph
        changes: dict[str, int] = {}
        if self.pipeline_stages is not None:
            changes["num_stages"] = index(self.pipeline_stages)
        if self.num_warp_groups is not None:
            changes["num_warps"] = power_of_two(WARPS_OF_GROUP * self.num_warp_groups)
        changed = graph.with_schedules(lambda b: replace(b.schedule, **changes))
        if changed.blocks:
            check_or_raise(changed)
        return changed


@public_methods("graph")
class Graph(GraphBuilder):
    """A program under construction, which can be searched."""

    def __init__(self, name: str = "program") -> None:
        super().__init__(name)
        self._compiled: dict[tuple[tuple[Handle, ...], Lowering], GraphKernel] = {}

    @property
    def cygraph(self) -> Self:
        """The graph itself, where Mirage has one of C++ in it."""
        return self

    def _bound(
        self,
        options: Options,
        outputs: Sequence[Handle] = (),
        lowering: Lowering | None = None,
    ) -> BoundKernel:
        program = self.program_of(outputs) if outputs else self.program
        if lowering is not None:
            program = lowering.applied(program)
        return bound_to(program, options)

    def __call__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Tensor] | None = None,
        stream: Any = None,
        **lowering: Any,
    ) -> list[Any]:
        """Run the graph as it is.

        After the first call it takes no more operators.

        Args:
            inputs: Tensors for its inputs, in the order in which those were made.
            outputs: Tensors of the graph to return; those that were marked, in that
                order, unless given.
            stream: The CUDA stream to run on; the current one unless given.
            **lowering: How its blocks are lowered, see `Lowering`.
        """
        how = Lowering.of("a call of a graph", lowering, "inputs, outputs, stream")
        chosen = tuple(self.own("outputs=", t) for t in outputs or ())
        if outputs is not None and not chosen:
            raise UnsupportedError.here("outputs=[] asks for nothing")
        if (chosen, how) not in self._compiled:
            bound = self._bound(Options(effort="none"), chosen, how)
            self._compiled[chosen, how] = GraphKernel(bound)
        return self._compiled[chosen, how](inputs, stream)

    def compile(
        self, inputs: Sequence[Any] | None = None, **lowering: Any
    ) -> GraphKernel:
        """The graph as it is, hand-written blocks and library kernels, as a kernel.

        Args:
            inputs: Tensors like those of a call, whose shapes and dtypes are checked.
            **lowering: How its blocks are lowered, see `Lowering`.

        Raises:
            ShapeError: The inputs have other shapes than those of the graph.
            DTypeError: They have other dtypes.
        """
        how = Lowering.of("compile", lowering, "inputs")
        kernel = GraphKernel(self._bound(Options(effort="none"), (), how))
        if inputs is not None:
            found = [tuple(t.shape) for t in inputs]
            expected = [s.shape for s in input_specs(kernel.bound.program)]
            if found != expected:
                raise ShapeError.here(
                    f"compile with inputs of the shapes {found}, expected {expected}"
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
        verbose: bool = False,
        save_codes: bool = False,
        use_cached_graphs: bool = True,
        use_graph_dataset: bool = True,
        warmup_iters: int = 16,
        profile_iters: int = 1000,
        is_formal_verified: bool = False,
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
            previous_checkpoint: A file with a search result, or with μGraphs that
                Mirage found: read and verified where it exists, and written where it
                does not.  While searching, what is known so far is kept beside it, for
                the next try if this one is interrupted.
            backend: What runs it: `triton`, which Mirage's `cuda` means here too, or
                `reference`, the evaluator.
            config: Mirage's presets of the above: `attention`, `lora` or `mlp`.  They
                restrict its search; here the whole space is searched.
            verbose: Log the stages of the search, also where logs are off.
            save_codes: Write the Triton source of every μGraph that was found into the
                folder `generated_codes`.
            use_cached_graphs: Look in the cache first, and store what is found.
            use_graph_dataset: The same; results are in one cache.
            warmup_iters: How often Mirage launches a kernel before it times it.  Here
                the tuner decides: it launches until its medians are steady.
            profile_iters: How often Mirage launches it to time it; see above.
            is_formal_verified: Refused if true: μGraphs are verified at random inputs,
                with a bound of the error that their certificates state.
            effort: `none`, `quick` or `full`.
            budget_seconds: Time limit.
            **options: Further arguments of `superoptimize`.
        """
        backend_named(name := TRANSPILERS.get(backend, backend))
        _check_mirages(config, warmup_iters, profile_iters, is_formal_verified)
        limits = constraints(griddims, blockdims, imaps, omaps, fmaps, franges)
        _add(options, "constraints", limits, "griddims and the other limits")
        if not (use_cached_graphs and use_graph_dataset):
            _add(options, "use_cache", False, "use_cached_graphs")
        _add(options, "progress", _told if verbose else None, "verbose")
        options = checked_options("superoptimize", options)
        options |= {"effort": effort, "budget_seconds": budget_seconds}
        bound = self._bound(Options(backend=name))
        found = _resumed(previous_checkpoint, bound.search, options, bound.program)
        result, known = found
        if known:
            bound.use(result.best.mugraph)
        if save_codes:
            _save_codes(result)
        return GraphKernel(bound, result)

    def visualize(self, file_name: str | Path) -> None:
        """Write a drawing of the graph, in Graphviz' language, to `file_name`.dot."""
        _draw(self.program, file_name)


def _check_mirages(
    config: str | None, warmup_iters: Any, profile_iters: Any, is_formal_verified: bool
) -> None:
    """Refuse values of Mirage's arguments that mean nothing.

    Raises:
        SearchError: A preset or a number of launches that there is not.
        UnsupportedError: A formal proof is asked for.
    """
    if config not in (None, *PRESETS):
        expected = ", ".join(PRESETS)
        raise SearchError(f"config={config!r}; expected one of {expected}, or none")
    for what, count in (("warmup", warmup_iters), ("profile", profile_iters)):
        if not isinstance(count, SupportsIndex) or index(count) < 0:
            raise SearchError(f"{what}_iters={count!r}; expected a number of launches")
    if is_formal_verified:
        raise UnsupportedError.here(
            "is_formal_verified=True: μGraphs are verified at random inputs, and their "
            "certificates bound the error; leave it out"
        )


def _save_codes(result: SearchResult) -> None:
    CODES.mkdir(exist_ok=True)
    for number, candidate in enumerate(result):
        path = CODES / f"{result.program.name}_{number}.py"
        candidate.generate_triton_program(path)


def _resumed(
    previous: str | Path | None,
    search: Callable[..., SearchResult],
    options: dict[str, Any],
    program: KernelGraph,
) -> tuple[SearchResult, bool]:
    """What a search finds, or what an earlier one, or Mirage's, has written to a file.

    Returns:
        The result, and whether it was read.
    """
    from mirage_dsl.search.result import SearchResult

    if previous is None:
        return search(**options), False
    path = Path(previous)
    if path.exists():
        from mirage_dsl.api.compatibility import from_json, is_mirages

        if is_mirages(path):
            return from_json(path, program), True
        return _of_program(SearchResult.load(path), program, path, options), True
    partial = path.with_name(f"{path.name}.partial")
    _add(options, "checkpoint", partial, "previous_checkpoint")
    result = search(**options)
    result.save(path)
    partial.unlink(missing_ok=True)
    return result, False


def _of_program(
    result: SearchResult, program: KernelGraph, path: Path, options: Mapping[str, Any]
) -> SearchResult:
    """What a file holds of a program: of another one, what computes this one too.

    What the time does not suffice for is left out, once there is something.

    Raises:
        EquivalenceError: There is nothing.
    """
    from mirage_dsl.search.segments import silent
    from mirage_dsl.verify.verifier import verify

    if canonical_hash(result.program) == canonical_hash(program):
        return result
    told: Progress = options.get("progress") or silent
    over = time.monotonic() + (options.get("budget_seconds") or math.inf)
    kept: list[Candidate] = []
    certificates: list[Certificate] = []
    for at, candidate in enumerate(result):
        if kept and time.monotonic() > over:
            break
        best = min((c.cost.microseconds for c in kept), default=None)
        told("verify", at, len(result), best)
        certificates.append(found := verify(candidate.mugraph, program))
        if found.ok:
            kept.append(replace(candidate, certificate=found))
    if not kept:
        raise EquivalenceError(
            f"{path} was written for another program, {result.program.name}, and no "
            f"μGraph of it computes {program.name}; name another file\n"
            f"{certificates[0]}"
        )
    short = result.cut_short or len(certificates) < len(result)
    told("verify", len(result), len(result), kept[0].cost.microseconds)
    return replace(
        result, program=program, candidates=tuple(kept), proof=None, cut_short=short
    )


def _told(stage: str, done: int, of: int, best: float | None) -> None:
    """Log a stage of a search, once it is done."""
    if done >= of:
        cost = "" if best is None else f", the best so far {best:.1f} µs"
        _log.warning("%s: %d of %d%s", stage, done, of, cost)


def _draw(graph: KernelGraph, file_name: str | Path) -> None:
    from mirage_dsl.ir.text.printer import to_dot

    Path(f"{file_name}.dot").write_text(to_dot(graph), encoding="utf-8")


def _refuse_unknown(what: str, unknown: Mapping[str, Any], known: str) -> None:
    """Refuse arguments that mean nothing here.

    Raises:
        UnsupportedError: There is one; it is named.
    """
    if unknown:
        raise UnsupportedError.here(
            f"{what} has {', '.join(unknown)}=, which is not supported; expected "
            f"{known}"
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
        raise UnsupportedError.here(f"stream={stream!r}; expected a torch.cuda.Stream")
    return torch.cuda.stream(stream)


def bound_to(program: KernelGraph, options: Options) -> BoundKernel:
    """The kernel of a program of known extents, which gives a list of its results."""
    trace = Trace(program, [Leaf(i) for i in range(len(program.returns))])
    # Nobody keeps prepared calls of a built graph.
    return BoundKernel(trace, input_specs(program), options, lambda: None)


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
        self._shapes = [s.shape for s in input_specs(bound.program)]

    @property
    def mugraph(self) -> KernelGraph:
        """The μGraph."""
        return self.bound.mugraph

    @property
    def cygraph(self) -> Self:
        """The kernel itself, where Mirage has a graph of C++ in it."""
        return self

    def __call__(
        self, inputs: Sequence[Any], stream: Any = None, **unknown: Any
    ) -> list[Any]:
        """The outputs, in the order in which they were marked.

        Args:
            inputs: Tensors for the graph's inputs.  Axes of extent 1 may be more or
                fewer than there.
            stream: The CUDA stream to run on; the current one unless given.
            **unknown: Refused.
        """
        _refuse_unknown("a call of a graph's kernel", unknown, "inputs and stream")
        shapes = self._shapes
        if len(inputs) == len(shapes):
            inputs = [
                x if getattr(x, "ndim", None) == len(shape) else _with_axes(x, shape)
                for x, shape in zip(inputs, shapes, strict=True)
            ]
        with _on(stream):
            return self.bound(*inputs)

    def get_input_dtensors(self) -> list[Input]:
        """The inputs of its program, in order."""
        return list(self.bound.program.inputs)

    def get_input_dtensor_layout(self, dtensor: Input) -> tuple[int, ...]:
        """The strides of an input, in elements."""
        shape = [int(e) for e in self._shapes[self.get_input_dtensors().index(dtensor)]]
        layout = dtensor.type.layout
        return packed(shape, range(len(shape)) if layout is None else layout)

    def get_input_dtensor_shape_and_stride(
        self, dtensor: Input
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of an input, and its strides in elements."""
        shape = self._shapes[self.get_input_dtensors().index(dtensor)]
        return tuple(map(int, shape)), self.get_input_dtensor_layout(dtensor)

    def to_triton_code(self) -> str:
        """Its Triton source."""
        return self.bound.to_triton_code()

    def generate_triton_program(self, path: str | Path) -> None:
        """Write its Triton source to a file."""
        self.mugraph.generate_triton_program(path)

    def visualize(self, file_name: str | Path) -> None:
        """Write a drawing of its μGraph, in Graphviz' language, to `file_name`.dot."""
        _draw(self.mugraph, file_name)

    def __repr__(self) -> str:
        found = "as built" if self.result is None else repr(self.result)
        return f"<GraphKernel {self.bound.program.name}: {found}>"


def input_specs(program: KernelGraph) -> list[TensorSpec]:
    """Specs like the inputs of a program of known extents."""

    def extent(axis: Axis) -> int:
        return prod(program.extent_of[d.name] or 1 for d in axis)

    types = [i.type for i in program.inputs]
    return [TensorSpec(t.dtype, tuple(map(extent, t.axes))) for t in types]


def _with_axes(x: Any, shape: tuple[int | str, ...]) -> Any:
    """A tensor with the axes of extent 1 that a shape has; itself if it is another."""
    given = tuple(getattr(x, "shape", ()))
    same = [e for e in given if e != 1] == [e for e in shape if e != 1]
    return x.reshape(shape) if given and same else x


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
    """Mirage's search parameters as constraints; None where all are left out.

    Raises:
        SearchError: One of them is no list of such numbers.
    """
    from mirage_dsl.search.sizes import Constraints

    limits = Constraints(
        _triples(griddims, "griddims", 1),
        _triples(blockdims, "blockdims", 1),
        _triples(imaps, "imaps", -1),
        _triples(omaps, "omaps", -1),
        None if fmaps is None else _numbers(fmaps, "fmaps", -1),
        None if franges is None else _numbers(franges, "franges", 1),
    )
    return None if limits == Constraints() else limits


def _triples(
    given: Triples, name: str, fill: int
) -> tuple[tuple[int, int, int], ...] | None:
    if given is None:
        return None
    found: list[tuple[int, int, int]] = []
    for entry in _entries(given, name, "triples for x, y, z"):
        alone = isinstance(entry, SupportsIndex)
        numbers = _numbers([entry] if alone else entry, name, fill)
        if not 1 <= len(numbers) <= 3:
            raise SearchError(f"{name}: expected triples for x, y, z, found {entry}")
        x, y, z = (*numbers, fill, fill)[:3]
        found.append((x, y, z))
    return tuple(found)


def _numbers(given: Any, name: str, least: int) -> tuple[int, ...]:
    found = _entries(given, name, "integers")
    for number in found:
        if not isinstance(number, SupportsIndex) or index(number) < least:
            raise SearchError(
                f"{name}: found {number!r}, expected integers from {least} on"
            )
    return tuple(map(index, found))


def _entries(given: Any, name: str, what: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SearchError(f"{name}: found {given!r}, expected a list of {what}")
    return list(cast("Iterable[Any]", given))


@overload
def superoptimize(
    program: Any, *, all: Literal[True], **options: Any
) -> EveryMugraph: ...
@overload
def superoptimize(
    program: Any, *, all: Literal[False] = False, **options: Any
) -> Mugraphs: ...
def superoptimize(
    program: Any,
    *,
    griddims: Triples = None,
    blockdims: Triples = None,
    imaps: Triples = None,
    omaps: Triples = None,
    fmaps: Sequence[int] | None = None,
    franges: Sequence[int] | None = None,
    previous_checkpoint: str | Path | None = None,
    all: bool = False,
    **options: Any,
) -> Mugraphs | EveryMugraph:
    """Search for μGraphs of a program, verified and cheapest first.

    Args:
        program: A traced program, a graph builder, or a bound kernel.
        griddims: Allowed grids, as for `Graph.superoptimize`.
        blockdims: Allowed blocks.
        imaps: Allowed maps of inputs.
        omaps: Allowed maps of outputs.
        fmaps: Allowed axes of the loop.
        franges: Allowed numbers of iterations.
        previous_checkpoint: A file with the result, as for `Graph.superoptimize`.
        all: List every μGraph of the space that fits the GPU; each is verified when it
            is taken.  Of the options there are then max_kernels, hardware, seed and
            progress.
        **options: Arguments of `mirage_dsl.store.superoptimize.superoptimize`: effort,
            budget_seconds, max_kernels, use_cache, executor, progress and others.

    Returns:
        The candidates, which can be listed, and the best of which runs when the result
        is called with tensors; with `all` an iterable of candidates with a length.
    """
    from mirage_dsl.api.compatibility import Mugraphs
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
    if all:
        return _every(program, previous_checkpoint, options)
    options = checked_options("superoptimize", options)
    search = partial(run, program)
    result, known = _resumed(previous_checkpoint, search, options, program)
    found = Mugraphs(**{f.name: getattr(result, f.name) for f in fields(result)})
    if known:
        found.kernel.bound.use(result.best.mugraph)
    return found


LISTED = ("constraints", "hardware", "max_kernels", "progress", "seed")
"""Arguments of a search that lists all it finds."""


def _every(
    program: KernelGraph, previous: object, options: dict[str, Any]
) -> EveryMugraph:
    """All μGraphs of a program.

    Raises:
        UnsupportedError: An argument means nothing where all are listed.
    """
    from mirage_dsl.core.hardware import DEFAULT, row_given
    from mirage_dsl.search.driver import every_mugraph

    unknown = {n: v for n, v in options.items() if n not in LISTED}
    if previous is not None:
        unknown["previous_checkpoint"] = previous
    _refuse_unknown("superoptimize with all=True", unknown, ", ".join(LISTED))
    options["hardware"] = row_given(options.get("hardware", DEFAULT))
    options.setdefault("max_kernels", 2)
    return every_mugraph(program, **options)


def _add(options: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Put what an argument means among the options, where it was given.

    Raises:
        UnsupportedError: The option was given as well.
    """
    if value is None:
        return
    if options.get(name) is not None:
        raise UnsupportedError.here(f"give {source} or {name}, not both")
    options[name] = value
