"""The graph builder without its search: inputs, operators, blocks and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirage_dsl.api.block_builder import ThreadblockGraph
from mirage_dsl.core.errors import TraceError, public_methods, user_location
from mirage_dsl.core.types import TensorSpec, f16, packed
from mirage_dsl.frontend import composites, functions
from mirage_dsl.frontend.arguments import order_of, spec
from mirage_dsl.frontend.dims import Handle
from mirage_dsl.frontend.interop import called
from mirage_dsl.frontend.namespace import function_named
from mirage_dsl.frontend.recorder import (
    Recorder,
    TracedInput,
    build_graph,
    results_of,
    sources_of,
)
from mirage_dsl.frontend.tensor import Tensor
from mirage_dsl.ir.check.graph import check_or_raise
from mirage_dsl.ir.graph import KernelGraph


def _operator(name: str) -> Callable[..., Tensor]:
    function = function_named(name)

    def method(self: GraphBuilder, *operands: Any, **kwargs: Any) -> Tensor:
        self.require_open()
        return self._kept(called(f"graph.{name}", function, *operands, **kwargs))

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
        self._specs: list[TensorSpec] = []
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
        self._specs.append(given)
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
                raise TraceError(
                    f"mark_output with strides {tuple(strides)}: outputs are "
                    "row-major; transpose the tensor instead",
                    user_location(),
                )
        self._outputs.append(handle)

    def own(self, what: str, tensor: Any) -> Handle:
        """The value of a tensor of this graph.

        Raises:
            TraceError: It is another graph's, or no tensor of a graph.
        """
        if not isinstance(tensor, Tensor) or tensor.recorder is not self.recorder:
            raise TraceError(
                f"{what} takes a tensor of this graph, found {type(tensor).__name__}",
                user_location(),
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

    def _kept(self, made: Any) -> Any:
        """What was made, remembered with its axes: a tensor or several."""
        tensors: Sequence[Any] = (made,) if isinstance(made, Tensor) else made
        for tensor in tensors:
            if tensor.recorder is not self.recorder:
                raise TraceError(
                    f"operands of graph {self.name} belong to another graph; use "
                    "tensors of one graph",
                    user_location(),
                )
            self._made[tensor.handle.value.name] = tensor.handle
        return made

    def _unread(self) -> list[Handle]:
        """What the graph's own methods made and no operator reads, in order."""
        nodes = self.recorder.nodes
        read = {name for node in nodes for name in sources_of(node)}
        unread = [n for node in nodes for n in results_of(node) if n not in read]
        if not unread or not all(name in self._made for name in unread):
            raise TraceError(
                "the graph has no output; call mark_output", user_location()
            )
        return [self._made[name] for name in unread]

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
        self.require_open()
        return self._kept(functions.sum(tensor, dim, keepdims=True))

    def clamp(self, tensor: Tensor, min_val: float, max_val: float) -> Tensor:
        """The tensor limited from below and above."""
        self.require_open()
        return self._kept(functions.clamp(tensor, min_val, max_val))

    def mul_scalar(self, tensor: Tensor, scalar: float) -> Tensor:
        """The tensor times a number."""
        self.require_open()
        return self._kept(functions.mul(tensor, scalar))

    def rms_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor over its root mean square along its last axes.

        Args:
            tensor: The tensor.
            normalized_shape: Their extents; None for the last axis alone.
            **options: Further arguments of `mirage.rms_norm`.
        """
        self.require_open()
        return self._norm(composites.rms_norm, tensor, normalized_shape, options)

    def layer_norm(
        self, tensor: Tensor, normalized_shape: Any = None, **options: Any
    ) -> Tensor:
        """The tensor with mean 0 and variance 1 along its last axes.

        Args:
            tensor: The tensor.
            normalized_shape: Their extents; None for the last axis alone.
            **options: Further arguments of `mirage.layer_norm`.
        """
        self.require_open()
        return self._norm(composites.layer_norm, tensor, normalized_shape, options)

    def _norm(
        self,
        function: Callable[..., Tensor],
        tensor: Tensor,
        normalized_shape: Any,
        options: dict[str, Any],
    ) -> Tensor:
        options["normalized_shape"] = normalized_shape
        name = f"graph.{function.__name__}"
        return self._kept(called(name, function, tensor, **options))

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
