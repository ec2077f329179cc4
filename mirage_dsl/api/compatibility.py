"""What programs that were written for Mirage call beside the graph builder, and read.

They run as they are but for the import.  What means nothing here is refused by name.

Mirage writes μGraphs as JSON: one graph, as a list of operators; the graphs that a
search found, as a list of such lists; and, in its first releases, a checkpoint that has
the program as well.  Tensors are named by numbers there, `guid`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mirage_dsl.api.block_builder import Difference, Rescaling, ThreadblockGraph
from mirage_dsl.api.graph import (
    Graph,
    GraphKernel,
    Lowering,
    bound_to,
    superoptimize,
)
from mirage_dsl.api.kernel import Options
from mirage_dsl.backends.base import DEFAULT_BACKEND, backend_named
from mirage_dsl.core.errors import (
    CacheError,
    DTypeError,
    EquivalenceError,
    MirageError,
    TraceError,
    UnsupportedError,
)
from mirage_dsl.core.hardware import DEFAULT, Hardware
from mirage_dsl.core.types import bf16, dtype_of, f16, f32, packed
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir.graph import KernelGraph
from mirage_dsl.search.result import Candidate, SearchResult, best_first

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, repr=False)
class Mugraphs(SearchResult):
    """What a search found, as Mirage's users take it: a list, and a kernel."""

    @cached_property
    def kernel(self) -> GraphKernel:
        """The best μGraph, to be called."""
        options = Options(mugraph=self.best.mugraph)
        return GraphKernel(bound_to(self.program, options), self)

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
        raise TraceError.here(
            f"a program of {type(graph).__name__}; expected a graph of the builder, "
            "its kernel, a candidate or a μGraph"
        )
    known = "graph, target_cc, input_strides, output_tensors"
    mugraph = Lowering.of("generate_triton_program", lowering, known).applied(mugraph)
    extents = {name: extent or 1 for name, extent in mugraph.extents}
    shapes = [list(r.type.shape_at(extents)) for r in mugraph.returns]
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
        raise DTypeError.here(
            f"{dtype!r} is no dtype; expected one such as mirage.float16"
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
        raise UnsupportedError.here(
            f"set_gpu_device_id({device_id}): PyTorch sees {count} GPUs"
        )
    torch.cuda.set_device(device_id)


# -- μGraphs that Mirage wrote as JSON -------------------------------------------------

FIRST_DTYPES = {920: bf16, 921: f16, 930: f32}
"""By the numbers of Mirage's first releases, which wrote no strides."""

DTYPES = {940: f16, 941: bf16, 950: f32}
"""By the numbers of today."""

Json = Mapping[str, Any]

ACCUMULATORS = {
    "nored": None,
    "red_ld_sum": "sum",
    "red_ld_mean": "mean",
    "red_ld_rms": "rms",
    "redtox_ld_sum": "sum_todimx",
}
"""What the builder calls them."""

BLOCK_OPERATORS = "exp square sqrt silu sigmoid gelu relu add sub mul div pow matmul"
KERNEL_OPERATORS = f"{BLOCK_OPERATORS} log"


def from_json(
    path: str | Path,
    program: Graph | KernelGraph | None = None,
    *,
    hardware: Hardware = DEFAULT,
) -> Mugraphs:
    """The μGraphs of a file that Mirage wrote, verified and cheapest first.

    Args:
        path: The file.
        program: What they compute; a checkpoint of Mirage's first releases has it.
        hardware: The GPU to estimate for.

    Raises:
        CacheError: The file is none of Mirage's, or says what has no meaning here.
        EquivalenceError: No μGraph of it computes the program.
    """
    from mirage_dsl.cost.estimate import estimate
    from mirage_dsl.rewrite.shifts import stabilise
    from mirage_dsl.verify.verifier import verify

    written, graphs = _content(Path(path))
    if program is None and written is None:
        raise CacheError(
            f"{path} has μGraphs and not the program that they compute; give program="
        )
    wanted = read(cast("Sequence[Json]", written)) if program is None else program
    if isinstance(wanted, Graph):
        wanted = wanted.program
    candidates: list[Candidate] = []
    refused: list[str] = []
    for number, operators in enumerate(graphs):
        try:
            mugraph = read(operators).program
            # As they were written their exponents have no running maxima.
            for form in dict.fromkeys([stabilise(mugraph) or mugraph, mugraph]):
                certificate = verify(form, wanted)
                if certificate.ok:
                    cost = estimate(form, hardware)
                    candidates.append(Candidate(form, cost, certificate))
                    break
                refused.append(f"μGraph {number}: {certificate}")
        except MirageError as error:
            refused.append(f"μGraph {number}: {error}")
    if not candidates:
        listed = "\n".join(refused[:3]) or "there is none"
        raise EquivalenceError(f"{path}: no μGraph computes the program; {listed}")
    return Mugraphs(wanted, tuple(best_first(candidates)), complete=False, seconds=0.0)


def is_mirages(path: Path) -> bool:
    """Whether a file has μGraphs of Mirage's and no search result of ours."""
    try:
        _content(path)
    except CacheError:
        return False
    return True


def _content(path: Path) -> tuple[Sequence[Json] | None, Sequence[Sequence[Json]]]:
    """The operators of the program, if they are there, and of each graph."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path} cannot be read as JSON: {error}") from error
    program: Any = None
    graphs: Any = document
    if isinstance(document, dict):
        checkpoint = cast("dict[str, Any]", document)
        program = checkpoint.get("computation_graph")
        graphs = checkpoint.get("generated_graphs")
    found = [graphs] if _are_operators(graphs) else _listed(graphs)
    right = bool(found) and all(map(_are_operators, found))
    if not right or not (program is None or _are_operators(program)):
        raise CacheError(
            f"{path} has no μGraphs of Mirage's; expected a list of operators, a list "
            "of such lists, or a checkpoint of a search"
        )
    return program, found


def _listed(given: object) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []


def _are_operators(given: object) -> bool:
    items = _listed(given)
    return bool(items) and all(isinstance(o, dict) and "op_type" in o for o in items)


def read(operators: Sequence[Json]) -> Graph:
    """A graph of Mirage's in the builder.

    Raises:
        CacheError: It says what has no meaning here; what that is.
        MirageError: The builder refuses it.
    """
    try:
        return _Reader().read(operators)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CacheError(
            f"a graph of Mirage's that lacks something: {type(error).__name__}: {error}"
        ) from error


def _shape(tensor: Json) -> tuple[int, ...]:
    return tuple(int(e) for e in tensor["dim"][: tensor["num_dims"]])


def _named(op_type: str, level: str) -> tuple[str, int | None]:
    """What an operator is called, and the axis in its name: `kn_reduction_2_op`."""
    found = re.fullmatch(rf"{level}_(.+?)(?:_(\d))?_op", op_type)
    if found is None:
        raise CacheError.here(f"{op_type} is no operator of this level")
    return found[1], None if found[2] is None else int(found[2])


def _map(given: Json) -> tuple[int, int, int]:
    return given["x"], given["y"], given["z"]


class _Reader:
    """Reads one graph."""

    def __init__(self) -> None:
        self._graph = Graph()
        self._tensors: dict[int, Tensor] = {}

    def read(self, operators: Sequence[Json]) -> Graph:
        """The graph of these operators, in order."""
        for operator in operators:
            name, axis = _named(operator["op_type"], "kn")
            self._operator(name, axis, operator)
        return self._graph

    def _operator(self, name: str, axis: int | None, operator: Json) -> None:
        graph, given = self._graph, self._given(operator)
        match name:
            case "input":
                (tensor,) = operator["output_tensors"]
                made = [self._input(tensor, operator.get("input_strides"))]
            case "output":
                graph.mark_output(given[0])
                made = []
            case "customized":
                made = graph.customized(given, self._block(operator["bgraph"], given))
            case "reduction" if axis is not None:
                made = [graph.reduction(given[0], axis)]
            case "chunk" if axis is not None:
                count = len(operator["output_tensors"])
                made = list(graph.chunk(given[0], count, axis))
            case "concat" if axis is not None:
                made = [graph.concat(given, axis)]
            case _ if name in KERNEL_OPERATORS.split():
                made = [getattr(graph, name)(*given)]
            case _:
                raise CacheError(
                    f"{operator['op_type']}: its numbers are not in Mirage's file, "
                    "or there is no such operator here"
                )
        for tensor, result in zip(operator["output_tensors"], made, strict=True):
            self._tensors[tensor["guid"]] = result

    def _given(self, operator: Json) -> list[Tensor]:
        return [self._tensors[t["guid"]] for t in operator["input_tensors"]]

    def _input(self, tensor: Json, strides: Sequence[int] | None) -> Tensor:
        shape = _shape(tensor)
        dtypes = FIRST_DTYPES if strides is None else DTYPES
        if tensor["data_type"] not in dtypes:
            raise CacheError(
                f"dtype {tensor['data_type']} of Mirage's is not supported"
            )
        if strides is None and "ColumnMajor" in str(tensor.get("layout")):
            axes = range(len(shape))
            strides = packed(shape, [*axes[:-2], axes[-1], axes[-2]])
        return self._graph.new_input(shape, strides, dtypes[tensor["data_type"]])

    def _block(self, block: Json, given: Sequence[Tensor]) -> ThreadblockGraph:
        made = ThreadblockGraph(
            _map(block["grid_dim"]),
            _map(block["block_dim"]),
            block["forloop_range"],
            _dimx(block),
        )
        return _BlockReader(made, list(given)).read(block["operators"])


def _dimx(block: Json) -> int:
    """What reductions leave of an axis, which some operators say and some blocks."""
    sizes = [o.get("reduce_size", 1) for o in block["operators"]]
    return block.get("reduction_dimx", max(1, *sizes))


class _BlockReader:
    """Reads one block."""

    def __init__(self, block: ThreadblockGraph, sources: list[Tensor]) -> None:
        self._block = block
        self._sources = sources
        self._values: dict[int, Any] = {}
        self._looped: set[int] = set()
        """Values of each iteration."""

    def read(self, operators: Sequence[Json]) -> ThreadblockGraph:
        """The block of these operators, in order."""
        for operator in operators:
            name, axis = _named(operator["op_type"], "tb")
            numbers = [t["guid"] for t in operator["input_tensors"]]
            given = [self._values[n] for n in numbers]
            looped = not self._looped.isdisjoint(numbers)
            if name == "input":
                made = (self._input(operator),)
                looped = operator["forloop_dim"] >= 0
            elif name == "output":
                self._output(operator, given[0], looped=looped)
                continue
            else:
                made = self._applied(name, axis, operator, given)
                looped = looped and not name.startswith("forloop_accum")
            for tensor, result in zip(operator["output_tensors"], made, strict=True):
                self._values[tensor["guid"]] = result
                if looped:
                    self._looped.add(tensor["guid"])
        return self._block

    def _input(self, operator: Json) -> Tensor:
        source = self._sources.pop(0)
        return self._block.new_input(
            source, _map(operator["input_map"]), operator["forloop_dim"]
        )

    def _output(self, operator: Json, value: Tensor, *, looped: bool) -> None:
        """Store a value: in the first releases, what an iteration gives is summed."""
        axis = operator.get("forloop_dim", -1)
        if looped and axis < 0:
            value = self._block.forloop_accum(value)
        self._block.new_output(value, _map(operator["output_map"]), axis)

    def _applied(
        self, name: str, axis: int | None, operator: Json, given: list[Any]
    ) -> tuple[Tensor | Difference | Rescaling, ...]:
        block = self._block
        kind = name.removeprefix("forloop_accum_")
        special = re.fullmatch(r"reduction_(\d)_(max|to_dimx)", name)
        if kind != name:
            return (self._accumulated(kind, given),)
        if special is not None and special[2] == "max":
            return block.reduction_max(given[0], int(special[1]))
        if special is not None:
            return (block.reduction_to_dimx(given[0], int(special[1])),)
        if name == "reduction" and axis is not None:
            return (block.reduction(given[0], axis),)
        if name == "concat" and axis is not None:
            return (block.concat(given, axis),)
        if name == "concat_then_matmul":
            a, b, c, d = given
            return (block.add(block.matmul(a, c), block.matmul(b, d)),)
        if name in BLOCK_OPERATORS.split():
            return (getattr(block, name)(*given),)
        raise CacheError(
            f"{operator['op_type']}: its numbers are not in Mirage's file, or there is "
            "no such operator here"
        )

    def _accumulated(self, kind: str, given: list[Any]) -> Tensor:
        value, *factors = given
        if kind == "max":
            return self._block.forloop_accum_max(value)
        if kind.endswith("_rescale"):
            acc = ACCUMULATORS[kind.removesuffix("_rescale")]
            return self._block.forloop_accum_rescale(value, factors[0], acc)
        return self._block.forloop_accum(value, ACCUMULATORS[kind])
